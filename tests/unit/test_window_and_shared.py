"""Thousands of random histories of the real tables, windows and messages against a slow model of them.

The model knows nothing of entries touched, stamps, logs or caches. Its state is the definition: the server's
table is the initial one after the maps of all pushes in the order applied, each held to its share where
other workers' pushes were applied since the sender's base; a worker's is its base, after it the maps pushed
and not included in the base, oldest first, and after them the updates since.
"""

import inspect

import numpy as np
import pytest
from made_learners import learn_transitions
from slow_server import limited, limited_map, order_free, staleness_weighted

from dist_classicrl.comm import envelope
from dist_classicrl.comm.envelope import Kind
from dist_classicrl.compression import Carry
from dist_classicrl.engines.server.window import PushWindow
from dist_classicrl.engines.sharded.rows import HostRows
from dist_classicrl.errors import DivergenceError, ProtocolError
from dist_classicrl.tables.composition import Composition
from dist_classicrl.tables.local import LocalTable
from dist_classicrl.tables.map_table import MapTable
from dist_classicrl.tables.maps import PackedMap, PackedSums, Refresh, rounded
from dist_classicrl.tables.merging import AFFINE, Merging
from dist_classicrl.tables.round_merge import Parts, RoundMerge
from dist_classicrl.tables.shape import TableShape
from dist_classicrl.tables.shared import SharedTable

STATES, ACTIONS = 5, 3
SIZE = STATES * ACTIONS
DISCOUNT = 0.9


class SlowWorker:
    """What a worker's table should be."""

    def __init__(self, values, counts):
        self.base, self.base_counts = values.copy(), counts.copy()
        self.version = 0
        self.pending = []  # (sequence, {entry: (weight, shift, visits)})
        self.current = {}

    def learn(self, entry, target, alpha):
        weight, shift, visits = self.current.get(entry, (1.0, 0.0, 0))
        self.current[entry] = ((1.0 - alpha) * weight, (1.0 - alpha) * shift + alpha * target, visits + 1)

    @property
    def table(self):
        values = self.base.astype(np.float64)
        for maps in [maps for _, maps in self.pending] + [self.current]:
            for entry, (weight, shift, _) in maps.items():
                values[entry] = weight * values[entry] + shift
        return values

    @property
    def visits(self):
        visits = self.base_counts.copy()
        for _, maps in self.pending:
            for entry, (_, _, count) in maps.items():
                visits[entry] += count
        return visits


