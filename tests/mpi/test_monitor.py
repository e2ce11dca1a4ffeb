"""Monitor and debugger over real messages, at any number of ranks."""

import hashlib
import socket
import time

import numpy as np
import pytest

from dist_classicrl import DistributedDebugger, DistributedMonitor
from dist_classicrl.errors import RankTimeoutError, RemoteRankError, SettingsError
from dist_classicrl.mpi_tools import communication_profile
from dist_classicrl.mpi_tools.consistency import BLOCK_BYTES

WITHIN_SECONDS = 30.0
PER_BLOCK = BLOCK_BYTES // 8


def wait_for_all(world):
    request = world.Ibarrier()
    while not request.Test():
        time.sleep(0.001)


def log_until(monitor, condition, step):
    """Go on logging the same step, as a rank does whose step takes long, until `condition()`."""
    deadline = time.monotonic() + WITHIN_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        monitor.log_metrics(step)
        time.sleep(0.002)


@pytest.mark.core
def test_rank_0_has_averages_and_the_sum_of_throughputs(world):
    size, rank = world.size, world.rank
    with DistributedMonitor(world, log_interval=10) as monitor:
        for step in range(25):
            monitor.log_metrics(step, rank + step, 2.0 * rank, 100.0 + rank, 0.5 if rank == 0 else np.nan)
    metrics = monitor.metrics
    if rank:
        assert metrics["step"].size == 0
        return
    middle = (size - 1) / 2.0
    assert metrics["step"].tolist() == [0, 10, 20, 30]
    np.testing.assert_allclose(metrics["reward"], middle + np.array([0.0, 5.5, 15.5, 22.5]))
    np.testing.assert_allclose(metrics["loss"], 2.0 * middle)
    np.testing.assert_allclose(metrics["throughput"], 100.0 * size + size * middle)
    np.testing.assert_allclose(metrics["comm_time"], 0.5)  # of those who measured it
    assert metrics["ranks"].tolist() == [size] * 4


def test_a_rank_that_lags_is_added_when_it_comes(world):
    late = world.size - 1
    with DistributedMonitor(world, log_interval=1) as monitor:
        if world.rank != late or world.size == 1:
            for step in range(3):
                monitor.log_metrics(step, reward=1.0)
        if world.rank == 0 and world.size > 1:
            others = [world.size - 1] * 3
            log_until(monitor, lambda: monitor.metrics["ranks"].tolist() == others, 2)
            assert monitor.metrics["reward"].tolist() == [1.0] * 3
        wait_for_all(world)
        if world.rank == late and world.size > 1:
            for step in range(3):
                monitor.log_metrics(step, reward=float(world.size + 1))
    if world.rank == 0:
        assert monitor.metrics["ranks"].tolist() == [world.size] * 3
        assert monitor.metrics["reward"].tolist() == [2.0 if world.size > 1 else 1.0] * 3


def test_a_rank_0_that_does_not_listen_gets_all_in_the_end(world):
    with DistributedMonitor(world, log_interval=1) as monitor:
        if world.rank:
            for step in range(1000):  # far more than may be under way
                monitor.log_metrics(step, throughput=1.0)
        wait_for_all(world)
        if world.rank == 0:
            monitor.log_metrics(999, throughput=1.0)
    if world.rank == 0:
        assert monitor.metrics["throughput"].tolist()[-1] == world.size
        assert monitor.metrics["ranks"].sum() == 1 + 1000 * (world.size - 1)


def test_a_monitor_that_one_rank_does_not_construct_is_given_up(world):
    if world.size == 1:
        pytest.skip("takes another rank to wait for")
    late = world.size - 1
    own = world.Dup()
    if world.rank != late:
        with pytest.raises(RankTimeoutError, match="all ranks to construct their DistributedMonitor"):
            DistributedMonitor(own, timeout=0.3)
    wait_for_all(world)
    if world.rank == late:  # only now, so that MPI is through with it on every rank
        own.Idup()[1].Wait()


def table():
    """Two and a half blocks of numbers."""
    return np.arange(2.5 * PER_BLOCK).reshape(-1, 4)


@pytest.fixture
def debugger(world):
    with DistributedDebugger(world, timeout=WITHIN_SECONDS) as debugger:
        yield debugger


def test_equal_arrays_are_found_equal(world, debugger):
    array = table()
    array[3, 1] = np.nan
    assert debugger.check_data_consistency(array)
    array[7, 0] += 1e-7 * world.rank  # within the tolerance
    found = debugger.check_data_consistency(array)
    assert found and str(found) == "all ranks have the same"
    assert debugger.check_data_consistency(np.asfortranarray(array))  # not in one piece in this order
    assert debugger.check_data_consistency(np.zeros(0)) and debugger.check_data_consistency(3.0)
    assert bool(debugger.check_data_consistency(array, 0.0)) is (world.size == 1)


