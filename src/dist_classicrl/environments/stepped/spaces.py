"""Finite Gymnasium spaces as the integers 0..n-1, one value at a time and in batches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from dist_classicrl._words import counted
from dist_classicrl.environments.stepped.digits import (
    assembled,
    digits_of,
    join_digits,
    place_text,
    space_text,
    split_digits,
    with_strides,
)
from dist_classicrl.errors import OutsideSpaceError, SpaceError

MAX_TABLE_BYTES = 2**34
"""Largest table that is made: 16 GiB, which is 2**31 float64 entries."""

MAX_INDEX_BITS = 62
"""Of the number of values of a space, so that sums of digits times strides stay inside int64."""

# The types of whole numbers, and up to how many of a value are joined without arrays, which take longer.
_WHOLE = frozenset((int, bool, np.bool_, *(np.dtype(code).type for code in np.typecodes["AllInteger"])))
_FEW = 16


class _MisfitError(Exception):
    """A batch of `count` values has not the form of a space, or that with the number `entry` is outside."""

    def __init__(self, what: str, entry: int | None = None, count: int | None = None) -> None:
        super().__init__(what)
        self.what, self.entry, self.count = what, entry, count


class SpaceIndex:
    """A finite Gymnasium space as the integers 0..n-1.

    Supported are `Discrete`, `MultiDiscrete` (both with their `start`), `MultiBinary`, `Box` of integers
    between finite bounds, and `Tuple` and `Dict` of those, nested as deep as wanted: SpaceError for other
    spaces, and for more than 2**62 values.

    The space is that of one environment. Error messages name its `role`, "observation" or "action", and the
    wrapper that would make it finite. What a `Dict` space has under `mask_key` is an action mask and no part
    of the value.
    """

    def __init__(self, space: spaces.Space, role: str = "observation", mask_key: str | None = None) -> None:
        self.space = space
        self.role = role
        self.mask_space: spaces.Space | None = None
        self._counted = space
        if mask_key is not None and isinstance(space, spaces.Dict) and mask_key in space.spaces:
            self.mask_space = space[mask_key]
            rest = [(key, part) for key, part in space.items() if key != mask_key]  # a list keeps its order
            if not rest:
                raise SpaceError(
                    f"The observation space {space} holds an action mask and nothing else. "
                    f'Add what the agent sees under another key, for instance "observation".'
                )
            self._counted = spaces.Dict(rest)
        digits = list(digits_of(self._counted, (), role, space))
        sizes = [size for *_, each in digits for size in each]
        if not sizes:
            raise SpaceError(
                f"The {role} space {space_text(space)} holds nothing. Use gymnasium.spaces.Discrete(1) there."
            )
        bits = sum(map(math.log2, sizes))
        if bits > MAX_INDEX_BITS:
            raise SpaceError(
                f"The {role} space {space_text(space)} has about 10^{bits * math.log10(2):.0f} values, more "
                f"than 62 bits can tell apart. Leave out what does not matter, or merge values that mean the "
                f"same, with gymnasium.wrappers.Transform{role.capitalize()}."
            )
        if any(abs(first) > 2**MAX_INDEX_BITS for _, _, _, start, _ in digits for first in start):
            raise SpaceError(
                f"The {role} space {space_text(space)} starts beyond 2**62. Count its values from 0 instead."
            )
        self.n = math.prod(sizes)  # number of values
        self._leaves = with_strides(digits)
        # The usual action space, where an index is the value itself: a copy saves a microsecond per step.
        simple = isinstance(self._counted, spaces.Discrete) and int(self._counted.start) == 0
        self.is_plain = simple and self._leaves[0].dtype == np.int64
        # Where a value is a few numbers: the path to each number or array of some, its shape, and for each
        # number the first value, the number of values and the weight.
        self._few: list[tuple[tuple[str | int, ...], tuple[int, ...], list[tuple[int, int, int]]]] = []
        if len(sizes) <= _FEW:
            parts = self.parts()
            self._few = [(path, shape, list(zip(*numbers, strict=True))) for path, shape, *numbers in parts]
        #: Of so many values the indices are made one by one.
        self._most_joined = 0 if not self._few else 1 if any(shape for _, shape, _ in self._few) else 8

    # From a value to its index

    def encode(self, value: Any) -> int:
        """Return the index of one value that a user gives; OutsideSpaceError if it is not in the space."""
        try:
            return int(self._encode_each([value])[0])
        except _MisfitError as misfit:
            raise self._misgiven(misfit) from None

    def encode_each(
        self, values: Sequence[Any], out: np.ndarray | None = None, rows: Sequence[int] | None = None
    ) -> np.ndarray:
        """Return the indices of single values, one per environment: int64 (E,), written to `out` where given.

        OutsideSpaceError if a value is not in the space. The message has the environment's number, which
        `rows` has where they aren't 0..E-1.
        """
        try:
            return self._encode_each(values, out)
        except _MisfitError as misfit:
            raise self._misfit(misfit, rows) from None

    def _encode_each(self, values: Sequence[Any], out: np.ndarray | None = None) -> np.ndarray:
        if len(values) <= self._most_joined:
            found = [self.index_of(value) for value in values]
            if None not in found:
                if out is None:
                    return np.array(found, np.int64)
                out[:] = found if len(found) != 1 else found[0]  # of a list it makes an array first
                return out
        arrays = []
        for leaf in self._leaves:
            parts = values if not leaf.path else [self._follow(value, leaf.path) for value in values]
            try:
                arrays.append(np.array(parts, order="C"))
            except ValueError:  # ragged: the values have different shapes
                raise _MisfitError(f"the {self.role}s {parts!r} differ in shape") from None
        return self._encode(arrays, len(values), out)

    def index_of(self, value: Any) -> int | None:
        """Return the index of a value of a few numbers; None where it has others or is not in the space."""
        if not self._few:
            return None
        index = 0
        for path, shape, digits in self._few:
            part = value
            if path:
                try:
                    for step in path:
                        part = part[step]
                except (KeyError, IndexError, TypeError):
                    return None
            if not shape:  # without the loop below, which would take a fifth of a step of a quick environment
                if type(part) not in _WHOLE:
                    return None
                ((first, size, stride),) = digits
                digit = int(part) - first
                if not 0 <= digit < size:
                    return None
                index += digit * stride
                continue
            if type(part) is not np.ndarray or part.shape != shape or part.dtype.kind not in "iub":
                return None
            for number, (first, size, stride) in zip(part.ravel().tolist(), digits, strict=True):
                digit = number - first
                if not 0 <= digit < size:
                    return None
                index += digit * stride
        return index

    def encode_batch(self, batch: Any, out: np.ndarray | None = None) -> np.ndarray:
        """Return the indices of a batch as Gymnasium's vector environments give it; see `encode_each`.

        It is an array, or a tuple or dict of arrays nested as the space is, whose first axis counts
        environments.
        """
        try:
            return self._encode_batch(batch, out)
        except _MisfitError as misfit:
            raise self._misfit(misfit, None) from None

    def _encode_batch(self, batch: Any, out: np.ndarray | None = None) -> np.ndarray:
        arrays = [np.array(self._follow(batch, leaf.path), order="C") for leaf in self._leaves]
        return self._encode(arrays, arrays[0].shape[0] if arrays[0].ndim else 0, out)

    def encode_any(self, given: Any) -> tuple[np.ndarray, bool]:
        """Return the indices of what a user gives, and whether that was not one value: a batch, or a list.

        int64 (E,). A batch is as `encode_batch` takes it, or an array with one more axis than a value has.
        """
        first = self._leaves[0]
        is_list = isinstance(given, list) and all(isinstance(each, (tuple, dict)) for each in given)
        try:
            if first.path and is_list:
                return self._encode_each(given), True
            is_batch = np.ndim(self._follow(given, first.path)) > len(first.shape)
            return (self._encode_batch(given) if is_batch else self._encode_each([given])), is_batch
        except _MisfitError as misfit:
            raise self._misgiven(misfit) from None

    def _encode(self, arrays: list[np.ndarray], count: int, out: np.ndarray | None) -> np.ndarray:
        """Combine one array per leaf, each of shape (count, *leaf.shape), into indices.

        The arrays are our own copies: the jitted loop then always sees the same type (writable, contiguous
        int64).
        """
        if out is None:
            out = np.empty(count, np.int64)
        for leaf, array in zip(self._leaves, arrays, strict=True):
            is_numbers = array.dtype.kind in "iub" or not array.size
            if array.shape != (len(out), *leaf.shape) or not is_numbers:
                raise _MisfitError(
                    f"got an array of shape {array.shape} and dtype {array.dtype}{place_text(leaf.path)}, "
                    f"where integers of shape {(len(out), *leaf.shape)} are needed",
                    count=len(out),
                )
            if array.dtype != np.int64:
                array = array.astype(np.int64)
            values = array.reshape(len(out), leaf.sizes.size)
            fresh = leaf is self._leaves[0]
            bad = join_digits(values, leaf.start, leaf.sizes, leaf.strides, fresh, out)
            if bad >= 0:
                raise _MisfitError(f"{array[bad].tolist()}{place_text(leaf.path)}", bad)
        return out

    def _follow(self, value: Any, path: tuple[str | int, ...]) -> Any:
        """Return the part of a nested value that lies at `path`."""
        part = value
        try:
            for step in path:
                part = part[step]
        except (KeyError, IndexError, TypeError):
            raise _MisfitError(f"{value!r} has nothing{place_text(path)}") from None
        return part

    def _misfit(self, misfit: _MisfitError, rows: Sequence[int] | None) -> OutsideSpaceError:
        what = misfit.what
        if misfit.count is not None:
            what += f" for {counted(misfit.count, 'environment')}"
        if misfit.entry is not None:
            what = f"environment {misfit.entry if rows is None else rows[misfit.entry]} gave {what}"
        return OutsideSpaceError(
            f"A value lies outside the {self.role} space {space_text(self.space)}: {what}. The environment "
            f"must keep to the space that it declares: correct the one or the other "
            f"(gymnasium.utils.env_checker.check_env finds such things)."
        )

    def _misgiven(self, misfit: _MisfitError) -> OutsideSpaceError:
        what = misfit.what if misfit.entry is None else f"got {misfit.what}"
        return OutsideSpaceError(
            f"The {self.role} that was given lies outside the {self.role} space {space_text(self.space)}: "
            f"{what}. Give one {self.role} of that space, or a batch of them."
        )

    # From an index to its value

    def decode(self, index: int) -> Any:
        """Return the value with this index, of the type and dtype that `space.sample()` has.

        OutsideSpaceError if the index is not in 0..n-1.
        """
        if not 0 <= index < self.n:
            raise OutsideSpaceError(
                f"{index} is no {self.role} index of {space_text(self.space)}: allowed are 0 to {self.n - 1}."
            )
        return self.decode_each(np.array([index], np.int64))[0]

    def decode_each(self, indices: np.ndarray) -> list[Any]:
        """Return a list of the single values with these indices (int64, shape (E,), each in 0..n-1)."""
        if self.is_plain:
            return [np.int64(index) for index in indices.tolist()]
        arrays = [list(array) for array in self._decode(indices)]
        if not self._leaves[0].path:
            return arrays[0]
        return [assembled(self._counted, iter(parts)) for parts in zip(*arrays, strict=True)]

    def decode_batch(self, indices: np.ndarray) -> Any:
        """Return the values with these indices, int64 (E,), as `encode_batch` takes them, in new arrays.

        That each index is in 0..n-1 isn't checked, as this is the inner loop.
        """
        arrays = self._decode(indices)
        return assembled(self._counted, iter(arrays)) if self._leaves[0].path else arrays[0]

    def _decode(self, indices: np.ndarray) -> list[np.ndarray]:
        """Return one new array per leaf, of shape (E, *leaf.shape) and the leaf's dtype."""
        if self.is_plain:
            return [np.array(indices, np.int64)]
        indices = np.ascontiguousarray(indices, np.int64)
        arrays = []
        for leaf in self._leaves:
            values = np.empty((len(indices), leaf.sizes.size), np.int64)
            split_digits(indices, leaf.start, leaf.sizes, leaf.strides, values)
            arrays.append(values.astype(leaf.dtype, copy=False).reshape(len(indices), *leaf.shape))
        return arrays

    def parts(self) -> list[tuple[Any, ...]]:
        """Return how an index is made, as plain Python data, so that it can be made without this class.

        That is for each array of digits: the path to it in a value, its shape, and for each digit in
        row-major order the first value, the number of values and the weight. The index is the sum over all
        digits of weight times (value - first value).
        """
        return [
            (leaf.path, leaf.shape, leaf.start.tolist(), leaf.sizes.tolist(), leaf.strides.tolist())
            for leaf in self._leaves
        ]

    @property
    def sizes(self) -> list[int]:
        """How many values each number of a value has; the index counts through the last one first."""
        return [size for leaf in self._leaves for size in leaf.sizes.tolist()]

    @property
    def first_values(self) -> list[int]:
        """The least value of each number of a value."""
        return [first for leaf in self._leaves for first in leaf.start.tolist()]

    @property
    def names(self) -> list[str]:
        """Where each number of a value is, such as observation[0]."""
        names = []
        for leaf in self._leaves:
            place = self.role + "".join(f"[{step!r}]" for step in leaf.path)
            inner = np.ndindex(*leaf.shape) if leaf.shape else [()]
            names += [place + "".join(f"[{each}]" for each in at) for at in inner]
        return names

    def describe(self) -> list[dict[str, Any]]:
        """Return the digits as JSON-able data, equal for equal spaces in every process."""
        return [
            {
                "path": [repr(step) for step in leaf.path],
                "shape": list(leaf.shape),
                "dtype": str(leaf.dtype),
                "start": leaf.start.tolist(),
                "sizes": leaf.sizes.tolist(),
            }
            for leaf in self._leaves
        ]


def has_room(n_states: int, n_actions: int) -> bool:
    """Return whether a table of so many states is not too large."""
    return n_states * n_actions * 8 <= MAX_TABLE_BYTES


def check_row_size(n_actions: int) -> None:
    """Raise `SpaceError` if a single row of so many float64 is too large for a table."""
    if not has_room(1, n_actions):
        needed, most = n_actions * 8, MAX_TABLE_BYTES
        raise SpaceError(
            f"The action space has {n_actions:,} values, and the values of one state alone take {needed:,} "
            f"bytes ({needed / 2**30:,.1f} GiB); at most {most:,} ({most / 2**30:,.1f} GiB) are allowed. "
            "Make it smaller: use fewer bins, or name the actions that matter by numbers, as "
            "gymnasium.wrappers.TransformAction(env, table.__getitem__, Discrete(len(table))) does it."
        )
