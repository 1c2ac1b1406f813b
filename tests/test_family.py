"""What holds between files: siblings the same to the letter, tags and their table in step, a true README."""

import ast
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from conftest import ROOT, SCRIPTS, name_of, same_weights
from mutants import MUTANTS, scripts_of

import ppo_atari
import ppo_continuous
import ppo_discrete
import reinforce_baseline
from variants import (
    ppo_atari_distributed,
    ppo_atari_lstm,
    ppo_lstm,
    ppo_masked,
    ppo_penalty,
    ppo_tensor_envs,
    trpo,
)


def not_imported(path):
    """A script, by its file alone: transformers, which takes long to import, is for test_llm.py."""
    module = ModuleType(Path(path).stem)
    module.__file__ = str(ROOT / path)
    return module


ppo_llm, grpo = not_imported("variants/ppo_llm.py"), not_imported("variants/grpo.py")
dpo, reward_model = not_imported("variants/dpo.py"), not_imported("variants/reward_model.py")
truncated = not_imported("variants/ppo_llm_truncated.py")
LANGUAGE = [ppo_llm, grpo, truncated, dpo, reward_model]
FAMILY = {
    "R": reinforce_baseline,
    "D": ppo_discrete,
    "C": ppo_continuous,
    "A": ppo_atari,
    "L": ppo_atari_lstm,
    "X": ppo_atari_distributed,
    "M": ppo_masked,
    "P": ppo_penalty,
    "T": trpo,
    "V": ppo_llm,
    "W": truncated,
    "G": grpo,
    "O": dpo,
    "B": reward_model,
}
FORKS = {  # of what, and what is not as there
    reinforce_baseline: (ppo_discrete, "Args Batch reinforce_loss compute_gradients check train"),
    ppo_continuous: (ppo_discrete, "Args make_envs RunningStats Agent check train load report"),
    ppo_atari: (ppo_discrete, "Args Agent Lives make_envs evaluate check train"),
    ppo_atari_lstm: (ppo_atari, "Args Batch make_envs Agent compute_gradients evaluate check train"),
    ppo_atari_distributed: (ppo_atari, "Args average check main save train"),
    ppo_lstm: (
        ppo_discrete,
        "Args Batch Recurrent Agent compute_gradients cartpole_positions evaluate check train",
    ),
    ppo_masked: (
        ppo_discrete,
        "Args Batch Flatten make_envs Agent compute_gradients read_masks evaluate train",
    ),
    ppo_tensor_envs: (
        ppo_discrete,
        "Args CartPole compute_gae Agent evaluate train make_run_dir load report main",
    ),
    ppo_penalty: (ppo_continuous, "Args Batch Agent adapt ppo_loss compute_gradients check train load"),
    trpo: (
        ppo_continuous,
        "Args Batch surrogate flat_gradient fisher_vector_product conjugate_gradients Agent improve "
        "compute_gradients check train",
    ),
    ppo_llm: (
        ppo_discrete,
        "Args Batch Task ppo_loss Agent make_model check_model complete compute_gradients"
        " make_task whole_texts reward_model in_pieces grade evaluate warm_start"
        " train check make_run_dir save load report main",
    ),
    truncated: (
        ppo_llm,
        "Args Batch ppo_loss Agent complete compute_gradients Answer whole_answers critic_gradients"
        " make_task evaluate train check save load",
    ),
    grpo: (ppo_llm, "Args Batch Agent group_advantages grpo_loss compute_gradients train check"),
    dpo: (
        grpo,
        "Args Batch dpo_loss Agent score_pairs compute_gradients make_task make_pairs encode_pairs"
        " train check",
    ),
    reward_model: (
        dpo,
        "Args Batch reward_loss Agent compute_gradients evaluate encode_pairs make_batch"
        " train check report main",
    ),
}
GONE = {  # what the parent has and the fork does without
    ppo_atari: {"mlp", "Flatten"},
    ppo_lstm: {"mlp"},
    ppo_tensor_envs: {"Flatten", "make_envs"},
    trpo: {"ppo_loss"},
    ppo_llm: {"layer_init", "mlp", "Flatten", "make_envs"},
    grpo: {"compute_gae"},
    dpo: {"group_advantages"},
    reward_model: {"score_pairs"},
}
LINES = {  # without the block of PEP 723
    reinforce_baseline: 491,
    ppo_discrete: 519,
    ppo_continuous: 565,
    ppo_atari: 541,
    ppo_masked: 544,
    ppo_lstm: 548,
    ppo_tensor_envs: 474,
    ppo_penalty: 577,
    ppo_atari_lstm: 557,
    trpo: 602,
    ppo_llm: 710,
    truncated: 774,
    grpo: 693,
    dpo: 689,
    reward_model: 693,
    ppo_atari_distributed: 574,
}
TRAIN_LINES = {  # where it may be longer than 148
    ppo_atari: 149,
    ppo_continuous: 161,
    ppo_masked: 152,
    ppo_penalty: 164,
    trpo: 156,
    ppo_atari_lstm: 152,
    ppo_atari_distributed: 165,
    truncated: 167,
}
DIFFS = {  # lines added and taken away
    (reinforce_baseline, ppo_discrete): (60, 32),
    (ppo_discrete, ppo_continuous): (86, 39),
    (ppo_discrete, ppo_atari): (105, 83),
    (ppo_discrete, ppo_masked): (59, 33),
    (ppo_discrete, ppo_lstm): (81, 56),
    (ppo_discrete, ppo_tensor_envs): (93, 138),
    (ppo_atari, ppo_atari_lstm): (54, 38),
    (ppo_atari, ppo_atari_distributed): (62, 34),
    (ppo_continuous, trpo): (103, 66),
    (ppo_llm, truncated): (137, 73),
    (ppo_llm, grpo): (62, 79),
    (grpo, dpo): (117, 121),
    (dpo, reward_model): (116, 112),
}


