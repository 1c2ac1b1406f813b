"""Whether a seed gives the same digits on other processors, for docs/operations.md.

    python benchmarks/digits.py     # four minutes of a core; adds this processor to results/digits.csv
    python benchmarks/results.py    # writes the page

Libraries choose their kernels by the processor, and kernels round differently. Each script makes a short
run under each setting, twice. The hash of all weights says whether two runs ended with the same bits.
"""

import hashlib
import os
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from common import RESULTS, ROOT, Parser, markdown, provenance, read_dicts, write_rows

RUNS = {
    "MLP": "ppo_continuous.py --env-id Pendulum-v1 --total-timesteps 20_480",
    "CNN": "ppo_atari.py --env-id BreakoutNoFrameskip-v4 --total-timesteps 2_048",
    "transformer": "variants/grpo.py --sft-steps 10 --total-episodes 512 --eval-episodes 0",
}
TORCH = "ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2"
NUMPY = "NPY_DISABLE_CPU_FEATURES=X86_V4,AVX512_ICL,AVX512_SPR OPENBLAS_CORETYPE=Haswell"
SETTINGS = {
    "none": "",
    "AVX2": f"{TORCH} MKL_CBWR=AVX2,STRICT {NUMPY}",
    "compatible": f"{TORCH} MKL_CBWR=COMPATIBLE {NUMPY}",
}
PACKAGES = ["torch", "transformers", "gymnasium", "numpy", "mujoco", "ale-py"]
COLUMNS = ["processor", "setting", "run", "hash", "core_seconds", "made"]
ROUNDS = 2


def processor() -> str:
    """Name, family and model of this machine's processor: one name stands for several generations."""
    text = Path("/proc/cpuinfo").read_text("utf-8") if Path("/proc/cpuinfo").exists() else ""
    found = [re.search(rf"^{key}\s*: (.*)", text, re.M) for key in ("model name", "cpu family", "model")]
    if not all(found):
        return platform.processor() or platform.machine()
    name, family, model = (match[1] for match in found)
    return f"{name} ({int(family):x}h, {int(model):x}h)"


def measure(setting: str, run: str) -> tuple[str, float]:
    """The hash of the weights that a run ends with, and the seconds that cores worked for it."""
    names = [pair.partition("=")[0] for pair in " ".join(SETTINGS.values()).split()]
    env = {name: value for name, value in os.environ.items() if name not in names}
    env |= dict(pair.split("=") for pair in SETTINGS[setting].split())
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
    """For each setting and processor: the hashes of each run, and its shortest time, without setting = 1."""
    rows, plain = {}, {}
    for row in read_dicts(RESULTS / "digits.csv"):
        seconds = plain.setdefault((row["processor"], row["run"], row["setting"]), [])
        seconds.append(float(row["core_seconds"]))
        cells = rows.setdefault((row["setting"], row["processor"]), {})
        hashes, _ = cells.get(row["run"], ([], 0))
        cost = min(seconds) / min(plain[row["processor"], row["run"], "none"])
        cells[row["run"]] = (sorted({*hashes, row["hash"]}), cost)
    lines = []
    order = [*SETTINGS]
    for setting, where in sorted(rows, key=lambda key: (order.index(key[0]), key[1])):
        cells = rows[setting, where].values()
        lines.append([setting, where, *(f"`{' '.join(hashes)}` ({cost:.2f})" for hashes, cost in cells)])
    shown = [f"- {name}: `{variables}`" for name, variables in SETTINGS.items() if variables]
    return "\n".join([markdown(["setting", "processor", *RUNS], lines), "", *shown])


def main() -> None:
    """Measure this processor."""
    Parser(__doc__).parse_args()
    path, here, made = RESULTS / "digits.csv", processor(), provenance(PACKAGES)
    rows = [row for row in read_dicts(path) if row["processor"] != here]
    for setting in SETTINGS:
        for run in [*RUNS] * ROUNDS:
            digits, seconds = measure(setting, run)
            cells = [here, setting, run, digits, f"{seconds:.1f}", made]
            rows.append(dict(zip(COLUMNS, cells, strict=True)))
            print(*cells, flush=True)
    write_rows(path, COLUMNS, ([row[name] for name in COLUMNS] for row in rows))


if __name__ == "__main__":
    main()
