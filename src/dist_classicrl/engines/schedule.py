"""The reproducible mode's schedule: rounds of fixed quotas over a constant number of logical workers.

Everything here depends on the settings and the number of steps alone, never on ranks or time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dist_classicrl._random import stream_key
from dist_classicrl.learning.learner import Learner, Stream
from dist_classicrl.settings import ROUND_UPDATES, Settings
from dist_classicrl.tables.maps import PackedMap


@dataclass(frozen=True)
class Quota:
    """What one logical worker, counted from 0, does in one round: `steps` steps from global step `start` on.

    They may be none in the last round.
    """

    worker: int
    start: int
    steps: int


def round_steps(settings: Settings) -> int:
    """Return the steps of a logical worker in a full round.

    They are ``sync_frequency * batch_size``, "auto" being 32 updates.
    """
    updates = ROUND_UPDATES if settings.sync_frequency == "auto" else int(settings.sync_frequency)
    return updates * settings.batch_size


def steps_before(settings: Settings, number: int, steps: int) -> int:
    """Return how many of a call's `steps` are made before its round `number`."""
    return min(steps, number * settings.logical_workers * round_steps(settings))


def rounds(settings: Settings, start: int, steps: int) -> Iterator[list[Quota]]:
    """Yield each round's quotas, for `steps` steps from global step `start` on.

    The last round deals out what is left as evenly as it goes.
    """
    workers = settings.logical_workers
    full = workers * round_steps(settings)
    end = start + steps
    while start < end:
        share, more = divmod(min(full, end - start), workers)
        quotas = []
        for worker in range(workers):
            size = share + (worker < more)
            quotas.append(Quota(worker, start, size))
            start += size
        yield quotas


def play(quota: Quota, learner: Learner, seed: int) -> PackedMap:
    """Let a logical worker do its quota from the base of the table, left as it was; return its maps."""
    # A global step belongs to one quota alone, so it names the quota's random stream.
    stream = Stream(stream_key(seed, "round", quota.worker, quota.start), quota.start)
    learner.learn(quota.worker, stream, quota.steps)
    packed = learner.table.pack()
    learner.table.undo(packed)
    return packed
