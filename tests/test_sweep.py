"""tools/sweep.py: all runs of a grid, each once, whatever is killed; mistakes are told before any run."""

import contextlib
import fcntl
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from conftest import ROOT

SWEEP = [sys.executable, str(ROOT / "tools/sweep.py")]
# Counts to --total-timesteps, and goes on where it was if resumed. What it writes tells how often it began.
SCRIPT = """
import argparse, os, time
from pathlib import Path
parser = argparse.ArgumentParser()
for name in ("--seed", "--run-dir", "--resume", "--rate", "--total-timesteps", "--fail"):
    parser.add_argument(name)
parser.add_argument("--fast", action=argparse.BooleanOptionalAction)
args = parser.parse_args()
folder = Path(args.resume or args.run_dir)
folder.mkdir(exist_ok=True)
if args.seed == args.fail:
    raise ValueError("no such seed")
checkpoint = folder / "checkpoint.pt"
steps = int(checkpoint.read_text()) if args.resume else 0
(folder / "junk").touch()
with (folder / "starts").open("a") as starts:
    print(args.rate, args.fast, steps, file=starts)
while steps < int(args.total_timesteps):
    steps += 1
    time.sleep(0.01)
    (folder / "part").write_text(str(steps))
    os.replace(folder / "part", checkpoint)
    print(f"{steps} steps ")
(folder / "result").write_text(f"{os.environ['OMP_NUM_THREADS']} {args.seed} {args.rate} {steps}")
"""
PEER = """
import argparse, pathlib
parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int)
parser.add_argument("--learning_rate")
args = parser.parse_args()
pathlib.Path("runs").mkdir()
pathlib.Path(f"runs/{args.learning_rate}").write_text(str(args.seed))
"""


@pytest.fixture
def place(tmp_path):
    (tmp_path / "mine.py").write_text(SCRIPT)
    (tmp_path / "peer.py").write_text(PEER)
    return tmp_path


def sweep(place, *flags, **how):
    done = subprocess.run([*SWEEP, *flags], cwd=place, capture_output=True, text=True, **how)
    return done.returncode, done.stdout, done.stderr


def results(place):
    return {path.parent.name: path.read_text() for path in (place / "runs/sweep").glob("*/result")}


def starts(place):
    return {path.parent.name: path.read_text() for path in (place / "runs/sweep").glob("*/starts")}


def steps_done(place):
    return sum(int(path.read_text()) for path in (place / "runs/sweep").glob("*/checkpoint.pt"))


def test_each_point_of_the_grid_with_each_seed(place):
    """In a folder named after what differs, with one thread; done a second time, nothing is run again."""
    flags = ["mine.py", "--seeds", "1,3-4", "--grid", "rate=0.1,5", "fast=True,false"]
    flags += ["--", "--total-timesteps", "2"]
    assert sweep(place, *flags)[0] == 0
    names = {(x, fast, n): f"mine__rate={x}__fast={fast}__seed={n}" for x in ("0.1", "5") for n in (1, 3, 4)
             for fast in ("True", "false")}  # fmt: skip
    assert results(place) == {name: f"1 {seed} {rate} 2" for (rate, _, seed), name in names.items()}
    assert starts(place) == {name: f"{rate} {fast.title()} 0\n" for (rate, fast, _), name in names.items()}
    job = json.loads((place / "runs/sweep" / names["5", "false", 3] / "sweep.json").read_text())
    assert job["script"] == "mine.py" and job["seed"] == 3
    assert job["flags"] == ["--total-timesteps", "2", "--rate", "5", "--no-fast"]
    assert "Python 3" in job["made"] and " cores of " in job["made"]
    code, out, _ = sweep(place, *flags)
    assert code == 0 and out == "12 of 12 runs are finished; see runs/sweep\n"
    assert set(map(len, map(str.splitlines, starts(place).values()))) == {1}


def test_a_script_without_folders_of_its_own_runs_in_one(place):
    """Whatever it writes is in there; killed, it begins anew."""
    folder = place / "out/peer__learning_rate=1__seed=2"
    flags = ["peer.py", "--seeds", "2", "--grid", "learning-rate=1", "--out", "out"]
    sweep(place, *flags, "--print")
    (folder / "runs").mkdir()  # mkdir would fail, were this not removed
    assert sweep(place, *flags)[0] == 0
    assert (folder / "runs/1").read_text() == "2"


