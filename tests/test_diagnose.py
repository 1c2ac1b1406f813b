"""tools/diagnose.py: each rule finds what it is for, and nothing in a run that is healthy."""

import itertools
import json
import math
import re
import subprocess
import sys
import time

import numpy as np
import pytest
from conftest import ROOT
from torch.utils.tensorboard import SummaryWriter

sys.path.append(str(ROOT / "benchmarks"))
import diagnose  # noqa: E402
import failures  # noqa: E402

N = 100  # iterations of a run
UP, ZERO, ONE = np.linspace(0.0, 1.0, N), np.zeros(N), np.ones(N)
HEALTHY = {
    "episode_return": 20 + 400 * UP,
    "episode_length": 20 + 400 * UP,
    "kl": 0.01 * ONE,
    "clip_frac": 0.1 * ONE,
    "entropy": 0.69 - 0.3 * UP,
    "value_loss": 0.1 * ONE,
    "policy_loss": -0.01 * ONE,
    "explained_variance": 0.8 * UP,
    "grad_norm": 1.0 * ONE,
    "learning_rate": 2.5e-4 * (1 - UP),
}
ARGS = {"gamma": 0.99, "vf_clip_coef": 0.2, "max_grad_norm": 0.5, "ent_coef": 0.01, "learning_rate": 2.5e-4}
LANGUAGE = {name: HEALTHY[name] for name in ("kl", "clip_frac", "entropy", "grad_norm", "learning_rate")}
LANGUAGE |= {"score": 0.4 + 0.4 * UP, "exact": 0.4 + 0.4 * UP, "ref_kl": 0.1 * UP, "finished": 0.99 * ONE}
LANGUAGE |= {"signal": 0.5 - 0.3 * UP}
WITHOUT_SIGNAL = {name: x for name, x in LANGUAGE.items() if name != "signal"}
WITHOUT_ENDS = {name: x for name, x in HEALTHY.items() if "episode" not in name}
STUCK = {"episode_return": 20 + np.sin(np.arange(N))}
GONE = {"entropy": np.where(UP > 0.1, 1e-4, 0.69)}
BROKEN = {
    "not_finite": (HEALTHY | {"value_loss": np.where(UP > 0.5, np.nan, 1)}, {}),
    "update_too_large": (HEALTHY | {"kl": 0.5 * ONE, "clip_frac": 0.6 * ONE}, {}),
    "value_clip": (HEALTHY | {"value_loss": 1e4 * ONE, "explained_variance": ZERO}, {}),
    "entropy_collapse": (HEALTHY | STUCK | GONE, {}),
    "entropy_too_high": (HEALTHY | {"entropy": 0.693 * ONE}, {"ent_coef": 1.0}),
    "gradients_cut_off": (HEALTHY | {"grad_norm": 1e5 * ONE}, {}),
    "short_sight": (HEALTHY, {"gamma": 0.0}),
    "returns_all_alike": (HEALTHY | {"episode_return": ZERO}, {}),
    "rewards_cut_off": (HEALTHY | {"reward_clip_frac": 0.9 * ONE}, {}),
    "blind_critic": (HEALTHY | {"explained_variance": -0.1 * ONE}, {}),
    "no_episode_ends": (WITHOUT_ENDS | {"episode_return": np.full(N, np.nan)}, {}),
    "standstill": (HEALTHY | {"kl": 1e-9 * ONE, "clip_frac": ZERO}, {}),
    "collapse": (HEALTHY | {"episode_return": np.where(UP < 0.6, 20 + 400 * UP, 25)}, {}),
    "reference_left": (LANGUAGE | {"ref_kl": 9 * UP}, {}),
    "no_signal": (LANGUAGE | {"signal": ZERO, "score": ZERO}, {}),
    "unfinished": (LANGUAGE | {"finished": 0.1 * ONE}, {}),
    "reward_hacking": (LANGUAGE | {"exact": 0.5 - 0.4 * UP}, {}),
}


