"""The rounds of a card, played on a core: against a twin in plain Python, and against value iteration."""

import dataclasses
from typing import NamedTuple

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="the extra gpu is not installed")

from card_plain import Twin, rounds_of
from card_twin import (
    MODEL,
    NO_CARD,
    SETTINGS,
    SMALL,
    OnCore,
    OneOnCore,
    RowsOnCore,
    core_learner,
    learned,
    made,
)

from dist_classicrl import DistAsyncQLearning, TabularMDP
from dist_classicrl.callbacks import BaseCallback
from dist_classicrl.engines import loops
from dist_classicrl.environments.resolve import resolve
from dist_classicrl.errors import CheckpointError, DivergenceError
from dist_classicrl.learning.card import choosing, plan
from dist_classicrl.learning.card.plan import ON_CARD, Round, Shape, halves, next_round, of_blocks
from dist_classicrl.learning.card.steps import Arrays, Moment, give_map, merge_blocks, merge_step, take_copy
from dist_classicrl.learning.kinds import LearnerKind, register, unregister
from dist_classicrl.learning.learner import Stream
from dist_classicrl.learning.rules.kernel import best_value, rule_function, step_size, update
from dist_classicrl.rules import LearningRule, Shared
from dist_classicrl.rules import register as register_rule
from dist_classicrl.rules.registry import unregister as unregister_rule
from dist_classicrl.schedules import PerVisit
from dist_classicrl.settings import Settings
from dist_classicrl.tables.rows import visits_of

pytestmark = pytest.mark.slow  # each kernel here takes long to compile


class SimpleParts(NamedTuple):
    """What of the parts of a round an entry needs to move."""

    block_sizes: object


WIDE = Shape(16, 64, 32)


def test_a_table_is_that_of_a_twin_in_plain_python_to_the_bit():
    learner = made(OnCore, MODEL, SETTINGS)
    twin = Twin(MODEL, learner._simulator.tables, SETTINGS, SMALL)
    twin.learn(7, 1500)
    found = learned(learner, 1500)
    assert np.array_equal(found["q"].reshape(6, 2), twin.q)
    assert np.array_equal(found["updates"].reshape(6, 2), twin.known)
    assert found["updates"].sum() == 1500


