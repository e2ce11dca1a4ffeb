"""One call of `train` on many ranks, from the side of an agent: what is agreed on, and who begins anew."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from dist_classicrl.agent.agent_run import (
    common_description,
    get_to_know,
    keep,
    made_before,
    run_of,
    saver_of,
    store,
)
from dist_classicrl.agent.beginning import Beginning, begin_together, digest, take_told
from dist_classicrl.agent.request import Request, check, leave_signals_of, observed, steps_asked, watching
from dist_classicrl.agent.resuming import (
    take_over_place,
)
from dist_classicrl.checkpoint.plan import CheckpointPlan
from dist_classicrl.comm import envelope
from dist_classicrl.comm.transport import Wire
from dist_classicrl.engines.outcome import TrainingResult
from dist_classicrl.engines.progress import Observer
from dist_classicrl.engines.roles.changes import Entry, join
from dist_classicrl.engines.roles.participants import run_together
from dist_classicrl.engines.roles.shutdown import await_ends, say_ended
from dist_classicrl.engines.run import Resumed
from dist_classicrl.engines.saving import Saver
from dist_classicrl.environments.resolve import Source
from dist_classicrl.errors import (
    CheckpointError,
    RankMismatchError,
    RemoteRankError,
    TrainingStopped,
    WorkerLeft,
)
from dist_classicrl.membership.admission import Join
from dist_classicrl.membership.election import Deposed
from dist_classicrl.membership.group import Group, NewView, Over, Timing, group_of
from dist_classicrl.membership.handshake import Setup
from dist_classicrl.process import exit as process_exit
from dist_classicrl.process.stop import StopWatch

if TYPE_CHECKING:
    from dist_classicrl.agent.agent import DistAsyncQLearning

logger = logging.getLogger(__name__)

_LINGER_SECONDS = 1.0


def train_together(agent: DistAsyncQLearning, asked: Request, world: Any) -> TrainingResult:
    """Train with the other ranks of `world`, an mpi4py.MPI.Comm."""
    plan: CheckpointPlan | None = None
    signals: tuple[int, ...] = ()
    error: BaseException | None = None
    try:
        plan = asked.make_plan()
        signals = leave_signals_of(asked)
    except BaseException as caught:  # whatever it is, the others must hear of it
        error = caught
    # Before the first thing that waits for other ranks: these may still be busy with something else.
    with watching(plan, world.Get_rank()) as watch, agent._leaving.listening_to(signals):
        group = group_of(world, agent.settings.timeout)
        group.begin_call(timing_of(agent, group.wire))
        if group.call == 1 and group.is_server and (advice := process_exit.survival_advice()) is not None:
            logger.info("%s", advice)
        clean = False
        try:
            while True:
                try:
                    result = Call(agent, asked, group, plan, watch).make(error)
                    clean = True
                    return result
                except Deposed:
                    # A rank was lost before training began: all begin anew without it.
                    continue
        except WorkerLeft:
            clean = True
            process_exit.note_aside()
            if process_exit.fault_tolerant():  # else MPI ends the job where a process ends by itself
                process_exit.note_losses()
            raise
        except (TrainingStopped, RemoteRankError, RankMismatchError):
            clean = True
            raise
        finally:
            _hear_out(group)
            _note_ending(group)
            group.end_call(_LINGER_SECONDS if clean else 0.0)


def timing_of(agent: DistAsyncQLearning, wire: Wire) -> Timing:
    """Return when a rank counts as lost, by the agent's settings and what MPI allows."""
    settings = agent.settings
    silence = min(settings.heartbeat_timeout, settings.timeout)
    if not wire.has_threads:  # nobody speaks while an environment makes a long step
        silence = settings.timeout
    return Timing(min(settings.heartbeat_interval, silence / 4.0), silence, settings.timeout)


def _hear_out(group: Group) -> None:
    """Take in the last control messages of a call: who is away, and who asks to take part too late."""
    for sender, control in group.poll():
        if isinstance(control, NewView):
            group.accept(control)
        elif isinstance(control, Join) and group.is_server:
            group.send(sender, Over())


def _note_ending(group: Group) -> None:
    """Let the end of the process know who died, who hangs, and who is in charge."""
    process_exit.note_head(group.is_server)
    left = {event["rank"] for event in group.events.entries if event["kind"] == "left"}
    away = set(range(group.wire.size)) - set(group.view.members) - group.dead - left
    if group.dead or away:
        process_exit.note_losses()
    others = sorted(set(group.view.members) - group.dead - {group.rank})
    process_exit.note_hanging(
        group.wire.abort if away and group.is_server else None,
        partial(await_ends, group.wire, others),
        partial(say_ended, group.wire, group.view.server) if away and group.is_member else None,
    )


