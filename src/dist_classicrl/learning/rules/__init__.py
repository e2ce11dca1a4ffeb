"""The learning rules of the package, one file each, and how any rule is found."""

from __future__ import annotations

import dis
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from types import CodeType
from typing import Any

import numpy as np
from numba.core.errors import NumbaError

from dist_classicrl._jit import class_of_its_own, is_compiled
from dist_classicrl._words import nearest, why_not_compiled
from dist_classicrl.environments.resolve import Source
from dist_classicrl.errors import SettingsError
from dist_classicrl.rules import LearningRule, registry
from dist_classicrl.rules.learning_rule import compared_by_class
from dist_classicrl.settings import Settings
from dist_classicrl.tables.shape import TableShape

MOST_WAITING = 256
"""Steps that may wait in what a walker remembers which travels: each takes some 40 bytes of each record."""


def find(algorithm: Any) -> tuple[LearningRule, Any]:
    """Return a rule and its hyper-parameters, named in one of the ways that `registry.to_data` takes.

    SettingsError where no such rule is known, a hyper-parameter is not allowed, or a function is not compiled
    code.
    """
    data = registry.to_data(algorithm)
    name, given = (data, {}) if isinstance(data, str) else (data["name"], {**data})
    given.pop("name", None)
    rule = registry.registered(name)
    if rule is None:
        importlib.import_module(f"{__name__}.{name}")
        rule = registry.registered(name)
        assert rule is not None  # it registers itself
    for key in given:
        if key not in rule.usual:
            there = f"It has {', '.join(rule.usual)}." if rule.usual else "It has none."
            raise SettingsError(
                f"{algorithm!r} is no learning rule: {name!r} has no hyper-parameter {key!r}."
                f"{nearest(key, rule.usual)} {there}"
            )
    parameters = rule.parameters(**given)
    for function in _functions_of(rule):
        if not (function is None or is_compiled(function)):
            raise SettingsError(
                f"{function!r} of the learning rule {name!r} is not jitted. Put @rule_function of "
                f"{__name__}.kernel before it."
            )
        code = getattr(getattr(function, "py_func", function), "__code__", None)
        if code is not None and _returns_nothing(code):
            raise SettingsError(
                f"{code.co_name} of the learning rule {name!r} ({code.co_filename}, line "
                f"{code.co_firstlineno}) returns None: it has no return. Let it return what "
                f"{__name__}.kernel says: learn, on_action and on_target return what the last update gave "
                "back, or else the `learned` that they were given."
            )
    return rule, registry.checked(rule, parameters)


@lru_cache(maxsize=256)
def _returns_nothing(code: CodeType) -> bool:
    """Return whether a function returns None wherever it ends: in one word, or by a constant before."""
    words = [(each.opname, each.argval) for each in dis.get_instructions(code)]
    ends = {
        before if word == "RETURN_VALUE" else ("LOAD_CONST", value)
        for before, (word, value) in pairwise(words)
        if word in ("RETURN_VALUE", "RETURN_CONST")
    }
    return ends == {("LOAD_CONST", None)}


def for_kernels(rule: LearningRule, parameters: Any) -> tuple[LearningRule, Any]:
    """Return a rule and its hyper-parameters as compiled loops are to get them.

    A user's rule gets a class by which the machine code with its functions is found on disk, see
    `class_of_its_own`.
    """
    if rule.name in registry.BUILT_IN:
        return rule, parameters
    kind: Any = _named(rule.parameters, *_functions_of(rule))
    named = replace(rule, parameters=kind)
    registry.stand_in(named)
    return named, kind(*parameters)


@lru_cache(maxsize=64)
def _named(kind: type, *functions: Any) -> type:
    return compared_by_class(class_of_its_own(kind, *functions))


def _functions_of(rule: LearningRule) -> tuple[Any, ...]:
    return rule.learn, rule.on_action, rule.on_target, rule.preference, rule.is_by_value


