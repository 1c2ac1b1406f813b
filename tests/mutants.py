"""Break the scripts on purpose, one line at a time, and see whether the tests notice.

    python tests/mutants.py          # all mutants; exit code 1 if one survives
    python tests/mutants.py D08 E1   # those of some tags

Every mutant runs, in a copy of the project, against the test that is there to catch it (for a tag: the one in
docs/details.md). So a test that cannot fail shows up as a survivor.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
PPO, CONTINUOUS = "ppo_discrete.py", "ppo_continuous.py"
ATARI, REINFORCE = "ppo_atari.py", "reinforce_baseline.py"
LSTM, MASKED, PENALTY = (f"variants/ppo_{name}.py" for name in ("atari_lstm", "masked", "penalty"))

# tag or subject, script, line, its mutant, and the test, unless the table names it
# fmt: off
MUTANTS = [
    ("D01", PPO, "obs[0] = obs[T]", "obs[0] = envs.reset()[0]"),
    ("D01", REINFORCE, "obs[0] = obs[T]", "pass"),
    ("D02", PPO, "nn.init.orthogonal_(layer.weight, gain)", "nn.init.xavier_uniform_(layer.weight, gain)"),
    ("D02", PPO, "nn.init.zeros_(layer.bias)", "pass"),
    ("D02", REINFORCE, "gain=0.01)", "gain=1.0)"),
    ("D03", PPO, "eps=1e-5", "eps=1e-8"),
    ("D03", REINFORCE, "eps=1e-5", "eps=1e-4"),
    ("D04", PPO, 'optimizer.param_groups[0]["lr"] = args.learning_rate * remaining', "pass"),
    ("D04", PPO, "1 - iteration / num_iterations", "1 - (iteration + 1) / num_iterations"),
    ("D05", PPO, "discount[t] * gae_lambda * advantages", "0.0 * advantages"),
    ("D05", PPO, "discount[t] * gae_lambda * advantages", "gamma * gae_lambda * advantages"),
    ("D05", PPO, "discount * values[1:]", "gamma * values[1:]"),
    ("D06", PPO, "torch.randperm(B, generator=shuffler, device=device)", "torch.arange(B)"),
    ("D06", PPO, "torch.randperm(B, generator=shuffler, device=device)", "torch.randint(B, (B,))"),
    ("D07", PPO, "(advantages - advantages.mean()) / (advantages.std() + 1e-8)", "advantages"),
    ("D07", PPO, "advantages - advantages.mean()", "advantages"),
    ("D08", PPO, "-torch.min(ratio * advantages, clipped_ratio * advantages)", "-(ratio * advantages)"),
    ("D08", PPO, "-torch.min(ratio * advantages, clipped_ratio * advantages)",
     "-(clipped_ratio * advantages)"),
    ("D08", PPO, "-torch.min(ratio", "-torch.max(ratio"),
    ("D08", PPO, "ratio.clamp(1 - args.clip_coef", "ratio.clamp(1 / (1 + args.clip_coef)"),
    ("D09", PPO, "torch.max((value - batch.returns)", "torch.min((value - batch.returns)"),
    ("D09", PPO, "(value - batch.values).clamp(-args.vf_clip_coef, args.vf_clip_coef)",
     "value - batch.values"),
    ("D10", PPO, "- args.ent_coef * entropy", ""),
    ("D10", PPO, "- args.ent_coef * entropy", "+ args.ent_coef * entropy"),
    ("D10", REINFORCE, "args.vf_coef * value_loss", "value_loss"),
    ("D11", PPO, "clip_grad_norm_(parameters, args.max_grad_norm)", "torch.zeros(())"),
    ("D11", REINFORCE, "clip_grad_norm_(parameters", "clip_grad_norm_(parameters[:6]"),
    ("D12", PPO, "(ratio - 1 - log_ratio).mean()", "-log_ratio.mean()"),
    ("D12", PPO, "metric.detach()", "metric"),
    ("D12", PPO, "((ratio - 1).abs() > args.clip_coef)", "(ratio - 1 > args.clip_coef)"),
    ("D13", PPO, "self.critic(obs.float())", "self.critic[-1](self.actor[:-1](obs.float()))"),
    ("D37", PPO, "self.valid.dim() - 1", "0"),
    ("D37", PPO, "torch.arange(choices.max()) < choices", "torch.arange(choices.max()) < choices.max()"),
    ("X1", PPO, "replace(args, clip_coef=clip_coef)", "args"),
    ("X1", PPO, "if args.anneal_clip else args", ""),
    ("X3", PPO, 'if metrics["kl"] > args.target_kl', "if False"),
    ("X3", PPO, 'if metrics["kl"] > args.target_kl', "if True"),
    ("E1", PPO, "rewards += args.gamma * final_values", "pass"),
    ("E1", PPO, "truncated & ~terminated", "truncated"),
    ("E1", REINFORCE, "truncated & ~terminated", "terminated | truncated"),
    ("E1", REINFORCE, "+= args.gamma * final_values", "+= final_values"),
    ("E1", REINFORCE, 'np.stack(infos["final_obs"][timeout])', "obs[t + 1, timeout]"),
    ("death", PPO, "+= args.gamma * final_values", "+= 0",
     "test_train::test_a_time_limit_is_not_death"),
    ("death", REINFORCE, "+= args.gamma * final_values", "+= 0",
     "test_train::test_a_time_limit_is_not_death"),
    ("lambda", PPO, "* gae_lambda * advantages", "* advantages",
     "test_gae::test_lambda_zero_is_the_td_error"),
    ("lambda", PPO, "* gae_lambda * advantages", "* 0.5 * advantages",
     "test_gae::test_lambda_one_is_monte_carlo"),
    ("leak", PPO, "discount[t] * gae_lambda", "gamma * gae_lambda",
     "test_gae::test_nothing_leaks_through_the_end_of_an_episode"),
    ("ends", PPO, "discount * values[1:]", "gamma * values[1:]", "test_gae::test_one_transition"),
    ("ratio", PPO, "logprobs = dist", "logprobs = 0.9 * dist",
     "test_train::test_the_ratio_is_one_on_fresh_data"),
    ("ratio", PPO, "agent(states[:T])", "agent(states[1:])",
     "test_train::test_the_ratio_is_one_on_fresh_data"),
    ("act", PPO, "self.logits(obs) + noise", "self.logits(obs) - noise",
     "test_agent::test_actions_follow_the_distribution"),
    ("act", CONTINUOUS, "self.log_std.exp() * noise", "noise",
     "test_agent::test_continuous_actions_follow_the_distribution"),
    ("act", PPO, "noise = agent.noise(T, N)", "noise = torch.zeros(T)",
     "test_train::test_actions_are_samples"),
    ("act", PPO, "noise = agent.noise(T, N)", "noise = agent.noise(1, N).expand(T, -1, -1)",
     "test_train::test_actions_are_samples"),
    ("act", PPO, "on_device(obs[t])", "on_device(obs[0])",
     "test_train::test_the_agent_acts_on_the_states"),
    ("act", CONTINUOUS, "on_device(obs[t])", "on_device(obs[max(t - 1, 0)])",
     "test_train::test_the_agent_acts_on_the_states_that"),
    ("masks", MASKED, "on_device(masks[t])", "on_device(masks[0])",
     "test_masked::test_the_agent_acts_on_the_states_and_masks"),
    ("masks", MASKED, 'infos.get("_action_mask", True)', "True",
     "test_masked::test_masks_that_come_and_go"),
    ("compile", PPO, "replace(args, clip_coef=clip_coef)", "replace(args, clip_coef=clip_coef.item())",
     "test_train::test_a_compiled_update_is_the_same"),
    ("compile", PPO, "backward = torch.compile(backpropagate)", "pass",
     "test_train::test_a_compiled_update"),
    ("compile", PPO, "torch._dynamo.config.trace_autograd_ops = True", "pass",
     "test_train::test_a_compiled_update_is_the_same"),
    ("first step", PPO, "log_ratio.exp()", "(2 * log_ratio).exp()",
     "test_loss::test_the_first_gradient_is_that_of_reinforce"),
    ("sibling", PPO, "seed_everything(args.seed, 3)", "seed_everything(args.seed + 1)",
     "test_family::test_one_epoch"),
    ("sibling", PPO, "generator=shuffler, ", "", "test_family::test_one_epoch_of_one_minibatch_is_reinforce"),
    ("sibling", REINFORCE, "0.5 * ((value", "((value",
     "test_family::test_one_epoch_of_one_minibatch_is_reinforce"),
    ("sibling", REINFORCE, "eps=1e-5", "eps=1e-6",
     "test_family::test_one_epoch_of_one_minibatch_is_reinforce"),
    ("value loss", REINFORCE, "0.5 * ((value", "((value",
     "test_loss::test_value_loss_is_half_the_squared_error"),
    ("baseline", REINFORCE, "if args.baseline else batch.returns", "",
     "test_loss::test_no_baseline_weighs_with_returns"),
    ("targets", PPO, "returns = advantages + values", "returns = values",
     "test_train::test_returns_are_built_from"),
    ("variance", PPO, "(returns - values).var()", "(returns - values).square().mean()",
     "test_loss::test_explained"),
    ("variance", PPO, "if variance > 0 else math.nan", "", "test_loss::test_explained_variance"),
    ("tanh", PPO, "nn.Tanh()", "nn.ReLU()", "test_agent::test_hidden_units_are_tanh"),
    ("unused", PPO, "self.valid, self.actor", "self.valid | True, self.actor",
     "test_agent::test_unused_logits"),
    ("uniform", PPO, "gain=0.01)", "gain=1.0)", "test_agent::test_starts_close_to_uniform"),
    ("score", PPO, "score[done] = 0", "pass", "test_train::test_returns_are_those_of_whole_episodes"),
    ("score", PPO, "episode_returns.extend(score[done].tolist())", "episode_returns.extend(score.tolist())",
     "test_train::test_returns_are_those"),
    ("evaluate", PPO, "score += reward * running", "score += reward",
     "test_train::test_evaluation_plays_one_whole"),
    ("evaluate", PPO, "0.0 if args.eval_greedy else ", "",
     "test_train::test_evaluation_plays_one_whole_episode"),
    ("metrics", PPO, ".mean().item() for name in", "[-1].item() for name in",
     "test_train::test_metrics_are_means"),
    ("seed", PPO, "    torch.manual_seed(seed)", "    pass", "test_train::test_same_seed_same_weights"),
    ("seed", PPO, "torch.manual_seed(seed)", "torch.manual_seed(seed if key[0] else time.time_ns())",
     "test_train::test_same_seed"),
    ("seed", PPO, "SeedSequence(key)", "SeedSequence(key[0] + key[1])",
     "test_train::test_envs_of_neighbouring_seeds_differ"),
    ("seed", PPO, "env_seeds(N, args.seed, 0, iteration, RANK)", "args.seed",
     "test_train::test_envs_of_neighbouring_seeds_differ"),
    ("log", PPO, 'log.append({"steps": steps} | row)', 'log.append({"steps": B} | row)',
     "test_train::test_run_dir"),
    ("log", PPO, "json.dumps(asdict(args)", "json.dumps(asdict(Args())", "test_train::test_run_dir"),
    ("flatten", PPO, "[FlattenObservation]", "[]",
     "test_train::test_observations_that_can"),
    ("mistake", PPO, "raise SystemExit(code)", "raise SystemExit(1)", "test_mistakes::test_from_the_shell"),
    ("mistake", PPO, "not low <= value <= high", "(value < low or value > high)",
     "test_mistakes::test_mistake"),
    ("mistake", PPO, "B // args.num_minibatches < 2", "False", "test_mistakes::test_mistake"),
    ("mistake", PPO, "or np.any(action_space.start)", "", "test_mistakes::test_mistake"),
    ("mistake", PPO, "    check(args)\n", "", "test_mistakes::test_mistake"),
    ("neutral", PPO, '"clip_coef", "vf_clip_coef", ', '"clip_coef", ',
     "test_mistakes::test_neutral_values_are_not_mistakes"),
    ("D23", CONTINUOUS, "Normal(self.mean(obs)", "Normal(0.5 * self.mean(obs)"),
    ("D24", CONTINUOUS, "nn.Parameter(torch.zeros(self.action_shape))", "torch.zeros(self.action_shape)"),
    ("D24", CONTINUOUS, "torch.zeros(self.action_shape)", "-torch.ones(self.action_shape)"),
    ("D25", CONTINUOUS, "Independent(dist, len(self.action_shape))", "dist"),
    ("D26", CONTINUOUS, "self.critic(self.normalize(obs))",
     "self.critic[-1](self.actor[:-1](self.normalize(obs)))"),
    ("D27", CONTINUOUS, "gym.wrappers.vector.ClipAction(envs)", "envs"),
    ("D27", CONTINUOUS, "noise[t]).cpu()", "noise[t]).clamp(-0.5, 0.5).cpu()"),
    ("D28", CONTINUOUS, "(obs.float() - self.obs_stats.mean) / self.obs_stats.std()", "obs.float()"),
    ("D28", CONTINUOUS, "/ self.obs_stats.std()", "/ self.obs_stats.var"),
    ("D29", CONTINUOUS, "obs.clamp(-10, 10)", "obs"),
    ("D29", CONTINUOUS, "obs.clamp(-10, 10)", "obs.clamp(-5, 5)"),
    ("D30", CONTINUOUS, "rewards /= agent.return_stats.std().item()", "pass"),
    ("D30", CONTINUOUS, "args.gamma * going_on * discounted_returns[t - 1] + reward", "reward"),
    ("D30", CONTINUOUS, "args.gamma * going_on * discounted", "args.gamma * discounted"),
    ("D30", CONTINUOUS, "going_on = 1 - dones[t - 1]", "going_on = 1 - dones[t - 1] * (t > 0)"),
    ("D31", CONTINUOUS, "rewards.clip(-10, 10, out=rewards)", "pass"),
    ("time limits", CONTINUOUS, "dones[t] = reward, done", "dones[t] = reward, terminated",
     "test_continuous::test_reward_scaling_restarts"),
    ("centred", CONTINUOUS, "rewards /= agent",
     "rewards -= agent.return_stats.mean.item(); rewards /= agent",
     "test_continuous::test_rewards_are_scaled_and_not_centred"),
    ("statistics", CONTINUOUS, "x.mean(0) - self.mean", "x.mean() - self.mean",
     "test_continuous::test_running_statistics"),
    ("statistics", CONTINUOUS, "+ (1 - weight) * delta**2", "", "test_continuous::test_running_statistics"),
    ("statistics", CONTINUOUS, "agent.obs_stats.update(batch.obs.float())", "pass",
     "test_continuous::test_statistics_cover"),
    ("statistics", CONTINUOUS, "agent.obs_stats.update(batch.obs.float())",
     "agent.obs_stats.update(states.flatten(0, 1))",
     "test_continuous::test_statistics_cover_each_rollout_once"),
    ("ratio", CONTINUOUS, "        # update\n", "        agent.obs_stats.update(states[:T].flatten(0, 1))\n",
     "test_continuous::test_the_ratio_is_one"),
    ("final", CONTINUOUS, "on_device(final_obs)", "on_device(final_obs + 1)",
     "test_continuous::test_final_observations"),
    ("final", CONTINUOUS, "agent(on_device(final_obs))",
     "(agent.obs_stats.update(on_device(final_obs)), agent(on_device(final_obs)))[1]",
     "test_continuous::test_final_observations_are_normalised_and_not_counted"),
    ("E1", CONTINUOUS, "+= args.gamma * final_values", "+= 0",
     "test_continuous::test_final_observations_are"),
    ("buffers", CONTINUOUS, 'self.register_buffer("mean", torch.zeros(shape))',
     "self.mean = torch.zeros(shape)", "test_continuous::test_statistics_travel_with_the_weights"),
    ("D14", ATARI, "noop_max=31", "noop_max=30"),
    ("D14", ATARI, "noop_max=31", "noop_max=1"),
    ("D15", ATARI, "frameskip=4", "frameskip=3"),
    ("D15", ATARI, "frameskip=4", "frameskip=4, maxpool=False"),
    ("D16", ATARI, 'done | (args.episodic_life & infos["life_lost"])', "done"),
    ("D16", ATARI, 'args.episodic_life & infos["life_lost"]', 'infos["life_lost"]'),
    ("D16", ATARI, "frameskip=4", "frameskip=4, episodic_life=True"),
    ("D17", ATARI, "np.where(self.starts, self.fire, actions)", "actions"),
    ("D17", ATARI, "np.where(self.starts, self.fire, actions)", "np.full_like(actions, self.fire)",
     "test_atari::test_fire_is_not_pressed_where_the_agent_acts"),
    ("D17", ATARI, 'infos["life_lost"] | terminated | truncated', "terminated | truncated"),
    ("D18", ATARI, "img_height=84", "img_height=84, grayscale=False"),
    ("D18", ATARI, "img_height=84", "img_height=80"),
    ("D19", ATARI, "np.sign(reward)", "np.clip(reward, -10, 10)"),
    ("D19", ATARI, "score += reward", "score += np.sign(reward)"),
    ("D20", ATARI, "stack_num=4", "stack_num=3"),
    ("D21", ATARI, "self.actor(features)", "self.actor(self.trunk(obs / 255))"),
    ("D21", ATARI, "self.critic(features)", "self.critic(features.detach())"),
    ("D22", ATARI, "self.trunk(obs / 255)", "self.trunk(obs)"),
    ("D22", ATARI, "buffer(T + 1, envs.observation_space)",
     "buffer(T + 1, envs.observation_space).astype(np.float32)"),
    ("lives", ATARI, '& (infos["lives"] > 0)', "",
     "test_atari::test_frames_rewards_and_ends_are_those_of_the_classic_wrappers"),
    ("lives", ATARI, 'infos["lives"] < self.lives', 'infos["lives"] != self.lives',
     "test_atari::test_an_extra_life_is_no_end"),
    ("protocol", ATARI, "reward_clipping=False", "reward_clipping=True",
     "test_atari::test_frames_rewards_and_ends_are_those_of_the_classic_wrappers"),
    ("protocol", ATARI, "repeat_action_probability=args.sticky_actions,", "",
     "test_atari::test_protocol_is_explicit"),
    ("metadata", ATARI, "envs.metadata = dict(envs.metadata)", "pass",
     "test_atari::test_another_game_leaves_ours_alone"),
    ("E1", ATARI, "+= args.gamma * final_values", "+= 0", "test_atari::test_only_time_limits"),
    ("E1", ATARI, "truncated & ~terminated", "done", "test_atari::test_only_time_limits_are_bootstrapped"),
    ("ratio", ATARI, "= dist.log_prob(action), ", "= 0.9 * dist.log_prob(action), ",
     "test_atari::test_the_ratio_is_one_on_fresh_data"),
    ("E2", PPO, "            seed_everything(args.seed, 4, iteration, RANK)", "            pass"),
    ("E2", PPO, "shuffler.manual_seed(*env_seeds(1, args.seed, 5, iteration, RANK))", "pass"),
    ("E2", PPO, "seeds = env_seeds(N, args.seed, 0, iteration, RANK)", "seeds = [None] * N"),
    ("E2", PPO, "            score[:] = 0\n", "", "test_operations::test_a_cut_ends_no_episode"),
    ("E2", CONTINUOUS, "score[:], discounted_returns[-1] = 0, 0", "score[:] = 0"),
    ("E2", CONTINUOUS, 'self.register_buffer("count", torch.tensor(1e-4))',
     "self.count = torch.tensor(1e-4)"),
    ("E2", ATARI, 'optimizer.load_state_dict(state["optimizer"])', "pass"),
    ("E2", REINFORCE, 'episode_returns.extend(state["episode_returns"])', "pass"),
    ("E2", PPO, "purge_step=steps + 1", "purge_step=None"),
    ("save", PPO, 'open(run_dir / "checkpoint.tmp", "wb")', 'open(path, "wb")',
     "test_operations::test_full_disk_while_saving"),
    ("save", PPO, "weights_only=True", "weights_only=False", "test_operations::test_spoiled_checkpoint"),
    ("save", PPO, "if found[name] != value", "if False", "test_operations::test_what_cannot_change"),
    ("save", PPO, "        return agent, log\n    run_dir", "        pass\n    run_dir",
     "test_operations::test_resuming_a_finished_run_changes_nothing"),
    ("evaluate", CONTINUOUS, "    seed_everything(args.seed, 2)\n", "",
     "test_operations::test_evaluation_in_a_new_process_is_that_of_training"),
    ("evaluate", CONTINUOUS, "    load(args.evaluate, agent)\n",
     "    load(args.evaluate, agent); agent.obs_stats.mean.zero_()\n",
     "test_operations::test_evaluation_in_a_new_process_is_that_of_training"),
    ("X2", PPO, "average(*(parameter.grad for parameter in parameters))", "pass"),
    ("X2", PPO, "average(*(parameter.grad for parameter in parameters))  # [X2]\n"
     '                metrics["grad_norm"] = clip_grad_norm_(parameters, args.max_grad_norm)',
     'metrics["grad_norm"] = clip_grad_norm_(parameters, args.max_grad_norm)\n'
     "                average(*(parameter.grad for parameter in parameters))"),
    ("torchrun", PPO, '            average(metrics["kl"])\n', "", "test_operations::test_target_kl"),
    ("torchrun", CONTINUOUS, "        x = gather(x)\n", "", "test_operations::test_two_processes_end"),
    ("finite", PPO, "require_finite(obs=obs[t + 1].sum(), reward=reward.sum())", "pass",
     "test_operations::test_failure"),
    ("finite", PPO, "        require_finite(**row)\n", "", "test_operations::test_exploding_loss"),
    ("signals", PPO, "    signal.signal(signal.SIGTERM, stop)\n", "",
     "test_operations::test_failure"),
    ("dead", PPO, 'here["envs"].unwrapped.closed = True', "pass",
     "test_operations::test_a_dead_env_process_ends_the_run"),
    ("wandb", PPO, "wandb.log(log[-1])", "pass", "test_operations::test_wandb_offline_has_everything"),
    ("film", ATARI, "self.screen.step(actions)", "self.screen.step(actions * 0)",
     "test_atari::test_the_film_is_of_the_game_that_is_played"),
    ("D32", LSTM, "nn.init.orthogonal_ if", "nn.init.xavier_normal_ if"),
    ("D32", LSTM, '(nn.init.orthogonal_ if "weight" in name else nn.init.zeros_)(parameter)', "pass"),
    ("D33", LSTM, "torch.zeros(2, N, 128, device=device)", "torch.ones(2, N, 128, device=device)"),
    ("D33", LSTM, "obs[T], starts[T], state  #", "obs[T], starts[T], torch.zeros_like(state)  #"),
    ("D34", LSTM, "state * (1 - start[:, None])", "state"),
    ("D34", LSTM, "state * (1 - start[:, None])", "torch.stack([state[0] * (1 - start[:, None]), state[1]])"),
    ("D34", LSTM, "            state = state * (1 - start[:, None])  # [D34]\n"
     "            state = torch.stack(self.lstm(x, tuple(state)))\n"
     "            hidden.append(state[0])\n",
     "            state = torch.stack(self.lstm(x, tuple(state)))\n"
     "            hidden.append(state[0])\n"
     "            state = state * (1 - start[:, None])\n"),
    ("D34", LSTM, "hidden.append(state[0])",
     "state = state * (1 - start[:, None]); hidden.append(state[0])"),
    ("D35", LSTM, "x[:, idx] for x in batch", "x[idx] for x in batch"),
    ("D35", LSTM, "torch.randperm(N, generator=shuffler, device=device)", "torch.arange(N)"),
    ("D36", LSTM, "batch.starts, batch.state", "batch.starts, torch.zeros_like(batch.state)"),
    ("D36", LSTM, "batch.starts, batch.state", "batch.starts.roll(1, 0), batch.state"),
    ("D36", LSTM, "starts[t + 1] = dones[t]", "starts[t] = dones[t]"),
    ("D36", LSTM, "batch.obs, batch.starts, batch.state",
     "batch.obs.transpose(0, 1).reshape(batch.obs.shape), batch.starts, batch.state"),
    ("memory", LSTM, "no_start, state[:, timeout]", "no_start, 0 * state[:, timeout]",
     "test_lstm::test_the_last_observation_is_valued"),
    ("memory", LSTM, "no_start = torch.zeros", "no_start = torch.ones",
     "test_lstm::test_the_last_observation_is_valued_with_the_memory"),
    ("memory", LSTM, "start = terminated | truncated |", "start = ~terminated |",
     "test_lstm::test_evaluation_remembers"),
    ("E2", LSTM, "score[:], starts[T] = 0, 1", "score[:] = 0", "test_lstm::test_it_plays_and_resumes"),
    ("X4", MASKED, "torch.where(masks, self.actor", "torch.where(self.valid, self.actor"),
    ("X4", MASKED, "torch.where(masks, self.actor", "(masks * self.actor"),
    ("masks", MASKED, "masks[t + 1] = read_masks(envs, infos, valid)", "pass",
     "test_masked::test_the_ratio_is_one"),
    ("masks", MASKED, "agent(batch.obs, batch.masks)", "agent(batch.obs, agent.valid)",
     "test_masked::test_the_ratio_is_one_with_the_masks"),
    ("masks", MASKED, "obs[0], masks[0] = obs[T], masks[T]", "obs[0] = obs[T]",
     "test_masked::test_the_ratio_is_one_with_the_masks_of_the_rollout"),
    ("masks", MASKED, "read_masks(envs, infos, agent.valid.cpu().numpy())", "agent.valid.cpu().numpy()",
     "test_masked::test_evaluation_and_resuming"),
    ("masks", MASKED, "if not masks.any(-1).all()", "if False", "test_masked::test_a_state_without"),
    ("masks", MASKED, "    except AttributeError:", "    except KeyError:",
     "test_masked::test_an_env_without"),
    ("E3", PENALTY, "beta * kl - (ratio", "kl - (ratio"),
    ("E3", PENALTY, "kl = batch.logits.exp()", "kl = -dist.base_dist.logits.exp()"),
    ("beta", PENALTY, "kl < target / 1.5", "kl < target / 2", "test_penalty::test_the_rule"),
    ("beta", PENALTY, "kl > target * 1.5", "kl > target * 2", "test_penalty::test_the_rule_for_beta"),
    ("beta", PENALTY, ".masked_fill(batch.logits.isneginf(), 0)", "",
     "test_penalty::test_the_loss_penalises"),
    ("beta", PENALTY, "min(beta * 2, 1e4)", "beta * 2", "test_penalty::test_beta_can_always_come_back"),
    ("beta", PENALTY, "max(beta / 2, 1e-4)", "beta / 2", "test_penalty::test_beta_can_always"),
    ("beta", PENALTY, "_, metrics = ppo_loss(*agent(batch.obs), batch, args, agent.beta)", "pass",
     "test_penalty::test_beta_follows"),
    ("beta", PENALTY, 'self.register_buffer("beta", torch.tensor(1.0))', "self.beta = torch.tensor(1.0)",
     "test_penalty::test_beta_is_part_of_a_checkpoint"),
]
# fmt: on


def named_in_the_table(tag):
    row = re.search(rf"^\| {tag} \|.*`(\w+)\.py::(\w+)` \|$", (ROOT / "docs/details.md").read_text(), re.M)
    return f"{row[1]}::{row[2]}"


def survives(mutant):
    subject, script, line, replacement, *test = mutant
    file, name = (test[0] if test else named_in_the_table(subject)).split("::")
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(
            shutil.copytree(ROOT, f"{folder}/copy", ignore=shutil.ignore_patterns(".*", "runs", "wandb"))
        )
        source = (copy / script).read_text()
        assert source.count(line), f"{script} has no {line}"
        (copy / script).write_text(source.replace(line, replacement))
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-qx",
            "-p",
            "no:cacheprovider",
            f"tests/{file}.py",
            "-k",
            name,
        ]
        result = subprocess.run(
            command, cwd=copy, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
        )
        # 1: tests ran, and one failed; negative: a signal ended them
        assert result.returncode in (0, 1) or result.returncode < 0, result.stdout + result.stderr
        return result.returncode == 0


def main(subjects):
    mutants = [mutant for mutant in MUTANTS if not subjects or mutant[0] in subjects]
    survivors = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for mutant, survived in zip(mutants, pool.map(survives, mutants), strict=True):
            subject, script, *lines = mutant[:4]
            verdict, change = (
                "SURVIVED" if survived else "caught",
                "  ->  ".join(line.strip() for line in lines),
            )
            print(f"{verdict:9} {subject:10} {script:22} {change}", flush=True)
            survivors += survived
    print(f"{len(mutants) - survivors} of {len(mutants)} mutants caught")
    return 1 if survivors else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
