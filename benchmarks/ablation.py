"""Which details matter? One of them is changed at a time, on five envs, with the same seeds for each change.

    python benchmarks/ablation.py                                  # all that is missing: days of a core
    python benchmarks/ablation.py --envs CartPole-v1 --changes nothing clip    # 20 runs, ten minutes
    python benchmarks/ablation.py --list                           # what there is, and what is done

The table is benchmarks/ablation.toml. tools/sweep.py does the runs, in runs/ablation; whatever stopped this
program, the same command goes on. A finished run is a row of results/ablation_runs.csv: the return of
the last episodes in training, its mean over all of training, and that of 20 episodes of evaluation. Then
benchmarks/results.py writes the page, and benchmarks/plot.py the picture.
"""

import os
import re
import shlex
import signal
import sys
import tomllib
from pathlib import Path

import numpy as np
from common import (
    RESULTS,
    ROOT,
    SIZE,
    WIDTH,
    Parser,
    compare,
    markdown,
    provenance,
    read_dicts,
    refuse,
    replace_once,
    subplots,
    sweep,
    write_rows,
)
from compare import bootstrap, improvement, interval, number, style

TABLE = tomllib.loads((ROOT / "benchmarks/ablation.toml").read_text())
CSV = RESULTS / "ablation_runs.csv"
NOTES = RESULTS / "ablation.csv"  # for the notes of the reading room; benchmarks/results.py writes it
COLUMNS = ["env", "change", "seed", "final", "whole", "evaluation", "command", "made"]


def change_in(name: str, env: str) -> dict:
    """What a change is in an env: tag, what, flags, edits."""
    change = TABLE["changes"][name]
    return {"flags": "", "edits": []} | change | change.get("in", {}).get(env, {})


def is_possible(name: str, env: str) -> bool:
    change = TABLE["changes"][name]
    return change.get("script", TABLE["envs"][env]["script"]) == TABLE["envs"][env]["script"] and (
        env not in change.get("skip", [])
    )


def edited(name: str, script: str) -> str:
    """The script with the change in it."""
    text = (ROOT / script).read_text()
    for old, new in TABLE["changes"][name].get("edits", []):
        text = replace_once(text, old, new, f"{name}: {script}")
    return text


def command(name: str, env: str) -> list[str]:
    """The command line of a change after `python`, without seed and folder; an edited script is written."""
    script, change = TABLE["envs"][env]["script"], change_in(name, env)
    if change["edits"]:
        text, script = edited(name, script), f"runs/ablation/scripts/{name}/{script}"
        Path(script).parent.mkdir(parents=True, exist_ok=True)
        Path(script).write_text(text)
    flags = [*shlex.split(TABLE["envs"][env]["flags"]), *shlex.split(change["flags"])]  # the last one holds
    return [script, "--env-id", env, *flags, "--eval-episodes", "20"]


def of(rows: list[dict[str, str]], env: str, change: str, column: str) -> np.ndarray:
    """A number of each seed, in their order."""
    found = [row for row in rows if (row["env"], row["change"]) == (env, change)]
    return np.array([float(row[column]) for row in sorted(found, key=lambda row: int(row["seed"]))])


def collect(todo: dict[Path, dict]) -> None:
    """Make rows of the runs that are finished; they are not to do any more."""
    rows = read_dicts(CSV)
    for folder in [folder for folder in todo if sweep.is_finished(folder)]:
        row, run = todo.pop(folder), compare.read_folder(folder)
        curve = np.array([[x[1], x[2]] for x in run.rows], dtype=float)
        row |= {"final": f"{curve[-1, 1]:.6g}", "whole": f"{np.nanmean(curve[:, 1]):.6g}"}
        rows.append(row | {"evaluation": f"{float(run.rows[-1][3]):.6g}", "made": run.made})
    order = {name: k for k, name in enumerate([*TABLE["envs"], *TABLE["changes"]])}
    rows.sort(key=lambda row: (order[row["env"]], order[row["change"]], int(row["seed"])))
    write_rows(CSV, COLUMNS, ([row[name] for name in COLUMNS] for row in rows))


