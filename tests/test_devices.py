"""Every script on an accelerator, a pretended one that is as strict as a real one: see accelerator.py.

It is in a process of its own, for other tests must not see it.
"""

import ast
import contextlib
import importlib
import io
import itertools
import math
import multiprocessing
import re
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path

import accelerator
import numpy as np
import pytest
import torch
from conftest import ATARI, ROOT, Stopped, each_of, name_of, with_toys
from every import GAMES, LANGUAGE, small_args
from test_operations import checkpoint
from torch.utils._pytree import tree_leaves

from variants import dpo, ppo_tensor_envs

ALL = [*GAMES, *LANGUAGE, dpo]
script = each_of(ALL)
RUNS = {}  # {script: args of its run on the CPU}, which tests only read


# ---- what a process does, with the device or without


def start_process():
    """Give a process the device, and toys to the scripts of Atari."""
    accelerator.register()
    for script in ATARI:
        script.make_envs = with_toys(script)


def train(name, flags, saves=math.inf):
    """Train, until there were so many saves -> what was printed, and what was copied."""
    script, calls = importlib.import_module(name), itertools.count(1)
    save = script.save

    def stopping(*args):
        save(*args)
        if next(calls) == saves:
            raise Stopped

    accelerator.copies.clear()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as output:
        patch.setattr(script, "save", stopping)
        if script is ppo_tensor_envs:  # short episodes, so that saves may be close to each other
            patch.setattr(script.CartPole, "time_limit", 3)
        with contextlib.suppress(Stopped):
            script.train(script.Args(**flags))
    return output.getvalue(), accelerator.copies


def evaluate(name, *flags):
    """What --evaluate prints, and what was copied."""
    script, argv = importlib.import_module(name), sys.argv
    accelerator.copies.clear()
    sys.argv = [script.__file__, *flags]
    try:
        with contextlib.redirect_stdout(io.StringIO()) as output:
            script.main()
    finally:
        sys.argv = argv
    return output.getvalue(), accelerator.copies


PARTS = {  # of an iteration, which are done more than once
    "range(T)": "step",
    "range(agent.args.max_new_tokens)": "step",
    "range(num_steps)": "step",
    "timeout.any()": "time limit",
    "range(args.update_epochs)": "epoch",
    "range(args.critic_epochs)": "epoch",
    "range(iters)": "conjugate gradient",
    "range(args.backtracks)": "line search",
}


COLUMNS = {  # of the table in docs/performance.md
    "a step": "step",
    "a time limit": "time limit",
    "the rollout": "batch",
    "an epoch": "epoch",
    "a gradient step": "gradient step",
    "an iteration of conjugate gradients": "conjugate gradient",
    "a try of the line search": "line search",
    "the log": "log",
}


def parts_of(script):
    """{line of the script: part of an iteration}."""
    source = Path(script.__file__).read_text()
    marks = ("    # rollout\n", "    # log\n", "    # wrap up\n")
    begin, log, end = (source[: source.index(mark)].count("\n") for mark in marks)
    parts = {line: "log" if line > log else "batch" for line in range(begin, end)}
    for node in ast.walk(ast.parse(source)):  # outer loops come before inner ones
        if isinstance(node, ast.For | ast.If):
            head = ast.unparse(node.iter if isinstance(node, ast.For) else node.test)
            name = PARTS.get(head, "gradient step" if ".split(" in head else None)
            body = range(node.body[0].lineno, node.body[-1].end_lineno + 1)
            parts |= dict.fromkeys(body, name) if name else {}
    return parts


def count_copies(name, folder):
    """{part of an iteration: copies to the device and to the host, each time}, of the second iteration."""
    script = importlib.import_module(name)
    flags = dict(num_steps=6, total_timesteps=48, cg_iters=3, backtracks=1, checkpoints=0, eval_episodes=0)
    train(name, asdict(small_args(script, folder, device="auto", **flags)))
    parts, counts = parts_of(script), {}
    for copy in accelerator.copies:
        if copy.iteration == 1 and copy.lines[-1] in parts and not copy.by_transformers:
            part = next(parts[line] for line in copy.lines if line in parts)
            counts.setdefault(part, [0, 0])[not copy.to_device] += 1
    times = {"step": 4 if script in LANGUAGE else 6, "time limit": 2, "epoch": 2, "gradient step": 4}
    times["conjugate gradient"] = 3
    return {part: [x / times.get(part, 1) for x in numbers] for part, numbers in counts.items()}


def calculate(expression):
    """What comes of x, a tensor of the device, and y, one of the CPU; and what was copied."""
    x, y = torch.ones(3, device=accelerator.NAME), torch.ones(3)
    accelerator.copies.clear()
    result = eval(expression, {"torch": torch, "np": np, "x": x, "y": y})
    return result, [copy.to_device for copy in accelerator.copies]


# ---- fixtures


