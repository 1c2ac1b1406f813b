"""A model that speaks, hears, and speaks again: whose tokens count, and what the world may say."""

import json
import math
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Stopped
from test_llm_models import TURNS, refused, tokenizer_of_turns
from test_operations import checkpoint, command_line, same  # noqa: F401
from texts import read
from transformers import AutoModelForCausalLM, LlamaConfig

from variants import grpo_turns
from variants.grpo_turns import Agent, Args, Conversation, as_rows, calculator, converse, grade

SMALL = dict(vocab_size=260, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2)


# ---- worlds


def echo(problem, turns):
    """It repeats what it has heard, and how often that was."""
    return f"{turns[-1]}{len(turns)}"


def polite(problem, turns):
    return [{"role": "tool", "content": "42"}]


def number(problem, turns):
    return 42


@pytest.fixture
def make_args(tmp_path):
    """make_args(script, **flags) -> Args of 2 iterations of 8 conversations of up to 3 turns of 4 tokens."""
    path = tmp_path / "task.jsonl"
    lines = [{"prompt": f"{x}>", "answer": str(x), "turns": [f"{x}", "!", f"{x}"]} for x in range(12)]
    path.write_text("\n".join(map(json.dumps, lines)))
    runs = iter(range(100))

    def make(script=grpo_turns, iterations=2, **flags):
        small = dict(task=str(path), world="test_turns:echo", num_envs=8, group_size=4, max_new_tokens=4)
        small |= dict(sft_steps=0, eval_episodes=3, checkpoints=1, learning_rate=1e-2)
        small |= dict(run_dir=str(tmp_path / f"run{next(runs)}")) | flags
        small.setdefault("total_episodes", iterations * small["num_envs"])
        assert small.keys() <= {x.name for x in fields(script.Args)}
        return script.Args(**small)

    return make


@pytest.fixture
def said(monkeypatch):
    """said(agent, *turns): the model says these, whatever it thinks."""

    def make(agent, *turns):
        rows = [agent.tokenizer(text, add_special_tokens=False).input_ids for text in turns]
        queue = [token for row in rows for token in row]
        monkeypatch.setattr(
            agent, "act", lambda logits, greedy=False: torch.tensor([queue.pop(0)] * len(logits))
        )

    return make


@pytest.fixture
def talks(make_args, monkeypatch):
    """An agent, and conversations of it of one to three turns: each token may be the last of its turn."""
    torch.manual_seed(0)
    agent = Agent(args := make_args(max_new_tokens=6))
    agent.model.lm_head.weight.data *= 20  # it has preferences
    act = agent.act

    def short(logits, greedy=False):
        return act(logits).where(torch.rand(len(logits)) < 0.7, agent.pad)

    monkeypatch.setattr(agent, "act", short)
    task = grpo_turns.make_task(args)
    return agent, task, converse(agent, task, [*task.training, *task.held_out] * 4)


def test_conversations_differ_in_length(talks):
    assert {len(talk.turns) for talk in talks[2]} >= {1, 3}


def test_the_learner_sees_what_the_sampler_saw(talks):
    agent, _, found = talks
    tokens, attended, mask, sampled = as_rows(agent, found)
    torch.testing.assert_close(agent(tokens, attended, mask)[mask], sampled[mask], atol=1e-5, rtol=0)
    assert (sampled[mask] < 0).all()


def test_only_its_own_tokens_count(talks):
    """The mask picks the model's turns, each with its end, and nothing of the world's."""
    agent, _, found = talks
    tokens, _, mask, _ = as_rows(agent, found)
    for talk, row, counts in zip(found, tokens[:, -mask.shape[1] :], mask, strict=True):
        assert row[: len(talk.tokens)].tolist() == talk.tokens
        assert row[counts].tolist()[-len(talk.last) :] == talk.last
        replies = [len(agent.encode_reply(text)) for text in talk.turns[1::2]]
        assert counts.sum() == len(talk.tokens) - sum(replies)
        ends = (row[counts] == agent.pad).sum()
        assert len(talk.turns) // 2 <= ends <= len(talk.turns) // 2 + 1


