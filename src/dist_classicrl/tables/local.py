"""A worker's own table.

It holds what the worker learns on, the maps that it has not pushed, and the base that it last heard of.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dist_classicrl.learning.q_learning import UNROLLED_ACTIONS
from dist_classicrl.tables import kernels


@dataclass(frozen=True)
class PackedMap:
    """Affine maps of some entries, ready to send: entry e goes from Q to ``weight * Q + shift``.

    Attributes
    ----------
    entries : ndarray(int32 or int64), shape (m,)
        Each entry at most once.
    weight, shift : ndarray(float64), shape (m,)
    visits : ndarray(uint32), shape (m,)
        Real steps that the map stands for; 0 where it was replayed only.
    known : ndarray(uint32), shape (m,)
        Visits that the sender knew of besides, modulo 2**32: what the server counts beyond them came from
        others in the meantime.
    replays : ndarray(uint32), shape (m,), or None
        Replayed updates that the map stands for besides; None where nothing is replayed.
    """

    entries: np.ndarray
    weight: np.ndarray
    shift: np.ndarray
    visits: np.ndarray
    known: np.ndarray
    replays: np.ndarray | None

    @classmethod
    def empty(cls, size: int, index_dtype: np.dtype, with_replays: bool) -> PackedMap:
        """Return room for `size` maps."""
        return cls(
            np.empty(size, index_dtype),
            np.empty(size),
            np.empty(size),
            np.empty(size, np.uint32),
            np.empty(size, np.uint32),
            np.empty(size, np.uint32) if with_replays else None,
        )

    @property
    def parts(self) -> list[np.ndarray]:
        """The arrays, in the order of the constructor's arguments, without `replays` where there is none."""
        parts = [self.entries, self.weight, self.shift, self.visits, self.known]
        return parts if self.replays is None else [*parts, self.replays]

    @classmethod
    def from_parts(cls, parts: list[np.ndarray]) -> PackedMap:
        """Return the maps whose `parts` these are."""
        entries, weight, shift, visits, known = parts[:5]
        return cls(entries, weight, shift, visits, known, parts[5] if len(parts) > 5 else None)

    @property
    def size(self) -> int:
        """Number of entries."""
        return self.entries.size


@dataclass(frozen=True)
class Refresh:
    """What a worker needs to bring its base from version `since` to `version`.

    Attributes
    ----------
    since, version : int
        Versions of the server's table; `since` is -1 where the refresh is the whole table.
    entries : ndarray(int32 or int64), shape (m,), or None
        The entries that changed; None: all of them.
    values : ndarray, shape (m,)
        Their values, in the server table's type.
    counts : ndarray(int64), shape (m,)
        Their visits.
    """

    since: int
    version: int
    entries: np.ndarray | None
    values: np.ndarray
    counts: np.ndarray

    @property
    def parts(self) -> list[np.ndarray]:
        """The arrays: values, counts, and the entries where they are not all."""
        parts = [self.values, self.counts]
        return parts if self.entries is None else [*parts, self.entries]


def index_dtype(n_entries: int) -> np.dtype:
    """Return the integer type in which entries of a table travel."""
    return np.dtype(np.int32 if n_entries < 2**31 else np.int64)


