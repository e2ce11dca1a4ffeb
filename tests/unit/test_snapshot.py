"""A copy taken in slices while the table changes equals the table at the moment at which it ends."""

import numpy as np
import pytest
from round_parts import merge_maps

from dist_classicrl.tables import snapshot as module
from dist_classicrl.tables.maps import PackedMap, index_dtype
from dist_classicrl.tables.round_merge import RoundMerge
from dist_classicrl.tables.shared import SharedTable
from dist_classicrl.tables.snapshot import SLICE_ENTRIES, TableSnapshot


def new_table(size, dtype, rng):
    return SharedTable(rng.normal(size=size).astype(dtype), rng.integers(0, 9, size))


def random_maps(size, rng, replays=False):
    n = int(rng.integers(0, min(size, 30) + 1))
    entries = rng.choice(size, n, replace=False).astype(index_dtype(size))
    weight, shift = rng.random(n), rng.normal(size=n)
    visits, known = rng.integers(1, 5, n).astype(np.uint32), np.zeros(n, np.uint32)
    return PackedMap(entries, weight, shift, visits, known, np.ones(n, np.uint32) if replays else None)


def is_copy(snapshot, table):
    same = snapshot.values.tobytes() == table.values.tobytes()
    return same and snapshot.counts.tobytes() == table.counts.tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.parametrize("in_rounds", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_a_copy_is_the_table_at_its_end(monkeypatch, seed, in_rounds, dtype):
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 300))
    monkeypatch.setattr(module, "SLICE_ENTRIES", int(rng.integers(1, 60)))
    table = new_table(size, dtype, rng)
    merge = RoundMerge(table)
    snapshot = TableSnapshot(table.values, table.counts)
    table.watch(snapshot)
    sequence = done = again = 0
    finished = None
    while done < 5:
        what = rng.random()
        if what < 0.5:
            if in_rounds:
                merge_maps(merge, [random_maps(size, rng) for _ in range(3)])
            else:
                sequence += 1
                assert table.apply(1, sequence, random_maps(size, rng))
            if finished is not None:  # what is complete stays as it is
                assert (snapshot.values.tobytes(), snapshot.counts.tobytes()) == finished
        elif not snapshot.copying:
            snapshot.begin()
            assert snapshot.copying
            finished = None
        elif what < 0.52:
            snapshot.begin()  # from the beginning
            again += 1
        else:
            complete = snapshot.advance(0.0)
            assert complete is not snapshot.copying
            if complete:
                assert is_copy(snapshot, table)
                finished = snapshot.values.tobytes(), snapshot.counts.tobytes()
                done += 1
    assert snapshot.values.dtype == dtype and snapshot.counts.dtype == np.int64


def test_a_small_table_is_complete_at_once():
    table = new_table(SLICE_ENTRIES, "f8", np.random.default_rng(1))
    snapshot = TableSnapshot(table.values, table.counts)
    assert snapshot.values.size == 0 and not snapshot.copying
    snapshot.begin()
    assert snapshot.advance(0.0) and is_copy(snapshot, table)
    assert not np.shares_memory(snapshot.values, table.values)


def test_time_is_kept_to_slice_by_slice():
    rng = np.random.default_rng(2)
    table = new_table(3 * SLICE_ENTRIES + 1, "f8", rng)
    snapshot = TableSnapshot(table.values, table.counts)
    snapshot.begin()
    assert [snapshot.advance(0.0) for _ in range(4)] == [False, False, False, True]
    snapshot.begin()
    assert snapshot.advance(60.0) and is_copy(snapshot, table)  # no longer than it takes


def test_buffers_are_used_again_and_a_begun_copy_can_be_made_at_once():
    rng = np.random.default_rng(3)
    table = new_table(2 * SLICE_ENTRIES, "f4", rng)
    snapshot = TableSnapshot(table.values, table.counts)
    snapshot.copy_now()
    assert is_copy(snapshot, table) and not snapshot.copying
    values, counts = snapshot.values, snapshot.counts
    table.values += 1.0
    table.counts += 1
    snapshot.begin()
    assert not snapshot.advance(0.0) and not is_copy(snapshot, table)
    table.values[0] = 7.0  # not told of: only a whole new copy has it
    snapshot.copy_now()
    assert is_copy(snapshot, table) and not snapshot.copying
    assert snapshot.values is values and snapshot.counts is counts


def test_a_table_is_watched_until_it_is_told_otherwise():
    rng = np.random.default_rng(4)
    table = new_table(SLICE_ENTRIES + 5, "f8", rng)
    snapshot = TableSnapshot(table.values, table.counts)
    snapshot.begin()
    snapshot.advance(0.0)
    one = np.arange(1, dtype=np.int32)
    number = np.ones(1, np.uint32)

    def push(sequence):
        table.apply(1, sequence, PackedMap(one, np.ones(1), np.ones(1), number, number, None))

    before = snapshot.values[0]
    push(1)
    assert snapshot.values[0] == before
    table.watch(snapshot)
    push(2)
    assert snapshot.values[0] == table.values[0] == before + 1.0 + 1.0
    assert snapshot.counts[0] == table.counts[0]
    table.watch(None)
    push(3)
    assert table.values[0] == snapshot.values[0] + 1.0
