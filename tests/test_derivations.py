"""docs/derivations.md: each step as an exact sum over a tiny problem, and its lines those of the scripts."""

import itertools
import re

import numpy as np
import pytest
import torch
from conftest import ROOT
from torch.autograd.functional import hessian, jacobian
from torch.distributions import Categorical, Independent

import ppo_discrete
import reinforce_baseline
from variants import trpo

PAGE = (ROOT / "docs/derivations.md").read_text()
STATES, ACTIONS = 3, 3


class Problem:
    """A random problem of three states and actions, in which a step is the last with probability 0.1."""

    def __init__(self, seed: int, gamma: float = 0.9):
        random = np.random.default_rng(seed)
        moves = 0.9 * random.dirichlet(np.ones(STATES), (STATES, ACTIONS))
        self.gamma, self.moves = gamma, torch.tensor(moves)  # (S, A, S)
        self.rewards = torch.tensor(random.normal(size=(STATES, ACTIONS)))
        self.start = torch.tensor(random.dirichlet(np.ones(STATES)))
        self.logits = torch.tensor(random.normal(size=(STATES, ACTIONS)))

    def visits(self, pi, gamma=None):
        """Expected visits of each state; the t-th step counts gamma^t."""
        gamma = self.gamma if gamma is None else gamma
        return torch.linalg.solve(
            torch.eye(STATES) - gamma * (pi[..., None] * self.moves).sum(1).T, self.start
        )

    def values(self, pi):
        """V (S,) and Q (S, A)."""
        moves, rewards = (pi[..., None] * self.moves).sum(1), (pi * self.rewards).sum(1)
        v = torch.linalg.solve(torch.eye(STATES) - self.gamma * moves, rewards)
        return v, self.rewards + self.gamma * self.moves @ v

    def advantages(self, pi):
        v, q = self.values(pi)
        return q - v[:, None]

    def J(self, pi):
        return self.start @ self.values(pi)[0]

    def surrogate(self, new, old):
        """J of the old policy, and the new one's advantage where the old one goes."""
        return self.J(old) + (self.visits(old)[:, None] * new * self.advantages(old)).sum()


def policy(logits):
    return logits.softmax(-1)


def scores(logits):
    """Of one state: the gradient of each action's log-probability, (A, A)."""
    return jacobian(lambda x: x.log_softmax(-1), logits)


def kl(old, new):
    return (old * (old / new).log()).sum(-1)


def close(a, b, **tolerance):
    torch.testing.assert_close(torch.as_tensor(a), torch.as_tensor(b), **tolerance)


def batch_of(module, **fields):
    """A batch in which what is not given is 0."""
    size = len(fields["actions"])
    return module.Batch(**{name: fields.get(name, torch.zeros(size)) for name in module.Batch._fields})


@pytest.fixture(autouse=True)
def double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def reinforce_gradient(logits, actions, weights):
    """Of the objective of reinforce_baseline.py, by its own loss; logits are of the only state."""
    args = reinforce_baseline.Args(vf_coef=0.0, ent_coef=0.0, norm_adv=False)
    batch = batch_of(reinforce_baseline, actions=actions, advantages=weights)
    dist = Independent(Categorical(logits=logits.expand(len(actions), -1)), 0)
    loss, _ = reinforce_baseline.reinforce_loss(dist, torch.zeros(len(actions)), batch, args)
    return -torch.autograd.grad(loss, logits)[0]


def ppo_objective(logits, batch, clip_coef=np.inf):
    """That of ppo_discrete.py, by its own loss."""
    args = ppo_discrete.Args(vf_coef=0.0, ent_coef=0.0, norm_adv=False)
    dist = Independent(Categorical(logits=logits.expand(len(batch.actions), -1)), 0)
    return -ppo_discrete.ppo_loss(dist, torch.zeros(len(batch.actions)), batch, clip_coef, args)[0]


ONE_STATE = (
    torch.tensor([0.5, 0.25, 0.25]).double().log()
)  # each action of this batch is as frequent as it is probable
BATCH = torch.tensor([0, 0, 1, 2])


def test_log_derivative():
    f = torch.tensor([1.0, -2.0, 0.5])
    expected = jacobian(lambda x: policy(x) @ f, ONE_STATE)
    close((policy(ONE_STATE) * f) @ scores(ONE_STATE), expected)
    close(reinforce_gradient(ONE_STATE.clone().requires_grad_(), BATCH, f[BATCH]), expected)
    assert expected.abs().min() > 0.05


