"""Checkpoints, resume, evaluation, video, wandb, torchrun, and failures that lose nothing."""

import json
import math
import multiprocessing
import os
import pickle
import signal
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import SCRIPTS
from moviepy import VideoFileClip
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import ppo_atari
import ppo_continuous
import ppo_discrete
import reinforce_baseline

ROOT = Path(ppo_discrete.__file__).parent


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


@pytest.fixture
def command_line(monkeypatch, capfd):
    """command_line(script, *flags) runs main() -> exit code, stdout, stderr."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def run(script, *flags):
        monkeypatch.setattr(sys, "argv", [script.__file__, *map(str, flags)])
        code = 0
        capfd.readouterr()
        signal.alarm(120)  # a run that hangs must not hang the tests
        try:
            script.main()
        except SystemExit as error:
            code = error.code
        signal.alarm(0)
        return code, *capfd.readouterr()

    yield run
    for number, handler in handlers.items():
        signal.signal(number, handler)


def flags_of(args):
    """The command line that gives args."""
    flags = []
    for name, value in asdict(args).items():
        if value != getattr(type(args)(), name):
            flag = f"--{name.replace('_', '-')}"
            flags += (
                [flag if value else f"--no-{flag[2:]}"] if isinstance(value, bool) else [f"{flag}={value}"]
            )
    return flags


# ---- killed and resumed


def train_until_killed(name, args, module, function, call):
    """In a process of its own: SIGKILL at the given call of module.function."""
    script = __import__(name)
    owner, calls = sys.modules[name] if module == "script" else __import__(module), 0
    original = getattr(owner, function)

    def killer(*args, **kwargs):
        nonlocal calls
        calls += 1
        if calls == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args, **kwargs)

    setattr(owner, function, killer)
    script.train(script.Args(**args))


def test_killed_and_resumed_is_never_interrupted(script, make_args, capfd):
    """8 iterations, saved at 0, 2, 4 and 6; killed in updates, in saves, while logging, in rollouts."""
    args = make_args(script, total_timesteps=512, checkpoints=4)
    script.train(args)
    expected = checkpoint(args.run_dir)
    loss = "reinforce_loss" if script is reinforce_baseline else "ppo_loss"
    updates = 1 if script is reinforce_baseline else 16
    moments = [
        ("script", loss, 2 * updates + 1),  # in iteration 2
        ("os", "fsync", 2),  # from 2 on: while 4 is being saved
        ("script", "explained_variance", 2),  # from 2 on: after the update of 3
        ("os", "replace", 2),  # from 2 on: 4 is written, but not yet in its place
        ("script", "compute_gae", 4),  # from 2 on: after the rollout of 5
        ("script", "env_seeds", 2),  # from 4 on: in the cut of 4
    ]
    killed = make_args(script, total_timesteps=512, checkpoints=4)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([module.__name__ for module in SCRIPTS])
    iterations = []
    for moment in moments:
        process = context.Process(target=train_until_killed, args=(script.__name__, asdict(killed), *moment))
        process.start()
        process.join(120)
        assert process.exitcode == -signal.SIGKILL
        iterations.append(checkpoint(killed.run_dir)["iteration"])
        killed = replace(killed, resume=killed.run_dir)
    assert iterations == [2, 2, 2, 2, 4, 4]
    time.sleep(1)  # TensorBoard tells files of one second by their process
    script.train(killed)
    ended = checkpoint(killed.run_dir)
    for key in ("agent", "optimizer", "iteration", "episode_returns"):
        assert same(ended[key], expected[key]), key
    for run_dir in (args.run_dir, killed.run_dir):
        events = EventAccumulator(run_dir, size_guidance={"scalars": 0}).Reload()
        for tag in events.Tags()["scalars"]:
            steps = [scalar.step for scalar in events.Scalars(tag)]
            assert steps == ([512] if tag == "eval_return" else list(range(64, 513, 64))), tag


def test_resuming_a_finished_run_changes_nothing(script, make_args, command_line):
    args = make_args(script, total_timesteps=64)
    script.train(args)
    before = {path: path.read_bytes() for path in Path(args.run_dir).iterdir()}
    code, out, err = command_line(script, "--resume", args.run_dir)
    assert (code, err) == (0, "")
    assert "is finished" in out
    assert {path: path.read_bytes() for path in Path(args.run_dir).iterdir()} == before


def test_flags_of_the_run_hold_unless_given_anew(make_args, command_line):
    args = make_args(ppo_discrete, gamma=0.9, num_envs=2, total_timesteps=64, learning_rate=1e-2)
    ppo_discrete.train(args)
    code, out, _ = command_line(ppo_discrete, "--resume", args.run_dir, "--total-timesteps", 128)
    assert code == 0
    state = checkpoint(args.run_dir)
    assert state["iteration"] == 4
    assert state["args"] == asdict(args) | {"total_timesteps": 128, "resume": args.run_dir}
    rates = EventAccumulator(args.run_dir).Reload().Scalars("learning_rate")
    assert [rate.value for rate in rates] == pytest.approx([1e-2, 5e-3, 5e-3, 2.5e-3])


def test_checkpoints_at_regular_intervals(ppo, make_args, record):
    saves = record(ppo, "save")
    ppo.train(make_args(ppo, total_timesteps=640, checkpoints=5))
    assert [iteration for (_, _, iteration, *_), _ in saves] == [0, 2, 4, 6, 8, 10]
    saves.clear()
    ppo.train(make_args(ppo, total_timesteps=704, checkpoints=4))
    assert [iteration for (_, _, iteration, *_), _ in saves] == [0, 3, 6, 9, 11]


def test_a_cut_ends_no_episode_but_in_the_count(make_args, record):
    """Envs start anew, what they had scored is forgotten, and the last value is still bootstrapped."""
    inputs = record(ppo_discrete, "compute_gae")
    args = make_args(ppo_discrete, env_id="toy/TimesOut-v0", num_envs=1, total_timesteps=64, checkpoints=4)
    _, log = ppo_discrete.train(args)
    for (_, _, dones, *_), _ in inputs:
        assert dones[:, 0].tolist() == [0.0, 0.0, 1.0] * 5 + [0.0]
    assert log[-1]["episode_return"] == 6


# ---- evaluation and video


def test_evaluation_in_a_new_process_is_that_of_training(script, make_args, tmp_path):
    args = make_args(script, eval_episodes=3)
    run = [sys.executable, script.__file__]
    trained = subprocess.run(
        [*run, *flags_of(args)], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    evaluated = subprocess.run(
        [*run, "--evaluate", args.run_dir], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    lines = trained.stdout.splitlines()[-2:]
    assert lines[0].startswith("returns of evaluation:") and len(lines[0].split()) == 6
    assert evaluated.stdout.splitlines() == lines


def test_more_episodes_of_a_saved_run(make_args, command_line):
    args = make_args(ppo_continuous, eval_episodes=2)
    ppo_continuous.train(args)
    code, out, _ = command_line(ppo_continuous, "--evaluate", args.run_dir, "--eval-episodes", 5)
    assert code == 0 and len(out.splitlines()[0].split()) == 3 + 5


def frames_of(run_dir):
    [path] = Path(run_dir).glob("videos/*.mp4")
    with VideoFileClip(str(path)) as clip:
        return np.stack(list(clip.iter_frames()))


@pytest.mark.parametrize("script", [ppo_discrete, ppo_atari])
def test_video(script, make_args):
    args = make_args(script, total_timesteps=64, capture_video=True)
    script.train(args)
    frames = frames_of(args.run_dir)
    assert len(frames) > 8
    assert (frames[1:] != frames[:-1]).any(axis=(1, 2, 3)).mean() > 0.5
    if script is ppo_atari:
        assert frames.shape[1:] == (210, 160, 3)
        red, _, blue = frames[0].reshape(-1, 3).astype(int).T
        assert (abs(red - blue) > 50).any()  # colours


def test_video_of_mujoco_without_a_display(make_args):
    args = make_args(ppo_continuous, env_id="Hopper-v5", total_timesteps=64, capture_video=True)
    env = {name: value for name, value in os.environ.items() if name != "DISPLAY"} | {"MUJOCO_GL": "egl"}
    subprocess.run([sys.executable, ppo_continuous.__file__, *flags_of(args)], env=env, check=True)
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
    subprocess.run(
        [sys.executable, ppo_discrete.__file__, *flags_of(args)], env=env, cwd=tmp_path, check=True
    )
    [path] = Path(args.run_dir).glob("wandb/offline-run-*/*.wandb")
    records = list(wandb_records(path))
    [run] = [record.run for record in records if record.WhichOneof("record_type") == "run"]
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
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


def test_wandb_is_not_imported_unless_asked_for():
    code = (
        "import sys, ppo_discrete as p; p.train(p.Args(total_timesteps=512)); print('wandb' in sys.modules)"
    )
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory() as folder:
        out = subprocess.run(
            [sys.executable, "-c", code], cwd=folder, env=env, capture_output=True, text=True
        )
    assert out.stdout.splitlines()[-1] == "False"


# ---- torchrun


def torchrun(script, args, folder, dies_at=0, check=True):
    driver = [
        ROOT / "tests/torchrun_driver.py",
        ROOT,
        script.__name__,
        json.dumps(asdict(args)),
        folder,
        dies_at,
    ]
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        2,
        "--standalone",
        *driver,
    ]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    result = subprocess.run(list(map(str, command)), env=env, capture_output=True, text=True, timeout=60)
    assert not check or result.returncode == 0, result.stderr
    return result.returncode, [Path(folder, f"rank{rank}.pt") for rank in (0, 1)]


def load_ranks(paths):
    return [torch.load(path, weights_only=True) for path in paths]


def test_two_processes_end_with_the_same_weights_and_statistics(make_args, tmp_path):
    args = make_args(ppo_continuous, total_timesteps=512, checkpoints=2)
    _, paths = torchrun(ppo_continuous, args, tmp_path)
    first, second = load_ranks(paths)
    assert same(first["agent"], second["agent"])
    assert same(first["optimizer"], second["optimizer"])
    assert first["agent"]["obs_stats.count"] == pytest.approx(512)  # of both processes
    assert not torch.equal(first["batch"][0], second["batch"][0])  # which saw different envs
    assert checkpoint(args.run_dir)["iteration"] == 4
    assert len(list(Path(args.run_dir).glob("events*"))) == 1


def test_two_processes_resumed(make_args, tmp_path):
    whole = make_args(ppo_discrete, total_timesteps=512, checkpoints=2)
    torchrun(ppo_discrete, whole, tmp_path)
    half = make_args(ppo_discrete, total_timesteps=512, checkpoints=2)
    code, _ = torchrun(ppo_discrete, half, tmp_path, dies_at=3 * 16 + 1, check=False)
    assert code != 0  # one process that dies ends them all
    assert checkpoint(half.run_dir)["iteration"] == 2
    torchrun(ppo_discrete, replace(half, resume=half.run_dir), tmp_path)
    assert same(checkpoint(half.run_dir)["agent"], checkpoint(whole.run_dir)["agent"])
    with pytest.raises(SystemExit):  # nor can it become another number of processes
        ppo_discrete.train(replace(half, resume=half.run_dir))


def test_torchrun_from_the_shell(make_args):
    """One of the two speaks, and what it says last is not lost."""
    args = make_args(ppo_discrete, total_timesteps=256)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += [ppo_discrete.__file__, *flags_of(args)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    lines = result.stdout.splitlines()
    assert result.returncode == 0, result.stderr
    assert lines[0].startswith("CartPole-v1 on cpu, 256 steps")
    assert [line.split()[0] for line in lines[1:3]] == ["128", "256"]
    assert lines[-1].startswith("mean return") and len(lines) == 5


def test_gradient_of_two_processes_is_that_of_both_batches(make_args, tmp_path):
    flags = dict(norm_adv=False, update_epochs=1, num_minibatches=1, learning_rate=0.0, total_timesteps=128)
    args = make_args(ppo_discrete, **flags)
    _, paths = torchrun(ppo_discrete, args, tmp_path)
    states = load_ranks(paths)
    agent = ppo_discrete.Agent(ppo_discrete.make_envs(args, 1))
    agent.load_state_dict(states[0]["agent"])
    both = ppo_discrete.Batch(*(torch.cat(x) for x in zip(*(s["batch"] for s in states), strict=True)))
    loss, _ = ppo_discrete.ppo_loss(*agent(both.obs), both, args)
    loss.backward()
    for state in states:
        for parameter, gradient in zip(agent.parameters(), state["gradients"], strict=True):
            torch.testing.assert_close(gradient, parameter.grad, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize(("target_kl", "epochs"), [(0.4, 1), (0.6, 4)])
def test_target_kl_stops_both_processes_together(target_kl, epochs, make_args, tmp_path):
    """By their mean KL, here (0 + 1) / 2: by one's own, only one of them would stop."""
    _, paths = torchrun(ppo_discrete, make_args(ppo_discrete, target_kl=target_kl), tmp_path)
    first, second = load_ranks(paths)
    assert first["losses"] == second["losses"] == 2 * 4 * epochs
    assert same(first["agent"], second["agent"])


