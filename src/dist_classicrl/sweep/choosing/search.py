"""Which settings a study tries: all combinations of some values, or draws at random."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dist_classicrl.checks import as_float, is_flag, is_real, is_whole
from dist_classicrl.errors import StudyError

_MOST_COMBINATIONS = 1_000  # that are looked at before a search begins


@dataclass(frozen=True)
class Range:
    """Numbers from which a random search draws: uniformly from `low` to `high`, or their logarithms.

    Whole numbers are drawn where both ends are.

    Raises
    ------
    StudyError
        If the ends are no finite numbers in this order, whole ones have more than 64 bits, or they are to be
        logarithmic and not positive.
    """

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            if isinstance(each := getattr(self, name), np.generic):
                object.__setattr__(self, name, each.item())  # JSON has no others
        ends = [as_float(each) if is_real(each) else each for each in (self.low, self.high)]
        if not (all(map(is_real, ends)) and math.isfinite(ends[1] - ends[0])):
            raise StudyError(
                f"A range goes from one finite number to another, got {ends[0]!r} and {ends[1]!r}. Write for "
                "instance Range(0.01, 1.0)."
            )
        if not is_flag(self.log):
            raise StudyError(
                f"log of a range must be True or False, in a study's file true or false, got {self.log!r}."
            )
        if self._is_whole and not all(-(2**63) <= each < 2**63 for each in (self.low, self.high)):
            raise StudyError(
                f"Whole numbers of a range are from -2**63 to 2**63 - 1, got {self.low} and {self.high}. For "
                f"others write {float(self.low)!r} and {float(self.high)!r}."
            )
        if not self.low < self.high or self.log and self.low <= 0:
            least = "above 0 and " if self.log else ""
            raise StudyError(
                f"The ends of a range are {least}in order, got {self}. Write for instance Range(0.01, 1.0)."
            )

    @property
    def _is_whole(self) -> bool:
        return is_whole(self.low) and is_whole(self.high)

    def draw(self, rng: np.random.Generator) -> float | int:
        """Return one of the numbers."""
        if self.log:
            # A whole number stands for what is rounded to it, those at the ends as well.
            half = 0.5 if self._is_whole else 0.0
            value = float(np.exp(rng.uniform(math.log(self.low - half), math.log(self.high + half))))
        elif self._is_whole:
            return int(rng.integers(int(self.low), int(self.high), endpoint=True))
        else:
            value = float(rng.uniform(float(self.low), float(self.high)))
        if self._is_whole:
            return min(max(round(value), int(self.low)), int(self.high))
        return min(max(value, float(self.low)), float(self.high))


def variants(
    vary: Mapping[str, Any], search: str = "grid", n_variants: int | None = None, seed: int = 0
) -> list[dict[str, Any]]:
    """Return the settings that a study tries, each as a dict with a value for all names in `vary`.

    Parameters
    ----------
    vary : mapping of str to sequence or Range
        Values of each setting; a `Range` for a random search only.
    search : "grid" or "random"
        All combinations, the last name fastest; or draws, each of which depends on `seed` and its own number
        alone: with more of them the first ones stay the same.
    n_variants : int, optional
        How many draws; a grid has none.
    seed : int
        Of the draws, 0 or more; 0 for a grid.

    Raises
    ------
    StudyError
        If these do not fit together.
    """
    count = n_tried(vary, search, n_variants, seed)
    if search == "grid":
        return [dict(zip(vary, values, strict=True)) for values in itertools.product(*vary.values())]
    drawn = []
    for number in range(count):
        rng = np.random.default_rng((int(seed), number))
        drawn.append({name: _drawn(values, rng) for name, values in vary.items()})
    return drawn


def ends_of(vary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return all combinations of the values, of a `Range` both ends; where they are too many, some of them.

    Which these are depends on no seed.
    """
    values: dict[str, Any] = {
        name: [each.low, each.high] if isinstance(each, Range) else each for name, each in vary.items()
    }
    if math.prod(map(len, values.values())) <= _MOST_COMBINATIONS:
        return variants(values)
    return variants(values, "random", _MOST_COMBINATIONS)


def n_tried(vary: Mapping[str, Any], search: str, n_variants: int | None, seed: int) -> int:
    """Return how many settings `variants` returns, however many that are; StudyError as there."""
    check_space(vary)
    if not isinstance(search, str) or search not in ("grid", "random"):
        raise StudyError(f'search must be "grid", "random" or "tpe", got {search!r}.')
    if search == "grid":
        check_grid(vary, n_variants, seed)
        return math.prod(map(len, vary.values()))
    check_draws(n_variants, seed)
    return int(n_variants or 0)


def check_space(vary: Mapping[str, Any]) -> None:
    """Raise `StudyError` if a setting is to be varied over no list of values, and no `Range` either."""
    for name, values in vary.items():
        is_list = isinstance(values, Sequence) and not isinstance(values, (str, bytes))
        if not is_list and not isinstance(values, Range):
            raise StudyError(
                f"{name} is to be varied over {values!r}: a list of values is needed, such as {name}=[...], "
                "or Range(low, high) in a random search."
            )
        if is_list and len(values) == 0:
            raise StudyError(f"{name} is to be varied over no values at all. Give one or more.")


def check_draws(n_variants: int | None, seed: int) -> None:
    """Raise `StudyError` if it is not said how many settings a search draws, and from which seed."""
    if not is_whole(n_variants) or int(n_variants or 0) < 1:
        raise StudyError(f"Any search but a grid needs n_variants of 1 or more, got {n_variants!r}.")
    if not is_whole(seed) or seed < 0:
        raise StudyError(f"The seed of a random search is a whole number of 0 or more, got {seed!r}.")


def check_grid(vary: Mapping[str, Any], n_variants: int | None, seed: int) -> None:
    """Raise `StudyError` if a grid has a `Range`, or something is said of draws, of which it has none."""
    ranges = [name for name, values in vary.items() if isinstance(values, Range)]
    if ranges:
        raise StudyError(
            f"A grid cannot go through all numbers of {vary[ranges[0]]} for {ranges[0]}. Give a list of "
            'values, or write search="random" and n_variants.'
        )
    for name, given, usual in (("n_variants", n_variants, None), ("search_seed", seed, 0)):
        if given is not usual and not (is_whole(given) and given == usual):
            raise StudyError(
                f'{name}={given!r} belongs to search="random": a grid has all combinations. Leave it out.'
            )


def _drawn(values: Any, rng: np.random.Generator) -> Any:
    return values.draw(rng) if isinstance(values, Range) else values[int(rng.integers(len(values)))]
