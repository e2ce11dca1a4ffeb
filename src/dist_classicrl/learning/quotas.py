"""What logical workers do in a round of the reproducible mode."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from dist_classicrl._random import keys_of


class Quota(NamedTuple):
    """What one logical worker, counted from 0, does in one round: `steps` steps from global step `start` on.

    They may be none in the last round. Their random stream has this `key`.
    """

    worker: int
    start: int
    steps: int
    key: np.uint64


class Quotas(NamedTuple):
    """Those of logical workers that follow each other, of all that play a round."""

    workers: range  # their numbers
    logical_workers: int  # how many play it
    start: int  # global step at which the round begins
    share: int  # steps of each
    more: int  # so many of the first make one more
    key: np.uint64  # the keys of all are draws of this stream

    def of(self, workers: range) -> Quotas:
        """Return those of some of the workers."""
        return self._replace(workers=workers)

    @property
    def end(self) -> int:
        """The global step after the last one of these."""
        return self._start_of(self.workers.stop)

    @property
    def total(self) -> int:
        """How many steps they make."""
        return self.end - self._start_of(self.workers.start)

    def _start_of(self, worker: int) -> int:
        return self.start + worker * self.share + min(worker, self.more)

    def each(self) -> Iterator[Quota]:
        """Yield them one by one."""
        for worker, key in zip(self.workers, keys_of(self.key, self.workers), strict=True):
            yield Quota(worker, self._start_of(worker), self.share + (worker < self.more), key)
