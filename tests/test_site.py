"""The reading room (docs/site.py) in a browser: no errors, no dead links, no requests, nothing inaccessible."""

import re
import shutil
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from conftest import ROOT
from test_family import FAMILY, definitions, rows_of_the_table, tags_of

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
    page.on("request", lambda x: x.url.startswith((site.as_uri(), "data:")) or wrong.append(f"request: {x.url}"))
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
    for path in site.rglob("*.html"):
        page.go(path.relative_to(site))
        assert page.locator("h1").count() == 1, path
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_page_has_its_whole_script(site, page, script):
    page.go(script.relative_to(ROOT).with_suffix(".html"))
    assert page.locator(".code code").all_text_contents()
    lines = page.eval_on_selector_all(".l", "lines => lines.map(x => [x.id, x.querySelector('code').textContent])")
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
    edge = page.evaluate("Math.max(...[...document.querySelectorAll('.l code')].map(x => x.getBoundingClientRect().right))")
    tests = {tag: test for tag, files, _, test in rows_of_the_table() if letter in files.split()}
    for name, line, text, below, left in notes:
        tag = name.removeprefix("note-")
        assert tag in line and tests[tag] in text
        assert below >= 0 and left > edge - 1
