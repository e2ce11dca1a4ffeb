"""What the server and the workers of the reproducible mode tell each other."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from dist_classicrl.comm.envelope import Kind
from dist_classicrl.comm.messages import decode, encode, message
from dist_classicrl.engines.outcome import Counted
from dist_classicrl.engines.schedule import Pace
from dist_classicrl.learning.state import State, stack_states, unstack_states
from dist_classicrl.tables.maps import Refresh
from dist_classicrl.tables.round_merge import Parts, counts_of


class Order(IntEnum):
    """What a worker does at the beginning of a round."""

    GO_ON = 0
    TELL_STATE = 1  # of its learners, and go on
    TELL_STATE_AND_WAIT = 2


@dataclass(frozen=True)
class RoundStart:
    """What a round starts from, besides the table.

    The learners' states are stacked; there are none where learners are as new, or only their carriers know.
    """

    pace: Pace
    number: int = 0
    made: int = 0  # steps before it, of those that were to be made when this process began
    learners: dict[str, np.ndarray] = field(default_factory=dict)
    tally: Counted | None = None  # none before a server has ordered anything


@message(Kind.MERGED)
@dataclass(frozen=True)
class RoundOrder:
    """What the server tells all before a round."""

    start: RoundStart
    refresh: Refresh
    attempt: int  # how often this server has begun a round
    order: Order
    carried_by: tuple[int, ...]  # which rank plays each logical worker


@message(Kind.ROUND)
@dataclass(frozen=True)
class RoundMaps:
    """A worker's: what its logical workers, which follow each other, learned in an attempt at a round."""

    attempt: int
    steps: int  # of all of them
    learning_seconds: float
    worker_seconds: float
    totals: np.ndarray  # float64: what each adds to `Totals`, one after the other
    parts: Parts
    learners: dict[str, np.ndarray]  # stacked states afterwards; empty where rounds cannot be played again
    compressing: float = 0.0  # seconds since the last ones that compressing and restoring took

    def is_of(self, carried: range, logical_workers: int) -> bool:
        """Whether it is what whoever carries these of so many logical workers is to send."""
        counts = counts_of(carried.start, carried.stop, logical_workers)
        parts = self.parts
        return (
            parts.first == carried.start
            and parts.counts.tolist() == counts.tolist()
            and parts.is_whole
            and self.totals.size == 4 * len(carried)
        )


@message(Kind.STATE)
@dataclass(frozen=True)
class WalkerState:
    """A worker's: the state of one logical worker's learner at the beginning of an attempt at a round."""

    attempt: int
    logical: int
    state: dict[str, np.ndarray]


@message(Kind.LEARNERS)
@dataclass(frozen=True)
class Learners:
    """The stacked state of so many learners, with which a call begins."""

    count: int
    state: dict[str, np.ndarray]


def stack_by_number(states: dict[int, State]) -> State:
    """Return the state of learners as one, in the order of their numbers."""
    return stack_states([states[number] for number in sorted(states)])


def learners_message(learners: dict[int, State]) -> np.ndarray:
    """Return the state of all learners, by logical worker, as one message."""
    return encode(Learners(len(learners), stack_by_number(learners)))


def learners_of(arrived: np.ndarray) -> dict[int, State]:
    """Return what `learners_message` packed."""
    learners: Learners = decode(arrived)
    return dict(enumerate(unstack_states(learners.state, learners.count))) if learners.state else {}
