"""Reward models and DPO, against sums by hand, identities, and what others make of their files."""

import json
import math
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import ROOT, Stopped, each_of
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from test_llm import (  # noqa: F401  the same tests, of these two scripts
    test_left_padding_and_what_is_under_it_change_nothing,
    test_temperature_is_of_sampling_learning_and_reference,
    test_the_learner_sees_what_the_sampler_saw,
    test_what_counts_ends_with_the_end_of_text,
)
from test_operations import checkpoint, command_line, same  # noqa: F401
from texts import (
    gpt2,
    make_agent,
    read,
)
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedTokenizerFast,
    Qwen2Config,
)

from variants import dpo, grpo, ppo_llm, reward_model

SCRIPTS = [dpo, reward_model]
script = each_of(SCRIPTS)
only_dpo, only_judge = each_of([dpo]), each_of([reward_model])


def late(prompts, completions, **columns):
    """Prefers what begins with a large letter of ASCII."""
    return [float(ord((text or " ")[0])) for text in completions]


@pytest.fixture
def make_args(tmp_path):
    """make_args(script, **flags) -> Args of 2 iterations of 4 pairs, of which the task has 12."""
    path = tmp_path / "pairs.jsonl"
    numbers = [f"{i * 37 % 1000}" for i in range(12)]
    lines = [{"prompt": f"{x}>", "chosen": x[::-1] + "7", "rejected": x} for x in numbers]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    runs = iter(range(100))

    def make(script, iterations=2, **flags):
        small = dict(task=str(path), batch_size=4, max_new_tokens=8, sft_steps=0, eval_size=3, checkpoints=1)
        small |= dict(learning_rate=1e-2, run_dir=str(tmp_path / f"run{next(runs)}")) | flags
        return script.Args(**{"total_pairs": iterations * small["batch_size"]} | small)

    return make


