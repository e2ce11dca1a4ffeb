"""Where a call of `train` begins: from what agents hold, or from a checkpoint; on all ranks alike."""

from __future__ import annotations

import logging
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from dist_classicrl import schedules
from dist_classicrl._random import fresh_seed
from dist_classicrl.agent.resuming import (
    Place,
    end_of,
    find,
    note_place,
    place_of,
    resumed_of,
    take_up,
    undo_changes,
)
from dist_classicrl.checkpoint.plan import CheckpointPlan
from dist_classicrl.comm import envelope
from dist_classicrl.engines.rounds.exchange import learners_message, learners_of
from dist_classicrl.engines.run import Resumed
from dist_classicrl.environments.resolve import Source
from dist_classicrl.membership.handshake import Setup
from dist_classicrl.process.stop import StopWatch

if TYPE_CHECKING:
    from dist_classicrl.agent.agent import DistAsyncQLearning

logger = logging.getLogger(__name__)

_BLOCK_BYTES = 1 << 15


@dataclass
class Beginning:
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


def begin_call(
    agent: DistAsyncQLearning, source: Source, total: int, plan: CheckpointPlan | None
) -> Beginning:
    """Find out where a call begins and ends, and take up a checkpoint if there is one. On rank 0 or alone."""
    begin = agent._requested
    beginning = Beginning(begin, begin + total, begin + total)
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


def begin_together(
    agent: DistAsyncQLearning,
    source: Source,
    total: int,
    plan: CheckpointPlan | None,
    watch: StopWatch | None,
    setup: Setup,
) -> Beginning:
    """Let the server find out where the call begins, and bring the agents of the other ranks to that."""
    end = agent._requested + total
    beginning = Beginning(agent._requested, end, end)
    error: BaseException | None = None
    if setup.is_head:
        try:
            beginning = begin_call(agent, source, total, plan)
        except BaseException as caught:  # whatever it is, the others must hear of it
            error = caught
    table = [digest(agent.q_table), digest(agent.visits)]
    tables = setup.agree(error, {}, table, "the server to read its checkpoint, if there is one")
    resumed = beginning.resumed
    text = None
    if setup.is_head:
        text = envelope.text(
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
    told = envelope.from_text(setup.broadcast_message(text, "the server's state"))
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
        take_told(agent, beginning, told, plan, watch)
    if told["has_loaded"] or (tables != tables[0]).any():
        setup.broadcast(agent.q_table, "the server's table")
        setup.broadcast(agent.visits, "the server's visits")
    if told["resumed"] is not None:
        states = None if resumed is None else learners_message(resumed.learners)
        states = setup.broadcast_message(states, "the server's learners")
        if not setup.is_head:
            beginning.resumed = Resumed(**told["resumed"], learners=learners_of(states))
    return beginning


def take_told(
    agent: DistAsyncQLearning,
    beginning: Beginning,
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


def digest(array: np.ndarray) -> int:
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


def _seed(agent: DistAsyncQLearning) -> int:
    if agent._seed is None:
        agent._seed = fresh_seed()
    return agent._seed
