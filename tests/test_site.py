"""The reading room (docs/site.py) in a browser: no errors, no dead links, no requests, buttons that work."""

import importlib.util
import itertools
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import ROOT, name_of
from filelock import FileLock
from test_family import DIFFS, FAMILY, definitions, rows_of_the_table, tags_of

import ppo_continuous
import ppo_discrete
from variants import trpo

SCRIPTS = [*ROOT.glob("*.py"), *ROOT.glob("variants/*.py")]
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Made once, by whichever process of pytest-xdist needs it first."""
    folder = tmp_path_factory.getbasetemp()
    out = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "site"
    with FileLock(f"{out}.lock"):
        if not (out / "index.html").exists():
            command = [sys.executable, "docs/site.py", "--no-open", "--out", str(out)]
            subprocess.run(command, cwd=ROOT, check=True, timeout=200)
    return out


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="pip install -r tests/requirements.txt")
    with playwright.sync_playwright() as engines:
        own = engines.chromium.executable_path
        path = own if Path(own).exists() else shutil.which("chromium") or shutil.which("chromium-browser")
        if not path:
            pytest.skip("no Chromium: apt-get install chromium, or playwright install chromium")
        browser = engines.chromium.launch(executable_path=path)
        yield browser
        browser.close()


@pytest.fixture
def page(browser, site):
    """A tab that fails the test if a page complains, or asks for anything but files of the site."""
    context = browser.new_context(viewport={"width": 1600, "height": 900})
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    page, wrong = context.new_page(), []
    page.on("console", lambda message: wrong.append(f"{page.url}: {message.text}"))
    page.on("pageerror", lambda error: wrong.append(f"{page.url}: {error}"))
    own = (site.as_uri(), "data:", "blob:")
    page.on("request", lambda x: x.url.startswith(own) or wrong.append(f"request: {x.url}"))
    page.set_default_timeout(20_000)
    page.go = lambda path: page.goto(f"{site.as_uri()}/{path}")
    yield page
    context.close()
    assert not wrong


class Links(HTMLParser):
    """The ids of a page, and what it refers to."""

    def __init__(self, path):
        super().__init__()
        self.ids, self.targets = Counter(), set()
        self.feed(path.read_text())

    def handle_starttag(self, _, attributes):
        attributes = dict(attributes)
        self.ids.update([attributes["id"]] if "id" in attributes else ())
        self.targets |= {attributes[name] for name in ("href", "src", "srcset") if name in attributes}
        if "for" in attributes:
            self.targets.add(f"#{attributes['for']}")


def test_links_and_anchors_lead_somewhere(site):
    pages = {path: Links(path) for path in site.rglob("*.html")}
    assert len(pages) > len(SCRIPTS) ** 2 / 2
    for path, links in pages.items():
        assert not [name for name, count in links.ids.items() if count > 1], path
        for link in links.targets:
            target, anchor = urlsplit(link), unquote(urlsplit(link).fragment)
            if target.scheme:
                assert target.scheme in ("https", "data"), (path, link)
                continue
            file = (path.parent / unquote(target.path)).resolve() if target.path else path
            assert file.exists() and file.is_relative_to(site), (path, link)
            assert not anchor or anchor in pages[file].ids, (path, link)


def test_every_page_opens_without_an_error(site, page):
    """Nor is one wider than the screen. Of the pages of one kind, one stands for ten."""
    many = ("tests", "benchmarks", "diffs")
    pages = [path for path in site.rglob("*.html") if path.parent.name not in many]
    pages += [page for folder in many for page in sorted(site.glob(f"{folder}/*.html"))[::10]]
    for path in pages:
        page.go(path.relative_to(site))
        assert page.locator("h1").count() == 1, path
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_page_has_its_whole_script(site, page, script):
    page.go(script.relative_to(ROOT).with_suffix(".html"))
    assert page.locator(".code code").all_text_contents()
    lines = page.eval_on_selector_all(
        ".l", "lines => lines.map(x => [x.id, x.querySelector('code').textContent])"
    )
    assert "".join(text for _, text in lines) == script.read_text()
    assert [name for name, _ in lines] == [f"L{n}" for n in range(1, len(lines) + 1)]


@pytest.mark.parametrize("letter", FAMILY)
def test_a_tagged_line_has_its_note_beside_it(site, page, letter):
    script = FAMILY[letter]
    page.go(Path(script.__file__).relative_to(ROOT).with_suffix(".html"))
    notes = page.eval_on_selector_all(
        ".note",
        """notes => notes.map(note => {
            const line = note.closest(".row").querySelector(".l"), box = line.getBoundingClientRect();
            const place = note.getBoundingClientRect();
            return [note.id, line.textContent, note.textContent, place.top - box.top, place.left - box.right];
        })""",
    )
    assert [name for name, *_ in notes] == [f"note-{tag}" for tag in tags_of(script)]
    tests = {tag: test for tag, files, _, test in rows_of_the_table() if letter in files.split()}
    for name, line, text, below, beside in notes:
        tag = name.removeprefix("note-")
        assert tag in line and tests[tag] in text
        assert abs(below) <= 2 and beside > 0
        told = text.partition("Fails without it")[0]
        assert len(told.split()) > 12, told  # it says more than "As D13."


def test_a_tag_leads_to_its_line_and_unfolds_its_note(page):
    """Both are lit and on the screen; what is said lies over the page, and nothing else moves."""
    for script in ("ppo_discrete", "ppo_continuous"):
        page.go(f"{script}.html")
        tops = "() => [...document.querySelectorAll('.l')].map(x => x.getBoundingClientRect().top + scrollY)"
        before = page.evaluate(tops)
        page.locator(".l a[href='#note-D05']").click()
        page.keyboard.press("Escape")  # and open again by the same click
        for link in page.locator(".l a[href^='#note-']").all():
            link.scroll_into_view_if_needed()
            place = page.evaluate("scrollY")
            link.click()
            assert page.evaluate("scrollY") == place
            tag = link.text_content()
            line, note = page.locator(f".row:has(#note-{tag}) .l"), page.locator(f"#note-{tag}")
            page.wait_for_function("tag => document.querySelector(`#note-${tag}`).open", arg=tag)
            y = line.bounding_box()["y"]
            assert 50 < y < 890 and abs(note.bounding_box()["y"] - y) <= 2
            assert line.evaluate("x => getComputedStyle(x).backgroundColor") != "rgba(0, 0, 0, 0)"
            assert page.locator(".note[open]").count() == 1
        assert page.evaluate(tops) == before
        page.keyboard.press("Escape")
        assert not page.locator(".note[open]").count()


def test_code_that_is_selected_has_no_notes_in_it(page):
    page.go("ppo_discrete.html")
    page.evaluate(
        """() => { const range = document.createRange(), lines = document.querySelectorAll(".l code");
            range.setStart(lines[130], 0); range.setEnd(lines[150], 0);
            getSelection().removeAllRanges(); getSelection().addRange(range); }"""
    )
    page.keyboard.press("Control+c")
    lines = [line.strip() for line in page.evaluate("navigator.clipboard.readText()").splitlines()]
    source = Path(ppo_discrete.__file__).read_text().splitlines()[130:150]
    assert [line for line in lines if line] == [line.strip() for line in source if line.strip()]


def test_on_paper_notes_stand_below_their_lines(page):
    page.go("ppo_discrete.html")
    page.emulate_media(media="print")
    assert not page.locator("header").is_visible() and not page.locator(".copy").first.is_visible()
    line, note = (page.locator(f".row:has(#note-D08) {x}").bounding_box() for x in (".l", ".note"))
    assert note["y"] >= line["y"] + line["height"] - 1
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_script_page_begins_with_what_the_script_does(site):
    """Its command, what it learns, what it logs; each with its own words for the same name."""
    html = (site / "ppo_discrete.html").read_text()
    begin = html[: html.index('class="code"')]
    assert "python ppo_discrete.py --env-id Acrobot-v1" in begin and 'class="curves"' in begin
    assert ">CartPole-v1</a>" in begin and "<dt><code>clip_frac</code></dt>" in begin
    for page, words in (
        ("trpo", "the exact KL of the step"),
        ("grpo", "the share of groups whose scores differ"),
    ):
        assert words in (site / f"variants/{page}.html").read_text()
    assert "clip_frac</code></dt>" not in (site / "reinforce_baseline.html").read_text()


def test_the_door_leads_to_every_script_and_document(reading_room, tmp_path):
    room = reading_room.Site(tmp_path)
    listed = [path for group in room.door["documents"] for path, *_ in group["pages"]]
    assert sorted(listed) == sorted(room.documents)
    assert {*room.adds} == {script.name for script in room.scripts}
    assert {*room.formulas} <= {*room.notes}
    room.write("index.html", "home.html")
    html = (tmp_path / "index.html").read_text()
    tree = html[html.index('class="tree"') : html.index('id="diffs"')]
    assert all(tree.count(f'href="{script.page}"') == 1 for script in room.scripts)
    assert html.index("I want to understand PPO") < html.index('class="tree"')


@pytest.mark.parametrize("width", [800, 1440])
def test_the_notes_can_be_left_out(page, width):
    page.set_viewport_size({"width": width, "height": 900})
    page.go("ppo_discrete.html")
    notes = page.locator(".note summary")
    for visible in (False, True):
        page.click("#notes")
        assert {note.is_visible() for note in notes.all()} == {visible}


def test_what_is_found_fits_on_a_phone(page):
    page.set_viewport_size({"width": 390, "height": 844})
    page.go("index.html")
    page.fill("#site-search", "gae")
    page.wait_for_selector("#site-results a")
    box = page.locator("#site-results").bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= 390


def test_only_the_algorithm(page):
    """The button hides flags and logging, and no tagged line; a link to a hidden line shows it again."""
    page.go("ppo_discrete.html")
    lines = page.locator(".l")
    page.click("text=Only the algorithm")
    shown = [
        int(name[1:])
        for name in page.eval_on_selector_all(
            ".l", "lines => lines.filter(x => x.checkVisibility()).map(x => x.id)"
        )
    ]
    source = Path(ppo_discrete.__file__).read_text().splitlines()
    assert 150 < len(shown) < 300 < lines.count()
    text = "\n".join(source[n - 1] for n in shown)
    assert all(f"[{tag}]" in text for tag in tags_of(ppo_discrete))
    for word in ("env_id: str", "writer.", "wandb", "def save", "import", "bar.update"):
        assert word not in text, word
    for word in (
        "loss.backward()",
        "optimizer.step()",
        "def compute_gae",
        "envs.step",
        "advantages = compute_gae(",
    ):
        assert word in text, word
    hidden = next(n for n, line in enumerate(source, 1) if line.startswith("def save"))
    page.evaluate(f"location.hash = 'L{hidden}'")
    page.wait_for_selector(f"#L{hidden}", state="visible")
    assert page.get_attribute("#algorithm", "aria-pressed") == "false"


def test_buttons_copy_a_function_and_the_file(page):
    page.go("variants/trpo.html")
    read = lambda: page.evaluate("navigator.clipboard.readText()")  # noqa: E731
    page.click("text=Copy the file")
    page.wait_for_selector("text=Copied")
    assert read() == Path(trpo.__file__).read_text()
    for name in ("train", "fisher_vector_product"):
        page.click(f"[aria-label='Copy {name}']")
        page.wait_for_function(
            "name => document.querySelector(`[aria-label='Copy ${name}']`).textContent == 'Copied'", arg=name
        )
        assert (
            read().removeprefix("@torch.no_grad()\n").partition("# That was")[0].strip()
            == definitions(trpo)[name]
        )


def test_search_finds(page):
    """By keyboard, from any page; details, functions and documents are found."""
    page.go("variants/grpo.html")
    for words, target in [
        ("d09", "docs/details.html#D09"),
        ("group_advantages", "variants/grpo.html#group_advantages"),
        ("test_clip test_loss", "tests/test_loss.html#test_clip"),
        ("five fixes gae", "docs/five_fixes.html#fix-3-generalized-advantage-estimation"),
    ]:
        page.locator("h1").click()
        page.keyboard.press("/")
        page.keyboard.press("Control+a")
        page.keyboard.type(words)
        page.wait_for_selector(f"#site-results a[href$='{target}']")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_url("**/docs/five_fixes.html#*")


QUERIES = {  # what people type, and the beginning of a page that is to be among the first three
    "ent_coef": "reinforce_baseline.html#L",
    "custom environment": "docs/operations.html#envs-of-your-own",
    "multi-gpu": "variants/ppo_atari_distributed",
    "gae": "docs/details.html#D05",
    "kl": "docs/details.html#E3",
    "lstm": "variants/ppo_lstm",
    "wandb": "docs/operations.html",
    "normalize": "docs/details.html#D28",
    "normalise": "docs/details.html#D28",
    "normalization": "docs/details.html#D07",
    "value clipping": "docs/details.html#D09",
    "learning rate": "docs/details.html#D04",
    "learning rate schedule": "docs/details.html#D04",
    "resume": "reinforce_baseline.html#L",
    "checkpoint": "reinforce_baseline.html#L",
    "video": "reinforce_baseline.html#L",
    "evaluate": "reinforce_baseline.html#evaluate",
    "time limit": "docs/details.html#E1",
    "truncation": "docs/details.html#E1",
    "clip": "docs/details.html#D",
    "huggingface": "docs/language",
    "what is an advantage": "docs/details.html#D05",
    "clipped objective": "docs/details.html#D08",
    "entropy": "docs/details.html#D10",
    "advantage": "docs/details.html#D05",
    "tensorboard": "docs/operations.html",
    "seed": "reinforce_baseline.html#L",
    "atari": "ppo_atari.html",
    "frame stack": "docs/details.html#D20",
    "reward model": "variants/reward_model.html",
    "dpo": "variants/dpo.html",
    "grpo": "variants/grpo.html",
    "rlhf": "docs/words.html",
    "trl": "docs/language_runs.html#coming-from-trl",
    "cleanrl": "docs/operations.html#coming-from-cleanrl",
    "stable baselines": "docs/results.html#the-same-in-stable-baselines3",
    "tune hyperparameters": "tools/tune.html",
    "sweep": "tools/sweep.html",
    "install": "docs/operations.html#installing",
    "cuda": "docs/operations.html#installing",
    "kl penalty": "docs/details.html#E3",
    "trust region": "docs/trust_regions.html",
    "reference model": "docs/details.html#L8",
    "explained variance": "docs/details.html#D12",
    "mask invalid actions": "docs/details.html#X4",
    "multidiscrete": "docs/details.html#D37",
    "bfloat16": "docs/results.html",
    "distributed": "variants/ppo_atari_distributed.html",
    "mujoco": "docs/mujoco.html",
    "hopper": "ppo_continuous.html",
}


def test_what_people_look_for_is_found(page):
    """Among the first three; tests and benchmarks come last."""
    page.go("index.html")
    page.focus("#site-search")
    page.wait_for_function("typeof INDEX !== 'undefined'")
    missed = {}
    for query, target in QUERIES.items():
        found = page.evaluate("query => search(query).slice(0, 3).map(x => x.page)", query)
        if not any(name.startswith(target) for name in found):
            missed[query] = found
    assert not missed
    assert page.evaluate("search('td3')") == []  # no words that are only near
    pages = page.evaluate("search('clip').map(x => x.page)")
    ranks = {name: [i for i, x in enumerate(pages) if x.startswith(name)] for name in ("docs/", "tests/")}
    assert np.median(ranks["docs/"]) < np.median(ranks["tests/"])


@pytest.mark.parametrize(("parent", "child"), DIFFS, ids=name_of)
def test_a_diff_is_of_just_the_lines_that_git_changes(page, parent, child):
    """Old and new lines, put together in their order, are the two files; their number is that of git."""
    page.go(f"diffs/{name_of(parent)}--{name_of(child)}.html")
    sides = [
        page.eval_on_selector_all(
            f".change .{side} pre:not(:empty)",
            """lines => lines.map(x => [+x.firstChild.textContent,
                [...x.childNodes].slice(1).map(y => y.textContent).join("")])""",
        )
        for side in ("old", "new")
    ]
    texts = [Path(module.__file__).read_text().splitlines() for module in (parent, child)]
    for side, text in zip(sides, texts, strict=True):
        assert all(text[n - 1] == line for n, line in side)
    old, new = ([n for n, _ in side] for side in sides)
    rest = [
        [line for n, line in enumerate(text, 1) if n not in {*changed}]
        for text, changed in zip(texts, (old, new), strict=True)
    ]
    assert rest[0] == rest[1]
    assert len(new) <= DIFFS[parent, child][0] * 1.2 + 5 and len(old) <= DIFFS[parent, child][1] * 1.2 + 5


def test_keyboard_moves_through_a_diff(page):
    page.go("diffs/ppo_discrete--ppo_continuous.html")
    assert page.locator(".elsewhere").count() and not page.locator(".elsewhere").first.is_visible()
    changes = page.locator(".change:not(.elsewhere, .elsewhere *)")
    for key, number in [("n", 1), ("n", 2), ("n", 3), ("p", 2)]:
        page.keyboard.press(key)
        assert page.locator("#at").text_content() == f"change {number} of {changes.count()}"
        assert changes.nth(number - 1).evaluate("x => x === document.activeElement")
        box = changes.nth(number - 1).bounding_box()
        assert 0 < box["y"] < 900


def test_words_are_marked_and_the_unified_view_has_each_line_once(page):
    page.go("diffs/ppo_discrete--ppo_continuous.html")
    page.click("#algorithm")  # shows the rest, too
    cells = """rows => rows.map(x => [x.querySelectorAll("mark").length, x.textContent,
        [...x.childNodes].slice(1).map(y => y.cloneNode(true)).map(y => {
            if (y.querySelectorAll) y.querySelectorAll("mark").forEach(z => z.remove());
            return y.nodeName === "MARK" ? "" : y.textContent }).join("")])"""
    old, new = (page.eval_on_selector_all(f".change .{side} pre", cells) for side in ("old", "new"))
    assert len(old) == len(new)
    both = [(a, b) for a, b in zip(old, new, strict=True) if a[0] and b[0]]
    assert len(both) > 20
    for a, b in both:
        assert a[1] != b[1] and a[2] == b[2]  # without the marked words, they are the same
    lefts = "x => x.getBoundingClientRect().left"
    changes = (
        page.locator(".change")
        .filter(has=page.locator(".old pre:not(:empty)"))
        .filter(has=page.locator(".new pre:not(:empty)"))
    )
    assert changes.first.locator(".old").evaluate(lefts) < changes.first.locator(".new").evaluate(lefts)
    page.click("#unified")
    assert changes.first.locator(".old").evaluate(lefts) == changes.first.locator(".new").evaluate(lefts)
    assert not page.locator(".same .old").first.is_visible() and page.locator(".same .new").first.is_visible()


def test_notes_in_a_diff_are_of_what_it_adds_and_takes_away(page):
    page.go("diffs/ppo_continuous--trpo.html")
    notes = page.locator(".note summary").all_text_contents()
    ours, theirs = {*tags_of(ppo_continuous)}, {*tags_of(trpo)}
    assert {note.split()[1] for note in notes if note.startswith("New")} == theirs - ours
    assert {note.split()[1] for note in notes if note.startswith("Gone")} == ours - theirs


def test_any_two_files_and_the_path(page):
    page.go("diffs/ppo_discrete--ppo_continuous.html")
    page.select_option("#From", "grpo")
    page.select_option("#to", "reinforce_baseline")
    page.click("text=Show")
    page.wait_for_url("**/diffs/reinforce_baseline--grpo.html")
    page.go("ppo_discrete.html")
    page.select_option("#other", label="trpo.py")
    page.click("text=Show")
    page.wait_for_url("**/diffs/ppo_discrete--trpo.html")
    page.go("index.html")
    page.click("#diffs ~ ol a >> nth=0")
    steps = [page.title().split()[2]]
    while page.locator("a[rel=next]").count():
        page.click("a[rel=next] >> nth=0")
        steps.append(page.title().split()[2])
    assert steps == [
        "ppo_discrete.py",
        "ppo_continuous.py",
        "trpo.py",
        "ppo_llm.py",
        "grpo.py",
        "dpo.py",
        "reward_model.py",
    ]


@pytest.fixture(scope="module")
def reading_room():
    spec = importlib.util.spec_from_file_location("reading_room", ROOT / "docs/site.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_note_says_what_was_measured_without_its_detail(reading_room, tmp_path):
    room = reading_room.Site(tmp_path)
    heads = ["change", "CartPole", "Acrobot"]
    room.effects["D08"] = [heads, ["nothing changed", "480", ""], ["no clip", "**210**", ""]]
    script = next(script for script in room.scripts if script.stem == "ppo_discrete")
    room.write(script.page, "script.html", script=script, family=True)
    html = (tmp_path / script.page).read_text()
    told = " ".join(re.sub("<[^>]*>", " ", html[html.index('id="note-D08"') :]).split())
    assert "change nothing changed no clip CartPole 480 210 Fails without it" in told
    assert "<strong>210</strong>" in html and "Acrobot-v1" not in told.partition("Fails without it")[0]


def test_formulas_footnotes_and_anchors(reading_room):
    """Formulas become MathML, dollars in code stay, and a heading has the anchor that GitHub makes of it."""
    text = "## Fix 5: the *clip* (again)\n\n$\\frac{a}{b}$, `$HOME`, a note[^1]\n\n$$\nx^2\n$$\n\n[^1]: Yes"
    html = reading_room.PARSER.render(text)
    assert html.count("<math") == 2 and "<mfrac>" in html and "<msup>" in html and 'display="block"' in html
    assert "<code>$HOME</code>" in html
    assert 'id="fix-5-the-clip-again"' in html
    assert {f"#{name}" for name in ("fn1", "fnref1")} <= {*re.findall('href="([^"]*)"', html)}


def texts(page, selector):
    return [text.strip().replace("−", "-") for text in page.locator(selector).all_text_contents()]


def test_the_clip_is_that_of_autograd(page):
    page.go("figures.html")
    for sign, ratio, epsilon in itertools.product((1, -1), (0.55, 0.9, 1.1, 1.45), (0.2, 0.5)):
        page.select_option("#sign", str(sign))
        page.fill("#ratio", str(ratio))
        page.fill("#epsilon", str(epsilon))
        x = torch.tensor(ratio, requires_grad=True)
        free, cut = x * sign, x.clamp(1 - epsilon, 1 + epsilon) * sign
        branches = [free, cut, torch.min(free, cut)]
        expected = [f"{branch.item():.3f}" for branch in branches]
        slopes = [torch.autograd.grad(branch, x, retain_graph=True)[0].item() for branch in branches]
        assert texts(page, "#clip-table td:nth-child(2)") == expected
        assert [float(text) for text in texts(page, "#clip-table td:nth-child(3)")] == slopes
        assert ("clipped, there is" in page.text_content("#clip-case")) == (slopes[2] == 0)


def test_figures_stand_in_the_text_that_is_about_them(page):
    """The clip in place of its picture, GAE and the ratios beside their formulas; on GitHub, pictures."""
    page.go("docs/five_fixes.html")
    for name, after in (("gae-plot", "fix-3"), ("clip-plot", "fix-5"), ("ratio-plot", "fix-5")):
        figure = f"document.getElementById('{name}')"
        above = f"(heading) => heading.compareDocumentPosition({figure}) & 4"
        found = page.evaluate(f"[...document.querySelectorAll('h2')].findLast({above}).id")
        assert found.startswith(after) and page.locator(f"#{name} :is(polyline, rect)").count() > 2
    assert not page.locator("img[src*=clip_]").count() and page.locator("img[src*=fix_noise]").count()
    page.locator("#ratio").fill("0.5")
    assert "not clipped" in page.locator("#clip-case").inner_text()


def test_gae_is_that_of_the_scripts(page):
    page.go("figures.html")
    rewards, values = np.array([[1.0], [0], [2]]), np.array([[2.0], [1.5], [2.5], [1]])
    for gamma, lam, end in [(0.99, 0.95, False), (0.9, 0.5, True), (1, 1, False), (0.95, 0, True)]:
        page.fill("#gamma", str(gamma))
        page.fill("#lambda", str(lam))
        page.set_checked("#end", end)
        following = values[1:] * np.array([[1], [1], [not end]])
        advantages = ppo_discrete.compute_gae(rewards, values[:3], following, np.zeros((3, 1)), gamma, lam)
        shown = [float(text) for text in texts(page, "#gae-table td:nth-child(5)") if text]
        assert shown == pytest.approx(advantages[:, 0].tolist(), abs=1e-3)
        assert texts(page, "#gae-mean")[0].endswith(f"= {shown[0]:.3f}")
    page.fill("#r0", "5")
    assert float(texts(page, "#gae-table td:nth-child(5)")[0]) == pytest.approx(shown[0] + 4, abs=1e-3)


def test_ratios_are_those_of_the_run(page):
    page.go("figures.html")
    runs = page.evaluate("FIGURES.runs")
    for run, updates in runs.items():
        page.select_option("#run", run)
        for number, update in enumerate(updates):
            assert len(update["epochs"]) == (4 if run == "4" else 20)
            assert all(sum(epoch["counts"]) == 512 for epoch in update["epochs"])
            page.select_option("#iteration", str(number))
            outside = update["epochs"][-1]["outside"]
            shown = re.search(r"([\d.]+) % are outside", page.text_content("#ratio-case"))[1]
            assert float(shown) == pytest.approx(100 * outside, abs=0.051)
            assert page.locator("#ratio-plot rect").count() == len(update["epochs"][-1]["counts"])
    clipped, free = (
        sum(update["epochs"][-1]["outside"] for update in runs[run]) for run in ("20", "unclipped")
    )
    assert 0 < clipped < free / 2  # the clip makes them fewer, and holds none back


def test_the_cart_is_that_of_gymnasium_and_its_agent_balances(page):
    page.emulate_media(reduced_motion="reduce")  # else it starts by itself
    page.go("figures.html")
    data = page.evaluate("FIGURES.agent")
    assert data["mean_return"] > 400
    networks = {}
    for name in ("actor", "critic"):
        networks[name] = ppo_discrete.mlp(4, 2 if name == "actor" else 1, 1.0)
        for layer, (weight, bias) in zip(networks[name][::2], data[name], strict=True):
            layer.weight.data, layer.bias.data = torch.tensor(weight), torch.tensor(bias)
    env = gym.make("CartPole-v1").unwrapped
    env.reset(seed=1)
    for action in [0, 1, 1, 0, 0, 0, 1, 1, 1, 1]:
        state = [float(x) for x in env.state]
        policy = networks["actor"](torch.tensor(state)).softmax(0).tolist()
        assert page.evaluate("policy", state) == pytest.approx(policy, abs=1e-5)
        value = networks["critic"](torch.tensor(state)).item()
        assert page.evaluate("x => network(FIGURES.agent.critic, x)[0]", state) == pytest.approx(
            value, abs=1e-3
        )
        env.step(action)
        moved = page.evaluate("([state, action]) => cartpole(state, action)", [state, action])
        assert moved == pytest.approx([float(x) for x in env.state], abs=1e-9)
    survived = page.evaluate(
        """() => { let total = 0; for (let i = 0; i < 10; i++) {
            startAgain(); while (!fallen && steps < 500) advance(); total += steps } return total / 10 }"""
    )
    assert survived > 300
    page.click("#reset")
    page.click("#push-right")
    assert float(texts(page, "#agent-table td:nth-child(2)")[0]) > 0.4
    page.click("#step")
    assert texts(page, "#agent-table td:nth-child(8)") == ["1"]


@pytest.mark.parametrize(("width", "scheme"), [(1600, "light"), (390, "dark")])
def test_nothing_is_inaccessible(page, scheme, width):
    """axe-core finds nothing on a page of each kind."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    options = {"preload": False, "resultTypes": ["violations"]}  # preloading style sheets needs http
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 900})
    kinds = [
        "index",
        "reinforce_baseline",
        "diffs/ppo_atari--ppo_atari_lstm",
        "docs/details",
        "figures",
        "learn",
        "docs/five_fixes",
        "tests/test_gae",
    ]
    for path in kinds:
        page.go(f"{path}.html")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
        violations = axe.run(page, options=options).response["violations"]
        assert not [(x["id"], y["target"], y["failureSummary"]) for x in violations for y in x["nodes"]], path
