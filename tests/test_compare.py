"""tools/compare.py: groups by what differs, statistics by hand, the files of others, few seeds called few."""

import itertools
import json
import math
import os
import subprocess
import sys

import compare  # noqa: E402
import numpy as np
import pytest
from conftest import ROOT
from PIL import Image
from torch.utils.tensorboard import SummaryWriter

STEPS = np.arange(1, 101) * 1000


@pytest.fixture
def make_run(tmp_path):
    """make_run(name, returns, evaluation, **flags) writes a run as scripts here do, in tmp_path/name."""

    def make(name, returns, evaluation=None, steps=STEPS, **flags):
        with SummaryWriter(tmp_path / name) as writer:
            for step, value in zip(steps, np.broadcast_to(returns, len(steps)), strict=True):
                writer.add_scalar("episode_return", value, step)
                writer.add_scalar("entropy", 0.5, step)
            if evaluation is not None:
                writer.add_scalar("eval_return", evaluation, steps[-1])
        flags = {"env_id": "A-v0", "seed": 1, "gamma": 0.99, "run_dir": name} | flags
        (tmp_path / name / "args.json").write_text(json.dumps(flags))
        (tmp_path / name / "checkpoint.pt").write_bytes(b"\0\1X ppo.py 1.0\0\2")

    return make


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """run(flags) -> what the program prints, and its exit code; its files are in tmp_path/out."""

    def call(*flags):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["compare.py", *flags, "--out", "out"])
        try:
            compare.main()
            code = 0
        except SystemExit as error:
            code = error.code
        out, err = capsys.readouterr()
        return code, out, err

    return call


def table(out):
    """{label: {head: cell}} of the first table."""
    rows = [
        [cell.strip(" *") for cell in line.split("|")[1:-1]] for line in out.splitlines() if line[:1] == "|"
    ]
    return {row[0]: dict(zip(rows[0][1:], row[1:], strict=True)) for row in rows[2:]}


def test_the_probability_of_an_improvement_by_hand():
    """Wins among all pairs, ties count half; p counts the arrangements of seeds that are as far apart."""
    a, b = np.array([3.0, 5.0]), np.array([1.0, 3.0, 4.0])
    assert compare.improvement(a, b)[0] == pytest.approx((1 + 0.5 + 0 + 3) / 6)
    assert compare.improvement(b, a)[0] == pytest.approx(1 - 4.5 / 6)
    assert compare.improvement(b + 10, a) == (1, pytest.approx(2 / math.comb(5, 2)))
    a, b = np.array([1.0, 2.0, 6.0, 7.0]), np.array([3.0, 4.0, 5.0, 8.0, 9.0])
    both = np.concatenate([a, b])
    differences = []
    for places in itertools.combinations(range(9), 4):
        rest = np.delete(both, places)
        differences.append(abs(np.greater.outer(both[list(places)], rest).mean() - 0.5))
    better, p = compare.improvement(a, b)
    assert p == pytest.approx(np.mean(np.array(differences) >= abs(better - 0.5) - 1e-9))


@pytest.mark.parametrize("seeds", range(3, 11))
def test_without_a_difference_one_comparison_in_twenty_is_marked_at_most(seeds):
    """Of single comparisons; and of tables of twenty, after the correction, one in twenty has a mark."""
    random = np.random.default_rng(seeds)
    chances = np.array([compare.improvement(*random.normal(size=(2, seeds)))[1] for _ in range(600)])
    assert np.mean(chances <= 0.05) <= 0.07  # of 600: a twentieth, and two standard errors
    tables = [(compare.corrected(row) <= 0.05).any() for row in chances.reshape(30, 20)]
    assert np.mean(tables) <= 0.15  # of 30


def test_equal_seeds_are_permuted():
    """Whole numbers from 0 to 3, five seeds each, without a difference."""
    random = np.random.default_rng(0)
    chances = [compare.improvement(*random.integers(4, size=(2, 5)))[1] for _ in range(60)]
    assert np.mean(np.array(chances) <= 0.05) <= 0.12


def test_what_ten_seeds_can_see_and_five_cannot():
    """A difference as large as the spread of the seeds: half of the cases, and a quarter."""
    random = np.random.default_rng(0)
    for seeds, share in ((5, 0.24), (10, 0.52)):
        found = [
            compare.improvement(random.normal(size=seeds) + 1, random.normal(size=seeds))[1] <= 0.05
            for _ in range(600)
        ]
        assert np.mean(found) == pytest.approx(share, abs=0.05)


