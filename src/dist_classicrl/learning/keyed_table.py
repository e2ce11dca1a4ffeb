"""A table whose states are keys: rows in order of arrival, found by open addressing, which grows alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from dist_classicrl._jit import jit, jit_for
from dist_classicrl._memory import memory_left, zeros
from dist_classicrl.environments.keyed import KeyedProcess
from dist_classicrl.environments.state_keys import as_number, as_words, words_of
from dist_classicrl.errors import ActionMaskError, SettingsError, StateLimitError
from dist_classicrl.learning.keyed_game import IS_FULL, LIMIT, ROWS, STUCK, KeyedGame, enter_keys
from dist_classicrl.learning.rules import table_shape
from dist_classicrl.learning.rules.kernel import is_legal
from dist_classicrl.settings import Settings
from dist_classicrl.tables.keys import empty_slots, enter_all, fits
from dist_classicrl.tables.line_table import LineTable, row_bytes, size_of
from dist_classicrl.tables.maps import diverged
from dist_classicrl.tables.rows import actions_of, value_of, visits_of
from dist_classicrl.tables.shape import TableShape

_SHARE_OF_MEMORY = 0.8
_FEWEST = 1 << 16
_SLOT_BYTES = 46  # of a word of the key: two numbers a slot, of which 35 % are taken after slots were doubled
_MOST_ROWS = 1 << 40  # whatever the memory


def state_bytes(n_actions: int, dtype: np.dtype, n_tables: int = 1, key_words: int = 1) -> int:
    """Return what a state takes while it is learned: its row, slot and key, and the agent's copy twice.

    A key has so many words. That copy is the agent's own, which is brought up to date now and then, and the
    one of a checkpoint.
    """
    row = row_bytes(n_actions, dtype) + 2 * n_actions * (dtype.itemsize + 8)
    return n_tables * row + key_words * (_SLOT_BYTES + 2 * 8) + 4 * (n_actions + 1) + n_actions


@jit
def first_lost(table, first, n):
    """Return the first of the n rows from `first` on with a legal action whose value is not finite, or -1."""
    n_actions = actions_of(table)
    for row in range(first, first + n):
        for action in range(n_actions):
            if not abs(value_of(table, row, action)) < np.inf:
                if is_legal(table.legal, None, row % table.n_states, n_actions, action, 0):
                    return row
    return -1


@jit
def write_rows(table, first, n, values, counts):
    """Write n rows from `first` on to `values` and `counts`, flat; 0 where an action is illegal."""
    n_actions = actions_of(table)
    for i in range(n):
        for action in range(n_actions):
            at, value = i * n_actions + action, value_of(table, first + i, action)
            values[at] = value if value > -np.inf else 0.0
            counts[at] = visits_of(table, first + i, action)


class KeyedTable(LineTable):
    """The arrays of `LineArrays`, and what finds the rows of keys; all empty.

    There are addresses for as many rows as are allowed, and memory for those that are used: rows never move.
    One more, which is never learned, stands for states where an episode has terminated and nothing is known.

    Parameters
    ----------
    simulator : KeyedProcess
    settings : Settings
        Its rule says which tables there are, `max_states` how many states there may be.
    dtype : dtype
    limit : int, optional
        How many states there may be, in place of what the settings say. One that is not known then gets a
        row behind them, until the next one does.
    owners : int
        So many share the memory, and each has a table; `max_states` is for all of them together.
    spare : int
        More states than `max_states` there may be.
    """

    def __init__(
        self,
        simulator: KeyedProcess,
        settings: Settings,
        dtype: np.dtype,
        limit: int | None = None,
        owners: int = 1,
        spare: int = 0,
    ) -> None:
        lends = limit is not None
        most, self._why = (
            (limit, "") if limit is not None else _limit(simulator, settings, dtype, owners, spare)
        )
        while True:
            try:
                shape = table_shape(settings.algorithm, most + 1, simulator.n_actions)
                memory = zeros(size_of(shape, dtype), np.uint8, is_sparse=True)
                break
            except (OSError, OverflowError) as error:
                most //= 2
                self._why = f"there are no addresses for more ({error}; see `ulimit -v`)"
                if most < _FEWEST:
                    raise
        super().__init__(shape, dtype, memory=memory)
        if simulator.has_mask:
            rows = shape.n_states
            legal = zeros(rows, np.int32, True), zeros(rows * shape.n_actions, np.int32, True)
            self.arrays = self.arrays._replace(legal=legal)
        self._simulator = simulator
        self._key_type: Any = simulator.keys
        self._slots = empty_slots(0, self._key_type)
        self._keys = as_words(zeros(shape.n_states, self._key_type, True))
        self._known = np.array([0, most, 0, 0, lends])

    @property
    def n_known(self) -> int:
        """States that have rows."""
        return int(self._known[ROWS])

    @property
    def keys(self) -> np.ndarray:
        """Their keys, in the order of their rows: a view."""
        return self._keys.view(self._key_type)[: self.n_known]

    def game(self) -> KeyedGame:
        """Return the game with this table, as the kernels see it: until there is more room."""
        return KeyedGame(self._simulator.tables, self._slots, self._keys, self._known, self.arrays)

    def has_rows(self, more: int) -> bool:
        """Whether there may be so many states more."""
        return self.n_known + more <= int(self._known[LIMIT])

    def make_room(self, more: int) -> None:
        """See to it that so many states more can be entered, unless there may not be so many.

        StateLimitError where there is no memory to find them by; the table is as it was.
        """
        wanted = self.n_known + more
        if not fits(self._slots, wanted):
            try:
                slots = empty_slots(wanted, self._key_type)
            except (OSError, OverflowError) as error:
                why = f"there is no memory to find more by ({error}; see `ulimit -v`)"
                raise self.full(self.n_known, why) from error
            self._slots = slots  # which takes no memory before what was there is given back
            enter_all(self._slots, as_words(self.keys))

    def check_room(self) -> None:
        """Raise StateLimitError if a state has come for which there may be no row."""
        if self._known[IS_FULL]:
            self._known[IS_FULL] = 0
            raise self.full()

    def full(self, limit: int | None = None, why: str | None = None) -> StateLimitError:
        """Return the error for a state that has come where there may not be more than `limit`, and why."""
        return StateLimitError(
            f"{self._simulator.name} has come to more than {limit or int(self._known[LIMIT]):,} states, and "
            f"{why or self._why}. What was learned is kept. To go on, give the agent a larger max_states= or "
            "let it run where there is more memory; or give like states one key, so that there are fewer. "
            "Where this program calls train() again, epsilon is what a schedule ends with: to explore on, "
            "set it before, as in agent.epsilon = Linear(agent.epsilon, 0.1, fraction=0.5)."
        )

    def check_acted(self) -> None:
        """Raise ActionMaskError if something was done in a state where nothing is legal."""
        if self._known[STUCK] == 0 or self.arrays.legal is None:
            return
        stuck = np.flatnonzero(self.arrays.legal[0][: self.n_known] == 0)
        stuck = self.keys[stuck][(self.of_states(stuck) != -np.inf).any(axis=(0, 2))]
        if stuck.size:
            raise ActionMaskError(
                f"{self._simulator.name} came to the state {as_number(stuck[0])}, where its function legal "
                "forbids every action. Allow one there, or let the step that leads there terminate the "
                "episode."
            )

    def load_keys(self, keys: np.ndarray, values: np.ndarray, counts: np.ndarray) -> None:
        """Start, while nothing is there, from the states of `keys`; `values` and visit `counts` are flat."""
        if keys.size > self._known[LIMIT]:
            raise self.full()
        self.make_room(keys.size)
        enter = jit_for(enter_keys, type(self._simulator.tables))
        twice = enter(self.game(), as_words(keys))
        if twice >= 0:
            raise SettingsError(f"The key {as_number(keys[twice])} is there twice: each state has one row.")
        for here, there in self._parts(keys.size):
            part = self.values[here]
            np.copyto(part, values.reshape(-1, self.shape.n_actions)[there], where=part > -np.inf)
            self.counts[here] = counts.reshape(-1, self.shape.n_actions)[there]

    def _parts(self, n: int) -> list[tuple[slice, slice]]:
        """Return which rows are used of the table's, and where they are in a table of n states."""
        shape = self.shape
        whole = TableShape(n, shape.n_actions, shape.n_tables, shape.n_shared)
        first = [(t * shape.n_states, t * n, n) for t in range(shape.n_tables)]
        shared = shape.n_tables * shape.n_states, shape.n_tables * n, whole.n_rows - shape.n_tables * n
        return [(slice(i, i + size), slice(j, j + size)) for i, j, size in (*first, shared) if size]

    def check_finite(self) -> None:
        """Raise DivergenceError if a value has grown beyond what the table can hold."""
        for here, _ in self._parts(self.n_known):
            lost = first_lost(self.arrays, here.start, here.stop - here.start)
            if lost >= 0:
                place = "A number that the learning rule shares"
                if lost < self.shape.n_tables * self.shape.n_states:
                    place = f"A value of the state {as_number(self.keys[lost % self.shape.n_states])}"
                raise diverged(f"{place} is not finite", self.values.dtype)

    def settle(self, values: np.ndarray, counts: np.ndarray) -> None:
        """Write all that is known to `values` and `counts`, flat, of as many states; see `check_finite`."""
        n_actions = self.shape.n_actions
        for here, there in self._parts(self.n_known):
            part = slice(there.start * n_actions, there.stop * n_actions)
            write_rows(self.arrays, here.start, here.stop - here.start, values[part], counts[part])


def _limit(
    simulator: KeyedProcess, settings: Settings, dtype: np.dtype, owners: int, spare: int
) -> tuple[int, str]:
    """Return how many states there may be, and why."""
    asked = settings.max_states
    n_tables = table_shape(settings.algorithm, 1, simulator.n_actions).n_tables
    size = state_bytes(simulator.n_actions, dtype, n_tables, words_of(simulator.keys))
    left = memory_left()
    most = _MOST_ROWS if left is None else max(int(left * _SHARE_OF_MEMORY) // (size * owners), _FEWEST)
    if asked is not None and asked <= most:
        return asked + spare, f"max_states={asked:,} allows no more"
    said = "" if left is None else f" of which {left / 2**30:.3g} GiB were left"
    if owners > 1:
        said += f" for {owners} owners of states"
    return most, f"a state takes up to {size} bytes of memory,{said}"
