"""Many runs: scripts, a grid of flags, seeds. Killed and started again, it does what is missing.

    python tools/sweep.py my_ppo.py ppo_discrete.py --seeds 1-5    # flags for all runs come last, after --
    python tools/sweep.py ppo_discrete.py --grid learning_rate=3e-4,1e-3 gamma=0.98,0.99 -- --ent-coef 0
    python tools/sweep.py sweep.toml            # the same from a file: scripts, seeds, flags, out, [grid]
    python tools/sweep.py sweep.toml --print    # one command a line, for xargs, GNU parallel or a Slurm array

Any script that has --seed will do. Each run has one thread, and a folder that is named after what differs,
with all that the script prints in log.txt. Finished runs stay. Others are resumed where a script has
--run-dir and --resume, as those here do, and begin anew where it has not, as CleanRL's; these run in there.
"""

import argparse
import contextlib
import fcntl
import functools
import hashlib
import importlib.metadata
import itertools
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
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NoReturn

from tqdm import tqdm

KEPT = ("sweep.json", "log.txt")  # in the folder of a run that begins anew


def refuse(mistake: str) -> NoReturn:
    """Say in one line what is wrong, and exit."""
    print(f"{Path(sys.argv[0]).name}: {' '.join(mistake.split())}", file=sys.stderr)
    raise SystemExit(2)


def parse_seeds(text: str) -> list[int]:
    """1-3,7 -> 1, 2, 3, 7."""
    seeds = []
    for part in text.split(","):
        ends = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if not ends or int(ends[2] or ends[1]) < int(ends[1]):
            refuse(f"seeds {text} are not like 1-10 or 1,3,5-7")
        seeds += range(int(ends[1]), int(ends[2] or ends[1]) + 1)
    return list(dict.fromkeys(seeds))


def provenance(packages: Iterable[str] = ("torch", "gymnasium", "numpy"), folder: Path = Path()) -> str:
    """The folder's commit, versions and hardware: what a result may depend on besides its command."""
    git = ["git", "describe", "--always", "--dirty= with changes", "--exclude=*", "--abbrev=12"]
    commit = subprocess.run(git, cwd=folder, capture_output=True, text=True).stdout.strip() or "unknown"
    versions = []
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions.append(f"{package} {importlib.metadata.version(package)}")
    cpuinfo = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.*)", cpuinfo.read_text()) if cpuinfo.exists() else []
    hardware = f"{os.cpu_count()} cores of {names[0] if names else platform.machine()}"
    return ", ".join([f"commit {commit}", f"Python {platform.python_version()}", *versions, hardware])


@functools.cache
def flags_of(script: str) -> set[str]:
    """All flags that a script's --help names."""
    line = [sys.executable, script, "--help"]
    done = subprocess.run(line, capture_output=True, text=True, env=os.environ | {"COLUMNS": "200"})
    if done.returncode:
        refuse(f"{script} --help fails: {(done.stderr.strip().splitlines() or [''])[-1]}")
    return set(re.findall(r"--[\w-]+", done.stdout))


def words(script: str, known: set[str], name: str, value: object) -> list[str]:
    """A flag of the grid on the command line, as the script writes it."""
    flag = next((x for x in ("--" + name.replace("_", "-"), f"--{name}") if x in known), None)
    if flag is None:
        refuse(f"{script} has no flag {name}")
    off = flag.replace("--", "--no-", 1)
    if str(value) in ("True", "False") and off in known:
        return [flag if str(value) == "True" else off]
    return [flag, str(value)]


def plan(settings: dict) -> list[Path]:
    """Write what each run is into its folder -> the folders; mistakes are told here, before any work."""
    scripts, grid, jobs = settings["scripts"], settings["grid"], {}
    stems = [Path(script).stem for script in scripts]
    for script, stem in zip(scripts, stems, strict=True):
        if not Path(script).is_file():
            refuse(f"there is no {script}")
        known = flags_of(script)
        if "--seed" not in known:
            refuse(f"{script} has no --seed")
        name, made = stem if stems.count(stem) == 1 else script, provenance(folder=Path(script).parent)
        for values in itertools.product(*grid.values()):
            point = dict(zip(grid, values, strict=True))
            varied = [word for item in point.items() for word in words(script, known, *item)]
            for seed in settings["seeds"]:
                differs = "__".join(f"{key}={value}" for key, value in (point | {"seed": seed}).items())
                folder = Path(settings["out"]) / re.sub(r"[^\w.=,+-]", "-", f"{name}__{differs}")
                if folder in jobs:
                    refuse(f"two runs would be {folder}")
                resumes = {"--run-dir", "--resume"} <= known
                jobs[folder] = make_job(script, [*settings["flags"], *varied], seed, resumes, made)
    prepare(jobs)
    return list(jobs)


