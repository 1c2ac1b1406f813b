"""REINFORCE with a learned baseline, for discrete actions, the whole algorithm in one file.

    python reinforce_baseline.py                               # CartPole-v1, 200,000 steps
    python reinforce_baseline.py --no-baseline --seed 2        # --help lists every flag
    git diff --no-index reinforce_baseline.py ppo_discrete.py  # what PPO adds to REINFORCE

Shapes  T steps of N envs are B = T * N samples.
        What describes a state (obs, values) has T + 1 rows, what describes a step (rewards, dones) has T.

Tags    [D08] marks the line with detail 8 of docs/details.md; other letters, as in [E1], are additions.
"""

import io
import json
import math
import os
import random
import re
import signal
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
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import FlattenObservation, RecordVideo
from torch import Tensor, distributed, nn
from torch.distributions import Categorical, Distribution, Independent
from torch.nn.utils import clip_grad_norm_
from torch.optim import Adam
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

RANK, WORLD_SIZE = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))  # of torchrun


@dataclass
class Args:
    env_id: str = "CartPole-v1"  # gymnasium id; "module:Name-v0" imports the module first
    seed: int = 1  # of everything random
    device: str = "cpu"  # cpu, cuda, cuda:1, mps, or auto: an accelerator if there is one
    threads: int = 1  # on the CPU; small networks are fastest with 1
    compile: bool = False  # the update, by torch.compile: faster, once it is done
    run_dir: str = ""  # a new folder; default: runs/<env>__<script>__<seed>__<time>
    resume: str = ""  # folder of the run to go on with; its flags hold unless given anew
    evaluate: str = ""  # folder of the run to evaluate, instead of training
    checkpoints: int = 10  # saved in the course of a run, each in place of the one before
    track: bool = False  # log to Weights & Biases, too
    capture_video: bool = False  # of an episode after training
    async_envs: bool = False  # a process for each env, for those that are slow to step
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


def make_envs(args: Args, num_envs: int, video_dir: Path | None = None) -> gym.vector.VectorEnv:
    """num_envs copies of args.env_id, stepped together; observations are flattened to vectors."""
    same_step = {"autoreset_mode": AutoresetMode.SAME_STEP}  # no step is spent on a reset
    mode, wrappers, kwargs = "async" if args.async_envs else "sync", [FlattenObservation], {}
    if video_dir:
        film = partial(RecordVideo, video_folder=str(video_dir), episode_trigger=lambda episode: episode == 0)
        mode, wrappers, kwargs = "sync", [film, *wrappers], {"render_mode": "rgb_array"}
    try:
        envs = gym.make_vec(args.env_id, num_envs, mode, same_step, wrappers, **kwargs)  # [D01]
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
        self.register_buffer("mask", self.valid.log(), persistent=False)  # 0 or -inf, added to logits
        self.actor = mlp(obs_dim, self.valid.numel(), gain=0.01)  # [D13] apart from the critic
        self.critic = mlp(obs_dim, 1, gain=1.0)

    def logits(self, obs: Tensor) -> Tensor:
        return self.actor(obs.float()).unflatten(-1, self.mask.shape) + self.mask

    def forward(self, obs: Tensor) -> tuple[Distribution, Tensor]:
        dist = Categorical(logits=self.logits(obs), validate_args=False)
        return Independent(dist, self.valid.dim() - 1), self.critic(obs.float()).squeeze(-1)  # [D37]

    def noise(self, *shape: int) -> Tensor:
        """Gumbel noise: where logits + noise (*shape, n) is largest is a sample of their softmax."""
        return -torch.empty(*shape, *self.valid.shape, device=self.valid.device).exponential_().log()

    def act(self, obs: Tensor, noise: Tensor | float) -> Tensor:
        """An action sampled with the noise, or the most probable one without."""
        return (self.logits(obs) + noise).argmax(-1)


def compute_gae(
    rewards: np.ndarray, values: np.ndarray, dones: np.ndarray, gamma: float, gae_lambda: float
) -> np.ndarray:
    """Generalized advantage estimation (arXiv 1506.02438).

    rewards and dones (T, N), values (T + 1, N) -> advantages (T, N).
    """
    discount = gamma * (1 - dones)
    advantages = rewards + discount * values[1:] - values[:-1]  # of one step
    for t in reversed(range(len(rewards) - 1)):
        advantages[t] += discount[t] * gae_lambda * advantages[t + 1]  # [D05]
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


