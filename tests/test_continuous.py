"""Details 23 to 31: continuous actions, and the statistics that scale observations and rewards."""

import math
import os
import subprocess
import sys
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
import torch
import tyro
from conftest import ROOT, Stopped, make_agent_of, name_of, same_weights, stop_in_iteration
from gymnasium.spaces import Box
from torch.distributions import MultivariateNormal
from toy_envs import Counter, register

import ppo_continuous
from variants import ppo_penalty


class Bounded(gym.Env):
    """Says which actions it was given. Observations are large, far from zero, and different in each env."""

    observation_space = Box(-np.inf, np.inf, (3,), np.float64)
    action_space = Box(np.array([-0.5, 0.1]), np.array([0.5, np.inf]), dtype=np.float64)
    seen = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.offset = 0 if seed is None else seed % 100
        return self.obs(), {}

    def step(self, action):
        self.seen.append(action)
        return self.obs(), 100.0, False, False, {}

    def obs(self):
        return 1000 + self.offset + 50 * self.np_random.normal(size=3)


class Pixels(Counter):
    """Observations are bytes, the action is a single number without a shape."""

    observation_space = Box(0, 255, (4, 4), np.uint8)

    def __init__(self):
        super().__init__()
        self.action_space = Box(-1, 1, ())

    def obs(self):
        return np.full((4, 4), self.t, dtype=np.uint8)


gym.register("toy/Bounded-v0", Bounded, max_episode_steps=50)
gym.register("toy/Pixels-v0", Pixels, max_episode_steps=5)
register("Three", Counter, terminates_after=3, reward=1.0)
register("ThreeTimesOut", Counter, 3, reward=1.0)
register("MinusThree", Counter, terminates_after=3, reward=-1.0)
register("Zero", Counter, terminates_after=3, reward=0.0)


@pytest.fixture
def small(continuous, make_args):
    """Args of a small run of each script with continuous actions."""

    def make(**flags):
        sizes = dict(num_envs=2, num_steps=16, num_minibatches=4, total_timesteps=64)
        return make_args(continuous, **sizes | flags)

    return make


@pytest.fixture
def agent(continuous, small):
    """A fresh agent for 3 observations and 2 actions."""
    return make_agent_of(continuous, small(env_id="toy/Bounded-v0"))


# ---- the policy


def test_log_density_of_a_normal(agent):
    agent.log_std.data = torch.tensor([0.3, -0.7])
    obs, action = torch.randn(5, 3), torch.randn(5, 2)
    mean, std = agent.actor(obs), agent.log_std.exp()
    by_hand = (-0.5 * ((action - mean) / std) ** 2 - std.log() - 0.5 * math.log(2 * math.pi)).sum(-1)
    dist, _ = agent(obs)
    torch.testing.assert_close(dist.log_prob(action), by_hand)
    samples = agent(obs[0])[0].expand((20_000,)).sample()
    torch.testing.assert_close(samples.mean(0), mean[0], atol=0.05, rtol=0)
    torch.testing.assert_close(samples.std(0), std, rtol=0.05, atol=0)
    assert torch.equal(dist.mode, mean)


def test_log_std_is_one_learned_vector(continuous, agent, small):
    stds = agent(1000 * torch.randn(7, 3))[0].base_dist.stddev
    assert torch.equal(stds, torch.ones(7, 2))
    assert agent(torch.zeros(3))[0].entropy().item() == pytest.approx(2 * 1.4189385)
    trained, _ = continuous.train(small(env_id="toy/Bounded-v0"))
    assert trained.log_std.shape == (2,)
    assert (trained.log_std != 0).all()


