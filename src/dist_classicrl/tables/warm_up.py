"""Compile, or load from disk, what workers and servers call of their tables, on tables of one state."""

from __future__ import annotations

import numpy as np

from dist_classicrl.tables import kernels
from dist_classicrl.tables.composition import Composition
from dist_classicrl.tables.local import LocalTable
from dist_classicrl.tables.maps import PackedMap, Refresh
from dist_classicrl.tables.round_merge import MapSums, Parts, PartSums, RoundMerge
from dist_classicrl.tables.shared import SharedTable
from dist_classicrl.tables.snapshot import TableSnapshot


def warm_up_worker(table: LocalTable, plays_rounds: bool) -> None:
    """Get ready what a worker does with its table besides learning."""
    if plays_rounds:
        sums = PartSums(table.q.size)
        sums.begin(range(1), 1)
        sums.fold(table)
        _rebase_rounds(table)
        return
    nothing = table.pack()
    _rebase(table, [nothing])
    table.undo(nothing)
    kernels.map_load(nothing)
    kernels.mean_and_size(table.base, 1)


def _rebase(table: LocalTable, pending: list[PackedMap]) -> None:
    """Begin with a whole table, as a worker does, and move to a newer one: the whole of it, and a part."""
    values, counts = np.zeros_like(table.base), np.zeros_like(table.visits)
    table.load(values, counts)
    table.rebase(Refresh(-1, 0, None, values, counts), pending)
    table.rebase(Refresh(0, 1, table.pack().entries, values[:0], counts[:0]), [])


def warm_up_node_server(table: LocalTable) -> None:
    """Get ready what a rank does that composes the maps of others, whose tables are like `table`."""
    nothing = table.pack()
    Composition(table.q.size).of([nothing, nothing])
    SharedTable(np.zeros_like(table.base), np.zeros_like(table.visits)).refresh(0)


def warm_up_decentralized(table: LocalTable) -> None:
    """Get ready what a rank does with its table where all exchange what they learned."""
    warm_up_worker(table, plays_rounds=False)
    shared = SharedTable(np.zeros_like(table.base), np.zeros_like(table.visits))
    _fold(table, shared)
    shared.refresh(0)


def warm_up_rounds(table: LocalTable) -> None:
    """Get ready what a process does that merges rounds by itself."""
    warm_up_server(table, merges_rounds=True)
    _rebase_rounds(table)


def _rebase_rounds(table: LocalTable) -> None:
    """Move to a newer base, likewise, from one that maps were folded from."""
    _rebase(table, [])
    MapSums(table.q.size).fold(table)  # from now on it knows its base's rows
    nothing = np.zeros(0, table.base.dtype), np.zeros(0, np.int64)
    table.rebase(Refresh(1, 2, table.pack().entries, *nothing), [])


def _fold(table: LocalTable, shared: SharedTable) -> None:
    """Add up what a logical worker has learned, which is nothing, and merge it."""
    sums = MapSums(table.q.size)
    sums.fold(table)
    RoundMerge(shared).merge([Parts.one(0, sums.take())])


def warm_up_server(table: LocalTable, merges_rounds: bool) -> None:
    """Get ready what a server does with its table, to which workers with tables like `table` push."""
    values, counts = np.zeros_like(table.base), np.zeros_like(table.visits)
    shared = SharedTable(values, counts)
    if merges_rounds:  # it plays them, too, if it loses all its workers
        kernels.mean_and_size(values, 1)
        _fold(table, shared)
    else:
        snapshot = TableSnapshot(values, counts)
        snapshot.begin()
        shared.watch(snapshot)
        shared.apply(1, 1, table.pack())
        table.settle(values, counts)  # a server that loses all its workers learns by itself
    shared.refresh(0)
