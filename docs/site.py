# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "Jinja2==3.1.6",
#     "markdown-it-py==4.3.0",
#     "math-core==0.9.0",
#     "mdit-py-plugins==0.7.0",
#     "Pygments==2.21.0",
# ]
# ///
"""The reading room: every script, every diff and every document as pages that a browser shows offline.

    python docs/site.py                          # writes site/ and opens it
    python docs/site.py --no-open --out FOLDER   # writes FOLDER

A page lies where its file lies: docs/details.md becomes site/docs/details.html. Templates are in docs/site/.
"""

import argparse
import ast
import csv
import json
import os
import re
import shutil
import tomllib
import webbrowser
from bisect import bisect_right
from collections import Counter, defaultdict
from difflib import SequenceMatcher
from functools import cache
from html import escape, unescape
from itertools import accumulate, chain, combinations, groupby, pairwise, zip_longest
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup
from math_core import LatexToMathML
from mdit_py_plugins.anchors import anchors_plugin
from mdit_py_plugins.dollarmath import dollarmath_plugin
from mdit_py_plugins.footnote import footnote_plugin
from pygments import lex
from pygments.lexers import get_lexer_by_name
from pygments.token import Comment, Keyword, Name, Number, Operator, String

ROOT = Path(__file__).resolve().parents[1]
# Kinds of tokens, and the letters that the style sheet knows them by; all others stay plain.
KINDS = {String: "s", Comment: "c", Number: "m", Keyword: "k", Operator.Word: "k", Name.Decorator: "d"}
KINDS |= {Name.Function: "f", Name.Class: "f", Name.Builtin: "b"}
TAG = re.compile(r"\b[DEXLGP]\d+\b(?=[DEXLGP\d, ]*\])")  # in brackets
BLOCK = ast.stmt, ast.ExceptHandler
# A statement of train with one of these words in its first line is not the algorithm.
WORDS = "writer wandb bar tqdm print run_dir lock flags refuse check save track log iterations_between_saves"
PARTS = "setup|storage|rollout|advantages|update|log|wrap up"  # of train
AROUND = rf"\b({'|'.join(WORDS.split())})\b"
PATH = ["reinforce_baseline ppo_discrete ppo_continuous trpo", "ppo_discrete ppo_llm grpo dpo reward_model"]


def highlight(source: str, language: str = "python") -> list[list[tuple[str, str]]]:
    """Lines of (kind, text)."""
    lines, tokens = [[]], lex(source, get_lexer_by_name(language or "text", stripnl=False, ensurenl=False))
    for token, text in ((token, part) for token, x in tokens for part in re.split("(\n)", x) if part):
        kind = next((kind for family, kind in KINDS.items() if token in family), "")
        if text == "\n":
            lines.append([])
        elif lines[-1] and lines[-1][-1][0] == kind:
            lines[-1][-1] = (kind, lines[-1][-1][1] + text)
        else:
            lines[-1].append((kind, text))
    return lines


def render(line: list[tuple[str, str]], marks=()) -> Markup:
    """A highlighted line as HTML, in which the given ranges are marked and tags are links to notes."""
    html, start, cuts = "", 0, sorted({cut for mark in marks for cut in mark})
    for kind, text in line:
        end = start + len(text)
        for low, high in pairwise([start, *(cut for cut in cuts if start < cut < end), end]):
            part = escape(text[low - start : high - start], quote=False)
            part = TAG.sub(r'<a href="#note-\g<0>">\g<0></a>', part) if kind == "c" else part
            part = f"<mark>{part}</mark>" if any(a <= low < b for a, b in marks) else part
            html += f"<b class={kind}>{part}</b>" if kind else part
        start = end
    return Markup(html)


