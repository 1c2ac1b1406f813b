"""Tables of results, written from benchmarks/runs.toml and the CSV files beside it.

    python benchmarks/results.py    # fills what stands between markers in the pages that have them

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
    runs                        everything about every run that has results, first a summary of them
"""

import csv
import difflib
import math
import os
import re
import shlex
import tomllib
from pathlib import Path
from typing import NamedTuple

import copies
import gpu
import gymnasium as gym
import numpy as np
import timings
from command_line import ROOT, Parser, refuse

TABLE = ROOT / "benchmarks/runs.toml"
CLIPPED = ROOT / "benchmarks/results/clipped_actions.csv"
RUNS = ROOT / "docs/runs.md"
NAMES = ("results", "five_fixes", "trust_regions", "performance", "language")
PAGES = (RUNS, *(ROOT / f"docs/{name}.md" for name in NAMES))
COLUMNS = ["seed", "steps", "episode_return", "eval_return", "entropy"]
RUN_KEYS = {
    "script",
    "without",
    "patch",
    "env",
    "seeds",
    "flags",
    "like",
    "eval_episodes",
    "title",
    "note",
    "published",
}
PUBLISHED_KEYS = {"label", "value", "spread", "seeds", "statistic", "env", "steps", "source"}
PICTURE_KEYS = {"curves", "finals", "columns", "labels", "note", "alt"}
SAME = "last 100 training episodes"  # the statistic of episode_return, as published figures name it


# The table of runs, and their CSV files


def read_table(path: Path = TABLE) -> dict[str, dict]:
    """{"runs": {name: run}, "pictures": {name: picture}}, each run and picture a dict as in the file.

    A table that begins with `envs` has each run once in each of them, by the name of both.
    """
    try:
        table = {"runs": {}, "pictures": {}} | tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        refuse(f"{path}: {error}")
    if envs := table.get("envs"):
        runs = [(name, run | {"env": env}) for env in envs for name, run in table["runs"].items()]
        table["runs"] = {f"{name}_{run['env'].partition('-')[0].lower()}": run for name, run in runs}
    for name, run in table["runs"].items():
        check_keys(f"{path}: run {name}", run, RUN_KEYS, {"script", "env", "seeds"})
        if not re.fullmatch(r"[\w.-]+", name):
            refuse(f"{path}: run {name}: a name is made of letters, digits, '_', '-' and '.'")
        if (run["script"] == "sb3") != ("like" in run):
            refuse(f'{path}: run {name}: script = "sb3", and no other, takes like = "SCRIPT.py"')
        parse_seeds(run["seeds"])
        for published in run.get("published", []):
            check_keys(
                f"{path}: run {name}, published",
                published,
                PUBLISHED_KEYS,
                PUBLISHED_KEYS - {"steps", "spread"},
            )
    for name, picture in table["pictures"].items():
        check_keys(f"{path}: picture {name}", picture, PICTURE_KEYS, {"alt"})
        for run in sum(runs_of(picture), []):
            find(table["runs"], run, f"{path}: picture {name}: run")
        labels = len(picture.get("labels", []))
        sizes = {1, labels} if "curves" in picture else {labels}
        if any(len(panel) not in sizes for panel in runs_of(picture)):
            refuse(f'{path}: picture {name}: several runs in a panel take labels = ["ONE", "OTHER"]')
        if "curves" in picture and labels > 2:
            refuse(f"{path}: picture {name}: curves have two colours, not {labels}")
    return table


def runs_of(picture: dict) -> list[list[str]]:
    """Of each panel of a picture the run, or the runs that are shown together."""
    panels = picture.get("curves", []) + picture.get("finals", [])
    return [[panel] if isinstance(panel, str) else panel for panel in panels]


def check_keys(where: str, entry: dict, known: set[str], needed: set[str]) -> None:
    """Refuse an entry of the table that lacks something, or has something unknown."""
    for key in entry:
        find(dict.fromkeys(known), key, f"{where}: key")
    if missing := needed - set(entry):
        refuse(f"{where} lacks {', '.join(sorted(missing))}")


def find(known: dict, name: str, what: str):
    """known[name], or a line that says which names are close."""
    if name not in known:
        close = difflib.get_close_matches(name, known, 1)
        refuse(
            f"{what} {name} is not known; {f'{close[0]}?' if close else f'there is {chr(44).join(known)}'}"
        )
    return known[name]


def parse_seeds(text: str) -> list[int]:
    """'1-3,7' -> [1, 2, 3, 7]."""
    seeds = []
    for part in str(text).split(","):
        first, _, last = part.strip().partition("-")
        if not first.isdigit() or not (last or first).isdigit() or int(last or first) < int(first):
            refuse(f"seeds {text} are not like 1-10 or 1,3,5-7")
        seeds += range(int(first), int(last or first) + 1)
    return seeds


def format_seeds(seeds: list[int]) -> str:
    """[1, 2, 3, 7] -> '1-3, 7'."""
    parts = []
    for seed in sorted(seeds):
        if parts and parts[-1][1] == seed - 1:
            parts[-1][1] = seed
        else:
            parts.append([seed, seed])
    return ", ".join(f"{first}-{last}" if last > first else f"{first}" for first, last in parts)


