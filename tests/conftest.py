"""The scripts as fixtures, toy envs for each of them, and a look inside train()."""

import contextlib
import itertools
import os
from pathlib import Path
from types import ModuleType

HELPERS = Path(__file__).parent / "helpers"
# What torchrun would set, for variants/ppo_atari_distributed.py, and where processes find envs and rewards.
os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "TORCHELASTIC_RUN_ID": "test"}
os.environ |= {
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "0",
    "PYTHONPATH": f"{HELPERS}{os.pathsep}{HELPERS.parent}",
}
os.environ["HF_HUB_OFFLINE"] = "1"  # Hugging Face's libraries need not try the network, again and again

import gymnasium as gym  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402
import toy_envs  # noqa: E402, F401
from gymnasium.spaces import Box  # noqa: E402
from gymnasium.vector import AutoresetMode, SyncVectorEnv  # noqa: E402
from torch import distributed  # noqa: E402

import ppo_atari  # noqa: E402
import ppo_continuous  # noqa: E402
import ppo_discrete  # noqa: E402
import reinforce_baseline  # noqa: E402
from variants import ppo_atari_distributed, ppo_atari_lstm, ppo_masked, ppo_penalty, trpo  # noqa: E402

ROOT = Path(__file__).parents[1]
DISCRETE = [reinforce_baseline, ppo_discrete, ppo_masked]
CONTINUOUS = [ppo_continuous, ppo_penalty, trpo]
VECTOR = [*DISCRETE, *CONTINUOUS]
ATARI = [ppo_atari, ppo_atari_lstm, ppo_atari_distributed]
SCRIPTS = [*VECTOR, *ATARI]
PPO = [script for script in SCRIPTS if script not in (reinforce_baseline, trpo)]
ONE_LOSS = [reinforce_baseline, *PPO]  # of policy and critic together
CLIPPED = [script for script in PPO if script is not ppo_penalty]


def name_of(script):
    return Path(script.__file__).stem


def params_of(scripts, copies):
    """The scripts as parameters; tests of those that are copies are long."""
    return [pytest.param(x, id=name_of(x), marks=[pytest.mark.long] * (x in copies)) for x in scripts]


def each_of(scripts):
    """A fixture. As one process, ppo_atari_distributed.py is ppo_atari.py: test_distributed.py has that."""
    copies = [ppo_atari_distributed] if len(scripts) > 1 else []
    return pytest.fixture(params=params_of(scripts, copies))(lambda request: request.param)


script, discrete, vector, atari = each_of(SCRIPTS), each_of(DISCRETE), each_of(VECTOR), each_of(ATARI)
ppo, clipped, one_loss = each_of(PPO), each_of(CLIPPED), each_of(ONE_LOSS)
continuous = each_of(CONTINUOUS)


# Both copies of ppo_atari.py have its games: where these are all that a test sees, one script is enough.
one_game = pytest.mark.parametrize("atari", params_of(ATARI, ATARI[1:]))


# These are of what all scripts have to the letter, which test_family.py asserts; tests of variants are long.
SHARED = ("test_operations", "test_files", "test_mistakes", "test_at_home", "test_devices")
EXAMPLES = ("reinforce_baseline", "ppo_discrete", "ppo_continuous", "ppo_atari", "grpo")


def pytest_addoption(parser):
    parser.addoption("--script", help="leave out the tests of other scripts than this one, as in ppo_atari")


@pytest.hookimpl(tryfirst=True)  # before tests are left out by their marks
def pytest_collection_modifyitems(config, items):
    for item in items:
        if item.module.__name__ in SHARED and not {*map(name_of, scripts_of(item))} <= {*EXAMPLES}:
            item.add_marker(pytest.mark.long)
    if wanted := config.getoption("--script"):
        if not any((ROOT / folder / f"{wanted}.py").exists() for folder in (".", "variants", "tools")):
            raise pytest.UsageError(f"--script {wanted}: there is no such script")
        kept = [item for item in items if {*map(name_of, scripts_of(item))} <= {wanted}]
        config.hook.pytest_deselected(items=[*{*items} - {*kept}])
        items[:] = kept


