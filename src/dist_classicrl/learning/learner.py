"""Learners: a table, and the walkers that learn in it.

A learner owns its table. It makes a given number of steps, wherever they are asked for, and gives its table
to whoever packs maps, takes in refreshes or saves. Walkers are numbered; what one carries along besides the
table is its state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from dist_classicrl._steps import NEVER
from dist_classicrl.environments.resolve import Source
from dist_classicrl.errors import DivergenceError
from dist_classicrl.learning.card.cards import Card
from dist_classicrl.learning.loops import LARGEST_SUM, Stretch
from dist_classicrl.learning.rates import Rates
from dist_classicrl.learning.state import State
from dist_classicrl.rules import LearningRule
from dist_classicrl.rules.behaviors import EpsilonGreedy
from dist_classicrl.settings import Settings
from dist_classicrl.tables.line_table import LineTable
from dist_classicrl.tables.local import LocalTable
from dist_classicrl.tables.shape import OTHER_ARRAYS, TableShape


def _never() -> bool:
    return False


@dataclass
class Stream:
    """A random stream and how far it has been used: one per lease, or per round and logical worker.

    Attributes
    ----------
    key : uint64
    start : int
        Global step at which the stream begins; schedules are read from there.
    used : int
        Steps made.
    is_cut : callable
        Whether to make no more of the steps that were asked for; who makes slow ones asks between two.
    last : int
        After how many steps it ends, where that is known.
    """

    key: np.uint64
    start: int
    used: int = 0
    is_cut: Callable[[], bool] = _never
    last: int = NEVER

    def stretch(self, rates: Rates, most: int = NEVER) -> Stretch:
        """Return its next steps, to `most`, its end or where a rate is another line; they are not counted."""
        at = self.start + self.used
        step_size, epsilon, end = rates.at(at)
        return Stretch(self.key, self.used, min(most, self.last - self.used, end - at), step_size, epsilon)

    def stretches(self, steps: int, rates: Rates) -> Iterator[Stretch]:
        """Give its next `steps` in stretches over which each rate is one line, and count what was made."""
        last = self.used + steps
        while self.used < last:
            stretch = self.stretch(rates, last - self.used)
            yield stretch
            self.used += stretch.steps


@dataclass
class Totals:
    """Episodes that ended, with the sums of their undiscounted returns and of their lengths in steps.

    And the sum of the absolute temporal-difference errors of all updates but replayed ones, before each.

    A batch of stepped environments may make transitions beyond the last lease, which are then not learned and
    not counted as steps. An episode that ended in one of them was played and is counted here.
    """

    values: np.ndarray = field(default_factory=lambda: np.zeros(4))

    def take(self) -> np.ndarray:
        """Return (episodes, returns, lengths, errors), float64 of shape (4,), and start from zero.

        DivergenceError where the rewards are so large that their sums could not be added up any more.
        """
        taken = self.values.copy()
        self.values[:] = 0.0
        check_sums(taken)
        return taken


def are_sound(totals: np.ndarray) -> np.ndarray:
    """Return of each row, the last axis, whether `check_sums` would let it pass."""
    return np.asarray((np.abs(totals) <= LARGEST_SUM).all(axis=-1))


def check_sums(totals: np.ndarray) -> None:
    """Raise DivergenceError unless what `Totals` counts can still be added up."""
    if not all(abs(total) <= LARGEST_SUM for total in totals.tolist()):  # numpy takes 20 times as long
        raise DivergenceError(
            f"The sum of undiscounted returns came to {totals[1]:.3g}, that of temporal-difference errors "
            f"to {totals[3]:.3g}; allowed are {LARGEST_SUM:.3g}. Make the rewards smaller, in a wrapper "
            "for instance; or correct the learning rule, if it is one of your own, and gave such a target."
        )


TAKEN = ("q_table", "visits", "exact", "legal", "keys", *OTHER_ARRAYS)
"""Arrays that checkpoints hold besides the state of walkers."""


class Learner(Protocol):
    """What an engine trains with.

    What a stretch of steps does depends on the random stream and the position in it, not on how the stretch
    is cut into calls; in a stepped environment, as long as it is cut between whole batches.

    Attributes
    ----------
    table : LocalTable
        Its own.
    totals : Totals
        Of all its walkers.
    """

    table: LocalTable
    totals: Totals

    @property
    def quantum(self) -> int:
        """Steps that are made at once."""

    @property
    def walkers(self) -> list[int]:
        """The numbers of its walkers."""

    def add(self, number: int, source: Source, seed: int) -> None:
        """Add a walker with environments of its own, seeded with `seed`, and compile what it needs.

        One of the same number is replaced.
        """

    def learn(self, walker: int, stream: Stream, steps: int) -> None:
        """Make `steps` steps of `stream` with one walker, or fewer where the stream is cut.

        Raises
        ------
        RewardError
            If a reward was NaN or infinite.
        DivergenceError
            If rewards are so large that a return is.
        ActionMaskError
            If a state was reached in which no action is legal.
        """

    def state(self, walker: int) -> State:
        """Return copies of all that the walker's next step depends on besides the table and the stream.

        The names of the arrays are the learner's own, but for those of `TAKEN`.
        """

    def restore(self, walker: int, state: State) -> None:
        """Put a `state` back: the next steps are those that the walker would have made that gave it.

        Raises
        ------
        CheckpointError
            If no walker with these settings in this environment can have had that state.
        """

    def close(self) -> None:
        """Close the environments that were made for its walkers."""


@dataclass(frozen=True)
class Problem:
    """What a learner is made for.

    Attributes
    ----------
    source : Source
    settings : Settings
    rates : Rates
    shape : TableShape
        Of the table that the environment and the rule need.
    dtype : dtype
        Of the values that the engine keeps.
    legal : ndarray(bool) or None
        Legal actions, shape (S, A), where they are known from the state.
    is_alone : bool
        Whether the learner has the whole table to itself: nobody asks for what it learned as maps.
    rows : LineTable or None
        The table that it is to learn in.
    rule : LearningRule
    parameters : NamedTuple
        Its hyper-parameters.
    walkers : int or None
        How many episodes are under way where all rows are learned in supersteps; None: they are not.
    partition : "hash", "range" or callable
        Who owns which rows then.
    behavior : NamedTuple
        How actions are chosen, see `dist_classicrl.rules.behaviors`.
    card : Card or None
        Where it learns on a card.
    """

    source: Source
    settings: Settings
    rates: Rates
    shape: TableShape
    dtype: np.dtype
    legal: np.ndarray | None
    is_alone: bool
    rows: LineTable | None
    rule: LearningRule
    parameters: Any
    walkers: int | None = None
    partition: Any = "hash"
    behavior: Any = EpsilonGreedy()
    card: Card | None = None

    @cached_property
    def table(self) -> Any:
        """The rows, or else a new `LocalTable`, of which maps can be taken."""
        return self._table(True)

    @cached_property
    def lean_table(self) -> Any:
        """The same for learners that do without maps: there are some only if somebody may ask for them."""
        return self._table(not self.is_alone)

    def _table(self, with_maps: bool) -> Any:
        if self.rows is not None:
            return self.rows
        with_replays = self.settings.replay_ratio > 0.0
        return LocalTable(*self.shape.of_table, self.dtype, self.legal, with_replays, self.shape, with_maps)
