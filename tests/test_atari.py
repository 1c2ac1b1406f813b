"""The games, frame by frame against the classic wrappers, and details 14 to 22."""

import platform
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import ale_py
import classic_wrappers as classic
import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

import ppo_atari

GAMES = ["Breakout", "Pong", "MsPacman", "SpaceInvaders", "BankHeist", "Freeway"]


def make(game, num_envs=1, **flags):
    return ppo_atari.make_envs(ppo_atari.Args(env_id=game, threads=1, **flags), num_envs)


def random_player(envs):
    """1000 random actions, and what a game answers to each."""
    rng = np.random.default_rng(0)
    for _ in range(1000):
        action = rng.integers(envs.single_action_space.n)
        obs, reward, terminated, truncated, infos = envs.step(np.array([action]))
        yield action, obs[0], reward[0], terminated[0], truncated[0], infos


# ---- against the classic wrappers


@pytest.mark.parametrize("game", GAMES)
def test_frames_rewards_and_ends_are_those_of_the_classic_wrappers(game):
    """1000 random steps. Known to differ: the last frame of final_obs, which both leave as it was before."""
    envs = make(game)
    oracle = classic.Stack(classic.Warp(classic.MaxAndSkip(classic.NoopReset(classic.make(game)))))
    meanings = oracle.unwrapped.get_action_meanings()
    obs, infos = envs.reset(seed=[7])
    expected_obs, info = oracle.reset(options={"noops": infos["episode_frame_number"][0]})
    np.testing.assert_array_equal(obs[0], expected_obs)
    starts, games = True, 0
    for action, obs, reward, terminated, truncated, infos in random_player(envs):
        if starts and "FIRE" in meanings:
            action = meanings.index("FIRE")
        lives = info["lives"]
        expected_obs, *expected, info = oracle.step(action)
        assert [reward, terminated, truncated] == expected
        life_lost = 0 < info["lives"] < lives
        starts = life_lost or terminated
        if terminated:
            games += 1
            np.testing.assert_array_equal(infos["final_obs"][0, :3], expected_obs[:3])
            expected_obs, info = oracle.reset(options={"noops": infos["episode_frame_number"][0]})
        else:
            assert infos["life_lost"][0] == life_lost
        np.testing.assert_array_equal(obs, expected_obs)
    assert games > 0 or game == "Freeway"


def test_lost_lives_are_those_of_the_classic_wrapper():
    """MsPacman has no FIRE, so where a life starts there is only the step of doing nothing to allow for."""
    envs = make("MsPacman")
    oracle = classic.EpisodicLife(classic.MaxAndSkip(classic.NoopReset(classic.make("MsPacman"))))
    _, infos = envs.reset(seed=[3])
    oracle.reset(options={"noops": infos["episode_frame_number"][0]})
    rng, lost, over = np.random.default_rng(0), 0, 0
    while over < 2:
        action = rng.integers(9)
        _, reward, terminated, _, infos = envs.step(np.array([action]))
        _, expected_reward, end, *_ = oracle.step(action)
        assert reward[0] == expected_reward
        assert (terminated | infos["life_lost"])[0] == end
        if terminated[0]:
            over += 1
            oracle.reset(options={"noops": infos["episode_frame_number"][0]})
        elif end:
            lost += 1
            envs.step(np.array([0]))
            oracle.reset()
    assert lost == 2 * 2  # 3 lives a game


def test_grey_is_luminance():
    """The ALE's own grey is what OpenCV makes of its colours."""
    rgb, grey = (classic.make("Breakout", obs_type).reset(seed=0)[0] for obs_type in ("rgb", "grayscale"))
    assert len(np.unique(grey)) > 6
    np.testing.assert_array_equal(classic.cv2.cvtColor(rgb, classic.cv2.COLOR_RGB2GRAY), grey)


# ---- the details


def test_up_to_30_frames_of_doing_nothing():
    envs, noops = make("Freeway", 16), Counter()
    envs.reset(seed=list(range(0, 32, 2)))
    for _ in range(40):
        _, infos = envs.env.reset()
        noops.update(infos["episode_frame_number"].tolist())
    assert min(noops) == 0 and max(noops) == 30 and len(noops) == 31


