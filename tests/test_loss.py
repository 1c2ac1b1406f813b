"""The losses against values and gradients worked out by hand."""

import math

import pytest
import torch
from conftest import batch_of, loss_of
from torch.distributions import Distribution, Independent, Normal, register_kl

import reinforce_baseline
from variants import ppo_penalty


def make_loss_args(script, **flags):
    """Only the policy's loss, raw, unless flags say otherwise; flags that the script lacks are left out."""
    neutral = dict(norm_adv=False, vf_coef=0.0, ent_coef=0.0, clip_coef=0.2, vf_clip_coef=math.inf)
    return script.Args(**{name: x for name, x in (neutral | flags).items() if hasattr(script.Args, name)})


class Policy(Distribution):
    """A stand-in for a distribution: log-probabilities and entropy are what we say they are, its KL is 0."""

    reinterpreted_batch_ndims = 0

    def __init__(self, logprobs, entropy=0.0):
        self.logprobs, self.H = logprobs, torch.as_tensor(entropy)

    def log_prob(self, actions):
        return self.logprobs

    def entropy(self):
        return self.H


@register_kl(Independent, Policy)
def kl(old, new):
    return torch.zeros(())


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
def test_clip(clipped, advantage, ratio, derivative):
    logprobs = torch.tensor([math.log(ratio)], requires_grad=True)
    batch = batch_of(clipped, 1, advantages=torch.tensor([float(advantage)]))
    loss, metrics = loss_of(clipped, Policy(logprobs), torch.zeros(1), batch, make_loss_args(clipped))
    loss.backward()
    assert logprobs.grad.item() / ratio == pytest.approx(derivative, abs=1e-5)
    within = min(max(ratio, 0.8), 1.2)
    assert loss.item() == pytest.approx(-min(advantage * ratio, advantage * within), rel=1e-5)
    assert metrics["clip_frac"].item() == (ratio != 1)


def test_infinite_clip_is_no_clip(clipped):
    logprobs = torch.tensor([math.log(10.0)], requires_grad=True)
    batch, args = batch_of(clipped, 1, advantages=torch.ones(1)), make_loss_args(clipped, clip_coef=math.inf)
    loss_of(clipped, Policy(logprobs), torch.zeros(1), batch, args)[0].backward()
    assert logprobs.grad.item() == pytest.approx(-10)


# Inside the clip; beyond it and away from the target; towards the target (no gradient); past the target.
@pytest.mark.parametrize(
    ("value", "old_value", "target", "loss", "derivative"),
    [(0.1, 0, 1, 0.405, -0.9), (-1, 0, 1, 2.0, -2.0), (5, 0, 10, 48.02, 0.0), (5, 0, 0.1, 12.005, 4.9)],
)
def test_value_clip(ppo, value, old_value, target, loss, derivative):
    value = torch.tensor([float(value)], requires_grad=True)
    batch = batch_of(ppo, 1, values=torch.tensor([float(old_value)]), returns=torch.tensor([float(target)]))
    args = make_loss_args(ppo, vf_coef=1.0, vf_clip_coef=0.2, clip_coef=0.3)
    result, metrics = loss_of(ppo, Policy(torch.zeros(1)), value, batch, args)
    result.backward()
    assert metrics["value_loss"].item() == pytest.approx(loss)
    assert value.grad.item() == pytest.approx(derivative, abs=1e-6)


def test_the_ratio_is_clipped_by_what_is_given(clipped):
    """Which is annealed, unlike the flag."""
    batch, args = batch_of(clipped, 1, advantages=torch.ones(1)), make_loss_args(clipped, clip_coef=0.4)
    loss, _ = clipped.ppo_loss(Policy(torch.tensor([math.log(1.5)])), torch.zeros(1), batch, 0.1, args)
    assert loss.item() == pytest.approx(-1.1)


def test_value_loss_is_half_the_squared_error_when_not_clipped(one_loss):
    batch = batch_of(one_loss, 2, returns=torch.tensor([1.0, 3.0]))
    _, metrics = loss_of(one_loss, Policy(torch.zeros(2)), torch.zeros(2), batch, make_loss_args(one_loss))
    assert metrics["value_loss"].item() == pytest.approx(2.5)


def test_overall_loss(one_loss):
    """policy loss 0.3, value loss 2, entropy 1.5: 0.3 + 0.5 * 2 - 0.01 * 1.5."""
    batch = batch_of(one_loss, 1, advantages=torch.tensor([-0.3]), returns=torch.tensor([2.0]))
    args = make_loss_args(one_loss, vf_coef=0.5, ent_coef=0.01)
    logprob = (
        1.0 if one_loss is reinforce_baseline else 0.0
    )  # its log, or the ratio of 1, weighs the advantage
    loss, _ = loss_of(one_loss, Policy(torch.tensor([logprob]), 1.5), torch.zeros(1), batch, args)
    assert loss.item() == pytest.approx(1.285)


