"""A file that is carried away, a checkpoint that was damaged, a screen that is narrow: what a user meets."""

import ast
import importlib
import inspect
import io
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import tomllib
from dataclasses import replace
from fcntl import ioctl
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
import tyro
from conftest import CONTINUOUS, ROOT, SCRIPTS, VECTOR, name_of, toy
from gymnasium.spaces import Box, Dict, Discrete, Graph
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from test_operations import command_line, flags_of, run, sealed  # noqa: F401
from torch import distributed

import ppo_atari
import ppo_continuous
import ppo_discrete
import reinforce_baseline
from variants import ppo_masked

# ---- one file, alone

PACKAGES = {"ale_py": "ale-py"}  # where the name of a module is not that of its package
ALL_FILES = [
    ROOT / f"{name}.py" for name in ("reinforce_baseline", "ppo_discrete", "ppo_continuous", "ppo_atari")
]
ALL_FILES += sorted((ROOT / "variants").glob("*.py"))


def block_of(path):
    """The PEP 723 block at the top of a script."""
    match = re.match(r"# /// script\n((?:# .*\n|#\n)+?)# ///\n", path.read_text())
    return tomllib.loads("".join(line[2:] + "\n" for line in match[1].splitlines()))


def pins(lines):
    return dict(re.fullmatch(r"([\w.-]+)(?:\[.*\])?==(\S+)", line).groups() for line in lines)


@pytest.mark.parametrize("path", ALL_FILES, ids=lambda path: path.stem)
def test_a_file_knows_what_it_needs(path):
    """Its block names what it imports, no more, at the versions of the requirements."""
    block = block_of(path)
    assert block["requires-python"] == ">=3.11"
    files = (ROOT / "requirements.txt", ROOT / "variants/requirements.txt")
    pinned = pins(line.strip() for file in files for line in file.open() if line[0] not in "#-\n")
    wanted = pins(block["dependencies"])
    assert wanted.items() <= pinned.items()
    nodes = list(ast.walk(ast.parse(path.read_text())))
    modules = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    modules |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    roots = {module.split(".")[0] for module in modules} - set(sys.stdlib_module_names)
    roots |= {"tensorboard"} & {"tensorboard" for module in modules if module.endswith("tensorboard")}
    roots |= {"moviepy" for word in ("RecordVideo", "save_video") if word in path.read_text()}
    roots |= {"mujoco" for module in ("ppo_continuous", "ppo_penalty", "trpo") if path.stem == module}
    optional = {"reasoning_gym"}
    assert {PACKAGES.get(root, root) for root in roots} - optional == set(wanted)


@pytest.mark.parametrize(
    "name", ["tools/sweep", "tools/tune", "tools/compare", "tools/diagnose", "docs/site"]
)
def test_a_tool_knows_what_it_needs(name):
    """The versions of the requirements; what runs scripts of games needs all that they need."""
    files = [ROOT / folder / "requirements.txt" for folder in ("", "tools", "docs")]
    games, tools, site = [
        pins(line.strip() for line in file.open() if line[0] not in "#-\n") for file in files
    ]
    wanted = pins(block_of(ROOT / f"{name}.py")["dependencies"])
    assert wanted.items() <= (games | tools | site).items()
    if name == "docs/site":
        assert wanted == site
    needed, left = set(), [name.split("/")[-1]]  # also by the tools that it imports
    while left:
        tree = ast.parse((ROOT / name).with_name(f"{left.pop()}.py").read_text())
        for node in tree.body:  # what is imported at once
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module] if isinstance(node, ast.ImportFrom) else []
            for root in {module.split(".")[0] for module in modules} - needed:
                needed.add(root)
                left += [root] if (ROOT / name).with_name(f"{root}.py").exists() else []
    ours = {path.stem for path in (ROOT / name).parent.glob("*.py")}
    known = {other: other for other in wanted} | {package: root for root, package in PACKAGES.items()}
    missing = needed - set(sys.stdlib_module_names) - ours - {known.get(x, x) for x in wanted}
    assert missing <= {
        "fcntl",
        "mdit_py_plugins",
        "markdown_it",
        "math_core",
        "markupsafe",
        "jinja2",
        "pygments",
    }
    if name in ("tools/sweep", "tools/tune"):
        assert wanted.items() >= games.items() and ("optuna" in wanted) == (name == "tools/tune")


