"""What the programs in this folder share with each other, and with those in tools/."""

import csv
import difflib
import hashlib
import json
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path += [str(ROOT / "tools"), str(ROOT)]
import compare  # noqa: E402
import diagnose  # noqa: E402, F401
import sweep  # noqa: E402
from sweep import Parser, refuse  # noqa: E402, F401

RESULTS = ROOT / "benchmarks/results"
PACKAGES = ["torch", "gymnasium", "numpy", "ale-py", "mujoco", "stable-baselines3", "sb3-contrib"]
WIDTH = 8.5  # of a picture: inches, of 100 pixels on the page
SIZE = compare.SIZE
THEMES = {
    name: compare.THEMES[name] | {"name": name} | dict(zip(("ours", "other", "third"), colours, strict=False))
    for name, colours in compare.COLOURS.items()
}


def find(known: dict, name: str, what: str):
    """known[name], or a line that says which names are close."""
    if name not in known:
        close = difflib.get_close_matches(name, known, 1)
        refuse(f"{what} {name} is not known; {close[0] if close else ', '.join(known)}?")
    return known[name]


def markdown(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table."""
    first, *others = ("|".join(["", *(f" {x} " if x else " " for x in row), ""]) for row in (heads, *rows))
    return "\n".join([first, "|---" * (first.count("|") - 1) + "|", *others])


def read_rows(path: Path) -> list[list[str]]:
    """The rows of a CSV file, without its head; none if it is not there."""
    return list(csv.reader(path.open()))[1:] if path.exists() else []


def read_dicts(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file by the words of its head; none if it is not there."""
    return [*csv.DictReader(path.open())] if path.exists() else []


def read_jsonl(path: Path) -> list[dict]:
    """The lines of a JSONL file. A text in it may hold marks that splitlines() takes for a line's end."""
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def write_rows(path: Path, head: list[str], rows: Iterable[list], above: str = "") -> None:
    """Write a CSV file; killed at any moment, this leaves the old one or the new one, whole."""
    part = path.with_suffix(".part")
    with part.open("w", newline="") as file:
        file.write(above)
        csv.writer(file, lineterminator="\n").writerows([head, *rows])
    part.replace(path)


def replace_once(text: str, old: str, new: str, where: str) -> str:
    """The text with new instead of old, which is in there once."""
    if text.count(old) != 1:
        refuse(f"{where} has {text.count(old)} times {old!r}, not once")
    return text.replace(old, new)


def provenance(packages: list[str] = PACKAGES) -> str:
    """Commit of this repository, versions and hardware."""
    return sweep.provenance(packages, ROOT)


def subplots(rows: int, columns: int, size: tuple[float, float], layout: str | None = None, **settings):
    """A figure of so many inches, and its axes: without pyplot, which keeps figures and may want a screen."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout=layout)
    return figure, figure.subplots(rows, columns, **settings)


def fingerprint(*shown) -> str:
    """A hash of what a picture shows: the bytes of CSV files, and else what is printed of it."""
    parts = [x.read_bytes() if isinstance(x, Path) else repr(x).encode() for x in shown]
    return hashlib.sha256(b"\n".join(parts)).hexdigest()
