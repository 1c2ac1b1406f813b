"""What only a GPU can tell: whether the scripts run there as on the CPU, how fast, and in how much memory.

    pip install -r tests/requirements.txt && pip install -r benchmarks/requirements.txt
    python benchmarks/gpu.py               # ten minutes at most; once more goes on with what is missing
    python benchmarks/results.py           # docs/performance.md
    python benchmarks/gpu.py --rehearse cpu --csv rehearsal.csv      # all of it, small

Parts run in turn, each in a process of its own. What one has found is in benchmarks/results/gpu.csv when it
ends. One that fails leaves its last line there, and is tried again by the next call.
"""

import contextlib
import csv
import importlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import speed
from common import PACKAGES, RESULTS, ROOT, Parser, markdown, provenance, refuse, write_rows

CSV = RESULTS / "gpu.csv"
COLUMNS = ["part", "quantity", "value"]
BREAKOUT = speed.Args("ppo_atari", "BreakoutNoFrameskip-v4", steps=20_480, threads=os.cpu_count())
CHEETAH = speed.Args("ppo_continuous", "HalfCheetah-v5", steps=24_576)
GAMES = {
    "Breakout, 8 envs": BREAKOUT,
    "Breakout, 64 envs": replace(BREAKOUT, steps=65_536, flags="--num-envs 64"),
    "HalfCheetah-v5, 1 env": CHEETAH,
    "HalfCheetah-v5, 16 envs": replace(CHEETAH, steps=196_608, flags="--num-envs 16"),
}
RUNS = {"": ("ours", ""), ", `--compile`": ("ours", "--compile"), ", stable-baselines3": ("sb3", "")}
SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
MODELS = {  # in the shape of Qwen2.5, whose smallest is the second
    "20 million": (384, 1024, 12, 6, 8_000),
    "500 million": (896, 4864, 24, 14, 151_936),
}


# Each part yields quantities and values.

Found = Iterator[tuple[str, float]]


