"""Workers of rounds for whom there is no core: who takes whose place, and what the server says of them."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from timed_channel import TimedChannel, group_of, stop_clock

from dist_classicrl.engines.outcome import Tally
from dist_classicrl.engines.progress import Reporter
from dist_classicrl.engines.roles.peers import PeerState
from dist_classicrl.engines.rounds.messages import Order, RoundStart, WalkerState
from dist_classicrl.engines.rounds.server import RoundServer, who_plays
from dist_classicrl.engines.run import LossPolicy
from dist_classicrl.engines.schedule import Pace
from dist_classicrl.membership.heartbeat import Beat
from dist_classicrl.settings import Settings
from dist_classicrl.tables.shared import SharedTable

SETTINGS = Settings(async_updates=False, logical_workers=4, sync_frequency=1, batch_size=1)
LARGE = 1_000_000  # entries, 16 MB of values and visits


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    stop_clock(monkeypatch)


def server_of(hosts, cores, may_repeat=True, entries=4, make_part=None):
    """Return the server of ranks on these hosts, itself on the first, in its first round."""
    group = group_of(0, [TimedChannel(rank) for rank in range(1, len(hosts))], 1.0, 8.0, 40.0)
    group.hosts = list(hosts)
    tally = Tally(total_steps=100)
    table = SharedTable(np.zeros(entries), np.zeros(entries, np.int64))
    first = RoundStart(Pace.first(SETTINGS, True))
    settings = {"settings": SETTINGS, "start": 0, "steps": 100, "first": first, "may_repeat": may_repeat}
    settings["make_part"] = make_part
    told = {"cores": cores}
    server = RoundServer(group, table, LossPolicy("replace"), tally, Reporter(tally), told, **settings)
    server._begin_round(-1, Order.GO_ON)
    return server


def carrying(server):
    return sorted(set(server._carried_by.values()))


def learning(server):
    return [each.rank for each in server.who_learns()]


def orders(server):
    """Return how many rounds each worker was told of."""
    return [len(peer.channel.sent) for peer in server.peers]


def test_who_waits_is_none_of_those_who_learn_until_somebody_is_lost():
    server = server_of("aaaa", {"a": 2})
    assert carrying(server) == learning(server) == [1, 2] and server.learning == 2
    server.members.lose(1, "it is gone")
    server._begin_round(-1, Order.GO_ON)
    assert carrying(server) == learning(server) == [2, 3] and server.learning == 2


def test_learners_that_cannot_be_put_back_stay_where_they_are_whoever_comes():
    server = server_of("aab", {"a": 2, "b": 1}, may_repeat=False)
    before = server._carried_by
    server.group.wire._channels[3] = TimedChannel(3)
    server.members._open(3, 9)  # on the server's host, which has a core left
    server._begin_round(-1, Order.GO_ON)
    assert server._carried_by == before and learning(server) == [1, 2]


def test_a_replacement_that_has_to_wait_did_not_come_to_nothing():
    server = server_of("aaa", {"a": 2})
    server.group.wire._channels[3] = TimedChannel(3)
    server.members._add(3, server.group.wire._channels[3], PeerState.UNTRIED, False)
    replacement = server.peers.present[3]
    server.members.note_progress(replacement, 1, (0, 0))
    assert not replacement.is_untried


def test_one_that_is_to_learn_has_to_learn_something_first():
    server = server_of("aa", {"a": 2})
    server.group.wire._channels[2] = TimedChannel(2)
    server.members._add(2, server.group.wire._channels[2], PeerState.UNTRIED, False)
    server._begin_round(-1, Order.GO_ON)
    server.take_in_common(server.peers.present[2], Beat(1, (0, 0)))
    assert server.peers.present[2].is_untried


@pytest.mark.parametrize(("entries", "seconds"), [(4, 1.0), (LARGE, 1.6)])
def test_who_waits_is_told_the_table_so_seldom_that_it_costs_little(entries, seconds):
    server = server_of("aaaa", {"a": 1}, entries=entries)
    clock = server.group.wire
    assert orders(server) == [1, 1, 1]
    for _ in range(15):
        clock.sleep(0.1)
        server._begin_round(-1, Order.GO_ON)
    told = orders(server)
    assert told[0] == 16 and told[1] == told[2] == (2 if seconds < 1.5 else 1)
    clock.sleep(0.2)
    server._begin_round(-1, Order.GO_ON)
    assert orders(server)[1] == 2


@pytest.mark.parametrize(
    ("cores", "workers", "play"),
    [
        (16, 15, range(16)),  # one of 15 would carry two of the 16 logical workers, and hold all up
        (17, 16, range(1, 17)),  # a part of its own would make no other shorter
        (16, 16, range(16)),  # it would have no core
        (64, 2, range(3)),
        (16, 40, range(16)),
        (2, 2, range(2)),
        (1, 2, range(1)),
    ],
)
def test_who_serves_plays_a_part_where_that_makes_rounds_shorter(cores, workers, play):
    group = group_of(0, [TimedChannel(rank) for rank in range(1, workers + 1)], 1.0, 8.0, 40.0)
    group.hosts = ["a"] * (workers + 1)
    settings = Settings(async_updates=False, logical_workers=16)
    others = list(range(1, workers + 1))
    assert who_plays(settings, {"cores": {"a": cores}}, group, others, True) == list(play)
    # Neither where rounds cannot be repeated, nor where cores do not matter.
    assert who_plays(settings, {"cores": {"a": cores}}, group, others, False) == others[:cores]
    assert who_plays(settings, {"cores": {}}, group, others, True) == others


def test_who_serves_has_a_core_where_few_of_the_others_carry_somebody():
    group = group_of(0, [TimedChannel(rank) for rank in range(1, 17)], 1.0, 8.0, 40.0)
    group.hosts = ["a"] * 17
    settings = Settings(async_updates=False, logical_workers=8)
    assert who_plays(settings, {"cores": {"a": 16}}, group, list(range(1, 17)), True)[0] == 1


class NotedPart:
    """Notes how each attempt at a round begins, and plays nothing."""

    def __init__(self):
        self.begun = []

    def begin(self, start, refresh, carried, n, is_ready):
        self.begun.append((carried, refresh.since, is_ready))

    def play(self, start, attempt, goes_on):
        return SimpleNamespace()


def test_who_serves_begins_its_part_of_a_round_anew_if_somebody_is_lost_after_it(monkeypatch):
    part = NotedPart()
    server = server_of("aaa", {"a": 2}, make_part=lambda: part)
    assert carrying(server) == learning(server) == [0, 1] and server.learning == 2
    monkeypatch.setattr(server, "_take_in_maps", lambda *told: None)
    server._play_part()
    server.members.lose(1, "it is gone")
    server._begin_round(-1, Order.GO_ON)
    assert learning(server) == [0, 2]
    assert part.begun == [([0, 1], -1, True), ([0, 1], -1, False)]


class NotedSaver:
    """Notes at which steps it was told to save."""

    def __init__(self):
        self.saved = []

    def save(self, values, counts, position):
        self.saved.append(position.steps)

    def news(self):
        return None


def test_a_checkpoint_that_is_being_written_is_not_written_again_as_its_round_is():
    server = server_of("aaa", {"a": 3})
    server.saver = NotedSaver()

    def broken_round(order, lost):
        server._begin_round(-1, order)
        tell, lose = partial(tell_states, server), partial(server.members.lose, lost, "it is gone")
        turns = iter([tell, lose, tell])

        def turn(reports):
            next(turns, lambda: server._played.update({rank: None for rank in carrying(server)}))()
            return 0

        server._turn = turn
        server._collect(order)

    broken_round(Order.TELL_STATE, 1)
    assert server.saver.saved == [0] and carrying(server) == [2]


def tell_states(server):
    for logical, rank in server._carried_by.items():
        server._take_in_state(rank, WalkerState(server._attempt, logical, {}))
