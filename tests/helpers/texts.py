"""Small language models and their tasks, reward functions, and what tests of these scripts look at."""

import json
import math
from dataclasses import replace

import pytest
import torch
from conftest import each_of
from transformers import AutoModelForCausalLM, ByT5Tokenizer, GPT2Config

from variants import grpo, ppo_llm

SCRIPTS = [ppo_llm, grpo]
script = each_of(SCRIPTS)
only_ppo, only_grpo = each_of([ppo_llm]), each_of([grpo])
PROMPTS = ["3>", "1234567>", "12>", "98765>"]


# ---- what a reward function may be


def spread(prompts, completions, completion_ids, level, **columns):
    """Scores that differ, and see a column of the task."""
    return [sum(ids) % 7 / 7 + x for ids, x in zip(completion_ids, level, strict=True)]


def as_for_trl(completions, **kwargs):
    """The commonest signature there is."""
    assert {"prompts", "completion_ids", "level", "answer"} <= kwargs.keys()
    return [float(len(text)) for text in completions]


def one_for_each_token(prompts, completions, completion_ids, **columns):
    return [[0.5 * t for t in range(len(ids))] for ids in completion_ids]


def one_too_few(prompts, completions, **columns):
    return [0.0] * (len(prompts) - 1)


def one_token_too_few(prompts, completions, completion_ids, **columns):
    return [[0.0] * (len(ids) + 1) for ids in completion_ids]


def not_a_number(prompts, completions, **columns):
    return [math.nan] * len(prompts)


def none(prompts, completions, **columns):
    return [None] * len(prompts)


def nothing(prompts, completions, **columns):
    pass


def one_number(prompts, completions, **columns):
    return 1.0


def one_tensor(prompts, completions, **columns):
    return torch.tensor(1.0)


def a_dict(prompts, completions, **columns):
    return {n: 1.0 for n in range(len(prompts))}


def equal(prompts, completions, **columns):
    return [1.0] * len(prompts)


def large(prompts, completions, **columns):
    return [1000.1] * len(prompts)


def right_once(completions, **columns):
    return [1.0] + [0.0] * (len(completions) - 1)


def wrong_once(completions, **columns):
    return [0.0] + [1.0] * (len(completions) - 1)


def first_alone(prompts, completions, **columns):
    return [1.0] + [0.0] * (len(prompts) - 1)


# ---- tools


@pytest.fixture
def make_args(tmp_path):
    """make_args(script, **flags) -> Args of 2 iterations of 8 completions of up to 5 tokens."""
    path = tmp_path / "task.jsonl"
    numbers = [f"{i * 37 % 1000}" for i in range(12)]
    lines = [json.dumps({"prompt": f"{x}>", "answer": x[::-1], "level": 1}) for x in numbers]
    path.write_text("\n".join(lines) + "\n")
    runs = iter(range(100))

    def make(script, iterations=2, **flags):
        small = dict(task=str(path), reward="texts:spread", num_envs=8, max_new_tokens=5, sft_steps=0)
        small |= dict(
            eval_episodes=3, checkpoints=1, learning_rate=1e-2, run_dir=str(tmp_path / f"run{next(runs)}")
        )
        if script is grpo:
            small["group_size"] = 4
        small |= flags
        small.setdefault("total_episodes", iterations * small["num_envs"])
        return script.Args(**small)

    return make


def gpt2(args, dropout=0.0):
    """A tokenizer and a small model with learned positions, which matter."""
    rates = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
    sizes = dict(vocab_size=259, n_embd=32, n_layer=2, n_head=2, n_positions=64)
    config = GPT2Config(**sizes, **rates, eos_token_id=1, pad_token_id=0, bos_token_id=None)
    model = AutoModelForCausalLM.from_config(config)
    model.transformer.wpe.weight.data *= 50
    return ByT5Tokenizer(extra_ids=0), model


