"""What language models learn, and what breaks when they are trained: docs/language.md.

    pip install -r variants/requirements.txt reasoning-gym==0.1.25
    python benchmarks/language.py           # 108 runs, of LEARNING, WINDOWS, and RUNS: over two hours
    python benchmarks/language.py --measure grpo    # time and memory; timings.py takes two scripts in turn

Rows are in benchmarks/results/ as soon as a run is finished, of LEARNING in language_scores.csv, of WINDOWS
in language_windows.csv, of RUNS in language.csv. Runs that are there are not repeated. Then
benchmarks/results.py writes the page, and benchmarks/plot.py the picture.
"""

import importlib
import json
import os
import re
import resource
import shlex
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from common import (
    RESULTS,
    ROOT,
    WIDTH,
    Parser,
    markdown,
    read_rows,
    refuse,
    replace_once,
    run_missing,
    subplots,
)

CSV, SCORES, TIMES = (RESULTS / f"language{name}.csv" for name in ("", "_scores", "_windows"))
PAGE = ROOT / "docs/language.md"
START = "--learning-rate 0 --total-episodes 256"
WORDS = "tools/reasoning_gym_tasks.py spell_backward min_word_len=3 max_word_len=4"  # > runs/words.jsonl
SPELL = "--task runs/words.jsonl --reward tools.reasoning_gym_tasks:score --sft-steps 200"
PROCESS = "--reward benchmarks.process_reward:right_tokens"
EDITED = "runs/relatives"  # grpo.py with an edit that the page shows
GSPO = "variants/grpo.py --sequence-ratio --loss-norm sequence --kl-coef 0"
LEARNING = {  # a table: its rows, and what makes them
    "sorting": {
        "after the warm start": f"variants/ppo_llm.py {START}",
        "PPO": "variants/ppo_llm.py",
        "PPO, a reward for each token": f"variants/ppo_llm.py {PROCESS}",
        "PPO, no critic": "variants/ppo_llm.py --critic-learning-rate 0 --gae-lambda 1",
        "PPO, exact values": "benchmarks/exact_values.py",
        "GRPO": "variants/grpo.py",
        "GRPO, `--group-size 4`": "variants/grpo.py --group-size 4",
        "GRPO, `--dtype bfloat16`": "variants/grpo.py --dtype bfloat16",
    },
    "relatives": {
        "GRPO, as it is here": "variants/grpo.py",
        "GRPO, as published": "variants/grpo.py --loss-norm sequence --clip-coef-high 0.2",
        "Dr. GRPO": "variants/grpo.py --no-norm-adv --loss-norm constant --clip-coef-high 0.2 --kl-coef 0",
        "DAPO": "variants/grpo.py --kl-coef 0",
        "RLOO": f"{EDITED}/RLOO.py --no-norm-adv --loss-norm constant --update-epochs 1 --num-minibatches 1"
        " --clip-coef inf --clip-coef-high inf",
        "CISPO": f"{EDITED}/CISPO.py --kl-coef 0",
        "GSPO": f"{GSPO} --clip-coef 3e-4 --clip-coef-high 4e-4",
        "GSPO, wider clips": f"{GSPO} --clip-coef 0.05 --clip-coef-high 0.07",
    },
    "clips": {
        f"`{clip}`": f"variants/ppo_llm.py --clip-coef {clip}"
        for clip in ("0.05", "0.1", "0.2", "0.5", "inf", "0.2 --kl-coef 0", "inf --kl-coef 0")
    },
    "backward": {
        "after the warm start": f"variants/ppo_llm.py {SPELL} {START}",
        "PPO": f"variants/ppo_llm.py {SPELL} --total-episodes 12_800",
        "GRPO": f"variants/grpo.py {SPELL} --total-episodes 12_800",
    },
}
WINDOWS = {  # of truncated PPO: rollouts of the same number of steps in all
    window: f"variants/ppo_llm_truncated.py --num-steps {window} --checkpoints 0"
    for window in ("32", "16", "8", "4")
}
CRITICS = {  # a row of the table: whose critic
    "sorting": ("sorting", "PPO"),
    "sorting, a reward for each token": ("sorting", "PPO, a reward for each token"),
    "words backward": ("backward", "PPO"),
}
GRPO = "variants/grpo.py --total-episodes 12_800"
PROXY = f"{GRPO} --reward benchmarks.failing_rewards:ascending"
LONG = f"{GRPO} --reward benchmarks.failing_rewards:long --max-new-tokens 32 --num-envs 128"
RUNS = {  # what breaks: its command, that of its cure, and what is looked at
    "reward hacking": (f"{PROXY} --kl-coef 1e-9", f"{PROXY} --kl-coef 1", ("score", "exact")),
    "runaway": (f"{GRPO} --kl-coef 1e-9 --learning-rate 5e-3", f"{GRPO} --kl-coef 1e-9", ("ref_kl", "exact")),
    "growing length": (f"{LONG} --kl-coef 1e-9", f"{LONG} --kl-coef 1", ("length", "finished")),
}
SEEDS = ("1", "2", "3")
METRICS = ("score", "exact", "ref_kl", "length", "finished")


