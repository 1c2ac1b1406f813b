"""docs/derivations_language.md: each step as an exact sum over four tokens; its lines are the scripts'."""

import itertools
import math
import re

import numpy as np
import pytest
import torch
from conftest import ROOT

from variants import grpo

PAGE = (ROOT / "docs/derivations_language.md").read_text()
V = 4  # tokens


@pytest.fixture(autouse=True)
def exact():
    """Sums of doubles, as if they were exact."""
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(3)
    yield
    torch.set_default_dtype(torch.float32)


def close(a, b):
    torch.testing.assert_close(torch.as_tensor(a), torch.as_tensor(b), rtol=1e-9, atol=1e-12)


def slope(loss, logits):
    return torch.autograd.grad(loss, logits, retain_graph=True)[0]


def policy_and_reference(scale=1.0):
    """Log-probabilities (V,) of both, and the logits of the policy."""
    logits = torch.randn(V, requires_grad=True)
    reference = (logits + scale * torch.randn(V)).detach().log_softmax(0)
    return logits.log_softmax(0), reference, logits


def kl(a, b):
    """Between log-probabilities; the last dimension is the vocabulary."""
    return (a.exp() * (a - b)).sum(-1)


# ---- 12. Three numbers for one KL


def estimators(log_policy, log_reference):
    k = log_reference - log_policy
    return -k, k**2 / 2, k.exp() - 1 - k


def test_three_estimators_of_a_kl():
    for scale in (1.0, 0.1, 0.01):
        p, q, _ = policy_and_reference(scale)
        k1, k2, k3 = estimators(p, q)
        close((p.exp() * k1).sum(), kl(p, q))
        close((p.exp() * k3).sum(), kl(p, q))
        assert (k1 < 0).any() and (k2 >= 0).all() and (k3 >= 0).all()
        error = ((p.exp() * k2).sum() - kl(p, q)).abs()
        assert 0 < error < 3 * scale**3


def test_k3_varies_less_than_k1():
    """Near the reference; far from it, it may vary much more. (Both have the same mean.)"""
    squares = lambda p, q: [(p.exp() * k**2).sum() for k in estimators(p, q)]  # noqa: E731
    for _ in range(20):
        p, q, _ = policy_and_reference(0.3)
        k1, _, k3 = squares(p, q)
        assert k3 < k1
    k1, _, k3 = squares(torch.tensor([0.99, 0.01]).log(), torch.tensor([0.5, 0.5]).log())
    assert k3 > 10 * k1


# ---- 13. As a loss


def test_gradients_of_the_estimators_as_losses():
    p, q, logits = policy_and_reference()
    k1, k2, k3 = (slope((p.exp().detach() * k).sum(), logits) for k in estimators(p, q))
    forward, backward = slope(kl(p, q), logits), slope(kl(q, p), logits)
    close(k1, torch.zeros(V))
    close(k2, forward)
    close(k3, backward)
    assert (forward - backward).abs().max() > 0.05


def test_the_ratio_makes_the_gradient_right():
    """That of k1, too; not that of k2, and not if the ratio's own gradient is left out."""
    p, q, logits = policy_and_reference()
    old = torch.randn(V).log_softmax(0)  # the policy that has sampled, of some steps ago
    ratio, wanted = (p - old).exp(), slope(kl(p, q), logits)
    k1, k2, k3 = estimators(p, q)
    for k in (k1, k3):
        close((old.exp() * ratio * k).sum(), kl(p, q))
        close(slope((old.exp() * ratio * k).sum(), logits), wanted)
    for wrong in (ratio * k2, ratio.detach() * k3):
        assert (slope((old.exp() * wrong).sum(), logits) - wanted).abs().max() > 0.01


# ---- 14. As a reward, and over several tokens


def two_tokens():
    """Log-probabilities of a first token (V,), and of a second after it (V, V); of policy and reference."""
    logits = torch.randn(V + V * V, requires_grad=True)
    reference = torch.randn(V + V * V)
    parts = [(x[:V].log_softmax(0), x[V:].reshape(V, V).log_softmax(1)) for x in (logits, reference)]
    return *parts, logits