@pytest.mark.slow
def test_a_file_alone_runs_by_uv(tmp_path):
    """In an empty folder, with nothing but uv: it downloads some gigabytes."""
    (tmp_path / "ppo_discrete.py").write_bytes((ROOT / "ppo_discrete.py").read_bytes())
    command = [sys.executable, "-m", "uv", "run", "ppo_discrete.py", "--total-timesteps", "1024"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1].startswith("mean return ")


def test_the_code_of_the_documents_runs(tmp_path, monkeypatch, make_args):
    """Operations: train, load, act; actions rescaled; a run that begins with an agent."""
    monkeypatch.chdir(tmp_path)
    recipe, begin, code = re.findall(r"```python\n(.*?)```", (ROOT / "docs/operations.md").read_text(), re.S)
    names = {}
    exec(code.replace("20_000", "512"), names)
    assert names["envs"].single_action_space.contains(names["action"].numpy()[0])
    monkeypatch.setattr(gym.envs.registration, "registry", gym.envs.registration.registry.copy())
    (tmp_path / "recipe_env.py").write_text(recipe.replace("MyEnv-v0", "Pendulum-v1"))  # bounds of -2 and 2
    monkeypatch.syspath_prepend(tmp_path)
    envs = ppo_continuous.make_envs(make_args(ppo_continuous, env_id="recipe_env:Rescaled-v0"), 1)
    [env] = envs.unwrapped.envs
    assert env.action_space == gym.spaces.Box(-1, 1, (1,)) and env.unwrapped.action_space.high == 2
    (tmp_path / "agents").symlink_to(ROOT / "agents")
    monkeypatch.setattr(ppo_discrete, "restore", ppo_discrete.restore)
    few = (
        begin.replace("100_000", "2048")
        .replace("1e-4", "1e-9")
        .replace("script.train(", "log = script.train(")
    )
    exec(few, names)
    assert names["log"][1][-1]["eval_return"] > 400  # a new one has some 20


def test_a_copy_reads_the_checkpoints_of_its_original(make_args, tmp_path, monkeypatch, no_evaluation):
    """If it says so."""
    args = make_args(ppo_discrete, iterations=1)
    ppo_discrete.train(args)
    text = Path(ppo_discrete.__file__).read_text()
    for name in ("copied", "copied_too"):
        (tmp_path / f"{name}.py").write_text(text)
        text = text.replace('WRITER = f"{Path(__file__).name} 1.0"', 'WRITER = "ppo_discrete.py 1.0"')
    monkeypatch.syspath_prepend(tmp_path)
    copied, copied_too = importlib.import_module("copied"), importlib.import_module("copied_too")
    with pytest.raises(copied.Mistake, match="it was written by ppo_discrete.py 1.0"):
        copied.load(args.run_dir)
    assert copied_too.load(args.run_dir)["iteration"] == 1


# ---- envs


def test_arguments_of_the_env(make_args):
    args = make_args(ppo_discrete, env_id="FrozenLake-v1", env_kwargs='{"map_name": "8x8"}', iterations=1)
    agent, _ = ppo_discrete.train(args)
    assert agent.actor[0].in_features == 64
    game = ppo_atari.Args(env_id="Breakout", threads=1, env_kwargs='{"life_loss_info": true}')
    assert ppo_atari.make_envs(game, 1).spec.kwargs["life_loss_info"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"env_kwargs": "{map: 8}"}, "--env-kwargs {map: 8}: JSONDecodeError('Expecting property name"),
        ({"env_kwargs": "5"}, "--env-kwargs 5: TypeError("),
        ({"env_id": "FrozenLake-v1", "env_kwargs": '{"map_name": "16x16"}'}, "KeyError('16x16')"),
        ({"env_id": "toy/Unflat-v0"}, " observations, which cannot be flattened"),
        ({"env_id": "toy/Fails-v0"}, "test_at_home.py, line "),
        ({"env_kwargs": '{"no_such": 1}'}, "no_such"),
        ({"env_id": ":"}, "--env-id :"),
        ({"env_id": "a:b:c-v0"}, "--env-id a:b:c-v0"),
        ({"env_id": ".x:Foo-v0"}, "--env-id .x:Foo-v0"),
    ],
)
@pytest.mark.parametrize("script", VECTOR, ids=name_of)
def test_envs_that_cannot_be_made(script, flags, message, make_args, capsys):
    args = make_args(script, **flags)
    with pytest.raises(script.Mistake) as mistake:
        script.train(args)
    assert message in str(mistake.value) and "\n" not in str(mistake.value)
    assert capsys.readouterr() == ("", "")
    assert not Path(args.run_dir).exists()


