"""The same rollout, weights and minibatches as in stable-baselines3 and sb3-contrib: the same update.

Our scripts train in small envs, and all that they saw and did is kept. A peer that starts with the same
weights then learns from a replay of it, all by itself: it computes values, log-probabilities, advantages,
losses and gradients, takes its steps, and goes on to the next rollout. Where the conventions of the two
differ, the peer's settings or a constant in a comparison say so:

- Their value loss has no factor of 1/2: their vf_coef is half of ours, and their value loss twice ours.
- If value losses are clipped, theirs is the clipped one, ours the greater of the two (D09): both are off.
- Their KL is the mean over the last epoch, ours over the whole update.
- They number samples env by env, we step by step.
- Normalised observations and rewards are not the business of their PPO, but of a wrapper, which updates its
  statistics in every step (D28, D30): what they are given here is normalised already.
"""

import copy
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from sb3_contrib import TRPO, MaskablePPO, RecurrentPPO
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv
from torch.nn.utils import parameters_to_vector

import ppo_continuous
import ppo_discrete
from variants import ppo_atari_lstm, ppo_masked, trpo

ACTIONS = {"discrete": Discrete(5), "multidiscrete": MultiDiscrete([3, 2, 4]), "continuous": Box(-1, 1, (3,))}
NETS = dict(net_arch=dict(pi=[64, 64], vf=[64, 64]))


class Noise(gym.Env):
    """Everything is random; episodes end now and then, and after 6 steps at the latest."""

    observation_space = Box(-np.inf, np.inf, (4,))

    def __init__(self, actions):
        self.action_space = ACTIONS[actions]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.obs(), {}

    def step(self, action):
        return self.obs(), self.np_random.normal(), self.np_random.random() < 0.1, False, {}

    def obs(self):
        self.t = self.np_random.integers(3)
        return (3 * self.np_random.normal(size=4) + 1).astype(np.float32)

    def action_masks(self):
        """Every third action is invalid, which are others in each state."""
        return np.arange(gym.spaces.flatdim(self.action_space)) % 3 != self.t


class Static(Noise):
    """The noise of a screen."""

    observation_space = Box(0, 255, (84,), np.uint8)

    def obs(self):
        return self.np_random.integers(256, size=84, dtype=np.uint8)


gym.register("toy/Noise-v0", Noise, max_episode_steps=6)
gym.register("toy/Static-v0", Static, max_episode_steps=6, kwargs={"actions": "discrete"})


def play(script, args, monkeypatch):
    """Train -> what the envs said, and for each rollout the agent's state, inputs and results of compute_gae;
    the orders of samples, the metrics and gradient norms of all steps, and the agent at the end.
    """
    tape = SimpleNamespace(steps=[], states=[], gae=[], orders=[], metrics=[], norms=[], masks=[], args=args)
    originals = {name: getattr(script, name) for name in ("make_envs", "Agent", "compute_gae")}
    permutation = np.random.permutation

    def make_envs(*args):
        tape.envs = envs = originals["make_envs"](*args)
        reset, step = envs.reset, envs.step

        def recorded_reset(**kwargs):
            obs, infos = reset(**kwargs)
            tape.first_obs = obs.copy()
            return obs, infos

        def recorded_step(actions):
            obs, reward, terminated, truncated, infos = step(actions)
            said = (actions, obs, reward, terminated, truncated)
            final_obs = infos.get("final_obs", [None] * len(obs))
            tape.steps.append((*(np.array(x) for x in said), list(final_obs)))
            return obs, reward, terminated, truncated, infos

        envs.reset, envs.step = recorded_reset, recorded_step
        return envs

    def agent_class(*args):
        tape.agent = originals["Agent"](*args)
        *_, head = (module for module in tape.agent.actor.modules() if hasattr(module, "weight"))
        torch.nn.init.normal_(head.weight, std=0.1)  # so that actions are not all alike
        return tape.agent

    def compute_gae(*inputs):
        tape.states.append(copy.deepcopy(tape.agent.state_dict()))
        result = originals["compute_gae"](*inputs)
        tape.gae.append((np.array(inputs[1]), result.copy()))
        return result

    def recorded(calls, function, choose=lambda result: result):
        def wrapped(*args, **kwargs):
            result = function(*args, **kwargs)
            calls.append(choose(result))
            return result

        return wrapped

    with monkeypatch.context() as patch:
        patch.setattr(script, "make_envs", make_envs)
        patch.setattr(script, "Agent", agent_class)
        patch.setattr(script, "compute_gae", compute_gae)
        patch.setattr(np.random, "permutation", recorded(tape.orders, permutation))
        patch.setattr(script, "compute_gradients", recorded(tape.metrics, script.compute_gradients))
        clip_grad_norm = recorded(tape.norms, torch.nn.utils.clip_grad_norm_)
        patch.setattr(torch.nn.utils, "clip_grad_norm_", clip_grad_norm)
        if script is ppo_masked:
            patch.setattr(script, "read_masks", recorded(tape.masks, script.read_masks))
        _, tape.log = script.train(args)
    return tape


