"""Checkpoints, resume, evaluation, video, wandb, and failures that lose nothing."""

import contextlib
import hashlib
import importlib
import io
import json
import math
import os
import pickle
import random
import signal
import struct
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import broken_envs
import numpy as np
import processes
import pytest
import torch
from conftest import (
    ATARI,
    CONTINUOUS,
    ROOT,
    SCRIPTS,
    VECTOR,
    leave_process_group,
    name_of,
    one_game,
    one_update,
    real,
    toy,
    updates_of,
    with_toys,
)
from moviepy import VideoFileClip
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard import SummaryWriter

import ppo_continuous
import ppo_discrete
from variants import ppo_atari_distributed, ppo_penalty


def checkpoint(run_dir):
    return torch.load(f"{run_dir}/checkpoint.pt", weights_only=True)


def same(a, b):
    """Equality to the bit, all the way down."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def same_end(run_dir, other):
    """Whether two runs have ended with the same agent, optimizer and returns."""
    keys = "agent", "optimizer", "iteration", "episodes"
    ends = checkpoint(run_dir), checkpoint(other)
    return all(same(ends[0][key], ends[1][key]) for key in keys)


@pytest.fixture
def command_line(monkeypatch, capfd):
    """command_line(script, *flags) runs main() -> exit code, stdout, stderr."""

    def run(script, *flags):
        monkeypatch.setattr(sys, "argv", [script.__file__, *map(str, flags)])
        code = 0
        capfd.readouterr()
        try:
            script.main()
        except script.Mistake as mistake:  # as below main(), which test_mistakes.py tests
            code = 2
            print(f"{name_of(script)}.py: {mistake}", file=sys.stderr)
        except SystemExit as error:  # of tyro
            code = error.code
        return code, *capfd.readouterr()

    return run


def flags_of(args):
    """The command line that gives args; in a process of its own, toys have to be imported."""
    flags = []
    for name, value in asdict(args).items():
        value = f"toy_envs:{value}" if str(value).startswith("toy/") else value
        if value != getattr(type(args)(), name):
            flag = f"--{name.replace('_', '-')}"
            if isinstance(value, bool):
                flags.append(flag if value else f"--no-{flag[2:]}")
            else:
                flags.append(f"{flag}={value}")
    return flags


def run(script, *flags, **kwargs):
    """The script, from a shell."""
    command = [sys.executable, script.__file__, *map(str, flags)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, **kwargs)


# ---- killed and resumed


def train_until_killed(name, args, owner, function, call, after):
    """In a process of its own: SIGKILL at the given call of owner.function, before or after it is done."""
    script, calls = importlib.import_module(name), 0
    if script in ATARI:
        script.make_envs = with_toys(script)
    owner = {"script": script, "os": os, "SummaryWriter": SummaryWriter}[owner]
    original, write = getattr(owner, function), RecordWriter.write

    def killer(*args, **kwargs):
        nonlocal calls
        calls += 1
        result = original(*args, **kwargs) if after else None
        if calls == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return result if after else original(*args, **kwargs)

    setattr(owner, function, killer)
    RecordWriter.write = lambda *args: time.sleep(0.002) or write(*args)  # curves on a slow disk
    script.train(script.Args(**args))


def test_killed_and_resumed_is_never_interrupted(script, make_args, capfd):
    """8 iterations, saved at 0, 2, 4 and 6; killed in updates, in saves, while logging, in rollouts.

    The env counts the episodes it has seen, whatever seed a reset gives it.
    """
    args = make_args(script, iterations=8, checkpoints=4, num_steps=16, env_id=toy(script, "Curriculum"))
    script.train(args)
    moments = [
        ("script", "compute_gradients", 2 * updates_of(args) + 1, False),  # in iteration 2
        ("os", "fsync", 2, False),  # from 2 on: while 4 is being saved
        ("SummaryWriter", "add_scalar", 15, False),  # from 2 on: after the update of 3
        ("os", "replace", 2, False),  # from 2 on: 4 is written, but not yet in its place
        ("script", "compute_gae", 4, False),  # from 2 on: after the rollout of 5
        ("script", "save", 2, True),  # from 4 on: 6 is saved, its envs are not made yet
    ]
    killed = replace(args, run_dir=make_args(script).run_dir)
    iterations = []
    for moment in moments:
        process = processes.context().Process(
            target=train_until_killed, args=(script.__name__, asdict(killed), *moment)
        )
        process.start()
        process.join(600)
        assert process.exitcode == -signal.SIGKILL
        iterations.append(checkpoint(killed.run_dir)["iteration"])
        killed = replace(killed, resume=killed.run_dir)
    assert iterations == [2, 2, 2, 2, 4, 6]
    time.sleep(1)  # TensorBoard tells files of one second by their process
    script.train(killed)
    assert same_end(killed.run_dir, args.run_dir)
    B = args.num_envs * args.num_steps
    for run_dir in (args.run_dir, killed.run_dir):
        events = EventAccumulator(run_dir, size_guidance={"scalars": 0}).Reload()
        for tag in events.Tags()["scalars"]:
            steps = [scalar.step for scalar in events.Scalars(tag)]
            assert steps == ([8 * B] if tag == "eval_return" else [B * i for i in range(1, 9)]), tag


def test_no_checkpoint_is_ahead_of_its_curves(script, make_args, no_evaluation, monkeypatch):
    """However slow their disk is: what a killed run had shown is there when it goes on."""
    write, save, steps = RecordWriter.write, script.save, {}

    def saving(run_dir, args, iteration, *parts):
        if iteration:
            scalars = EventAccumulator(str(run_dir)).Reload().Scalars("learning_rate")
            steps[iteration] = len(scalars)
        save(run_dir, args, iteration, *parts)

    monkeypatch.setattr(RecordWriter, "write", lambda *args: time.sleep(0.002) or write(*args))
    monkeypatch.setattr(script, "save", saving)
    script.train(make_args(script, iterations=3, checkpoints=3, env_id=toy(script, "Endless")))
    assert steps == {1: 1, 2: 2, 3: 3}


def family_of(pid):
    """A process and all that came of it: torchrun's workers have sessions of their own."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    children = [child for task in tasks for child in task.read_text().split()]
    return [int(pid), *(member for child in children for member in family_of(child))]