@pytest.mark.long
def test_killed_ten_times_it_ends_as_if_it_never_was(place):
    """SIGTERM; SIGKILL of all at once; SIGKILL of the program, whose runs go on, and are waited for."""
    flags = ["mine.py", "--seeds", "1-3", "--workers", "2", "--", "--total-timesteps", "400"]
    chance = random.Random(0)
    for kill in range(10):
        process = subprocess.Popen([*SWEEP, *flags], cwd=place, stderr=subprocess.DEVNULL)
        goal = steps_done(place) + chance.randint(1, 100)
        while steps_done(place) < goal:
            assert process.poll() is None
            time.sleep(0.01)
        pids = [process.pid]
        if kill % 3 == 1:  # the runs are in sessions of their own: find and end them, too
            listed = subprocess.run(["ps", "-eww", "-o", "pid,args"], capture_output=True, text=True).stdout
            pids += [int(line.split()[0]) for line in listed.splitlines() if str(place) in line]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if kill % 3 else signal.SIGTERM)
        process.wait()
    assert sweep(place, *flags)[0] == 0
    assert results(place) == {f"mine__seed={seed}": f"1 {seed} None 400" for seed in (1, 2, 3)}
    begun = [int(line.split()[-1]) for text in starts(place).values() for line in text.splitlines()]
    assert len(begun) > 6 and begun.count(0) < 6  # what has a checkpoint goes on from there


def test_what_another_process_is_at_is_waited_for(place):
    """And found done."""
    sweep(place, "mine.py", "--seeds", "1", "--print", "--", "--total-timesteps", "1")
    folder = place / "runs/sweep/mine__seed=1"
    job = json.loads((folder / "sweep.json").read_text())
    with (folder / "log.txt").open("a") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        process = subprocess.Popen([*SWEEP, "--run", str(folder)])
        files = Path(f"/proc/{process.pid}/fd")
        while str(folder / "log.txt") not in {os.path.realpath(path) for path in files.iterdir()}:
            time.sleep(0.02)
        time.sleep(0.5)
        (folder / "sweep.json").write_text(json.dumps(job | {"finished": "by another"}))
    assert process.wait() == 0 and not (folder / "starts").exists()


def test_a_run_that_fails_costs_one_line_and_is_tried_again(place):
    flags = ["mine.py", "--seeds", "1-2", "--", "--total-timesteps", "1", "--fail"]
    code, out, _ = sweep(place, *flags, "2")
    assert code == 1 and set(results(place)) == {"mine__seed=1"}
    line, summary = sorted(x for x in out.splitlines() if not x.endswith("is finished"))[::-1]
    assert line.startswith("mine__seed=2: exit code 1, ValueError: no such seed (see ")
    assert summary == "1 of 2 runs are finished; see runs/sweep"
    job = json.loads((place / "runs/sweep/mine__seed=2/sweep.json").read_text())
    assert job["failed"] == "exit code 1, ValueError: no such seed"
    assert sweep(place, *flags, "3")[2].count("was made with") == 1  # other flags: not the same run
    (place / "runs/sweep/mine__seed=1").rename(place / "elsewhere")
    assert sweep(place, *flags, "3")[0] == 0 and len(results(place)) == 2
    assert "failed" not in json.loads((place / "runs/sweep/mine__seed=2/sweep.json").read_text())


def test_a_script_that_failed_may_be_mended(place):
    """The same command does again what failed, from its start; what is finished and unchanged stays."""
    wrong = SCRIPT.replace('print(f"{steps} steps ")', 'print(f"{step} steps ")')
    (place / "other.py").write_text(wrong)
    flags = ["mine.py", "other.py", "--seeds", "1", "--", "--total-timesteps", "2"]
    assert sweep(place, *flags)[0] == 1 and list(results(place)) == ["mine__seed=1"]
    (place / "other.py").write_text(SCRIPT)
    assert sweep(place, *flags)[0] == 0
    assert starts(place) == {"mine__seed=1": "None None 0\n", "other__seed=1": "None None 0\n"}
    (place / "mine.py").write_text(SCRIPT + "#")
    assert "was made by another version of mine.py" in sweep(place, *flags)[2]


def test_what_has_not_begun_may_change(place):
    """As a plan that was only printed."""
    for steps in ("1", "2"):
        assert sweep(place, "mine.py", "--seeds", "1", "--print", "--", "--total-timesteps", steps)[0] == 0
    assert sweep(place, "mine.py", "--seeds", "1", "--", "--total-timesteps", "2")[0] == 0
    assert results(place) == {"mine__seed=1": "1 1 None 2"}


