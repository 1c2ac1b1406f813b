"""Results: no number or picture without its CSV file, statistics by hand, runs that go on after a kill."""

import ast
import contextlib
import importlib.util
import itertools
import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace

import common
import compare
import gymnasium as gym
import learning_curves
import numpy as np
import plot
import pytest
import results
import run_sb3
import sweep
import timings
import torch
from PIL import Image
from stable_baselines3.common.atari_wrappers import EpisodicLifeEnv, StickyActionEnv

import ppo_atari
import ppo_continuous
import ppo_discrete
from variants import trpo

TABLE = learning_curves.read_table()
TINY = '''
[runs.tiny]
script = "ppo_discrete.py"
env = "CartPole-v1"
flags = """--total-timesteps 16_384 --checkpoints 8 --env-kwargs '{"sutton_barto_reward": false}'"""
seeds = "3"
eval_episodes = 2
'''
MISTAKEN = """
[runs.other]
script = "nothing.py"
env = "A-v0"
seeds = "1"
[runs.misfit]
script = "ppo_discrete.py"
patch = "advantages_anew"
env = "A-v0"
seeds = "1"
[runs.done]
script = "ppo_discrete.py"
env = "A-v0"
seeds = "1"
"""


def test_pages_are_what_the_csv_files_say():
    for page in results.ROOT.glob("docs/*.md"):
        text = page.read_text()
        assert results.fill(text) == text, f"{page.name} is not up to date: python benchmarks/results.py"
        assert text.count("<!-- begin ") == text.count("<!-- end "), page.name
    used = "".join(page.read_text() for page in results.ROOT.glob("docs/*.md"))
    for kind in (*results.TABLES, *results.STUDIES):
        assert f"<!-- begin {kind} " in used, kind


def test_a_number_without_its_csv_file_is_found():
    shown = {
        "summary cartpole": "| [CartPole-v1](",
        "commands cartpole": "```bash\n# CartPole-v1\npython ppo_discrete.py --env-id CartPole-v1\n```",
        "timings speed": "| CartPole-v1, 4 envs, 1 thread | ",
    }
    for marker, row in shown.items():
        text = f"By hand.\n<!-- begin {marker} -->\n| 501.0 |\n<!-- end {marker} -->\n"
        filled = results.fill(text)
        assert filled.startswith(f"By hand.\n<!-- begin {marker} -->\n") and row in filled
        assert "501.0" not in filled
        assert results.fill(filled) == filled
    for kind, end in (("sumary cartpole", "sumary cartpole"), ("preferences judges", "preferences judge")):
        with pytest.raises(SystemExit):
            results.fill(f"<!-- begin {kind} -->\n<!-- end {end} -->")


def test_a_table_without_results_stays_and_the_others_are_made(monkeypatch, tmp_path):
    monkeypatch.setattr(timings, "CSV", tmp_path / "timings.csv")
    monkeypatch.setattr(results, "csv_path", lambda name: tmp_path / f"{name}.csv")
    text = "".join(
        f"<!-- begin {kind} -->\nby hand\n<!-- end {kind} -->\n"
        for kind in ("timings speed", "preferences judges", "summary cartpole")
    )
    said = []
    filled = results.fill(text, said.append)
    assert filled.count("by hand") == 2 and "| judge | accuracy |" in filled
    assert [line.partition(" stays as it is: ")[0] for line in said] == ["timings speed", "summary cartpole"]
    with pytest.raises(SystemExit):
        results.fill(text)


def test_each_picture_on_a_page_is_one_that_is_drawn():
    used = "".join(page.read_text() for page in results.ROOT.glob("docs/*.md"))
    used += (results.ROOT / "README.md").read_text()
    names = {path.stem.rpartition("_")[0] for path in plot.FOLDER.glob("*.png")}
    assert names == {*plot.NAMES, *plot.FINISHED}
    assert all(f"pictures/{name}_{theme}.png" in used for name in names for theme in common.THEMES)


