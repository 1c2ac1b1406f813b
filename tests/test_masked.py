"""Detail X4: actions that are invalid in a state are never taken there, and teach nothing."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import Stopped, same_weights, stop_in_iteration
from gymnasium.spaces import Box, Discrete
from toy_envs import Copy

import ppo_discrete
from variants import ppo_masked


class Masked(gym.Env):
    """10 actions of which t, 2t and 3t (mod 10) are valid, as a method says; others are not put up with."""

    observation_space, action_space = Box(0, 1, (10,)), Discrete(10)

    def action_masks(self):
        return np.isin(np.arange(10), [self.t, 2 * self.t % 10, 3 * self.t % 10])

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self.obs(), {}

    def step(self, action):
        assert self.action_masks()[action]
        self.t = (self.t + 1) % 10
        return self.obs(), float(action == 3), False, False, {}

    def obs(self):
        return np.eye(10, dtype=np.float32)[self.t]


class MaskedCopy(Copy):
    """Several components, each of whose last choice is invalid unless it is the one to copy."""

    def info(self):
        parts = [np.arange(n) < n - 1 for n in self.action_space.nvec]
        for part, target in zip(parts, self.target, strict=True):
            part[target] = True
        return {"action_mask": np.concatenate(parts).astype(np.int8)}

    def reset(self, **kwargs):
        obs, _ = super().reset(**kwargs)
        return obs, self.info()

    def step(self, action):
        flat = np.concatenate(
            [np.arange(n) == a for n, a in zip(self.action_space.nvec, action, strict=True)]
        )
        assert self.info()["action_mask"][flat].all()
        *rest, _ = super().step(action)
        return *rest, self.info()


class DeadEnd(Masked):
    """After 5 steps there is no valid action."""

    def action_masks(self):
        return super().action_masks() & (self.t < 5)


class DeadEndCopy(MaskedCopy):
    """After 3 steps, the second component has no valid choice; the others have."""

    def info(self):
        info = super().info()
        info["action_mask"][3:5] *= self.t < 3
        return info


class Forgetful(MaskedCopy):
    """Every other env says nothing of its masks in some steps."""

    def info(self):
        return super().info() if self.t != 3 or self.target[0] else {}


gym.register("toy/Forgetful-v0", Forgetful)
gym.register("toy/Masked-v0", Masked, max_episode_steps=15)
gym.register("toy/MaskedCopy-v0", MaskedCopy)
gym.register("toy/DeadEnd-v0", DeadEnd, max_episode_steps=15)
gym.register("toy/DeadEndCopy-v0", DeadEndCopy)


@pytest.fixture(params=["toy/Masked-v0", "toy/MaskedCopy-v0", "Taxi-v4"])
def small(request, make_args):
    """Args of a small run in each of three envs, whose masks come from a method or from infos."""
    return make_args(ppo_masked, env_id=request.param, learning_rate=1e-2, num_steps=32, total_timesteps=512)


@pytest.fixture
def agent(small):
    torch.manual_seed(0)
    agent = ppo_masked.Agent(ppo_masked.make_envs(small, 1))
    torch.nn.init.normal_(agent.actor[-1].weight, std=100.0)  # no logit outweighs a mask
    return agent


@pytest.fixture
def masks(agent):
    """Masks for 100 states, each with at least one valid action in each component."""
    masks = (torch.rand(100, *agent.valid.shape) < 0.3) & agent.valid
    masks[..., 0] |= ~masks.any(-1)
    return masks


def test_no_invalid_action_is_ever_sampled(agent, masks):
    obs = torch.randn(100, agent.actor[0].in_features)
    actions = agent.act(obs.expand(100, *obs.shape), masks)  # 10,000 of them
    assert masks.expand(100, *masks.shape).gather(-1, actions[..., None]).all()
    assert len(actions.unique()) > 2
    assert masks.gather(-1, agent.act(obs, masks, greedy=True)[..., None]).all()


def test_invalid_actions_have_no_gradient_and_no_entropy(agent, masks):
    logits = torch.randn(100, *agent.valid.shape, requires_grad=True)
    agent.actor.forward = lambda obs: logits.flatten(1)
    dist, _ = agent(torch.randn(100, agent.actor[0].in_features), masks)
    actions = agent.act(torch.randn(100, 1), masks)
    (dist.log_prob(actions).sum() + dist.entropy().sum()).backward()
    assert not logits.grad[~masks].any() and logits.grad.isfinite().all()
    assert logits.grad[masks].any()
    [row], [mask] = logits[:1].detach(), masks[:1]
    parts = [
        torch.softmax(x[m], 0)
        for x, m in zip(row.view(-1, row.shape[-1]), mask.view(-1, row.shape[-1]), strict=True)
    ]
    assert dist.entropy()[0].item() == pytest.approx(
        sum(-(p * p.log()).sum().item() for p in parts), abs=1e-5
    )


def test_the_ratio_is_one_with_the_masks_of_the_rollout(small, record):
    losses = record(ppo_masked, "ppo_loss")
    ppo_masked.train(small)
    for i, ((dist, _, batch, *_), _) in enumerate(losses):
        ratio = (dist.log_prob(batch.actions) - batch.logprobs).exp()
        assert batch.masks.any(-1).all() and not batch.masks.all()
        if i % 4 == 0:
            torch.testing.assert_close(ratio, torch.ones_like(ratio), atol=1e-5, rtol=0)
        else:
            assert ratio.isfinite().all() and (ratio - 1).abs().max() > 1e-4


def test_the_agent_acts_on_the_masks_that_are_stored(make_args, record, rollouts_of, no_evaluation):
    calls = record(ppo_masked.Agent, "act")
    _, rollouts = rollouts_of(ppo_masked, make_args(ppo_masked, env_id="toy/Masked-v0"))
    given = [masks for (_, _, masks), _ in calls]
    assert len(given) == 4 * 16 and torch.equal(torch.stack(given), torch.cat([b.masks for b in rollouts]))


def test_evaluation_and_resuming_obey_the_masks(small, make_args):
    """The toy envs fail at an invalid action."""
    small.total_timesteps, small.checkpoints, small.eval_episodes = 768, 3, 3
    agent, log = ppo_masked.train(small)
    assert np.isfinite(log[-1]["eval_return"])
    args = make_args(ppo_masked, **vars(small) | {"run_dir": make_args(ppo_masked).run_dir})
    with stop_in_iteration(ppo_masked, 4), pytest.raises(Stopped):
        ppo_masked.train(args)
    args.resume, args.run_dir = args.run_dir, ""
    assert same_weights(agent, ppo_masked.train(args)[0])


@pytest.mark.parametrize("env_id", ["toy/DeadEnd-v0", "toy/DeadEndCopy-v0"])
def test_a_state_without_a_valid_action_is_an_error(env_id, make_args):
    with pytest.raises(ValueError, match="none of its actions is valid"):
        ppo_masked.train(make_args(ppo_masked, env_id=env_id))


def test_masks_that_come_and_go_are_an_error(make_args):
    with pytest.raises(ValueError, match="info has no action_mask"):
        ppo_masked.train(make_args(ppo_masked, env_id="toy/Forgetful-v0"))


@pytest.mark.long
def test_masks_make_taxi_easy(make_args):
    """A taxi that may only do what makes sense learns to; one that may do anything learns to do nothing."""
    scores = []
    for script in (ppo_masked, ppo_discrete):
        flags = dict(num_envs=8, num_steps=128, learning_rate=2.5e-3, vf_clip_coef=np.inf, seed=2)
        flags |= dict(update_epochs=4, num_minibatches=4)
        _, log = script.train(make_args(script, env_id="Taxi-v4", total_timesteps=60_000, **flags))
        scores.append(log[-1]["episode_return"])
    assert scores[0] > 0 > -150 > scores[1]
