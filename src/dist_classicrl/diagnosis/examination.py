"""All examinations in their order."""

from __future__ import annotations

import tempfile
from collections.abc import Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from dist_classicrl.diagnosis import card, cores, files, installation, memory, running, stack
from dist_classicrl.diagnosis.cluster import hosts, pairs, sameness
from dist_classicrl.diagnosis.findings import Finding
from dist_classicrl.diagnosis.plan import TrainingPlan
from dist_classicrl.launch.hosts import is_here, ranks_on, write_hostfile
from dist_classicrl.launch.launcher import Launcher

_CHECKPOINTS = "shared checkpoint folder"
_STATE = "shared state folder"
_OF_SHARED = {
    _CHECKPOINTS: ("--checkpoint-dir", "if the server is lost, a rank on another host goes on"),
    _STATE: ("--state-dir", "ranks tell their launcher there whether the work is done"),
}


def examine(plan: TrainingPlan) -> Generator[Finding, None, None]:
    """Examine the machine, and give each finding when it is there. Closed before its end, it cleans up.

    What is missing ends nothing: the rest is examined as far as it can be without it, and on the hosts that
    answer.
    """
    mpi, ranks, traces = stack.Stack(), running.Ranks(), files.Traces()
    cluster = hosts.Cluster()
    others = [host for host in plan.hosts or plan.nodes if not is_here(host.name)]
    try:
        yield from installation.examine()
        yield from stack.examine(mpi, plan.seconds)
        yield from files.examine_folder(traces, plan)
        yield files.examine_cache(plan.seconds)
        yield installation.examine_training(plan.seconds)
        yield cores.examine_slots(plan)
        with tempfile.TemporaryDirectory(prefix="doctor-") as folder:
            if others:
                yield from _examine_hosts(cluster, plan, traces)
            plan = _on_hosts_left(plan, cluster, mpi.launcher, Path(folder))
            if mpi.library is not None and mpi.launcher is not None and (cluster.hosts or not others):
                if len(cluster.names) > 1:
                    yield from pairs.examine(plan, mpi.launcher, cluster.names, Path(folder))
                yield from running.examine(ranks, plan, mpi.launcher, traces.file)
                if ranks.reports:
                    yield running.examine_death(plan, mpi.launcher)
                    if traces.file and not others:
                        reports = [(str(each["host"]), {"sees": each["sees_file"]}) for each in ranks.reports]
                        yield from sameness.examine_shared(_CHECKPOINTS, *_OF_SHARED[_CHECKPOINTS], reports)
        yield from cores.examine_threads(plan, ranks.reports)
        yield from card.examine()
        yield from memory.examine(plan, ranks.reports)
        yield from memory.examine_rows(plan, ranks.reports)
    finally:
        traces.remove(plan.seconds)


def _examine_hosts(cluster: hosts.Cluster, plan: TrainingPlan, traces: files.Traces) -> Iterator[Finding]:
    """Ask all hosts, and compare what they say."""
    of_state = files.Traces()
    try:
        yield from files.examine_state_folder(of_state, plan)
        wanted = {_CHECKPOINTS: traces.file, _STATE: of_state.file}
        wanted = {label: file for label, file in wanted.items() if file}
        yield from hosts.examine(cluster, plan, wanted)
        if len(cluster.said) > 1:
            if plan.hosts:  # SLURM knows its nodes by names of its own
                in_file = {host.name for host in plan.hosts}
                yield sameness.examine_names(
                    {name: cluster.said[name] for name in cluster.said if name in in_file}
                )
            yield from sameness.examine(cluster.said)
            for label in wanted:
                reports = [(name, _sight(said, label)) for name, said in cluster.said.items()]
                yield from sameness.examine_shared(label, *_OF_SHARED[label], reports)
    finally:
        of_state.remove(plan.seconds)


def _sight(said: dict[str, Any], label: str) -> dict[str, Any]:
    """Return whether a host sees a file; one that has not said so, as with a dead file system, does not."""
    sight: dict[str, Any] = said.get("files", {}).get(label, {"sees": False})
    return sight


def _on_hosts_left(
    plan: TrainingPlan, cluster: hosts.Cluster, launcher: Launcher | None, folder: Path
) -> TrainingPlan:
    """Return the plan as far as it can be on the hosts that are left.

    The launcher gets a hostfile of its own kind. It knows SLURM's nodes without, as long as all are left.
    """
    everybody = plan.hosts or plan.nodes
    left = cluster.hosts or plan.hosts
    if launcher is None or not left or left == plan.nodes:
        return plan
    path = folder / "hosts"
    write_hostfile(path, left, launcher.family)
    return replace(plan, ranks=ranks_on(left, everybody, plan.ranks), hosts=left, hostfile=str(path))
