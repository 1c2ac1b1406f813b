"""What language models learn on a CPU, for docs/chat.md and docs/language_runs.md.

    python tools/smollm2.py chat            # the pretrained model
    python benchmarks/chat.py [TASK ...]    # up to 35 minutes of a core for a run; chat.toml has flags
    python benchmarks/chat.py costs         # what an iteration takes, in memory and time

A run that is there is not done again, unless its command has changed. Patched scripts are always written.

results/chat_TASK.csv has a line for each run: the means of its answers to held-out prompts, and the ref_kl of
the last iteration; core_seconds is the time that cores were at work for the run, so a busy machine makes it
no longer, but another processor does. Where the task asks for details, the curve of each run stands above
that line, and results/chat_TASK.jsonl has the answers of seed 1 to the first ten prompts.
Then benchmarks/results.py writes the page.
"""

import json
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
from common import (
    RESULTS,
    ROOT,
    WIDTH,
    Parser,
    find,
    markdown,
    provenance,
    read_dicts,
    read_jsonl,
    replace_once,
    subplots,
    write_rows,
)
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

TABLE = tomllib.loads((ROOT / "benchmarks" / "chat.toml").read_text("utf-8"))
METRICS = [
    "score",
    "exact",
    "finished",
    "length",
    "entropy",
    "ref_kl",
    "accuracy",
    "sampler_gap",
    "turns",
    "calls",
]
HEADS = {
    "score": "score of each seed",
    "calls": "the calculator was asked rightly",
    "ref_kl": "`ref_kl` of the last iteration",
}
COLUMNS = ["method", "seed", "steps", *METRICS, "best_of_8", "core_seconds", "command", "made"]
PATCHED = ROOT / "runs" / "patched"
ROUNDS = 3
ANSWERS = 10  # how many are shown of a run
BEST_OF_8 = 64  # prompts whose answers are compared: 512 answers
FIXED = {"untrained": ":", "imitation": "--"}  # the lines of what learns nothing from its own answers
DRAWN = {"sums": "sums", "people": "JSON", "calls": "calculator", "calculator": "calculator, new model"}
SHOWN = [RESULTS / f"chat_{task}.csv" for task in DRAWN]


def methods(task: str) -> dict[str, dict[str, str]]:
    """The runs of a task, by the names of their methods."""
    return {name: run for name, run in TABLE["tasks"][task].items() if isinstance(run, dict)}


def command(task: str, method: str) -> str:
    """A run as one types it, but for its seed."""
    own, run = TABLE["tasks"][task], methods(task)[method]
    return " ".join(f"{run['script']} {own['model']} {own['flags']} {run['flags']}".split())


def seeds(task: str, method: str) -> list[int]:
    """The seeds of a run. One is enough for what a pretrained model is before it learns."""
    found = TABLE["tasks"][task].get("seeds", TABLE["seeds"])
    return found[:1] if method.startswith("untrained") else found


def csv_path(task: str) -> Path:
    """Where the results of a task are."""
    return RESULTS / f"chat_{task}.csv"


def curve(folder: Path) -> list[dict[str, float]]:
    """The metrics of a run, iteration by iteration."""
    events = EventAccumulator(str(folder)).Reload()
    rows: dict[int, dict[str, float]] = {}
    for name in set(METRICS) & set(events.Tags()["scalars"]):
        for event in events.Scalars(name):
            rows.setdefault(event.step, {"steps": event.step})[name] = event.value
    return [rows[step] for step in sorted(rows)]