@pytest.mark.long
@pytest.mark.parametrize("script", VECTOR, ids=name_of)
def test_another_script_plays_the_games(script):
    """In a process of its own: here, other tests have imported ale_py."""
    result = run(script, "--env-id", "ALE/Pong-v5")
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert "(ppo_atari.py plays it)" in result.stderr


@pytest.mark.parametrize("flags", [["--resume", ""], ["--resume="], ["--env-id", ""]])
def test_an_empty_value_is_a_mistake(flags, command_line):
    code, out, err = command_line(ppo_discrete, *flags)
    assert (code, out, err) == (2, "", "ppo_discrete.py: an empty value on the command line\n")


# ---- none of some


def test_no_evaluation_and_no_checkpoint_but_the_last(script, make_args, record):
    saves, played = record(script, "save"), record(script, "evaluate")
    args = make_args(script, checkpoints=0, eval_episodes=0)
    _, log = script.train(args)
    assert [iteration for (_, _, iteration, *_), _ in saves] == [4]
    assert not played and "eval_return" not in log[-1]


def test_a_run_without_evaluation_can_be_evaluated(script, make_args, command_line):
    args = make_args(script, iterations=1, eval_episodes=0)
    script.train(args)
    code, out, _ = command_line(script, "--evaluate", args.run_dir)
    assert code == 0 and " in 10 episodes of evaluation; see " in out


# ---- checkpoints


def test_each_damaged_byte_is_refused(script, make_args, no_evaluation):
    """Wherever in the file it is flipped: 60 places, the first and the last byte among them."""
    args = make_args(script, iterations=1)
    script.train(args)
    path = Path(args.run_dir, "checkpoint.pt")
    whole = path.read_bytes()
    for position in (0, len(whole) - 1, *np.random.default_rng(0).integers(len(whole), size=58).tolist()):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 64]) + whole[position + 1 :])
        with pytest.raises(script.Mistake):
            script.load(args.run_dir)
    path.write_bytes(whole)
    script.load(args.run_dir)


def test_a_checkpoint_with_unknown_flags_is_refused(make_args, command_line):
    args = make_args(ppo_discrete, iterations=1)
    ppo_discrete.train(args)
    path = Path(args.run_dir, "checkpoint.pt")
    state = torch.load(path, weights_only=True)
    state["args"]["of_the_future"] = 1
    sealed(path, state)
    for flag in ("--resume", "--evaluate"):
        code, out, err = command_line(ppo_discrete, flag, args.run_dir)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "of_the_future" in err


HOLD_THE_LOCK = """
import sys, filelock
lock = filelock.FileLock(sys.argv[1] + "/lock")
lock.acquire()
print("locked", flush=True)
sys.stdin.read()
"""


def test_a_run_that_is_being_written_is_refused(script, make_args, capsys):
    args = make_args(script, iterations=1)
    script.train(args)
    command = [sys.executable, "-c", HOLD_THE_LOCK, args.run_dir]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "locked\n"
        capsys.readouterr()
        longer = replace(args, resume=args.run_dir, run_dir=None, total_timesteps=2 * args.total_timesteps)
        with pytest.raises(script.Mistake, match="could not be acquired"):
            script.train(longer)
    if distributed.is_initialized():
        distributed.destroy_process_group()
    script.train(longer)  # the other has ended