def write_run(folder, series, args=None, purge=None, start=0):
    """Event files as the scripts write them, 1,000 steps an iteration."""
    with SummaryWriter(folder, purge_step=purge) as writer:
        for name, values in series.items():
            for i, value in enumerate(values):
                writer.add_scalar(name, value, (start + i + 1) * 1000)
    if args is not None:
        (folder / "args.json").write_text(json.dumps(ARGS | args))
    return folder


def names(folder):
    return [rule.__name__ for rule, _ in diagnose.diagnose(diagnose.read_run(folder))]


def say(*flags):
    """What the program prints, and its exit code."""
    line = [sys.executable, str(ROOT / "tools/diagnose.py"), *map(str, flags)]
    return subprocess.run(line, capture_output=True, text=True)


def test_each_rule_has_a_broken_run():
    assert {rule.__name__ for rule in diagnose.RULES} == {*BROKEN}


@pytest.mark.parametrize(
    "series", [HEALTHY, LANGUAGE, WITHOUT_ENDS | {"score": UP}], ids=["games", "language", "others"]
)
def test_nothing_is_found_in_a_healthy_run(tmp_path, series):
    assert names(write_run(tmp_path, series, {})) == []


@pytest.mark.parametrize(
    ("series", "args"),
    [
        (HEALTHY | {"value_loss": 1e4 * ONE}, {}),
        (HEALTHY | {"episode_length": 15 * ONE}, {"gamma": 0.75}),
        (LANGUAGE | {"signal": np.where(UP < 0.3, 0.5, 0), "score": UP, "exact": UP}, {}),
        (HEALTHY | {"kl": np.where(UP < 0.4, 0.01, 1e-9)}, {}),
        (LANGUAGE | {"finished": 0.9 * ONE}, {}),
        (HEALTHY | {"reward_clip_frac": 0.2 * ONE}, {}),
        (WITHOUT_SIGNAL | {"score": 0.8 - 0.01 * UP}, {}),
    ],
    ids=[
        *("a critic that sees", "short episodes", "learned, no signal left", "annealed", "mostly finished"),
        *("few rewards cut", "a score that hardly moves"),
    ],
)
def test_what_is_as_it_should_be_is_not_accused(tmp_path, series, args):
    assert names(write_run(tmp_path, series, args)) == []


@pytest.mark.parametrize("rule", BROKEN)
def test_what_is_broken_is_found(tmp_path, rule):
    series, args = BROKEN[rule]
    assert names(write_run(tmp_path, series, args))[0] == rule


def test_a_policy_that_has_learned_may_be_certain(tmp_path):
    """Others may not; that they stand still then is nothing new. What is below 0 is of continuous actions."""
    assert names(write_run(tmp_path / "learned", HEALTHY | GONE, {})) == []
    assert names(write_run(tmp_path / "still", HEALTHY | STUCK | GONE | {"kl": ZERO}, {})) == [
        "entropy_collapse"
    ]
    low = {"entropy": 0.7 - 2 * UP}
    assert names(write_run(tmp_path / "normal", HEALTHY | STUCK | low, {})) == []
    from_the_start = {"entropy": 1e-3 * ONE}
    assert names(write_run(tmp_path / "first", HEALTHY | STUCK | from_the_start, {})) == ["entropy_collapse"]


def test_what_counts_as_learned(tmp_path):
    """A return that rises beyond its noise, and stays up there."""
    fallen = {"episode_return": np.where(UP < 0.5, 20 + 800 * UP, 420 - 300 * (UP - 0.5))}
    assert names(write_run(tmp_path / "fallen", HEALTHY | fallen | GONE, {})) == ["entropy_collapse"]
    waves = {"episode_return": 20 + np.sin(np.pi * (np.arange(N) / 6 + 0.75))}  # the last mean is a crest
    assert names(write_run(tmp_path / "waves", HEALTHY | waves | GONE, {})) == ["entropy_collapse"]