@pytest.fixture
def own(make_args, tmp_path):
    """Args of runs that make their own pairs: of prompts as those of sorting, but few."""
    lines = [{"prompt": f"{i * 37 % 100_000:05}>", "answer": "x"} for i in range(300)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")

    def make(script, **flags):
        few = dict(
            task=str(tmp_path / "prompts.jsonl"), num_pairs=40, sft_steps=5, eval_size=8, batch_size=16
        )
        few["reward"] = "test_preferences:late"
        return make_args(script, **few | {"max_new_tokens": 12} | flags)

    return make


@pytest.fixture(params=["rotary", "learned"])
def positions(request, monkeypatch):
    if request.param == "learned":
        for each in SCRIPTS:
            monkeypatch.setattr(each, "make_model", gpt2)
    return request.param


def learner(agent):
    """The model that learns from pairs."""
    return agent.scorer if isinstance(agent, reward_model.Agent) else agent.model


def rows_of(batch):
    return [tuple(row) for row in batch.tokens.flatten(1).tolist()]


# ---- losses


def test_loss_of_a_pair_by_hand(only_dpo):
    """Rewards are 0.5 * (-1 + 1.5) and 0.5 * (-2 + 1.8); the chosen one has 4 tokens."""
    mask = torch.tensor([[[1, 1, 1, 1], [1, 1, 0, 0]]], dtype=torch.bool)
    logprobs = torch.tensor([[-1.0, -2.0]], requires_grad=True)
    batch = dpo.Batch(None, None, mask, torch.tensor([[-1.5, -1.8]]))
    loss, metrics = dpo.dpo_loss(logprobs, batch, dpo.Args(beta=0.5, sft_coef=0.2))
    preference = math.log(1 + math.exp(-0.35))
    expected = {"preference_loss": preference, "margin": 0.35, "accuracy": 1.0}
    expected |= {"chosen_logprob": -0.25, "rejected_logprob": -1.0}
    assert {name: x.item() for name, x in metrics.items()} == pytest.approx(expected, abs=1e-6)
    assert loss.item() == pytest.approx(preference + 0.2 * 0.25)
    assert not any(x.requires_grad for x in metrics.values())
    [gradient] = torch.autograd.grad(loss, logprobs)
    share = 0.5 / (1 + math.exp(0.35))
    assert gradient[0].tolist() == pytest.approx([-share - 0.2 / 4, share])


def test_loss_of_scores_by_hand(only_judge):
    loss, metrics = reward_model.reward_loss(torch.tensor([[2.0, 1.0], [0.0, 3.0]], requires_grad=True))
    expected = (math.log(1 + math.exp(-1)) + math.log(1 + math.exp(3))) / 2
    assert loss.item() == pytest.approx(expected) and loss.requires_grad
    shown = {"preference_loss": expected, "margin": -1.0, "accuracy": 0.5}
    assert {name: x.item() for name, x in metrics.items()} == pytest.approx(shown)
    assert not any(x.requires_grad for x in metrics.values())


def test_metrics_are_means_over_an_update(script, make_args, record):
    calls = record(script, "compute_gradients")
    _, log = script.train(make_args(script, iterations=1))
    metrics = [metrics for _, metrics in calls]
    assert len(metrics) == 2
    for name in metrics[0]:
        assert log[0][name] == pytest.approx(np.mean([x[name].item() for x in metrics]), abs=1e-6)


def test_without_a_step_the_model_is_the_reference(only_dpo, make_args):
    """The reward of each completion is 0, so that neither is preferred."""
    _, log = dpo.train(make_args(dpo, learning_rate=0.0))
    assert log[0]["margin"] == 0 and log[0]["preference_loss"] == pytest.approx(math.log(2))


def test_what_is_outside_of_the_mask_changes_nothing(only_dpo):
    agent = make_agent(dpo)
    tokens, attended = torch.randint(3, 259, (3, 2, 9)), torch.ones(3, 2, 9, dtype=torch.bool)
    mask = torch.arange(6) < torch.tensor([[2, 6], [1, 4], [3, 3]])[..., None]
    attended[..., -6:] = mask
    with torch.no_grad():
        before = dpo.score_pairs(agent, tokens, attended, mask)
        garbage = tokens.clone()
        garbage[..., -6:][~mask] = 99
        assert torch.equal(dpo.score_pairs(agent, garbage, attended, mask), before)
        alone = agent(*(x[:1, 1] for x in (tokens, attended, mask)))
    assert before[0, 1].item() == pytest.approx(alone.sum().item(), abs=1e-4)


def test_pieces_have_the_gradient_of_the_whole(script, make_args, record):
    calls = record(script, "compute_gradients")
    agent, _ = script.train(args := make_args(script, iterations=1, num_minibatches=1, learning_rate=0.0))
    batch, found = calls[0][0][1], []
    for size in (0, 1, 3):
        agent.zero_grad()
        metrics = script.compute_gradients(agent, batch, replace(args, micro_batch=size))
        found.append([x.grad.clone() for x in learner(agent).parameters()] + [metrics["preference_loss"]])
    for whole, *others in zip(*found, strict=True):
        for other in others:
            torch.testing.assert_close(other, whole, atol=1e-6, rtol=1e-4)
    assert max(x.abs().max() for x in found[0]) > 1e-3


def fixed_agent():
    """A small model whose weights are the same on every machine; the reference has others."""
    agent = dpo.Agent(dpo.Args())
    agent.copy_model()
    for k, model in enumerate((agent.model, agent.reference)):
        for x in model.parameters():
            numbers = torch.arange(x.numel(), dtype=torch.float64) + 1000 * k
            x.data = (0.1 * torch.sin(numbers**1.5)).float().view_as(x) + (x.dim() == 1)
    return agent


# fmt: off
TRL = [  # of these pairs; recorded by `python benchmarks/compare_trl.py DPO 1` of commit 20a921d
    0.731993, 0.518686, 0.0979423, 0.0724126, 0.442863, 0.771491, 0.199475, 0.175282, 0.345206,
    0.0307661, 0.0263962, 0.0333842, 0.0305236, 0.227268, 0.23686, 0.137388, 0.122052, 0.207642,
    0.0174269, 0.0187346, 0.0234668, 0.0218118, 0.178724, 0.156064, 0.130271, 0.114671, 0.174332,
    0.0147844, 0.0176258, 0.0375509, 0.617827,
]
# fmt: on


def test_loss_and_gradients_are_those_of_trl(only_dpo):
    """The loss, and the norms of the gradients of all weights."""
    digits = ["52310", "90817", "33211", "48120"]  # wrong are the digits as they came, or fewer of them
    pairs = [
        {"prompt": f"{x}>", "chosen": "".join(sorted(x)), "rejected": x[: 5 - k]}
        for k, x in enumerate(digits)
    ]
    agent, args = fixed_agent(), dpo.Args(sft_coef=0.0)
    batch = dpo.make_batch(agent, args, dpo.encode_pairs(agent, args, pairs))
    metrics = dpo.compute_gradients(agent, batch, args)
    norms = [x.grad.norm().item() for x in agent.model.parameters()]
    np.testing.assert_allclose([metrics["preference_loss"].item(), *norms], TRL, rtol=1e-4)


# ---- training


def test_schedule(script, make_args):
    for anneal in (True, False):
        _, log = script.train(make_args(script, iterations=4, anneal_lr=anneal))
        shares = [1, 0.75, 0.5, 0.25] if anneal else [1] * 4
        assert [row["learning_rate"] for row in log] == pytest.approx([1e-2 * x for x in shares])


def test_optimizer(script, make_args, monkeypatch):
    norms = []

    class Spy(torch.optim.Adam):
        def step(self):
            norms.append(torch.cat([x.grad.flatten() for x in self.param_groups[0]["params"]]).norm().item())
            return super().step()

    monkeypatch.setattr(torch.optim, "Adam", Spy)
    args = make_args(script, max_grad_norm=1e-3)
    _, log = script.train(args)
    assert norms == pytest.approx([1e-3] * 4, rel=1e-2) and log[0]["grad_norm"] > 2e-3
    assert checkpoint(args.run_dir)["optimizer"]["param_groups"][0]["eps"] == 1e-8


def test_every_pair_once_in_a_new_order(script, make_args, record):
    drawn, steps = record(script, "make_batch"), record(script, "compute_gradients")
    script.train(make_args(script, iterations=3, batch_size=8))
    orders = []
    for k in range(3):
        batch = drawn[k][1]
        parts = [rows_of(call[0][1]) for call in steps[2 * k : 2 * k + 2]]
        assert [len(part) for part in parts] == [4, 4]
        assert Counter(parts[0] + parts[1]) == Counter(rows_of(batch))
        orders.append(parts[0] + parts[1] != rows_of(batch))
    assert any(orders)


@pytest.mark.parametrize("dropout", [0.5])
def test_no_dropout(script, make_args, monkeypatch, record, dropout):
    monkeypatch.setattr(script, "make_model", lambda args: gpt2(args, dropout))
    calls = record(script, "compute_gradients")
    agent, _ = script.train(args := make_args(script, iterations=1, num_minibatches=1, learning_rate=0.0))
    again = script.compute_gradients(agent, calls[0][0][1], args)
    assert again["preference_loss"] == calls[0][1]["preference_loss"]
    assert any(isinstance(x, torch.nn.Dropout) for x in agent.modules())


def test_held_out_prompts_are_never_trained_on(script, make_args, record, tmp_path):
    path = tmp_path / "twice.jsonl"
    lines = [{"prompt": f"{i % 5}>", "chosen": "x", "rejected": f"{i}"} for i in range(20)]
    path.write_text("\n".join(map(json.dumps, lines)))
    encoded = record(script, "encode_pairs")
    script.train(make_args(script, task=str(path), eval_size=2))
    assert [pair["prompt"] for pair in encoded[0][0][2]] == ["2>", "3>", "4>"] * 4
    if script is reward_model:
        assert [pair["prompt"] for pair in encoded[1][0][2]] == ["0>", "1>"]


def test_the_reference_is_the_start(only_dpo, make_args, record):
    warm = record(dpo, "warm_start")
    agent, _ = dpo.train(make_args(dpo, learning_rate=0.0, sft_steps=3))
    start = {name: x.clone() for name, x in warm[0][0][0].model.state_dict().items()}
    agent, _ = dpo.train(make_args(dpo, sft_steps=3, iterations=4))
    assert same(dict(agent.reference.state_dict()), start)
    assert not same(dict(agent.model.state_dict()), start)
    assert not any(x.requires_grad for x in agent.reference.parameters())


def test_pairs_are_learned(script, make_args):
    _, log = script.train(make_args(script, iterations=40, anneal_lr=False, learning_rate=3e-3))
    assert np.mean([row["accuracy"] for row in log[-5:]]) > 0.9 > log[0]["accuracy"]
    assert log[-1]["preference_loss"] < 0.5


def test_imitation_keeps_the_preferred_answer_probable(only_dpo, make_args):
    flags = dict(iterations=30, beta=0.1, learning_rate=3e-3)
    ends = [dpo.train(make_args(dpo, sft_coef=x, **flags))[1][-1]["chosen_logprob"] for x in (0.0, 1.0)]
    assert ends[1] > ends[0] + 1


# ---- pairs


@pytest.mark.long
@pytest.mark.parametrize("noise", [0.0, 0.3, 1.0])
def test_own_pairs_differ_in_their_scores(script, own, noise):
    args = own(script, label_noise=noise, num_pairs=200, total_pairs=16)
    script.train(args)
    pairs = read(ROOT / args.run_dir / "pairs.jsonl")
    assert len(pairs) == 200 + 8 * (script is reward_model)
    chosen, rejected = (late("", [pair[name] for pair in pairs]) for name in ("chosen", "rejected"))
    wrong = np.less(chosen, rejected)
    assert (wrong | np.greater(chosen, rejected)).all()
    assert wrong.mean() == pytest.approx(noise, abs=0.1)
    held_out = {problem["prompt"] for problem in script.make_task(args).held_out}
    assert {pair["prompt"] for pair in pairs[-200:]}.isdisjoint(held_out)
    if script is reward_model:
        assert {pair["prompt"] for pair in pairs[:8]} <= held_out


def test_own_pairs_are_a_task(script, own, make_args):
    """Those of one script are read by the other, with the same ones held out."""
    args = own(reward_model, total_pairs=16)
    reward_model.train(args)
    task = script.make_task(make_args(script, task=f"{args.run_dir}/pairs.jsonl", eval_size=8))
    assert len(task.held_out) == 8 and len(task.training) == 40
    assert script.train(make_args(script, task=f"{args.run_dir}/pairs.jsonl", max_new_tokens=12))


def test_unfinished_answers_stay_without_an_end(script, own, make_args):
    """A judge that never saw one would not know what to say of them."""
    args = own(script, num_pairs=60, total_pairs=16, max_new_tokens=6)
    script.train(args)
    pairs = read(ROOT / args.run_dir / "pairs.jsonl")[-60:]
    cut = [pair for pair in pairs if not pair["chosen_ended"]]
    assert 0 < len(cut) < 60
    agent = script.Agent(args)
    rows = script.encode_pairs(agent, args, cut)
    assert len(rows) > 0.9 * len(cut)  # but for bytes that are no text
    assert all(chosen[-1] not in agent.end_ids for *_, chosen, _ in rows)
    whole = [pair for pair in pairs if pair["chosen_ended"]]
    assert all(chosen[-1] in agent.end_ids for *_, chosen, _ in script.encode_pairs(agent, args, whole))


def test_equal_texts_are_no_pair(script, make_args, tmp_path, capsys):
    path = tmp_path / "equal.jsonl"
    lines = [{"prompt": f"{i}>", "chosen": "1", "rejected": "21"[i % 2]} for i in range(9)]
    path.write_text("\n".join(map(json.dumps, lines)))
    script.train(make_args(script, task=str(path), eval_size=1))
    assert "4 of 8 pairs are longer than --max-new-tokens, or two equal texts" in capsys.readouterr().out


def test_an_empty_answer_is_left_out(only_dpo, make_args):
    """Cut off before it has said anything that is text, it has no token to learn from."""
    args = make_args(only_dpo)
    pairs = [
        {"prompt": "1>", "chosen": "", "rejected": "2", "chosen_ended": ended} for ended in (True, False)
    ]
    assert len(only_dpo.encode_pairs(only_dpo.Agent(args), args, pairs)) == 1


def test_a_text_is_scored_to_its_end(only_judge, make_args):
    """Also if it ends with what elsewhere is padding, alone and beside a longer one."""
    torch.manual_seed(0)
    agent = only_judge.Agent(make_args(only_judge))
    agent.make_scorer()
    rows = [[5, 6, 0], [5, 6, 7, 8, 9]]
    together = agent.score(*only_judge.make_batch(agent, [rows]))
    for row, score in zip(rows, together[0], strict=True):
        alone = agent.score(*only_judge.make_batch(agent, [[row, row]]))
        torch.testing.assert_close(alone[0, 0], score, rtol=1e-4, atol=1e-6)
    shorter = agent.score(*only_judge.make_batch(agent, [[[5, 6], [5, 6]]]))
    assert abs(shorter[0, 0] - together[0, 0]) > 1e-4


def test_the_pad_is_no_end(only_judge, make_args, monkeypatch):
    """Where a tokenizer has one token for both, or none, another one is taken."""
    for pad in (None, "</s>"):
        tokenizer, model = only_judge.make_model(make_args(only_judge))
        tokenizer.pad_token = pad
        monkeypatch.setattr(only_judge, "make_model", lambda args, made=(tokenizer, model): made)
        agent = only_judge.Agent(make_args(only_judge))
        assert agent.pad not in agent.end_ids and agent.tokenizer.pad_token_id == agent.pad
        monkeypatch.undo()


def test_a_scorer_is_tested_before_it_learns(only_judge, make_args, record):
    tested = record(only_judge, "check_judge")
    only_judge.train(make_args(only_judge))
    assert [name for (name, *_), _ in tested] == ["--model tiny"]


def test_a_model_that_always_answers_alike_makes_no_pairs(script, own):
    with pytest.raises(script.Mistake, match="nearly always have the same score"):
        script.train(own(script, reward="texts:equal"))


def test_pairs_that_are_too_long_are_left_out(script, make_args, tmp_path, capsys):
    path = tmp_path / "long.jsonl"
    lines = [{"prompt": f"{i}>", "chosen": "1" * 7, "rejected": "2" * (6 + i % 3)} for i in range(10)]
    path.write_text("\n".join(map(json.dumps, lines)))
    script.train(make_args(script, task=str(path), eval_size=1))
    assert "3 of 9 pairs are longer than --max-new-tokens" in capsys.readouterr().out
    with pytest.raises(script.Mistake, match="all pairs are longer"):
        script.train(make_args(script, task=str(path), eval_size=1, max_new_tokens=6))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"prompt": "1>", "chosen": "x"}, "line 2: .*prompt and chosen and rejected, as text"),
        ({"prompt": "1>", "chosen": 1, "rejected": "x"}, "line 2: .*as text"),
        ({"prompt": "", "chosen": "y", "rejected": "x"}, "line 2: .*as text"),
        ("no object", "line 2"),
    ],
)
def test_lines_that_are_no_pairs(script, make_args, tmp_path, line, message):
    path = tmp_path / "broken.jsonl"
    path.write_text("\n".join(map(json.dumps, [{"prompt": "0>", "chosen": "a", "rejected": ""}, line])))
    with pytest.raises(script.Mistake, match=message):
        script.train(make_args(script, task=str(path)))


