"""Models that a function gives are those that plain Python makes of it, stored or not, whole or in parts."""

import functools
import types
from typing import NamedTuple

import numba
import numpy as np
import pytest
from function_models import STOCK, STOCKED, in_python, may_order, random_arguments, sell
from test_simulate import distribution, played

from dist_classicrl import DistAsyncQLearning, TabularMDP
from dist_classicrl.environments import function_model
from dist_classicrl.environments.function_model import FunctionMDP
from dist_classicrl.environments.resolve import resolve
from dist_classicrl.environments.sampling import alias, packing, ranges
from dist_classicrl.environments.simulate import CompiledSimulator, compile_model
from dist_classicrl.errors import (
    ActionMaskError,
    ConvergenceError,
    EnvError,
    ModelError,
    OutsideSpaceError,
    RewardError,
    SettingsError,
)
from dist_classicrl.evaluation.exact import exact_value
from dist_classicrl.rules import DynaQ, PrioritizedSweeping

MASK = np.array([[may_order.py_func(STOCK, state, action) for action in range(5)] for state in range(6)])
CASES = {
    "stock": dict(transition=sell, **STOCKED),
    "stock with a mask": dict(transition=sell, **STOCKED, legal=MASK),
    "stock with a function as mask": dict(transition=sell, **STOCKED, legal=may_order),
    "ragged": random_arguments(n_outcomes=9),
    "even": random_arguments(n_outcomes=3, even=True),
    "some with many": random_arguments(n_outcomes=30, rare=True),
    "two outcomes": random_arguments(n_outcomes=2),
}  # fmt: skip
CASES["starts"] = {**CASES["two outcomes"], "start": np.repeat([0.0, 1 / 90, 1 / 45], [0, 30, 30])}


@pytest.fixture(autouse=True)
def in_threads(monkeypatch):
    """Small models are divided among threads, too."""
    monkeypatch.setattr(ranges, "_WORTH_A_THREAD", 7)
    monkeypatch.setattr(ranges, "usable_cores", lambda: 3)


def of(name, **more):
    return TabularMDP.from_function(**{**CASES[name], **more})


def lazy(name, **more):
    return of(name, tables=False, **more)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_what_is_stored_is_what_plain_python_makes(name):
    stored, expected = of(name), in_python(**CASES[name])
    assert type(stored) is TabularMDP and stored == expected and stored.name == expected.name
    for field in ("outcome_ptr", "outcome_prob", "outcome_next", "outcome_reward", "outcome_terminated"):
        given = getattr(stored, field)
        np.testing.assert_array_equal(given, getattr(expected, field))
        assert given.dtype == getattr(expected, field).dtype and not given.flags.writeable


@pytest.mark.slow
def test_large_models_are_not_stored_unless_that_is_asked_for(monkeypatch):
    monkeypatch.setattr("dist_classicrl.environments.model_making._STORED", 6 * 5 * 5 - 1)
    assert type(of("stock")) is FunctionMDP
    assert type(of("stock", tables=True)) is TabularMDP
    monkeypatch.setattr("dist_classicrl.environments.model_making._STORED", 6 * 5 * 5)
    assert type(of("stock")) is TabularMDP
    assert "FunctionMDP('stock', 6 states, 5 actions, at most 5 outcomes" in repr(lazy("stock"))


def chances_of(model, pair):
    """Return {(next state, reward, terminated): chance} of a pair."""
    chances = {}
    for o in range(model.outcome_ptr[pair], model.outcome_ptr[pair + 1]):
        outcome = (
            int(model.outcome_next[o]),
            float(model.outcome_reward[o]),
            bool(model.outcome_terminated[o]),
        )
        chances[outcome] = chances.get(outcome, 0.0) + float(model.outcome_prob[o])
    return chances


