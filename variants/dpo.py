# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "torch==2.13.0", "transformers==5.23.0", "numpy==2.4.6", "tyro==1.0.17", "tensorboard==2.21.0",
#     "tqdm==4.70.1", "filelock==4.2.11", "wandb==0.31.0",
# ]
# ///
"""Direct Preference Optimization (arXiv 2305.18290), the whole algorithm in one file.

    python variants/dpo.py                                      # a new small model learns to sort digits
    python variants/dpo.py --model NAME --task FILE.jsonl --sft-steps 0 --learning-rate 1e-6
    git diff --no-index variants/grpo.py variants/dpo.py        # what changes when the data are fixed pairs

Of two completions of a prompt, one was preferred. The model learns which, and nothing is sampled meanwhile:
what it has learned is the reward beta * log(its probability / the reference's) of a completion.

Shapes  N pairs are 2N rows: a prompt of up to P tokens, padded on the left, and a completion of up to T, on
        the right, the preferred one first. The mask (N, 2, T) picks the tokens of completions that count.

Tags    [D08] marks the line with detail 8 of docs/details.md; [L1] and [P1] are of language models.
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
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple, NoReturn

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

WRITER = f"{Path(__file__).name} 1.0"  # of checkpoints, which no other script and version can use


@dataclass
class Args:
    model: str = "tiny"  # a new one over bytes, or the name or folder of one in the format of Hugging Face
    task: str = "sorting"  # or a file .jsonl: of prompt, answer, and more; or of prompt, chosen, rejected
    num_pairs: int = 4000  # where a task has none: number of pairs of the model's own completions
    label_noise: float = 0.0  # share of these in which the worse completion is the preferred one
    reward: str = ""  # a reward model, or module:function(prompts, completions, **columns) -> scores
    chat: bool = False  # prompts are put into the model's chat template
    seed: int = 1  # all random numbers follow from it
    sft_steps: int = 50  # steps of supervised learning first, to have a start (0: none, for a trained model)
    sft_learning_rate: float = 5e-3  # learning rate of Adam in these
    total_episodes: int | float = 12_800  # number of pairs in total; each is drawn from all of them
    num_envs: int = 128  # number of pairs that are drawn together
    max_new_tokens: int = 12  # most tokens of a completion; pairs with longer ones are left out
    temperature: float = 1.0  # of policy and reference, in sampling and in learning
    learning_rate: float = 1e-3  # learning rate of Adam; for a large model 1e-6
    anneal_lr: bool = True  # the learning rate falls linearly towards zero
    num_minibatches: int = 2  # gradient steps in an iteration
    beta: float = 0.1  # the smaller, the further a log-ratio has to move until a pair is learned
    sft_coef: float = 1.0  # weight of the preferred completion's log-probability, which keeps it probable
    max_grad_norm: float = 0.5  # greatest norm of all gradients together (inf: off)

    device: str = "cpu"  # cpu, cuda, cuda:1, mps, or auto: an accelerator if there is one
    dtype: str = "float32"  # or bfloat16: the model computes in it; weights, losses and Adam stay in float32
    micro_batch: int = 0  # pairs in a pass of learning or scoring, to save memory (0: all of them)
    threads: int = 1  # number of CPU threads; small networks are fastest with 1
    run_dir: str = ""  # a new folder; default: runs/<task>__<script>__<seed>__<time>
    resume: str = ""  # folder of the run to continue; its flags hold unless given again
    evaluate: str = ""  # folder of the run to evaluate, instead of training
    checkpoints: int = 10  # saves on the way, each replaces the last (0: only the end is saved)
    track: bool = False  # the run is logged to Weights & Biases, too
    eval_episodes: int = 500  # prompts held out of training, answered after it
    eval_greedy: bool = False  # the evaluation takes the most probable tokens instead of sampled ones


class Batch(NamedTuple):
    """What an update sees: pairs of completions, the preferred one first."""

    tokens: Tensor  # (N, 2, P + T)
    attended: Tensor  # (N, 2, P + T), where they are not padding
    mask: Tensor  # (N, 2, T)
    ref_logprobs: Tensor  # (N, 2), of whole completions, of the reference


def dpo_loss(logprobs: Tensor, batch: Batch, args: Args) -> tuple:
    """Cross-entropy of which completion is preferred (arXiv 2305.18290, equation 7), with imitation of it.

    logprobs (N, 2) are the current agent's of whole completions -> scalar loss, metrics without gradient.
    """
    rewards = args.beta * (logprobs - batch.ref_logprobs)  # [P1]
    margin = rewards[:, 0] - rewards[:, 1]
    preference_loss = -F.logsigmoid(margin).mean()  # [P2]
    chosen, rejected = (logprobs / batch.mask.sum(2)).mean(0)  # of a token
    loss = preference_loss - args.sft_coef * chosen  # [P3]
    metrics = {"preference_loss": preference_loss, "margin": margin.mean()}
    metrics |= {"accuracy": (margin > 0).float().mean()}
    metrics |= {"chosen_logprob": chosen, "rejected_logprob": rejected}
    return loss, {name: metric.detach() for name, metric in metrics.items()}  # [D12]


class Agent(nn.Module):
    """A language model as the policy."""

    def __init__(self, args: Args):
        super().__init__()
        self.args = args
        self.tokenizer, self.model = make_model(args)
        if args.chat and not self.tokenizer.chat_template:
            refuse(f"--model {args.model} has no template for --chat")
        ends = (self.tokenizer.eos_token_id, self.model.generation_config.eos_token_id)  # id, ids, None
        ends = [torch.tensor(end).flatten() for end in ends if end is not None]
        if not ends:
            refuse(f"--model {args.model} has no token that ends a text")
        self.register_buffer("ends", torch.cat(ends), persistent=False)
        self.pad = self.ends[0].item()  # any token would do, for the mask says what counts
        self.reference = None
        self.eval()  # [L7] for good: with dropout, a completion would have many log-probabilities

    def copy_model(self) -> None:
        """Make the reference of the model as it is now."""
        self.reference = copy.deepcopy(self.model).requires_grad_(False)  # [L8]

    def pad_rows(self, rows: list[list[int]], side: str = "right") -> tuple[Tensor, Tensor]:
        """Rows of tokens as one tensor (N, longest), and where it is not padding."""
        pad = partial(nn.utils.rnn.pad_sequence, batch_first=True, padding_side=side)
        tokens = pad([torch.tensor(row) for row in rows], padding_value=self.pad)
        mask = pad([torch.ones(len(row), dtype=torch.bool) for row in rows])
        return tokens.to(self.ends.device), mask.to(self.ends.device)

    def encode(self, prompts: list[str]) -> list[list[int]]:
        """Prompts as tokens, with all that the model expects around them."""
        if self.args.chat:
            chats = [[{"role": "user", "content": prompt}] for prompt in prompts]
            prompts = self.tokenizer.apply_chat_template(chats, add_generation_prompt=True, tokenize=False)
        else:
            begins = self.tokenizer.bos_token_id in self.tokenizer("x").input_ids  # as the model has learned
            begin = self.tokenizer.bos_token if begins else ""
            prompts = [begin + prompt.removeprefix(begin) for prompt in prompts]
        return self.tokenizer(prompts, add_special_tokens=False, verbose=False).input_ids

    def logits(self, model, tokens: Tensor, attended: Tensor, keep: int, cache=None) -> Tensor:
        """Logits (N, keep, V) after the last tokens; attended says of all so far which are not padding."""
        inputs = {"input_ids": tokens, "attention_mask": attended.long(), "past_key_values": cache}
        inputs["position_ids"] = (attended.cumsum(1) - 1).clamp(min=0)[:, -tokens.shape[1] :]  # [L1]
        with torch.autocast(tokens.device.type, torch.bfloat16, self.args.dtype == "bfloat16"):
            output = model(**inputs, logits_to_keep=keep, use_cache=cache is not None)
        return output.logits.float()

    def forward(self, tokens: Tensor, attended: Tensor, mask: Tensor, frozen: bool = False) -> Tensor:
        """Log-probabilities (N, T) of a completion's tokens, of the model or of the frozen reference."""
        model, T = self.reference if frozen else self.model, mask.shape[1]
        logits = self.logits(model, tokens[:, :-1], attended[:, :-1], T)  # [L2] of what comes next
        logits = logits.flatten(0, 1) / self.args.temperature  # [L3]
        return -F.cross_entropy(logits, tokens[:, -T:].flatten(), reduction="none").view_as(mask)

    def act(self, logits: Tensor, greedy: bool = False) -> Tensor:
        """Tokens sampled from logits, or the most probable ones."""
        logits = logits / self.args.temperature
        noise = torch.empty_like(logits).exponential_().log()  # softmax's samples are argmax(logits - this)
        return (logits if greedy else logits - noise).argmax(-1)


