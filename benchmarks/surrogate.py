"""The surrogate beside the true return, along one update of a real policy, for docs/derivations.md.

    python benchmarks/surrogate.py    # five seeds, six minutes of a core

ppo_discrete.py learns CartPole for 30,720 steps, and then takes one more update. From the weights before it,
policies go that way: less far than the update did, as far, and much further. Of each one: the surrogates, KL
and clip fraction of the rollout that the update had seen, the surrogate of 4,096 episodes of the old policy,
and the mean return of as many fresh ones. Then benchmarks/results.py writes the page, and benchmarks/plot.py
the picture.
"""

import tempfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from common import RESULTS, SIZE, WIDTH, Parser, markdown, read_dicts, run_missing, subplots
from compare import number, style
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

import ppo_discrete

CSV = RESULTS / "surrogate.csv"
SEEDS = [1, 2, 3, 4, 5]
LEARNED = 60  # rollouts of 512 steps
KLS = np.geomspace(1e-5, 2, 18)  # what steps are chosen for, as if the KL were quadratic
EPISODES = 4096
# Gains over the policy that acted, in returns of an episode:
COLUMNS = ["return", "many", "discounted", "batch", "clipped"]
COLUMNS += ["return_error", "many_error", "clip_frac", "kl"]  # errors are standard errors


def one_update(seed: int) -> tuple[ppo_discrete.Agent, ppo_discrete.Batch, torch.Tensor, torch.Tensor]:
    """Train -> the agent, the last rollout, and the actor's weights before and after the last update."""
    args = ppo_discrete.Args(seed=seed, eval_episodes=0)
    first, seen, calls = LEARNED * args.update_epochs * args.num_minibatches, [], 0
    original = ppo_discrete.compute_gradients

    def watched(agent, batch, *others):
        nonlocal calls
        if first <= calls < first + args.num_minibatches:  # the first epoch goes through the whole rollout
            seen.append((flat(agent), batch))
        calls += 1
        return original(agent, batch, *others)

    last = (LEARNED + 1) * args.num_steps * args.num_envs
    ppo_discrete.compute_gradients = watched
    with tempfile.TemporaryDirectory() as folder:
        args = ppo_discrete.replace(args, run_dir=f"{folder}/run")
        agent, _ = ppo_discrete.train(args, lambda row: row["steps"] == last)
    ppo_discrete.compute_gradients = original
    batch = ppo_discrete.Batch(*map(torch.cat, zip(*(batch for _, batch in seen), strict=True)))
    return agent, batch, seen[0][0], flat(agent)


def flat(agent: ppo_discrete.Agent) -> torch.Tensor:
    return torch.nn.utils.parameters_to_vector(agent.actor.parameters()).detach().clone()


def kl_of(log_ratio: torch.Tensor) -> float:
    """As ppo_discrete.py estimates it."""
    return (log_ratio.exp() - 1 - log_ratio).mean().item()


def play(agent: ppo_discrete.Agent, seed: int) -> tuple[torch.Tensor, ...]:
    """Whole episodes, one from each env -> obs (T, N, 4), actions and whether a step counts (T, N)."""
    envs = CartPoleVectorEnv(EPISODES)
    [env_seed] = ppo_discrete.seed_everything(seed, "surrogate", 1)
    obs, running, steps = envs.reset(seed=env_seed)[0], np.ones(EPISODES, dtype=bool), []
    while running.any():
        steps.append((torch.as_tensor(obs.copy()), agent.act(torch.as_tensor(obs)), torch.as_tensor(running)))
        obs, _, terminated, truncated, _ = envs.step(steps[-1][1].numpy())
        running = running & ~(terminated | truncated)
    return tuple(map(torch.stack, zip(*steps, strict=True)))


def advantages_of(obs: torch.Tensor, counts: torch.Tensor, gamma: float) -> torch.Tensor:
    """What followed each step that counts (each pays 1), less a baseline: quadratic in state and time."""
    to_go = counts.double()
    for t in reversed(range(len(to_go) - 1)):
        to_go[t] += gamma * to_go[t + 1]
    to_go = to_go[counts]
    time = torch.arange(len(obs))[:, None, None].expand(*counts.shape, 1) / len(obs)
    x = torch.cat([torch.ones_like(time), obs, time], -1)[counts].double()
    pairs = torch.stack([x[:, i] * x[:, j] for i in range(6) for j in range(i, 6)], 1)
    return to_go - pairs @ torch.linalg.solve(pairs.T @ pairs, pairs.T @ to_go)