def assert_same(one, other, starts=True):
    for field in one._fields[: None if starts else 5]:
        np.testing.assert_array_equal(getattr(one, field), getattr(other, field), err_msg=field)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_function_is_packed_as_its_arrays_are(name, monkeypatch):
    monkeypatch.setattr(packing, "_FEW_SLOTS", 0)
    packed = lazy(name).part()
    assert (packed.first is not None) == (name == "some with many")
    assert_same(packed, compile_model(of(name)), starts="starts" in name)
    monkeypatch.undo()
    monkeypatch.setattr(packing, "_pack", packing.python_of(packing._pack))  # as if it were not loaded
    assert_same(packed, compile_model(of(name)), starts="starts" in name)  # in plain Python


@pytest.mark.slow
@pytest.mark.parametrize("name", ["stock", "stock with a function as mask", "some with many"])
def test_a_part_has_the_pairs_of_its_states(name, monkeypatch):
    for states in (range(2, 5), np.array([4, 0, 4, 1]), range(3, 3)):
        assert_is_part(name, states, monkeypatch)


def assert_is_part(name, states, monkeypatch):
    model = of(name)
    for part in (model.part(states), lazy(name).part(states)):
        pairs = [state * model.n_actions + action for state in states for action in range(model.n_actions)]
        for local, pair in enumerate(pairs):
            low, high = local * part.width, (local + 1) * part.width
            if part.first is not None:
                low, high = part.first[local], part.first[local + 1]
            expected = chances_of(model, pair)
            if expected:
                found = distribution(part, int(low), int(high))
                for outcome in {*found, *expected}:
                    assert abs(found.get(outcome, 0.0) - expected.get(outcome, 0.0)) <= 2.0**-31
    with monkeypatch.context() as patched:
        patched.setattr(packing, "_FEW_SLOTS", 0)
        assert_same(compile_model(model, states), lazy(name).part(states), starts=False)


@pytest.mark.slow
def test_many_slots_are_compact_where_float32_holds_their_rewards(monkeypatch):
    models = {name: of(name) for name in ("even", "stock")}
    wide = {name: compile_model(model) for name, model in models.items()}
    monkeypatch.setattr(packing, "_FEW_SLOTS", 0)
    monkeypatch.setattr(packing, "_COMPACT_FROM", 1)
    compact = compile_model(models["even"])
    assert compact.rewards.dtype == np.float32 and 2 * compact.outcomes.nbytes == wide["even"].outcomes.nbytes
    assert_same(compact, lazy("even").part(), starts=False)
    slots = wide["even"].width * 180
    assert [compact.slot(number) for number in range(slots)] == [wide["even"].slot(n) for n in range(slots)]
    assert compile_model(models["stock"]).rewards.dtype == np.float64  # of a pair's outcomes each has its own
    third = {0: {0: [(0.5, 0, 1 / 3, False), (0.5, 1, 1 / 3, False)]}, 1: {0: [(1.0, 1, 1.0, True)]}}
    assert compile_model(TabularMDP.from_dict(third, [1, 0])).rewards.dtype == np.float64


@numba.njit
def read_at_once(tables, slot, random):
    return alias.outcome_at_once(tables, slot, random)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["even", "some with many"])
