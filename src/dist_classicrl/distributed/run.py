"""One call of `train`, once all ranks agree on it: who does what, from compilation to the result."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from dist_classicrl._random import stream_key
from dist_classicrl.algorithms.learners import (
    Learner,
    Rates,
    Stream,
    make_learner,
    training_kernel,
)
from dist_classicrl.algorithms.rounds import play, rounds
from dist_classicrl.distributed.leases import LeaseBook
from dist_classicrl.distributed.pacing import Pacer
from dist_classicrl.distributed.report import Progress, ProgressClock, Tally, TrainingResult
from dist_classicrl.distributed.rounds import RoundServer, RoundWorker, carriers
from dist_classicrl.distributed.server import Server, fail, finish
from dist_classicrl.distributed.startup import Setup
from dist_classicrl.distributed.transport import Channel
from dist_classicrl.distributed.worker import Worker
from dist_classicrl.environments.resolve import Source
from dist_classicrl.errors import EnvError
from dist_classicrl.settings import Settings
from dist_classicrl.updates import kernels
from dist_classicrl.updates.local import LocalTable, PackedMap, Refresh
from dist_classicrl.updates.shared import RoundMerge, SharedTable
from dist_classicrl.updates.window import PushWindow

logger = logging.getLogger(__name__)

_SLICE_SECONDS = 0.05
_FIRST_SLICE = 4096
_FOLD_SECONDS = 1.0
_LINGER_SECONDS = 1.0
_FIRST_LEASE_COMPILED = 20_000
_FIRST_LEASE_STEPPED = 1_000


@dataclass
class Run:
    """What one call of `train` starts from; `values` and `counts` are what it leaves behind.

    Attributes
    ----------
    settings : Settings
    source : Source
    values : ndarray(float64 or float32), shape (S * A,)
        The table at the environment's own size.
    counts : ndarray(int64), shape (S * A,)
        Visits.
    start : int
        Global step at which this call begins.
    steps : int
        Steps of all ranks together.
    seed : int
    progress : callable or None
        Called on rank 0 with a `Progress`, every `progress_interval` seconds and at the end.
    progress_interval : float
    """

    settings: Settings
    source: Source
    values: np.ndarray
    counts: np.ndarray
    start: int
    steps: int
    seed: int
    progress: Callable[[Progress], None] | None
    progress_interval: float

    def __post_init__(self) -> None:
        settings, simulator = self.settings, self.source.simulator
        self._kernel = None if simulator is None else training_kernel(simulator)
        self._legal = None if simulator is None else simulator.legal
        self.tally = Tally(self.steps)
        self.clock = ProgressClock(self.tally, self.progress, self.progress_interval)
        # In the reproducible mode the clock of per-visit step sizes counts logical workers, wherever they
        # run.
        self.logical = None if settings.async_updates else settings.logical_workers
        #: Steps that `values` and `counts` contain, for a run that does not come to its end.
        self.kept = 0

    def local_table(self, n_states: int | None = None) -> LocalTable:
        """Return a worker's table, of fewer states if asked."""
        legal = self._legal
        if n_states is not None and legal is not None:
            legal = np.zeros((n_states, self.source.n_actions), bool)
        return LocalTable(
            n_states or self.source.n_states,
            self.source.n_actions,
            self.values.dtype,
            legal,
            self.settings.replay_ratio > 0.0,
        )

    def learner(self, source: Source, table: LocalTable, rates: Rates, number: int) -> Learner:
        """Return the learner of worker `number`."""
        seed = int(stream_key(self.seed, "environment", number, self.start) >> np.uint64(33))
        return make_learner(source, table, self.settings, rates, seed, self._kernel)

    def add_logical_learners(
        self, learners: dict[int, Learner], numbers: list[int], table: LocalTable, rates: Rates
    ) -> None:
        """Put a learner for each of these logical workers into `learners`, with environments of its own.

        Raises
        ------
        EnvError
            If there is one instance only and several are needed.
        """
        source = self.source
        if source.simulator is None and source.make_another is None and self.settings.logical_workers > 1:
            raise EnvError(
                f"The reproducible mode needs an environment for each of its {self.settings.logical_workers} "
                f"logical workers, but {source.name} is one instance. Pass its id or a function that makes "
                "it, or set logical_workers=1."
            )
        for number in numbers:
            own = source if source.simulator is not None or not learners else source.another()
            learners[number] = self.learner(own, table, rates, number)

    def close(self, learners: Iterable[Learner]) -> None:
        """Close the environments of all learners. What goes wrong there costs a warning, not the training."""
        for closing in (*learners, self.source):
            try:
                closing.close()
            except Exception as error:
                logger.warning("Closing an environment of %s failed: %r", self.source.name, error)


