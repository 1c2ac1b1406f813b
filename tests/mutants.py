"""Break the scripts on purpose, one line at a time, and see whether the tests notice.

    python tests/mutants.py                         # all mutants; exit code 1 if one survives
    python tests/mutants.py D08 ppo_discrete        # those of a tag in a script
    python tests/mutants.py D06 D08 grpo ppo_llm    # those of either tag in either script
    python tests/mutants.py ppo_discrete            # those of all tags in a script

Every mutant is made of each script that has its line, or of those that it names, in a copy of the project.
There it runs against the test that is to catch it (for a tag: the one in docs/details.md), as far as that
test is of the broken script. So a test that cannot fail shows up as a survivor.
"""

import argparse
import difflib
import multiprocessing
import os
import re
import shutil
import signal
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
TABLE = tomllib.loads((ROOT / "tests/mutants.toml").read_text())
GROUPS = {name: tuple(scripts) for name, scripts in TABLE["groups"].items()}
TESTS_OF_TEXTS = {  # how files are called with tests of language models, which have rows of their own
    GROUPS["language"]: "test_llm",
    ("ppo_llm_truncated",): "test_truncated",
    GROUPS["preferences"]: "test_preferences",
}
# ppo_tensor_envs has the tags of ppo_discrete, and ppo_lstm has them and those of ppo_atari_lstm.
KNOWN = {
    *GROUPS["games"],
    *GROUPS["texts"],
    "ppo_tensor_envs",
    "grpo_turns",
    "ppo_lstm",
    "sweep",
    "compare",
    "tune",
    "diagnose",
}


class Mutant(NamedTuple):
    """A row of tests/mutants.toml."""

    subject: str
    line: str
    broken: str
    test: str = ""
    scripts: tuple[str, ...] = GROUPS["games"]


def read_row(subject, line, broken, test="", names="games"):
    """A mutant, with the scripts of the groups that the row names."""
    scripts = [script for name in names.split() for script in GROUPS.get(name, [name])]
    return Mutant(subject, line, broken, test, tuple(scripts))


MUTANTS = [read_row(*row) for row in TABLE["mutants"]["rows"]]


def file_of(script):
    paths = [ROOT / folder / f"{script}.py" for folder in ("", "variants", "tools")]
    return next(path for path in paths if path.exists())


def scripts_of(mutant):
    """The scripts that it is made of."""
    scripts = [script for script in mutant.scripts if mutant.line in file_of(script).read_text()]
    if mutant.scripts == GROUPS["games"] and not mutant.test:
        texts = {script: file_of(script).read_text() for script in GROUPS["texts"]}
        scripts += [s for s, text in texts.items() if mutant.line in text and f"[{mutant.subject}]" in text]
    return scripts


def named_in_the_table(tag, script):
    """The test of a tag; language models have rows of their own."""
    table = (ROOT / "docs/details.md").read_text()
    rows = re.findall(rf"^\| {tag} \|.*`(\w+)\.py::(\w+)` \|$", table, re.M)
    [file] = [file for scripts, file in TESTS_OF_TEXTS.items() if script in scripts] or [""]
    of_texts = tuple(TESTS_OF_TEXTS.values())
    rows = [row for row in rows if (row[0].startswith(file) if file else not row[0].startswith(of_texts))]
    return "::".join(rows[-1 if script == "reward_model" else 0])


def run_tests(folder, arguments):
    """In a process of its own: pytest in the folder, and its exit code in a file there."""
    os.chdir(folder)
    os.setsid()  # so that all that the tests have started can be ended together
    output = os.open("output.txt", os.O_CREAT | os.O_WRONLY)
    os.dup2(output, 1), os.dup2(output, 2)
    import pytest

    Path("exit_code").write_text(str(int(pytest.main(arguments))))


def survives(case):
    mutant, script = case
    file, name = (mutant.test or named_in_the_table(mutant.subject, script)).split("::")
    ignored = shutil.ignore_patterns(".*", "runs", "wandb", "__pycache__", "site", "exercises")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # something may still write
        copy = Path(shutil.copytree(ROOT, f"{folder}/copy", ignore=ignored))
        path = copy / file_of(script).relative_to(ROOT)
        path.write_text(path.read_text().replace(mutant.line, mutant.broken))
        arguments = [
            "-qx",
            "-m",
            "not slow",
            "-p",
            "no:cacheprovider",
            f"tests/{file}.py",
            "-k",
            name,
            "--script",
            script,
        ]
        process = multiprocessing.get_context("forkserver").Process(
            target=run_tests, args=(copy, [*arguments, f"--basetemp={folder}/tmp"])
        )
        process.start()
        process.join(300)
        with suppress(ProcessLookupError):  # one that hangs is noticed, too
            os.killpg(process.pid, signal.SIGKILL)
        process.join()
        ended = copy / "exit_code"  # 1: tests ran, and one failed; none: something ended them
        code = int(ended.read_text()) if ended.exists() else 1
        if code not in (0, 1):  # no test ran: the row is at fault, which is to be noticed, too
            print((copy / "output.txt").read_text())
        return code != 1


def select(words):
    """Mutants with their scripts: of all tags or those named, in all scripts or those named."""
    cases = [(mutant, script) for mutant in MUTANTS for script in scripts_of(mutant)]
    scripts = {*words} & KNOWN
    tags = {*words} - scripts
    return [
        (mutant, script)
        for mutant, script in cases
        if (not tags or mutant.subject in tags) and (not scripts or script in scripts)
    ]


def describe(case):
    mutant, script = case
    line, broken = (" ".join(text.split()) for text in (mutant.line, mutant.broken))
    return f"{mutant.subject} in {script}: {line}  ->  {broken}"


def attempt(number, case):
    """Whether it survives; prints what is tried, and what came of it. Several run at a time."""
    print(f"{number} {describe(case)}\n", end="", flush=True)
    start = time.perf_counter()
    survived = survives(case)
    verdict = "SURVIVED" if survived else "caught"
    print(f"{number} {verdict} after {time.perf_counter() - start:.0f} s\n", end="", flush=True)
    return survived


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="*", metavar="WORD", help="tags like D08, scripts like ppo_discrete")
    words = parser.parse_args().words
    known = KNOWN | {mutant.subject for mutant in MUTANTS}
    for word in words:
        if word not in known:
            close = difflib.get_close_matches(word, known, 1)
            parser.error(f"{word} is neither a tag nor a script{f'; {close[0]}?' if close else ''}")
    cases = select(words)
    if not cases:
        parser.error(f"there is no mutant of {' '.join(words)}")
    os.environ["OMP_NUM_THREADS"] = "1"
    multiprocessing.get_context("forkserver").set_forkserver_preload(
        ["pytest", "hypothesis", "torch._dynamo", "torch.utils.tensorboard", "gymnasium", "tyro", "moviepy"]
        + ["transformers.models.llama", "transformers.models.gpt2"]
        * any(s in GROUPS["texts"] for _, s in cases)
    )
    start, numbers = time.perf_counter(), [f"[{number}/{len(cases)}]" for number in range(1, len(cases) + 1)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(attempt, numbers, cases))
    survivors = [case for case, survived in zip(cases, results, strict=True) if survived]
    print(*(f"SURVIVED: {describe(case)}" for case in survivors), sep="\n", end="\n" * bool(survivors))
    caught, minutes = len(cases) - len(survivors), (time.perf_counter() - start) / 60
    print(f"{caught} of {len(cases)} mutants caught in {minutes:.1f} minutes")
    return 1 if survivors else 0


if __name__ == "__main__":
    raise SystemExit(main())
