"""Every script, and a small run of each."""

import json

from conftest import SCRIPTS, toy

from variants import (
    dpo,
    grpo,
    ppo_atari_distributed,
    ppo_llm,
    ppo_llm_truncated,
    ppo_lstm,
    ppo_tensor_envs,
    reward_model,
)

GAMES = [*(script for script in SCRIPTS if script is not ppo_atari_distributed), ppo_lstm, ppo_tensor_envs]
LANGUAGE = [ppo_llm, ppo_llm_truncated, grpo]
PREFERENCES = [dpo, reward_model]


def spread(prompts, completions, completion_ids, **columns):
    """A reward whose scores differ."""
    return [sum(ids) % 7 / 7 for ids in completion_ids]


def small_args(script, folder, iterations=2, **flags):
    """Args of a run that is saved twice on its way, which takes short episodes."""
    if script in LANGUAGE + PREFERENCES:
        numbers = [str(i * 37 % 1000) for i in range(12)]
        lines = [json.dumps({"prompt": f"{x}>", "answer": x[::-1]}) for x in numbers]
        (folder / "task.jsonl").write_text("\n".join(lines) + "\n")
        small = dict(task=str(folder / "task.jsonl"), reward="every:spread", num_envs=4)
        small |= dict(max_new_tokens=4, sft_steps=1, learning_rate=1e-3, total_episodes=4 * iterations)
        small |= dict(group_size=2, eval_episodes=3)
    else:
        small = dict(env_id=toy(script, "Wages"), num_envs=4, num_steps=32, threads=1)
        small |= dict(eval_episodes=2, total_timesteps=128 * iterations)
    if script in PREFERENCES:
        small |= dict(batch_size=4, total_pairs=4 * iterations, num_pairs=8, eval_size=3, max_new_tokens=8)
    small |= dict(update_epochs=2, critic_epochs=2, num_minibatches=2, checkpoints=2)
    small |= dict(run_dir=str(folder / "run")) | flags
    if script is ppo_llm_truncated:
        small |= dict(num_steps=4, total_timesteps=16 * iterations)
    return script.Args(**{name: value for name, value in small.items() if hasattr(script.Args, name)})
