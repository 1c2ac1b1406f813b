# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "torch==2.13.0",
#     "gymnasium[box2d,classic-control,mujoco]==1.4.0",
#     "mujoco==4.0.0",
#     "numpy==2.4.6",
#     "tyro==1.0.17",
#     "tensorboard==2.21.0",
#     "tqdm==4.70.1",
#     "filelock==4.2.11",
#     "wandb==0.31.0",
#     "moviepy==2.2.1",
# ]
# ///
"""Proximal Policy Optimization with a KL penalty instead of the clip, all of it in one file.

    python variants/ppo_penalty.py                                 # HalfCheetah-v5, 1,000,000 steps
    python variants/ppo_penalty.py --env-id Hopper-v5 --seed 2     # --help lists every flag
    git diff --no-index ppo_continuous.py variants/ppo_penalty.py  # what the penalty changes

Shapes  T steps of N envs are B = T * N samples, which are cut into minibatches of M.
        What describes a state (obs, values) has T + 1 rows, what describes a step (rewards, dones) has T.

Tags    [D08] marks the line with detail 8 of docs/details.md; other letters, as in [E1], are in there, too.
"""

import io
import json
import math
import os
import random
import re
import sys
import time
import zipfile
from collections import deque
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple, NoReturn

import gymnasium as gym
import numpy as np
import torch
import tyro
from filelock import FileLock
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import FlattenObservation, RecordVideo
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, Normal, kl_divergence
from torch.nn.utils import clip_grad_norm_
from torch.optim import Adam
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm


@dataclass
class Args:
    env_id: str = "HalfCheetah-v5"  # gymnasium id; "module:Name-v0" imports the module first
    env_kwargs: str = "{}"  # of the env's constructor, as JSON
    seed: int = 1  # of everything random
    total_timesteps: int = 1_000_000  # env steps, all envs together, in whole rollouts
    num_envs: int = 1  # envs stepped together
    num_steps: int = 2048  # steps of each env in a rollout
    learning_rate: float = 3e-4  # of Adam
    anneal_lr: bool = True  # linearly towards zero
    gamma: float = 0.99  # discount factor
    gae_lambda: float = 0.95  # 1 is Monte Carlo up to the rollout's end, 0 is one-step TD
    update_epochs: int = 10  # passes over a rollout
    num_minibatches: int = 32  # gradient steps in a pass
    norm_adv: bool = True  # normalise advantages, in each minibatch
    beta: float = 1.0  # first weight of the penalty
    adapt_beta: bool = True  # double or halve it after a rollout, to push the KL towards target_kl
    target_kl: float = 0.01  # after a rollout's last gradient step; kl, as logged, is a mean over steps
    vf_clip_coef: float = 0.2  # values further than this from the old ones gain nothing (inf: off)
    vf_coef: float = 0.5  # weight of the value loss
    ent_coef: float = 0.0  # weight of the entropy bonus
    max_grad_norm: float = 0.5  # of all gradients together (inf: off)
    log_std_init: float = 0.0  # the same for all actions at first; it is learned

    device: str = "cpu"  # cpu, cuda, cuda:1, mps, or auto: an accelerator if there is one
    threads: int = 1  # on the CPU; small networks are fastest with 1
    compile: bool = False  # the update, by torch.compile: faster, after some seconds
    async_envs: bool = False  # each env in a process of its own, for slow ones
    run_dir: str = ""  # a new folder; default: runs/<env>__<script>__<seed>__<time>
    resume: str = ""  # folder of the run to continue; its flags hold unless given again
    evaluate: str = ""  # folder of the run to evaluate, instead of training
    checkpoints: int = 10  # saves on the way, each replaces the last and resets the envs (0: only at the end)
    track: bool = False  # also log to Weights & Biases
    capture_video: bool = False  # film one more episode, after the evaluation
    eval_episodes: int = 10  # episodes played after training (0: none, and no video)
    eval_greedy: bool = False  # evaluate the most probable actions instead of sampled ones


