"""Whether a worker is so far behind the server's table that it waits before it learns on."""

from __future__ import annotations

from dist_classicrl.engines.server.window import PushWindow

_SMOOTHING = 0.2


class StalenessBound:
    """Bounds by how many versions that others made a worker's base may be behind while it learns.

    What a worker knows of the server's version is as old as the last answer. For each of its pushes that has
    none yet it adds what others have made between two of its answers so far, and at first one push of each
    of the other `workers`. `most` None: nothing is bounded.
    """

    def __init__(self, most: int | None, workers: int) -> None:
        self._most = most
        self._between = float(max(0, workers - 1))  # versions of others, expected between two answers
        self._newest = (0, -1)  # version that was heard of, after its term
        self._counted = (-1, 0, 0)  # the answer up to which `_between` was: term, version, own pushes in it

    def heard(self, window: PushWindow, version: int) -> None:
        """Take note of an answer, by which the server's table is of this `version`; -1: it does not say."""
        if self._most is None or version < 0:
            return
        self._newest = max(self._newest, (window.term, version))
        term, before, received = self._counted
        own = window.received - received
        if term == window.term and own > 0:
            others = max(0, version - before - own)
            self._between += _SMOOTHING * (others / own - self._between)
        if term != window.term or own > 0:
            self._counted = window.term, version, window.received

    def must_wait(self, window: PushWindow) -> bool:
        """Whether the base may be too far behind by now to learn on."""
        return self._most is not None and self._behind(window, window.in_flight) > self._most

    def needs_refresh(self, window: PushWindow) -> bool:
        """Whether the next push must bring a refresh, as the worker might have to wait without."""
        return self._most is not None and self._behind(window, window.in_flight + 1) > self._most

    def _behind(self, window: PushWindow, unanswered: int) -> float:
        term, version = self._newest
        known = window.lag(version) if term == window.term else 0
        return known + unanswered * self._between
