# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "torch==2.13.0",
#     "transformers==5.23.0",
#     "numpy==2.4.6",
#     "tyro==1.0.17",
#     "tensorboard==2.21.0",
#     "tqdm==4.70.1",
#     "filelock==4.2.11",
#     "wandb==0.31.0",
# ]
# ///
"""Group Relative Policy Optimization (arXiv 2402.03300), the whole algorithm in one file.

    python variants/grpo.py                                   # a small new model sorts digits
    python variants/grpo.py --model NAME --chat --task FILE.jsonl
    git diff --no-index variants/ppo_llm.py variants/grpo.py  # what takes the place of the critic

A prompt is an env, a completion is an episode, a token is an action. Only the reward comes from
elsewhere: a program (RLVR), or a reward model that has learned what people prefer (RLHF).

Shapes  Each of N rows is a prompt, padded on the left to P tokens, and a completion, padded on the
        right to T. The mask (N, T) picks the M tokens that count: those up to the end of text.

Tags    [D08] marks the line of detail 8 in docs/details.md, which explains other letters, too.
"""

import copy
import hashlib
import importlib
import io
import json
import math
import os
import random
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, NoReturn

import numpy as np
import torch
import tyro
from filelock import FileLock
from torch import Tensor, nn, optim
from torch.nn import functional as F
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    ByT5Tokenizer,
    DynamicCache,
    LlamaConfig,
)
from transformers.utils import hub

WRITER = f"{Path(__file__).name} 1.0"  # load() accepts only checkpoints that name this writer


@dataclass
class Args:
    # the task
    model: str = "tiny"  # tiny (a new one over bytes), or a Hugging Face model's name or folder
    task: str = "sorting"  # sorting, or a file .jsonl whose lines have prompt, answer, and more
    reward: str | None = None  # a reward model, or module:function (None: 1 for the answer, else 0)
    chat: bool = False  # prompts are put into the model's chat template
    chat_options: str = "{}"  # options of that template, as JSON: '{"enable_thinking": false}'
    seed: int = 1  # all random numbers follow from it
    sft_steps: int | None = None  # steps of supervised learning (None: 50 for tiny, else 0)
    sft_learning_rate: float | None = None  # in these steps (None: 5e-3 for tiny, else 1e-5)
    total_episodes: int | float = 25_600  # number of completions in total
    num_envs: int = 256  # number of completions that are sampled together
    group_size: int = 8  # number of completions of each prompt
    max_new_tokens: int = 12  # most tokens of a completion
    temperature: float = 1.0  # temperature of policy and reference, in sampling and in learning

    # the algorithm
    learning_rate: float | None = None  # learning rate of Adam (None: 5e-4 for tiny, else 1e-5)
    anneal_lr: bool = True  # the learning rate falls linearly towards zero
    update_epochs: int = 2  # passes of an update over its rollout
    num_minibatches: int = 2  # gradient steps in each pass
    norm_adv: bool = True  # advantages are divided by their group's deviation (without: Dr. GRPO)
    clip_coef: float = 0.2  # a ratio further than this below 1 gains nothing (inf: off)
    clip_coef_high: float = 0.28  # a ratio further than this above 1 gains nothing (inf: off)
    sequence_ratio: bool = False  # each completion has one ratio, as in GSPO (clip it at 3e-4)
    loss_norm: Literal["token", "sequence", "constant"] = "token"  # how tokens are averaged
    kl_coef: float = 0.02  # weight of the KL to the model after the warm start (0: no reference)
    max_grad_norm: float = 0.5  # a longer gradient is scaled down to this norm (inf: off)
    target_kl: float = math.inf  # an epoch that ends with a larger KL ends the update (inf: off)

    # the machine
    device: str = "cpu"  # cpu, cuda, cuda:1, mps, or auto: an accelerator if there is one
    dtype: Literal["float32", "bfloat16"] = "float32"  # in which the model computes
    micro_batch: int = 0  # completions in a pass of the model, to save memory (0: all of them)
    threads: int = 1  # number of CPU threads; small networks are fastest with 1

    # the run
    run_dir: str | None = None  # a new folder (None: runs/<task>__<script>__<seed>__<time>)
    resume: str | None = None  # folder of the run to continue; its flags hold unless given again
    evaluate: str | None = None  # folder of the run to evaluate, instead of training
    checkpoints: int = 10  # saves before the end, each in place of the last (0: none)
    track: bool = False  # the run is logged to Weights & Biases, too
    eval_episodes: int = 500  # prompts held out of training, answered after it
    eval_greedy: bool = False  # the evaluation takes the most probable tokens, not samples

    def __post_init__(self):
        """Fill in what is None."""
        suited = {"sft_steps": 50, "sft_learning_rate": 5e-3, "learning_rate": 5e-4}
        if self.model != "tiny":  # it knows something, which large steps would ruin
            suited = {"sft_steps": 0, "sft_learning_rate": 1e-5, "learning_rate": 1e-5}
        for name, value in suited.items():
            if getattr(self, name) is None:
                setattr(self, name, value)


class Batch(NamedTuple):
    """What an update sees; logprobs and what follows are (N, T), or (M,) where the mask is true."""

    tokens: Tensor  # (N, P + T)
    attended: Tensor  # (N, P + T), true for tokens, false for padding
    mask: Tensor  # (N, T)
    logprobs: Tensor  # under the policy that acted
    ref_logprobs: Tensor  # under the reference
    advantages: Tensor
    lengths: Tensor  # number of tokens of the whole completion


def group_advantages(scores: np.ndarray, group_size: int, norm_adv: bool) -> np.ndarray:
    """How much better than the mean of its group each completion is. Takes and returns (N,)."""
    groups = scores.reshape(-1, group_size)
    advantages = groups - groups.mean(1, keepdims=True)  # [G1] the group is the baseline
    if norm_adv:
        advantages /= groups.std(1, ddof=1, keepdims=True) + 1e-4  # [G2] one size for all prompts
    return advantages.flatten()


def grpo_loss(logprob: Tensor, batch: Batch, args: Args) -> tuple:
    """Clipped surrogate objective with the KL to a reference (after arXiv 2402.03300, equation 3).

    logprob (M,) is of what counts. Returns the loss, and metrics without gradient.
    """
    rows = len(batch.mask)
    log_ratio = logprob - batch.logprobs
    token_ratio = log_ratio.exp()
    ratio = token_ratio
    if args.sequence_ratio:  # [G5] the geometric mean over a completion's tokens
        row = batch.mask.nonzero()[:, 0]
        means = log_ratio.new_zeros(rows).index_add(0, row, log_ratio / batch.lengths)
        ratio = means[row].exp()
    clipped_ratio = ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef_high)  # [G3] wider above
    sizes = {"token": len(ratio)}  # a mean over all tokens
    sizes["sequence"] = rows * batch.lengths  # over each completion's tokens, then over completions
    sizes["constant"] = rows * args.max_new_tokens  # a sum, whose size depends on no length
    weights = 1 / sizes[args.loss_norm]  # [G4] the weight of a token
    gain = torch.min(ratio * batch.advantages, clipped_ratio * batch.advantages)  # [D08] the lower
    policy_loss = -(weights * gain).sum()
    log_ref = batch.ref_logprobs - logprob
    ref_kl = (weights * token_ratio * (log_ref.exp() - 1 - log_ref)).sum()  # [L5] KL(new, reference)
    loss = policy_loss + args.kl_coef * ref_kl  # [D10] two in one
    kl = (token_ratio - 1 - log_ratio).mean()  # Schulman's k3, an estimate of KL(old, new) >= 0
    clip_frac = (ratio != clipped_ratio).float().mean()
    entropy = -logprob.mean()  # an estimate, from the tokens that were sampled
    metrics = {"policy_loss": policy_loss, "entropy": entropy}
    metrics |= {"kl": kl, "clip_frac": clip_frac, "ref_kl": ref_kl}
    return loss, {name: metric.detach() for name, metric in metrics.items()}  # [D12] to be logged