def run(command: str, seed: str, folder: str) -> dict[int, dict[str, float]]:
    """A run in a process of its own -> its metrics in each iteration."""
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    line = [sys.executable, *shlex.split(command), "--seed", seed, "--run-dir", f"{folder}/run"]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(line, cwd=ROOT, env=env, capture_output=True, text=True)
    if done.returncode:
        refuse(f"{command} --seed {seed}: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}")
    found = {}
    for path in Path(f"{folder}/run").glob("events*"):
        for event in LegacyEventFileLoader(str(path)).Load():
            for value in event.summary.value:
                found.setdefault(event.step, {})[value.tag] = value.simple_value
    return {step: point for step, point in sorted(found.items()) if "score" in point}


def learn(task: str, name: str, seed: str) -> list[list]:
    """Means of the run's answers to held-out prompts, and of what its critic explains in training."""
    with tempfile.TemporaryDirectory() as folder:
        points = run(LEARNING[task][name], seed, folder).values()
        lines = Path(f"{folder}/run/completions.jsonl").read_text("utf-8").splitlines()
        answers = list(map(json.loads, lines))
    means = [np.mean([answer[metric] for answer in answers]) for metric in ("score", "exact")]
    if name.startswith("PPO"):
        means.append(np.median([point["explained_variance"] for point in points]))
    return [[task, name, seed, *(f"{mean:.3f}" for mean in means), *[""] * (3 - len(means))]]


def windows(task: str, window: str, seed: str) -> list[list]:
    """Right answers to held-out prompts, tokens that counted in training, seconds of sampling, and others."""
    with tempfile.TemporaryDirectory() as folder:
        points = run(WINDOWS[window], seed, folder).values()
        args = json.loads(Path(f"{folder}/run/args.json").read_text())
        lines = Path(f"{folder}/run/completions.jsonl").read_text("utf-8").splitlines()
    tokens = np.array([point["used"] for point in points]) * args["num_envs"] * args["num_steps"]
    seconds = tokens / [point["tokens_per_second"] for point in points]
    sampling = (seconds * [point["sampling"] for point in points]).sum()
    exact = np.mean([json.loads(line)["exact"] for line in lines])
    learning = seconds.sum() - sampling
    return [[task, window, seed, f"{exact:.3f}", round(tokens.sum()), f"{sampling:.1f}", f"{learning:.1f}"]]


def train(name: str, kind: str, seed: str) -> list[list]:
    """The run's metrics in each iteration."""
    with tempfile.TemporaryDirectory() as folder:
        points = run(RUNS[name][kind == "cure"], seed, folder)
    words = {step: [f"{point[metric]:.4f}" for metric in METRICS] for step, point in points.items()}
    return [[name, kind, seed, step, *found] for step, found in words.items()]


def edit(name: str) -> None:
    """Write grpo.py with the edit that the page has by this name."""
    [diff] = re.findall(rf"```diff {name}\n(.*?)```", PAGE.read_text(), re.S)
    old, new = ("".join(x[1:] + "\n" for x in diff.splitlines() if x[0] == sign) for sign in "-+")
    path = ROOT / f"{EDITED}/{name}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(replace_once((ROOT / "variants/grpo.py").read_text(), old, new, "variants/grpo.py"))


