"""Which details matter? One of them is changed at a time, on five envs, with the same seeds for each change.

    python benchmarks/ablation.py                                  # all that is missing: days of a core
    python benchmarks/ablation.py --envs CartPole-v1 --changes nothing clip    # 20 runs, ten minutes
    python benchmarks/ablation.py --list                           # what there is, and what is done

The table is benchmarks/ablation.toml. tools/sweep.py does the runs, in runs/ablation; whatever stopped this
program, the same command goes on. A finished run is a row of results/ablation_runs.csv: the return of
the last episodes in training, its mean over all of training, and that of 20 episodes of evaluation. Then
benchmarks/results.py writes the page, and benchmarks/plot.py the picture.
"""

import itertools
import os
import re
import shlex
import signal
import sys
import tomllib
from pathlib import Path

import numpy as np
from common import (
    RESULTS,
    ROOT,
    SIZE,
    WIDTH,
    Parser,
    compare,
    markdown,
    provenance,
    read_dicts,
    refuse,
    replace_once,
    subplots,
    sweep,
    write_rows,
)
from compare import bootstrap, corrected, improvement, interval, number, style

TABLE = tomllib.loads((ROOT / "benchmarks/ablation.toml").read_text())
CSV = RESULTS / "ablation_runs.csv"
DETAILS = r"[DE]\d+"  # their tags
COLUMNS = ["env", "change", "seed", "final", "whole", "evaluation", "command", "made"]


def change_in(name: str, env: str) -> dict:
    """What a change is in an env: tag, what, flags, edits."""
    change = TABLE["changes"][name]
    return {"flags": "", "edits": []} | change | change.get("in", {}).get(env, {})


def is_possible(name: str, env: str) -> bool:
    change = TABLE["changes"][name]
    return change.get("script", TABLE["envs"][env]["script"]) == TABLE["envs"][env]["script"] and (
        env not in change.get("skip", [])
    )


def edited(name: str, script: str) -> str:
    """The script with the change in it."""
    text = (ROOT / script).read_text()
    for old, new in TABLE["changes"][name].get("edits", []):
        text = replace_once(text, old, new, f"{name}: {script}")
    return text


def command(name: str, env: str) -> list[str]:
    """The command line of a change after `python`, without seed and folder; an edited script is written."""
    script, change = TABLE["envs"][env]["script"], change_in(name, env)
    if change["edits"]:
        text, script = edited(name, script), f"runs/ablation/scripts/{name}/{script}"
        Path(script).parent.mkdir(parents=True, exist_ok=True)
        Path(script).write_text(text)
    flags = [*shlex.split(TABLE["envs"][env]["flags"]), *shlex.split(change["flags"])]  # the last one holds
    return [script, "--env-id", env, *flags, "--eval-episodes", "20"]


def of(rows: list[dict[str, str]], env: str, change: str, column: str) -> np.ndarray:
    """A number of each seed, in their order."""
    found = [row for row in rows if (row["env"], row["change"]) == (env, change)]
    return np.array([float(row[column]) for row in sorted(found, key=lambda row: int(row["seed"]))])


def collect(todo: dict[Path, dict]) -> None:
    """Make rows of the runs that are finished; they are not to do any more."""
    rows = read_dicts(CSV)
    for folder in [folder for folder in todo if sweep.is_finished(folder)]:
        row, run = todo.pop(folder), compare.read_folder(folder)
        curve = np.array([[x[1], x[2]] for x in run.rows], dtype=float)
        row |= {"final": f"{curve[-1, 1]:.6g}", "whole": f"{np.nanmean(curve[:, 1]):.6g}"}
        rows.append(row | {"evaluation": f"{float(run.rows[-1][3]):.6g}", "made": run.made})
    order = {name: k for k, name in enumerate([*TABLE["envs"], *TABLE["changes"]])}
    rows.sort(key=lambda row: (order[row["env"]], order[row["change"]], int(row["seed"])))
    write_rows(CSV, COLUMNS, ([row[name] for name in COLUMNS] for row in rows))


def complete(rows: list[dict[str, str]], env: str) -> list[str]:
    """The changes in an env of which all seeds are there, if those without any change are."""
    wanted = len(sweep.parse_seeds(TABLE["envs"][env]["seeds"]))
    done = [name for name in TABLE["changes"] if len(of(rows, env, name, "whole")) == wanted]
    return done if "nothing" in done else []


def default_of(flag: str, env: str) -> float:
    """The value of a flag in the runs without any change."""
    script, words = TABLE["envs"][env]["script"], shlex.split(TABLE["envs"][env]["flags"])
    usual = {"clip_coef": 0.2, "update_epochs": 4 if script == "ppo_discrete.py" else 10}
    given = dict(itertools.pairwise(words))
    return float(given.get(f"--{flag.replace('_', '-')}", usual[flag]))