class Batch(NamedTuple):
    """What an update sees, flattened: (B, ...), or (M, ...) for a minibatch."""

    obs: Tensor
    actions: Tensor
    means: Tensor  # of the normal distributions of the policy that acted
    stds: Tensor  # standard deviations of the same
    logprobs: Tensor  # of the policy that acted
    advantages: Tensor
    returns: Tensor  # targets of the critic
    values: Tensor  # of the critic at rollout time


def compute_gae(
    rewards: np.ndarray, values: np.ndarray, dones: np.ndarray, gamma: float, gae_lambda: float
) -> np.ndarray:
    """Generalized advantage estimation (arXiv 1506.02438).

    rewards and dones (T, N), values (T + 1, N) -> advantages (T, N).
    """
    discount = gamma * (1 - dones)
    advantages = rewards + discount * values[1:] - values[:-1]  # TD errors: the advantages of one step
    for t in reversed(range(len(rewards) - 1)):  # the last step's is complete
        advantages[t] += discount[t] * gae_lambda * advantages[t + 1]  # [D05]
    return advantages


def adapt(beta: float, kl: float, target: float) -> float:
    """The penalty's next weight after an update that moved the policy by kl (arXiv 1707.06347, section 4)."""
    if kl < target / 1.5:
        beta = beta / 2
    elif kl > target * 1.5:
        beta = beta * 2
    return min(max(beta, 1e-4), 1e4)  # at 0 or infinity it would stay for ever


def ppo_loss(
    dist: Distribution, value: Tensor, batch: Batch, beta: Tensor, args: Args
) -> tuple[Tensor, dict]:
    """Surrogate objective with KL penalty, value loss and entropy bonus (arXiv 1707.06347, equation 8).

    dist and value are the current agent's, for each of batch.obs -> scalar loss, metrics without gradient.
    """
    ratio = (dist.log_prob(batch.actions) - batch.logprobs).exp()
    old = Normal(batch.means, batch.stds, validate_args=False)
    kl = kl_divergence(Independent(old, dist.reinterpreted_batch_ndims), dist).mean()
    advantages = batch.advantages
    if args.norm_adv:
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)  # [D07]
    policy_loss = beta * kl - (ratio * advantages).mean()  # [E3]
    clipped_value = batch.values + (value - batch.values).clamp(-args.vf_clip_coef, args.vf_clip_coef)
    value_error = torch.max((value - batch.returns) ** 2, (clipped_value - batch.returns) ** 2)  # [D09]
    value_loss = 0.5 * value_error.mean()
    entropy = dist.entropy().mean()
    loss = policy_loss + args.vf_coef * value_loss - args.ent_coef * entropy  # [D10]
    metrics = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy, "kl": kl}
    return loss, {name: metric.detach() for name, metric in metrics.items()}  # [D12]


def layer_init(layer: nn.Module, gain: float = 2**0.5) -> nn.Module:
    """Orthogonal weights scaled by gain, zero biases."""
    nn.init.orthogonal_(layer.weight, gain)  # [D02]
    nn.init.zeros_(layer.bias)
    return layer


def mlp(in_features: int, out_features: int, gain: float) -> nn.Sequential:
    """Two tanh layers of 64 units and a linear head, whose weights have the given gain."""
    return nn.Sequential(
        layer_init(nn.Linear(in_features, 64)),
        nn.Tanh(),
        layer_init(nn.Linear(64, 64)),
        nn.Tanh(),
        layer_init(nn.Linear(64, out_features), gain),
    )


class RunningStats(nn.Module):
    """Mean and variance of all samples so far, as buffers: part of the state_dict, as weights are."""

    def __init__(self, *shape: int):
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("var", torch.ones(shape))
        self.register_buffer("count", torch.tensor(1e-4))  # so small that the first sample takes over
        self.register_buffer("rest", torch.zeros(shape))  # what rounding kept from the mean (Kahan)

    def update(self, x: Tensor) -> None:
        """Take in samples (n, *shape)."""
        weight = len(x) / (self.count + len(x))
        delta = x.mean(0) - self.mean
        mean = self.mean + weight * delta + self.rest
        self.rest += weight * delta - (mean - self.mean)
        self.mean.copy_(mean)
        self.var += weight * (x.var(0, correction=0) - self.var + (1 - weight) * delta**2)  # Chan et al. 1979
        self.count += len(x)

    def std(self) -> Tensor:
        return (self.var + 1e-8).sqrt()