def make_job(script: str, flags: list[str], seed: int, resumes: bool, made: str) -> dict:
    """What a run is: all that run() needs to know, and where it comes from."""
    content = hashlib.sha256(Path(script).read_bytes()).hexdigest()
    job = {"script": script, "flags": flags, "seed": seed, "resumes": resumes, "cwd": str(Path.cwd())}
    return job | {"sha256": content, "made": made}


def prepare(jobs: dict[Path, dict]) -> None:
    """Write each job into its folder, unless it is there; refuse if there is another one in a folder."""
    for folder, job in jobs.items():
        if (folder / "sweep.json").exists():
            old = json.loads((folder / "sweep.json").read_text())
            for key in ("script", "flags", "sha256"):
                if old[key] != job[key]:
                    was = f"by another version of {job['script']}" if key == "sha256" else f"with {old[key]}"
                    refuse(f"{folder} was made {was}; take another folder, or delete it")
    for folder, job in jobs.items():  # nothing is written before all is known to be right
        if not (folder / "sweep.json").exists():
            folder.mkdir(parents=True, exist_ok=True)
            write(folder, job)


def write(folder: Path, job: dict) -> None:
    """Write what a run is; killed at any moment, this leaves the old file or the new one, whole."""
    part = folder / f"{KEPT[0]}.part"
    part.write_text(json.dumps(job, indent=1) + "\n")
    os.replace(part, folder / KEPT[0])


def is_finished(folder: Path) -> bool:
    return "finished" in json.loads((folder / "sweep.json").read_text())


def run(folder: Path) -> None:
    """Do one run, or go on with it; a second process that is to do the same waits, and finds it done."""
    with (folder / "log.txt").open("a+") as log:
        fcntl.flock(log, fcntl.LOCK_EX)  # scripts hold it, too: what a killed sweep left behind ends first
        if is_finished(folder):
            return
        job = json.loads((folder / "sweep.json").read_text())
        line = [sys.executable, str(Path(job["cwd"], job["script"])), *job["flags"]]
        line += ["--seed", str(job["seed"])]
        if job["resumes"] and (folder / "checkpoint.pt").exists():
            line += ["--resume", str(folder)]
        else:
            for path in folder.iterdir():
                if path.name not in KEPT:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
            line += ["--run-dir", str(folder)] if job["resumes"] else []
        env = os.environ | dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "PYTHONUNBUFFERED"), "1")
        env["PYTHONPATH"] = os.pathsep.join([job["cwd"], *filter(None, [os.environ.get("PYTHONPATH")])])
        cwd = job["cwd"] if job["resumes"] else folder
        streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
        if code := subprocess.run(line, **streams, cwd=cwd, env=env).returncode:
            log.seek(0)
            last = (log.read().strip().splitlines() or [""])[-1]
            print(f"{folder.name}: exit code {code}, {last[:200]} (see {log.name})", file=sys.stderr)
            raise SystemExit(1)
        write(folder, job | {"finished": time.strftime("%Y-%m-%d %H:%M:%S")})


def progress(folder: Path) -> float:
    """The part of a run that is done, by the last number of steps that it has printed; 0 if none is known."""
    try:
        tail = (folder / "log.txt").read_bytes()[-4096:].decode(errors="replace")
        steps = "".join(re.findall(r"([\d,]+) steps |global_step=(\d+)", tail)[-1])
        flags = json.loads((folder / "sweep.json").read_text())["flags"]
        total = dict(itertools.pairwise(flags)).get("--total-timesteps")
        total = total or json.loads((folder / "args.json").read_text())["total_timesteps"]
        return min(1.0, float(steps.replace(",", "")) / float(total))
    except (OSError, LookupError, ValueError):  # nothing yet, or half a file
        return 0.0


