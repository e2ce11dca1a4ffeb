"""Where a call of `train` begins: from what agents hold, or from a checkpoint; on all ranks alike.

The rank that serves finds it out, tells the others, and these bring their agents to it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dist_classicrl.agent.agreement import Agreement
from dist_classicrl.agent.checkpoints import CallAsked, Found, check_goes_on, find, put_table_back, take_up
from dist_classicrl.checkpoint.plan import CheckpointPlan
from dist_classicrl.comm import envelope
from dist_classicrl.engines.idle import told
from dist_classicrl.engines.outcome import Counters, Tally
from dist_classicrl.engines.run import Resumed
from dist_classicrl.engines.saving import finished_call
from dist_classicrl.environments.identity import Identity
from dist_classicrl.environments.resolve import Source
from dist_classicrl.errors import CheckpointError
from dist_classicrl.model.agent_state import AgentState
from dist_classicrl.model.keyed import KeyedRows
from dist_classicrl.model.places import Place, PlaceName
from dist_classicrl.process.stop import StopWatch
from dist_classicrl.schedules import kinds as schedules
from dist_classicrl.schedules.kinds import Schedule, in_call, without_call
from dist_classicrl.tables.large_table import LargeTable

logger = logging.getLogger(__name__)

_TOLD_ROWS = 1 << 20


@dataclass(frozen=True)
class Beginning:
    """Where a call begins and ends, as the rank that serves tells it to all."""

    begin: int  # global step at which the whole call begins
    end: int
    asked: int  # the end that was asked for: a callback may have ended the call before
    steps: int  # global step from which learning goes on
    seed: int
    schedules: dict[str, Schedule]  # of the settings that are some: as they are in this call
    finished: list[dict[str, Any]]  # see `AgentState`
    ranks: int  # of the communicator; 1 where a process is alone
    run: str  # see `Places`
    place: PlaceName | None = None  # where the call is saved
    generation: int = 0  # how many processes saved there before
    has_loaded: bool = False  # whether a checkpoint was taken up just now
    resumed: Resumed | None = None  # what the checkpoint says besides the table, of a call begun before
    slurm_left: float | None = None  # seconds that SLURM leaves to the job
    environment: Identity | None = None  # what the steps before were learned in, where it is known

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data for JSON, without the learners' arrays."""
        resumed = None if self.resumed is None else self.resumed.without_arrays()
        environment = None if self.environment is None else self.environment.to_dict()
        rates = {name: schedules.to_dict(schedule) for name, schedule in self.schedules.items()}
        return {**vars(self), "schedules": rates, "resumed": resumed, "environment": environment}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Beginning:
        """Return what `to_dict` described."""
        place, resumed = data["place"], data["resumed"]
        read = {
            "schedules": {name: schedules.from_dict(each) for name, each in data["schedules"].items()},
            "place": None if place is None else PlaceName(*place),
            "resumed": None if resumed is None else Resumed(**resumed),
            "environment": Identity.from_dict(data["environment"]),
        }
        known = {name: data[name] for name in cls.__dataclass_fields__}
        return cls(**{**known, **read})


def begin_call(
    state: AgentState,
    asked: CallAsked,
    watch: StopWatch | None,
    agreement: Agreement,
    reach: Callable[[PlaceName | None, BaseException | None], None] | None,
) -> tuple[Beginning, Place | None]:
    """Bring the agents of all ranks to where a call begins; return that, and where this rank saves the call.

    All ranks call `reach`, before a checkpoint is taken up, on the one that serves with where the call is
    saved, or with what it found wrong.
    """
    found: Beginning | None = None
    place: Place | None = None
    error: BaseException | None = None
    claimed, read = None, None
    if agreement.is_head:
        try:
            place, read, claimed = find_out(state, asked)
        except BaseException as caught:  # whatever it is, the others must hear of it
            error = caught
    try:
        if reach is not None:
            reach(claimed, error)
        if agreement.is_head and error is None:
            try:
                found = _begin(state, asked, watch, place, read)
            except BaseException as caught:
                error = caught
        own = state.digests() if len(agreement.members) > 1 else []
        everyone = agreement.agree(error, {}, own, "the server to read its checkpoint, if there is one")
    finally:
        del error  # see `Alone.agree`
    beginning = tell(found, agreement)
    if agreement.is_head:
        state.change(**state.settings.of_schedules(beginning.schedules))  # not before all ranks are at it
    else:
        _warn_of_differences(state, beginning, own, everyone, agreement)
        adopt(state, beginning, asked.plan, watch)
    if state.large is not None:
        if not asked.in_rows and len(agreement.members) > 1:
            _tell_large(state, state.large, agreement)
    elif beginning.has_loaded or (everyone != everyone[0]).any():
        if state.keyed is not None:
            _tell_keys(state, state.keyed, agreement)
        agreement.broadcast(state.values, "the server's table")
        agreement.broadcast(state.counts, "the server's visits")
    state.lacks_steps = False
    return beginning, place


