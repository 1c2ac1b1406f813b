"""The reading room (docs/site.py) in a browser: no errors, no dead links, no requests, buttons that work."""

import shutil
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from conftest import ROOT, name_of
from test_family import DIFFS, FAMILY, definitions, rows_of_the_table, tags_of

import ppo_discrete
from variants import trpo

SCRIPTS = [*ROOT.glob("*.py"), *ROOT.glob("variants/*.py")]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "docs/site.py", "--no-open", "--out", str(out)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=60)
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
    page.on(
        "request", lambda x: x.url.startswith((site.as_uri(), "data:")) or wrong.append(f"request: {x.url}")
    )
    page.set_default_timeout(5000)
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
            assert file.is_file() and file.is_relative_to(site), (path, link)
            assert not anchor or anchor in pages[file].ids, (path, link)


def test_every_page_opens_without_an_error(site, page):
    """Nor is one wider than the screen. Of the pages of tests and benchmarks, one stands for ten."""
    pages = [path for path in site.rglob("*.html") if path.parent.name not in ("tests", "benchmarks")]
    pages += sorted(site.glob("tests/*.html"))[::10] + sorted(site.glob("benchmarks/*.html"))[::10]
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
        """notes => notes.map(note => [note.id, note.previousElementSibling.textContent, note.textContent,
            note.offsetTop - note.previousElementSibling.offsetTop, note.offsetLeft])""",
    )
    assert [name for name, *_ in notes] == [f"note-{tag}" for tag in tags_of(script)]
    edge = page.evaluate(
        "Math.max(...[...document.querySelectorAll('.l code')].map(x => x.getBoundingClientRect().right))"
    )
    tests = {tag: test for tag, files, _, test in rows_of_the_table() if letter in files.split()}
    for name, line, text, below, left in notes:
        tag = name.removeprefix("note-")
        assert tag in line and tests[tag] in text
        assert below >= 0 and left > edge - 1


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
    assert 150 < len(shown) < 270 < lines.count()
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
        ("value clipping", "docs/details.html#D09"),
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


@pytest.mark.parametrize(("parent", "child"), DIFFS, ids=name_of)
def test_a_diff_is_of_just_the_lines_that_git_changes(page, parent, child):
    """Old and new lines, put together in their order, are the two files; their number is that of git."""
    page.go(f"diffs/{name_of(parent)}--{name_of(child)}.html")
    sides = [
        page.eval_on_selector_all(
            f".change .{side} .l code",
            "lines => lines.map(x => [+x.previousSibling.textContent, x.textContent])",
        )
        for side in ("old", "new")
    ]
    texts = [Path(module.__file__).read_text().splitlines(keepends=True) for module in (parent, child)]
    for side, text in zip(sides, texts, strict=True):
        assert all(text[n - 1] == line for n, line in side)
    old, new = ([n for n, _ in side] for side in sides)
    rest = [
        [line for n, line in enumerate(text, 1) if n not in {*changed}]
        for text, changed in zip(texts, (old, new), strict=True)
    ]
    assert rest[0] == rest[1]
    assert len(new) <= DIFFS[parent, child][0] * 1.2 + 5 and len(old) <= DIFFS[parent, child][1] * 1.2 + 5
