"""One clear line on stderr and exit code 2, before a single step of an env; nothing is left on disk."""

import subprocess
import sys
from pathlib import Path

import ale_py
import gymnasium as gym
import pytest
from conftest import DISCRETE, PPO, SCRIPTS

import ppo_atari
import ppo_continuous
import ppo_discrete
import reinforce_baseline

MISTAKES = [
    ({"total_timesteps": 63}, "--total-timesteps 63 is less than a rollout of 64"),
    ({"threads": 10**10}, "--threads 10000000000 is not between 1 and 1024"),
    ({"num_envs": 0}, "--num-envs 0 is not between 1 and"),
    ({"num_steps": -4}, "--num-steps -4 is not"),
    ({"eval_episodes": 0}, "--eval-episodes 0 is not"),
    ({"seed": -1}, "--seed -1 is not between 0 and 4294967295"),
    ({"gamma": float("nan")}, "--gamma nan is not between 0 and 1"),
    ({"gamma": 1.01}, "--gamma 1.01 is not between 0 and 1"),
    ({"gae_lambda": -0.1}, "--gae-lambda -0.1 is not between 0 and 1"),
    ({"learning_rate": -1e-3}, "--learning-rate -0.001 is not between 0 and"),
    ({"learning_rate": float("inf")}, "--learning-rate inf is not between 0 and"),
    ({"ent_coef": float("nan")}, "--ent-coef nan is not"),
    ({"max_grad_norm": -1.0}, "--max-grad-norm -1.0 is not between 0 and inf"),
    ({"device": "cuda:99"}, "--device cuda:99 is not here; there is"),
    ({"device": "gpu"}, "--device gpu is not here; there is"),
    ({"run_dir": "tests"}, "--run-dir tests: File exists"),
]
VECTOR_MISTAKES = [
    ({"env_id": "CartPol-v1"}, "Did you mean: `CartPole`"),
    ({"env_id": "no_such_module:Foo-v0"}, "No module named 'no_such_module'"),
    ({"env_id": "CartPole-v7"}, "`v0`, `v1`"),
    ({"env_id": "toy/Sequence-v0"}, "cannot be flattened"),
]
ATARI_MISTAKES = [
    (
        {"env_id": "Mspacman"},
        "--env-id Mspacman: Environment `Mspacman` doesn't exist in namespace ALE. Did you mean: `MsPacman`",
    ),
    ({"env_id": "CartPole-v1"}, "doesn't exist in namespace ALE"),
    ({"env_id": ""}, "--env-id : "),
    ({"sticky_actions": 1.5}, "--sticky-actions 1.5 is not between 0 and 1"),
]
DISCRETE_MISTAKES = [
    ({"env_id": "Pendulum-v1"}, "Box(-2.0, 2.0, (1,), float32) actions, not (Multi)Discrete"),
    ({"env_id": "toy/LongSpace-v0"}, "actions, not (Multi)Discrete from 0"),
    ({"env_id": "toy/Unplayable-v0"}, "Discrete(2, start=1) actions, not (Multi)Discrete from 0"),
]
PPO_MISTAKES = [
    ({"num_minibatches": 3}, "--num-minibatches 3 does not divide 64 steps"),
    ({"num_minibatches": 64}, "--num-minibatches 64 does not divide 64 steps"),
    ({"update_epochs": 0}, "--update-epochs 0 is not between 1 and"),
    ({"clip_coef": float("nan")}, "--clip-coef nan is not between 0 and inf"),
    ({"vf_clip_coef": -0.2}, "--vf-clip-coef -0.2 is not"),
    ({"target_kl": -0.1}, "--target-kl -0.1 is not"),
]


class LongSpace(gym.Env):
    """Its action space takes several lines to print."""

    observation_space = gym.spaces.Discrete(2)
    action_space = gym.spaces.MultiDiscrete([3] * 40, start=[1] * 40)


class IntegerBox(gym.Env):
    observation_space = gym.spaces.Discrete(2)
    action_space = gym.spaces.Box(0, 5, (2,), int)


class Sequence(gym.Env):
    observation_space = gym.spaces.Sequence(gym.spaces.Discrete(3))
    action_space = gym.spaces.Discrete(2)


gym.register("toy/LongSpace-v0", LongSpace)
gym.register("toy/IntegerBox-v0", IntegerBox)
gym.register("toy/Sequence-v0", Sequence)


@pytest.fixture
def no_steps(monkeypatch):
    def step(*args):
        raise AssertionError("an env was stepped")

    monkeypatch.setattr(gym.vector.SyncVectorEnv, "step", step)
    monkeypatch.setattr(ale_py.AtariVectorEnv, "step", step)


CASES = [(script, *case) for script in SCRIPTS for case in MISTAKES]
CASES += [(script, *case) for script in (*DISCRETE, ppo_continuous) for case in VECTOR_MISTAKES]
CASES += [(ppo_atari, *case) for case in ATARI_MISTAKES]
CASES += [(script, *case) for script in DISCRETE for case in DISCRETE_MISTAKES]
CASES += [(script, *case) for script in PPO for case in PPO_MISTAKES]
CASES += [
    (
        ppo_continuous,
        {"env_id": "CartPole-v1"},
        "Discrete(2) actions, not a Box of floats (Discrete: ppo_discrete.py)",
    )
]
CASES += [(ppo_continuous, {"env_id": "toy/IntegerBox-v0"}, "int64) actions, not a Box of floats")]
CASES += [(reinforce_baseline, {"num_envs": 1, "num_steps": 1}, "rollouts of one step")]


@pytest.mark.parametrize(("script", "flags", "message"), CASES)
def test_mistake(script, flags, message, make_args, no_steps, monkeypatch, capfd):
    monkeypatch.chdir(Path(ppo_discrete.__file__).parent)
    args = make_args(script, **flags)
    with pytest.raises(SystemExit) as exit:
        script.train(args)
    out, err = capfd.readouterr()
    assert exit.value.code == 2
    assert out == ""
    assert err.startswith(f"{script.__name__}.py: ") and err.count("\n") == 1
    assert message in err
    assert args.run_dir == "tests" or not Path(args.run_dir).exists()


def test_neutral_values_are_not_mistakes(ppo, make_args):
    inf = float("inf")
    off = dict(clip_coef=inf, vf_clip_coef=inf, max_grad_norm=inf, target_kl=inf, ent_coef=0, vf_coef=0.0)
    ppo.train(make_args(ppo, total_timesteps=64.0, seed=0, **off))  # a float, as from total_timesteps=1e6


def run(script, folder, *flags):
    command = [sys.executable, script.__file__, *flags]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def test_from_the_shell(script, tmp_path):
    result = run(script, tmp_path, "--env-id", "CartPol-v1")
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert list(tmp_path.iterdir()) == []
    flags = ("--total-timesteps", "1024", "--num-envs", "2", "--num-steps", "64", "--no-anneal-lr")
    env_id = {ppo_continuous: "Pendulum-v1", ppo_atari: "Breakout"}.get(script, "CartPole-v1")
    result = run(script, tmp_path, "--env-id", env_id, *flags)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines()[-1].startswith("mean return ")
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_unknown_flags_and_help(tmp_path):
    result = run(ppo_discrete, tmp_path, "--gama", "0.9")
    assert result.returncode == 2 and "--gamma" in result.stderr
    result = run(ppo_discrete, tmp_path, "--help")
    assert result.returncode == 0 and "--learning-rate FLOAT" in result.stdout
