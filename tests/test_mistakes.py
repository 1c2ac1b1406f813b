"""One clear line (on stderr, with exit code 2), before a single step of an env; nothing is left on disk."""

import sys
from pathlib import Path

import ale_py
import gymnasium as gym
import processes
import pytest
from conftest import (
    ATARI,
    CLIPPED,
    CONTINUOUS,
    DISCRETE,
    ONE_LOSS,
    PPO,
    SCRIPTS,
    VECTOR,
    name_of,
    real,
)
from test_operations import run

import ppo_discrete
import reinforce_baseline
from variants import ppo_atari_lstm, ppo_masked, ppo_penalty, trpo

MISTAKES = [
    ({"total_timesteps": 15}, "--total-timesteps 15 is less than a rollout of "),
    ({"threads": 10**10}, "--threads 10000000000 is not between 1 and 1024"),
    ({"num_envs": 0, "total_timesteps": 256}, "--num-envs 0 is not between 1 and"),
    ({"num_steps": -4, "total_timesteps": 256}, "--num-steps -4 is not"),
    ({"eval_episodes": -1}, "--eval-episodes -1 is not"),
    ({"seed": -1}, "--seed -1 is not between 0 and 4294967295"),
    ({"gamma": float("nan")}, "--gamma nan is not between 0 and 1"),
    ({"gamma": 1.01}, "--gamma 1.01 is not between 0 and 1"),
    ({"gae_lambda": -0.1}, "--gae-lambda -0.1 is not between 0 and 1"),
    ({"learning_rate": -1e-3}, "--learning-rate -0.001 is not between 0 and"),
    ({"learning_rate": float("inf")}, "--learning-rate inf is not between 0 and"),
    ({"device": "cuda:99"}, "--device cuda:99 is not here; there is"),
    ({"device": "gpu"}, "--device gpu is not here; there is"),
    ({"env_id": gym.spec("CartPole-v1")}, "is not text"),
    ({"run_dir": Path("runs")}, "--run-dir runs is not text"),
    ({"learning_rate": None}, "--learning-rate None is not between 0 and"),
    ({"gamma": "0.9"}, "--gamma 0.9 is not between 0 and 1"),
    ({"run_dir": "README.md"}, "README.md: [Errno 17] File exists"),
]
ONE_LOSS_MISTAKES = [
    ({"ent_coef": float("nan")}, "--ent-coef nan is not"),
    ({"max_grad_norm": -1.0}, "--max-grad-norm -1.0 is not between 0 and inf"),
]
VECTOR_MISTAKES = [
    ({"env_id": "CartPol-v1"}, "Did you mean: `CartPole`"),
    ({"env_id": "no_such_module:Foo-v0"}, "No module named 'no_such_module'"),
    ({"env_id": "quits:Foo-v0"}, "SystemExit(3)"),
    ({"env_id": "CartPole-v7"}, "`v0`, `v1`"),
    ({"env_id": "toy/Sequence-v0"}, "cannot be flattened"),
]
ATARI_MISTAKES = [
    (
        {"env_id": "Mspacman"},
        "--env-id Mspacman --env-kwargs {}: NameNotFound(\"Environment `Mspacman` doesn't exist "
        "in namespace ALE. Did you mean: `MsPacman`",
    ),
    ({"env_id": "CartPole-v1"}, "doesn't exist in namespace ALE"),
    ({"env_id": ""}, "--env-id --env-kwargs"),
    ({"env_id": "Pong", "env_kwargs": '{"continuous": true}'}, "multiple values for keyword argument"),
    ({"sticky_actions": 1.5}, "--sticky-actions 1.5 is not between 0 and 1"),
]
DISCRETE_MISTAKES = [
    ({"env_id": "Pendulum-v1"}, "Box(-2.0, 2.0, (1,), float32) actions, but (Multi)Discrete from 0 is"),
    ({"env_id": "toy/LongSpace-v0"}, "from 0 is needed here; ppo_continuous.py takes a Box"),
    ({"env_id": "toy/Unplayable-v0"}, "Discrete(2, start=1) actions, but (Multi)Discrete from 0 is needed"),
]
MINIBATCH_MISTAKES = [
    ({"num_minibatches": 3}, "--num-minibatches 3 does not cut "),
    ({"num_minibatches": 4, "num_steps": 1}, "--num-minibatches 4 does not cut 4 "),
]
PPO_MISTAKES = [
    ({"update_epochs": 0}, "--update-epochs 0 is not between 1 and"),
    ({"vf_clip_coef": -0.2}, "--vf-clip-coef -0.2 is not"),
    ({"target_kl": -0.1}, "--target-kl -0.1 is not"),
]


CLIP_MISTAKES = [({"clip_coef": float("nan")}, "--clip-coef nan is not between 0 and inf")]


