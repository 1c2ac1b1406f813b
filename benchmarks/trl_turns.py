"""The loss of conversations: grpo_turns.py's against that of TRL with its tool mask, on one batch.

    pip install -r variants/requirements.txt trl==1.16.0
    python benchmarks/trl_turns.py

Both get the same model, conversations of one to three turns, advantages, and log-probabilities of another
policy and of a reference. Printed are both losses, and how far the gradients of all weights are apart.
"""

import os
import tempfile

import torch
from common import Parser

from variants import grpo_turns

TYPES = {"token": "dapo", "sequence": "grpo"}


def conversations() -> tuple[grpo_turns.Agent, grpo_turns.Batch]:
    """A small model with weights that differ from those it acted with, and what it has said."""
    torch.manual_seed(1)
    args = grpo_turns.Args(sft_steps=60, num_envs=64)
    task = grpo_turns.make_task(args)
    agent = grpo_turns.Agent(args)
    grpo_turns.warm_start(agent, args, task)
    agent.zero_grad()
    talks = grpo_turns.converse(agent, task, task.held_out[:32])
    tokens, attended, mask, _ = grpo_turns.as_rows(agent, talks)
    with torch.no_grad():
        old = agent(tokens, attended, mask) + 0.3 * torch.randn(mask.shape)
        reference = old + 0.3 * torch.randn(mask.shape)
    advantages = torch.randn(len(mask), 1).expand(mask.shape)
    lengths = mask.sum(1)[:, None].expand(mask.shape)
    print(f"{len(mask)} conversations of {sorted({len(talk.turns) // 2 + 1 for talk in talks})} turns")
    return agent, grpo_turns.Batch(tokens, attended, mask, old, reference, advantages, lengths)


def gradient(model) -> torch.Tensor:
    """The gradients of all weights, which are set to zero."""
    found = torch.cat([x.grad.flatten() for x in model.parameters()])
    model.zero_grad()
    return found


def theirs(agent, batch, settings: dict, folder: str) -> torch.Tensor:
    """TRL's loss of the batch."""
    from datasets import IterableDataset
    from trl import GRPOConfig, GRPOTrainer

    config = GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to=[],
        max_steps=1,
        per_device_train_batch_size=len(batch.mask),
        num_generations=8,
        epsilon=agent.args.clip_coef,
        epsilon_high=agent.args.clip_coef_high,
        beta=agent.args.kl_coef,
        use_bias_correction_kl=True,
        **settings,
    )
    agent.model.save_pretrained(f"{folder}/model")
    agent.model.config._name_or_path = f"{folder}/model"  # where TRL takes its reference from
    data = IterableDataset.from_generator(lambda: iter([{"prompt": "1+1>"}]))
    trainer = GRPOTrainer(agent.model, lambda **_: [0.0], config, data, processing_class=agent.tokenizer)
    trainer.current_gradient_accumulation_steps = 1
    T = batch.mask.shape[1]
    inputs = {"prompt_ids": batch.tokens[:, :-T], "prompt_mask": batch.attended[:, :-T].long()}
    inputs |= {"completion_ids": batch.tokens[:, -T:], "completion_mask": batch.attended[:, -T:].long()}
    inputs |= {"tool_mask": batch.mask.long(), "advantages": batch.advantages[:, 0]}
    inputs |= {"old_per_token_logps": batch.logprobs, "ref_per_token_logps": batch.ref_logprobs}
    inputs["num_items_in_batch"] = batch.mask.sum()
    return trainer._compute_loss(agent.model, inputs)


def main() -> None:
    """Print both losses for each way to average them."""
    Parser(__doc__).parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    agent, batch = conversations()
    for sequence_ratio in (False, True):
        for loss_norm, loss_type in TYPES.items():
            agent.args.loss_norm, agent.args.sequence_ratio = loss_norm, sequence_ratio
            level = "sequence" if sequence_ratio else "token"
            agent.args.kl_coef = 0.0 if sequence_ratio else 0.02  # TRL's KL has the sequence's ratio, too
            grpo_turns.compute_gradients(agent, batch, agent.args)
            ours = gradient(agent.model)
            with torch.no_grad():
                logprob = agent(batch.tokens, batch.attended, batch.mask)[batch.mask]
            names = ("logprobs", "ref_logprobs", "advantages", "lengths")
            picked = batch._replace(**{name: getattr(batch, name)[batch.mask] for name in names})
            loss, _ = grpo_turns.grpo_loss(logprob, picked, agent.args)
            with tempfile.TemporaryDirectory() as folder:
                settings = {"loss_type": loss_type, "importance_sampling_level": level}
                other = theirs(agent, batch, settings, folder)
            other.backward()
            apart = (gradient(agent.model) - ours).norm() / ours.norm()
            numbers = f"{loss.item():.7f} and {other.item():.7f}, gradients {apart:.1e} apart"
            print(f"ratio of each {level}, mean by {loss_norm}: {numbers}")


if __name__ == "__main__":
    main()