def test_noise_is_not_something_learned_that_was_lost():
    """However long a run is: noise wanders, and at some time it is at its highest."""
    rng = np.random.default_rng(0)
    accused = {250: 0, 2500: 0}
    for length in accused:
        steps = np.arange(length)
        for _ in range(50):
            run = diagnose.Run(ROOT, {}, {"episode_return": (steps, rng.normal(size=length))}, 1.0)
            accused[length] += diagnose.collapse(run) is not None
    assert max(accused.values()) <= 1
    run.series["episode_return"] = (
        steps,
        np.where(steps < 1250, 10 * steps / 1250, 0) + rng.normal(size=length),
    )
    assert diagnose.collapse(run) is not None


def test_noise_is_no_hacked_reward():
    """A score that rises a little, and answers that are right as often as before: 16 of them in an update."""
    rng = np.random.default_rng(0)
    steps, accused = np.arange(50), 0
    score = 0.4 + 0.001 * steps
    for _ in range(50):
        exact = rng.binomial(16, 0.4, size=50) / 16
        run = diagnose.Run(ROOT, {}, {"score": (steps, score), "exact": (steps, exact)}, 1.0)
        accused += diagnose.reward_hacking(run) is not None
    assert accused <= 1
    run.series["exact"] = steps, exact * (1 - steps / 50)
    assert diagnose.reward_hacking(run) is not None
    run.series["score"] = steps, score - 0.002 * steps  # lost, but for no reward
    assert diagnose.reward_hacking(run) is None


def test_a_bonus_outweighs_rewards_without_a_kl_too(tmp_path):
    """As REINFORCE logs."""
    series = {name: x for name, x in (HEALTHY | {"entropy": 0.693 * ONE}).items() if name != "kl"}
    assert names(write_run(tmp_path, series, {"ent_coef": 1.0})) == ["entropy_too_high"]


def test_twenty_updates_are_too_few_whatever_else_is_logged(tmp_path):
    """Others log each episode, or evaluations, or no episodes at all."""
    few = {name: 0.5 * ONE[:19] for name in ("losses/approx_kl", "losses/entropy")}
    assert names(write_run(tmp_path / "few", few | {"charts/episodic_return": UP})) == []
    many = {"train/approx_kl": 0.01 * ONE, "eval/mean_reward": UP[:5]}
    write_run(tmp_path / "many", many, start=0)
    write_run(tmp_path / "many", {"eval/mean_reward": UP[:2]}, start=200)
    assert diagnose.describe(diagnose.read_run(tmp_path / "many")) == [
        f"{tmp_path / 'many'}: 202,000 steps; nothing stands out"
    ]


def test_flags_that_are_no_numbers_are_not_known(tmp_path):
    flags = dict.fromkeys(("gamma", "max_grad_norm", "vf_clip_coef"), "none") | {"ent_coef": None}
    assert names(write_run(tmp_path, HEALTHY, flags)) == []


def test_a_value_clip_of_nothing_is_one(tmp_path):
    assert names(write_run(tmp_path, *BROKEN["value_clip"][:1], {"vf_clip_coef": 0}))[0] == "value_clip"


def test_a_cure_has_the_flags_of_the_run_alone(tmp_path):
    series, _ = BROKEN["update_too_large"]
    for name, args in {"ours": {"beta": 1.0}, "theirs": None}.items():
        run = diagnose.read_run(write_run(tmp_path / name, series, args))
        cure = "   Try: lower --learning-rate, larger --beta."
        if args is None:  # then they are not known
            cure = cure.replace(",", ", fewer --update-epochs, smaller --clip-coef, lower --target-kl,")
        assert diagnose.describe(run)[2] == cure