def measure(task: str, method: str, seed: int) -> None:
    """Do a run, and add it to the results, in the place of one with another command."""
    own, folder = TABLE["tasks"][task], ROOT / "runs" / "chat" / f"{task}__{method}__{seed}".replace(" ", "_")
    made = provenance(["torch", "transformers", "numpy"])
    for program in own.get("before", []):
        subprocess.run([sys.executable, *program.split()], cwd=ROOT, check=True)
    words = [sys.executable, *command(task, method).split(), "--seed", str(seed), "--run-dir", str(folder)]
    shutil.rmtree(folder, ignore_errors=True)  # one that was not finished
    core_seconds, _ = spend(words)
    found = read_jsonl(folder / "completions.jsonl")
    learned = curve(folder)
    last = {name: float(np.mean([answer[name] for answer in found])) for name in ("score", "exact")}
    last |= {"steps": "evaluation", "ref_kl": learned[-1].get("ref_kl", ""), "core_seconds": core_seconds}
    if method == "untrained":
        last["best_of_8"] = best_of_8(folder)
    if "turns" in found[0]:
        last["calls"] = float(np.mean([asked_rightly(answer) for answer in found]))
    last["command"] = command(task, method)
    rows = [*(learned if own.get("details", True) else []), last]
    rows = [{"method": method, "seed": seed, "made": made} | row for row in rows]
    rows = [{k: f"{x:.4g}" if isinstance(x, float) else x for k, x in row.items()} for row in rows]
    if seed == 1 and own.get("details", True):
        keep_answers(task, method, found[:ANSWERS])
    others = [x for x in read_dicts(csv_path(task)) if (x["method"], x["seed"]) != (method, str(seed))]
    rows = [[row.get(name, "") for name in COLUMNS] for row in others + rows]
    write_rows(csv_path(task), COLUMNS, rows)  # it says that the run is finished, so it comes last
    print(task, method, seed, last, flush=True)


def keep_answers(task: str, method: str, found: list[dict]) -> None:
    """Put the answers of a method in the place of older ones."""
    path = csv_path(task).with_suffix(".jsonl")
    old = read_jsonl(path) if path.exists() else []
    rows = [answer for answer in old if answer["method"] != method]
    rows += [{"method": method} | answer for answer in found]
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    path.write_text("".join(lines), "utf-8")


def patched(name: str) -> str:
    """A script with a patch of docs/recipes applied, or an edit of docs/language.md."""
    patch = ROOT / "docs" / "recipes" / f"{name}.patch"
    if patch.exists():
        script = re.findall(r"^--- a/(.*)", patch.read_text("utf-8"))[0]
        words = ["patch", "--quiet", "--output=-", script, str(patch)]
        return subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    page = (ROOT / "docs" / "language.md").read_text("utf-8")
    [edit] = re.findall(rf"^```diff {name}\n(.*?)^```", page, re.M | re.S)
    lines = edit.splitlines(keepends=True)
    old, new = ("".join(line[1:] for line in lines if line[0] == sign) for sign in "-+")
    return replace_once((ROOT / "variants" / "grpo.py").read_text("utf-8"), old, new, "grpo.py")


def make_patched(script: str) -> None:
    """Write a script of the folder PATCHED; others are there."""
    path = ROOT / script
    if path.parent == PATCHED:
        PATCHED.mkdir(parents=True, exist_ok=True)
        path.write_text(patched(path.stem), "utf-8")


def best_of_8(folder: Path) -> float:
    """The best scores of the groups of a run that learns nothing, in the mean."""
    found = [answer["score"] for path in folder.glob("answers_*.jsonl") for answer in read_jsonl(path)]
    return float(np.reshape(found, (-1, 8)).max(1).mean())


def spend(words: list[str]) -> tuple[float, float]:
    """Run a program. Returns the seconds that cores were at work for it, and its peak memory in MiB.

    Linux counts the memory of this program, too, from before the other one took its place.
    """
    process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL)
    _, status, spent = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"chat.py: {' '.join(words)} has failed")
    return spent.ru_utime + spent.ru_stime, spent.ru_maxrss / 1024


def measure_costs() -> None:
    """Seconds of the second and third iteration of each row, and its memory: in turn, in three rounds."""
    own, folder = TABLE["costs"], ROOT / "runs" / "costs"
    # In a process of its own: Linux counts this one's memory, too, from before another takes its place.
    helper = multiprocessing.get_context("spawn").Process(target=prepare_costs, args=(folder,))
    helper.start()
    helper.join()
    if helper.exitcode:
        raise SystemExit("chat.py: what costs needs could not be written")
    made = provenance(["torch", "transformers", "numpy"])
    rows = []
    for number in range(ROUNDS):
        for row, command in own["rows"].items():
            shutil.rmtree(folder / "run", ignore_errors=True)
            words = f"{command} {own['flags']} --run-dir {folder / 'run'}".split()
            _, memory = spend([sys.executable, *words])
            events = EventAccumulator(str(folder / "run")).Reload().Scalars("score")
            seconds = np.diff([event.wall_time for event in events]).mean()
            rows.append([row, number + 1, f"{seconds:.4g}", f"{memory:.4g}", made])
            print(*rows[-1], flush=True)
    write_rows(csv_path("costs"), ["row", "round", "seconds", "MiB", "made"], rows)


