"""What train() does with envs, optimizer and random numbers, seen through recorders and toy envs."""

import itertools
import json
import math
import random
from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import (
    ATARI,
    CONTINUOUS,
    DISCRETE,
    PPO,
    SCRIPTS,
    Stopped,
    loss_name,
    make_agent_of,
    name_of,
    numbers_in,
    one_update,
    same_weights,
    stop_in_iteration,
    toy,
    updates_of,
)
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import ppo_atari
import ppo_continuous
import ppo_discrete
import reinforce_baseline
from variants import ppo_atari_lstm, ppo_penalty, trpo


@pytest.fixture
def steps_of_adam(monkeypatch):
    """What Adam is given at each step: (learning rate, norm of all gradients)."""
    steps, step = [], torch.optim.Adam.step

    def recorder(self, *args, **kwargs):
        gradients = [p.grad for group in self.param_groups for p in group["params"]]
        norm = torch.cat([gradient.flatten() for gradient in gradients]).norm().item()
        steps.append((self.param_groups[0]["lr"], norm))
        return step(self, *args, **kwargs)

    monkeypatch.setattr(torch.optim.Adam, "step", recorder)
    return steps


# ---- rollouts


def test_rollouts_carry_on_where_the_last_one_stopped(script, make_args, record, rollouts_of, no_evaluation):
    """3 envs x 5 steps, episodes of 3 steps: every row is the successor of the one before."""
    inputs = record(script, "compute_gae")
    sizes = dict(num_envs=3, num_steps=5, total_timesteps=50)  # 50 // 15 iterations
    args = make_args(script, env_id=toy(script, "Terminates"), **sizes, **one_update(script))
    _, rollouts = rollouts_of(script, args)
    assert len(rollouts) == len(inputs) == 3
    for iteration, (batch, ((rewards, _, _, dones, *_), _)) in enumerate(zip(rollouts, inputs, strict=True)):
        t = torch.arange(5 * iteration, 5 * iteration + 5)[:, None].expand(5, 3)
        assert torch.equal(numbers_in(batch.obs), torch.stack([t // 3, t % 3], -1).float())
        assert torch.equal(dones, (t % 3 == 2).float())
        if script not in CONTINUOUS:  # which scales them
            assert torch.equal(rewards, torch.ones(5, 3) if script in ATARI else t % 3 + 1.0)


def test_the_agent_acts_on_the_states_that_are_stored(vector, make_args, record, rollouts_of, no_evaluation):
    """Each stored action is what the agent answered in the stored state. (Atari: see the ratio.)"""
    calls = record(vector.Agent, "act")
    _, rollouts = rollouts_of(vector, make_args(vector, learning_rate=1e-2))
    assert len(calls) == 4 * 16
    for i, batch in enumerate(rollouts):
        for t, ((_, obs, *masks), action) in enumerate(calls[16 * i : 16 * i + 16]):
            assert torch.equal(obs, batch.obs[t])
            assert torch.equal(action, batch.actions[t])
            assert not masks or torch.equal(masks[0], batch.masks[t])


def test_actions_are_samples(script, make_args, rollouts_of, no_evaluation):
    """In an env where all states look alike they differ from step to step, and from env to env."""
    T = 64 if script in ATARI else 512
    args = make_args(
        script, env_id=toy(script, "Ones"), num_envs=8, num_steps=T, iterations=1, learning_rate=0.0
    )
    for name, value in one_update(script).items():
        setattr(args, name, value)
    _, [batch] = rollouts_of(script, args)
    actions = batch.actions.view(T, 8).float()
    assert actions.mean(0) == pytest.approx(0 if script in CONTINUOUS else 0.5, abs=5 / T**0.5)
    pairs = torch.corrcoef(torch.cat([actions[:-1], actions[1:]], 1).T)  # of envs, and with the step before
    assert (pairs - torch.eye(16)).abs().max() < 5 / T**0.5


@pytest.mark.parametrize("name", ["OnesTerminates", "OnesTimesOut", "OnesBoth", "OnesByTurns"])
def test_only_time_limits_are_bootstrapped(script, name, make_args, record, no_evaluation, monkeypatch):
    """Episodes of 3 steps, reward 1, and a critic that says 10 * episode + t.

    By turns, episodes terminate and are cut at the same places of different rollouts.
    """
    forward = script.Agent.forward

    def known_value(self, obs, *rest):
        dist, value, *state = forward(self, obs, *rest)
        return dist, 0 * value + numbers_in(obs) @ torch.tensor([10.0, 1.0]), *state

    monkeypatch.setattr(script.Agent, "forward", known_value)
    inputs = record(script, "compute_gae")
    sizes = dict(num_envs=2, num_steps=15, iterations=3, **one_update(script))
    script.train(make_args(script, env_id=toy(script, name), gamma=0.9, **sizes))
    assert len(inputs) == 3
    for iteration, ((rewards, values, next_values, dones, *_), _) in enumerate(inputs):
        t = torch.arange(15 * iteration, 15 * iteration + 16)[:, None].expand(16, 2)
        known = (10 * (t // 3) + t % 3).float()
        assert torch.equal(values, known[:-1])
        t = t[:15]
        ends = t % 3 == 2
        assert torch.equal(dones, ends.float())
        cut = {"OnesTimesOut": 1, "OnesByTurns": 1 - t // 3 % 2}.get(name, 0)
        limits = (10 * (t // 3) + 3.0) * cut
        assert torch.equal(next_values, torch.where(ends, limits, known[1:]))
        reward = rewards[0, 0] if script in CONTINUOUS else 1  # which scales it
        assert torch.equal(rewards, torch.full_like(rewards, reward))


def test_a_time_limit_is_not_death(discrete, make_args, no_evaluation):
    """Reward 1 for ever is worth 1 / (1 - 0.9) = 10; as death, the limit of 10 steps makes it 4."""
    flags = dict(num_envs=8, gamma=0.9, learning_rate=0.02, anneal_lr=False, max_grad_norm=math.inf)
    flags |= (
        dict(iterations=300)
        if discrete is reinforce_baseline
        else dict(iterations=100, vf_clip_coef=math.inf)
    )
    agent, _ = discrete.train(make_args(discrete, env_id="toy/Ones-v0", **flags))
    assert agent.critic(torch.ones(1, 1)).item() == pytest.approx(10, abs=0.5)


def test_returns_are_those_of_whole_episodes(script, make_args):
    sizes = dict(num_steps=2, iterations=8, eval_episodes=3)
    _, log = script.train(make_args(script, env_id=toy(script, "TimesOut"), **sizes))
    assert math.isnan(log[0]["episode_return"])
    assert [row["episode_return"] for row in log[1:]] == [6.0] * 7
    assert log[-1]["eval_return"] == 6


def test_evaluation_plays_one_whole_episode_per_env(script, make_args):
    """Of 1 to 20 steps, the t-th of which pays t: the first of each env, also where it is a long one."""
    args = make_args(script, env_id=toy(script, "Dice"), eval_episodes=20)
    returns = script.evaluate(make_agent_of(script, args), args)
    expected = []
    for seed in script.seed_everything(args.seed, "evaluation", 20):
        env, over, length = gym.make(args.env_id), False, 0
        env.reset(seed=seed)
        while not over:
            _, _, terminated, truncated, _ = env.step(env.action_space.sample())
            over, length = terminated or truncated, length + 1
        expected.append(length * (length + 1) / 2)
    assert returns == expected and len(set(returns)) > 5


def test_evaluation_is_greedy_if_asked(script, make_args):
    """10 steps that pay the action; the more probable one is 1, or for continuous actions 0.5."""
    args = make_args(script, env_id=toy(script, "Pays"), eval_episodes=8)
    agent = make_agent_of(script, args)
    head = [module for module in agent.actor.modules() if hasattr(module, "bias")][-1]
    torch.nn.init.zeros_(head.weight)
    head.bias.data = torch.tensor([0.5] if script in CONTINUOUS else [0.0, 0.5])
    sampled = script.evaluate(agent, args)
    args.eval_greedy = True
    assert script.evaluate(agent, args) == [5.0 if script in CONTINUOUS else 10.0] * 8
    assert len(set(sampled)) > 1


# ---- optimisation


def test_adam_divides_by_an_epsilon_of_1e_5(script, make_args, record, no_evaluation):
    """The first step moves a parameter of gradient g by lr * g / (|g| + epsilon)."""
    optimizers = record(torch.optim, "Adam")
    script.train(make_args(script, num_envs=2, iterations=1))
    [(_, optimizer)] = optimizers
    optimizer.param_groups[0]["lr"] = 1.0
    optimizer.state.clear()
    parameters = optimizer.param_groups[0]["params"]
    sizes = {ppo_continuous: 13, ppo_penalty: 13, ppo_atari_lstm: 16}
    sizes[trpo] = 6  # the critic's alone
    assert len(parameters) == sizes.get(script, 12)
    before = [p.detach().clone() for p in parameters]
    for p in parameters:
        p.grad = torch.full_like(p, 1e-5)
    optimizer.step()
    for p, old in zip(parameters, before, strict=True):
        torch.testing.assert_close(old - p, torch.full_like(p, 0.5), atol=1e-3, rtol=0)


def test_learning_rate_schedule(script, make_args, steps_of_adam, no_evaluation):
    args = make_args(script, iterations=10, learning_rate=1e-3)
    _, log = script.train(args)
    expected = [1e-3 * (1 - i / 10) for i in range(10)]
    assert [lr for lr, _ in steps_of_adam] == pytest.approx(np.repeat(expected, updates_of(args)))
    assert [row["learning_rate"] for row in log] == pytest.approx(expected)
    steps_of_adam.clear()
    script.train(make_args(script, iterations=2, learning_rate=1e-3, anneal_lr=False))
    assert {lr for lr, _ in steps_of_adam} == {1e-3}


DEFAULTS = dict(gamma=0.99, vf_coef=0.5, ent_coef=0.01, max_grad_norm=0.5, anneal_lr=True, norm_adv=True)
DEFAULTS |= dict(gae_lambda=0.95, clip_coef=0.2, vf_clip_coef=0.2)
ROLLOUTS = dict(learning_rate=2.5e-4, num_steps=128, update_epochs=4, num_minibatches=4)
MUJOCO = dict(learning_rate=3e-4, num_envs=1, num_steps=2048, update_epochs=10, num_minibatches=32)
OTHERS = {
    "reinforce_baseline": dict(gae_lambda=1.0, norm_adv=False),
    "ppo_discrete": dict(num_envs=4) | ROLLOUTS,
    "ppo_masked": dict(vf_clip_coef=math.inf) | ROLLOUTS | dict(num_envs=8, learning_rate=2.5e-3),
    "ppo_continuous": dict(ent_coef=0.0) | MUJOCO,
    "ppo_penalty": dict(ent_coef=0.0) | MUJOCO,
    "trpo": dict(gae_lambda=0.97, num_envs=1, num_steps=2048),
} | {name_of(script): dict(clip_coef=0.1, vf_clip_coef=0.1, num_envs=8) | ROLLOUTS for script in ATARI}


def test_defaults(script):
    """Of the flags that a script has, those that the 37 details give a value."""
    expected = DEFAULTS | OTHERS.get(name_of(script), {})
    found = {name: getattr(script.Args, name) for name in expected if hasattr(script.Args, name)}
    assert found == {name: expected[name] for name in found}


def test_clip_schedule(clipped, make_args, record, no_evaluation):
    losses = record(clipped, "ppo_loss")
    clipped.train(make_args(clipped, clip_coef=0.4, anneal_clip=True))
    coefs = [clip_coef for (_, _, _, clip_coef, _), _ in losses]
    assert coefs == pytest.approx(np.repeat([0.4, 0.3, 0.2, 0.1], 4))
    losses.clear()
    clipped.train(make_args(clipped, clip_coef=0.4, iterations=2))
    assert {clip_coef for (_, _, _, clip_coef, _), _ in losses} == {0.4}


def test_gradients_are_clipped_all_together(one_loss, make_args, steps_of_adam, no_evaluation):
    args = make_args(one_loss, iterations=2, vf_coef=1e4, max_grad_norm=0.25)
    _, log = one_loss.train(args)
    assert [norm for _, norm in steps_of_adam] == pytest.approx([0.25] * 2 * updates_of(args), rel=1e-3)
    assert min(row["grad_norm"] for row in log) > 1
    steps_of_adam.clear()
    one_loss.train(make_args(one_loss, iterations=1, vf_coef=1e4, max_grad_norm=math.inf))
    assert max(norm for _, norm in steps_of_adam) > 1


@pytest.mark.parametrize("script", [s for s in [*PPO, trpo] if s is not ppo_atari_lstm], ids=name_of)
def test_every_sample_once_an_epoch_in_a_new_order(script, make_args, record, no_evaluation, monkeypatch):
    """The obs of Counter without an end are (0, t): with one env they number the samples."""
    if script is trpo:  # whose critic gets normalized obs
        monkeypatch.setattr(trpo.Agent, "normalize", lambda self, obs: obs)
    calls = record(script, "compute_gradients")
    epochs = {"critic_epochs" if script is trpo else "update_epochs": 3}
    sizes = dict(num_envs=1, num_steps=32, iterations=1, num_minibatches=4) | epochs
    script.train(make_args(script, env_id=toy(script, "Endless"), **sizes))
    seen = [batch if script is trpo else batch.obs for (_, batch, *_), _ in calls]  # trpo's critic gets obs
    rows = [numbers_in(obs)[:, 1].int().tolist() for obs in seen]
    assert all(len(row) == 8 for row in rows)
    epochs = [sum(rows[i : i + 4], []) for i in (0, 4, 8)]
    assert all(sorted(epoch) == list(range(32)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2] != list(range(32))


def spaces():
    """Each script's usual env, then MultiDiscrete actions, and observations of several kinds."""
    for script in PPO:
        yield pytest.param(script, {}, id=name_of(script))
    for script in DISCRETE[1:]:
        for name in ("Copy", "Dict"):
            yield pytest.param(script, {"env_id": f"toy/{name}-v0"}, id=f"{name_of(script)}-{name}")


@pytest.mark.parametrize(("script", "flags"), list(spaces()))
def test_the_ratio_is_one_on_fresh_data(script, flags, make_args, record, no_evaluation):
    losses = record(script, "ppo_loss")
    script.train(make_args(script, learning_rate=1e-2, **flags))
    per_update = 4 + (script is ppo_penalty)
    assert len(losses) == 4 * per_update
    for i, ((dist, value, batch, *_), (_, metrics)) in enumerate(losses):
        ratio = (dist.log_prob(batch.actions) - batch.logprobs).exp()
        if i % per_update == 0:  # the first minibatch of each of the 4 rollouts
            torch.testing.assert_close(ratio, torch.ones_like(ratio), atol=1e-4, rtol=0)
            torch.testing.assert_close(value, batch.values, atol=1e-4, rtol=1e-4)
            assert abs(metrics["kl"]) < 1e-6
        else:
            assert (ratio - 1).abs().max() > 1e-4


def test_returns_are_built_from_raw_advantages(script, make_args, record, rollouts_of, no_evaluation):
    """With the two discounts where they belong."""
    advantages = record(script, "compute_gae")
    flags = dict(gamma=0.9, gae_lambda=0.8, env_id=toy(script, "TimesOut"))
    _, [batch] = rollouts_of(script, make_args(script, iterations=1, **flags))
    [((_, values, _, _, *discounts), result)] = advantages
    assert discounts == [0.9, 0.8]
    torch.testing.assert_close(batch.advantages, result)
    torch.testing.assert_close(batch.returns, result + values)


def compiled():
    """Two networks; the others have the same lines."""
    for each in SCRIPTS:
        if hasattr(each.Args, "compile"):
            mark = pytest.mark.long if each in (ppo_discrete, ppo_atari) else pytest.mark.slow
            yield pytest.param(each, id=name_of(each), marks=mark)


@pytest.mark.parametrize("script", list(compiled()))
@torch._dynamo.config.patch(trace_autograd_ops=False)
def test_a_compiled_update_is_the_same(script, make_args, no_evaluation):
    """Up to rounding; loss and gradients are one graph, which a changing clip_coef makes few versions of.

    A run that is not compiled leaves alone what older versions of torch do not know.
    """
    counters = torch._dynamo.utils.counters
    few = script in (*ATARI, trpo)  # conjugate gradients make more of rounding than Adam does
    flags = dict(learning_rate=1e-3, iterations=2 if few else 8)
    flags |= {"anneal_clip": True} if hasattr(script.Args, "clip_coef") else {}
    eager, _ = script.train(make_args(script, **flags))
    assert not torch._dynamo.config.trace_autograd_ops
    torch._dynamo.reset()
    counters.clear()
    compiled, _ = script.train(make_args(script, compile=True, **flags))
    assert 1 <= counters["stats"]["unique_graphs"] <= 3
    assert not counters["graph_break"]
    assert same_weights(eager, compiled, atol=1e-5)


def test_a_graph_that_breaks_is_an_error(discrete, make_args, monkeypatch):
    """In a copy with a loss of its own, say: torch would lose the gradients, and nothing would be learned."""
    original = discrete.compute_gradients

    def breaking(*args):
        torch._dynamo.graph_break()
        return original(*args)

    monkeypatch.setattr(discrete, "compute_gradients", breaking)
    with pytest.raises(torch._dynamo.exc.Unsupported):
        discrete.train(make_args(discrete, compile=True))


@pytest.mark.long
def test_a_compiled_run_resumes(make_args, no_evaluation):
    runs = [make_args(ppo_discrete, compile=True, anneal_clip=True, checkpoints=2) for _ in range(2)]
    agent, _ = ppo_discrete.train(runs[0])
    with stop_in_iteration(ppo_discrete, 4), pytest.raises(Stopped):
        ppo_discrete.train(runs[1])
    torch._dynamo.reset()
    runs[1].resume, runs[1].run_dir = runs[1].run_dir, ""
    assert same_weights(agent, ppo_discrete.train(runs[1])[0])


def test_target_kl_ends_the_update_after_an_epoch(clipped, make_args, record, no_evaluation):
    losses = record(clipped, "ppo_loss")
    clipped.train(make_args(clipped, iterations=2, learning_rate=3e-2, anneal_lr=False, target_kl=1e-6))
    assert len(losses) == 2 * 2  # 2 rollouts of one epoch of 2 minibatches
    losses.clear()
    clipped.train(make_args(clipped, iterations=2, learning_rate=0.0, target_kl=1e-6))
    assert len(losses) == 2 * 4


def test_target_kl_is_compared_with_the_last_minibatch(clipped, make_args, record, no_evaluation):
    """The first one has a KL of 0: their mean is half of it."""
    losses = record(clipped, "ppo_loss")

    def updates(target_kl):
        losses.clear()
        clipped.train(make_args(clipped, iterations=1, learning_rate=3e-2, target_kl=target_kl))
        return len(losses)

    assert updates(math.inf) == 4
    kl = losses[1][1][1]["kl"].item()
    assert updates(0.9 * kl) == 2 and updates(1.1 * kl) == 4


def test_returns_are_means_of_the_last_100_episodes(vector, make_args, record):
    """Of 1 to 20 steps, the t-th of which pays t."""
    inputs, played = record(vector, "compute_gae"), record(vector, "evaluate")
    sizes = dict(num_steps=1024, iterations=2, eval_episodes=5)
    _, log = vector.train(make_args(vector, env_id=toy(vector, "Dice"), **sizes))
    lengths, length = [], torch.zeros(4)
    for dones in torch.cat([dones for (_, _, _, dones, *_), _ in inputs]):
        length += 1
        lengths += length[dones > 0].tolist()
        length[dones > 0] = 0
    assert len(lengths) > 150
    last = np.array(lengths[-100:])
    assert log[-1]["episode_length"] == pytest.approx(last.mean())
    assert log[-1]["episode_return"] == pytest.approx((last * (last + 1) / 2).mean())
    [(_, returns)] = played
    assert log[-1]["eval_return"] == pytest.approx(np.mean(returns)) and len(set(returns)) > 2


def test_returns_of_a_short_run_are_those_of_its_last_fifth(script, make_args, no_evaluation):
    """Its last 100 would reach back to the first; if none ends in the last fifth, the last one counts."""
    flags = dict(num_envs=1, num_steps=40, iterations=5, **one_update(script))
    args = make_args(script, env_id=toy(script, "Curriculum"), **flags)
    _, log = script.train(args)
    episodes = torch.load(f"{args.run_dir}/checkpoint.pt", weights_only=True)["episodes"]
    lengths = [length for *_, length in episodes]
    last = [x for x, end in zip(lengths, np.cumsum(lengths), strict=True) if end > 160]
    assert 0 < len(last) < len(lengths)
    assert log[-1]["episode_length"] == pytest.approx(np.mean(last))
    flags |= dict(num_steps=2, iterations=4)  # in the last two steps, none ends
    _, [*_, row] = script.train(make_args(script, env_id=toy(script, "TimesOut"), **flags))
    assert row["episode_length"] == 3


def test_steps_per_second(script, make_args, no_evaluation, monkeypatch):
    """If an iteration takes one second, by the clock."""
    monkeypatch.setattr(script, "time", SimpleNamespace(perf_counter=itertools.count().__next__))
    args = make_args(script, env_id=toy(script, "TimesOut"))
    _, log = script.train(args)
    assert [row["steps_per_second"] for row in log] == [args.num_envs * args.num_steps] * 4


def test_threads(script, make_args, no_evaluation):
    before = torch.get_num_threads()
    script.train(make_args(script, iterations=1, threads=before + 1))
    after = torch.get_num_threads()
    torch.set_num_threads(before)
    assert after == before + 1


def test_metrics_are_means_over_the_update(one_loss, make_args, record, no_evaluation):
    losses = record(one_loss, loss_name(one_loss))
    norms = record(one_loss.nn.utils, "clip_grad_norm_")
    args = make_args(one_loss, learning_rate=1e-2, iterations=2)
    _, log = one_loss.train(args)
    updates = updates_of(args)
    for row, start in zip(log, (0, updates + (one_loss is ppo_penalty)), strict=True):
        update = [metrics for _, (_, metrics) in losses[start : start + updates]]
        assert {"policy_loss", "value_loss", "entropy"} <= update[0].keys()
        for name in update[0]:
            assert row[name] == pytest.approx(np.mean([metrics[name] for metrics in update]), rel=1e-5), name
    means = np.reshape([norm for _, norm in norms], (2, updates)).mean(1)
    assert [row["grad_norm"] for row in log] == pytest.approx(means, rel=1e-5)


def test_explained_variance(script, make_args, record, no_evaluation):
    """1 - Var(returns - values) / Var(returns), of the critic that saw the rollout."""
    inputs = record(script, "compute_gae")
    _, log = script.train(make_args(script, env_id=toy(script, "Terminates"), learning_rate=1e-2))
    for row, ((_, values, *_), advantages) in zip(log, inputs, strict=True):
        expected = 1 - (advantages.var() / (advantages + values).var()).item()
        assert row["explained_variance"] == pytest.approx(expected, rel=1e-4, abs=1e-4)


# ---- random numbers


def test_same_seed_same_weights(script, make_args, no_evaluation):
    """Seed 0 is a seed, too."""
    agents = [script.train(make_args(script, seed=seed, iterations=2))[0] for seed in (0, 0, 1)]
    assert same_weights(agents[0], agents[1])
    assert not same_weights(agents[0], agents[2])


def test_envs_are_made_from_the_seed(script, make_args, monkeypatch):
    """Some draw numbers when they are made, not only when they are reset: for training and for evaluation."""
    drawn, make_envs = [], script.make_envs

    def watched(*args):
        drawn.append((random.random(), np.random.random(), torch.rand(()).item()))
        return make_envs(*args)

    monkeypatch.setattr(script, "make_envs", watched)
    for seed, iterations in ((1, 1), (1, 2), (2, 1)):
        script.train(make_args(script, iterations, env_id=toy(script, "Terminates"), seed=seed))
    assert len(drawn) == 9 and drawn[:3] == drawn[3:6]
    assert len({number for numbers in drawn[3:] for number in numbers}) == 18


def test_envs_of_neighbouring_seeds_differ(vector, make_args, rollouts_of, no_evaluation):
    """And so do the envs of one run. (Games have only 31 ways to start.)"""
    args = [make_args(vector, seed=seed, iterations=1) for seed in range(4)]
    first_obs = [obs for a in args for obs in rollouts_of(vector, a)[1][0].obs[0].tolist()]
    assert len({tuple(obs) for obs in first_obs}) == 16


def test_seeds_of_everything(script):
    """Each kind of random numbers is seeded, by seed and purpose; seeds for envs are all different."""
    keys = [
        (1, "cut 0"),
        (1, "cut 0"),
        (2, "cut 0"),
        (1, "cut 1"),
        (1, "cut 10"),
        (0, "weights"),
        (0, "weight"),
    ]
    draws, seeds = [], []
    for seed, purpose in keys:
        seeds += script.seed_everything(seed, purpose, 8)
        draws.append((random.random(), np.random.rand(), torch.rand(()).item()))
    assert draws[0] == draws[1] and seeds[:8] == seeds[8:16]
    assert all(len(set(column)) == 6 for column in zip(*draws, strict=True))
    assert len(set(seeds)) == 6 * 8


# ---- what it leaves behind


def test_run_dir(script, make_args, capsys):
    args = make_args(script, env_id=toy(script, "TimesOut"), gamma=0.9)
    _, log = script.train(args)
    flags = json.loads(Path(args.run_dir, "args.json").read_text())
    assert script.Args(**{name: math.inf if x == "inf" else x for name, x in flags.items()}) == args
    events = EventAccumulator(args.run_dir, size_guidance={"scalars": 0}).Reload()
    assert set(events.Tags()["scalars"]) == set(log[-1]) - {"steps"}
    B = args.num_envs * args.num_steps
    for name in set(log[0]) - {"steps"}:
        scalars = events.Scalars(name)
        assert (
            [scalar.step for scalar in scalars] == [row["steps"] for row in log] == [B, 2 * B, 3 * B, 4 * B]
        )
        assert [s.value for s in scalars] == pytest.approx([row[name] for row in log], nan_ok=True)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{args.env_id} on cpu; --resume {args.run_dir} goes on from its last checkpoint"
    assert lines[-1] == f"mean return 6 in 1 episodes of evaluation; see {args.run_dir}"


def test_default_run_dir(script, make_args, tmp_path, monkeypatch, no_evaluation):
    monkeypatch.chdir(tmp_path)
    script.train(make_args(script, run_dir=None, env_id=toy(script, "TimesOut"), seed=7, iterations=1))
    [run_dir] = (tmp_path / "runs").iterdir()
    env_id = toy(script, "TimesOut").replace("/", "-")
    assert run_dir.name.startswith(f"{env_id}__{name_of(script)}__7__2")


# ---- spaces


def test_observations_are_flattened(vector, make_args, no_evaluation):
    """A number out of 1000, and 2 x 2 of any size."""
    agent, log = vector.train(make_args(vector, env_id=toy(vector, "Dict"), iterations=2))
    assert agent.actor[0].in_features == 1004
    assert all(math.isfinite(row["entropy"] + row["value_loss"]) for row in log)


@pytest.mark.parametrize("env_id", ["FrozenLake-v1", "Blackjack-v1", "Acrobot-v1"])
def test_envs_of_gymnasium(env_id, make_args, no_evaluation):
    _, log = ppo_discrete.train(make_args(ppo_discrete, env_id=env_id))
    assert all(math.isfinite(row["policy_loss"]) for row in log)


@pytest.mark.long
def test_learns_to_copy_several_components(make_args):
    """A random policy gets (1/3 + 1/2 + 1/4) / 3 of the 8 rewards: 2.9."""
    sizes = dict(total_timesteps=20_000, num_steps=64, update_epochs=4, num_minibatches=4)
    args = make_args(ppo_discrete, env_id="toy/Copy-v0", learning_rate=3e-3, eval_episodes=10, **sizes)
    _, log = ppo_discrete.train(args)
    assert log[0]["episode_return"] < 4
    assert log[-1]["eval_return"] > 7


# ---- learning


def test_ppo_learns_cartpole(make_args):
    sizes = dict(total_timesteps=50_000, num_steps=128, update_epochs=4, num_minibatches=4)
    _, log = ppo_discrete.train(make_args(ppo_discrete, eval_episodes=10, **sizes))
    assert log[-1]["episode_return"] > 150
