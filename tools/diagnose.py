# /// script
# requires-python = ">=3.11"
# dependencies = ["matplotlib==3.11.2", "numpy==2.4.6", "tensorboard==2.21.0"]
# ///
"""What went wrong? Looks at the logs of a run, and says it in words and in a picture.

    python tools/diagnose.py runs/NAME     # the worst first; report.png is in the run's folder
    python tools/diagnose.py runs          # all runs in there: overlaid, and compared in a table
    python tools/diagnose.py runs/NAME --dark

It reads what every script here writes, and the TensorBoard files of CleanRL and stable-baselines3. A run may
still be going on. What each rule looks for, and how often it is right, is in docs/diagnose.md.
"""

import argparse
import json
import math
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.tensorflow_stub.errors import DataLossError, OutOfRangeError
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import PyRecordReader_New

# Other programs have their own names for our metrics.
CLEANRL = {
    "charts/episodic_return": "episode_return",
    "charts/episodic_length": "episode_length",
    "charts/learning_rate": "learning_rate",
    "losses/approx_kl": "kl",
    "losses/clipfrac": "clip_frac",
    "losses/entropy": "entropy",
    "losses/explained_variance": "explained_variance",
    "losses/value_loss": "value_loss",
}
SB3 = {
    "rollout/ep_rew_mean": "episode_return",
    "rollout/ep_len_mean": "episode_length",
    "train/learning_rate": "learning_rate",
    "train/approx_kl": "kl",
    "train/clip_fraction": "clip_frac",
    "train/entropy_loss": "entropy",
    "train/explained_variance": "explained_variance",
    "train/value_loss": "value_loss",
}
NAMES = CLEANRL | SB3
PANELS = [
    ("episode_return", "score", "exact"),
    ("kl", "clip_frac"),
    ("entropy", "finished"),
    ("value_loss", "ref_kl", "reward_clip_frac"),
    ("explained_variance", "signal"),
    ("grad_norm", "learning_rate"),
]
LIGHT = {
    "page": "#ffffff",
    "ink": "#1f2328",
    "grid": "#e4e8ec",
    "trouble": "#cf222e",
    "lines": ["#0969da", "#bc4c00", "#1a7f37"],
    "darker": 0.2,  # Several runs have shades, which are darker on a light page.
}
DARK = {
    "page": "#0d1117",
    "ink": "#f0f6fc",
    "grid": "#262c34",
    "trouble": "#f85149",
    "lines": ["#58a6ff", "#f0883e", "#3fb950"],
    "darker": 0,
}


Points = dict[str, dict[int, float]]  # A tag has a value at each step.
Series = tuple[np.ndarray, np.ndarray]  # These are steps and values, of the same length.


class Run(NamedTuple):
    """The logs of a run."""

    folder: Path
    args: dict
    series: dict[str, Series]
    seconds: float  # Pauses do not count.
    job: dict = {}  # What a sweep wrote about the run; {} if the run is of no sweep.

    def has(self, *names: str) -> bool:
        """Returns whether all of these series were logged."""
        return all(name in self.series for name in names)

    def steps(self, name: str) -> np.ndarray:
        return self.series[name][0]

    def values(self, name: str) -> np.ndarray:
        return self.series[name][1]

    def finite(self, name: str) -> Series:
        """Returns steps and values of a series, without values that are not finite."""
        steps, values = self.series[name]
        kept = np.isfinite(values)
        return steps[kept], values[kept]

    def flag(self, name: str, default: float) -> float:
        """Returns the value of a flag, or the default if there is none that is a number."""
        try:
            return float(self.args[name])
        except (KeyError, TypeError, ValueError):
            return default

    def objective(self) -> str:
        """Returns the name of the series that a run is to raise; language models have a score."""
        return "score" if self.has("score") else "episode_return"

    def last_step(self) -> int:
        return max(steps[-1] for steps, _ in self.series.values())

    def updates(self) -> int:
        """Returns how many updates there were."""
        names = [name for name in ("kl", "entropy", "value_loss", "score") if self.has(name)]
        if not names:  # Others may log nothing but the returns of episodes or evaluations.
            names = list(self.series)
        return max(len(self.values(name)) for name in names)

    def late(self, name: str, share: float = 0.5) -> float:
        """Returns the median of the last part of the run, or NaN if nothing there is finite."""
        values = self.values(name)
        begin = int(len(values) * (1 - share))
        late = values[begin:]
        late = late[np.isfinite(late)]
        return float(np.median(late)) if len(late) else math.nan


class Finding(NamedTuple):
    """What a rule has found."""

    badness: float  # It is so many times as bad as the threshold, at least once.
    first: int  # It begins at this step.
    evidence: str  # These are the numbers that show it.
    panel: int  # It can be seen in this panel of the picture.


