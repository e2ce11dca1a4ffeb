"""What came out of runs, as lines of a file: what is no record, or a damaged one, is left out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

# Of a run that ended well, besides its curve; those that may be unknown are None then.
_WHOLE = ("steps", "episodes")
_NUMBERS = ("final_return", "seconds", "train_seconds")
_PERHAPS = ("training_return", "exact_value", "optimal_value", "random_value")


def records_in(data: bytes) -> Iterator[dict[str, Any]]:
    """Yield the records in lines of a file.

    What a lost host never wrote out whole is none, and what somebody has changed is none any more: such
    a run counts as not made.
    """
    for line in data.splitlines():
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if is_record(record):
            yield record


def is_record(data: Any) -> bool:
    """Whether this has all that is told of a run, each of its kind."""
    if not isinstance(data, dict) or not _is_whole(data.get("run")) or data["run"] < 0:
        return False
    key, error = data.get("key"), data.get("error", 0)
    if not isinstance(key, str) or not key.startswith(f"{data['run']}-"):
        return False
    return isinstance(error, str) or (error is None and _is_told(data))


def _is_told(data: Mapping[str, Any]) -> bool:
    """Whether what came out of a run that ended well is all there."""
    curve = data.get("curve")
    return (
        all(_is_whole(data.get(name)) for name in _WHOLE)
        and all(_is_number(data.get(name)) for name in _NUMBERS)
        and all(_is_perhaps(data.get(name, "")) for name in _PERHAPS)
        and isinstance(data.get("device", "cpu"), str)  # older ones have none
        and isinstance(curve, list)
        and all(map(_is_point, curve))
    )


def _is_point(data: Any) -> bool:
    """Whether this is a point of a curve: its step, the mean return if one is known, episodes."""
    return (
        isinstance(data, list)
        and len(data) == 3
        and _is_whole(data[0])
        and _is_perhaps(data[1])
        and _is_whole(data[2])
    )


def _is_whole(data: Any) -> bool:
    return isinstance(data, int) and not isinstance(data, bool)


def _is_number(data: Any) -> bool:
    return _is_whole(data) or isinstance(data, float)


def _is_perhaps(data: Any) -> bool:
    return data is None or _is_number(data)
