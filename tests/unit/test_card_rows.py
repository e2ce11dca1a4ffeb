"""Rows in which all walkers of a card write, on a core in turn: against plain Python, and the truth."""

import dataclasses
import threading
import time

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="the extra gpu is not installed")

from card_plain import RowsTwin
from card_twin import (
    MASKED,
    MODEL,
    NO_CARD,
    SETTINGS,
    SMALL,
    CoreMemory,
    Data,
    OnCore,
    RowsOnCore,
    arrays_of,
    begin_at_0,
    learned,
    made,
    step_on,
)

from dist_classicrl import CompiledSimulator, DistAsyncQLearning
from dist_classicrl.agent.agent import state_of
from dist_classicrl.callbacks import BaseCallback
from dist_classicrl.checkpoint.folder import CheckpointFolder
from dist_classicrl.environments.resolve import resolve
from dist_classicrl.errors import ActionMaskError, DivergenceError
from dist_classicrl.learning.card import choosing, launching, plan
from dist_classicrl.learning.card.cards import Card
from dist_classicrl.learning.card.in_copies import InCopies
from dist_classicrl.learning.card.in_one_table import InOneTable
from dist_classicrl.learning.card.in_rows import InRows
from dist_classicrl.learning.card.plan import Shape
from dist_classicrl.learning.kinds import LearnerKind, new_learner, problem_of, register, unregister
from dist_classicrl.learning.learner import Stream
from dist_classicrl.learning.rates import Rates
from dist_classicrl.model import places
from dist_classicrl.rules import NStepSarsa
from dist_classicrl.schedules import PerVisit
from dist_classicrl.settings import Settings
from dist_classicrl.tables import large_table
from dist_classicrl.tables.line_table import LineTable

pytestmark = pytest.mark.slow  # each kernel here takes long to compile

WIDE = Shape(4, 32, 8)


def rows(env=MODEL, settings=SETTINGS, shape=SMALL, **given):
    return made(RowsOnCore, env, settings, shape, is_alone=True, **given)


@pytest.mark.parametrize("given", [{}, {"rows": True}])
def test_a_table_is_that_of_a_twin_in_plain_python_to_the_bit(given):
    learner = rows(shape=WIDE, **given)
    twin = RowsTwin(MODEL, learner._simulator.tables, SETTINGS, WIDE)
    twin.learn(7, 3000, start=255_000)
    found = learned(learner, 3000, start=255_000)
    assert np.array_equal(found["q"].reshape(6, 2), twin.q)
    assert np.array_equal(found["updates"].reshape(6, 2), twin.known)
    assert found["updates"].sum() == 3000 and np.count_nonzero(twin.known) == 12


def test_what_is_learned_does_not_depend_on_where_calls_are_cut():
    whole, cut = rows(), rows()
    assert cut.quantum == 64
    one = learned(whole, 40 * 64 + 5)
    stream = Stream(np.uint64(7), 0)
    for steps in (64, 30 * 64, 9 * 64 + 5):
        cut.learn(0, stream, steps)
        arrays_of(cut)  # it comes here, and stays there
    for name, array in arrays_of(cut).items():
        assert np.array_equal(array, one[name]), name
    assert np.allclose(whole.totals.values, cut.totals.values)


@pytest.mark.parametrize("algorithm", ["q_learning", "double_q_learning"])
def test_illegal_actions_are_not_learned_and_two_tables_are(algorithm):
    settings = dataclasses.replace(SETTINGS, algorithm=algorithm)
    learner = rows(MASKED, settings, WIDE)
    n_tables = learner.table.shape.n_tables
    legal = np.tile(MASKED.action_mask, (n_tables, 1)).ravel()
    learner.table.load(np.where(legal, 3.0, 0.0), np.zeros(legal.size, np.int64))
    found = learned(learner, 2_000_000)
    assert found["updates"].sum() == 2_000_000 and not found["updates"][~legal].any()
    assert not found["q"][~legal].any()
    tables = found["q"].reshape(n_tables, *MASKED.action_mask.shape)
    often = (found["updates"].reshape(tables.shape) > 10_000).all(axis=0)
    assert np.abs(tables.mean(axis=0) - MASKED.solve(0.9).q)[often].max() < 0.1 and often.sum() > 20
    assert n_tables == 1 or not np.array_equal(*tables)


def test_its_error_is_that_of_blocks_with_copies():
    """After as many steps: the largest error of values around 11."""
    truth = MODEL.solve(0.9).q
    copies = learned(made(OnCore, MODEL, SETTINGS, Shape(2, 64, 32)), 2_000_000)
    one = learned(rows(shape=WIDE), 2_000_000)
    short = learned(rows(shape=WIDE, dtype=np.float32), 2_000_000)
    errors = [np.abs(found["q"].reshape(6, 2) - truth).max() for found in (copies, one, short)]
    assert max(errors) < 0.05, errors
    assert max(errors[1:]) < 2.0 * errors[0] + 0.01, errors