def refuse(mistake: str) -> NoReturn:
    """Says in one line what is wrong, and exits."""
    print(f"diagnose.py: {' '.join(mistake.split())}", file=sys.stderr)
    raise SystemExit(2)


class Damaged(ValueError):
    """A file of a run cannot be read, or is not as it was written."""


def read_run(folder: Path) -> Run:
    """Returns the logs in a folder; raises Damaged."""
    try:
        points, flags, times = read_events(folder)
        args = read_args(folder, flags)
        job = find_job(folder)
    except Exception as error:
        raise Damaged(f"{folder}: {type(error).__name__}: {error}") from error
    series = make_series(points)
    shown = {name for panel in PANELS for name in panel}
    if not shown & set(series):
        series = {}
    return Run(folder, args, series, sum(times), job)


def find_job(folder: Path) -> dict:
    """Returns what a sweep wrote into a run's folder or one above; {} if the run is of no sweep."""
    for place in (folder, *folder.parents):
        path = place / "sweep.json"
        if path.exists():
            return dict(json.loads(path.read_text(encoding="utf-8")))
    return {}


def read_events(folder: Path) -> tuple[Points, str, list[float]]:
    """Returns the points in TensorBoard files, CleanRL's flags, and how long each file was written.

    If a step is there twice, as after a resume, its last value counts.
    """
    points = {}
    flags = ""
    times = []
    for path in sorted(folder.glob("*tfevents*")):
        events = list(read_records(path))
        if events:  # Pauses between files do not count.
            times.append(events[-1].wall_time - events[0].wall_time)
        for event in events:
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    points.setdefault(value.tag, {})[event.step] = value.simple_value
                elif value.tag == "hyperparameters/text_summary":
                    flags = value.tensor.string_val[0].decode()
    return points, flags, times


def read_records(path: Path) -> Iterator[Event]:
    """Yields what a TensorBoard file has; a record with a wrong checksum is an error.

    TensorBoard's own reader ends there without a word. A last record that is cut off belongs to a run that
    still writes it, or was killed.
    """
    reader = PyRecordReader_New(str(path))
    while True:
        try:
            reader.GetNext()
        except OutOfRangeError:
            return
        except DataLossError as error:
            if "truncated" in str(error):
                return
            raise
        yield Event.FromString(reader.record())


def read_args(folder: Path, flags: str) -> dict:
    """Returns the flags of a run, from our file or from CleanRL's table in Markdown."""
    path = folder / "args.json"
    if path.exists():
        return dict(json.loads(path.read_text()))
    return dict(re.findall(r"^\|(\w+)\|(.*)\|$", flags, re.M))


def make_series(points: Points) -> dict[str, Series]:
    """Returns the series of these points, by our names."""
    series = {}
    for tag, values_at in points.items():
        steps = np.array(sorted(values_at))
        values = np.array([values_at[step] for step in steps])
        if tag == "train/entropy_loss":
            values = -values
        series[NAMES.get(tag, tag)] = (steps, values)
    if "charts/episodic_return" in points:  # CleanRL logs each episode alone.
        for name in ("episode_return", "episode_length"):
            if name in series:
                steps, values = series[name]
                series[name] = (steps, mean_of_last_100(values))
    return series


def mean_of_last_100(values: np.ndarray) -> np.ndarray:
    """Returns, for each episode, the mean of the last 100 of them."""
    sums = np.concatenate([[0], values.cumsum()])
    ends = np.arange(1, len(sums))
    counts = np.minimum(ends, 100)
    return (sums[ends] - sums[ends - counts]) / counts


def smooth(values: np.ndarray, share: float = 0.05) -> np.ndarray:
    """Returns the mean of each window of a twentieth of the run, without what is not finite."""
    window = np.ones(max(1, round(len(values) * share)))
    finite = np.isfinite(values)
    sums = np.convolve(np.where(finite, values, 0), window, "valid")
    counts = np.convolve(finite, window, "valid")
    with np.errstate(invalid="ignore"):
        return sums / np.where(counts, counts, np.nan)


def best_mean(values: np.ndarray, share: float) -> float:
    """Returns the highest mean of such a share of the run, at least -1."""
    return np.nanmax([*smooth(values, share), -1.0])


