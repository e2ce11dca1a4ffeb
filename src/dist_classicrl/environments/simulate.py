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

from dist_classicrl._jit import as_called_by_kernels, jit_allocating, jit_inline, overloads, prefetch
from dist_classicrl._memory import zeros
from dist_classicrl._random import SHIFT_32, below
from dist_classicrl.checks import Or, WholeNumber, YesOrNo
from dist_classicrl.environments.key_types import key_type
from dist_classicrl.errors import ActionMaskError, ModelError, SettingsError

if TYPE_CHECKING:
    from dist_classicrl.environments.model import TabularMDP

_MAX_STATES = 1 << 30
_PADDING_LIMIT = 4
_SIZE = WholeNumber(1, bits=30)
_FEW_SLOTS = 5_000  # some 5 us each in Python; to compile takes half a second, to load it 10 ms


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


class ModelTables(NamedTuple):
    """A finite model in the form of Walker's alias method (1977), as Vose (1991) builds it.

    A pair has `width` slots, or those from `first[pair]` to `first[pair + 1]` where padding would cost too
    much: as many as it has outcomes, but one for two. A slot yields outcome 0 if 32 random bits are at most
    its threshold, else outcome 1. So probabilities are met within 2**-32. A next state is stored doubled,
    plus 1 where the outcome terminates.

    All of a slot lies in 32 bytes, half a cache line, which three arrays show:
    slot j has its threshold at ``thresholds[8 * j]``, the next states of its two outcomes at
    ``outcomes[8 * j + 1]`` and the next, their rewards at ``rewards[4 * j + 2]`` and the next.
    """

    first: np.ndarray | None
    width: int
    thresholds: np.ndarray  # uint32
    outcomes: np.ndarray  # int32, of the same memory
    rewards: np.ndarray  # float64, likewise
    start_threshold: np.ndarray
    start_states: np.ndarray

    def slot(self, number: int) -> tuple[int, list[int], list[float]]:
        """Return the threshold of a slot, and the stored next states and the rewards of its outcomes."""
        at = 8 * number
        rewards = self.rewards[4 * number + 2 :][:2]
        return int(self.thresholds[at]), self.outcomes[at + 1 :][:2].tolist(), rewards.tolist()


@jit_allocating
def _alias_slots(ptr, prob, first, threshold, choice):
    """Fill `threshold` (uint32) and `choice` (slots, 2), numbers of outcomes, for each row of CSR `prob`."""
    for row in range(ptr.size - 1):
        begin_, size = ptr[row], ptr[row + 1] - ptr[row]
        offset, slots = first[row], first[row + 1] - first[row]
        if size == 0:
            continue
        if slots < size:  # one slot holds both of two outcomes
            cut = np.int64(min(prob[begin_], 1.0) * 4294967296.0)
            choice[offset, 0] = begin_ + (cut == 0)
            choice[offset, 1] = begin_ + 1
            threshold[offset] = np.uint32(max(cut, 1) - 1)
            continue
        share = np.zeros(slots)
        for i in range(size):
            share[i] = prob[begin_ + i] * slots
        small = np.empty(slots, np.int64)
        large = np.empty(slots, np.int64)
        n_small = n_large = 0
        for i in range(slots):
            choice[offset + i, 0] = begin_ + min(i, size - 1)
            choice[offset + i, 1] = begin_ + min(i, size - 1)
            threshold[offset + i] = np.uint32(0xFFFFFFFF)
            if share[i] < 1.0:
                small[n_small] = i
                n_small += 1
            elif share[i] > 1.0:
                large[n_large] = i
                n_large += 1
        while n_small > 0 and n_large > 0:
            n_small -= 1
            i, j = small[n_small], large[n_large - 1]
            choice[offset + i, 1] = begin_ + j
            cut = np.int64(share[i] * 4294967296.0)
            if cut == 0:
                choice[offset + i, 0] = begin_ + j
            else:
                threshold[offset + i] = np.uint32(cut - 1)
            share[j] -= 1.0 - share[i]
            if share[j] < 1.0:
                n_large -= 1
                small[n_small] = j
                n_small += 1
        # The shares of what is left add up to its number, and none is above 1: all are 1 but for rounding.


