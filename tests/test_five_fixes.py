"""docs/five_fixes.md: its lines are those of the scripts, its numbers those of its tables, or recomputed."""

import itertools
import re
import shlex

import learning_curves
import numpy as np
import pytest
import torch
import tyro
from conftest import ROOT
from torch.distributions import Categorical, Independent

import ppo_discrete
import reinforce_baseline

PAGE = (ROOT / "docs/five_fixes.md").read_text()
SCRIPTS = {"reinforce_baseline.py": reinforce_baseline, "ppo_discrete.py": ppo_discrete}


def test_lines_are_those_of_the_scripts():
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    sources = [(ROOT / name).read_text() for name in SCRIPTS]
    assert len(blocks) == 5
    for line in "".join(blocks).splitlines():
        assert any(f" {line.strip()}\n" in source for source in sources), line


def test_each_rung_is_one_change_away_from_the_one_below():
    section = PAGE.partition("The command of each rung")[2].partition("### ")[0]
    lines = [shlex.split(line)[1:] for line in re.findall(r"^python .*$", section, re.M)]
    runs = learning_curves.read_table()["runs"]
    rungs = [run for name, run in runs.items() if name.startswith("ladder")]
    for (script, *flags), run in zip(lines, rungs, strict=True):
        assert [script, *flags] == [run["script"], "--env-id", run["env"], *run["flags"].split()]
    for (below, *flags), (above, *other_flags) in itertools.pairwise(lines):
        old = vars(tyro.cli(SCRIPTS[below].Args, args=flags))
        new = vars(tyro.cli(SCRIPTS[above].Args, args=other_flags))
        changed = {key for key in old.keys() & new.keys() if old[key] != new[key]}
        assert len(changed) + (below != above) == 1, (below, above, changed)


def test_the_one_number_of_each_fix_is_that_of_the_tables():
    said = re.findall(r"^\*\*One number\.\*\*.*$", PAGE, re.M)
    bold = [re.findall(r"\*\*([−\d.]+|no signal)\*\*", line) for line in said]
    rows = {row.split(" | ")[0]: row.split(" | ") for row in re.findall(r"^\| (\+? ?\w.*) \|$", PAGE, re.M)}
    noise = []
    for name in ("REINFORCE", "+ critic", "+ GAE"):
        [row] = re.findall(rf"^\| {re.escape(name)} \| .*noise of the gradient \*\*([\d.]+)", PAGE, re.M)
        measured = float(row)  # on 100 rollouts, which is corrected
        noise.append("no signal" if measured >= 100 else f"{measured / (1 - measured / 100):.0f}")
    assert [numbers[0] for numbers in bold[:3]] == noise
    assert f"from {noise[1]} to" in said[2]
    whole = [
        re.search(rf"^\| {re.escape(x)} \| .*effective|^\| {re.escape(x)} \| .*explained", PAGE, re.M)
        for x in ("+ GAE", "+ reuse")
    ]
    gae, reuse = (re.findall(r"\*\*(.+?)\*\*", row[0])[1] for row in whole)
    assert bold[3] == [reuse] and f"from {gae} to" in said[3]
    worst = [rows[f"+ {name}, eight epochs"][3].split(",")[0] for name in ("clip", "reuse")]
    assert bold[4] == worst


def test_the_first_program_has_fifteen_lines_and_learns():
    """Besides imports; it begins to learn, with a friendly seed at least."""
    [program] = re.findall(r"```python runs\n(.*?)```", PAGE, re.S)
    assert len([line for line in program.splitlines() if line and "import" not in line]) == 15
    returns = []
    torch.manual_seed(1)
    short = program.replace("range(500)", "range(150)")
    exec(short, {"print": lambda episode, score: returns.append(score)})
    assert len(returns) == 150 and np.mean(returns[-30:]) > 2 * np.mean(returns[:30])


def test_three_steps_by_hand():
    rows = [
        list(map(float, row.strip("| ").split("|"))) for row in re.findall(r"^\| \d \|[ \d.|-]+$", PAGE, re.M)
    ]
    _, rewards, values, residuals, *advantages = np.array(rows).T[..., None]
    dones = np.array([[0], [0], [1]])
    next_values = np.append(values[1:], [[0.0]], 0)  # nothing comes after the fall
    np.testing.assert_allclose(rewards + 0.9 * next_values - values, residuals)
    for gae_lambda, expected in zip((0, 0.5, 1), advantages, strict=True):
        found = ppo_discrete.compute_gae(rewards, values, next_values, dones, 0.9, gae_lambda)
        np.testing.assert_allclose(found, expected, atol=1e-12)


def test_the_clip_in_six_cells():
    """Each cell of the table: the objective and its gradient, by the script's own loss."""
    cells = [re.findall(r"\| ([^|]+)", row)[1:] for row in re.findall(r"^\| A [<>] 0 .*$", PAGE, re.M)]
    names = ["obs", "actions", "logprobs", "advantages", "returns", "values"]
    args = ppo_discrete.Args(norm_adv=False, vf_coef=0.0, ent_coef=0.0)
    for row, advantage in zip(cells, (1.5, -1.5), strict=True):
        row[1] = row[{"as on the left": 0, "as on the right": 2}[row[1].strip()]]
        for cell, ratio in zip(row, (0.5, 1.1, 1.7), strict=True):
            logits = torch.tensor([[0.3, -0.4]], dtype=torch.float64, requires_grad=True)
            dist = Independent(Categorical(logits=logits), 0)
            logprob = dist.log_prob(torch.tensor([0]))
            fields = dict(actions=torch.tensor([0]), logprobs=(logprob - np.log(ratio)).detach())
            fields["advantages"] = torch.tensor([advantage])
            batch = {name: torch.zeros(1) for name in names} | fields
            loss, _ = ppo_discrete.ppo_loss(dist, torch.zeros(1), ppo_discrete.Batch(**batch), 0.2, args)
            [gradient] = torch.autograd.grad(-loss, logits, retain_graph=True)
            [score] = torch.autograd.grad(logprob, logits)
            if "∇L = 0" in cell:
                bound = 1.2 if "(1 + ε) A" in cell else 0.8
                assert -loss.item() == pytest.approx(bound * advantage) and not gradient.any()
            else:
                assert "L = r A, ∇L = r A ∇log π" in cell and -loss.item() == pytest.approx(ratio * advantage)
                torch.testing.assert_close(gradient, ratio * advantage * score)


def test_the_commands_of_ppo_as_reinforce_end_with_the_same_weights(tmp_path):
    section = PAGE.partition("## When PPO is REINFORCE")[2]
    agents = []
    for line in re.search(r"```bash\n(.*?)```", section, re.S)[1].splitlines():
        _, script, *flags = shlex.split(line)
        short = ["--total-timesteps", "5120", "--eval-episodes", "0", "--run-dir", str(tmp_path / script)]
        agents.append(SCRIPTS[script].train(tyro.cli(SCRIPTS[script].Args, args=[*flags, *short]))[0])
    for ours, theirs in zip(*(agent.parameters() for agent in agents), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