def complete(rows: list[dict[str, str]], env: str) -> list[str]:
    """The changes in an env of which all seeds are there, if those without any change are."""
    wanted = len(sweep.parse_seeds(TABLE["envs"][env]["seeds"]))
    done = [name for name in TABLE["changes"] if len(of(rows, env, name, "whole")) == wanted]
    return done if "nothing" in done else []


def table(env: str, what: str) -> str:
    """Details, or changes of one flag, by how much is lost: over all of training, and by the final policy."""
    rows, tags, lines = read_dicts(CSV), r"[DE]\d+" if what == "details" else what, []
    base = of(rows, env, "nothing", "whole")
    names = [x for x in complete(rows, env) if x == "nothing" or re.fullmatch(tags, change_in(x, env)["tag"])]
    names.sort(key=lambda name: -of(rows, env, name, "whole").mean())
    for name in names:
        change, whole = change_in(name, env), of(rows, env, name, "whole")
        better, low, high = improvement(whole, base)
        chance = "" if name == "nothing" else f"{better:.2f} [{low:.2f}, {high:.2f}]"
        evaluation = of(rows, env, name, "evaluation")
        both = [f"{number(x.mean())} {interval(x)}" for x in (whole, evaluation)]
        lines.append([change["tag"], change["what"], *both, chance])
    heads = ["tag", "change", "all of training", "final policy", "better than unchanged"]
    return markdown(heads, lines)


def notes() -> str:
    """Of each change with the tag of a detail: what a mean return becomes, for the notes beside the code."""
    rows, lines = read_dicts(CSV), ["tag,env,what,with,without"]
    for env in TABLE["envs"]:
        for name in complete(rows, env):
            change = change_in(name, env)
            if re.fullmatch(r"[DE]\d+", change["tag"]):
                means = [of(rows, env, x, "whole").mean() for x in ("nothing", name)]
                what = change["what"].replace(",", ";")
                lines.append(",".join([change["tag"], env, what, *(number(x, 100) for x in means)]))
    return "\n".join(lines) + "\n"


CURVES = {"clip_coef": "the clip, ε", "update_epochs": "epochs"}  # tags of changes that are numbers


