"""From what happens in a call of `train` to the user's callbacks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from dist_classicrl.agent.result import TrainingResult
from dist_classicrl.callbacks.base import CallbackList
from dist_classicrl.engines.progress import Observer, Progress
from dist_classicrl.model.agent_state import Corner
from dist_classicrl.monitoring.reports import ReportHistory

_LOST = ("excluded", "left")
_JOINED = ("readmitted", "replaced")
_POINTS = 200  # of a call, spread evenly over its steps, at each of which a report is asked for


class CallbackObserver(Observer):
    """Calls the callbacks of one call of `train`, on the rank that serves; they get `agent`.

    The call trains `corner` of the agent's table, and began at global step `begin`.
    """

    def __init__(
        self,
        agent: Any,
        callbacks: CallbackList,
        progress: Callable[[Progress], None] | None,
        corner: Corner,
        begin: int,
    ) -> None:
        self._agent = agent
        self._callbacks = callbacks
        self._progress = progress
        self._corner = corner
        self._begin = begin
        self._has_begun = False
        self._steps = 0
        self.history = ReportHistory()
        self.wants_pushes = callbacks.wants_pushes

    @property
    def is_needed(self) -> bool:
        """Whether there is anybody to be told."""
        return self._progress is not None or bool(self._callbacks.children)

    def next_step(self, steps: int, total_steps: int) -> float:
        """See `Observer`: the callbacks ask for some, and there are so many points in a call."""
        asked = self._callbacks.next_step(self._begin + steps)
        wanted = math.inf if asked is None else asked - self._begin
        if total_steps == 0 or self._progress is None and self._callbacks.needs_own_steps_alone:
            return wanted
        point = steps * _POINTS // total_steps + 1
        return min(wanted, -(-point * total_steps // _POINTS))

    def started(self, progress: Progress, reported: int) -> None:
        """See `Observer`."""
        self._steps = progress.steps
        with self._agent_as_it_is():
            if not self._has_begun:
                self._callbacks.init_callback(self._agent)
                self._has_begun = True
            self._callbacks.on_training_start(progress, self._begin + reported)
            self._callbacks.on_rollout_start()

    def reported(self, progress: Progress) -> bool:
        """See `Observer`."""
        self._steps = progress.steps
        self.history.add(progress)
        with self._agent_as_it_is():
            if self._progress is not None:
                self._progress(progress)
            self._callbacks.on_rollout_end(progress)
            goes_on = self._callbacks.on_step(progress)
            self._callbacks.on_rollout_start()
        return goes_on

    @contextmanager
    def _agent_as_it_is(self) -> Iterator[None]:
        """Let the agent be what it was at the last report: callbacks evaluate and save it."""
        state = self._corner.state
        self._corner.put_back()
        steps = state.steps
        state.steps = self._begin + self._steps
        try:
            yield
        finally:
            state.steps = steps

    def happened(self, event: dict[str, Any]) -> None:
        """See `Observer`."""
        with self._agent_as_it_is():
            if event["kind"] in _LOST:
                self._callbacks.on_worker_lost(event)
            elif event["kind"] in _JOINED:
                self._callbacks.on_worker_joined(event)
            elif event["kind"] == "failover":
                self._callbacks.on_failover(event)

    def saved(self, steps: int, name: str) -> None:
        """See `Observer`."""
        with self._agent_as_it_is():
            self._callbacks.on_checkpoint(steps, name)

    def pushed(self, rank: int, steps: int, staleness: int, n_bytes: int) -> None:
        """See `Observer`."""
        with self._agent_as_it_is():
            self._callbacks.on_push(rank, steps, staleness, n_bytes)

    def ended(self, result: TrainingResult) -> None:
        """Tell the callbacks the result, where this rank has told them anything."""
        if self._has_begun:
            self._callbacks.on_training_end(result)

    def close(self) -> None:
        """Let the callbacks give back what they hold, however the call ended."""
        if self._has_begun:
            self._callbacks.on_close()
