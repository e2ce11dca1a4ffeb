"""What a learning rule says of itself, in which the numbers stand that it learns besides its tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from dist_classicrl._words import error_told
from dist_classicrl.checks import is_flag, is_real, is_row
from dist_classicrl.errors import DistClassicRLError, SettingsError

if TYPE_CHECKING:
    import numpy as np

_Kind = TypeVar("_Kind")


@dataclass(frozen=True)
class Shared:
    """Numbers that a rule learns besides its tables.

    Attributes
    ----------
    name : str
    merge : str
        What becomes of them where several workers learn. "affine": each update moves a number towards a
        target, as an entry of a table, and is merged like one. "sum": what each worker adds is added up.
        "owner": every walker keeps its own, which nobody else sees; checkpoints hold it where they hold the
        walkers.
    size : int or callable
        How many; a callable gets the hyper-parameters, the number of states and the number of actions.
    """

    name: str
    merge: Literal["affine", "sum", "owner"]
    size: int | Callable[[Any, int, int], int] = 1

    def count(self, parameters: Any, n_states: int, n_actions: int) -> int:
        """Return how many numbers these are in a problem of this size; SettingsError where it says none."""
        who = f"The size of what is shared as {self.name!r}"
        given = (parameters, n_states, n_actions)
        return _counted(who, _said(who, self.size, *given) if callable(self.size) else self.size)


@dataclass(frozen=True)
class Range:
    """What some numbers may be that a rule remembers and that stand one after the other.

    Attributes
    ----------
    name : str
        What they are, for the error that refuses a checkpoint with others.
    least, most : float
        Both are allowed.
    count : int
        How many they are.
    is_whole : bool
        Whether they are whole numbers.
    """

    name: str
    least: float
    most: float
    count: int = 1
    is_whole: bool = True


@dataclass(frozen=True)
class LearningRule:
    """A learning rule: its hyper-parameters, its jitted functions, and what others have to know of it.

    `dist_classicrl.learning.rules.kernel` says what the functions are called with, and has what they are made
    of.

    Attributes
    ----------
    name : str
        What `algorithm` calls it.
    parameters : type
        A NamedTuple of its hyper-parameters, numbers and flags with defaults, or words with `choices`. Its
        class picks the functions.
    learn : callable
        Learns from a transition.
    truth : callable, optional
        Returns what the agent's `q_table` converges to, ndarray of shape (states, actions), for a
        `TabularMDP`, hyper-parameters and `Settings`: with step sizes that fall, and every pair visited again
        and again.
    on_action : callable, optional
        Is called when an action has been chosen, before it is played: what waits for that can be learned
        then.
    preference : callable, optional
        Returns the number by which actions are compared in a state; by default the value in the first table.
        Of several tables it is their sum: "boltzmann" and "ucb" divide it by how many they are.
    is_by_value : callable, optional
        Returns whether in a state `preference` is surely the value in the first table: what the table knows
        of each row's best is then taken, and nothing compared.
    tables : tuple of str
        Names of its tables, each of states times actions. The agent's `q_table` is their mean.
    memory : callable
        Returns, for hyper-parameters, how many whole and how many real numbers a walker carries along.
    shared : tuple of Shared
    model : callable
        Returns, for hyper-parameters, states and actions, how many real numbers each worker keeps of what it
        knows of the environment. Nobody else sees them; checkpoints hold them where they hold the walkers.
    defaults : mapping of str to object
        Settings (`learning_rate`, `epsilon`) that it takes where none are given; `BUILT_IN` has them too.
    choices : mapping of str to tuple of str
        By the name of a hyper-parameter the words that it may be. Compiled functions, and those that say how
        many numbers there are, or what these may be, get the place of the word.
    check : callable, optional
        Raises a `SettingsError` if a hyper-parameter is not allowed.
    check_source : callable, optional
        Raises an error of the package if the rule cannot be right in an environment: it gets the
        hyper-parameters and a `Source`.
    can_replay : bool
        Whether `learn` may be called again with an old transition: its target must come from that alone.
    is_reproducible : bool
        Whether it gives the same table at any number of ranks in the reproducible mode.
    can_travel : bool
        Whether `learn` can be called where the values of the acted state are not: each call must `update` one
        entry, that of the action in one of the tables, towards a target from the transition, the next state's
        values and what the walker remembers, which begins with zeros again after a truncation. A rule of
        one's own is tried out before walkers travel, and refused if that state's values, visits or number
        change its target.
    waits : callable, optional
        Returns, for hyper-parameters, how many steps at most wait in what the walker remembers, the newest
        among them, until their target is known. For a rule of one table that can travel this is what lets
        `learn` and `on_action` update the entries of such steps, none, one or several a call: at most one
        more than there are steps that wait, and none after its episode.
    on_target : callable, optional
        Learns from the target of an entry where the entry is, if `learn` gives it one by `target_found`: a
        rule that can travel moves there what it shares with merge "affine". The walker's memory is not there:
        where rows are divided among ranks, a rule that has both is refused.
    whole_ranges : callable, optional
        Returns, for hyper-parameters, states and actions, a `Range` for each of the whole numbers that a
        walker carries along, or for several together, in their order. Compiled code does not look whether an
        index is inside of an array: a rule that takes one of them as an index, or as a state or an action,
        says here what it may be, and a checkpoint with another number is refused. Without, any is taken.
        In supersteps it is asked for as many states as steps may wait: there a step that waits has its place
        among these as its `state`.
    model_ranges : callable, optional
        Returns likewise what the numbers of `model` may be.
    note_masks : callable, optional
        Changes `model` where environments that are stepped tell masks: gets the model, how many states there
        are, those in which actions were chosen, int64 of shape (B,), and what was legal there, bool of shape
        (B, actions). In `learn` a rule sees the masks of next states alone, and none of where episodes begin.
    check_model : callable, optional
        Returns, for hyper-parameters, states, actions and a model whose numbers are in their ranges, which of
        them contradict each other, as the end of a sentence; "" where none do.
    idle : callable, optional
        Returns, for hyper-parameters, what plays no part with them: by the name of a setting
        (`learning_rate`, `epsilon`, `discount_factor`) or of a hyper-parameter why, as the end of a sentence
        about the rule.
    """

    name: str
    parameters: type
    learn: Any
    truth: Callable[..., np.ndarray] | None = None
    on_action: Any = None
    preference: Any = None
    is_by_value: Any = None
    tables: tuple[str, ...] = ("q",)
    memory: Callable[[Any], tuple[int, int]] = lambda parameters: (0, 0)
    shared: tuple[Shared, ...] = ()
    model: Callable[[Any, int, int], int] = lambda parameters, states, actions: 0
    defaults: Mapping[str, Any] = field(default_factory=dict)
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    check: Callable[[Any], None] | None = None
    check_source: Callable[[Any, Any], None] | None = None
    can_replay: bool = False
    is_reproducible: bool = True
    can_travel: bool = False
    waits: Callable[[Any], int] | None = None
    on_target: Any = None
    whole_ranges: Callable[[Any, int, int], Sequence[Range]] | None = None
    model_ranges: Callable[[Any, int, int], Sequence[Range]] | None = None
    note_masks: Callable[[np.ndarray, int, np.ndarray, np.ndarray], None] | None = None
    check_model: Callable[[Any, int, int, np.ndarray], str] | None = None
    idle: Callable[[Any], Mapping[str, str]] | None = None

    @property
    def usual(self) -> dict[str, Any]:
        """The hyper-parameters by name with their defaults; None where there is none."""
        known: dict[str, Any] = getattr(self.parameters, "_field_defaults", {})
        return {name: known.get(name) for name in getattr(self.parameters, "_fields", ())}

    @property
    def is_one_step(self) -> bool:
        """Whether each step moves one entry, once, with all that it takes at hand."""
        return self.waits is None and self.on_target is None

    def n_merged(self, parameters: Any, n_states: int, n_actions: int) -> int:
        """Return how many of the shared numbers are merged."""
        return sum(self.shares(parameters, n_states, n_actions, is_merged=True))

    def n_owned(self, parameters: Any, n_states: int, n_actions: int) -> int:
        """Return how many of the shared numbers each walker keeps for itself."""
        return sum(self.shares(parameters, n_states, n_actions, is_merged=False))

    def shares(self, parameters: Any, n_states: int, n_actions: int, is_merged: bool) -> list[int]:
        """Return how many numbers each `Shared` has that is merged, or that each walker keeps for itself."""
        size = self.in_numbers(parameters), n_states, n_actions
        return [one.count(*size) for one in self.shared if (one.merge != "owner") == is_merged]

    def remembered(self, parameters: Any) -> tuple[int, int]:
        """Return how many whole and real numbers a walker carries along; SettingsError where it is not so."""
        who = f"The memory of the rule {self.name!r} for {parameters}"
        given = _said(who, self.memory, self.in_numbers(parameters))
        if not is_row(given) or len(counts := tuple(given)) != 2:
            raise SettingsError(f"{who} must be two numbers, (whole, real), got {given!r}.")
        return _counted(who, counts[0]), _counted(who, counts[1])

    def modeled(self, parameters: Any, n_states: int, n_actions: int) -> int:
        """Return how many numbers each worker keeps of the environment; SettingsError where it is not so."""
        who = f"The model of the rule {self.name!r} for {parameters}"
        return _counted(who, _said(who, self.model, self.in_numbers(parameters), n_states, n_actions))

    def has_model(self, parameters: Any) -> bool:
        """Whether each worker keeps something of an environment, if that is not a small one."""
        return self.modeled(parameters, 1000, 1000) > 0

    def waiting(self, parameters: Any) -> int:
        """Return how many steps wait at most, 0 without `waits`; SettingsError where it is not so."""
        who = f"What waits by the rule {self.name!r} for {parameters}"
        return 0 if self.waits is None else _counted(who, _said(who, self.waits, self.in_numbers(parameters)))

    def playing_no_part(self, parameters: Any) -> dict[str, str]:
        """Return what `idle` says; SettingsError where it does not say why, by name."""
        if self.idle is None:
            return {}
        who = f"What plays no part (idle) by the rule {self.name!r} for {parameters}"
        given = _said(who, self.idle, parameters)
        allowed = ("learning_rate", "epsilon", "discount_factor", *self.usual)
        if not isinstance(given, Mapping) or not all(
            name in allowed and isinstance(why, str) and why for name, why in given.items()
        ):
            raise SettingsError(
                f"{who} must be a dict with a reason, as text, for some of {', '.join(allowed)}, such as "
                f'{{"epsilon": "chooses no action"}}, got {given!r}.'
            )
        return dict(given)

    def in_numbers(self, parameters: Any) -> Any:
        """Return hyper-parameters as the rule's functions take them: words as their places."""
        given = {name: getattr(parameters, name) for name in self.choices}
        places = {
            name: self.choices[name].index(word) for name, word in given.items() if isinstance(word, str)
        }
        return parameters._replace(**places) if places else parameters