def test_a_loss_takes_the_prefix_as_given():
    """What it lacks is the policy gradient of the KL that follows a token."""
    (first, second), (first_ref, second_ref), logits = two_tokens()
    later = kl(second, second_ref)  # after each first token
    whole = slope(kl(first, first_ref) + (first.exp() * later).sum(), logits)
    loss = slope(kl(first, first_ref) + (first.exp().detach() * later).sum(), logits)
    lacking = slope((first.exp().detach() * first * later.detach()).sum(), logits)
    close(loss + lacking, whole)
    assert lacking.norm() > 0.05 * whole.norm()


def test_k1_is_right_as_a_reward_and_k3_is_not():
    """For a token itself; for those before it, k3 would do."""
    p, q, logits = policy_and_reference()
    k1, _, k3 = (k.detach() for k in estimators(p, q))
    reward = lambda k: slope((p.exp().detach() * k * p).sum(), logits)  # noqa: E731
    forward, backward = slope(kl(p, q), logits), slope(kl(q, p), logits)
    close(reward(k1), forward)
    close(reward(k3), forward - backward)
    (first, second), (first_ref, second_ref), logits = two_tokens()
    whole = slope(kl(first, first_ref) + (first.exp() * kl(second, second_ref)).sum(), logits)
    answers = (first[:, None] + second).exp().detach()
    now, _, _ = (k.detach()[:, None] for k in estimators(first, first_ref))
    then, _, later = (k.detach() for k in estimators(second, second_ref))
    for following in (then, later):
        returns = first[:, None] * (now + following) + second * then
        close(slope((answers * returns).sum(), logits), whole)


# ---- 15. The group as a baseline


def test_the_group_is_a_baseline_but_for_a_factor():
    """The exact mean over all groups of three answers."""
    logits, scores, n = torch.randn(V, requires_grad=True), torch.randn(V), 3
    p = logits.log_softmax(0)
    wanted = slope((p.exp() * scores).sum(), logits)
    grpo, rloo = 0, 0
    for group in itertools.product(range(V), repeat=n):
        group = list(group)
        chance = p[group].sum().exp().detach()
        advantages = scores[group] - scores[group].mean()
        others = torch.stack([scores[group[:i] + group[i + 1 :]].mean() for i in range(n)])
        close(n / (n - 1) * advantages, scores[group] - others)
        grpo = grpo + chance * (advantages * p[group]).mean()
        rloo = rloo + chance * ((scores[group] - others) * p[group]).mean()
    close(slope(rloo, logits), wanted)
    close(slope(grpo, logits), (1 - 1 / n) * wanted)


def weight_of(p, n):
    """By how much the gradient of p, the chance to be right, is multiplied: a mean over all groups of n."""
    total = 0.0
    for right in range(n + 1):
        chance = math.comb(n, right) * p**right * (1 - p) ** (n - right)
        scores = np.repeat([1.0, 0.0], [right, n - right])
        slopes = np.where(scores == 1, 1 / p, -1 / (1 - p))  # of the log-probability, by p
        total += chance * np.mean(grpo.group_advantages(scores, n, True) * slopes)
    return total


def test_what_dividing_by_the_deviation_weighs():
    for chance in (0.01, 0.5, 0.9):
        p = torch.tensor(chance, requires_grad=True)
        close(1 / (p * (1 - p)).sqrt(), slope(2 * p.sqrt().arcsin(), p))
    for n, ratio in ((2, 1.0), (8, 1.41), (1000, 4.96)):
        assert weight_of(0.01, n) / weight_of(0.5, n) == pytest.approx(ratio, abs=0.01)
    assert weight_of(0.3, 1000) == pytest.approx(1 / math.sqrt(0.3 * 0.7), rel=0.01)


# ---- 16. GSPO


def test_the_geometric_mean_is_no_importance_weight():
    (first, second), _, logits = two_tokens()
    old = torch.randn(V).log_softmax(0), torch.randn(V, V).log_softmax(1)
    chance = (old[0][:, None] + old[1]).exp()
    product = (first[:, None] + second).exp() / chance
    close((chance * product).sum(), 1.0)
    assert (chance * product**0.5).sum() < 0.99
    # Answers end after the first token, with another probability than before; or after a second, certain one.
    before, after = torch.tensor([0.1, 0.9]), torch.tensor([0.9, 0.1])
    close((before * (after / before) ** torch.tensor([1.0, 0.5])).sum(), 1.2)
    same, scores = (first[:, None] + second).exp().detach(), torch.randn(V, V)
    root = ((first[:, None] + second).exp() / same) ** 0.5
    close(root, torch.ones(V, V))
    gradient = slope(((first[:, None] + second).exp() * scores).sum(), logits)
    close(slope((same * root * scores).sum(), logits), gradient / 2)


