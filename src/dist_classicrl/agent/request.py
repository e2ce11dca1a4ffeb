"""What one call of `train` is asked for, checked; and what listens while it goes on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dist_classicrl.agent.observing import CallbackObserver
from dist_classicrl.callbacks import callback_list
from dist_classicrl.checkpoint.plan import CheckpointPlan, checked_signals
from dist_classicrl.engines.progress import Observer, Progress
from dist_classicrl.errors import (
    SettingsError,
)
from dist_classicrl.launch import slurm
from dist_classicrl.process.stop import StopWatch

if TYPE_CHECKING:
    from dist_classicrl.agent.agent import DistAsyncQLearning

_MOST_STEPS = 2**62


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


def leave_signals_of(asked: Request) -> tuple[int, ...]:
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


def steps_asked(steps: int | None, total_steps: int | None) -> tuple[int, bool]:
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


def check(agent: DistAsyncQLearning, steps: int, asked: Request) -> None:
    """Check what is asked for, apart from the environment and the checkpoints.

    Raises
    ------
    SettingsError
        If it is nothing that can be done.
    """
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


@contextmanager
def observed(agent: DistAsyncQLearning, asked: Request) -> Iterator[Observer]:
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
def watching(plan: CheckpointPlan | None, rank: int) -> Iterator[StopWatch | None]:
    """Listen for requests to stop; give None where nothing is saved."""
    if plan is None:
        yield None
        return
    left = slurm.job_seconds_left() if rank == 0 and plan.time_limit is None else None
    watch = StopWatch(plan.stop_signals, plan.time_limit, left, rank)
    with watch:
        yield watch
