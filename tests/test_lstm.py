"""Details 32 to 36: a policy with a memory, and the tasks that it is for."""

from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import each_of, name_of, same_weights
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import ppo_atari
import ppo_discrete
from variants import ppo_atari_lstm, ppo_lstm

script, atari_lstm = each_of([ppo_atari_lstm, ppo_lstm]), each_of([ppo_atari_lstm])
only_vector = each_of([ppo_lstm])
SHAPES = {ppo_atari: (1, 84, 84), ppo_atari_lstm: (1, 84, 84), ppo_discrete: (84,), ppo_lstm: (84,)}
STATES = {ppo_atari_lstm: (2, 128), ppo_lstm: (4, 64)}


class Noise(gym.Env):
    """Noise, with the number of the env and the time in a corner; every third step costs a life, and it ends
    at random, a third are time limits.
    """

    action_space = Discrete(2)

    def __init__(self, number, shape):
        self.number = number
        self.observation_space = Box(0, 255, shape, np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.obs(), {"life_lost": False}

    def step(self, action):
        self.t += 1
        end = self.np_random.random()
        return self.obs(), 0.0, end < 0.2, 0.2 < end < 0.3, {"life_lost": self.t % 3 == 0}

    def obs(self):
        obs = self.np_random.integers(256, size=self.observation_space.shape, dtype=np.uint8)
        obs.reshape(-1, 84)[0, :2] = self.number, self.t
        return obs


class Cue(gym.Env):
    """Half of the first picture is white, all others are black; the fourth action must say which half."""

    action_space = Noise.action_space

    def __init__(self, shape, white):
        self.observation_space, self.white = Box(0, 255, shape, np.uint8), white

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.cue = 0, self.np_random.integers(2)
        obs = np.zeros(self.observation_space.shape, np.uint8)
        obs[..., 42 * self.cue : 42 * self.cue + 42] = self.white
        return obs, {"life_lost": False}

    def step(self, action):
        self.t += 1
        reward = float(self.t == 4 and (1 if action == self.cue else -1))
        obs = np.zeros(self.observation_space.shape, np.uint8)
        return obs, reward, self.t == 4, False, {"life_lost": False}


def make_noise_of(script):
    def make_noise(args, num_envs, video_dir=None):
        makers = [lambda i=i: Noise(i, SHAPES[script]) for i in range(num_envs)]
        return SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)

    return make_noise


def make_cue_of(script):
    white = 255 if len(SHAPES[script]) > 1 else 1

    def make_cue(args, num_envs, video_dir=None):
        makers = [lambda: Cue(SHAPES[script], white)] * num_envs
        return SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)

    return make_cue


def corner(obs):
    """The number of the env, and the time."""
    return obs[..., 0, 0, :2] if obs.shape[-1] == obs.shape[-2] == 84 else obs[..., :2]


def lstms(agent):
    return [module for module in agent.modules() if isinstance(module, torch.nn.LSTM)]


def critic_of(agent):
    return getattr(agent.critic, "head", agent.critic)


def zero_state(script, n):
    rows, width = STATES[script]
    return torch.zeros(rows, n, width)


@pytest.fixture
def small(script, make_args, monkeypatch):
    """Args of rollouts of 12 steps of 4 envs of noise, two of which are a minibatch."""
    monkeypatch.setattr(script, "make_envs", make_noise_of(script))
    monkeypatch.setattr(script, "evaluate", lambda *_: [0.0])

    def make(**flags):
        sizes = dict(
            num_envs=4, num_steps=12, total_timesteps=144, update_epochs=2, num_minibatches=2, threads=1
        )
        return make_args(script, **sizes | flags)

    return make


@pytest.fixture
def agent(script):
    torch.manual_seed(0)
    return script.Agent(make_noise_of(script)(None, 1))


def noise(script, t, n):
    obs = torch.randint(256, (t, n, *SHAPES[script]), dtype=torch.uint8)
    return obs if obs.dim() > 3 else obs / 256


def test_orthogonal_lstm(script, agent):
    sizes = [sum(p.numel() for p in lstm.parameters()) for lstm in lstms(agent)]
    assert sizes == ([328_704] if script is ppo_atari_lstm else [33_280] * 2)
    for lstm in lstms(agent):
        for name, parameter in lstm.named_parameters():
            if "weight" in name:
                gram = parameter.T @ parameter
                torch.testing.assert_close(gram, torch.eye(len(gram)), atol=1e-5, rtol=0)
            else:
                assert not parameter.any()


def test_the_state_is_zero_at_first_and_then_carried_on(script, small, rollouts_of):
    """With a learning rate of 0, the state before the second rollout is that after a replay of the first."""
    agent, (first, second, _) = rollouts_of(script, small(learning_rate=0.0))
    assert first.state.shape == zero_state(script, 4).shape and not first.state.any()
    assert second.state.abs().max() > 0.01
    _, _, state = agent(first.obs, first.starts, first.state)
    torch.testing.assert_close(second.state, state, atol=1e-5, rtol=0)


