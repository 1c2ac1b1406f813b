"""Which details matter? One of them is changed at a time, on five envs, with the same seeds for each change.

    python benchmarks/ablation.py                                  # all that is missing: days of a core
    python benchmarks/ablation.py --envs CartPole-v1 --changes nothing clip    # 20 runs, ten minutes
    python benchmarks/ablation.py --list                           # what there is, and what is done

The table is benchmarks/ablation.toml. tools/sweep.py does the runs, in runs/ablation; whatever stopped this
program, the same command goes on. A finished run is a row of benchmarks/results/ablation.csv: the return of
the last episodes in training, its mean over all of training, and that of 20 episodes of evaluation.
"""

import csv
import os
import shlex
import signal
import sys
import tomllib
from pathlib import Path

import numpy as np
from command_line import ROOT, Parser, compare, refuse, sweep

TABLE = tomllib.loads((ROOT / "benchmarks/ablation.toml").read_text())
RESULTS = ROOT / "benchmarks/results/ablation.csv"
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
        if text.count(old) != 1:
            refuse(f"{name}: {script} has {text.count(old)} times {old!r}")
        text = text.replace(old, new)
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


def read() -> list[dict[str, str]]:
    """The rows that are there."""
    return [*csv.DictReader(RESULTS.open())] if RESULTS.exists() else []


def of(rows: list[dict[str, str]], env: str, change: str, column: str) -> np.ndarray:
    """A number of each seed, in their order."""
    found = [row for row in rows if (row["env"], row["change"]) == (env, change)]
    return np.array([float(row[column]) for row in sorted(found, key=lambda row: int(row["seed"]))])


def collect(todo: dict[Path, dict]) -> None:
    """Make rows of the runs that are finished; they are not to do any more."""
    rows = read()
    for folder in [folder for folder in todo if sweep.is_finished(folder)]:
        row, run = todo.pop(folder), compare.read_folder(folder)
        curve = np.array([[x[1], x[2]] for x in run.rows], dtype=float)
        row |= {"final": f"{curve[-1, 1]:.6g}", "whole": f"{np.nanmean(curve[:, 1]):.6g}"}
        rows.append(row | {"evaluation": f"{float(run.rows[-1][3]):.6g}", "made": run.made})
    order = {name: k for k, name in enumerate([*TABLE["envs"], *TABLE["changes"]])}
    rows.sort(key=lambda row: (order[row["env"]], order[row["change"]], int(row["seed"])))
    with open(f"{RESULTS}.part", "w") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    os.replace(file.name, RESULTS)


def main() -> None:
    """Read the command line, and do what it says."""
    parser = Parser(__doc__)
    parser.add_argument("--envs", nargs="+", default=list(TABLE["envs"]), choices=list(TABLE["envs"]))
    parser.add_argument(
        "--changes", nargs="+", default=list(TABLE["changes"]), choices=list(TABLE["changes"])
    )
    parser.add_argument("--seeds", help="like 1-3; default: those of the table")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="runs at a time")
    parser.add_argument("--list", action="store_true", help="show what is done, run nothing")
    args = parser.parse_args()
    os.chdir(ROOT)
    rows, todo, jobs = read(), {}, {}
    for env in args.envs:
        for name in filter(lambda name: is_possible(name, env), args.changes):
            line, seeds = command(name, env), sweep.parse_seeds(args.seeds or TABLE["envs"][env]["seeds"])
            there = [r for r in rows if (r["env"], r["change"]) == (env, name) and int(r["seed"]) in seeds]
            if any(row["command"] != shlex.join(line) for row in there):
                refuse(f"{RESULTS}: {name} in {env} was made with another command; delete its rows first")
            if args.list:
                print(f"{len(there):3} of {len(seeds):3}  {env:15} {name:14} {change_in(name, env)['what']}")
            for seed in set(seeds) - {int(row["seed"]) for row in there}:
                folder = Path(f"runs/ablation/{env}__{name}__{seed}").absolute()
                jobs[folder] = sweep.make_job(line[0], line[1:], seed, True, sweep.provenance())
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