def test_an_action_lasts_four_frames_of_which_two_are_seen():
    """Against every single frame of a game that flickers."""
    envs, frames = make("Asteroids"), classic.Warp(classic.make("Asteroids"))
    _, infos = envs.reset(seed=[0])
    frames.reset()
    for _ in range(infos["episode_frame_number"][0]):
        frames.step(0)
    flicker = 0
    for t in range(100):
        obs, *_, infos = envs.step(np.array([t % 14]))
        raw = [frames.unwrapped.step(1 if t == 0 else t % 14)[0] for _ in range(4)]
        np.testing.assert_array_equal(obs[0, -1], frames.observation(np.maximum(raw[2], raw[3])))
        flicker += (raw[2] != raw[3]).any()
    assert flicker > 50


def test_a_lost_life_is_an_end_for_the_learner_alone(make_args, record):
    """Breakout without moving: 5 lives a game of 125 steps; what is scored and evaluated are whole games."""
    inputs, args = record(ppo_atari, "compute_gae"), make_args(ppo_atari, num_envs=2, num_steps=256)
    args.total_timesteps, args.update_epochs = 512, 1
    for args.episodic_life, ends in ((True, 20), (False, 4)):
        inputs.clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                torch.distributions.Categorical,
                "sample",
                lambda self: torch.zeros(len(self.probs), dtype=int),
            )
            _, log = ppo_atari.train(args)
        [((rewards, values, dones, *_), _)] = inputs
        assert dones.sum() == ends
        assert log[-1]["episode_return"] == log[-1]["eval_return"] == 0
        args.run_dir += "again"


def test_each_life_starts_with_fire():
    """Or else a player who does nothing would never lose the second of 5 lives of Breakout."""
    envs = make("Breakout", 2)
    envs.reset(seed=[1, 2])
    ends = [envs.step(np.zeros(2, dtype=int))[2].all() for _ in range(130)]
    assert sum(ends) == 1
    without = envs.env
    without.reset(seed=np.array([1, 2]))
    assert not any(without.step(np.zeros(2, dtype=int))[4]["lives"].min() < 5 for _ in range(130))


def test_fire_is_not_pressed_where_the_agent_acts():
    envs, given = make("Breakout"), []
    envs.reset(seed=[1])
    step = envs.env.step
    envs.env.step = lambda actions: given.append(actions.item()) or step(actions)
    lives = [envs.step(np.array([0]))[4]["lives"].item() for _ in range(130)]
    starts = [0] + [t + 1 for t in range(1, 130) if lives[t] != lives[t - 1]]
    assert 4 < len(starts) < 7
    assert [t for t, action in enumerate(given) if action == 1] == starts


def test_full_action_space_presses_fire_too():
    envs = make("Breakout", full_action_space=True)
    assert envs.single_action_space.n == 18
    assert envs.fire == 1
    assert make("Freeway").fire is None


def test_observations_are_four_frames_of_84_by_84(make_args, record):
    """Newest last; after the end of a game nothing of it is left; a lost life leaves them alone."""
    envs = make("Breakout")
    obs, _ = envs.reset(seed=[1])
    assert obs.shape == (1, 4, 84, 84) and obs.dtype == np.uint8
    assert not obs[0, :3].any() and obs[0, 3].any()
    for _ in range(130):
        next_obs, _, terminated, _, _ = envs.step(np.zeros(1, dtype=int))
        if terminated[0]:
            assert not next_obs[0, :3].any() and next_obs[0, 3].any()
        else:
            np.testing.assert_array_equal(next_obs[0, :3], obs[0, 1:])
        obs = next_obs


class Scores(gym.vector.VectorEnv):
    """Rewards that a game could give, one after the other; the last ends the game."""

    rewards = [-7, 0, 30, 1, -1, 200]
    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}

    def __init__(self, num_envs=4):
        self.num_envs, self.t = num_envs, 0
        self.single_observation_space = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)
        self.single_action_space = gym.spaces.Discrete(2)
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed=None, options=None):
        return self.observation_space.sample(), {}

    def step(self, actions):
        self.t += 1
        no, ends = np.zeros(self.num_envs, dtype=bool), np.full(self.num_envs, self.t % 6 == 0)
        reward = np.full(self.num_envs, self.rewards[(self.t - 1) % 6], dtype=np.int32)
        return self.observation_space.sample(), reward, ends, no, {"life_lost": no}


