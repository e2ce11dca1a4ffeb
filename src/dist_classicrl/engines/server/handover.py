"""What a server knows besides its table, at a version of it: with that, whoever has the version can serve."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Handover:
    """Which pushes and how many steps a version of the table contains.

    Attributes
    ----------
    done : int
        Steps of this process's part of the call.
    applied : dict of int to int
        The last push of each rank.
    tally : ndarray(float64)
        `Tally.to_numbers`.
    """

    done: int
    applied: dict[int, int]
    tally: np.ndarray

    @property
    def parts(self) -> list[np.ndarray]:
        """The handover as message parts."""
        numbers = [self.done]
        for item in self.applied.items():
            numbers += item
        return [np.array(numbers, np.int64), self.tally]

    @classmethod
    def from_parts(cls, numbers: np.ndarray, tally: np.ndarray) -> Handover:
        """Return the handover whose `parts` these are."""
        done, *applied = numbers.tolist()
        return cls(done, dict(zip(applied[::2], applied[1::2], strict=True)), tally)
