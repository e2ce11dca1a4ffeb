"""`train` from the side of an agent.

Arguments come in, all ranks agree, the run is made, and results go back into the agent.
"""

from __future__ import annotations

import logging
import math
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from dist_classicrl import schedules
from dist_classicrl._random import fresh_seed
from dist_classicrl.callbacks import callback_list
from dist_classicrl.checkpoint.plan import CheckpointPlan, checked_signals
from dist_classicrl.distributed import ending, messages, slurm
from dist_classicrl.distributed.alone import run_alone
from dist_classicrl.distributed.crew import Crew, Timing, crew_of
from dist_classicrl.distributed.election import Deposed
from dist_classicrl.distributed.membership import View
from dist_classicrl.distributed.messages import Kind
from dist_classicrl.distributed.partings import await_ends, say_ended
from dist_classicrl.distributed.progress import Observer, Progress
from dist_classicrl.distributed.replacing import find_parent, replacement_mark
from dist_classicrl.distributed.report import TrainingResult
from dist_classicrl.distributed.roles import Entry, join
from dist_classicrl.distributed.rounds import learners_message, learners_of
from dist_classicrl.distributed.run import Resumed, Run
from dist_classicrl.distributed.saving import Saver, note_finished
from dist_classicrl.distributed.serving import Policy
from dist_classicrl.distributed.startup import Setup
from dist_classicrl.distributed.stopping import StopWatch
from dist_classicrl.distributed.together import run_together
from dist_classicrl.distributed.transport import Channel, Wire, wait_until
from dist_classicrl.distributed.world import find_world
from dist_classicrl.environments.resolve import Source, resolve
from dist_classicrl.errors import (
    CheckpointError,
    RankMismatchError,
    RemoteRankError,
    SettingsError,
    TrainingStopped,
    WorkerLeft,
)
from dist_classicrl.runtime.observing import CallbackObserver
from dist_classicrl.runtime.resuming import (
    Place,
    constant_arrays,
    description,
    end_of,
    environment_text,
    find,
    note_place,
    place_of,
    result_of,
    resumed_of,
    take_over_place,
    take_up,
    undo_changes,
)

if TYPE_CHECKING:
    from dist_classicrl.runtime.agent import DistAsyncQLearning

logger = logging.getLogger(__name__)

_MOST_STEPS = 2**62
_BLOCK_BYTES = 1 << 15
_LINGER_SECONDS = 1.0
_WELCOME_SECONDS = 60.0


@dataclass
class Request:
    """The arguments of one call of `train`, as they were given.

    Attributes
    ----------
    env, steps, total_steps, progress, progress_interval, callbacks
        See `DistAsyncQLearning.train`.
    make_plan : callable
        Returns what is asked for about checkpoints; raises what is wrong with it.
    leave_signals : iterable
        See `DistAsyncQLearning.train`.
    """

    env: Any
    steps: int | None
    total_steps: int | None
    progress: Callable[[Progress], None] | None
    progress_interval: float
    make_plan: Callable[[], CheckpointPlan | None]
    leave_signals: Any = ()
    callbacks: Any = None


@dataclass
class _Beginning:
    """Where a call begins and ends, on rank 0 or alone.

    Attributes
    ----------
    begin, end : int
        Global steps of the whole call, whoever makes them.
    asked : int
        The end that was asked for: a callback may have ended the call before.
    place : Place or None
        Where it is saved; known on rank 0.
    resumed : Resumed or None
    generation : int
        See `Run`.
    has_loaded : bool
        Whether a checkpoint was taken up just now.
    told : dict
        What the server tells all ranks of this, where there are several.
    """

    begin: int
    end: int
    asked: int
    place: Place | None = None
    resumed: Resumed | None = None
    generation: int = 0
    has_loaded: bool = False
    told: dict[str, Any] = field(default_factory=dict)