def test_a_cure_has_nothing_that_is_done_already(tmp_path):
    flags = {"anneal_lr": True, "vf_clip_coef": math.inf, "log_std_init": 0.0, "target_kl": 0.1}
    series = HEALTHY | BROKEN["collapse"][0] | {"explained_variance": -0.1 * ONE}
    cures = diagnose.describe(diagnose.read_run(write_run(tmp_path / "done", series, flags)))[2::2]
    assert cures == [
        "   Try: look at the done flags.",
        "   Try: lower --learning-rate, a lower --target-kl, an earlier stop.",
    ]
    flags |= {"anneal_lr": False, "vf_clip_coef": 0.2}
    cures = diagnose.describe(diagnose.read_run(write_run(tmp_path / "not", series, flags)))[2::2]
    assert "--vf-clip-coef inf" in cures[0] and "--anneal-lr" in cures[1]


def test_a_fall_begins_where_the_return_was_best_for_the_last_time(tmp_path):
    """Where it is bounded, as in CartPole, that may be long after the first time."""
    curve = np.interp(np.arange(N), [0, 20, 80, 99], [20, 500, 500, 30])
    [(rule, finding)] = diagnose.diagnose(
        diagnose.read_run(write_run(tmp_path, HEALTHY | {"episode_return": curve}, {}))
    )
    assert rule is diagnose.collapse and 75_000 <= finding.first <= 82_000


def test_deviations_of_others_are_no_certain_policies(tmp_path):
    """Their logs do not say that actions are continuous; the entropy of six, with a deviation of 0.3."""
    series = HEALTHY | STUCK | {"entropy": np.maximum(1.3, 8.5 - 20 * UP)}
    assert names(write_run(tmp_path / "theirs", series)) == []
    assert names(write_run(tmp_path / "ours", series, {"checkpoints": 10})) == ["entropy_collapse"]


def test_a_critic_that_once_saw_or_sees_a_little_is_not_blind(tmp_path):
    for name, values in {"once": np.where(UP < 0.07, 0.5, -1), "a little": 0.1 * ONE}.items():
        assert names(write_run(tmp_path / name, HEALTHY | {"explained_variance": values}, {})) == []


@pytest.mark.parametrize(
    ("series", "expected"),
    [
        (LANGUAGE | {"ref_kl": 2 * ONE, "finished": 0.05 * ONE}, ["reference_left", "unfinished"]),
        (LANGUAGE | {"kl": ONE, "finished": ZERO}, ["update_too_large", "unfinished"]),
        (
            HEALTHY | {"value_loss": 450 * ONE, "explained_variance": ZERO, "kl": 1e-9 * ONE},
            ["value_clip", "standstill", "blind_critic"],
        ),
    ],
    ids=["reference", "update", "clip"],
)
def test_effects_come_after_their_causes(tmp_path, series, expected):
    assert names(write_run(tmp_path, series, {})) == expected


def test_what_trpo_is_told_to_do_is_not_too_large(tmp_path):
    large = HEALTHY | {"kl": HEALTHY["kl"] + 0.2}
    assert names(write_run(tmp_path / "ppo", large, {})) == ["update_too_large"]
    assert names(write_run(tmp_path / "trpo", large | {"tries": HEALTHY["kl"]}, {})) == []


def test_samples_beyond_the_clip_show_too_large_updates(tmp_path):
    """Where many of them are, the KL need not be large."""
    assert names(write_run(tmp_path, HEALTHY | {"clip_frac": 0.6 * ONE}, {})) == ["update_too_large"]


def test_deviations_that_shrink_are_a_collapse_if_nothing_was_learned(tmp_path):
    shrinking, normal = {"entropy": 1.419 - 1.8 * UP}, {"log_std_init": 0.0}
    assert names(write_run(tmp_path / "learned", HEALTHY | shrinking, normal)) == []
    assert names(write_run(tmp_path / "stuck", HEALTHY | STUCK | shrinking, normal)) == ["entropy_collapse"]


