"""What the programs in this folder do with their command lines."""

import argparse
import sys
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).parents[1]


def refuse(mistake: str) -> NoReturn:
    """Say in one line what is wrong, and exit."""
    print(f"{Path(sys.argv[0]).name}: {' '.join(mistake.split())}", file=sys.stderr)
    raise SystemExit(2)


class Parser(argparse.ArgumentParser):
    """Its help is the program's docstring, and a mistake costs one line."""

    def __init__(self, doc: str) -> None:
        super().__init__(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)

    def error(self, message: str) -> NoReturn:
        refuse(message)
