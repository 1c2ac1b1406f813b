"""Truncated PPO: windows, what stands for the rest at their cut, and what the critic learns from."""

import json
import math
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from conftest import Stopped, each_of
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from test_llm import (  # noqa: F401  the same tests, of this script
    test_advantages_are_normalised,
    test_clip,
    test_left_padding_and_what_is_under_it_change_nothing,
    test_metrics,
    test_nothing_outside_the_mask_has_a_gradient,
    test_on_fresh_data_the_ratio_is_one,
    test_overall_loss,
    test_pieces_have_the_gradient_of_the_whole,
    test_temperature_is_of_sampling_learning_and_reference,
    test_the_learner_sees_what_the_sampler_saw,
    test_the_loss_descends_the_kl_to_the_reference,
    test_the_reward_is_on_the_last_token_that_counts,
    test_what_counts_ends_with_the_end_of_text,
)
from test_llm_training import (  # noqa: F401  the same tests, of this script
    test_every_row_once_an_epoch_in_a_new_order,
    test_optimizer,
    test_schedules,
    test_target_kl_ends_the_update_after_an_epoch,
    test_the_reference_never_moves,
)
from test_operations import checkpoint, command_line, same  # noqa: F401
from texts import (
    gpt2,
    read,
)

from variants import ppo_llm, ppo_llm_truncated

script = only_ppo = each_of([ppo_llm_truncated])


@pytest.fixture(autouse=True)
def texts_are_completed_whole(monkeypatch):
    """complete(agent, texts), as in the other scripts, beside what it is here."""
    original = ppo_llm_truncated.complete

    def complete(agent, rows, num_steps=None, greedy=False):
        rows = agent.encode(rows) if isinstance(rows[0], str) else rows
        return original(agent, rows, num_steps or agent.args.max_new_tokens, greedy)

    monkeypatch.setattr(ppo_llm_truncated, "complete", complete)


@pytest.fixture
def make_args(tmp_path):
    """make_args(script, **flags) -> Args of 2 iterations of 8 windows, by default as long as the answers."""
    path = tmp_path / "task.jsonl"
    numbers = [f"{i * 37 % 1000}" for i in range(12)]
    lines = [json.dumps({"prompt": f"{x}>", "answer": x[::-1], "level": 1}) for x in numbers]
    path.write_text("\n".join(lines) + "\n")
    runs = iter(range(100))

    def make(script, iterations=2, **flags):
        small = dict(task=str(path), reward="texts:spread", num_envs=8, num_steps=5, max_new_tokens=5)
        small |= dict(sft_steps=0, eval_episodes=3, checkpoints=1, learning_rate=1e-2)
        small |= dict(run_dir=str(tmp_path / f"run{next(runs)}")) | flags
        small.setdefault("total_timesteps", iterations * small["num_envs"] * small["num_steps"])
        return script.Args(**{x.name: small[x.name] for x in fields(script.Args) if x.name in small})

    return make


@pytest.fixture
def short(make_args):
    """Args of windows of two tokens, of answers that end somewhere in up to three of them."""

    def make(**flags):
        some = dict(num_steps=2, max_new_tokens=6, sft_steps=15, sft_learning_rate=1e-2, iterations=6)
        return make_args(ppo_llm_truncated, **some | flags)

    return make


@pytest.fixture(params=["rotary", "learned"])
def positions(request, monkeypatch):
    if request.param == "learned":
        monkeypatch.setattr(ppo_llm_truncated, "make_model", gpt2)
    return request.param


@pytest.fixture
def speaking(monkeypatch):
    """A critic that says something from the start, in the parent, too."""
    for Agent in (ppo_llm.Agent, ppo_llm_truncated.Agent):

        def speak(self, copy=Agent.copy_model):
            copy(self)
            torch.nn.init.normal_(self.critic.get_output_embeddings().weight)

        monkeypatch.setattr(Agent, "copy_model", speak)


def windows_of(agent, completed):
    """For each window: its rows before, and the tokens that were said, as lists."""
    for (_, before, *_), (tokens, _, mask, _) in completed:
        tokens = tokens[:, -mask.shape[1] :]
        yield before, [row[counts].tolist() for row, counts in zip(tokens, mask, strict=True)]


# ---- windows


