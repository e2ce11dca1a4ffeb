"""What is planned on the machine that is examined."""

from __future__ import annotations

from dataclasses import dataclass

from dist_classicrl.launch.folders import STATE_FOLDER
from dist_classicrl.launch.hosts import Host
from dist_classicrl.settings import Settings


@dataclass(frozen=True)
class TrainingPlan:
    """A training as far as it matters to the machine.

    Attributes
    ----------
    ranks : int
        The server and the workers.
    settings : Settings
    states, actions : int or None
        Of the table; None where that is not known.
    checkpoint_dir : str
        A path or a URL.
    hostfile : str or None
    hosts : tuple of Host
        What is in the hostfile.
    nodes : tuple of Host
        Those that SLURM has given; none where there is a hostfile.
    agent : str or None
        What starts a program on another host in place of ssh.
    network : str or None
        What the ranks are to keep to; see `network_words`.
    state_dir : str
        Where ranks tell their launcher how they end.
    seconds : float
        How long anything that is tried may take.
    """

    ranks: int
    settings: Settings
    states: int | None = None
    actions: int | None = None
    checkpoint_dir: str = "."
    hostfile: str | None = None
    hosts: tuple[Host, ...] = ()
    nodes: tuple[Host, ...] = ()
    agent: str | None = None
    network: str | None = None
    state_dir: str = STATE_FOLDER
    seconds: float = 60.0
