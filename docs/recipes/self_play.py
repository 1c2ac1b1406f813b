"""Self-play as an env: tic-tac-toe against chance, or against a policy that a run has learned.

    python ppo_discrete.py --env-id docs.recipes.self_play:TicTacToe-v0 --run-dir runs/round1
    python ppo_discrete.py --env-id docs.recipes.self_play:TicTacToe-v0 --run-dir runs/round2 \\
        --env-kwargs '{"opponents": ["", "runs/round1"]}'

The other player is part of the env, so the script need not know of it. Each episode has one of the opponents,
drawn at random; "" is chance. Whoever is not among them, a policy forgets how to beat.
"""

from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import torch

import ppo_discrete

LINES = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]


class TicTacToe(gym.Env):
    """Observations: 1 on own squares, -1 on the other's; 1 for a win, -1 for a loss or a taken square."""

    observation_space = gym.spaces.Box(-1, 1, (9,), np.float32)
    action_space = gym.spaces.Discrete(9)

    def __init__(self, opponents: tuple[str, ...] = ()):
        spaces = SimpleNamespace(
            single_observation_space=self.observation_space, single_action_space=self.action_space
        )
        self.policies = [None] * ("" in opponents or not opponents)
        for run_dir in filter(None, opponents):
            agent = ppo_discrete.Agent(spaces)
            ppo_discrete.load(run_dir, agent=agent)
            self.policies.append(agent)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.board = np.zeros(9, np.float32)
        self.policy = self.policies[self.np_random.integers(len(self.policies))]
        if self.np_random.random() < 0.5:  # the other begins
            self.reply()
        return self.board.copy(), {}

    def reply(self) -> None:
        """The other's move, by its policy if that is a free square, or else by chance."""
        free = np.flatnonzero(self.board == 0)
        choice = self.np_random.choice(free)
        if self.policy is not None:
            with torch.no_grad():
                choice = int(self.policy.act(torch.as_tensor(-self.board)))  # as the other sees it
        self.board[choice if choice in free else self.np_random.choice(free)] = -1

    def won(self, player: int) -> bool:
        return any((self.board[list(line)] == player).all() for line in LINES)

    def step(self, action):
        if self.board[action]:
            return self.board.copy(), -1.0, True, False, {}
        self.board[action] = 1
        if not self.won(1) and (self.board == 0).any():
            self.reply()
        reward = float(self.won(1)) - float(self.won(-1))
        return self.board.copy(), reward, bool(reward or (self.board != 0).all()), False, {}


gym.register("TicTacToe-v0", TicTacToe)