def run_all() -> None:
    words = ROOT / "runs/words.jsonl"
    if not words.exists():
        words.parent.mkdir(exist_ok=True)
        made = subprocess.run([sys.executable, *WORDS.split()], cwd=ROOT, stdout=subprocess.PIPE, check=True)
        words.write_bytes(made.stdout)
    for name in ("RLOO", "CISPO"):
        edit(name)
    learning = [(task, name, seed) for task in LEARNING for seed in SEEDS for name in LEARNING[task]]
    of_windows = [("windows", window, seed) for seed in SEEDS for window in WINDOWS]
    breaking = [(name, kind, seed) for seed in SEEDS for name in RUNS for kind in ("broken", "cure")]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for path, head, jobs, work in (
            (SCORES, "task run seed score exact explained_variance", learning, learn),
            (TIMES, "task window seed exact tokens sampling learning", of_windows, windows),
            (CSV, " ".join(["run kind seed completions", *METRICS]), breaking, train),
        ):
            run_missing(path, head.split(), {job: job for job in jobs}, work, pool)


def learned(task: str) -> str:
    """A row for each run: right answers of every seed, or their scores with the right answers in brackets."""
    rows, found = [], {tuple(row[:3]): np.array(row[3:5], float) for row in read_rows(SCORES)}
    for name, command in LEARNING[task].items():
        pairs = [found[task, name, seed] for seed in SEEDS]
        pairs.append(np.mean(pairs, axis=0))
        alone = task != "backward"  # where the score is that of exact answers
        cells = [f"{exact:.3f}" if alone else f"{score:.3f} ({exact:.3f})" for score, exact in pairs]
        rows.append([name, f"`python {command}`", *cells])
    return markdown(["run", "command", *(f"seed {seed}" for seed in SEEDS), "mean"], rows)


def critic() -> str:
    """What PPO's critic explains of the returns, in the median of all iterations."""
    rows, found = [], {tuple(row[:3]): row[5] for row in read_rows(SCORES)}
    for name, key in CRITICS.items():
        rows.append([name, *(f"{float(found[*key, seed]):.2f}".replace("-", "−") for seed in SEEDS)])
    return markdown(["", *(f"seed {seed}" for seed in SEEDS)], rows)


def lengths() -> str:
    """A row for each length of window: right answers, tokens, and seconds, the mean of every seed."""
    lines = []
    for window in WINDOWS:
        rows = np.array([row[3:] for row in read_rows(TIMES) if row[1] == window], float)
        exact, (tokens, sampling, learning) = rows[:, 0], rows[:, 1:].mean(0)
        cells = [window, ", ".join(f"{x:.3f}" for x in exact), f"{exact.mean():.3f}", f"{tokens:,.0f}"]
        lines.append([*cells, f"{sampling:.0f} s", f"{learning:.0f} s"])
    heads = ["`--num-steps`", f"right answers, seeds {', '.join(SEEDS)}", "mean", "tokens that count"]
    return markdown([*heads, "sampling", "learning"], lines)


def broken() -> str:
    """A row for each kind of run: both metrics in its last ten iterations, the mean of every seed."""
    lines, rows = [], read_rows(CSV)
    for name, (*commands, metrics) in RUNS.items():
        for kind, command in zip(("broken", "cure"), commands, strict=True):
            ends = []
            for metric in metrics:
                column = 4 + METRICS.index(metric)
                chosen = [[row for row in rows if row[:3] == [name, kind, seed]][-10:] for seed in SEEDS]
                values = [np.mean([float(row[column]) for row in last]) for last in chosen if last]
                ends.append(f"{metric} " + ", ".join(f"{value:.2f}" for value in values))
            lines.append([f"{name}, {kind}", f"`python {command}`", "; ".join(ends)])
    return markdown(["run", "command", f"at the end, seeds {', '.join(SEEDS)}"], lines)


TABLES = {"learned": learned, "critic": critic, "windows": lengths, "broken": broken}