def test_initial_log_std(continuous, small, rollouts_of):
    """The flag sets it, below 0 too; without the flag it is 0."""
    for flags, start in (({}, 0.0), ({"log_std_init": -1.5}, -1.5), ({"log_std_init": 0.5}, 0.5)):
        args = small(env_id="toy/Bounded-v0", num_steps=256, total_timesteps=512, **flags)
        with stop_in_iteration(continuous, 1), pytest.raises(Stopped):
            continuous.train(args)
        saved = continuous.load(args.run_dir)
        assert saved["args"].log_std_init == start
        assert saved["agent"]["log_std"].tolist() == [start] * 2
        _, [batch] = rollouts_of(continuous, replace(args, run_dir=args.run_dir + "-again"))
        assert batch.actions.flatten(0, 1).std(0).log() == pytest.approx(start, abs=0.15)
    assert tyro.cli(continuous.Args, args=["--log-std-init", "-0.5"]).log_std_init == -0.5
    assert continuous.Agent(continuous.make_envs(args, 1), -1).log_std.tolist() == [-1, -1]  # no float


def test_action_components_are_independent(agent):
    agent.log_std.data = torch.tensor([0.3, -0.7])
    dist, value = agent(torch.randn(5, 3))
    joint = MultivariateNormal(dist.mean, torch.diag(agent.log_std.exp() ** 2))
    action = dist.sample()
    assert dist.log_prob(action).shape == value.shape == (5,)
    torch.testing.assert_close(dist.log_prob(action), joint.log_prob(action))
    torch.testing.assert_close(dist.entropy(), joint.entropy())


def test_networks_share_nothing(continuous, small):
    agent = make_agent_of(continuous, small(env_id="HalfCheetah-v5"))
    assert sum(p.numel() for p in agent.parameters()) == 11_085
    dist, value = agent(torch.randn(8, 17))
    for part, output in ((agent.critic, dist.log_prob(torch.zeros(6)).sum()), (agent.actor, value.sum())):
        gradients = torch.autograd.grad(output, part.parameters(), retain_graph=True, allow_unused=True)
        assert gradients == (None,) * 6


def test_env_gets_clipped_actions_and_the_buffer_unclipped_ones(continuous, small, rollouts_of, monkeypatch):
    monkeypatch.setattr(Bounded, "seen", [])
    args = small(env_id="toy/Bounded-v0", num_steps=64, total_timesteps=128, num_minibatches=1)
    _, [batch] = rollouts_of(continuous, args)
    seen = np.array(Bounded.seen)
    assert seen.dtype == np.float64
    assert seen[:, 0].min() == -0.5 and seen[:, 0].max() == 0.5
    assert seen[:, 1].min() == pytest.approx(0.1) and seen[:, 1].max() > 1.5  # no upper bound
    assert batch.actions.abs().max() > 2
    assert batch.actions[..., 1].min() < -1
    continuous.seed_everything(args.seed, "weights")
    dist, _ = continuous.Agent(continuous.make_envs(args, 1))(batch.obs)
    torch.testing.assert_close(dist.log_prob(batch.actions), batch.logprobs, atol=1e-5, rtol=1e-5)


# ---- observations


def test_running_statistics_are_those_of_all_samples(continuous):
    torch.manual_seed(0)
    samples = 7 + 3 * torch.randn(1000, 4)
    stats, start = continuous.RunningStats(4), 0
    for size in (1, 1, 5, 93, 400, 500):
        stats.update(samples[start : start + size])
        start += size
    assert stats.count.item() == pytest.approx(1000)
    torch.testing.assert_close(stats.mean, samples.mean(0), rtol=1e-5, atol=0)
    torch.testing.assert_close(stats.var, samples.var(0, correction=0), rtol=1e-4, atol=0)


def test_observations_are_normalised(continuous, small, rollouts_of):
    """The actor's first layer sees mean 0 and standard deviation 1, from the second rollout on."""
    inputs = []
    args = small(env_id="toy/Bounded-v0", num_steps=512, total_timesteps=4096)
    agent, rollouts = rollouts_of(continuous, args)
    agent.actor[0].register_forward_hook(lambda module, args, output: inputs.append(args[0]))
    raw = rollouts[-1].obs.flatten(0, 1)
    agent(raw)
    assert raw.mean() > 900 and raw.std() > 10
    torch.testing.assert_close(inputs[0].mean(0), torch.zeros(3), atol=0.2, rtol=0)
    torch.testing.assert_close(inputs[0].std(0), torch.ones(3), atol=0.2, rtol=0)


