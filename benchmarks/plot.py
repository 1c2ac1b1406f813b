"""Pictures of results, from benchmarks/runs.toml and the CSV files beside it, for light and for dark pages.

    python benchmarks/plot.py                    # all pictures of the table
    python benchmarks/plot.py learning_curves    # this one

Every seed is a thin line or a dot; the mean is thick, the band is the bootstrapped 95 % interval of the mean,
and dashed lines are what others have published. Each PNG file has a fingerprint of the numbers it shows.
"""

import hashlib
import json
import textwrap

import matplotlib
import numpy as np
from command_line import ROOT, Parser, compare
from compare import SIZE, Results, bootstrap, read_csv
from learning_curves import csv_path, find, read_table, runs_of, script_name, title
from results import SAME, brief

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

FOLDER = ROOT / "docs/pictures"
WIDTH = 8.5  # inches, of 100 pixels on the page
THEMES = {
    "light": compare.THEMES["light"] | {"ours": "#0969da", "other": "#bc4c00"},
    "dark": compare.THEMES["dark"] | {"ours": "#58a6ff", "other": "#f0883e"},
}


def label(published: dict, run: dict) -> str:
    """brief() in two lines: "CleanRL", "1443 (v4)"."""
    words = brief(published, run).removeprefix(published["label"] + " ")
    short = {"evaluation, greedy": "greedy", "evaluation": "eval.", "moving average": "average"}
    for long in short:
        words = words.replace(long, short[long])
    return f"{published['label']}\n{words}"


def panel(run: dict, results: Results) -> dict:
    """All numbers that are drawn of a run."""
    steps, curves = results.curves()
    begun = ~np.isnan(curves).any(0)  # from where on every seed has a return
    low, high = bootstrap(curves[:, begun], resamples=2000)
    published = [other for other in run.get("published", []) if "steps" not in other]
    return {
        "title": title(run).removesuffix(", greedy"),  # which only the evaluation is
        "script": "stable-baselines3" if run["script"] == "sb3" else script_name(run).rpartition("/")[2],
        "steps": steps[begun],
        "curves": curves[:, begun],
        "mean": curves[:, begun].mean(0),
        "low": low,
        "high": high,
        "finals": results.finals(2),
        "published": [(label(other, run), other["value"], other["statistic"] == SAME) for other in published],
    }


def panels(picture: dict, table: dict) -> list[dict]:
    """The panels of a picture. Curves need the results of all their runs; of finals, those that are there."""
    shown = []
    for names in runs_of(picture):
        both = {name: (table["runs"][name], read_csv(csv_path(name))) for name in names}
        each = {name: panel(run, results) for name, (run, results) in both.items() if results.rows}
        if each and ("finals" in picture or len(each) == len(names)):
            first, *others = each.values()
            if names[1:]:
                labels = [label for name, label in zip(names, picture["labels"], strict=True) if name in each]
                first |= {"others": others, "labels": labels, "published": []}
                if "finals" in picture:  # a row has its own label, so the title need not tell runs apart
                    first["title"] = table["runs"][names[0]]["env"]
            shown.append(first)
    return shown


def fingerprint(picture: dict, shown: list[dict]) -> str:
    """A hash of the picture's entry and of the numbers and words in it, to five figures."""

    def plain(x):
        if isinstance(x, dict):
            return {key: plain(value) for key, value in x.items()}
        if isinstance(x, list):
            return [plain(value) for value in x]
        return [float(f"{value:.5g}") for value in np.ravel(x)] if isinstance(x, np.ndarray) else x

    text = json.dumps([picture, *map(plain, shown)])
    return hashlib.sha256(text.encode()).hexdigest()


def seeds(shown: dict) -> str:
    """Whose runs, and how many."""
    runs = len(shown["finals"])
    how_many = f"{runs} seed{'s' * (runs > 1)}"
    if "others" in shown:
        ours, other = shown["labels"]
        return f"{ours}, {how_many}; {other}, {len(shown['others'][0]['finals'])}"
    return f"{shown['script'].replace('.py', '')}, {how_many}"


