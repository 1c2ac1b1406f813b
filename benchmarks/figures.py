"""Record what the figures of the reading room show: docs/site/assets/figures-data.js, in some minutes.

    python benchmarks/figures.py

1. A CartPole agent of a few hundred numbers: ppo_discrete.py with 8 units in a layer instead of 64, and with
   flags that let its critic see a fall come.
2. The ratios of real updates, as the loss sees them: 4 epochs (the default), 20, and 20 without the clip.
3. A rollout of one env, early in this agent's training: rewards, values, and where episodes ended.
"""

import json
from tempfile import TemporaryDirectory

import numpy as np
import torch
from common import ROOT, Parser
from torch import nn

import ppo_discrete

OUT = ROOT / "docs/site/assets/figures-data.js"
ITERATIONS = [1, 10, 50, 150]  # counted from 1
EDGES = np.linspace(-1, 1, 41)  # of the histogram of log ratios; what is beyond them is counted at the ends


def small_mlp(in_features: int, out_features: int, gain: float) -> nn.Sequential:
    """As ppo_discrete.mlp, with 8 units in a layer."""
    init = ppo_discrete.layer_init
    body = (init(nn.Linear(in_features, 8)), nn.Tanh(), init(nn.Linear(8, 8)), nn.Tanh())
    return nn.Sequential(*body, init(nn.Linear(8, out_features), gain))


def rounded(x, digits: int = 4):
    return np.round(np.asarray(x, dtype=float), digits).tolist()


def train(**flags) -> tuple:
    with TemporaryDirectory() as folder:
        return ppo_discrete.train(ppo_discrete.Args(run_dir=folder, **flags))


def record_agent() -> tuple[dict, dict]:
    """The agent's networks and its mean return, and a rollout."""
    rollouts = []
    mlp, compute_gae = ppo_discrete.mlp, ppo_discrete.compute_gae

    def watched_gae(rewards, values, next_values, dones, *args):
        rollouts.append([x[:, 0].copy() for x in (rewards, values, next_values, dones)])
        return compute_gae(rewards, values, next_values, dones, *args)

    ppo_discrete.mlp, ppo_discrete.compute_gae = small_mlp, watched_gae
    flags = dict(learning_rate=2.5e-3, gamma=0.98, vf_clip_coef=float("inf"), total_timesteps=200_000)
    agent, log = train(eval_episodes=100, **flags)
    ppo_discrete.mlp, ppo_discrete.compute_gae = mlp, compute_gae
    networks = {
        name: [[rounded(layer.weight.tolist()), rounded(layer.bias.tolist())] for layer in network[::2]]
        for name, network in (("actor", agent.actor), ("critic", agent.critic))
    }
    names = ("rewards", "values", "next_values", "dones")
    rollout = next(x for x in rollouts[40:] if x[-1].sum() > 1)  # episodes end in it
    rollout = {name: rounded(x, 3) for name, x in zip(names, rollout, strict=True)}
    return networks | {"mean_return": log[-1]["eval_return"]}, rollout


def record_run(epochs: int, clip_coef: float = ppo_discrete.Args.clip_coef) -> list:
    """Histograms of ratios for each of ITERATIONS and each epoch."""
    ratios = []
    compute_gradients = ppo_discrete.compute_gradients

    def watched_gradients(agent, batch, clip_coef, args):
        with torch.no_grad():
            ratios.append((agent(batch.obs)[0].log_prob(batch.actions) - batch.logprobs).numpy())
        return compute_gradients(agent, batch, clip_coef, args)

    ppo_discrete.compute_gradients = watched_gradients
    flags = dict(update_epochs=epochs, clip_coef=clip_coef, eval_episodes=0)
    train(total_timesteps=200 * ppo_discrete.Args.num_steps * ppo_discrete.Args.num_envs, **flags)
    ppo_discrete.compute_gradients = compute_gradients
    ratios = np.array(ratios).reshape(200, epochs, -1)
    updates = []
    for iteration in ITERATIONS:
        rows = [
            {
                "counts": np.histogram(x.clip(-0.999, 0.999), EDGES)[0].tolist(),
                "range": rounded(np.exp([x.min(), x.max()]), 3),
                "outside": rounded(np.mean(abs(np.exp(x) - 1) > ppo_discrete.Args.clip_coef)),
                "kl": rounded(np.mean(np.exp(x) - 1 - x), 5),
            }
            for x in ratios[iteration - 1]
        ]
        updates.append({"iteration": iteration, "epochs": rows})
    return updates


if __name__ == "__main__":
    Parser(__doc__).parse_args()
    agent, rollout = record_agent()
    figures = {"agent": agent, "rollout": rollout, "edges": rounded(np.exp(EDGES), 4)}
    figures["runs"] = {"4": record_run(ppo_discrete.Args.update_epochs), "20": record_run(20)}
    figures["runs"]["unclipped"] = record_run(20, float("inf"))
    OUT.write_text(f"const FIGURES = {json.dumps(figures, separators=(',', ':'))};\n")
    print(f"mean return of the agent: {figures['agent']['mean_return']:g}")