def field(problem, logits, gamma):
    """sum over t of gamma^t E[grad log pi * Q]; Q is always the discounted one."""
    pi = policy(logits)
    per_state = (pi * problem.values(pi)[1])[..., None] * torch.stack([torch.eye(ACTIONS) - p for p in pi])
    return problem.visits(pi, gamma)[:, None] * per_state.sum(1)  # grad log pi(a) by the logits: e_a - pi


def test_policy_gradient():
    problem = Problem(0)
    close(
        field(problem, problem.logits, problem.gamma),
        jacobian(lambda x: problem.J(policy(x)), problem.logits),
    )


def test_without_gamma_to_the_t_it_is_no_gradient():
    """The derivative of a gradient is a symmetric matrix, as J's is; without gamma^t it is not."""
    problem, size = Problem(0), STATES * ACTIONS
    asymmetry = []
    for gamma in (problem.gamma, 1.0):
        matrix = jacobian(lambda x, gamma=gamma: field(problem, x, gamma), problem.logits).reshape(size, size)
        asymmetry.append(((matrix - matrix.T).norm() / matrix.norm()).item())
    assert asymmetry[0] < 1e-12 and asymmetry[1] > 0.01
    true, used = (field(problem, problem.logits, gamma).flatten() for gamma in (problem.gamma, 1.0))
    assert 0.9 < true @ used / (true.norm() * used.norm()) < 0.999  # nearly the same way, and not the same


def test_baseline_is_free():
    problem = Problem(1)
    pi, (v, q) = policy(problem.logits), problem.values(policy(problem.logits))
    for p, x, value, each in zip(pi, problem.logits, v, q, strict=True):
        close((p * 7) @ scores(x), torch.zeros(ACTIONS))
        close((p * (each - value)) @ scores(x), (p * each) @ scores(x))
        assert ((p * each) @ scores(x)).abs().max() > 1e-3  # were b = Q, which depends on the action
        squares = scores(x).square().sum(1)  # of the same mean, a larger square is a larger variance
        assert p @ (squares * (each - value) ** 2) < p @ (squares * (each + 10) ** 2)
    weights = torch.tensor([1.0, -2.0, 0.5])[BATCH]
    shifted = [reinforce_gradient(ONE_STATE.clone().requires_grad_(), BATCH, weights + b) for b in (0, 10)]
    close(*shifted)


def test_td_error_is_an_advantage_in_the_mean():
    problem = Problem(2)
    pi = policy(problem.logits)
    v, _ = problem.values(pi)
    td_errors = problem.rewards[..., None] + problem.gamma * v - v[:, None, None]  # of s, a, s'
    ends = problem.rewards - v[:, None]  # with probability 0.1 nothing follows
    mean = (problem.moves * td_errors).sum(-1) + (1 - problem.moves.sum(-1)) * ends
    close(mean, problem.advantages(pi))
    close((pi * mean).sum(1), torch.zeros(STATES))


def n_step(rewards, values, gamma, n):
    """The advantage of the first step that is estimated from n rewards and the value after them."""
    return sum(gamma**k * rewards[k] for k in range(n)) + gamma**n * values[n] - values[0]


def rollout(T=6):
    rewards, values = np.random.default_rng(0).normal(size=(2, T + 1))
    return rewards[:T], values, 0.9


def test_td_errors_telescope():
    rewards, values, gamma = rollout()
    td_errors = rewards + gamma * values[1:] - values[:-1]
    two = rewards[0] + gamma * rewards[1] + gamma**2 * values[2] - values[0]
    assert td_errors[0] + gamma * td_errors[1] == pytest.approx(two)
    for n in range(1, len(rewards) + 1):
        total = sum(gamma**k * td_errors[k] for k in range(n))
        assert total == pytest.approx(n_step(rewards, values, gamma, n))


