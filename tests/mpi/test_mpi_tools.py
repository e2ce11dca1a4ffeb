"""Parts for programs of one's own against mpi4py's own operations, at any number of ranks."""

import json
import time
from contextlib import contextmanager

import numpy as np
import pytest

from dist_classicrl import DistAsyncQLearning, DistributedDebugger, DistributedMonitor, FailureDetector
from dist_classicrl.comm import collectives
from dist_classicrl.errors import RankLostError, RankTimeoutError, RemoteRankError, SettingsError
from dist_classicrl.mpi_tools import (
    CompressedAllreduce,
    DistributedSampler,
    ParameterSync,
    QuorumBarrier,
    TwoLevel,
    two_level,
)
from dist_classicrl.mpi_tools.parameters import _Given

TIMEOUT = 30.0
KINDS = [("threshold", {"threshold": 0.7}), ("top_k", {"k": 5}), ("int8", {}), ("int16", {})]


def wait_for_all(world):
    request = world.Ibarrier()
    deadline = time.monotonic() + TIMEOUT
    while not request.Test():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def numbers(world, call, shape=(6, 7)):
    return np.random.default_rng((world.rank, call)).normal(size=shape)


def summed(world, array):
    total = np.empty_like(array)
    world.Allreduce(array, total)
    return total


@pytest.mark.parametrize("operation", ["sum", "mean"])
@pytest.mark.parametrize(("kind", "how"), KINDS)
def test_what_is_returned_and_flushed_is_what_allreduce_says(world, kind, how, operation):
    with CompressedAllreduce(world, kind, operation=operation, timeout=TIMEOUT, **how) as reduce:
        found = sum(reduce(numbers(world, call)) for call in range(5)) + reduce.flush()
        assert not reduce.flush().any()
    twin = sum(summed(world, numbers(world, call)) for call in range(5))
    np.testing.assert_allclose(found, twin / (world.size if operation == "mean" else 1), atol=1e-12)
    first = found.copy()
    world.Bcast(first)
    assert first.tobytes() == found.tobytes()


@pytest.mark.parametrize(("kind", "how"), [("threshold", {"threshold": 0.0}), ("top_k", {"k": 42})])
def test_where_everything_is_sent_one_call_is_an_allreduce(world, kind, how):
    with CompressedAllreduce(world, kind, timeout=TIMEOUT, **how) as reduce:
        np.testing.assert_allclose(reduce(numbers(world, 0)), summed(world, numbers(world, 0)), atol=1e-13)


@pytest.mark.parametrize("bits", [8, 16])
def test_rounded_numbers_are_off_by_half_a_quantum_of_each_message(world, bits):
    given = numbers(world, 0)
    with CompressedAllreduce(world, f"int{bits}", timeout=TIMEOUT) as reduce:
        found = reduce(given)
    twin = summed(world, given)
    quanta = summed(world, np.array([np.abs(given).max()])) / (2 ** (bits - 1) - 1)
    own = (np.abs(twin).max() + quanta[0]) / (2 ** (bits - 1) - 1)
    assert np.abs(found - twin).max() <= (quanta[0] + own) / 2 * (1 + 1e-9)


def test_fewer_bytes_are_sent_than_of_dense_arrays(world, several_ranks):
    with CompressedAllreduce(world, "int8", timeout=TIMEOUT) as reduce:
        reduce(numbers(world, 0, 10_000))
        assert reduce.traffic.calls == 1
        assert 0 < reduce.traffic.sent < reduce.traffic.dense / 7


@pytest.mark.parametrize(
    "bad", [np.nan * np.ones(9), np.zeros(3, complex), np.zeros(8), np.zeros(3), [[1], 2]]
)
def test_what_one_rank_may_not_give_is_refused_on_all_and_nothing_is_lost(world, several_ranks, bad):
    with CompressedAllreduce(world, "top_k", k=4, timeout=TIMEOUT) as reduce:
        first = reduce(np.arange(9.0))
        with pytest.raises(SettingsError, match=f"rank {world.size - 1}"):
            reduce(bad if world.rank == world.size - 1 else np.ones(9))
        np.testing.assert_allclose(first + reduce.flush(), world.size * np.arange(9.0))


def test_other_arguments_on_one_rank_are_refused_on_all(world, several_ranks):
    with CompressedAllreduce(world, "top_k", k=1 + (world.rank == 1), timeout=TIMEOUT) as reduce:
        with pytest.raises(SettingsError, match="rank 1 has kind=top_k.*k=2"):
            reduce(np.ones(4))


class OnACard:
    """As an array of CuPy."""

    def __array__(self, *arguments, **options):
        raise TypeError("Implicit conversion to a NumPy array is not allowed.")

    def get(self):
        return np.ones(3)


class WithGradients:
    """As a tensor of PyTorch that requires them."""

    def __array__(self, *arguments, **options):
        raise RuntimeError("Can't call numpy() on Tensor that requires grad.")

    def detach(self):
        return self


