"""The failure detector over a network in memory with a clock that is moved: states, callbacks, and bounds."""

import logging
from collections import deque

import pytest

import dist_classicrl
from dist_classicrl.comm import collectives
from dist_classicrl.errors import SettingsError
from dist_classicrl.mpi_tools import detector as module
from dist_classicrl.mpi_tools import part

INTERVAL = 10.0
SOME_BEATS = 10 * INTERVAL + 1.0  # at whose end there is one


class Net:
    """Messages between ranks, in order, and the time."""

    def __init__(self):
        self.now = 1000.0
        self.waiting = {}  # (from, to): messages that nobody took
        self.sent = {}  # (from, to): how many
        self.stuck = set()  # (from, to) whose sends do not get ready
        self.cut = set()  # (from, to) whose messages stay behind
        self.freed = []
        self.closed = []


class Comm:
    def __init__(self, net, rank, size, is_inter):
        self.net, self.rank, self.size, self.is_inter = net, rank, size, is_inter

    def Is_inter(self):
        return self.is_inter

    def Get_remote_size(self):
        return self.size

    def Free(self):
        self.net.freed.append(self.rank)


class Wire:
    def __init__(self, comm):
        self.net, self.rank, self.size = comm.net, comm.rank, comm.size

    def now(self):
        return self.net.now

    def sleep(self, seconds):
        self.net.now += seconds

    def channel(self, peer, tag, piece_bytes):
        return Channel(self.net, self.rank, peer, piece_bytes)

    def receive(self, channels):
        return [(channel, channel.way_here.popleft()) for channel in channels if channel.may_take()]


class Channel:
    lost = None

    def __init__(self, net, rank, peer, piece_bytes):
        self.net, self.peer, self.ends, self.piece_bytes = net, peer, (rank, peer), piece_bytes
        self.way_here = net.waiting.setdefault((peer, rank), deque())
        self.way_there = net.waiting.setdefault((rank, peer), deque())

    def may_take(self):
        return bool(self.way_here) and self.ends[::-1] not in self.net.cut

    def send(self, message):
        assert message.size <= self.piece_bytes
        self.net.sent[self.ends] = self.net.sent.get(self.ends, 0) + 1
        if self.lost is None:
            self.way_there.append(message)

    def reap(self):
        return self.ends not in self.net.stuck

    def close(self):
        self.net.closed.append(self.ends)


@pytest.fixture
def net(monkeypatch):
    monkeypatch.setattr(part, "own_communicator", lambda comm, *rest, **options: comm)
    monkeypatch.setattr(module, "Wire", Wire)
    monkeypatch.setattr(collectives, "_used", [])  # communicators that are not free yet
    return Net()


class Ranks:
    """Some ranks with a detector each, what their callbacks were told, and a way to let time pass."""

    def __init__(self, net, size, **settings):
        self.net, self.told = net, [[] for _ in range(size)]
        self.detectors = [self.make(rank, size, **settings) for rank in range(size)]

    def make(self, rank, size, **settings):
        told = self.told[rank]
        return module.FailureDetector(
            Comm(self.net, rank, size, False),
            INTERVAL,
            on_failure=lambda peer: told.append(("failure", peer)),
            on_suspect=lambda peer: told.append(("suspect", peer)),
            on_recovery=lambda peer: told.append(("recovery", peer)),
            **settings,
        )

    def pass_time(self, seconds, silent=(), away=(), pace=1.0):
        """All send and check once per `pace`; `silent` ranks only check, and `away` ones do nothing."""
        end = self.net.now + seconds
        while self.net.now < end - 1e-9:
            self.net.now += pace
            for rank, detector in enumerate(self.detectors):
                if rank not in away:
                    if rank not in silent:
                        detector.send_heartbeat()
                    detector.check_node_health()

    def states(self, rank=0):
        return self.detectors[rank].check_node_health()


def test_ranks_that_beat_are_healthy(net):
    ranks = Ranks(net, 3)
    ranks.pass_time(1000)
    for rank, detector in enumerate(ranks.detectors):
        assert ranks.states(rank) == {0: "healthy", 1: "healthy", 2: "healthy"}
        assert detector.failed_nodes == detector.suspected_nodes == frozenset()
    assert ranks.told == [[], [], []]


