"""The reproducible mode on many ranks.

Rank 0 merges each round in the order of the logical workers, the others play them.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np

from dist_classicrl.algorithms.learners import Learner, stack_states, unstack_states
from dist_classicrl.algorithms.rounds import Quota, play, rounds
from dist_classicrl.distributed import messages
from dist_classicrl.distributed.failures import raise_remote
from dist_classicrl.distributed.messages import Kind
from dist_classicrl.distributed.report import ProgressClock, Tally
from dist_classicrl.distributed.saving import Position, Saver
from dist_classicrl.distributed.server import EPOCH, beat_seconds, report_progress, take_in_stop
from dist_classicrl.distributed.stopping import Stop, StopWatch
from dist_classicrl.distributed.transport import Backoff, Channel, receive
from dist_classicrl.distributed.worker import LOOK_SECONDS, final_of, pass_on_stop, raise_stopped
from dist_classicrl.errors import ProtocolError, RankTimeoutError
from dist_classicrl.settings import Settings
from dist_classicrl.updates.local import LocalTable, PackedMap, Refresh
from dist_classicrl.updates.shared import RoundMerge, SharedTable
from dist_classicrl.updates.snapshot import TableSnapshot

_GO_ON = 0
_TELL_STATE = 1
_TELL_STATE_AND_WAIT = 2


def carriers(settings: Settings, workers: list[int]) -> dict[int, int]:
    """Return which rank carries each logical worker."""
    return {logical: workers[logical % len(workers)] for logical in range(settings.logical_workers)}


def merged_message(refresh: Refresh, order: int = _GO_ON) -> np.ndarray:
    """Return the table after a round as a message, with the order to go on or to tell the learners' state."""
    head = np.array([EPOCH, refresh.since, refresh.version, order], np.int64)
    return messages.encode(Kind.MERGED, head, *refresh.parts)


def state_message(logical: int, state: dict[str, np.ndarray]) -> np.ndarray:
    """Return the state of a logical worker's learner as a message."""
    shapes = messages.text({name: list(array.shape) for name, array in state.items()})
    arrays = [array.view(np.uint8) if array.dtype == bool else array for array in state.values()]
    return messages.encode(
        Kind.STATE, np.array([logical], np.int64), shapes, *(part.ravel() for part in arrays)
    )


def state_of(parts: list[np.ndarray]) -> dict[str, np.ndarray]:
    """Return the state in the `parts` of a STATE message."""
    shapes = messages.from_text(parts[1])
    arrays = [part.view(bool) if part.dtype == np.uint8 else part for part in parts[2:]]
    return {name: array.reshape(shape) for (name, shape), array in zip(shapes.items(), arrays, strict=True)}


