"""Whether a short run tells the truth: its last episode_return beside 100 episodes of evaluation.

    python benchmarks/short_runs.py      # ten seeds of CartPole and of LunarLander, with tuned flags

Prints the tables that are pasted into docs/operations.md, with the mean of the last 100 training episodes,
whenever they were. Seeds are compared in pairs: where the intervals of two agents' evaluations lie apart,
the returns that training reported should not tell the opposite.
"""

import itertools
import os
import tempfile
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stdout

import numpy as np
from common import Parser

import ppo_discrete

SEEDS = range(1, 11)
RUNS = {
    "CartPole-v1": dict(num_envs=8, learning_rate=2.5e-3, gamma=0.98, total_timesteps=30_000),
    "LunarLander-v3": dict(
        num_envs=16,
        num_minibatches=32,
        update_epochs=10,
        learning_rate=1e-3,
        gamma=0.995,
        gae_lambda=0.97,
        total_timesteps=100_000,
    ),
}


def short_run(env_id: str, seed: int) -> tuple[float, float, float, float]:
    """Last episode_return, mean of the last 100 episodes, and the evaluation: mean, half of its interval."""
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(open(os.devnull, "w")):
        flags = dict(vf_clip_coef=np.inf, eval_episodes=0, run_dir=f"{folder}/run", seed=seed)
        args = ppo_discrete.Args(env_id=env_id, **flags | RUNS[env_id])
        agent, log = ppo_discrete.train(args)
        last_100 = np.mean([score for _, score, _ in ppo_discrete.load(args.run_dir)["episodes"]])
        args.eval_episodes = 100
        returns = ppo_discrete.evaluate(agent, args)
    return log[-1]["episode_return"], last_100, np.mean(returns), 1.96 * np.std(returns, ddof=1) / 10


def main() -> None:
    Parser(__doc__).parse_args()
    with ProcessPoolExecutor() as pool:
        for env_id in RUNS:
            rows = list(pool.map(short_run, itertools.repeat(env_id), SEEDS))
            print(f"\n{env_id}, {RUNS[env_id]['total_timesteps']:,} steps\n")
            print("| seed | last `episode_return` | last 100 episodes | mean return of evaluation |")
            print("|---|---|---|---|")
            for seed, (last, last_100, mean, width) in zip(SEEDS, rows, strict=True):
                print(f"| {seed} | {last:.1f} | {last_100:.1f} | {mean:.1f} ± {width:.1f} |")
            pairs = itertools.permutations(rows, 2)
            pairs = [(a, b) for a, b in pairs if a[2] - a[3] > b[2] + b[3]]
            print(f"\nOf {len(pairs)} pairs whose intervals lie apart, the other way round are")
            for i, name in enumerate(("`episode_return`", "the mean of the last 100 episodes")):
                lower = [(b[i] - a[i], a[3] + b[3]) for a, b in pairs if a[i] < b[i]]
                by_more = sum(difference > widths for difference, widths in lower)
                print(f"- in {name}: {len(lower)}, of these {by_more} by more than the intervals together")


if __name__ == "__main__":
    main()
