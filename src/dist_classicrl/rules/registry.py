"""The rules that are known by name: those of the package, and those that were registered."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dist_classicrl._words import counted, nearest
from dist_classicrl.checks import as_float, is_flag, is_real, is_whole, takes
from dist_classicrl.errors import SettingsError
from dist_classicrl.rules.learning_rule import LearningRule, Shared, compared_by_class

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
