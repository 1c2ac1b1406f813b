"""What each of the five fixes is for, measured, for docs/five_fixes.md.

    python benchmarks/five_fixes.py           # noise of gradients, what reuse does to samples, fifteen lines
    python benchmarks/five_fixes.py --plot    # the pictures, and the numbers on the page

The rungs are the runs of benchmarks/runs.toml whose names begin with "ladder"; benchmarks/learning_curves.py
makes their returns. Seeds whose rows are in benchmarks/results/five_fixes.csv are not repeated.
"""

import csv
import hashlib
import multiprocessing
import os
import re
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
import tyro
from command_line import ROOT, Parser, compare
from compare import number
from learning_curves import csv_path, read_table, title
from sweep import parse_seeds

sys.path.insert(0, str(ROOT))
import ppo_discrete  # noqa: E402
import reinforce_baseline  # noqa: E402

CSV, FIFTEEN = (ROOT / f"benchmarks/results/{name}.csv" for name in ("five_fixes", "fifteen_lines"))
PAGE = ROOT / "docs/five_fixes.md"
RUNS = read_table()["runs"]
RUNGS = [name for name in RUNS if name.startswith("ladder")]
ONE_STEP = [name for name in RUNGS if RUNS[name]["script"] == "reinforce_baseline.py"]
REUSE = [name for name in RUNGS if name not in ONE_STEP]
SEEDS = parse_seeds(RUNS[RUNGS[0]]["seeds"])
LEARNED = 30_000  # steps that a policy has learned for when its noise is measured
ROLLOUTS = 100  # of them the noise is estimated
HEAD = "| rung | return of the last 100 episodes, mean ± std | of the whole run | each seed, at the end |"
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


def work(job: tuple) -> list[list]:
    """One job, in a process of its own."""
    torch.set_num_threads(1)
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1), os.dup2(silence, 2)
    others = {"noise": noise, "fifteen": fifteen}
    return others[job[0]](job[1]) if job[0] in others else reuse(*job)


def read(path: Path = CSV) -> list[list[str]]:
    return list(csv.reader(path.open()))[1:] if path.exists() else []


def run_all() -> None:
    """All jobs that are not there yet, one a core."""
    there = {(row[0] if row[0] in REUSE else "noise", int(row[1])) for row in read()}
    there |= {("fifteen", int(row[0])) for row in read(FIFTEEN)}
    whats = ("noise", *REUSE, "fifteen")
    jobs = [(what, seed) for seed in SEEDS for what in whats if (what, seed) not in there]
    for path, head in ((CSV, ["rung", "seed", "steps", *MEASURES]), (FIFTEEN, ["seed", "return"])):
        if not path.exists():
            path.write_text(",".join(head) + "\n")
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        for rows in pool.imap_unordered(work, jobs):
            with (FIFTEEN if len(rows[0]) == 2 else CSV).open("a", newline="") as file:
                csv.writer(file, lineterminator="\n").writerows(rows)
            print(*rows[-1], flush=True)


# What is made of the rows


def series(what: str, name: str) -> tuple[np.ndarray, np.ndarray]:
    """steps (points,), values (seeds, points) of one rung."""
    column = 3 + MEASURES.index(what)
    rows = [row for row in read() if row[0] == name and row[column]]
    seeds = sorted({int(row[1]) for row in rows})
    values = np.array([[float(row[column]) for row in rows if int(row[1]) == seed] for seed in seeds])
    return np.array([int(row[2]) for row in rows if int(row[1]) == seeds[0]]), values


def spread(values: np.ndarray) -> str:
    """Median and range over seeds."""
    return f"**{number(np.median(values))}** ({number(values.min())} to {number(values.max())})"


def returns(name: str) -> str:
    """Mean and standard deviation over seeds, at the end and of whole runs, and each seed, as three cells."""
    found = compare.read_csv(csv_path(name))
    finals, whole = np.sort(found.finals(2)), np.nanmean(found.curves()[1], axis=1)
    scale = np.abs(finals).max()
    each = ", ".join(number(value, scale) for value in finals)
    end, run = (f"{number(x.mean(), scale)}** ± {number(x.std(ddof=1), scale)}" for x in (finals, whole))
    return f"**{end} | **{run} | {each}"


def rung(name: str) -> str:
    """Its title without the env."""
    return title(RUNS[name]).partition(": ")[2]


def short(group: str) -> str:
    """A row for each run whose name begins like that: the return of every seed."""
    lines = [HEAD, "|---|---|---|---|"]
    for name in RUNS:
        if name.startswith(f"{group}_"):
            lines.append(f"| {rung(name)} | {returns(name)} |")
    return "\n".join(lines)


def fifteen_lines() -> str:
    """What the first program comes to."""
    found = sorted(float(row[1]) for row in read(FIFTEEN))
    each = ", ".join(f"{score:.0f}" for score in found)
    return f"Ten seeds of torch, the mean return of the last hundred episodes: {each}."


def ladder() -> str:
    """A row for each rung: its command, return of every seed, and the quantity that its fix is for."""
    lines = [f"{HEAD} what it is for |", "|---|---|---|---|---|"]
    for name in RUNGS:
        if name in ONE_STEP:
            for_what = f"noise of the gradient {spread(series('noise', name)[1][:, 0])}"
            if name == ONE_STEP[-1]:
                for_what += f"; explained variance {spread(series('explained', name)[1][:, 0])}"
        else:
            _, share = series("effective", name)
            _, largest = series("largest", name)
            _, kl = series("kl", name)
            steps, explained = series("explained", name)
            explained = np.median(explained[:, steps <= LEARNED], 1)
            for_what = (
                f"effective samples, in the worst rollout {spread(100 * share.min(1))} %;"
                f" largest ratio {spread(largest.max(1))}; largest KL {spread(kl.max(1))};"
                f" explained variance {spread(explained)}"
            )
        lines.append(f"| {rung(name)} | {returns(name)} | {for_what} |")
    return "\n".join(lines)


