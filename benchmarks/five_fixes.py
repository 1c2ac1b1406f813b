"""What each of the five fixes is for, measured, for docs/five_fixes.md.

    python benchmarks/five_fixes.py    # noise of gradients, what reuse does to samples, fifteen lines

The rungs are the runs of benchmarks/runs.toml whose names begin with "ladder"; benchmarks/learning_curves.py
makes their returns. Seeds whose rows are in benchmarks/results/five_fixes.csv are not repeated. Then
benchmarks/results.py writes the page, and benchmarks/plot.py the pictures.
"""

import inspect
import multiprocessing
import os
import re
import tempfile
from concurrent.futures import ProcessPoolExecutor
from types import ModuleType

import numpy as np
import torch
import tyro
from common import RESULTS, ROOT, SIZE, WIDTH, Parser, compare, markdown, read_rows, run_missing, subplots
from compare import count, number, style
from learning_curves import csv_path, read_table, title
from sweep import parse_seeds

import ppo_discrete
import reinforce_baseline

CSV, FIFTEEN = RESULTS / "five_fixes.csv", RESULTS / "fifteen_lines.csv"
PAGE = ROOT / "docs/five_fixes.md"
RUNS = read_table()["runs"]
RUNGS = [name for name in RUNS if name.startswith("ladder")]
ONE_STEP = [name for name in RUNGS if RUNS[name]["script"] == "reinforce_baseline.py"]
REUSE = [name for name in RUNGS if name not in ONE_STEP]
SEEDS = parse_seeds(RUNS[RUNGS[0]]["seeds"])
LEARNED = 30_000  # steps that a policy has learned for when its noise is measured
ROLLOUTS = 100  # of them the noise is estimated
HEADS = ["rung", "return of the last 100 episodes, mean ± std", "of the whole run", "each seed, at the end"]
MEASURES = ["noise", "explained", "effective", "largest", "kl"]  # columns; empty if not measured


def args_of(name: str, module: ModuleType, **changed):
    """The script's Args with the flags of a rung."""
    line = ["--env-id", RUNS[name]["env"], *RUNS[name]["flags"].split()]
    args = tyro.cli(module.Args, args=line)
    return module.replace(args, **changed)


def make_row(name: str, seed: int, steps: int, measured: dict[str, float]) -> list:
    """A line of the CSV file."""
    return [name, seed, steps, *(f"{measured[x]:.4g}" if x in measured else "" for x in MEASURES)]


def noise(seed: int) -> list[list]:
    """Variance of the policy gradient over its squared length, of each rung with one step a rollout.

    The policy and the critic are the same for all, and so are the rollouts.
    """
    module, T = reinforce_baseline, args_of(ONE_STEP[-1], reinforce_baseline).num_steps
    with tempfile.TemporaryDirectory() as folder:
        flags = dict(seed=seed, run_dir=f"{folder}/run", total_timesteps=LEARNED, eval_episodes=1)
        agent, log = module.train(args_of(ONE_STEP[-1], module, **flags))
    variants = {name: args_of(name, module, vf_coef=0.0, ent_coef=0.0) for name in ONE_STEP}
    gradients = {name: [] for name in ONE_STEP}
    envs = module.make_envs(variants[ONE_STEP[0]], variants[ONE_STEP[0]].num_envs)
    obs = envs.reset(seed=module.seed_everything(seed, "noise", envs.num_envs))[0]
    for _ in range(ROLLOUTS):
        seen, actions, rewards, dones, final_values = [obs], [], [], [], []
        for _ in range(T):
            action = agent.act(torch.as_tensor(obs))
            obs, reward, terminated, truncated, infos = envs.step(action.numpy())
            timeout = truncated & ~terminated
            final_values.append(np.zeros(envs.num_envs, np.float32))
            if timeout.any():  # as in the scripts
                final = torch.as_tensor(np.stack(infos["final_obs"][timeout]))
                final_values[-1][timeout] = agent(final)[1].detach()
            seen.append(obs)
            actions.append(action)
            rewards.append(reward.astype(np.float32))
            dones.append((terminated | truncated).astype(np.float32))
        seen = torch.as_tensor(np.stack(seen))
        values = agent(seen)[1].detach()
        next_values = np.where(dones, final_values, values[1:])
        for name, args in variants.items():
            known = np.stack(rewards), values[:-1].numpy(), next_values, np.stack(dones)
            advantages = torch.as_tensor(module.compute_gae(*known, args.gamma, args.gae_lambda))
            batch = module.Batch(seen[:-1], torch.stack(actions), advantages, advantages + values[:-1])
            agent.zero_grad()
            module.compute_gradients(agent, module.Batch(*(x.flatten(0, 1) for x in batch)), args)
            gradients[name].append(torch.cat([x.grad.flatten() for x in agent.actor.parameters()]))
    explained = np.median([row["explained_variance"] for row in log])  # the first ones may be far below 0
    rows = []
    for name, found in gradients.items():
        found = torch.stack(found).double()
        variance, mean = found.var(0).sum(), found.mean(0)
        measured = {"noise": (variance / (mean @ mean)).item()}
        if name == ONE_STEP[-1]:  # whose critic it is
            measured["explained"] = explained
        rows.append(make_row(name, seed, LEARNED, measured))
    return rows


