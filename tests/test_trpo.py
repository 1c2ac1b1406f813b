"""Trust regions: the Fisher matrix, conjugate gradients, the step they lead to, and the search along it."""

import copy
import math
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import Stopped, same_weights, snapshot, stop_in_iteration
from gymnasium.spaces import Box
from torch import nn
from torch.nn.utils import parameters_to_vector

import reinforce_baseline
from variants import trpo

SINGLE, DOUBLE = torch.float32, torch.float64


def small_agent(shape=(2,), hidden=8, dtype=DOUBLE, factor=1.0):
    """An agent for 3 observations whose policy is small enough for a Fisher matrix to be written down.

    factor scales the network's output, and its last weights are divided by it: the policy is the same.
    """
    torch.manual_seed(0)
    spaces = dict(single_observation_space=Box(-np.inf, np.inf, (3,)), single_action_space=Box(-1, 1, shape))
    agent, head = trpo.Agent(SimpleNamespace(**spaces)), nn.Linear(hidden, math.prod(shape))
    agent.actor = nn.Sequential(nn.Linear(3, hidden), nn.Tanh(), head, Times(factor))
    for parameter in head.parameters():
        parameter.data /= factor
    nn.init.normal_(agent.log_std, -0.5, 0.3)
    return agent.to(dtype)


