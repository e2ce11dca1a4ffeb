"""The reproducible mode's schedule: rounds of fixed quotas over a constant number of logical workers.

Everything here depends on the settings, the number of steps and the table alone, never on ranks or time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from dist_classicrl._random import stream_key
from dist_classicrl.engines.outcome import Learned
from dist_classicrl.learning.learner import Learner, Stream
from dist_classicrl.learning.quotas import Quotas
from dist_classicrl.learning.state import State, stack_states
from dist_classicrl.settings import ROUND_UPDATES, Settings
from dist_classicrl.tables import kernels
from dist_classicrl.tables.round_merge import Parts, PartSums

MOVING_LOAD = 0.5
"""N k a of a round up to which it learns nearly as much as its steps could, while values still move."""

SETTLED_LOAD = 16.0
"""Likewise once they only go up and down: then rounds cost no accuracy."""

_LONGEST = 128 * ROUND_UPDATES
LONGEST_SHARE = 32  # a round has at most one in so many of the steps made before
LOOK_GROWTH = 1.25
_STILL = 1e-4
_MOVED = 0.05
_LOOKS = 5
_LONGEST_CALL = 1 << 20


def next_quotas(settings: Settings, updates: int, start: int, steps: int, seed: int) -> Quotas:
    """Return the quotas of a round of so many updates, where `steps` are left from global step `start` on.

    There are fewer in the last round, which deals out what is left as evenly as it goes.
    """
    workers = settings.logical_workers
    share, more = divmod(min(workers * updates * settings.batch_size, steps), workers)
    key = stream_key(seed, "round", start)  # a global step belongs to one round alone
    return Quotas(range(workers), workers, start, share, more, key)


@dataclass(frozen=True)
class Pace:
    """How long the next round of a call is, and what that follows from: the rounds before and the table.

    With ``sync_frequency="auto"`` and a compiled environment rounds grow from `ROUND_UPDATES` updates of each
    logical worker: as long as the table's mean moves one way, up to an N k a of `MOVING_LOAD`, and up to
    `SETTLED_LOAD` once it goes up and down, or stands. A round at most doubles, has at most a 32nd of the
    steps that were made before, and never more than 4,096 updates.

    The mean is looked at whenever a quarter more steps have been made. It has settled when among the last
    four changes two have turned round. It moves again when none has, and the last one was more than 5 % of
    the mean size, as noise goes one way five times, too. A change of less than 0.01 % counts as a turn.
    """

    updates: int  # of each logical worker
    may_grow: bool
    made: int = 0  # steps of this call
    looked: int = 0  # how many had been made at the last look
    mean: float = 0.0  # what it saw
    ways: tuple[int, ...] = ()  # of the last changes of the mean: 1 up, -1 down, 0 neither
    is_moving: bool = True

    @classmethod
    def first(cls, settings: Settings, is_compiled: bool) -> Pace:
        """Return the pace of a call's first round."""
        if settings.sync_frequency == "auto":
            return cls(ROUND_UPDATES, is_compiled)
        return cls(int(settings.sync_frequency), False)

    def after(self, steps: int, load: float, values: np.ndarray, settings: Settings) -> Pace:
        """Return the pace after a round of so many `steps` with an N k a of `load`, merged in `values`."""
        made = self.made + steps
        if not self.may_grow:
            return replace(self, made=made)
        looks = self._look(values, made) if made >= LOOK_GROWTH * self.looked else self._looks
        most = min(_LONGEST, made // (LONGEST_SHARE * settings.logical_workers * settings.batch_size))
        wanted = 2 * self.updates
        fits = MOVING_LOAD if looks[-1] else SETTLED_LOAD
        if load * wanted > fits * self.updates:
            wanted = int(self.updates * fits / load)
        return Pace(max(ROUND_UPDATES, min(wanted, most)), True, made, *looks)

    @property
    def _looks(self) -> tuple[int, float, tuple[int, ...], bool]:
        return self.looked, self.mean, self.ways, self.is_moving

    def _look(self, values: np.ndarray, made: int) -> tuple[int, float, tuple[int, ...], bool]:
        mean, size = kernels.mean_and_size(values, 1)
        ways, change = self.ways, 0.0
        if self.looked:
            change = mean - self.mean
            ways = (*ways, 0 if abs(change) <= _STILL * size else 1 if change > 0.0 else -1)[-_LOOKS:]
        turns = sum(way == 0 or way != before for before, way in zip(ways, ways[1:], strict=False))
        moves_again = turns == 0 and len(ways) == _LOOKS and abs(change) > _MOVED * size
        return made, float(mean), ways, turns < 2 if self.is_moving else moves_again

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Pace:
        """Return what `to_dict` described."""
        return cls(**{**data, "ways": tuple(data["ways"])})

    @classmethod
    def is_described_by(cls, data: Any) -> bool:
        """Whether `data`, which was read from a file, is what `to_dict` returns."""
        model = asdict(cls(1, True))
        if not isinstance(data, dict) or set(data) != set(model):
            return False
        ways = data["ways"]
        return (
            all(type(data[name]) is type(value) for name, value in model.items() if name != "ways")
            and 0 < data["updates"] < 2**31
            and 0 <= data["looked"] <= data["made"] < 2**63
            and abs(data["mean"]) < 2.0**1023
            and isinstance(ways, list | tuple)
            and len(ways) <= _LOOKS
            and all(type(way) is int and -1 <= way <= 1 for way in ways)
        )


class RoundPlayer:
    """Lets a learner do quotas of its logical workers, and adds up what these learn.

    Entries of its parts ascend if they are to be `in_order`.
    """

    def __init__(self, learner: Learner, in_order: bool = False) -> None:
        self._learner: Any = learner
        self._in_order = in_order
        self._sums = PartSums(learner.table.q.size)
        #: Whether several walkers can be let learn by one call, see `CompiledLearner.learn_apart`.
        self._is_quick = getattr(learner, "learns_apart", False)

    def play(
        self,
        quotas: Quotas,
        goes_on: Callable[[], bool] = lambda: True,
        between_steps: Callable[[], None] = lambda: None,
    ) -> tuple[Parts, np.ndarray] | None:
        """Do quotas, each from the base of the table, which is left as it was.

        `goes_on` is called now and then; None is returned where it says no. Else what was learned, in memory
        that the next call takes, and what each of the workers adds to `Totals`: float64, shape (workers, 4).
        `between_steps` is called between two steps of an environment that is stepped: a quota may take long.
        """

        def is_cut() -> bool:
            between_steps()
            return False  # where a batch ends must not depend on time

        n_workers = len(quotas.workers)
        self._sums.begin(quotas.workers, quotas.logical_workers)
        totals = np.zeros((n_workers, 4))
        many = max(1, _LONGEST_CALL // max(1, quotas.share)) if self._is_quick else 1
        for at in range(0, n_workers, many):
            self._learn(quotas, at, min(n_workers, at + many), totals, is_cut)
            if not goes_on():
                return None
        return self._sums.parts(self._in_order), totals

    def _learn(
        self, quotas: Quotas, at: int, until: int, totals: np.ndarray, is_cut: Callable[[], bool]
    ) -> None:
        """Do those at the places from `at` to before `until`."""
        learner, sums = self._learner, self._sums
        if self._is_quick and learner.learn_apart(quotas, until, sums, totals):
            return
        for place, quota in enumerate(quotas.of(quotas.workers[at:until]).each(), at):
            learner.learn(quota.worker, Stream(quota.key, quota.start, is_cut=is_cut), quota.steps)
            sums.fold(learner.table)
            totals[place] = learner.totals.take()


def states_of(learner: Any, walkers: Sequence[int]) -> State:
    """Return the stacked states of some walkers of a learner."""
    if hasattr(learner, "states"):
        stacked: State = learner.states(walkers)
        return stacked
    return stack_states([learner.state(walker) for walker in walkers])


def sum_of(totals: np.ndarray) -> Learned:
    """Return the sum of what the logical workers of a round add to `Totals`, a row each, in their order.

    It comes without the time that it took.
    """
    return Learned.of(np.cumsum(totals, axis=0)[-1])
