"""MountainCar-v0 with observations in [-1, 1] instead of [-1.2, 0.6] and [-0.07, 0.07].

python ppo_discrete.py --env-id benchmarks.rescaled:RescaledMountainCar-v0
"""

import gymnasium as gym
from gymnasium.wrappers import RescaleObservation


def make(scale=1, **kwargs) -> gym.Env:
    return RescaleObservation(gym.make("MountainCar-v0", **kwargs), -scale, scale)


gym.register("RescaledMountainCar-v0", make)
