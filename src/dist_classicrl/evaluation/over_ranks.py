"""Optimal values of a model by all ranks together, for models whose action values no rank has room for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dist_classicrl.checks import checked_positive
from dist_classicrl.comm.collectives import own_communicator
from dist_classicrl.comm.rooted import RootedCollectives
from dist_classicrl.environments.function_model import process_of
from dist_classicrl.environments.model import TabularMDP
from dist_classicrl.environments.solvers.discounted import EVALUATIONS_PER_IMPROVEMENT
from dist_classicrl.environments.solvers.process import (
    MOST_SWEEPS,
    Sweeps,
    check_limits,
    checked_discount,
    error_bound,
    gives_up,
)
from dist_classicrl.environments.solvers.rows import RowsProcess
from dist_classicrl.errors import RankMismatchError, SettingsError

if TYPE_CHECKING:
    from dist_classicrl.environments.function_model import FunctionMDP

_WHAT = "all ranks to sweep over their states"


@dataclass(frozen=True, eq=False, repr=False)
class SolutionOverRanks:
    """Optimal discounted values of a model; the same on every rank.

    Attributes
    ----------
    v : ndarray of float64, shape (S,)
        0 in a state without legal actions.
    policy : ndarray of int64, shape (S,)
        A legal action that is best when states are worth `v`, within `residual`; -1 where none is legal.
    iterations : int
        Improving sweeps.
    residual : float
        A bound on the error of every entry of `v`, but for rounding.
    """

    v: np.ndarray
    policy: np.ndarray
    iterations: int
    residual: float

    def __repr__(self) -> str:
        return (
            f"SolutionOverRanks({self.v.size:,} states, values from {self.v.min():.4g} to "
            f"{self.v.max():.4g}, {self.iterations:,} iterations, residual {self.residual:.2g})"
        )


@dataclass(frozen=True)
class _Asked:
    """What is solved, which must be the same on all ranks, and the lowest reward."""

    told: str
    lowest: float


@dataclass(frozen=True)
class _Part:
    """What became of the values, or actions, of some states, and the largest change."""

    numbers: np.ndarray
    change: float


def solve_over_ranks(
    model: TabularMDP | FunctionMDP,
    discount_factor: float,
    comm: Any,
    tolerance: float = 1e-10,
    max_iterations: int = MOST_SWEEPS,
    timeout: float = 600.0,
) -> SolutionOverRanks:
    """Compute optimal values by all ranks of `comm`, each of which sweeps over its share of the states.

    Modified policy iteration. A sweep reads the values of the one before it, so the result has the same bits
    at any number of ranks. Every rank has the values and actions of all states, 32 bytes a state, and asks a
    `FunctionMDP`, of which nothing else is stored; values of pairs are kept nowhere. After each sweep the
    values go to rank 0 and back.

    Parameters
    ----------
    model : TabularMDP or FunctionMDP
        The same on every rank.
    discount_factor : float
        From 0 to below 1.
    comm : mpi4py.MPI.Comm
        Every rank of it calls this.
    tolerance : float
        Largest error of a value; above 0.
    max_iterations : int
        Improving sweeps before it gives up.
    timeout : float
        Seconds to wait for a rank that says nothing.

    Raises
    ------
    SettingsError
        An argument is outside what is allowed.
    ConvergenceError
        The sweeps were used up.
    RankMismatchError
        Ranks have different models or arguments.
    RemoteRankError, RankTimeoutError, RankLostError
        Another rank raised an exception, did not take part, or died.
    """
    seconds = checked_positive("timeout", timeout)
    own = own_communicator(comm, seconds, "call of solve_over_ranks")
    rooted = RootedCollectives.over(own, seconds)
    try:
        with rooted.operation():
            discount = checked_discount(discount_factor)
            check_limits(tolerance, max_iterations)
            if discount == 1.0:
                raise SettingsError(
                    "discount_factor is 1.0; over ranks it must be below 1, such as 0.99; for 1 use "
                    "model.solve(1.0)"
                )
            sweeps = _sweeps_of(model, discount)
            told = repr((model.fingerprint(), discount, float(tolerance), int(max_iterations)))
            everyone = rooted.share(_Asked(told, sweeps.process.lowest()), "all ranks to read the model")
        others = [rank for rank, asked in everyone.items() if asked.told != everyone[rooted.root].told]
        if others:
            raise RankMismatchError(
                f"Rank {others[0]} was given another model, discount_factor, tolerance or max_iterations "
                f"than rank {rooted.root} in solve_over_ranks(). Give all ranks the same."
            )
        sweeps.v[:-1] = min(0.0, everyone[rooted.root].lowest) / (1.0 - discount)
        return _solved(rooted, sweeps, tolerance, max_iterations)
    finally:
        rooted.close()


def _sweeps_of(model: TabularMDP | FunctionMDP, discount: float) -> Sweeps:
    process = RowsProcess.of_model(model) if isinstance(model, TabularMDP) else process_of(model)
    return Sweeps(process, discount)


def _solved(
    rooted: RootedCollectives, sweeps: Sweeps, tolerance: float, max_iterations: int
) -> SolutionOverRanks:
    n, ranks = sweeps.process.n_states, rooted.wire.size
    low, high = n * rooted.rank // ranks, n * (rooted.rank + 1) // ranks

    def swept(kernel: Callable[..., float]) -> float:
        with rooted.operation():
            change = sweeps.ahead(kernel, low, high) if high > low else 0.0
            whole = _joined(rooted, _Part(sweeps.new[low:high], change))
        sweeps.v[:-1] = whole.numbers
        return whole.change

    for iteration in range(1, max_iterations + 1):
        change = swept(sweeps.process.improve)
        residual = error_bound(change, sweeps.discount)
        if residual < tolerance or sweeps.is_rounding(change):
            with rooted.operation():
                policy = _joined(rooted, _Part(sweeps.policy[low:high], 0.0)).numbers
            return SolutionOverRanks(sweeps.v[:-1].copy(), policy.copy(), iteration, residual)
        for _ in range(EVALUATIONS_PER_IMPROVEMENT):
            swept(sweeps.process.evaluate)
    raise gives_up(sweeps.discount, change, max_iterations)


def _joined(rooted: RootedCollectives, own: _Part) -> _Part:
    """Return the parts of all ranks as one, on each of them."""
    parts = rooted.gather(own, _WHAT)
    whole = None
    if rooted.is_root:
        whole = _Part(
            np.concatenate([part.numbers for part in parts.values()]),
            max(part.change for part in parts.values()),
        )
    return rooted.tell(whole, _Part, _WHAT)
