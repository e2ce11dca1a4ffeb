"""Learning in this process, without messages: all steps in slices, or the rounds of all logical workers."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

import numpy as np

from dist_classicrl.engines.outcome import Learned
from dist_classicrl.engines.progress import Company
from dist_classicrl.engines.run import Run
from dist_classicrl.engines.saving import RESCUE_SECONDS, Position
from dist_classicrl.engines.schedule import Pace, RoundPlayer, next_quotas, sum_of
from dist_classicrl.errors import CheckpointFencedError, DeviceError, DivergenceError
from dist_classicrl.learning.learner import Learner, check_sums
from dist_classicrl.learning.state import State, stack_states
from dist_classicrl.tables.round_merge import RoundMerge
from dist_classicrl.tables.shared import SharedTable

LONGEST_TURN = 1.0
"""Seconds after which a batch of slow steps is cut where others may wait for an answer."""

_SLICE_SECONDS = 0.05
_FIRST_SLICE_COMPILED = 4096
_FIRST_SLICE_STEPPED = 1  # that is one batch: a step may take a second, and a stop must not wait for many
_FOLD_SECONDS = 1.0
_FOLD_SHARE = 0.02
"""Of the time, at most: large tables are brought up to date less often."""


class Loop(ABC):
    """What both ways to learn alone have in common: when to save and to stop."""

    rounds = 0  # that were played, where rounds are

    def __init__(self, run: Run, learner: Learner, company: Company | None = None) -> None:
        self._run = run
        self._learner = learner
        self._company = Company() if company is None else company
        self.own = self._company.own  # the process itself
        self.begin = 0.0
        if run.watch is not None:
            run.watch.waits_for = self._unit
        self._copies = run.values[:0], run.counts[:0]
        #: Whether the table of a learner is not in this memory, as on a card.
        self._learns_elsewhere = getattr(learner.table, "is_elsewhere", False)

    @property
    @abstractmethod
    def _unit(self) -> str:
        """What is not interrupted."""

    @contextmanager
    def _busy_with(self, what: str) -> Iterator[None]:
        """Let whoever asks to stop know what is waited for meanwhile."""
        watch = self._run.watch
        if watch is not None:
            watch.waits_for = what
        yield
        if watch is not None:
            watch.waits_for = self._unit

    @property
    def seconds(self) -> float:
        """Seconds since training began."""
        return time.perf_counter() - self.begin

    def run(self) -> None:
        """Make all steps; raises what `look` does."""
        try:
            self._learn_all()
        except CheckpointFencedError:
            raise
        except Exception:
            self.rescue()
            raise

    @abstractmethod
    def _learn_all(self) -> None:
        """Make all steps."""

    @abstractmethod
    def position(self, whole: bool = True) -> Position:
        """How far the run is; `whole`: with all that learners need to go on as if nothing had been."""

    @property
    def _global_step(self) -> int:
        return self._run.start + self._run.tally.steps - self._run.tally.earlier_steps

    def learners(self) -> State:
        """Return the stacked state of all learners."""
        return stack_states([self._learner.state(number) for number in sorted(self._learner.walkers)])

    @abstractmethod
    def settle(self) -> None:
        """Bring the run's table up to date."""

    @abstractmethod
    def rescue(self) -> None:
        """Save what is there after an error."""

    def report(self, now: bool = False) -> bool:
        """Tell the callbacks what is new, if it is time or `now`. Return whether to go on."""
        reporter = self._run.reporter
        reporter.hear(self._company.record, self._run.saver)
        if reporter.is_due(self.seconds, now):
            with self._busy_with("a report, with its callbacks"):
                reporter.report(self.seconds, [self.own])
            reporter.rest(self.seconds)
        return not (reporter.wants_end or self._company.is_there())

    def look(self) -> None:
        """Save or stop, if it is time.

        `TrainingStopped` is raised if the process was asked to stop, and a `CheckpointFencedError` if another
        server has taken over the checkpoints.
        """
        run, saver = self._run, self._run.saver
        if saver is None:
            if run.watch is not None and run.watch.stop is not None:
                self.report(now=True)
                self.settle()
                raise run.stopped(run.watch.stop, None)
            return
        stop = saver.look(self._global_step)
        if stop is not None:
            self.report(now=True)
            self.settle()
            with self._busy_with("its last checkpoint"):
                where = saver.save_last(run.values, run.counts, self.position())
            run.reporter.hear(self._company.record, saver)
            raise run.stopped(stop, where)
        if saver.is_due(self._global_step):
            saver.begin(self._global_step)
            self.report(now=True)
            self.settle()
            if run.large is None:
                saver.save(*self._copied(), self.position())
            elif self._learns_elsewhere:  # what is here stays as it is until `settle`
                saver.save(run.values, run.counts, self.position(), is_live=True)
            else:  # there is no memory for a copy
                with self._busy_with("a checkpoint"):
                    saver.save_and_wait(run.values, run.counts, self.position())

    def _copied(self) -> tuple[np.ndarray, np.ndarray]:
        """Return a copy of the run's table."""
        run = self._run
        if self._copies[0].size != run.values.size:
            self._copies = np.empty_like(run.values), np.empty_like(run.counts)
        for copy, live in zip(self._copies, (run.values, run.counts), strict=True):
            copy[:] = live
        return self._copies


