"""What an agent holds of a game whose states are keys: how they are looked up, and new ones added."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from dist_classicrl.checks import as_array
from dist_classicrl.environments.keyed import legal_actions
from dist_classicrl.environments.state_keys import (
    WIDE,
    as_number,
    as_numbers,
    as_stored,
    as_words,
    bounds_of,
    from_numbers,
    from_stored,
    is_wide,
    name_of_kind,
)
from dist_classicrl.errors import OutsideSpaceError, SettingsError
from dist_classicrl.model.lookup import Lookup, tried
from dist_classicrl.tables.keys import find_rows, slots_of

if TYPE_CHECKING:
    from dist_classicrl.environments.simulate import CompiledSimulator
    from dist_classicrl.environments.stepped.spaces import SpaceIndex
    from dist_classicrl.tables.shape import TableShape

_HALF = np.dtype(np.uint64)


@dataclass(frozen=True, eq=False)
class KeyIndex:
    """The keys of the states in a table, int64, uint64 or `WIDE`, in the order of its rows.

    It stands where other environments have a `SpaceIndex` between observations and states: a key is an
    observation, or the number that `packing` gives it, and its row the state. One that is not known has the
    row behind the last.
    """

    keys: np.ndarray
    slots: np.ndarray
    packing: SpaceIndex | None = None

    @classmethod
    def of(cls, keys: np.ndarray, packing: SpaceIndex | None = None) -> KeyIndex:
        """Return what finds keys; ValueError where one is there twice."""
        return cls(keys, slots_of(keys), packing)

    @property
    def by_key(self) -> KeyIndex:
        """The same for keys as they are."""
        return replace(self, packing=None)

    @property
    def n(self) -> int:
        """Number of states."""
        return int(self.keys.size)

    @property
    def space(self) -> str:
        """What keys are."""
        packed = "" if self.packing is None else f", each an observation of {self.packing.space}"
        return f"the {self.n:,} keys of {name_of_kind(self.keys.dtype)} that were met{packed}"

    def rows(self, keys: np.ndarray) -> np.ndarray:
        """Return the row of each key, -1 where it has none."""
        rows = np.empty(keys.size, np.int64)
        find_rows(self.slots, as_words(keys), rows)
        return rows

    def checked(self, given: Any) -> tuple[np.ndarray, bool]:
        """Return one key or a batch of them as an array, and whether it is a batch.

        They are given as observations where these are packed. OutsideSpaceError where there is something else
        among them.
        """
        if self.packing is not None:
            return self.packing.encode_any(given)
        if is_wide(self.keys.dtype):
            return self._checked_wide(given)
        bounds = bounds_of(self.keys.dtype)
        if isinstance(given, list):  # NumPy would make floats of small and large ones together
            numbers = [as_array("observation", each)[()] for each in given]
            if all(_is_whole(each, bounds) for each in numbers):
                return np.array([int(each) for each in numbers], self.keys.dtype), True
        else:
            array = as_array("observation", given)
            is_batch = array.ndim == 1 and isinstance(given, np.ndarray)
            values = np.atleast_1d(array)
            if values.dtype.kind in "iu" and values.size:
                is_fine = bounds[0] <= int(values.min()) and int(values.max()) <= bounds[1]
            else:
                is_fine = all(_is_whole(each, bounds) for each in values)
            if is_fine and (array.ndim == 0 or is_batch):
                return np.ascontiguousarray(values.astype(self.keys.dtype)), is_batch
        raise OutsideSpaceError(
            f"observation must be the key of a state, a whole number from {bounds[0]} to {bounds[1]}, got "
            f"{given!r}. A list or an array of keys is a batch."
        )

    def _checked_wide(self, given: Any) -> tuple[np.ndarray, bool]:
        """Do what `checked` does with keys of 128 bits: whole numbers, or their halves, high before low."""
        if isinstance(given, np.ndarray) and given.dtype == np.uint64 and given.ndim in (1, 2):
            if given.shape[-1] == 2:
                return from_stored(given.reshape(-1, 2)), given.ndim == 2
        # Other arrays of numbers are no batches: two of uint64 were a key.
        is_batch = isinstance(given, list) or (
            isinstance(given, np.ndarray) and given.dtype == object and given.ndim == 1
        )
        numbers = [_whole_of_wide(each) for each in (given if is_batch else [given])]
        known = [number for number in numbers if number is not None]
        if len(known) == len(numbers):
            return from_numbers(known, self.keys.dtype), is_batch
        smallest, largest = bounds_of(self.keys.dtype)
        raise OutsideSpaceError(
            f"observation must be the key of a state, a whole number from {smallest} to {largest}, or its "
            f"two halves, a tuple (high, low) or uint64 of shape (2,), got {given!r}. A list of keys, or an "
            "array of halves of the shape (keys, 2), is a batch."
        )

    def encode(self, value: Any) -> int:
        """Return the row of a key; OutsideSpaceError where it has none."""
        keys, is_batch = self.checked(value)
        row = -1 if is_batch else int(self.rows(keys)[0])
        if row < 0:
            raise OutsideSpaceError(f"The state {value!r} was never met. Known are {self.space}.")
        return row

    def encode_any(self, given: Any) -> tuple[np.ndarray, bool]:
        """Return the rows of one key or a batch of them, and whether it is a batch."""
        keys, is_batch = self.checked(given)
        rows = self.rows(keys)
        return np.where(rows < 0, self.n, rows), is_batch

    def decode(self, row: int) -> Any:
        """Return the key of a row, or the observation that was packed."""
        key = as_number(self.keys[row])
        return key if self.packing is None else self.packing.decode(key)


def _whole_of_wide(given: Any) -> int | None:
    """Return a key of 128 bits, given as a whole number or its halves, as a number; None: it is neither.

    Halves are a tuple of two whole numbers below 2**64, as the functions of a game return them, or uint64 of
    shape (2,).
    """
    if isinstance(given, np.ndarray) and given.ndim == 0:
        given = given.item()
    if isinstance(given, np.ndarray) and given.dtype == _HALF and given.shape == (2,):
        given = tuple(given)
    if isinstance(given, tuple) and len(given) == 2:
        if not all(_is_whole(half, bounds_of(_HALF)) for half in given):
            return None
        high, low = given
        return int(high) << 8 * _HALF.itemsize | int(low)
    return int(given) if _is_whole(given, bounds_of(WIDE)) else None


def _is_whole(given: Any, bounds: tuple[int, int]) -> bool:
    is_number = isinstance(given, (int, np.integer)) and not isinstance(given, bool)
    return is_number and bounds[0] <= int(given) <= bounds[1]


class Holder(Protocol):
    """What holds the table of which `KeyedRows` are the states: an agent's state."""

    legal: np.ndarray | None  # bool, (states, actions): of the states that were met
    observations: SpaceIndex | None  # by which keys are packed

    @property
    def shape(self) -> TableShape:
        """What stands in which row of the table."""

    @property
    def table(self) -> tuple[np.ndarray, np.ndarray]:
        """The table and its visits."""

    def make_table(self, states: int, actions: int) -> None:
        """Have another table, of this size."""

    def freshen_table(self) -> None:
        """Bring the table up to date."""


