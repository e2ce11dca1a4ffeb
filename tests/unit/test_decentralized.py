"""Rounds without a server: sums of all ranks come to all, once and in the same bits, by any pattern."""

import itertools
import math
import time
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
from exchanging_ranks import play, rank_of
from pairs_pattern import ForgetfulPairs, Pairs

from dist_classicrl import DistAsyncQLearning
from dist_classicrl.comm.compression import Codec
from dist_classicrl.engines.decentralized.engine import Decentralized
from dist_classicrl.engines.decentralized.part import marks_of, sums_of
from dist_classicrl.engines.decentralized.patterns import (
    PATTERNS,
    Adder,
    ExchangePattern,
    Step,
    Sums,
    pattern_for,
)
from dist_classicrl.engines.decentralized.server import Coordinator
from dist_classicrl.engines.decentralized.stride import MOVING_LOAD, Stride
from dist_classicrl.engines.decentralized.training import DecentralizedRoles
from dist_classicrl.engines.decentralized.worker import Player
from dist_classicrl.engines.engine import engine_for
from dist_classicrl.engines.roles.members import Members
from dist_classicrl.engines.run import LossPolicy
from dist_classicrl.errors import DivergenceError, ProtocolError, RankLostError, SettingsError
from dist_classicrl.membership.election import Base
from dist_classicrl.settings import Settings
from dist_classicrl.tables.maps import PackedMap, PackedSums

ENTRIES = 53
HOSTS = {
    1: (0,),
    2: (0, 1),
    3: (0, 0, 2),
    4: (0, 0, 0, 0),
    5: (0, 1, 1, 0, 1),
    8: (0, 0, 0, 3, 3, 5, 5, 5),
    13: (0,) * 6 + (6,) + (7,) * 6,
}


def learned(rank, adder):
    """Return what a rank might have learned, of a few entries."""
    random = np.random.default_rng(rank)
    entries = np.sort(random.choice(ENTRIES, 1 + rank % 7 * 5, replace=False)).astype(np.int32)
    size = entries.size
    maps = PackedSums(
        entries,
        random.random(size),
        random.normal(size=size),
        random.random(size),
        random.integers(1, 9, size),
    )
    return Sums(maps, np.array([1.0, random.random()]), adder)


def exchanged(pattern, hosts, make=learned):
    """Let all ranks of a job exchange in this process; return the sum that each has got, and the messages."""
    adders = [Adder(ENTRIES) for _ in hosts]
    running = {
        place: pattern.exchange(place, hosts, make(place, adders[place])) for place in range(len(hosts))
    }
    came = {(a, b): [] for a, b in itertools.product(range(len(hosts)), repeat=2)}
    awaits = dict.fromkeys(running, None)
    found, n_messages = {}, 0
    while running:
        moved = False
        for place in list(running):
            if awaits[place] is not None and not all(came[other, place] for other in awaits[place]):
                continue
            moved = True
            got = None
            if awaits[place] is not None:
                got = {other: came[other, place].pop(0) for other in awaits[place]}
            try:
                step = running[place].send(got)
            except StopIteration as ended:
                found[place] = ended.value
                del running[place]
                continue
            awaits[place] = step.awaits
            for other, sums in step.send.items():
                own = Sums(
                    PackedSums(*(array.copy() for array in sums.maps)), sums.counted.copy(), adders[other]
                )
                came[place, other].append(own)
                n_messages += 1
        assert moved, "all wait for each other"
    assert not any(came.values())
    return [found[place] for place in range(len(hosts))], n_messages


def dense(sums):
    """Return weight, targets, updates and visits of all entries."""
    whole = np.array([np.ones(ENTRIES), *np.zeros((3, ENTRIES))])
    for array, part in zip(whole, sums.maps[1:], strict=True):
        array[sums.maps.entries] = part
    return whole


