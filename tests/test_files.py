"""What lies in a run's folder may come from elsewhere: links, other files, checkpoints that were edited."""

import itertools
import math
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import ATARI, each_of, name_of, with_toys
from every import GAMES, LANGUAGE, PREFERENCES, small_args
from test_operations import checkpoint, same, sealed

from variants import dpo, ppo_atari_distributed, ppo_llm_truncated, reward_model

script = each_of([*GAMES, ppo_atari_distributed, *LANGUAGE, *PREFERENCES])
RUNS = {}  # {script: args of its run}, which tests only read


@pytest.fixture
def run(script, tmp_path, tmp_path_factory, monkeypatch):
    """The args of a finished run that lies in a folder of its own."""
    if script in ATARI:
        monkeypatch.setattr(script, "make_envs", with_toys(script))
    if script not in RUNS:
        RUNS[script] = small_args(script, tmp_path_factory.mktemp("finished"))
        script.train(RUNS[script])
    shutil.copytree(RUNS[script].run_dir, tmp_path / "run")
    return replace(RUNS[script], run_dir=str(tmp_path / "run"))


def longer(args):
    """Args that go on with the run, twice as long."""
    [name] = [name for name in vars(args) if name in ("total_timesteps", "total_episodes", "total_pairs")]
    return replace(args, resume=args.run_dir, **{name: 2 * getattr(args, name)})


def edit(run, change):
    """Change what the checkpoint of a run holds."""
    state = checkpoint(run.run_dir)
    change(state)
    sealed(Path(run.run_dir, "checkpoint.pt"), state)


NAMES = ["args.json", "args.json.tmp", "checkpoint.tmp", "completions.jsonl", "completions.jsonl.tmp"]
NAMES += ["model/config.json", "model/model.safetensors", "model/tokenizer_config.json"]


@pytest.mark.long
def test_no_link_is_written_through(script, run, tmp_path):
    """When a run goes on, and when it is evaluated."""
    mine = tmp_path / "mine"
    mine.write_text("a year of work")
    links = [Path(run.run_dir, name) for name in NAMES if script is reward_model or "model" not in name]
    for path in links:
        path.unlink(missing_ok=True)
        path.symlink_to(mine)
    script.train(longer(run))
    assert mine.read_text() == "a year of work"
    assert not Path(run.run_dir, "args.json").is_symlink()
    assert checkpoint(run.run_dir)["iteration"] == 4


def test_a_linked_folder_is_not_written_to(tmp_path):
    script, mine = reward_model, tmp_path / "mine"
    mine.mkdir()
    args = small_args(script, tmp_path, iterations=1)
    script.train(args)
    shutil.rmtree(tmp_path / "run/model")
    (tmp_path / "run/model").symlink_to(mine)
    script.train(replace(args, resume=args.run_dir))
    assert not list(mine.iterdir()) and (tmp_path / "run/model/config.json").exists()


def test_a_folder_of_other_files_is_left_alone(script, tmp_path):
    args = small_args(script, tmp_path)
    folder = Path(args.run_dir)
    folder.mkdir()
    (folder / "args.json").write_text("{}")
    for _ in range(2):
        with pytest.raises(script.Mistake, match="run holds other files"):
            script.make_run_dir(args)
    assert [path.name for path in folder.iterdir()] == ["args.json"]
    (folder / "args.json").unlink()
    assert script.make_run_dir(args)[0] == folder  # an empty one is free


@pytest.mark.long
def test_a_save_that_fails_leaves_the_last_checkpoint(script, run, monkeypatch):
    fsync, calls = os.fsync, itertools.count()

    def full(file):  # from the second save on
        if next(calls):
            raise OSError("no space left")
        fsync(file)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space left"):
        script.train(longer(run))
    assert checkpoint(run.run_dir)["iteration"] == 2
    script.load(run.run_dir)


CONTENTS = {
    "iteration is text": lambda state: state.update(iteration="1"),
    "iteration is negative": lambda state: state.update(iteration=-5),
    "episodes are nothing": lambda state: state.update(episodes=None, running=None),
    "episodes are text": lambda state: state.update(episodes=[("a", "b", "c")], recent=["a"]),
    "episodes are pairs": lambda state: state.update(episodes=[(1, 2)], recent=[(1, 2)], running=[(1, 2)]),
    "a flag is a number": lambda state: state["args"].update(env_id=5, task=5),
    "a flag is text": lambda state: state["args"].update(learning_rate="fast"),
    "a flag is out of range": lambda state: state["args"].update(learning_rate=-1),
    "args are a list": lambda state: state.update(args=[1]),
    "a weight is not a number": lambda state: next(iter(state["agent"].values())).fill_(math.nan),
    "a weight is text": lambda state: state["agent"].update({next(iter(state["agent"])): "large"}),
    "the optimizer is a list": lambda state: state.update(optimizer=[1]),
    "the optimizer's state is nothing": lambda state: state["optimizer"].update(state=None),
}


