"""Whether tables, bases, maps and replay memories of the ranks fit into their hosts' memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dist_classicrl._memory import huge_pages_for_shared_memory, memory_left, takes_huge_pages
from dist_classicrl._words import counted
from dist_classicrl.diagnosis.findings import Finding, failure, ok, warning
from dist_classicrl.diagnosis.plan import TrainingPlan
from dist_classicrl.engines.engine import engine_for
from dist_classicrl.errors import SettingsError
from dist_classicrl.settings import Settings
from dist_classicrl.tables.large_table import FROM_ENTRIES
from dist_classicrl.tables.line_table import size_of
from dist_classicrl.tables.shape import TableShape

PROCESS_BYTES = 180 * 2**20  # a process with Python, numpy, numba and the compiled code, and nothing learned
COUNT_BYTES = 8
REPLAY_BYTES = 24  # per transition: state and action, reward, next state
_STAMP_BYTES = 4
_MAP_BYTES = 28  # weight, shift, visits, known visits; and the entry's number as int32
_KEPT_PER_SLOT = 4
_TIGHT = 0.8


@dataclass(frozen=True)
class RankMemory:
    """What ranks hold at most, in bytes, without their environments."""

    server: int
    worker: int  # each one
    maps: int  # what a worker holds besides, if each push touched the whole table


def index_bytes(entries: int) -> int:
    """Return the bytes of an entry's number."""
    return 4 if entries < 2**31 else 8


def server_bytes(states: int, actions: int, dtype: str) -> int:
    """Return what the table takes on the server, with a copy for checkpoints.

    Values, counts and both again in the copy; a stamp and a number of each entry, and as many numbers again
    as the log of changes holds.
    """
    entries = states * actions
    both = np.dtype(dtype).itemsize + COUNT_BYTES
    index = index_bytes(entries)
    log = entries * both // (both + index) * index
    return entries * (2 * both + _STAMP_BYTES + index) + log


def worker_bytes(states: int, actions: int, dtype: str) -> int:
    """Return what the local table takes on a worker.

    Per entry: value, weight, shift, updates, visits and place among the touched ones, 8 bytes each, the base
    and a stamp; per state the best value and action.
    """
    entries = states * actions
    return entries * (6 * 8 + np.dtype(dtype).itemsize + _STAMP_BYTES) + states * 12 + 16


def maps_bytes(states: int, actions: int, settings: Settings) -> int:
    """Return what the pushes take that a worker keeps, if each touched every entry."""
    entries = states * actions
    each = _MAP_BYTES + index_bytes(entries) - 4 + (4 if settings.replay_ratio else 0)
    return (_KEPT_PER_SLOT * settings.prefetch_factor + 1) * entries * each


def replay_bytes(settings: Settings) -> int:
    """Return what a worker's replay memory takes."""
    return settings.buffer_size * REPLAY_BYTES if settings.replay_ratio else 0


def checkpoint_bytes(plan: TrainingPlan) -> int:
    """Return the bytes of a checkpoint: the table and its visits."""
    entries = (plan.states or 0) * (plan.actions or 0)
    return entries * (np.dtype(plan.settings.dtype).itemsize + COUNT_BYTES)


def needed(plan: TrainingPlan) -> RankMemory:
    """Return what each rank of a plan holds.

    Every rank has the agent's own table and visits, and at the end a message with both. A process alone with
    a large table has its rows and nothing else, in a compiled environment without action masks.
    """
    states, actions, settings = plan.states or 0, plan.actions or 0, plan.settings
    if plan.ranks == 1 and _is_rows_alone(plan):
        alone = PROCESS_BYTES + _rows_bytes(plan)
        return RankMemory(alone, alone, 0)
    own = PROCESS_BYTES + 2 * checkpoint_bytes(plan)
    alone = plan.ranks == 1
    local = worker_bytes(states, actions, settings.dtype) + replay_bytes(settings)
    # A server of rounds may play a part; one that has lost all workers learns as a process alone does.
    learns = alone or not settings.async_updates
    server = own + server_bytes(states, actions, settings.dtype) + (local if learns else 0)
    return RankMemory(server, own + local, maps_bytes(states, actions, settings))


def examine(plan: TrainingPlan, reports: list[dict[str, Any]]) -> Iterator[Finding]:
    """Compare what the ranks hold with the memory that is left on each host."""
    check = "memory"
    memory = needed(plan)
    by_host: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for report in reports or _expected(plan):
        by_host[str(report["host"])].append(report)
    for host, each in by_host.items():
        lefts = [int(report["memory"]) for report in each if report["memory"] is not None]
        if not lefts:
            yield warning(
                check, f"it cannot be told how much {host} has left", "Compare with `free` yourself."
            )
            continue
        serves = any(report["rank"] == 0 for report in each)
        workers = len(each) - serves
        least = serves * memory.server + workers * memory.worker
        yield _verdict(plan, memory, host, (serves, workers), least, min(lefts))


