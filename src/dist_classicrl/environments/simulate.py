"""Compiled simulation: finite models as alias tables, and games written as two jitted functions.

A simulation is a NamedTuple of arrays. The training kernels call `begin(simulation, memory, random)` and
`advance(simulation, memory, state, action, random, n_actions)`; numba picks the code by the NamedTuple's
class, so that one kernel serves all of them and the choice costs nothing while it runs.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numba import types

from dist_classicrl._jit import (
    as_called_by_kernels,
    class_of_its_own,
    is_of_package,
    jit_inline,
    overloads,
    stub,
)
from dist_classicrl._jit.identity import unseeded_draws
from dist_classicrl.checks import WholeNumber, YesOrNo
from dist_classicrl.environments.finite_model import ArrayModel, FiniteModel
from dist_classicrl.environments.key_types import key_type
from dist_classicrl.environments.model_checks import as_array, checked_time_limit
from dist_classicrl.environments.sampling import alias
from dist_classicrl.environments.sampling.alias import ModelTables as ModelTables
from dist_classicrl.environments.sampling.function_checks import check_compiled, check_data
from dist_classicrl.environments.sampling.function_source import add_function, add_values
from dist_classicrl.environments.sampling.packing import compile_model
from dist_classicrl.environments.state_keys import (
    as_number,
    held,
    is_below,
    is_wide,
    name_of_kind,
    numbered,
    put_words,
    words_of,
)
from dist_classicrl.errors import ActionMaskError, SettingsError

logger = logging.getLogger(__name__)

_SIZE = WholeNumber(1, bits=30)
_begin_model, _advance_model = alias.begin_model, alias.advance_model
_prefetch_model = alias.prefetch_model


@stub
def begin(simulation, memory, random):
    """Return the first state of an episode, drawn with the uint64 `random`."""


@stub
def advance(simulation, memory, state, action, random, n_actions):
    """Return (next state, reward, terminated) of `action`, drawn with `random`."""


@stub
def is_wrong(simulation, state, reward, n_states):
    """Return whether `state`, as it is held, is none of `n_states`, or `reward` no finite number.

    With `n_states` 0 states are keys. Of a model it is known that neither can be: there the question costs
    nothing.
    """


@stub
def note(simulation, came, state, action):
    """Write into `came` what is about to be played, where an index of the game may be refused.

    `came` is int64 of shape (3,): the state, the action, -1 for both where an episode begins, and the state
    that was wrong. Where states may be pairs it has the shape (`CAME`,), and the pair stands behind these.
    """


_PAIR_THAT_CAME, CAME = 3, 5


@stub
def put_name(came, state):
    """Write a state into `came`."""


@overloads(put_name, inline=True)
def _overload_put_name(came, state):
    at = _PAIR_THAT_CAME if isinstance(state, types.BaseTuple) else 0
    return lambda came, state: put_words(came, at, state)


@jit_inline
def tell_wrong(came, state, action, given):
    """Write into `came` that `action` in `state` gave the state `given`, or an impossible reward."""
    put_name(came, state)
    came[1], came[2] = action, numbered(held(given))


def state_that_came(came: np.ndarray, keys: np.dtype | None) -> int:
    """Return the state in `came`, where keys have the type `keys`; None: states count."""
    if keys is None:
        return int(came[0])
    first = _PAIR_THAT_CAME if is_wide(keys) else 0
    return as_number(came[first : first + words_of(keys)].view(keys)[0])


@stub
def prefetch_outcome(simulation, state, action, random, n_actions):
    """Ask for the memory that `advance` will read for these arguments."""


@dataclass(frozen=True, repr=False)
class CompiledSimulator:
    """An environment as compiled code: what the fused training loop runs.

    Made from a `TabularMDP` by `from_model`, or from a game by `game`, which takes two functions compiled
    with ``numba.njit``::

        reset(data, memory, random) -> state
        step(data, memory, state, action, random) -> (next_state, reward, terminated)

    `data` is a NamedTuple of read-only arrays and numbers, `memory` an int64 array of `memory_size` that
    holds what the state does not tell, `random` 64 fresh uniform bits (numpy.uint64). States count from 0 to
    n_states - 1; or, where nobody has counted them, are keys: any 64 or 128 bits each. What the functions
    give is looked at in every step: a state outside of that, or a reward that is not finite, ends the
    training with an `EnvError` that tells the state, the action and what came. Some thousand steps are played
    on trial first, in which each index of the functions into an array is checked as well; with ``check=True``
    it is in all steps.

    Attributes
    ----------
    n_states, n_actions : int
        `n_states` is 0 where states are keys.
    tables : NamedTuple
        `ModelTables`, or the game's `data`.
    legal : ndarray(bool, ndim=2) or None
        Legal actions, shape (n_states, n_actions); None where all are, or a function of the game tells.
    memory_size : int
    max_episode_steps : int or None
        Steps after which an episode is truncated.
    model : TabularMDP, FunctionMDP or None
        The model, where it is known: its optimal values are what learning is judged by.
    name : str
    fingerprint : str
        Equal on two ranks only where the simulated process is the same.
    keys : dtype or None
        int64 or uint64 where states are keys, or for 128 bits a structured type of two uint64, `high` and
        `low`; None where they count.
    """

    n_states: int
    n_actions: int
    tables: Any
    legal: np.ndarray | None
    memory_size: int
    max_episode_steps: int | None
    model: FiniteModel | None
    name: str
    fingerprint: str
    keys: np.dtype | None = None

    def __repr__(self) -> str:
        states = f"{self.n_states:,} states"
        if self.keys is not None:
            states = f"keys of {name_of_kind(self.keys)} as states"
        return (
            f"CompiledSimulator({self.name!r}, {states}, {self.n_actions:,} actions, "
            f"max_episode_steps={self.max_episode_steps})"
        )

    @property
    def has_mask(self) -> bool:
        """Whether not every action is legal everywhere."""
        game = GAMES.get(type(self.tables))
        return self.legal is not None or (game is not None and game.legal is not None)

    @classmethod
    def from_model(cls, model: ArrayModel) -> CompiledSimulator:
        """Return the simulator of `model`, a `TabularMDP`."""
        return cls(
            n_states=model.n_states,
            n_actions=model.n_actions,
            tables=compile_model(model),
            legal=None if model.action_mask is None else np.ascontiguousarray(model.action_mask),
            memory_size=0,
            max_episode_steps=model.max_episode_steps,
            model=model,
            name=model.name or "TabularMDP",
            fingerprint=model.fingerprint(),
        )

    @classmethod
    def game(
        cls,
        name: str,
        n_states: int | None = None,
        n_actions: int | None = None,
        data: Any = None,
        reset: Callable[..., Any] | None = None,
        step: Callable[..., Any] | None = None,
        legal: np.ndarray | Callable[..., Any] | None = None,
        memory_size: int = 0,
        max_episode_steps: int | None = None,
        model: FiniteModel | None = None,
        check: bool = False,
        keyed: bool = False,
    ) -> CompiledSimulator:
        """Return the simulator of a jitted game, see the class.

        With ``keyed=True`` states are keys, int64 or uint64: whatever tells them apart, such as the packed
        position of a board. `n_states` and `model` are left out then, and `legal` is None or a third jitted
        function, ``legal(data, key, action) -> bool``. `step` and `legal` are given keys as uint64 where
        `reset` or `step` gives them so, else as int64. Where 64 bits are too few, a key is a pair of uint64,
        ``(high, low)``: `reset` and `step` give it, and `step` and `legal` are given it.

        Raises
        ------
        SettingsError
            If a number is not allowed.
        ModelError
            If `data` is no NamedTuple of what compiled code can read, a function is not jitted or takes other
            arguments, a key is no whole number of 64 bits and no pair of them, or `legal` is no array.
        ActionMaskError
            If `legal` has another shape than (n_states, n_actions), or holds other things than bools.
        """
        keyed = YesOrNo()("keyed", keyed)
        if keyed and (n_states is not None or model is not None):
            raise SettingsError(
                f"{name}: keyed=True means that states are not numbered, but n_states={n_states} and model="
                f"{model} were given. Leave both out; max_states= of the agent limits how many it learns."
            )
        n_states = 0 if keyed else _SIZE("n_states", n_states)
        n_actions = _SIZE("n_actions", n_actions)
        memory_size = WholeNumber(0, bits=31)("memory_size", memory_size)
        max_episode_steps = checked_time_limit(max_episode_steps)
        check = YesOrNo()("check", check)
        if model is not None and not hasattr(model, "solve"):
            raise SettingsError(
                f"{name}: model must be the TabularMDP of the same process, got {type(model).__name__}. "
                "Leave it out where there is none."
            )
        functions: dict[str, Any] = {"reset": reset, "step": step}
        if keyed and legal is not None:
            functions["legal"] = legal
        for role, function in functions.items():
            check_compiled(name, role, function)
        check_data(name, data)
        if drawn := unseeded_draws(*functions.values()):
            logger.warning(
                "%s: its functions draw by %s, which no seed of a training reaches: two runs with the same "
                "seed differ. Draw by the 64 bits that they are given as random.",
                name,
                drawn[0],
            )
        mask = None
        if legal is not None and not keyed:
            if callable(legal):
                raise ActionMaskError(
                    f"{name}: legal is a function, which only keyed=True takes. Give an array of bools, of "
                    f"the shape {(n_states, n_actions)}."
                )
            given = as_array(f"{name}: legal", legal)
            if given.shape != (n_states, n_actions):
                raise ActionMaskError(
                    f"{name}: legal has shape {given.shape}, it must be (n_states, n_actions) = "
                    f"{(n_states, n_actions)}."
                )
            if given.dtype.kind not in "biuf" or not np.isin(given, (0, 1)).all():
                raise ActionMaskError(
                    f"{name}: legal holds something other than True and False, or 1 and 0. Give an array of "
                    "bools, True where an action is legal."
                )
            mask = np.ascontiguousarray(given, dtype=bool)
        keys = key_type(name, data, **functions) if keyed else None
        numbers = (name, "keyed" if keyed else n_states, n_actions, memory_size, max_episode_steps)
        return cls(
            n_states=n_states,
            n_actions=n_actions,
            tables=_as_of(data, Game(check=check, keys=keys, **functions)),
            legal=mask,
            memory_size=memory_size,
            max_episode_steps=max_episode_steps,
            model=model,
            name=name,
            fingerprint=_game_fingerprint(numbers, data, mask, functions.values()),
            keys=keys,
        )


def _game_fingerprint(
    numbers: tuple[Any, ...], data: Any, legal: np.ndarray | None, functions: Iterable[Any]
) -> str:
    """Return a SHA-256 over a game's sizes, data, mask and functions; this package's are in its name."""
    digest = hashlib.sha256(repr(numbers).encode())
    add_values(digest, (data, legal))
    for function in functions:
        if not is_of_package(function.py_func):
            add_function(digest, function)
    return digest.hexdigest()


class Game(NamedTuple):
    """How the kernels simulate the tables of one class of NamedTuples."""

    reset: Callable[..., Any]
    step: Callable[..., Any]
    check: bool  # whether each index of them is checked
    legal: Callable[..., Any] | None = None  # of a keyed one
    keys: np.dtype | None = None  # likewise


GAMES: dict[type, Game] = {}
_OTHERS: dict[tuple[type, Game], type] = {}
"""Classes that stand in for a user's, by which kernels find one of its games."""


