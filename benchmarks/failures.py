"""Runs that are healthy, and runs that are broken on purpose: what does tools/diagnose.py say of them?

    python benchmarks/failures.py    # the runs of failures.toml, one a core, in runs/failures/

Runs that are there are not repeated. When all are there, they are diagnosed; what was said is in
results/failures.csv, and in docs/diagnose.md by benchmarks/results.py.
"""

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from common import (
    RESULTS,
    ROOT,
    Parser,
    diagnose,
    markdown,
    read_rows,
    refuse,
    replace_once,
    sweep,
    write_rows,
)

FOLDER = ROOT / "runs/failures"
CSV = RESULTS / "failures.csv"


def read_table() -> list[tuple[dict, Path]]:
    """Each run with its folder, which has what it is in its name, and a fingerprint."""
    runs = []
    table = tomllib.loads((ROOT / "benchmarks/failures.toml").read_text())
    entries = [
        (split, rule, entry) for split, rules in table.items() for rule in rules for entry in rules[rule]
    ]
    for split, rule, entry in entries:
        for seed in entry["seeds"]:
            run = entry | {"seed": seed}
            del run["seeds"]
            run |= {"rule": rule} if rule != "healthy" else {}
            run |= {"held_out": True} if split == "held_out" else {}
            fingerprint = hashlib.sha256(json.dumps(run, sort_keys=True).encode()).hexdigest()[:6]
            name = f"{run.get('rule', 'healthy')}-{Path(run['script']).stem}-{run.get('env', 'sorting')}"
            runs.append((run, FOLDER / f"{name}-{seed}-{fingerprint}"))
    return runs


def command(run: dict, folder: Path) -> list[str]:
    """The command line of a run, of an edited copy of the script if it has an edit."""
    script = ROOT / run["script"]
    if "edit" in run:
        text = replace_once(script.read_text(), *run["edit"], script.name)
        script = FOLDER / "edited" / folder.name / script.name
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(text)
    line = [sys.executable, str(script), "--run-dir", str(folder), "--eval-episodes", "0"]
    if "changed" in run:
        kwargs = json.dumps({"env": run["env"]} | run["changed"])
        line += ["--env-id", "failing:Changed-v0", "--env-kwargs", kwargs]
    elif "env" in run:
        line += ["--env-id", run["env"]]
    return [*line, "--seed", str(run["seed"]), *shlex.split(run.get("flags", ""))]


def log_of(folder: Path) -> Path:
    return folder.parent / f"{folder.name}.log"


def is_done(folder: Path) -> bool:
    """Whether a run has ended by itself."""
    log = log_of(folder)
    return log.exists() and log.read_text().rpartition("\n")[2].startswith("exit code")


def make(run: dict, folder: Path) -> None:
    """Do a run, unless it was done. That it ends with an error may be what is wrong with it."""
    if is_done(folder):
        return
    shutil.rmtree(folder, ignore_errors=True)
    FOLDER.mkdir(parents=True, exist_ok=True)
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "benchmarks")}
    with log_of(folder).open("w") as file:
        code = subprocess.run(command(run, folder), env=env, stdout=file, stderr=file, cwd=ROOT).returncode
        if code >= 0:  # what was killed is not done
            file.write(f"\nexit code {code}")
    print(f"{folder.name}: exit code {code}", flush=True)


def judge(runs: list[tuple[dict, Path]]) -> None:
    """Write what is said of each run, the worst first."""
    rows = []
    for run, folder in runs:
        split = "held_out" if run.get("held_out") else "chosen_by"
        found = [rule.__name__ for rule, _ in diagnose.diagnose(diagnose.read_run(folder))]
        rows.append([split, run.get("rule", ""), folder.name, " ".join(found)])
    write_rows(CSV, ["split", "broken_by", "run", "said"], rows)


def read_said(split: str) -> dict[str, list[str]]:
    """What the first two lines say of each run, by the rule that it was broken for ("" if it is healthy)."""
    said = {}
    for row in read_rows(CSV):
        if row[0] == split:
            said.setdefault(row[1], []).append(", ".join(row[3].split()[:2]))
    return said


def count_named(said: dict[str, list[str]]) -> str:
    """A row for each kind of failure: how often it was named, and what was said instead."""
    rows = []
    for rule, answers in said.items():
        if rule:
            named = [answer for answer in answers if rule in answer.split(", ")]
            first = sum(answer.split(", ")[0] == rule for answer in answers)
            others = Counter(answer or "nothing" for answer in answers if answer not in named)
            others = ", ".join(f"{answer} ({count})" for answer, count in others.items())
            rows.append([rule, f"{len(answers)}", f"{len(named)}", f"{first}", others])
    broken = {rule: answers for rule, answers in said.items() if rule}
    total = sum(map(len, broken.values()))
    named = sum(rule in answer.split(", ") for rule, answers in broken.items() for answer in answers)
    accused = Counter(answer for answer in said[""] if answer)
    others = ", ".join(f"{answer} ({count})" for answer, count in accused.items())
    rows.append(["**all of these**", f"{total}", f"{named}", "", ""])
    rows.append(["nothing: healthy", f"{len(said[''])}", f"{accused.total()} accused", "", others])
    return markdown(["broken by", "runs", "named", "named first", "else"], rows)


def rules() -> str:
    """A row for each rule, from its docstring."""
    rows = ([f"`{rule.__name__}`", *diagnose.explain(rule)] for rule in diagnose.RULES)
    return markdown(["rule", "what it says", "what to try", "source"], rows)


def table(what: str) -> str:
    """The rules, or what was said of the runs that are held out, or of those that are not."""
    return rules() if what == "rules" else count_named(read_said(what))


if __name__ == "__main__":
    Parser(__doc__).parse_args()
    runs = read_table()
    with ThreadPoolExecutor(sweep.cores()) as pool:
        list(pool.map(lambda run: make(*run), runs))
    if left := [folder.name for _, folder in runs if not is_done(folder)]:
        refuse(f"{len(left)} runs were killed, the first is {left[0]}; the same command goes on")
    judge(runs)
