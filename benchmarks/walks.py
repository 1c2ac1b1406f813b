"""Record one iteration of each script, statement by statement, for the reading room: docs/site/assets/walks/.

    python benchmarks/walks.py                  # all of them, in some minutes
    python benchmarks/walks.py ppo_discrete     # this one

The scripts train as they always do, on rollouts that are small enough to be shown. Python's tracing tells
which statement has run; a step is a statement, and what it has changed among the local variables.
"""

import ast
import importlib
import json
import re
import shlex
import sys
import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
import tyro
from common import ROOT, Parser, find, markdown
from torch.distributions import Categorical, Distribution, Independent

OUT = ROOT / "docs/site/assets/walks"
TABLE = ROOT / "benchmarks/walks.toml"
WALKED = r"train|complete|compute_gae|compute_gradients|group_advantages|improve|conjugate_gradients|\w+_loss"
CLOCKS = ("began", "sampling_seconds")  # variables that differ from run to run
LARGE = 500  # numbers: a larger array is told by its shape and range


def numbers(value) -> np.ndarray | None:
    """The value as an array of numbers, if it is one, or a list of numbers."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().numpy().copy()
    if isinstance(value, list):
        if not value or not all(isinstance(x, (np.ndarray, np.generic, float, int)) for x in value):
            return None
        if len({np.shape(x) for x in value}) > 1:
            return None
    elif not isinstance(value, (np.ndarray, np.generic, float, int)):
        return None
    array = np.array(value)
    return array if array.dtype.kind in "bif" else None


def arrays(name: str, value) -> dict[str, np.ndarray]:
    """The numbers of a variable by name, those of what it consists of by theirs."""
    if isinstance(value, Independent):
        return arrays(name, value.base_dist)
    if isinstance(value, Categorical):
        return arrays(f"{name}.probs", value.probs)
    if isinstance(value, Distribution):
        return arrays(f"{name}.mean", value.mean) | arrays(f"{name}.stddev", value.stddev)
    parts = value._asdict() if hasattr(value, "_asdict") else value
    if isinstance(parts, dict):
        if parts is value and any(np.ndim(part) for part in parts.values()):
            return {}  # all weights, say
        found = {}
        for key, part in parts.items():
            found |= arrays(f"{name}.{key}", part)
        return found
    array = numbers(value)
    return {} if array is None else {name: array}


class Recorder:
    """What sys.settrace calls while a script trains; it keeps the steps of one iteration."""

    def __init__(self, module, iteration: int):
        self.path = module.__file__
        self.iteration = iteration
        source = Path(self.path).read_text()
        self.rows = source.splitlines()
        self.fold = self.find("# That was the algorithm")  # what is below is not followed
        self.log = self.find("        # log")
        self.statements = {}  # line -> first and last line of its statement, or of its head
        self.targets = {}  # statement -> names of the variables that it assigns, or assigns to a part of
        self.bodies = {}  # head of a loop or a branch -> first and last line of what is inside
        self.loops = []  # (variable, first and last line) of each for loop
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.stmt) and node.lineno < self.fold:
                self.read_statement(node)
        [self.iterations] = [first for name, first, _ in self.loops if name == "iteration"]
        self.train = None  # its frame
        self.recording = False
        self.before = {}  # frame -> its variables before the statement that runs
        self.running = {}  # frame -> that statement
        self.steps, self.values, self.places = [], {}, {}

    def find(self, beginning: str) -> int:
        """The number of the first line that begins so."""
        return next(n for n, row in enumerate(self.rows, 1) if row.startswith(beginning))

    def read_statement(self, node: ast.stmt) -> None:
        """Remember where a statement is; of one with others inside, its head."""
        body = getattr(node, "body", None)
        last = body[0].lineno - 1 if body else node.end_lineno
        while last > node.lineno and self.rows[last - 1].strip().startswith(("#", '"""')):
            last -= 1  # a comment between the head and its body
        head = node.lineno, max(node.lineno, last)
        self.statements |= dict.fromkeys(range(head[0], head[1] + 1), head)
        names = [x for target in targets(node) for x in ast.walk(target) if isinstance(x, ast.Name)]
        self.targets[head] = {x.id for x in names}
        if isinstance(node, (ast.For, ast.If, ast.While)):
            self.bodies[head] = body[0].lineno, body[-1].end_lineno
        if isinstance(node, ast.For):
            self.loops.append((ast.unparse(node.target), node.lineno, node.end_lineno))

    def watch(self, frame, event, _):
        """For each function that is called: whether its lines are followed."""
        code = frame.f_code
        if code.co_filename != self.path or not re.fullmatch(WALKED, code.co_qualname):
            return None
        if code.co_name == "train":
            self.train = frame
        elif not self.recording or self.running.get(frame.f_back) is None:
            return None
        else:
            self.before[frame] = {}
            self.add(frame, self.statements[code.co_firstlineno])
        return self.follow

    def follow(self, frame, event, returned):
        """For each line that is to run, and at the end."""
        line = frame.f_lineno
        if frame is self.train:
            self.begin_or_end(line)
        if not self.recording:
            return self.follow
        statement = self.statements.get(line, (line, line))
        if event == "return":
            self.finish(frame, line, {"returned": returned})
            del self.before[frame]
            self.running.pop(frame, None)
        elif event == "line" and self.running.get(frame) != statement:
            self.finish(frame, line)
            self.running[frame] = statement
        return self.follow

    def begin_or_end(self, line: int) -> None:
        """Recording begins where the iteration does, and ends where it logs."""
        frame = self.train
        if line >= self.log:
            if self.recording:
                self.finish(frame, line)
            self.recording = False
        elif line != self.iterations and frame.f_locals.get("iteration") == self.iteration:
            if not self.recording:
                self.before[frame] = self.variables(frame)
                self.running[frame] = None
            self.recording = True

    def finish(self, frame, line: int, more=None) -> None:
        """The statement that ran in this frame is a step; line is the next one that does."""
        statement = self.running.get(frame)
        if not statement:
            return
        goes_in = None
        if statement in self.bodies:
            first, last = self.bodies[statement]
            goes_in = first <= line <= last
        self.add(frame, statement, more, goes_in)

    def variables(self, frame) -> dict[str, np.ndarray]:
        found = {}
        for name, value in frame.f_locals.items():
            if not name.startswith("_") and name not in CLOCKS:
                found |= arrays(name, value)
        return found

    def add(self, frame, statement: tuple, more=None, goes_in=None) -> None:
        """A step: what it assigned, or what else has changed since the frame's last one.

        goes_in says whether a loop or a branch has gone inside.
        """
        before, now = self.before[frame], self.variables(frame)
        assigned = self.targets.get(statement, ())
        changed = {}
        for name, x in now.items() if goes_in is not False else ():
            whole, _, part = name.partition(".")
            if part in ("tokens", "attended") or whole in ("tokens", "attended"):
                continue  # words stand over the other tables
            is_made = whole in assigned
            if not assigned:  # else what has changed, too, shares its memory with what is assigned
                is_made = not same(before.get(name), x)
            if is_made:
                changed[name] = x
        self.before[frame] = now
        for name, value in (more or {}).items():
            parts = value if type(value) is tuple else [value]
            for part in parts:
                changed |= arrays(name, part)
        made = []
        for name, x in changed.items():
            made.append([name, self.value(x, before.get(name)), self.place(frame, x.shape)])
        self.steps.append([*statement, made, frame.f_code.co_name, goes_in])

    def value(self, array: np.ndarray, old: np.ndarray | None = None) -> int:
        """The number of a value in the list of all: its shape, and its numbers to four digits.

        Of one that was old before, and has changed in a few places, only these are told.
        """
        told = [rounded(x) for x in array.flatten().tolist()]
        if array.size > LARGE:
            told = [rounded(float(x)) for x in (array.min(), array.mean(), array.max())]
        entry = [list(array.shape), told]
        if old is not None and old.shape == array.shape and 8 < array.size <= LARGE:
            earlier = [rounded(x) for x in old.flatten().tolist()]
            changes = [[i, x] for i, x in enumerate(told) if x != earlier[i]]
            if 3 * len(changes) < array.size:
                entry = [self.value(old), changes]
        return self.values.setdefault(json.dumps(entry), len(self.values))

    def inside(self, frame, variable: str):
        """The value of a loop's variable, if the frame is in that loop."""
        for name, first, last in self.loops:
            if name == variable and first < frame.f_lineno <= last:
                return frame.f_locals.get(name)
        return None

    def place(self, frame, shape: tuple) -> int:
        """The number of a list in the list of all: which sample each row of an array is of; -1: of none."""
        rows = self.samples(frame, shape)
        if rows is None:
            return -1
        return self.places.setdefault(json.dumps(np.asarray(rows).flatten().tolist()), len(self.places))

    def samples(self, frame, shape: tuple):
        """Which sample each row of an array of this shape is of, or None; the sizes of a walk all differ."""
        known = self.train.f_locals
        idx = self.inside(self.train, "idx")
        if idx is not None:
            idx = np.asarray(idx)
        if "pairs" in known:
            return self.samples_of_pairs(known["N"], shape, idx)
        if "max_new_tokens" in vars(known["args"]):
            return self.samples_of_answers(known, shape, idx)
        T, N = known["T"], known["N"]
        every = np.arange(T * N).reshape(T, N)
        t = self.inside(frame, "t")
        if t is None:
            t = self.inside(self.train, "t")
        if shape[:2] == (T, N):
            return every
        if shape[:2] == (T + 1, N):
            return [*every.flatten(), *[-1] * N]
        if shape[:1] == (T * N,):
            return every
        if idx is not None and len(idx) < N and shape[:2] == (T, len(idx)):  # all steps of some envs
            return every[:, idx]
        if idx is not None and shape[:1] == (len(idx),):
            return idx
        if t is not None and shape[:1] == (N,):
            return every[t]
        return None

    def samples_of_pairs(self, N: int, shape: tuple, idx):
        """Each of a pair's two answers is a sample; a pair as a whole is its first one."""
        every = np.arange(2 * N).reshape(N, 2)
        if shape[:2] == (N, 2):
            return every
        if idx is not None and shape[:2] == (len(idx), 2):
            return every[idx]
        if idx is not None and shape == (len(idx),):
            return every[idx, 0]
        return None

    def samples_of_answers(self, known: dict, shape: tuple, idx):
        """Each token of each answer is a sample; an answer as a whole is its first one."""
        batch = known.get("batch")
        mask = known.get("mask", getattr(batch, "mask", None))
        if mask is None or mask.ndim != 2:
            return None
        mask = mask.numpy()
        N, L = mask.shape
        every = np.arange(N * L).reshape(N, L)
        if shape == (N, L):
            return every
        if shape == (L, N):
            return every.T
        if shape[:1] == (N,) and len(shape) == 1:
            return every[:, 0]
        if idx is None:
            return None
        if shape == (len(idx), L):
            return every[idx]
        if shape == (mask[idx].sum(),):
            return every[idx][mask[idx]]
        if shape == (len(idx),):
            return every[idx, 0]
        return None