@pytest.mark.parametrize(
    ("foreign", "method"), [(OnACard, "get()"), (WithGradients, "detach().cpu().numpy()")]
)
def test_what_numpy_makes_no_array_of_is_refused_on_all_ranks_with_what_to_write(world, foreign, method):
    last = world.size - 1
    given = foreign() if world.rank == last else np.ones(3)
    with uses_of_arrays(world) as uses:
        for use, name in uses.items():
            with pytest.raises(SettingsError) as caught:
                use(given)
            said = str(caught.value)
            assert f"{name} must be an array of numbers, got {foreign.__name__}, of which" in said
            assert f"; give what its .{method} returns" in said
            assert f"rank {last}: " in said or world.size == 1
            use(np.ones(3))


@contextmanager
def uses_of_arrays(world):
    """What takes an array, and by which name."""
    with (
        CompressedAllreduce(world, "int8", timeout=TIMEOUT) as reduce,
        ParameterSync(world, timeout=TIMEOUT) as sync,
        TwoLevel(world, timeout=TIMEOUT) as levels,
        DistributedDebugger(world, timeout=TIMEOUT) as debugger,
    ):
        yield {
            reduce: "array",
            levels.allreduce: "array",
            debugger.check_data_consistency: "array",
            lambda array: sync.start({"weights": array}, op="sum").wait(): "'weights'",
            lambda array: sync.start({"weights": array}, source=0).wait(): "'weights'",
        }


def test_masked_arrays_are_refused_on_all_ranks_where_they_hide_numbers(world):
    last = world.size - 1
    hides = np.ma.array([1.0, 999.0, 2.0], mask=[False, True, False])
    with uses_of_arrays(world) as uses:
        for use, name in uses.items():
            with pytest.raises(SettingsError, match=rf"{name} is a masked array that hides 1 of .*\.filled"):
                use(hides if world.rank == last else np.ones(3))
            use(np.ma.array(np.ones(3)))
    with TwoLevel(world, timeout=TIMEOUT) as levels:
        assert levels.allreduce(hides.filled(0.0)).tolist() == [world.size, 0.0, 2.0 * world.size]


@pytest.mark.parametrize("uneven", ["keep", "drop", "pad"])
@pytest.mark.parametrize("length", [0, 1, 7, 240])
def test_ranks_share_the_samples_of_an_epoch(world, length, uneven):
    sampler = DistributedSampler(length, world, seed=3, uneven=uneven)
    shares = world.allgather(sampler.indices(2).tolist())
    taken = sorted(sum(shares, []))
    if uneven == "keep":
        assert taken == list(range(length))
    else:
        assert len({len(share) for share in shares}) == 1
        rest = length % world.size
        assert len(taken) == length + (rest and (world.size - rest if uneven == "pad" else -rest))
    if uneven == "drop":
        assert len(set(taken)) == len(taken)
    if uneven == "pad":
        assert set(taken) == set(range(length))


def test_epochs_have_orders_of_their_own_that_the_seed_repeats(world):
    orders = [DistributedSampler(100, world, seed=s).indices(e).tolist() for s, e in [(1, 0), (1, 1), (2, 0)]]
    assert len(set(map(tuple, orders))) == 3
    assert DistributedSampler(100, world, seed=1).indices(0).tolist() == orders[0]


@pytest.mark.parametrize("uneven", ["keep", "drop", "pad"])
def test_an_interrupted_epoch_goes_on_where_it_was(world, uneven):
    def made():
        return DistributedSampler(103, world, seed=5, uneven=uneven)

    whole, interrupted, resumed = made(), made(), made()
    truth = [batch.tolist() for _ in range(2) for batch in whole.batches(3)]
    assert [each for batch in truth for each in batch] == [*made().indices(0), *made().indices(1)]
    batches = interrupted.batches(3)
    begun = [next(batches).tolist() for _ in range(2)]
    state = json.loads(json.dumps(interrupted.state()))
    assert world.allgather(state) == [state] * world.size
    resumed.restore(state)
    assert begun + [batch.tolist() for _ in range(2) for batch in resumed.batches(3)] == truth
    assert (resumed.epoch, resumed.state()) == (2, whole.state())


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("uneven", ["keep", "drop", "pad"])
def test_ranks_that_have_taken_equally_many_batches_tell_the_same_state(world, alone, uneven, size):
    length = 2 * world.size + 1  # with "keep" rank 0 has 3, the others 2
    sampler = DistributedSampler(length, world, uneven=uneven)
    batches = [(batch.tolist(), sampler.state()) for batch in sampler.batches(size)]
    told = world.allgather(batches)
    taken = []
    for together in zip(*told, strict=False):
        taken += sum((batch for batch, _ in together), [])
        state = together[0][1]
        assert all(other == state for _, other in together)
        successor = DistributedSampler(length, alone, uneven=uneven)
        successor.restore(state)
        rest = [] if state["taken"] == length else next(successor.batches(length), np.zeros(0)).tolist()
        assert set(taken + rest) == set(range(length))
        assert len(taken + rest) == length or uneven == "pad"


