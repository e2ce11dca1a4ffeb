"""What can be learned in supersteps."""

from __future__ import annotations

from typing import Any

from dist_classicrl.environments.resolve import Source
from dist_classicrl.errors import SettingsError
from dist_classicrl.learning.rules import check_travels, find
from dist_classicrl.learning.supersteps.partition import check_partition
from dist_classicrl.learning.supersteps.share import check_walkers
from dist_classicrl.settings import Settings


def check_asked(engine: str, walkers: Any, partition: Any) -> None:
    """Raise SettingsError where `walkers` or `partition` cannot be, or would do nothing with this engine."""
    if walkers is not None:
        check_walkers(walkers)
    check_partition(partition)
    if engine == "supersteps":
        return
    for name, given, usual in (("walkers", walkers, None), ("partition", partition, "hash")):
        if given is not usual and given != usual:
            raise SettingsError(
                f"{name}={given!r} is for tables whose rows are divided among the ranks, which the engine "
                f'{engine!r} does not do. Leave it out, or write placement="sharded" and async_updates=False.'
            )


def check_supersteps(source: Source, settings: Settings) -> None:
    """Raise SettingsError where an environment cannot be learned in supersteps with these settings."""
    if source.simulator is None:
        raise SettingsError(
            f"Walkers that travel between the owners of rows need an environment that is compiled code, and "
            f'{source.name} is stepped in Python. Write placement="replicated".'
        )
    if settings.on_failure == "replace":
        raise SettingsError(
            'on_failure="replace" cannot be had where rows are divided among the ranks: a replacement '
            'reaches the server alone, and no other owner. Write on_failure="continue".'
        )
    check_travels(*find(settings.algorithm))