def backpropagate(agent: Agent, batch: Batch, args: Args) -> dict:
    """Add the gradients of reinforce_loss to the agent's -> its metrics. This is what --compile compiles."""
    dist, value = agent(batch.obs)
    loss, metrics = reinforce_loss(dist, value, batch, args)
    loss.backward()
    return metrics


def explained_variance(values: Tensor, returns: Tensor) -> float:
    """1 - Var(returns - values) / Var(returns): 1 is perfect, 0 a constant guess, NaN for equal returns."""
    variance = returns.var()
    return (1 - (returns - values).var() / variance).item() if variance > 0 else math.nan


def buffer(rows: int, space: gym.Space) -> np.ndarray:
    """Zeros (rows, *space.shape) of the space's own type, except that all floats are float32."""
    is_float = np.issubdtype(space.dtype, np.floating)
    return np.zeros((rows, *space.shape), np.float32 if is_float else space.dtype)


def env_seeds(num_envs: int, *key: int) -> list[int]:
    """Seeds from a key: the run's seed, what for, and so on (seed + i would be shared with other runs)."""
    return np.random.SeedSequence(key).generate_state(num_envs).tolist()


def seed_everything(*key: int) -> None:
    """Seed the random numbers of Python, NumPy and torch from such a key."""
    [seed] = env_seeds(1, *key)
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def average(*tensors: Tensor) -> None:
    """Replace tensors by their means over all processes."""
    if WORLD_SIZE > 1:
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        distributed.all_reduce(flat)
        for tensor, total in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(total.view_as(tensor) / WORLD_SIZE)


def require_finite(**numbers: float) -> None:
    """Raise FloatingPointError about the first number that is NaN or infinite."""
    for name, number in numbers.items():
        if not math.isfinite(number):
            raise FloatingPointError(f"{name} is {number}")


@torch.no_grad()
def evaluate(agent: Agent, args: Args, video_dir: Path | None = None) -> list[float]:
    """Returns of eval_episodes whole episodes, each in an env of its own: short ones count no more often."""
    envs = make_envs(args, args.eval_episodes, video_dir)
    seed_everything(args.seed, 2)
    device = next(agent.parameters()).device
    obs, _ = envs.reset(seed=env_seeds(envs.num_envs, args.seed, 1))
    score, running = np.zeros(envs.num_envs), np.ones(envs.num_envs, dtype=bool)
    while running.any():
        noise = 0.0 if args.eval_greedy else agent.noise(envs.num_envs)
        action = agent.act(torch.as_tensor(obs, dtype=torch.float32).to(device), noise)
        obs, reward, terminated, truncated, _ = envs.step(action.cpu().numpy())
        score += reward * running
        running &= ~(terminated | truncated)
    envs.close()
    return score.tolist()