def test_another_number_of_ranks_takes_what_is_left_of_an_epoch(world, alone):
    sampler = DistributedSampler(103, world, seed=5)
    batches = sampler.batches(4)
    taken = sum(world.allgather(next(batches).tolist()), [])
    successor = DistributedSampler(103, alone, seed=5)
    successor.restore(sampler.state())
    rest = next(successor.batches(103)).tolist()
    assert sorted(taken + rest) == list(range(103))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"seed": 2}, "sampler with seed=2, and this one has 1"),
        ({"length": 11}, "sampler with length=11, and this one has 10"),
        ({"taken": 11}, "taken must be at most length"),
        ({"epoch": -1}, "epoch must be a whole number"),
        ({"more": 1}, "state must be what state"),
        ({"length": np.arange(2)}, "sampler with length=array"),
        ({"uneven": np.array(["keep", "drop"])}, "sampler with uneven=array"),
        ({"taken": np.arange(2)}, "taken must be a whole number"),
    ],
)
def test_a_state_of_another_sampler_is_refused(world, change, said):
    sampler = DistributedSampler(10, world, seed=1)
    with pytest.raises(SettingsError, match=said):
        sampler.restore({**sampler.state(), **change})


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda world: CompressedAllreduce(world, "zip"), "kind must be one of"),
        (lambda world: CompressedAllreduce(world, "top_k"), "needs k"),
        (lambda world: CompressedAllreduce(world, "top_k", k=0), "k must be a whole number"),
        (lambda world: CompressedAllreduce(world, "int8", threshold=1.0), "takes no threshold"),
        (lambda world: CompressedAllreduce(None, "int8"), "comm must be an intracommunicator"),
        (lambda world: TwoLevel(world, method="three"), "method must be one of"),
        (lambda world: TwoLevel(world, host=""), "host must be a text of 1 to 255 bytes"),
        (
            lambda world: TwoLevel(world, host="a\0"),
            r"host must be a text of 1 to 255 bytes without NUL.*got 'a",
        ),
        (lambda world: TwoLevel(world, host="\0"), "host must be a text of 1 to 255 bytes without NUL"),
        (lambda world: QuorumBarrier(world, 0), "quorum must be a whole number of at least 1"),
        (lambda world: QuorumBarrier(world, 99), "quorum must be at most the number of ranks"),
        (lambda world: QuorumBarrier(world, grace=-1.0), "grace must be a finite number above 0"),
        (lambda world: DistributedSampler(10, None), "comm must be an intracommunicator"),
        (lambda world: DistributedSampler(-1, world), "length must be a whole number"),
        (lambda world: DistributedSampler(2**63, world), r"length must be below 2\*\*48, got 9223"),
        (lambda world: DistributedSampler(10**25, world), r"length must be below 2\*\*48, got 1000"),
        (
            lambda world: DistributedSampler(2**47, world).indices(0),
            "length=140737488355328 takes 2,097,152.0 GiB",
        ),
        (lambda world: next(DistributedSampler(2**47, world).batches(1)), "takes 2,097,152.0 GiB"),
        (lambda world: DistributedSampler(10, world, uneven="cut"), "uneven must be one of"),
        (lambda world: DistributedSampler(10, world).batches(0), "size must be a whole number"),
    ],
)
def test_wrong_arguments_are_refused_by_name(world, make, said):
    with pytest.raises(SettingsError, match=said):
        make(world)


def test_two_groups_of_ranks_are_not_the_ranks_of_an_agent_or_of_a_part(world, several_ranks):
    first = min(world.rank, 1)
    group = world.Split(first, world.rank)
    inter = group.Create_intercomm(0, world, 1 - first, 5)
    for make in (lambda: DistAsyncQLearning(comm=inter), lambda: ParameterSync(inter)):
        with pytest.raises(SettingsError, match=r"comm must be an intracommunicator.*Merge\(\) makes"):
            make()
    merged = inter.Merge()
    assert DistAsyncQLearning(comm=merged).rank == merged.rank
    for comm in (merged, inter, group):
        comm.Free()


def test_more_than_there_is_cannot_be_the_largest(world):
    with CompressedAllreduce(world, "top_k", k=5, timeout=TIMEOUT) as reduce:
        with pytest.raises(SettingsError, match="k must be at most the size of the array, 4, got 5"):
            reduce(np.ones(4))
        with pytest.raises(SettingsError, match="flush needs a call before it"):
            reduce.flush()


@pytest.mark.parametrize("shape", [(), (0,), (2, 0)])
def test_arrays_of_one_number_or_none_are_arrays(world, shape):
    with CompressedAllreduce(world, "int16", timeout=TIMEOUT) as reduce:
        found = reduce(np.ones(shape)) + reduce.flush()
        np.testing.assert_allclose(found, np.full(shape, world.size))


