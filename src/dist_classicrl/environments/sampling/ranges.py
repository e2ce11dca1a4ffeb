"""Compiled work on many rows: a range of them at a time, in threads on all cores of the process."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from dist_classicrl._hints import local_size_of_environment, usable_cores
from dist_classicrl.checks import as_array
from dist_classicrl.errors import ModelError

_WORTH_A_THREAD = 1 << 15  # rows; a thread takes some 50 us to start
_RANGES_PER_CORE = 8  # so that no core waits long for the last one, and Ctrl-C for none


class Rows:
    """States that somebody asks for: row i is `states[i]`, or `first + i` where they follow each other."""

    def __init__(self, asked: range | np.ndarray | None, n_states: int) -> None:
        self.first, self.states = 0, np.zeros(0, np.int64)
        if asked is None:
            asked = range(n_states)
        if isinstance(asked, range) and asked.step == 1:
            outside = [state for state in (*asked[:1], *asked[-1:]) if not 0 <= state < n_states]
            self.first, self.n = asked.start, len(asked)
        else:
            given = as_array("states", asked, ModelError)
            if given.ndim != 1 or (given.dtype.kind not in "iu" and given.size):
                raise ModelError(
                    f"states are an array of shape {given.shape} and type {given.dtype}; give a range, or "
                    "whole numbers with one dimension"
                )
            outside = given[(given < 0) | (given >= n_states)].tolist()
            self.states, self.n = given.astype(np.int64), given.size
        if outside:
            raise ModelError(f"state {outside[0]} is asked for; states are 0 to {n_states - 1}")

    @property
    def index(self) -> slice | np.ndarray:
        """What picks these out of an array that has all states."""
        return self.states if self.states.size else slice(self.first, self.first + self.n)


def in_ranges(work: Callable[[int, int], Any], n: int, size: int | None = None) -> list[Any]:
    """Call `work(low, high)` for ranges that make up ``range(n)``; return what it returned, in their order.

    Each has `size` rows, the last one what is left; None: as many as suit the cores. It is called in threads,
    one for each core that falls to this process, which is worth it where it releases the GIL. An exception is
    that of the lowest range that had one.
    """
    cores = usable_cores() // (local_size_of_environment() or 1)
    parts = min(n // _WORTH_A_THREAD, cores * _RANGES_PER_CORE) if cores > 1 else 1
    bounds = [n * part // parts for part in range(parts + 1)] if parts > 1 else [0, n]
    if size is not None:
        bounds = [*range(0, n, size), n]
    if len(bounds) < 3 or cores < 2:
        return [work(low, high) for low, high in zip(bounds[:-1], bounds[1:], strict=True)]
    with ThreadPoolExecutor(cores) as pool:
        return list(pool.map(work, bounds[:-1], bounds[1:]))