def test_the_spread_of_the_geometric_mean_shrinks_with_the_length():
    """That of the product grows; tokens are independent."""
    old, new, _ = policy_and_reference(0.5)
    old, ratios = old.exp().detach(), (new - old).exp().detach()
    spreads = []
    for length in range(1, 7):
        chances, products = (
            torch.stack(torch.meshgrid(*[x] * length, indexing="ij")).prod(0) for x in (old, ratios)
        )
        roots = products ** (1 / length)
        spreads.append([(chances * (x - (chances * x).sum()) ** 2).sum().item() for x in (products, roots)])
    products, roots = zip(*spreads, strict=True)
    assert list(products) == sorted(products) and list(roots) == sorted(roots, reverse=True)
    assert products[5] > 6 * products[0] > 6 * 3 * roots[5]


# ---- 17 and 18. Preferences


def test_bradley_terry():
    """The scores that explain choices best are the true ones, but for a constant."""
    scores = torch.randn(V)
    choices = (scores[:, None] - scores).sigmoid()
    close(choices, scores.exp()[:, None] / (scores.exp()[:, None] + scores.exp()))
    loss = lambda x: -(choices * (x[:, None] - x).sigmoid().log()).sum()  # noqa: E731
    assert all(loss(scores + torch.randn(V)) > loss(scores) for _ in range(20))
    close(loss(scores + 7), loss(scores))
    margin = torch.tensor(0.3, requires_grad=True)
    close(slope(-margin.sigmoid().log(), margin), margin.sigmoid() - 1)
    agreed = torch.tensor([1.0, 0.0])  # who is never contradicted may have any lead
    leads = [-((lead * agreed)[0] - (lead * agreed)[1]).sigmoid().log() for lead in (1.0, 10.0, 100.0)]
    assert leads[0] > leads[1] > leads[2]


def best_policy(reference, scores, beta):
    return (reference + scores / beta).log_softmax(0)


def test_the_best_policy_near_a_reference():
    """The objective of any policy is log Z less its KL to that one."""
    beta, scores = 0.3, torch.randn(V)
    _, reference, _ = policy_and_reference()
    best = best_policy(reference, scores, beta)
    Z = (reference + scores / beta).logsumexp(0)
    for _ in range(5):
        p = torch.randn(V).log_softmax(0)
        objective = (p.exp() * scores).sum() - beta * kl(p, reference)
        close(objective / beta, Z - kl(p, best))
    close(beta * (best - reference) + beta * Z, scores)


def test_dpo_finds_the_best_policy():
    """With pairs of all answers, chosen as Bradley and Terry have it, its loss is lowest there."""
    beta, scores = 0.3, torch.randn(V)
    _, reference, _ = policy_and_reference()
    choices = (scores[:, None] - scores).sigmoid()

    def loss(logits):
        rewards = beta * (logits.log_softmax(0) - reference)
        return -(choices * (rewards[:, None] - rewards).sigmoid().log()).sum()

    logits = best_policy(reference, scores, beta).clone().requires_grad_()
    close(slope(loss(logits), logits), torch.zeros(V))
    with torch.no_grad():
        assert all(loss(logits + 0.1 * torch.randn(V)) > loss(logits) for _ in range(20))


# ---- the page


def test_page_and_tests_name_each_other():
    """Each test above is named on the page, and nothing that is not a test."""
    named = re.findall(r"`test_derivations_language.py::(\w+)`", PAGE)
    tests = [name for name in globals() if name.startswith("test_")]
    assert named == tests[: tests.index("test_page_and_tests_name_each_other")]


def test_lines_are_those_of_the_scripts():
    """Of the script that is named before them."""
    blocks = re.findall(r"`variants/(\w+)\.py`[^`]*(?:`[^`\n]+`[^`]*)*?```python\n(.*?)```", PAGE, re.S)
    assert len(blocks) == 6
    for name, block in blocks:
        source = (ROOT / f"variants/{name}.py").read_text()
        assert all(f" {line.strip()}\n" in source for line in block.splitlines()), name