def test_a_rank_that_does_not_call_ends_the_wait_of_all(world, several_ranks):
    with CompressedAllreduce(world, "int8", timeout=TIMEOUT) as reduce:
        if world.rank == 0:
            reduce._collectives.seconds = 0.5
        if world.rank != world.size - 1:
            with pytest.raises((RankTimeoutError, RemoteRankError), match=r"from rank [1-9]\d* "):
                reduce(np.ones(4))
        wait_for_all(world)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (QuorumBarrier, ParameterSync),
        (DistributedDebugger, TwoLevel),
        (DistributedMonitor, FailureDetector),
    ],
)
def test_ranks_that_construct_something_else_are_told_what_was_constructed_where(
    world, several_ranks, one, other
):
    mine, theirs = (one, other) if world.rank else (other, one)
    said = (
        f"^Rank {0 if world.rank else 1} constructs its {theirs.__name__}, where this .*its {mine.__name__}"
    )
    with pytest.raises(SettingsError, match=said):
        mine(world, timeout=TIMEOUT)
    one(world, timeout=TIMEOUT).close()


def test_two_long_names_that_begin_alike_are_told_apart(world, several_ranks):
    begin, mine = "A" * 64, "theirs" if world.rank else "ours"
    constructed = type(begin + mine, (QuorumBarrier,), {})
    with pytest.raises(
        SettingsError, match=rf"constructs its {begin}\.\.\., where this .*its {begin}{mine}\."
    ):
        constructed(world, timeout=TIMEOUT)


def test_sums_are_right_after_a_rank_0_that_came_when_the_others_had_given_up(world, several_ranks):
    with CompressedAllreduce(world, "top_k", k=1, timeout=TIMEOUT) as reduce:
        found = reduce(np.array([1.0, 2.0]))
        reduce._collectives.seconds = 0.3 if world.rank else TIMEOUT
        if world.rank:
            with pytest.raises(RankTimeoutError, match="from rank 0 "):
                reduce(np.array([8.0, 4.0]))
        wait_for_all(world)
        if world.rank == 0:
            with pytest.raises(RemoteRankError, match="RankTimeoutError"):
                reduce(np.array([8.0, 4.0]))
        wait_for_all(world)
        reduce._collectives.seconds = TIMEOUT
        assert (found + reduce.flush()).tolist() == [world.size, 2 * world.size]


def test_what_is_closed_gives_its_communicator_back(world):
    """MPI has 65,000 or 2,000 of them: their numbers are used again."""
    late = world.size - 1
    numbers = set()
    for turn in range(12):
        monitor = DistributedMonitor(world, timeout=TIMEOUT)
        with CompressedAllreduce(world, "int8", timeout=TIMEOUT) as reduce:
            with DistributedDebugger(world, timeout=TIMEOUT) as debugger:
                numbers |= {each._comm.py2f() for each in (monitor, reduce, debugger)}
                if turn % 6 == 0:
                    assert reduce(np.ones(2)).tolist() == [world.size] * 2
        for part in (ParameterSync, QuorumBarrier, TwoLevel):
            with part(world, timeout=TIMEOUT) as made:
                numbers.add(made._comm.py2f())
        if turn == 3 and world.rank == late:
            time.sleep(1.2)  # longer than the others wait for its goodbye
        monitor.close()
    # Three at a time, and some while one was closed late; without that there would be six each time.
    assert len(numbers) <= 24


def test_communicators_of_two_levels_are_not_freed_while_a_rank_may_use_them(world, several_ranks):
    levels = TwoLevel(world, timeout=TIMEOUT)
    if world.rank == 0:
        levels.close()
        assert levels._comm and levels._local
    wait_for_all(world)
    levels.close()
    wait_for_all(world)
    deadline = time.monotonic() + TIMEOUT
    while levels._comm or levels._local or levels._closing:
        assert time.monotonic() < deadline
        collectives._give_back_more()


def test_what_is_closed_is_refused_by_name_and_who_waits_for_it_is_told(world, several_ranks):
    reduce = CompressedAllreduce(world, "int8", timeout=TIMEOUT)
    if world.rank == world.size - 1:
        reduce.close()
        with pytest.raises(SettingsError, match="This CompressedAllreduce is closed"):
            reduce(np.ones(2))
    else:
        with pytest.raises((RankLostError, RemoteRankError), match=f"Rank {world.size - 1} closed"):
            reduce(np.ones(2))
        reduce.close()


def test_a_barrier_lets_nobody_through_before_all_have_come(world):
    with QuorumBarrier(world, timeout=TIMEOUT) as barrier:
        for turn in range(5):
            late = turn % world.size
            if world.rank == late:
                time.sleep(0.02)
                come = time.time()
            assert barrier.wait() == frozenset(range(world.size))
            gone = time.time()
            assert world.bcast(come if world.rank == late else None, late) <= gone


