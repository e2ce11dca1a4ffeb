"""Communication between ranks, measured in this job or in one that is started for it."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dist_classicrl.comm.world import find_world
from dist_classicrl.diagnosis import marked, probe
from dist_classicrl.diagnosis.children import last_lines, probe_command
from dist_classicrl.errors import LauncherError, SettingsError
from dist_classicrl.launch.hosts import Host, write_hostfile
from dist_classicrl.launch.launcher import find_launcher
from dist_classicrl.launch.mpirun import run_ranks
from dist_classicrl.mpi_tools.communication_profile import CommunicationProfile, pairs_of_hosts


@dataclass(frozen=True)
class ProfilePlan:
    """What is to be measured, on how many ranks, and where they are started."""

    sizes: Sequence[int]  # bytes
    iterations: int  # how often each is measured at most
    seconds: float  # after which each is measured no more
    timeout: float  # how long to wait for ranks, and twice that for the whole besides the measuring
    ranks: int
    hosts: Sequence[Host] = ()  # none: this machine alone, or what a batch system has given
    agent: str | None = None  # see `host_words`
    network: str | None = None  # see `network_words`


def measure_here(plan: ProfilePlan) -> CommunicationProfile | None:
    """Measure in this job; every rank calls it, and rank 0 gets the result.

    SingletonError if the ranks of the job are each alone, SettingsError if there is one rank only.
    """
    world = find_world(None, allow_singletons=False)
    if world is None:
        raise SettingsError("One rank has nobody to talk to. Start at least two, or write profile --ranks 2.")
    return probe.measured(world, plan.sizes, plan.iterations, plan.seconds, plan.timeout)


def measure_in_job(plan: ProfilePlan) -> CommunicationProfile:
    """Start the ranks of the plan, and measure there; LauncherError if they do not come to an end."""
    launcher = find_launcher()
    most_pairs = len(pairs_of_hosts([str(rank) for rank in range(plan.ranks)]))
    longest = 2.0 * plan.timeout + (20.0 + 2.0 * most_pairs) * len(plan.sizes) * plan.seconds
    words = [",".join(map(str, plan.sizes)), plan.iterations, plan.seconds, plan.timeout]
    with tempfile.TemporaryDirectory(prefix="profile-") as folder:
        hostfile = Path(folder, "hosts") if plan.hosts else None
        if hostfile is not None:
            write_hostfile(hostfile, plan.hosts, launcher.family)
        at = (hostfile, plan.agent, plan.network)
        command = probe_command(launcher, plan.ranks, *at, "profile", *words)
        job = run_ranks(launcher, command, timeout=longest)
    for said in marked.read(job.output):
        if "profile" in said:
            return CommunicationProfile.from_dict(said["profile"])
    how = f"did not end within {longest:g} s" if job.timed_out else f"ended with status {job.returncode}"
    raise LauncherError(
        f"The {plan.ranks} ranks that were to measure {how}. `dist-classicrl doctor` looks for the cause. "
        f"They wrote:\n{last_lines(job.output)}"
    )
