"""Find the mistake, or write it yourself: the tests grade what you did.

    python tools/exercise.py               # the next of fifty mistakes, in an order in which one learns
    python tools/exercise.py 21            # this one
    python tools/exercise.py "the critic"  # one of a topic, by chance; --list shows topics and numbers
    python tools/exercise.py write         # the next function to write
    python tools/exercise.py compute_gae   # this one; --list shows their names
    python tools/exercise.py run           # what a short run of it shows, beside the whole script's
    python tools/exercise.py hint          # a question; then more of the answer, at last all of it
    python tools/exercise.py check         # runs the tests that are to pass

An exercise is a script in exercises/, in a folder of its own: read it, run it, change it there. The
last three commands are about the exercise that was handed out last; a number or a name chooses another.
"""

import argparse
import ast
import importlib.util
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONTROL = "--env-id Pendulum-v1 --total-timesteps 100000"
FLAGS = {  # A short run has these; other scripts have as many timesteps in their default envs.
    "ppo_continuous": CONTROL,
    "ppo_penalty": CONTROL,
    "trpo": CONTROL,
    "ppo_llm": "",
    "grpo": "",
}
NOISE = ("#", "AssertionError:", "The test ", "script=")  # Of what pytest says, this helps nobody.
COUNT = 50  # This many exercises have a broken line.
UNUSED = (".*", "runs", "wandb", "__pycache__", "site", "exercises", "pictures")  # Tests run without.


class Exercise:
    """A script with one line broken."""

    def __init__(self, number: int, topic: str, row: dict[str, str]):
        self.number = number
        self.name = f"{number:02}"  # Its folder is called so.
        self.topic = topic
        self.script = row["script"]
        self.line = row["line"]
        self.broken = row["broken"]
        self.tests = [row["test"]]
        self.hint = row["hint"]
        self.why = row["why"]
        self.read()
        before = self.source[: self.source.index(self.line)]
        self.at = before.count("\n") + 1

    def read(self) -> None:
        """Finds the script."""
        self.path = ROOT / f"{self.script}.py"
        if not self.path.exists():
            self.path = ROOT / f"variants/{self.script}.py"
        self.source = self.path.read_text()

    def task(self, path: str) -> str:
        return f"Exercise {self.number} of {COUNT}, {self.topic}: one line of {path} is broken."

    def function(self) -> str:
        """Returns the name of the function or class that the line is in."""
        nodes = [node for node in ast.parse(self.source).body if hasattr(node, "name")]
        return next(node.name for node in nodes if node.lineno <= self.at <= node.end_lineno)

    def handed_out(self) -> str:
        """Returns the script as it is handed out."""
        return self.source.replace(self.line, self.broken)

    def hand_out(self, folder: Path) -> Path:
        """Writes the script into a folder of its own, and returns its path.

        One that was handed out before stays as it is, with all that was mended in it.
        """
        path = folder / self.name / self.path.name
        hints = path.parent / "hints"
        if path.exists():
            hints.touch()  # It is the last one now.
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.handed_out())
        hints.write_text("0")
        return path

    def hints(self) -> list[str]:
        """Returns a question, the function, the line, and the answer."""
        lines = self.source.splitlines()
        answer = lines[self.at - 1].strip()
        place = self.path.relative_to(ROOT)
        return [
            self.hint,
            f"Look at {self.function()}.",
            f"Look at line {self.at}.",
            f"In {place}, the line is\n\n    {answer}\n\n{self.why}",
        ]

    def passes(self, path: Path) -> bool:
        """Returns whether the tests pass with this file in the script's place."""
        if not importlib.util.find_spec("pytest"):
            raise SystemExit(
                "exercise.py: there is no pytest to grade it; pip install -r tests/requirements.txt"
            )
        try:
            compile(path.read_text(), str(path), "exec")
        except SyntaxError as error:
            print(f"{path}, line {error.lineno}: {error.msg}")
            return False
        files = dict.fromkeys(f"tests/{test.split('::')[0]}.py" for test in self.tests)
        names = [test.split("::")[1] for test in self.tests]
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder, "copy")
            shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*UNUSED))
            shutil.copy(path, copy / self.path.relative_to(ROOT))
            command = [sys.executable, "-m", "pytest", "-qx", "--tb=short", "-p", "no:cacheprovider"]
            command += [*files, "-k", " or ".join(names), "--script", self.script]
            command += ["-m", "not slow", f"--basetemp={folder}/tmp"]
            try:
                result = subprocess.run(command, cwd=copy, capture_output=True, text=True, timeout=180)
            except subprocess.TimeoutExpired:
                print("The tests took more than three minutes: is there a loop that never ends?")
                return False
        if result.returncode not in (0, 1):
            raise SystemExit(f"the tests could not run:\n{result.stdout}{result.stderr}")
        tell(result.stdout, path.name)
        return result.returncode == 0


