"""The whole screen of a terminal for a while: what was on it is there again afterwards, however that ends."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Protocol

from dist_classicrl.cli.terminal import console_of_terminal, has_terminal, lines_given_to
from dist_classicrl.errors import SettingsError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_REFRESHES = 2  # a second: drawing takes the processor from what is shown
_MOST_LINES = 1_000  # of output, kept to be written afterwards
_SHOWN_LINES = 10  # of these, at most
# Written by another process if this one ends without leaving the screen: xterm's codes for the normal
# screen, and for a cursor that is seen.
_LEAVE = "read -r left || printf '\\033[?1049l\\033[?25h'"


class View(Protocol):
    """What is drawn."""

    def picture(self, lines: list[str]) -> RenderableType:
        """Return what is to be seen now; `lines` are the last lines that were written meanwhile."""
        ...


def check_screen(is_quiet: bool = False, is_rank: bool = False) -> None:
    """Refuse to draw where there is no terminal; SettingsError."""
    if is_quiet:
        raise SettingsError("--live shows the run and --quiet nothing of it: leave one of them out.")
    if is_rank:
        raise SettingsError(
            "--live is for a command that somebody types, and mpirun or srun has started this one as a rank. "
            "Leave it out; `dist-classicrl show --live FOLDER` in a terminal shows what goes on there."
        )
    if not has_terminal():
        raise SettingsError(
            "--live draws on a terminal, and standard output is none (or TERM is dumb). Leave it out; "
            "`dist-classicrl show --live FOLDER` in a terminal shows what goes on there."
        )


class _Screen:
    """Draws a view, and writes afterwards what has been written meanwhile."""

    def __init__(self, console: Console, terminal: int, view: View) -> None:
        from rich.live import Live

        self._console, self._terminal, self._view = console, terminal, view
        self._lines: deque[str] = deque(maxlen=_MOST_LINES)
        self._of_lines = threading.Lock()
        # Held until the screen is left: what another thread writes must not go to the screen that vanishes.
        self._leaving = threading.Lock()
        self._is_left = False
        self._live = Live(
            console=console,
            screen=True,
            get_renderable=self._picture,
            refresh_per_second=_REFRESHES,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def _picture(self) -> RenderableType:
        from rich.text import Text

        with suppress(OSError):
            size = os.get_terminal_size(self._terminal)
            if all(size):  # one that nobody told its size says 0, and rich has a size for that
                self._console.size = size
        with self._of_lines:
            lines = list(self._lines)
        try:
            return self._view.picture(lines[-_SHOWN_LINES:])
        except Exception as error:  # what is drawn must not end what it shows
            return Text(f"It cannot be drawn: {error!r}. What is shown goes on.")

    def enter(self) -> None:
        """Take the screen."""
        self._live.start(refresh=True)

    def leave(self) -> None:
        """Give back the screen; what was written meanwhile comes below what was there before."""
        with self._leaving:
            if self._is_left:
                return
            self._live.stop()
            self._is_left = True
            for line in self._lines:
                self._write(line)

    def take(self, line: str) -> None:
        """Keep a line of output, or write it where the screen is left."""
        with self._leaving:
            if self._is_left:
                self._write(line)
                return
            with self._of_lines:
                self._lines.append(line)

    def _write(self, line: str) -> None:
        from rich.text import Text

        self._console.print(Text.from_ansi(line), soft_wrap=True)


@contextmanager
def full_screen(view: View, has_ended: Callable[[], bool] | None = None) -> Iterator[None]:
    """Draw `view` on the whole screen as long as this is entered, or until `has_ended` at a line of output.

    What this process and its children write is kept, and written when the screen is left.
    """
    with console_of_terminal() as console:
        terminal = console.file.fileno()
        screen = _Screen(console, terminal, view)

        def take(line: str) -> None:
            if has_ended is not None and has_ended():
                screen.leave()
            screen.take(line)

        with _left_in_any_case(terminal), lines_given_to(take):
            try:
                screen.enter()
                yield
            finally:
                screen.leave()


@contextmanager
def _left_in_any_case(terminal: int) -> Iterator[None]:
    """Let a process of its own give back the screen if this one is killed while this is entered."""
    watcher = subprocess.Popen(
        ["/bin/sh", "-c", _LEAVE],
        stdin=subprocess.PIPE,
        stdout=terminal,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is not meant for it
    )
    assert watcher.stdin is not None  # it was asked for
    try:
        yield
    finally:
        with suppress(BrokenPipeError):
            watcher.stdin.write(b"left\n")
            watcher.stdin.close()
        watcher.wait()
        sys.stdout.flush()
