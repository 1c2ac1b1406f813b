"""Learning curves: the runs of a table, many seeds each, every seed in the results and none picked.

    python benchmarks/learning_curves.py --list                       # what there is, and what is done
    python benchmarks/learning_curves.py cartpole acrobot             # all seeds of these, one run a core
    python benchmarks/learning_curves.py cartpole --seeds 1-3 --workers 1
    python benchmarks/learning_curves.py                              # the whole table: days

The table is benchmarks/runs.toml. Each run is the script's own command line in a process of its own, with its
folder and its log under runs/benchmarks/<name>/. Whatever stopped this program, the same command goes on:
what is finished is not repeated, what is not is resumed, unless its script has changed since. As soon as a
seed is finished, its rows are in benchmarks/results/<name>.csv; delete that file to make a run anew. Then
benchmarks/plot.py makes pictures, and benchmarks/results.py tables.
"""

import argparse
import fcntl
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from command_line import ROOT, Parser, refuse
from results import (
    TABLE,
    Results,
    command,
    csv_path,
    find,
    format_seeds,
    parse_seeds,
    read_csv,
    read_table,
    write_csv,
)

PACKAGES = ["torch", "gymnasium", "numpy", "ale-py", "mujoco"]
POINTS = 100  # of a curve, in the CSV file
children = set()  # processes to end if this one is


def made(line: list[str]) -> str:
    """What a run was made with: a command line's."""
    # Git ignores a script that was changed for a run; the whole one has the same name.
    scripts = {word for word in line[:2] if word.endswith(".py")} | {Path(line[0]).name}
    return provenance([*scripts, "benchmarks/*.py", "benchmarks/*.patch"], packages(line))


def packages(line: list[str]) -> list[str]:
    """Those whose versions are told of a run."""
    peers = ["stable-baselines3", "sb3-contrib"] if line[0] == "benchmarks/run_sb3.py" else []
    return [*PACKAGES, *peers]


def provenance(paths: list[str], packages: list[str]) -> str:
    """Commit, versions and hardware: what a result may depend on besides its command.

    Of changes that are not committed, those to files that match one of these paths are told.
    """
    versions = [f"{package} {importlib.metadata.version(package)}" for package in packages]
    git = ["git", "-C", str(ROOT)]
    commit = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True).stdout
    status = [*git, "status", "--porcelain", "-uno", "--", *paths]
    changes = subprocess.run(status, capture_output=True).stdout
    commit = f"commit {commit.strip() or 'unknown'}{' with changes' if changes else ''}"
    cpuinfo = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.*)", cpuinfo.read_text()) if cpuinfo.exists() else []
    hardware = f"{os.cpu_count()} cores of {names[0] if names else platform.machine()}"
    return ", ".join([commit, f"Python {platform.python_version()}", *versions, hardware])


def read_curves(run_dir: Path) -> dict[int, dict[str, float]]:
    """{steps: {name: value}} of every iteration, from all TensorBoard files of a run, resumed or not."""
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    curves = {}
    for path in run_dir.glob("events.out.tfevents.*"):
        for event in LegacyEventFileLoader(str(path)).Load():
            for value in event.summary.value:
                curves.setdefault(event.step, {})[value.tag] = value.simple_value
    return {steps: curves[steps] for steps in sorted(curves) if "episode_return" in curves[steps]}


def write(value: float) -> str:
    return f"{value:.2f}" if abs(value) >= 10 else f"{value:.4f}"