class Agent(nn.Module):
    """A language model as the policy."""

    def __init__(self, args: Args):
        super().__init__()
        self.args = args
        self.tokenizer, self.model = make_model(args)
        if args.chat and not self.tokenizer.chat_template:
            refuse(f"--model {args.model} has no template for --chat")
        ends = [self.tokenizer.eos_token_id, self.model.generation_config.eos_token_id]
        if args.chat:
            ends = [end_of_turn(self.tokenizer), *ends]  # the first one is taught
        ends = [torch.tensor(end).flatten() for end in ends if end is not None]  # an id, or ids
        if not ends:
            refuse(f"--model {args.model} has no token that ends a text")
        self.register_buffer("ends", torch.cat(ends), persistent=False)
        self.end_ids = self.ends.tolist()
        self.pad = self.end_ids[0]  # any token would do, for the mask says what counts
        self.reference = None
        self.eval()  # [L7] for good: with dropout, the ratio would not be 1 on fresh data

    def copy_model(self) -> None:
        """Make the reference of the model as it is now."""
        if self.args.kl_coef:
            self.reference = copy.deepcopy(self.model).requires_grad_(False)  # [L8] it stays so

    def pad_rows(self, rows: list[list[int]], side: str = "right") -> tuple[Tensor, Tensor]:
        """Rows of tokens as one tensor (N, longest), and where it is not padding."""
        pad = partial(nn.utils.rnn.pad_sequence, batch_first=True, padding_side=side)
        tokens = pad([torch.tensor(row) for row in rows], padding_value=self.pad)
        mask = pad([torch.ones(len(row), dtype=torch.bool) for row in rows])
        return tokens.to(self.ends.device), mask.to(self.ends.device)

    def encode(self, prompts: list[str | list[dict]]) -> list[list[int]]:
        """Prompts as tokens, with all that the model expects around them."""
        if self.args.chat:
            chats = [as_messages(prompt) for prompt in prompts]
            options = json.loads(self.args.chat_options)
            template = self.tokenizer.apply_chat_template
            texts = template(chats, add_generation_prompt=True, tokenize=False, **options)
        else:
            begin = begin_of_text(self.tokenizer)
            texts = [begin + prompt.removeprefix(begin) for prompt in prompts]
        return self.tokenizer(texts, add_special_tokens=False, verbose=False).input_ids

    def autocast(self):
        """A context that computes in args.dtype. In it, a weight that learns is rounded once."""
        use_bfloat16 = self.args.dtype == "bfloat16"
        return torch.autocast(self.ends.device.type, torch.bfloat16, use_bfloat16)

    def logits(self, model, tokens: Tensor, attended: Tensor, keep: int, cache=None) -> Tensor:
        """Logits (N, keep, V) after the last tokens; attended tells tokens from padding."""
        positions = (attended.cumsum(1) - 1).clamp(min=0)  # [L1] padding takes no place
        inputs = {"input_ids": tokens, "attention_mask": attended.long(), "past_key_values": cache}
        inputs["position_ids"] = positions[:, -tokens.shape[1] :]
        with self.autocast():
            output = model(**inputs, logits_to_keep=keep, use_cache=cache is not None)
        return output.logits.float()

    def logprobs(self, model, tokens: Tensor, attended: Tensor, mask: Tensor) -> Tensor:
        """Log-probabilities (N, T) of the completions' tokens under a model."""
        T = mask.shape[1]
        # The logits after a token are those of the next one. So the model does not get the last
        # token, and the first of the T logits that are kept are those after the prompt.
        logits = self.logits(model, tokens[:, :-1], attended[:, :-1], T)  # [L2] one token earlier
        logits = logits.flatten(0, 1) / self.args.temperature  # [L3] the policy that was sampled
        completions = tokens[:, -T:].flatten()
        return -F.cross_entropy(logits, completions, reduction="none").view_as(mask)

    def forward(self, tokens: Tensor, attended: Tensor, mask: Tensor) -> Tensor:
        """Log-probabilities (N, T) of the completions' tokens under the policy."""
        return self.logprobs(self.model, tokens, attended, mask)

    def reference_logprobs(self, tokens: Tensor, attended: Tensor, mask: Tensor) -> Tensor:
        """Log-probabilities (N, T) of the completions' tokens under the frozen reference."""
        return self.logprobs(self.reference, tokens, attended, mask)

    def act(self, logits: Tensor, greedy: bool = False) -> Tensor:
        """Tokens sampled from logits, or the most probable ones."""
        if greedy:
            return logits.argmax(-1)
        logits = logits / self.args.temperature
        gumbel_noise = -torch.empty_like(logits).exponential_().log()
        return (logits + gumbel_noise).argmax(-1)  # the Gumbel-max trick: a sample of softmax


def make_model(args: Args) -> tuple:
    """A tokenizer and a causal language model with weights in float32."""
    if args.model == "tiny":
        sizes = {"hidden_size": 64, "intermediate_size": 128}
        sizes |= {"num_hidden_layers": 3, "num_attention_heads": 4}
        special = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None}
        config = LlamaConfig(vocab_size=259, **special, **sizes)
        return ByT5Tokenizer(extra_ids=0), AutoModelForCausalLM.from_config(config)
    try:
        return load_pretrained(AutoModelForCausalLM, args.model)
    except Exception as error:  # each folder lacks something else
        reason, *_ = str(error).partition("\n")
        refuse(f"--model {args.model}: {type(error).__name__}: {reason}")


def load_pretrained(kind: type, name: str) -> tuple:
    """The tokenizer and the model of that name, or in that folder; no weight may be missing."""
    try:
        if not Path(name).exists():
            hub.get_session().head(hub.constants.ENDPOINT, timeout=10)
    except Exception:  # without a network, each file would be asked for six times
        hub.constants.HF_HUB_OFFLINE = True
    tokenizer = AutoTokenizer.from_pretrained(name)
    model, info = kind.from_pretrained(name, dtype=torch.float32, output_loading_info=True)
    missing = sorted(info["missing_keys"])
    if missing:  # these would be random numbers
        raise ValueError(f"{len(missing)} weights are missing, {missing[0]} for instance")
    return tokenizer, model