def _as_of(data: Any, game: Game) -> Any:
    """Return `data` as a NamedTuple of the class by which numba finds the functions of `game`."""
    given = type(data)
    if is_of_package(given):
        GAMES.setdefault(given, game)
    if GAMES.get(given) == game:
        return data
    if (given, game) not in _OTHERS:
        other = class_of_its_own(given, *game)
        GAMES.setdefault(other, game)
        _OTHERS[given, game] = other
    return _OTHERS[given, game](*data)


def with_checks(tables: Any) -> Any:
    """Return the tables of a game as those of the same one with each index checked; None for a model."""
    game = GAMES.get(type(tables))
    return None if game is None else _as_of(tables, game._replace(check=True))


def game_of(simulation):
    """Return the game of a simulation, by its numba type; None where it is no game."""
    return GAMES.get(getattr(simulation, "instance_class", None))


def _is_model(simulation):
    return getattr(simulation, "instance_class", None) is ModelTables


@overloads(begin)
def _overload_begin(simulation, memory, random):
    if _is_model(simulation):
        return _begin_model
    game = game_of(simulation)
    if game is None:
        return None
    reset = as_called_by_kernels(game.reset, game.check)

    def impl(simulation, memory, random):
        return reset(simulation, memory, random)

    return impl


@overloads(advance)
def _overload_advance(simulation, memory, state, action, random, n_actions):
    if _is_model(simulation):
        return _advance_model
    game = game_of(simulation)
    if game is None:
        return None
    step = as_called_by_kernels(game.step, game.check)

    def impl(simulation, memory, state, action, random, n_actions):
        return step(simulation, memory, state, action, random)

    return impl


@overloads(is_wrong, inline=True)
def _overload_is_wrong(simulation, state, reward, n_states):
    if _is_model(simulation):
        return lambda simulation, state, reward, n_states: False
    if game_of(simulation) is None:
        return None

    def impl(simulation, state, reward, n_states):
        # A reward that is NaN is not below anything.
        return not is_below(state, n_states) or not (abs(reward) < np.inf)

    return impl


@overloads(note, inline=True)
def _overload_note(simulation, came, state, action):
    game = game_of(simulation)
    if game is None and not _is_model(simulation):
        return None
    if game is None or not game.check:
        return lambda simulation, came, state, action: None

    def impl(simulation, came, state, action):
        put_name(came, state)
        came[1] = action

    return impl


@overloads(prefetch_outcome, inline=True)
def _overload_prefetch_outcome(simulation, state, action, random, n_actions):
    if _is_model(simulation):
        return _prefetch_model
    if game_of(simulation) is None:
        return None
    return lambda simulation, state, action, random, n_actions: None
