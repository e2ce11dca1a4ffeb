"""Runs that may end the process in which they are made: they get one of their own."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from dist_classicrl.process.signals import signal_name
from dist_classicrl.sweep.hosts.processes import Helpers, helpers
from dist_classicrl.sweep.plan import Trial
from dist_classicrl.sweep.trial import record_of

_MOST_ENDS = 2
_POLL_SECONDS = 0.02

Make = Callable[[Sequence[Trial]], Iterator[dict[str, Any]]]


def records_apart(
    trials: Sequence[Trial], make: Make, tick: Callable[[], None]
) -> Generator[dict[str, Any], None, None]:
    """Yield the records of runs that another process makes in turn, as `make` does; `tick` goes on meanwhile.

    Where that process ends, others go on with the run that was under way. One during which two have ended
    has failed: this process, which has seen it, lives on, so that it is no end of a host or of a job.
    """
    left, ends = list(trials), 0
    while left:
        with helpers() as those:
            status = 0
            for heard in _heard_of(those, partial(make, left), tick):
                if isinstance(heard, int):
                    status = heard
                    continue
                yield heard
                del left[0]
                ends = 0
        ends += bool(left)
        if ends == _MOST_ENDS:
            yield record_of(left.pop(0), partial(_fail, status))
            ends = 0


def _heard_of(
    those: Helpers, make: Callable[[], Iterator[dict[str, Any]]], tick: Callable[[], None]
) -> Iterator[dict[str, Any] | int]:
    """Yield what another process makes, and in the end how that process ended."""
    reader, writer = os.pipe()
    try:
        os.set_blocking(reader, False)
        those.start(partial(_tell, reader, writer, make))
        text = b""
        while True:
            ended = those.ended()  # before the rest is read: what it has written is all there then
            with suppress(BlockingIOError):
                while piece := os.read(reader, 1 << 16):
                    text += piece
            *lines, text = text.split(b"\n")
            yield from map(json.loads, lines)
            tick()
            if ended:
                yield ended[0]
                return
            time.sleep(_POLL_SECONDS)
    finally:
        os.close(reader)
        os.close(writer)


def _tell(reader: int, writer: int, make: Callable[[], Iterator[dict[str, Any]]]) -> None:
    os.close(reader)  # then nothing can be written once who listens is gone
    with open(writer, "wb", buffering=0) as file:
        for record in make():
            left = memoryview(json.dumps(record).encode() + b"\n")
            while left:
                left = left[file.write(left) :]


def _fail(status: int) -> dict[str, Any]:
    how = f"with exit status {status}" if status >= 0 else f"by {signal_name(-status)}"
    raise ChildProcessError(
        f"The process that made this run ended before it was through, {_MOST_ENDS} times in a row (the last "
        f"time {how}), as where code that it calls crashes, or where the system has no memory left."
    )