def as_messages(prompt: str | list[dict]) -> list[dict]:
    """A prompt as messages. One that is a text is what the user says."""
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    return prompt


def last_text(text: str | list[dict]) -> str:
    """A text, or that of the last message."""
    return as_messages(text)[-1]["content"]


def end_of_turn(tokenizer) -> int | None:
    """The special token that the chat template writes after an answer, if it writes one."""
    turns = [{"role": "user", "content": "question"}, {"role": "assistant", "content": "answer"}]
    text = tokenizer.apply_chat_template(turns, tokenize=False)
    after = tokenizer(text.rpartition("answer")[2], add_special_tokens=False).input_ids
    return next((token for token in after if token in tokenizer.added_tokens_decoder), None)


def begin_of_text(tokenizer) -> str:
    """The token that begins every text the model has learned from; empty if there is none."""
    begin = tokenizer.bos_token or tokenizer.cls_token or ""
    begins = begin and tokenizer.convert_tokens_to_ids(begin) in tokenizer("x").input_ids
    return begin if begins else ""


@torch.no_grad()
def check_model(agent: Agent, args: Args, prompts: list[str]) -> None:
    """Refuse prompts that are too long, and a model that would not be sampled as it is trained."""
    rows = sorted(agent.encode(prompts), key=len)
    shortest, longest = rows[0], rows[-1]
    limit = getattr(agent.model.config.get_text_config(), "max_position_embeddings", math.inf)
    if len(longest) + args.max_new_tokens > limit > 0:  # XLNet's is -1
        refuse(f"a prompt of {len(longest)} tokens and --max-new-tokens are too long for --model")
    rows = [row + row[-1:] * args.max_new_tokens for row in (shortest, longest)]  # a stand-in for answers
    try:
        learned, sampled = logprobs_in_two_ways(agent, rows)
        difference = (sampled - learned).abs().max().item()
        tolerance = 0.5 if args.dtype == "bfloat16" else 0.01  # rounding stays far below
        if not difference < tolerance:
            raise ValueError(f"their log-probabilities differ by {difference:.2g}")
    except Exception as error:  # each model lacks something else
        cause = f"{type(error).__name__}: {error}"
        refuse(f"--model {args.model} is not sampled as it is trained: {cause}")


def check_gap(sampler_gap: float, args: Args) -> None:
    """Refuse to learn from the first rollout if the model that sampled it was another one.

    A new model may pass check_model() and fail here, for the warm start makes its faults larger.
    """
    tolerance = 0.1 if args.dtype == "bfloat16" else 0.01  # rounding stays far below, on average
    if not sampler_gap < tolerance:
        gap = f"log-probabilities of its own tokens differ by {sampler_gap:.2g} on average"
        refuse(f"--model {args.model} is not sampled as it is trained: {gap}")


