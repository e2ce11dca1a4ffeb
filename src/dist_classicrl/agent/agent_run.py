"""From an agent to a run, and from what the run did back to the agent."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from dist_classicrl.agent.beginning import Beginning
from dist_classicrl.agent.observing import CallbackObserver
from dist_classicrl.agent.request import Request
from dist_classicrl.agent.resuming import (
    constant_arrays,
    description,
    environment_text,
    result_of,
)
from dist_classicrl.checkpoint.plan import CheckpointPlan
from dist_classicrl.engines.outcome import TrainingResult
from dist_classicrl.engines.progress import Observer
from dist_classicrl.engines.roles.server_base import Policy
from dist_classicrl.engines.run import Run
from dist_classicrl.engines.saving import Saver, note_finished
from dist_classicrl.environments.resolve import Source, resolve
from dist_classicrl.process.stop import StopWatch

if TYPE_CHECKING:
    from dist_classicrl.agent.agent import DistAsyncQLearning


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


def common_description(
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


def run_of(
    agent: DistAsyncQLearning,
    source: Source,
    asked: Request,
    beginning: Beginning,
    watch: StopWatch | None,
    plan: CheckpointPlan | None,
    observer: Observer,
) -> Run:
    """Return what a call trains, with this agent's table."""
    inner = (slice(source.n_states), slice(source.n_actions))
    # A view where the table is as large as the environment, a copy where it is larger; `store` writes that
    # back.
    values = agent.q_table[inner].reshape(-1)
    counts = agent.visits[inner].reshape(-1)
    steps = max(0, beginning.end - agent.steps)
    saver = saver_of(agent, source, beginning, watch, plan)
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


def saver_of(
    agent: DistAsyncQLearning,
    source: Source,
    beginning: Beginning,
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


def made_before(agent: DistAsyncQLearning, run: Run, beginning: Beginning, workers: int) -> TrainingResult:
    """Return the result of a call that has nothing left to do."""
    if beginning.begin == beginning.end:
        return run.tally.result(0.0, 0.0, workers)
    return result_of(beginning.place, beginning.begin, beginning.asked, agent)


def keep(
    agent: DistAsyncQLearning,
    run: Run,
    beginning: Beginning,
    result: TrainingResult,
    serves: bool = True,
) -> TrainingResult:
    """Bring the agent to the end of a call, and return its result; whoever `serves` tells the callbacks."""
    made = run.steps
    if run.steps > 0:
        made = beginning.begin + result.steps - run.start
        beginning.end = beginning.begin + result.steps  # a callback may have ended it early
    store(agent, run, made)
    agent._requested = beginning.end
    if run.steps > 0:
        agent._pending = agent._taken = None
        if run.saver is None:
            note_finished(agent._finished, beginning.begin, beginning.asked, result)
    if serves and isinstance(run.observer, CallbackObserver):
        run.observer.ended(result)
    return result


def store(agent: DistAsyncQLearning, run: Run, steps: int) -> None:
    """Bring the agent to where a run is, `steps` after it began."""
    _put_back(agent, run.source, run.values, run.counts)
    agent._steps = run.start + steps


def _put_back(agent: DistAsyncQLearning, source: Source, values: np.ndarray, counts: np.ndarray) -> None:
    shape = (source.n_states, source.n_actions)
    agent.q_table[: shape[0], : shape[1]] = values.reshape(shape)
    agent.visits[: shape[0], : shape[1]] = counts.reshape(shape)
