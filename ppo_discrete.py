# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "torch==2.13.0", "gymnasium[box2d,classic-control]==1.4.0", "numpy==2.4.6", "tyro==1.0.17",
#     "tensorboard==2.21.0", "tqdm==4.70.1", "filelock==4.2.11", "wandb==0.31.0", "moviepy==2.2.1",
# ]
# ///
"""Proximal Policy Optimization for discrete actions, the whole algorithm in one file.

    python ppo_discrete.py                                     # CartPole-v1, 500,000 steps
    python ppo_discrete.py --env-id LunarLander-v3 --seed 2    # --help lists every flag
    git diff --no-index reinforce_baseline.py ppo_discrete.py  # what PPO adds to REINFORCE

Shapes  T steps of N envs are B = T * N samples, which are cut into minibatches of M.
        What describes a state (obs, values) has T + 1 rows, what describes a step (rewards, dones) has T.

Tags    [D08] marks the line with detail 8 of docs/details.md; other letters, as in [E1], are in there, too.
"""

import hashlib
import io
import json
import math
import os
import random
import re
import sys
import time
import traceback
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
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import FlattenObservation, RecordVideo
from torch import Tensor, nn, optim
from torch.distributions import Categorical, Distribution, Independent
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

WRITER = f"{Path(__file__).name} 1.0"  # of checkpoints, which no other script and version can use


@dataclass
class Args:
    env_id: str = "CartPole-v1"  # id in gymnasium's registry; "module:id" imports the module first
    env_kwargs: str = "{}"  # keyword arguments of the env's constructor, as JSON
    seed: int = 1  # all random numbers follow from it
    total_timesteps: int | float = 500_000  # env steps of all envs together, in whole rollouts
    num_envs: int = 4  # number of envs that are stepped together
    num_steps: int = 128  # steps of each env in a rollout
    learning_rate: float = 2.5e-4  # learning rate of Adam
    anneal_lr: bool = True  # the learning rate falls linearly towards zero
    gamma: float = 0.99  # discount factor
    gae_lambda: float = 0.95  # 1 is Monte Carlo up to the rollout's end, 0 is one-step TD
    update_epochs: int = 4  # passes over a rollout
    num_minibatches: int = 4  # gradient steps in a pass
    norm_adv: bool = True  # advantages are normalised, in each minibatch
    clip_coef: float = 0.2  # ratios beyond 1 +- this gain nothing (inf: off)
    anneal_clip: bool = False  # clip_coef falls linearly towards zero
    vf_clip_coef: float = 0.2  # values further than this from the old ones gain nothing (inf: off)
    vf_coef: float = 0.5  # weight of the value loss
    ent_coef: float = 0.01  # weight of the entropy bonus
    max_grad_norm: float = 0.5  # greatest norm of all gradients together (inf: off)
    target_kl: float = math.inf  # an epoch that ends with a KL above this is the last (inf: off)

    device: str = "cpu"  # cpu, cuda, cuda:1, mps, or auto: an accelerator if there is one
    threads: int = 1  # number of CPU threads; small networks are fastest with 1
    compile: bool = False  # torch.compile makes the update faster, which pays in long runs
    async_envs: bool = False  # each env gets a process of its own, which pays for slow ones
    run_dir: str = ""  # a new folder; default: runs/<env>__<script>__<seed>__<time>
    resume: str = ""  # folder of the run to continue; its flags hold unless given again
    evaluate: str = ""  # folder of the run to evaluate, instead of training
    checkpoints: int = 10  # saves on the way, at most; new envs start at each (0: only the end is saved)
    track: bool = False  # the run is logged to Weights & Biases, too
    capture_video: bool = False  # one more episode is filmed, after the evaluation
    eval_episodes: int = 10  # episodes played after training (0: none, and no video)
    eval_greedy: bool = False  # the evaluation takes the most probable actions instead of sampled ones


class Batch(NamedTuple):
    """What an update sees, flattened: (B, ...), or (M, ...) for a minibatch."""

    obs: Tensor
    actions: Tensor
    logprobs: Tensor  # of the policy that acted
    advantages: Tensor
    returns: Tensor  # targets of the critic
    values: Tensor  # of the critic at rollout time


