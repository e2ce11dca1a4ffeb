"""Where log lines go: a console for those of the rank that serves, and a file for each rank."""

from __future__ import annotations

import errno
import logging
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from dist_classicrl._streams import is_unwritable, silence_if_unread
from dist_classicrl.callbacks.base import BaseCallback

logger = logging.getLogger(__name__)

_PACKAGE = "dist_classicrl"
_PROGRESS = "dist_classicrl.progress"
# Losses and returns of ranks: one rank logs them, a new server before it serves.
_EVENTS = "dist_classicrl.membership.events"
_LINE = "%(asctime)s %(message)s"
_FILE_LINE = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class _StreamHandler(logging.StreamHandler):
    """Writes to what `sys` has under a name when a line comes, as a progress bar puts itself in between."""

    def __init__(self, name: str) -> None:
        logging.Handler.__init__(self)
        self._stream_name = name
        self.setFormatter(logging.Formatter(_LINE))

    @property
    def stream(self) -> TextIO | None:
        """Where the line goes now; None where that was closed before Python began, as after ``>&-``."""
        stream: TextIO | None = getattr(sys, self._stream_name)
        return stream

    @stream.setter
    def stream(self, value: Any) -> None:
        raise AttributeError("the stream is that of sys")

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, if there is anything to write to."""
        if self.stream is not None:
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """Drop lines that nobody reads any more, or that cannot be written: the run goes on.

        A command that cannot write its own last lines either says so at its end.
        """
        if not isinstance(sys.exc_info()[1], OSError) or not (
            silence_if_unread(self.stream) or is_unwritable(self.stream)
        ):
            super().handleError(record)


class _RankFile(logging.FileHandler):
    """A rank's own file. A full disk or a removed folder costs lines, and not the run; it is said once."""

    _is_told = False

    def __init__(self, path: Path) -> None:
        super().__init__(path, delay=True, encoding="utf-8")
        self.setFormatter(logging.Formatter(_FILE_LINE))

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line; what opening the file raises would else end whoever has something to say."""
        try:
            super().emit(record)
        except OSError:
            self.handleError(record)

    def close(self) -> None:
        """Close the file, without the lines that it did not take."""
        with suppress(OSError):
            super().close()

    def handleError(self, record: logging.LogRecord) -> None:
        """Drop a line that cannot be written."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self._is_told:
            self._is_told = True
            logger.warning(
                "Log lines cannot be written to %s (%s), and are dropped for as long as that is so. Put its "
                "folder back, or make room on its disk; the training goes on.",
                self.baseFilename,
                error.strerror or error,
            )


class ConsoleCallback(BaseCallback):
    """Lets the rank that serves send log lines to the console; others send errors, and what ends ranks.

    As a callback of `train` it hears when this rank begins to serve, if it does not from the start.
    """

    def __init__(self, serves: bool) -> None:
        super().__init__()
        self._serves = serves

    def _on_training_start(self) -> None:
        self._serves = True

    def passes(self, record: logging.LogRecord) -> bool:
        """Return whether a line goes to the console. Reports about the run have a stream of their own."""
        if record.name == _PROGRESS:
            return False
        heard = record.name == _EVENTS and record.levelno >= logging.WARNING
        return self._serves or heard or record.levelno >= logging.ERROR


def set_up(
    rank: int, folder: Path | None = None, is_quiet: bool = False, is_verbose: bool = False
) -> ConsoleCallback:
    """Send the package's log lines to the console and to this rank's file in `folder`, ``rank-0.log`` or so.

    Reports about the run go to standard output unless it is quiet; warnings go to standard error, and all
    else, too, if it is verbose. The callback that is returned is for `train`: rank 0 is the first to serve,
    and another one may have to take its place.
    """
    package, progress = logging.getLogger(_PACKAGE), logging.getLogger(_PROGRESS)
    for each in (package, progress):
        for handler in list(each.handlers):
            each.removeHandler(handler)
            handler.close()
    package.setLevel(logging.INFO)
    callback = ConsoleCallback(rank == 0)
    console = _StreamHandler("stderr")
    console.setLevel(logging.INFO if is_verbose else logging.WARNING)
    console.addFilter(callback.passes)
    package.addHandler(console)
    if not is_quiet:
        progress.addHandler(_StreamHandler("stdout"))
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
        package.addHandler(_RankFile(folder / f"rank-{rank}.log"))
    return callback