def _tell_large(state: AgentState, large: LargeTable, agreement: Agreement) -> None:
    """Let all ranks have the rows of the head's table, some at a time."""
    for first in range(0, large.rows.shape.n_rows, _TOLD_ROWS):
        for table, what in zip(state.table, ("the server's table", "the server's visits"), strict=True):
            part = table[first : first + _TOLD_ROWS]
            told = np.ascontiguousarray(part)
            agreement.broadcast(told, what)
            if not agreement.is_head:
                part[:] = told


def _tell_keys(state: AgentState, keyed: KeyedRows, agreement: Agreement) -> None:
    """Let all ranks have the states of the head, where these are keys."""
    own = keyed.keys.view(np.uint8) if agreement.is_head else None
    keys = agreement.broadcast_message(own, "the server's states").view(keyed.keys.dtype)
    if not agreement.is_head:
        rows = replace(state.shape, n_states=keys.size).n_rows, state.shape.n_actions
        keyed.put(keys, None, np.zeros(rows, state.values.dtype), np.zeros(rows, np.int64))


def find_out(state: AgentState, asked: CallAsked) -> tuple[Place | None, Found | None, PlaceName | None]:
    """Find out on the rank that serves where a call is saved, and claim that place if steps are to be made.

    Return the place, the checkpoint that is to be taken up, if there is one, and what the place is called
    from then on, if it was claimed.
    """
    begin, plan = state.requested, asked.plan
    if begin < state.steps:
        # This call was begun by an earlier process. What the script does to the table between its calls, it
        # did then as well: the checkpoint contains it.
        put_table_back(state)
    if asked.total == 0:
        return None, None, None
    if plan is None:
        _warn_of_lost_steps(state)
        return None, None, None
    place = state.places.of(plan, _experiment(state, asked.source))
    find_first = _find_again if place.is_looked_through else find
    found = find_first(state, asked, plan, place)
    if found is None:
        check_goes_on(state, asked, plan.strict)
    steps, read = (state.steps, place.read) if found is None else (found.steps, found.name)
    finished = state.finished if found is None else found.finished
    if steps >= end_of(finished, begin, begin + asked.total):
        return place, found, None
    if not place.claim(read):
        found = find(state, asked, plan, place)
    run = state.places.run if found is None or found.run is None else found.run
    return place, found, PlaceName(place.number, run)


def _find_again(state: AgentState, asked: CallAsked, plan: CheckpointPlan, place: Place) -> Found | None:
    """Return the checkpoint of steps of which this rank has only heard, since another one served then.

    None where it has them, and where there is no such checkpoint: then its own table goes on. So it does
    where the script has changed that since.
    """
    is_half_known = state.requested < state.steps and state.pending is None
    is_new = place.folder.fence.number == 0  # who has claimed the place knows what is there
    lacks_table = state.lacks_steps and state.behind == state.digests()[0]
    if lacks_table or (is_half_known and is_new):
        with suppress(CheckpointError):  # of something else than this call, or gone: it has to go on without
            found = find(state, asked, plan, place)
            if found is not None and found.steps >= state.steps:
                return found
    _warn_of_lost_steps(state)
    return None


def _warn_of_lost_steps(state: AgentState) -> None:
    if state.lacks_steps:
        logger.warning(
            "The rank that had the table of step %s is lost, and a checkpoint of it could not be taken up. "
            "Training goes on with the table that is here, which lacks what was learned in the call that was "
            "stopped, though its steps count.",
            f"{state.steps:,}",
        )


def _begin(
    state: AgentState,
    asked: CallAsked,
    watch: StopWatch | None,
    place: Place | None,
    found: Found | None,
) -> Beginning:
    """Take up the checkpoint that was found, and return where the call begins and ends.

    Nothing can fail here: the agent is as before, or as the checkpoint has it.
    """
    if place is not None:
        if found is not None:
            take_up(state, place, found)
        place.is_looked_through = True
    begin = state.requested
    until = begin + asked.total
    end = end_of(state.finished, begin, until)
    return Beginning(
        begin=begin,
        end=end,
        asked=until,
        steps=state.steps,
        seed=state.drawn_seed(),
        schedules={
            name: in_call(each, begin, asked.total, state.steps)
            for name, each in state.settings.schedules.items()
        },
        finished=list(state.finished),
        ranks=asked.ranks,
        run=state.places.run,
        place=None if place is None else place.name,
        generation=0 if place is None else place.generation,
        has_loaded=found is not None,
        resumed=resumed_of(state, begin) if state.steps < end else None,
        slurm_left=None if watch is None else watch.slurm_left,
        environment=state.environment,
    )


