"""The tables of the pages in docs/, written from benchmarks/runs.toml and CSV files.

    python benchmarks/results.py          # fills what stands between markers in the pages
    python benchmarks/results.py --all    # prints a row for every run that has results

A page has pairs of markers, <!-- begin WHAT --> and <!-- end WHAT -->. What is between them is generated, all
else is written by people and stays. WHAT is

    summary cartpole acrobot    one row for each of these runs
    commands cartpole acrobot   what makes them: a command line each
    picture learning_curves     this picture, for light and for dark pages
    others Ant Hopper           what others publish of these envs
    ablation CartPole-v1        a study: what table() in ablation.py makes of the words that follow
"""

import importlib
import re
import shlex
from collections.abc import Callable

import numpy as np
from common import ROOT, Parser, find, markdown, refuse
from compare import count, interval, number, read_csv
from learning_curves import SAME, brief, command, csv_path, read_table, script_name, title

# Modules, imported late.
STUDIES = (
    "ablation",
    "chat",
    "digits",
    "failures",
    "gpu",
    "preferences",
    "timings",
    "walks",
)
TABLE = read_table()


def summary(*names: str) -> str:
    """One row for each run: both statistics, and what others have published."""
    rows = []
    for name in names:
        run, results = find(TABLE["runs"], name, "summary: run"), read_csv(csv_path(name))
        if not results.rows:
            continue
        cells = []
        for column in (2, 3):
            values = results.finals(column)
            cells.append(f"**{number(values.mean(), np.abs(values).max())}** {interval(values)}")
        cells[1] += " greedy" * ("--eval-greedy" in run.get("flags", ""))
        others = "; ".join(brief(published, run) for published in run.get("published", []))
        steps, link = results.curves()[0][-1], f"[{title(run)}](../benchmarks/results/{name}.csv)"
        rows.append([link, script_name(run), count(steps), str(len(results.rows)), *cells, others])
    if not rows:
        raise LookupError("none of these runs has results")
    return markdown(["env", "script", "steps", "seeds", SAME, "evaluation", "published"], rows)


def commands(*names: str) -> str:
    """The command line of each of these runs, but for its seed and its evaluation."""
    runs = [find(TABLE["runs"], name, "commands: run") for name in names]
    lines = [f"# {title(run)}\npython {shlex.join(command(run)[:-2])}" for run in runs]
    return "\n".join(["```bash", *lines, "```"])


def picture(name: str) -> str:
    """HTML that shows the light or the dark file, whichever suits the page."""
    shown = find(TABLE["pictures"], name, "picture")
    width = 850 * min(len(shown.get("curves", shown.get("finals"))), shown.get("columns", 3)) // 3
    return (
        f'<picture>\n  <source media="(prefers-color-scheme: dark)" srcset="pictures/{name}_dark.png">\n'
        f'  <img alt="{shown["alt"]}" src="pictures/{name}_light.png" width="{width}">\n</picture>'
    )


def others(*envs: str) -> str:
    """What others publish of these envs, whatever their version: everybody's figures that we know."""
    rows, seen = [], set()
    for env in envs:
        for name, found in sorted(TABLE["published"].items(), key=lambda item: -item[1]["value"]):
            same = (found["env"], found["value"])
            if found["env"].startswith(f"{env}-") and same not in seen:
                seen.add(same)
                algorithm = "TRPO" if "trpo" in (name + found["source"]).lower() else "PPO"
                value = number(found["value"]) + (
                    f" ± {number(found['spread'])}" if "spread" in found else ""
                )
                cells = [
                    found["statistic"],
                    str(found.get("seeds", "")),
                    count(found.get("steps", 1_000_000)),
                ]
                rows.append(
                    [found["env"], f"[{found['label']}]({found['source']})", algorithm, value, *cells]
                )
    return markdown(["env", "who", "algorithm", "return", "statistic", "seeds", "steps"], rows)


TABLES = {"summary": summary, "commands": commands, "picture": picture, "others": others}


def make(what: str) -> str:
    """What belongs between markers."""
    kind, *words = shlex.split(what)
    find(dict.fromkeys([*TABLES, *STUDIES]), kind, "marker")
    table = TABLES[kind] if kind in TABLES else importlib.import_module(kind).table
    return table(*words)


def fill(text: str, complain: Callable[[str], None] = refuse) -> str:
    """A page, with what stands between its markers made anew, or after a complaint as it was."""
    begins, ends = (re.findall(rf"<!-- {word} (.+?) -->", text) for word in ("begin", "end"))
    if begins != ends:
        refuse(f"not every marker has its other end: {begins}, {ends}")

    def generate(match: re.Match) -> str:
        try:
            return f"<!-- begin {match[1]} -->\n{make(match[1])}\n<!-- end {match[1]} -->"
        except (LookupError, ValueError, OSError) as error:
            complain(f"{match[1]} stays as it is: {error!r}; are all of its results there?")
            return match[0]

    return re.sub(r"<!-- begin (.+?) -->\n.*?<!-- end \1 -->", generate, text, flags=re.S)


def main() -> None:
    """Write the pages."""
    parser = Parser(__doc__)
    parser.add_argument("--all", action="store_true", help="print a row for every run, and write nothing")
    if parser.parse_args().all:
        return print(summary(*TABLE["runs"]))
    for page in sorted(ROOT.glob("docs/*.md")):
        old = page.read_text()
        if (new := fill(old, print)) != old:
            page.write_text(new)
            print(f"{page.relative_to(ROOT)} is new")


if __name__ == "__main__":
    main()