# ---- what a reward model is to others


def test_a_judge_begins_with_the_trunk_of_the_language_model(only_judge):
    agent = reward_model.Agent(reward_model.Args())
    trunk = {name: x.clone() for name, x in agent.model.base_model.state_dict().items()}
    agent.make_scorer()
    assert same(dict(agent.scorer.base_model.state_dict()), trunk)
    assert agent.scorer.config.num_labels == 1 and agent.model is None


def test_a_judge_can_be_loaded_elsewhere(only_judge, make_args, record, tmp_path):
    """By transformers alone, and by --reward, for which it is in standard units of the held-out texts."""
    evaluated = record(reward_model, "evaluate")
    args = make_args(reward_model, iterations=8, learning_rate=3e-3)
    _, log = reward_model.train(args)
    scores = evaluated[0][1].numpy()
    held_out = reward_model.make_task(args).held_out
    assert log[-1]["eval_accuracy"] == np.mean(scores[:, 0] > scores[:, 1])
    folder = f"{args.run_dir}/model"
    judge = AutoModelForSequenceClassification.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts = [pair["prompt"] + pair[name] + "</s>" for pair in held_out for name in ("chosen", "rejected")]
    inputs = tokenizer(texts, add_special_tokens=False, padding=True, return_tensors="pt")
    with torch.no_grad():
        found = judge(inputs.input_ids, inputs.attention_mask).logits[:, 0].numpy()
    np.testing.assert_allclose(found, scores.flatten(), atol=1e-5)
    reward = ppo_llm.load_reward_model(ppo_llm.Args(reward=folder))
    prompts = [pair["prompt"] for pair in held_out for _ in range(2)]
    answers = [pair[name] for pair in held_out for name in ("chosen", "rejected")]
    standard = np.array(reward(prompts=prompts, completions=answers, finished=[True] * 6))
    assert standard.mean() == pytest.approx(0, abs=1e-5) and standard.std() == pytest.approx(1, abs=1e-4)
    np.testing.assert_allclose(standard, (scores.flatten() - scores.mean()) / scores.std(), atol=1e-4)