def test_args_json_follows_a_resume(make_args):
    args = make_args(ppo_discrete, iterations=1)
    ppo_discrete.train(args)
    longer = replace(args, resume=args.run_dir, run_dir=None, total_timesteps=128, gamma=0.5)
    ppo_discrete.train(longer)
    assert json.loads(Path(args.run_dir, "args.json").read_text())["gamma"] == 0.5


# ---- what was earned


def test_a_film_that_fails_costs_a_line(make_args, monkeypatch, capsys):
    """Only after the evaluation has been printed."""
    original = ppo_discrete.evaluate

    def evaluate(agent, args, video_dir=None):
        if video_dir:
            assert "mean return" in sys.stdout.getvalue()
            raise RuntimeError("no display")
        return original(agent, args)

    monkeypatch.setattr(ppo_discrete, "evaluate", evaluate)
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    _, log = ppo_discrete.train(make_args(ppo_discrete, iterations=1, capture_video=True))
    assert "eval_return" in log[-1]
    assert capsys.readouterr().err == "no video: RuntimeError('no display')\n"


@pytest.mark.parametrize("script", CONTINUOUS, ids=name_of)
def test_the_help_names_the_variable_for_films_without_a_display(script, capsys):
    with pytest.raises(SystemExit):
        tyro.cli(script.Args, args=["--help"])
    assert "MUJOCO_GL=egl" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:.*possible render_modes")
def test_an_env_that_cannot_be_filmed_costs_a_line(vector, make_args, capsys):
    """Its constructor knows nothing of render_mode."""
    _, log = vector.train(make_args(vector, env_id=toy(vector, "Terminates"), capture_video=True))
    assert log[-1]["eval_return"] == 6
    out, err = capsys.readouterr()
    assert "mean return 6 " in out and "render_mode" in err and err.splitlines()[-1].startswith("no video")


def test_flags_and_lengths_are_in_tensorboard(script, make_args):
    args = make_args(script, env_id=toy(script, "Terminates"), gamma=0.5)
    _, log = script.train(args)
    assert log[-1]["episode_length"] == 3
    events = EventAccumulator(args.run_dir).Reload()
    assert '"gamma": 0.5' in events.Tensors("args/text_summary")[0].tensor_proto.string_val[0].decode()
    assert events.Scalars("episode_length")[-1].value == 3


# ---- the screen


def test_twenty_lines_of_progress(vector, make_args, no_evaluation, capsys):
    """Where there is no terminal."""
    vector.train(make_args(vector, iterations=40, num_steps=2))
    lines = [line for line in capsys.readouterr().out.splitlines() if " steps/s  " in line]
    assert [line.split()[0] for line in lines] == [str(16 * i) for i in range(1, 21)]


def on_a_terminal(columns, *command):
    """What a terminal of that width is sent, line by line."""
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    sent = b""
    while process.poll() is None or select.select([ours], [], [], 0)[0]:
        try:
            sent += os.read(ours, 65536)
        except OSError:
            break
    os.close(ours)
    assert process.wait() == 0, sent.decode()
    return re.split(r"[\r\n]+", sent.decode())


def test_the_bar_fits_80_columns(make_args):
    """On a terminal, the lines of progress are above it."""
    args = make_args(ppo_discrete, iterations=64)
    lines = on_a_terminal(80, sys.executable, ppo_discrete.__file__, *flags_of(args))
    assert max(map(len, [line for line in lines if "%|" in line])) <= 80
    pattern = r"100%\|█{5,}\| 4.10k/4.10k \[\S+<00:00, \S+/s, episode_return [\d.]+]"
    assert any(re.fullmatch(pattern, line) for line in lines)
    pattern = r"[\d,]+ steps  [\d,]+ steps/s  episode_return "
    assert sum(bool(re.match(pattern, line)) for line in lines) == 16


# ---- causes by name