# Thresholds, chosen by runs that are healthy and runs that are broken on purpose: docs/diagnose.md.
KL = 0.1  # Updates with this mean KL, in a twentieth of the run, are too large.
CLIP_FRAC = 0.5  # Updates that clip this share of samples, as a mean like that, are too large.
CLIPS = 100  # A value clip is too small for errors of so many clips.
CLIPPED = 0.05  # A critic that such a clip holds back explains at most this share of the variance.
SEEN = 0.04  # A blind critic's explained variance is at most this in its best fifth of the run.
SEEN_ONCE = 0.2  # A blind critic's explained variance is at most this in its best twentieth.
LEFT = 0.2  # A collapsed policy has at most this share of its first entropy, or of log 2.
LEFT_OF_THEIRS = 0.02  # In logs of others the share is less, for their actions may be continuous.
NORMAL = 1.419  # The entropy of a normal distribution is this plus the log of its deviation.
LOG_STD = -2.5  # A collapsed continuous policy has at most this log of its deviation.
SHRUNK = 1.2  # That log may fall by this at most if nothing was learned.
GROWN = 0.2  # That log rises by this if the entropy bonus is too large.
RANDOM = 0.95  # This share of the first entropy stays if the entropy bonus is too large.
CUT = 1000  # A gradient is cut off if its norm is so many times what is allowed.
SIGHT = 0.8  # A gamma up to this is short-sighted.
STILL = 1e-5  # The KL of an update that hardly moves the policy is at most this.
CLIMB = 0.25  # A climb is this share of all ups and downs; noise goes mostly to and fro.
FALL = 0.5  # A return that falls by this share of its climb has collapsed.
STAYED = 0.8  # A policy that has learned keeps this share of its climb.
LEFT_KL = 1.0  # A model has left its reference if a token has this KL.
SIGNAL = 0.1  # There is no signal if at most this share of groups, or of updates, has one.
REWARDS_CUT = 0.5  # Too many rewards are cut if they are this share.
FINISHED = 0.7  # Too few completions are finished if they are this share.
LOST = 0.1  # A model is being hacked if it loses this share of right answers.
NOISE = 4  # The loss has to be so many standard deviations.


def learned(run: Run) -> bool:
    """Returns whether the return rose far beyond its noise, and stayed up there."""
    name = run.objective()
    if not run.has(name):
        return False
    _, values = run.finite(name)
    if len(values) < 20:
        return False
    mean = smooth(values, 0.1)
    risen = mean[-1] - mean.min()
    noise = np.abs(np.diff(mean)).mean()
    return risen > 10 * noise and risen > STAYED * np.ptp(mean)


# The rules. Each looks for one thing; its docstring tells what is wrong, the cure, and the source.


def not_finite(run: Run) -> Finding | None:
    """There are numbers that are not finite.

    Cure: lower --learning-rate, look for infinite rewards and observations.
    Source: arithmetic.
    """
    for panel, names in enumerate(PANELS):
        for name in names:
            if not run.has(name) or name in ("episode_return", "explained_variance"):
                continue  # A return or an explained variance may be undefined.
            steps, values = run.series[name]
            bad = np.flatnonzero(~np.isfinite(values))
            if len(bad):
                first = bad[0]
                return Finding(1000.0, steps[first], f"{name} is {values[first]}", panel)
    return None


def update_too_large(run: Run) -> Finding | None:
    """The updates are too large: the policy leaves the data that it learns from.

    Cure: lower --learning-rate, fewer --update-epochs, smaller --clip-coef, lower --target-kl, larger --beta.
    Source: Schulman et al. 2017, section 3; detail 12 of the 37.
    """
    if not run.has("kl") or run.has("tries"):  # TRPO's are as large as they were meant to be.
        return None
    steps, kl = run.series["kl"]
    mean = smooth(np.nan_to_num(kl, nan=0.0, posinf=1e9))
    badness = mean / KL
    evidence = f"kl {mean.max():.2g} on the mean of a twentieth of the run; below {KL} is usual"
    if run.has("clip_frac"):
        clipped = smooth(np.nan_to_num(run.values("clip_frac")))
        both = min(len(badness), len(clipped))  # A run that goes on may have logged one of them.
        badness[:both] = np.maximum(badness[:both], clipped[:both] / CLIP_FRAC)
        evidence += f"; clip_frac {clipped.max():.2g}, below {CLIP_FRAC}"
    if badness.max() < 1:
        return None
    first = steps[np.argmax(badness >= 1)]
    return Finding(float(badness.max()), first, evidence, 1)


def rewards_cut_off(run: Run) -> Finding | None:
    """Most rewards are cut to the same size: what tells them apart is gone.

    Cure: subtract from the rewards what they have in common.
    Source: detail 31 of the 37.
    """
    if not run.has("reward_clip_frac"):
        return None
    late = run.late("reward_clip_frac")
    if not late >= REWARDS_CUT:
        return None
    steps, shares = run.series["reward_clip_frac"]
    first = steps[np.argmax(shares >= REWARDS_CUT)]
    badness = 20 * late / REWARDS_CUT
    return Finding(badness, first, f"reward_clip_frac {late:.0%} in most updates", 3)


