"""What can be learned in supersteps."""

from __future__ import annotations

from typing import Any

import numpy as np

from dist_classicrl.environments.resolve import Source
from dist_classicrl.errors import SettingsError
from dist_classicrl.learning.rules import find, why_none_travels
from dist_classicrl.learning.supersteps.owners import check_partition
from dist_classicrl.rules import LearningRule
from dist_classicrl.settings import Settings
from dist_classicrl.tables.large_table import FROM_ENTRIES


def names_walkers(walkers: Any, partition: Any) -> bool:
    """Whether a call says something that is about walkers, whatever that is."""
    return bool(_given(walkers, partition))


def _given(walkers: Any, partition: Any) -> dict[str, Any]:
    is_usual = isinstance(partition, str) and partition == "hash"
    given = {} if walkers is None else {"walkers": walkers}
    return given if is_usual else {**given, "partition": partition}


def check_asked(engine: str, walkers: Any, partition: Any, keys: np.dtype | None = None) -> None:
    """Raise SettingsError where `walkers` or `partition` cannot be, or would do nothing with this engine.

    `keys` is the type of states that are keys.
    """
    if walkers is not None:
        from dist_classicrl.learning.supersteps.share import check_walkers  # loads what others never need

        check_walkers(walkers)
    check_partition(partition, keys)
    if engine == "supersteps":
        return
    for name, given in _given(walkers, partition).items():
        raise SettingsError(
            f"{name}={given!r} is for tables whose rows are divided among the ranks, which the engine "
            f'{engine!r} does not do. Leave it out, or write placement="sharded" and async_updates=False.'
        )


def check_supersteps(source: Source, settings: Settings, walkers: int | None = None) -> None:
    """Raise SettingsError where an environment cannot be learned in supersteps with these settings."""
    if source.is_batch:
        raise SettingsError(
            f"{_hints_of(source)}{source.name} is a vector environment, which steps all of its environments "
            "at a time, and in supersteps each rank steps those that it has of the run's. Give the id of one "
            "environment, or a function that makes one."
        )
    if source.stepped is not None and source.make_another is None and walkers != 1:
        from dist_classicrl.learning.supersteps.stepped.share import WALKERS

        raise SettingsError(
            f"{_hints_of(source)}{source.name} is one instance, and supersteps need "
            f"walkers={walkers or WALKERS} environments, whose number is the same on any number of ranks. "
            "Give its id or a function that makes it, or write walkers=1."
        )
    if settings.on_error == "exclude":
        raise SettingsError(
            'on_error="exclude" cannot be had where rows are divided among the ranks: a rank that has failed '
            'owns rows that the others need. Write on_error="raise".'
        )
    if settings.on_failure == "replace":
        raise SettingsError(
            'on_failure="replace" cannot be had where rows are divided among the ranks: a replacement '
            'reaches the server alone, and no other owner. Write on_failure="continue".'
        )
    rule, parameters = find(settings.algorithm)
    if (why := why_none_travels(rule, parameters)) is not None:
        raise SettingsError(
            f"Walkers cannot travel between the owners of rows with the rule {rule.name!r}: it {why}. "
            f'{_way_out(source)}, take a rule such as "q_learning" or "n_step_sarsa", or, where that is true '
            "of a rule of your own, declare can_travel=True."
        )
    if rule.on_target is not None:
        _check_counted(source, rule)


def _hints_of(source: Source) -> str:
    """Return what its user should know, which may be why there are so many states; nothing, where nothing."""
    return "".join(f"{hint} As it is, " for hint in source.hints)


def _way_out(source: Source) -> str:
    """Return how the rows of this environment are not divided among ranks."""
    if source.keys is None:
        return 'Write async_updates=True or placement="replicated"'
    way = source.way_to_numbers[0].upper() + source.way_to_numbers[1:]
    if source.stepped is not None:
        return way
    return f"{way}, let one rank learn alone (async_updates=True, no walkers= or partition=)"


def _check_counted(source: Source, rule: LearningRule) -> None:
    """Raise SettingsError unless a rule that learns where the entry is can do so in this environment."""
    if source.keys is not None:
        what = "has keys as states"
    elif source.simulator is None:
        what = "is stepped in Python"
    elif source.n_states * source.n_actions >= FROM_ENTRIES:
        what = f"has {source.n_states * source.n_actions:,} pairs of states and actions"
    else:
        return
    raise SettingsError(
        f"{source.name} {what}, and the rule {rule.name!r} learns where the entry is (on_target): in "
        f"supersteps only in compiled environments of less than {FROM_ENTRIES:,} pairs whose states are "
        f'counted. {_way_out(source)}, or take a rule such as "q_learning".'
    )
