"""Preferences, for docs/language.md: what a reward model is worth, over-optimisation, DPO and its trap.

    python benchmarks/preferences.py    # 48 runs, three seeds each: some fifty minutes of a core

Two judges are reward models: of 16,000 pairs, and of 1,000 with a tenth of the labels wrong. PPO optimises
each of them under several weights of the KL. All runs are in results/preferences.csv: of each seed its curve,
and the answers to 500 held-out prompts in the last line. Finished runs stay. Then benchmarks/results.py
writes the page, and benchmarks/plot.py the picture.
"""

import contextlib
import io
import tempfile
from pathlib import Path

import numpy as np
from common import (
    RESULTS,
    ROOT,
    WIDTH,
    Parser,
    find,
    markdown,
    provenance,
    read_dicts,
    read_jsonl,
    subplots,
    write_rows,
)

CSV = RESULTS / "preferences.csv"
SEEDS = [1, 2, 3]
JUDGES = {
    "16,000 pairs": {},
    "1,000 pairs, 10 % noise": {"num_pairs": 1000, "label_noise": 0.1, "total_pairs": 12_800},
}
KL_COEFS = [1e-9, 0.02, 0.1, 0.3]
DPO = {
    "DPO, imitating the preferred answer, too": {},
    "DPO alone (`--sft-coef 0`)": {"sft_coef": 0.0},
    "DPO alone, a larger β (`--beta 1`)": {"sft_coef": 0.0, "beta": 1.0},
    "imitation alone (`--beta 1e-9`)": {"beta": 1e-9},
    "DPO, 30 % noise": {"label_noise": 0.3},
    "imitation alone, 30 % noise": {"label_noise": 0.3, "beta": 1e-9},
}
METRICS = ["score", "exact", "ref_kl", "accuracy", "chosen_logprob", "rejected_logprob"]
COLUMNS = ["run", "seed", "steps", *METRICS, "made"]