class Call:
    """One attempt at a call of `train` on many ranks."""

    def __init__(
        self,
        agent: DistAsyncQLearning,
        asked: Request,
        group: Group,
        plan: CheckpointPlan | None,
        watch: StopWatch | None,
    ) -> None:
        self._agent = agent
        self._asked = asked
        self._group = group
        self._plan = plan
        self._watch = watch

    def make(self, error: BaseException | None) -> TrainingResult:
        """Train, after all ranks agree on what; `error` is what this rank found wrong before.

        Raises
        ------
        Deposed
            If it has to begin anew, with other members.
        """
        group = self._group
        if not group.is_member:
            if error is not None:
                raise error
            return self.join(join(group))
        setup = Setup(group, self._agent.settings.timeout)
        try:
            source, beginning = self._agree(error, setup)
            if self._agent.steps >= beginning.end:
                source.close()
                return self._made_before(source, beginning, setup)
            return self._train(source, beginning, setup)
        finally:
            setup.close(_LINGER_SECONDS)

    def join(self, entry: Entry) -> TrainingResult:
        """Train with those who have begun already."""
        source = get_to_know(self._agent, self._asked.env)
        return self._train(source, self._told(entry.told), entry)

    def _agree(self, error: BaseException | None, setup: Setup) -> tuple[Source, Beginning]:
        agent, asked, plan = self._agent, self._asked, self._plan
        source: Source | None = None
        share, whole = 0, False
        try:
            share, whole = steps_asked(asked.steps, asked.total_steps)
            check(agent, share * (1 if whole else len(setup.members)), asked)
            if error is None:
                source = get_to_know(agent, asked.env)
        except BaseException as caught:
            error = caught
        try:
            description = (
                {} if source is None else common_description(agent, source, plan, share if whole else None)
            )
            everyone = setup.agree(error, description, [share])
            assert source is not None  # else there was an error, which agree() raised
            total = share if whole else sum(everyone[:, 0].tolist())
            return source, begin_together(agent, source, total, plan, self._watch, setup)
        except BaseException:
            if source is not None:
                source.close()
            raise

    def _told(self, told: dict[str, Any]) -> Beginning:
        """Bring this rank's agent to what a run says that it joins."""
        beginning = Beginning(told["begin"], told["end"], told["asked"], told=told)
        take_told(self._agent, beginning, told, self._plan, self._watch)
        if told["resumed"] is not None:
            beginning.resumed = Resumed(**told["resumed"])
        return beginning

    def _made_before(self, source: Source, beginning: Beginning, setup: Setup) -> TrainingResult:
        agent = self._agent
        run = run_of(agent, source, self._asked, beginning, self._watch, self._plan, Observer())
        text = None
        if setup.is_head:
            text = envelope.text(made_before(agent, run, beginning, len(setup.members) - 1).to_dict())
        told = envelope.from_text(setup.broadcast_message(text, "the server's result"))
        return keep(agent, run, beginning, TrainingResult.from_dict(told))

    def _train(self, source: Source, beginning: Beginning, begin_from: Setup | Entry) -> TrainingResult:
        with observed(self._agent, self._asked) as observer:
            return self._train_observed(source, beginning, begin_from, observer)

    def _train_observed(
        self, source: Source, beginning: Beginning, begin_from: Setup | Entry, observer: Observer
    ) -> TrainingResult:
        agent, plan, watch = self._agent, self._plan, self._watch
        run = run_of(agent, source, self._asked, beginning, watch, plan, observer)
        if plan is not None and watch is not None:
            run.take_over_saving = partial(self._take_over_saving, source, beginning)
        try:
            result = run_together(run, self._group, begin_from)
        except TrainingStopped as stopped:
            if self._group.is_server:
                store(agent, run, run.kept)
            else:
                agent._behind = digest(agent.q_table)
            agent._steps = agent._requested = stopped.steps
            agent._pending = agent._taken = None
            raise
        except Deposed:
            raise
        except BaseException:
            agent._requested = agent._steps
            agent._behind = digest(agent.q_table)
            agent._pending = agent._taken = None
            raise
        return keep(agent, run, beginning, result, self._group.is_server)

    def _take_over_saving(self, source: Source, beginning: Beginning) -> Saver | None:
        """Return what saves the run from this rank, which has to serve in place of one that was lost."""
        assert self._plan is not None
        try:
            place = take_over_place(self._agent, self._plan, beginning.told["place"])
        except CheckpointError as error:
            logger.warning("Rank %d cannot save the run, and goes on without: %s", self._group.rank, error)
            return None
        beginning.place = place
        return saver_of(self._agent, source, beginning, self._watch, self._plan)