@pytest.mark.core
def test_what_differs_is_found_and_placed(world, debugger):
    culprit = world.size - 1
    array = table()
    if world.rank == culprit:
        array[100, 2] += 7.0
        array[-1, 3] -= 0.5  # in the last block, which is not a whole one
        array[5, 0] = array[5, 0] + 1e-9
    found = debugger.check_data_consistency(array)
    assert bool(found) is (world.size == 1)
    if world.size > 1:
        (difference,) = found.differences  # the same on all ranks
        assert (difference.rank, difference.index, difference.reason) == (culprit, (100, 2), "values")
        assert (difference.largest, difference.count) == (7.0, 2)
        assert (difference.here, difference.there) == ("409.0", "402.0")
        assert f"rank {culprit} differs from rank 0 in 2 places, first at [100, 2]" in str(found)


def test_a_place_in_a_later_block_is_named(world, debugger):
    array = table()
    last = (array.shape[0] - 1, 3)
    array[last] += world.rank
    found = debugger.check_data_consistency(array)
    assert [each.index for each in found.differences] == [last] * (world.size - 1)


def test_ranks_that_are_at_work_for_long_are_waited_for(world, monkeypatch, unless_held_up):
    digest = hashlib.blake2b

    def are_waited_for(seconds):
        def slow(*arguments, **settings):
            time.sleep(seconds / 4)
            return digest(*arguments, **settings)

        with DistributedDebugger(world, timeout=WITHIN_SECONDS) as debugger:
            wait_for_all(world)
            debugger._collectives.seconds = seconds
            if world.rank == world.size - 1:
                monkeypatch.setattr(hashlib, "blake2b", slow)
            assert debugger.check_data_consistency(np.zeros(6 * PER_BLOCK))

    unless_held_up(are_waited_for, 0.8, 4.0, 20.0)


def test_every_rank_that_differs_is_named(world, debugger):
    array = np.zeros(4, np.int64)
    array[world.rank % 4] = world.rank
    found = debugger.check_data_consistency(array)
    assert [(each.rank, each.index, each.largest) for each in found.differences] == [
        (rank, (rank % 4,), rank) for rank in range(1, world.size)
    ]


LONG = np.finfo(np.longdouble)


@pytest.mark.parametrize(
    ("here", "there", "tolerance"),
    [
        (np.uint64(0), np.uint64(2**53 + 1), 2.0**53),
        (np.int64(-(2**62)), np.int64(2**62 + 1), 2.0**63),
        (np.int8(-128), np.int8(127), 254.5),
        (LONG.smallest_subnormal, np.longdouble(0), 0.0),
        (1 + LONG.eps, np.longdouble(0), 1.0),
    ],
)
def test_numbers_are_apart_by_more_than_the_tolerance_at_the_ends_of_float64(
    world, debugger, here, there, tolerance
):
    found = debugger.check_data_consistency(here if world.rank else there, tolerance)
    assert [(each.rank, each.count) for each in found.differences] == [(r, 1) for r in range(1, world.size)]
    assert all(each.largest > 0.0 for each in found.differences)
    assert debugger.check_data_consistency(here if world.rank else there, 1e308)


def test_nan_on_one_rank_only_differs_from_any_number(world, debugger):
    array = np.zeros((3, 2))
    if world.rank == world.size - 1:
        array[1, 1] = np.nan
    found = debugger.check_data_consistency(array, tolerance=1e9)
    if world.size > 1:
        assert found.differences[0].index == (1, 1) and found.differences[0].largest == np.inf
        assert "nan and not 0.0" in str(found)


def test_shapes_and_types_that_differ_are_named(world, debugger):
    culprit = world.size - 1
    is_culprit = world.size > 1 and world.rank == culprit
    found = debugger.check_data_consistency(np.zeros((3, 2) if is_culprit else (2, 3)))
    assert bool(found) is (world.size == 1)
    if world.size > 1:
        assert str(found) == f"rank {culprit} has shape (3, 2), rank 0 has (2, 3)"
    found = debugger.check_data_consistency(np.zeros(3, np.float32 if is_culprit else np.float64))
    if world.size > 1:
        assert str(found) == f"rank {culprit} has dtype float32, rank 0 has float64"


def test_an_argument_that_is_wrong_on_one_rank_is_an_error_on_all(world, debugger):
    wrong = world.size - 1
    with pytest.raises(SettingsError, match=f"rank {wrong}: array must be .* of type <U3"):
        debugger.check_data_consistency(["one"] if world.rank == wrong else [1.0])
    with pytest.raises(SettingsError, match="tolerance must be a finite number of at least 0, got -1"):
        debugger.check_data_consistency([1.0], tolerance=-1)
    if world.size > 1:
        other = 0.5 if world.rank == wrong else 1
        with pytest.raises(SettingsError, match=f"^rank {wrong} has tolerance=0.5, rank 0 tolerance=1.0"):
            debugger.check_data_consistency([1.0], tolerance=other)
    assert debugger.check_data_consistency([1.0])  # and it goes on being of use