class Blank(Exercise):
    """A script in which one function has nothing but its signature and docstring."""

    def __init__(self, row: dict):
        self.name = row["name"]
        self.script = row["script"]
        self.tests = row["tests"]
        self.questions = row["hints"]
        self.why = row["why"]
        self.read()
        self.node = ast.parse(self.source)
        for part in row["function"].split("."):
            self.node = next(x for x in self.node.body if getattr(x, "name", "") == part)

    def task(self, path: str) -> str:
        line = self.handed_out().splitlines().index(self.gap()) + 1
        return f"Write {self.name}, at line {line} of {path}: what its docstring says."

    def gap(self) -> str:
        """Returns the line that stands where the function's body was."""
        return " " * self.node.body[0].col_offset + 'raise NotImplementedError("write this function")'

    def handed_out(self) -> str:
        return self.with_body(self.gap() + "\n")

    def with_body(self, body: str) -> str:
        """Returns the script with another body of this function."""
        lines = self.source.splitlines(keepends=True)
        first = self.node.body[0]
        kept = first.end_lineno if ast.get_docstring(self.node) else first.lineno - 1
        return "".join(lines[:kept]) + body + "".join(lines[self.node.end_lineno :])

    def hints(self) -> list[str]:
        """Returns questions, and the function as the script has it."""
        lines = self.source.splitlines()
        function = "\n".join(lines[self.node.lineno - 1 : self.node.end_lineno])
        place = self.path.relative_to(ROOT)
        return [*self.questions, f"In {place}, the function is\n\n{function}\n\n{self.why}"]


def tell(output: str, script: str) -> None:
    """Prints which test failed, where, why, and how many passed."""
    lines = output.strip().splitlines()
    failed = re.search(r"^_+ (?:\w+\.)?(test_\w+)(.*?) _+$", output, re.M)
    if failed:
        name, case = failed.groups()
        print(name.replace("_", " ") + case)
        for line in [*find_places(output, script), *find_reasons(lines)]:
            print(f"    {line[:120]}")
    print(lines[-1])


def find_places(output: str, script: str) -> list[str]:
    """Returns the line of the script that raised an exception, or else that of the assertion."""
    places = re.findall(rf"^{re.escape(script)}:(\d+): in \w+\n +(.*)$", output, re.M)
    if places:
        line, code = places[-1]
        return [f"line {line}: {code}"]
    return [line.strip() for line in re.findall(r"^    assert .*$", output, re.M)[-1:]]


def find_reasons(lines: list[str]) -> list[str]:
    """Returns what pytest says was wrong: the first line, and what was expected and found."""
    said = [line[1:].strip() for line in lines if line.startswith("E ")]
    said = [line for line in said if line and not line.startswith(NOISE)]
    numbers = [line for line in said[1:] if re.match(r"ACTUAL|DESIRED|Failing|\w+=", line)]
    return said[:1] + (numbers or said[1:4])[:8]


def read() -> list[Exercise]:
    """Returns all exercises with a broken line, numbered from 1."""
    topics = tomllib.loads((ROOT / "tools/exercises.toml").read_text())
    exercises = []
    for topic, rows in topics.items():
        for row in rows:
            exercises.append(Exercise(len(exercises) + 1, topic, row))
    return exercises


def read_blanks() -> list[Blank]:
    """Returns the functions to write, in the order in which one learns."""
    rows = tomllib.loads((ROOT / "tools/functions.toml").read_text())
    return [Blank(row) for row in rows["function"]]


def short_run(path: Path, script: str) -> str:
    """Returns the last line of numbers that a run prints, or its error."""
    flags = FLAGS.get(script, "--total-timesteps 100000")
    command = [sys.executable, str(path), *flags.split(), "--eval-episodes", "0"]
    with tempfile.TemporaryDirectory() as folder:
        command += ["--run-dir", f"{folder}/run"]
        result = subprocess.run(command, capture_output=True, text=True)
    numbers = re.findall(r"^[\d,]+ steps .*$", result.stdout, re.M)
    return numbers[-1] if numbers else result.stderr.strip().splitlines()[-1]