def test_a_table_by_hand(make_run, run):
    """Ramps of three seeds to 100, 110 and 150, and to 50, 60, 70, without evaluations."""
    for gamma, ends in ((0.9, (100, 110, 150)), (0.5, (50, 60, 70))):
        for seed, end in enumerate(ends):
            make_run(f"runs/x{gamma}{seed}", end * STEPS / 1e5, seed=seed, gamma=gamma)
    code, out, _ = run("runs", "--threshold", "80")
    assert code == 0 and list(table(out)) == ["gamma 0.9", "gamma 0.5"]
    best, other = table(out).values()
    assert best["last 100 training episodes"] == "120.0" and best["seeds"] == "3"
    assert best["95 % interval"] == "[100.0, 150.0]" and best["IQM"] == "120.0"
    assert best["whole training"] == "60.6"  # of a ramp from 1.2 to 120
    assert (best["steps to 80.0, median"], other["steps to 80.0, median"]) == ("73k", "never")
    assert (best["seeds that get there"], other["seeds that get there"]) == ("3", "0")
    assert "A seed of gamma 0.9 is better than one of gamma 0.5 with probability 1.00 (p = 0.1)" in out
    assert "Intervals of fewer than ten seeds are too narrow; here are as few as 3." in out
    assert (run("runs")[1]).count("steps to 108.0") == 1  # 90 % of the way from 0.6 to 120


def test_evaluations_count_where_all_have_them(make_run, run):
    for seed in (1, 2, 3):
        make_run(f"runs/a{seed}", 10, 20 + seed, seed=seed)
        make_run(f"runs/b{seed}", 30, 5, seed=seed, gamma=0.5)
    assert table(run("runs")[1])["gamma 0.99"]["evaluation"] == "22.0"
    make_run("runs/b4", 30, None, seed=4, gamma=0.5)
    out = run("runs")[1]
    assert table(out)["gamma 0.99"]["last 100 training episodes"] == "10.0"
    assert "- Returns are those of training: not every seed of gamma 0.5 was evaluated.\n" in out


def test_runs_that_go_on_are_compared_as_far_as_all_have_come(make_run, run):
    for seed in (1, 2):
        make_run(f"runs/a{seed}", STEPS / 1000, 99, seed=seed)
    make_run("runs/a3", STEPS[:40] / 1000, seed=3, steps=STEPS[:40])
    code, out, _ = run("runs")
    assert "not all come equally far: all is compared at 40,000 steps" in out
    assert table(out)["ppo"]["last 100 training episodes"] == "40.0" and "A-v0, 40k steps" in out


def test_a_group_is_one_version_of_one_script(make_run, run, tmp_path):
    """Two scripts of the same name in two folders, or one that was edited: seeds are not put together."""
    for seed, digest in enumerate(["a1b2c3d4"] * 2 + ["99ffee00"] * 3, 1):
        make_run(f"runs/x{seed}", seed, seed=seed)
        job = {"script": "ppo.py", "flags": [], "seed": seed, "sha256": digest}
        (tmp_path / f"runs/x{seed}/sweep.json").write_text(json.dumps(job))
    _, out, _ = run("runs")
    found = {label: row["seeds"] for label, row in table(out).items()}
    assert found == {"ppo of version 99ffee": "3", "ppo of version a1b2c3": "2"}
    assert set(table(run("mine=runs")[1])) == {"mine of version 99ffee", "mine of version a1b2c3"}
    for name, folder in (("one", ""), ("two", "edited/")):
        rows = {1: [["1", "1000", "5.00", "", ""]]}
        command = f"{folder}ppo.py --env-id A-v0"
        compare.write_csv(tmp_path / f"{name}.csv", compare.Results(command, {}, rows))
    assert set(table(run("one.csv", "two.csv")[1])) == {"ppo.py", "edited/ppo.py"}