def test_what_the_world_says_is_read_and_not_learned(talks):
    """Another reply changes what follows it; an advantage of a reply changes no gradient."""
    agent, _, found = talks
    talk = next(talk for talk in found if len(talk.turns) > 1)
    rows = as_rows(agent, [talk, talk])
    place = talk.mine.index(False)
    other = rows[0].clone()
    other[1, len(talk.prompt) + place] += 1
    logprobs = agent(other, *rows[1:3])
    later = rows[2].clone()
    later[:, :place] = False
    assert not torch.allclose(logprobs[0][later[0]], logprobs[1][later[1]], atol=1e-4)
    assert torch.equal(logprobs[0, :place], logprobs[1, :place])
    gradients = []
    for value in (0.0, 1e9):
        mask = rows[2]
        advantages = torch.ones(mask.shape).where(mask, value)
        old = logprobs.detach()
        lengths = mask.sum(1)[:, None].expand(mask.shape)
        batch = grpo_turns.Batch(*rows[:3], old, old, advantages, lengths)
        agent.zero_grad()
        grpo_turns.compute_gradients(agent, batch, agent.args)
        gradients.append(torch.cat([x.grad.flatten() for x in agent.model.parameters()]))
    assert torch.equal(*gradients) and gradients[0].abs().max() > 0


def test_a_conversation_alone_is_as_among_others(make_args):
    torch.manual_seed(0)
    agent = Agent(args := make_args())
    agent.model.lm_head.weight.data *= 20
    task = grpo_turns.make_task(args)
    together = converse(agent, task, task.training, greedy=True)
    for talk, problem in zip(together, task.training, strict=True):
        [alone] = converse(agent, task, [problem], greedy=True)
        assert (alone.tokens, alone.mine, alone.turns) == (talk.tokens, talk.mine, talk.turns)
        np.testing.assert_allclose(alone.logprobs, talk.logprobs, atol=1e-5)


def test_the_worlds_words_in_its_mouth_are_its_own(make_args, said):
    """A model that writes a reply itself is not believed: the world sees a turn, and no reply."""
    heard = []
    agent = Agent(args := make_args(max_new_tokens=12))
    task = grpo_turns.make_task(args)._replace(world=lambda problem, turns: heard.append([*turns]))
    said(agent, "1+1=\n3\n3</s>")
    [talk] = converse(agent, task, task.training[:1])
    assert heard == [["1+1=\n3\n3"]] and talk.turns == heard[0] and all(talk.mine)
    assert calculator({}, talk.turns) is None
    agent.args.chat, agent.tokenizer = True, tokenizer_of_turns()
    agent.model = AutoModelForCausalLM.from_config(LlamaConfig(**SMALL))
    heard.clear()
    said(agent, "1+1=<turn>\nuser 3<turn>\n</s>")
    agent.args.max_new_tokens = 30
    [talk] = converse(agent, task, task.training[:1])
    assert len(talk.turns) == 1 and all(talk.mine) and len(heard) == 1


def test_a_reply_stands_where_the_template_puts_it(make_args, monkeypatch):
    """Prompt, turn and reply are the tokens of the whole conversation; a reply may have a role of its own."""
    model = AutoModelForCausalLM.from_config(LlamaConfig(**SMALL))
    tokenizer = tokenizer_of_turns()
    tokenizer.chat_template = TURNS + "{% if add_generation_prompt %}assistant {% endif %}"
    monkeypatch.setattr(grpo_turns, "make_model", lambda args: (tokenizer, model))
    agent = Agent(make_args(chat=True))
    turn = tokenizer("1+1=<turn>", add_special_tokens=False).input_ids
    for reply, role in (("2", "user"), (polite(None, None), "tool")):
        found = tokenizer.decode(agent.encode(["a"])[0] + turn + agent.encode_reply(reply))
        content = grpo_turns.last_text(reply)
        assert found == f"user a<turn>\nassistant 1+1=<turn>\n{role} {content}<turn>\nassistant "
    agent.args.chat = False
    assert tokenizer.decode(agent.encode_reply("2")) == "\n2\n"


