"""What policies are worth by logged transitions: long episodes, few episodes that tell, and large numbers."""

import tracemalloc
from fractions import Fraction

import numpy as np
import pytest

from dist_classicrl import DistAsyncQLearning, TabularMDP
from dist_classicrl.data import (
    Transitions,
    estimate_action_values,
    estimate_value,
    estimates,
    play_episodes,
)
from dist_classicrl.data.acted import Acted
from dist_classicrl.errors import ConvergenceError, DataError, SettingsError

LENGTH = 600
#: How often each episode takes action 1, which pays 1; action 0 pays nothing.
TAKEN = (60, 62, 64, 66)
#: Probabilities of policy and behavior, by which weights are below 2**-1,075, or above 2**1,024.
EXTREME = [((0.125, 0.875), (0.875, 0.125)), ((0.875, 0.125), (0.125, 0.875))]


def long_episodes():
    """Return episodes of one state that begin with the action that pays."""
    return [[(0, int(t < k), float(t < k), 0, t == LENGTH - 1) for t in range(LENGTH)] for k in TAKEN]


def averaged(told):
    """Return the mean of returns by their weights, and what these are worth, of pairs of fractions."""
    total = sum(weight for weight, _ in told)
    mean = sum(weight * returned for weight, returned in told) / total
    return float(mean), float(total**2 / sum(weight**2 for weight, _ in told))


@pytest.mark.parametrize("policy, behavior", EXTREME, ids=["below", "above"])
def test_weights_beyond_all_numbers_tell_what_exact_fractions_do(policy, behavior):
    none, one = (Fraction(p) / Fraction(b) for p, b in zip(policy, behavior, strict=True))
    of_episodes = [(one**k * none ** (LENGTH - k), k) for k in TAKEN]
    assert all(weight > 2**1024 or weight < Fraction(1, 2**1075) for weight, _ in of_episodes)
    policy, behavior = np.array([policy]), np.array([behavior])
    found = estimate_value(long_episodes(), policy, 1.0, behavior=behavior)
    assert (found.value, found.effective_episodes) == pytest.approx(averaged(of_episodes))
    pairs = estimate_action_values(long_episodes(), policy, 1.0, behavior=behavior)
    steps = [(k, t) for k in TAKEN for t in range(LENGTH)]
    for action in (0, 1):
        of_pair = [
            (one ** max(0, k - t - 1) * none ** (LENGTH - max(k, t + 1)), max(0, k - t))
            for k, t in steps
            if (t < k) == action
        ]
        assert (pairs.q[0, action], pairs.effective_visits[0, action]) == pytest.approx(averaged(of_pair))


def test_ordinary_weights_too_small_for_numbers_are_no_error():
    policy, behavior = (np.array([each]) for each in EXTREME[0])
    for method in ("ordinary", "per_decision"):
        found = estimate_value(long_episodes(), policy, 1.0, method, behavior)
        assert np.isfinite([found.value, found.low, found.high]).all()
        assert 1.0 <= found.effective_episodes <= 4.0
    assert estimate_value(long_episodes(), policy, 1.0, "ordinary", behavior).value == 0.0


def test_episodes_without_weight_are_no_evidence():
    """The interval of two episodes that tell something is that of two, however many there are besides."""
    even, policy = np.full((1, 2), 0.5), np.array([0])
    two = [[(0, 0, 1.0, 0, True)], [(0, 0, 2.0, 0, True)]]
    others = [[(0, 1, 9.0, 0, True)]] * 30
    alone = estimate_value(two, policy, 1.0, behavior=even)
    among = estimate_value(two + others, policy, 1.0, behavior=even)
    assert (among.value, among.low, among.high) == pytest.approx((alone.value, alone.low, alone.high))
    assert among.high - among.value == pytest.approx(12.7062 * among.standard_error, rel=1e-4)
    only = estimate_value(two[:1] + others, policy, 1.0, behavior=even)
    assert (only.value, only.low, only.high, only.standard_error) == (1.0, -np.inf, np.inf, np.inf)


