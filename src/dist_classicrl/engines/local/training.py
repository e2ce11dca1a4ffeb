"""One call of `train` in one process, without messages."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from dist_classicrl.engines.outcome import Learned, Outcome
from dist_classicrl.engines.progress import Company, Learning
from dist_classicrl.engines.run import Run
from dist_classicrl.engines.saving import Position
from dist_classicrl.engines.schedule import play, rounds
from dist_classicrl.errors import CheckpointFencedError
from dist_classicrl.learning.learner import Learner
from dist_classicrl.learning.rates import Rates
from dist_classicrl.learning.state import stack_states
from dist_classicrl.tables.maps import PackedMap
from dist_classicrl.tables.shared import RoundMerge, SharedTable

_SLICE_SECONDS = 0.05
_FIRST_SLICE_COMPILED = 4096
_FIRST_SLICE_STEPPED = 1  # that is one batch: a step may take a second, and a stop must not wait for many
_FOLD_SECONDS = 1.0


def run_alone(run: Run) -> Outcome:
    """Train in this process.

    Raises
    ------
    TrainingStopped
        If the process was asked to stop; what it learned is on disk.
    """
    begin = time.perf_counter()
    rates = Rates(run.settings, run.logical or 1)
    learner: Learner | None = None
    try:
        learner = run.learner(rates)
        learner.table.load(run.values, run.counts, None if run.resumed is None else run.resumed.exact)
        run.compile(rates, run.logical is not None, False)
        walkers = [0] if run.logical is None else list(range(run.logical))
        run.add_walkers(learner, walkers)
        run.restore(learner, walkers, "alone" if run.logical is None else "rounds")
        alone: _Alone = (_Learning if run.logical is None else _Rounds)(run, learner)
        compiled = time.perf_counter() - begin
        alone.begin = time.perf_counter()
        run.reporter.begin(0.0, [alone.own])
        try:
            alone.run_all()
        except CheckpointFencedError:
            raise
        except Exception:
            alone.rescue()
            raise
        seconds = alone.seconds
    finally:
        run.close(learner)
    result = run.tally.result(seconds, compiled, workers=1)
    where = None
    if run.saver is not None:
        where = run.saver.finish(run.values, run.counts, alone.position(whole=False), result)
    run.reporter.hear(None, run.saver)
    run.reporter.report(seconds, [alone.own])  # after saving: the callbacks may raise
    stop = None if run.saver is None else run.saver.asked_to_stop
    if stop is not None:  # too late for this call, but not for what the script does next
        raise run.stopped(stop, where)
    return result


class LearningOn:
    """What a server does that has lost its workers: it learns by itself what is left of a call.

    Attributes
    ----------
    made : int
        Steps that were made here.
    """

    def __init__(self, run: Run, rest: Run, alone: _Alone, seconds: float) -> None:
        self._tally = run.tally
        self._rest = rest
        self._alone = alone
        alone.begin = time.perf_counter() - seconds

    @classmethod
    def steps(cls, run: Run, learner: Learner, done: int, seconds: float, company: Company) -> LearningOn:
        """Go on after `done` steps of a run, `seconds` after it began, while nobody is there to serve."""
        rest = _rest(run, done)
        return cls(run, rest, _Learning(rest, learner, company), seconds)

    @classmethod
    def rounds(cls, run: Run, learner: Learner, done: int, seconds: float, company: Company) -> LearningOn:
        """Go on likewise in the reproducible mode."""
        rest = _rest(run, done)
        return cls(run, rest, _Rounds(rest, learner, company), seconds)

    @property
    def made(self) -> int:
        """Steps that were made here."""
        return self._rest.kept

    def run_all(self) -> None:
        """Learn until all steps are made, or somebody is there to be served.

        Raises
        ------
        TrainingStopped
            If the process was asked to stop.
        """
        before = self._tally.earlier_steps
        self._tally.earlier_steps = self._tally.steps
        try:
            self._alone.run_all()
        except CheckpointFencedError:
            raise
        except Exception:
            self._alone.rescue()
            raise
        finally:
            self._tally.earlier_steps = before


def _rest(run: Run, done: int) -> Run:
    """Return what is left of `run`, which counts on in the same tally."""
    rest = replace(run, start=run.start + done, steps=run.steps - done, resumed=None)
    rest.tally, rest.reporter = run.tally, run.reporter
    return rest


class _Alone:
    """What both ways to train alone have in common: when to save and to stop."""

    def __init__(self, run: Run, learner: Learner, company: Company | None = None) -> None:
        self._run = run
        self._learner = learner
        self._company = Company() if company is None else company
        self.begin = 0.0
        self._copies = run.values[:0], run.counts[:0]

    @property
    def own(self) -> Learning:
        """The process itself."""
        return self._company.own

    @property
    def seconds(self) -> float:
        """Seconds since training began."""
        return time.perf_counter() - self.begin

    def run_all(self) -> None:
        """Make all steps."""
        raise NotImplementedError

    def position(self, whole: bool = True) -> Position:
        """How far the run is; `whole`: with all that learners need to go on as if nothing had been."""
        raise NotImplementedError

    def settle(self) -> None:
        """Bring the run's table up to date."""

    def rescue(self) -> None:
        """Save what is there after an error."""

    def report(self, now: bool = False) -> bool:
        """Tell the callbacks what is new, if it is time or `now`. Return whether to go on."""
        reporter = self._run.reporter
        reporter.hear(self._company.record, self._run.saver)
        if now and reporter.has_news or reporter.is_due(self.seconds):
            self.settle()
            reporter.report(self.seconds, [self.own])
            reporter.rest(self.seconds)
        return not (reporter.wants_end or self._company.is_there())

    def look(self) -> None:
        """Save or stop, if it is time.

        Raises
        ------
        TrainingStopped
            If the process was asked to stop.
        CheckpointFencedError
            If another server has taken over the checkpoints.
        """
        run, saver = self._run, self._run.saver
        if saver is None:
            return
        stop = saver.look()
        if stop is not None:
            self.report(now=True)
            self.settle()
            where = saver.save_last(run.values, run.counts, self.position())
            run.reporter.hear(self._company.record, saver)
            raise run.stopped(stop, where)
        steps = run.start + run.tally.steps - run.tally.earlier_steps
        if saver.is_due(steps):
            saver.begin(steps)
            self.report(now=True)
            self.settle()
            if self._copies[0].size != run.values.size:
                self._copies = np.empty_like(run.values), np.empty_like(run.counts)
            for copy, live in zip(self._copies, (run.values, run.counts), strict=True):
                copy[:] = live
            saver.save(*self._copies, self.position())


