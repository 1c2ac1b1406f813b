"""Envs of which one quantity is of size 1 here, for --env-id to take.

    python ppo_discrete.py --env-id benchmarks.rescaled:RescaledMountainCar-v0
    python ppo_discrete.py --env-id benchmarks.rescaled:RescaledAcrobot-v0

MountainCar's velocity, never above 0.07, is little for a network to see; rescaled, observations have mean 0
and variance 1 if all between the env's bounds are equally likely. Acrobot's returns, down to -500, are far
for a critic to go that takes one gradient step a rollout; rescaled, a step costs 0.01.
"""

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import RescaleObservation, TransformReward

BOUND = np.float32(3**0.5)


def make_mountaincar(**kwargs) -> gym.Env:
    return RescaleObservation(gym.make("MountainCar-v0", **kwargs), -BOUND, BOUND)


def make_acrobot(**kwargs) -> gym.Env:
    return TransformReward(gym.make("Acrobot-v1", **kwargs), lambda reward: 0.01 * reward)


gym.register("RescaledMountainCar-v0", make_mountaincar)
gym.register("RescaledAcrobot-v0", make_acrobot)