class LocalTable:
    """The arrays of `dist_classicrl.learning.q_learning`, and what packs and re-bases them.

    Parameters
    ----------
    n_states, n_actions : int
    dtype : numpy dtype
        Of the server's table, and so of the base. The local table and the maps are float64 whatever it is.
    legal : ndarray(bool), shape (n_states, n_actions), optional
        The legal actions where they depend on the state alone: the others are -inf here and never learned.
    with_replays : bool
        Whether maps tell replayed updates from visits.
    """

    def __init__(
        self,
        n_states: int,
        n_actions: int,
        dtype: np.dtype,
        legal: np.ndarray | None = None,
        with_replays: bool = False,
    ) -> None:
        size = n_states * n_actions
        self.n_states = n_states
        self.n_actions = n_actions
        self.row_shape = (0,) * n_actions if n_actions <= UNROLLED_ACTIONS else None
        self.with_replays = with_replays
        self.q = np.zeros(size)
        self.best = np.zeros(n_states)
        self.greedy = np.zeros(n_states, np.int32)
        self.weight = np.ones(size)
        self.shift = np.zeros(size)
        self.updates = np.zeros(size, np.int64)
        self.visits = np.zeros(size, np.int64)
        self.touched = np.zeros(size + 1, np.int64)
        self.n_touched = np.zeros(1, np.int64)
        self.base = np.zeros(size, dtype)
        self._stamp = np.zeros(size, np.int32)
        self._stamp_now = 0
        self._index_dtype = index_dtype(size)
        self.illegal: np.ndarray | None = None
        self.legal: tuple[np.ndarray, np.ndarray] | None = None
        self._ends = np.zeros(0, np.int64)
        if legal is not None and not legal.all():
            self.illegal = np.ascontiguousarray(~legal).ravel()
            order = np.argsort(~legal, axis=1, kind="stable").astype(np.int32)
            # Episodes can end there only, and one that is truncated there has 0 to come, not -inf.
            self._ends = np.flatnonzero(~legal.any(axis=1))
            self.legal = (legal.sum(axis=1).astype(np.int32), np.ascontiguousarray(order).ravel())
        self.refresh_all_rows()

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """The table's part of the kernels' arguments, in their order."""
        return (
            self.q,
            self.best,
            self.greedy,
            self.weight,
            self.shift,
            self.updates,
            self.visits,
            self.touched,
            self.n_touched,
        )

    def load(self, values: np.ndarray, counts: np.ndarray, exact: np.ndarray | None = None) -> None:
        """Start from a whole table: `values` (S * A,) and visit `counts` (S * A,) become the base.

        `exact` is what `exact()` gave, where learning is to go on from there and not from `values`.
        """
        kernels.reset_maps(self.touched, self.n_touched, self.weight, self.shift, self.updates)
        self.base[:] = values
        self.q[:] = values if exact is None else exact
        self.visits[:] = counts
        self.refresh_all_rows()

    def exact(self) -> np.ndarray:
        """Return a copy of `q`, float64 whatever the base is, with 0 where an action is illegal."""
        values = self.q.copy()
        if self.illegal is not None:
            values[self.illegal] = 0.0
        return values

    def refresh_all_rows(self) -> None:
        """Recompute every row's maximum, after `q` was changed from outside."""
        if self.illegal is not None:
            self.q[self.illegal] = -np.inf
        kernels.refresh_rows(self.q, self.best, self.greedy, self.n_actions)
        self.best[self._ends] = 0.0

    def pack(self, threshold: float = 0.0, flush: bool = True, key: int | np.uint64 = 0) -> PackedMap:
        """Take the maps accumulated since the last call, to be sent.

        Parameters
        ----------
        threshold : float
            Maps that move the base's value by less stay behind and compose with what follows, seven times in
            eight.
        flush : bool
            Take everything, whatever the threshold.
        key : uint64
            Random stream that decides which small ones go all the same.
        """
        count = int(self.n_touched[0])
        packed = PackedMap.empty(count, self._index_dtype, self.with_replays)
        taken = kernels.pack_maps(
            self.touched,
            self.n_touched,
            self.weight,
            self.shift,
            self.updates,
            self.visits,
            self.base,
            0.0 if flush else threshold,
            np.uint64(key),
            packed.entries,
            packed.weight,
            packed.shift,
            packed.visits,
            packed.known,
            packed.replays,
        )
        if taken == count:
            return packed
        return PackedMap(
            packed.entries[:taken].copy(),
            packed.weight[:taken].copy(),
            packed.shift[:taken].copy(),
            packed.visits[:taken].copy(),
            packed.known[:taken].copy(),
            None if packed.replays is None else packed.replays[:taken].copy(),
        )

    def undo(self, packed: PackedMap) -> None:
        """Put the entries of `packed`, which were just packed, back to the base.

        Their effect comes with a refresh.
        """
        kernels.undo_maps(
            packed.entries,
            packed.visits,
            self.base,
            self.q,
            self.visits,
            self.best,
            self.greedy,
            self.n_actions,
        )

    def rebase(self, refresh: Refresh, pending: list[PackedMap]) -> None:
        """Move to a newer base.

        Where it changed, ``q = current map after pending maps, oldest first, after base``.

        Parameters
        ----------
        refresh : Refresh
        pending : list of PackedMap
            What was pushed and is not in `refresh`, oldest first.
        """
        self._stamp_now += 1
        if self._stamp_now == np.iinfo(np.int32).max:
            self._stamp[:] = 0
            self._stamp_now = 1
        kernels.set_base(
            refresh.entries, refresh.values, refresh.counts,
            self.base, self.q, self.visits, self._stamp, self._stamp_now, self.illegal,
        )  # fmt: skip
        for packed in pending:
            kernels.reapply(
                packed.entries, packed.weight, packed.shift, packed.visits,
                self.q, self.visits, self._stamp, self._stamp_now,
            )  # fmt: skip
        kernels.reapply_current(
            self.touched, self.n_touched, self.weight, self.shift, self.q, self._stamp, self._stamp_now
        )
        if refresh.entries is None:
            kernels.refresh_rows(self.q, self.best, self.greedy, self.n_actions)
        else:
            kernels.refresh_rows_of(refresh.entries, self.q, self.best, self.greedy, self.n_actions)
        self.best[self._ends] = 0.0