def begin(place, *flags, **how):
    """A sweep of runs that take long, as soon as one has begun."""
    line = [*SWEEP, "mine.py", "--seeds", "1-2", *flags, "--", "--total-timesteps", "10000"]
    process = subprocess.Popen(line, cwd=place, stderr=subprocess.PIPE, text=True, **how)
    while not steps_done(place):
        assert process.poll() is None
        time.sleep(0.02)
    return process


def is_still(place):
    """Whether no run does any step more."""
    time.sleep(0.3)
    before = steps_done(place)
    time.sleep(0.3)
    return steps_done(place) == before


def test_a_terminal_that_is_closed_ends_the_runs(place):
    with begin(place) as process:
        process.send_signal(signal.SIGHUP)
    assert process.returncode == 128 + signal.SIGHUP and is_still(place)


def test_a_pipe_that_is_closed_ends_the_runs(place):
    """As `| head -1` closes it: a run fails, which is told to nobody."""
    with begin(place, stdout=subprocess.PIPE) as process:
        process.stdout.close()
        pid, *_ = [
            int(line.split()[0])
            for line in subprocess.check_output(["ps", "-eww", "-o", "pid,args"], text=True).splitlines()
            if f"{place}/mine.py" in line and " --run-dir " in line
        ]
        os.kill(pid, signal.SIGKILL)
        assert process.wait() == 1 and process.stderr.read() == ""
    assert is_still(place)


def test_it_says_what_it_waits_for(place):
    sweep(place, "mine.py", "--seeds", "1", "--print", "--", "--total-timesteps", "1")
    with (place / "runs/sweep/mine__seed=1/log.txt").open("a") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        line = [*SWEEP, "mine.py", "--seeds", "1", "--", "--total-timesteps", "1"]
        with subprocess.Popen(line, cwd=place, stdout=subprocess.PIPE, text=True) as process:
            said = process.stdout.readline()
            fcntl.flock(log, fcntl.LOCK_UN)
            assert process.wait() == 0
    assert said == "mine__seed=1: another process is at it, and is waited for\n"


def test_without_what_windows_has_not(place):
    """No fcntl, no groups of processes, no SIGHUP: runs are done, resumed, and ended with the sweep."""
    lines = "import os, signal, sys", "sys.modules['fcntl'] = None", "del os.killpg", "del signal.SIGHUP"
    (place / "sitecustomize.py").write_text("\n".join(lines))
    env = {"env": os.environ | {"PYTHONPATH": str(place)}}
    with begin(place, stdout=subprocess.DEVNULL, **env) as process:
        process.terminate()
    assert process.returncode == 128 + signal.SIGTERM
    flags = ["mine.py", "--seeds", "4-5", "--", "--total-timesteps", "2"]
    assert sweep(place, *flags, **env)[0] == 0 and len(results(place)) == 2


@pytest.mark.parametrize(
    "runner", ["xargs -d '\\n' -n 1 -P 2 sh -c", "parallel -j 2"], ids=lambda x: x.split()[0]
)
def test_others_can_run_what_it_prints(place, runner):
    """A space in the path or in a value of a flag is none between words."""
    if not shutil.which(runner.split()[0]):
        pytest.skip(f"{runner.split()[0]} is not installed")
    assert (
        f"{runner.replace('-P 2', '-P 8').replace('-j 2', '-j 8')}"
        in (ROOT / "docs/experiments.md").read_text()
    )
    (place / "a b").mkdir()
    (place / "a b/my own.py").write_text(SCRIPT)
    flags = ["my own.py", "--seeds", "1-3", "--print", "--", "--total-timesteps", "1", "--rate", "a  b"]
    code, lines, _ = sweep(place / "a b", *flags)
    assert code == 0 and len(lines.splitlines()) == 3 and not results(place / "a b")
    subprocess.run(runner, shell=True, input=lines, text=True, check=True, cwd=place)
    assert results(place / "a b") == {f"my-own__seed={x}": f"1 {x} a  b 1" for x in (1, 2, 3)}
    assert sweep(place / "a b", *flags)[1] == ""


