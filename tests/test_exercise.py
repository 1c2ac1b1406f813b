"""Exercises are mutants, in the order of the page, or functions to write; one is handed out and graded."""

import re
import shutil
import subprocess
import sys
import tomllib

import pytest
from conftest import ROOT
from mutants import MUTANTS, named_in_the_table, scripts_of

sys.path.append(str(ROOT / "tools"))
import exercise  # noqa: E402

EXERCISES = exercise.read()
BLANKS = {blank.name: blank for blank in exercise.read_blanks()}
VERSIONS = tomllib.loads((ROOT / "tests/functions.toml").read_text())


def test_each_exercise_is_a_mutant_of_one_line():
    assert len({(x.script, x.line, x.broken) for x in EXERCISES}) == len(EXERCISES) == 50
    for x in EXERCISES:
        same = [mutant for mutant in MUTANTS if (mutant.line, mutant.broken) == (x.line, x.broken)]
        [mutant] = [mutant for mutant in same if x.script in scripts_of(mutant)][:1]
        assert x.tests == [mutant.test or named_in_the_table(mutant.subject, x.script)], x.number
        assert x.source.count(x.line) == 1, x.number
        whole, broken = x.source.splitlines(), x.source.replace(x.line, x.broken).splitlines()
        assert [n for n, pair in enumerate(zip(whole, broken, strict=True), 1) if len({*pair}) > 1] == [x.at]
        assert f"def {x.function()}(" in x.source or f"class {x.function()}(" in x.source
        assert x.hint.endswith((".", "?")) and x.why.endswith(".")


def test_the_page_has_the_same_topics():
    table = re.findall(r"^\| ([\w ]+) \| (\d+) to (\d+) \|", (ROOT / "docs/exercises.md").read_text(), re.M)
    numbers = {
        topic: [x.number for x in EXERCISES if x.topic == topic] for topic in (x.topic for x in EXERCISES)
    }
    assert [(topic, int(first), int(last)) for topic, first, last in table] == [
        (topic, min(of_topic), max(of_topic)) for topic, of_topic in numbers.items()
    ]


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    def run(*words):
        monkeypatch.setattr(sys, "argv", ["exercise.py", *words, "--folder", str(tmp_path)])
        exercise.main()
        return capsys.readouterr().out

    return run


@pytest.mark.long
def test_one_is_handed_out_and_graded(run, tmp_path):
    """Number 7: the mistake is there, hints lead to it, the tests fail with it and pass without."""
    assert "Exercise 7 of 50, advantages" in run("7")
    path, whole = tmp_path / "07/ppo_discrete.py", (ROOT / "ppo_discrete.py").read_text()
    assert path.read_text() != whole
    with pytest.raises(SystemExit) as stopped:
        run("check")
    assert stopped.value.code == 1 and not (tmp_path / "07/solved").exists()
    hints = [run("hint") for _ in range(5)]
    assert (
        hints[0].strip().endswith("?") and "compute_gae" in hints[1] and "goes_on" not in "".join(hints[:3])
    )
    assert f"line {EXERCISES[6].at}." in hints[2] and "goes_on" in hints[3] and hints[4] == hints[3]
    path.write_text(whole)
    assert "Solved" in run("check")
    assert "7 solved" in run("--list")
    assert "Exercise 1 of" in run()


def test_what_is_in_the_way_costs_a_line(run, tmp_path, monkeypatch, capsys):
    """No pytest, a file that was to count the hints, a folder that cannot be made."""
    run("7")
    (tmp_path / "07/hints").write_text("many")
    assert run("hint").strip() == EXERCISES[6].hint
    monkeypatch.setattr(exercise.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="no pytest to grade it; pip install -r tests/requirements.txt"):
        run("check")
    (tmp_path / "08").touch()
    with pytest.raises(SystemExit):
        run("8")
    assert f"--folder {tmp_path}: " in capsys.readouterr().err


def test_one_that_was_begun_is_not_thrown_away(run, tmp_path):
    assert "as you left it" not in run("7")
    path = tmp_path / "07/ppo_discrete.py"
    path.write_text("# mine\n" + path.read_text())
    run("hint"), run("8")
    assert "as you left it" in run("7")
    assert path.read_text().startswith("# mine\n")
    assert "compute_gae" in run("hint")  # the second one, of the last that was handed out


def solve(folder, *numbers):
    for number in numbers:
        (folder / f"{number:02}").mkdir(exist_ok=True)
        (folder / f"{number:02}/solved").touch()


def test_topics_and_mistakes(run, tmp_path, capsys):
    for _ in range(5):
        assert re.search(r"Exercise 1[2-6] of 50", run("time limits"))
    solve(tmp_path, 12, 13, 14, 16)
    for _ in range(9):
        assert "Exercise 15 of 50" in run("time limits")
    first = "hand it out first: python tools/exercise.py 7"
    for words, answer in [
        (["51"], "no number from 1 to 50"),
        (["write", "nosuch"], "nosuch is no number from 1 to 50, no function"),
        (["hint", "7"], first),
    ]:
        with pytest.raises(SystemExit):
            run(*words)
        assert answer in capsys.readouterr().err
    solve(tmp_path, *range(1, 51))
    with pytest.raises(SystemExit, match="All are solved"):
        run()