@pytest.mark.parametrize("is_compact", [False, True])
def test_a_slot_that_is_read_at_once_gives_what_stands_in_it(name, is_compact, monkeypatch):
    """As on a card; all of its words are at multiples of 16 bytes, from the first of its line on."""
    monkeypatch.setattr(packing, "_FEW_SLOTS", 0)
    monkeypatch.setattr(packing, "_COMPACT_FROM", 1 if is_compact else 1 << 30)
    tables = compile_model(of(name))
    assert (tables.rewards.dtype == np.float32) == (is_compact and name == "even")
    assert tables.outcomes.ctypes.data % 16 == 0
    for number in range(0, tables.outcomes.size // (4 if tables.rewards.itemsize == 4 else 8), 7):
        threshold, targets, rewards = tables.slot(number)
        for high in {0, threshold, min(threshold + 1, 2**32 - 1), 2**32 - 1}:
            other = high > threshold
            found = read_at_once(tables, number, np.uint64(high << 32 | 5))
            assert found == (targets[other] >> 1, rewards[other], bool(targets[other] & 1)), number


def chi_square(observed, chances):
    """Return by how many standard deviations Pearson's statistic is above its mean."""
    expected = np.array(chances) * sum(observed)
    freedom = max(1, len(chances) - 1)
    return (((np.array(observed) - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["function", "slots of a function", "compact slots"])
@pytest.mark.parametrize("name", ["stock", "ragged", "even"])
def test_outcomes_come_as_often_as_they_should(name, kind, monkeypatch):
    if kind == "compact slots":
        monkeypatch.setattr(packing, "_COMPACT_FROM", 1)
    simulator = lazy(name).simulator(tables=kind != "function")
    rewards = getattr(simulator.tables, "rewards", np.zeros(0))
    assert (rewards.dtype == np.float32) == (kind == "compact slots" and name == "even")
    model, n = of(name), 40_000
    rng = np.random.default_rng(8)
    for pair in rng.choice(model.n_states * model.n_actions, 5, replace=False).tolist():
        randoms = rng.integers(2**64, size=n, dtype=np.uint64)
        state, action = divmod(pair, model.n_actions)
        _, nexts, rewards, ends = played(simulator, randoms, np.full(n, state), np.full(n, action))
        chances = chances_of(model, pair)
        came = list(zip(nexts.tolist(), rewards.tolist(), ends.tolist(), strict=True))
        counts = {key: 0 for key in chances}
        for key in came:
            counts[key] += 1  # nothing else may come
        assert chi_square([counts[key] for key in chances], list(chances.values())) < 5.0


@pytest.mark.slow
def test_the_function_is_sampled_by_the_upper_bits_from_its_first_outcome_on():
    simulator = lazy("stock").simulator()
    cuts = np.cumsum(STOCK.demand)
    for share in np.linspace(0.0, 1.0, 41)[:-1]:
        random = np.array([int(share * 2**53) << 11], np.uint64)
        _, nexts, rewards, ends = played(simulator, random, np.array([1]), np.array([3]))
        sold = int(np.searchsorted(cuts, share, side="right"))
        assert (nexts[0], rewards[0], ends[0]) == sell.py_func(STOCK, 1, 3, sold)[1:]


@pytest.mark.slow
def test_what_rounding_leaves_is_the_last_outcomes():
    @numba.njit
    def nearly(data, state, action, outcome):
        return (0.7, 0, 1.0, False) if outcome == 0 else (0.3 - 1e-9 if outcome == 1 else 0.0, 1, 2.0, False)

    model = TabularMDP.from_function(nearly, n_states=2, n_actions=1, n_outcomes=3, tables=False)
    last = np.array([2**64 - 1], np.uint64)
    assert played(model.simulator(), last, np.zeros(1, int), np.zeros(1, int))[1].tolist() == [1]
    stored = TabularMDP.from_function(nearly, n_states=2, n_actions=1, n_outcomes=3)
    assert stored.outcome_prob[:2].sum() == pytest.approx(1.0, abs=1e-15)
    assert model.solve(0.0).v == pytest.approx(stored.solve(0.0).v, rel=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["stock", "stock with a function as mask", "ragged", "starts"])
def test_values_are_those_of_the_arrays(name, monkeypatch):
    model, stored = lazy(name), of(name)
    assert_same_values(model, stored, 0.5)
    monkeypatch.setattr(ranges, "usable_cores", lambda: 1)  # thousands of sweeps
    for discount in (0.0, 0.9, 0.99):
        assert_same_values(model, stored, discount)


def assert_same_values(model, stored, discount):
    found, expected = model.solve(discount), stored.solve(discount)
    np.testing.assert_allclose(found.q, expected.q, rtol=0, atol=1e-8)
    np.testing.assert_allclose(found.v, expected.v, rtol=0, atol=1e-8)
    assert found.residual < 1e-8
    np.testing.assert_allclose(model.policy_value(found.policy, discount), expected.v, rtol=0, atol=1e-8)
    legal = stored.legal_pairs()
    np.testing.assert_array_equal(model.legal_pairs(), legal)
    even = legal / legal.sum(axis=1, keepdims=True)
    value = stored.policy_value(even, discount)
    np.testing.assert_allclose(model.policy_value(even, discount), value, rtol=0, atol=1e-8)
    np.testing.assert_allclose(model.start_prob, stored.start_prob, rtol=1e-12)
    assert model.start_value(value) == pytest.approx(stored.start_value(value), rel=1e-12)
    one, other = (exact_value(each, expected.q, discount) for each in (model, stored))
    assert one.value == pytest.approx(other.value, abs=1e-8)
    assert one.optimum == pytest.approx(other.optimum, abs=1e-8)


@pytest.mark.slow
def test_a_state_without_legal_actions_is_worth_nothing():
    mask = MASK.copy()
    mask[5] = False
    solved = lazy("stock", legal=mask).solve(0.9)
    assert solved.v[5] == 0.0 and solved.policy[5] == -1 and not solved.q[5].any()
    np.testing.assert_allclose(solved.q, of("stock", legal=mask).solve(0.9).q, atol=1e-8)


@numba.njit
def two_on(data, state, action, outcome):
    """Lead to the next state, or, in 4, to an end in 5; every other outcome leads two further."""
    ends = state >= 4
    return 0.5, min(state + 1 + (outcome if not ends else 0), 5), 1.0 + 4.0 * outcome, ends


@pytest.mark.slow
def test_an_episode_that_comes_to_a_state_without_legal_actions_is_an_error_as_with_tables():
    sizes, nothing = dict(n_states=6, n_actions=1, n_outcomes=2), np.zeros(6, int)
    for stuck, start, message in (
        ([3], 0, "state 3, which an episode can reach without ending"),
        ([1, 2], 1, "state 1, where episodes can start"),
        ([0, 1], 2, None),  # nothing leads there
        ([5], 3, "state 5, which an episode can reach without ending"),
        ([5], 4, None),  # episodes end there
    ):
        legal = np.ones((6, 1), bool)
        legal[stuck] = False
        make = functools.partial(TabularMDP.from_function, two_on, **sizes, start=start, legal=legal)
        model = make(tables=False)
        ways = [
            model.solve_average_reward,
            lambda model=model: model.policy_gain(nothing),
            lambda model=model: model.solve(0.9),
            lambda model=model: model.policy_value(nothing, 0.9),
            lambda model=model: model.solve_finite_horizon(3),
        ]
        if message is None:
            gains = [make(tables=each).solve_average_reward().gain for each in (False, True)]
            assert gains[0] == pytest.approx(gains[1], abs=1e-9) and [way() for way in ways]
            continue
        for way in (lambda make=make: make(tables=True), *ways):
            with pytest.raises(ActionMaskError, match=message):
                way()


@pytest.mark.slow
def test_values_at_discount_factor_1_need_arrays():
    with pytest.raises(ConvergenceError, match="tables=True"):
        lazy("stock").solve(1.0)
    with pytest.raises(ConvergenceError, match="tables=True"):
        lazy("stock").policy_value(np.zeros(6, int), 1.0)
    with pytest.raises(SettingsError, match="discount_factor is 2"):
        lazy("stock").solve(2)
    with pytest.raises(SettingsError, match="takes action 7 in state 0"):
        lazy("stock").policy_value(np.full(6, 7), 0.9)
    with pytest.raises(SettingsError, match="takes action 4 in state 1, which is illegal"):
        lazy("stock", legal=may_order).policy_value(np.array([4, 4, 0, 0, 0, 0]), 0.9)


@pytest.mark.slow
@pytest.mark.parametrize("legal", [None, may_order])
def test_it_is_learned_with_tables_and_without(legal):
    settings = dict(discount_factor=0.8, seed=3)
    model = lazy("stock", legal=legal, start=None)
    optimal = model.solve(0.8)
    for env in (model, model.simulator(tables=True)):
        agent = DistAsyncQLearning(**settings)
        agent.train(env, total_steps=400_000)
        best = agent.policy.greedy[:5]
        value = model.policy_value(np.append(best, 0), 0.8)
        assert np.abs(value - optimal.v).max() < 0.05 * np.abs(optimal.v).max()
        if legal is not None:
            assert not agent.visits[~MASK].any()
    learned = []
    for env in (of("stock", legal=legal, start=None), model.simulator(tables=True)):
        agent = DistAsyncQLearning(**settings)
        agent.train(env, total_steps=10_000)
        learned.append(agent.q_table)
    np.testing.assert_array_equal(*learned)


@numba.njit
def around(data, state, action, outcome):
    return 0.5 * (outcome < 2), (state + 1 + outcome * action) % 9, 1.0, False


@pytest.mark.slow
def test_rules_that_look_at_a_model_do_so_where_nothing_is_stored():
    ring = TabularMDP.from_function(
        around, n_states=9, n_actions=2, n_outcomes=3, max_episode_steps=20, name="ring", tables=False
    )

    def train(model, **settings):
        DistAsyncQLearning(seed=1, **settings).train(model, total_steps=200)

    train(ring, algorithm="differential_q_learning")
    with pytest.raises(EnvError, match=r"stock has outcomes that terminate.*tables=True\)"):
        train(lazy("stock"), algorithm="differential_q_learning")
    for rule in (DynaQ, PrioritizedSweeping):
        train(ring, algorithm=rule(successors=2))
        with pytest.raises(SettingsError, match="successors=1 are fewer .* than a pair of ring has, 2"):
            train(ring, algorithm=rule(successors=1))
    with pytest.raises(SettingsError, match="of which nothing is stored, .*tables=True"):
        train(ring, exploring_starts=True)


@pytest.mark.slow
def test_starts_are_drawn_as_they_are_given():
    @numba.njit
    def odd(data, random):
        return 2 * np.int64(random % np.uint64(2)) + 1

    rng = np.random.default_rng(9)
    randoms = rng.integers(2**64, size=20_000, dtype=np.uint64)
    nothing = np.zeros(randoms.size, int)
    expected = {
        4: [0, 0, 0, 0, 1, 0], None: [1 / 6] * 6, odd: [0, 0.5, 0, 0.5, 0, 0],
        (0.5, 0.0, 0.25, 0.25, 0.0, 0.0): [0.5, 0, 0.25, 0.25, 0, 0],
    }  # fmt: skip
    for start, chances in expected.items():
        model = lazy("stock", start=start)
        for tables in (False,) if start is odd else (False, True):
            simulator = model.simulator(tables)
            states = played(simulator, randoms, nothing, nothing)[0]
            counts, chance = np.bincount(states, minlength=6), np.array(chances)
            assert not counts[chance == 0].any()
            assert chi_square(counts[chance > 0], chance[chance > 0]) < 5.0


@pytest.mark.slow
def test_a_start_that_only_a_function_knows_is_not_stored():
    @numba.njit
    def anywhere(data, random):
        return np.int64(random % np.uint64(6))

    model = of("stock", start=anywhere)
    assert type(model) is FunctionMDP and model.simulator().model is None
    stored = lambda: of("stock", start=anywhere, tables=True)  # noqa: E731
    for asked in (stored, model.part, lambda: model.start_value(np.zeros(6))):
        with pytest.raises(ModelError, match="Give start as an array of probabilities"):
            asked()
    agent = DistAsyncQLearning(seed=1)
    assert agent.train(model, total_steps=1_000).steps == 1_000


def test_many_even_starts_take_no_memory_and_the_draws_stay(monkeypatch):
    prob = np.zeros(500)
    prob[100:400] = 1 / 300
    with_slots = packing.start_slots(prob)
    monkeypatch.setattr(packing, "_RANGE_FROM", 300)
    first, number = packing.start_slots(prob)[1].tolist()
    assert packing.start_slots(prob)[0].size == 0 and (first, number) == (100, 300)
    assert (with_slots[0] == 2**32 - 1).all() and with_slots[1][::2].tolist() == list(range(100, 400))
    prob[100], prob[101] = 0.5 / 300, 1.5 / 300
    assert packing.start_slots(prob)[0].size == 300


def broken(kind):
    """Return a sound model's function that is wrong for action 1 in state 3, outcome 1."""

    @numba.njit
    def transition(data, state, action, outcome):
        wrong = state == 3 and action == 1 and outcome == 1
        chance, follow, reward = 0.5, state, 1.0
        if wrong and kind == 0:
            chance = -0.5
        if wrong and kind == 1:
            chance = np.nan
        if wrong and kind == 2:
            follow = 9
        if wrong and kind == 3:
            follow = -1
        if wrong and kind == 4:
            reward = np.inf
        if wrong and kind == 5:
            chance = 0.25
        if wrong and kind == 6:
            reward = data.rewards[data.rewards.size + follow]
        return chance, follow, reward, False

    return transition


class Rewards(NamedTuple):
    rewards: np.ndarray


@pytest.mark.slow
@pytest.mark.parametrize("tables", [None, False])
@pytest.mark.parametrize(
    ("kind", "error", "told"),
    [
        (0, ModelError, "outcome 1 of action 1 in state 3 has the probability -0.5"),
        (1, ModelError, "outcome 1 of action 1 in state 3 has the probability nan"),
        (2, ModelError, "outcome 1 of action 1 in state 3 leads to state 9; states are 0 to 8"),
        (3, ModelError, "outcome 1 of action 1 in state 3 leads to state -1; states are 0 to 8"),
        (4, RewardError, "outcome 1 of action 1 in state 3 has the reward inf"),
        (5, ModelError, "action 1 in state 3 have probabilities that add up to 0.75"),
        (6, OutsideSpaceError, "does not have, for outcome 1 of action 1 in state 3"),
    ],
)
def test_an_outcome_that_is_wrong_is_told_with_its_state_and_action(kind, error, told, tables):
    sizes = dict(n_states=9, n_actions=2, n_outcomes=2, data=Rewards(np.zeros(2)))
    with pytest.raises(error, match=told):
        TabularMDP.from_function(broken(kind), **sizes, tables=tables)


@numba.njit
def out_of_the_mask(data, state, action):
    return data.demand[state + action] >= 0.0


@pytest.mark.slow
def test_an_index_of_legal_that_there_is_not_is_told_with_its_state_and_action():
    with pytest.raises(OutsideSpaceError, match="of action 4 in state 1"):
        of("stock", legal=out_of_the_mask)


@pytest.mark.slow
def test_of_large_models_some_outcomes_are_tried_and_all_before_they_are_relied_on(monkeypatch):
    monkeypatch.setattr(function_model, "_TRIED", 8)  # states 0 and 8
    sizes = dict(n_states=9, n_actions=2, n_outcomes=2, data=Rewards(np.zeros(2)), tables=False)
    wrong = broken(2)
    for relied in (
        lambda model: model.check(), lambda model: model.check(range(3, 4)), lambda model: model.solve(0.9),
        lambda model: model.policy_value(np.zeros(9, int), 0.9), lambda model: model.part(),
        lambda model: model.part(np.array([8, 3])), lambda model: model.outcome_fields(),
    ):  # fmt: skip
        with pytest.raises(ModelError, match="action 1 in state 3 leads to state 9"):
            relied(TabularMDP.from_function(wrong, **sizes))
    model = TabularMDP.from_function(wrong, **sizes, max_episode_steps=3)
    model.check(range(4, 9))
    model.part(np.array([8, 2]))
    with pytest.raises(OutsideSpaceError, match="step in state 3 with action 1 gave the state 9"):
        DistAsyncQLearning(seed=1).train(model, total_steps=100_000)


@pytest.mark.slow
def test_indices_are_looked_at_in_the_first_steps():
    """By what is simulated, not only by what is looked at before."""
    model = lazy("stock")
    object.__setattr__(model, "_data", STOCK._replace(demand=np.array([0.0, 0.0])))
    with pytest.raises(OutsideSpaceError, match="read or wrote an array at an index that it does not have"):
        DistAsyncQLearning(seed=1).train(model, total_steps=100)


@pytest.mark.slow
def test_a_state_that_its_mask_leaves_without_actions_is_refused_where_it_is_stored():
    mask = MASK.copy()
    mask[2] = False
    with pytest.raises(ActionMaskError, match="forbids every action of state 2, where episodes can start"):
        of("stock", legal=mask)
    with pytest.raises(ActionMaskError, match="came to state 2, where its mask forbids every action"):
        DistAsyncQLearning(seed=1).train(lazy("stock", legal=mask), total_steps=100)


@numba.njit
def three_values(data, state, action, outcome):
    return 1.0, 0, 0.0


@numba.njit
def float_states(data, state, action, outcome):
    return 1.0, 0.5, 0.0, False


@numba.njit
def unknown_data(data, state, action, outcome):
    return data.nowhere, 0, 0.0, False


@numba.njit
def too_many(data, state, action, outcome, other):
    return 1.0, 0, 0.0, False


class Unreadable(NamedTuple):
    stock: object


@numba.njit
def no_state(data, random):
    return 0.5


@numba.njit
def far_state(data, random):
    return 6


@numba.njit
def no_truth(data, state, action):
    return 0.5


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"transition": sell.py_func}, "transition must be compiled with numba.njit"),
        ({"transition": three_values}, "transition returns .* It must return four values"),
        ({"transition": float_states}, "transition returns .* the next state .a whole number"),
        ({"transition": unknown_data}, "transition cannot be compiled .* Numba says why"),
        ({"transition": too_many}, "transition cannot be compiled .* function takes 5 arguments"),
        ({"data": Unreadable({})}, "data.stock is dict, which compiled code cannot read"),
        ({"data": {"capacity": 4}}, "data must be a NamedTuple .* got dict"),
        ({"n_states": 0}, "n_states is 0"),
        ({"n_states": 2**30}, "at most 1073741823 states"),
        ({"n_outcomes": 2.5}, "n_outcomes is 2.5"),
        ({"n_outcomes": 10**12}, "n_outcomes 1,000,000,000,000; a state can have at most 67,108,864"),
        ({"n_actions": 2**62}, "a state can have at most 67,108,864 outcomes"),
        ({"n_actions": "5"}, "n_actions is '5'"),
        ({"start": 6}, "start is state 6; states are 0 to 5"),
        ({"start": [0.5] * 6}, "start_prob adds up to 3"),
        ({"start": [1.0]}, "start_prob has shape"),
        ({"start": may_order.py_func}, "start must be compiled"),
        ({"start": no_state}, "start returns float64. It must return a state"),
        ({"start": far_state}, "start gave state 6; states are 0 to 5"),
        ({"legal": no_truth}, "legal returns float64"),
        ({"legal": lambda data, state, action: True}, "legal must be compiled"),
    ],
)  # fmt: skip
def test_arguments_that_describe_no_model_are_refused(more, told):
    with pytest.raises(ModelError, match=told):
        of("stock", **more)


