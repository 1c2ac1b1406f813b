"""Learning curves: the runs of a table, many seeds each, every seed in the results and none picked.

    python benchmarks/learning_curves.py --list                       # what there is, and what is done
    python benchmarks/learning_curves.py cartpole acrobot             # all seeds of these, one run a core
    python benchmarks/learning_curves.py cartpole --seeds 1-3 --workers 1
    python benchmarks/learning_curves.py                              # the whole table: days

The table is benchmarks/runs.toml. tools/sweep.py does the runs, in runs/benchmarks/NAME__seed=N: whatever
stopped this program, the same command goes on. As soon as a seed is finished, its rows are in
benchmarks/results/NAME.csv; delete that file to make a run anew. Then benchmarks/plot.py makes pictures, and
benchmarks/results.py tables.
"""

import difflib
import importlib.metadata
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

from command_line import ROOT, Parser, compare, refuse, sweep

TABLE = ROOT / "benchmarks/runs.toml"
PACKAGES = ["torch", "gymnasium", "numpy", "ale-py", "mujoco"]
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


# The table of runs


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
        sweep.parse_seeds(run["seeds"])
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


def command(run: dict) -> list[str]:
    """The command line of a run after `python`, without seed and folder: it says what is trained."""
    script = [run["script"]]
    if run["script"] == "sb3":
        script = ["benchmarks/run_sb3.py", run["like"]]
    if "without" in run:  # which plan() writes
        script = [f"runs/without_{run['without']}/{run['script']}"]
    if "patch" in run:  # this one, too
        script = [f"runs/{run['patch']}/{run['script']}"]
    flags = shlex.split(run.get("flags", ""))
    return [*script, "--env-id", run["env"], *flags, "--eval-episodes", str(run.get("eval_episodes", 100))]


def csv_path(name: str, table: Path = TABLE) -> Path:
    """Where the results of a run are: in the folder results/ beside the table."""
    return table.parent / "results" / f"{name}.csv"


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


# Runs, and their CSV files


def packages(line: list[str]) -> list[str]:
    """Those whose versions are told of a run."""
    return PACKAGES + ["stable-baselines3", "sb3-contrib"] * (line[0] == "benchmarks/run_sb3.py")


def leave_out(tag: str, script: Path, target: Path) -> None:
    """Write the script without the one line that has the tag of a detail."""
    lines = script.read_text().splitlines(keepends=True)
    kept = [line for line in lines if not re.search(rf"#.*\[{tag}\]", line)]
    if len(kept) != len(lines) - 1:
        refuse(f"{script.name} has {len(lines) - len(kept)} lines with the tag [{tag}], not one")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("".join(kept))


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


def plan(table: dict, names: list[str], seeds: list[int], path: Path, runs: Path) -> dict[Path, tuple]:
    """{folder: run, seed} of what is still to do; mistakes are told here, before any work."""
    jobs, todo = {}, {}
    for name in names:
        run = find(table["runs"], name, "run")
        line, there = command(run), compare.read_csv(csv_path(name, path))
        how, wanted = shlex.join(line), seeds or sweep.parse_seeds(run["seeds"])
        missing = [seed for seed in wanted if seed not in there.rows]
        if there.rows and there.command != how and (there.command or missing):
            other = (
                f"made with {there.command}, not {how}" if there.command else "does not say how it was made"
            )
            refuse(f"{csv_path(name, path)} {other}; delete it to make it anew, or give the run another name")
        if "without" in run:
            leave_out(run["without"], ROOT / run["script"], ROOT / line[0])
        if "patch" in run:
            apply_patch(ROOT / f"benchmarks/{run['patch']}.patch", ROOT / run["script"], ROOT / line[0])
        for script in {line[0], run.get("like", line[0])}:
            if not (ROOT / script).exists():
                refuse(f"{path}: run {name}: there is no {script}")
        for package in packages(line) if missing else []:
            try:
                importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                refuse(f"run {name}: {package} is not installed; pip install -r benchmarks/requirements.txt")
        made = sweep.provenance(packages(line))
        for seed in missing:
            folder, peer = runs / f"{name}__seed={seed}", run["script"] == "sb3"
            own = ["--run-dir", str(folder / "run")] if peer else []  # it cannot be resumed
            jobs[folder] = sweep.make_job(line[0], [*line[1:], *own], seed, not peer, made)
            todo[folder] = name, seed
        if len(missing) < len(wanted):
            print(f"{name}: seeds {compare.format_seeds(set(wanted) - set(missing))} are there", flush=True)
    sweep.prepare(jobs)
    return todo


def collect(table: dict, todo: dict[Path, tuple], path: Path) -> None:
    """Write the rows of each run that has been finished into its CSV file; it is not to do any more."""
    for folder in [folder for folder in todo if sweep.is_finished(folder)]:
        name, seed = todo.pop(folder)
        [events] = {file.parent for file in folder.rglob("*tfevents*")}
        run, there = compare.read_folder(events), compare.read_csv(csv_path(name, path))
        how = shlex.join(command(table["runs"][name]))
        made, rows = there.made | {seed: run.made}, there.rows | {seed: run.rows}
        compare.write_csv(csv_path(name, path), compare.Results(how, made, rows))
        print(
            f"{name}, seed {seed}: last 100 episodes {run.rows[-1][2]}, evaluation {run.rows[-1][3]}",
            flush=True,
        )


def show(table: dict, path: Path) -> None:
    """What the table has, and how many of its seeds are there."""
    for name, run in table["runs"].items():
        there, wanted = len(compare.read_csv(csv_path(name, path)).rows), len(sweep.parse_seeds(run["seeds"]))
        print(f"{name:23} {there:3} of {wanted:3} seeds  python {shlex.join(command(run))}")


def main() -> None:
    """Read the command line, and do what it says."""
    parser = Parser(__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="runs of the table; default: all")
    parser.add_argument("--seeds", default="", help="like 1-10 or 1,3,5-7; default: those in the table")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="runs at the same time")
    parser.add_argument("--table", type=Path, default=TABLE, help="another table; results/ is beside it")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs/benchmarks", help="where run folders go")
    parser.add_argument("--list", action="store_true", help="show the table, run nothing")
    args = parser.parse_args()
    args.table, args.runs = args.table.resolve(), args.runs.resolve()
    os.chdir(ROOT)  # where the scripts run
    table = read_table(args.table)
    if args.list:
        return show(table, args.table)
    if args.workers < 1:
        refuse(f"--workers {args.workers} is not at least 1")
    seeds = sweep.parse_seeds(args.seeds) if args.seeds else []
    todo = plan(table, args.names or list(table["runs"]), seeds, args.table, args.runs)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    collect(table, todo, args.table)
    failed = sweep.run_all(list(todo), args.workers, lambda: collect(table, todo, args.table))
    collect(table, todo, args.table)
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
