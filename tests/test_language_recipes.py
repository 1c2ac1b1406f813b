"""docs/recipes for language models: each patch fits its script, and does what it is for; and a game."""

import numpy as np
import pytest
import torch
from conftest import ROOT
from test_recipes import TEXTS, load  # noqa: F401
from texts import make_args  # noqa: F401
from transformers import GPT2Config, GPT2LMHeadModel

from docs.recipes import guess
from variants import grpo, grpo_turns

PROMPTS = ["31524>", "99100>"]


@pytest.mark.parametrize("name", TEXTS)
def test_each_is_on_its_page(name):
    assert f"[`{name}.patch`](recipes/{name}.patch)" in (ROOT / "docs/chat.md").read_text()


@pytest.fixture
def lora(load, make_args):  # noqa: F811
    """lora(flags) -> module, agent whose adapters are not 0, and logprobs of it for some tokens."""

    def make(**flags):
        module = load("lora")
        torch.manual_seed(0)
        agent = module.Agent(make_args(module, **flags))
        agent.copy_model()
        return module, agent

    return make


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_lora(lora, dtype):
    """Only what is added learns; the reference is the model without it; merged, the model says the same."""
    module, agent = lora(dtype=dtype)
    tokens, attended, mask, _ = module.complete(agent, PROMPTS)
    at_first = agent(tokens, attended, mask)
    torch.testing.assert_close(at_first, agent.reference_logprobs(tokens, attended, mask), rtol=0, atol=0)
    agent(tokens, attended, mask).sum().backward()
    learning = {name for name, weight in agent.named_parameters() if weight.grad is not None}
    assert learning and all(name.endswith(("up.weight", "down.weight")) for name in learning)
    layers = [layer for layer in agent.modules() if isinstance(layer, module.LoRA)]
    assert len(layers) == 3 * 7 and not any(isinstance(layer.layer, module.LoRA) for layer in layers)
    with torch.no_grad():
        for layer in layers:
            layer.up.weight.normal_(std=0.1)
        changed = agent(tokens, attended, mask)
        assert (changed - at_first)[mask].abs().mean() > 0.01
        reference = agent.reference_logprobs(tokens, attended, mask)
        torch.testing.assert_close(reference, at_first, rtol=0, atol=0)
        torch.testing.assert_close(agent(tokens, attended, mask), changed, rtol=0, atol=0)
        if dtype == "float32":
            module.merge(agent.model)
            merged = agent(tokens, attended, mask)
            torch.testing.assert_close(merged[mask], changed[mask], rtol=0, atol=1e-4)
            assert not any(isinstance(layer, module.LoRA) for layer in agent.modules())


def test_small_changes_in_bfloat16_are_merged(lora):
    module, agent = lora(dtype="bfloat16")
    [one, *_] = [layer for layer in agent.modules() if isinstance(layer, module.LoRA)]
    with torch.no_grad():
        one.up.weight.normal_(std=1e-4)
    before, change = one.layer.weight.float(), one.scale * (one.up.weight @ one.down.weight).detach()
    module.merge(agent.model)
    layer = agent.model.model.layers[0].self_attn.q_proj
    assert layer.weight.dtype == torch.float32 and change.abs().max() > 1e-5
    torch.testing.assert_close(layer.weight - before, change, rtol=0, atol=1e-7)


def test_lora_finds_nothing_to_change(load, make_args, monkeypatch):  # noqa: F811
    """GPT-2 has layers of its own in the place of torch's."""
    module = load("lora")
    args = make_args(module)
    tokenizer, _ = module.make_model(args)
    config = GPT2Config(n_layer=1, n_head=1, n_embd=8, vocab_size=len(tokenizer))
    monkeypatch.setattr(module, "make_model", lambda args: (tokenizer, GPT2LMHeadModel(config)))
    with pytest.raises(module.Mistake, match="no linear layers"):
        module.Agent(args)