def make_rows(seed: int, run_dir: Path, evaluation: str) -> list[list[str]]:
    """The lines of the CSV file for a finished run: about 100 points, and the evaluation beside the last."""
    curves = read_curves(run_dir)
    args = json.loads((run_dir / "args.json").read_text())
    rollout = args["num_envs"] * args["num_steps"]
    if not curves or list(curves)[-1] != args["total_timesteps"] // rollout * rollout:
        raise RuntimeError(
            f"the TensorBoard events in {run_dir} lack the end of the run; delete it to start anew"
        )
    returns = [float(episode_return) for episode_return in evaluation.split()]
    rows = []
    for steps in list(curves)[:: -max(1, len(curves) // POINTS)][::-1]:  # the last one is always among them
        episode_return, entropy = (curves[steps].get(name) for name in ("episode_return", "entropy"))
        entropy = "" if entropy is None else write(entropy)
        rows.append([str(seed), str(steps), write(episode_return), "", entropy])
    rows[-1][3] = write(sum(returns) / len(returns))
    return rows


def call(line: list[str], log) -> None:
    """Run a script with its output in the log; raise if it fails."""
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    child = subprocess.Popen([sys.executable, *line], cwd=ROOT, env=env, stdout=log, stderr=log)
    children.add(child)
    code = child.wait()
    children.discard(child)
    if code:
        log.seek(0)
        last = (log.read().strip().splitlines() or [""])[-1]
        raise RuntimeError(f"exit code {code}, {last} (see {log.name})")


def train(line: list[str], seed: int, folder: Path) -> tuple[list[list[str]], str]:
    """Train with one seed, or go on with it -> its rows of the CSV file, and what it was made with."""
    run_dir = folder / str(seed)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{seed}.log").open("a+") as log:
        fcntl.flock(log, fcntl.LOCK_EX)  # a run that a killed call has left behind comes to its end first
        log.seek(0)
        text = log.read()
        scripts = b"".join((ROOT / word).read_bytes() for word in line[:2] if word.endswith(".py"))
        head = {"line": line, "script": hashlib.sha256(scripts).hexdigest()}
        try:
            begun = json.loads(text.partition("\n")[0])
        except json.JSONDecodeError:
            begun = {}
        if not head.items() <= begun.items():  # nothing there, or of another script or other flags
            if (run_dir / "checkpoint.pt").exists():  # of hours, perhaps
                old = run_dir.rename(f"{run_dir}-{time.strftime('%Y%m%d-%H%M%S')}")
                print(f"{run_dir} was made by another script, or with other flags: moved to {old.name}")
            shutil.rmtree(run_dir, ignore_errors=True)
            begun = head | {"made": made(line)}
            log.truncate(0)
            log.write(json.dumps(begun) + "\n")
            log.flush()

        def evaluation() -> str:
            log.seek(0)
            found = re.findall(r"^returns of evaluation:(.*)\nmean return .*\n", log.read(), re.M)
            return found[-1] if found else ""

        if not evaluation():
            if (run_dir / "checkpoint.pt").exists():
                call([*line, "--resume", str(run_dir)], log)
            else:
                shutil.rmtree(run_dir, ignore_errors=True)  # killed before there was anything to go on with
                call([*line, "--seed", str(seed), "--run-dir", str(run_dir)], log)
        if not evaluation():  # killed between the end of training and that of its evaluation
            call([*line, "--evaluate", str(run_dir)], log)
        return make_rows(seed, run_dir, evaluation()), begun["made"]


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


def plan(table: dict, names: list[str], seeds: list[int], path: Path) -> list[tuple[str, int]]:
    """Which seeds of which runs are still to do; mistakes are told here, before any work."""
    jobs = []
    for name in names:
        run = find(table["runs"], name, "run")
        how, there = shlex.join(command(run)), read_csv(csv_path(name, path))
        wanted = seeds or parse_seeds(run["seeds"])
        missing = [seed for seed in wanted if seed not in there.rows]
        if there.rows and there.command != how and (there.command or missing):
            other = (
                f"made with {there.command}, not {how}" if there.command else "does not say how it was made"
            )
            refuse(f"{csv_path(name, path)} {other}; delete it to make it anew, or give the run another name")
        if "without" in run:
            leave_out(run["without"], ROOT / run["script"], ROOT / command(run)[0])
        if "patch" in run:
            patch = ROOT / f"benchmarks/{run['patch']}.patch"
            apply_patch(patch, ROOT / run["script"], ROOT / command(run)[0])
        for script in {command(run)[0], run.get("like", command(run)[0])}:
            if not (ROOT / script).exists():
                refuse(f"{path}: run {name}: there is no {script}")
        for package in packages(command(run)) if missing else []:
            try:
                importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                refuse(f"run {name}: {package} is not installed; pip install -r benchmarks/requirements.txt")
        jobs += [(name, seed) for seed in missing]
        if len(missing) < len(wanted):
            print(f"{name}: seeds {format_seeds(set(wanted) - set(missing))} are there", flush=True)
    return jobs


def show(table: dict, path: Path) -> None:
    """What the table has, and how many of its seeds are there."""
    for name, run in table["runs"].items():
        there, wanted = len(read_csv(csv_path(name, path)).rows), len(parse_seeds(run["seeds"]))
        print(f"{name:23} {there:3} of {wanted:3} seeds  python {shlex.join(command(run))}")


def run_all(table: dict, jobs: list[tuple[str, int]], args: argparse.Namespace) -> bool:
    """Do all jobs, several at a time, and write the rows of each as it ends -> whether none failed."""
    failed = False
    with ThreadPoolExecutor(args.workers) as pool:
        lines = {name: command(table["runs"][name]) for name, _ in jobs}
        futures = {
            pool.submit(train, lines[name], seed, args.runs / name): (name, seed) for name, seed in jobs
        }
        try:
            for number, future in enumerate(as_completed(futures), 1):
                name, seed = futures[future]
                where = f"[{number}/{len(jobs)}] {name}, seed {seed}:"
                try:
                    rows, how = future.result()
                except RuntimeError as error:
                    failed = True
                    print(f"{where} {error}", file=sys.stderr, flush=True)
                    continue
                there = read_csv(csv_path(name, args.table))
                new = Results(shlex.join(lines[name]), there.made | {seed: how}, there.rows | {seed: rows})
                write_csv(csv_path(name, args.table), new)
                print(f"{where} last 100 episodes {rows[-1][2]}, evaluation {rows[-1][3]}", flush=True)
        except BaseException:  # Ctrl-C, SIGTERM, a full disk: nothing new begins, what runs is ended
            pool.shutdown(wait=False, cancel_futures=True)
            for child in list(children):
                child.terminate()
            raise
    return not failed


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
    table = read_table(args.table)
    if args.list:
        return show(table, args.table)
    if args.workers < 1:
        refuse(f"--workers {args.workers} is not at least 1")
    args.runs = args.runs.resolve()
    seeds = parse_seeds(args.seeds) if args.seeds else []
    jobs = plan(table, args.names or list(table["runs"]), seeds, args.table)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        raise SystemExit(0 if run_all(table, jobs, args) else 1)
    except KeyboardInterrupt:
        raise SystemExit("stopped; the same command goes on") from None


if __name__ == "__main__":
    main()