@torch.no_grad()
def measure(seed: int, agent, batch, before: torch.Tensor, after: torch.Tensor) -> list[list]:
    """A row for each of twenty steps, of which 0 is the policy that acted and 1 the update itself."""
    parameters = list(agent.actor.parameters())

    def move(step: float):
        torch.nn.utils.vector_to_parameters(before + step * (after - before), parameters)

    move(0)
    obs, actions, counts = play(agent, 10**6 + seed)  # others than those that are played below
    many, discounted = (advantages_of(obs, counts, gamma) for gamma in (1, ppo_discrete.Args.gamma))
    length = counts.sum(0).double().mean().item()
    obs, actions = obs[counts], actions[counts]
    episode = torch.arange(EPISODES).expand(counts.shape)[counts]
    acted = agent(obs)[0].log_prob(actions)
    advantages = batch.advantages - batch.advantages.mean()  # as normalised, but for the scale
    move(1)
    unit = kl_of(agent(batch.obs)[0].log_prob(batch.actions) - batch.logprobs)
    rows, start = [], None
    for step in sorted([0, 1, *np.sqrt(KLS / unit)]):
        move(step)
        log_ratio = agent(batch.obs)[0].log_prob(batch.actions) - batch.logprobs
        ratio = log_ratio.exp()
        clipped = ratio.clamp(1 - ppo_discrete.Args.clip_coef, 1 + ppo_discrete.Args.clip_coef)
        change = ((agent(obs)[0].log_prob(actions) - acted).exp() - 1).double()
        sums = torch.zeros(EPISODES, dtype=torch.float64).index_add(0, episode, change * many)
        returns = play(agent, seed)[2].sum(0).double()
        start = returns if start is None else start
        found = {
            "return": returns.mean() - start.mean(),
            "return_error": ((returns.var() + start.var()) / EPISODES).sqrt() if step else 0,
            "many": sums.mean(),
            "many_error": sums.std() / EPISODES**0.5,
            "discounted": (change * discounted).sum() / EPISODES,
            "batch": length * (ratio * advantages).mean(),
            "clipped": length * torch.min(ratio * advantages, clipped * advantages).mean(),
            "clip_frac": (ratio != clipped).double().mean(),
            "kl": kl_of(log_ratio),
        }
        rows.append(
            [seed, f"{step:.4g}", f"{start.mean():.4g}", *(f"{float(found[x]):.4g}" for x in COLUMNS)]
        )
        print(*rows[-1], flush=True)
    return rows


def of(seed: int) -> dict[str, np.ndarray]:
    """All columns of a seed."""
    rows = [row for row in read_dicts(CSV) if row["seed"] == str(seed)]
    return {key: np.array([float(row[key]) for row in rows]) for key in rows[0]}


def interval(found: dict[str, np.ndarray], name: str) -> tuple[np.ndarray, np.ndarray]:
    """95 % of a gain."""
    return found[name] - 1.96 * found[f"{name}_error"], found[name] + 1.96 * found[f"{name}_error"]


def apart(found: dict[str, np.ndarray]) -> np.ndarray:
    """Whether the intervals of the return and of the long surrogate have nothing in common."""
    (low, high), (low_many, high_many) = interval(found, "return"), interval(found, "many")
    return (high < low_many) | (high_many < low)


def table() -> str:
    """Of each seed: the update, where surrogate and return cannot both be right, and the clip's best step."""
    head = ["seed, return", "step", "KL", "clip fraction", "true gain", "surrogate, 4,096 episodes"]
    head += ["the same, γ = 0.99", "surrogate, the rollout", "clipped, the rollout"]
    rows = []
    for seed in SEEDS:
        found = of(seed)
        places = [
            ("the update", np.argmin(abs(found["step"] - 1))),
            ("the intervals part", np.argmax(apart(found))),
            ("the clipped objective is best", np.argmax(found["clipped"])),
        ]
        for what, i in sorted(places, key=lambda place: place[1]):
            cells = [f"{seed}, {number(found['start'][0], 100)}", what, f"{found['kl'][i]:.5f}"]
            cells += [f"{found['clip_frac'][i]:.0%}".replace("%", " %")]
            for name in ("return", "many"):
                cells.append(
                    f"{number(found[name][i], 100)} ± {number(1.96 * found[f'{name}_error'][i], 100)}"
                )
            rows.append(cells + [number(found[name][i], 100) for name in ("discounted", "batch", "clipped")])
    return markdown(head, rows)


