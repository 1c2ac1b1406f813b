"""variants/ppo_tensor_envs.py on CartPole, as timings.py measures it beside rejax (run_rejax.py).

    python benchmarks/tensor_envs.py 1 --num-envs 2048 --compile    # a seed, and flags of the script

The last line it prints is JSON, of CPU time on one core: steps per second, without the first quarter; seconds
until the first rollout is done and learned from (imports and compilation); and steps until the mean of 128
episodes is 475, judged every 131,072 steps (null: never).
"""

import contextlib
import json
import os
import sys
import tempfile
import time

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # one core

import torch  # noqa: E402
import tyro  # noqa: E402
from common import Parser  # noqa: E402

from variants import ppo_tensor_envs as script  # noqa: E402

EVERY, STEPS = 131_072, 1_048_576


def run(seed: str, flags: list[str], judged: bool) -> tuple[list[float], int | None]:
    """CPU time at each rollout's end, and steps until it is solved, if that is judged."""
    compute_gae, evaluate, clock, agents, solved = script.compute_gae, script.evaluate, [], [], []

    class Agent(script.Agent):
        def __init__(self, env):
            super().__init__(env)
            agents.append(self)

    def clocked(rewards, *rest):
        clock.append(time.process_time())
        steps = (len(clock) - 1) * rewards.numel()
        if judged and steps % EVERY == 0:
            with torch.random.fork_rng():
                if sum(evaluate(agents[0], script.Args(eval_episodes=128))) / 128 >= 475:
                    solved.append(steps)
        return compute_gae(rewards, *rest)

    with tempfile.TemporaryDirectory() as folder:
        words = [
            "--seed",
            seed,
            "--total-timesteps",
            str(STEPS),
            "--checkpoints",
            "0",
            "--eval-episodes",
            "0",
        ]
        args = tyro.cli(script.Args, args=[*words, "--run-dir", folder, *flags])
        script.compute_gae, original, script.Agent = clocked, script.Agent, Agent
        script.train(args)
        script.compute_gae, script.Agent = compute_gae, original
    return clock, min(solved, default=None)


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("seed")
    args, flags = parser.parse_known_args()
    with contextlib.redirect_stdout(sys.stderr):
        clock, _ = run(args.seed, flags, judged=False)
        _, solved = run(args.seed, flags, judged=True)
    first = len(clock) // 4
    steps = STEPS // len(clock) * (len(clock) - 1 - first)
    speed = steps / (clock[-1] - clock[first])
    print(json.dumps({"speed": speed, "startup": clock[1], "solved": solved}))


if __name__ == "__main__":
    main()
