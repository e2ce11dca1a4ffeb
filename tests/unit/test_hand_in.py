"""What workers push, or hand in to a new server, counts once, and with what was made before a checkpoint."""

from types import SimpleNamespace

import pytest

from dist_classicrl.engines.outcome import NOTHING_LEARNED, Tally
from dist_classicrl.engines.server.leases import LeaseBook
from dist_classicrl.engines.server.messages import HandIn, Push, Pushed, Wishes
from dist_classicrl.engines.server.server import AsyncClient, Server
from dist_classicrl.engines.server.tree import Branch
from dist_classicrl.tables.merging import AFFINE


@pytest.fixture
def server():
    """Give one that took over 30 of 100 steps, after 1000 of a checkpoint, with push 2 of rank 1."""
    server = Server.__new__(Server)
    applied = {1: 2}

    def apply(rank, sequence, packed, staleness=0):
        new = sequence > applied.get(rank, 0)
        applied[rank] = max(sequence, applied.get(rank, 0))
        return new

    server.table = SimpleNamespace(apply=apply, applied=applied, merging=AFFINE)
    server.leases = LeaseBook(0, 100, [1], 10, lambda: 0.0)
    server.leases.credit(30)
    server.takes_over = True
    server.tally = Tally(total_steps=1100, earlier_steps=1000, steps=1030)
    server.reporter = SimpleNamespace(count=lambda *_: None, is_at_step=False)
    return server


def test_each_push_that_is_handed_in_counts_once(server):
    peer = SimpleNamespace(rank=1, client=AsyncClient(-1, hands_in=True))
    for sequence, is_last in ((2, False), (3, False), (4, True)):
        assert peer.client.hands_in
        server._take_hand_in(peer, 0, HandIn(Pushed(sequence, None, 7, NOTHING_LEARNED), is_last, 4))
    assert not peer.client.hands_in and server.table.applied == {1: 4}
    assert (server.leases.done, server.leases.pool, server.tally.steps) == (44, 56, 1044)


@pytest.fixture
def push(server):
    """Give what takes in a push of 7 steps of rank 1, with what it made of leases and gives back."""
    server.table.version = 2
    server.members = SimpleNamespace(note_progress=lambda *_: None, note_push=lambda _: None)
    server.group = SimpleNamespace(view=SimpleNamespace(term=0))
    peer = SimpleNamespace(rank=1, client=AsyncClient(-1))

    def take(sequence, made, given_back=(), is_last=False):
        pushed = Pushed(sequence, None, sum(made.values()), NOTHING_LEARNED)
        server._push(peer, 0, Push(pushed, made, Wishes(), 0, 1, 0, -1, is_last, given_back=given_back))
        return peer.client

    take.client = peer.client
    return take


def test_what_was_given_back_before_a_later_route_leaves_later_leases_alone(server, push):
    first = server.leases.grant(1, 1)
    push(3, {first.id: first.steps - 1})
    second = server.leases.grant(1, 1)
    push(4, {}, (first.id,))
    push(5, {second.id: second.steps})
    assert server.leases.done == 30 + first.steps - 1 + second.steps
    assert server.leases.pool == 100 - server.leases.done


def test_who_composes_shares_steps_until_its_leases_are_back_and_may_compose_again(server, push):
    lease = server.leases.grant(1, 1)
    push.client.composes = True
    push(3, {lease.id: 4})
    assert server.leases.workers == (1,)
    push(4, {}, (lease.id,))
    assert server.leases.workers == () and server.leases.pool == 100 - 34
    assert not push(5, {}).starved
    assert server.table.applied == {1: 5} and server.leases.done == 34


def test_a_push_that_comes_by_itself_though_its_way_is_through_another_rank_is_left_out(server, push):
    lease = server.leases.grant(1, 1)
    push.client.branch = Branch(1, 2, (1, 2, 3))
    push(3, {lease.id: 4})
    assert server.table.applied == {1: 2} and server.leases.done == 30
    push.client.branch = Branch(2, 1, (1, 2, 3))
    push(3, {lease.id: 4})
    assert server.table.applied == {1: 3} and server.leases.done == 34


def test_who_has_pushed_all_before_it_leaves_gets_no_more_steps(server, push):
    peer = SimpleNamespace(rank=1, client=push.client)
    for sequence, is_last in ((3, False), (4, True)):
        lease = server._grant(peer)
        push(sequence, {lease.id: lease.steps}, is_last=is_last)
    assert server._grant(peer) is None
    assert server.leases.pool == 100 - server.leases.done > 0
