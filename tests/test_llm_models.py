"""PPO and GRPO of language models: rewards, models and tokenizers from outside, and every mistake."""

import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import ROOT, name_of
from safetensors.torch import load_file, save_file
from test_operations import checkpoint, command_line, same  # noqa: F401
from texts import (  # noqa: F401
    a_dict,
    as_for_trl,
    assert_greedy_without_a_cache,
    encoded,
    equal,
    gpt2,
    graded,
    loss_name,
    make_agent,
    make_args,
    none,
    not_a_number,
    nothing,
    one_for_each_token,
    one_number,
    one_tensor,
    one_token_too_few,
    one_too_few,
    positions,
    read,
    script,
    spread,
)
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    ByT5Tokenizer,
    Gemma3Config,
    Lfm2Config,
    LlamaConfig,
)

from tools import reasoning_gym_tasks
from variants import grpo, ppo_llm

# ---- reward functions


@pytest.mark.parametrize("reward", ["as_for_trl", "spread", "equal"])
def test_reward_functions(script, make_args, reward):
    _, log = script.train(make_args(script, iterations=1, reward=f"texts:{reward}"))
    assert math.isfinite(log[0]["score"]) and log[0]["score"] > 0


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        ("one_too_few", "--reward does not return a finite score for each"),
        ("one_token_too_few", "--reward does not return a finite score for each"),
        ("not_a_number", "--reward does not return a finite score for each"),
        ("none", "--reward does not return a finite score for each"),
        ("nothing", "--reward does not return a finite score for each"),
        ("one_number", "--reward does not return a finite score for each"),
        ("one_tensor", "--reward does not return a finite score for each"),
        ("a_dict", "--reward does not return a finite score for each"),
        ("one_for_each_token", "--reward scores tokens, but groups are compared as a whole"),
    ],
)
def test_scores_that_cannot_be(script, make_args, reward, message):
    if script is ppo_llm and reward == "one_for_each_token":
        return
    with pytest.raises(script.Mistake) as mistake:
        script.train(make_args(script, reward=f"texts:{reward}"))
    assert message in str(mistake.value) and "\n" not in str(mistake.value)


def test_columns_that_only_some_lines_have(script, make_args, tmp_path):
    path = tmp_path / "some.jsonl"
    path.write_text('{"prompt": "a"}\n{"prompt": "b", "level": "\u2028"}\n{"prompt": "c", "hint": 1}\n')
    task = script.make_task(make_args(script, task=str(path), eval_episodes=1))
    assert task.training[0] == {"prompt": "b", "level": "\u2028", "hint": None}
    assert task.held_out == [{"prompt": "a", "level": None, "hint": None}]


@pytest.fixture
def judge(tmp_path):
    """A folder with a random reward model of bytes."""
    sizes = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2)
    ends = dict(vocab_size=259, pad_token_id=0, eos_token_id=1, bos_token_id=None)
    torch.manual_seed(5)
    model = AutoModelForSequenceClassification.from_config(LlamaConfig(**sizes, **ends, num_labels=1))
    model.config.reward_statistics = [0.25, 2.0]
    model.save_pretrained(tmp_path / "judge")
    ByT5Tokenizer(extra_ids=0).save_pretrained(tmp_path / "judge")
    return tmp_path / "judge"


def test_a_reward_model_scores_whole_texts(script, make_args, judge):
    """One by one and without padding, as it scores them together; an end that was not said is not read."""
    args = make_args(script, reward=str(judge), micro_batch=2)
    model = AutoModelForSequenceClassification.from_pretrained(judge)
    columns = dict(prompts=["12>", "3>", "4>"], completions=["21", "3", "999"], finished=[True, True, False])
    scores = script.make_task(args).reward(**columns, answer=["21", "3", "4"])
    for score, text in zip(scores, ["12>21</s>", "3>3</s>", "4>999"], strict=True):
        ids = [3 + x for x in text.removesuffix("</s>").encode()] + [1] * text.endswith("</s>")
        expected = (model(torch.tensor([ids])).logits.item() - 0.25) / 2
        assert score == pytest.approx(expected, abs=1e-5)
    _, log = script.train(args)
    assert log[-1]["score"] != 0


def test_reward_models_that_cannot_be(script, make_args, tmp_path):
    """A model of two outputs is none of rewards."""
    sizes = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, vocab_size=9)
    model = AutoModelForSequenceClassification.from_config(LlamaConfig(**sizes))
    model.save_pretrained(tmp_path / "two")
    ByT5Tokenizer(extra_ids=0).save_pretrained(tmp_path / "two")
    with pytest.raises(script.Mistake, match="2 outputs, but a reward model has one"):
        script.train(make_args(script, reward=str(tmp_path / "two")))


