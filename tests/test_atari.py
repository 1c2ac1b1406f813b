"""The games, frame by frame against the classic wrappers, and details 14 to 22."""

from collections import Counter
from functools import partial
from types import SimpleNamespace

import ale_py
import classic_wrappers as classic
import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import look, make_agent_of, name_of, one_game
from gymnasium.vector import AutoresetMode
from imageio_ffmpeg import count_frames_and_secs
from moviepy import VideoFileClip

import ppo_atari
from variants import ppo_atari_distributed, ppo_atari_lstm

GAMES = ["Breakout", "Pong", "MsPacman", "SpaceInvaders", "BankHeist", "Freeway"]


def make_of(atari, game, num_envs=1, **flags):
    return atari.make_envs(atari.Args(env_id=game, threads=1, **flags), num_envs)


@pytest.fixture
def make(atari):
    """make(game, num_envs=1, **flags) -> envs of each of the Atari scripts."""
    return lambda *args, **flags: make_of(atari, *args, **flags)


@pytest.fixture
def newest(atari):
    """newest(frames) -> those of them that the script stacks: 4, or the last one for a memory."""
    return lambda frames: frames[-1:] if atari is ppo_atari_lstm else frames


def random_player(envs):
    """1000 random actions, and what a game answers to each."""
    rng = np.random.default_rng(0)
    for _ in range(1000):
        action = rng.integers(envs.single_action_space.n)
        obs, reward, terminated, truncated, infos = envs.step(np.array([action]))
        yield action, obs[0], reward[0], terminated[0], truncated[0], infos


# ---- against the classic wrappers


@one_game
@pytest.mark.parametrize("game", GAMES)
def test_frames_rewards_and_ends_are_those_of_the_classic_wrappers(game, make, newest):
    """1000 random steps. Known to differ: the last frame of final_obs."""
    envs = make(game)
    oracle = classic.Stack(classic.Warp(classic.MaxAndSkip(classic.NoopReset(classic.make(game)))))
    meanings = oracle.unwrapped.get_action_meanings()
    obs, infos = envs.reset(seed=[7])
    expected_obs, info = oracle.reset(options={"noops": infos["episode_frame_number"][0]})
    np.testing.assert_array_equal(obs[0], newest(expected_obs))
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
            np.testing.assert_array_equal(infos["final_obs"][0, :-1], newest(expected_obs)[:-1])
            expected_obs, info = oracle.reset(options={"noops": infos["episode_frame_number"][0]})
        else:
            assert infos["life_lost"][0] == life_lost
        np.testing.assert_array_equal(obs, newest(expected_obs))
    assert games > 0 or game == "Freeway"


def test_lost_lives_are_those_of_the_classic_wrapper(make):
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


@pytest.mark.long
def test_up_to_30_frames_of_doing_nothing(make):
    envs, noops = make("Freeway", 16), Counter()
    envs.reset(seed=list(range(0, 32, 2)))
    for _ in range(16):
        _, infos = envs.reset()
        noops.update(infos["episode_frame_number"].tolist())
    assert min(noops) == 0 and max(noops) == 30 and len(noops) == 31


def test_an_action_lasts_four_frames_of_which_two_are_seen(make):
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


@one_game
@pytest.mark.parametrize(("episodic_life", "ends"), [(True, 5), (False, 1)])
def test_a_lost_life_is_an_end_for_the_learner_alone(
    atari, episodic_life, ends, make_args, record, monkeypatch
):
    """Breakout without moving: 5 lives in a game of 125 steps; what is scored are whole games."""
    inputs = record(atari, "compute_gae")
    monkeypatch.setattr(
        torch.distributions.Categorical, "sample", lambda self: torch.zeros(len(self.probs), dtype=int)
    )
    sizes = dict(num_envs=1, num_steps=128, iterations=1, update_epochs=1, num_minibatches=1)
    _, log = atari.train(make_args(atari, env_id="Breakout", episodic_life=episodic_life, **sizes))
    [((_, _, _, dones, *_), _)] = inputs
    assert dones.sum() == ends
    assert log[-1]["episode_return"] == log[-1]["eval_return"] == 0
    assert 100 < log[-1]["episode_length"] < 128  # of the whole game


def test_fire_opens_every_game(make):
    """After a reset in the middle of one, too, as at a cut."""
    envs, given = make("Breakout"), []
    step = envs.env.step
    envs.env.step = lambda actions: given.append(actions.item()) or step(actions)
    for _ in range(2):
        envs.reset(seed=[1])
        for _ in range(3):
            envs.step(np.array([0]))
    assert given == [1, 0, 0] * 2


def test_each_life_starts_with_fire(make):
    """Or else a player who does nothing would never lose the second of 5 lives of Breakout."""
    envs = make("Breakout", 2)
    envs.reset(seed=[1, 2])
    ends = [envs.step(np.zeros(2, dtype=int))[2].all() for _ in range(130)]
    assert sum(ends) == 1
    without = envs.env
    without.reset(seed=np.array([1, 2]))
    assert not any(without.step(np.zeros(2, dtype=int))[4]["lives"].min() < 5 for _ in range(130))


