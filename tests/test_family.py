"""What holds between files: siblings the same to the letter, tags and their table in step, a true README."""

import ast
import io
import re
import subprocess
import sys
import tokenize
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
    """A script, by its file alone: transformers, which takes long to import, is for others' tests."""
    module = ModuleType(Path(path).stem)
    module.__file__ = str(ROOT / path)
    return module


ppo_llm, grpo = not_imported("variants/ppo_llm.py"), not_imported("variants/grpo.py")
dpo, reward_model = not_imported("variants/dpo.py"), not_imported("variants/reward_model.py")
truncated, turns = not_imported("variants/ppo_llm_truncated.py"), not_imported("variants/grpo_turns.py")
LANGUAGE = [ppo_llm, grpo, truncated, turns, dpo, reward_model]
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
    reinforce_baseline: (ppo_discrete, "Args Batch reinforce_loss compute_gradients check write_row train"),
    ppo_continuous: (
        ppo_discrete,
        "Args make_envs RunningStats Agent check warn_of_mujoco warn_of_bounds warn_of_cut_rewards"
        " train load",
    ),
    ppo_atari: (
        ppo_discrete,
        "Args Agent Lives make_envs evaluate check make_batch train",
    ),
    ppo_atari_lstm: (
        ppo_atari,
        "Args Batch segments make_envs Agent compute_gradients evaluate check make_batch train",
    ),
    ppo_atari_distributed: (
        ppo_atari,
        "Args average first_says check check_launch restore write_row main save train",
    ),
    ppo_lstm: (
        ppo_discrete,
        "Args Batch segments Recurrent Agent compute_gradients cartpole_positions evaluate check make_batch"
        " train",
    ),
    ppo_masked: (
        ppo_discrete,
        "Args Batch Flatten make_envs Agent compute_gradients read_masks evaluate train",
    ),
    ppo_tensor_envs: (
        ppo_discrete,
        "Args CartPole compute_gae Agent evaluate train restore close_log make_run_dir load report main",
    ),
    ppo_penalty: (
        ppo_continuous,
        "Args Batch Agent adapt ppo_loss compute_gradients check write_row train load",
    ),
    trpo: (
        ppo_continuous,
        "Args Batch surrogate flat_gradient fisher_vector_product conjugate_gradients Agent improve"
        " compute_gradients check write_row train",
    ),
    ppo_llm: (
        ppo_discrete,
        "Args Batch Task ppo_loss Agent make_model load_pretrained as_messages last_text end_of_turn"
        " begin_of_text check_model check_gap logprobs_in_two_ways complete in_pieces split_rows"
        " compute_gradients make_task sorting_problems read_problems check_problem names_code load_reward"
        " load_reward_model make_judge free_token check_judge whole_texts grade decode has_ended"
        " match_answers check_scores evaluate list_answers warm_start train check check_saved digests"
        " check_sources restore show_first_scores first_advice write_row close_log make_run_dir save"
        " write_lines load check_contents report main",
    ),
    truncated: (
        ppo_llm,
        "Args Batch ppo_loss Agent complete compute_gradients Answer start_answers extend_answers is_finished"
        " answer_rows critic_gradients update_critic sorting_problems grade_answers evaluate train check"
        " restore recent_means show_first_scores write_row save load check_contents",
    ),
    grpo: (ppo_llm, "Args Batch Agent group_advantages grpo_loss compute_gradients train check write_row"),
    turns: (
        grpo,
        "Args Agent check_model most_tokens complete Task Conversation converse hear as_rows make_task"
        " calculator sum_problems check_problem load_reward load_code grade evaluate list_answers"
        " warm_start transcripts train check digests path_of_code report main",
    ),
    dpo: (
        grpo,
        "Args Batch dpo_loss Agent complete score_pairs compute_gradients make_task read_problems"
        " check_problem evaluate warm_start make_pairs encode_pairs tell_of_pairs find_pairs make_batch"
        " train check check_saved write_row close_log load",
    ),
    reward_model: (
        dpo,
        "Args Batch reward_loss Agent compute_gradients evaluate encode_pairs find_pairs make_batch train"
        " check write_row close_log report save_model show_calibration main",
    ),
}
DIFFS = {  # lines added and taken away
    (reinforce_baseline, ppo_discrete): (70, 40),
    (ppo_discrete, ppo_continuous): (120, 50),
    (ppo_discrete, ppo_atari): (130, 120),
    (ppo_discrete, ppo_masked): (70, 40),
    (ppo_discrete, ppo_lstm): (110, 80),
    (ppo_discrete, ppo_tensor_envs): (120, 180),
    (ppo_atari, ppo_atari_lstm): (80, 50),
    (ppo_atari, ppo_atari_distributed): (80, 30),
    (ppo_continuous, trpo): (120, 80),
    (ppo_llm, truncated): (205, 100),
    (ppo_llm, grpo): (70, 90),
    (grpo, turns): (205, 70),
    (grpo, dpo): (190, 220),
    (dpo, reward_model): (145, 140),
}
NO_TOKENS = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
}
TOOLS = ["compare", "diagnose", "exercise", "reasoning_gym_tasks", "sweep", "tune"]


