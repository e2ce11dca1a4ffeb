"""A model with arrays as solvers read it: rows of outcomes, and the sweeps over them.

Values have an entry more than there are states: the last one, `v[S]`, is what follows the end of an episode.
It is 0, but for average rewards, where an episode that ends begins anew.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from dist_classicrl._jit import compiled_for, jit
from dist_classicrl.environments import reachability
from dist_classicrl.environments.finite_model import ArrayModel
from dist_classicrl.environments.sampling.ranges import in_ranges


class OngoingRows(NamedTuple):
    """Rows (pairs, or states of a chain) with their mean reward and the outcomes that go on."""

    pointer: np.ndarray  # int64 (R + 1,): row r goes on with the outcomes pointer[r] to pointer[r + 1] - 1
    weight: np.ndarray  # float64 (C,): their probabilities
    follow: np.ndarray  # int32, int64 for many states, (C,): the states that they reach; S: the end, if kept
    reward: np.ndarray  # float64 (R,): mean reward of a row, transitions that terminate included
    ends: np.ndarray  # float64 (R,): probability of ending, what those lack to 1; 0 where ends are kept

    @classmethod
    def of_rows(
        cls,
        row: np.ndarray,
        n_rows: int,
        weight: np.ndarray,
        outcome: np.ndarray | slice,
        model: ArrayModel,
        keep_ends: bool = False,
    ) -> OngoingRows:
        """Gather outcomes of `model` into rows; `row` never falls, and `weight` is positive.

        To `keep_ends`, outcomes that terminate are gathered, too, as such that reach state S, and so are
        those that reach a state without legal actions.
        """
        S = model.n_states
        terminated = model.outcome_terminated[outcome]
        follow = model.outcome_next[outcome].astype(np.int32 if S < 2**31 - 1 else np.int64)
        reward = np.bincount(row, weights=weight * model.outcome_reward[outcome], minlength=n_rows)
        ends: np.ndarray = np.zeros(n_rows)
        if keep_ends:
            stuck = ~np.any(model.legal_pairs(), axis=1)
            follow[terminated | stuck[follow]] = S
        elif terminated.any():
            ends = np.bincount(row[terminated], weights=weight[terminated], minlength=n_rows)
            going = ~terminated
            row, weight, follow = row[going], weight[going], follow[going]
        return cls(reachability.row_pointer(row, n_rows), weight, follow, reward, ends)

    def chosen(self, rows: np.ndarray) -> OngoingRows:
        """Return some of these rows, which lie together then; -1 is one without outcomes and reward."""
        is_there = rows >= 0
        there = rows[is_there]
        elements = reachability.elements_of(self.pointer, there)
        pointer = np.zeros(rows.size + 1, np.int64)
        np.cumsum(np.where(is_there, self.pointer[rows + 1] - self.pointer[rows], 0), out=pointer[1:])
        reward, ends = np.zeros((2, rows.size))
        reward[is_there], ends[is_there] = self.reward[there], self.ends[there]
        return OngoingRows(pointer, self.weight[elements], self.follow[elements], reward, ends)


@jit
def improve(
    rows: OngoingRows,
    legal: np.ndarray,
    low: int,
    high: int,
    discount: float,
    v: np.ndarray,
    new: np.ndarray,
    policy: np.ndarray,
) -> float:
    """Write the values and actions that are best when states are worth `v`; return the largest change.

    For the states from `low` to `high` - 1; `new` may be `v` (Gauss-Seidel). `legal` has shape (S, A). Where
    no action is legal the value is 0, and the policy stays as it is.
    """
    n_actions = legal.shape[1]
    change = 0.0
    for s in range(low, high):
        best = -np.inf
        for a in range(n_actions):
            if legal[s, a]:
                row = s * n_actions + a
                future = 0.0
                for o in range(rows.pointer[row], rows.pointer[row + 1]):
                    future += rows.weight[o] * v[rows.follow[o]]
                value = rows.reward[row] + discount * future
                if value > best:
                    best = value
                    policy[s] = a
        if best == -np.inf:
            best = 0.0
        change = max(change, abs(best - v[s]))
        new[s] = best
    return change


@jit
def evaluate(
    rows: OngoingRows,
    n_actions: int,
    low: int,
    high: int,
    discount: float,
    v: np.ndarray,
    new: np.ndarray,
    policy: np.ndarray,
) -> float:
    """Do what `improve` does, with the actions of a policy; where it is -1 the value stays."""
    change = 0.0
    for s in range(low, high):
        value = v[s]
        if policy[s] >= 0:
            row = s * n_actions + policy[s]
            future = 0.0
            for o in range(rows.pointer[row], rows.pointer[row + 1]):
                future += rows.weight[o] * v[rows.follow[o]]
            value = rows.reward[row] + discount * future
            change = max(change, abs(value - v[s]))
        new[s] = value
    return change


@jit
def values(
    rows: OngoingRows, legal: np.ndarray, low: int, high: int, discount: float, v: np.ndarray, q: np.ndarray
) -> None:
    """Write the value of each legal pair of the states, and 0 for others."""
    n_actions = legal.shape[1]
    for s in range(low, high):
        for a in range(n_actions):
            row = s * n_actions + a
            future = 0.0
            for o in range(rows.pointer[row], rows.pointer[row + 1]):
                future += rows.weight[o] * v[rows.follow[o]]
            q[s, a] = rows.reward[row] + discount * future if legal[s, a] else 0.0


class RowsProcess:
    """What solvers ask of a model, by its rows: see `Process`."""

    def __init__(self, rows: OngoingRows, legal: np.ndarray) -> None:
        self.rows, self.legal = rows, legal
        self.n_states, self.n_actions = legal.shape

    @classmethod
    def of_model(cls, model: ArrayModel, keep_ends: bool = False) -> RowsProcess:
        """Return the process of a model; see `OngoingRows` for the ends."""
        legal = model.legal_pairs()
        pair = reachability.rows_of(model.outcome_ptr)
        rows = OngoingRows.of_rows(pair, legal.size, model.outcome_prob, slice(None), model, keep_ends)
        return cls(rows, legal)

    @classmethod
    def of_chain(cls, chain: OngoingRows) -> RowsProcess:
        """Return a process with one action."""
        return cls(chain, np.ones((chain.reward.size, 1), dtype=bool))

    def under(self, policy: np.ndarray) -> tuple[RowsProcess, np.ndarray]:
        """Do what `Process.under` does: rows that are far from each other take several times as long."""
        acts = policy >= 0
        rows = np.where(acts, np.arange(self.n_states) * self.n_actions + policy, -1)
        process = RowsProcess.of_chain(self.rows.chosen(rows))
        process._kernels = self._kernels  # its arrays are of the same types
        return process, np.where(acts, 0, -1)

    @cached_property
    def _kernels(self) -> tuple[Any, Any]:
        v, policy = np.zeros(0), np.zeros(0, np.int64)
        rest = (0, 0, 0.0, v, v, policy)
        return (
            compiled_for(improve, self.rows, self.legal, *rest),
            compiled_for(evaluate, self.rows, 0, *rest),
        )

    def lowest(self) -> float:
        """Return the lowest mean reward of a pair."""
        return float(self.rows.reward.min())

    def improve(self, *arguments: Any) -> float:
        """Do what `Process.improve` does."""
        return float(self._kernels[0](self.rows, self.legal, *arguments))

    def evaluate(self, *arguments: Any) -> float:
        """Do what `Process.evaluate` does."""
        return float(self._kernels[1](self.rows, self.n_actions, *arguments))

    def values(self, discount: float, v: np.ndarray) -> np.ndarray:
        """Return the value of each pair, float64, shape (S, A); 0 where it is illegal."""
        q = np.zeros(self.legal.shape)
        in_ranges(lambda low, high: values(self.rows, self.legal, low, high, discount, v, q), self.n_states)
        return q