def compute_gae(rewards, values, next_values, dones, gamma: float, gae_lambda: float) -> np.ndarray:
    """Generalized advantage estimation (arXiv 1506.02438), from arrays (T, N) to advantages (T, N).

    next_values are those of the states that the steps lead to, 0 where that is the end.
    """
    advantages = rewards + gamma * next_values - values  # TD errors: the advantages of one step
    for t in reversed(range(len(rewards) - 1)):  # the last step's is its TD error: nothing follows it
        advantages[t] += gamma * (1 - dones[t]) * gae_lambda * advantages[t + 1]  # [D05]
    return advantages


def ppo_loss(dist: Distribution, value: Tensor, batch: Batch, clip_coef: float, args: Args) -> tuple:
    """Clipped surrogate objective with value loss and entropy bonus (arXiv 1707.06347, equation 9).

    dist and value are the current agent's, for each of batch.obs -> scalar loss, metrics without gradient.
    """
    log_ratio = dist.log_prob(batch.actions) - batch.logprobs
    ratio = log_ratio.exp()
    clipped_ratio = ratio.clamp(1 - clip_coef, 1 + clip_coef)
    advantages = batch.advantages
    if args.norm_adv:
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)  # [D07]
    policy_loss = -torch.min(ratio * advantages, clipped_ratio * advantages).mean()  # [D08]
    clipped_value = batch.values + (value - batch.values).clamp(-args.vf_clip_coef, args.vf_clip_coef)
    value_error = torch.max((value - batch.returns) ** 2, (clipped_value - batch.returns) ** 2)  # [D09]
    value_loss = 0.5 * value_error.mean()
    entropy = dist.entropy().mean()
    loss = policy_loss + args.vf_coef * value_loss - args.ent_coef * entropy  # [D10]
    kl = (ratio - 1 - log_ratio).mean()  # KL(old, new): an unbiased estimate that is never negative
    clip_frac = (ratio != clipped_ratio).float().mean()
    metrics = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}
    metrics |= {"kl": kl, "clip_frac": clip_frac}
    return loss, {name: metric.detach() for name, metric in metrics.items()}  # [D12]


def layer_init(layer: nn.Module, gain: float = 2**0.5) -> nn.Module:
    """Orthogonal weights scaled by gain, zero biases."""
    nn.init.orthogonal_(layer.weight, gain)  # [D02]
    nn.init.zeros_(layer.bias)
    return layer


def mlp(in_features: int, out_features: int, gain: float) -> nn.Sequential:
    """Two tanh layers of 64 units and a linear head, whose weights have the given gain."""
    body = (layer_init(nn.Linear(in_features, 64)), nn.Tanh(), layer_init(nn.Linear(64, 64)), nn.Tanh())
    return nn.Sequential(*body, layer_init(nn.Linear(64, out_features), gain))


class Agent(nn.Module):
    """Actor and critic: obs (..., obs_dim) -> distribution of actions, value (...)."""

    def __init__(self, envs: gym.vector.VectorEnv):
        super().__init__()
        obs_dim, actions = envs.single_observation_space.shape[0], envs.single_action_space
        choices = torch.as_tensor(actions.n if isinstance(actions, Discrete) else actions.nvec)
        self.valid = torch.arange(choices.max()) < choices[..., None]  # (n,) or (components, n)
        self.actor = mlp(obs_dim, self.valid.numel(), gain=0.01)  # [D13] a network of its own
        self.actor[-1].bias.data[~self.valid.flatten()] = -1e9  # no such choices: neither sampled nor trained
        self.critic = mlp(obs_dim, 1, gain=1.0)

    def logits(self, obs: Tensor) -> Tensor:
        return self.actor(obs).unflatten(-1, self.valid.shape)

    def forward(self, obs: Tensor) -> tuple[Distribution, Tensor]:
        dist = Categorical(logits=self.logits(obs), validate_args=False)
        return Independent(dist, self.valid.dim() - 1), self.critic(obs).squeeze(-1)  # [D37]

    def act(self, obs: Tensor, greedy: bool = False) -> Tensor:
        """Sampled actions, or the most probable ones; faster than through a Distribution."""
        logits = self.logits(obs)
        noise = torch.empty_like(logits).exponential_().log()  # softmax's samples are argmax(logits - this)
        return (logits if greedy else logits - noise).argmax(-1)


def compute_gradients(agent: Agent, batch: Batch, clip_coef: float, args: Args) -> dict:
    """Add the gradients of ppo_loss to the agent's own -> metrics. This is what --compile compiles."""
    dist, value = agent(batch.obs)
    loss, metrics = ppo_loss(dist, value, batch, clip_coef, args)
    loss.backward()
    return metrics