def quiet(script, args) -> list[dict[str, float]]:
    """Train -> the log."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return script.train(args)[1]


def add(run: str, seed: int, log: list[dict], **last: float) -> None:
    """Write a run's curve, twenty lines of it, and a line of its evaluation."""
    made = provenance(["torch", "transformers", "numpy"])
    lines = [row for k, row in enumerate(log) if (len(log) - 1 - k) % -(-len(log) // 20) == 0]
    lines = [{"steps": row["steps"]} | {name: row[name] for name in METRICS if name in row} for row in lines]
    lines.append({"steps": "evaluation"} | last)
    rows = [{"run": run, "seed": seed, "made": made} | line for line in lines]
    rows = [{k: f"{x:.5g}" if isinstance(x, float) else x for k, x in row.items()} for row in rows]
    write_rows(CSV, COLUMNS, ([row.get(name, "") for name in COLUMNS] for row in read_dicts(CSV) + rows))
    print(run, seed, last, flush=True)


def answers(folder: str) -> dict[str, float]:
    """Means of the answers to held-out prompts."""
    found = read_jsonl(Path(folder, "completions.jsonl"))
    return {name: float(np.mean([answer[name] for answer in found])) for name in ("score", "exact")}


def measure() -> None:
    """Do all runs that are missing."""
    from variants import dpo, ppo_llm, reward_model

    there = {(row["run"], int(row["seed"])) for row in read_dicts(CSV)}
    for seed in SEEDS:
        for name, flags in DPO.items():
            if (name, seed) not in there:
                with tempfile.TemporaryDirectory() as folder:
                    log = quiet(dpo, dpo.Args(seed=seed, run_dir=folder, checkpoints=0, **flags))
                    add(name, seed, log, **answers(folder))
        for judge, flags in JUDGES.items():
            missing = [kl for kl in KL_COEFS if (f"{judge}, KL {kl:g}", seed) not in there]
            if not missing and (judge, seed) in there:
                continue
            with tempfile.TemporaryDirectory() as folder:
                args = reward_model.Args(seed=seed, run_dir=f"{folder}/judge", checkpoints=0, **flags)
                log = quiet(reward_model, args)
                if (judge, seed) not in there:
                    add(judge, seed, log, accuracy=log[-1]["eval_accuracy"])
                for kl in missing:
                    args = ppo_llm.Args(seed=seed, run_dir=f"{folder}/{kl}", checkpoints=0, kl_coef=kl)
                    args.reward = f"{folder}/judge/model"
                    log = quiet(ppo_llm, args)
                    add(f"{judge}, KL {kl:g}", seed, log, **answers(args.run_dir))


def ends(rows: list[dict[str, str]], run: str, column: str) -> list[float]:
    """A number of the evaluation, of each seed."""
    lines = [x for x in rows if x["run"] == run and x["steps"] == "evaluation"]
    return [float(line[column]) for line in sorted(lines, key=lambda line: int(line["seed"]))]


def curve(rows: list[dict[str, str]], run: str, seed: int, *columns: str) -> list[np.ndarray]:
    """Numbers along a run."""
    lines = [x for x in rows if (x["run"], x["seed"]) == (run, str(seed)) and x["steps"] != "evaluation"]
    return [np.array([float(line[column]) for line in lines]) for column in columns]


def judges() -> str:
    """What the judge says of the answers of its policies, and how many of them are right."""
    rows, lines = read_dicts(CSV), []
    for judge in JUDGES:
        accuracy = ", ".join(f"{x:.2f}" for x in ends(rows, judge, "accuracy"))
        for kl in KL_COEFS:
            proxy, gold = (ends(rows, f"{judge}, KL {kl:g}", x) for x in ("score", "exact"))
            cells = [", ".join(f"{x:.2f}" for x in proxy), ", ".join(f"{x:.3f}" for x in gold)]
            lines.append([judge, accuracy, f"{kl:g}", *cells, f"{np.mean(gold):.3f}"])
    return markdown(["judge", "accuracy", "`--kl-coef`", "its score", "right answers", "mean"], lines)


def pairs() -> str:
    """What DPO leaves of the preferred answers, and how many answers are right."""
    rows, lines = read_dicts(CSV), []
    for run in DPO:
        last = [[x[-1] for x in curve(rows, run, seed, "accuracy", "chosen_logprob")] for seed in SEEDS]
        cells = [
            ", ".join(f"{x:.2f}" for x in column).replace("-", "−") for column in zip(*last, strict=True)
        ]
        gold = ends(rows, run, "exact")
        cells.append(", ".join(f"{x:.3f}" for x in gold))
        lines.append([run, *cells, f"{np.mean(gold):.3f}"])
    heads = ["accuracy on pairs", "log-probability of a preferred token", "right answers"]
    return markdown(["run", *heads, "mean"], lines)


def draw(theme: dict):
    """PPO with two judges, their score and the right answers; DPO, the log-probabilities of both answers."""
    rows = read_dicts(CSV)
    figure, grid = subplots(1, 4, (WIDTH, 2.6), "constrained")
    for axes, judge in zip(grid[:2], list(JUDGES), strict=True):
        for seed in SEEDS:
            kl, proxy, gold = curve(rows, f"{judge}, KL 1e-09", seed, "ref_kl", "score", "exact")
            dots = dict(ls="", marker="o", ms=2.5, alpha=0.8)  # the KL is an estimate: back and forth
            label = "the judge's score" * (seed == 1)
            axes.plot(np.sqrt(kl), proxy, color=theme["other"], label=label, **dots)
            label = "right answers" * (seed == 1)
            axes.plot(np.sqrt(kl), gold, color=theme["ours"], label=label, **dots)
        axes.set(xlim=(0, 2.4), ylim=(-0.1, 1.55))
        axes.set_title(f"PPO, judge of {judge}", color=theme["ink"], size=7, loc="left")
        axes.set_xlabel("√KL of a token to the start", color=theme["muted"], size=7)
    grid[0].legend(fontsize=6, loc="upper left", frameon=False, labelcolor=theme["ink"])
    names = ["DPO alone (`--sft-coef 0`)", "DPO, imitating the preferred answer, too"]
    for axes, run, title in zip(grid[2:], names, ("DPO alone", "DPO and imitation"), strict=True):
        for seed in SEEDS:
            columns = ("accuracy", "chosen_logprob", "rejected_logprob")
            accuracy, *both = curve(rows, run, seed, *columns)
            for x, colour, label in zip(both, ("ours", "other"), ("preferred", "the other"), strict=True):
                axes.plot(x, color=theme[colour], lw=1, label=label * (seed == 1))
        gold = np.mean(ends(rows, run, "exact"))
        axes.set_title(f"{title}: {gold:.2f} right", color=theme["ink"], size=7, loc="left")
        axes.set_xlabel("log-probability of a token, in training", color=theme["muted"], size=7)
        axes.set_xticks([])
    grid[2].legend(fontsize=6, frameon=False, labelcolor=theme["ink"])
    for axes in grid:
        axes.set_facecolor(theme["page"])
        axes.tick_params(colors=theme["muted"], labelsize=7, length=0)
        axes.grid(color=theme["grid"], lw=0.8)
        axes.spines[:].set_visible(False)
    return figure


def table(what: str) -> str:
    """Of the judges, or of the pairs."""
    return find({"judges": judges, "pairs": pairs}, what, "table of preferences")()


SHOWN = [CSV, JUDGES, DPO]  # by the picture


if __name__ == "__main__":
    Parser(__doc__).parse_args()
    measure()
    print(f"all runs are there; without {CSV.relative_to(ROOT)} they are made anew")