def rounded(x: float) -> float | int | str:
    if not np.isfinite(x):
        return str(x)
    x = float(f"{x:.4g}")
    return int(x) if x == int(x) else x


def targets(node: ast.stmt) -> list[ast.expr]:
    """What a statement assigns to, without the places in it: obs of obs[t + 1]."""
    if isinstance(node, ast.Assign):
        found = [x for target in node.targets for x in getattr(target, "elts", [target])]
    else:
        found = [node.target] if isinstance(node, (ast.AugAssign, ast.For)) else []
    return [x.value if isinstance(x, ast.Subscript) else x for x in found]


def same(a: np.ndarray | None, b: np.ndarray) -> bool:
    return a is not None and a.shape == b.shape and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")


def record(name: str, iteration: int, flags: str) -> dict:
    """One iteration, counted from 0, of a script with these flags."""
    [path] = [*ROOT.glob(f"{name}.py"), *ROOT.glob(f"variants/{name}.py")]
    sys.path.insert(0, str(path.parent))
    module = importlib.import_module(name)
    args = tyro.cli(module.Args, args=shlex.split(flags))
    recorder = Recorder(module, iteration)
    with TemporaryDirectory() as folder:
        args.run_dir = f"{folder}/run"
        sys.settrace(recorder.watch)
        try:
            module.train(args, on_iteration=lambda _: bool(recorder.steps))
        finally:
            sys.settrace(None)
    lines = {line for first, last, *_ in recorder.steps for line in range(first, last + 1)}
    walk = {"script": name, "flags": flags, "iteration": iteration, "steps": recorder.steps}
    walk["rows"] = {line: recorder.rows[line - 1].strip() for line in sorted(lines)}
    for part in ("values", "places"):
        walk[part] = [json.loads(key) for key in getattr(recorder, part)]
    known = recorder.train.f_locals
    if "tokens" in known:
        decode = known["agent"].tokenizer.decode
        answers = known["tokens"][:, -known["mask"].shape[1] :].tolist()
        walk["words"] = [[decode([token]) for token in row] for row in answers]
        walk["prompts"] = [problem["prompt"] for problem in known.get("problems", [])]
    elif "pairs" in known:
        batch, decode = known["batch"], known["agent"].tokenizer.decode
        rows = zip(batch.tokens.flatten(0, 1), batch.attended.flatten(0, 1), strict=True)
        walk["texts"] = [decode(tokens[attended]) for tokens, attended in rows]
    elif "T" in known:
        walk["size"] = [known["T"], known["N"]]
    return walk