class Times(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return self.factor * x


def policy_of(agent):
    return [*agent.actor.parameters(), agent.log_std]


def fresh_batch(agent, B=64):
    """States, and what the agent did there."""
    torch.manual_seed(1)
    obs = torch.randn(B, 3, dtype=agent.log_std.dtype)
    with torch.no_grad():
        actions = agent.act(obs)
        logprobs = agent.policy(obs).log_prob(actions)
    return trpo.Batch(obs, actions, logprobs, *torch.randn(2, B, dtype=obs.dtype))


@pytest.fixture
def improve(monkeypatch):
    """improve(agent, batch, **flags) moves the policy -> what conjugate gradients were given and found, with
    the matrix that their product stands for, the step taken, and the metrics.
    """

    def run(agent, batch, **flags):
        found, solve = SimpleNamespace(), trpo.conjugate_gradients

        def look(product, b, iters):
            found.matrix = torch.stack([product(row) for row in torch.eye(len(b), dtype=b.dtype)])
            found.gradient = b
            found.direction, residual = solve(product, b, iters)
            return found.direction, residual

        before = parameters_to_vector(policy_of(agent)).detach().clone()
        with monkeypatch.context() as patch:
            patch.setattr(trpo, "conjugate_gradients", look)
            found.metrics = trpo.improve(agent, batch, trpo.Args(**flags))
        found.step = parameters_to_vector(policy_of(agent)).detach() - before
        return found

    return run


def fisher_matrix(agent, obs):
    """The Hessian of the KL divergence from the policy as it is, a row at a time."""
    parameters, new = policy_of(agent), agent.policy(obs)
    with torch.no_grad():
        old = agent.policy(obs)
    gradients = torch.autograd.grad(kl_by_hand(old, new), parameters, create_graph=True)
    assert all(gradient.abs().max() < 1e-6 for gradient in gradients)  # nowhere is the divergence less
    rows = [
        torch.autograd.grad(derivative, parameters, retain_graph=True, materialize_grads=True)
        for derivative in parameters_to_vector(gradients)
    ]
    return torch.stack([parameters_to_vector(row) for row in rows])


def kl_by_hand(old, new):
    """Of normal distributions, summed over the components of the action and averaged over states."""
    (m, s), (n, r) = ((dist.base_dist.loc, dist.base_dist.scale) for dist in (old, new))
    kl = r.log() - s.log() + (s**2 + (m - n) ** 2) / (2 * r**2) - 0.5
    return kl.flatten(1).sum(1).mean() if kl.dim() > 1 else kl.mean()


def surrogate_by_hand(dist, batch):
    """With normalised advantages."""
    advantages = (batch.advantages - batch.advantages.mean()) / (batch.advantages.std() + 1e-8)
    return ((dist.log_prob(batch.actions) - batch.logprobs).exp() * advantages).mean()


# ---- the Fisher matrix


@pytest.mark.parametrize("shape", [(), (2,), (2, 3)], ids=str)
@pytest.mark.parametrize(("dtype", "atol"), [(DOUBLE, 1e-12), (SINGLE, 1e-6)], ids=["double", "single"])
def test_the_product_is_with_the_fisher_matrix(improve, shape, dtype, atol):
    agent = small_agent(shape, dtype=dtype)
    batch = fresh_batch(agent)
    expected = fisher_matrix(agent, batch.obs)
    found = improve(agent, batch, cg_damping=0.3)
    assert len(expected) == 32 + 10 * math.prod(shape)
    assert expected.abs().max() > 1
    expected += 0.3 * torch.eye(len(expected), dtype=dtype)
    torch.testing.assert_close(found.matrix, expected, atol=atol, rtol=atol)


def test_the_matrix_is_symmetric_and_not_negative(improve):
    agent = small_agent()
    F = improve(agent, fresh_batch(agent, 4), cg_damping=0.0).matrix  # of rank 10 at most
    torch.testing.assert_close(F, F.T, atol=1e-12, rtol=0)
    eigenvalues = torch.linalg.eigvalsh(F)
    assert -1e-12 < eigenvalues[0] < 1e-8 and eigenvalues[-1] > 1


# ---- conjugate gradients


@pytest.mark.parametrize("n", [1, 2, 5, 12])
def test_a_system_of_n_equations_is_solved_in_n_iterations(n):
    torch.manual_seed(n)
    root, b = torch.randn(n, n, dtype=DOUBLE), torch.randn(n, dtype=DOUBLE)
    A = root @ root.T + torch.eye(n)
    solution = torch.linalg.solve(A, b)
    x, _ = trpo.conjugate_gradients(lambda v: A @ v, b, n)
    torch.testing.assert_close(x, solution, atol=1e-8, rtol=0)
    more, _ = trpo.conjugate_gradients(lambda v: A @ v, b, n + 50)
    torch.testing.assert_close(more, solution, atol=1e-8, rtol=0)
    if n > 2:
        fewer, residual = trpo.conjugate_gradients(lambda v: A @ v, b, n - 2)
        assert (fewer - solution).norm() > 1e-4
        torch.testing.assert_close(residual, b - A @ fewer)
        energies = [x @ A @ x / 2 - b @ x for x in (torch.zeros_like(b), fewer, solution)]
        assert energies[0] > energies[1] > energies[2]


def test_what_is_solved_at_once_is_left_alone():
    """No division by a residual of 0, on the first iteration or later."""
    zero, b = torch.zeros(3), torch.tensor([1.0, 2.0, 4.0])
    for given, solution in ((zero, zero), (b, b / 2)):
        x, residual = trpo.conjugate_gradients(lambda v: 2 * v, given, 10)
        assert torch.equal(x, solution) and torch.equal(residual, zero)


def test_few_iterations_are_enough_for_a_policy(improve):
    batch = fresh_batch(small_agent())
    found = improve(small_agent(), batch)
    exact = torch.linalg.solve(found.matrix, found.gradient)
    assert (found.direction - exact).norm() < 0.05 * exact.norm()
    residual = (found.matrix @ found.direction - found.gradient).norm().item()
    assert found.metrics["cg_residual"] == pytest.approx(residual, rel=1e-6)
    more = improve(small_agent(), batch, cg_iters=20)
    assert (more.direction - exact).norm() < 1e-7 * exact.norm()


# ---- the step


def test_the_first_gradient_is_that_of_reinforce(improve):
    """At ratio 1 the surrogate has the gradient of log-probability times advantage."""
    agent = small_agent()
    batch = fresh_batch(agent)
    loss, _ = reinforce_baseline.reinforce_loss(
        *agent(batch.obs),
        reinforce_baseline.Batch(batch.obs, batch.actions, batch.advantages, batch.returns),
        reinforce_baseline.Args(norm_adv=True, vf_coef=0.0, ent_coef=0.0),
    )
    expected = torch.cat([-g.flatten() for g in torch.autograd.grad(loss, policy_of(agent))])
    assert expected.norm() > 1e-2
    torch.testing.assert_close(improve(agent, batch).gradient, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("damping", [0.0, 0.1])
@pytest.mark.parametrize("natural", [True, False])
def test_length_of_the_step(improve, monkeypatch, natural, damping):
    """Half of s'(F + c)s is the target, in any direction; four times the target makes it twice as long."""
    if not natural:
        monkeypatch.setattr(trpo, "conjugate_gradients", plain_gradient)
    steps = []
    for target_kl in (1e-4, 4e-4):
        agent = small_agent()
        found = improve(agent, fresh_batch(agent), target_kl=target_kl, cg_damping=damping)
        step = found.step / trpo.Args.backtrack_ratio ** (found.metrics["tries"] - 1)  # as it was first tried
        assert step @ found.matrix @ step / 2 == pytest.approx(target_kl, rel=1e-8)
        steps.append(step)
    torch.testing.assert_close(steps[1], 2 * steps[0])


def test_a_small_step_goes_as_far_as_it_may(improve):
    """The quadratic model is right in the limit: without damping, KL / target goes to 1."""
    shares = []
    for target_kl in (1e-3, 1e-5, 1e-7):
        agent = small_agent()
        flags = dict(target_kl=target_kl, cg_damping=0.0, backtracks=10_000, backtrack_ratio=0.9999)
        shares.append(improve(agent, fresh_batch(agent), **flags).metrics["kl"] / target_kl)
    assert shares[-1] == pytest.approx(1, abs=1e-3) and max(shares) <= 1


def test_the_metrics_are_of_the_step_that_was_taken(improve):
    agent = small_agent()
    batch, old = fresh_batch(agent), copy.deepcopy(agent)
    found = improve(agent, batch, target_kl=0.1)
    new, old = agent.policy(batch.obs), old.policy(batch.obs)
    expected = {
        "kl": kl_by_hand(old, new).item(),
        "gain": (surrogate_by_hand(new, batch) - surrogate_by_hand(old, batch)).item(),
        "expected_gain": (found.gradient @ found.step).item(),
        "entropy": new.entropy().mean().item(),
    }
    assert {name: found.metrics[name] for name in expected} == pytest.approx(expected, rel=1e-6)
    assert expected["gain"] > 0


def test_the_gain_is_over_the_old_policy(improve):
    """Also of advantages that are not normalised, whose mean is not 0."""
    agent = small_agent()
    batch, old = fresh_batch(agent), copy.deepcopy(agent)
    batch = batch._replace(advantages=batch.advantages + 5)
    metrics = improve(agent, batch, norm_adv=False).metrics
    ratio = (agent.policy(batch.obs).log_prob(batch.actions) - batch.logprobs).exp()
    assert metrics["gain"] == pytest.approx(((ratio - 1) * batch.advantages).mean().item(), rel=1e-6)
    assert 0 < metrics["gain"] < 1 and not same_weights(agent, old)


def plain_gradient(product, b, iters):
    """Instead of conjugate gradients."""
    return b, b - product(b)


def new_distribution(batch, factor, monkeypatch, plain=False, **flags):
    """After an update of an agent that multiplies the output of its network by factor."""
    agent = small_agent(hidden=4, factor=factor)
    with monkeypatch.context() as patch:
        if plain:
            patch.setattr(trpo, "conjugate_gradients", plain_gradient)
        trpo.improve(agent, batch, trpo.Args(target_kl=1e-3, cg_iters=200, **flags))
    dist = agent.policy(batch.obs).base_dist
    return torch.cat([dist.loc, dist.scale]).detach()


def test_the_update_is_the_same_for_whatever_parameters(monkeypatch):
    """A policy whose network says half as much and is multiplied by two goes to the same distributions; by
    the plain gradient, or with damping, it goes elsewhere.
    """
    batch = fresh_batch(small_agent(hidden=4))
    start = small_agent(hidden=4).policy(batch.obs).base_dist
    start = torch.cat([start.loc, start.scale]).detach()
    kinds = {"natural": dict(cg_damping=0.0), "damped": {}, "plain": dict(plain=True)}
    differences = {}
    for kind, flags in kinds.items():
        ends = [new_distribution(batch, factor, monkeypatch, **flags) for factor in (1.0, 2.0)]
        differences[kind] = ((ends[0] - ends[1]).norm() / (ends[0] - start).norm()).item()
    assert differences["natural"] < 1e-7
    assert differences["damped"] > 0.05 and differences["plain"] > 0.05


# ---- the search


def test_the_search_shortens_the_step_until_it_is_allowed(improve):
    """A target so large that the quadratic model is wrong: the first step that is allowed, of those tried."""
    agent = small_agent()
    batch, old = fresh_batch(agent), copy.deepcopy(agent)
    flags = dict(target_kl=2.0, cg_damping=0.0, backtracks=20)
    found = improve(agent, batch, **flags)
    tries = found.metrics["tries"]
    curvature = found.direction @ found.matrix @ found.direction
    longest = (2 * 2.0 / curvature).sqrt() * found.direction
    assert tries > 1
    torch.testing.assert_close(found.step, trpo.Args.backtrack_ratio ** (tries - 1) * longest)
    start, allowed = parameters_to_vector(policy_of(old)).detach(), []
    for i in range(int(tries)):
        moved = copy.deepcopy(old)
        share = trpo.Args.backtrack_ratio**i
        torch.nn.utils.vector_to_parameters(start + share * longest, policy_of(moved))
        dists = [a.policy(batch.obs) for a in (old, moved)]
        gain = surrogate_by_hand(dists[1], batch) - surrogate_by_hand(dists[0], batch)
        allowed.append(bool(kl_by_hand(*dists) <= 2.0 and gain > 0))
    assert allowed == [False] * (int(tries) - 1) + [True]


def negated(product, b, iters):
    """A direction in which the surrogate falls."""
    return -b, b + product(b)


def test_a_search_that_fails_leaves_the_policy(improve, monkeypatch):
    """To the bit, and what is logged is of that policy."""
    monkeypatch.setattr(trpo, "conjugate_gradients", negated)
    agent = small_agent(dtype=SINGLE)
    batch, before = fresh_batch(agent), copy.deepcopy(agent)
    entropy = agent.policy(batch.obs).entropy().mean().item()
    metrics = trpo.improve(agent, batch, trpo.Args(backtracks=7, target_kl=100.0))
    assert same_weights(agent, before)
    assert [metrics[name] for name in ("kl", "gain", "expected_gain", "tries")] == [0, 0, 0, 7]
    assert metrics["entropy"] == entropy


def test_a_search_that_fails_without_normalised_advantages(improve, monkeypatch):
    monkeypatch.setattr(trpo, "conjugate_gradients", negated)
    agent = small_agent(dtype=SINGLE)
    batch, before = fresh_batch(agent), copy.deepcopy(agent)
    batch = batch._replace(advantages=batch.advantages + 5)
    trpo.improve(agent, batch, trpo.Args(norm_adv=False))
    assert same_weights(agent, before)


@pytest.mark.parametrize("advantage", [0.0, 0.3, -1000.0])
@pytest.mark.parametrize("norm_adv", [True, False])
def test_nothing_to_gain(improve, advantage, norm_adv):
    """Advantages that are all alike: nothing that is not finite comes of them.

    Normalised, what rounding leaves of them may move the policy, as far as the limit.
    """
    agent = small_agent(dtype=SINGLE)
    batch, before = fresh_batch(agent), copy.deepcopy(agent)
    batch = batch._replace(advantages=torch.full((64,), advantage))
    metrics = trpo.improve(agent, batch, trpo.Args(norm_adv=norm_adv))
    assert all(map(math.isfinite, metrics.values()))
    assert parameters_to_vector(policy_of(agent)).isfinite().all()
    assert metrics["kl"] <= 0.01
    if advantage == 0:
        assert same_weights(agent, before)


def test_a_policy_beyond_floating_point_is_not_kept(monkeypatch):
    """Steps that overflow fail the search, as others do."""
    monkeypatch.setattr(trpo, "conjugate_gradients", lambda product, b, iters: (b * torch.inf, 0 * b))
    agent = small_agent(dtype=SINGLE)
    batch, before = fresh_batch(agent), copy.deepcopy(agent)
    metrics = trpo.improve(agent, batch, trpo.Args())
    assert same_weights(agent, before)
    assert math.isfinite(metrics["entropy"])


# ---- a run


@pytest.fixture
def watched(monkeypatch):
    """watched(args) trains -> log, and (agent before, agent after, batch, metrics) of each policy update."""

    def run(args):
        updates, original = [], trpo.improve

        def improve(agent, batch, args):
            before = copy.deepcopy(agent)
            metrics = original(agent, batch, args)
            updates.append((before, copy.deepcopy(agent), snapshot(batch), dict(metrics)))
            return metrics

        with monkeypatch.context() as patch:
            patch.setattr(trpo, "improve", improve)
            agent, log = trpo.train(args)
        return agent, log, updates

    return run


@pytest.mark.parametrize("flags", [{}, {"target_kl": 1.0, "cg_damping": 0.0}], ids=["defaults", "far"])
def test_every_update_stays_in_the_region_and_gains(make_args, watched, no_evaluation, flags):
    """Or leaves the policy to the bit."""
    args = make_args(trpo, iterations=10, num_steps=64, **flags)
    _, log, updates = watched(args)
    assert len(updates) == 10
    for (before, after, batch, metrics), row in zip(updates, log, strict=True):
        with torch.no_grad():
            old, new = before.policy(batch.obs), after.policy(batch.obs)
        torch.testing.assert_close(old.log_prob(batch.actions), batch.logprobs, atol=1e-5, rtol=1e-5)
        kl, gain = (
            kl_by_hand(old, new),
            surrogate_by_hand(new, batch) - surrogate_by_hand(old, batch),
        )
        moved = not same_weights(before.actor, after.actor)
        assert kl <= args.target_kl * (1 + 1e-4)
        assert gain > 0 if moved else torch.equal(before.log_std, after.log_std)
        assert {name: row[name] for name in metrics} == metrics
        assert kl.item() == pytest.approx(row["kl"], abs=1e-5, rel=1e-3)
    assert sum(metrics["kl"] > args.target_kl / 4 for *_, metrics in updates) > 5
    if flags:
        assert max(metrics["tries"] for *_, metrics in updates) > 1


def test_policy_critic_and_statistics_move_in_turn(make_args, watched, no_evaluation):
    args = make_args(trpo, iterations=4)
    agent, _, updates = watched(args)
    assert same_weights(updates[-1][1].actor, agent.actor)
    for i, (before, after, *_) in enumerate(updates):
        assert not same_weights(before.actor, after.actor)
        for part in ("critic", "obs_stats", "return_stats"):
            assert same_weights(getattr(before, part), getattr(after, part))
        assert before.obs_stats.count.item() == pytest.approx(i * 64, abs=1e-3)
        if i:
            last = updates[i - 1][1]
            assert same_weights(last.actor, before.actor) and torch.equal(last.log_std, before.log_std)
            assert not same_weights(last.critic, before.critic)


def test_the_critic_is_trained_although_every_search_fails(make_args, watched, no_evaluation, monkeypatch):
    monkeypatch.setattr(trpo, "conjugate_gradients", negated)
    agent, log, updates = watched(make_args(trpo, iterations=3))
    first = updates[0][0]
    assert same_weights(first.actor, agent.actor) and torch.equal(first.log_std, agent.log_std)
    assert not same_weights(first.critic, agent.critic)
    assert {row["kl"] for row in log} == {0}


@pytest.mark.parametrize("shape", [(), (2, 3)], ids=str)
def test_actions_of_any_shape(make_args, watched, no_evaluation, shape, monkeypatch):
    """A single number without a shape, and a table."""

    class Shaped(gym.Env):
        observation_space, action_space = Box(-np.inf, np.inf, (3,)), Box(-1, 1, shape)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return self.np_random.normal(size=3).astype(np.float32), {}

        def step(self, action):
            assert np.shape(action) == shape
            obs = self.np_random.normal(size=3).astype(np.float32)
            return obs, -float(np.square(action).sum()), False, False, {}

    name = f"toy/Shaped{len(shape)}-v0"
    monkeypatch.setitem(gym.registry, name, gym.envs.registration.EnvSpec(name, Shaped, max_episode_steps=9))
    agent, log, updates = watched(make_args(trpo, env_id=name, iterations=2))
    assert agent.log_std.shape == shape
    assert all(row["kl"] > 0 and row["gain"] > 0 for row in log)


def test_a_resumed_run_is_the_same_to_the_bit(make_args, no_evaluation):
    flags = dict(iterations=9, checkpoints=3)
    agent, _ = trpo.train(make_args(trpo, **flags))
    args = make_args(trpo, **flags)
    with stop_in_iteration(trpo, 6), pytest.raises(Stopped):
        trpo.train(args)
    args.resume, args.run_dir = args.run_dir, ""
    assert same_weights(agent, trpo.train(args)[0])


@pytest.mark.long
def test_it_learns(make_args):
    """To keep a pole upright for longer."""
    flags = dict(num_envs=1, num_steps=1024, num_minibatches=4, critic_epochs=5, cg_damping=0.01)
    _, log = trpo.train(make_args(trpo, env_id="InvertedPendulum-v5", iterations=10, **flags))
    assert log[0]["episode_return"] < 15
    assert log[-1]["episode_return"] > 30
