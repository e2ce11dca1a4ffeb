"""`train` from the side of an agent.

Arguments come in, all ranks agree, the run is made, and results go back into the agent.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from dist_classicrl._random import fresh_seed
from dist_classicrl.distributed.report import Progress, TrainingResult
from dist_classicrl.distributed.run import Run, run_alone, run_together
from dist_classicrl.distributed.startup import Setup
from dist_classicrl.distributed.world import find_world
from dist_classicrl.environments.resolve import Source, resolve
from dist_classicrl.errors import SettingsError

if TYPE_CHECKING:
    from dist_classicrl.runtime.agent import DistAsyncQLearning

logger = logging.getLogger(__name__)

_MOST_STEPS = 2**62


def train(
    agent: DistAsyncQLearning,
    env: Any,
    steps: int | None,
    total_steps: int | None,
    progress: Callable[[Progress], None] | None,
    progress_interval: float,
) -> TrainingResult:
    """Do what `DistAsyncQLearning.train` says."""
    settings = agent.settings
    world = find_world(agent._comm, settings.allow_singletons)
    if world is None:
        share, _ = _steps_asked(steps, total_steps)
        _check(agent, share, progress, progress_interval)
        return _train_alone(agent, env, share, progress, progress_interval)
    setup = Setup(world, settings.timeout)
    source: Source | None = None
    share, whole = 0, False
    error: BaseException | None = None
    try:
        share, whole = _steps_asked(steps, total_steps)
        _check(agent, share * (1 if whole else world.Get_size()), progress, progress_interval)
        source = get_to_know(agent, env)
    except BaseException as caught:  # whatever it is, the others must hear of it
        error = caught
    try:
        description = {} if source is None else _description(agent, source, share if whole else None)
        everyone = setup.agree(error, description, [share, _seed(agent)])
    except BaseException:
        if source is not None:
            source.close()
        raise
    total = share if whole else sum(everyone[:, 0].tolist())
    agent._seed = int(everyone[0, 1])
    assert source is not None  # else there was an error, which agree() raised
    run = _run(agent, source, total, agent._seed, progress if setup.rank == 0 else None, progress_interval)
    if total == 0:
        run.source.close()
        setup.close(clean=True)
        return _keep(agent, run, _nothing(run, setup.size - 1))
    return _keep(agent, run, run_together(run, setup))


def _train_alone(
    agent: DistAsyncQLearning,
    env: Any,
    steps: int,
    progress: Callable[[Progress], None] | None,
    progress_interval: float,
) -> TrainingResult:
    run = _run(agent, get_to_know(agent, env), steps, _seed(agent), progress, progress_interval)
    if steps == 0:
        run.source.close()
        return _keep(agent, run, _nothing(run, 1))
    try:
        result = run_alone(run)
    except BaseException:
        _store(agent, run, run.kept)  # what was learned until then is not lost
        raise
    return _keep(agent, run, result)


def _nothing(run: Run, workers: int) -> TrainingResult:
    return run.tally.result(0.0, 0.0, workers)


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


def _check(agent: DistAsyncQLearning, steps: int, progress: Any, progress_interval: Any) -> None:
    if agent.steps + steps >= _MOST_STEPS:
        raise SettingsError(
            f"An agent can learn for fewer than 2**62 steps in all; {agent.steps} were made and {steps} are "
            "asked for."
        )
    if progress is not None and not callable(progress):
        raise SettingsError(f"progress must be a function of one argument, or None, got {progress!r}.")
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


def _description(agent: DistAsyncQLearning, source: Source, total: int | None) -> dict[str, Any]:
    """Return what must be the same on all ranks."""
    return {
        **agent.settings.to_dict(),
        "table": list(agent.q_table.shape),
        "environment": f"{source.name} ({source.fingerprint[:12]})",
        "total_steps": total,
        "steps so far": agent.steps,
    }


def _run(
    agent: DistAsyncQLearning,
    source: Source,
    steps: int,
    seed: int,
    progress: Callable[[Progress], None] | None,
    progress_interval: float,
) -> Run:
    inner = (slice(source.n_states), slice(source.n_actions))
    # A view where the table is as large as the environment, a copy where it is larger; `_keep` writes that
    # back.
    values = agent.q_table[inner].reshape(-1)
    counts = agent.visits[inner].reshape(-1)
    return Run(agent.settings, source, values, counts, agent.steps, steps, seed, progress, progress_interval)


def _keep(agent: DistAsyncQLearning, run: Run, result: TrainingResult) -> TrainingResult:
    _store(agent, run, result.steps)
    return result


def _store(agent: DistAsyncQLearning, run: Run, steps: int) -> None:
    shape = (run.source.n_states, run.source.n_actions)
    agent.q_table[: shape[0], : shape[1]] = run.values.reshape(shape)
    agent.visits[: shape[0], : shape[1]] = run.counts.reshape(shape)
    agent._steps += steps
