"""A search for flags: trials by Optuna, the worse ones stopped early, the best shown on seeds it never saw.

    python tools/tune.py ppo_discrete.py --trials 50 -- --env-id LunarLander-v3 --total-timesteps 300_000
    python tools/tune.py my_ppo.py --space space.toml --seeds 1001-1003 -- --total-timesteps 100_000

A trial is a run with each seed; its value is their mean return at the end. At an eighth, a quarter and half
of its steps it is stopped if it is below the median of those before. The space has a line for each flag, like
learning_rate = {low = 1e-5, high = 1e-2, log = true} or gamma = [0.98, 0.99]. The same command goes on with a
study that was killed, and several at once share it.
"""

import contextlib
import hashlib
import itertools
import json
import math
import os
import shlex
import signal
import sys
import tomllib
import uuid
from pathlib import Path

import compare
import numpy as np
import optuna
import sweep
from diagnose import read_run
from filelock import FileLock, Timeout
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages.journal import JournalFileBackend, JournalStorage
from optuna.trial import TrialState

SPACE = Path(__file__).parent / "space.toml"
RUNGS = (1 / 8, 1 / 4, 1 / 2)  # of all steps


def read_space(path: Path, script: str, known: set[str]) -> dict:
    """{flag: distribution}, as in a file; of the default one those that the script has."""
    space = {}
    try:
        for name, x in tomllib.loads(path.read_text()).items():
            if path == SPACE and f"--{name.replace('_', '-')}" not in known:
                continue
            sweep.words(script, known, name, "")  # which refuses a flag that is not known
            if isinstance(x, list):
                space[name] = CategoricalDistribution(x)
            else:
                space[name] = (IntDistribution if isinstance(x["low"], int) else FloatDistribution)(**x)
    except (OSError, ValueError, TypeError, KeyError) as error:
        sweep.refuse(f"{path}: {error!r}")
    return space


def returns_at(folders: list[Path], steps: float) -> float:
    """The mean return of runs at a step, or at the end (inf); NaN if one has none there, or not yet."""
    found = []
    for folder in folders:
        runs = [read_run(place) for place in {path.parent for path in folder.rglob("*tfevents*")}]
        curves = [run.series["episode_return"] for run in runs if run.has("episode_return")]
        at, values = curves[0] if curves else ([], [])
        later = [value for step, value in zip(at, values, strict=True) if step >= min(steps, at[-1])]
        found.append(later[0] if later and (math.isinf(steps) or at[-1] >= steps) else math.nan)
    return float(np.mean(found))


def do_trial(trial: optuna.Trial, folders: list[Path], total: float) -> tuple[str, float | None]:
    """Run a trial with all seeds, until they end or a rung stops them -> what came of it, and the return."""
    rungs = list(enumerate(RUNGS))

    def is_enough() -> bool:
        while rungs and not math.isnan(value := returns_at(folders, rungs[0][1] * total)):
            trial.report(value, rungs.pop(0)[0])
            if trial.should_prune():
                return True
        return False

    failed = sweep.run_all(folders, len(folders), is_enough)
    if not failed and not all(map(sweep.is_finished, folders)):
        return "stopped", None
    value = math.nan if failed else returns_at(folders, math.inf)
    return ("failed", None) if math.isnan(value) else ("done", value)


def go_on(study: optuna.Study, workers: Path) -> list[FileLock]:
    """Begin anew what killed processes have left, in the same folders -> locks, to be kept.

    The first one's name is that of this process, in its trials. Others can have it once this process is dead.
    """
    held = [FileLock(workers / uuid.uuid4().hex)]
    held[0].acquire()
    for old in study.get_trials(states=[TrialState.RUNNING]):
        if "worker" in old.user_attrs:  # else it has just begun
            held.append(FileLock(workers / old.user_attrs["worker"], timeout=0))
            with contextlib.suppress(Timeout):
                held[-1].acquire()
                study.tell(old.number, state=TrialState.FAIL, skip_if_finished=True)
                study.enqueue_trial(old.params)
    return held


def main() -> None:
    """Read the command line, search, and show the best on other seeds."""
    parser = sweep.Parser(__doc__)
    parser.add_argument("script", help="to be run; flags for all runs come last, after --")
    parser.add_argument("--trials", type=int, default=50, help="of all processes together")
    parser.add_argument("--seeds", default="1001-1003", help="kept for searching; they run at the same time")
    parser.add_argument("--report", default="1-5", help="other seeds, for the best and the default flags")
    parser.add_argument("--space", type=Path, default=SPACE, help="default: tools/space.toml")
    parser.add_argument("--out", type=Path, default=Path("runs/tune"), help="folder of the study")
    args, flags = parser.parse()
    seeds, others = sweep.parse_seeds(args.seeds), sweep.parse_seeds(args.report)
    total = dict(itertools.pairwise(flags)).get("--total-timesteps")
    if total is None or set(seeds) & set(others):
        sweep.refuse("--seeds and --report share a seed" if total else "no --total-timesteps after --")
    known = sweep.flags_of(args.script)
    space = read_space(args.space, args.script, known)

    def plan(params: dict, seeds: list[int], kind: str = "") -> list[Path]:
        words = [*flags]
        for name, x in params.items():  # what is drawn from a range has more digits than anyone needs
            drawn = isinstance(space[name], FloatDistribution)
            words += sweep.words(args.script, known, name, f"{x:.4g}" if drawn else x)
        out = args.out / (kind + hashlib.sha256(" ".join(words).encode()).hexdigest()[:10])
        settings = {"scripts": [args.script], "grid": {}, "seeds": seeds, "flags": words, "out": out}
        return sweep.plan(settings)

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    args.out.mkdir(parents=True, exist_ok=True)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        storage=JournalStorage(JournalFileBackend(str(args.out / "study.journal"))),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=5),
        study_name=shlex.join([args.script, *flags]),
        load_if_exists=True,
        direction="maximize",
    )
    held = go_on(study, args.out / "workers")
    states = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.RUNNING)
    while len(study.get_trials(states=states)) < args.trials:
        trial = study.ask(space)
        trial.set_user_attr("worker", Path(held[0].lock_file).name)
        what, value = do_trial(trial, plan(trial.params, seeds), float(total))
        study.tell(trial, value, TrialState.PRUNED if value is None else TrialState.COMPLETE)
        shown = "" if value is None else f"{value:.4g} "
        print(f"trial {trial.number}: {what} {shown}{trial.params}", flush=True)
    done, stopped, running = (len(study.get_trials(states=[state])) for state in states)
    if running or not done:
        raise SystemExit("others are at work, the last shows the best" if running else "no trial has ended")
    found, defaults = plan(study.best_params, others, "found-"), plan({}, others, "default-")
    sweep.run_all(found + defaults, os.cpu_count())
    sources = (f"found={found[0].parent}", f"default={defaults[0].parent}")
    runs = [run for source in sources for run in compare.read_source(source)]
    for env, groups in compare.make_groups(runs).items():
        print(*compare.table(env, groups), sep="\n")
    print(f"the best of {done} trials with seeds {args.seeds}, and of {stopped} that were stopped:")
    print("python", shlex.join([args.script, *json.loads((found[0] / "sweep.json").read_text())["flags"]]))


if __name__ == "__main__":
    main()
