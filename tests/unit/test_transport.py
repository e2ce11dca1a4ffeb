"""Channels over MPI on one rank. tests/mpi has several ranks."""

import gc
import weakref

from dist_classicrl.comm.transport import Channel


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
