"""Tables of results, written from benchmarks/runs.toml and the CSV files beside it.

    python benchmarks/results.py          # fills what stands between markers in the pages that have them
    python benchmarks/results.py --all    # prints a row for every run that has results

A page has pairs of markers, <!-- begin WHAT --> and <!-- end WHAT -->. What is between them is generated, all
else is written by people and stays. WHAT is one of

    summary cartpole acrobot    one row for each of these runs
    commands cartpole acrobot   what makes them: a command line each
    deviations ant ant_std      the policies' standard deviations in the course of these runs, and how
                                many actions are cut off in the end
    picture learning_curves     this picture, for light and for dark pages
    timings speed               this table of timings.py
    copies                      the table of copies.py
    gpu                         that of gpu.py
"""

import csv
import math
import os
import re
import shlex
from pathlib import Path

import copies
import gpu
import gymnasium as gym
import numpy as np
import timings
from command_line import ROOT, Parser, refuse
from compare import Results, count, interval, number, read_csv
from learning_curves import command, csv_path, find, read_table, runs_of, script_name, title

CLIPPED = ROOT / "benchmarks/results/clipped_actions.csv"
NAMES = ("results", "five_fixes", "trust_regions", "performance", "language")
PAGES = tuple(ROOT / f"docs/{name}.md" for name in NAMES)
SAME = "last 100 training episodes"  # the statistic of episode_return, as published figures name it


def read_clipped() -> dict[str, dict[int, tuple[float, float]]]:
    """{run: {seed: shares of actions and of their means that are cut off}}, from clipped_actions.py."""
    shares = {}
    for row in list(csv.reader(CLIPPED.open()))[1:] if CLIPPED.exists() else []:
        shares.setdefault(row[0], {})[int(row[1])] = (float(row[2]), float(row[3]))
    return shares


def brief(published: dict, run: dict) -> str:
    """CleanRL 1443 (v4): label, value, and what is not as in our run."""
    version = re.search(r"v\d+$", published["env"])
    other = [version[0] if version else published["env"]] if published["env"] != run["env"] else []
    if published["statistic"] != SAME:
        kind = published["statistic"].partition(",")[0]
        other.append(f"{kind}, greedy" if "deterministic" in published["statistic"] else kind)
    if "steps" in published:
        other.append(f"{count(published['steps'])} steps")
    return f"{published['label']} {number(published['value'])}" + (f" ({', '.join(other)})" if other else "")


def greedily(run: dict) -> bool:
    """Whether a run's evaluation takes the most probable actions."""
    return "--eval-greedy" in run.get("flags", "")


