"""REINFORCE with a learned baseline, for discrete actions, the whole algorithm in one file.

    python reinforce_baseline.py                               # CartPole-v1, 200,000 steps
    python reinforce_baseline.py --no-baseline --seed 2        # --help lists every flag
    git diff --no-index reinforce_baseline.py ppo_discrete.py  # what PPO adds to REINFORCE

Shapes  T steps of N envs are B = T * N samples.
        What describes a state (obs, values) has T + 1 rows, what describes a step (rewards, dones) has T.

Tags    [D08] marks the line with detail 8 of docs/details.md; other letters, as in [E1], are additions.
"""

import json
import math
import random
import re
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import NamedTuple, NoReturn

import gymnasium as gym
import numpy as np
import torch
import tyro
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from gymnasium.vector import AutoresetMode
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, Independent
from torch.nn.utils import clip_grad_norm_
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm


@dataclass
class Args:
    env_id: str = "CartPole-v1"  # gymnasium id; "module:Name-v0" imports the module first
    seed: int = 1  # of everything random
    device: str = "cpu"  # cpu, cuda, cuda:1, mps, or auto: an accelerator if there is one
    threads: int = 1  # on the CPU; small networks are fastest with 1
    run_dir: str = ""  # a new folder; default: runs/<env>__<script>__<seed>__<time>
    eval_episodes: int = 10  # episodes played after training
    eval_greedy: bool = False  # evaluate the most probable actions instead of sampled ones

    total_timesteps: int = 200_000  # env steps, all envs together
    num_envs: int = 4  # envs stepped together
    num_steps: int = 64  # steps of each env in a rollout
    learning_rate: float = 3e-3  # of Adam
    anneal_lr: bool = True  # linearly towards zero
    gamma: float = 0.99  # discount factor
    gae_lambda: float = 1.0  # 1 is Monte Carlo, 0 is one-step TD
    baseline: bool = True  # subtract the value from the return
    norm_adv: bool = False  # normalise advantages, in each rollout
    vf_coef: float = 0.5  # weight of the value loss
    ent_coef: float = 0.01  # weight of the entropy bonus
    max_grad_norm: float = 0.5  # of all gradients together (inf: off)


class Batch(NamedTuple):
    """What an update sees, flattened: (B, ...)."""

    obs: Tensor
    actions: Tensor
    advantages: Tensor
    returns: Tensor  # targets of the critic


def make_envs(args: Args, num_envs: int) -> gym.vector.VectorEnv:
    """num_envs copies of args.env_id, stepped together; observations are flattened to vectors."""
    same_step = {"autoreset_mode": AutoresetMode.SAME_STEP}  # no step is spent on a reset
    flatten = [gym.wrappers.FlattenObservation]
    try:
        envs = gym.make_vec(args.env_id, num_envs, "sync", vector_kwargs=same_step, wrappers=flatten)  # [D01]
    except (gym.error.Error, ImportError) as error:
        refuse(f"--env-id {args.env_id}: {error}")
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP  # the rollout relies on it
    obs_space, action_space = envs.single_observation_space, envs.single_action_space
    if not isinstance(obs_space, Box):
        refuse(f"{args.env_id}: {obs_space} observations, which cannot be flattened to a vector")
    if not isinstance(action_space, Discrete | MultiDiscrete) or np.any(action_space.start):
        refuse(f"{args.env_id}: {action_space} actions, not (Multi)Discrete from 0 (Box: ppo_continuous.py)")
    return envs


def layer_init(layer: nn.Module, gain: float = 2**0.5) -> nn.Linear:
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


class Agent(nn.Module):
    """Actor and critic: obs (..., obs_dim) -> distribution of actions, value (...)."""

    def __init__(self, envs: gym.vector.VectorEnv):
        super().__init__()
        obs_dim, actions = envs.single_observation_space.shape[0], envs.single_action_space
        choices = torch.as_tensor(actions.n if isinstance(actions, Discrete) else actions.nvec)
        # (n,) or (components, n): components with fewer choices than the largest leave logits unused.
        self.register_buffer("valid", torch.arange(choices.max()) < choices[..., None])
        self.actor = mlp(obs_dim, self.valid.numel(), gain=0.01)  # [D13] apart from the critic
        self.critic = mlp(obs_dim, 1, gain=1.0)

    def forward(self, obs: Tensor) -> tuple[Distribution, Tensor]:
        obs = obs.float()
        logits = torch.where(self.valid, self.actor(obs).unflatten(-1, self.valid.shape), -torch.inf)
        dist = Independent(Categorical(logits=logits, validate_args=False), self.valid.dim() - 1)  # [D37]
        return dist, self.critic(obs).squeeze(-1)