def compile_kernels(run: Run, rates: Rates, as_server: bool, learning_too: bool) -> None:
    """Compile or load what is called besides the learners, on tables of one state.

    `learning_too`: compile or load for the learners as well.
    """
    table = run.local_table(1)
    values = np.zeros(table.q.size, run.values.dtype)
    counts = np.zeros(table.q.size, np.int64)
    shared = SharedTable(values, counts)
    nothing = table.pack()
    if learning_too:
        run.learner(run.source, table, rates, 0).prepare()
    if learning_too or not as_server:
        table.load(values, counts)
        table.rebase(Refresh(-1, 0, None, values, counts), [nothing])
        table.rebase(Refresh(0, 1, nothing.entries, values[:0], counts[:0]), [])
        kernels.map_load(nothing.weight, nothing.visits)
        kernels.mean_and_size(table.base, 1)
        if run.logical is not None:
            table.undo(nothing)
    if as_server:
        if run.logical is not None:
            RoundMerge(shared).merge([nothing])
        else:
            shared.apply(1, 1, nothing)
        shared.refresh(0)


def run_alone(run: Run) -> TrainingResult:
    """Train in this process, without messages."""
    begin = time.perf_counter()
    rates = Rates(run.settings, run.logical or 1)
    learners: dict[int, Learner] = {}
    try:
        table = run.local_table()
        table.load(run.values, run.counts)
        if run.logical is None:
            learners[0] = run.learner(run.source, table, rates, 0)
        else:
            run.add_logical_learners(learners, list(range(run.logical)), table, rates)
        compile_kernels(run, rates, run.logical is not None, False)
        for learner in learners.values():
            learner.prepare()
        compiled = time.perf_counter() - begin
        if run.logical is None:
            seconds = _learn_alone(run, table, learners[0])
        else:
            seconds = _play_rounds_alone(run, table, learners)
    finally:
        run.close(learners.values())
    run.clock.tick(seconds, last=True)
    return run.tally.result(seconds, compiled, workers=1)