def test_gae_is_the_weighted_mean():
    rewards, values, gamma = rollout()
    T, column = len(rewards), (slice(None), None)
    for lam in (0, 0.5, 0.95, 1):
        weights = [(1 - lam) * lam ** (n - 1) for n in range(1, T)] + [
            lam ** (T - 1)
        ]  # the last has the rest
        assert sum(weights) == pytest.approx(1)
        mean = sum(w * n_step(rewards, values, gamma, n) for n, w in enumerate(weights, 1))
        td_errors = rewards + gamma * values[1:] - values[:-1]
        assert sum((gamma * lam) ** k * x for k, x in enumerate(td_errors)) == pytest.approx(mean)
        arrays = rewards[column], values[:-1][column], values[1:][column], np.zeros((T, 1))
        assert ppo_discrete.compute_gae(*arrays, gamma, lam)[0, 0] == pytest.approx(mean)


def test_gae_is_reinforce_in_the_limit():
    rewards, values, gamma = rollout()
    rewards, values = rewards[:, None], values[:, None]
    dones, nothing = np.zeros_like(rewards), np.zeros_like(rewards)
    dones[-1] = 1
    gae = ppo_discrete.compute_gae
    next_values = np.append(values[1:-1], [[0]], 0)  # the last step ends the episode
    discounts = gamma ** np.arange(len(rewards))
    returns = [discounts[: len(rewards) - t] @ rewards[t:] for t in range(len(rewards))]
    np.testing.assert_allclose(gae(rewards, values[:-1], next_values, dones, gamma, 1), returns - values[:-1])
    plain = rewards[::-1].cumsum(0)[::-1]
    np.testing.assert_allclose(gae(rewards, nothing, nothing, dones, 1, 1), plain)
    td_errors = rewards + gamma * next_values - values[:-1]
    np.testing.assert_allclose(gae(rewards, values[:-1], next_values, dones, gamma, 0), td_errors)


def test_ratio_has_the_gradient_of_the_log_probability():
    advantages = torch.tensor([1.0, -2.0, 0.5])[BATCH]
    logprobs = ONE_STATE.log_softmax(-1)[BATCH]
    for log_ratio in (0.0, 0.4):  # what is stored of the old policy is a number without gradient
        logits = ONE_STATE.clone().requires_grad_()
        fields = dict(actions=BATCH, logprobs=logprobs - log_ratio, advantages=advantages)
        [gradient] = torch.autograd.grad(ppo_objective(logits, batch_of(ppo_discrete, **fields)), logits)
        close(gradient, np.exp(log_ratio) * reinforce_gradient(logits, BATCH, advantages))
    assert gradient.abs().min() > 0.1


OLD, NEW = torch.tensor([[0.5, 0.5], [0.9, 0.1]], dtype=torch.float64)


def test_importance_sampling_and_its_variance():
    f, ratio = torch.tensor([3.0, -1.0]), NEW / OLD
    close(OLD @ (ratio * f), NEW @ f)
    variance = OLD @ (ratio * f - NEW @ f) ** 2
    close(variance, NEW @ (ratio * f**2) - (NEW @ f) ** 2)
    logits = NEW.log()
    fields = dict(actions=torch.tensor([0, 1]), logprobs=OLD.log(), advantages=f)
    close(ppo_objective(logits, batch_of(ppo_discrete, **fields)), NEW @ f)


def test_ratios_of_whole_episodes_explode():
    """The mean of the squared ratio divides the effective samples. T actions take it to the power of T."""
    for T in (1, 5, 10):
        sequences = torch.tensor([*itertools.product((0, 1), repeat=T)])
        old, ratio = OLD[sequences].prod(1), (NEW / OLD)[sequences].prod(1)
        close(old @ ratio, 1.0)
        close(old @ ratio**2, 1.64**T)
    assert f"$1.64^{{10}} = {1.64**10:.0f}$" in PAGE and f": {1.64**10:.0f} such" in PAGE


def pairs(gamma=0.9, distance=1.0):
    """Problems, each with its policy and another."""
    for seed in range(20):
        problem = Problem(seed, gamma)
        noise = torch.tensor(np.random.default_rng(seed + 100).normal(size=(STATES, ACTIONS)))
        yield problem, policy(problem.logits), policy(problem.logits + distance * noise)


def test_performance_difference():
    for problem, old, new in pairs():
        gain = (problem.visits(new)[:, None] * new * problem.advantages(old)).sum()
        close(problem.J(new) - problem.J(old), gain)


def test_surrogate_has_the_value_and_the_slope_of_the_return():
    for problem, old, new in pairs():
        close(problem.surrogate(old, old), problem.J(old))
        slopes = [jacobian(lambda x, f=f: f(policy(x)), problem.logits)
                  for f in (problem.J, lambda pi, old=old, p=problem: p.surrogate(pi, old))]  # fmt: skip
        close(*slopes)
        assert abs(problem.surrogate(new, old) - problem.J(new)) > 1e-4  # elsewhere it is another