def test_training_with_lora(lora, make_args):  # noqa: F811
    """The frozen weights stay, what is added moves, and a run that is continued ends as one that was not."""
    module, _ = lora(sft_steps=0)
    args = make_args(module, 2, lora_rank=4, kl_coef=0.1, checkpoints=2)
    agent, log = module.train(args)
    moments = module.load(args.run_dir)["optimizer"]["state"]
    assert len(moments) == 2 * 3 * 7  # no moments of frozen weights
    assert np.isfinite(log[-1]["ref_kl"]) and log[-1]["ref_kl"] > 1e-6
    module.seed_everything(args.seed, "weights")
    fresh = module.Agent(args)
    for (name, weight), old in zip(agent.named_parameters(), fresh.parameters(), strict=True):
        assert torch.equal(weight, old) != weight.requires_grad, name
    half = dict(lora_rank=4, kl_coef=0.1, checkpoints=2)
    cut = make_args(module, 2, **half)
    module.train(cut, lambda row: True)
    resumed, _ = module.train(module.Args(**vars(cut) | {"resume": cut.run_dir, "run_dir": None}))
    for weight, other in zip(resumed.parameters(), agent.parameters(), strict=True):
        assert torch.equal(weight, other)
    with pytest.raises(module.Mistake, match="the reference would be the model without it"):
        module.check(make_args(module, sft_steps=5, kl_coef=0.1))