def reuse(name: str, seed: int) -> list[list]:
    """Of each rollout of a run, in its last epoch: effective samples, the largest ratio, and the KL."""
    args = args_of(name, ppo_discrete, seed=seed, eval_episodes=1)
    updates, log_ratios, last_epochs = args.update_epochs * args.num_minibatches, [], []
    loss = ppo_discrete.ppo_loss

    def watched(dist, value, batch, *others):
        log_ratios.append((dist.log_prob(batch.actions) - batch.logprobs).detach().double())
        if len(log_ratios) == updates:
            last_epochs.append(torch.stack(log_ratios[-args.num_minibatches :]))
            log_ratios.clear()
        return loss(dist, value, batch, *others)

    ppo_discrete.ppo_loss = watched
    with tempfile.TemporaryDirectory() as folder:
        _, log = ppo_discrete.train(ppo_discrete.replace(args, run_dir=f"{folder}/run"))
    ppo_discrete.ppo_loss = loss
    rows = []
    for row, log_ratio in zip(log, last_epochs, strict=True):
        ratio = log_ratio.exp()
        effective = ratio.sum(1) ** 2 / (ratio**2).sum(1)  # Kish's effective sample size
        measured = dict(
            effective=(effective / ratio.shape[1]).mean().item(),
            largest=ratio.max().item(),
            kl=(ratio - 1 - log_ratio).mean().item(),
            explained=row["explained_variance"],
        )
        rows.append(make_row(name, seed, row["steps"], measured))
    return rows


def fifteen(seed: int) -> list[list]:
    """The program at the beginning of the page -> mean return of its last hundred episodes."""
    [program] = re.findall(r"```python runs\n(.*?)```", PAGE.read_text(), re.S)
    torch.manual_seed(seed)
    returns = []
    exec(program, {"print": lambda episode, score: returns.append(score)})
    return [[seed, f"{np.mean(returns[-100:]):.4g}"]]


def quietly(what: str, seed: int) -> list[list]:
    """One job, in a process of its own."""
    torch.set_num_threads(1)
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1), os.dup2(silence, 2)
    others = {"noise": noise, "fifteen": fifteen}
    return others[what](seed) if what in others else reuse(what, seed)


def run_all() -> None:
    """All jobs that are not there yet, one a core."""
    jobs = {(name, seed): (name, seed) for seed in SEEDS for name in REUSE}
    jobs |= {(ONE_STEP[0], seed): ("noise", seed) for seed in SEEDS}
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        run_missing(CSV, ["rung", "seed", "steps", *MEASURES], jobs, quietly, pool)
        jobs = {(seed,): ("fifteen", seed) for seed in SEEDS}
        run_missing(FIFTEEN, ["seed", "return"], jobs, quietly, pool)


# What is made of the rows


def series(what: str, name: str) -> tuple[np.ndarray, np.ndarray]:
    """steps (points,), values (seeds, points) of one rung."""
    column = 3 + MEASURES.index(what)
    rows = [row for row in read_rows(CSV) if row[0] == name and row[column]]
    seeds = sorted({int(row[1]) for row in rows})
    values = np.array([[float(row[column]) for row in rows if int(row[1]) == seed] for seed in seeds])
    return np.array([int(row[2]) for row in rows if int(row[1]) == seeds[0]]), values


