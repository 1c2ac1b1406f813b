"""The networks: initialisation, sizes, and the distribution of actions."""

import itertools

import pytest
import torch
from conftest import ATARI, act, look, make_agent_of
from torch import nn


@pytest.fixture
def make_agent(discrete, make_args):
    """make_agent(env_id), or of the default env -> a fresh agent of each script with discrete actions."""
    return lambda **flags: make_agent_of(discrete, make_args(discrete, **flags))


def test_orthogonal_weights_and_zero_biases(script, make_args):
    agent = make_agent_of(script, make_args(script))
    layers = [module for module in agent.modules() if hasattr(module, "weight")]
    gains = [2**0.5] * 4 + [0.01, 1.0] if script in ATARI else [2**0.5, 2**0.5, 0.01, 2**0.5, 2**0.5, 1.0]
    for layer, gain in zip(layers, gains, strict=True):
        singular_values = torch.linalg.svdvals(layer.weight.flatten(1))
        torch.testing.assert_close(singular_values, torch.full_like(singular_values, gain), rtol=1e-4, atol=0)
        assert not layer.bias.any()


def test_starts_close_to_uniform(discrete, make_agent):
    dist, _ = look(discrete, make_agent(), torch.randn(256, 4))
    assert (dist.base_dist.probs - 0.5).abs().max() < 0.02


@pytest.mark.parametrize("flags", [{}, {"env_id": "toy/Copy-v0"}], ids=["Discrete", "MultiDiscrete"])
def test_actions_follow_the_distribution(discrete, make_agent, flags):
    """40,000 of them in each of 5 states have the shares of a softmax; greedy ones are its mode."""
    agent = make_agent(**flags)
    nn.init.normal_(agent.actor[-1].weight, std=0.5)
    obs = torch.randn(5, agent.actor[0].in_features)
    dist, _ = look(discrete, agent, obs)
    actions = act(discrete, agent, obs.expand(40_000, *obs.shape))
    probs = dist.base_dist.probs
    shares = nn.functional.one_hot(actions, probs.shape[-1]).float().mean(0)
    torch.testing.assert_close(shares, probs, atol=0.01, rtol=0)
    assert not shares[..., ~agent.valid].any()
    assert probs.std() > 0.05  # not all alike
    assert torch.equal(act(discrete, agent, obs, greedy=True), dist.mode)


def test_continuous_actions_follow_the_distribution(continuous, make_args):
    agent = make_agent_of(continuous, make_args(continuous, env_id="HalfCheetah-v5"))
    agent.log_std.data = torch.linspace(-2, 1, 6)
    obs = torch.randn(5, 17)
    dist, _ = agent(obs)
    actions = agent.act(obs.expand(40_000, 5, 17))
    torch.testing.assert_close(actions.mean(0), dist.mean, atol=0.05, rtol=0)
    torch.testing.assert_close(actions.std(0), dist.stddev, atol=0, rtol=0.02)
    assert torch.equal(agent.act(obs, greedy=True), dist.mode)


def test_actor_and_critic_share_nothing(discrete, make_agent):
    agent = make_agent()
    assert sum(p.numel() for p in agent.parameters()) == 9155
    dist, value = look(discrete, agent, torch.randn(8, 4))
    for part, output in ((agent.critic, dist.log_prob(torch.zeros(8)).sum()), (agent.actor, value.sum())):
        gradients = torch.autograd.grad(output, part.parameters(), retain_graph=True, allow_unused=True)
        assert gradients == (None,) * 6


def test_hidden_units_are_tanh(vector, make_args):
    agent = make_agent_of(vector, make_args(vector))
    assert agent.actor[:2](torch.full((1, agent.actor[0].in_features), 1e6)).abs().eq(1).all()
    for network in (agent.actor, agent.critic):
        assert [type(module).__name__ for module in network] == ["Linear", "Tanh"] * 2 + ["Linear"]


@pytest.mark.parametrize("components", [(), (3,)], ids=["Discrete", "MultiDiscrete"])
@pytest.mark.parametrize("shape", [(), (5,), (3, 5)])
def test_shapes(discrete, make_agent, components, shape):
    agent = make_agent(**{"env_id": "toy/Copy-v0"} if components else {})
    dist, value = look(discrete, agent, torch.randn(*shape, agent.actor[0].in_features))
    action = dist.sample()
    assert action.shape == (*shape, *components)
    assert value.shape == dist.log_prob(action).shape == dist.entropy().shape == shape


def test_multidiscrete_is_a_product_of_independent_choices(discrete, make_agent):
    """log_prob and entropy against the table of all 3 x 2 x 4 actions."""
    agent = make_agent(env_id="toy/Copy-v0")
    nn.init.normal_(agent.actor[-1].weight, std=0.1)
    dist, _ = look(discrete, agent, torch.randn(1, 9))
    actions = torch.tensor(list(itertools.product(range(3), range(2), range(4))))
    table = dist.log_prob(actions)
    rows = dist.base_dist.probs[0]
    by_hand = [rows[0, a] * rows[1, b] * rows[2, c] for a, b, c in actions]
    torch.testing.assert_close(table.exp(), torch.stack(by_hand))
    assert table.exp().sum().item() == pytest.approx(1)
    assert dist.entropy().item() == pytest.approx(-(table.exp() * table).sum().item(), abs=1e-5)
    sample = dist.expand((1000,)).sample()
    assert [len(column.unique()) for column in sample.T] == [3, 2, 4]
    assert (dist.mode[0] == rows.argmax(-1)).all()


def test_unused_logits_get_no_gradient_and_no_nan(discrete, make_agent):
    agent = make_agent(env_id="toy/Copy-v0")
    dist, _ = look(discrete, agent, torch.randn(16, 9))
    (dist.log_prob(dist.sample()) + dist.entropy()).sum().backward()
    gradient = agent.actor[-1].weight.grad.view(3, 4, 64)
    used = gradient.abs().sum(-1) > 0
    assert used.tolist() == [[True, True, True, False], [True, True, False, False], [True, True, True, True]]
    assert gradient.isfinite().all()
