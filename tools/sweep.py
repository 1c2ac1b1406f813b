# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "torch==2.13.0",
#     "gymnasium[box2d,classic-control,mujoco,toy-text]==1.4.0",
#     "mujoco==4.0.0",
#     "box2d==2.3.10",
#     "ale-py==0.12.1",
#     "numpy==2.4.6",
#     "tyro==1.0.17",
#     "tensorboard==2.21.0",
#     "tqdm==4.70.1",
#     "filelock==4.2.11",
#     "wandb==0.31.0",
#     "moviepy==2.2.1",
# ]
# ///
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
from typing import NoReturn, TextIO

from tqdm import tqdm

try:
    import fcntl
except ImportError:  # Windows has none.
    fcntl = None

# What is executed is what has been hashed, though the script may be edited at any moment.
RUNNER = """
import hashlib, os, sys
_, __file__, digest, *flags = sys.argv
text = open(__file__, "rb").read()
if hashlib.sha256(text).hexdigest() != digest:
    sys.exit(f"{__file__} has changed since the sweep began")
sys.argv = [__file__, *flags]
sys.path[0] = os.path.dirname(__file__)
exec(compile(text, __file__, "exec"))
"""
KEPT = ("sweep.json", "log.txt")  # These stay in the folder of a run that begins anew.
LAYOUT = "{percentage:3.0f}%|{bar}| {n:.1f}/{total} runs [{elapsed}<{remaining}{postfix}]"


def refuse(mistake: str) -> NoReturn:
    """Says in one line what is wrong, and exits."""
    print(f"{Path(sys.argv[0]).name}: {' '.join(mistake.split())}", file=sys.stderr)
    raise SystemExit(2)


def last_line(text: str, default: str = "") -> str:
    """Returns the last line of a text, or the default if it has none."""
    lines = text.splitlines() or [default]
    return lines[-1]


# What is to be run


def parse_seeds(text: str) -> list[int]:
    """Returns 1, 2, 3, 7 for 1-3,7."""
    mistake = f"seeds {text} are not like 1-10 or 1,3,5-7"
    seeds = []
    for part in text.split(","):
        ends = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if not ends:
            refuse(mistake)
        first = int(ends[1])
        last = int(ends[2] or ends[1])
        if last < first:
            refuse(mistake)
        seeds += range(first, last + 1)
    return list(dict.fromkeys(seeds))


def provenance(packages: Iterable[str] = ("torch", "gymnasium", "numpy"), folder: Path = Path()) -> str:
    """Returns what a result may depend on besides its command.

    It is the folder's commit, versions, and hardware.
    """
    git = ["git", "describe", "--always", "--dirty= with changes", "--exclude=*", "--abbrev=12"]
    commit = ""
    with contextlib.suppress(OSError):  # There may be no git.
        commit = subprocess.run(git, cwd=folder, capture_output=True, text=True).stdout.strip()
    commit = commit or "unknown"
    parts = [f"commit {commit}", f"Python {platform.python_version()}"]
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            version = importlib.metadata.version(package)
            parts.append(f"{package} {version}")
    parts.append(describe_hardware())
    return ", ".join(parts)


def describe_hardware() -> str:
    """Returns the number of cores, and the processor's name as far as it is known."""
    path = Path("/proc/cpuinfo")
    text = path.read_text() if path.exists() else ""
    names = re.findall(r"model name\s*: (.*)", text)
    name = names[0] if names else platform.machine()
    return f"{os.cpu_count()} cores of {name}"


def cores() -> int:
    """Returns how many cores this process may use, which may be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@functools.cache
def flags_of(script: str) -> set[str]:
    """Returns all flags that a script's --help names."""
    line = [sys.executable, script, "--help"]
    env = os.environ | {"COLUMNS": "200"}
    done = subprocess.run(line, capture_output=True, text=True, env=env)
    if done.returncode:
        error = last_line(done.stderr.strip())
        refuse(f"{script} --help fails: {error}")
    return set(re.findall(r"--[\w-]+", done.stdout))