def _fill_slots(ptr, prob, first, threshold, choice):
    """Call `_alias_slots`; Python does few slots sooner than they are compiled."""
    in_python = getattr(_alias_slots, "py_func", _alias_slots)
    fill = in_python if threshold.size <= _FEW_SLOTS else _alias_slots
    fill(ptr, prob, first, threshold, choice)


def compile_model(model: TabularMDP) -> ModelTables:
    """Return `model` as the tables that the kernels sample from; ModelError from 2**30 states on."""
    if model.n_states >= _MAX_STATES:
        raise ModelError(f"A compiled model can have at most {_MAX_STATES - 1} states, got {model.n_states}.")
    sizes = np.diff(model.outcome_ptr)
    sizes[sizes == 2] = 1  # a slot holds two
    width = int(sizes.max())
    padded = sizes.size * width <= _PADDING_LIMIT * max(1, int(sizes.sum()))
    ends = np.arange(1, sizes.size + 1) * width if padded else np.cumsum(sizes)
    first = np.concatenate([[0], ends])
    threshold = np.zeros(int(first[-1]), np.uint32)
    choice = np.zeros((int(first[-1]), 2), np.int64)
    _fill_slots(model.outcome_ptr.copy(), model.outcome_prob.copy(), first, threshold, choice)
    target = (model.outcome_next * 2 + model.outcome_terminated).astype(np.int32)
    starts = np.flatnonzero(model.start_prob > 0.0)
    start_threshold = np.zeros(starts.size, np.uint32)
    start_choice = np.zeros((starts.size, 2), np.int64)
    bounds = np.array([0, starts.size], np.int64)
    _fill_slots(bounds, model.start_prob[starts], bounds, start_threshold, start_choice)
    slots = zeros(8 * threshold.size, np.int32)
    slots.view(np.uint32)[::8] = threshold
    slots.reshape(-1, 8)[:, 1:3] = target[choice]
    slots.view(np.float64).reshape(-1, 4)[:, 2:] = model.outcome_reward[choice]
    return ModelTables(
        first=None if padded else first,
        width=width,
        thresholds=slots.view(np.uint32),
        outcomes=slots,
        rewards=slots.view(np.float64),
        start_threshold=start_threshold,
        start_states=np.ascontiguousarray(starts[start_choice].ravel()),
    )


def _begin_model(simulation, memory, random):
    slot = np.uint64(below(random, simulation.start_threshold.size))
    other = np.uint32(random >> SHIFT_32) > simulation.start_threshold[slot]
    return simulation.start_states[np.uint64(2) * slot + np.uint64(other)]


@jit_inline
def _outcome(simulation, slot, random):
    at = np.uint64(8 * slot)  # unsigned, an index needs no check for counting from the end
    other = np.uint64(np.uint32(random >> SHIFT_32) > simulation.thresholds[at])
    target = np.int64(simulation.outcomes[at + np.uint64(1) + other])
    return target >> 1, simulation.rewards[np.uint64(4 * slot + 2) + other], (target & 1) == 1


@jit_inline
def _slot(simulation, state, action, random, n_actions):
    pair = state * n_actions + action
    return _drawn_slot(simulation.first, simulation.width, pair, random)


@jit_inline
def _drawn_slot(first, width, pair, random):
    # What may be None is an argument of a function of its own: only there numba leaves out the other branch.
    if first is None:
        return pair * width + below(random, width)
    return first[pair] + below(random, first[pair + 1] - first[pair])


def _advance_model(simulation, memory, state, action, random, n_actions):
    return _outcome(simulation, _slot(simulation, state, action, random, n_actions), random)


def _prefetch_model(simulation, state, action, random, n_actions):
    prefetch(simulation.outcomes, np.uint64(8 * _slot(simulation, state, action, random, n_actions)))


