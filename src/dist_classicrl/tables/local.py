"""A worker's own table.

It holds what the worker learns on, the maps that it has not pushed, and the base that it last heard of.
"""

from __future__ import annotations

import math

import numpy as np

from dist_classicrl.compression import SEND_ALL, Carry
from dist_classicrl.errors import DivergenceError
from dist_classicrl.tables import kernels, round_kernels
from dist_classicrl.tables.maps import PackedMap, Refresh, diverged, index_dtype, rounded
from dist_classicrl.tables.rows import UNROLLED_ACTIONS, VISIT_MASK, TableArrays, legal_lists
from dist_classicrl.tables.shape import TableShape

_NO_CHOICE = np.zeros(0, bool)


class LocalTable:
    """The arrays of `TableArrays`, and what packs and re-bases them.

    `dtype` is that of the server's table, and so of the base; the local table and the maps are float64
    whatever it is. `legal`, bool of shape (n_states, n_actions), has the legal actions where they depend on
    the state alone: the others are -inf here and never learned. Maps tell replayed updates from visits
    `with_replays`. `shape` says how many tables of this size there are, and what is shared besides; by
    default one table and nothing. Without maps, `with_maps`, there is nothing to be packed, and a step takes
    a fifth less: for who has the table to itself, and learns the same values.
    """

    def __init__(
        self,
        n_states: int,
        n_actions: int,
        dtype: np.dtype,
        legal: np.ndarray | None = None,
        with_replays: bool = False,
        shape: TableShape | None = None,
        with_maps: bool = True,
    ) -> None:
        shape = TableShape(n_states, n_actions) if shape is None else shape
        size, rows = shape.size, shape.n_rows
        self.shape = shape
        self.n_states = n_states
        self.n_actions = n_actions
        self.with_replays = with_replays
        self.q = np.zeros(size)
        self.best = np.zeros(rows)
        self.greedy = np.zeros(rows, np.int32)
        self.with_maps = with_maps
        mapped = size if with_maps else 0
        self.weight = np.ones(mapped)
        self.shift = np.zeros(mapped)
        self.updates = np.zeros(mapped, np.int64)
        self.visits = np.zeros(size, np.int64)
        self.touched = np.zeros(mapped + 1, np.int64)
        self.n_touched = np.zeros(1, np.int64)
        self.base = np.zeros(size, dtype)
        self.limit = float(np.finfo(dtype).max)
        self._stamps = kernels.Stamps(size)
        self._index_dtype = index_dtype(size)
        self.illegal: np.ndarray | None = None
        lists: tuple[np.ndarray, np.ndarray] | None = None
        self._ends = np.zeros(0, np.int64)
        if legal is not None and not legal.all():
            self.illegal = np.zeros(size, bool)
            self.illegal[: shape.n_tables * legal.size] = np.tile(~legal.ravel(), shape.n_tables)
            # Episodes can end there only, and one that is truncated there has 0 to come, not -inf.
            ends = np.flatnonzero(~legal.any(axis=1))
            self._ends = (ends + n_states * np.arange(shape.n_tables)[:, np.newaxis]).ravel()
            lists = legal_lists(legal)
        self.arrays = TableArrays(
            self.q,
            self.best,
            self.greedy,
            self.weight if with_maps else None,
            self.shift if with_maps else None,
            self.updates if with_maps else None,
            self.visits,
            self.touched if with_maps else None,
            self.n_touched,
            lists,
            (0,) * n_actions if n_actions <= UNROLLED_ACTIONS else None,
            n_states,
            shape.n_tables,
        )
        #: What rounding took from the shifts of maps that were packed, float64 of shape (S * A,): it goes
        #: with the next map of the entry. None: nothing was rounded yet.
        self.residual: np.ndarray | None = None
        self._beyond_base: np.ndarray | None = None  # what previews wrote to
        self._base_rows: tuple[np.ndarray, np.ndarray] | None = None  # their maxima, and where these are
        self.refresh_all_rows()

    def load(self, values: np.ndarray, counts: np.ndarray, exact: np.ndarray | None = None) -> None:
        """Start from a whole table: `values` (S * A,) and visit `counts` (S * A,) become the base.

        `exact` is what `exact()` gave, where learning is to go on from there and not from `values`.
        """
        if self.with_maps:
            kernels.reset_maps(self.arrays)
        self.residual = self._base_rows = None
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
        kernels.refresh_rows(self.arrays)
        self.best[self._ends] = 0.0

    @property
    def waiting(self) -> int:
        """How many entries have maps, or residuals, that were not packed."""
        residuals = 0 if self.residual is None else int(np.count_nonzero(self.residual))
        return int(self.n_touched[0]) + residuals

    def pack(
        self,
        carry: Carry = SEND_ALL,
        flush: bool = True,
        key: int | np.uint64 = 0,
        in_order: bool = False,
    ) -> PackedMap:
        """Take the maps accumulated since the last call, to be sent; all of them, as they are, to `flush`.

        Else those that `carry` lets wait stay behind and compose with what follows: of those below its
        threshold the random stream `key` decides which go all the same. What its rounding takes from the
        shifts goes with the entry's next map. `in_order`: entries ascend.

        DivergenceError if a value has grown beyond what the server's table can hold; then all are forgotten.
        """
        count = int(self.n_touched[0])
        goes, least = _NO_CHOICE, 0.0
        if not flush:
            least = carry.threshold
            if carry.share < 1.0 and count:
                goes = self._most_moved(carry.share)
        packed = PackedMap.empty(count, self._index_dtype, self.with_replays)
        taken, lost = kernels.pack_maps(
            self.arrays, self.base, goes, least, np.uint64(key), self.limit, packed
        )
        if lost >= 0:
            raise self.diverged(int(lost))
        packed = packed.first(taken)
        if self.residual is not None:
            packed = self._with_residuals(packed, self.residual, flush)
        if carry.bits and not flush:
            self._round(packed, carry.bits)
        return packed.sorted() if in_order else packed

    def _most_moved(self, share: float) -> np.ndarray:
        """Return, bool by touched entry, that share of them whose maps move the base most.

        A quarter of them are those that wait longest, so that none waits for ever.
        """
        touched = self.touched[: self.n_touched[0]]
        base = self.base[touched].astype(np.float64)
        moved = np.abs(self.weight[touched] * base + self.shift[touched] - base)
        most = math.ceil(share * touched.size)
        goes = np.zeros(touched.size, bool)
        goes[: most // 4] = True  # what stayed behind stands first, in the order in which it did
        moved[: most // 4] = np.inf
        goes[np.argpartition(moved, touched.size - most)[touched.size - most :]] = True
        return goes

    def _with_residuals(self, packed: PackedMap, residual: np.ndarray, flush: bool) -> PackedMap:
        """Return the maps after their entries' residuals, and to `flush` the other residuals as well."""
        entries = packed.entries
        packed.shift[:] += packed.weight * residual[entries]
        residual[entries] = 0.0
        if flush:
            packed = packed.joined(self._residuals(residual))
            residual[:] = 0.0
        return packed

    def _residuals(self, residual: np.ndarray) -> PackedMap:
        """Return the residuals that wait as maps."""
        entries = np.flatnonzero(residual).astype(self._index_dtype)
        nothing = np.zeros(entries.size, np.uint32)
        known = (self.visits[entries] & VISIT_MASK).astype(np.uint32)
        replays = nothing if self.with_replays else None
        return PackedMap(entries, np.ones(entries.size), residual[entries], nothing, known, replays)

    def _round(self, packed: PackedMap, bits: int) -> None:
        """Round the shifts to whole numbers of so many bits, of a power of two; keep what that takes away.

        It is half of that power at most.
        """
        if self.residual is None:
            self.residual = np.zeros(self.q.size)
        shift = rounded(packed.shift, bits)
        self.residual[packed.entries] = packed.shift - shift
        packed.shift[:] = shift

    def fold(self, sums: round_kernels.RoundSums) -> int:
        """Add the maps accumulated since the base to `sums`, and put the table back to the base.

        Return what `round_kernels.fold_maps` does.
        """
        return int(round_kernels.fold_maps(self.arrays, self.start, self.limit, self.with_replays, sums))

    @property
    def start(self) -> round_kernels.Base:
        """The base, with what there is to know of its rows."""
        if self._base_rows is None:
            values = self.base.astype(np.float64)
            if self.illegal is not None:
                values[self.illegal] = -np.inf
            rows = values.reshape(self.best.size, -1)
            best = rows.max(axis=1)
            is_single = (rows == best[:, np.newaxis]).sum(axis=1) == 1
            greedy = np.where(is_single, rows.argmax(axis=1), -1).astype(np.int32)
            best[self._ends] = 0.0
            self._base_rows = best, greedy
        return round_kernels.Base(self.base, *self._base_rows)

    def settle(self, values: np.ndarray, counts: np.ndarray) -> None:
        """Bring a whole table, `values` and `counts` of shape (S * A,), to what was learned since it was.

        The values here are exact: to apply maps would only add rounding. DivergenceError if one has grown
        beyond what the table can hold; then nothing is written.
        """
        if not self.with_maps:
            self._settle_whole(values, counts)
            return
        lost = kernels.settle_maps(self.arrays, self.limit, values, counts)
        if lost >= 0:
            raise self.diverged(int(lost))

    def _settle_whole(self, values: np.ndarray, counts: np.ndarray) -> None:
        is_fine = np.abs(self.q) <= self.limit
        if self.illegal is not None:
            is_fine |= self.illegal
        if not is_fine.all():
            raise self.diverged(int(np.argmin(is_fine)))
        np.copyto(values, self.q, casting="same_kind", where=True if self.illegal is None else ~self.illegal)
        np.copyto(counts, self.visits)

    def diverged(self, entry: int) -> DivergenceError:
        """Return the error for an entry that has grown beyond what the server's table can hold."""
        return diverged(f"{self.shape.name_of(entry)} is {self.q[entry]}", self.base.dtype)

    def diverged_in_round(self, entry: int) -> DivergenceError:
        """Return the same after `fold`, which leaves the base's value in the place of that one."""
        return diverged(f"{self.shape.name_of(entry)} has grown too large in a round", self.base.dtype)

    def of_states(self, states: np.ndarray) -> np.ndarray:
        """See `LineTable`."""
        return self.shape.tables(self.q.reshape(-1, self.n_actions))[:, states]

    def undo(self, packed: PackedMap) -> None:
        """Put the entries of `packed`, which were just packed, back to the base.

        Their effect comes with a refresh.
        """
        kernels.undo_maps(packed, self.base, self.arrays)

    def forget(self, stays: np.ndarray) -> None:
        """Forget the maps accumulated since the last `pack`, but those of the entries `stays`; see `undo`.

        What rounding took from maps that were packed stays as well.
        """
        touched = self.touched[: self.n_touched[0]]
        if not touched.size:
            return
        goes = ~np.isin(touched, stays)
        packed = PackedMap.empty(touched.size, self._index_dtype, self.with_replays)
        taken, _ = kernels.pack_maps(self.arrays, self.base, goes, 0.0, np.uint64(0), self.limit, packed)
        self.undo(packed.first(taken))

    def rebase(self, refresh: Refresh, pending: list[PackedMap]) -> None:
        """Move to a newer base, where `pending` was pushed and is not in `refresh`, oldest first.

        Where it changed, ``q = current map after residual after pending maps, oldest first, after base``.
        What others did there since the base before limits the current map, as it would a push. ProtocolError
        where the refresh is of another table.
        """
        self._move_to(refresh, pending, self.base)

    def preview(self, refresh: Refresh, pending: list[PackedMap]) -> None:
        """Learn on what a preview tells from now on, likewise, until the base moves."""
        if self._beyond_base is None:
            self._beyond_base = np.empty_like(self.base)
        self._move_to(refresh, pending, self._beyond_base)

    def _move_to(self, refresh: Refresh, pending: list[PackedMap], base: np.ndarray) -> None:
        refresh.require_fit(base.size)
        stamp, now = self._stamps.next_pass()
        visits = np.empty(self.n_touched[0], np.int64)
        kernels.visits_under_maps(self.arrays, visits)
        kernels.set_base(
            refresh.entries, refresh.values, refresh.counts, self.arrays, base, self.illegal, stamp, now
        )
        waiting = [] if self.residual is None else [self._residuals(self.residual)]
        for packed in [*pending, *waiting]:
            kernels.reapply(packed, self.arrays, stamp, now)
        kernels.reapply_current(self.arrays, visits, stamp, now)
        if refresh.entries is None:
            kernels.refresh_rows(self.arrays)
        else:
            kernels.refresh_rows_of(refresh.entries, self.arrays)
        self.best[self._ends] = 0.0
        if self._base_rows is not None and base is self.base:
            self._follow_rows(refresh.entries, is_bare=not self.n_touched[0] and not pending and not waiting)

    def _follow_rows(self, entries: np.ndarray | None, is_bare: bool) -> None:
        """Keep what is known of the base's rows, where the table `is_bare`: nothing else than its base."""
        if not is_bare or self._base_rows is None:
            self._base_rows = None
        elif entries is None:
            for kept, now in zip(self._base_rows, (self.best, self.greedy), strict=True):
                kept[:] = now
        else:
            round_kernels.copy_rows_of(entries, self.arrays, *self._base_rows)