def spread(values: np.ndarray) -> str:
    """Median and range over seeds."""
    return f"**{number(np.median(values))}** ({number(values.min())} to {number(values.max())})"


def returns(name: str) -> list[str]:
    """Mean and standard deviation over seeds, at the end and of whole runs, and each seed: three cells."""
    found = compare.read_csv(csv_path(name))
    finals, whole = np.sort(found.finals(2)), np.nanmean(found.curves()[1], axis=1)
    scale = np.abs(finals).max()
    each = ", ".join(number(value, scale) for value in finals)
    cells = [f"**{number(x.mean(), scale)}** ± {number(x.std(ddof=1), scale)}" for x in (finals, whole)]
    return [*cells, each]


def rung(name: str) -> str:
    """Its title without the env."""
    return title(RUNS[name]).partition(": ")[2]


def rungs(group: str) -> str:
    """A row for each run whose name begins like that: the return of every seed."""
    return markdown(HEADS, ([rung(name), *returns(name)] for name in RUNS if name.startswith(f"{group}_")))


def fifteen_lines() -> str:
    """What the first program comes to."""
    found = sorted(float(row[1]) for row in read_rows(FIFTEEN))
    each = ", ".join(f"{score:.0f}" for score in found)
    return f"Ten seeds of torch, the mean return of the last hundred episodes: {each}."


def ladder() -> str:
    """A row for each rung: its command, return of every seed, and the quantity that its fix is for."""
    rows = []
    for name in RUNGS:
        if name in ONE_STEP:
            for_what = f"noise of the gradient {spread(series('noise', name)[1][:, 0])}"
            if name == ONE_STEP[-1]:
                for_what += f"; explained variance {spread(series('explained', name)[1][:, 0])}"
        else:
            share, largest, kl = (series(what, name)[1] for what in ("effective", "largest", "kl"))
            steps, explained = series("explained", name)
            explained = np.median(explained[:, steps <= LEARNED], 1)
            for_what = (
                f"effective samples, in the worst rollout {spread(100 * share.min(1))} %;"
                f" largest ratio {spread(largest.max(1))}; largest KL {spread(kl.max(1))};"
                f" explained variance {spread(explained)}"
            )
        rows.append([rung(name), *returns(name), for_what])
    return markdown([*HEADS, "what it is for"], rows)


def command(name: str) -> str:
    """What to type for a rung."""
    run = RUNS[name]
    return f"```bash\npython {run['script']} --env-id {run['env']} {run['flags']}\n```"


TABLES = {"fifteen": fifteen_lines, "ladder": ladder, "rungs": rungs, "rung": command}


def draw_noise(theme: dict):
    """Noise of the gradient on each rung with one step a rollout."""
    figure, axes = subplots(1, 1, (WIDTH, 2.2))
    figure.subplots_adjust(left=0.06, right=0.97, top=0.84, bottom=0.22)
    for place, name in enumerate(ONE_STEP):
        values = series("noise", name)[1][:, 0]
        places, dots = place + np.linspace(-0.15, 0.15, len(values)), dict(markersize=4, markeredgewidth=0)
        axes.plot(places, np.sort(values), "o", color=theme["ours"], alpha=0.6, **dots)
        axes.plot([place - 0.3, place + 0.3], [np.median(values)] * 2, color=theme["ours"], linewidth=2)
    style(axes, "", theme, "y")
    axes.set_yscale("log")
    axes.set_yticks([3, 10, 30, 100, 300], ["3", "10", "30", "100", "300"])
    axes.set_xticks(range(len(ONE_STEP)), [rung(name) for name in ONE_STEP])
    finish(figure, theme, {axes: "noise of the gradient: its variance over its squared length"})
    return figure


