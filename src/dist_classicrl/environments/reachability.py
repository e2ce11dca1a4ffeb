"""Which nodes of a directed graph a set of nodes leads to, over arrays in compressed sparse row form."""

from __future__ import annotations

import numpy as np


def rows_of(pointer: np.ndarray) -> np.ndarray:
    """Return the row that each stored element belongs to, int64, shape (pointer[-1],).

    Row `r` stores the elements `pointer[r]` to `pointer[r + 1] - 1`.
    """
    return np.repeat(np.arange(pointer.size - 1, dtype=np.int64), np.diff(pointer))


def row_pointer(rows: np.ndarray, n_rows: int) -> np.ndarray:
    """Return where each row begins when elements are stored in the order of their rows: inverse of `rows_of`.

    `rows` has the row of each element, from 0 to `n_rows` - 1, in any order.
    """
    pointer = np.zeros(n_rows + 1, dtype=np.int64)
    np.cumsum(np.bincount(rows, minlength=n_rows), out=pointer[1:])
    return pointer


def elements_of(pointer: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the positions of all elements that the given rows store, row after row."""
    lengths = pointer[rows + 1] - pointer[rows]
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if ends.size else 0
    return np.arange(total, dtype=np.int64) + np.repeat(pointer[rows] - (ends - lengths), lengths)


def successors_closure(pointer: np.ndarray, target: np.ndarray, seeds: np.ndarray) -> np.ndarray:
    """Mark every node that can be reached from the `seeds`, bool (N,), themselves included (breadth first).

    Node `n` has the edges `pointer[n]` to `pointer[n + 1] - 1`, and `target` the node that each leads to.
    """
    reached = seeds.copy()
    frontier = np.flatnonzero(seeds)
    while frontier.size:
        found = target[elements_of(pointer, frontier)]
        frontier = np.unique(found[~reached[found]])
        reached[frontier] = True
    return reached


def reverse_edges(source: np.ndarray, target: np.ndarray, n_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Turn the edges from `source` to `target` around: return the new graph's row pointer and targets."""
    return row_pointer(target, n_nodes), source[np.argsort(target, kind="stable")]


def most_different(pointer: np.ndarray, target: np.ndarray) -> int:
    """Return to how many different targets the edges of a node lead, of the node with the most."""
    source = rows_of(pointer)
    order = np.lexsort((target, source))
    source, target = source[order], target[order]
    is_new = np.ones(order.size, bool)
    is_new[1:] = (source[1:] != source[:-1]) | (target[1:] != target[:-1])
    return int(np.bincount(source[is_new]).max(initial=0))