def scripts_of(item):
    """The scripts that a test is parametrised with: none or one."""
    values = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return {value for value in values if isinstance(value, ModuleType)}


@pytest.fixture
def make_args(tmp_path):
    """make_args(script, **flags) -> Args of 4 rollouts, or of as many iterations, with a folder of their own.

    A rollout is 16 steps of 4 envs (Atari: 4 steps, of toy envs); an update 2 epochs of 2 minibatches.
    """
    number = itertools.count()

    def make(script, iterations=4, **flags):
        small = dict(num_envs=4, num_steps=16, eval_episodes=1, checkpoints=1)
        small["run_dir"] = str(tmp_path / f"run{next(number)}")
        if script in PPO:
            small |= dict(update_epochs=2, num_minibatches=2)
        if script is trpo:
            small |= dict(critic_epochs=2, num_minibatches=2)
        small["env_id"] = "toy/Pendulum-v0" if script in CONTINUOUS else "toy/CartPole-v0"
        if script in ATARI:
            small |= dict(env_id="toy/Dice-v0", threads=1, num_steps=4)
        small |= flags
        small.setdefault("total_timesteps", iterations * small["num_envs"] * small["num_steps"])
        return script.Args(**small)

    return make


def updates_of(args):
    """Gradient steps in an iteration (of trpo.py: the critic's)."""
    epochs = getattr(args, "update_epochs", getattr(args, "critic_epochs", 1))
    return epochs * getattr(args, "num_minibatches", 1)


def one_update(script):
    """The flags that make an update a single gradient step."""
    names = ("update_epochs", "critic_epochs", "num_minibatches")
    return {name: 1 for name in names if hasattr(script.Args, name)}


def real(script):
    """Of Atari, a short game: that of a process of its own, which has no toy envs."""
    game = {"env_id": "Breakout", "env_kwargs": '{"max_num_frames_per_episode": 1000}'}
    return game if script in ATARI else {}


def toy(script, name):
    """The id of the toy env of that name whose actions suit the script."""
    return f"toy/{name}{'Continuous' * (script in CONTINUOUS)}-v0"


class Screen(gym.ObservationWrapper):
    """The numbers that a toy env shows, as the first pixels of the last frame; there is no life to lose."""

    def __init__(self, env, frames):
        super().__init__(env)
        self.observation_space = Box(0, 255, (frames, 84, 84), np.uint8)

    def observation(self, obs):
        screen = np.zeros(self.observation_space.shape, np.uint8)
        screen[-1, 0, : len(obs)] = obs
        return screen

    def reset(self, **kwargs):
        obs, info = super().reset(**kwargs)
        return obs, info | {"life_lost": False}

    def step(self, action):
        *rest, info = super().step(action)
        return *rest, info | {"life_lost": False}


def numbers_in(obs):
    """The two numbers in observations of a toy env, for whatever script they are."""
    return obs[..., -1, 0, :2].float() if obs.shape[-2:] == (84, 84) else obs


def with_toys(script):
    """An Atari script's make_envs that makes toy envs, too."""
    original, frames = script.make_envs, 1 if script is ppo_atari_lstm else 4

    def make_envs(args, num_envs, colour=False):
        if not args.env_id.startswith("toy/"):
            return original(args, num_envs, colour)
        makers = [lambda: Screen(gym.make(args.env_id), frames)] * num_envs
        return SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)

    return make_envs


@pytest.fixture(autouse=True)
def toys_for_atari(monkeypatch):
    for script in ATARI:
        monkeypatch.setattr(script, "make_envs", with_toys(script))


@pytest.fixture(autouse=True)
def no_process_group_stays():
    yield
    leave_process_group()