class Script:
    """A file of Python in sections, which are functions, classes, or parts of train."""

    def __init__(self, path: Path):
        source = path.read_text()
        tree = ast.parse(source)
        docstring = ast.get_docstring(tree) or ""
        self.path = str(path.relative_to(ROOT))
        self.name = path.name
        self.stem = path.stem
        self.page = self.path.replace(".py", ".html")
        self.title = first_paragraph(tree) or self.name
        self.language = "from transformers import" in source
        needed = "variants/requirements.txt" if self.language else "requirements.txt"
        self.commands = [f"pip install -r {needed}"]
        self.commands += re.findall(r"^ +((?:python|torchrun|git) .*)", docstring, re.M)
        parents = re.findall(rf"git diff --no-index (\S+) {self.path} ", source)
        self.parent = parents[0] if parents else ""  # its path
        self.rows = source.splitlines()
        self.lines = highlight(source.rstrip("\n"))
        self.html = [render(line) for line in self.lines]
        self.tags = {}  # line -> tags
        for n, line in enumerate(self.lines, 1):
            tags = [tag for kind, text in line if kind == "c" for tag in TAG.findall(text)]
            if tags:
                self.tags[n] = tags
        self.aside = self.lines_aside(tree)  # lines that are not the algorithm
        self.sections = [self.section(*bounds) for bounds in pairwise(self.starts(tree))]

    def starts(self, tree: ast.Module) -> list[tuple]:
        """Where each section begins, its name, its title, and the level of its heading; then the end."""
        found = [(1, "imports", "Dependencies, imports, constants", 2)]
        for node in tree.body:
            if hasattr(node, "name"):
                first = min(x.lineno for x in [node, *node.decorator_list])
                found.append((first, node.name, first_paragraph(node), 2))
        for n, row in enumerate(self.rows, 1):
            if row.startswith("# That was the algorithm"):
                found.append((n, "the-rest", row[2:], 2))
            if part := re.fullmatch(rf" {{4,8}}# ({PARTS})", row):
                found.append((n, part[1].replace(" ", "-"), "", 3))
        return [*sorted(found), (len(self.rows) + 1, "", "", 2)]

    def lines_aside(self, tree: ast.Module) -> set[int]:
        """The lines of flags, logging, saving, and of all that is below the fold."""
        aside = self.statements_aside(tree)
        below = False
        for (start, name, *_), (end, *_) in pairwise(self.starts(tree)):
            below = below or name == "the-rest"
            numbers = range(start, end)
            if below or name in ("imports", "Args", "log", "wrap-up"):
                aside |= {*numbers}
            for n in reversed(numbers):  # A comment goes where the line below it goes.
                if n + 1 in aside and self.rows[n - 1].strip().startswith("#"):
                    aside.add(n)
        return aside - {*self.tags}

    def statements_aside(self, tree: ast.Module) -> set[int]:
        """The lines of train's statements that are not the algorithm, or have nothing else inside."""
        trains = [node for node in tree.body if getattr(node, "name", "") == "train"]
        blocks = [x for node in trains for x in ast.walk(node) if isinstance(x, BLOCK)]
        aside = set()
        for block in reversed(blocks):  # Inner ones come first.
            inner = {x.lineno for x in ast.iter_child_nodes(block) if isinstance(x, BLOCK)}
            if re.search(AROUND, self.rows[block.lineno - 1]) or (inner and inner <= aside):
                aside |= {*range(block.lineno, block.end_lineno + 1)}
        return aside

    def section(self, begin: tuple, end: tuple) -> dict:
        """A section, whose runs are of lines that are the algorithm, or are not."""
        start, name, title, level = begin
        numbers = range(start, end[0])
        runs = [(key, [*run]) for key, run in groupby(numbers, self.aside.__contains__)]
        lines = [(n, self.rows[n - 1]) for n in numbers]
        whole = {*numbers} <= self.aside
        return dict(name=name, title=title, level=level, lines=lines, runs=runs, aside=whole)


def first_paragraph(node: ast.AST) -> str:
    return " ".join((ast.get_docstring(node) or "").partition("\n\n")[0].split())


@cache
def alike(old: str, new: str) -> float:
    """1 for lines of the same words, 0 if they share none."""
    a, b = Counter(re.findall(r"\w+", old)), Counter(re.findall(r"\w+", new))
    return 2 * (a & b).total() / max(1, (a + b).total())


