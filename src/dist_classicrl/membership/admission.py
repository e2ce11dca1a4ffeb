"""How a rank comes to take part in a run that goes on without it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dist_classicrl.comm.envelope import Kind
from dist_classicrl.comm.messages import message
from dist_classicrl.membership.group import Question
from dist_classicrl.membership.view import View


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