def test_a_time_limit_that_is_none_is_refused_as_an_argument():
    with pytest.raises(SettingsError, match="max_episode_steps must be .* got 0"):
        of("stock", max_episode_steps=0)


@pytest.mark.slow
def test_other_arguments_are_refused():
    with pytest.raises(ActionMaskError, match=r"shape \(6, 5\)"):
        of("stock", legal=[[True]])
    with pytest.raises(SettingsError, match="tables must be"):
        of("stock", tables="no")
    for states in (range(0, 7), range(-1, 2), np.array([0, 6]), np.array([0.5]), "all", [[1, 2], [3]]):
        with pytest.raises(ModelError, match="states are 0 to 5|give a range, or whole numbers"):
            lazy("stock").part(states)
        with pytest.raises(ModelError, match="states are 0 to 5|give a range, or whole numbers"):
            compile_model(of("stock"), states)
    with pytest.raises(SettingsError, match="use_action_mask=False is not allowed with stock"):
        resolve(lazy("stock", legal=may_order), 1, False)
    assert isinstance(resolve(lazy("stock"), 1, False).simulator, CompiledSimulator)


SCALE = 2.0


def scaled(factor):
    scope = {"numba": numba, "SCALE": factor}
    exec("@numba.njit\ndef f(data, state, action, outcome):\n    return 1.0, 0, SCALE, True", scope)
    return scope["f"]


