"""What keeps a policy close, in the measure of the PPO paper: the table of docs/trust_regions.md.

    python benchmarks/learning_curves.py --table benchmarks/limits.toml    # 6 to 8 hours of 2 cores
    python benchmarks/results.py

In each env, returns are shifted and scaled so that a policy that does not learn has 0, and the best way 1,
both in the mean over seeds. The score of a way is the mean over envs of its mean over seeds (arXiv
1707.06347, section 6.1, which has the best result at 1, and does not say whether of a seed or in the mean).
"""

from pathlib import Path

import numpy as np
from common import ROOT, markdown
from compare import number, read_csv
from learning_curves import csv_path, read_table

TABLE = ROOT / "benchmarks/limits.toml"


def read_finals(table: Path = TABLE) -> dict[str, dict[str, np.ndarray]]:
    """{title of the way: {env: last 100 training episodes of the seeds that all ways have there}}, or {}."""
    runs, finals, common = read_table(table)["runs"], {}, {}
    results = {name: read_csv(csv_path(name, table)) for name in runs}
    for name, run in runs.items():
        seeds = set(results[name].rows)
        common[run["env"]] = common.get(run["env"], seeds) & seeds
    if not all(common.values()):
        return {}
    for name, run in runs.items():
        rows = {seed: results[name].rows[seed] for seed in sorted(common[run["env"]])}
        same = results[name]._replace(rows=rows)
        finals.setdefault(run["title"], {})[run["env"]] = same.finals(2)
    return finals


def normalise(finals: dict[str, dict[str, np.ndarray]]) -> dict[str, dict[str, np.ndarray]]:
    """The same, from 0 for the last way, which does not learn, to 1 for the best of the others in an env."""
    (*ways, (_, zeros)), scores = finals.items(), {}
    for env, zero in zeros.items():
        best = max(way[env].mean() for _, way in ways)
        for title, way in ways:
            scores.setdefault(title, {})[env] = (way[env] - zero.mean()) / (best - zero.mean())
    return scores


def table(finals: dict[str, dict[str, np.ndarray]]) -> str:
    """A row for each way: its score, and its mean return in each env, with the spread of several seeds."""
    *ways, zero = finals
    seeds = {env: len(found) for env, found in finals[zero].items()}
    rows, scores = [["seeds", "", *map(str, seeds.values())]], normalise(finals)
    for way in [*ways, zero]:
        score = f"**{np.mean([each.mean() for each in scores[way].values()]):.2f}**" if way in scores else "0"
        cells = []
        for env, several in seeds.items():
            mean, spread = finals[way][env].mean(), finals[way][env].std(ddof=1) if several > 1 else 0
            cells.append(number(mean, spread) + f" ± {number(spread, abs(mean))}" * (several > 1))
        rows.append([way, score, *cells])
    return markdown(["", "score", *(env.partition("-")[0] for env in seeds)], rows)


TABLES = {"limits": lambda: table(read_finals())}