class History:
    """A random history: a server, some workers, and messages that are late, doubled, lost or out of order."""

    def __init__(self, seed, dtype, merging=AFFINE):
        self.rng = rng = np.random.default_rng(seed)
        self.legal = None
        if rng.random() < 0.5:
            self.legal = rng.random((STATES, ACTIONS)) < 0.6
            self.legal[:, 0] = True
        values = rng.normal(size=SIZE).astype(dtype)
        # Visits are told modulo 2**32: some histories cross that.
        counts = rng.integers(0, 5, SIZE) + int(rng.choice([0, 2**32 - 5, 2**40 + 7]))
        self.exact = 1e-9 if dtype == "f8" else 1e-4
        self.shared = SharedTable(values.copy(), counts.copy())
        self.shared.merging = merging
        self.states = {0: (values.copy(), counts.copy())}  # the slow server: its state at each version
        self.version = 0
        self.log = {}  # by version: who pushed, and the visits of each entry
        self.held_back = self.met = 0
        self.made = np.zeros(SIZE, np.int64)
        self.first_counts = counts
        n = int(rng.integers(1, 4))
        self.tables = [LocalTable(STATES, ACTIONS, np.dtype(dtype), self.legal) for _ in range(n)]
        for table in self.tables:
            table.load(values, counts)
        self.windows = [PushWindow(table, int(rng.integers(1, 4)), 0) for table in self.tables]
        self.slow = [SlowWorker(values, counts) for _ in range(n)]
        self.applied = [0] * n
        self.received = [0] * n
        self.sent = [[] for _ in range(n)]  # to the server, in order: (message, maps, version of the base)
        self.delivered = [0] * n
        self.replies = [[] for _ in range(n)]  # to the worker: in any order

    # What can happen

    def learn(self, i):
        rng, table, slow = self.rng, self.tables[i], self.slow[i]
        n = int(rng.integers(1, 7))
        legal = np.flatnonzero(np.ones(SIZE, bool) if self.legal is None else self.legal.ravel())
        entries = rng.choice(legal, n)
        rewards, next_states = rng.normal(size=n), rng.integers(STATES, size=n)
        terminated = rng.random(n) < 0.3
        alpha = float(rng.choice([0.1, 0.5, 1.0, 1e-3]))
        learn_transitions(table, entries, rewards, next_states, terminated, alpha, DISCOUNT)
        values = slow.table
        if self.legal is not None:
            values[~self.legal.ravel()] = -np.inf
        for entry, reward, state, end in zip(entries.tolist(), rewards, next_states, terminated, strict=True):
            best = values[state * ACTIONS : (state + 1) * ACTIONS].max()
            target = reward if end else reward + DISCOUNT * best
            slow.learn(entry, target, alpha)
            values[entry] += alpha * (target - values[entry])
            self.made[entry] += 1

    def push(self, i, flush=False):
        rng, window, slow = self.rng, self.windows[i], self.slow[i]
        if not window.has_room:
            return
        before = slow.visits
        threshold = 0.0 if flush else float(rng.choice([0.0, 0.05, 10.0]))
        key = np.uint64(rng.integers(2**63))
        pushed = window.push(Carry(threshold), flush, key)
        sequence, packed = pushed.sequence, pushed.packed
        maps = {entry: slow.current.pop(entry) for entry in packed.entries.tolist()}
        if threshold == 0.0:
            assert not slow.current
        for entry, (weight, shift, _) in slow.current.items():
            moved = weight * float(slow.base[entry]) + shift - float(slow.base[entry])
            assert abs(moved) < threshold + self.exact
        for j, entry in enumerate(packed.entries.tolist()):
            assert packed.weight[j] == pytest.approx(maps[entry][0], abs=self.exact)
            assert packed.visits[j] == maps[entry][2]
            assert packed.known[j] == before[entry] % 2**32
        slow.pending.append((sequence, maps))
        message = envelope.encode(Kind.PUSH, np.array([sequence], np.int64), *packed.parts)
        self.sent[i].append((message, maps, slow.version))

    def deliver(self, i, again=False):
        """Let the server take worker i's next message, or one that it had before."""
        staleness = 0
        if again:
            if not self.delivered[i]:
                return
            message, _, _ = self.sent[i][self.rng.integers(self.delivered[i])]
            _, parts = envelope.decode(message.copy())
        elif self.delivered[i] < len(self.sent[i]):
            message, maps, base_version = self.sent[i][self.delivered[i]]
            _, parts = envelope.decode(message.copy())
            self.delivered[i] += 1
            values, counts = (array.copy() for array in self.states[self.version])
            packed = PackedMap.from_parts(parts[1:])
            known = dict(zip(packed.entries.tolist(), packed.known.tolist(), strict=True))
            assert known.keys() == maps.keys()
            staleness = sum(
                self.log[version][0] != i for version in range(base_version + 1, self.version + 1)
            )
            for entry, (weight, shift, visits) in maps.items():
                others = self.visits_of_others(i, entry, base_version)
                assert (int(self.shared.counts[entry]) - known[entry]) % 2**32 == others
                value = float(values[entry])
                values[entry] = self.merged(value, weight, shift, visits, others, staleness)
                counts[entry] += visits
                self.met += others > 0
                self.held_back += abs(values[entry] - (weight * value + shift)) > self.exact
            self.version += 1
            self.states[self.version] = values, counts
            self.log[self.version] = i, {entry: visits for entry, (_, _, visits) in maps.items()}
            self.applied[i] += 1
        else:
            return
        maps = PackedMap.from_parts(parts[1:])
        assert self.shared.apply(i, int(parts[0][0]), maps, staleness) is not again

    def merged(self, value, weight, shift, own, others, staleness):
        """Return `value` after a map that met others, as the table's merging says."""
        match self.shared.merging.name:
            case "affine":
                return limited(value, weight, shift, own, others)
            case "order_free":
                return order_free(value, weight, shift, own, others)
            case "staleness_weighted":
                return staleness_weighted(value, weight, shift, own, others, staleness)

    def visits_of_others(self, i, entry, base_version):
        """Return how often others than worker i visited `entry` in what was applied after `base_version`."""
        pushes = [self.log[version] for version in range(base_version + 1, self.version + 1)]
        return sum(visits.get(entry, 0) for sender, visits in pushes if sender != i)

    def answer(self, i, whole=False):
        """Let the server make a receipt for worker i, or a refresh from a version that the worker has had."""
        applied = self.applied[i]
        if self.rng.random() < 0.3 and not whole:
            self.replies[i].append((np.array([applied], np.int64),))
            return
        since = -1 if whole else int(self.rng.integers(-1, self.windows[i].version + 1))
        refresh = self.shared.refresh(since)
        assert refresh.version == self.version
        numbers = np.array([applied, refresh.since, refresh.version], np.int64)
        entries = () if refresh.entries is None else (refresh.entries,)
        assert refresh.entries is None or np.unique(refresh.entries).size == refresh.entries.size
        self.replies[i].append(
            (envelope.encode(Kind.REPLY, numbers, refresh.values, refresh.counts, *entries),)
        )

    def hear(self, i):
        """Let worker i take one of the replies on their way to it, or lose it."""
        if not self.replies[i]:
            return
        (reply,) = self.replies[i].pop(int(self.rng.integers(len(self.replies[i]))))
        if self.rng.random() < 0.1:
            return
        window, slow = self.windows[i], self.slow[i]
        if reply.dtype == np.int64:
            window.receipt(int(reply[0]))
            self.received[i] = max(self.received[i], int(reply[0]))
            return
        _, (numbers, values, counts, *entries) = envelope.decode(reply)
        included, since, version = numbers.tolist()
        refresh = Refresh(since, version, entries[0] if entries else None, values, counts)
        news = version > window.version
        assert window.refresh(refresh, included) is news
        self.received[i] = max(self.received[i], included)
        if news:
            before = slow.visits
            slow.base, slow.base_counts = (array.copy() for array in self.states[version])
            slow.version = version
            slow.pending = [(sequence, maps) for sequence, maps in slow.pending if sequence > included]
            for entry, (weight, shift, visits) in slow.current.items():
                others = int(slow.visits[entry] - before[entry])
                slow.current[entry] = *limited_map(weight, shift, visits, others), visits
                self.held_back += slow.current[entry][0] != weight

    # What must hold

    def check_server(self):
        values, counts = self.states[self.version]
        assert self.shared.version == self.version
        assert np.abs(self.shared.values - values).max() < self.exact
        assert self.shared.counts.tolist() == counts.tolist()

    def check_worker(self, i):
        table, slow, window = self.tables[i], self.slow[i], self.windows[i]
        if self.legal is None:
            assert np.abs(table.q - slow.table).max() < self.exact
        else:
            legal = self.legal.ravel()
            assert np.abs(table.q - slow.table)[legal].max() < self.exact
            assert (table.q[~legal] == -np.inf).all()
        assert table.visits.tolist() == slow.visits.tolist()
        rows = table.q.reshape(STATES, ACTIONS)
        top = rows.max(axis=1)
        assert table.best.tolist() == top.tolist()
        single = (rows == top[:, None]).sum(axis=1) == 1
        assert table.greedy.tolist() == np.where(single, rows.argmax(axis=1), -1).tolist()
        touched = sorted(table.touched[: table.n_touched[0]].tolist())
        assert touched == sorted(slow.current)
        for entry in touched:
            weight, shift, visits = slow.current[entry]
            assert abs(table.weight[entry] - weight) + abs(table.shift[entry] - shift) < self.exact
            assert table.updates[entry] == visits
        assert len(window.pending) == len(slow.pending)
        assert window.in_flight == window.last_sequence - self.received[i]
        assert window.in_flight <= window._size

    def run(self, events):
        actions = [
            self.learn,
            self.push,
            self.deliver,
            lambda i: self.deliver(i, again=True),
            self.answer,
            self.hear,
        ]
        for _ in range(events):
            kind = int(self.rng.choice(6, p=[0.25, 0.2, 0.2, 0.03, 0.14, 0.18]))
            i = int(self.rng.integers(len(self.tables)))
            actions[kind](i)
            if kind in (2, 3):
                self.check_server()
            else:
                self.check_worker(i)

    def finish(self):
        """Deliver and flush all, and compare the ends."""
        for i in range(len(self.tables)):
            while self.slow[i].current:
                for _ in range(len(self.sent[i]) - self.delivered[i]):
                    self.deliver(i)
                self.push(i, flush=True)
                self.deliver(i)
                self.answer(i, whole=True)
                self.hear(i)
            while self.delivered[i] < len(self.sent[i]):
                self.deliver(i)
        self.check_server()
        for i in range(len(self.tables)):
            while self.windows[i].version < self.version:
                self.answer(i, whole=bool(self.rng.integers(2)))
                self.hear(i)
            self.check_worker(i)
            legal = slice(None) if self.legal is None else self.legal.ravel()
            assert self.tables[i].q[legal].tolist() == self.shared.values.astype(np.float64)[legal].tolist()
            assert not self.windows[i].pending
        assert (self.shared.counts - self.first_counts).tolist() == self.made.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.parametrize("part", range(4))