def test_the_state_is_reset_where_an_episode_starts(script, agent):
    obs, state = noise(script, 3, 2), torch.randn_like(zero_state(script, 2))
    starts = torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 1.0]])
    values = [agent(obs, starts, s)[1] for s in (state, torch.zeros_like(state))]
    same = (values[0] - values[1]).abs() < 1e-6
    assert same.T.tolist() == [[True, True, True], [False, False, True]]
    other = torch.cat([noise(script, 1, 2), obs[1:]])
    assert ((agent(other, starts, state)[1] - values[0]).abs() > 1e-6)[:2].all()  # an opening is remembered
    state.requires_grad_()
    critic_of(agent).weight.data *= 100
    [gradient] = torch.autograd.grad(agent(obs, starts, state)[1][2].sum(), state)
    assert not gradient.any()  # env 0 has forgotten it at step 0, env 1 at step 2
    [gradient] = torch.autograd.grad(agent(obs, starts, state)[1][1].sum(), state)
    assert not gradient[:, 0].any() and gradient[-2, 1].any() and gradient[-1, 1].any()


def test_minibatches_are_whole_sequences_of_some_envs(script, small, record):
    losses = record(script, "ppo_loss")
    script.train(small())
    assert len(losses) == 3 * 2 * 2
    orders = []
    for first, second in zip(losses[::2], losses[1::2], strict=True):
        obs = [corner(batch.obs) for (_, _, batch, *_), _ in (first, second)]
        for numbers, ts in (x.unbind(-1) for x in obs):
            assert (numbers == numbers[0]).all() and numbers.shape == (12, 2)
            following = (ts[1:] == ts[:-1] + 1) | (ts[1:] == 0)
            assert following.all() and (ts[1:] > 0).any()
        orders.append([number for x in obs for number in x[0, :, 0].tolist()])
    assert all(sorted(order) == [0, 1, 2, 3] for order in orders)
    assert len(set(map(tuple, orders))) > 1


def test_a_replay_from_the_first_state_reproduces_the_rollout(script, small, record):
    losses = record(script, "ppo_loss")
    script.train(small(learning_rate=1e-3))
    for i, ((dist, value, batch, *_), _) in enumerate(losses):
        ratio = (dist.log_prob(batch.actions) - batch.logprobs).exp()
        if i % 4 == 0:  # the first minibatch of each rollout
            torch.testing.assert_close(ratio, torch.ones(12, 2), atol=1e-5, rtol=0)
            torch.testing.assert_close(value, batch.values, atol=1e-5, rtol=0)
            assert batch.starts[1:].any() and not batch.starts.all()
            assert batch.state.any() == (i > 0)
        else:
            assert (ratio - 1).abs().max() > 1e-5


def test_the_last_observation_is_valued_with_the_memory_of_its_episode(script, small, record, monkeypatch):
    """A replay without ends gives the same."""
    inputs, batches = record(script, "compute_gae"), record(script, "Batch")
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
    agent, _ = script.train(small(learning_rate=0.0, total_timesteps=48, gamma=0.9))
    [((_, _, next_values, *_), _)], batch = inputs, batches[0][1]
    assert len(finals) > 2
    for (t, i), final_obs in finals.items():
        obs = torch.cat([batch.obs[: t + 1, i], final_obs[None]])[:, None]
        starts = torch.cat([batch.starts[: t + 1, i], torch.zeros(1)])[:, None]
        expected = agent(obs, starts, zero_state(script, 1))[1][-1, 0]
        torch.testing.assert_close(next_values[t, i], expected, atol=1e-5, rtol=0)


def test_a_cut_opens_episodes(script, small, record, monkeypatch):
    """At each of the 3, starts is 1 in all envs, whatever the episodes were at."""
    batches = record(script, "ppo_loss")
    monkeypatch.setattr(script, "may_save", lambda *_: True)
    script.train(small(num_minibatches=1, update_epochs=1))
    assert len(batches) == 3
    assert all(batch.starts[0].all() for (_, _, batch, *_), _ in batches)
    batches.clear()
    monkeypatch.setattr(script, "may_save", lambda age, *_: age == 0)
    script.train(small(num_minibatches=1, update_epochs=1))
    assert [bool(batch.starts[0].all()) for (_, _, batch, *_), _ in batches] == [True, False, False]


def test_evaluation_remembers(script, agent, make_args, monkeypatch):
    """Four steps in one episode: the state is zero before the first, and not before the others."""
    monkeypatch.setattr(script, "make_envs", make_cue_of(script))
    calls, forward = [], script.Agent.forward

    def recorder(self, obs, starts, state):
        calls.append((starts, state))
        return forward(self, obs, starts, state)

    monkeypatch.setattr(script.Agent, "forward", recorder)
    assert set(script.evaluate(agent, make_args(script, eval_episodes=8))) <= {-1.0, 1.0}
    assert [starts.tolist() for starts, _ in calls] == [[1.0] * 8, *[[0.0] * 8] * 3]
    assert not calls[0][1].any() and all(state.any() for _, state in calls[1:])


