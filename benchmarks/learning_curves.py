"""Learning curves: the runs of a table, many seeds each, every seed in the results and none picked.

    python benchmarks/learning_curves.py --list             # what there is, and what is done
    python benchmarks/learning_curves.py cartpole acrobot   # all seeds of these, one run a core
    python benchmarks/learning_curves.py                    # the whole table: days

The table is benchmarks/runs.toml. tools/sweep.py does the runs, in runs/benchmarks/NAME__seed=N: whatever
stopped this program, the same command goes on. As soon as a seed is finished, its rows are in
benchmarks/results/NAME.csv. To make a run anew, delete that file and the run's folders in runs/benchmarks.
Then benchmarks/plot.py makes pictures, and benchmarks/results.py tables.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

from common import ROOT, Parser, compare, find, provenance, refuse, sweep
from compare import count, number

TABLE = ROOT / "benchmarks/runs.toml"
INHERITED = {"script", "env", "flags", "seeds", "eval_episodes"}  # by a run that is like another
SAME = "last 100 training episodes"  # the statistic of episode_return, as published figures name it
KEYS = ("script", "patch", "env", "flags", "seeds", "eval_episodes", "title", "note", "published")  # of a run


def read_table(path: Path = TABLE) -> dict[str, dict[str, dict]]:
    """Runs, pictures and published figures by name; what is `like` another run has its keys and its own."""
    try:
        table = {"pictures": {}, "published": {}} | tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        refuse(f"{path}: {error}")
    runs = {}
    for name, run in table["runs"].items():
        if other := run.pop("like", None):
            original = find(runs, other, f"run {name}: like")
            run = {key: original[key] for key in original if key in INHERITED} | run
        for key in run:
            find(dict.fromkeys(KEYS), key, f"run {name}: key")
        if "published" in run:
            known = table["published"]
            run["published"] = [find(known, x, f"run {name}: published") for x in run["published"]]
        runs[name] = {key: run[key] for key in KEYS if key in run}
    return table | {"runs": runs}


def command(run: dict) -> list[str]:
    """The command line of a run after `python`, without seed and folder: it says what is trained."""
    script = shlex.split(run["script"])
    if "patch" in run:
        script = [f"runs/{run['patch']}/{script[0]}"]  # plan() writes it
    flags = shlex.split(run.get("flags", ""))
    return [*script, "--env-id", run["env"], *flags, "--eval-episodes", str(run.get("eval_episodes", 100))]


def csv_path(name: str, table: Path = TABLE) -> Path:
    """Where the results of a run are: in the folder results/ beside the table."""
    return table.parent / f"results/{name}.csv"


def is_peer(run: dict) -> bool:
    """Whether it is stable-baselines3's or sb3-contrib's."""
    return run["script"].startswith("benchmarks/run_sb3.py ")


def script_name(run: dict) -> str:
    """What the reader knows a script by."""
    if is_peer(run):
        like = run["script"].split()[1]
        return f"{'sb3-contrib' if 'trpo' in like else 'stable-baselines3'}, as {like}"
    return run["script"] + (f", {run['patch'].replace('_', ' ')}" if "patch" in run else "")


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


def apply_patch(patch: Path, script: Path, target: Path) -> None:
    """Write the script as the patch changes it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(script, target)
    # Inside a repository, git would look for the patch's files at its top.
    env = os.environ | {"GIT_CEILING_DIRECTORIES": str(target.parent.parent)}
    git = ["git", "apply", str(patch)]
    done = subprocess.run(git, cwd=target.parent, env=env, capture_output=True, text=True)
    if done.returncode:
        refuse(f"{patch.name} does not fit {script.name}: {done.stderr}")


def plan(table: dict, names: list[str], path: Path, runs: Path) -> dict[Path, tuple[str, int]]:
    """{folder: run, seed} of what is still to do; mistakes are told here, before any work."""
    jobs, todo, made = {}, {}, provenance()
    for name in names:
        run = find(table["runs"], name, "run")
        line, there = command(run), compare.read_csv(csv_path(name, path))
        missing = [seed for seed in sweep.parse_seeds(run["seeds"]) if seed not in there.rows]
        how = shlex.join(line)
        if there.rows and there.command != how and (there.command or missing):
            refuse(f"{csv_path(name, path)} was made with {there.command or 'nobody knows what'}, not {how}")
        if "patch" in run:
            apply_patch(ROOT / f"benchmarks/{run['patch']}.patch", ROOT / run["script"], ROOT / line[0])
        if not (ROOT / line[0]).exists():
            refuse(f"run {name}: there is no {line[0]}")
        for seed in missing:
            folder = runs / f"{name}__seed={seed}"
            peer = ["--run-dir", str(folder / "run")] if is_peer(run) else []  # it cannot be resumed
            jobs[folder] = sweep.make_job(line[0], [*line[1:], *peer], seed, not peer, made)
            todo[folder] = name, seed
    sweep.prepare(jobs)
    return todo


def collect(table: dict, todo: dict[Path, tuple[str, int]], path: Path) -> None:
    """Write the rows of each run that has been finished into its CSV file; it is not to do any more."""
    for folder in [folder for folder in todo if sweep.is_finished(folder)]:
        name, seed = todo.pop(folder)
        [events] = {file.parent for file in folder.rglob("*tfevents*")}
        run, there = compare.read_folder(events), compare.read_csv(csv_path(name, path))
        how = shlex.join(command(table["runs"][name]))
        made, rows = there.made | {seed: run.made}, there.rows | {seed: run.rows}
        compare.write_csv(csv_path(name, path), compare.Results(how, made, rows))
        returns = f"last 100 episodes {run.rows[-1][2]}, evaluation {run.rows[-1][3]}"
        print(f"{name}, seed {seed}: {returns}", flush=True)


def main() -> None:
    """Read the command line, and do what it says."""
    parser = Parser(__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="runs of the table; default: all")
    parser.add_argument("--workers", type=sweep.positive, default=sweep.cores(), help="runs at the same time")
    parser.add_argument("--table", type=Path, default=TABLE, help="another table; results/ is beside it")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs/benchmarks", help="where run folders go")
    parser.add_argument("--list", action="store_true", help="show the table, run nothing")
    args = parser.parse_args()
    path, runs = args.table.resolve(), args.runs.resolve()
    os.chdir(ROOT)  # where the scripts run
    table = read_table(path)
    if args.list:
        for name, run in table["runs"].items():
            there, wanted = compare.read_csv(csv_path(name, path)).rows, sweep.parse_seeds(run["seeds"])
            print(f"{name:23} {len(there):3} of {len(wanted):3} seeds  python {shlex.join(command(run))}")
        return
    names = args.names or list(table["runs"])
    todo = plan(table, names, path, runs)
    if not todo:
        print(f"all seeds are there; {parser.prog} --help says how to make them anew")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    collect(table, todo, path)
    failed = sweep.run_all(list(todo), args.workers, lambda: collect(table, todo, path))
    collect(table, todo, path)
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