@numba.njit
def by_scale(data, state, action, outcome):
    return 1.0, 0, helper(1.0), True


@numba.njit
def helper(x):
    return SCALE * x


@pytest.mark.slow
def test_a_fingerprint_tells_functions_apart_by_what_they_do(monkeypatch):
    monkeypatch.setattr(FunctionMDP, "check", lambda model, states=None: None)  # compiles each anew

    def fingerprint(transition=by_scale, **more):
        sizes = dict(n_states=3, n_actions=2, n_outcomes=1, data=STOCK, tables=False)
        return TabularMDP.from_function(transition, **{**sizes, **more}).fingerprint()

    @numba.njit
    def other(data, state, action, outcome):
        return 1.0, 0, SCALE + 1.0, True

    first = fingerprint()
    assert first == fingerprint() == fingerprint(name="other") == fingerprint(numba.njit(by_scale.py_func))
    different = [
        first, fingerprint(other), fingerprint(n_actions=3), fingerprint(n_outcomes=1, start=0),
        fingerprint(data=STOCK._replace(price=4.0)), fingerprint(max_episode_steps=3),
        fingerprint(data=STOCK._replace(demand=np.ones(5))), fingerprint(legal=np.ones((3, 2), bool)),
        fingerprint(scaled(1.0)), fingerprint(scaled(2.0)),
    ]  # fmt: skip
    assert len(set(different)) == len(different)
    assert fingerprint(scaled(1.0)) == fingerprint(scaled(1.0))
    global SCALE
    try:
        SCALE = 3.0
        assert fingerprint() != first
    finally:
        SCALE = 2.0
    same, again, unlike = lazy("stock"), lazy("stock"), lazy("stock", start=1)
    assert same == again and hash(same) == hash(again) and same != unlike and same != of("stock")


