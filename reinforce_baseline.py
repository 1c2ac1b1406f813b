# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "torch==2.13.0",
#     "gymnasium[box2d,classic-control]==1.4.0",
#     "numpy==2.4.6",
#     "tyro==1.0.17",
#     "tensorboard==2.21.0",
#     "tqdm==4.70.1",
#     "filelock==4.2.11",
#     "wandb==0.31.0",
#     "moviepy==2.2.1",
# ]
# ///
"""REINFORCE with a learned baseline, for discrete actions, the whole algorithm in one file.

    python reinforce_baseline.py                               # CartPole-v1, 200,000 steps
    python reinforce_baseline.py --no-baseline --seed 2        # --help lists every flag
    git diff --no-index reinforce_baseline.py ppo_discrete.py  # what PPO adds to REINFORCE

Shapes  T steps of N envs are B = T * N samples.
        Arrays of states (obs, values) have T + 1 rows, arrays of steps (rewards, dones) have T.

Tags    [D08] marks the line of detail 8 in docs/details.md; other letters are our own additions.
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
from collections.abc import Callable
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

WRITER = f"{Path(__file__).name} 1.0"  # load() accepts only checkpoints that name this writer


@dataclass
class Args:
    # the env
    env_id: str = "CartPole-v1"  # id in gymnasium's registry; "module:id" imports module first
    env_kwargs: str = "{}"  # keyword arguments of the env's constructor, as JSON
    seed: int = 1  # all random numbers follow from it
    total_timesteps: int | float = 200_000  # steps of all envs together, cut to whole rollouts
    num_envs: int = 1  # number of envs that are stepped together
    num_steps: int = 500  # steps of each env in a rollout

    # the algorithm
    learning_rate: float = 3e-3  # learning rate of Adam
    anneal_lr: bool = True  # the learning rate falls linearly towards zero
    gamma: float = 0.99  # discount factor
    gae_lambda: float = 1.0  # 1 is Monte Carlo up to the rollout's end, 0 is one-step TD
    baseline: bool = True  # the value is subtracted from the return
    norm_adv: bool = False  # advantages are normalised, in each rollout
    vf_coef: float = 0.5  # weight of the value loss
    ent_coef: float = 0.01  # weight of the entropy bonus
    max_grad_norm: float = 0.5  # a longer gradient is scaled down to this norm (inf: off)

    # the machine
    device: str = "cpu"  # cpu, cuda, cuda:1, mps, or auto: an accelerator if there is one
    threads: int = 1  # number of CPU threads; small networks are fastest with 1
    compile: bool = False  # torch.compile makes the update faster, which pays in long runs
    async_envs: bool = False  # each env gets a process of its own, which pays if envs are slow

    # the run
    run_dir: str | None = None  # a new folder (None: runs/<env>__<script>__<seed>__<time>)
    resume: str | None = None  # folder of the run to continue; its flags hold unless given again
    evaluate: str | None = None  # folder of the run to evaluate, instead of training
    checkpoints: int = 10  # saves before the end, at most; each makes the envs anew (0: none)
    track: bool = False  # the run is logged to Weights & Biases, too
    capture_video: bool = False  # one more episode is filmed, after the evaluation
    eval_episodes: int = 10  # episodes played after training (0: none, and no video)
    eval_greedy: bool = False  # the evaluation takes the most probable actions, not samples


class Batch(NamedTuple):
    """What an update sees, flattened: (B, ...)."""

    obs: Tensor
    actions: Tensor
    advantages: Tensor
    returns: Tensor  # targets of the critic


def compute_gae(rewards, values, next_values, dones, gamma: float, gae_lambda: float) -> np.ndarray:
    """Generalized advantage estimation (arXiv 1506.02438). Takes and returns arrays (T, N).

    next_values[t] is the value of the state after step t: 0 if the episode terminated there.
    """
    advantages = rewards + gamma * next_values - values  # TD errors: the advantages of one step
    for t in reversed(range(len(rewards) - 1)):  # the last row stays as it is: nothing follows it
        goes_on = 1 - dones[t]  # nothing flows across the end of an episode
        advantages[t] += gamma * goes_on * gae_lambda * advantages[t + 1]  # [D05] sum of TD errors
    return advantages


def reinforce_loss(dist: Distribution, value: Tensor, batch: Batch, args: Args) -> tuple:
    """Policy gradient with a baseline (Williams 1992), value loss and entropy bonus.

    dist and value are the agent's for batch.obs. Returns the loss, and metrics without gradient.
    """
    advantages = batch.advantages if args.baseline else batch.returns
    if args.norm_adv:
        centred = advantages - advantages.mean()
        advantages = centred / (advantages.std() + 1e-8)  # [D07] mean 0, standard deviation 1
    policy_loss = -(dist.log_prob(batch.actions) * advantages).mean()
    value_loss = 0.5 * ((value - batch.returns) ** 2).mean()
    entropy = dist.entropy().mean()
    loss = policy_loss + args.vf_coef * value_loss - args.ent_coef * entropy  # [D10] weighted sum
    metrics = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}
    return loss, {name: metric.detach() for name, metric in metrics.items()}  # [D12] to be logged


def layer_init(layer: nn.Module, gain: float = 2**0.5) -> nn.Module:
    """Orthogonal weights scaled by gain, zero biases."""
    nn.init.orthogonal_(layer.weight, gain)  # [D02] signals keep their size
    nn.init.zeros_(layer.bias)
    return layer


def mlp(in_features: int, out_features: int, gain: float) -> nn.Sequential:
    """Two tanh layers of 64 units, and a linear head with weights of the given gain."""
    return nn.Sequential(
        layer_init(nn.Linear(in_features, 64)),
        nn.Tanh(),
        layer_init(nn.Linear(64, 64)),
        nn.Tanh(),
        layer_init(nn.Linear(64, out_features), gain),
    )


def valid_choices(action_space: Discrete | MultiDiscrete) -> Tensor:
    """Which of the actor's outputs are choices: all n of Discrete(n), as a tensor (n,).

    MultiDiscrete has a row for each component; false pads it to the length of the longest row.
    """
    if isinstance(action_space, Discrete):
        return torch.ones(int(action_space.n), dtype=torch.bool)
    sizes = torch.as_tensor(action_space.nvec)
    return torch.arange(sizes.max()) < sizes[:, None]


class Agent(nn.Module):
    """Actor and critic: for obs (..., obs_dim), a distribution of actions, and values (...)."""

    def __init__(self, envs: gym.vector.VectorEnv):
        super().__init__()
        obs_dim = envs.single_observation_space.shape[0]
        self.valid = valid_choices(envs.single_action_space)
        self.actor = mlp(obs_dim, self.valid.numel(), gain=0.01)  # [D13] a network of its own
        self.actor[-1].bias.data[~self.valid.flatten()] = -1e9  # these do not exist: never sampled
        self.critic = mlp(obs_dim, 1, gain=1.0)

    def logits(self, obs: Tensor) -> Tensor:
        return self.actor(obs).unflatten(-1, self.valid.shape)

    def forward(self, obs: Tensor) -> tuple[Distribution, Tensor]:
        dist = Categorical(logits=self.logits(obs), validate_args=False)
        dist = Independent(dist, self.valid.dim() - 1)  # [D37] components are chosen independently
        return dist, self.critic(obs).squeeze(-1)

    def act(self, obs: Tensor, greedy: bool = False) -> Tensor:
        """Sampled actions, or the most probable ones; faster than through a Distribution."""
        logits = self.logits(obs)
        if greedy:
            return logits.argmax(-1)
        gumbel_noise = -torch.empty_like(logits).exponential_().log()
        return (logits + gumbel_noise).argmax(-1)  # the Gumbel-max trick: a sample of softmax


def compute_gradients(agent: Agent, batch: Batch, args: Args) -> dict:
    """Add the gradients of reinforce_loss to the agent's. Returns metrics. --compile compiles this."""
    dist, value = agent(batch.obs)
    loss, metrics = reinforce_loss(dist, value, batch, args)
    loss.backward()
    return metrics