def run_program(name, flags):
    """The script's main(), as its command line would call it, and without a word."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1), os.dup2(1, 2)
    script = importlib.import_module(name)
    sys.argv = [script.__file__, *flags]
    script.main()


def start_program(script, flags):
    """A process that has imported what it needs: so kills hit training more often than imports."""
    if script is ppo_atari_distributed:
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.Popen([sys.executable, *torchrun, script.__file__, *flags], **quiet)
    process = processes.context().Process(target=run_program, args=(script.__name__, flags))
    process.start()
    process.wait = lambda: process.join() or process.exitcode
    return process


WALKER = dict(env_id="BipedalWalker-v3", env_kwargs='{"max_episode_steps": 20}', num_steps=32)
GAME = dict(env_id="Breakout", env_kwargs='{"max_num_frames_per_episode": 64}', num_steps=16)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "flags"),
    [(script, dict(env_id=toy(script, "Curriculum"))) for script in VECTOR]
    + [(script, GAME) for script in ATARI]
    + [(script, WALKER) for script in CONTINUOUS],
    ids=lambda x: x["env_id"] if isinstance(x, dict) else name_of(x),
)
def test_killed_at_any_moment(script, flags, make_args):
    """10 times, by kill -9, at random moments of a run's whole duration, its start included.

    In envs that count their episodes, in a game, and in one whose world outlives a reset.
    """
    args = make_args(script, iterations=400 if "Curriculum" in flags["env_id"] else 40, **flags)
    args.checkpoints, moments = 10, random.Random(0)
    if script is ppo_atari_distributed:
        args.total_timesteps *= 2
    start_program(script, flags_of(replace(args, run_dir=make_args(script).run_dir))).wait()  # imports, once
    start = time.time()
    assert start_program(script, flags_of(args)).wait() == 0
    duration, killed = time.time() - start, []
    for _ in range(10):
        again = replace(args, run_dir=make_args(script).run_dir)
        process = start_program(script, flags_of(again))
        time.sleep(moments.uniform(0, duration))
        with contextlib.suppress(ProcessLookupError):  # it was quicker than the first one
            for member in family_of(process.pid):
                os.kill(member, signal.SIGKILL)
        process.wait()
        begun = Path(again.run_dir, "checkpoint.pt").exists()
        killed.append(checkpoint(again.run_dir)["iteration"] if begun else -1)
        if not begun:  # there is nothing to go on with yet
            again.run_dir = make_args(script).run_dir
        flags = flags_of(again)
        if begun:
            flags = ["--resume", again.run_dir, *(flag for flag in flags if "toy_envs:" in flag)]
        assert start_program(script, flags).wait() == 0
        assert same_end(again.run_dir, args.run_dir), killed
    print(f"{name_of(script)}: {duration:.1f} s; killed after iterations {killed}")
    assert len(set(killed)) > 2


def test_a_finished_run_repeats_its_evaluation(script, make_args, command_line):
    """Which may have been missing; the checkpoint stays, whatever is asked for, and so do the curves."""
    args = make_args(script, iterations=2, eval_episodes=0)
    script.train(args)
    before = checkpoint(args.run_dir)
    for flags in (
        ["--eval-episodes=2"],
        ["--eval-episodes=2", f"--total-timesteps={args.total_timesteps // 2}"],
    ):
        code, out, err = command_line(script, "--resume", args.run_dir, *flags)
        assert (code, err) == (0, "") and " in 2 episodes of evaluation" in out.splitlines()[-1]
        after = checkpoint(args.run_dir)
        for state in (before, after):  # the learning rate in there is nobody's: each iteration sets its own
            state["optimizer"].pop("param_groups", None)
        assert all(same(before[name], after[name]) for name in before.keys() - {"args"})
        events = EventAccumulator(args.run_dir).Reload()
        B = args.num_envs * args.num_steps
        assert {scalar.step for scalar in events.Scalars("eval_return")} == {2 * B}
        assert [
            scalar.step for scalar in events.Scalars("kl" if hasattr(script, "ppo_loss") else "entropy")
        ] == [B, 2 * B]


@pytest.mark.parametrize("script", [x for x in SCRIPTS if x is not ppo_atari_distributed], ids=name_of)
def test_a_hook_sees_each_iteration_and_may_end_the_run(script, make_args):
    """The iteration is then saved and evaluated as the last one; resumed, the run goes on."""
    args, rows = make_args(script, iterations=4, learning_rate=1e-2, anneal_lr=False), []
    _, log = script.train(args, rows.append)
    assert log == rows and len(log) == 4
    _, log = script.train(make_args(script, iterations=4), lambda row: rows.append(row) or len(rows) == 6)
    assert log == rows[4:] and "eval_return" in log[-1]
    stopped = make_args(script, iterations=4)
    script.train(stopped, lambda _: True)
    assert checkpoint(stopped.run_dir)["iteration"] == 1
    _, log = script.train(replace(stopped, resume=stopped.run_dir))
    assert len(log) == 3


def test_flags_of_the_run_hold_unless_given_anew(script, make_args, command_line, no_evaluation):
    args = make_args(script, gamma=0.9, num_envs=2, iterations=2, learning_rate=1e-2)
    script.train(args)
    code, *_ = command_line(script, "--resume", args.run_dir, "--total-timesteps", 2 * args.total_timesteps)
    assert code == 0
    state = checkpoint(args.run_dir)
    assert state["iteration"] == 4
    changed = {"total_timesteps": 2 * args.total_timesteps, "resume": args.run_dir}
    assert state["args"] == asdict(args) | changed
    rates = EventAccumulator(args.run_dir).Reload().Scalars("learning_rate")
    assert [rate.value for rate in rates] == pytest.approx([1e-2, 5e-3, 5e-3, 2.5e-3])
    moved = Path(args.run_dir).rename(f"{args.run_dir}_moved")  # where it went on before is of no interest
    code, _, err = command_line(script, "--evaluate", moved)
    assert (code, err) == (0, "")


def test_checkpoints_at_regular_intervals(script, make_args, record, no_evaluation, monkeypatch):
    """From where a run starts or goes on, and at its end; the bar goes on there, too."""
    saves, bars, tqdm = record(script, "save"), [], script.tqdm
    monkeypatch.setattr(script, "tqdm", lambda *args, **style: bars.append(style) or tqdm(*args, **style))
    args = make_args(script, iterations=5, checkpoints=2, num_steps=16, env_id=toy(script, "TimesOut"))
    script.train(args)
    assert [iteration for (_, _, iteration, *_), _ in saves] == [0, 3, 5]
    saves.clear()
    more = args.total_timesteps // 5 * 12
    script.train(replace(args, resume=args.run_dir, total_timesteps=more, checkpoints=3))
    assert [iteration for (_, _, iteration, *_), _ in saves] == [5, 9, 12]
    spans = [(bar["initial"], bar["total"]) for bar in bars if "initial" in bar]  # not the evaluation's
    assert spans == [(0, args.total_timesteps), (args.total_timesteps, more)]


def test_a_cut_ends_no_episode_but_in_the_count(script, make_args, record, no_evaluation):
    """Envs start anew, what they had scored is forgotten, and the last value is still bootstrapped."""
    inputs = record(script, "compute_gae")
    sizes = dict(num_envs=1, num_steps=32, iterations=4, checkpoints=4) | one_update(script)
    _, log = script.train(make_args(script, env_id=toy(script, "TimesOut"), **sizes))
    for (_, _, _, dones, *_), _ in inputs:
        assert dones[:, 0].tolist() == [0.0, 0.0, 1.0] * 10 + [0.0, 0.0]
    assert log[-1]["episode_return"] == 6


def cuts_of(script, steps, make_args, record):
    """Where 12 iterations of 10 steps are cut, with episodes of so many; the last return."""
    saves = record(script, "save")
    limit = {"max_num_frames_per_episode": 4 * steps} if script in ATARI else {"max_episode_steps": steps}
    env_id = real(script)["env_id"] if script in ATARI else toy(script, "Endless")
    small = dict(num_envs=1, num_steps=10, iterations=12, checkpoints=12) | one_update(script)
    _, log = script.train(make_args(script, env_id=env_id, env_kwargs=json.dumps(limit), **small))
    return [iteration for (_, _, iteration, *_), _ in saves][:-1], log[-1]["episode_return"]


def test_cuts_are_rare(script, make_args, record, no_evaluation):
    """Ten episodes as long as the longest so far lie between two."""
    assert cuts_of(script, 3, make_args, record)[0] == [0, 3, 6, 9]
    assert cuts_of(script, 4, make_args, record)[0] == [0, 4, 8]


def test_a_cut_waits_for_what_has_not_ended(script, make_args, record, no_evaluation):
    """As long as the run is old, so that episodes of any length end, and envs without an end are saved."""
    cuts, episode_return = cuts_of(script, 40, make_args, record)
    assert cuts == [0, 1, 2, 4] and not math.isnan(episode_return)
    cuts, episode_return = cuts_of(script, 10_000, make_args, record)
    assert cuts == [0, 1, 2, 4, 8] and math.isnan(episode_return)


def test_flags_are_json(script, tmp_path):
    """Which has no infinity."""
    script.open_log(tmp_path, script.Args(gamma=math.inf), 0).close()

    def refuse(name):
        raise ValueError(f"{name} is not JSON")

    flags = json.loads((tmp_path / "args.json").read_text(), parse_constant=refuse)
    assert float(flags["gamma"]) == math.inf


def test_a_clock_that_goes_back_hides_no_row(make_args, monkeypatch):
    """TensorBoard reads a folder's files in the order of their names, which begin with the time."""
    args = make_args(ppo_discrete, iterations=4, checkpoints=4)
    ppo_discrete.train(args)
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() - 3600)
    ppo_discrete.train(replace(args, resume=args.run_dir, total_timesteps=2 * args.total_timesteps))
    events = EventAccumulator(args.run_dir, size_guidance={"scalars": 0}).Reload()
    assert {scalar.step for scalar in events.Scalars("kl")} == {64 * i for i in range(1, 9)}


