# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "torch==2.13.0",
#     "gymnasium[box2d,classic-control,mujoco,toy-text]==1.4.0",
#     "mujoco==4.0.0",
#     "box2d==2.3.10",
#     "ale-py==0.12.1",
#     "numpy==2.4.6",
#     "tyro==1.0.17",
#     "tensorboard==2.21.0",
#     "tqdm==4.70.1",
#     "filelock==4.2.11",
#     "wandb==0.31.0",
#     "moviepy==2.2.1",
#     "optuna==5.0.0",
#     "scipy==1.17.1",
# ]
# ///
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
import math
import shlex
import signal
import sys
import tomllib
import uuid
from pathlib import Path
from typing import NamedTuple

import compare
import numpy as np
import sweep
from diagnose import Damaged, read_run
from filelock import FileLock, Timeout

try:
    import optuna
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
    from optuna.storages.journal import JournalFileBackend, JournalStorage
    from optuna.trial import TrialState
except ModuleNotFoundError as missing:
    raise SystemExit(f"tune.py: {missing}; pip install -r tools/requirements.txt") from None

SPACE = Path(__file__).parent / "space.toml"
RUNGS = (1 / 8, 1 / 4, 1 / 2)  # A trial may be stopped after these parts of its steps.
STATES = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.RUNNING)  # Failed trials do not count.


class Search(NamedTuple):
    """The script whose flags are searched, and where its runs are."""

    script: str
    flags: list[str]  # All runs have them.
    space: dict  # It has the distribution of each flag.
    out: Path

    def plan(self, params: dict, seeds: list[int], kind: str = "") -> list[Path]:
        """Writes what the runs with these flags are into their folders, and returns the folders."""
        known = sweep.flags_of(self.script)
        words = [*self.flags]
        for name, value in params.items():
            drawn = isinstance(self.space[name], FloatDistribution)
            shown = f"{value:.4g}" if drawn else value  # Nobody needs all digits of what is drawn.
            words += sweep.words(self.script, known, name, shown)
        digest = hashlib.sha256(" ".join(words).encode()).hexdigest()
        out = self.out / (kind + digest[:10])
        settings = {"scripts": [self.script], "grid": {}, "seeds": seeds, "flags": words, "out": out}
        return sweep.plan(settings)


def read_space(path: Path, script: str, known: set[str]) -> dict:
    """Returns the distribution of each flag in a file; of the default file those the script has."""
    space = {}
    try:
        for name, values in tomllib.loads(path.read_text()).items():
            flag = f"--{name.replace('_', '-')}"
            if path == SPACE and flag not in known:
                continue
            sweep.words(script, known, name, "")  # It refuses a flag that is not known.
            space[name] = make_distribution(values)
    except (OSError, ValueError, TypeError, KeyError) as error:
        sweep.refuse(f"{path}: {error!r}")
    return space


def make_distribution(values: list | dict) -> optuna.distributions.BaseDistribution:
    """Returns the distribution of a list of values, or of a range."""
    if isinstance(values, list):
        return CategoricalDistribution(values)
    if isinstance(values["low"], int):
        return IntDistribution(**values)
    return FloatDistribution(**values)


def returns_at(folders: list[Path], step: float) -> float:
    """Returns the mean return of runs at a step, or at the end (inf); NaN if one has none there."""
    returns = [return_at(folder, step) for folder in folders]
    return float(np.mean(returns))


def return_at(folder: Path, step: float) -> float:
    """Returns the return of a run at a step, or at the end (inf); NaN if it has none there."""
    places = {path.parent for path in folder.rglob("*tfevents*")}
    try:
        logs = [read_run(place) for place in places]
    except Damaged as damage:
        sweep.refuse(str(damage))
    found = [run.series[name] for name in compare.SCORES for run in logs if run.has(name)]
    if not found:
        return math.nan
    steps, returns = found[0]
    if math.isinf(step):
        return returns[-1]
    if steps[-1] < step:  # The run has not come so far.
        return math.nan
    return returns[np.argmax(steps >= step)]


def do_trial(trial: optuna.Trial, folders: list[Path], total: float) -> tuple[str, float | None]:
    """Runs a trial with all seeds, until they end or a rung stops them.

    Returns what came of it, and the return.
    """
    rungs = list(enumerate(RUNGS))

    def is_enough() -> bool:
        """Reports the return at rungs that all runs have passed; returns whether one stops them."""
        while rungs:
            number, part = rungs[0]
            value = returns_at(folders, part * total)
            if math.isnan(value):
                return False
            rungs.pop(0)
            trial.report(value, number)
            if trial.should_prune():
                return True
        return False

    failed = sweep.run_all(folders, len(folders), is_enough)
    if failed:
        return "failed", None
    if not all(map(sweep.is_finished, folders)):
        return "stopped", None
    value = returns_at(folders, math.inf)
    if math.isnan(value):
        return "failed", None
    return "done", value