@pytest.mark.parametrize("name", plot.NAMES)
def test_pictures_show_what_the_csv_files_say(name):
    _, shown, _ = plot.find_picture(name)
    for theme in common.THEMES:
        same = common.fingerprint(*shown)
        path = plot.FOLDER / f"{name}_{theme}.png"
        assert Image.open(path).text["Fingerprint"] == same, f"python benchmarks/plot.py {name}"


@pytest.mark.long
def test_every_picture_can_be_drawn():
    """And is not empty: pictures are drawn too rarely to notice that one cannot be."""
    theme = common.THEMES["light"]
    for name in plot.NAMES:
        figure = plot.find_picture(name)[0](theme)
        for axes in figure.axes:
            assert axes.lines or not axes.get_visible(), name


def test_a_table_in_markdown():
    assert common.markdown(["", "x"], [["a", "1"], ["b", ""]]) == "| | x |\n|---|---|\n| a | 1 |\n| b | |"


def test_the_tool_for_everyone_says_what_the_page_says():
    """tools/compare.py on each CSV file: seeds, mean and interval."""
    for name in TABLE["runs"]:
        if learning_curves.csv_path(name).exists():
            source = str(learning_curves.csv_path(name))
            [(env, groups)] = compare.make_groups(compare.read_source(source)).items()
            heads, _, row, *_ = (line.split(" | ") for line in compare.table(env, groups))
            said = results.summary(name).splitlines()[2].split(" | ")
            column = 5 if "evaluation" in heads else 4
            assert [row[1], f"{row[2]} {row[3]}"] == [said[3], said[column].removesuffix(" greedy")], name


def test_timings_are_of_all_rounds_and_on_a_page():
    """That the pages show these values is checked with those of the runs, above; others' are these."""
    pages = "".join(page.read_text() for page in results.ROOT.glob("docs/*.md"))
    for table in timings.MEASURED:
        assert f"<!-- begin timings {table} -->" in pages
        found = timings.read_rounds(table)
        assert found and {len(rounds) for rounds in found.values()} == {timings.ROUNDS}
    found = timings.read_rounds("speed")
    pole, cheetah, _, breakout = (
        [f"{np.median(np.divide(found[row, who], found[row, 'peer'])):.1f}" for who in ("ours", "compiled")]
        for row in timings.SPEED
    )
    text = f"{pole[0]} on CartPole, {cheetah[0]} on HalfCheetah, {breakout[0]} on Breakout"
    page = (results.ROOT / "docs/beside_others.md").read_text()
    assert text in page and f"with `--compile` {pole[1]}, {cheetah[1]}, {breakout[1]} |" in page


def test_ratios_are_those_within_a_round():
    """Were the machine half as fast in the second round, they would stay."""
    assert timings.ratio([20, 15, 24], [10, 5, 8]) == "**3.00** (2.00 to 3.00)"
    assert timings.ratio([20, 7.5, 24], [10, 2.5, 8]) == "**3.00** (2.00 to 3.00)"


def test_a_table_measured_anew_leaves_the_others(monkeypatch, tmp_path):
    """Killed in the second round, it has changed nothing."""

    def measure(number):
        if stop and number == 2:
            raise KeyboardInterrupt
        yield "A", "s", number / speed

    monkeypatch.setattr(timings, "CSV", tmp_path / "timings.csv")
    monkeypatch.setattr(timings, "MEASURED", dict.fromkeys(("one", "other"), (measure, None)))
    stop, speed = False, 1
    timings.measure("one", "X")
    timings.measure("other", "X")
    stop, speed = True, 4
    with pytest.raises(KeyboardInterrupt):
        timings.measure("one", "Y")
    assert timings.read()[0] == {"one": "X", "other": "X"}
    assert timings.read_rounds("one") == {("A", "s"): [1, 2, 3]}
    stop = False
    timings.measure("one", "Y")
    assert timings.read()[0] == {"one": "Y", "other": "X"}
    assert timings.read_rounds("one") == {("A", "s"): [0.25, 0.5, 0.75]}
    assert timings.read_rounds("other") == {("A", "s"): [1, 2, 3]}


