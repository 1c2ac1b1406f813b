"""What train() does with envs, optimizer and random numbers, seen through recorders and toy envs."""

import json
import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import Counter, Stopped, stop_in_iteration
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import ppo_atari
import ppo_continuous
import ppo_discrete
import reinforce_baseline


def loss_of(script):
    return "reinforce_loss" if script is reinforce_baseline else "ppo_loss"


def same_weights(a, b, atol=0.0):
    pairs = zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    return all(torch.allclose(x, y, rtol=0, atol=atol) for x, y in pairs)


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


def test_rollouts_carry_on_where_the_last_one_stopped(discrete, make_args, record, monkeypatch):
    """3 envs x 5 steps, episodes of 3 steps: every row is the successor of the one before."""
    resets, reset = [], Counter.reset
    monkeypatch.setattr(Counter, "reset", lambda self, **kwargs: resets.append(self) or reset(self, **kwargs))
    losses, inputs = record(discrete, loss_of(discrete)), record(discrete, "compute_gae")
    args = make_args(discrete, env_id="toy/Terminates-v0", num_envs=3, num_steps=5, total_timesteps=50)
    monkeypatch.setattr(discrete, "evaluate", lambda *_: [0.0])
    if discrete is ppo_discrete:
        args.update_epochs = args.num_minibatches = 1
    discrete.train(args)
    assert len(losses) == len(inputs) == 3  # 50 // 15 iterations
    assert len(resets) == 3 * (1 + 5)  # at the start, and at each of the 5 ends
    for iteration, ((_, _, batch, _), _) in enumerate(losses):
        steps = range(5 * iteration, 5 * iteration + 5)
        assert sorted(batch.obs.tolist()) == sorted([t // 3, t % 3] for t in steps for _ in range(3))
    for iteration, ((rewards, values, dones, *_), _) in enumerate(inputs):
        steps = torch.arange(5 * iteration, 5 * iteration + 5)[:, None].expand(5, 3)
        assert torch.equal(dones, (steps % 3 == 2).float())
        assert torch.equal(rewards, steps % 3 + 1.0)
        assert values.shape == (6, 3)


@pytest.mark.parametrize("script", [reinforce_baseline, ppo_discrete, ppo_continuous])
def test_the_agent_acts_on_the_states_that_are_stored(script, acts_on_what_is_stored):
    acts_on_what_is_stored(script)


def test_actions_are_samples(discrete, make_args, record):
    """In an env where all states look alike they differ from step to step, and from env to env."""
    batches = record(discrete, "Batch")
    flags = dict(num_envs=8, num_steps=512, total_timesteps=4096, learning_rate=0.0)
    discrete.train(make_args(discrete, env_id="toy/Ones-v0", **flags))
    actions = batches[0][1].actions.view(512, 8).float()
    assert actions.mean(0) == pytest.approx(0.5, abs=0.1)
    correlations = torch.corrcoef(
        torch.cat([actions[:-1], actions[1:]], 1).T
    )  # of envs, and with the step before
    assert (correlations - torch.eye(16)).abs().max() < 0.2


@pytest.mark.parametrize("env_id", ["toy/Terminates-v0", "toy/TimesOut-v0", "toy/Both-v0"])
def test_only_time_limits_are_bootstrapped(discrete, make_args, record, env_id):
    """With a learning rate of 0 the critic that valued final_obs is the one that comes back."""
    inputs = record(discrete, "compute_gae")
    args = make_args(discrete, env_id=env_id, learning_rate=0.0, num_envs=2, total_timesteps=32, gamma=0.9)
    agent, _ = discrete.train(args)
    [((rewards, values, dones, *_), _)] = inputs
    t = torch.arange(16)
    expected = (t % 3 + 1.0)[:, None].repeat(1, 2)
    assert torch.equal(dones, (t % 3 == 2).float()[:, None].expand(16, 2))
    if env_id == "toy/TimesOut-v0":
        ends = t[t % 3 == 2]
        final_obs = torch.stack([ends // 3, torch.full_like(ends, 3)], 1).float()
        expected[ends] += 0.9 * agent(final_obs)[1][:, None].detach()
    torch.testing.assert_close(rewards, expected)
    first_obs = torch.stack([t // 3, t % 3], 1).float()
    torch.testing.assert_close(values[:-1], agent(first_obs)[1][:, None].expand(16, 2))


def test_a_time_limit_is_not_death(discrete, make_args):
    """Reward 1 for ever is worth 1 / (1 - 0.99) = 100; as death, the limit makes it under 10."""
    flags = dict(num_envs=8, num_steps=32, learning_rate=0.02, anneal_lr=False, max_grad_norm=math.inf)
    if discrete is ppo_discrete:
        flags |= dict(vf_clip_coef=math.inf)
    args = make_args(
        discrete,
        env_id="toy/Ones-v0",
        total_timesteps=150_000 if discrete is ppo_discrete else 400_000,
        **flags,
    )
    agent, _ = discrete.train(args)
    assert agent(torch.ones(1, 1))[1].item() == pytest.approx(100, abs=5)


def test_returns_are_those_of_whole_episodes(discrete, make_args):
    args = make_args(discrete, env_id="toy/TimesOut-v0", num_steps=2, total_timesteps=64, eval_episodes=3)
    _, log = discrete.train(args)
    assert math.isnan(log[0]["episode_return"])
    assert [row["episode_return"] for row in log[1:]] == [6.0] * 7
    assert log[-1]["eval_return"] == 6


def test_evaluation_plays_one_whole_episode_per_env(discrete, make_args, monkeypatch):
    args = make_args(discrete, env_id="CartPole-v1", eval_episodes=20)
    agent = discrete.Agent(discrete.make_envs(args, 1))
    torch.manual_seed(0)
    returns = discrete.evaluate(agent, args)
    assert len(set(returns)) > 5
    assert 15 < np.mean(returns) < 35  # a random policy's
    torch.nn.init.zeros_(agent.actor[-1].weight)
    agent.actor[-1].bias.data = torch.tensor([1.0, 0.0])
    args.eval_greedy = True
    assert max(discrete.evaluate(agent, args)) <= 11  # always to the left


# ---- optimisation


def test_adam_divides_by_an_epsilon_of_1e_5(script, make_args, record):
    """The first step moves a parameter of gradient g by lr * g / (|g| + epsilon)."""
    optimizers = record(script, "Adam")
    script.train(make_args(script, num_envs=2, total_timesteps=32))
    [(_, optimizer)] = optimizers
    optimizer.param_groups[0]["lr"] = 1.0
    optimizer.state.clear()
    parameters = optimizer.param_groups[0]["params"]
    assert len(parameters) == 12 + (script is ppo_continuous)
    before = [p.detach().clone() for p in parameters]
    for p in parameters:
        p.grad = torch.full_like(p, 1e-5)
    optimizer.step()
    for p, old in zip(parameters, before, strict=True):
        torch.testing.assert_close(old - p, torch.full_like(p, 0.5), atol=1e-3, rtol=0)


def test_learning_rate_schedule(script, make_args, steps_of_adam):
    args = make_args(script, total_timesteps=640, learning_rate=1e-3)
    _, log = script.train(args)
    per_iteration = len(steps_of_adam) // 10
    assert per_iteration == (1 if script is reinforce_baseline else 16)
    expected = [1e-3 * (1 - i / 10) for i in range(10)]
    assert [lr for lr, _ in steps_of_adam] == pytest.approx(np.repeat(expected, per_iteration))
    assert [row["learning_rate"] for row in log] == pytest.approx(expected)
    steps_of_adam.clear()
    script.train(make_args(script, total_timesteps=640, learning_rate=1e-3, anneal_lr=False))
    assert {lr for lr, _ in steps_of_adam} == {1e-3}


def test_clip_schedule(ppo, make_args, record):
    losses = record(ppo, "ppo_loss")
    ppo.train(make_args(ppo, clip_coef=0.4, anneal_clip=True))
    assert [float(args.clip_coef) for (*_, args), _ in losses[::16]] == pytest.approx([0.4, 0.3, 0.2, 0.1])
    losses.clear()
    ppo.train(make_args(ppo, clip_coef=0.4))
    assert {args.clip_coef for (*_, args), _ in losses} == {0.4}


def test_gradients_are_clipped_all_together(script, make_args, steps_of_adam):
    _, log = script.train(make_args(script, vf_coef=1e4, max_grad_norm=0.25))
    assert [norm for _, norm in steps_of_adam] == pytest.approx([0.25] * len(steps_of_adam), rel=1e-3)
    assert min(row["grad_norm"] for row in log) > 1
    steps_of_adam.clear()
    script.train(make_args(script, max_grad_norm=math.inf))
    assert max(norm for _, norm in steps_of_adam) > 1


def test_every_sample_once_an_epoch_in_a_new_order(make_args, record):
    """The obs of Counter without an end are (0, t): with one env they number the samples."""
    gym.register("toy/Endless-v0", Counter)
    losses = record(ppo_discrete, "ppo_loss")
    args = make_args(ppo_discrete, env_id="toy/Endless-v0", num_envs=1, num_steps=32, total_timesteps=32)
    args.update_epochs, args.num_minibatches = 3, 4
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ppo_discrete, "evaluate", lambda *_: [0.0])
        ppo_discrete.train(args)
    assert len(losses) == 12
    rows = [batch.obs[:, 1].int().tolist() for (_, _, batch, _), _ in losses]
    assert all(len(row) == 8 for row in rows)
    epochs = [sum(rows[i : i + 4], []) for i in (0, 4, 8)]
    assert all(sorted(epoch) == list(range(32)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2] != list(range(32))


def test_the_ratio_is_one_on_fresh_data(make_args, record):
    losses = record(ppo_discrete, "ppo_loss")
    for env_id in ("CartPole-v1", "toy/Copy-v0", "toy/Dict-v0"):
        losses.clear()
        ppo_discrete.train(make_args(ppo_discrete, env_id=env_id, learning_rate=1e-2))
        for i, ((dist, value, batch, _), (_, metrics)) in enumerate(losses):
            ratio = (dist.log_prob(batch.actions) - batch.logprobs).exp()
            if i % 16 == 0:  # the first minibatch of each of the 4 rollouts
                torch.testing.assert_close(ratio, torch.ones(16), atol=1e-5, rtol=0)
                torch.testing.assert_close(value, batch.values, atol=1e-5, rtol=1e-5)
                assert abs(metrics["kl"]) < 1e-6
                assert metrics["clip_frac"] == 0
            else:
                assert (ratio - 1).abs().max() > 1e-4
        assert len(losses) == 64


def test_returns_are_built_from_raw_advantages(discrete, make_args, record):
    batches = record(discrete, "Batch")
    advantages = record(discrete, "compute_gae")
    discrete.train(make_args(discrete, total_timesteps=64, env_id="toy/TimesOut-v0"))
    (_, values, *_), result = advantages[0]
    _, batch = batches[0]
    torch.testing.assert_close(batch.advantages, result)
    torch.testing.assert_close(batch.returns, result + values[:-1])


# In bfloat16 a difference in rounding is large, and soon the weights are apart: one step, then.
ONE_STEP_OF_BFLOAT16 = dict(
    bfloat16=True, learning_rate=1e-4, total_timesteps=64, update_epochs=1, num_minibatches=1
)


@pytest.mark.parametrize(
    ("script", "flags"),
    [(ppo_discrete, {}), (ppo_continuous, {}), (ppo_atari, {}), (ppo_atari, ONE_STEP_OF_BFLOAT16)],
)
def test_a_compiled_update_is_the_same(script, flags, make_args):
    """Up to rounding; the loss and its gradients are one graph, also where clip_coef changes with time."""
    counters = torch._dynamo.utils.counters
    flags = dict(learning_rate=1e-3, total_timesteps=128, anneal_clip=True) | flags
    eager, _ = script.train(make_args(script, **flags))
    torch._dynamo.reset()
    counters.clear()
    compiled, _ = script.train(make_args(script, compile=True, **flags))
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]
    assert same_weights(eager, compiled, atol=1e-5)


def test_a_compiled_run_resumes(make_args):
    runs = [make_args(ppo_discrete, compile=True, anneal_clip=True, checkpoints=2) for _ in range(2)]
    agent, _ = ppo_discrete.train(runs[0])
    with stop_in_iteration(ppo_discrete, 4), pytest.raises(Stopped):
        ppo_discrete.train(runs[1])
    torch._dynamo.reset()
    runs[1].resume, runs[1].run_dir = runs[1].run_dir, ""
    assert same_weights(agent, ppo_discrete.train(runs[1])[0])


def test_target_kl_ends_the_update_after_an_epoch(ppo, make_args, record):
    losses = record(ppo, "ppo_loss")
    _, log = ppo.train(make_args(ppo, learning_rate=0.05, anneal_lr=False, target_kl=1e-6))
    assert len(losses) == 4 * 4  # 4 rollouts of one epoch of 4 minibatches
    losses.clear()
    ppo.train(make_args(ppo, learning_rate=0.0, target_kl=1e-6))
    assert len(losses) == 4 * 16


def test_metrics_are_means_over_the_update(ppo, make_args, record):
    losses = record(ppo, "ppo_loss")
    _, log = ppo.train(make_args(ppo, learning_rate=1e-2, total_timesteps=128))
    for iteration, row in enumerate(log):
        update = [metrics for _, (_, metrics) in losses[16 * iteration : 16 * iteration + 16]]
        for name in ("policy_loss", "value_loss", "entropy", "kl", "clip_frac", "grad_norm"):
            assert row[name] == pytest.approx(np.mean([metrics[name] for metrics in update]), rel=1e-5), name


# ---- random numbers


@pytest.mark.parametrize("seed", [0, 3])
def test_same_seed_same_weights(script, make_args, seed):
    agents = [script.train(make_args(script, seed=s))[0] for s in (seed, seed, seed + 1)]
    assert same_weights(agents[0], agents[1])
    assert not same_weights(agents[0], agents[2])


@pytest.mark.parametrize("script", [reinforce_baseline, ppo_discrete, ppo_continuous])
def test_envs_of_neighbouring_seeds_differ(script, make_args, record):
    """And so do the envs of one run, and those of its evaluation. (Games have only 31 ways to start.)"""
    batches = record(script, "Batch")
    first_obs = []
    for seed in range(4):
        batches.clear()
        script.train(make_args(script, seed=seed, total_timesteps=64))
        first_obs += batches[0][1].obs[0].tolist()
    assert len({tuple(obs) for obs in first_obs}) == 16
    seeds = [script.env_seeds(8, seed, stream) for seed in range(4) for stream in range(2)]
    assert len(set(sum(seeds, []))) == 64


# ---- what it leaves behind


def test_run_dir(discrete, make_args, capsys):
    args = make_args(discrete, env_id="toy/TimesOut-v0", gamma=0.9)
    _, log = discrete.train(args)
    with open(f"{args.run_dir}/args.json") as file:
        assert discrete.Args(**json.load(file)) == args
    events = EventAccumulator(args.run_dir, size_guidance={"scalars": 0}).Reload()
    assert set(events.Tags()["scalars"]) == set(log[-1]) - {"steps"}
    for name in set(log[0]) - {"steps"}:
        scalars = events.Scalars(name)
        assert [scalar.step for scalar in scalars] == [row["steps"] for row in log] == [64, 128, 192, 256]
        assert [s.value for s in scalars] == pytest.approx([row[name] for row in log], nan_ok=True)
    lines = capsys.readouterr().out.splitlines()
    assert "on cpu" in lines[0]
    assert lines[-1] == f"mean return 6.0 in 1 episodes of evaluation; see {args.run_dir}"


def test_default_run_dir(discrete, make_args, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    discrete.train(make_args(discrete, run_dir="", env_id="toy/TimesOut-v0", seed=7))
    [run_dir] = (tmp_path / "runs").iterdir()
    assert run_dir.name.startswith(f"toy-TimesOut-v0__{discrete.__name__}__7__2")


# ---- spaces


@pytest.mark.parametrize("env_id", ["toy/Dict-v0", "FrozenLake-v1", "Blackjack-v1", "Acrobot-v1"])
def test_observations_that_can_be_flattened(discrete, make_args, env_id):
    _, log = discrete.train(make_args(discrete, env_id=env_id))
    assert all(math.isfinite(row["policy_loss"]) for row in log)


def test_learns_to_copy_several_components(make_args):
    """A random policy gets (1/3 + 1/2 + 1/4) / 3 of the 8 rewards: 2.9."""
    args = make_args(ppo_discrete, env_id="toy/Copy-v0", total_timesteps=20_000, num_steps=64)
    args.learning_rate, args.eval_episodes = 3e-3, 10
    _, log = ppo_discrete.train(args)
    assert log[0]["episode_return"] < 4
    assert log[-1]["eval_return"] > 7


# ---- learning


def test_ppo_learns_cartpole(make_args):
    _, log = ppo_discrete.train(
        make_args(ppo_discrete, total_timesteps=50_000, num_steps=128, eval_episodes=10)
    )
    assert log[-1]["episode_return"] > 150
