"""How fast the scripts are, and what they cost: tables of three pages in docs/.

    pip install -r benchmarks/requirements.txt -r variants/requirements.txt trl==1.16.0
    export CLEANRL=~/cleanrl                  # a checkout, for the table "peers"
    python benchmarks/timings.py              # all tables: an hour, on an idle machine
    python benchmarks/timings.py speed trl    # these two
    python benchmarks/results.py              # the pages

What a table compares runs in turn, in three rounds, each time in a process of its own, so that what else the
machine does slows all of it. benchmarks/results/timings.csv has every value, and what it was measured on.
"""

import csv
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace

import run_peers
import speed
from common import PACKAGES, RESULTS, ROOT, Parser, find, markdown, provenance, write_rows

CSV = RESULTS / "timings.csv"
COLUMNS = ["table", "row", "quantity", "round", "value"]
ROUNDS = 3

SPEED = {  # a row of the table: what runs
    "CartPole-v1, 4 envs, 1 thread": speed.Args("ppo_discrete", "CartPole-v1", steps=204_800),
    "HalfCheetah-v5, 1 env, 1 thread": speed.Args("ppo_continuous", "HalfCheetah-v5", steps=81_920),
    "Hopper-v5, 1 env, 1 thread, TRPO": speed.Args("variants.trpo", "Hopper-v5", steps=30_720),
    "Breakout, 8 envs, 2 threads": speed.Args("ppo_atari", "BreakoutNoFrameskip-v4", steps=10_240, threads=2),
}
TENSORS = {  # a row: settings of rejax, or flags of the script
    "rejax, its settings: 5 envs": "rejax",
    "rejax, ours: 512 envs": "ours",
    "ours, 512 envs": "",
    "ours, 512 envs, `--compile`": "--compile",
    "ours, 2,048 envs, `--compile`": "--compile --num-envs 2048",
}
PEERS = {  # a row: whose run, in run_peers.py
    "ours": "ours",
    "ours, `--compile`": "compiled",
    "stable-baselines3": "sb3",
    "CleanRL, patched": "cleanrl",
    "sbx (JAX)": "sbx",
    "skrl": "skrl",
}
MEMORY = {"PPO": "ppo_llm", "GRPO": "grpo", "DPO": "dpo", "reward model": "reward_model"}
UPDATES = {  # a row: script, its flags, and whose run
    "TRPO": ("variants.trpo", "", "breakdown"),
    "TRPO, `--compile`": ("variants.trpo", "--compile", "breakdown"),
    "PPO with a penalty": ("variants.ppo_penalty", "", "breakdown"),
    "PPO with a clip": ("ppo_continuous", "", "breakdown"),
    "sb3-contrib's TRPO": ("variants.trpo", "", "sb3"),
}