# ---- evaluation and video


def test_evaluation_in_a_new_process_is_that_of_training(script, make_args, capsys):
    # Away from equal odds, with which any weights would play alike, but not so far that any seed would, too.
    moved = {"learning_rate": 0.01 if script in ATARI else 0.05}
    args = make_args(script, eval_episodes=3, iterations=2, **moved, **real(script))
    script.train(args)
    lines = capsys.readouterr().out.splitlines()[-3:]
    allowed = [flag for flag in flags_of(args) if "toy_envs:" in flag]
    evaluated = processes.run(script.__file__, "--evaluate", args.run_dir, *allowed)
    assert lines[1].startswith("returns of evaluation:") and len(lines[1].split()) == 3 + 3
    assert evaluated == (0, "\n".join([*lines, ""]), "")


def test_small_returns_are_not_rounded_away(script, make_args, monkeypatch, capsys):
    monkeypatch.setattr(script, "evaluate", lambda *_: [-0.25, 0.125])
    script.report(None, make_args(script), "here")
    assert capsys.readouterr().out.splitlines() == [
        "evaluation: 1 episodes, each until it ends",
        "returns of evaluation: -0.25 0.125",
        "mean return -0.0625 in 2 episodes of evaluation; see here",
    ]


def test_flags_of_an_evaluation_are_checked(script, make_args, command_line, no_evaluation):
    args = make_args(script, iterations=1)
    script.train(args)
    code, out, err = command_line(script, "--evaluate", args.run_dir, "--eval-episodes", -1)
    assert (code, out, err.count("\n")) == (2, "", 1) and "--eval-episodes -1 is not between 0 and" in err


