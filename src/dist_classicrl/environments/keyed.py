"""Environments whose states are keys of 64 or 128 bits: nobody has counted them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from dist_classicrl._jit import as_called_by_kernels, jit, jit_for, overloads, stub
from dist_classicrl.environments.simulate import GAMES, CompiledSimulator, game_of, with_checks
from dist_classicrl.environments.state_keys import as_number, as_words, is_wide, state_at
from dist_classicrl.errors import OutsideSpaceError


class KeyedProcess(Protocol):
    """What a table whose states are keys has to know of an environment."""

    @property
    def name(self) -> str:
        """What it is called."""

    @property
    def n_actions(self) -> int:
        """How many actions there are."""

    @property
    def tables(self) -> Any:
        """A NamedTuple, by whose class kernels find what the process is."""

    @property
    def keys(self) -> np.dtype | None:
        """int64 or uint64, or `WIDE`."""

    @property
    def has_mask(self) -> bool:
        """Whether a function of it tells what is legal in a state."""


class Elsewhere(NamedTuple):
    """What kernels see of an environment that is stepped: they ask it nothing."""


@dataclass(frozen=True)
class PackedStates:
    """An environment that is stepped, whose observations are keys: see `KeyedProcess`."""

    name: str
    n_actions: int
    tables: Elsewhere = Elsewhere()
    keys: np.dtype = np.dtype(np.int64)
    has_mask: bool = False


@stub
def as_key(simulation, key):
    """Return a `key` as it is held, or the number of a state, in the type that a game takes."""


@stub
def no_key(simulation):
    """Return what stands in place of a key, where there is none yet."""


@stub
def may_play(simulation, key, action):
    """Return whether `action` is legal in the state of a `key` as it is held."""


@overloads(as_key, inline=True)
def _overload_as_key(simulation, key):
    game = game_of(simulation)
    if game is not None and is_wide(game.keys):
        return lambda simulation, key: key
    if game is not None and game.keys == np.uint64:
        return lambda simulation, key: np.uint64(key)
    return lambda simulation, key: np.int64(key)


@overloads(no_key, inline=True)
def _overload_no_key(simulation):
    if is_wide(game_of(simulation).keys):
        return lambda simulation: (np.uint64(0), np.uint64(0))
    return lambda simulation: np.int64(0)


@overloads(may_play)
def _overload_may_play(simulation, key, action):
    game = game_of(simulation)
    if game is None:
        return None
    if game.legal is None:
        return lambda simulation, key, action: True
    legal = as_called_by_kernels(game.legal, game.check)
    return lambda simulation, key, action: bool(legal(simulation, as_key(simulation, key), action))


@jit
def _allow(simulation, keys, allowed):
    for i in range(allowed.shape[0]):
        for action in range(allowed.shape[1]):
            allowed[i, action] = may_play(simulation, state_at(keys, i), action)


def legal_actions(simulator: CompiledSimulator, keys: np.ndarray) -> np.ndarray | None:
    """Return what is legal in the states of `keys`, bool (keys, actions); None where everything is.

    OutsideSpaceError where the game's function reads an array where it has nothing: a user may have asked for
    a key that is no state of it.
    """
    tables = simulator.tables
    if GAMES[type(tables)].legal is None:
        return None
    allowed = np.ones((keys.size, simulator.n_actions), bool)
    if jit_for(_allow, type(tables)) is not _allow:  # somebody else's game
        tables = with_checks(tables)
    allow, words = jit_for(_allow, type(tables)), as_words(keys)
    try:
        allow(tables, words, allowed)
    except IndexError as error:
        which = next(
            key for key in np.split(keys, keys.size) if _fails(allow, tables, as_words(key), allowed)
        )
        raise OutsideSpaceError(
            f"{simulator.name}: legal read an array at an index that it does not have, for the state "
            f"{as_number(which[0])}. Ask for keys that are states of the game."
        ) from error
    return allowed


def _fails(allow: Any, tables: Any, words: np.ndarray, allowed: np.ndarray) -> bool:
    try:
        allow(tables, words, allowed[:1])
    except IndexError:
        return True
    return False