def test_random_histories_neither_lose_nor_double_an_update(dtype, part):
    met = held_back = 0
    for seed in range(400):
        history = History((seed, part, dtype == "f8"), dtype)
        history.run(int(history.rng.integers(5, 60)))
        history.finish()
        met += history.met
        held_back += history.held_back
    assert met > held_back > 200  # the histories have what the rule is about


@pytest.mark.slow
@pytest.mark.parametrize("name", ["order_free", "staleness_weighted"])
def test_random_histories_merged_in_other_ways(name):
    met = held_back = 0
    for seed in range(40):
        history = History((seed, 9), "f8", Merging(name))
        history.run(int(history.rng.integers(20, 60)))
        history.finish()
        met += history.met
        held_back += history.held_back
    assert met > 50 and held_back > 50


def test_small_step_sizes_are_divided_by_staleness_and_those_of_1_count_in_full():
    """A step size of 3/4 that is one version behind is 1 - (1/4)^(1/2)."""
    sizes = np.array([1e-6, 0.75, 1.0])
    maps = maps_of([0, 1, 2], weights=1.0 - sizes, shifts=3.0 * sizes)
    found = Merging("staleness_weighted").weighted(maps, 1)
    expected = np.array([5e-7, 0.5, 1.0])
    np.testing.assert_allclose(1.0 - found.weight, expected, rtol=1e-6)
    np.testing.assert_allclose(found.shift, 3.0 * expected, rtol=1e-6)


