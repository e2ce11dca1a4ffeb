"""What sparse matrices, such as scipy's, hold of a model's transitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from dist_classicrl.errors import ModelError


class SparseMatrix(Protocol):
    """A matrix that can be had as scipy's in compressed sparse row form."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and columns."""

    def tocsr(self) -> Any:
        """Return that."""


SparseMatrices: TypeAlias = SparseMatrix | Sequence[SparseMatrix]


class Entries(NamedTuple):
    """What is stored by pair and next state, each once, in the order of both."""

    n_states: int
    n_actions: int
    pair: np.ndarray  # int64, state * n_actions + action
    follow: np.ndarray  # int64
    values: np.ndarray

    def at(self, pair: np.ndarray, follow: np.ndarray) -> np.ndarray:
        """Return the values at these pairs and next states, 0 where nothing is stored."""
        values = np.zeros(pair.size, self.values.dtype)
        if self.values.size:
            asked = pair * self.n_states + follow
            stored = self.pair * self.n_states + self.follow
            place = np.minimum(np.searchsorted(stored, asked), stored.size - 1)
            is_stored = stored[place] == asked
            values[is_stored] = self.values[place[is_stored]]
        return values


def entries_of(name: str, value: Any, shape: tuple[int, int] | None = None) -> Entries | None:
    """Return what sparse matrices hold, of a model of `shape` where that is known; None for anything else.

    They are one of shape (S, S) for each action, or one of shape (S * A, S).
    """
    if isinstance(value, np.ndarray) and value.dtype == object and value.ndim < 2:
        value = value.tolist()
    is_by_action = isinstance(value, (list, tuple))
    matrices = list(value) if is_by_action else [value]
    if not any(map(_is_sparse, matrices)):
        return None
    S, A = _shape(matrices, is_by_action)
    if S == 0 or shape not in (None, (S, A)):
        given = dict.fromkeys(f"{type(each).__name__} of shape {np.shape(each)}" for each in matrices)
        states, actions = ("S", "A") if shape is None else map(str, shape)
        dense = {"reward": "pair", "terminated": "state"}.get(name)
        raise ModelError(
            f"{name} is {', '.join(given)}; sparse matrices must be a list of one of shape ({states}, "
            f"{states}) for each of the {actions} actions, or one of shape ({states} * {actions}, {states}) "
            f"with the row state * {actions} + action"
            f"{f'. What is given by {dense} must be dense' if dense else ''}"
        )
    stored = list(map(_coordinates, matrices))
    pair = np.concatenate(
        [rows * A + action if is_by_action else rows for action, (rows, _, _) in enumerate(stored)]
    )
    order = np.argsort(pair, kind="stable") if is_by_action else slice(None)
    follow = np.concatenate([columns for _, columns, _ in stored])
    values = np.concatenate([values for _, _, values in stored])
    return Entries(S, A, pair[order], follow[order], values[order])


def _is_sparse(value: Any) -> bool:
    return hasattr(value, "tocsr") and not isinstance(value, type)


def _shape(matrices: Sequence[Any], is_by_action: bool) -> tuple[int, int]:
    """Return how many states and actions matrices are of; no states where they are of no model."""
    shapes = {tuple(each.shape) if _is_sparse(each) else () for each in matrices}
    rows, S = found if len(shapes) == 1 and len(found := shapes.pop()) == 2 else (0, 0)
    A = len(matrices) if is_by_action else rows // max(S, 1)
    return (S, A) if rows == (S if is_by_action else S * A) else (0, 0)


def _coordinates(matrix: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return rows and columns, int64, and values of what is stored, in the order of both, each once."""
    rows = matrix.tocsr()
    if not rows.has_canonical_format:
        rows = rows.copy()
        rows.sum_duplicates()
    entries = rows.tocoo()
    return entries.row.astype(np.int64), entries.col.astype(np.int64), entries.data
