"""The losses against values and gradients worked out by hand."""

import math

import pytest
import torch
from torch.distributions import Categorical

import ppo_discrete
import reinforce_baseline
from ppo_discrete import ppo_loss


def ppo_args(**flags):
    """Only the policy's loss, raw, unless flags say otherwise."""
    neutral = dict(norm_adv=False, vf_coef=0.0, ent_coef=0.0, clip_coef=0.2, vf_clip_coef=math.inf)
    return ppo_discrete.Args(**neutral | flags)


def batch_of(M, **tensors):
    """A batch of zeros, and the given tensors."""
    zeros = {name: torch.zeros(M) for name in ppo_discrete.Batch._fields}
    return ppo_discrete.Batch(**zeros | tensors)


class Policy:
    """A stand-in for a distribution: log-probabilities and entropy are what we say they are."""

    def __init__(self, logprobs, entropy=0.0):
        self.logprobs, self.H = logprobs, torch.as_tensor(entropy)

    def log_prob(self, actions):
        return self.logprobs

    def entropy(self):
        return self.H


# The derivative of the loss by the ratio: 0 where the clip has taken over, -advantage where it has not.
@pytest.mark.parametrize(
    ("advantage", "ratio", "derivative"),
    [
        (1, 0.5, -1),
        (1, 1.0, -1),
        (1, 1.5, 0),
        (1, 10.0, 0),
        (-1, 0.5, 0),
        (-1, 1.0, 1),
        (-1, 1.5, 1),
        (-1, 10.0, 1),
    ],
)
def test_clip(advantage, ratio, derivative):
    logprobs = torch.tensor([math.log(ratio)], requires_grad=True)
    batch = batch_of(1, advantages=torch.tensor([float(advantage)]))
    loss, metrics = ppo_loss(Policy(logprobs), torch.zeros(1), batch, ppo_args())
    loss.backward()
    assert logprobs.grad.item() / ratio == pytest.approx(derivative, abs=1e-5)
    clipped = min(max(ratio, 0.8), 1.2)
    assert loss.item() == pytest.approx(-min(advantage * ratio, advantage * clipped), rel=1e-5)
    assert metrics["clip_frac"].item() == (ratio != 1)


def test_infinite_clip_is_no_clip():
    logprobs = torch.tensor([math.log(10.0)], requires_grad=True)
    batch = batch_of(1, advantages=torch.ones(1))
    ppo_loss(Policy(logprobs), torch.zeros(1), batch, ppo_args(clip_coef=math.inf))[0].backward()
    assert logprobs.grad.item() == pytest.approx(-10)


# Inside the clip; beyond it and away from the target; towards the target (no gradient); past the target.
@pytest.mark.parametrize(
    ("value", "old_value", "target", "loss", "derivative"),
    [(0.1, 0, 1, 0.405, -0.9), (-1, 0, 1, 2.0, -2.0), (5, 0, 10, 48.02, 0.0), (5, 0, 0.1, 12.005, 4.9)],
)
def test_value_clip(value, old_value, target, loss, derivative):
    value = torch.tensor([float(value)], requires_grad=True)
    batch = batch_of(1, values=torch.tensor([float(old_value)]), returns=torch.tensor([float(target)]))
    result, metrics = ppo_loss(Policy(torch.zeros(1)), value, batch, ppo_args(vf_coef=1.0, vf_clip_coef=0.2))
    result.backward()
    assert metrics["value_loss"].item() == pytest.approx(loss)
    assert value.grad.item() == pytest.approx(derivative, abs=1e-6)


def test_value_loss_is_half_the_squared_error_when_not_clipped():
    batch = batch_of(2, returns=torch.tensor([1.0, 3.0]))
    for module, args in ((ppo_discrete, ppo_args()), (reinforce_baseline, reinforce_baseline.Args())):
        _, metrics = getattr(module, loss_name(module))(Policy(torch.zeros(2)), torch.zeros(2), batch, args)
        assert metrics["value_loss"].item() == pytest.approx(2.5)


def loss_name(module):
    return "ppo_loss" if module is not reinforce_baseline else "reinforce_loss"


def test_overall_loss(discrete):
    """policy loss 0.3, value loss 2, entropy 1.5: 0.3 + 0.5 * 2 - 0.01 * 1.5."""
    batch = batch_of(1, advantages=torch.tensor([-0.3]), returns=torch.tensor([2.0]))
    args = discrete.Args(norm_adv=False, vf_coef=0.5, ent_coef=0.01)
    if discrete is reinforce_baseline:
        policy = Policy(torch.ones(1), 1.5)
    else:
        policy, args.vf_clip_coef = Policy(torch.zeros(1), 1.5), math.inf
    loss, _ = getattr(discrete, loss_name(discrete))(policy, torch.zeros(1), batch, args)
    assert loss.item() == pytest.approx(1.285)