def test_a_beat_is_sent_once_per_interval_however_often_it_is_asked_for(net):
    ranks = Ranks(net, 2)
    due = 0
    for _ in range(10_000):
        due += ranks.detectors[0].send_heartbeat()
        ranks.detectors[1].check_node_health()
        net.now += INTERVAL / 100
    assert due == 100 == net.sent[0, 1]


def test_the_first_beat_is_due_at_once(net):
    ranks = Ranks(net, 2)
    assert ranks.detectors[0].send_heartbeat() and not ranks.detectors[0].send_heartbeat()


@pytest.mark.parametrize("how", ["silent", "away"])
def test_a_silent_rank_is_suspected_then_failed_then_recovered(net, how):
    ranks = Ranks(net, 3)
    ranks.pass_time(SOME_BEATS)
    ranks.pass_time(2.2 * INTERVAL, **{how: [2]})
    assert ranks.states()[2] == "healthy"
    ranks.pass_time(0.5 * INTERVAL, **{how: [2]})
    assert ranks.states() == {0: "healthy", 1: "healthy", 2: "suspected"}
    assert ranks.detectors[0].suspected_nodes == {2} and ranks.detectors[0].failed_nodes == frozenset()
    assert "longer than usual" in ranks.detectors[0].reason(2)
    ranks.pass_time(10 * INTERVAL, **{how: [2]})
    assert ranks.states() == {0: "healthy", 1: "healthy", 2: "failed"}
    assert ranks.detectors[0].failed_nodes == {2} and ranks.detectors[0].suspected_nodes == frozenset()
    assert "silent for 1" in ranks.detectors[0].reason(2)
    ranks.pass_time(5 * INTERVAL)
    assert ranks.states() == {0: "healthy", 1: "healthy", 2: "healthy"}
    assert ranks.detectors[0].failed_nodes == frozenset() and ranks.detectors[0].reason(2) == ""
    assert ranks.told[0] == ranks.told[1] == [("suspect", 2), ("failure", 2), ("recovery", 2)]
    # Who was away had not listened, and does not take that for the silence of the others.
    assert ranks.told[2] == []


def test_the_end_of_a_suspicion_is_a_recovery(net):
    ranks = Ranks(net, 2)
    ranks.pass_time(SOME_BEATS)
    ranks.pass_time(2.8 * INTERVAL, silent=[1])
    ranks.pass_time(2.0)
    assert ranks.told[0] == [("suspect", 1), ("recovery", 1)]


def test_a_long_absence_does_not_make_it_patient(net):
    ranks = Ranks(net, 2)
    ranks.pass_time(SOME_BEATS)
    for _ in range(2):
        ranks.pass_time(1000 * INTERVAL, silent=[1], pace=INTERVAL)
        ranks.pass_time(2.0)
        assert ranks.told[0][-2:] == [("failure", 1), ("recovery", 1)]
        ranks.pass_time(2.9 * INTERVAL, silent=[1])
        assert ranks.states()[1] == "suspected"
        ranks.pass_time(SOME_BEATS)
        ranks.told[0].clear()


@pytest.mark.parametrize(
    "given, failed_after", [({}, 3.0), ({"heartbeat_timeout": 25.0}, 2.5), ({"heartbeat_timeout": 100}, 10.0)]
)
def test_the_time_until_failure(net, given, failed_after):
    ranks = Ranks(net, 2, **given)
    ranks.pass_time(10 * INTERVAL)
    while ("failure", 1) not in ranks.told[0]:
        begun = ranks.net.now
        ranks.pass_time(1.0, silent=[1])
        if net.now - 1000.0 > 1000:
            break
    last_beat = 1001.0 + 9 * INTERVAL
    assert begun + 1.0 - last_beat == pytest.approx(failed_after * INTERVAL, abs=1.0)


def test_the_threshold_is_how_patient_suspicion_is(net):
    after = {}
    for threshold in (1.0, 8.0):
        net.waiting.clear()
        ranks = Ranks(net, 2, threshold=threshold, heartbeat_timeout=1000)
        ranks.pass_time(10 * INTERVAL)
        begun = net.now
        while not ranks.told[0]:
            ranks.pass_time(0.1, silent=[1], pace=0.1)
        after[threshold] = net.now - begun
    assert after[1.0] < after[8.0] - 0.5 * INTERVAL