def make_model(args: Args) -> tuple:
    """A tokenizer and a causal language model with weights in float32."""
    if args.model == "tiny":
        sizes = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4)
        config = LlamaConfig(vocab_size=259, pad_token_id=0, eos_token_id=1, bos_token_id=None, **sizes)
        return ByT5Tokenizer(extra_ids=0), AutoModelForCausalLM.from_config(config)
    try:
        if not Path(args.model).exists():
            hub.get_session().head(hub.constants.ENDPOINT, timeout=10)
    except Exception:  # offline, in which case each file would be asked for six times
        hub.constants.HF_HUB_OFFLINE = True
    try:
        tokenizer = AutoTokenizer.from_pretrained(args.model)
        return tokenizer, AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    except (OSError, ValueError) as error:
        refuse(f"--model {args.model}: {str(error).splitlines()[0]}")


@torch.no_grad()
def check_model(agent: Agent, args: Args, prompts: list[str]) -> None:
    """Refuse prompts that are too long, and a model that would not be sampled as it is trained."""
    *_, longest = rows = sorted(agent.encode(prompts), key=len)
    limit = getattr(agent.model.config.get_text_config(), "max_position_embeddings", math.inf)
    if len(longest) + args.max_new_tokens > limit > 0:  # XLNet's is -1
        refuse(f"a prompt of {len(longest)} tokens and --max-new-tokens are more than --model can take")
    rows = [row + row[-1:] * args.max_new_tokens for row in (rows[0], longest)]
    alone, (tokens, attended) = [agent.pad_rows([row]) for row in rows], agent.pad_rows(rows, "left")
    cache = DynamicCache(config=agent.model.config)
    try:
        learned = torch.cat([agent.logits(agent.model, *x, 1)[:, -1] for x in alone])
        agent.logits(agent.model, tokens[:, :-1], attended[:, :-1], 1, cache)
        sampled = agent.logits(agent.model, tokens[:, -1:], attended, 1, cache)[:, -1]
        sampled, learned = ((x / args.temperature).log_softmax(-1) for x in (sampled, learned))
        difference = (sampled - learned).abs().max().item()
        if not difference < (0.5 if args.dtype == "bfloat16" else 0.01):  # rounding stays far below
            raise ValueError(f"their log-probabilities differ by {difference:.2g}")
    except Exception as error:  # each model lacks something else
        refuse(f"--model {args.model} is not sampled as it is trained: {type(error).__name__}: {error}")


