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
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

# What others call what we call so.
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


class Run(NamedTuple):
    """The logs of a run: each series is steps and values, two arrays of the same length."""

    folder: Path
    args: dict
    series: dict[str, tuple[np.ndarray, np.ndarray]]
    seconds: float

    def has(self, *names: str) -> bool:
        return all(name in self.series for name in names)

    def values(self, name: str) -> np.ndarray:
        return self.series[name][1]

    def flag(self, name: str, default: float) -> float:
        """The value of a flag; the default if there is none, or none that is a number."""
        try:
            return float(self.args[name])
        except (KeyError, TypeError, ValueError):
            return default

    def updates(self) -> int:
        """How many there were; the returns of others are logged for each episode, or each evaluation."""
        mine = [len(self.values(name)) for name in ("kl", "entropy", "value_loss", "score") if self.has(name)]
        return max(mine or [len(steps) for steps, _ in self.series.values()])

    def late(self, name: str, share: float = 0.5) -> float:
        """The median in the last part of the run, of what is finite; NaN if nothing is."""
        values = self.values(name)
        values = values[int(len(values) * (1 - share)) :]
        values = values[np.isfinite(values)]
        return float(np.median(values)) if len(values) else math.nan


class Finding(NamedTuple):
    """What a rule has found."""

    badness: float  # how many times as bad as the threshold, at least 1
    first: int  # step from which on
    evidence: str  # in numbers
    panel: int  # of the picture, where it can be seen


def refuse(mistake: str) -> NoReturn:
    """Say in one line what is wrong, and exit."""
    print(f"diagnose.py: {' '.join(mistake.split())}", file=sys.stderr)
    raise SystemExit(2)


def read_run(folder: Path) -> Run:
    """Read the TensorBoard files of a folder; of a step that is there twice, as after a resume, the last."""
    found, text, times = {}, "", []
    try:
        for path in sorted(folder.glob("*tfevents*")):
            events = list(LegacyEventFileLoader(str(path)).Load())
            times += [events[-1].wall_time - events[0].wall_time] if events else []  # without pauses between
            for event in events:
                for value in event.summary.value:
                    if value.HasField("simple_value"):
                        found.setdefault(value.tag, {})[event.step] = value.simple_value
                    elif value.tag == "hyperparameters/text_summary":  # CleanRL's flags, a table
                        text = value.tensor.string_val[0].decode()
        args = dict(re.findall(r"^\|(\w+)\|(.*)\|$", text, re.M))
        if (folder / "args.json").exists():
            args = dict(json.loads((folder / "args.json").read_text()))
    except Exception as error:  # not readable, not a file, not JSON
        refuse(f"{folder}: {type(error).__name__}: {error}")
    series = {}
    for tag, points in found.items():
        steps = np.array(sorted(points))
        values = np.array([points[step] for step in steps])
        series[NAMES.get(tag, tag)] = steps, -values if tag == "train/entropy_loss" else values
    if "charts/episodic_return" in found:  # of each episode: make it the mean of the last 100
        for name in {"episode_return", "episode_length"} & set(series):
            steps, values = series[name]
            sums = np.concatenate([[0], values.cumsum()])
            counts = np.minimum(np.arange(1, len(sums)), 100)
            series[name] = steps, (sums[1:] - sums[np.arange(1, len(sums)) - counts]) / counts
    shown = {name for panel in PANELS for name in panel}
    return Run(folder, args, series if shown & set(series) else {}, sum(times))


def smooth(values: np.ndarray, share: float = 0.05) -> np.ndarray:
    """The mean of each window of a twentieth of the run; what is not finite counts for nothing."""
    window = max(1, round(len(values) * share))
    finite = np.isfinite(values)
    sums = np.convolve(np.where(finite, values, 0), np.ones(window), "valid")
    counts = np.convolve(finite, np.ones(window), "valid")
    with np.errstate(invalid="ignore"):
        return sums / np.where(counts, counts, np.nan)