def test_answers_carry_on_until_they_end(only_ppo, short, record):
    """A row begins with a prompt; what is not at its end is the beginning of one in the next window."""
    completed, graded = record(only_ppo, "complete"), record(only_ppo, "grade")
    agent, log = only_ppo.train(args := short(eval_episodes=0))
    prompts = [agent.encode([problem["prompt"]])[0] for problem in only_ppo.make_task(args).training]
    carried, ended = [], []
    for before, said in windows_of(agent, completed):
        assert len(before) == 8 and before[: len(carried)] == carried
        assert all(row in prompts for row in before[len(carried) :])
        assert all(0 < len(new) <= 2 for new in said)
        carried = []
        for row, new in zip(before, said, strict=True):
            prompt = next(x for x in prompts if x == row[: len(x)])
            answer = row[len(prompt) :] + new
            over = new[-1] == 1 or len(answer) == 6
            ended += [answer] * over
            carried += [row + new] * (not over)
            assert over or len(new) == 2
    assert [row for _, (rows, *_) in graded for row in rows] == ended
    assert {len(row) for row in ended} > {2, 3, 4} and carried
    last = ended[-8:]
    assert log[-1]["length"] == np.mean([len(row) for row in last])
    assert log[-1]["finished"] == np.mean([row[-1] == 1 for row in last])
    assert log[-1]["used"] == sum(map(len, said)) / 16


def test_a_window_as_long_as_the_answers_is_ppo(only_ppo, make_args, speaking, record):
    """The first rollout has the same tokens, log-probabilities and advantages, to the bit."""
    batches = []
    for each in (ppo_llm, only_ppo):
        steps = record(each, "compute_gradients")
        flags = dict(sft_steps=5, num_minibatches=1, gamma=0.9, gae_lambda=0.7, total_episodes=16)
        each.train(make_args(each, **flags))
        batches.append(steps[0][0][1])
    mask = batches[0].mask
    for name in only_ppo.Batch._fields:
        ours, theirs = (getattr(batch, name) for batch in batches)
        assert (
            torch.equal(ours[mask], theirs[mask]) if ours.shape == mask.shape else torch.equal(ours, theirs)
        )
    assert batches[0].mask.sum() < batches[0].mask.numel() and batches[1].advantages.std() > 0


def test_the_value_at_the_cut_stands_for_the_rest(only_ppo, short, speaking, record):
    """It is the critic's for all that was said so far; an answer that is over gets nothing more."""
    gae, completed = record(only_ppo, "compute_gae"), record(only_ppo, "complete")
    agent, _ = only_ppo.train(short(critic_learning_rate=0.0, eval_episodes=0))
    cuts = 0
    for ((_, values, next_values, dones, *_), _), window in zip(
        gae, windows_of(agent, completed), strict=True
    ):
        for n, (row, new) in enumerate(zip(*window, strict=True)):
            if dones[:, n].any():
                assert dones[len(new) - 1, n] == 1 and next_values[len(new) - 1, n] == 0
                continue
            with torch.no_grad():
                after = agent.critic(torch.tensor([row + new])).logits[0, :, 0]
            torch.testing.assert_close(values[:, n], after[-3:-1], atol=1e-4, rtol=0)
            torch.testing.assert_close(next_values[:, n], after[-2:], atol=1e-4, rtol=0)
            cuts += 1
    assert cuts > 10


def test_the_critic_learns_from_whole_answers(only_ppo, short, record):
    """From each that has ended, in each epoch, and from no other; the target of each token is its score."""
    steps, graded = record(only_ppo, "critic_gradients"), record(only_ppo, "grade")
    only_ppo.train(short(gamma=0.5, eval_episodes=0, update_epochs=1))
    seen, wanted = [], []
    for (_, (_, _, mask), returns, _), _ in steps:
        for row, counts in zip(returns, mask, strict=True):
            seen.append(row[counts].tolist())
    for _, (rows, _, scores, _) in graded:
        for row, score in zip(rows, scores, strict=True):
            wanted.append([float(score) * 0.5 ** (len(row) - 1 - t) for t in range(len(row))])
    for one, other in zip(sorted(seen), sorted(wanted), strict=True):
        assert one == pytest.approx(other)
    assert len({len(row) for row in seen}) > 3


def test_a_score_for_each_token_is_refused(only_ppo, short):
    """When it is known, the windows of its tokens are learned from already."""
    with pytest.raises(only_ppo.Mistake, match="--reward scores tokens"):
        only_ppo.train(short(reward="texts:one_for_each_token", eval_episodes=0))


