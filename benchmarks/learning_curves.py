"""Learning curves: one script on one env, many seeds, every seed in the table and none picked.

    python benchmarks/learning_curves.py --script ppo_discrete --env-id CartPole-v1
    python benchmarks/learning_curves.py --env-id Acrobot-v1 --num-seeds 5 --flags="--ent-coef 0"

Writes benchmarks/results/<script>__<env>.csv, and prints the mean returns of each seed's last 100 training
episodes and of its evaluation.
"""

import contextlib
import csv
import importlib
import math
import multiprocessing
import os
import shlex
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import tyro

ROOT = Path(__file__).parents[1]


@dataclass
class Args:
    script: str = "ppo_discrete"
    env_id: str = "CartPole-v1"
    num_seeds: int = 10  # seeds 1, 2, ...
    flags: str = ""  # more flags for the script, in one string
    name: str = ""  # of the CSV file; default <script>__<env>
    points: int = 100  # of each curve, in the CSV file
    workers: int = os.cpu_count() or 1  # runs at the same time


def run(job: tuple[Args, int]) -> list[dict[str, float]]:
    """Train with one seed, in a process of its own -> the log."""
    args, seed = job
    sys.path.insert(0, str(ROOT))
    script = importlib.import_module(args.script)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(None):
        flags = [
            *shlex.split(args.flags),
            "--env-id",
            args.env_id,
            "--seed",
            str(seed),
            "--run-dir",
            f"{folder}/run",
        ]
        return script.train(tyro.cli(script.Args, args=flags))[1]


def main(args: Args) -> None:
    """Run all seeds, write the curves, print the table."""
    path = (
        ROOT / "benchmarks/results" / f"{args.name or f'{args.script}__{args.env_id}'.replace('/', '-')}.csv"
    )
    path.parent.mkdir(exist_ok=True)
    seeds = range(1, args.num_seeds + 1)
    with multiprocessing.get_context("spawn").Pool(args.workers, maxtasksperchild=1) as pool:
        logs = list(pool.imap(run, [(args, seed) for seed in seeds]))
    with path.open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(("seed", "steps", "episode_return", "eval_return"))
        for seed, log in zip(seeds, logs, strict=True):
            for row in log[:: -max(1, len(log) // args.points)][::-1]:  # the last one is always among them
                evaluation = f"{row['eval_return']:.2f}" if "eval_return" in row else ""
                rows.writerow((seed, row["steps"], f"{row['episode_return']:.2f}", evaluation))
    print(f"{args.script} on {args.env_id}, {logs[0][-1]['steps']:,} steps {args.flags}")
    for name in ("episode_return", "eval_return"):
        finals = [log[-1][name] for log in logs]
        spread = statistics.stdev(finals) if len(finals) > 1 else math.nan
        print(
            f"{name:15} {statistics.mean(finals):8.1f} +- {spread:.1f}  ",
            *(f"{final:.1f}" for final in finals),
        )


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
