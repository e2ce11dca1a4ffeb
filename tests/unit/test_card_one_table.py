"""One table for all walkers of a card, of which maps are taken, on a core: against plain Python."""

import dataclasses

import numba
import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="the extra gpu is not installed")

from card_plain import OneTableTwin
from card_twin import (
    MASKED,
    MODEL,
    NO_CARD,
    SETTINGS,
    SMALL,
    SMALL_WALK,
    CoreMemory,
    Data,
    OnCore,
    OneOnCore,
    RowsOnCore,
    arrays_of,
    begin_at_0,
    learned,
    made,
    step_on,
)

from dist_classicrl import CompiledSimulator
from dist_classicrl.environments.resolve import resolve
from dist_classicrl.errors import DeviceMemoryError, DivergenceError, OutsideSpaceError
from dist_classicrl.learning.card import learner as learners
from dist_classicrl.learning.card import plan
from dist_classicrl.learning.card.plan import Shape, next_round
from dist_classicrl.learning.learner import Stream
from dist_classicrl.rules import NStepSarsa
from dist_classicrl.settings import Settings

pytestmark = pytest.mark.slow  # each kernel here takes long to compile

WIDE = Shape(4, 32, 1)


def scaled(by):
    return dataclasses.replace(MODEL, outcome_reward=MODEL.outcome_reward * by)


@pytest.mark.parametrize("given", [{}, {"dtype": np.float32}])
def test_a_table_is_that_of_a_twin_in_plain_python_to_the_bit(given):
    """Maps have float64 values, whatever the agent's type is."""
    learner = made(OneOnCore, MODEL, SETTINGS, **given)
    twin = OneTableTwin(MODEL, learner._simulator.tables, SETTINGS, SMALL_WALK)
    twin.learn(7, 1500)
    found = learned(learner, 1500)
    assert np.array_equal(found["q"].reshape(6, 2), twin.q)
    assert np.array_equal(found["updates"].reshape(6, 2), twin.known)
    assert found["updates"].sum() == 1500 and np.count_nonzero(twin.known) == 12


def test_more_walkers_move_the_more_steps_were_made():
    start = 255_000
    moving = {next_round(start, used, 2000, WIDE).moving for used in range(0, 2048, 128)}
    assert moving == {64, 128}
    learner = made(OneOnCore, MODEL, SETTINGS, WIDE)
    twin = OneTableTwin(MODEL, learner._simulator.tables, SETTINGS, WIDE)
    twin.learn(7, 2000, start)
    assert np.array_equal(learned(learner, 2000, start=start)["q"].reshape(6, 2), twin.q)


def test_what_is_learned_does_not_depend_on_where_calls_are_cut():
    one = learned(made(OneOnCore, MODEL, SETTINGS), 405)
    cut = made(OneOnCore, MODEL, SETTINGS)
    assert cut.quantum == 8
    stream = Stream(np.uint64(7), 0)
    for steps in (8, 240, 157):
        cut.learn(0, stream, steps)
    for name, array in arrays_of(cut).items():
        assert np.array_equal(array, one[name]), name


def test_its_error_is_that_of_blocks_with_copies():
    """After as many steps: the largest error of values around 11."""
    truth = MODEL.solve(0.9).q
    copies = learned(made(OnCore, MODEL, SETTINGS, Shape(2, 64, 32)), 2_000_000)
    one = learned(made(OneOnCore, MODEL, SETTINGS, WIDE), 2_000_000)
    errors = [np.abs(found["q"].reshape(6, 2) - truth).max() for found in (copies, one)]
    assert max(errors) < 0.05, errors
    assert errors[1] < 2.0 * errors[0] + 0.01, errors


@pytest.mark.parametrize("algorithm", ["double_q_learning", "expected_sarsa", "sarsa", NStepSarsa(n=4)])
def test_other_rules_come_to_their_truths(algorithm):
    from dist_classicrl.learning.rules import find

    settings = dataclasses.replace(SETTINGS, algorithm=algorithm)
    learner = made(OneOnCore, MODEL, settings, WIDE)
    found = learned(learner, 4_000_000)
    rule, parameters = find(algorithm)
    truth = rule.truth(MODEL, parameters, settings)
    q = learner.table.shape.q_table(found["q"].reshape(-1, 2))
    # Returns of several steps are noisier than those of one.
    assert np.abs(q - truth).max() < (0.05 if isinstance(algorithm, str) else 0.15)


