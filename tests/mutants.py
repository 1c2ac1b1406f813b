"""Break the scripts on purpose, one line at a time, and see whether the tests notice.

    python tests/mutants.py                         # all mutants; exit code 1 if one survives
    python tests/mutants.py D08 ppo_discrete        # those of a tag in a script
    python tests/mutants.py D06 D08 grpo ppo_llm    # those of either tag in either script
    python tests/mutants.py ppo_discrete            # those of all tags in a script

Every mutant is made of each script that has its line, or of those that it names, in a copy of the project.
There it runs against the test that is to catch it (for a tag: the one in docs/details.md), as far as that
test is of the broken script. So a test that cannot fail shows up as a survivor.
"""

import argparse
import difflib
import multiprocessing
import os
import re
import shutil
import signal
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
REINFORCE, DISCRETE, TRPO = ("reinforce_baseline",), ("ppo_discrete",), ("trpo",)
ATARI, LSTM, DISTRIBUTED = ("ppo_atari",), ("ppo_atari_lstm",), ("ppo_atari_distributed",)
MASKED, PENALTY, CONTINUOUS = ("ppo_masked",), ("ppo_penalty",), ("ppo_continuous",)
VECTOR = REINFORCE + DISCRETE + MASKED + PENALTY + CONTINUOUS + TRPO
GAMES = ATARI + LSTM + DISTRIBUTED
SCRIPTS = VECTOR + GAMES
PPO_LLM, GRPO = ("ppo_llm",), ("grpo",)
LANGUAGE = PPO_LLM + GRPO
ONE_PROCESS = VECTOR + ATARI + LSTM + LANGUAGE


class Mutant(NamedTuple):
    subject: str  # a tag, or a word
    line: str  # or a part of it
    broken: str
    test: str = ""  # as in test_gae::test_one_transition; default: the one in the table of tags
    scripts: tuple[str, ...] = SCRIPTS  # those of them that have the line (and a tag's: LANGUAGE, too)