def test_a_quorum_goes_on_and_who_comes_late_does_not_count_for_the_next_barrier(world, several_ranks):
    late, everybody = world.size - 1, frozenset(range(world.size))
    with QuorumBarrier(world, max(1, world.size - 1), timeout=TIMEOUT, grace=0.2) as barrier:
        if world.rank != late:
            # So busy may the machine be that others miss the grace, but never the one that sleeps.
            for _ in range(3):
                assert late not in barrier.wait()
        wait_for_all(world)
        if world.rank == late:
            for turn in range(3):
                assert barrier.wait() == everybody, turn  # the others are through, it need not wait
                wait_for_all(world)
        else:
            for _ in range(3):
                wait_for_all(world)
        barrier._grace = None
        assert barrier.wait() == everybody


def test_who_is_many_barriers_behind_finds_them_open_though_the_others_do_not_come_again(
    world, several_ranks
):
    late, everybody = world.size - 1, frozenset(range(world.size))
    with QuorumBarrier(world, max(1, world.size - 1), timeout=TIMEOUT, grace=1e-3) as barrier:
        if world.rank != late:
            for _ in range(300):
                barrier.wait()
        wait_for_all(world)
        if world.rank == late:
            barrier._grace = None
            for turn in range(300):
                assert barrier.wait() == everybody, turn
        wait_for_all(world)


def test_no_quorum_in_time_is_an_error_that_names_who_is_missing(world, several_ranks):
    late = world.size - 1
    with QuorumBarrier(world, world.size, timeout=TIMEOUT) as barrier:
        if world.rank != late:
            barrier._seconds = 0.5
            with pytest.raises(
                RankTimeoutError, match=f"to barrier 1, where {world.size} .*missing: .*{late}"
            ):
                barrier.wait()
        wait_for_all(world)
        if world.rank == late:
            assert barrier.wait() == frozenset(range(world.size))
        barrier._seconds = TIMEOUT
        wait_for_all(world)
        assert barrier.wait() == frozenset(range(world.size))


def test_a_barrier_that_too_many_have_closed_says_so_at_once(world, several_ranks):
    barrier = QuorumBarrier(world, world.size, timeout=TIMEOUT)
    if world.rank:
        barrier.close()
        with pytest.raises(SettingsError, match="This QuorumBarrier is closed"):
            barrier.wait()
    else:
        with pytest.raises(RankLostError, match=f"1 of {world.size} ranks came.*closed their barrier"):
            barrier.wait()
        barrier.close()


def parameters(world, call):
    """Sixty small arrays of four types, one of them without a number, and one of a single one."""
    draw = np.random.default_rng((world.rank, call))
    shapes = [(), (0,), (3,), (2, 5)]
    types = ["float64", "float32", "int64", "int16"]
    return {
        f"{i}": draw.integers(-9, 9, shapes[i % 4]).astype(types[i % 3 if i < 57 else 3]) for i in range(60)
    }


def test_arrays_are_synchronized_as_by_an_allreduce_of_each_while_ranks_compute(world):
    with ParameterSync(world, timeout=TIMEOUT) as sync:
        given = [parameters(world, call) for call in range(3)]
        handles = [sync.start(arrays, op="sum") for arrays in given]
        twins = [{name: summed(world, array) for name, array in arrays.items()} for arrays in given]
        given[0]["2"][...] = 7  # what was given has been copied
        for handle, twin in zip(reversed(handles), reversed(twins), strict=True):
            found = handle.wait()
            assert list(found) == list(twin) and handle.test()
            for name in twin:
                assert found[name].dtype == twin[name].dtype
                np.testing.assert_array_equal(found[name], twin[name])