@pytest.mark.parametrize("algorithm", ["expected_sarsa", "sarsa", NStepSarsa(n=4)])
def test_other_rules_come_to_their_truths(algorithm):
    from dist_classicrl.learning.rules import find

    settings = dataclasses.replace(SETTINGS, algorithm=algorithm)
    learner = rows(settings=settings, shape=WIDE)
    found = learned(learner, 4_000_000)
    rule, parameters = find(algorithm)
    truth = rule.truth(MODEL, parameters, settings)
    q = learner.table.shape.q_table(found["q"].reshape(-1, 2))
    # Returns of several steps are noisier than those of one.
    assert np.abs(q - truth).max() < (0.05 if isinstance(algorithm, str) else 0.15)


def test_steps_too_small_for_float32_are_made_in_the_mean():
    """One of 5e-9 from 0.5 on is a twelfth of what float32 tells apart there."""
    ones = dataclasses.replace(MODEL, outcome_reward=np.ones_like(MODEL.outcome_reward), max_episode_steps=10)
    settings = Settings(discount_factor=0.0, epsilon=1.0, learning_rate=1e-8)
    learner = rows(ones, settings, dtype=np.float32)
    learner.table.load(np.full(12, 0.5), np.zeros(12, np.int64))
    found = learned(learner, 240_000)
    expected = 0.5 + 0.5 * (1.0 - (1.0 - 1e-8) ** found["updates"])
    assert abs((found["q"] - expected).mean()) < 0.05 * (expected - 0.5).mean()


def test_targets_may_be_as_large_as_numbers_are_and_one_that_is_none_is_told():
    by = 2.0**300
    scaled = dataclasses.replace(MODEL, outcome_reward=MODEL.outcome_reward * by)
    small, found = learned(rows(), 1000), learned(rows(scaled), 1000)
    assert np.allclose(found["q"] / by, small["q"], rtol=1e-12)
    endless = dataclasses.replace(MODEL, outcome_reward=np.full_like(MODEL.outcome_reward, 1.7e308))
    with pytest.raises(DivergenceError):
        learned(rows(endless), 1000)


def test_a_state_that_is_put_back_goes_on_to_the_same_bits():
    settings = dataclasses.replace(SETTINGS, algorithm=NStepSarsa(n=3))
    one, other = (rows(settings=settings) for _ in range(2))
    found = learned(one, 640)
    other.table.load(found["q"], found["updates"])
    other.restore(0, one.state(0))
    for learner in (one, other):
        learner.learn(0, Stream(np.uint64(7), 0, 640), 640)
    assert np.array_equal(arrays_of(one)["q"], arrays_of(other)["q"])
    assert np.array_equal(one.state(0)["position"], other.state(0)["position"])


def test_large_tables_and_rows_that_are_given_are_not_copied(monkeypatch):
    card = Card(0, "H100", (9, 0), 80 << 30, 132)

    def learner_of(**given):
        return new_learner(
            problem_of(resolve(MODEL, 1, None), SETTINGS, Rates(SETTINGS, 1), card=card, **given)
        )

    assert isinstance(learner_of(), InCopies) and isinstance(learner_of(is_alone=True), InCopies)
    assert not plan.has_copies(plan.LARGEST_COPY + 1) and plan.has_copies(plan.LARGEST_COPY)
    given = LineTable(learner_of().table.shape, np.dtype(np.float64))
    assert isinstance(learner_of(is_alone=True, rows=given), InRows)
    monkeypatch.setattr(plan, "LARGEST_COPY", 11)
    learner = learner_of()
    assert isinstance(learner, InOneTable) and learner.quantum == learner.shape.walkers == 1 << 20
    learner = learner_of(is_alone=True)
    assert isinstance(learner, InRows) and learner.shape == plan.ROWS_ON_CARD


def test_rows_and_crews_are_asked_for_while_the_card_is_used(monkeypatch):
    """Whoever asks for them, an engine that reports for instance, is none that uses it."""
    learner = rows()
    learner.learn(0, Stream(np.uint64(7), 0), 80)
    entered, read, usual = [], [], learner.memory.read

    class Used:
        def __enter__(self):
            entered.append(1)

        def __exit__(self, *_):
            entered.pop()

    def reading(there, here):
        read.append(bool(entered))
        usual(there, here)

    monkeypatch.setattr(learner._held, "_used", Used)
    monkeypatch.setattr(launching, "used", lambda card: Used())
    monkeypatch.setattr(CoreMemory, "read", staticmethod(reading))
    arrays_of(learner)
    of_rows = len(read)
    learner.state(0)
    assert len(read) > of_rows > 0 and all(read)


