"""An engine of this file's own, plugged in on one rank and on many: rank 0 learns, and tells the others."""

import numpy as np
import pytest

from dist_classicrl import DistAsyncQLearning, TrainingResult
from dist_classicrl.comm import envelope
from dist_classicrl.engines import engine as engines
from dist_classicrl.engines.local import training as local
from dist_classicrl.engines.outcome import Outcome
from dist_classicrl.errors import RankMismatchError, RemoteRankError


class HeadLearns:
    """Lets the rank that would serve learn alone, and tells all others the table."""

    name = "head learns"

    def __init__(self):
        self.started = []

    def suits(self, settings, ranks):
        return settings.async_updates

    def train(self, run, group, start):
        self.started.append((run.start, run.steps))
        if start is None:
            assert group is None
            return local.train(run)
        error = text = None
        if start.is_head:
            try:
                text = envelope.text(local.train(run).to_dict())
            except BaseException as caught:
                error = caught
        else:
            run.close([])
        start.agree(error, {}, [], "rank 0 to learn")
        start.broadcast(run.values, "the table")
        start.broadcast(run.counts, "the visits")
        run.kept = run.steps
        return Outcome.from_dict(envelope.from_text(start.broadcast_message(text, "the outcome")))


@pytest.mark.core
def test_all_ranks_get_what_one_has_learned(world, alone, make_agent, lake, digests):
    engine, agent, straight = HeadLearns(), make_agent(), make_agent(comm=alone)
    for share in (1_000, 300):
        result = agent.train(lake, steps=share, placement=engine)
        expected = straight.train(lake, total_steps=share * world.size)
        assert type(result) is TrainingResult and result.steps == share * world.size
        assert len(set(world.allgather(repr(result)))) == 1
        assert (result.episodes, result.mean_return) == (expected.episodes, expected.mean_return)
        assert len(set(digests(agent))) == 1
        assert agent.steps == agent.visits.sum() == straight.steps
    # What one process learns alone, to the bit.
    np.testing.assert_array_equal(agent.q_table, straight.q_table)
    assert engine.started == [(0, 1_000 * world.size), (1_000 * world.size, 300 * world.size)]


def test_a_larger_table_keeps_its_margin(world, make_agent, lake, digests):
    agent = make_agent(state_size=20, action_size=5)
    agent.q_table[:] = 0.5
    agent.train(lake, total_steps=2_000, placement=HeadLearns())
    assert agent.visits[:16, :4].sum() == agent.visits.sum() == 2_000
    assert (agent.q_table[16:] == 0.5).all() and len(set(digests(agent))) == 1


def test_calls_are_saved_and_gone_on_from(world, make_agent, lake, folder, restart, digests):
    def train(calls):
        restart()
        agent, engine = make_agent(), HeadLearns()
        options = {"checkpoint_dir": folder, "checkpoint_interval": 100, "placement": engine}
        results = [agent.train(lake, total_steps=5_000, **options) for _ in range(calls)]
        return agent, engine, results

    before, engine, _ = train(2)
    assert engine.started == [(0, 5_000), (5_000, 5_000)]
    agent, engine, results = train(2)
    assert engine.started == [] and [result.steps for result in results] == [5_000, 5_000]
    assert agent.steps == 10_000
    np.testing.assert_array_equal(agent.q_table, before.q_table)
    after, engine, results = train(3)
    assert engine.started == [(10_000, 5_000)] and results[-1].steps == 5_000
    assert after.steps == after.visits.sum() == 15_000 and len(set(digests(after))) == 1


@pytest.mark.core
def test_another_engine_goes_on_where_this_one_stopped(world, make_agent, lake, folder, restart):
    make_agent().train(lake, total_steps=5_000, checkpoint_dir=folder, placement=HeadLearns())
    restart()
    agent = make_agent()
    assert agent.train(lake, total_steps=5_000, checkpoint_dir=folder).steps == 5_000
    assert agent.train(lake, total_steps=5_000, checkpoint_dir=folder).steps == 5_000
    assert agent.steps == agent.visits.sum() == 10_000


def test_an_error_in_an_engine_is_told_to_all(world, make_agent, lake, several_ranks):
    def fail(progress):
        raise LookupError("no place for reports")

    agent = make_agent()
    with pytest.raises(LookupError if world.rank == 0 else RemoteRankError, match="no place for reports"):
        agent.train(lake, total_steps=1_000, placement=HeadLearns(), progress=fail)
    assert agent.steps == 0
    assert agent.train(lake, total_steps=1_000).steps == 1_000


@pytest.mark.core
def test_all_ranks_have_to_take_the_same_engine(world, make_agent, lake, several_ranks):
    agent = make_agent()
    placement = HeadLearns() if world.rank == 0 else "auto"
    with pytest.raises(RankMismatchError, match=r"placement: 'engine \(head learns\)' on rank 0, 'auto \(s"):
        agent.train(lake, total_steps=1_000, placement=placement)
    with pytest.raises(RankMismatchError, match=r"placement: 'auto \(server\)' on rank 0, 'replicated"):
        agent.train(lake, total_steps=1_000, placement="replicated" if world.rank else "auto")
    assert agent.train(lake, total_steps=1_000, placement="replicated").steps == 1_000


def test_an_engine_that_one_rank_alone_has_registered(world, make_agent, lake, several_ranks):
    agent, engine = make_agent(), HeadLearns()
    if world.rank == 0:
        engines.register(engine)
    try:
        with pytest.raises(
            RankMismatchError, match=r"placement: 'auto \(head learns\)' on rank 0, 'auto \(s"
        ):
            agent.train(lake, total_steps=1_000)
        if world.rank != 0:
            engines.register(engine)
        assert agent.train(lake, total_steps=1_000).steps == 1_000 and engine.started == [(0, 1_000)]
    finally:
        engines.unregister(engine.name)


def test_a_placement_that_is_none_is_refused_everywhere(world, make_agent, lake):
    agent: DistAsyncQLearning = make_agent()
    with pytest.raises((RemoteRankError, ValueError), match="placement must be one of 'auto', 'replicated'"):
        agent.train(lake, total_steps=1_000, placement="shared" if world.rank == 0 else "auto")
    assert agent.train(lake, total_steps=1_000).steps == 1_000
