"""docs/language.md: its lines are those of the scripts, its numbers and edits are computed anew."""

import math
import re
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from conftest import ROOT
from test_operations import same  # noqa: F401
from texts import loss_of, make_args, only_grpo, only_ppo, raw, script  # noqa: F401

from variants import grpo, ppo_llm

# ---- docs/language.md


def test_four_tokens_by_hand(only_ppo):
    """The table of the document, recomputed by the script."""
    page = (ROOT / "docs/language.md").read_text()
    section = page.partition("## One chain, and four tokens")[2].partition("\n## ")[0]
    rows = [
        list(map(float, row.strip("| ").split("|"))) for row in re.findall(r"^\| \d \|.*$", section, re.M)
    ]
    _, rewards, values, residuals, advantages, returns, ratios, gains = np.array(rows).T
    next_values, dones = np.append(values[1:], 0)[:, None], np.array([[0], [0], [0], [1]])
    for gae_lambda, expected in ((0, residuals), (0.5, advantages), (1, 1 - values)):
        result = ppo_llm.compute_gae(rewards[:, None], values[:, None], next_values, dones, 1, gae_lambda)
        np.testing.assert_allclose(result[:, 0], expected, atol=1e-12)
    np.testing.assert_allclose(advantages + values, returns)
    np.testing.assert_allclose(np.minimum(ratios * advantages, ratios.clip(0.8, 1.2) * advantages), gains)
    fields = dict(advantages=torch.tensor(advantages))
    loss, _ = loss_of(ppo_llm, torch.tensor(ratios).log(), raw(ppo_llm), **fields)
    assert loss.item() == pytest.approx(-0.19875) and "0.19875" in section


def edited(name):
    """grpo.py with the edit of that name in the document."""
    block = re.search(rf"```diff {name}\n(.*?)```", (ROOT / "docs/language.md").read_text(), re.S)[1]
    old, new = ("".join(line[1:] + "\n" for line in block.splitlines() if line[0] == sign) for sign in "-+")
    source = Path(grpo.__file__).read_text()
    assert source.count(old) == 1
    module = ModuleType(f"grpo_{name}")
    sys.modules[module.__name__] = module
    exec(source.replace(old, new).replace("__file__", repr(grpo.__file__)), module.__dict__)
    return module


@pytest.fixture(scope="module")
def tokens():
    """Six tokens of completions of 3, 2 and 1."""
    fields = dict(advantages=torch.tensor([1.0, 1, 1, -2, -2, 3]), lengths=torch.tensor([3, 3, 3, 2, 2, 1]))
    fields["mask"] = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0]]).bool()
    return torch.tensor([0.5, -0.1, 0.2, 0.6, -0.1, 0.1]), fields


def test_rloo(only_grpo):
    result = edited("RLOO").group_advantages(np.array([1.0, 2.0, 6.0]), 3, False)
    np.testing.assert_allclose(result, [1 - 4, 2 - 3.5, 6 - 1.5])


def test_ratio_of_a_sequence(only_grpo, tokens):
    """The geometric mean of its tokens' (GSPO)."""
    log_ratio, fields = tokens
    args = raw(grpo, clip_coef=0.1, clip_coef_high=0.15, loss_norm="sequence", sequence_ratio=True)
    logprobs = log_ratio.clone().requires_grad_()
    batch = {name: fields.get(name, torch.zeros(6)) for name in grpo.Batch._fields}
    loss, metrics = grpo.grpo_loss(logprobs, grpo.Batch(**batch), args)
    ratios = [math.exp(x) for x in (0.2, 0.25, 0.1)]
    gains = [min(r * a, min(max(r, 0.9), 1.15) * a) for r, a in zip(ratios, (1, -2, 3), strict=True)]
    assert loss.item() == pytest.approx(-sum(gains) / 3)
    loss.backward()
    wanted = [0, 0, 0, 2 * ratios[1] / 6, 2 * ratios[1] / 6, -3 * ratios[2] / 3]
    assert logprobs.grad.tolist() == pytest.approx(wanted, abs=1e-6)
    kls = log_ratio.exp() - 1 - log_ratio  # the divergences are of tokens all the same
    assert metrics["kl"].item() == pytest.approx(kls.mean().item())
    ref_kls = log_ratio.exp() * ((-log_ratio).exp() - 1 + log_ratio) / fields["lengths"]
    assert metrics["ref_kl"].item() == pytest.approx(ref_kls.sum().item() / 3)


def test_cispo(only_grpo, tokens):
    log_ratio, fields = tokens
    args, module = raw(grpo, clip_coef_high=0.28), edited("CISPO")
    logprobs = log_ratio.clone().requires_grad_()
    batch = {name: fields.get(name, torch.zeros(6)) for name in grpo.Batch._fields}
    module.grpo_loss(logprobs, module.Batch(**batch), args)[0].backward()
    torch.testing.assert_close(logprobs.grad, -log_ratio.exp().clamp(max=1.28) * fields["advantages"] / 6)


def test_weights_of_a_sampler_that_is_not_the_learner(make_args, monkeypatch):  # noqa: F811
    """Its tokens count by how much likelier they are under the learner, and at most twice."""
    module, seen = edited("truncated_importance"), []
    complete, loss = module.complete, module.grpo_loss

    def from_another_policy(*args):
        *found, mask, sampled = complete(*args)
        return *found, mask, sampled - torch.tensor([1.5, 4, 0.5, 1, 1]).log()[: mask.shape[1]]

    def record(logprob, batch, args):
        seen.append(batch)
        return loss(logprob, batch, args)

    monkeypatch.setattr(module, "complete", from_another_policy)
    monkeypatch.setattr(module, "check_gap", lambda gap, args: None)
    monkeypatch.setattr(module, "grpo_loss", record)
    flags = dict(num_minibatches=1, update_epochs=1, eval_episodes=0, reward="texts:first_alone")
    module.train(make_args(grpo, 1, **flags))
    [batch] = seen
    places = (batch.mask.cumsum(1) - 1)[batch.mask]
    weights = torch.tensor([1.5, 2, 0.5, 1, 1])[places]
    signs = batch.advantages / weights  # of the eight completions, the first one is better than its group
    assert {round(x, 3) for x in signs.tolist()} <= {1.5, -0.5, 0.0}
    assert len(set(signs.round(decimals=3).tolist())) > 1


def test_lines_of_the_six_steps_are_those_of_the_scripts():
    """Of which the document may leave out the last words of a comment."""
    page = (ROOT / "docs/language.md").read_text().partition("in six steps\n")[2].partition("\n## ")[0]
    lines = "".join(re.findall(r"```(?:python|diff)\n(.*?)```", page, re.S)).splitlines()
    names = ("ppo_discrete.py", "variants/ppo_llm.py", "variants/grpo.py")
    sources = "".join((ROOT / name).read_text() for name in names)
    assert len(lines) == 12
    for line in lines:
        assert f" {line.lstrip('+- ')}" in sources, line


@pytest.mark.parametrize(
    ("section", "name", "count"),
    [("## Preferences", "dpo", 3), ("## Answers of very different lengths", "ppo_llm_truncated", 2)],
)
def test_lines_of_the_other_sections_are_those_of_their_scripts(section, name, count):
    page = (ROOT / "docs/language.md").read_text().partition(section)[2].partition("\n## ")[0]
    lines = "".join(re.findall(r"```python\n(.*?)```", page, re.S)).splitlines()
    source = (ROOT / f"variants/{name}.py").read_text()
    assert len(lines) == count
    for line in lines:
        assert f" {line}\n" in source, line
