"""The algebra of affine maps: composition, delay, merging, precision, rounds and compression."""

import math
from fractions import Fraction

import numpy as np
import pytest
from made_learners import learn_transitions
from round_parts import merge_maps
from slow_server import limited

from dist_classicrl.compression import Carry
from dist_classicrl.tables import kernels
from dist_classicrl.tables.local import LocalTable
from dist_classicrl.tables.maps import PackedMap, Refresh, index_dtype
from dist_classicrl.tables.round_merge import RoundMerge
from dist_classicrl.tables.shared import SharedTable

SIZE = 24


def learn(table, entries, targets, alpha):
    """Learn `targets` at `entries` in order: transitions that terminate, so the target is the reward."""
    n = len(entries)
    learn_transitions(table, entries, targets, np.zeros(n), np.ones(n), alpha)


def local_table(values=None, dtype="f8", states=6, actions=4):
    table = LocalTable(states, actions, np.dtype(dtype))
    table.load(np.zeros(states * actions) if values is None else values, np.zeros(states * actions, np.int64))
    return table


def packed(entries, weight, shift, visits, replays=None, known=None):
    return PackedMap(
        np.array(entries, np.int32),
        np.array(weight, float),
        np.array(shift, float),
        np.array(visits, np.uint32),
        np.array([0] * len(entries) if known is None else known, np.uint32),
        None if replays is None else np.array(replays, np.uint32),
    )


def compose(second, first):
    return kernels.compose(*second, *first)


def test_composition_is_applying_one_after_the_other_and_associative():
    rng = np.random.default_rng(1)
    for _ in range(300):
        a, b, c = ((1.0 - alpha, alpha * rng.normal()) for alpha in rng.random(3))
        q = rng.normal()
        assert compose(b, a)[0] * q + compose(b, a)[1] == pytest.approx(
            b[0] * (a[0] * q + a[1]) + b[1], abs=1e-14
        )
        assert compose(c, compose(b, a)) == pytest.approx(compose(compose(c, b), a), abs=1e-14)
    # Exact in numbers that doubles hold exactly.
    assert compose((0.5, 3.0), (0.25, 8.0)) == (0.125, 7.0)
    # Maps of different workers do not commute: order matters, and is kept.
    assert compose((0.25, 8.0), (0.5, 3.0)) == (0.125, 8.75)


@pytest.mark.slow
def test_one_composed_map_equals_the_updates_one_by_one():
    rng = np.random.default_rng(2)
    start = rng.normal(size=SIZE)
    table = local_table(start)
    exact = [Fraction(value) for value in start]
    for alpha in (0.1, 0.5, 1.0, 0.03):
        entries, targets = rng.integers(SIZE, size=40), rng.normal(size=40)
        learn(table, entries, targets, alpha)
        for entry, target in zip(entries.tolist(), targets.tolist(), strict=True):
            exact[entry] += Fraction(alpha) * (Fraction(target) - exact[entry])
    shared = SharedTable(start.copy(), np.zeros(SIZE, np.int64))
    shared.apply(1, 1, table.pack())
    assert shared.values == pytest.approx(np.array(exact, float), abs=1e-14)
    assert table.q == pytest.approx(np.array(exact, float), abs=1e-14)
    assert shared.counts.sum() == 160


@pytest.mark.slow
def test_a_push_that_waits_or_merges_with_the_next_gives_the_same_table():
    rng = np.random.default_rng(3)
    start = rng.normal(size=SIZE)
    often, once = local_table(start), local_table(start)
    tables = [SharedTable(start.copy(), np.zeros(SIZE, np.int64)) for _ in range(3)]
    held = []
    for number in range(1, 9):
        entries, targets = rng.integers(SIZE, size=20), rng.normal(size=20)
        learn(often, entries, targets, 0.2)
        learn(once, entries, targets, 0.2)
        push = often.pack()
        tables[0].apply(1, number, push)
        held.append(push)
    for number, push in enumerate(held, 1):
        tables[1].apply(1, number, push)
    tables[2].apply(1, 1, once.pack())
    assert tables[1].values.tolist() == tables[0].values.tolist()
    assert tables[2].values == pytest.approx(tables[0].values, abs=1e-14)
    for table in tables:
        assert table.counts.tolist() == tables[0].counts.tolist()
        assert table.values == pytest.approx(once.q, abs=1e-14)