@pytest.mark.slow
def test_two_functions_with_data_of_one_class_are_two_games():
    @numba.njit
    def stays(data, state, action, outcome):
        return data.demand[outcome], state, 1.0, False

    one, other = lazy("stock"), lazy("stock", transition=stays)
    assert type(one.simulator().tables) is type(lazy("stock").simulator().tables)
    assert type(one.simulator().tables) is not type(other.simulator().tables)
    randoms, zeros = np.arange(5, dtype=np.uint64), np.zeros(5, int)
    assert played(other.simulator(), randoms, zeros, zeros)[2].tolist() == [1.0] * 5


def test_ranges_cover_everything_once_in_order():
    assert ranges.in_ranges(lambda low, high: (low, high), 6) == [(0, 6)]
    found = ranges.in_ranges(lambda low, high: list(range(low, high)), 1000)
    assert len(found) == 24 and sum(found, []) == list(range(1000))
    with pytest.raises(ZeroDivisionError, match="at 0"):
        ranges.in_ranges(lambda low, high: (_ for _ in ()).throw(ZeroDivisionError(f"at {low}")), 1000)


def test_ranks_of_a_host_share_its_cores(monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "3")
    assert ranges.in_ranges(lambda low, high: (low, high), 1000) == [(0, 1000)]


