# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "sbx-rl==0.28.0", "skrl==2.1.1", "torch==2.13.0", "gymnasium[mujoco]==1.4.0", "numpy==2.4.6",
#     "tyro==1.0.17", "tensorboard==2.21.0", "tqdm==4.70.1", "filelock==4.2.11",
# ]
# ///
"""Speed of PPO in other libraries, as timings.py measures it: env and settings of a script, on one core.

    uv run --no-project benchmarks/run_peers.py skrl ppo_discrete
    CLEANRL=~/cleanrl python benchmarks/run_peers.py cleanrl ppo_continuous    # needs a checkout of CleanRL

What runs of CleanRL is a copy of its file, patched for today's gymnasium; the checkout stays as it is.
The last line is JSON: steps per second of CPU time, without the first quarter of the run.
"""

import contextlib
import json
import os
import runpy
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path

import speed
from common import Parser, refuse

RUNS = {
    "ppo_discrete": speed.Args("ppo_discrete", "CartPole-v1", steps=102_400),
    "ppo_continuous": speed.Args("ppo_continuous", "HalfCheetah-v5", steps=40_960),
}
CLEANRL = {"ppo_discrete": "ppo.py", "ppo_continuous": "ppo_continuous_action.py"}
ENDED = 'infos["final_info"]["episode"]'
PATCHES = [  # how the file's name ends, a text in it, and what is there instead; the first is the clock
    (".py", "# bootstrap value if not done", "clock.append((global_step, now()))"),
    (".py", "(args.num_envs)]", "(args.num_envs)], autoreset_mode=gym.vector.AutoresetMode.SAME_STEP"),
    (
        ".py",
        'in infos["final_info"]:',
        f'in [{{"episode": {{k: {ENDED}[k][i] for k in "rl"}}}} for i in {ENDED}["_r"].nonzero()[0]]:',
    ),
    ("action.py", "np.clip(obs, -10, 10))", "np.clip(obs, -10, 10), env.observation_space)"),
]


def run_compiled(args: speed.Args, folder: str) -> dict:
    return speed.run_ours(replace(args, flags="--compile"), folder)


def run_sbx(args: speed.Args, folder: str) -> dict:
    """Its PPO takes the arguments of stable-baselines3's."""
    import sbx
    import stable_baselines3

    stable_baselines3.PPO = sbx.PPO
    return speed.run_sb3(args, folder)


def find_cleanrl(script: str) -> Path:
    """The file of CleanRL that does what a script does."""
    path = Path(os.environ.get("CLEANRL", "")).expanduser() / "cleanrl" / CLEANRL[script]
    return path if path.exists() else refuse("the variable CLEANRL is not the path of a checkout of CleanRL")


def run_cleanrl(args: speed.Args, folder: str) -> dict:
    """Settings that both have are ours; they have the same names."""
    path = find_cleanrl(args.script)
    text = path.read_text()
    words = []  # its switches are as ours without that
    for name, value in asdict(speed.make_script_args(args, folder)[1]).items():
        if f"\n    {name}: " in text and not isinstance(value, bool):
            words.append(f"--{name.replace('_', '-')}={value}")
    for ending, old, new in PATCHES:
        if path.name.endswith(ending):
            text = text.replace(old, new) if old in text else refuse(f"{path} has no {old}")
    Path(folder, path.name).write_text(text)
    os.chdir(folder)  # where it logs
    sys.argv, clock = [path.name, *words], []
    runpy.run_path(path.name, {"clock": clock, "now": speed.now}, "__main__")
    return speed.measure(*zip(*clock, strict=True))


def run_skrl(args: speed.Args, folder: str) -> dict:
    import gymnasium as gym
    from skrl.agents.torch.ppo import PPO, PPO_CFG
    from skrl.envs.wrappers.torch import wrap_env
    from skrl.memories.torch import RandomMemory
    from skrl.resources.preprocessors.torch import RunningStandardScaler
    from skrl.trainers.torch import SequentialTrainer
    from skrl.utils.model_instantiators.torch import categorical_model, deterministic_model, gaussian_model
    from torch.optim.lr_scheduler import LambdaLR

    _, ours = speed.make_script_args(args, folder)
    if ours.num_envs == 1:
        envs = gym.wrappers.ClipAction(gym.make(args.env_id))
    else:
        envs = gym.make_vec(args.env_id, ours.num_envs, vectorization_mode="sync")
    envs, updates = wrap_env(envs), args.steps // (ours.num_envs * ours.num_steps)
    common = {"observation_space": envs.observation_space, "action_space": envs.action_space, "device": "cpu"}
    layers = [{"name": "net", "input": "OBSERVATIONS", "layers": [64, 64], "activations": "tanh"}]
    cfg = PPO_CFG(
        rollouts=ours.num_steps,
        learning_epochs=ours.update_epochs,
        mini_batches=ours.num_minibatches,
        discount_factor=ours.gamma,
        gae_lambda=ours.gae_lambda,
        learning_rate=ours.learning_rate,
        learning_rate_scheduler=LambdaLR,  # which counts epochs
        learning_rate_scheduler_kwargs={"lr_lambda": lambda n: 1 - n // ours.update_epochs / updates},
        grad_norm_clip=ours.max_grad_norm,
        ratio_clip=ours.clip_coef,
        value_clip=ours.vf_clip_coef,
        entropy_loss_scale=ours.ent_coef,
        value_loss_scale=ours.vf_coef / 2,  # its value loss is the squared error, ours half of it
        time_limit_bootstrap=True,
        experiment={"directory": folder, "checkpoint_interval": 0},
    )
    make_policy = categorical_model
    if args.script == "ppo_continuous":
        make_policy = gaussian_model
        cfg.observation_preprocessor = cfg.value_preprocessor = RunningStandardScaler
        cfg.observation_preprocessor_kwargs = {"size": envs.observation_space, "device": "cpu"}
        cfg.value_preprocessor_kwargs = {"size": 1, "device": "cpu"}
    models = {
        "policy": make_policy(network=layers, output="ACTIONS", **common),
        "value": deterministic_model(network=layers, output="ONE", **common),
    }
    memory = RandomMemory(memory_size=ours.num_steps, num_envs=envs.num_envs, device="cpu")
    agent = PPO(models=models, memory=memory, cfg=cfg, **common)
    clock, update = [], agent.update

    def clocked(*, timestep: int, timesteps: int) -> None:
        clock.append(((timestep + 1) * envs.num_envs, speed.now()))
        update(timestep=timestep, timesteps=timesteps)

    agent.update = clocked
    trainer = {"timesteps": args.steps // envs.num_envs, "headless": True, "disable_progressbar": True}
    SequentialTrainer(env=envs, agents=agent, cfg=trainer).train()
    return speed.measure(*zip(*clock, strict=True))


PEERS = {
    "ours": speed.run_ours,
    "compiled": run_compiled,
    "sb3": speed.run_sb3,
    "cleanrl": run_cleanrl,
    "sbx": run_sbx,
    "skrl": run_skrl,
}


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("script", choices=RUNS)
    args = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    os.environ |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}  # before torch is there
    speed.now, speed.START = time.process_time, 0.0
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,  # skrl may still be logging
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stdout(nowhere),
    ):
        result = PEERS[args.peer](RUNS[args.script], folder)
    print(json.dumps({"speed": result["speed"]}))


if __name__ == "__main__":
    main()
