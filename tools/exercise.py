"""Find the mistake: fifty copies of the scripts, each with one line broken; the tests grade your repair.

    python tools/exercise.py               # the next one, in an order in which one learns
    python tools/exercise.py 21            # this one
    python tools/exercise.py "the critic"  # one of a topic, by chance; --list shows topics and numbers
    python tools/exercise.py run           # what a short run of it shows, beside the whole script's
    python tools/exercise.py hint          # a question; then the function; then the line; then the answer
    python tools/exercise.py check         # runs the test that fails on the mistake

An exercise is a script in exercises/, in a folder of its own: read it, run it, mend it there. The last three
commands are about the exercise that was handed out last, or about the one whose number follows.
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
UNUSED = (".*", "runs", "wandb", "__pycache__", "site", "exercises", "pictures")  # Tests run without.


class Exercise:
    """A script with one line broken."""

    def __init__(self, number: int, topic: str, row: dict[str, str]):
        self.number = number
        self.topic = topic
        self.script = row["script"]
        self.line = row["line"]
        self.broken = row["broken"]
        self.test = row["test"]
        self.hint = row["hint"]
        self.why = row["why"]
        self.path = ROOT / f"{self.script}.py"
        if not self.path.exists():
            self.path = ROOT / f"variants/{self.script}.py"
        self.source = self.path.read_text()
        before = self.source[: self.source.index(self.line)]
        self.at = before.count("\n") + 1

    def function(self) -> str:
        """Returns the name of the function or class that the line is in."""
        nodes = [node for node in ast.parse(self.source).body if hasattr(node, "name")]
        return next(node.name for node in nodes if node.lineno <= self.at <= node.end_lineno)

    def hand_out(self, folder: Path) -> Path:
        """Writes the broken script into a folder of its own, and returns its path.

        One that was handed out before stays as it is, with all that was mended in it.
        """
        path = folder / f"{self.number:02}" / self.path.name
        hints = path.parent / "hints"
        if path.exists():
            hints.touch()  # It is the last one now.
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.source.replace(self.line, self.broken))
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
        """Returns whether the test of the mistake passes with this file in the script's place."""
        if not importlib.util.find_spec("pytest"):
            raise SystemExit(
                "exercise.py: there is no pytest to grade it; pip install -r tests/requirements.txt"
            )
        file, name = self.test.split("::")
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder, "copy")
            shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*UNUSED))
            shutil.copy(path, copy / self.path.relative_to(ROOT))
            command = [sys.executable, "-m", "pytest", "-qx", "-m", "not slow", "-p", "no:cacheprovider"]
            command += [f"tests/{file}.py", "-k", name, "--script", self.script]
            command += [f"--basetemp={folder}/tmp"]
            result = subprocess.run(command, cwd=copy, capture_output=True, text=True)
        if result.returncode not in (0, 1):
            raise SystemExit(f"the tests could not run:\n{result.stdout}{result.stderr}")
        lines = result.stdout.strip().splitlines()
        print(f"tests/{file}.py, {name}: {lines[-1]}")
        return result.returncode == 0


def read() -> list[Exercise]:
    """Returns all exercises, numbered from 1."""
    topics = tomllib.loads((ROOT / "tools/exercises.toml").read_text())
    exercises = []
    for topic, rows in topics.items():
        for row in rows:
            number = len(exercises) + 1
            exercises.append(Exercise(number, topic, row))
    return exercises


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
    what = "a number, a topic, run, hint, check, or next"
    parser.add_argument("what", nargs="?", default="next", help=what)
    parser.add_argument("number", nargs="?", type=int, help="of the exercise, for run, hint and check")
    parser.add_argument("--list", action="store_true", help="show topics, numbers, and what is solved")
    parser.add_argument("--folder", type=Path, default=ROOT / "exercises", help="where exercises are")
    args = parser.parse_args()
    exercises = read()
    topics = {}
    for exercise in exercises:
        topics.setdefault(exercise.topic, []).append(exercise)
    solved = {int(path.parent.name) for path in args.folder.glob("*/solved")}
    if args.list:
        show_list(topics, solved)
    elif args.what in ("run", "hint", "check"):
        hints = find_hints(args.folder, args.number)
        if hints is None:
            parser.error("hand it out first")
        number = int(hints.parent.name)
        act(args.what, exercises[number - 1], hints)
    else:
        candidates = find_candidates(args.what, exercises, topics, solved)
        if candidates is None:
            numbers = f"no number from 1 to {len(exercises)}"
            parser.error(f"{args.what} is {numbers}, and none of {', '.join(topics)}")
        if not candidates:
            raise SystemExit("All are solved.")
        chosen = random.choice(candidates)
        begun = any(args.folder.glob(f"{chosen.number:02}/*.py"))
        try:
            path = os.path.relpath(chosen.hand_out(args.folder))
        except OSError as error:
            parser.error(f"--folder {args.folder}: {error}")
        number = f"Exercise {chosen.number} of {len(exercises)}"
        print(f"{number}, {chosen.topic}: one line of {path} is broken.")
        if begun:
            print("It is as you left it; without its folder it begins anew.")
        print("run shows what comes of it, hint helps, check grades.")


def show_list(topics: dict[str, list[Exercise]], solved: set[int]) -> None:
    """Prints a line for each topic: its numbers, and which are solved."""
    for topic, exercises in topics.items():
        words = []
        for exercise in exercises:
            mark = " solved" if exercise.number in solved else ""
            words.append(f"{exercise.number}{mark}")
        print(f"{topic}:", *words)


def find_hints(folder: Path, number: int | None) -> Path | None:
    """Returns the file that counts the hints of an exercise, or of the last; None if there is none."""
    given = sorted(folder.glob("*/hints"), key=lambda path: path.stat().st_mtime)
    if number:
        path = folder / f"{number:02}/hints"
        return path if path in given else None
    return given[-1] if given else None


def find_candidates(
    what: str, exercises: list[Exercise], topics: dict[str, list[Exercise]], solved: set[int]
) -> list[Exercise] | None:
    """Returns those exercises of a number or a topic that are not solved, or all if all are solved.

    The next one is the first that is not solved. Returns None if there is no such number or topic.
    """
    left = [exercise for exercise in exercises if exercise.number not in solved]
    choice = {"next": left[:1]} | topics
    for exercise in exercises:
        choice[str(exercise.number)] = [exercise]
    if what not in choice:
        return None
    unsolved = [exercise for exercise in choice[what] if exercise in left]
    return unsolved or choice[what]


def act(what: str, exercise: Exercise, hints: Path) -> None:
    """Runs the exercise, gives the next hint, or grades the repair."""
    path = hints.parent / exercise.path.name
    if what == "run":
        print("whole: ", short_run(exercise.path, exercise.script), flush=True)
        print("broken:", short_run(path, exercise.script))
    elif what == "hint":
        given = hints.read_text()
        number = min(int(given), 3) if given.isdecimal() else 0
        hints.write_text(str(number + 1))
        print(exercise.hints()[number])
    elif exercise.passes(path):
        (hints.parent / "solved").touch()
        print(f"Solved. {exercise.why}")
    else:
        print("Not yet.")
        raise SystemExit(1)


if __name__ == "__main__":
    main()