def _experiment(state: AgentState, source: Source) -> str:
    """Return what is the same for two agents that learn the same, bit for bit; "" where no seed was given."""
    settings = state.settings
    return "" if settings.seed is None else f"{source.fingerprint} {json.dumps(settings.to_dict())}"


def say_idle(state: AgentState, idle: Mapping[str, str]) -> None:
    """Warn of those of the settings that play no part and were given all the same: once, not in each call."""
    text = told(state.settings, idle)
    if text and text not in state.said:
        state.said.add(text)
        logger.warning("%s", text)


def end_of(finished: list[dict[str, Any]], begin: int, asked: int) -> int:
    """Return the global step at which the call from `begin` to `asked` ends, or has ended before that."""
    call = finished_call(finished, begin, asked)
    return asked if call is None else begin + int(call["result"]["steps"])


def resumed_of(state: AgentState, begin: int) -> Resumed | None:
    """Return where a call that began at global step `begin` goes on from a checkpoint, if it does."""
    pending = state.pending
    if pending is None:
        return None
    resumed, made = pending.resumed, state.steps - begin
    then = Counters(steps=made)
    nothing = Tally(total_steps=0, steps=made, reported=then, looked=then).to_dict(0.0)
    if made == 0:  # between two calls: this one begins new episodes, as it would have without a stop
        return Resumed(resumed.checkpoint, 0, nothing, resumed.mode)
    if pending.begin != begin:
        return replace(resumed, made=made, tally=nothing, pace=None)
    return replace(resumed, made=made, tally={**resumed.tally, "steps": made})


def tell(found: Beginning | None, agreement: Agreement) -> Beginning:
    """Tell all ranks what the head, which alone knows it, has found out."""
    if found is not None and len(agreement.members) == 1:
        return found
    from dist_classicrl.engines.rounds.messages import learners_message, learners_of

    text = None if found is None else envelope.text(found.to_dict())
    told = agreement.broadcast_message(text, "the server's state")
    beginning = found or Beginning.from_dict(envelope.from_text(told))
    resumed = beginning.resumed
    if resumed is None:
        return beginning
    states = None if found is None else learners_message(resumed.learners)
    states = agreement.broadcast_message(states, "the server's learners")
    return found or replace(beginning, resumed=replace(resumed, learners=learners_of(states)))


def adopt(
    state: AgentState, beginning: Beginning, plan: CheckpointPlan | None, watch: StopWatch | None
) -> None:
    """Bring the agent of a rank that does not serve to where a call begins, apart from the table."""
    if plan is not None and beginning.place is not None:
        state.places.note(plan, beginning.place)
    if watch is not None and beginning.slurm_left is not None:
        watch.slurm_left = beginning.slurm_left
    state.change(**state.settings.of_schedules(beginning.schedules))
    state.steps, state.seed, state.places.run = beginning.steps, beginning.seed, beginning.run
    state.environment = beginning.environment
    state.finished = list(beginning.finished)
    state.requested = beginning.begin


def _warn_of_differences(
    state: AgentState, beginning: Beginning, own: list[int], everyone: np.ndarray, agreement: Agreement
) -> None:
    """Say what a script has set on this rank in another way than on the one that serves."""
    # Whoever has touched nothing has nothing to be told: a new agent, or one whose training was stopped.
    # Nor who does over what the script did before the checkpoint was written.
    is_own = own[0] != state.behind and (state.steps > 0 or (state.large is None and state.values.any()))
    is_over = beginning.has_loaded or beginning.begin < beginning.steps
    if not is_over and is_own and everyone[agreement.members.index(agreement.head), 0] != own[0]:
        _warn_of_difference(agreement.rank, "q_table")
    if without_call(beginning.schedules["epsilon"]) != without_call(state.settings.epsilon):
        _warn_of_difference(agreement.rank, "epsilon")


def _warn_of_difference(rank: int, name: str) -> None:
    logger.warning(
        "agent.%s on rank %d is not what it is on rank 0. What rank 0 holds is what counts; set it on all "
        "ranks alike to go without this warning.",
        name,
        rank,
    )
