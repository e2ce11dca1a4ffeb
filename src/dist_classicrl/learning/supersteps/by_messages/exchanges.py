"""What ranks exchange in a superstep, as generators: who drives them carries parts from rank to rank."""

from __future__ import annotations

from collections.abc import Generator, Sequence

import numpy as np

from dist_classicrl.errors import ProtocolError

Parts = list[np.ndarray]
"""What goes to each rank, or came from it: int64 of shape (n, words)."""

Exchanges = Generator[Parts, Parts, None]
"""Gives what goes to each rank, one exchange after the other; what came from each is to be sent in.

What goes to the rank itself comes back as it is.
"""


def together(all_steps: Sequence[Exchanges]) -> None:
    """Let shares that are in this process exchange with each other."""
    sent = _all_sent([next(steps, None) for steps in all_steps])
    ranks = range(len(all_steps))
    while sent:
        came = [[sent[other][rank] for other in ranks] for rank in ranks]
        sent = _all_sent([_next_of(steps, parts) for steps, parts in zip(all_steps, came, strict=True)])


def _next_of(steps: Exchanges, came: Parts) -> Parts | None:
    try:
        return steps.send(came)
    except StopIteration:
        return None


def _all_sent(parts: list[Parts | None]) -> list[Parts]:
    """Return what all give, nothing if all are through; ProtocolError where some only are."""
    sent = [each for each in parts if each is not None]
    if sent and len(sent) < len(parts):
        raise ProtocolError(f"{len(sent)} of {len(parts)} shares go on to exchange, and the others do not.")
    return sent


def with_oneself(steps: Exchanges) -> None:
    """Let one share that has everything exchange with itself."""
    together([steps])


def parts_for(rows: np.ndarray, to: np.ndarray, ranks: int) -> tuple[Parts, np.ndarray]:
    """Return the part of each rank of rows that go `to` them, and which of the rows these are, in order."""
    order = np.argsort(to, kind="stable")
    ends = np.cumsum(np.bincount(to, minlength=ranks))
    return np.split(rows[order], ends[:-1]), order


def packed(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return two arrays of one rank's as one part, for `unpacked`."""
    numbers = [np.array([len(first)]), first.ravel().view(np.int64), second.ravel()]
    return np.concatenate(numbers)[:, np.newaxis]


def unpacked(part: np.ndarray, words: int, others: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the two arrays, int64 with so many words a row; ProtocolError where they cannot be that."""
    numbers = part.ravel()
    n = int(numbers[0]) * words if numbers.size else -1
    if not 0 <= n < numbers.size or (numbers.size - 1 - n) % others:
        raise ProtocolError(
            f"{numbers.size} numbers came from another owner of rows, and are not what it was asked for. Do "
            "all ranks run the same version?"
        )
    return numbers[1 : n + 1].reshape(-1, words), numbers[n + 1 :].reshape(-1, others)
