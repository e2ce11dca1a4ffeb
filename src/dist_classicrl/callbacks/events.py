"""Callbacks that call others, but only when something has happened."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dist_classicrl._steps import next_multiple
from dist_classicrl.callbacks.base import BaseCallback, CallbacksLike, one_callback
from dist_classicrl.checks import checked_whole
from dist_classicrl.monitoring.reports import Gathered

if TYPE_CHECKING:
    from dist_classicrl.engines.progress import Progress


class EventCallback(BaseCallback):
    """A callback that calls another one, but only when something has happened.

    Parameters
    ----------
    callback : BaseCallback, sequence, function or None
        What is called then.
    verbose : int
        Of `BaseCallback`: 1: what a subclass decides is logged.
    """

    def __init__(self, callback: CallbacksLike = None, verbose: int = 0) -> None:
        super().__init__(verbose)
        self.callback = one_callback(callback)
        self._gathered = Gathered()

    @property
    def children(self) -> Sequence[BaseCallback]:
        """What is called when it happens."""
        return (self.callback,)

    def next_step(self, after: int) -> int | None:
        """Return what this callback asks for: what it calls hears of its events only."""
        return self._own_next_step(after)

    def on_training_start(self, progress: Progress, reported: int | None = None) -> None:
        """Tell that this rank serves from now on."""
        self._gathered = Gathered(progress.steps, progress.seconds)
        super().on_training_start(progress, reported)

    def on_step(self, progress: Progress) -> bool:
        """Give a report, and return whether the training is to go on."""
        self._gathered.add(progress)
        return super().on_step(progress)

    def _on_event(self) -> bool:
        """Call it, with all reports since it was called last as one."""
        gathered = self._gathered.take() or self.progress
        assert gathered is not None  # there was a report
        return self.callback.on_step(gathered)


class EveryNTimesteps(EventCallback):
    """Calls another callback every so many steps: at their multiples, counted as `num_timesteps` is.

    Its report counts what all reports since it was called last did. What follows the last multiple of a call
    of `train` is told of in none.

    Parameters
    ----------
    n_steps : int
        Environment steps of all ranks.
    callback : BaseCallback, sequence or function
    """

    def __init__(self, n_steps: int, callback: CallbacksLike) -> None:
        super().__init__(callback)
        self.n_steps = checked_whole("n_steps", n_steps, 1)
        self._next = self.n_steps

    def _next_step(self, after: int) -> int:
        return next_multiple(after, self.n_steps)

    def _on_training_start(self) -> None:
        self._next = next_multiple(self.reported_timesteps, self.n_steps)

    def _on_step(self) -> bool:
        if self.num_timesteps < self._next:
            return True
        self._next = next_multiple(self.num_timesteps, self.n_steps)
        return self._on_event()