def logprobs_in_two_ways(agent: Agent, rows: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Log-probabilities (N, V) of the token after each row, computed in two ways.

    The first come from one pass over each row alone, without padding or a cache. The second come
    from all rows together, padded, the last token after a cache of the others, as in sampling.
    """
    learned = []
    for row in rows:
        tokens, attended = agent.pad_rows([row])
        learned.append(agent.logits(agent.model, tokens, attended, 1)[:, -1])
    tokens, attended = agent.pad_rows(rows, "left")
    cache = DynamicCache(config=agent.model.config)
    agent.logits(agent.model, tokens[:, :-1], attended[:, :-1], 1, cache)
    sampled = agent.logits(agent.model, tokens[:, -1:], attended, 1, cache)[:, -1]
    temperature = agent.args.temperature
    learned = (torch.cat(learned) / temperature).log_softmax(-1)
    return learned, (sampled / temperature).log_softmax(-1)


@torch.no_grad()
def complete(agent: Agent, prompts: list[str], greedy: bool = False) -> tuple:
    """Answer prompts. Returns tokens and attended (N, P + T), mask and logprobs (N, T).

    logprobs are what the sampler says of its tokens. The learner's differ from them by rounding.
    """
    tokens, attended = agent.pad_rows(agent.encode(prompts), "left")
    running = torch.ones(len(tokens), dtype=torch.bool, device=tokens.device)  # rows without an end
    masks, logprobs = [], []
    cache = DynamicCache(config=agent.model.config)
    new_tokens = tokens  # the cache has none yet
    with agent.autocast():  # not one in each step, which would round all weights each time
        for _ in range(agent.args.max_new_tokens):
            logits = agent.logits(agent.model, new_tokens, attended, 1, cache)[:, -1]
            token = agent.act(logits, greedy).where(running, agent.pad)
            logprobs.append(-F.cross_entropy(logits / agent.args.temperature, token, reduction="none"))
            new_tokens = token[:, None]
            tokens = torch.cat([tokens, new_tokens], 1)
            attended = torch.cat([attended, running[:, None]], 1)
            masks.append(running)
            running = running & ~torch.isin(token, agent.ends)  # [L4] an end counts, no more
            if not running.any():
                break
    return tokens, attended, torch.stack(masks, 1), torch.stack(logprobs, 1)


@torch.no_grad()
def in_pieces(function: Callable[..., Tensor], rows: tuple[Tensor, ...], size: int) -> Tensor:
    """Apply function to the rows, size at a time, to save memory."""
    return torch.cat([function(*piece) for piece in split_rows(rows, size)])


def split_rows(rows: tuple[Tensor, ...], size: int) -> Iterator[tuple[Tensor, ...]]:
    """The rows in pieces of so many (0: in one)."""
    return zip(*(x.split(size or len(x)) for x in rows), strict=True)


def compute_gradients(agent: Agent, batch: Batch, args: Args) -> dict:
    """Add the gradients of the loss, over what counts, to the agent's own. Returns metrics."""
    per_token = ("logprobs", "ref_logprobs", "advantages", "lengths")
    total = {}
    for piece in map(Batch._make, split_rows(batch, args.micro_batch)):
        mask = piece.mask
        logprob = agent(piece.tokens, piece.attended, mask)[mask]
        picked = {name: getattr(piece, name)[mask] for name in per_token}  # [L11] no padding
        loss, metrics = grpo_loss(logprob, piece._replace(**picked), args)
        share = len(mask) / len(batch.mask)
        if args.loss_norm == "token":
            share = mask.sum() / batch.mask.sum()
        (share * loss).backward()
        for name, metric in metrics.items():
            total[name] = total.get(name, 0) + share * metric
    return total


class Task(NamedTuple):
    """Problems, each with a prompt and what the reward function takes, and that function."""

    training: list[dict]
    held_out: list[dict]
    reward: Callable[..., list] | None  # None: 1 for the answer, 0 for all else


def make_task(args: Args) -> Task:
    """The problems of args.task, of which the first eval_episodes are held out, and the reward."""
    reward = load_reward(args) if args.reward else None
    if args.task == "sorting":
        problems = sorting_problems()
    else:
        needed = ("prompt", "answer") if not reward or args.sft_steps else ("prompt",)
        problems = read_problems(args, needed)
    held_out = problems[: args.eval_episodes]
    if reward and not names_code(args.reward):
        prompts = [problem["prompt"] for problem in problems]
        check_judge(f"--reward {args.reward}", reward, args, prompts)
    seen = {str(problem["prompt"]) for problem in held_out}
    training = [x for x in problems if str(x["prompt"]) not in seen]  # [L10] no leak
    if not training and not args.evaluate:
        held = f"--eval-episodes {args.eval_episodes} holds out all {len(problems)} prompts"
        refuse(f"{held}: take fewer")
    return Task(training, held_out, reward)


def sorting_problems() -> list[dict]:
    """Every string of five digits, to be sorted; the stride scatters similar ones."""
    problems = []
    for i in range(100_000):
        digits = f"{i * 61_803 % 100_000:05}"
        problems.append({"prompt": f"{digits}>", "answer": "".join(sorted(digits))})
    return problems


def read_problems(args: Args, needed: tuple[str, ...]) -> list[dict]:
    """Problems of args.task, each with the needed texts, and None for what only others have."""
    problems = []
    where = f"--task {args.task}"
    try:
        for line in Path(args.task).read_text("utf-8").rstrip().split("\n"):
            where = f"{args.task} line {len(problems) + 1}"
            problem = json.loads(line)
            json.dumps(problem, ensure_ascii=False).encode()  # an error, if it has half a character
            check_problem(problem, needed, args.chat)
            problems.append(problem)
    except (AttributeError, LookupError, OSError, TypeError, ValueError) as error:
        refuse(f"{where}: {type(error).__name__}: {error}")
    names = {name: None for problem in problems for name in problem}
    return [names | problem for problem in problems]


def check_problem(problem: dict, needed: tuple[str, ...], chat: bool) -> None:
    """Raise an error if a needed text is none. With chat, the prompt may be a list of messages."""
    prompt = problem.get("prompt")
    if chat and isinstance(prompt, list):
        prompt = "".join(message["role"] + message["content"] for message in prompt)
    texts = problem | {"prompt": prompt}
    for name in needed:
        if not isinstance(texts.get(name), str) or texts[name] == "":
            messages = " (with --chat, prompt may be a list of messages)"
            raise ValueError(f"each problem takes {' and '.join(needed)}, as text{messages}")


def names_code(reward: str) -> bool:
    """Whether a reward is module:function, and no folder; the path of one may have a colon, too."""
    return ":" in reward and not Path(reward).exists()


def load_reward(args: Args) -> Callable[..., list]:
    """The reward function: module:function(prompts, completions, **columns), or that of a model."""
    try:
        if not names_code(args.reward):
            return load_reward_model(args)
        sys.path.append("")  # the module may be in the current folder
        module, _, name = args.reward.partition(":")
        return getattr(importlib.import_module(module), name)
    except (Exception, SystemExit) as error:  # each folder and each module has its own errors
        refuse(f"--reward {args.reward}: {type(error).__name__}: {error}")


def load_reward_model(args: Args) -> Callable[..., list]:
    """The reward function of a model, whose name, folder, or run args.reward is."""
    name = args.reward
    if Path(name, "model").is_dir():
        name = f"{name}/model"
    tokenizer, model = load_pretrained(AutoModelForSequenceClassification, name)
    if model.config.num_labels != 1:
        raise ValueError(f"{model.config.num_labels} outputs, but a reward model has one")
    return make_judge(tokenizer, model.to(pick_device(args.device)).eval(), args)


def make_judge(tokenizer, model, args: Args) -> Callable[..., list]:
    """A reward function: the output of a model, standardised if its config has the statistics."""
    mean, deviation = getattr(model.config, "reward_statistics", (0.0, 1.0))

    def score(tokens: Tensor, attended: Tensor) -> Tensor:
        return model(input_ids=tokens, attention_mask=attended).logits[:, 0]

    def reward(prompts, completions, finished, **_) -> list[float]:
        texts = whole_texts(tokenizer, args.chat, prompts, completions, finished)
        rows = tokenizer(texts, add_special_tokens=False, verbose=False).input_ids
        pad = free_token(rows)
        model.config.get_text_config().pad_token_id = pad
        inputs = [torch.tensor(row, device=model.device) for row in rows]
        tokens = nn.utils.rnn.pad_sequence(inputs, batch_first=True, padding_value=pad)
        lengths = torch.tensor([len(row) for row in rows], device=model.device)
        attended = torch.arange(tokens.shape[1], device=model.device) < lengths[:, None]
        scores = in_pieces(score, (tokens, attended.long()), args.micro_batch)
        return ((scores - mean) / deviation).tolist()

    return reward


def free_token(rows: list[list[int]]) -> int:
    """A token to pad with. A model reads a text up to its last other token, so no row may end with it."""
    last = {row[-1] for row in rows}
    return next(token for token in range(len(last) + 1) if token not in last)


@torch.no_grad()
def check_judge(name: str, reward: Callable[..., list], args: Args, prompts: list[str]) -> None:
    """Refuse a reward model whose scores depend on neighbours, or that does not see a text's end."""
    prompts = [min(prompts, key=len), *[max(prompts, key=len)] * 2]
    completions = ["1", *["1" + " 1" * (args.max_new_tokens - 1)] * 2]  # stand-ins
    finished = [True, True, False]
    try:
        together = reward(prompts, completions, finished)
        alone = []
        for text in zip(prompts, completions, finished, strict=True):
            alone += reward(*([part] for part in text))
        difference = np.abs(np.subtract(together, alone)).max()
        if not difference < 1e-3 * np.abs(together).max():  # rounding stays far below
            raise ValueError("its score of a text depends on the texts beside it")
        if np.isclose(together[1], together[2], rtol=1e-5, atol=0):  # rounding differs within a batch
            raise ValueError("it does not see whether a text has ended")
    except Exception as error:  # each model lacks something else
        refuse(f"{name} cannot judge: {type(error).__name__}: {error}")


def whole_texts(tokenizer, chat: bool, prompts, completions, finished) -> list[str]:
    """The texts that a reward model reads; those that have not ended have no end.

    With chat, the template says how a text begins and ends.
    """
    begin = begin_of_text(tokenizer)
    texts = []
    for prompt, completion, ended in zip(prompts, completions, finished, strict=True):
        if chat:
            turns = [*as_messages(prompt), {"role": "assistant", "content": completion}]
            template = tokenizer.apply_chat_template
            texts.append(template(turns, tokenize=False, continue_final_message=not ended))
        else:
            end = (tokenizer.eos_token or tokenizer.sep_token or "") if ended else ""
            texts.append(begin + prompt.removeprefix(begin) + completion + end)
    return texts


def grade(agent: Agent, task: Task, problems: list[dict], tokens: Tensor, mask: Tensor) -> tuple:
    """Completions as tokens and as texts, their scores (or their tokens' scores), and exact."""
    rows, texts = decode(agent, tokens, mask)
    exact = match_answers(agent, problems, rows)
    if not task.reward:
        return rows, texts, [np.asarray(x) for x in exact], exact
    columns = {name: [problem[name] for problem in problems] for name in problems[0]}
    columns |= {"prompts": columns.pop("prompt"), "completions": texts, "completion_ids": rows}
    columns["finished"] = [has_ended(agent, row) for row in rows]
    scores = check_scores(task.reward(**columns), rows)
    return rows, texts, scores, exact


def decode(agent: Agent, tokens: Tensor, mask: Tensor) -> tuple[list, list[str]]:
    """Completions as rows of the tokens that count, and as texts."""
    completions = tokens[:, -mask.shape[1] :].cpu()
    rows = [row[counts].tolist() for row, counts in zip(completions, mask.cpu(), strict=True)]
    texts = [agent.tokenizer.decode(row, skip_special_tokens=True) for row in rows]
    return rows, texts


def has_ended(agent: Agent, row: list[int]) -> bool:
    """Whether a completion has come to an end, or only to --max-new-tokens."""
    return row[-1] in agent.end_ids


def match_answers(agent: Agent, problems: list[dict], rows: list[list[int]]) -> list[float]:
    """1.0 for each completion that has ended and is the answer, but for blanks around it."""

    def spell(row: list[int]) -> str:  # keeps special tokens and cut characters
        return "".join(map(str, agent.tokenizer.convert_ids_to_tokens(row))).strip(" \n▁ĠĊ")

    answers = [str(problem.get("answer") or "") for problem in problems]
    answer_rows = agent.tokenizer(answers, add_special_tokens=False).input_ids
    exact = []
    for row, answer_row in zip(rows, answer_rows, strict=True):
        answer = spell(answer_row)
        same = has_ended(agent, row) and spell(row[:-1]) == answer
        exact.append(float(same and answer != ""))
    return exact


def check_scores(returned, rows: list[list[int]]) -> list[np.ndarray]:
    """Scores as arrays: for each completion a number, or one for each of its tokens."""
    if not getattr(returned, "ndim", isinstance(returned, list | tuple)):
        returned = []  # it was a number, a dict, None
    plain = [x.tolist() if isinstance(x, Tensor) else x for x in returned]  # on any device
    scores = [np.asarray(x, float) for x in plain]
    fits = len(scores) == len(rows)
    for score, row in zip(scores, rows, strict=False):
        wanted = len(row) if score.ndim else 1
        fits = fits and score.size == wanted and np.isfinite(score).all()
    if not fits:
        wanted = "a finite score for each completion, or for each of its completion_ids"
        refuse(f"--reward does not return {wanted}")
    return scores


def seed_everything(seed: int, purpose: str, num_envs: int = 0) -> list[int]:
    """Seed Python, NumPy and torch, for each purpose differently. Returns seeds for the envs."""
    sequence = np.random.SeedSequence([seed, *purpose.encode()])
    seeds = sequence.generate_state(num_envs + 1).tolist()
    random.seed(seeds[0])
    np.random.seed(seeds[0])
    torch.manual_seed(seeds[0])
    return seeds[1:]


@torch.no_grad()
def evaluate(agent: Agent, args: Args, task: Task) -> list[dict]:
    """Answers to all held-out prompts, with their scores, and whether they are exactly right."""
    seed_everything(args.seed, "evaluation")
    answers = []
    begins = range(0, len(task.held_out), args.num_envs)
    for begin in tqdm(begins, desc="evaluation", leave=False, disable=None):
        problems = task.held_out[begin : begin + args.num_envs]
        prompts = [problem["prompt"] for problem in problems]
        tokens, _, mask, _ = complete(agent, prompts, args.eval_greedy)
        _, texts, scores, exact = grade(agent, task, problems, tokens, mask)
        answers += list_answers(problems, texts, scores, exact)
    return answers


def list_answers(problems: list[dict], texts: list[str], scores: list, exact: list) -> list[dict]:
    """Prompt, completion, score, and exactness of each answer, to be written to a file."""
    answers = []
    for problem, text, score, right in zip(problems, texts, scores, exact, strict=True):
        answer = {"prompt": problem["prompt"], "completion": text}
        answers.append(answer | {"score": float(np.sum(score)), "exact": bool(right)})
    return answers


def warm_start(agent: Agent, args: Args, task: Task) -> None:
    """Supervised learning: the policy gradient, of the right tokens, all with an advantage of 1."""
    optimizer = optim.Adam(agent.model.parameters(), args.sft_learning_rate)
    end = agent.end_ids[:1]
    for _ in tqdm(range(args.sft_steps), desc="warm start", leave=False, disable=None):
        problems = [random.choice(task.training) for _ in range(args.num_envs)]
        prompt_rows = agent.encode([problem["prompt"] for problem in problems])
        prompts, attended = agent.pad_rows(prompt_rows, "left")
        answers = [problem["answer"] for problem in problems]
        answer_rows = agent.tokenizer(answers, add_special_tokens=False).input_ids
        # What is longer could not be sampled.
        rows = [(row + end)[: args.max_new_tokens] for row in answer_rows]
        completions, mask = agent.pad_rows(rows)
        tokens = torch.cat([prompts, completions], 1)
        rows = (tokens, torch.cat([attended, mask], 1), mask)
        optimizer.zero_grad()
        for *inputs, counts in split_rows(rows, args.micro_batch):
            logprob = agent(*inputs, counts)[counts]
            (-logprob.sum() / mask.sum()).backward()  # the pieces add up to a mean
        nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
        optimizer.step()
    if not all(weight.isfinite().all() for weight in agent.model.parameters()):
        refuse("the warm start has diverged: try a smaller --sft-learning-rate")


def train(args: Args, on_iteration=None) -> tuple[Agent, list[dict[str, float]]]:
    """Train, or go on with args.resume. Returns the agent, and a row of metrics per iteration.

    on_iteration(metrics) is called after each iteration, which is the last one if it returns True.
    """
    # setup
    check(args)
    N = args.num_envs
    rows_at_once = N // args.num_minibatches
    num_iterations = int(args.total_episodes // N)
    save_every = math.ceil(num_iterations / max(1, args.checkpoints))
    device = pick_device(args.device)
    on_device = partial(torch.as_tensor, device=device)  # on the CPU, this shares memory
    torch.set_num_threads(args.threads)
    task = make_task(args)
    seed_everything(args.seed, "weights")
    agent = Agent(args).to(device)
    check_model(agent, args, [problem["prompt"] for problem in task.training + task.held_out])
    run_dir, lock = make_run_dir(args)  # the folder is ours while lock is held
    if not args.resume:
        warm_start(agent, args, task)
    agent.copy_model()
    parameters = list(agent.model.parameters())
    # [D03] Not 1e-5, as for small networks: a large model's gradients are smaller than that.
    optimizer = optim.Adam(parameters, args.learning_rate, eps=1e-8, fused=True)
    sources = digests(args, run_dir)
    first_iteration = restore(run_dir, args, agent, optimizer)
    steps = first_iteration * N
    log = []
    writer = open_log(run_dir, args, steps)
    print(f"{args.task} on {device}; --resume {run_dir} goes on from its last checkpoint", flush=True)

    bar = tqdm(total=num_iterations * N, initial=steps, unit="", unit_scale=True, disable=None)
    for iteration in range(first_iteration, num_iterations):
        is_cut = (iteration - first_iteration) % save_every == 0
        if is_cut:
            # What is not saved starts anew here: so a resumed run goes on as this one does.
            if args.checkpoints:
                save(run_dir, args, iteration, agent, optimizer, sources)
            seed_everything(args.seed, f"cut {iteration}")  # [E2] a resumed run does so, too
        share_left = 1 - iteration / num_iterations
        lr_scale = share_left if args.anneal_lr else 1  # [D04] linearly towards zero
        optimizer.param_groups[0]["lr"] = args.learning_rate * lr_scale

        # rollout
        began = time.perf_counter()
        with torch.no_grad():
            problems = [random.choice(task.training) for _ in range(N // args.group_size)]
            problems = [problem for problem in problems for _ in range(args.group_size)]
            prompts = [problem["prompt"] for problem in problems]
            tokens, attended, mask, sampled = complete(agent, prompts)
            rows, texts, scores, exact = grade(agent, task, problems, tokens, mask)
            if any(score.ndim for score in scores):
                refuse("--reward scores tokens, but groups are compared as a whole; see ppo_llm.py")
            if is_cut and args.checkpoints:  # to be read by people
                answers = list_answers(problems, texts, scores, exact)
                write_lines(run_dir / f"answers_{steps:08}.jsonl", answers)
            # The weights are still those that acted.
            inputs = (tokens, attended, mask)
            logprobs = in_pieces(agent, inputs, args.micro_batch)
            sampler_gap = (logprobs - sampled)[mask].abs().mean().item()  # 0 but for rounding
            if iteration == first_iteration:
                check_gap(sampler_gap, args)
            ref_logprobs = logprobs
            if agent.reference:
                ref_logprobs = in_pieces(agent.reference_logprobs, inputs, args.micro_batch)

        # advantages
        advantages = group_advantages(np.array(scores), args.group_size, args.norm_adv)
        advantages = on_device(advantages.astype(np.float32))[:, None].expand(mask.shape)
        lengths = mask.sum(1)[:, None].expand(mask.shape)

        # update
        batch = Batch(tokens, attended, mask, logprobs, ref_logprobs, advantages, lengths)
        history = []
        for _ in range(args.update_epochs):
            for idx in on_device(np.random.permutation(N)).split(rows_at_once):  # [D06] each once
                minibatch = Batch(*(x[idx] for x in batch))
                optimizer.zero_grad()
                metrics = compute_gradients(agent, minibatch, args)
                norm = nn.utils.clip_grad_norm_(parameters, args.max_grad_norm)  # [D11] all at once
                optimizer.step()
                history.append(metrics | {"grad_norm": norm})
            if history[-1]["kl"] > args.target_kl:  # [X3] the policy has moved enough
                break

        # log
        steps += N
        row = {"steps": steps} | mean_metrics(history)
        refuse_broken(row | agent.state_dict(), steps)
        spreads = np.ptp(np.reshape(scores, (-1, args.group_size)), axis=1)
        row["signal"] = float(np.mean(spreads > 0))  # share of groups to learn from
        totals = [float(np.sum(score)) for score in scores]
        row["score"] = float(np.mean(totals))
        row["exact"] = float(np.mean(exact))
        row["finished"] = float(np.mean([has_ended(agent, completion) for completion in rows]))
        row["length"] = mask.sum().item() / N
        row["sampler_gap"] = sampler_gap
        row["learning_rate"] = optimizer.param_groups[0]["lr"]
        row["tokens_per_second"] = mask.sum().item() / (time.perf_counter() - began)
        if not iteration:
            show_first_scores(totals, row, agent, task, bar)
        log.append(row)
        write_row(row, bar, writer, args)
        if on_iteration and on_iteration(row):
            break

    # wrap up
    bar.close()
    save(run_dir, args, steps // N, agent, optimizer, sources)
    if args.eval_episodes:
        log = log or [{"steps": steps}]  # a run that was finished has no iteration left
        log[-1]["eval_score"] = report(agent, args, run_dir, task)
    close_log(log, writer, args)
    return agent, log


# That was the algorithm; from here on: flags, folders, checkpoints, and the command line.


class Mistake(ValueError):
    """An error whose message says, in one line, what cannot be done and why."""


def refuse(mistake: str) -> NoReturn:
    """Raise a Mistake with this message, put on one line."""
    raise Mistake(" ".join(mistake.split()))


def flag(name: str) -> str:
    """The flag of a field of Args."""
    return "--" + name.replace("_", "-")


def check(args: Args) -> None:
    """Refuse arguments that cannot work, before anything is created."""
    counts = ("total_episodes", "num_envs", "max_new_tokens", "update_epochs", "num_minibatches")
    unbounded = ("max_grad_norm", "clip_coef", "clip_coef_high", "target_kl")
    ranges = dict.fromkeys(vars(args), (0, 10**12))
    ranges |= dict.fromkeys(counts, (1, 10**12))
    ranges |= dict.fromkeys(unbounded, (0, math.inf))
    ranges |= {"threads": (1, 1024), "seed": (0, 2**32 - 1)}
    defaults = Args()
    for name, value in vars(args).items():
        default = getattr(defaults, name)
        if isinstance(default, str | None):
            if not isinstance(value, str | type(default)):
                refuse(f"{flag(name)} {value} is not text")
            continue
        low, high = ranges[name]
        is_number = hasattr(value, "__float__")
        if not (is_number and low <= value <= high):  # NaN lies in no range
            refuse(f"{flag(name)} {value} is not between {low} and {high}")
    if args.total_episodes < args.num_envs:
        refuse(f"--total-episodes {args.total_episodes} is less than --num-envs {args.num_envs}")
    N = args.num_envs
    if N % args.num_minibatches or N // args.num_minibatches < 2:
        refuse(f"--num-minibatches {args.num_minibatches} does not cut {N} into equal parts of 2+")
    if args.group_size < 2 or N % args.group_size:
        refuse(f"--group-size {args.group_size} does not cut {N} completions into groups of 2+")
    try:
        json.loads(args.chat_options).keys()
    except (AttributeError, ValueError):
        refuse(f"--chat-options {args.chat_options} is no JSON object")
    if args.temperature == 0:
        refuse("--temperature 0 leaves nothing to learn from; --eval-greedy evaluates so")
    if args.evaluate and not args.eval_episodes:
        refuse("--eval-episodes 0 leaves nothing to evaluate")


def check_saved(args: Args, saved: Args) -> None:
    """Refuse flags that do not fit the run that is continued or evaluated."""
    if bool(args.kl_coef) != bool(saved.kl_coef):  # its weights would not fit
        advice = "0 must stay 0, and others above it (1e-9 only measures)"
        refuse(f"--kl-coef {args.kl_coef}: the run has {saved.kl_coef}; {advice}")
    if args.task == saved.task and args.eval_episodes > saved.eval_episodes:
        refuse(f"--eval-episodes {args.eval_episodes}: the run has held out {saved.eval_episodes}")


def pick_device(name: str) -> torch.device:
    """The device of that name; auto is the first accelerator, or else the CPU."""
    kind = "cpu"
    if torch.accelerator.is_available():
        kind = torch.accelerator.current_accelerator().type
    devices = [f"{kind}:{i}" for i in range(torch.accelerator.device_count())] + ["cpu"]
    if name not in ["auto", kind] + devices:
        refuse(f"--device {name} is not here; there is {', '.join(devices)}")
    if name in ("auto", kind):
        name = devices[0]
    return torch.device(name)


def digests(args: Args, run_dir: Path) -> dict[str, str]:
    """Of each file or folder that a run reads beside its checkpoint, a hash of what is in it."""
    reward = args.reward or ""
    if names_code(reward):
        module, _, _ = reward.partition(":")
        reward = sys.modules[module].__spec__.origin
    elif reward and Path(reward, "model").is_dir():
        reward += "/model"
    places = {"task": args.task, "model": args.model, "pairs": run_dir / "pairs.jsonl"}
    if reward:
        places["reward"] = reward
    found = {}
    for name, place in places.items():
        digest = hashlib.sha256()
        for path in sorted([Path(place), *Path(place).rglob("*")]):
            if path.is_file():
                digest.update(path.read_bytes())
        found[name] = digest.hexdigest()
    return found


def check_sources(args: Args, checkpoint: dict, sources: dict[str, str]) -> None:
    """Refuse to go on with a task, model, or reward that has changed under the same name."""
    for name in checkpoint["sources"].keys() & sources.keys():
        same_flag = getattr(args, name, None) == getattr(checkpoint["args"], name, None)
        if same_flag and sources[name] != checkpoint["sources"][name]:
            raise ValueError(f"its {name} has changed since the run was saved")


def restore(run_dir: Path, args: Args, agent: Agent, optimizer: optim.Adam) -> int:
    """Load agent and optimizer if resuming. Returns the next iteration."""
    if not args.resume:
        return 0
    checkpoint = load(run_dir, args, agent=agent, optimizer=optimizer)
    return checkpoint["iteration"]


def mean_metrics(history: list[dict[str, Tensor]]) -> dict[str, float]:
    """Means of the metrics over the gradient steps of an update."""
    means = {}
    for name in history[0]:
        means[name] = torch.stack([metrics[name] for metrics in history]).mean().item()
    return means


def refuse_broken(numbers: dict, steps: int) -> None:
    """Raise an error if any of the numbers is not finite, before it can reach a checkpoint."""
    for name, x in numbers.items():
        if not torch.as_tensor(x).isfinite().all():
            raise FloatingPointError(f"{name} is not finite before step {steps}")


def show_first_scores(totals: list[float], row: dict, agent: Agent, task: Task, bar: tqdm) -> None:
    """Print the mean score of the first completions, and advice if nearly all are the same."""
    usual = max(totals, key=totals.count)
    warning = ""
    if totals.count(usual) > 0.97 * len(totals):
        advice = first_advice(usual, totals, row, agent, task)
        warning = f"; nearly all are {usual:.3g}, so it learns slowly at first: {advice}"
    bar.write(f"score before the first step: {np.mean(totals):.3g}{warning}")


def first_advice(usual: float, totals: list[float], row: dict, agent: Agent, task: Task) -> str:
    """Why nearly all of the first completions have the usual score, and what may help."""
    args = agent.args
    answers = [str(x["answer"]) for x in task.training[:256] if x.get("answer")]
    rows = agent.tokenizer(answers, add_special_tokens=False).input_ids
    lengths = [len(row) + 1 for row in rows]  # an end is a token, too
    if row["exact"] > 0.95 or min(totals) < usual == max(totals):
        return "the task is solved already"
    if lengths and min(lengths) > args.max_new_tokens:
        return f"no answer has less than {min(lengths)} tokens, so --max-new-tokens is too small"
    if args.model == "tiny":
        return "try more --sft-steps"
    if row["finished"] < 0.05:
        return "try more --max-new-tokens, for hardly a completion has come to its end"
    return "try easier prompts, or a reward that tells bad completions from worse ones"


def open_log(run_dir: Path, args: Args, steps: int) -> SummaryWriter:
    """Write args.json, and open the curves: TensorBoard's, and with --track those of wandb."""
    flags = json.dumps(asdict(args), indent=2)
    flags = flags.replace(": Infinity", ': "inf"')  # JSON has no word for it
    write_file(run_dir / "args.json", flags + "\n")
    purge_step = steps + 1 if args.resume else None  # later rows are written again
    writer = SummaryWriter(run_dir, purge_step=purge_step)
    writer.add_text("args", f"<pre>{flags}</pre>", steps)
    if args.track:
        import wandb

        try:
            wandb.init(name=run_dir.resolve().name, config=asdict(args), dir=run_dir)
        except wandb.Error as error:
            refuse(f"--track: {error}")
        wandb.define_metric("*", step_metric="steps")
    return writer


def write_row(row: dict[str, float], bar: tqdm, writer: SummaryWriter, args: Args) -> None:
    """Add a row of metrics to the curves and move the bar; about 20 times in a run, print it."""
    for name, metric in row.items():
        if name != "steps":
            writer.add_scalar(name, metric, row["steps"])
    writer.flush()  # a checkpoint must not be ahead of its curves
    if args.track:
        import wandb

        wandb.log(row)
    N = args.num_envs
    bar.set_postfix_str(f"score {row['score']:.3g}", refresh=False)
    bar.update(N)
    iterations_left = (bar.total - row["steps"]) // N
    if iterations_left % math.ceil(bar.total / N / 20) == 0:  # true of the last one, too
        shown = ("score", "finished", "ref_kl", "entropy", "signal", "tokens_per_second")
        status = "  ".join(f"{name} {row[name]:.3g}" for name in shown)
        bar.write(f"{row['steps']:,} completions  {status}")
        sys.stdout.flush()


def close_log(log: list[dict], writer: SummaryWriter, args: Args) -> None:
    """Add the evaluation to the curves, and close them."""
    if args.eval_episodes:
        writer.add_scalar("eval_score", log[-1]["eval_score"], log[-1]["steps"])
    writer.close()
    if args.track:
        import wandb

        if args.eval_episodes:
            wandb.log(log[-1])
        wandb.finish()


def make_run_dir(args: Args) -> tuple[Path, FileLock]:
    """The run's folder, new unless it is resumed, and the lock that makes it ours."""
    now = f"{datetime.now():%Y%m%d-%H%M%S-%f}"
    name = f"{args.task}__{Path(__file__).stem}__{args.seed}__{now}"
    default = "runs/" + re.sub(r"[^\w-]", "-", name)
    run_dir = Path(args.resume or args.run_dir or default)
    # As a singleton, the lock can be taken again by the process that holds it.
    lock = FileLock(run_dir / "lock", blocking=False, is_singleton=True)
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        is_run = args.resume or (run_dir / "lock").exists()  # a run that failed leaves its lock
        if not is_run and any(run_dir.iterdir()):
            refuse(f"{run_dir} holds other files; a run takes a new folder, or an empty one")
        lock.acquire()
    except OSError as error:  # another process is at work there, or the disk is full
        refuse(f"{run_dir}: {error}")
    if (run_dir / "checkpoint.pt").exists() and not args.resume:
        refuse(f"{run_dir} holds a run, which --resume would continue")
    return run_dir, lock


def save(run_dir: Path, args: Args, iteration: int, agent: Agent, optimizer, sources: dict) -> None:
    """Write the checkpoint so that a kill at any moment leaves a whole one, the old or the new."""
    checkpoint = {
        "writer": WRITER,
        "args": asdict(args),
        "iteration": iteration,
        "sources": sources,
        "agent": agent.state_dict(),
        "optimizer": optimizer.state_dict(),
    }
    part = run_dir / "checkpoint.tmp"
    part.unlink(missing_ok=True)  # a link that lies there would be written through
    with open(part, "w+b") as file:
        try:
            torch.save(checkpoint, file)  # not to memory first: a large model may not fit twice
        except RuntimeError as error:
            raise error.__context__ from None  # its cause is plainer: the disk is full, say
        file.seek(0)
        file.write(hashlib.file_digest(file, "sha256").digest())
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, run_dir / "checkpoint.pt")


def write_file(path: Path, text: str) -> None:
    """Write a text so that a kill leaves a whole file, and so that no link is written through."""
    part = path.with_name(path.name + ".tmp")
    part.unlink(missing_ok=True)
    part.write_text(text, "utf-8")
    os.replace(part, path)


def write_lines(path: Path, rows: list[dict]) -> None:
    """Write a file .jsonl."""
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    write_file(path, "\n".join(lines) + "\n")


def load(run_dir: str | Path, resuming: Args | None = None, **parts) -> dict:
    """What save() wrote, after restoring the given parts (agent, optimizer).

    No code that the file may hold is run.
    """
    path = Path(run_dir) / "checkpoint.pt"
    try:
        if path.exists() and not path.is_file():  # reading from a pipe might never end
            raise ValueError("it is no file")
        content = path.read_bytes()
        if hashlib.sha256(memoryview(content)[:-32]).digest() != content[-32:]:
            raise ValueError(f"it is damaged, or older than {WRITER}")
        checkpoint = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        if checkpoint["writer"] != WRITER:
            raise ValueError(f"it was written by {checkpoint['writer']}")
        saved = Args(**checkpoint["args"])
        check(saved)
        checkpoint["args"] = saved
        if resuming:
            for name in ("model", "task", "seed", "num_envs"):
                if getattr(resuming, name) != getattr(saved, name):
                    raise ValueError(f"{flag(name)} cannot change: it has {getattr(saved, name)}")
            check_saved(resuming, saved)
            check_sources(resuming, checkpoint, digests(resuming, Path(run_dir)))
        check_contents(checkpoint)
        if resuming:
            groups = parts["optimizer"].state_dict()["param_groups"]
            checkpoint["optimizer"]["param_groups"] = groups  # the script's, not the file's
        for name, part in parts.items():
            part.load_state_dict(checkpoint[name])
        if resuming:
            check_moments(parts["optimizer"])
    except Exception as error:  # no file, half a file, or one that does not fit
        message = " ".join((str(error) or repr(error)).split())
        refuse(f"{path} cannot be used: {message.partition('. ')[0]}")
    return checkpoint


def check_contents(checkpoint: dict) -> None:
    """Refuse what save() never writes."""
    iteration = checkpoint["iteration"]
    if not isinstance(iteration, int) or iteration < 0:
        raise ValueError(f"{iteration!r} is no iteration")
    for name, weight in checkpoint["agent"].items():
        if not weight.isfinite().all():
            raise ValueError(f"{name} is not finite")


def check_moments(optimizer: optim.Adam) -> None:
    """Refuse a state that does not fit the weights: fused Adam would trust it."""
    for weight, kept in optimizer.state.items():
        layouts = {name: (x.shape, x.stride()) for name, x in kept.items()}
        like_weight = (weight.shape, weight.stride())
        if layouts != {"step": ((), ()), "exp_avg": like_weight, "exp_avg_sq": like_weight}:
            raise ValueError("the state of the optimizer does not fit")


def report(agent: Agent, args: Args, run_dir: Path, task: Task) -> float:
    """Evaluate, write all answers to completions.jsonl, and show some. Returns the mean score."""
    answers = evaluate(agent, args, task)
    try:
        write_lines(run_dir / "completions.jsonl", answers)
    except OSError as error:  # the folder cannot be written to, say: no reason to lose the scores
        print(f"the answers are not kept: {error}", file=sys.stderr)
    for answer in answers[:5]:
        print(
            f"{answer['score']:6.2f}  {last_text(answer['prompt'])[-60:]!r} -> {answer['completion'][:60]!r}"
        )
    score = float(np.mean([answer["score"] for answer in answers]))
    exact = float(np.mean([answer["exact"] for answer in answers]))
    scores = f"mean score {score:.3f}, exact {exact:.3f}"
    print(f"{scores}, of {len(answers)} held-out prompts; see {run_dir}")
    return score


def main() -> None:
    """Train, go on with a run, or evaluate it, as the command line says."""
    given = tyro.cli(Args, description=__doc__)
    if "" in vars(given).values():  # --resume=$NOT_SET, say
        refuse("an empty value on the command line")
    if [given.run_dir, given.resume, given.evaluate].count(None) < 2:
        refuse("--run-dir, --resume and --evaluate exclude each other")
    folder = given.resume or given.evaluate
    args = given
    if folder:  # the flags are read again, with the saved ones as defaults
        args = tyro.cli(Args, description=__doc__, default=load(folder)["args"])
        if names_code(args.reward or "") and args.reward != given.reward:
            refuse(f"{folder} would import code; if you trust it, add --reward {args.reward}")
    if not given.evaluate:
        train(args)
        return
    check(args)
    check_saved(args, load(folder)["args"])
    torch.set_num_threads(args.threads)
    task = make_task(args)
    agent = Agent(args).to(pick_device(args.device))
    agent.copy_model()
    load(folder, agent=agent)
    check_model(agent, args, [problem["prompt"] for problem in task.held_out])
    report(agent, args, Path(folder), task)


if __name__ == "__main__":
    try:
        main()
    except Mistake as mistake:
        print(f"{Path(__file__).name}: {mistake}", file=sys.stderr)
        sys.exit(2)