def draw_curves(axes, shown: dict, theme: dict) -> None:
    """Curves of all seeds of a run, or of two, their mean and its interval, and the published finals."""
    labels = shown.get("labels", ["ours" if shown["published"] else "mean"])
    parts = ("steps", "curves", "mean", "low", "high")
    lines = [
        compare.Line(label, *(each[part] for part in parts))
        for label, each in zip(labels, [shown, *shown.get("others", [])], strict=True)
    ]
    dashes = {True: (0, (5, 3)), False: (0, (1, 2))}
    others = [(label, value, dashes[same], theme["other"]) for label, value, same in shown["published"]]
    colours = [theme["ours"], theme["other"]]
    compare.draw_curves(axes, shown["title"], seeds(shown), lines, theme, colours, others)


def draw_finals(axes, shown: dict, theme: dict) -> None:
    """A row for each run, in which each seed is a dot."""
    runs = [shown, *shown["others"]]
    for y, each in enumerate(runs):
        finals = np.sort(each["finals"])
        # Neighbours must not hide each other.
        places = y + np.resize([0, 0.12, -0.12, 0.24, -0.24], len(finals))
        axes.plot(finals, places, "o", color=theme["ours"], alpha=0.6, markersize=5, markeredgewidth=0)
        axes.plot([finals.mean()] * 2, [y - 0.4, y + 0.4], color=theme["ours"], linewidth=2)
        interval = each["low"][-1], each["high"][-1]
        axes.fill_betweenx([y - 0.4, y + 0.4], *interval, color=theme["ours"], alpha=0.15, linewidth=0)
    compare.style(axes, shown["title"], theme, "x")
    axes.set_ylim(len(runs) - 0.45, -0.55)
    axes.set_yticks(range(len(runs)), shown["labels"])


def draw_all(picture: dict, shown: list[dict], theme: dict) -> plt.Figure:
    """All panels, and a line that says what is what."""
    columns = min(picture.get("columns", 3), len(shown))
    words = ["return of the last 100 training episodes"]
    if "curves" in picture:
        draw_panel, left, right = draw_curves, 0.42, 1.02  # inches beside the axes, for ticks and labels
        words += ["thin: a seed", "thick: mean, 95 % interval"]
    else:
        draw_panel, left, right = draw_finals, 0.75, 0.2
        words += ["dot: a seed", "line, band: mean, 95 % interval"]
    runs = [run for each in shown for run in (each, *each.get("others", []))]
    words[-1] += " (of 3 seeds: range)" * any(len(run["finals"]) <= 3 for run in runs)
    words += [picture["note"]] if "note" in picture else []
    if any(each["published"] for each in shown):
        words += ["dashed: published", "dotted: another statistic"]
    rows, width = -(-len(shown) // columns), WIDTH * columns / 3
    text = "\n".join(textwrap.wrap(" · ".join(words), int(19 * width) - 4))
    bottom = 0.36 + 0.13 * (text.count("\n") + 1)
    height = 1.75 * rows - 0.3 + bottom
    figure, grid = plt.subplots(rows, columns, figsize=(width, height), squeeze=False)
    figure.subplots_adjust(
        left=left / width,
        right=1 - right / width,
        top=1 - 0.42 / height,
        bottom=bottom / height,
        wspace=(left + right) / (width / columns - left - right),
        hspace=0.65,
    )
    for axes, each in zip(grid.flat, shown, strict=False):
        draw_panel(axes, each, theme)
    for axes in grid.flat[len(shown) :]:
        axes.set_visible(False)
    figure.text(left / width, 0.06 / height, text, color=theme["muted"], size=SIZE - 0.5)
    return figure


def draw(name: str, picture: dict, shown: list[dict], theme_name: str) -> None:
    """Write one PNG file."""
    theme = THEMES[theme_name]
    figure = draw_all(picture, shown, theme)
    FOLDER.mkdir(parents=True, exist_ok=True)
    metadata = {"Description": picture["alt"], "Fingerprint": fingerprint(picture, shown)}
    path = FOLDER / f"{name}_{theme_name}.png"
    figure.savefig(path, dpi=200, facecolor=theme["page"], metadata=metadata)
    plt.close(figure)
    print(path.relative_to(ROOT))


def main() -> None:
    """Draw the pictures that are named, or all."""
    parser = Parser(__doc__)
    parser.add_argument("names", nargs="*", metavar="PICTURE", help="of benchmarks/runs.toml; default: all")
    names, table = parser.parse_args().names, read_table()
    for name in names or table["pictures"]:
        picture = find(table["pictures"], name, "picture")
        if shown := panels(picture, table):
            for theme in THEMES:
                draw(name, picture, shown, theme)


if __name__ == "__main__":
    main()