class KeyedRows:
    """The states of an agent's table where they are keys, in the order in which they were met.

    See `dist_classicrl.engines.run.KeyedStates`. `game` is None until an environment tells what is legal in
    states that are not known.
    """

    def __init__(self, holder: Holder, keys: np.ndarray) -> None:
        self._holder = holder
        self._index: KeyIndex | None = None
        self.keys = keys
        self.game: CompiledSimulator | None = None

    @property
    def index(self) -> KeyIndex:
        """What finds them."""
        self._holder.freshen_table()
        packing = self._holder.observations
        if self._index is None or self._index.keys is not self.keys or self._index.packing is not packing:
            self._index = KeyIndex.of(self.keys, packing)
        return self._index

    def know(self, game: CompiledSimulator) -> None:
        """Take note of the game that the keys are of."""
        self.game = game
        if game.keys is not None and game.keys != self.keys.dtype:
            self.keys = self.keys.view(game.keys)
        if self._holder.legal is None:
            self._holder.legal = legal_actions(game, self.keys)

    def fit(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See `KeyedStates`."""
        holder, known = self._holder, self.keys.size
        first = known if np.array_equal(keys[:known], self.keys) else 0
        if first != keys.size:
            legal = None if self.game is None else legal_actions(self.game, keys[first:])
            if legal is not None:
                assert holder.legal is not None  # see `know`
                holder.legal = np.concatenate([holder.legal[:first], legal])
            holder.make_table(keys.size, holder.shape.n_actions)
            self.keys = keys.copy()
        values, counts = holder.table
        return values.reshape(-1), counts.reshape(-1)

    def arrays(self) -> dict[str, np.ndarray]:
        """See `KeyedStates`."""
        legal, keys = self._holder.legal, as_stored(self.keys)
        return {"keys": keys} if legal is None else {"keys": keys, "legal": legal}

    def put(self, keys: np.ndarray, legal: np.ndarray | None, values: np.ndarray, counts: np.ndarray) -> None:
        """Let the table be another one."""
        holder = self._holder
        self.keys, holder.legal = keys.view(self.keys.dtype), legal
        holder.make_table(keys.size, values.shape[1])
        for table, given in zip(holder.table, (values, counts), strict=True):
            table[:] = given


class KeyedLookup(Lookup):
    """Values and greedy actions by keys. What is not known has the values that all states begin with, 0.

    `visits` are given where action masks may have been told only as states were met.
    """

    def __init__(
        self,
        index: KeyIndex,
        values: np.ndarray,
        legal: np.ndarray | None,
        game: Any,
        actions: SpaceIndex | None = None,
        visits: np.ndarray | None = None,
        obeys_masks: bool = True,
        initial_value: float = 0.0,
    ) -> None:
        def rows_of(table: np.ndarray, states: np.ndarray) -> np.ndarray:
            found = np.zeros((states.size, table.shape[1]))
            is_known = states < index.n
            found[is_known] = table[states[is_known]]
            return found

        super().__init__(
            index.n + 1,
            lambda states: rows_of(values, states),
            legal,
            index,  # type: ignore[arg-type]
            actions,
            obeys_masks=obeys_masks,
            tried=None
            if visits is None
            else lambda at: tried(rows_of(values, at), rows_of(visits, at), initial_value),
        )
        object.__setattr__(self, "game", game)

    game: CompiledSimulator | None

    def action_values(self, observation: Any, action_mask: Any = None) -> np.ndarray:
        """See `Lookup`; SettingsError where it is not known which actions are legal."""
        self._check_known(observation, action_mask)
        return super().action_values(observation, action_mask)

    def choose(self, observation: Any, action_mask: Any = None) -> Any:
        """See `Lookup`; SettingsError where it is not known which actions are legal."""
        self._check_known(observation, action_mask)
        return super().choose(observation, action_mask)

    def _check_known(self, observation: Any, action_mask: Any) -> None:
        if action_mask is not None or self.legal is None or self.game is not None:
            return
        states, is_batch = self._states(observation)
        unknown = np.flatnonzero(states == self.n_states - 1)
        if unknown.size:
            index: Any = self.observations
            given = observation[unknown[0]] if is_batch else observation
            if is_wide(index.keys.dtype):
                given = as_number(index.checked(observation)[0][unknown[0]])
            raise SettingsError(
                f"The state {given} was never met, and which actions are legal there the game alone can "
                "tell, which is not known here. Write load_model(path, env=...), with the game that was "
                "trained in, or give an action_mask."
            )

    def _legal_values(
        self, states: np.ndarray, is_batch: bool, observation: Any, action_mask: Any
    ) -> np.ndarray:
        values = super()._legal_values(states, is_batch, observation, action_mask)
        unknown = states == self.n_states - 1
        if action_mask is None and self.game is not None and unknown.any():
            index: Any = self.observations
            legal = legal_actions(self.game, index.checked(observation)[0][unknown])
            if legal is not None:
                values[unknown] = np.where(legal | ~legal.any(axis=1, keepdims=True), 0.0, -np.inf)
        return values


class KeyedValues(Mapping[int, np.ndarray]):
    """A table by keys, as `DistAsyncQLearning.q_table` and `visits` give it: read-only.

    ``table[key]`` is the row of a state, ndarray of shape (actions,), KeyError where it was never met; a key
    is given as to `DistAsyncQLearning.predict`.
    ``len(table)`` is the number of states, and iteration gives their keys in the order in which they were
    met. It is of the moment: read it anew when the agent has gone on.

    Attributes
    ----------
    states : ndarray(int64 or uint64), shape (states,), or ndarray(uint64), shape (states, 2)
        All keys; those of 128 bits as the high half and the low one.
    array : ndarray, shape (states, actions)
        All rows.
    """

    def __init__(self, index: KeyIndex, array: np.ndarray) -> None:
        self._index = index
        self.array = array.view()
        self.array.flags.writeable = False
        self.states = as_stored(index.keys).view()
        self.states.flags.writeable = False

    @property
    def shape(self) -> tuple[int, int]:
        """States and actions."""
        return self.array.shape[0], self.array.shape[1]

    def __getitem__(self, key: Any) -> np.ndarray:
        try:
            return self.array[self._index.encode(key)]
        except OutsideSpaceError as error:
            raise KeyError(key) from error

    def __len__(self) -> int:
        return self._index.n

    def __iter__(self) -> Iterator[int]:
        for first in range(0, len(self), 1 << 16):
            yield from as_numbers(self._index.keys[first : first + (1 << 16)])

    def __repr__(self) -> str:
        states, actions = self.shape
        return f"KeyedValues({states:,} states, {actions:,} actions)"


def keys_fault(keys: np.ndarray, n_rows: int) -> str | None:
    """Return what is wrong with the keys of a table that was saved, or None."""
    shapes: dict[Any, Any] = {np.dtype(np.int64): [(n_rows,)], np.dtype(np.uint64): [(n_rows,), (n_rows, 2)]}
    if keys.shape not in shapes.get(keys.dtype, []):
        return f"its keys are {keys.dtype} of shape {keys.shape}, and its table has {n_rows} states"
    try:
        slots_of(from_stored(np.ascontiguousarray(keys)))
    except ValueError as error:
        return str(error)
    return None
