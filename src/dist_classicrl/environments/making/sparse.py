"""What sparse matrices, such as scipy's, hold of a model's transitions."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dist_classicrl.errors import ModelError


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
    if isinstance(value, np.ndarray) and value.dtype == object:
        value = list(value)
    matrices = value if isinstance(value, (list, tuple)) else [value]
    if not any(hasattr(each, "tocsr") for each in matrices):
        return None
    shapes = {tuple(each.shape) for each in matrices if hasattr(each, "tocsr")}
    rows, S = each if len(each := next(iter(shapes))) == 2 else (0, 0)
    A = len(matrices) if matrices is value else rows // max(S, 1)
    if (
        S == 0
        or len(shapes) > 1
        or rows != (S if matrices is value else S * A)
        or not all(hasattr(each, "tocsr") for each in matrices)
        or (shape or (S, A)) != (S, A)
    ):
        given = [f"{type(each).__name__} of shape {getattr(each, 'shape', ())}" for each in matrices]
        states, actions = ("S", "A") if shape is None else map(str, shape)
        raise ModelError(
            f"{name} is {', '.join(dict.fromkeys(given))}; sparse matrices must be a list of one of shape "
            f"({states}, {states}) for each of the {actions} actions, or one of shape ({states} * {actions}, "
            f"{states}) with the row state * {actions} + action"
        )
    stored = [each.tocsr().copy() for each in matrices]
    for each in stored:
        each.sum_duplicates()
    stored = [each.tocoo() for each in stored]
    pairs = [each.row.astype(np.int64) for each in stored]
    if matrices is value:
        pairs = [rows * A + action for action, rows in enumerate(pairs)]
    pair = np.concatenate(pairs)
    follow = np.concatenate([each.col for each in stored]).astype(np.int64)
    order = np.lexsort((follow, pair))
    values = np.concatenate([each.data for each in stored])
    return Entries(S, A, pair[order], follow[order], values[order])