@pytest.mark.slow
def test_two_workers_pushes_are_a_convex_combination_and_never_overshoot():
    # 64 workers that each went all the way from 0 to 1 leave 1; sums of differences would leave 64.
    shared = SharedTable(np.zeros(SIZE), np.zeros(SIZE, np.int64))
    for worker in range(64):
        table = local_table()
        learn(table, [5] * 200, [1.0] * 200, 0.1)
        shared.apply(worker, 1, table.pack())
        assert 0.0 < shared.values[5] <= 1.0
    # The first leaves 0.9^200, and each later one, which met all before it, its share of exp(-4).
    left = 0.9**200 * np.exp(-4.0 * sum(1.0 / n for n in range(2, 65)))
    assert 1.0 - shared.values[5] == pytest.approx(left, rel=1e-6)


# What a map may move where others worked in the meantime


def after(value, weight, shift, own, others, dtype="f8", replays=None, known=11):
    """Return an entry's value after a map of `own` visits that `others` came before, by the server."""
    shared = SharedTable(np.array([7.0, value, 7.0], dtype), np.array([3, known + others, 3]))
    shared.apply(1, 1, packed([1], [weight], [shift], [own], replays, [known % 2**32]))
    assert shared.values[[0, 2]].tolist() == [7.0, 7.0]
    assert shared.counts.tolist() == [3, known + others + own, 3]
    return shared.values[1]


def test_a_weight_is_raised_exactly_where_it_is_below_its_share():
    for own, others in ((1, 1), (5, 5), (8, 24), (1, 100_000), (100_000, 1), (0, 7)):
        least = math.exp(-4.0 * max(own, 1) / (max(own, 1) + others))
        for weight in (0.0, 0.5 * least, least * (1 - 1e-9), least * (1 + 1e-9), 0.5 * (1 + least), 1.0):
            kept = max(weight, least)
            shift = 3.0 * (1.0 - weight)  # to 3
            expected = kept * 2.0 + 3.0 * (1.0 - kept)
            assert after(2.0, weight, shift, own, others) == pytest.approx(expected, rel=1e-14), (own, weight)


def test_a_map_takes_at_most_its_share_of_what_others_may_move_too():
    # By hand: 5 of 10 visits, so exp(-2) stays of 2, on the way to 10 = 9 / (1 - 0.1).
    assert after(2.0, 0.1, 9.0, 5, 5) == pytest.approx(10.0 - 8.0 * np.exp(-2.0), rel=1e-14)
    rng = np.random.default_rng(10)
    held_back = 0
    for _ in range(500):
        own, others = (int(rng.choice([1, 3, 40, 10_000])) for _ in range(2))
        alpha, target, value = rng.choice([1e-4, 0.02, 0.3, 1.0]), rng.normal(), rng.normal()
        weight = (1.0 - alpha) ** own
        made = after(value, weight, (1.0 - weight) * target, own, others)
        assert made == pytest.approx(limited(value, weight, (1.0 - weight) * target, own, others), abs=1e-13)
        full = weight * value + (1.0 - weight) * target
        # Never further than the map itself goes, nor another way; and never less than its share.
        moved = (made - value) / (target - value)
        share = 1.0 - np.exp(-4.0 * own / (own + others))
        assert moved == pytest.approx(min(1.0 - weight, share), abs=1e-9)
        held_back += abs(made - full) > 1e-9
    assert 100 < held_back < 400