class StepLoop(Loop):
    """Learns all steps, in slices that last about 50 ms."""

    def __init__(self, run: Run, learner: Learner, company: Company | None = None) -> None:
        super().__init__(run, learner, company)
        self._walker = learner.walkers[0]
        self._stream = run.alone_stream()
        if company is not None:  # where steps end depends on others there already
            self._stream.is_cut = self._has_to_look
        self._turned = 0.0  # when the last slice began
        self._first = self._stream.used
        self._is_sound = True
        self._is_learning = False
        #: Who can go on from the learner's state.
        self._mode = getattr(learner, "mode", "alone")
        #: See `CardLearner`: where something is due, what is learned must not show it.
        self._first_end = getattr(learner, "first_end", None)
        run.lend(self.settle)

    @property
    def _unit(self) -> str:
        is_stepped = self._run.source.simulator is None
        return f"the {'step of the environment that is' if is_stepped else 'steps that are'} being made"

    def _learn_all(self) -> None:
        run, stream, learner = self._run, self._stream, self._learner
        fold_at = time.perf_counter() + _FOLD_SECONDS
        size = _FIRST_SLICE_COMPILED if run.source.simulator is not None else _FIRST_SLICE_STEPPED
        last = self._first + run.steps
        # One sum all along: how the steps are cut must not show in its rounding.
        learner.totals.values[:] = run.tally.episodes, run.tally.returns, run.tally.lengths, 0.0
        try:
            while stream.used < last:
                steps = self._next_slice(size, last - stream.used)
                self._turned = before = time.perf_counter()
                used, self._is_learning = stream.used, True
                learner.learn(self._walker, stream, steps)
                self._is_learning = False
                steps = stream.used - used
                now = time.perf_counter()
                spent = Learned(learning_seconds=now - before, worker_seconds=now - before)
                size = max(1, min(int(steps * _SLICE_SECONDS / max(now - before, 1e-9)), 4 * size))
                run.tally.steps = run.tally.earlier_steps + stream.used - self._first
                self._take_totals()
                run.reporter.count(self.own.rank, steps, spent)
                if now > fold_at and not self._is_being_saved:
                    self.settle()
                    folded = time.perf_counter()
                    fold_at = folded + max(_FOLD_SECONDS, (folded - now) / _FOLD_SHARE)
                goes_on = self.report()
                if stream.used < last:
                    self.look()
                if not goes_on:
                    break
        except BaseException:
            self._wait_for_writing(RESCUE_SECONDS)
            with suppress(DivergenceError, DeviceError):  # a card that failed is not there to be read
                self.settle()
            raise
        finally:
            learner.totals.values[:] = 0.0
        self.settle()

    def _has_to_look(self) -> bool:
        """Whether not to go on to the end of a batch, as its steps are slow; asked between two of them."""
        return self._run.is_asked_to_stop() or time.perf_counter() - self._turned >= LONGEST_TURN

    def _next_slice(self, size: int, left: int) -> int:
        """Return how many of the steps that are `left` to make: about `size`, or till something is due."""
        whole, until = self._whole, self._steps_until_next()
        if self._first_end is not None:
            steps = min(max(1, size // whole) * whole - self._stream.used % whole, left)
            return steps if until >= steps else self._first_end(self._stream, left, int(until))
        batch = math.lcm(self._run.settings.batch_size, whole)
        steps = min(max(1, size // batch) * batch, left)
        return steps if until >= steps else min(-(-int(until) // whole) * whole, steps)

    @property
    def _whole(self) -> int:
        """How many steps are made at once, and not cut.

        Where they end in an environment that is stepped must not depend on the time that it takes.
        """
        is_stepped = self._run.source.simulator is None
        return self._run.settings.batch_size if is_stepped else self._learner.quantum

    @property
    def _is_being_saved(self) -> bool:
        """Whether the run's table is being written to a checkpoint, and not a copy of it."""
        run = self._run
        return (
            self._learns_elsewhere and run.large is not None and run.saver is not None and run.saver.is_busy
        )

    def _wait_for_writing(self, patience: float = math.inf) -> None:
        """Wait until the run's table may change."""
        saver = self._run.saver
        if self._is_being_saved and saver is not None:
            with self._busy_with("a checkpoint"):
                saver.wait(patience)

    def _take_totals(self) -> None:
        """Enter what was learned; errors get small with time, and would get lost in one sum of them all."""
        tally, totals = self._run.tally, self._learner.totals.values
        check_sums(totals)
        tally.episodes, tally.returns, tally.lengths, errors = totals.tolist()
        tally.td_errors += errors
        totals[3] = 0.0

    def _steps_until_next(self) -> float:
        """Return how many steps there are to the next report, or the next checkpoint by steps."""
        run = self._run
        until = run.reporter.next_step - run.tally.steps
        if run.saver is not None:
            until = min(until, run.saver.next_step - self._global_step)
        return max(1, until)

    def rescue(self) -> None:
        """Save what was learned, unless it is beyond all numbers, or on a card that failed.

        Then an earlier checkpoint stays.
        """
        run = self._run
        if self._is_sound and run.saver is not None:
            # Where a callback raised nothing is half done, and the run goes on from there as if it had not.
            run.saver.rescue(run.values, run.counts, self.position(whole=not self._is_learning))

    def settle(self) -> None:
        """Write what was learned into the run's table."""
        run, made = self._run, self._stream.used - self._first
        if not self._is_sound or made == run.kept > 0:
            return
        self._wait_for_writing()
        try:
            run.settle(self._learner.table)
        except (DivergenceError, DeviceError):
            self._is_sound = False
            raise
        run.kept = made

    def position(self, whole: bool = True) -> Position:
        """See `Loop`."""
        run, stream = self._run, self._stream
        return Position(
            run.start + run.kept,
            run.tally.to_dict(self.seconds),
            self._mode,
            stream={"start": stream.start, "used": stream.used} if whole else None,
            learners=self.learners() if whole else {},
            states={} if run.keyed is None else run.keyed.arrays(),
            exact=self._learner.table.exact() if whole and run.values.dtype != np.float64 else None,
        )


class RoundLoop(Loop):
    """Plays the rounds of all logical workers, and merges them."""

    _unit = "the round that is being played"

    def _learn_all(self) -> None:
        run, learner = self._run, self._learner
        shared = SharedTable(run.values, run.counts)
        merge, player = RoundMerge(shared), RoundPlayer(learner)
        while run.kept < run.steps:
            before = time.perf_counter()
            start, left = run.start + run.kept, run.steps - run.kept
            quotas = next_quotas(run.settings, run.pace.updates, start, left, run.seed)
            played = player.play(quotas)
            assert played is not None  # nothing says that it is not to go on
            parts, totals = played
            run.tally.add_learned(sum_of(totals))
            seconds = time.perf_counter() - before
            spent = Learned(learning_seconds=seconds, worker_seconds=seconds)
            version = shared.version
            load = merge.merge([parts])
            learner.table.rebase(shared.refresh(version), [])
            made = quotas.total
            run.pace = run.pace.after(made, load, run.values, run.settings)
            self.rounds += 1
            run.tally.steps += made
            run.kept += made
            run.tally.pushes += len(quotas.workers)
            run.reporter.count(self.own.rank, made, spent)
            goes_on = self.report()
            if run.kept < run.steps:
                self.look()
            if not goes_on:
                break

    def settle(self) -> None:
        """Do nothing: each round is merged into the run's table as it ends."""

    def rescue(self) -> None:
        """Save nothing: who goes on plays the rounds since the last checkpoint again."""

    def position(self, whole: bool = True) -> Position:
        """See `Loop`."""
        run = self._run
        return Position(
            run.start + run.kept,
            run.tally.to_dict(self.seconds),
            "rounds",
            learners=self.learners() if whole else {},
            pace=run.pace.to_dict(),
        )


class LearningOn:
    """What a server does that has lost its workers: it learns by itself what is left of a call.

    `done` steps have been made, and `seconds` passed since this rank began to serve; `company` tells when
    somebody is there to be served.
    """

    def __init__(
        self, run: Run, learner: Learner, loop: type[Loop], done: int, seconds: float, company: Company
    ) -> None:
        self._tally = run.tally
        # What is left counts on in the same tally.
        self._rest = replace(run, start=run.start + done, steps=run.steps - done, resumed=None)
        self._rest.tally, self._rest.reporter, self._rest.pace = run.tally, run.reporter, run.pace
        self._loop = loop(self._rest, learner, company)
        self._loop.begin = time.perf_counter() - seconds

    @property
    def made(self) -> int:
        """Steps that were made here."""
        return self._rest.kept

    @property
    def rounds(self) -> int:
        """Rounds that were played here."""
        return self._loop.rounds

    @property
    def pace(self) -> Pace:
        """That of the next round."""
        return self._rest.pace

    @property
    def learners(self) -> State:
        """The stacked state of all learners, for the next round."""
        return self._loop.learners()

    def run(self) -> None:
        """Learn until all steps are made, or somebody is there to be served; raises what `Loop.run` does."""
        before = self._tally.earlier_steps
        self._tally.earlier_steps = self._tally.steps
        try:
            self._loop.run()
        finally:
            self._tally.earlier_steps = before
