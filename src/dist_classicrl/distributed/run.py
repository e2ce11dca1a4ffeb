"""One call of `train`, once all ranks agree on it: who does what, from compilation to the result."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn

import numpy as np

from dist_classicrl._random import stream_key
from dist_classicrl.algorithms.learners import (
    Learner,
    Rates,
    Stream,
    make_learner,
    training_kernel,
)
from dist_classicrl.distributed.leases import LeaseBook
from dist_classicrl.distributed.pacing import Pacer
from dist_classicrl.distributed.report import Progress, ProgressClock, Tally, TrainingResult
from dist_classicrl.distributed.rounds import RoundServer, RoundWorker, carriers
from dist_classicrl.distributed.saving import RESCUE_SECONDS, Saver
from dist_classicrl.distributed.server import (
    Server,
    fail,
    finish,
    keep_alive,
    tell_rescued,
    tell_stopped,
    wait_for_rescue,
)
from dist_classicrl.distributed.startup import Setup
from dist_classicrl.distributed.stopping import Stop, StopWatch
from dist_classicrl.distributed.transport import Channel
from dist_classicrl.distributed.worker import Worker
from dist_classicrl.environments.resolve import Source
from dist_classicrl.errors import CheckpointFencedError, EnvError, RankTimeoutError, TrainingStopped
from dist_classicrl.settings import Settings
from dist_classicrl.updates import kernels
from dist_classicrl.updates.local import LocalTable, Refresh
from dist_classicrl.updates.shared import RoundMerge, SharedTable
from dist_classicrl.updates.snapshot import TableSnapshot
from dist_classicrl.updates.window import PushWindow

logger = logging.getLogger(__name__)

_LINGER_SECONDS = 1.0
_FIRST_LEASE_COMPILED = 20_000
_FIRST_LEASE_STEPPED = 1_000


@dataclass(frozen=True)
class Resumed:
    """What a checkpoint says of a call of `train` besides the table.

    Attributes
    ----------
    checkpoint : str
        Where it is.
    made : int
        Steps of this call that it contains.
    tally : dict
        `Tally.to_dict`.
    mode : str
        "alone", "rounds" or "async": whose state `learners` is.
    stream : (int, int) or None
        Start and steps used of the random stream of a process that learns alone.
    learners : dict of int to dict
        State of the learners, by number; empty where new episodes begin.
    exact : ndarray(float64), shape (S * A,), or None
        The values to go on with alone, where the table's own type is shorter.
    """

    checkpoint: str
    made: int
    tally: dict[str, float]
    mode: str
    stream: tuple[int, int] | None = None
    learners: dict[int, dict[str, np.ndarray]] = field(default_factory=dict)
    exact: np.ndarray | None = None

    def without_arrays(self) -> dict[str, Any]:
        """Return what ranks need that play rounds, without the learners, as plain data for JSON."""
        return {"checkpoint": self.checkpoint, "made": self.made, "tally": self.tally, "mode": self.mode}


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
        Global step at which this call begins, or from which it goes on.
    steps : int
        Steps of all ranks together, from there on.
    seed : int
    progress : callable or None
        Called on rank 0 with a `Progress`, every `progress_interval` seconds and at the end.
    progress_interval : float
    watch : StopWatch or None
        Tells when this rank was asked to stop, where the run is saved.
    saver : Saver or None
        Saves the run, on rank 0 or where this process trains alone.
    resumed : Resumed or None
        What a checkpoint says besides the table, if this call was begun by an earlier process.
    generation : int
        How many processes were at this run before: what is learned again gets other random numbers.
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
    watch: StopWatch | None = None
    saver: Saver | None = None
    resumed: Resumed | None = None
    generation: int = 0

    def __post_init__(self) -> None:
        settings, simulator = self.settings, self.source.simulator
        self._kernel = None if simulator is None else training_kernel(simulator)
        self._legal = None if simulator is None else simulator.legal
        resumed = self.resumed
        self.tally = Tally(self.steps + (0 if resumed is None else resumed.made))
        if resumed is not None:
            self.tally.go_on_from(resumed.tally, resumed.checkpoint)
        self.clock = ProgressClock(self.tally, self.progress, self.progress_interval)
        # In the reproducible mode the clock of per-visit step sizes counts logical workers, wherever they
        # run.
        self.logical = None if settings.async_updates else settings.logical_workers
        #: Steps that `values` and `counts` contain, for a run that does not come to its end.
        self.kept = 0
        #: Saves what is there after an error, once the other ranks know of it.
        self.rescue: Callable[[], Any] | None = None

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

    def alone_stream(self) -> Stream:
        """Return the random stream of a process that learns alone, from where it goes on."""
        if self.resumed is not None and self.resumed.stream is not None:
            begin, used = self.resumed.stream
            return Stream(stream_key(self.seed, "alone", begin), begin, used)
        return Stream(stream_key(self.seed, "alone", self.start), self.start)

    def restore(self, learners: dict[int, Learner], mode: str) -> None:
        """Give the learners, by number, the state that a checkpoint of the same `mode` has of them."""
        if self.resumed is not None and self.resumed.mode == mode:
            for number, learner in learners.items():
                if number in self.resumed.learners:
                    learner.restore(self.resumed.learners[number])

    def stopped(self, stop: Stop, checkpoint: str | None) -> TrainingStopped:
        """Say why the run stopped and what to do to go on, and return the exception to end with."""
        how = (
            f"The checkpoint is {checkpoint}; the same command goes on from there."
            if checkpoint is not None
            else "The checkpoint could not be written: the same command goes on from the last one that could."
        )
        made, total = self.tally.steps, self.tally.total_steps
        logger.warning("Stopped by %s after %s of %s steps. %s", stop.reason, f"{made:,}", f"{total:,}", how)
        return stop.error(checkpoint, self.start + self.kept)

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
            snapshot = TableSnapshot(values, counts)
            snapshot.begin()
            shared.watch(snapshot)
            shared.apply(1, 1, nothing)
        shared.refresh(0)


def run_together(run: Run, setup: Setup) -> TrainingResult:
    """Train on all ranks of `setup`: rank 0 serves, the others learn.

    The result and the table are the same everywhere.

    Raises
    ------
    TrainingStopped
        On all ranks, if any was asked to stop; what all learned is on disk.
    """
    settings = run.settings
    workers = list(range(1, setup.size))
    begin = time.perf_counter()
    rates = Rates(settings, run.logical or len(workers))
    if rates.table is not None:
        setup.broadcast(rates.table, "rank 0's step sizes")
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
            run.restore(learners, "rounds" if run.logical is not None else "async")
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
    except TrainingStopped:
        raise
    except BaseException as caught:
        # Who hears of it may end the job: what there is has to be on disk before.
        if run.rescue is not None:
            run.rescue()
        if channels:
            fail(channels, caught, setup.rank, settings.timeout)
            if serving:
                tell_rescued(channels)
            elif run.watch is not None and not isinstance(caught, (RankTimeoutError, KeyboardInterrupt)):
                wait_for_rescue(channels[0], RESCUE_SECONDS)
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
        server = Server(channels, shared, leases, tally, run.clock, settings.timeout, run.saver)
    else:
        server = RoundServer(channels, shared, settings, run.start, run.steps, tally, run.clock, run.saver)
    meanwhile = partial(keep_alive, channels, settings.timeout)
    saver = run.saver
    try:
        stop = server.run()
    except CheckpointFencedError:
        raise
    except Exception:
        if saver is not None and isinstance(server, Server):
            run.rescue = partial(saver.rescue, run.values, run.counts, server.position, meanwhile)
        raise
    finally:
        run.kept = server.position.steps - run.start
    seconds = server.seconds
    if stop is not None and saver is not None:
        where = saver.save_last(run.values, run.counts, server.position, meanwhile)
        _end_all(run, channels, stop, where)
    learning = len(ranks) if run.logical is None else min(len(ranks), run.logical)
    result = tally.result(seconds, compile_seconds, learning)
    where = None
    if saver is not None:
        where = saver.finish(run.values, run.counts, server.position, result, meanwhile)
    run.clock.tick(seconds, last=True)  # after saving: the callback may raise
    stop = None if saver is None else saver.asked_to_stop
    if stop is not None:  # too late for this call, but not for what the script does next
        _end_all(run, channels, stop, where)
    finish(channels, shared, result.to_dict(), settings.timeout)
    return result


def _end_all(run: Run, channels: list[Channel], stop: Stop, checkpoint: str | None) -> NoReturn:
    error = run.stopped(stop, checkpoint)
    tell_stopped(channels, stop, error)
    raise error


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
            run.watch,
            run.generation,
        )
    else:
        worker = RoundWorker(channel, table, learners, settings, run.start, run.steps, run.seed, run.watch)
    final, data = worker.run()
    run.values[:] = final.values
    run.counts[:] = final.counts
    return TrainingResult.from_dict(data)
