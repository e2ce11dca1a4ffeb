"""When a run is saved, and what a checkpoint of it holds. On rank 0, or where a process trains alone."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import InitVar, dataclass, field, replace
from typing import Any

import numpy as np

from dist_classicrl._steps import next_multiple
from dist_classicrl.checkpoint.arrays import ArrayEntry, InSlices
from dist_classicrl.checkpoint.file_thread import FileThread
from dist_classicrl.checkpoint.plan import CheckpointPlan
from dist_classicrl.checkpoint.writer import Writer
from dist_classicrl.engines.outcome import Outcome
from dist_classicrl.errors import CheckpointFencedError
from dist_classicrl.process.stop import Stop, StopWatch
from dist_classicrl.tables.shape import TableShape

logger = logging.getLogger(__name__)

_KEPT_RESULTS = 1000
_LOOK_SECONDS = 0.05
_RETRY_SECONDS = 60.0
_SLOW_SECONDS = 60.0
_ANSWER_SECONDS = 5.0
_SLOWEST_DISK = 5e7
"""Bytes per second with which what systems keep back until the end of a file gets to disk, at least."""
RESCUE_SECONDS = 20.0
"""What saving after an error may take at most: the ranks wait for it before they end the job."""


def longest_silence(patience: float, n_bytes: float) -> float:
    """Return for how many seconds nothing of a checkpoint of so many bytes may go on, as far as can be seen.

    That is `patience`, and what a slow disk needs for what its system kept back until the end of a file.
    """
    return patience + n_bytes / _SLOWEST_DISK


MODES = ("alone", "interleaved", "keyed", "supersteps", "card", "card rows", "rounds", "async")
"""Ways of learning, each of which has its own state of learners: those before "rounds" have one."""


@dataclass(frozen=True)
class Position:
    """How far a run is, besides the table."""

    steps: int  # global steps that the table contains
    tally: dict[str, Any]  # `Tally.to_dict`
    mode: str  # one of `MODES`: who can go on from the learners' state
    stream: dict[str, int] | None = None  # start and steps used of that of a process that learns alone
    version: int = 0  # of the server's table
    applied: dict[str, int] = field(default_factory=dict)  # the last push that the table includes, by rank
    learners: Mapping[str, np.ndarray] = field(default_factory=dict)  # stacked, if they go on as they are
    states: Mapping[str, np.ndarray] = field(default_factory=dict)  # "keys" and more, where states have such
    exact: np.ndarray | None = None  # float64, to go on with alone where the table's own type is shorter
    pace: dict[str, Any] | None = None  # `Pace.to_dict`, where rounds are played


def note_finished(
    finished: list[dict[str, Any]], begin: int, end: int, result: Outcome, environment: str
) -> None:
    """Add a call of `train` to those that are known, for whoever asks for the same again.

    `end` is what was asked for; a callback may have ended it before. `environment` is the text of its own.
    """
    finished.append({"begin": begin, "end": end, "result": result.to_dict(), "environment": environment})
    too_old = finished[-_KEPT_RESULTS - 1 : -_KEPT_RESULTS]
    # That a call was ended early has to be known for good: the calls after it begin where it ended.
    finished[-_KEPT_RESULTS - 1 : -_KEPT_RESULTS] = [
        {**call, "result": {"steps": call["result"]["steps"]}}
        for call in too_old
        if call["result"]["steps"] < call["end"] - call["begin"]
    ]


def finished_call(finished: list[dict[str, Any]], begin: int, end: int | None) -> dict[str, Any] | None:
    """Return the call that began at global step `begin` and was to end at `end`, if it is known.

    `end` is None for whoever does not know where it was to end.
    """
    for call in finished:
        if call["begin"] == begin and end in (None, call["end"]):
            return call
    return None


@dataclass(eq=False)
class Saver:
    """Saves one call of `train`, in the background while it goes on.

    The `description` is what does not change during the call: settings, environment, seed and the like. Its
    "run" is the run's name, eight hexadecimal digits: checkpoints of other runs in the folder are left alone.
    """

    plan: CheckpointPlan
    writer: Writer
    description: dict[str, Any]
    table: tuple[np.ndarray, np.ndarray]  # the agent's whole one and visits, in rows
    shape: TableShape  # what stands in the rows
    corner: tuple[int, int]  # rows and actions of the table that the environment uses
    constant: Mapping[str, np.ndarray]  # what is the same in each checkpoint
    finished: list[dict[str, Any]]  # results of the calls that the agent has finished; `finish` adds this one
    watch: StopWatch  # tells when to stop
    start: InitVar[int]  # global step from which this process goes on
    patience: float  # seconds that the last checkpoint of the call may take

    def __post_init__(self, start: int) -> None:
        #: Lets all hosts write their parts of the table to the checkpoint of this name, and returns the
        #: entries of these; None: the table is here. OSError where they cannot.
        self.write_parts: Callable[[str], Mapping[str, ArrayEntry]] | None = None
        self._start = self._submitted = start
        self._is_live = False  # whether what was submitted last is read from what has to change
        self._saved_at = self._timed = time.monotonic()
        self._waited = 0.0  # seconds in which nothing was learned on account of the last checkpoint
        self._has_told = False  # that this is longer than the interval
        self._told = self.writer.last
        self._next = self._multiple_after(start)

    def look(self, steps: int) -> Stop | None:
        """Look around, at global step `steps`, and return why to stop if at all.

        CheckpointFencedError if another server has taken over the folder.
        """
        self.writer.check()
        if self.writer.busy:
            self._report_slow()
        elif self._next == math.inf:
            self._next = self._multiple_after(steps)
        self.watch.check_time(self.writer.seconds, has_steps=steps > self._start)
        return self.watch.stop

    def is_asked_to_stop(self) -> bool:
        """Whether there is a request to stop, or a time limit leaves just enough time to save.

        It may be asked between two steps of an environment: limits are looked at every 50 ms.
        """
        now = time.monotonic()
        if now - self._timed >= _LOOK_SECONDS:
            self._timed = now
            self.watch.check_time(self.writer.seconds)
        return self.watch.stop is not None

    @property
    def asked_to_stop(self) -> Stop | None:
        """The request to stop that has come, if there is one."""
        return self.watch.stop

    def ask_to_stop(self, stop: Stop) -> None:
        """Take note that another rank was asked to stop."""
        self.watch.ask(stop)

    @property
    def next_step(self) -> float:
        """The first global step at which to save: a multiple of the interval; infinity: at none.

        While the last checkpoint is not on disk there is none.
        """
        return self._next

    def is_due(self, steps: int) -> bool:
        """Whether to save now, at global step `steps`: never before the last checkpoint is on disk.

        One that could not be written is tried again soon. Where all waited for the last one, as long as that
        is learned first: by time, writing takes no more than half of it.
        """
        if self.writer.busy:
            return False
        interval = self.plan.checkpoint_interval.seconds or math.inf
        interval = min(interval, _RETRY_SECONDS) if self.writer.failed else max(interval, self._waited)
        return steps >= self._next or time.monotonic() - self._saved_at >= interval

    def news(self) -> tuple[int, str] | None:
        """Return the global step of a checkpoint and where it is, once it is on disk."""
        last = self.writer.last
        if self.writer.busy or last == self._told or last is None:
            return None
        self._told = last
        return self._submitted, last

    def begin(self, steps: int) -> None:
        """Count the time to the next checkpoint from now on: one at about global step `steps` begins."""
        self._next = self._multiple_after(steps)
        self._saved_at = time.monotonic()
        self._waited = 0.0

    def save(
        self,
        values: np.ndarray,
        counts: np.ndarray,
        position: Position,
        is_live: bool = False,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        """Write a checkpoint in the background; parts, where there are any, before this returns.

        `values` and `counts` (S * A,) must not change before `is_due` says yes again. If they are what is
        learned in, and no copies, `is_live`, whoever no longer waits gives the checkpoint up: `wait`,
        `save_last`. CheckpointFencedError where parts are written, if another server has taken over the
        folder. Before these are, `meanwhile` is called every 50 ms.
        """
        self._submitted = position.steps
        self._is_live = is_live
        self._next = math.inf
        run, body = self.description["run"], self._body(position)
        if self.write_parts is None:
            self.writer.submit(self._arrays(values, counts, position), body, run)
            return
        try:
            name = self.writer.next_name(position.steps, run)
        except CheckpointFencedError:
            raise
        except Exception as error:  # a full disk, a lost connection: backends raise errors of many kinds
            self.writer.fail(error, None)
            return
        with suppress(OSError):
            FileThread("removed").do(lambda look: self.writer.clear(name), self.patience, meanwhile)
        try:
            parts = self.write_parts(str(name))
        except OSError as error:  # what is no trouble of a disk or store goes up, such as a rank that failed
            self.writer.fail(error, name)
            return
        self.writer.submit({**self.constant, **position.learners}, body, run, name, parts)

    @property
    def is_busy(self) -> bool:
        """Whether a checkpoint is being written, whose arrays must not change."""
        return self.writer.needs_arrays

    def wait(self, patience: float = math.inf) -> None:
        """Wait until the last checkpoint is on disk; give it up after `patience`: its arrays may change."""
        seconds = min(patience, self.patience)
        with self._standing_still():
            is_there = self._wait(_in_time(seconds), lambda: None)
        if not is_there:
            self.writer.abandon()
            logger.warning(
                "The checkpoint that was being written to %s is given up after %.0f s: what it is written "
                "from has to change. See whether that disk or its server hangs.",
                self.writer.url,
                seconds,
            )

    def save_and_wait(
        self,
        values: np.ndarray,
        counts: np.ndarray,
        position: Position,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        """Write a checkpoint of what may change as soon as this returns, or raises.

        However long that takes, as long as it goes on: it is given up where nothing of it does for the
        patience of the run, and as long as a slow disk needs for what its system kept back. `meanwhile` is
        called every 50 ms.
        """
        seconds = longest_silence(self.patience, values.nbytes + counts.nbytes)
        try:
            with self._standing_still():
                self.save(values, counts, position, True, meanwhile)
                is_there = self._wait(lambda: self.writer.stalled_for <= seconds, meanwhile)
            if is_there:
                return
        except BaseException:
            self.writer.abandon()
            raise
        self.writer.abandon()
        logger.warning(
            "The checkpoint that was being written to %s is given up, as nothing of it was written for %.0f "
            "s and all wait for it. Training goes on, and the next one is tried once that disk or its server "
            "answers. The last good checkpoint of this process is %s.",
            self.writer.url,
            seconds,
            self.writer.last_good,
        )

    def save_last(
        self,
        values: np.ndarray,
        counts: np.ndarray,
        position: Position,
        meanwhile: Callable[[], None] = lambda: None,
        patience: float = math.inf,
    ) -> str | None:
        """Write a checkpoint and wait for it. Return where it is; None if it could not be written.

        `meanwhile` is called every 50 ms. `patience` in seconds, at most that of the whole run. However this
        ends, `values` and `counts` may change afterwards.
        """
        seconds = min(patience, self.patience)
        in_time = _in_time(seconds)
        try:
            written = self._wait(in_time, meanwhile)
            if written:
                self.save(values, counts, position, True, meanwhile)
                written = self._wait(in_time, meanwhile)
            if not written and self._is_live:
                self.writer.abandon()
        except BaseException:
            self.writer.abandon()
            raise
        if not written:
            logger.warning(
                "The last checkpoint did not get ready within %g s in %s, and was given up. The last good "
                "one of this process is %s.",
                seconds,
                self.writer.url,
                self.writer.last_good,
            )
        self.writer.check()
        if written and self.writer.failed:
            logger.warning(
                "The last checkpoint could not be written to %s, and none follows: what was learned since "
                "the last good one of this process (%s) is not saved. Where this process goes on, save it "
                "elsewhere with save_model, or make room there and call train again.",
                self.writer.url,
                self.writer.last_good,
            )
        return self.writer.last if written and not self.writer.failed else None

    def is_saved(self) -> bool:
        """Whether a checkpoint of this run is there; it counts as there where its disk does not say."""
        run = self.description["run"]
        try:
            return FileThread("read").do(lambda look: self.writer.has_any(run), _ANSWER_SECONDS, lambda: None)
        except OSError:
            return True

    def stop(self) -> None:
        """Write nothing more: another rank does now."""
        self.writer.abandon()

    def rescue(
        self,
        values: np.ndarray,
        counts: np.ndarray,
        position: Position,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        """Save after an error, which must not wait for long to be raised."""
        try:
            self.save_last(values, counts, position, meanwhile, RESCUE_SECONDS)
        except CheckpointFencedError as error:  # no reason to hide what happened
            logger.warning("%s", error)

    def finish(
        self,
        values: np.ndarray,
        counts: np.ndarray,
        position: Position,
        result: Outcome,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> str | None:
        """Save the end of the call, with its result for whoever asks for the same again.

        Return where it is; None if it could not be written.
        """
        environment = self.description["environment"]["text"]
        note_finished(self.finished, **self.description["call"], result=result, environment=environment)
        # The last report comes when this is on disk: whoever goes on from here has nothing to report again.
        tally = {name: count for name, count in position.tally.items() if name != "reported"}
        return self.save_last(values, counts, replace(position, tally=tally), meanwhile)

    @contextmanager
    def _standing_still(self) -> Iterator[None]:
        """Count the time to the next checkpoint from the end of this, in which nothing is learned."""
        begun, interval = time.monotonic(), self.plan.checkpoint_interval.seconds
        yield
        self._saved_at = time.monotonic()
        self._waited = self._saved_at - begun
        is_written = not self.writer.busy and not self.writer.failed
        if interval is None or self._waited <= interval or self._has_told or not is_written:
            return
        self._has_told = True
        logger.warning(
            "All wait while a checkpoint is written to %s, which took %.1f s, and checkpoint_interval asks "
            "for one every %g s. The next one begins once as much time has gone into learning, which is what "
            'a kill may cost. Write checkpoint_interval="%ds" or more for writing to take no more than a '
            "tenth of the time.",
            self.writer.url,
            self._waited,
            interval,
            math.ceil(9.0 * self._waited),
        )

    def _wait(self, goes_on: Callable[[], bool], meanwhile: Callable[[], None]) -> bool:
        while not self.writer.wait(_LOOK_SECONDS):
            self._report_slow()
            if not goes_on():
                return False
            meanwhile()
        return True

    def _multiple_after(self, steps: int) -> float:
        every = self.plan.checkpoint_interval.steps
        return math.inf if every is None else next_multiple(steps, every)

    def _report_slow(self) -> None:
        self.writer.report_slow(max(self.plan.checkpoint_interval.seconds or 0.0, _SLOW_SECONDS))

    def _arrays(self, values: np.ndarray, counts: np.ndarray, position: Position) -> dict[str, Any]:
        arrays: dict[str, Any]
        if "keys" in position.states:
            shape = replace(self.shape, n_states=len(position.states["keys"]))
            arrays = shape.to_arrays(*(array.reshape(-1, shape.n_actions) for array in (values, counts)))
            arrays.update(position.states)
        else:
            whole = self._whole(self.table[0], values), self._whole(self.table[1], counts)
            arrays = self.shape.to_arrays(*whole)
            if counts.dtype != np.int64:  # rows of a `LargeTable`
                arrays = {
                    name: InSlices(array, np.int64 if "visits" in name else array.dtype)
                    for name, array in arrays.items()
                }
        arrays.update(self.constant)
        arrays.update(position.learners)
        if position.exact is not None:
            arrays["exact"] = position.exact
        return arrays

    def _whole(self, table: np.ndarray, corner: np.ndarray) -> np.ndarray:
        """Return the agent's `table` with the environment's `corner` of it as it is now."""
        if table.shape == self.corner:
            return corner.reshape(self.corner)
        whole = table.astype(corner.dtype)
        whole[: self.corner[0], : self.corner[1]] = corner.reshape(self.corner)
        return whole

    def _body(self, position: Position) -> dict[str, Any]:
        return {
            **self.description,
            "steps": position.steps,
            "mode": position.mode,
            "stream": position.stream,
            "pace": position.pace,
            "version": position.version,
            "applied": position.applied,
            "tally": position.tally,
            "finished": list(self.finished),
        }


def _in_time(seconds: float) -> Callable[[], bool]:
    """Return what tells whether so many seconds from now have not passed."""
    deadline = time.monotonic() + seconds
    return lambda: time.monotonic() <= deadline
