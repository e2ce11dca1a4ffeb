"""Compiled simulation: finite models as alias tables, and games written as two jitted functions.

A simulation is a NamedTuple of arrays. The training kernels call `begin(simulation, memory, random)` and
`advance(simulation, memory, state, action, random, n_actions)`; numba picks the code by the NamedTuple's
class, so that one kernel serves all of them and the choice costs nothing while it runs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dist_classicrl._jit import as_called_by_kernels, overloads
from dist_classicrl.checks import Or, WholeNumber, YesOrNo
from dist_classicrl.environments.sampling import alias
from dist_classicrl.environments.sampling.alias import ModelTables as ModelTables
from dist_classicrl.environments.sampling.function_source import add_values
from dist_classicrl.environments.sampling.packing import compile_model
from dist_classicrl.errors import ActionMaskError, ModelError

if TYPE_CHECKING:
    from dist_classicrl.environments.model import TabularMDP

_SIZE = WholeNumber(1, bits=30)
_begin_model, _advance_model = alias.begin_model, alias.advance_model
_prefetch_model = alias.prefetch_model


def begin(simulation, memory, random):
    """Return the first state of an episode, drawn with the uint64 `random`. Jitted code only."""
    raise NotImplementedError("begin is for jitted code")


def advance(simulation, memory, state, action, random, n_actions):
    """Return (next state, reward, terminated) of `action`, drawn with `random`. Jitted code only."""
    raise NotImplementedError("advance is for jitted code")


def is_wrong(simulation, state, reward, n_states):
    """Return whether `state` is none of `n_states`, or `reward` no finite number. Jitted code only.

    Of a model it is known that neither can be: there the question costs nothing.
    """
    raise NotImplementedError("is_wrong is for jitted code")


def note(simulation, came, state, action):
    """Write into `came` what is about to be played, where an index of the game may be refused.

    Jitted code only. `came` is int64 of shape (3,): the state, the action, -1 for both where an episode
    begins, and the state that was wrong.
    """
    raise NotImplementedError("note is for jitted code")


def prefetch_outcome(simulation, state, action, random, n_actions):
    """Ask for the memory that `advance` will read for these arguments. Jitted code only."""
    raise NotImplementedError("prefetch_outcome is for jitted code")


@dataclass(frozen=True, repr=False)
class CompiledSimulator:
    """An environment as compiled code: what the fused training loop runs.

    Made from a `TabularMDP` by `from_model`, or from a game by `game`, which takes two functions compiled
    with ``numba.njit``::

        reset(data, memory, random) -> state
        step(data, memory, state, action, random) -> (next_state, reward, terminated)

    `data` is a NamedTuple of read-only arrays and numbers, `memory` an int64 array of `memory_size` that
    holds what the state does not tell, `random` 64 fresh uniform bits (numpy.uint64). States count from 0 to
    n_states - 1. What they give is looked at in every step: a state outside of that, or a reward that is not
    finite, ends the training with an `EnvError` that tells the state, the action and what came. Some thousand
    steps are played on trial first, in which each index of `reset` and `step` into an array is checked as
    well; with ``check=True`` it is in all steps.

    Attributes
    ----------
    n_states, n_actions : int
    tables : NamedTuple
        `ModelTables`, or the game's `data`.
    legal : ndarray(bool, ndim=2) or None
        Legal actions, shape (n_states, n_actions); None where all are.
    memory_size : int
    max_episode_steps : int or None
        Steps after which an episode is truncated.
    model : TabularMDP or None
        The model, where it is known: its optimal values are what learning is judged by.
    name : str
    fingerprint : str
        Equal on two ranks only where the simulated process is the same.
    """

    n_states: int
    n_actions: int
    tables: Any
    legal: np.ndarray | None
    memory_size: int
    max_episode_steps: int | None
    model: TabularMDP | None
    name: str
    fingerprint: str

    def __repr__(self) -> str:
        return (
            f"CompiledSimulator({self.name!r}, {self.n_states:,} states, {self.n_actions:,} actions, "
            f"max_episode_steps={self.max_episode_steps})"
        )

    @classmethod
    def from_model(cls, model: TabularMDP) -> CompiledSimulator:
        """Return the simulator of `model`."""
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
        n_states: int,
        n_actions: int,
        data: Any,
        reset: Callable[..., Any],
        step: Callable[..., Any],
        legal: np.ndarray | None = None,
        memory_size: int = 0,
        max_episode_steps: int | None = None,
        model: TabularMDP | None = None,
        check: bool = False,
    ) -> CompiledSimulator:
        """Return the simulator of a jitted game, see the class.

        Raises
        ------
        SettingsError
            If a number is not allowed.
        ModelError
            If `data` is no NamedTuple, or a function is not jitted.
        ActionMaskError
            If `legal` has another shape than (n_states, n_actions).
        """
        n_states = _SIZE("n_states", n_states)
        n_actions = _SIZE("n_actions", n_actions)
        memory_size = WholeNumber(0, bits=31)("memory_size", memory_size)
        max_episode_steps = Or(None, WholeNumber(1, bits=62))("max_episode_steps", max_episode_steps)
        check = YesOrNo()("check", check)
        for role, function in (("reset", reset), ("step", step)):
            if not hasattr(function, "py_func"):
                raise ModelError(
                    f"{name}: {role} must be compiled with numba.njit, got {function!r}. Put @numba.njit "
                    "above it."
                )
        if not (isinstance(data, tuple) and hasattr(data, "_fields")):
            raise ModelError(
                f"{name}: data must be a NamedTuple of arrays and numbers (typing.NamedTuple), got "
                f"{type(data).__name__}."
            )
        if legal is not None:
            legal = np.ascontiguousarray(legal, dtype=bool)
            if legal.shape != (n_states, n_actions):
                raise ActionMaskError(
                    f"{name}: legal has shape {legal.shape}, it must be (n_states, n_actions) = "
                    f"{(n_states, n_actions)}."
                )
        return cls(
            n_states=n_states,
            n_actions=n_actions,
            tables=_as_of(data, Game(reset, step, check)),
            legal=legal,
            memory_size=memory_size,
            max_episode_steps=max_episode_steps,
            model=model,
            name=name,
            fingerprint=_game_fingerprint(
                (name, n_states, n_actions, memory_size, max_episode_steps), data, legal
            ),
        )


def _game_fingerprint(numbers: tuple[Any, ...], data: Any, legal: np.ndarray | None) -> str:
    """Return a SHA-256 over a game's sizes, data and mask; its functions are told by its name alone."""
    digest = hashlib.sha256(repr(numbers).encode())
    add_values(digest, (data, legal))
    return digest.hexdigest()


