"""A rank's share where states are keys: the owner of a key, by a hash of it, grows its table alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from dist_classicrl._jit import jit_for
from dist_classicrl.environments.keyed import KeyedProcess
from dist_classicrl.environments.state_keys import as_number, as_words, ascending, is_wide, order_of, words_of
from dist_classicrl.errors import SettingsError, StateLimitError
from dist_classicrl.learning.keyed_table import KeyedTable
from dist_classicrl.learning.loops import Stretch
from dist_classicrl.learning.supersteps.by_messages.exchanges import Exchanges
from dist_classicrl.learning.supersteps.owners import check_partition, find_own, owned_by, written
from dist_classicrl.learning.supersteps.partition import NEW_PER_STEP, NO_LIMIT, ByKey
from dist_classicrl.learning.supersteps.share import Share
from dist_classicrl.learning.supersteps.together import IS_OVER
from dist_classicrl.tables.shape import TableShape


class KeyedShare(Share):
    """What `Share` is, of states that are keys; `load` takes those, and `rows` are in their order.

    `most` is how many states there may be in all shares together, None: as many as there is memory for. The
    superstep after which there are more is the last, so that it is the same one for any number of shares:
    whoever has several sees to that.
    """

    _copies_rows = False

    def _own(self, partition: Any) -> KeyedTable:
        self._written = written(partition, self.ranks)
        check_partition(self._written.partition, self._game.keys)
        if partition == "range":
            raise SettingsError(
                f"{self._game.name} has keys as states, which partition='range' cannot divide: nobody "
                'knows which there are. Write partition="hash", or a function compiled with numba.njit that '
                "returns the rank which owns a key."
            )
        settings = self._problem.settings
        self.most: int | None = settings.max_states
        keys = self._game.keys
        self._owners = owned_by(partition, 0, self._rank, self.ranks, self._is_alone, keys=keys).arrays
        self._wrong = np.zeros(3, np.int64)
        self._is_over = False
        # What a superstep adds beyond the limit has room, too, wherever it comes.
        spare = 2 * NEW_PER_STEP * self.walkers
        return KeyedTable(self._game, settings, self._problem.dtype, owners=self.ranks, spare=spare)

    @property
    def _game(self) -> KeyedProcess:
        game = self._problem.source.game
        assert game is not None  # states are keys
        return game

    @property
    def _partition(self) -> ByKey:
        most = NO_LIMIT if self.most is None else self.most
        return ByKey(self._owners, self.ranks, self.table.game(), most, self._wrong)

    @property
    def _kind_of_partition(self) -> type:
        return type(self._owners)

    def _make_room(self) -> None:
        table, new = self.table, NEW_PER_STEP * self.walkers
        if self._is_alone and self.note_known(table.n_known):
            raise self.full()
        if not table.has_rows(new):
            raise table.full()
        table.make_room(new)

    def superstep(self, stretch: Stretch, done: int, size: int) -> Exchanges:
        """See `Share`; where there is a limit, all have to know how many states there are."""
        yield from super().superstep(stretch, done, size)
        if self.most is not None:
            known = np.array([[self.n_known]])
            self.note_known(int(np.sum((yield [known] * self.ranks))))

    @property
    def has_to_end(self) -> bool:
        """See `Share`: where there are more states than there may be."""
        return self._is_over

    @property
    def n_known(self) -> int:
        """States that have come to it."""
        return self.table.n_known

    def note_known(self, known: int) -> bool:
        """Return whether so many states, of all shares, are more than there may be."""
        self._is_over = self.most is not None and known > self.most
        return self._is_over

    @property
    def is_over(self) -> bool:
        """Whether there were more states than there may be after the last superstep."""
        return self._is_over or (self._boxes is not None and bool(self._boxes.state[IS_OVER]))

    def full(self) -> StateLimitError:
        """Return the error for that."""
        return self.table.full(self.most)

    def check(self) -> None:
        """See `Share`."""
        super().check()
        self.table.check_acted()
        if self._is_alone and self.note_known(self.n_known):
            raise self.full()
        if self._wrong[0]:
            kind: Any = self._game.keys
            ranks = self._written.ranks
            key = self._wrong[1 : 1 + words_of(kind)].view(kind)[0]
            owner = self._written.partition((key["high"], key["low"]) if is_wide(kind) else key)
            raise SettingsError(
                f"partition gives the key {as_number(key)} to {owner}, which is no rank: with {ranks} of "
                f"them it must return whole numbers from 0 to {ranks - 1}, for each key."
            )

    # What was learned

    @property
    def keys(self) -> np.ndarray:
        """The keys of its states, ascending: those of `rows`."""
        return InKeyOrder(self.table).keys

    def load(self, values: np.ndarray, counts: np.ndarray, keys: np.ndarray | None = None) -> None:
        """Start from a whole table: `values` and visit `counts`, flat, of the states of `keys`."""
        assert keys is not None  # states are keys
        own = self._is_own(keys)
        tables = TableShape(keys.size, self._whole.n_actions, self.n_tables)
        values, counts = (
            tables.tables(array.reshape(-1, tables.n_actions))[:, own] for array in (values, counts)
        )
        self.table.load_keys(np.ascontiguousarray(keys[own]), values.ravel(), counts.ravel())

    def rows(self) -> tuple[np.ndarray, np.ndarray]:
        """See `Share`: of all states that it knows, in the order of their keys."""
        size = self.table.n_known * self.n_tables * self._whole.n_actions
        own = np.empty(size, self.table.values.dtype), np.empty(size, np.int64)
        InKeyOrder(self.table).settle(*own)
        return own

    # Walkers

    def _states_in(self, walkers: np.ndarray) -> np.ndarray:
        kind: Any = self._game.keys
        states: np.ndarray = np.ascontiguousarray(walkers[:, -words_of(kind) :]).view(kind).reshape(-1)
        return states

    def _is_own(self, states: np.ndarray) -> np.ndarray:
        is_own = np.empty(states.size, bool)
        find = jit_for(find_own, type(self._game.tables), self._kind_of_partition)
        find(self._partition, as_words(np.ascontiguousarray(states)), self._rank, is_own)
        return is_own


class InKeyOrder:
    """A table of keys as it is told others: in the order of the keys, whoever met them when."""

    def __init__(self, table: KeyedTable) -> None:
        self._table = table
        self.load_keys = table.load_keys
        self.check_finite = table.check_finite
        self.exact = table.exact

    @property
    def keys(self) -> np.ndarray:
        """All that are known, ascending."""
        return ascending(self._table.keys)

    def settle(self, values: np.ndarray, counts: np.ndarray) -> None:
        """Write all that is known to `values` and `counts`, flat; DivergenceError if they cannot be."""
        table = self._table
        table.check_finite()
        table.settle(values, counts)
        order = order_of(table.keys)
        for array in (values, counts):
            rows = array.reshape(table.shape.n_tables, -1, table.shape.n_actions)
            rows[:] = rows[:, order]


def in_key_order(
    parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]], n_tables: int, n_actions: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the keys of all shares, ascending, with values and counts: `parts` are theirs."""
    keys = np.concatenate([part[0] for part in parts])
    order = order_of(keys, is_in_runs=True)
    arrays = [
        np.concatenate([part[i].reshape(n_tables, -1, n_actions) for part in parts], axis=1)[:, order].ravel()
        for i in (1, 2)
    ]
    return keys[order], arrays[0], arrays[1]