# fmt: off
MUTANTS = [Mutant(*mutant) for mutant in (
    # ---- the core
    ("D01", "obs[0] = obs[T]", "obs[0] = envs.reset()[0]"),
    ("D01", "obs[0] = obs[T]", "pass"),
    ("D01", "obs[0], masks[0] = obs[T], masks[T]", "masks[0] = masks[T]"),
    ("D01", "obs[0], starts[0], first_state = obs[T], starts[T], state",
     "starts[0], first_state = starts[T], state"),
    ("D02", "nn.init.orthogonal_(layer.weight, gain)", "nn.init.xavier_uniform_(layer.weight, gain)"),
    ("D02", "nn.init.zeros_(layer.bias)", "pass"),
    ("D02", "gain=0.01)", "gain=1.0)"),
    ("D03", "eps=1e-5", "eps=1e-8"),
    ("D03", "eps=1e-5", "eps=1e-4"),
    ("D04", "args.learning_rate * (remaining if args.anneal_lr else 1)", "args.learning_rate"),
    ("D04", "args.learning_rate * (remaining if args.anneal_lr else 1)", "args.learning_rate * remaining"),
    ("D04", "1 - iteration / num_iterations", "1 - (iteration + 1) / num_iterations"),
    ("D05", "(1 - dones[t]) * gae_lambda * advantages", "0.0 * advantages"),
    ("D05", "(1 - dones[t]) * gae_lambda * advantages", "gae_lambda * advantages"),
    ("D05", "rewards + gamma * next_values", "rewards + next_values"),
    ("D06", "np.random.permutation(B)", "np.arange(B)"),
    ("D06", "np.random.permutation(B)", "np.random.randint(B, size=B)"),
    ("D07", "(advantages - advantages.mean()) / (advantages.std() + 1e-8)", "advantages"),
    ("D07", "advantages - advantages.mean()", "advantages"),
    ("D08", "-torch.min(ratio * advantages, clipped_ratio * advantages)", "-(ratio * advantages)"),
    ("D08", "-torch.min(ratio * advantages, clipped_ratio * advantages)", "-(clipped_ratio * advantages)"),
    ("D08", "-torch.min(ratio", "-torch.max(ratio"),
    ("D08", "ratio.clamp(1 - clip_coef", "ratio.clamp(1 / (1 + clip_coef)"),
    ("D09", "torch.max((value - batch.returns)", "torch.min((value - batch.returns)"),
    ("D09", "(value - batch.values).clamp(-args.vf_clip_coef, args.vf_clip_coef)", "value - batch.values"),
    ("D10", "- args.ent_coef * entropy", ""),
    ("D10", "- args.ent_coef * entropy", "+ args.ent_coef * entropy"),
    ("D10", "args.vf_coef * value_loss", "value_loss"),
    ("D11", "nn.utils.clip_grad_norm_(parameters, args.max_grad_norm)", "torch.zeros(())"),
    ("D11", "clip_grad_norm_(parameters", "clip_grad_norm_(parameters[:6]"),
    ("D12", "metric.detach()", "metric"),
    ("D12", "(ratio - 1 - log_ratio).mean()", "-log_ratio.mean()"),
    ("D12", "(ratio != clipped_ratio)", "(ratio > clipped_ratio)"),
    ("D13", "self.critic(obs)", "self.critic[-1](self.actor[:-1](obs))"),
    ("D37", ".dim() - 1), self.critic", ".dim() * 0), self.critic"),
    ("D37", "torch.arange(choices.max()) < choices", "torch.arange(choices.max()) < choices.max()"),
    ("D37", "torch.arange(choices.max()) < choices", "torch.arange(choices.max()) <= choices"),
    ("X1", "(remaining if args.anneal_clip else 1)", "1"),
    ("X1", "(remaining if args.anneal_clip else 1)", "remaining"),
    ("X3", 'if metrics["kl"] > args.target_kl', "if False"),
    ("X3", 'if metrics["kl"] > args.target_kl', "if True"),
    ("E1", "if timeout.any():", "if False:"),
    ("E1", "np.where(dones, final_values, old_values[1:])", "old_values[1:]"),
    ("E1", "np.where(dones, final_values, old_values[1:])", "(1 - dones) * old_values[1:]"),
    ("E1", "dones[t], final_values[t] = reward, done, 0", "dones[t] = reward, done"),
    ("E1", "rewards[t], final_values[t] = np.sign(reward), 0", "rewards[t] = np.sign(reward)"),
    ("E1", "truncated & ~terminated", "truncated"),
    ("E1", "truncated & ~terminated", "terminated | truncated"),
    ("E1", 'np.stack(infos["final_obs"][timeout])', "obs[t + 1, timeout]"),
    ("E2", 'f"cut {iteration}', 'f"cut {first_iteration}'),
    ("E2", "load(run_dir, args, agent=agent, optimizer=optimizer)", "load(run_dir, agent=agent)"),
    ("E2", "load(run_dir, args, agent=agent, optimizer=optimizer)",
     "load(run_dir, args, optimizer=optimizer)"),
    ("E2", 'past.get("episodes", ())', "()"),
    ("E2", "purge_step=steps + 1 if args.resume else None", "purge_step=None"),
    ("E2", "            envs.close()\n            envs = make_envs(args, N)  # [E2]",
     "            envs = make_envs(args, N) if iteration == first_iteration else envs  # [E2]"),
    ("E2", 'open(run_dir / "checkpoint.tmp", "wb")', 'open(run_dir / "checkpoint.pt", "wb")'),
    ("E2", "score[:], length[:], past_return[:] = 0, 0, 0", "score[:], length[:] = 0, 0"),
    ("E2", 'self.register_buffer("count", torch.tensor(1e-4))', "self.count = torch.tensor(1e-4)"),
    # ---- what went unnoticed for long
    ("unnoticed", "writer.flush()", "pass", "test_operations::test_no_checkpoint_is_ahead_of_its_curves"),
    ("unnoticed", "writer.flush()", "pass", "test_llm::test_no_checkpoint_is_ahead_of_its_curves", LANGUAGE),
    ("unnoticed", "1 - clip_coef, 1 + clip_coef)", "1 - args.clip_coef, 1 + args.clip_coef)",
     "test_loss::test_the_ratio_is_clipped_by_what_is_given"),
    ("unnoticed", "args.gamma, args.gae_lambda)", "args.gae_lambda, args.gamma)",
     "test_train::test_returns_are_built_from_raw_advantages"),
    ("unnoticed", "dones[t] = done | (", "dones[t] = done = done | (",
     "test_atari::test_a_lost_life_is_an_end_for_the_learner_alone", GAMES),
    ("unnoticed", 'metrics["kl"] > args.target_kl', 'metrics["kl"] > 1.5 * args.target_kl',
     "test_train::test_target_kl_is_compared_with_the_last_minibatch"),
    ("unnoticed", ", maxlen=100)", ", maxlen=10)",
     "test_train::test_returns_are_means_of_the_last_100_episodes", VECTOR),
    ("unnoticed", ", maxlen=100)", ")",
     "test_train::test_returns_are_means_of_the_last_100_episodes", VECTOR),
    ("unnoticed", "if x[0] >= 0.8 * iteration", "", "test_train::test_returns_of_a_short_run"),
    ("unnoticed", "] or list(episodes)[-1:]", "]", "test_train::test_returns_of_a_short_run"),
    ("unnoticed", "mean = float(np.mean(returns))", "mean = float(np.max(returns))",
     "test_train::test_returns_are_means_of_the_last_100_episodes", VECTOR),
    ("unnoticed", "B / (time.perf_counter() - start)", "steps / (time.perf_counter() - start)",
     "test_train::test_steps_per_second"),
    ("unnoticed", "gamma: float = 0.99", "gamma: float = 0.98", "test_train::test_defaults"),
    ("unnoticed", "torch.set_num_threads(args.threads)", "pass", "test_train::test_threads"),
    ("unnoticed", "num_threads=args.threads,", "", "test_atari::test_protocol_is_explicit", GAMES),
    ("unnoticed", "math.ceil(num_iterations / 20) == 0", "20 == 0",
     "test_at_home::test_twenty_lines_of_progress", VECTOR),
    ("unnoticed", "{episode_return:g}", "{episode_return:.1f}",
     "test_operations::test_small_returns_are_not_rounded_away"),
    ("unnoticed", "learning_rate: float = 2.5e-4", "learning_rate: float = 2.5e-3",
     "test_train::test_defaults"),
    ("unnoticed", "num_steps: int = 128", "num_steps: int = 64", "test_train::test_defaults"),
    ("unnoticed", "starts[t + 1] = dones[t]", "starts[t + 1] = done",
     "test_lstm::test_a_lost_life_empties_the_memory", LSTM),
    ("unnoticed", "truncated | (args.episodic_life & infos", "truncated | (False & infos",
     "test_lstm::test_a_lost_life_empties_the_memory", LSTM),
    ("unnoticed", "truncated | (args.episodic_life & infos", "truncated | (True & infos",
     "test_lstm::test_a_lost_life_empties_the_memory", LSTM),
    ("unnoticed", "first_iteration * B * WORLD_SIZE, []", "first_iteration * B, []",
     "test_distributed::test_steps_are_those_of_all_processes", DISTRIBUTED),
    ("unnoticed", "B * WORLD_SIZE / (time", "B / (time",
     "test_distributed::test_steps_are_those_of_all_processes", DISTRIBUTED),
    ("unnoticed", "if args.track and RANK == 0:", "if args.track:",
     "test_distributed::test_another_process_leaves_nothing_behind", DISTRIBUTED),
    ("unnoticed", "        if args.evaluate:\n            return\n", "",
     "test_distributed::test_another_process_leaves_nothing_behind", DISTRIBUTED),
    ("unnoticed", "cuda:{os.environ['LOCAL_RANK']}", "cuda:{RANK}",
     "test_distributed::test_each_process_of_a_machine_has_a_gpu_of_its_own", DISTRIBUTED),
    ("unnoticed", "masks.any(-1).all()", "masks.flatten(1).any(-1).all()",
     "test_masked::test_a_state_without_a_valid_action_is_an_error", MASKED),
    ("unnoticed", "-1e9", "-30.0", "test_masked::test_no_invalid_action_is_ever_sampled", MASKED),
    ("unnoticed", "surrogate(dist, batch, args) - objective", "surrogate(dist, batch, args)",
     "test_trpo::test_the_gain_is_over_the_old_policy", TRPO),
    ("unnoticed", "surrogate(dist, batch, args) - objective", "surrogate(dist, batch, args)",
     "test_trpo::test_a_search_that_fails_without", TRPO),
    ("unnoticed", "hidden[0][mask]", "hidden[0].roll(1, 1)[mask]",
     "test_llm::test_values_are_of_the_states_before", PPO_LLM),
    ("unnoticed", "hidden[0][mask].float()", "hidden[0][mask].float().detach()",
     "test_llm::test_values_are_of_the_states_before", PPO_LLM),
    ("unnoticed", "returns = advantages + values", "returns = advantages.clone()",
     "test_llm::test_advantages_and_returns", PPO_LLM),
    ("unnoticed", "args.gamma, args.gae_lambda)", "args.gae_lambda, args.gamma)",
     "test_llm::test_advantages_and_returns", PPO_LLM),
    ("unnoticed", "(returns - values)[mask].var() / returns[mask].var()",
     "(returns - values).var() / returns.var()", "test_llm::test_explained_variance", PPO_LLM),
    ("unnoticed", "float(np.mean(exact))", 'row["score"]', "test_llm::test_exact", LANGUAGE),
    ("unnoticed", '"exact": bool(exact)', '"exact": True', "test_llm::test_exact", LANGUAGE),
    ("unnoticed", "task.held_out[start : start + args.num_envs]", "task.held_out[: args.num_envs]",
     "test_llm::test_evaluation_answers_each", LANGUAGE),
    ("unnoticed", "add_generation_prompt=True", "add_generation_prompt=False",
     "test_llm::test_a_chat_goes_on", LANGUAGE),
    ("unnoticed", "ratio.clamp(1 - clip_coef", "ratio.clamp(1 - args.clip_coef",
     "test_llm::test_the_ratio_is_clipped", LANGUAGE),
    ("unnoticed", 'metrics["kl"] > args.target_kl', 'metrics["kl"] > 1.5 * args.target_kl',
     "test_llm::test_target_kl_is_compared", LANGUAGE),
    ("unnoticed", "[random.choice(task.training) for _ in range(N)]", "(task.training * N)[:N]",
     "test_llm::test_prompts_are_drawn", PPO_LLM),
    ("unnoticed", "[random.choice(task.training) for _ in range(N // args.group_size)]",
     "[random.choice(task.training)] * (N // args.group_size)", "test_llm::test_prompts_are_drawn", GRPO),
    ("unnoticed", "if not torch.as_tensor(y).isfinite().all()", "if False",
     "test_llm::test_a_loss_that_is_not_finite", LANGUAGE),
    ("unnoticed", '("model", "task", "task_config", "seed", "num_envs")', '("task",)',
     "test_llm::test_what_cannot_change", LANGUAGE),
    ("unnoticed", "exists() and not args.resume", "exists() and False",
     "test_llm::test_a_folder_that_is_there", LANGUAGE),
    ("unnoticed", "(iteration - first_iteration) % save_every", "iteration % save_every",
     "test_llm::test_a_run_that_goes_on", LANGUAGE),
    ("unnoticed", "            wandb.log(log[-1])\n", "            pass\n", "test_llm::test_wandb", LANGUAGE),
    ("unnoticed", ".mean().item() for name in history[0]}", "[-1].item() for name in history[0]}",
     "test_llm::test_metrics_are_means", LANGUAGE),
    ("unnoticed", ".astype(bool).mean())", ".astype(bool).any())", "test_llm::test_signal", GRPO),
    ("unnoticed", "    nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)\n", "    pass\n",
     "test_llm::test_steps_of_the_warm_start", LANGUAGE),
    ("unnoticed", "initial=steps", "initial=0", "test_operations::test_checkpoints_at_regular_intervals"),
    ("unnoticed", "lr=args.sft_learning_rate", "lr=args.learning_rate",
     "test_llm::test_steps_of_the_warm_start", LANGUAGE),
    # ---- what these lines are for
    ("death", "if timeout.any():", "if False:", "test_train::test_a_time_limit_is_not_death",
     REINFORCE + DISCRETE + MASKED),
    ("lambda", "* gae_lambda * advantages", "* advantages", "test_gae::test_lambda_zero_is_the_td_error"),
    ("lambda", "* gae_lambda * advantages", "* 0.5 * advantages", "test_gae::test_lambda_one_is_monte_carlo"),
    ("leak", "gamma * (1 - dones[t])", "gamma",
     "test_gae::test_nothing_leaks_through_the_end_of_an_episode"),
    ("ends", "gamma * next_values", "next_values", "test_gae::test_one_transition"),
    ("inputs", "advantages = rewards + gamma * next_values - values",
     "rewards += gamma * next_values - values; advantages = rewards",
     "test_gae::test_what_it_is_given_stays_as_it_was"),
    ("ratio", "dist.log_prob(all_actions)", "0.9 * dist.log_prob(all_actions)",
     "test_train::test_the_ratio_is_one_on_fresh_data", DISCRETE + MASKED + PENALTY + CONTINUOUS),
    ("ratio", "agent(all_obs[:T]", "agent(all_obs[1:]",
     "test_train::test_the_ratio_is_one_on_fresh_data", DISCRETE + MASKED + PENALTY + CONTINUOUS),
    ("ratio", "= dist.log_prob(action), ", "= 0.9 * dist.log_prob(action), ",
     "test_train::test_the_ratio_is_one_on_fresh_data"),
    ("ratio", "        # update\n", "        agent.obs_stats.update(on_device(obs[:T]).flatten(0, 1))\n",
     "test_continuous::test_the_ratio_is_one", CONTINUOUS + PENALTY),
    ("act", "else logits + gumbel", "else logits - gumbel",
     "test_agent::test_actions_follow_the_distribution"),
    ("act", "logits if greedy else ", "", "test_agent::test_actions_follow_the_distribution"),
    ("act", "self.log_std.exp() * torch", "torch",
     "test_agent::test_continuous_actions_follow_the_distribution"),
    ("act", "mean if greedy else ", "", "test_agent::test_continuous_actions_follow_the_distribution"),
    ("act", "agent.act(on_device(obs[t])).cpu()", "agent.act(on_device(obs[t]), True).cpu()",
     "test_train::test_actions_are_samples"),
    ("act", "on_device(masks[t])).cpu()", "on_device(masks[t]), True).cpu()",
     "test_train::test_actions_are_samples"),
    ("act", "action = dist.sample()", "action = dist.mode", "test_train::test_actions_are_samples"),
    ("act", "torch.empty_like(logits)", "torch.empty_like(logits[0])",
     "test_train::test_actions_are_samples"),
    ("act", "agent.act(on_device(obs[t])", "agent.act(on_device(obs[0])",
     "test_train::test_the_agent_acts_on_the_states"),
    ("act", "agent.act(on_device(obs[t])", "agent.act(on_device(obs[max(t - 1, 0)])",
     "test_train::test_the_agent_acts_on_the_states_that"),
    ("compile", "disable=not args.compile", "disable=True",
     "test_train::test_a_compiled_update_is_the_same", DISCRETE + ATARI),
    ("compile", "    if args.compile:", "    if True:",
     "test_train::test_a_compiled_update_is_the_same", DISCRETE),
    ("compile", "torch._dynamo.config.trace_autograd_ops = True", "pass",
     "test_train::test_a_compiled_update_is_the_same", DISCRETE),
    ("order", "obs=batch.obs.contiguous(memory_format=torch.channels_last)", "",
     "test_atari::test_pixels_are_scaled_once"),
    ("first step", "log_ratio.exp()", "(2 * log_ratio).exp()",
     "test_loss::test_the_first_gradient_is_that_of_reinforce"),
    ("first step", "(dist.log_prob(batch.actions) - batch.logprobs).exp()",
     "(2 * (dist.log_prob(batch.actions) - batch.logprobs)).exp()",
     "test_loss::test_the_first_gradient_is_that_of_reinforce", PENALTY),
    ("first step", "(dist.log_prob(batch.actions) - batch.logprobs).exp()",
     "(2 * (dist.log_prob(batch.actions) - batch.logprobs)).exp()",
     "test_trpo::test_the_first_gradient_is_that_of_reinforce", TRPO),
    ("sibling", 'seed_everything(args.seed, "weights")', 'seed_everything(args.seed, "others")',
     "test_family::test_one_epoch_of_one_minibatch_is_reinforce", DISCRETE),
    ("sibling", "np.random.permutation(B)", "torch.randperm(B)",
     "test_family::test_one_epoch_of_one_minibatch_is_reinforce", DISCRETE),
    ("sibling", "0.5 * ((value", "((value", "test_family::test_one_epoch_of_one_minibatch_is_reinforce",
     REINFORCE),
    ("sibling", "eps=1e-5", "eps=1e-6", "test_family::test_one_epoch_of_one_minibatch_is_reinforce",
     REINFORCE),
    ("value loss", "0.5 * ((value", "((value", "test_loss::test_value_loss_is_half_the_squared_error",
     REINFORCE),
    ("value loss", "0.5 * value_error", "value_error",
     "test_loss::test_value_loss_is_half_the_squared_error"),
    ("baseline", "if args.baseline else batch.returns", "",
     "test_loss::test_no_baseline_weighs_with_returns"),
    ("targets", "returns = advantages + old_values[:T]", "returns = old_values[:T].copy()",
     "test_train::test_returns_are_built_from"),
    ("variance", "(batch.advantages.var()", "(batch.advantages.square().mean()",
     "test_train::test_explained_variance"),
    ("tanh", "nn.Tanh()", "nn.ReLU()", "test_agent::test_hidden_units_are_tanh"),
    ("unused", "torch.where(self.valid, self.actor(obs).unflatten(-1, self.valid.shape), -1e9)",
     "self.actor(obs).unflatten(-1, self.valid.shape)", "test_agent::test_unused_logits"),
    ("uniform", "gain=0.01)", "gain=1.0)", "test_agent::test_starts_close_to_uniform",
     REINFORCE + DISCRETE + MASKED),
    ("score", "score[done], length[done] = 0, 0", "length[done] = 0",
     "test_train::test_returns_are_those_of_whole_episodes"),
    ("score", "score[done], length[done], past_return[done] = 0, 0, 0",
     "length[done], past_return[done] = 0, 0",
     "test_train::test_returns_are_those_of_whole_episodes"),
    ("score", "score, length], 1)[done].tolist())", "score, length], 1).tolist())",
     "test_train::test_returns_are_those_of_whole_episodes"),
    ("evaluate", "score += reward * running", "score += reward",
     "test_train::test_evaluation_plays_one_whole"),
    ("evaluate", "agent.act(obs, args.eval_greedy)", "agent.act(obs)",
     "test_train::test_evaluation_is_greedy"),
    ("evaluate", "(obs, masks, args.eval_greedy)", "(obs, masks)", "test_train::test_evaluation_is_greedy"),
    ("evaluate", "dist.mode if args.eval_greedy else ", "", "test_train::test_evaluation_is_greedy_if_asked"),
    ("evaluate", 'seed_everything(args.seed, "evaluation", ', 'seed_everything(time.time_ns() % 2**32, "", ',
     "test_operations::test_evaluation_in_a_new_process_is_that_of_training"),
    ("evaluate", "    load(folder, agent=agent)\n", "",
     "test_operations::test_evaluation_in_a_new_process_is_that_of_training"),
    ("evaluate", "args.eval_episodes or Args.eval_episodes", "args.eval_episodes",
     "test_at_home::test_a_run_without_evaluation_can_be_evaluated", VECTOR),
    ("film", "except (Exception, SystemExit)", "except Exception",
     "test_at_home::test_an_env_that_cannot_be_filmed", VECTOR),
    ("fit", ", 10 * longest / T))", "))", "test_operations::test_cuts_are_rare"),
    ("fit", "per_episode\", 0) / 4", "per_episode\", 0)", "test_operations::test_cuts_are_rare", GAMES),
    ("fit", 'envs.spec.kwargs.get("max_episode_steps") or ', "", "test_operations::test_cuts_are_rare",
     VECTOR),
    ("metrics", ".mean().item() for name in history[0]", "[-1].item() for name in history[0]",
     "test_train::test_metrics_are_means"),
    ("seed", '    seed_everything(args.seed, "weights")\n    envs = make_envs(args, 1)',
     '    envs = make_envs(args, 1)\n    seed_everything(args.seed, "weights")',
     "test_train::test_envs_are_made_from_the_seed"),
    ("seed", 'seeds = seed_everything(args.seed, "evaluation", args.eval_episodes)\n    envs = make_envs',
     'seeds, envs = range(args.eval_episodes), make_envs', "test_train::test_envs_are_made_from_the_seed"),
    ("seed", "    torch.manual_seed(seeds[0])", "    pass", "test_train::test_same_seed_same_weights"),
    ("seed", "    random.seed(seeds[0])", "    pass", "test_train::test_seeds_of_everything"),
    ("seed", "np.random.seed(seeds[0])", "pass", "test_train::test_seeds_of_everything"),
    ("seed", "SeedSequence([seed, *purpose.encode()])", "SeedSequence([seed])",
     "test_train::test_seeds_of_everything"),
    ("seed", "SeedSequence([seed, *purpose.encode()])", "SeedSequence([seed + len(purpose)])",
     "test_train::test_seeds_of_everything"),
    ("seed", "envs.reset(seed=seeds)  # the next", "envs.reset(seed=args.seed)  # the next",
     "test_train::test_envs_of_neighbouring_seeds_differ", VECTOR),
    ("log", 'log.append({"steps": steps} | row)', 'log.append({"steps": B} | row)',
     "test_train::test_run_dir"),
    ("log", "json.dumps(asdict(args)", "json.dumps(asdict(Args())", "test_train::test_run_dir"),
    ("log", '.replace(": Infinity", \': "inf"\')', "", "test_operations::test_flags_are_json"),
    ("infos", "class Flatten(FlattenObservation):", "class Flatten(FlattenObservation):\n    pass\n\n\n"
     "class Unused(FlattenObservation):", "test_operations::test_infos_may_differ",
     REINFORCE + DISCRETE + PENALTY + CONTINUOUS + TRPO),
    ("flatten", "[Flatten]", "[]", "test_train::test_observations_are_flattened"),
    # ---- operations
    ("cut", "(iteration - first_iteration) % save_every", "iteration % save_every",
     "test_operations::test_checkpoints_at_regular_intervals"),
    ("cut", "            score[:], length[:] = 0, 0\n", "", "test_operations::test_a_cut_ends_no_episode"),
    ("cut", "score[:], length[:], past_return[:] = 0, 0, 0", "past_return[:] = 0",
     "test_operations::test_a_cut_ends_no_episode"),
    ("cut", "score[:], length[:], starts[T] = 0, 0, 1", "starts[T] = 1",
     "test_operations::test_a_cut_ends_no_episode"),
    ("cut", "score[:], length[:], starts[T] = 0, 0, 1", "score[:], length[:] = 0, 0",
     "test_lstm::test_a_cut_opens_episodes"),
    ("save", 'open(run_dir / "checkpoint.tmp", "wb")', 'open(run_dir / "checkpoint.pt", "wb")',
     "test_operations::test_full_disk_while_saving", DISCRETE),
    ("save", "' '.join((str(error) or repr(error)).split())", "(str(error) or repr(error)).splitlines()[0]",
     "test_operations::test_evaluation_in_another_env", DISCRETE),
    ("save", "weights_only=True", "weights_only=False", "test_operations::test_spoiled_checkpoint"),
    ("save", 'if checkpoint["writer"] != WRITER', "if False",
     "test_operations::test_spoiled_checkpoint"),
    ("save", "if getattr(resuming, name) != getattr(saved, name)", "if False",
     "test_operations::test_what_cannot_change"),
    ("save", '"num_steps", "log_std_init"', '"num_steps"', "test_operations::test_deviations_cannot_change"),
    ("save", "!= content[-32:]", "!= b''", "test_operations::test_spoiled_checkpoint"),
    ("save", "[(y.shape, y.stride()) for y in moments.values()] != [", "[] and [",
     "test_operations::test_crafted_optimizer"),
    ("save", "(y.shape, y.stride()) for", "(y.shape, y.shape and x.stride()) for",
     "test_operations::test_crafted_optimizer"),
    ("save", "resume=args.resume, evaluate=args.evaluate)\n", "evaluate=args.evaluate)\n",
     "test_operations::test_flags_of_the_run_hold"),
    ("save", ", default=saved)", ", default=replace(Args(), resume=args.resume, evaluate=args.evaluate))",
     "test_operations::test_flags_of_the_run_hold"),
    ("finite", "if not torch.as_tensor(x).isfinite().all()]", "if False]",
     "test_operations::test_failure", VECTOR),
    ("finite", " | agent.state_dict()\n", "\n", "test_operations::test_statistics_that_overflow",
     CONTINUOUS + PENALTY + TRPO),
    ("finite", '"obs": obs, "final_obs"', '"final_obs"', "test_operations::test_failure", VECTOR),
    ("finite", '"final_obs": final_obs, ', "", "test_operations::test_failure", VECTOR),
    ("finite", '"reward": rewards', "", "test_operations::test_failure", VECTOR),
    ("finite", ', "final_value": final_values', "", "test_operations::test_values_of_games_are_checked_too",
     GAMES),
    ("finite", "} | row | agent", "} | agent", "test_operations::test_exploding_loss",
     REINFORCE + DISCRETE + MASKED),
    ("async", '"async" if args.async_envs else "sync"', '"sync"', "test_operations::test_a_dead_env_process",
     DISCRETE),
    ("wandb", "wandb.log(log[-1])", "pass", "test_operations::test_wandb_offline_has_everything", DISCRETE),
    ("film", "screens.step(action.cpu().numpy())", "screens.step(0 * action.cpu().numpy())",
     "test_atari::test_the_film_is_of_the_game_that_is_played"),
    ("film", "screens.reset(seed=seeds)", "screens.reset(seed=[1])",
     "test_atari::test_the_film_is_of_the_game_that_is_played"),
    ("film", "save_video(frames[:-1]", "save_video(frames", "test_atari::test_the_film_is_of_the_game"),
    ("film", "episode == 0", "episode == 1", "test_operations::test_video_is_of_a_whole_episode",
     REINFORCE + DISCRETE + MASKED),
    ("mistake", "raise SystemExit(2)", "raise SystemExit(1)", "test_mistakes::test_from_the_shell"),
    ("mistake", "not low <= value <= high", "(value < low or value > high)", "test_mistakes::test_mistake"),
    ("mistake", "B // args.num_minibatches < 2", "False", "test_mistakes::test_mistake"),
    ("mistake", "or np.any(action_space.start)", "", "test_mistakes::test_mistake"),
    ("mistake", "    check(args)\n    T, N", "    T, N", "test_mistakes::test_mistake"),
    ("neutral", '"clip_coef", "vf_clip_coef", ', '"clip_coef", ', "test_mistakes::test_neutral_values"),
    ("neutral", 'highest["vf_clip_coef"] = math.inf', "pass",
     "test_mistakes::test_neutral_values_are_not_mistakes", PENALTY),
    # ---- continuous actions
    ("D23", "Normal(self.mean(obs)", "Normal(0.5 * self.mean(obs)"),
    ("D24", "nn.Parameter(torch.full(self.action_shape, log_std_init))",
     "torch.full(self.action_shape, log_std_init)"),
    ("D24", "torch.full(self.action_shape, log_std_init)", "-torch.ones(self.action_shape)"),
    ("D25", "Independent(dist, len(self.action_shape))", "dist"),
    ("D26", "self.critic(self.normalize(obs))", "self.critic[-1](self.actor[:-1](self.normalize(obs)))"),
    ("D27", "gym.wrappers.vector.ClipAction(envs)", "envs"),
    ("D27", "agent.act(on_device(obs[t])).cpu()", "agent.act(on_device(obs[t])).clamp(-0.5, 0.5).cpu()", "",
     CONTINUOUS + PENALTY + TRPO),
    ("D28", "(obs - self.obs_stats.mean) / self.obs_stats.std()", "obs"),
    ("D28", "/ self.obs_stats.std()", "/ self.obs_stats.var"),
    ("D29", "obs.clamp(-10, 10)", "obs"),
    ("D29", "obs.clamp(-10, 10)", "obs.clamp(-5, 5)"),
    ("D30", "rewards / agent.return_stats.std().item()", "rewards"),
    ("D30", "args.gamma * past_return + reward", "reward"),
    ("D30", "args.gamma * past_return + reward", "args.gamma * past_return * (t > 0) + reward"),
    ("D30", "score[done], length[done], past_return[done] = 0, 0, 0",
     "score[done], length[done] = 0, 0"),
    ("D31", "scaled_rewards.clip(-10, 10)", "scaled_rewards"),
    ("time limits", "past_return[done] = 0, 0", "past_return[terminated] = 0, 0",
     "test_continuous::test_reward_scaling_restarts"),
    ("centred", "rewards / agent", "(rewards - agent.return_stats.mean.item()) / agent",
     "test_continuous::test_rewards_are_scaled_and_not_centred"),
    ("statistics", "x.mean(0) - self.mean", "x.mean() - self.mean",
     "test_continuous::test_running_statistics"),
    ("statistics", "+ (1 - weight) * delta**2", "", "test_continuous::test_running_statistics"),
    ("statistics", "agent.obs_stats.update(batch.obs)", "pass", "test_continuous::test_statistics_cover"),
    ("statistics", "agent.obs_stats.update(batch.obs)",
     "agent.obs_stats.update(on_device(obs).flatten(0, 1))",
     "test_continuous::test_statistics_cover_each_rollout_once"),
    ("final", "on_device(final_obs[timeout])", "on_device(final_obs[timeout] + 1)",
     "test_continuous::test_final_observations_are_normalised_and_not_counted",
     CONTINUOUS + PENALTY + TRPO),
    ("final", "= agent(on_device(final_obs[timeout]))",
     "= (agent.obs_stats.update(on_device(final_obs[timeout])), agent(on_device(final_obs[timeout])))[1]",
     "test_continuous::test_final_observations_are_normalised_and_not_counted",
     CONTINUOUS + PENALTY + TRPO),
    ("buffers", 'self.register_buffer("mean", torch.zeros(shape))', "self.mean = torch.zeros(shape)",
     "test_continuous::test_statistics_travel_with_the_weights"),
    # ---- games
    ("D14", "noop_max=31", "noop_max=30"),
    ("D14", "noop_max=31", "noop_max=1"),
    ("D15", "frameskip=4", "frameskip=3"),
    ("D15", "frameskip=4", "frameskip=4, maxpool=False"),
    ("D16", 'done | (args.episodic_life & infos["life_lost"])  # [D16]', "done  # [D16]"),
    ("D16", 'args.episodic_life & infos["life_lost"])  # [D16]', 'infos["life_lost"])  # [D16]'),
    ("D16", "frameskip=4", "frameskip=4, episodic_life=True"),
    ("D17", "np.where(self.starts, self.fire, actions)", "actions"),
    ("D17", "np.where(self.starts, self.fire, actions)", "np.full_like(actions, self.fire)",
     "test_atari::test_fire_is_not_pressed_where_the_agent_acts"),
    ("D17", 'infos["life_lost"] | terminated | truncated', "terminated | truncated"),
    ("D18", "grayscale=not colour", "grayscale=False"),
    ("D18", "210 if colour else 84", "210 if colour else 80"),
    ("D19", "np.sign(reward)", "np.clip(reward, -10, 10)"),
    ("D19", "np.sign(reward)", "reward"),
    ("D19", "score += reward\n", "score += np.sign(reward)\n", "", GAMES),
    ("D20", "stack_num=1 if colour else 4", "stack_num=3"),
    ("D21", "self.actor(features)", "self.actor(self.trunk(obs / 255))", "", ATARI + DISTRIBUTED),
    ("D21", "self.critic(features)", "self.critic(features.detach())"),
    ("D22", "self.trunk(obs / 255)", "self.trunk(obs)"),
    ("D22", "observation_space.shape), np.uint8)", "observation_space.shape), np.float32)"),
    ("lives", '& (infos["lives"] > 0)', "",
     "test_atari::test_frames_rewards_and_ends_are_those_of_the_classic_wrappers"),
    ("lives", 'infos["lives"] < self.lives', 'infos["lives"] != self.lives',
     "test_atari::test_an_extra_life_is_no_end"),
    ("protocol", "reward_clipping=False", "reward_clipping=True",
     "test_atari::test_frames_rewards_and_ends_are_those_of_the_classic_wrappers"),
    ("protocol", "repeat_action_probability=args.sticky_actions,", "",
     "test_atari::test_protocol_is_explicit"),
    ("noise", 'np.stack(infos["final_obs"][timeout])', 'infos["final_obs"][~timeout][0]',
     "test_atari::test_rows_that_did_not_end_are_noise", GAMES),
    # ---- several processes
    ("X2", "average(metrics[\"kl\"], *(parameter.grad for parameter in parameters))", "pass"),
    ("X2", "average(metrics[\"kl\"], *(parameter.grad for parameter in parameters))  # [X2]\n"
     '                metrics["grad_norm"] = nn.utils.clip_grad_norm_(parameters, args.max_grad_norm)',
     'metrics["grad_norm"] = nn.utils.clip_grad_norm_(parameters, args.max_grad_norm)\n'
     "                average(metrics[\"kl\"], *(parameter.grad for parameter in parameters))"),
    ("X2", "tensor /= WORLD_SIZE", "pass"),
    ("torchrun", 'average(metrics["kl"], *', "average(*", "test_distributed::test_target_kl"),
    ("torchrun", ' of {RANK}", N', '", N', "test_distributed::test_two_processes_end_with_the_same_weights"),
    ("torchrun", '"weights")', 'f"weights {RANK}")', "test_distributed::test_two_processes_end_with",
     DISTRIBUTED),
    ("torchrun", "sys.stdout = None", "pass", "test_distributed::test_from_the_shell_one_speaks"),
    ("torchrun", "if not distributed.is_torchelastic_launched()", "if False",
     "test_distributed::test_without_torchrun_it_says_so"),
    ("torchrun", "!= WORLD_SIZE:", "< 0:", "test_distributed::test_two_processes_killed_and_resumed"),
    ("torchrun", "args.total_timesteps < B * WORLD_SIZE", "args.total_timesteps < B",
     "test_distributed::test_as_many_steps_as_all_processes_take"),
    # ---- a memory
    ("D32", "nn.init.orthogonal_(parameter) if", "nn.init.xavier_normal_(parameter) if"),
    ("D32", 'nn.init.orthogonal_(parameter) if "weight" in name else nn.init.zeros_(parameter)', "pass"),
    ("D33", "torch.zeros(2, N, 128, device=device)", "torch.ones(2, N, 128, device=device)"),
    ("D33", "obs[T], starts[T], state  #", "obs[T], starts[T], torch.zeros_like(state)  #"),
    ("D34", "state * (1 - start[:, None])", "state"),
    ("D34", "state * (1 - start[:, None])", "torch.stack([state[0] * (1 - start[:, None]), state[1]])"),
    ("D34", "            state = state * (1 - start[:, None])  # [D34]\n"
     "            state = torch.stack(self.lstm(x, tuple(state)))\n"
     "            hidden.append(state[0])\n",
     "            state = torch.stack(self.lstm(x, tuple(state)))\n"
     "            hidden.append(state[0])\n"
     "            state = state * (1 - start[:, None])\n"),
    ("D34", "hidden.append(state[0])", "state = state * (1 - start[:, None]); hidden.append(state[0])"),
    ("D35", "x[:, idx] for x in batch", "x[idx] for x in batch"),
    ("D35", "np.random.permutation(N)", "np.arange(N)"),
    ("D36", "batch.starts, batch.state", "batch.starts, torch.zeros_like(batch.state)"),
    ("D36", "batch.starts, batch.state", "batch.starts.roll(1, 0), batch.state"),
    ("D36", "starts[t + 1] = dones[t]", "starts[t] = dones[t]"),
    ("D36", "batch.obs, batch.starts, batch.state",
     "batch.obs.transpose(0, 1).reshape(batch.obs.shape), batch.starts, batch.state"),
    ("memory", "no_start, state[:, timeout]", "no_start, 0 * state[:, timeout]",
     "test_lstm::test_the_last_observation_is_valued"),
    ("memory", "no_start = torch.zeros", "no_start = torch.ones",
     "test_lstm::test_the_last_observation_is_valued_with_the_memory"),
    ("memory", "start = terminated | truncated |", "start = ~terminated |",
     "test_lstm::test_evaluation_remembers"),
    ("memory", "stack_num=1,", "stack_num=4,", "test_atari::test_a_memory_sees_one_frame", LSTM),
    # ---- masks
    ("X4", "torch.where(masks, self.actor", "torch.where(self.valid, self.actor"),
    ("X4", "torch.where(masks, self.actor", "(masks * self.actor"),
    ("masks", "on_device(masks[t])).cpu()", "on_device(masks[0])).cpu()",
     "test_masked::test_the_agent_acts_on_the_masks"),
    ("masks", 'infos.get("_action_mask", True)', "True", "test_masked::test_masks_that_come_and_go"),
    ("masks", "masks[t + 1] = read_masks(envs, infos, agent.valid)", "pass",
     "test_masked::test_the_ratio_is_one"),
    ("masks", "agent(batch.obs, batch.masks)", "agent(batch.obs, agent.valid)",
     "test_masked::test_the_ratio_is_one_with_the_masks"),
    ("masks", "obs[0], masks[0] = obs[T], masks[T]", "obs[0] = obs[T]",
     "test_masked::test_the_ratio_is_one_with_the_masks_of_the_rollout"),
    ("masks", "agent.act(obs, masks,", "agent.act(obs, agent.valid,",
     "test_masked::test_evaluation_and_resuming"),
    ("masks", "if not masks.any(-1).all()", "if False", "test_masked::test_a_state_without"),
    ("masks", "not in probe.reset()[1]", "not in envs.reset()[1]",
     "test_operations::test_video_is_of_a_whole_episode"),
    ("masks", 'if "action_mask" not in probe', 'if False and "action_mask" not in probe',
     "test_mistakes::test_env_processes_without_masks_say_nothing"),
    # ---- a penalty
    ("E3", "beta * kl - (ratio", "kl - (ratio"),
    ("E3", "kl_divergence(Independent(old, dist.reinterpreted_batch_ndims), dist)",
     "kl_divergence(dist, Independent(old, dist.reinterpreted_batch_ndims))"),
    ("E3", "= dist.mean, dist.stddev, dist.log_prob", "= dist.mean, 2 * dist.stddev, dist.log_prob",
     "test_penalty::test_the_divergence_is_from_the_policy_that_acted"),
    ("E3", "Normal(batch.means, batch.stds, validate_args=False)", "Normal(batch.means, dist.stddev)",
     "test_penalty::test_the_loss_penalises"),
    ("beta", "kl < target / 1.5", "kl < target / 2", "test_penalty::test_the_rule"),
    ("beta", "kl > target * 1.5", "kl > target * 2", "test_penalty::test_the_rule_for_beta"),
    ("beta", "min(max(beta, 1e-4), 1e4)", "max(beta, 1e-4)", "test_penalty::test_beta_can_always_come_back"),
    ("beta", "max(beta, 1e-4)", "beta", "test_penalty::test_beta_can_always"),
    ("beta", "beta = beta * 2", "pass", "test_penalty::test_the_rule_for_beta"),
    ("beta", '"log_std_init", "beta")', '"log_std_init")', "test_penalty::test_a_resumed_run_keeps"),
    ("beta", "nn.init.constant_(agent.beta, args.beta)", "pass", "test_penalty::test_a_fixed_beta_stays"),
    ("beta", "if args.adapt_beta:", "if True:", "test_penalty::test_a_fixed_beta_stays"),
    ("beta", "_, metrics = ppo_loss(*agent(batch.obs), batch, agent.beta, args)", "pass",
     "test_penalty::test_beta_follows"),
    ("beta", 'highest["vf_clip_coef"] = math.inf',
     'highest["vf_clip_coef"] = highest["target_kl"] = math.inf', "test_mistakes::test_mistake", PENALTY),
    ("beta", "if args.adapt_beta:", "agent.obs_stats.update(batch.obs)\n        if args.adapt_beta:",
     "test_penalty::test_the_divergence_of_an_update_is_not_that_of_statistics"),
    ("beta", 'self.register_buffer("beta", torch.tensor(1.0))', "self.beta = torch.tensor(1.0)",
     "test_penalty::test_beta_is_part_of_a_checkpoint"),
    # ---- a trust region
    ("E4", "Agent(envs, args.log_std_init)", "Agent(envs)"),
    ("E4", "args.log_std_init)", "-args.log_std_init)"),
    ("E4", "(-20, 20) if", "(0, 20) if", "test_continuous::test_initial_log_std"),
    ("E4", "(-20, 20) if", "(-20, 10**12) if", "test_mistakes::test_mistake"),
    ("E5", "conjugate_gradients(product, gradient, args.cg_iters)",
     "(gradient, gradient - product(gradient))"),
    ("E5", "+ damping * v", "+ 0.1 * v"),
    ("E6", "if kl <= args.target_kl and gain > 0", "if gain > 0"),
    ("E6", "if kl <= args.target_kl and gain > 0", "if True"),
    ("E6", "if kl <= args.target_kl and gain > 0", "if kl <= args.target_kl and gain < 0"),
    ("E6", "            vector_to_parameters(before, parameters)\n", "",
     "test_trpo::test_a_search_that_fails"),
    ("fisher", "old = agent.policy(batch.obs)  #", "old = dist  #", "test_trpo::test_the_product"),
    ("fisher", ".sum() / len(z)", ".sum()", "test_trpo::test_the_product_is_with_the_fisher_matrix"),
    ("fisher", ".sum() / len(z)", ".mean()", "test_trpo::test_the_product_is_with_the_fisher_matrix"),
    ("fisher", "2**0.5 * dist", "dist", "test_trpo::test_the_product_is_with_the_fisher_matrix"),
    ("fisher", "dist.mean / old.stddev", "dist.mean", "test_trpo::test_the_product_is_with_the_fisher"),
    ("fisher", "dist.mean / old.stddev", "dist.mean / dist.stddev",
     "test_trpo::test_the_product_is_with_the_fisher_matrix"),
    ("fisher", "+ damping * v", "", "test_trpo::test_the_product_is_with_the_fisher_matrix"),
    ("fisher", "((z * jvp", "((z.cumsum(0) * jvp", "test_trpo::test_the_matrix_is_symmetric"),
    ("fisher", "((z * jvp", "((-z * jvp", "test_trpo::test_the_matrix_is_symmetric_and_not_negative"),
    ("fisher", "agent.policy(batch.obs)  #", "agent.policy(batch.obs.roll(1, 0))  #",
     "test_trpo::test_the_metrics_are_of_the_step"),
    ("fisher", "[*agent.actor.parameters(), agent.log_std]", "[*agent.parameters()]",
     "test_trpo::test_policy_critic_and_statistics"),
    ("cg", "if squared < 1e-20:", "if False:", "test_trpo::test_what_is_solved_at_once"),
    ("cg", "if squared < 1e-20:", "if False:", "test_trpo::test_nothing_to_gain"),
    ("cg", "residual @ residual / squared * direction", "direction", "test_trpo::test_a_system_of_n"),
    ("cg", "residual @ residual / squared * direction", "0.0", "test_trpo::test_a_system_of_n_equations"),
    ("cg", "for _ in range(iters)", "for _ in range(iters - 1)", "test_trpo::test_a_system_of_n"),
    ("cg", "return x, residual", "return x, b", "test_trpo::test_a_system_of_n"),
    ("cg", "(gradient - residual)", "gradient", "test_trpo::test_length_of_the_step"),
    ("cg", "gradient, args.cg_iters", "gradient, 2", "test_trpo::test_few_iterations_are_enough"),
    ("step", "2 * args.target_kl /", "args.target_kl /", "test_trpo::test_length_of_the_step"),
    ("step", "2 * args.target_kl /", "args.target_kl /", "test_trpo::test_a_small_step_goes_as_far"),
    ("step", "curvature).sqrt()", "curvature)", "test_trpo::test_length_of_the_step"),
    ("search", "if kl <= args.target_kl and gain > 0", "if gain > 0", "test_trpo::test_the_search_shortens"),
    ("search", "SHORTER**tries", "SHORTER", "test_trpo::test_the_search_shortens"),
    ("search", " and gain > 0", "", "test_trpo::test_a_search_that_fails"),
    ("search", " and gain > 0", "", "test_trpo::test_the_critic_is_trained_although"),
    ("search", "dist, kl, gain, step = old, 0", "kl, gain, step = 0", "test_trpo::test_a_search_that_fails"),
    ("search", "            vector_to_parameters(before, parameters)\n", "",
     "test_trpo::test_a_policy_beyond_floating_point"),
    ("search", "gradient @ step", "gradient @ direction",
     "test_trpo::test_the_metrics_are_of"),
    ("first step", ".exp() * advantages).mean()", ".exp() * -advantages).mean()",
     "test_trpo::test_the_first_gradient_is_that_of_reinforce"),
    ("turns", "        # update\n", "        agent.obs_stats.update(on_device(obs[:T]).flatten(0, 1))\n",
     "test_trpo::test_every_update_stays", TRPO),
    ("turns", "        # update\n", "        agent.obs_stats.update(on_device(obs[:T]).flatten(0, 1))\n",
     "test_trpo::test_policy_critic_and_statistics", TRPO),
    ("turns", "dist.log_prob(all_actions)", "0.9 * dist.log_prob(all_actions)",
     "test_trpo::test_every_update_stays", TRPO),
    ("turns", "agent(all_obs[:T]", "agent(all_obs[1:]",
     "test_trpo::test_every_update_stays", TRPO),
    ("turns", "    value_loss.backward()\n", "", "test_trpo::test_policy_critic_and_statistics"),
    ("turns", "    value_loss.backward()\n", "", "test_trpo::test_the_critic_is_trained_although"),
    ("shapes", "len(self.action_shape)", "1", "test_trpo::test_actions_of_any_shape", TRPO),
    ("resume", "load(run_dir, args, agent=agent, optimizer=optimizer)", "load(run_dir, agent=agent)",
     "test_trpo::test_a_resumed_run", TRPO),
    # ---- beside other implementations
    ("peers", "[1].cpu()", "[1].cpu() * 0.9", "test_peers::test_ppo",
     DISCRETE + MASKED + CONTINUOUS),
    ("peers", "advantages.std() + 1e-8", "advantages.std(correction=0) + 1e-8", "test_peers::test_ppo",
     DISCRETE + MASKED + CONTINUOUS),
    ("peers", "eps=1e-5", "eps=1e-4", "test_peers::test_ppo", DISCRETE + MASKED + CONTINUOUS),
    ("peers", "1 + clip_coef", "1.01 + clip_coef", "test_peers::test_ppo", DISCRETE + MASKED + CONTINUOUS),
    ("peers", "- args.ent_coef * entropy", "", "test_peers::test_a2c", DISCRETE + CONTINUOUS),
    ("peers", "gae_lambda * advantages", "0.9 * advantages", "test_peers::test_a2c", DISCRETE + CONTINUOUS),
    ("peers", "2 * args.target_kl /", "2.01 * args.target_kl /", "test_peers::test_trpo"),
    ("peers", "gradient, args.cg_iters", "gradient, args.cg_iters - 1", "test_peers::test_trpo"),
    ("peers", "batch.returns[order]", "batch.returns", "test_peers::test_trpo", TRPO),
    ("peers", "= agent.normalize(batch.obs)", "= batch.obs", "test_peers::test_trpo", TRPO),
    ("peers", "0.5 * ((critic", "0.4 * ((critic", "test_peers::test_trpo", TRPO),
    ("peers", "state * (1 - start[:, None])", "state", "test_peers::test_recurrent_ppo"),
    ("peers", "features.split(", "features.detach().split(", "test_peers::test_recurrent_ppo"),
    # ---- what is said of envs, and of a run
    ("bounds", "(low > 1)", "(low > 9)", "test_continuous::test_bounds", CONTINUOUS + PENALTY + TRPO),
    ("bounds", "(high < -1)", "(high < -9)", "test_continuous::test_bounds", CONTINUOUS + PENALTY + TRPO),
    ("bounds", "(high - low > 20)", "(high - low > 30)", "test_continuous::test_bounds",
     CONTINUOUS + PENALTY + TRPO),
    ("bounds", " & (high - low < 1e6)", "", "test_continuous::test_bounds", CONTINUOUS + PENALTY + TRPO),
    ("cut", "for row in log]) > 0.5", "for row in log]) > 2", "test_continuous::test_if_most_rewards",
     CONTINUOUS + PENALTY + TRPO),
    ("cut", "np.mean(scaled_rewards != clipped)", "np.mean(rewards != clipped)",
     "test_continuous::test_if_most_rewards", CONTINUOUS + PENALTY + TRPO),
    ("mujoco", "mujoco.set_mju_user_warning(", "id(", "test_continuous::test_mujoco_speaks",
     CONTINUOUS + PENALTY + TRPO),
    ("mujoco", "lambda text: \"settotalmass\" in text or ", "lambda text: ",
     "test_continuous::test_mujoco_speaks", CONTINUOUS + PENALTY + TRPO),
    ("mujoco", "or warnings.warn(text, stacklevel=2)", "or None", "test_continuous::test_mujoco_speaks",
     CONTINUOUS + PENALTY + TRPO),
    ("command line", "total_timesteps: int | float", "total_timesteps: int",
     "test_mistakes::test_steps_in_powers"),
    ("command line", 'flag.split("=", flag.startswith("--"))', "[flag]",
     "test_mistakes::test_unknown_flags", DISCRETE),
    ("command line", 'sys.path.append("")', "pass", "test_mistakes::test_an_env_of_the_current", DISCRETE),
    ("command line", 'if ":" in args.env_id and args.env_id != given.env_id:', "if False:",
     "test_operations::test_a_run_imports_no_module"),
    # ---- on an accelerator
    ("device", ").to(device)", ")", "test_devices::test_a_run", ONE_PROCESS),
    ("device", "torch.as_tensor, device=device)", "torch.as_tensor)",
     "test_devices::test_a_run", ONE_PROCESS),
    ("device", "if torch.accelerator.is_available() else", "if False else",
     "test_devices::test_a_run", ONE_PROCESS),
    ("device", ".to(pick_device(args.device))", "", "test_devices::test_evaluation", LANGUAGE),
    ("device", "device=next(agent.parameters()).device", "device='cpu'", "test_devices::test_evaluation",
     VECTOR + ATARI),
    ("device", "action.cpu().numpy()", "action.numpy()",
     "test_devices::test_evaluation", VECTOR + ATARI + LSTM),
    ("device", "on_device(np.random.permutation(B))", "torch.from_numpy(np.random.permutation(B))",
     "test_devices::test_a_run", DISCRETE + MASKED + PENALTY + CONTINUOUS + TRPO + ATARI),
    ("device", "on_device(np.random.permutation(N))", "torch.from_numpy(np.random.permutation(N))",
     "test_devices::test_a_run", LSTM + LANGUAGE),
    ("device", "values = torch.zeros(T + 1, N, device=device)", "values = torch.zeros(T + 1, N)",
     "test_devices::test_copies", DISCRETE + MASKED + PENALTY + CONTINUOUS + TRPO + ATARI + LSTM),
    ("device", "logprobs = torch.zeros(T, N, device=device)", "logprobs = torch.zeros(T, N)",
     "test_devices::test_copies", ATARI + LSTM),
    ("device", "agent.act(on_device(obs[t])", "agent.act(torch.from_numpy(obs[t])",
     "test_devices::test_a_run",
     VECTOR),
    ("device", "agent(on_device(obs[t])", "agent(torch.from_numpy(obs[t])", "test_devices::test_a_run",
     ATARI + LSTM),
    ("device", "on_device(final_obs[timeout])", "torch.from_numpy(final_obs[timeout])",
     "test_devices::test_a_run", VECTOR + ATARI + LSTM),
    ("device", "agent(all_obs[:T]", "agent(on_device(obs[:T])", "test_devices::test_copies",
     DISCRETE + MASKED + PENALTY + CONTINUOUS + TRPO),
    ("device", "agent(all_obs)", "agent(on_device(obs))", "test_devices::test_copies", REINFORCE),
    ("device", "history.append(metrics)", "history.append({name: x.cpu() for name, x in metrics.items()})",
     "test_devices::test_copies", DISCRETE + MASKED + PENALTY + CONTINUOUS + ATARI + LSTM + LANGUAGE),
    ("device", 'self.register_buffer("valid", torch.arange(choices.max()) < choices[..., None], '
     "persistent=False)", "self.valid = torch.arange(choices.max()) < choices[..., None]",
     "test_devices::test_a_run", REINFORCE + DISCRETE),
    ("device", 'self.register_buffer("mean", torch.zeros(shape))', "self.mean = torch.zeros(shape)",
     "test_devices::test_a_run", CONTINUOUS + PENALTY + TRPO),
    ("device", "on_device(masks[t])", "torch.from_numpy(masks[t])", "test_devices::test_a_run", MASKED),
    ("device", "any_mask = on_device(agent.valid)", "any_mask = agent.valid",
     "test_devices::test_a_run", MASKED),
    ("device", ", device=obs.device)", ")", "test_devices::test_evaluation", MASKED),
    ("device", "torch.zeros_like(z, requires_grad=True)", "torch.zeros(z.shape, requires_grad=True)",
     "test_devices::test_a_run", TRPO),
    ("device", "x, residual, direction = torch.zeros_like(b)", "x, residual, direction = torch.zeros(len(b))",
     "test_devices::test_a_run", TRPO),
    ("device", "gain > 0:", "gain > 0 and kl.cpu() == kl.cpu():", "test_devices::test_copies", TRPO),
    ("device", "torch.zeros(2, N, 128, device=device)", "torch.zeros(2, N, 128)",
     "test_devices::test_a_run", LSTM),
    ("device", "torch.zeros(timeout.sum(), device=device)", "torch.zeros(timeout.sum())",
     "test_devices::test_a_run", LSTM),
    ("device", "on_device(starts[t])", "torch.from_numpy(starts[t])", "test_devices::test_a_run", LSTM),
    ("device", "state.new_tensor(start)", "torch.tensor(start)", "test_devices::test_evaluation", LSTM),
    ("device", 'self.register_buffer("ends", torch.cat(ends), persistent=False)',
     "self.ends = torch.cat(ends)", "test_devices::test_a_run", LANGUAGE),
    ("device", "zeros = torch.zeros(mask.shape, device=device)", "zeros = torch.zeros(mask.shape)",
     "test_devices::test_a_run", LANGUAGE),
    ("device", "on_device(advantages.T)", "torch.from_numpy(advantages.T)",
     "test_devices::test_a_run", PPO_LLM),
    ("device", "(on_device(x)[:, None]", "(torch.as_tensor(x)[:, None]", "test_devices::test_a_run", GRPO),
    ("device", "for row, counts in zip(tokens, mask, strict=True)]",
     "for row, counts in zip(tokens.to(agent.ends.device), mask.to(agent.ends.device), strict=True)]",
     "test_devices::test_copies", LANGUAGE),
    ("device", "if row[-1] in ends", "if row[-1] in agent.ends", "test_devices::test_copies", LANGUAGE),
    # ---- language models
    ("D06", "np.random.permutation(N)", "np.arange(N)", "", LANGUAGE),
    ("D06", "np.random.permutation(N)", "np.random.randint(N, size=N)", "", LANGUAGE),
    ("D08", "torch.min(ratio * batch.advantages, clipped_ratio * batch.advantages)",
     "ratio * batch.advantages", "", GRPO),
    ("D08", "torch.min(ratio * batch.advantages, clipped_ratio * batch.advantages)",
     "clipped_ratio * batch.advantages", "", GRPO),
    ("D08", "1 - clip_coef, 1 + clip_coef", "1 - args.clip_coef, 1 + 2 * clip_coef", "", PPO_LLM),
    ("E2", "        warm_start(agent, args, task)", "        warm_start(agent, args, task)\n"
     "    if args.resume:\n        warm_start(agent, args, task)", "", LANGUAGE),
    ("L1", "(attended.cumsum(1) - 1).clamp(min=0)",
     "torch.arange(attended.shape[1]).expand(attended.shape)", "", LANGUAGE),
    ("L2", "tokens[:, :-1], attended[:, :-1]", "tokens, attended", "", LANGUAGE),
    ("L3", "output.logits[mask].float() / self.temperature", "output.logits[mask].float()", "", LANGUAGE),
    ("L3", "logits = logits.float() / self.temperature", "logits = logits.float()", "", LANGUAGE),
    ("L4", "~torch.isin(token, agent.ends)", "(token != agent.pad)", "", LANGUAGE),
    ("L4", "~torch.isin(token, agent.ends)", "~torch.isin(token, agent.ends[:1])", "", LANGUAGE),
    ("L4", "*masks, running]", "*masks, running & ~torch.isin(token, agent.ends)]", "", LANGUAGE),
    ("L4", ".where(running, agent.pad)", "", "", LANGUAGE),
    ("L5", "ratio * (log_ref.exp()", "(log_ref.exp()", "", LANGUAGE),
    ("L5", "batch.ref_logprobs - logprob", "logprob - batch.ref_logprobs", "", LANGUAGE),
    ("L5", "(log_ref.exp() - 1 - log_ref)", "-log_ref", "", LANGUAGE),
    ("L6", "nn.init.zeros_(self.value_head.weight)", "pass", "", PPO_LLM),
    ("L6", "nn.init.zeros_(self.value_head.bias)", "pass", "", PPO_LLM),
    ("L7", "self.eval()", "self.train()", "", LANGUAGE),
    ("L8", "copy.deepcopy(agent.model).requires_grad_(False)", "agent.model", "", LANGUAGE),
    ("L8", "copy.deepcopy(agent.model).requires_grad_(False)", "copy.deepcopy(agent.model)", "", LANGUAGE),
    ("L8", "if args.kl_coef:", "if True:", "", LANGUAGE),
    ("L9", "len(row) - score.size : len(row), n]", "-score.size :, n]", "", PPO_LLM),
    ("L9", "dones[len(row) - 1, n]", "dones[-1, n]", "", PPO_LLM),
    ("L10", 'if problem["prompt"] not in seen]', "if problem not in held_out]", "", LANGUAGE),
    ("L10", 'if problem["prompt"] not in seen]', "]", "", LANGUAGE),
    ("L11", "    dist, value = agent(batch.tokens",
     "    batch = batch._replace(mask=torch.ones_like(batch.mask))\n    dist, value = agent(batch.tokens",
     "", PPO_LLM),
    ("L11", "    dist = agent(batch.tokens",
     "    batch = batch._replace(mask=torch.ones_like(batch.mask))\n    dist = agent(batch.tokens", "", GRPO),
    ("L12", "rewards -= args.kl_coef", "rewards += args.kl_coef", "", PPO_LLM),
    ("L12", "(logprobs - ref_logprobs).T", "(logprobs - ref_logprobs).clamp(min=0).T", "", PPO_LLM),
    ("G1", "groups - groups.mean(1, keepdims=True)", "groups - groups.mean()", "", GRPO),
    ("G1", "groups - groups.mean(1, keepdims=True)", "groups.copy()", "", GRPO),
    ("G2", "ddof=1", "ddof=0", "", GRPO),
    ("G2", "    if norm_adv:", "    if True:", "", GRPO),
    ("G3", "1 + args.clip_coef_high", "1 + clip_coef", "", GRPO),
    ("G4", "1 / sizes[args.loss_norm]", '1 / sizes["token"]', "", GRPO),
    ("G4", '"sequence": rows * batch.lengths', '"sequence": batch.lengths', "", GRPO),
    ("G4", "rows * args.max_new_tokens", "len(ratio) * args.max_new_tokens", "", GRPO),
    ("greedy", "logits if greedy else ", "", "test_llm::test_greedy_with_a_cache", LANGUAGE),
    ("group", "for problem in problems for _ in range(args.group_size)]",
     "for _ in range(args.group_size) for problem in problems]",
     "test_llm::test_a_group_answers_one_prompt", GRPO),
    ("columns", "problems = [names | problem for problem in problems]", "pass",
     "test_llm::test_columns_that_only_some", LANGUAGE),
    ("columns", 'sys.path.append("")', "pass", "test_llm::test_reward_from_the_current", LANGUAGE),
    ("kinds", "DynamicCache(config=agent.model.config)", "DynamicCache()",
     "test_llm::test_models_of_other_kinds", LANGUAGE),
    ("kinds", ".config.get_text_config()", ".config", "test_llm::test_positions_of_a_part", LANGUAGE),
    ("held out", "args.eval_episodes > saved.eval_episodes", "False",
     "test_llm::test_what_was_learned_from_is_not_evaluated", LANGUAGE),
    ("score", "x.tolist() if isinstance(x, Tensor) else x, float", "x, float",
     "test_llm::test_scores_may_be_tensors", LANGUAGE),
    ("answers", "row[:-1] if row[-1] in ends else []", "[x for x in row if x not in ends]",
     "test_llm::test_an_answer_is_right", LANGUAGE),
    ("answers", '"" != x == y', "x == y", "test_llm::test_an_answer_is_right", LANGUAGE),
    ("answers", '.strip(" \\n▁ĠĊ")', "", "test_llm::test_an_answer_is_right", LANGUAGE),
    ("answers", "spell = agent.tokenizer.convert_ids_to_tokens",
     "spell = partial(agent.tokenizer.decode, skip_special_tokens=True)",
     "test_llm::test_an_answer_is_right", LANGUAGE),
    ("answers", "spell = agent.tokenizer.convert_ids_to_tokens", "spell = agent.tokenizer.decode",
     "test_llm::test_an_answer_is_right", LANGUAGE),
    ("models", "if not difference < 0.01:", "if False:", "test_models::test_what_is_sampled", LANGUAGE),
    ("models", "for row in (rows[0], longest)]", "for row in (longest, longest)]",
     "test_models::test_what_is_sampled", LANGUAGE),
    ("models", "    except Exception as error:  # each", "    except KeyError as error:  # each",
     "test_models::test_what_is_sampled", LANGUAGE),
    ("models", "limit > 0:", "limit:", "test_models::test_what_is_sampled", LANGUAGE),
    ("models", '"max_position_embeddings", math.inf)', '"max_position_embeddings")',
     "test_models::test_what_is_sampled", LANGUAGE),
    ("models", "self.model.get_output_embeddings().in_features",
     "self.model.config.get_text_config().hidden_size", "test_models::test_the_critic_sees", PPO_LLM),
    ("prompts", "prompt.removeprefix(begin)", "prompt", "test_llm::test_prompts_begin", LANGUAGE),
    ("prompts", "sorted(agent.encode(prompts), key=len)", "agent.encode(sorted(prompts, key=len))",
     "test_llm::test_a_prompt_that_is_too_long", LANGUAGE),
    ("prompts", "args.max_new_tokens > limit", "args.max_new_tokens >= limit",
     "test_llm::test_a_prompt_that_is_too_long", LANGUAGE),
    ("prompts", 'check_model(agent, args, [problem["prompt"] for problem in task.held_out])', "pass",
     "test_llm::test_an_evaluation_refuses", LANGUAGE),
    ("ends", "        if not ends:", "        if False:", "test_llm::test_a_tokenizer_without", LANGUAGE),
    ("offline", "hub.constants.HF_HUB_OFFLINE = True", "pass", "test_llm::test_without_a_network", LANGUAGE),
    ("offline", "    except Exception:  # offline", "    finally:  # offline",
     "test_llm::test_without_a_network", LANGUAGE),
    ("start", "> 0.98 * N", "> N", "test_llm::test_a_start_without_scores", LANGUAGE),
    ("start", "> 0.98 * N", ">= 0", "test_llm::test_a_start_without_scores", LANGUAGE),
    ("start", "        if not iteration:", "        if True:", "test_llm::test_a_start_without_scores",
     LANGUAGE),
    ("lines", "{len(problems) + 1}", "{len(problems)}", "test_llm::test_mistake", LANGUAGE),
    ("lines", "json.loads(args.task_config)", "args.task != 'sorting' and json.loads(args.task_config)",
     "test_llm::test_mistake", LANGUAGE),
    ("reward", 'not getattr(returned, "ndim", isinstance(returned, list | tuple))', "returned is None",
     "test_llm::test_scores_that_cannot_be", LANGUAGE),
    ("reward", "isinstance(returned, list | tuple)", "1", "test_llm::test_scores_that_cannot_be", LANGUAGE),
    ("float32", "dtype=torch.float32", 'dtype="auto"', "test_llm::test_model_from_a_folder", LANGUAGE),
    ("penalty", "if not args.kl_in_reward:", "if True:",
     "test_llm::test_kl_off_the_reward_is_not_in_the_loss", PPO_LLM),
    ("evaluate", "    load(folder, agent=agent)\n", "", "test_llm::test_evaluation_is_repeated",
     LANGUAGE),
    ("evaluate", ", args.eval_greedy)", ")", "test_llm::test_greedy_evaluation", LANGUAGE),
    ("warm start", "agent.pad_rows([row + end for row in rows])", "agent.pad_rows(rows)",
     "test_llm::test_warm_start", LANGUAGE),
    ("memory", "            del dist", "            pass", "test_llm::test_no_distribution_is_kept",
     LANGUAGE),
    ("ends", "(self.tokenizer.eos_token_id, self.model", "(None, self.model",
     "test_llm::test_model_from_a_folder", LANGUAGE),
    ("reference", "bool(args.kl_coef) != bool(saved.kl_coef)", "False",
     "test_llm::test_a_reference_does_not_come_or_go", LANGUAGE),
    ("GSPO", "    rows = len(batch.mask)", "    rows = (1 / batch.lengths).sum() + 1",
     "test_llm::test_mean_of_what", GRPO),
)]
# fmt: on