class Game(NamedTuple):
    """How the kernels simulate the tables of one class of NamedTuples."""

    reset: Callable[..., Any]
    step: Callable[..., Any]
    check: bool  # whether each index of the two is checked


_GAMES: dict[type, Game] = {}
_OTHERS: dict[tuple[type, Game], type] = {}
"""Classes that stand in for a user's, which has another game already: a function that was written anew."""


def _as_of(data: Any, game: Game) -> Any:
    """Return `data` as a NamedTuple of the class by which numba finds the functions of `game`."""
    given = type(data)
    if _GAMES.setdefault(given, game) == game:
        return data
    if (given, game) not in _OTHERS:
        # Not in the module of the user's class: machine code for it must not be kept on disk.
        other = type(given.__name__, (given,), {"__slots__": (), "__module__": "games"})
        _GAMES[other], _OTHERS[given, game] = game, other
    return _OTHERS[given, game](*data)


def with_checks(tables: Any) -> Any:
    """Return the tables of a game as those of the same one with each index checked; None for a model."""
    game = _GAMES.get(type(tables))
    return None if game is None else _as_of(tables, game._replace(check=True))


def _game_of(simulation):
    return _GAMES.get(getattr(simulation, "instance_class", None))


def _is_model(simulation):
    return getattr(simulation, "instance_class", None) is ModelTables


@overloads(begin)
def _overload_begin(simulation, memory, random):
    if _is_model(simulation):
        return _begin_model
    game = _game_of(simulation)
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
    game = _game_of(simulation)
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

    def impl(simulation, state, reward, n_states):
        # Unsigned, what is below 0 is large. A reward that is NaN is not below anything.
        return (np.uint64(state) >= np.uint64(n_states)) or not (abs(reward) < np.inf)

    return impl


@overloads(note, inline=True)
def _overload_note(simulation, came, state, action):
    game = _game_of(simulation)
    if game is None or not game.check:
        return lambda simulation, came, state, action: None

    def impl(simulation, came, state, action):
        came[0] = state
        came[1] = action

    return impl


@overloads(prefetch_outcome, inline=True)
def _overload_prefetch_outcome(simulation, state, action, random, n_actions):
    if _is_model(simulation):
        return _prefetch_model
    return lambda simulation, state, action, random, n_actions: None