def test_pieces_have_the_gradient_of_the_whole_critic(only_ppo, short, record):
    steps = record(only_ppo, "critic_gradients")
    agent, _ = only_ppo.train(args := short(eval_episodes=0))
    (_, rows, returns, _), _ = max(steps, key=lambda call: len(call[0][2]))
    found = []
    for size in (0, 1, 3):
        agent.zero_grad()
        loss = only_ppo.critic_gradients(agent, rows, returns, replace(args, micro_batch=size))
        found.append([x.grad.clone() for x in agent.critic.parameters()] + [loss])
    for whole, *others in zip(*found, strict=True):
        for other in others:
            torch.testing.assert_close(other, whole, atol=1e-6, rtol=1e-4)
    values = agent.value(*rows)[:, :-1]
    assert found[0][-1].item() == pytest.approx(0.5 * ((values - returns)[rows[2]] ** 2).mean().item())
    assert all(x.grad is None for x in agent.model.parameters()) and len(returns) > 3


def test_values_start_at_zero_and_the_critic_learns(only_ppo, make_args, record):
    calls = record(only_ppo, "compute_gae")
    _, log = only_ppo.train(make_args(only_ppo, iterations=8, reward="texts:equal"))
    assert not calls[0][0][1].any() and calls[-1][0][1].any()
    assert log[-1]["value_loss"] < 0.2 * log[0]["value_loss"]


def test_explained_variance_is_of_whole_answers(only_ppo, short, speaking, record):
    steps = record(only_ppo, "critic_gradients")
    flags = dict(num_minibatches=1, update_epochs=1, critic_learning_rate=0.0)
    agent, log = only_ppo.train(short(eval_episodes=0, **flags))
    assert len(log) == len(steps) == 6
    for row, ((_, rows, returns, _), _) in zip(log, steps, strict=True):
        with torch.no_grad():
            errors = (returns - agent.value(*rows)[:, :-1])[rows[2]]
        variance = returns[rows[2]].var()
        share = 1 - (errors.var() / variance).item() if variance > 0 else math.nan
        assert row["explained_variance"] == pytest.approx(share, rel=1e-4, nan_ok=True)
    assert math.isfinite(row["explained_variance"])


def test_windows_in_which_nothing_ends(only_ppo, short, monkeypatch):
    monkeypatch.setattr(only_ppo.Agent, "act", lambda self, logits, greedy: torch.full((len(logits),), 9))
    _, log = only_ppo.train(short(sft_steps=0, iterations=3))
    assert [math.isnan(row["score"]) for row in log] == [True, True, False]
    assert [math.isfinite(row["value_loss"]) for row in log] == [False, False, True]
    assert (log[-1]["length"], log[-1]["finished"], log[-1]["used"]) == (6, 0, 1)


def test_held_out_prompts_are_never_trained_on(only_ppo, make_args, record, tmp_path):
    path = tmp_path / "twice.jsonl"
    lines = [{"prompt": f"{i % 5}>", "answer": "x", "level": i} for i in range(20)]
    path.write_text("\n".join(map(json.dumps, lines)))
    completed, warm = record(only_ppo, "complete"), record(only_ppo, "warm_start")
    agent, _ = only_ppo.train(make_args(only_ppo, iterations=4, task=str(path), eval_episodes=2))
    prompts = [{agent.tokenizer.decode(row) for row in rows} for (_, rows, *_), _ in completed]
    assert set.union(*prompts[:4]) == {"2>", "3>", "4>"} and prompts[4:] == [{"0>", "1>"}]
    assert {problem["prompt"] for problem in warm[0][0][2].training} == {"2>", "3>", "4>"}


def test_sorting_has_answers_of_very_different_lengths(only_ppo):
    task = only_ppo.make_task(only_ppo.Args())
    assert len(task.held_out) == 500 and len(task.training) > 10_000
    answers = [problem["answer"] for problem in task.training]
    assert answers[7] == "".join(sorted(task.training[7]["prompt"][:-1]))
    lengths = [len(answer) for answer in answers]
    assert max(lengths) == 31 and 5 < np.mean(lengths) < 9 and np.median(lengths) < 7


# ---- operations