def test_texts_learn_with_a_blind_critic(tmp_path):
    blind = LANGUAGE | {"explained_variance": -0.1 * ONE}
    assert names(write_run(tmp_path / "learned", blind, {})) == []
    stuck = {"score": 0.4 + 0.01 * np.sin(np.arange(N)), "exact": 0.4 * ONE}
    assert names(write_run(tmp_path / "stuck", blind | stuck, {})) == ["blind_critic"]


def test_lines_say_what_where_and_what_to_try(tmp_path):
    series, args = BROKEN["collapse"]
    result = say(write_run(tmp_path / "run", series, args))
    lines = result.stdout.splitlines()
    assert result.returncode == 0 and not result.stderr
    assert lines[0] == f"{tmp_path / 'run'}: 100,000 steps; 1 thing to look at, the worst first"
    assert re.fullmatch(
        r"1\. What was learned was lost again, from step 6\d,000: .* from 2\d\d.* to 25\.", lines[1]
    )
    assert lines[2].startswith("   Try: lower --learning-rate")
    assert (tmp_path / "run/report.png").read_bytes().startswith(b"\x89PNG")


def test_at_most_ten_lines_however_much_is_wrong(tmp_path):
    broken = {name: series[name] for series, _ in BROKEN.values() for name in series}
    broken |= {"kl": ONE, "value_loss": 1e4 * ONE, "explained_variance": -ONE, "grad_norm": 1e9 * ONE}
    broken |= {"score": STUCK["episode_return"], "ref_kl": 9 * ONE}
    run = diagnose.read_run(write_run(tmp_path, broken, {"gamma": 0.0}))
    assert len(diagnose.diagnose(run)) > 4 and len(diagnose.describe(run)) <= 10


def test_the_worst_comes_first_and_causes_before_effects(tmp_path):
    worse, bad = HEALTHY | {"kl": 0.11 * ONE, "grad_norm": 1e9 * ONE}, HEALTHY | {"kl": 50 * ONE}
    assert names(write_run(tmp_path / "a", worse, {})) == ["gradients_cut_off", "update_too_large"]
    assert names(write_run(tmp_path / "b", bad, {"gamma": 0.75})) == ["update_too_large", "short_sight"]
    alike = HEALTHY | {"kl": 0.11 * ONE, "grad_norm": 510 * ONE}  # then causes come before effects
    assert names(write_run(tmp_path / "c", alike, {})) == ["update_too_large", "gradients_cut_off"]


@pytest.mark.long
@pytest.mark.parametrize("series", [HEALTHY, LANGUAGE], ids=["games", "language"])
@pytest.mark.parametrize("first", [0, 50])
def test_what_is_not_finite_does_no_harm(tmp_path, series, first):
    """One series after the other, and all at once."""
    for name in [*series, "all"]:
        bad = {
            key: np.where(np.arange(N) < first, x, np.nan)
            for key, x in series.items()
            if name in (key, "all")
        }
        folder = write_run(tmp_path / name, series | bad, {"log_std_init": 0.0} if name == "entropy" else {})
        found = names(folder)
        assert "not_finite" in found or name in (
            "episode_return",
            "episode_length",
            "explained_variance",
            "policy_loss",
        )
    diagnose.draw([diagnose.read_run(folder)], tmp_path / "report.png", dark=False)


def test_of_a_resumed_run_the_last_word_counts(tmp_path):
    write_run(tmp_path, HEALTHY | {"kl": ONE}, {})
    time.sleep(1)  # the names of the files, by which they are sorted, have the second in them
    write_run(tmp_path, {name: x[5:] for name, x in HEALTHY.items()}, {}, purge=5001, start=5)
    steps, kl = diagnose.read_run(tmp_path).series["kl"]
    assert len(steps) == N and (kl[:5] == 1).all() and np.allclose(kl[5:], 0.01)