def test_a_script_is_of_the_commit_of_its_own_repository(place):
    """Not of that of the tool."""
    (place / "theirs").mkdir()
    (place / "peer.py").rename(place / "theirs/peer.py")
    for git in ("init -q", "add .", "-c user.name=a -c user.email=b commit -qm c"):
        subprocess.run(["git", *git.split()], cwd=place / "theirs", check=True)
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=place / "theirs", capture_output=True, text=True)
    sweep(place, "theirs/peer.py", "--seeds", "1", "--print")
    [path] = (place / "runs/sweep").glob("*/sweep.json")
    assert json.loads(path.read_text())["made"].startswith(f"commit {done.stdout[:12]}, ")


def test_settings_from_a_file_and_from_the_command_line(place):
    text = 'scripts = ["mine.py"]\nseeds = "7"\nflags = "--total-timesteps 1"\n[grid]\nrate = [1e-3, 2]\n'
    (place / "a.toml").write_text(text)
    assert sweep(place, "a.toml")[0] == sweep(place, "a.toml", "--seeds", "8", "--grid", "rate=3")[0] == 0
    assert set(results(place)) == {f"mine__rate={x}" for x in ("0.001__seed=7", "2__seed=7", "3__seed=8")}


@pytest.mark.parametrize(
    "flags, mistake",
    [
        ("gone.py", "there is no gone.py"),
        ("broken.py", "broken.py --help fails: NameError"),
        ("plain.py", "plain.py has no --seed"),
        ("", "no script is given"),
        ("mine.py --seeds 3-1", "seeds 3-1 are not like 1-10"),
        ("mine.py --grid ratee=1", "mine.py has no flag ratee"),
        ("mine.py -- --ratee 1", "mine.py has no flag --ratee"),
        ("mine.py -- --ratee=1", "mine.py has no flag --ratee"),
        ("mine.py --grid rate", "grid rate is not like"),
        ("mine.py --grid rate=1 rate=2", "grid rate is given twice"),
        ("mine.py --seeds=", "seeds are not like 1-10"),
        ("mine.py --out mine.py", "Not a directory"),
        (f"mine.py --grid rate={300 * '1'}", "... is too long for a folder"),
        ("numbers.toml", "scripts = [1] are no names of files"),
        ("mine.py --grid rate=1,1", "two runs would be runs/sweep/mine__rate=1__seed=1"),
        ("mine.py --workers 0", "--workers: 0 is not at least 1"),
        ("mine.py --nonsense", "unrecognized arguments: --nonsense"),
        ("gone.toml", "gone.toml"),
        ("a.toml", "grids = {} is not understood"),
        ("--run nowhere", "nowhere holds no run of a sweep"),
    ],
)
def test_mistakes_are_told_in_one_line_before_any_run(place, flags, mistake):
    (place / "broken.py").write_text("nonsense")
    (place / "plain.py").write_text("import argparse; argparse.ArgumentParser().parse_args()")
    (place / "a.toml").write_text("grids = {}")
    (place / "numbers.toml").write_text("scripts = [1]")
    code, out, error = sweep(place, *flags.split())
    assert (code, out) == (2, "") and mistake in error and len(error.splitlines()) == 1
    assert not (place / "runs").exists()


def test_a_damaged_plan_is_told(place):
    flags = ["mine.py", "--seeds", "1", "--print", "--", "--total-timesteps", "1"]
    assert sweep(place, *flags)[0] == 0
    (place / "runs/sweep/mine__seed=1/sweep.json").write_text('{"script": ')
    code, _, error = sweep(place, *flags)
    assert code == 2 and "sweep.json is damaged: " in error and error.count("\n") == 1


def test_a_machine_without_git_does_runs_too(place):
    (place / "bin").mkdir()
    env = {"env": os.environ | {"PATH": str(place / "bin")}}
    assert sweep(place, "mine.py", "--seeds", "1", "--", "--total-timesteps", "1", **env)[0] == 0
    job = json.loads((place / "runs/sweep/mine__seed=1/sweep.json").read_text())
    assert job["made"].startswith("commit unknown, Python")


def test_a_script_that_has_changed_is_another(place):
    flags = ["mine.py", "--seeds", "1", "--", "--total-timesteps", "1"]
    assert sweep(place, *flags)[0] == 0
    (place / "mine.py").write_text(SCRIPT + "#")
    code, _, error = sweep(place, *flags)
    assert code == 2 and "was made by another version of mine.py" in error