CONTINUOUS_MISTAKES = [
    ({"env_id": "CartPole-v1"}, "Discrete(2) actions, but a Box of floats is needed here; ppo_discrete.py"),
    ({"env_id": "toy/IntegerBox-v0"}, "int64) actions, but a Box of floats is needed"),
    ({"log_std_init": -21.0}, "--log-std-init -21.0 is not between -20 and 20"),
    ({"log_std_init": 21.0}, "--log-std-init 21.0 is not between -20 and 20"),
]
TRPO_MISTAKES = [
    ({"target_kl": -0.1}, "--target-kl -0.1 is not between 0 and"),
    ({"cg_iters": 0}, "--cg-iters 0 is not between 1 and"),
    ({"cg_damping": float("nan")}, "--cg-damping nan is not between 0 and"),
    ({"backtracks": 0}, "--backtracks 0 is not between 1 and"),
    ({"backtrack_ratio": 1.5}, "--backtrack-ratio 1.5 is not between 0 and 1"),
    ({"critic_epochs": 0}, "--critic-epochs 0 is not between 1 and"),
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


def cases():
    for scripts, mistakes in (
        (SCRIPTS, MISTAKES),
        (VECTOR, VECTOR_MISTAKES),
        (DISCRETE, DISCRETE_MISTAKES),
        (ATARI, ATARI_MISTAKES),
        (ONE_LOSS, ONE_LOSS_MISTAKES),
        ([*PPO, trpo], MINIBATCH_MISTAKES),
        (PPO, PPO_MISTAKES),
        (CLIPPED, CLIP_MISTAKES),
        (CONTINUOUS, CONTINUOUS_MISTAKES),
        ([ppo_penalty], [({"beta": -1.0}, "--beta -1.0 is not between 0 and")]),
        ([ppo_penalty, trpo], [({"target_kl": float("inf")}, "--target-kl inf is not between 0 and")]),
        ([trpo], TRPO_MISTAKES),
        ([reinforce_baseline], [({"num_envs": 1, "num_steps": 1}, "rollouts of one step")]),
        (
            [ppo_atari_lstm],
            [({"num_envs": 3}, "--num-minibatches 2 does not cut 3 envs into parts of 2+ steps")],
        ),
        ([ppo_masked], [({"env_id": "CartPole-v1"}, 'has no masks: no info["action_mask"], no method')]),
    ):
        for script in scripts:
            for flags, message in mistakes:
                yield pytest.param(script, flags, message, id=f"{name_of(script)}-{flags}")


@pytest.mark.parametrize(("script", "flags", "message"), list(cases()))
def test_mistake(script, flags, message, make_args, no_steps, monkeypatch, capfd):
    monkeypatch.chdir(Path(ppo_discrete.__file__).parent)
    args = make_args(script, **{"total_timesteps": 256} | flags)
    with pytest.raises(script.Mistake) as mistake:
        script.train(args)
    assert message in str(mistake.value) and "\n" not in str(mistake.value)
    assert capfd.readouterr() == ("", "")
    assert flags.keys() == {"run_dir"} or not Path(args.run_dir).exists()


def test_neutral_values_are_not_mistakes(ppo, make_args, no_evaluation):
    """A number of steps may be a float, as in total_timesteps=1e6."""
    names = "clip_coef", "vf_clip_coef", "max_grad_norm", "target_kl"
    names = names[: 3 if ppo is ppo_penalty else 4]  # whose KL follows its target
    off = {name: float("inf") for name in names if hasattr(ppo.Args, name)} | dict(ent_coef=0, vf_coef=0.0)
    ppo.train(make_args(ppo, total_timesteps=64.0, seed=0, **off))


def test_as_a_program(script, tmp_path):
    result = processes.run(script.__file__, "--env-id", "CartPol-v1", cwd=tmp_path)
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert list(tmp_path.iterdir()) == []
    flags = ["--total-timesteps=128", "--num-envs=4", "--num-steps=16", "--no-anneal-lr", "--eval-episodes=1"]
    env_id = {s: "Pendulum-v1" for s in CONTINUOUS} | {ppo_masked: "Taxi-v4"} | {s: "Breakout" for s in ATARI}
    flags += ["--env-id", env_id.get(script, "CartPole-v1")]
    flags += ["--env-kwargs", real(script).get("env_kwargs", "{}")]
    result = processes.run(script.__file__, *flags, cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines()[-1].startswith("mean return ")
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_env_processes_without_masks_say_nothing(tmp_path):
    """But for the one line of the script."""
    result = processes.run(ppo_masked.__file__, "--env-id", "CartPole-v1", "--async-envs", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("ppo_masked.py: CartPole-v1 has no masks")
    assert result.stderr.count("\n") == 1


def test_unknown_flags_and_help(tmp_path):
    result = processes.run(ppo_discrete.__file__, "--gama", "0.9", cwd=tmp_path)
    assert result.returncode == 2 and "--gamma" in result.stderr
    result = processes.run(ppo_discrete.__file__, "--help", cwd=tmp_path)
    assert result.returncode == 0 and "--learning-rate FLOAT" in result.stdout


def test_steps_in_powers_of_ten(script, monkeypatch):
    """As Python writes them, too."""
    trained = []
    monkeypatch.setattr(script, "train", trained.append)
    monkeypatch.setattr(sys, "argv", [script.__file__, "--total-timesteps", "1e5"])
    script.main()
    assert [args.total_timesteps for args in trained] == [100_000]


def test_an_env_of_the_current_folder(tmp_path):
    """Wherever the script lies."""
    lines = ("import gymnasium", "from gymnasium.envs.classic_control import CartPoleEnv")
    register = 'gymnasium.register("Mine-v0", CartPoleEnv, max_episode_steps=20)'
    (tmp_path / "my_env.py").write_text("\n".join([*lines, register]))
    flags = ("--env-id=my_env:Mine-v0", "--total-timesteps=512", "--run-dir=here")
    result = run(ppo_discrete, *flags, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "evaluation: 10 episodes, each until it ends" in result.stdout