def test_actions_of_several_components(only_vector, make_args, no_evaluation, record):
    """At first all are nearly equally likely; the log-probability is their sum, and is learned from."""
    losses = record(only_vector, "ppo_loss")
    flags = dict(env_id="toy/Copy-v0", num_envs=4, num_minibatches=2, learning_rate=1e-3)
    agent, log = only_vector.train(make_args(only_vector, **flags))
    (dist, _, batch, *_), _ = losses[0]
    assert batch.actions.shape == (*batch.logprobs.shape, len(agent.valid))
    torch.testing.assert_close(dist.log_prob(batch.actions), batch.logprobs, atol=1e-5, rtol=0)
    probabilities = (dist.base_dist.probs * agent.valid.sum(1, keepdim=True))[..., agent.valid]
    assert (probabilities - 1).abs().max() < 0.1 and not dist.base_dist.probs[..., ~agent.valid].any()
    assert log[-1]["kl"] > 0


def test_positions_without_velocities(only_vector, make_args):
    """What is seen is CartPole's first and third number; the time limit is its own."""
    envs = only_vector.make_envs(only_vector.Args(), 2)
    whole = gym.make_vec("CartPole-v1", 2, vectorization_mode="sync")
    obs, (seen, _) = whole.reset(seed=[1, 2])[0], envs.reset(seed=[1, 2])
    for _ in range(5):
        np.testing.assert_array_equal(seen, obs[:, ::2])
        obs, seen = whole.step([1, 0])[0], envs.step([1, 0])[0]
    assert envs.spec.max_episode_steps == 500
    assert envs.single_observation_space.contains(np.array([2.4, 0.2], np.float32))


def test_a_run_that_is_resumed_is_never_interrupted(only_vector, make_args, record):
    flags = dict(num_envs=4, num_minibatches=2, checkpoints=2, iterations=4, eval_episodes=2)
    flags["num_steps"] = 64  # two of these have ten episodes of eight steps
    whole = make_args(only_vector, env_id="toy/Copy-v0", **flags)
    half = replace(whole, run_dir=whole.run_dir + "half")
    agent, log = only_vector.train(whole)
    only_vector.train(half, on_iteration=lambda row: row["steps"] == log[1]["steps"])
    again, rest = only_vector.train(replace(half, resume=half.run_dir))
    assert len(rest) == 2 and same_weights(agent, again)
    assert rest[-1]["eval_return"] == log[-1]["eval_return"]


@pytest.mark.parametrize("episodic_life", [True, False])
def test_a_lost_life_empties_the_memory(episodic_life, atari_lstm, make_args, rollouts_of, monkeypatch):
    """If it is an end to the learner: in rollouts, and so in updates, and in evaluation."""
    monkeypatch.setattr(atari_lstm, "make_envs", make_noise_of(atari_lstm))
    evaluate, agent = atari_lstm.evaluate, atari_lstm.Agent(make_noise_of(atari_lstm)(None, 1))
    sizes = dict(num_envs=4, num_steps=12, total_timesteps=144, update_epochs=2, num_minibatches=2, threads=1)
    args = make_args(atari_lstm, episodic_life=episodic_life, eval_episodes=20, **sizes)
    with monkeypatch.context() as patch:
        patch.setattr(atari_lstm, "evaluate", lambda *_: [0.0])
        _, rollouts = rollouts_of(atari_lstm, args)
    calls, forward = [], atari_lstm.Agent.forward
    monkeypatch.setattr(atari_lstm.Agent, "forward", lambda self, *x: calls.append(x) or forward(self, *x))
    evaluate(agent, args)
    for obs, starts in [(rollout.obs, rollout.starts) for rollout in rollouts] + [x[:2] for x in calls]:
        t = obs[..., 0, 0, 1]
        assert torch.equal(starts.bool(), t % 3 == 0 if episodic_life else t == 0)
    assert any((obs[..., 0, 0, 1] == 3).any() for obs, *_ in calls)  # the test can tell


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("script", [ppo_atari, ppo_atari_lstm, ppo_discrete, ppo_lstm], ids=name_of)
def test_memory(script, seed, make_args, monkeypatch):
    """The cue is only in the first picture: without a memory, the fourth action is a guess."""
    monkeypatch.setattr(script, "make_envs", make_cue_of(script))
    flags = dict(update_epochs=4, num_minibatches=4)
    flags |= dict(num_envs=8, num_steps=32, total_timesteps=6144, learning_rate=1e-3, eval_episodes=100)
    _, log = script.train(make_args(script, seed=seed, **flags))
    score = log[-1]["eval_return"]
    print(f"{name_of(script)} seed {seed}: {score}")
    assert score > 0.9 if script in STATES else abs(score) < 0.4