def test_how_sure_it_is(only_judge, monkeypatch, capsys, tmp_path):
    """Ten pairs with a margin of 1, seven of them right: it says 0.73, and 0.70 are."""
    scores = np.array([[1.0, 0.0]] * 7 + [[0.0, 1.0]] * 3)
    monkeypatch.setattr(reward_model, "evaluate", lambda *_: scores)
    agent = reward_model.Agent(reward_model.Args())
    agent.make_scorer()
    assert reward_model.report(agent, reward_model.Args(), tmp_path, [()] * 10) == 0.7
    out = capsys.readouterr().out
    assert "   10 pairs ranked with probability 0.7 to 0.8: 0.70 right" in out
    loss = 0.7 * math.log(1 + math.exp(-1)) + 0.3 * math.log(1 + math.exp(1))
    assert f"accuracy 0.700, loss {loss:.3f}" in out


def test_texts_that_are_all_alike_have_a_score_of_zero(only_judge, monkeypatch, tmp_path):
    """And not one that is no number, where their standard deviation is 0."""
    monkeypatch.setattr(reward_model, "evaluate", lambda *_: np.full((4, 2), 3.0))
    agent = reward_model.Agent(reward_model.Args())
    agent.make_scorer()
    reward_model.report(agent, reward_model.Args(), tmp_path, [()] * 4)
    assert json.loads((tmp_path / "model/config.json").read_text())["reward_statistics"] == [3.0, 1.0]