@pytest.mark.parametrize("ranks", HOSTS)
@pytest.mark.parametrize("name", [*PATTERNS, "pairs"])
def test_each_rank_gets_the_sum_of_all_once_and_in_the_same_bits(name, ranks):
    pattern, hosts = Pairs() if name == "pairs" else PATTERNS[name](), HOSTS[ranks]
    if not pattern.suits(hosts):
        pytest.skip("as it says itself")
    found, _ = exchanged(pattern, hosts)
    for sums in found:
        for array, first in zip((*sums.maps, sums.counted), (*found[0].maps, found[0].counted), strict=True):
            assert array.tobytes() == first.tobytes()
    parts = [dense(learned(rank, None)) for rank in range(ranks)]
    right = [np.prod([part[0] for part in parts], axis=0)]
    right += [[math.fsum(part[i][e] for part in parts) for e in range(ENTRIES)] for i in (1, 2, 3)]
    np.testing.assert_allclose(dense(found[0]), right, rtol=1e-13, atol=1e-13)
    assert found[0].counted[0] == ranks


@pytest.mark.parametrize(
    ("name", "ranks", "messages"),
    [
        ("tree", 8, 14),
        ("doubling", 8, 24),
        ("doubling", 13, 34),
        ("ring", 8, 8 * 14),
        ("two_level", 8, 14),
    ],
)
def test_how_many_messages_a_round_takes(name, ranks, messages):
    """Two on each edge of a tree; one each way in a swap; with two levels 5 edges on hosts, and 4 between."""
    assert exchanged(PATTERNS[name](), HOSTS[ranks])[1] == messages


def test_parts_of_a_ring_are_ranges_of_the_table_that_are_joined_again():
    sums = learned(6, Adder(ENTRIES))
    again = Sums.joined(sums.split(4))
    np.testing.assert_array_equal(dense(again), dense(sums))
    np.testing.assert_array_equal(again.counted, sums.counted)
    for part, begin, end in zip(sums.split(4), (0, 13, 26, 39), (13, 26, 39, 53), strict=True):
        assert all(begin <= entry < end for entry in part.maps.entries)


@pytest.mark.parametrize("with_replays", [False, True])
def test_maps_become_sums_as_the_reproducible_mode_makes_them(with_replays):
    """Of each: w, k b / (1 - w), k and the visits; where w is 1 the map only adds, and has no target."""
    visits, replays = np.array([3, 0, 5, 2], np.uint32), np.array([1, 4, 0, 0], np.uint32)
    packed = PackedMap(
        np.array([7, 2, 9, 4], np.int32),
        np.array([0.5, 0.25, 1.0, 0.0]),
        np.array([1.0, 3.0, 0.125, -2.0]),
        visits,
        visits,
        replays if with_replays else None,
    )
    k = [4.0, 4.0, 5.0, 2.0] if with_replays else [3.0, 1.0, 5.0, 2.0]
    sums = sums_of(packed)
    np.testing.assert_array_equal(sums.entries, packed.entries)
    np.testing.assert_array_equal(sums.weight, packed.weight)
    np.testing.assert_array_equal(sums.targets, [k[0] * 2.0, k[1] * 4.0, 0.125, k[3] * -2.0])
    np.testing.assert_array_equal(sums.updates, [k[0], k[1], 0.0, k[3]])
    np.testing.assert_array_equal(sums.visits, [3, 0, 5, 2])


def test_a_round_grows_while_it_learns_as_much_and_is_longer_where_ranks_would_wait():
    settings = Settings()
    values = np.ones(8)
    first = Stride.first(settings, True)
    assert first.updates == 32 and Stride.first(settings, False).updates == 1
    grown = first.after(10**6, 0.1, 0.0, values, settings, 4)
    assert grown.updates == 64
    kept = grown.after(1_100_000, 4.0 * MOVING_LOAD, 0.0, values, settings, 4)
    assert kept.updates == 16  # a quarter, by N k a
    waits = kept.after(1_150_000, MOVING_LOAD, 0.9, values, settings, 4)
    assert waits.updates == 32  # whatever N k a says
    short = first.after(4096, 0.1, 0.9, values, settings, 4)
    assert short.updates == 1  # a 32nd of the steps made, at most
    assert Stride.first(Settings(sync_frequency=7), True).after(9, 9.0, 0.9, values, settings, 4).updates == 7


