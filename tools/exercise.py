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
sys.path.append(str(ROOT / "tests"))
from mutants import MUTANTS, file_of, named_in_the_table, scripts_of  # noqa: E402

FLAGS = {  # of a short run
    "ppo_continuous": "--env-id Pendulum-v1 --total-timesteps 100000",
    "ppo_penalty": "--env-id Pendulum-v1 --total-timesteps 100000",
    "trpo": "--env-id Pendulum-v1 --total-timesteps 100000",
    "ppo_llm": "",
    "grpo": "",
}


class Exercise:
    def __init__(self, number: int, topic: str, script: str, line: str, broken: str, hint: str, why: str):
        self.number, self.topic, self.script, self.hint, self.why = number, topic, script, hint, why
        self.line, self.broken, self.path = line, broken, file_of(script)
        self.source = self.path.read_text()
        self.at = self.source[: self.source.index(line)].count("\n") + 1

    def mutant(self):
        """The one of tests/mutants.py that breaks the same line of the same script in the same way."""
        same = (x for x in MUTANTS if (x.line, x.broken) == (self.line, self.broken))
        return next(x for x in same if self.script in scripts_of(x))

    def function(self) -> str:
        nodes = [node for node in ast.parse(self.source).body if hasattr(node, "name")]
        return next(node.name for node in nodes if node.lineno <= self.at <= node.end_lineno)

    def hand_out(self, folder: Path) -> Path:
        path = folder / f"{self.number:02}" / self.path.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.source.replace(self.line, self.broken))
        (path.parent / "hints").write_text("0")
        return path

    def hints(self) -> list[str]:
        answer = self.source.splitlines()[self.at - 1].strip()
        return [
            self.hint,
            f"Look at {self.function()}.",
            f"Look at line {self.at}.",
            f"In {self.path.relative_to(ROOT)}, the line is\n\n    {answer}\n\n{self.why}",
        ]

    def passes(self, path: Path) -> bool:
        """Whether the test that the mistake fails passes with this file in the script's place."""
        mutant = self.mutant()
        file, name = (mutant.test or named_in_the_table(mutant.subject, self.script)).split("::")
        ignored = shutil.ignore_patterns(
            ".*", "runs", "wandb", "__pycache__", "site", "exercises", "pictures"
        )
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(shutil.copytree(ROOT, f"{folder}/copy", ignore=ignored))
            shutil.copy(path, copy / self.path.relative_to(ROOT))
            arguments = [
                "-qx",
                "-p",
                "no:cacheprovider",
                f"tests/{file}.py",
                "-k",
                name,
                "--script",
                self.script,
            ]
            command = [sys.executable, "-m", "pytest", *arguments, f"--basetemp={folder}/tmp"]
            result = subprocess.run(command, cwd=copy, capture_output=True, text=True)
        if result.returncode not in (0, 1):
            raise SystemExit(f"the tests could not run:\n{result.stdout}{result.stderr}")
        print(f"tests/{file}.py, {name}: {result.stdout.strip().splitlines()[-1]}")
        return result.returncode == 0


def read() -> list[Exercise]:
    topics = tomllib.loads((ROOT / "tools/exercises.toml").read_text())
    rows = [(topic, row) for topic, rows in topics.items() for row in rows]
    return [Exercise(number, topic, **row) for number, (topic, row) in enumerate(rows, 1)]


def short_run(path: Path, script: str) -> str:
    """The last line of numbers that a run prints, or its error."""
    flags = FLAGS.get(script, "--total-timesteps 100000").split()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(path), *flags, "--eval-episodes", "0", "--run-dir", f"{folder}/run"]
        result = subprocess.run(command, capture_output=True, text=True)
    numbers = re.findall(r"^[\d,]+ steps .*$", result.stdout, re.M)
    return numbers[-1] if numbers else result.stderr.strip().splitlines()[-1]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "what", nargs="?", default="next", help="a number, a topic, run, hint, check, or next"
    )
    parser.add_argument("number", nargs="?", type=int, help="of the exercise, for run, hint and check")
    parser.add_argument("--list", action="store_true", help="show topics, numbers, and what is solved")
    parser.add_argument("--folder", type=Path, default=ROOT / "exercises", help="where exercises are")
    args = parser.parse_args()
    exercises, topics = read(), {}
    for exercise in exercises:
        topics.setdefault(exercise.topic, []).append(exercise)
    solved = {int(path.parent.name) for path in args.folder.glob("*/solved")}
    if args.list:
        for topic, rows in topics.items():
            print(f"{topic}:", *(f"{x.number}{' solved' * (x.number in solved)}" for x in rows))
    elif args.what in ("run", "hint", "check"):
        given = sorted(args.folder.glob("*/hints"), key=lambda path: path.stat().st_mtime)
        hints = args.folder / f"{args.number:02}/hints" if args.number else [Path(), *given][-1]
        if hints not in given:
            parser.error("hand it out first")
        act(args.what, exercises[int(hints.parent.name) - 1], hints)
    else:
        by_number = {str(exercise.number): [exercise] for exercise in exercises}
        left = [x for x in exercises if x.number not in solved]
        choice = {"next": left[:1]} | topics | by_number
        if args.what not in choice:
            parser.error(
                f"{args.what} is no number from 1 to {len(exercises)}, and none of {', '.join(topics)}"
            )
        if not choice[args.what]:
            raise SystemExit("All are solved.")
        chosen = random.choice([x for x in choice[args.what] if x in left] or choice[args.what])
        path = os.path.relpath(chosen.hand_out(args.folder))
        print(f"Exercise {chosen.number} of {len(exercises)}, {chosen.topic}: one line of {path} is broken.")
        print("run shows what comes of it, hint helps, check grades.")


def act(what: str, exercise: Exercise, hints: Path) -> None:
    path = hints.parent / exercise.path.name
    if what == "run":
        print("whole: ", short_run(exercise.path, exercise.script), flush=True)
        print("broken:", short_run(path, exercise.script))
    elif what == "hint":
        number = min(int(hints.read_text()), 3)
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