def test_statistics_cover_each_rollout_once(continuous, small, rollouts_of):
    agent, rollouts = rollouts_of(continuous, small(env_id="toy/Bounded-v0", total_timesteps=96))
    seen = torch.cat([batch.obs.flatten(0, 1) for batch in rollouts])
    assert len(seen) == 96
    assert agent.obs_stats.count.item() == pytest.approx(96, abs=1e-3)
    torch.testing.assert_close(agent.obs_stats.mean, seen.mean(0), rtol=1e-4, atol=0)
    torch.testing.assert_close(agent.obs_stats.var, seen.var(0, correction=0), rtol=1e-2, atol=0)


@pytest.mark.parametrize("continuous", [ppo_continuous, ppo_penalty], ids=name_of)
def test_the_ratio_is_one_although_observations_are_normalised(continuous, small, record):
    losses = record(continuous, "ppo_loss")
    continuous.train(small(env_id="toy/Bounded-v0", total_timesteps=160, learning_rate=1e-2))
    for i, ((dist, value, batch, *_), _) in enumerate(losses):
        ratio = (dist.log_prob(batch.actions) - batch.logprobs).exp()
        if i % (8 + (continuous is ppo_penalty)) == 0:
            torch.testing.assert_close(ratio, torch.ones(8), atol=1e-5, rtol=0)
            torch.testing.assert_close(value, batch.values, atol=1e-5, rtol=1e-5)
        else:
            assert (ratio - 1).abs().max() > 1e-4


def test_observations_are_clipped_after_normalisation(agent):
    """With 500 samples of N(0, 1) an outlier of 1e6 could reach 10 and more; inside 10 nothing is cut."""
    inputs = []
    agent.actor[0].register_forward_hook(lambda module, args, output: inputs.append(args[0]))
    torch.manual_seed(0)
    agent.obs_stats.update(50 + 10 * torch.randn(500, 3))
    agent(torch.tensor([[1e6, -1e6, 140.0]]))
    assert inputs[0][0, :2].tolist() == [10, -10]
    assert inputs[0][0, 2].item() == pytest.approx(9, abs=1)


def test_all_envs_share_the_statistics(continuous, small):
    """The same raw observation gives the same distribution, whichever of 4 envs it came from."""
    agent, _ = continuous.train(small(env_id="toy/Bounded-v0", num_envs=4))
    assert agent.obs_stats.mean.shape == (3,)
    assert agent.return_stats.mean.shape == ()
    obs = 1000 + 50 * torch.randn(3)
    dist, value = agent(obs.expand(4, 3))
    for x in (dist.mean, value):  # some processors round the rows of a matrix differently
        torch.testing.assert_close(x, x[:1].expand_as(x), rtol=1e-5, atol=1e-6)


def test_final_observations_are_normalised_and_not_counted(continuous, small, record):
    """Learning rate 0, so that only the statistics change: the value of final_obs follows a time limit."""
    inputs = record(continuous, "compute_gae")
    args = small(
        env_id="toy/ThreeTimesOutContinuous-v0", learning_rate=0.0, num_envs=1, num_steps=6, gamma=0.9
    )
    args.total_timesteps, args.num_minibatches = 12, 1
    agent, _ = continuous.train(args)
    assert agent.obs_stats.count.item() == pytest.approx(12, abs=1e-3)
    fresh = continuous.RunningStats(2)
    rollouts = torch.tensor(
        [[[float(episode), float(t)] for episode in (e, e + 1) for t in range(3)] for e in (0, 2)]
    )
    fresh.update(rollouts[0])  # what the second rollout was normalised with
    agent.obs_stats.load_state_dict(fresh.state_dict())
    (rewards, _, next_values, *_), _ = inputs[1]
    final_obs = torch.tensor([[2.0, 3.0], [3.0, 3.0]])
    torch.testing.assert_close(next_values[[2, 5], 0], agent(final_obs)[1].detach(), rtol=1e-4, atol=0)
    expected = 1 / torch.tensor([1, 1.9, 2.71]).std(correction=0)
    torch.testing.assert_close(rewards[[2, 5], 0], expected.expand(2), rtol=1e-4, atol=0)