def command(run: dict) -> list[str]:
    """The command line of a run after `python`, without seed and folder: it says what is trained."""
    script = [run["script"]]
    if run["script"] == "sb3":
        script = ["benchmarks/run_sb3.py", run["like"]]
    if "without" in run:  # learning_curves.py writes this file
        script = [f"runs/without_{run['without']}/{run['script']}"]
    if "patch" in run:  # this one, too
        script = [f"runs/{run['patch']}/{run['script']}"]
    flags = shlex.split(run.get("flags", ""))
    return [*script, "--env-id", run["env"], *flags, "--eval-episodes", str(run.get("eval_episodes", 100))]


class Results(NamedTuple):
    """What a CSV file holds."""

    command: str  # that made it, "" in files that do not say
    made: dict[int, str]  # seed -> commit, versions and hardware; empty in files that do not say
    rows: dict[int, list[list[str]]]  # seed -> lines of the file, cells as in COLUMNS, "" if not known

    def curves(self) -> tuple[np.ndarray, np.ndarray]:
        """steps (points,), episode_return (seeds, points): NaN until the first episode has ended."""
        curves = [np.array([[float(row[1]), float(row[2])] for row in rows]).T for rows in self.rows.values()]
        steps = curves[0][0]
        return steps, np.array([np.interp(steps, *curve) for curve in curves])

    def finals(self, column: int) -> np.ndarray:
        """Each seed's end: column 2 is the mean of the last 100 training episodes, 3 of the evaluation."""
        return np.array([float(rows[-1][column]) for rows in self.rows.values()])


def csv_path(name: str, table: Path = TABLE) -> Path:
    """Where the results of a run are: in the folder results/ beside the table."""
    return table.parent / "results" / f"{name}.csv"


def read_csv(path: Path) -> Results:
    """Read one CSV file; lines of its head that begin with # say how it was made."""
    if not path.exists():
        return Results("", {}, {})
    made, rows, how = {}, {}, ""
    lines = path.read_text().splitlines()
    while lines and lines[0].startswith("#"):
        key, _, value = lines.pop(0).removeprefix("# ").partition(": ")
        if key == "command":
            how = value
        elif key.startswith("seeds "):
            made |= dict.fromkeys(parse_seeds(key.removeprefix("seeds ")), value)
    for row in list(csv.reader(lines))[1:]:
        rows.setdefault(int(row[0]), []).append(row + [""] * (len(COLUMNS) - len(row)))  # older: no entropy
    return Results(how, made, dict(sorted(rows.items())))


def read_clipped() -> dict[str, dict[int, tuple[float, float]]]:
    """{run: {seed: shares of actions and of their means that are cut off}}, from clipped_actions.py."""
    shares = {}
    for row in list(csv.reader(CLIPPED.open()))[1:] if CLIPPED.exists() else []:
        shares.setdefault(row[0], {})[int(row[1])] = (float(row[2]), float(row[3]))
    return shares


