"""docs/recipes: each patch fits its script, runs for a few iterations, and changes what it is for."""

import importlib.util
import itertools
import re
import subprocess
import sys
import types

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import ROOT, batch_of
from gymnasium.spaces import Box, Dict, Discrete
from pettingzoo import ParallelEnv
from torch.distributions import Independent, Normal

import ppo_continuous
import ppo_discrete
from docs.recipes import self_play
from variants import ppo_lstm

pytestmark = pytest.mark.filterwarnings("ignore:.*Overriding environment")  # copies register it again
PATCHES = sorted(path.stem for path in (ROOT / "docs/recipes").glob("*.patch"))
TEXTS = ["distill", "dynamic_sampling", "lora", "several_rewards", "value_head"]  # of language models
KNIGHTS = "pettingzoo.butterfly.knights_archers_zombies_v11"


class Pictures(gym.Env):
    """A picture of one colour and two numbers; an action is right if it is the colour's number."""

    observation_space = Dict({"image": Box(0, 255, (3, 16, 16), np.uint8), "vector": Box(-1, 1, (2,))})
    action_space = Discrete(3)

    def look(self):
        self.colour, image = self.np_random.integers(3), np.zeros((3, 16, 16), np.uint8)
        image[self.colour] = 255
        return {"image": image, "vector": np.array([0.25, -0.5], np.float32)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.look(), {}

    def step(self, action):
        reward = float(action == self.colour)
        return self.look(), reward, True, False, {}


gym.register("recipes/Pictures-v0", Pictures)


@pytest.fixture
def load(tmp_path):
    """load(recipe) -> the module that its patch makes of the script."""

    def make(name, *replaced):
        patch = ROOT / f"docs/recipes/{name}.patch"
        script = re.match(r"--- a/(.*)\n", patch.read_text())[1]
        path = tmp_path / "mine.py"
        path.write_text((ROOT / script).read_text())
        done = subprocess.run(["patch", "-F", "0", str(path), str(patch)], capture_output=True, text=True)
        assert not done.returncode, done.stdout
        if replaced:
            assert replaced[0] in path.read_text()
            path.write_text(path.read_text().replace(*replaced))
        spec = importlib.util.spec_from_file_location(f"recipe_{name}", path)
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return make


@pytest.fixture
def train(tmp_path):
    """train(module, flags) -> agent, log of four iterations."""
    number = itertools.count()

    def run(module, on_iteration=None, **flags):
        continuous = hasattr(module.Args, "log_std_init")
        small = {"env_id": "Pendulum-v1" if continuous else "CartPole-v1", "num_envs": 2, "num_steps": 256}
        small |= {"total_timesteps": 2048, "num_minibatches": 4, "eval_episodes": 1}
        small["run_dir"] = str(tmp_path / f"run{next(number)}")
        return module.train(module.Args(**small | flags), on_iteration)

    return run


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in PATCHES if name not in ["images_and_vectors", *TEXTS]])
def test_each_runs_for_a_few_iterations_and_is_on_the_page(load, train, monkeypatch, name):
    envs = {"continuous_lstm": "Pendulum-v1", "masked_lstm": "Taxi-v4"}
    envs |= {"attention": "CartPole-v1", "forget_gate": "CartPole-v1"}
    flags = dict(env_id=envs[name], num_minibatches=2) if name in envs else {}
    if name == "many_agents":
        flags = dict(env_id=KNIGHTS, num_envs=8, num_steps=64, eval_episodes=4)
    if name == "envpool":
        fake_envpool(monkeypatch)
    _, log = train(load(name), **flags)
    assert len(log) == 4 and np.isfinite([log[-1]["policy_loss"], log[-1]["value_loss"]]).all()
    assert f"[`{name}.patch`](recipes/{name}.patch)" in (ROOT / "docs/experiments.md").read_text()


def make(module, **flags):
    args = module.Args(**flags)
    envs = module.make_envs(args, 2)
    torch.manual_seed(0)
    return module.Agent(envs), envs


