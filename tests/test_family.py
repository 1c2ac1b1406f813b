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
from variants import ppo_atari_lstm, ppo_masked, ppo_penalty

ROOT = Path(ppo_discrete.__file__).parent
FAMILY = {
    "R": reinforce_baseline,
    "D": ppo_discrete,
    "C": ppo_continuous,
    "A": ppo_atari,
    "L": ppo_atari_lstm,
    "M": ppo_masked,
    "P": ppo_penalty,
}
FORKS = {  # of what, and what is not as there
    reinforce_baseline: (ppo_discrete, "Args Batch reinforce_loss backpropagate check train"),
    ppo_continuous: (ppo_discrete, "Args make_envs RunningStats Agent gather train"),
    ppo_atari: (
        ppo_discrete,
        "Args Lives Film make_envs Agent evaluate check train keep_memory evaluate_run",
    ),
    ppo_atari_lstm: (ppo_atari, "Args Batch make_envs Agent ppo_loss backpropagate evaluate check train"),
    ppo_masked: (ppo_discrete, "Args Batch make_envs Agent backpropagate read_masks evaluate train"),
    ppo_penalty: (ppo_discrete, "Args Batch Agent adapt ppo_loss backpropagate check train"),
}
each_of_the_family = pytest.mark.parametrize("module", FAMILY.values(), ids=lambda module: module.__name__)


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


@pytest.mark.parametrize("module", FORKS, ids=lambda module: module.__name__)
def test_siblings_are_the_same_to_the_letter(module):
    parent, own = FORKS[module]
    ours, original = definitions(module), definitions(parent)
    renamed = [name.replace("reinforce_loss", "ppo_loss") for name in ours]
    shared = [name for name in renamed if name in original]
    assert shared == [name for name in original if name in renamed]  # in the same order
    assert set(original) - set(renamed) == ({"mlp"} if module is ppo_atari else set())
    assert {name for name in ours if ours[name] != original.get(name)} == set(own.split())


def test_shared_flags_mean_the_same():
    """The comment of a flag, its help, is the same everywhere, whatever its default."""
    meanings = {}
    for module in SCRIPTS:
        for name, comment in re.findall(r"^    (\w+): .*#(.*)", inspect.getsource(module.Args), re.M):
            meanings.setdefault(name, set()).add(comment)
    assert len(meanings) == 36
    own = {"norm_adv", "env_id", "total_timesteps"}
    assert {name for name, comments in meanings.items() if len(comments) > 1} == own


@each_of_the_family
def test_tags_table_and_tests_agree(module):
    """Each tag once in a file, in just the files that the table names; each named test exists."""
    rows = re.findall(
        r"^\| ([DEX]\d+) \|.*\| ([A-Z ]+) \| `(\w+\.py)::(\w+)` \|$",
        (ROOT / "docs/details.md").read_text(),
        re.M,
    )
    assert [tag for tag, *_ in rows if tag[0] == "D"] == [f"D{number:02}" for number in range(1, 38)]
    assert len(rows) == 37 + 4 + 3
    tags = re.findall(r"# .*\[([DEX]\d+)\]", inspect.getsource(module).split('"""', 2)[2])
    [letter] = [letter for letter, other in FAMILY.items() if other is module]
    assert sorted(tags) == sorted(tag for tag, files, *_ in rows if letter in files.split())
    for *_, file, name in rows:
        assert f"def {name}(" in (ROOT / "tests" / file).read_text(), name


def test_mutants_are_of_lines_that_exist():
    for _, script, line, *_ in MUTANTS:
        assert line in (ROOT / script).read_text(), f"{script} has no {line}"


@each_of_the_family
def test_no_function_is_longer_than_a_screen(module):
    lengths = {name: len(text.splitlines()) for name, text in definitions(module).items()}
    assert lengths.pop("train") <= 160
    assert max(lengths.values()) <= 37
    assert len(inspect.getsource(module).splitlines()) <= 640


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
