"""Where log lines go: a console that only the rank that serves speaks to, and a file for each rank."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any, TextIO

from dist_classicrl.callbacks.base import BaseCallback

_PACKAGE = "dist_classicrl"
_PROGRESS = "dist_classicrl.progress"
_LINE = "%(asctime)s %(message)s"
_FILE_LINE = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class _StreamHandler(logging.StreamHandler):
    """Writes to what `sys` has under a name when a line comes, as a progress bar puts itself in between."""

    def __init__(self, name: str) -> None:
        logging.Handler.__init__(self)
        self._stream_name = name

    @property
    def stream(self) -> TextIO:
        """Where the line goes now."""
        stream: TextIO = getattr(sys, self._stream_name)
        return stream

    @stream.setter
    def stream(self, value: Any) -> None:
        raise AttributeError("the stream is that of sys")


class VoiceCallback(BaseCallback):
    """Lets the rank that serves send its log lines to the console, which other ranks do not.

    Parameters
    ----------
    console : logging.Handler
    level : int
        From which on it sends them.
    """

    def __init__(self, console: logging.Handler, level: int) -> None:
        super().__init__()
        self._console = console
        self._level = level

    def _on_training_start(self) -> None:
        self._console.setLevel(self._level)


def set_up(
    rank: int, folder: Path | None = None, is_quiet: bool = False, is_verbose: bool = False
) -> VoiceCallback:
    """Send the package's log lines to the console and to this rank's file.

    Reports about the run go to standard output, and all else to standard error.

    Parameters
    ----------
    rank : int
        Ranks besides 0 send only errors to the console. Reports come from whoever serves.
    folder : Path, optional
        For ``rank-0.log`` and so on, which appear with the first line. By default there are none.
    is_quiet : bool
        Whether reports are left out.
    is_verbose : bool
        Whether all else is there, too, and not only warnings.

    Returns
    -------
    VoiceCallback
        For `train`, as another rank may have to serve in place of rank 0.
    """
    package, progress = logging.getLogger(_PACKAGE), logging.getLogger(_PROGRESS)
    for each in (package, progress):
        for handler in list(each.handlers):
            each.removeHandler(handler)
            handler.close()
    package.setLevel(logging.INFO)
    console = _StreamHandler("stderr")
    console.setFormatter(logging.Formatter(_LINE))
    level = logging.INFO if is_verbose else logging.WARNING
    console.setLevel(level if rank == 0 else logging.ERROR)
    console.addFilter(lambda record: record.name != _PROGRESS)
    package.addHandler(console)
    if not is_quiet:
        reports = _StreamHandler("stdout")
        reports.setFormatter(logging.Formatter(_LINE))
        progress.addHandler(reports)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        file = logging.FileHandler(folder / f"rank-{rank}.log", delay=True, encoding="utf-8")
        file.setFormatter(logging.Formatter(_FILE_LINE))
        package.addHandler(file)
    return VoiceCallback(console, level)