def source_of(module):
    return Path(module.__file__).read_text()


def definitions(module):
    source = source_of(module)
    named = (node for node in ast.parse(source).body if hasattr(node, "name"))
    return {node.name: ast.get_source_segment(source, node) for node in named}


def tags_of(module):
    return re.findall(r"# .*\[([DEXLGP]\d+)\]", source_of(module).split('"""', 2)[2])


def rows_of_the_table():
    """(tag, letters of the files, file of the test, name of the test) for each detail."""
    table = (ROOT / "docs/details.md").read_text()
    return re.findall(r"^\| ([DEXLGP]\d+) \|.*\| ([A-Z ]+) \| `(\w+\.py)::(\w+)` \|$", table, re.M)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "toy/Copy-v0"])
@pytest.mark.parametrize("flags", [{}, {"gamma": 1.0, "gae_lambda": 1.0}], ids=["defaults", "undiscounted"])
def test_one_epoch_of_one_minibatch_is_reinforce(make_args, no_evaluation, env_id, flags):
    """With PPO's values of all shared flags, 8 iterations end in the same weights; two epochs do not."""
    names = "learning_rate anneal_lr gamma gae_lambda norm_adv vf_coef ent_coef max_grad_norm"
    shared = {name: getattr(ppo_discrete.Args, name) for name in names.split()}
    shared |= dict(env_id=env_id, num_steps=32, iterations=8) | flags
    reinforce, log = reinforce_baseline.train(make_args(reinforce_baseline, **shared))
    assert len(log) == 8
    one, two = (
        ppo_discrete.train(make_args(ppo_discrete, update_epochs=epochs, num_minibatches=1, **shared))[0]
        for epochs in (1, 2)
    )
    assert same_weights(one, reinforce, atol=1e-6)
    assert not same_weights(two, reinforce, atol=1e-4)