def penalty(problem, old):
    """C of the lower bound."""
    return 4 * problem.advantages(old).abs().max() * problem.gamma / (1 - problem.gamma) ** 2


def test_lower_bound():
    needed = []
    for distance in (0.01, 0.1, 1.0, 3.0):
        for problem, old, new in pairs(distance=distance):
            L, far = problem.surrogate(new, old), kl(old, new).max()
            needed.append(((L - problem.J(new)) / (penalty(problem, old) * far)).item())
            assert problem.J(new) >= L - penalty(problem, old) * far
    assert 1 / 500 < max(needed) < 1 / 400 and "A 400th" in PAGE


def test_the_best_step_of_the_bound_is_tiny():
    """Along the gradient of J, the bound is best at a KL within the limit; a larger step gains more."""
    limit = (1 - 0.99) ** 2 / (32 * 0.99**2)
    assert (
        limit == pytest.approx(3.2e-6, rel=0.02) and "3,100 times" in PAGE and "$3 \\times 10^{-6}$" in PAGE
    )
    assert 0.01 / limit == pytest.approx(3100, rel=0.02) and round(3100**0.5) == 56
    assert trpo.Args.target_kl == 0.01
    assert pytest.approx(4 * 0.99 / 0.01**2) == 39_600 and "39,600" in PAGE
    for seed in range(20):
        problem = Problem(seed, gamma=0.99)
        old, C = policy(problem.logits), penalty(problem, policy(problem.logits))
        direction = jacobian(lambda x: problem.J(policy(x)), problem.logits)  # noqa: B023
        news = [policy(problem.logits + step * direction) for step in np.geomspace(1e-9, 1, 400)]
        bounds = [problem.surrogate(new, old) - C * kl(old, new).max() - problem.J(old) for new in news]
        best = news[int(np.argmax(bounds))]
        assert max(bounds) > 0 and kl(old, best).max() <= limit
        further = next(new for new in news if kl(old, new).max() > 0.001)
        assert problem.J(further) - problem.J(old) > 10 * (problem.J(best) - problem.J(old))


def test_one_step_of_the_logits_is_not_one_step_of_the_policy():
    for logit, before, after in ((0.0, 0.5, 0.73), (7.0, 0.9991, 0.9997)):
        moved = [torch.sigmoid(torch.tensor(logit + step)).item() for step in (0, 1)]
        assert moved == [
            pytest.approx(before, abs=0.005 if logit == 0 else 5e-5),
            pytest.approx(after, abs=0.005),
        ]
        assert f"{before} to {after}" in PAGE


def fisher(logits):
    """Of one state: the mean of the squared scores."""
    each = scores(logits)
    return (policy(logits)[:, None, None] * each[:, :, None] * each[:, None, :]).sum(0)


def two_logits(x):
    """A policy of three actions whose Fisher matrix can be inverted: the third logit is 0."""
    return torch.cat([x, torch.zeros(1)])


def fisher_of(x, logits_of=two_logits):
    J = jacobian(logits_of, x)
    return J.T @ fisher(logits_of(x)) @ J


def test_fisher_is_the_curvature_of_the_kl():
    for problem, old, _ in pairs():
        for p, x in zip(old, problem.logits, strict=True):
            close(hessian(lambda y, p=p: kl(p, policy(y)), x), fisher(x))
            close(hessian(lambda y: kl(policy(y), policy(y)), x), torch.zeros(ACTIONS, ACTIONS))


def test_natural_gradient_is_the_best_step_of_its_kl():
    x, f, delta = torch.tensor([1.0, -0.5]), torch.tensor([1.0, -2.0, 0.5]), 1e-4
    F, g = fisher_of(x), jacobian(lambda y: policy(two_logits(y)) @ f, x)
    direction, _ = trpo.conjugate_gradients(lambda v: F @ v, g, 2)
    close(F @ direction, g)
    step = (2 * delta / (g @ direction)).sqrt() * direction
    close(step @ F @ step / 2, delta)
    close(kl(policy(two_logits(x)), policy(two_logits(x + step))), delta, rtol=0.02, atol=0)
    for angle in np.linspace(0, 2 * np.pi, 100):
        other = torch.tensor([np.cos(angle), np.sin(angle)])
        other = other * (2 * delta / (other @ F @ other)).sqrt()  # as far, in KL
        assert g @ other <= g @ step + 1e-12