def source_of(module):
    return Path(module.__file__).read_text()


def definitions(module):
    source = source_of(module)
    named = (node for node in ast.parse(source).body if hasattr(node, "name"))
    return {node.name: ast.get_source_segment(source, node) for node in named}


def without_dependencies(source):
    """A script without the block of PEP 723, which is data."""
    return re.sub(r"(?ms)^# /// script.*?^# ///\n", "", source)


def statements(source):
    """Each logical line, however it is wrapped: its first line's number, and the number of its tokens.

    Docstrings do not count, and an f-string is one token.
    """
    documented = set()
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(getattr(body[0], "value", None), ast.Constant):
            documented |= set(range(body[0].lineno, body[0].end_lineno + 1))
    found, first, count, depth = [], None, 0, 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        name = tokenize.tok_name[token.type]  # from Python 3.12 on, an f-string is many tokens
        depth += (name == "FSTRING_START") - (name == "FSTRING_END")
        if token.type == tokenize.NEWLINE and count:
            found.append((first, count))
            first, count = None, 0
        if token.type in NO_TOKENS or token.start[0] in documented or depth:
            continue
        first = first or token.start[0]
        count += 1
    return found


def density(source):
    """What a reader has to take apart: a dict of measures, each the smaller the better."""
    source = without_dependencies(source)
    nodes = list(ast.walk(ast.parse(source)))
    starts = {node.lineno: node for node in nodes if isinstance(node, ast.stmt)}
    lines = statements(source)
    long = [starts[line] for line, count in lines if count > 30 and line in starts]
    headers = (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
    tables = (ast.List, ast.Dict, ast.Set)
    nested = (ast.Call, ast.IfExp, ast.FormattedValue, ast.keyword)
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
    return {
        "tokens": sum(count for _, count in lines) / len(lines),
        "long": sum(
            not isinstance(x, headers) and not isinstance(getattr(x, "value", None), tables) for x in long
        ),
        "parallel": sum(map(is_parallel, nodes)),
        "nested conditionals": sum(
            isinstance(child, ast.IfExp)
            for node in nodes
            if isinstance(node, nested)
            for child in ast.iter_child_nodes(node)
        ),
        "walrus": sum(isinstance(node, ast.NamedExpr) for node in nodes),
        "wide": sum(len(line) > 100 for line in source.splitlines()),
        "fragments": sum(
            bool(re.match(r"#\s*(\[\w+\]\s*)*(of|or|which|as|what|those|that|nor|and)\b", text))
            for text in comments
        ),
    }


def is_parallel(node):
    """Whether it assigns several things at once; a swap and T, N = ... do not count."""
    if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Tuple):
        return False
    if not isinstance(node.value, ast.Tuple):
        return False
    left, right = (sorted(map(ast.unparse, x.elts)) for x in (node.targets[0], node.value))
    return left != right and max(map(len, left)) > 1


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
    assert {name for name in ours if ours[name] != original.get(name)} == set(own.split())