def test_order_free_merging_does_not_ask_who_came_first():
    """Two who learned from the same base: the later one's target does not get what was left for both."""
    found = []
    for first, second in ((0.0, 1.0), (1.0, 0.0)):
        table = shared_table(1)
        table.merging = Merging("order_free")
        for sender, target in ((1, first), (2, second)):
            table.apply(sender, 1, maps_of([0], weights=[1e-6], shifts=[(1.0 - 1e-6) * target]))
        found.append(float(table.values[0]))
    assert found == pytest.approx([0.5, 0.5], abs=1e-5)


def test_what_is_refused_is_dropped_by_its_worker_too_and_what_comes_after_it_counts():
    table = shared_table()
    table.merging = Merging("reject_stale", 1)
    local = LocalTable(STATES, ACTIONS, np.dtype(float))
    window = PushWindow(local, 2, 0)
    for entry in (3, 4):
        learn_transitions(local, [entry], [1.0], [0], [True], 0.5)
        pushed = window.push()
        table.apply(1, pushed.sequence, pushed.packed, staleness=2 if entry == 3 else 1)
    assert table.applied == {1: 2} and table.version == 2  # its number counts: it does not come again
    assert table.values.tolist() == [0.5 if entry == 4 else 0.0 for entry in range(SIZE)]
    assert table.counts.sum() == 1
    assert local.q[3] == 0.5 and local.visits[3] == 1
    # The worker pushes of the same entry again before it hears of that.
    learn_transitions(local, [3], [1.0], [0], [True], 0.5)
    third = window.push()
    assert third.packed.known.tolist() == [1]
    table.apply(1, 3, third.packed)
    assert table.values[3] == 0.5 and table.counts[3] == 1
    assert window.refresh(table.refresh(0), 3)
    assert not window.kept
    assert local.q.tolist() == table.values.tolist() and local.visits.tolist() == table.counts.tolist()