def summary(names: list[str], table: dict, results: dict[str, Results], page: Path) -> str:
    """One row for each run: both statistics, and what others have published."""
    lines = [
        "| env | script | steps | seeds | last 100 training episodes | evaluation | published |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in names:
        run = find(table["runs"], name, "summary: run")
        if name not in results:
            continue
        cells = []
        for column in (2, 3):
            values = results[name].finals(column)
            scale = np.abs(values).max()
            cells.append(f"**{number(values.mean(), scale)}** {interval(values)}")
        cells[1] += " greedy" * greedily(run)
        others = "; ".join(brief(published, run) for published in run.get("published", []))
        steps, seeds = results[name].curves()[0][-1], len(results[name].rows)
        link = f"[{title(run)}]({os.path.relpath(csv_path(name), page.parent)})"
        cells = [link, script_name(run), count(steps), str(seeds), *cells, others]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def commands(names: list[str], table: dict) -> str:
    """The command line of each of these runs, but for its seed and its evaluation."""
    lines = ["```bash"]
    for name in names:
        run = find(table["runs"], name, "commands: run")
        lines.append(f"# {title(run)}\npython {shlex.join(command(run)[:-2])}")
    return "\n".join([*lines, "```"])


def deviations(names: list[str], table: dict, results: dict[str, Results]) -> str:
    """How the standard deviation of a normal policy changes: a row for each run, in the mean over its seeds.

    Behind it is the share of actions, and of their means, that are cut off in the end, if it was measured.
    The entropy of n independent normal distributions is n * (log(2 pi e) / 2 + the mean of log std).
    """
    marks = [0, 0.1, 0.25, 0.5, 0.75, 1]  # of all steps
    heads = [f"{100 * mark:.0f} %" for mark in marks] + ["actions cut off", "means cut off"]
    lines = [f"| deviations after | {' | '.join(heads)} |", "|---" * (1 + len(heads)) + "|"]
    cut_off = read_clipped()
    for name in names:
        run = find(table["runs"], name, "deviations: run")
        seeds = [rows for rows in results[name].rows.values() if rows[-1][4]] if name in results else []
        if not seeds:
            continue
        size = gym.make(run["env"]).action_space.shape[0]
        cells = []
        for mark in marks:
            entropy = np.mean([float(rows[round(mark * (len(rows) - 1))][4]) for rows in seeds])
            cells.append(f"{math.exp(entropy / size - math.log(2 * math.pi * math.e) / 2):.2f}")
        shares = np.mean(list(cut_off[name].values()), axis=0) if name in cut_off else []
        cells += [f"{100 * share:.0f} %" for share in shares] or ["–", "–"]
        lines.append(f"| {title(run)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def picture(name: str, table: dict, results: dict[str, Results], page: Path) -> str:
    """HTML that shows the light or the dark file, whichever suits the page."""
    shown = find(table["pictures"], name, "picture")
    enough = any if "finals" in shown else all
    panels = sum(enough(run in results for run in runs) for runs in runs_of(shown))
    if not panels:
        return "No results yet."
    width = 850 * min(panels, shown.get("columns", 3)) // 3
    folder = os.path.relpath(ROOT / "docs/pictures", page.parent)
    return (
        f'<picture>\n  <source media="(prefers-color-scheme: dark)" srcset="{folder}/{name}_dark.png">\n'
        f'  <img alt="{shown["alt"]}" src="{folder}/{name}_light.png" width="{width}">\n</picture>'
    )


def fill(page: Path, text: str, table: dict, results: dict[str, Results]) -> str:
    """The text of a page, with what stands between its markers made anew."""

    def generate(match: re.Match) -> str:
        kind, *names = match[1].split()
        if kind == "summary":
            new = summary(names, table, results, page)
        elif kind == "deviations":
            new = deviations(names, table, results)
        elif kind == "commands":
            new = commands(names, table)
        elif kind == "picture":
            new = picture(names[0], table, results, page)
        elif kind == "timings":
            find(timings.TABLES, names[0], f"{page.name}: timings: table")
            new = timings.show(names[0])
        elif kind == "copies":
            new = copies.table()
        elif kind == "gpu":
            new = gpu.table()
        else:
            refuse(f"{page.name}: marker {kind} is not known")
        return f"<!-- begin {match[1]} -->\n{new}\n<!-- end {match[1]} -->"

    return re.sub(r"<!-- begin (.+?) -->\n.*?<!-- end \1 -->", generate, text, flags=re.S)


def read_all(table: dict) -> dict[str, Results]:
    """The results of all runs that have some."""
    results = {name: read_csv(csv_path(name)) for name in table["runs"]}
    return {name: result for name, result in results.items() if result.rows}


def pages() -> dict[Path, str]:
    """Each page that has markers, as it should be."""
    table = read_table()
    results = read_all(table)
    return {page: fill(page, page.read_text(), table, results) for page in PAGES}


def main() -> None:
    """Write the pages."""
    parser = Parser(__doc__)
    parser.add_argument("--all", action="store_true", help="print a row for every run, and write nothing")
    if parser.parse_args().all:
        table = read_table()
        results = read_all(table)
        return print(summary(list(results), table, results, ROOT / "README.md"))
    for page, text in pages().items():
        if text != page.read_text():
            page.write_text(text)
            print(f"{page.relative_to(ROOT)} is new")


if __name__ == "__main__":
    main()