def unpack(walk: dict, number: int) -> np.ndarray:
    """An array of a walk, which has all its numbers, or those that differ from another array."""
    first, rest = walk["values"][number]
    if isinstance(first, list):
        return np.reshape([float(x) for x in rest], first)  # some are "nan", or "inf"
    array = unpack(walk, first).copy()
    for place, x in rest:
        array.flat[place] = x
    return array


def first(walk: dict, function: str, name: str) -> np.ndarray | None:
    """What a variable of a function was when it first had numbers; None if it never did."""
    changes = [change for _, _, changes, where, _ in walk["steps"] for change in changes if where == function]
    found = [number for changed, number, _ in changes if changed == name]
    return unpack(walk, found[0]) if found else None


def answer(walk: dict, row: int) -> str:
    """An answer of a walk, token by token, as a table: what its tokens were worth, and what they get."""
    found = {
        "reward": first(walk, "compute_gae", "rewards"),
        "value": first(walk, "compute_gae", "values"),
        "TD error": first(walk, "compute_gae", "advantages"),
    }
    found = {name: array.T for name, array in found.items() if array is not None}
    found["advantage"] = first(walk, "train", "batch.advantages")
    length = int(first(walk, "train", "batch.mask")[row].sum())
    rows = [[name, *(f"{x:.2f}" for x in array[row][:length])] for name, array in found.items()]
    return markdown([walk["prompts"][row], *(f"`{word}`" for word in walk["words"][row][:length])], rows)


def table(name: str, *rows: str) -> str:
    """What results.py puts between its markers: these answers of a walk, counted from 1."""
    text = (OUT / f"{name}.js").read_text("utf-8")
    walk = json.loads(text.partition("] = ")[2].rstrip(";\n"))
    return "\n\n".join(answer(walk, int(row) - 1) for row in rows)


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("names", nargs="*", metavar="SCRIPT", help="scripts of walks.toml; default: all")
    parser.add_argument("--out", type=Path, default=OUT, help="where they go")
    args = parser.parse_args()
    table = tomllib.loads(TABLE.read_text())
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.names or table:
        walk = record(name, **find(table, name, "walk"))
        text = json.dumps(walk, separators=(",", ":"), ensure_ascii=False)
        (args.out / f"{name}.js").write_text(f'(globalThis.WALKS ??= {{}})["{name}"] = {text};\n')
        print(f"{name}: {len(walk['steps'])} steps, {len(text) / 1000:.0f} kB")


if __name__ == "__main__":
    main()