def words(script: str, known: set[str], name: str, value: object) -> list[str]:
    """Returns a flag of the grid for the command line, as the script writes it."""
    spellings = ["--" + name.replace("_", "-"), f"--{name}"]
    flags = [flag for flag in spellings if flag in known]
    if not flags:
        refuse(f"{script} has no flag {name}")
    flag = flags[0]
    off = flag.replace("--", "--no-", 1)
    if str(value).lower() in ("true", "false") and off in known:
        return [flag if str(value).lower() == "true" else off]
    return [flag, str(value)]


def plan(settings: dict) -> list[Path]:
    """Writes what each run is into its folder, and returns the folders.

    Mistakes are told here, before any work.
    """
    out = Path(settings["out"])
    stems = [Path(script).stem for script in settings["scripts"]]
    jobs = {}
    for script in settings["scripts"]:
        known = check_script(script)
        check_flags(script, known, settings["flags"])
        resumes = {"--run-dir", "--resume"} <= known
        made = provenance(folder=Path(script).parent)
        stem = Path(script).stem
        name = stem if stems.count(stem) == 1 else script
        for point in grid_points(settings["grid"]):
            flags = list(settings["flags"])
            for key, value in point.items():
                flags += words(script, known, key, value)
            for seed in settings["seeds"]:
                folder = out / name_folder(name, point | {"seed": seed})
                if folder in jobs:
                    refuse(f"two runs would be {folder}")
                jobs[folder] = make_job(script, flags, seed, resumes, made)
    prepare(jobs)
    return list(jobs)


def check_script(script: str) -> set[str]:
    """Returns the flags of a script, which has to be there and to have --seed."""
    if not Path(script).is_file():
        refuse(f"there is no {script}")
    known = flags_of(script)
    if "--seed" not in known:
        refuse(f"{script} has no --seed")
    return known


def check_flags(script: str, known: set[str], flags: list[str]) -> None:
    """Refuses a flag that the script's --help does not name."""
    for flag in flags:
        name = flag.partition("=")[0]
        if name.startswith("--") and not {name, name.replace("_", "-")} & known:
            refuse(f"{script} has no flag {name}")


def grid_points(grid: dict[str, list]) -> list[dict]:
    """Returns each combination of the grid's values, by their names."""
    combinations = itertools.product(*grid.values())
    return [dict(zip(grid, values, strict=True)) for values in combinations]


def name_folder(name: str, point: dict) -> str:
    """Returns the name of a run's folder: the script, and what differs."""
    parts = [f"{key}={value}" for key, value in point.items()]
    folder = re.sub(r"[^\w.=,+-]", "-", "__".join([name, *parts]))
    if len(folder) > 255:
        refuse(f"the name {folder[:40]}... is too long for a folder")
    return folder


def make_job(script: str, flags: list[str], seed: int, resumes: bool, made: str) -> dict:
    """Returns what a run is: all that run() needs to know, and where it comes from."""
    return {
        "script": script,
        "flags": flags,
        "seed": seed,
        "resumes": resumes,
        "cwd": str(Path.cwd()),
        "sha256": digest_of(Path(script)),
        "made": made,
    }


def digest_of(script: Path) -> str:
    """Returns what tells two versions of a script apart; nothing if it is not there."""
    if not script.is_file():
        return ""
    return hashlib.sha256(script.read_bytes()).hexdigest()


def prepare(jobs: dict[Path, dict]) -> None:
    """Writes each job into its folder, unless it is there; refuses if anything else is.

    A run that has failed, or has not begun, may be another one now.
    """
    new = {}
    for folder, job in jobs.items():
        if not has_job(folder):
            if folder.exists() and not is_free(folder):
                held = f"{folder} is not empty, and holds no run of a sweep"
                refuse(f"{held}; take another folder, or move it")
            new[folder] = job
            continue
        made = compare_jobs(read_job(folder), job)
        if made and not may_change(folder):
            refuse(f"{folder} was made {made}; take another folder, or delete it")
        if made:
            new[folder] = job | {"anew": True}
    for folder, job in new.items():  # Nothing is written before all jobs are known to fit.
        folder.mkdir(parents=True, exist_ok=True)
        write(folder, job)