@pytest.mark.parametrize("length", [3, 70, 1000])  # some loops of MPI are for many entries, some for the rest
@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2"])
def test_sums_that_leave_the_type_wrap_round_everywhere_as_those_of_numpy(world, dtype, length):
    bounds, n = np.iinfo(dtype), world.size
    own = np.random.default_rng(world.rank).integers(bounds.min, bounds.max, length, dtype, endpoint=True)
    own[: length // 2] = bounds.max - world.rank
    twin = np.sum(world.allgather(own), axis=0, dtype=dtype)
    with ParameterSync(world, timeout=TIMEOUT) as sync:
        found = sync.start({"a": own, "b": own[:2], "c": own.astype("i8")}, op="sum").wait()
        copied = sync.start({"a": own}, source=n - 1).wait()["a"]
    np.testing.assert_array_equal(found["a"], twin, strict=True)
    np.testing.assert_array_equal(found["b"], twin[:2], strict=True)
    np.testing.assert_array_equal(found["c"].astype(dtype), twin)
    np.testing.assert_array_equal(copied, world.bcast(own, n - 1), strict=True)
    for method in ("mpi", "two_level"):
        with TwoLevel(world, method=method, host=str(world.rank % 2), timeout=TIMEOUT) as levels:
            np.testing.assert_array_equal(levels.allreduce(own), twin, strict=True)
            mine = np.array_split(twin, n)[world.rank]
            np.testing.assert_array_equal(levels.reduce_scatter(own), mine, strict=True)


def test_means_and_copies_are_the_same_bits_on_all_ranks(world):
    draw = np.random.default_rng(world.rank)
    arrays = {"wide": draw.normal(size=(50, 7)), "narrow": draw.normal(size=9).astype("f4")}
    source = world.size - 1
    with ParameterSync(world, timeout=TIMEOUT) as sync:
        mean, copy = sync.start(arrays, op="mean"), sync.start(arrays, source=source)
        found, copied = mean.wait(), copy.wait()
    for name, array in arrays.items():
        np.testing.assert_allclose(found[name], summed(world, array) / world.size, rtol=1e-5, atol=1e-6)
        twin, first = array.copy(), found[name].copy()
        world.Bcast(twin, source)
        world.Bcast(first)
        assert twin.tobytes() == copied[name].tobytes() and first.tobytes() == found[name].tobytes()


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (
            ({"a": np.ones(3), "b": np.ones(2)}, "sum"),
            r"rank {} gives 'b' of float64 \(2,\), rank 0 'b' of f.*3",
        ),
        (({"a": np.ones(3)}, "sum"), "rank {} gives no more arrays, rank 0 'b' of float64"),
        (
            ({"a": np.ones(3), "b": np.ones(3)}, None, 0),
            "rank {} gives op=None and source=0, rank 0 op='sum'",
        ),
        (({"a": np.ones(3, "c16")}, "sum"), "rank {}: 'a' must be an array of .*complex128"),
        (({"a": [[1], 2]}, "sum"), "rank {}: 'a' must be an array of numbers"),
        (([1.0], "sum"), "rank {}: arrays must be a mapping"),
        (({"a": np.ones(3)}, "max"), "rank {}: op must be one of 'sum', 'mean', got 'max'"),
        (
            ({"a": np.ones(3, int)}, "mean"),
            "rank {}: 'a' must be float32 or float64 for op='mean', got int64",
        ),
        (({},), "rank {}: give op= or source=, one of them"),
        (({}, "sum", 0), "rank {}: give op= or source=, one of them"),
        (({}, None, 99), "rank {}: source must be a rank below"),
    ],
)
def test_what_one_rank_gives_that_does_not_fit_is_refused_on_all(world, several_ranks, bad, said):
    culprit = world.size - 1
    good = ({"a": np.ones(3), "b": np.ones(3)}, "sum")
    with ParameterSync(world, timeout=TIMEOUT) as sync:
        handle = sync.start(*(bad if world.rank == culprit else good))
        following = sync.start(*good)
        with pytest.raises(SettingsError, match=said.format(culprit)):
            handle.wait()
        assert following.wait()["b"].tolist() == [world.size] * 3


def test_a_silent_rank_is_named_and_may_come_later(world, several_ranks):
    late = world.size - 1
    with ParameterSync(world, timeout=TIMEOUT) as sync:
        if world.rank != late:
            handle = sync.start({"a": [world.rank]}, op="sum")
            with pytest.raises(RankTimeoutError, match=f"after 0.3 s: nothing came from rank.*{late}. Every"):
                handle.wait(0.3)
        wait_for_all(world)
        if world.rank == late:
            handle = sync.start({"a": [world.rank]}, op="sum")
        assert handle.wait()["a"].tolist() == [sum(range(world.size))]


def test_an_exception_or_a_close_on_one_rank_ends_the_waiting_of_all(world, several_ranks):
    late = world.size - 1
    with pytest.raises(ZeroDivisionError if world.rank == late else RemoteRankError, match="by zero"):
        with ParameterSync(world, timeout=TIMEOUT) as sync:
            if world.rank == late:
                raise ZeroDivisionError("division by zero")
            sync.start({"a": [1]}, op="sum").wait()
    sync = ParameterSync(world, timeout=TIMEOUT)
    if world.rank == late:
        sync.close()
        with pytest.raises(SettingsError, match="This ParameterSync is closed"):
            sync.start({"a": [1]}, op="sum")
    else:
        handle = sync.start({"a": [1]}, op="sum")
        with pytest.raises((RankLostError, RemoteRankError), match="closed its ParameterSync"):
            handle.wait()
        sync.close()


def test_what_is_complete_on_a_rank_that_left_with_a_later_one_unwaited_for_completes_on_all(
    world, several_ranks, monkeypatch
):
    leaves = world.rank == world.size - 1
    under_way = {2} if leaves else {1, 2}  # numbers of synchronizations that the network takes long for
    begin, begun = _Given.begin, []

    class Slow:
        def __init__(self, request):
            self.request, self.number = request, len(begun)

        def Test(self):
            return self.request.Test() and self.number not in under_way

    def begin_slowly(given, comm):
        begun.append(given)
        return [Slow(request) for request in begin(given, comm)]

    monkeypatch.setattr(_Given, "begin", begin_slowly)
    with ParameterSync(world, timeout=TIMEOUT) as sync:
        first, second = (sync.start({"a": np.full(50, number)}, op="sum") for number in (1, 2))
        if leaves:
            assert first.wait()["a"][0] == world.size
            sync.close()
        left = world.Ibarrier()
        while not left.Test():
            assert leaves or not first.test()
        if not leaves:
            with pytest.raises(RemoteRankError, match="before synchronization 2 was over"):
                second.wait()
            assert not first.test()
            under_way.remove(1)
            assert first.wait()["a"][0] == world.size


