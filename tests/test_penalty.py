"""PPO with an adaptive KL penalty: the divergence, the rule for its weight, and that it learns."""

import pytest
import torch
from conftest import Stopped, same_weights, stop_in_iteration
from torch.distributions import Categorical, Independent

from variants import ppo_penalty


@pytest.mark.parametrize(
    ("kl", "factor"), [(0.0, 0.5), (0.5, 0.5), (0.66, 0.5), (0.67, 1), (1, 1), (1.49, 1), (1.51, 2), (9, 2)]
)
def test_the_rule_for_beta(kl, factor):
    assert ppo_penalty.adapt(3.0, 0.01 * kl, 0.01) == 3 * factor


def test_beta_can_always_come_back():
    beta = 1.0
    for _ in range(1000):
        beta = ppo_penalty.adapt(beta, 0.0, 0.01)
    for _ in range(14):
        beta = ppo_penalty.adapt(beta, 1.0, 0.01)
    assert 1 < beta < 2
    for _ in range(1000):
        beta = ppo_penalty.adapt(beta, 1.0, 0.0)
    assert beta == 1e4


@pytest.mark.parametrize("shape", [(6, 4), (6, 3, 4)], ids=["Discrete", "MultiDiscrete"])
def test_the_loss_penalises_the_divergence_from_the_old_policy(shape):
    """KL(old, new) = sum over all actions of p_old log(p_old / p_new), also where logits are unused."""
    torch.manual_seed(0)
    old, new = torch.randn(2, *shape).log_softmax(-1)
    old[..., -1, 3] = new[..., -1, 3] = -1e9
    old, new = old.log_softmax(-1), new.log_softmax(-1).requires_grad_()
    dims = len(shape) - 2
    dist = Independent(Categorical(logits=new, validate_args=False), dims)
    actions, advantages = torch.zeros(shape[:-1]), torch.randn(6)
    logprobs = Independent(Categorical(logits=old, validate_args=False), dims).log_prob(actions)
    zeros = torch.zeros(6)
    batch = ppo_penalty.Batch(zeros, actions, old, logprobs, advantages, zeros, zeros)
    args = ppo_penalty.Args(norm_adv=False, ent_coef=0.0)
    losses = {}
    for beta in (0.0, 1.0, 3.0):
        losses[beta], metrics = ppo_penalty.ppo_loss(dist, zeros, batch, torch.tensor(beta), args)
    kl = torch.nan_to_num(old.exp() * (old - new)).flatten(1).sum(1).mean()
    surrogate = -((dist.log_prob(actions) - logprobs).exp() * advantages).mean()
    assert metrics["kl"].item() == pytest.approx(kl.item(), rel=1e-5)
    assert losses[0.0].item() == pytest.approx(surrogate.item(), rel=1e-5)
    assert (losses[3.0] - losses[0.0]).item() == pytest.approx(3 * kl.item(), rel=1e-4)
    assert (losses[1.0] - losses[0.0]).item() == pytest.approx(kl.item(), rel=1e-4)
    losses[1.0].backward()
    assert new.grad.isfinite().all()


def test_a_divergence_beyond_floating_point_is_finite():
    """An action that the old policy took once in e^95 times, and the new one never, adds nothing."""
    old, new = torch.tensor([[0.0, -95.0]]), torch.tensor([[0.0, -110.0]], requires_grad=True)
    zero = torch.zeros(1)
    batch = ppo_penalty.Batch(zero, zero, old, zero, zero, zero, zero)
    args = ppo_penalty.Args(norm_adv=False)
    dist = Independent(Categorical(logits=new, validate_args=False), 0)
    loss, metrics = ppo_penalty.ppo_loss(dist, zero, batch, torch.tensor(1.0), args)
    loss.backward()
    assert metrics["kl"] == pytest.approx(0, abs=1e-6) and new.grad.isfinite().all()


def test_beta_follows_the_divergence_of_each_update(make_args, record):
    """The rule is given the divergence over the whole rollout after the last epoch; beta is logged."""
    rules, losses = record(ppo_penalty, "adapt"), record(ppo_penalty, "ppo_loss")
    args = make_args(ppo_penalty, learning_rate=1e-2, total_timesteps=640, target_kl=0.02)
    agent, log = ppo_penalty.train(args)
    betas = [row["beta"] for row in log]
    assert betas == [beta for _, beta in rules]
    assert len(set(betas)) > 1 and agent.beta == betas[-1]
    for i, ((beta, kl, target), _) in enumerate(rules):
        (_, _, batch, weight, _), (_, metrics) = losses[5 * i + 4]  # after 4 minibatches
        assert len(batch.obs) == 64 and target == 0.02
        assert kl == metrics["kl"].item() > 0
        assert weight == beta == ([1.0, *betas][i])


def test_beta_is_part_of_a_checkpoint(make_args):
    flags = dict(learning_rate=1e-2, total_timesteps=576, checkpoints=3)
    agent, log = ppo_penalty.train(make_args(ppo_penalty, **flags))
    assert log[2]["beta"] != 1  # what the resumed run starts with
    args = make_args(ppo_penalty, **flags)
    with stop_in_iteration(ppo_penalty, 6), pytest.raises(Stopped):
        ppo_penalty.train(args)
    args.resume, args.run_dir = args.run_dir, ""
    resumed, _ = ppo_penalty.train(args)
    assert same_weights(agent, resumed)


def test_it_learns_cartpole(make_args):
    _, log = ppo_penalty.train(
        make_args(ppo_penalty, total_timesteps=50_000, num_steps=128, learning_rate=1e-3, eval_episodes=10)
    )
    assert log[-1]["episode_return"] > 150