def train(agent: DistAsyncQLearning, asked: Request) -> TrainingResult:
    """Do what `DistAsyncQLearning.train` says."""
    parent = find_parent()
    if parent is not None:
        return _train_as_guest(agent, asked, parent)
    world = find_world(agent._comm, agent.settings.allow_singletons)
    if world is None:
        _leave_signals(asked)
        return _train_alone(agent, asked)
    return _train_together(agent, asked, world)


def _leave_signals(asked: Request) -> tuple[int, ...]:
    """Return the signals on which a worker leaves.

    Raises
    ------
    SettingsError
        If they are none, or stop the training.
    """
    signals = checked_signals("leave_signals", asked.leave_signals)
    plan = asked.make_plan()
    both = [] if plan is None else sorted(set(signals) & set(plan.stop_signals))
    if both:
        raise SettingsError(
            f"leave_signals and stop_signals both hold {', '.join(number.name for number in both)}: a signal "
            "either stops the training or lets one worker leave. Take it out of one of them."
        )
    return signals


def _train_alone(agent: DistAsyncQLearning, asked: Request) -> TrainingResult:
    share, _ = _steps_asked(asked.steps, asked.total_steps)
    _check(agent, share, asked)
    plan = asked.make_plan()
    with _watch(plan, 0) as watch:
        source = get_to_know(agent, asked.env)
        try:
            beginning = _begin(agent, source, share, plan)
        except BaseException:
            source.close()
            raise
        with _observed(agent, asked) as observer:
            run = _run(agent, source, asked, beginning, watch, plan, observer)
            if run.steps == 0:
                source.close()
                return _keep(agent, run, beginning, _made_before(agent, run, beginning, 1))
            agent._pending = agent._taken = None
            try:
                result = run_alone(run)
            except BaseException:
                _store(agent, run, run.kept)  # what was learned until then is not lost
                agent._requested = agent._steps
                raise
            return _keep(agent, run, beginning, result)


def _train_together(agent: DistAsyncQLearning, asked: Request, world: Any) -> TrainingResult:
    plan: CheckpointPlan | None = None
    signals: tuple[int, ...] = ()
    error: BaseException | None = None
    try:
        plan = asked.make_plan()
        signals = _leave_signals(asked)
    except BaseException as caught:  # whatever it is, the others must hear of it
        error = caught
    # Before the first thing that waits for other ranks: these may still be busy with something else.
    with _watch(plan, world.Get_rank()) as watch, agent._leaving.listening_to(signals):
        crew = crew_of(world, agent.settings.timeout)
        crew.begin_call(_timing(agent, crew.wire))
        if crew.call == 1 and crew.is_server and (advice := ending.survival_advice()) is not None:
            logger.info("%s", advice)
        clean = False
        try:
            while True:
                try:
                    result = _Call(agent, asked, crew, plan, watch).make(error)
                    clean = True
                    return result
                except Deposed:
                    # A rank was lost before training began: all begin anew without it.
                    continue
        except WorkerLeft:
            clean = True
            ending.note_aside()
            if ending.fault_tolerant():  # else MPI ends the job where a process ends by itself
                ending.note_losses()
            raise
        except (TrainingStopped, RemoteRankError, RankMismatchError):
            clean = True
            raise
        finally:
            _hear_out(crew)
            _note_ending(crew)
            crew.end_call(_LINGER_SECONDS if clean else 0.0)


@dataclass
class _Visit:
    """What a process knows that was started to replace a rank.

    Attributes
    ----------
    channel : Channel
        To the server.
    rank : int
        This process's number in the run.
    view : View
    told : dict
    calls : int
        Calls of `train` that the script has begun here.
    """

    channel: Channel
    rank: int
    view: View
    told: dict[str, Any]
    calls: int = 0


_visit: _Visit | None = None


