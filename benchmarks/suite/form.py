"""The form of every figure: candidates that take turns, some rounds of them, medians and spreads."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import common

Measured = tuple[float, float]
"""What was done, in steps or solutions, and the seconds that it took."""


class LeftOutError(Exception):
    """A candidate cannot take part; the text says why."""


@dataclass(frozen=True)
class Effort:
    """How much is done for a figure.

    Attributes
    ----------
    seconds : float
        What one timed run of a candidate should take.
    rounds : int
        Timed runs of each candidate.
    policies : int
        Rounds in which candidates learn from the beginning until they have reached an aim.
    limit : float
        Seconds of learning after which a candidate that has not reached its aim gives up.
    seeds : int
        Of each learning curve.
    jobs : int
        Rounds in which each candidate is a job of several processes.
    ranks : dict of str to tuple of int
        By the number of entries of a table, on how many ranks it is learned.
    """

    name: str
    seconds: float
    rounds: int
    policies: int
    limit: float
    seeds: int
    jobs: int
    ranks: Mapping[str, tuple[int, ...]]


QUICK = Effort(
    name="quick",
    seconds=0.2,
    rounds=4,
    policies=3,
    limit=15.0,
    seeds=3,
    jobs=3,
    ranks={
        "256 entries": (1, 2, 4, 8, 32),
        "1,000,000 entries": (1, 2, 4, 8, 32),
        "100,000,000 entries": (1, 2),
    },
)
FULL = Effort(
    name="full",
    seconds=2.0,
    rounds=15,
    policies=10,
    limit=240.0,
    seeds=10,
    jobs=9,
    ranks={
        "256 entries": (1, 2, 3, 4, 8, 16, 32),
        "1,000,000 entries": (1, 2, 3, 4, 8, 16, 32),
        "100,000,000 entries": (1, 2, 4, 8),
    },
)


class Sized:
    """A candidate that does as many steps as fit into the time of a run.

    Parameters
    ----------
    run : callable
        Takes a number of steps and returns the seconds that they took.
    seconds : float
        Of a timed run. The first call grows the number of steps until a run takes a third of it at least,
        which also warms up.
    first : int
        Steps of the first run.
    """

    def __init__(self, run: Callable[[int], float], seconds: float, first: int = 1_000) -> None:
        self._run = run
        self._seconds = seconds
        self._steps = first
        self._is_sized = False

    def __call__(self, number: int) -> Measured:
        """Return steps and seconds of one run; the number of the round does not matter."""
        if not self._is_sized:
            self._run(self._steps)
            while (taken := self._run(self._steps)) < self._seconds / 3:
                self._steps = int(self._steps * min(30.0, max(2.0, self._seconds / max(taken, 1e-9))))
            self._steps = max(1, int(self._steps * self._seconds / taken))
            self._is_sized = True
        return self._steps, self._run(self._steps)


def measure(
    subject: str,
    case: str,
    unit: str,
    candidates: Mapping[str, Callable[[int], Measured]],
    rounds: int,
    warm_up: int = 1,
    **facts: Any,
) -> dict[str, Any]:
    """Let the candidates take turns, and return a row of the results.

    Parameters
    ----------
    subject, case : str
        As `options.CASES` names them.
    unit : str
        "steps/s", of which more is better, or "s", seconds for each thing done.
    candidates : mapping of str to callable
        By the names of the page. Each takes the number of the round, negative while warming up. One that
        raises `LeftOutError` is named with the reason, and the others go on.
    rounds, warm_up : int
        Rounds that count, and before them those that do not.
    **facts
        More that belongs to the row.
    """
    left_out: dict[str, str] = {}

    def figure(name: str, number: int) -> float:
        if name in left_out:
            return float("nan")
        try:
            done, seconds = candidates[name](number)
        except LeftOutError as error:
            left_out[name] = str(error)
            return float("nan")
        return done / seconds if unit == "steps/s" else seconds / done

    calls = {name: lambda number, name=name: figure(name, number) for name in candidates}
    found = common.interleave(calls, rounds, warm_up)
    figures = {name: summary(values) for name, values in found.items() if name not in left_out}
    return {
        "subject": subject,
        "case": case,
        "unit": unit,
        "figures": figures,
        "left_out": left_out,
        **facts,
    }


def table_row(
    subject: str,
    case: str,
    headers: Sequence[str],
    rows: Sequence[Sequence[Any]],
    left_out: Mapping[str, str] | None = None,
    **facts: Any,
) -> dict[str, Any]:
    """Return a row of the results that is a table of its own, with what could not be measured, and why.

    `facts` may have a "plot", see `plots`: it is drawn below the table.
    """
    table = {"headers": list(headers), "rows": [list(row) for row in rows]}
    return {"subject": subject, "case": case, "table": table, "left_out": dict(left_out or {}), **facts}


def summary(values: list[float]) -> dict[str, Any]:
    """Return the median and the spread of what some rounds gave."""
    return {
        "median": statistics.median(values),
        "lowest": min(values),
        "highest": max(values),
        "rounds": len(values),
    }
