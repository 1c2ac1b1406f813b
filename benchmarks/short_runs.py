"""Whether a short run tells the truth: what training reports beside 100 episodes of evaluation.

    python benchmarks/short_runs.py && python benchmarks/results.py    # two minutes on two cores

Ten seeds of CartPole and of LunarLander, with flags that suit them. Each run has a row in
results/short_runs.csv: its last episode_return, the mean of its last 100 episodes, whenever they were, the
mean return of the evaluation, and half of that mean's 95 % interval.
"""

import itertools
import os
import tempfile
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stdout

import numpy as np
from common import RESULTS, Parser, markdown, read_rows, run_missing
from compare import number

import ppo_discrete

CSV = RESULTS / "short_runs.csv"
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


def short_run(env_id: str, seed: int) -> list[list]:
    """The row of a run."""
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(open(os.devnull, "w")):
        flags = dict(vf_clip_coef=np.inf, eval_episodes=0, run_dir=f"{folder}/run", seed=seed)
        args = ppo_discrete.Args(env_id=env_id, **flags | RUNS[env_id])
        agent, log = ppo_discrete.train(args)
        last_100 = np.mean([score for _, score, _ in ppo_discrete.load(args.run_dir)["episodes"]])
        args.eval_episodes = 100
        returns = ppo_discrete.evaluate(agent, args)
    found = log[-1]["episode_return"], last_100, np.mean(returns), 1.96 * np.std(returns, ddof=1) / 10
    return [[env_id, seed, *(f"{x:.1f}" for x in found)]]


def table() -> str:
    """How far what is reported is from the evaluation, and how often it tells the wrong one of two agents.

    Of two seeds whose evaluations' intervals lie apart, it is known which agent is better.
    """
    rows, lines = read_rows(CSV), []
    for env_id in RUNS:
        runs = [list(map(float, row[2:])) for row in rows if row[0] == env_id]
        apart = [(a, b) for a, b in itertools.permutations(runs, 2) if a[2] - a[3] > b[2] + b[3]]
        for k, name in enumerate(["last `episode_return`", "last 100 episodes"]):
            difference = np.mean([abs(run[k] - run[2]) for run in runs])
            wrong = [b[k] - a[k] > a[3] + b[3] for a, b in apart if a[k] < b[k]]
            env = f"{env_id}, {RUNS[env_id]['total_timesteps']:,} steps"
            lines.append([env, name, number(difference), f"{len(wrong)} of {len(apart)}", str(sum(wrong))])
    heads = ["", "reported", "mean distance from the evaluation", "pairs in the wrong order"]
    return markdown([*heads, "by more than their intervals"], lines)


TABLES = {"short_runs": table}


def main() -> None:
    Parser(__doc__).parse_args()
    jobs = {(env_id, seed): (env_id, seed) for env_id in RUNS for seed in SEEDS}
    with ProcessPoolExecutor() as pool:
        run_missing(CSV, ["env", "seed", "last", "last_100", "evaluation", "half"], jobs, short_run, pool)


if __name__ == "__main__":
    main()