def _train_as_guest(agent: DistAsyncQLearning, asked: Request, parent: Any) -> TrainingResult:
    """Work for the call of `train` that this process was started for, and end with it.

    Calls before that return what is known of them.

    Raises
    ------
    WorkerLeft
        At the end of that call.
    """
    from mpi4py import MPI

    wire = Wire(MPI.COMM_SELF)
    visit = visit_of(parent)
    visit.calls += 1
    told = visit.told
    if visit.calls < int(replacement_mark() or 1):
        get_to_know(agent, asked.env).close()
        results = [call["result"] for call in told["finished"]][visit.calls - 1 : visit.calls]
        return TrainingResult.from_dict(results[0]) if results else TrainingResult()
    ending.note_losses()
    plan = asked.make_plan()
    with _watch(plan, visit.rank) as watch:
        crew = Crew.of_guest(wire, visit.rank, visit.view, _timing(agent, wire))
        return _Call(agent, asked, crew, plan, watch).join(Entry(visit.channel, 0, told))


def visit_of(parent: Any) -> _Visit:
    """Return what this process, started to replace a rank, was told by the server; wait for that first.

    Raises
    ------
    WorkerLeft
        If the server is not there any more.
    RankTimeoutError
        If it says nothing.
    """
    global _visit
    if _visit is None:
        from mpi4py import MPI

        _visit = _begin_visit(Wire(MPI.COMM_SELF).channel_over(parent))
    return _visit


def _begin_visit(channel: Channel) -> _Visit:
    arrived: list[np.ndarray] = []

    def has_come() -> bool:
        if (message := channel.poll()) is not None:
            arrived.append(message)
        return bool(arrived) or channel.lost is not None

    wait_until(has_come, _WELCOME_SECONDS, "the server's welcome to a replacement")
    if not arrived:
        raise WorkerLeft(-1)
    _, parts = messages.decode(arrived[0])
    rank, view = int(parts[0][0]), View.from_numbers(parts[1])
    return _Visit(channel, rank, view, messages.from_text(parts[2]))


def _timing(agent: DistAsyncQLearning, wire: Wire) -> Timing:
    settings = agent.settings
    silence = min(settings.heartbeat_timeout, settings.timeout)
    if not wire.has_threads:  # nobody speaks while an environment makes a long step
        silence = settings.timeout
    return Timing(min(settings.heartbeat_interval, silence / 4.0), silence, settings.timeout)


def _hear_out(crew: Crew) -> None:
    """Take in the last control messages of a call: who is away, and who asks to take part too late."""
    for sender, kind, parts in crew.poll():
        if kind is Kind.VIEW:
            crew.accept(parts)
        elif kind is Kind.JOIN and crew.is_server:
            crew.tell_over(sender, crew.call)


def _note_ending(crew: Crew) -> None:
    """Let the end of the process know who died, who hangs, and who is in charge."""
    ending.note_head(crew.is_server)
    left = {event["rank"] for event in crew.record.events if event["kind"] == "left"}
    away = set(range(crew.wire.size)) - set(crew.view.members) - crew.dead - left
    if crew.dead or away:
        ending.note_losses()
    others = sorted(set(crew.view.members) - crew.dead - {crew.rank})
    ending.note_hanging(
        crew.wire.abort if away and crew.is_server else None,
        partial(await_ends, crew.wire, others),
        partial(say_ended, crew.wire, crew.view.server) if away and crew.is_member else None,
    )


