"""docs/derivations_language.md: each step as an exact sum over four tokens; its lines are the scripts'."""

import itertools
import math
import re

import numpy as np
import pytest
import torch
from conftest import ROOT

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
    for _ in range(20):
        p, q, _ = policy_and_reference(0.3)
        k1, _, k3 = estimators(p, q)
        assert (p.exp() * k3**2).sum() < (p.exp() * k1**2).sum()  # both have the same mean


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
    p, q, logits = policy_and_reference()
    old = torch.randn(V).log_softmax(0)  # the policy that has sampled, of some steps ago
    _, _, k3 = estimators(p, q)
    loss = (old.exp() * (p - old).exp() * k3).sum()
    close(loss, kl(p, q))
    close(slope(loss, logits), slope(kl(p, q), logits))


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
    (first, second), (first_ref, second_ref), logits = two_tokens()
    whole = slope(kl(first, first_ref) + (first.exp() * kl(second, second_ref)).sum(), logits)
    answers = (first[:, None] + second).exp().detach()
    found = []
    for estimator in (0, 2):
        now = estimators(first, first_ref)[estimator].detach()[:, None]
        then = estimators(second, second_ref)[estimator].detach()
        returns = first[:, None] * (now + then) + second * then  # each token answers for what follows
        found.append(slope((answers * returns).sum(), logits))
    close(found[0], whole)
    assert (found[1] - whole).abs().max() > 0.05


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


def test_dividing_by_the_deviation_raises_an_arcsine():
    for chance in (0.01, 0.5, 0.9):
        p = torch.tensor(chance, requires_grad=True)
        close(1 / (p * (1 - p)).sqrt(), slope(2 * p.sqrt().arcsin(), p))
    weight = lambda p: 1 / math.sqrt(p * (1 - p))  # noqa: E731
    assert weight(0.01) / weight(0.5) == pytest.approx(5, abs=0.1)
    right = np.random.default_rng(0).random((20_000, 64)) < 0.3  # and groups of 64 are large enough
    assert np.mean(right.std(1)) == pytest.approx(math.sqrt(0.3 * 0.7), rel=0.02)


# ---- 16. GSPO


def test_the_geometric_mean_is_no_importance_weight():
    (first, second), _, logits = two_tokens()
    old = torch.randn(V).log_softmax(0), torch.randn(V, V).log_softmax(1)
    chance = (old[0][:, None] + old[1]).exp()
    product = (first[:, None] + second).exp() / chance
    root = product**0.5
    close((chance * product).sum(), 1.0)
    assert (chance * root).sum() < 0.99
    spread = lambda ratio: (chance * (ratio - (chance * ratio).sum()) ** 2).sum()  # noqa: E731
    assert spread(root) < spread(product)
    same, scores = (first[:, None] + second).exp().detach(), torch.randn(V, V)
    at_old = ((first[:, None] + second).exp() / same) ** 0.5
    close(at_old, torch.ones(V, V))
    gradient = slope(((first[:, None] + second).exp() * scores).sum(), logits)
    close(slope((same * at_old * scores).sum(), logits), gradient / 2)


# ---- 17 and 18. Preferences


def test_bradley_terry():
    """The scores that explain choices best are the true ones, but for a constant."""
    scores = torch.randn(V)
    margins = scores[:, None] - scores
    close(margins.sigmoid(), scores.exp()[:, None] / (scores.exp()[:, None] + scores.exp()))
    guess = scores + 7 + 0 * torch.randn(V)
    guess.requires_grad_()
    guessed = guess[:, None] - guess
    close(slope(-(margins.sigmoid() * guessed.sigmoid().log()).sum(), guess), torch.zeros(V))
    margin = torch.tensor(0.3, requires_grad=True)
    close(slope(-margin.sigmoid().log(), margin), margin.sigmoid() - 1)


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
    names = ("ppo_llm", "grpo", "dpo", "reward_model")
    sources = [(ROOT / f"variants/{name}.py").read_text() for name in names]
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    assert len(blocks) == 6
    for line in "".join(blocks).splitlines():
        assert any(f" {line.strip()}\n" in source for source in sources), line
