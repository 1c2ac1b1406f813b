# /// script
# requires-python = ">=3.11"
# dependencies = ["rejax==0.1.3", "gymnax<1"]
# ///
"""PPO of rejax (JAX) on CartPole, as timings.py measures it beside variants/ppo_tensor_envs.py.

    uv run benchmarks/run_rejax.py ours 1    # settings (rejax's own, or ours) and seed

The last line it prints is JSON, of CPU time on one core: steps per second, seconds until the first step
(imports and compilation), and steps until the mean of 128 episodes is 475, judged every 131,072 steps (null:
never).
"""

import argparse
import json
import os
import time

COMMON = dict(env="CartPole-v1", ent_coef=0.01, max_grad_norm=0.5, agent_kwargs={"activation": "tanh"})
SETTINGS = {  # rejax's are those of its configs/gymnax/cartpole.yaml
    "rejax": dict(num_envs=5, num_steps=100, num_epochs=5, num_minibatches=5, learning_rate=7.5e-4),
    "ours": dict(num_envs=512, num_steps=32, num_epochs=2, num_minibatches=8, learning_rate=2.5e-3),
}


def main() -> None:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("settings", choices=SETTINGS)
    parser.add_argument("seed", type=int)
    args = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # one core, of which XLA makes one thread
    import jax
    from rejax import PPO

    imports = time.process_time()
    every, steps = 131_072, 1_048_576
    config = COMMON | SETTINGS[args.settings] | dict(total_timesteps=steps, eval_freq=every)
    ppo, key = PPO.create(**config), jax.random.PRNGKey(args.seed)
    _, (_, returns) = jax.block_until_ready(jax.jit(ppo.train)(key))  # with evaluations
    solved = [n * every for n, mean in enumerate(returns.mean(-1)) if mean >= 475]
    alone = ppo.replace(eval_callback=lambda *_: (), skip_initial_evaluation=True, eval_freq=steps)
    start = time.process_time()
    train = jax.jit(alone.train).lower(key).compile()
    startup = imports + time.process_time() - start
    start = time.process_time()
    jax.block_until_ready(train(key))
    speed = steps / (time.process_time() - start)
    print(json.dumps({"speed": speed, "startup": startup, "solved": min(solved, default=None)}))


if __name__ == "__main__":
    main()