def test_what_mpi_says_counts_at_once_and_for_good(net):
    ranks = Ranks(net, 3)
    ranks.pass_time(100)
    ranks.detectors[0]._peers[1].channel.lost = "MPI_ERR_PROC_FAILED: Process failure"
    assert ranks.states() == {0: "healthy", 1: "failed", 2: "healthy"}
    assert "MPI_ERR_PROC_FAILED" in ranks.detectors[0].reason(1)
    ranks.pass_time(1000)  # beats that were on their way do not bring it back
    assert ranks.states()[1] == "failed"
    assert ranks.told[0] == [("failure", 1)]


def test_mpi_may_say_later_that_a_silent_rank_has_died(net):
    ranks = Ranks(net, 2)
    ranks.pass_time(100)
    ranks.pass_time(100, away=[1])
    ranks.detectors[0]._peers[1].channel.lost = "gone"
    ranks.pass_time(100)
    assert ranks.told[0] == [("suspect", 1), ("failure", 1)]
    assert ranks.states()[1] == "failed" and "gone" in ranks.detectors[0].reason(1)


def test_who_does_not_call_for_long_does_not_blame_the_others(net):
    ranks = Ranks(net, 3)
    ranks.pass_time(100)
    ranks.pass_time(50 * INTERVAL, away=[0, 2])
    # Rank 1 has beaten all the time, rank 2 is back later than rank 0.
    assert ranks.states(0) == {0: "healthy", 1: "healthy", 2: "healthy"}
    ranks.pass_time(4 * INTERVAL, away=[2])
    assert ranks.states(0) == {0: "healthy", 1: "healthy", 2: "failed"}


def test_who_checks_rarely_finds_out_all_the_same(net):
    ranks = Ranks(net, 3)
    for _ in range(40):
        ranks.pass_time(5 * INTERVAL, silent=[2], away=[0])
        states = ranks.states(0)
        if states[2] == "failed":
            break
    assert states == {0: "healthy", 1: "healthy", 2: "failed"}


def test_who_only_checks_sees_all(net):
    ranks = Ranks(net, 2)
    ranks.pass_time(100 * INTERVAL, silent=[0])
    assert ranks.states(0)[1] == "healthy" and ranks.states(1)[0] == "failed"


def test_who_only_sends_is_seen(net):
    ranks = Ranks(net, 2)
    for _ in range(1000):
        net.now += 1.0
        ranks.detectors[1].send_heartbeat()
        ranks.detectors[0].check_node_health()
    assert ranks.states(0)[1] == "healthy"
    assert max(map(len, net.waiting.values())) <= 2


def test_nothing_piles_up_at_a_rank_that_takes_nothing(net):
    ranks = Ranks(net, 2)
    ranks.pass_time(100)
    ranks.pass_time(1000 * INTERVAL, away=[1], pace=INTERVAL)
    assert len(net.waiting[0, 1]) <= 3
    ranks.pass_time(3 * INTERVAL)
    assert ranks.states(0)[1] == ranks.states(1)[0] == "healthy"
    assert not net.waiting[0, 1]


def test_nothing_is_sent_where_the_last_message_is_not_gone(net):
    ranks = Ranks(net, 2)
    ranks.pass_time(100)
    net.stuck.add((0, 1))
    before = net.sent[0, 1]
    ranks.pass_time(100 * INTERVAL)
    assert net.sent[0, 1] == before
    net.stuck.clear()
    ranks.pass_time(3 * INTERVAL)
    assert ranks.states(1)[0] == "healthy"


def test_a_cut_between_two_ends_in_health_on_both_sides(net):
    ranks = Ranks(net, 2)
    ranks.pass_time(100)
    net.cut |= {(0, 1), (1, 0)}
    ranks.pass_time(100 * INTERVAL)
    assert ranks.states(0)[1] == ranks.states(1)[0] == "failed"
    assert max(map(len, net.waiting.values())) <= 4
    net.cut.clear()
    ranks.pass_time(3 * INTERVAL)
    assert ranks.states(0)[1] == ranks.states(1)[0] == "healthy"
    assert ranks.told[0] == [("suspect", 1), ("failure", 1), ("recovery", 1)]


