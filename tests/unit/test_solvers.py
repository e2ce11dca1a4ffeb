"""Solvers against linear equations, closed forms, all policies one by one, and plain Python."""

import dataclasses
import itertools
import math

import function_models
import numpy as np
import pytest
from test_solve import brute_force_q, corridor, outcomes, random_model

from dist_classicrl.environments.model import TabularMDP
from dist_classicrl.environments.problems.walks import river_swim
from dist_classicrl.environments.sampling import ranges
from dist_classicrl.environments.solvers import average, average_policy_iteration, chains, discounted, process
from dist_classicrl.environments.solvers.rows import RowsProcess
from dist_classicrl.errors import ConvergenceError, DivergenceError, SettingsError


def model_of(P, start=None):
    return TabularMDP.from_dict(P, [1.0] + [0.0] * (len(P) - 1) if start is None else start)


def continuing(seed, states, actions=2, zeros=0.6):
    """A model that never ends, whose transitions are few."""
    rng = np.random.default_rng(seed)
    transition = rng.dirichlet(np.ones(states), size=(states, actions))
    transition[rng.random(transition.shape) < zeros] = 0.0
    transition[np.arange(states), :, rng.integers(states, size=states)] += 0.1
    transition /= transition.sum(axis=2, keepdims=True)
    return TabularMDP.from_arrays(transition, rng.normal(size=(states, actions)), np.full(states, 1 / states))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["value_iteration", "policy_iteration", "modified_policy_iteration"])
@pytest.mark.parametrize("discount", [0.0, 0.9, 1.0])
def test_all_methods_agree_with_plain_value_iteration(method, discount):
    for seed in range(3):
        model = random_model(seed)
        found = model.solve(discount, 1e-11, method)
        np.testing.assert_allclose(found.q, brute_force_q(model, discount, 250), atol=1e-9)
        assert found.residual < 1e-9 and found.policy[-1] == -1
        np.testing.assert_allclose(model.policy_value(found.policy, discount), found.v, atol=1e-9)


def test_policy_iteration_takes_few_iterations_and_collects_what_it_promises():
    model = corridor(30, 0.0, 1.0)
    found = model.solve(1.0, method="policy_iteration")
    np.testing.assert_array_equal(found.v, np.ones(30))
    np.testing.assert_array_equal(model.policy_value(found.policy, 1.0), np.ones(30))
    garnet = TabularMDP.garnet(200, 4, 3, seed=1)
    exact = garnet.solve(0.999, method="policy_iteration")
    swept = garnet.solve(0.999, 1e-9)
    np.testing.assert_allclose(exact.q, swept.q, atol=2e-9)
    assert exact.iterations < 20 < garnet.solve(0.999, 1e-9, "value_iteration").iterations


@pytest.mark.parametrize("is_legal", [False, True])
def test_policy_iteration_is_not_misled_by_rewards_that_its_policy_never_meets(is_legal):
    # To the end at once for -1, or by way of 1 for -1.2 + 0.205.
    model = model_of(
        {
            0: [[(1.0, 2, -1.0, True)], [(1.0, 1, -1.2, False)], [(1.0, 0, -1e12, False)]],
            1: [[(1.0, 2, 0.205, True)], [(1.0, 0, -1.0, False)], [(1.0, 0, -1e12, False)]],
            2: [[(1.0, 2, 0.0, True)]] * 3,
        }
    )
    if not is_legal:
        legal = np.array([[True, True, False]] * 2 + [[True] * 3])
        model = dataclasses.replace(model, action_mask=legal)
    found = model.solve(1.0, method="policy_iteration")
    np.testing.assert_allclose(found.v, [-0.995, 0.205, 0.0], atol=1e-12)
    np.testing.assert_allclose(model.policy_value(found.policy, 1.0), found.v, atol=1e-12)


def test_sweeps_over_a_policys_own_rows_are_those_over_all_rows_to_the_bit():
    """One of the states has no legal action, others end at once."""
    for seed in range(4):
        rows = RowsProcess.of_model(random_model(seed))
        found = []
        for is_held in (False, True):
            sweeps = process.Sweeps(rows, 0.9)
            for _ in range(3):
                sweeps.improve()
                evaluated = sweeps.under_policy() if is_held else sweeps
                changes = [evaluated.evaluate() for _ in range(6)]
            assert sweeps.policy[-1] == -1
            found.append((sweeps.v, changes[-1]))
        np.testing.assert_array_equal(found[0][0], found[1][0])
        assert found[0][1] == found[1][1] > 0.0