def write_csv(path: Path, results: Results) -> None:
    """Write the file, seeds in order; killed at any moment, this leaves the old one or the new one, whole."""
    same = {
        made: [seed for seed in results.made if results.made[seed] == made] for made in results.made.values()
    }
    lines = [f"# command: {results.command}"]
    lines += [
        f"# seeds {format_seeds(seeds)}: {made}" for made, seeds in sorted(same.items(), key=lambda x: x[1])
    ]
    lines += [
        ",".join(row) for row in [COLUMNS, *(row for _, rows in sorted(results.rows.items()) for row in rows)]
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text("\n".join(lines) + "\n")
    os.replace(part, path)


# Statistics


def bootstrap(
    values: np.ndarray, resamples: int = 10_000, level: float = 0.95
) -> tuple[np.ndarray, np.ndarray]:
    """Percentile bootstrap of the mean over seeds, the first axis -> lower and upper end of the interval."""
    values = np.asarray(values, float)
    choices = np.random.default_rng(0).integers(len(values), size=(resamples, len(values)))
    counts = np.zeros((resamples, len(values)))  # how often each seed was drawn: means are one product
    np.add.at(counts, (np.arange(resamples)[:, None], choices), 1)
    means = counts @ values / len(values)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return low, high


def iqm(values: np.ndarray) -> float:
    """Interquartile mean: without the lowest and the highest quarter of the seeds, rounded down."""
    cut = len(values) // 4
    return float(np.mean(np.sort(values)[cut : len(values) - cut]))


# Markdown


def number(value: float, scale: float = 0) -> str:
    """Four figures or so of the value, or fewer beside a larger one, with a true minus sign."""
    scale = max(abs(value), scale)
    digits = 0 if scale >= 1000 else 1 if scale >= 10 else 2
    return f"{value:,.{digits}f}".replace("-", "−").replace(",", " " if abs(value) >= 10_000 else "")


def count(steps: float) -> str:
    """500000 -> 500k, 1500000 -> 1.5M; a last rollout that does not fit is no reason for 99k."""
    nearest = float(f"{steps:.1g}")
    steps = nearest if abs(steps - nearest) < 0.01 * nearest else steps
    size, unit = (1e6, "M") if steps >= 1e6 else (1e3, "k") if steps >= 1e3 else (1, "")
    return f"{steps / size:.3g}{unit}"


def script_name(run: dict) -> str:
    """What the reader knows a script by."""
    if run["script"] == "sb3":
        peer = "sb3-contrib" if "trpo" in run["like"] else "stable-baselines3"
        return f"{peer}, as {run['like']}"
    without, patch = run.get("without"), run.get("patch")
    change = f" without [{without}]" if without else f", {patch.replace('_', ' ')}" if patch else ""
    return run["script"] + change


def title(run: dict) -> str:
    return run.get("title", run["env"])


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


def interval(values: np.ndarray) -> str:
    """[low, high], or a dash for a single seed."""
    ends = (number(end, np.abs(values).max()) for end in bootstrap(values))
    return f"[{', '.join(ends)}]" if len(values) > 1 else "–"


def summary(names: list[str], table: dict, results: dict[str, Results], page: Path) -> str:
    """One row for each run: both statistics, and what others have published."""
    target = "" if page == RUNS else os.path.relpath(RUNS, page.parent)
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
        link = f"[{title(run)}]({target}#{name})"
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


def details(name: str, run: dict, results: Results) -> str:
    """Everything about one run, below a heading of its name."""
    steps, seeds = results.curves()[0][-1], list(results.rows)
    flags = f"`{run['flags']}`" if run.get("flags") else "the default flags"
    called = f"**{run['title']}**: " if "title" in run else ""
    number_of_seeds = f"{len(seeds)} seed{'s' * (len(seeds) > 1)}"
    lines = [
        f"## {name}\n\n{called}{run['env']}, {script_name(run)} with {flags}, {count(steps)} steps,"
        f" {number_of_seeds} ({format_seeds(seeds)}). {run.get('note', '')}".rstrip(),
        "\n| mean return in | mean ± std | 95 % interval | IQM | worst, best seed |\n|---|---|---|---|---|",
    ]
    episodes = re.search(r"--eval-episodes (\d+)$", results.command)
    evaluation = (
        f"{f'{episodes[1]} episodes of ' if episodes else ''}the {'greedy ' * greedily(run)}evaluation"
    )
    for what, column in (("the last 100 training episodes", 2), (evaluation, 3)):
        values = results.finals(column)
        mean, std, middle, worst, best = (
            number(x, np.abs(values).max())
            for x in (
                values.mean(),
                values.std(ddof=len(values) > 1),
                iqm(values),
                values.min(),
                values.max(),
            )
        )
        mean += f" ± {std}" if len(values) > 1 else ""
        lines.append(f"| {what} | {mean} | {interval(values)} | {middle} | {worst}, {best} |")
    if run.get("published"):
        lines.append("\n| published | return | statistic | env | steps | seeds |\n|---|---|---|---|---|---|")
    for other in run.get("published", []):
        spread = f" ± {number(other['spread'], abs(other['value']))}" if "spread" in other else ""
        cells = [
            f"[{other['label']}]({other['source']})",
            number(other["value"]) + spread,
            other["statistic"],
        ]
        cells += [other["env"], count(other.get("steps", steps)), str(other["seeds"])]
        lines.append(f"| {' | '.join(cells)} |")
    for what, column in (("last 100 training episodes", 2), ("evaluation", 3)):
        values = results.finals(column)
        returns = ", ".join(number(value, np.abs(values).max()) for value in values)
        lines.append(f"\nEach seed in turn, {what}: {returns}.")
    if results.command:
        lines.append(f"\nMade with `python {results.command}`.")
    for made in dict.fromkeys(results.made.values()):
        same = [seed for seed in seeds if results.made.get(seed) == made]
        lines.append(f"Seed{'s' * (len(same) > 1)} {format_seeds(same)}: {made}.")
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
        elif kind == "runs":
            new = [summary(list(results), table, results, page)]
            new = "\n\n".join(new + [details(name, table["runs"][name], results[name]) for name in results])
        else:
            refuse(f"{page.name}: marker {kind} is not known")
        return f"<!-- begin {match[1]} -->\n{new}\n<!-- end {match[1]} -->"

    return re.sub(r"<!-- begin (.+?) -->\n.*?<!-- end \1 -->", generate, text, flags=re.S)


def pages() -> dict[Path, str]:
    """Each page that has markers, as it should be."""
    table = read_table()
    results = {name: read_csv(csv_path(name)) for name in table["runs"]}
    results = {name: result for name, result in results.items() if result.rows}
    return {page: fill(page, page.read_text(), table, results) for page in PAGES}


def main() -> None:
    """Write the pages."""
    Parser(__doc__).parse_args()
    for page, text in pages().items():
        if text != page.read_text():
            page.write_text(text)
            print(f"{page.relative_to(ROOT)} is new")


if __name__ == "__main__":
    main()
