"""Workers that got no lease are asked again: now and then, and only where there is something to give."""

from types import SimpleNamespace

import pytest

from dist_classicrl.comm.compression import Codec
from dist_classicrl.comm.messages import decode
from dist_classicrl.engines.outcome import Tally
from dist_classicrl.engines.roles.peers import Peer, PeerEvent, Peers
from dist_classicrl.engines.server.leases import LeaseBook
from dist_classicrl.engines.server.messages import Wishes
from dist_classicrl.engines.server.server import AsyncClient, Server
from dist_classicrl.membership.phi_accrual import Arrivals

SLOW = 2


@pytest.fixture
def server():
    """Give the parts of a server that hand out leases, in the hands of a test: no table, no MPI."""
    server = Server.__new__(Server)
    server.now = 0.0
    server.leases = LeaseBook(0, 230, [1, SLOW], 10, lambda: server.now)
    server._offered = 0.0
    server.sent = []
    channel = SimpleNamespace(send=server.sent.append, close=lambda: None)
    server.members = SimpleNamespace(peers=Peers())
    for rank in (1, SLOW):
        client = AsyncClient(0, Wishes(quantum=10, refresh=False))
        server.peers.add(Peer(rank, channel, client, Arrivals(1.0, now=0.0), 0.0))
    server.table = SimpleNamespace(applied={}, version=0)
    server.tally = Tally(total_steps=0)
    server.codec = Codec()
    return server


def make(server, rank, seconds):
    """Let a worker take ten steps, and report them after so many seconds."""
    lease = server._grant(server.peers.present[rank])
    server.now += seconds
    server.leases.report(rank, [(lease.id, lease.steps)])


def test_a_worker_that_was_too_slow_gets_a_lease_when_the_others_stand_still(server):
    for seconds in (10.0, 10.0):
        make(server, SLOW, seconds)
    make(server, 1, 0.1)
    fast, slow = server.peers.present.values()
    fast.client.starved = server._grant(fast) is None
    server._reply(slow, server._grant(slow))
    assert decode(server.sent.pop()).lease is None
    assert slow.client.starved and not fast.client.starved and server.leases.pool > 0
    server.now += 0.2
    server._offer(server.now)
    assert server.sent == [] and slow.client.starved
    # Rank 1, at 100 steps per second, is not heard of again.
    asked = 0
    while slow.client.starved and asked < 100:
        server.now += 0.06
        server._offer(server.now)
        asked += 1
    (reply,) = map(decode, server.sent)
    assert reply.lease.steps == 10 and server.leases.account(SLOW).outstanding == 10
    # It has something to do, and is not asked again.
    server.now += 1.0
    server._offer(server.now)
    assert len(server.sent) == 1


def test_what_a_lost_worker_held_is_offered_to_the_others(server):
    make(server, 1, 0.1)
    lost, left = server.peers.present.values()
    held = server._grant(lost)
    server.leases.credit(server.leases.pool)
    left.client.owes_reply = False
    server._offer(1.0)
    assert server.sent == []
    assert server.has_lost(1) == held.steps
    server.peers.note(lost, PeerEvent.LOST)
    server._offer(2.0)
    assert len(server.sent) == 1 and server.leases.account(SLOW).outstanding == 10