def test_natural_gradient_does_not_depend_on_the_parameters():
    """With logits that are a linear map of other parameters, it is the same step of the policy."""
    B, f = torch.tensor([[3.0, 1.0], [0.0, 0.2]]), torch.tensor([1.0, -2.0, 0.5])
    x = torch.tensor([1.0, -0.5])
    moved = {"plain": [], "natural": []}
    for start, logits_of in ((x, two_logits), (torch.linalg.solve(B, x), lambda y: two_logits(B @ y))):
        g = jacobian(lambda y, of=logits_of: policy(of(y)) @ f, start)
        natural = torch.linalg.solve(fisher_of(start, logits_of), g)
        for name, step in (("plain", g), ("natural", natural)):
            moved[name].append(jacobian(logits_of, start) @ step)
    close(*moved["natural"])
    assert (moved["plain"][0] - moved["plain"][1]).abs().max() > 0.1


def test_clip_is_a_lower_bound_of_the_surrogate():
    """For each sample, with equality and the same gradient at the old policy."""
    old, advantages = ONE_STATE.log_softmax(-1), torch.tensor([1.0, -2.0, 0.5])[BATCH]
    batch = batch_of(ppo_discrete, actions=BATCH, logprobs=old[BATCH], advantages=advantages)
    random, lower = np.random.default_rng(0), 0
    for _ in range(100):
        logits = ONE_STATE + torch.tensor(random.normal(size=ACTIONS))
        objectives = [ppo_objective(logits, batch, clip_coef) for clip_coef in (0.2, np.inf)]
        assert objectives[0] <= objectives[1] + 1e-12
        lower += (objectives[0] < objectives[1] - 0.01).item()
    assert lower > 50
    for clip_coef in (0.2, np.inf):
        logits = ONE_STATE.clone().requires_grad_()
        objective = ppo_objective(logits, batch, clip_coef)
        close(objective.detach(), advantages.mean())
        [gradient] = torch.autograd.grad(objective, logits)
        close(gradient, reinforce_gradient(logits, BATCH, advantages))


def clipped_surrogate(problem, new, old, epsilon=0.2):
    A, ratio = problem.advantages(old), new / old
    gain = torch.min(ratio * A, ratio.clamp(1 - epsilon, 1 + epsilon) * A)
    return problem.J(old) + (problem.visits(old)[:, None] * old * gain).sum()


def test_clip_is_no_lower_bound_of_the_return():
    """In some problems it promises too much, although there is no noise, and although the clip is at work."""
    promises = []
    for problem, old, new in pairs(distance=0.5):
        clipped, free = clipped_surrogate(problem, new, old), problem.surrogate(new, old)
        assert clipped <= free + 1e-12
        promises.append((problem.J(new) + 1e-3 < clipped < free - 1e-3).item())
    assert 0 < sum(promises) < len(promises)


def test_clip_takes_away_a_reward_and_sets_no_limit():
    """Beyond 1 + epsilon nothing is gained, and nothing is lost either, whatever the KL."""
    A, old = torch.tensor([1.0]), torch.tensor([0.5]).log()
    batch = batch_of(ppo_discrete, actions=torch.tensor([0]), logprobs=old, advantages=A)
    objectives = [ppo_objective(torch.tensor([x, 0.0]), batch, 0.2) for x in (0.5, 5.0, 50.0)]
    close(objectives, [torch.tensor(1.2)] * 3)


# ---- the page


def test_page_and_tests_name_each_other():
    """Each test above is named on the page, and nothing that is not a test."""
    named = re.findall(r"`test_derivations.py::(\w+)`", PAGE)
    tests = [name for name in globals() if name.startswith("test_")]
    assert named == tests[: tests.index("test_page_and_tests_name_each_other")]


def test_lines_are_those_of_the_scripts():
    sources = [(ROOT / name).read_text() for name in
               ("reinforce_baseline.py", "ppo_discrete.py", "variants/trpo.py")]  # fmt: skip
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    assert len(blocks) == 8
    for line in "".join(blocks).splitlines():
        assert any(f" {line.strip()}\n" in source for source in sources), line
