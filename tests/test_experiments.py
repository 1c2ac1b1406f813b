"""docs/experiments.md: every block of it runs, with smaller numbers, and does what the page says."""

import csv
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import compare
import numpy as np
import pytest
from conftest import ROOT

PAGE = (ROOT / "docs/experiments.md").read_text()
RECIPES = ("ppo_continuous", "tanh", "beta", "rescale", "kl_adaptive")  # that have results
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.M | re.S)
SMALLER = {  # each is on the page, or its test fails
    "ppo_discrete.py --seeds 1-5": "ppo_discrete.py --seeds 1",
    "--seeds 1-5 --out runs/cleanrl": "--seeds 1 --out runs/cleanrl",
    "-- --total-timesteps 100_000\n": "-- --total-timesteps 1_024\n",
    "--seeds 1-5 --grid": "--seeds 1 --grid",
    "norm_adv=True,False --out": "norm_adv=False --out",
    "50_000": "1_024",
    '["my_ppo.py", "ppo_discrete.py"]': '["my_ppo.py"]',
    'seeds = "1-5"': 'seeds = "1"',
    '"--total-timesteps 100_000"': '"--total-timesteps 1_024"',
    "learning_rate = [3e-4, 1e-3]": "learning_rate = [3e-4]",
    "--trials 50 -- --env-id": "--trials 1 --seeds 1001 --report 1 -- --env-id",
    "--num-envs 16 --total-timesteps 300_000": "--num-envs 2 --total-timesteps 4_096",
}

CLEANRL = """
import argparse
from torch.utils.tensorboard import SummaryWriter
parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int)
parser.add_argument("--total-timesteps", type=int)
args = parser.parse_args()
with SummaryWriter("runs/CartPole-v1__ppo__1__1") as writer:
    writer.add_text("hyperparameters", "|param|value|\\n|-|-|\\n|env_id|CartPole-v1|")
    for step in range(1, args.total_timesteps, 10):
        writer.add_scalar("charts/episodic_return", 10, step)
"""


@pytest.mark.long
def test_every_block_of_the_page_runs(tmp_path):
    """In their order, in one folder, as one would paste them."""
    for name in ("tools", "docs/recipes"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for script in ("ppo_discrete.py", "ppo_continuous.py"):
        shutil.copy(ROOT / script, tmp_path)
    text = PAGE
    for long, short in SMALLER.items():
        assert long in text, long
        text = text.replace(long, short)
    env = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": ""}
    env["HOME"] = str(tmp_path)
    for name, program in (
        ("cleanrl/ppo.py", CLEANRL),
        ("venv/bin/python", f'#!/bin/sh\n{sys.executable} "$@"'),
    ):
        path = tmp_path / "cleanrl" / name
        path.parent.mkdir(parents=True)
        path.write_text(program)
        path.chmod(0o755)
    tables = iter(("sweep.toml", "space.toml"))
    for language, block in re.findall(r"^```(\w+)\n(.*?)^```$", text, re.M | re.S):
        if language == "toml":
            (tmp_path / next(tables)).write_text(block)
            continue
        if not shutil.which("parallel"):
            block = re.sub(r".*\| parallel.*\n", "", block)
        line = (
            ["bash", "-euo", "pipefail", "-c", block] if language == "bash" else [sys.executable, "-c", block]
        )
        if "onnx" in block:
            for package in ("onnxscript", "onnxruntime"):
                pytest.importorskip(package)
        done = subprocess.run(line, cwd=tmp_path, env=env, capture_output=True, text=True)
        assert not done.returncode, f"{block}\n{done.stdout}\n{done.stderr}"
    assert "SiLU" in (tmp_path / "my_ppo.py").read_text()
    runs = {path.parent.name for path in tmp_path.glob("runs/sweep/*/checkpoint.pt")}
    assert runs == {"my_ppo__seed=1", "ppo_discrete__seed=1"}
    table = (tmp_path / "runs/grid_compared/table.md").read_text()
    assert "| learning_rate 0.0003 | 1 |" in table and "| learning_rate 0.001 | 1 |" in table
    table = (tmp_path / "runs/all_three/table.md").read_text()
    assert "| my_ppo | 1 |" in table and "| CleanRL | 1 | **10.0** |" in table
    assert len(list(tmp_path.glob("runs/acrobot/*env_id=Acrobot-v1*/checkpoint.pt"))) == 1
    assert (tmp_path / "commands.txt").read_text() == ""  # all are done by then
    assert len(list(tmp_path.glob("runs/tune/found-*/*/checkpoint.pt"))) == 1


@pytest.mark.parametrize(
    ("files", "flags"),
    [
        ({"my_ppo": "experiment_my_ppo", "ppo_discrete": "experiment_ppo_discrete",
          "CleanRL": "experiment_cleanrl"}, ()),
        ({"found": "tuned_found", "found with one seed": "tuned_one_seed", "default": "tuned_default"},
         ("--threshold", "200")),
        ({name: f"recipe_{name}" for name in RECIPES}, ()),
        ({"values not clipped": "recipe_agents", "values clipped": "recipe_agents_clipped"}, ()),
    ],
    ids=["example", "search", "recipes", "agents"],
)  # fmt: skip
def test_tables_on_the_page_are_those_of_their_files(tmp_path, monkeypatch, capsys, files, flags):
    sources = [f"{name}={ROOT}/benchmarks/results/{file}.csv" for name, file in files.items()]
    monkeypatch.setattr(sys, "argv", ["compare.py", *sources, *flags, "--out", str(tmp_path)])
    compare.main()
    table = capsys.readouterr().out.partition("- Intervals")[0].strip()
    assert len(table.splitlines()) > 5 and table in PAGE


@pytest.mark.parametrize("name", ["lstm", "forget", "attention"])
def test_the_table_of_memories_is_that_of_its_files(name):
    cells = []
    for delay in (24, 64, 256):
        lines = (ROOT / f"benchmarks/results/recipe_memory_{name}_{delay}.csv").read_text().splitlines()
        rows = csv.DictReader(line for line in lines if not line.startswith("#"))
        finals = [float(row["eval_return"]) for row in rows if row["eval_return"]]
        assert len(finals) == 5
        cells.append(f"{np.mean(finals):.2f} ({min(finals):.2f} to {max(finals):.2f})")
    assert f" | {' | '.join(cells)} |\n" in PAGE


def test_the_space_on_the_page_is_one():
    tables = [tomllib.loads(block) for language, block in BLOCKS if language == "toml"]
    assert tables[0]["grid"] and tables[1]["learning_rate"]["log"]
