"""Which kind of share a problem takes."""

from __future__ import annotations

from typing import Any

from dist_classicrl.learning.learner import Problem
from dist_classicrl.learning.supersteps.keyed_share import KeyedShare
from dist_classicrl.learning.supersteps.row_share import RowShare
from dist_classicrl.learning.supersteps.share import Share
from dist_classicrl.learning.supersteps.stepped.share import KeyedSteppedShare, SteppedShare


def share_of(problem: Problem, *arguments: Any, **more: Any) -> Share:
    """Return the share of a problem; arguments are those of `Share`."""
    is_keyed = problem.source.keys is not None
    if problem.source.simulator is None:
        return (KeyedSteppedShare if is_keyed else SteppedShare)(problem, *arguments, **more)
    rows: type[Share] = Share if problem.rows is None else RowShare
    return (KeyedShare if is_keyed else rows)(problem, *arguments, **more)