def test_fire_is_not_pressed_where_the_agent_acts(make):
    envs, given = make("Breakout"), []
    envs.reset(seed=[1])
    step = envs.env.step
    envs.env.step = lambda actions: given.append(actions.item()) or step(actions)
    lives = [envs.step(np.array([0]))[4]["lives"].item() for _ in range(130)]
    starts = [0] + [t + 1 for t in range(1, 130) if lives[t] != lives[t - 1]]
    assert 4 < len(starts) < 7
    assert [t for t, action in enumerate(given) if action == 1] == starts


def test_full_action_space_presses_fire_too(make):
    envs = make("Breakout", full_action_space=True)
    assert envs.single_action_space.n == 18
    assert envs.fire == 1
    assert make("Freeway").fire is None


@pytest.mark.parametrize("atari", [ppo_atari, ppo_atari_distributed], ids=name_of)
def test_observations_are_four_frames_of_84_by_84(atari):
    """Newest last; after the end of a game nothing of it is left; a lost life leaves them alone."""
    envs = make_of(atari, "Breakout")
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


def test_a_memory_sees_one_frame():
    obs, _ = make_of(ppo_atari_lstm, "Breakout").reset(seed=[1])
    assert obs.shape == (1, 1, 84, 84) and obs.dtype == np.uint8 and obs.any()


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


def test_an_extra_life_is_no_end(atari):
    envs = atari.Lives(Extra(2))
    envs.reset(seed=[0, 1])
    lost = [envs.step(np.zeros(2, dtype=int))[4]["life_lost"].tolist() for _ in range(5)]
    assert lost == [[True] * 2, [False] * 2, [False] * 2, [False] * 2, [True] * 2]


def test_rewards_are_signs_and_scores_are_not(atari, make_args, record, monkeypatch):
    inputs = record(atari, "compute_gae")
    monkeypatch.setattr(atari, "make_envs", lambda args, num_envs, *_: Scores(num_envs))
    _, log = atari.train(make_args(atari, num_steps=16, iterations=1))
    [((rewards, *_), _)] = inputs
    assert rewards[:6].T.tolist() == [[-1, 0, 1, 1, -1, 1]] * 4
    assert log[-1]["episode_return"] == log[-1]["eval_return"] == 223


@pytest.mark.parametrize(("game", "actions"), [("Breakout", 4), ("Pong", 6)])
def test_one_network_for_policy_and_value(atari, game, actions, make_args):
    agent = make_agent_of(atari, make_args(atari, env_id=game))
    memory, frames, width = (328_704, 1, 128) if atari is ppo_atari_lstm else (0, 4, 512)
    trunk = 64 * frames * 32 + 32 + 32_832 + 36_928 + 1_606_144
    heads = (width + 1) * (actions + 1)
    assert sum(p.numel() for p in agent.parameters()) == trunk + memory + heads
    layers = [type(module).__name__ for module in agent.trunk]
    assert layers == ["Conv2d", "ReLU"] * 3 + ["Flatten", "Linear", "ReLU"]
    passes = []
    agent.trunk.register_forward_hook(lambda module, inputs, output: passes.append(output))
    dist, value = look(atari, agent, torch.randint(256, (2, frames, 84, 84), dtype=torch.uint8))
    [features] = passes
    assert features.shape == (2, 512) and (features >= 0).all()
    for output in (dist.log_prob(torch.zeros(2)).sum(), value.sum()):
        assert torch.autograd.grad(output, agent.trunk[0].weight, retain_graph=True)[0].any()


def test_pixels_are_scaled_once_and_stored_as_bytes(atari, make_args, record, no_evaluation):
    agent = make_agent_of(atari, make_args(atari))
    seen = []
    agent.trunk[0].register_forward_hook(lambda module, inputs, output: seen.append(inputs[0].max().item()))
    white = torch.full((1, agent.trunk[0].in_channels, 84, 84), 255, dtype=torch.uint8)
    outputs = [look(atari, agent, obs)[1] for obs in (white, white.float())]
    assert seen == [1.0, 1.0] and outputs[0] == outputs[1]
    losses = record(atari, "ppo_loss")
    atari.train(make_args(atari, iterations=1))
    [((_, _, batch, *_), _), *_] = losses
    assert batch.obs.dtype == torch.uint8
    in_order = batch.obs.is_contiguous(memory_format=torch.channels_last) if batch.obs.dim() == 4 else True
    assert in_order  # in that in which the network reads it


# ---- scores


@pytest.mark.long
@pytest.mark.parametrize(("game", "low", "high"), [("Pong", -21.0, -19.9), ("Breakout", 0.4, 1.9)])
def test_scores_of_a_random_player(game, low, high, make_args, monkeypatch):
    """The literature has -20.7 for Pong and 1.7 for Breakout, of one who acts every 6th frame, not 4th."""
    uniform = torch.distributions.Categorical
    monkeypatch.setattr(
        ppo_atari, "Categorical", lambda logits, **kw: uniform(logits=torch.zeros_like(logits))
    )
    args = make_args(ppo_atari, env_id=game, eval_episodes=6)
    scores = ppo_atari.evaluate(make_agent_of(ppo_atari, args), args)
    assert len(scores) == 6
    assert low < np.mean(scores) < high