# Thresholds, chosen by runs that are healthy and runs that are broken on purpose: docs/diagnose.md.
KL = 0.1  # of updates, the mean of a twentieth of the run
CLIP_FRAC = 0.5  # share of samples, the same mean
CLIPS = 100  # errors of the critic, in clips
CLIPPED = 0.05  # explained variance of a critic with such errors
SEEN = 0.04  # the same of any, in its best fifth of the run
SEEN_ONCE = 0.2  # and in its best twentieth
LEFT = 0.2  # share of the first entropy, or of that of two equally likely actions
LEFT_OF_THEIRS = 0.02  # the same, where actions may be continuous, for logs of others do not say
LOG_STD = -2.5  # of a continuous policy
SHRUNK = 1.2  # by which that falls, with nothing learned
GROWN = 0.2  # by which that rises
RANDOM = 0.95  # share of the first entropy
CUT = 1000  # gradient norms, in those that are allowed
SIGHT = 0.8  # gamma
STILL = 1e-5  # KL of an update
CLIMB = 0.25  # share of all ups and downs of the return: noise alone climbs, too, but mostly to and fro
FALL = 0.5  # share of the return that was gained
STAYED = 0.8  # the same, of one that has learned
LEFT_KL = 1.0  # to the reference, a token
SIGNAL = 0.1  # share of groups, or of updates where nothing tells of groups
REWARDS_CUT = 0.5  # share of rewards
FINISHED = 0.7  # share of completions
LOST = 0.1  # share of right answers
NOISE = 4  # standard deviations of that


def learned(run: Run) -> bool:
    """Whether the return rose far beyond its noise, and stayed up there."""
    name = "score" if run.has("score") else "episode_return"
    values = run.values(name) if run.has(name) else np.array([])
    values = values[np.isfinite(values)]
    if len(values) < 20:
        return False
    mean = smooth(values, 0.1)
    risen = mean[-1] - mean.min()
    return risen > 10 * np.abs(np.diff(mean)).mean() and risen > STAYED * np.ptp(mean)


# The rules. Each looks for one thing; its docstring is what it says, the cure, and where that is from.


def not_finite(run: Run) -> Finding | None:
    """There are numbers that are not finite.

    Cure: lower --learning-rate, look for infinite rewards and observations.
    Source: arithmetic.
    """
    for panel, name in [(i, name) for i, names in enumerate(PANELS) for name in names]:
        if run.has(name) and name not in ("episode_return", "explained_variance"):  # which may be undefined
            steps, values = run.series[name]
            if not np.isfinite(values).all():
                bad = np.flatnonzero(~np.isfinite(values))
                return Finding(1000.0, steps[bad[0]], f"{name} is {values[bad[0]]}", panel)
    return None


def update_too_large(run: Run) -> Finding | None:
    """The updates are too large: the policy leaves the data that it learns from.

    Cure: lower --learning-rate, fewer --update-epochs, smaller --clip-coef, lower --target-kl, larger --beta.
    Source: Schulman et al. 2017, section 3; detail 12 of the 37.
    """
    if not run.has("kl") or run.has("tries"):  # TRPO's are as large as they were meant to be
        return None
    steps, kl = run.series["kl"]
    mean = smooth(np.nan_to_num(kl, nan=0.0, posinf=1e9))
    badness = mean / KL
    evidence = f"kl {mean.max():.2g} on the mean of a twentieth of the run; below {KL} is usual"
    if run.has("clip_frac"):
        clipped = smooth(np.nan_to_num(run.values("clip_frac")))
        both = min(len(badness), len(clipped))  # a run that still goes on may have logged only one of them
        badness[:both] = np.maximum(badness[:both], clipped[:both] / CLIP_FRAC)
        evidence += f"; clip_frac {clipped.max():.2g}, below {CLIP_FRAC}"
    if badness.max() < 1:
        return None
    return Finding(float(badness.max()), steps[np.argmax(badness >= 1)], evidence, 1)


