"""A terminal on which a bar is drawn below everything else that is written to it."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, TextIO

from dist_classicrl.callbacks.display import StatusFile
from dist_classicrl.cli.bar import Bar

if TYPE_CHECKING:
    from rich.console import Console

    from dist_classicrl.engines.progress import Progress

_LAST_WORDS_SECONDS = 2.0


def has_terminal() -> bool:
    """Return whether standard output is a terminal on which something can be drawn again and again."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


@contextmanager
def bar_of_this_process(
    source: Callable[[], Progress | None], waiting: str, is_verbose: bool
) -> Iterator[None]:
    """Draw a bar of a run in this process; what Python writes meanwhile appears above it."""
    from rich.console import Console

    with Bar(Console(highlight=False), source, waiting, is_verbose):
        yield


@contextmanager
def bar_of_a_job(status: StatusFile, waiting: str, is_verbose: bool) -> Iterator[None]:
    """Draw a bar of a run in processes that this one starts; what they write appears above it.

    Once the run has ended, what they write comes below.
    """
    from rich.text import Text

    with ExitStack() as stack:
        console = _console(stack.enter_context(_terminal()))
        bar = Bar(console, lambda: status.progress, waiting, is_verbose)

        def show(line: str) -> None:
            text = Text.from_ansi(line)  # as it came: its own colors, no markup, no wrapping
            if status.has_ended:
                bar.stop()
            if text.plain or not line:  # some programs end by a color code alone
                console.print(text, soft_wrap=True)

        stack.enter_context(bar)
        stack.enter_context(_Passing(show))
        yield


def _console(terminal: TextIO) -> Console:
    from rich.console import Console

    # rich asks the standard streams for the width, of which only the input may still be the terminal.
    width = None if os.isatty(0) else os.get_terminal_size(terminal.fileno()).columns
    return Console(file=terminal, highlight=False, width=width)


@contextmanager
def _terminal() -> Iterator[TextIO]:
    """Open the terminal that standard output is now."""
    with os.fdopen(os.dup(1), "w", encoding=sys.stdout.encoding, errors="replace") as stream:
        yield stream


class _Passing:
    """Takes in what this process and its children write to the terminal, and gives each line to `show`."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._saved: dict[int, int] = {}
        self._thread = threading.Thread(target=self._read, name="terminal", daemon=True)
        self._source = -1

    def __enter__(self) -> _Passing:
        _flush()
        self._source, sink = os.pipe()
        self._saved = {number: os.dup(number) for number in (1, 2) if os.isatty(number)}
        for number in self._saved:
            os.dup2(sink, number)
        os.close(sink)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        _flush()
        for number, saved in self._saved.items():
            os.dup2(saved, number)
            os.close(saved)
        # Until no process can write to it, but not long: one that outlives the job must not hold up this one.
        self._thread.join(_LAST_WORDS_SECONDS)

    def _read(self) -> None:
        with os.fdopen(self._source, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                self._show(line.rstrip("\r\n"))


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