def align(old: list[tuple], new: list[tuple]) -> list[tuple]:
    """Pairs of lines (number, text) that belong side by side: the most alike, then what is around them."""
    pairs = ((alike(a[1], b[1]), -i - j, i, j) for i, a in enumerate(old) for j, b in enumerate(new))
    score, _, i, j = max(pairs, default=(0, 0, 0, 0))
    if score < 0.4:
        return [*zip_longest(old, new)]
    return [*align(old[:i], new[:j]), (old[i], new[j]), *align(old[i + 1 :], new[j + 1 :])]


def opcodes(old: list, new: list) -> list[tuple]:
    return SequenceMatcher(None, old, new, autojunk=False).get_opcodes()


@cache
def marks(old: str, new: str) -> tuple[list, list]:
    """The ranges in which two lines differ, in whole words."""
    both = [re.findall(r"\s+|\w+|.", line) for line in (old, new)]
    a, b = ([0, *accumulate(map(len, words))] for words in both)
    changed = [op for op in opcodes(*both) if op[0] != "equal"]
    return [(a[i], a[k]) for _, i, k, _, _ in changed], [(b[m], b[n]) for *_, m, n in changed]


def cells(a: Script, b: Script, old: tuple | None, new: tuple | None) -> list[tuple | None]:
    """Two lines side by side: their numbers and HTML."""
    ranges = marks(old[1], new[1]) if old and new else ((), ())
    sides = zip((a, b), (old, new), ranges, strict=True)
    return [line and (line[0], render(script.lines[line[0] - 1], marks)) for script, line, marks in sides]


def compare(a: Script, b: Script) -> list[dict]:
    """Sections of either file, and in each its blocks of pairs of lines: the same, folded, or changed.

    One that is elsewhere in the other file is shown where it is in b.
    """
    keys = [[re.sub(r"\w+_loss$", "loss", part["name"]) for part in script.sections] for script in (a, b)]
    old_sections = dict(zip(keys[0], a.sections, strict=True))
    pairs, found = [], []
    for _, i, k, m, n in opcodes(*keys):
        pairs += [(old_sections[key], None) for key in keys[0][i:k] if key not in keys[1]]
        pairs += [(old_sections.get(key), b.sections[j]) for j, key in enumerate(keys[1][m:n], m)]
    for parts in pairs:
        (old, new), blocks = (part["lines"] if part else [] for part in parts), []
        for op, i, k, m, n in opcodes([text for _, text in old], [text for _, text in new]):
            rows = [*zip(old[i:k], new[m:n], strict=True)] if op == "equal" else align(old[i:k], new[m:n])
            rows = [cells(a, b, *row) for row in rows]
            if op != "equal":
                aside = all(x in a.aside for x, _ in old[i:k]) and all(x in b.aside for x, _ in new[m:n])
                blocks.append(("change", rows, not aside))
                continue
            before, cut = 3 * (i > 0), len(rows) - 3 * (k < len(old))
            if cut - before > 3:
                parts_of = ("same", rows[:before]), ("fold", rows[before:cut]), ("same", rows[cut:])
                blocks += [(kind, part, True) for kind, part in parts_of if part]
            else:
                blocks.append(("same", rows, True))
        changes = [block for block in blocks if block[0] == "change"]
        counts = [sum(bool(row[i]) for _, rows, _ in changes for row in rows) for i in (0, 1)]
        algorithm = any(block[2] for block in changes)
        found.append(
            dict(parts=parts, blocks=blocks, changed=bool(changes), counts=counts, algorithm=algorithm)
        )
    return found


def read_curves(path: Path) -> list[list[tuple[float, float]]]:
    """For each seed of a CSV file of benchmarks/, its points (step, return)."""
    rows = csv.DictReader(line for line in path.open() if not line.startswith("#"))
    curves = defaultdict(list)
    for row in rows:
        if row["episode_return"] not in ("", "nan"):  # as before the first episode has ended
            curves[row["seed"]].append((float(row["steps"]), float(row["episode_return"])))
    return [*curves.values()]