def value_clip(run: Run) -> Finding | None:
    """The value clip holds the critic back: returns are far larger than it lets the critic move.

    Cure: --vf-clip-coef inf, smaller rewards.
    Source: Engstrom et al. 2020; Andrychowicz et al. 2020; detail 9 of the 37.
    """
    if not run.has("value_loss", "explained_variance"):
        return None
    clip = run.flag("vf_clip_coef", math.inf)
    error = math.sqrt(2 * run.late("value_loss"))
    explained = run.late("explained_variance")
    if not (math.isfinite(clip) and error >= CLIPS * clip and explained <= CLIPPED):
        return None
    badness = error / max(clip, 1e-30) / CLIPS
    first = run.steps("value_loss")[0]
    evidence = f"errors of {error:.3g}, a clip of {clip:g}, and explained_variance {explained:.2f}"
    return Finding(badness, first, evidence, 3)


def entropy_collapse(run: Run) -> Finding | None:
    """The policy stopped trying: its entropy is gone before it has learned.

    Cure: raise --ent-coef, lower --learning-rate, a lower --target-kl, raise --log-std-init.
    Source: Williams and Peng 1991; detail 10 of the 37.
    """
    if not run.has("entropy") or run.has("score"):
        return None
    if "log_std_init" in run.args:
        return deviation_collapse(run)
    steps, entropy = run.series["entropy"]
    start = float(entropy[0])
    low = run.late("entropy")
    continuous = entropy.min() < -1e-3
    most = max(start, math.log(2))  # A policy may be certain from the start.
    bound = most * (LEFT if "checkpoints" in run.args else LEFT_OF_THEIRS)
    if low > bound or continuous or learned(run):
        return None
    badness = min(bound / max(low, 1e-9), 10)
    first = steps[np.argmax(entropy <= bound)]
    return Finding(badness, first, f"{low:.2g} are left of {most:.2f}", 2)


def deviation_collapse(run: Run) -> Finding | None:
    """Returns the same for normal distributions, by the deviation that their entropy tells."""
    steps, entropy = run.series["entropy"]
    start = float(entropy[0])
    low = run.late("entropy")
    start_log_std = float(run.args["log_std_init"])
    log_std = 0.0
    if start:
        log_std = (NORMAL + start_log_std) * low / start - NORMAL
    bound = LOG_STD if learned(run) else max(LOG_STD, start_log_std - SHRUNK)
    if log_std > bound:
        return None
    log_stds = entropy / start * (NORMAL + start_log_std) - NORMAL
    first = steps[np.argmax(log_stds <= bound)]
    evidence = f"a standard deviation of {math.exp(log_std):.2g}"
    return Finding(1 + bound - log_std, first, evidence, 2)


def entropy_too_high(run: Run) -> Finding | None:
    """The entropy bonus outweighs the reward: the policy stays or becomes random.

    Cure: lower --ent-coef.
    Source: Andrychowicz et al. 2020.
    """
    if not run.has("entropy"):
        return None
    steps, entropy = run.series["entropy"]
    start = float(entropy[0])
    high = run.late("entropy", 0.25)
    coef = run.flag("ent_coef", 0)
    if "log_std_init" in run.args and start:
        log_growth = (NORMAL + float(run.args["log_std_init"])) * (high / start - 1)
        if log_growth < GROWN or coef < 1e-3:
            return None
        first = steps[np.argmax(entropy > start)]
        evidence = f"standard deviations grew by {math.exp(log_growth):.2g}"
        return Finding(log_growth / GROWN, first, evidence, 2)
    if start <= 0 or high < RANDOM * start or coef < 0.05:
        return None
    evidence = f"{high / start:.1%} of the first {start:.2f}, at --ent-coef {coef:g}"
    return Finding(coef / 0.05, steps[0], evidence, 2)


def gradients_cut_off(run: Run) -> Finding | None:
    """Nearly all of every gradient is cut off: what is left is small beside Adam's epsilon.

    Cure: scale the rewards, --norm-adv, raise --max-grad-norm.
    Source: details 3 and 11 of the 37; Andrychowicz et al. 2020.
    """
    if not run.has("grad_norm"):
        return None
    longest = run.flag("max_grad_norm", math.inf)
    steps, norms = run.series["grad_norm"]
    times = float(np.median(norms)) / max(longest, 1e-30)
    if times < CUT:
        return None
    evidence = f"grad_norm is {times:,.0f} times --max-grad-norm {longest:g} in most updates"
    return Finding(times / CUT, steps[0], evidence, 5)


def short_sight(run: Run) -> Finding | None:
    """The discount factor makes the agent short-sighted: what comes later counts little.

    Cure: --gamma 0.99.
    Source: Schulman et al. 2016; Andrychowicz et al. 2020.
    """
    gamma = run.flag("gamma", 1)
    if gamma > SIGHT or not run.has("episode_length") or run.has("score"):
        return None
    length = run.late("episode_length")
    horizon = 1 / (1 - gamma)
    if not length >= 4 * horizon:
        return None
    sight = f"{horizon:.2g} step{'s' * (horizon > 1)} ahead"
    evidence = f"--gamma {gamma:g} looks {sight}, in episodes of {length:.3g}"
    first = run.steps("episode_length")[0]
    return Finding(length / horizon / 4, first, evidence, 0)