def _learn_alone(run: Run, table: LocalTable, learner: Learner) -> float:
    """Learn all steps, in slices that last about 50 ms. Return the seconds that it took."""
    stream = Stream(stream_key(run.seed, "alone", run.start), run.start)
    begin = folded = time.perf_counter()
    size = _FIRST_SLICE
    batch = run.settings.batch_size
    try:
        while stream.used < run.steps:
            # Whole batches: where a batch of a stepped environment ends must not depend on the time that it
            # takes.
            steps = min(max(1, size // batch) * batch, run.steps - stream.used)
            before = time.perf_counter()
            learner.learn(stream, steps)
            now = time.perf_counter()
            size = max(1, min(int(steps * _SLICE_SECONDS / max(now - before, 1e-9)), 4 * size))
            run.tally.steps = stream.used
            run.tally.add_episodes(learner.totals.take())
            if now - folded > _FOLD_SECONDS:
                _fold(run, table, stream)
                folded = now
            run.clock.tick(now - begin)
    except BaseException:
        if np.isfinite(table.q[table.touched[: table.n_touched[0]]]).all():
            _fold(run, table, stream)
        raise
    _fold(run, table, stream)
    return time.perf_counter() - begin


def _fold(run: Run, table: LocalTable, stream: Stream) -> None:
    """Bring the run's table up to the local one.

    The local one is exact: applying the maps would only add rounding.
    """
    run.kept = stream.used
    packed = table.pack()
    run.values[packed.entries] = table.q[packed.entries]
    run.counts[packed.entries] += packed.visits


def _play_rounds_alone(run: Run, table: LocalTable, learners: dict[int, Learner]) -> float:
    shared = SharedTable(run.values, run.counts)
    merge = RoundMerge(shared)
    begin = time.perf_counter()
    for quotas in rounds(run.settings, run.start, run.steps):
        maps: list[PackedMap] = []
        for quota in quotas:
            maps.append(play(quota, learners[quota.worker], table, run.seed))
            run.tally.add_episodes(learners[quota.worker].totals.take())
        version = shared.version
        merge.merge(maps)
        table.rebase(shared.refresh(version), [])
        run.tally.steps += sum(quota.steps for quota in quotas)
        run.kept = run.tally.steps
        run.tally.pushes += len(quotas)
        run.clock.tick(time.perf_counter() - begin)
    return time.perf_counter() - begin


def run_together(run: Run, setup: Setup) -> TrainingResult:
    """Train on all ranks of `setup`: rank 0 serves, the others learn.

    The result and the table are the same everywhere.
    """
    settings = run.settings
    workers = list(range(1, setup.size))
    begin = time.perf_counter()
    rates = Rates(settings, run.logical or len(workers))
    if rates.table is not None:
        setup.broadcast(rates.table)
    serving = setup.rank == 0
    learners: dict[int, Learner] = {}
    error: BaseException | None = None
    table: LocalTable | None = None

    def prepare(first: bool) -> None:
        nonlocal error, table
        try:
            compile_kernels(run, rates, serving, first)
            if serving:
                return
            table = run.local_table()
            if run.logical is None:
                learners[0] = run.learner(run.source, table, rates, setup.rank)
            else:
                carried_by = carriers(settings, workers)
                mine = [logical for logical, rank in carried_by.items() if rank == setup.rank]
                run.add_logical_learners(learners, mine, table, rates)
            for learner in learners.values():
                learner.prepare()
        except BaseException as caught:  # whatever it is, the others must hear of it
            error = caught

    setup.compile_in_turn(prepare)
    compiled = int((time.perf_counter() - begin) * 1e6)
    try:
        compile_seconds = int(setup.agree(error, {}, [compiled])[:, 0].max()) / 1e6
    except BaseException:
        run.close(learners.values())
        raise
    channels: list[Channel] = []
    clean = False
    try:
        if table is None:
            channels = [Channel(setup.comm, rank) for rank in workers]
            result = _serve(run, channels, compile_seconds)
        else:
            channels = [Channel(setup.comm, 0)]
            result = _work(run, setup.rank, channels[0], table, rates, learners)
        clean = True
    except BaseException as caught:
        if channels:
            fail(channels, caught, setup.rank, settings.timeout)
        raise
    finally:
        for channel in channels:
            channel.close(_LINGER_SECONDS if clean else 0.0)
        run.close(learners.values())
        setup.close(clean)
    return result


def _serve(run: Run, channels: list[Channel], compile_seconds: float) -> TrainingResult:
    settings, tally = run.settings, run.tally
    shared = SharedTable(run.values, run.counts)
    ranks = [channel.peer for channel in channels]
    server: Server | RoundServer
    if run.logical is None:
        first = _FIRST_LEASE_COMPILED if run.source.simulator is not None else _FIRST_LEASE_STEPPED
        leases = LeaseBook(run.start, run.steps, ranks, first)
        server = Server(channels, shared, leases, tally, run.clock, settings.timeout)
    else:
        server = RoundServer(channels, shared, settings, run.start, run.steps, tally, run.clock)
    server.run()
    seconds = server.seconds
    run.clock.tick(seconds, last=True)
    learning = len(ranks) if run.logical is None else min(len(ranks), run.logical)
    result = tally.result(seconds, compile_seconds, learning)
    finish(channels, shared, result.to_dict(), settings.timeout)
    return result


def _work(
    run: Run,
    rank: int,
    channel: Channel,
    table: LocalTable,
    rates: Rates,
    learners: dict[int, Learner],
) -> TrainingResult:
    settings = run.settings
    worker: Worker | RoundWorker
    if run.logical is None:
        learner = learners[0]
        pacer = Pacer(settings, rates.workers, learner.quantum)
        window = PushWindow(table, settings.prefetch_factor, -1)
        worker = Worker(
            rank,
            channel,
            table,
            learner,
            pacer,
            window,
            settings.compression_threshold,
            run.seed,
            settings.timeout,
        )
    else:
        worker = RoundWorker(channel, table, learners, settings, run.start, run.steps, run.seed)
    final, data = worker.run()
    run.values[:] = final.values
    run.counts[:] = final.counts
    return TrainingResult.from_dict(data)
