"""Words for messages: numbers of things, and what somebody probably meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def counted(number: int, noun: str) -> str:
    """Return how many there are, such as "1 worker" or "1,024 workers"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a question that names what was probably meant by `word`, with a blank in front; or nothing."""
    matches = get_close_matches(word, list(known), n=1)
    return f" Did you mean {matches[0]!r}?" if matches else ""