class Flatten(FlattenObservation):
    """Observations as vectors, and no infos: those that differ between envs could not be merged."""

    def reset(self, **kwargs) -> tuple:
        obs, _ = super().reset(**kwargs)
        return obs, {}

    def step(self, action: np.ndarray) -> tuple:
        obs, reward, terminated, truncated, _ = super().step(action)
        return obs, reward, terminated, truncated, {}


def make_envs(args: Args, num_envs: int, video_dir: Path | None = None) -> gym.vector.VectorEnv:
    """num_envs copies of args.env_id, stepped together; observations are flattened to vectors."""
    same_step = {"autoreset_mode": AutoresetMode.SAME_STEP}  # no step is spent on a reset
    mode = "async" if args.async_envs else "sync"
    wrappers = [Flatten]
    kwargs = {}
    if video_dir:
        first = {"episode_trigger": lambda episode: episode == 0}
        film = partial(RecordVideo, video_folder=str(video_dir), **first)
        mode = "sync"
        wrappers = [film, Flatten]
        kwargs["render_mode"] = "rgb_array"
    try:
        kwargs |= json.loads(args.env_kwargs)
        envs = gym.make_vec(args.env_id, num_envs, mode, same_step, wrappers, **kwargs)
    except (Exception, SystemExit) as error:  # not JSON, or whatever goes wrong in the env's own code
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{place.filename}, line {place.lineno}"
        if args.env_id.startswith("ALE/"):
            where = "ppo_atari.py plays it"
        refuse(f"--env-id {args.env_id} --env-kwargs {args.env_kwargs}: {error!r} ({where})")
    obs_space = envs.single_observation_space
    if not isinstance(obs_space, Box):
        refuse(f"{args.env_id}: {obs_space} observations, which cannot be flattened to a vector")
    action_space = envs.single_action_space
    if not isinstance(action_space, Discrete | MultiDiscrete) or np.any(action_space.start):
        advice = "(Multi)Discrete from 0 is needed here; ppo_continuous.py takes a Box"
        refuse(f"{args.env_id}: {action_space} actions, but {advice}")
    return envs


