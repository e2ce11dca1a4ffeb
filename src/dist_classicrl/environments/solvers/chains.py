"""Recurrent classes of a Markov chain, and their periods."""

from __future__ import annotations

import numpy as np

from dist_classicrl._jit import jit


def recurrent_classes(pointer: np.ndarray, follow: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the recurrent class of each node, int64, shape (N,), -1 for transient ones, and their number.

    Node n has the edges `pointer[n]` to `pointer[n + 1] - 1`, which lead to `follow`. A class is a strongly
    connected component that no edge leaves. A node without edges is in none.
    """
    n = pointer.size - 1
    component, work = np.full(n, -1, np.int64), np.empty((5, n), np.int64)
    count = _components(pointer, follow, component, work)
    source = np.repeat(component, np.diff(pointer))
    is_closed = np.ones(count, dtype=bool)
    is_closed[source[source != component[follow]]] = False
    is_closed[component[np.diff(pointer) == 0]] = False
    number = np.where(is_closed, np.cumsum(is_closed) - 1, -1)
    return number[component], int(is_closed.sum())


@jit
def _components(pointer: np.ndarray, follow: np.ndarray, component: np.ndarray, work: np.ndarray) -> int:
    """Write the number of the strongly connected component of each node; return how many there are.

    After Tarjan 1972, without recursion. `component` is -1 at first; `work` has room for five numbers a node.
    """
    met, lowest, edge, stack, path = work[0], work[1], work[2], work[3], work[4]
    met[:] = -1
    clock = count = held = 0
    for root in range(component.size):
        depth = -1
        if met[root] < 0:
            depth, path[0] = 0, root
        while depth >= 0:
            node = path[depth]
            if met[node] < 0:
                met[node] = lowest[node] = clock
                clock += 1
                edge[node] = pointer[node]
                stack[held] = node
                held += 1
            if edge[node] < pointer[node + 1]:
                to = follow[edge[node]]
                if met[to] < 0:
                    depth += 1
                    path[depth] = to
                else:
                    edge[node] += 1
                    if component[to] < 0:
                        lowest[node] = min(lowest[node], lowest[to])
                continue
            depth -= 1
            if lowest[node] == met[node]:
                while component[node] < 0:
                    held -= 1
                    component[stack[held]] = count
                count += 1
    return count


def periods_of(
    pointer: np.ndarray, follow: np.ndarray, member: np.ndarray, n_classes: int, duration: np.ndarray
) -> tuple[int, ...]:
    """Return the period of each recurrent class: what the lengths of its circles are multiples of.

    `member` is as `recurrent_classes` returns it; to leave node n takes `duration[n]` steps, 0 or 1.
    """
    level, path = np.full(member.size, -1, np.int64), np.empty(member.size, np.int64)
    period = np.zeros(n_classes, np.int64)
    _levels(pointer, follow, member, duration, level, path)
    source = np.repeat(np.arange(member.size), np.diff(pointer))
    edges = np.flatnonzero(member[source] >= 0)
    off = np.abs(level[source[edges]] + duration[source[edges]] - level[follow[edges]])
    np.gcd.at(period, member[source[edges]], off)
    return tuple(period.tolist())


@jit
def _levels(
    pointer: np.ndarray,
    follow: np.ndarray,
    member: np.ndarray,
    duration: np.ndarray,
    level: np.ndarray,
    path: np.ndarray,
) -> None:
    """Write how many steps it takes to each node from the first that is met of its class, by some way."""
    for root in range(member.size):
        if member[root] < 0 or level[root] >= 0:
            continue
        level[root], path[0], held = 0, root, 1
        while held > 0:
            held -= 1
            node = path[held]
            for o in range(pointer[node], pointer[node + 1]):
                to = follow[o]
                if level[to] < 0:
                    level[to] = level[node] + duration[node]
                    path[held] = to
                    held += 1