def test_without_others_a_map_is_applied_exactly():
    rng = np.random.default_rng(11)
    for weight in (0.0, 1e-300, 1e-9, 0.01, 0.5, 1.0):
        value, shift = rng.normal(size=2)
        for own in (1, 2**32 - 1):
            assert after(value, weight, shift, own, 0) == weight * value + shift
        assert after(value, weight, shift, 0, 0, replays=[9]) == weight * value + shift
    # So it is among others where its weight is above what its share leaves, here exp(-3.6).
    assert after(8.0, 0.5, 3.0, 9, 1) == 0.5 * 8.0 + 3.0


def test_a_map_that_forgets_everything_leaves_others_their_part():
    assert after(3.0, 0.0, -5.0, 1, 0) == -5.0
    assert after(3.0, 0.0, -5.0, 4, 4) == pytest.approx(-5.0 + 8.0 * np.exp(-2.0), rel=1e-14)
    # What was only replayed counts as one visit; otherwise the share is that of real visits.
    assert after(3.0, 0.0, -5.0, 0, 1, replays=[9]) == pytest.approx(-5.0 + 8.0 * np.exp(-2.0), rel=1e-14)
    assert after(3.0, 0.0, -5.0, 4, 4, replays=[1000]) == after(3.0, 0.0, -5.0, 4, 4)


def is_neighbour(single, exact):
    """Whether no float32 is between them: `single` is one of two that `exact` may be rounded to."""
    return abs(float(single) - exact) < np.spacing(np.abs(np.float32(exact)))


def test_the_share_of_a_float32_table_is_rounded_once():
    rng = np.random.default_rng(12)
    for _ in range(50):
        value, shift, weight = np.float32(rng.normal()), rng.normal(), 1e-3 * rng.random()
        made = after(value, weight, shift, 3, 8, "f4")
        assert made.dtype == np.float32
        assert is_neighbour(made, limited(float(value), weight, shift, 3, 8))
    # The other workers' visits are what the server counts more, whatever 2**32 does to the numbers.
    for known in (0, 2**32 - 1, 2**32, 5 * 2**32 - 2):
        assert after(2.0, 0.1, 9.0, 5, 5, known=known) == pytest.approx(10.0 - 8.0 * np.exp(-2.0), rel=1e-14)


def test_workers_who_forget_everything_leave_an_average():
    # Targets 1 and 2 in turn, both with weight 0: without shares the last one alone would be left.
    shared = SharedTable(np.zeros(1), np.zeros(1, np.int64))
    for worker in range(40):
        shared.apply(worker, 1, packed([0], [0.0], [1.0 + worker % 2], [10]))
    expected = 0.0
    for worker in range(40):
        expected = limited(expected, 0.0, 1.0 + worker % 2, 10, 10 * worker)
    assert shared.values[0] == pytest.approx(expected, rel=1e-13)
    assert 1.4 < shared.values[0] < 1.6


@pytest.mark.slow
def test_a_map_tells_the_visits_that_its_sender_knows_of():
    table = LocalTable(6, 4, np.dtype("f8"), with_replays=True)
    table.load(np.zeros(SIZE), np.arange(SIZE) + 2**32)
    for known in (5, 7):
        learn(table, [5, 5], [1.0, 1.0], 0.5)
        table.updates[5] += 9 << 32  # and nine replayed updates, which are no visits
        push = table.pack()
        assert [part.tolist() for part in push.parts] == [[5], [0.25], [0.75], [2], [known], [9]]
    # A base that has the first push and 100 visits of others.
    table.rebase(Refresh(0, 1, np.array([5], np.int32), np.zeros(1), np.array([107])), [push])
    learn(table, [5], [1.0], 0.5)
    assert table.pack().known.tolist() == [109]