# ---- failures

VECTOR = [reinforce_baseline, ppo_discrete, ppo_continuous]


def broken(script, failure):
    return f"broken_envs:broken/{failure}{'Continuous' * (script is ppo_continuous)}-v0"


@pytest.mark.parametrize("script", VECTOR)
@pytest.mark.parametrize(
    ("failure", "code", "cause"),
    [
        ("NanObs", 1, "FloatingPointError: obs is nan"),
        ("InfReward", 1, "FloatingPointError: reward is inf"),
        ("Raises", 1, "KeyError: 'the door is locked'"),
        ("Interrupted", 130, "SIGINT"),
        ("Terminated", 143, "SIGTERM"),
    ],
)
def test_failure(script, failure, code, cause, make_args, command_line):
    args = make_args(script, env_id=broken(script, failure), total_timesteps=512, checkpoints=8)
    result, _, err = command_line(script, *flags_of(args))
    assert result == code
    *trace, last = err.splitlines()
    assert last.startswith(f"{script.__name__}.py: {cause} at step ")
    step = 99 if code == 1 and failure != "Raises" else 98  # of 4 envs
    assert last.endswith(f" at step {4 * step}; to go on, --resume {args.run_dir}")
    assert bool(trace) == (failure == "Raises")  # the only one that is not clear without
    assert checkpoint(args.run_dir)["iteration"] == 6