def draw_curves(name: str, curves: list[list[tuple[float, float]]]) -> Markup:
    """An SVG picture in the page's colours: each seed as a thin line, and their mean."""
    last = max(step for curve in curves for step, _ in curve)
    grid = [last * part / 100 for part in range(1, 101)]
    sampled = []
    for curve in curves:
        places = [bisect_right(curve, (step, float("inf"))) - 1 for step in grid]
        sampled.append([curve[max(0, place)][1] for place in places])
    low, high = min(map(min, sampled)), max(map(max, sampled))
    means = [sum(returns) / len(sampled) for returns in zip(*sampled, strict=True)]

    def line(returns: list[float], kind: str) -> str:
        heights = [110 - 100 * (y - low) / (high - low or 1) for y in returns]
        points = " ".join(f"{x * 3.2:.0f},{y:.1f}" for x, y in enumerate(heights))
        return f'<polyline class="{kind}" points="{points}"/>'

    lines = [line(returns, "thin") for returns in sampled] + [line(means, "main")]
    top, bottom = (f"{x:,.0f}".replace("-", "−") for x in (high, low))
    axes = f'<text x="322" y="14">{top}</text><text x="322" y="113">{bottom}</text>'
    axes += f'<text x="318" y="132" text-anchor="end">{last:,.0f} steps</text>'
    axes += f'<text y="148">return on {name}, {len(curves)} seeds, and their mean</text>'
    words = f"Returns of {len(curves)} seeds during training, and their mean, which ends at {means[-1]:,.0f}"
    picture = f'<svg class="curves" viewBox="0 0 370 152" role="img" aria-label="{words}">'
    return Markup(f"{picture}{axes}{''.join(lines)}</svg>")


def table_rows(text: str) -> list[list[str]]:
    """The cells of each row of the tables in a text of Markdown."""
    rows = re.findall(r"^\|(.*)\|$", text, re.M)
    return [[cell.strip() for cell in row.split("|")] for row in rows]


def text_of(html: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]*>", "", html)).split())


def relative(target: str, page: str) -> str:
    return os.path.relpath(target, os.path.dirname(page) or ".")