def test_another_network(load):
    agent, _ = make(load("network"))
    assert agent.actor[0].out_features == 256 and isinstance(agent.critic[1], torch.nn.SiLU)


def test_a_memory_for_continuous_actions(load, train):
    """Actions of a normal distribution whose deviation is learned; the env gets them within its bounds."""
    script = load("continuous_lstm")
    agent, log = train(script, env_id="Pendulum-v1", num_minibatches=2, learning_rate=1e-2)
    assert agent.log_std.abs().max() > 0.01 and log[-1]["kl"] > 0
    obs, starts, state = torch.randn(5, 2, 3), torch.zeros(5, 2), torch.randn(4, 2, 64)
    dist, value, _ = agent(obs, starts, state)
    assert dist.sample().shape == (5, 2, 1) and dist.entropy().shape == value.shape == (5, 2)
    other, *_ = agent(obs, starts, torch.zeros_like(state))
    assert not torch.allclose(dist.mean, other.mean)
    _, envs = make(script, env_id="Pendulum-v1")
    np.testing.assert_allclose(envs.actions(np.array([[0.5], [100.0]])), [[0.5], [2]])


def test_a_memory_by_attention(load):
    """A sequence says what its steps say one by one, and sees nothing of other episodes, or too long ago."""
    script = load("attention", "MEMORY = 256", "MEMORY = 4")
    agent, envs = make(script)
    torch.manual_seed(0)
    for parameter in (agent.actor.by_age, agent.critic.by_age):
        torch.nn.init.normal_(parameter)
    obs, starts, state = torch.randn(9, 2, 2), torch.zeros(9, 2), torch.zeros(4, 2, 3)
    starts[0], starts[6, 1] = 1, 1
    dist, value, last = agent(obs, starts, state)
    for t in range(9):
        one, one_value, state = agent(obs[t], starts[t], state)
        torch.testing.assert_close(one.base_dist.logits, dist.base_dist.logits[t])
        torch.testing.assert_close(one_value, value[t])
    torch.testing.assert_close(state, last)
    assert last[..., -1].tolist() == [[1, 0], [1, 1], [1, 1], [1, 1]]

    def changed(t, n):
        """Which values change with one observation."""
        other = obs.clone()
        other[t, n] += 1
        return [tuple(x) for x in (agent(other, starts, torch.zeros(4, 2, 3))[1] != value).nonzero().tolist()]

    assert changed(0, 0) == [(t, 0) for t in range(5)]
    assert changed(4, 1) == [(4, 1), (5, 1)] and changed(6, 1) == [(6, 1), (7, 1), (8, 1)]


def test_forget_gates_that_start_open(load):
    """Half of what is in a cell is there 64 steps later; without the patch, nothing is."""
    left = []
    for module in (load("forget_gate"), ppo_lstm):
        agent, _ = make(module)
        state = torch.zeros(4, 1, 64)
        state[1] = 1  # the actor's cells
        _, _, last = agent(torch.zeros(64, 1, 2), torch.zeros(64, 1), state)
        left.append(last[1].abs().mean())
    assert left[0] > 0.5 and left[1] < 1e-3


def test_attention_still_shows_what_was_seen_once_and_long_ago(load):
    agent, _ = make(load("attention"))
    obs, starts, memory = torch.zeros(2, 200, 1, 2), torch.zeros(200, 1), torch.zeros(256, 1, 3)
    obs[0, 0, 0, 0] = obs[1, 0, 0, 1] = 1
    one, other = (agent(cue, starts, memory)[1][:, 0] for cue in obs)
    apart = (one - other).abs()
    assert apart[199] > apart[1] / 2 > 0.01


