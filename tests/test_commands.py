"""The programs around the scripts: their help, and what they say of a command line with a mistake."""

import ast
import importlib
import itertools
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from unittest.mock import MagicMock

import mutants
import pytest
import run_sb3
import tyro
from torch.utils.tensorboard import SummaryWriter

import ppo_discrete

ROOT = Path(__file__).parents[1]
FOLDERS = ("benchmarks", "tests", "tools")
PROGRAMS = sorted(
    str(path.relative_to(ROOT))
    for folder in FOLDERS
    for path in (ROOT / folder).glob("*.py")
    if "\nif __name__ ==" in path.read_text()
)
# Runs each command line as the shell would, but all of them in one process: to import torch takes seconds.
DRIVER = """
import contextlib, io, json, os, runpy, sys

said, path = [], sys.path[1:]
for line in json.loads(sys.argv[1]):
    out, err, code = io.StringIO(), io.StringIO(), None
    sys.argv, sys.path[:] = line, [os.path.dirname(line[0]), *path]
    for name, module in list(sys.modules.items()):  # what is the project's own is imported anew
        place = str(getattr(module, "__file__", None))
        if place.startswith(os.getcwd()) and "site-packages" not in place:
            del sys.modules[name]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            runpy.run_path(line[0], run_name="__main__")
        except SystemExit as error:
            code = error.code
    said.append((code, out.getvalue(), err.getvalue()))
print(json.dumps(said))
"""
MISTAKES = [
    ("benchmarks/failures.py --table", "unrecognized arguments: --table"),
    ("benchmarks/plot.py ladders", "picture ladders is not known; ladder?"),
    ("benchmarks/results.py cartpole", "unrecognized arguments: cartpole"),
    ("benchmarks/run_peers.py rllib ppo_discrete", "argument peer: invalid choice: 'rllib'"),
    ("tools/compare.py nowhere", "nowhere is neither a folder nor a CSV file"),
    ("tools/sweep.py", "no script is given"),
    ("tools/tune.py ppo_discrete.py", "no --total-timesteps after --"),
    ("benchmarks/run_sb3.py", "the following arguments are required: SCRIPT"),
    ("benchmarks/run_sb3.py ppo_masked.py", "argument SCRIPT: invalid choice: 'ppo_masked.py'"),
    ("benchmarks/speed.py --script ppo_discrete.py", "there is no script ppo_discrete.py; it is named like"),
    ("benchmarks/timings.py sped", "table sped is not known; speed?"),
]


def say(lines):
    """Exit code, output and errors of each command line. What begins to work instead is ended."""
    command = [sys.executable, "-c", DRIVER, json.dumps(lines)]
    env = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "110"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_each_program_says_what_it_is_for():
    """The docstring's first words, and nothing is done."""
    assert len(PROGRAMS) >= 16
    for path, (code, out, err) in zip(PROGRAMS, say([[path, "--help"] for path in PROGRAMS]), strict=True):
        words = ast.get_docstring(ast.parse((ROOT / path).read_text())).split()
        assert (code, err) == (0, ""), path
        assert out.startswith("usage: ") and " ".join(words[:12]) in " ".join(out.split()), path


def test_what_a_program_does_not_know_costs_a_line():
    lines = [line.split() for line, _ in MISTAKES]
    for (path, *_), (_, mistake), (code, out, err) in zip(lines, MISTAKES, say(lines), strict=True):
        assert (code, out, err.count("\n")) == (2, "", 1), (path, out, err)
        assert err.startswith(f"{Path(path).name}: ") and mistake in err


def examples(path):
    """The command lines in a file's docstring, from the script on."""
    lines = ast.get_docstring(ast.parse(path.read_text())).splitlines()
    commands = [line for line in lines if line.strip().startswith(("python ", "torchrun "))]
    words = [shlex.split(line, comments=True) for line in commands]
    return [list(itertools.dropwhile(lambda word: not word.endswith(".py"), line)) for line in words]


def test_examples_in_docstrings_of_scripts():
    """Flags that their scripts have, with values that these may have."""
    scripts = [*ROOT.glob("*.py"), *ROOT.glob("variants/*.py")]
    lines = [line for script in scripts for line in examples(script)]
    assert len(lines) >= 2 * len(scripts) > 30
    for path, *flags in lines:
        script = importlib.import_module(path.removesuffix(".py").replace("/", "."))
        if flags != ["--help"]:
            tyro.cli(script.Args, args=flags)