@pytest.mark.parametrize(("by", "bound"), [(2.0**33, 2.0**40), (160.0, 2.0**20)], ids=["at once", "later"])
def test_targets_beyond_the_bound_are_added_up_in_larger_units_and_no_step_is_made_twice(by, bound):
    one, other = (made(OneOnCore, scaled(by), SETTINGS) for _ in range(2))
    other._bounds[0] = bound  # no target is beyond that
    found, in_one_go = learned(one, 1000), learned(other, 1000)
    assert one.state(0)["bound"][0] == bound
    assert np.array_equal(found["updates"], in_one_go["updates"]) and found["updates"].sum() == 1000
    assert np.array_equal(one.state(0)["position"], other.state(0)["position"])
    assert np.array_equal(one.totals.values[[0, 2]], other.totals.values[[0, 2]])
    assert np.allclose(found["q"], in_one_go["q"], rtol=1e-9)
    with pytest.raises(DivergenceError, match=r"A target is beyond 1\.1259e\+15"):
        learned(made(OneOnCore, scaled(2.0**60), SETTINGS), 10)


def test_a_state_that_is_put_back_goes_on_to_the_same_bits():
    settings = dataclasses.replace(SETTINGS, algorithm=NStepSarsa(n=3))
    one, other = (made(OneOnCore, MODEL, settings) for _ in range(2))
    found = learned(one, 640)
    other.table.load(found["q"], found["updates"])
    other.restore(0, one.state(0))
    for learner in (one, other):
        learner.learn(0, Stream(np.uint64(7), 0, 640), 640)
    assert np.array_equal(arrays_of(one)["q"], arrays_of(other)["q"])
    assert np.array_equal(one.state(0)["position"], other.state(0)["position"])


def test_crews_take_turns_on_the_card():
    """Those of logical workers: each goes on from where it was."""

    def learner_of(numbers):
        learner = made(OneOnCore, MODEL, SETTINGS)
        for number in numbers:
            learner.add(number, resolve(MODEL, 1, None), 0)
        return learner

    both, alone = learner_of([0, 1]), learner_of([0])
    stream, again = Stream(np.uint64(7), 0), Stream(np.uint64(7), 0)
    both.learn(0, stream, 80)
    alone.learn(0, again, 80)
    saved = alone.table.q.copy(), alone.table.updates.copy()
    both.learn(1, Stream(np.uint64(8), 0), 80)
    both.table.load(*saved)
    alone.table.load(*saved)
    both.learn(0, stream, 80)
    alone.learn(0, again, 80)
    assert np.array_equal(both.table.q, alone.table.q)
    assert (both.state(1)["position"] != both.state(0)["position"]).any()


@pytest.mark.parametrize("kind", [OnCore, OneOnCore])
def test_what_a_crew_learns_does_not_depend_on_the_targets_of_others_here(kind):
    """Each has its own units: in reproducible rounds another rank may carry it."""

    def learner_of_two():
        learner = made(kind, scaled(first / 10.5), SETTINGS)
        learner.add(1, resolve(MODEL, 1, None), 0)
        return learner

    def learn(learner, number, value, used=0):
        learner.table.load(np.full(12, value), np.zeros(12, np.int64))
        learner.learn(number, Stream(np.uint64(8), 0, used), 64)
        return [learner.state(each)["bound"][0] for each in (0, 1)]

    first = kind._first_bound
    both, apart = learner_of_two(), learner_of_two()
    assert learn(both, 0, 2.0 * first) == [first * 2.0**10, first]
    assert learn(both, 1, 0.0) == [first * 2.0**10, first]
    assert learn(apart, 1, 0.0) == [first, first]
    assert np.array_equal(both.table.q, apart.table.q)
    after = learner_of_two()
    for number in (1, 0):
        after.restore(number, both.state(number))
    assert learn(after, 1, 0.0, 64) == [first * 2.0**10, first]
    assert learn(apart, 1, 0.0, 64) == [first, first]
    assert np.array_equal(after.table.q, apart.table.q)
    after.add(0, resolve(MODEL, 1, None), 0)
    assert learn(after, 1, 0.0, 128) == [first, first]  # it begins anew