def test_rewards_that_never_end_are_an_error_for_each_method():
    model = model_of({0: [[(1.0, 0, 1.0, False)], [(1.0, 0, 0.0, True)]]})
    with pytest.raises(ConvergenceError, match="discount factor below 1"):
        model.solve(1.0, method="value_iteration", max_iterations=50)
    with pytest.raises(ConvergenceError, match="no value in state 0"):
        model.solve(1.0, method="policy_iteration")


@pytest.mark.slow
def test_large_models_are_solved_alike_by_any_number_of_threads(monkeypatch):
    model = TabularMDP.garnet(3_000, 3, 2, seed=2, terminal_states=5)
    in_place = model.solve(0.9, 1e-9)
    monkeypatch.setattr(process, "ONE_THREAD", 100)
    monkeypatch.setattr(process, "_RANGE", 64)
    found = []
    for cores in (1, 3):
        monkeypatch.setattr(ranges, "usable_cores", lambda cores=cores: cores)
        found.append(model.solve(0.9, 1e-9))
    np.testing.assert_allclose(found[0].q, in_place.q, atol=2e-9)
    np.testing.assert_array_equal(found[0].q, found[1].q)
    np.testing.assert_array_equal(found[0].policy, found[1].policy)


@pytest.mark.parametrize("discount", [0.8, 1.0])
def test_a_finite_horizon_is_that_of_plain_python(discount):
    model = random_model(1)
    final = np.random.default_rng(0).normal(size=model.n_states)
    found = model.solve_finite_horizon(6, discount, final)
    legal, v = model.legal_pairs(), final
    np.testing.assert_array_equal(found.v[6], final)
    for step in range(5, -1, -1):
        q = np.zeros(legal.shape)
        for s, a in np.argwhere(legal):
            q[s, a] = sum(
                p * (r + (0.0 if end else discount * v[t])) for p, t, r, end in outcomes(model, s, a)
            )
        v = np.array([max(q[s, legal[s]], default=0.0) for s in range(len(q))])
        np.testing.assert_allclose(found.v[step], v, atol=1e-12)
        np.testing.assert_allclose(found.q(step), q, atol=1e-12)
        acting = np.arange(len(q) - 1)
        np.testing.assert_array_equal(
            found.q(step)[acting, found.policy[step][acting]], found.v[step][acting]
        )
    assert (found.policy[:, -1] == -1).all()


def test_the_time_limit_is_the_horizon_where_none_is_given():
    model = corridor(6, 0.0, 1.0)
    limited = TabularMDP(**{**vars(model), "max_episode_steps": 4})
    found = limited.solve_finite_horizon()
    np.testing.assert_array_equal(found.v[0], [0, 0, 1, 1, 1, 1])  # four steps lead to the end from 2 on
    assert found.horizon == 4 and "4 steps" in repr(found)
    for given, message in (
        (None, "no max_episode_steps"),
        (0, "horizon is 0"),
        (2.5, "horizon is 2.5"),
        (10**18, "no memory"),
    ):
        with pytest.raises(SettingsError, match=message):
            model.solve_finite_horizon(given)
    with pytest.raises(SettingsError, match=r"one finite number for each state, shape \(6,\)"):
        model.solve_finite_horizon(3, final_values=[1.0, 2.0])
    for step in (4, -1, 1.5, None, "a"):
        with pytest.raises(SettingsError, match="steps 0 to 3"):
            found.q(step)


def chain_of(model, actions):
    """Return transitions and mean rewards of a policy; an end is followed by where episodes start."""
    transition, reward = np.zeros((model.n_states, model.n_states)), np.zeros(model.n_states)
    for s, a in enumerate(actions):
        for p, t, r, end in outcomes(model, s, a) if a >= 0 else ():
            reward[s] += p * r
            transition[s] += p * (model.start_prob if end else np.eye(model.n_states)[t])
    return transition, reward


def gains_of(model, actions):
    """The long-run average, by a power of the chain that stays where it is half of the time."""
    transition, reward = chain_of(model, actions)
    lazy = (np.eye(len(reward)) + transition) / 2
    return np.linalg.matrix_power(lazy, 2**26) @ reward