def command(name: str) -> str:
    """What to type for a rung."""
    run = RUNS[name]
    return f"```bash\npython {run['script']} --env-id {run['env']} {run['flags']}\n```"


def fill(page: str) -> str:
    """The page with what was measured between its markers."""

    def generate(match: re.Match) -> str:
        of_run = command if match[1] in RUNS else short
        others = {"ladder": ladder, "fifteen": fifteen_lines}
        new = others[match[1]]() if match[1] in others else of_run(match[1])
        return f"<!-- measured {match[1]} -->\n{new}\n<!-- end -->"

    return re.sub(r"<!-- measured (\w+) -->\n.*?<!-- end -->", generate, page, flags=re.S)


def fingerprint() -> str:
    return hashlib.sha256(repr(read()).encode()).hexdigest()


def draw_noise(theme: dict):
    """Noise of the gradient on each rung with one step a rollout."""
    import plot

    figure, axes = plot.plt.subplots(figsize=(plot.WIDTH, 2.2))
    figure.subplots_adjust(left=0.06, right=0.97, top=0.84, bottom=0.22)
    for place, name in enumerate(ONE_STEP):
        values = series("noise", name)[1][:, 0]
        places, dots = place + np.linspace(-0.15, 0.15, len(values)), dict(markersize=4, markeredgewidth=0)
        axes.plot(places, np.sort(values), "o", color=theme["ours"], alpha=0.6, **dots)
        axes.plot([place - 0.3, place + 0.3], [np.median(values)] * 2, color=theme["ours"], linewidth=2)
    compare.style(axes, "", theme, "y")
    axes.set_yscale("log")
    axes.set_yticks([3, 10, 30, 100, 300], ["3", "10", "30", "100", "300"])
    axes.set_xticks(range(len(ONE_STEP)), [rung(name) for name in ONE_STEP])
    finish(figure, theme, {axes: "noise of the gradient: its variance over its squared length"})
    return figure


def draw_ratios(theme: dict):
    """Effective samples and largest ratios of the rungs that use each rollout more than once."""
    import plot

    figure, both = plot.plt.subplots(1, 2, figsize=(plot.WIDTH, 2.4))
    figure.subplots_adjust(left=0.06, right=0.97, top=0.86, bottom=0.2, wspace=0.18)
    for axes, what in zip(both, ("effective", "largest"), strict=True):
        compare.style(axes, "", theme, "y")
        for name, colour in zip(REUSE, (theme["other"], theme["ours"]), strict=True):
            steps, values = series(what, name)
            values = values * (100 if what == "effective" else 1)
            axes.plot(steps, values.T, color=colour, linewidth=0.4, alpha=0.35)
            axes.plot(steps, np.median(values, 0), color=colour, linewidth=1.8, label=rung(name))
        axes.set_xlim(0, steps[-1])
        axes.set_xticks([0, steps[-1]], ["0", compare.count(steps[-1])])
    left, right = both
    left.set_ylim(0, 102)
    left.legend(loc="lower left", frameon=False, fontsize=plot.SIZE, labelcolor=theme["ink"])
    right.set_yscale("log")
    right.set_yticks([1, 10, 100], ["1", "10", "100"])
    finish(figure, theme, {left: "effective samples, %", right: "largest ratio"})
    return figure


def finish(figure, theme: dict, titles: dict) -> None:
    import plot

    for axes, name in titles.items():
        axes.set_title(name, loc="left", color=theme["ink"], size=plot.SIZE + 2, weight="bold")
        axes.minorticks_off()
    words = "thin line or dot: a seed · thick: their median"
    figure.text(0.06, 0.02, words, color=theme["muted"], size=plot.SIZE)


def draw_clip(theme: dict):
    """The clipped objective of one sample: both signs of the advantage, three regions each."""
    import plot

    figure, both = plot.plt.subplots(1, 2, figsize=(plot.WIDTH, 3.0))
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
        compare.style(axes, "", theme, "x")
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
            axes.text(x, 0.985, text, color=colour, size=plot.SIZE, ha="center", va="top",
                      transform=axes.get_xaxis_transform())  # fmt: skip
        name = "A > 0, a good action" if sign > 0 else "A < 0, a bad action"
        axes.set_title(name, loc="left", color=theme["ink"], size=plot.SIZE + 2, weight="bold")
        axes.set_xlabel("ratio r", color=theme["muted"], size=plot.SIZE, labelpad=1)
    return figure


def draw() -> None:
    """The pictures, light and dark, and the page."""
    import plot

    for theme_name, theme in plot.THEMES.items():
        makers = {"fix_noise": draw_noise, "fix_ratios": draw_ratios, "clip": draw_clip}
        for name, make in makers.items():
            path = plot.FOLDER / f"{name}_{theme_name}.png"
            metadata = {} if name == "clip" else {"Fingerprint": fingerprint()}
            figure = make(theme)
            figure.savefig(path, dpi=200, facecolor=theme["page"], metadata=metadata)
            plot.plt.close(figure)
            print(path.relative_to(ROOT))
    PAGE.write_text(fill(PAGE.read_text()))


if __name__ == "__main__":
    parser = Parser(__doc__)
    parser.add_argument("--plot", action="store_true", help="draw what was measured, measure nothing")
    draw() if parser.parse_args().plot else run_all()