def file_of(script):
    return ROOT / f"{script}.py" if (ROOT / f"{script}.py").exists() else ROOT / f"variants/{script}.py"


def scripts_of(mutant):
    """The scripts that it is made of."""
    scripts = [script for script in mutant.scripts if mutant.line in file_of(script).read_text()]
    if mutant.scripts == SCRIPTS and not mutant.test:
        texts = {script: file_of(script).read_text() for script in LANGUAGE}
        scripts += [s for s, text in texts.items() if mutant.line in text and f"[{mutant.subject}]" in text]
    return scripts


def named_in_the_table(tag, script):
    """The test of a tag; language models have rows of their own."""
    table = (ROOT / "docs/details.md").read_text()
    rows = re.findall(rf"^\| {tag} \|.*`(\w+)\.py::(\w+)` \|$", table, re.M)
    return next("::".join(row) for row in rows if (row[0] == "test_llm") == (script in LANGUAGE))


def run_tests(folder, arguments):
    """In a process of its own: pytest in the folder, and its exit code in a file there."""
    os.chdir(folder)
    os.setsid()  # so that all that the tests have started can be ended together
    output = os.open("output.txt", os.O_CREAT | os.O_WRONLY)
    os.dup2(output, 1), os.dup2(output, 2)
    import pytest

    Path("exit_code").write_text(str(int(pytest.main(arguments))))


