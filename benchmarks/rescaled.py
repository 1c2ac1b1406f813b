"""MountainCar-v0 with observations of size 1: its velocity, never above 0.07, is little for a network to see.

    python ppo_discrete.py --env-id benchmarks.rescaled:RescaledMountainCar-v0

If all observations between the env's bounds were equally likely, they would have mean 0 and variance 1.
"""

import gymnasium as gym
from gymnasium.wrappers import RescaleObservation

BOUND = 3**0.5


def make(**kwargs) -> gym.Env:
    return RescaleObservation(gym.make("MountainCar-v0", **kwargs), -BOUND, BOUND)


gym.register("RescaledMountainCar-v0", make)
