"""Envs that are broken on purpose: --env-id failing_envs:Changed-v0, and by --env-kwargs what is changed."""

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
