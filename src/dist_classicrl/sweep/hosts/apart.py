"""Runs that may end the process in which they are made: they get one of their own."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from dist_classicrl.process.signals import signal_name
from dist_classicrl.process.stop import INTERRUPTED
from dist_classicrl.sweep.hosts.processes import Helpers, helpers
from dist_classicrl.sweep.plan import Trial
from dist_classicrl.sweep.trial import record_of

logger = logging.getLogger(__name__)

_MOST_ENDS = 2
_POLL_SECONDS = 0.02

Record = dict[str, Any]


def records_apart(
    trials: Sequence[Trial],
    make: Callable[[Sequence[Trial]], Iterator[Record | None]],
    make_here: Callable[[Sequence[Trial]], Iterator[Record]],
    tick: Callable[[], None],
    longest: Callable[[], float] = float,
) -> Generator[Record, None, None]:
    """Yield the records of runs that a forked process makes in turn, as `make` does, and `tick` meanwhile.

    Where that process ends, others go on with the run that was under way. One during which two have ended
    has failed: this process, which has seen it, lives on, so that it is no end of a host or of a job.

    `make` yields None when the environment has been used. A process that ends before, which may be because
    it was forked, or in order, says nothing of the runs: this one makes those that are left, by `make_here`.
    One that does nothing for long is ended; `longest` is how many seconds a run of the study has taken.
    """
    left, ends = list(trials), 0
    while left:
        has_begun, status = False, None
        with helpers() as those:
            for heard in _heard_of(those, partial(make, left), tick, longest):
                if isinstance(heard, int):
                    status = heard
                elif heard is None:
                    has_begun = True
                else:
                    yield heard
                    del left[0]
                    ends = 0
        if left and (not has_begun or status in (os.EX_TEMPFAIL, INTERRUPTED)):
            logger.warning(
                "The forked process ended %s, which says nothing of its runs: this one makes them.",
                _how(status),
            )
            yield from make_here(left)
            return
        ends += bool(left)
        if ends == _MOST_ENDS:
            yield record_of(left.pop(0), partial(_fail, status))
            ends = 0


def _heard_of(
    those: Helpers,
    make: Callable[[], Iterator[Record | None]],
    tick: Callable[[], None],
    longest: Callable[[], float],
) -> Iterator[Record | int | None]:
    """Yield what another process makes, and in the end how it ended, unless it does nothing for long."""
    reader, writer = os.pipe()
    try:
        os.set_blocking(reader, False)
        those.start(partial(_tell, reader, writer, make))
        text = b""
        while not those.kill_idle(longest):
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


def _tell(reader: int, writer: int, make: Callable[[], Iterator[Record | None]]) -> None:
    os.close(reader)  # then nothing can be written once who listens is gone
    with open(writer, "wb", buffering=0) as file:
        for record in make():
            left = memoryview(json.dumps(record).encode() + b"\n")
            while left:
                left = left[file.write(left) :]


def _how(status: int | None) -> str:
    if status is None:
        return "since it did nothing for long"
    return f"with exit status {status}" if status >= 0 else f"by {signal_name(-status)}"


def _fail(status: int | None) -> Record:
    raise ChildProcessError(
        f"The process that made this run ended before it was through, {_MOST_ENDS} times in a row (the last "
        f"time {_how(status)}), as where code that it calls crashes, or where the system has no memory left."
    )
