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
    """The server's answer.

    Attributes
    ----------
    admission : int
        What the tag of the channel between the two is made of: see `Group.tag`.
    sequence : int
        The rank's last push that is in the table.
    view : View
        With the rank.
    told : dict
        What there is to know about the run.
    """

    admission: int
    sequence: int
    view: View
    told: dict[str, Any]


@message(Kind.ASSIGNMENT)
@dataclass(frozen=True)
class Assignment:
    """What a server tells a process that it started in place of a lost rank.

    Attributes
    ----------
    rank : int
        The process's number in the run.
    view : View
        Still without it.
    told : dict
        What there is to know about the run.
    """

    rank: int
    view: View
    told: dict[str, Any]
