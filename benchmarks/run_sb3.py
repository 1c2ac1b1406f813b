"""Train stable-baselines3's PPO, or sb3-contrib's TRPO, as one of the scripts would: same env, same
hyper-parameters, same statistics.

    pip install -r benchmarks/requirements.txt
    python benchmarks/run_sb3.py ppo_discrete.py --env-id CartPole-v1 --seed 2    # the script's own flags

Its run folder has args.json and TensorBoard events like the script's, with the return of the evaluation, so
that benchmarks/learning_curves.py takes it for one more script. It cannot be resumed.
"""

import importlib
import json
import math
import sys
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

import tyro
from common import Parser, refuse


def check_peer(script: str) -> None:
    """Refuse if what a script is compared with is not installed."""
    for package in ["stable_baselines3"] + ["sb3_contrib"] * (script == "trpo"):
        if not find_spec(package):
            refuse(f"{package} is not installed; pip install -r benchmarks/requirements.txt")


def make_peer_envs(script: str, args, num_envs: int, seed: int):
    """stable-baselines3's envs for the Args of a script."""
    from stable_baselines3.common.env_util import make_atari_env, make_vec_env
    from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize

    if script == "ppo_atari":
        import ale_py
        import gymnasium as gym

        gym.register_envs(ale_py)
        env_kwargs = {"full_action_space": args.full_action_space} | json.loads(args.env_kwargs)
        wrapper_kwargs = {
            "terminal_on_life_loss": args.episodic_life,
            "action_repeat_probability": args.sticky_actions,
        }
        envs = make_atari_env(
            args.env_id, num_envs, seed, env_kwargs=env_kwargs, wrapper_kwargs=wrapper_kwargs
        )
        return VecFrameStack(envs, 4)
    envs = make_vec_env(args.env_id, num_envs, seed=seed, env_kwargs=json.loads(args.env_kwargs))
    return VecNormalize(envs, gamma=args.gamma) if script in ("ppo_continuous", "trpo") else envs


