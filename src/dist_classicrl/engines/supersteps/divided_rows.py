"""A large table of which each host has its share: how the rows come to the hosts when a call begins."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from dist_classicrl.checkpoint.parts import PartedArray
from dist_classicrl.comm import envelope
from dist_classicrl.engines.sharded.host_memory import share_by_host
from dist_classicrl.engines.supersteps.division import Division
from dist_classicrl.errors import RankLostError, SettingsError
from dist_classicrl.membership.handshake import Setup
from dist_classicrl.tables.large_table import LargeTable
from dist_classicrl.tables.lines import MOST_VISITS

_KEPT, _CHECKPOINT, _TOLD = range(3)

ReadTable = Callable[[str], tuple[Any, Any]]
"""Returns values and visits of the checkpoint of a name."""


def divide_rows(
    large: LargeTable,
    setup: Setup,
    host_of: Callable[[int], str],
    partition: Any,
    name: str,
    read: ReadTable,
) -> None:
    """Let each host have its share of a table, the head's or a checkpoint's; all ranks call it together.

    `name` is that of the checkpoint which the head, on whom it is `waiting`, has taken up.
    SettingsError where that cannot be, and RankLostError where a host is gone that had some of the rows.
    Where a rank is lost meanwhile, the others begin again without it, as if nothing had been divided.
    """
    in_use = large.division is not None and large.is_in_use
    holders = large.division.holders if in_use else [host_of(rank) for rank in setup.members]
    text = envelope.text({"holders": holders, "is_new": not in_use}) if setup.is_head else None
    found = envelope.from_text(setup.broadcast_message(text, "how the table is divided"))
    error = None
    try:
        if not in_use:
            shape = large.unfilled.shape
            row_bytes = large.size // shape.n_rows
            large.division = Division(partition, shape.n_states, row_bytes, found["holders"], setup.ranks)
        _check_same(large.division, setup, host_of, partition)
    except BaseException as caught:  # whatever it is, the others must hear of it
        error = caught
    setup.agree(error, {}, [], "the table to be divided between the hosts")
    first = setup.head if setup.head in setup.here else setup.here[0]
    if large.shared is None and large.is_written:
        large.undivided = large.memory
    before = large.undivided if setup.is_head else None
    large.move_to(share_by_host(setup, large.size, first, large.shared), False)
    own = _KEPT
    if large.waiting is not None:
        own = _CHECKPOINT
    elif before is not None:
        own = _TOLD
    text = envelope.text({"what": own, "name": name}) if setup.is_head else None
    told = envelope.from_text(setup.broadcast_message(text, "where the table is"))
    error = None
    try:
        if setup.rank == first:
            _fill(large, host_of(setup.rank), told["what"], found["is_new"], partial(read, told["name"]))
    except BaseException as caught:  # likewise
        error = caught
    setup.agree(error, {}, [], "all hosts to read their rows")
    if told["what"] == _TOLD:
        _tell_rows(large, setup, before, host_of(setup.rank) if setup.rank == first else None)
    setup.agree(None, {}, [], "all hosts to have their rows")
    large.waiting = large.undivided = None


def _check_same(division: Division, setup: Setup, host_of: Callable[[int], str], partition: Any) -> None:
    if division.partition is not partition and division.partition != partition:
        raise SettingsError(
            f"partition={partition!r} cannot take the place of {division.partition!r}, by which the rows of "
            "the table are divided between the hosts since an earlier call of train. Write that again; with "
            "checkpoint_dir= another job can go on with another partition."
        )
    gone = sorted(set(division.holders) - {host_of(rank) for rank in setup.members})
    if gone:
        raise RankLostError(
            f"The host {', '.join(gone)} is gone, and with it the rows of the table that it alone had. Start "
            "the job again: with checkpoint_dir= it goes on from the last checkpoint."
        )


def _fill(large: LargeTable, host: str, what: int, is_new: bool, read: Callable[[], tuple[Any, Any]]) -> None:
    """Write what this host's rows are to begin with."""
    if what == _CHECKPOINT:
        put_rows(large, host, *(read() if large.waiting is None else large.waiting))
    elif what == _KEPT and is_new and large.initial != 0.0:
        for part in large.division.slices():
            large.rows.values[large.division.rows_of(host, *part)] = large.initial


def put_rows(
    large: LargeTable, host: str, values: Any, counts: Any, look: Callable[[], None] = lambda: None
) -> None:
    """Let the rows that a host has be those of a whole table, of shape (states, actions).

    `look` is called before each piece.
    """
    for part in large.division.slices():
        look()
        rows = large.division.rows_of(host, *part)
        large.rows.values[rows] = _rows_in(values, rows)
        large.rows.counts[rows] = np.minimum(_rows_in(counts, rows), MOST_VISITS)


def _rows_in(table: Any, rows: np.ndarray) -> np.ndarray:
    found: np.ndarray = table.take(rows) if isinstance(table, PartedArray) else table[rows]
    return found


def _tell_rows(large: LargeTable, setup: Setup, before: np.ndarray | None, host: str | None) -> None:
    """Let the hosts have those of the rows that the head had; `host`: this rank writes those of this one."""
    lines = large.memory.reshape(large.rows.shape.n_rows, -1)
    for first, last in large.division.slices():
        told = None
        if before is not None:
            some = before.reshape(lines.shape)[first:last]
            told = some.reshape(-1) if some.any() else some.reshape(-1)[:0]
        told = setup.broadcast_message(told, "the server's table")
        if host is not None and told.size:
            rows = large.division.rows_of(host, first, last)
            lines[rows] = told.reshape(last - first, -1)[rows - first]
