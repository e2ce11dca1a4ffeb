"""One call of `train` in one process: what is asked for is agreed on, begun, run and kept.

It is the same for a process alone, for many ranks that begin together, and for a rank that joins later.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from typing import Any

from dist_classicrl.agent.agreement import Agreement, Alone
from dist_classicrl.agent.beginning import Beginning, adopt, begin_call, say_idle
from dist_classicrl.agent.checkpoint_body import constant_arrays, description
from dist_classicrl.agent.checkpoints import CallAsked, put_back_to_call
from dist_classicrl.agent.observer import CallbackObserver
from dist_classicrl.agent.reach import check_reach
from dist_classicrl.agent.request import Request
from dist_classicrl.agent.result import TrainingResult
from dist_classicrl.agent.settling import Agreed, Settling
from dist_classicrl.callbacks import CallbackList, callback_list
from dist_classicrl.callbacks.shown import REPORT_SECONDS, ShownTraining
from dist_classicrl.checkpoint.fence import Succession
from dist_classicrl.checkpoint.plan import CheckpointPlan
from dist_classicrl.checkpoint.storage import Storage
from dist_classicrl.comm import envelope
from dist_classicrl.engines.engine import n_workers
from dist_classicrl.engines.idle import idle_settings
from dist_classicrl.engines.outcome import Outcome, Tally
from dist_classicrl.engines.progress import Observer
from dist_classicrl.engines.run import LossPolicy, Resumed, Run
from dist_classicrl.engines.saving import Saver, finished_call, note_finished
from dist_classicrl.engines.sharded.host_memory import share_rows
from dist_classicrl.engines.supersteps.desk import open_desk
from dist_classicrl.engines.supersteps.divided_rows import divide_rows
from dist_classicrl.environments.resolve import Source
from dist_classicrl.errors import CheckpointError, EnvMismatchError, StateLimitError, TrainingStopped
from dist_classicrl.learning.card.choosing import say_choice
from dist_classicrl.membership.admission import Entry
from dist_classicrl.membership.election import Deposed
from dist_classicrl.membership.group import Group
from dist_classicrl.membership.handshake import Setup
from dist_classicrl.model.agent_state import AgentState, Corner
from dist_classicrl.model.fit import learned_elsewhere
from dist_classicrl.model.places import Place
from dist_classicrl.process.stop import StopWatch
from dist_classicrl.tables.large_table import LargeTable

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Session:
    """One attempt at a call of `train`."""

    agent: Any  # a DistAsyncQLearning: what callbacks get
    state: AgentState  # what it holds
    asked: Request
    plan: CheckpointPlan | None  # where the call is saved
    watch: StopWatch | None  # hears requests to stop
    group: Group | None = None  # the ranks that train together; None: this process is alone
    shown: ShownTraining | None = None  # shows how far it is

    def begin(self, agreement: Agreement, error: BaseException | None) -> TrainingResult:
        """Train, after all ranks agree on what; `error` is what this rank found wrong before.

        Deposed where all have to begin anew, with other members.
        """
        try:
            return self._begin(agreement, error)
        except BaseException:
            if self.state.large is not None:
                self.state.large.stay_undivided()
            raise

    def _begin(self, agreement: Agreement, error: BaseException | None) -> TrainingResult:
        state = self.state
        settling = self._settling()
        with state.room_on_trial(), ExitStack() as until_training:
            settled = settling.agree(agreement, error, until_training)
            source, in_rows = settled.source, settled.in_rows
            walkers = self._walkers(settled)
            asked = CallAsked(source, settled.total, settling.ranks, self.plan, walkers, in_rows)
            is_divided = state.large is not None and state.large.is_divided
            reach = None
            if is_divided and self.plan is not None:
                reach = partial(check_reach, state, self.plan, agreement)
            beginning, place = begin_call(state, asked, self.watch, agreement, reach)
            if state.steps >= beginning.end:
                if state.steps == beginning.end:  # else it is a call of before, which another one followed
                    self._check_environment(source, beginning, agreement)
                state.take_note_of(source)
                if in_rows and state.large is not None and not isinstance(agreement, Alone):
                    self._share_rows(state.large, agreement)
                workers = n_workers(
                    settled.engine, state.settings, len(agreement.members), settled.layout.is_compiled
                )
                return self._made_before(beginning, place, agreement, workers)
            self._check_environment(source, beginning, agreement)
            state.take_note_of(source)
            until_training.pop_all()  # the engine closes the environment
        start = None if isinstance(agreement, Alone) else agreement
        return self._train(settled, beginning, place, start)

    def _settling(self) -> Settling:
        return Settling(self.state, self.asked, self.group, self.plan is not None)

    def _walkers(self, settled: Agreed) -> int | None:
        """Return how many walkers there are whose state is saved; None where these are no walkers."""
        if settled.engine.name != "supersteps" or not settled.layout.is_compiled:
            return None
        from dist_classicrl.learning.supersteps.share import WALKERS  # loads what others never need

        return self.asked.n_walkers or WALKERS

    def _share_rows(self, large: LargeTable, agreement: Setup) -> None:
        """Let all ranks have the table of a call that has nothing left to do."""
        if not large.is_divided or self.group is None:
            share_rows(large, agreement)
            return
        divide_rows(
            large, agreement, self.group.host_of, self.asked.partition, self._table_from(), self._read_table
        )
        open_desk(large, self.group, agreement)

    def _table_from(self) -> str:
        """Return the name of the checkpoint whose table is to be read by those who have the rows."""
        pending = self.state.pending
        return "" if pending is None else pending.resumed.checkpoint.rpartition("/")[2]

    def _read_table(self, name: str, look: Callable[[], None] = lambda: None) -> tuple[Any, Any]:
        """Return values and visits of a checkpoint that another rank has checked."""
        assert self.plan is not None  # else there is none
        arrays = self.state.places.of(self.plan).folder.read(name, True, look).arrays
        found = self.state.shape.from_arrays(arrays)
        if found is None:
            raise CheckpointError(f"The tables in {name} are not those of this training.")
        return found

    def join(self, entry: Entry) -> TrainingResult:
        """Train with those who have begun already."""
        settling = self._settling()
        source = settling.get_to_know()
        beginning = Beginning.from_dict(entry.told)
        adopt(self.state, beginning, self.plan, self.watch)
        total = beginning.asked - beginning.begin
        settled = settling.joined(source, entry.told, beginning.ranks, total)
        return self._train(settled, beginning, None, entry)

    def _check_environment(self, source: Source, beginning: Beginning, agreement: Agreement) -> None:
        """Raise EnvMismatchError, on all ranks alike, where the table was learned in something else.

        That is allowed where `new_env` says so, but not in the middle of a call.
        """
        what = learned_elsewhere(beginning.environment, beginning.steps, source.identity, "train()")
        if what is None:
            return
        is_half_done = beginning.resumed is not None and beginning.resumed.made > 0
        if self.asked.new_env and not is_half_done:
            return
        remedy = (
            "this call was begun there, and can only be ended there. Give that environment, or another "
            "checkpoint_dir to begin anew."
            if is_half_done
            else "what was learned there would be overwritten with what this one teaches. Make another agent "
            "for it, or write train(..., new_env=True) to go on from this table on purpose."
        )
        agreement.agree(EnvMismatchError(f"{what}: {remedy}"), {}, [])

    def _made_before(
        self, beginning: Beginning, place: Place | None, agreement: Agreement, workers: int
    ) -> TrainingResult:
        """Return the result of a call that has nothing left to do, with so many workers."""
        text = None
        if agreement.is_head:
            text = envelope.text(self._result_before(beginning, place, workers).to_dict())
        told = envelope.from_text(agreement.broadcast_message(text, "the server's result"))
        self.state.requested = beginning.end
        return TrainingResult.from_dict(told)

    def _result_before(self, beginning: Beginning, place: Place | None, workers: int) -> Outcome:
        """Return what a call did whose steps have all been made before, and say so."""
        if beginning.begin == beginning.end:
            return Tally(total_steps=0).result(0.0, 0.0, workers)
        read = None if place is None or place.read is None else f"{place.folder.url}/{place.read}"
        asked = f"{beginning.asked - beginning.begin:,}"
        held = ""
        if self.state.steps > beginning.end:
            held = (
                f" The agent holds the table of step {self.state.steps:,} already, not that of step "
                f"{beginning.end:,}, where this call ended: what evaluates or saves it now gets that one. "
                "agent.steps tells which it is."
            )
        if beginning.end < beginning.asked:
            logger.warning(
                "A callback, or total_episodes, ended this call of train before, after %s of the %s steps "
                "that it asks for. It counts as finished: nothing to do. To go on, call train once more "
                "after it, or ask for another number of steps.%s",
                f"{beginning.end - beginning.begin:,}",
                asked,
                held,
            )
        else:
            logger.warning(
                "All %s steps that this call of train asks for had been made before (%s in all): nothing to "
                "do.%s",
                asked,
                f"{self.state.steps:,}",
                held,
            )
        call = finished_call(self.state.finished, beginning.begin, beginning.asked)
        if call is not None:
            return Outcome.from_dict({**call["result"], "resumed_from": read})
        return Outcome(steps=beginning.asked - beginning.begin, resumed_from=read)

    def _train(
        self,
        settled: Agreed,
        beginning: Beginning,
        place: Place | None,
        start: Setup | Entry | None,
    ) -> TrainingResult:
        state, asked, settings = self.state, self.asked, self.state.settings
        source, engine = settled.source, settled.engine
        in_rows, device = settled.in_rows, settled.device
        corner = state.corner(source, in_rows)
        state.environment, state.trains_in = source.identity, source.stepped
        callbacks = callback_list(asked.callbacks)
        interval = math.inf if self.shown is None else REPORT_SECONDS
        if asked.progress is not None or callbacks.children and not callbacks.needs_own_steps_alone:
            interval = asked.seconds_between_reports(settings)
        if self.shown is not None:
            callbacks = CallbackList([callbacks, self.shown])
        observer = CallbackObserver(self.agent, callbacks, asked.progress, corner, beginning.begin)
        say_choice(settings, settled.card, settled.why)
        if self.group is None or self.group.is_server:
            source.give_hints()
            if not state.is_of_study:
                say_idle(state, idle_settings(settings, engine, settled.layout))
        if self.group is None:  # who is not alone may have to begin anew
            state.pending = None
        with closing(observer), ExitStack() as until_end:
            run = Run(
                settings=settings,
                source=source,
                values=corner.values,
                counts=corner.counts,
                start=state.steps,
                steps=beginning.end - state.steps,
                seed=beginning.seed,
                observer=observer if observer.is_needed else Observer(),
                progress_interval=interval,
                watch=self.watch,
                saver=self._saver(source, beginning, place),
                resumed=beginning.resumed,
                generation=beginning.generation,
                policy=LossPolicy(settings.on_failure, settings.min_workers, settings.max_replacements),
                told=(start.told if isinstance(start, Entry) else {})
                | {**beginning.to_dict(), "engine": engine.name, "in_rows": in_rows, "device": device},
                storage=self._storage,
                read_table=self._read_table,
                table_from=self._table_from(),
                take_over_saving=partial(self._take_over_saving, source, beginning),
                reload=partial(self._reload, beginning),
                wants_to_leave=lambda: state.leaving.why,
                is_of_study=state.is_of_study,
                is_sharded=asked.placement == "sharded",
                lend=corner.put_back_when_read,
                keyed=state.keyed,
                large=corner.large,
                walkers=asked.n_walkers,
                partition=asked.partition,
                episodes=asked.episodes,
                card=settled.card,
                device=device,
            )
            until_end.callback(run.let_go)
            state.is_asked_to_stop = run.is_asked_to_stop
            try:
                outcome = engine.train(run, self.group, start)
            except Deposed:
                raise
            except BaseException as error:
                self._keep_what_is_there(run, corner, error)
                raise
            finally:
                state.freshen = state.is_asked_to_stop = None
            result = TrainingResult.of(outcome, observer.history.reports)
            state.reports = result.reports
            self._keep(run, corner, beginning, result)
            if self.group is None or self.group.is_server:
                observer.ended(result)
            return result

    def _keep(self, run: Run, corner: Corner, beginning: Beginning, result: TrainingResult) -> None:
        """Bring the agent to the end of a call."""
        state = self.state
        corner.put_back()
        state.steps = state.requested = beginning.begin + result.steps  # a callback may have ended it early
        state.pending = None
        if run.saver is None:
            environment = run.source.identity.text
            note_finished(state.finished, beginning.begin, beginning.asked, result, environment)

    def _keep_what_is_there(self, run: Run, corner: Corner, error: BaseException) -> None:
        """Bring the agent to where a call was ended by an error.

        A process alone has all that it learned. Of several ranks the server has, if they stopped in order:
        then all know how many steps these are, and have its table in the next call.
        """
        state = self.state
        stop = error if isinstance(error, (TrainingStopped, StateLimitError)) else None
        if self.group is None or (stop is not None and self.group.is_server):
            corner.put_back()
            state.steps = run.start + run.kept
        else:
            state.behind = state.digests()[0]
            state.lacks_steps = stop is not None
        if isinstance(error, StateLimitError) and self.group is None:
            error.steps = state.steps
        if stop is not None and stop.steps is not None:
            state.steps = stop.steps
        state.requested = state.steps
        state.pending = None

    def _saver(self, source: Source, beginning: Beginning, place: Place | None) -> Saver | None:
        """Return what saves the call, where this rank has a place for that."""
        state = self.state
        if self.plan is None or place is None or self.watch is None:
            return None
        return Saver(
            self.plan,
            place.writer,
            description(state, source, place, beginning.begin, beginning.asked),
            state.table,
            state.shape,
            state.corner_shape(source),
            constant_arrays(state),
            state.finished,
            self.watch,
            state.steps,
            state.settings.timeout,
        )

    def _storage(self) -> Storage:
        """Return where the call is saved, as this rank reaches it."""
        assert self.plan is not None  # else nobody asks
        return self.state.places.of(self.plan).folder.storage

    def _take_over_saving(self, source: Source, beginning: Beginning) -> Saver | None:
        """Return what saves the run from this rank, which has to serve in place of one that was lost.

        It claims the folder now, so that whoever was replaced writes no more, or when it can.
        """
        if self.plan is None or beginning.place is None:
            return None
        assert self.group is not None  # else there is nobody to be replaced
        succession = Succession(beginning.generation + 1, self.group.view.term)
        place = self.state.places.take_over(self.plan, beginning.place, succession)
        place.writer.try_to_claim()
        return self._saver(source, beginning, place)

    def _reload(self, beginning: Beginning, look: Callable[[], None]) -> Resumed | None:
        """Bring the table to the last checkpoint of a call; return what that says, None if there is none."""
        if self.plan is None or beginning.place is None:
            return None
        try:
            place = self.state.places.of(self.plan)
            return put_back_to_call(
                self.state, place.folder, beginning.place, beginning.begin, beginning.asked, look
            )
        except CheckpointError as error:
            logger.warning("There is no table to go back to: %s", error)
            return None
