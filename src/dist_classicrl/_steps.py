"""Steps at which something happens again and again."""

from __future__ import annotations


def next_multiple(steps: int, every: int) -> int:
    """Return the first multiple of `every` above `steps`."""
    return (steps // every + 1) * every
