"""Runs in supersteps, of any number of ranks in this process."""

from dataclasses import dataclass, replace

import numpy as np

from dist_classicrl.environments.resolve import resolve
from dist_classicrl.learning.learner import Problem, Stream
from dist_classicrl.learning.rates import Rates
from dist_classicrl.learning.rules import find, table_shape
from dist_classicrl.learning.supersteps.by_messages.exchanges import together
from dist_classicrl.learning.supersteps.crew import joined, totals_of
from dist_classicrl.learning.supersteps.keyed_share import KeyedShare, in_key_order
from dist_classicrl.learning.supersteps.row_share import HostShare
from dist_classicrl.learning.supersteps.share import (
    record_sizes,
    supersteps,
)
from dist_classicrl.learning.supersteps.shares import share_of
from dist_classicrl.learning.supersteps.together import boxes_in, bytes_of
from dist_classicrl.rules.behaviors import behavior_of
from dist_classicrl.tables.line_table import LineTable, size_of

KEY = np.uint64(12345)


def problem_of(environment, settings):
    source = resolve(environment, 1, None)
    rule, parameters = find(settings.algorithm)
    shape = table_shape(settings.algorithm, source.n_states, source.n_actions)
    dtype, legal = np.dtype(settings.dtype), source.simulator.legal
    known = source, settings, Rates(settings, 1), shape, dtype, legal, False, None, rule, parameters
    return Problem(*known, behavior=behavior_of(settings.behavior))


def play(shares, stream, until, rates):
    """Make steps with all shares of a run, which are in this process, up to step `until` of the stream."""
    stream.last = until
    if shares[0]._boxes is not None:
        play_in_memory(shares, stream, until, rates)
    elif len(shares) == 1:
        shares[0].learn_alone(stream, rates, until)
    for stretch, done, size in supersteps(stream, rates, shares[0].walkers, until):
        together([share.superstep(stretch, done, size) for share in shares])
    for share in shares:
        share.check()


def play_in_memory(shares, stream, until, rates):
    """Let each look whether the others have done their parts, one after the other."""
    streams = [replace(stream) for _ in shares]
    going_on = list(range(len(shares)))
    while going_on:
        going_on = [n for n in going_on if not shares[n].play_together(streams[n], rates, until, 1)]
    assert {each.used for each in streams} == {until}
    stream.used = until


@dataclass
class Learned:
    """What was learned, and what was counted, all in a form that can be compared bit for bit."""

    values: np.ndarray
    counts: np.ndarray
    totals: list[float]
    keys: np.ndarray | None = None

    def __eq__(self, other):
        return self.seen() == other.seen()

    def seen(self):
        keys = b"" if self.keys is None else self.keys.tobytes()
        return self.values.tobytes(), self.counts.tobytes(), [total.hex() for total in self.totals], keys


def shares_of(problem, ranks, partition="hash", walkers=256, in_memory=False, in_place=False):
    """Return the shares of so many ranks, compiled; `in_memory`: they exchange walkers there.

    Then they are every second one of those that the memory is for: the others were lost, or never learned.
    `in_place`: they have the rows in common as well, and walkers stay where they are.
    """
    boxes, kind = [None] * ranks, share_of
    if in_place:
        size = size_of(problem.shape, problem.dtype)
        rows = LineTable(problem.shape, problem.dtype, problem.legal, np.zeros(size, np.uint8))
        problem, kind, in_memory = replace(problem, rows=rows), HostShare, True
    if in_memory:
        sizes = walkers, *record_sizes(problem.source.simulator, problem.rule, problem.parameters)
        players = tuple(range(1, 2 * ranks, 2))
        memory = np.zeros(bytes_of(2 * ranks, *sizes), np.uint8)
        boxes = [boxes_in(memory, 2 * ranks, *sizes, own, players, 3) for own in players]
    is_alone = False if in_memory else None
    shares = [kind(problem, walkers, partition, rank, ranks, is_alone, boxes[rank]) for rank in range(ranks)]
    for share in shares:
        share.compile()
        if in_place:
            share.load(
                np.full(problem.shape.size, problem.settings.initial_value), np.zeros(problem.shape.size)
            )
    return shares


def whole(problem, shares):
    """Return values and counts of all shares, flat, and where states are keys those."""
    if isinstance(shares[0], KeyedShare):
        parts = [(share.keys, *share.rows()) for share in shares]
        keys, *table = in_key_order(parts, problem.shape.n_tables, problem.shape.n_actions)
        return *table, keys
    values = np.full(problem.shape.size, np.nan, problem.dtype)
    counts = np.full(problem.shape.size, -1)
    for share in shares:
        for own, all_of_them in zip(share.rows(), (values, counts), strict=True):
            share.place(own, all_of_them)
    return values, counts


def learned(problem, steps, ranks=1, partition="hash", walkers=256, cuts=(), **how):
    """Learn some steps. A cut is (steps until then, ranks, partition): from there on others go on."""
    shares = shares_of(problem, ranks, partition, walkers, **how)
    stream = Stream(KEY, 0)
    for until, *others in (*cuts, (steps,)):
        play(shares, stream, until, problem.rates)
        if others:
            table = whole(problem, shares)
            state = joined(share.state() for share in reversed(shares))
            shares = shares_of(problem, *others, walkers, **how)
            for share in shares:
                share.load(*table)
                share.restore(state)
    values, counts, *keys = whole(problem, shares)
    totals = totals_of(np.sum([share.counted() for share in shares], axis=0))
    return Learned(values, counts, totals.tolist(), *keys)