def prepare_costs(folder: Path) -> None:
    """Write what costs needs: patched scripts, and a judge, as large as a trained one."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    (folder / "judge").mkdir(parents=True, exist_ok=True)
    for command in TABLE["costs"]["rows"].values():
        make_patched(command.split()[0])
    judge = AutoModelForSequenceClassification.from_pretrained(ROOT / "chat" / "model", num_labels=1)
    judge.save_pretrained(folder / "judge")
    AutoTokenizer.from_pretrained(ROOT / "chat" / "model").save_pretrained(folder / "judge")


def costs() -> str:
    """What an iteration of each script takes: the seconds of each round, and the median of its memory."""
    rows, found = [], read_dicts(csv_path("costs"))
    for row, command in TABLE["costs"]["rows"].items():
        mine = [x for x in found if x["row"] == row]
        seconds = [float(x["seconds"]) for x in mine]
        memory = f"{np.median([float(x['MiB']) for x in mine]):,.0f}"
        shown = ", ".join(f"{x:.0f}" for x in seconds)
        rows.append([row, f"`{command}`", shown, memory])
    return markdown(["", "command", "seconds of an iteration", "peak memory (MiB)"], rows)


def asked_rightly(answer: dict) -> bool:
    """Whether the calculator was asked for the sum of the prompt."""
    numbers, (asked, *replies) = re.compile(r"\d+"), answer["turns"]
    return bool(replies) and numbers.findall(asked) == numbers.findall(asked_of(answer))


def asked_of(answer: dict) -> str:
    """The prompt of an answer, without a system message."""
    prompt = answer["prompt"]
    return prompt if isinstance(prompt, str) else prompt[-1]["content"]


def evaluations(task: str, method: str) -> list[dict[str, str]]:
    """The last lines of a method's runs, if they were made by the command that chat.toml has now."""
    rows = [x for x in read_dicts(csv_path(task)) if (x["method"], x["steps"]) == (method, "evaluation")]
    return [row for row in rows if row["command"] == command(task, method)]


def ends(task: str, method: str, column: str) -> list[float]:
    """A number of the evaluation, of each seed that is there."""
    rows = evaluations(task, method)
    return [float(row[column]) for row in sorted(rows, key=lambda row: int(row["seed"])) if row.get(column)]


def scores(task: str, *columns: str) -> str:
    """What the runs of a task end with, each seed and the mean: the score, or the columns that are named."""
    columns = columns or ("score",)
    own, lines = TABLE["tasks"][task], []
    shared = f"{own['model']} {own['flags']}" if own["model"] else ""
    for method, run in methods(task).items():
        if not ends(task, method, columns[0]):
            continue  # it is still to be done
        words = [run["script"], run["flags"]] if shared else ["python", command(task, method)]
        cells = [method, f"`{' '.join(words)}`"]
        lines.append(cells + [cell for name in columns for cell in seeds_and_mean(ends(task, method, name))])
        if columns == ("score",) and (best := ends(task, method, "best_of_8")):
            name = f"untrained, the best of 8 answers to each of {BEST_OF_8} training prompts"
            lines.append([name, "the same run", *seeds_and_mean(best)])
    heads = [head for name in columns for head in (HEADS[name], "mean")]
    found = markdown(["", "script, and its own flags" if shared else "command", *heads], lines)
    return f"{found}\n\nBefore its own flags, each script takes `{shared}`." if shared else found


def seeds_and_mean(found: list[float]) -> list[str]:
    """Two cells of a table."""
    return [", ".join(f"{x:.3f}" for x in found), f"{np.mean(found):.3f}"]


def answers(task: str, *chosen: str) -> str:
    """The first ten held-out prompts, with the answers of the chosen methods, seed 1."""
    there = [name for name in chosen if "1" in {row["seed"] for row in evaluations(task, name)}]
    lines = {}
    for answer in read_jsonl(csv_path(task).with_suffix(".jsonl")):
        said = answer.get("turns") or answer["completion"]
        lines.setdefault(asked_of(answer), {})[answer["method"]] = code(repr(said))
    rows = [[prompt, *(cells.get(name, "") for name in there)] for prompt, cells in lines.items()]
    return markdown(["prompt", *there], rows)