@pytest.mark.parametrize(("turns", "count"), [(1, 1), (2, 3), (3, 5)])
def test_most_turns(make_args, said, turns, count):
    """The model has the last word."""
    agent = Agent(args := make_args(max_turns=turns))
    said(agent, *["a</s>"] * turns)
    task = grpo_turns.make_task(args)
    [talk] = converse(agent, task, task.training[:1])
    assert talk.turns == ["a", "a1", "a", "a3", "a"][:count]


def test_a_turn_without_an_end_ends_the_conversation(make_args, said):
    agent = Agent(args := make_args())
    said(agent, "abcd")
    task = grpo_turns.make_task(args)
    assert [talk.turns for talk in converse(agent, task, task.training[:1])] == [["abcd"]]


def test_a_conversation_ends_where_the_model_would(make_args, said):
    """A text that it cannot read further is not gone on with."""
    agent = Agent(args := make_args())
    task = grpo_turns.make_task(args)
    said(agent, *["a</s>"] * 3)
    agent.model.config.max_position_embeddings = 15
    [talk] = converse(agent, task, task.training[:1])  # "3>", "a", an end, four of the reply: 8 + 4 tokens
    assert talk.turns == ["a", "a1", "a"]


def test_examples_are_whole_conversations(make_args):
    """Of a problem's turns the model learns its own; a problem without turns has an answer."""
    agent = Agent(make_args())
    problems = [{"prompt": "1>", "turns": ["ab", "c", "d"]}, {"prompt": "1>", "turns": None, "answer": "x"}]
    long, short = grpo_turns.transcripts(agent, problems)
    assert agent.tokenizer.decode(long.tokens) == "ab</s>\nc\nd</s>" and short.turns == ["x"]
    assert long.mine == [True] * 3 + [False] * 3 + [True] * 2 and all(short.mine)
    [cut] = grpo_turns.transcripts(agent, [{"prompt": "1>", "turns": ["abcdef"]}])
    assert len(cut.tokens) == agent.args.max_new_tokens


def test_scores_are_of_the_last_turn(make_args):
    task = grpo_turns.make_task(make_args())
    agent = Agent(make_args())
    found = []
    for turns in (["7", "!", "8"], ["8", "!", "7"]):
        problem = {"prompt": "p", "answer": "8", "turns": turns}
        found += grpo_turns.transcripts(agent, [problem])
    assert grade(agent, task, found) == ([1, 0], [1.0, 0.0])
    seen = []
    task = task._replace(reward=lambda turns, **_: seen.append(turns) or [1, 2])
    assert [float(x) for x in grade(agent, task, found)[0]] == [1, 2]
    assert seen == [[["7", "!", "8"], ["8", "!", "7"]]]


def test_calculator():
    assert calculator({}, ["1+2=", "3", "30+12="]) == "42"
    for other in ("12", "1+2", "1+=", " 1+2=", "1+2=3", "1-2=", "1+2=\n"):
        assert calculator({}, [other]) is None


def test_problems_of_the_calculator():
    """All pairs, once each; two of five are solved, with replies that the world gives."""
    problems = grpo_turns.sum_problems()
    assert len({problem["prompt"] for problem in problems}) == len(problems) == 10_000
    solved = [problem for problem in problems if len(problem["turns"]) == 3]
    assert len(solved) == 4_000
    for problem in solved:
        a, b = map(int, problem["prompt"][:-1].split("+"))
        assert problem["turns"] == [f"{a}+{b}=", str(a + b), str(a + b)]
        assert calculator(problem, problem["turns"][:1]) == problem["answer"] == str(a + b)
    guesses = [problem["turns"][0] == problem["answer"] for problem in problems if len(problem["turns"]) == 1]
    assert np.mean(guesses) < 0.02


