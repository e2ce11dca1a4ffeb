"""All examinations in their order."""

from __future__ import annotations

from collections.abc import Iterator

from dist_classicrl.diagnosis import cores, files, memory, running, stack
from dist_classicrl.diagnosis.findings import Finding
from dist_classicrl.diagnosis.plan import TrainingPlan


def examine(plan: TrainingPlan) -> Iterator[Finding]:
    """Examine the machine, and give each finding when it is there.

    What is missing ends nothing: the rest is examined as far as it can be without it.
    """
    mpi, ranks, traces = stack.Stack(), running.Ranks(), files.Traces()
    try:
        yield from stack.examine(mpi, plan.seconds)
        yield from files.examine_folder(traces, plan)
        yield files.examine_cache(plan.seconds)
        yield cores.examine_slots(plan)
        if mpi.library is not None and mpi.launcher is not None:
            yield from running.examine(ranks, plan, mpi.launcher, traces.file)
            if ranks.reports:
                yield running.examine_death(plan, mpi.launcher)
                yield from files.examine_sight(traces, ranks.reports)
        yield from cores.examine_threads(plan, ranks.reports)
        yield from memory.examine(plan, ranks.reports)
    finally:
        traces.remove(plan.seconds)