@pytest.mark.slow
def test_a_few_states_are_packed_in_plain_python(monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(packing, "_FEW_SLOTS", 0)
        whole = compile_model(of("stock"))
    monkeypatch.setattr(packing, "_pack", packing.python_of(packing._pack))  # as if it were not loaded
    for kernel in ("alias", "store"):
        monkeypatch.setattr(packing, kernel, types.SimpleNamespace(py_func=getattr(packing, kernel).py_func))
    part = compile_model(of("stock"), range(2, 4))
    own = [field.reshape(6, -1)[2:4].ravel() for field in (whole.thresholds, whole.rewards)]
    assert_same(part, whole._replace(thresholds=own[0], outcomes=own[0].view(np.int32), rewards=own[1]))


@pytest.mark.slow
def test_one_function_with_data_of_two_classes_reads_each_by_name():
    class Swapped(NamedTuple):
        other: float
        value: float

    class Straight(NamedTuple):
        value: float
        other: float

    @numba.njit
    def pays(data, state, action, outcome):
        return 1.0, 0, data.value, True

    sizes = dict(n_states=1, n_actions=1, n_outcomes=1)
    for data in (Straight(1.0, 2.0), Swapped(2.0, 1.0)):
        assert TabularMDP.from_function(pays, **sizes, data=data).outcome_reward.tolist() == [1.0]