def draw(theme: dict):
    """A panel for each env: returns over all of training with each detail changed; below, both curves."""
    rows = read_dicts(CSV)
    done = {env: complete(rows, env) for env in TABLE["envs"] if complete(rows, env)}
    details = {}  # name: what it is, in the order of the first env that has it
    for env, names in done.items():
        for name in sorted(names, key=lambda name: of(rows, env, name, "whole").mean()):  # noqa: B023
            if re.fullmatch(r"[DE]\d+", change_in(name, env)["tag"]):
                details.setdefault(name, change_in(name, env)["what"])
    size = (WIDTH, 0.24 * len(details) + 3.4)
    figure, grid = subplots(2, len(done), size, squeeze=False, height_ratios=[2.2, 1])
    figure.subplots_adjust(left=0.36, right=0.98, top=0.94, bottom=0.07, hspace=0.34, wspace=0.12)
    for env, (above, below) in zip(done, grid.T, strict=True):
        base, script = of(rows, env, "nothing", "whole"), TABLE["envs"][env]["script"]
        style(above, env, theme, "x")
        low, high = bootstrap(base)
        above.axvspan(low, high, color=theme["muted"], alpha=0.2, linewidth=0)
        for y, name in enumerate(details):
            values = of(rows, env, name, "whole")
            if name not in done[env]:
                continue
            low, high = bootstrap(values)
            worse = improvement(values, base)[2] < 0.5
            colour = theme["other"] if worse else theme["ours"]
            above.plot([low, high], [y, y], color=colour, linewidth=1.6)
            above.plot(values, [y] * len(values), "|", color=colour, markersize=5, alpha=0.5)
            above.plot(values.mean(), y, "o", color=colour, markersize=4.5)
        words = details.values() if above is grid[0, 0] else [""] * len(details)
        above.set_yticks(range(len(details)), words)
        above.set_ylim(-0.6, len(details) - 0.4)
        style(below, "", theme, "y")
        for tag, colour in zip(CURVES, (theme["ours"], theme["other"]), strict=True):
            points = {1.0: base}  # in units of the default
            default = {"clip_coef": 0.2, "update_epochs": 4 if "discrete" in script else 10}[tag]
            for name in done[env]:
                change = change_in(name, env)
                if change["tag"] == tag:
                    points[float(change["what"]) / default] = of(rows, env, name, "whole")
            if len(points) > 1:
                x = sorted(points)
                below.plot(x, [points[k].mean() for k in x], "o-", color=colour, linewidth=1.6, markersize=3)
                bands = np.array([bootstrap(points[k]) for k in x]).T
                below.fill_between(x, *bands, color=colour, alpha=0.2, linewidth=0)
                below.annotate(
                    CURVES[tag], (x[-1], points[x[-1]].mean()), xytext=(0, 5 if tag != "clip_coef" else -11),
                    textcoords="offset points", color=colour, size=SIZE, ha="right",
                )  # fmt: skip
        below.set_visible(bool(below.lines))
        below.set_xscale("log")
        below.set_xticks([0.25, 0.5, 1, 2.5, 5], ["¼", "½", "default", "2½", "5 ×"])
        below.minorticks_off()
    words = "point: mean of the seeds, each a stroke; line: its 95 % interval; grey: nothing changed;"
    words += " orange, above: a seed is probably worse"
    figure.text(0.01, 0.015, words, color=theme["muted"], size=SIZE)
    return figure


TABLES = {"ablation": table}
PICTURES = {"ablation": (draw, [CSV, TABLE])}


def main() -> None:
    """Read the command line, and do what it says."""
    parser = Parser(__doc__)
    parser.add_argument("--envs", nargs="+", default=list(TABLE["envs"]), choices=list(TABLE["envs"]))
    parser.add_argument(
        "--changes", nargs="+", default=list(TABLE["changes"]), choices=list(TABLE["changes"])
    )
    parser.add_argument("--seeds", help="like 1-3; default: those of the table")
    parser.add_argument("--workers", type=sweep.positive, default=os.cpu_count(), help="runs at a time")
    parser.add_argument("--list", action="store_true", help="show what is done, run nothing")
    args = parser.parse_args()
    os.chdir(ROOT)
    rows, todo, jobs = read_dicts(CSV), {}, {}
    for env in args.envs:
        for name in filter(lambda name: is_possible(name, env), args.changes):
            line, seeds = command(name, env), sweep.parse_seeds(args.seeds or TABLE["envs"][env]["seeds"])
            there = [r for r in rows if (r["env"], r["change"]) == (env, name) and int(r["seed"]) in seeds]
            if any(row["command"] != shlex.join(line) for row in there):
                refuse(f"{CSV}: {name} in {env} was made with another command; delete its rows first")
            if args.list:
                print(f"{len(there):3} of {len(seeds):3}  {env:15} {name:14} {change_in(name, env)['what']}")
            for seed in set(seeds) - {int(row["seed"]) for row in there}:
                folder = Path(f"runs/ablation/{env}__{name}__{seed}").absolute()
                jobs[folder] = sweep.make_job(line[0], line[1:], seed, True, provenance())
                todo[folder] = {"env": env, "change": name, "seed": seed, "command": shlex.join(line)}
    if args.list:
        return
    sweep.prepare(jobs)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    collect(todo)
    failed = sweep.run_all(list(todo), args.workers, lambda: collect(todo))
    collect(todo)
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