class Extra(Scores):
    """A game that gives extra lives."""

    ale = SimpleNamespace(get_action_set=lambda: [ale_py.Action.NOOP, ale_py.Action.FIRE])
    lives = [3, 2, 2, 3, 4, 3]

    def reset(self, *, seed=None, options=None):
        return super().reset()[0], {"lives": np.full(self.num_envs, 3)}

    def step(self, actions):
        *rest, infos = super().step(actions)
        return *rest, infos | {"lives": np.full(self.num_envs, self.lives[self.t % 6])}


def test_an_extra_life_is_no_end():
    envs = ppo_atari.Lives(Extra(2))
    envs.reset(seed=[0, 1])
    lost = [envs.step(np.zeros(2, dtype=int))[4]["life_lost"].tolist() for _ in range(5)]
    assert lost == [[True] * 2, [False] * 2, [False] * 2, [False] * 2, [True] * 2]


def test_rewards_are_signs_and_scores_are_not(make_args, record, monkeypatch):
    inputs = record(ppo_atari, "compute_gae")
    monkeypatch.setattr(ppo_atari, "make_envs", lambda args, num_envs, *_: Scores(num_envs))
    _, log = ppo_atari.train(make_args(ppo_atari, total_timesteps=64))
    [((rewards, *_), _)] = inputs
    assert rewards[:6].T.tolist() == [[-1, 0, 1, 1, -1, 1]] * 4
    assert log[-1]["episode_return"] == log[-1]["eval_return"] == 223


@pytest.mark.parametrize(("game", "parameters"), [("Breakout", 1_686_693), ("Pong", 1_687_719)])
def test_one_network_for_policy_and_value(game, parameters):
    agent = ppo_atari.Agent(make(game))
    assert sum(p.numel() for p in agent.parameters()) == parameters
    passes = []
    agent.trunk.register_forward_hook(lambda module, inputs, output: passes.append(output))
    dist, value = agent(torch.randint(256, (2, 4, 84, 84), dtype=torch.uint8))
    [features] = passes
    assert features.shape == (2, 512) and (features >= 0).all()
    for output in (dist.log_prob(torch.zeros(2)).sum(), value.sum()):
        assert torch.autograd.grad(output, agent.trunk[0].weight, retain_graph=True)[0].any()


def test_orthogonal_weights_of_convolutions_too():
    agent = ppo_atari.Agent(make("Pong"))
    layers = [module for module in agent.modules() if hasattr(module, "weight")]
    for layer, gain in zip(layers, [2**0.5] * 4 + [0.01, 1.0], strict=True):
        singular_values = torch.linalg.svdvals(layer.weight.flatten(1))
        torch.testing.assert_close(singular_values, torch.full_like(singular_values, gain), rtol=1e-4, atol=0)
        assert not layer.bias.any()


def test_pixels_are_scaled_once_and_stored_as_bytes(make_args, record):
    agent = ppo_atari.Agent(make("Pong"))
    seen = []
    agent.trunk[0].register_forward_hook(lambda module, inputs, output: seen.append(inputs[0].max().item()))
    white = torch.full((1, 4, 84, 84), 255, dtype=torch.uint8)
    outputs = [agent(obs)[1] for obs in (white, white.float())]
    assert seen == [1.0, 1.0] and outputs[0] == outputs[1]
    buffers, losses = record(ppo_atari, "buffer"), record(ppo_atari, "ppo_loss")
    ppo_atari.train(make_args(ppo_atari, num_envs=8, num_steps=128, total_timesteps=1024, update_epochs=1))
    [((_, _, batch, _), _), *_] = losses
    assert batch.obs.dtype == torch.uint8 and batch.obs.is_contiguous(memory_format=torch.channels_last)
    assert sum(buffer.nbytes for _, buffer in buffers) < 30e6