# The same pieces, one at a time


def maps_of(entries, weights=None, shifts=None):
    n = len(entries)
    return PackedMap(
        np.array(entries, np.int32),
        np.full(n, 0.5) if weights is None else np.array(weights, float),
        np.full(n, 1.0) if shifts is None else np.array(shifts, float),
        np.ones(n, np.uint32),
        np.zeros(n, np.uint32),
        None,
    )


def shared_table(size=SIZE, dtype="f8"):
    return SharedTable(np.zeros(size, dtype), np.zeros(size, np.int64))


def test_a_push_is_applied_once_and_in_order():
    table = shared_table()
    assert table.apply(7, 1, maps_of([3]))
    assert not table.apply(7, 1, maps_of([3]))
    assert table.values[3] == 1.0 and table.counts[3] == 1 and table.version == 1
    with pytest.raises(ProtocolError, match="Push 3 of worker 7 came after push 1: one is missing"):
        table.apply(7, 3, maps_of([3]))
    assert table.apply(8, 1, maps_of([3]))
    assert table.values[3] == 1.5 and table.applied == {7: 1, 8: 1}  # 1/2 is above what it must leave


def test_a_refresh_is_sparse_or_whole_whichever_is_smaller():
    table = shared_table(1000)
    for number in range(1, 301):
        table.apply(1, number, maps_of([number % 10, number]))
    sparse = table.refresh(298)
    assert sorted(sparse.entries.tolist()) == [0, 9, 299, 300] and (sparse.since, sparse.version) == (
        298,
        300,
    )
    assert table.refresh(298) is sparse  # packed once for all who ask alike
    assert sorted(table.refresh(0).entries.tolist()) == list(range(301))
    assert table.refresh(300).entries.size == 0
    assert table.refresh(-1).entries is None
    # 16 bytes for each of 1,000 entries, or 20 for each that changed: whole from 800 on.
    table.apply(1, 301, maps_of(list(range(800))))
    assert table.refresh(300).entries.size == 800
    table.apply(1, 302, maps_of([801]))
    assert table.refresh(300).entries is None and table.refresh(300).values.size == 1000
    assert table.refresh(301).entries.tolist() == [801]


def test_a_refresh_does_not_change_when_the_table_does():
    for since in (-1, 0):
        table = shared_table(100)
        table.apply(1, 1, maps_of([4]))
        refresh = table.refresh(since)
        table.apply(1, 2, maps_of([4]))
        at = 4 if refresh.entries is None else 0
        assert refresh.values[at] == 1.0 and refresh.counts[at] == 1


