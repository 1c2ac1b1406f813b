"""What the programs in this folder share with those in tools/."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tools"))
import compare  # noqa: E402, F401
import sweep  # noqa: E402, F401
from sweep import Parser, refuse  # noqa: E402, F401
