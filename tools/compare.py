# /// script
# requires-python = ">=3.11"
# dependencies = ["matplotlib==3.11.2", "numpy==2.4.6", "tensorboard==2.21.0", "tqdm==4.70.1"]
# ///
"""Which is better? Runs in groups of seeds, as a picture and a table, with what chance may have done.

    python tools/compare.py runs/sweep                        # every run in there, grouped by what differs
    python tools/compare.py mine=runs/a theirs=runs/b         # or by names of your own
    python tools/compare.py benchmarks/results/hopper*.csv    # what this program has written before

It reads runs of every script here, and the TensorBoard files of CleanRL and stable-baselines3; they may still
be going on. Into --out go pictures for light and for dark pages, the table, and a CSV file for each group.
"""

import csv
import itertools
import json
import math
import os
import re
import shlex
import textwrap
from pathlib import Path
from typing import NamedTuple

import numpy as np
from diagnose import read_run
from sweep import Parser, parse_seeds, refuse

COLUMNS = ["seed", "steps", "episode_return", "eval_return", "entropy"]
POINTS = 100  # of a curve, in a CSV file
# What may differ within a group, for it says where and how a run was made, not what it learns.
ASIDE = {"seed", "run_dir", "resume", "evaluate", "exp_name", "device", "threads", "checkpoints", "compile"}
ASIDE |= {"track", "capture_video", "eval_episodes", "async_envs", "cuda", "save_model", "env_id"}
SIZE = 7.5  # of letters, in points
THIN = "\u202f"  # a narrow space, between thousands
THEMES = {
    "light": {"page": "#ffffff", "ink": "#1f2328", "muted": "#656d76", "grid": "#e4e8ec"},
    "dark": {"page": "#0d1117", "ink": "#f0f6fc", "muted": "#9198a1", "grid": "#262c34"},
}
COLOURS = {  # those that are told apart by most people; beyond them they begin again
    "light": ["#0969da", "#bc4c00", "#1a7f37", "#8250df", "#bf3989", "#7a5c00", "#00788a", "#656d76"],
    "dark": ["#58a6ff", "#f0883e", "#3fb950", "#bc8cff", "#f778ba", "#d4b106", "#39c5d6", "#9198a1"],
}


# Statistics of seeds


def bootstrap(values: np.ndarray, resamples: int = 10_000, level: float = 0.95) -> tuple:
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


def improvement(a: np.ndarray, b: np.ndarray, resamples: int = 2000) -> tuple[float, float, float]:
    """The probability that a seed of a is better than one of b (arXiv 2108.13264), and its 95 % interval."""
    wins = (a[:, None] > b) + 0.5 * (a[:, None] == b)
    random = np.random.default_rng(0)
    rows, columns = (random.integers(n, size=(resamples, n)) for n in wins.shape)
    means = wins[rows[:, :, None], columns[:, None, :]].mean((1, 2))
    return float(wins.mean()), *map(float, np.quantile(means, [0.025, 0.975]))


# Runs, and CSV files of groups of them


class Results(NamedTuple):
    """A group of runs that differ in their seeds, as a CSV file holds it."""

    command: str  # that made it, "" in files that do not say
    made: dict[int, str]  # seed -> commit, versions and hardware; empty in files that do not say
    rows: dict[int, list[list[str]]]  # seed -> lines of the file, cells as in COLUMNS, "" if not known

    def curves(self) -> tuple[np.ndarray, np.ndarray]:
        """steps (points,), episode_return (seeds, points): NaN until the first episode has ended."""
        curves = [np.array([[float(row[1]), float(row[2])] for row in rows]).T for rows in self.rows.values()]
        steps = curves[0][0]
        steps = steps[steps <= min(curve[0][-1] for curve in curves)]  # as far as all have come
        return steps, np.array([np.interp(steps, *curve) for curve in curves])

    def finals(self, column: int) -> np.ndarray:
        """Each seed's end: column 2 is the mean of the last 100 training episodes, 3 of the evaluation."""
        return np.array([float(rows[-1][column] or "nan") for rows in self.rows.values()])


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


def format_seeds(seeds: list[int]) -> str:
    """1, 2, 3, 7 -> 1-3, 7."""
    parts = []
    for seed in sorted(seeds):
        if parts and seed == parts[-1][1] + 1:
            parts[-1][1] = seed
        else:
            parts.append([seed, seed])
    return ", ".join(f"{first}-{last}" if first < last else f"{first}" for first, last in parts)