HOSTS = {
    "halves": lambda rank, size: f"{2 * rank // size}",
    "in turns": lambda rank, size: f"{rank % 3}\udc80",  # as Python has names that are not UTF-8
    "uneven": lambda rank, size: f"{min(rank, 1)}",
}


@pytest.mark.parametrize("method", ["two_level", "mpi"])
@pytest.mark.parametrize("hosts", HOSTS)
def test_operations_in_two_levels_are_what_mpi_says(world, hosts, method):
    n, labels = world.size, [HOSTS[hosts](rank, world.size) for rank in range(world.size)]
    source = world.size - 1
    with TwoLevel(world, method=method, host=labels[world.rank], timeout=TIMEOUT) as levels:
        alike = [tuple(r for r in range(n) if labels[r] == label) for label in dict.fromkeys(labels)]
        assert levels.hosts == tuple(alike) and levels.uses_two_levels is (method == "two_level")
        for shape in [(2 * n + 1, 3), (0,), (1,)]:
            whole = np.random.default_rng((world.rank, 1)).integers(-99, 99, shape)
            twin = summed(world, whole)
            assert levels.allreduce(whole).tolist() == twin.tolist()
            assert levels.reduce_scatter(whole).tolist() == np.array_split(twin, n)[world.rank].tolist()
            gathered = np.empty((n, *shape), whole.dtype)
            world.Allgather(whole, gathered)
            assert levels.allgather(whole).tolist() == gathered.tolist()
            assert levels.broadcast(whole, source).tolist() == gathered[source].tolist()
            assert levels.allreduce(whole, "max").tolist() == gathered.max(axis=0).tolist()
            assert levels.reduce_scatter(whole, "min").tolist() == (
                np.array_split(gathered.min(axis=0), n)[world.rank].tolist()
            )
        real = numbers(world, 0).astype("f4").T  # not in one piece
        found = levels.allreduce(real)
        np.testing.assert_allclose(found, summed(world, real.copy()), rtol=1e-5, atol=1e-5)
        first = found.copy()
        world.Bcast(first)
        assert first.tobytes() == found.tobytes()
        assert levels.allgather(7).tolist() == [7] * n


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("op", ["max", "min"])
@pytest.mark.parametrize("method", ["mpi", "two_level"])
def test_the_largest_and_least_of_nan_and_numbers_is_nan_whichever_rank_has_it(world, method, op, dtype):
    n = world.size
    extreme = getattr(np, op)
    floats = [np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, np.finfo(dtype).max, np.finfo(dtype).smallest_subnormal]
    own = np.random.default_rng(world.rank).choice(np.array(floats, dtype), (3 * n, 4))
    own[world.rank, 0], own[n + world.rank, 1] = np.nan, -np.nan
    twin = extreme(world.allgather(own), axis=0)
    with TwoLevel(world, method=method, host=str(world.rank % 2), timeout=TIMEOUT) as levels:
        found = levels.allreduce(own, op)
        np.testing.assert_array_equal(found, twin)
        assert found.dtype == own.dtype and len(set(world.allgather(found.tobytes()))) == 1
        assert np.isnan(found).sum() == 2 * n
        np.testing.assert_array_equal(
            levels.reduce_scatter(own, op), np.array_split(twin, n)[world.rank], strict=True
        )
        assert np.isnan(levels.allreduce(own.dtype.type(np.nan if world.rank == n - 1 else 1.0), op))