def train(args: Args) -> tuple[Agent, list[dict[str, float]]]:
    """Train, or go on with args.resume -> the agent, and a dict of metrics per iteration."""
    # setup
    check(args)
    T, N = args.num_steps, args.num_envs
    B = T * N
    num_iterations = int(args.total_timesteps // (B * WORLD_SIZE))
    device = pick_device(args.device)
    torch.set_num_threads(args.threads)
    if WORLD_SIZE > 1 and not distributed.is_initialized():
        distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    on_device = partial(torch.as_tensor, device=device)
    envs = make_envs(args, N)
    seed_everything(args.seed, 3)  # the same weights in all processes
    agent = Agent(envs).to(device)
    parameters = list(agent.parameters())
    optimizer = Adam(parameters, lr=args.learning_rate, eps=1e-5, fused=True)  # [D03]
    backward = backpropagate
    if args.compile:
        torch._dynamo.config.trace_autograd_ops = True  # or it would stop short of loss.backward()
        backward = torch.compile(backpropagate)
    episode_returns, first_iteration, log = deque(maxlen=100), 0, []
    if args.resume:
        same = dict(env_id=args.env_id, seed=args.seed, num_envs=N, num_steps=T, processes=WORLD_SIZE)
        state = load(args.resume, agent, **same)
        optimizer.load_state_dict(state["optimizer"])
        episode_returns.extend(state["episode_returns"])
        first_iteration = state["iteration"]
    if first_iteration >= num_iterations:
        print(f"{args.resume} is finished; with more --total-timesteps it goes on")
        return agent, log
    run_dir = make_run_dir(args)
    steps, all_steps = first_iteration * B * WORLD_SIZE, num_iterations * B * WORLD_SIZE
    writer = SummaryWriter(run_dir, purge_step=steps + 1) if RANK == 0 else None
    if args.track and RANK == 0:
        import wandb

        wandb.init(name=run_dir.resolve().name, config=asdict(args), dir=run_dir)
        wandb.define_metric("*", step_metric="steps")
    print(f"{args.env_id} on {device}, {all_steps} steps, logging to {run_dir}", flush=True)

    # storage: of the envs in NumPy, as they are, and of the agent on its device
    obs, actions = buffer(T + 1, envs.observation_space), buffer(T, envs.action_space)
    rewards, dones = np.zeros((2, T, N), dtype=np.float32)
    values = torch.zeros(T + 1, N, device=device)
    score = np.zeros(N)

    bar = tqdm(total=all_steps, initial=steps, unit=" steps", unit_scale=True, disable=RANK > 0 or None)
    for iteration in range(first_iteration, num_iterations):
        start = time.perf_counter()
        if iteration == first_iteration or iteration * args.checkpoints % num_iterations < args.checkpoints:
            # A clean cut: what follows depends on nothing but what is saved, in a resumed run or not.
            if RANK == 0:
                save(run_dir, args, iteration, agent, optimizer, episode_returns)
            seed_everything(args.seed, 4, iteration, RANK)
            seeds = env_seeds(N, args.seed, 0, iteration, RANK)
            obs[T], _ = envs.reset(seed=seeds)  # [E2]
            score[:] = 0
        remaining = 1 - iteration / num_iterations
        if args.anneal_lr:
            optimizer.param_groups[0]["lr"] = args.learning_rate * remaining  # [D04]

        # rollout
        with torch.no_grad():
            obs[0] = obs[T]  # carry on from where the last rollout stopped
            final_values = np.zeros_like(rewards)
            for t, noise in enumerate(agent.noise(T, N)):
                actions[t] = agent.act(on_device(obs[t]), noise).cpu()
                obs[t + 1], reward, terminated, truncated, infos = envs.step(actions[t])
                steps += N * WORLD_SIZE
                require_finite(obs=obs[t + 1].sum(), reward=reward.sum())
                done, timeout = terminated | truncated, truncated & ~terminated
                rewards[t], dones[t] = reward, done
                if timeout.any():  # not a terminal state: the last obs still has a value
                    final_obs = np.stack(infos["final_obs"][timeout]).astype(obs.dtype)
                    final_values[t, timeout] = agent(on_device(final_obs))[1].cpu()
                score += reward
                episode_returns.extend(score[done].tolist())
                score[done] = 0
            states, taken = on_device(obs), on_device(actions)
            _, values[:] = agent(states)  # all at once, as nothing was learned meanwhile

        # update
        rewards += args.gamma * final_values  # [E1]
        advantages = compute_gae(rewards, values.cpu().numpy(), dones, args.gamma, args.gae_lambda)
        advantages = on_device(advantages)
        returns = advantages + values[:T]
        batch = Batch(states[:T], taken, advantages, returns)
        batch = Batch(*(x.flatten(0, 1) for x in batch))
        optimizer.zero_grad()
        metrics = backward(agent, batch, args)
        average(*(parameter.grad for parameter in parameters))  # [X2]
        metrics["grad_norm"] = clip_grad_norm_(parameters, args.max_grad_norm)  # [D11]
        optimizer.step()

        # log
        row = {name: metric.item() for name, metric in metrics.items()}
        require_finite(**row)
        row["explained_variance"] = explained_variance(values[:T], returns)
        row["episode_return"] = sum(episode_returns) / len(episode_returns) if episode_returns else math.nan
        row["learning_rate"] = optimizer.param_groups[0]["lr"]
        row["steps_per_second"] = B * WORLD_SIZE / (time.perf_counter() - start)
        log.append({"steps": steps} | row)
        if RANK == 0:
            for name, metric in row.items():
                writer.add_scalar(name, metric, steps)
            if args.track:
                wandb.log(log[-1])
        shown = ("episode_return", "entropy", "value_loss", "explained_variance")
        status = "  ".join(f"{name} {row[name]:.3g}" for name in shown)
        bar.set_postfix_str(status, refresh=False)
        bar.update(B * WORLD_SIZE)
        if bar.disable and 20 * (iteration + 1) % num_iterations < 20:  # 20 lines a run
            print(f"{steps:,} steps  {row['steps_per_second']:,.0f} steps/s  {status}", flush=True)

    # wrap up
    bar.close()
    envs.close()
    if WORLD_SIZE > 1:
        distributed.destroy_process_group()
    if RANK == 0:
        save(run_dir, args, num_iterations, agent, optimizer, episode_returns)
        log[-1]["eval_return"] = report(agent, args, run_dir)
        writer.add_scalar("eval_return", log[-1]["eval_return"], steps)
        writer.close()
        if args.track:
            wandb.log(log[-1] | {path.stem: wandb.Video(str(path)) for path in run_dir.glob("videos/*.mp4")})
            wandb.finish()
    return agent, log


# That was the algorithm; from here on: flags, folders, checkpoints, failures, and the command line.


def refuse(mistake: str, code: int = 2) -> NoReturn:
    """Say in one line what is wrong, and exit."""
    print(f"{Path(__file__).name}: {' '.join(mistake.split())}", file=sys.stderr)
    raise SystemExit(code)


def check(args: Args) -> None:
    """Refuse arguments that cannot be trained with, before anything is made."""
    highest = {"gamma": 1, "gae_lambda": 1, "threads": 1024, "seed": 2**32 - 1, "max_grad_norm": math.inf}
    for name, value in vars(args).items():
        low = 1 if Args.__annotations__[name] is int and name != "seed" else 0  # counts start at 1
        high = highest.get(name, 10**12)
        if not isinstance(value, str) and not low <= value <= high:  # NaN lies in no range
            refuse(f"--{name.replace('_', '-')} {value} is not between {low} and {high}")
    B = args.num_steps * args.num_envs
    if args.total_timesteps < B * WORLD_SIZE:
        refuse(f"--total-timesteps {args.total_timesteps} is less than a rollout of {B * WORLD_SIZE} steps")
    if B < 2:
        refuse("--num-steps 1 --num-envs 1 makes rollouts of one step, too short to learn from")


def pick_device(name: str) -> torch.device:
    """The device of that name; auto is the first accelerator, or else the CPU."""
    kind = torch.accelerator.current_accelerator().type if torch.accelerator.is_available() else "cpu"
    devices = [f"{kind}:{i}" for i in range(torch.accelerator.device_count())] + ["cpu"]
    if name not in ("auto", kind, *devices):
        refuse(f"--device {name} is not here; there is {', '.join(devices)}")
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    return torch.device(devices[local_rank % max(1, len(devices) - 1)] if name in ("auto", kind) else name)


def make_run_dir(args: Args) -> Path:
    """A new folder for everything that the run writes, args.json first; or that of the run to resume."""
    name = f"{args.env_id}__{Path(__file__).stem}__{args.seed}__{datetime.now():%Y%m%d-%H%M%S-%f}"
    paths = [args.resume or args.run_dir or "runs/" + re.sub(r"[^\w-]", "-", name)]
    if WORLD_SIZE > 1:
        distributed.broadcast_object_list(paths)  # clocks differ
    run_dir = Path(paths[0])
    if RANK == 0 and not args.resume:
        try:
            run_dir.mkdir(parents=True)
        except OSError as error:
            refuse(f"--run-dir {run_dir}: {error.strerror}")
        (run_dir / "args.json").write_text(json.dumps(asdict(args), indent=2) + "\n")
    return run_dir


def save(run_dir: Path, args: Args, iteration: int, agent: Agent, optimizer: Adam, returns: deque) -> None:
    """Write the checkpoint; killed at any moment, this leaves a whole one, the old or the new."""
    state = {"script": Path(__file__).name, "processes": WORLD_SIZE, "args": asdict(args)}
    state |= {"iteration": iteration, "agent": agent.state_dict(), "optimizer": optimizer.state_dict()}
    content, path = io.BytesIO(), run_dir / "checkpoint.pt"
    torch.save(state | {"episode_returns": list(returns)}, content)
    with open(run_dir / "checkpoint.tmp", "wb") as file:
        file.write(content.getbuffer())
        file.flush()
        os.fsync(file.fileno())
    os.replace(file.name, path)


def load(run_dir: str, agent: Agent | None = None, **wanted: object) -> dict:
    """What save() wrote, by this script and with the wanted flags, into agent; no code in the file is run."""
    path = Path(run_dir) / "checkpoint.pt"
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        found = {"script": state["script"], "processes": state["processes"]} | state["args"]
    except Exception as error:  # no file, half a file, or something else
        refuse(f"{path} is no checkpoint: {(str(error) or 'empty').splitlines()[0].partition('. ')[0]}")
    for name, value in ({"script": Path(__file__).name} | wanted).items():
        if found[name] != value:
            refuse(f"{path} has {name} {found[name]}, not {value}")
    try:
        if agent:
            agent.load_state_dict(state["agent"])
    except RuntimeError as error:
        refuse(f"{path} does not fit these flags: {error}")
    return state


def report(agent: Agent, args: Args, run_dir: Path) -> float:
    """Evaluate, film one more episode if that is wanted, and say what came of it."""
    returns = evaluate(agent, args)
    if args.capture_video:
        evaluate(agent, replace(args, eval_episodes=1), run_dir / "videos")
    print("returns of evaluation:", *(f"{episode_return:.1f}" for episode_return in returns))
    print(f"mean return {np.mean(returns):.1f} in {len(returns)} episodes of evaluation; see {run_dir}")
    return float(np.mean(returns))


def evaluate_run(args: Args) -> None:
    """Evaluate the agent that is in the checkpoint of args.evaluate."""
    check(args)
    torch.set_num_threads(args.threads)
    load(args.evaluate, env_id=args.env_id)  # before an env is made
    agent = Agent(make_envs(args, 1)).to(pick_device(args.device))
    load(args.evaluate, agent)
    report(agent, args, Path(args.evaluate))


def explain(error: BaseException) -> tuple[str, int]:
    """What ended a run early, where, and how to go on; and the exit code."""
    cause, code = f"{type(error).__name__}: {error}", 1
    if isinstance(error, KeyboardInterrupt):
        cause, code = signal.Signals(error.args[0]).name, 128 + error.args[0]
    elif isinstance(error, EOFError):
        cause = "a process of --async-envs has died"
    elif not isinstance(error, OSError | FloatingPointError):
        traceback.print_exc()
    for frame, _ in traceback.walk_tb(error.__traceback__):
        here = frame.f_locals
        if isinstance(here.get("envs"), gym.vector.VectorEnv):
            here["envs"].unwrapped.closed = True  # or it would wait for a process that has died
        if frame.f_code is train.__code__ and "bar" in here:
            how = "--resume" if here["steps"] < here["all_steps"] else "--evaluate"
            cause += f" at step {here['steps']}; to go on, {how} {here['run_dir']}"
    return cause, code


def main() -> None:
    """Do what the command line says; if it ends early, say why in one line, and how to go on."""

    def stop(number: int, _: object) -> NoReturn:
        raise KeyboardInterrupt(number)

    args = tyro.cli(Args, description=__doc__)
    if sum(map(bool, (args.run_dir, args.resume, args.evaluate))) > 1:
        refuse("--run-dir, --resume and --evaluate exclude each other")
    if args.resume or args.evaluate:
        saved = Args(**load(args.resume or args.evaluate)["args"])
        saved = replace(saved, resume=args.resume, evaluate=args.evaluate)
        args = tyro.cli(Args, description=__doc__, default=saved)
    if RANK > 0:
        sys.stdout = None  # the first process speaks for all
    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    try:
        evaluate_run(args) if args.evaluate else train(args)
    except (KeyboardInterrupt, Exception) as error:
        refuse(*explain(error))
    if WORLD_SIZE > 1:
        print(end="", flush=True)
        os._exit(0)  # an ordinary exit is now and then aborted by the threads of gloo


if __name__ == "__main__":
    main()