@pytest.mark.parametrize("table", [diagnose.CLEANRL, diagnose.SB3], ids=["CleanRL", "stable-baselines3"])
def test_runs_of_others_are_read(tmp_path, table):
    theirs = {ours: name for name, ours in table.items()}
    for kl, found in ((0.01, []), (0.5, ["update_too_large"])):
        series = {name: x for name, x in (HEALTHY | {"kl": kl * ONE}).items() if name in theirs}
        if "train/entropy_loss" in table:
            series["entropy"] = -series["entropy"]
        folder = write_run(tmp_path / str(kl), {theirs[name]: x for name, x in series.items()})
        assert names(folder) == found
        assert np.allclose(diagnose.read_run(folder).values("entropy"), HEALTHY["entropy"])


def test_flags_of_cleanrl_are_read(tmp_path):
    theirs = {ours: name for name, ours in diagnose.CLEANRL.items()}
    write_run(tmp_path, {theirs[name]: x for name, x in HEALTHY.items() if name in theirs})
    with SummaryWriter(tmp_path) as writer:
        writer.add_text("hyperparameters", "|param|value|\n|-|-|\n|gamma|0.0|\n|exp_name|ppo|")
    assert names(tmp_path) == ["short_sight"]


def test_episodes_of_cleanrl_become_a_mean_of_a_hundred(tmp_path):
    write_run(tmp_path, {"charts/episodic_return": np.arange(300.0)})
    values = diagnose.read_run(tmp_path).values("episode_return")
    assert values[0] == 0 and values[9] == 4.5 and values[299] == np.arange(200, 300).mean()


def test_several_runs_are_compared(tmp_path):
    slow = HEALTHY | {"episode_return": np.where(UP < 0.5, 20, 800 * UP - 380)}
    write_run(tmp_path / "slow", slow, {})
    write_run(tmp_path / "quick", HEALTHY | {"episode_return": np.minimum(420, 20 + 4000 * UP)}, {})
    write_run(tmp_path / "none", BROKEN["no_episode_ends"][0], {})
    result = say(tmp_path)
    assert result.returncode == 0, result.stderr
    rows = [line.split() for line in result.stdout.splitlines()]
    assert rows[0][:2] == ["run", "last"] and [row[0] for row in rows[1:4]] == [
        f"{tmp_path}/{name}" for name in ("quick", "slow", "none")
    ]
    quick, slow = (int(row[2].replace(",", "")) for row in rows[1:3])
    assert quick < 20_000 < 90_000 < slow and rows[3][2] == "never" and rows[3][4] == "no_episode_ends"
    assert (tmp_path / "report.png").exists()


def test_runs_are_compared_with_the_best_of_their_env(tmp_path):
    """From its own first return: another that diverges does not make it easier to be there."""
    returns = {"best": 20 + 400 * UP, "diverges": -5000 * UP, "other env": 4000 * UP}
    for name, values in returns.items():
        env = {"env_id": "Other-v0" if name == "other env" else "Env-v0"}
        write_run(tmp_path / name.replace(" ", "_"), HEALTHY | {"episode_return": values}, env)
    lines = say(tmp_path).stdout.splitlines()
    there = {line.split()[0].rpartition("/")[2]: line.split()[2] for line in lines[1:4]}
    assert there["diverges"] == "never" and there["best"] == there["other_env"]
    assert 85_000 < int(there["best"].replace(",", "")) < 95_000


def test_a_run_without_metrics_yet_is_left_out(tmp_path):
    write_run(tmp_path / "a_new_one", {}, {})
    assert say(tmp_path).returncode == 2
    write_run(tmp_path / "old", HEALTHY, {})
    write_run(tmp_path / "older", HEALTHY, {})
    result = say(tmp_path)
    first, *rest = result.stdout.splitlines()
    assert result.returncode == 0 and "a_new_one: no metrics" in first and len(rest) == 4


def test_every_series_has_a_colour(tmp_path):
    """Of a run that logs all that is drawn, which none of ours does."""
    series = {name: UP for panel in diagnose.PANELS for name in panel}
    run = diagnose.read_run(write_run(tmp_path / "run", series, {}))
    for dark in (False, True):
        diagnose.draw([run], tmp_path / "report.png", dark)
    assert (tmp_path / "report.png").exists()