def test_a_dead_env_process_ends_the_run(make_args):
    """In a process of its own, whose end shows what becomes of the envs that are left."""
    args = make_args(ppo_discrete, env_id=broken(ppo_discrete, "Dies"), total_timesteps=512, async_envs=True)
    command = [sys.executable, ppo_discrete.__file__, *flags_of(args)]
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    result = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert result.returncode == 1
    assert result.stderr == (
        "ppo_discrete.py: a process of --async-envs has died at step 392; "
        f"to go on, --resume {args.run_dir}\n"
    )


def test_async_envs_are_the_same_envs(make_args):
    agents = [ppo_discrete.train(make_args(ppo_discrete, async_envs=flag))[0] for flag in (False, True)]
    assert same(agents[0].state_dict(), agents[1].state_dict())


def test_exploding_loss(discrete, make_args, command_line):
    """A finite reward whose square is not."""
    args = make_args(discrete, env_id=broken(discrete, "HugeReward"), total_timesteps=512, checkpoints=8)
    code, _, err = command_line(discrete, *flags_of(args))
    line = f"FloatingPointError: value_loss is inf at step 448; to go on, --resume {args.run_dir}"
    assert (code, err) == (1, f"{discrete.__name__}.py: {line}\n")
    assert all(tensor.isfinite().all() for tensor in checkpoint(args.run_dir)["agent"].values())


