"""Which nodes of a directed graph a set of nodes leads to, over arrays in compressed sparse row form."""

from __future__ import annotations

import numpy as np


def rows_of(pointer: np.ndarray) -> np.ndarray:
    """Return the row that each stored element belongs to.

    Parameters
    ----------
    pointer : ndarray of int64, shape (R + 1,)
        Row `r` stores the elements `pointer[r]` to `pointer[r + 1] - 1`.

    Returns
    -------
    ndarray of int64, shape (pointer[-1],)
    """
    return np.repeat(np.arange(pointer.size - 1, dtype=np.int64), np.diff(pointer))


def row_pointer(rows: np.ndarray, n_rows: int) -> np.ndarray:
    """Return where each row begins when elements are stored in the order of their rows.

    Parameters
    ----------
    rows : ndarray of int64, shape (E,)
        The row of each element, from 0 to `n_rows` - 1, in any order.
    n_rows : int

    Returns
    -------
    ndarray of int64, shape (n_rows + 1,)
        The inverse of `rows_of`.
    """
    pointer = np.zeros(n_rows + 1, dtype=np.int64)
    np.cumsum(np.bincount(rows, minlength=n_rows), out=pointer[1:])
    return pointer


def elements_of(pointer: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the positions of all elements that the given rows store, row after row.

    Parameters
    ----------
    pointer : ndarray of int64, shape (R + 1,)
    rows : ndarray of int64, shape (K,)

    Returns
    -------
    ndarray of int64
        Its length is the sum of the rows' lengths.
    """
    lengths = pointer[rows + 1] - pointer[rows]
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if ends.size else 0
    return np.arange(total, dtype=np.int64) + np.repeat(pointer[rows] - (ends - lengths), lengths)


def successors_closure(pointer: np.ndarray, target: np.ndarray, seeds: np.ndarray) -> np.ndarray:
    """Mark every node that can be reached from the seeds, the seeds included (breadth first).

    Parameters
    ----------
    pointer : ndarray of int64, shape (N + 1,)
        Node `n` has the edges `pointer[n]` to `pointer[n + 1] - 1`.
    target : ndarray of int64, shape (E,)
        The node that each edge leads to.
    seeds : ndarray of bool, shape (N,)

    Returns
    -------
    ndarray of bool, shape (N,)
    """
    reached = seeds.copy()
    frontier = np.flatnonzero(seeds)
    while frontier.size:
        found = target[elements_of(pointer, frontier)]
        frontier = np.unique(found[~reached[found]])
        reached[frontier] = True
    return reached


def reverse_edges(source: np.ndarray, target: np.ndarray, n_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Turn a list of edges around: return the row pointer and targets of the graph with every edge reversed.

    Parameters
    ----------
    source, target : ndarray of int64, shape (E,)
        Edge `e` leads from `source[e]` to `target[e]`.
    n_nodes : int

    Returns
    -------
    pointer : ndarray of int64, shape (n_nodes + 1,)
    reversed_target : ndarray of int64, shape (E,)
    """
    return row_pointer(target, n_nodes), source[np.argsort(target, kind="stable")]