def test_a_changed_number_changes_the_fingerprint(monkeypatch, tmp_path):
    """Of a run, or of another that is drawn with it; so does a changed word below the panels."""
    picture = plot.TABLE["pictures"]["peers"]
    for name in ("cartpole", "sb3_cartpole"):
        shutil.copy(learning_curves.csv_path(name), tmp_path / f"{name}.csv")
    monkeypatch.setitem(plot.TABLE["pictures"], "two", picture | {"curves": [["cartpole", "sb3_cartpole"]]})
    monkeypatch.setattr(plot, "csv_path", lambda name: tmp_path / f"{name}.csv")
    prints = [common.fingerprint(*plot.find_picture("two")[1])]
    for name in ("cartpole", "sb3_cartpole"):
        path = tmp_path / f"{name}.csv"
        path.write_text(path.read_text().replace("1,2048,", "1,2049,"))
        prints.append(common.fingerprint(*plot.find_picture("two")[1]))
    plot.TABLE["pictures"]["two"]["note"] = "other"
    prints.append(common.fingerprint(*plot.find_picture("two")[1]))
    assert len(set(prints)) == 4


def test_finals_are_shown_of_the_runs_that_are_there(monkeypatch):
    """With the labels of these; curves need all of their runs. No title speaks of the evaluation."""
    monkeypatch.setitem(plot.TABLE["runs"], "nothing", plot.TABLE["runs"]["hopper"])
    names = ["nothing", "hopper_greedy", "halfcheetah"]
    picture = {"labels": ["a", "b", "c"], "finals": [names, ["nothing"] * 3]}
    [shown] = plot.panels(picture)
    assert [name for name, *_ in shown] == ["hopper_greedy", "halfcheetah"]
    figure = plot.draw_runs(picture, common.THEMES["light"])
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["b", "c"]
    assert plot.panels({"labels": ["a", "b"], "curves": [["nothing", "hopper"]]}) == []
    figure = plot.draw_runs({"curves": ["halfcheetah_greedy"]}, common.THEMES["light"])
    assert figure.axes[0].texts[0].get_text() == "HalfCheetah-v5, std 0.37"


def test_bootstrap_is_the_distribution_of_resampled_means():
    """Of few values all resamples can be written down."""
    assert compare.bootstrap([0.0, 3.0, 9.0]) == (0, 9)  # three times the same: 1 of 27, more than 2.5 %
    assert compare.bootstrap([7.0, 7.0, 7.0]) == (7, 7)
    values = [1.0, 2.0, 4.0, 8.0, 16.0]
    means = [np.mean(choice) for choice in itertools.product(values, repeat=5)]
    np.testing.assert_allclose(compare.bootstrap(values), np.quantile(means, [0.025, 0.975]), atol=0.21)
    curves = np.array([values, values[::-1]]).T
    low, high = compare.bootstrap(curves)
    assert (low[0], high[0]) == compare.bootstrap(values)
    assert low.shape == high.shape == (2,)


def test_iqm_leaves_out_a_quarter_on_either_side():
    assert compare.iqm(np.array([1000, 3, 1, 2])) == 2.5
    assert compare.iqm(np.array([-1000, 5, 6, 7, 8, 3, 4, 9, 1, 1000])) == (3 + 4 + 5 + 6 + 7 + 8) / 6
    assert compare.iqm(np.array([1.0, 2.0, 6.0])) == 3  # too few to leave any out