@pytest.mark.parametrize("kind", [OnCore, OneOnCore, RowsOnCore])
@pytest.mark.parametrize(
    ("dtype", "settings"), [(np.float64, SETTINGS), (np.float32, Settings(algorithm=NStepSarsa(n=3)))]
)
def test_what_it_takes_of_the_card_is_known_before(kind, dtype, settings, monkeypatch):
    CoreMemory.taken = 0
    shape = Shape(2, 64, 32) if kind is OnCore else WIDE
    learner = made(kind, MASKED, settings, shape, dtype=dtype, is_alone=kind is RowsOnCore)
    learner.learn(0, Stream(np.uint64(7), 10**6), 1280)
    in_use, told = CoreMemory.taken, []
    with monkeypatch.context() as patch:
        patch.setattr(learners, "check_memory", lambda needed, card, what: told.append(needed))
        learner._check_memory(*learner._crews[0])
    assert in_use <= told[0] < in_use + 10_000
    monkeypatch.setattr(plan, "free_memory", lambda card: in_use // 2)
    with pytest.raises(DeviceMemoryError, match="A table of .* entries with 128 walkers needs .* too few"):
        learner._check_memory(*learner._crews[0])


@pytest.mark.parametrize(("waits", "stack"), [(16, 440), (256, 6200)])
def test_the_stacks_of_all_threads_that_a_card_can_have_are_counted(waits, stack, monkeypatch):
    """Of so many bytes each, as ptxas says."""
    card = dataclasses.replace(NO_CARD, threads=132 * 2048)
    settings = Settings(algorithm=NStepSarsa(n=waits))
    monkeypatch.setattr(plan, "free_memory", lambda card: 1 << 28)
    told = []
    with monkeypatch.context() as patch:
        patch.setattr(learners, "check_memory", lambda needed, card, what: told.append(needed))
        for each in (NO_CARD, card):
            made(OnCore, MODEL, settings, SMALL, card=each)
    assert told[1] - told[0] == 132 * 2048 * stack
    if waits == 256:
        with pytest.raises(DeviceMemoryError, match=r"needs 1\.56 GiB .* 1\.31 GiB too few"):
            made(OnCore, MODEL, settings, SMALL, card=card)


@pytest.mark.parametrize("kind", [OneOnCore, RowsOnCore])
def test_what_a_game_does_wrongly_is_said_and_nothing_is_learned_after(kind, monkeypatch):
    monkeypatch.setattr(learners, "try_out", lambda simulator: None)
    game = CompiledSimulator.game("wrong", 4, 2, Data(1), begin_at_0, step_on)
    learner = made(kind, game, SETTINGS, is_alone=kind is RowsOnCore)
    with pytest.raises(OutsideSpaceError, match="step in state 1 with action . gave the state 7"):
        learner.learn(0, Stream(np.uint64(7), 0), 80)
    assert arrays_of(learner)["updates"].reshape(4, 2).sum(axis=1).tolist() == [8, 0, 0, 0]


@numba.njit
def _wander(data, memory, state, action, random):
    is_wrong = state == data.bad and random % np.uint64(64) == np.uint64(0)
    return (7 if is_wrong else (state + 1) % 4), 1.0, False


def test_the_walker_whose_game_went_wrong_in_the_middle_of_a_round_is_the_one_that_is_told(monkeypatch):
    """It begins no new episode in the same round, after which nobody would know which one it was."""
    monkeypatch.setattr(learners, "try_out", lambda simulator: None)
    game = CompiledSimulator.game("seldom", 4, 2, Data(2), begin_at_0, _wander)
    learner = made(OnCore, game, SETTINGS, Shape(2, 4, 64))
    with pytest.raises(OutsideSpaceError, match="step in state 2 with action . gave the state 7"):
        learner.learn(0, Stream(np.uint64(7), 500_000), 2048)
