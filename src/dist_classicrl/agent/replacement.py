"""A process that was started to replace a lost rank: what the server has told it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dist_classicrl.comm import messages
from dist_classicrl.comm.transport import Channel, Wire, wait_until
from dist_classicrl.errors import WorkerLeft
from dist_classicrl.membership.admission import Assignment
from dist_classicrl.membership.view import View

_WELCOME_SECONDS = 60.0


@dataclass
class Visit:
    """What a process knows that was started to replace a rank."""

    wire: Wire
    channel: Channel  # to the server
    rank: int  # this process's number in the run
    view: View
    told: dict[str, Any]  # what there is to know about the run, as `Beginning.to_dict` says it
    calls: int = 0  # calls of `train` that the script has begun here


_visit: Visit | None = None


def visit_of(parent: Any) -> Visit:
    """Return what this process, started to replace a rank, was told by the server; wait for that first.

    WorkerLeft where the server is not there any more, RankTimeoutError where it says nothing.
    """
    global _visit
    if _visit is None:
        from mpi4py import MPI

        _visit = _begin_visit(Wire(MPI.COMM_SELF), parent)
    return _visit


def _begin_visit(wire: Wire, parent: Any) -> Visit:
    channel = wire.channel_over(parent)
    arrived: list[np.ndarray] = []

    def has_come() -> bool:
        if (message := channel.poll()) is not None:
            arrived.append(message)
        return bool(arrived) or channel.lost is not None

    wait_until(has_come, _WELCOME_SECONDS, "the server's welcome to a replacement")
    if not arrived:
        raise WorkerLeft(-1)
    assignment: Assignment = messages.decode(arrived[0])
    return Visit(wire, channel, assignment.rank, assignment.view, assignment.told)
