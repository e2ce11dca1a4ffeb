"""What a learning rule says of itself, and the rules that are known by name.

A rule of one's own joins those of the package with `register`, on every rank, before an agent is made. Its
functions are compiled code; `dist_classicrl.learning.rules` has those of the package, and what such functions
are made of.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from dist_classicrl._lazy import lazy_names
from dist_classicrl._words import counted, error_told, nearest
from dist_classicrl.checks import as_float, is_flag, is_real, is_row, is_whole, takes
from dist_classicrl.errors import DistClassicRLError, SettingsError

if TYPE_CHECKING:
    import numpy as np

BUILT_IN: Mapping[str, Mapping[str, Any]] = {
    "q_learning": {},
    "sarsa": {},
    "expected_sarsa": {},
    "double_q_learning": {},
    "n_step_sarsa": {},
    "tree_backup": {},
    "q_lambda": {},
    "sarsa_lambda": {},
    "monte_carlo": {},
    "td": {},
    "dyna_q": {},
    "prioritized_sweeping": {},
    "differential_q_learning": {},
    "ucb_q_learning": {"epsilon": 0.0},
}
"""The rules of the package, which register themselves when they are loaded, and defaults that are their own.

Others are those of `dist_classicrl.settings.Settings`."""


_HOMES = {
    name: f"dist_classicrl.learning.rules.{module}"
    for module, name in {
        "q_learning": "QLearning",
        "sarsa": "Sarsa",
        "expected_sarsa": "ExpectedSarsa",
        "double_q_learning": "DoubleQLearning",
        "n_step_sarsa": "NStepSarsa",
        "tree_backup": "TreeBackup",
        "q_lambda": "QLambda",
        "sarsa_lambda": "SarsaLambda",
        "monte_carlo": "MonteCarlo",
        "td": "TD",
        "dyna_q": "DynaQ",
        "prioritized_sweeping": "PrioritizedSweeping",
        "differential_q_learning": "DifferentialQLearning",
        "ucb_q_learning": "UCBQLearning",
    }.items()
}
_HOMES |= {
    name: "dist_classicrl.rules.behaviors"
    for name in ("UCB", "Boltzmann", "EpsilonGreedy", "EpsilonLadder", "FixedPolicy")
}
"""Where the classes of hyper-parameters live that are imported from here."""

__all__ = ["LearningRule", "Range", "Shared", "register", *_HOMES]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)


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


_FUNCTIONS = {
    "learn": 5,
    "truth": 3,
    "on_action": 6,
    "on_target": 7,
    "preference": 4,
    "is_by_value": 3,
    "memory": 1,
    "model": 3,
    "check": 1,
    "check_source": 2,
    "idle": 1,
    "waits": 1,
    "whole_ranges": 3,
    "model_ranges": 3,
    "note_masks": 4,
    "check_model": 4,
}
"""Fields of a `LearningRule` that are functions, and how many arguments they are called with."""

_known: dict[str, LearningRule] = {}
_stand_ins: dict[Any, LearningRule] = {}

_Kind = TypeVar("_Kind")


def defaults(algorithm: Any) -> Mapping[str, Any]:
    """Return the settings that an algorithm, as `to_data` takes it, has defaults of its own for."""
    data = to_data(algorithm)
    name = data if isinstance(data, str) else data["name"]
    return BUILT_IN[name] if name in BUILT_IN else _known[name].defaults


def names() -> tuple[str, ...]:
    """Return what `algorithm` may be by name."""
    return tuple(dict.fromkeys((*BUILT_IN, *_known)))


def register(rule: LearningRule) -> LearningRule:
    """Let `algorithm` be this rule, by its name or as an object of its class of hyper-parameters.

    It takes the place of one whose class was written at the same place, as where a notebook's cell is run
    again.

    Raises
    ------
    SettingsError
        If the name or the class belongs to another rule, or is none, a hyper-parameter has no default that is
        a number or a flag, or another field is not what `LearningRule` says.
    """
    if not isinstance(rule, LearningRule):
        raise SettingsError(
            f"register takes a LearningRule, got {rule!r}. Write register(LearningRule(name, parameters, "
            "learn))."
        )
    kind = rule.parameters
    is_named_tuple = isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")
    if not (isinstance(rule.name, str) and rule.name and is_named_tuple):
        raise SettingsError(
            f"The rule {rule.name!r} of {kind!r} cannot be registered: it needs a name, as text, and as "
            "parameters a class made with typing.NamedTuple."
        )
    if wrong := _wrong_field(rule):
        raise SettingsError(f"The rule {rule.name!r} cannot be registered: {wrong}.")
    is_ours = kind.__module__.split(".")[0] == __name__.split(".")[0]
    old = _known.get(rule.name, rule)
    is_anew = old.parameters is not kind and _place(old.parameters) == _place(kind)
    same_name = rule.name in BUILT_IN and not is_ours or old is not rule and not is_anew
    same_class = (of_class(kind) or rule) is not rule
    if same_name or same_class:
        # Numba knows the functions by the class, and would go on with those that it has compiled.
        anew = " To write the rule anew, write its class anew, too." if old.parameters is kind else ""
        raise SettingsError(
            f"The rule {rule.name!r} of {kind.__name__} cannot be registered: the name or the class belongs "
            f"to another. Give it others.{anew}"
        )
    lacking = [
        name
        for name, value in rule.usual.items()
        if not (is_flag(value) or is_real(value) or value in rule.choices.get(name, ()))
    ]
    if lacking:
        raise SettingsError(
            f"The rule {rule.name!r} cannot be registered: in {rule.parameters.__name__} "
            f"{', '.join(lacking)} must have a default that is a number, True or False."
        )
    usual = kind()
    if rule.idle is not None and _allows(rule, usual):
        rule.playing_no_part(usual)
    compared_by_class(kind)
    _known[rule.name] = rule
    return rule


def _wrong_field(rule: LearningRule) -> str:
    """Return which field of a rule is not what it has to be, and what that is; nothing where all are."""

    def is_names(given: Any) -> bool:
        is_text = _is_list(given) and all(isinstance(name, str) and name for name in given)
        return is_text and 0 < len(given) == len(set(given))

    for name, count in _FUNCTIONS.items():
        given = getattr(rule, name)
        may_lack = name not in ("learn", "memory", "model")
        if not (given is None and may_lack or callable(given) and takes(given, count)):
            otherwise = " or None" * may_lack
            return f"{name} must be a function of {counted(count, 'argument')}{otherwise}, got {given!r}"
    for name in ("can_replay", "is_reproducible", "can_travel"):
        given = getattr(rule, name)
        if not (is_flag(given) or is_whole(given) and given in (0, 1)):
            return f"{name} must be True or False, got {given!r}"
    if not is_names(rule.tables):
        return f'tables must be a tuple of different names, one or more, such as ("q",), got {rule.tables!r}'
    merges = ("affine", "sum", "owner")
    are_shared = _is_list(rule.shared) and all(
        isinstance(one, Shared) and isinstance(one.merge, str) and one.merge in merges for one in rule.shared
    )
    if not are_shared or rule.shared and not is_names(tuple(one.name for one in rule.shared)):
        return (
            'shared must be a tuple of Shared(name, merge) with different names, such as (Shared("gain", '
            f'"affine"),), each merge one of {", ".join(map(repr, merges))}, got {rule.shared!r}'
        )
    if not isinstance(rule.defaults, Mapping) or not {"learning_rate", "epsilon"}.issuperset(rule.defaults):
        return f"defaults must be a dict that has learning_rate or epsilon alone, got {rule.defaults!r}"
    words = rule.choices
    if not isinstance(words, Mapping) or not all(one in rule.usual and is_names(words[one]) for one in words):
        return (
            "choices must be a dict with a tuple of words for names of hyper-parameters, such as "
            f'{{"kind": ("first", "second")}}, got {words!r}'
        )
    return ""


def _allows(rule: LearningRule, parameters: Any) -> bool:
    """Return whether these hyper-parameters, such as defaults that only hold a place, may be chosen."""
    try:
        if rule.check is not None:
            rule.check(parameters)
    except SettingsError:
        return False
    return True


def _is_list(given: Any) -> bool:
    return isinstance(given, Sequence) and not isinstance(given, (str, bytes))


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


def _place(kind: type) -> tuple[str, str]:
    """Return where a class is written."""
    return kind.__module__, kind.__qualname__


def unregister(rule: LearningRule) -> None:
    """Forget a rule that was registered."""
    _known.pop(rule.name, None)


def registered(name: str) -> LearningRule | None:
    """Return the rule of this name if it has been registered."""
    return _known.get(name)


def of_class(parameters: Any) -> LearningRule | None:
    """Return the registered rule whose hyper-parameters are of this class, or None."""
    known = (rule for rule in _known.values() if rule.parameters is parameters)
    return next(known, None) or _stand_ins.get(parameters)


def stand_in(rule: LearningRule) -> None:
    """Let `of_class` return a rule for a class that stands for the one of its own."""
    _stand_ins[rule.parameters] = rule


def to_data(algorithm: Any) -> str | dict[str, Any]:
    """Return an algorithm as plain data for JSON: its name, and hyper-parameters that are not the defaults.

    Parameters
    ----------
    algorithm : str, NamedTuple or dict
        A name; the hyper-parameters of a rule; or what this function returned.

    Raises
    ------
    SettingsError
        If no such rule is known.
    """
    if isinstance(algorithm, str) and algorithm in names():
        return algorithm
    name = algorithm.get("name") if isinstance(algorithm, dict) else None
    if isinstance(name, str) and name in names():
        return dict(algorithm) if len(algorithm) > 1 else algorithm["name"]
    rule = of_class(type(algorithm))
    if rule is None:
        own = " Register a rule of your own first, on every rank."
        if isinstance(algorithm, str):
            own = nearest(algorithm.strip().lower(), names())
        if isinstance(algorithm, type) and of_class(algorithm) is not None:
            own = f" Write {algorithm.__name__}() for its usual hyper-parameters."
        raise SettingsError(
            f"algorithm must be one of {', '.join(map(repr, names()))}, got {algorithm!r}.{own}"
        )
    values = checked(rule, algorithm)._asdict()
    given = {key: value for key, value in values.items() if value != rule.usual[key]}
    return {"name": rule.name, **given} if given else rule.name


def to_register(settings: Mapping[str, Any]) -> str | None:
    """Return what to do before settings that were saved can be used, if their rule is not known, or None."""
    algorithm = settings.get("algorithm")
    name = algorithm.get("name") if isinstance(algorithm, dict) else algorithm
    if not isinstance(name, str) or name in names():
        return None
    return (
        f"its learning rule, {name[:100]!r}, is not known here. Register it first, on every rank, as the "
        "program does that learned with it; the command line knows the package's own rules only."
    )


def checked(rule: LearningRule, parameters: Any) -> Any:
    """Return a rule's hyper-parameters with numbers of the types of their defaults.

    Raises
    ------
    SettingsError
        If one is not allowed.
    """
    values = [
        _like(f"{type(parameters).__name__}: {name}", value, rule.usual[name], rule.choices.get(name, ()))
        for name, value in parameters._asdict().items()
    ]
    parameters = rule.parameters(*values)
    if rule.check is not None:
        rule.check(parameters)
    rule.playing_no_part(parameters)
    return parameters


def _like(name: str, value: Any, default: Any, words: tuple[str, ...]) -> bool | int | float | str:
    if words:
        good, kind = isinstance(value, str) and value in words, f"one of {', '.join(map(repr, words))}"
    elif is_flag(default):
        good, kind = is_flag(value), "True or False"
    elif is_whole(default):
        good, kind = is_whole(value) and -(2**63) <= value < 2**63, "a whole number of 64 bits"
    else:
        good, kind = is_real(value) and math.isfinite(as_float(value)), "a finite number"
    if not good:
        raise SettingsError(f"{name} must be {kind}, got {value!r}.")
    kept: bool | int | float | str = type(default)(value)
    return kept