@dataclass(frozen=True, repr=False)
class CompiledSimulator:
    """An environment as compiled code: what the fused training loop runs.

    Made from a `TabularMDP` by `from_model`, or from a game by `game`, which takes two functions compiled
    with ``numba.njit``::

        reset(data, memory, random) -> state
        step(data, memory, state, action, random) -> (next_state, reward, terminated)

    `data` is a NamedTuple of read-only arrays and numbers, `memory` an int64 array of `memory_size` that
    holds what the state does not tell, `random` 64 fresh uniform bits (numpy.uint64). States count from 0 to
    n_states - 1; or, where nobody has counted them, are keys: any 64 bits each. What the functions give is
    looked at in every step: a state outside of that, or a reward that is not finite, ends the training with
    an `EnvError` that tells the state, the action and what came. Some thousand steps are played on trial
    first, in which each index of the functions into an array is checked as well; with ``check=True`` it is in
    all steps.

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
    model : TabularMDP or None
        The model, where it is known: its optimal values are what learning is judged by.
    name : str
    fingerprint : str
        Equal on two ranks only where the simulated process is the same.
    keys : dtype or None
        int64 or uint64 where states are keys; None where they count.
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
    keys: np.dtype | None = None

    def __repr__(self) -> str:
        states = f"{self.n_states:,} states" if self.keys is None else f"{self.keys} keys as states"
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
        n_states: int | None = None,
        n_actions: int | None = None,
        data: Any = None,
        reset: Callable[..., Any] | None = None,
        step: Callable[..., Any] | None = None,
        legal: np.ndarray | Callable[..., Any] | None = None,
        memory_size: int = 0,
        max_episode_steps: int | None = None,
        model: TabularMDP | None = None,
        check: bool = False,
        keyed: bool = False,
    ) -> CompiledSimulator:
        """Return the simulator of a jitted game, see the class.

        With ``keyed=True`` states are keys, int64 or uint64: whatever tells them apart, such as the packed
        position of a board. `n_states` and `model` are left out then, and `legal` is None or a third jitted
        function, ``legal(data, key, action) -> bool``. `step` and `legal` are given keys as uint64 where
        `reset` or `step` gives them so, else as int64.

        Raises
        ------
        SettingsError
            If a number is not allowed.
        ModelError
            If `data` is no NamedTuple, a function is not jitted, or a key is no 64-bit whole number.
        ActionMaskError
            If `legal` has another shape than (n_states, n_actions).
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
        max_episode_steps = Or(None, WholeNumber(1, bits=62))("max_episode_steps", max_episode_steps)
        check = YesOrNo()("check", check)
        functions: dict[str, Any] = {"reset": reset, "step": step}
        if keyed and legal is not None:
            functions["legal"] = legal
        for role, function in functions.items():
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
        mask = None
        if legal is not None and not keyed:
            if callable(legal):
                raise ActionMaskError(
                    f"{name}: legal is a function, which only keyed=True takes. Give an array of bools, of "
                    f"the shape {(n_states, n_actions)}."
                )
            mask = np.ascontiguousarray(legal, dtype=bool)
            if mask.shape != (n_states, n_actions):
                raise ActionMaskError(
                    f"{name}: legal has shape {mask.shape}, it must be (n_states, n_actions) = "
                    f"{(n_states, n_actions)}."
                )
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
            fingerprint=_game_fingerprint(numbers, data, mask),
            keys=keys,
        )


def _game_fingerprint(numbers: tuple[Any, ...], data: Any, legal: np.ndarray | None) -> str:
    """Return a SHA-256 over a game's sizes, data and mask; its functions are told by its name alone."""
    digest = hashlib.sha256(repr(numbers).encode())

    def add(value: Any) -> None:
        if isinstance(value, tuple):
            for part in value:
                add(part)
        elif isinstance(value, np.ndarray):
            digest.update(f"{value.dtype.str} {value.shape} ".encode() + value.tobytes())
        else:
            digest.update(f"{value!r} ".encode())

    add((data, legal))
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
"""Classes that stand in for a user's, which has another game already: a function that was written anew."""


def _as_of(data: Any, game: Game) -> Any:
    """Return `data` as a NamedTuple of the class by which numba finds the functions of `game`."""
    given = type(data)
    if GAMES.setdefault(given, game) == game:
        return data
    if (given, game) not in _OTHERS:
        # Not in the module of the user's class: machine code for it must not be kept on disk.
        other = type(given.__name__, (given,), {"__slots__": (), "__module__": "games"})
        GAMES[other], _OTHERS[given, game] = game, other
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
        # Unsigned, what is below 0 is large. A reward that is NaN is not below anything.
        return (np.uint64(state) >= np.uint64(n_states)) or not (abs(reward) < np.inf)

    return impl


@overloads(note, inline=True)
def _overload_note(simulation, came, state, action):
    game = game_of(simulation)
    if game is None and not _is_model(simulation):
        return None
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
    if game_of(simulation) is None:
        return None
    return lambda simulation, state, action, random, n_actions: None