class Agent(nn.Module):
    """Actor and critic: obs (..., obs_dim) -> distribution of actions, value (...)."""

    def __init__(self, envs: gym.vector.VectorEnv):
        super().__init__()
        obs_dim, self.action_shape = envs.single_observation_space.shape[0], envs.single_action_space.shape
        self.obs_stats, self.return_stats = RunningStats(obs_dim), RunningStats()
        self.actor = mlp(obs_dim, math.prod(self.action_shape), gain=0.01)  # [D26] a network of its own
        self.critic = mlp(obs_dim, 1, gain=1.0)
        self.log_std = nn.Parameter(torch.zeros(self.action_shape))  # [D24]
        self.register_buffer("beta", torch.tensor(1.0))  # weight of the KL penalty, saved with the weights

    def normalize(self, obs: Tensor) -> Tensor:
        obs = (obs - self.obs_stats.mean) / self.obs_stats.std()  # [D28]
        return obs.clamp(-10, 10)  # [D29]

    def mean(self, obs: Tensor) -> Tensor:
        return self.actor(self.normalize(obs)).reshape(*obs.shape[:-1], *self.action_shape)

    def forward(self, obs: Tensor) -> tuple[Distribution, Tensor]:
        dist = Normal(self.mean(obs), self.log_std.exp(), validate_args=False)  # [D23]
        value = self.critic(self.normalize(obs)).squeeze(-1)
        return Independent(dist, len(self.action_shape)), value  # [D25]

    def act(self, obs: Tensor, greedy: bool = False) -> Tensor:
        """Sampled actions, or the most probable ones; faster than through a Distribution."""
        mean = self.mean(obs)
        return mean if greedy else mean + self.log_std.exp() * torch.randn_like(mean)


def backpropagate(agent: Agent, batch: Batch, args: Args) -> dict:
    """Add the gradients of ppo_loss to the agent's own -> metrics. This is what --compile compiles."""
    dist, value = agent(batch.obs)
    loss, metrics = ppo_loss(dist, value, batch, agent.beta, args)
    loss.backward()
    return metrics


def make_envs(args: Args, num_envs: int, video_dir: Path | None = None) -> gym.vector.VectorEnv:
    """num_envs copies of args.env_id, stepped together; observations are flattened to vectors."""
    vector_kwargs = {"autoreset_mode": AutoresetMode.SAME_STEP}  # no step is spent on a reset
    mode, wrappers, kwargs = "async" if args.async_envs else "sync", [FlattenObservation], {}
    if video_dir:
        film = partial(RecordVideo, video_folder=str(video_dir), episode_trigger=lambda episode: episode == 0)
        mode, wrappers, kwargs = "sync", [film, *wrappers], {"render_mode": "rgb_array"}
    try:
        kwargs |= json.loads(args.env_kwargs)
        envs = gym.make_vec(args.env_id, num_envs, mode, vector_kwargs, wrappers, **kwargs)  # [D01]
    except (gym.error.Error, ImportError, KeyError, TypeError, ValueError) as error:
        refuse(f"--env-id {args.env_id} --env-kwargs {args.env_kwargs}: {type(error).__name__}: {error}")
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP  # the rollout relies on it
    obs_space, action_space = envs.single_observation_space, envs.single_action_space
    if not isinstance(obs_space, Box):
        refuse(f"{args.env_id}: {obs_space} observations, which cannot be flattened to a vector")
    if not isinstance(action_space, Box) or not np.issubdtype(action_space.dtype, np.floating):
        refuse(f"{args.env_id}: {action_space} actions, not a Box of floats (Discrete: ppo_discrete.py)")
    return gym.wrappers.vector.ClipAction(envs)  # [D27] for the env alone: what is stored is what was sampled


