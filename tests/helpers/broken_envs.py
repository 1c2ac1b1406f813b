"""Envs that fail in the 99th step of each of 4, made anew or not, each in its own way."""

import os
import signal

import gymnasium as gym
import numpy as np
from toy_envs import Masks


class Broken(Masks, gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (3,))
    failure = ""
    steps = 0  # of all envs in this process

    def __init__(self, continuous=False):
        self.action_space = gym.spaces.Box(-1, 1, (1,)) if continuous else gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(3, dtype=np.float32), {}

    def step(self, action):
        Broken.steps += 1
        obs, reward, truncated = np.zeros(3, dtype=np.float32), 1.0, False
        terminated = True  # episodes are short, so that saves may be frequent
        if 4 * 98 < Broken.steps <= 4 * 99:
            match self.failure:
                case "NanObs":
                    obs[1], terminated = np.nan, False
                case "NanFinalObs":
                    obs[1], truncated, terminated = np.nan, True, False
                case "InfReward":
                    reward, terminated = np.inf, False
                case "HugeReward":
                    reward = 1e30
                case "Raises":
                    raise KeyError("the door is locked")
                case "Dies":
                    os._exit(1)
                case "Interrupted":
                    os.kill(os.getpid(), signal.SIGINT)
                case "Terminated":
                    os.kill(os.getpid(), signal.SIGTERM)
        return obs, reward, terminated, truncated, {}


FAILURES = "NanObs NanFinalObs InfReward HugeReward Raises Dies Interrupted Terminated"

for failure in FAILURES.split():
    env = type(failure, (Broken,), {"failure": failure})
    gym.register(f"broken/{failure}-v0", env)
    gym.register(f"broken/{failure}Continuous-v0", env, kwargs={"continuous": True})