def make_trpo(args, envs, seed: int):
    """sb3-contrib's TRPO, whose KL is a mean over the components of an action, not their sum."""
    from sb3_contrib import TRPO

    components = envs.action_space.shape[0]
    share = 1 / (args.total_timesteps // (args.num_envs * args.num_steps))  # which they count as done
    return TRPO(
        "MlpPolicy",
        envs,
        n_steps=args.num_steps,
        batch_size=args.num_envs * args.num_steps // args.num_minibatches,
        n_critic_updates=args.critic_epochs,
        learning_rate=lambda remaining: args.learning_rate * (remaining + share if args.anneal_lr else 1),
        gamma=args.gamma,
        gae_lambda=args.gae_lambda,
        target_kl=args.target_kl / components,
        cg_max_steps=args.cg_iters,
        cg_damping=args.cg_damping / components,
        line_search_max_iter=args.backtracks,
        line_search_shrinking_factor=args.backtrack_ratio,
        normalize_advantage=args.norm_adv,
        policy_kwargs={"log_std_init": args.log_std_init},
        device=args.device,
        seed=seed,
    )


def make_peer(script: str, args, seed: int):
    """stable-baselines3's PPO for the Args of a script; sb3-contrib's TRPO for those of variants/trpo.py."""
    from stable_baselines3 import PPO

    if script != "trpo" and math.isfinite(args.target_kl):
        raise SystemExit("run_sb3.py: --target-kl is not the same thing in stable-baselines3")
    if script == "ppo_atari" and not args.env_id.endswith("NoFrameskip-v4"):
        raise SystemExit("run_sb3.py: the same games are those whose --env-id ends in NoFrameskip-v4")
    envs = make_peer_envs(script, args, args.num_envs, seed)
    if script == "trpo":
        return make_trpo(args, envs, seed)
    share = 1 / (args.total_timesteps // (args.num_envs * args.num_steps))  # which they count as done
    return PPO(
        "CnnPolicy" if script == "ppo_atari" else "MlpPolicy",
        envs,
        n_steps=args.num_steps,
        batch_size=args.num_envs * args.num_steps // args.num_minibatches,
        n_epochs=args.update_epochs,
        learning_rate=lambda remaining: args.learning_rate * (remaining + share if args.anneal_lr else 1),
        gamma=args.gamma,
        gae_lambda=args.gae_lambda,
        clip_range=lambda remaining: args.clip_coef * (remaining + share if args.anneal_clip else 1),
        clip_range_vf=args.vf_clip_coef,
        normalize_advantage=args.norm_adv,
        ent_coef=args.ent_coef,
        vf_coef=args.vf_coef / 2,  # its value loss is the squared error, ours half of it
        max_grad_norm=args.max_grad_norm,
        policy_kwargs={"log_std_init": getattr(args, "log_std_init", 0.0)},
        device=args.device,
        seed=seed,
    )


def evaluate(script: str, agent, args) -> list[float]:
    """Returns of eval_episodes whole episodes, actions sampled, normalisation as it was at the end."""
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import VecNormalize

    envs = make_peer_envs(script, args, args.eval_episodes, 10_000 * (args.seed + 1))
    if isinstance(envs, VecNormalize):
        envs.obs_rms, envs.training, envs.norm_reward = agent.get_vec_normalize_env().obs_rms, False, False
    returns, _ = evaluate_policy(
        agent, envs, args.eval_episodes, deterministic=args.eval_greedy, return_episode_rewards=True
    )
    return returns


def train(script: str, args, run_dir: Path) -> list[float]:
    """Train, log the mean return of the last 100 episodes each iteration -> returns of the evaluation."""
    import torch
    from stable_baselines3.common.callbacks import BaseCallback
    from torch.utils.tensorboard import SummaryWriter

    class Log(BaseCallback):
        def _on_step(self) -> bool:
            return True

        def _on_rollout_end(self) -> None:
            episodes = [episode["r"] for episode in self.model.ep_info_buffer]
            mean = sum(episodes) / len(episodes) if episodes else float("nan")
            writer.add_scalar("episode_return", mean, self.num_timesteps)

    torch.set_num_threads(args.threads)
    writer = SummaryWriter(run_dir)
    rollout = args.num_envs * args.num_steps
    agent = make_peer(script, args, args.seed)
    agent.learn(args.total_timesteps // rollout * rollout, callback=Log())
    returns = evaluate(script, agent, args)
    writer.add_scalar("eval_return", sum(returns) / len(returns), agent.num_timesteps)
    writer.close()
    return returns


def main() -> None:
    """Read the flags of the script named first, and train."""
    known = ("ppo_discrete.py", "ppo_continuous.py", "ppo_atari.py", "variants/trpo.py")
    parser = Parser(__doc__)
    parser.usage = "%(prog)s SCRIPT [its flags; SCRIPT --help lists them]"
    parser.add_argument("script", choices=known, metavar="SCRIPT", help=f"one of {', '.join(known)}")
    path = parser.parse_args(sys.argv[1:2]).script
    script = importlib.import_module(path.removesuffix(".py").replace("/", "."))
    args = tyro.cli(script.Args, args=sys.argv[2:], prog=f"{Path(sys.argv[0]).name} {path}")
    name = Path(path).stem
    check_peer(name)
    script.check(args)
    run_dir, lock = script.make_run_dir(args)
    flags = json.dumps(asdict(args), indent=2).replace(": Infinity", ': "inf"')
    (run_dir / "args.json").write_text(flags + "\n")
    returns = train(name, args, run_dir)
    print("returns of evaluation:", *(f"{episode_return:g}" for episode_return in returns))
    mean = sum(returns) / len(returns)
    print(f"mean return {mean:g} in {len(returns)} episodes of evaluation; see {run_dir}")


if __name__ == "__main__":
    main()
