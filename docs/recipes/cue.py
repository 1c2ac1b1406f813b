"""A test of memory: what was shown in the first step is asked for after a delay.

    python variants/ppo_lstm.py --env-id docs.recipes.cue:Cue-v0 --env-kwargs '{"delay": 64}'

A policy without a memory is right in a quarter of the episodes.
"""

import gymnasium as gym
import numpy as np

CUES = 4


class Cue(gym.Env):
    """In the first step, one of the first CUES numbers is 1; the last one is 1 when it is asked which.

    An action names a cue. Only the last one counts: a reward of 1 if it is right.
    """

    observation_space = gym.spaces.Box(0, 1, (CUES + 1,), np.float32)
    action_space = gym.spaces.Discrete(CUES)

    def __init__(self, delay: int = 24):
        self.delay = delay

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.cue, self.t = self.np_random.integers(CUES), 0
        return self.look(), {}

    def look(self) -> np.ndarray:
        obs = np.zeros(CUES + 1, np.float32)
        if self.t == 0:
            obs[self.cue] = 1
        obs[-1] = self.t == self.delay
        return obs

    def step(self, action):
        is_asked = self.t == self.delay
        self.t += 1
        return self.look(), float(is_asked and action == self.cue), is_asked, False, {}


gym.register("Cue-v0", Cue)