def main() -> None:
    """Reads the command line, and does what it says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = "a number, a topic, write, a function, run, hint, check, or next"
    parser.add_argument("what", nargs="?", default="next", help=what)
    parser.add_argument("name", nargs="?", help="of the exercise, for write, run, hint and check")
    parser.add_argument(
        "--list", action="store_true", help="show topics, numbers, functions, and what is solved"
    )
    parser.add_argument("--folder", type=Path, default=ROOT / "exercises", help="where exercises are")
    args = parser.parse_args()
    topics = {}
    for exercise in read():
        topics.setdefault(exercise.topic, []).append(exercise)
    topics["write"] = read_blanks()
    exercises = {exercise.name: exercise for rows in topics.values() for exercise in rows}
    solved = {path.parent.name for path in args.folder.glob("*/solved")}
    if args.list:
        show_list(topics, solved)
    elif args.what in ("run", "hint", "check"):
        hints = find_hints(args.folder, args.name)
        if hints is None:
            what = args.name or "write"
            parser.error(f"hand it out first: python tools/exercise.py {what}")
        act(args.what, exercises[hints.parent.name], hints)
    else:
        what = args.what
        if what == "write" and args.name:
            what = args.name
        candidates = find_candidates(what, topics, solved)
        if candidates is None:
            numbers = f"no number from 1 to {COUNT}, no function of --list"
            parser.error(f"{what} is {numbers}, and none of {', '.join(topics)}")
        if not candidates:
            raise SystemExit("All are solved.")
        chosen = candidates[0] if what == "write" else random.choice(candidates)
        begun = any(args.folder.glob(f"{chosen.name}/*.py"))
        try:
            path = os.path.relpath(chosen.hand_out(args.folder))
        except OSError as error:
            parser.error(f"--folder {args.folder}: {error}")
        print(chosen.task(path))
        if begun:
            print("It is as you left it; without its folder it begins anew.")
        print("run shows what comes of it, hint helps, check grades.")


def show_list(topics: dict[str, list[Exercise]], solved: set[str]) -> None:
    """Prints a line for each topic: its numbers, and which are solved."""
    for topic, exercises in topics.items():
        words = []
        for exercise in exercises:
            mark = " solved" if exercise.name in solved else ""
            words.append(f"{exercise.name.lstrip('0')}{mark}")
        separator = "\n  " if topic == "write" else " "
        print(f"{topic}:", *words, sep=separator)


def find_hints(folder: Path, name: str | None) -> Path | None:
    """Returns the file that counts the hints of an exercise, or of the last; None if there is none."""
    given = sorted(folder.glob("*/hints"), key=lambda path: path.stat().st_mtime)
    if name:
        path = folder / f"{name.zfill(2)}/hints"
        return path if path in given else None
    return given[-1] if given else None


def find_candidates(what: str, topics: dict[str, list[Exercise]], solved: set[str]) -> list[Exercise] | None:
    """Returns those exercises of a number, a topic or a name that are not solved, or all if all are solved.

    The next one is the first that is not solved. Returns None if there is no such number or name.
    """
    broken = [exercise for topic, rows in topics.items() if topic != "write" for exercise in rows]
    choice = {"next": [exercise for exercise in broken if exercise.name not in solved][:1]} | topics
    for exercise in [*broken, *topics["write"]]:
        choice[exercise.name] = [exercise]
    found = choice.get(what, choice.get(what.zfill(2)))
    unsolved = [exercise for exercise in found or () if exercise.name not in solved]
    return unsolved if what == "write" else unsolved or found


def act(what: str, exercise: Exercise, hints: Path) -> None:
    """Runs the exercise, gives the next hint, or grades the repair."""
    path = hints.parent / exercise.path.name
    if what == "run":
        print("whole: ", short_run(exercise.path, exercise.script), flush=True)
        print("this:  ", short_run(path, exercise.script))
    elif what == "hint":
        given = hints.read_text()
        answers = exercise.hints()
        number = min(int(given), len(answers) - 1) if given.isdecimal() else 0
        hints.write_text(str(number + 1))
        print(answers[number])
    elif exercise.passes(path):
        (hints.parent / "solved").touch()
        print(f"Solved. {exercise.why}")
    else:
        print("Not yet.")
        raise SystemExit(1)


if __name__ == "__main__":
    main()