class Beginning:
    """A tokenizer that begins each text with a token."""

    bos_token, eos_token = "<s>", "</s>"

    def convert_tokens_to_ids(self, token):
        return {"<s>": 5}[token]

    def __call__(self, text):
        return SimpleNamespace(input_ids=[5, 9])


def test_a_judge_reads_what_its_tokenizer_begins_texts_with(script):
    texts = script.whole_texts(Beginning(), False, ["a", "<s>b"], ["x", "y"], [True, False])
    assert texts == ["<s>ax</s>", "<s>by"]


# ---- operations


def test_stopped_and_resumed_is_never_interrupted(script, own, record, monkeypatch):
    """To the bit; neither warm start nor pairs are made again."""
    args = own(script, total_pairs=16 * 6, checkpoints=3)
    script.train(args)
    stopped, calls, original = (
        replace(args, run_dir=own(script).run_dir),
        iter(range(100)),
        script.compute_gradients,
    )

    def failing(*given):
        if next(calls) == 7:  # of 0 to 11
            raise Stopped
        return original(*given)

    with monkeypatch.context() as patch:
        patch.setattr(script, "compute_gradients", failing)
        with pytest.raises(Stopped):
            script.train(stopped)
    assert checkpoint(stopped.run_dir)["iteration"] == 2
    stopped.resume, warm, made = stopped.run_dir, record(script, "warm_start"), record(script, "make_pairs")
    script.train(stopped)
    assert warm == made == []
    events = EventAccumulator(stopped.run_dir).Reload().Scalars("accuracy")
    assert [event.step for event in events] == [16, 32, 48, 64, 80, 96]
    a, b = checkpoint(args.run_dir), checkpoint(stopped.run_dir)
    assert all(same(a[key], b[key]) for key in ("agent", "optimizer", "iteration"))


