"""Whether tables, bases, maps and replay memories of the ranks fit into their hosts' memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dist_classicrl._memory import huge_pages_for_shared_memory, memory_left, takes_huge_pages
from dist_classicrl._words import counted
from dist_classicrl.diagnosis.findings import Finding, failure, ok, warning
from dist_classicrl.diagnosis.plan import HERE, TrainingPlan
from dist_classicrl.engines.engine import SHARDED_FROM, Layout, engine_for
from dist_classicrl.engines.server.window import KEPT_PER_SLOT
from dist_classicrl.errors import SettingsError
from dist_classicrl.learning.interleaved import WALKERS
from dist_classicrl.learning.rules import find, table_shape, why_none_travels
from dist_classicrl.settings import Settings
from dist_classicrl.tables.large_table import FROM_ENTRIES
from dist_classicrl.tables.line_table import size_of
from dist_classicrl.tables.shape import TableShape

PROCESS_BYTES = 180 * 2**20  # a process with Python, numpy, numba and the compiled code, and nothing learned
COUNT_BYTES = 8
REPLAY_BYTES = 24  # per transition: state and action, reward, next state
_STAMP_BYTES = 4
_MAP_BYTES = 28  # weight, shift, visits, known visits; and the entry's number as int32
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


def shape_of(plan: TrainingPlan) -> TableShape:
    """Return what stands in the table of a plan: with several tables of its rule, and what that shares."""
    if plan.states is None or plan.actions is None:
        return TableShape(0, 1)
    return table_shape(plan.settings.algorithm, plan.states, plan.actions)


def table_bytes(shape: TableShape, dtype: str) -> int:
    """Return what the agent's own table and its visits take."""
    return shape.size * (np.dtype(dtype).itemsize + COUNT_BYTES)


def server_bytes(shape: TableShape, dtype: str) -> int:
    """Return what the table takes on the server, with a copy for checkpoints.

    Values and counts, and both again in the copy; a stamp and a number of each entry; and the log of changes:
    as many numbers as take what values and counts do, each with such values and counts.
    """
    entries = shape.size
    both = np.dtype(dtype).itemsize + COUNT_BYTES
    index = index_bytes(entries)
    log = entries * both // (both + index) * index
    return entries * (2 * both + _STAMP_BYTES + index) + log


def worker_bytes(shape: TableShape, dtype: str) -> int:
    """Return what the local table takes on a worker.

    Per entry: value, weight, shift, updates, visits and place among the touched ones, 8 bytes each, the base
    and a stamp; per row the best value and action.
    """
    return shape.size * (6 * 8 + np.dtype(dtype).itemsize + _STAMP_BYTES) + shape.n_rows * 12 + 16


def maps_bytes(shape: TableShape, settings: Settings) -> int:
    """Return what the pushes take that a worker keeps, if each touched every entry."""
    entries = shape.size
    each = _MAP_BYTES + index_bytes(entries) - 4 + (4 if settings.replay_ratio else 0)
    return (KEPT_PER_SLOT * settings.prefetch_factor + 1) * entries * each


def replay_bytes(settings: Settings) -> int:
    """Return what a learner's replay memory takes."""
    return settings.buffer_size * REPLAY_BYTES if settings.replay_ratio else 0


def rule_bytes(shape: TableShape, settings: Settings, walkers: int) -> int:
    """Return what a learner of so many walkers remembers by its rule: see `RuleMemory`."""
    rule, parameters = find(settings.algorithm)
    each = sum(rule.remembered(parameters)) + rule.n_owned(parameters, *shape.of_table)
    return 8 * (walkers * each + rule.modeled(parameters, *shape.of_table))


def _learner_bytes(plan: TrainingPlan) -> int:
    """Return what a process with copies remembers besides its table, for all walkers that it may have.

    Those of a process alone may take turns; in the reproducible mode it carries several logical workers.
    """
    settings = plan.settings
    is_alone = plan.ranks == 1 and settings.async_updates
    walkers = max(WALKERS, settings.n_envs) if is_alone else settings.n_envs
    carried = 1 if settings.async_updates else settings.longest_part(max(1, plan.ranks - 1))
    return carried * (replay_bytes(settings) + rule_bytes(shape_of(plan), settings, walkers))


