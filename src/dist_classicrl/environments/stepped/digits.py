"""The digits that a finite Gymnasium space is a product of, and the kernels that join and split them.

A `MultiDiscrete([3, 2])` has two digits with 3 and 2 values. An index is the digits of a space read as one
mixed-radix number, the first digit the most significant, so that counting from 0 to n-1 visits the values in
the order of `itertools.product`. A `Dict` counts in the order of its keys as the space holds them (Gymnasium
sorts them unless told otherwise).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from dist_classicrl._jit import jit
from dist_classicrl.environments.stepped.space_advice import advice_for
from dist_classicrl.errors import SpaceError


@dataclass(frozen=True)
class Digits:
    """One array of digits inside a nested space, found by following `path` (keys and positions)."""

    path: tuple[str | int, ...]
    shape: tuple[int, ...]
    dtype: np.dtype
    start: np.ndarray
    sizes: np.ndarray
    strides: np.ndarray


@jit
def join_digits(
    values: np.ndarray,
    start: np.ndarray,
    sizes: np.ndarray,
    strides: np.ndarray,
    fresh: bool,
    out: np.ndarray,
) -> int:
    """Write to `out[e]` if it is `fresh`, else add to it, what the digits `values[e]` give the index.

    `values`, shape (E, K), are as the space has them, that is counted from `start`; `start`, `sizes` and
    `strides`, shape (K,), are first value, number of values and weight of each digit; all are int64. Return
    -1, or the first entry that has a digit outside its range; `out` is then unusable.
    """
    for e in range(values.shape[0]):
        total = 0 if fresh else out[e]
        for k in range(values.shape[1]):
            digit = values[e, k] - start[k]
            if digit < 0 or digit >= sizes[k]:
                return e
            total += digit * strides[k]
        out[e] = total
    return -1


@jit
def split_digits(
    indices: np.ndarray, start: np.ndarray, sizes: np.ndarray, strides: np.ndarray, values: np.ndarray
) -> None:
    """Fill `values[e]` with the digits of `indices[e]`: the inverse of `join_digits`, shapes as there."""
    for e in range(indices.shape[0]):
        for k in range(sizes.shape[0]):
            values[e, k] = (indices[e] // strides[k]) % sizes[k] + start[k]


def digits_of(
    space: spaces.Space, path: tuple[str | int, ...], role: str, whole: spaces.Space
) -> Iterator[tuple[tuple[str | int, ...], tuple[int, ...], np.dtype, list[int], list[int]]]:
    """Yield (path, shape, dtype, start, sizes) of each array of digits, the most significant first.

    Starts and sizes are Python ints: the bounds of a Box may lie too far apart for int64, and such a space
    has to be refused by its true size.
    """
    if isinstance(space, spaces.Discrete):
        yield path, (), np.dtype(space.dtype), [int(space.start)], [int(space.n)]
    elif isinstance(space, spaces.MultiDiscrete):
        start, sizes = space.start.ravel().tolist(), space.nvec.ravel().tolist()
        yield path, space.shape, np.dtype(space.dtype), start, sizes
    elif isinstance(space, spaces.MultiBinary):
        count = math.prod(space.shape)
        yield path, space.shape, np.dtype(space.dtype), [0] * count, [2] * count
    elif isinstance(space, spaces.Box) and np.dtype(space.dtype).kind in "iub":
        low, high = space.low.ravel().tolist(), space.high.ravel().tolist()
        sizes = [int(top) - int(bottom) + 1 for bottom, top in zip(low, high, strict=True)]
        yield path, space.shape, np.dtype(space.dtype), [int(bottom) for bottom in low], sizes
    elif isinstance(space, spaces.Tuple):
        for position, part in enumerate(space.spaces):
            yield from digits_of(part, (*path, position), role, whole)
    elif isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            yield from digits_of(part, (*path, key), role, whole)
    else:
        is_finite = isinstance(space, (spaces.Text, spaces.OneOf))  # or may be
        fault = "has no numbers of its own" if is_finite else "is not finite"
        raise SpaceError(
            f"The {role} space {space_text(whole)} {fault}{place_text(path)}: {space_text(space)} "
            f"cannot be counted as 0..n-1. {advice_for(space, path, role)}"
        )


def with_strides(digits: list[Any]) -> tuple[Digits, ...]:
    """Give every digit its weight, the product of the sizes of all the digits after it."""
    leaves: list[Digits] = []
    stride = 1
    for path, shape, dtype, start, sizes in reversed(digits):
        strides = np.empty(len(sizes), np.int64)
        for k in range(len(sizes) - 1, -1, -1):
            strides[k] = stride
            stride *= sizes[k]
        leaves.append(
            Digits(path, shape, dtype, np.array(start, np.int64), np.array(sizes, np.int64), strides)
        )
    return tuple(reversed(leaves))


def assembled(space: spaces.Space, parts: Iterator[Any]) -> Any:
    """Put the leaves' parts, in order, back into the nesting of `space`."""
    if isinstance(space, spaces.Tuple):
        return tuple(assembled(part, parts) for part in space.spaces)
    if isinstance(space, spaces.Dict):
        return {key: assembled(part, parts) for key, part in space.spaces.items()}
    return next(parts)


def place_text(path: tuple[str | int, ...]) -> str:
    """Return where in a nested space something is, as text for a message."""
    return f" at {''.join(f'[{step!r}]' for step in path)}" if path else ""


def space_text(space: spaces.Space) -> str:
    """Return the space's own text, cut to what fits in a message."""
    text = " ".join(str(space).split())
    return text if len(text) <= 200 else text[:197] + "..."