class Replay(VecEnv):
    """What our envs said, once more, as our agents saw it: normalised, if that is what they do."""

    def __init__(self, tape):
        self.tape, args = tape, tape.args
        self.T, self.t = args.num_steps, 0
        envs = tape.envs.unwrapped  # whose actions have bounds
        super().__init__(args.num_envs, envs.single_observation_space, envs.single_action_space)
        self.first = self.seen(tape.first_obs, 0)

    def seen(self, obs, rollout):
        """The observations, by the statistics of that rollout."""
        stats = {name: x for name, x in self.tape.states[rollout].items() if name.startswith("obs_stats")}
        if not stats:
            return np.array(obs)
        self.tape.agent.load_state_dict(stats, strict=False)
        return self.tape.agent.normalize(torch.as_tensor(np.array(obs))).numpy()

    def scaled(self, reward, rollout):
        var = self.tape.states[rollout].get("return_stats.var")
        if var is None:
            return np.sign(reward) if self.tape.agent.__module__.endswith("lstm") else reward
        return (reward / (var + 1e-8).sqrt().item()).clip(-10, 10)

    def reset(self):
        return self.first

    def step_async(self, actions):
        sampled, *_ = self.tape.steps[self.t]
        space = self.action_space
        assert np.allclose(
            actions, sampled.clip(space.low, space.high) if isinstance(space, Box) else sampled
        )

    def step_wait(self):
        rollout, (_, obs, reward, terminated, truncated, final_obs) = (
            self.t // self.T,
            self.tape.steps[self.t],
        )
        self.t += 1
        infos = [{"TimeLimit.truncated": bool(limit)} for limit in truncated & ~terminated]
        for n in np.flatnonzero(terminated | truncated):
            infos[n]["terminal_observation"] = self.seen(final_obs[n], rollout)
        return self.seen(obs, rollout), self.scaled(reward, rollout), terminated | truncated, infos

    def env_method(self, name, *args, **kwargs):
        assert name == "action_masks"
        return self.tape.masks[self.t][:, self.tape.agent.valid.numpy()]

    def get_attr(self, name, indices=None):
        return [None] * self.num_envs

    def has_attr(self, name):
        return name == "action_masks"

    def env_is_wrapped(self, wrapper_class, indices=None):
        return [False] * self.num_envs

    def set_attr(self, *args, **kwargs):
        raise NotImplementedError

    def close(self):
        pass