@pytest.fixture(params=["rotary", "learned"])
def positions(request, monkeypatch):
    if request.param == "learned":
        for script in SCRIPTS:
            monkeypatch.setattr(script, "make_model", gpt2)
    return request.param


def make_agent(script, **flags):
    """An agent whose probabilities and values are far from equal."""
    torch.manual_seed(0)
    agent = script.Agent(script.Args(**dict(max_new_tokens=6) | flags))
    agent.model.get_output_embeddings().weight.data *= 20
    if hasattr(agent, "copy_model"):
        agent.copy_model()
    if getattr(agent, "critic", None):
        torch.nn.init.normal_(agent.critic.get_output_embeddings().weight)
    return agent


def encoded(agent, prompts):
    """tokens and attended (N, P) of prompts."""
    return agent.pad_rows(agent.encode(prompts), "left")


def texts_of(agent, tokens, mask):
    rows = zip(tokens[:, -mask.shape[1] :], mask, strict=True)
    return [agent.tokenizer.decode(row[counts], skip_special_tokens=True) for row, counts in rows]


@torch.no_grad()
def look(agent, tokens, attended, mask):
    """Log-probabilities of what was chosen, and the values, or zeros."""
    logprob = agent(tokens, attended, mask)[mask]
    if not hasattr(agent, "value"):
        return torch.stack([logprob, torch.zeros_like(logprob)])
    value = agent.value(tokens, attended, mask)[:, : mask.shape[1]]  # a window has one more
    return torch.stack([logprob, value[mask]])


def loss_name(script):
    return "grpo_loss" if script is grpo else "ppo_loss"


def raw(script, **flags):
    """Args of the policy's loss alone, but for the flags that the script has."""
    neutral = dict(norm_adv=False, kl_coef=0.0, clip_coef=0.2, clip_coef_high=0.2) | flags
    return script.Args(**{name: x for name, x in neutral.items() if hasattr(script.Args, name)})


def loss_of(script, logprob, args, value=None, **fields):
    """The loss of tokens that count: zeros, but for the fields; each is a completion of its own."""
    M = len(fields["advantages"]) if "advantages" in fields else len(fields["logprobs"])
    zeros = {name: torch.zeros(M) for name in script.Batch._fields}
    zeros |= {"lengths": torch.ones(M), "mask": torch.ones(M, 1, dtype=torch.bool)}
    batch = script.Batch(**{name: (zeros | fields)[name] for name in script.Batch._fields})
    if script is ppo_llm:
        return ppo_llm.ppo_loss(logprob, torch.zeros(M) if value is None else value, batch, args)
    return getattr(script, loss_name(script))(logprob, batch, args)


def graded(script, agent, rows, problems, reward=None):
    """The scores of completions that are these tokens, and which of them are exactly right."""
    tokens, mask = agent.pad_rows(rows)
    return script.grade(agent, script.Task([], [], reward), problems, tokens, mask)[2:]


def read(path):
    return [json.loads(line) for line in path.read_text("utf-8").strip().split("\n")]


def first_batch(script, args, record):
    """The first rollout's batch, whole, and the agent that made it."""
    steps = record(script, "compute_gradients")
    agent, _ = script.train(replace(args, num_minibatches=1, update_epochs=1, learning_rate=0.0))
    return agent, steps[0][0][1]


def assert_greedy_without_a_cache(script):
    """Completions are those of the most probable tokens, each of which all before it decide."""
    agent = make_agent(script)
    tokens, _, mask, *_ = script.complete(agent, PROMPTS, greedy=True)
    for n, prompt in enumerate(PROMPTS):
        row = encoded(agent, [prompt])[0]
        for _ in range(int(mask[n].sum())):
            with torch.no_grad():
                row = torch.cat([row, agent.model(row).logits[:, -1:].argmax(-1)], 1)
        assert row[0, -int(mask[n].sum()) :].tolist() == tokens[n, -mask.shape[1] :][mask[n]].tolist()