def test_rounds_go_by_the_steps_of_calls_before_too():
    alone, later = (play(PATTERNS["tree"](), 2, rounds=1, start=start)[0].stride for start in (1, 10**6))
    assert alone.updates == 1 and later.updates > 16
    again = later.after(2 * later.looked, 0.1, 0.0, np.full(8, later.mean), Settings(), 2, before=10**6)
    assert later.is_moving and not again.is_moving  # which the steps of this call tell


def test_auto_takes_two_levels():
    assert pattern_for("auto")[0] == "two_level"
    assert pattern_for("tree")[0] == "tree"
    assert all(isinstance(make(), ExchangePattern) for make in PATTERNS.values())


@pytest.mark.parametrize(
    ("settings", "nearest"),
    [
        ({"async_updates": False}, 'Write topology="flat", or use async_updates=True'),
        ({"compression_threshold": 0.1}, "Write compression_threshold=0 and compression='lossless'"),
        ({"compression": "top_k"}, "Write compression='lossless', which changes no bit"),
        ({"compression": "quantized"}, "Write compression='lossless', which changes no bit"),
        ({"on_error": "exclude"}, 'Write on_error="raise"'),
        ({"on_failure": "replace"}, 'Write on_failure="continue"'),
    ],
)
def test_what_cannot_be_had_without_a_server_is_refused_with_what_comes_nearest(settings, nearest):
    with pytest.raises(SettingsError, match=nearest):
        engine_for(Settings(topology="decentralized", **settings), 4, "auto")


@pytest.mark.parametrize(
    ("settings", "nearest"),
    [
        ({"async_updates": False}, 'Write placement="auto", or use async_updates=True'),
        ({"max_staleness": 3}, "Write max_staleness=None"),
        ({"merging": "order_free"}, 'Write merging="affine"'),
        ({"topology": "tree"}, 'Write topology="decentralized", or placement="auto"'),
        ({"topology": "auto", "tree_group_size": 4}, "Write tree_group_size=None"),
        ({"topology": "decentralized", "exchange_pattern": "ring"}, 'Write exchange_pattern="auto"'),
    ],
)
def test_what_cannot_be_had_with_a_pattern_of_ones_own_is_refused_before_training(settings, nearest):
    own = Decentralized(Pairs())
    with pytest.raises(SettingsError, match=f"^(?!an ).*an exchange pattern of your own.*{nearest}"):
        engine_for(Settings(**settings), 4, own)


def test_a_pattern_of_ones_own_needs_several_ranks():
    with pytest.raises(SettingsError, match='with `mpirun -n 4`, or write placement="auto"'):
        DistAsyncQLearning().train("FrozenLake-v1", 100, placement=Decentralized(Pairs()))


@pytest.mark.parametrize("own", [Pairs(), Pairs])
def test_a_pattern_of_ones_own_is_told_where_it_goes(own):
    with pytest.raises(SettingsError, match=r"write placement=Decentralized\(Pairs\(\)\)"):
        Settings(topology="decentralized", exchange_pattern=own)


def test_other_combinations_that_cannot_be_had():
    with pytest.raises(SettingsError, match='needs several ranks.*write topology="flat"'):
        engine_for(Settings(topology="decentralized"), 1, "auto")
    with pytest.raises(SettingsError, match='Write topology="flat"'):
        engine_for(Settings(topology="decentralized"), 4, "sharded")
    with pytest.raises(SettingsError, match='Write topology="decentralized" as well'):
        Settings(exchange_pattern="ring")
    with pytest.raises(SettingsError, match='Write topology="tree" as well'):
        Settings(topology="decentralized", tree_group_size=4)
    with pytest.raises(SettingsError, match="methods suits and exchange"):
        Decentralized(Codec())


def test_the_engine_is_taken_where_the_topology_says_so():
    assert engine_for(Settings(topology="decentralized"), 4, "auto").name == "decentralized"
    assert engine_for(Settings(topology="decentralized"), 4, "replicated").name == "decentralized"
    own = Decentralized(Pairs())
    assert engine_for(Settings(), 4, own) is own and own.name == "decentralized, by Pairs"


