"""A peer that says what it was told to say, each thing at its time."""

from __future__ import annotations

import time

import numpy as np

from dist_classicrl.comm import envelope
from dist_classicrl.comm.messages import encode
from dist_classicrl.engines.roles.messages import Final
from dist_classicrl.membership.group import Group, Release, Timing
from dist_classicrl.membership.heartbeat import Beat
from dist_classicrl.tables.maps import Refresh

_SHORTEST_SLEEP = 1e-2  # so that few turns of a loop make a long time

RELEASE = encode(Release())


def stop_clock(monkeypatch):
    """Make the clock one that only sleeping moves."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))


def done(size):
    """Return a server's last word, with a table of `size` zeros in version 1."""
    return encode(Final(Refresh(-1, 1, None, np.zeros(size), np.zeros(size, np.int64)), {"steps": 1}))


def beats(begin, end, interval, progress=True):
    """Return a sign of life in each interval, of a main loop that makes progress, or of one that hangs."""
    times = np.arange(begin, end, interval)
    return [(at, encode(Beat(number if progress else 0, (0, 0)))) for number, at in enumerate(times)]


class TimedChannel:
    """A channel to rank `peer`, on which each of the messages `coming`, (seconds, message), comes in time."""

    def __init__(self, peer, *coming):
        self.peer = peer
        self.peer_failed = False
        self.lost = None
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
        self.sent.append(envelope.decode(message))

    def poll(self):
        if not self.coming or self.coming[0][0] > self.seconds:
            return None
        self.last_heard = time.monotonic()
        return self.coming.pop(0)[1]

    def reap(self):
        return True

    def close(self, linger=0.0):
        pass


class TimedWire:
    """A wire of rank `rank` to the peers at the other ends of `channels`."""

    def __init__(self, rank, *channels):
        self.rank, self.size, self.tag_limit = rank, len(channels) + 1, 32767
        self._channels = {channel.peer: channel for channel in channels}

    def now(self):
        return time.monotonic()

    def sleep(self, seconds):
        time.sleep(max(seconds, _SHORTEST_SLEEP))

    def channel(self, peer, tag, piece_bytes=0):
        return self._channels[peer]

    def receive(self, channels):
        return [(channel, message) for channel in channels if (message := channel.poll()) is not None]


def group_of(rank, channels, interval, silence, stuck):
    """Return a group without control messages, of rank `rank` and the peers of `channels`."""
    group = Group(TimedWire(rank, *channels), [0] * (len(channels) + 1))
    group.timing = Timing(interval, silence, stuck)
    return group