def test_a_run(make_args):
    """Its log, its files, and its first step on fresh data."""
    args = make_args(iterations=2)
    _, log = grpo_turns.train(args)
    for row in log:
        assert row["sampler_gap"] < 1e-5 and 1 <= row["turns"] <= 3
    answers = read(Path(args.run_dir) / "completions.jsonl")
    assert len(answers) == 3 and all(len(answer["turns"]) % 2 for answer in answers)
    first = read(Path(args.run_dir) / "answers_00000000.jsonl")
    assert len(first) == 8 and np.mean([answer["score"] for answer in first]) == log[0]["score"]
    turns = np.mean([len(answer["turns"]) // 2 + 1 for answer in first])
    assert log[0]["turns"] == turns and log[0]["length"] > 0


def test_stopped_and_resumed(make_args, monkeypatch):
    args = make_args(iterations=4, checkpoints=4)
    grpo_turns.train(args)
    stopped = make_args(iterations=4, checkpoints=4)

    def stop(row):
        if row["steps"] == 16:
            raise Stopped

    with pytest.raises(Stopped):
        grpo_turns.train(stopped, stop)
    stopped.resume, stopped.run_dir = stopped.run_dir, None
    grpo_turns.train(stopped)
    a, b = checkpoint(args.run_dir), checkpoint(stopped.resume)
    assert all(same(a[key], b[key]) for key in ("agent", "optimizer", "iteration"))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"world": "no_such"}, "--world no_such: ModuleNotFoundError"),
        ({"world": "test_turns:no_such"}, "--world test_turns:no_such: AttributeError"),
        ({"max_turns": 0}, "--max-turns 0 is not between 1 and"),
        ({"reward": "test_turns:no_such"}, "--reward test_turns:no_such: AttributeError"),
    ],
)
def test_mistake(make_args, capfd, flags, message):
    assert message in refused(grpo_turns, make_args(**flags), capfd)


def test_turns_that_are_no_texts(make_args, tmp_path, capfd):
    path = tmp_path / "wrong.jsonl"
    path.write_text('{"prompt": "1", "answer": "2", "turns": ["1", 2]}\n')
    message = refused(grpo_turns, make_args(task=str(path)), capfd)
    assert "wrong.jsonl line 1: ValueError: turns is a list of texts" in message


def test_a_reply_that_is_none(make_args, said):
    agent = Agent(args := make_args(world="test_turns:number"))
    said(agent, "a</s>")
    task = grpo_turns.make_task(args)
    with pytest.raises(grpo_turns.Mistake, match="--world returns 42, but a reply is a text, a list of"):
        converse(agent, task, task.training[:1])


def test_a_folder_does_not_import_code_unasked(make_args, command_line):
    """Of a run that somebody else has made, say."""
    args = make_args(iterations=1)
    grpo_turns.train(args)
    code, _, err = command_line(grpo_turns, "--evaluate", args.run_dir)
    assert code == 2 and "would import code; if you trust it, add --world test_turns:echo" in err
    code, out, _ = command_line(grpo_turns, "--evaluate", args.run_dir, "--world", "test_turns:echo")
    assert code == 0 and "of 3 held-out prompts" in out


def test_another_world_of_the_same_name(make_args, tmp_path, monkeypatch):
    """A run does not go on in a world that has changed."""
    path = tmp_path / "world_that_changes.py"
    path.write_text("def reply(problem, turns):\n    return None\n")
    monkeypatch.syspath_prepend(tmp_path)
    args = make_args(world="world_that_changes:reply", iterations=1)
    grpo_turns.train(args)
    path.write_text("def reply(problem, turns):\n    return '1'\n")
    args.resume, args.run_dir = args.run_dir, None
    with pytest.raises(grpo_turns.Mistake, match="its world has changed since the run was saved"):
        grpo_turns.train(args)


@pytest.mark.slow
def test_it_learns_to_ask_the_calculator(tmp_path):
    args = Args(total_episodes=12_800, run_dir=str(tmp_path / "run"), checkpoints=0)
    _, log = grpo_turns.train(args)
    assert log[0]["score"] < 0.45 and log[-1]["eval_score"] > 0.85
    assert not math.isnan(log[-1]["kl"]) and isinstance(Conversation({}, []).turns, list)
