"""What is planned on the machine that is examined."""

from __future__ import annotations

from dataclasses import dataclass

from dist_classicrl.checkpoint.plan import CheckpointPlan
from dist_classicrl.launch.folders import STATE_FOLDER
from dist_classicrl.launch.hosts import Host, is_here
from dist_classicrl.settings import Settings

HERE = "this host"
"""What the host is called on which no rank has said its name."""


@dataclass(frozen=True)
class TrainingPlan:
    """A training as far as it matters to the machine."""

    ranks: int  # the server and the workers
    settings: Settings
    states: int | None = None  # of the table, as far as known
    actions: int | None = None
    checkpoint_dir: str = "."  # a path or a URL
    keep_last: int = CheckpointPlan.keep_last  # how many of the newest checkpoints stay
    hostfile: str | None = None
    hosts: tuple[Host, ...] = ()  # what is in the hostfile
    nodes: tuple[Host, ...] = ()  # those that SLURM has given; none where there is a hostfile
    agent: str | None = None  # what starts a program on another host in place of ssh
    network: str | None = None  # what the ranks are to keep to; see `network_words`
    state_dir: str = STATE_FOLDER  # where ranks tell their launcher how they end
    seconds: float = 60.0  # how long anything that is tried may take

    def hosts_of_ranks(self) -> list[str]:
        """Return the host of each rank, as slots are filled one host after the other; this one is `HERE`."""
        slots = [
            HERE if is_here(host.name) else host.name
            for host in self.hosts or self.nodes
            for _ in range(host.slots or 1)
        ]
        return [slots[rank % len(slots)] if slots else HERE for rank in range(self.ranks)]