@torch.no_grad()
def complete(agent: Agent, prompts: list[str], greedy: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Answer prompts -> tokens and attended (N, P + T), and the mask (N, T) of the tokens that count."""
    tokens, attended = agent.pad_rows(agent.encode(prompts), "left")
    running, masks, cache, fed = attended[:, -1], [], DynamicCache(config=agent.model.config), tokens
    for _ in range(agent.args.max_new_tokens):
        logits = agent.logits(agent.model, fed, attended, 1, cache)[:, -1]
        token = agent.act(logits, greedy).where(running, agent.pad)
        fed, masks = token[:, None], [*masks, running]
        tokens, attended = torch.cat([tokens, fed], 1), torch.cat([attended, running[:, None]], 1)
        running = running & ~torch.isin(token, agent.ends)  # [L4] an end counts, what follows does not
        if not running.any():
            break
    return tokens, attended, torch.stack(masks, 1)


@torch.no_grad()
def in_pieces(size: int, rows: tuple[Tensor, ...], function: Callable[..., Tensor]) -> Tensor:
    """What a function makes of rows, of that many at a time (0: of all), which saves memory."""
    pieces = zip(*(x.split(size or len(x)) for x in rows), strict=True)
    return torch.cat([function(*piece) for piece in pieces])


def score_pairs(policy: Callable[..., Tensor], tokens: Tensor, attended: Tensor, mask: Tensor) -> Tensor:
    """Log-probabilities (N, 2) of whole completions."""
    logprobs = policy(tokens.flatten(0, 1), attended.flatten(0, 1), mask.flatten(0, 1))
    return (logprobs.view_as(mask) * mask).sum(2)  # [L11]


def compute_gradients(agent: Agent, batch: Batch, args: Args) -> dict:
    """Add the gradients of the loss to the agent's -> its metrics."""
    total, size = {}, args.micro_batch or len(batch.mask)
    for piece in map(Batch, *(x.split(size) for x in batch)):
        share = len(piece.mask) / len(batch.mask)
        loss, metrics = dpo_loss(score_pairs(agent, *piece[:3]), piece, args)
        (share * loss).backward()
        total = {name: total.get(name, 0) + share * metric for name, metric in metrics.items()}
    return total


class Task(NamedTuple):
    """Problems, each with its prompt and what else the reward function is told, and that function."""

    training: list[dict]
    held_out: list[dict]
    reward: Callable[..., list] | None  # None: 1 for the answer (of a pair: the chosen one), 0 for all else


def make_task(args: Args) -> Task:
    """The problems of args.task, of which the first eval_episodes prompts are held out, and the reward."""
    reward, where = None, f"--task {args.task} --reward {args.reward}"
    try:
        if args.task == "sorting":  # five digits, in an order in which neighbours have nothing in common
            digits = [f"{i * 61_803 % 100_000:05}" for i in range(100_000)]
            problems = [{"prompt": f"{text}>", "answer": "".join(sorted(text))} for text in digits]
        else:
            problems = map(json.loads, Path(args.task).read_text("utf-8").rstrip().split("\n"))
        if ":" in args.reward:
            sys.path.append("")  # the module may be in the current folder
            module, _, name = args.reward.partition(":")
            reward = getattr(importlib.import_module(module), name)
        elif args.reward:
            reward = reward_model(args)
        single = ("prompt", "answer") if not reward or args.sft_steps else ("prompt",)
        unread, problems, where = problems, [], f"{args.task} line 1"
        for problem in unread:
            needed = ("prompt", "chosen", "rejected") if "chosen" in (problems or [problem])[0] else single
            if not all(isinstance(problem.get(name), str) for name in needed) or not problem["prompt"]:
                raise ValueError(f"each problem takes {' and '.join(needed)}, as text")
            problems.append({"answer": problem.get("chosen")} | problem)
            where = f"{args.task} line {len(problems) + 1}"
    except (ImportError, AttributeError, OSError, TypeError, ValueError) as error:
        refuse(f"{where}: {type(error).__name__}: {error}")
    names = {name: None for problem in problems for name in problem}
    problems = [names | problem for problem in problems]
    held_out = problems[: args.eval_episodes]
    seen = {problem["prompt"] for problem in held_out}
    training = [problem for problem in problems if problem["prompt"] not in seen]  # [L10]
    if not training and not args.evaluate:
        refuse(f"--eval-episodes {args.eval_episodes} holds out all {len(problems)} prompts: take fewer")
    return Task(training, held_out, reward)


def whole_texts(tokenizer, chat: bool, prompts, completions, finished) -> list[str]:
    """What a reward model reads. A chat template ends each completion; else only those do that have ended."""
    pairs = list(zip(prompts, completions, strict=True))
    if chat:
        chats = [[dict(role="user", content=x), dict(role="assistant", content=y)] for x, y in pairs]
        return tokenizer.apply_chat_template(chats, tokenize=False)
    begins = tokenizer.bos_token_id in tokenizer("x").input_ids
    begin, ends = tokenizer.bos_token if begins else "", [tokenizer.eos_token if x else "" for x in finished]
    return [begin + x.removeprefix(begin) + y + end for (x, y), end in zip(pairs, ends, strict=True)]


def reward_model(args: Args) -> Callable[..., list]:
    """A reward function: the one output of a model of texts, in standard units if it knows them."""
    tokenizer = AutoTokenizer.from_pretrained(args.reward)
    model = AutoModelForSequenceClassification.from_pretrained(args.reward, dtype=torch.float32)
    model = model.to(pick_device(args.device)).eval()
    if model.config.num_labels != 1:
        raise ValueError(f"{model.config.num_labels} outputs, but a reward model has one")
    mean, deviation = getattr(model.config, "reward_statistics", (0.0, 1.0))

    def reward(prompts, completions, finished, **_) -> list[float]:
        texts = whole_texts(tokenizer, args.chat, prompts, completions, finished)
        inputs = tokenizer(texts, add_special_tokens=False, padding=True, return_tensors="pt")
        rows = (inputs.input_ids.to(model.device), inputs.attention_mask.to(model.device))
        scores = in_pieces(args.micro_batch, rows, lambda *rows: model(*rows).logits[:, 0])
        return ((scores - mean) / deviation).tolist()

    return reward


def grade(agent: Agent, task: Task, problems: list[dict], tokens: Tensor, mask: Tensor) -> tuple:
    """Completions as tokens and as texts, their scores, or those of their tokens, and 1 for right answers."""
    tokens, mask, ends = tokens[:, -mask.shape[1] :].cpu(), mask.cpu(), agent.ends.tolist()
    rows = [row[counts].tolist() for row, counts in zip(tokens, mask, strict=True)]
    texts = [agent.tokenizer.decode(row, skip_special_tokens=True) for row in rows]
    answers = [str(problem.get("answer") or "") for problem in problems]
    right = agent.tokenizer(answers, add_special_tokens=False).input_ids
    said = [row[:-1] if row[-1] in ends else [] for row in rows]  # what does not end is no answer
    spell = agent.tokenizer.convert_ids_to_tokens  # which keeps special tokens and halves of letters
    said, right = (["".join(map(str, spell(row))).strip(" \n▁ĠĊ") for row in x] for x in (said, right))
    exact = [float("" != x == y) for x, y in zip(said, right, strict=True)]
    columns = {name: [problem[name] for problem in problems] for name in problems[0]}
    columns |= {"prompts": columns.pop("prompt"), "completions": texts, "completion_ids": rows}
    columns["finished"] = [row[-1] in ends for row in rows]
    returned = task.reward(**columns) if task.reward else exact
    if not getattr(returned, "ndim", isinstance(returned, list | tuple)):
        returned = []  # a number, a dict, None
    scores = [np.asarray(x.tolist() if isinstance(x, Tensor) else x, float) for x in returned]
    wanted = [len(row) if score.ndim else 1 for score, row in zip(scores, rows, strict=False)]
    finite = all(np.isfinite(score).all() for score in scores)
    if len(scores) != len(rows) or [score.size for score in scores] != wanted or not finite:
        refuse("--reward returns no finite score for each completion, nor for each of its completion_ids")
    return rows, texts, scores, exact


def seed_everything(seed: int, purpose: str, num_envs: int = 0) -> list[int]:
    """Seed Python, NumPy and torch -> seeds for envs. Other seeds or purposes lead to other numbers."""
    seeds = np.random.SeedSequence([seed, *purpose.encode()]).generate_state(num_envs + 1).tolist()
    random.seed(seeds[0])
    np.random.seed(seeds[0])
    torch.manual_seed(seeds[0])
    return seeds[1:]


@torch.no_grad()
def evaluate(agent: Agent, args: Args, task: Task) -> list[dict]:
    """Answers to all held-out prompts, with their scores, and whether they are exactly right."""
    seed_everything(args.seed, "evaluation")
    answers, starts = [], range(0, len(task.held_out), args.num_envs)
    for start in tqdm(starts, desc="evaluation", leave=False, disable=None):
        problems = task.held_out[start : start + args.num_envs]
        tokens, _, mask = complete(agent, [problem["prompt"] for problem in problems], args.eval_greedy)
        _, *columns = grade(agent, task, problems, tokens, mask)
        for problem, text, score, exact in zip(problems, *columns, strict=True):
            answer = {"prompt": problem["prompt"], "completion": text, "score": float(np.sum(score))}
            answers.append(answer | {"exact": bool(exact)})
    return answers


def warm_start(agent: Agent, args: Args, task: Task) -> None:
    """Supervised learning on solved problems: the policy gradient, of right tokens with a weight of 1."""
    optimizer = optim.Adam(agent.model.parameters(), lr=args.sft_learning_rate, eps=1e-5)
    end = [agent.ends[0].item()]
    for _ in tqdm(range(args.sft_steps), desc="warm start", leave=False, disable=None):
        problems = [random.choice(task.training) for _ in range(args.num_envs)]
        prompts, attended = agent.pad_rows(agent.encode([x["prompt"] for x in problems]), "left")
        rows = agent.tokenizer([x["answer"] for x in problems], add_special_tokens=False).input_ids
        answers, mask = agent.pad_rows([row + end for row in rows])
        logprob = agent(torch.cat([prompts, answers], 1), torch.cat([attended, mask], 1), mask)
        optimizer.zero_grad()
        (-logprob[mask].mean()).backward()
        nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
        optimizer.step()


@torch.no_grad()
def make_pairs(agent: Agent, args: Args, task: Task, problems: list[dict], count: int) -> list[dict]:
    """count pairs of the model's own completions: two of each prompt, of which one has a better score."""
    pairs, asked, bar = [], 0, tqdm(total=count, desc="pairs", leave=False, disable=None)
    while len(pairs) < count:
        drawn = [problem for problem in random.choices(problems, k=4 * args.num_envs) for _ in range(2)]
        tokens, _, mask = complete(agent, [problem["prompt"] for problem in drawn])
        _, texts, scores, _ = grade(agent, task, drawn, tokens, mask)
        totals = np.array([np.sum(score) for score in scores]).reshape(-1, 2)
        for n in np.flatnonzero(totals[:, 0] != totals[:, 1]):
            both = [texts[2 * n + k] for k in totals[n].argsort()]  # the worse one comes first
            chosen, rejected = both if random.random() < args.label_noise else both[::-1]  # [P4]
            pairs.append(drawn[2 * n] | {"chosen": chosen, "rejected": rejected})
        asked += 4 * args.num_envs
        if len(pairs) < 0.02 * asked:
            refuse("two completions nearly always have the same score: try more --sft-steps")
        bar.update(len(pairs) - bar.n)
    bar.close()
    return pairs[:count]


def encode_pairs(agent: Agent, args: Args, pairs: list[dict]) -> list[tuple]:
    """Prompt, preferred, and other completion of each pair as rows of tokens."""
    columns = [agent.encode([pair["prompt"] for pair in pairs])]
    for name in ("chosen", "rejected"):
        rows = agent.tokenizer([pair[name] for pair in pairs], add_special_tokens=False).input_ids
        columns.append([row + [agent.ends[0].item()] for row in rows])
    rows = [row for row in zip(*columns, strict=True) if max(map(len, row[1:])) <= args.max_new_tokens]
    if len(rows) < len(pairs):
        print(f"{len(pairs) - len(rows)} of {len(pairs)} pairs are longer than --max-new-tokens: left out")
    if not rows:
        refuse(f"all pairs are longer than --max-new-tokens {args.max_new_tokens}")
    return rows


def train(args: Args, on_iteration=None) -> tuple[Agent, list[dict[str, float]]]:
    """Train, or go on with args.resume -> the agent, and a dict of metrics per iteration.

    on_iteration(metrics) is called after each iteration, which is the last one if it returns True.
    """
    # setup
    check(args)
    N = args.num_envs
    num_iterations = int(args.total_episodes // N)
    save_every = math.ceil(num_iterations / max(1, args.checkpoints))
    device = pick_device(args.device)
    on_device = partial(torch.as_tensor, device=device)  # on the CPU, this shares memory
    torch.set_num_threads(args.threads)
    task = make_task(args)
    seed_everything(args.seed, "weights")
    agent = Agent(args).to(device)
    check_model(agent, args, [problem["prompt"] for problem in task.training + task.held_out])
    run_dir, lock = make_run_dir(args)
    if not args.resume:
        warm_start(agent, args, task)
    agent.copy_model()
    parameters = list(agent.model.parameters())
    optimizer = optim.Adam(parameters, lr=args.learning_rate, eps=1e-5, fused=True)  # [D03]
    past = load(run_dir, args, agent=agent, optimizer=optimizer) if args.resume else {"iteration": 0}
    first_iteration, steps, log = past["iteration"], past["iteration"] * N, []
    flags = json.dumps(asdict(args), indent=2).replace(": Infinity", ': "inf"')  # which JSON does not know
    (run_dir / "args.json").write_text(flags + "\n")
    pairs, path = task.training, run_dir / "pairs.jsonl"
    if "chosen" not in pairs[0]:
        if not args.resume:  # the model is what the warm start has made of it
            seed_everything(args.seed, "pairs")
            pairs = make_pairs(agent, args, task, task.training, args.num_pairs)
            path.write_text("\n".join(map(json.dumps, pairs)) + "\n", "utf-8")
        pairs = make_task(replace(args, task=str(path), reward="", eval_episodes=0)).training
    pairs = encode_pairs(agent, args, pairs)
    writer = SummaryWriter(run_dir, purge_step=steps + 1 if args.resume else None)
    writer.add_text("args", f"<pre>{flags}</pre>", steps)
    if args.track:
        import wandb

        try:
            wandb.init(name=run_dir.resolve().name, config=asdict(args), dir=run_dir)
        except wandb.Error as error:
            refuse(f"--track: {error}")
        wandb.define_metric("*", step_metric="steps")
    print(f"{args.task} on {device}; --resume {run_dir} goes on from its last checkpoint", flush=True)

    bar = tqdm(total=num_iterations * N, initial=steps, unit="", unit_scale=True, disable=None)
    for iteration in range(first_iteration, num_iterations):
        if (iteration - first_iteration) % save_every == 0:
            # A clean cut: what follows depends on nothing but what is saved, in a resumed run or not.
            if args.checkpoints:
                save(run_dir, args, iteration, agent, optimizer)
            seed_everything(args.seed, f"cut {iteration}")  # [E2]
        remaining = 1 - iteration / num_iterations if args.anneal_lr else 1  # [D04]
        optimizer.param_groups[0]["lr"] = args.learning_rate * remaining

        # pairs
        start = time.perf_counter()
        drawn = random.choices(pairs, k=N)
        prompts, attended = agent.pad_rows([prompt for prompt, *both in drawn for _ in both], "left")
        answers, mask = agent.pad_rows([row for _, *both in drawn for row in both])
        rows = torch.cat([prompts, answers], 1), torch.cat([attended, mask], 1), mask
        rows = [x.unflatten(0, (N, 2)) for x in rows]
        reference = partial(score_pairs, partial(agent, frozen=True))
        batch = Batch(*rows, in_pieces(args.micro_batch, rows, reference))

        # update
        history = []
        for idx in on_device(np.random.permutation(N)).split(N // args.num_minibatches):  # [D06]
            minibatch = Batch(*(x[idx] for x in batch))
            optimizer.zero_grad()
            metrics = compute_gradients(agent, minibatch, args)  # loss.backward()
            metrics["grad_norm"] = nn.utils.clip_grad_norm_(parameters, args.max_grad_norm)  # [D11]
            optimizer.step()
            history.append(metrics)

        # log
        steps += N
        row = {name: torch.stack([step[name] for step in history]).mean().item() for name in history[0]}
        numbers = row | agent.state_dict()
        if broken := [name for name, x in numbers.items() if not torch.as_tensor(x).isfinite().all()]:
            raise FloatingPointError(f"{broken[0]} is not finite before step {steps}")  # before it is saved
        row["learning_rate"] = optimizer.param_groups[0]["lr"]
        row["pairs_per_second"] = N / (time.perf_counter() - start)
        log.append({"steps": steps} | row)
        for name, metric in row.items():
            writer.add_scalar(name, metric, steps)
        writer.flush()  # a checkpoint must not be ahead of its curves
        if args.track:
            wandb.log(log[-1])
        bar.set_postfix_str(f"accuracy {row['accuracy']:.3g}", refresh=False)
        bar.update(N)
        if bar.disable and (num_iterations - 1 - iteration) % math.ceil(num_iterations / 20) == 0:
            shown = ("preference_loss", "accuracy", "margin", "chosen_logprob", "rejected_logprob")
            status = "  ".join(f"{name} {row[name]:.3g}" for name in shown)
            print(f"{steps:,} pairs  {status}", flush=True)
        if on_iteration and on_iteration(log[-1]):
            break

    # wrap up
    bar.close()
    save(run_dir, args, steps // N, agent, optimizer)
    if args.eval_episodes:
        log = log or [{"steps": steps}]  # a run that was finished has no iteration left
        log[-1]["eval_score"] = report(agent, args, run_dir, task)
        writer.add_scalar("eval_score", log[-1]["eval_score"], steps)
        if args.track:
            wandb.log(log[-1])
    writer.close()
    if args.track:
        wandb.finish()
    return agent, log


# That was the algorithm; from here on: flags, folders, checkpoints, and the command line.


class Mistake(ValueError):
    """What was asked for cannot be done, and why, in one line."""


def refuse(mistake: str) -> NoReturn:
    """Raise it as a Mistake."""
    raise Mistake(" ".join(mistake.split()))


def check(args: Args) -> None:
    """Refuse arguments that cannot work, before anything is created."""
    counts = ("total_episodes", "num_envs", "num_pairs", "max_new_tokens", "num_minibatches", "threads")
    highest = {"max_grad_norm": math.inf, "label_noise": 1, "threads": 1024, "seed": 2**32 - 1}
    for name, value in vars(args).items():
        low, high = int(name in counts), highest.get(name, 10**12)
        text = isinstance(getattr(Args, name), str)
        if not (isinstance(value, str) if text else hasattr(value, "__float__") and low <= value <= high):
            wanted = "text" if text else f"between {low} and {high}"  # NaN lies in no range
            refuse(f"--{name.replace('_', '-')} {value} is not {wanted}")
    if args.total_episodes < args.num_envs:
        refuse(f"--total-episodes {args.total_episodes} is less than --num-envs {args.num_envs}")
    if args.num_envs % args.num_minibatches or args.num_envs // args.num_minibatches < 2:
        refuse(f"--num-minibatches {args.num_minibatches} does not divide {args.num_envs} into parts of 2+")
    if args.dtype not in ("float32", "bfloat16"):
        refuse(f"--dtype {args.dtype} is neither float32 nor bfloat16")
    if args.temperature == 0:
        refuse("--temperature 0 leaves nothing to learn from; --eval-greedy evaluates without chance")
    if folder := args.evaluate or args.resume:
        saved = load(folder)["args"]
        if args.task == saved.task and args.eval_episodes > saved.eval_episodes:  # they were learned from
            refuse(f"--eval-episodes {args.eval_episodes}: {folder} has held out {saved.eval_episodes}")
        if args.evaluate and not args.eval_episodes:
            refuse("--eval-episodes 0 leaves nothing to evaluate")


def pick_device(name: str) -> torch.device:
    """The device of that name; auto is the first accelerator, or else the CPU."""
    kind = torch.accelerator.current_accelerator().type if torch.accelerator.is_available() else "cpu"
    devices = [f"{kind}:{i}" for i in range(torch.accelerator.device_count())] + ["cpu"]
    if name not in ("auto", kind, *devices):
        refuse(f"--device {name} is not here; there is {', '.join(devices)}")
    return torch.device(devices[0] if name in ("auto", kind) else name)


def make_run_dir(args: Args) -> tuple[Path, FileLock]:
    """The run's folder, without a checkpoint unless it is resumed, and the lock that makes it ours."""
    name = f"{args.task}__{Path(__file__).stem}__{args.seed}__{datetime.now():%Y%m%d-%H%M%S-%f}"
    run_dir = Path(args.resume or args.run_dir or "runs/" + re.sub(r"[^\w-]", "-", name))
    lock = FileLock(run_dir / "lock", blocking=False, is_singleton=True)  # the same process may take it twice
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except OSError as error:  # or another process is at work there
        refuse(f"{run_dir}: {error}")
    if (run_dir / "checkpoint.pt").exists() and not args.resume:
        refuse(f"{run_dir} holds a run, which --resume would continue")
    return run_dir, lock


def save(run_dir: Path, args: Args, iteration: int, agent: Agent, optimizer: optim.Adam) -> None:
    """Write the checkpoint; killed at any moment, this leaves a whole one, the old or the new."""
    checkpoint = {"writer": WRITER, "args": asdict(args), "iteration": iteration}
    checkpoint |= {"agent": agent.state_dict(), "optimizer": optimizer.state_dict()}
    with open(run_dir / "checkpoint.tmp", "w+b") as file:
        try:
            torch.save(checkpoint, file)  # not to memory first, where large models have no place twice
        except RuntimeError as error:
            raise error.__context__ from None  # what went wrong with the file: the disk is full, say
        file.seek(0)
        file.write(hashlib.file_digest(file, "sha256").digest())
        file.flush()
        os.fsync(file.fileno())
    os.replace(file.name, run_dir / "checkpoint.pt")


def load(run_dir: str | Path, resuming: Args | None = None, **parts: nn.Module | optim.Adam) -> dict:
    """What save() wrote, after restoring the given parts; no code that the file may hold is run."""
    path = Path(run_dir) / "checkpoint.pt"
    try:
        content = path.read_bytes()
        if hashlib.sha256(memoryview(content)[:-32]).digest() != content[-32:]:
            raise ValueError(f"it is damaged, or older than {WRITER}")
        checkpoint = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        if checkpoint["writer"] != WRITER:
            raise ValueError(f"it was written by {checkpoint['writer']}")
        saved = checkpoint["args"] = Args(**checkpoint["args"])
        for name in ("model", "task", "seed", "num_envs"):
            if resuming and getattr(resuming, name) != getattr(saved, name):
                raise ValueError(f"--{name.replace('_', '-')} cannot change: it has {getattr(saved, name)}")
        for name, part in parts.items():
            part.load_state_dict(checkpoint[name])
        if resuming:  # Adam keeps a step and two moments of each weight, and a fused one trusts their layout
            for x, kept in parts["optimizer"].state.items():
                if [(y.shape, y.stride()) for y in kept.values()] != [((), ()), *[(x.shape, x.stride())] * 2]:
                    raise ValueError("the state of the optimizer does not fit")
    except Exception as error:  # no file, half a file, or one that does not fit
        refuse(f"{path} cannot be used: {' '.join((str(error) or repr(error)).split()).partition('. ')[0]}")
    return checkpoint


def report(agent: Agent, args: Args, run_dir: Path, task: Task) -> float:
    """Evaluate, write all answers to completions.jsonl, and show some."""
    answers = evaluate(agent, args, task)
    lines = (json.dumps(answer, ensure_ascii=False) for answer in answers)
    (run_dir / "completions.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    for answer in answers[:5]:
        print(f"{answer['score']:6.2f}  {answer['prompt'][-60:]!r} -> {answer['completion'][:60]!r}")
    score, exact = (float(np.mean([answer[name] for answer in answers])) for name in ("score", "exact"))
    print(f"mean score {score:.3f}, exact {exact:.3f}, of {len(answers)} held-out prompts; see {run_dir}")
    return score


def main() -> None:
    """Train, go on with a run, or evaluate it, as the command line says."""
    if any(re.fullmatch(r"(--[\w-]+=)?", word) for word in sys.argv[1:]):  # --resume=$NOT_SET
        refuse("an empty value on the command line")
    args = given = tyro.cli(Args, description=__doc__)
    if sum(map(bool, (args.run_dir, args.resume, args.evaluate))) > 1:
        refuse("--run-dir, --resume and --evaluate exclude each other")
    if folder := args.resume or args.evaluate:  # again, with the saved flags as defaults
        args = tyro.cli(Args, description=__doc__, default=load(folder)["args"])
        if ":" in args.reward and args.reward != given.reward:
            refuse(f"{folder} would import code; if you trust it, add --reward {args.reward}")
    if not args.evaluate:
        train(args)
        return
    check(args)
    torch.set_num_threads(args.threads)
    task, agent = make_task(args), Agent(args).to(pick_device(args.device))
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