def measured(tags: str) -> dict[str, dict[str, tuple[str, np.ndarray, tuple]]]:
    """{change: {env: tag, returns over all of training, how probably better, and p, of as many tests}}."""
    rows, tests = read_dicts(CSV), []
    for env in TABLE["envs"]:
        base = of(rows, env, "nothing", "whole")
        for name in complete(rows, env):
            change, values = change_in(name, env), of(rows, env, name, "whole")
            if name != "nothing" and re.fullmatch(tags, change["tag"]):
                tests.append((change, env, values, *improvement(values, base)))
    chances, found = corrected([p for *_, p in tests]), {}
    for (change, env, values, better, _), p in zip(tests, chances, strict=True):
        found.setdefault(change["what"], {})[env] = change["tag"], values, (better, p)
    return found


def mark(better: float, p: float) -> str:
    """What a reader is told: worse or better than without the change, or nothing, for it may be chance."""
    if p > 0.05:
        return ""
    return "worse" if better < 0.5 else "better"


def chance(envs: dict[str, tuple]) -> float:
    """How probably a seed is better with a change, in the mean over envs: the most harmful has the least."""
    return np.mean([better[0] for _, _, better in envs.values()])


def overview(what: str) -> str:
    """Details, or values of one flag, in all envs: returns over all of training, in the mean over seeds.

    In bold print: seeds are worse than without the change, by more than chance; with an arrow: better.
    """
    rows, details = read_dicts(CSV), what == "details"
    found = measured(DETAILS if details else what)
    base = {env: of(rows, env, "nothing", "whole") for env in TABLE["envs"] if complete(rows, env)}
    lines = {"nothing changed": ["", "nothing changed", *(number(x.mean()) for x in base.values())]}
    for change in sorted(found, key=lambda change: chance(found[change])):
        tags = ", ".join(dict.fromkeys(tag for tag, *_ in found[change].values()))
        line = lines[change] = [tags, change]
        for env in base:
            _, values, test = found[change].get(env, ("", None, (0.5, 1)))
            shown = "" if values is None else number(values.mean())
            line.append({"worse": f"**{shown}**", "better": f"{shown}\xa0↑", "": shown}[mark(*test)])
    heads = ["tag", "change", *(env.partition("-")[0] for env in base)]
    if details:
        return markdown(heads, lines.values())
    for n, env in enumerate(base, 2):  # nothing changed is a value of the flag, in each env another one
        default = f"{default_of(what, env):g}"
        lines.setdefault(default, ["", default, *[""] * len(base)])[n] = (
            lines["nothing changed"][n] + " (default)"
        )
    del lines["nothing changed"]
    flag = f"`--{what.replace('_', '-')}`"
    return markdown([flag, *heads[2:]], (lines[x][1:] for x in sorted(lines, key=float)))


def ranking(env: str) -> str:
    """Details of one env, by how much is lost: over all of training, and by the final policy."""
    rows, lines = read_dicts(CSV), []
    base = of(rows, env, "nothing", "whole")
    names = complete(rows, env)
    names = [x for x in names if x == "nothing" or re.fullmatch(DETAILS, change_in(x, env)["tag"])]
    names.sort(key=lambda name: -of(rows, env, name, "whole").mean())
    for name in names:
        change, whole = change_in(name, env), of(rows, env, name, "whole")
        better, p = improvement(whole, base)
        beside = ["", ""] if name == "nothing" else [f"{better:.2f}", f"{p:.2g}"]
        evaluation = of(rows, env, name, "evaluation")
        both = [f"{number(x.mean())} {interval(x)}" for x in (whole, evaluation)]
        lines.append([change["tag"], change["what"], *both, *beside])
    heads = ["tag", "change", "all of training", "final policy", "better than unchanged", "p"]
    return markdown(heads, lines)


CURVES = {"clip_coef": "the clip, ε", "update_epochs": "epochs"}  # tags of changes that are numbers