def test_dynamic_sampling(load, make_args, monkeypatch):  # noqa: F811
    """Twice as many are sampled, and those are kept whose groups differ, with all that belongs to them."""
    module = load("dynamic_sampling")
    graded, updates = [], []
    grade, loss = module.grade, module.grpo_loss

    def first_groups_differ(agent, task, problems, tokens, mask):
        rows, texts, scores, exact = grade(agent, task, problems, tokens, mask)
        scores = [np.asarray(float(i % 2 and i // 4 in (1, 3))) for i in range(len(rows))]
        graded.append((problems, rows, texts, scores, tokens))
        return rows, texts, scores, exact

    def record(logprob, batch, args):
        updates.append(batch)
        return loss(logprob, batch, args)

    monkeypatch.setattr(module, "grade", first_groups_differ)
    monkeypatch.setattr(module, "grpo_loss", record)
    flags = dict(num_envs=8, group_size=4, num_minibatches=1, update_epochs=1, eval_episodes=0)
    args = make_args(module, 1, **flags)
    _, log = module.train(args)
    [(problems, rows, texts, scores, tokens)] = graded
    assert len(rows) == 16 and log[-1]["signal"] == 1 and log[-1]["score"] == 0.5
    [batch] = updates
    kept = [4, 5, 6, 7, 12, 13, 14, 15]
    found = {tuple(row) for row in batch.tokens.tolist()}
    assert found == {tuple(tokens[i].tolist()) for i in kept}


def parts(completions, **_):
    """Two rewards."""
    return {"half": [0.5] * len(completions), "parity": [float(i % 2) for i in range(len(completions))]}


def test_several_rewards(load, make_args):  # noqa: F811
    module = load("several_rewards")
    args = make_args(module, 1, reward="test_language_recipes:parts", eval_episodes=4)
    _, log = module.train(args)
    assert (log[-1]["reward_half"], log[-1]["reward_parity"], log[-1]["score"]) == (0.5, 0.5, 1.0)
    with pytest.raises(module.Mistake, match="does not return {name: a score"):
        module.train(make_args(module, 1, reward="texts:spread"))
    answers = (module.Path(args.run_dir) / "completions.jsonl").read_text().splitlines()
    assert [module.json.loads(line)["score"] for line in answers] == [0.5, 1.5] * 2


def test_distillation(load, make_args, tmp_path):  # noqa: F811
    """The reference is the teacher, and each token's reward is how much likelier the teacher finds it."""
    module, folder = load("distill"), tmp_path / "teacher"
    teacher, _ = grpo.train(make_args(grpo, 1, sft_steps=60, learning_rate=0, seed=5))
    teacher.model.save_pretrained(folder)
    teacher.tokenizer.save_pretrained(folder)
    seen, loss = [], module.grpo_loss

    def record(logprob, batch, args):
        seen.append(batch)
        return loss(logprob, batch, args)

    module.grpo_loss = record
    flags = dict(sft_steps=40, num_envs=64, kl_coef=0, learning_rate=2e-3)
    args = make_args(module, 2, teacher=str(folder), **flags)
    agent, _ = module.train(args)
    for mine, taught in zip(agent.reference.parameters(), teacher.model.parameters(), strict=True):
        assert torch.equal(mine, taught) and not mine.requires_grad
    for batch in seen:
        torch.testing.assert_close(batch.advantages, batch.ref_logprobs - batch.logprobs)
    with pytest.raises(module.Mistake, match="names no model"):
        module.check(make_args(module))
    byte_model = module.AutoModelForCausalLM.from_config(teacher.model.config)
    byte_model.save_pretrained(tmp_path / "other")
    type(teacher.tokenizer)(extra_ids=7).save_pretrained(tmp_path / "other")
    with pytest.raises(module.Mistake, match="has other tokens"):
        module.train(make_args(module, teacher=str(tmp_path / "other")))
    with pytest.raises(module.Mistake, match="its teacher has changed"):
        teacher.model.lm_head.weight.data += 1
        teacher.model.save_pretrained(folder)
        module.train(module.Args(**vars(args) | {"resume": args.run_dir, "run_dir": None}))


def test_a_value_head(load, make_args):  # noqa: F811
    """It reads what the policy's last layer says before each token, and its loss reaches all layers."""
    module = load("value_head")
    args = make_args(module, kl_coef=0, update_epochs=1)
    agent, log = module.train(args)
    assert np.isfinite(log[-1]["value_loss"])
    assert sum(x.numel() for x in agent.critic.parameters()) == 65
    tokens, attended, mask, _ = module.complete(agent, PROMPTS)
    value = agent.value(tokens, attended, mask)
    alone = agent.model(tokens[:1][attended[:1]][None, :-1], output_hidden_states=True).hidden_states[-1]
    length = mask[0].sum()
    wanted = agent.critic(alone)[0, -length:, 0]
    torch.testing.assert_close(value[0, :length], wanted, rtol=0, atol=1e-5)
    agent.zero_grad()
    (value[mask] ** 2).sum().backward()
    first_layer = agent.model.get_input_embeddings().weight
    assert first_layer.grad.abs().sum() > 0 and agent.critic.weight.grad.abs().sum() > 0


def test_the_game(tmp_path, make_args):  # noqa: F811
    """Halving finds each digit in four turns; the world tells no more than it should."""
    assert guess.world({"answer": "4"}, ["7", "lower", "3"]) == "higher"
    assert guess.world({"answer": "4"}, ["4"]) is guess.world({"answer": "4"}, ["four"]) is None
    games = [guess.play(str(digit), True) for digit in range(10)]
    assert [game[-1] for game in games] == [str(digit) for digit in range(10)]
    assert max(map(len, games)) == 7 == max(len(guess.play("3", False)) for _ in range(50))
    path = tmp_path / "games.jsonl"
    guess.main(str(path), 5)
    problems = [grpo_turns.json.loads(line) for line in path.read_text().splitlines()]
    assert len({problem["prompt"] for problem in problems}) == guess.GAMES
    won = np.mean([problem["turns"][-1] == problem["answer"] for problem in problems])
    assert 0.6 < won < 0.75  # half of 1, and half of 0.34
    flags = dict(task=str(path), world="docs.recipes.guess:world", reward=None, max_turns=4)
    _, log = grpo_turns.train(make_args(grpo_turns, 1, sft_steps=2, group_size=4, **flags))
    assert 1 <= log[-1]["turns"] <= 4
