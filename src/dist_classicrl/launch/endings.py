"""How one start of a job has ended: told from what its ranks wrote down and what mpirun returned."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from dist_classicrl.process.exit_record import Ending, ExitRecord
from dist_classicrl.process.stop import INTERRUPTED

DONE = "the work is done"
_STOP_CODES = (os.EX_TEMPFAIL, INTERRUPTED)


@dataclass(frozen=True)
class Attempt:
    """How one start of the job ended."""

    ranks: int
    seconds: float
    code: int  # exit status to pass on, if this is the last start
    goes_on: bool  # the job died and may be started again
    text: str  # how it ended, in a few words
    lacked: str = ""  # what mpirun, which ended by itself, had not come to: "ranks" or "MPI"

    def is_like(self, other: Attempt) -> bool:
        """Return whether another one, of as many ranks, ended in the same way."""
        return (self.ranks, self.code, self.lacked) == (other.ranks, other.code, other.lacked)


def why_over(record: ExitRecord, ranks: int) -> str | None:
    """Return why the job should end by itself now, or None while there is work to do."""
    if record.is_complete:
        return DONE
    endings = [ending for ending in record.endings() if ending.kind != "left"]
    for ending in endings:
        # A rank that lost the others may be the one that is lost: they go on, or end by themselves.
        is_last = ending.is_head or ending.kind == "error" or ending.before_mpi
        if ending.code and ending.kind != "lost" and is_last:
            return f"rank {ending.rank} ended with exit status {ending.code}"
    return "all ranks have ended" if len(endings) >= ranks else None


def own_ending(endings: Sequence[Ending], code: int | None, was_asked: bool) -> Ending | None:
    """Return which of these endings with another status than 0 is the job's own, or None if the job died.

    `code` is mpirun's, if it ended by itself. A system that kills a job sends its ranks SIGTERM first, and
    one may be quick enough to stop in order: that means nothing, unless mpirun has the same exit status or
    this launcher has asked for it.
    """
    by_kind: dict[str, list[Ending]] = {}
    for ending in endings:
        by_kind.setdefault(ending.kind, []).append(ending)
    if "error" in by_kind:
        return by_kind["error"][0]
    if "lost" in by_kind:
        return None
    for ending in sorted(by_kind.get("code", []), key=lambda each: not each.is_head):
        may_be_killed = ending.code in _STOP_CODES and (not ending.reason or "SIGTERM" in ending.reason)
        agreed = ending.code == code or (code is None and ending.is_head)
        if was_asked or agreed or not may_be_killed:
            return ending
    return by_kind["told"][0] if "told" in by_kind else None


def described(ending: Ending) -> str:
    """Return in words how the script ended on a rank."""
    reason = f" ({ending.reason})" if ending.reason else ""
    return f"rank {ending.rank} ended with exit status {ending.code}{reason}"


def shell_status(status: int | None) -> int:
    """Return an exit status of `subprocess` as shells have it; None stands for a process that was killed."""
    if status is None:
        return 128 + signal.SIGKILL
    return status if status >= 0 else 128 - status


def mpirun_said(status: int | None) -> str:
    """Return in words what mpirun returned."""
    code = shell_status(status)
    if code == 0:
        return "mpirun returned 0, though the work was not done"
    try:
        name = f", {signal.Signals(code - 128).name}"
    except ValueError:
        name = ""
    return f"mpirun returned {code}{name}"
