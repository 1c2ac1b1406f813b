"""The tasks of the pretrained model, their rewards, and the table of its runs."""

import json
import resource
import sys

import pytest

from benchmarks import chat
from tools import smollm2

TASKS = smollm2.tasks()


def test_tasks():
    """Each problem has a prompt of its own, and the same order always; a right answer has the full score."""
    assert {name: len(problems) for name, problems in TASKS.items()} == {
        "sums": 2401,
        "calls": 2401,
        "people": 4704,
        "questions": 320,
    }
    assert smollm2.tasks() == TASKS
    for problems in TASKS.values():
        assert len({str(problem["prompt"]) for problem in problems}) == len(problems)
        assert all(
            [message["role"] for message in problem["prompt"]] == ["system", "user"] for problem in problems
        )
    for name, reward in (("sums", smollm2.last_number), ("people", smollm2.json_object)):
        answers = [problem["answer"] for problem in TASKS[name]]
        assert reward(answers, answers) == [1.0] * len(answers)


@pytest.mark.parametrize(
    ("text", "score"), [("28", 1), ("8 + 20 = 28.", 1), ("28 or 29", 0), ("280", 0), ("", 0)]
)
def test_last_number(text, score):
    assert smollm2.last_number([text], ["28"], prompts=[[]]) == [score]


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ('{"name": "Ada", "age": 31}', 1),
        (' {"age": 31, "name": "Ada"}\n', 1),
        ('{"name": "Ada", "age": "31"}', 0.5),
        ('{"name": "Ada"}', 0.5),
        ('{"name": "Ada", "age": 31, "more": 1, "yet": 2}', 0.5),
        ('Here: {"name": "Ada", "age": 31}', 0),
        ('["Ada", 31]', 0),
        ("31", 0),
    ],
)
def test_json_object(text, score):
    assert smollm2.json_object([text], [json.dumps({"name": "Ada", "age": 31})]) == [score]


@pytest.mark.parametrize(
    ("text", "score"), [("It is a hot hill.", 1), ("A volcano", 0.5), ("", 0), ("12!", 0)]
)
def test_short_words(text, score):
    assert smollm2.short_words([text]) == [score]


def test_commands_of_runs():
    """Each is a script and flags that it knows; the tasks that the tool writes have a table each."""
    assert {*TASKS} < {*chat.TABLE["tasks"]}
    commands = [chat.command(task, x) for task in chat.TABLE["tasks"] for x in chat.methods(task)]
    costs = chat.TABLE["costs"]
    for command in [*commands, *(f"{row} {costs['flags']}" for row in costs["rows"].values())]:
        script, *flags = command.split()
        path = chat.ROOT / script
        text = chat.patched(path.stem) if path.parent == chat.PATCHED else path.read_text()
        names = [x[2:].replace("-", "_").removeprefix("no_") for x in flags if x.startswith("--")]
        assert all(f"    {name}: " in text for name in names)
    assert chat.seeds("sums", "untrained") == [1] and chat.seeds("sums", "GRPO") == [1, 2, 3]


def test_spending():
    """Seconds of computing and not of waiting; the memory of the program, or of this one if it has more."""
    work = 'import time; x = b"x" * (300 << 20); begin = time.process_time(); time.sleep(3)\n'
    work += "while time.process_time() - begin < 0.5: pass"
    seconds, memory = chat.spend([sys.executable, "-c", work])
    mine = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    assert 0.5 < seconds < 2.5 and 300 < memory < max(400, mine + 50)
    with pytest.raises(SystemExit, match="has failed"):
        chat.spend([sys.executable, "-c", "raise SystemExit(3)"])