def test_the_bonus_raises_entropy(discrete):
    logits = torch.tensor([[1.0, 0.0, -1.0]], requires_grad=True)
    args = discrete.Args(norm_adv=False, vf_coef=0.0, ent_coef=0.1)
    before = Categorical(logits=logits)
    batch = batch_of(1, logprobs=before.log_prob(torch.zeros(1)).detach())
    getattr(discrete, loss_name(discrete))(before, torch.zeros(1), batch, args)[0].backward()
    assert Categorical(logits=logits - logits.grad).entropy() > before.entropy()


def test_advantages_are_normalised_for_the_policy_alone():
    """With ratio 1 the gradient by the log-probabilities is -advantage / M: it shows what the loss used."""
    torch.manual_seed(0)
    for advantages in (100 + 50 * torch.randn(64), torch.randn(64)):
        seen, value_losses = {}, []
        for norm_adv in (True, False):
            logprobs = torch.zeros(64, requires_grad=True)
            batch = batch_of(64, advantages=advantages, returns=advantages)
            args = ppo_args(norm_adv=norm_adv, vf_coef=1.0)
            loss, metrics = ppo_loss(Policy(logprobs), torch.zeros(64), batch, args)
            loss.backward()
            seen[norm_adv] = -64 * logprobs.grad
            value_losses.append(metrics["value_loss"])
        assert seen[True].mean().item() == pytest.approx(0, abs=1e-5)
        assert seen[True].std().item() == pytest.approx(1, abs=1e-5)
        torch.testing.assert_close(seen[False], advantages)
        assert value_losses[0] == value_losses[1]


def test_kl_and_clip_fraction():
    """Old probabilities 0.5, 0.5, 0.9, 0.1 and new ones 0.6, 0.4, 0.8, 0.2, worked out by hand."""
    old, new = torch.tensor([0.5, 0.5, 0.9, 0.1]).log(), torch.tensor([0.6, 0.4, 0.8, 0.2]).log()
    new.requires_grad_()
    _, metrics = ppo_loss(Policy(new), torch.zeros(4), batch_of(4, logprobs=old), ppo_args(clip_coef=0.15))
    assert metrics["kl"].item() == pytest.approx(0.08859, abs=1e-5)
    assert metrics["clip_frac"].item() == 0.75
    assert not any(metric.requires_grad for metric in metrics.values())


def test_the_first_gradient_is_that_of_reinforce():
    """At ratio 1 neither clip is at work: PPO's gradient on fresh data is the policy gradient."""
    torch.manual_seed(0)
    logits, value = torch.randn(32, 3, requires_grad=True), torch.randn(32, requires_grad=True)
    actions = torch.randint(3, (32,))
    dist = Categorical(logits=logits)
    fresh = dict(actions=actions, advantages=torch.randn(32), returns=torch.randn(32))
    batch = batch_of(32, logprobs=dist.log_prob(actions).detach(), values=value.detach(), **fresh)
    ppo, _ = ppo_loss(dist, value, batch, ppo_discrete.Args())
    reinforce, _ = reinforce_baseline.reinforce_loss(
        dist, value, batch, reinforce_baseline.Args(norm_adv=True)
    )
    gradients = [torch.autograd.grad(loss, (logits, value), retain_graph=True) for loss in (ppo, reinforce)]
    torch.testing.assert_close(*gradients)
    assert all(gradient.abs().max() > 1e-3 for gradient in gradients[0])


def test_no_baseline_weighs_with_returns():
    logprobs = torch.zeros(2, requires_grad=True)
    batch = batch_of(2, advantages=torch.tensor([1.0, 2.0]), returns=torch.tensor([5.0, 7.0]))
    args = reinforce_baseline.Args(baseline=False, norm_adv=False)
    reinforce_baseline.reinforce_loss(Policy(logprobs), torch.zeros(2), batch, args)[0].backward()
    assert logprobs.grad.tolist() == [-2.5, -3.5]


def test_explained_variance(discrete):
    returns = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert discrete.explained_variance(returns, returns) == 1
    assert discrete.explained_variance(returns + 5, returns) == 1
    assert discrete.explained_variance(torch.full((2, 2), 9.0), returns) == 0
    assert discrete.explained_variance(-returns, returns) == pytest.approx(-3)
    assert math.isnan(discrete.explained_variance(returns, torch.ones(2, 2)))