@pytest.mark.parametrize("script", [ppo_continuous, ppo_atari])
def test_exploding_weights(script, make_args, command_line):
    args = make_args(script, learning_rate=1e12, max_grad_norm=math.inf)
    code, _, err = command_line(script, *flags_of(args))
    assert code == 1
    assert "FloatingPointError: policy_loss is nan at step 64; to go on, --resume" in err
    assert all(tensor.isfinite().all() for tensor in checkpoint(args.run_dir)["agent"].values())


def test_full_disk_while_saving(make_args, tmp_path):
    """From the third save on no file may grow beyond 50 kB, and a checkpoint is larger than that."""
    code = """if True:
        import resource, sys
        sys.path.insert(0, sys.argv.pop(1))
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
    command = [sys.executable, "-c", code, str(ROOT), *flags_of(args)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 1
    assert result.stderr.startswith(
        "ppo_discrete.py: OSError: [Errno 27] File too large at step 128; to go on"
    )
    assert result.stderr.count("\n") == 1
    assert checkpoint(args.run_dir)["iteration"] == 1
    ppo_discrete.train(replace(args, resume=args.run_dir))
    assert checkpoint(args.run_dir)["iteration"] == 4


# ---- mistakes


class Malicious:
    def __init__(self, folder):
        self.command = f"touch {folder}/this-was-executed"

    def __reduce__(self):
        return os.system, (self.command,)


def truncated(path):
    path.write_bytes(path.read_bytes()[:-1000])


def empty(path):
    path.write_bytes(b"")


def malicious(path):
    torch.save({"script": Malicious(path.parent)}, path)


def plain_pickle(path):
    path.write_bytes(pickle.dumps(Malicious(path.parent)))


def other_script(path):
    torch.save(checkpoint(path.parent) | {"script": "ppo_other.py"}, path)


def something_else(path):
    torch.save([1, 2, 3], path)


def missing(path):
    path.unlink()


@pytest.mark.parametrize("flag", ["--resume", "--evaluate"])
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (truncated, "is no checkpoint: "),
        (empty, "is no checkpoint: "),
        (malicious, "is no checkpoint: Weights only load failed"),
        (plain_pickle, "is no checkpoint: Weights only load failed"),
        (other_script, "has script ppo_other.py, not ppo_discrete.py"),
        (something_else, "is no checkpoint: "),
        (missing, "is no checkpoint: [Errno 2] No such file or directory"),
    ],
)
def test_spoiled_checkpoint(spoil, message, flag, make_args, command_line):
    args = make_args(ppo_discrete, total_timesteps=64)
    ppo_discrete.train(args)
    spoil(Path(args.run_dir, "checkpoint.pt"))
    code, out, err = command_line(ppo_discrete, flag, args.run_dir)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"ppo_discrete.py: {args.run_dir}/checkpoint.pt {message}")
    assert not Path(args.run_dir, "this-was-executed").exists()


@pytest.mark.parametrize("flag", ["--env-id=Acrobot-v1", "--seed=2", "--num-envs=2", "--num-steps=32"])
def test_what_cannot_change_when_resumed(flag, make_args, command_line):
    args = make_args(ppo_discrete, total_timesteps=64)
    ppo_discrete.train(args)
    code, out, err = command_line(ppo_discrete, "--resume", args.run_dir, "--total-timesteps", 1024, flag)
    assert (code, out, err.count("\n")) == (2, "", 1)
    name, value = flag[2:].split("=")
    assert f"has {name.replace('-', '_')} {getattr(args, name.replace('-', '_'))}, not {value}" in err


def test_evaluation_in_another_env_is_refused(make_args, command_line):
    args = make_args(ppo_discrete, total_timesteps=64)
    ppo_discrete.train(args)
    code, _, err = command_line(ppo_discrete, "--evaluate", args.run_dir, "--env-id", "Acrobot-v1")
    assert code == 2 and "has env_id CartPole-v1, not Acrobot-v1" in err


def test_evaluation_with_another_network_is_refused(make_args, command_line):
    args = make_args(ppo_atari, env_id="Pong", total_timesteps=64)
    ppo_atari.train(args)
    for flags in (["--evaluate", args.run_dir], ["--resume", args.run_dir, "--total-timesteps", 128]):
        code, out, err = command_line(ppo_atari, *flags, "--full-action-space")
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "does not fit these flags" in err


def test_two_folders_at_once_are_refused(script, command_line):
    for flags in (["--resume", "a", "--evaluate", "b"], ["--resume", "a", "--run-dir", "b"]):
        code, out, err = command_line(script, *flags)
        assert (code, out) == (2, "")
        assert err == f"{script.__name__}.py: --run-dir, --resume and --evaluate exclude each other\n"


def test_interrupted_in_the_last_evaluation(make_args, command_line, monkeypatch):
    args = make_args(ppo_discrete, total_timesteps=64)
    monkeypatch.setattr(ppo_discrete, "evaluate", lambda *_: os.kill(os.getpid(), signal.SIGINT))
    code, _, err = command_line(ppo_discrete, *flags_of(args))
    assert (code, err) == (130, f"ppo_discrete.py: SIGINT at step 64; to go on, --evaluate {args.run_dir}\n")


def test_seeds_of_everything():
    """Each kind of random numbers is seeded, from all parts of the key."""
    import random

    draws = []
    for key in [(1,), (1,), (2,), (1, 1), (1, 0, 3), (1, 0, 3, 1)]:
        ppo_discrete.seed_everything(*key)
        draws.append((random.random(), np.random.rand(), torch.rand(()).item()))
    assert draws[0] == draws[1]
    assert all(len(set(column)) == 5 for column in zip(*draws, strict=True))
    assert gym.__version__ == "1.4.0"