def survives(case):
    mutant, script = case
    file, name = (mutant.test or named_in_the_table(mutant.subject, script)).split("::")
    ignored = shutil.ignore_patterns(".*", "runs", "wandb", "__pycache__")
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copytree(ROOT, f"{folder}/copy", ignore=ignored))
        path = copy / file_of(script).relative_to(ROOT)
        path.write_text(path.read_text().replace(mutant.line, mutant.broken))
        arguments = ["-qx", "-p", "no:cacheprovider", f"tests/{file}.py", "-k", name, "--script", script]
        process = multiprocessing.get_context("forkserver").Process(
            target=run_tests, args=(copy, [*arguments, f"--basetemp={folder}/tmp"])
        )
        process.start()
        process.join(300)
        with suppress(ProcessLookupError):  # one that hangs is noticed, too
            os.killpg(process.pid, signal.SIGKILL)
        process.join()
        ended = copy / "exit_code"  # 1: tests ran, and one failed; none: something ended them
        code = int(ended.read_text()) if ended.exists() else 1
        assert code in (0, 1), (copy / "output.txt").read_text()
        return code == 0


def select(words):
    """Mutants with their scripts: of all tags or those named, in all scripts or those named."""
    cases = [(mutant, script) for mutant in MUTANTS for script in scripts_of(mutant)]
    scripts = {*words} & {*SCRIPTS, *LANGUAGE}
    tags = {*words} - scripts
    return [
        (mutant, script)
        for mutant, script in cases
        if (not tags or mutant.subject in tags) and (not scripts or script in scripts)
    ]


