"""Reward functions that can be fooled or say nothing, to break runs of language models with."""


def nothing(completions: list[str], **columns: list) -> list[float]:
    """The same for all."""
    return [0.0] * len(completions)


def ascending(completions: list[str], **columns: list) -> list[float]:
    """The share of neighbours that are in order: a proxy for sorting. 11111 has all of it."""
    scores = []
    for text in completions:
        pairs = list(zip(text, text[1:], strict=False))
        scores.append(sum(a <= b for a, b in pairs) / max(1, len(pairs)))
    return scores


def long(completions: list[str], **columns: list) -> list[float]:
    """Longer is better."""
    return [float(len(text)) for text in completions]