def draw(theme: dict):
    """A panel for each env: returns over all of training with each detail changed; below, both curves."""
    rows, details, curves = read_dicts(CSV), measured(DETAILS), {tag: measured(tag) for tag in CURVES}
    envs = [env for env in TABLE["envs"] if complete(rows, env)]
    order = sorted(details, key=lambda change: -chance(details[change]))  # the first is at the bottom
    figure, grid = subplots(
        2, len(envs), (WIDTH, 0.24 * len(order) + 3.4), squeeze=False, height_ratios=[2.2, 1]
    )
    figure.subplots_adjust(left=0.36, right=0.98, top=0.94, bottom=0.08, hspace=0.3, wspace=0.25)
    for env, (above, below) in zip(envs, grid.T, strict=True):
        base = of(rows, env, "nothing", "whole")
        style(above, env.partition("-")[0], theme, "x")
        above.axvspan(*bootstrap(base), color=theme["muted"], alpha=0.2, linewidth=0)
        for y, change in enumerate(order):
            if env in details[change]:
                _, values, test = details[change][env]
                colour = theme["other"] if mark(*test) == "worse" else theme["ours"]
                above.plot(bootstrap(values), [y, y], color=colour, linewidth=1.6)
                above.plot(values, [y] * len(values), "|", color=colour, markersize=5, alpha=0.5)
                above.plot(values.mean(), y, "o", color=colour, markersize=4.5)
        left, right = above.get_xlim()
        above.set_xlim(min(left, 0), max(right, 0))
        above.locator_params(axis="x", nbins=3)
        above.set_yticks(range(len(order)), order if env == envs[0] else [""] * len(order))
        above.set_ylim(-0.6, len(order) - 0.4)
        style(below, "", theme, "y")
        for tag, colour in zip(CURVES, (theme["ours"], theme["other"]), strict=True):
            there = {float(x): found[env][1] for x, found in curves[tag].items() if env in found}
            points = {x / default_of(tag, env): values for x, values in there.items()} | {1.0: base}
            if there:
                x = sorted(points)
                below.plot(x, [points[k].mean() for k in x], "o-", color=colour, linewidth=1.6, markersize=3)
                bands = np.array([bootstrap(points[k]) for k in x]).T
                below.fill_between(x, *bands, color=colour, alpha=0.2, linewidth=0, label=CURVES[tag])
        below.set_xscale("log")
        below.set_xlim(0.08, 10)
        below.set_xticks([0.1, 0.25, 0.5, 1, 2, 5], ["⅒", "¼", "½", "1", "2", "5"])
        below.minorticks_off()
        for label in below.get_yticklabels():  # they hide the grid of the panel before
            label.set_bbox({"facecolor": theme["page"], "edgecolor": "none", "pad": 1})
    words = dict(frameon=False, labelcolor=theme["ink"], fontsize=SIZE, title="as multiples of the default:")
    legend = grid[1, 0].legend(loc="center right", bbox_to_anchor=(-0.3, 0.5), title_fontsize=SIZE, **words)
    legend.get_title().set_color(theme["muted"])
    words = "point: mean of the seeds, each a stroke; line: its 95 % interval; grey: nothing changed;"
    words += " orange: worse by more than chance"
    figure.text(0.01, 0.015, words, color=theme["muted"], size=SIZE)
    return figure


def table(what: str) -> str:
    """All details, or values of one flag, in all envs; or the details in one env."""
    return ranking(what) if what in TABLE["envs"] else overview(what)


SHOWN = [CSV, TABLE]  # by the picture


def main() -> None:
    """Read the command line, and do what it says."""
    parser = Parser(__doc__)
    parser.add_argument("--envs", nargs="+", default=list(TABLE["envs"]), choices=list(TABLE["envs"]))
    parser.add_argument(
        "--changes", nargs="+", default=list(TABLE["changes"]), choices=list(TABLE["changes"])
    )
    parser.add_argument("--seeds", help="like 1-3; default: those of the table")
    parser.add_argument("--workers", type=sweep.positive, default=sweep.cores(), help="runs at a time")
    parser.add_argument("--list", action="store_true", help="show what is done, run nothing")
    args = parser.parse_args()
    os.chdir(ROOT)
    rows, todo, jobs = read_dicts(CSV), {}, {}
    for env in args.envs:
        for name in filter(lambda name: is_possible(name, env), args.changes):
            line, seeds = command(name, env), sweep.parse_seeds(args.seeds or TABLE["envs"][env]["seeds"])
            there = [r for r in rows if (r["env"], r["change"]) == (env, name) and int(r["seed"]) in seeds]
            if any(row["command"] != shlex.join(line) for row in there):
                refuse(f"{CSV}: {name} in {env} was made with another command; delete its rows first")
            if args.list:
                print(f"{len(there):3} of {len(seeds):3}  {env:15} {name:14} {change_in(name, env)['what']}")
            for seed in set(seeds) - {int(row["seed"]) for row in there}:
                folder = Path(f"runs/ablation/{env}__{name}__{seed}").absolute()
                jobs[folder] = sweep.make_job(line[0], line[1:], seed, True, provenance())
                todo[folder] = {"env": env, "change": name, "seed": seed, "command": shlex.join(line)}
    if args.list:
        return
    sweep.prepare(jobs)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    collect(todo)
    failed = sweep.run_all(list(todo), args.workers, lambda: collect(todo))
    collect(todo)
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
