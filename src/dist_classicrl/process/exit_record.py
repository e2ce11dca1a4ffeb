"""What the ranks of a launched job leave on disk, for its launcher: that they live, how they ended, and done.

`mpirun` may return 0 after a host died, and something else after the work was done, or not return at all. So
each attempt of `python -m dist_classicrl launch` has a folder, which all hosts see, and the launcher goes by
what the ranks write there.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dist_classicrl._files import whole_file

LAUNCH_VARIABLE = "DIST_CLASSICRL_LAUNCH"
"""The environment variable that tells ranks the folder of their attempt."""

_ALIVE = "alive"
_STARTING = "mpi-starts"
_STARTED = "mpi-runs"
_PART = "part-"
_DONE = "done-"
_ENDED = "ended-"
# Rank, exit status, kind, whether it was in charge, and whether MPI had not begun, before host and process.
_ENDING = re.compile(rf"{_ENDED}(\d+)-(\d+)-(code|error|told|lost|left)-([01])-([01])-")


@dataclass(frozen=True)
class Ending:
    """How the script ended on one rank.

    The kinds are `"code"`: its end or a SystemExit; `"error"`: an exception that nobody handled; `"told"`:
    one that another rank raised; `"lost"`: one that says that other ranks are lost; and `"left"`: this rank's
    end says nothing about the job.
    """

    rank: int
    code: int  # exit status
    kind: str
    reason: str  # the exception, in a line; empty where there was none
    is_head: bool  # the rank was in charge of the job, or of a part of it
    before_mpi: bool  # MPI had not been started, so other ranks may wait for this one for ever


class ExitRecord:
    """The folder of one attempt; what is written to it raises OSError where that fails."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def beat(self) -> None:
        """Say that a rank of this attempt is alive."""
        (self.folder / _ALIVE).touch()

    def last_beat(self) -> int | None:
        """Return when a rank was last alive, in the file system's own time; None if none ever was."""
        try:
            # Opened, since a network file system may answer a mere question from its memory.
            with open(self.folder / _ALIVE, "rb") as file:
                return os.fstat(file.fileno()).st_mtime_ns
        except OSError:
            return None

    def note_mpi(self, runs: bool) -> None:
        """Say that a rank starts MPI now, which takes until all others have done so, or that it `runs`."""
        (self.folder / (_STARTED if runs else _STARTING)).touch()

    @property
    def has_had_mpi(self) -> bool:
        """Whether MPI has started on any rank."""
        return bool(self._files(_STARTED))

    @property
    def is_starting_mpi(self) -> bool:
        """Whether a rank has begun to start MPI, and none has come through."""
        return bool(self._files(_STARTING)) and not self.has_had_mpi

    @property
    def has_ranks(self) -> bool:
        """Whether any rank has ever said anything."""
        return self.last_beat() is not None or bool(self.endings())

    def add(self, ending: Ending) -> None:
        """Write down how the script ended on one rank.

        The name of the file tells it, which takes no room: on a full disk the reason alone, which is in the
        file, is left out.
        """
        flags = f"{ending.is_head:d}-{ending.before_mpi:d}"
        name = (
            f"{_ENDED}{ending.rank}-{ending.code}-{ending.kind}-{flags}-{socket.gethostname()}-{os.getpid()}"
        )
        try:
            with whole_file(self.folder / name) as file:
                file.write(ending.reason.encode(errors="backslashreplace"))
        except OSError:
            (self.folder / name).touch()

    def endings(self) -> list[Ending]:
        """Return how the script ended on the ranks where it has, by rank."""
        found = []
        for path in self._files(_ENDED):
            if (told := _ENDING.match(path.name)) is None:
                continue
            rank, code, kind, is_head, before_mpi = told.groups()
            reason = ""
            with suppress(OSError):
                reason = path.read_bytes().decode(errors="replace")
            found.append(Ending(int(rank), int(code), kind, reason, is_head == "1", before_mpi == "1"))
        return sorted(found, key=lambda ending: ending.rank)

    def note_part(self, part: int) -> None:
        """Say that a part of the job has begun, besides that of rank 0: see `exit.note_part`."""
        (self.folder / f"{_PART}{part}").touch()

    def complete(self, part: int = 0) -> None:
        """Make a completion marker, which takes no room: the work of a part of the job is done."""
        (self.folder / f"{_DONE}{part}").touch()

    @property
    def is_complete(self) -> bool:
        """Whether the work of all parts is done."""
        parts = {"0"} | {path.name.removeprefix(_PART) for path in self._files(_PART)}
        return parts <= {path.name.removeprefix(_DONE) for path in self._files(_DONE)}

    def _files(self, prefix: str) -> list[Path]:
        try:
            return [self.folder / name for name in os.listdir(self.folder) if name.startswith(prefix)]
        except OSError:
            return []


def record_of_environment(environ: Mapping[str, str] | None = None) -> ExitRecord | None:
    """Return the record that this process's launcher keeps, or None if it keeps none."""
    folder = (os.environ if environ is None else environ).get(LAUNCH_VARIABLE)
    return ExitRecord(folder) if folder else None