def test_what_is_left_out_is_named(make_run, run, tmp_path):
    """Runs whose curves are of something else, and those of a sweep that have none."""
    for seed in (1, 2):
        make_run(f"runs/a__seed={seed}/deeper", seed, seed=seed)
        (tmp_path / f"runs/a__seed={seed}/sweep.json").write_text('{"script": "a.py", "flags": []}')
    (tmp_path / "runs/a__seed=3").mkdir()
    (tmp_path / "runs/a__seed=3/sweep.json").write_text("{}")
    with SummaryWriter(tmp_path / "judge") as writer:
        writer.add_scalar("accuracy", 1, 1)
    code, out, err = run("runs", "b=judge")
    assert code == 0 and table(out)["a"]["seeds"] == "2"
    assert err.splitlines() == [
        "compare.py: left out, as they have no curves; see their log.txt: runs/a__seed=3",
        "compare.py: left out, as none of episode_return, score, accuracy is in their curves: judge",
    ]


def test_runs_that_failed_or_are_damaged_are_named(make_run, run, tmp_path):
    for seed in range(1, 5):
        make_run(f"runs/a{seed}", seed, seed=seed)
    job = {"script": "a.py", "flags": [], "failed": "exit code 1, ValueError: no such level"}
    (tmp_path / "runs/a3/sweep.json").write_text(json.dumps(job))
    (tmp_path / "runs/a4/args.json").write_text("{")
    code, out, err = run("runs")
    [row] = table(out).values()
    assert code == 0 and row["seeds"] == "2"
    damage, failure = err.splitlines()
    assert damage.startswith("compare.py: left out, as it cannot be read: runs/a4: JSONDecodeError: ")
    assert failure == "compare.py: left out, as they failed: runs/a3 (exit code 1, ValueError: no such level)"
    code, _, err = run("runs/a3")
    assert code == 2 and err.endswith("runs/a3: no run in there has a return that can be compared\n")


def test_two_seeds_are_called_two(make_run, run):
    """They have no interval, which would be their range."""
    for seed in (1, 2):
        make_run(f"runs/a{seed}", 10 * seed, seed=seed)
        make_run(f"runs/b{seed}", 100, seed=seed, gamma=0.5)
    _, out, _ = run("runs")
    row = table(out)["gamma 0.99"]
    assert (row["seeds"], row["95 % interval"]) == ("2", "–")
    assert "(too few seeds for a test)" in out and "here are as few as 2." in out
    assert compare.of_seeds(1) == "1 seed" and compare.of_seeds(2) == "2 seeds"


def test_a_band_is_drawn_of_three_seeds_or_more(make_run, tmp_path, monkeypatch):
    import matplotlib.axes

    drawn = []
    monkeypatch.setattr(matplotlib.axes.Axes, "fill_between", lambda *_, **how: drawn.append(how["color"]))
    for group, n in (("a", 2), ("b", 3)):
        for seed in range(n):
            make_run(f"runs/{group}{seed}", np.sin(STEPS), seed=seed, gamma=len(group + "b" * n))
    found = compare.make_groups(compare.read_source(str(tmp_path / "runs")))
    compare.draw(found, "light").savefig(tmp_path / "a.png")
    assert drawn == [compare.COLOURS["light"][1]]
    assert np.array(Image.open(tmp_path / "a.png"))[0, 0, :3].tolist() == [255] * 3


def test_groups_are_named_by_what_differs():
    """The script if there are several, and flags of the same script that change what it does."""

    def group(*runs):
        rows = [["1", "5", "1", "", ""]]
        runs = [compare.Run(script, flags, i, rows, "", "") for i, (script, flags) in enumerate(runs)]
        return {env: list(groups) for env, groups in compare.make_groups(runs).items()}

    a, b = {"env_id": "A", "x": "1", "threads": "1"}, {"env_id": "A", "x": "1", "threads": "2"}
    assert group(("s", a), ("s", b)) == {"A": ["s"]}
    assert group(("s", a), ("s", b | {"x": "2"})) == {"A": ["x 1", "x 2"]}
    assert group(("s", a), ("s", b | {"y": "2"})) == {"A": ["default flags", "y 2"]}
    assert group(("s", a), ("t", b | {"x": "2"})) == {"A": ["s", "t"]}
    assert group(("s", a), ("t", b), ("t", b | {"x": "2"})) == {"A": ["s", "t, x 1", "t, x 2"]}
    assert group(("s", a), ("s", b | {"env_id": "B"})) == {"A": ["s"], "B": ["s"]}
    assert group(("s", a), ("PPO", {})) == {"A": ["s", "PPO"]}  # whose env nobody says
    flags = compare.parse_flags(["--learning-rate", "1e-3", "--no-norm-adv", "--log-std", "-1", "--compile"])
    assert flags == {"learning_rate": "1e-3", "norm_adv": "False", "log_std": "-1", "compile": "True"}