def test_what_the_log_has_forgotten_is_refreshed_whole():
    table = shared_table(10)
    for number in range(1, 40):
        table.apply(1, number, maps_of([number % 3]))
    refreshes = [table.refresh(since) for since in range(40)]
    oldest = [refresh.entries is None for refresh in refreshes].index(False)
    assert 0 < oldest <= 36  # what is remembered is of all three entries
    for since, refresh in enumerate(refreshes):
        if since < oldest:
            assert refresh.entries is None and refresh.values.size == 10
        else:
            changed = {number % 3 for number in range(since + 1, 40)}
            assert sorted(refresh.entries.tolist()) == sorted(changed)


def test_the_log_keeps_entries_and_not_the_messages_they_came_in():
    table = shared_table(1000)
    packed = maps_of(list(range(100)))
    for number in range(1, 4):
        _, parts = envelope.decode(envelope.encode(Kind.PUSH, *packed.parts))
        table.apply(1, number, PackedMap.from_parts(parts))
    assert all(entries.base is None for _, entries in table._log)
    for number in range(4, 2000):
        table.apply(1, number, maps_of([]))
    assert len(table._log) == 3 and table.version == 1999
    assert table.refresh(3).entries.size == 0


@pytest.mark.parametrize("with_replays", [False, True])
@pytest.mark.parametrize("size", [0, 1, 7])
def test_maps_travel_in_messages(size, with_replays):
    rng = np.random.default_rng(size)
    packed = PackedMap.empty(size, np.dtype(np.int32), with_replays)
    for array in packed.parts:
        array[:] = rng.integers(0, 2**31, size)
    columns = [packed.entries, packed.weight, packed.shift, packed.visits, packed.known]
    columns += [packed.replays] if with_replays else []
    assert [id(part) for part in packed.parts] == [id(column) for column in columns]
    _, parts = envelope.decode(envelope.encode(Kind.PUSH, *packed.parts))
    arrived = PackedMap.from_parts(parts)
    assert (arrived.replays is not None) is with_replays and arrived.size == size
    for name in ("entries", "weight", "shift", "visits", "known", "replays"):
        old, new = getattr(packed, name), getattr(arrived, name)
        if old is not None:
            assert new.dtype == old.dtype and new.tolist() == old.tolist()


def test_the_window_bounds_pushes_in_flight_and_kept():
    table = LocalTable(STATES, ACTIONS, np.dtype("f8"))
    window = PushWindow(table, 2, 0)
    asked = []
    for _ in range(40):
        if window.has_room:
            asked.append(window.needs_refresh)
            window.push()
        else:
            window.receipt(window.last_sequence)
    # Receipts alone give no more room once four times two pushes are kept.
    assert window.last_sequence == 8 and len(window.pending) == 8
    # With two more in flight there are still pushes left that ask for the refresh.
    assert asked == [False] * 5 + [True] * 3
    assert window.refresh(Refresh(0, 9, np.zeros(0, np.int32), np.zeros(0), np.zeros(0, np.int64)), 8)
    assert window.has_room and not window.pending


def test_a_version_of_an_earlier_term_says_nothing_in_this_one():
    window = PushWindow(LocalTable(STATES, ACTIONS, np.dtype("f8")), 2, 5)
    pushed = window.push()
    assert (window.version_of_term, window.known_version(pushed.sequence + 1)) == (5, 6)
    window.enter(1)
    assert (window.version, window.version_of_term, window.known_version(pushed.sequence + 1)) == (5, -1, -1)


def test_what_breaks_the_protocol_is_an_error():
    table = LocalTable(STATES, ACTIONS, np.dtype("f8"))
    window = PushWindow(table, 2, 0)
    with pytest.raises(ProtocolError, match="receipt for push 1 came, but only 0 were sent"):
        window.receipt(1)
    late = Refresh(3, 4, np.zeros(0, np.int32), np.zeros(0), np.zeros(0, np.int64))
    with pytest.raises(ProtocolError, match="from version 3 to 4 came to a base of version 0"):
        window.refresh(late, 0)