def write_csv(path: Path, results: Results) -> None:
    """Write the file, seeds in order; killed at any moment, this leaves the old one or the new one, whole."""
    same = {
        made: [seed for seed in results.made if results.made[seed] == made] for made in results.made.values()
    }
    lines = [f"# command: {results.command}"]
    lines += [
        f"# seeds {format_seeds(seeds)}: {made}" for made, seeds in sorted(same.items(), key=lambda x: x[1])
    ]
    rows = [COLUMNS, *(row for _, rows in sorted(results.rows.items()) for row in rows)]
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text("\n".join([*lines, *map(",".join, rows)]) + "\n")
    os.replace(part, path)


class Run(NamedTuple):
    """One run: what made it, and its lines of a CSV file."""

    script: str
    flags: dict[str, str]  # all that are known
    seed: int
    rows: list[list[str]]
    command: str
    made: str


def write(value: float) -> str:
    return f"{value:.2f}" if abs(value) >= 10 else f"{value:.4f}"


def parse_flags(words: list[str]) -> dict[str, str]:
    """--learning-rate 1e-3 --no-norm-adv -> learning_rate: 1e-3, norm_adv: False."""
    flags = {}
    for word, following in itertools.pairwise([*words, "--"]):
        if word.startswith("--"):
            name = word[2:].replace("-", "_")
            alone = following.startswith("--")
            flags[name.removeprefix("no_") if alone else name] = (
                str(not name.startswith("no_")) if alone else following
            )
    return flags