def run_tests(device: str, small: bool) -> Found:
    """Those that concern devices: on a pretended one, and on the GPU beside the CPU."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "tests/test_devices.py"]
    only = ["-k", "ppo_discrete"] if small else []
    done = subprocess.run([*command, *only], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stdout)
    yield "passed", float(done.stdout.splitlines()[-1].split()[0])


def measure_game(args: speed.Args, only: str, device: str, small: bool) -> Found:
    """Steps per second, seconds of start-up, and peak MiB, on a GPU of its memory."""
    args = replace(args, flags=f"{args.flags} --device {device}")
    if small:  # as few rollouts as there must be
        _, script_args = speed.make_script_args(args, "")
        args = replace(args, steps=4 * script_args.num_envs * script_args.num_steps)
    found = speed.in_a_process(args, only)
    yield "steps/s", found["speed"]
    yield "start-up, s", found["startup"]
    yield "MiB", found.get("gpu_memory", found["memory"])


def measure_language(script: str, sizes: tuple[int, ...], device: str, small: bool) -> Found:
    """Tokens per second but for the first iteration, and peak MiB, of a model with random weights."""
    import torch
    from transformers import AutoModelForCausalLM, ByT5Tokenizer, Qwen2Config

    module = importlib.import_module(script)
    sizes = (64, 128, 2, 2, 1000) if small else sizes
    ends = dict(eos_token_id=1, pad_token_id=0, bos_token_id=None, tie_word_embeddings=True)
    config = Qwen2Config(**dict(zip(SIZES, sizes, strict=True)), num_key_value_heads=2, **ends)
    with tempfile.TemporaryDirectory() as folder:
        model = AutoModelForCausalLM.from_config(config)
        yield "million weights", sum(x.numel() for x in model.parameters()) / 1e6
        model.save_pretrained(folder)
        ByT5Tokenizer(extra_ids=0).save_pretrained(folder)
        del model
        N, T = (8, 8) if small else (64, 64)
        flags = dict(model=folder, num_envs=N, max_new_tokens=T, total_episodes=4 * N, sft_steps=0)
        flags |= dict(eval_episodes=1, checkpoints=0, device=device, run_dir=f"{folder}/run")
        _, log = module.train(module.Args(**flags))
    yield "tokens/s", statistics.mean(row["tokens_per_second"] for row in log[1:])
    memory = torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else 0
    yield "MiB", memory or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def make_parts(device: str) -> dict[str, Callable[[str, bool], Found]]:
    """All parts by their names, the most important ones first."""
    parts = {"tests": run_tests}
    for where in dict.fromkeys((device, "cpu")):
        for game, args in GAMES.items():
            for how, (only, more) in RUNS.items():
                args_of_run = replace(args, flags=f"{args.flags} {more}")
                parts[f"{game}{how} on {where}"] = partial(measure_game, args_of_run, only)
        for size, numbers in MODELS.items():
            for script in ("variants.ppo_llm", "variants.grpo"):
                if where != "cpu" or device == "cpu" or size == "20 million":  # the large one takes too long
                    parts[f"{script}, {size} weights on {where}"] = partial(measure_language, script, numbers)
    return parts


# The CSV file, and its table


def read(path: Path) -> tuple[str, dict[tuple[str, str], str]]:
    """What it was measured on, and {(part, quantity): value}."""
    lines = path.read_text().splitlines() if path.exists() else ["# "]
    return lines[0].removeprefix("# "), {(part, what): value for part, what, value in csv.reader(lines[2:])}


def write(path: Path, how: str, values: dict[tuple[str, str], str]) -> None:
    """Killed at any moment, this leaves the old file or the new one, whole."""
    write_rows(path, COLUMNS, ([*key, x] for key, x in values.items()), f"# {how}\n")


def table() -> str:
    """What is known as Markdown: a row for each part."""
    if not CSV.exists():
        return "Not run yet: no GPU was at hand."
    how, values = read(CSV)
    rows = {}
    for (part, quantity), value in values.items():
        rows.setdefault(part, []).append(f"{quantity}: {value}")
    lines = markdown(["", ""], ([part, "; ".join(found)] for part, found in rows.items()))
    return f"{lines}\n\nMeasured at {how}."


def run_part(name: str, device: str, small: bool) -> None:
    """In a process of its own: the last line that is printed has what the part finds, as JSON."""
    where = "cpu" if name.endswith(" on cpu") else device
    with contextlib.redirect_stdout(sys.stderr):
        found = list(make_parts(device)[name](where, small))
    print(json.dumps(found))


def run_in_a_process(name: str, flags: list[str], seconds: float) -> list[tuple[str, float | str]]:
    """What a part finds, or the last line of what it complains of."""
    command = [sys.executable, __file__, "--part", name, *flags]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return [("failed", f"it took longer than {seconds:.0f} s")]
    if done.returncode:
        return [("failed", done.stderr.strip().rpartition("\n")[2] or f"exit code {done.returncode}")]
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Run all parts that the CSV file lacks, or the one that is named."""
    parser = Parser(__doc__)
    parser.add_argument(
        "--rehearse", metavar="DEVICE", choices=["cpu"], help="small runs, to see that all works"
    )
    parser.add_argument("--csv", type=Path, default=CSV, help="where the results are")
    parser.add_argument("--minutes", type=float, default=10, help="how long this may take")
    parser.add_argument("--part", help="for the processes that this one starts")
    args = parser.parse_args()
    device, flags = args.rehearse or "cuda", ["--rehearse", args.rehearse] if args.rehearse else []
    if args.part:
        run_part(args.part, device, bool(flags))
        return
    import torch

    if flags and args.csv == CSV:
        refuse("--rehearse takes a --csv of its own")
    if not flags and not torch.cuda.is_available():
        refuse("there is no CUDA here; --rehearse cpu --csv FILE tries all of it")
    start, (_, values) = time.time(), read(args.csv)
    how = provenance([*PACKAGES, "transformers"])
    how += f", {torch.cuda.get_device_name()}" if device == "cuda" else f", a rehearsal on {device}"
    for name in make_parts(device):
        left = 60 * args.minutes - (time.time() - start)
        if any(part == name and quantity != "failed" for part, quantity in values):
            continue
        if left < 10:
            print(f"{args.minutes:g} minutes are over; the same command goes on with {name}")
            return
        found = run_in_a_process(name, flags, left)
        values = {key: value for key, value in values.items() if key[0] != name}
        for quantity, value in found:
            values[name, quantity] = value if isinstance(value, str) else f"{value:.6g}"
        write(args.csv, how, values)
        shown = "; ".join(f"{quantity}: {values[name, quantity]}" for quantity, _ in found)
        print(f"{time.time() - start:4.0f} s  {name}: {shown}", flush=True)


if __name__ == "__main__":
    main()