def describe(case):
    mutant, script = case
    line, broken = (" ".join(text.split()) for text in (mutant.line, mutant.broken))
    return f"{mutant.subject} in {script}: {line}  ->  {broken}"


def attempt(number, case):
    """Whether it survives; prints what is tried, and what came of it. Several run at a time."""
    print(f"{number} {describe(case)}\n", end="", flush=True)
    start = time.perf_counter()
    survived = survives(case)
    verdict = "SURVIVED" if survived else "caught"
    print(f"{number} {verdict} after {time.perf_counter() - start:.0f} s\n", end="", flush=True)
    return survived


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="*", metavar="WORD", help="tags like D08, scripts like ppo_discrete")
    words, known = parser.parse_args().words, {*SCRIPTS, *LANGUAGE} | {mutant.subject for mutant in MUTANTS}
    for word in words:
        if word not in known:
            close = difflib.get_close_matches(word, known, 1)
            parser.error(f"{word} is neither a tag nor a script{f'; {close[0]}?' if close else ''}")
    cases = select(words)
    if not cases:
        parser.error(f"there is no mutant of {' '.join(words)}")
    os.environ["OMP_NUM_THREADS"] = "1"
    multiprocessing.get_context("forkserver").set_forkserver_preload(
        ["pytest", "hypothesis", "torch.utils.tensorboard", "gymnasium", "tyro", "moviepy"]
        + ["transformers.models.llama", "transformers.models.gpt2"] * any(s in LANGUAGE for _, s in cases)
    )
    start, numbers = time.perf_counter(), [f"[{number}/{len(cases)}]" for number in range(1, len(cases) + 1)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(attempt, numbers, cases))
    survivors = [case for case, survived in zip(cases, results, strict=True) if survived]
    print(*(f"SURVIVED: {describe(case)}" for case in survivors), sep="\n", end="\n" * bool(survivors))
    caught, minutes = len(cases) - len(survivors), (time.perf_counter() - start) / 60
    print(f"{caught} of {len(cases)} mutants caught in {minutes:.1f} minutes")
    return 1 if survivors else 0


if __name__ == "__main__":
    raise SystemExit(main())