def seed_everything(seed: int, purpose: str, num_envs: int = 0) -> list[int]:
    """Seed Python, NumPy and torch -> seeds for envs. Other seeds or purposes lead to other numbers."""
    seeds = np.random.SeedSequence([seed, *purpose.encode()]).generate_state(num_envs + 1).tolist()
    random.seed(seeds[0])
    np.random.seed(seeds[0])
    torch.manual_seed(seeds[0])
    return seeds[1:]


@torch.no_grad()
def evaluate(agent: Agent, args: Args, video_dir: Path | None = None) -> list[float]:
    """Returns of eval_episodes whole episodes, one from each env, or short ones would count more often."""
    seeds = seed_everything(args.seed, "evaluation", args.eval_episodes)
    envs = make_envs(args, args.eval_episodes, video_dir)
    obs, _ = envs.reset(seed=seeds)
    score, running = np.zeros(envs.num_envs), np.ones(envs.num_envs, dtype=bool)
    bar = tqdm(desc="evaluation", unit=" steps", leave=False, disable=None)
    while running.any():
        obs = torch.as_tensor(obs, dtype=torch.float32, device=next(agent.parameters()).device)
        action = agent.act(obs, args.eval_greedy)
        obs, reward, terminated, truncated, _ = envs.step(action.cpu().numpy())
        score += reward * running
        running &= ~(terminated | truncated)
        bar.update()
    envs.close()
    return score.tolist()