def rewards_cut_off(run: Run) -> Finding | None:
    """Most rewards are cut to the same size: what tells them apart is gone.

    Cure: subtract from the rewards what they have in common.
    Source: detail 31 of the 37.
    """
    if not run.has("reward_clip_frac") or not (late := run.late("reward_clip_frac")) >= REWARDS_CUT:
        return None
    first = run.series["reward_clip_frac"][0][np.argmax(run.values("reward_clip_frac") >= REWARDS_CUT)]
    return Finding(20 * late / REWARDS_CUT, first, f"reward_clip_frac {late:.0%} in most updates", 3)


def value_clip(run: Run) -> Finding | None:
    """The value clip holds the critic back: returns are far larger than it lets the critic move.

    Cure: --vf-clip-coef inf, smaller rewards.
    Source: Engstrom et al. 2020; Andrychowicz et al. 2020; detail 9 of the 37.
    """
    if not run.has("value_loss", "explained_variance"):
        return None
    clip = run.flag("vf_clip_coef", math.inf)
    error = math.sqrt(2 * run.late("value_loss"))
    blind = run.late("explained_variance")
    if not (math.isfinite(clip) and error >= CLIPS * clip and blind <= CLIPPED):
        return None
    evidence = f"errors of {error:.3g}, a clip of {clip:g}, and explained_variance {blind:.2f}"
    return Finding(error / max(clip, 1e-30) / CLIPS, run.series["value_loss"][0][0], evidence, 3)


def entropy_collapse(run: Run) -> Finding | None:
    """The policy stopped trying: its entropy is gone before it has learned.

    Cure: raise --ent-coef, lower --learning-rate, a lower --target-kl, raise --log-std-init.
    Source: Williams and Peng 1991; detail 10 of the 37.
    """
    if not run.has("entropy") or run.has("score"):
        return None
    steps, entropy = run.series["entropy"]
    start, low = float(entropy[0]), run.late("entropy")
    if "log_std_init" in run.args:  # of normal distributions, whose entropy is 1.42 + log std for each action
        start_log_std = float(run.args["log_std_init"])
        log_std = (1.419 + start_log_std) * low / start - 1.419 if start else 0.0
        bound = LOG_STD if learned(run) else max(LOG_STD, start_log_std - SHRUNK)
        if log_std > bound:
            return None
        per_action = entropy / start * (1.419 + start_log_std) - 1.419
        first = steps[np.argmax(per_action <= bound)]
        evidence = f"a standard deviation of {math.exp(log_std):.2g}"
        return Finding(1 + bound - log_std, first, evidence, 2)
    continuous = entropy.min() < -1e-3
    full = max(start, math.log(2))  # a policy may be certain from the start
    bound = full * (LEFT if "checkpoints" in run.args else LEFT_OF_THEIRS)
    if low > bound or continuous or learned(run):
        return None
    evidence = f"{low:.2g} are left of {full:.2f}"
    return Finding(min(bound / max(low, 1e-9), 10), steps[np.argmax(entropy <= bound)], evidence, 2)


def entropy_too_high(run: Run) -> Finding | None:
    """The entropy bonus outweighs the reward: the policy stays or becomes random.

    Cure: lower --ent-coef.
    Source: Andrychowicz et al. 2020.
    """
    if not run.has("entropy"):
        return None
    steps, entropy = run.series["entropy"]
    start, high, coef = float(entropy[0]), run.late("entropy", 0.25), run.flag("ent_coef", 0)
    if "log_std_init" in run.args and start:
        per_action = (1.419 + float(run.args["log_std_init"])) * (high / start - 1)  # log of what std grew by
        if per_action < GROWN or coef < 1e-3:
            return None
        grown = f"standard deviations grew by {math.exp(per_action):.2g}"
        return Finding(per_action / GROWN, steps[np.argmax(entropy > start)], grown, 2)
    if start <= 0 or high < RANDOM * start or coef < 0.05:
        return None
    return Finding(
        coef / 0.05, steps[0], f"{high / start:.1%} of the first {start:.2f}, at --ent-coef {coef:g}", 2
    )