def test_the_cue():
    env = gym.make("docs.recipes.cue:Cue-v0", delay=3)
    for seed in range(8):
        obs, _ = env.reset(seed=seed)
        cue = obs[:4].argmax()
        seen = [env.step(0)[:4] for _ in range(3)]
        assert all(
            not any(x[:4]) and (reward, ended, cut) == (0, False, False) for x, reward, ended, cut in seen
        )
        assert [x[4] for x, *_ in seen] == [0, 0, 1]
        action = (cue + seed) % 4
        _, reward, ended, _, _ = env.step(action)
        assert ended and reward == (action == cue)


def test_a_memory_with_masks(load):
    """The mask travels behind the observation: no sampled action is invalid, and no network sees it."""
    script = load("masked_lstm")
    agent, envs = make(script, env_id="Taxi-v4")
    obs, _ = envs.reset(seed=1)
    state, start = torch.zeros(4, 2, 64), torch.ones(2)
    for _ in range(300):  # episodes end after 200
        obs = torch.as_tensor(obs)
        dist, _, state = agent(obs, start, state)
        actions = dist.sample().numpy()
        masks = np.stack([env.unwrapped.action_mask(env.unwrapped.s) for env in envs.envs])
        assert (obs[:, 500:].numpy() == masks).all() and obs[:, :500].sum(-1).tolist() == [1, 1]
        assert masks[[0, 1], actions].all() and ((dist.probs > 0).numpy() == masks).all()
        obs, _, terminated, truncated, infos = envs.step(actions)
        start = torch.as_tensor(terminated | truncated, dtype=torch.float32)
        if truncated.any():
            assert infos["final_obs"][0].shape == (506,)
    other = torch.cat([torch.as_tensor(obs)[:, :500], 1 - torch.as_tensor(obs)[:, 500:]], 1)
    assert torch.equal(agent(torch.as_tensor(obs), start, state)[1], agent(other, start, state)[1])
    with pytest.raises(script.Mistake, match="'Box' object has no attribute 'n'"):
        make(script, env_id="Pendulum-v1")


def test_what_tanh_squashes(load):
    """The env gets actions between its bounds; the entropy is that of the squashed distribution."""
    script = load("tanh")
    _, envs = make(script, env_id="Pendulum-v1")
    np.testing.assert_allclose(envs.func(np.array([0.0, 100.0, -100.0, 0.5])), [0, 2, -2, 2 * np.tanh(0.5)])
    dist = Independent(Normal(torch.full((200_000, 1), 0.3), 0.8), 1)
    zeros = batch_of(script, 200_000, actions=torch.zeros(200_000, 1))
    _, metrics = script.ppo_loss(dist, torch.zeros(200_000), zeros, 0.2, script.Args())
    x = torch.linspace(-6, 6, 100_001)
    density = Normal(0.3, 0.8).log_prob(x)
    expected = -torch.trapezoid(density.exp() * (density - torch.log(1 - torch.tanh(x) ** 2)), x)
    assert metrics["entropy"].item() == pytest.approx(expected.item(), abs=0.02)


def test_beta_actions(load):
    script = load("beta")
    agent, envs = make(script, env_id="Pendulum-v1")
    obs = torch.randn(1000, 3)
    actions, (dist, _) = agent.act(obs), agent(obs)
    assert 0 < actions.min() < actions.max() < 1 and dist.log_prob(actions).shape == (1000,)
    assert agent.act(obs, greedy=True).std() < actions.std() and dist.base_dist.concentration0.min() > 1
    np.testing.assert_allclose(envs.func(np.array([0.0, 0.5, 1.0])), [-2, 0, 2])


def test_rescaled_actions(load):
    _, envs = make(load("rescale"), env_id="Pendulum-v1")
    inner = envs.env.envs[0]
    assert (inner.action_space.low, inner.action_space.high) == (-1, 1)
    envs.reset(seed=1)
    inner.step(np.array([0.5], np.float32))
    assert inner.unwrapped.last_u == 1.0


