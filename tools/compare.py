# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "matplotlib==3.11.2",
#     "numpy==2.4.6",
#     "scipy==1.17.1",
#     "tensorboard==2.21.0",
#     "tqdm==4.70.1",
# ]
# ///
"""Which is better? Runs in groups of seeds, as a picture and a table, and what may be chance.

    python tools/compare.py runs/sweep                        # every run in there, grouped by what differs
    python tools/compare.py mine=runs/a theirs=runs/b         # or by names of your own
    python tools/compare.py benchmarks/results/hopper*.csv    # what this program has written before

It reads runs of every script here, and the TensorBoard files of CleanRL and stable-baselines3; they may
still be going on. Into --out go pictures for light and dark pages, the table, and each group's CSV file.
"""

import csv
import itertools
import json
import math
import os
import re
import shlex
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

import numpy as np
from diagnose import Damaged, read_run
from diagnose import Run as Logs
from scipy.stats import PermutationMethod, false_discovery_control, mannwhitneyu
from sweep import Parser, parse_seeds, refuse

COLUMNS = ["seed", "steps", "episode_return", "eval_return", "entropy"]
EVALUATION = COLUMNS.index("eval_return")
POINTS = 100  # A curve has about as many points in a CSV file.
# These may differ within a group: they say where and how a run was made, not what it learns.
ASIDE = {"seed", "run_dir", "resume", "evaluate", "exp_name", "device", "threads", "checkpoints", "compile"}
ASIDE |= {"track", "capture_video", "eval_episodes", "async_envs", "cuda", "save_model"}
ASIDE |= {"env_id", "task"}  # These have tables of their own.
SCORES = ("episode_return", "score", "accuracy")  # A run's first one of these is compared.
SIZE = 7.5  # Letters are so many points high.
THIN = "\u202f"  # This narrow space stands between thousands.
THEMES = {
    "light": {"page": "#ffffff", "ink": "#1f2328", "muted": "#656d76", "grid": "#e4e8ec"},
    "dark": {"page": "#0d1117", "ink": "#f0f6fc", "muted": "#9198a1", "grid": "#262c34"},
}
COLOURS = {  # Most people can tell these apart; a ninth line has the first colour again.
    "light": ["#0969da", "#bc4c00", "#1a7f37", "#8250df", "#bf3989", "#7a5c00", "#00788a", "#656d76"],
    "dark": ["#58a6ff", "#f0883e", "#3fb950", "#bc8cff", "#f778ba", "#d4b106", "#39c5d6", "#9198a1"],
}


# Statistics of seeds


def bootstrap(values: np.ndarray, resamples: int = 10_000, level: float = 0.95) -> tuple:
    """Returns the lower and the upper end of the interval of the mean over seeds, the first axis.

    It is a percentile bootstrap.
    """
    values = np.asarray(values, float)
    seeds = len(values)
    draws = np.random.default_rng(0).integers(seeds, size=(resamples, seeds))
    counts = np.zeros((resamples, seeds))  # They say how often a resample has each seed.
    rows = np.arange(resamples)[:, None]
    np.add.at(counts, (rows, draws), 1)
    means = counts @ values / seeds
    ends = [(1 - level) / 2, (1 + level) / 2]
    low, high = np.quantile(means, ends, axis=0)
    return low, high


def iqm(values: np.ndarray) -> float:
    """Returns the interquartile mean, without the lowest and the highest quarter, rounded down."""
    cut = len(values) // 4
    kept = np.sort(values)[cut : len(values) - cut]
    return float(np.mean(kept))


