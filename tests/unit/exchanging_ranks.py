"""Ranks of one process that exchange rounds: real parts, tables and messages, and no MPI."""

import time
from collections import deque
from types import SimpleNamespace

import numpy as np

from dist_classicrl.comm.compression import Codec
from dist_classicrl.engines.decentralized.messages import RoundsCut
from dist_classicrl.engines.decentralized.part import PlayerPart
from dist_classicrl.engines.decentralized.stride import Stride
from dist_classicrl.learning.learner import Totals
from dist_classicrl.learning.rates import Rates
from dist_classicrl.settings import Settings
from dist_classicrl.tables.local import LocalTable
from dist_classicrl.tables.shared import SharedTable

_STATES, _ACTIONS = 4, 2


class Wire:
    """The wire of one rank; messages lie in `on_their_way`, by who sends and who gets them."""

    sleep = staticmethod(time.sleep)
    now = staticmethod(time.monotonic)

    def __init__(self, rank, on_their_way):
        self._rank, self._on_their_way = rank, on_their_way

    def channel(self, peer, tag):
        """Return what sends to another rank."""
        queue = self._on_their_way.setdefault((self._rank, peer), deque())
        return SimpleNamespace(peer=peer, send=queue.append, reap=lambda: True, close=lambda: None)

    def receive(self, channels):
        """Return what has come."""
        queues = [(each, self._on_their_way.get((each.peer, self._rank), ())) for each in channels]
        return [(each, queue.popleft()) for each, queue in queues if queue]


def rank_of(rank, ranks, pattern, on_their_way, codec, start=0):
    """Return the part of one of so many ranks, which learns that each entry in turn is worth 1.

    `start`: the steps of calls before, after which rounds grow by themselves.
    """
    table = LocalTable(_STATES, _ACTIONS, np.dtype("f8"))

    def learn(walker, stream, steps):
        for entry in range(stream.used, stream.used + steps):
            entry %= table.q.size
            if table.updates[entry] == 0:
                table.touched[table.n_touched[0]] = entry
                table.n_touched[0] += 1
            table.updates[entry] += 1
            table.visits[entry] += 1
            table.weight[entry], table.shift[entry] = 0.5, 0.5
        stream.used += steps

    settings = Settings(sync_frequency="auto" if start else 1)
    size = table.q.size
    run = SimpleNamespace(
        values=np.zeros(size), counts=np.zeros(size, np.int64), settings=settings, seed=1, start=start,
        generation=0,
    )  # fmt: skip
    group = SimpleNamespace(
        rank=rank,
        host_of=lambda other: "host",
        tag_between_workers=lambda attempt: attempt,
        wire=Wire(rank, on_their_way),
        timing=SimpleNamespace(stuck=10.0),
    )
    learner = SimpleNamespace(table=table, totals=Totals(), quantum=1, learn=learn)
    part = PlayerPart(run, group, Rates(settings, ranks), lambda hosts: pattern, codec, lambda: learner)
    part.use(SharedTable(run.values, run.counts))
    part.begin(1, tuple(range(ranks)), RoundsCut(0, Stride.first(settings, True)))
    return part


def play(pattern, ranks, rounds=2, codec=Codec, start=0):
    """Let so many ranks learn and exchange some rounds by a pattern; return their parts."""
    on_their_way = {}
    parts = [rank_of(rank, ranks, pattern, on_their_way, codec(), start) for rank in range(ranks)]
    for _ in range(rounds):
        steps = 32 * ranks
        for part in parts:
            part._exchange(part._learn(steps, lambda: None), steps)
        while any(part._under_way is not None for part in parts):
            assert any([part._advance() for part in parts]), "all wait for each other"
    return parts