def draw(theme: dict):
    """A column for each seed: gains above, the clip fraction below, both against the KL."""
    rows, shared = 2, dict(sharex=True, sharey="row", height_ratios=[3, 1])
    figure, grid = subplots(rows, len(SEEDS), (WIDTH, 3.6), **shared)
    figure.subplots_adjust(left=0.065, right=0.985, top=0.89, bottom=0.25, wspace=0.12, hspace=0.12)
    solid, green, dotted = "-", theme["third"], (0, (1, 1.5))
    lines = [
        ("return", "true return", theme["ink"], 2, solid),
        ("many", "surrogate, 4,096 episodes", theme["other"], 1.6, solid),
        ("discounted", "the same, γ = 0.99", theme["other"], 1.2, dotted),
        ("batch", "surrogate, the rollout", theme["ours"], 1, solid),
        ("clipped", "clipped, the rollout", green, 1.6, solid),
    ]
    for axes, below, seed in zip(*grid, SEEDS, strict=True):
        found = of(seed)
        shown = found["step"] > 0
        kl = found["kl"][shown]
        for name, label, colour, width, dashes in lines:
            if f"{name}_error" in found:
                low, high = (x[shown] for x in interval(found, name))
                axes.fill_between(kl, low, high, color=colour, alpha=0.2, linewidth=0)
            axes.plot(kl, found[name][shown], color=colour, linewidth=width, linestyle=dashes, label=label)
        below.fill_between(kl, 0, 100 * found["clip_frac"][shown], color=green, alpha=0.35, linewidth=0)
        for each, title in ((axes, f"seed {seed}"), (below, "")):
            style(each, "", theme, "y")
            each.set_title(title, loc="left", color=theme["ink"], size=SIZE + 2, weight="bold")
            each.axvline(
                found["kl"][found["step"] == 1][0], color=theme["muted"], linewidth=1, linestyle=(0, (3, 2))
            )
        axes.axhline(0, color=theme["muted"], linewidth=0.8)
        below.set_xscale("log")
        below.set_xticks([1e-4, 1e-2, 1], ["0.0001", "0.01", "1"])
        below.minorticks_off()
        below.set_xlabel("KL", color=theme["muted"], size=SIZE, labelpad=1)
    grid[0, 0].set_yscale("symlog", linthresh=20, linscale=0.9)
    grid[0, 0].set_ylim(-900, 900)
    grid[0, 0].set_yticks([-200, -20, 0, 20, 200], ["−200", "−20", "0", "20", "200"])
    grid[0, 0].minorticks_off()
    grid[1, 0].set_ylim(0, 100)
    grid[1, 0].set_yticks([0, 50, 100], ["0", "50", "100"])
    for axes, name in ((grid[0, 0], "gain"), (grid[1, 0], "clipped, %")):
        axes.set_ylabel(name, color=theme["muted"], size=SIZE)
    place = dict(loc="lower left", bbox_to_anchor=(0.055, 0.055), ncols=5)
    looks = dict(handlelength=1.6, columnspacing=1.4, frameon=False, fontsize=SIZE, labelcolor=theme["ink"])
    figure.legend(*grid[0, 0].get_legend_handles_labels(), **place, **looks)
    words = "bands: 95 % · dashed: the update that PPO took · gains: linear up to ±20, logarithmic beyond"
    figure.text(0.065, 0.02, words, color=theme["muted"], size=SIZE)
    return figure


TABLES = {"surrogate": table}
PICTURES = {"surrogate": (draw, [CSV])}


if __name__ == "__main__":
    Parser(__doc__).parse_args()
    torch.set_num_threads(1)
    with ThreadPoolExecutor(1) as one:  # what it watches of ppo_discrete is there once
        jobs = {(seed,): (seed,) for seed in SEEDS}
        head = ["seed", "step", "start", *COLUMNS]
        run_missing(CSV, head, jobs, lambda seed: measure(seed, *one_update(seed)), one)