def stack_by_number(states: dict[int, dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return the state of learners as one, in the order of their numbers."""
    return stack_states([states[number] for number in sorted(states)])


def learners_message(learners: dict[int, dict[str, np.ndarray]]) -> np.ndarray:
    """Return the state of all learners, by logical worker, as one message."""
    return state_message(len(learners), stack_by_number(learners))


def learners_of(message: np.ndarray) -> dict[int, dict[str, np.ndarray]]:
    """Return what `learners_message` packed."""
    _, parts = messages.decode(message)
    stacked, number = state_of(parts), int(parts[0][0])
    return dict(enumerate(unstack_states(stacked, number))) if stacked else {}


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
        saver: Saver | None = None,
    ) -> None:
        self._all = channels
        self._channels = {channel.peer: channel for channel in channels}
        self._table = table
        self._settings = settings
        self._start = start
        self._steps = steps
        self._tally = tally
        self._clock = clock
        self._saver = saver
        self._snapshot = TableSnapshot(table.values, table.counts)
        self._made = 0
        self._asked: Position | None = None
        self._copied = False
        self._states: dict[int, dict[str, np.ndarray]] = {}
        self._begin = time.monotonic()
        self._beat = self._begin

    @property
    def seconds(self) -> float:
        """Seconds since serving began."""
        return time.monotonic() - self._begin

    @property
    def position(self) -> Position:
        """How far the run is after the last round, for a checkpoint of the table as it is then.

        It has the learners' state if that was asked for after this round and told by all.
        """
        asked = self._asked
        known = asked is not None and asked.steps == self._start + self._made
        complete = known and len(self._states) == self._settings.logical_workers
        return Position(
            self._start + self._made,
            self._tally.to_dict(self.seconds),
            "rounds",
            version=self._table.version,
            learners=stack_by_number(self._states) if complete else {},
        )

    def run(self) -> Stop | None:
        """Merge round after round until all steps have been made, or until the run is to stop.

        Return why, in that case. `position` has the learners' state then.

        Raises
        ------
        RemoteRankError
            If a worker failed.
        RankTimeoutError
            If one was silent for too long.
        CheckpointFencedError
            If another server has taken over the checkpoints.
        """
        self._begin = time.monotonic()
        carried_by = carriers(self._settings, list(self._channels))
        merge = RoundMerge(self._table)
        stop = self._tell(-1)
        for number, quotas in enumerate(rounds(self._settings, self._start, self._steps)):
            if stop is not None:
                self._take_in_states(carried_by)
                return stop
            waiting = {quota.worker for quota in quotas}
            maps: dict[int, PackedMap] = {}
            stats: dict[int, np.ndarray] = {}
            backoff = Backoff()
            self._expect_word()
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
            made = sum(quota.steps for quota in quotas)
            self._made += made
            self._tally.steps += made
            for quota in quotas:
                self._tally.add_episodes(stats[quota.worker])
            stop = self._tell(version)
        return None

    def _tell(self, since: int) -> Stop | None:
        """Tell all the table after a round, and return why to stop here, if there is a reason.

        The learners' state is asked for where the run stops or a checkpoint is due.
        """
        stop, order = None, _GO_ON
        saver = self._saver
        if saver is not None and self._made < self._steps:
            stop = saver.look()
            if stop is not None:
                order = _TELL_STATE_AND_WAIT
            elif saver.is_due(self._start + self._made):
                order = _TELL_STATE
                saver.begin(self._start + self._made)
        self._send(merged_message(self._table.refresh(since), order))
        if order != _GO_ON:
            self._states = {}
            self._asked = self.position
            self._copied = order == _TELL_STATE
            if self._copied:
                self._snapshot.copy_now()
        return stop

    def _expect_word(self) -> None:
        """Judge silence from now on: who had no part in the end of the last round had nothing to say."""
        for channel in self._all:
            channel.last_heard = time.monotonic()

    def _take_in_states(self, carried_by: dict[int, int]) -> None:
        """Wait for the learners' state after the last round."""
        backoff = Backoff()
        self._expect_word()
        while len(self._states) < len(carried_by):
            woken = time.monotonic()
            arrived = receive(self._all)
            for channel, message in arrived:
                self._collect(channel.peer, message, -1, carried_by, set(), {}, {})
            missing = {rank for logical, rank in carried_by.items() if logical not in self._states}
            self._keep_in_touch(woken, missing)
            if not arrived:
                backoff.wait()

    def _take_in_state(self, rank: int, parts: list[np.ndarray], carried_by: dict[int, int]) -> None:
        """Keep the state of a logical worker's learner, and save if it was the last that lacked."""
        logical = int(parts[0][0])
        if self._asked is None or logical in self._states or carried_by.get(logical) != rank:
            raise ProtocolError(
                f"Worker {rank} sent the state of logical worker {logical}, which is not due."
            )
        self._states[logical] = state_of(parts)
        if len(self._states) == len(carried_by) and self._copied and self._saver is not None:
            self._copied = False
            position = replace(self._asked, learners=stack_by_number(self._states))
            self._saver.save(self._snapshot.values, self._snapshot.counts, position)

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
        if kind is Kind.STATE:
            self._take_in_state(rank, parts, carried_by)
            return
        if kind is Kind.STOP:
            take_in_stop(self._saver, parts)
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
    watch : StopWatch, optional
        Tells when this rank was asked to stop.
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
        watch: StopWatch | None = None,
    ) -> None:
        self._channel = channel
        self._table = table
        self._learners = learners
        self._settings = settings
        self._start = start
        self._steps = steps
        self._seed = seed
        self._watch = watch
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
        TrainingStopped
            If the server says that the run has stopped.
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
        pass_on_stop(self._watch, self._channel)
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
                pass_on_stop(self._watch, self._channel)
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
            if kind is Kind.STOPPED:
                raise_stopped(self._channel, parts)
            if kind is not Kind.MERGED:
                raise ProtocolError(f"The server sent {kind.name} where a merged table belongs.")
            _, since, version, order = parts[0].tolist()
            if since > self._version:
                raise ProtocolError(
                    f"A table from version {since} on came to a base of version {self._version}."
                )
            self._table.rebase(
                Refresh(since, version, parts[3] if len(parts) > 3 else None, parts[1], parts[2]), []
            )
            self._version = version
            if order != _GO_ON:
                for logical, learner in self._learners.items():
                    self._channel.send(state_message(logical, learner.state()))
            if order != _TELL_STATE_AND_WAIT:
                return None