@pytest.mark.parametrize("bfloat16", [False, True])
def test_the_ratio_is_one_on_fresh_data(bfloat16, make_args, record):
    losses = record(ppo_atari, "ppo_loss")
    ppo_atari.train(make_args(ppo_atari, total_timesteps=128, bfloat16=bfloat16))
    for i, ((dist, value, batch, _), _) in enumerate(losses):
        ratio = (dist.log_prob(batch.actions) - batch.logprobs).exp()
        if i % 16 == 0:
            torch.testing.assert_close(ratio, torch.ones(16), atol=1e-4, rtol=0)
            torch.testing.assert_close(value, batch.values, atol=1e-4, rtol=1e-4)
        else:
            assert (ratio - 1).abs().max() > 1e-4


# ---- speed


def test_bfloat16_rounds_the_gradient_by_some_percent():
    """And only the trunk computes in it: heads and loss do not, nor is a weight stored so."""
    envs = make("Breakout", 8)
    envs.reset(seed=list(range(8)))
    rng = np.random.default_rng(0)
    obs = torch.as_tensor(np.concatenate([envs.step(rng.integers(4, size=8))[0] for _ in range(32)]))
    actions, numbers = torch.randint(4, (256,)), torch.randn(2, 256)

    def gradient(bfloat16):
        torch.manual_seed(1)
        agent = ppo_atari.Agent(envs, bfloat16)
        dtypes = []
        agent.trunk[0].register_forward_hook(lambda module, inputs, output: dtypes.append(output.dtype))
        dist, value = agent(obs)
        assert dist.logits.dtype == value.dtype == torch.float32
        batch = ppo_atari.Batch(obs, actions, dist.log_prob(actions).detach(), *numbers, value.detach())
        ppo_atari.backpropagate(agent, batch, ppo_atari.Args())
        assert {parameter.dtype for parameter in agent.parameters()} == {torch.float32}
        assert set(dtypes) == {torch.bfloat16 if bfloat16 else torch.float32}
        return torch.cat([parameter.grad.flatten() for parameter in agent.parameters()])

    exact = gradient(False)
    assert 1e-3 < (gradient(True) - exact).norm() / exact.norm() < 0.1


def test_an_agent_of_bfloat16_is_evaluated_in_it(make_args, record):
    evaluations = record(ppo_atari, "evaluate")
    args = make_args(ppo_atari, total_timesteps=64, bfloat16=True)
    ppo_atari.train(args)
    ppo_atari.evaluate_run(replace(args, evaluate=args.run_dir))
    [trained, again] = evaluations
    assert trained[0][0].bfloat16 and again[0][0].bfloat16
    assert trained[1] == again[1]


