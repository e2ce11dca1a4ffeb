"""Numbers of things in messages."""

from __future__ import annotations

from collections.abc import Iterable


def counted(number: float, noun: str, form: str = ",") -> str:
    """Return how many there are, such as "1 worker" or "1,024 workers", with the number in this `form`."""
    return f"{number:{form}} {noun}{'' if number == 1 else 's'}"


def is_alone(ranks: Iterable[int]) -> bool:
    """Return whether these are the ranks of a process that learned alone, of which no message speaks."""
    return list(ranks) == [0]