def test_a_folder_of_somebody_else_is_left_alone(place):
    """Also one with a checkpoint, which is of no run of a sweep; no other run has begun then."""
    folder = place / "runs/sweep/mine__seed=2"
    folder.mkdir(parents=True)
    (folder / "checkpoint.pt").write_text("1")
    code, out, error = sweep(place, "mine.py", "--seeds", "1-2", "--", "--total-timesteps", "1")
    assert (code, out, error.count("\n")) == (2, "", 1)
    assert "mine__seed=2 is not empty, and holds no run of a sweep" in error
    assert [path.name for path in (place / "runs").rglob("*")] == ["sweep", "mine__seed=2", "checkpoint.pt"]
    (folder / "checkpoint.pt").rename(folder / "sweep.json.part")  # of a sweep that was killed at once
    assert sweep(place, "mine.py", "--seeds", "1-2", "--", "--total-timesteps", "1")[0] == 0


def test_cores_that_are_not_lent_are_left_alone(place):
    """On one core two runs are one after the other."""
    flags = ["mine.py", "--seeds", "1-2", "--", "--total-timesteps", "50"]
    only = {"preexec_fn": lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})}
    with subprocess.Popen([*SWEEP, *flags], cwd=place, stdout=subprocess.DEVNULL, **only) as process:
        while process.poll() is None:
            assert len(starts(place)) < 2 or len(results(place)) > 0
            time.sleep(0.02)
    assert len(results(place)) == 2


def test_a_script_that_changes_during_the_sweep_is_told(place):
    """The runs that begin later would be of another script than they say."""
    flags = ["mine.py", "--seeds", "1-2", "--workers", "1", "--", "--total-timesteps", "100"]
    with subprocess.Popen([*SWEEP, *flags], cwd=place, stdout=subprocess.PIPE, text=True) as process:
        while not steps_done(place):
            time.sleep(0.02)
        (place / "mine.py").write_text(SCRIPT + "#")
        out, _ = process.communicate()
    assert process.returncode == 1
    assert f"mine__seed=2: exit code 1, {place}/mine.py has changed since the sweep began" in out
    assert list(results(place)) == ["mine__seed=1"]


@pytest.mark.long
def test_a_script_of_the_family(tmp_path):
    """Killed between checkpoints it is resumed, and ends as an undisturbed run does."""
    flags = [str(ROOT / "ppo_discrete.py"), "--seeds", "1", "--", "--total-timesteps", "8192"]
    flags += ["--eval-episodes", "1", "--num-steps", "1024"]
    killed = subprocess.Popen([*SWEEP, *flags], cwd=tmp_path, stdout=subprocess.DEVNULL)
    folder = tmp_path / "runs/sweep/ppo_discrete__seed=1"
    while not (folder / "checkpoint.pt").exists():
        assert killed.poll() is None
        time.sleep(0.02)
    killed.terminate()
    killed.wait()
    assert "finished" not in json.loads((folder / "sweep.json").read_text())
    assert sweep(tmp_path, *flags)[0] == 0
    assert len(list(folder.glob("events*"))) == 2
    assert (folder / "log.txt").read_text().count("mean return") == 1


