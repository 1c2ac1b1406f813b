"""Detail X2: two processes under torchrun train as one, with the batches of both."""

import itertools
import json
import math
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import ROOT, Stopped
from test_operations import checkpoint, flags_of, run, same, same_end

import ppo_atari
from variants import ppo_atari_distributed

TORCHRUN = [*["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"], "2"]


def torchrun(*command):
    """Of two processes -> what came of it."""
    command = [sys.executable, *TORCHRUN, *map(str, command)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.fixture
def make_two(make_args):
    """Args of 4 iterations of two processes, in a game."""
    sizes = dict(env_id="Breakout", total_timesteps=4 * 2 * 16)
    return lambda **flags: make_args(ppo_atari_distributed, **sizes | flags)


@pytest.fixture
def train_two(tmp_path):
    """train_two(args, dies_at) -> what each process has in the end; one may die in that gradient step."""

    def train(args, dies_at=0):
        driver = [
            ROOT / "tests/helpers/torchrun_driver.py",
            ROOT,
            json.dumps(asdict(args)),
            tmp_path,
            dies_at,
        ]
        result = torchrun(*driver)
        assert (result.returncode == 0) == (dies_at == 0), result.stderr
        return (
            [] if dies_at else [torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) for rank in (0, 1)]
        )

    return train


def test_two_processes_end_with_the_same_weights(make_two, train_two):
    args = make_two(checkpoints=2)
    first, second = train_two(args)
    assert same(first["agent"], second["agent"])
    assert same(first["optimizer"], second["optimizer"])
    assert not torch.equal(first["batch"][0], second["batch"][0])  # they saw different envs
    assert (first["log"], second["log"]) == (4, 0)
    assert checkpoint(args.run_dir)["iteration"] == 4
    assert len(list(Path(args.run_dir).glob("events*"))) == 1


@pytest.mark.long
def test_two_processes_killed_and_resumed(make_two, train_two, capfd):
    whole, half = make_two(checkpoints=2), make_two(checkpoints=2)
    train_two(whole)
    train_two(half, dies_at=3 * 4 + 1)  # one process that dies ends both
    assert checkpoint(half.run_dir)["iteration"] == 2
    train_two(replace(half, resume=half.run_dir))
    assert same_end(half.run_dir, whole.run_dir)
    with pytest.raises(ppo_atari_distributed.Mistake) as mistake:  # nor can it become another number of them
        ppo_atari_distributed.train(replace(half, resume=half.run_dir, total_timesteps=10**4))
    assert str(mistake.value) == f"{half.run_dir} is of 2 processes, not 1"


@pytest.mark.long
@pytest.mark.parametrize("longest", [1e-3, math.inf], ids=["clipped", "whole"])
def test_gradient_of_two_processes_is_that_of_both_batches(longest, make_two, train_two):
    """And it is clipped when it is the mean: clipped before, those of the two would count alike."""
    flags = dict(norm_adv=False, update_epochs=1, num_minibatches=1, learning_rate=0.0, total_timesteps=32)
    args = make_two(vf_coef=0.0, max_grad_norm=longest, **flags)
    states = train_two(args)
    agent = ppo_atari_distributed.Agent(ppo_atari_distributed.make_envs(args, 1))
    agent.load_state_dict(states[0]["agent"])

    def gradient_of(*batches):
        batch = ppo_atari_distributed.Batch(*map(torch.cat, zip(*batches, strict=True)))
        agent.zero_grad()
        ppo_atari_distributed.ppo_loss(*agent(batch.obs), batch, args.clip_coef, args)[0].backward()
        assert torch.nn.utils.clip_grad_norm_(agent.parameters(), longest) > 2e-3
        return torch.cat([parameter.grad.flatten() for parameter in agent.parameters()])

    batches = [ppo_atari_distributed.Batch(*state["batch"]) for state in states]
    expected, alone = gradient_of(*batches), [gradient_of(batch) for batch in batches]
    if longest < math.inf:  # the test can tell
        assert ((alone[0] + alone[1]) / 2 - expected).norm() > 0.02 * expected.norm()
    for state in states:
        gradient = torch.cat([gradient.flatten() for gradient in state["gradients"]])
        assert (gradient - expected).norm() < 1e-3 * expected.norm()


@pytest.mark.long
@pytest.mark.parametrize(("target_kl", "epochs"), [(0.4, 1), pytest.param(0.6, 2, marks=pytest.mark.slow)])
def test_target_kl_stops_both_processes_together(target_kl, epochs, make_two, train_two):
    """By their mean KL, here (0 + 1) / 2: by one's own, only one of them would stop."""
    first, second = train_two(make_two(target_kl=target_kl))
    assert first["losses"] == second["losses"] == 4 * 2 * epochs
    assert same(first["agent"], second["agent"])
    assert first["kl"] == [0.5] * 4  # and that is what the curve shows


