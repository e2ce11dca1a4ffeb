"""Who serves and who works, and how that changes when ranks are lost, while a call of `train` goes on."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from dist_classicrl.comm.transport import Backoff, Channel
from dist_classicrl.engines.roles.server_base import FIRST_ADMISSION
from dist_classicrl.engines.roles.worker_base import ServerLost
from dist_classicrl.errors import CutOffError
from dist_classicrl.membership.admission import Join, Welcome
from dist_classicrl.membership.election import (
    Base,
    Deposed,
    Election,
    Prepare,
    Settled,
    answer,
    ended_without,
)
from dist_classicrl.membership.group import Group, NewView, Over
from dist_classicrl.membership.view import View

logger = logging.getLogger(__name__)

_ASK_SHARE = 0.25

Result = TypeVar("Result", covariant=True)


class Part(Protocol, Generic[Result]):
    """What a rank does in one mode of training, whatever its role."""

    group: Group

    @property
    def base(self) -> Base:
        """How new what this rank holds is."""

    def serve(self) -> Result:
        """Serve to the end, from what this rank has."""

    def work(self) -> Result:
        """Work to the end."""

    def step_down(self) -> None:
        """Have nothing more to do with the view that was: as its server, or as one of its workers."""

    def release(self) -> None:
        """Take it that all others have the result, as this rank has."""

    def take_over(self) -> None:
        """Make ready to serve, from the base and what it lacks."""

    def hand_in(self, admission: int) -> None:
        """Make ready to work for the server of a new view, which gets what it lacks."""

    def begin_anew(self, entry: Entry) -> None:
        """Make ready to work for a server that took this rank for lost."""


@dataclass(frozen=True)
class Entry:
    """How a rank joins a run that goes on.

    Attributes
    ----------
    channel : Channel
        To the server.
    sequence : int
        This rank's last push that is in the table.
    told : dict
        What there is to know about the run.
    """

    channel: Channel
    sequence: int
    told: dict[str, Any]


def take_part(part: Part[Result]) -> Result:
    """Serve or work until the call is done, through all changes of the server.

    Raises
    ------
    CutOffError
        If too few ranks are heard to go on, or the run ended without this rank.
    """
    group = part.group
    while True:
        try:
            return part.serve() if group.is_server else part.work()
        except ServerLost:
            part.step_down()
            lost = group.view
            logger.debug("Rank %d lost the server, rank %d.", group.rank, lost.server)
            try:
                view = Election(group, part.base).run()
            except Settled:
                part.release()
                return part.work()
            if view.term == lost.term:  # the others still hear it
                part.begin_anew(join(group))
                continue
        except Deposed as deposed:
            part.step_down()
            view = deposed.view
        enter(part, view)


def enter(part: Part[Any], view: View) -> None:
    """Take the role that a new view gives this rank."""
    if part.group.rank not in view.members:
        part.begin_anew(join(part.group))
    elif view.server == part.group.rank:
        part.take_over()
    else:
        part.hand_in(FIRST_ADMISSION)


def join(group: Group) -> Entry:
    """Ask to take part in the run that goes on without this rank.

    Raises
    ------
    CutOffError
        If nobody answers, or the run is over.
    """
    wire = group.wire
    group.withdraw()
    backoff = Backoff(wire.sleep)
    end = wire.now() + 2.0 * group.timing.election
    asked = -1e9
    group.joins += 1
    while wire.now() < end:
        if wire.now() - asked > _ASK_SHARE * group.timing.silence:
            server = group.view.server
            # Who serves in place of one that died may be anybody, and does not know of this rank.
            lost = server in group.dead or wire.now() > end - group.timing.election
            for peer in range(wire.size) if lost else [server]:
                group.send(peer, Join(group.joins))
            asked = wire.now()
        for sender, control in group.poll():
            match control:
                case Welcome(view=view) if view.term >= group.promised:
                    group.adopt(view)
                    channel = wire.channel(view.server, group.tag(view.term, control.admission))
                    return Entry(channel, control.sequence, control.told)
                case NewView() if group.accept(control) is not None:
                    asked = -1e9
                    end = wire.now() + 2.0 * group.timing.election
                case Prepare():
                    answer(group, sender, control, Base(), lambda: False)
                case Over():
                    raise ended_without(group.rank)
        backoff.wait()
    raise CutOffError(
        f"Rank {group.rank} was taken for lost, and no server answers its request to take part again: the "
        "run may have ended without it, or the network is cut."
    )