def test_visits_of_others_that_a_refresh_tells_while_a_map_is_under_way_limit_it():
    """A worker is held up in its first visits, hears of a million by others, and only then pushes."""
    table = LocalTable(6, 4, np.dtype("f8"))
    table.load(np.zeros(SIZE), np.zeros(SIZE, np.int64))
    learn(table, [5, 5], [1.0, 1.0], 0.5)
    first = table.pack()
    learn(table, [5] * 50 + [3], [1.0] * 51, 0.5)
    shared = SharedTable(np.full(SIZE, 0.2), np.zeros(SIZE, np.int64))
    shared.counts[5] = 999_900
    entries = np.array([3, 5], np.int32)
    table.rebase(Refresh(0, 1, entries, shared.values[entries], shared.counts[entries]), [first])
    start = 0.25 * 0.2 + 0.75  # what the first push, which the refresh has not, makes of the server's value
    moved = 1.0 - np.exp(-4.0 * 50 / (50 + 999_900))
    late = table.pack()
    assert dict(zip(late.entries.tolist(), late.known.tolist(), strict=True)) == {5: 999_902, 3: 0}
    assert table.q[5] == pytest.approx(start + (1.0 - start) * moved, rel=1e-12)
    shared.apply(1, 1, first)
    start = float(shared.values[5])
    shared.apply(1, 2, late)
    assert shared.values[5] == pytest.approx(start + (1.0 - start) * moved, rel=1e-12)
    assert shared.values[3] == 0.6  # nobody else was there


# Precision


@pytest.mark.slow
def test_maps_are_float64_whatever_the_table_is():
    # A millionth of the way from 49 to 50 is less than half of float32's spacing there: float32 stands still.
    table = local_table(np.full(SIZE, 49.0, np.float32), "f4")
    for _ in range(20):
        learn(table, [3] * 5000, [50.0] * 5000, 1e-6)
    single = np.float32(49.0)
    for _ in range(1000):
        single = np.float32(single + np.float32(1e-6) * (np.float32(50.0) - single))
    assert single == np.float32(49.0)
    expected = 50.0 - (1.0 - 1e-6) ** 100_000
    assert table.q[3] == pytest.approx(expected, abs=1e-9)
    shared = SharedTable(np.full(SIZE, 49.0, np.float32), np.zeros(SIZE, np.int64))
    shared.apply(1, 1, table.pack())
    assert shared.values.dtype == np.float32
    assert is_neighbour(shared.values[3], expected)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["pushes", "rounds"])
def test_small_changes_of_a_float32_table_are_not_lost(way):
    """Each of the first is less than half of the distance between two values there."""
    start, alpha, n = 600.0 + 3.0 * np.arange(128), 1e-4, 2_000
    shared = SharedTable(start.astype(np.float32), np.zeros(128, np.int64))
    merge = RoundMerge(shared)
    assert alpha * 0.2 < np.spacing(np.float32(600.0)) / 2.0
    for number in range(n):
        weight, shift = np.full(128, 1.0 - alpha), alpha * (start + 0.2)
        maps = packed(range(128), weight, shift, np.ones(128), known=[number] * 128)
        if way == "pushes":
            shared.apply(1, number + 1, maps)
        else:
            merge_maps(merge, [maps])
    moved = shared.values - start
    assert moved.mean() == pytest.approx(0.2 * (1.0 - (1.0 - alpha) ** n), abs=5e-4)
    assert (np.abs(moved - moved.mean()) < 0.01).all() and moved.std() > 1e-4  # drawn for each by itself


def test_equal_entries_of_a_float32_table_stay_equal():
    shared = SharedTable(np.full(SIZE, 0.1, np.float32), np.zeros(SIZE, np.int64))
    weight, shift = np.full(SIZE, 0.7), np.full(SIZE, 0.3)
    for push in range(1, 20):
        shared.apply(1, push, packed(range(SIZE), weight, shift, np.ones(SIZE), known=[push - 1] * SIZE))
        assert len(set(shared.values.tolist())) == 1