@pytest.mark.long
def test_stopped_and_resumed_is_never_interrupted(only_ppo, short, monkeypatch, record):
    """To the bit; answers on their way carry on, and the last scores are known."""
    args = short(checkpoints=3, eval_episodes=0)
    only_ppo.train(args)
    stopped = replace(args, run_dir=short().run_dir)
    calls, original = iter(range(100)), only_ppo.compute_gae

    def failing(*given):
        if next(calls) == 3:  # of 0 to 5, in the middle between two checkpoints
            raise Stopped
        return original(*given)

    with monkeypatch.context() as patch:
        patch.setattr(only_ppo, "compute_gae", failing)
        with pytest.raises(Stopped):
            only_ppo.train(stopped)
    assert checkpoint(stopped.run_dir)["iteration"] == 2
    assert checkpoint(stopped.run_dir)["running"] and checkpoint(stopped.run_dir)["recent"]
    stopped.resume = stopped.run_dir
    warm = record(only_ppo, "warm_start")
    only_ppo.train(stopped)
    assert warm == []
    events = EventAccumulator(stopped.run_dir).Reload().Scalars("used")
    assert [event.step for event in events] == [16, 32, 48, 64, 80, 96]
    runs = [EventAccumulator(x.run_dir).Reload().Scalars("length") for x in (args, stopped)]
    assert [event.value for event in runs[0]] == [event.value for event in runs[1]]
    a, b = checkpoint(args.run_dir), checkpoint(stopped.run_dir)
    assert all(same(a[key], b[key]) for key in ("agent", "optimizer", "iteration"))
    assert a["running"] == b["running"] and a["recent"] == b["recent"] != []


@pytest.mark.parametrize(("reward", "warns"), [("equal", True), ("spread", False)])
def test_a_start_without_scores_is_said(only_ppo, short, capsys, reward, warns):
    _, log = only_ppo.train(short(reward=f"texts:{reward}", eval_episodes=0, sft_steps=0))
    assert not any(math.isinf(row["explained_variance"]) for row in log)
    out = capsys.readouterr()
    assert ("nearly all are " in out.out + out.err) == warns
    assert "score of the first answers: " in out.out + out.err


def test_the_last_scores_are_known_after_a_resume(only_ppo, short, monkeypatch):
    """Also if no answer ends in the first window."""
    args = short(iterations=3, max_new_tokens=60, eval_episodes=0)
    _, log = only_ppo.train(args)
    monkeypatch.setattr(only_ppo.Agent, "act", lambda self, logits, greedy: torch.full((len(logits),), 9))
    _, rest = only_ppo.train(replace(args, resume=args.run_dir, total_timesteps=64))
    assert [row["score"] for row in rest] == [log[-1]["score"]]


def test_fewer_tokens_end_what_is_on_its_way(only_ppo, short, monkeypatch):
    """A resumed run whose answers have to be shorter than some already are."""
    monkeypatch.setattr(only_ppo.Agent, "act", lambda self, logits, greedy: torch.full((len(logits),), 9))
    args = short(iterations=2, max_new_tokens=60, sft_steps=0, eval_episodes=0)
    only_ppo.train(args)
    assert [len(said) for _, _, said in checkpoint(args.run_dir)["running"]] == [4] * 8
    more = replace(args, resume=args.run_dir, max_new_tokens=4, total_timesteps=48)
    only_ppo.train(more)
    assert checkpoint(args.run_dir)["running"] == []


def test_evaluation_is_repeated(only_ppo, short, command_line, capfd, tmp_path):
    args = short()
    only_ppo.train(args)
    lines = capfd.readouterr().out.splitlines()[-4:]
    answers = read(tmp_path / "run0/completions.jsonl")
    code, out, err = command_line(only_ppo, "--evaluate", args.run_dir, "--reward", args.reward)
    assert (code, err) == (0, "") and out.splitlines() == lines
    assert read(tmp_path / "run0/completions.jsonl") == answers and len(answers) == 3


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"num_steps": 4}, "--num-steps 4 does not divide --max-new-tokens 6"),
        ({"num_steps": 0, "total_timesteps": 99}, "--num-steps 0 is not between 1"),
        ({"total_timesteps": 15}, "--total-timesteps 15 is less than"),
    ],
)
def test_mistake(only_ppo, short, flags, message):
    args = short(**flags)
    with pytest.raises(only_ppo.Mistake, match=message.replace("*", r"\*")):
        only_ppo.train(args)


def test_windows_cannot_change(only_ppo, short):
    args = short()
    only_ppo.train(args)
    with pytest.raises(only_ppo.Mistake, match="--num-steps cannot change: it has 2"):
        only_ppo.train(replace(args, resume=args.run_dir, num_steps=3))