def test_a_second_reward_term(load):
    """Twice the same action costs nothing, a change of 3 costs 0.9; not across a reset."""
    env = load("second_reward").Smooth(gym.make("Pendulum-v1"))
    plain = gym.make("Pendulum-v1")
    for _ in range(2):
        env.reset(seed=1), plain.reset(seed=1)
        for action, cost in ((1.0, 0), (1.0, 0), (-2.0, 0.9)):
            action = np.array([action], np.float32)
            assert env.step(action)[1] == pytest.approx(plain.step(action)[1] - cost)


def test_wrappers_of_rewards_and_observations(load):
    _, envs = make(load("wrappers"))
    obs, _ = envs.reset(seed=1)
    assert obs.shape == (2, 5)
    obs, reward, *_ = envs.step(np.zeros(2, int))
    assert reward.tolist() == [0.1, 0.1] and obs[:, 4].tolist() == [1, 1]


def test_the_learning_rate_follows_the_kl(load, train):
    """It rises where updates are small, and falls where they are large."""
    script = load("kl_adaptive")
    rates = [row["learning_rate"] for row in train(script, learning_rate=1e-5, update_epochs=1)[1]]
    np.testing.assert_allclose(rates, 1e-5 * 1.5 ** np.arange(4))
    falling = [row["learning_rate"] for row in train(script, learning_rate=9e-3, clip_coef=9.0)[1]]
    assert falling[1] == pytest.approx(9e-3 / 1.5)


def test_the_critic_sees_more(load):
    agent, _ = make(load("asymmetric_critic"))
    obs = torch.randn(8, 4)
    hidden = obs + torch.tensor([0.0, 1.0, 0.0, 1.0])
    assert torch.equal(agent(obs)[0].base_dist.logits, agent(hidden)[0].base_dist.logits)
    assert not torch.allclose(agent(obs)[1], agent(hidden)[1])


def test_images_and_vectors(load, train):
    """The network sees the image as it was, and learns from it; the vectors go past the convolutions."""
    script = load("images_and_vectors")
    agent, envs = make(script, env_id="recipes/Pictures-v0")
    obs = torch.as_tensor(envs.reset(seed=3)[0], dtype=torch.float32)
    seen = []
    agent.actor[0].body.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    features = agent.actor[0](obs)
    assert seen[0].amax((2, 3)).argmax(1).tolist() == [env.unwrapped.colour for env in envs.envs]
    assert seen[0].max() == 1 and features[:, -2:].tolist() == [[0.25, -0.5]] * 2
    _, log = train(script, env_id="recipes/Pictures-v0", learning_rate=1e-3, total_timesteps=4096)
    assert log[-1]["episode_return"] > 0.6 > log[0]["episode_return"]


def test_early_stopping(load, monkeypatch, tmp_path, capsys):
    script = load("early_stopping", ">= 475", ">= 1")
    line = [
        "mine.py",
        "--total-timesteps",
        "4096",
        "--eval-episodes",
        "1",
        "--run-dir",
        str(tmp_path / "run"),
    ]
    monkeypatch.setattr(sys, "argv", line)
    script.main()
    assert script.load(tmp_path / "run")["iteration"] == 1 and "mean return" in capsys.readouterr().out


def test_a_curriculum(load, train):
    """Gravity rises from 5.8 to 9.8, of the envs that are trained on."""
    script, seen = load("curriculum"), []
    original = script.make_envs

    def make_envs(*args):
        envs = original(*args)
        envs_made.append(envs)
        return envs

    envs_made, script.make_envs = [], make_envs
    train(script, lambda row: seen.append(envs_made[-1].get_attr("gravity")))
    assert seen == [(9.8 - 4 * remaining,) * 2 for remaining in (1, 0.75, 0.5, 0.25)]