def draw_ratios(theme: dict):
    """Effective samples and largest ratios of the rungs that use each rollout more than once."""
    figure, both = subplots(1, 2, (WIDTH, 2.4))
    figure.subplots_adjust(left=0.06, right=0.97, top=0.86, bottom=0.2, wspace=0.18)
    for axes, what in zip(both, ("effective", "largest"), strict=True):
        style(axes, "", theme, "y")
        for name, colour in zip(REUSE, (theme["other"], theme["ours"]), strict=True):
            steps, values = series(what, name)
            values = values * (100 if what == "effective" else 1)
            axes.plot(steps, values.T, color=colour, linewidth=0.4, alpha=0.35)
            axes.plot(steps, np.median(values, 0), color=colour, linewidth=1.8, label=rung(name))
        axes.set_xlim(0, steps[-1])
        axes.set_xticks([0, steps[-1]], ["0", count(steps[-1])])
    left, right = both
    left.set_ylim(0, 102)
    left.legend(loc="lower left", frameon=False, fontsize=SIZE, labelcolor=theme["ink"])
    right.set_yscale("log")
    right.set_yticks([1, 10, 100], ["1", "10", "100"])
    finish(figure, theme, {left: "effective samples, %", right: "largest ratio"})
    return figure


def finish(figure, theme: dict, titles: dict) -> None:
    for axes, name in titles.items():
        axes.set_title(name, loc="left", color=theme["ink"], size=SIZE + 2, weight="bold")
        axes.minorticks_off()
    words = "thin line or dot: a seed · thick: their median"
    figure.text(0.06, 0.02, words, color=theme["muted"], size=SIZE)


def draw_clip(theme: dict):
    """The clipped objective of one sample: both signs of the advantage, three regions each."""
    figure, both = subplots(1, 2, (WIDTH, 3.0))
    figure.subplots_adjust(left=0.03, right=0.985, top=0.86, bottom=0.14, wspace=0.08)
    ratio = np.linspace(0.4, 1.6, 601)
    for axes, sign in zip(both, (1, -1), strict=True):
        free, clipped = sign * ratio, sign * np.clip(ratio, 0.8, 1.2)
        chosen = np.minimum(free, clipped)
        for line in (free, clipped):
            axes.plot(ratio, line, color=theme["muted"], linewidth=0.9, linestyle=(0, (3, 3)))
        flat = (ratio > 1.2) if sign > 0 else (ratio < 0.8)
        axes.plot(ratio, np.where(flat, np.nan, chosen), color=theme["ours"], linewidth=2.4)
        axes.plot(ratio, np.where(flat, chosen, np.nan), color=theme["other"], linewidth=2.4)
        style(axes, "", theme, "x")
        axes.set_yticks([])
        axes.set_xlim(0.4, 1.6)
        axes.set_ylim(*((0.05, 2.15) if sign > 0 else (-1.7, 0.4)))
        axes.set_xticks([0.8, 1, 1.2], ["1 − ε", "1", "1 + ε"])
        for x, low, high in ((0.6, 0.4, 0.8), (1.0, 0.8, 1.2), (1.4, 1.2, 1.6)):
            idle = (sign > 0 and low == 1.2) or (sign < 0 and high == 0.8)
            bound = "1 + ε" if sign > 0 else "1 − ε"
            text = f"min: clipped\nL = ({bound}) A\n∇L = 0" if idle else "L = r A\n∇L = r A ∇log π"
            same = low == 0.8
            text = text if idle else ("both the same\n" if same else "min: not clipped\n") + text
            colour = theme["other"] if idle else theme["ours"]
            axes.text(x, 0.985, text, color=colour, size=SIZE, ha="center", va="top",
                      transform=axes.get_xaxis_transform())  # fmt: skip
        name = "A > 0, a good action" if sign > 0 else "A < 0, a bad action"
        axes.set_title(name, loc="left", color=theme["ink"], size=SIZE + 2, weight="bold")
        axes.set_xlabel("ratio r", color=theme["muted"], size=SIZE, labelpad=1)
    return figure


PICTURES = {
    "fix_noise": (draw_noise, [CSV, *map(rung, ONE_STEP)]),
    "fix_ratios": (draw_ratios, [CSV, *map(rung, REUSE)]),
    "clip": (draw_clip, [inspect.getsource(draw_clip)]),
}


if __name__ == "__main__":
    Parser(__doc__).parse_args()
    run_all()