@contextmanager
def compiling(rule: LearningRule) -> Iterator[None]:
    """Say of which rule of one's own the functions cannot be compiled, if they cannot."""
    try:
        yield
    except (NumbaError, NotImplementedError) as error:
        if rule.name in registry.BUILT_IN:
            raise
        code = rule.learn.py_func.__code__
        raise SettingsError(
            f"The learning rule {rule.name!r} ({code.co_filename}, line {code.co_firstlineno}) cannot be "
            f"compiled. {why_not_compiled(error)}"
        ) from error


def check_settings(settings: Settings) -> None:
    """Raise SettingsError if the rule cannot do what the other settings ask for."""
    rule, _ = find(settings.algorithm)
    if settings.replay_ratio > 0.0 and not rule.can_replay:
        raise SettingsError(
            f"replay_ratio={settings.replay_ratio:g} asks for old transitions to be learned again, which the "
            f"rule {rule.name!r} cannot do: what it learns depends on more than one transition. Write "
            'replay_ratio=0, or take a rule that can, such as "q_learning".'
        )
    if not settings.async_updates and not rule.is_reproducible:
        raise SettingsError(
            f"The rule {rule.name!r} says of itself that it has no place in the reproducible mode "
            "(async_updates=False). Write async_updates=True, or take another rule."
        )


def check_source(settings: Settings, source: Source) -> None:
    """Raise an error of the package if the rule cannot be right in this environment, or how much it keeps.

    All ranks ask before they make learners, of which a server has none.
    """
    rule, parameters = find(settings.algorithm)
    rule.remembered(parameters)
    if source.keys is None:
        size = parameters, source.n_states, source.n_actions
        rule.modeled(*size), rule.shares(*size, is_merged=True), rule.shares(*size, is_merged=False)
    if rule.check_source is not None:
        rule.check_source(parameters, source)


def why_none_travels(rule: LearningRule, parameters: Any) -> str | None:
    """Return why walkers cannot travel between the owners of rows with a rule; None where they can."""
    waits = rule.waiting(parameters)
    if rule.on_action is not None and rule.waits is None:
        return "learns when the next action is chosen (on_action), where the entry that waits is not"
    if any(one.merge != "affine" for one in rule.shared) or (rule.shared and rule.on_target is None):
        return f"shares {rule.shared[0].name}, which no state owns, and has no on_target that moves it"
    if rule.on_target is not None and (rule.waits is not None or any(rule.remembered(parameters))):
        return (
            "learns where the entry is (on_target), where what it remembers of the walker (memory) and the "
            "steps that wait are not"
        )
    if rule.has_model(parameters):
        return "keeps a model of the environment, of which each owner would see a part"
    if rule.waits is not None and len(rule.tables) > 1:
        return "lets steps wait, and has several tables"
    if waits > MOST_WAITING:
        return (
            f"lets {waits:,} steps wait, all of which would cross with each step (at most "
            f"{MOST_WAITING} may; a smaller n is nearest to it)"
        )
    if rule.waits is None and not rule.can_travel:
        return "does not say that it moves one entry a step, without a look at the acted state's values"
    return None


def contents(algorithm: Any) -> str:
    """Return what a rule has in its tables, which must be the same wherever it is registered."""
    rule, _ = find(algorithm)
    return ", ".join((*rule.tables, *(f"{one.name} ({one.merge})" for one in rule.shared)))


def named_shared(algorithm: Any, n_states: int, n_actions: int, numbers: np.ndarray) -> dict[str, np.ndarray]:
    """Return by name what a rule shares of the merged numbers, in their order."""
    rule, parameters = find(algorithm)
    merged = [one for one in rule.shared if one.merge != "owner"]
    ends = np.cumsum(rule.shares(parameters, n_states, n_actions, is_merged=True))
    return {one.name: part for one, part in zip(merged, np.split(numbers, ends), strict=False)}


def table_shape(algorithm: Any, n_states: int, n_actions: int) -> TableShape:
    """Return what a rule has in the arrays of its table, in a problem of so many states and actions."""
    rule, parameters = find(algorithm)
    n_shared = rule.n_merged(parameters, n_states, n_actions)
    return TableShape(n_states, n_actions, len(rule.tables), n_shared)
