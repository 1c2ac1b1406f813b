"""PPO and GRPO of language models: training, checkpoints, evaluation."""

import json
import math
import os
import sys
import time
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import Stopped
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer.record_writer import RecordWriter
from test_operations import checkpoint, command_line, same  # noqa: F401
from texts import (  # noqa: F401
    encoded,
    graded,
    look,
    loss_name,
    make_agent,
    make_args,
    nothing,
    only_grpo,
    read,
    script,
    texts_of,
)

from variants import grpo

# ---- training


def test_schedules(script, make_args, monkeypatch):
    """Of the policy and of the critic."""
    steps = []

    class Spy(torch.optim.Adam):
        def step(self):
            steps.append([group["lr"] for group in self.param_groups])
            return super().step()

    monkeypatch.setattr(torch.optim, "Adam", Spy)
    for anneal in (True, False):
        steps.clear()
        _, log = script.train(make_args(script, iterations=4, anneal_lr=anneal))
        shares = [1, 0.75, 0.5, 0.25] if anneal else [1] * 4
        assert [row["learning_rate"] for row in log] == pytest.approx([1e-2 * x for x in shares])
        rates = [1e-2] if script is grpo else [1e-2, 1e-3]
        assert steps[:: len(steps) // 4] == [pytest.approx([rate * x for rate in rates]) for x in shares]


def test_every_row_once_an_epoch_in_a_new_order(script, make_args, record):
    steps, completed = record(script, "compute_gradients"), record(script, "complete")
    script.train(make_args(script, iterations=1, eval_episodes=0))
    rows = [tuple(row.tolist()) for row in completed[0][1][0]]
    assert [len(call[0][1].tokens) for call in steps] == [4] * 4
    epochs = [torch.cat([call[0][1].tokens for call in pair]).tolist() for pair in (steps[:2], steps[2:])]
    orders = [list(map(tuple, epoch)) for epoch in epochs]
    assert Counter(orders[0]) == Counter(orders[1]) == Counter(rows)
    assert orders[0] != orders[1] and rows not in orders


def test_optimizer(script, make_args, monkeypatch):
    """Adam's epsilon is 1e-8; the gradients of the policy, and of the critic, have at most max_grad_norm."""
    norms = []

    class Spy(torch.optim.Adam):
        def step(self):
            for group in self.param_groups:
                if gradients := [x.grad.flatten() for x in group["params"] if x.grad is not None]:
                    norms.append(torch.cat(gradients).norm().item())
            return super().step()

    monkeypatch.setattr(torch.optim, "Adam", Spy)
    args = make_args(script, iterations=1, max_grad_norm=1e-2)
    _, log = script.train(args)
    assert norms == pytest.approx([1e-2] * len(norms), rel=1e-3) and log[0]["grad_norm"] > 2e-2
    assert len(norms) == (4 if script is grpo else 8)
    assert checkpoint(args.run_dir)["optimizer"]["param_groups"][0]["eps"] == 1e-8


def test_target_kl_ends_the_update_after_an_epoch(script, make_args, record):
    steps = record(script, "compute_gradients")
    for target_kl, count in ((0.0, 2), (math.inf, 6)):
        steps.clear()
        script.train(make_args(script, iterations=1, update_epochs=3, target_kl=target_kl))
        assert len(steps) == count


def test_the_reference_never_moves(script, make_args, record):
    start = record(script, "warm_start")
    frozen = {}
    original = script.grade

    def look_at_the_start(agent, *rest):
        frozen.setdefault("weights", {n: x.clone() for n, x in start[0][0][0].reference.state_dict().items()})
        return original(agent, *rest)

    script.grade = look_at_the_start
    try:
        agent, log = script.train(make_args(script, iterations=3, sft_steps=2))
    finally:
        script.grade = original
    assert same(dict(agent.reference.state_dict()), frozen["weights"])
    assert not same(dict(agent.model.state_dict()), frozen["weights"]) and log[-1]["ref_kl"] > 0
    assert not any(x.requires_grad or x.grad is not None for x in agent.reference.parameters())
    agent, log = script.train(make_args(script, kl_coef=0.0))
    assert agent.reference is None and log[-1]["ref_kl"] != 0


def test_warm_start(script, make_args):
    """It teaches answers, and where they end."""
    task = script.make_task(args := make_args(script, sft_steps=80, sft_learning_rate=5e-3, max_new_tokens=8))
    script.seed_everything(1, "weights")
    agent = script.Agent(args)
    script.warm_start(agent, args, task)
    tokens, _, mask, *_ = script.complete(
        agent, [problem["prompt"] for problem in task.training], greedy=True
    )
    texts = texts_of(agent, tokens, mask)
    right = [text == problem["answer"] for text, problem in zip(texts, task.training, strict=True)]
    assert np.mean(right) >= 0.5


def test_held_out_prompts_are_never_trained_on(script, make_args, record, tmp_path):
    """Prompts, not lines: those that are there twice are held out twice."""
    path = tmp_path / "twice.jsonl"
    lines = [{"prompt": f"{i % 5}>", "answer": "x", "level": i} for i in range(20)]
    path.write_text("\n".join(map(json.dumps, lines)))
    completed, warm = record(script, "complete"), []
    original = script.Agent.encode
    script.Agent.encode = lambda self, prompts: warm.append(prompts) or original(self, prompts)
    try:
        script.train(make_args(script, iterations=4, task=str(path), sft_steps=3, eval_episodes=2))
    finally:
        script.Agent.encode = original
    for (_, prompts, *_), _ in completed[:4]:
        assert {*prompts} <= {"2>", "3>", "4>"}
    assert {prompt for prompts in warm[1:4] for prompt in prompts} == {"2>", "3>", "4>"}
    assert completed[4][0][1] == ["0>", "1>"] and len(completed) == 5


def test_sorting_and_its_defaults(script, make_args, record):
    task = script.make_task(script.Args())
    assert len(task.held_out) == 500 and len(task.training) == 99_500
    assert task.training[7]["answer"] == "".join(sorted(task.training[7]["prompt"][:-1]))
    assert len({problem["prompt"] for problem in task.training + task.held_out}) == 100_000
    first = Counter(problem["prompt"][0] for problem in task.held_out)
    assert len(first) == 10 and max(first.values()) < 60
    agent, log = script.train(make_args(script, task="sorting", reward=None, num_envs=8, sft_steps=1))
    assert len(log) == 2 and log[-1]["eval_score"] == 0


def test_target_kl_is_compared_with_the_last_minibatch(script, make_args, record):
    """A little below the KL of the first epoch's end it stops there, a little above it does not."""
    losses = record(script, loss_name(script))
    script.train(make_args(script, iterations=1, update_epochs=1))
    kl = losses[-1][1][1]["kl"].item()
    for target_kl, count in ((0.99 * kl, 2), (1.01 * kl, 4)):
        losses.clear()
        script.train(make_args(script, iterations=1, target_kl=target_kl))
        assert len(losses) == count


def test_prompts_are_drawn_anew(script, make_args, record):
    """In each iteration, and for each group."""
    completed = record(script, "complete")
    script.train(make_args(script, iterations=4, eval_episodes=0))
    drawn = [tuple(prompts) for (_, prompts, *_), _ in completed]
    assert len({*drawn}) == 4 and all(len({*prompts}) > 1 for prompts in drawn)


def test_steps_of_the_warm_start(script, make_args, monkeypatch):
    """On prompts, answers and ends, with a learning rate of its own and gradients that are clipped."""
    steps, rows, forward = [], [], script.Agent.forward

    class Spy(torch.optim.Adam):
        def step(self):
            norm = torch.cat([x.grad.flatten() for x in agent.model.parameters()]).norm().item()
            steps.append((self.defaults["lr"], norm))
            return super().step()

    def look(self, tokens, attended, mask):
        rows.extend(row[counts] for row, counts in zip(tokens, attended, strict=True))
        return forward(self, tokens, attended, mask)

    monkeypatch.setattr(torch.optim, "Adam", Spy)
    monkeypatch.setattr(script.Agent, "forward", look)
    args = make_args(script, sft_steps=2, sft_learning_rate=3e-3, max_grad_norm=0.1)
    agent, task = script.Agent(args), script.make_task(args)
    script.warm_start(agent, args, task)
    assert steps == [pytest.approx((3e-3, 0.1), rel=1e-3)] * 2
    wanted = {f"{problem['prompt']}{problem['answer']}</s>" for problem in task.training}
    assert len(rows) == 16 and {agent.tokenizer.decode(row) for row in rows} <= wanted


def test_pieces_of_the_warm_start(script, make_args):
    """As with all rows at once, with a --micro-batch that does not divide them, too."""
    weights = []
    for size in (0, 3):
        args = make_args(script, sft_steps=2, micro_batch=size)
        script.seed_everything(1, "weights")
        agent = script.Agent(args)
        script.warm_start(agent, args, script.make_task(args))
        weights.append(torch.cat([x.flatten() for x in agent.model.parameters()]))
    torch.testing.assert_close(*weights, atol=2e-5, rtol=0)


def test_metrics_are_means_over_an_update(script, make_args, record):
    calls = record(script, loss_name(script))
    _, log = script.train(make_args(script, iterations=1))
    metrics = [metrics for _, (_, metrics) in calls]
    assert len(metrics) == 4
    for name in metrics[0]:
        assert log[0][name] == pytest.approx(np.mean([x[name].item() for x in metrics]), abs=1e-6)


def test_signal_is_the_share_of_groups_that_differ(only_grpo, make_args):
    _, log = grpo.train(make_args(grpo, iterations=1, reward="texts:first_alone"))
    assert log[0]["signal"] == 0.5


# ---- operations


def test_stopped_and_resumed_is_never_interrupted(script, make_args, monkeypatch, record):
    """To the bit, agent and optimizer; the warm start is not repeated."""
    args = make_args(script, iterations=6, checkpoints=3, sft_steps=2, eval_episodes=0)
    script.train(args)
    stopped = replace(args, run_dir=make_args(script).run_dir)
    calls, original = iter(range(100)), script.grade

    def failing(*given):
        if next(calls) == 3:  # of 0 to 5, in the middle between two checkpoints
            raise Stopped
        return original(*given)

    with monkeypatch.context() as patch:
        patch.setattr(script, "grade", failing)
        with pytest.raises(Stopped):
            script.train(stopped)
    assert checkpoint(stopped.run_dir)["iteration"] == 2
    stopped.resume = stopped.run_dir
    with monkeypatch.context() as patch:  # while it saves anew what is there
        patch.setattr(
            os, "fsync", lambda number: os.truncate(f"{stopped.run_dir}/checkpoint.tmp", 9) or 1 / 0
        )
        with pytest.raises(ArithmeticError):
            script.train(stopped)
    warm = record(script, "warm_start")
    script.train(stopped)
    assert warm == []
    events = EventAccumulator(stopped.run_dir).Reload().Scalars("score")
    assert [event.step for event in events] == [8, 16, 24, 32, 40, 48]
    a, b = checkpoint(args.run_dir), checkpoint(stopped.run_dir)
    assert all(same(a[key], b[key]) for key in ("agent", "optimizer", "iteration"))
    assert any(name.startswith("reference") for name in a["agent"])


def test_no_checkpoint_is_ahead_of_its_curves(script, make_args, monkeypatch):
    """However slow their disk is: what a killed run had shown is there when it goes on."""
    write, save, steps = RecordWriter.write, script.save, {}

    def saving(run_dir, args, iteration, *parts):
        if iteration:
            steps[iteration] = [x.step for x in EventAccumulator(str(run_dir)).Reload().Scalars("score")]
        save(run_dir, args, iteration, *parts)

    monkeypatch.setattr(RecordWriter, "write", lambda *args: time.sleep(0.005) or write(*args))
    monkeypatch.setattr(script, "save", saving)
    script.train(make_args(script, iterations=3, checkpoints=3, eval_episodes=0))
    assert steps == {1: [8], 2: [8, 16], 3: [8, 16, 24]}


def test_evaluation_is_repeated(script, make_args, command_line, capfd, tmp_path):
    args = make_args(script, sft_steps=4)
    script.train(args)
    lines = capfd.readouterr().out.splitlines()[-4:]
    folder = tmp_path / "run0"
    answers = read(folder / "completions.jsonl")
    assert [answer["prompt"] for answer in answers] == ["0>", "37>", "74>"]
    assert {*answers[0]} == {"prompt", "completion", "score", "exact"}
    (folder / "completions.jsonl").unlink()
    code, out, err = command_line(script, "--evaluate", args.run_dir, "--reward", args.reward)
    assert (code, err) == (0, "") and out.splitlines() == lines
    assert lines[-1].startswith("mean score ") and str(folder) in lines[-1]
    assert read(folder / "completions.jsonl") == answers


def test_greedy_evaluation(script, make_args, record):
    completed = record(script, "complete")
    script.train(make_args(script, iterations=1, eval_greedy=True))
    assert [call[0][2:] for call in completed] == [(), (True,)]


def test_finished_and_length(script, make_args, record):
    completed = record(script, "complete")
    _, log = script.train(make_args(script, sft_steps=20, sft_learning_rate=1e-2))
    for row, (_, (tokens, _, mask, _)) in zip(log, completed, strict=False):
        assert row["length"] == mask.sum() / 8
        assert row["finished"] == ((tokens[:, -mask.shape[1] :] == 1) & mask).any(1).sum() / 8
    assert log[-1]["finished"] > 0


def test_a_finished_run_can_go_on(script, make_args, capsys):
    args = make_args(script)
    script.train(args)
    evaluated = capsys.readouterr().out.splitlines()[-4:]
    _, log = script.train(replace(args, resume=args.run_dir))
    assert log == [{"steps": 16, "eval_score": log[0]["eval_score"]}]
    assert capsys.readouterr().out.splitlines()[-4:] == evaluated
    _, log = script.train(replace(args, resume=args.run_dir, total_episodes=24))
    assert [row["steps"] for row in log] == [24]


def test_what_was_learned_from_is_not_evaluated(script, make_args, command_line):
    """Of another task, any number may be."""
    args = make_args(script, iterations=1, eval_episodes=2)
    script.train(args)
    reward = ["--reward", args.reward]
    for flag in ("--evaluate", "--resume"):
        flags = [flag, args.run_dir, *reward, "--eval-episodes", 3, "--total-episodes", 99]
        code, _, err = command_line(script, *flags)
        assert (code, err.count("\n")) == (2, 1)
        where = f"{args.run_dir}/checkpoint.pt cannot be used: " if flag == "--resume" else ""
        assert f"py: {where}--eval-episodes 3: the run has held out 2" in err
    code, out, _ = command_line(script, "--evaluate", args.run_dir, *reward, "--eval-episodes", 1)
    assert code == 0 and "of 1 held-out prompts" in out
    code, _, err = command_line(script, "--evaluate", args.run_dir, *reward, "--eval-episodes", 0)
    assert code == 2 and "--eval-episodes 0 leaves nothing" in err
    other = Path(args.run_dir).with_name("other.jsonl")
    other.write_text('{"prompt": "1>", "answer": "1", "level": 1}\n')
    code, out, _ = command_line(script, "--evaluate", args.run_dir, *reward, "--task", other)
    assert code == 0 and "of 1 held-out prompts" in out


@pytest.mark.parametrize("kind", [{}, {"requires_grad": True}, {"dtype": torch.bfloat16}], ids=str)
def test_scores_may_be_tensors(script, kind):
    """As those of a reward model are."""
    reward = lambda completions, **_: torch.tensor([0.5, 1.0], **kind)  # noqa: E731
    scores, _ = graded(script, make_agent(script), [[3], [4, 5]], [{"prompt": "a"}] * 2, reward)
    assert [float(score) for score in scores] == [0.5, 1.0]


@pytest.mark.parametrize(
    ("said", "answer", "right"),
    [
        ("7</s>", "7", 1),
        (" 7</s>", "7", 1),  # as is usual where tokens begin with a space
        ("7\n</s>", "7", 1),
        ("7</s>", " 7", 1),
        ("8</s>", "7", 0),
        ("77</s>", "7", 0),
        ("7", "7", 0),  # it may have gone on
        ("</s>", None, 0),  # there is no answer
        ("7<pad></s>", "7", 0),
        ("<unk>7</s>", "<unk>7", 1),  # here, this is a token
        ("7</s>", "<unk>7", 0),
        ("é</s>", "é", 1),
        ([195, 1], "é", 0),  # half of it
        ([195 + 3, 58, 1], "7", 0),  # which a text would leave out
    ],
)
def test_an_answer_is_right_in_all_its_tokens(script, said, answer, right):
    """Special tokens count, as do bytes that are no text, and the end; spaces around it do not."""
    agent = make_agent(script)
    row = agent.tokenizer(said, add_special_tokens=False).input_ids if isinstance(said, str) else said
    scores, exact = graded(script, agent, [row, [58, 1]], [{"prompt": "a", "answer": answer}] * 2)
    assert exact[0] == scores[0] == right
    assert exact[1] == (answer in ("7", " 7"))


def test_flags_of_the_run_hold(script, make_args, command_line):
    args = make_args(script, iterations=1, temperature=0.5)
    script.train(args)
    reward = ["--reward", args.reward]
    code, *_ = command_line(script, "--resume", args.run_dir, *reward, "--total-episodes", 16)
    assert code == 0
    changed = {"total_episodes": 16, "resume": args.run_dir}
    assert checkpoint(args.run_dir)["args"] == asdict(args) | changed
    code, _, err = command_line(script, "--resume", args.run_dir, *reward, "--task", "sorting")
    assert (code, err.count("\n")) == (2, 1) and "--task cannot change" in err


def test_evaluation_answers_each_prompt_once(script, make_args, record):
    """Batch after batch, the last of which is smaller."""
    completed = record(script, "complete")
    args = make_args(script, iterations=1, num_envs=4, eval_episodes=7)
    script.train(args)
    assert [len(prompts) for (_, prompts, *_), _ in completed] == [4, 4, 3]
    answers = read(Path(args.run_dir) / "completions.jsonl")
    assert [answer["prompt"] for answer in answers] == [f"{i * 37 % 1000}>" for i in range(7)]


def test_exact_is_the_share_of_right_answers(script, make_args, tmp_path, monkeypatch, capsys):
    """Of training and evaluation, whatever the score is."""
    path = tmp_path / "same.jsonl"
    lines = [{"prompt": f"{i}>", "answer": "x", "level": i} for i in range(12)]
    path.write_text("\n".join(map(json.dumps, lines)))
    texts = ["x</s>", " x</s>", "y</s>", "x</s>", "xx</s>", "</s>", "x</s>", "x"]

    def fixed(agent, prompts, greedy=False):
        rows = agent.tokenizer(texts[: len(prompts)], add_special_tokens=False).input_ids
        tokens, mask = agent.pad_rows(rows)
        prompts, attended = encoded(agent, prompts)
        rows = torch.cat([prompts, tokens], 1), torch.cat([attended, mask], 1), mask
        return *rows, agent(*rows)

    monkeypatch.setattr(script, "complete", fixed)
    args = make_args(script, iterations=1, task=str(path), eval_episodes=5)
    _, log = script.train(args)
    assert log[0]["exact"] == 0.5
    answers = read(Path(args.run_dir) / "completions.jsonl")
    assert [answer["exact"] for answer in answers] == [True, True, False, True, False]
    assert "exact 0.600, of 5" in capsys.readouterr().out


def test_a_loss_that_is_not_finite_is_told_before_it_is_saved(script, make_args):
    args = make_args(script, learning_rate=1e12, max_grad_norm=math.inf, checkpoints=2)
    with pytest.raises(FloatingPointError, match="^[a-z_]+ is not finite before step 8$"):
        script.train(args)
    assert all(tensor.isfinite().all() for tensor in checkpoint(args.run_dir)["agent"].values())


def test_what_cannot_change(script, make_args):
    args = make_args(script, iterations=1)
    script.train(args)
    for name, value in dict(model="a", task="sorting", seed=2, num_envs=4).items():
        with pytest.raises(script.Mistake, match=f"--{name.replace('_', '-')} cannot change"):
            script.load(args.run_dir, replace(args, **{name: value}))


@pytest.mark.parametrize("folder", ["resume", "evaluate"])
def test_a_reference_does_not_come_or_go(script, make_args, command_line, folder):
    """Its weights would be missing, or too many; of the size of the coefficient nothing depends."""
    for saved, other, same_kind in ((0.5, 0.0, 0.1), (0.0, 0.5, 0.0)):
        args = make_args(script, iterations=1, kl_coef=saved)
        script.train(args)
        flags = [f"--{folder}", args.run_dir, "--reward", args.reward]
        code, _, err = command_line(script, *flags, "--kl-coef", other)
        assert (code, err.count("\n")) == (2, 1)
        assert f"--kl-coef {other}: the run has {saved}; 0 must stay 0" in err
        code, out, _ = command_line(script, *flags, "--kl-coef", same_kind)
        assert code == 0 and "mean score" in out


def test_a_run_that_was_resumed_and_then_moved_can_be_evaluated(script, make_args, command_line):
    """Its flags still name the folder where it was resumed."""
    args = make_args(script, iterations=1)
    script.train(args)
    script.train(replace(args, resume=args.run_dir, total_episodes=16))
    moved = Path(args.run_dir).rename(args.run_dir + "-moved")
    assert checkpoint(moved)["args"]["resume"] == args.run_dir
    code, out, err = command_line(script, "--evaluate", moved, "--reward", args.reward)
    assert (code, err) == (0, "") and "of 3 held-out prompts" in out


def test_a_hook_may_end_the_run(script, make_args):
    """The iteration is then saved and evaluated as the last one."""
    args, rows = make_args(script, iterations=3), []
    _, log = script.train(args, lambda row: rows.append(row) or len(rows) == 2)
    assert log == rows and len(log) == 2 and "eval_score" in log[-1]
    assert checkpoint(args.run_dir)["iteration"] == 2


def test_a_run_that_is_there_is_left_alone(script, make_args, monkeypatch):
    args = make_args(script, iterations=1)
    script.train(args)
    monkeypatch.setattr(script, "warm_start", lambda *_: pytest.fail("it was late"))
    with pytest.raises(script.Mistake, match=f"{args.run_dir} holds a run, which --resume would continue"):
        script.train(args)


def test_a_run_that_goes_on_begins_with_a_cut(script, make_args, record):
    args = make_args(script, eval_episodes=0)
    script.train(args)
    calls = record(script, "seed_everything")
    script.train(replace(args, resume=args.run_dir, total_episodes=24))
    assert [purpose for (_, purpose, *_), _ in calls] == ["weights", "cut 2"]


def test_wandb_has_everything(script, make_args, monkeypatch):
    rows, nothing = [], lambda *args, **kwargs: None
    wandb = SimpleNamespace(init=nothing, define_metric=nothing, finish=nothing, log=rows.append)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    _, log = script.train(make_args(script, track=True))
    assert [row["steps"] for row in rows] == [8, 16, 16] and rows[-1] == log[-1]