def test_progress_comes_with_the_beats(net):
    ranks = Ranks(net, 3)
    ranks.detectors[1].send_heartbeat(progress=0)
    ranks.detectors[2].send_heartbeat()
    ranks.states()
    assert ranks.detectors[0].progress == {1: 0}
    net.now += INTERVAL
    ranks.detectors[1].send_heartbeat(progress=10**15)
    ranks.states()
    net.now += INTERVAL
    ranks.detectors[1].send_heartbeat()
    ranks.states()
    assert ranks.detectors[0].progress == {1: 10**15}


@pytest.mark.parametrize("progress", [-1, 0.5, "far"])
def test_a_progress_that_is_none_is_refused_even_where_no_beat_is_due(net, progress):
    ranks = Ranks(net, 2)
    ranks.detectors[0].send_heartbeat()
    with pytest.raises(SettingsError, match="progress must be a whole number of at least 0, or None"):
        ranks.detectors[0].send_heartbeat(progress=progress)


def test_a_progress_that_no_message_holds_is_refused_and_the_next_beat_goes(net):
    ranks = Ranks(net, 2)
    for _ in range(3):
        with pytest.raises(SettingsError, match=r"progress must be below 2\*\*63, got 9223372036854775808"):
            ranks.detectors[0].send_heartbeat(progress=2**63)
        net.now += INTERVAL
    assert ranks.detectors[0].send_heartbeat(progress=2**63 - 1)
    ranks.states(1)
    assert ranks.detectors[1].progress == {0: 2**63 - 1}


@pytest.mark.parametrize("rank", [3, 99, -1, 0.0, None, [1]])
def test_there_is_no_reason_of_a_rank_that_is_none(net, rank):
    ranks = Ranks(net, 3)
    assert [ranks.detectors[2].reason(each) for each in range(3)] == [""] * 3
    with pytest.raises(SettingsError, match="^rank must be "):
        ranks.detectors[2].reason(rank)


def test_what_cannot_be_sent_takes_no_room_of_a_link(net):
    (peer,) = Ranks(net, 2).detectors[0]._peers.values()
    for _ in range(3):
        with pytest.raises(OverflowError):
            peer.send(module._Alive(2**63))
    assert peer.has_room


def test_a_rank_that_takes_leave_has_not_failed(net):
    ranks = Ranks(net, 3)
    ranks.pass_time(100)
    ranks.detectors[2].close()
    ranks.pass_time(100 * INTERVAL, away=[2])
    assert ranks.states() == {0: "healthy", 1: "healthy", 2: "left"}
    assert ranks.told[0] == [] == ranks.told[1]
    assert "closed" in ranks.detectors[0].reason(2)
    # What 2 was sent while it took leave is all that it is ever sent.
    assert len(net.waiting[0, 2]) <= 2


def test_a_failed_rank_that_takes_leave_has_left(net):
    ranks = Ranks(net, 2)
    ranks.pass_time(100, away=[1])
    assert ranks.detectors[0].failed_nodes == {1}
    ranks.detectors[1].close()
    assert ranks.states() == {0: "healthy", 1: "left"} and ranks.detectors[0].failed_nodes == frozenset()


def test_closing_waits_no_longer_than_it_says_and_only_for_the_healthy(net):
    ranks = Ranks(net, 3)
    ranks.pass_time(100)
    begun = net.now
    ranks.detectors[0].close()
    assert net.now - begun == pytest.approx(1.0, abs=0.01)
    assert net.closed == [] and net.freed == []  # they may take their leave later
    ranks.pass_time(100 * INTERVAL, away=[0, 2])
    assert ranks.states(1) == {0: "left", 1: "healthy", 2: "failed"}
    begun = net.now
    ranks.detectors[1].close()
    assert net.now == begun


def test_the_communicator_is_given_back_once_nothing_can_come_any_more(net):
    ranks = Ranks(net, 2)
    ranks.pass_time(100)
    ranks.detectors[0].close()
    assert net.freed == []  # rank 1 may still send
    ranks.detectors[1].close()
    assert net.freed == [1, 0]
    ranks.detectors[1].close()
    assert net.freed == [1, 0] and net.closed == [(1, 0), (0, 1)]