def test_files_of_cleanrl_and_of_stable_baselines3(tmp_path, run):
    """CleanRL's are in a folder of a sweep; those of stable-baselines3 say nothing of their flags."""
    for seed in (1, 2, 3):
        folder = tmp_path / f"runs/ppo__seed={seed}"
        with SummaryWriter(folder / "runs/A-v0__ppo__1__123") as writer:
            writer.add_text(
                "hyperparameters", f"|param|value|\n|-|-|\n|env_id|A-v0|\n|seed|{seed}|\n|exp_name|x|"
            )
            for step in range(1, 301):  # of each episode, as it ends
                writer.add_scalar("charts/episodic_return", 10 * seed, 10 * step)
        (folder / "sweep.json").write_text(
            json.dumps({"script": "cleanrl/ppo.py", "flags": [], "seed": seed})
        )
        with SummaryWriter(tmp_path / f"sb3/PPO_{seed}") as writer:
            for step in range(1, 31):
                writer.add_scalar("rollout/ep_rew_mean", 5, 100 * step)
                writer.add_scalar("eval/mean_reward", 6, 100 * step)
    code, out, _ = run("runs", "sb3")
    assert code == 0 and {label: row["last 100 training episodes"] for label, row in table(out).items()} == {
        "ppo": "20.0", "PPO": "5.00"}  # fmt: skip
    assert list(table(run("theirs=sb3")[1])) == ["theirs"]
    assert table(run("theirs=sb3", "runs")[1])["theirs"]["seeds"] == "3"
    assert table(run("sb3")[1])["PPO"]["evaluation"] == "6.00"


def test_what_is_written_can_be_read_again(make_run, run, tmp_path):
    """With its commands; the same runs give the same pictures and tables, byte by byte."""
    for seed in (1, 2, 3):
        make_run(f"runs/a{seed}", STEPS**0.5 * seed, 5, seed=seed)
        make_run(f"runs/b{seed}", 30, 5, seed=seed, gamma=0.5)
    run("runs")
    first = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    csv = ["A-v0__gamma_0.99.csv", "A-v0__gamma_0.5.csv"]
    assert set(first) == {*csv, "table.md", "picture_light.png", "picture_dark.png"}
    assert b"# command: ppo --env-id A-v0 --seed 1 --gamma 0.99" in first[csv[0]]
    (tmp_path / "keep").mkdir()
    for name in csv:
        (tmp_path / "keep" / name).write_bytes(first[name])
    run(*(f"keep/{name}" for name in csv))
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == first


@pytest.mark.parametrize(
    "name, mean, interval",
    [("hopper_995", "3468", "[3377, 3559]"), ("halfcheetah_std", "5875", "[5579, 6149]")],
)
def test_it_says_what_the_page_of_results_says(run, name, mean, interval):
    assert f"(../benchmarks/results/{name}.csv)" in (ROOT / "docs/results.md").read_text()
    [row] = table(run(str(ROOT / f"benchmarks/results/{name}.csv"))[1]).values()
    assert (row["evaluation"], row["95 % interval"]) == (mean, interval)
    line = next(
        x
        for x in (ROOT / "docs/results.md").read_text().splitlines()
        if f"(../benchmarks/results/{name}.csv)" in x
    )
    assert f"**{mean}** {interval}" in line


def test_mistakes_are_told_in_one_line(make_run, run, tmp_path):
    for source, mistake in [("gone", "gone is neither a folder"), ("gone.csv", "there is no gone.csv")]:
        code, _, error = run(source)
        assert code == 2 and mistake in error and len(error.splitlines()) == 1
    (tmp_path / "empty").mkdir()
    assert "no run in there has a return" in run("empty")[2]
    for text, mistake in HOSTILE.items():
        (tmp_path / "bad.csv").write_text(text)
        code, _, error = run("bad.csv")
        assert code == 2 and mistake in error and len(error.splitlines()) == 1