def run_all(folders: list[Path], workers: int, is_enough: Callable[[], bool] = lambda: False) -> int:
    """Do all runs, several at a time, or until it is enough -> how many failed.

    Whatever ends this function ends its runs.
    """
    waiting, running, failed = [folder for folder in folders if not is_finished(folder)], {}, 0
    layout = "{percentage:3.0f}%|{bar}| {n:.1f}/{total} runs [{elapsed}<{remaining}{postfix}]"
    with tqdm(
        total=len(folders), initial=len(folders) - len(waiting), bar_format=layout, disable=None
    ) as bar:
        try:
            while waiting or running:
                while waiting and len(running) < workers:
                    line = [sys.executable, __file__, "--run", str(waiting[0].resolve())]
                    child = subprocess.Popen(line, stderr=subprocess.PIPE, text=True, start_new_session=True)
                    running[waiting.pop(0)] = child
                for folder in [folder for folder in running if running[folder].poll() is not None]:
                    child = running.pop(folder)
                    failed += child.returncode != 0
                    if child.returncode:
                        bar.write((child.stderr.read().splitlines() or [f"{folder.name} was killed"])[-1])
                    elif bar.disable:  # nobody looks at a bar
                        print(f"{folder.name} is finished", flush=True)
                bar.n = len(folders) - len(waiting) - len(running) + sum(map(progress, running))
                bar.set_postfix_str(f"{failed} failed" if failed else "")
                if is_enough():
                    break
                time.sleep(0.2)
        finally:
            for child in running.values():
                os.killpg(child.pid, signal.SIGTERM)
    return failed


def positive(text: str) -> int:
    """The number of workers, say."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return int(text)


class Parser(argparse.ArgumentParser):
    """Its help is the program's docstring, and a mistake costs one line."""

    def __init__(self, doc: str) -> None:
        super().__init__(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)

    def error(self, message: str) -> NoReturn:
        refuse(message)

    def parse(self) -> tuple[argparse.Namespace, list[str]]:
        """The arguments, and what comes after --."""
        line = [*sys.argv[1:], "--"]
        flags = line[line.index("--") + 1 : -1]
        return self.parse_args(line[: line.index("--")]), flags


def read_settings(args: argparse.Namespace, flags: list[str]) -> dict:
    """What the file says, if one is given, and what the command line says besides or instead."""
    known = {"scripts": [], "seeds": "1-3", "flags": "", "out": "runs/sweep", "grid": {}}
    if len(args.scripts) == 1 and args.scripts[0].endswith(".toml"):
        try:
            found = tomllib.loads(Path(args.scripts.pop()).read_text())
        except (OSError, tomllib.TOMLDecodeError) as error:
            refuse(str(error))
        for key, value in found.items():
            if key not in known or type(value) is not type(known[key]):
                refuse(f"{key} = {value!r} is not understood; a file has {', '.join(known)}")
        known |= found
    grid = dict(item.partition("=")[::2] for item in args.grid)
    known["grid"] |= {name.replace("-", "_"): values.split(",") for name, values in grid.items()}
    for name, values in known["grid"].items():
        if not isinstance(values, list) or not all(str(value) for value in values) or not values:
            refuse(f"grid {name} is not like learning_rate=3e-4,1e-3")
    known |= {key: vars(args)[key] for key in ("scripts", "seeds", "out") if vars(args)[key]}
    known |= {"seeds": parse_seeds(known["seeds"]), "flags": [*shlex.split(known["flags"]), *flags]}
    return known


def main() -> None:
    """Read the command line, and do what it says."""
    parser = Parser(__doc__)
    parser.add_argument("scripts", nargs="*", help="to be run, or a TOML file that names them")
    parser.add_argument("--seeds", help="like 1-10 or 1,3,5-7; default: 1-3")
    parser.add_argument("--grid", nargs="+", action="extend", default=[], metavar="FLAG=A,B")
    parser.add_argument("--out", help="where the folders of the runs go; default: runs/sweep")
    parser.add_argument("--workers", type=positive, default=os.cpu_count(), help="runs at a time")
    parser.add_argument("--print", action="store_true", help="write commands, run nothing")
    parser.add_argument("--run", type=Path, metavar="FOLDER", help="do the one run that --print has set up")
    args, flags = parser.parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if args.run:
        if not (args.run / "sweep.json").exists():
            refuse(f"{args.run} holds no run of a sweep")
        return run(args.run.resolve())
    settings = read_settings(args, flags)
    if not settings["scripts"]:
        refuse("no script is given")
    folders = plan(settings)
    if args.print:
        for folder in folders:
            if not is_finished(folder):
                print(
                    shlex.join(
                        [sys.executable, str(Path(__file__).resolve()), "--run", str(folder.resolve())]
                    )
                )
        return
    try:
        failed = run_all(folders, args.workers)
    except KeyboardInterrupt:
        raise SystemExit("stopped; the same command goes on") from None
    print(f"{len(folders) - failed} of {len(folders)} runs are finished; see {settings['out']}")
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
