"""A training shown where it is called: a bar on a terminal or in a notebook, or a line now and then."""

from __future__ import annotations

import contextvars
import importlib
import io
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from dist_classicrl._hints import rank_of_environment
from dist_classicrl._jit import machine_code
from dist_classicrl._words import counted
from dist_classicrl.callbacks.bar import bar, in_words, is_terminal, rendered, short
from dist_classicrl.callbacks.base import BaseCallback
from dist_classicrl.callbacks.display import LogCallback, Recently
from dist_classicrl.callbacks.tables import whole_table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dist_classicrl.engines.progress import Progress

logger = logging.getLogger(__name__)

REPORT_SECONDS = 1.0
"""How often a training reports without a wish, and for a bar alone."""

_LINE_SECONDS = 10.0
_NOTEBOOK_SECONDS = 0.5
_NOTEBOOK_WIDTH = 88

Draw = Callable[[Callable[[], "Progress | None"], Callable[[], str], bool], AbstractContextManager[Any]]
"""Draws the last report, or what is waited for, as long as it is entered; a line per worker if asked."""


class ShownTraining(BaseCallback):
    """Shows a call of `train` on the rank that serves.

    `draw` draws a bar, from `open` on. Without it there are lines now and then `with_lines`. If `verbose`, a
    line says what begins and one what came of it, and the bar has a line for each worker.
    """

    def __init__(self, draw: Draw | None, with_lines: bool, verbose: bool) -> None:
        super().__init__(int(verbose))
        self._draw = draw
        self._write = _lines()
        self._lines = [LogCallback(_LINE_SECONDS, write=self._write, line=in_words)] if with_lines else []
        self._drawing = ExitStack()
        self._has_begun = False
        self._last: Progress | None = None  # report with a step
        self._recently = Recently()

    @property
    def children(self) -> Sequence[BaseCallback]:
        """What writes lines now and then."""
        return self._lines

    def open(self) -> None:
        """Begin to draw, before there is a report."""
        if self._draw is not None:
            self._drawing.enter_context(self._draw(lambda: self.progress, _waiting, bool(self.verbose)))

    def close(self) -> None:
        """Leave the bar as it is now."""
        self._drawing.close()

    def _on_training_start(self) -> None:
        if self.verbose and not self._has_begun:
            assert self.progress is not None  # it came with the start
            states, actions = self._table_shape()
            self._write(
                f"training for {self.progress.total_steps:,} steps: {states:,} states, {actions:,} actions, "
                f"{counted(self.progress.workers, 'worker')}, seed {self.model.seed}"
            )
        self._has_begun = True

    def _table_shape(self) -> tuple[int, ...]:
        table, environment = whole_table(self.model), self.model.learned_in
        return (environment.n_states, environment.n_actions) if table is None else table.shape

    def on_step(self, progress: Progress) -> bool:
        """Give a report."""
        for child in self.children:
            child.on_step(progress)
        progress = self._recently(progress)
        if self._last is None or progress.steps != self._last.steps:
            self._last = progress
        return super().on_step(progress)

    def _on_training_end(self) -> None:
        self.progress = self._last or self.progress  # one without a step has no rate
        self.close()
        for lines in self._lines:
            lines.on_close()  # the last of them, before what came of it
        if self.verbose:
            assert self.result is not None  # it came with the end
            result = self.result
            self._write(
                f"trained {result.steps:,} steps in {result.seconds:.3g} s, "
                f"{short(result.steps_per_second)}/s on {counted(result.workers, 'worker')}; "
                f"mean return {result.mean_return:.4g} while exploring"
            )


@contextmanager
def shown_training(progress_bar: bool | None, verbose: bool) -> Iterator[ShownTraining | None]:
    """Give what shows a call of `train` as its caller asks for, while this is entered; None: nothing does.

    Without a wish there is a bar where somebody sees it. On a rank of a job nobody does: its launcher takes
    what it writes, line by line.
    """
    draw = None if progress_bar is False or rank_of_environment() is not None else _place_to_draw()
    with_lines = bool(progress_bar) and draw is None
    if draw is None and not with_lines and not verbose:
        yield None
        return
    shown = ShownTraining(draw, with_lines, verbose)
    try:
        shown.open()
        yield shown
    finally:
        shown.close()


def _place_to_draw() -> Draw | None:
    """Return what draws in this process's notebook, or on its terminal; None: it has neither."""
    if _is_in_notebook():
        return _in_notebook
    return None if _terminal() is None else _on_terminal