def examine_rows(plan: TrainingPlan) -> Iterator[Finding]:
    """Say what the table takes where the ranks of a host learn in the same rows, and in what pages."""
    if plan.states is None or plan.actions is None or plan.ranks == 1 or not plan.settings.async_updates:
        return
    check = "shared rows"
    rows = _rows_bytes(plan)
    each = PROCESS_BYTES + (0 if _is_rows_alone(plan) else checkpoint_bytes(plan))
    text = (
        f"with --placement sharded a host needs {bytes_text(rows)} for the table of all its ranks, and "
        f"{bytes_text(each)} on each rank"
    )
    left = memory_left()
    if left is not None and rows + each > left:
        yield warning(
            check,
            f"{text}: {bytes_text(rows + each - left)} more than this host has left",
            "A smaller table, --dtype float32, or more memory (SLURM: --mem).",
        )
        return
    pages = huge_pages_for_shared_memory()
    if pages in (None, "always", "within_size", "advise", "force"):
        yield ok(check, text if pages is None else f"{text}, in huge pages ({pages})")
        return
    if takes_huge_pages():
        yield ok(check, f"{text}, in huge pages, which each job makes for itself (shmem_enabled: {pages})")
        return
    yield ok(
        check,
        f"{text}, in pages of 4 KiB (shmem_enabled: {pages}): large tables take a part of a step longer. An "
        "administrator can write advise to /sys/kernel/mm/transparent_hugepage/shmem_enabled; from Linux 6.1 "
        "on there is no need to",
    )


def _rows_bytes(plan: TrainingPlan) -> int:
    return size_of(TableShape(plan.states or 0, plan.actions or 0), np.dtype(plan.settings.dtype))


def _is_rows_alone(plan: TrainingPlan) -> bool:
    """Whether the table is so large that the agent has its rows and no copy of them."""
    is_large = (plan.states or 0) * (plan.actions or 0) >= FROM_ENTRIES
    return is_large and plan.settings.async_updates and plan.settings.replay_ratio == 0.0


def _fits_as_rows(plan: TrainingPlan, ranks: int, left: int) -> bool:
    """Whether a host with so many ranks has room for what they hold of a large table without copies."""
    if (plan.states or 0) * (plan.actions or 0) < FROM_ENTRIES or plan.ranks == 1:
        return False
    try:
        engine_for(plan.settings, plan.ranks, "sharded")
    except SettingsError:  # the settings are about copies
        return False
    return ranks * PROCESS_BYTES + _rows_bytes(plan) * ranks // plan.ranks <= left


def _verdict(
    plan: TrainingPlan, memory: RankMemory, host: str, ranks: tuple[bool, int], least: int, left: int
) -> Finding:
    check = "memory"
    serves, workers = ranks
    who = f"{'a server and ' if serves else ''}{counted(workers, 'worker')}"
    text = f"{who} need {bytes_text(least)} of {bytes_text(left)} on {host}"
    if plan.states is None or plan.actions is None:
        text += " before there is a table (give --states and --actions)"
    else:
        text += f" (server {bytes_text(memory.server)}, worker {bytes_text(memory.worker)})"
    remedy = (
        "Fewer ranks on this host (--ranks, or slots in the hostfile), --dtype float32, a smaller "
        "--buffer-size or no replay, or more memory (SLURM: --mem)."
    )
    if least > left and _fits_as_rows(plan, serves + workers, left):
        return warning(
            check,
            f"too little for copies of the table: {text}",
            "Compiled environments are learned without copies, in one table for a host (--placement auto, "
            f"which is the default, or sharded). For others: {remedy[0].lower()}{remedy[1:]}",
        )
    if least > left:
        return failure(check, f"too little: {text}", remedy)
    if least > _TIGHT * left:
        return warning(check, f"tight: {text}", remedy)
    most = least + workers * memory.maps
    if most > left:
        return warning(
            check,
            f"{text}, and up to {bytes_text(most)} while pushes touch most of the table",
            f"{remedy} A smaller --sync-frequency and --prefetch-factor 1 make kept pushes smaller.",
        )
    return ok(check, text)


def bytes_text(n: float) -> str:
    """Return a number of bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n < 1024:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.3g} {unit}" if n < 100 else f"{n:.0f} {unit}"
        n /= 1024
    return f"{n:,.3g} TiB"


def _expected(plan: TrainingPlan) -> list[dict[str, Any]]:
    """Return what ranks on this host would report, where none could be started."""
    left = memory_left()
    return [{"host": "this host", "rank": rank, "memory": left} for rank in range(plan.ranks)]