def test_a_folder_without_all_weights_is_refused(script, make_args, judge):
    """They would be random numbers: of a judge, and of a model that has learned to write, not to judge."""
    weights = load_file(judge / "model.safetensors")
    some = {name: x for name, x in weights.items() if "q_proj" not in name}
    save_file(some, judge / "model.safetensors", {"format": "pt"})
    missing = "1 weights are missing, model.layers.0.self_attn.q_proj.weight for instance"
    with pytest.raises(script.Mistake, match=f"--reward .*: ValueError: {missing}"):
        script.train(make_args(script, reward=str(judge)))
    writer = judge.parent / "writer"
    AutoModelForCausalLM.from_config(LlamaConfig(**SMALL)).save_pretrained(writer)
    ByT5Tokenizer(extra_ids=0).save_pretrained(writer)
    with pytest.raises(script.Mistake, match="1 weights are missing, score.weight"):
        script.train(make_args(script, reward=str(writer)))
    save_file({"model.norm.weight": torch.ones(8)}, writer / "model.safetensors", {"format": "pt"})
    with pytest.raises(script.Mistake, match="--model .* weights are missing"):
        script.train(make_args(script, model=str(writer)))


def test_a_run_is_a_judge(script, make_args, judge):
    """Its folder is named, as by every other flag."""
    (judge.parent / "run").mkdir()
    judge.rename(judge.parent / "run/model")
    _, log = script.train(make_args(script, reward=str(judge.parent / "run")))
    assert log[-1]["score"] != 0


def by_neighbours(prompts, completions, finished):
    return [len(prompts) + x for x in finished]


def without_ends(prompts, completions, finished):
    return [float(len(text)) for text in completions]


def nothing(prompts, completions, finished):
    return [math.nan] * len(prompts)


def with_a_limit(prompts, completions, finished):
    """Of 20 characters."""
    return [[0.0] * 21][0][: len(prompts)] if max(map(len, completions)) < 20 else {}["too long"]


@pytest.mark.parametrize(
    ("judge", "reason"),
    [
        (by_neighbours, "ValueError: its score of a text depends on the texts beside it"),
        (without_ends, "ValueError: it does not see whether a text has ended"),
        (nothing, "ValueError: its score of a text depends on the texts beside it"),
        (with_a_limit, "KeyError: 'too long'"),
    ],
)
def test_judges_that_cannot_be(script, judge, reason):
    with pytest.raises(script.Mistake, match=f"--reward x cannot judge: {reason}"):
        script.check_judge("--reward x", judge, script.Args(max_new_tokens=12), ["12>", "3>"])


def test_a_judge_is_tested_before_a_run(script, make_args, record, judge):
    tested = record(script, "check_judge")
    script.make_task(make_args(script, reward=str(judge)))
    [((name, _, _, prompts), _)] = tested
    assert name == f"--reward {judge}" and len(prompts) == 12


def test_a_judge_in_a_folder_with_a_colon(script, make_args, judge, command_line):
    """As all of Windows' are."""
    place = judge.rename(judge.parent / "C:judge")
    args = make_args(script, reward=str(place), iterations=1)
    script.train(args)
    code, out, _ = command_line(script, "--evaluate", args.run_dir)
    assert not code and "mean score" in out