def episodes_of(first, second, end):
    """Return 80 episodes of two steps from `first` over `second` to `end`."""
    taken = np.random.default_rng(1).integers(0, 2, (80, 2)).tolist()
    return [[(first, a, float(a), second, False), (second, b, 1.0, end, True)] for a, b in taken]


@pytest.mark.parametrize("method", ["weighted", "ordinary", "per_decision", "model"])
@pytest.mark.parametrize("kind", ["actions", "chances"])
def test_only_states_in_which_somebody_acted_take_memory_and_need_a_policy(method, kind):
    """Of 200,000 states; where nobody acts the policy says -1, or a row of zeros."""
    policy = np.full(200_000, -1) if kind == "actions" else np.zeros((200_000, 2))
    policy[[7, 150_000]] = 1 if kind == "actions" else 0.5
    tracemalloc.start()
    found = estimate_value(episodes_of(7, 150_000, 199_999), policy, 0.9, method)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 2**26
    same = policy[[7, 150_000]]
    assert found.to_dict() == estimate_value(episodes_of(0, 1, 2), same, 0.9, method).to_dict()


def test_states_keep_their_numbers_in_tables_and_messages():
    episodes, actions = episodes_of(7, 150_000, 199_999), np.full(200_000, -1)
    actions[[7, 150_000]] = 1
    pairs = estimate_action_values(episodes, actions, 0.9)
    assert pairs.q.shape == (200_000, 2) and pairs.visits.sum() == 160
    assert pairs.q[[7, 150_000]] == pytest.approx(np.array([[0.9, 1.9], [1.0, 1.0]]))
    assert np.isnan(pairs.q[[0, 1, 199_999]]).all() and not pairs.effective_visits[:7].any()
    with pytest.raises(DataError, match="takes action 2 in state 150000, which it comes to"):
        estimate_value(episodes, np.where(np.arange(200_000) == 150_000, 2, actions), 0.9, "model")
    chances = np.full((200_000, 2), 0.5)
    chances[150_000] = (0.25, 0.5)
    actions[150_000] = -1
    for policy, told in ((actions, "takes action -1 in"), (chances, "probabilities in")):
        with pytest.raises(SettingsError, match=f"{told} state 150000"):
            estimate_value(episodes, policy, 0.9)


def test_numbers_that_no_table_has_room_for_are_named():
    far = [[(2**40, 0, 1.0, 0, True)], [(2**40, 0, 1.0, 0, True)]]
    many = [[(0, 2**40, 1.0, 0, True)], [(0, 0, 1.0, 0, True)]]
    policy = np.array([0, 0])
    for estimate in (estimate_value, estimate_action_values):
        with pytest.raises(DataError, match=f"acted in state {2**40}, of which policy says nothing"):
            estimate(far, policy, 0.9)
        with pytest.raises(DataError, match="Number the actions that there are from 0 on"):
            estimate(many, policy, 0.9)
    ends_far = [[(0, 0, 1.0, 2**40, True)], [(0, 0, 1.0, 2**40, False)]]
    for method in ("weighted", "model"):
        assert estimate_value(ends_far, policy, 0.9, method).value == 1.0
    assert estimate_action_values(ends_far, policy, 0.9).q[0].tolist() == [1.0]


@pytest.mark.parametrize("states", [3, 2_100], ids=["linear system", "sweeps"])
def test_the_model_is_solved_near_discount_factor_1(states):
    """A ring that is walked around without an end pays 1 in state 0, and 0 elsewhere."""
    ring = [(s, 0, float(s == 0), (s + 1) % states, False) for s in range(states)]
    found = estimate_value([ring, ring], np.zeros(states, int), 0.9999, "model")
    assert found.value == pytest.approx(1 / (1 - 0.9999**states)) and found.standard_error < 1e-6


def test_the_error_of_the_model_is_the_spread_of_samples_near_discount_factor_1():
    model = TabularMDP.garnet(12, 3, 2, seed=4)
    policy = np.full((12, 3), 1 / 3)
    found = [
        estimate_value(play_episodes(model, policy, 40, seed, max_steps=60), policy, 0.9999, "model")
        for seed in range(80)
    ]
    spread = np.std([each.value for each in found], ddof=1)
    assert 0.75 < np.mean([each.standard_error for each in found]) / spread < 1.25