def test_rounds_make_each_step_once_and_grow_with_the_steps_made():
    for start, steps in ((0, 100_003), (10**9, 5_000_000), (12_345, 77)):
        made_so_far = 0
        for used, (moving, length) in rounds_of(start, steps, ON_CARD):
            assert used == made_so_far
            done = start + used
            assert moving <= max(64, done // 2000) and moving & (moving - 1) == 0
            assert length == 1 or moving * length <= max(moving, done // 20)
            assert moving <= ON_CARD.walkers and length <= ON_CARD.interval
            made_so_far += moving * length
        assert made_so_far == steps
    assert next_round(10**10, 0, 10**10, ON_CARD) == (ON_CARD.walkers, ON_CARD.interval)


def test_what_is_learned_does_not_depend_on_where_calls_are_cut():
    whole, cut = made(OnCore, MODEL, SETTINGS), made(OnCore, MODEL, SETTINGS)
    quantum = whole.quantum
    one = learned(whole, 40 * quantum + 5)
    stream = Stream(np.uint64(7), 0)
    for steps in (quantum, 30 * quantum, 9 * quantum + 5):
        cut.learn(0, stream, steps)
    for name, array in one.items():
        assert np.array_equal(array, getattr(cut.table, name)), name
    assert np.allclose(whole.totals.values, cut.totals.values)


def test_the_table_comes_to_the_optimal_values_and_the_map_says_how():
    learner = made(OnCore, MODEL, SETTINGS, WIDE)
    before = np.full(12, 3.0)
    learner.table.load(before, np.zeros(12, np.int64))
    found = learned(learner, 4_000_000)
    error = np.abs(found["q"].reshape(6, 2) - MODEL.solve(0.9).q).max()
    assert error < 0.06  # of values around 11
    assert np.allclose(found["weight"] * before + found["shift"], found["q"], rtol=1e-12)
    assert sorted(learner.table.touched[: learner.table.n_touched[0]]) == list(range(12))
    assert np.array_equal(learner.table.best, found["q"].reshape(6, 2).max(axis=1))


def test_float32_copies_come_to_the_same_values():
    learner = made(OnCore, MODEL, SETTINGS, WIDE, dtype=np.float32)
    found = learned(learner, 4_000_000)
    assert np.abs(found["q"].reshape(6, 2) - MODEL.solve(0.9).q).max() < 0.06


@pytest.mark.parametrize("algorithm", ["double_q_learning", "expected_sarsa", "sarsa", "n_step_sarsa"])
def test_other_rules_come_to_their_truths(algorithm):
    from dist_classicrl.learning.rules import find

    settings = Settings(
        algorithm=algorithm, discount_factor=0.9, epsilon=0.5, learning_rate=PerVisit(0.7), device="cuda"
    )
    learner = made(OnCore, MODEL, settings, WIDE)
    learned(learner, 4_000_000)
    rule, parameters = find(algorithm)
    truth = rule.truth(MODEL, parameters, settings)
    q = learner.table.shape.q_table(learner.table.q.reshape(-1, 2))
    # Returns of n steps are noisier than those of one.
    assert np.abs(q - truth).max() < (0.15 if algorithm == "n_step_sarsa" else 0.05)


def test_targets_beyond_the_bound_are_added_up_in_larger_units():
    large = TabularMDP.garnet(6, 2, 2, seed=1)
    by = 2.0**30
    scaled = dataclasses.replace(large, outcome_reward=large.outcome_reward * by)
    one, other = made(OnCore, MODEL, SETTINGS), made(OnCore, scaled, SETTINGS)
    small, found = learned(one, 1000), learned(other, 1000)
    assert np.allclose(found["q"] / by, small["q"], rtol=1e-6)
    assert other.state(0)["bound"][0] > 2.0**30
    beyond = dataclasses.replace(large, outcome_reward=large.outcome_reward * 2.0**60)
    with pytest.raises(DivergenceError, match=r'A target is beyond 1\.1259e\+15.*device="cpu"'):
        learned(made(OnCore, beyond, SETTINGS), 10)


def test_larger_units_begin_where_they_must_wherever_calls_are_cut():
    """In the round in which a target is beyond the bound, not in the call."""
    growing = dataclasses.replace(MODEL, outcome_reward=MODEL.outcome_reward * 100_000.0)
    whole, cut = made(OnCore, growing, SETTINGS), made(OnCore, growing, SETTINGS)
    quantum, steps = whole.quantum, 20 * whole.quantum + 5
    one = learned(whole, steps)
    stream, bounds = Stream(np.uint64(7), 0), []
    for used in range(0, steps, quantum):
        cut.learn(0, stream, min(quantum, steps - used))
        bounds.append(cut.state(0)["bound"][0])
    assert bounds[2] == 2.0**20 and bounds[-1] == whole.state(0)["bound"][0] == 2.0**30
    by_rounds, stream, least = made(OnCore, growing, SETTINGS), Stream(np.uint64(7), 0), set()
    while stream.used < steps:
        least.add(stream.used % quantum)
        by_rounds.learn(0, stream, by_rounds.first_end(stream, steps - stream.used, 1))
    assert len(least) > 3  # within quanta, as where something is due
    for other in (cut, by_rounds):
        for name, array in one.items():
            assert np.array_equal(array, getattr(other.table, name)), name
        assert np.array_equal(whole.state(0)["position"], other.state(0)["position"])
        assert np.array_equal(whole.totals.values[[0, 2]], other.totals.values[[0, 2]])


def test_rounds_are_halved_until_they_are_by_themselves():
    def parts_of(used, rounds):
        parts = halves(used, rounds)
        return parts if len(parts) == 1 else [each for part in parts for each in parts_of(*part)]

    rounds = [Round(8, 1), Round(4, 2), Round(2, 1)] * 7
    parts = parts_of(100, rounds)
    assert [part for _, part in parts] == [[one] for one in rounds]
    ends = [begin + one.moving * one.steps for begin, (one,) in parts]
    assert [begin for begin, _ in parts] == [100, *ends[:-1]] and ends[-1] == 100 + 7 * 18


def test_a_state_that_is_put_back_goes_on_to_the_same_bits():
    one, other = made(OnCore, MODEL, SETTINGS), made(OnCore, MODEL, SETTINGS)
    one.learn(0, Stream(np.uint64(7), 0), 640)
    table = one.table
    other.table.load(table.q, table.visits + table.updates)
    other.restore(0, one.state(0))
    for learner in (one, other):
        learner.learn(0, Stream(np.uint64(7), 0, 640), 640)
    assert np.array_equal(one.table.q, other.table.q)
    broken = one.state(0)
    broken["position"][3, 0] = 6
    with pytest.raises(CheckpointError, match="position, the state"):
        other.restore(0, broken)
    with pytest.raises(CheckpointError, match="bound is missing"):
        other.restore(0, {name: array for name, array in one.state(0).items() if name != "bound"})
    for bound in (np.nan, np.inf, -1.0, 0.0, 1e300):
        with pytest.raises(CheckpointError, match=r"bound goes from .*, allowed is from 1\.0 to 1"):
            other.restore(0, {**one.state(0), "bound": np.array([bound])})
    assert other.state(0)["bound"] == one.state(0)["bound"]


def merged(blocks, coming, step_size, visits, k, before, target, real):
    """Return an entry to which some of all blocks came, so often each, with `k` walkers at a time."""
    nothing = np.zeros(1, np.int64)
    one = np.zeros(1), nothing.copy(), np.ones(1), np.zeros(1)
    maps = np.zeros(blocks), np.zeros(blocks), np.zeros(blocks, np.int32)
    arrays = Arrays(*one, *maps, np.zeros(5, np.int64))
    arrays.values[0] = before
    unit = 2.0**-40
    moment = Moment(np.uint64(0), 0, 1, 1, step_size, 0.0, 0.0, 0.0, 1.0, 1.0 / unit, unit)
    values, *own = (np.zeros(1, kind) for kind in (real, real, real, np.int32))
    for block in range(coming):
        take_copy.py_func(arrays, 0, values, *own)
        for _ in range(visits):
            total = k * round(target / unit)
            merge_step.py_func(SimpleParts(None), moment, 0, 0, nothing, values, *own, k, total)
        give_map.py_func(arrays, block, 0, *own)
    merge_blocks(arrays, blocks, True, 0)
    return arrays


@pytest.mark.parametrize("real", [np.float64, np.float32])
@pytest.mark.parametrize("step_size", [0.3, 1e-3, 1e-5, 1e-7, 1e-9])
@pytest.mark.parametrize("k", [1, 8])
def test_small_steps_of_blocks_go_as_far_as_they_should_and_towards_their_targets(step_size, k, real):
    """In 128 steps of each of two blocks, of whose weights the root is due."""
    rtol = 1e-5 if real is np.float32 else max(1e-7, 1e-15 / step_size)
    moved = -np.expm1(max(128 * k * np.log1p(-step_size), np.log(2.0**-100)))
    arrays = merged(2, 2, step_size, 128, k, 0.0, 0.7, real)
    assert np.isclose(arrays.values[0], 0.7 * moved, rtol=rtol, atol=0.0)
    assert np.isclose(1.0 - arrays.weight[0], moved, rtol=rtol, atol=0.0)
    there = merged(2, 2, step_size, 128, k, 0.7, 0.7, real)
    assert np.isclose(there.values[0], 0.7, rtol=rtol * moved, atol=0.0)


@pytest.mark.parametrize("real", [np.float64, np.float32])
@pytest.mark.parametrize(("step_size", "visits"), [(1e-4, 1), (1e-4, 200), (0.05, 1), (0.05, 20), (1.0, 3)])
@pytest.mark.parametrize("coming", [1, 5, 64])
def test_blocks_that_come_to_an_entry_move_it_as_one_learner_would(step_size, visits, coming, real):
    """Some of 64 blocks, so often each, towards the same target of 1; they have a limit for each visit."""
    blocks = 64
    (own,) = of_blocks(np.array([step_size]), blocks)
    arrays = merged(blocks, coming, own, visits, 1, 0.0, 1.0, real)
    kept = max(1.0 - step_size, 2.0 ** (-40 / blocks)) ** visits
    expected = 1.0 - max(kept, 2.0 ** (-100 / blocks)) ** coming
    assert np.isclose(arrays.values[0], expected, rtol=0.01) and arrays.known[0] == visits * coming
    assert np.isclose(arrays.weight[0], 1.0 - expected, rtol=0.01, atol=1e-6)


@pytest.mark.parametrize("kind", [OnCore, OneOnCore, RowsOnCore])
def test_the_number_of_workers_may_change_between_two_calls(kind):
    """As where one is lost: the clock of step sizes runs at one over it from then on."""
    is_alone = kind is RowsOnCore
    one = made(kind, MODEL, SETTINGS, workers=4, is_alone=is_alone)
    other = made(kind, MODEL, SETTINGS, is_alone=is_alone)
    other.learn(0, Stream(np.uint64(7), 0), 0)
    other._problem.rates.set_workers(4)
    found, later = learned(one, 640), learned(other, 640)
    assert np.array_equal(found["q"], later["q"])
    apart = learned(made(kind, MODEL, SETTINGS, is_alone=is_alone), 640)
    assert not np.array_equal(found["q"], apart["q"])


@pytest.mark.parametrize("kind", [OnCore, OneOnCore])
def test_walkers_that_are_added_once_more_begin_anew(kind):
    one, other = made(kind, MODEL, SETTINGS), made(kind, MODEL, SETTINGS)
    learned(one, 640, key=3)
    one.table.load(np.zeros(12), np.zeros(12, np.int64))
    one.add(0, resolve(MODEL, 1, None), 0)
    assert np.array_equal(learned(one, 640)["q"], learned(other, 640)["q"])
    assert np.array_equal(one.state(0)["position"], other.state(0)["position"])


def test_the_error_of_many_blocks_is_that_of_one_learner():
    """After as many steps: the root mean square error to the optimal values of the lake, of two seeds."""
    lake = TabularMDP.from_gymnasium("FrozenLake-v1", map_name="8x8")
    settings = Settings(discount_factor=0.99, epsilon=0.5, learning_rate=PerVisit(0.7))
    truth = lake.solve(0.99).q.ravel()

    def error(make):
        found = [learned(make(), 1 << 25, key=seed)["q"] for seed in (1, 2)]
        return np.sqrt(np.mean((np.array(found) - truth) ** 2))

    many = error(lambda: made(OnCore, lake, settings, Shape(16, 64, 32)))
    one = error(lambda: core_learner(lake, settings))
    assert 0.005 < one < 0.03 and many < 1.25 * one


@pytest.fixture
def agents_on_core(monkeypatch):
    """Let agents with device="cuda" learn as a card would, on a core, in rounds of up to 32,768 steps."""
    kind = register(LearnerKind("card on a core", lambda problem: problem.card is not None, OnCore))
    monkeypatch.setattr(choosing, "cards", lambda: [NO_CARD])
    monkeypatch.setattr(plan, "IN_SIMULATOR", WIDE)
    monkeypatch.setattr(loops, "_SLICE_SECONDS", 0.0)  # a quantum at a time where nothing is due
    yield
    unregister(kind)


LAKE = TabularMDP.from_gymnasium("FrozenLake-v1")


class Notes(BaseCallback):
    """Notes at which steps it is told of the run, and asks for each thousandth."""

    def __init__(self):
        super().__init__()
        self.at = []

    def next_step(self, steps):
        return steps - steps % 1000 + 1000

    def _on_step(self):
        self.at.append(self.num_timesteps)
        return True


def test_what_is_due_at_a_step_is_there_at_the_end_of_a_round_and_changes_no_bit(agents_on_core):
    given = {"device": "cuda", "seed": 1, "learning_rate": PerVisit(0.7), "epsilon": 0.5}
    agent, other = (DistAsyncQLearning(**given) for _ in range(2))
    notes = Notes()
    agent.train(env=LAKE, total_steps=200_000, callbacks=[notes], progress_bar=False)
    other.train(env=LAKE, total_steps=200_000, progress_bar=False)
    assert np.array_equal(agent.q_table, other.q_table) and np.array_equal(agent.visits, other.visits)
    ends = {0, 200_000} | {used + one.moving * one.steps for used, one in rounds_of(0, 200_000, WIDE)}
    assert ends.issuperset(notes.at) and len(notes.at) > 40
    for thousand in range(1000, 200_000, 1000):
        assert any(thousand <= at <= 1.06 * thousand + 64 for at in notes.at), thousand


def test_episodes_asked_for_end_a_run_a_round_later_at_most(agents_on_core):
    agent = DistAsyncQLearning(device="cuda", seed=1)
    result = agent.train(env=LAKE, total_episodes=500, progress_bar=False)
    assert 500 <= result.episodes <= 550


def test_a_batch_size_that_means_nothing_on_a_card_does_not_make_a_run_deaf(agents_on_core, monkeypatch):
    calls = []
    usual = OnCore.learn

    def learn(self, number, stream, steps):
        calls.append(steps)
        usual(self, number, stream, steps)

    monkeypatch.setattr(OnCore, "learn", learn)
    agent = DistAsyncQLearning(device="cuda", seed=1, batch_size=999_999)
    agent.train(env=LAKE, total_steps=4 * 32_768, progress_bar=False)
    assert calls == 4 * [32_768]


class Counting(NamedTuple):
    """Q-learning whose walkers count their steps."""


@rule_function
def learn_and_count(rule, context, now, step, learned):
    context.owned[now.walker, 0] += 1.0
    target = step.reward
    if not step.terminated:
        target += context.discount * best_value(context, step)
    return update(context, now, step.state, step.action, target, learned)


@pytest.mark.parametrize("kind", [OnCore, RowsOnCore])
def test_numbers_that_each_walker_has_of_its_own_are_kept_on_a_card(kind):
    own = (Shared("steps", "owner"), Shared("unused", "owner", 2))
    rule = LearningRule("counting", Counting, learn_and_count, can_travel=True, shared=own)
    register_rule(rule)
    try:
        settings = dataclasses.replace(SETTINGS, algorithm="counting")
        assert choosing.why_not(resolve(MODEL, 1, None), settings, "local") is None
        one, two, usual = (made(kind, MODEL, each) for each in (settings, settings, SETTINGS))
        found = learned(one, 640)
        assert np.array_equal(found["q"], learned(usual, 640)["q"])
        state = one.state(0)
        steps, unused = state["rule_owned"][:, 0], state["rule_owned"][:, 1:]
        assert steps.sum() == 640 and (steps > 0).sum() > 1 and unused.shape == (8, 2) and not unused.any()
        two.restore(0, state)
        learned(two, 64, start=640)
        assert two.state(0)["rule_owned"][:, 0].sum() == 704
    finally:
        unregister_rule(rule)


class Sizing(NamedTuple):
    """Q-learning whose walkers note the step sizes that they are told, and those of one learner."""


@rule_function
def learn_and_size(rule, context, now, step, learned):
    own = context.owned[now.walker]
    own[0] += step_size(context, now, step.state, step.action)
    own[1] += (visits_of(context.table, step.state, step.action) + 1.0) ** -0.7
    target = step.reward
    if not step.terminated:
        target += context.discount * best_value(context, step)
    return update(context, now, step.state, step.action, target, learned)


@pytest.mark.parametrize(
    ("kind", "shape", "given"),
    [
        (OnCore, Shape(1, 4, 8), {}),
        (OnCore, Shape(64, 1, 8), {}),
        (OneOnCore, Shape(1, 4, 1), {}),
        (RowsOnCore, Shape(1, 4, 8), {"is_alone": True}),
    ],
)
def test_a_rule_is_told_the_step_size_of_one_learner_however_many_blocks_there_are(kind, shape, given):
    rule = LearningRule(
        "sizing", Sizing, learn_and_size, can_travel=True, shared=(Shared("sizes", "owner", 2),)
    )
    register_rule(rule)
    try:
        learner = made(kind, MODEL, dataclasses.replace(SETTINGS, algorithm="sizing"), shape, **given)
        learned(learner, 2000, start=1_000_000)
        told, due = learner.state(0)["rule_owned"].sum(axis=0)
        assert 50.0 < due < 1500.0
        assert abs(told / due - 1.0) < 0.02
    finally:
        unregister_rule(rule)
