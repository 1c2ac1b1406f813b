"""PPO with an adaptive KL penalty: the divergence, the rule for its weight, and that it learns."""

import pytest
import torch
from conftest import Stopped, same_weights, stop_in_iteration
from torch.distributions import Independent, Normal

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
    assert ppo_penalty.adapt(0.0, 1.0, 0.01) > 0


def test_the_loss_penalises_the_divergence_from_the_old_policy():
    """KL(old, new) is the mean over states of a sum over the components of an action, worked out by hand."""
    torch.manual_seed(0)
    (old_mean, new_mean), stds = torch.randn(2, 6, 3), torch.rand(6, 3) + 0.5
    new_mean.requires_grad_()
    log_std = torch.randn(3, requires_grad=True)
    dist = Independent(Normal(new_mean, log_std.exp()), 1)
    actions, advantages = torch.randn(6, 3), torch.randn(6)
    logprobs = Independent(Normal(old_mean, stds), 1).log_prob(actions)
    zeros = torch.zeros(6)
    batch = ppo_penalty.Batch(zeros, actions, old_mean, stds, logprobs, advantages, zeros, zeros)
    args = ppo_penalty.Args(norm_adv=False, ent_coef=0.0)
    losses = {}
    for beta in (0.0, 1.0, 3.0):
        losses[beta], metrics = ppo_penalty.ppo_loss(dist, zeros, batch, torch.tensor(beta), args)
    squares = stds**2 + (old_mean - new_mean) ** 2
    kl = (log_std - stds.log() + squares / (2 * log_std.exp() ** 2) - 0.5).sum(1).mean()
    surrogate = -((dist.log_prob(actions) - logprobs).exp() * advantages).mean()
    assert metrics["kl"].item() == pytest.approx(kl.item(), rel=1e-5)
    assert losses[0.0].item() == pytest.approx(surrogate.item(), rel=1e-5)
    assert (losses[3.0] - losses[0.0]).item() == pytest.approx(3 * kl.item(), rel=1e-4)
    by_beta = torch.autograd.grad(losses[1.0] - losses[0.0], (new_mean, log_std), retain_graph=True)
    torch.testing.assert_close(by_beta, torch.autograd.grad(kl, (new_mean, log_std)))


def test_the_divergence_is_from_the_policy_that_acted(make_args, record, no_evaluation):
    """Of all epochs, from the distributions of the rollout: those of one log_std, which has changed since."""
    losses = record(ppo_penalty, "ppo_loss")
    agent, _ = ppo_penalty.train(make_args(ppo_penalty, learning_rate=1e-2, iterations=2))
    for update in (losses[:5], losses[5:]):
        before = update[0][0][0].stddev[0]
        assert all((batch.stds == before).all() for (_, _, batch, *_), _ in update)
        assert all((dist.stddev != before).all() for (dist, *_), _ in update[1:])
    for (dist, _, batch, *_), _ in losses[::5]:  # fresh data
        torch.testing.assert_close(dist.mean, batch.means, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("beta", [0.0, 2.5])
def test_a_fixed_beta_stays(make_args, record, no_evaluation, beta):
    losses = record(ppo_penalty, "ppo_loss")
    flags = dict(beta=beta, adapt_beta=False, learning_rate=1e-2, target_kl=1e-4)
    agent, log = ppo_penalty.train(make_args(ppo_penalty, **flags))
    assert {row["beta"] for row in log} == {agent.beta.item()} == {beta}
    assert {weight.item() for (_, _, _, weight, _), _ in losses} == {beta}


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


def test_the_divergence_of_an_update_is_not_that_of_statistics(make_args, record, no_evaluation):
    """Which normalise observations otherwise once they have seen the rollout; nothing is learned here."""
    rules = record(ppo_penalty, "adapt")
    ppo_penalty.train(make_args(ppo_penalty, learning_rate=0.0))
    assert len(rules) == 4 and all(kl == pytest.approx(0, abs=1e-9) for (_, kl, _), _ in rules)


def test_a_resumed_run_keeps_its_beta(make_args, no_evaluation):
    args = make_args(ppo_penalty)
    ppo_penalty.train(args)
    args.resume, args.run_dir, args.beta = args.run_dir, "", 3.0
    with pytest.raises(ppo_penalty.Mistake, match="--beta cannot change"):
        ppo_penalty.train(args)


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


@pytest.mark.long
def test_it_learns(make_args):
    """To swing: returns of about -1200 at first."""
    flags = dict(num_steps=256, num_minibatches=16, update_epochs=10, learning_rate=1e-3, gamma=0.9)
    args = make_args(ppo_penalty, total_timesteps=60_000, eval_episodes=10, **flags)
    _, log = ppo_penalty.train(args)
    assert log[-1]["episode_return"] > -500