def test_evaluation_leaves_the_statistics_alone(continuous, small):
    args = small(env_id="toy/Bounded-v0")
    agent, _ = continuous.train(args)
    before = {name: value.clone() for name, value in agent.state_dict().items()}
    continuous.evaluate(agent, args)
    assert all(torch.equal(value, before[name]) for name, value in agent.state_dict().items())


def test_statistics_travel_with_the_weights(continuous, small):
    args = small(env_id="toy/Bounded-v0", num_envs=4)
    agent, _ = continuous.train(args)
    copy = make_agent_of(continuous, args)
    copy.load_state_dict(agent.state_dict())
    assert same_weights(agent, copy)
    obs = 1000 + 50 * torch.randn(8, 3)
    torch.testing.assert_close(copy(obs)[0].mean, agent(obs)[0].mean)


# ---- rewards


def rewards_of(continuous, record, small, **flags):
    inputs = record(continuous, "compute_gae")
    sizes = dict(num_envs=1, num_steps=12, num_minibatches=1, total_timesteps=12, learning_rate=0.0)
    continuous.train(small(**sizes | flags))
    return torch.cat([rewards[:, 0] for (rewards, *_), _ in inputs])


@pytest.mark.parametrize("num_steps", [1, 2, 8])
def test_rewards_are_divided_by_the_spread_of_discounted_returns(continuous, small, record, num_steps):
    """Reward 1, episodes of 3 steps, gamma 0.99: G is 1, 1.99, 2.97, 1, ..., over all rollouts so far."""
    sizes = dict(num_envs=2, num_steps=num_steps, num_minibatches=1, total_timesteps=32)
    rewards = rewards_of(continuous, record, small, env_id="toy/ThreeContinuous-v0", **sizes)
    G = torch.tensor([1, 1.99, 2.9701] * 6)
    expected = [1 / G[: (t // num_steps + 1) * num_steps].std(correction=0) for t in range(16)]
    torch.testing.assert_close(rewards, torch.stack(expected).clamp(max=10), rtol=1e-3, atol=0)


def test_reward_scaling_restarts_at_time_limits_too(continuous, small, record, monkeypatch):
    monkeypatch.setattr(continuous.Agent, "forward", no_value(continuous.Agent.forward))
    ends = [
        rewards_of(continuous, record, small, env_id=f"toy/{name}Continuous-v0")
        for name in ("Three", "ThreeTimesOut")
    ]
    torch.testing.assert_close(*ends)


def no_value(forward):
    """The same policy with a value of 0, so that a time limit adds nothing to the reward."""

    def wrapped(self, obs):
        dist, value = forward(self, obs)
        return dist, 0 * value

    return wrapped


def test_rewards_are_scaled_and_not_centred(continuous, small, record):
    assert torch.equal(rewards_of(continuous, record, small, env_id="toy/ZeroContinuous-v0"), torch.zeros(12))
    minus = rewards_of(continuous, record, small, env_id="toy/MinusThreeContinuous-v0")
    plus = rewards_of(continuous, record, small, env_id="toy/ThreeContinuous-v0")
    assert (minus < 0).all() and torch.equal(minus, -plus)


def test_rewards_are_clipped_after_scaling(continuous, small, record):
    """Without a future returns are rewards, which do not vary if each is 100; with one, 100 is little."""
    rewards = rewards_of(continuous, record, small, env_id="toy/Bounded-v0", gamma=0.0)
    assert (rewards == 10).all()
    rewards = rewards_of(continuous, record, small, env_id="toy/Bounded-v0")
    assert (rewards > 0).all() and (rewards < 1).all()


# ---- envs


@pytest.mark.parametrize(
    "env_id", ["Pendulum-v1", "LunarLanderContinuous-v3", "BipedalWalker-v3", "toy/Pixels-v0"]
)
@pytest.mark.filterwarnings("ignore:.*Casting input x to numpy array")  # an action without a shape
def test_runs(continuous, small, env_id):
    _, log = continuous.train(small(env_id=env_id, num_envs=3, num_steps=20, total_timesteps=120))
    assert all(math.isfinite(row["kl"] + row["value_loss"]) for row in log)


class Range(Counter):
    """Actions are between the given bounds."""

    def __init__(self, low, high):
        super().__init__(3)
        self.action_space = Box(float(low), float(high), (1,), np.float64)


class Alms(Counter):
    """Each step is an episode, whose rewards are as large as the mean says, and differ by 1."""

    def __init__(self, mean):
        super().__init__(terminates_after=1, continuous=True)
        self.mean = mean

    def reset(self, *, seed=None, options=None):
        gym.Env.reset(self, seed=seed)
        return super().reset(seed=seed)

    def step(self, action):
        obs, _, *rest = super().step(action)
        return obs, self.mean + self.np_random.normal(), *rest


gym.register("toy/Range-v0", Range)
gym.register("toy/Alms-v0", Alms)


@pytest.mark.parametrize(
    ("low", "high", "far"),
    [
        *((0, 1000, True), (5, 6, True), (-6, -5, True), (-1, 25, True)),
        *((-0.01, 0.01, True), (-1e9, 1e9, True)),
        *((-1, 1, False), (-0.4, 0.4, False), (0, 1, False), (-10, 10, False), (-3e38, 3e38, False)),
    ],
)
def test_bounds_far_from_the_first_actions_are_said(continuous, low, high, far, make_args, capsys):
    kwargs = f'{{"low": {low}, "high": {high}}}'
    continuous.train(make_args(continuous, env_id="toy/Range-v0", env_kwargs=kwargs, eval_episodes=0))
    assert ("far from their bounds: RescaleAction helps" in capsys.readouterr().out) == far


@pytest.mark.parametrize(("mean", "cut"), [(100, True), (0, False)])
def test_if_most_rewards_were_cut_it_is_said(continuous, mean, cut, make_args, capsys):
    kwargs = f'{{"mean": {mean}}}'
    args = make_args(continuous, env_id="toy/Alms-v0", env_kwargs=kwargs, eval_episodes=0, iterations=8)
    _, log = continuous.train(args)
    assert all((row["reward_clip_frac"] > 0.9) == cut for row in log[2:])
    assert ("most rewards were cut to +-10 [D31]" in capsys.readouterr().out) == cut


@pytest.mark.long
def test_mujoco_speaks_of_what_matters_alone(continuous, tmp_path):
    """Neither of HalfCheetah's deprecated attribute nor in a file of its own; other warnings are shown."""
    code = f"""if True:
        import {continuous.__name__} as script, mujoco
        script.make_envs(script.Args(), 2).reset()
        body = "<body><freejoint/><geom size='1'/></body>"
        model = mujoco.MjModel.from_xml_string(f"<mujoco><worldbody>{{body}}</worldbody></mujoco>")
        data = mujoco.MjData(model)
        data.qpos[0] = float("nan")
        mujoco.mj_step(model, data)
    """
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert "settotalmass" not in result.stderr + result.stdout and not [*tmp_path.iterdir()]
    assert "UserWarning: Nan, Inf or huge value in QPOS" in result.stderr