class _Call:
    """One attempt at a call of `train` on many ranks."""

    def __init__(
        self,
        agent: DistAsyncQLearning,
        asked: Request,
        crew: Crew,
        plan: CheckpointPlan | None,
        watch: StopWatch | None,
    ) -> None:
        self._agent = agent
        self._asked = asked
        self._crew = crew
        self._plan = plan
        self._watch = watch

    def make(self, error: BaseException | None) -> TrainingResult:
        """Train, after all ranks agree on what; `error` is what this rank found wrong before.

        Raises
        ------
        Deposed
            If it has to begin anew, with other members.
        """
        crew = self._crew
        if not crew.is_member:
            if error is not None:
                raise error
            return self.join(join(crew))
        setup = Setup(crew, self._agent.settings.timeout)
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

    def _agree(self, error: BaseException | None, setup: Setup) -> tuple[Source, _Beginning]:
        agent, asked, plan = self._agent, self._asked, self._plan
        source: Source | None = None
        share, whole = 0, False
        try:
            share, whole = _steps_asked(asked.steps, asked.total_steps)
            _check(agent, share * (1 if whole else len(setup.members)), asked)
            if error is None:
                source = get_to_know(agent, asked.env)
        except BaseException as caught:
            error = caught
        try:
            description = (
                {} if source is None else _description(agent, source, plan, share if whole else None)
            )
            everyone = setup.agree(error, description, [share])
            assert source is not None  # else there was an error, which agree() raised
            total = share if whole else sum(everyone[:, 0].tolist())
            return source, _begin_together(agent, source, total, plan, self._watch, setup)
        except BaseException:
            if source is not None:
                source.close()
            raise

    def _told(self, told: dict[str, Any]) -> _Beginning:
        """Bring this rank's agent to what a run says that it joins."""
        beginning = _Beginning(told["begin"], told["end"], told["asked"], told=told)
        _take_told(self._agent, beginning, told, self._plan, self._watch)
        if told["resumed"] is not None:
            beginning.resumed = Resumed(**told["resumed"])
        return beginning

    def _made_before(self, source: Source, beginning: _Beginning, setup: Setup) -> TrainingResult:
        agent = self._agent
        run = _run(agent, source, self._asked, beginning, self._watch, self._plan, Observer())
        text = None
        if setup.is_head:
            text = messages.text(_made_before(agent, run, beginning, len(setup.members) - 1).to_dict())
        told = messages.from_text(setup.broadcast_message(text, "the server's result"))
        return _keep(agent, run, beginning, TrainingResult.from_dict(told))

    def _train(self, source: Source, beginning: _Beginning, begin_from: Setup | Entry) -> TrainingResult:
        with _observed(self._agent, self._asked) as observer:
            return self._train_observed(source, beginning, begin_from, observer)

    def _train_observed(
        self, source: Source, beginning: _Beginning, begin_from: Setup | Entry, observer: Observer
    ) -> TrainingResult:
        agent, plan, watch = self._agent, self._plan, self._watch
        run = _run(agent, source, self._asked, beginning, watch, plan, observer)
        if plan is not None and watch is not None:
            run.take_over_saving = partial(self._take_over_saving, source, beginning)
        try:
            result = run_together(run, self._crew, begin_from)
        except TrainingStopped as stopped:
            if self._crew.is_server:
                _store(agent, run, run.kept)
            else:
                agent._behind = _digest(agent.q_table)
            agent._steps = agent._requested = stopped.steps
            agent._pending = agent._taken = None
            raise
        except Deposed:
            raise
        except BaseException:
            agent._requested = agent._steps
            agent._behind = _digest(agent.q_table)
            agent._pending = agent._taken = None
            raise
        return _keep(agent, run, beginning, result)

    def _take_over_saving(self, source: Source, beginning: _Beginning) -> Saver | None:
        """Return what saves the run from this rank, which has to serve in place of one that was lost."""
        assert self._plan is not None
        try:
            place = take_over_place(self._agent, self._plan, beginning.told["place"])
        except CheckpointError as error:
            logger.warning("Rank %d cannot save the run, and goes on without: %s", self._crew.rank, error)
            return None
        beginning.place = place
        return _saver(self._agent, source, beginning, self._watch, self._plan)


@contextmanager
def _observed(agent: DistAsyncQLearning, asked: Request) -> Iterator[Observer]:
    """Give what is told of the call, and let callbacks give back what they hold when it is over."""
    observer = CallbackObserver(agent, callback_list(asked.callbacks), asked.progress)
    if not observer.is_needed:
        yield Observer()
        return
    try:
        yield observer
    finally:
        observer.close()