def best_gains(model):
    """The best of all policies, one by one."""
    legal = model.legal_pairs()
    choices = [np.flatnonzero(row) if row.any() else [-1] for row in legal]
    return np.max([gains_of(model, actions) for actions in itertools.product(*choices)], axis=0)


EPISODES = [random_model(seed, states=5, actions=2) for seed in (0, 1)]
CHAINED = [continuing(seed, 5) for seed in (0, 1)]


@pytest.mark.parametrize("method", average.METHODS)
@pytest.mark.parametrize("model", EPISODES + CHAINED, ids=["ends", "ends too", "goes on", "goes on too"])
def test_the_average_reward_is_that_of_the_best_of_all_policies(model, method):
    found = model.solve_average_reward(1e-10, method)
    acting = found.policy >= 0
    np.testing.assert_allclose(found.gains[acting], best_gains(model)[acting], atol=1e-9)
    assert found.gain == pytest.approx(model.start_prob @ found.gains) and found.residual < 1e-10
    # The optimality equation, at each pair and as the largest at each state.
    after = np.where(acting, found.bias, 0.0)
    for s, a in np.argwhere(model.legal_pairs()):
        q = -found.gains[s]
        for p, t, r, end in outcomes(model, s, a):
            q += p * (r + (model.start_prob @ after if end else after[t]))
        assert found.q[s, a] == pytest.approx(q, abs=1e-12)
    best = np.where(model.legal_pairs(), found.q, -np.inf).max(axis=1)
    np.testing.assert_allclose(best[acting], found.bias[acting], atol=1e-8)
    assert abs(model.start_prob @ found.bias) < 1e-12
    judged = model.policy_gain(found.policy)
    np.testing.assert_allclose(judged.gains, found.gains, atol=1e-9)
    assert judged.periods == found.periods


#: Going round three states pays 3, in every third step; waiting in 3, which nothing leads to, pays 2.
APART = model_of(
    {
        0: {0: [(1.0, 1, 0.0, False)]},
        1: {0: [(1.0, 2, 0.0, False)]},
        2: {0: [(1.0, 0, 3.0, False)]},
        3: {0: [(1.0, 3, 2.0, False)], 1: [(1.0, 0, 0.0, False)]},
        4: {0: [(0.25, 0, 0.0, False), (0.75, 3, 0.0, False)], 1: [(1.0, 4, 1.5, False)]},
    },
    [0.0, 0.0, 0.0, 0.0, 1.0],
)


def test_a_multichain_model_is_named_and_solved():
    with pytest.raises(ConvergenceError, match="about 1 from state 0 on.*policy_iteration"):
        APART.solve_average_reward()
    found = APART.solve_average_reward(method="policy_iteration")
    np.testing.assert_allclose(found.gains, [1.0, 1.0, 1.0, 2.0, 1.75], atol=1e-12)
    np.testing.assert_array_equal(found.policy, [0, 0, 0, 0, 0])
    assert sorted(found.periods) == [1, 3] and found.gain == pytest.approx(1.75)
    spreads = []
    for seed in range(4):
        model = continuing(10 + seed, 5, zeros=1.0)
        gains = model.solve_average_reward(method="policy_iteration").gains
        np.testing.assert_allclose(gains, best_gains(model), atol=1e-9)
        spreads.append(np.ptp(gains))
    assert max(spreads) > 0.01


@pytest.mark.parametrize("n", [6, 10, 12, 40])
def test_the_gain_of_a_long_river_is_its_closed_form(n):
    # Some 7**n steps from end to end; the shares of the states are those of a birth-death chain.
    shares = [1.0, 12.0]
    while len(shares) < n:
        shares.append(shares[-1] * (7.0 if len(shares) < n - 1 else 7.0 / 8.0))
    expected = shares[-1] / sum(shares)
    exact, swept = (river_swim(n).solve_average_reward(method=method) for method in reversed(average.METHODS))
    assert exact.gain == pytest.approx(expected, rel=1e-12) and (exact.policy == 1).all()
    assert swept.gain == pytest.approx(expected, abs=1e-9)
    np.testing.assert_allclose(exact.bias, swept.bias, atol=1e-7)