def compare_jobs(old: dict, job: dict) -> str:
    """Returns what is different about an old job, in words; nothing if it is the same."""
    for key in ("script", "flags"):
        if old[key] != job[key]:
            return f"with {old[key]}"
    if old["sha256"] != job["sha256"]:
        return f"by another version of {job['script']}"
    return ""


def may_change(folder: Path) -> bool:
    """Returns whether nothing is lost if another run takes the place of the one in a folder."""
    return "failed" in read_job(folder) or not (folder / "log.txt").exists()


def is_free(folder: Path) -> bool:
    """Returns whether nothing of anybody's is in a folder that a run will have for itself."""
    if not folder.is_dir():
        return False
    names = [path.name for path in folder.iterdir()]
    # The file is of a sweep that was killed before it had written its first one.
    return set(names) <= {"sweep.json.part"}


def has_job(folder: Path) -> bool:
    return (folder / "sweep.json").exists()


def read_job(folder: Path) -> dict:
    try:
        return json.loads((folder / "sweep.json").read_text())
    except ValueError as error:
        refuse(f"{folder}/sweep.json is damaged: {error}; delete it, and the run begins anew")


def write(folder: Path, job: dict) -> None:
    """Writes what a run is; a kill at any moment leaves the old file or the new one."""
    path = folder / "sweep.json"
    part = folder / "sweep.json.part"
    part.unlink(missing_ok=True)  # A link that lies there would be written through.
    part.write_text(json.dumps(job, indent=1) + "\n")
    os.replace(part, path)


def is_finished(folder: Path) -> bool:
    return "finished" in read_job(folder)


# One run


def run(folder: Path) -> None:
    """Does one run, or goes on with it.

    A second process that is to do the same waits, and finds it done.
    """
    with (folder / "log.txt").open("a+") as log:
        lock(log)
        if is_finished(folder):
            return
        job = read_job(folder)
        script = Path(job["cwd"], job["script"])
        line = [sys.executable, "-c", RUNNER, str(script), job["sha256"]]
        line += [*job["flags"], "--seed", str(job["seed"])]
        failed = job.pop("failed", None)
        if job.pop("anew", False):
            clear(folder)
        if failed:
            write(folder, job)
        if job["resumes"] and (folder / "checkpoint.pt").exists():
            line += ["--resume", str(folder)]
        else:
            clear(folder)
            if job["resumes"]:
                (folder / "lock").touch()  # So a script takes the folder for a run's.
                line += ["--run-dir", str(folder)]
        env = make_environment(job["cwd"])
        cwd = job["cwd"] if job["resumes"] else folder
        done = subprocess.run(line, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=cwd, env=env)
        if done.returncode:
            log.seek(0)
            error = last_line(log.read().strip())[:200]
            failure = f"exit code {done.returncode}, {error}"
            print(f"{folder.name}: {failure} (see {log.name})", file=sys.stderr)
            write(folder, job | {"failed": failure})
            raise SystemExit(1)
        write(folder, job | {"finished": time.strftime("%Y-%m-%d %H:%M:%S")})


def lock(log: TextIO, wait: bool = True) -> bool:
    """Makes a run ours by its log, which its script holds, too: those of a killed sweep end first.

    Returns whether it is ours. Without fcntl, only a second sweep is kept away, not such a script.
    """
    if fcntl is None:
        from filelock import FileLock, Timeout

        try:
            FileLock(f"{log.name}.lock", blocking=wait, is_singleton=True).acquire()
        except Timeout:
            return False
        return True
    how = fcntl.LOCK_EX
    if not wait:
        how |= fcntl.LOCK_NB
    try:
        fcntl.flock(log, how)
    except BlockingIOError:
        return False
    return True


