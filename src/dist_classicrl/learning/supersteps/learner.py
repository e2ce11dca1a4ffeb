"""Learning in supersteps where one process owns everything."""

from __future__ import annotations

from typing import Any

from dist_classicrl.environments.resolve import Source
from dist_classicrl.learning.learner import Problem, Stream, Totals
from dist_classicrl.learning.state import State
from dist_classicrl.learning.supersteps.crew import totals_of
from dist_classicrl.learning.supersteps.keyed_share import InKeyOrder
from dist_classicrl.learning.supersteps.shares import share_of
from dist_classicrl.learning.supersteps.stepped.share import SteppedShare


class SuperstepLearner:
    """Learns with many episodes at a time, as any number of ranks would.

    See `Learner`; to the engine all of them are one walker. A call of `learn` ends where a superstep does, as
    do the steps that are counted in the stream. What it counts is exact, and all of it in `totals`.
    """

    quantum = 1
    mode = "supersteps"

    def __init__(self, problem: Problem) -> None:
        assert problem.walkers is not None  # see `learning.kinds`
        self._share = share_of(problem, problem.walkers, problem.partition)
        self._rates = problem.rates
        self._begins: tuple[Any, int] | None = None  # environments that are stepped, and their seed
        #: A `LineTable`; one that is alone is asked to load, settle and tell what is exact, nothing else.
        self.table: Any = self._share.table if problem.source.keys is None else InKeyOrder(self._share.table)
        self.totals = Totals()
        self.walkers: list[int] = []

    def add(self, number: int, source: Source, seed: int) -> None:
        """See `Learner`."""
        self._share.compile()
        self.walkers = [number]
        if source.stepped is not None:
            self._begins = source.stepped, seed

    def learn(self, walker: int, stream: Stream, steps: int) -> None:
        """See `Learner`."""
        share = self._share
        if self._begins is not None and isinstance(share, SteppedShare):
            share.begin(*self._begins, stream.start + stream.used)
            self._begins = None
        share.learn_alone(stream, self._rates, stream.used + steps)
        share.check()
        self.totals.values[:] = totals_of(share.counted())

    def state(self, walker: int) -> State:
        """See `Learner`."""
        return self._share.state()

    def restore(self, walker: int, state: State) -> None:
        """See `Learner`."""
        self._share.restore(state)

    def close(self) -> None:
        """Do nothing: there is nothing to close."""
