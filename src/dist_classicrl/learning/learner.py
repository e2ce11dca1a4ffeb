"""Learners: a table, and the walkers that learn in it.

A learner owns its table. It makes a given number of steps, wherever they are asked for, and gives its table
to whoever packs maps, takes in refreshes or saves. Walkers are numbered; what one carries along besides the
table is its state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from dist_classicrl.environments.resolve import Source
from dist_classicrl.learning.rates import Rates
from dist_classicrl.learning.rules import find
from dist_classicrl.learning.state import State
from dist_classicrl.rules import LearningRule
from dist_classicrl.settings import Settings
from dist_classicrl.tables.local import LocalTable
from dist_classicrl.tables.shape import TableShape


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
    """

    key: np.uint64
    start: int
    used: int = 0


@dataclass
class Totals:
    """Episodes that ended, with the sums of their undiscounted returns and of their lengths in steps.

    And the sum of the absolute temporal-difference errors of all updates but replayed ones, before each.

    A batch of stepped environments may make transitions beyond the last lease, which are then not learned and
    not counted as steps. An episode that ended in one of them was played and is counted here.
    """

    values: np.ndarray = field(default_factory=lambda: np.zeros(4))

    def take(self) -> np.ndarray:
        """Return (episodes, returns, lengths, errors), float64 of shape (4,), and start from zero."""
        taken = self.values.copy()
        self.values[:] = 0.0
        return taken


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
        """Make `steps` steps of `stream` with one walker.

        Raises
        ------
        RewardError
            If a reward was NaN or infinite.
        ActionMaskError
            If a state was reached in which no action is legal.
        """

    def state(self, walker: int) -> State:
        """Return copies of all that the walker's next step depends on besides the table and the stream."""

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
    table : LocalTable
        New, of the size that the environment and the rule need.
    rule : LearningRule
    parameters : NamedTuple
        Its hyper-parameters.
    """

    source: Source
    settings: Settings
    rates: Rates
    table: LocalTable
    rule: LearningRule
    parameters: Any


@dataclass(frozen=True)
class LearnerKind:
    """A kind of learner.

    Attributes
    ----------
    name : str
    suits : callable
        Tells of a `Problem` whether it can be learned with this kind.
    make : callable
        Returns the learner of a `Problem`, without walkers.
    """

    name: str
    suits: Callable[[Problem], bool]
    make: Callable[[Problem], Learner]


def new_learner(
    source: Source, settings: Settings, rates: Rates, dtype: Any = np.float64, n_states: int | None = None
) -> Learner:
    """Return a learner without walkers, with a new table: of the newest kind that suits the problem.

    Parameters
    ----------
    source : Source
    settings : Settings
    rates : Rates
    dtype : numpy dtype
        Of the server's table.
    n_states : int, optional
        By default as many as the environment has; with fewer it is good for compiling only.
    """
    rule, parameters = find(settings.algorithm)
    legal = None if source.simulator is None else source.simulator.legal
    if n_states is not None and legal is not None:
        legal = np.zeros((n_states, source.n_actions), bool)
    size = (n_states or source.n_states, source.n_actions)
    with_replays = settings.replay_ratio > 0.0
    shape = TableShape(*size, len(rule.tables), rule.n_merged(parameters, *size))
    table = LocalTable(*size, np.dtype(dtype), legal, with_replays, shape)
    problem = Problem(source, settings, rates, table, rule, parameters)
    for kind in reversed(_KINDS):
        if kind.suits(problem):
            return kind.make(problem)
    raise TypeError(f"there is no kind of learner for {source.name}")


def register(kind: LearnerKind) -> LearnerKind:
    """Let a kind of learner be asked before all that are known so far."""
    _KINDS.append(kind)
    return kind


def unregister(kind: LearnerKind) -> None:
    """Ask a kind of learner no more."""
    _KINDS.remove(kind)


def _compiled(problem: Problem) -> Learner:
    from dist_classicrl.learning.compiled import CompiledLearner

    return CompiledLearner(problem)


def _stepped(problem: Problem) -> Learner:
    from dist_classicrl.learning.stepped import SteppedLearner

    return SteppedLearner(problem)


_KINDS: list[Any] = [
    LearnerKind("stepped", lambda problem: problem.source.stepped is not None, _stepped),
    LearnerKind("compiled", lambda problem: problem.source.simulator is not None, _compiled),
]