class Flatten(FlattenObservation):
    """Observations as vectors, and no infos: those that differ between envs could not be merged."""

    def reset(self, **kwargs) -> tuple[np.ndarray, dict]:
        return super().reset(**kwargs)[0], {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        return *super().step(action)[:4], {}


def make_envs(args: Args, num_envs: int, video_dir: Path | None = None) -> gym.vector.VectorEnv:
    """num_envs copies of args.env_id, stepped together; observations are flattened to vectors."""
    vector_kwargs = {"autoreset_mode": AutoresetMode.SAME_STEP}  # no step is spent on a reset
    mode, wrappers, kwargs = "async" if args.async_envs else "sync", [Flatten], {}
    if video_dir:
        film = partial(RecordVideo, video_folder=str(video_dir), episode_trigger=lambda episode: episode == 0)
        mode, wrappers, kwargs = "sync", [film, Flatten], {"render_mode": "rgb_array"}
    try:
        kwargs |= json.loads(args.env_kwargs)
        envs = gym.make_vec(args.env_id, num_envs, mode, vector_kwargs, wrappers, **kwargs)  # [D01]
    except Exception as error:  # of the env's own code, too
        line, game = traceback.extract_tb(error.__traceback__)[-1], args.env_id.startswith("ALE/")
        where = "ppo_atari.py plays it" if game else f"{line.filename}, line {line.lineno}"
        refuse(f"--env-id {args.env_id} --env-kwargs {args.env_kwargs}: {error!r} ({where})")
    obs_space, action_space = envs.single_observation_space, envs.single_action_space
    if not isinstance(obs_space, Box):
        refuse(f"{args.env_id}: {obs_space} observations, which cannot be flattened to a vector")
    if not isinstance(action_space, Discrete | MultiDiscrete) or np.any(action_space.start):
        refuse(f"{args.env_id}: {action_space} actions, not (Multi)Discrete from 0 (Box: ppo_continuous.py)")
    return envs


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
    while running.any():
        obs = torch.as_tensor(obs, dtype=torch.float32, device=next(agent.parameters()).device)
        action = agent.act(obs, args.eval_greedy)
        obs, reward, terminated, truncated, _ = envs.step(action.cpu().numpy())
        score += reward * running
        running &= ~(terminated | truncated)
    envs.close()
    return score.tolist()


def train(args: Args, on_iteration=None) -> tuple[Agent, list[dict[str, float]]]:
    """Train, or go on with args.resume -> the agent, and a dict of metrics per iteration.

    on_iteration(metrics) is called after each iteration, which is the last one if it returns True.
    """
    # setup
    check(args)
    T, N = args.num_steps, args.num_envs
    B = T * N
    M = B // args.num_minibatches
    num_iterations = int(args.total_timesteps // B)  # from Python, total_timesteps may be 1e6
    device = pick_device(args.device)
    on_device = partial(torch.as_tensor, device=device)  # on the CPU, this shares memory
    torch.set_num_threads(args.threads)
    seed_everything(args.seed, "weights")
    envs = make_envs(args, 1)  # shows the spaces
    agent = Agent(envs).to(device)
    parameters = list(agent.parameters())
    optimizer = optim.Adam(parameters, lr=args.learning_rate, eps=1e-5, fused=True)  # [D03]
    if args.compile:
        torch._dynamo.config.trace_autograd_ops = True  # or it would stop short of loss.backward()
    gradients = torch.compile(compute_gradients, fullgraph=True, disable=not args.compile)
    # A save cuts episodes off. Were it not rare, long ones would never be counted, only short ones.
    longest = envs.spec.kwargs.get("max_episode_steps") or envs.spec.max_episode_steps or 0
    save_every = math.ceil(max(num_iterations / max(1, args.checkpoints), 10 * longest / T))
    run_dir, lock = make_run_dir(args)
    past = load(run_dir, args, agent=agent, optimizer=optimizer) if args.resume else {}
    first_iteration = past.get("iteration", 0)
    steps, log = first_iteration * B, []
    episodes = deque(past.get("episodes", ()), maxlen=100)  # the last: iteration, return, length
    flags = json.dumps(asdict(args), indent=2).replace(": Infinity", ': "inf"')  # which JSON does not know
    (run_dir / "args.json").write_text(flags + "\n")
    writer = SummaryWriter(run_dir, purge_step=steps + 1 if args.resume else None)
    writer.add_text("args", f"<pre>{flags}</pre>", steps)
    if args.track:
        import wandb

        try:
            wandb.init(name=run_dir.resolve().name, config=asdict(args), dir=run_dir)
        except wandb.Error as error:
            refuse(f"--track: {error}")
        wandb.define_metric("*", step_metric="steps")
    print(f"{args.env_id} on {device}; --resume {run_dir} goes on from its last checkpoint", flush=True)

    # storage
    obs = np.zeros((T + 1, N, *envs.single_observation_space.shape), np.float32)
    final_obs = np.zeros_like(obs[0])
    actions = np.zeros((T, N, *envs.single_action_space.shape), np.int64)
    rewards, dones, final_values = np.zeros((3, T, N), np.float32)
    values = torch.zeros(T + 1, N, device=device)
    score, length = np.zeros((2, N))

    bar = tqdm(total=num_iterations * B, initial=steps, unit="", unit_scale=True, disable=None)
    for iteration in range(first_iteration, num_iterations):
        if (iteration - first_iteration) % save_every == 0:
            # A clean cut: what follows depends on nothing but what is saved, in a resumed run or not.
            if args.checkpoints:
                save(run_dir, args, iteration, agent, optimizer, episodes)
            seeds = seed_everything(args.seed, f"cut {iteration}", N)
            envs.close()
            envs = make_envs(args, N)  # [E2] new ones: an env may remember things across resets
            obs[T], _ = envs.reset(seed=seeds)  # the next rollout starts from row T
            score[:], length[:] = 0, 0
        remaining = 1 - iteration / num_iterations
        optimizer.param_groups[0]["lr"] = args.learning_rate * (remaining if args.anneal_lr else 1)  # [D04]
        clip_coef = args.clip_coef * (remaining if args.anneal_clip else 1)  # [X1]

        # rollout
        start = time.perf_counter()
        with torch.no_grad():
            obs[0] = obs[T]
            for t in range(T):
                actions[t] = agent.act(on_device(obs[t])).cpu()
                obs[t + 1], reward, terminated, truncated, infos = envs.step(actions[t])
                done, timeout = terminated | truncated, truncated & ~terminated
                rewards[t], dones[t], final_values[t] = reward, done, 0
                if timeout.any():  # the episode could go on from final_obs (obs[t + 1] is of the next one)
                    final_obs[timeout] = np.stack(infos["final_obs"][timeout])
                    final_values[t, timeout] = agent(on_device(final_obs[timeout]))[1].cpu()
                score += reward
                length += 1
                episodes.extend((iteration, float(score[n]), float(length[n])) for n in np.flatnonzero(done))
                score[done], length[done] = 0, 0
            # One pass is faster than T small ones; the weights are still those that acted.
            all_obs, all_actions = on_device(obs), on_device(actions)
            dist, values[:T] = agent(all_obs[:T])
            logprobs = dist.log_prob(all_actions)
            _, values[T] = agent(all_obs[T])

        # update
        old_values = values.cpu().numpy()
        next_values = np.where(dones, final_values, old_values[1:])  # [E1] 0 where terminated
        advantages = compute_gae(rewards, old_values[:T], next_values, dones, args.gamma, args.gae_lambda)
        returns = advantages + old_values[:T]
        batch = Batch(all_obs[:T], all_actions, logprobs, advantages, returns, values[:T])
        batch = Batch(*(on_device(x).flatten(0, 1) for x in batch))
        history = []
        for _ in range(args.update_epochs):
            for idx in on_device(np.random.permutation(B)).split(M):  # [D06]
                minibatch = Batch(*(x[idx] for x in batch))
                optimizer.zero_grad()
                metrics = gradients(agent, minibatch, clip_coef, args)  # loss.backward()
                metrics["grad_norm"] = nn.utils.clip_grad_norm_(parameters, args.max_grad_norm)  # [D11]
                optimizer.step()
                history.append(metrics)
            if metrics["kl"] > args.target_kl:  # [X3]
                break

        # log
        steps += B
        row = {name: torch.stack([step[name] for step in history]).mean().item() for name in history[0]}
        numbers = {"obs": obs, "final_obs": final_obs, "reward": rewards} | row | agent.state_dict()
        if broken := [name for name, x in numbers.items() if not torch.as_tensor(x).isfinite().all()]:
            raise FloatingPointError(f"{broken[0]} is not finite before step {steps}")  # before it is saved
        row["explained_variance"] = 1 - (batch.advantages.var() / batch.returns.var()).item()
        recent = [x for x in episodes if x[0] >= 0.8 * iteration] or list(episodes)[-1:]  # others are old
        _, row["episode_return"], row["episode_length"] = np.mean(recent or [[math.nan] * 3], axis=0)
        row["learning_rate"] = optimizer.param_groups[0]["lr"]
        row["steps_per_second"] = B / (time.perf_counter() - start)
        log.append({"steps": steps} | row)
        for name, metric in row.items():
            writer.add_scalar(name, metric, steps)
        writer.flush()  # a checkpoint must not be ahead of its curves
        if args.track:
            wandb.log(log[-1])
        bar.set_postfix_str(f"episode_return {row['episode_return']:.4g}", refresh=False)
        bar.update(B)
        if bar.disable and (num_iterations - 1 - iteration) % math.ceil(num_iterations / 20) == 0:
            shown = ("episode_return", "kl", "entropy", "explained_variance", "clip_frac", "value_loss")
            status = "  ".join(f"{name} {row[name]:.3g}" for name in shown)
            print(f"{steps:,} steps  {row['steps_per_second']:,.0f} steps/s  {status}", flush=True)
        if on_iteration and on_iteration(log[-1]):
            break

    # wrap up
    bar.close()
    envs.close()
    save(run_dir, args, steps // B, agent, optimizer, episodes)
    if args.eval_episodes:
        log = log or [{"steps": steps}]  # a run that was finished has no iteration left
        log[-1]["eval_return"] = report(agent, args, run_dir)
        writer.add_scalar("eval_return", log[-1]["eval_return"], steps)
        if args.track:
            wandb.log(log[-1] | {path.stem: wandb.Video(str(path)) for path in run_dir.glob("videos/*.mp4")})
    writer.close()
    if args.track:
        wandb.finish()
    return agent, log


# That was the algorithm; from here on: flags, folders, checkpoints, and the command line.


class Mistake(ValueError):
    """What was asked for cannot be done, and why, in one line."""


def refuse(mistake: str) -> NoReturn:
    """Raise it as a Mistake."""
    raise Mistake(" ".join(mistake.split()))


def check(args: Args) -> None:
    """Refuse arguments that cannot work, before anything is created."""
    counts = ("total_timesteps", "num_envs", "num_steps", "update_epochs", "num_minibatches", "threads")
    highest = {"gamma": 1, "gae_lambda": 1, "threads": 1024, "seed": 2**32 - 1, "max_grad_norm": math.inf}
    highest |= dict.fromkeys(("clip_coef", "vf_clip_coef", "target_kl"), math.inf)
    for name, value in vars(args).items():
        low, high = int(name in counts), highest.get(name, 10**12)
        text = isinstance(getattr(Args, name), str)
        if not (isinstance(value, str) if text else hasattr(value, "__float__") and low <= value <= high):
            wanted = "text" if text else f"between {low} and {high}"  # NaN lies in no range
            refuse(f"--{name.replace('_', '-')} {value} is not {wanted}")
    B = args.num_steps * args.num_envs
    if args.total_timesteps < B:
        refuse(f"--total-timesteps {args.total_timesteps} is less than a rollout of {B} steps")
    if B % args.num_minibatches or B // args.num_minibatches < 2:
        refuse(f"--num-minibatches {args.num_minibatches} does not divide {B} steps into equal parts of 2+")


def pick_device(name: str) -> torch.device:
    """The device of that name; auto is the first accelerator, or else the CPU."""
    kind = torch.accelerator.current_accelerator().type if torch.accelerator.is_available() else "cpu"
    devices = [f"{kind}:{i}" for i in range(torch.accelerator.device_count())] + ["cpu"]
    if name not in ("auto", kind, *devices):
        refuse(f"--device {name} is not here; there is {', '.join(devices)}")
    return torch.device(devices[0] if name in ("auto", kind) else name)


def make_run_dir(args: Args) -> tuple[Path, FileLock]:
    """The run's folder, without a checkpoint unless it is resumed, and the lock that makes it ours."""
    name = f"{args.env_id}__{Path(__file__).stem}__{args.seed}__{datetime.now():%Y%m%d-%H%M%S-%f}"
    run_dir = Path(args.resume or args.run_dir or "runs/" + re.sub(r"[^\w-]", "-", name))
    lock = FileLock(run_dir / "lock", blocking=False, is_singleton=True)  # the same process may take it twice
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except OSError as error:  # or another process is at work there
        refuse(f"{run_dir}: {error}")
    if (run_dir / "checkpoint.pt").exists() and not args.resume:
        refuse(f"{run_dir} holds a run, which --resume would continue")
    return run_dir, lock


def save(run_dir: Path, args: Args, iteration: int, agent: Agent, optimizer, episodes: deque) -> None:
    """Write the checkpoint; killed at any moment, this leaves a whole one, the old or the new."""
    checkpoint = {"writer": WRITER, "args": asdict(args), "iteration": iteration, "episodes": list(episodes)}
    checkpoint |= {"agent": agent.state_dict(), "optimizer": optimizer.state_dict()}
    content = io.BytesIO()  # torch.save's own error on a full disk is cryptic
    torch.save(checkpoint, content)
    with open(run_dir / "checkpoint.tmp", "wb") as file:
        file.write(content.getbuffer())
        file.write(hashlib.sha256(content.getbuffer()).digest())
        file.flush()
        os.fsync(file.fileno())
    os.replace(file.name, run_dir / "checkpoint.pt")


def load(run_dir: str | Path, resuming: Args | None = None, **parts: nn.Module | optim.Adam) -> dict:
    """What save() wrote, after restoring the given parts; no code that the file may hold is run."""
    path = Path(run_dir) / "checkpoint.pt"
    try:
        content = path.read_bytes()
        if hashlib.sha256(content[:-32]).digest() != content[-32:]:
            raise ValueError(f"it is damaged, or older than {WRITER}")
        checkpoint = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        if checkpoint["writer"] != WRITER:
            raise ValueError(f"it was written by {checkpoint['writer']}")
        saved = checkpoint["args"] = Args(**checkpoint["args"])
        for name in ("env_id", "seed", "num_envs", "num_steps"):
            if resuming and getattr(resuming, name) != getattr(saved, name):
                raise ValueError(f"--{name.replace('_', '-')} cannot change: it has {getattr(saved, name)}")
        for name, part in parts.items():
            part.load_state_dict(checkpoint[name])
        if resuming:  # Adam keeps a step and two moments of each weight, and a fused one trusts their layout
            for x, kept in parts["optimizer"].state.items():
                if [(y.shape, y.stride()) for y in kept.values()] != [((), ()), *[(x.shape, x.stride())] * 2]:
                    raise ValueError("the state of the optimizer does not fit")
    except Exception as error:  # no file, half a file, or one that does not fit
        refuse(f"{path} cannot be used: {' '.join((str(error) or repr(error)).split()).partition('. ')[0]}")
    return checkpoint


def report(agent: Agent, args: Args, run_dir: Path) -> float:
    """Evaluate and print the returns; then film one more episode, if asked to."""
    print(f"evaluation: {args.eval_episodes} episodes, each until it ends", flush=True)
    returns = evaluate(agent, args)
    mean = float(np.mean(returns))
    print("returns of evaluation:", *(f"{episode_return:g}" for episode_return in returns))
    print(f"mean return {mean:g} in {len(returns)} episodes of evaluation; see {run_dir}", flush=True)
    if args.capture_video:
        try:
            evaluate(agent, replace(args, eval_episodes=1), run_dir / "videos")
        except Exception as error:  # no display or no render_mode, say: no reason to fail
            print(f"no video: {type(error).__name__}: {error}", file=sys.stderr)
    return mean


def main() -> None:
    """Train, go on with a run, or evaluate it, as the command line says."""
    sys.path.append("")  # the current folder, where the module of an env may be
    if any(re.fullmatch(r"(--[\w-]+=)?", word) for word in sys.argv[1:]):  # --resume=$NOT_SET
        refuse("an empty value on the command line")
    args = given = tyro.cli(Args, description=__doc__)
    if sum(map(bool, (args.run_dir, args.resume, args.evaluate))) > 1:
        refuse("--run-dir, --resume and --evaluate exclude each other")
    if folder := args.resume or args.evaluate:  # again, with the saved flags as defaults
        args = tyro.cli(Args, description=__doc__, default=load(folder)["args"])
        if ":" in args.env_id and args.env_id != given.env_id:
            refuse(f"{folder} would import code; if you trust it, add --env-id {args.env_id}")
    if not args.evaluate:
        train(args)
        return
    check(args)
    torch.set_num_threads(args.threads)
    agent = Agent(make_envs(args, 1)).to(pick_device(args.device))
    load(folder, agent=agent)
    report(agent, replace(args, eval_episodes=args.eval_episodes or Args.eval_episodes), Path(folder))


if __name__ == "__main__":
    try:
        main()
    except Mistake as mistake:
        print(f"{Path(__file__).name}: {mistake}", file=sys.stderr)
        sys.exit(2)
