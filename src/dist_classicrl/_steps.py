"""Steps at which something happens again and again, or never."""

from __future__ import annotations

NEVER = 1 << 62
"""A step that no run comes to: where a schedule ends that does not, and how long an episode without a limit
may be."""


def next_multiple(steps: int, every: int) -> int:
    """Return the first multiple of `every` above `steps`."""
    return (steps // every + 1) * every