def test_applying_rounds_a_float32_table_once():
    rng = np.random.default_rng(4)
    start = rng.normal(size=SIZE).astype(np.float32)
    weight, shift = rng.random(SIZE), rng.normal(size=SIZE)
    shared = SharedTable(start.copy(), np.zeros(SIZE, np.int64))
    shared.apply(1, 1, packed(range(SIZE), weight, shift, np.ones(SIZE)))
    exact = (weight * start.astype(np.float64) + shift).tolist()
    assert all(map(is_neighbour, shared.values, exact))
    assert 0 < (shared.values != np.array(exact, np.float32)).sum() < SIZE // 2  # the nearer one mostly


# Rounds


def round_merge(start, maps, dtype="f8"):
    shared = SharedTable(np.array(start, dtype), np.zeros(len(start), np.int64))
    merge_maps(RoundMerge(shared), maps)
    return shared


@pytest.mark.slow
def test_a_round_is_the_order_free_form():
    rng = np.random.default_rng(5)
    start = rng.normal(size=SIZE)
    for with_replays in (False, True):
        maps = []
        for _ in range(5):
            entries = rng.choice(SIZE, 12, replace=False)
            visits = rng.integers(0 if with_replays else 1, 9, 12)
            maps.append(
                packed(
                    entries, rng.random(12), rng.normal(size=12), visits,
                    rng.integers(1, 9, 12) if with_replays else None,
                )
            )  # fmt: skip
        shared = round_merge(start, maps)
        for entry in range(SIZE):
            weight, targets, total, visits = Fraction(1), Fraction(0), Fraction(0), 0
            for one in maps:
                for i in np.flatnonzero(one.entries == entry):
                    w, b, k = Fraction(one.weight[i]), Fraction(one.shift[i]), int(one.visits[i])
                    visits += k
                    k += 0 if one.replays is None else int(one.replays[i])
                    weight *= w
                    targets += k * b / (1 - w)
                    total += k
            value = Fraction(start[entry])
            if total:
                value = weight * value + (1 - weight) * targets / total
            assert shared.values[entry] == pytest.approx(float(value), abs=1e-13)
            assert shared.counts[entry] == visits


def test_a_round_of_one_worker_is_its_own_map():
    rng = np.random.default_rng(6)
    start, weight, shift = rng.normal(size=SIZE), rng.random(SIZE), rng.normal(size=SIZE)
    shared = round_merge(start, [packed(range(SIZE), weight, shift, np.full(SIZE, 3))])
    assert shared.values == pytest.approx(weight * start + shift, abs=1e-13)


def test_weights_of_exactly_zero_and_one():
    start = [10.0] * 4
    zero, one = (
        packed([0, 1, 2], [0.0] * 3, [4.0] * 3, [1] * 3),
        packed([1, 2, 3], [1.0] * 3, [0.0] * 3, [2] * 3),
    )
    half = packed([2], [0.5], [3.0], [3])
    shared = round_merge(start, [zero, one, half])
    # Entry 2: W = 0, targets 4 once and 6 three times. Entry 3: nothing moved it.
    assert shared.values.tolist() == [4.0, 4.0, (4.0 + 3 * 6.0) / 4, 10.0]
    assert shared.counts.tolist() == [1, 3, 6, 2]


@pytest.mark.parametrize("dtype", ["f8", "f4"])
def test_what_is_only_added_is_added_up(dtype):
    # Numbers that workers add to have maps of weight 1, with no target to go to.
    first = packed([0, 2], [1.0, 1.0], [3.0, -0.5], [2, 1])
    second = packed([0, 1], [1.0, 0.5], [4.0, 1.0], [5, 1])
    merged, shared = (
        round_merge([10.0] * 4, [first, second], dtype),
        SharedTable(np.full(4, 10.0, dtype), np.zeros(4, np.int64)),
    )
    for worker, maps in enumerate((first, second)):
        shared.apply(worker, 1, maps)
    for table in (merged, shared):
        assert table.values.tolist() == [17.0, 6.0, 9.5, 10.0] and table.values.dtype == dtype
        assert table.counts.tolist() == [7, 1, 1, 0]