def clear(folder: Path) -> None:
    """Removes what a run that begins anew has written before."""
    for path in folder.iterdir():
        if path.name not in KEPT:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def make_environment(cwd: str) -> dict[str, str]:
    """Returns the variables of a run, which has one thread, and imports from the sweep's folder."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    paths = [cwd, os.environ.get("PYTHONPATH")]
    path = os.pathsep.join(filter(None, paths))
    return os.environ | threads | {"PYTHONUNBUFFERED": "1", "PYTHONPATH": path}


def progress(folder: Path) -> float:
    """Returns the part of a run that is done, by its last printed steps; 0 if it is not known."""
    try:
        tail = (folder / "log.txt").read_bytes()[-4096:].decode(errors="replace")
        found = re.findall(r"([\d,]+) (?:steps|completions|pairs) |global_step=(\d+)", tail)
        steps = "".join(found[-1])
        total = total_of(read_job(folder)["flags"])
        if not total:
            args = json.loads((folder / "args.json").read_text())
            [total] = [args[name] for name in args if name.startswith("total_")]
        part = float(steps.replace(",", "")) / float(total)
        return min(1.0, part)
    except (OSError, LookupError, ValueError):  # There is nothing yet, or half a file.
        return 0.0


def total_of(flags: list[str]) -> str:
    """Returns the value of --total-timesteps, or of its like; nothing if it is not given."""
    separate = [word for flag in flags for word in flag.split("=", 1)]
    for name, value in itertools.pairwise(separate):
        if name.startswith("--total"):
            return value
    return ""


# Many runs


def run_all(folders: list[Path], workers: int, is_enough: Callable[[], bool] = lambda: False) -> int:
    """Does all runs, several at a time, or until it is enough; returns how many failed.

    Whatever ends this function ends its runs.
    """
    waiting = [folder for folder in folders if not is_finished(folder)]
    running = {}
    failed = 0
    begun = len(folders) - len(waiting)
    with tqdm(total=len(folders), initial=begun, bar_format=LAYOUT, disable=None) as bar:
        try:
            while waiting or running:
                while waiting and len(running) < workers:
                    folder = waiting.pop(0)
                    with (folder / "log.txt").open("a") as log:
                        if not lock(log, wait=False):
                            bar.write(f"{folder.name}: another process is at it, and is waited for")
                    running[folder] = start(folder)
                ended = [folder for folder in running if running[folder].poll() is not None]
                for folder in ended:
                    child = running.pop(folder)
                    failed += child.returncode != 0
                    report(bar, folder, child)
                done = len(folders) - len(waiting) - len(running)
                bar.n = done + sum(map(progress, running))
                postfix = f"{failed} failed" if failed else ""
                bar.set_postfix_str(postfix)
                if is_enough():
                    break
                time.sleep(0.2)
        finally:
            for child in running.values():
                end(child)
    return failed


def start(folder: Path) -> subprocess.Popen:
    """Starts a process that does a run, in a session of its own."""
    line = [sys.executable, __file__, "--run", str(folder.resolve())]
    return subprocess.Popen(line, stderr=subprocess.PIPE, text=True, start_new_session=True)


def end(child: subprocess.Popen) -> None:
    """Ends a process that start() has started, with all that it has started."""
    if not hasattr(os, "killpg"):  # Windows has none.
        child.terminate()
        return
    with contextlib.suppress(ProcessLookupError):  # It has ended meanwhile.
        os.killpg(child.pid, signal.SIGTERM)


def report(bar: tqdm, folder: Path, child: subprocess.Popen) -> None:
    """Says that a run has failed, or, if nobody looks at a bar, that it is finished."""
    if child.returncode:
        line = last_line(child.stderr.read(), f"{folder.name} was killed")
        bar.write(line)
    elif bar.disable:
        print(f"{folder.name} is finished", flush=True)


# The command line


def positive(text: str) -> int:
    """Returns a number that is at least 1."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return int(text)


class Parser(argparse.ArgumentParser):
    """Its help is the program's docstring, and a mistake costs one line."""

    def __init__(self, doc: str) -> None:
        super().__init__(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):  # A console that has no such sign shows another one.
                stream.reconfigure(errors="replace")

    def error(self, message: str) -> NoReturn:
        refuse(message)

    def parse(self) -> tuple[argparse.Namespace, list[str]]:
        """Returns the arguments, and what comes after --."""
        line = [*sys.argv[1:], "--"]
        end = line.index("--")
        flags = line[end + 1 : -1]
        return self.parse_args(line[:end]), flags