def gradients_cut_off(run: Run) -> Finding | None:
    """Nearly all of every gradient is cut off: what is left is small beside Adam's epsilon.

    Cure: scale the rewards, --norm-adv, raise --max-grad-norm.
    Source: details 3 and 11 of the 37; Andrychowicz et al. 2020.
    """
    if not run.has("grad_norm"):
        return None
    longest = run.flag("max_grad_norm", math.inf)
    times = float(np.median(run.values("grad_norm"))) / max(longest, 1e-30)
    if times < CUT:
        return None
    evidence = f"grad_norm is {times:,.0f} times --max-grad-norm {longest:g} in most updates"
    return Finding(times / CUT, run.series["grad_norm"][0][0], evidence, 5)


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
    evidence = (
        f"--gamma {gamma:g} looks {horizon:.2g} step{'s' * (horizon > 1)} ahead, in episodes of {length:.3g}"
    )
    return Finding(length / horizon / 4, run.series["episode_length"][0][0], evidence, 0)


def returns_all_alike(run: Run) -> Finding | None:
    """All returns are the same: there is nothing to tell good from bad.

    Cure: look at the rewards, let the agent explore until it finds one, easier tasks, more --sft-steps.
    Source: arithmetic, equal returns have no advantages.
    """
    if run.has("explained_variance") and not not_finite(run):
        steps, values = run.series["explained_variance"]
        if not np.isfinite(values).any():  # it is a share of the variance of returns
            return Finding(100.0, steps[0], "explained_variance is undefined from first to last", 4)
    name = "score" if run.has("score") else "episode_return"
    if not run.has(name) or run.has("signal"):  # which tells more than a mean score
        return None
    steps, values = run.series[name]
    values = values[np.isfinite(values)]
    if len(values) < 5:
        return None
    lowest = values - values.min() <= 1e-6 * max(1, abs(values[0]))
    if lowest.mean() < (1 - SIGNAL if name == "score" else 1):  # a mean score is of one update alone
        return None
    return Finding(100.0, steps[0], f"{name} is {values.min():g} in {lowest.mean():.0%} of the updates", 0)


def blind_critic(run: Run) -> Finding | None:
    """The critic sees nothing: it explains none of what the returns do, so that advantages are noisy.

    Cure: normalise observations, --vf-clip-coef inf, raise --vf-coef, look at the done flags.
    Source: detail 12 of the 37.
    """
    if not run.has("explained_variance", "kl"):  # REINFORCE learns without: slowly, but from fresh data
        return None
    steps, values = run.series["explained_variance"]
    if not np.isfinite(values).any():  # then there is nothing to see
        return None
    short, long = (np.nanmax([*smooth(values, share), -1.0]) for share in (0.05, 0.2))
    if short > SEEN_ONCE or long > SEEN:  # once is enough: where all returns are alike, it says nothing
        return None
    if run.has("score") and learned(run):  # as language models do
        return None
    return Finding(1 + SEEN - long, steps[0], f"explained_variance is {short:.2g} at its best", 4)


def no_episode_ends(run: Run) -> Finding | None:
    """No episode was seen to end, so there is no return to look at.

    Cure: give the env a time limit, a longer run.
    Source: docs/operations.md.
    """
    if not run.has("episode_return") or np.isfinite(run.values("episode_return")).any():
        return None
    steps = max(x[-1] for x, _ in run.series.values())
    return Finding(50.0, 0, f"none in {steps:,} steps", 0)


