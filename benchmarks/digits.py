"""Whether a seed gives the same digits on other processors, for docs/operations.md.

    python benchmarks/digits.py             # two minutes of a core; adds this processor to results/digits.csv
    python benchmarks/results.py            # writes the page

Libraries choose their kernels by the processor, and kernels round differently. Each script makes a short
run under each setting. The hash of all weights says whether two runs ended with the same bits.
"""

import hashlib
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from common import RESULTS, ROOT, Parser, markdown, read_dicts, write_rows

RUNS = {
    "MLP": "ppo_continuous.py --env-id Pendulum-v1 --total-timesteps 20_480",
    "CNN": "ppo_atari.py --env-id BreakoutNoFrameskip-v4 --total-timesteps 2_048",
    "transformer": "variants/grpo.py --sft-steps 10 --total-episodes 512 --eval-episodes 0",
}
SETTINGS = [
    "",
    "ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_CBWR=AVX2,STRICT",
    "ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_CBWR=COMPATIBLE",
]
COLUMNS = ["processor", "setting", "run", "hash", "core_seconds", "torch"]


def processor() -> str:
    """Name, family and model of this machine's processor: one name stands for several generations."""
    text = Path("/proc/cpuinfo").read_text("utf-8")
    name, family, model = (
        re.findall(rf"^{key}\s*: (.*)", text, re.M)[0] for key in ("model name", "cpu family", "model")
    )
    return f"{name} ({int(family):x}h, {int(model):x}h)"


def measure(setting: str, run: str) -> tuple[str, float]:
    """The hash of the weights that a run ends with, and the seconds that cores worked for it."""
    env = os.environ | dict(pair.split("=") for pair in setting.split())
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, *RUNS[run].split(), "--seed", "1", "--run-dir", f"{folder}/run"]
        process = subprocess.Popen(words, cwd=ROOT, env=env, stdout=subprocess.DEVNULL)
        _, status, spent = os.wait4(process.pid, 0)
        if status:
            raise SystemExit(f"digits.py: {' '.join(words)} has failed")
        agent = torch.load(f"{folder}/run/checkpoint.pt", weights_only=False)["agent"]
    digest = hashlib.sha256()
    for name in sorted(agent):
        digest.update(agent[name].numpy().tobytes())
    return digest.hexdigest()[:12], spent.ru_utime + spent.ru_stime


def table() -> str:
    """For each setting and processor: the hash of each run, and its time beside the run without a setting."""
    rows, plain = {}, {}
    for row in read_dicts(RESULTS / "digits.csv"):
        seconds = float(row["core_seconds"])
        cost = seconds / plain.setdefault((row["processor"], row["run"]), seconds)
        setting = f"`{row['setting']}`" if row["setting"] else "none"
        cells = rows.setdefault((setting, row["processor"]), {})
        cells[row["run"]] = f"`{row['hash']}` ({cost:.2f})"
    order = sorted(rows, key=lambda key: (key[0] != "none", key))
    return markdown(["setting", "processor", *RUNS], ([*key, *rows[key].values()] for key in order))


def main() -> None:
    """Measure this processor."""
    Parser(__doc__).parse_args()
    path, here = RESULTS / "digits.csv", processor()
    rows = [row for row in read_dicts(path) if row["processor"] != here]
    for setting in SETTINGS:
        for run in RUNS:
            digits, seconds = measure(setting, run)
            cells = [here, setting, run, digits, f"{seconds:.1f}", torch.__version__]
            rows.append(dict(zip(COLUMNS, cells, strict=True)))
            print(*cells, flush=True)
    write_rows(path, COLUMNS, ([row[name] for name in COLUMNS] for row in rows))


if __name__ == "__main__":
    main()
