"""Speed: a script against stable-baselines3's PPO (TRPO: sb3-contrib's), same env, same hyper-parameters,
same number of torch's threads (Atari's games: as many in ours, one in the peer, which is its default).

    pip install -r benchmarks/requirements.txt
    python benchmarks/speed.py --script ppo_discrete --env-id CartPole-v1 --flags=--compile
    python benchmarks/speed.py --script ppo_atari --env-id BreakoutNoFrameskip-v4 --threads 2 --steps 20_480
    python benchmarks/speed.py --script variants.trpo --env-id Hopper-v5 --steps 61_440
    python benchmarks/speed.py --repeats 0 --num-envs 1 4 16 64 256

The two train alternately, each time in a process of its own, so that what else the machine does slows both.
Both look at the clock when a rollout is done. Steps per second leave out the first quarter of the iterations;
start-up is all until the second rollout is done, compilation included. Then one more run of the script alone
says where its time goes, and one for each of --num-envs how it grows with them.
"""

import contextlib
import importlib
import json
import os
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace

import tyro
from common import ROOT, refuse

now = time.perf_counter  # run_peers.py counts CPU time
START = now()


@dataclass
class Args:
    script: str = "ppo_discrete"
    env_id: str = "CartPole-v1"
    steps: int = 204_800  # env steps of each run
    repeats: int = 5  # pairs of runs
    threads: int = 1  # of torch, and of our Atari games
    flags: str = ""  # more flags for the script, in one string
    num_envs: tuple[int, ...] = ()  # measure the script alone with these, too
    only: str = ""  # for the processes that this one starts: whose run it is


def make_script_args(args: Args, folder: str):
    """The script, and its Args for this benchmark; those of the peer are read off them."""
    script = importlib.import_module(args.script)
    flags = f"--env-id {args.env_id} --total-timesteps {args.steps} --threads {args.threads} --checkpoints 1"
    return script, tyro.cli(
        script.Args, args=[*shlex.split(flags), "--run-dir", f"{folder}/run", *shlex.split(args.flags)]
    )


def measure(steps: list[int], seconds: list[float]) -> dict[str, float]:
    """Speed and start-up from what was done when, seconds from the start of the process."""
    if len(steps) < 3:
        refuse(f"--steps is too few for 3 rollouts ({len(steps)}): the clock starts after the second")
    first = max(1, len(steps) // 4)
    return {"speed": (steps[-1] - steps[first]) / (seconds[-1] - seconds[first]), "startup": seconds[1]}


def run_ours(args: Args, folder: str) -> dict:
    script, script_args = make_script_args(args, folder)
    clock, compute_gae = [], script.compute_gae

    def clocked(*args):
        clock.append(now() - START)
        return compute_gae(*args)

    script.compute_gae = clocked
    script.evaluate = lambda *_: [0.0]
    _, log = script.train(script_args)
    return measure([row["steps"] for row in log], clock)


def run_sb3(args: Args, folder: str) -> dict:
    import torch
    from run_sb3 import make_peer
    from stable_baselines3.common.callbacks import BaseCallback

    _, ours = make_script_args(args, folder)
    torch.set_num_threads(args.threads)
    agent = make_peer(args.script.rpartition(".")[2], ours, seed=1)

    class Clock(BaseCallback):
        steps, seconds = [], []

        def _on_step(self) -> bool:
            return True

        def _on_rollout_end(self) -> None:
            self.steps.append(self.num_timesteps)
            self.seconds.append(now() - START)

    clock = Clock()
    agent.learn(args.steps, callback=clock)
    return measure(clock.steps, clock.seconds)


def run_breakdown(args: Args, folder: str) -> dict:
    """Seconds of the script in the envs, in the policy, in the update, and in the rest of the rollout."""
    import torch

    script, script_args = make_script_args(args, folder)
    spent = {"env": 0.0, "policy": 0.0, "update": 0.0}
    started = updating = 0.0
    act = "act" if hasattr(script.Agent, "act") else "forward"
    make_envs, compute_gae, policy = script.make_envs, script.compute_gae, getattr(script.Agent, act)

    def timed(name, function):
        def run(*args):
            start = time.perf_counter()
            result = function(*args)
            spent[name] += time.perf_counter() - start
            return result

        return run

    def timed_envs(*args):
        envs = make_envs(*args)
        step = timed("env", envs.step)

        def first_step(*args):
            nonlocal started, updating
            if updating and not started:  # the first iteration is warming up
                spent.update(dict.fromkeys(spent, 0.0))
                started, updating = time.perf_counter(), 0.0
            if updating:
                spent["update"] += time.perf_counter() - updating
                updating = 0.0
            return step(*args)

        envs.step = first_step
        return envs

    def timed_gae(*args):
        nonlocal updating
        updating = time.perf_counter()
        return compute_gae(*args)

    timed_policy = timed("policy", policy)
    setattr(
        script.Agent, act, lambda *args: policy(*args) if torch.is_grad_enabled() else timed_policy(*args)
    )
    script.make_envs, script.compute_gae = timed_envs, timed_gae
    script.evaluate = lambda *args: [0.0]
    script.train(script_args)
    spent["update"] += time.perf_counter() - updating
    total = time.perf_counter() - started
    return spent | {"rest": total - sum(spent.values())}


def in_a_process(args: Args, only: str) -> dict:
    """Run this file once more for one run -> what it measured, with its peak memory in MiB."""
    fields = asdict(args) | {"only": only}
    fields.pop("num_envs")
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in fields.items()]
    env = os.environ | {"OMP_NUM_THREADS": str(args.threads)}
    result = subprocess.run([sys.executable, __file__, *flags], capture_output=True, text=True, env=env)
    if result.returncode:
        raise SystemExit(result.stderr)
    return json.loads(result.stdout.splitlines()[-1])


