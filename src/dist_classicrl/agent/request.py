"""What one call of `train` is asked for, and what of it cannot be done."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from dist_classicrl.callbacks import callback_list
from dist_classicrl.callbacks.shown import REPORT_SECONDS
from dist_classicrl.checkpoint.plan import CheckpointPlan, checked_signals, checkpoint_plan
from dist_classicrl.checks import (
    Or,
    WholeNumber,
    YesOrNo,
    as_float,
    checked_verbosity,
    is_flag,
    is_real,
    is_whole,
    takes_one,
)
from dist_classicrl.engines.progress import Progress
from dist_classicrl.environments.resolve import Source
from dist_classicrl.errors import SettingsError
from dist_classicrl.process.stop import OF_LAUNCHER, with_launchers
from dist_classicrl.settings import Settings

_MOST_STEPS = 2**62


@dataclass(frozen=True)
class Request:
    """The arguments of one call of `train`, as they were given; see `DistAsyncQLearning.train`."""

    env: Any
    steps: int | None
    total_steps: int | None
    total_episodes: Any
    new_env: bool
    progress: Callable[[Progress], None] | None
    progress_interval: float | str
    leave_signals: Any
    callbacks: Any
    placement: Any
    walkers: Any
    partition: Any
    progress_bar: Any
    verbose: Any
    saving: dict[str, Any]  # the arguments of `checkpoint_plan`

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Request:
        """Return the request that is made by the arguments `given` to `train`, by name."""
        own = {each.name: given[each.name] for each in fields(cls) if each.name != "saving"}
        return cls(**own, saving={each.name: given[each.name] for each in fields(CheckpointPlan)})

    @property
    def names_total(self) -> bool:
        """Whether the steps of all ranks together are given, and not this rank's share."""
        return self.total_steps is not None or (self.steps is None and self.total_episodes is not None)

    @property
    def n_walkers(self) -> int | None:
        """How many walkers there are to be, once `check_walkers` has seen that it is a number."""
        return None if self.walkers is None else int(self.walkers)

    @property
    def episodes(self) -> int | None:
        """After how many episodes of all ranks the call ends."""
        return None if self.total_episodes is None else int(self.total_episodes)

    # What is wrong with these two is said where all ranks hear of it.

    @property
    def wants_bar(self) -> bool | None:
        """Whether there is to be a bar; None: where somebody sees it."""
        return None if self.progress_bar is None else is_flag(self.progress_bar) and bool(self.progress_bar)

    @property
    def is_verbose(self) -> bool:
        """Whether more is to be said."""
        return (is_flag(self.verbose) or is_whole(self.verbose)) and bool(self.verbose)

    def plan_and_signals(self) -> tuple[CheckpointPlan | None, tuple[int, ...]]:
        """Return what is asked for about checkpoints, and the signals on which a worker leaves.

        SettingsError where that is nothing that can be done.
        """
        plan = checkpoint_plan(**self.saving)
        signals = checked_signals("leave_signals", self.leave_signals)
        stopping = with_launchers(() if plan is None else plan.stop_signals)
        if both := sorted(set(signals) & stopping):
            raise SettingsError(
                f"leave_signals holds {', '.join(number.name for number in both)}, which stops the training: "
                "a signal either does that or lets one worker leave. Take it out of leave_signals, or out of "
                f"stop_signals; under a launcher {OF_LAUNCHER.name} always stops the training. Write for "
                'instance leave_signals=("SIGHUP",).'
            )
        return plan, signals

    def checked_steps(self, made: int, ranks: int) -> int:
        """Return the steps that are named, after a look at all but the environment and the checkpoints.

        The agent has `made` steps before, and so many `ranks` train together. SettingsError where something
        is asked for that cannot be done.
        """
        steps = self._named_steps(ranks)
        asked = steps if self.names_total else steps * ranks
        if made + asked >= _MOST_STEPS:
            raise SettingsError(
                f"An agent can learn for fewer than 2**62 steps in all; {made} were made and {asked} are "
                "asked for."
            )
        YesOrNo()("new_env", self.new_env)
        interval: Any = self.progress_interval
        if self.progress is not None and not (callable(self.progress) and takes_one(self.progress)):
            raise SettingsError(
                f"progress must be a function of one argument, a Progress, or None, got {self.progress!r}."
            )
        callback_list(self.callbacks)
        Or(None, YesOrNo("None"))("progress_bar", self.progress_bar)
        checked_verbosity(self.verbose)
        if isinstance(interval, str) and interval == "auto":
            return steps
        if not is_real(interval):
            raise SettingsError(
                f'progress_interval must be a number of seconds, or "auto", got {interval!r}.'
            )
        if not 0.0 <= as_float(interval) < math.inf:
            raise SettingsError(
                f"progress_interval must be at least 0 and finite, in seconds, got {interval!r}."
            )
        return steps

    def seconds_between_reports(self, settings: Settings) -> float:
        """Return how often to report by time; infinity: reports depend on steps alone."""
        if self.progress_interval == "auto":
            return REPORT_SECONDS if settings.async_updates else math.inf
        return float(self.progress_interval)

    def bounded_steps(self, steps: int, source: Source, made: int) -> int:
        """Return the steps that are named, or those that the episodes can take where these alone are.

        SettingsError where nobody knows how long an episode can be.
        """
        if self.steps is not None or self.total_steps is not None or self.episodes is None:
            return steps
        limit = source.max_episode_steps
        if limit is None:
            raise SettingsError(
                f"train() got total_episodes={self.episodes} and no steps, and nobody knows how long an "
                f"episode of {source.name} may be. Write total_steps= besides, the most steps to be made."
            )
        others = 0 if source.stepped is None else source.stepped.n_envs - 1  # which are in the middle of one
        return min((self.episodes + others) * limit, _MOST_STEPS - 1 - made)

    def _named_steps(self, ranks: int) -> int:
        if self.total_episodes is not None:
            WholeNumber(1, "None", bits=62)("total_episodes", self.total_episodes)
            if self.steps is None and self.total_steps is None:
                return 0  # see `bounded_steps`
        if (self.steps is None) == (self.total_steps is None):
            which = "steps= (this rank's share) or total_steps= (of all ranks together)"
            raise SettingsError(
                f"train() takes {which if ranks > 1 else 'total_steps=, or steps= for it'}, exactly "
                f"one of them, or total_episodes= alone; got steps={self.steps!r} and "
                f"total_steps={self.total_steps!r}."
            )
        name = "total_steps" if self.names_total else "steps"
        value: Any = getattr(self, name)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        return WholeNumber(0, bits=62)(name, value)