def test_a_policy_that_never_ends_has_no_value_at_discount_factor_1():
    for reward in (0.0, 1.0):
        ring = [(0, 0, reward, 1, False), (1, 0, 0.0, 0, False)]
        with pytest.raises(ConvergenceError, match="discount factor 1"):
            estimate_value([ring, ring], np.zeros(2, int), 1.0, "model")


def test_confidence_is_told_as_it_was_given():
    episodes = [[(0, 0, 1.0, 1, True)], [(0, 0, 0.0, 1, True)]]
    for confidence, text in ((0.95, " 95% from"), (0.999, " 99.9% from"), (0.29, " 29% from")):
        assert text in repr(estimate_value(episodes, np.array([0]), 0.9, "model", confidence=confidence))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_probabilities_of_short_floats_add_up_to_1_within_their_rounding(dtype):
    thirds = np.full((2, 3), 1 / 3, dtype)
    assert abs(thirds[0].astype(float).sum() - 1.0) > 1e-8
    episodes = [[(0, a, float(a), 1, True)] for a in (0, 1, 2)]
    assert estimate_value(episodes, thirds, 0.9, behavior=thirds).value == pytest.approx(1.0)
    kept = DistAsyncQLearning(behavior=thirds).settings.behavior
    assert DistAsyncQLearning(behavior=kept).settings.behavior == kept
    with pytest.raises(SettingsError, match="add up to 1"):
        estimate_value(episodes, thirds * dtype(1.01), 0.9)
    with pytest.raises(SettingsError, match="behavior has shape .. and dtype <U3; it must be actions"):
        estimate_value(episodes, thirds, 0.9, "model", behavior="abc")
    with pytest.raises(SettingsError, match="add up to 1"):
        DistAsyncQLearning(behavior=thirds * dtype(1.01))


def less_what_was_counted(acted, influence):
    """Do what the blocks do by one matrix, with a row for each episode and a column for each pair."""
    pairs, pair = np.unique(acted.pairs, return_inverse=True)
    n, data = influence.size, acted.transitions
    episode = np.repeat(np.arange(n), np.diff(np.append(data.starts, len(data))))
    taken = np.zeros((n, pairs.size))
    np.add.at(taken, (episode, pair), 1.0)
    state = pairs // acted.n_actions
    there = taken @ (state[:, np.newaxis] == state)
    scores = taken - there * (taken.sum(axis=0) / there.sum(axis=0))
    explained = scores @ np.linalg.pinv(scores)
    leverage = np.minimum(np.diag(explained), 0.9)
    return (influence - explained @ influence) / (1.0 - leverage)


@pytest.mark.parametrize("episodes", [1, 7, 120, 1_000])
def test_what_counting_explains_is_the_same_in_blocks_of_episodes(monkeypatch, episodes):
    monkeypatch.setattr(estimates, "_EPISODES", episodes)
    model = TabularMDP.garnet(6, 3, 3, seed=4, termination_probability=0.2)
    data = play_episodes(model, np.full((6, 3), 1 / 3), 120, seed=2)
    acted = Acted.of(data, np.zeros((6, 3)), None)
    influence = np.random.default_rng(5).normal(size=120)
    found = estimates._less_what_was_counted(acted, influence)
    np.testing.assert_allclose(found, less_what_was_counted(acted, influence), rtol=1e-9, atol=1e-12)
    assert not np.allclose(found, influence, atol=0.01)


def test_many_episodes_take_no_matrix_of_them_all():
    episodes, actions = 50_000, 100
    taken = np.random.default_rng(0).integers(actions, size=episodes)
    data = Transitions(
        states=np.zeros(episodes, int),
        actions=taken,
        rewards=taken.astype(float),
        next_states=np.zeros(episodes, int),
        terminated=np.ones(episodes, bool),
    )
    tracemalloc.start()
    found = estimate_value(data, np.full((1, actions), 1 / actions), 1.0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * episodes * actions
    # Each action pays always the same: counting explains all that differs between episodes.
    assert found.value == pytest.approx((actions - 1) / 2) and found.standard_error < 1e-9