def test_a_round_starts_from_nothing_of_the_one_before():
    maps = [packed([1, 2], [0.5, 0.25], [1.0, 2.0], [1, 2]), packed([2], [0.5], [1.0], [1])]
    shared = SharedTable(np.zeros(4), np.zeros(4, np.int64))
    merge = RoundMerge(shared)
    merge_maps(merge, maps)
    merge_maps(merge, maps[1:])
    twice = SharedTable(np.zeros(4), np.zeros(4, np.int64))
    merge_maps(RoundMerge(twice), maps)
    merge_maps(RoundMerge(twice), maps[1:])
    assert shared.values.tolist() == twice.values.tolist() and shared.counts.tolist() == twice.counts.tolist()
    assert shared.version == 2 and shared.refresh(1).entries.tolist() == [2]


def test_where_maps_were_made_does_not_matter_to_a_round():
    # The same maps, in any order of arrival and merged by id, give the same bits; so do entries in any order.
    rng = np.random.default_rng(7)
    start = rng.normal(size=SIZE)
    maps = {}
    for worker in range(6):
        entries = rng.choice(SIZE, 15, replace=False)
        maps[worker] = [entries, rng.random(15), rng.normal(size=15), rng.integers(1, 9, 15)]
    expected = None
    for _ in range(20):
        arrived = {}
        for worker in rng.permutation(6).tolist():
            order = rng.permutation(15)
            arrived[worker] = packed(*(column[order] for column in maps[worker]))
        values = round_merge(start, [arrived[worker] for worker in sorted(arrived)]).values.tobytes()
        assert expected in (None, values)
        expected = values


# Compression


def test_small_maps_stay_and_compose_and_a_flush_sends_all():
    rng = np.random.default_rng(8)
    start = rng.normal(size=SIZE)
    table, plain = local_table(start), local_table(start)
    shared = SharedTable(start.copy(), np.zeros(SIZE, np.int64))
    sent = updates = kept_once = 0
    for number in range(1, 60):
        entries, targets = rng.integers(SIZE, size=10), rng.normal(size=10)
        updates += 10
        learn(table, entries, targets, 0.01)
        learn(plain, entries, targets, 0.01)
        last = number == 59
        before = int(table.n_touched[0])
        push = table.pack(Carry(0.05), flush=last, key=np.uint64(number * 1_000_003))
        kept_once += before - push.size
        sent += push.size
        kept = table.touched[: table.n_touched[0]]
        moved = table.weight[kept] * table.base[kept] + table.shift[kept] - table.base[kept]
        assert (np.abs(moved) < 0.05).all()
        assert not np.intersect1d(kept, push.entries).size
        assert (table.updates[kept] > 0).all()
        assert (table.weight[push.entries] == 1.0).all() and not table.updates[push.entries].any()
        shared.apply(1, number, push)
    assert kept_once > 300 and table.n_touched[0] == 0
    # No update was lost or doubled: nothing but rounding differs from learning without pushes.
    assert shared.values == pytest.approx(plain.q, abs=1e-13)
    assert shared.counts.sum() == updates
    assert table.visits.tolist() == shared.counts.tolist()


def test_an_eighth_of_the_small_maps_goes_all_the_same():
    table = local_table(None, "f8", 8000, 4)
    entries = np.arange(32_000)
    learn(table, entries, np.full(32_000, 0.5), 0.01)
    push = table.pack(Carry(0.1), flush=False, key=np.uint64(99))
    assert abs(push.size - 4000) < 5 * np.sqrt(32_000 * 7 / 64)
    assert push.size + table.n_touched[0] == 32_000
    # Another key sends others: what stayed behind does not stay for ever.
    again = table.pack(Carry(0.1), flush=False, key=np.uint64(100))
    assert abs(again.size - 3500) < 5 * np.sqrt(28_000 * 7 / 64)
    assert table.pack(Carry(0.1), flush=True).size == 32_000 - push.size - again.size