def read_folder(folder: Path) -> Run | None:
    """A run from its TensorBoard files, and a sweep's if it is of one; None if it has no returns yet."""
    found = read_run(folder)
    name = next((x for x in ("episode_return", "score") if found.has(x)), None)
    if name is None:
        return None
    steps, returns = found.series[name]
    marks = range(len(steps))[:: -max(1, len(steps) // POINTS)][::-1]  # the last one is always among them
    entropy = dict(zip(*found.series["entropy"], strict=True)) if found.has("entropy") else {}
    places = [x / "sweep.json" for x in (folder, *folder.parents) if (x / "sweep.json").exists()]
    job = json.loads(places[0].read_text()) if places else {}
    flags = {key: str(value) for key, value in found.args.items()}
    flags = parse_flags(job.get("flags", [])) | flags
    parts = folder.resolve().name.split("__")  # env, script, seed, time, as others call their folders, too
    plain = re.fullmatch(r"(.*?)_?(\d*)", folder.resolve().name)  # PPO_1, of stable-baselines3
    checkpoint = folder / "checkpoint.pt"  # of a script here, whose name is in there
    writer = re.search(rb"(\w+)\.py \d", checkpoint.read_bytes() if checkpoint.exists() else b"")
    script = parts[1] if len(parts) == 4 else plain[1] or plain[2]
    script = Path(job["script"]).stem if job else writer[1].decode() if writer else script
    seed = int(job.get("seed", flags.get("seed", plain[2] or 1)))
    rows = [[str(seed), str(steps[i]), write(returns[i]), "", ""] for i in marks]
    for row in rows:
        row[4] = write(entropy[int(row[1])]) if int(row[1]) in entropy else ""
    evaluations = [found.values(x) for x in ("eval_return", "eval/mean_reward") if found.has(x)]
    evaluations += (
        [[found.values("eval/episodic_return").mean()]] if found.has("eval/episodic_return") else []
    )
    rows[-1][3] = write(evaluations[0][-1]) if evaluations else ""
    env = (
        ["--env-id", flags["env_id"]] if "env_id" in flags and "--env-id" not in job.get("flags", []) else []
    )
    said = (
        [*env, *job["flags"]]
        if job
        else [x for key in flags for x in (f"--{key.replace('_', '-')}", flags[key])]
    )
    return Run(script, flags, seed, rows, shlex.join([job.get("script", script), *said]), job.get("made", ""))


def read_source(source: str) -> list[Run]:
    """The runs in a folder, or in a CSV file; NAME= before it gives their script another name."""
    name, _, path = source.rpartition("=") if not Path(source).exists() else ("", "", source)
    path = Path(path)
    if path.suffix == ".csv":
        if not path.is_file():
            refuse(f"there is no {path}")
        results = read_csv(path)
        script, *flags = shlex.split(results.command) or [path.stem]
        runs = [
            Run(
                Path(script).stem, parse_flags(flags), seed, rows, results.command, results.made.get(seed, "")
            )
            for seed, rows in results.rows.items()
        ]
    else:
        if not path.is_dir():
            refuse(f"{path} is neither a folder nor a CSV file")
        runs = [*map(read_folder, sorted({x.parent for x in path.rglob("*tfevents*")}))]
    return [run._replace(script=name or run.script) for run in runs if run]


def make_groups(runs: list[Run]) -> dict[str, dict[str, Results]]:
    """{env: {label: group}}; a label has what tells its group from others: the script, then flags."""
    envs = list(dict.fromkeys(run.flags["env_id"] for run in runs if "env_id" in run.flags))
    groups = {}
    for run in runs:
        env = run.flags.get("env_id", envs[0] if len(envs) == 1 else "env not known")
        what = {key: value for key, value in run.flags.items() if key not in ASIDE}
        groups.setdefault((env, run.script, json.dumps(what, sort_keys=True)), []).append(run)
    many, found = len({script for _, script, _ in groups}) > 1, {}
    for (env, script, what), members in groups.items():
        rivals = [json.loads(other) for e, s, other in groups if (e, s) == (env, script)]
        mine = json.loads(what)
        keys = dict.fromkeys(key for other in rivals for key in other)
        told = [key for key in keys if len({other.get(key) for other in rivals}) > 1]
        words = [f"{key} {mine[key]}" for key in told if key in mine]  # others have their defaults
        label = ", ".join([script] * (many or not told) + words) or "default flags"
        rows = {}
        for run in members:
            if run.seed in rows:
                refuse(f"{label} has seed {run.seed} twice; NAME=FOLDER tells apart what has the same flags")
            rows[run.seed] = run.rows
        made = {run.seed: run.made for run in members if run.made}
        found.setdefault(env, {})[label] = Results(members[0].command, made, dict(sorted(rows.items())))
    return found


# What is told of them


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


def interval(values: np.ndarray) -> str:
    """[low, high], or a dash for a single seed."""
    ends = (number(end, np.abs(values).max()) for end in bootstrap(values))
    return f"[{', '.join(ends)}]" if len(values) > 1 else "–"


def of_seeds(n: int) -> str:
    return f"{n} seed{'s' * (n != 1)}"


def table(env: str, groups: dict[str, Results], threshold: float | None = None) -> list[str]:
    """Lines of Markdown: a row for each group, best first, and below it who is better than whom."""
    ends = {label: group.curves()[0][-1] for label, group in groups.items()}
    end = min(ends.values())
    alike = max(ends.values()) < 1.05 * end and all(
        int(rows[-1][1]) < 1.05 * end for group in groups.values() for rows in group.rows.values()
    )
    lacking = [label for label, group in groups.items() if np.isnan(group.finals(3)).any()]
    evaluated = alike and not lacking
    finals, lines, curves = {}, [], {}
    for label, group in groups.items():
        steps, returns = group.curves()
        kept = (steps <= end) & ~np.isnan(returns).any(0)  # from where on every seed has a return
        if not kept.any():
            refuse(f"{env}: no step at which all seeds of {label} have a return")
        curves[label] = steps[kept], returns[:, kept]
        finals[label] = group.finals(3) if evaluated else returns[:, kept][:, -1]
    if threshold is None:
        first = min(returns.mean(0)[0] for _, returns in curves.values())
        best = max(returns.mean(0)[-1] for _, returns in curves.values())
        threshold = float(f"{first + 0.9 * (best - first):.3g}")
    what = "evaluation" if evaluated else "last 100 training episodes"
    heads = [f"{env}, {count(end)} steps", "seeds", what, "95 % interval", "IQM", "whole training"]
    heads += [f"steps to {number(threshold)}, median", "seeds that get there"]
    lines += [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    order = sorted(groups, key=lambda label: -finals[label].mean())
    for label in order:
        (steps, returns), values = curves[label], finals[label]
        scale = np.abs(values).max()
        over = np.trapezoid(returns.mean(0), steps) / np.ptp(steps) if len(steps) > 1 else returns.mean()
        reach = [
            steps[np.argmax(seed >= threshold)] if (seed >= threshold).any() else math.inf for seed in returns
        ]
        median = float(np.median(reach))
        cells = [label, str(len(values)), f"**{number(values.mean(), scale)}**", interval(values)]
        cells[3] = cells[3] if len(values) > 2 else "–"  # of two it would be their range
        cells += [
            number(iqm(values), scale),
            number(over, scale),
            count(median) if median < math.inf else "never",
        ]
        lines.append(f"| {' | '.join([*cells, str(int(np.isfinite(reach).sum()))])} |")
    lines.append("")
    pairs = [(a, b) for i, a in enumerate(order) for b in order[i + 1 :] if len(order) < 5 or i == 0]
    for a, b in pairs:
        chance, low, high = improvement(finals[a], finals[b])
        few = min(len(finals[a]), len(finals[b])) < 3
        said = "too few seeds for an interval" if few else f"95 % interval {low:.2f} to {high:.2f}"
        lines.append(f"- A seed of {a} is better than one of {b} with probability {chance:.2f} ({said}).")
    if alike and lacking and any(np.isfinite(group.finals(3)).any() for group in groups.values()):
        lines.append(
            f"- Returns are those of training: not every seed of {', '.join(lacking)} was evaluated."
        )
    if not alike:
        lines.append(f"- Runs of {env} have not all come equally far: all is compared at {end:,.0f} steps.")
    return lines


# Pictures


class Line(NamedTuple):
    """A group as it is drawn: the seeds, their mean and its interval."""

    label: str
    steps: np.ndarray  # (points,)
    curves: np.ndarray  # (seeds, points)
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def make_line(label: str, results: Results) -> Line:
    """All numbers that are drawn of a group, from where on every seed has a return."""
    steps, curves = results.curves()
    begun = ~np.isnan(curves).any(0)
    return Line(
        label, steps[begun], curves[:, begun], curves[:, begun].mean(0), *bootstrap(curves[:, begun], 2000)
    )


def spread(places: list[float], gap: float, limit: float) -> list[float]:
    """Places of labels in rising order, moved apart to be gap from each other, none above limit."""
    groups = []  # of labels that touch, each around the mean of their places
    for place in places:
        groups.append([place])
        while len(groups) > 1:
            below, above = groups[-2:]
            if np.mean(above) - np.mean(below) >= gap * (len(above) + len(below)) / 2:
                break
            groups[-2:] = [below + above]
    apart = [np.mean(group) + gap * (i - (len(group) - 1) / 2) for group in groups for i in range(len(group))]
    return [min(place, limit - gap * i) for i, place in enumerate(reversed(apart))][::-1]


def style(axes, title: str, theme: dict, grid: str) -> None:
    """The title, a light grid across one axis, and no box: only what helps to read."""
    from matplotlib.ticker import MaxNLocator

    place = dict(
        xycoords="axes fraction", textcoords="offset points", xytext=(0, 6 + (grid == "y") * 1.4 * SIZE)
    )
    axes.annotate(title, (0, 1), color=theme["ink"], size=SIZE + 2, weight="bold", **place)
    axes.set_facecolor(theme["page"])
    for side in axes.spines.values():
        side.set_visible(False)
    axes.grid(axis=grid, color=theme["grid"], linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=theme["muted"], labelsize=SIZE, length=0)
    axis = axes.yaxis if grid == "y" else axes.xaxis
    axis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    axis.set_major_formatter(lambda x, _: f"{x:,.0f}".replace("-", "−").replace(",", THIN))


def draw_curves(
    axes, title: str, below: str, lines: list[Line], theme: dict, colours: list[str], others=()
) -> None:
    """Every seed, the mean and its interval, for each line its label beside it.

    below is a line of text under the title; others are labels, values and dashes of horizontal lines.
    """
    labels = []
    for i, line in enumerate(lines):
        colour = colours[i % len(colours)]
        if len(line.curves) > 2:
            axes.fill_between(line.steps, line.low, line.high, color=colour, alpha=0.25, linewidth=0)
        axes.plot(line.steps, line.curves.T, color=colour, linewidth=0.6, alpha=0.45)
        axes.plot(line.steps, line.mean, color=colour, linewidth=2)
        seeds = f" ({of_seeds(len(line.curves))})" * (len({len(line.curves) for line in lines}) > 1)
        words = f"{textwrap.fill(line.label, 20)}\n{number(line.mean[-1])}{seeds}"
        labels.append((line.mean[-1], words, colour))
    for label, value, dashes, colour in others:
        axes.axhline(value, color=colour, linewidth=1, linestyle=dashes)
        labels.append((value, label, colour))
    style(axes, title, theme, "y")
    last = max(line.steps[-1] for line in lines)
    axes.set_xlim(0, last)
    axes.set_xticks([0, last / 2, last], ["0", count(last / 2), count(last)])
    axes.xaxis.get_majorticklabels()[-1].set_ha("right")  # beside it are the names of lines
    place = dict(xycoords="axes fraction", textcoords="offset points", xytext=(0, 5))
    axes.annotate(below, (0, 1), color=theme["muted"], size=SIZE, **place)
    labels = sorted(labels)
    low, high = axes.get_ylim()
    points = axes.get_position().height * axes.figure.get_figheight() * 72
    heights = [(y - low) / (high - low) for y, *_ in labels]
    gap = (0.7 + max(text.count("\n") + 1 for _, text, _ in labels)) * SIZE / points
    for place, (_, text, colour) in zip(spread(heights, gap, 1 - gap / 2), labels, strict=True):
        axes.text(1.03, place, text, color=colour, size=SIZE, transform=axes.transAxes, va="center")


def draw(found: dict[str, dict[str, Results]], theme_name: str):
    """A figure with a panel for each env."""
    from matplotlib.figure import Figure

    theme, columns = THEMES[theme_name], min(2, len(found))
    rows, most = -(-len(found) // columns), max(map(len, found.values()))
    longest = max(len(textwrap.wrap(label, 20)) for groups in found.values() for label in groups)
    panel = max(2.2, most * (1.9 + longest) * SIZE / 72)  # inches: its height; beside it are 1.5 for labels
    width, height = columns * 5.4, rows * (panel + 0.75) + 0.35
    figure = Figure(figsize=(width, height), facecolor=theme["page"])
    grid = figure.subplots(rows, columns, squeeze=False)
    figure.subplots_adjust(
        left=0.5 / width,
        right=1 - 1.5 / width,
        top=1 - 0.4 / height,
        bottom=0.7 / height,
        wspace=2 / 3.4,
        hspace=0.75 / panel,
    )
    for axes, (env, groups) in zip(grid.flat, found.items(), strict=False):
        lines = [make_line(label, group) for label, group in groups.items()]
        sizes = {len(line.curves) for line in lines}
        draw_curves(axes, env, of_seeds(max(sizes)) * (len(sizes) == 1), lines, theme, COLOURS[theme_name])
        axes.set_xlabel("steps", color=theme["muted"], size=SIZE)
    for axes in grid.flat[len(found) :]:
        axes.set_visible(False)
    words = "return of the last 100 training episodes · thin: a seed · thick: mean · band: its 95 % interval"
    few = any(len(group.rows) < 3 for groups in found.values() for group in groups.values())
    text = textwrap.fill(words + " (of three seeds or more)" * few, int(18 * width))
    figure.text(0.5 / width, 0.08 / height, text, color=theme["muted"], size=SIZE - 0.5)
    return figure


def main() -> None:
    """Read the runs that the command line names, and compare them."""
    parser = Parser(__doc__)
    parser.add_argument("sources", nargs="+", metavar="[NAME=]PATH", help="a folder of runs, or a CSV file")
    parser.add_argument(
        "--threshold", type=float, help="a return to reach; default: 90 %% of what was gained"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/compare"), help="default: runs/compare")
    args = parser.parse_args()
    runs = [run for source in args.sources for run in read_source(source)]
    if not runs:
        refuse(f"{args.sources[0]}: no run in there has a return, yet")
    found = make_groups(runs)
    text = "\n\n".join("\n".join(table(env, groups, args.threshold)) for env, groups in found.items())
    args.out.mkdir(parents=True, exist_ok=True)
    fewest = min(len(group.rows) for groups in found.values() for group in groups.values())
    if fewest < 10:
        text += f"\n- Intervals of fewer than ten seeds are too narrow; here are as few as {fewest}."
    print(text)
    (args.out / "table.md").write_text(text + "\n")
    for env, groups in found.items():
        for label, group in groups.items():
            name = re.sub(r"[^\w.-]+", "_", f"{env}__{label}")
            write_csv(args.out / f"{name}.csv", group)
    try:
        for theme in THEMES:
            draw(found, theme).savefig(args.out / f"picture_{theme}.png", dpi=160)
    except (ImportError, OSError) as error:
        refuse(f"no picture: {error}")
    print(f"see {args.out}/picture_light.png")


if __name__ == "__main__":
    main()