def test_a_function_that_is_handed_out_has_its_docstring_and_nothing_else():
    assert {*BLANKS} == {*VERSIONS} and len(BLANKS) > 14
    page = (ROOT / "docs/exercises.md").read_text()
    for name, blank in BLANKS.items():
        assert f"`{name}`" in page and blank.why.endswith(".") and len(blank.questions) == 3
        whole, given = blank.source.splitlines(), blank.handed_out().splitlines()
        gap = given.index(blank.gap())
        assert given[:gap] == whole[:gap] and given[gap + 1 :] == whole[gap + len(whole) - len(given) + 1 :]
        assert given[gap - 1].endswith(('"""', ":")) and given[gap + 1] in ("", "    @torch.no_grad()")
        assert blank.hints()[-1].count("\n") > 5
        for body in (*VERSIONS[name]["right"], VERSIONS[name]["wrong"]):
            compile(blank.with_body(body), name, "exec")


@pytest.mark.long
def test_a_function_is_handed_out_and_graded(run, tmp_path, capsys):
    """The name of the test, its line and what was wrong are told; another right version passes."""
    assert "Write act, at line" in run("write")
    assert "Write adapt, at line" in run("adapt")
    path, blank = tmp_path / "adapt/ppo_penalty.py", BLANKS["adapt"]
    assert path.read_text() == blank.handed_out()
    with pytest.raises(SystemExit):
        run("check")
    path.write_text(blank.with_body(VERSIONS["adapt"]["wrong"]))
    with pytest.raises(SystemExit):
        run("check", "adapt")
    assert "test beta can always come back" in capsys.readouterr().out
    assert [run("hint") for _ in range(3)] == [f"{question}\n" for question in blank.questions]
    assert "min(max(beta, 1e-4), 1e4)" in run("hint")
    path.write_text(blank.with_body(VERSIONS["adapt"]["right"][0]))
    assert "Solved" in run("check") and "adapt solved" in run("--list")
    assert "Write act" in run("write")


def test_where_and_why_it_failed_is_told(capsys):
    """A line of one's own that raises; what numpy expected and found, without the rest."""
    exercise.tell(
        "____ test_x ____\ntests/test_gae.py:9: in test_x\n    f()\nppo_discrete.py:121: in compute_gae\n"
        "    delta = reward\nE   NameError: name 'reward' is not defined\n1 failed in 1.00s\n",
        "ppo_discrete.py",
    )
    assert capsys.readouterr().out.splitlines()[1:3] == [
        "    line 121: delta = reward",
        "    NameError: name 'reward' is not defined",
    ]
    wrong = (
        "Not equal to tolerance",
        "",
        "Mismatched elements: 1 / 6",
        " ACTUAL: array([2.])",
        " DESIRED: array([1.])",
    )
    exercise.tell("__ test_x __\n" + "".join(f"E   {line}\n" for line in wrong) + "1 failed\n", "a.py")
    told = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert told[1:4] == ["Not equal to tolerance", "ACTUAL: array([2.])", "DESIRED: array([1.])"]


def test_what_failed_is_told(capsys):
    """The name in words, the line, and what was wrong with it."""
    exercise.tell(
        "F\n____ test_beta_can_always_come_back[ppo_penalty] ____\ntests/test_penalty.py:20: in test\n"
        "    assert beta > 0\nE   assert 0.0 > 0\n1 failed in 2.00s\n",
        "ppo_penalty.py",
    )
    assert capsys.readouterr().out.splitlines() == [
        "test beta can always come back[ppo_penalty]",
        "    assert beta > 0",
        "    assert 0.0 > 0",
        "1 failed in 2.00s",
    ]


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the project, in which functions are replaced."""
    folder = tmp_path_factory.mktemp("functions") / "copy"
    shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(*exercise.UNUSED))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", BLANKS)
def test_every_test_fails_without_the_function_and_other_words_pass(copy, name):
    """Two right versions pass; the classic mistake fails by a name that says it."""
    blank, versions = BLANKS[name], VERSIONS[name]

    def grade(source):
        target = copy / blank.path.relative_to(ROOT)
        target.write_text(source)
        files = {f"tests/{test.split('::')[0]}.py" for test in blank.tests}
        words = " or ".join(test.split("::")[1] for test in blank.tests)
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "--tb=line",
            "-p",
            "no:cacheprovider",
            *files,
            "-k",
            words,
        ]
        command += ["--script", blank.script, "-m", "not slow"]
        result = subprocess.run(command, cwd=copy, capture_output=True, text=True).stdout
        target.write_text(blank.source)
        return result.strip().splitlines()[-1], re.findall(r"^FAILED \S+::(\w+)", result, re.M)

    last, _ = grade(blank.handed_out())
    assert re.match(r"\d+ failed, (\d+ deselected )?in|\d+ failed, \d+ deselected in", last), last
    for body in versions["right"]:
        last, _ = grade(blank.with_body(body))
        assert re.match(r"\d+ passed", last), last
    _, failed = grade(blank.with_body(versions["wrong"]))
    assert any(versions["fails"] in test for test in failed)