def read_settings(args: argparse.Namespace, flags: list[str]) -> dict:
    """Returns what the file says, if one is given, and the command line besides or instead."""
    settings = {"scripts": [], "seeds": "1-5", "flags": "", "out": "runs/sweep", "grid": {}}
    if len(args.scripts) == 1 and args.scripts[0].endswith(".toml"):
        settings |= read_file(Path(args.scripts.pop()), settings)
    grid = settings["grid"]
    named = set()
    for item in args.grid:
        name, _, values = item.partition("=")
        key = name.replace("-", "_")
        if key in named:
            refuse(f"grid {name} is given twice")
        named.add(key)
        grid[key] = values.split(",")
    for name, values in grid.items():
        if not isinstance(values, list) or not values or not all(map(str, values)):
            refuse(f"grid {name} is not like learning_rate=3e-4,1e-3")
    for key in ("scripts", "seeds", "out"):
        given = getattr(args, key)
        if given not in (None, []):
            settings[key] = given
    if not all(isinstance(script, str) for script in settings["scripts"]):
        refuse(f"scripts = {settings['scripts']} are no names of files")
    settings["seeds"] = parse_seeds(settings["seeds"])
    settings["flags"] = [*shlex.split(settings["flags"]), *flags]
    return settings


def read_file(path: Path, known: dict) -> dict:
    """Returns the settings in a TOML file; each is of the same type as the known one."""
    try:
        found = tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        refuse(str(error))
    for key, value in found.items():
        if key not in known or type(value) is not type(known[key]):
            refuse(f"{key} = {value!r} is not understood; a file has {', '.join(known)}")
    return found


def print_commands(folders: list[Path]) -> None:
    """Prints a command for each run that is not finished."""
    program = Path(__file__).resolve()
    for folder in folders:
        if not is_finished(folder):
            line = [sys.executable, str(program), "--run", str(folder.resolve())]
            print(shlex.join(line))


def main() -> None:
    """Reads the command line, and does what it says."""
    parser = Parser(__doc__)
    parser.add_argument("scripts", nargs="*", help="to be run, or a TOML file that names them")
    parser.add_argument("--seeds", help="like 1-10 or 1,3,5-7; default: 1-5")
    parser.add_argument("--grid", nargs="+", action="extend", default=[], metavar="FLAG=A,B")
    parser.add_argument("--out", help="where the folders of the runs go; default: runs/sweep")
    parser.add_argument("--workers", type=positive, default=cores(), help="runs at a time")
    parser.add_argument("--print", action="store_true", help="write commands, run nothing")
    parser.add_argument("--run", type=Path, metavar="FOLDER", help="do the one run that --print has set up")
    args, flags = parser.parse()
    for name in {"SIGTERM", "SIGHUP"} & set(dir(signal)):  # Windows has no SIGHUP.
        signal.signal(signal.Signals[name], lambda number, _: sys.exit(128 + number))
    if args.run:
        if not has_job(args.run):
            refuse(f"{args.run} holds no run of a sweep")
        if sys.stderr.isatty():  # A file says what is executed: whoever has typed this can see it.
            job = read_job(args.run)
            print(f"in {job['cwd']}: python {job['script']} {shlex.join(job['flags'])}", file=sys.stderr)
        run(args.run.resolve())
        return
    settings = read_settings(args, flags)
    if not settings["scripts"]:
        refuse("no script is given")
    try:
        folders = plan(settings)
    except OSError as error:  # The disk is full, or a name is too long.
        refuse(str(error))
    if args.print:
        print_commands(folders)
        return
    try:
        failed = run_all(folders, args.workers)
    except KeyboardInterrupt:
        raise SystemExit("stopped; the same command goes on") from None
    except BrokenPipeError:  # Nobody reads what is printed any more, as after `| head`.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    print(f"{len(folders) - failed} of {len(folders)} runs are finished; see {settings['out']}")
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