def choosing(ways, legal=None, start=None):
    """A model of `{state: [(reward, {next: probability}), ...]}`, one for each action; nothing ends."""
    n, most = len(ways), max(map(len, ways.values()))
    transition, reward = np.zeros((n, most, n)), np.zeros((n, most))
    for s, each in ways.items():
        for a in range(most):
            reward[s, a], leads = each[min(a, len(each) - 1)]
            transition[s, a, list(leads)] = list(leads.values())
    start = np.eye(n)[0] if start is None else start
    return TabularMDP.from_arrays(transition, reward, start, action_mask=legal)


def often(p, s, t):
    """Lead from `s` to `t` with probability `p`, and else stay."""
    return {s: 1.0 - p, t: p}


#: 1 for ever, or first 0.99 and then 1.02: 1.005 on average.
LATER = [(1.0, {0: 1.0}), (0.99, {1: 1.0})]


@pytest.mark.parametrize(
    ("model", "gain"),
    [
        (choosing({0: LATER, 1: [(1.02, {0: 1.0})], 2: [(0.0, often(1e-8, 2, 0))]}), 1.005),
        # What works breaks now and then, and takes as long to repair, or a tenth of it.
        *(
            (
                choosing(
                    {
                        0: [(1.0, often(p, 0, 2)), (0.99, {1: 1.0 - p, 2: p})],
                        1: [(1.02, {0: 1.0 - p, 2: p})],
                        2: [(0.0, often(1e-9, 2, 0))],
                    }
                ),
                1.005 / (1.0 + p / 1e-9),
            )
            for p in (1e-9, 1e-10)
        ),
        (choosing({0: [*LATER, (-1e9, {0: 1.0})], 1: [(1.02, {0: 1.0}), (-1e9, {0: 1.0})]}), 1.005),
        # What leads out of a bad state hardly ever still leads out of it.
        (choosing({0: [(0.0, {0: 1.0}), (-1.0, often(1e-11, 0, 1))], 1: [(1.0, {1: 1.0})]}), 1.0),
    ],
    ids=["sticky elsewhere", "breaks", "seldom breaks", "penalty", "hardly left"],
)
def test_what_is_large_or_slow_hides_no_better_average(model, gain):
    found = model.solve_average_reward(method="policy_iteration")
    assert found.gain == pytest.approx(gain, rel=1e-7)
    assert model.policy_gain(found.policy).gain == pytest.approx(found.gain, rel=1e-12)


def test_rewards_of_illegal_pairs_say_nothing_of_what_is_better():
    legal = np.array([[True, True, False], [True, False, False]])
    for illegal in (0.0, -1e9):
        model = choosing(
            {0: [(1.0, {0: 1.0}), (0.99, {1: 1.0}), (illegal, {0: 1.0})], 1: LATER[:1] * 3}, legal
        )
        assert model.solve_average_reward(method="policy_iteration").policy.tolist() == [0, 0]
        ways = {0: [*LATER, (illegal, {0: 1.0})], 1: [(1.02, {0: 1.0})] * 2 + [(illegal, {0: 1.0})]}
        found = choosing(ways, legal).solve_average_reward(method="policy_iteration")
        assert found.gain == pytest.approx(1.005) and found.policy.tolist() == [1, 0]


@pytest.mark.slow
def test_sticky_multichain_models_with_penalties_have_the_gains_of_their_best_policies():
    """Chances of 1, 1/2, 1e-6 or 1e-8; gains that differ between states; penalties that nobody takes."""
    spreads, slow = [], []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        ways = {}
        for s in range(4):
            ways[s] = []
            for _ in range(2):
                p, (t, u) = 10.0 ** -rng.choice([0.0, 0.3, 6.0, 8.0]), rng.integers(4, size=2)
                t, u = (t, u) if s < 2 else (2 + t % 2, u) if s == 2 else (3, 3)  # 3 is not left
                leads = {int(t): 1.0} if t == u else {int(t): p, int(u): 1.0 - p}
                ways[s].append((1.0 + rng.normal() * 10.0 ** -rng.integers(5), leads))
            ways[s].append((-1e6, {s: 1.0}))
        model = choosing(ways, start=np.full(4, 0.25))
        gains = [model.policy_gain(np.array(each)).gains for each in itertools.product(range(3), repeat=4)]
        found = model.solve_average_reward(method="policy_iteration")
        np.testing.assert_allclose(found.gains, np.max(gains, axis=0), atol=1e-9)
        spreads.append(np.ptp(found.gains))
        slow.append(np.abs(found.bias).max())
    assert sum(np.array(spreads) > 0.01) > 3 and max(slow) > 1e5


