"""Envs and rewards that break runs on purpose, for failures.py.

--env-id failing:Changed-v0 --env-kwargs '{"env": "CartPole-v1", "reward": 100}'    # what is changed
--reward failing:ascending    # for language models: it can be fooled
"""

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import TransformObservation, TransformReward


class Endless(gym.Wrapper):
    """Goes on where it would have ended, from a new start, without telling anyone."""

    def step(self, action) -> tuple:
        obs, reward, terminated, truncated, info = self.env.step(action)
        if terminated or truncated:
            obs, _ = self.env.reset()
        return obs, reward, False, False, info


def make(
    env: str, obs: float = 1, reward: float = 1, bonus: float = 0, endless: bool = False, **kwargs
) -> gym.Env:
    """The env of that id; observations and rewards are scaled, and each step is paid a bonus."""
    changed = gym.make(env, **kwargs)
    if endless:
        changed = Endless(changed)
    if obs != 1:
        space = gym.spaces.Box(-np.inf, np.inf, changed.observation_space.shape, np.float32)
        changed = TransformObservation(changed, lambda x: (obs * x).astype(np.float32), space)
    return TransformReward(changed, lambda x: reward * x + bonus)


gym.register("Changed-v0", entry_point=make, disable_env_checker=True, order_enforce=False)


def nothing(completions: list[str], **columns: list) -> list[float]:
    """The same for all."""
    return [0.0] * len(completions)


def ascending(completions: list[str], **columns: list) -> list[float]:
    """The share of neighbours that are in order: a proxy for sorting. 11111 has all of it."""
    scores = []
    for text in completions:
        pairs = list(zip(text, text[1:], strict=False))
        scores.append(sum(a <= b for a, b in pairs) / max(1, len(pairs)))
    return scores


def long(completions: list[str], **columns: list) -> list[float]:
    """Longer is better."""
    return [float(len(text)) for text in completions]
