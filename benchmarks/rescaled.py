"""MountainCar-v0 with observations that its bounds say are of size 1: those of the env itself are 0.07 and less
where it moves, and a network sees next to nothing of them.

    python ppo_discrete.py --env-id benchmarks.rescaled:RescaledMountainCar-v0

The observations between its bounds, all equally likely, have a mean of 0 and a variance of 1.
"""

import gymnasium as gym
from gymnasium.wrappers import RescaleObservation

BOUND = 3**0.5


def make(**kwargs) -> gym.Env:
    return RescaleObservation(gym.make("MountainCar-v0", **kwargs), -BOUND, BOUND)


gym.register("RescaledMountainCar-v0", make)