@pytest.mark.slow
@pytest.mark.parametrize(("entries", "values"), [([0, SIZE], 2), ([-1, 0], 2), ([0, 1], 3)])
def test_what_is_of_another_table_is_refused_before_a_kernel_has_it(entries, values):
    entries, numbers, visits = np.array(entries, np.int32), np.full(values, 0.5), np.ones(values, np.uint32)
    maps = PackedMap(entries, numbers, numbers, visits, visits, None)
    sums = PackedSums(entries, numbers, numbers, numbers, visits.astype(np.int64))
    refresh = Refresh(0, 1, entries, numbers, visits.astype(np.int64))
    shared, table = shared_table(), LocalTable(STATES, ACTIONS, np.dtype("f8"))
    own = PackedMap.empty(0, np.dtype(np.int32), False)
    for takes in (
        lambda: shared.apply(1, 1, maps),
        lambda: shared.follow(refresh),
        lambda: table.rebase(refresh, []),
        lambda: table.preview(refresh, []),
        lambda: Composition(SIZE).of([own, maps]),
        lambda: RoundMerge(shared).merge([Parts.one(0, sums)]),
    ):
        with pytest.raises(ProtocolError, match="All ranks must"):
            takes()
    assert shared.version == 0 and not shared.values.any() and not shared.applied


def test_a_whole_table_of_another_size_is_refused():
    values, counts = np.ones(SIZE + 1), np.ones(SIZE + 1, np.int64)
    for takes in (
        shared_table().follow,
        lambda told: LocalTable(STATES, ACTIONS, np.dtype("f8")).rebase(told, []),
    ):
        with pytest.raises(ProtocolError, match=f"{SIZE + 1} entries came for one of {SIZE}"):
            takes(Refresh(-1, 1, None, values, counts))


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_what_is_rounded_stays_finite(dtype):
    numbers = np.finfo(dtype).max * np.array([1.0, -1.0, 0.3], dtype)
    found = rounded(numbers, 8)
    assert found.dtype == dtype
    assert np.abs(found / numbers - 1.0).max() <= 1 / 64


def test_undo_brings_back_the_base():
    rng = np.random.default_rng(1)
    history = History(3, "f8")
    history.learn(0)
    table = history.tables[0]
    table.load(rng.normal(size=SIZE), rng.integers(0, 9, SIZE))

    def held():
        learned = (table.q, table.best, table.greedy, table.weight, table.shift, table.updates, table.visits)
        return [array.tolist() for array in (*learned, table.base)]

    before = held()
    history.learn(0)
    packed = table.pack()
    assert packed.size
    table.undo(packed)
    assert table.n_touched[0] == 0
    assert held() == before


def test_what_cannot_be_packed_has_no_number():
    history = History(3, "f8")
    history.learn(0)
    table = history.tables[0]
    window = PushWindow(table, 2, 0)
    assert window.push().sequence == 1
    history.learn(0)
    table.q[table.touched[0]] = np.inf
    with pytest.raises(DivergenceError):
        window.push()
    assert (window.in_flight, len(window.kept), window.push().sequence) == (1, 1, 2)


def test_slow_worker_is_right_itself():
    # By hand: base 2; pushed Q -> Q/2 + 3; since then one update towards 8 with step size 1/4.
    slow = SlowWorker(np.array([2.0]), np.array([5]))
    slow.pending.append((1, {0: (0.5, 3.0, 2)}))
    slow.learn(0, 8.0, 0.25)
    assert slow.table.tolist() == [0.75 * 4.0 + 2.0] and slow.visits.tolist() == [7]