def test_a_rank_that_makes_no_such_call_is_not_waited_for_for_ever(world):
    if world.size == 1:
        pytest.skip("takes another rank to wait for")
    late = world.size - 1
    debugger = DistributedDebugger(world, timeout=WITHIN_SECONDS)
    if world.rank == 0:
        debugger._collectives.seconds = 0.5
    if world.rank != late:
        # On few cores others may be late, too.
        raised = RemoteRankError if world.rank else RankTimeoutError
        with pytest.raises(raised, match=r"from rank [1-9]\d* for 0.5 s"):
            debugger.check_data_consistency([1.0])
    wait_for_all(world)
    if world.rank == late:  # only now does it hear that the others have given up
        with pytest.raises(RemoteRankError, match="RankTimeoutError"):
            debugger.check_data_consistency([1.0])
    debugger._collectives.seconds = WITHIN_SECONDS
    wait_for_all(world)
    assert debugger.check_data_consistency([2.0])
    debugger.close()


def test_a_debugger_whose_measuring_broke_off_is_closed(world, monkeypatch):
    if world.size == 1:
        pytest.skip("takes another rank to wait for")

    real = communication_profile._runner

    def runner(comm, rooted, step):
        if world.rank == 1:
            raise ZeroDivisionError
        rooted.seconds = 0.5
        return real(comm, rooted, step)

    debugger = DistributedDebugger(world, timeout=WITHIN_SECONDS)
    monkeypatch.setattr(communication_profile, "_runner", runner)
    with pytest.raises((ZeroDivisionError, RankTimeoutError, RemoteRankError)):
        debugger.profile_communication(8, 1)
    monkeypatch.undo()
    # Messages of the one that broke off would be taken for those of another one.
    with pytest.raises(SettingsError, match="This DistributedDebugger is closed"):
        debugger.profile_communication(8, 1)


def test_messages_between_all_hosts_are_measured_and_not_only_with_rank_0(world, debugger, monkeypatch):
    names = [f"host {rank // 2}" for rank in range(world.size)]
    monkeypatch.setattr(socket, "gethostname", lambda: names[world.rank])
    found = debugger.profile_communication(data_size=1_000, iterations=2, host_pairs="all")
    heads = range(0, world.size, 2)
    near = [[rank, rank + 1] for rank in heads if rank + 1 < world.size]
    far = [[one, other] for one in heads for other in heads if one < other]
    assert [each["ranks"] for each in found["point_to_point"]] == near + far
    for each in found["point_to_point"]:
        assert each["hosts"] == [names[rank] for rank in each["ranks"]]
        assert each["same_host"] is (each["hosts"][0] == each["hosts"][1])
        assert 0.0 < each["latency"] and each["bandwidth"] == pytest.approx(1_000 / each["seconds"])


def test_communication_is_measured(world, debugger):
    profile = debugger.profile_communication(data_size=100_000, iterations=5)
    others = world.size > 1
    assert [each["ranks"] for each in profile["point_to_point"]] == ([[0, 1]] if others else [])
    operations = {"barrier", "bcast", "allreduce", "gather", "allgather"}
    assert set(profile["collective"]) == (operations if others else set())
    for name, found in profile["collective"].items():
        assert found["latency"] > 0.0
        assert name == "barrier" or found["bandwidth"] == pytest.approx(100_000 / found["seconds"])
    assert len(profile["hosts"]) == world.size


def test_what_would_gather_too_much_is_said_to_be_unmeasured(world, debugger, monkeypatch):
    monkeypatch.setattr(communication_profile, "MOST_GATHERED_BYTES", 999)
    for name, found in debugger.profile_communication(data_size=1_000, iterations=1)["collective"].items():
        assert found["latency"] > 0.0
        if "gather" in name:
            assert (found["seconds"], found["bandwidth"]) == (None, None)
        else:
            assert name == "barrier" or found["bandwidth"] == pytest.approx(1_000 / found["seconds"])


@pytest.mark.parametrize(
    ("one", "all_others", "said"),
    [
        ((2**31,), (), r"rank {}: data_size must be below 2\*\*31, got 2147483648"),
        ((2**70,), (), r"rank {}: data_size must be below 2\*\*31, got"),
        ((0,), (), "rank {}: data_size must be a whole number of at least 1, got 0"),
        ((8, 0), (8,), "rank {}: iterations must be a whole number of at least 1, got 0"),
        ((8, 1, "few"), (8, 1), "rank {}: host_pairs must be one of 'one', 'some', 'all', got 'few'"),
        ((8, 2), (8, 1), "rank {} has data_size=8, iterations=2, host_pairs='some', rank 0 .*iterations=1"),
        ((16, 1), (8, 1), "rank {} has data_size=16, iterations=1"),
    ],
)
def test_what_one_rank_wants_measured_otherwise_is_refused_on_all(world, debugger, one, all_others, said):
    last = world.size - 1
    if world.size == 1 and "has" in said:
        return
    with pytest.raises(SettingsError, match=f"^{said.format(last)}"):
        debugger.profile_communication(*(one if world.rank == last else all_others))
    assert debugger.profile_communication(8, np.int64(1) if world.rank else 1)["bytes"] == 8
