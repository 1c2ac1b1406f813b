"""What holds between files: siblings the same to the letter, tags and their table in step, a true README."""

import ast
import dataclasses
import inspect
import re
from pathlib import Path

import numpy as np
import pytest
from conftest import SCRIPTS
from mutants import MUTANTS
from test_train import same_weights

import ppo_atari
import ppo_continuous
import ppo_discrete
import reinforce_baseline

ROOT = Path(ppo_discrete.__file__).parent
LETTERS = {reinforce_baseline: "R", ppo_discrete: "D", ppo_continuous: "C", ppo_atari: "A"}
OWN = {  # all else is as in ppo_discrete
    reinforce_baseline: {"Args", "Batch", "reinforce_loss", "backpropagate", "check", "train"},
    ppo_continuous: {"Args", "make_envs", "RunningStats", "Agent", "gather", "train"},
    ppo_atari: {"Args", "Lives", "Film", "make_envs", "Agent", "evaluate", "check", "train"},
}


def definitions(module):
    names = (node.name for node in ast.parse(inspect.getsource(module)).body if hasattr(node, "name"))
    return {name: inspect.getsource(getattr(module, name)) for name in names}


@pytest.mark.parametrize("env_id", ["CartPole-v1", "toy/Copy-v0"])
@pytest.mark.parametrize("flags", [{}, {"gamma": 1.0, "gae_lambda": 1.0}], ids=["defaults", "undiscounted"])
def test_one_epoch_of_one_minibatch_is_reinforce(make_args, env_id, flags):
    """With PPO's values of all shared flags, 8 iterations end in the same weights; two epochs do not."""
    own = {
        "run_dir",
        "total_timesteps",
        "num_envs",
        "num_steps",
        "eval_episodes",
        "checkpoints",
    }  # make_args sets these for both
    known = {field.name for field in dataclasses.fields(reinforce_baseline.Args)} - own
    defaults = {name: value for name, value in vars(ppo_discrete.Args()).items() if name in known}
    small = dict(env_id=env_id, num_steps=32, total_timesteps=1024)
    reinforce, log = reinforce_baseline.train(make_args(reinforce_baseline, **defaults | small | flags))
    assert len(log) == 8
    one = make_args(ppo_discrete, update_epochs=1, num_minibatches=1, **small, **flags)
    two = make_args(ppo_discrete, update_epochs=2, num_minibatches=1, **small, **flags)
    assert same_weights(ppo_discrete.train(one)[0], reinforce, atol=1e-6)
    assert not same_weights(ppo_discrete.train(two)[0], reinforce, atol=1e-4)


@pytest.mark.parametrize("module", OWN, ids=lambda module: module.__name__)
def test_siblings_are_the_same_to_the_letter(module):
    ours, original = definitions(module), definitions(ppo_discrete)
    renamed = [name.replace("reinforce_loss", "ppo_loss") for name in ours]
    shared = [name for name in renamed if name in original]
    assert shared == [name for name in original if name in renamed]  # in the same order
    assert set(original) - set(renamed) == ({"mlp"} if module is ppo_atari else set())
    assert {name for name in ours if ours[name] != original.get(name)} == OWN[module]


def test_shared_flags_mean_the_same():
    """The comment of a flag, its help, is the same everywhere, whatever its default."""
    meanings = {}
    for module in SCRIPTS:
        for name, comment in re.findall(r"^    (\w+): .*#(.*)", inspect.getsource(module.Args), re.M):
            meanings.setdefault(name, set()).add(comment)
    assert len(meanings) == 35
    own = {"norm_adv", "env_id", "total_timesteps"}
    assert {name for name, comments in meanings.items() if len(comments) > 1} == own


def test_tags_table_and_tests_agree(script):
    """Each tag once in a file, in just the files that the table names; each named test exists."""
    rows = re.findall(
        r"^\| ([DEX]\d+) \|.*\| ([A-Z ]+) \| `(\w+\.py)::(\w+)` \|$",
        (ROOT / "docs/details.md").read_text(),
        re.M,
    )
    assert len(rows) == 36
    tags = re.findall(r"# .*\[([DEX]\d+)\]", inspect.getsource(script).split('"""', 2)[2])
    assert sorted(tags) == sorted(tag for tag, files, *_ in rows if LETTERS[script] in files.split())
    for *_, file, name in rows:
        assert f"def {name}(" in (ROOT / "tests" / file).read_text(), name


def test_mutants_are_of_lines_that_exist():
    for _, script, line, *_ in MUTANTS:
        assert line in (ROOT / script).read_text(), f"{script} has no {line}"


def test_no_function_is_longer_than_a_screen(script):
    lengths = {name: len(text.splitlines()) for name, text in definitions(script).items()}
    assert lengths.pop("train") <= 150
    assert max(lengths.values()) <= 36
    assert len(inspect.getsource(script).splitlines()) <= 605


def test_readme_and_ci_run_the_same_tests():
    readme, ci = (ROOT / "README.md").read_text(), (ROOT / ".ci/run").read_text()
    command = "pip install -r tests/requirements.txt && pytest"
    assert command in readme
    assert command in ci


def test_files_named_in_the_readme_exist():
    for path in re.findall(r"`([\w/]+\.(?:py|md|txt))`", (ROOT / "README.md").read_text()):
        assert (ROOT / path).exists(), path


def test_pins_are_exact():
    lines = [*(ROOT / "requirements.txt").open(), *(ROOT / "tests/requirements.txt").open()]
    packages = [line.strip() for line in lines if line[0] not in "#-\n"]
    assert len(packages) > 10
    assert all(re.fullmatch(r"[\w-]+(\[[\w,-]+\])?==[\d.]+", package) for package in packages)
    assert np.__version__ == next(p.split("==")[1] for p in packages if p.startswith("numpy"))
