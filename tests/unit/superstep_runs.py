"""Runs in supersteps, of any number of ranks in this process."""

from dataclasses import dataclass

import numpy as np

from dist_classicrl.environments.resolve import resolve
from dist_classicrl.learning.learner import Problem, Stream
from dist_classicrl.learning.rates import Rates
from dist_classicrl.learning.rules import find, table_shape
from dist_classicrl.learning.supersteps.keyed_share import KeyedShare, in_key_order, share_of
from dist_classicrl.learning.supersteps.share import joined, supersteps, totals_of

KEY = np.uint64(12345)


def problem_of(environment, settings):
    source = resolve(environment, 1, None)
    rule, parameters = find(settings.algorithm)
    shape = table_shape(settings.algorithm, source.n_states, source.n_actions)
    dtype, legal = np.dtype(settings.dtype), source.simulator.legal
    return Problem(source, settings, Rates(settings, 1), shape, dtype, legal, False, None, rule, parameters)


def play(shares, stream, until, rates):
    """Make steps with all shares of a run, which are in this process, up to step `until` of the stream."""
    stream.last = until
    if len(shares) == 1:
        shares[0].learn_alone(stream, rates, until)
    for stretch, done, size in supersteps(stream, rates, shares[0].walkers, until):
        superstep(shares, stretch, done, size)
    for share in shares:
        share.check()


def superstep(shares, stretch, done, size):
    sent = [tuple(map(np.copy, share.depart(stretch, done, size))) for share in shares]
    replies = [[None for _ in shares] for _ in shares]
    for rank, share in enumerate(shares):
        parts = [records[offsets[rank] : offsets[rank + 1]] for records, offsets in sent]
        answers = share.answer(stretch, done, np.concatenate(parts))
        ends = np.cumsum([len(part) for part in parts])
        for sender, part in enumerate(np.split(answers, ends[:-1])):
            replies[sender][rank] = part
    for share, answers in zip(shares, replies, strict=True):
        share.settle(stretch, done, np.concatenate(answers))


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


def shares_of(problem, ranks, partition="hash", walkers=256):
    shares = [share_of(problem, walkers, partition, rank, ranks) for rank in range(ranks)]
    for share in shares:
        share.compile()
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


def learned(problem, steps, ranks=1, partition="hash", walkers=256, cuts=()):
    """Learn some steps. A cut is (steps until then, ranks, partition): from there on others go on."""
    shares = shares_of(problem, ranks, partition, walkers)
    stream = Stream(KEY, 0)
    for until, *others in (*cuts, (steps,)):
        play(shares, stream, until, problem.rates)
        if others:
            table = whole(problem, shares)
            state = joined(share.state() for share in reversed(shares))
            shares = shares_of(problem, *others, walkers)
            for share in shares:
                share.load(*table)
                share.restore(state)
    values, counts, *keys = whole(problem, shares)
    totals = totals_of(np.sum([share.counted() for share in shares], axis=0))
    return Learned(values, counts, totals.tolist(), *keys)
