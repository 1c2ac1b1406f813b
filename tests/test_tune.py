"""tools/tune.py: it finds what is good, stops what is not, and loses nothing when it is killed."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT

TUNE = [sys.executable, str(ROOT / "tools/tune.py")]
# Its return rises to 100 where --rate is 0.5, and less the further it is from there; --epochs does nothing.
SCRIPT = """
import argparse, os, time
from pathlib import Path
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
parser = argparse.ArgumentParser()
for name in ("--seed", "--run-dir", "--resume", "--total-timesteps"):
    parser.add_argument(name)
parser.add_argument("--rate", type=float, default=9)
parser.add_argument("--update-epochs", type=int)
args = parser.parse_args()
folder = Path(args.resume or args.run_dir)
checkpoint = folder / "checkpoint.pt"
done = int(checkpoint.read_text()) if args.resume else 0
with (folder / "starts").open("a") as starts:
    print(done, file=starts)
if args.rate > 8 and int(args.seed) > 1000:
    raise ValueError("too fast")
writer = EventFileWriter(str(folder))
for step in range(done + 1, int(args.total_timesteps) + 1):
    time.sleep(0.01)
    value = step * (1 - abs(args.rate - 0.5))
    summary = Summary(value=[Summary.Value(tag="episode_return", simple_value=value)])
    writer.add_event(Event(step=step, wall_time=time.time(), summary=summary))
    writer.flush()
    (folder / "part").write_text(str(step))
    os.replace(folder / "part", checkpoint)