def test_the_bonus_raises_entropy(one_loss):
    log_std = torch.zeros(1, 1, requires_grad=True)
    dist = Independent(Normal(torch.zeros(1, 1), log_std.exp()), 1)
    batch = batch_of(one_loss, 1, actions=torch.zeros(1, 1), logprobs=dist.log_prob(torch.zeros(1)).detach())
    args = make_loss_args(one_loss, ent_coef=0.1)
    loss_of(one_loss, dist, torch.zeros(1), batch, args)[0].backward()
    assert log_std.grad.item() == pytest.approx(-0.1)


def test_advantages_are_normalised_for_the_policy_alone(script):
    """With ratio 1 the gradient by the log-probabilities is -advantage / M: it shows what the loss used."""
    torch.manual_seed(0)
    for advantages in (100 + 50 * torch.randn(64), torch.randn(64)):
        seen, value_losses = {}, []
        for norm_adv in (True, False):
            logprobs = torch.zeros(64, requires_grad=True)
            batch = batch_of(script, 64, advantages=advantages, returns=advantages)
            args = make_loss_args(script, norm_adv=norm_adv, vf_coef=1.0)
            loss, metrics = loss_of(script, Policy(logprobs), torch.zeros(64), batch, args)
            loss.backward()
            seen[norm_adv] = -64 * logprobs.grad
            value_losses.append(metrics.get("value_loss"))
        assert seen[True].mean().item() == pytest.approx(0, abs=1e-5)
        assert seen[True].std().item() == pytest.approx(1, abs=1e-5)
        torch.testing.assert_close(seen[False], advantages)
        assert value_losses[0] == value_losses[1]


def test_metrics(one_loss):
    """Old probabilities 0.5, 0.5, 0.9, 0.1 and new ones 0.6, 0.4, 0.8, 0.2, worked out by hand."""
    old, new = torch.tensor([0.5, 0.5, 0.9, 0.1]).log(), torch.tensor([0.6, 0.4, 0.8, 0.2]).log()
    value, entropy = torch.ones(4, requires_grad=True), torch.tensor([0.5, 1.5], requires_grad=True)
    batch = batch_of(one_loss, 4, logprobs=old, advantages=torch.ones(4))
    policy = Policy(new.requires_grad_(), entropy)
    loss, metrics = loss_of(one_loss, policy, value, batch, make_loss_args(one_loss, clip_coef=0.15))
    expected = {"policy_loss": loss.item(), "value_loss": 0.5, "entropy": 1}
    if one_loss is ppo_penalty:
        metrics.pop("kl")  # see test_penalty.py
    elif one_loss is not reinforce_baseline:
        expected |= {"kl": 0.08859, "clip_frac": 0.75}
    assert {name: metric.item() for name, metric in metrics.items()} == pytest.approx(expected, abs=1e-5)
    assert loss.requires_grad and not any(metric.requires_grad for metric in metrics.values())


def test_the_first_gradient_is_that_of_reinforce(ppo):
    """At ratio 1 neither clip nor penalty is at work: PPO's gradient on fresh data is the policy gradient."""
    torch.manual_seed(0)
    mean, value = torch.randn(32, 3, requires_grad=True), torch.randn(32, requires_grad=True)
    actions = torch.randn(32, 3)
    dist = Independent(Normal(mean, 0.5), 1)
    fresh = dict(actions=actions, advantages=torch.randn(32), returns=torch.randn(32))
    old = dict(logprobs=dist.log_prob(actions).detach(), values=value.detach())
    old |= dict(means=mean.detach(), stds=dist.stddev)
    flags = dict(norm_adv=True, vf_coef=0.5, ent_coef=0.01, vf_clip_coef=0.2)
    losses = [
        loss_of(script, dist, value, batch_of(script, 32, **fresh, **old), make_loss_args(script, **flags))[0]
        for script in (ppo, reinforce_baseline)
    ]
    gradients = [torch.autograd.grad(loss, (mean, value), retain_graph=True) for loss in losses]
    torch.testing.assert_close(*gradients)
    assert all(gradient.abs().max() > 1e-3 for gradient in gradients[0])


def test_no_baseline_weighs_with_returns():
    logprobs = torch.zeros(2, requires_grad=True)
    returns = dict(advantages=torch.tensor([1.0, 2.0]), returns=torch.tensor([5.0, 7.0]))
    batch, args = (
        batch_of(reinforce_baseline, 2, **returns),
        make_loss_args(reinforce_baseline, baseline=False),
    )
    loss_of(reinforce_baseline, Policy(logprobs), torch.zeros(2), batch, args)[0].backward()
    assert logprobs.grad.tolist() == [-2.5, -3.5]