def improvement(a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
    """Returns the probability that a seed of a is better than one of b, and how probable chance is.

    The latter is the p-value of Mann and Whitney's test, two-sided and exact: how often seeds of one
    and the same distribution are at least as far apart. Where seeds are equal, they are permuted.
    """
    wins = (a[:, None] > b) + 0.5 * (a[:, None] == b)
    if min(len(a), len(b)) < 2:
        return float(wins.mean()), 1.0
    method = "exact"
    if len({*a, *b}) < len(a) + len(b):
        method = PermutationMethod(n_resamples=9999, rng=np.random.default_rng(0))
    return float(wins.mean()), float(mannwhitneyu(a, b, method=method).pvalue)


def corrected(chances: list[float]) -> np.ndarray:
    """Returns p-values for many tests at once (Benjamini and Hochberg 1995).

    Of those up to 0.05, about a twentieth are chance.
    """
    return false_discovery_control(chances) if len(chances) else np.array([])


# Groups of runs, and their CSV files

Curve = tuple[np.ndarray, np.ndarray]  # These are steps (points,), and returns of one or more seeds.


class Results(NamedTuple):
    """A group of runs that differ in their seeds, as a CSV file holds it."""

    command: str  # It made the runs; it is "" if it is not known.
    made: dict[int, str]  # A seed's commit, versions and hardware are here, if known.
    rows: dict[int, list[list[str]]]  # A seed's lines of the file are here; unknown cells are "".

    def curves(self) -> Curve:
        """Returns steps (points,) and episode_return (seeds, points), until the first seed ends.

        A return is NaN until an episode has ended.
        """
        curves = [read_curve(rows) for rows in self.rows.values()]
        end = min(steps[-1] for steps, _ in curves)
        steps, _ = curves[0]
        steps = steps[steps <= end]
        returns = [np.interp(steps, *curve) for curve in curves]
        return steps, np.array(returns)

    def finals(self, column: int) -> np.ndarray:
        """Returns each seed's end.

        Column 2 is the mean of the last 100 training episodes, column 3 the mean of the evaluation.
        """
        cells = [rows[-1][column] or "nan" for rows in self.rows.values()]
        return np.array([float(cell) for cell in cells])


def read_curve(rows: list[list[str]]) -> Curve:
    """Returns steps and episode_return of the lines of one seed."""
    steps = [float(row[1]) for row in rows]
    returns = [float(row[2]) for row in rows]
    return np.array(steps), np.array(returns)


def read_csv(path: Path) -> Results:
    """Reads one CSV file; lines of its head that begin with # say how it was made."""
    if not path.exists():
        return Results("", {}, {})
    lines = path.read_text("utf-8-sig").splitlines()  # Some editors begin it with a mark.
    command = ""
    made = {}
    while lines and lines[0].startswith("#"):
        head = lines.pop(0).removeprefix("# ")
        key, _, value = head.partition(": ")
        if key == "command":
            command = value
        elif key.startswith("seeds "):
            seeds = parse_seeds(key.removeprefix("seeds "))
            made |= dict.fromkeys(seeds, value)
    rows = {}
    for row in filter(None, list(csv.reader(lines))[1:]):
        seed = int(row[0])
        missing = len(COLUMNS) - len(row)  # Older files have no entropy.
        rows.setdefault(seed, []).append(row + [""] * missing)
    return Results(command, made, dict(sorted(rows.items())))


def format_seeds(seeds: list[int]) -> str:
    """Returns 1-3, 7 for 1, 2, 3 and 7."""
    ranges = []
    for seed in sorted(seeds):
        if ranges and seed == ranges[-1][1] + 1:
            ranges[-1][1] = seed
        else:
            ranges.append([seed, seed])
    words = [f"{first}" if first == last else f"{first}-{last}" for first, last in ranges]
    return ", ".join(words)


def write_csv(path: Path, results: Results) -> None:
    """Writes the file, seeds in order."""
    seeds_of = {}
    for seed, made in results.made.items():
        seeds_of.setdefault(made, []).append(seed)
    lines = [f"# command: {results.command}"]
    for made, seeds in sorted(seeds_of.items(), key=lambda item: item[1]):
        lines.append(f"# seeds {format_seeds(seeds)}: {made}")
    lines.append(",".join(COLUMNS))
    for seed in sorted(results.rows):
        lines += [",".join(row) for row in results.rows[seed]]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, "\n".join(lines) + "\n")


def write_text(path: Path, text: str) -> None:
    """Writes a file whole, and through no link that lies in its place."""
    part = path.with_name(path.name + ".part")
    part.unlink(missing_ok=True)
    part.write_text(text, "utf-8")
    os.replace(part, path)


# Runs


class Run(NamedTuple):
    """One run: what made it, and its lines of a CSV file."""

    script: str
    flags: dict[str, str]  # Flags that are not known are left out.
    seed: int
    rows: list[list[str]]
    command: str
    made: str
    version: str = ""  # The script's hash, as its sweep has it, or its path; "" if it is not known.
    place: str = ""  # The folder, or the CSV file and the seed.
    failed: str = ""  # Why the run ended too early, as its sweep has it.

    def last_step(self) -> float:
        return float(self.rows[-1][1])


def write(value: float) -> str:
    """Returns the value as a CSV file has it."""
    return f"{value:.2f}" if abs(value) >= 10 else f"{value:.4f}"


