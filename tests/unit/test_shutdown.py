"""How word of a failure goes out: to all who can take it, without waiting for those who cannot."""

import time

import numpy as np
import pytest

from dist_classicrl.comm import envelope, messages
from dist_classicrl.comm.envelope import Kind
from dist_classicrl.comm.remote_errors import Failed, raise_remote
from dist_classicrl.engines.roles import shutdown
from dist_classicrl.errors import RemoteRankError, TrainingStopped

TIMEOUT = 60.0
TOLD = Failed(2, "here", "OSError: no map", "Traceback", False)


class Peer:
    """A channel whose peer takes what was sent only once all that it has sent itself was polled."""

    peer = 5

    def __init__(self, *incoming, takes=True, silent_for=0.0):
        self.incoming = list(incoming)
        self.takes = takes
        self.last_heard = time.monotonic() - silent_for
        self.peer_failed = False
        self.lost = None
        self.sent = []

    def send(self, message):
        self.sent.append(message)

    def poll(self):
        return self.incoming.pop(0) if self.incoming else None

    def reap(self):
        return self.takes and not self.incoming


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """A clock that only sleeping moves."""
    now = [time.monotonic()]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    begin = now[0]
    return lambda: now[0] - begin


def fail(*peers):
    shutdown.fail(list(peers), ZeroDivisionError("thin ice"), 3, TIMEOUT)


def test_all_are_told_what_failed_and_where():
    peers = [Peer(), Peer()]
    fail(*peers)
    for peer in peers:
        told = messages.decode(peer.sent[0])
        assert isinstance(told, Failed)
        assert (told.rank, told.summary) == (3, "ZeroDivisionError: thin ice")


def test_a_rank_that_fails_when_all_are_to_stop_does_not_hide_one_that_hangs(monkeypatch, caplog):
    registered = []
    monkeypatch.setattr(shutdown.atexit, "register", lambda *what: registered.append(what))
    failed, hanging, ended = Peer(messages.encode(TOLD)), Peer(), Peer(envelope.encode(Kind.BYE))
    stopped = TrainingStopped(143, "SIGTERM came", "here", 5)
    shutdown.tell_stopped(None, [failed, hanging, ended], stopped, 0.0)
    assert [late for _, _, late, _ in registered] == [[hanging]]
    assert "A rank did not stop in order: rank 2" in caplog.text
    assert all(len(peer.sent) == 1 for peer in (failed, hanging, ended))


def test_messages_that_block_the_way_are_taken(clock):
    blocked = Peer(envelope.encode(Kind.BEAT), envelope.encode(Kind.BYE))
    fail(blocked)
    assert not blocked.incoming
    assert clock() < 0.1


def test_a_peer_that_failed_is_neither_told_nor_waited_for(clock):
    gone = Peer(takes=False)
    with pytest.raises(RemoteRankError) as caught:
        # What it said is what made this rank fail.
        raise_remote(gone, TOLD)
    other = Peer()
    shutdown.fail([gone, other], caught.value, 0, TIMEOUT)
    assert gone.sent == []
    assert messages.decode(other.sent[0]) == TOLD
    assert clock() < 0.1


def test_a_peer_that_died_is_neither_told_nor_waited_for(clock):
    dead, other = Peer(takes=False), Peer()
    dead.lost = "process failed"
    fail(dead, other)
    assert dead.sent == [] and len(other.sent) == 1
    assert clock() < 0.1


@pytest.mark.parametrize("last_word", [envelope.encode(Kind.FAILED), np.zeros(32, np.uint8)])
def test_a_peer_that_fails_or_talks_nonsense_meanwhile_is_not_waited_for(clock, last_word):
    fail(Peer(envelope.encode(Kind.BEAT), last_word, takes=False))
    assert clock() < 0.1


def test_a_busy_peer_is_waited_for_and_one_that_hangs_is_not_for_long(clock):
    fail(Peer(takes=False))
    busy = clock()
    fail(Peer(takes=False, silent_for=2 * TIMEOUT))
    assert 4.0 < busy < 6.0
    assert clock() - busy < 1.0