def composed(pushes):
    """Compose maps, entry by entry, in the order in which they were sent."""
    weight, shift, visits = np.ones(SIZE), np.zeros(SIZE), np.zeros(SIZE, np.int64)
    for push in pushes:
        at = push.entries
        weight[at], shift[at] = push.weight * weight[at], push.weight * shift[at] + push.shift
        visits[at] += push.visits
    return weight, shift, visits


@pytest.mark.parametrize("bits", [8, 16])
def test_rounded_maps_are_off_by_half_a_quantum_and_the_last_push_makes_them_exact(bits):
    rng = np.random.default_rng(21)
    table, plain = local_table(rng.normal(size=SIZE)), local_table()
    plain.load(table.base.copy(), np.zeros(SIZE, np.int64))
    sent, exact, worst = [], [], 0.0
    for number in range(60):
        entries, targets = rng.integers(SIZE, size=10), rng.normal(size=10) * 10.0 ** (-number / 10)
        for each in (table, plain):
            learn(each, entries, targets, 0.2)
        before = 0.0 if table.residual is None else np.abs(table.residual).max()
        sent.append(table.pack(Carry(bits=bits), flush=number == 59))
        exact.append(plain.pack())
        weight, shift, visits = composed(sent)
        weight_2, shift_2, visits_2 = composed(exact)
        assert weight.tolist() == weight_2.tolist() and visits.tolist() == visits_2.tolist()
        assert table.q.tolist() == plain.q.tolist()
        if number < 59:
            largest = max(np.abs(exact[-1].shift).max() + before, 1e-300)
            quantum = 2.0 * largest / (2 ** (bits - 1) - 1)
            assert np.abs(table.residual[sent[-1].entries]).max() <= quantum / 2
            assert shift + table.residual == pytest.approx(shift_2, abs=1e-14)
            worst = max(worst, np.abs(shift - shift_2).max())
    assert shift == pytest.approx(shift_2, abs=1e-14) and 1e-6 < worst < 0.05
    assert table.waiting == 0 and not table.residual.any()


def test_what_rounding_took_is_there_after_a_refresh():
    table = local_table()
    learn(table, [1, 2], [1.0, 0.123], 0.5)
    push = table.pack(Carry(bits=8), flush=False)
    assert push.shift.tolist() == [0.5, 0.0625] and table.residual[2] == pytest.approx(-0.001)
    values, counts = np.full(SIZE, 4.0), np.ones(SIZE, np.int64)
    learn(table, [2], [1.0], 0.5)
    table.rebase(Refresh(-1, 1, None, values, counts), [push])
    # The current map after the residual after what was pushed after the base.
    assert table.q[2] == pytest.approx(0.5 * (0.5 * 4.0 + 0.0625 - 0.001) + 0.5, abs=1e-15)
    assert table.waiting == 2
    last = table.pack(Carry(bits=8), flush=True)
    assert last.entries.tolist() == [2] and last.shift[0] == pytest.approx(0.4995, abs=1e-15)


def test_the_maps_that_move_most_go_and_those_that_wait_longest():
    table = local_table(None, "f8", 1000, 4)
    learn(table, np.arange(1000), np.arange(1000) / 1000, 0.5)
    sent = table.pack(Carry(share=0.1), flush=False, in_order=True)
    assert sent.entries.tolist() == [*range(25), *range(925, 1000)]
    assert table.n_touched[0] == table.waiting == 900
    learn(table, np.arange(1000, 1100), np.full(100, 0.01), 0.5)
    sent = table.pack(Carry(share=0.1), flush=False, in_order=True)
    assert sent.entries.tolist() == [*range(25, 50), *range(850, 925)]
    assert table.pack(Carry(share=0.1), flush=True).size == 900 and table.waiting == 0
    assert table.pack(Carry(share=0.1), flush=False).size == 0