# ---- traps of the native env


@pytest.mark.parametrize("name", ["ALE/Pong-v5", "Pong", "PongNoFrameskip-v4", "Pong-v4"])
def test_names_of_a_game(make, name):
    assert make(name).single_action_space.n == 6


def test_protocol_is_explicit(make):
    """No sticky actions, though the registry has them at 0.25; the flags get where they belong."""
    kwargs = make("Pong").spec.kwargs
    assert kwargs["repeat_action_probability"] == 0
    assert kwargs["reward_clipping"] is False and kwargs["num_threads"] == 1
    assert make("Pong", sticky_actions=0.25).spec.kwargs["repeat_action_probability"] == 0.25


def test_an_action_that_is_none_fails_at_once(make):
    envs = make("Breakout", 2)
    envs.reset(seed=[0, 1])
    with pytest.raises(AssertionError):
        envs.step(np.array([0, 4]))


def test_rows_that_did_not_end_are_noise(atari, make_args, record, no_evaluation, monkeypatch):
    """In final_obs, here 255: they must not get into any target. The critic says what it sees."""
    forward = atari.Agent.forward

    def sees(self, obs, *rest):
        dist, value, *state = forward(self, obs, *rest)
        return dist, 0 * value + obs[..., 0, 0, 0], *state

    class Ends(Scores):
        def step(self, actions):
            obs, reward, ends, no, infos = super().step(actions)
            first, second = np.arange(self.num_envs) == 0, np.arange(self.num_envs) == 1
            infos["life_lost"] = no | (second & (self.t % 4 == 0))
            if ends.any():
                rows = first[:, None, None, None]
                infos["final_obs"] = np.where(rows, np.uint8(100), np.full_like(obs, 255))
            return obs, reward * 0, ends & ~first & ~second, ends & first, infos

    inputs = record(atari, "compute_gae")
    monkeypatch.setattr(atari.Agent, "forward", sees)
    monkeypatch.setattr(atari, "make_envs", lambda args, num_envs, *_: Ends(num_envs))
    atari.train(make_args(atari, num_steps=16, iterations=1))
    [((_, values, next_values, dones, *_), _)] = inputs
    ends, lives = torch.arange(1, 17) % 6 == 0, torch.arange(1, 17) % 4 == 0
    assert torch.equal(next_values[ends, 0], torch.full((2,), 100.0))
    assert not next_values[:, 1:][dones[:, 1:] > 0].any()
    assert torch.equal(dones.T.bool(), torch.stack([ends, lives, ends, ends]))


@one_game
def test_same_games_with_any_number_of_threads(atari):
    runs = []
    for threads in (1, 3):
        envs = atari.make_envs(atari.Args(threads=threads), 4)
        envs.reset(seed=[5, 6, 7, 8])
        runs.append([envs.step(np.full(4, t % 4))[0].sum() for t in range(200)])
    assert runs[0] == runs[1]


@one_game
def test_the_film_is_of_the_game_that_is_played(atari, make_args, tmp_path, monkeypatch, record):
    """Its frames, made grey and small, are those that the agent sees; the file has them all."""
    seen, seeds, make_envs = {}, [], atari.make_envs

    def look_on(do, frames, *args, **kwargs):
        seeds.extend(kwargs.values())
        obs, *rest = do(*args, **kwargs)
        frames.append(obs[0, -1].copy())
        return obs, *rest

    def watched(args, num_envs, colour=False):
        envs, frames = make_envs(args, num_envs, colour), seen.setdefault(colour, [])
        for name in ("reset", "step"):
            setattr(envs, name, partial(look_on, getattr(envs, name), frames))
        return envs

    args = make_args(atari, env_id="Breakout")
    agent = make_agent_of(atari, args)
    monkeypatch.setattr(atari, "make_envs", watched)
    saved = record(atari, "save_video")
    atari.evaluate(agent, args, tmp_path)
    assert len(seen[True]) == len(seen[False]) > 100 and len(seeds) == 2 and seeds[0] == seeds[1]
    for colour, grey in zip(seen[True], seen[False], strict=True):
        small = classic.cv2.cvtColor(colour, classic.cv2.COLOR_RGB2GRAY)
        small = classic.cv2.resize(small, (84, 84), interpolation=classic.cv2.INTER_AREA)
        assert abs(small.astype(int) - grey).max() <= 2
    [path] = tmp_path.glob("*.mp4")
    with VideoFileClip(str(path)) as clip:
        film = np.stack(list(clip.iter_frames()))
    [((frames, *_), _)] = saved
    np.testing.assert_array_equal(frames, seen[True][:-1])  # the last one is of the next game
    assert count_frames_and_secs(path)[0] in (len(frames), len(frames) - 1)  # moviepy may drop one
    assert abs(film.astype(int) - np.stack(frames[: len(film)])).mean() < 5