@pytest.mark.parametrize(
    ("modules", "own"),
    [
        (
            SCRIPTS,
            {"env_id", "total_timesteps", "num_envs", "learning_rate"}
            | {"norm_adv", "target_kl", "device", "compile", "threads", "capture_video"},
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
    for letter in "XE":  # the authors' auxiliary details, and ours
        own = [tag for tag in games if tag[0] == letter]
        assert own == [f"{letter}{number}" for number in range(1, len(own) + 1)]
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


@pytest.mark.long
def test_the_test_of_a_tag_is_of_every_file_that_has_it():
    """Its parameters say so; the test of a tag that is in one file alone needs none."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        "-m",
        "not slow",
        "-p",
        "no:cacheprovider",
    ]
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
    assert re.findall(r"# .*\[([DEX]\d+)\]", "\n".join(own)) == ["D13", "E2", "E1", "D06"]
    assert set(tags_of(ppo_discrete)) - set(tags_of(ppo_tensor_envs)) == {"D37"}


def test_tagged_lines_of_the_lstm_are_those_of_its_parent_and_of_atari():
    """Where they are tested; the others have tests of their own in test_lstm.py, as has its memory."""
    known = (source_of(ppo_discrete) + source_of(ppo_atari_lstm)).splitlines()
    own = [line for line in source_of(ppo_lstm).splitlines() if line not in known]
    assert re.findall(r"# .*\[([DEX]\d+)\]", "\n".join(own)) == ["D13"]
    memory = {"D32", "D33", "D34", "D35", "D36"}
    assert set(tags_of(ppo_lstm)) == set(tags_of(ppo_discrete)) - {"D06"} | memory


EVERY = [*FAMILY.values(), ppo_tensor_envs, ppo_lstm, turns]


def lines_of_train(module):
    """How many it may have: a fork twenty more than its parent, so that a line of all breaks one limit."""
    if module in FORKS and module is not reinforce_baseline:
        parent, _ = FORKS[module]
        return len(definitions(parent)["train"].splitlines()) + 20
    return 135


@pytest.mark.parametrize("module", EVERY, ids=name_of)
def test_no_function_is_longer_than_a_screen(module):
    lengths = {name: len(text.splitlines()) for name, text in definitions(module).items()}
    if module in LANGUAGE:  # tokens in, texts out: it takes the place of env and network
        assert lengths.pop("Agent") <= 100 and lengths.pop("Args") <= 55
    assert lengths.pop("train") <= lines_of_train(module)
    assert max(lengths.values()) <= 45


def paths_to_read():
    return [Path(module.__file__) for module in EVERY] + [ROOT / f"tools/{name}.py" for name in TOOLS]


@pytest.mark.parametrize("path", paths_to_read(), ids=lambda path: path.stem)
def test_one_idea_on_a_line(path):
    """Wrapping a line gains nothing here, naming what is in between does."""
    measured = density(path.read_text())
    dense = path.parent.name == "tools" or path.stem in map(name_of, LANGUAGE)
    tokens, long = (11.6, 8) if dense else (10.6, 4)
    if path.stem == "ppo_atari_lstm":
        tokens = 10.9  # its network and its games are two tables of many words
    limits = {"tokens": tokens, "long": long, "parallel": 3, "wide": 12}
    assert {name for name, value in measured.items() if value > limits.get(name, 0)} == set()


def test_dense_lines_are_noticed():
    """One of each kind."""
    source = """
x = [a for a in b]  # of what
y, zz = f(1 if a else 2), 3
if (n := len(b)) > 3:
    pass
"""
    measured = density(source)
    kinds = ("parallel", "nested conditionals", "walrus", "fragments")
    assert [measured[name] for name in kinds] == [1, 1, 1, 1]
    assert density("x = g(" + "a, " * 20 + ")\n")["long"] == 1
    assert density("x = (\n    a\n    + b\n)\n")["tokens"] == density("x = (a + b)\n")["tokens"]


@pytest.mark.parametrize("module", EVERY, ids=name_of)
def test_each_tag_says_why(module):
    """In two words or more, behind it on its line: in an editor there is nothing else to say it."""
    bare = re.findall(r"# (?:\[[DEXLGP]\d+\] ?)+(?:\S+)?$", source_of(module).split('"""', 2)[2], re.M)
    assert bare == []


@pytest.mark.parametrize(("parent", "child"), DIFFS, ids=name_of)
def test_what_a_fork_adds_is_little(parent, child):
    command = ["git", "diff", "--no-index", "--shortstat", parent.__file__, child.__file__]
    result = subprocess.run(command, capture_output=True, text=True).stdout
    insertions, deletions = map(int, re.search(r"(\d+) insertion.* (\d+) deletion", result).groups())
    assert insertions <= DIFFS[parent, child][0] and deletions <= DIFFS[parent, child][1]


def test_readme_and_ci_run_the_same_tests():
    readme, ci = (ROOT / "README.md").read_text(), (ROOT / ".ci/run").read_text()
    install, test = "pip install -r tests/requirements.txt", "pytest -n auto"
    assert f"{install} && {test}" in readme
    assert install in ci and test in ci


def test_files_named_in_the_readme_exist():
    for path in re.findall(r"`([\w/]+\.(?:py|md|txt))`", (ROOT / "README.md").read_text()):
        assert any((ROOT / folder / path).exists() for folder in ("", "variants", "tools")), path


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