def test_a_state_in_which_nothing_is_legal_is_named_when_rows_come_back():
    legal = np.arange(4)[:, np.newaxis] != [2, 2]
    game = CompiledSimulator.game("stuck", 4, 2, Data(-1), begin_at_0, step_on, legal=legal)
    learner = rows(game)
    learner.learn(0, Stream(np.uint64(7), 0), 16)
    assert arrays_of(learner)["updates"].sum() == 16
    learner.learn(0, Stream(np.uint64(7), 0, 16), 8)
    with pytest.raises(ActionMaskError, match="came to state 2"):
        arrays_of(learner)


@pytest.fixture
def on_core(monkeypatch):
    """Let agents with device="cuda" learn large tables as a card would, on a core."""
    kind = LearnerKind("card on a core", lambda problem: problem.card is not None, RowsOnCore)
    monkeypatch.setattr(choosing, "cards", lambda: [NO_CARD])
    monkeypatch.setattr(large_table, "FROM_ENTRIES", 12)
    register(kind)
    yield
    unregister(kind)


def test_a_large_table_is_saved_while_the_card_learns_on(on_core, tmp_path, monkeypatch):
    """And stays as it is meanwhile, where it is written from."""
    agent = DistAsyncQLearning(device="cuda", seed=4, learning_rate=PerVisit(0.7))
    writing, learned_meanwhile, seen = threading.Event(), [], []
    usual_write, usual_learn = CheckpointFolder.write, RowsOnCore.learn

    def slowly(self, *arguments):
        counts = state_of(agent).large.rows.counts
        before = counts.sum()
        writing.set()
        time.sleep(0.2)
        seen.append((before, counts.sum()))
        writing.clear()
        return usual_write(self, *arguments)

    def learn(self, number, stream, steps):
        usual_learn(self, number, stream, steps)
        learned_meanwhile.append(writing.is_set())

    class Looks(BaseCallback):
        def _on_step(self):
            agent.visits.sum()  # for which the rows come back
            return True

    monkeypatch.setattr(CheckpointFolder, "write", slowly)
    monkeypatch.setattr(RowsOnCore, "learn", learn)
    saving = {"checkpoint_dir": tmp_path, "checkpoint_interval": 1_000_000}
    agent.train(
        env=MODEL, steps=30_000_000, callbacks=[Looks()], progress_interval=0.3, progress_bar=False, **saving
    )
    assert state_of(agent).large is not None and agent.visits.sum() == 30_000_000
    assert len(seen) > 2 and all(before == after for before, after in seen)
    assert sum(learned_meanwhile) > 3
    monkeypatch.undo()
    places._agents.clear()  # so that it goes on where this one has saved
    again = DistAsyncQLearning(seed=4, learning_rate=PerVisit(0.7))
    assert again.train(env=MODEL, steps=30_000_000, progress_bar=False, **saving).steps == 30_000_000
    assert np.array_equal(again.q_table, agent.q_table)  # it was all made before


@pytest.mark.parametrize(("first", "then"), [("sharded", "auto"), ("auto", "sharded")])
def test_a_small_table_goes_on_in_copies_that_was_begun_in_rows_and_the_other_way(
    monkeypatch, tmp_path, first, then
):
    """New episodes begin there: copies and rows have other numbers of walkers."""
    kinds = [
        register(LearnerKind("copies", lambda problem: problem.card and problem.rows is None, OnCore)),
        register(LearnerKind("rows", lambda problem: problem.card and problem.rows is not None, RowsOnCore)),
    ]
    monkeypatch.setattr(choosing, "cards", lambda: [NO_CARD])
    monkeypatch.setattr(plan, "IN_SIMULATOR", plan.Shape(2, 4, 8))

    saving = {"checkpoint_dir": tmp_path, "checkpoint_interval": 1000, "progress_bar": False}
    given = {"device": "cuda", "seed": 4, "learning_rate": PerVisit(0.7)}

    class Breaks(BaseCallback):
        def _on_step(self):
            if self.num_timesteps >= 2000:
                raise LookupError  # after which all is saved
            return True

    try:
        agent = DistAsyncQLearning(**given)
        with pytest.raises(LookupError):
            agent.train(env=MODEL, steps=4000, placement=first, callbacks=[Breaks()], **saving)
        places._agents.clear()  # so that another one goes on where this one has saved
        again = DistAsyncQLearning(**given)
        result = again.train(env=MODEL, steps=4000, placement=then, **saving)
    finally:
        for kind in kinds:
            unregister(kind)
    assert result.resumed_from is not None and again.steps == 4000
    assert again.visits.sum() == 4000
