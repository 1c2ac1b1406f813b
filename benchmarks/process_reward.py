"""A reward for each token of the sorting task, instead of one for the whole answer."""


def right_tokens(completion_ids: list[list[int]], answer: list[str], **columns: list) -> list[list[float]]:
    """A sixth of a point for each of five digits, and the end, that is right where it stands."""
    right = [[3 + byte for byte in text.encode()] + [1] for text in answer]  # ByT5's tokens; 1 is the end
    pairs = zip(completion_ids, right, strict=True)
    return [[(said[t : t + 1] == [x]) / 6 for t, x in enumerate(ids)] for ids, said in pairs]