def leave_process_group():
    """What a run of several processes that was broken off leaves behind, until its process ends."""
    if distributed.is_initialized():
        distributed.destroy_process_group()


@pytest.fixture
def no_evaluation(monkeypatch):
    """Runs end without the evaluation, which takes longer than such a small training."""
    for script in SCRIPTS:
        monkeypatch.setattr(script, "evaluate", lambda *_: [0.0])


def same_weights(a, b, atol=0.0):
    pairs = zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    return all(torch.allclose(x, y, rtol=0, atol=atol) for x, y in pairs)


# ---- agents and losses


def make_agent_of(script, args):
    """A fresh agent, always the same."""
    envs = script.make_envs(args, 1)
    torch.manual_seed(0)
    return script.Agent(envs)


def look(script, agent, obs):
    """The agent's distribution and value: all actions are valid, and each observation opens an episode."""
    if script is ppo_masked:
        return agent(obs, agent.valid)
    if script is ppo_atari_lstm:
        return agent(obs, torch.ones(len(obs)), torch.zeros(2, len(obs), 128))[:2]
    return agent(obs)


def act(script, agent, obs, greedy=False):
    """The agent's actions; all are valid."""
    return agent.act(obs, *([agent.valid] if script is ppo_masked else []), greedy)


def loss_name(script):
    return "reinforce_loss" if script is reinforce_baseline else "ppo_loss"


def batch_of(script, M, **tensors):
    """A batch of zeros, and the given tensors, as far as the script has them."""
    zeros = {name: torch.zeros(M) for name in script.Batch._fields}
    if script is ppo_penalty:
        zeros |= {"means": torch.zeros(M, 1), "stds": torch.ones(M, 1)}
    return script.Batch(**zeros | {name: x for name, x in tensors.items() if name in zeros})


def loss_of(script, dist, value, batch, args):
    """The script's loss, and its metrics, with the weight of a penalty at 1."""
    if script is reinforce_baseline:
        return script.reinforce_loss(dist, value, batch, args)
    if script is trpo:  # the policy's
        return -script.surrogate(dist, batch, args), {}
    return script.ppo_loss(dist, value, batch, getattr(args, "clip_coef", torch.tensor(1.0)), args)


# ---- recorders


def snapshot(value):
    """Arrays as tensors, as they are now: rollout storage is written over in the next iteration."""
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(value)
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, tuple):
        items = map(snapshot, value)
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return value


@pytest.fixture
def record(monkeypatch):
    """record(module, name) -> a list to which every later call of module.name appends (arguments, result)."""

    def start(module, name):
        calls, original = [], getattr(module, name)

        def recorder(*args, **kwargs):
            before = snapshot(args)
            result = original(*args, **kwargs)
            calls.append((before, snapshot(result)))
            return result

        monkeypatch.setattr(module, name, recorder)
        return calls

    return start


@pytest.fixture
def rollouts_of(monkeypatch):
    """rollouts_of(script, args) trains -> the agent, and the batch (T, N, ...) of each rollout."""

    def run(script, args):
        rollouts, make_batch = [], script.make_batch

        def recorder(rollout, device):
            rollouts.append(snapshot(rollout))
            return make_batch(rollout, device)

        monkeypatch.setattr(script, "make_batch", recorder)
        agent, _ = script.train(args)
        monkeypatch.setattr(script, "make_batch", make_batch)
        assert {len(rollout.advantages) for rollout in rollouts} == {args.num_steps}
        return agent, rollouts

    return run


class Stopped(Exception):
    """What a run is interrupted with."""


@contextlib.contextmanager
def stop_in_iteration(module, number):
    """Within, the update of the iteration of that number (1 is the first) fails before it begins."""
    calls, original = itertools.count(1), module.compute_gae

    def failing(*args):
        if next(calls) == number:
            raise Stopped
        return original(*args)

    module.compute_gae = failing
    try:
        yield
    finally:
        module.compute_gae = original
        leave_process_group()
