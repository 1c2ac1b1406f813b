"""Copies between the CPU and an accelerator in an iteration of each script: a table of docs/performance.md.

    pip install -r tests/requirements.txt
    python benchmarks/copies.py && python benchmarks/results.py    # a minute, on any machine

The accelerator is the pretended one of the tests, which count the same: tests/test_devices.py.
"""

import sys
import tempfile
from pathlib import Path

from common import RESULTS, ROOT, Parser, markdown, read_rows, write_rows

CSV = RESULTS / "copies.csv"
COLUMNS = ["script", "part", "to_device", "to_host"]
PARTS = {  # of an iteration: as they are called in the table
    "step": "a step",
    "time limit": "a time limit",
    "batch": "the rollout",
    "epoch": "an epoch",
    "gradient step": "a gradient step",
    "conjugate gradient": "an iteration of conjugate gradients",
    "line search": "a try of the line search",
    "log": "the log",
}


def table() -> str:
    """The table as Markdown: a row for each script, a column for each part; to the device / to the host."""
    counts = {}
    for script, part, *numbers in read_rows(CSV):
        counts.setdefault(script, {})[part] = " / ".join(numbers)
    rows = [[f"`{script}.py`", *(parts.get(part, "") for part in PARTS)] for script, parts in counts.items()]
    return markdown(["", *PARTS.values()], rows)


TABLES = {"copies": table}


def main() -> None:
    """Count, and write the CSV file."""
    Parser(__doc__).parse_args()
    sys.path.insert(0, str(ROOT / "tests"))
    import test_devices
    from conftest import name_of

    test_devices.start_process()
    rows = []
    for script in test_devices.ALL:
        with tempfile.TemporaryDirectory() as folder:
            counts = test_devices.count_copies(script.__name__, Path(folder))
        rows += [
            [name_of(script), part, *(f"{x:g}" for x in counts[part])] for part in PARTS if part in counts
        ]
    write_rows(CSV, COLUMNS, rows)


if __name__ == "__main__":
    main()
