"""The classic Atari wrappers in plain Python: easy to check by eye, what ppo_atari.py is compared with."""

from collections import deque

import ale_py
import cv2
import gymnasium as gym
import numpy as np

gym.register_envs(ale_py)


class NoopReset(gym.Wrapper):
    """Do nothing for a number of frames after a reset: options["noops"], or else 1 to 30."""

    def reset(self, *, seed=None, options=None):
        obs, info = self.env.reset(seed=seed)
        noops = (options or {}).get("noops", self.np_random.integers(1, 31))
        for _ in range(noops):
            obs, _, terminated, truncated, info = self.env.step(0)
            if terminated or truncated:
                obs, info = self.env.reset()
        return obs, info


class MaxAndSkip(gym.Wrapper):
    """An action lasts 4 frames, of which the brighter pixels of the last two are seen."""

    def step(self, action):
        total, frames = 0.0, deque(maxlen=2)
        for _ in range(4):
            obs, reward, terminated, truncated, info = self.env.step(action)
            frames.append(obs)
            total += reward
            if terminated or truncated:
                break
        return np.max(frames, axis=0), total, terminated, truncated, info


class EpisodicLife(gym.Wrapper):
    """A lost life ends the episode, but only the end of the game resets the game."""

    game_over = True

    def reset(self, **kwargs):
        obs, info = self.env.reset(**kwargs) if self.game_over else self.env.step(0)[::4]
        self.lives = info["lives"]
        return obs, info

    def step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.game_over = terminated or truncated
        life_lost = 0 < info["lives"] < self.lives
        self.lives = info["lives"]
        return obs, reward, terminated or life_lost, truncated, info


class Warp(gym.ObservationWrapper):
    """Grey frames of 84 x 84."""

    def observation(self, obs):
        return cv2.resize(obs, (84, 84), interpolation=cv2.INTER_AREA)


class Stack(gym.Wrapper):
    """The last 4 frames, oldest first, black where there were none yet."""

    def reset(self, **kwargs):
        obs, info = self.env.reset(**kwargs)
        self.frames = deque([np.zeros_like(obs)] * 3 + [obs], maxlen=4)
        return np.stack(self.frames), info

    def step(self, action):
        obs, *rest = self.env.step(action)
        self.frames.append(obs)
        return np.stack(self.frames), *rest


def make(game, obs_type="grayscale"):
    """The game itself: every frame, no sticky actions."""
    return gym.make(f"ALE/{game}-v5", frameskip=1, repeat_action_probability=0.0, obs_type=obs_type)