def test_more_episodes_of_a_saved_run(script, make_args, command_line):
    args = make_args(script, iterations=1, eval_episodes=2)
    script.train(args)
    code, out, _ = command_line(script, "--evaluate", args.run_dir, "--eval-episodes", 5)
    assert code == 0 and len(out.splitlines()[1].split()) == 3 + 5


def test_evaluation_in_another_env(make_args, command_line):
    """If its spaces are the same."""
    args = make_args(ppo_discrete, iterations=1)
    ppo_discrete.train(args)
    code, out, _ = command_line(ppo_discrete, "--evaluate", args.run_dir, "--env-id", "toy/CartPole-v0")
    assert code == 0 and out.splitlines()[-1].startswith("mean return")
    code, out, err = command_line(ppo_discrete, "--evaluate", args.run_dir, "--env-id", "Acrobot-v1")
    assert (code, out, err.count("\n")) == (2, "", 1)
    message = "checkpoint.pt cannot be used: Error(s) in loading state_dict for Agent: size mismatch"
    assert f"{args.run_dir}/{message}" in err


def frames_of(run_dir):
    [path, *_] = Path(run_dir).glob("videos/*/*.mp4")
    with VideoFileClip(str(path)) as clip:
        return np.stack(list(clip.iter_frames()))


@pytest.mark.parametrize("script", [s for s in VECTOR if s not in CONTINUOUS], ids=name_of)
def test_video_is_of_a_whole_episode(script, make_args):
    """Of CartPole, where each step pays 1: the evaluation's only episode, once more."""
    args = make_args(script, iterations=1, capture_video=True)
    agent, log = script.train(args)
    frames = frames_of(args.run_dir)
    assert len(frames) == log[-1]["eval_return"] + 1
    assert (frames[1:] != frames[:-1]).any(axis=(1, 2, 3)).all()
    script.report(agent, args, Path(args.run_dir))
    assert len(list(Path(args.run_dir, "videos").iterdir())) == 2  # the old one stays


