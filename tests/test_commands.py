"""The programs around the scripts: what their command lines do."""

import sys
from unittest.mock import MagicMock

import mutants
import pytest


def test_mutants_of_a_tag_and_a_script_are_of_both():
    def chosen(*words):
        cases = mutants.select(words)
        return {mutant.subject for mutant, _ in cases}, {script for _, script in cases}

    tags, scripts = chosen()
    assert len(scripts) == 11 and {"D08", "D23", "G1"} < tags
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
    change = "D08 in ppo_discrete: -torch.min(ratio  ->  -torch.max(ratio"
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