COUNT_PAGE_FAULTS = """
import ctypes, resource, sys
import ppo_atari

PR_SET_THP_DISABLE = 41  # with large pages there would be few faults anyway
ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)
faults, backpropagate = [], ppo_atari.backpropagate

def count(*args):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    metrics = backpropagate(*args)
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    return metrics

ppo_atari.backpropagate, ppo_atari.evaluate = count, lambda *_: [0.0]
ppo_atari.train(ppo_atari.Args(total_timesteps=1024, threads=1, run_dir=sys.argv[1]))
print(sum(faults[8:]))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told to")
def test_memory_is_kept_from_minibatch_to_minibatch(tmp_path):
    """The last 8 of 16; otherwise each touches more than 10,000 pages for the first time."""
    command = [sys.executable, "-c", COUNT_PAGE_FAULTS, str(tmp_path / "run")]
    result = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=Path(ppo_atari.__file__).parent
    )
    assert int(result.stdout.splitlines()[-1]) < 20_000


# ---- scores


@pytest.mark.parametrize(("game", "low", "high"), [("Pong", -21.0, -19.9), ("Breakout", 0.4, 1.9)])
def test_scores_of_a_random_player(game, low, high, make_args, monkeypatch):
    """The literature has -20.7 for Pong and 1.7 for Breakout, of one who acts every 6th frame, not 4th."""
    uniform = torch.distributions.Categorical
    monkeypatch.setattr(
        ppo_atari, "Categorical", lambda logits, **kw: uniform(logits=torch.zeros_like(logits))
    )
    args = make_args(ppo_atari, env_id=game, eval_episodes=16)
    scores = ppo_atari.evaluate(ppo_atari.Agent(make(game)), args)
    assert len(scores) == 16
    assert low < np.mean(scores) < high


# ---- traps of the native env


@pytest.mark.parametrize("name", ["ALE/Pong-v5", "Pong", "PongNoFrameskip-v4", "Pong-v4"])
def test_names_of_a_game(name):
    assert make(name).single_action_space.n == 6


def test_protocol_is_explicit():
    """No sticky actions, though the registry has them at 0.25; the flags get where they belong."""
    kwargs = make("Pong").spec.kwargs
    assert kwargs["repeat_action_probability"] == 0
    assert kwargs["reward_clipping"] is False
    assert make("Pong", sticky_actions=0.25).spec.kwargs["repeat_action_probability"] == 0.25


def test_another_game_leaves_ours_alone():
    envs = make("Pong")
    other = ale_py.vector_env.AtariVectorEnv("breakout", 1, autoreset_mode=AutoresetMode.NEXT_STEP)
    assert other.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP


def test_an_action_that_is_none_fails_at_once():
    envs = make("Breakout", 2)
    envs.reset(seed=[0, 1])
    start = time.perf_counter()
    with pytest.raises(AssertionError):
        envs.step(np.array([0, 4]))
    assert time.perf_counter() - start < 1


def test_only_time_limits_are_bootstrapped(make_args, record, monkeypatch):
    """Rows of final_obs that did not end are noise, here 255: they must not get into any target."""

    class Ends(Scores):
        def step(self, actions):
            obs, reward, ends, no, infos = super().step(actions)
            first, second = np.arange(self.num_envs) == 0, np.arange(self.num_envs) == 1
            infos["life_lost"] = no | (second & (self.t % 4 == 0))
            if ends.any():
                infos["final_obs"] = np.where(
                    first[:, None, None, None], np.uint8(100), np.full_like(obs, 255)
                )
            return obs, reward * 0, ends & ~first & ~second, ends & first, infos

    inputs = record(ppo_atari, "compute_gae")
    monkeypatch.setattr(ppo_atari, "make_envs", lambda args, num_envs, *_: Ends(num_envs))
    agent, _ = ppo_atari.train(make_args(ppo_atari, total_timesteps=64, learning_rate=0.0, eval_episodes=1))
    [((rewards, _, dones, *_), _)] = inputs
    value = agent(torch.full((1, 4, 84, 84), 100))[1].item()
    ends, lives = torch.arange(1, 17) % 6 == 0, torch.arange(1, 17) % 4 == 0
    torch.testing.assert_close(rewards[:, 0], 0.99 * value * ends, atol=1e-5, rtol=1e-4)
    assert not rewards[:, 1:].any()
    assert torch.equal(dones.T.bool(), torch.stack([ends, lives, ends, ends]))


def test_same_games_with_any_number_of_threads():
    runs = []
    for threads in (1, 3):
        envs = ppo_atari.make_envs(ppo_atari.Args(threads=threads), 4)
        envs.reset(seed=[5, 6, 7, 8])
        runs.append([envs.step(np.full(4, t % 4))[0].sum() for t in range(200)])
    assert runs[0] == runs[1]


def test_the_film_is_of_the_game_that_is_played(tmp_path):
    """Its frames, made grey and small, are those that the agent sees."""
    envs = ppo_atari.make_envs(ppo_atari.Args(env_id="Breakout", threads=1), 1, tmp_path)
    obs, _ = envs.reset(seed=[3])
    for t in range(60):
        grey = classic.cv2.cvtColor(envs.env.frames[-1], classic.cv2.COLOR_RGB2GRAY)
        small = classic.cv2.resize(grey, (84, 84), interpolation=classic.cv2.INTER_AREA)
        assert abs(small.astype(int) - obs[0, -1]).max() <= 2
        obs, *_ = envs.step(np.array([2 + t % 2]))