def test_numbers_as_they_are_printed():
    assert [compare.number(x) for x in (2136.4, -83.24, 0.984, 497.5)] == ["2136", "−83.2", "0.98", "497.5"]
    assert compare.number(-2.27, scale=80) == "−2.3"
    assert [compare.count(x) for x in (499_712, 999_424, 99_328, 10e6)] == ["500k", "1M", "100k", "10M"]
    assert [compare.count(x) for x in (1_500_000, 299_008, 500, 12_345)] == ["1.5M", "300k", "500", "12.3k"]
    assert sweep.parse_seeds("1-3,7, 9-9") == [1, 2, 3, 7, 9]
    assert compare.format_seeds([7, 1, 2, 3]) == "1-3, 7"


def test_labels_do_not_touch():
    assert compare.spread([0.1, 0.5], 0.2, 1) == [0.1, 0.5]
    np.testing.assert_allclose(compare.spread([0.5, 0.5, 0.5], 0.2, 1), [0.3, 0.5, 0.7])
    np.testing.assert_allclose(compare.spread([0.5, 0.9, 0.95], 0.2, 0.97), [0.5, 0.77, 0.97])


def test_csv_files_say_how_they_were_made_or_not(tmp_path):
    """Files from before there was a header are read as well."""
    path = tmp_path / "results/old.csv"
    path.parent.mkdir()
    path.write_text(
        "seed,steps,episode_return,eval_return\n2,5,nan,\n2,10,2.50,3.00\n1,5,1.00,\n1,10,1.50,2.00\n"
    )
    old = compare.read_csv(path)
    assert (old.command, old.made, list(old.rows)) == ("", {}, [1, 2])
    assert old.finals(2).tolist() == [1.5, 2.5]
    assert old.finals(3).tolist() == [2, 3]
    steps, curves = old.curves()
    np.testing.assert_array_equal(steps, [5, 10])
    np.testing.assert_array_equal(curves, [[1, 1.5], [np.nan, 2.5]])
    assert old.rows[2][1] == ["2", "10", "2.50", "3.00", ""]  # nor was there an entropy
    new = old._replace(command="a.py --b", made={1: "commit x, y", 2: "commit x, y"})
    compare.write_csv(path, new)
    assert path.read_text().startswith("# command: a.py --b\n# seeds 1-2: commit x, y\nseed,steps,")
    assert compare.read_csv(path) == new


def test_no_seed_is_for_search_and_for_report():
    for name, run in TABLE["runs"].items():
        assert not set(sweep.parse_seeds(run["seeds"])) & set(range(1001, 2001)), name


@pytest.mark.parametrize(
    "flags, mistake",
    [
        (["tinny"], "run tinny is not known; tiny?"),
        (["tiny", "--workers", "0"], "--workers: 0 is not at least 1"),
        (["--nonsense"], "unrecognized arguments: --nonsense"),
        (["--table", "nowhere.toml"], "nowhere.toml"),
        (["other"], "there is no nothing.py"),
        (["misfit"], "advantages_anew.patch does not fit ppo_discrete.py: error: "),
        (["done"], "made with other.py, not ppo_discrete.py"),
    ],
)
def test_mistakes_are_told_in_one_line(tmp_path, monkeypatch, capsys, flags, mistake):
    (tmp_path / "runs.toml").write_text(TINY + MISTAKEN)
    done = compare.Results("other.py", {1: "x"}, {1: [["1", "2", "3", "4"]]})
    compare.write_csv(tmp_path / "results/done.csv", done)
    monkeypatch.setattr(sys, "argv", ["learning_curves.py", "--table", str(tmp_path / "runs.toml"), *flags])
    with pytest.raises(SystemExit) as error:
        learning_curves.main()
    assert error.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert mistake in line


