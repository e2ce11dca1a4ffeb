"""Communication between ranks, measured in this job or in one that is started for it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from dist_classicrl.diagnosis.children import last_lines
from dist_classicrl.distributed import probe
from dist_classicrl.distributed.communication_profile import CommunicationProfile, pairs_of_hosts
from dist_classicrl.distributed.launcher import (
    export_words,
    find_launcher,
    host_words,
    launch_environment,
    mpirun_command,
)
from dist_classicrl.distributed.network import network_words
from dist_classicrl.distributed.processes import run_job
from dist_classicrl.distributed.world import find_world
from dist_classicrl.errors import LauncherError, SettingsError


@dataclass(frozen=True)
class ProfilePlan:
    """What is to be measured.

    Attributes
    ----------
    sizes : sequence of int
        Bytes.
    iterations : int
        How often each is measured at most.
    seconds_each : float
        After which it is measured no more.
    timeout : float
        How long to wait for ranks, and twice that for the whole besides the measuring.
    ranks : int
        How many to start.
    hostfile, agent : str or None
        See `host_words`.
    network : str or None
        See `network_words`.
    """

    sizes: Sequence[int]
    iterations: int
    seconds_each: float
    timeout: float
    ranks: int
    hostfile: str | None = None
    agent: str | None = None
    network: str | None = None


def measure_here(plan: ProfilePlan) -> CommunicationProfile | None:
    """Measure in this job; every rank calls it, and rank 0 gets the result.

    Raises
    ------
    SingletonError
        If the ranks of the job are each alone.
    SettingsError
        If there is one rank only.
    """
    world = find_world(None, allow_singletons=False)
    if world is None:
        raise SettingsError("One rank has nobody to talk to. Start at least two, or write profile --ranks 2.")
    return probe.measured(world, plan.sizes, plan.iterations, plan.seconds_each, plan.timeout)


def measure_in_job(plan: ProfilePlan) -> CommunicationProfile:
    """Start the ranks of the plan, and measure there.

    Raises
    ------
    LauncherError
        If they cannot be started, or do not come to an end.
    """
    launcher = find_launcher()
    words = [",".join(map(str, plan.sizes)), plan.iterations, plan.seconds_each, plan.timeout]
    command = [
        *mpirun_command(plan.ranks, launcher),
        *host_words(launcher, plan.hostfile, plan.agent),
        *network_words(launcher, plan.network),
        *export_words(launcher, [name for name in ("PYTHONPATH",) if name in os.environ]),
        *probe.command("profile", *words),
    ]
    most_pairs = len(pairs_of_hosts([str(rank) for rank in range(plan.ranks)]))
    longest = 2.0 * plan.timeout + (20.0 + 2.0 * most_pairs) * len(plan.sizes) * plan.seconds_each
    job = run_job(command, timeout=longest, env=launch_environment())
    for said in probe.reports(job.output):
        if "profile" in said:
            return CommunicationProfile.from_dict(said["profile"])
    how = f"did not end within {longest:g} s" if job.timed_out else f"ended with status {job.returncode}"
    raise LauncherError(
        f"The {plan.ranks} ranks that were to measure {how}. `dist-classicrl doctor` looks for the cause. "
        f"They wrote:\n{last_lines(job.output)}"
    )