@pytest.fixture(scope="module")
def elsewhere():
    """elsewhere(function, *args) calls it in a process that has the device."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, start_process) as pool:
        yield lambda function, *args: pool.submit(function, *args).result()


@pytest.fixture
def cpu_run(script, tmp_path_factory):
    """The args of a whole run on the CPU."""
    if script not in RUNS:
        RUNS[script] = small_args(script, tmp_path_factory.mktemp("cpu"))
        train(script.__name__, asdict(RUNS[script]))
    return RUNS[script]


def assert_same_end(args, other):
    """Two runs have ended with the same returns, weights and moments, but for rounding.

    Where a gradient is next to nothing, rounding moves a weight by some part of a step, which is 1e-3 or so.
    """
    names = ("iteration", "episodes", "agent", "optimizer")
    a, b = ([checkpoint(x.run_dir).get(name) for name in names] for x in (args, other))
    for x, y in zip(tree_leaves(a), tree_leaves(b), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-4)


# ---- the scripts


@pytest.mark.long
def test_a_run(script, elsewhere, cpu_run, tmp_path):
    """It finds the device by itself."""
    args = replace(cpu_run, run_dir=str(tmp_path / "run"), device="auto")
    output, _ = elsewhere(train, script.__name__, asdict(args))
    assert " on pretend:0; " in output
    assert_same_end(args, cpu_run)


@pytest.mark.long
@pytest.mark.parametrize("first", ["cpu", "pretend"])
def test_a_run_goes_on_elsewhere(script, first, elsewhere, cpu_run, tmp_path):
    """One that was begun on the CPU on the device, and the other way round."""
    args = replace(cpu_run, run_dir=str(tmp_path / "run"), device=first)
    half = script.__name__, asdict(args), 2
    train(*half) if first == "cpu" else elsewhere(train, *half)
    assert checkpoint(args.run_dir)["iteration"] == 1
    args = replace(args, resume=args.run_dir, device="pretend" if first == "cpu" else "cpu")
    rest = script.__name__, asdict(args)
    elsewhere(train, *rest) if first == "cpu" else train(*rest)
    assert_same_end(args, cpu_run)


@pytest.mark.long
def test_evaluation(script, elsewhere, cpu_run):
    flags = ["--evaluate", cpu_run.run_dir]
    if hasattr(cpu_run, "reward"):  # code is named anew each time
        flags += ["--reward", cpu_run.reward]
    expected, _ = evaluate(script.__name__, *flags)
    output, copies = elsewhere(evaluate, script.__name__, *flags, "--device", "pretend:0")
    assert output == expected and "mean " in expected.splitlines()[-1]
    assert copies  # it was there


def test_other_processes_do_not_see_it(script, elsewhere, cpu_run):
    with pytest.raises(script.Mistake, match="--device pretend is not here; there is"):
        script.train(replace(cpu_run, device="pretend"))


@pytest.mark.long
@pytest.mark.parametrize("script", [*GAMES, *LANGUAGE], ids=name_of)
def test_copies(script, elsewhere, tmp_path):
    """Those of an iteration are the ones in the table of docs/performance.md, and no more."""
    page = (ROOT / "docs/performance.md").read_text()
    [heads] = re.findall(r"^\| \| (a step \| .*) \|$", page, re.M)
    rows = re.findall(rf"^\| `{name_of(script)}\.py` \| (.*) \|$", page, re.M)
    assert len(rows) == 1, "each script has a row in the table of copies"
    [cells] = rows
    counts = elsewhere(count_copies, script.__name__, tmp_path)
    assert set(counts) <= set(COLUMNS.values())
    for head, cell in zip(heads.split(" | "), re.split(r" ?\| ", cells), strict=True):
        expected = [int(x) for x in cell.split(" / ")] if cell else None
        assert counts.get(COLUMNS[head]) == expected, head


# ---- a real GPU, where there is one


@contextlib.contextmanager
def random_numbers_of_the_cpu():
    """Within, what the scripts draw is drawn on the CPU, so that runs on two devices can be compared."""
    exponential, multinomial = torch.Tensor.exponential_, torch.multinomial
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "exponential_", lambda x: x.copy_(exponential(torch.empty(x.shape))))
        patch.setattr(torch, "randn_like", lambda x: torch.randn(x.shape).to(x.device))
        patch.setattr(torch, "multinomial", lambda x, *args: multinomial(x.cpu(), *args).to(x.device))
        yield


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_on_a_gpu(script, tmp_path, monkeypatch):
    """Beside the CPU with its random numbers; the same run twice; and one that is stopped and goes on."""

    def weights(name, device, stop=False):
        (tmp_path / name).mkdir()
        args = small_args(script, tmp_path / name, device=device)
        if stop:
            train(script.__name__, asdict(args), saves=2)
            args = replace(args, resume=args.run_dir)
        train(script.__name__, asdict(args))
        agent = checkpoint(args.run_dir)["agent"].values()
        return torch.cat([x.flatten().double().cpu() for x in agent])

    if script in ATARI:
        monkeypatch.setattr(script, "make_envs", with_toys(script))
    with random_numbers_of_the_cpu():
        torch.testing.assert_close(weights("cpu", "cpu"), weights("gpu", "cuda"), rtol=1e-3, atol=1e-3)
    whole = weights("whole", "cuda")
    assert torch.equal(whole, weights("again", "cuda"))
    assert torch.equal(whole, weights("resumed", "cuda", stop=True))


# ---- the device


@pytest.mark.parametrize(
    "expression",
    ["x + y", "x[y.long()]", "y[x.long()]", "torch.where(y > 0, x, 0)", "x.numpy()", "np.array(x)"],
)
def test_mixtures_are_errors(elsewhere, expression):
    with pytest.raises((RuntimeError, TypeError)):
        elsewhere(calculate, expression)


@pytest.mark.parametrize(
    ("expression", "copied"),
    [
        ("(x + torch.tensor(1.0)).device.type", []),  # a number may be a tensor
        ("(x[x.long()] * 2).sum().device.type", []),
        ("torch.as_tensor(np.ones(2), device=x.device) is None", [True]),
        ("torch.zeros(0).to(x.device) is None", []),
        ("x.copy_(y) is None", [True]),
        ("y.copy_(x).tolist()", [False]),
        ("x.tolist()", [False]),
        ("x.sum().item()", [False]),
        ("bool(x.all())", [False]),
        ("x[x > 0].device.type", [False]),
        ("x.nonzero().device.type", [False]),
        ("x.to(torch.float64).device.type", []),
    ],
)
def test_copies_are_counted(elsewhere, expression, copied):
    assert elsewhere(calculate, expression)[1] == copied
