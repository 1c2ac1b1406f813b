"""Single operations, timed: what docs/performance.md says of them comes from here, by way of timings.py.

    python benchmarks/operations.py

One thread; each line is the median over 7 loops. Ratios within a pair are steadier than the times themselves.
"""

import importlib.util
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from common import ROOT, Parser
from learning_curves import apply_patch
from torch import nn
from torch.distributions import Categorical, kl_divergence
from torch.nn.utils import clip_grad_norm_
from torch.optim import Adam

import ppo_atari
import ppo_continuous
import ppo_discrete
from variants import trpo

# For glibc's malloc: large blocks come from the heap, too, and what is free there is not given back.
KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "4000000000"}


def show(name: str, function, loops: int = 1000) -> None:
    """Time function, after some calls to warm up, and count the pages that it touches for the first time."""
    for _ in range(max(3, loops // 10)):
        function()
    times, faults = [], resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(7):
        start = time.perf_counter()
        for _ in range(loops):
            function()
        times.append((time.perf_counter() - start) / loops * 1e6)
    faults = (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults) / loops / 7
    print(f"{name:70} {statistics.median(times):10,.2f} us  {faults:8,.0f} page faults", flush=True)


def gradient_step(script, agent, batch, args, compiled=False):
    """A function that does what train() does with a minibatch."""
    parameters = list(agent.parameters())
    optimizer = Adam(parameters, lr=0.0, eps=1e-5, fused=True)

    def backpropagate(agent, batch):
        dist, value = agent(batch.obs)
        loss, _ = script.ppo_loss(dist, value, batch, args.clip_coef, args)
        loss.backward()

    backward = torch.compile(backpropagate) if compiled else backpropagate

    def step():
        optimizer.zero_grad()
        backward(agent, batch)
        clip_grad_norm_(parameters, args.max_grad_norm)
        optimizer.step()

    return step


def load_bfloat16():
    """ppo_atari.py as benchmarks/bfloat16.patch changes it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ppo_atari.py"
        apply_patch(ROOT / "benchmarks/bfloat16.patch", ROOT / "ppo_atari.py", path)
        spec = importlib.util.spec_from_file_location("ppo_atari_bfloat16", path)
        script = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(script)
    return script


def atari(memory_kept: bool) -> None:
    """A gradient step on 256 frames, and for malloc as it comes what it is made of and could be."""
    args = ppo_atari.Args(threads=1)
    envs = ppo_atari.make_envs(args, 1)
    obs = torch.randint(256, (1024, 4, 84, 84), dtype=torch.uint8)
    ordered, idx = obs.contiguous(memory_format=torch.channels_last), torch.randperm(1024)[:256]
    numbers = torch.zeros(256), *torch.randn(4, 256)

    def step(obs, script=ppo_atari):
        return gradient_step(script, script.Agent(envs), script.Batch(obs[idx], *numbers), args)

    def reorder():
        return obs.contiguous(memory_format=torch.channels_last)

    kept = ", memory kept" if memory_kept else ""
    show(f"Breakout, gradient step{kept}", step(ordered), 5)
    show(f"Breakout, gradient step, not channels-last{kept}", step(obs), 5)
    if memory_kept:
        return
    show("Breakout, gradient step, convolutions in bfloat16", step(ordered, load_bfloat16()), 5)
    show("Breakout, a rollout's frames made channels-last", reorder, 5)
    linear, features = nn.Linear(64 * 7 * 7, 512), torch.rand(256, 64, 7, 7, requires_grad=True)
    convolution = nn.Conv2d(64, 512, 7).to(memory_format=torch.channels_last)
    show("Breakout, linear layer", lambda: linear(features.flatten(1)).sum().backward(), 5)
    show("Breakout, the same as a convolution", lambda: convolution(features).sum().backward(), 5)


def small() -> None:
    """What a step of 4 envs, and an update of a small network, are made of."""
    args = ppo_discrete.Args()
    envs = ppo_discrete.make_envs(args, 4)
    agent = ppo_discrete.Agent(envs)
    reward, rewards = np.ones(4), np.zeros((128, 4), np.float32)
    tensor = torch.zeros(128, 4)
    show("a row of rewards, NumPy", lambda: rewards.__setitem__(5, reward))
    show("a row of rewards, torch", lambda: tensor.__setitem__(5, torch.as_tensor(reward)))
    ones, dones = np.ones((2048, 1), np.float32), np.zeros((2048, 1), np.float32)
    arrays = ones, ones, ones, dones  # rewards, values, next values
    show("GAE of 2048 steps, NumPy", lambda: ppo_discrete.compute_gae(*arrays, 0.99, 0.95), 5)
    tensors = [torch.as_tensor(array) for array in arrays]
    show("GAE of 2048 steps, torch", lambda: ppo_discrete.compute_gae(*tensors, 0.99, 0.95), 5)
    stats = ppo_continuous.RunningStats()
    show("running statistic, update", lambda: stats.update(tensor[0]))

    obs = torch.randn(4, 4)
    with torch.no_grad():
        show("action, logits + noise", lambda: agent.act(obs))
        sample = lambda: Categorical(logits=agent.logits(obs), validate_args=False).sample()  # noqa: E731
        show("action, sample of Categorical", sample)
        show("action and value", lambda: (agent.act(obs), agent.critic(obs)))
        act = torch.compile(agent.act)
        show("action, logits + noise, compiled", lambda: act(obs))
        w1, b1, w2, b2, w3, b3 = (parameter.numpy() for parameter in agent.actor.parameters())
        x, gumbel = obs.numpy(), np.random.default_rng(1).gumbel
        hidden = lambda: np.tanh(np.tanh(x @ w1.T + b1) @ w2.T + b2)  # noqa: E731
        show("action, logits + noise, NumPy", lambda: (hidden() @ w3.T + b3 + gumbel(size=(4, 2))).argmax(-1))
    with torch.inference_mode():
        show("action, logits + noise, inference mode", lambda: agent.act(obs))

    batch = ppo_discrete.Batch(torch.randn(128, 4), torch.zeros(128), *torch.randn(4, 128))
    show("gradient step", gradient_step(ppo_discrete, agent, batch, args), 200)
    torch._dynamo.config.trace_autograd_ops = True
    show("gradient step, compiled", gradient_step(ppo_discrete, agent, batch, args, compiled=True), 200)
    parameters = list(agent.parameters())
    show("clipping the gradient", lambda: clip_grad_norm_(parameters, 0.5))
    flat = torch.nn.Parameter(torch.randn(9155))
    flat.grad = torch.randn(9155)
    show("clipping the gradient, in one tensor", lambda: clip_grad_norm_(flat, 0.5))
    show("Adam, fused", Adam(parameters, lr=0.0, fused=True).step)
    show("Adam, fused, in one tensor", Adam([flat], lr=0.0, fused=True).step)
    show("Adam", Adam(parameters, lr=0.0).step)


def fisher() -> None:
    """A product with TRPO's Fisher matrix, for 2,048 steps of Hopper-v5, in two ways."""
    envs = ppo_continuous.make_envs(ppo_continuous.Args(env_id="Hopper-v5"), 1)
    agent, obs, damping = trpo.Agent(envs), torch.randn(2048, 11), 0.1
    parameters, dist = [*agent.actor.parameters(), agent.log_std], agent.policy(obs)
    with torch.no_grad():
        old = agent.policy(obs)
    z = torch.stack([dist.mean / old.stddev, 2**0.5 * dist.stddev.log()], 1)
    product = trpo.fisher_vector_product(z, parameters, damping)
    gradient = trpo.flat_gradient(kl_divergence(old, dist).mean(), parameters, create_graph=True)
    vector = torch.randn(len(gradient))
    hessian = lambda v: trpo.flat_gradient(gradient @ v, parameters) + damping * v  # noqa: E731
    assert torch.allclose(product(vector), hessian(vector), rtol=1e-4, atol=1e-5)
    show("product with the Fisher matrix", lambda: product(vector), 20)
    show("the same, as second derivatives of the KL", lambda: hessian(vector), 20)


if __name__ == "__main__":
    parser = Parser(__doc__)
    parser.add_argument("--memory-kept", action="store_true", help="for the process that this one starts")
    torch.set_num_threads(1)
    if parser.parse_args().memory_kept:
        atari(memory_kept=True)
    else:
        atari(memory_kept=False)
        line = [sys.executable, __file__, "--memory-kept"]
        subprocess.run(line, env=os.environ | KEEP_MEMORY, check=True)
        small()
        fisher()