FORMULA = LatexToMathML().convert_with_local_state
PARSER = MarkdownIt("commonmark", {"html": True}).enable("table").use(footnote_plugin)
PARSER.use(anchors_plugin, 1, 4, lambda text: re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-"))
PARSER.use(dollarmath_plugin, renderer=lambda text, x: FORMULA(text, displaystyle=x["display_mode"]))
PARSER.options["highlight"] = lambda code, language, _: "\n".join(map(render, highlight(code, language)))


class Site:
    def __init__(self, out: Path):
        self.out, self.index = out, []  # index: page, title and text, for the search
        self.templates = Environment(loader=FileSystemLoader(ROOT / "docs/site"), autoescape=True)
        self.templates.trim_blocks, self.templates.undefined = True, StrictUndefined
        documents = [
            *ROOT.glob("*.md"),
            *(ROOT / f"{folder}/README.md" for folder in ("agents", "benchmarks")),
            *sorted(ROOT.glob("docs/*.md")),
        ]
        self.documents = {str(path.relative_to(ROOT)): path.read_text() for path in documents}
        scripts = [Script(path) for path in (*ROOT.glob("*.py"), *sorted(ROOT.glob("variants/*.py")))]
        order = self.documents["README.md"]  # of its table; what is not there comes last
        self.scripts = sorted(scripts, key=lambda script: order.find(f"| `{script.name}`") % 10**9)
        self.others = [Script(x) for y in ("tests", "benchmarks", "tools") for x in ROOT.glob(f"{y}/*.py")]
        self.pages = {path: path.replace(".md", ".html") for path in self.documents}  # that names lead to
        for script in self.others + self.scripts:
            self.pages |= {script.name: script.page, script.path: script.page}
            names = [part["name"] for part in script.sections]
            self.pages |= {f"{script.name}::{name}": f"{script.page}#{name}" for name in names}
        details = self.documents["docs/details.md"]
        self.formulas = tomllib.loads((ROOT / "docs/site/formulas.toml").read_text())
        self.door = tomllib.loads((ROOT / "docs/site/door.toml").read_text())
        self.paper = re.search(r"\((https\S+)\)", details)[1]  # which lists the 37 details
        self.lead = self.documents["README.md"].split("\n\n")[1]
        self.command = re.search(r"```bash\n(.*)\n", self.documents["README.md"])[1]
        exercises = tomllib.loads((ROOT / "tools/exercises.toml").read_text())
        self.exercises = defaultdict(list)  # script and line -> numbers
        for number, exercise in enumerate(chain(*exercises.values()), 1):
            for script in scripts:
                for n, row in enumerate(script.rows, 1):
                    if script.stem == exercise["script"] and exercise["line"] in row:
                        self.exercises[script.stem, n].append(number)
        self.walks = {path.stem for path in ROOT.glob("docs/site/assets/walks/*.js")}  # recorded iterations
        self.adds = {}  # script -> what it adds to its parent, in README's words
        for file, adds in re.findall(r"^\| `(\S+)` \| (.*?) \|", self.documents["README.md"], re.M):
            self.adds[file] = adds
        self.effects = defaultdict(list)  # tag -> rows of a table: what is lost without its detail
        table = self.documents["docs/tuning.md"].partition("<!-- begin ablation details -->")[2]
        heads, _, unchanged, *rows = table_rows(table.partition("<!-- end")[0])
        for row in rows:
            for tag in row[0].split(", "):
                self.effects[tag] = self.effects[tag] or [heads[1:], unchanged[1:]]
                self.effects[tag].append(row[1:])
        letters = dict(re.findall(r"\*\*(\w)\*\* `([^`]+)`", details))
        self.steps = [step for path in PATH for step in pairwise(path.split())]
        self.notes = defaultdict(list)  # tag -> rows of the table; language models have their own
        for row in re.findall(r"^\| ([DEXLGP]\d+) \| (.*) \| (.*) \| ([A-Z ]+) \| (`.*`) \|$", details, re.M):
            note = dict(zip(("tag", "name", "what", "files", "test"), row, strict=True))
            note["files"] = [letters[letter] for letter in note["files"].split()]
            self.notes[note["tag"]].append(note)

    def note(self, tag: str, script: Script, page: str, line: int) -> dict:
        """What the documents say of a tag in a line of a script, as HTML for a page.

        A row of the details that builds on another one, as in games, is followed by that one.
        """
        html = lambda text, source: self.link(PARSER.renderInline(text), source, page)  # noqa: E731
        rows = self.notes[tag]
        row = min(rows, key=lambda row: script.path not in row["files"])
        told = [html(row["what"], "docs/details.md")]
        other = rows[0]
        if match := re.match(r"As (?:in `(\S+)\.py`|([DEXLGP]\d+))", row["what"]):
            file, same_as = match.groups()
            named = [x for x in rows if file and f"{file}.py" in " ".join(x["files"])]
            other = named[0] if named else self.notes[same_as or tag][0]
        if other is not row:
            file, *_ = other["files"]
            told.append(html(f"In `{Path(file).name}`: {other['what']}", "docs/details.md"))
        note = row | dict(told=told, test=html(row["test"], "docs/details.md"), formula="", effects=[])
        note["paper"] = self.paper
        note["exercises"] = self.exercises[script.stem, line]
        if tag in self.formulas and rows[0] in (row, other):
            note["formula"] = Markup(FORMULA(self.formulas[tag], displaystyle=True))
        if {"ppo_discrete.py", "ppo_continuous.py"} & {*row["files"]}:
            envs = zip(*self.effects[tag], strict=True)
            envs = [env for env in envs if env[0] == "change" or any(env[2:])]
            note["effects"] = [[html(cell, "docs/tuning.md") for cell in env] for env in envs]
        return note

    def learned(self, script: Script, page: str) -> list[list[str]]:
        """Rows of the documents' tables of results: what the script learns, as HTML for a page."""
        rows = []
        for document in ("docs/results.md", "docs/trust_regions.md"):
            for cells in table_rows(self.documents[document]):
                if re.match(r"\[.*\.csv\)$", cells[0]) and script.name in cells[1].split():
                    cells = [PARSER.renderInline(cell) for cell in cells[:1] + cells[2:]]
                    rows.append([self.link(cell, document, page) for cell in cells])
        return rows[:4]

    def curves(self, script: Script) -> Markup:
        """A picture of the first of these results; nothing, if there is none."""
        for row in self.learned(script, ""):
            if match := re.search(r"benchmarks/results/\w+\.csv", row[0]):
                return draw_curves(text_of(row[0]), read_curves(ROOT / match[0]))
        return Markup("")

    def metrics(self, script: Script, page: str) -> list[tuple[str, str]]:
        """The names of what a script logs, and what they mean, as HTML for a page."""
        source = "\n".join(script.rows)
        documents = ["docs/operations.md"]
        documents += ["docs/trust_regions.md"] * (script.stem == "trpo")
        documents += ["docs/language.md"] * script.language
        found = {}
        for document in documents:  # the last one knows best
            text = self.documents[document]
            for table in re.findall(r"^\| name \| .*\n\|[-|]+\n((?:\|.*\n)+)", text, re.M):
                for names, what, *_ in table_rows(table):
                    html = self.link(PARSER.renderInline(what), document, page)
                    found |= dict.fromkeys(re.findall(r"`(\w+)`", names), html)
        return [(name, what) for name, what in found.items() if f'"{name}"' in source]

    def minutes(self, path: str) -> str:
        """How long a page takes to read, at 200 words a minute."""
        if path in self.documents:
            return f"{max(1, len(self.documents[path].split()) // 200)} min"
        for script in self.scripts:
            if script.path == path:
                return f"{len(script.rows) - len(script.aside)} lines of algorithm"
        return ""

    def page_of(self, path: str) -> str:
        file, mark, anchor = path.partition("#")
        return self.pages.get(file, file) + mark + anchor

    def title(self, path: str) -> str:
        """What a page is called."""
        if path in self.documents:
            return self.documents[path].partition("\n")[0].strip("# ")
        if path.endswith(".py"):
            return path
        if path.startswith("diffs/"):
            return Path(path).stem.replace("--", " to ")
        return {"learn.html": "PPO that learns in this page"}.get(path, "Figures to play with")

    def pair(self, *scripts: Script) -> str:
        return "diffs/{}--{}.html".format(*(x.stem for x in sorted(scripts, key=self.scripts.index)))

    def link(self, html: str, source: str, page: str) -> Markup:
        """HTML made of source, for a page: with links to pages, also from names of files and from tags."""

        def href(match):
            path = os.path.normpath(os.path.join(os.path.dirname(source), match[1]))
            return f'href="{relative(self.pages.setdefault(path, path), page)}'  # a file: it is copied

        def code(match):
            target = self.pages.get(unescape(match[2]))
            text = re.sub("(::|_)", r"\1<wbr>", match[0]) if "::" in match[0] else match[0]
            return f'<a href="{relative(target, page)}">{text}</a>' if target and not match[1] else text

        html = re.sub(r'href="(?!\w+:|#)([^"#]*)', href, html)
        html = re.sub(r"(<a [^>]*>)?<code>([^<]*)</code>", code, html)
        return Markup(re.sub(rf"{TAG.pattern}(?!</a>)", r'<a href="#note-\g<0>">\g<0></a>', html))

    def write(self, page: str, template: str, **values) -> None:
        (self.out / page).parent.mkdir(parents=True, exist_ok=True)
        values |= dict(site=self, page=page, base=relative(".", page) + "/")
        html = self.templates.get_template(template).render(values)  # tags lead to notes, or to the table
        details, notes = relative("docs/details.html", page), {*re.findall(r'id="note-(\w+)"', html)}
        link = lambda tag: f'"#note-{tag[1]}' if tag[1] in notes else f'"{details}#{tag[1]}'  # noqa: E731
        (self.out / page).write_text(re.sub(r'"#note-(\w+)', link, html))

    def entries(self, script: Script) -> list[tuple]:
        """What the search knows of a script: the file, its functions with their comments, and its flags."""
        family = script in self.scripts
        folder = script.path.partition("/")[0]
        weight = 3 if family else {"tools": 1.5, "benchmarks": 0.3}.get(folder, 0.1)
        words = [script.title, self.adds.get(script.name, ""), *script.commands]
        found = [(script.page, script.path, " ".join(words), weight)]
        for part in script.sections:
            comments = [text for n, _ in part["lines"] for kind, text in script.lines[n - 1] if kind == "c"]
            text = " ".join([part["title"], *(comment.strip("# ") for comment in comments)])
            lesser = 0.5 if {n for n, _ in part["lines"]} <= script.aside else 1
            title = f"{part['name']} - {script.path}"
            found.append(
                (f"{script.page}#{part['name']}", title, text if family else part["title"], weight * lesser)
            )
        for part in script.sections if family else ():
            for n, line in part["lines"] if part["name"] == "Args" else ():
                if match := re.fullmatch(r"    (\w+): .*?  # (.*)", line):
                    flag = match[1].replace("_", "-")
                    found.append((f"{script.page}#L{n}", f"--{flag} - {script.path}", match[2], weight))
        return found

    def with_figures(self, html: str, page: str) -> str:
        """A document with figures to play with: at <!-- live NAME -->, in place of a picture after it."""
        parts = self.templates.get_template("figure_parts.html").module

        def figure(match):
            part = getattr(parts, match[1])(relative(".", page) + "/")
            return f'<div class="figure">{part}</div>'

        return re.sub(r"<!-- live (\w+) -->\n?(?:<picture>.*?</picture>)?", figure, html, flags=re.S)

    def build(self) -> None:
        for folder in ("docs/pictures", "docs/site/assets", "benchmarks/results"):
            shutil.copytree(ROOT / folder, self.out / folder, dirs_exist_ok=True)
        for path, text in self.documents.items():
            page = self.pages[path]
            html = str(self.link(PARSER.render(text), path, page))
            for tag in self.notes if path == "docs/details.md" else ():
                html = html.replace(f"<td>{tag}</td>", f'<td id="{tag}">{tag}</td>', 1)
            html = html.replace("<table>", '<div class=wide tabindex=0 role=group aria-label="Table"><table>')
            html = re.sub("<th([^>]*)></th>", r"<td\1></td>", html.replace("</table>", "</table></div>"))
            html = self.with_figures(html, page)
            outline = re.findall(r'<h([123]) id="([^"]*)"[^>]*>(.*?)</h', html)
            title = text_of(outline[0][2])
            self.write(page, "document.html", html=Markup(html), outline=outline, title=title)
            for part in re.split(r"(?=<h[123] id=)", html)[1:]:
                anchor, heading, text = re.match(r'<h. id="([^"]*)".*?>(.*?)</h.>(.*)', part, re.S).groups()
                weight = 3 if path.startswith("docs/") else 2 if path == "README.md" else 1
                self.index.append((f"{page}#{anchor}", f"{text_of(heading)} - {path}", text_of(text), weight))
        for path in [path for path in self.pages.values() if (ROOT / path).is_file()]:
            (self.out / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, self.out / path)
        for script in self.scripts + self.others:
            self.write(script.page, "script.html", script=script, family=script in self.scripts)
            self.index += self.entries(script)
        for a, b in combinations(self.scripts, 2):
            self.write(self.pair(a, b), "diff.html", a=a, b=b, sections=compare(a, b))
        for tag, (x, *_) in self.notes.items():
            text = text_of(PARSER.renderInline(x["what"]))
            self.index.append((f"docs/details.html#{tag}", f"{tag} {x['name']}", text, 4))
        self.write("index.html", "home.html")
        self.write("figures.html", "figures.html")
        self.write("learn.html", "learn.html")
        about = (
            "CartPole, train, learn, clip, epsilon, lambda, gamma, epochs, JavaScript, in the browser, live"
        )
        self.index.append(("learn.html", "PPO that learns in this page", about, 3))
        self.index.append(("figures.html", "Figures to play with", "clip, ratio, GAE, lambda, CartPole", 3))
        (self.out / "docs/site/assets/index.js").write_text(f"const INDEX = {json.dumps(self.index)};\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "site")
    parser.add_argument("--no-open", action="store_true")
    args = parser.parse_args()
    Site(args.out).build()
    print(f"{args.out}/index.html")
    if not args.no_open:
        webbrowser.open((args.out / "index.html").resolve().as_uri())
