"""One call of `train`, once all ranks agree on it: who does what, from compilation to the result."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from dist_classicrl._random import stream_key
from dist_classicrl.checkpoint.storage import Storage
from dist_classicrl.engines.outcome import Tally
from dist_classicrl.engines.progress import Observer, Reporter
from dist_classicrl.engines.saving import Saver
from dist_classicrl.engines.schedule import Pace
from dist_classicrl.environments.resolve import Source
from dist_classicrl.errors import DeviceError, EnvError, TrainingStopped
from dist_classicrl.learning.card.cards import Card
from dist_classicrl.learning.kinds import new_learner, problem_of
from dist_classicrl.learning.learner import Learner, Problem, Stream
from dist_classicrl.learning.rates import Rates
from dist_classicrl.process.stop import Stop, StopWatch, is_interactive
from dist_classicrl.schedules import PerVisit
from dist_classicrl.settings import Settings
from dist_classicrl.tables.large_table import LargeTable
from dist_classicrl.tables.maps import Refresh
from dist_classicrl.tables.warm_up import warm_up_server, warm_up_worker

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LossPolicy:
    """What is done about lost ranks."""

    on_failure: str = "continue"  # "replace" or "abort"
    min_workers: int = 0  # with fewer the run ends
    max_replacements: int = 0


@dataclass(frozen=True)
class Resumed:
    """What a checkpoint says of a call of `train` besides the table."""

    checkpoint: str  # where it is
    made: int  # steps of this call that it contains
    tally: dict[str, Any]  # `Tally.to_dict`
    mode: str  # one of `dist_classicrl.engines.saving.MODES`: whose state `learners` is
    stream: tuple[int, int] | None = None  # start and steps used of the stream of a process that learns alone
    learners: dict[int, dict[str, np.ndarray]] = field(default_factory=dict)  # empty: new episodes begin
    exact: np.ndarray | None = None  # float64, to go on with alone where the table's own type is shorter
    pace: dict[str, Any] | None = None  # `Pace.to_dict`: how long the next round is, in the reproducible mode

    def without_arrays(self) -> dict[str, Any]:
        """Return what ranks need that play rounds, without the learners, as plain data for JSON."""
        return {**vars(self), "learners": {}, "exact": None}


class KeyedStates(Protocol):
    """The states of a table to which new ones come, each with a key."""

    @property
    def keys(self) -> np.ndarray:
        """Their keys, in the order of their rows."""

    def fit(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Be the states of these keys; return `values` and `counts` for them.

        What stands in those is not defined.
        """

    def arrays(self) -> dict[str, np.ndarray]:
        """Return by name what a checkpoint holds of them."""