def test_results_of_another_command(monkeypatch, tmp_path, capsys):
    """They are not shown, and the run is done anew; what is there is not."""
    monkeypatch.setattr(chat, "RESULTS", tmp_path)
    monkeypatch.setattr(chat, "ROOT", tmp_path)
    task = {"model": "", "flags": "--x 1", "GRPO": {"script": "grpo.py", "flags": ""}, "seeds": [1, 2]}
    monkeypatch.setattr(chat, "TABLE", {"tasks": {"sums": task}, "seeds": [1]})
    rows = [
        ["GRPO", seed, "evaluation", 0.5, command] for seed, command in ((1, "grpo.py --x 1"), (2, "old"))
    ]
    names = ["method", "seed", "steps", "score", "command"]
    rows += [["GRPO", seed, 64, 0.25, ""] for seed in (1, 2)]  # their curves
    filled = [dict.fromkeys(chat.COLUMNS, "") | dict(zip(names, row, strict=True)) for row in rows]
    chat.write_rows(chat.csv_path("sums"), chat.COLUMNS, (row.values() for row in filled))
    assert chat.scores("sums").splitlines()[2:] == ["| GRPO | `python grpo.py --x 1` | 0.500 | 0.500 |"]
    assert [chat.curve_of("sums", "GRPO", seed) for seed in (1, 2)] == [[(64, 0.25)], []]
    done = []
    monkeypatch.setattr(chat, "measure", lambda *run: done.append(run))
    monkeypatch.setattr("sys.argv", ["chat.py", "sums"])
    chat.main()
    assert done == [("sums", "GRPO", 2)]


def test_code_in_a_table():
    assert chat.code("a") == "`a`"
    assert chat.code("a`b```c|d") == "````a`b```c\\|d````"


def test_answers_take_the_place_of_older_ones(monkeypatch, tmp_path):
    """They are shown of runs whose command is today's."""
    monkeypatch.setattr(chat, "RESULTS", tmp_path)
    for method, text in (("GRPO", "old"), ("PPO", "a\u2028b"), ("GRPO", "new")):
        chat.keep_answers("sums", method, [{"completion": text}])
    found = chat.read_jsonl(tmp_path / "chat_sums.jsonl")
    assert [(x["method"], x["completion"]) for x in found] == [("PPO", "a\u2028b"), ("GRPO", "new")]
    for x in found:
        chat.keep_answers("sums", x["method"], [{"prompt": "1+2>", "completion": x["completion"]}])
    rows = []
    for method, command in (("GRPO", chat.command("sums", "GRPO")), ("PPO", "old")):
        row = {"method": method, "seed": 1, "steps": "evaluation", "command": command}
        rows.append([row.get(name, "") for name in chat.COLUMNS])
    chat.write_rows(chat.csv_path("sums"), chat.COLUMNS, rows)
    assert chat.answers("sums", "GRPO", "PPO").splitlines()[2:] == ["| 1+2> | `'new'` |"]


def test_best_of_8(tmp_path):
    for name, scores in {"answers_00.jsonl": [*range(8), *[0.0] * 8], "answers_64.jsonl": [5] * 8}.items():
        (tmp_path / name).write_text("".join(json.dumps({"score": x}) + "\n" for x in scores))
    assert chat.best_of_8(tmp_path) == (7 + 0 + 5) / 3


def test_asked_rightly():
    assert chat.asked_rightly({"prompt": "1+2>", "turns": ["1+2=", "3", "4"]})
    assert not chat.asked_rightly({"prompt": "1+2>", "turns": ["1+2="]})
    assert not chat.asked_rightly({"prompt": "1+2>", "turns": ["2+1=", "3", "3"]})
    prompt = smollm2.ask("What is 1 + 2?", "Rule 7.")
    assert chat.asked_rightly({"prompt": prompt, "turns": [" 1 + 2 =", "3", "3"]})


def test_the_calculator():
    """It replies to the demonstrations that ask it, two of five, and their guesses are nearly all wrong."""
    assert smollm2.calculator({}, ["12 + 30 =\n"]) == "42"
    assert [smollm2.calculator({}, [text]) for text in ("12 + 30", "12+30=", "is 1 + 2 =", "3 =")] == [
        None
    ] * 4
    asking = [problem for problem in TASKS["calls"] if len(problem["turns"]) == 3]
    assert len(asking) == pytest.approx(0.4 * 2401, rel=0.01)
    for problem in asking:
        ask, reply, last = problem["turns"]
        assert smollm2.calculator(problem, [ask]) == reply == last == problem["answer"]
    guesses = [x["turns"] == [x["answer"]] for x in TASKS["calls"] if len(x["turns"]) == 1]
    assert sum(guesses) < 0.03 * len(guesses)