class _Learning(_Alone):
    """Learns all steps, in slices that last about 50 ms."""

    def __init__(self, run: Run, learner: Learner, company: Company | None = None) -> None:
        super().__init__(run, learner, company)
        self._walker = learner.walkers[0]
        self._stream = run.alone_stream()
        self._first = self._stream.used
        self._is_sound = True

    def run_all(self) -> None:
        run, stream, learner = self._run, self._stream, self._learner
        folded = time.perf_counter()
        size = _FIRST_SLICE_COMPILED if run.source.simulator is not None else _FIRST_SLICE_STEPPED
        batch = run.settings.batch_size
        last = self._first + run.steps
        try:
            while stream.used < last:
                # Whole batches: where a batch of a stepped environment ends must not depend on the time that
                # it takes.
                steps = min(max(1, size // batch) * batch, last - stream.used)
                before = time.perf_counter()
                learner.learn(self._walker, stream, steps)
                now = time.perf_counter()
                size = max(1, min(int(steps * _SLICE_SECONDS / max(now - before, 1e-9)), 4 * size))
                run.tally.steps = run.tally.earlier_steps + stream.used - self._first
                run.tally.add_learned(Learned.of(learner.totals.take()))
                run.reporter.count(self.own.rank, steps, now - before, now - before)
                if now - folded > _FOLD_SECONDS:
                    self.settle()
                    folded = now
                goes_on = self.report()
                if stream.used < last:
                    self.look()
                if not goes_on:
                    break
        except BaseException:
            table = learner.table
            changed = table.touched[: table.n_touched[0]]
            self._is_sound = bool(np.isfinite(table.q[changed]).all())
            if self._is_sound:
                self.settle()
            raise
        self.settle()

    def rescue(self) -> None:
        run = self._run
        if self._is_sound and run.saver is not None:
            run.saver.rescue(run.values, run.counts, self.position(whole=False))

    def settle(self) -> None:
        # The local table is exact: applying the maps would only add rounding.
        run, table = self._run, self._learner.table
        run.kept = self._stream.used - self._first
        packed = table.pack()
        run.values[packed.entries] = table.q[packed.entries]
        run.counts[packed.entries] += packed.visits

    def position(self, whole: bool = True) -> Position:
        run, stream = self._run, self._stream
        return Position(
            run.start + run.kept,
            run.tally.to_dict(self.seconds),
            "alone",
            stream={"start": stream.start, "used": stream.used} if whole else None,
            learners=stack_states([self._learner.state(self._walker)]) if whole else {},
            exact=self._learner.table.exact() if whole and run.values.dtype != np.float64 else None,
        )


class _Rounds(_Alone):
    """Plays the rounds of all logical workers, and merges them."""

    def run_all(self) -> None:
        run, learner = self._run, self._learner
        shared = SharedTable(run.values, run.counts)
        merge = RoundMerge(shared)
        for quotas in rounds(run.settings, run.start, run.steps):
            maps: list[PackedMap] = []
            before = time.perf_counter()
            for quota in quotas:
                maps.append(play(quota, learner, run.seed))
                run.tally.add_learned(Learned.of(learner.totals.take()))
            spent = time.perf_counter() - before
            version = shared.version
            merge.merge(maps)
            learner.table.rebase(shared.refresh(version), [])
            made = sum(quota.steps for quota in quotas)
            run.tally.steps += made
            run.kept += made
            run.tally.pushes += len(quotas)
            run.reporter.count(self.own.rank, made, spent, spent)
            goes_on = self.report()
            if run.kept < run.steps:
                self.look()
            if not goes_on:
                break

    def position(self, whole: bool = True) -> Position:
        run, learner = self._run, self._learner
        return Position(
            run.start + run.kept,
            run.tally.to_dict(self.seconds),
            "rounds",
            learners=stack_states([learner.state(n) for n in sorted(learner.walkers)]) if whole else {},
        )
