"""Where agents are saved: each has a subfolder of its own in a folder of checkpoints."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from dist_classicrl._words import counted
from dist_classicrl.checkpoint.fence import Succession
from dist_classicrl.checkpoint.folder import CheckpointFolder
from dist_classicrl.checkpoint.plan import CheckpointPlan
from dist_classicrl.checkpoint.writer import Writer

logger = logging.getLogger(__name__)

_MISSING = {
    "folder": "The checkpoint folder %s has been removed or emptied since an earlier call of train: it is "
    "made anew, and what was saved in it is gone. This call goes on from what the agent holds.",
    "claim": "The files fence-*.json in %s, which say who may write there, are gone since an earlier call of "
    "train: this process claims the folder anew. Its checkpoints are still there.",
}
"""What is said where `Fence.missing` tells that something is."""

_agents: dict[str, list[str]] = {}  # what the agents of this process learn that are saved in a folder


class PlaceName(NamedTuple):
    """What another rank needs to go on in a place: the agent's number, and the run's name."""

    number: int
    run: str


@dataclass
class Place:
    """An agent's own subfolder of a checkpoint folder."""

    number: int  # of the agent among those of its script
    folder: CheckpointFolder
    writer: Writer
    run: str  # the name of what is learned here from one beginning on, eight hexadecimal digits
    read: str | None = None  # the checkpoint that was last taken up
    is_looked_through: bool = False  # whether the agent has taken up what was here

    @property
    def name(self) -> PlaceName:
        """What another rank needs to go on here in place of this one."""
        return PlaceName(self.number, self.run)

    @property
    def generation(self) -> int:
        """How many claimed this before, this process itself among them where it has claimed it anew."""
        return max(0, self.folder.fence.number - 1)

    def claim(self, read: str | None) -> bool:
        """Make sure of being the only one who writes here; a process that was forked claims it for itself.

        Return False if another process wrote a checkpoint after `read`, the last one that was read, or after
        the last one that was written here before the fork. A folder that was removed or emptied after an
        earlier call is made anew; of one in which only the claims are gone that is found out as ever.
        """
        missing = self.folder.fence.missing()
        if missing is None and self.folder.fence.number > 0:
            return True
        if missing is not None:
            logger.warning(_MISSING[missing], self.folder.url)
        known = None if missing == "folder" else self.writer.last_name or read
        newest = self.folder.newest()
        self.folder.fence.claim()
        # One that could not claim in an earlier call would try again, and the thread of a parent's is not in
        # this process.
        self.writer = Writer(self.folder)
        return self.folder.newest() == newest and (known is None or str(newest) == known)


class Places:
    """The places of one agent, one in each folder in which it is saved.

    `run` is the name of what it learns from one beginning on. It is drawn with the agent, is the same on all
    ranks, and whoever goes on from a checkpoint takes that of the run which wrote it.
    """

    def __init__(self) -> None:
        self.run = os.urandom(4).hex()
        self._own: dict[str, Place] = {}
        self._told: dict[str, PlaceName] = {}  # where another rank saves the agent

    def __iter__(self) -> Iterator[Place]:
        return iter(self._own.values())

    def of(self, plan: CheckpointPlan, experiment: str = "") -> Place:
        """Return the agent's place for a plan.

        The agents of a script are numbered in the order in which they first train with a folder. Where an
        earlier one began the same `experiment`, which says all that decides what is learned, or somebody
        types at a prompt, a warning says that this one does not go on from there.
        """
        folder = plan.checkpoint_dir
        place = self._own.get(folder)
        if place is not None:
            place.folder.keep_last, place.folder.keep_every = plan.keep_last, plan.keep_every
            place.folder.storage.mode = plan.checkpoint_mode
            return place
        if folder in self._told:  # another rank served until now
            return self.take_over(plan, self._told[folder], None)
        earlier = _agents.get(folder, [])
        number = len(earlier)
        if earlier and (hasattr(sys, "ps1") or experiment in filter(None, earlier)):
            logger.warning(
                "%s of this process trained with %s before this one, which has a subfolder of its own, "
                "agent-%d, and does not go on from what an earlier one saved. To go on from there, call the "
                "train() of that one again: in a notebook, make it once, "
                'by if "agent" not in globals():, or restart the process.',
                counted(number, "agent"),
                folder,
                number,
            )
        place = self._make(plan, PlaceName(number, self.run))
        _agents[folder][number] = experiment
        return place

    def note(self, plan: CheckpointPlan, name: PlaceName) -> None:
        """Note where the server saves the agent, for this rank to go on there if it has to.

        What it claimed itself in an earlier call is that server's now.
        """
        self._told[plan.checkpoint_dir] = name
        self._own.pop(plan.checkpoint_dir, None)
        _count(plan, name)

    def take_over(self, plan: CheckpointPlan, name: PlaceName, succession: Succession | None) -> Place:
        """Return the place in which a rank saved that is lost, for this one to go on there.

        In the middle of a call its writer claims the folder by `succession`; at the beginning of one it is
        claimed as ever.
        """
        place = self._make(plan, name, succession)
        place.is_looked_through = True
        return place

    def folder(self, plan: CheckpointPlan, number: int) -> CheckpointFolder:
        """Return the subfolder of a script's agent of this number, of which nothing is noted."""
        kept = plan.keep_last, plan.keep_every
        return CheckpointFolder(plan.checkpoint_dir, f"agent-{number}", *kept, plan.checkpoint_mode)

    def _make(self, plan: CheckpointPlan, name: PlaceName, succession: Succession | None = None) -> Place:
        folder = self.folder(plan, name.number)
        place = Place(name.number, folder, Writer(folder, succession), name.run)
        _count(plan, name)
        self._own[plan.checkpoint_dir] = place
        return place


def _count(plan: CheckpointPlan, name: PlaceName) -> None:
    agents = _agents.setdefault(plan.checkpoint_dir, [])
    agents += [""] * (name.number + 1 - len(agents))