@pytest.mark.long
@one_game
def test_video_of_a_game(atari, make_args):
    args = make_args(atari, iterations=1, capture_video=True, **real(atari))
    agent, _ = atari.train(args)
    atari.report(agent, args, Path(args.run_dir))
    assert len(list(Path(args.run_dir, "videos").iterdir())) == 2  # the old one stays
    frames = frames_of(args.run_dir)
    assert len(frames) > 50 and frames.shape[1:] == (210, 160, 3)
    assert (frames[1:] != frames[:-1]).any(axis=(1, 2, 3)).mean() > 0.5
    red, _, blue = frames[0].reshape(-1, 3).astype(int).T
    assert (abs(red - blue) > 50).any()  # colours


@pytest.mark.long
def test_video_of_mujoco_without_a_display(make_args):
    args = make_args(ppo_continuous, env_id="Hopper-v5", iterations=1, capture_video=True)
    env = {name: value for name, value in os.environ.items() if name != "DISPLAY"} | {"MUJOCO_GL": "egl"}
    run(ppo_continuous, *flags_of(args), env=env, check=True)
    frames = frames_of(args.run_dir)
    assert len(frames) > 10
    assert (frames[1:] != frames[:-1]).any(axis=(1, 2, 3)).mean() > 0.9


# ---- wandb


def wandb_records(path):
    """The records of an offline run: a LevelDB log of protocol buffers."""
    from wandb.proto import wandb_internal_pb2

    content, offset, record = path.read_bytes(), 7, b""
    while offset + 7 <= len(content):
        left = 32768 - offset % 32768
        _, length, kind = struct.unpack("<IHB", content[offset : offset + 7]) if left >= 7 else (0, 0, 0)
        if kind == 0:
            offset += left
            continue
        part = content[offset + 7 : offset + 7 + length]
        offset += 7 + length
        record = part if kind in (1, 2) else record + part
        if kind in (1, 4):
            message = wandb_internal_pb2.Record()
            message.ParseFromString(record)
            yield message


