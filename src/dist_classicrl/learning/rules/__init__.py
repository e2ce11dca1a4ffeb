"""The learning rules of the package, one file each, and how any rule is found."""

from __future__ import annotations

import importlib
from typing import Any

from dist_classicrl import rules
from dist_classicrl.errors import SettingsError
from dist_classicrl.rules import LearningRule


def find(algorithm: Any) -> tuple[LearningRule, Any]:
    """Return a rule and its hyper-parameters.

    Parameters
    ----------
    algorithm : str, NamedTuple or dict
        See `dist_classicrl.rules.to_data`.

    Raises
    ------
    SettingsError
        If no such rule is known, or a hyper-parameter is not allowed.
    """
    data = rules.to_data(algorithm)
    name, given = (data, {}) if isinstance(data, str) else (data["name"], {**data})
    given.pop("name", None)
    rule = rules.registered(name)
    if rule is None:
        importlib.import_module(f"{__name__}.{name}")
        rule = rules.registered(name)
        assert rule is not None  # it registers itself
    try:
        parameters = rule.parameters(**given)
    except TypeError as error:
        raise SettingsError(f"{algorithm!r} is no learning rule: {error}.") from error
    if rule.check is not None:
        rule.check(parameters)
    return rule, parameters