def seed_everything(seed: int, purpose: str, num_envs: int = 0) -> list[int]:
    """Seed Python, NumPy and torch, for each purpose differently. Returns seeds for the envs."""
    sequence = np.random.SeedSequence([seed, *purpose.encode()])
    seeds = sequence.generate_state(num_envs + 1).tolist()
    random.seed(seeds[0])
    np.random.seed(seeds[0])
    torch.manual_seed(seeds[0])
    return seeds[1:]


@torch.no_grad()
def evaluate(agent: Agent, args: Args, video_dir: Path | None = None) -> list[float]:
    """Play one whole episode in each of eval_episodes envs: a second would favour short ones."""
    seeds = seed_everything(args.seed, "evaluation", args.eval_episodes)
    envs = make_envs(args, args.eval_episodes, video_dir)
    obs, _ = envs.reset(seed=seeds)
    score = np.zeros(envs.num_envs)
    running = np.ones(envs.num_envs, dtype=bool)
    device = next(agent.parameters()).device
    while running.any():
        obs = torch.as_tensor(obs, dtype=torch.float32, device=device)
        action = agent.act(obs, args.eval_greedy)
        obs, reward, terminated, truncated, _ = envs.step(action.cpu().numpy())
        score += reward * running
        running &= ~(terminated | truncated)
    envs.close()
    return score.tolist()


