"""Channels over MPI on one rank. tests/mpi has several ranks."""

import ctypes
import gc
import sys
import threading
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

from dist_classicrl.comm import envelope
from dist_classicrl.comm.envelope import Kind
from dist_classicrl.comm.messages import Bye, decode, encode
from dist_classicrl.comm.transport import Backoff, Channel, Wire
from dist_classicrl.errors import ProtocolError
from dist_classicrl.membership.group import Group, NewView, Timing
from dist_classicrl.membership.view import View

PR_GET_TIMERSLACK = 30  # of Linux


@pytest.mark.slow
def test_a_channel_that_nobody_closed_stays_as_mpi_may_write_to_it():
    from mpi4py import MPI

    channel = Channel(MPI.COMM_SELF, 0, tag=7)
    seen = weakref.ref(channel)
    del channel
    gc.collect()
    assert seen() is not None
    seen().close()
    gc.collect()
    assert seen() is None


@pytest.mark.parametrize(
    ("claimed", "first", "then", "said"),
    [
        (48, 64, None, "A piece of 64 bytes came from rank 0, where 48 are left"),
        (2**50, 32, None, f"A piece of 32 bytes came from rank 0, where {2**50} are left"),  # a short one
        (2**50, 64, None, f"claims to have {2**50} bytes, for which there is no memory"),
        (2**63 - 8, 64, None, f"claims to have {2**63 - 8} bytes, for which there is no memory"),
        (96, 64, 40, "A piece of 40 bytes came from rank 0, where 32 are left"),
    ],
)
def test_pieces_that_do_not_make_a_message_are_refused_by_name(claimed, first, then, said):
    from mpi4py import MPI

    channel = Channel(MPI.COMM_SELF, 0, 7, piece_bytes=64)
    message = envelope.encode(Kind.PUSH, np.arange(20))
    message[:first].view(np.int64)[1] = claimed
    with pytest.raises(ProtocolError, match=said):
        channel._add(message[:first])
        channel._add(message[first : first + then])
    channel.close()


def test_what_mpi_may_still_read_stays_where_a_later_piece_of_it_cannot_be_sent():
    """As where the peer dies in the middle of a long message."""
    from mpi4py import MPI

    class Failing:
        def __init__(self, sends):
            self.sends = sends

        def Isend(self, piece, peer, tag):
            if not self.sends:
                raise MPI.Exception(MPI.ERR_OTHER)
            self.sends -= 1
            return MPI.REQUEST_NULL

        def __getattr__(self, name):
            return getattr(MPI.COMM_SELF, name)

    channel = Channel(MPI.COMM_SELF, 0, 8, piece_bytes=64)  # 8: of a lost channel the receive stays
    channel._comm = Failing(sends=1)
    message = np.zeros(100, np.uint8)
    seen = weakref.ref(message)
    channel.send(message)
    del message
    gc.collect()
    assert channel.lost is not None and seen() is not None
    channel.close()


def test_what_comes_while_a_channel_is_closed_is_there_when_it_is_open_again():
    """The goodbye of a rank that stopped late must not be missed: the job would be aborted."""
    from mpi4py import MPI

    channel = Channel(MPI.COMM_SELF, 0, 7)
    channel.send(encode(Bye()))
    channel.close()
    assert channel.poll() is None
    channel.reopen()
    assert decode(channel.poll()) == Bye()
    assert channel.poll() is None
    channel.close()


def test_a_control_message_whose_pieces_come_before_and_after_the_end_of_a_call_is_read_to_its_end():
    from mpi4py import MPI

    wire = Wire(MPI.COMM_SELF)
    two = SimpleNamespace(
        rank=1, size=2, tag_limit=wire.tag_limit, receive=wire.receive, now=wire.now,
        channel=lambda _, *more: Channel(MPI.COMM_SELF, 0, *more),
    )  # fmt: skip
    mine = Group(two, ["here", "here"])
    events = [{"kind": "excluded", "rank": rank, "detail": "silent for 30.0 s"} for rank in range(300)]
    mine.begin_call(Timing(1.0, 30.0, 600.0))
    mine.send(0, NewView(View(0, 1, 0, (0, 1)), events))
    mine.send(0, NewView(View(0, 2, 0, (0, 1)), events), 2)  # of a rank that has begun the next call
    mine.end_call(1.0)
    mine.begin_call(mine.timing)
    came = []
    for _ in range(1000):
        came += mine.poll()
        if came:
            break
    mine.end_call(0.0)
    assert came == [(0, NewView(View(0, 2, 0, (0, 1)), events))]


def test_a_wait_whose_length_is_known_is_not_slept_through():
    """However long it takes, it ends at most a hundredth of it, and one shortest sleep, too late."""

    def end_of_wait(seconds, expected=None):
        slept = []
        backoff = Backoff(slept.append)
        if expected is not None:
            backoff.expect(expected)
        while sum(slept) < seconds:
            backoff.wait()
        return sum(slept), len(slept)

    for seconds in (1e-4, 5e-4, 2e-3, 1e-2):
        end, sleeps = end_of_wait(seconds, seconds)
        assert end <= 1.01 * seconds + 2e-5 and sleeps < 110
    # One that takes much longer than expected costs few turns as well.
    assert end_of_wait(1.0, 0.0)[1] < 1.0 / 2e-3 + 500
    assert end_of_wait(1.0)[1] < 1.0 / 2e-3 + 10


def test_the_first_waits_can_be_spins_and_again_after_something_happened():
    slept = []
    backoff = Backoff(slept.append, spins=2)
    for _ in range(2):
        for _ in range(3):
            backoff.wait()
        backoff.reset()
    assert slept == [2e-5, 2e-5]


@pytest.mark.skipif(sys.platform != "linux", reason="of Linux")
def test_who_waits_for_messages_is_woken_when_it_asked_for_it():
    """In threads as well, which serve beside one that learns."""
    from mpi4py import MPI

    nanoseconds = []

    def look():
        nanoseconds.append(ctypes.CDLL(None).prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0))

    def rank():
        look()
        Wire(MPI.COMM_SELF)
        look()
        started = threading.Thread(target=look)
        started.start()
        started.join()

    # In a thread of its own, so that other tests' sleeps stay as they are.
    thread = threading.Thread(target=rank)
    thread.start()
    thread.join()
    assert nanoseconds[1:] == [1, 1]