@contextmanager
def _watch(plan: CheckpointPlan | None, rank: int) -> Iterator[StopWatch | None]:
    """Listen for requests to stop; give None where nothing is saved."""
    if plan is None:
        yield None
        return
    left = slurm.job_seconds_left() if rank == 0 and plan.time_limit is None else None
    watch = StopWatch(plan.stop_signals, plan.time_limit, left, rank)
    with watch:
        yield watch


def _begin(agent: DistAsyncQLearning, source: Source, total: int, plan: CheckpointPlan | None) -> _Beginning:
    """Find out where a call begins and ends, and take up a checkpoint if there is one. On rank 0 or alone."""
    begin = agent._requested
    beginning = _Beginning(begin, begin + total, begin + total)
    undo_changes(agent)
    if plan is not None and total > 0:
        place = place_of(agent, plan)
        beginning.place = place
        found = None if place.is_looked_through else find(agent, source, place, plan)
        steps, read = (agent._steps, place.read) if found is None else (found.steps, found.name)
        finished = agent._finished if found is None else found.finished
        if steps < end_of(finished, begin, beginning.asked) and not place.claim(read):
            found = find(agent, source, place, plan)
        # Nothing can fail from here on: the agent is as before, or as the checkpoint has it.
        if found is not None:
            take_up(agent, place, found)
            beginning.has_loaded = True
        place.is_looked_through = True
        beginning.generation = place.generation
    beginning.end = end_of(agent._finished, begin, beginning.asked)
    if agent._steps < beginning.end:
        beginning.resumed = resumed_of(agent, begin)
    _seed(agent)
    return beginning


def _begin_together(
    agent: DistAsyncQLearning,
    source: Source,
    total: int,
    plan: CheckpointPlan | None,
    watch: StopWatch | None,
    setup: Setup,
) -> _Beginning:
    """Let the server find out where the call begins, and bring the agents of the other ranks to that."""
    end = agent._requested + total
    beginning = _Beginning(agent._requested, end, end)
    error: BaseException | None = None
    if setup.is_head:
        try:
            beginning = _begin(agent, source, total, plan)
        except BaseException as caught:  # whatever it is, the others must hear of it
            error = caught
    table = [_digest(agent.q_table), _digest(agent.visits)]
    tables = setup.agree(error, {}, table, "the server to read its checkpoint, if there is one")
    resumed = beginning.resumed
    text = None
    if setup.is_head:
        text = messages.text(
            {
                "begin": beginning.begin,
                "end": beginning.end,
                "asked": beginning.asked,
                "steps": agent.steps,
                "seed": agent._seed,
                "epsilon": schedules.to_dict(agent.settings.epsilon),
                "generation": beginning.generation,
                "has_loaded": beginning.has_loaded,
                "finished": agent._finished,
                "place": None if beginning.place is None else beginning.place.told,
                "slurm_left": None if watch is None else watch.slurm_left,
                "resumed": None if resumed is None else resumed.without_arrays(),
            }
        )
    told = messages.from_text(setup.broadcast_message(text, "the server's state"))
    beginning.told, beginning.end = told, told["end"]
    if not setup.is_head:
        # Whoever has touched nothing has nothing to be told: a new agent, or one whose training was stopped.
        # Nor who does over what the script did before the checkpoint was written.
        is_own = table[0] != agent._behind and (agent.steps > 0 or agent.q_table.any())
        is_over = told["has_loaded"] or beginning.begin < told["steps"]
        if not is_over and is_own and tables[setup.members.index(setup.head), 0] != table[0]:
            _warn_of_difference(setup.rank, "q_table")
        if schedules.from_dict(told["epsilon"]) != agent.settings.epsilon:
            _warn_of_difference(setup.rank, "epsilon")
        _take_told(agent, beginning, told, plan, watch)
    if told["has_loaded"] or (tables != tables[0]).any():
        setup.broadcast(agent.q_table, "the server's table")
        setup.broadcast(agent.visits, "the server's visits")
    if told["resumed"] is not None:
        states = None if resumed is None else learners_message(resumed.learners)
        states = setup.broadcast_message(states, "the server's learners")
        if not setup.is_head:
            beginning.resumed = Resumed(**told["resumed"], learners=learners_of(states))
    return beginning


