"""Who composes whose maps, and that a composed map does what its parts do one after the other."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dist_classicrl import DistAsyncQLearning
from dist_classicrl.engines.engine import engine_for
from dist_classicrl.engines.server import topology
from dist_classicrl.engines.server.tree import Tree, below, branches
from dist_classicrl.errors import ProtocolError, SettingsError
from dist_classicrl.settings import Settings
from dist_classicrl.tables.composition import Composition
from dist_classicrl.tables.maps import PackedMap
from dist_classicrl.tables.shared import SharedTable

ENTRIES, KNOWN = 6, 1000


def host_of(hosts):
    return lambda rank: hosts[rank]


@pytest.mark.parametrize(
    ("hosts", "parents"),
    [
        ("aaaa", {1: 0, 2: 0, 3: 0}),
        ("aabbbccc", {1: 0, 2: 0, 3: 2, 4: 2, 5: 0, 6: 5, 7: 5}),
        ("abcd", {1: 0, 2: 0, 3: 0}),
        ("abbcccc", {1: 0, 2: 0, 3: 0, 4: 3, 5: 3, 6: 3}),
        ("abababa", {1: 0, 2: 0, 3: 1, 4: 0, 5: 1, 6: 0}),
    ],
)
def test_each_host_with_three_ranks_has_one_that_composes_but_the_servers_own(hosts, parents):
    assert Tree.by_host(host_of(hosts)).parents(range(1, len(hosts)), 0) == parents


def test_groups_of_groups_have_servers_of_their_own():
    parents = Tree.of_groups(3, 27).parents(range(1, 27), 0)
    assert {rank for rank, parent in parents.items() if parent == 0} == {1, 2, 3, 6, 9, 18}
    assert below(parents, 9) == (10, 11, 12, 15)
    assert below(parents, 12) == (13, 14) and below(parents, 10) == ()
    found = branches(parents, 0, 7)
    assert found[13].head == 9 and found[13] is found[9] and len(found[13].ranks) == 9
    assert found[4].head == 3 and found[4].number == 7 and 1 not in found


@given(st.integers(3, 5), st.integers(2, 70), st.randoms())
@settings(max_examples=40, deadline=None)
def test_every_rank_that_is_there_reaches_the_server(size, ranks, random):
    server = random.randrange(ranks)
    there = [rank for rank in range(ranks) if rank != server and random.random() < 0.8]
    parents = Tree.of_groups(size, ranks).parents(there, server)
    assert sorted(parents) == there
    for rank in there:
        way = [rank]
        while way[-1] != server:
            way.append(parents[way[-1]])
            assert len(way) <= ranks


def packed(rng, known, with_replays, most_weight=1.0):
    size = rng.integers(1, ENTRIES + 1)
    entries = rng.permutation(ENTRIES)[:size].astype(np.int32)
    replays = rng.integers(0, 9, size).astype(np.uint32) if with_replays else None
    visits = rng.integers(1, 9, size).astype(np.uint32)
    known = (known[entries] % 2**32).astype(np.uint32)
    return PackedMap(
        entries, rng.uniform(0.3, most_weight, size), rng.normal(size=size), visits, known, replays
    )


@pytest.mark.slow
@pytest.mark.parametrize("with_replays", [False, True])
@pytest.mark.parametrize("counted", [0, 2**32 - 3])
def test_a_composed_map_does_what_its_parts_do_in_their_order(with_replays, counted):
    """Also where one of them would overwrite the others: what it may not do to these is done before."""
    rng = np.random.default_rng(5)
    composition = Composition(ENTRIES)
    for least in (0.3, 0.0):
        for _ in range(50):
            values, counts = rng.normal(size=ENTRIES), np.full(ENTRIES, counted)
            maps = [packed(rng, counts, with_replays) for _ in range(4)]
            for each in maps:
                each.weight[:] = np.maximum(each.weight - 0.3 + least, 1e-9)
            flat = SharedTable(values.copy(), counts.copy())
            for sender, each in enumerate(maps):
                assert flat.apply(sender, 1, each)
            tree = SharedTable(values.copy(), counts.copy())
            composed = composition.of(maps)
            tree.apply_composed([(sender, 1, 1) for sender in range(4)], composed)
            assert np.allclose(tree.values, flat.values, rtol=1e-12, atol=1e-12)
            assert (tree.counts == flat.counts).all() and tree.applied == flat.applied
            assert composed.entries.size == np.unique(np.concatenate([each.entries for each in maps])).size
            if with_replays:
                assert composed.replays.sum() == sum(each.replays.sum() for each in maps)


def test_what_others_did_counts_for_a_composed_map_as_for_its_parts():
    """Two who agree on what they know are one who visited twice as often."""
    table = SharedTable(np.zeros(1), np.full(1, KNOWN + 30))
    maps = [
        PackedMap(
            np.zeros(1, np.int32),
            np.full(1, 1e-9),
            np.ones(1),
            *(np.full(1, n, np.uint32) for n in two),
            None,
        )
        for two in ((10, KNOWN), (10, KNOWN + 10))
    ]
    composed = Composition(1).of(maps)
    assert composed.visits.tolist() == [20] and composed.known.tolist() == [KNOWN]
    table.apply_composed([(1, 1, 2)], composed)
    assert table.values[0] == pytest.approx(1.0 - np.exp(-4.0 * 20 / 50))


def test_a_composed_map_of_which_a_part_is_there_already_changes_nothing():
    table = SharedTable(np.zeros(1), np.zeros(1, np.int64))
    one = PackedMap(np.zeros(1, np.int32), np.full(1, 0.5), np.ones(1), *np.ones((2, 1), np.uint32), None)
    table.apply(2, 1, one)
    before = table.values.copy(), table.counts.copy(), dict(table.applied), table.version
    with pytest.raises(ProtocolError, match="Push 1 of worker 2 came after push 1"):
        table.apply_composed([(1, 1, 1), (2, 1, 2)], one)
    assert (table.values, table.counts, table.applied, table.version) == before


def test_a_table_follows_another_and_tells_what_changed():
    server = SharedTable(np.zeros(ENTRIES), np.zeros(ENTRIES, np.int64))
    replica = SharedTable(np.zeros(ENTRIES), np.zeros(ENTRIES, np.int64))
    replica.follow(server.refresh(-1))
    for sequence, entry in enumerate((3, 1), start=1):
        parts = np.ones(1), np.ones((2, 1), np.uint32)
        server.apply(
            1, sequence, PackedMap(np.full(1, entry, np.int32), *parts[:1], np.ones(1), *parts[1], None)
        )
        replica.follow(server.refresh(replica.version))
    assert replica.version == server.version == 2
    assert (replica.values == server.values).all() and (replica.counts == server.counts).all()
    assert replica.refresh(1).entries.tolist() == [1]
    assert sorted(replica.refresh(0).entries.tolist()) == [1, 3]
    assert replica.refresh(-1).entries is None


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"topology": "tree", "async_updates": False}, 'Leave it at "flat", or use async_updates=True'),
        (
            {"topology": "auto", "tree_group_size": 3, "async_updates": False},
            "^tree_group_size=3 has no place",
        ),
        ({"topology": "star"}, "must be one of 'flat', 'tree', 'decentralized', 'auto'"),
        ({"tree_group_size": 4}, 'Write topology="tree" as well'),
        ({"topology": "tree", "tree_group_size": 2}, "at least 3"),
    ],
)
def test_what_is_no_tree_is_refused_with_what_to_write_instead(given, named):
    with pytest.raises(SettingsError, match=named):
        Settings(**given)


def test_a_tree_of_rows_that_are_there_once_is_refused():
    with pytest.raises(SettingsError, match='Write topology="flat"'):
        engine_for(Settings(topology="tree"), 4, "sharded")


def test_a_tree_of_one_process_is_refused():
    with pytest.raises(SettingsError, match="needs several ranks"):
        DistAsyncQLearning(topology="tree").train("FrozenLake-v1", 100)


@pytest.mark.parametrize(
    ("entries", "workers", "megabytes", "expected"),
    [(256, 8, 100.0, False), (256, 12, 12.0, True), (100_000, 1, 100.0, True), (256, 1, 1.0, True)],
)
def test_a_tree_is_for_tables_that_are_large_for_the_link(entries, workers, megabytes, expected):
    is_worth_it, why = topology.is_worth_a_tree(entries, workers, megabytes * 1e6)
    assert is_worth_it is expected
    assert f"{workers} workers on other hosts" in why and f"{megabytes:.3g} MB/s that the link" in why


def test_the_slowest_link_counts_at_its_best():
    seconds = {1: [0.5, 0.1, 0.2], 2: [0.3, 0.4, 0.9]}
    found = topology.bytes_per_second_over([1, 2], lambda rank: seconds[rank].pop())
    assert found == pytest.approx(2 * topology.PROBE_BYTES / 0.3)


def test_auto_is_flat_where_there_can_be_no_tree():
    assert Settings(topology="auto", async_updates=False).topology == "auto"
    for ranks, placement in ((1, "auto"), (4, "sharded")):
        assert engine_for(Settings(topology="auto"), ranks, placement).name != "server"
