"""A terminal on which a bar is drawn below everything else that is written to it."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dist_classicrl.callbacks.bar import bar, is_terminal
from dist_classicrl.callbacks.display import StatusFile

if TYPE_CHECKING:
    from rich.console import Console

_LAST_WORDS_SECONDS = 2.0


def has_terminal() -> bool:
    """Return whether standard output is a terminal on which something can be drawn again and again."""
    return is_terminal(sys.stdout)


@contextmanager
def bar_of_a_job(status: StatusFile, waiting: str, is_verbose: bool) -> Iterator[None]:
    """Draw a bar of a run in processes that this one starts; what they write appears above it.

    Once the run has ended, what they write comes below.
    """
    from rich.text import Text

    def show(line: str) -> None:
        text = Text.from_ansi(line)  # as it came: its own colors, no markup, no wrapping
        if status.has_ended:
            drawn.stop()
        if text.plain or not line:  # some programs end by a color code alone
            console.print(text, soft_wrap=True)

    with console_of_terminal() as console:
        drawn = bar(console, lambda: status.progress, lambda: waiting, is_verbose)
        with drawn, lines_given_to(show):
            yield


@contextmanager
def console_of_terminal() -> Iterator[Console]:
    """Open the terminal that standard output is now."""
    from rich.console import Console

    with os.fdopen(os.dup(1), "w", encoding=sys.stdout.encoding, errors="replace") as terminal:
        # rich asks the standard streams, of which only the input may still be it. mpirun gives it no width.
        width = None if os.isatty(0) else os.get_terminal_size(terminal.fileno()).columns or None
        yield Console(file=terminal, highlight=False, width=width)


@contextmanager
def lines_given_to(show: Callable[[str], None]) -> Iterator[None]:
    """Take in what this process and its children write to the terminal, and give each line to `show`."""
    _flush()
    source, sink = os.pipe()
    saved = {number: os.dup(number) for number in (1, 2) if os.isatty(number)}
    for number in saved:
        os.dup2(sink, number)
    os.close(sink)

    def read() -> None:
        with os.fdopen(source, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                show(line.rstrip("\r\n"))

    thread = threading.Thread(target=read, name="terminal", daemon=True)
    thread.start()
    try:
        yield
    finally:
        _flush()
        for number, terminal in saved.items():
            os.dup2(terminal, number)
            os.close(terminal)
        # Until no process can write to it, but not long: one that outlives the job must not hold up this one.
        thread.join(_LAST_WORDS_SECONDS)


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
