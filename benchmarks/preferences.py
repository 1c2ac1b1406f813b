"""Preferences, for docs/language.md: what a reward model is worth, over-optimisation, DPO and its trap.

    python benchmarks/preferences.py           # 48 runs, three seeds each: some forty minutes of a core
    python benchmarks/preferences.py --plot    # the picture and the tables of the page

Two judges are reward models: of 16,000 pairs, and of 1,000 with a tenth of the labels wrong. PPO optimises
each of them under several weights of the KL. All runs are in results/preferences.csv: of each seed its curve,
and the answers to 500 held-out prompts in the last line. Finished runs stay.
"""

import contextlib
import csv
import io
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
from command_line import ROOT, Parser, compare, sweep

sys.path[:0] = [str(ROOT), str(ROOT / "variants")]

CSV = ROOT / "benchmarks/results/preferences.csv"
PAGE = ROOT / "docs/language.md"
SEEDS = [1, 2, 3]
JUDGES = {
    "16,000 pairs": {},
    "1,000 pairs, 10 % noise": {"num_pairs": 1000, "label_noise": 0.1, "total_episodes": 12_800},
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
SHOWN = ["score", "exact", "ref_kl", "accuracy", "chosen_logprob", "rejected_logprob"]
COLUMNS = ["run", "seed", "steps", *SHOWN, "made"]


def quiet(script, args) -> list[dict[str, float]]:
    """Train -> the log."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return script.train(args)[1]


def read() -> list[dict[str, str]]:
    return [*csv.DictReader(CSV.open())] if CSV.exists() else []


def add(run: str, seed: int, log: list[dict], **last: float) -> None:
    """Write a run's curve, twenty lines of it, and a line of its evaluation."""
    made = sweep.provenance(("torch", "transformers", "numpy"))
    lines = [row for k, row in enumerate(log) if (len(log) - 1 - k) % -(-len(log) // 20) == 0]
    lines = [{"steps": row["steps"]} | {name: row[name] for name in SHOWN if name in row} for row in lines]
    lines.append({"steps": "evaluation"} | last)
    rows = [{"run": run, "seed": seed, "made": made} | line for line in lines]
    rows = [{k: f"{x:.5g}" if isinstance(x, float) else x for k, x in row.items()} for row in rows]
    with open(f"{CSV}.part", "w") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(read() + rows)
    os.replace(file.name, CSV)
    print(run, seed, last, flush=True)


def answers(folder: str) -> dict[str, float]:
    """Means of the answers to held-out prompts."""
    found = list(map(compare.json.loads, Path(folder, "completions.jsonl").read_text("utf-8").splitlines()))
    return {name: float(np.mean([answer[name] for answer in found])) for name in ("score", "exact")}


def measure() -> None:
    """Do all runs that are missing."""
    import dpo
    import ppo_llm
    import reward_model

    there = {(row["run"], int(row["seed"])) for row in read()}
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


def main() -> None:
    """Measure, or draw."""
    parser = Parser(__doc__)
    parser.add_argument("--plot", action="store_true", help="only draw what is measured")
    if not parser.parse_args().plot:
        measure()


if __name__ == "__main__":
    main()