def parse_flags(words: list[str]) -> dict[str, str]:
    """Returns {learning_rate: 1e-3, norm_adv: False} for --learning-rate 1e-3 --no-norm-adv."""
    flags = {}
    for word, following in itertools.pairwise([*words, "--"]):
        if not word.startswith("--"):
            continue
        name = word[2:].replace("-", "_")
        if following.startswith("--"):  # The flag has no value: it is a switch.
            positive = name.removeprefix("no_")
            flags[positive] = str(not name.startswith("no_"))
        else:
            flags[name] = following
    return flags


def read_folder(folder: Path) -> Run | None:
    """Returns a run from its TensorBoard files and its sweep's; None if it has no returns yet."""
    logs = read_run(folder)
    if not any(map(logs.has, SCORES)):
        return None
    job = logs.job
    flags = parse_flags(job.get("flags", []))
    flags |= {key: str(value) for key, value in logs.args.items()}
    script = find_script(folder, job)
    seed = find_seed(folder, job, flags)
    command = make_command(script, flags, job)
    made = job.get("made", "")
    version = job.get("sha256", "")
    rows = make_rows(logs, seed)
    return Run(script, flags, seed, rows, command, made, version, str(folder), job.get("failed", ""))


def split_number(folder: Path) -> tuple[str, str]:
    """Returns PPO and 1 for a folder PPO_1, as stable-baselines3 names them."""
    return re.fullmatch(r"(.*?)_?(\d*)", folder.resolve().name).groups()


def find_script(folder: Path, job: dict) -> str:
    """Returns the name of a run's script, as its sweep, its checkpoint or its folder has it."""
    if job:
        return Path(job["script"]).stem
    checkpoint = folder / "checkpoint.pt"
    content = b""
    if checkpoint.exists():
        with checkpoint.open("rb") as file:
            content = file.read(2**16)
    writer = re.search(rb"(\w+)\.py \d", content)  # Scripts of this project name themselves in it.
    if writer:
        return writer[1].decode()
    parts = folder.resolve().name.split("__")
    if len(parts) == 4:  # CleanRL names its folders by env, script, seed and time.
        return parts[1]
    name, number = split_number(folder)
    return name or number


def find_seed(folder: Path, job: dict, flags: dict[str, str]) -> int:
    """Returns the seed that the sweep has, or the flags, or the folder's name; else 1."""
    _, number = split_number(folder)
    seed = flags.get("seed", number or 1)
    return int(job.get("seed", seed))


def make_command(script: str, flags: dict[str, str], job: dict) -> str:
    """Returns a command line that makes such a run."""
    words = []
    if not job:
        for key, value in flags.items():
            words += [f"--{key.replace('_', '-')}", value]
        return shlex.join([script, *words])
    if "env_id" in flags and "--env-id" not in job["flags"]:
        words = ["--env-id", flags["env_id"]]
    return shlex.join([job["script"], *words, *job["flags"]])


