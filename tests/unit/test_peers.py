"""Where a worker stands with its server: what may follow on what, and who is counted as what."""

from types import SimpleNamespace

import pytest

from dist_classicrl.engines.roles.peers import (
    LEARNERS,
    PRESENT,
    SUSPECTS,
    TRANSITIONS,
    UNTRIED,
    Peer,
    PeerEvent,
    Peers,
    PeerState,
)
from dist_classicrl.errors import ProtocolError
from dist_classicrl.membership.phi_accrual import Arrivals

ENDS = {PeerState.LEFT, PeerState.LOST}


def peer_of(rank, state=PeerState.LEARNING):
    channel = SimpleNamespace(is_open=True)
    channel.close = lambda: setattr(channel, "is_open", False)
    return Peer(rank, channel, None, Arrivals(1.0, now=0.0), 0.0, state=state)


def after(state, event):
    return TRANSITIONS.get((state, event))


def test_every_state_can_be_reached_and_left_but_the_ends():
    reached, new = set(), {PeerState.EXPECTED, PeerState.LEARNING}
    while new:
        reached |= new
        new = {after for (state, _), after in TRANSITIONS.items() if state in reached} - reached
    assert reached == set(PeerState)
    for state in set(PeerState) - ENDS:
        assert after(state, PeerEvent.LOST) is PeerState.LOST
    assert not [state for state, _ in TRANSITIONS if state in ENDS]


@pytest.mark.parametrize("state", sorted(PRESENT), ids=lambda state: state.name)
def test_doubts_change_nothing_but_that(state):
    doubted = after(state, PeerEvent.DOUBTED)
    if state in SUSPECTS:
        assert doubted is None
        state, doubted = after(state, PeerEvent.CLEARED), state
        assert state not in SUSPECTS
    else:
        assert doubted in SUSPECTS and after(state, PeerEvent.CLEARED) is None
    assert after(state, PeerEvent.DOUBTED) is doubted and after(doubted, PeerEvent.CLEARED) is state
    assert (state in LEARNERS, state in UNTRIED) == (doubted in LEARNERS, doubted in UNTRIED)
    for event in set(PeerEvent) - {PeerEvent.DOUBTED, PeerEvent.CLEARED}:
        calm, in_doubt = after(state, event), after(doubted, event)
        assert (calm is None) == (in_doubt is None)
        if calm in PRESENT:
            assert after(calm, PeerEvent.DOUBTED) is in_doubt
        else:
            assert calm is in_doubt


@pytest.mark.parametrize("state", PeerState, ids=lambda state: state.name)
def test_only_who_learns_pushes_and_retires_and_only_who_is_there_leaves(state):
    pushed, retired = after(state, PeerEvent.PUSHED), after(state, PeerEvent.RETIRED)
    assert (pushed is not None) == (retired is not None) == (state in LEARNERS)
    if state in LEARNERS:
        assert pushed in LEARNERS - UNTRIED and retired in PRESENT - LEARNERS
    assert (after(state, PeerEvent.LEFT) is PeerState.LEFT) == (state in PRESENT)
    assert (after(state, PeerEvent.SPOKE) is PeerState.UNTRIED) == (state is PeerState.EXPECTED)


def test_who_is_there_and_who_learns():
    peers = Peers()
    one, two, three = (peer_of(rank) for rank in (1, 2, 3))
    new = peer_of(4, PeerState.EXPECTED)
    for peer in (one, two, three, new):
        peers.add(peer)
    before = peers.present
    assert list(before) == [1, 2, 3] and peers.learners == [one, two, three] and peers.expected == [new]
    peers.note(new, PeerEvent.SPOKE)
    peers.note(one, PeerEvent.RETIRED)
    peers.note(two, PeerEvent.LOST)
    peers.note(three, PeerEvent.LEFT)
    assert list(peers.present) == [1, 4] and peers.learners == [new] and new.is_untried and not peers.expected
    assert list(before) == [1, 2, 3]  # whoever goes through it meanwhile
    # Who has left has still to be told that it may go; who is lost has not.
    assert [peer for peer in peers if peer.channel.is_open] == list(peers) == [one, three, new]
    again = peer_of(2)
    peers.add(again)
    peers.note(again, PeerEvent.DOUBTED)
    peers.note(again, PeerEvent.PUSHED)
    assert peers.present[2] is again and again.is_suspect and peers.learners == [new, again]


def test_what_cannot_happen_is_said():
    peers, peer = Peers(), peer_of(7)
    peers.add(peer)
    peers.note(peer, PeerEvent.RETIRED)
    with pytest.raises(ProtocolError, match="Worker 7, which is WAITING, cannot have PUSHED"):
        peers.note(peer, PeerEvent.PUSHED)
    assert peer.state is PeerState.WAITING and peers.present == {7: peer}
