"""Values of a model by all ranks together, for models whose action values no rank has room for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dist_classicrl.checks import as_array, checked_positive
from dist_classicrl.comm.rooted import RootedCollectives, rooted_over
from dist_classicrl.environments.function_model import FunctionMDP, process_of
from dist_classicrl.environments.model import TabularMDP
from dist_classicrl.environments.solution import check_finite
from dist_classicrl.environments.solvers.discounted import EVALUATIONS_PER_IMPROVEMENT, to_optimum
from dist_classicrl.environments.solvers.policy_value import checked_actions, to_value
from dist_classicrl.environments.solvers.process import (
    MOST_SWEEPS,
    Process,
    Sweeps,
    check_limits,
    checked_discount,
)
from dist_classicrl.environments.solvers.rows import RowsProcess
from dist_classicrl.errors import RankMismatchError, SettingsError

Actions = Callable[[np.ndarray], npt.ArrayLike]
"""Takes the numbers of states, int64, shape (n,), and returns an action for each."""

_WHAT = "all ranks to sweep over their states"

_ASKED_AT_ONCE = 1 << 16  # states


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


class _SweepsOverRanks(Sweeps):
    """Sweeps of which each rank makes its part; all have the values of all states after each.

    A sweep reads the values of the one before it, so that what comes out has the same bits at any number of
    ranks.
    """

    def __init__(self, process: Process, discount: float, rooted: RootedCollectives) -> None:
        super().__init__(process, discount)
        self._rooted = rooted
        n, ranks = process.n_states, rooted.wire.size
        self.own = range(n * rooted.rank // ranks, n * (rooted.rank + 1) // ranks)

    def swept(self, kernel: Any) -> float:
        """See `Sweeps`."""
        low, high = self.own.start, self.own.stop
        with self._rooted.operation():
            change = self.ahead(kernel, low, high) if high > low else 0.0
            whole = _joined(self._rooted, _Part(self.new[low:high], change))
        self.v[:-1] = whole.numbers
        return whole.change

    def values(self) -> np.ndarray:
        """Return the values of all states; DivergenceError, on each rank, where one is beyond all numbers."""
        v = self.v[:-1].copy()
        check_finite(v)
        return v

    def joined_policy(self) -> np.ndarray:
        """Return the actions of all states, on each rank."""
        with self._rooted.operation():
            own = self.policy[self.own.start : self.own.stop]
            return _joined(self._rooted, _Part(own, 0.0)).numbers.copy()


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
    DivergenceError
        A value is beyond the numbers of float64.
    RankMismatchError
        Ranks have different models or arguments.
    RemoteRankError, RankTimeoutError, RankLostError
        Another rank raised an exception, did not take part, or died.
    """
    told = "model, discount_factor, tolerance or max_iterations in solve_over_ranks()"
    with _together(comm, timeout, "solve_over_ranks") as rooted:
        with rooted.operation():
            discount = _checked_discount(discount_factor, "model.solve(1.0)")
            check_limits(tolerance, max_iterations)
            sweeps = _SweepsOverRanks(_process_of(model), discount, rooted)
            given = (model.fingerprint(), discount, float(tolerance), int(max_iterations))
            lowest = _agree(rooted, _Asked(repr(given), sweeps.process.lowest()), told)
        sweeps.v[:-1] = min(0.0, lowest) / (1.0 - discount)
        iterations, residual = to_optimum(sweeps, EVALUATIONS_PER_IMPROVEMENT, tolerance, max_iterations)
        return SolutionOverRanks(sweeps.values(), sweeps.joined_policy(), iterations, residual)


