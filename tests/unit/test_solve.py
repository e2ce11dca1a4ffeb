"""Optimal values and policy values against closed forms and against plain Python."""

from fractions import Fraction

import numpy as np
import pytest

from dist_classicrl.environments.model import TabularMDP
from dist_classicrl.environments.problems.gridworlds import gridworld
from dist_classicrl.environments.solvers import discounted, policy_value, process
from dist_classicrl.errors import ConvergenceError, DivergenceError, SettingsError


def random_model(seed, states=9, actions=3, end_fraction=0.3):
    """Random transitions, some of which terminate, an action mask, and one state without legal actions."""
    rng = np.random.default_rng(seed)
    transition = rng.dirichlet(np.full(states, 0.3), size=(states, actions))
    mask = rng.random((states, actions)) < 0.7
    mask[np.arange(states), rng.integers(actions, size=states)] = True
    mask[-1] = False
    terminated = rng.random((states, actions, states)) < end_fraction
    terminated[:, :, -1] = True
    start = np.append(np.full(states - 1, 1 / (states - 1)), 0.0)
    reward = rng.normal(size=(states, actions, states))
    return TabularMDP.from_arrays(transition, reward, start, terminated=terminated, action_mask=mask)


def outcomes(model, s, a):
    pair = s * model.n_actions + a
    for o in range(model.outcome_ptr[pair], model.outcome_ptr[pair + 1]):
        yield (
            float(model.outcome_prob[o]),
            int(model.outcome_next[o]),
            float(model.outcome_reward[o]),
            bool(model.outcome_terminated[o]),
        )


def brute_force_q(model, discount, sweeps):
    """Value iteration from the definition, from old values to new ones."""
    legal = model.legal_pairs()
    q = np.zeros((model.n_states, model.n_actions))
    for _ in range(sweeps):
        v = [
            max([q[s, a] for a in range(model.n_actions) if legal[s, a]], default=0.0) for s in range(len(q))
        ]
        for s, a in np.argwhere(legal):
            q[s, a] = sum(
                p * (r + (0.0 if end else discount * v[t])) for p, t, r, end in outcomes(model, s, a)
            )
    return q


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("discount", [0.0, 0.5, 0.9])
def test_solve_agrees_with_plain_value_iteration(seed, discount):
    model = random_model(seed)
    solution = model.solve(discount)
    expected = brute_force_q(model, discount, 250)
    np.testing.assert_allclose(solution.q, expected, atol=2e-10)
    legal = model.legal_pairs()
    assert (solution.q[~legal] == 0).all()
    acting = np.arange(model.n_states - 1)
    assert legal[acting, solution.policy[acting]].all() and solution.policy[-1] == -1
    np.testing.assert_array_equal(solution.v[acting], solution.q[acting, solution.policy[acting]])
    assert solution.v[-1] == 0.0
    np.testing.assert_allclose(np.where(legal, solution.q, -np.inf).max(axis=1)[:-1], solution.v[:-1])


@pytest.mark.parametrize("tolerance", [1.0, 1e-3, 1e-8])
def test_residual_bounds_the_error(tolerance):
    for seed in range(3):
        model = random_model(seed, end_fraction=0.0)
        solution = model.solve(0.95, tolerance)
        exact = model.solve(0.95, 1e-13)
        error = max(np.abs(solution.q - exact.q).max(), np.abs(solution.v - exact.v).max())
        assert error <= solution.residual < tolerance
        assert solution.iterations <= exact.iterations


def corridor(length, reward_on_the_way, reward_at_the_end):
    """Action 0 stays, action 1 moves on; moving on from the last state ends the episode."""
    P = {
        s: {
            0: [(1.0, s, reward_on_the_way, False)],
            1: [(1.0, min(s + 1, length - 1), reward_on_the_way, False)]
            if s < length - 1
            else [(1.0, s, reward_at_the_end, True)],
        }
        for s in range(length)
    }
    return TabularMDP.from_dict(P, np.eye(length)[0])


@pytest.mark.parametrize("discount", [0.3, 0.99, 1.0])
def test_corridor_with_costs(discount):
    steps = np.arange(20, 0, -1)
    solution = corridor(20, -1.0, -1.0).solve(discount)
    expected = -steps if discount == 1.0 else -(1 - discount**steps) / (1 - discount)
    np.testing.assert_allclose(solution.v, expected, rtol=1e-12)
    assert (solution.policy == 1).all()


