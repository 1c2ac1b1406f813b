"""Details 32 to 36: a policy with a memory, and the tasks that it is for."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import name_of
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import ppo_atari
from variants import ppo_atari_lstm
from variants.ppo_atari_lstm import Agent, evaluate


class Noise(gym.Env):
    """Noise, with the number of the env and the time in a corner; every third step costs a life, and it ends
    at random, a third are time limits.
    """

    observation_space = Box(0, 255, (1, 84, 84), np.uint8)
    action_space = Discrete(2)

    def __init__(self, number):
        self.number = number

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.obs(), {"life_lost": False}

    def step(self, action):
        self.t += 1
        end = self.np_random.random()
        return self.obs(), 0.0, end < 0.2, 0.2 < end < 0.3, {"life_lost": self.t % 3 == 0}

    def obs(self):
        obs = self.np_random.integers(256, size=(1, 84, 84), dtype=np.uint8)
        obs[0, 0, :2] = self.number, self.t
        return obs


class Cue(gym.Env):
    """Half of the first picture is white, all others are black; the fourth action must say which half."""

    observation_space, action_space = Noise.observation_space, Noise.action_space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.cue = 0, self.np_random.integers(2)
        obs = np.zeros((1, 84, 84), np.uint8)
        obs[0, :, 42 * self.cue : 42 * self.cue + 42] = 255
        return obs, {"life_lost": False}

    def step(self, action):
        self.t += 1
        reward = float(self.t == 4 and (1 if action == self.cue else -1))
        return np.zeros((1, 84, 84), np.uint8), reward, self.t == 4, False, {"life_lost": False}


def make_noise(args, num_envs, video_dir=None):
    makers = [lambda i=i: Noise(i) for i in range(num_envs)]
    return SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)


def make_cue(args, num_envs, video_dir=None):
    return SyncVectorEnv([Cue] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)


@pytest.fixture
def small(make_args, monkeypatch):
    """Args of rollouts of 12 steps of 4 envs of noise, two of which are a minibatch."""
    monkeypatch.setattr(ppo_atari_lstm, "make_envs", make_noise)
    monkeypatch.setattr(ppo_atari_lstm, "evaluate", lambda *_: [0.0])

    def make(**flags):
        sizes = dict(
            num_envs=4, num_steps=12, total_timesteps=144, update_epochs=2, num_minibatches=2, threads=1
        )
        return make_args(ppo_atari_lstm, **sizes | flags)

    return make


@pytest.fixture
def agent():
    torch.manual_seed(0)
    return Agent(make_noise(None, 1))


def noise(t, n):
    return torch.randint(256, (t, n, 1, 84, 84), dtype=torch.uint8)


def test_orthogonal_lstm(agent):
    assert sum(p.numel() for p in agent.lstm.parameters()) == 328_704
    for name, parameter in agent.lstm.named_parameters():
        if "weight" in name:
            gram = parameter.T @ parameter
            torch.testing.assert_close(gram, torch.eye(len(gram)), atol=1e-5, rtol=0)
        else:
            assert not parameter.any()


def test_the_state_is_zero_at_first_and_then_carried_on(small, rollouts_of):
    """With a learning rate of 0, the state before the second rollout is that after a replay of the first."""
    agent, (first, second, _) = rollouts_of(ppo_atari_lstm, small(learning_rate=0.0))
    assert first.state.shape == (2, 4, 128) and not first.state.any()
    assert second.state.abs().max() > 0.01
    _, _, state = agent(first.obs, first.starts, first.state)
    torch.testing.assert_close(second.state, state, atol=1e-5, rtol=0)


def test_the_state_is_reset_where_an_episode_starts(agent):
    obs, state = noise(3, 2), torch.randn(2, 2, 128)
    starts = torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 1.0]])
    values = [agent(obs, starts, s)[1] for s in (state, torch.zeros_like(state))]
    same = (values[0] - values[1]).abs() < 1e-6
    assert same.T.tolist() == [[True, True, True], [False, False, True]]
    other = torch.cat([noise(1, 2), obs[1:]])
    assert ((agent(other, starts, state)[1] - values[0]).abs() > 1e-6)[:2].all()  # an opening is remembered
    state.requires_grad_()
    agent.critic.weight.data *= 100
    [gradient] = torch.autograd.grad(agent(obs, starts, state)[1][2].sum(), state)
    assert not gradient.any()  # env 0 has forgotten it at step 0, env 1 at step 2
    [gradient] = torch.autograd.grad(agent(obs, starts, state)[1][1].sum(), state)
    assert not gradient[:, 0].any() and gradient[0, 1].any() and gradient[1, 1].any()


def test_minibatches_are_whole_sequences_of_some_envs(small, record):
    losses = record(ppo_atari_lstm, "ppo_loss")
    ppo_atari_lstm.train(small())
    assert len(losses) == 3 * 2 * 2
    orders = []
    for first, second in zip(losses[::2], losses[1::2], strict=True):
        obs = [batch.obs[:, :, 0, 0, :2] for (_, _, batch, *_), _ in (first, second)]
        for numbers, ts in (x.unbind(-1) for x in obs):
            assert (numbers == numbers[0]).all() and numbers.shape == (12, 2)
            following = (ts[1:] == ts[:-1] + 1) | (ts[1:] == 0)
            assert following.all() and (ts[1:] > 0).any()
        orders.append([number for x in obs for number in x[0, :, 0].tolist()])
    assert all(sorted(order) == [0, 1, 2, 3] for order in orders)
    assert len(set(map(tuple, orders))) > 1


def test_a_replay_from_the_first_state_reproduces_the_rollout(small, record):
    losses = record(ppo_atari_lstm, "ppo_loss")
    ppo_atari_lstm.train(small(learning_rate=1e-3))
    for i, ((dist, value, batch, *_), _) in enumerate(losses):
        ratio = (dist.log_prob(batch.actions) - batch.logprobs).exp()
        if i % 4 == 0:  # the first minibatch of each rollout
            torch.testing.assert_close(ratio, torch.ones(12, 2), atol=1e-5, rtol=0)
            torch.testing.assert_close(value, batch.values, atol=1e-5, rtol=0)
            assert batch.starts[1:].any() and not batch.starts.all()
            assert batch.state.any() == (i > 0)
        else:
            assert (ratio - 1).abs().max() > 1e-5


def test_the_last_observation_is_valued_with_the_memory_of_its_episode(small, record, monkeypatch):
    """A replay without ends gives the same."""
    inputs, batches = record(ppo_atari_lstm, "compute_gae"), record(ppo_atari_lstm, "Batch")
    finals, step = {}, SyncVectorEnv.step

    def recorder(self, actions):
        result = step(self, actions)
        terminated, truncated, infos = result[2:]
        for i in np.flatnonzero(truncated & ~terminated):
            finals[len(steps), i] = torch.as_tensor(infos["final_obs"][i])
        steps.append(actions)
        return result

    steps = []
    monkeypatch.setattr(SyncVectorEnv, "step", recorder)
    agent, _ = ppo_atari_lstm.train(small(learning_rate=0.0, total_timesteps=48, gamma=0.9))
    [((_, _, next_values, *_), _)], batch = inputs, batches[0][1]
    assert len(finals) > 2
    for (t, i), final_obs in finals.items():
        obs = torch.cat([batch.obs[: t + 1, i], final_obs[None]])[:, None]
        starts = torch.cat([batch.starts[: t + 1, i], torch.zeros(1)])[:, None]
        expected = agent(obs, starts, torch.zeros(2, 1, 128))[1][-1, 0]
        torch.testing.assert_close(next_values[t, i], expected, atol=1e-5, rtol=0)


def test_a_cut_opens_episodes(small, record):
    """At each of the 3, starts is 1 in all envs, whatever the episodes were at."""
    batches = record(ppo_atari_lstm, "ppo_loss")
    ppo_atari_lstm.train(small(checkpoints=3, num_minibatches=1, update_epochs=1))
    assert len(batches) == 3
    assert all(batch.starts[0].all() for (_, _, batch, *_), _ in batches)
    batches.clear()
    ppo_atari_lstm.train(small(checkpoints=1, num_minibatches=1, update_epochs=1))
    assert [bool(batch.starts[0].all()) for (_, _, batch, *_), _ in batches] == [True, False, False]


def test_evaluation_remembers(agent, make_args, monkeypatch):
    """Four steps in one episode: the state is zero before the first, and not before the others."""
    monkeypatch.setattr(ppo_atari_lstm, "make_envs", make_cue)
    calls, forward = [], Agent.forward

    def recorder(self, obs, starts, state):
        calls.append((starts, state))
        return forward(self, obs, starts, state)

    monkeypatch.setattr(Agent, "forward", recorder)
    assert set(ppo_atari_lstm.evaluate(agent, make_args(ppo_atari_lstm, eval_episodes=8))) <= {-1.0, 1.0}
    assert [starts.tolist() for starts, _ in calls] == [[1.0] * 8, *[[0.0] * 8] * 3]
    assert not calls[0][1].any() and all(state.any() for _, state in calls[1:])


@pytest.mark.parametrize("episodic_life", [True, False])
def test_a_lost_life_empties_the_memory(episodic_life, small, rollouts_of, agent, monkeypatch):
    """If it is an end to the learner: in rollouts, and so in updates, and in evaluation."""
    args = small(episodic_life=episodic_life, eval_episodes=20)
    _, rollouts = rollouts_of(ppo_atari_lstm, args)
    calls, forward = [], Agent.forward
    monkeypatch.setattr(Agent, "forward", lambda self, *x: calls.append(x) or forward(self, *x))
    evaluate(agent, args)
    for obs, starts in [(rollout.obs, rollout.starts) for rollout in rollouts] + [x[:2] for x in calls]:
        t = obs[..., 0, 0, 1]
        assert torch.equal(starts.bool(), t % 3 == 0 if episodic_life else t == 0)
    assert any((obs[..., 0, 0, 1] == 3).any() for obs, *_ in calls)  # the test can tell


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("script", [ppo_atari, ppo_atari_lstm], ids=name_of)
def test_memory(script, seed, make_args, monkeypatch):
    """The cue is only in the first picture: without a memory, the fourth action is a guess."""
    monkeypatch.setattr(script, "make_envs", make_cue)
    flags = dict(update_epochs=4, num_minibatches=4)
    flags |= dict(num_envs=8, num_steps=32, total_timesteps=6144, learning_rate=1e-3, eval_episodes=100)
    _, log = script.train(make_args(script, seed=seed, **flags))
    score = log[-1]["eval_return"]
    print(f"{name_of(script)} seed {seed}: {score}")
    assert score > 0.9 if script is ppo_atari_lstm else abs(score) < 0.4
