"""Who has the table to itself keeps no maps, and learns the same values to the bit."""

from dataclasses import replace

import numpy as np
import pytest
from keyed_games import scrambled

from dist_classicrl import DistAsyncQLearning, TabularMDP
from dist_classicrl.environments.resolve import resolve
from dist_classicrl.errors import DivergenceError
from dist_classicrl.learning.kinds import new_learner, problem_of
from dist_classicrl.learning.learner import Stream
from dist_classicrl.learning.rates import Rates
from dist_classicrl.model import places
from dist_classicrl.schedules import PerVisit
from dist_classicrl.settings import Settings

KEY = np.uint64(5)


MODEL = TabularMDP.garnet(6, 3, 2, seed=2)
MASK = np.ones((6, 3), bool)
MASK[1, 2] = MASK[4, 0] = False
MASKED = replace(MODEL, action_mask=MASK)


def learned(source, settings, is_alone, dtype):
    """Return the table and the visits that a learner comes to, and its learner."""
    problem = problem_of(source, settings, Rates(settings, 1), np.dtype(dtype), is_alone=is_alone)
    learner = new_learner(problem)
    values, counts = np.full(problem.shape.size, 0.25, dtype), np.zeros(problem.shape.size, np.int64)
    learner.table.load(values, counts)
    learner.add(0, source, 0)
    stream = Stream(KEY, 0)
    for steps in (700, 1, 2300):
        learner.learn(0, stream, steps)
        learner.table.settle(values, counts)
    return values, counts, learner


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "given"),
    [
        ("q_learning", {"learning_rate": PerVisit(0.7)}),
        ("q_learning", {"learning_rate": 0.2, "replay_ratio": 2.0, "buffer_size": 50}),
        ("q_lambda", {"learning_rate": 0.2}),
        ("td", {"learning_rate": PerVisit(0.7)}),
        ("differential_q_learning", {"learning_rate": 0.1}),
    ],
)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_same_is_learned_with_maps_and_without(algorithm, given, dtype):
    model = MODEL if algorithm == "differential_q_learning" else MASKED
    settings = Settings(algorithm=algorithm, epsilon=0.3, discount_factor=0.9, **given)
    source = resolve(model, 1, None)
    values, counts, with_maps = learned(source, settings, False, dtype)
    bare_values, bare_counts, bare = learned(source, settings, True, dtype)
    assert with_maps.table.with_maps and not bare.table.with_maps
    assert bare.table.weight.size == bare.table.updates.size == 0
    assert np.array_equal(values, bare_values) and np.array_equal(counts, bare_counts)
    assert np.array_equal(with_maps.table.exact(), bare.table.exact())
    assert np.array_equal(with_maps.totals.values, bare.totals.values)
    assert counts.sum() > 2900 and np.unique(values).size > 6


def test_a_value_beyond_what_the_table_holds_is_named_and_nothing_is_written():
    settings = Settings(learning_rate=0.5, epsilon=1.0)
    problem = problem_of(
        resolve(MASKED, 1, None), settings, Rates(settings, 1), np.dtype("float32"), is_alone=True
    )
    table = new_learner(problem).table
    values, counts = np.zeros(18, np.float32), np.zeros(18, np.int64)
    table.load(values, counts)
    for wrong in (1e39, -1e39, np.nan, np.inf):
        table.q[7], table.visits[7] = wrong, 3
        with pytest.raises(DivergenceError, match="action 1 in state 2"):
            table.settle(values, counts)
        assert not values.any() and not counts.any()
    table.q[7] = 2.0
    table.settle(values, counts)
    assert values[7] == 2.0 and counts[7] == 3 and np.count_nonzero(values) == 1


@pytest.mark.slow
def test_a_process_alone_keeps_none_and_goes_on_where_it_was(tmp_path, monkeypatch):
    monkeypatch.setattr(places, "_agents", {})
    for steps in (1500, 2500):
        places._agents.clear()
        agent = DistAsyncQLearning(seed=3, epsilon=0.3, learning_rate=PerVisit(0.7), dtype="float32")
        result = agent.train(env=MASKED, steps=steps, checkpoint_dir=tmp_path, checkpoint_interval=500)
        assert agent.visits.sum() == steps and np.isfinite(agent.q_table).all()
    assert result.resumed_from is not None and not agent.visits[1, 2] and agent.q_table[1, 2] == 0.0


@pytest.mark.slow
@pytest.mark.parametrize(
    "placed",
    [{"placement": "auto"}, {"placement": "sharded"}, {"placement": "sharded", "walkers": 4}],
    ids=["alone", "in turns", "supersteps"],
)
@pytest.mark.parametrize("has_keys", [False, True])
def test_a_state_that_was_acted_in_before_may_be_an_end_in_another_environment(placed, has_keys):
    def model(ends):
        to_end = (1.0, 1, 0.0, ends)
        outcomes = {
            0: {0: [to_end], 1: [(1.0, 0, 1.0, False)]},
            1: {action: [(1.0, 0, 1.0, False)] for action in (0, 1)},
        }
        mask = [[True, True], [not ends] * 2]
        return TabularMDP.from_dict(outcomes, [1.0, 0.0], n_actions=2, action_mask=mask)

    agent = DistAsyncQLearning(seed=1, epsilon=0.5, async_updates="walkers" not in placed)
    made = scrambled if has_keys else lambda env: env
    agent.train(made(model(False)), total_steps=200, **placed)
    before = dict(visits_of(agent))
    agent.train(made(model(True)), total_steps=200, new_env=True, **placed)
    after = dict(visits_of(agent))
    # Of the two, one is an end now: nothing was done there any more, and all else elsewhere.
    (ends,) = [state for state in before if np.array_equal(before[state], after[state])]
    assert before[ends].all() and sum(counts.sum() for counts in after.values()) == 400
    assert has_keys or ends == 1


def visits_of(agent):
    """Give each state, by its number or its key, with its visits."""
    if isinstance(agent.visits, np.ndarray):
        return enumerate(agent.visits.copy())
    return zip(agent.visits.states.tolist(), agent.visits.array.copy(), strict=True)