def test_after_closing_nothing_is_sent_and_the_last_word_stands(net):
    ranks = Ranks(net, 3)
    ranks.pass_time(100, away=[1])
    ranks.detectors[0].close()
    sent = dict(net.sent)
    for _ in range(10):
        net.now += INTERVAL
        assert not ranks.detectors[0].send_heartbeat()
        assert ranks.states() == {0: "healthy", 1: "failed", 2: "healthy"}
    assert net.sent == sent


def test_a_with_block_closes_it(net):
    with pytest.raises(KeyError), module.FailureDetector(Comm(net, 0, 2, False), INTERVAL) as detector:
        raise KeyError
    assert not detector.send_heartbeat()


def test_of_an_intercommunicator_the_other_group_is_watched(net):
    detector = module.FailureDetector(Comm(net, 1, 3, True), INTERVAL)
    assert detector.check_node_health() == {0: "healthy", 1: "healthy", 2: "healthy"}
    assert sorted(peer.channel.ends for peer in detector._peers.values()) == [(1, 0), (1, 1), (1, 2)]


def test_a_callback_that_raises_keeps_no_news_from_the_others(net):
    told = []

    def breaking(rank):
        told.append(rank)
        if rank == 1:
            raise ZeroDivisionError

    detector = module.FailureDetector(Comm(net, 0, 4, False), INTERVAL, 15.0, on_failure=breaking)
    for _ in range(5):
        net.now += INTERVAL
        try:
            detector.check_node_health()
        except ZeroDivisionError:
            assert told == [1] and detector.failed_nodes == {1, 2, 3}
    assert told == [1, 2, 3]


def test_a_callback_may_ask_the_detector(net):
    seen = []
    detector = module.FailureDetector(
        Comm(net, 0, 2, False),
        INTERVAL,
        15.0,
        on_failure=lambda rank: seen.append(detector.check_node_health()),
    )
    for _ in range(5):
        net.now += INTERVAL
        detector.check_node_health()
    assert seen == [{0: "healthy", 1: "failed"}]


def test_what_happens_is_logged_with_its_reason(net, caplog):
    caplog.set_level(logging.WARNING, "dist_classicrl")
    ranks = Ranks(net, 2)
    ranks.pass_time(100)
    ranks.pass_time(100, away=[1])
    ranks.pass_time(INTERVAL)
    said = [record.getMessage() for record in caplog.records]
    assert [text[:20] for text in said] == [
        "Rank 1 is suspected ",
        "Rank 1 has failed: i",
        "Rank 1 is heard agai",
    ]
    assert "silent for" in said[1]


BAD = {
    "heartbeat_interval": [0, -1.0, float("nan"), float("inf"), "30", None, True],
    "heartbeat_timeout": [0, -1, float("nan"), "90", False],
    "threshold": [0.0, -8, float("inf"), None],
    "timeout": [0, float("nan"), "60"],
    "on_failure": [5, "print"],
    "on_suspect": [[]],
    "on_recovery": [{}],
}


@pytest.mark.parametrize("name, value", [(name, value) for name, values in BAD.items() for value in values])
def test_bad_settings_are_refused_by_name(net, name, value):
    with pytest.raises(SettingsError, match=f"^{name} must be .* got {value!r}".replace("[", r"\[")):
        module.FailureDetector(Comm(net, 0, 2, False), **{name: value})


@pytest.mark.parametrize("limit", [5.0, 10.0])
def test_a_timeout_within_an_interval_is_refused(net, limit):
    with pytest.raises(
        SettingsError, match=r"longer than heartbeat_interval \(10 s\), got .*three intervals"
    ):
        module.FailureDetector(Comm(net, 0, 2, False), 10, limit)


@pytest.mark.parametrize("comm", [None, "world", 5])
def test_what_is_no_communicator_is_refused(comm):
    with pytest.raises(SettingsError, match="comm must be a communicator of mpi4py, such as .*COMM_WORLD"):
        dist_classicrl.FailureDetector(comm)
