"""What a rank owns of the states, by each way in which they can be divided."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numba import types
from numba.core.errors import NumbaError

from dist_classicrl._jit import is_compiled, jit, jit_for, result_type
from dist_classicrl._jit.identity import identity_of
from dist_classicrl._random import mix
from dist_classicrl._words import error_told, why_not_compiled
from dist_classicrl.environments.state_keys import PAIR, is_wide, state_at
from dist_classicrl.errors import SettingsError
from dist_classicrl.learning.supersteps.numbering import numbering, set_numbers
from dist_classicrl.learning.supersteps.partition import (
    All,
    Blocks,
    Held,
    Range,
    Spread,
    class_for,
    has_owner,
    owner_of,
)
from dist_classicrl.tables.lines import first_infinite


@dataclass(frozen=True, eq=False)
class Holding:
    """How a table is divided whose slots have these `owners`, int64, and states slots by `partition`.

    The states of a slot are blocks of at least `2**shift` states, so that their rows fill pages.
    """

    partition: Any
    owners: np.ndarray
    shift: int


@dataclass(frozen=True, eq=False)
class Written:
    """A partition that names the owners of states among so many ranks, of which some may be lost."""

    partition: Any
    ranks: int


def written(partition: Any, ranks: int) -> Written:
    """Return a partition with the ranks that it names: so many, if it is not said."""
    return partition if isinstance(partition, Written) else Written(partition, ranks)


@jit
def owners_of(partition, states, owners):
    """Fill `owners`, int64 of shape (n,), with the ranks that own `states`; or the slots, by `slots`.

    States are int64 as well; those that are keys are as `as_words` gives them.
    """
    for i in range(owners.size):
        owners[i] = owner_of(partition, state_at(states, i))


@jit
def find_own(partition, states, rank, is_own):
    """Fill `is_own`: whether `rank` owns each of these states, which are as those of `owners_of`."""
    for i in range(is_own.size):
        is_own[i] = owner_of(partition, state_at(states, i)) == rank


@jit
def _own(partition, rank, n_states, words):
    """Set the bits of the states of `rank`; return the first state that has no owner, and -1 if all have.

    Without `words` none is set.
    """
    for state in range(n_states):
        if not has_owner(partition, np.int64(state)):
            return state
        if words.size and owner_of(partition, np.int64(state)) == rank:
            set_numbers(words, state)
    return -1


@jit
def _digest_of_owners(partition, n_states):
    """Return a number that differs, but for chance, where another rank owns a state."""
    digest = np.uint64(0)
    for state in range(n_states):
        digest = mix(digest ^ np.uint64(owner_of(partition, np.int64(state))))
    return digest


def described(partition: Any, n_states: int, ranks: int) -> str:
    """Return what has to be the same on all ranks of a partition that `check_partition` has passed.

    Of a function that is which rank owns which of `n_states`; where nobody has counted these, what it does,
    as far as that can be told.
    """
    if isinstance(partition, str):
        return partition
    if n_states == 0:
        identity = identity_of(partition)
        return "a function" if identity is None else f"a function {identity[:12]}"
    arrays = owned_by(partition, n_states, 0, ranks, in_place=True).arrays
    return f"a function whose owners are {jit_for(_digest_of_owners, type(arrays))(arrays, n_states):016x}"


def check_partition(partition: Any, keys: np.dtype | None = None) -> None:
    """Raise SettingsError unless states can be divided so; `keys` is their type where they are keys."""
    is_function = callable(partition) and is_compiled(partition)
    if not (is_function or (isinstance(partition, str) and partition in ("hash", "range"))):
        raise SettingsError(
            'partition must be "hash", "range", or a function compiled with numba.njit that returns the rank '
            f"which owns a state; got {partition!r}."
        )
    if hasattr(partition, "py_func"):
        taken = types.uint64 if keys == np.uint64 else types.int64
        _check_function(partition, PAIR if is_wide(keys) else taken)


@cache
def _check_function(function: Any, taken: Any) -> None:
    """Raise SettingsError unless a jitted function takes a state of this type, and returns a whole number."""
    what = f"partition must take a state of the type {taken}, and return the rank which owns it"
    try:
        given = result_type(function, (taken,))
    except (NumbaError, TypeError) as error:
        raise SettingsError(
            f"{what}: {function.__name__} cannot be compiled for that. {why_not_compiled(error)}"
        ) from error
    if not isinstance(given, (types.Integer, types.Boolean)):
        raise SettingsError(
            f"{what}, a whole number: {function.__name__} returns {given}. Divide with //, and write "
            "np.int64(...) around the rank."
        )


@dataclass(frozen=True, eq=False)
class Owned:
    """The states of one rank: what kernels are called with, and the states by their rows.

    None: the row of a state is its number.
    """

    arrays: Any
    states: np.ndarray | None


def owned_by(
    partition: Any,
    n_states: int,
    rank: int,
    ranks: int,
    is_alone: bool = False,
    in_place: bool = False,
    keys: np.dtype | None = None,
) -> Owned:
    """Return what `rank` owns of so many states.

    `partition` is "hash", which divides them evenly, "range", or a jitted function that returns the owner of
    a state, or that as `Written`. SettingsError if it is something else, or what it returns is no rank.
    `is_alone`: there never is another rank. `in_place`: the rows of all ranks are in one table, each where
    its state is. A `Holding` is always so. `keys`: the type of states that are keys, `n_states` is 0 then.
    """
    if isinstance(partition, Holding):
        return Owned(Held(_slots_of(partition, n_states), partition.owners), None)
    given = written(partition, ranks)
    partition, asked = given.partition, given.ranks
    check_partition(partition, keys)
    is_function = not isinstance(partition, str)
    if is_alone and not is_function:
        return Owned(All(), None)
    if partition == "range":
        size = -(-n_states // ranks)
        first = min(rank * size, n_states)
        if in_place:
            return Owned(Range(size, 0), None)
        return Owned(Range(size, first), np.arange(first, min(first + size, n_states)))
    words = np.zeros(0 if in_place else -(-n_states // 64), np.uint64)
    before = np.zeros(words.size, np.int64)
    arrays: Any = Spread(ranks, words, before)
    if is_function:
        arrays = class_for(partition)(ranks, asked, words, before)
    elif in_place:
        return Owned(arrays, None)
    if keys is not None:  # nobody can list them
        return Owned(arrays, None)
    own = jit_for(_own, type(arrays))
    try:
        wrong = own(arrays, rank, n_states, words)
    except Exception as error:  # of a user's function, whatever it is
        raise SettingsError(
            f"partition must return the rank which owns a state, for each of the {n_states} states: "
            f"{partition.__name__} raised {error_told(error)}"
        ) from error
    if wrong >= 0:
        raise SettingsError(
            f"partition gives state {wrong} to {partition(wrong)!r}, which is no rank: with {asked} of them "
            f"it must return whole numbers from 0 to {asked - 1}, for each of the {n_states} states."
        )
    if in_place:
        return Owned(arrays, None)
    numbering(words, arrays.before)
    return Owned(arrays, np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")))


def _slots_of(holding: Holding, n_states: int) -> Any:
    """Return the partition that says in which slot a state is."""
    n_slots = holding.owners.size
    if holding.partition == "hash":
        return Blocks(n_slots, holding.shift)
    return owned_by(holding.partition, n_states, 0, n_slots, in_place=True).arrays


@jit
def first_infinite_own(partition, rank, table, n_rows):
    """Do what `first_infinite` does with the rows of `rank` alone: others may take no memory here."""
    for row in range(n_rows):
        if owner_of(partition, np.int64(row)) == rank:
            lost = first_infinite(table, None, row, row + 1)
            if lost >= 0:
                return lost
    return np.int64(-1)
