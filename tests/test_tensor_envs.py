"""variants/ppo_tensor_envs.py: its env is gymnasium's, and what its rollouts make of it."""

import gymnasium as gym
import numpy as np
import processes
import pytest
import torch
from conftest import ROOT, Stopped, same_weights

import ppo_discrete
from variants import ppo_tensor_envs as script


@pytest.fixture
def run_args(tmp_path):
    """run_args(iterations, **flags) -> Args of rollouts of 16 steps of 8 envs, with a folder of their own."""

    def make(iterations=4, **flags):
        small = dict(num_envs=8, num_steps=16, num_minibatches=2, eval_episodes=1, checkpoints=0)
        small |= dict(total_timesteps=iterations * 128, run_dir=str(tmp_path / f"run{len(made)}")) | flags
        made.append(small)
        return script.Args(**small)

    made = []
    return make


@pytest.fixture
def record(monkeypatch):
    """record(owner, name) -> a list of (arguments, result) of each call, as they were then."""

    def listen(owner, name):
        function, calls = getattr(owner, name), []

        def recorded(*args):
            given = [x.clone() if isinstance(x, torch.Tensor) else x for x in args]
            result = function(*args)
            kept = tuple(x.clone() for x in result) if isinstance(result, tuple) else result.clone()
            calls.append((given, kept))
            return result

        monkeypatch.setattr(owner, name, recorded)
        return calls

    return listen


def test_each_step_is_that_of_gymnasium():
    """From 2,000 states up to the bounds and beyond: state, reward, and end, to float rounding."""
    torch.manual_seed(1)
    env, peer = script.CartPole(), gym.make("CartPole-v1").unwrapped
    states = (torch.rand(2000, 4) * 2 - 1) * torch.tensor([2.5, 3.0, 0.22, 3.0])
    actions = torch.randint(2, (2000,))
    result = zip(*env.step(states, actions), strict=True)
    ends = 0
    for state, action, (next_state, reward, terminated) in zip(states, actions, result, strict=True):
        peer.reset()
        peer.state = state.double().numpy()
        obs, peer_reward, peer_terminated, *_ = peer.step(int(action))
        np.testing.assert_allclose(next_state, obs, rtol=1e-5, atol=1e-6)
        assert reward == peer_reward
        near = min(abs(abs(obs[0]) - 2.4), abs(abs(obs[2]) - peer.theta_threshold_radians)) < 1e-6
        assert near or bool(terminated) == peer_terminated
        ends += peer_terminated
    assert 200 < ends < 1800


def test_whole_episodes_are_those_of_gymnasium():
    """From the same state, by the same rule, which falls after a while, in the same number of steps."""
    env, peer = script.CartPole(), gym.make("CartPole-v1").unwrapped
    torch.manual_seed(2)
    state = env.reset(16, "cpu")
    for n in range(16):
        peer.reset()
        peer.state = state[n].double().numpy()
        ours, theirs, terminated = state[n : n + 1], state[n].numpy(), False
        while not terminated:
            action = int(theirs[2] > 0)  # too simple a rule
            ours, _, done = env.step(ours, torch.tensor([action]))
            theirs, _, terminated, *_ = peer.step(action)
            np.testing.assert_allclose(ours[0], theirs, atol=1e-4)
            assert bool(done) == terminated


def test_first_states_are_those_of_gymnasium():
    states = script.CartPole().reset(10_000, "cpu")
    assert states.abs().max() <= 0.05
    torch.testing.assert_close(states.std(0), torch.full((4,), 0.1 / 12**0.5), rtol=0.05, atol=0)
    assert script.CartPole.time_limit == gym.spec("CartPole-v1").max_episode_steps


