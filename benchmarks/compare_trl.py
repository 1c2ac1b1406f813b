"""GRPO and DPO: those here against those of TRL, from the same model, with the same hyper-parameters.

    pip install -r variants/requirements.txt trl==1.16.0
    python benchmarks/compare_trl.py TRL 1    # or variants/grpo.py; timings.py takes both in turn
    python benchmarks/compare_trl.py DPO 1    # loss and gradient of one batch, by both

Both start from the same warm start, see 25,600 completions in groups of 8, and answer
the same 500 held-out prompts, by the script's own evaluation. TRL 1.16 has no PPO any more to compare with.
"""

import json
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from common import Parser

from variants import dpo, grpo


def prepare(seed: int) -> tuple[grpo.Args, grpo.Task, grpo.Agent]:
    """The agent after its warm start, as in the script's train()."""
    args = grpo.Args(seed=seed)
    torch.set_num_threads(1)
    task = grpo.make_task(args)
    grpo.seed_everything(args.seed, "weights")
    agent = grpo.Agent(args)
    grpo.warm_start(agent, args, task)
    return args, task, agent


def exact(agent: grpo.Agent, args: grpo.Args, task: grpo.Task) -> float:
    """Share of held-out prompts that are answered rightly."""
    return float(np.mean([answer["exact"] for answer in grpo.evaluate(agent, args, task)]))


def ours(seed: int, folder: str) -> dict:
    """Train by the script -> share of right answers, and completions a second after the warm start."""
    args, clock = grpo.Args(seed=seed, run_dir=f"{folder}/run"), []
    warm_start, report = grpo.warm_start, grpo.report
    grpo.warm_start = lambda *given: (warm_start(*given), clock.append(time.perf_counter()))
    grpo.report = lambda *given: (clock.append(time.perf_counter()), report(*given))[1]
    grpo.train(args)
    lines = Path(f"{folder}/run/completions.jsonl").read_text("utf-8").strip().split("\n")
    answers = [json.loads(line) for line in lines]
    return {
        "right answers": float(np.mean([answer["exact"] for answer in answers])),
        "completions per second": args.total_episodes / (clock[1] - clock[0]),
    }


def right(completions, answer, **columns):
    return [float(text.strip() == wanted) for text, wanted in zip(completions, answer, strict=True)]


def theirs(seed: int, folder: str) -> dict:
    """The same by TRL's GRPOTrainer."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    args, task, agent = prepare(seed)
    # TRL lets the tokenizer add its end of text to prompts, after which the model would say nothing.
    agent.tokenizer.build_inputs_with_special_tokens = lambda tokens, _=None: tokens
    agent.model.save_pretrained(f"{folder}/start")
    agent.model.config._name_or_path = f"{folder}/start"  # where it takes the reference from
    config = GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to=[],
        save_strategy="no",
        logging_steps=40,
        disable_tqdm=True,
        seed=seed,
        per_device_train_batch_size=args.num_envs // args.num_minibatches,
        steps_per_generation=args.num_minibatches,
        num_iterations=args.update_epochs,
        max_steps=args.total_episodes // args.num_envs * args.num_minibatches * args.update_epochs,
        num_generations=args.group_size,
        max_completion_length=args.max_new_tokens,
        temperature=args.temperature,
        top_k=0,
        learning_rate=args.learning_rate,
        lr_scheduler_type="linear",
        adam_epsilon=1e-5,
        max_grad_norm=args.max_grad_norm,
        epsilon=args.clip_coef,
        epsilon_high=args.clip_coef_high,
        beta=args.kl_coef,
        use_bias_correction_kl=True,
        scale_rewards="group",
        loss_type="dapo",
        remove_unused_columns=False,
    )
    data = Dataset.from_list(task.training)
    trainer = GRPOTrainer(
        agent.model,
        right,
        config,
        data,
        processing_class=agent.tokenizer,
    )
    start = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - start
    return {
        "right answers": exact(agent, args, task),
        "completions per second": args.total_episodes / seconds,
    }


def fixed_agent() -> dpo.Agent:
    """A small model whose weights are the same on every machine; the reference has others."""
    agent = dpo.Agent(dpo.Args())
    agent.copy_model()
    for k, model in enumerate((agent.model, agent.reference)):
        for x in model.parameters():
            numbers = torch.arange(x.numel(), dtype=torch.float64) + 1000 * k
            x.data = (0.1 * torch.sin(numbers**1.5)).float().view_as(x) + (x.dim() == 1)
    return agent


def pairs() -> list[dict[str, str]]:
    """Of sorting, the wrong answer being the digits as they came, or fewer of them."""
    digits = ["52310", "90817", "33211", "48120"]
    return [
        {"prompt": f"{x}>", "chosen": "".join(sorted(x)), "rejected": x[: 5 - k]}
        for k, x in enumerate(digits)
    ]


def dpo_of_both(seed: int, folder: str) -> dict:
    """Loss of four pairs, and the norms of the gradients of all weights: ours, and TRL's."""
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    args, found = dpo.Args(sft_coef=0.0), {"ours": our_dpo(fixed_agent())}
    agent = fixed_agent()
    agent.tokenizer.build_inputs_with_special_tokens = lambda tokens, _=None: tokens
    config = DPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to=[],
        per_device_train_batch_size=4,
        beta=args.beta,
        disable_dropout=False,
    )
    data = Dataset.from_list(pairs())
    trainer = DPOTrainer(
        agent.model, agent.reference, config, train_dataset=data, processing_class=agent.tokenizer
    )
    [batch] = trainer.get_train_dataloader()
    loss = trainer.compute_loss(agent.model, batch)
    loss.backward()
    return found | {"TRL": [loss.item(), *(x.grad.norm().item() for x in agent.model.parameters())]}


def our_dpo(agent: dpo.Agent) -> list[float]:
    args = dpo.Args(sft_coef=0.0)
    batch = dpo.make_batch(agent, args, dpo.encode_pairs(agent, args, pairs()))
    metrics = dpo.compute_gradients(agent, batch, args)
    norms = [x.grad.norm().item() for x in agent.model.parameters()]
    return [metrics["preference_loss"].item(), *norms]


if __name__ == "__main__":
    trainers = {"variants/grpo.py": ours, "TRL": theirs, "DPO": dpo_of_both}
    parser = Parser(__doc__)
    parser.add_argument("trainer", choices=trainers)
    parser.add_argument("seed", type=int)
    given = parser.parse_args()
    if given.trainer != "variants/grpo.py" and not find_spec("trl"):
        parser.error("trl is not installed")
    with tempfile.TemporaryDirectory() as run_folder:
        print(json.dumps(trainers[given.trainer](given.seed, run_folder)))
