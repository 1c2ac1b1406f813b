"""How many actions of trained policies are beyond the bounds of their env, and so cut off.

    python benchmarks/learning_curves.py ant ant_std    # leaves the policies in runs/benchmarks/
    python benchmarks/clipped_actions.py ant ant_std    # writes results/clipped_actions.csv
    python benchmarks/results.py

Each policy plays with noise in ten envs, until each has ended an episode. A component of an action counts
twice: as it was sampled, and as its mean, which says whether the noise is to blame.
"""

from dataclasses import replace
from pathlib import Path

import torch
from common import ROOT, Parser, read_rows, refuse, write_rows
from results import CLIPPED

import ppo_continuous


def clipped(run: dict, num_envs: int = 10) -> tuple[float, float]:
    """The shares of components of a run's actions, and of their means, that are beyond the bounds."""
    args = replace(run["args"], eval_episodes=num_envs, eval_greedy=False)
    envs = ppo_continuous.make_envs(args, num_envs)
    agent = ppo_continuous.Agent(envs)
    agent.load_state_dict(run["agent"])
    space = envs.env.single_action_space  # that of the wrapper, ClipAction, has no bounds
    low, high = torch.as_tensor(space.low), torch.as_tensor(space.high)
    act, asked = agent.act, []

    def act_and_note(obs: torch.Tensor, greedy: bool) -> torch.Tensor:
        action = act(obs, greedy)
        asked.append(torch.stack([action, agent.mean(obs)]))
        return action

    agent.act = act_and_note
    ppo_continuous.evaluate(agent, args)
    asked = torch.stack(asked, 1)  # (2, steps, envs, components)
    sampled, mean = ((asked < low) | (asked > high)).float().flatten(1).mean(1).tolist()
    return sampled, mean


def measure(name: str, runs: Path) -> dict[int, tuple[float, float]]:
    """{seed: both shares} of a run's seeds that are finished."""
    shares = {}
    for run_dir in runs.glob(f"{name}__seed=*/"):
        run = ppo_continuous.load(run_dir)
        args = run["args"]
        if run["iteration"] == args.total_timesteps // (args.num_envs * args.num_steps):
            shares[args.seed] = clipped(run)
    return shares or refuse(f"no finished run in {runs}; benchmarks/learning_curves.py {name}?")


def main() -> None:
    """Add the policies of the runs that are named to the CSV file, or measure them anew."""
    parser = Parser(__doc__)
    parser.add_argument("names", nargs="+", metavar="NAME", help="runs of benchmarks/runs.toml")
    rows = {(name, int(seed)): shares for name, seed, *shares in read_rows(CLIPPED)}
    for name in parser.parse_args().names:
        for seed, shares in measure(name, ROOT / "runs/benchmarks").items():
            rows[name, seed] = [f"{share:.4f}" for share in shares]
    write_rows(CLIPPED, ["run", "seed", "sampled", "mean"], ([*key, *rows[key]] for key in sorted(rows)))


if __name__ == "__main__":
    main()