def returns_all_alike(run: Run) -> Finding | None:
    """All returns are the same: there is nothing to tell good from bad.

    Cure: look at the rewards, let the agent explore until it finds one, easier tasks, more --sft-steps.
    Source: arithmetic, equal returns have no advantages.
    """
    if run.has("explained_variance") and not not_finite(run):
        steps, values = run.series["explained_variance"]
        if not np.isfinite(values).any():  # It is a share of the variance of returns.
            return Finding(100.0, steps[0], "explained_variance is undefined from first to last", 4)
    name = run.objective()
    if not run.has(name) or run.has("signal"):  # The signal tells more than a mean score.
        return None
    _, values = run.finite(name)
    if len(values) < 5:
        return None
    lowest = values - values.min() <= 1e-6 * max(1, abs(values[0]))
    share = lowest.mean()
    most = 1 - SIGNAL if name == "score" else 1  # A mean score is of one update alone.
    if share < most:
        return None
    evidence = f"{name} is {values.min():g} in {share:.0%} of the updates"
    return Finding(100.0, run.steps(name)[0], evidence, 0)


def blind_critic(run: Run) -> Finding | None:
    """The critic sees nothing: it explains none of what the returns do, so that advantages are noisy.

    Cure: normalise observations, --vf-clip-coef inf, raise --vf-coef, look at the done flags.
    Source: detail 12 of the 37.
    """
    if not run.has("explained_variance", "kl"):  # REINFORCE learns without, from fresh data.
        return None
    steps, values = run.series["explained_variance"]
    if not np.isfinite(values).any():  # There is nothing to see.
        return None
    short = best_mean(values, 0.05)
    long = best_mean(values, 0.2)
    if short > SEEN_ONCE or long > SEEN:  # Where returns are alike, it says nothing.
        return None
    if run.has("score") and learned(run):  # Language models learn with a blind critic.
        return None
    evidence = f"explained_variance is {short:.2g} at its best"
    return Finding(1 + SEEN - long, steps[0], evidence, 4)


def no_episode_ends(run: Run) -> Finding | None:
    """No episode was seen to end, so there is no return to look at.

    Cure: give the env a time limit, a longer run.
    Source: docs/operations.md.
    """
    if not run.has("episode_return") or np.isfinite(run.values("episode_return")).any():
        return None
    return Finding(50.0, 0, f"none in {run.last_step():,} steps", 0)