def compute_gae(rewards: Tensor, values: Tensor, dones: Tensor, gamma: float, gae_lambda: float) -> Tensor:
    """Generalized advantage estimation (arXiv 1506.02438).

    rewards and dones (T, N), values (T + 1, N) -> advantages (T, N).
    """
    advantages, advantage = torch.zeros_like(rewards), torch.zeros_like(rewards[0])
    for t in reversed(range(len(rewards))):
        alive = 1.0 - dones[t]
        delta = rewards[t] + gamma * alive * values[t + 1] - values[t]
        advantages[t] = advantage = delta + gamma * gae_lambda * alive * advantage  # [D05]
    return advantages


def reinforce_loss(dist: Distribution, value: Tensor, batch: Batch, args: Args) -> tuple[Tensor, dict]:
    """Policy gradient with a baseline (Williams 1992), value loss and entropy bonus.

    dist and value (B,) are the current agent's for batch.obs -> scalar loss, metrics without gradient.
    """
    advantages = batch.advantages if args.baseline else batch.returns
    if args.norm_adv:
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)  # [D07]
    policy_loss = -(dist.log_prob(batch.actions) * advantages).mean()
    value_loss = 0.5 * ((value - batch.returns) ** 2).mean()
    entropy = dist.entropy().mean()
    loss = policy_loss + args.vf_coef * value_loss - args.ent_coef * entropy  # [D10]
    metrics = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}
    return loss, {name: metric.detach() for name, metric in metrics.items()}  # [D12]


def explained_variance(values: Tensor, returns: Tensor) -> float:
    """1 - Var(returns - values) / Var(returns): 1 is perfect, 0 a constant guess, NaN for equal returns."""
    variance = returns.var()
    return (1 - (returns - values).var() / variance).item() if variance > 0 else math.nan


def buffer(rows: int, space: gym.Space, device: torch.device) -> Tensor:
    """Zeros (rows, *space.shape) of the space's own type, except that all floats are float32."""
    is_float = np.issubdtype(space.dtype, np.floating)
    dtype = torch.float32 if is_float else torch.as_tensor(np.empty(0, space.dtype)).dtype
    return torch.zeros((rows, *space.shape), dtype=dtype, device=device)


def env_seeds(num_envs: int, *key: int) -> list[int]:
    """Seeds from a key: the run's, and 0 to train, 1 to evaluate (seed + i would be shared by other runs)."""
    return np.random.SeedSequence(key).generate_state(num_envs).tolist()


def refuse(mistake: str) -> NoReturn:
    """Say in one line what is wrong, and exit with code 2."""
    print(f"{Path(__file__).name}: {' '.join(mistake.split())}", file=sys.stderr)
    raise SystemExit(2)


def check(args: Args) -> None:
    """Refuse arguments that cannot be trained with, before anything is made."""
    highest = {"gamma": 1, "gae_lambda": 1, "threads": 1024, "seed": 2**32 - 1, "max_grad_norm": math.inf}
    for name, value in vars(args).items():
        low = 1 if Args.__annotations__[name] is int and name != "seed" else 0  # counts start at 1
        high = highest.get(name, 10**12)
        if not isinstance(value, str) and not low <= value <= high:  # NaN lies in no range
            refuse(f"--{name.replace('_', '-')} {value} is not between {low} and {high}")
    B = args.num_steps * args.num_envs
    if args.total_timesteps < B:
        refuse(f"--total-timesteps {args.total_timesteps} is less than a rollout of {B} steps")
    if B < 2:
        refuse("--num-steps 1 --num-envs 1 makes rollouts of one step, too short to learn from")


def pick_device(name: str) -> torch.device:
    """The device of that name; auto is the first accelerator, or else the CPU."""
    kind = torch.accelerator.current_accelerator().type if torch.accelerator.is_available() else "cpu"
    devices = [f"{kind}:{i}" for i in range(torch.accelerator.device_count())] + ["cpu"]
    if name not in ("auto", kind, *devices):
        refuse(f"--device {name} is not here; there is {', '.join(devices)}")
    return torch.device(devices[0] if name == "auto" else name)


def make_run_dir(args: Args) -> Path:
    """A new folder for everything that the run writes, args.json first."""
    name = f"{args.env_id}__{Path(__file__).stem}__{args.seed}__{datetime.now():%Y%m%d-%H%M%S-%f}"
    run_dir = Path(args.run_dir or "runs/" + re.sub(r"[^\w-]", "-", name))
    try:
        run_dir.mkdir(parents=True)
    except OSError as error:
        refuse(f"--run-dir {run_dir}: {error.strerror}")
    (run_dir / "args.json").write_text(json.dumps(asdict(args), indent=2) + "\n")
    return run_dir


