"""What workers hand in to a new server is counted once, and with what was made before a checkpoint."""

from types import SimpleNamespace

import pytest

from dist_classicrl.engines.outcome import NOTHING_LEARNED, Tally
from dist_classicrl.engines.server.leases import LeaseBook
from dist_classicrl.engines.server.messages import HandIn, Pushed
from dist_classicrl.engines.server.server import Client, Server


@pytest.fixture
def server():
    """Give one that took over 30 of 100 steps, after 1000 of a checkpoint, with push 2 of rank 1."""
    server = Server.__new__(Server)
    applied = {1: 2}

    def apply(rank, sequence, packed):
        new = sequence > applied.get(rank, 0)
        applied[rank] = max(sequence, applied.get(rank, 0))
        return new

    server.table = SimpleNamespace(apply=apply, applied=applied)
    server.leases = LeaseBook(0, 100, [1], 10, lambda: 0.0)
    server.leases.credit(30)
    server.takes_over = True
    server.tally = Tally(total_steps=1100, earlier_steps=1000, steps=1030)
    server.reporter = SimpleNamespace(count=lambda *_: None, is_at_step=False)
    return server


def test_each_push_that_is_handed_in_counts_once(server):
    peer = SimpleNamespace(rank=1, client=Client(-1, hands_in=True))
    for sequence, is_last in ((2, False), (3, False), (4, True)):
        assert peer.client.hands_in
        server._take_hand_in(peer, 0, HandIn(Pushed(sequence, None, 7, NOTHING_LEARNED), is_last, 4))
    assert not peer.client.hands_in and server.table.applied == {1: 4}
    assert (server.leases.done, server.leases.pool, server.tally.steps) == (44, 56, 1044)
