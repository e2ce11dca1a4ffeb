"""Whether an array is the same on all ranks, and where it is not, without bringing whole arrays together.

Every rank sends the digests of its array's blocks to rank 0, and rank 0 sends its own numbers of those blocks
alone that differ.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dist_classicrl._words import counted
from dist_classicrl.checks import as_float, is_real
from dist_classicrl.comm.rooted import RootedCollectives
from dist_classicrl.errors import SettingsError
from dist_classicrl.mpi_tools.arrays import as_array
from dist_classicrl.mpi_tools.part import refusals

BLOCK_BYTES = 1 << 18
_KINDS = "biufc"
_DIGEST_BYTES = 16
_WHAT = "its part in check_data_consistency"


@dataclass(frozen=True)
class Difference:
    """How one rank's array differs from that of rank 0.

    `here` and `there` are what is on `rank` and what on rank 0: the values at `index`, the shapes, or the
    types. `index` is the first place where values differ by more than the tolerance; None unless values do.
    """

    rank: int
    reason: str  # "shape", "dtype" or "values"
    index: tuple[int, ...] | None
    here: str
    there: str
    largest: float  # difference of two values; infinite where just one of them is NaN or infinite
    count: int  # of the places where values differ by more than the tolerance

    def __str__(self) -> str:
        if self.reason != "values":
            return f"rank {self.rank} has {self.reason} {self.here}, rank 0 has {self.there}"
        place = ", ".join(map(str, self.index or ()))
        return (
            f"rank {self.rank} differs from rank 0 in {counted(self.count, 'place')}, first at [{place}]: "
            f"{self.here} and not {self.there}; by {self.largest:.6g} at most"
        )


@dataclass(frozen=True)
class Consistency:
    """What `DistributedDebugger.check_data_consistency` found; true if all ranks have the same.

    Attributes
    ----------
    differences : tuple of Difference
        One for each rank that has something else than rank 0, in their order.
    """

    differences: tuple[Difference, ...]

    def __bool__(self) -> bool:
        return not self.differences

    def __str__(self) -> str:
        return "; ".join(map(str, self.differences)) or "all ranks have the same"


@dataclass(frozen=True)
class _About:
    """What a rank says of its array: what is wrong with the arguments, if anything, its form, its digests."""

    refusal: str
    tolerance: float
    shape: tuple[int, ...]
    dtype: str
    digests: np.ndarray


@dataclass(frozen=True)
class _Decision:
    """What rank 0 makes of that: why it is refused, or how many blocks it will send to which ranks."""

    refused: list[str]
    n_blocks: dict[int, int]


@dataclass(frozen=True)
class _Block:
    """One of rank 0's blocks."""

    number: int
    content: np.ndarray


@dataclass(frozen=True)
class _Compared:
    """The answer to it, so that no more than one is on its way."""


@dataclass(frozen=True)
class _Report:
    """How a rank's array differs; None where it does not."""

    difference: Difference | None


def check(rooted: RootedCollectives, array: Any, tolerance: Any) -> Consistency:
    """Compare `array` on all ranks with that of rank 0; see `DistributedDebugger.check_data_consistency`."""
    with rooted.operation():
        refusal, array = _refusal(array, tolerance)
        blocks = _Blocks(array)
        tolerance = 0.0 if refusal else float(tolerance)
        about = _About(refusal, tolerance, array.shape, array.dtype.str, blocks.digests(rooted.beat))
        gathered = rooted.gather(about, _WHAT)
        if rooted.rank:
            return _follow(rooted, blocks, tolerance)
        return _lead(rooted, blocks, gathered)


def _refusal(array: Any, tolerance: Any) -> tuple[str, np.ndarray]:
    """Return why this rank's arguments cannot be used, or nothing, and the array."""
    try:
        given = as_array("array", array)
    except SettingsError as error:
        return str(error), np.zeros(0)
    if given.dtype.kind not in _KINDS:
        return f"array must be an array of numbers, got one of type {given.dtype}", np.zeros(0)
    if not is_real(tolerance) or not 0.0 <= as_float(tolerance) < math.inf:
        return f"tolerance must be a finite number of at least 0, got {tolerance!r}", np.zeros(0)
    return "", given


def _lead(rooted: RootedCollectives, blocks: _Blocks, gathered: dict[int, _About]) -> Consistency:
    refused = refusals(
        {rank: about.refusal for rank, about in gathered.items()},
        {rank: f"tolerance={about.tolerance}" for rank, about in gathered.items()},
    )
    unlike = {rank: _unlike(rank, gathered[rank], gathered[0]) for rank in rooted.others}
    plan = {}
    if not refused:
        plan = _plan(gathered, [rank for rank in rooted.others if unlike[rank] is None])
    n_blocks = {rank: len(numbers) for rank, numbers in plan.items()}
    rooted.tell(_Decision(refused, n_blocks), _Decision, _WHAT)
    if refused:
        raise SettingsError(f"{'; '.join(refused)}.")
    for number in sorted({number for each in plan.values() for number in each}):
        ranks = [rank for rank, each in plan.items() if number in each]
        rooted.send(ranks, _Block(number, blocks.block(number).view(np.uint8)))
        rooted.receive(ranks, _Compared, _WHAT)
    reports = rooted.receive(plan, _Report, _WHAT)
    values = {rank: report.difference for rank, report in reports.items()}
    differences = (unlike[rank] or values.get(rank) for rank in rooted.others)
    consistency = Consistency(tuple(each for each in differences if each is not None))
    return rooted.tell(consistency, Consistency, _WHAT)


