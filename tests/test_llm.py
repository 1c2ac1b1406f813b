"""PPO and GRPO of language models: the policy, what counts, losses and advantages, by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from test_operations import same  # noqa: F401
from texts import (  # noqa: F401
    PROMPTS,
    assert_greedy_without_a_cache,
    encoded,
    equal,
    first_batch,
    gpt2,
    graded,
    large,
    look,
    loss_name,
    loss_of,
    make_agent,
    make_args,
    none,
    one_for_each_token,
    only_grpo,
    only_ppo,
    positions,
    raw,
    script,
)
from torch.distributions import Categorical, kl_divergence

from variants import grpo, ppo_llm

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
    tokens, attended, *_ = script.complete(agent, PROMPTS)
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
    tokens, attended, mask, *_ = script.complete(agent, PROMPTS)
    learner, _ = look(agent, tokens, attended, mask)
    torch.testing.assert_close(learner, torch.stack(steps, 1)[mask], atol=1e-4, rtol=0)
    assert learner.std() > 0.1


def test_left_padding_and_what_is_under_it_change_nothing(script, positions):
    agent = make_agent(script)
    tokens, attended, mask, *_ = script.complete(agent, PROMPTS)
    before = look(agent, tokens, attended, mask)
    garbage = torch.randint(3, 259, (len(PROMPTS), 5))
    padded = torch.cat([garbage, tokens.where(attended, 99)], 1)
    wider = torch.cat([torch.zeros_like(garbage, dtype=torch.bool), attended], 1)
    torch.testing.assert_close(look(agent, padded, wider, mask), before, atol=1e-4, rtol=0)


def test_a_row_alone_is_as_in_a_batch(script, positions):
    agent = make_agent(script)
    tokens, attended, mask, *_ = script.complete(agent, PROMPTS, greedy=True)
    together = look(agent, tokens, attended, mask).split(mask.sum(1).tolist(), 1)
    for n, prompt in enumerate(PROMPTS):
        alone = script.complete(agent, [prompt], greedy=True)
        T = int(mask[n].sum())
        assert alone[0][0, -T:].tolist() == tokens[n, -mask.shape[1] :][:T].tolist()
        torch.testing.assert_close(look(agent, *alone[:3]), together[n], atol=1e-4, rtol=0)


def test_greedy_with_a_cache_is_greedy_without(script, positions):
    assert_greedy_without_a_cache(script)


def test_temperature_is_of_sampling_learning_and_reference(script):
    agent, cold = make_agent(script), make_agent(script, temperature=2.0)
    for each in (agent, cold):
        each.reference = each.model
    tokens, attended, mask, *_ = script.complete(agent, PROMPTS)
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
    tokens, attended, mask, *_ = script.complete(agent, PROMPTS)
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
    tokens, attended, *_ = script.complete(agent, PROMPTS)
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
    tokens, attended, *_ = only_ppo.complete(agent, PROMPTS)
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
    tokens, attended, *_ = script.complete(agent, PROMPTS)
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
    rows = script.complete(agent, PROMPTS)[:3]
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
    args = make_args(ppo_llm, iterations=3, gamma=0.9, gae_lambda=0.7, reward="texts:one_for_each_token")
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
    _, log = ppo_llm.train(make_args(ppo_llm, iterations=1, reward="texts:one_for_each_token"))
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
    _, log = ppo_llm.train(make_args(ppo_llm, iterations=8, reward="texts:equal", gae_lambda=1.0))
    assert log[-1]["value_loss"] < 0.2 * log[0]["value_loss"]


def test_values_are_of_the_states_before_the_tokens(only_ppo):
    """By the critic's last hidden state of each row alone, as logits are the model's."""
    agent = make_agent(ppo_llm)
    tokens, attended, mask, *_ = ppo_llm.complete(agent, PROMPTS)
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
    _, log = grpo.train(make_args(grpo, reward="texts:equal", kl_coef=0.0))
    assert log[0]["grad_norm"] == 0 and log[0]["signal"] == 0
    _, log = grpo.train(make_args(grpo))
    assert log[0]["grad_norm"] > 0 and log[0]["signal"] == 1
    large = make_args(grpo, reward="texts:large", num_envs=12, group_size=6)  # whose mean is rounded
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
