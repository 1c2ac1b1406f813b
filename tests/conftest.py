"""Toy envs whose every number is known, and fixtures that look inside train()."""

import contextlib
import copy
import itertools

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete

import ppo_atari
import ppo_continuous
import ppo_discrete
import reinforce_baseline

DISCRETE = [reinforce_baseline, ppo_discrete]
PPO = [ppo_discrete, ppo_continuous, ppo_atari]
SCRIPTS = [reinforce_baseline, *PPO]


class Counter(gym.Env):
    """obs = (episode, t), reward = t: what came from where can be read off any row."""

    observation_space = Box(0, np.inf, (2,))
    action_space = Discrete(2)

    def __init__(self, terminates_after=10**9):
        self.terminates_after, self.episode = terminates_after, -1

    def reset(self, *, seed=None, options=None):
        self.episode, self.t = self.episode + 1, 0
        return self.obs(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.t += 1
        return self.obs(), float(self.t), self.t >= self.terminates_after, False, {}

    def obs(self):
        return np.array([self.episode, self.t], dtype=np.float32)


class Ones(Counter):
    """Reward 1 for ever, and nothing to see: the value is 1 / (1 - gamma)."""

    observation_space = Box(-1, 1, (1,))

    def step(self, action):
        obs, _, terminated, truncated, info = super().step(action)
        return obs, 1.0, terminated, truncated, info

    def obs(self):
        return np.ones(1, dtype=np.float32)


class Copy(gym.Env):
    """The action should repeat the observation, in every component; 8 steps, a reward of 1 where it does."""

    observation_space = MultiDiscrete([3, 2, 4])
    action_space = MultiDiscrete([3, 2, 4])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.target = 0, self.np_random.integers(self.action_space.nvec)
        return self.target, {}

    def step(self, action):
        assert self.action_space.contains(action)
        reward = float((action == self.target).mean())
        self.t, self.target = self.t + 1, self.np_random.integers(self.action_space.nvec)
        return self.target, reward, self.t == 8, False, {}


class DictObs(Counter):
    """Observations of several kinds at once."""

    observation_space = Dict(episode=Discrete(1000), t=Box(0, np.inf, (2, 2), np.float64))

    def obs(self):
        return {"episode": self.episode, "t": np.full((2, 2), self.t, dtype=np.float64)}


class Unplayable(Counter):
    """Actions that start at 1."""

    action_space = Discrete(2, start=1)


gym.register("toy/Terminates-v0", Counter, kwargs={"terminates_after": 3})
gym.register("toy/TimesOut-v0", Counter, max_episode_steps=3)
gym.register("toy/Both-v0", Counter, kwargs={"terminates_after": 3}, max_episode_steps=3)
gym.register("toy/Ones-v0", Ones, max_episode_steps=10)
gym.register("toy/Copy-v0", Copy)
gym.register("toy/Dict-v0", DictObs, max_episode_steps=5)
gym.register("toy/Unplayable-v0", Unplayable)


@pytest.fixture(params=SCRIPTS, ids=lambda script: script.__name__)
def script(request):
    """Each script of the family in turn."""
    return request.param


@pytest.fixture(params=DISCRETE, ids=lambda script: script.__name__)
def discrete(request):
    """Each script with discrete actions."""
    return request.param


@pytest.fixture(params=PPO, ids=lambda script: script.__name__)
def ppo(request):
    """Each PPO script."""
    return request.param


@pytest.fixture
def make_args(tmp_path):
    """make_args(script, **flags) -> Args of 4 rollouts of 64 steps, with a folder of their own."""
    number = itertools.count()

    def make(script, **flags):
        small = dict(total_timesteps=256, num_envs=4, num_steps=16, eval_episodes=1, checkpoints=1)
        small["run_dir"] = str(tmp_path / f"run{next(number)}")
        if script in PPO:
            small |= dict(update_epochs=4, num_minibatches=4)
        if script is ppo_continuous:
            small["env_id"] = "Pendulum-v1"
        if script is ppo_atari:
            small["threads"] = 1
        return script.Args(**small | flags)

    return make


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


class Stopped(Exception):
    """What a run is interrupted with."""


@pytest.fixture
def acts_on_what_is_stored(make_args, record, monkeypatch):
    """A check: each stored action is what the agent does in the stored state, given the noise it drew."""

    def check(script, *names, **flags):
        batches, drawn, draw = record(script, "Batch"), [], script.Agent.noise

        def recorder(self, *shape):
            drawn.append((copy.deepcopy(self), draw(self, *shape)))
            return drawn[-1][1]

        monkeypatch.setattr(script.Agent, "noise", recorder)
        monkeypatch.setattr(script, "evaluate", lambda *_: [0.0])
        script.train(make_args(script, learning_rate=1e-2, **flags))
        rollouts = [batch for _, batch in batches if len(batch.obs) == 64]
        assert len(drawn) == 4 <= len(rollouts)
        for (agent, noise), batch in zip(drawn, rollouts[-4:], strict=True):
            inputs = [getattr(batch, name) for name in ("obs", *names)]
            with torch.no_grad():
                again = agent.act(*inputs, noise.flatten(0, 1))
            torch.testing.assert_close(again, batch.actions, atol=1e-5, rtol=0)

    return check


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