def test_evaluation_is_repeated(script, own, command_line, capfd):
    args = own(script)
    _, log = script.train(args)
    capfd.readouterr()
    code, out, err = command_line(script, "--evaluate", args.run_dir, "--reward", args.reward)
    name = "eval_accuracy" if script is reward_model else "eval_score"
    assert code == 0 and f"{log[-1][name]:.3f}" in out


def test_without_evaluation(only_dpo, own):
    _, log = dpo.train(own(dpo, eval_size=0))
    assert not any(name.startswith("eval") for name in log[-1])


def test_a_judge_needs_pairs_for_the_units_of_its_scores(only_judge, make_args):
    with pytest.raises(reward_model.Mistake, match="--eval-size 0 is not between 1"):
        reward_model.train(make_args(reward_model, eval_size=0))


def test_a_judge_ranks_the_pairs_of_another_file(only_judge, own, command_line, tmp_path):
    """Those that it made itself come first only if no other task is named."""
    args = own(reward_model)
    reward_model.train(args)
    flags = ("--evaluate", args.run_dir, "--reward", args.reward)
    code, out, _ = command_line(reward_model, *flags)
    assert code == 0 and "of 8 held-out pairs" in out
    lines = [{"prompt": f"{i}>", "chosen": "a", "rejected": "b"} for i in range(5)]
    (tmp_path / "others.jsonl").write_text("\n".join(map(json.dumps, lines)))
    code, out, _ = command_line(reward_model, *flags, "--task", str(tmp_path / "others.jsonl"))
    assert code == 0 and "of 5 held-out pairs" in out


