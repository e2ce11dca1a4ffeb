"""Callbacks that end a training before all its steps are made."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dist_classicrl.callbacks.base import BaseCallback
from dist_classicrl.checks import checked_limit, checked_whole
from dist_classicrl.errors import SettingsError
from dist_classicrl.monitoring.reports import WINDOW, RecentEpisodes

if TYPE_CHECKING:
    from dist_classicrl.callbacks.evaluation import EvalCallback
    from dist_classicrl.environments.identity import Identity


class _OfEvaluation(BaseCallback):
    """What looks at the evaluations of the `EvalCallback` that calls it."""

    @property
    def _evaluation(self) -> EvalCallback:
        from dist_classicrl.callbacks.evaluation import EvalCallback

        if not isinstance(self.parent, EvalCallback):
            name = type(self).__name__
            raise SettingsError(
                f"{name} looks at evaluations. Give it to one that makes them: EvalCallback(env, "
                f"callback_after_eval={name}(...))."
            )
        return self.parent

    def _init_callback(self) -> None:
        _ = self._evaluation  # no training begins that would fail at its first evaluation


class StopTrainingOnRewardThreshold(_OfEvaluation):
    """Ends the training once the mean return of an evaluation is high enough.

    It works below both of `EvalCallback`: a mean that is the first to be so high is a new best.

    Parameters
    ----------
    reward_threshold : float
    verbose : int

    Examples
    --------
    >>> EvalCallback("FrozenLake-v1", callback_on_new_best=StopTrainingOnRewardThreshold(0.7))
    """

    def __init__(self, reward_threshold: float, verbose: int = 0) -> None:
        super().__init__(verbose)
        self.reward_threshold = checked_limit("reward_threshold", reward_threshold)

    def _on_step(self) -> bool:
        best = max(self._evaluation.log.means)  # not that of the best model, which its value may decide
        if best < self.reward_threshold:
            return True
        self._say_end(
            f"an evaluation's mean return is {best:.6g}, and {self.reward_threshold:.6g} is asked for"
        )
        return False


class StopTrainingOnNoModelImprovement(_OfEvaluation):
    """Ends the training once too many evaluations in a row have found no better model.

    Parameters
    ----------
    max_no_improvement_evals : int
        The training ends with the evaluation that exceeds it.
    min_evals : int
        Evaluations that are not counted at the beginning.
    verbose : int

    Examples
    --------
    >>> EvalCallback("Taxi-v4", callback_after_eval=StopTrainingOnNoModelImprovement(10, min_evals=5))
    """

    def __init__(self, max_no_improvement_evals: int, min_evals: int = 0, verbose: int = 0) -> None:
        super().__init__(verbose)
        self.max_no_improvement_evals = checked_whole("max_no_improvement_evals", max_no_improvement_evals, 0)
        self.min_evals = checked_whole("min_evals", min_evals, 0)
        self.no_improvement_evals = 0

    def _on_training_start(self) -> None:
        self.no_improvement_evals = self.n_calls = 0
        for has_improved in self._evaluation.improvements():  # those of a process before this one, too
            self.n_calls += 1
            self._count(has_improved)

    def _count(self, has_improved: bool) -> None:
        if has_improved or self.n_calls <= self.min_evals:
            self.no_improvement_evals = 0
        else:
            self.no_improvement_evals += 1

    def _on_step(self) -> bool:
        self._count(self._evaluation.has_improved)
        if self.no_improvement_evals <= self.max_no_improvement_evals:
            return True
        self._say_end(f"the last {self.no_improvement_evals} evaluations found no better model")
        return False


class _OfOwnEpisodes(BaseCallback):
    """What looks at the mean return of the training's own episodes that ended last."""

    def __init__(self, episodes: int, verbose: int) -> None:
        super().__init__(verbose)
        self.episodes = checked_whole("episodes", episodes, 1)
        self._of: tuple[str, Identity | None] | None = None  # whose episodes there are, and of what
        self._forget()

    def _forget(self) -> None:
        self._recent = RecentEpisodes(self.episodes)

    def _on_training_start(self) -> None:
        now = self.model.run_id, self.model.learned_in
        if self.num_timesteps == 0 or now != self._of:
            self._forget()
        self._of = now

    def _end(self, why: str) -> bool:
        """End the training, and say why."""
        self._say_end(why)
        return False

    def _mean_return(self) -> float:
        """Take in the last report, and return the mean return; NaN while there are too few episodes."""
        assert self.progress is not None  # it came with the step
        self._recent.add(self.progress.episodes, self.progress.mean_return, self.progress.mean_length)
        return self._recent.mean_return if self._recent.is_full else math.nan


class StopTrainingOnReturn(_OfOwnEpisodes):
    """Ends the training once the return of its own episodes, under the exploring policy, is high enough.

    Parameters
    ----------
    threshold : float
        Of the mean over the episodes that ended last.
    episodes : int
        How many these are, at least: those of the last reports, as few reports as have so many. After a
        restart they are collected anew.
    verbose : int
    """

    def __init__(self, threshold: float, episodes: int = WINDOW, verbose: int = 0) -> None:
        super().__init__(episodes, verbose)
        self.threshold = checked_limit("threshold", threshold)

    def _on_step(self) -> bool:
        mean = self._mean_return()
        if math.isnan(mean) or mean < self.threshold:
            return True
        return self._end(f"the mean return is {mean:.6g}, and {self.threshold:.6g} is asked for")


class StopTrainingOnNoReturnImprovement(_OfOwnEpisodes):
    """Ends the training once the return of its own episodes has not risen for so many steps.

    Parameters
    ----------
    patience : int
        Environment steps, of all ranks, without a mean return above the highest one before.
    min_improvement : float
        By how much it has to be above.
    min_steps : int
        The training does not end before.
    episodes : int
        The mean is over so many at least: those of the last reports, as few reports as have so many. After a
        restart they are collected anew, and the steps are counted anew.
    verbose : int

    Attributes
    ----------
    best : float
        The highest mean so far.
    """

    def __init__(
        self,
        patience: int,
        min_improvement: float = 0.0,
        min_steps: int = 0,
        episodes: int = WINDOW,
        verbose: int = 0,
    ) -> None:
        super().__init__(episodes, verbose)
        self.patience = checked_whole("patience", patience, 1)
        self.min_improvement = checked_limit("min_improvement", min_improvement)
        self.min_steps = checked_whole("min_steps", min_steps, 0)

    def _forget(self) -> None:
        super()._forget()
        self.best = -math.inf
        self._improved_at: int | None = None

    def _on_step(self) -> bool:
        mean = self._mean_return()
        if math.isnan(mean):
            return True
        if self._improved_at is None or mean > self.best + self.min_improvement:
            self.best, self._improved_at = mean, self.num_timesteps
            return True
        waited = self.num_timesteps - self._improved_at
        if waited < self.patience or self.num_timesteps < self.min_steps:
            return True
        return self._end(f"the mean return has not risen above {self.best:.6g} for {waited:,} steps")
