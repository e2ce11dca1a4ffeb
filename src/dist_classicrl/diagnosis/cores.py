"""Whether there are cores for the ranks: slots, threads, and cores that ranks are bound to."""

from __future__ import annotations

import os
import socket
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dist_classicrl._hints import usable_cores
from dist_classicrl._words import counted
from dist_classicrl.diagnosis.findings import Finding, failure, ok, warning
from dist_classicrl.diagnosis.plan import HERE, TrainingPlan
from dist_classicrl.launch.hosts import Host, ranks_for, slurm_tasks
from dist_classicrl.launch.launcher import OF_THREADS, THREADS, launch_environment


def asked_threads(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables that tell a process how many threads to start, as far as they are set.

    They are by default this process's.
    """
    environment = os.environ if environment is None else environment
    return {name: environment[name] for name in OF_THREADS if name in environment}


def default_ranks(hosts: Sequence[Host] = ()) -> int:
    """Return how many ranks these hosts, or SLURM's allocation, or this machine, are good for."""
    return sum(host.slots or 1 for host in hosts) or slurm_tasks() or ranks_for(usable_cores())


def examine_slots(plan: TrainingPlan) -> Finding:
    """Compare the ranks with the slots that hostfile, SLURM or the machine's cores give."""
    check = "slots"
    tasks = slurm_tasks()
    if plan.hosts:
        slots = sum(host.slots or 1 for host in plan.hosts)
        if plan.ranks > slots:
            return failure(
                check,
                f"too few: {slots} in {plan.hostfile} for {plan.ranks} ranks",
                f"Write more slots=N into the hostfile, add hosts, or take --ranks {slots}.",
            )
        return ok(check, f"{slots} in {plan.hostfile} for {counted(plan.ranks, 'rank')}")
    if tasks is not None:
        if plan.ranks > tasks:
            return failure(
                check,
                f"too few: SLURM gives {tasks} for {plan.ranks} ranks",
                f"Ask for --ntasks={plan.ranks} in the batch script, or take --ranks {tasks}.",
            )
        return ok(check, f"{tasks} by SLURM for {counted(plan.ranks, 'rank')}")
    cores, workers = usable_cores(), counted(plan.ranks - 1, "worker")
    if plan.ranks == 1:
        return ok(check, f"there {_are_cores(cores)} for a process alone")
    if plan.ranks > ranks_for(cores):
        return warning(
            check,
            f"too few: {counted(plan.ranks, 'rank')} are {workers} and a server, which sleeps, but there "
            f"{_are_cores(cores)}; Open MPI's mpirun by itself refuses more ranks than cores",
            f"Take --ranks {ranks_for(cores)}. More ranks are not faster; `dist-classicrl train` and "
            "`launch` start them all the same (mpirun --map-by :OVERSUBSCRIBE --bind-to none).",
        )
    return ok(check, f"there {_are_cores(cores)} for {workers} and a server, which mostly sleeps")


def examine_threads(plan: TrainingPlan, reports: list[dict[str, Any]]) -> Iterator[Finding]:
    """Look for more threads than cores, and for ranks that are bound to the same cores."""
    by_host = defaultdict(list)
    for report in reports or _expected(plan):
        by_host[str(report["host"])].append(report)
    if not by_host:
        yield warning(
            "threads",
            "it cannot be told how many threads ranks start: all would be on other hosts, and none could be "
            "started",
            "See above why, and type doctor again.",
        )
        return
    everywhere = [report["threads"].items() for each in by_host.values() for report in each]
    odd = {
        f"{name}={value}" for items in everywhere for name, value in items if value and _number(value) is None
    }
    crowded = [text for host, each in by_host.items() if (text := _crowd(host, each))]
    if odd:
        yield warning(
            "threads", f"no number of threads: {', '.join(sorted(odd))}", "Write a number, such as 1."
        )
    elif crowded:
        yield warning(
            "threads",
            f"more threads than cores: {'; '.join(crowded)}",
            f"export {THREADS}=1, and the same of OPENBLAS_, MKL_ and NUMBA_NUM_THREADS: a rank learns in "
            "one thread.",
        )
    else:
        most = max(_threads(report)[0] for each in by_host.values() for report in each)
        why = f": `train` and `launch` set {THREADS}=1 unless you do"
        yield ok("threads", f"one per rank{why}" if most == 1 else f"up to {most} per rank")
    if reports:
        yield _binding(by_host)


def _expected(plan: TrainingPlan) -> list[dict[str, Any]]:
    """Return what those that are to be on this host would report, where none could be started."""
    threads = asked_threads(launch_environment())
    report = {"host": HERE, "cores": list(range(usable_cores())), "threads": threads}
    return [report] * plan.hosts_of_ranks().count(HERE)


def _crowd(host: str, reports: list[dict[str, Any]]) -> str:
    """Return what is said of a host whose ranks start more threads than it has cores; nothing if they fit."""
    cores = len({core for report in reports for core in report["cores"]})
    threads = [_threads(report) for report in reports]
    most, why = max(threads)
    total = sum(number for number, _ in threads)
    if most <= 1 or total <= cores:
        return ""
    ranks = f"{len(reports)} ranks on {host} with {why}"
    return f"{ranks} start {total} threads, and there {_are_cores(cores)}"


def _threads(report: Mapping[str, Any]) -> tuple[int, str]:
    """Return the most threads that a rank starts of a kind, and why so many."""
    asked = {name: n for name, value in report["threads"].items() if (n := _number(value))}
    of_cores = [] if THREADS in asked else [(len(report["cores"]), f"no {THREADS}")]
    return max([*((n, f"{name}={n}") for name, n in asked.items()), *of_cores])


def _number(value: str) -> int | None:
    """Return a number of threads, the first one of such as 4,2, which are for levels; None if it is none."""
    first = value.split(",")[0].strip()
    return int(first) if first.isdecimal() else None


def _binding(by_host: dict[str, list[dict[str, Any]]]) -> Finding:
    check = "binding"
    bound = alone = 0
    for host, reports in by_host.items():
        per_core: dict[tuple[int, ...], int] = defaultdict(int)
        for report in reports:
            per_core[tuple(report["cores"])] += 1
        everything = len({core for cores in per_core for core in cores})
        if host == socket.gethostname():
            everything = max(everything, usable_cores())
        users = Counter(core for report in reports for core in report["cores"])
        single = [report["cores"][0] for report in reports if len(report["cores"]) == 1]
        bound, alone = bound + len(single), alone + sum(users[core] == 1 for core in single)
        for cores, n_ranks in per_core.items():
            # A server sleeps, so one rank more than there are cores is fine.
            if n_ranks > len(cores) + 1 and len(cores) < everything:
                return warning(
                    check,
                    f"{n_ranks} ranks on {host} are bound to the same {counted(len(cores), 'core')}; "
                    "others are free",
                    "Start mpirun with --bind-to none (Intel MPI's with I_MPI_PIN=0), or with --bind-to core "
                    "and one slot per core.",
                )
    if bound:
        ranks = counted(sum(map(len, by_host.values())), "rank")
        return ok(check, f"of {ranks}, {bound} bound to a single core, {alone} to one of its own")
    return ok(check, "the ranks are not bound to single cores")


def _are_cores(n: int) -> str:
    return f"{'is' if n == 1 else 'are'} {counted(n, 'core')}"
