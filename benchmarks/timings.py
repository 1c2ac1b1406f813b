"""How fast the scripts are: the tables of docs/performance.md.

    pip install -r benchmarks/requirements.txt
    export CLEANRL=~/cleanrl                  # a checkout, for the table "peers"
    python benchmarks/timings.py              # all tables: an hour, on an idle machine
    python benchmarks/timings.py speed    # this one
    python benchmarks/results.py              # the pages

What a table compares runs in turn, in three rounds, each time in a process of its own, so that what else the
machine does slows all of it. benchmarks/results/timings.csv has every value, and what it was measured on.
"""

import csv
import json
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace

import run_peers
import speed
from common import RESULTS, ROOT, Parser, find, markdown, provenance, write_rows

CSV = RESULTS / "timings.csv"
COLUMNS = ["table", "row", "quantity", "round", "value"]
ROUNDS = 3

SPEED = {  # a row of the table: what runs
    "CartPole-v1, 4 envs, 1 thread": speed.Args("ppo_discrete", "CartPole-v1", steps=204_800),
    "HalfCheetah-v5, 1 env, 1 thread": speed.Args("ppo_continuous", "HalfCheetah-v5", steps=81_920),
    "Hopper-v5, 1 env, 1 thread, TRPO": speed.Args("variants.trpo", "Hopper-v5", steps=30_720),
    "Breakout, 8 envs, 2 threads": speed.Args("ppo_atari", "BreakoutNoFrameskip-v4", steps=10_240, threads=2),
}
PEERS = {  # a row: whose run, in run_peers.py
    "ours": "ours",
    "ours, `--compile`": "compiled",
    "stable-baselines3": "sb3",
    "CleanRL, patched": "cleanrl",
    "sbx (JAX)": "sbx",
    "skrl": "skrl",
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
    "speed": (measure_speed, show_speed),
    "peers": (measure_peers, show_peers),
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


def table(what: str) -> str:
    """The table as Markdown, and below it what it was measured on."""
    rows = find(MEASURED, what, "table of timings")[1](read_rounds(what))
    return f"{rows}\n\nMeasured at {read()[0][what]}."


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
        measure(table, provenance())


if __name__ == "__main__":
    main()
