"""`train` from the side of an agent: alone, with other ranks, or in place of one that was lost."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from typing import Any

from dist_classicrl.agent.agreement import Alone
from dist_classicrl.agent.replacement import Visit, visit_of
from dist_classicrl.agent.request import Request
from dist_classicrl.agent.result import TrainingResult
from dist_classicrl.agent.session import Session
from dist_classicrl.callbacks.shown import ShownTraining, shown_training
from dist_classicrl.checkpoint.plan import CheckpointPlan
from dist_classicrl.comm.remote_errors import without_exit
from dist_classicrl.comm.transport import Wire
from dist_classicrl.comm.world import find_world, first_rank
from dist_classicrl.engines.roles.shutdown import await_ends, say_ended
from dist_classicrl.engines.saving import finished_call
from dist_classicrl.errors import (
    RankMismatchError,
    RemoteRankError,
    SettingsError,
    StateLimitError,
    TrainingInterrupted,
    TrainingStopped,
    WorkerLeft,
)
from dist_classicrl.launch import slurm
from dist_classicrl.membership.admission import Entry, Join, join
from dist_classicrl.membership.election import Deposed
from dist_classicrl.membership.group import Group, NewView, Over, Timing, group_of, serving_rank, sole_use
from dist_classicrl.membership.handshake import Setup
from dist_classicrl.model.agent_state import AgentState
from dist_classicrl.model.fit import get_to_know
from dist_classicrl.process import exit as process_exit
from dist_classicrl.process.parent import find_parent, replacement_mark
from dist_classicrl.process.stop import StopWatch, is_interactive, with_launchers
from dist_classicrl.settings import Settings

logger = logging.getLogger(__name__)

_LINGER_SECONDS = 1.0
_KEPT = "The agent keeps what it learned, and train() goes on from there."
_LOST = (
    "A script that ends here loses what it learned: catch %s and call save_model(), or train "
    "with checkpoint_dir=, to go on from there."
)


def rank_of(comm: Any, settings: Settings) -> int:
    """Return what `DistAsyncQLearning.rank` is."""
    parent = find_parent()
    if parent is not None:
        return visit_of(parent).rank
    world = find_world(comm, settings.allow_singletons)
    if world is None:
        return 0
    own, server = world.Get_rank(), serving_rank(world)
    return {server: 0, 0: server}.get(own, own)


def train(agent: Any, state: AgentState, asked: Request, comm: Any) -> TrainingResult:
    """Do what `DistAsyncQLearning.train` says, for an agent that holds `state`."""
    if state.is_training:
        raise SettingsError(
            "train() was called for an agent that is training: neither a callback nor another thread can do "
            "that. Let the callback return False to end the training and call train() again when it has "
            "returned, or give each thread an agent of its own, and where several ranks train a communicator "
            "of its own: comm=comm.Dup()."
        )
    state.is_training = True
    try:
        parent = find_parent()
        if parent is not None:
            with _exit_as_error():
                return _train_as_replacement(agent, state, asked, visit_of(parent))
        world = find_world(comm, state.settings.allow_singletons)
        if world is None:
            if part := first_rank(comm):  # the rank of this process, in a job whose others train without it
                process_exit.note_part(part)
                process_exit.note_head(True, part)
            return _train_alone(agent, state, asked)
        with sole_use(world), _exit_as_error():
            return _train_together(agent, state, asked, world)
    except TrainingInterrupted as interrupted:
        if not is_interactive():
            raise
        # There, a SystemExit would end more than the training.
        raise KeyboardInterrupt(str(interrupted)) from None
    finally:
        state.is_training, state.trains_in = False, None


@contextmanager
def _exit_as_error() -> Iterator[None]:
    """Raise an `ExitCalledError` in place of a SystemExit that would leave the other ranks waiting."""
    try:
        yield
    except SystemExit as error:
        if (instead := without_exit(error)) is error:
            raise
        raise instead  # noqa: B904 (it has a cause)


def _train_alone(agent: Any, state: AgentState, asked: Request) -> TrainingResult:
    plan, signals = asked.plan_and_signals()
    with _watching(plan, None) as watch, state.leaving.listening_to(signals, is_alone=True):
        try:
            with _shown(asked) as shown:
                return Session(agent, state, asked, plan, watch, None, shown).begin(Alone(), None)
        except TrainingStopped as stopped:
            if plan is None:
                caught = (
                    "KeyboardInterrupt" if isinstance(stopped, TrainingInterrupted) else "TrainingStopped"
                )
                kept = _KEPT if is_interactive() else _LOST % caught
                logger.warning("Stopped by %s. %s", stopped.reason, kept)
            raise


def _train_together(agent: Any, state: AgentState, asked: Request, world: Any) -> TrainingResult:
    """Train with the other ranks of `world`, an mpi4py.MPI.Comm."""
    plan: CheckpointPlan | None = None
    signals: tuple[int, ...] = ()
    error: BaseException | None = None
    try:
        plan, signals = asked.plan_and_signals()
    except BaseException as caught:  # whatever it is, the others must hear of it
        error = caught
    # Before the first thing that waits for other ranks: these may still be busy with something else.
    with (
        _watching(plan, world.Get_rank()) as watch,
        state.leaving.listening_to(signals),
        _shown(asked) as shown,
    ):
        group = group_of(world, state.settings.timeout)
        group.begin_call(timing_of(state.settings, group.wire))
        if group.call == 1 and group.is_server and (advice := process_exit.survival_advice()) is not None:
            logger.info("%s", advice)
        process_exit.note_part(part := first_rank(world))
        with _ended_in_order(group, part):
            while True:
                session = Session(agent, state, asked, plan, watch, group, shown)
                try:
                    return _attempt(session, group, error, state.settings.timeout)
                except Deposed:
                    # A rank was lost before training began: all begin anew without it.
                    continue


def _attempt(session: Session, group: Group, error: BaseException | None, timeout: float) -> TrainingResult:
    """Train from the beginning, or, where this rank is no member any more, with those who have begun.

    Deposed where this rank has to begin anew, with other members.
    """
    if not group.is_member:
        if error is not None:
            raise error
        return session.join(join(group))
    setup = Setup(group, timeout)
    try:
        return session.begin(setup, error)
    finally:
        setup.close(_LINGER_SECONDS)


def _train_as_replacement(agent: Any, state: AgentState, asked: Request, visit: Visit) -> TrainingResult:
    """Work for the call of `train` that this process was started for, and end with it: with `WorkerLeft`.

    Calls before that return what is known of them.
    """
    visit.calls += 1
    if visit.calls < int(replacement_mark() or 1):
        return _made_before(state, asked, visit.told)
    process_exit.note_losses()
    plan, signals = asked.plan_and_signals()
    with _watching(plan, visit.rank) as watch, state.leaving.listening_to(signals):
        group = Group.of_replacement(
            visit.wire, visit.rank, visit.view, timing_of(state.settings, visit.wire)
        )
        return Session(agent, state, asked, plan, watch, group).join(Entry(visit.channel, 0, visit.told))


def _made_before(state: AgentState, asked: Request, told: dict[str, Any]) -> TrainingResult:
    """Bring an agent, but not its table, to the end of a call that others made; return what is known of that.

    Of one that is long ago nothing is known; all its steps were made.
    """
    ranks = told["ranks"]
    with closing(get_to_know(state, asked.env)) as source:
        steps = asked.bounded_steps(asked.checked_steps(state.steps, ranks), source, state.steps)
    begin = state.requested
    end = begin + steps if asked.names_total else None  # of shares only the sum of all ranks' says where
    call = finished_call(told["finished"], begin, end)
    result = {"steps": steps if asked.names_total else steps * ranks} if call is None else call["result"]
    state.steps = state.requested = begin + int(result["steps"])
    return TrainingResult.from_dict(result)


def _shown(asked: Request) -> AbstractContextManager[ShownTraining | None]:
    return shown_training(asked.wants_bar, asked.is_verbose)


@contextmanager
def _watching(plan: CheckpointPlan | None, rank: int | None) -> Iterator[StopWatch | None]:
    """Listen for requests to stop; give None where nothing is saved, unless this process is alone: no `rank`.

    Then it listens for Ctrl-C, unless the program has a handler of its own for that.
    """
    if plan is None:
        if rank is None and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            with StopWatch((), None, None, rank) as watch:
                yield watch
            return
        yield None
        return
    left = slurm.job_seconds_left() if not rank and plan.time_limit is None else None
    with StopWatch(with_launchers(plan.stop_signals), plan.time_limit, left, rank) as watch:
        yield watch


def timing_of(settings: Settings, wire: Wire) -> Timing:
    """Return when a rank counts as lost, by the settings and what MPI allows."""
    silence = min(settings.heartbeat_timeout, settings.timeout)
    if not wire.has_threads:  # nobody speaks while an environment makes a long step
        silence = settings.timeout
    return Timing(min(settings.heartbeat_interval, silence / 4.0), silence, settings.timeout)


@contextmanager
def _ended_in_order(group: Group, part: int) -> Iterator[None]:
    """End a call of a group, which is this part of the job, however it went."""
    clean = False
    try:
        yield
        clean = True
    except WorkerLeft:
        clean = True
        process_exit.note_aside()
        if process_exit.fault_tolerant():  # else MPI ends the job where a process ends by itself
            process_exit.note_losses()
        raise
    except (TrainingStopped, StateLimitError, RemoteRankError, RankMismatchError):
        clean = True
        raise
    finally:
        _hear_out(group)
        _note_ending(group, part)
        group.end_call(_LINGER_SECONDS if clean else 0.0)


def _hear_out(group: Group) -> None:
    """Take in the last control messages of a call: who is away, and who asks to take part too late."""
    for sender, control in group.poll():
        if isinstance(control, NewView):
            group.accept(control)
        elif isinstance(control, Join) and group.is_server:
            group.send(sender, Over())


def _note_ending(group: Group, part: int) -> None:
    """Let the end of the process know who died, who hangs, and who is in charge of this part of the job."""
    process_exit.note_head(group.is_server, part)
    away = set(range(group.wire.size)) - set(group.view.members) - group.dead - group.events.left
    # Who was missed and came back may be being replaced: MPI_Finalize then hangs on all, or crashes.
    has_changed = group.view.key > (0, 0)
    if group.dead or away or (has_changed and process_exit.fault_tolerant()):
        process_exit.note_losses()
    others = sorted(set(group.view.members) - group.dead - {group.rank})
    process_exit.note_hanging(
        group.wire.abort if away and group.is_server else None,
        partial(await_ends, group.wire, others),
        partial(say_ended, group.wire, group.view.server) if away and group.is_member else None,
        part,
    )
