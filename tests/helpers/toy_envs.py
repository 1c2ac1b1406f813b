"""Toy envs whose every number is known; "toy_envs:toy/Ones-v0" finds them in any process."""

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control import CartPoleEnv, PendulumEnv
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete


class Masks:
    """Nothing is forbidden, which variants/ppo_masked.py wants to be told."""

    def action_masks(self):
        return np.ones(np.sum(getattr(self.action_space, "nvec", getattr(self.action_space, "n", 0))), bool)


class Counter(Masks, gym.Env):
    """obs = (episode since the last seed, t), reward = t: what came from where can be read off any row."""

    observation_space = Box(0, np.inf, (2,))
    episode = -1  # before the first reset

    def __init__(self, terminates_after=10**9, continuous=False, reward=None):
        self.terminates_after, self.reward = terminates_after, reward
        self.action_space = Box(-1, 1, (1,)) if continuous else Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.episode, self.t = self.episode + 1 if seed is None else 0, 0
        return self.obs(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.t += 1
        reward = float(self.t) if self.reward is None else self.reward
        return self.obs(), reward, self.t >= self.terminates_after, False, {}

    def obs(self):
        return np.array([self.episode, self.t], dtype=np.float32)


class ByTurns(Counter):
    """Every other episode terminates after three steps, the rest meet a time limit there."""

    def reset(self, *, seed=None, options=None):
        obs, info = super().reset(seed=seed)
        self.terminates_after = 3 if self.episode % 2 else 10
        return obs, info


class Huge(Counter):
    """From its 20th step on it shows numbers whose squares are too large for a float."""

    def obs(self):
        return super().obs() + (1e25 if self.t > 20 else 0)


class Blind(Counter):
    """There is nothing to see."""

    observation_space = Box(-1, 1, (1,))

    def obs(self):
        return np.ones(1, dtype=np.float32)


class Wages(Counter):
    """The reward is the action."""

    def step(self, action):
        obs, _, *rest = super().step(action)
        return obs, float(np.sum(action)), *rest


class Pays(Wages, Blind):
    """The reward is the action, whatever is seen."""


class Dice(Counter):
    """Episodes of 1 to 20 steps."""

    longest = 20

    def reset(self, *, seed=None, options=None):
        gym.Env.reset(self, seed=seed)
        self.terminates_after = self.np_random.integers(1, self.longest + 1)
        return super().reset(seed=seed)


class Curriculum(Dice):
    """Of 1 to 3 steps, by how many were played: no reset starts that over, but a new env does."""

    longest = 2
    played = 0

    def reset(self, *, seed=None, options=None):
        obs, info = super().reset(seed=seed)
        self.played += 1
        self.terminates_after += self.played % 2
        return obs, info


class Tells(Counter):
    """Infos that no two envs, and no two steps, have alike."""

    told = 0

    def info(self):
        Tells.told += 1
        return {"array": np.zeros(1 + Tells.told % 3), "kind": {"a": 1} if Tells.told % 2 else 1}

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0], self.info()

    def step(self, action):
        return *super().step(action)[:4], self.info()


class Copy(Masks, gym.Env):
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

    def __init__(self):
        super().__init__()
        self.action_space = Discrete(2, start=1)


class CartPole(Masks, CartPoleEnv):
    """With masks, which allow everything."""


def register(name, env, limit=None, **kwargs):
    """toy/<name>-v0, and toy/<name>Continuous-v0 where actions are numbers."""
    gym.register(f"toy/{name}-v0", env, max_episode_steps=limit, kwargs=kwargs)
    gym.register(
        f"toy/{name}Continuous-v0", env, max_episode_steps=limit, kwargs=kwargs | {"continuous": True}
    )


register("Endless", Counter)
register("Terminates", Counter, terminates_after=3)
register("TimesOut", Counter, 3)
register("Both", Counter, 3, terminates_after=3)
register("OnesTerminates", Counter, terminates_after=3, reward=1.0)
register("OnesTimesOut", Counter, 3, reward=1.0)
register("OnesBoth", Counter, 3, terminates_after=3, reward=1.0)
register("OnesByTurns", ByTurns, 3, reward=1.0)
register("Ones", Blind, 10, reward=1.0)
register("Pays", Pays, 10)
register("Dice", Dice)
register("Curriculum", Curriculum)
register("Huge", Huge)
register("Tells", Tells, terminates_after=4)
register("Wages", Wages, 3)
register("Dict", DictObs, 5)
gym.register("toy/Copy-v0", Copy)
gym.register("toy/Unplayable-v0", Unplayable)
gym.register("toy/CartPole-v0", CartPole, max_episode_steps=500)
gym.register("toy/Pendulum-v0", PendulumEnv, max_episode_steps=200)