@pytest.mark.parametrize("discount", [0.5, 0.99])
def test_two_state_loop(discount):
    model = TabularMDP.from_dict({0: [[(1.0, 1, 3.0, False)]], 1: [[(1.0, 0, -1.0, False)]]}, [1.0, 0.0])
    expected = np.array([3.0 - discount, -1.0 + 3.0 * discount]) / (1 - discount**2)
    np.testing.assert_allclose(model.solve(discount).v, expected, atol=1e-10)
    np.testing.assert_allclose(model.policy_value(np.array([0, 0]), discount), expected, rtol=1e-12)


@pytest.mark.parametrize("discount", [0.9, 1.0])
def test_geometric_length(discount):
    """One state that pays 1 per step and goes on with probability p is worth 1 / (1 - discount p)."""
    model = TabularMDP.from_dict({0: [[(0.75, 0, 1.0, False), (0.25, 0, 1.0, True)]]}, [1.0])
    assert model.solve(discount).v[0] == pytest.approx(1 / (1 - discount * 0.75), abs=1e-9)
    assert model.policy_value(np.array([0]), discount)[0] == pytest.approx(
        1 / (1 - discount * 0.75), rel=1e-13
    )


def gamblers_ruin(goal, p):
    """Play a round at a time until broke (0) or at the goal, which pays 1."""
    P = {0: [[(1.0, 0, 0.0, True)]], goal: [[(1.0, goal, 0.0, True)]]}
    for s in range(1, goal):
        P[s] = [[(p, s + 1, float(s + 1 == goal), s + 1 == goal), (1 - p, s - 1, 0.0, s == 1)]]
    return TabularMDP.from_dict(P, np.eye(goal + 1)[goal // 2])


@pytest.mark.parametrize("p", [0.5, 0.4])
def test_gamblers_ruin_undiscounted(p):
    goal = 16
    money = np.arange(goal + 1)
    odds = (1 - p) / p
    expected = money / goal if p == 0.5 else (1 - odds**money) / (1 - odds**goal)
    expected[-1] = 0.0
    model = gamblers_ruin(goal, p)
    np.testing.assert_allclose(model.solve(1.0).v, expected, atol=1e-9)
    np.testing.assert_allclose(model.policy_value(np.zeros(goal + 1, dtype=int), 1.0), expected, atol=1e-12)


def test_undiscounted_policy_collects_what_it_is_promised():
    # Waiting loses nothing, so it is as good as moving, but a policy that always waits gets nothing.
    model = corridor(6, 0.0, 1.0)
    solution = model.solve(1.0)
    np.testing.assert_array_equal(solution.v, np.ones(6))
    np.testing.assert_array_equal(model.policy_value(solution.policy, 1.0), np.ones(6))
    assert (model.policy_value(np.zeros(6, dtype=int), 1.0) == 0).all()


def test_undiscounted_policy_ends_in_a_loop_that_costs_nothing():
    # From 0 one may wait, or take 1 and come to 1, where one may wait, or pay 1 to come back and lose nothing
    # if one then takes it again. Paying and taking for ever has no value, however good each of the two looks.
    P = {
        0: [[(1.0, 0, 0.0, False)], [(1.0, 1, 1.0, False)]],
        1: [[(1.0, 0, -1.0, False)], [(1.0, 1, 0.0, False)]],
    }
    model = TabularMDP.from_dict(P, [1.0, 0.0])
    solution = model.solve(1.0)
    np.testing.assert_allclose(solution.v, [1.0, 0.0], atol=1e-10)
    np.testing.assert_array_equal(solution.policy, [1, 1])
    np.testing.assert_array_equal(model.policy_value(solution.policy, 1.0), [1.0, 0.0])


def test_undiscounted_policy_does_not_go_round_for_nothing():
    # From 1 one may go round by 2 and 3, which pays -1, 1 and 0, or by 0 to the end, which pays 2 and -2.
    P = {
        0: {0: [(1.0, 0, -2.0, True)]},
        1: {0: [(1.0, 2, -1.0, False)], 1: [(1.0, 0, 2.0, False)]},
        2: {0: [(1.0, 3, 1.0, False)]},
        3: {0: [(1.0, 1, 0.0, False)]},
    }
    model = TabularMDP.from_dict(P, [0.0, 1.0, 0.0, 0.0])
    solution = model.solve(1.0)
    np.testing.assert_array_equal(solution.v, [-2.0, 0.0, 1.0, 0.0])
    np.testing.assert_array_equal(solution.policy, [0, 1, 0, 0])
    np.testing.assert_allclose(model.policy_value(solution.policy, 1.0), solution.v, atol=1e-12)


@pytest.mark.parametrize("method", ["modified_policy_iteration", "value_iteration", "policy_iteration"])
@pytest.mark.parametrize("chance, cost, other", [(1e-3, 1e-3, 1e6), (1e-3, 1e-3, 1.0), (1e-3, 1e-10, 1e6)])
def test_a_state_that_moves_slowly_beside_one_that_is_settled_at_once(method, chance, cost, other):
    P = {
        0: [[(chance, 0, -cost, True), (1.0 - chance, 0, -cost, False)]],
        1: [[(1.0, 1, other, True)]],
    }
    solution = TabularMDP.from_dict(P, [0.5, 0.5]).solve(1.0, method=method)
    np.testing.assert_allclose(solution.v, [-cost / chance, other], atol=1e-9)


def test_where_sweeps_stop_too_early_the_value_of_their_policy_decides(monkeypatch):
    monkeypatch.setattr(process, "RATES", 1)
    P = {
        0: [[(1e-6, 0, -1e-6, True), (1.0 - 1e-6, 0, -1e-6, False)]],
        1: [[(1.0, 1, 1.0, True)]],
    }
    solution = TabularMDP.from_dict(P, [0.5, 0.5]).solve(1.0)
    np.testing.assert_allclose(solution.v, [-1.0, 1.0], rtol=1e-9)


def test_infinite_values_are_an_error_at_discount_one():
    model = TabularMDP.from_dict({0: [[(1.0, 0, 1.0, False)], [(1.0, 0, 0.0, True)]]}, [1.0])
    with pytest.raises(ConvergenceError, match="discount factor below 1"):
        model.solve(1.0, max_iterations=2_000)
    with pytest.raises(ConvergenceError, match="no value in state 0"):
        model.policy_value(np.array([0]), 1.0)
    assert model.policy_value(np.array([1]), 1.0)[0] == 0.0
    assert model.solve(0.5).v[0] == pytest.approx(2.0, abs=1e-10)


def brute_force_value(model, probability, discount, sweeps):
    v = np.zeros(model.n_states)
    legal = model.legal_pairs()
    for _ in range(sweeps):
        v = np.array(
            [
                sum(
                    probability[s, a] * p * (r + (0.0 if end else discount * v[t]))
                    for a in range(model.n_actions)
                    if legal[s, a]
                    for p, t, r, end in outcomes(model, s, a)
                )
                for s in range(model.n_states)
            ]
        )
    return v


@pytest.mark.slow
@pytest.mark.parametrize("dense_states", [2_000, -1])
@pytest.mark.parametrize("discount", [0.0, 0.9, 1.0])
def test_policy_value_agrees_with_plain_evaluation(monkeypatch, dense_states, discount):
    monkeypatch.setattr(policy_value, "DENSE_STATES", dense_states)
    for seed in range(3):
        model = random_model(seed)
        rng = np.random.default_rng(100 + seed)
        legal = model.legal_pairs()
        probability = np.where(legal, rng.random(legal.shape), 0.0)
        probability[:-1] /= probability[:-1].sum(axis=1, keepdims=True)
        expected = brute_force_value(model, probability, discount, 250)
        np.testing.assert_allclose(model.policy_value(probability, discount), expected, atol=1e-9)
        actions = np.where(legal, rng.random(legal.shape), -1).argmax(axis=1)
        one_hot = np.eye(model.n_actions)[actions]
        expected = brute_force_value(model, one_hot, discount, 250)
        np.testing.assert_allclose(model.policy_value(actions, discount), expected, atol=1e-9)


@pytest.mark.parametrize("dense_states", [2_000, -1])
def test_undiscounted_policy_value_with_loops_that_pay_nothing(monkeypatch, dense_states):
    monkeypatch.setattr(policy_value, "DENSE_STATES", dense_states)
    # 0 -> 1 or 2 with even odds; 1 waits for ever at no reward; 2 pays 4 and ends.
    P = {
        0: [[(0.5, 1, 1.0, False), (0.5, 2, 1.0, False)]],
        1: [[(1.0, 1, 0.0, False)]],
        2: [[(1.0, 2, 4.0, True)]],
    }
    model = TabularMDP.from_dict(P, [1.0, 0.0, 0.0])
    np.testing.assert_allclose(model.policy_value(np.zeros(3, dtype=int), 1.0), [3.0, 0.0, 4.0], rtol=1e-12)


@pytest.mark.parametrize("dense_states", [2_000, -1])
def test_undiscounted_states_that_no_episode_comes_to_need_no_value(monkeypatch, dense_states):
    monkeypatch.setattr(policy_value, "DENSE_STATES", dense_states)
    # 0 costs 1 and ends, or leads to 1, which costs 1 for ever.
    P = {0: [[(1.0, 0, -1.0, True)], [(1.0, 1, -1.0, False)]], 1: [[(1.0, 1, -1.0, False)]] * 2}
    model = TabularMDP.from_dict(P, [1.0, 0.0])
    with pytest.raises(SettingsError, match="from_start must be True or False, got 'no'"):
        model.policy_value(np.array([0, 0]), 1.0, from_start="no")
    v = model.policy_value(np.array([0, 0]), 1.0, from_start=True)
    np.testing.assert_array_equal(v, [-1.0, 0.0])
    with pytest.raises(ConvergenceError, match="no value in state 1"):
        model.policy_value(np.array([0, 0]), 1.0)
    with pytest.raises(ConvergenceError, match="no value in state 0"):
        model.policy_value(np.array([1, 0]), 1.0, from_start=True)


def test_optimal_policy_is_worth_the_optimal_value():
    for seed in range(5):
        model = random_model(seed)
        for discount in (0.9, 1.0):
            solution = model.solve(discount)
            np.testing.assert_allclose(model.policy_value(solution.policy, discount), solution.v, atol=1e-9)


@pytest.mark.parametrize("discount", [-0.1, 1.1, np.nan, "0.9", None, True])
def test_refuses_discounts(discount):
    model = corridor(2, 0.0, 1.0)
    with pytest.raises(SettingsError, match="discount_factor is"):
        model.solve(discount)
    with pytest.raises(SettingsError, match="discount_factor is"):
        model.policy_value(np.array([0, 0]), discount)


@pytest.mark.parametrize("tolerance", [0.0, -1.0, np.nan, 10**400])
def test_refuses_tolerances(tolerance):
    model = corridor(2, 0.0, 1.0)
    for solve in (lambda: model.solve(0.9, tolerance), lambda: model.solve_average_reward(tolerance)):
        with pytest.raises(SettingsError, match="tolerance is"):
            solve()


@pytest.mark.parametrize(
    "policy, message",
    [
        ([0, 2], "takes action 2 in state 1; actions are 0 to 1"),
        ([-1, 0], "takes action -1 in state 0"),
        ([1, 1], "takes action 1 in state 0, which is illegal there; legal are"),
        ([[0.5, 0.5], [0.5, 0.5]], "takes action 1 in state 0, which is illegal"),
        ([[1.0, 0.0], [0.5, 0.4]], "probabilities in state 1"),
        ([[1.0, 0.0], [1.5, -0.5]], "probabilities in state 1"),
        ([[1.0, 0.0], [np.nan, 0.5]], "probabilities in state 1"),
        ([0.0, 1.0], "dtype float64; it must be actions"),
        ([0, 0, 0], r"shape \(3,\)"),
    ],
)
def test_refuses_policies(policy, message):
    P = {0: {0: [(1.0, 1, 0.0, False)]}, 1: {0: [(1.0, 1, 1.0, True)], 1: [(1.0, 0, 0.0, False)]}}
    with pytest.raises(SettingsError, match=message):
        TabularMDP.from_dict(P, [1.0, 0.0]).policy_value(np.array(policy), 0.9)


@pytest.mark.parametrize("discount", [0.0, 0.5, 0.99, 1.0])
def test_a_policy_value_is_that_of_lapack_without_its_threads(discount, monkeypatch):
    for seed, states in ((1, 9), (2, 40), (3, 150)):
        model = random_model(seed, states)
        policy = model.solve(discount).policy
        acting = policy >= 0
        transition, reward = np.zeros((states, states)), np.zeros(states)
        for s in np.flatnonzero(acting):
            for prob, follow, gain, has_ended in outcomes(model, s, policy[s]):
                reward[s] += prob * gain
                transition[s, follow] += 0.0 if has_ended else prob
        expected = np.linalg.solve(np.eye(states) - discount * transition, reward)
        with monkeypatch.context() as patch:
            patch.setattr(np.linalg, "solve", None)
            found = model.policy_value(policy, discount)
        np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-11)


def test_elimination_says_where_there_is_no_pivot():
    a = np.array([[1.0, 0.0, -0.5], [0.0, 1.0, -1.0], [0.0, -1.0, 1.0]])
    for exits in (a.sum(axis=1), np.zeros(0)):
        assert policy_value.solve_in_place(a.copy(), np.ones(3), exits, np.empty(3, np.int64)) == 2


def test_a_policy_that_hardly_gets_on_is_worth_what_fractions_say():
    # On with 1/20, back with 19/20: that takes 1e38 steps, and a chance of 1e-38 is nothing beside 1.
    n, p = 30, Fraction(1, 20)
    P = {
        s: [[(float(p), s + 1, -1.0, s == n - 1), (float(1 - p), max(s - 1, 0), -1.0, False)]]
        for s in range(n)
    }
    P[n] = [[(1.0, n, 0.0, True)]]
    steps = [1 / p]
    for _ in range(n - 1):
        steps.append((1 + (1 - p) * steps[-1]) / p)
    expected = [-float(sum(steps[s:])) for s in range(n + 1)]
    model = TabularMDP.from_dict(P, np.eye(n + 1)[0])
    np.testing.assert_allclose(model.policy_value(np.zeros(n + 1, int), 1.0), expected, rtol=1e-12)


def test_policy_iteration_gets_to_the_optimum_from_policies_that_hardly_get_on(monkeypatch):
    model = gridworld(desc=["S" + "." * 19, *["." * 20] * 18, "." * 19 + "G"], slip=0.1)
    found = model.solve(1.0, method="policy_iteration")
    np.testing.assert_allclose(found.v, model.solve(1.0).v, rtol=1e-9)
    assert found.v[0] == pytest.approx(-41.776, abs=1e-3) and found.residual < 1e-9
    # Above so many states values come from sweeps, which do not get to the end of 1e16 steps.
    monkeypatch.setattr(policy_value, "DENSE_STATES", -1)
    model = gridworld(desc=["S" + "." * 11, *["." * 12] * 10, "." * 11 + "G"], slip=0.3)
    found = model.solve(1.0, method="policy_iteration")
    np.testing.assert_allclose(found.v, model.solve(1.0).v, rtol=1e-9)


def test_policy_iteration_does_not_choose_between_values_that_rounding_hides():
    P = {0: [[(p, 0, -1.0, True), (1.0 - p, 0, -1.0, False)] for p in (2.0**-52, 2.0**-51)]}
    model = TabularMDP.from_dict(P, [1.0])
    assert model.policy_value(np.zeros(1, int), 1.0)[0] == pytest.approx(-(2.0**52), rel=1e-12)
    with pytest.raises(ConvergenceError, match="the best action is unknown"):
        model.solve(1.0, method="policy_iteration")


@pytest.mark.parametrize("dense_states", [2_000, 0])
def test_values_that_no_policy_has_are_refused(dense_states, monkeypatch):
    monkeypatch.setattr(discounted, "DENSE_STATES", dense_states)
    # Round by 1 costs 1 and pays 1, for ever; to end costs 5.
    P = {
        0: {0: [(1.0, 1, -1.0, False)], 1: [(1.0, 0, -5.0, True)]},
        1: {0: [(1.0, 0, 1.0, False)]},
    }
    with pytest.raises(ConvergenceError, match="no value in state 0"):
        TabularMDP.from_dict(P, [1.0, 0.0]).solve(1.0)


def test_discount_factors_that_rounding_makes_1():
    discount = np.nextafter(1.0, 0.0)
    for method in discounted.METHODS:
        with pytest.raises(ConvergenceError, match=r"1 - 1e-14|the best action is unknown"):
            two_ways_to_wait().solve(discount, method=method)
    costly = corridor(20, -1.0, -1.0)
    np.testing.assert_allclose(costly.solve(discount, method="policy_iteration").v, -np.arange(20, 0, -1))
    waits = np.zeros(1, int)
    assert two_ways_to_wait().policy_value(waits, discount)[0] == pytest.approx(-(2.0**53), rel=1e-12)


def two_ways_to_wait():
    return TabularMDP.from_dict({0: [[(1.0, 0, -1.0, False)], [(1.0, 0, -0.5, False)]]}, [1.0])


@pytest.mark.parametrize("method", ["modified_policy_iteration", "value_iteration", "policy_iteration"])
def test_values_beyond_all_numbers_are_refused(method):
    model = TabularMDP.from_dict({0: {0: [(1.0, 0, 1e308, False)]}}, [1.0])
    with pytest.raises(DivergenceError, match="state 0"):
        model.solve(0.9, method=method)
    with pytest.raises(DivergenceError, match="state 0"):
        model.policy_value(np.zeros(1, int), 0.9)