@pytest.mark.parametrize("module", FORKS, ids=name_of)
def test_siblings_are_the_same_to_the_letter(module):
    parent, own = FORKS[module]
    ours, original = definitions(module), definitions(parent)
    [loss] = [name for name in original if name.endswith("_loss")] or ["ppo_loss"]
    renamed = [loss if name.endswith("_loss") else name for name in ours]
    shared = [name for name in renamed if name in original]
    assert shared == [name for name in original if name in renamed]  # in the same order
    assert set(original) - set(renamed) == GONE.get(module, set())
    assert {name for name in ours if ours[name] != original.get(name)} == set(own.split())


@pytest.mark.parametrize(
    ("modules", "own"),
    [
        (
            SCRIPTS,
            {"env_id", "total_timesteps", "num_envs", "learning_rate"}
            | {"norm_adv", "target_kl", "device", "compile", "threads"},
        ),
        (LANGUAGE[:2], {"norm_adv", "clip_coef", "max_grad_norm"}),
    ],
    ids=["games", "language"],
)
def test_shared_flags_mean_the_same(modules, own):
    """The comment of a flag, its help, is the same everywhere, whatever its default."""
    meanings = {}
    for module in modules:
        for name, comment in re.findall(r"^    (\w+): .*#(.*)", definitions(module)["Args"], re.M):
            meanings.setdefault(name, set()).add(comment)
    assert {name for name, comments in meanings.items() if len(comments) > 1} == own


def test_table_of_tags():
    """Each named test exists."""
    rows = rows_of_the_table()
    games = [tag for tag, letters, *_ in rows if not {*"VWGOB"} & {*letters.split()}]
    assert [tag for tag in games if tag[0] == "D"] == [f"D{number:02}" for number in range(1, 38)]
    assert [tag for tag in games if tag[0] != "D"] == [
        *("X1", "X2", "X3", "X4"),
        *("E1", "E2", "E3", "E4", "E5", "E6"),
    ]
    language = [tag for tag, letters, *_ in rows if tag[0] in "LG" and {"V", "G"} & {*letters.split()}]
    assert language == [f"L{number}" for number in range(1, 13)] + ["G1", "G2", "G3", "G4", "G5"]
    assert {tag for tag, *_ in rows if tag[0] == "P"} == {"P1", "P2", "P3", "P4", "P5", "P6"}
    for *_, file, name in rows:
        assert re.search(rf"(def |^    ){name}\b", (ROOT / "tests" / file).read_text(), re.M), name


@pytest.mark.parametrize("letter", FAMILY)
def test_tags_and_table_agree(letter):
    """Each tag once in a file, in just the files that the table names."""
    tags = [tag for tag, files, *_ in rows_of_the_table() if letter in files.split()]
    assert sorted(tags_of(FAMILY[letter])) == sorted(tags)