def _terminal() -> Any:
    """Return the stream on which a bar can be drawn, or None."""
    return next((stream for stream in (sys.stderr, sys.stdout) if is_terminal(stream)), None)


def _is_in_notebook() -> bool:
    """Whether this process is a notebook's kernel, and not one that was forked from it.

    Such a one cannot send anything to the notebook: the kernel writes all of it to its log instead.
    """
    ipython = sys.modules.get("IPython")
    kernel = None if ipython is None else getattr(ipython.get_ipython(), "kernel", None)
    session = getattr(kernel, "session", None)
    return kernel is not None and getattr(session, "pid", os.getpid()) == os.getpid()


_one_bar = threading.Lock()
_streams: list[tuple[Any, Any]] = []  # those of `sys` before a bar put itself in between


@contextmanager
def _alone() -> Iterator[bool]:
    """Give whether nothing else in this process is drawn: two bars would draw over each other."""
    is_alone = _one_bar.acquire(blocking=False)
    try:
        yield is_alone
    finally:
        if is_alone:
            _one_bar.release()


@contextmanager
def _on_terminal(
    source: Callable[[], Progress | None], waiting: Callable[[], str], with_workers: bool
) -> Iterator[None]:
    """Draw a bar; what Python writes to the terminal meanwhile appears above it."""
    from rich.console import Console

    with _alone() as is_alone:
        if not is_alone:
            yield
            return
        terminal = _terminal()
        stream: Any = _Unfailing(lambda: terminal)
        console = Console(file=stream, highlight=False)
        _streams.append((sys.stdout, sys.stderr))
        drawn = bar(console, source, waiting, with_workers)
        try:
            with drawn:
                try:
                    yield
                finally:
                    drawn.transient = source() is None  # that something was prepared is of no interest later
        finally:
            _streams.clear()


def _give_back_streams() -> None:
    """Let a forked process write for itself: the lock of what draws may be held for ever there."""
    if _streams:
        sys.stdout, sys.stderr = _streams.pop()


os.register_at_fork(after_in_child=_give_back_streams)


@contextmanager
def _in_notebook(
    source: Callable[[], Progress | None], waiting: Callable[[], str], with_workers: bool
) -> Iterator[None]:
    """Draw a bar below the cell; rich would need ipywidgets for that."""
    shows: Any = importlib.import_module("IPython.display")

    def drawn() -> Any:
        return shows.HTML(_as_html(rendered(source(), waiting(), with_workers)))

    handle = shows.display(drawn(), display_id=True)
    ended = threading.Event()

    def draw() -> None:
        while not ended.wait(_NOTEBOOK_SECONDS):
            handle.update(drawn())

    # In the cell's context, by which the notebook knows where it belongs.
    thread = threading.Thread(
        target=contextvars.copy_context().run, args=(draw,), name="progress bar", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(_NOTEBOOK_SECONDS)
        handle.update(shows.HTML("") if source() is None else drawn())


def _as_html(picture: RenderableType) -> str:
    from rich.console import Console

    console = Console(file=io.StringIO(), record=True, width=_NOTEBOOK_WIDTH, force_jupyter=False)
    console.print(picture)
    return console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")


def _waiting() -> str:
    return machine_code.COMPILING if machine_code.has_compiled() else "preparing"


class _Unfailing:
    """The stream that `find` returns, as long as it takes what is written: who trains may do so unseen."""

    def __init__(self, find: Callable[[], Any]) -> None:
        self._find = find
        self._is_gone = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._find(), name)

    def write(self, text: str) -> int:
        """Write text, or drop it."""
        self._do("write", text)
        return len(text)

    def flush(self) -> None:
        """Write what the stream has held back, or leave it there."""
        self._do("flush")

    def _do(self, what: str, *given: str) -> None:
        stream = self._find()
        if stream is None or self._is_gone:
            return
        try:
            getattr(stream, what)(*given)
        except (OSError, ValueError) as error:  # ValueError where it is closed
            self._is_gone = True
            with suppress(OSError, ValueError):  # where log lines go to the same stream
                logger.info("The training is not shown any more, as that cannot be written: %s", error)


def _lines() -> Callable[[str], None]:
    """Return what writes a line to standard error, above a bar that is drawn there."""
    stream: Any = _Unfailing(lambda: sys.stderr)
    return partial(print, file=stream, flush=True)