def test_policies_that_follow_each_other_for_ever_are_an_error(monkeypatch):
    # The two ways from 0 are equal, and rounding, here a large one, puts another one first each time.
    back = [[(1.0, 0, 1.0, False)]]
    model = model_of({0: [[(1.0, s, 0.0, False)] for s in (1, 2)], 1: back, 2: back})
    exact = average_policy_iteration.gain_and_bias
    moved = itertools.cycle([(0, 0, 1e-3, 0), (0, 1e-3, 0, 0)])

    def rounded(chain):
        gain, bias, rounding = exact(chain)
        return gain, bias + next(moved), rounding

    assert model.solve_average_reward(method="policy_iteration").gain == pytest.approx(0.5)
    monkeypatch.setattr(average_policy_iteration, "gain_and_bias", rounded)
    with pytest.raises(ConvergenceError, match="after iteration 2 a policy comes again"):
        model.solve_average_reward(method="policy_iteration", max_iterations=50)


def test_gains_and_values_near_the_largest_number():
    huge = 1.7e308
    round_two = model_of({s: [[(1.0, 1 - s, huge, False)]] for s in range(2)})
    # What is earned on the way is beyond all numbers.
    way = model_of({s: [[(1.0, min(s + 1, 3), huge * (s < 3), False)]] for s in range(4)})
    assert round_two.solve_average_reward().gain == huge
    for method in average.METHODS:
        with pytest.raises(DivergenceError, match="state"):
            way.solve_average_reward(method=method)
    with pytest.raises(DivergenceError, match="state"):
        way.policy_gain(np.zeros(4, int))
    with pytest.raises(DivergenceError, match="state 0"):
        way.solve_finite_horizon(3)
    assert way.solve_finite_horizon(1).v[0, 0] == huge


@pytest.mark.filterwarnings("error")
def test_values_of_actions_that_nobody_takes_are_not_infinite():
    lose, win = [(1.0, 1, -1.2e308, False)], [(1.0, 0, 1.2e308, False)]
    average_of = model_of([[win, lose], [win]])
    poor = model_of([[[(1.0, 0, 0.0, True)], lose], [[(1.0, 1, -1.2e308, True)]]])
    for method in average.METHODS:
        with pytest.raises(DivergenceError, match="state 0"):
            average_of.solve_average_reward(method=method)
    for method in discounted.METHODS:
        with pytest.raises(DivergenceError, match="state 0"):
            poor.solve(0.9, method=method)
    found = poor.solve_finite_horizon(2)
    assert found.q(1)[0, 1] == -1.2e308
    with pytest.raises(DivergenceError, match="state 0"):
        found.q(0)


@pytest.mark.slow
def test_a_process_that_is_gone_round_has_its_period():
    for length in (1, 2, 30):
        P = {s: [[(1.0, (s + 1) % length, float(s == 0), False)]] for s in range(length)}
        found = model_of(P).solve_average_reward()
        assert found.gain == pytest.approx(1 / length, abs=1e-10) and found.periods == (length,)
        # Episodes of that length, one after the other, are the same.
        P[length - 1] = [[(1.0, 0, float(length == 1), True)]]
        found = model_of(P).solve_average_reward()
        assert found.gain == pytest.approx(1 / length, abs=1e-10) and found.periods == (length,)


@pytest.mark.parametrize("dense_states", [2_000, 0])
def test_the_gain_of_a_policy_with_probabilities(dense_states, monkeypatch):
    monkeypatch.setattr(average, "DENSE_STATES", dense_states)
    # Up with 1/3, down with 2/3, from 0 to 3: in the long run the shares of the states are powers of 1/2.
    P = {s: [[(1.0, min(s + 1, 3), 1.0, False)], [(1.0, max(s - 1, 0), 0.0, False)]] for s in range(4)}
    model = model_of(P)
    found = model.policy_gain(np.tile([1 / 3, 2 / 3], (4, 1)))
    assert found.gain == pytest.approx(1 / 3, abs=1e-10)
    reward = model_of({s: [[(p, t, float(s), e) for p, t, _, e in o] for o in P[s]] for s in P})
    found = reward.policy_gain(np.tile([1 / 3, 2 / 3], (4, 1)))
    shares = 0.5 ** np.arange(4)
    assert found.gain == pytest.approx(shares @ np.arange(4) / shares.sum(), abs=1e-9)
    # h = r - g + P h
    after = [found.bias[min(s + 1, 3)] / 3 + found.bias[max(s - 1, 0)] * 2 / 3 for s in range(4)]
    np.testing.assert_allclose(found.bias, np.arange(4) - found.gain + after, atol=1e-8)
    if not dense_states:
        with pytest.raises(ConvergenceError, match="multichain"):
            APART.policy_gain(np.zeros(5, int))
    else:
        gains = APART.policy_gain(np.array([0, 0, 0, 1, 0])).gains
        np.testing.assert_allclose(gains, np.ones(5), atol=1e-12)