def _take_told(
    agent: DistAsyncQLearning,
    beginning: _Beginning,
    told: dict[str, Any],
    plan: CheckpointPlan | None,
    watch: StopWatch | None,
) -> None:
    """Bring this rank's agent to what the server says of the call."""
    if plan is not None and told["place"] is not None:
        note_place(agent, plan, told["place"])
    if watch is not None and told["slurm_left"] is not None:
        watch.slurm_left = told["slurm_left"]
    epsilon = schedules.from_dict(told["epsilon"])
    if epsilon != agent.settings.epsilon:
        agent.epsilon = epsilon
    agent._steps, agent._seed = told["steps"], told["seed"]
    agent._finished = told["finished"]
    agent._requested = told["begin"]
    beginning.generation = told["generation"]


def _digest(array: np.ndarray) -> int:
    """Return a number that differs where arrays differ, at the speed of reading them."""
    words = array.reshape(-1).view(np.uint8)
    whole = words[: words.size // _BLOCK_BYTES * _BLOCK_BYTES].view(np.uint64).reshape(-1, _BLOCK_BYTES // 8)
    digest = zlib.crc32(np.add.reduce(whole, axis=1).data)
    digest = zlib.crc32(np.bitwise_xor.reduce(whole, axis=1).data, digest)
    return zlib.crc32(words[whole.nbytes :].data, digest)


def _warn_of_difference(rank: int, name: str) -> None:
    logger.warning(
        "agent.%s on rank %d is not what it is on rank 0. What rank 0 holds is what counts; set it on all "
        "ranks alike to go without this warning.",
        name,
        rank,
    )


def _steps_asked(steps: int | None, total_steps: int | None) -> tuple[int, bool]:
    """Return the number given, and whether it is the total."""
    if (steps is None) == (total_steps is None):
        raise SettingsError(
            "train() takes steps= (this rank's share) or total_steps= (of all ranks together), exactly one "
            f"of them; got steps={steps!r} and total_steps={total_steps!r}."
        )
    name, value = ("steps", steps) if total_steps is None else ("total_steps", total_steps)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not 0 <= value < _MOST_STEPS:
        raise SettingsError(f"{name} must be a whole number of at least 0, got {value!r}.")
    return int(value), total_steps is not None


def _check(agent: DistAsyncQLearning, steps: int, asked: Request) -> None:
    progress: Any = asked.progress
    progress_interval: Any = asked.progress_interval
    if agent.steps + steps >= _MOST_STEPS:
        raise SettingsError(
            f"An agent can learn for fewer than 2**62 steps in all; {agent.steps} were made and {steps} are "
            "asked for."
        )
    if progress is not None and not callable(progress):
        raise SettingsError(f"progress must be a function of one argument, or None, got {progress!r}.")
    callback_list(asked.callbacks)
    if isinstance(progress_interval, bool) or not isinstance(progress_interval, (int, float)):
        raise SettingsError(f"progress_interval must be a number of seconds, got {progress_interval!r}.")
    if not 0.0 <= progress_interval < math.inf:
        raise SettingsError(
            f"progress_interval must be at least 0 and finite, in seconds, got {progress_interval!r}."
        )


def _seed(agent: DistAsyncQLearning) -> int:
    if agent._seed is None:
        agent._seed = fresh_seed()
    return agent._seed


def get_to_know(agent: DistAsyncQLearning, env: Any) -> Source:
    """Return `env` as a `Source`, after the agent took note of its size, its spaces and its legal actions."""
    settings = agent.settings
    source = resolve(env, settings.n_envs, settings.use_action_mask)
    try:
        agent._check_size(source.n_states, source.n_actions)
    except BaseException:
        source.close()
        raise
    agent._legal = None if source.simulator is None else source.simulator.legal
    agent._observations = None if source.stepped is None else source.stepped.observations
    agent._actions = None if source.stepped is None else source.stepped.actions
    return source


def _description(
    agent: DistAsyncQLearning, source: Source, plan: CheckpointPlan | None, total: int | None
) -> dict[str, Any]:
    """Return what must be the same on all ranks."""
    settings = agent.settings.to_dict()
    del settings["epsilon"]  # rank 0's counts
    return {
        **settings,
        "table": list(agent.q_table.shape),
        "environment": environment_text(source),
        "total_steps": total,
        "steps so far": agent.steps,
        # Where it is, rank 0 alone needs to know.
        "checkpoints": plan is not None,
    }


def _run(
    agent: DistAsyncQLearning,
    source: Source,
    asked: Request,
    beginning: _Beginning,
    watch: StopWatch | None,
    plan: CheckpointPlan | None,
    observer: Observer,
) -> Run:
    inner = (slice(source.n_states), slice(source.n_actions))
    # A view where the table is as large as the environment, a copy where it is larger; `_store` writes that
    # back.
    values = agent.q_table[inner].reshape(-1)
    counts = agent.visits[inner].reshape(-1)
    steps = max(0, beginning.end - agent.steps)
    saver = _saver(agent, source, beginning, watch, plan)
    settings = agent.settings
    if isinstance(observer, CallbackObserver):
        put_back = partial(_put_back, agent, source, values, counts)
        observer.begin(beginning.begin, None if np.shares_memory(values, agent.q_table) else put_back)
    return Run(
        agent.settings,
        source,
        values,
        counts,
        agent.steps,
        steps,
        agent._seed or 0,
        observer,
        asked.progress_interval if isinstance(observer, CallbackObserver) else math.inf,
        watch,
        saver,
        beginning.resumed,
        beginning.generation,
        Policy(settings.on_failure, settings.min_workers, settings.max_replacements),
        beginning.told,
        wants_to_leave=lambda: agent._leaving.why,
    )


def _saver(
    agent: DistAsyncQLearning,
    source: Source,
    beginning: _Beginning,
    watch: StopWatch | None,
    plan: CheckpointPlan | None,
) -> Saver | None:
    """Return what saves the call, where this rank has a place for that."""
    place = beginning.place
    if plan is None or place is None or watch is None:
        return None
    return Saver(
        plan,
        place.writer,
        description(agent, source, place, beginning.begin, beginning.asked),
        (agent.q_table, agent.visits),
        (source.n_states, source.n_actions),
        constant_arrays(agent),
        agent._finished,
        watch,
        agent.steps,
        agent.settings.timeout,
    )


def _made_before(agent: DistAsyncQLearning, run: Run, beginning: _Beginning, workers: int) -> TrainingResult:
    """Return the result of a call that has nothing left to do."""
    if beginning.begin == beginning.end:
        return run.tally.result(0.0, 0.0, workers)
    return result_of(beginning.place, beginning.begin, beginning.asked, agent)


def _keep(
    agent: DistAsyncQLearning, run: Run, beginning: _Beginning, result: TrainingResult
) -> TrainingResult:
    made = run.steps
    if run.steps > 0:
        made = beginning.begin + result.steps - run.start
        beginning.end = beginning.begin + result.steps  # a callback may have ended it early
    _store(agent, run, made)
    agent._requested = beginning.end
    if run.steps > 0:
        agent._pending = agent._taken = None
        if run.saver is None:
            note_finished(agent._finished, beginning.begin, beginning.asked, result)
    if isinstance(run.observer, CallbackObserver):
        run.observer.ended(result)
    return result


def _store(agent: DistAsyncQLearning, run: Run, steps: int) -> None:
    _put_back(agent, run.source, run.values, run.counts)
    agent._steps = run.start + steps


def _put_back(agent: DistAsyncQLearning, source: Source, values: np.ndarray, counts: np.ndarray) -> None:
    shape = (source.n_states, source.n_actions)
    agent.q_table[: shape[0], : shape[1]] = values.reshape(shape)
    agent.visits[: shape[0], : shape[1]] = counts.reshape(shape)
