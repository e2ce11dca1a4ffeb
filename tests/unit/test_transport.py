"""Channels over MPI on one rank. tests/mpi has several ranks."""

import gc
import weakref

import pytest

from dist_classicrl.comm.transport import Backoff, Channel


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


def test_a_wait_whose_length_is_known_is_not_slept_through():
    """However long it takes, it ends at most an eighth of it, and one shortest sleep, too late."""

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
        assert end <= 1.125 * seconds + 2e-5 and sleeps < 20
    # One that takes much longer than expected costs few turns as well.
    assert end_of_wait(1.0, 0.0)[1] < 1.0 / 2e-3 + 80
    assert end_of_wait(1.0)[1] < 1.0 / 2e-3 + 10
