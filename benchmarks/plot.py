"""The pictures of docs/pictures/, from CSV files, for light and for dark pages.

    python benchmarks/plot.py                    # all of them
    python benchmarks/plot.py learning_curves    # this one

Those of learning curves are in benchmarks/runs.toml, the others are drawn by the studies that measured them.
Of runs, every seed is a thin line or a dot; the mean is thick, the band is the bootstrapped 95 % interval of
the mean, and dashed lines are what others have published. Each PNG file has a fingerprint of what it shows.
"""

import importlib
import textwrap
from collections.abc import Callable

import numpy as np
from common import RESULTS, ROOT, SIZE, THEMES, WIDTH, Parser, compare, find, fingerprint, refuse, subplots
from compare import Results, bootstrap, draw_curves, make_line, style
from learning_curves import SAME, brief, csv_path, read_table, script_name, title

FOLDER = ROOT / "docs/pictures"
FINISHED = {"surrogate", "clip", "fix_noise", "fix_ratios", "language"}  # their pages name the commit
TABLE = read_table()
EXPERIMENT = {"my_ppo": "my_ppo", "ppo_discrete": "ppo_discrete", "CleanRL": "cleanrl"}  # name: its CSV file
STUDIES = ("ablation", "chat", "preferences")  # modules with a picture of their name, imported when needed


def draw_experiment(theme: dict):
    """The picture of docs/experiments.md, as tools/compare.py makes it."""
    sources = [f"{name}={RESULTS}/experiment_{file}.csv" for name, file in EXPERIMENT.items()]
    runs = [run for source in sources for run in compare.read_source(source)]
    return compare.draw(compare.make_groups(runs), theme["name"])


NAMES = [*TABLE["pictures"], *STUDIES, "experiment"]


def label(published: dict, run: dict) -> str:
    """brief() in two lines: "CleanRL", "1443 (v4)"."""
    words = brief(published, run).removeprefix(published["label"] + " ")
    for long, short in (("evaluation, greedy", "greedy"), ("evaluation", "eval."), ("moving ", "")):
        words = words.replace(long, short)
    return f"{published['label']}\n{words}"


def panels(picture: dict) -> list[list[tuple[str, dict, Results]]]:
    """Of each panel, names, entries and results of its runs. Curves need all of them."""
    shown = []
    for names in picture.get("curves", picture.get("finals")):
        names = [names] if isinstance(names, str) else names
        runs = [(name, TABLE["runs"][name], compare.read_csv(csv_path(name))) for name in names]
        there = [run for run in runs if run[2].rows]
        if there and ("finals" in picture or len(there) == len(names)):
            shown.append(there)
    return shown


def published_of(runs: list) -> list[dict]:
    """The figures of others that a panel shows: of a run that is alone there, after as many steps."""
    [(_, run, _), *others] = runs
    return [x for x in run.get("published", []) if "steps" not in x and not others]


def show_curves(axes, picture: dict, runs: list, theme: dict) -> None:
    """Curves of all seeds of a run, or of two, their mean and its interval, and the published finals."""
    (_, run, results), *others = runs
    alone, sizes = published_of(runs), {len(found.rows) for *_, found in runs}
    labels = picture.get("labels") or ["ours" if alone else "mean"]
    lines = [make_line(label, found) for label, (*_, found) in zip(labels, runs, strict=True)]
    below = compare.of_seeds(len(results.rows)) * (len(sizes) == 1)  # else beside the lines
    if not others:
        below = f"{script_name(run).rpartition('/')[2].replace('.py', '')}, {below}"
    published = []
    for each in alone:
        dashes = (0, (5, 3)) if each["statistic"] == SAME else (0, (1, 2))
        published.append((label(each, run), each["value"], dashes, theme["other"]))
    name = title(run).removesuffix(", greedy")  # which only the evaluation is
    draw_curves(axes, name, below, lines, theme, [theme["ours"], theme["other"]], published)