def draw(theme: dict):
    """A row of panels for each of the two metrics: broken and cured, a thin line each seed."""
    rows, names = read_rows(CSV), list(RUNS)
    figure, grid = subplots(2, len(names), (WIDTH, 3.9), "constrained")
    for column, name in enumerate(names):
        for axes, metric in zip(grid[:, column], RUNS[name][2], strict=True):
            for kind, colour in (("broken", theme["other"]), ("cure", theme["ours"])):
                for seed in SEEDS:
                    chosen = [row for row in rows if row[:3] == [name, kind, seed]]
                    steps = [int(row[3]) for row in chosen]
                    values = np.array([float(row[4 + METRICS.index(metric)]) for row in chosen])
                    label = kind if seed == SEEDS[0] and column == 0 and metric == "score" else None
                    axes.plot(steps, values, color=colour, lw=1, alpha=0.8, label=label)
            axes.set_facecolor(theme["page"])
            axes.set_title(f"{name}: {metric}", color=theme["ink"], size=8, loc="left")
            axes.tick_params(colors=theme["muted"], labelsize=7, length=0)
            axes.grid(color=theme["grid"], lw=0.8)
            axes.spines[:].set_visible(False)
            axes.set_xticks([0, 6400, 12800], ["0", "6,400", "12,800"])
    figure.legend(loc="outside lower left", ncols=2, fontsize=7, frameon=False, labelcolor=theme["ink"])
    return figure


PICTURES = {"language": (draw, [CSV, RUNS])}


def measure(script: str, millions: int, micro_batch: int, iterations: int) -> None:
    """Train a new Llama of so many million weights; the last iteration is timed."""
    from transformers import ByT5Tokenizer, LlamaConfig, LlamaForCausalLM

    module = importlib.import_module(f"variants.{script}")
    hidden = {5: 256, 20: 512, 80: 1024}[millions]
    sizes = dict(hidden_size=hidden, intermediate_size=hidden * 43 // 16, num_hidden_layers=6)
    names = ("num_envs", "total_episodes", "eval_episodes")
    if script in ("dpo", "reward_model"):
        names = ("batch_size", "total_pairs", "eval_size")
    rollout = dict(zip(names, (64, 64 * iterations, 8), strict=True)) | {"max_new_tokens": 64}
    with tempfile.TemporaryDirectory() as folder:
        config = LlamaConfig(
            vocab_size=259, pad_token_id=0, eos_token_id=1, bos_token_id=None, num_attention_heads=8, **sizes
        )
        LlamaForCausalLM(config).save_pretrained(f"{folder}/model")
        ByT5Tokenizer(extra_ids=0).save_pretrained(f"{folder}/model")
        if script in ("dpo", "reward_model"):  # pairs as long as the completions of the others
            pair = {"prompt": "12345>", "chosen": "1" * 63, "rejected": "2" * 63}
            lines = [json.dumps(pair | {"prompt": f"{n:05}>"}) for n in range(99)]
            Path(f"{folder}/pairs.jsonl").write_text("\n".join(lines))
            rollout["task"] = f"{folder}/pairs.jsonl"
        rollout |= dict(sft_steps=0, checkpoints=0, micro_batch=micro_batch, run_dir=f"{folder}/run")
        _, log = module.train(module.Args(model=f"{folder}/model", **rollout))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    row = log[-1] | {"length": log[-1].get("length", 0)}
    seconds = row["length"] * 64 / row.get("tokens_per_second", 1)
    print(json.dumps({"seconds": seconds, "MiB": peak}))


if __name__ == "__main__":
    parser = Parser(__doc__)
    scripts = ("ppo_llm", "grpo", "dpo", "reward_model")
    parser.add_argument("--measure", choices=scripts, help="the script whose cost is measured")
    parser.add_argument("--millions", type=int, choices=(5, 20, 80), default=20, help="of weights it has")
    parser.add_argument("--micro-batch", type=int, default=0, help="completions in a pass (0: all)")
    parser.add_argument("--iterations", type=int, default=3, help="of which the last is timed")
    args = parser.parse_args()
    if args.measure:
        measure(args.measure, args.millions, args.micro_batch, args.iterations)
    else:
        run_all()