def policy_value_over_ranks(
    model: TabularMDP | FunctionMDP,
    policy: Actions | npt.ArrayLike,
    discount_factor: float,
    comm: Any,
    timeout: float = 600.0,
) -> np.ndarray:
    """Compute a policy's values by all ranks of `comm`, each of which sweeps over its share of the states.

    For an agent, also one whose table is divided between hosts, `policy` is ``agent.predict``: each rank asks
    for the actions of its own states, and no rank has the table. Every rank has the values of all states; see
    `solve_over_ranks`.

    Parameters
    ----------
    model : TabularMDP or FunctionMDP
        The same on every rank.
    policy : callable, or ndarray of int, shape (S,)
        An action for each state, or what returns the actions of states that it is given, int64, shape (n,),
        at most 65,536 at once. Of states without legal actions it is ignored, and they are worth 0. A rank
        uses the actions of its share of the states alone.
    discount_factor : float
        From 0 to below 1.
    comm : mpi4py.MPI.Comm
        Every rank of it calls this.
    timeout : float
        Seconds to wait for a rank that says nothing.

    Returns
    -------
    ndarray of float64, shape (S,)
        The same bits on every rank, and at any number of ranks; the error is below 1e-10, but for rounding.

    Raises
    ------
    SettingsError
        An argument is outside what is allowed, or the policy takes an illegal action.
    ConvergenceError
        A million sweeps were used up.
    DivergenceError
        A value is beyond the numbers of float64.
    RankMismatchError
        Ranks have different models or discount factors.
    RemoteRankError, RankTimeoutError, RankLostError
        Another rank raised an exception, did not take part, or died.
    """
    told = "model or discount_factor in policy_value_over_ranks()"
    with _together(comm, timeout, "policy_value_over_ranks") as rooted:
        with rooted.operation():
            discount = _checked_discount(discount_factor, "model.policy_value(policy, 1.0)")
            sweeps = _SweepsOverRanks(_process_of(model), discount, rooted)
            actions = _actions_of(policy, model, sweeps.own)
            sweeps.policy[sweeps.own.start : sweeps.own.stop] = actions
            _agree(rooted, _Asked(repr((model.fingerprint(), discount)), 0.0), told)
        to_value(sweeps.under_policy())
        return sweeps.values()


@contextmanager
def _together(comm: Any, timeout: float, name: str) -> Iterator[RootedCollectives]:
    """Give what all ranks talk by in one call of a function of this module."""
    seconds = checked_positive("timeout", timeout)
    # What overflows is said of the values.
    with (
        rooted_over(comm, seconds, f"call of {name}") as (rooted, _),
        np.errstate(over="ignore", invalid="ignore"),
    ):
        yield rooted


def _checked_discount(value: Any, alone: str) -> float:
    discount = checked_discount(value)
    if discount == 1.0:
        raise SettingsError(
            f"discount_factor is 1.0; over ranks it must be below 1, such as 0.99; for 1 use {alone}"
        )
    return discount


def _process_of(model: Any) -> Process:
    if isinstance(model, TabularMDP):
        return RowsProcess.of_model(model)
    if isinstance(model, FunctionMDP):
        return process_of(model)
    raise SettingsError(f"model must be a TabularMDP or a FunctionMDP, got {model!r:.100}")


def _agree(rooted: RootedCollectives, own: _Asked, what: str) -> float:
    """Return the root's lowest reward; RankMismatchError unless all ranks were given the same."""
    everyone = rooted.share(own, "all ranks to read the model")
    of_root = everyone[rooted.root]
    others = [rank for rank, asked in everyone.items() if asked.told != of_root.told]
    if others:
        raise RankMismatchError(
            f"Rank {others[0]} was given another {what} than rank {rooted.root}. Give all ranks the same."
        )
    return of_root.lowest


def _actions_of(policy: Any, model: TabularMDP | FunctionMDP, own: range) -> np.ndarray:
    """Return the policy's actions in some states, -1 where none is legal; SettingsError for illegal ones."""
    given = None if callable(policy) else as_array("policy", policy)
    if given is not None and (given.shape != (model.n_states,) or given.dtype.kind not in "iu"):
        raise SettingsError(
            f"the policy has shape {given.shape} and dtype {given.dtype}; it must be actions, int with shape "
            f"({model.n_states},), or a function that returns the actions of states"
        )
    found = [np.zeros(0, np.int64)]
    for first in range(own.start, own.stop, _ASKED_AT_ONCE):
        part = range(first, min(first + _ASKED_AT_ONCE, own.stop))
        # The function may write to the states that it is given.
        actions = (
            as_array("what the policy returned", policy(np.arange(part.start, part.stop)))
            if given is None
            else given[part.start : part.stop]
        )
        if actions.shape != (len(part),) or actions.dtype.kind not in "iu":
            raise SettingsError(
                f"the policy returned shape {actions.shape} and dtype {actions.dtype} for {len(part)} "
                "states; it must be an action for each, int"
            )
        found.append(checked_actions(actions, model.legal_pairs(part), part))
    return np.concatenate(found)


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