class Watch(BaseCallback):
    """Keeps each rollout of the peer, and opens the next one with the statistics that ours has by then."""

    def __init__(self):
        super().__init__()
        self.rollouts = []

    def _on_rollout_start(self):
        replay = self.training_env
        if replay.t:
            self.model._last_obs = replay.seen(replay.tape.steps[replay.t - 1][1], replay.t // replay.T)

    def _on_rollout_end(self):
        buffer = self.model.rollout_buffer
        names = "values", "log_probs", "advantages", "returns"
        self.rollouts.append(SimpleNamespace(**{name: getattr(buffer, name).copy() for name in names}))

    def _on_step(self):
        return True


def layers(agent, policy):
    """(ours, theirs) of all parameters, but for logits that are unused."""
    used = agent.valid.flatten() if hasattr(agent, "valid") else slice(None)
    nets, whole = policy.mlp_extractor, slice(None)
    for ours, theirs, rows in (
        (agent.actor[0], nets.policy_net[0], whole),
        (agent.actor[2], nets.policy_net[2], whole),
        (agent.actor[4], policy.action_net, used),
        (agent.critic[0], nets.value_net[0], whole),
        (agent.critic[2], nets.value_net[2], whole),
        (agent.critic[4], policy.value_net, whole),
    ):
        yield ours.weight[rows], theirs.weight
        yield ours.bias[rows], theirs.bias
    if hasattr(agent, "log_std"):
        yield agent.log_std, policy.log_std


def vectors(agent, policy):
    """All parameters, ours and theirs, each as one vector."""
    return [parameters_to_vector(side).detach() for side in zip(*layers(agent, policy), strict=True)]


def learn(kind, policy, tape, monkeypatch, first_orders=(), **settings):
    """The peer of that kind learns from the replay -> the peer, its rollouts, its gradient norms."""
    args, peer_norms, watch = tape.args, [], Watch()
    T, N = args.num_steps, args.num_envs
    kwargs = NETS | settings.pop("policy_kwargs", {})
    shared = dict(n_steps=T, gamma=args.gamma, gae_lambda=args.gae_lambda, normalize_advantage=args.norm_adv)
    peer = kind(policy, Replay(tape), policy_kwargs=kwargs, device="cpu", **shared | settings)
    ours, end = tape.agent, copy.deepcopy(tape.agent.state_dict())
    ours.load_state_dict(tape.states[0])
    for mine, theirs in layers(ours, peer.policy):
        theirs.data.copy_(mine)
    actions = (torch.as_tensor(actions) for actions, *_ in tape.steps)
    orders = (np.array(order) for order in (*first_orders, *tape.orders))
    clip = torch.nn.utils.clip_grad_norm_

    def clip_grad_norm(parameters, limit):
        norm = clip(parameters, limit)
        peer_norms.append(norm.item())
        return norm

    with monkeypatch.context() as patch:
        patch.setattr(peer.policy.action_dist, "get_actions", lambda deterministic=False: next(actions))
        patch.setattr(np.random, "permutation", lambda B: (order := next(orders)) % N * T + order // N)
        patch.setattr(torch.nn.utils, "clip_grad_norm_", clip_grad_norm)
        peer.learn(len(tape.steps) * N, callback=watch)
    ours.load_state_dict(end)
    return peer, watch.rollouts, peer_norms


def compare_rollouts(tape, rollouts, atol=1e-5):
    """Values and advantages, time limits included."""
    assert len(rollouts) == len(tape.gae) > 1
    limits = sum((truncated & ~terminated).sum() for *_, terminated, truncated, _ in tape.steps)
    deaths = sum(terminated.sum() for *_, terminated, _, _ in tape.steps)
    assert limits > 5 and deaths > 5
    for (values, advantages), theirs in zip(tape.gae, rollouts, strict=True):
        np.testing.assert_allclose(values, theirs.values, atol=atol, rtol=0)
        np.testing.assert_allclose(advantages, theirs.advantages, atol=atol, rtol=0)
        np.testing.assert_allclose(advantages + values, theirs.returns, atol=atol, rtol=0)


def compare_weights(tape, peer, atol=1e-5):
    """They agree at the end, and are far from where they began."""
    ours, theirs = vectors(tape.agent, peer.policy)
    start = copy.deepcopy(tape.agent)
    start.load_state_dict(tape.states[0])
    assert (ours - vectors(start, peer.policy)[0]).abs().max() > 100 * atol
    torch.testing.assert_close(ours, theirs, atol=atol, rtol=0)


def compare_losses(tape, peer):
    """Of the last update; theirs are means, but for the KL, whose mean is of the last epoch."""
    epochs, M = tape.args.update_epochs, tape.args.num_minibatches
    update, said = tape.metrics[-epochs * M :], peer.logger.name_to_value
    ours = {name: np.mean([metrics[name] for metrics in update]) for name in update[0]}
    assert ours["policy_loss"] == pytest.approx(said["train/policy_gradient_loss"], abs=1e-5)
    assert 2 * ours["value_loss"] == pytest.approx(said["train/value_loss"], abs=1e-5)
    assert ours["entropy"] == pytest.approx(-said["train/entropy_loss"], abs=1e-5)
    assert ours["clip_frac"] == pytest.approx(said["train/clip_fraction"], abs=1e-7)
    assert np.mean([metrics["kl"] for metrics in update[-M:]]) == pytest.approx(
        said["train/approx_kl"], abs=1e-6
    )
    assert 0.02 < ours["clip_frac"] < 0.98 and ours["kl"] > 1e-3


CASES = [
    (ppo_discrete, PPO, "MlpPolicy", "discrete"),
    (ppo_discrete, PPO, "MlpPolicy", "multidiscrete"),
    (ppo_continuous, PPO, "MlpPolicy", "continuous"),
    (ppo_masked, MaskablePPO, "MlpPolicy", "discrete"),
    (ppo_masked, MaskablePPO, "MlpPolicy", "multidiscrete"),
]


def make(make_args, script, actions, **flags):
    """Args for two rollouts of noise."""
    flags = dict(iterations=2, num_steps=32, anneal_lr=False, gamma=0.9) | flags
    return make_args(script, env_id="toy/Noise-v0", env_kwargs=f'{{"actions": "{actions}"}}', **flags)


@pytest.mark.parametrize("norm_adv", [True, False])
@pytest.mark.parametrize(("script", "kind", "policy", "actions"), CASES)
def test_ppo(script, kind, policy, actions, norm_adv, make_args, no_evaluation, monkeypatch):
    """Two rollouts, of two epochs of four minibatches each."""
    flags = dict(num_minibatches=4, learning_rate=2e-3, norm_adv=norm_adv, clip_coef=0.05)
    flags |= dict(vf_clip_coef=np.inf, ent_coef=0.01, max_grad_norm=1.5)
    args = make(make_args, script, actions, **flags)
    tape = play(script, args, monkeypatch)
    settings = dict(learning_rate=args.learning_rate, n_epochs=2, batch_size=32, clip_range=args.clip_coef)
    settings |= dict(ent_coef=args.ent_coef, vf_coef=args.vf_coef / 2, max_grad_norm=args.max_grad_norm)
    peer, rollouts, norms = learn(kind, policy, tape, monkeypatch, **settings)
    compare_rollouts(tape, rollouts)
    assert [norm.item() for norm in tape.norms] == pytest.approx(norms, abs=1e-5, rel=1e-5)
    assert len(norms) == 16 and min(norms) < args.max_grad_norm < max(norms)
    compare_losses(tape, peer)
    compare_weights(tape, peer)


@pytest.mark.parametrize(
    ("script", "actions"), [(ppo_discrete, "discrete"), (ppo_continuous, "continuous")], ids=["D", "C"]
)
def test_a2c_is_ppo_of_one_epoch_of_one_batch(script, actions, make_args, no_evaluation, monkeypatch):
    """And with its optimizer (arXiv 2205.09123): where ratios are 1, both have the policy gradient."""

    def rmsprop(parameters, lr, **kwargs):
        return torch.optim.RMSprop(parameters, lr, alpha=0.99, eps=1e-5)

    flags = dict(update_epochs=1, num_minibatches=1, learning_rate=7e-4, vf_clip_coef=np.inf, ent_coef=0.01)
    args = make(make_args, script, actions, iterations=5, **flags)
    monkeypatch.setattr(torch.optim, "Adam", rmsprop)
    tape = play(script, args, monkeypatch)
    settings = dict(learning_rate=args.learning_rate, ent_coef=args.ent_coef, vf_coef=args.vf_coef / 2)
    settings |= dict(max_grad_norm=args.max_grad_norm, use_rms_prop=True, rms_prop_eps=1e-5)
    peer, rollouts, norms = learn(A2C, "MlpPolicy", tape, monkeypatch, **settings)
    compare_rollouts(tape, rollouts)
    assert [norm.item() for norm in tape.norms] == pytest.approx(norms, abs=1e-5, rel=1e-5)
    assert len(norms) == 5
    compare_weights(tape, peer)


def test_trpo(make_args, no_evaluation, monkeypatch):
    """Their KL is the mean over the 3 components of an action, too, where ours is their sum: for the same
    region, their target and damping are a third of ours. It is that of new and old, which has the same second
    derivatives. Their conjugate gradients start at small random numbers, which are 0 here. Their critic has
    twice our loss: with twice the epsilon Adam takes the same steps.
    """
    args = make(make_args, trpo, "continuous", num_steps=64, num_minibatches=4, target_kl=0.02)
    tape = play(trpo, args, monkeypatch)
    monkeypatch.setattr(torch, "randn_like", torch.zeros_like)
    settings = dict(learning_rate=args.learning_rate, batch_size=64, target_kl=args.target_kl / 3)
    settings |= dict(cg_max_steps=args.cg_iters, cg_damping=args.cg_damping / 3, n_critic_updates=2)
    settings["line_search_max_iter"] = args.backtracks
    settings["line_search_shrinking_factor"] = args.backtrack_ratio
    settings |= dict(policy_kwargs=dict(optimizer_kwargs=dict(eps=2e-5)))
    orders = tape.orders
    # Theirs shuffle for the policy, too, which sees everything at once.
    tape.orders = [np.arange(256), *orders[:2], np.arange(256), *orders[2:]]
    peer, rollouts, _ = learn(TRPO, "MlpPolicy", tape, monkeypatch, **settings)
    compare_rollouts(tape, rollouts)
    ours, theirs = vectors(tape.agent, peer.policy)
    start = copy.deepcopy(tape.agent)
    start.load_state_dict(tape.states[0])
    start, _ = vectors(start, peer.policy)
    assert (ours - theirs).norm() < 1e-4 * (ours - start).norm()
    said = peer.logger.name_to_value
    assert tape.log[-1]["kl"] == pytest.approx(3 * said["train/kl_divergence_loss"], rel=0.1)
    assert 2 * tape.log[-1]["value_loss"] == pytest.approx(said["train/value_loss"], rel=1e-4)


def lstm_layers(agent, policy):
    """(ours, their layers that ours is all of): we have one LSTM for both, they one for each."""
    cnn = policy.features_extractor
    convolutions = [module for module in agent.trunk if hasattr(module, "weight")]
    for ours, theirs in zip(convolutions, [*cnn.cnn[:6:2], cnn.linear[0]], strict=True):
        yield ours.weight, [theirs.weight]
        yield ours.bias, [theirs.bias]
    for name, parameter in agent.lstm.named_parameters():
        yield parameter, [getattr(lstm, name) for lstm in (policy.lstm_actor, policy.lstm_critic)]
    for ours, theirs in ((agent.actor, policy.action_net), (agent.critic, policy.value_net)):
        yield ours.weight, [theirs.weight]
        yield ours.bias, [theirs.bias]


def test_recurrent_ppo(make_args, no_evaluation, monkeypatch):
    """The gradient of one whole rollout. A memory that is shared gets no gradient of the critic in theirs;
    with one memory each, which have the same weights, the gradient of ours is the sum of theirs.
    """
    flags = dict(update_epochs=1, num_minibatches=1, max_grad_norm=np.inf, vf_clip_coef=np.inf)
    flags |= dict(learning_rate=0.0, num_steps=8, iterations=1)
    args = make_args(ppo_atari_lstm, env_id="toy/Static-v0", **flags)
    tape = play(ppo_atari_lstm, args, monkeypatch)
    kwargs = dict(net_arch=[], lstm_hidden_size=128, enable_critic_lstm=True)
    settings = dict(n_steps=8, batch_size=32, n_epochs=1, gamma=args.gamma, gae_lambda=args.gae_lambda)
    settings |= dict(clip_range=args.clip_coef, ent_coef=args.ent_coef, vf_coef=args.vf_coef / 2)
    settings |= dict(max_grad_norm=np.inf, learning_rate=0.0, device="cpu")
    peer, watch = RecurrentPPO("CnnLstmPolicy", Replay(tape), policy_kwargs=kwargs, **settings), Watch()
    for ours, theirs in lstm_layers(tape.agent, peer.policy):
        for parameter in theirs:
            parameter.data.copy_(ours.data.reshape(parameter.shape))
    actions = (torch.as_tensor(actions) for actions, *_ in tape.steps)
    monkeypatch.setattr(peer.policy.action_dist, "get_actions", lambda deterministic=False: next(actions))
    monkeypatch.setattr(np.random, "randint", lambda *args: 0)  # where they would cut a sequence in two
    peer.learn(32, callback=watch)
    [(values, advantages)], [theirs] = tape.gae, watch.rollouts
    np.testing.assert_allclose(values, theirs.values, atol=1e-5)
    np.testing.assert_allclose(advantages, theirs.advantages, atol=1e-5)
    said, [metrics] = peer.logger.name_to_value, tape.metrics
    assert metrics["policy_loss"].item() == pytest.approx(said["train/policy_gradient_loss"], abs=1e-5)
    assert 2 * metrics["value_loss"].item() == pytest.approx(said["train/value_loss"], abs=1e-5)
    assert metrics["entropy"].item() == pytest.approx(-said["train/entropy_loss"], abs=1e-5)
    for ours, theirs in lstm_layers(tape.agent, peer.policy):
        gradient = sum(parameter.grad for parameter in theirs).reshape(ours.shape)
        assert (ours.grad - gradient).abs().max() < 1e-5 * gradient.abs().max()