def test_wandb_offline_has_everything(make_args, tmp_path):
    args = make_args(ppo_discrete, track=True, capture_video=True, gamma=0.9)
    env = os.environ | {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    run(ppo_discrete, *flags_of(args), env=env, cwd=tmp_path, check=True)
    [path] = Path(args.run_dir).glob("wandb/offline-run-*/*.wandb")
    records = list(wandb_records(path))
    [started] = [record.run for record in records if record.WhichOneof("record_type") == "run"]
    config = {item.key: json.loads(item.value_json) for item in started.config.update}
    assert config["gamma"] == 0.9 and asdict(args).keys() <= config.keys()
    history = [
        {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
        for record in records
        if record.WhichOneof("record_type") == "history"
    ]
    events = EventAccumulator(args.run_dir, size_guidance={"scalars": 0}).Reload()
    for tag in set(events.Tags()["scalars"]) - {"eval_return"}:
        ours = [scalar.value for scalar in events.Scalars(tag)]
        theirs = [float(row[tag]) for row in history if "eval_return" not in row]
        assert theirs == pytest.approx(ours, nan_ok=True), tag
    assert [row["steps"] for row in history] == [64, 128, 192, 256, 256]
    assert history[-1]["eval_return"] == pytest.approx(events.Scalars("eval_return")[0].value)
    assert any("_type" in key or "video" in key for key in history[-1])
    assert list(path.parent.glob("files/media/videos/**/*.mp4"))


def test_wandb_is_not_imported_unless_asked_for(make_args):
    code = "import sys, ppo_discrete as p; p.main(); print('wandb' in sys.modules)"
    command = [sys.executable, "-c", code, *flags_of(make_args(ppo_discrete, iterations=1))]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.stdout.splitlines()[-1] == "False"


# ---- failures


def broken(script, failure):
    broken_envs.Broken.steps = 0
    return f"broken_envs:broken/{failure}{'Continuous' * (script in CONTINUOUS)}-v0"


def not_ignored():
    """Ctrl-C, which a shell takes from what it runs in the background."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.filterwarnings("ignore:invalid value encountered")  # an infinite reward times 0
@pytest.mark.parametrize(
    ("failure", "kind", "message"),
    [
        ("NanObs", FloatingPointError, "obs is not finite before step 448"),
        ("NanFinalObs", FloatingPointError, "final_obs is not finite before step 448"),
        ("InfReward", FloatingPointError, "reward is not finite before step 448"),
        ("Raises", KeyError, "'the door is locked'"),
        ("Interrupted", KeyboardInterrupt, ""),
    ],
)
def test_failure(vector, failure, kind, message, make_args, no_evaluation):
    """In step 99 of each of 4 envs, that is, in iteration 6."""
    args = make_args(vector, env_id=broken(vector, failure), iterations=8, checkpoints=8)
    not_ignored()
    with pytest.raises(kind) as error:
        vector.train(args)
    assert str(error.value) == message
    assert checkpoint(args.run_dir)["iteration"] == 6
    assert all(tensor.isfinite().all() for tensor in checkpoint(args.run_dir)["agent"].values())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=str)
def test_signals_end_a_run_as_any_python_program(number, make_args):
    failure = "Interrupted" if number == signal.SIGINT else "Terminated"
    args = make_args(ppo_discrete, env_id=broken(ppo_discrete, failure), iterations=8, checkpoints=8)
    result = run(ppo_discrete, *flags_of(args), preexec_fn=not_ignored)
    assert result.returncode == -number
    assert result.stdout.splitlines()[0].endswith(f"--resume {args.run_dir} goes on from its last checkpoint")
    assert checkpoint(args.run_dir)["iteration"] == 6


@pytest.mark.long
def test_a_dead_env_process_ends_the_run(make_args):
    """In a process of its own, whose end shows what becomes of the envs that are left."""
    args = make_args(ppo_discrete, env_id=broken(ppo_discrete, "Dies"), iterations=32, async_envs=True)
    result = run(ppo_discrete, *flags_of(args))
    assert result.returncode == 1
    assert "Traceback (most recent call last):" in result.stderr


def test_async_envs_are_the_same_envs(vector, make_args, no_evaluation):
    args = [make_args(vector, async_envs=flag, iterations=2) for flag in (False, True)]
    agents = [vector.train(a)[0] for a in args]
    assert same(agents[0].state_dict(), agents[1].state_dict())


def test_exploding_loss(discrete, make_args, no_evaluation):
    """A finite reward whose square is not."""
    args = make_args(discrete, env_id=broken(discrete, "HugeReward"), iterations=8, checkpoints=8)
    with pytest.raises(FloatingPointError, match="^value_loss is not finite before step 448$"):
        discrete.train(args)
    assert checkpoint(args.run_dir)["iteration"] == 6
    assert all(tensor.isfinite().all() for tensor in checkpoint(args.run_dir)["agent"].values())


@pytest.mark.parametrize("script", [ppo_continuous, ppo_penalty, *ATARI], ids=name_of)
def test_exploding_weights(script, make_args, no_evaluation):
    """Of the others, tanh keeps what comes of them finite."""
    args = make_args(script, learning_rate=1e12, max_grad_norm=math.inf, checkpoints=4)
    with pytest.raises(FloatingPointError, match="^[a-z_.0-9]+ is not finite before step "):
        script.train(args)
    assert all(tensor.isfinite().all() for tensor in checkpoint(args.run_dir)["agent"].values())


def test_values_of_games_are_checked_too(atari, make_args, no_evaluation, monkeypatch):
    """What can be wrong with them is the value of a last observation."""
    forward = atari.Agent.forward

    def nan_at_the_end(self, obs, *rest):
        dist, value, *state = forward(self, obs, *rest)
        return dist, value.where(obs[..., -1, 0, 1] != 3, math.nan), *state

    monkeypatch.setattr(atari.Agent, "forward", nan_at_the_end)
    with pytest.raises(FloatingPointError, match="^final_value is not finite before step 16$"):
        atari.train(make_args(atari, env_id="toy/TimesOut-v0"))


def test_full_disk_while_saving(make_args):
    """From the third save on no file may grow beyond 50 kB, and a checkpoint is larger than that."""
    code = """if True:
        import resource
        import ppo_discrete
        original, saves = ppo_discrete.save, []
        def save(*args):
            saves.append(args)
            if len(saves) == 3:
                resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
            original(*args)
        ppo_discrete.save = save
        ppo_discrete.main()
    """
    args = make_args(ppo_discrete, checkpoints=4)
    command = [sys.executable, "-c", code, *flags_of(args)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == "OSError: [Errno 27] File too large"
    assert checkpoint(args.run_dir)["iteration"] == 1
    ppo_discrete.train(replace(args, env_id=f"toy_envs:{args.env_id}", resume=args.run_dir))
    assert checkpoint(args.run_dir)["iteration"] == 4


# ---- mistakes


class Malicious:
    def __init__(self, folder):
        self.command = f"touch {folder}/this-was-executed"

    def __reduce__(self):
        return os.system, (self.command,)


def truncated(path):
    path.write_bytes(path.read_bytes()[:-1000])


def longer(path):
    path.write_bytes(path.read_bytes() + b"x")


def sealed(path, content):
    """A file with the digest that a script expects at its end."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    path.write_bytes(buffer.getvalue() + hashlib.sha256(buffer.getvalue()).digest())


def empty(path):
    path.write_bytes(b"")


def malicious(path):
    sealed(path, {"writer": Malicious(path.parent)})


def plain_pickle(path):
    path.write_bytes(pickle.dumps(Malicious(path.parent)))


def other_script(path):
    sealed(path, checkpoint(path.parent) | {"writer": "ppo_other.py 0.9"})


def something_else(path):
    sealed(path, [1, 2, 3])


def missing(path):
    path.unlink()


DAMAGED = "it is damaged, or older than "
SPOILT = [
    (truncated, DAMAGED),
    (longer, DAMAGED),
    (empty, DAMAGED),
    (malicious, "Weights only load failed"),
    (plain_pickle, DAMAGED),
    (other_script, "it was written by ppo_other.py 0.9"),
    (something_else, ""),
    (missing, "[Errno 2] No such file or directory"),
]


@pytest.mark.parametrize("flag", ["--resume", "--evaluate"])
def test_spoiled_checkpoint(script, flag, make_args, command_line, no_evaluation):
    args = make_args(script, iterations=1)
    script.train(args)
    path = Path(args.run_dir, "checkpoint.pt")
    whole = path.read_bytes()
    for spoil, message in SPOILT:
        path.write_bytes(whole)
        spoil(path)
        code, out, err = command_line(script, flag, args.run_dir)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert err.startswith(f"{name_of(script)}.py: {path} cannot be used: {message}")
        assert not Path(args.run_dir, "this-was-executed").exists()


@pytest.mark.parametrize("what", ["shape", "strides", "step", "missing"])
def test_crafted_optimizer_states_are_refused(script, what, make_args, no_evaluation, capsys):
    """A fused step would write through them, wherever that leads."""
    args = make_args(script, iterations=1)
    script.train(args)
    path = Path(args.run_dir, "checkpoint.pt")
    state = checkpoint(args.run_dir)
    moments = max(state["optimizer"]["state"].values(), key=lambda x: x["exp_avg"].numel())
    if what == "shape":
        moments["exp_avg"] = moments["exp_avg"][:1]
    if what == "strides":
        moments["exp_avg_sq"] = torch.zeros(1).expand(moments["exp_avg_sq"].shape)
    if what == "step":
        moments["step"] = torch.zeros(0)
    if what == "missing":
        del moments["exp_avg"]
    sealed(path, state)
    with pytest.raises(script.Mistake, match=f"{path} cannot be used: "):
        script.train(replace(args, resume=args.run_dir, total_timesteps=2 * args.total_timesteps))


@pytest.mark.slow
def test_each_byte_of_a_checkpoint(script, make_args, no_evaluation, capfd):
    """One byte is changed at a time; of a game's 20 MB, some 4,000 are."""
    args = make_args(script, iterations=1)
    script.train(args)
    path = Path(args.run_dir, "checkpoint.pt")
    whole, refused = path.read_bytes(), 0
    few = [*range(2000), *range(2000, len(whole) - 20000, len(whole) // 1000)]
    positions = range(len(whole)) if script in VECTOR else [*few, *range(len(whole) - 20000, len(whole), 20)]
    for position in positions:
        with open(path, "r+b") as file:
            file.seek(position)
            file.write(bytes([whole[position] ^ 1 << position % 8]))
        with pytest.raises(script.Mistake):
            script.load(args.run_dir)
        refused += 1
        with open(path, "r+b") as file:
            file.seek(position)
            file.write(whole[position : position + 1])
    script.load(args.run_dir)
    with capfd.disabled():
        print(f"{name_of(script)}: {refused:,} of {len(whole):,} bytes changed, each refused")


def evil_run(script, make_args, folder, **flags):
    """A run whose flags name a module beside it, which says when it is imported."""
    args = make_args(script, iterations=1)
    script.train(args)
    (folder / "evil.py").write_text("print('imported')")
    state = checkpoint(args.run_dir)
    state["args"] |= flags
    sealed(Path(args.run_dir, "checkpoint.pt"), state)
    return args.run_dir


@pytest.mark.parametrize("flag", ["--resume", "--evaluate"])
def test_a_run_imports_no_module(script, flag, make_args, command_line, no_evaluation, tmp_path, monkeypatch):
    """Unless the command line names it, too."""
    monkeypatch.chdir(tmp_path)
    run_dir = evil_run(script, make_args, tmp_path, env_id="evil:CartPole-v1")
    code, out, err = command_line(script, flag, run_dir)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"{run_dir} would import code; if you trust it, add --env-id evil:CartPole-v1" in err
    if script in VECTOR:
        code, out, _ = command_line(script, flag, run_dir, "--env-id", "evil:CartPole-v1")
        assert out.startswith("imported") or "evil" in sys.modules
        sys.modules.pop("evil", None)


def test_statistics_that_overflow_are_not_saved(continuous, make_args, no_evaluation):
    """An observation of 1e25, whose square is no float any more; the last checkpoint stays."""
    args = make_args(continuous, env_id="toy/HugeContinuous-v0", iterations=4)
    with pytest.raises(FloatingPointError, match=r"^obs_stats\.var is not finite before step 128$"):
        continuous.train(args)
    assert checkpoint(args.run_dir)["iteration"] == 0
    assert all(x.isfinite().all() for x in checkpoint(args.run_dir)["agent"].values())


def test_a_run_that_failed_before_its_first_checkpoint_is_no_hindrance(
    script, make_args, command_line, no_evaluation, monkeypatch
):
    args = make_args(script, iterations=1)
    with monkeypatch.context() as patch, pytest.raises(OSError, match="no space left"):
        patch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("no space left")))
        script.train(args)
    leave_process_group()
    script.train(args)
    assert checkpoint(args.run_dir)["iteration"] == 1
    with pytest.raises(script.Mistake):
        script.train(args)  # but a checkpoint is


def test_tracking_without_a_login_is_one_line(make_args, tmp_path):
    args = make_args(ppo_discrete, track=True)
    env = {name: value for name, value in os.environ.items() if "WANDB" not in name} | {"HOME": str(tmp_path)}
    result = run(ppo_discrete, *flags_of(args), env=env)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1 and "ppo_discrete.py: --track: " in result.stderr


def test_infos_may_differ(vector, make_args):
    """Between envs and from step to step: what the scripts do not read does not leave an env."""
    agent, log = vector.train(make_args(vector, env_id=toy(vector, "Tells"), eval_episodes=3))
    assert log[-1]["eval_return"] == 10


def test_what_cannot_change_when_resumed(script, make_args, command_line, no_evaluation):
    args = make_args(script, iterations=2)
    script.train(args)
    for flag in (f"--env-id={toy(script, 'TimesOut')}", "--seed=2", "--num-envs=2", "--num-steps=2"):
        code, out, err = command_line(script, "--resume", args.run_dir, "--total-timesteps", 4096, flag)
        assert (code, out, err.count("\n")) == (2, "", 1)
        name = flag.split("=")[0]
        value = getattr(args, name[2:].replace("-", "_"))
        assert f"{args.run_dir}/checkpoint.pt cannot be used: {name} cannot change: it has {value}" in err


def test_deviations_cannot_change_when_resumed(continuous, make_args, command_line, no_evaluation):
    """They are learned: only a fresh run begins with those of the flag."""
    args = make_args(continuous, log_std_init=-1.0)
    continuous.train(args)
    code, out, err = command_line(continuous, "--resume", args.run_dir, "--log-std-init", -2)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "--log-std-init cannot change: it has -1.0" in err


def test_another_network_is_refused(atari, make_args, command_line, no_evaluation):
    args = make_args(atari, env_id="Pong", iterations=1)
    atari.train(args)
    for flags in (["--evaluate", args.run_dir], ["--resume", args.run_dir, "--total-timesteps", 128]):
        code, out, err = command_line(atari, *flags, "--full-action-space")
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "checkpoint.pt cannot be used: Error(s) in loading state_dict for Agent: size mismatch" in err


def test_two_folders_at_once_are_refused(script, command_line):
    for flags in (["--resume", "a", "--evaluate", "b"], ["--resume", "a", "--run-dir", "b"]):
        code, out, err = command_line(script, *flags)
        assert (code, out) == (2, "")
        assert err == f"{name_of(script)}.py: --run-dir, --resume and --evaluate exclude each other\n"


def test_interrupted_in_the_last_evaluation(script, make_args, command_line, monkeypatch):
    """The run is whole, and the evaluation can be had again."""
    args = make_args(script, iterations=1)

    def interrupted(*args):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(script, "evaluate", interrupted)
        script.train(args)
    assert checkpoint(args.run_dir)["iteration"] == 1
    code, out, _ = command_line(script, "--evaluate", args.run_dir)
    assert code == 0 and out.splitlines()[-1].startswith("mean return")
