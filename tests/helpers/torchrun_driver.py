"""What test_distributed.py starts under torchrun: train, then write down what this process has."""

import json
import math
import os
import signal
import sys

import torch

root, flags, folder, dies_at = sys.argv[1:]
sys.path.insert(0, root)
from variants import ppo_atari_distributed as script  # noqa: E402

args = script.Args(**json.loads(flags))
batches, gradients, losses = [], [], 0
loss_function, step = script.ppo_loss, torch.optim.Adam.step


def ppo_loss(dist, value, batch, clip_coef, args):
    global losses
    losses += 1
    if losses == int(dies_at) and script.RANK == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    batches.append(batch)
    loss, metrics = loss_function(dist, value, batch, clip_coef, args)
    if args.target_kl < math.inf:  # one process is far above it, the other far below
        metrics["kl"] = torch.tensor(float(script.RANK))
    return loss, metrics


def recorded_step(self, *args, **kwargs):
    global optimizer
    optimizer = self
    gradients.append([p.grad.clone() for group in self.param_groups for p in group["params"]])
    return step(self, *args, **kwargs)


script.ppo_loss, torch.optim.Adam.step = ppo_loss, recorded_step
script.evaluate = lambda *_: [0.0]
agent, log = script.train(args)
state = {"agent": agent.state_dict(), "optimizer": optimizer.state_dict(), "losses": losses, "log": len(log)}
state["kl"] = [row["kl"] for row in log]
state |= {"batch": tuple(batches[0]), "gradients": gradients[0]}
torch.save(state, f"{folder}/rank{script.RANK}.pt")
