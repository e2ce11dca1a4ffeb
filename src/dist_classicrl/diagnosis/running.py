"""Ranks that are really started: whether they find each other, how fast they talk, what a death does."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dist_classicrl._hints import how_to_install
from dist_classicrl._words import counted
from dist_classicrl.diagnosis import marked, probe
from dist_classicrl.diagnosis.children import last_lines, probe_command
from dist_classicrl.diagnosis.findings import Finding, failure, ok, warning
from dist_classicrl.diagnosis.plan import TrainingPlan
from dist_classicrl.errors import LauncherError
from dist_classicrl.launch.launcher import Launcher
from dist_classicrl.launch.mpirun import run_ranks, survival_words
from dist_classicrl.mpi_tools.communication_profile import POINT_TO_POINT, CommunicationProfile
from dist_classicrl.process.jobs import FinishedJob

_SLOW_SECONDS = 1e-3
_SLOW_BANDWIDTH = 50e6
_LARGE_BYTES = 1 << 20


@dataclass
class Ranks:
    """What the ranks reported in `probe.look`, in the order of ranks; nothing if they did not start."""

    reports: list[dict[str, Any]] = field(default_factory=list)


def examine(ranks: Ranks, plan: TrainingPlan, launcher: Launcher, file: str) -> Iterator[Finding]:
    """Start the ranks of the plan, whose reports are then in `ranks`; each looks for `file`."""
    check = "ranks"
    job = run_probe(plan, launcher, plan.ranks, plan.hostfile, "look", file)
    if isinstance(job, Finding):
        yield job
        return
    said = marked.read(job.output)
    reports = sorted((each for each in said if "rank" in each), key=lambda each: int(each["rank"]))
    sizes = [each["size"] for each in reports]
    if len(sizes) > 1 and set(sizes) == {1}:
        yield failure(
            check,
            f"{launcher} started {len(sizes)} ranks, and each is alone: mpi4py loads another MPI",
            f"Load only one MPI module, or install one Open MPI for both: {how_to_install()}. Under SLURM "
            "use srun --mpi=pmix for Open MPI and --mpi=pmi2 for MPICH.",
        )
    elif job.timed_out:
        yield failure(
            check,
            f"{plan.ranks} ranks did not start and talk within {plan.seconds:g} s\n{last_lines(job.output)}",
            "Look for hosts that cannot reach each other (a firewall, the wrong network: try --network eth0 "
            "and the like), or give --timeout more seconds.",
        )
    elif job.returncode != 0 or sizes != [plan.ranks] * plan.ranks:
        yield failure(
            check,
            f"{plan.ranks} ranks ended with status {job.returncode}; they saw worlds of "
            f"{', '.join(map(str, sizes)) or 'no'} ranks\n{last_lines(job.output)}",
            "What mpirun says above names the cause. Where it is a host, check that "
            "`ssh HOST python -c 'import dist_classicrl'` works without a password.",
        )
    else:
        ranks.reports = reports
        hosts = {each["host"] for each in reports}
        yield ok(check, f"{plan.ranks} on {counted(len(hosts), 'host')} find each other")
        for each in said:
            if "profile" in each:
                yield _speed(CommunicationProfile.from_dict(each["profile"]))


def _speed(profile: CommunicationProfile) -> Finding:
    check = "communication"
    messages = [each for each in profile.measurements if each.operation == POINT_TO_POINT]
    large = [each for each in messages if each.bytes == _LARGE_BYTES]
    small = [each for each in messages if each.bytes != _LARGE_BYTES]
    text = "; ".join(
        f"{'on one host' if little.same_host else 'between hosts'} {little.seconds * 1e6:,.1f} us and "
        f"{much.bandwidth / 1e6:,.0f} MB/s"
        for little, much in zip(small, large, strict=True)
    )
    slow = any(each.seconds > _SLOW_SECONDS for each in small)
    if slow or any(each.bandwidth < _SLOW_BANDWIDTH for each in large):
        return warning(
            check,
            f"slow: {text}",
            "Where ranks share cores, give them fewer, or set OMPI_MCA_mpi_yield_when_idle=1 (launch does). "
            "Between hosts ask for the fast network, such as UCX or the right interface; "
            "`dist-classicrl profile` shows more.",
        )
    return ok(check, text)


def examine_death(plan: TrainingPlan, launcher: Launcher) -> Finding:
    """Let one of three ranks be killed, and see whether the others can go on."""
    check = "survives a death"
    if not survival_words(launcher):
        return warning(
            check,
            f"no ULFM: with {launcher} the death of one rank ends the whole job",
            "`dist-classicrl train` and `launch` start it again from its last checkpoint: give a short "
            f"--checkpoint-interval. To go on without a restart use Open MPI 5: {how_to_install()}.",
        )
    job = run_probe(plan, launcher, probe.DEATH_RANKS, plan.hostfile, "death", survive=True)
    if isinstance(job, Finding):
        return job
    said = [each for each in marked.read(job.output) if "told" in each]
    if len(said) == probe.DEATH_RANKS - 1 and all(each["told"] and each["talks"] for each in said):
        if not job.timed_out:
            return ok(check, "a rank was killed; the others were told by ULFM, and went on")
    what = "the job hung" if job.timed_out else f"the job ended with status {job.returncode}"
    told = sum(bool(each["told"]) for each in said)
    return failure(
        check,
        f"a rank was killed, and {what}; {told} of 2 others were told\n{last_lines(job.output)}",
        "Start jobs with --no-ulfm: a death then ends the job, which is started again from its last "
        "checkpoint.",
    )


def run_probe(
    plan: TrainingPlan,
    launcher: Launcher,
    n_ranks: int,
    hostfile: str | Path | None,
    *program: object,
    survive: bool = False,
) -> FinishedJob | Finding:
    """Run a probe on the hosts of a hostfile; return a failure where it cannot be started."""
    try:
        at = (hostfile, plan.agent, plan.network)
        command = probe_command(launcher, n_ranks, *at, *program, survive=survive)
        return run_ranks(launcher, command, timeout=plan.seconds)
    except (LauncherError, OSError) as error:
        return failure(
            "ranks", f"they cannot be started: {error}", f"Check {launcher.path} and {sys.executable}."
        )