def test_a_map_that_moves_a_value_enough_goes_at_once():
    for key in range(20):
        table = local_table()
        learn(table, [1, 2, 3], [1.1, 0.9, 1.1], 0.1)
        sent = table.pack(Carry(0.1), flush=False, key=np.uint64(key)).entries.tolist()
        assert {1, 3} <= set(sent)
        if 2 in sent:
            break
    assert key > 0  # the small one stays at least sometimes


# Odds and ends of tables


def test_an_entry_is_touched_by_updates_not_by_its_weight():
    table = local_table()
    learn(table, [7], [0.0], 1e-300)  # 1 - 1e-300 is 1
    push = table.pack()
    assert push.entries.tolist() == [7] and push.weight[0] == 1.0 and push.visits.tolist() == [1]


def test_map_load_is_the_mean_of_k_a():
    # 3 visits with step size 0.1 and 9 with 0.3: what the busier entry sees weighs more.
    def load(weights, visits):
        n = len(weights)
        return kernels.map_load(packed(range(n), weights, np.zeros(n), visits))

    expected = (3 * -3 * np.log(0.9) + 9 * -9 * np.log(0.7)) / 12
    assert load([0.9**3, 0.7**9], [3, 9]) == pytest.approx(expected, rel=1e-12)
    assert load([0.0], [4]) == 30.0
    assert load([], []) == 0.0
    # Of many maps it looks at some, here all alike.
    assert load(np.full(5000, 0.5), np.ones(5000)) == pytest.approx(np.log(2.0))


@pytest.mark.parametrize("dtype", ["f8", "f4"])
def test_mean_and_size_are_those_of_every_so_many_entries(dtype):
    rng = np.random.default_rng(13)
    for size in (1, 2, 9, 1000, 1001):
        table = (1e3 + rng.normal(size=size)).astype(dtype) * rng.choice([-1, 1], size).astype(dtype)
        for stride in (1, 2, 3, 10, 2000):
            looked_at = table[::stride].astype(np.float64)
            only = np.full_like(table, np.nan)
            only[::stride] = table[::stride]
            expected = looked_at.mean(), np.abs(looked_at).mean()
            assert kernels.mean_and_size(only, stride) == pytest.approx(expected, rel=1e-12, abs=1e-9)


def test_entries_travel_in_the_smallest_type_that_holds_them():
    assert index_dtype(2**31 - 1) == np.int32 and index_dtype(2**31) == np.int64
    assert local_table().pack().entries.dtype == np.int32


def test_loading_forgets_maps_that_were_not_pushed():
    table = local_table()
    learn(table, [1, 2], [1.0, 1.0], 0.5)
    table.load(np.full(SIZE, 2.0), np.full(SIZE, 3))
    assert table.q.tolist() == [2.0] * SIZE and table.visits.tolist() == [3] * SIZE
    assert table.pack().size == 0 and (table.best == 2.0).all() and (table.greedy == -1).all()


def test_stamps_may_wrap_around():
    table = local_table()
    values, counts = np.arange(SIZE, dtype=float), np.ones(SIZE, np.int64)
    table.rebase(Refresh(-1, 1, None, values, counts), [])
    table._stamps._now = np.iinfo(np.int32).max - 2
    pending = [packed([0, 1], [0.5, 0.5], [1.0, 1.0], [1, 1])]
    for _ in range(4):
        some = Refresh(0, 2, np.array([1], np.int32), np.array([8.0]), np.array([5]))
        table.rebase(some, pending)
        assert table.q[:3].tolist() == [0.0, 5.0, 2.0] and table.visits[:3].tolist() == [1, 6, 1]