@pytest.mark.slow
def test_recurrent_classes_and_periods_are_those_of_the_definition():
    rng = np.random.default_rng(3)
    seen = set()
    for _ in range(150):
        n = int(rng.integers(2, 9))
        edges = rng.random((n, n)) < rng.choice([0.12, 0.2])
        pointer = np.append(0, np.cumsum(edges.sum(axis=1)))
        member, count = chains.recurrent_classes(pointer, np.nonzero(edges)[1])
        reach = np.linalg.matrix_power(np.eye(n) + edges, n) > 0
        recurrent = [edges[s].any() and all(reach[t, s] for t in np.flatnonzero(reach[s])) for s in range(n)]
        np.testing.assert_array_equal(member >= 0, recurrent)
        assert count == len({tuple(reach[s]) for s in range(n) if recurrent[s]})
        periods = chains.periods_of(pointer, np.nonzero(edges)[1], member, count, np.ones(n, int))
        for s in np.flatnonzero(recurrent):
            assert all((member[t] == member[s]) == reach[s, t] for t in range(n))
            power, lengths = edges.astype(float), []
            for length in range(1, 3 * n):
                lengths += [length] * bool(power[s, s])
                power = np.minimum(power @ edges, 1.0)
            assert periods[member[s]] == math.gcd(*lengths)
        seen |= set(periods)
    assert {1, 2, 3} <= seen


@pytest.mark.slow
def test_models_of_functions_are_solved_as_their_arrays_are():
    options = function_models.STOCKED
    stored, asked = (
        TabularMDP.from_function(function_models.sell, **options, tables=t) for t in (True, False)
    )
    horizons = [model.solve_finite_horizon() for model in (stored, asked)]
    assert horizons[0].horizon == 20
    np.testing.assert_allclose(horizons[0].v, horizons[1].v, atol=1e-12)
    np.testing.assert_allclose(horizons[0].q(3), horizons[1].q(3), atol=1e-12)
    averages = [model.solve_average_reward() for model in (stored, asked)]
    np.testing.assert_allclose(averages[0].q, averages[1].q, atol=1e-8)
    policy = averages[0].policy
    assert asked.policy_gain(policy).gain == pytest.approx(stored.policy_gain(policy).gain, abs=1e-9)
    even = np.full((6, 5), 0.2)
    assert asked.policy_gain(even).gain == pytest.approx(stored.policy_gain(even).gain, abs=1e-9)
    swept = asked.solve(0.9, method="value_iteration")
    np.testing.assert_allclose(swept.q, stored.solve(0.9, method="policy_iteration").q, atol=1e-8)
    with pytest.raises(SettingsError, match="'policy_iteration', which needs a model with arrays"):
        asked.solve(0.9, method="policy_iteration")


def test_refuses_what_is_not_allowed():
    model = corridor(3, 0.0, 1.0)
    with pytest.raises(
        SettingsError, match="method is 'howard'; it must be one of 'modified_policy_iteration'"
    ):
        model.solve(0.9, method="howard")
    with pytest.raises(SettingsError, match="method is 'value_iteration'; it must be one of 'relative"):
        model.solve_average_reward(method="value_iteration")
    for limit in (0, 1.5, None):
        with pytest.raises(SettingsError, match="max_iterations is"):
            model.solve(0.9, max_iterations=limit)
    with pytest.raises(SettingsError, match="tolerance is 0"):
        model.solve_average_reward(0)
    with pytest.raises(ConvergenceError, match="after 3 sweeps the gain is only known to be between"):
        model.solve_average_reward(max_iterations=3)
    large = TabularMDP.garnet(2_001, 1, 1, seed=0)
    with pytest.raises(SettingsError, match="up to 2,000 states; this model has 2,001"):
        large.solve_average_reward(method="policy_iteration")