@pytest.mark.long
def test_from_the_shell_one_speaks(make_two):
    """And what it says last is not lost."""
    args = make_two()
    result = torchrun(ppo_atari_distributed.__file__, *flags_of(args))
    lines = result.stdout.splitlines()
    assert result.returncode == 0, result.stderr
    assert lines[0] == f"Breakout on cpu; --resume {args.run_dir} goes on from its last checkpoint"
    assert [line.split()[0] for line in lines[1:5]] == ["32", "64", "96", "128"]
    assert lines[-1].startswith("mean return") and len(lines) == 8


@pytest.mark.long
def test_without_torchrun_it_says_so(make_two):
    env = {name: value for name, value in os.environ.items() if name != "TORCHELASTIC_RUN_ID"}
    result = run(ppo_atari_distributed, env=env)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "ppo_atari_distributed.py: it is started by torchrun, as --help shows\n"
    with pytest.raises(ppo_atari_distributed.Mistake, match="--device cuda:1 is not here; there is cuda"):
        ppo_atari_distributed.train(make_two(device="cuda:1"))
    args = make_two(total_timesteps=16, eval_episodes=0)
    ppo_atari_distributed.train(args)
    result = run(ppo_atari_distributed, "--evaluate", args.run_dir, "--eval-episodes", 1, env=env)  # but this
    assert (result.returncode, result.stderr) == (0, "") and "in 1 episodes" in result.stdout


def test_as_many_steps_as_all_processes_take(make_two, monkeypatch, capsys):
    monkeypatch.setattr(ppo_atari_distributed, "WORLD_SIZE", 2)
    ppo_atari_distributed.check(make_two(total_timesteps=32))
    with pytest.raises(ppo_atari_distributed.Mistake, match="31 is less than a rollout of 32 steps"):
        ppo_atari_distributed.check(make_two(total_timesteps=31))


def test_one_process_is_ppo_atari_but_for_its_seeds(make_args, no_evaluation):
    """Whose key names the process: with the same seeds, the same weights."""
    original = ppo_atari.seed_everything

    def with_rank(seed, purpose, num_envs=0):
        return original(seed, purpose + " of 0" * purpose.startswith("cut"), num_envs)

    agents = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ppo_atari, "seed_everything", with_rank)
        for script in (ppo_atari, ppo_atari_distributed):
            agents.append(script.train(make_args(script, learning_rate=1e-2, checkpoints=2))[0])
    assert same(agents[0].state_dict(), agents[1].state_dict())


def test_steps_are_those_of_all_processes(make_args, no_evaluation, monkeypatch):
    """In a resumed run, too; each iteration takes one second, by the clock."""
    monkeypatch.setattr(ppo_atari_distributed, "WORLD_SIZE", 2)
    clock = SimpleNamespace(perf_counter=itertools.count().__next__)
    monkeypatch.setattr(ppo_atari_distributed, "time", clock)
    args = make_args(ppo_atari_distributed)
    more = replace(args, resume=args.run_dir, total_timesteps=2 * args.total_timesteps)
    log = [row for each in (args, more) for row in ppo_atari_distributed.train(each)[1]]
    assert [row["steps"] for row in log] == [32, 64, 96, 128]
    assert [row["steps_per_second"] for row in log] == [32] * 4


def test_another_process_leaves_nothing_behind(make_args, monkeypatch):
    """No folder, no curves, neither here nor at Weights & Biases, and no second evaluation."""
    args = make_args(ppo_atari_distributed, iterations=1, track=True)
    monkeypatch.setattr(ppo_atari_distributed, "RANK", 1)
    monkeypatch.setattr(ppo_atari_distributed, "report", None)
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert ppo_atari_distributed.train(args)[1] == []
    assert not Path(args.run_dir).exists()
    monkeypatch.setattr(sys, "stdout", sys.stdout)  # main() silences it
    monkeypatch.setattr(ppo_atari_distributed, "RANK", 0)
    ppo_atari_distributed.train(replace(args, track=False, eval_episodes=0))
    monkeypatch.setattr(ppo_atari_distributed, "RANK", 1)
    monkeypatch.setattr(sys, "argv", ["", "--evaluate", args.run_dir])
    ppo_atari_distributed.main()


def test_each_process_of_a_machine_has_a_gpu_of_its_own(make_args, monkeypatch):
    """The fourth of the second machine takes its fourth one, though it is the twelfth process."""
    names = []

    def pick(name):
        names.append(name)
        if len(names) == 2:
            raise Stopped
        return torch.device("cuda", 0)

    monkeypatch.setattr(ppo_atari_distributed, "RANK", 11)
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setattr(ppo_atari_distributed, "pick_device", pick)
    with pytest.raises(Stopped):
        ppo_atari_distributed.train(make_args(ppo_atari_distributed, device="cuda"))
    assert names == ["cuda", "cuda:3"]