"""
SPACE = "rate = {low = 0.0, high = 4.0}\nupdate_epochs = [1, 2]\n"
FLAGS = ["mine.py", "--space", "space.toml", "--seeds", "1001", "--report", "1,3"]
TOTAL = ["--", "--total-timesteps", "60"]


@pytest.fixture
def place(tmp_path):
    (tmp_path / "mine.py").write_text(SCRIPT)
    (tmp_path / "space.toml").write_text(SPACE)
    return tmp_path


def tune(place, *flags, total=TOTAL):
    line = [*TUNE, *FLAGS, *flags, *total]
    done = subprocess.run(line, cwd=place, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def steps_of(place):
    return {x.parent.parent.name: int(x.read_text()) for x in place.glob("runs/tune/*/*/checkpoint.pt")}


@pytest.mark.long
def test_it_stops_what_is_not_good_and_reports_the_best(place, monkeypatch):
    """Shown on other seeds, beside the default flags; a command ends it, that can be pasted.

    The first rates are given, since those drawn may all be better than the median of what came before.
    A step takes long enough for a run to be looked at before it is over, on a busy machine, too.
    """
    (place / "mine.py").write_text(SCRIPT.replace("sleep(0.01)", "sleep(0.04)"))
    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(ROOT / "tools")
    from tune import open_study

    study = open_study(Path("runs/tune"), shlex.join(["mine.py", *TOTAL[1:]]), "mine.py")
    for rate in (1.0, 1.2, 1.4, 1.6, 1.8, 3.5, 0.7):
        study.enqueue_trial({"rate": rate})
    code, out, _ = tune(place, "--trials", "9")
    assert code == 0
    trials = re.findall(r"^trial (\d+): (\w+) ([\d.-]*) ?\{'rate': ([\d.e-]+), ", out, re.M)
    assert [int(number) for number, *_ in trials] == list(range(9))
    assert [state for _, state, *_ in trials[:7]] == ["done"] * 5 + ["stopped", "done"]
    values = {float(rate): float(value) for _, state, value, rate in trials if state == "done"}
    assert all(value == pytest.approx(60 * (1 - abs(rate - 0.5)), abs=0.4) for rate, value in values.items())
    stopped = [float(rate) for _, state, _, rate in trials if state == "stopped"]
    assert min(abs(rate - 0.5) for rate in stopped) > min(abs(rate - 0.5) for rate in values)
    searched = {name: steps for name, steps in steps_of(place).items() if "-" not in name}
    early = [steps for steps in searched.values() if steps < 60]
    assert len(early) == len(stopped) and min(early) >= 60 / 8
    best = max(values, key=values.get)
    rows = {row.split("|")[1].strip(): row.split("|")[2:4] for row in out.splitlines() if row[:1] == "|"}
    assert rows["found"][0].strip() == rows["default"][0].strip() == "2"
    found = rows["found"][1].strip(" *").replace("−", "-")  # a typographic minus is no number to Python
    assert float(found) == pytest.approx(values[best], abs=0.4)
    command = out.splitlines()[-1]
    assert command.startswith(f"python mine.py --total-timesteps 60 --rate {best:.4g} --update-epochs ")
    seeds = {json.loads(x.read_text())["seed"] for x in place.glob("runs/tune/*/*/sweep.json")}
    assert seeds == {1001, 1, 3}
    again = tune(place, "--trials", "9")[1]  # nothing is left to do
    assert again.splitlines()[-1] == command and "trial" not in again.partition("|")[0]


@pytest.mark.long
def test_killed_it_goes_on_with_the_same_trial(place):
    """Its runs, which SIGKILL leaves behind, too, are not repeated."""
    line = [*TUNE, *FLAGS, "--trials", "3", *TOTAL]
    for kill in (signal.SIGTERM, signal.SIGKILL):
        before = sum(steps_of(place).values())
        process = subprocess.Popen(line, cwd=place, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while sum(steps_of(place).values()) < before + 10:
            assert process.poll() is None
            time.sleep(0.02)
        os.kill(process.pid, kill)
        process.wait()
    code, out, _ = tune(place, "--trials", "3")
    searched = {path.parent.parent.name: path.read_text() for path in place.glob("runs/tune/*/*/starts")}
    searched = {name: text for name, text in searched.items() if "-" not in name}
    assert code == 0 and len(searched) == 3
    begun = sorted(text.split() for text in searched.values())
    assert begun[:2] == [["0"], ["0"]] and int(begun[2][1]) >= 10  # one went on where it was


@pytest.mark.long
def test_processes_share_a_study(place):
    line = [*TUNE, *FLAGS, "--trials", "4", *TOTAL]
    both = [subprocess.Popen(line, cwd=place, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outs = [process.communicate()[0] for process in both]
    numbers = [sorted(map(int, re.findall(r"^trial (\d+)", out, re.M))) for out in outs]
    assert all(numbers) and sorted(sum(numbers, [])) in ([0, 1, 2, 3], [0, 1, 2, 3, 4])  # both may begin one
    assert any("python mine.py" in out for out in outs)


@pytest.mark.long
def test_a_process_leaves_the_trials_of_others_alone(place):
    """That begins while another one is in a trial: neither takes what the other has."""
    line = [*TUNE, *FLAGS, "--trials", "2", "--", "--total-timesteps", "400"]
    first = subprocess.Popen(line, cwd=place, stdout=subprocess.PIPE, text=True)
    while sum(steps_of(place).values()) < 5:
        assert first.poll() is None
        time.sleep(0.02)
    second = subprocess.run(line, cwd=place, capture_output=True, text=True).stdout
    out = first.communicate()[0]
    assert "trial 0: done" in out and "trial 1: done" in second and "failed" not in out + second


@pytest.mark.long
def test_trials_that_fail_do_not_count(place):
    """Three in a row end the search; when the script is mended, the same command goes on."""
    (place / "space.toml").write_text("rate = [9.00001]")
    line = dict(total=["--", "--total-timesteps=2"])
    code, out, error = tune(place, "--trials", "2", "--report", "1", **line)
    assert code == 2 and out.count("exit code 1, ValueError: too fast") == 3
    assert "trial 2: failed {'rate': 9.00001}" in out
    assert error == "tune.py: three trials have failed, one after the other; what is above says why\n"
    [job] = map(json.loads, (path.read_text() for path in place.glob("runs/tune/*/*/sweep.json")))
    assert job["flags"][-1] == "9.00001"  # a value of a list is used as it is
    (place / "mine.py").write_text(SCRIPT.replace('raise ValueError("too fast")', "pass"))
    code, out, error = tune(place, "--trials", "2", "--report", "1", **line)
    assert (code, error) == (0, "") and "trial 4: done" in out and "the best of 2 trials" in out
    (place / "mine.py").write_text(SCRIPT)
    code, _, error = tune(place, "--trials", "3", "--report", "1", **line)
    assert code == 2 and "mine.py has changed since its first trials; take another --out" in error


@pytest.mark.long
def test_language_models_are_searched_by_their_score(place):
    (place / "mine.py").write_text(SCRIPT.replace("total-timesteps", "total-episodes").replace(
        "total_timesteps", "total_episodes").replace("episode_return", "score"))  # fmt: skip
    line = dict(total=["--", "--total-episodes", "8"])
    code, out, _ = tune(place, "--trials", "1", "--report", "1", **line)
    assert code == 0 and re.search(r"^trial 0: done -?[\d.]+ ", out, re.M)


@pytest.mark.parametrize(
    "flags, mistake",
    [
        (["--report", "7,1001"], "--seeds and --report share a seed"),
        (["--space", "gone.toml"], "gone.toml"),
        (["--space", "bad.toml"], "bad.toml"),
        (["--space", "other.toml"], "mine.py has no flag wings"),
        (["--", "--total-timesteps", "2", "--wings", "2"], "mine.py has no flag --wings"),
    ],
)
def test_mistakes_are_told_in_one_line(place, flags, mistake):
    (place / "bad.toml").write_text("rate = 3")
    (place / "other.toml").write_text("wings = [2]")
    code, _, error = tune(place, *flags)
    assert code == 2 and mistake in error and len(error.splitlines()) == 1
    assert not list(place.glob("runs/tune/*/*"))


def test_rungs_need_to_know_where_the_end_is(place):
    assert "no --total-timesteps after --" in tune(place, total=[])[2]
