"""Numbers of things in messages."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Return how many there are, such as "1 worker" or "1,024 workers"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