def checkpoint_bytes(plan: TrainingPlan) -> int:
    """Return the bytes of a checkpoint at most: all arrays of the table, and what goes on with the walkers.

    Where all of these are known, that is: in a process alone and in the reproducible mode. A process alone
    keeps exact values besides where the table has shorter ones, but of rows, which are as they are.
    """
    shape, settings = shape_of(plan), plan.settings
    saved = shape.bytes_of_arrays(np.dtype(settings.dtype))
    is_in_rows = plan.ranks == 1 and _is_rows_alone(plan)
    if is_in_rows:
        return saved + rule_bytes(shape, settings, WALKERS)
    if plan.ranks == 1 or not settings.async_updates:
        saved += _learner_bytes(replace(plan, ranks=1))
    if plan.ranks == 1 and settings.dtype != "float64":
        saved += 8 * shape.size
    return saved


def needed(plan: TrainingPlan) -> RankMemory:
    """Return what each rank of a plan holds.

    Every rank has the agent's own table and visits, and at the end a message with both; who saves it, the
    mean of a rule's several tables. A process alone with a large table has its rows and nothing else, in a
    compiled environment without action masks.
    """
    shape, settings = shape_of(plan), plan.settings
    if plan.ranks == 1 and _is_rows_alone(plan):
        alone = PROCESS_BYTES + _rows_bytes(plan) + rule_bytes(shape, settings, WALKERS)
        return RankMemory(alone, alone, 0)
    table = table_bytes(shape, settings.dtype)
    own = PROCESS_BYTES + 2 * table
    local = worker_bytes(shape, settings.dtype) + _learner_bytes(plan)
    # A server of rounds may play a part; one that has lost all workers learns as a process alone does.
    learns = plan.ranks == 1 or not settings.async_updates
    means = shape.bytes_of_arrays(np.dtype(settings.dtype)) - table
    server = own + server_bytes(shape, settings.dtype) + means + (local if learns else 0)
    return RankMemory(server, own + local, maps_bytes(shape, settings))


def examine(plan: TrainingPlan, reports: list[dict[str, Any]]) -> Iterator[Finding]:
    """Compare what the ranks hold with the memory that is left on each host."""
    check = "memory"
    memory = needed(plan)
    by_host = _by_host(plan, reports)
    untold = [host for host, each in by_host.items() if _left(each) is None]
    if untold:
        has = "has" if len(untold) == 1 else "have"
        who = "a process alone" if plan.ranks == 1 else "a server"
        workers = "" if plan.ranks == 1 else f", a worker {bytes_text(memory.worker)}"
        yield warning(
            check,
            f"it cannot be told how much {', '.join(untold)} {has} left: {who} needs "
            f"{bytes_text(memory.server)}{workers}",
            "Compare with `free` yourself.",
        )
    for host, each in by_host.items():
        if (left := _left(each)) is not None:
            serves = any(report["rank"] == 0 for report in each)
            yield _verdict(plan, memory, (host, len(by_host)), (serves, len(each) - serves), left)


