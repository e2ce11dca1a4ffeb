"""`train` in a process that was started to replace a lost rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dist_classicrl.agent.agent_run import get_to_know
from dist_classicrl.agent.request import Request, watching
from dist_classicrl.agent.session import Call, timing_of
from dist_classicrl.comm import messages
from dist_classicrl.comm.transport import Channel, Wire, wait_until
from dist_classicrl.engines.outcome import TrainingResult
from dist_classicrl.engines.roles.changes import Entry
from dist_classicrl.errors import (
    WorkerLeft,
)
from dist_classicrl.membership.admission import Assignment
from dist_classicrl.membership.group import Group
from dist_classicrl.membership.view import View
from dist_classicrl.process import exit as process_exit
from dist_classicrl.process.parent import replacement_mark

if TYPE_CHECKING:
    from dist_classicrl.agent.agent import DistAsyncQLearning

_WELCOME_SECONDS = 60.0


@dataclass
class Visit:
    """What a process knows that was started to replace a rank.

    Attributes
    ----------
    channel : Channel
        To the server.
    rank : int
        This process's number in the run.
    view : View
    told : dict
    calls : int
        Calls of `train` that the script has begun here.
    """

    channel: Channel
    rank: int
    view: View
    told: dict[str, Any]
    calls: int = 0


_visit: Visit | None = None


def train_as_replacement(agent: DistAsyncQLearning, asked: Request, parent: Any) -> TrainingResult:
    """Work for the call of `train` that this process was started for, and end with it.

    Calls before that return what is known of them.

    Raises
    ------
    WorkerLeft
        At the end of that call.
    """
    from mpi4py import MPI

    wire = Wire(MPI.COMM_SELF)
    visit = visit_of(parent)
    visit.calls += 1
    told = visit.told
    if visit.calls < int(replacement_mark() or 1):
        get_to_know(agent, asked.env).close()
        results = [call["result"] for call in told["finished"]][visit.calls - 1 : visit.calls]
        return TrainingResult.from_dict(results[0]) if results else TrainingResult()
    process_exit.note_losses()
    plan = asked.make_plan()
    with watching(plan, visit.rank) as watch:
        group = Group.of_replacement(wire, visit.rank, visit.view, timing_of(agent, wire))
        return Call(agent, asked, group, plan, watch).join(Entry(visit.channel, 0, told))


def visit_of(parent: Any) -> Visit:
    """Return what this process, started to replace a rank, was told by the server; wait for that first.

    Raises
    ------
    WorkerLeft
        If the server is not there any more.
    RankTimeoutError
        If it says nothing.
    """
    global _visit
    if _visit is None:
        from mpi4py import MPI

        _visit = _begin_visit(Wire(MPI.COMM_SELF).channel_over(parent))
    return _visit


def _begin_visit(channel: Channel) -> Visit:
    arrived: list[np.ndarray] = []

    def has_come() -> bool:
        if (message := channel.poll()) is not None:
            arrived.append(message)
        return bool(arrived) or channel.lost is not None

    wait_until(has_come, _WELCOME_SECONDS, "the server's welcome to a replacement")
    if not arrived:
        raise WorkerLeft(-1)
    assignment: Assignment = messages.decode(arrived[0])
    return Visit(channel, assignment.rank, assignment.view, assignment.told)