def train(args: Args) -> tuple[Agent, list[dict[str, float]]]:
    """Train, or go on with args.resume -> the agent, and a dict of metrics per iteration."""
    # setup
    check(args)
    T, N = args.num_steps, args.num_envs
    B = T * N
    M = B // args.num_minibatches
    num_iterations = int(args.total_timesteps // B)  # from Python, total_timesteps may be 1e6
    save_every = math.ceil(num_iterations / max(1, args.checkpoints))
    device = pick_device(args.device)
    on_device = partial(torch.as_tensor, device=device)  # on the CPU, this shares memory
    torch.set_num_threads(args.threads)
    seed_everything(args.seed, "weights")
    envs = make_envs(args, N)
    agent = Agent(envs).to(device)
    nn.init.constant_(agent.log_std, args.log_std_init)  # [E4]
    nn.init.constant_(agent.beta, args.beta)
    parameters = list(agent.parameters())
    optimizer = Adam(parameters, lr=args.learning_rate, eps=1e-5, fused=True)  # [D03]
    if args.compile:
        torch._dynamo.config.trace_autograd_ops = True  # or it would stop short of loss.backward()
    backward = torch.compile(backpropagate, disable=not args.compile)
    episodes, first_iteration, log = deque(maxlen=100), 0, []  # episodes: (return, length) of the last 100
    if args.resume:
        checkpoint = load(args.resume, agent=agent, optimizer=optimizer)
        episodes.extend(checkpoint["episodes"])
        first_iteration = checkpoint["iteration"]
        if first_iteration >= num_iterations:
            print(f"{args.resume} is finished; with more --total-timesteps it goes on")
            return agent, log
    run_dir, lock = make_run_dir(args)  # ours for as long as lock exists
    steps = first_iteration * B
    writer = SummaryWriter(run_dir, purge_step=steps + 1)
    writer.add_text("args", f"<pre>{json.dumps(asdict(args), indent=2)}</pre>", steps)
    if args.track:
        import wandb

        wandb.init(name=run_dir.resolve().name, config=asdict(args), dir=run_dir)
        wandb.define_metric("*", step_metric="steps")
    print(f"{args.env_id} on {device}; --resume {run_dir} goes on from its last checkpoint", flush=True)
    if (envs.spec.kwargs.get("max_episode_steps") or envs.spec.max_episode_steps or 0) > save_every * T:
        print(f"no episode can outlast {save_every * T} steps; fewer --checkpoints or a longer run helps")

    # storage
    obs = np.zeros((T + 1, *envs.observation_space.shape), np.float32)
    final_obs = np.zeros_like(obs[0])
    actions = np.zeros((T, *envs.action_space.shape), np.float32)
    rewards, dones = np.zeros((2, T, N), np.float32)
    values = torch.zeros(T + 1, N, device=device)
    score, length = np.zeros((2, N))
    rolling_return, rolling_returns = np.zeros(N, np.float32), np.zeros((T, N), np.float32)  # of the past

    bar = tqdm(total=num_iterations * B, initial=steps, unit="", unit_scale=True, disable=None)
    for iteration in range(first_iteration, num_iterations):
        if (iteration - first_iteration) % save_every == 0:
            # A clean cut: what follows depends on nothing but what is saved, in a resumed run or not.
            if args.checkpoints:
                save(run_dir, args, iteration, agent, optimizer, episodes)
            obs[T], _ = envs.reset(seed=seed_everything(args.seed, f"cut {iteration}", N))  # [E2]
            score[:], length[:], rolling_return[:] = 0, 0, 0
        remaining = 1 - iteration / num_iterations
        optimizer.param_groups[0]["lr"] = args.learning_rate * (remaining if args.anneal_lr else 1)  # [D04]

        # rollout
        start = time.perf_counter()
        with torch.no_grad():
            obs[0] = obs[T]  # carry on from where the last rollout stopped
            final_values = np.zeros_like(rewards)
            for t in range(T):
                actions[t] = agent.act(on_device(obs[t])).cpu()
                obs[t + 1], reward, terminated, truncated, infos = envs.step(actions[t])
                done, timeout = terminated | truncated, truncated & ~terminated
                rewards[t], dones[t] = reward, done
                rolling_returns[t] = rolling_return[:] = args.gamma * rolling_return + reward
                if timeout.any():  # not terminal: final_obs has a value (obs[t + 1] is of the next episode)
                    final_obs[timeout] = np.stack(infos["final_obs"][timeout])
                    _, final_value = agent(on_device(final_obs[timeout]))
                    final_values[t, timeout] = final_value.cpu()
                score += reward
                length += 1
                episodes.extend(zip(score[done].tolist(), length[done].tolist(), strict=True))
                score[done], length[done], rolling_return[done] = 0, 0, 0
            dist, values[:T] = agent(on_device(obs[:T]))  # in one pass: nothing was learned since
            means, stds, logprobs = dist.mean, dist.stddev, dist.log_prob(on_device(actions))
            _, values[T] = agent(on_device(obs[T]))

        # update
        agent.return_stats.update(on_device(rolling_returns).flatten())  # of past rewards, not of future ones
        scaled_rewards = rewards / agent.return_stats.std().item()  # [D30]
        scaled_rewards = scaled_rewards.clip(-10, 10)  # [D31]
        scaled_rewards += args.gamma * final_values  # [E1] not scaled: the critic learned scaled returns
        advantages = compute_gae(scaled_rewards, values.cpu().numpy(), dones, args.gamma, args.gae_lambda)
        returns = on_device(advantages) + values[:T]
        batch = Batch(obs[:T], actions, means, stds, logprobs, advantages, returns, values[:T])
        batch = Batch(*(on_device(x).flatten(0, 1) for x in batch))
        history = []
        for _ in range(args.update_epochs):
            for idx in on_device(np.random.permutation(B)).split(M):  # [D06]
                minibatch = Batch(*(x[idx] for x in batch))
                optimizer.zero_grad()
                metrics = backward(agent, minibatch, args)
                metrics["grad_norm"] = clip_grad_norm_(parameters, args.max_grad_norm)  # [D11]
                optimizer.step()
                history.append(metrics)
        if args.adapt_beta:  # by the KL of the whole rollout, after the last gradient step
            with torch.no_grad():
                _, metrics = ppo_loss(*agent(batch.obs), batch, agent.beta, args)
            agent.beta.fill_(adapt(agent.beta.item(), metrics["kl"].item(), args.target_kl))
        agent.obs_stats.update(batch.obs)  # not before: the update must see what the rollout saw

        # log
        steps += B
        row = {name: torch.stack([metrics[name] for metrics in history]).mean().item() for name in history[0]}
        for name, x in {"obs": obs, "final_obs": final_obs, "reward": rewards, **row}.items():
            if not np.isfinite(x).all():  # stop before it reaches a checkpoint
                raise FloatingPointError(f"{name} is {np.extract(~np.isfinite(x), x)[0]} before step {steps}")
        row["beta"] = agent.beta.item()
        row["explained_variance"] = 1 - ((returns - values[:T]).var() / returns.var()).item()
        row["episode_return"], row["episode_length"] = np.mean(episodes or [[math.nan] * 2], axis=0)
        row["learning_rate"] = optimizer.param_groups[0]["lr"]
        row["steps_per_second"] = B / (time.perf_counter() - start)
        log.append({"steps": steps} | row)
        for name, metric in row.items():
            writer.add_scalar(name, metric, steps)
        writer.flush()  # a checkpoint must not be ahead of its curves
        if args.track:
            wandb.log(log[-1])
        shown = ("episode_return", "kl", "entropy", "explained_variance", "beta", "value_loss")
        status = "  ".join(f"{name} {row[name]:.3g}" for name in shown)
        bar.set_postfix_str(status, refresh=False)
        bar.update(steps - bar.n)
        if bar.disable and (iteration + 1) % math.ceil(num_iterations / 20) == 0:  # not on a terminal
            print(f"{steps:,} steps  {row['steps_per_second']:,.0f} steps/s  {status}", flush=True)

    # wrap up
    bar.close()
    envs.close()
    save(run_dir, args, num_iterations, agent, optimizer, episodes)
    if args.eval_episodes:
        log[-1]["eval_return"] = report(agent, args, run_dir)
        writer.add_scalar("eval_return", log[-1]["eval_return"], steps)
    writer.close()
    if args.track:
        wandb.log(log[-1] | {path.stem: wandb.Video(str(path)) for path in run_dir.glob("videos/*.mp4")})
        wandb.finish()
    return agent, log


# That was the algorithm; from here on: flags, folders, checkpoints, and the command line.


def refuse(mistake: str) -> NoReturn:
    """Say in one line what is wrong, and exit."""
    print(f"{Path(__file__).name}: {' '.join(mistake.split())}", file=sys.stderr)
    raise SystemExit(2)


def check(args: Args) -> None:
    """Refuse arguments that cannot work, before anything is created."""
    highest = {"gamma": 1, "gae_lambda": 1, "threads": 1024, "seed": 2**32 - 1, "max_grad_norm": math.inf}
    highest["vf_clip_coef"] = math.inf
    for name, value in vars(args).items():
        low = 1 if name.startswith(("num_", "total_", "update_", "threads")) else 0  # counts start at 1
        high = highest.get(name, 10**12)
        low, high = (-20, 20) if name == "log_std_init" else (low, high)
        if not isinstance(value, str) and not low <= value <= high:  # NaN lies in no range
            refuse(f"--{name.replace('_', '-')} {value} is not between {low} and {high}")
    B = args.num_steps * args.num_envs
    if args.total_timesteps < B:
        refuse(f"--total-timesteps {args.total_timesteps} is less than a rollout of {B} steps")
    if B % args.num_minibatches or B // args.num_minibatches < 2:
        refuse(f"--num-minibatches {args.num_minibatches} does not divide {B} steps into equal parts of 2+")
    if args.resume:
        saved = load(args.resume)["args"]
        for name in ("env_id", "seed", "num_envs", "num_steps", "log_std_init", "beta"):
            if getattr(args, name) != getattr(saved, name):
                refuse(f"--{name.replace('_', '-')} cannot change: {args.resume} has {getattr(saved, name)}")


def pick_device(name: str) -> torch.device:
    """The device of that name; auto is the first accelerator, or else the CPU."""
    kind = torch.accelerator.current_accelerator().type if torch.accelerator.is_available() else "cpu"
    devices = [f"{kind}:{i}" for i in range(torch.accelerator.device_count())] + ["cpu"]
    if name not in ("auto", kind, *devices):
        refuse(f"--device {name} is not here; there is {', '.join(devices)}")
    return torch.device(devices[0] if name in ("auto", kind) else name)


def make_run_dir(args: Args) -> tuple[Path, FileLock]:
    """The run's folder, new unless it is resumed, with args.json in it, and the lock that makes it ours."""
    name = f"{args.env_id}__{Path(__file__).stem}__{args.seed}__{datetime.now():%Y%m%d-%H%M%S-%f}"
    run_dir = Path(args.resume or args.run_dir or "runs/" + re.sub(r"[^\w-]", "-", name))
    try:
        run_dir.mkdir(parents=True, exist_ok=bool(args.resume))
        (lock := FileLock(run_dir / "lock", is_singleton=True)).acquire(blocking=False)  # reentrant
        (run_dir / "args.json").write_text(json.dumps(asdict(args), indent=2) + "\n")
    except OSError as error:
        refuse(f"{run_dir}: {error.strerror or 'another process is at work there'}")  # a taken lock has none
    return run_dir, lock


def save(run_dir: Path, args: Args, iteration: int, agent: Agent, optimizer: Adam, episodes: deque) -> None:
    """Write the checkpoint; killed at any moment, this leaves a whole one, the old or the new."""
    checkpoint = {"script": Path(__file__).name, "args": asdict(args), "iteration": iteration}
    checkpoint |= {"agent": agent.state_dict(), "optimizer": optimizer.state_dict()}
    content = io.BytesIO()  # torch.save's own error on a full disk is cryptic
    torch.save(checkpoint | {"episodes": list(episodes)}, content)
    with open(run_dir / "checkpoint.tmp", "wb") as file:
        file.write(content.getbuffer())
        file.flush()
        os.fsync(file.fileno())
    os.replace(file.name, run_dir / "checkpoint.pt")


def load(run_dir: str, **parts: nn.Module | Adam) -> dict:
    """What save() wrote, after restoring the given parts; no code that the file may hold is run."""
    path = Path(run_dir) / "checkpoint.pt"
    try:
        if damaged := zipfile.ZipFile(path).testzip():
            raise ValueError(f"{damaged} is damaged")
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        if checkpoint["script"] != Path(__file__).name:
            raise ValueError(f"it was written by {checkpoint['script']}")
        for name, part in parts.items():
            part.load_state_dict(checkpoint[name])
        checkpoint["args"] = Args(**checkpoint["args"])
    except Exception as error:  # no file, half a file, or one that does not fit
        refuse(f"{path} cannot be used: {' '.join((str(error) or repr(error)).split()).partition('. ')[0]}")
    return checkpoint


def report(agent: Agent, args: Args, run_dir: Path) -> float:
    """Evaluate and print the returns; then film one more episode, if asked to."""
    returns = evaluate(agent, args)
    mean = float(np.mean(returns))
    print("returns of evaluation:", *(f"{episode_return:g}" for episode_return in returns))
    print(f"mean return {mean:g} in {len(returns)} episodes of evaluation; see {run_dir}", flush=True)
    if args.capture_video:
        try:
            evaluate(agent, replace(args, eval_episodes=1), run_dir / "videos")
        except (Exception, SystemExit) as error:  # no display or no render_mode, say: no reason to fail
            print(f"no video: {type(error).__name__}: {error}", file=sys.stderr)
    return mean


def evaluate_run(args: Args) -> None:
    """Evaluate the agent that is in the checkpoint of args.evaluate."""
    check(args)
    torch.set_num_threads(args.threads)
    agent = Agent(make_envs(args, 1)).to(pick_device(args.device))
    load(args.evaluate, agent=agent)
    report(agent, replace(args, eval_episodes=args.eval_episodes or Args.eval_episodes), Path(args.evaluate))


def main() -> None:
    """Train, go on with a run, or evaluate it, as the command line says."""
    if any(flag.endswith("=") or not flag for flag in sys.argv[1:]):  # --resume=$A_VARIABLE_THAT_IS_NOT_SET
        refuse("an empty value on the command line")
    args = tyro.cli(Args, description=__doc__)
    if sum(map(bool, (args.run_dir, args.resume, args.evaluate))) > 1:
        refuse("--run-dir, --resume and --evaluate exclude each other")
    if folder := args.resume or args.evaluate:
        saved = replace(load(folder)["args"], resume=args.resume, evaluate=args.evaluate)
        args = tyro.cli(Args, description=__doc__, default=saved)
    evaluate_run(args) if args.evaluate else train(args)


if __name__ == "__main__":
    main()