def train(args: Args, on_iteration=None) -> tuple[Agent, list[dict[str, float]]]:
    """Train, or go on with args.resume. Returns the agent, and a row of metrics per iteration.

    on_iteration(metrics) is called after each iteration, which is the last one if it returns True.
    """
    # setup
    check(args)
    T, N = args.num_steps, args.num_envs
    B = T * N
    num_iterations = int(args.total_timesteps // B)  # total_timesteps may be a float, as 1e6 is
    device = pick_device(args.device)
    on_device = partial(torch.as_tensor, device=device)  # on the CPU, this shares memory
    torch.set_num_threads(args.threads)
    seed_everything(args.seed, "weights")
    envs = make_envs(args, 1)  # one env, for its spaces
    agent = Agent(envs).to(device)
    parameters = list(agent.parameters())
    optimizer = optim.Adam(parameters, args.learning_rate, eps=1e-5, fused=True)  # [D03] not 1e-8
    add_gradients = compiled(compute_gradients, args)
    run_dir, lock = make_run_dir(args)  # the folder is ours while lock is held
    first_iteration, episodes = restore(run_dir, args, agent, optimizer)
    steps = first_iteration * B
    log = []
    writer = open_log(run_dir, args, steps)
    print(f"{args.env_id} on {device}; --resume {run_dir} goes on from its last checkpoint", flush=True)

    # storage
    obs = np.zeros((T + 1, N, *envs.single_observation_space.shape), np.float32)
    final_obs = np.zeros_like(obs[0])
    actions = np.zeros((T, N, *envs.single_action_space.shape), np.int64)
    rewards = np.zeros((T, N), np.float32)
    dones = np.zeros((T, N), np.float32)
    final_values = np.zeros((T, N), np.float32)
    values = torch.zeros(T + 1, N, device=device)
    score, length = np.zeros(N), np.zeros(N)  # return and length of each running episode

    bar = tqdm(total=num_iterations * B, initial=steps, unit="", unit_scale=True, disable=None)
    apart = num_iterations * T / max(1, args.checkpoints)  # steps of each env, from save to save
    saved_at = -math.inf  # the first iteration begins with a save
    for iteration in range(first_iteration, num_iterations):
        if may_save(iteration * T, saved_at, apart, episodes, length):
            saved_at = iteration * T
            # What is not saved starts anew here: so a resumed run goes on as this one does.
            if args.checkpoints:
                save(run_dir, args, iteration, agent, optimizer, episodes)
            seeds = seed_everything(args.seed, f"cut {iteration}", N)
            envs.close()
            envs = make_envs(args, N)  # [E2] new ones: an env may remember things across resets
            obs[T], _ = envs.reset(seed=seeds)  # the next rollout starts from row T
            score[:], length[:] = 0, 0
        share_left = 1 - iteration / num_iterations
        lr_scale = share_left if args.anneal_lr else 1  # [D04] linearly towards zero
        optimizer.param_groups[0]["lr"] = args.learning_rate * lr_scale

        # rollout
        began = time.perf_counter()
        with torch.no_grad():
            obs[0] = obs[T]  # [D01] episodes go on where the last rollout stopped
            for t in range(T):
                actions[t] = agent.act(on_device(obs[t])).cpu()
                obs[t + 1], reward, terminated, truncated, infos = envs.step(actions[t])
                rewards[t] = reward
                done = terminated | truncated
                dones[t] = done
                final_values[t] = 0
                timeout = truncated & ~terminated
                if timeout.any():
                    # Only the time ran out. The value of the state that was reached stands for the
                    # rewards that would have followed; obs[t + 1] is of the next episode.
                    final_obs[timeout] = np.stack(infos["final_obs"][timeout])
                    _, final_value = agent(on_device(final_obs[timeout]))
                    final_values[t, timeout] = final_value.cpu()
                score += reward
                length += 1
                for n in np.flatnonzero(done):
                    episodes.append((iteration, float(score[n]), float(length[n])))
                score[done], length[done] = 0, 0
            # One pass is faster than T small ones; the weights are still those that acted.
            all_obs = on_device(obs)
            _, values[:] = agent(all_obs)

        # advantages
        old_values = values.cpu().numpy()
        next_values = np.where(dones, final_values, old_values[1:])  # [E1] 0 only where terminated
        advantages = compute_gae(rewards, old_values[:T], next_values, dones, args.gamma, args.gae_lambda)
        returns = advantages + old_values[:T]
        rollout = Batch(all_obs[:T], actions, advantages, returns)

        # update
        batch = make_batch(rollout, device)  # (T, N, ...) becomes (B, ...)
        optimizer.zero_grad()
        metrics = add_gradients(agent, batch, args)
        norm = nn.utils.clip_grad_norm_(parameters, args.max_grad_norm)  # [D11] all at once
        optimizer.step()

        # log
        steps += B
        row = {"steps": steps} | mean_metrics([metrics | {"grad_norm": norm}])
        numbers = {"obs": obs, "final_obs": final_obs, "reward": rewards} | row | agent.state_dict()
        refuse_broken(numbers, steps)
        # Advantages are returns less values: what the critic did not predict.
        row["explained_variance"] = 1 - (batch.advantages.var() / batch.returns.var()).item()
        row["episode_return"], row["episode_length"] = recent_means(episodes, iteration)
        row["learning_rate"] = optimizer.param_groups[0]["lr"]
        row["steps_per_second"] = B / (time.perf_counter() - began)
        log.append(row)
        write_row(row, bar, writer, args)
        if on_iteration and on_iteration(row):
            break

    # wrap up
    bar.close()
    envs.close()
    save(run_dir, args, steps // B, agent, optimizer, episodes)
    if args.eval_episodes:
        log = log or [{"steps": steps}]  # a run that was finished has no iteration left
        log[-1]["eval_return"] = report(agent, args, run_dir)
    close_log(log, writer, args, run_dir)
    return agent, log


# That was the algorithm; from here on: flags, folders, checkpoints, and the command line.


class Mistake(ValueError):
    """An error whose message says, in one line, what cannot be done and why."""


def refuse(mistake: str) -> NoReturn:
    """Raise a Mistake with this message, put on one line."""
    raise Mistake(" ".join(mistake.split()))


def flag(name: str) -> str:
    """The flag of a field of Args."""
    return "--" + name.replace("_", "-")


def check(args: Args) -> None:
    """Refuse arguments that cannot work, before anything is created."""
    counts = ("total_timesteps", "num_envs", "num_steps")
    unbounded = ("max_grad_norm",)
    ranges = dict.fromkeys(vars(args), (0, 10**12))
    ranges |= dict.fromkeys(counts, (1, 10**12))
    ranges |= dict.fromkeys(unbounded, (0, math.inf))
    ranges |= {"gamma": (0, 1), "gae_lambda": (0, 1)}
    ranges |= {"threads": (1, 1024), "seed": (0, 2**32 - 1)}
    for name, value in vars(args).items():
        default = getattr(Args, name)
        if isinstance(default, str | None):
            if not isinstance(value, str | type(default)):
                refuse(f"{flag(name)} {value} is not text")
            continue
        low, high = ranges[name]
        is_number = hasattr(value, "__float__")
        if not (is_number and low <= value <= high):  # NaN lies in no range
            refuse(f"{flag(name)} {value} is not between {low} and {high}")
    B = args.num_steps * args.num_envs
    if args.total_timesteps < B:
        refuse(f"--total-timesteps {args.total_timesteps} is less than a rollout of {B} steps")
    if B < 2:
        refuse("--num-steps 1 --num-envs 1 makes rollouts of one step, too short to learn from")


def pick_device(name: str) -> torch.device:
    """The device of that name; auto is the first accelerator, or else the CPU."""
    kind = "cpu"
    if torch.accelerator.is_available():
        kind = torch.accelerator.current_accelerator().type
    devices = [f"{kind}:{i}" for i in range(torch.accelerator.device_count())] + ["cpu"]
    if name not in ["auto", kind] + devices:
        refuse(f"--device {name} is not here; there is {', '.join(devices)}")
    if name in ("auto", kind):
        name = devices[0]
    return torch.device(name)


def compiled(function: Callable, args: Args) -> Callable:
    """The function itself, or with --compile its compiled form, which computes the same."""
    if not args.compile:
        return function
    torch._dynamo.config.trace_autograd_ops = True  # lets compile include loss.backward()
    return torch.compile(function, fullgraph=True)


def may_save(age: int, last_age: int, apart: float, episodes: deque, length) -> bool:
    """Whether it is time to save, after age steps of each env; the last save was after last_age.

    A save cuts running episodes off. If saves were frequent, only short episodes would ever end. So
    saves are as far apart as --checkpoints asks, and at least as far as ten of the longest episodes.
    """
    longest = max((steps for *_, steps in episodes), default=0)
    apart = max(apart, 10 * longest)
    since = age - last_age
    if length.max() >= since:  # an episode has not ended since the last save: the wait doubles
        apart = max(apart, last_age)
    return since >= apart


def restore(run_dir: Path, args: Args, agent: Agent, optimizer: optim.Adam) -> tuple[int, deque]:
    """Load agent and optimizer if resuming. Returns the next iteration, and the last episodes."""
    episodes = deque(maxlen=100)  # iteration, return, length
    if not args.resume:
        return 0, episodes
    checkpoint = load(run_dir, args, agent=agent, optimizer=optimizer)
    episodes.extend(checkpoint["episodes"])
    return checkpoint["iteration"], episodes


def make_batch(rollout: Batch, device: torch.device) -> Batch:
    """The samples of a rollout (T, N, ...) as one long row (B, ...), on the device."""
    return Batch(*(torch.as_tensor(x, device=device).flatten(0, 1) for x in rollout))


def mean_metrics(history: list[dict[str, Tensor]]) -> dict[str, float]:
    """Means of the metrics over the gradient steps of an update."""
    means = {}
    for name in history[0]:
        means[name] = torch.stack([metrics[name] for metrics in history]).mean().item()
    return means


def refuse_broken(numbers: dict, steps: int) -> None:
    """Raise an error if any of the numbers is not finite, before it can reach a checkpoint."""
    for name, x in numbers.items():
        if not torch.as_tensor(x).isfinite().all():
            raise FloatingPointError(f"{name} is not finite before step {steps}")


def recent_means(episodes: deque, iteration: int) -> tuple[float, float]:
    """Mean return and length of episodes in the last fifth of training so far, at most 100.

    Older episodes show older policies. If none is recent, the latest counts; if none ended, NaN.
    """
    if not episodes:
        return math.nan, math.nan
    recent = [episode for episode in episodes if episode[0] >= 0.8 * iteration]
    _, mean_return, mean_length = np.mean(recent or [episodes[-1]], axis=0)
    return mean_return, mean_length


def open_log(run_dir: Path, args: Args, steps: int) -> SummaryWriter:
    """Write args.json, and open the curves: TensorBoard's, and with --track those of wandb."""
    flags = json.dumps(asdict(args), indent=2)
    flags = flags.replace(": Infinity", ': "inf"')  # JSON has no word for it
    write_file(run_dir / "args.json", flags + "\n")
    purge_step = steps + 1 if args.resume else None  # later rows are written again
    writer = SummaryWriter(run_dir, purge_step=purge_step)
    writer.add_text("args", f"<pre>{flags}</pre>", steps)
    if args.track:
        import wandb

        try:
            wandb.init(name=run_dir.resolve().name, config=asdict(args), dir=run_dir)
        except wandb.Error as error:
            refuse(f"--track: {error}")
        wandb.define_metric("*", step_metric="steps")
    return writer


def write_row(row: dict[str, float], bar: tqdm, writer: SummaryWriter, args: Args) -> None:
    """Add a row of metrics to the curves and move the bar; about 20 times in a run, print it."""
    for name, metric in row.items():
        if name != "steps":
            writer.add_scalar(name, metric, row["steps"])
    writer.flush()  # a checkpoint must not be ahead of its curves
    if args.track:
        import wandb

        wandb.log(row)
    B = args.num_steps * args.num_envs
    bar.set_postfix_str(f"episode_return {row['episode_return']:.4g}", refresh=False)
    bar.update(B)
    iterations_left = (bar.total - row["steps"]) // B
    if iterations_left % math.ceil(bar.total / B / 20) == 0:  # true of the last one, too
        shown = ("episode_return", "entropy", "explained_variance", "value_loss")
        status = "  ".join(f"{name} {row[name]:.3g}" for name in shown)
        bar.write(f"{row['steps']:,} steps  {row['steps_per_second']:,.0f} steps/s  {status}")
        sys.stdout.flush()


def close_log(log: list[dict], writer: SummaryWriter, args: Args, run_dir: Path) -> None:
    """Add the evaluation, and what was filmed, to the curves, and close them."""
    if args.eval_episodes:
        writer.add_scalar("eval_return", log[-1]["eval_return"], log[-1]["steps"])
    writer.close()
    if args.track:
        import wandb

        if args.eval_episodes:
            films = {path.stem: wandb.Video(str(path)) for path in run_dir.glob("videos/*/*.mp4")}
            wandb.log(log[-1] | films)
        wandb.finish()


def make_run_dir(args: Args) -> tuple[Path, FileLock]:
    """The run's folder, new unless it is resumed, and the lock that makes it ours."""
    now = f"{datetime.now():%Y%m%d-%H%M%S-%f}"
    name = f"{args.env_id}__{Path(__file__).stem}__{args.seed}__{now}"
    default = "runs/" + re.sub(r"[^\w-]", "-", name)
    run_dir = Path(args.resume or args.run_dir or default)
    # As a singleton, the lock can be taken again by the process that holds it.
    lock = FileLock(run_dir / "lock", blocking=False, is_singleton=True)
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        is_run = args.resume or (run_dir / "lock").exists()  # a run that failed leaves its lock
        if not is_run and any(run_dir.iterdir()):
            refuse(f"{run_dir} holds other files; a run takes a new folder, or an empty one")
        lock.acquire()
    except OSError as error:  # another process is at work there, or the disk is full
        refuse(f"{run_dir}: {error}")
    if (run_dir / "checkpoint.pt").exists() and not args.resume:
        refuse(f"{run_dir} holds a run, which --resume would continue")
    return run_dir, lock


def save(run_dir: Path, args: Args, iteration: int, agent: Agent, optimizer, episodes) -> None:
    """Write the checkpoint so that a kill at any moment leaves a whole one, the old or the new."""
    checkpoint = {
        "writer": WRITER,
        "args": asdict(args),
        "iteration": iteration,
        "episodes": list(episodes),
        "agent": agent.state_dict(),
        "optimizer": optimizer.state_dict(),
    }
    content = io.BytesIO()  # torch.save's own error on a full disk is cryptic
    torch.save(checkpoint, content)
    part = run_dir / "checkpoint.tmp"
    part.unlink(missing_ok=True)  # a link that lies there would be written through
    with open(part, "wb") as file:
        file.write(content.getbuffer())
        file.write(hashlib.sha256(content.getbuffer()).digest())
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, run_dir / "checkpoint.pt")


def write_file(path: Path, text: str) -> None:
    """Write a text so that a kill leaves a whole file, and so that no link is written through."""
    part = path.with_name(path.name + ".tmp")
    part.unlink(missing_ok=True)
    part.write_text(text, "utf-8")
    os.replace(part, path)


def load(run_dir: str | Path, resuming: Args | None = None, **parts) -> dict:
    """What save() wrote, after restoring the given parts (agent, optimizer).

    No code that the file may hold is run.
    """
    path = Path(run_dir) / "checkpoint.pt"
    try:
        if path.exists() and not path.is_file():  # reading from a pipe might never end
            raise ValueError("it is no file")
        content = path.read_bytes()
        if hashlib.sha256(content[:-32]).digest() != content[-32:]:
            raise ValueError(f"it is damaged, or older than {WRITER}")
        checkpoint = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        if checkpoint["writer"] != WRITER:
            raise ValueError(f"it was written by {checkpoint['writer']}")
        saved = Args(**checkpoint["args"])
        check(saved)
        checkpoint["args"] = saved
        if resuming:
            for name in ("env_id", "seed", "num_envs", "num_steps"):
                if getattr(resuming, name) != getattr(saved, name):
                    raise ValueError(f"{flag(name)} cannot change: it has {getattr(saved, name)}")
        check_contents(checkpoint)
        if resuming:
            groups = parts["optimizer"].state_dict()["param_groups"]
            checkpoint["optimizer"]["param_groups"] = groups  # the script's, not the file's
        for name, part in parts.items():
            part.load_state_dict(checkpoint[name])
        if resuming:
            check_moments(parts["optimizer"])
    except Exception as error:  # no file, half a file, or one that does not fit
        message = " ".join((str(error) or repr(error)).split())
        refuse(f"{path} cannot be used: {message.partition('. ')[0]}")
    return checkpoint


def check_contents(checkpoint: dict) -> None:
    """Refuse what save() never writes."""
    iteration = checkpoint["iteration"]
    if not isinstance(iteration, int) or iteration < 0:
        raise ValueError(f"{iteration!r} is no iteration")
    rows = np.array(checkpoint["episodes"], dtype=float)
    rows.reshape(-1, 3)  # an error, if they are no triples
    for name, weight in checkpoint["agent"].items():
        if not weight.isfinite().all():
            raise ValueError(f"{name} is not finite")


def check_moments(optimizer: optim.Adam) -> None:
    """Refuse a state that does not fit the weights: fused Adam would trust it."""
    for weight, kept in optimizer.state.items():
        layouts = {name: (x.shape, x.stride()) for name, x in kept.items()}
        like_weight = (weight.shape, weight.stride())
        if layouts != {"step": ((), ()), "exp_avg": like_weight, "exp_avg_sq": like_weight}:
            raise ValueError("the state of the optimizer does not fit")


def report(agent: Agent, args: Args, run_dir: Path) -> float:
    """Evaluate and print the returns; then film one more episode, if asked to."""
    print(f"evaluation: {args.eval_episodes} episodes, each until it ends", flush=True)
    returns = evaluate(agent, args)
    mean = float(np.mean(returns))
    print("returns of evaluation:", *(f"{episode_return:g}" for episode_return in returns))
    print(f"mean return {mean:g} in {len(returns)} episodes of evaluation; see {run_dir}", flush=True)
    if args.capture_video:
        folder = run_dir / "videos" / f"{datetime.now():%Y%m%d-%H%M%S-%f}"  # a film replaces no other
        try:
            evaluate(agent, replace(args, eval_episodes=1), folder)
        except Exception as error:  # no display or no render_mode, say: no reason to fail
            print(f"no video: {error!r}", file=sys.stderr)
    return mean


def main() -> None:
    """Train, go on with a run, or evaluate it, as the command line says."""
    sys.path.append("")  # an env's module may be in the current folder
    given = tyro.cli(Args, description=__doc__)
    if "" in vars(given).values():  # --resume=$NOT_SET, say
        refuse("an empty value on the command line")
    if [given.run_dir, given.resume, given.evaluate].count(None) < 2:
        refuse("--run-dir, --resume and --evaluate exclude each other")
    folder = given.resume or given.evaluate
    args = given
    if folder:  # the flags are read again, with the saved ones as defaults
        args = tyro.cli(Args, description=__doc__, default=load(folder)["args"])
        if ":" in args.env_id and args.env_id != given.env_id:
            refuse(f"{folder} would import code; if you trust it, add --env-id {args.env_id}")
    if not given.evaluate:
        train(args)
        return
    check(args)
    torch.set_num_threads(args.threads)
    agent = Agent(make_envs(args, 1)).to(pick_device(args.device))
    load(folder, agent=agent)
    args.eval_episodes = args.eval_episodes or Args.eval_episodes
    report(agent, args, Path(folder))


if __name__ == "__main__":
    try:
        main()
    except Mistake as mistake:
        print(f"{Path(__file__).name}: {mistake}", file=sys.stderr)
        sys.exit(2)