@pytest.mark.long
def test_contents_are_checked_as_flags_are(script, run):
    """Whoever has computed the digest."""
    whole = Path(run.run_dir, "checkpoint.pt").read_bytes()
    without = [*LANGUAGE, *PREFERENCES] if script is not ppo_llm_truncated else []
    for what, change in CONTENTS.items():
        if "episodes" in what and script in without:
            continue
        Path(run.run_dir, "checkpoint.pt").write_bytes(whole)
        edit(run, change)
        with pytest.raises(script.Mistake, match=r"checkpoint\.pt cannot be used: "):
            script.train(longer(run))


@pytest.mark.long
def test_the_optimizer_is_that_of_the_script(script, run, tmp_path):
    """Its epsilon, say, and the sign of its steps, whatever the file has."""
    shutil.copytree(run.run_dir, tmp_path / "other")
    other = replace(run, run_dir=str(tmp_path / "other"))
    edit(other, lambda state: state["optimizer"]["param_groups"][0].update(maximize=True, eps=1.0))
    script.train(longer(run))
    script.train(longer(other))
    ours, theirs = (checkpoint(args.run_dir) for args in (run, other))
    assert same(ours["agent"], theirs["agent"]) and same(ours["optimizer"], theirs["optimizer"])


def test_a_pipe_is_not_waited_for(script, tmp_path):
    os.mkfifo(tmp_path / "checkpoint.pt")
    with pytest.raises(script.Mistake, match="it is no file"):
        script.load(tmp_path)


@pytest.mark.parametrize("script", [*LANGUAGE, *PREFERENCES], ids=name_of)
def test_what_has_changed_meanwhile_is_not_trained_on(script, run, tmp_path, monkeypatch):
    """The task, the pairs, or the reward: one letter of it."""
    task, reward = tmp_path / "task.jsonl", tmp_path / f"changing_{name_of(script)}.py"
    task.write_text(Path(run.task).read_text())
    reward.write_text("from every import spread")
    monkeypatch.syspath_prepend(tmp_path)
    args = replace(run, task=str(task), reward=f"{reward.stem}:spread", run_dir=str(tmp_path / "other"))
    script.train(args)
    pairs = [Path(args.run_dir, "pairs.jsonl")] * (script in PREFERENCES)
    for path in [task, reward, *pairs]:
        whole = path.read_text()
        path.write_text(whole.replace("1", "2", 1) if path != reward else whole + "  ")
        with pytest.raises(
            script.Mistake, match="its (task|reward|pairs) has changed since the run was saved"
        ):
            script.train(longer(args))
        path.write_text(whole)
    script.train(longer(args))


@pytest.mark.parametrize("script", [*LANGUAGE, *PREFERENCES], ids=name_of)
def test_a_model_that_has_changed_is_not_trained_on(script, run, tmp_path):
    """A folder; another reward is another flag, which may change."""
    agent = script.Agent(run)
    agent.model.save_pretrained(tmp_path / "model")
    agent.tokenizer.save_pretrained(tmp_path / "model")
    args = replace(run, model=str(tmp_path / "model"), run_dir=str(tmp_path / "other"))
    script.train(args)
    other = "texts:equal" if script in LANGUAGE else args.reward
    script.train(replace(longer(args), reward=other))
    (tmp_path / "model/config.json").write_text((tmp_path / "model/config.json").read_text() + " ")
    with pytest.raises(script.Mistake, match="its model has changed since the run was saved"):
        script.train(longer(args))


@pytest.mark.parametrize("script", [*LANGUAGE, *PREFERENCES], ids=name_of)
def test_a_warm_start_that_diverges_is_not_saved(script, tmp_path):
    args = small_args(script, tmp_path, sft_steps=3, sft_learning_rate=1e12)
    with pytest.raises(script.Mistake, match="the warm start has diverged"):
        script.train(args)
    assert not Path(args.run_dir, "checkpoint.pt").exists()


@pytest.mark.parametrize("script", [*LANGUAGE, *PREFERENCES], ids=name_of)
def test_a_warm_start_teaches_what_could_be_sampled(script, tmp_path, record):
    """A model may have no positions for more."""
    args = small_args(script, tmp_path, task=str(tmp_path / "long.jsonl"))
    lines = [f'{{"prompt": "{i}>", "answer": "{"123" * i}"}}' for i in range(1, 9)]
    (tmp_path / "long.jsonl").write_text("\n".join(lines))
    task = script.make_task(args)
    taught = record(script.Agent, "forward")
    script.warm_start(script.Agent(args), args, task)
    [[(_, tokens, _, mask), _]] = taught
    assert mask.shape[1] <= args.max_new_tokens and len(mask) == len(tokens)


@pytest.mark.parametrize("script", [*LANGUAGE, dpo], ids=name_of)
def test_scores_are_not_lost_where_answers_cannot_be_kept(script, run, monkeypatch, capsys):
    """As in a folder that can only be read."""

    def refuse(*given):
        raise OSError("read-only")

    monkeypatch.setattr(script, "write_file", refuse)
    task = script.make_task(run)
    script.report(script.Agent(run), run, Path(run.run_dir), task)
    out, err = capsys.readouterr()
    assert "of 3 held-out prompts" in out and err.endswith("the answers are not kept: read-only\n")
