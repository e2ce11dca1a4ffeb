"""Synchronized arrays where MPI gives errors, on one rank. tests/mpi has several ranks."""

import numpy as np
import pytest
from mpi4py import MPI

from dist_classicrl.errors import RankLostError
from dist_classicrl.mpi_tools import ParameterSync, parameters

ARRAYS = {"a": np.ones(3), "b": np.ones(3, np.int64)}  # an operation for each type


class Failing:
    """A communicator whose second all-reduce raises an error."""

    def __init__(self, comm, error):
        self.comm, self.error = comm, error
        self.calls = 0

    def Iallreduce(self, given, received):
        self.calls += 1
        if self.calls == 2:
            raise self.error
        return self.comm.Iallreduce(given, received)


@pytest.fixture
def sync():
    with ParameterSync(MPI.COMM_SELF, timeout=5) as sync:
        yield sync


def test_an_error_of_mpi_is_what_the_waiting_ends_with_and_nothing_is_done_after_it(sync):
    sync._comm = failing = Failing(sync._comm, MPI.Exception(MPI.ERR_COUNT))
    handles = [sync.start(ARRAYS, op="sum") for _ in range(2)]
    for handle in handles:
        with pytest.raises(RankLostError, match=r"^Synchronization 1 could not be done \(.*MPI_ERR_COUNT"):
            handle.wait()
    # Another rank may have begun the operation: the next one here would be taken for its counterpart.
    assert failing.calls == 2
    assert len(handles[0]._requests) == 1  # MPI may still write to its memory, so it is not let go of


def test_numbers_that_never_came_are_not_returned_after_an_error_of_another_kind(sync):
    sync._comm = Failing(sync._comm, MemoryError("no room"))
    with pytest.raises(MemoryError, match="no room"):
        sync.start(ARRAYS, op="sum")
    with pytest.raises(RankLostError, match="no room"):
        sync._under_way[0].wait()


@pytest.mark.parametrize("how", [{"op": "sum"}, {"source": 0}])
def test_more_numbers_than_mpi_takes_at_once_go_in_several_operations(sync, monkeypatch, how):
    monkeypatch.setattr(parameters, "_MOST_NUMBERS", 3)
    handle = sync.start({"a": np.arange(7.0), "b": np.arange(3), "c": np.zeros(0, np.int8)}, **how)
    assert len(handle._requests) == 3 + 1
    found = handle.wait()
    assert (found["a"].tolist(), found["b"].tolist()) == (list(range(7)), [0, 1, 2])
    assert found["c"].size == 0