class PowersOfTwo(Pairs):
    """Does not suit every number of ranks."""

    def suits(self, hosts):
        return len(hosts) & (len(hosts) - 1) == 0


@pytest.mark.parametrize(
    ("ranks", "left", "error", "says"),
    [
        (3, 3, SettingsError, "does not suit 3 ranks on 2 hosts, as it says itself. Start as many as it"),
        # The same job may well be started again, with all of its ranks.
        (4, 3, RankLostError, "does not suit the 3 ranks on 2 hosts that are left of 4, as it says itself"),
        (4, 2, None, ""),
    ],
)
def test_a_pattern_that_does_not_suit_those_who_are_left_ends_the_run_as_a_loss(ranks, left, error, says):
    roles = object.__new__(DecentralizedRoles)
    roles._pattern = PowersOfTwo()
    roles.group = SimpleNamespace(wire=SimpleNamespace(size=ranks))
    with pytest.raises(error, match=says) if error else nullcontext():
        assert roles._pattern_for((0, 1, 0)[:left]) is roles._pattern


def test_a_pattern_that_forgets_a_rank_does_not_count_it():
    found, _ = exchanged(ForgetfulPairs(), HOSTS[4])
    assert found[0].counted[0] < 4  # by which each rank finds out


@pytest.mark.parametrize(
    ("counts", "min_workers", "ends"), [(True, 2, False), (True, 3, True), (False, 2, True)]
)
def test_a_rank_that_coordinates_and_learns_counts_as_a_worker_when_one_is_lost(counts, min_workers, ends):
    members = SimpleNamespace(
        policy=LossPolicy(min_workers=min_workers),
        peers=SimpleNamespace(learners=["one"]),
        service=SimpleNamespace(counts_as_worker=counts),
    )
    with pytest.raises(RankLostError, match="fewer than min_workers") if ends else nullcontext():
        Members._check_policy(members, 2, "silent")
    assert Coordinator.counts_as_worker


class Twice(PATTERNS["tree"]):
    """One rank adds up what all send it, but takes what the last one sent in place of what each did."""

    def exchange(self, place, hosts, own):
        others = tuple(range(1, len(hosts)))
        if place:
            came = yield Step({0: own}, (0,))
            return came[0]
        came = yield Step(awaits=others)
        total = own
        for _ in others:
            total = total.plus(came[others[-1]])
        yield Step(dict.fromkeys(others, total))
        return total


def test_a_pattern_that_counts_one_rank_for_another_is_found_out():
    with pytest.raises(ProtocolError, match="pattern Twice has to add up .* exactly once"):
        play(Twice(), 3)


@pytest.mark.parametrize("players", [1, 2, 3, 4096])
def test_the_sum_of_all_marks_is_the_same_in_any_order(players):
    marks = marks_of(players, 7, 0, 1)
    assert len(set(marks.tolist())) == players and (marks == np.trunc(marks)).all()
    assert marks.sum() == sum(map(int, marks.tolist())) == marks[::-1].cumsum()[-1] < 2**53


class Swap:
    """Two ranks swap, and `end` says what they return; `step` what is sent and awaited."""

    def suits(self, hosts):
        return len(hosts) == 2

    def exchange(self, place, hosts, own):
        other = 1 - place
        came = yield self.step(other, own)
        others = came[other]
        return self.end(own.plus(others) if place == 0 else others.plus(own))

    def step(self, other, own):
        return Step({other: own}, (other,))

    def end(self, total):
        return total


@pytest.mark.parametrize("name", [*PATTERNS, "swap"])
def test_ranks_that_exchange_rounds_have_the_same_table_with_all_steps(name):
    parts = play(Swap() if name == "swap" else PATTERNS[name](), 2 if name == "swap" else 3)
    for part in parts:
        assert part.made == part.table.counts.sum() == 2 * 32 * len(parts)
        assert part.table.values.tobytes() == parts[0].table.values.tobytes()
        assert (part.table.values > 0.5).all()


