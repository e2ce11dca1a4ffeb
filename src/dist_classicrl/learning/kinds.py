"""Kinds of learners, and which of them learns a problem."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dist_classicrl.environments.resolve import Source
from dist_classicrl.learning import interleaved, keyed
from dist_classicrl.learning.card.cards import Card
from dist_classicrl.learning.card.plan import has_copies
from dist_classicrl.learning.compiled import CompiledLearner
from dist_classicrl.learning.learner import Learner, Problem
from dist_classicrl.learning.rates import Rates
from dist_classicrl.learning.rules import find, for_kernels, table_shape
from dist_classicrl.rules.behaviors import behavior_of, in_kernels
from dist_classicrl.settings import Settings
from dist_classicrl.tables.line_table import LineTable


@dataclass(frozen=True)
class LearnerKind:
    """A kind of learner."""

    name: str
    suits: Callable[[Problem], bool]  # whether a problem can be learned with this kind
    make: Callable[[Problem], Learner]  # the learner of a problem, without walkers


def new_learner(problem: Problem) -> Learner:
    """Return a learner without walkers, with a new table: of the newest kind that suits the problem."""
    for kind in reversed(_KINDS):
        if kind.suits(problem):
            return kind.make(problem)
    raise TypeError(f"there is no kind of learner for {problem.source.name}")


def problem_of(
    source: Source,
    settings: Settings,
    rates: Rates,
    dtype: Any = np.float64,
    n_states: int | None = None,
    is_alone: bool = False,
    rows: LineTable | None = None,
    walkers: int | None = None,
    partition: Any = "hash",
    card: Card | None = None,
) -> Problem:
    """Return what a learner is made for, see `Problem`.

    `dtype` is that of the server's table. With fewer than the environment's `n_states`, it is good for
    compiling only.
    """
    rule, parameters = for_kernels(*find(settings.algorithm))
    legal = None if source.simulator is None else source.simulator.legal
    if n_states is not None and legal is not None:
        legal = np.zeros((n_states, source.n_actions), bool)
    size = (n_states or source.n_states, source.n_actions)
    shape = table_shape(settings.algorithm, *size)
    return Problem(
        source,
        settings,
        rates,
        shape,
        np.dtype(dtype),
        legal,
        is_alone,
        rows,
        rule,
        rule.in_numbers(parameters),
        walkers,
        partition,
        in_kernels(behavior_of(settings.behavior)),
        card,
    )


def register(kind: LearnerKind) -> LearnerKind:
    """Let a kind of learner be asked before all that are known so far."""
    _KINDS.append(kind)
    return kind


def unregister(kind: LearnerKind) -> None:
    """Ask a kind of learner no more."""
    _KINDS.remove(kind)


def _stepped(problem: Problem) -> Learner:
    from dist_classicrl.learning.stepped import SteppedLearner  # needs Gymnasium

    return SteppedLearner(problem)


def _in_supersteps(problem: Problem) -> Learner:
    from dist_classicrl.learning.supersteps.learner import (
        SuperstepLearner,
    )  # as long to load as all the others

    return SuperstepLearner(problem)


def _on_card(problem: Problem) -> Learner:
    from dist_classicrl.learning.card.in_copies import InCopies  # needs numba-cuda
    from dist_classicrl.learning.card.in_one_table import InOneTable
    from dist_classicrl.learning.card.in_rows import InRows

    if has_copies(problem.shape.size, problem.rows):
        return InCopies(problem)
    return InRows(problem) if problem.is_alone else InOneTable(problem)


_KINDS: list[LearnerKind] = [
    LearnerKind("stepped", lambda problem: problem.source.stepped is not None, _stepped),
    LearnerKind("compiled", lambda problem: problem.source.simulator is not None, CompiledLearner),
    LearnerKind("interleaved", interleaved.suits, interleaved.InterleavedLearner),
    LearnerKind("keyed", keyed.suits, keyed.KeyedLearner),
    LearnerKind("supersteps", lambda problem: problem.walkers is not None, _in_supersteps),
    LearnerKind("card", lambda problem: problem.card is not None, _on_card),
]
