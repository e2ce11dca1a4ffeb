"""What the ranks of a hand-written training loop measured, put together by interval of steps."""

from __future__ import annotations

import math

import numpy as np

COLUMNS = ("reward", "loss", "throughput", "comm_time")
"""What each rank tells of an interval, as means over the interval; NaN where it has measured nothing."""

_SUMMED = COLUMNS.index("throughput")


class LoopRecords:
    """Means over ranks, and sums of throughputs, by interval; parts may come late and in any order.

    A record is of the steps up to a multiple of `interval`.
    """

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._sums: dict[int, np.ndarray] = {}
        self._counts: dict[int, np.ndarray] = {}
        self._ranks: dict[int, int] = {}
        self._opened: dict[int, float] = {}  # those that were not logged yet, and since when

    def add(self, number: int, values: np.ndarray, now: float) -> None:
        """Take in what one rank says of the interval up to step `number` times the interval."""
        if number not in self._sums:
            self._sums[number], self._counts[number] = np.zeros((2, len(COLUMNS)))
            self._ranks[number] = 0
            self._opened[number] = now
        said = ~np.isnan(values)
        self._sums[number][said] += values[said]
        self._counts[number] += said
        self._ranks[number] += 1

    @property
    def columns(self) -> dict[str, np.ndarray]:
        """The records by column, oldest first: ``"step"``, those of `COLUMNS`, and ``"ranks"``."""
        numbers = sorted(self._sums)
        table = np.array([self._summary(number) for number in numbers]).reshape(-1, len(COLUMNS))
        columns: dict[str, np.ndarray] = {"step": np.array(numbers, np.int64) * self._interval}
        columns |= {name: table[:, i].copy() for i, name in enumerate(COLUMNS)}
        columns["ranks"] = np.array([self._ranks[number] for number in numbers], np.int64)
        return columns

    def news(self, complete: float, opened_before: float) -> list[str]:
        """Return a line for each record up to number `complete`, or older than a time, but each once."""
        lines = []
        for number, opened in sorted(self._opened.items()):
            if number > complete and opened >= opened_before:
                continue
            del self._opened[number]
            shown = dict(zip(COLUMNS, self._summary(number).tolist(), strict=True))
            lines.append(
                f"step {number * self._interval}: reward {shown['reward']:.6g}, loss {shown['loss']:.6g}, "
                f"throughput {shown['throughput']:.6g}/s, communication {shown['comm_time']:.3g} s, "
                f"{self._ranks[number]} ranks"
            )
        return lines

    def _summary(self, number: int) -> np.ndarray:
        counts = self._counts[number].copy()
        said = counts > 0
        counts[_SUMMED] = 1
        return np.divide(self._sums[number], counts, out=np.full(len(COLUMNS), math.nan), where=said)
