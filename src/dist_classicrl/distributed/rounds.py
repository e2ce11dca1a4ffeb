"""The reproducible mode on many ranks.

Rank 0 merges each round in the order of the logical workers, the others play them.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from dist_classicrl.algorithms.learners import Learner
from dist_classicrl.algorithms.rounds import Quota, play, rounds
from dist_classicrl.distributed import messages
from dist_classicrl.distributed.failures import raise_remote
from dist_classicrl.distributed.messages import Kind
from dist_classicrl.distributed.report import ProgressClock, Tally
from dist_classicrl.distributed.server import EPOCH, beat_seconds, report_progress
from dist_classicrl.distributed.transport import Backoff, Channel, receive
from dist_classicrl.distributed.worker import LOOK_SECONDS, final_of
from dist_classicrl.errors import ProtocolError, RankTimeoutError
from dist_classicrl.settings import Settings
from dist_classicrl.updates.local import LocalTable, PackedMap, Refresh
from dist_classicrl.updates.shared import RoundMerge, SharedTable


def carriers(settings: Settings, workers: list[int]) -> dict[int, int]:
    """Return which rank carries each logical worker."""
    return {logical: workers[logical % len(workers)] for logical in range(settings.logical_workers)}


def merged_message(refresh: Refresh) -> np.ndarray:
    """Return the table after a round as a message."""
    head = np.array([EPOCH, refresh.since, refresh.version], np.int64)
    return messages.encode(Kind.MERGED, head, *refresh.parts)


class RoundServer:
    """Serves one call of `train` in the reproducible mode; see `dist_classicrl.distributed.server.Server`."""

    def __init__(
        self,
        channels: list[Channel],
        table: SharedTable,
        settings: Settings,
        start: int,
        steps: int,
        tally: Tally,
        clock: ProgressClock,
    ) -> None:
        self._all = channels
        self._channels = {channel.peer: channel for channel in channels}
        self._table = table
        self._settings = settings
        self._start = start
        self._steps = steps
        self._tally = tally
        self._clock = clock
        self._begin = time.monotonic()
        self._beat = self._begin

    @property
    def seconds(self) -> float:
        """Seconds since serving began."""
        return time.monotonic() - self._begin

    def run(self) -> None:
        """Merge round after round until all steps have been made.

        Raises
        ------
        RemoteRankError
            If a worker failed.
        RankTimeoutError
            If one was silent for too long.
        """
        self._begin = time.monotonic()
        carried_by = carriers(self._settings, list(self._channels))
        merge = RoundMerge(self._table)
        self._tell(-1)
        for number, quotas in enumerate(rounds(self._settings, self._start, self._steps)):
            waiting = {quota.worker for quota in quotas}
            maps: dict[int, PackedMap] = {}
            stats: dict[int, np.ndarray] = {}
            backoff = Backoff()
            # Who had no part in the end of the last round had nothing to say since.
            for channel in self._all:
                channel.last_heard = time.monotonic()
            while waiting:
                before = len(waiting)
                woken = time.monotonic()
                # What each worker said up to here is received before anybody's silence is judged.
                for channel, message in receive(self._all):
                    self._collect(channel.peer, message, number, carried_by, waiting, maps, stats)
                self._keep_in_touch(woken, {carried_by[worker] for worker in waiting})
                report_progress(self._clock, self.seconds, self._all)
                if len(waiting) == before:
                    backoff.wait()
                else:
                    backoff.reset()
            version = self._table.version
            merge.merge([maps[quota.worker] for quota in quotas])
            self._tally.steps += sum(quota.steps for quota in quotas)
            for quota in quotas:
                self._tally.add_episodes(stats[quota.worker])
            self._tell(version)

    def _tell(self, since: int) -> None:
        self._send(merged_message(self._table.refresh(since)))

    def _send(self, message: np.ndarray) -> None:
        for channel in self._all:
            channel.send(message)
            self._tally.bytes_pulled += message.size

    def _collect(
        self,
        rank: int,
        message: np.ndarray,
        number: int,
        carried_by: dict[int, int],
        waiting: set[int],
        maps: dict[int, PackedMap],
        stats: dict[int, np.ndarray],
    ) -> None:
        kind, parts = messages.decode(message)
        if kind is Kind.FAILED:
            raise_remote(self._channels[rank], parts)
        if kind is Kind.BEAT:
            return
        if kind is not Kind.ROUND:
            raise ProtocolError(f"Worker {rank} sent {kind.name} where a round's maps belong.")
        _, its_round, logical = parts[0].tolist()
        if its_round != number or logical not in waiting or carried_by[logical] != rank:
            raise ProtocolError(
                f"Worker {rank} sent round {its_round} of logical worker {logical} in round {number}, "
                "where it is not due."
            )
        waiting.remove(logical)
        stats[logical] = parts[1]
        maps[logical] = PackedMap.from_parts(parts[2:])
        self._tally.pushes += 1
        self._tally.bytes_pushed += message.size
        self._tally.learning_seconds += float(parts[1][3])
        self._tally.worker_seconds += float(parts[1][4])

    def _keep_in_touch(self, now: float, ranks: set[int]) -> None:
        """Tell all that this rank is there, if it is time, and judge the silence of `ranks`."""
        timeout = self._settings.timeout
        if now - self._beat > beat_seconds(timeout):
            self._beat = now
            self._send(messages.encode(Kind.BEAT))
        for rank in ranks:
            if now - self._channels[rank].last_heard > timeout:
                raise RankTimeoutError(
                    f"Worker rank {rank} gave no sign of life for {timeout:g} s. If one logical worker's "
                    "part of a round can take that long, raise timeout= or lower sync_frequency; else "
                    "look for what hangs there."
                )


class RoundWorker:
    """Carries some of the logical workers for one call of `train`.

    Parameters
    ----------
    channel : Channel
        To the server.
    table : LocalTable
    learners : dict of int to learner
        By logical worker.
    settings : Settings
    start, steps : int
        First global step, and steps of the whole run.
    seed : int
    """

    def __init__(
        self,
        channel: Channel,
        table: LocalTable,
        learners: dict[int, Learner],
        settings: Settings,
        start: int,
        steps: int,
        seed: int,
    ) -> None:
        self._channel = channel
        self._table = table
        self._learners = learners
        self._settings = settings
        self._start = start
        self._steps = steps
        self._seed = seed
        self._version = -1
        self._told = 0.0
        self._looked = 0.0

    def run(self) -> tuple[Refresh, dict[str, Any]]:
        """Play rounds until the server says that the run is done.

        Return the whole final table and the run's result.

        Raises
        ------
        RemoteRankError
            If another rank failed.
        RankTimeoutError
            If the server was silent for too long.
        """
        self._told = time.perf_counter()
        final = self._take_table()
        for number, quotas in enumerate(rounds(self._settings, self._start, self._steps)):
            for quota in quotas:
                if quota.worker in self._learners:
                    self._look()
                    self._play(number, quota)
            final = self._take_table()
        while final is None:
            final = self._take_table()
        self._channel.send(messages.encode(Kind.BYE))
        return final

    def _play(self, number: int, quota: Quota) -> None:
        learner = self._learners[quota.worker]
        begin = time.perf_counter()
        packed = play(quota, learner, self._table, self._seed)
        now = time.perf_counter()
        reals = np.empty(5)
        reals[:3] = learner.totals.take()
        reals[3] = now - begin
        reals[4] = now - self._told
        self._told = now
        head = np.array([EPOCH, number, quota.worker], np.int64)
        self._channel.send(messages.encode(Kind.ROUND, head, reals, *packed.parts))

    def _look(self) -> None:
        """Look now and then for bad news: before this rank has done its part of a round no other comes."""
        now = time.monotonic()
        if now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        if (message := self._poll()) is not None:
            raise ProtocolError(f"The server sent {message[0].name} in the middle of a round.")

    def _poll(self) -> tuple[Kind, list[np.ndarray]] | None:
        """Return the next message, signs of life apart, or None; raise what another rank raised."""
        while (message := self._channel.poll()) is not None:
            kind, parts = messages.decode(message)
            if kind is Kind.FAILED:
                raise_remote(self._channel, parts)
            if kind is not Kind.BEAT:
                return kind, parts
        return None

    def _take_table(self) -> tuple[Refresh, dict[str, Any]] | None:
        """Wait for the next table and re-base on it; return what came with it if it is the last."""
        timeout = self._settings.timeout
        backoff = Backoff()
        begin = time.monotonic()  # while this rank played it heard nothing, whatever was said
        while True:
            message = self._poll()
            if message is None:
                self._channel.reap()
                now = time.monotonic()
                if now - max(begin, self._channel.last_heard) > timeout:
                    raise RankTimeoutError(
                        f"The server, rank {self._channel.peer}, gave no sign of life for {timeout:g} s. "
                        "Look at its log for what it waits for; if its machine is only slow, raise timeout=."
                    )
                if now - self._channel.last_sent > beat_seconds(timeout):
                    self._channel.send(messages.encode(Kind.BEAT))
                backoff.wait()
                continue
            kind, parts = message
            if kind is Kind.DONE:
                return final_of(parts)
            if kind is not Kind.MERGED:
                raise ProtocolError(f"The server sent {kind.name} where a merged table belongs.")
            _, since, version = parts[0].tolist()
            if since > self._version:
                raise ProtocolError(
                    f"A table from version {since} on came to a base of version {self._version}."
                )
            self._table.rebase(
                Refresh(since, version, parts[3] if len(parts) > 3 else None, parts[1], parts[2]), []
            )
            self._version = version
            return None
