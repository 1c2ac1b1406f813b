"""Advantages against their definition, and against the special cases that one can write down."""

import numpy as np
import pytest
from conftest import SCRIPTS, name_of
from hypothesis import given, settings
from hypothesis import strategies as st


def draw(T=12, N=3, seed=0, done_rate=0.3):
    random = np.random.default_rng(seed)
    rewards, values = random.normal(size=(T, N)), random.normal(size=(T + 1, N))
    terminated, truncated = random.random((2, T, N)) < done_rate
    return rewards, values, terminated, truncated, random.normal(size=(T, N))


def brute_force(rewards, values, terminated, truncated, final_values, gamma, gae_lambda):
    """sum over k of (gamma lambda)^k delta[t + k], up to the end of the episode, in O(T^2)."""
    T, N = rewards.shape
    advantages = np.zeros((T, N))
    for n in range(N):
        for t in range(T):
            for k in range(t, T):
                if terminated[k, n]:
                    next_value = 0.0
                elif truncated[k, n]:
                    next_value = final_values[k, n]
                else:
                    next_value = values[k + 1, n]
                delta = rewards[k, n] + gamma * next_value - values[k, n]
                advantages[t, n] += (gamma * gae_lambda) ** (k - t) * delta
                if terminated[k, n] or truncated[k, n]:
                    break
    return advantages


def next_values_of(values, terminated, truncated, final_values):
    """Those that the rollout hands over [E1]: 0 at the end, of the last observation at a time limit."""
    final_values = final_values * (truncated & ~terminated)
    return np.where(terminated | truncated, final_values, values[1:])


def gae(script, rewards, values, terminated, truncated, final_values, gamma, gae_lambda):
    next_values = next_values_of(values, terminated, truncated, final_values)
    dones = (terminated | truncated).astype(float)
    return script.compute_gae(rewards, values[:-1], next_values, dones, gamma, gae_lambda)


@pytest.mark.parametrize("script", SCRIPTS, ids=name_of)
@settings(deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(1, 20),
    st.sampled_from([0, 0.1, 0.5, 1]),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_equals_the_double_sum_for_every_mix_of_ends(script, seed, T, done_rate, gamma, gae_lambda):
    case = draw(T, 3, seed, done_rate)
    result = gae(script, *case, gamma, gae_lambda)
    np.testing.assert_allclose(result, brute_force(*case, gamma, gae_lambda), atol=1e-9)


@pytest.mark.parametrize("terminated", [False, True])
@pytest.mark.parametrize("truncated", [False, True])
def test_one_transition(script, terminated, truncated):
    """reward 2, value 3, next value 5, final value 7: the target is 2, 2 + 0.9 * 7, or 2 + 0.9 * 5."""
    case = (np.array([[x]]) for x in (2.0, terminated, truncated, 7.0))
    reward, terminated, truncated, final_value = case
    values = np.array([[3.0], [5.0]])
    target = {(False, False): 6.5, (True, False): 2, (False, True): 8.3, (True, True): 2}
    advantage = gae(script, reward, values, terminated, truncated, final_value, 0.9, 0.5)
    assert advantage == pytest.approx(target[terminated.item(), truncated.item()] - 3)


def test_lambda_one_is_monte_carlo(script):
    rewards, values, *_ = draw(done_rate=0)
    returns, expected = values[-1], []
    for reward in rewards[::-1]:
        returns = reward + 0.97 * returns
        expected.insert(0, returns)
    advantages = script.compute_gae(rewards, values[:-1], values[1:], np.zeros_like(rewards), 0.97, 1.0)
    np.testing.assert_allclose(advantages + values[:-1], expected)


def test_lambda_zero_is_the_td_error(script):
    rewards, values, terminated, truncated, final_values = draw()
    next_values = next_values_of(values, terminated, truncated, final_values)
    advantages = gae(script, rewards, values, terminated, truncated, final_values, 0.97, 0.0)
    np.testing.assert_allclose(advantages, rewards + 0.97 * next_values - values[:-1])


def test_nothing_leaks_through_the_end_of_an_episode(script):
    rewards, values, *_ = draw(T=8, N=2)
    dones, next_values = np.zeros_like(rewards), values[1:].copy()
    dones[3], next_values[3] = 1, 0
    before = script.compute_gae(rewards, values[:-1], next_values, dones, 0.99, 0.95)
    rewards[4:] += 1
    values[4:] += 1
    next_values[4:] += 1
    after = script.compute_gae(rewards, values[:-1], next_values, dones, 0.99, 0.95)
    assert np.array_equal(before[:4], after[:4])
    assert not np.array_equal(before[4:], after[4:])


def test_what_it_is_given_stays_as_it_was(script):
    """Of rewards and values, others are still to be computed."""
    rewards, values, terminated, *_ = draw()
    given = rewards, values[:-1], values[1:], terminated.astype(float)
    before = [x.copy() for x in given]
    script.compute_gae(*given, 0.97, 0.95)
    assert all(map(np.array_equal, given, before))