def test_without_names_ranks_that_share_memory_are_one_host_and_mpi_does_it_alone(world):
    with TwoLevel(world, timeout=TIMEOUT) as levels:
        assert levels.hosts == (tuple(range(world.size)),) and not levels.uses_two_levels
        assert levels.allreduce([1, 2]).tolist() == [world.size, 2 * world.size]
    with pytest.raises(SettingsError, match="This TwoLevel is closed"):
        levels.allreduce([1, 2])
    with TwoLevel(world, host=str(world.rank), timeout=TIMEOUT) as levels:
        assert len(levels.hosts) == world.size and not levels.uses_two_levels


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (lambda levels: levels.allreduce(np.ones(4)), r"allreduce\(op='sum', array of float64 \(4,\)\)"),
        (lambda levels: levels.allreduce(np.ones(3, "f4")), "array of float32"),
        (lambda levels: levels.allreduce(np.ones(3), "max"), "op='max'"),
        (lambda levels: levels.allgather(np.ones(3)), "allgather"),
        (lambda levels: levels.allreduce(["a"]), "array must be an array of whole numbers"),
        (lambda levels: levels.allreduce(np.ones(3), "xor"), "op must be one of"),
        (lambda levels: levels.broadcast(np.ones(3), 99), "source must be a rank below"),
        (lambda levels: levels.broadcast(np.ones(3), None), "source must be a whole number"),
        (lambda levels: levels.reduce_scatter(3.0), "array must have a dimension"),
    ],
)
def test_other_operations_or_arrays_on_one_rank_are_refused_on_all(world, several_ranks, bad, said):
    with TwoLevel(world, timeout=TIMEOUT) as levels:
        good = rf"^rank 0: allreduce\(op='sum', array of float64 \(3,\)\); rank {world.size - 1}: "
        with pytest.raises(SettingsError, match=good + ".*" + said):
            bad(levels) if world.rank == world.size - 1 else levels.allreduce(np.ones(3))
        assert levels.allreduce(np.ones(3)).tolist() == [world.size] * 3


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("method", ["mpi", "two_level"])
@pytest.mark.parametrize("operation", ["allreduce", "broadcast", "reduce_scatter", "allgather"])
def test_more_numbers_than_mpi_counts_are_refused_on_all_and_nobody_is_taken_for_dead(
    world, operation, method, check
):
    ranks = world.size if operation == "allgather" else 1
    most = (2**31 - 1) // ranks
    with TwoLevel(world, method=method, host=str(world.rank % 2), check=check, timeout=TIMEOUT) as levels:
        with pytest.raises(
            SettingsError, match=f"^array .* at most {most:,} .*got {most + 1:,}.*{operation} for"
        ):
            getattr(levels, operation)(np.broadcast_to(np.int8(1), most + 1))  # which takes no memory
        assert levels.allreduce([1]).tolist() == [world.size]


def test_as_many_numbers_as_mpi_counts_are_taken(world, monkeypatch):
    monkeypatch.setattr(two_level, "_MOST_NUMBERS", 2 * world.size)
    with TwoLevel(world, timeout=TIMEOUT) as levels:
        for operation, most in (("allreduce", 2 * world.size), ("allgather", 2)):
            do = getattr(levels, operation)
            assert do(np.ones(most)).sum() == 2 * world.size ** (2 if operation == "allreduce" else 1)
            with pytest.raises(SettingsError, match=f"at most {most} numbers, got {most + 1}"):
                do(np.ones(most + 1))


def test_names_of_some_hosts_only_are_refused_on_all(world, several_ranks):
    with pytest.raises(SettingsError, match="host must be given on all ranks or on none; .* on rank 0"):
        TwoLevel(world, host="a" if world.rank else None, timeout=TIMEOUT)


@pytest.mark.parametrize(
    ("other", "said"), [({"method": "mpi"}, "method='mpi', check=True"), ({"check": False}, "check=False")]
)
def test_another_way_or_check_on_one_rank_is_refused_on_all(world, several_ranks, other, said):
    last = world.size - 1
    with pytest.raises(SettingsError, match=f"^rank 0: method='auto', check=True; rank {last}: .*{said}"):
        TwoLevel(world, timeout=TIMEOUT, **(other if world.rank == last else {}))


def test_the_same_source_as_another_type_is_the_same(world):
    with TwoLevel(world, timeout=TIMEOUT) as levels:
        found = levels.broadcast([world.rank], 0 if world.rank else np.int64(0))
        assert found.tolist() == [0]


@pytest.mark.parametrize("method", ["mpi", "two_level"])
@pytest.mark.parametrize("operation", ["allreduce", "broadcast", "reduce_scatter", "allgather"])
def test_nobody_waits_for_ever_for_a_rank_that_comes_late_nor_does_that_rank(
    world, several_ranks, operation, method
):
    late = 1
    levels = TwoLevel(world, method=method, timeout=TIMEOUT)
    levels._seconds = 0.3

    def give_up():
        with pytest.raises(RankTimeoutError, match=r"^Waited 0\.3 s for all ranks to do their part in a Two"):
            getattr(levels, operation)(np.ones(world.size))
        with pytest.raises(SettingsError, match="This TwoLevel is closed"):
            levels.allreduce(np.ones(3))

    if world.rank != late:
        give_up()
    wait_for_all(world)
    if world.rank == late:
        give_up()
    wait_for_all(world)


@pytest.mark.parametrize("method", ["auto", "two_level"])
def test_what_differs_far_behind_in_what_ranks_are_about_to_do_is_named(world, several_ranks, method):
    with TwoLevel(world, method=method, timeout=TIMEOUT) as levels:
        with pytest.raises(SettingsError, match=r"^rank 0: \.\.\.x+0'; rank 1: \.\.\.x+1'[;.]"):
            levels.allreduce(np.ones(3), "x" * 1000 + str(world.rank))
        assert levels.allreduce(np.ones(1)) == world.size


@pytest.mark.parametrize("kind", ["int8", "int16"])
def test_the_largest_of_all_numbers_stays_one(world, kind):
    most = np.finfo(float).max
    with CompressedAllreduce(world, kind, timeout=TIMEOUT) as reduce:
        told = reduce(np.full(3, most if world.rank == 0 else 0.0))
        assert np.isfinite(told).all() and np.allclose(told / most, 1.0)
        assert np.isfinite(reduce(np.zeros(3))).all()
