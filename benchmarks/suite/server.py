"""What workers and the server do with maps, against C, and a push with its reply against a bare ping-pong."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import common
import numpy as np

from dist_classicrl.tables.local import LocalTable
from dist_classicrl.tables.maps import PackedMap, Refresh
from dist_classicrl.tables.shared import SharedTable
from suite.form import Effort, Sized, summary, table_row
from suite.peers import Peers
from suite.twins import Twins

ACTIONS = 4
SIZES = {"256 entries": (256, 256), "4,000,000 entries": (4_000_000, 1_000_000)}
"""Entries of the table and, in random order, of a push and of a refresh."""
KNOWN_STEPS, OTHERS = 8, 3
TRIP_SECONDS = 0.5
TRIPS = (common.FROZEN_LAKE, common.GARNET)


class Maps:
    """A worker's table, the server's, and a push between them, with the same in C beside them."""

    def __init__(self, entries: int, pushed: int) -> None:
        rng = np.random.default_rng(0)
        chosen = np.arange(entries) if pushed == entries else rng.choice(entries, pushed, replace=False)
        self.size = pushed
        self.table = LocalTable(entries // ACTIONS, ACTIONS, np.dtype(np.float64))
        self.shared = SharedTable(rng.random(entries), np.full(entries, OTHERS * KNOWN_STEPS))
        self._touched = rng.permutation(chosen)
        self._learned = rng.random(pushed)
        self.touch()
        self.packed = self.table.pack()
        self.others_learn()
        self._sequence = 0
        order = np.sort(chosen).astype(np.int32)
        values, counts = self.shared.values[order], self.shared.counts[order]
        self.refresh = Refresh(0, 1, None if pushed == entries else order, values, counts)

    def touch(self) -> None:
        """Let the worker have learned something about every entry of a push."""
        arrays, at = self.table.arrays, self._touched
        arrays.weight[at], arrays.shift[at], arrays.updates[at] = 0.5, self._learned, KNOWN_STEPS
        arrays.touched[: at.size], arrays.n_touched[0] = at, at.size

    def others_learn(self) -> None:
        """Let three others have visited each entry as often as the worker did since it last heard of it."""
        self.packed.known[:] = self.shared.counts[self.packed.entries] - OTHERS * KNOWN_STEPS

    def apply(self) -> None:
        """Apply the push at the server."""
        self._sequence += 1
        self.shared.apply(1, self._sequence, self.packed)

    def rebase(self) -> None:
        """Take in a refresh, with one push under way."""
        self.table.rebase(self.refresh, [self.packed])

    def in_c(self, twins: Twins) -> dict[str, Callable[[], None]]:
        """Return the three in C."""
        a, p, r, table, shared = self.table.arrays, self.packed, self.refresh, self.table, self.shared
        out, stamp = PackedMap.empty(self.size, np.dtype(np.int32), False), np.zeros(table.q.size, np.int32)
        maps = (p.size, p.entries, p.weight, p.shift, p.visits)
        refresh = (r.values.size, r.entries, r.values, r.counts, table.base, a.q, a.visits, stamp, 1)
        mine = (self.size, a.touched, a.weight, a.shift, a.updates, a.visits, a.q, table.limit)
        return {
            "pack": twins.prepared("pack", *mine, *out.parts),
            "apply": twins.prepared("apply", *maps, p.known, shared.values, shared.counts, shared.limit),
            "rebase": twins.prepared("rebase", *refresh, *maps, a.best, a.greedy),
        }


def run(case: str, effort: Effort, _: Peers, folder: str) -> dict[str, Any]:
    """Measure one case."""
    return round_trip(effort) if case == "round trip" else with_maps(case, effort, folder)


def with_maps(case: str, effort: Effort, folder: str) -> dict[str, Any]:
    """Measure entries per second of the three kernels."""
    entries, pushed = SIZES[case]
    maps = Maps(entries, pushed)
    in_c = maps.in_c(Twins(folder, ACTIONS)) if shutil.which("gcc") else {}
    stages: dict[str, tuple[Callable[[], Any], str, Callable[[], Any]]] = {
        "push: maps are packed": (maps.table.pack, "pack", maps.touch),
        "apply: the server's table takes them": (maps.apply, "apply", maps.others_learn),
        "re-base: a refresh comes in": (maps.rebase, "rebase", lambda: None),
    }
    rows, figures = [], {}
    for stage, (ours, c, before) in stages.items():
        calls = {"ours": ours, "C": in_c[c]} if in_c else {"ours": ours}
        sized = {
            name: Sized(repeated(call, before, pushed), effort.seconds, pushed)
            for name, call in calls.items()
        }

        def rate(number: int, candidate: Sized) -> float:
            done, seconds = candidate(number)
            return done / seconds

        found = common.interleave(
            {name: lambda number, one=one: rate(number, one) for name, one in sized.items()}, effort.rounds
        )
        figures[stage] = {name: summary(values) for name, values in found.items()}
        ratio = common.median_ratio(found["ours"], found["C"]) if "C" in found else None
        rows.append(
            [stage, *(median(found[name]) if name in found else None for name in ("ours", "C")), ratio]
        )
    text = f"A table of {entries:,} entries, and {pushed:,} of them in a push and in a refresh."
    headers = ["", "ours, entries/s", "C, entries/s", "ours / C"]
    left_out = {} if in_c else {"C": "there is no gcc on this machine"}
    return table_row("server", case, headers, rows, left_out, text=text, figures=figures)


def repeated(call: Callable[[], Any], before: Callable[[], Any], size: int) -> Callable[[int], float]:
    """Return what handles so many entries or more, and returns the seconds for so many of `call` alone."""

    def run_entries(entries: int) -> float:
        times, seconds = -(-entries // size), 0.0
        for _ in range(times):
            before()
            begin = time.perf_counter()
            call()
            seconds += time.perf_counter() - begin
        return seconds * entries / (times * size)

    return run_entries


def round_trip(effort: Effort) -> dict[str, Any]:
    """Measure a job of two ranks."""
    words = ["-m", "suite.server", str(effort.jobs)]
    found = common.last_told(common.mpi_output(2, words, 120.0 + 20.0 * effort.jobs))
    rows = []
    for name, runs in found.items():
        of = {key: median(each[key] for each in runs) for key in runs[0]}
        ratio = median(each["trip"] / each["bare"] for each in runs)
        rows.append([name, of["pushed"], of["pulled"], 1e6 * of["trip"], 1e6 * of["bare"], ratio])
    headers = ["table of", "bytes there", "bytes back", "push and reply, us", "ping-pong, us", "ratio"]
    return table_row("server", "round trip", headers, rows, runs=found)


def run_rank(rounds: int) -> None:
    """Be one rank of the job; rank 0 prints.

    A worker may have one push under way and wants to push every 32 steps, which take it less than a
    microsecond: so it pushes as soon as a reply has come, and learns on while it waits for that.
    """
    from mpi4py import MPI

    from dist_classicrl import DistAsyncQLearning

    comm = MPI.COMM_WORLD
    found: dict[str, list[dict[str, float]]] = {name: [] for name in TRIPS}
    steps = dict.fromkeys(TRIPS, 100_000)
    for number in range(-2, rounds):
        for name in TRIPS:
            agent = DistAsyncQLearning(learning_rate=0.1, seed=0, sync_frequency=1, prefetch_factor=1)
            result = agent.train(common.problem(name), total_steps=steps[name], progress_bar=False)
            if number < 0:
                steps[name] = int(result.steps_per_second * TRIP_SECONDS)
                continue
            pushed, pulled = (round(n / result.pushes) for n in (result.bytes_pushed, result.bytes_pulled))
            trip, bare = result.seconds / result.pushes, ping_pong(comm, pushed, pulled)
            found[name].append({"pushed": pushed, "pulled": pulled, "trip": trip, "bare": bare})
    if comm.Get_rank() == 0:
        print(json.dumps(found))


def ping_pong(comm: Any, there: int, back: int, times: int = 2_000) -> float:
    """Return the seconds of a message of so many bytes from rank 1 to rank 0 and one back."""
    out, home = np.zeros(max(there, 1), np.uint8), np.zeros(max(back, 1), np.uint8)
    is_server = comm.Get_rank() == 0
    comm.Barrier()
    begin = time.perf_counter()
    for _ in range(times):
        if is_server:
            comm.Recv(out, source=1)
            comm.Send(home, dest=1)
        else:
            comm.Send(out, dest=0)
            comm.Recv(home, source=0)
    return float(comm.bcast((time.perf_counter() - begin) / times))


if __name__ == "__main__":
    run_rank(int(sys.argv[1]))
