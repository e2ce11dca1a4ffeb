"""Which rank owns which states, and where an owner has their rows: jitted functions, picked by a class.

A rank's rows are its states in their order. Where those are not one range, a bit for each state tells which
are its own, and so many bits before a state's are set as its row says. In a table that is there once for all
ranks no bits are kept: the row of a state is where it is in the whole table. Where that table is divided
between hosts, states belong to *slots*, which stay on a host, and a slot to one of the host's ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dist_classicrl._jit import (
    as_called_by_kernels,
    class_of_its_own,
    jit_inline,
    overloads,
    stub,
)
from dist_classicrl._random import SHIFT_32, mix, stream_key
from dist_classicrl.environments.keyed import as_key
from dist_classicrl.environments.state_keys import (
    folded,
    pair_in,
    put_words,
    state_at,
)
from dist_classicrl.learning.keyed_game import ROWS, KeyedGame, has_rows, has_wide_keys, row_for
from dist_classicrl.learning.supersteps.numbering import number_of
from dist_classicrl.tables.keys import prefetch_slot
from dist_classicrl.tables.lines import prefetch_values

NEW_PER_STEP = 3
"""States that a step meets at most: where it begins, where it leads, and where an episode begins then."""

NO_LIMIT = 1 << 62

_KEY = stream_key(0, "partition")


class All(NamedTuple):
    """One rank owns everything."""


class Range(NamedTuple):
    """Each owns a range of states, of the same length but for the last."""

    size: int
    first: int  # of its own


class ByKey(NamedTuple):
    """States are keys: `owners`, another partition, says whose they are; their rows are in a table."""

    owners: Any
    ranks: int
    game: KeyedGame
    most: int  # states beyond which a superstep is the last
    wrong: np.ndarray  # int64, shape (3,): whether `owners` gave a key to no rank, and the words of that key


class Spread(NamedTuple):
    """The owner of a state is a hash of it."""

    ranks: int
    words: np.ndarray  # uint64: its own states, a bit each; none where the row of a state is its number
    before: np.ndarray  # int64: how many there are before each word


class Assigned(NamedTuple):
    """The owner of a state is what a function of the user's says; each function has a class of its own.

    It names one of the `asked` ranks with which the run began. Where there are fewer, each has the states of
    several of them.
    """

    ranks: int
    asked: int
    words: np.ndarray
    before: np.ndarray


class Blocks(NamedTuple):
    """The owner of a state is a hash of the block that it is in: of so many states, a power of two."""

    ranks: int
    shift: int  # its exponent


class Held(NamedTuple):
    """`slots`, another partition, says in which slot a state is, and `owners` whose that is."""

    slots: Any
    owners: np.ndarray  # int64, by slot


_FUNCTIONS: dict[type, Any] = {}
_CLASSES: dict[Any, type] = {}


WHERE = 1
"""The word of a record that has the action and what is asked; and the state above, where that is a number."""
STATE_SHIFT = 24


@stub
def owner_of(partition, state):
    """Return the rank that owns `state`."""


@stub
def has_owner(partition, state):
    """Return whether a rank owns `state`, as a user's function may deny; its indices are checked."""


@stub
def row_of(partition, state):
    """Return the row of a state that is this rank's own."""


@stub
def find_rows(partition, table, states, rows, order, n):
    """Put in the rows of `n` states for which there is a -1, and ask for them: `order` says which."""


@stub
def meet(partition, state):
    """Give a state of its own a row, which in numbered ones it has."""


@stub
def look_for(partition, records, i):
    """Ask for what tells the row of record `i`."""


@stub
def has_room(partition, walkers):
    """Return whether a superstep of so many walkers has room here."""


@stub
def n_known(partition):
    """Return how many states have come to this rank, where that is counted."""


@stub
def is_over(partition, known):
    """Return whether so many states of all ranks are more than there may be."""


@stub
def is_counted(partition):
    """Return whether all ranks have to know how many states there are."""


@stub
def state_in(partition, records, i):
    """Return the state in record `i`."""


@stub
def waiting_state(partition, places, place):
    """Return the state of a step that waits, in the part of a record that is for these."""


@stub
def put_waiting(partition, places, place, state):
    """Let that be another one."""


@stub
def put_state(partition, records, i, state, low):
    """Write a state into record `i`, and what stands below it in its word `WHERE`."""


def class_of(partition: Any) -> Any:
    """Return the class of a partition of this numba type."""
    return getattr(partition, "instance_class", None)


def _has_pairs(partition: Any) -> bool:
    is_keyed = class_of(partition) is ByKey
    return is_keyed and has_wide_keys(partition.types[ByKey._fields.index("game")])


@overloads(owner_of, inline=True)
def _overload_owner_of(partition, state):
    kind = class_of(partition)
    if kind is All:
        return lambda partition, state: np.int64(0)
    if kind is Range:
        return lambda partition, state: state // partition.size
    if kind is Spread:
        return lambda partition, state: _hashed(state, partition.ranks)
    if kind is Blocks:
        return lambda partition, state: _hashed(state >> partition.shift, partition.ranks)
    if kind is Held:
        return lambda partition, state: partition.owners[np.uint64(owner_of(partition.slots, state))]
    if kind is ByKey:
        return _owner_of_key
    if kind not in _FUNCTIONS:
        return None
    function = as_called_by_kernels(_FUNCTIONS[kind], False)
    return lambda partition, state: np.int64(function(state)) % partition.ranks