def _said(who: str, function: Callable[..., Any], *given: Any) -> Any:
    """Return what a function of a rule returns; SettingsError where it raises an error of another kind."""
    try:
        return function(*given)
    except DistClassicRLError:
        raise
    except Exception as error:
        raise SettingsError(
            f"{who} is not known: its function raised {error_told(error)}. Let it return a value "
            "for these hyper-parameters, or refuse them with a SettingsError in check."
        ) from error


def _counted(who: str, given: Any) -> int:
    if not (is_flag(given) or is_real(given)) or not 0 <= given < math.inf or given != int(given):
        raise SettingsError(f"{who} must be a whole number of at least 0, got {given!r}.")
    return int(given)


def compared_by_class(kind: type[_Kind]) -> type[_Kind]:
    """Let objects of a NamedTuple be equal only if their classes are: tuples alone do not look at that."""
    kind.__eq__, kind.__ne__, kind.__hash__ = _is_same, _is_other, _hash  # type: ignore[assignment,method-assign]
    return kind


def _is_same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and list(map(_plain, one)) == list(map(_plain, other))


def _is_other(one: Any, other: Any) -> bool:
    return not _is_same(one, other)


def _hash(one: Any) -> int:
    return hash((type(one), *(getattr(value, "shape", value) for value in one)))


def _plain(value: Any) -> Any:
    """Return an array as lists, which are compared as a whole."""
    return value.tolist() if hasattr(value, "tolist") else value