def test_reward_from_the_current_folder(script, make_args, tmp_path, monkeypatch):
    (tmp_path / f"mine_{name_of(script)}.py").write_text("def score(completions, **kwargs):\n    return []\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    task = script.make_task(make_args(script, reward=f"mine_{name_of(script)}:score"))
    assert task.reward(completions=[]) == []


SMALL = dict(vocab_size=259, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
SMALL |= dict(eos_token_id=1, pad_token_id=0, bos_token_id=None)


# ---- models from outside


def test_model_from_a_folder(script, make_args, tmp_path):
    """In float32, whatever it was saved in; with several ends, a template, and without a pad."""
    folder = str(tmp_path / "model")
    sizes = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
    config = LlamaConfig(
        vocab_size=259, eos_token_id=[5, 7], bos_token_id=None, max_position_embeddings=40, **sizes
    )
    AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(folder)
    tokenizer = ByT5Tokenizer(extra_ids=0)
    tokenizer.chat_template = "{% for m in messages %}<{{ m.content }}>{% endfor %}"
    tokenizer.save_pretrained(folder)
    agent, _ = script.train(make_args(script, model=folder, chat=True))
    assert agent.ends.tolist() == [1, 5, 7]  # the tokenizer's, which a warm start teaches, and the model's
    assert {x.dtype for x in agent.parameters()} == {torch.float32}
    tokens, attended = encoded(agent, ["12", "3"])
    assert agent.tokenizer.decode(tokens[0]) == "<12>" and attended.tolist() == [
        [True] * 4,
        [False] + [True] * 3,
    ]


def test_a_damaged_folder_of_a_model_costs_a_line(script, make_args, tmp_path):
    """Whichever of its files is cut off, empty, something else, or not there."""
    good = script.Agent(make_args(script))
    good.model.save_pretrained(tmp_path / "good")
    good.tokenizer.save_pretrained(tmp_path / "good")
    needed = {"config.json", "model.safetensors", "tokenizer_config.json"}
    for name in needed:
        content = (tmp_path / "good" / name).read_bytes()
        for number, change in enumerate(
            (None, b"", content[: len(content) // 2], b"[]", b"null", b"\0" * 500)
        ):
            folder = shutil.copytree(tmp_path / "good", tmp_path / f"{name}_{number}")
            (folder / name).unlink()
            if change is not None:
                (folder / name).write_bytes(change)
            with pytest.raises(script.Mistake, match=f"--model {folder}: "):
                script.Agent(make_args(script, model=str(folder)))


def test_what_was_learned_leaves_in_the_format_of_hugging_face(script, make_args, tmp_path, monkeypatch):
    """By the lines of the document, with a reference in the checkpoint; --model reads it."""
    agent, _ = script.train(make_args(script, kl_coef=0.1, run_dir=str(tmp_path / "runs/mine")))
    page = (ROOT / "docs/language_runs.md").read_text()
    lines = re.search(r"```python\n(from variants import grpo.*?)```", page, re.S)[1]
    monkeypatch.chdir(tmp_path)
    exec(lines.replace("grpo", script.__name__.split(".")[1]), {})
    again = script.Agent(make_args(script, model="mine"))
    assert same(again.model.state_dict(), agent.model.state_dict())
    assert again.tokenizer("a1>").input_ids == agent.tokenizer("a1>").input_ids


def test_prompts_begin_as_the_tokenizer_begins_texts(script, make_args, monkeypatch):
    """A token that is called the first of a text may be something else, as in ChatML."""
    agent = script.Agent(make_args(script))
    agent.tokenizer.bos_token = "<"
    assert agent.tokenizer.decode(encoded(agent, ["12"])[0][0]) == "12"
    begin = lambda row, other=None: [agent.tokenizer.bos_token_id, *row]  # noqa: E731
    monkeypatch.setattr(agent.tokenizer, "build_inputs_with_special_tokens", begin)
    for text in ("12", "<12"):  # which may begin so already
        assert agent.tokenizer.decode(encoded(agent, [text])[0][0]) == "<12"


def test_a_pad_that_the_model_does_not_know(script, make_args, monkeypatch):
    tokenizer, model = gpt2(None)
    tokenizer.add_special_tokens({"pad_token": "[PAD]"})
    assert tokenizer.pad_token_id == model.config.vocab_size
    monkeypatch.setattr(script, "make_model", lambda args: (tokenizer, model))
    script.train(make_args(script, eval_episodes=1))


TINY = dict(
    hidden_size=32, intermediate_size=64, num_attention_heads=2, num_key_value_heads=1, vocab_size=259
)
ENDS = dict(pad_token_id=0, eos_token_id=1, bos_token_id=None)
VISION = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
KINDS = {
    "convolutions": Lfm2Config(layer_types=["conv", "full_attention"], num_hidden_layers=2, **TINY, **ENDS),
    "pictures": Gemma3Config(  # whose sizes are those of a part
        text_config=TINY | dict(num_hidden_layers=2, head_dim=16, sliding_window=8),
        vision_config=VISION | dict(image_size=28, patch_size=14),
        image_token_index=258,
        **ENDS,
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_models_of_other_kinds_are_sampled(script, kind, monkeypatch):
    """What is cached between tokens is of the model's own kinds of layers."""
    model = lambda args: (ByT5Tokenizer(extra_ids=0), AutoModelForCausalLM.from_config(KINDS[kind]))  # noqa: E731
    monkeypatch.setattr(script, "make_model", model)
    assert_greedy_without_a_cache(script)


def test_positions_of_a_part(script, make_args, monkeypatch, capfd):
    """How long a text may be is said by the part of the model that reads it."""
    config = Gemma3Config(**KINDS["pictures"].to_dict())
    config.text_config.max_position_embeddings = 8
    model = lambda args: (ByT5Tokenizer(extra_ids=0), AutoModelForCausalLM.from_config(config))  # noqa: E731
    monkeypatch.setattr(script, "make_model", model)
    err = refused(script, make_args(script, max_new_tokens=5), capfd)
    assert "a prompt of 4 tokens and --max-new-tokens are too long for --model" in err


TURNS = "{% for m in messages %}{{ m.role }} {{ m.content }}<turn>\n{% endfor %}"


def tokenizer_of_turns():
    tokenizer = ByT5Tokenizer(extra_ids=0)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<turn>"]})
    tokenizer.chat_template = TURNS
    return tokenizer


def test_the_end_of_a_chat_is_what_the_template_writes(script, make_args, monkeypatch):
    """It is taught first, and the tokenizer's ends a text, too."""
    model = AutoModelForCausalLM.from_config(LlamaConfig(**SMALL | {"vocab_size": 260}))
    monkeypatch.setattr(script, "make_model", lambda args: (tokenizer_of_turns(), model))
    assert script.Agent(make_args(script, chat=True)).end_ids[:2] == [259, 1]
    assert script.Agent(make_args(script)).end_ids[0] == 1
    tokenizer = tokenizer_of_turns()
    tokenizer.chat_template = TURNS.replace("<turn>", "")
    assert script.end_of_turn(tokenizer) is None


def test_a_judge_of_chats_sees_whether_an_answer_has_ended(script):
    texts = script.whole_texts(tokenizer_of_turns(), True, ["a", "a"], ["b", "b"], [True, False])
    assert texts == ["user a<turn>\nassistant b<turn>\n", "user a<turn>\nassistant b"]


def test_half_a_character_is_refused(script, make_args, tmp_path, capfd):
    """With its line: no file in UTF-8 can have it, but an escape of JSON can."""
    path = tmp_path / "half.jsonl"
    path.write_text('{"prompt": "a", "answer": "b"}\n{"prompt": "\\ud800", "answer": "b"}\n')
    err = refused(script, make_args(script, task=str(path), reward=None), capfd)
    assert f"{path} line 2: UnicodeEncodeError: " in err


def test_a_chat_goes_on_with_the_answer(script):
    agent = make_agent(script)
    agent.args = script.Args(chat=True)
    turns = "{% for m in messages %}{{ m.role }} {{ m.content }};{% endfor %}"
    agent.tokenizer.chat_template = turns + "{% if add_generation_prompt %}assistant {% endif %}"
    assert agent.tokenizer.decode(encoded(agent, ["12"])[0][0]) == "user 12;assistant "


CHAT = "{{ style }}{% for m in messages %}{{ m.role }} {{ m.content }}<turn>\n{% endfor %}"
TALK = [{"role": "system", "content": "Reverse."}, {"role": "user", "content": "12"}]


def test_a_prompt_may_be_a_list_of_messages(script, make_args, tmp_path, monkeypatch):
    """As in the data sets of TRL: the template gets all of them, and the reward function, too."""
    path, model = (
        tmp_path / "talks.jsonl",
        AutoModelForCausalLM.from_config(LlamaConfig(**SMALL | {"vocab_size": 260})),
    )
    lines = [
        {"prompt": [TALK[0], {"role": "user", "content": str(i)}], "answer": str(i), "level": 0}
        for i in range(6)
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    monkeypatch.setattr(script, "make_model", lambda args: (tokenizer_of_turns(), model))
    args = make_args(script, task=str(path), chat=True, eval_episodes=3)
    agent = script.Agent(args)
    assert agent.tokenizer.decode(agent.encode([TALK])[0]) == "system Reverse.<turn>\nuser 12<turn>\n"
    assert agent.encode(["12"]) == agent.encode([TALK[1:]])
    texts = script.whole_texts(agent.tokenizer, True, [TALK], ["21"], [False])
    assert texts == ["system Reverse.<turn>\nuser 12<turn>\nassistant 21"]
    held_out, training = script.make_task(args).held_out, script.make_task(args).training
    assert [x["prompt"][1]["content"] for x in held_out + training] == list("012345")
    script.train(args)
    assert read(Path(args.run_dir) / "completions.jsonl")[0]["prompt"] == lines[0]["prompt"]


def test_options_of_the_template(script, make_args, monkeypatch):
    tokenizer, model = (
        tokenizer_of_turns(),
        AutoModelForCausalLM.from_config(LlamaConfig(**SMALL | {"vocab_size": 260})),
    )
    tokenizer.chat_template = CHAT
    monkeypatch.setattr(script, "make_model", lambda args: (tokenizer, model))
    agent = script.Agent(make_args(script, chat=True, chat_options='{"style": "dry "}'))
    assert tokenizer.decode(agent.encode(["1"])[0]) == "dry user 1<turn>\n"


def test_what_is_not_given_suits_the_model(script):
    """A warm start and large steps for a new model; for a trained one they would ruin what it knows."""
    new, trained = script.Args(), script.Args(model="who/what")
    assert (new.sft_steps, new.sft_learning_rate, new.learning_rate) == (50, 5e-3, 5e-4)
    assert (trained.sft_steps, trained.sft_learning_rate, trained.learning_rate) == (0, 1e-5, 1e-5)
    given = script.Args(model="who/what", sft_steps=3, sft_learning_rate=1e-3, learning_rate=1e-4)
    assert (given.sft_steps, given.sft_learning_rate, given.learning_rate) == (3, 1e-3, 1e-4)
    if script is ppo_llm:
        assert (new.critic_learning_rate, trained.critic_learning_rate) == (1e-3, 1e-5)


def test_a_sampler_that_is_not_the_learner(script, make_args, monkeypatch):
    """The difference is logged; if it is more than rounding, the first rollout is refused."""
    args = make_args(script, sft_steps=3, temperature=0.7)
    _, log = script.train(args)
    assert all(0 < row["sampler_gap"] < 1e-5 for row in log)
    _, log = script.train(make_args(script, dtype="bfloat16"))
    assert all(row["sampler_gap"] < 0.1 for row in log)
    original = script.complete

    def noisy(agent, prompts, greedy=False):
        *rows, logprobs = original(agent, prompts, greedy)
        return *rows, logprobs + 0.2

    monkeypatch.setattr(script, "complete", noisy)
    with pytest.raises(script.Mistake, match="differ by 0.2 on average"):
        script.train(make_args(script))


def test_answers_of_each_checkpoint(script, make_args):
    """What the saved weights say, beside their scores: of the whole rollout that follows the save."""
    args = make_args(script, iterations=4, checkpoints=2)
    _, log = script.train(args)
    names = sorted(path.name for path in Path(args.run_dir).glob("answers_*"))
    assert names == ["answers_00000000.jsonl", "answers_00000016.jsonl"]
    answers = [read(Path(args.run_dir) / name) for name in names]
    for row, found in zip(log[::2], answers, strict=True):
        assert np.mean([answer["score"] for answer in found]) == pytest.approx(row["score"])
    assert set(answers[0][0]) == {"prompt", "completion", "score", "exact"}
    silent = make_args(script, checkpoints=0)
    script.train(silent)
    assert not list(Path(silent.run_dir).glob("answers_*"))


# ---- mistakes


def fake_reasoning_gym():
    """What of reasoning_gym is used."""
    module = ModuleType("reasoning_gym")

    class Dataset(list):
        def score_answer(self, answer, entry):
            return 0.25 if answer == entry["answer"] else 0.0

    def create_dataset(name, seed, size, word_length=3):
        if name not in ("chain_sum", "spell_backward", "gcd"):
            raise ValueError(f"Dataset '{name}' not registered")
        words = [f"w{i}"[:word_length] for i in range(size)]
        return Dataset({"question": word, "answer": word[::-1], "metadata": {}} for word in words)

    module.create_dataset = create_dataset
    return module


def test_reasoning_gym(script, make_args, monkeypatch, tmp_path, capsys):
    """A file of problems, and scores that may be parts of a point."""
    monkeypatch.setitem(sys.modules, "reasoning_gym", fake_reasoning_gym())
    reasoning_gym_tasks.dataset_of.cache_clear()
    monkeypatch.setattr(sys, "argv", ["", "spell_backward", "word_length=3", "--size", "30"])
    reasoning_gym_tasks.main()
    (tmp_path / "words.jsonl").write_text(capsys.readouterr().out)
    flags = dict(task=str(tmp_path / "words.jsonl"), reward="tools.reasoning_gym_tasks:score")
    task = script.make_task(make_args(script, **flags))
    assert len(task.training) == 27 and task.training[0]["prompt"] == "w3"
    agent = make_agent(script)
    rows = agent.tokenizer(["3w", "?"]).input_ids
    scores, exact = graded(script, agent, rows, task.training[:2], task.reward)
    assert scores == [0.25, 0.0] and exact == [1.0, 0.0]


@pytest.mark.parametrize(
    ("module", "words", "mistake"),
    [
        (True, ["spell_backwards"], "Dataset 'spell_backwards' not registered"),
        (True, ["gcd", "no_such=1"], "no_such"),
        (True, ["gcd", "size=a"], "size=a is not NAME=VALUE"),
        (False, ["gcd"], "ModuleNotFoundError"),
    ],
)
def test_mistakes_of_reasoning_gym(monkeypatch, capsys, module, words, mistake):
    monkeypatch.setitem(sys.modules, "reasoning_gym", fake_reasoning_gym() if module else None)
    reasoning_gym_tasks.dataset_of.cache_clear()
    monkeypatch.setattr(sys, "argv", ["reasoning_gym_tasks.py", *words])
    with pytest.raises(SystemExit) as exit:
        reasoning_gym_tasks.main()
    assert exit.value.code == 2 and mistake in capsys.readouterr().err.splitlines()[-1]


MISTAKES = [
    ({"task": "no_such"}, "--task no_such: FileNotFoundError"),
    ({"task": "lines", "lines": "{"}, "mistake.jsonl line 2: JSONDecodeError"),
    ({"task": "lines", "lines": '{"prompt": "1"}\n\n{'}, "mistake.jsonl line 3: JSONDecodeError"),
    ({"task": "lines", "lines": "[1]"}, "mistake.jsonl line 2: AttributeError"),
    ({"task": "lines", "lines": '{"question": "1"}'}, "mistake.jsonl line 2: ValueError: each problem takes"),
    ({"task": "lines", "lines": '{"prompt": ""}'}, "each problem takes prompt, as text"),
    ({"task": "lines", "lines": '{"prompt": "1"}', "reward": None}, "takes prompt and answer, as text"),
    (
        {"task": "lines", "lines": '{"prompt": "1", "answer": 1}', "reward": None},
        "takes prompt and answer, as text",
    ),
    ({"task": "lines", "lines": '{"prompt": "1"}', "sft_steps": 1}, "takes prompt and answer, as text"),
    ({"eval_episodes": 12}, "--eval-episodes 12 holds out all 12 prompts: take fewer"),
    ({"reward": "no_such_module:f"}, "No module named 'no_such_module'"),
    ({"reward": "quits:f"}, "SystemExit: 3"),
    ({"reward": "texts:no_such"}, "no_such"),
    ({"reward": "texts:"}, "AttributeError"),
    ({"reward": "no_such_model"}, "--reward no_such_model: OSError"),
    ({"task": "lines", "lines": '{"prompt": [], "answer": "1"}', "chat": True}, "each problem takes prompt"),
    (
        {"task": "lines", "lines": '{"prompt": [{"role": "user"}]}', "chat": True},
        "line 2: KeyError: 'content'",
    ),
    (
        {"task": "lines", "lines": '{"prompt": [{"role": "user", "content": "1"}]}'},
        "as text (with --chat, prompt may be a list of messages)",
    ),
    ({"chat_options": "{"}, "--chat-options { is no JSON object"),
    ({"chat_options": "[]"}, "--chat-options [] is no JSON object"),
    ({"micro_batch": -1}, "--micro-batch -1 is not between 0 and"),
    ({"num_minibatches": 3}, "--num-minibatches 3 does not cut 8 into equal parts of 2+"),
    ({"num_minibatches": 8}, "--num-minibatches 8 does not cut 8 into equal parts of 2+"),
    ({"total_episodes": 7}, "--total-episodes 7 is less than --num-envs 8"),
    ({"temperature": 0.0}, "--temperature 0 leaves nothing to learn from"),
    ({"temperature": math.nan}, "--temperature nan is not between"),
    ({"max_new_tokens": 0}, "--max-new-tokens 0 is not between 1 and"),
    ({"kl_coef": -0.1}, "--kl-coef -0.1 is not between 0 and"),
    ({"learning_rate": math.inf}, "--learning-rate inf is not"),
    ({"sft_steps": -1}, "--sft-steps -1 is not"),
    ({"model": Path("tiny")}, "--model tiny is not text"),
    ({"reward": len}, "--reward <built-in function len> is not text"),
    ({"temperature": "1"}, "--temperature 1 is not between 0 and"),
    ({"seed": -1}, "--seed -1 is not between 0 and 4294967295"),
    ({"device": "cuda:99"}, "--device cuda:99 is not here; there is"),
]
PPO_MISTAKES = [({"gae_lambda": 1.1}, "--gae-lambda 1.1 is not between 0 and 1")]
GRPO_MISTAKES = [
    ({"group_size": 3}, "--group-size 3 does not cut 8 completions into groups of 2+"),
    ({"group_size": 1}, "--group-size 1 does not cut 8 completions into groups of 2+"),
    ({"clip_coef_high": -1.0}, "--clip-coef-high -1.0 is not"),
]


def refused(script, args, capfd):
    """What it says, in one line, before it makes a folder."""
    with pytest.raises(script.Mistake) as mistake:
        script.train(args)
    assert capfd.readouterr() == ("", "") and "\n" not in str(mistake.value)
    return str(mistake.value)


@pytest.mark.parametrize(
    ("script", "flags", "message"),
    [
        pytest.param(script, *case, id=f"{name_of(script)}-{case[0]}")
        for script, own in ((ppo_llm, PPO_MISTAKES), (grpo, GRPO_MISTAKES))
        for case in MISTAKES + own
    ],
)
def test_mistake(script, flags, message, make_args, tmp_path, monkeypatch, capfd):
    """One line, before a model is made."""
    monkeypatch.setattr(script, "make_model", lambda args: pytest.fail("a model was made"))
    flags = dict(flags)
    if "lines" in flags:
        flags["task"] = str(tmp_path / "mistake.jsonl")
        (tmp_path / "mistake.jsonl").write_text('{"prompt": "0", "answer": "0"}\n' + flags.pop("lines"))
    assert message in refused(script, make_args(script, **flags), capfd)
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--dtype", "float16"], "float16"),
        (["--loss-norm", "mean"], "mean"),
        (["--reward="], "an empty value on the command line"),
        (["--task", ""], "an empty value on the command line"),
        (["--run-dir", "a", "--resume", "b"], "--run-dir, --resume and --evaluate exclude each other"),
    ],
)
def test_mistakes_on_the_command_line(script, command_line, tmp_path, monkeypatch, words, message):
    """Before a model is made, or a folder."""
    monkeypatch.setattr(script, "make_model", lambda args: pytest.fail("a model was made"))
    monkeypatch.chdir(tmp_path)
    code, out, err = command_line(script, *words)
    assert (code, out) == (2, "") and message in err
    assert not [*tmp_path.iterdir()]


def test_models_that_cannot_be(script, make_args, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = tmp_path / "model"
    folder.mkdir()
    args = make_args(script, model=str(folder))
    assert f"--model {folder}: " in refused(script, args, capfd)
    ByT5Tokenizer(extra_ids=0).save_pretrained(folder)
    LlamaConfig(vocab_size=259, num_hidden_layers=1).save_pretrained(folder)
    assert f"--model {folder}: " in refused(script, args, capfd)
    chat = make_args(script, chat=True)
    assert "--model tiny has no template for --chat" in refused(script, chat, capfd)


@pytest.mark.parametrize("text", ["é" * 30, "z" * 60])
def test_a_prompt_that_is_too_long(script, make_args, tmp_path, monkeypatch, capfd, text):
    """Told before the first step, whichever prompt has most tokens: not most letters, nor most bytes."""
    path = tmp_path / "long.jsonl"
    texts = [text, *(f"{i:041}" for i in range(20)), *("<" + "a" * 99 + f">{i}" for i in range(20))]
    path.write_text("\n".join(json.dumps({"prompt": text}) for text in texts))

    def make_model(args):
        tokenizer, model = gpt2(args)
        model.resize_token_embeddings(260, mean_resizing=False)
        tokenizer.add_tokens("<" + "a" * 99 + ">")  # a single token
        return tokenizer, model

    monkeypatch.setattr(script, "make_model", make_model)
    monkeypatch.setattr(script, "warm_start", lambda *args: pytest.fail("it went on"))
    err = refused(script, make_args(script, task=str(path), max_new_tokens=5), capfd)
    assert "a prompt of 60 tokens and --max-new-tokens are too long for --model" in err
    make_args = make_args(script, task=str(path), max_new_tokens=4, iterations=1)
    monkeypatch.setattr(script, "warm_start", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):  # 64 positions are enough
        script.train(make_args)


def test_an_evaluation_refuses_prompts_that_are_too_long(script, make_args, command_line, tmp_path):
    path = tmp_path / "long.jsonl"
    path.write_text(json.dumps({"prompt": "1" * 2044, "answer": "1", "level": 1}))
    args = make_args(script, iterations=1)
    script.train(args)
    flags = ("--evaluate", args.run_dir, "--task", path, "--reward", "texts:spread")
    code, _, err = command_line(script, *flags)
    assert (code, err.count("\n")) == (2, 1) and "a prompt of 2044 tokens" in err


def test_a_tokenizer_without_an_end(script, make_args, monkeypatch, capfd):
    tokenizer, model = gpt2(None)
    tokenizer.eos_token = model.generation_config.eos_token_id = None
    monkeypatch.setattr(script, "make_model", lambda args: (tokenizer, model))
    assert "--model tiny has no token that ends a text" in refused(script, make_args(script), capfd)


@pytest.mark.parametrize("error", [None, OSError("no network")])
def test_without_a_network_there_is_one_try(script, make_args, monkeypatch, capfd, error):
    """With one, downloads are as ever; without, models that were downloaded are still found."""
    asked, loaded, there = [], [], script.hub.constants

    def head(url, timeout):
        asked.append(url)
        if error:
            raise error

    def from_pretrained(name, **kwargs):
        loaded.append((name, script.hub.is_offline_mode()))
        raise OSError("not here\nand more")

    monkeypatch.setattr(there, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(script.hub, "get_session", lambda: SimpleNamespace(head=head))
    monkeypatch.setattr(script.AutoTokenizer, "from_pretrained", from_pretrained)
    assert (
        refused(script, make_args(script, model="who/what"), capfd) == "--model who/what: OSError: not here"
    )
    assert asked == [there.ENDPOINT] and loaded == [("who/what", error is not None)]


@pytest.mark.parametrize(("reward", "warns"), [("right_once", True), ("spread", False)])
def test_a_start_without_scores_is_said(script, make_args, capsys, reward, warns):
    """In one line, before the first step, with the score."""
    args = make_args(script, num_envs=64, reward=f"texts:{reward}", learning_rate=0.0)
    _, log = script.train(args)
    lines = [line for line in capsys.readouterr().out.splitlines() if "before the first step" in line]
    assert len(lines) == 1 and f"step: {log[0]['score']:.3g}" in lines[0]
    assert ("more --sft-steps" in lines[0]) == warns


@pytest.mark.parametrize(
    ("flags", "advice"),
    [
        ({"reward": "texts:wrong_once"}, "the task is solved already"),
        ({"reward": "texts:right_once", "max_new_tokens": 2}, "no answer has less than 3 tokens, so"),
        (
            {"reward": "texts:right_once", "model": "folder", "max_new_tokens": 5},
            "try more --max-new-tokens, for",
        ),
        ({"reward": "texts:right_once", "model": "folder", "max_new_tokens": 150}, "try easier prompts, or"),
    ],
)
def test_advice_at_the_start(script, make_args, tmp_path, capsys, flags, advice):
    """It is about what stands in the way of learning."""
    path = tmp_path / "long.jsonl"
    # With a reward, an answer may be of any type.
    lines = [{"prompt": f"{i}>", "answer": i + 10, "level": 1} for i in range(40)]
    path.write_text("\n".join(map(json.dumps, lines)))
    if "model" in flags:
        flags = flags | {"model": str(tmp_path / "model")}
        script.make_model(script.Args())[1].save_pretrained(flags["model"])
        ByT5Tokenizer(extra_ids=0).save_pretrained(flags["model"])
    flags = {"max_new_tokens": 3} | flags
    script.train(make_args(script, iterations=1, num_envs=64, task=str(path), learning_rate=0.0, **flags))
    [line] = [line for line in capsys.readouterr().out.splitlines() if "before the first step" in line]
    assert f"so it learns slowly at first: {advice}" in line


# ---- a real checkpoint


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory):
    """SmolLM2-135M-Instruct in a folder, and the tasks beside it, as the tool makes them."""
    for package in ("gguf", "accelerate"):
        pytest.importorskip(package, reason="pip install gguf accelerate")
    path = tmp_path_factory.mktemp("smollm2")
    tool = [sys.executable, ROOT / "tools/smollm2.py", path]
    said = subprocess.run(tool, check=True, capture_output=True, text=True).stdout
    assert "134,515,008 weights" in said and "sums.jsonl: 2401 problems" in said
    refused = subprocess.run(tool, capture_output=True, text=True)
    assert refused.returncode == 1 and "a new folder, or an empty one" in refused.stderr
    return path / "model"


@pytest.mark.slow
def test_a_real_checkpoint_is_trained(script, smollm2, make_args, tmp_path, monkeypatch):
    """Answers end by themselves, pad = eos; the first step is on-policy, and the loss falls."""
    questions = [f"What is {a} + {b}? Answer with one number." for a in range(2, 6) for b in range(3)]
    lines = [json.dumps({"prompt": text, "level": 0}) for text in questions]
    (tmp_path / "sums.jsonl").write_text("\n".join(lines))
    flags = dict(task=str(tmp_path / "sums.jsonl"), model=str(smollm2), chat=True, max_new_tokens=24)
    flags |= dict(num_minibatches=1, update_epochs=4, learning_rate=1e-5, anneal_lr=False, kl_coef=0.05)
    seen, loss_of_script = [], getattr(script, loss_name(script))

    def watched(*inputs):
        loss, metrics = loss_of_script(*inputs)
        seen.append({"loss": loss.item()} | {name: x.item() for name, x in metrics.items()})
        return loss, metrics

    monkeypatch.setattr(script, loss_name(script), watched)
    agent, log = script.train(make_args(script, iterations=1, num_envs=4, threads=2, **flags))
    assert agent.pad in agent.ends and log[0]["finished"] > 0.2
    assert abs(seen[0]["kl"]) < 1e-6 and abs(seen[0]["ref_kl"]) < 1e-6 and seen[0]["clip_frac"] == 0
    assert len(seen) == 4 and seen[-1]["loss"] < seen[0]["loss"]
