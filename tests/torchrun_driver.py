"""What test_operations.py starts under torchrun: train, then write down what this process has."""

import json
import math
import os
import signal
import sys

import torch

sys.path.insert(0, sys.argv[1])
script = __import__(sys.argv[2])
args, folder, dies_at = script.Args(**json.loads(sys.argv[3])), sys.argv[4], int(sys.argv[5])
batches, gradients, losses = [], [], 0
batch_class, loss_function, clip = script.Batch, script.ppo_loss, script.clip_grad_norm_


def ppo_loss(dist, value, batch, args):
    global losses
    losses += 1
    if losses == dies_at and script.RANK == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    batches.append(batch)
    loss, metrics = loss_function(dist, value, batch, args)
    if args.target_kl < math.inf:  # one process is far above it, the other far below
        metrics["kl"] = torch.tensor(float(script.RANK))
    return loss, metrics


def clip_grad_norm_(parameters, max_norm):
    parameters = list(parameters)
    gradients.append([parameter.grad.clone() for parameter in parameters])
    return clip(parameters, max_norm)


def adam(*args, **kwargs):
    global optimizer
    optimizer = torch.optim.Adam(*args, **kwargs)
    return optimizer


script.ppo_loss, script.clip_grad_norm_, script.Adam = ppo_loss, clip_grad_norm_, adam
agent, log = script.train(args)
state = {"agent": agent.state_dict(), "optimizer": optimizer.state_dict(), "losses": losses}
state |= {"batch": tuple(batches[0]) if batches else (), "gradients": gradients[0] if batches else []}
torch.save(state, f"{folder}/rank{script.RANK}.pt")
