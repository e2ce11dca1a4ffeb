"""A peer that says what it was told to say, each thing at its time."""

from __future__ import annotations

import time

from dist_classicrl.distributed import messages


def stop_clock(monkeypatch):
    """Make the clock one that only sleeping moves."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))


class TimedChannel:
    """A channel on which each of the messages `coming`, (seconds, message), comes at its time."""

    def __init__(self, *coming):
        self.peer = 1
        self.peer_failed = False
        self.last_heard = self.last_sent = self._begin = time.monotonic()
        self.coming = list(coming)
        self.sent = []

    @property
    def seconds(self):
        return time.monotonic() - self._begin

    @property
    def kinds_sent(self):
        return [kind for kind, _ in self.sent]

    def send(self, message):
        self.last_sent = time.monotonic()
        self.sent.append(messages.decode(message))

    def poll(self):
        if not self.coming or self.coming[0][0] > self.seconds:
            return None
        self.last_heard = time.monotonic()
        return self.coming.pop(0)[1]

    def reap(self):
        return True