def _follow(rooted: RootedCollectives, blocks: _Blocks, tolerance: float) -> Consistency:
    decision = rooted.tell(None, _Decision, _WHAT)
    if decision.refused:
        raise SettingsError(f"{'; '.join(decision.refused)}.")
    n_blocks = decision.n_blocks.get(rooted.rank, 0)
    found: Difference | None = None
    for _ in range(n_blocks):
        block = rooted.receive([0], _Block, _WHAT)[0]
        there = block.content.view(blocks.dtype)
        found = _with_block(found, rooted.rank, blocks, block.number, there, tolerance)
        rooted.send([0], _Compared())
    if n_blocks:
        rooted.send([0], _Report(found))
    return rooted.tell(None, Consistency, _WHAT)


def _unlike(rank: int, here: _About, there: _About) -> Difference | None:
    """Return how a rank's array is of another form than rank 0's, or None."""
    if here.shape != there.shape:
        return Difference(rank, "shape", None, str(here.shape), str(there.shape), math.inf, 0)
    if here.dtype != there.dtype:
        shown = [np.dtype(each.dtype).name for each in (here, there)]
        if shown[0] == shown[1]:  # of another byte order
            shown = [here.dtype, there.dtype]
        return Difference(rank, "dtype", None, shown[0], shown[1], math.inf, 0)
    return None


def _plan(gathered: dict[int, _About], ranks: list[int]) -> dict[int, set[int]]:
    """Return which blocks differ, by their digests, for each of `ranks` that has any."""
    digests = {rank: about.digests.reshape(-1, _DIGEST_BYTES) for rank, about in gathered.items()}
    plan = {}
    for rank in ranks:
        numbers = np.flatnonzero((digests[rank] != digests[0]).any(axis=1))
        if numbers.size:
            plan[rank] = set(numbers.tolist())
    return plan


class _Blocks:
    """An array in blocks, in the order of its places; none is copied before it is asked for."""

    def __init__(self, array: np.ndarray) -> None:
        self.shape = array.shape
        self.dtype = array.dtype
        self._flat = array.reshape(-1) if array.flags.c_contiguous else array.flat
        self._size = array.size
        self.length = max(1, BLOCK_BYTES // array.dtype.itemsize)

    def block(self, number: int) -> np.ndarray:
        return np.ascontiguousarray(self._flat[number * self.length : (number + 1) * self.length])

    def digests(self, beat: Callable[[], None]) -> np.ndarray:
        """Return the blocks' digests; `beat` is called in between, since it may take long."""
        digests = []
        for number in range(-(-self._size // self.length)):
            numbers = self.block(number).view(np.uint8).data
            digests.append(hashlib.blake2b(numbers, digest_size=_DIGEST_BYTES).digest())
            beat()
        return np.frombuffer(b"".join(digests), np.uint8)


def _with_block(
    found: Difference | None, rank: int, blocks: _Blocks, number: int, there: np.ndarray, tolerance: float
) -> Difference | None:
    """Return what was found so far, with what differs in this rank's block from that of rank 0."""
    here = blocks.block(number)
    apart = distances(here, there)
    # NumPy would compare whole numbers with a float as float64, which has not all of them.
    places = np.flatnonzero(apart > (math.floor(tolerance) if apart.dtype.kind == "u" else tolerance))
    if not places.size:
        return found
    largest = max(float(apart[places].max()), math.ulp(0.0))  # of a long double it may be less than any float
    first, count = int(places[0]), int(places.size)
    if found is not None:
        return replace(found, largest=max(found.largest, largest), count=found.count + count)
    index = tuple(map(int, np.unravel_index(number * blocks.length + first, blocks.shape)))
    return Difference(rank, "values", index, str(here[first]), str(there[first]), largest, count)


def distances(here: np.ndarray, there: np.ndarray) -> np.ndarray:
    """Return how far apart numbers of one type are: exactly, as uint64, where they are whole, else as reals.

    These are float64, or long doubles for such: 0 for two NaN or the same infinity, infinity for one of them.
    """
    if here.dtype.kind in "biu":
        larger = here > there
        # Wraps where the difference is beyond the type, and is then right as an unsigned number.
        wide = [array.astype(np.uint64) for array in (here, there)]
        return np.where(larger, wide[0] - wide[1], wide[1] - wide[0])
    with np.errstate(invalid="ignore", over="ignore"):
        wide = [array.astype(np.result_type(array.dtype, np.float64)) for array in (here, there)]
        difference = np.abs(wide[0] - wide[1])
    same = (here == there) | (np.isnan(here) & np.isnan(there))
    difference[same] = 0.0
    difference[~same & np.isnan(difference)] = np.inf
    return difference