def test_a_worker_learns_on_previews_and_its_base_stays_as_it_was():
    rng = np.random.default_rng(30)
    shared = SharedTable(rng.normal(size=SIZE), np.zeros(SIZE, np.int64))
    told = shared.values.copy()
    tables = [LocalTable(STATES, ACTIONS, np.dtype("f8")) for _ in range(2)]
    for table in tables:
        table.load(shared.values, shared.counts)
    own, other = (PushWindow(table, 8, 0) for table in tables)
    base, base_counts = shared.values.copy(), shared.counts.copy()
    seen = 0
    for turn in range(40):
        for window, table in zip((own, other), tables, strict=True):
            entries, ends = rng.integers(SIZE, size=5), np.ones(5, bool)
            learn_transitions(table, entries, rng.normal(size=5), np.zeros(5, int), ends, 0.3, DISCOUNT)
            pushed = window.push()
            if window is other or turn % 3:  # else it is still on its way when the preview is made
                for each in window.kept if window is own else [pushed]:
                    if each.sequence > shared.applied.get(id(window), 0):
                        shared.apply(id(window), each.sequence, each.packed)
        included = shared.applied.get(id(own), 0)
        before = tables[0].q.copy()
        if turn % 8 < 7:
            refresh = shared.preview(own.version, told, Carry(share=0.5))
            own.refresh(refresh, included)
            seen += 1
        else:
            refresh = shared.refresh(own.version)
            own.refresh(refresh, included)
            base, base_counts = shared.values.copy(), shared.counts.copy()
            told = shared.values.copy()
        right, counts = shared.values.copy(), shared.counts.copy()
        for each in own.kept:
            if each.sequence > included:
                at = each.packed.entries
                right[at] = each.packed.weight * right[at] + each.packed.shift
                counts[at] += each.packed.visits
        entries = np.arange(SIZE) if refresh.entries is None else refresh.entries
        assert tables[0].q[entries] == pytest.approx(right[entries], abs=1e-14)
        assert tables[0].visits[entries].tolist() == counts[entries].tolist()
        rest = np.setdiff1d(np.arange(SIZE), entries)
        assert tables[0].q[rest].tolist() == before[rest].tolist()
        assert tables[0].base.tolist() == base.tolist()
        assert own.base_counts().tolist() == base_counts.tolist()
    assert seen == 35
    some = shared.preview(-1, told - 1.0, Carry(bits=8))
    assert np.abs(some.values - shared.values).max() <= np.abs(shared.values).max() / 127
    assert shared.preview(-1, shared.values.copy(), Carry(bits=8)) is None
    has, seen = shared.values - 1.0, shared.values - 1.0
    previews = []
    while len(previews) < 99 and (some := shared.preview(-1, has, Carry(share=0.5, bits=8))) is not None:
        seen[some.entries] = some.values
        assert seen.tolist() == has.tolist(), "it is told what the worker has, with what rounding took"
        previews.append(some)
    assert 1 < len(previews) < 99, "they go on until nothing is left to be told"
    assert np.abs(seen - shared.values).max() <= max(np.abs(each.values).max() for each in previews) / 127
    with pytest.raises(ProtocolError, match="A preview beyond version 1 came to a base of version"):
        own.refresh(Refresh(1, 999, np.zeros(1, np.int32), np.zeros(1), np.zeros(1, int), is_preview=True), 0)


@pytest.mark.parametrize("kind", [LocalTable, HostRows])
def test_every_kind_of_a_workers_table_takes_the_calls_that_windows_and_workers_make(kind):
    asked = {name: member for name, member in vars(MapTable).items() if not name.startswith("_")}
    assert {"pack", "rebase", "preview", "forget", "load", "base", "n_touched", "waiting"} <= set(asked)
    table = (
        kind(STATES, ACTIONS, np.dtype(float))
        if kind is LocalTable
        else kind(TableShape(STATES, ACTIONS), np.dtype(float))
    )
    for name, member in asked.items():
        if isinstance(member, property):
            assert hasattr(table, name), name
        else:
            given, wanted = (inspect.signature(each).parameters for each in (getattr(kind, name), member))
            assert [(each.name, each.default) for each in given.values()] == [
                (each.name, each.default) for each in wanted.values()
            ]
    packed = PushWindow(table, 1, 0).push(Carry(), True, 0, in_order=True).packed
    assert packed.size == 0 and packed.parts