class Odd(gym.Env):
    """One number is odd, once: in an observation, in the last one before the time limit, or as a reward."""

    observation_space, action_space = Box(-np.inf, np.inf, (2,), np.float64), Discrete(2)

    def __init__(self, obs=0.0, final_obs=0.0, reward=0.0):
        self.odd = obs, final_obs, reward

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.zeros(2), {}

    def step(self, action):
        self.t += 1
        obs, final_obs, reward = self.odd
        return np.array([0.0, final_obs if self.t == 5 else obs]), float(reward), False, self.t == 5, {}


class OddContinuous(Odd):
    action_space = Box(-1, 1, (1,))


class Unflat(Odd):
    """What it shows cannot be flattened."""

    observation_space = Dict(a=Graph(Box(0, 1, (2,)), None))


class Fails(Odd):
    def __init__(self):
        super().__init__()
        raise RuntimeError("no such level")


gym.register("toy/Unflat-v0", Unflat)
gym.register("toy/Fails-v0", Fails)
gym.register("toy/Odd-v0", Odd)
gym.register("toy/OddContinuous-v0", OddContinuous)


@pytest.mark.filterwarnings("ignore:.*is not within the observation space", "ignore:.*is an inf value")
@pytest.mark.filterwarnings("ignore:invalid value encountered")
@pytest.mark.parametrize("script", [reinforce_baseline, ppo_discrete, ppo_continuous], ids=name_of)
@pytest.mark.parametrize(
    ("what", "number", "message"),
    [
        ("obs", "NaN", "obs is not finite before step 64"),
        ("final_obs", "NaN", "final_obs is not finite before step 64"),
        ("reward", "Infinity", "reward is not finite before step 64"),
        ("reward", "-Infinity", "reward is not finite before step 64"),
    ],
)
def test_causes_have_their_names(script, what, number, message, make_args):
    args = make_args(script, env_id=toy(script, "Odd"), env_kwargs=f'{{"{what}": {number}}}')
    with pytest.raises(FloatingPointError, match=f"^{message}$"):
        script.train(args)


def test_large_observations_are_finite(make_args):
    """Their sum would not be, nor is the variance."""
    args = make_args(ppo_continuous, env_id="toy/OddContinuous-v0", env_kwargs='{"obs": 2e38}')
    with pytest.raises(FloatingPointError, match="^obs_stats"):
        ppo_continuous.train(args)


@pytest.mark.parametrize("error", [OSError, FloatingPointError, KeyError])
def test_the_traceback_of_an_env_is_shown(error, make_args, monkeypatch):
    def step(self, action):
        raise error("the door is locked")

    monkeypatch.setattr(Odd, "step", step)
    with pytest.raises(error, match="the door is locked"):
        ppo_discrete.train(make_args(ppo_discrete, env_id="toy/Odd-v0"))


@pytest.mark.parametrize("script", [ppo_discrete, ppo_masked], ids=name_of)
def test_a_large_entropy_bonus_survives_unused_logits(script, make_args):
    args = make_args(script, ent_coef=40.0, env_id="toy/Copy-v0")
    agent, _ = script.train(args)
    assert all(parameter.isfinite().all() for parameter in agent.parameters())


def test_statistics_keep_what_a_float_would_lose():
    """2,000 rollouts of 512 samples at 1e4, with a drift: a mean in float32 alone stops following."""
    torch.manual_seed(0)
    stats, total, squares, n = ppo_continuous.RunningStats(1), 0.0, 0.0, 0
    for i in range(2000):
        x = 1e4 + torch.randn(512, 1) + i / 1000
        stats.update(x)
        offsets = x.double() - 1e4
        total, squares, n = total + offsets.sum().item(), squares + (offsets**2).sum().item(), n + 512
    mean = total / n
    std = (squares / n - mean**2) ** 0.5
    assert stats.mean.item() - 1e4 == pytest.approx(mean, abs=0.01 * std)
    assert stats.std().item() == pytest.approx(std, rel=0.01)


def test_every_script_has_these_lines():
    """The same in each: a feature of one is a feature of all."""
    for script in SCRIPTS:
        source = inspect.getsource(script)
        for line in ('writer.add_text("args"', "!= content[-32:]", "FileLock(run_dir / "):
            assert line in source, (name_of(script), line)