def standstill(run: Run) -> Finding | None:
    """The policy hardly moves.

    Cure: raise --learning-rate, look whether rewards and advantages differ at all.
    Source: detail 12 of the 37.
    """
    if not run.has("kl") or run.has("tries"):
        return None
    if run.flag("update_epochs", 2) * run.flag("num_minibatches", 2) == 1:
        return None  # the only step of an update is taken after its KL is measured
    steps, kl = run.series["kl"]
    half = float(np.median(kl[: max(1, len(kl) // 2)]))  # later the learning rate may have been annealed
    if half > STILL or entropy_collapse(run):  # a policy without chance cannot move
        return None
    return Finding(
        min(STILL / max(half, 1e-12), 3),  # it is an effect, as a rule
        steps[0],
        f"kl {half:.1g} in the first half; usual is above {STILL}",
        1,
    )


def collapse(run: Run) -> Finding | None:
    """What was learned was lost again.

    Cure: lower --learning-rate, --anneal-lr, a lower --target-kl, an earlier stop.
    Source: Engstrom et al. 2020; Huang et al. 2022.
    """
    name = "score" if run.has("score") else "episode_return"
    if not run.has(name):
        return None
    steps, values = run.series[name]
    steps, values = steps[np.isfinite(values)], values[np.isfinite(values)]
    if len(values) < 20:
        return None
    mean = smooth(values)
    best = int(np.argmax(mean))
    last = len(mean) - 1 - int(np.argmax(mean[::-1]))  # where the return is bounded, it may be best for long
    climbed, fallen = mean[best] - mean[: best + 1].min(), mean[best] - mean[-1]
    moves = np.abs(np.diff(mean))
    if climbed <= max(10 * moves.mean(), CLIMB * moves.sum()) or fallen < FALL * climbed:
        return None
    evidence = f"{name} fell from {mean[best]:.4g} to {mean[-1]:.4g}"
    return Finding(fallen / climbed / FALL, steps[last + len(values) - len(mean)], evidence, 0)


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
    return Finding(10 * late / LEFT_KL, steps[np.argmax(values >= LEFT_KL)], f"ref_kl {late:.2g} a token", 3)


def no_signal(run: Run) -> Finding | None:
    """In most groups all completions score alike, and nothing is learned from them.

    Cure: easier or harder tasks, more --sft-steps, a larger --group-size, a reward that tells more apart.
    Source: Yu et al. 2025 (DAPO).
    """
    if not run.has("signal", "score"):
        return None
    signal, score = run.late("signal"), run.late("score")
    if signal > SIGNAL or score > np.median(run.values("score")[:3]) + 0.1:
        return None  # of tasks that were learned, no signal is left, which is as it should be
    return Finding(
        (SIGNAL + 0.05) / (signal + 0.05),
        run.series["signal"][0][0],
        f"signal {signal:.2f}, score {score:.3g}",
        4,
    )


def unfinished(run: Run) -> Finding | None:
    """Completions are cut off before their end, so that their score says little.

    Cure: raise --max-new-tokens, look whether the end of text is in the training data.
    Source: Yu et al. 2025 (DAPO).
    """
    if not run.has("finished"):
        return None
    steps, _ = run.series["finished"]
    late = run.late("finished")
    if late > FINISHED:
        return None
    return Finding(
        min(FINISHED / max(late, 0.01), 10), steps[0], f"{late:.0%} of the completions are finished", 2
    )


def reward_hacking(run: Run) -> Finding | None:
    """The score rises while right answers become fewer: the reward is being hacked.

    Cure: a reward that is harder to fool, a larger --kl-coef, an earlier stop.
    Source: Gao et al. 2023; Skalse et al. 2022.
    """
    if not run.has("score", "exact"):
        return None
    score, exact = smooth(run.values("score"), 0.1), smooth(run.values("exact"), 0.1)
    best = int(np.argmax(exact))
    lost = exact[best] - exact[-1]
    window = len(run.values("exact")) - len(exact) + 1
    noise = np.diff(run.values("exact")).std() / math.sqrt(window)  # of the difference of two such means
    if lost < max(LOST, NOISE * noise) or score[-1] <= score[best]:
        return None
    steps = run.series["exact"][0]
    evidence = f"exact fell from {exact[best]:.2f} to {exact[-1]:.2f}, while score rose to {score[-1]:.2f}"
    return Finding(10 * lost / LOST, steps[best], evidence, 0)


RULES: list[Callable[[Run], Finding | None]] = [  # causes before what they cause
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
    """What is wrong, its cure, and the source of the rule, from its docstring."""
    text = " ".join(rule.__doc__.split())
    what, cure, source = re.fullmatch(r"(.*?) Cure: (.*) Source: (.*)", text).groups()
    return what, cure, source


def diagnose(run: Run) -> list[tuple[Callable, Finding]]:
    """What the rules find: the worst first, causes before effects; nothing in fewer than 20 updates."""
    if run.updates() < 20:
        return []
    found = [(rule, finding) for rule in RULES if (finding := rule(run))]
    found = [pair for pair in found if not math.isnan(pair[1].badness)]  # not_finite has told that
    return sorted(found, key=lambda pair: -round(math.log10(min(pair[1].badness, 100))))


def fitting(cure: str, run: Run) -> str:
    """Those parts of a cure whose flags the run has, and has otherwise, if its flags are known."""
    known = {flag.replace("_", "-"): str(value) for flag, value in run.args.items()}
    done = {f"--{flag}" + f" {value}" * (value != "True") for flag, value in known.items()}
    done |= {"normalise observations"} if "log-std-init" in known else set()  # those scripts always do
    parts = [part for part in cure.rstrip(".").split(", ") if part not in done]
    return ", ".join(x for x in parts if not known or set(re.findall(r"--([\w-]+)", x)) <= set(known))


def describe(run: Run) -> list[str]:
    """At most ten lines about one run."""
    last = max(steps[-1] for steps, _ in run.series.values())
    found = diagnose(run)
    nothing = "nothing stands out" if run.updates() >= 20 else "too few updates to say anything"
    lines = [f"{run.folder}: {last:,} steps; " + ("" if found else nothing)]
    if found:
        lines[0] += (
            f"{len(found)} thing{'s' * (len(found) > 1)} to look at, the worst first"
            + ", four of them" * (len(found) > 4)
        )
    for number, (rule, finding) in enumerate(found[:4], 1):
        what, cure, _ = explain(rule)
        lines.append(f"{number}. {what.rstrip('.')}, from step {finding.first:,}: {finding.evidence}.")
        lines.append(f"   Try: {fitting(cure, run)}.")
    return lines


def compare(runs: list[Run]) -> list[str]:
    """A table: the last return, steps to 90 % of what the best run gained, seconds, and the worst finding.

    The best run is that of the same env, or task.
    """
    rows, curves, best = [], {}, {}
    for run in runs:
        name = "score" if run.has("score") else "episode_return"
        if run.has(name):
            steps, values = run.series[name]
            kept = np.isfinite(values)
            if kept.any():
                mean = smooth(values[kept])
                curves[run.folder] = steps[kept][len(steps[kept]) - len(mean) :], mean
                env = run.args.get("env_id", run.args.get("task"))
                best[env] = max(best.get(env, mean), mean, key=np.max)
    width = max(len(str(run.folder)) for run in runs)
    for run in runs:
        steps, mean = curves.get(run.folder, (np.array([0]), np.array([math.nan])))
        example = best.get(run.args.get("env_id", run.args.get("task")), mean)
        goal = example.min() + 0.9 * (example.max() - example.min())
        there = f"{steps[np.argmax(mean >= goal)]:,}" if (mean >= goal).any() else "never"
        found = diagnose(run)
        worst = found[0][0].__name__ if found else ""
        rows.append(
            (-mean[-1], f"{run.folder!s:{width}} {mean[-1]:9.4g} {there:>11} {run.seconds:8,.0f}  {worst}")
        )
    rows.sort(key=lambda row: (math.isnan(row[0]), row[0]))
    return [
        f"{'run':{width}} {'last':>9} {'to 90 %':>11} {'seconds':>8}  worst",
        *(row for _, row in rows),
    ]


def draw_panel(axis, names: tuple[str, ...], runs: list[Run], colours: list, theme: dict) -> None:
    """Series that belong together: of one run a colour each, of several runs a colour a run."""
    shown = [name for name in names if any(run.has(name) for run in runs)]
    axis.set_visible(bool(shown))
    axis.grid(True, lw=0.5)
    for i, name in enumerate(shown):
        alike = not i or {name, shown[0]} <= {"score", "exact"}
        target = axis if alike else axis.twinx()
        values = np.concatenate([run.values(name) for run in runs if run.has(name)])
        if name in ("kl", "value_loss", "grad_norm") and np.nanmin(values, initial=1) > 0:
            target.set_yscale("log")
        if name in ("explained_variance", "clip_frac", "finished", "signal", "reward_clip_frac"):
            target.set_ylim(-1.05 if name == "explained_variance" else -0.05, 1.05)
        for j, run in enumerate(runs):
            if run.has(name):
                dashes = "-" if not i or len(runs) == 1 else ":"
                target.plot(*run.series[name], color=colours[i if len(runs) == 1 else j], lw=1.2, ls=dashes)
        ink = colours[i] if len(runs) == 1 else theme["text.color"]
        if alike:
            axis.set_title(", ".join(shown[: i + 1]), loc="left", fontsize=9)
        else:
            target.set_ylabel(name, color=ink)


def draw(runs: list[Run], path: Path, dark: bool) -> None:
    """One page: the series of all runs, and of a single one what is wrong, shaded from where on it is."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    page, ink, grid = ("#0d1117", "#f0f6fc", "#262c34") if dark else ("#ffffff", "#1f2328", "#e4e8ec")
    trouble = "#f85149" if dark else "#cf222e"
    theme = dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), ink)
    theme |= dict.fromkeys(("axes.facecolor", "figure.facecolor", "savefig.facecolor"), page)
    theme |= dict.fromkeys(("axes.edgecolor", "grid.color"), grid)
    theme |= {"font.size": 8, "axes.spines.top": False, "axes.spines.right": False}
    colours = ["#58a6ff", "#f0883e"] if dark else ["#0969da", "#bc4c00"]
    found = diagnose(runs[0])[:4] if len(runs) == 1 else []
    with plt.rc_context(theme):
        if len(runs) > 1:
            colours = list(plt.cm.viridis(np.linspace(0.3, 1, len(runs)) - (0 if dark else 0.2)))
        figure, axes = plt.subplots(3, 2, figsize=(10, 8), layout="constrained", sharex=True)
        for panel, (axis, names) in enumerate(zip(axes.flat, PANELS, strict=True)):
            draw_panel(axis, names, runs, colours, theme)
            here = [(rule, finding) for rule, finding in found if finding.panel == panel]
            for _, finding in here:
                axis.axvspan(finding.first, axis.get_xlim()[1], color=trouble, alpha=0.12, lw=0)
            words = "\n".join(rule.__name__.replace("_", " ") for rule, _ in here)
            axis.text(0.98, 0.96, words, color=trouble, ha="right", va="top", transform=axis.transAxes)
        for axis in axes[-1]:
            axis.set_xlabel("steps")
            axis.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
        if len(runs) > 1:
            lines = [plt.Line2D([], [], color=colour) for colour in colours[:12]]
            names = [run.folder.name for run in runs[:12]]
            figure.legend(lines, names, loc="outside lower left", ncols=3, frameon=False)
        title = runs[0].folder.resolve().name if len(runs) == 1 else f"{len(runs)} runs"
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
        figure.savefig(path, dpi=120)
        plt.close(figure)


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        refuse(message)


def main() -> None:
    """Read the runs that the command line names, and say what is wrong with them."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, metavar="RUN_DIR", help="of a run, or of several")
    parser.add_argument("--dark", action="store_true", help="a picture for a dark page")
    args = parser.parse_args()
    folders = []
    for folder in args.folders:
        if not folder.is_dir():
            refuse(f"{folder} is not a folder")
        inside = sorted({path.parent for path in folder.rglob("*tfevents*")})
        if not inside:
            refuse(f"{folder}: no TensorBoard files in there")
        folders += inside
    runs, empty = [], []
    for run in map(read_run, folders):
        (runs if run.series else empty).append(run)
    if not runs:
        refuse(f"{folders[0]}: no metrics of a run in there, yet")
    for run in empty:
        print(f"{run.folder}: no metrics of a run in there, yet")
    print(*(describe(runs[0]) if len(runs) == 1 else compare(runs)), sep="\n")
    path = args.folders[0] / "report.png"
    try:
        draw(runs, path, args.dark)
    except (ImportError, OSError) as error:
        refuse(f"no {path}: {error}")
    print(f"see {path}")


if __name__ == "__main__":
    main()
