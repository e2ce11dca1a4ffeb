"""Learning rules by name, and how one from outside the package joins them.

Nothing is compiled, and no rule imported, before it is asked for.
"""

from __future__ import annotations

import importlib
from typing import Any

from dist_classicrl.errors import SettingsError
from dist_classicrl.learning.rules.declaration import LearningRule, Shared

__all__ = ["BUILT_IN", "LearningRule", "Shared", "find", "names", "of_class", "register", "to_data"]

BUILT_IN = {"q_learning": "dist_classicrl.learning.rules.q_learning"}
"""The module of each rule of the package, whose `RULE` is its declaration."""

_known: dict[str, LearningRule] = {}


def names() -> tuple[str, ...]:
    """Return what `algorithm` may be by name."""
    return tuple({**BUILT_IN, **_known})


def register(rule: LearningRule) -> LearningRule:
    """Let `algorithm` be this rule, by its name or as an object of its class of hyper-parameters.

    Raises
    ------
    SettingsError
        If the name or the class belongs to another rule.
    """
    for name in names():
        other = _by_name(name)
        if other is not rule and (name == rule.name or other.parameters is rule.parameters):
            raise SettingsError(
                f"The rule {rule.name!r} of {rule.parameters.__name__} cannot be registered: {name!r} of "
                f"{other.parameters.__name__} is known already. Give it a name and a NamedTuple of its own."
            )
    _known[rule.name] = rule
    return rule


def find(algorithm: Any) -> tuple[LearningRule, Any]:
    """Return a rule and its hyper-parameters.

    Parameters
    ----------
    algorithm : str, NamedTuple or dict
        A name; the hyper-parameters of a known rule; or what `to_data` returned.

    Raises
    ------
    SettingsError
        If no such rule is known, or a hyper-parameter is not allowed.
    """
    if isinstance(algorithm, str) and algorithm in names():
        rule = _by_name(algorithm)
        return rule, rule.parameters()
    if isinstance(algorithm, dict) and algorithm.get("name") in names():
        rule = _by_name(algorithm["name"])
        given = {name: value for name, value in algorithm.items() if name != "name"}
        try:
            parameters = rule.parameters(**given)
        except TypeError as error:
            raise SettingsError(f"{algorithm!r} is no learning rule: {error}.") from error
    else:
        found = of_class(type(algorithm))
        if found is None:
            raise SettingsError(
                f"algorithm must be one of {', '.join(map(repr, names()))}, or the hyper-parameters of one, "
                f"got {algorithm!r}. A rule of your own has to be registered first, on every rank."
            )
        rule, parameters = found, algorithm
    if rule.check is not None:
        rule.check(parameters)
    return rule, parameters


def of_class(parameters: type | None) -> LearningRule | None:
    """Return the rule whose hyper-parameters are of this class, or None."""
    return next((rule for rule in map(_by_name, names()) if rule.parameters is parameters), None)


def to_data(algorithm: Any) -> str | dict[str, Any]:
    """Return an algorithm as plain data for JSON: its name, and hyper-parameters that are not the defaults.

    Raises
    ------
    SettingsError
        See `find`.
    """
    rule, parameters = find(algorithm)
    if parameters == rule.parameters():
        return rule.name
    return {"name": rule.name, **parameters._asdict()}


def _by_name(name: str) -> LearningRule:
    if name not in _known:
        _known[name] = importlib.import_module(BUILT_IN[name]).RULE
    return _known[name]