def make_rows(logs: Logs, seed: int) -> list[list[str]]:
    """Returns a run's lines of a CSV file; the last one has the evaluation."""
    name = next(name for name in SCORES if logs.has(name))
    steps, returns = logs.series[name]
    entropy = {}
    if logs.has("entropy"):
        entropy = dict(zip(*logs.series["entropy"], strict=True))
    stride = max(1, len(steps) // POINTS)
    points = range(len(steps))[::-stride]  # Counting begins at the end: the last point is there.
    rows = []
    for i in reversed(points):
        step = steps[i]
        cell = write(entropy[step]) if step in entropy else ""
        rows.append([str(seed), str(step), write(returns[i]), "", cell])
    rows[-1][EVALUATION] = find_evaluation(logs)
    return rows


def find_evaluation(logs: Logs) -> str:
    """Returns the mean return of the last evaluation, or "" if there was none."""
    for name in ("eval_return", "eval_score", "eval_accuracy", "eval/mean_reward"):
        if logs.has(name):
            return write(logs.values(name)[-1])
    if logs.has("eval/episodic_return"):  # CleanRL logs each episode of the only evaluation.
        return write(logs.values("eval/episodic_return").mean())
    return ""


def read_source(source: str) -> list[Run]:
    """Returns the runs in a folder or a CSV file; NAME= before it is their script's new name."""
    name = ""
    path = Path(source)
    if not path.exists():
        name, _, rest = source.rpartition("=")
        path = Path(rest)
    runs = read_file(path) if path.suffix == ".csv" else read_folders(path)
    return [run._replace(script=name or run.script) for run in runs]


def read_file(path: Path) -> list[Run]:
    """Returns the runs in a CSV file."""
    if not path.is_file():
        refuse(f"there is no {path}")
    try:
        command, made, rows = read_csv(path)
        [read_curve(lines) for lines in rows.values()]  # An error, if these are no numbers.
    except (ValueError, IndexError) as error:
        refuse(f"{path} is no file of this program: {error}")
    script, *words = shlex.split(command) or [path.stem]
    name = Path(script).stem
    flags = parse_flags(words)
    found = []
    for seed in rows:
        place = f"{path} seed {seed}"
        found.append(Run(name, flags, seed, rows[seed], command, made.get(seed, ""), script, place))
    return found


def read_folders(path: Path) -> list[Run]:
    """Returns the runs in a folder, and in those below it, that have returns by now."""
    if not path.is_dir():
        refuse(f"{path} is neither a folder nor a CSV file")
    folders = {file.parent for file in path.rglob("*tfevents*")}
    runs = []
    empty = []
    for folder in sorted(folders):
        try:
            run = read_folder(folder)
        except Damaged as damage:
            print(f"compare.py: left out, as it cannot be read: {damage}", file=sys.stderr)
            continue
        if run:
            runs.append(run)
        else:
            empty.append(folder)
    places = folders | {place for folder in folders for place in folder.parents}
    begun = {file.parent for file in path.rglob("sweep.json")}
    tell_left_out(empty, f"none of {', '.join(SCORES)} is in their curves")
    tell_left_out(sorted(begun - places), "they have no curves; see their log.txt")
    return runs


def tell_left_out(places: list, reason: str) -> None:
    """Says in one line which runs are not compared, and why."""
    if places:
        names = ", ".join(map(str, places))
        print(f"compare.py: left out, as {reason}: {names}", file=sys.stderr)


# Which runs are a group

Groups = dict[str, Results]  # These are the groups of one env, by their labels.
Kind = tuple[str, str, str, str]  # Env, script, its version, and the flags that matter, as JSON.


def make_groups(runs: list[Run]) -> dict[str, Groups]:
    """Returns {env: {label: group}}; a label has what tells its group from others."""
    kinds = split_by_kind(leave_out(runs))
    groups = {}
    for kind, members in kinds.items():
        env, *_ = kind
        label = make_label(kind, list(kinds))
        groups.setdefault(env, {})[label] = merge(members, label)
    return groups


def envs_of(runs: list[Run]) -> list[str]:
    """Returns each run's env, or its task; where neither is known, the only env of the others."""
    known = [run.flags.get("env_id") or run.flags.get("task") for run in runs]
    envs = {env for env in known if env}
    default = envs.pop() if len(envs) == 1 else "env not known"
    return [env or default for env in known]


def leave_out(runs: list[Run]) -> list[Run]:
    """Returns the runs that can be compared, and says why others cannot."""
    envs = envs_of(runs)
    longest = {}
    for env, run in zip(envs, runs, strict=True):
        longest[env] = max(run.last_step(), longest.get(env, 0))
    kept = []
    short = []
    broken = []
    failed = []
    for env, run in zip(envs, runs, strict=True):
        if run.failed:
            failed.append(f"{run.place} ({run.failed})")
        elif math.isnan(float(run.rows[-1][2])):
            broken.append(run.place)
        elif run.last_step() < 0.1 * longest[env]:
            short.append(run.place)
        else:
            kept.append(run)
    tell_left_out(failed, "they failed")
    tell_left_out(broken, "their last return is no number")
    tell_left_out(short, "they have less than a tenth of the steps of others")
    return kept


def split_by_kind(runs: list[Run]) -> dict[Kind, list[Run]]:
    """Returns the runs of each kind; a flag matters if it changes what a run learns."""
    kinds = {}
    for env, run in zip(envs_of(runs), runs, strict=True):
        flags = {key: value for key, value in run.flags.items() if key not in ASIDE}
        kind = (env, run.script, run.version, json.dumps(flags, sort_keys=True))
        kinds.setdefault(kind, []).append(run)
    return kinds


def make_label(kind: Kind, kinds: list[Kind]) -> str:
    """Returns what tells a kind from others: the script if there are several, then flags."""
    env, script, version, flags = kind
    rivals = [json.loads(other[3]) for other in kinds if other[:3] == kind[:3]]
    own = json.loads(flags)
    differing = differing_keys(rivals)
    words = []
    for key in differing:
        if key in own:  # Those without the flag have its default.
            words.append(f"{key} {own[key]}")
    scripts = {other[1:3] for other in kinds}
    if len(scripts) > 1 or not differing:
        words = [name_version(script, version, scripts), *words]
    return ", ".join(words) or "default flags"


def name_version(script: str, version: str, scripts: set[tuple[str, str]]) -> str:
    """Returns the name of a script, and what tells its version from others of that name."""
    versions = {other for name, other in scripts if name == script}
    if len(versions) == 1 or not version:
        return script
    if version.endswith(".py"):
        return version
    return f"{script} of version {version[:6]}"


def differing_keys(rivals: list[dict[str, str]]) -> list[str]:
    """Returns the flags that do not have the same value in all of them."""
    differing = []
    for key in dict.fromkeys(itertools.chain(*rivals)):
        values = {flags.get(key) for flags in rivals}
        if len(values) > 1:
            differing.append(key)
    return differing


def merge(runs: list[Run], label: str) -> Results:
    """Returns one group of these runs, seeds in order."""
    best = {}
    twice = []
    for run in sorted(runs, key=Run.last_step, reverse=True):
        if run.seed in best:
            twice.append(run.place)
        else:
            best[run.seed] = run
    reason = f"{label} has their seeds already; NAME=FOLDER tells apart what has the same flags"
    tell_left_out(twice, reason)
    made = {seed: run.made for seed, run in best.items() if run.made}
    rows = {seed: best[seed].rows for seed in sorted(best)}
    return Results(runs[0].command, made, rows)


def fewest_seeds(found: dict[str, Groups]) -> int:
    """Returns how many seeds the smallest group has."""
    sizes = [len(group.rows) for groups in found.values() for group in groups.values()]
    return min(sizes)


# Numbers as words


def number(value: float, scale: float = 0) -> str:
    """Returns four figures or so, or fewer beside a larger value, with a true minus sign."""
    scale = max(abs(value), scale)
    digits = 2
    if scale >= 10:
        digits = 1
    if scale >= 1000:
        digits = 0
    text = f"{value:,.{digits}f}".replace("-", "−")
    separator = " " if abs(value) >= 10_000 else ""
    return text.replace(",", separator)


def count(steps: float) -> str:
    """Returns 500k for 500000, 1.5M for 1500000."""
    nearest = float(f"{steps:.1g}")
    if abs(steps - nearest) < 0.01 * nearest:  # A rollout that does not fit is no reason for 99k.
        steps = nearest
    if steps >= 1e6:
        return f"{steps / 1e6:.3g}M"
    if steps >= 1e3:
        return f"{steps / 1e3:.3g}k"
    return f"{steps:.3g}"


def interval(values: np.ndarray) -> str:
    """Returns [low, high], or a dash for fewer than three seeds: of two it would be their range."""
    if len(values) < 3:
        return "–"
    scale = np.abs(values).max()
    low, high = bootstrap(values)
    return f"[{number(low, scale)}, {number(high, scale)}]"


def of_seeds(n: int) -> str:
    """Returns 1 seed, or 2 seeds."""
    return f"{n} seed{'s' * (n != 1)}"


# The table


def table(env: str, groups: Groups, threshold: float | None = None) -> list[str]:
    """Returns lines of Markdown: a row for each group, best first, then who is better than whom."""
    end = min(last_step(group) for group in groups.values())
    alike = end_alike(groups, end)
    lacking = not_evaluated(groups)
    evaluated = alike and not lacking
    curves = {}
    finals = {}
    for label, group in groups.items():
        steps, returns = shared_part(group, end)
        if not len(steps):
            refuse(f"{env}: no step at which all seeds of {label} have a return")
        curves[label] = (steps, returns)
        finals[label] = group.finals(EVALUATION) if evaluated else returns[:, -1]
    if threshold is None:
        threshold = default_threshold([returns for _, returns in curves.values()])
    column = "evaluation" if evaluated else "last 100 training episodes"
    lines = table_head(f"{env}, {count(end)} steps", column, threshold)
    order = sorted(groups, key=lambda label: -finals[label].mean())
    for label in order:
        steps, returns = curves[label]
        lines.append(table_row(label, steps, returns, finals[label], threshold))
    lines += ["", *who_is_better(order, finals)]
    if not alike:
        reason = f"Runs of {env} have not all come equally far"
        lines.append(f"- {reason}: all is compared at {end:,.0f} steps.")
    elif lacking and any_evaluated(groups):
        names = ", ".join(lacking)
        lines.append(f"- Returns are those of training: not every seed of {names} was evaluated.")
    return lines


def last_step(group: Results) -> float:
    """Returns the last step that all seeds of a group have reached."""
    steps, _ = group.curves()
    return steps[-1]


def end_alike(groups: Groups, end: float) -> bool:
    """Returns whether all runs end at this step, or at most 5 % later."""
    latest = 1.05 * end
    if max(last_step(group) for group in groups.values()) >= latest:
        return False
    last_rows = [rows[-1] for group in groups.values() for rows in group.rows.values()]
    return all(int(row[1]) < latest for row in last_rows)


def not_evaluated(groups: Groups) -> list[str]:
    """Returns the labels of groups of which at least one seed has no evaluation."""
    labels = []
    for label, group in groups.items():
        if np.isnan(group.finals(EVALUATION)).any():
            labels.append(label)
    return labels


def any_evaluated(groups: Groups) -> bool:
    """Returns whether at least one seed was evaluated."""
    evaluations = [group.finals(EVALUATION) for group in groups.values()]
    return np.isfinite(np.concatenate(evaluations)).any()


def shared_part(group: Results, end: float = math.inf) -> Curve:
    """Returns a group's curves from where on every seed has a return, up to a step."""
    steps, returns = group.curves()
    begun = ~np.isnan(returns).any(0)
    kept = begun & (steps <= end)
    return steps[kept], returns[:, kept]


def default_threshold(curves: list[np.ndarray]) -> float:
    """Returns 90 % of the way from the lowest mean at the beginning to the highest at the end."""
    first = min(returns.mean(0)[0] for returns in curves)
    best = max(returns.mean(0)[-1] for returns in curves)
    threshold = first + 0.9 * (best - first)
    return float(f"{threshold:.3g}")


def table_head(title: str, column: str, threshold: float) -> list[str]:
    """Returns the first two lines of the table; column says which returns are compared."""
    heads = [title, "seeds", column, "95 % interval", "IQM", "whole training"]
    heads += [f"steps to {number(threshold)}, median", "seeds that get there"]
    return [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]


def table_row(
    label: str, steps: np.ndarray, returns: np.ndarray, finals: np.ndarray, threshold: float
) -> str:
    """Returns a group's line of the table."""
    scale = np.abs(finals).max()
    mean = number(finals.mean(), scale)
    band = interval(finals)
    middle = number(iqm(finals), scale)
    training = number(mean_over_training(steps, returns), scale)
    reached = [first_step(steps, seed, threshold) for seed in returns]
    median = float(np.median(reached))
    when = count(median) if median < math.inf else "never"
    arrived = np.isfinite(reached).sum()
    cells = [label, f"{len(finals)}", f"**{mean}**", band, middle, training, when, f"{arrived}"]
    return f"| {' | '.join(cells)} |"


def mean_over_training(steps: np.ndarray, returns: np.ndarray) -> float:
    """Returns the mean return of all steps: the area under the mean curve, by its length."""
    if len(steps) == 1:
        return returns.mean()
    return np.trapezoid(returns.mean(0), steps) / np.ptp(steps)


def first_step(steps: np.ndarray, returns: np.ndarray, threshold: float) -> float:
    """Returns the first step at which a seed's return reaches the threshold, or infinity."""
    there = returns >= threshold
    return steps[np.argmax(there)] if there.any() else math.inf


def who_is_better(order: list[str], finals: dict[str, np.ndarray]) -> list[str]:
    """Returns a line for each pair of groups, the better one first."""
    pairs = list(itertools.combinations(order, 2))
    if len(order) > 4:  # All pairs would be too many.
        pairs = [(order[0], other) for other in order[1:]]
    tests = [improvement(finals[a], finals[b]) for a, b in pairs]
    lines = []
    for (a, b), (better, _), p in zip(pairs, tests, corrected([p for _, p in tests]), strict=True):
        chance = f"p = {p:.2g}"
        if min(len(finals[a]), len(finals[b])) < 3:
            chance = "too few seeds for a test"
        probability = f"probability {better:.2f} ({chance})"
        lines.append(f"- A seed of {a} is better than one of {b} with {probability}.")
    if len(pairs) > 1:
        how = f"corrected for {len(pairs)} of them (Benjamini and Hochberg)"
        lines.append(f"- p is of exact rank tests, {how}.")
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
    """Returns all numbers that are drawn of a group, from where on every seed has a return."""
    steps, curves = shared_part(results)
    low, high = bootstrap(curves, 2000)
    return Line(label, steps, curves, curves.mean(0), low, high)


def spread(places: list[float], gap: float, limit: float) -> list[float]:
    """Returns places of labels in rising order, a gap from each other, and none above the limit."""
    groups = []  # Labels of a group touch; they stand around the mean of their places.
    for place in places:
        groups.append([place])
        while len(groups) > 1:
            below, above = groups[-2:]
            distance = np.mean(above) - np.mean(below)
            if distance >= gap * (len(above) + len(below)) / 2:
                break
            groups[-2:] = [below + above]
    apart = []
    for group in groups:
        middle = (len(group) - 1) / 2
        apart += [np.mean(group) + gap * (i - middle) for i in range(len(group))]
    lowered = [min(place, limit - gap * i) for i, place in enumerate(reversed(apart))]
    return lowered[::-1]


def above_axes(points: float) -> dict:
    """Returns where a text stands: so many points above the upper left corner."""
    return dict(xycoords="axes fraction", textcoords="offset points", xytext=(0, points))


def style(axes, title: str, theme: dict, grid: str) -> None:
    """Sets the title, a light grid across one axis, and no box: only what helps to read."""
    from matplotlib.ticker import MaxNLocator

    place = above_axes(6 + (grid == "y") * 1.4 * SIZE)
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
    """Draws every seed, the mean and its interval, for each line its label beside it.

    below is a line of text under the title; others are horizontal lines, each with a label, a value,
    dashes and a colour.
    """
    sizes = {len(line.curves) for line in lines}
    labels = []  # Each is a height, a text and a colour.
    for i, line in enumerate(lines):
        colour = colours[i % len(colours)]
        draw_line(axes, line, colour)
        text = f"{textwrap.fill(line.label, 20)}\n{number(line.mean[-1])}"
        if len(sizes) > 1:
            text += f" ({of_seeds(len(line.curves))})"
        labels.append((line.mean[-1], text, colour))
    for label, value, dashes, colour in others:
        axes.axhline(value, color=colour, linewidth=1, linestyle=dashes)
        labels.append((value, label, colour))
    style(axes, title, theme, "y")
    set_steps(axes, max(line.steps[-1] for line in lines))
    axes.annotate(below, (0, 1), color=theme["muted"], size=SIZE, **above_axes(5))
    draw_labels(axes, sorted(labels))


def draw_line(axes, line: Line, colour: str) -> None:
    """Draws the interval as a band if there are enough seeds, each seed, and the mean."""
    if len(line.curves) > 2:
        axes.fill_between(line.steps, line.low, line.high, color=colour, alpha=0.25, linewidth=0)
    axes.plot(line.steps, line.curves.T, color=colour, linewidth=0.6, alpha=0.45)
    axes.plot(line.steps, line.mean, color=colour, linewidth=2)


def set_steps(axes, last: float) -> None:
    """Lets the x axis end at the last step, with ticks at its ends and in its middle."""
    axes.set_xlim(0, last)
    axes.set_xticks([0, last / 2, last], ["0", count(last / 2), count(last)])
    axes.xaxis.get_majorticklabels()[-1].set_ha("right")  # The labels of lines are beside it.


def draw_labels(axes, labels: list[tuple[float, str, str]]) -> None:
    """Writes labels beside the axes, at their heights as far as they do not touch."""
    low, high = axes.get_ylim()
    heights = [(y - low) / (high - low) for y, _, _ in labels]
    points = axes.get_position().height * axes.figure.get_figheight() * 72
    most_lines = max(text.count("\n") + 1 for _, text, _ in labels)
    gap = (0.7 + most_lines) * SIZE / points
    places = spread(heights, gap, 1 - gap / 2)
    for place, (_, text, colour) in zip(places, labels, strict=True):
        axes.text(1.03, place, text, color=colour, size=SIZE, transform=axes.transAxes, va="center")


def draw(found: dict[str, Groups], theme_name: str):
    """Returns a figure with a panel for each env."""
    from matplotlib.figure import Figure

    theme = THEMES[theme_name]
    columns = min(2, len(found))
    rows = math.ceil(len(found) / columns)
    panel = panel_height(found)
    width = columns * 5.4
    height = rows * (panel + 0.75) + 0.35
    figure = Figure(figsize=(width, height), facecolor=theme["page"])
    grid = figure.subplots(rows, columns, squeeze=False)
    figure.subplots_adjust(left=0.5 / width, right=1 - 1.5 / width)  # Labels are on the right.
    figure.subplots_adjust(top=1 - 0.4 / height, bottom=0.7 / height)
    figure.subplots_adjust(wspace=2 / 3.4, hspace=0.75 / panel)
    for axes, (env, groups) in zip(grid.flat, found.items(), strict=False):
        draw_panel(axes, env, groups, theme_name)
    for axes in grid.flat[len(found) :]:
        axes.set_visible(False)
    text = textwrap.fill(explain_lines(found), int(18 * width))
    figure.text(0.5 / width, 0.08 / height, text, color=theme["muted"], size=SIZE - 0.5)
    return figure


def panel_height(found: dict[str, Groups]) -> float:
    """Returns how many inches a panel needs for the labels beside it."""
    labels = [label for groups in found.values() for label in groups]
    longest = max(len(textwrap.wrap(label, 20)) for label in labels)
    most = max(len(groups) for groups in found.values())
    return max(2.2, most * (1.9 + longest) * SIZE / 72)


def draw_panel(axes, env: str, groups: Groups, theme_name: str) -> None:
    """Draws the groups of an env, and how many seeds they have if all have the same number."""
    theme = THEMES[theme_name]
    lines = [make_line(label, group) for label, group in groups.items()]
    sizes = {len(line.curves) for line in lines}
    below = of_seeds(max(sizes)) if len(sizes) == 1 else ""
    draw_curves(axes, env, below, lines, theme, COLOURS[theme_name])
    axes.set_xlabel("steps", color=theme["muted"], size=SIZE)


def explain_lines(found: dict[str, Groups]) -> str:
    """Returns what the picture's lines are."""
    text = "return of the last 100 training episodes"
    text += " · thin: a seed · thick: mean · band: its 95 % interval"
    if fewest_seeds(found) < 3:
        text += " (of three seeds or more)"
    return text


# The program


def make_text(found: dict[str, Groups], threshold: float | None) -> str:
    """Returns the tables of all envs, and what they are worth with few seeds."""
    tables = []
    for env, groups in found.items():
        lines = table(env, groups, threshold)
        tables.append("\n".join(lines))
    text = "\n\n".join(tables)
    fewest = fewest_seeds(found)
    if fewest < 10:
        warning = "Intervals of fewer than ten seeds are too narrow"
        text += f"\n- {warning}; here are as few as {fewest}."
    return text


def write_files(found: dict[str, Groups], folder: Path) -> None:
    """Writes a CSV file for each group, and pictures for light and for dark pages."""
    for env, groups in found.items():
        for label, group in groups.items():
            name = re.sub(r"[^\w.-]+", "_", f"{env}__{label}")
            write_csv(folder / f"{name}.csv", group)
    try:
        for theme in THEMES:
            path = folder / f"picture_{theme}.png"
            path.unlink(missing_ok=True)  # A link that lies there would be written through.
            draw(found, theme).savefig(path, dpi=160)
    except ImportError as error:
        refuse(f"no picture: {error}; pip install -r tools/requirements.txt")
    except OSError as error:
        refuse(f"no picture: {error}")


def main() -> None:
    """Reads the runs that the command line names, and compares them."""
    parser = Parser(__doc__)
    parser.add_argument("sources", nargs="+", metavar="[NAME=]PATH", help="a folder of runs, or a CSV file")
    threshold = "a return to reach; default: 90 %% of what was gained"
    parser.add_argument("--threshold", type=float, help=threshold)
    parser.add_argument("--out", type=Path, default=Path("runs/compare"), help="default: runs/compare")
    args = parser.parse_args()
    runs = [run for source in args.sources for run in read_source(source)]
    found = make_groups(runs)
    if not found:
        refuse(f"{args.sources[0]}: no run in there has a return that can be compared")
    text = make_text(found, args.threshold)
    args.out.mkdir(parents=True, exist_ok=True)
    print(text)
    write_text(args.out / "table.md", text + "\n")
    write_files(found, args.out)
    print(f"see {args.out}/picture_light.png")


if __name__ == "__main__":
    main()
