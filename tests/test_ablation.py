"""The table of changes: each fits its script, which runs with it, and the page says what was measured."""

import importlib.util
import shlex
import sys

import numpy as np
import pytest
from conftest import ROOT

sys.path.append(str(ROOT / "benchmarks"))
import ablation  # noqa: E402

CASES = [
    (name, script, env)
    for script, env in (("ppo_discrete.py", "CartPole-v1"), ("ppo_continuous.py", "Pendulum-v1"))
    for name, change in ablation.TABLE["changes"].items()
    if change.get("script", script) == script and "edits" in change
]

UNCHANGED = {}  # weights that a script learns, for all its cases


def imported(name, text, tmp_path, monkeypatch):
    path = tmp_path / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(f"ablation_{name}", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.long
@pytest.mark.parametrize(("name", "script", "env"), CASES)
def test_each_edit_changes_what_is_learned(name, script, env, tmp_path, monkeypatch):
    """But for clips that only matter where numbers are large, and time limits where none is reached."""

    def weights(key, text):
        module = imported(key, text, tmp_path, monkeypatch)
        flags = dict(env_id=env, total_timesteps=1024, num_steps=256, num_envs=2, eval_episodes=0)
        agent, _ = module.train(module.Args(**flags, run_dir=str(tmp_path / f"run_{key}")))
        return np.concatenate([x.detach().numpy().ravel() for x in agent.actor.parameters()])

    if script not in UNCHANGED:
        UNCHANGED[script] = weights("nothing", (ROOT / script).read_text())
    same = np.array_equal(UNCHANGED[script], weights(name, ablation.edited(name, script)))
    assert same == (name in ("obs_clip", "reward_clip") or name == "time_limits" and env == "CartPole-v1")


@pytest.mark.parametrize("env", ablation.TABLE["envs"])
def test_flags_of_each_change_are_others(env, tmp_path, monkeypatch):
    script, flags = (ablation.TABLE["envs"][env][key] for key in ("script", "flags"))
    module = imported("script", (ROOT / script).read_text(), tmp_path, monkeypatch)
    base = module.tyro.cli(module.Args, args=shlex.split(flags))
    assert all(ablation.default_of(flag, env) == getattr(base, flag) for flag in ablation.CURVES)
    for name in ablation.TABLE["changes"]:
        change = ablation.change_in(name, env)
        if change["flags"] and ablation.is_possible(name, env):
            words = [*shlex.split(flags), *shlex.split(change["flags"])]
            assert module.tyro.cli(module.Args, args=words) != base, name


def test_the_page_says_what_was_measured():
    assert (ROOT / "docs/tuning.md").read_text().count("| nothing changed |") >= 3


def test_a_table_by_hand(monkeypatch):
    """Three seeds each: the change is better in six of nine pairs."""
    monkeypatch.setitem(ablation.TABLE, "envs", {"X": {"seeds": "1-3"}})
    returns = {"nothing": (1.0, 3.0, 2.0), "clip": (2.5, 4.0, 1.5)}
    rows = [(change, seed, x) for change, xs in returns.items() for seed, x in enumerate(xs, 1)]
    rows = [dict(env="X", change=c, seed=str(s), whole=str(x), evaluation=str(x + 10)) for c, s, x in rows]
    monkeypatch.setattr(ablation, "read_dicts", lambda _: rows)
    lines = ablation.table("X").splitlines()
    assert lines[2] == "| D08 | no clip | 2.67 [1.50, 4.00] | 12.7 [11.5, 14.0] | 0.67 | 0.7 |"
    assert lines[3].startswith("| | nothing changed | 2.00 [") and len(lines) == 4
    monkeypatch.setattr(ablation, "read_dicts", lambda _: rows[1:])
    assert ablation.table("X").splitlines() == lines[:2]


def test_an_overview_by_hand(monkeypatch):
    """Two envs: no clip is better in one, worse in the other, where GAE was not tried; a flag has values."""
    envs = {env: {"seeds": "1-5", "script": "ppo_discrete.py", "flags": ""} for env in ("X-v0", "Y-v0")}
    monkeypatch.setitem(ablation.TABLE, "envs", envs)
    means = {("X-v0", "nothing"): 10, ("X-v0", "clip"): 20, ("X-v0", "gae"): 10, ("X-v0", "clip_0_1"): 5}
    means |= {("Y-v0", "nothing"): 10, ("Y-v0", "clip"): 5}
    rows = [
        dict(env=env, change=change, seed=str(seed), whole=str(mean + seed))
        for (env, change), mean in means.items()
        for seed in range(1, 6)
    ]
    monkeypatch.setattr(ablation, "read_dicts", lambda _: rows)
    assert ablation.overview("details").splitlines() == [
        "| tag | change | X | Y |",
        "|---|---|---|---|",
        "| | nothing changed | 13.0 | 13.0 |",
        "| D05 | λ = 1: Monte Carlo | 13.0 | |",
        "| D08 | no clip | 23.0\xa0↑ | **8.00** |",
    ]
    assert ablation.overview("clip_coef").splitlines() == [
        "| `--clip-coef` | X | Y |",
        "|---|---|---|",
        "| 0.1 | **8.00** | |",
        "| 0.2 | 13.0 (default) | 13.0 (default) |",
    ]