def test_what_a_rank_learned_last_stays_where_the_round_before_is_merged_later(monkeypatch):
    on_their_way = {}
    parts = [rank_of(rank, 2, Swap(), on_their_way, Codec()) for rank in range(2)]
    for part in parts:
        part._exchange(part._learn(64, lambda: None), 64)
    first, second = parts  # the second one has merged the round by now
    with monkeypatch.context() as late:
        late.setattr(first, "_advance", lambda: False)
        own = first._learn(64, lambda: None)
    while first._under_way is not None:
        assert first._advance()
    assert (first.table.values == 0.75).all() and (first._learner.table.q == 0.5 * 0.75 + 0.5).all()
    first._exchange(own, 64)
    second._exchange(second._learn(64, lambda: None), 64)
    while first._under_way is not None:
        assert first._advance()
    assert np.array_equal(first._learner.table.q, first.table.values)  # all that it learned is in there


def test_who_coordinated_before_wants_no_pause_of_its_own_any_more():
    part = rank_of(0, 2, Swap(), {}, Codec())
    part.wants_pause = lambda: True
    player = Player(SimpleNamespace(wire=SimpleNamespace(now=time.monotonic)), part, Base())
    assert player.part is part and not part.wants_pause()


class Sparing(Codec):
    """Says that it made each message shorter by 10 bytes."""

    def encode(self, message):
        return super().encode(message)[0], 10


def test_what_compression_spares_is_counted_for_each_who_gets_a_message():
    """Two go up the tree in each round, and one that was made once comes down to both."""
    told = [part._played() for part in play(PATTERNS["tree"](), 3, rounds=2, codec=Sparing)]
    assert [each.bytes_saved for each in told] == [40, 20, 20]


@pytest.mark.parametrize(
    ("method", "does", "said"),
    [
        ("end", lambda self, total: None, "returns None, where the sum of all .* `return total`"),
        ("end", lambda self, total: total.maps, "returns an object of the class PackedSums"),
        ("exchange", lambda self, place, hosts, own: own, "gives an object of the class Sums, .* yield"),
        ("step", lambda self, other, own: {other: own}, "yields an object of the class dict"),
        ("step", lambda self, other, own: Step({other: own}, other), "awaits [01], where places are due"),
        ("step", lambda self, other, own: Step({other: own}, ("1",)), "awaits an object of the class tuple"),
        ("step", lambda self, other, own: Step({other: own}, (other, other)), "awaits a place twice"),
        ("step", lambda self, other, own: Step([other], (other,)), "sends an object of the class list"),
        ("step", lambda self, other, own: Step({other: own.maps}, (other,)), "sends .* where Sums are due"),
        ("step", lambda self, other, own: Step({7: own}, (7,)), "talk to place 7, which is none"),
    ],
)
def test_a_pattern_that_does_what_none_does_is_named_with_what_is_due(method, does, said):
    pattern = type("Odd", (Swap,), {method: does})()
    with pytest.raises(ProtocolError, match=f"The exchange pattern Odd .*{said}"):
        play(pattern, 2)


class Swapped(Swap):
    """The same, but the targets of the sum are all this number."""

    def __init__(self, target):
        self.target = target

    def end(self, total):
        total.maps.targets[:] = self.target
        return total


def test_a_pattern_that_makes_no_numbers_of_what_ranks_gave_it_is_named():
    with pytest.raises(
        ProtocolError, match=r"\(NaN\), and no rank gave such: the exchange pattern Swapped has"
    ):
        play(Swapped(np.nan), 2)
    with pytest.raises(DivergenceError, match="as the exchange pattern Swapped added it up, is not finite"):
        play(Swapped(np.inf), 2)


@pytest.mark.parametrize(
    ("method", "does"), [("suits", lambda self: True), ("exchange", lambda self, place, own: own)]
)
def test_a_pattern_whose_methods_take_other_arguments_is_refused_at_once(method, does):
    with pytest.raises(SettingsError, match=rf"method {method} of the exchange pattern Odd .* Write `def"):
        Decentralized(type("Odd", (Swap,), {method: does})())