def run(*line: str, by: Iterable[str] = (sys.executable,)) -> str:
    """The output of a program in benchmarks/."""
    done = subprocess.run([*by, *line], cwd=ROOT / "benchmarks", stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(done.returncode)
    return done.stdout


# Each measures one round of its table, and yields row, quantity and value.


def measure_speed(_: int) -> Iterator[tuple[str, str, float]]:
    """Steps per second and seconds of start-up: the peer, the script, and the script compiled."""
    for row, args in SPEED.items():
        for who, only, more in (("peer", "sb3", ""), ("ours", "ours", ""), ("compiled", "ours", "--compile")):
            found = speed.in_a_process(replace(args, flags=more), only)
            yield row, who, found["speed"]
            yield row, f"{who}, start-up", found["startup"]


def measure_update(_: int) -> Iterator[tuple[str, str, float]]:
    """Milliseconds of an update of 2,048 steps of Hopper-v5, critic included, without the first rollout's.

    Ours are all that is between two rollouts; that of sb3-contrib's TRPO, which has the hyper-parameters of
    ours, is without GAE, logging and the checkpoint at the end.
    """
    rollouts = 10
    for row, (script, flags, only) in UPDATES.items():
        args = speed.Args(script, "Hopper-v5", steps=2048 * (rollouts + 1), flags=flags)
        yield row, "ms", 1000 * speed.in_a_process(args, only)["update"] / rollouts


def measure_cost(_: int) -> Iterator[tuple[str, str, float]]:
    """Seconds of an iteration and MiB of memory, with and without a critic."""
    for row, script in {"PPO": "ppo_llm", "GRPO": "grpo"}.items():
        for quantity, value in json.loads(run("language.py", "--measure", script).splitlines()[-1]).items():
            yield row, quantity, value


def measure_memory(number: int) -> Iterator[tuple[str, str, float]]:
    """MiB at most, in an iteration, for each script and size; once, as it is nearly the same each time."""
    for row, script in MEMORY.items() if number == 1 else ():
        for millions, pieces in ((m, n) for m in (5, 20, 80) for n in (0, 8)):
            sizes = ("--millions", str(millions), "--micro-batch", str(pieces), "--iterations", "1")
            line = run("language.py", "--measure", script, *sizes).splitlines()[-1]
            yield row, f"{millions} {pieces}", json.loads(line)["MiB"]


def measure_trl(seed: int) -> Iterator[tuple[str, str, float]]:
    """Share of right answers, and completions per second."""
    for row in ("variants/grpo.py", "TRL"):
        for quantity, value in json.loads(run("compare_trl.py", row, str(seed)).splitlines()[-1]).items():
            yield row, quantity, value


def measure_tensors(seed: int) -> Iterator[tuple[str, str, float]]:
    """Steps per second, seconds of start-up, steps until CartPole is solved (NaN: it is not)."""
    for row, what in TENSORS.items():
        if row.startswith("rejax"):
            found = run("run_rejax.py", what, str(seed), by=["uv", "run", "--no-project"])
        else:
            found = run("tensor_envs.py", str(seed), *what.split())
        for quantity, value in json.loads(found.splitlines()[-1]).items():
            yield row, quantity, math.nan if value is None else value


def measure_peers(_: int) -> Iterator[tuple[str, str, float]]:
    """Steps per second of CPU time; what these libraries need stays out of our requirements."""
    for script in run_peers.RUNS:
        for row, who in PEERS.items():
            by = ["uv", "run", "--no-project"] if who in ("sbx", "skrl") else [sys.executable]
            found = run("run_peers.py", who, script, by=by)
            yield row, script, json.loads(found.splitlines()[-1])["speed"]


# Each shows its table, from {(row, quantity): values of the rounds}.

Found = dict[tuple[str, str], list[float]]


def ratio(values: list[float], others: list[float]) -> str:
    """The median of the ratios within a round, the smallest and the largest."""
    ratios = [value / other for value, other in zip(values, others, strict=True)]
    return f"**{statistics.median(ratios):.2f}** ({min(ratios):.2f} to {max(ratios):.2f})"


def show_speed(found: Found) -> str:
    rows = []
    for row in SPEED:
        cells = [f"{statistics.median(found[row, 'peer']):,.0f} steps/s"]
        for who in ("ours", "compiled"):
            cells.append(f"{statistics.median(found[row, who]):,.0f} steps/s")
            cells.append(ratio(found[row, who], found[row, "peer"]))
        starts = [statistics.median(found[row, f"{who}, start-up"]) for who in ("peer", "ours", "compiled")]
        rows.append([row, *cells, ", ".join(f"{seconds:.0f}" for seconds in starts) + " s"])
    return markdown(["", "peer", "ours", "ratio", "with `--compile`", "ratio", "start-up"], rows)


def show_update(found: Found) -> str:
    rows = []
    for row in UPDATES:
        times = found[row, "ms"]
        compared = ratio(times, found["TRPO", "ms"]) if row != "TRPO" else "1"
        rows.append([row, ", ".join(f"{time:.0f}" for time in times), compared])
    return markdown(["", "ms per update, in turn", "times that of TRPO"], rows)


def show_cost(found: Found) -> str:
    rows = []
    for row in ("PPO", "GRPO"):
        seconds = ", ".join(f"{value:.1f}" for value in found[row, "seconds"])
        memory = ", ".join(f"{value:,.0f}" for value in found[row, "MiB"])
        rows.append([row, seconds, memory])
    return markdown(["", "seconds per iteration", "peak memory (MiB)"], rows)


def show_memory(found: Found) -> str:
    rows, sizes = [], (5, 20, 80)
    for row in MEMORY:
        values = [found[row, f"{size} {pieces}"][0] for size in sizes for pieces in (0, 8)]
        rows.append([row, *(f"{value:,.0f}" for value in values)])
    heads = [head for size in sizes for head in (f"{size}M, all at once", "in pieces of 8")]
    return markdown(["peak memory (MiB)", *heads], rows)


def show_trl(found: Found) -> str:
    rows = []
    for quantity, digits in (("right answers", 3), ("completions per second", 0)):
        for row in ("variants/grpo.py", "TRL"):
            values = found[row, quantity]
            cells = [f"{value:.{digits}f}" for value in [*values, statistics.mean(values)]]
            rows.append([row, quantity, *cells])
    return markdown(["", "", *(f"seed {seed}" for seed in range(1, ROUNDS + 1)), "mean"], rows)


def show_tensors(found: Found) -> str:
    rows = []
    for row in TENSORS:
        speeds, starts, solved = (found[row, quantity] for quantity in ("speed", "startup", "solved"))
        seconds = [start + steps / speed for speed, start, steps in zip(speeds, starts, solved, strict=True)]
        cells = [f"**{statistics.median(speeds):,.0f}** ({min(speeds):,.0f} to {max(speeds):,.0f})"]
        cells.append(f"{statistics.median(starts):.0f} s")
        cells.append(", ".join(f"{steps / 1000:,.0f}k" for steps in solved))
        cells.append(", ".join(f"{second:.0f}" for second in seconds))
        rows.append([row, *(cell.replace("nank", "not").replace("nan", "not") for cell in cells)])
    heads = ["steps per second", "start-up", "steps until solved", "seconds until solved"]
    return markdown(["one core, CPU time", *heads], rows)


def show_peers(found: Found) -> str:
    rows, envs = [], [args.env_id for args in run_peers.RUNS.values()]
    for row in PEERS:
        cells = [row]
        for script in run_peers.RUNS:
            cells.append(f"{statistics.median(found[row, script]):,.0f} steps/s")
            for who in ("ours", "ours, `--compile`"):
                cells.append("" if row.startswith("ours") else ratio(found[who, script], found[row, script]))
        rows.append(cells)
    heads = [head for env in envs for head in (env, "ours / it", "ours with `--compile` / it")]
    return markdown(["", *heads], rows)


MEASURED = {
    "tensors": (measure_tensors, show_tensors),
    "speed": (measure_speed, show_speed),
    "peers": (measure_peers, show_peers),
    "update": (measure_update, show_update),
    "cost": (measure_cost, show_cost),
    "memory": (measure_memory, show_memory),
    "trl": (measure_trl, show_trl),
}


# The CSV file


def read() -> tuple[dict[str, str], list[list[str]]]:
    """{table: what it was measured on}, and all rows."""
    lines = CSV.read_text().splitlines() if CSV.exists() else []
    made = [line.removeprefix("# ").partition(": ") for line in lines if line.startswith("#")]
    return {table: how for table, _, how in made}, list(csv.reader(lines[len(made) :]))[1:]


def read_rounds(table: str) -> Found:
    """What was measured for a table."""
    rounds = {}
    for name, row, quantity, _, value in read()[1]:
        if name == table:
            rounds.setdefault((row, quantity), []).append(float(value))
    return rounds


def show(table: str) -> str:
    """The table as Markdown, and below it what it was measured on."""
    rows = find(MEASURED, table, "table of timings")[1](read_rounds(table))
    return f"{rows}\n\nMeasured at {read()[0][table]}."


TABLES = {"timings": show}


def machine(table: str) -> str:
    """Commit, versions and hardware."""
    packages = {
        "cost": ["torch", "transformers"],
        "memory": ["torch", "transformers"],
        "trl": ["torch", "transformers", "trl"],
    }
    return provenance(packages.get(table, PACKAGES))


def measure(table: str, how: str) -> None:
    """Measure a table anew; killed at any moment, this leaves the old file or the new one, whole."""
    new = []
    for number in range(1, ROUNDS + 1):
        for row, quantity, value in MEASURED[table][0](number):
            new.append([table, row, quantity, str(number), f"{value:.6g}"])
            print(*new[-1], sep=", ", flush=True)
    old, rows = read()
    heads = [f"# {name}: {text}" for name, text in sorted((old | {table: how}).items())]
    rows = sorted([row for row in rows if row[0] != table] + new, key=lambda row: row[0])
    write_rows(CSV, COLUMNS, rows, "\n".join(heads) + "\n")


def main() -> None:
    """Read the command line, and measure what it says."""
    parser = Parser(__doc__)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"of {', '.join(MEASURED)}; default: all")
    tables = parser.parse_args().tables or list(MEASURED)
    for table in tables:
        find(MEASURED, table, "table")
    if "peers" in tables:
        run_peers.find_cleanrl("ppo_discrete")
    for table in tables:
        measure(table, machine(table))


if __name__ == "__main__":
    main()
