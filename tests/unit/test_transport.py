"""Channels over MPI on one rank. tests/mpi has several ranks."""

import ctypes
import gc
import sys
import threading
import weakref

import numpy as np
import pytest

from dist_classicrl.comm import envelope
from dist_classicrl.comm.envelope import Kind
from dist_classicrl.comm.transport import Backoff, Channel, Wire
from dist_classicrl.errors import ProtocolError

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