def test_the_test_of_a_tag_is_of_every_file_that_has_it():
    """Its parameters say so; the test of a tag that is in one file alone needs none."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    items = re.findall(r"^tests/(\w+\.py)::(\w+)\[(.*)\]$", result.stdout, re.M)
    for tag, letters, file, name in rows_of_the_table():
        of_files = [parameters.split("-") for *test, parameters in items if test == [file, name]]
        for letter in letters.split() if len(letters) > 1 else ():
            assert any(name_of(FAMILY[letter]) in parameters for parameters in of_files), (tag, letter)


@pytest.mark.parametrize("module", FAMILY.values(), ids=name_of)
def test_each_tag_has_a_mutant_in_each_file(module):
    broken = {mutant.subject for mutant in MUTANTS if name_of(module) in scripts_of(mutant)}
    assert set(tags_of(module)) <= broken


def test_mutants_are_of_lines_and_tests_that_exist():
    for mutant in MUTANTS:
        file, _, name = mutant.test.partition("::")
        assert not name or f"def {name}" in (ROOT / f"tests/{file}.py").read_text(), mutant.test
        named = mutant.scripts if len(mutant.scripts) < 5 else ()
        assert scripts_of(mutant) and {*named} <= {*scripts_of(mutant)}, mutant.line


def test_tagged_lines_of_tensor_envs_are_those_of_its_parent():
    """Where they are tested; the others have tests of their own in test_tensor_envs.py."""
    known = source_of(ppo_discrete).splitlines()
    own = [line for line in source_of(ppo_tensor_envs).splitlines() if line not in known]
    assert re.findall(r"# .*\[([DEX]\d+)\]", "\n".join(own)) == ["D13", "E2", "D01", "E1", "D06"]
    assert set(tags_of(ppo_discrete)) - set(tags_of(ppo_tensor_envs)) == {"D37"}


def test_tagged_lines_of_the_lstm_are_those_of_its_parent_and_of_atari():
    """Where they are tested; the others have tests of their own in test_lstm.py, as has its memory."""
    known = (source_of(ppo_discrete) + source_of(ppo_atari_lstm)).splitlines()
    own = [line for line in source_of(ppo_lstm).splitlines() if line not in known]
    assert re.findall(r"# .*\[([DEX]\d+)\]", "\n".join(own)) == ["D13", "D37"]
    memory = {"D32", "D33", "D34", "D35", "D36"}
    assert set(tags_of(ppo_lstm)) == set(tags_of(ppo_discrete)) - {"D06"} | memory


@pytest.mark.parametrize("module", [*FAMILY.values(), ppo_tensor_envs, ppo_lstm], ids=name_of)
def test_no_function_is_longer_than_a_screen(module):
    lengths = {name: len(text.splitlines()) for name, text in definitions(module).items()}
    if module in LANGUAGE:  # tokens in, texts out: it takes the place of env and network
        assert lengths.pop("Agent") <= 80 and lengths.pop("Args") <= 45
    assert lengths.pop("train") <= TRAIN_LINES.get(module, 148)
    assert max(lengths.values()) <= 36
    source = source_of(module)
    assert len(source[source.index('"""') :].splitlines()) <= LINES[module]


@pytest.mark.parametrize(("parent", "child"), DIFFS, ids=name_of)
def test_what_a_fork_adds_is_little(parent, child):
    command = ["git", "diff", "--no-index", "--shortstat", parent.__file__, child.__file__]
    result = subprocess.run(command, capture_output=True, text=True).stdout
    insertions, deletions = map(int, re.search(r"(\d+) insertion.* (\d+) deletion", result).groups())
    assert insertions <= DIFFS[parent, child][0] and deletions <= DIFFS[parent, child][1]


def test_readme_and_ci_run_the_same_tests():
    readme, ci = (ROOT / "README.md").read_text(), (ROOT / ".ci/run").read_text()
    command = "pip install -r tests/requirements.txt && pytest -n auto"
    assert command in readme
    assert command in ci


def test_files_named_in_the_readme_exist():
    for path in re.findall(r"`([\w/]+\.(?:py|md|txt))`", (ROOT / "README.md").read_text()):
        assert (ROOT / path).exists(), path


def test_links_of_the_pages_lead_somewhere():
    """Also to a heading: GitHub makes its anchor of the words in lower case, without punctuation."""
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
    links = [
        (page, link) for page in pages for link in re.findall(r"\]\((?!http)([^)\s]+)\)", page.read_text())
    ]
    assert len(links) > 100
    for page, link in links:
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), f"{page.name}: {link}"
        if anchor:
            text = re.sub(r"```.*?```", "", target.read_text(), flags=re.S)
            headings = re.findall(r"^#+ (.*)$", text, re.M)
            anchors = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
            assert anchor in anchors, f"{page.name}: {link}"


def test_pins_are_exact():
    paths = (ROOT / folder / "requirements.txt" for folder in (".", "variants", "tests"))
    lines = [line for path in paths for line in path.open()]
    packages = [line.strip() for line in lines if line[0] not in "#-\n"]
    assert len(packages) > 10
    assert all(re.fullmatch(r"[\w-]+(\[[\w,-]+\])?==[\d.]+", package) for package in packages)
    assert np.__version__ == next(p.split("==")[1] for p in packages if p.startswith("numpy"))
