"""How a rank comes to take part in a run that goes on without it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dist_classicrl.comm.envelope import Kind
from dist_classicrl.comm.messages import message
from dist_classicrl.comm.transport import Backoff, Channel
from dist_classicrl.errors import CutOffError
from dist_classicrl.membership.election import Base, Prepare, answer, ended_without
from dist_classicrl.membership.group import Group, NewView, Over, Question
from dist_classicrl.membership.view import View

FIRST_ADMISSION = 1
"""What the data channels of a term's first members are numbered with."""

_ASK_SHARE = 0.25


@message(Kind.JOIN)
@dataclass(frozen=True)
class Join(Question):
    """The request of a rank that is not in the run, or not any more; the sender's requests are counted."""

    number: int


@message(Kind.WELCOME)
@dataclass(frozen=True)
class Welcome:
    """The server's answer."""

    admission: int  # what the tag of the channel between the two is made of: see `Group.tag`
    sequence: int  # the rank's last push that is in the table
    view: View  # with the rank
    told: dict[str, Any]  # what there is to know about the run


@message(Kind.ASSIGNMENT)
@dataclass(frozen=True)
class Assignment:
    """What a server tells a process that it started in place of a lost rank."""

    rank: int  # the process's number in the run
    view: View  # still without it
    told: dict[str, Any]  # what there is to know about the run


@dataclass(frozen=True)
class Entry:
    """How a rank joins a run that goes on."""

    channel: Channel  # to the server
    sequence: int  # this rank's last push that is in the table
    told: dict[str, Any]  # what there is to know about the run


def join(group: Group) -> Entry:
    """Ask to take part in the run that goes on; CutOffError if nobody answers, or it is over."""
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
                    group.hear_of_lives([sender])
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