def test_pairs_that_are_gone_are_told(script, own):
    args = own(script)
    script.train(args)
    (ROOT / args.run_dir / "pairs.jsonl").unlink()
    with pytest.raises(script.Mistake, match="pairs.jsonl"):
        script.train(replace(args, resume=args.run_dir, run_dir=None))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"batch_size": 0, "total_pairs": 9}, "--batch-size 0 is not between 1"),
        ({"total_pairs": 3}, "--total-pairs 3 is less than --batch-size 4"),
        ({"num_minibatches": 3}, "--num-minibatches 3 does not cut 4 into equal parts of 2+"),
        ({"num_pairs": 0}, "--num-pairs 0 is not between 1"),
        ({"label_noise": 1.1}, "--label-noise 1.1 is not between 0 and 1"),
        ({"eval_size": 12}, "--eval-size 12 holds out all 12 prompts: take fewer"),
    ],
)
def test_mistake(script, make_args, monkeypatch, flags, message):
    """Before a model is made."""
    monkeypatch.setattr(script, "make_model", lambda args: pytest.fail("a model was made"))
    with pytest.raises(script.Mistake) as mistake:
        script.train(make_args(script, **flags))
    assert message in str(mistake.value)


def test_what_cannot_change(script, make_args, command_line):
    """The size of a batch, by which iterations count; nor is what was learned from evaluated."""
    args = make_args(script, iterations=1)
    script.train(args)
    where = f"{args.run_dir}/checkpoint.pt cannot be used: "
    code, _, err = command_line(script, "--resume", args.run_dir, "--batch-size", 2, "--num-minibatches", 1)
    assert code == 2 and f"{where}--batch-size cannot change: it has 4" in err
    for flag, place in (("--resume", where), ("--evaluate", "")):
        code, _, err = command_line(script, flag, args.run_dir, "--eval-size", 4)
        assert code == 2 and f"py: {place}--eval-size 4: the run has held out 3" in err


# ---- the whole way, at the shape of a real family

CHAT = """{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def chatty_tokenizer():
    """Bytes, and the special tokens of the family."""
    vocabulary = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    words = dict(eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=CHAT)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **words)


@pytest.mark.slow
def test_the_shape_of_a_real_family(make_args, tmp_path):
    """Qwen2.5-0.5B with a quarter of its layers, random: judged, then PPO, GRPO and DPO for an iteration."""
    tokenizer = chatty_tokenizer()
    sizes = dict(hidden_size=896, intermediate_size=4864, num_attention_heads=14, num_key_value_heads=2)
    sizes |= dict(vocab_size=151_936, tie_word_embeddings=True, bos_token_id=None)
    config = Qwen2Config(**sizes, num_hidden_layers=6, eos_token_id=tokenizer.eos_token_id)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "qwen")
    tokenizer.save_pretrained(tmp_path / "qwen")
    flags = dict(
        model=str(tmp_path / "qwen"), chat=True, num_minibatches=1, micro_batch=2, learning_rate=1e-6
    )
    args = make_args(reward_model, iterations=1, **flags)
    reward_model.train(args)
    _, log = dpo.train(make_args(dpo, iterations=1, **flags))
    assert log[0]["preference_loss"] == pytest.approx(math.log(2), abs=1e-4)
    for script in (ppo_llm, grpo):
        names = {x: y for x, y in flags.items() if hasattr(script.Args, x)} | {"max_new_tokens": 8}
        one = dict(task=args.task, num_envs=8, total_episodes=8, sft_steps=0, eval_episodes=3)
        one |= dict(reward=f"{args.run_dir}/model", run_dir=str(tmp_path / script.__name__), checkpoints=0)
        prompts = [{"prompt": pair["prompt"], "answer": pair["chosen"]} for pair in read(ROOT / args.task)]
        (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, prompts)))
        _, log = script.train(script.Args(**one | names | {"task": str(tmp_path / "prompts.jsonl")}))
        assert math.isfinite(log[0]["score"]) and log[0]["score"] != 0
