"""Problems of reasoning-gym as a file for ppo_llm.py and grpo.py, and its scores as their reward.

    pip install reasoning-gym==0.1.25
    python tools/reasoning_gym_tasks.py spell_backward min_word_len=3 max_word_len=4 > words.jsonl
    python variants/grpo.py --task words.jsonl --reward tools.reasoning_gym_tasks:score --sft-steps 200

A line has the prompt, the answer, and the whole entry, by which the generator scores an answer: some give
part of a point.
"""

import argparse
import functools
import json
import sys


@functools.cache
def dataset_of(name: str, size: int = 1, config: str = "{}"):
    """A generator's problems; one is enough for its way to score."""
    try:
        import reasoning_gym

        return reasoning_gym.create_dataset(name, **{"seed": 0, "size": size} | json.loads(config))
    except (ImportError, ValueError, TypeError, AssertionError) as error:
        print(f"reasoning_gym_tasks.py: {name} {config}: {error!r}".replace("\n", " "), file=sys.stderr)
        raise SystemExit(2) from None


def score(completions: list[str], generator: list[str], entry: list[dict], **_) -> list[float]:
    """The generators' own scores of answers, from 0 to 1."""
    problems = zip(completions, generator, entry, strict=True)
    return [float(dataset_of(name).score_answer(text, x)) for text, name, x in problems]


def main() -> None:
    """Print a line for each problem."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("generator", help="a name that reasoning-gym knows")
    parser.add_argument("--size", type=int, default=10_000, help="number of problems")
    parser.add_argument("options", nargs="*", metavar="NAME=VALUE", help="of the generator, values as JSON")
    args = parser.parse_args()
    config = {}
    for option in args.options:
        name, _, value = option.partition("=")
        try:
            config[name] = json.loads(value)
        except ValueError:
            parser.error(f"{option} is not NAME=VALUE, with the value in JSON")
    for x in dataset_of(args.generator, args.size, json.dumps(config)):
        line = {"prompt": x["question"], "answer": x["answer"], "generator": args.generator, "entry": x}
        print(json.dumps(line, default=str))


if __name__ == "__main__":
    main()
