"""The server of rows that all ranks of a host share, which learns as well: it counts what it learns."""

import threading

import numpy as np
from timed_channel import group_of

from dist_classicrl.engines.outcome import Tally
from dist_classicrl.engines.progress import Observer, Reporter
from dist_classicrl.engines.run import LossPolicy
from dist_classicrl.engines.server.leases import LeaseBook
from dist_classicrl.engines.sharded.rows import Board, HostRows
from dist_classicrl.engines.sharded.server import HostServer
from dist_classicrl.learning.learner import Totals
from dist_classicrl.tables.shape import TableShape

STEPS = 1000


class CountingLearner:
    """Counts its steps; it waits in the first chunk until it `may_go_on`."""

    quantum = 1

    def __init__(self):
        self.learned, self.walkers, self.totals = 0, {0: None}, Totals()
        self.has_begun, self.may_go_on = threading.Event(), threading.Event()

    def learn(self, walker, stream, steps):
        self.has_begun.set()
        self.may_go_on.wait()
        self.learned += steps
        self.totals.values[0] += steps  # as many episodes


class StoppingSaver:
    """Asks to stop when the learner is in the middle of a chunk, which ends only then."""

    asked_to_stop = None

    def __init__(self, learner):
        self.learner = learner

    def look(self, steps):
        self.learner.has_begun.wait()
        self.learner.may_go_on.set()
        return "a stop"

    def is_due(self, steps):
        return False

    def news(self):
        return None


def test_the_chunk_that_is_under_way_at_a_stop_is_counted():
    rows = HostRows(TableShape(2, 1), np.dtype("f8"))
    learner, tally = CountingLearner(), Tally(total_steps=STEPS)
    server = HostServer(
        group_of(0, (), 1.0, 8.0, 40.0),
        Board(rows, np.zeros(2), np.zeros(2, np.int64)),
        LossPolicy(),
        tally,
        Reporter(tally, Observer(), 8.0),
        saver=StoppingSaver(learner),
        leases=LeaseBook(0, STEPS, [], 10),
        own_learner=learner,
    )
    assert server.run() == "a stop"
    learned = learner.learned
    assert 0 < learned < STEPS
    assert server.position.steps == tally.steps == tally.episodes == learned