@torch.no_grad()
def evaluate(agent: Agent, args: Args) -> list[float]:
    """Returns of eval_episodes whole episodes, each in an env of its own: short ones count no more often."""
    envs = make_envs(args, args.eval_episodes)
    device = next(agent.parameters()).device
    obs, _ = envs.reset(seed=env_seeds(envs.num_envs, args.seed, 1))
    score, running = np.zeros(envs.num_envs), np.ones(envs.num_envs, dtype=bool)
    while running.any():
        dist, _ = agent(torch.as_tensor(obs, dtype=torch.float32).to(device))
        action = dist.mode if args.eval_greedy else dist.sample()
        obs, reward, terminated, truncated, _ = envs.step(action.cpu().numpy())
        score += reward * running
        running &= ~(terminated | truncated)
    envs.close()
    return score.tolist()


def train(args: Args) -> tuple[Agent, list[dict[str, float]]]:
    """Train from scratch -> the agent, and a dict of metrics per iteration."""
    # setup
    check(args)
    T, N = args.num_steps, args.num_envs
    B = T * N
    num_iterations = int(args.total_timesteps // B)
    device = pick_device(args.device)
    torch.set_num_threads(args.threads)
    envs = make_envs(args, N)
    random.seed(args.seed)  # for envs that draw from it, as from NumPy's
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    agent = Agent(envs).to(device)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5, fused=True)  # [D03]
    run_dir = make_run_dir(args)
    writer = SummaryWriter(run_dir)
    print(f"{args.env_id} on {device}, {num_iterations * B} steps, logging to {run_dir}", flush=True)

    # storage
    obs = buffer(T + 1, envs.observation_space, device)
    actions = buffer(T, envs.action_space, device)
    rewards, dones = torch.zeros(2, T, N, device=device)
    values = torch.zeros(T + 1, N, device=device)
    score, episode_returns, log = np.zeros(N), deque(maxlen=100), []

    obs[T] = torch.as_tensor(envs.reset(seed=env_seeds(N, args.seed, 0))[0])
    start = time.perf_counter()
    bar = tqdm(total=num_iterations * B, unit=" steps", unit_scale=True, disable=None)  # only on a terminal
    for iteration in range(num_iterations):
        remaining = 1 - iteration / num_iterations
        if args.anneal_lr:
            optimizer.param_groups[0]["lr"] = args.learning_rate * remaining  # [D04]

        # rollout
        with torch.no_grad():
            obs[0] = obs[T]  # carry on from where the last rollout stopped
            for t in range(T):
                dist, values[t] = agent(obs[t])
                actions[t] = dist.sample()
                next_obs, reward, terminated, truncated, infos = envs.step(actions[t].cpu().numpy())
                done, timeout = terminated | truncated, truncated & ~terminated
                dones[t] = torch.as_tensor(done)
                rewards[t] = torch.as_tensor(reward)
                if timeout.any():  # not a terminal state: the last obs still has a value
                    final_obs = torch.as_tensor(np.stack(infos["final_obs"][timeout])).to(obs)
                    rewards[t, timeout] += args.gamma * agent(final_obs)[1]  # [E1]
                obs[t + 1] = torch.as_tensor(next_obs)
                score += reward
                episode_returns.extend(score[done])
                score[done] = 0
            _, values[T] = agent(obs[T])

        # update
        advantages = compute_gae(rewards, values, dones, args.gamma, args.gae_lambda)
        returns = advantages + values[:T]
        batch = Batch(obs[:T], actions, advantages, returns)
        batch = Batch(*(x.flatten(0, 1) for x in batch))
        dist, value = agent(batch.obs)
        loss, metrics = reinforce_loss(dist, value, batch, args)
        optimizer.zero_grad()
        loss.backward()
        metrics["grad_norm"] = clip_grad_norm_(agent.parameters(), args.max_grad_norm)  # [D11]
        optimizer.step()

        # log
        steps = (iteration + 1) * B
        row = {name: metric.item() for name, metric in metrics.items()}
        row["explained_variance"] = explained_variance(values[:T], returns)
        row["episode_return"] = sum(episode_returns) / len(episode_returns) if episode_returns else math.nan
        row["learning_rate"] = optimizer.param_groups[0]["lr"]
        row["steps_per_second"] = steps / (time.perf_counter() - start)
        for name, metric in row.items():
            writer.add_scalar(name, metric, steps)
        log.append({"steps": steps} | row)
        shown = ("episode_return", "entropy", "value_loss", "explained_variance")
        status = "  ".join(f"{name} {row[name]:.3g}" for name in shown)
        bar.set_postfix_str(status, refresh=False)
        bar.update(B)
        if bar.disable and 20 * (iteration + 1) % num_iterations < 20:  # 20 lines a run
            print(f"{steps:,} steps  {row['steps_per_second']:,.0f} steps/s  {status}", flush=True)

    # wrap up
    bar.close()
    envs.close()
    log[-1]["eval_return"] = eval_return = float(np.mean(evaluate(agent, args)))
    writer.add_scalar("eval_return", eval_return, steps)
    writer.close()
    print(f"mean return {eval_return:.1f} in {args.eval_episodes} episodes of evaluation; see {run_dir}")
    return agent, log


if __name__ == "__main__":
    train(tyro.cli(Args, description=__doc__))