def test_of_a_run_that_failed_the_log_is_quoted(tmp_path):
    """Whether it had begun to write curves or not; there may be blank lines at its end."""
    (tmp_path / "failed").mkdir()
    (tmp_path / "failed/log.txt").write_text("Traceback\nValueError: no such level\n\n")
    assert say(tmp_path / "failed").stderr.endswith("; its log.txt ends with ValueError: no such level\n")
    write_run(tmp_path / "failed", {}, {})
    assert say(tmp_path / "failed").stderr.endswith("; its log.txt ends with ValueError: no such level\n")
    write_run(tmp_path / "old", HEALTHY, {})
    first, *_ = say(tmp_path / "failed", tmp_path / "old").stdout.splitlines()
    assert first.endswith(
        "failed: no metrics of a run in there, yet; its log.txt ends with ValueError: no such level"
    )


def test_what_cannot_be_read_costs_a_line(tmp_path):
    whole = write_run(tmp_path / "whole", HEALTHY, {})
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    write_run(tmp_path / "damaged_args", HEALTHY, {})
    (tmp_path / "damaged_args/args.json").write_text('{"gamma": ')
    write_run(tmp_path / "list_of_args", HEALTHY, {})
    (tmp_path / "list_of_args/args.json").write_text("[0.99]")
    for name, content in (("no_events", b""), ("noise", bytes(range(256)) * 20)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "events.out.tfevents.1").write_bytes(content)
    for name in ("empty", "file", "damaged_args", "list_of_args", "no_events", "noise", "not_there"):
        result = say(tmp_path / name)
        assert result.returncode == 2 and not result.stdout, name
        assert len(result.stderr.splitlines()) == 1 and str(tmp_path / name) in result.stderr, result.stderr
    assert say().returncode == 2 and say(whole, "--nonsense").returncode == 2


def test_what_is_half_written_is_read_as_far_as_it_goes(tmp_path):
    folder = write_run(tmp_path, HEALTHY, {})
    path = next(folder.glob("events*"))
    path.write_bytes(path.read_bytes()[:-25])
    assert len(diagnose.read_run(folder).values("kl")) == N and names(folder) == []
    series = HEALTHY | {
        "kl": 0.5 * ONE,
        "clip_frac": HEALTHY["clip_frac"][:-1],
    }  # where an iteration was cut in two
    assert names(write_run(tmp_path / "two", series, {})) == ["update_too_large"]


def test_a_flipped_bit_is_found(tmp_path):
    """In whatever byte it is; the other runs of a report are told of all the same."""
    folder = write_run(tmp_path / "flipped", {"kl": ONE[:3]}, {})
    whole = write_run(tmp_path / "whole", HEALTHY, {})
    path = next(folder.glob("events*"))
    content = path.read_bytes()
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
        with pytest.raises(diagnose.Damaged, match="failed .* crc32 check"):
            diagnose.read_run(folder)
    first, second, *_ = say(folder, whole).stdout.splitlines()
    assert first.startswith(f"{folder}: DataLossError: ") and second.startswith(f"{whole}: ")


def test_why_a_run_failed(tmp_path):
    """As its sweep has it, in this folder or above."""
    folder = write_run(tmp_path / "deeper", HEALTHY, {})
    (tmp_path / "sweep.json").write_text('{"failed": "exit code 1, ValueError: no such level"}')
    assert say(folder).stdout.splitlines()[1] == "The run failed: exit code 1, ValueError: no such level"


def test_a_pause_is_not_time_of_the_run(tmp_path, monkeypatch):
    nights = itertools.count(step=10**5)  # one before each file

    def later(path):
        night = next(nights)
        for event in read(path):
            event.wall_time += night
            yield event

    read = diagnose.read_records

    write_run(tmp_path, {"kl": ONE[:5]}, {})
    write_run(tmp_path, {"kl": ONE[:5]}, {}, start=5)
    monkeypatch.setattr(diagnose, "read_records", later)
    assert 0 < diagnose.read_run(tmp_path).seconds < 1000