class Duel(ParallelEnv):
    """Observations are the agent's number and the step. After two steps b is out, after five a's time."""

    possible_agents = ["a", "b"]

    def observation_space(self, agent):
        return Box(0, 9, (2,), np.float64)

    def action_space(self, agent):
        return Discrete(2)

    def reset(self, seed=None, options=None):
        self.agents, self.t, self.seed = ["a", "b"], 0, seed
        return self.look(), {}

    def look(self):
        return {name: np.array([self.possible_agents.index(name), self.t], float) for name in self.agents}

    def step(self, actions):
        assert set(actions) == set(self.agents)
        self.t += 1
        obs, rewards = self.look(), {name: float(self.t) for name in self.agents}
        out = {name: name == "b" and self.t == 2 for name in self.agents}
        late = {name: name == "a" and self.t == 5 for name in self.agents}
        self.agents = [name for name in self.agents if not (out[name] or late[name])]
        return obs, rewards, out, late, {}


parallel_env = Duel


def test_many_agents(load, train):
    """Each agent is an env; one that is out waits, and what it waits through is not learned from."""
    module = load("many_agents")
    envs = module.Agents(Duel, 4)
    obs, _ = envs.reset(seed=[3, 4, 5, 6])
    assert obs.tolist() == [[0, 0], [1, 0]] * 2 and [game.seed for game in envs.games] == [3, 5]
    steps = []
    for _ in range(6):
        playing = envs.is_playing[:2].tolist()
        obs, reward, terminated, truncated, infos = envs.step(np.zeros(4, int))
        steps.append((playing, obs[:2].tolist(), reward[:2].tolist(), terminated[1], truncated[0]))
        assert (obs[:2] == obs[2:]).all() and not terminated[0] and not truncated[1]
        if truncated[0]:
            assert infos["final_obs"][0].tolist() == [0, 5]
    both, one, nothing = [True, True], [True, False], [0, 0]
    assert steps == [
        (both, [[0, 1], [1, 1]], [1, 1], False, False),
        (both, [[0, 2], [1, 2]], [2, 2], True, False),
        (one, [[0, 3], nothing], [3, 0], True, False),
        (one, [[0, 4], nothing], [4, 0], True, False),
        (one, [[0, 0], [1, 0]], [5, 0], True, True),  # a new game begins at once
        (both, [[0, 1], [1, 1]], [1, 1], False, False),
    ]
    sizes, loss = [], module.ppo_loss
    module.ppo_loss = lambda dist, value, batch, *rest: (
        sizes.append(batch.obs.tolist()) or loss(dist, value, batch, *rest)
    )
    flags = dict(env_id="test_recipes", num_envs=4, num_steps=10, num_minibatches=2, update_epochs=1)
    _, log = train(module, total_timesteps=40, eval_episodes=2, **flags)
    seen = sorted(map(tuple, sum(sizes, [])))
    assert seen == sorted([(0, t) for t in range(5)] * 4 + [(1, t) for t in range(2)] * 4)
    assert log[-1]["episode_return"] == (15 + 3) / 2 and log[-1]["episode_length"] == 3.5
    with pytest.raises(module.Mistake, match="5 envs are no number of games with 2 agents each"):
        module.Agents(Duel, 5).reset()
    with pytest.raises(module.Mistake, match="must be whole games, of 2 agents each"):
        train(module, total_timesteps=40, eval_episodes=1, **flags)


class FakePool:
    """What the recipe needs of EnvPool, by gymnasium: it takes seeds once, and resets only when told to."""

    def __init__(self, env_id, num_envs=1, seed=None, num_threads=0):
        by_hand = {"autoreset_mode": gym.vector.AutoresetMode.DISABLED}
        self.envs = gym.make_vec(env_id, num_envs, "sync", by_hand)
        self.seed = seed
        self.step = self.envs.step

    def reset(self, rows=None):
        if rows is None:
            return self.envs.reset(seed=self.seed)
        mask = np.isin(range(self.envs.num_envs), rows)
        obs, infos = self.envs.reset(options={"reset_mask": mask})
        return obs[rows], infos


def make_spec(env_id, num_envs=1, num_threads=0):
    env = gym.make(env_id)
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
    return types.SimpleNamespace(**{f"gymnasium_{name}": space for name, space in spaces.items()})