def standstill(run: Run) -> Finding | None:
    """The policy hardly moves.

    Cure: raise --learning-rate, look whether rewards and advantages differ at all.
    Source: detail 12 of the 37.
    """
    if not run.has("kl") or run.has("tries"):
        return None
    if run.flag("update_epochs", 2) * run.flag("num_minibatches", 2) == 1:
        return None  # The only step of an update is taken after its KL is measured.
    steps, kl = run.series["kl"]
    first_half = kl[: max(1, len(kl) // 2)]  # Later the learning rate may have been annealed.
    half = float(np.median(first_half))
    if half > STILL or entropy_collapse(run):  # A policy without chance cannot move.
        return None
    badness = min(STILL / max(half, 1e-12), 3)  # It is an effect, as a rule.
    evidence = f"kl {half:.1g} in the first half; usual is above {STILL}"
    return Finding(badness, steps[0], evidence, 1)


def collapse(run: Run) -> Finding | None:
    """What was learned was lost again.

    Cure: lower --learning-rate, --anneal-lr, a lower --target-kl, an earlier stop.
    Source: Engstrom et al. 2020; Huang et al. 2022.
    """
    name = run.objective()
    if not run.has(name):
        return None
    steps, values = run.finite(name)
    if len(values) < 20:
        return None
    mean = smooth(values)
    best = int(np.argmax(mean))
    climbed = mean[best] - mean[: best + 1].min()
    fallen = mean[best] - mean[-1]
    moves = np.abs(np.diff(mean))
    noise = max(10 * moves.mean(), CLIMB * moves.sum())
    if climbed <= noise or fallen < FALL * climbed:
        return None
    last_best = len(mean) - 1 - int(np.argmax(mean[::-1]))  # A bounded return may be best for long.
    first = steps[last_best + len(values) - len(mean)]
    evidence = f"{name} fell from {mean[best]:.4g} to {mean[-1]:.4g}"
    return Finding(fallen / climbed / FALL, first, evidence, 0)


def reference_left(run: Run) -> Finding | None:
    """The model has left its reference: texts may be no texts any more.

    Cure: raise --kl-coef, lower --learning-rate.
    Source: Stiennon et al. 2020; Gao et al. 2023.
    """
    if not run.has("ref_kl"):
        return None
    steps, values = run.series["ref_kl"]
    late = run.late("ref_kl", 0.25)
    if late < LEFT_KL:
        return None
    first = steps[np.argmax(values >= LEFT_KL)]
    return Finding(10 * late / LEFT_KL, first, f"ref_kl {late:.2g} a token", 3)


def no_signal(run: Run) -> Finding | None:
    """In most groups all completions score alike, and nothing is learned from them.

    Cure: easier or harder tasks, more --sft-steps, a larger --group-size, a reward that tells more apart.
    Source: Yu et al. 2025 (DAPO).
    """
    if not run.has("signal", "score"):
        return None
    signal = run.late("signal")
    score = run.late("score")
    first_score = np.median(run.values("score")[:3])
    if signal > SIGNAL or score > first_score + 0.1:
        return None  # Tasks that were learned leave no signal, which is as it should be.
    badness = (SIGNAL + 0.05) / (signal + 0.05)
    evidence = f"signal {signal:.2f}, score {score:.3g}"
    return Finding(badness, run.steps("signal")[0], evidence, 4)


def unfinished(run: Run) -> Finding | None:
    """Completions are cut off before their end, so that their score says little.

    Cure: raise --max-new-tokens, look whether the end of text is in the training data.
    Source: Yu et al. 2025 (DAPO).
    """
    if not run.has("finished"):
        return None
    late = run.late("finished")
    if late > FINISHED:
        return None
    badness = min(FINISHED / max(late, 0.01), 10)
    evidence = f"{late:.0%} of the completions are finished"
    return Finding(badness, run.steps("finished")[0], evidence, 2)


def reward_hacking(run: Run) -> Finding | None:
    """The score rises while right answers become fewer: the reward is being hacked.

    Cure: a reward that is harder to fool, a larger --kl-coef, an earlier stop.
    Source: Gao et al. 2023; Skalse et al. 2022.
    """
    if not run.has("score", "exact"):
        return None
    steps, answers = run.series["exact"]
    exact = smooth(answers, 0.1)
    score = smooth(run.values("score"), 0.1)
    best = int(np.argmax(exact))
    lost = exact[best] - exact[-1]
    window = len(answers) - len(exact) + 1
    noise = np.diff(answers).std() / math.sqrt(window)  # It is that of the difference of two means.
    if lost < max(LOST, NOISE * noise) or score[-1] <= score[best]:
        return None
    fell = f"exact fell from {exact[best]:.2f} to {exact[-1]:.2f}"
    evidence = f"{fell}, while score rose to {score[-1]:.2f}"
    return Finding(10 * lost / LOST, steps[best], evidence, 0)


RULES: list[Callable[[Run], Finding | None]] = [  # Causes come before their effects.
    not_finite,
    no_episode_ends,
    returns_all_alike,
    rewards_cut_off,
    reward_hacking,
    short_sight,
    update_too_large,
    reference_left,
    no_signal,
    unfinished,
    gradients_cut_off,
    value_clip,
    entropy_too_high,
    entropy_collapse,
    standstill,
    blind_critic,
    collapse,
]


def explain(rule: Callable) -> tuple[str, str, str]:
    """Returns what is wrong, its cure, and the source of the rule, from its docstring."""
    text = " ".join(rule.__doc__.split())
    what, cure, source = re.fullmatch(r"(.*?) Cure: (.*) Source: (.*)", text).groups()
    return what, cure, source


def diagnose(run: Run) -> list[tuple[Callable, Finding]]:
    """Returns what the rules find, the worst first; nothing in fewer than 20 updates."""
    if run.updates() < 20:
        return []
    found = []
    for rule in RULES:
        finding = rule(run)
        if finding and not math.isnan(finding.badness):  # Rule not_finite tells of NaN.
            found.append((rule, finding))
    return sorted(found, key=lambda pair: -magnitude(pair[1]))


def magnitude(finding: Finding) -> int:
    """Returns the order of magnitude of the badness; within it causes stay before effects."""
    return round(math.log10(min(finding.badness, 100)))


def fitting(cure: str, run: Run) -> str:
    """Returns those parts of a cure that a run can and does not yet follow, as far as is known."""
    known = {flag.replace("_", "-"): str(value) for flag, value in run.args.items()}
    done = set()
    for flag, value in known.items():
        setting = f"--{flag}" if value == "True" else f"--{flag} {value}"
        done.add(setting)
    if "log-std-init" in known:  # Such scripts always do that.
        done.add("normalise observations")
    parts = []
    for part in cure.rstrip(".").split(", "):
        flags = set(re.findall(r"--([\w-]+)", part))
        has_flags = not known or flags <= set(known)
        if has_flags and part not in done:
            parts.append(part)
    return ", ".join(parts)


def summarize(run: Run, found: list[tuple[Callable, Finding]]) -> str:
    """Returns how much was found."""
    if not found:
        return "nothing stands out" if run.updates() >= 20 else "too few updates to say anything"
    things = "thing" if len(found) == 1 else "things"
    text = f"{len(found)} {things} to look at, the worst first"
    if len(found) > 4:
        text += ", four of them"
    return text


def describe(run: Run) -> list[str]:
    """Returns at most eleven lines about one run."""
    found = diagnose(run)
    lines = [f"{run.folder}: {run.last_step():,} steps; {summarize(run, found)}"]
    if "failed" in run.job:
        lines.append(f"The run failed: {run.job['failed']}")
    for number, (rule, finding) in enumerate(found[:4], 1):
        what, cure, _ = explain(rule)
        wrong = what.rstrip(".")
        lines.append(f"{number}. {wrong}, from step {finding.first:,}: {finding.evidence}.")
        lines.append(f"   Try: {fitting(cure, run)}.")
    return lines


def find_task(run: Run) -> str | None:
    """Returns the env, or the task of a language model."""
    return run.args.get("env_id", run.args.get("task"))


def mean_curve(run: Run) -> Series:
    """Returns steps and smooth returns; a single NaN if there are no returns."""
    name = run.objective()
    if run.has(name):
        steps, values = run.finite(name)
        if len(values):
            mean = smooth(values)
            return steps[len(steps) - len(mean) :], mean
    return np.array([0]), np.array([math.nan])


def best_curves(runs: list[Run]) -> dict[str | None, np.ndarray]:
    """Returns the smooth returns of the best run of each task."""
    best = {}
    for run in runs:
        _, mean = mean_curve(run)
        if not np.isnan(mean).any():
            task = find_task(run)
            best[task] = max(best.get(task, mean), mean, key=np.max)
    return best


def first_step(steps: np.ndarray, mean: np.ndarray, example: np.ndarray) -> str:
    """Returns the step at which a mean has 90 % of what the example gained, or never."""
    goal = example.min() + 0.9 * (example.max() - example.min())
    there = mean >= goal
    return f"{steps[np.argmax(there)]:,}" if there.any() else "never"


def compare(runs: list[Run]) -> list[str]:
    """Returns the lines of a table, which has the worst finding of each run, too.

    A run is there when it has 90 % of what the best run of the same env, or task, has gained.
    """
    best = best_curves(runs)
    width = max(len(str(run.folder)) for run in runs)
    rows = []
    for run in runs:
        steps, mean = mean_curve(run)
        last = mean[-1]
        there = first_step(steps, mean, best.get(find_task(run), mean))
        found = diagnose(run)
        worst = found[0][0].__name__ if found else ""
        row = f"{run.folder!s:{width}} {last:9.4g} {there:>11} {run.seconds:8,.0f}  {worst}"
        rows.append((math.isnan(last), -last, row))
    rows.sort(key=lambda row: row[:2])
    head = f"{'run':{width}} {'last':>9} {'to 90 %':>11} {'seconds':>8}  worst"
    return [head, *(row for _, _, row in rows)]


def draw_panel(axis, names: tuple[str, ...], runs: list[Run], colours: list, theme: dict) -> None:
    """Draws series that belong together, with a colour for each series, or for each of several runs."""
    shown = [name for name in names if any(run.has(name) for run in runs)]
    single = len(runs) == 1
    axis.set_visible(bool(shown))
    axis.grid(True, lw=0.5)
    for i, name in enumerate(shown):
        same_axis = i == 0 or {name, shown[0]} <= {"score", "exact"}
        target = axis if same_axis else axis.twinx()
        set_scale(target, name, runs)
        dashes = "-" if i == 0 or single else ":"
        for j, run in enumerate(runs):
            if run.has(name):
                colour = colours[i] if single else colours[j]
                target.plot(*run.series[name], color=colour, lw=1.2, ls=dashes)
        ink = colours[i] if single else theme["text.color"]
        if same_axis:
            axis.set_title(", ".join(shown[: i + 1]), loc="left", fontsize=9)
        else:
            target.set_ylabel(name, color=ink)


def set_scale(axis, name: str, runs: list[Run]) -> None:
    """Sets a logarithmic scale, or the limits of a share."""
    values = np.concatenate([run.values(name) for run in runs if run.has(name)])
    if name in ("kl", "value_loss", "grad_norm") and np.nanmin(values, initial=1) > 0:
        axis.set_yscale("log")
    if name == "explained_variance":
        axis.set_ylim(-1.05, 1.05)
    if name in ("clip_frac", "finished", "signal", "reward_clip_frac"):
        axis.set_ylim(-0.05, 1.05)


def mark_findings(axis, panel: int, found: list[tuple[Callable, Finding]], colour: str) -> None:
    """Shades what is wrong in a panel, from where on it is, and names it."""
    here = [(rule, finding) for rule, finding in found if finding.panel == panel]
    for _, finding in here:
        axis.axvspan(finding.first, axis.get_xlim()[1], color=colour, alpha=0.12, lw=0)
    text = "\n".join(rule.__name__.replace("_", " ") for rule, _ in here)
    axis.text(0.98, 0.96, text, color=colour, ha="right", va="top", transform=axis.transAxes)


def make_theme(page: dict) -> dict:
    """Returns matplotlib's settings for the colours of a page."""
    inks = ("text.color", "axes.labelcolor", "xtick.color", "ytick.color")
    pages = ("axes.facecolor", "figure.facecolor", "savefig.facecolor")
    grids = ("axes.edgecolor", "grid.color")
    theme = dict.fromkeys(inks, page["ink"])
    theme |= dict.fromkeys(pages, page["page"])
    theme |= dict.fromkeys(grids, page["grid"])
    theme |= {"font.size": 8, "axes.spines.top": False, "axes.spines.right": False}
    return theme


def draw(runs: list[Run], path: Path, dark: bool) -> None:
    """Draws one page: the series of all runs, and what is wrong with a single one."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    page = DARK if dark else LIGHT
    theme = make_theme(page)
    colours = page["lines"]
    found = []
    if len(runs) == 1:
        found = diagnose(runs[0])[:4]
    with plt.rc_context(theme):
        if len(runs) > 1:
            shades = np.linspace(0.3, 1, len(runs)) - page["darker"]
            colours = list(plt.cm.viridis(shades))
        figure, axes = plt.subplots(3, 2, figsize=(10, 8), layout="constrained", sharex=True)
        for panel, names in enumerate(PANELS):
            draw_panel(axes.flat[panel], names, runs, colours, theme)
            mark_findings(axes.flat[panel], panel, found, page["trouble"])
        for axis in axes[-1]:
            axis.set_xlabel("steps")
            axis.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
        title = runs[0].folder.resolve().name
        if len(runs) > 1:
            title = f"{len(runs)} runs"
            lines = [plt.Line2D([], [], color=colour) for colour in colours[:12]]
            names = [run.folder.name for run in runs[:12]]
            figure.legend(lines, names, loc="outside lower left", ncols=3, frameon=False)
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
        path.unlink(missing_ok=True)  # A link that lies there would be written through.
        figure.savefig(path, dpi=120)
        plt.close(figure)


class Parser(argparse.ArgumentParser):
    """A mistake costs one line."""

    def error(self, message: str) -> NoReturn:
        refuse(message)


def find_folders(paths: list[Path]) -> list[Path]:
    """Returns the folders of runs in these."""
    folders = []
    for path in paths:
        if not path.is_dir():
            refuse(f"{path} is not a folder")
        inside = {file.parent for file in path.rglob("*tfevents*")}
        if not inside:
            refuse(f"{path}: no TensorBoard files in there{quote_log(path)}")
        folders += sorted(inside)
    return folders


def read_runs(folders: list[Path]) -> list[Run]:
    """Returns the runs in these folders that have metrics, and says what is wrong with the others."""
    runs = []
    damages = []
    for folder in folders:
        try:
            run = read_run(folder)
        except Damaged as damage:
            damages.append(str(damage))
            continue
        if run.series:
            runs.append(run)
        else:
            damages.append(f"{folder}: no metrics of a run in there, yet{quote_log(folder)}")
    if not runs:
        refuse(damages[0])
    print(*damages, sep="\n", end="\n" * bool(damages))
    return runs


def quote_log(folder: Path) -> str:
    """Returns how the log of a run ends that a sweep has begun: of one that failed, why."""
    log = folder / "log.txt"
    lines = log.read_text(errors="replace").split("\n") if log.exists() else []
    said = [line for line in lines if line.strip()]
    return f"; its log.txt ends with {said[-1].strip()}" if said else ""


def main() -> None:
    """Reads the runs that the command line names, and says what is wrong with them."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, metavar="RUN_DIR", help="of a run, or of several")
    parser.add_argument("--dark", action="store_true", help="a picture for a dark page")
    args = parser.parse_args()
    runs = read_runs(find_folders(args.folders))
    lines = describe(runs[0]) if len(runs) == 1 else compare(runs)
    print(*lines, sep="\n")
    path = args.folders[0] / "report.png"
    try:
        draw(runs, path, args.dark)
    except ImportError as error:
        refuse(f"no {path}: {error}; pip install -r tools/requirements.txt")
    except OSError as error:
        refuse(f"no {path}: {error}")
    print(f"see {path}")


if __name__ == "__main__":
    main()