@pytest.mark.slow
def test_curves_and_pictures_of_a_sweep_that_was_killed(tmp_path):
    """At random, up to ten times, with all that it had started: they are those of an undisturbed one."""
    flags = [str(ROOT / "ppo_discrete.py"), "--seeds", "1-2", "--grid", "learning_rate=1e-3,1e-4", "--"]
    flags += ["--total-timesteps", "16384", "--num-steps", "1024", "--eval-episodes", "2"]
    (tmp_path / "whole").mkdir()
    assert sweep(tmp_path / "whole", *flags)[0] == 0
    (tmp_path / "killed").mkdir()
    chance, kills = random.Random(1), 0
    while kills < 10:
        process = subprocess.Popen([*SWEEP, *flags], cwd=tmp_path / "killed", stdout=subprocess.DEVNULL)
        time.sleep(chance.uniform(5, 15))
        if process.poll() is not None:
            break
        listed = subprocess.run(["ps", "-eww", "-o", "pid,args"], capture_output=True, text=True).stdout
        place = str(tmp_path / "killed")
        for pid in [process.pid, *(int(x.split()[0]) for x in listed.splitlines() if place in x)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        kills += 1
    assert sweep(tmp_path / "killed", *flags)[0] == 0 and kills
    outputs = []
    for name in ("whole", "killed"):
        line = [sys.executable, str(ROOT / "tools/compare.py"), "runs/sweep"]
        subprocess.run(line, cwd=tmp_path / name, check=True, stdout=subprocess.DEVNULL)
        files = (tmp_path / name / "runs/compare").iterdir()
        outputs.append({path.name: path.read_bytes() for path in files})
    assert len(outputs[0]) == 5 and outputs[0] == outputs[1]


# Counts as SCRIPT does, but faster, and says which version of it has begun.
VERSIONED = SCRIPT.replace("time.sleep(0.01)", "time.sleep(0.002)").replace(
    "import argparse, os, time\n",
    "import argparse, hashlib, os, time\n"
    "version = hashlib.sha256(globals().get('text', b'')).hexdigest()\n",  # the text that the runner executes
).replace('(folder / "junk").touch()', '(folder / "version").write_text(version)')  # fmt: skip


@pytest.mark.slow
def test_whatever_happens_nothing_is_lost(place):
    """100 runs: kills, a full disk, edits of the script, a folder of somebody else in the way."""
    script, chance, finished = place / "mine.py", random.Random(2), {}
    script.write_text(VERSIONED)
    flags = ["mine.py", "--seeds", "1-100", "--workers", "4", "--", "--total-timesteps", "20"]
    mine = place / "runs/sweep/mine__seed=77"
    mine.mkdir(parents=True)
    (mine / "thesis.txt").write_text("a year of work")
    assert "holds no run of a sweep" in sweep(place, *flags)[2]
    assert [path.name for path in (place / "runs/sweep").iterdir()] == [mine.name]
    mine.rename(place / "thesis")
    events = []
    while len(finished) < 100:
        event = chance.choice(["SIGTERM", "SIGKILL", "all", "disk", "edit", "nothing"])
        events.append(event)
        small = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (200, 200)) if event == "disk" else None
        process = subprocess.Popen(
            [*SWEEP, *flags],
            cwd=place,
            preexec_fn=small,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(chance.uniform(0.3, 3))
        if event == "edit":
            script.write_text(VERSIONED + "# edited")
            time.sleep(0.3)
        pids = [process.pid]
        if event == "all":
            listed = subprocess.run(["ps", "-eww", "-o", "pid,args"], capture_output=True, text=True).stdout
            pids += [int(line.split()[0]) for line in listed.splitlines() if str(place) in line]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM if event == "SIGTERM" else signal.SIGKILL)
        process.wait()
        script.write_text(VERSIONED)
        for path in (place / "runs/sweep").glob("*/sweep.json"):
            job = json.loads(path.read_text())
            if "finished" in job:
                assert (path.parent / "version").read_text() == job["sha256"]
                assert (path.parent / "result").read_text() == f"1 {job['seed']} None 20"
                assert finished.setdefault(path.parent.name, job) == job  # nothing finished is done again
    assert sweep(place, *flags)[0] == 0 and len(results(place)) == 100
    assert (place / "thesis/thesis.txt").read_text() == "a year of work"
    print(f"{len(events)} interruptions: {events}")


def test_how_far_a_run_is(tmp_path):
    """By what it has printed last, of its own flags or of the sweep's; 0 where nobody can tell."""
    sys.path.append(str(ROOT / "tools"))
    import sweep as module

    (tmp_path / "sweep.json").write_text('{"flags": ["--x", "1"]}')
    assert module.progress(tmp_path) == 0
    (tmp_path / "log.txt").write_text("4,096 steps  900 steps/s\n8,192 steps  1,000 steps/s  kl 0.1\n")
    assert module.progress(tmp_path) == 0
    (tmp_path / "args.json").write_text('{"total_timesteps": 16384}')
    assert module.progress(tmp_path) == 0.5
    (tmp_path / "sweep.json").write_text('{"flags": ["--total-timesteps", "1_000"]}')
    (tmp_path / "log.txt").write_text(
        "global_step=128, episodic_return=12\nglobal_step=250, episodic_return=9"
    )
    assert module.progress(tmp_path) == 0.25
    (tmp_path / "sweep.json").write_text('{"flags": ["--total-episodes=1000"]}')
    (tmp_path / "log.txt").write_text("500 completions  score 0.1\n")
    assert module.progress(tmp_path) == 0.5
    (tmp_path / "sweep.json").write_text('{"flags": []}')
    (tmp_path / "args.json").write_text('{"total_pairs": 400}')
    (tmp_path / "log.txt").write_text("100 pairs  accuracy 0.1\n")
    assert module.progress(tmp_path) == 0.25