@pytest.mark.long
def test_examples_in_docstrings_of_tools(tmp_path):
    """They do what is said, in a folder with what they speak of; a sweep is only planned."""
    for name in ("ppo_discrete.py", "variants", "benchmarks"):
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "tools", tmp_path / "tools")
    shutil.copy(ROOT / "ppo_discrete.py", tmp_path / "my_ppo.py")
    (tmp_path / "sweep.toml").write_text('scripts = ["my_ppo.py"]\nout = "planned"')
    for name in ("NAME", "sweep", "a", "b"):
        with SummaryWriter(tmp_path / "runs" / name) as writer:
            for step in range(100):
                writer.add_scalar("episode_return", step, step)
    for name, *more in (("compare",), ("diagnose",), ("sweep", "--print", "--out", "planned")):
        lines = examples(ROOT / f"tools/{name}.py")
        assert len(lines) > 2
        for line in lines:
            words = [word for part in line for word in sorted(tmp_path.glob(part)) or [part]]
            command = [sys.executable, *words, *more]
            if "--" in line:  # what follows is of the scripts
                at = command.index("--")
                command = [*command[:at], *more, *command[at : -len(more)]]
            done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
            assert (done.returncode, done.stderr) == (0, ""), line


@pytest.mark.parametrize(
    ("line", "package"),
    [
        ("tools/tune.py --help", "optuna"),
        ("tools/compare.py benchmarks/results/hopper.csv", "matplotlib"),
        ("tools/diagnose.py RUN", "matplotlib"),
    ],
)
def test_a_tool_names_the_file_that_installs_what_it_needs(line, package, tmp_path):
    """With a package of that name that says what Python says of one that is not there."""
    ppo_discrete.train(ppo_discrete.Args(total_timesteps=512, eval_episodes=0, run_dir=str(tmp_path / "run")))
    (tmp_path / f"{package}.py").write_text(f"raise ModuleNotFoundError('No module named {package}')")
    path, word = line.split()
    words = [str(tmp_path / "run") if word == "RUN" else ROOT / word if "/" in word else word]
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    command = [sys.executable, ROOT / path, *words]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode and done.stderr.count("\n") == 1
    assert done.stderr.endswith(f"No module named {package}; pip install -r tools/requirements.txt\n")


def test_a_peer_that_is_not_installed_is_told(monkeypatch, capsys):
    monkeypatch.setattr(run_sb3, "find_spec", lambda _: None)
    with pytest.raises(SystemExit):
        run_sb3.check_peer("ppo_discrete")
    assert "stable_baselines3 is not installed" in capsys.readouterr().err


def test_mutants_of_a_tag_and_a_script_are_of_both():
    def chosen(*words):
        cases = mutants.select(words)
        return {mutant.subject for mutant, _ in cases}, {script for _, script in cases}

    tags, scripts = chosen()
    assert scripts == mutants.KNOWN and {"D08", "D23", "G1"} < tags
    assert chosen("D08", "ppo_discrete") == ({"D08"}, {"ppo_discrete"})
    assert chosen("D06", "D08", "grpo", "ppo_llm") == ({"D06", "D08"}, {"grpo", "ppo_llm"})
    assert chosen("D23")[1] == {"ppo_continuous", "ppo_penalty", "trpo"}
    assert chosen("grpo")[1] == {"grpo"} and chosen("grpo")[0] > {"D08", "G1", "greedy"}
    assert chosen("D23", "ppo_discrete") == (set(), set())


def test_mutants_are_told_as_they_are_tried(monkeypatch, capsys):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # which it sets
    monkeypatch.setattr(mutants.multiprocessing, "get_context", MagicMock())
    monkeypatch.setattr(mutants, "survives", lambda case: "max" in case[0].broken)
    monkeypatch.setattr(sys, "argv", ["mutants.py", "D08", "ppo_discrete"])
    assert mutants.main() == 1
    *lines, survivor, total = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 * 4
    change = "D08 in ppo_discrete: torch.min(ratio  ->  torch.max(ratio"
    assert lines.index(f"[3/4] {change}") < lines.index("[3/4] SURVIVED after 0 s")
    assert [line for line in lines if line.startswith("[2/4]")][1] == "[2/4] caught after 0 s"
    assert survivor == f"SURVIVED: {change}" and total.startswith("3 of 4 mutants caught in ")


@pytest.mark.parametrize(
    ("words", "mistake"),
    [
        (["D08", "ppo_discrete.py"], "ppo_discrete.py is neither a tag nor a script; ppo_discrete?"),
        (["D23", "ppo_discrete"], "there is no mutant of D23 ppo_discrete"),
    ],
)
def test_mutants_that_are_not_there(monkeypatch, capsys, words, mistake):
    monkeypatch.setattr(sys, "argv", ["mutants.py", *words])
    with pytest.raises(SystemExit) as error:
        mutants.main()
    assert error.value.code == 2 and mistake in capsys.readouterr().err