def code(text: str) -> str:
    """A text as code in a cell of a table, whatever it has of the marks that end code or cells."""
    ticks = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{ticks}{text}{ticks}".replace("|", "\\|")


def edits() -> str:
    """How many lines each patch and each fork of a script changes."""
    rows = []
    for path, words in TABLE["edits"].items():
        if path.endswith(".patch"):
            lines = (ROOT / "docs" / path).read_text("utf-8").splitlines()[2:]
            [script] = re.findall(r"^--- a/(.*)", (ROOT / "docs" / path).read_text("utf-8"))
            added, removed = (sum(line.startswith(sign) for line in lines) for sign in "+-")
        else:
            script = "variants/grpo.py"
            pair = [str(ROOT / script), str(ROOT / "docs" / path)]
            done = subprocess.run(["git", "diff", "--no-index", "--numstat", *pair], capture_output=True)
            added, removed, _ = done.stdout.decode().split(maxsplit=2)
        rows.append([f"[`{Path(path).name}`]({path})", f"`{script}`", f"+{added} −{removed}", words])
    return markdown(["", "changes", "lines", "what it does"], rows)


def learns(run: dict[str, str]) -> bool:
    """Whether it learns from its own answers."""
    return "--learning-rate 0 " not in f"{run['flags']} "


def curve_of(task: str, method: str, seed: int) -> list[tuple[int, float]]:
    """Answers so far and their score, of a run that learns from its answers; DPO's have none."""
    if str(seed) not in {row["seed"] for row in evaluations(task, method)}:
        return []
    rows = [x for x in read_dicts(csv_path(task)) if (x["method"], x["seed"]) == (method, str(seed))]
    return [(int(x["steps"]), float(x["score"])) for x in rows if x["steps"] != "evaluation" and x["score"]]


def draw(theme: dict):
    """Of each task, the scores of the answers that are learned from, beside those of two fixed models."""
    figure, grid = subplots(1, len(DRAWN), (WIDTH, 2.6), "constrained", sharey=True)
    for axes, (task, title) in zip(grid, DRAWN.items(), strict=True):
        learning = [name for name, run in methods(task).items() if learns(run) and curve_of(task, name, 1)]
        for method, colour in zip(learning, ("ours", "other"), strict=False):
            for seed in seeds(task, method):
                rows = curve_of(task, method, seed)
                if not rows:
                    continue  # it is still to be done
                label = method if seed == 1 else None
                axes.plot(*zip(*rows, strict=True), color=theme[colour], lw=1, alpha=0.8, label=label)
        for method, dashes in FIXED.items():
            found = ends(task, method, "score") if method in methods(task) else []
            if found:
                axes.axhline(np.mean(found), color=theme["muted"], ls=dashes, lw=1, label=method)
        axes.set_title(title, color=theme["ink"], size=7, loc="left")
        axes.set_xlabel("answers so far", color=theme["muted"], size=7)
        axes.legend(fontsize=6, frameon=False, labelcolor=theme["ink"])
        axes.set_facecolor(theme["page"])
        axes.set_ylim(0, 1.02)
        axes.locator_params(axis="x", nbins=4)
        axes.tick_params(colors=theme["muted"], labelsize=7, length=0)
        axes.grid(color=theme["grid"], lw=0.8)
        axes.spines[:].set_visible(False)
    return figure


def table(what: str, *words: str) -> str:
    """What results.py puts between its markers."""
    return {"scores": scores, "answers": answers, "costs": costs, "edits": edits}[what](*words)


def main() -> None:
    """Do all runs of the named tasks that are missing, or of all."""
    parser = Parser(__doc__)
    parser.add_argument("tasks", nargs="*", default=[*TABLE["tasks"]], metavar="TASK")
    for task in parser.parse_args().tasks:
        if task == "costs":
            measure_costs()
            continue
        find(TABLE["tasks"], task, "task")
        for seed in TABLE["tasks"][task].get("seeds", TABLE["seeds"]):
            for method, run in methods(task).items():
                make_patched(run["script"])
                there = {int(row["seed"]) for row in evaluations(task, method)}
                if seed in seeds(task, method) and seed not in there:
                    measure(task, method, seed)
        place = csv_path(task).relative_to(ROOT)
        print(f"{task}: all runs are in {place}; those that are deleted there are made anew")


if __name__ == "__main__":
    main()