@dataclass(repr=False)
class Run:
    """What one call of `train` starts from; `values` and `counts` are what it leaves behind.

    They are flat, as long as the table's shape says. The rank that serves tells the observer how far the run
    is, every `progress_interval` seconds and at the end.
    """

    settings: Settings
    source: Source
    values: np.ndarray  # float64 or float32
    counts: np.ndarray  # int64: visits
    start: int  # global step at which this call begins, or from which it goes on
    steps: int  # of all ranks together, from there on
    seed: int
    observer: Observer
    progress_interval: float
    watch: StopWatch | None = None  # tells when this rank was asked to stop, where the run is saved
    saver: Saver | None = None  # on rank 0, or where this process trains alone
    resumed: Resumed | None = None  # if this call was begun by an earlier process
    generation: int = 0  # processes at this run before: what is learned again gets other random numbers
    policy: LossPolicy = field(default_factory=LossPolicy)
    told: dict[str, Any] = field(default_factory=dict)  # to a rank that joins in the middle
    #: Returns a saver for this rank, which has to serve in place of one that was lost; None: none saves.
    take_over_saving: Callable[[], Saver | None] | None = None
    #: Brings `large` to the last checkpoint of this call, and returns what that says; None: there is none.
    #: It is given what to call before each piece that is read.
    reload: Callable[[Callable[[], None]], Resumed | None] | None = None
    #: Returns where the call is saved, for rows that this rank's host alone has; and the whole table of a
    #: checkpoint of this name there, values and visits, which are read as they are looked at; what is given
    #: besides is called before each piece that is read at once.
    storage: Callable[[], Storage] | None = None
    read_table: Callable[..., tuple[Any, Any]] | None = None
    table_from: str = ""  # such a name, on the rank that has taken up the checkpoint
    wants_to_leave: Callable[[], str | None] = lambda: None  # why this rank is to leave in good order
    #: Takes what brings `values` and `counts` up to date, to be called before anybody else reads them.
    lend: Callable[[Callable[[], None]], None] = lambda settle: None
    keyed: KeyedStates | None = None  # where states are keys: `values` and `counts` grow with them
    is_of_study: bool = False  # so that another sweep goes on with it, and no command or agent
    is_sharded: bool = False  # whether the table was asked to be one for all, also where a process is alone
    large: LargeTable | None = None  # in which the engine learns: `values` and `counts` are its rows
    rows: Any = None  # a `LineTable` in which this rank's learner is to learn
    walkers: int | None = None  # how many episodes are under way where all learn in supersteps
    partition: Any = "hash"  # who owns which rows then
    episodes: int | None = None  # after how many, in this call, it ends in any case
    card: Card | None = None  # on which this rank's learner is to learn
    device: str = "cpu"  # on which all learn, see `TrainingResult`
    pace: Pace = field(init=False)  # of the next round, in the reproducible mode
    #: What an engine has made for this call that leads to itself: emptied when the call is over.
    made: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._has_used_source = False
        resumed = self.resumed
        self.tally = Tally(
            total_steps=self.steps + (0 if resumed is None else resumed.made), device=self.device
        )
        if resumed is not None:
            self.tally.go_on_from(resumed.tally, resumed.checkpoint)
        self.reporter = Reporter(
            self.tally,
            self.observer,
            self.progress_interval,
            partial(self._rates, self.start - self.tally.steps),
            episodes=self.episodes,
        )
        # In the reproducible mode the clock of per-visit step sizes counts logical workers, wherever they
        # run.
        self.logical = None if self.settings.async_updates else self.settings.logical_workers
        self.pace = Pace.first(self.settings, self.source.simulator is not None)
        if resumed is not None and resumed.mode == "rounds" and resumed.pace is not None:
            self.pace = Pace.from_dict(resumed.pace)
        #: Steps that `values` and `counts` contain, for a run that does not come to its end.
        self.kept = 0
        #: Saves what is there after an error, once the other ranks know of it.
        self.rescue: Callable[[], Any] | None = None

    def _rates(self, begin: int, steps: int, workers: int) -> tuple[float, float]:
        """Return the chance of a random action and the step size, `steps` after this call's `begin`."""
        settings = self.settings
        epsilon = settings.epsilon.at(begin + steps)
        if isinstance(settings.learning_rate, PerVisit):
            visits = (begin + steps) // max(1, self.values.size)
            return epsilon, settings.learning_rate.at_visit(max(1, visits), self.logical or max(1, workers))
        return epsilon, settings.learning_rate.at(begin + steps)

    def load(self, table: Any) -> None:
        """Let the table of a learner that is alone be what `values` and `counts` are."""
        if self.keyed is not None:
            table.load_keys(self.keyed.keys, self.values, self.counts)
        else:
            table.load(self.values, self.counts, None if self.resumed is None else self.resumed.exact)

    def settle(self, table: Any) -> None:
        """Write that table to `values` and `counts`, or raise DivergenceError and write nothing."""
        if self.keyed is not None:
            table.check_finite()
            self.values, self.counts = self.keyed.fit(table.keys)
        table.settle(self.values, self.counts)

    def take(self, refresh: Refresh) -> None:
        """Let `values` and `counts` be a whole table that another rank has told."""
        if self.keyed is not None and refresh.keys is not None:
            self.values, self.counts = self.keyed.fit(refresh.keys.view(self.keyed.keys.dtype))
        self.values[:], self.counts[:] = refresh.values, refresh.counts

    def begin(self) -> None:
        """Count the time limit from now on: everything is compiled."""
        if self.watch is not None:
            self.watch.begin()

    def learner(self, rates: Rates, n_states: int | None = None, is_alone: bool = False) -> Learner:
        """Return a learner without walkers, with a new table; of fewer states if asked.

        `is_alone`: nobody will ask its table for maps.
        """
        return new_learner(self.problem(rates, n_states, is_alone))

    def on_card_or_cores(self, make: Callable[[], Learner]) -> Learner:
        """Return the learner that `make` makes and compiles.

        Where device="auto" has chosen a card that cannot have it, that is one of cores.
        """
        try:
            return make()
        except DeviceError as error:
            if self.card is None or self.settings.device != "auto":
                raise
            logger.warning("Learning on cores, and not on %s: %s", self.card, error)
        self.card = None
        self.device = self.tally.device = "cpu"
        return make()

    def problem(self, rates: Rates, n_states: int | None = None, is_alone: bool = False) -> Problem:
        """Return what a learner is made for."""
        rows = self.rows if n_states is None or self.rows is None else self.rows.small(n_states)
        return problem_of(
            self.source,
            self.settings,
            rates,
            self.values.dtype,
            n_states,
            is_alone,
            rows,
            self.walkers,
            self.partition,
            self.card,
        )

    def add_walkers(self, learner: Learner, numbers: list[int]) -> None:
        """Give a learner these walkers, as new, with environments of their own.

        An `EnvError` is raised if there is one instance only and several are needed.
        """
        source = self.source
        many = self.logical is not None and self.logical > 1
        if source.simulator is None and source.make_another is None and many:
            raise EnvError(
                f"The reproducible mode needs an environment for each of its {self.logical} "
                f"logical workers, but {source.name} is one instance. Pass its id or a function that makes "
                "it, or set logical_workers=1."
            )
        for number in numbers:
            is_shared = source.simulator is not None or not self._has_used_source
            learner.add(number, source if is_shared else source.another(), self.environment_seed(number))
            self._has_used_source = True

    def environment_seed(self, number: int) -> int:
        """Return what the environments of one walker of a learner are seeded with."""
        return int(stream_key(self.seed, "environment", number, self.start) >> np.uint64(33))

    def alone_stream(self) -> Stream:
        """Return the random stream of a process that learns alone, from where it goes on."""
        begin, used = self.start, 0
        if self.resumed is not None and self.resumed.stream is not None:
            begin, used = self.resumed.stream
        key = stream_key(self.seed, "alone", begin)
        return Stream(key, begin, used, self.is_asked_to_stop, used + self.steps)

    def is_asked_to_stop(self) -> bool:
        """Whether the call is to stop, by what this rank knows; it may be asked often."""
        if self.saver is not None:
            return self.saver.is_asked_to_stop()
        return self.watch is not None and self.watch.stop is not None

    def restore(self, learner: Learner, numbers: list[int], mode: str) -> None:
        """Give these walkers of a learner the state that a checkpoint of the same `mode` has of them."""
        if self.resumed is not None and self.resumed.mode == mode:
            for number in numbers:
                if number in self.resumed.learners:
                    learner.restore(number, self.resumed.learners[number])

    def stopped(self, stop: Stop, checkpoint: str | None) -> TrainingStopped:
        """Say why the run stopped and what to do to go on, and return the exception to end with.

        Where nothing is saved, who started the training says so, with the reason of that.
        """
        made, total = f"{self.tally.steps:,}", f"{self.tally.total_steps:,}"
        if self.saver is None:
            stop = replace(stop, reason=f"{stop.reason} after {made} of {total} steps")
            return stop.error(None, self.start + self.kept)
        if checkpoint is not None:
            again = "train() of this agent" if is_interactive() else "the same command"
            again = "the same sweep" if self.is_of_study else again
            how = f"The checkpoint is {checkpoint}; {again} goes on from there."
        elif self.saver.is_saved():
            how = (
                "The checkpoint could not be written: the same command goes on from the last one that could."
            )
        else:
            how = (
                "The checkpoint could not be written, and there is no other of this run: the same command "
                "would begin anew. Make room there, or give another checkpoint_dir."
            )
            if stop.code == os.EX_TEMPFAIL:  # which asks batch scripts to try again
                stop = replace(stop, code=os.EX_IOERR)
        logger.warning("Stopped by %s after %s of %s steps. %s", stop.reason, made, total, how)
        return stop.error(checkpoint, self.start + self.kept)

    def close(self, learner: Learner | None) -> None:
        """Close the environments of a learner. What goes wrong there costs a warning, not the training."""
        for closing in (self.source,) if learner is None else (learner, self.source):
            try:
                closing.close()
            except Exception as error:
                logger.warning("Closing an environment of %s failed: %r", self.source.name, error)

    def let_go(self) -> None:
        """Take apart what was made for this call, which is over, and lead to the agent no more.

        Else circles would keep what the agent holds, such as its table, until the interpreter looks for them.
        """
        for made in self.made:
            vars(made).clear()
        del self.observer, self.reporter, self.saver, self.rescue
        del self.storage, self.read_table, self.take_over_saving, self.reload, self.lend, self.wants_to_leave

    def kernels(self, rates: Rates) -> list[Callable[[], None]]:
        """Return what compiles what ranks call, or loads it: learning, and a worker's and a server's table.

        What takes longest is first. Each does its part whatever the others do, here or in another process.
        """

        def learn() -> None:
            self.learner(rates, 1).add(0, self.source, self.environment_seed(0))

        return [learn, partial(self.compile, rates, False), partial(self.compile, rates, True)]

    def compile(self, rates: Rates, serves: bool) -> None:
        """Compile or load from disk what a rank calls of its table, that of a server or of a worker."""
        table = self.learner(rates, 1).table
        if self.rows is not None:
            table.settle(np.zeros(table.shape.size, self.values.dtype), np.zeros(table.shape.size, np.int64))
        elif serves:
            warm_up_server(table, self.logical is not None)
        else:
            warm_up_worker(table, self.logical is not None)