def open_study(out: Path, name: str, script: str) -> optuna.Study:
    """Returns the study in a folder, or begins it; all of its trials are of one version of the script."""
    out.mkdir(parents=True, exist_ok=True)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    journal = JournalFileBackend(str(out / "study.journal"))
    study = optuna.create_study(
        storage=JournalStorage(journal),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=5),
        study_name=name,
        load_if_exists=True,
        direction="maximize",
    )
    digest = sweep.digest_of(Path(script))
    of_another = study.user_attrs.get("sha256", digest) != digest
    if of_another and count_trials(study, TrialState.COMPLETE, TrialState.PRUNED):
        sweep.refuse(f"{script} has changed since its first trials; take another --out")
    study.set_user_attr("sha256", digest)
    return study


def go_on(study: optuna.Study, workers: Path) -> list[FileLock]:
    """Begins anew what killed processes have left, in the same folders; returns locks, to be kept.

    The first lock's name is that of this process, in its trials. Others can have the lock once this
    process is dead.
    """
    own = FileLock(workers / uuid.uuid4().hex)
    own.acquire()
    held = [own]
    for old in study.get_trials(states=[TrialState.RUNNING]):
        if "worker" in old.user_attrs:  # Without one it has just begun.
            lock = FileLock(workers / old.user_attrs["worker"], timeout=0)
            held.append(lock)
            with contextlib.suppress(Timeout):
                lock.acquire()
                study.tell(old.number, state=TrialState.FAIL, skip_if_finished=True)
                study.enqueue_trial(old.params)
    return held


def count_trials(study: optuna.Study, *states: TrialState) -> int:
    return len(study.get_trials(states=states))


def do_next(study: optuna.Study, search: Search, seeds: list[int], total: float, worker: str) -> str:
    """Asks the study for a trial, does it, and tells and returns what came of it."""
    trial = study.ask(search.space)
    trial.set_user_attr("worker", worker)
    folders = search.plan(trial.params, seeds)
    outcome, value = do_trial(trial, folders, total)
    states = {"done": TrialState.COMPLETE, "stopped": TrialState.PRUNED, "failed": TrialState.FAIL}
    study.tell(trial, value, states[outcome])
    shown = "" if value is None else f"{value:.4g} "
    print(f"trial {trial.number}: {outcome} {shown}{trial.params}", flush=True)
    return outcome


def compare_folders(found: Path, default: Path) -> None:
    """Prints the table of the best flags and the default ones."""
    runs = compare.read_source(f"found={found}") + compare.read_source(f"default={default}")
    for env, groups in compare.make_groups(runs).items():
        lines = compare.table(env, groups)
        print(*lines, sep="\n")


def main() -> None:
    """Reads the command line, searches, and shows the best on other seeds."""
    parser = sweep.Parser(__doc__)
    parser.add_argument("script", help="to be run; flags for all runs come last, after --")
    parser.add_argument("--trials", type=int, default=50, help="of all processes together")
    parser.add_argument("--seeds", default="1001-1003", help="kept for searching; they run at the same time")
    parser.add_argument("--report", default="1-5", help="other seeds, for the best and the default flags")
    parser.add_argument("--space", type=Path, default=SPACE, help="default: tools/space.toml")
    parser.add_argument("--out", type=Path, default=Path("runs/tune"), help="folder of the study")
    args, flags = parser.parse()
    seeds = sweep.parse_seeds(args.seeds)
    others = sweep.parse_seeds(args.report)
    total = sweep.total_of(flags)
    if not total:
        sweep.refuse("no --total-timesteps after --")
    if set(seeds) & set(others):
        sweep.refuse("--seeds and --report share a seed")
    known = sweep.check_script(args.script)
    sweep.check_flags(args.script, known, flags)
    space = read_space(args.space, args.script, known)
    search = Search(args.script, flags, space, args.out)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    study = open_study(args.out, shlex.join([args.script, *flags]), args.script)
    held = go_on(study, args.out / "workers")
    worker = Path(held[0].lock_file).name
    outcomes = []
    while count_trials(study, *STATES) < args.trials:
        outcomes.append(do_next(study, search, seeds, float(total), worker))
        if outcomes[-3:] == ["failed"] * 3:
            sweep.refuse("three trials have failed, one after the other; what is above says why")
    done = count_trials(study, TrialState.COMPLETE)
    stopped = count_trials(study, TrialState.PRUNED)
    if count_trials(study, TrialState.RUNNING):
        raise SystemExit("others are at work, the last shows the best")
    if not done:
        raise SystemExit("no trial has ended")
    found = search.plan(study.best_params, others, "found-")
    default = search.plan({}, others, "default-")
    sweep.run_all(found + default, sweep.cores())
    compare_folders(found[0].parent, default[0].parent)
    print(f"the best of {done} trials with seeds {args.seeds}, and of {stopped} that were stopped:")
    best = sweep.read_job(found[0])
    print("python", shlex.join([args.script, *best["flags"]]))


if __name__ == "__main__":
    main()