def _by_host(plan: TrainingPlan, reports: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return what ranks report, by host; what they would report, where none could be started."""
    by_host: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for report in reports or _expected(plan):
        by_host[str(report["host"])].append(report)
    return by_host


def _left(reports: list[dict[str, Any]]) -> int | None:
    """Return what ranks of a host report to be left there; None where they could not tell."""
    return min((int(each["memory"]) for each in reports if each["memory"] is not None), default=None)


def examine_rows(plan: TrainingPlan, reports: Sequence[dict[str, Any]] = ()) -> Iterator[Finding]:
    """Say what the table takes where the ranks of a host learn in the same rows, and in what pages."""
    if plan.states is None or plan.actions is None or plan.ranks == 1 or not plan.settings.async_updates:
        return
    by_host = _by_host(plan, reports)
    if not _learns_in_rows(plan, len(by_host)):
        return
    check = "shared rows"
    most = max(map(len, by_host.values()))
    text = (
        f"with --placement sharded a host needs {bytes_text(_share_of_rows(plan, most))} for the table of "
        f"all its ranks, and {bytes_text(_with_rows(plan))} on each rank"
    )
    lacking = {
        host: _share_of_rows(plan, len(each)) + len(each) * _with_rows(plan) - left
        for host, each in by_host.items()
        if (left := _left(each)) is not None
    }
    worst = max(lacking, key=lambda host: lacking[host], default="")
    if worst and lacking[worst] > 0:
        yield warning(
            check,
            f"{text}: {bytes_text(lacking[worst])} more than {worst} has left",
            "A smaller table, fewer ranks on a host, --dtype float32, or more memory (SLURM: --mem).",
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
    return size_of(shape_of(plan), np.dtype(plan.settings.dtype))


def _share_of_rows(plan: TrainingPlan, ranks: int) -> int:
    """Return what the rows take on a host that has so many of the ranks."""
    return _rows_bytes(plan) * ranks // plan.ranks


def _with_rows(plan: TrainingPlan) -> int:
    """Return what each rank takes besides where all of a host learn in the same rows."""
    shape, settings = shape_of(plan), plan.settings
    own = 0 if _has_no_copy(plan) else table_bytes(shape, settings.dtype)
    return PROCESS_BYTES + own + rule_bytes(shape, settings, WALKERS)


def _has_no_copy(plan: TrainingPlan) -> bool:
    """Whether the table is so large that an agent that learns in its rows has no copy of them."""
    return shape_of(plan).size >= FROM_ENTRIES


def _is_rows_alone(plan: TrainingPlan) -> bool:
    """Whether a process alone has the rows of its table and no copy of them."""
    return _has_no_copy(plan) and plan.settings.async_updates and plan.settings.replay_ratio == 0.0


def _learns_in_rows(plan: TrainingPlan, hosts: int) -> bool:
    """Whether ranks on so many hosts can learn in the same rows, as `train` has it."""
    try:
        engine = engine_for(plan.settings, plan.ranks, "sharded", Layout(hosts=hosts))
    except SettingsError:  # the settings are about copies
        return False
    return engine.name != "supersteps" or why_none_travels(*find(plan.settings.algorithm)) is None


def _fits_as_rows(plan: TrainingPlan, ranks: int, hosts: int, left: int) -> bool:
    """Whether so many ranks on one of the hosts have room for what they hold where they share the rows."""
    is_small = shape_of(plan).size < SHARDED_FROM  # then nobody shares them unless asked to
    if is_small or plan.ranks == 1 or not _learns_in_rows(plan, hosts):
        return False
    return ranks * _with_rows(plan) + _share_of_rows(plan, ranks) <= left


def _verdict(
    plan: TrainingPlan, memory: RankMemory, place: tuple[str, int], ranks: tuple[bool, int], left: int
) -> Finding:
    """Compare what ranks hold, perhaps a server and so many workers, with what is left on their host.

    `place`: that, and how many hosts there are.
    """
    check = "memory"
    (host, hosts), (serves, workers) = place, ranks
    least = serves * memory.server + workers * memory.worker
    who = f"{'a server and ' if serves else ''}{counted(workers, 'worker')} need"
    if plan.ranks == 1:
        who = "a process alone needs"
    text = f"{who} {bytes_text(least)} of {bytes_text(left)} on {host}"
    if plan.states is None or plan.actions is None:
        text += " before there is a table (give --states and --actions)"
    elif plan.ranks > 1:
        text += f" (server {bytes_text(memory.server)}, worker {bytes_text(memory.worker)})"
    remedy = (
        "Fewer ranks on this host (--ranks, or slots in the hostfile), --dtype float32, a smaller "
        "--buffer-size or no replay, or more memory (SLURM: --mem)."
    )
    if least > left and _fits_as_rows(plan, serves + workers, hosts, left):
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
    """Return what ranks would report, where none could be started: of other hosts no memory."""
    left = memory_left()
    return [
        {"host": host, "rank": rank, "memory": left if host == HERE else None}
        for rank, host in enumerate(plan.hosts_of_ranks())
    ]