def main(args: Args) -> None:
    """Run the pairs, print each of them and their ratios."""
    if args.only:
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
            result = globals()[f"run_{args.only}"](args, folder)
        result["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        if "torch" in sys.modules and sys.modules["torch"].cuda.is_initialized():
            result["gpu_memory"] = sys.modules["torch"].cuda.max_memory_allocated() / 2**20
        print(json.dumps(result))
        return
    if not (ROOT / f"{args.script.replace('.', '/')}.py").exists():
        refuse(f"there is no script {args.script}; it is named like ppo_discrete or variants.trpo")
    if args.repeats:
        from run_sb3 import check_peer

        check_peer(args.script.rpartition(".")[2])
    print(f"{args.script} on {args.env_id}, {args.threads} threads, {args.steps:,} steps a run {args.flags}")
    ratios = []
    for _ in range(args.repeats):
        ours, theirs = in_a_process(args, "ours"), in_a_process(args, "sb3")
        ratios.append(ours["speed"] / theirs["speed"])
        print(f"{describe(ours)}   peer {describe(theirs)}   ratio {ratios[-1]:.2f}", flush=True)
    if ratios:
        print(f"ratio: min {min(ratios):.2f}, median {statistics.median(ratios):.2f}, max {max(ratios):.2f}")
        spent = in_a_process(args, "breakdown")
        spent.pop("memory")
        total = sum(spent.values())
        print("time:", ", ".join(f"{name} {share / total:.0%}" for name, share in spent.items()), end="; ")
        print(f"env {spent['env'] / (total - spent['update']):.0%} of the rollout")
    for num_envs in args.num_envs:
        _, script_args = make_script_args(args, "")
        steps = max(args.steps, 8 * num_envs * script_args.num_steps)
        flags = f"{args.flags} --num-envs {num_envs}"
        print(f"{num_envs:4} envs: {describe(in_a_process(replace(args, steps=steps, flags=flags), 'ours'))}")


def describe(result: dict[str, float]) -> str:
    return (
        f"{result['speed']:8,.0f} steps/s, start-up {result['startup']:3.0f} s, {result['memory']:5,.0f} MiB"
    )


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
