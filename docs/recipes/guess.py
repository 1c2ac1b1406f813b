"""Guess a digit from "higher" and "lower": a world with a secret, for variants/grpo_turns.py.

    python docs/recipes/guess.py runs/halving.jsonl 5    # in 5 of 10 games somebody halves
    python variants/grpo_turns.py --task runs/halving.jsonl --world docs.recipes.guess:world --max-turns 4

Whoever halves what is left finds each digit in four turns. Whoever draws at random finds one of three.
"""

import json
import random
import sys
from pathlib import Path

GAMES = 4000
DIGITS = list("0123456789")


def world(problem: dict, turns: list[str]) -> str | None:
    """Whether the secret is lower or higher than the guess; the right one ends the game, as does nonsense."""
    guess, secret = turns[-1], problem["answer"]
    if guess not in DIGITS or guess == secret:
        return None
    return "higher" if guess < secret else "lower"


def play(secret: str, halves: bool) -> list[str]:
    """A game of four turns by somebody who halves what is left, or who draws any digit."""
    low, high = 0, 9
    turns = []
    while True:
        guess = (low + high) // 2 if halves else random.randint(0, 9)
        turns.append(str(guess))
        reply = world({"answer": secret}, turns)
        if reply is None or len(turns) == 7:
            return turns
        turns.append(reply)
        low, high = (guess + 1, high) if reply == "higher" else (low, guess - 1)


def main(path: str, halving: int) -> None:
    """Write games, of which so many in ten show somebody who halves."""
    random.seed(1)
    lines = []
    for number in range(GAMES):
        secret = str(random.randint(0, 9))
        turns = play(secret, random.randint(1, 10) <= halving)
        # The evaluation holds out prompts, so each game has its own. It does not tell the secret.
        lines.append(json.dumps({"prompt": f"game {number}>", "answer": secret, "turns": turns}) + "\n")
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text("".join(lines), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