def show_finals(axes, picture: dict, runs: list, theme: dict) -> None:
    """A row for each run, in which each seed is a dot."""
    names = next(names for names in picture["finals"] if runs[0][0] in names)
    for y, (_, _, results) in enumerate(runs):
        finals = np.sort(results.finals(2))
        # Neighbours must not hide each other.
        places = y + np.resize([0, 0.12, -0.12, 0.24, -0.24], len(finals))
        axes.plot(finals, places, "o", color=theme["ours"], alpha=0.6, markersize=5, markeredgewidth=0)
        around = [y - 0.4, y + 0.4]
        axes.plot([finals.mean()] * 2, around, color=theme["ours"], linewidth=2)
        axes.fill_betweenx(around, *bootstrap(finals, 2000), color=theme["ours"], alpha=0.15, linewidth=0)
    style(axes, runs[0][1]["env"], theme, "x")
    axes.set_ylim(len(runs) - 0.45, -0.55)
    axes.set_yticks(range(len(runs)), [picture["labels"][names.index(name)] for name, *_ in runs])


def draw_runs(picture: dict, theme: dict):
    """All panels of a picture of runs, and a line that says what is what."""
    shown = panels(picture)
    columns = min(picture.get("columns", 3), len(shown))
    words = ["return of the last 100 training episodes"]
    if "curves" in picture:
        show, left, right = show_curves, 0.42, 1.02  # inches beside the axes, for ticks and labels
        words += ["thin: a seed", "thick: mean, 95 % interval"]
    else:
        show, left, right = show_finals, 0.75, 0.2
        words += ["dot: a seed", "line, band: mean, 95 % interval"]
    words[-1] += " (of 3 seeds: range)" * any(len(x.rows) <= 3 for runs in shown for *_, x in runs)
    words += [picture["note"]] if "note" in picture else []
    if "curves" in picture and any(map(published_of, shown)):
        words += ["dashed: published", "dotted: another statistic"]
    rows, width = -(-len(shown) // columns), WIDTH * columns / 3
    text = "\n".join(textwrap.wrap(" · ".join(words), int(19 * width) - 4))
    bottom = 0.36 + 0.13 * (text.count("\n") + 1)
    height = 1.75 * rows - 0.3 + bottom
    figure, grid = subplots(rows, columns, (width, height), squeeze=False)
    figure.subplots_adjust(
        left=left / width,
        right=1 - right / width,
        top=1 - 0.42 / height,
        bottom=bottom / height,
        wspace=(left + right) / (width / columns - left - right),
        hspace=0.65,
    )
    for axes, runs in zip(grid.flat, shown, strict=False):
        show(axes, picture, runs, theme)
    for axes in grid.flat[len(shown) :]:
        axes.set_visible(False)
    figure.text(left / width, 0.06 / height, text, color=theme["muted"], size=SIZE - 0.5)
    return figure


def find_picture(name: str) -> tuple[Callable, list, str]:
    """What draws a picture from a theme; what it shows; and what it is, in words."""
    if name in STUDIES:
        study = importlib.import_module(name)
        return study.draw, study.SHOWN, name
    if name == "experiment":
        return draw_experiment, [RESULTS / f"experiment_{x}.csv" for x in EXPERIMENT.values()], name
    picture = find(TABLE["pictures"], name, "picture")
    runs = [run for panel in panels(picture) for run in panel] or refuse(f"picture {name}: no results, yet")
    shown = [picture, *(run for _, run, _ in runs), *(csv_path(name) for name, *_ in runs)]
    return lambda theme: draw_runs(picture, theme), shown, picture["alt"]


def main() -> None:
    """Draw the pictures that are named, or all."""
    parser = Parser(__doc__)
    parser.add_argument("names", nargs="*", metavar="PICTURE", help="default: all")
    for name in parser.parse_args().names or NAMES:
        draw, shown, words = find_picture(name)
        for theme_name, theme in THEMES.items():
            figure, path = draw(theme), FOLDER / f"{name}_{theme_name}.png"
            metadata = {"Description": words, "Fingerprint": fingerprint(*shown)}
            figure.savefig(path, dpi=200, facecolor=theme["page"], metadata=metadata)
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