@pytest.mark.parametrize(
    "line, mistake",
    [
        ('flag = "--gamma 0.9"', "run wrong: key flag is not known; flags?"),
        ('like = "tinny"', "run wrong: like tinny is not known; tiny?"),
        ('published = ["hers"]', "run wrong: published hers is not known; theirs?"),
    ],
)
def test_a_table_that_is_not_understood_is_refused(tmp_path, capsys, line, mistake):
    published = "[published]\ntheirs = { value = 1 }\n"
    (tmp_path / "runs.toml").write_text(TINY + "[runs.wrong]\n" + line + "\n" + published)
    with pytest.raises(SystemExit):
        learning_curves.read_table(tmp_path / "runs.toml")
    assert mistake in capsys.readouterr().err


def test_a_run_that_is_like_another_has_what_it_does_not_change(tmp_path):
    """But its title, its note, its patch and what others have published are its own."""
    text = TINY + 'title = "Tiny"\npatch = "without_E1"\npublished = ["theirs"]\n'
    text += '[runs.next]\nlike = "tiny"\nseeds = "4"\nnote = "n"\n[published]\ntheirs = { value = 1 }\n'
    (tmp_path / "runs.toml").write_text(text)
    tiny, run = learning_curves.read_table(tmp_path / "runs.toml")["runs"].values()
    assert tiny["published"] == [{"value": 1}]
    inherited = {key: tiny[key] for key in ("script", "env", "flags", "eval_episodes")}
    assert run == inherited | {"seeds": "4", "note": "n"}