def test_episodes_end_start_again_and_are_counted(run_args, record, monkeypatch):
    """Steps are put together to episodes once more, from what the env was asked and what it said."""
    monkeypatch.setattr(script.CartPole, "time_limit", 20)
    steps, saved = record(script.CartPole, "step"), []
    monkeypatch.setattr(script, "save", lambda *args: saved.append(args))
    script.train(run_args(6, eval_episodes=0))
    episodes, length = [], torch.zeros(8)
    for t, (_, (next_state, _, terminated)) in enumerate(steps):
        length += 1
        done = terminated | (length == 20)
        episodes += [(t // 16, float(x), float(x)) for x in length[done]]
        length[done] = 0
        if t + 1 < len(steps):
            (_, following, _), _ = steps[t + 1]
            assert torch.equal(following[~done], next_state[~done])
            assert following[done].abs().le(0.05).all()
    *_, kept = saved[-1]
    assert list(kept) == episodes
    lengths = [length for *_, length in episodes]
    assert max(lengths) == 20 and min(lengths) < 20


def test_a_time_limit_is_no_end(run_args, record, monkeypatch):
    """The value of the state that a step leads to counts, before the env starts anew; of an end, nothing."""
    monkeypatch.setattr(script.CartPole, "time_limit", 20)
    steps, gae = record(script.CartPole, "step"), record(script, "compute_gae")
    agent, _ = script.train(run_args(2, eval_episodes=0, learning_rate=0))
    led_to = torch.stack([next_state for _, (next_state, *_) in steps[16:32]])
    ends = torch.stack([terminated for _, (*_, terminated) in steps[16:32]])
    (_, values, next_values, dones, *_), _ = gae[1]
    limits = dones.bool() & ~ends
    assert ends.any() and limits.any()
    with torch.no_grad():
        torch.testing.assert_close(next_values, agent.critic(led_to).squeeze(-1) * ~ends)
    assert next_values[limits].abs().min() > 0
    inside = ~dones.bool()[:-1]
    torch.testing.assert_close(next_values[:-1][inside], values[1:][inside])


def test_gae_is_that_of_ppo_discrete():
    torch.manual_seed(3)
    rewards, values, next_values = torch.randn(3, 20, 6)
    dones = (torch.rand(20, 6) < 0.2).float()
    ours = script.compute_gae(rewards, values, next_values, dones, 0.9, 0.8)
    arrays = (x.numpy() for x in (rewards, values, next_values, dones))
    np.testing.assert_allclose(ours, ppo_discrete.compute_gae(*arrays, 0.9, 0.8), rtol=1e-5, atol=1e-6)


def test_actions_are_sampled_as_they_are_learned():
    """Frequencies of 100,000 actions are the probabilities of the distribution; greedy ones its mode."""
    torch.manual_seed(4)
    agent = script.Agent(script.CartPole())
    assert agent(torch.randn(100, 4))[0].probs.sub(0.5).abs().max() < 0.02  # at first
    agent.actor[-1].bias.data[:] = torch.tensor([0.3, -0.5])
    obs = torch.randn(3, 1, 4).expand(3, 100_000, 4)
    with torch.no_grad():
        dist, _ = agent(obs[:, 0])
        torch.testing.assert_close(agent.act(obs).float().mean(1), dist.probs[:, 1], atol=0.01, rtol=0)
        assert (agent.act(obs, greedy=True) == dist.probs.argmax(-1, keepdim=True)).all()


def test_each_sample_once_an_epoch_in_a_new_order(run_args, monkeypatch):
    seen, compute_gradients = [], script.compute_gradients

    def watched(agent, batch, *args):
        seen.append(batch)
        return compute_gradients(agent, batch, *args)

    monkeypatch.setattr(script, "compute_gradients", watched)
    script.train(run_args(1, eval_episodes=0))
    assert [len(batch.obs) for batch in seen] == [64] * 4
    first, second = (torch.cat([batch.obs for batch in seen[i : i + 2]]) for i in (0, 2))
    assert not torch.equal(first, second)
    assert torch.equal(first.sort(0)[0], second.sort(0)[0]) and len(first.unique(dim=0)) == 128


def test_a_run_that_was_killed_goes_on_exactly(run_args, monkeypatch):
    monkeypatch.setattr(script.CartPole, "time_limit", 3)  # so that saves may be two iterations apart
    args = run_args(8, checkpoints=4)
    whole, _ = script.train(args)
    saves, save = [], script.save

    def stop_after_the_third(*arguments):
        save(*arguments)
        saves.append(arguments)
        if len(saves) == 3:
            raise Stopped

    monkeypatch.setattr(script, "save", stop_after_the_third)
    broken = run_args(8, checkpoints=4)
    with pytest.raises(Stopped):
        script.train(broken)
    monkeypatch.setattr(script, "save", save)
    again, log = script.train(script.Args(**vars(broken) | {"resume": broken.run_dir, "run_dir": None}))
    assert 0 < len(log) < 8
    assert same_weights(again, whole)


def test_evaluation_is_of_whole_episodes(run_args, record):
    """As many steps as rewards are counted; each env plays until its end, the best for 500 steps."""
    args = run_args(eval_episodes=30)
    agent = script.Agent(script.CartPole())
    steps = record(script.CartPole, "step")
    returns = script.evaluate(agent, args)
    running, lengths = torch.ones(30, dtype=torch.bool), torch.zeros(30)
    for _, (*_, terminated) in steps:
        lengths += running
        running &= ~terminated
    assert returns == lengths.tolist()
    agent.actor[-1].bias.data[0] = 50.0  # always to the left
    assert 5 < np.mean(script.evaluate(agent, args)) < 15
    assert script.evaluate(agent, args) == script.evaluate(agent, args)


@pytest.mark.long
def test_it_learns(run_args):
    _, log = script.train(run_args(num_envs=128, num_steps=32, num_minibatches=8, total_timesteps=200_000))
    assert log[-1]["episode_return"] > 200


def test_as_a_program(tmp_path):
    path = ROOT / "variants/ppo_tensor_envs.py"
    flags = ["--num-envs", "8", "--total-timesteps", "2048", "--run-dir", "run"]
    for line in (flags, ["--evaluate", "run"]):
        result = processes.run(path, *line, cwd=tmp_path)
        assert not result.returncode, result.stderr
        assert "mean return" in result.stdout
    result = processes.run(path, *flags, cwd=tmp_path)
    assert result.returncode == 2 and result.stderr.count("\n") == 1