def test_what_cannot_be_is_not_said(tmp_path):
    """A bonus that is not there outweighs nothing; before the only step of an update, the KL is 0."""
    grown = HEALTHY | {"entropy": 0.7 + 9 * UP}
    for coef, found in ((0.0, []), (1e-4, []), (0.01, ["entropy_too_high"])):
        folder = write_run(tmp_path / f"bonus{coef}", grown, {"log_std_init": -1.0, "ent_coef": coef})
        assert names(folder) == found
    still = HEALTHY | {"kl": ZERO, "clip_frac": ZERO}
    for epochs, found in ((1, []), (4, ["standstill"])):
        folder = write_run(tmp_path / f"a2c{epochs}", still, {"update_epochs": epochs, "num_minibatches": 1})
        assert names(folder) == found


def test_what_is_said_of_runs_is_kept(tmp_path, monkeypatch):
    """The first two findings of each, in the order of the runs, apart for those that were held out."""
    monkeypatch.setattr(failures, "CSV", tmp_path / "failures.csv")
    healthy, broken = (
        write_run(tmp_path / "a", HEALTHY, {}),
        write_run(tmp_path / "b", HEALTHY | {"kl": ONE}, {}),
    )
    failures.judge(
        [
            ({}, healthy),
            ({"rule": "update_too_large"}, broken),
            ({"rule": "collapse", "held_out": True}, healthy),
        ]
    )
    assert failures.read_said("chosen_by") == {"": [""], "update_too_large": ["update_too_large"]}
    assert failures.read_said("held_out") == {"collapse": [""]}


def test_a_run_of_the_family_is_read(tmp_path):
    import ppo_discrete

    ppo_discrete.train(
        ppo_discrete.Args(run_dir=str(tmp_path / "run"), total_timesteps=4096, eval_episodes=0)
    )
    run = diagnose.read_run(tmp_path / "run")
    assert run.has(*HEALTHY) and len(run.values("kl")) == 8 and run.args["gamma"] == 0.99
    assert diagnose.diagnose(run) == []
    assert diagnose.describe(run) == [f"{tmp_path / 'run'}: 4,096 steps; too few updates to say anything"]


def test_runs_to_choose_thresholds_by_are_not_those_to_test_them(tmp_path, monkeypatch):
    monkeypatch.setattr(failures, "FOLDER", tmp_path)
    runs = [run for run, _ in failures.read_table()]
    folders = [folder for _, folder in failures.read_table()]
    assert len({*folders}) == len(folders)
    kinds = {held_out: [run for run in runs if run.get("held_out", False) == held_out] for held_out in (0, 1)}
    assert (
        sum("rule" not in run for run in kinds[0]) >= 40 and sum("rule" not in run for run in kinds[1]) == 20
    )
    seeds = [{run["seed"] for run in kinds[held_out]} for held_out in (0, 1)]
    assert not seeds[0] & seeds[1]
    for kind in kinds.values():
        rules = {run["rule"] for run in kind if "rule" in run}
        assert rules == {rule.__name__ for rule in diagnose.RULES} - {"not_finite"}
    for run, folder in failures.read_table():
        line = failures.command(run, folder)
        assert (ROOT / line[1]).exists() and f"--seed {run['seed']} " in " ".join(line) + " "


def test_what_is_said_becomes_a_table():
    said = {
        "": ["", "", "collapse"],
        "collapse": ["collapse", "standstill, collapse", "standstill", ""],
    }
    assert failures.count_named(said).splitlines()[2:] == [
        "| collapse | 4 | 2 | 1 | standstill (1), nothing (1) |",
        "| **all of these** | 4 | 2 | | |",
        "| nothing: healthy | 3 | 1 accused | | collapse (1) |",
    ]