def load_patched(name, patch, tmp_path):
    """The script as benchmarks/PATCH.patch changes it."""
    path = tmp_path / patch / name
    learning_curves.apply_patch(results.ROOT / f"benchmarks/{patch}.patch", results.ROOT / name, path)
    spec = importlib.util.spec_from_file_location(patch, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[patch] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_bfloat16(tmp_path):
    """Features are rounded to 8 bits of precision; what comes after them and all gradients are not."""
    changed = load_patched("ppo_atari.py", "bfloat16", tmp_path)
    torch.manual_seed(1)
    obs = torch.randint(256, (64, 4, 84, 84), dtype=torch.uint8)
    envs = ppo_atari.make_envs(ppo_atari.Args("Breakout"), num_envs=1)
    agent, rounded = ppo_atari.Agent(envs), changed.Agent(envs)
    rounded.load_state_dict(agent.state_dict())
    outputs = []
    for policy in (agent, rounded):
        dist, value = policy(obs)
        (value.square().mean() + dist.logits[:, 0].mean()).backward()
        assert value.dtype == dist.logits.dtype == torch.float32
        outputs.append([value.detach(), dist.logits.detach(), *(p.grad for p in policy.parameters())])
    for exact, other in zip(*outputs, strict=True):
        assert other.dtype == torch.float32
        error = (other - exact).norm() / exact.norm()
        assert 0 < error < 0.1, error


@pytest.mark.long
def test_advantages_anew(tmp_path):
    """They are those of the rollout until the critic has learned, and others from the second pass on."""
    anew = load_patched("ppo_continuous.py", "advantages_anew", tmp_path)
    for epochs, learning_rate, alike in [(1, 3e-4, True), (2, 0.0, True), (2, 3e-4, False)]:
        logs = []
        for script in (ppo_continuous, anew):
            flags = {"update_epochs": epochs, "learning_rate": learning_rate, "vf_clip_coef": math.inf}
            run_dir = str(tmp_path / f"{script.__name__}-{epochs}-{learning_rate}")
            _, log = script.train(
                script.Args("Pendulum-v1", total_timesteps=1024, num_steps=512, run_dir=run_dir, **flags)
            )
            logs.append([(row["policy_loss"], row["value_loss"]) for row in log])
        assert np.allclose(*logs, rtol=1e-5, atol=1e-7) == alike, (epochs, learning_rate)


KEYS = {
    "published": {"label", "value", "spread", "seeds", "statistic", "env", "steps", "source"},
    "pictures": {"curves", "finals", "columns", "labels", "note", "alt"},
}


def test_the_table_has_nothing_that_is_not_understood():
    """And what it names is there; in a panel of curves are at most two runs, with a label each."""
    for run in TABLE["runs"].values():
        assert {"script", "env", "seeds"} <= run.keys() <= set(learning_curves.KEYS)
        assert all((results.ROOT / script).exists() for script in run["script"].split())
        for published in run.get("published", []):
            assert KEYS["published"] - {"steps", "spread"} <= published.keys() <= KEYS["published"]
    for picture in TABLE["pictures"].values():
        assert {"alt"} < picture.keys() <= KEYS["pictures"] and ("curves" in picture) != ("finals" in picture)
        for panel in picture.get("curves", picture.get("finals")):
            names = [panel] if isinstance(panel, str) else panel
            assert set(names) <= TABLE["runs"].keys()
            assert len(names) == len(picture.get("labels", "1"))
            assert len(names) <= 2 or "finals" in picture


@pytest.mark.long
def test_a_killed_benchmark_goes_on(tmp_path):
    """kill -9 of everything in the middle of a run; the same command ends with the curve of a whole run."""
    program, folder = results.ROOT / "benchmarks/learning_curves.py", tmp_path / "runs/tiny__seed=3"
    (tmp_path / "runs.toml").write_text(TINY)

    def start():
        line = [sys.executable, program, "--table", tmp_path / "runs.toml", "--runs", tmp_path / "runs"]
        return subprocess.Popen(line, stdout=subprocess.PIPE, text=True)

    killed = start()
    while not (folder / "log.txt").exists() or "8,192 steps" not in (folder / "log.txt").read_text():
        assert killed.poll() is None
        time.sleep(0.02)
    listed = subprocess.run(["ps", "-eww", "-o", "pid,args"], capture_output=True, text=True).stdout
    mine = [int(line.split()[0]) for line in listed.splitlines() if str(tmp_path) in line]
    for pid in mine:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    killed.communicate()
    assert not (tmp_path / "results").exists()
    again = start()
    flags = dict(
        total_timesteps=16_384, seed=3, checkpoints=8, eval_episodes=2, run_dir=str(tmp_path / "whole")
    )
    _, whole = ppo_discrete.train(ppo_discrete.Args(**flags))
    assert "tiny, seed 3: last 100 episodes" in again.communicate()[0]
    assert len(list(folder.glob("events*"))) == 2  # it went on, not back
    write = compare.write
    rows = [["3", f"{x['steps']}", write(x["episode_return"]), "", write(x["entropy"])] for x in whole]
    rows[-1][3] = write(whole[-1]["eval_return"])
    got = compare.read_csv(tmp_path / "results/tiny.csv")
    assert got.rows == {3: rows}
    run = learning_curves.read_table(tmp_path / "runs.toml")["runs"]["tiny"]
    assert shlex.split(got.command) == learning_curves.command(run)  # as one can paste it
    assert got.made == {3: json.loads((folder / "sweep.json").read_text())["made"]}
    assert start().communicate()[0].startswith("all seeds are there; ")  # nothing is done twice


def test_the_whole_table_can_be_asked_for(monkeypatch, tmp_path):
    """None of its runs is refused, whatever of it is there."""
    table = learning_curves.read_table(learning_curves.TABLE)
    monkeypatch.chdir(results.ROOT)  # patches are applied there, in runs/
    learning_curves.plan(table, list(table["runs"]), learning_curves.TABLE, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize(
    ("script", "flags"),
    [
        ("ppo_discrete.py", "--env-id CartPole-v1 --num-steps 512"),
        ("variants/trpo.py", "--env-id Pendulum-v1 --num-steps 2048"),
    ],
    ids=["PPO", "TRPO"],
)
def test_a_peer_is_one_more_script(tmp_path, script, flags):
    """stable-baselines3 with a script's flags leaves what learning_curves.py looks for."""
    flags += " --total-timesteps 2048 --num-minibatches 4 --eval-episodes 2"
    line = ["benchmarks/run_sb3.py", script, *flags.split(), "--run-dir", str(tmp_path / "run")]
    done = subprocess.run([sys.executable, *line], cwd=results.ROOT, stdout=subprocess.PIPE, text=True)
    mean = float(done.stdout.splitlines()[-1].split()[2])
    seed, steps, _, evaluation, _ = compare.read_folder(tmp_path / "run").rows[-1]
    assert (seed, steps) == ("1", "2048") and float(evaluation) == pytest.approx(mean, rel=1e-3)


def test_the_same_trust_region_for_the_peer():
    """Target and damping, which sb3-contrib divides by the number of an action's components: 3 here."""
    flags = dict(env_id="Hopper-v5", target_kl=0.03, cg_damping=0.3, log_std_init=-1.0)
    peer = run_sb3.make_peer("trpo", trpo.Args(**flags), 1)
    assert (peer.target_kl, peer.cg_damping) == pytest.approx((0.01, 0.1))
    assert peer.policy.log_std.tolist() == [-1.0] * 3


def test_the_same_learning_rate_for_the_peer():
    """It has counted a rollout as done when it learns from it; ours has not."""
    args = ppo_discrete.Args(total_timesteps=5500, num_envs=4, num_steps=128, target_kl=math.inf)
    peer = run_sb3.make_peer("ppo_discrete", args, 1)
    rates = [peer.lr_schedule(1 - iteration / 10) for iteration in range(1, 11)]
    np.testing.assert_allclose(rates, [args.learning_rate * (1 - i / 10) for i in range(10)])
    with pytest.raises(SystemExit, match="target-kl"):
        run_sb3.make_peer("ppo_discrete", replace(args, target_kl=0.01), 1)
    with pytest.raises(SystemExit, match="NoFrameskip"):
        run_sb3.make_peer("ppo_atari", ppo_atari.Args(), 1)


def test_the_same_game_for_the_peer():
    args = ppo_atari.Args(env_id="BreakoutNoFrameskip-v4", env_kwargs='{"mode": 4}')
    args = replace(args, sticky_actions=0.25, episodic_life=False, full_action_space=True)
    envs = run_sb3.make_peer_envs("ppo_atari", args, 1, 1)
    assert envs.action_space.n == 18 and envs.get_attr("_game_mode") == [4]
    assert envs.env_is_wrapped(StickyActionEnv) == [True] and envs.env_is_wrapped(EpisodicLifeEnv) == [False]


def test_what_is_complete_needs_no_command(tmp_path):
    """Results from before files said how they were made are no obstacle, unless a seed is to be added."""
    compare.write_csv(tmp_path / "results/done.csv", compare.Results("", {}, {1: [["1", "2", "3", "4"]]}))
    table = {"runs": {"done": {"script": "ppo_discrete.py", "env": "A-v0", "seeds": "1"}}}
    assert learning_curves.plan(table, ["done"], tmp_path / "runs.toml", tmp_path) == {}
    table["runs"]["done"]["seeds"] = "1-2"
    with pytest.raises(SystemExit):
        learning_curves.plan(table, ["done"], tmp_path / "runs.toml", tmp_path)


def test_rescaled_observations_have_a_variance_of_one():
    """The corners of the env's own bounds are those of a uniform distribution of mean 0 and variance 1."""
    envs = gym.make_vec("benchmarks.rescaled:RescaledMountainCar-v0", 1)
    env = envs.envs[0]
    low, high = env.unwrapped.low, env.unwrapped.high
    means = [env.get_wrapper_attr("func")(x) for x in (low, high, (low + high) / 2)]
    np.testing.assert_allclose(means, [[-(3**0.5)] * 2, [3**0.5] * 2, [0, 0]], atol=1e-6)
    obs, _ = envs.reset(seed=1)
    np.testing.assert_allclose(
        obs[0], (env.unwrapped.state - low) / (high - low) * 12**0.5 - 3**0.5, atol=1e-5
    )
    ends = [envs.step(np.ones(1, int))[3][0] for _ in range(200)]
    assert ends == [False] * 199 + [True]  # its time limit is the env's


def test_rescaled_rewards_are_a_hundredth():
    """Nothing else differs from the env: the same seed and actions, the same observations and time limit."""
    ours, env = gym.make("benchmarks.rescaled:RescaledAcrobot-v0"), gym.make("Acrobot-v1")
    assert (ours.reset(seed=1)[0] == env.reset(seed=1)[0]).all()
    for step in range(500):
        (obs, reward, *ends), (same_obs, full_reward, *same_ends) = ours.step(step % 2), env.step(step % 2)
        assert (obs == same_obs).all() and reward == 0.01 * full_reward and ends[:2] == same_ends[:2]
    assert ends[:2] == [False, True]


def test_what_the_first_actions_cost_on_ant():
    """The share of them that is cut off, and what a step costs, of the 1 that it pays."""
    env, page = gym.make("Ant-v5").unwrapped, (results.ROOT / "docs/mujoco.md").read_text()
    noise = np.random.default_rng(0).normal(size=(10_000, *env.action_space.shape))
    for std, share, words, cost in ((1.0, 1 / 3, "a third", 2.1), (math.exp(-1), 1 / 150, "one in 150", 0.5)):
        actions = (std * noise).clip(env.action_space.low, env.action_space.high)
        assert np.mean(np.abs(actions) == 1) == pytest.approx(share, rel=0.1)
        assert np.mean([env.control_cost(action) for action in actions]) == pytest.approx(cost, abs=0.05)
        assert words in page and f"cost {cost}" in page
    assert env.healthy_reward == 1


def test_programs_use_of_each_other_what_is_there():
    """Each attribute of a module of ours that another one names: pictures are drawn too rarely to notice."""
    paths = [*results.ROOT.glob("benchmarks/*.py"), *results.ROOT.glob("tools/*.py")]
    texts, count = {path.stem: path.read_text() for path in paths}, 0
    for stem, text in texts.items():
        tree, known = ast.parse(text), {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                known |= {x.asname or x.name: x.name for x in node.names if x.name in texts}
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id in known
            ):
                other, count = texts[known[node.value.id]], count + 1
                defined = rf"^(def|class|import|from)\b.*\b{node.attr}\b|^[\w, ]*\b{node.attr}\b.* = "
                assert re.search(defined, other, re.M), (stem, node.lineno, node.attr)
    assert count > 70


def test_a_line_is_what_json_calls_one(tmp_path):
    """A model may write marks that end a line elsewhere."""
    texts = ["a\u2028b", "c\x85", "d\n"]
    path = tmp_path / "completions.jsonl"
    path.write_text("".join(json.dumps({"text": x}, ensure_ascii=False) + "\n" for x in texts), "utf-8")
    assert [line["text"] for line in common.read_jsonl(path)] == texts


def test_digits_of_a_processor(monkeypatch, tmp_path):
    """Runs that end alike have one hash, others have theirs; times are beside those without a setting."""
    from benchmarks import digits

    rows = [["a", "none", "MLP", "f00", 2], ["a", "none", "MLP", "f00", 4], ["a", "AVX2", "MLP", "f01", 5]]
    rows += [["a", "AVX2", "MLP", "f02", 7], ["b", "none", "MLP", "f00", 1]]
    digits.write_rows(tmp_path / "digits.csv", digits.COLUMNS, [[*row, ""] for row in rows])
    monkeypatch.setattr(digits, "RESULTS", tmp_path)
    assert digits.table().splitlines()[2:5] == [
        "| none | a | `f00` (1.00) |",
        "| none | b | `f00` (1.00) |",
        "| AVX2 | a | `f01 f02` (2.50) |",
    ]