HOSTILE = {
    "": "bad.csv: no run in there has a return",
    "seed,steps\n1\n": "bad.csv is no file of this program: could not convert string",
    "seed,steps\none,2,3,4,5\n": "bad.csv is no file of this program: invalid literal",
    "seed,steps\n1,two,3,4,5\n": "bad.csv is no file of this program: could not convert",
}


def test_a_file_that_an_editor_has_touched_is_read(make_run, run, tmp_path):
    """With a mark at its begin, and blank lines at its end."""
    make_run("runs/a", 7)
    run("runs")
    text = (tmp_path / "out/A-v0__ppo.csv").read_text()
    (tmp_path / "mine.csv").write_text("\ufeff" + text + "\n\n", "utf-8")
    assert run("mine.csv")[0] == 0


def test_a_seed_that_is_there_twice_counts_once(make_run, run):
    """The run that has come further; the other one is named."""
    make_run("runs/a", 1)
    make_run("runs/b", 2, steps=STEPS[:50])
    code, out, error = run("runs")
    assert code == 0 and "left out, as ppo has their seeds already; " in error
    assert error.endswith("tells apart what has the same flags: runs/b\n")
    assert table(out)["ppo"]["last 100 training episodes"] == "1.00"
    assert list(table(run("a=runs/a", "b=runs/b")[1])) == ["b", "a"]


def test_runs_that_are_too_short_are_left_out(make_run, run):
    """One of a few steps, to see whether it starts, and one whose last return is no number."""
    for seed in (1, 2):
        make_run(f"runs/{seed}", seed, seed=seed)
        make_run(f"runs/g{seed}", 5, seed=seed, gamma=0.5)
    make_run("runs/smoke", 9, seed=3, steps=STEPS[:9])
    make_run("runs/broken", np.where(STEPS > 99_000, np.nan, 9.0), seed=4)
    code, out, error = run("runs")
    assert code == 0 and table(out)["gamma 0.99"]["seeds"] == table(out)["gamma 0.5"]["seeds"] == "2"
    assert "left out, as they have less than a tenth of the steps of others: runs/smoke\n" in error
    assert "left out, as their last return is no number: runs/broken\n" in error
    assert "100k steps" in out


def test_a_task_of_a_language_model_is_an_env(make_run, run, tmp_path):
    """It is none of the env of others, and its score and evaluation are compared."""
    make_run("runs/cartpole", 400)
    for name, tag in (("runs/grpo", "score"), ("runs/dpo", "accuracy")):
        with SummaryWriter(tmp_path / name) as writer:
            for step in STEPS:
                writer.add_scalar(tag, 0.5, step)
                writer.add_scalar("grad_norm", 0.5, step)
            writer.add_scalar(f"eval_{tag}", 0.75, STEPS[-1])
        flags = {"task": f"{tag}.jsonl", "seed": 1}
        (tmp_path / name / "args.json").write_text(json.dumps(flags))
    out = run("runs")[1]
    for env in ("A-v0", "score.jsonl", "accuracy.jsonl"):
        assert f"| {env}, 100k steps |" in out
    assert "is better than" not in out and out.count("**0.75**") == 2


def test_nothing_is_written_through_a_link(make_run, run, tmp_path):
    make_run("runs/a", 7)
    (tmp_path / "mine").write_text("a year of work")
    (tmp_path / "out").mkdir()
    names = ["table.md", "table.md.part", "picture_light.png", "A-v0__ppo.csv"]
    for name in names:
        (tmp_path / "out" / name).symlink_to(tmp_path / "mine")
    assert run("runs")[0] == 0
    assert (tmp_path / "mine").read_text() == "a year of work"


def test_a_console_without_a_minus_sign_gets_another(make_run, tmp_path):
    """As that of Windows has none; files are in UTF-8 all the same."""
    make_run("runs/a", -7)
    line = [sys.executable, str(ROOT / "tools/compare.py"), "runs"]
    env = os.environ | {"PYTHONIOENCODING": "cp1252"}
    done = subprocess.run(line, cwd=tmp_path, env=env, capture_output=True)
    assert done.returncode == 0 and b"**?7.00**" in done.stdout
    assert "**−7.00**" in (tmp_path / "runs/compare/table.md").read_text("utf-8")