@overloads(has_owner, inline=True)
def _overload_has_owner(partition, state):
    kind = class_of(partition)
    if kind not in _FUNCTIONS:
        return lambda partition, state: True
    function = as_called_by_kernels(_FUNCTIONS[kind], True)
    return lambda partition, state: 0 <= np.int64(function(state)) < partition.asked


@overloads(row_of, inline=True)
def _overload_row_of(partition, state):
    kind = class_of(partition)
    if kind is All or kind is Held:
        return lambda partition, state: state
    if kind is Range:
        return lambda partition, state: state - partition.first
    if kind is ByKey:
        return lambda partition, state: row_for(partition.game, state)
    return lambda partition, state: _row_of_own(partition.words, partition.before, state)


@overloads(find_rows, inline=True)
def _overload_find_rows(partition, table, states, rows, order, n):
    if class_of(partition) is not ByKey:
        return lambda partition, table, states, rows, order, n: None

    def impl(partition, table, states, rows, order, n):
        for i in range(n):
            j = order[i]
            if rows[j] < 0:
                rows[j] = row_of(partition, state_at(states, j))
                prefetch_values(table, rows[j])

    return impl


@overloads(meet, inline=True)
def _overload_meet(partition, state):
    if class_of(partition) is not ByKey:
        return lambda partition, state: None

    def impl(partition, state):
        row_of(partition, state)

    return impl


@overloads(look_for, inline=True)
def _overload_look_for(partition, records, i):
    if class_of(partition) is not ByKey:
        return lambda partition, records, i: None
    return lambda partition, records, i: prefetch_slot(partition.game.slots, state_in(partition, records, i))


@overloads(has_room, inline=True)
def _overload_has_room(partition, walkers):
    if class_of(partition) is not ByKey:
        return lambda partition, walkers: True
    return lambda partition, walkers: has_rows(partition.game, NEW_PER_STEP * walkers)


@overloads(n_known, inline=True)
def _overload_n_known(partition):
    if class_of(partition) is not ByKey:
        return lambda partition: np.int64(0)
    return lambda partition: partition.game.known[ROWS]


@overloads(is_over, inline=True)
def _overload_is_over(partition, known):
    if class_of(partition) is not ByKey:
        return lambda partition, known: False
    return lambda partition, known: known > partition.most


@overloads(is_counted, inline=True)
def _overload_is_counted(partition):
    if class_of(partition) is not ByKey:
        return lambda partition: False
    return lambda partition: partition.most < NO_LIMIT


@overloads(state_in, inline=True)
def _overload_state_in(partition, records, i):
    if _has_pairs(partition):
        return lambda partition, records, i: pair_in(records[i], records.shape[1] - 2)
    if class_of(partition) is ByKey:
        return lambda partition, records, i: records[i, records.shape[1] - 1]
    return lambda partition, records, i: records[i, WHERE] >> STATE_SHIFT


@overloads(waiting_state, inline=True)
def _overload_waiting_state(partition, places, place):
    if _has_pairs(partition):
        return lambda partition, places, place: pair_in(places, 2 * place)
    return lambda partition, places, place: places[place]


@overloads(put_waiting, inline=True)
def _overload_put_waiting(partition, places, place, state):
    if _has_pairs(partition):
        return lambda partition, places, place, state: put_words(places, 2 * place, state)
    return lambda partition, places, place, state: put_words(places, place, state)


@overloads(put_state, inline=True)
def _overload_put_state(partition, records, i, state, low):
    def impl(partition, records, i, state, low):
        records[i, WHERE] = (state << STATE_SHIFT) | low

    def by_key(partition, records, i, state, low):
        records[i, WHERE] = low
        records[i, records.shape[1] - 1] = state

    def by_pair(partition, records, i, state, low):
        records[i, WHERE] = low
        put_words(records[i], records.shape[1] - 2, state)

    if _has_pairs(partition):
        return by_pair
    return by_key if class_of(partition) is ByKey else impl


def _owner_of_key(partition, state):
    key = as_key(partition.game.data, state)
    if not has_owner(partition.owners, key):
        partition.wrong[0] = 1
        put_words(partition.wrong, 1, state)
        return np.int64(0)
    return owner_of(partition.owners, key)


@jit_inline
def _hashed(state, ranks):
    high = mix(folded(state) ^ _KEY) >> SHIFT_32
    return np.int64((high * np.uint64(ranks)) >> SHIFT_32)


@jit_inline
def _row_of_own(words, before, state):
    return number_of(words, before, state) if words.size else np.int64(state)


def class_for(function: Callable[..., Any]) -> Any:
    """Return the class of the partitions that a user's function makes, by which kernels find it."""
    if function not in _CLASSES:
        kind = class_of_its_own(Assigned, function)
        _FUNCTIONS.setdefault(kind, function)
        _CLASSES[function] = kind
    return _CLASSES[function]