def fake_envpool(monkeypatch):
    fake = types.SimpleNamespace(make_gymnasium=FakePool, make_spec=make_spec)
    monkeypatch.setitem(sys.modules, "envpool", fake)


def test_envpool_is_stepped_as_gymnasium_is(load, monkeypatch):
    """Falls and time limits of the same envs: the next episode begins at once, and final_obs is the last."""
    fake_envpool(monkeypatch)
    gym.register("recipes/Short-v0", "gymnasium.envs.mujoco.hopper_v5:HopperEnv", max_episode_steps=9)
    args = ppo_continuous.Args(env_id="recipes/Short-v0")
    envs, pool = ppo_continuous.make_envs(args, 3), load("envpool").make_envs(args, 3)
    assert (envs.reset(seed=[3, 4, 5])[0] == pool.reset(seed=[6, 8, 10])[0]).all()
    ends = np.zeros(2, int)
    for _ in range(100):
        actions = np.random.default_rng(len(ends)).normal(size=(3, 3)).astype(np.float32)
        *ours, infos = envs.step(actions)
        *theirs, found = pool.step(actions)
        assert all((x == y).all() for x, y in zip(ours, theirs, strict=True))
        _, _, terminated, truncated = ours
        ends += [terminated.sum(), truncated.sum()]
        for row in np.flatnonzero(terminated | truncated):
            assert (infos["final_obs"][row] == found["final_obs"][row]).all()
    assert ends.all()


def test_envpool_itself(load):
    """Each row of a pool is the env that its seed makes alone, over the ends of episodes."""
    pytest.importorskip("envpool")
    module = load("envpool")
    args = module.Args(env_id="InvertedPendulum-v5")

    def play(seeds):
        envs = module.make_envs(args, len(seeds))
        seen = [envs.reset(seed=seeds)[0]]
        for _ in range(100):
            obs, _, terminated, _, infos = envs.step(np.ones((len(seeds), 1), np.float32))
            assert (np.abs(obs[:, 1]) < 0.2).all()  # 0.2 is a fall
            assert ((np.abs(infos["final_obs"][:, 1]) > 0.2) == terminated).all()
            seen.append(obs)
        return np.stack(seen)

    with pytest.raises(module.Mistake, match="Dict.* observations, which cannot be flattened"):
        module.make_envs(module.Args(env_id="CheetahRun-v1"), 1)
    together = play([2, 4, 6])
    assert all((together[:, [n]] == play([seed])).all() for n, seed in enumerate([2, 4, 6]))
    assert (together[:, 0] != together[:, 1]).any()


def test_self_play(tmp_path, train):
    """A second round has the first one's policy as its opponent, which sees the board as its own."""
    env = self_play.TicTacToe()
    env.reset(seed=0)
    env.board[:] = [1, 1, 0, -1, -1, 0, 0, 0, 0]
    assert env.step(2)[1:3] == (1.0, True) and env.reset(seed=0)
    env.board[:] = [1, 0, 0, 0, 0, 0, 0, 0, 0]
    assert env.step(0)[1:3] == (-1.0, True)
    env_id = "docs.recipes.self_play:TicTacToe-v0"
    agent, _ = train(ppo_discrete, env_id=env_id)
    kwargs = f'{{"opponents": ["{tmp_path}/run0"]}}'
    train(ppo_discrete, env_id=env_id, env_kwargs=kwargs)
    env = self_play.TicTacToe([f"{tmp_path}/run0"])
    env.reset(seed=0)
    [policy] = env.policies
    assert all(map(torch.equal, policy.state_dict().values(), agent.state_dict().values()))
    assert self_play.TicTacToe(["", f"{tmp_path}/run0"]).policies[0] is None  # chance
    env.board[:], seen = [1, 0, 0, 0, 0, 0, 0, 0, 0], []
    policy.act = lambda obs: seen.append(obs.tolist()) or torch.tensor(4)
    env.reply()
    assert seen == [[-1.0] + [0.0] * 8] and env.board[4] == -1
