"""Who counts as lost: a rank that says nothing, not one that works, waits, or could not be listened to."""

import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from timed_channel import RELEASE, TimedChannel, beats, done, group_of, stop_clock

from dist_classicrl.comm.envelope import Kind
from dist_classicrl.comm.messages import Bye, encode
from dist_classicrl.comm.parts import from_parts
from dist_classicrl.comm.remote_errors import Failed
from dist_classicrl.compression import SEND_ALL
from dist_classicrl.engines.outcome import Tally
from dist_classicrl.engines.progress import Observer, Reporter
from dist_classicrl.engines.roles.messages import AskToStop, Stopped
from dist_classicrl.engines.roles.server_base import NobodyLeft
from dist_classicrl.engines.roles.worker_base import ServerLost
from dist_classicrl.engines.rounds.messages import Order, RoundOrder, RoundStart
from dist_classicrl.engines.rounds.part import RoundPart
from dist_classicrl.engines.rounds.server import RoundServer
from dist_classicrl.engines.rounds.worker import RoundWorker
from dist_classicrl.engines.run import LossPolicy
from dist_classicrl.engines.schedule import Pace
from dist_classicrl.engines.server.leases import Lease, LeaseBook
from dist_classicrl.engines.server.messages import Push, Reply
from dist_classicrl.engines.server.server import Server
from dist_classicrl.engines.server.window import PushWindow
from dist_classicrl.engines.server.worker import Worker
from dist_classicrl.engines.supersteps.messages import Begin, Cut, Play
from dist_classicrl.engines.supersteps.part import Part
from dist_classicrl.engines.supersteps.worker import SuperstepWorker
from dist_classicrl.errors import CutOffError, ProtocolError, RemoteRankError, TrainingStopped
from dist_classicrl.learning.learner import Totals
from dist_classicrl.learning.supersteps.together import SEQUENCE, boxes_in, bytes_of
from dist_classicrl.membership.election import Base
from dist_classicrl.membership.group import Group
from dist_classicrl.membership.heartbeat import Beat
from dist_classicrl.membership.view import View
from dist_classicrl.process.stop import Stop, StopWatch
from dist_classicrl.settings import Settings
from dist_classicrl.tables.local import LocalTable
from dist_classicrl.tables.maps import Refresh
from dist_classicrl.tables.shared import SharedTable

SILENCE = 8.0
STUCK = 40.0
INTERVAL = SILENCE / 4.0
FAILED = encode(Failed(2, "here", "OSError: no map", "", False))
SETTINGS = Settings(async_updates=False, logical_workers=3, sync_frequency=1, batch_size=1)
PACE = Pace.first(SETTINGS, True)
NO_TABLE = np.zeros(4), np.zeros(4, np.int64)


class Enough(Exception):
    """Ends a server that would serve for ever."""


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    stop_clock(monkeypatch)


def group(rank, *channels):
    return group_of(rank, channels, INTERVAL, SILENCE, STUCK)


# The server


class Reported(Observer):
    """Calls a function with each report."""

    def __init__(self, report):
        self.report = report

    def reported(self, progress):
        if self.report is not None:
            self.report(progress)
        return True


def serve(async_updates, channel, report, *others):
    tally, table = Tally(total_steps=100), SharedTable(np.zeros(4), np.zeros(4, np.int64))
    reporter = Reporter(tally, Reported(report), SILENCE)
    common = (group(0, channel, *others), table, LossPolicy(), tally, reporter)
    if async_updates:
        leases = LeaseBook(0, 100, [1, *(other.peer for other in others)], 10)
        serving = Server(*common, leases=leases)
    else:
        serving = RoundServer(*common, settings=SETTINGS, start=0, steps=100, first=RoundStart(PACE))
    try:
        serving.run()
    finally:
        channel.events = [
            (event["kind"], event["rank"])
            for event in serving.group.events.entries
            if event["kind"] != "suspected"
        ]


@pytest.mark.parametrize("async_updates", [True, False])
@pytest.mark.parametrize("speaks_after, raised", [(0.0, Enough), (0.7, Enough), (1.5, NobodyLeft)])
def test_the_time_of_a_callback_is_nobodys_silence(async_updates, speaks_after, raised):
    # Reported at one limit of silence, for three. What was said meanwhile may need the server to arrive.
    again = (4.0 + speaks_after) * SILENCE
    channel = TimedChannel(1, *beats(0.0, 0.9 * SILENCE, INTERVAL), *beats(again, 8.0 * SILENCE, INTERVAL))
    calls = []

    def report(progress):
        calls.append(progress.seconds)
        if len(calls) == 1:
            time.sleep(3.0 * SILENCE)
        elif channel.seconds > 6.0 * SILENCE:
            raise Enough

    with pytest.raises(raised):
        serve(async_updates, channel, report)
    assert calls
    assert (("excluded", 1) in channel.events) is (raised is NobodyLeft)


@pytest.mark.parametrize("async_updates", [True, False])
def test_the_server_says_that_it_waits(async_updates):
    channel = TimedChannel(1, *beats(0.0, 5.0 * SILENCE, INTERVAL))
    with pytest.raises(NobodyLeft):
        serve(async_updates, channel, None)
    assert channel.events[-1] == ("excluded", 1)
    assert 5.0 * SILENCE < channel.seconds < 6.5 * SILENCE
    assert channel.kinds_sent.count(Kind.BEAT) >= 3 * 5


@pytest.mark.parametrize("async_updates", [True, False])
def test_a_worker_whose_main_loop_hangs_is_lost_though_its_process_is_heard(async_updates):
    channel = TimedChannel(1, *beats(0.0, 3.0 * STUCK, INTERVAL, progress=False))
    with pytest.raises(NobodyLeft):
        serve(async_updates, channel, None)
    assert channel.events == [("excluded", 1)]
    assert STUCK < channel.seconds < STUCK + SILENCE


@pytest.mark.parametrize("async_updates", [True, False])
@pytest.mark.parametrize("progress, raised", [(False, NobodyLeft), (None, CutOffError)])
def test_ranks_whose_main_loops_hang_are_not_cut_off(async_updates, progress, raised):
    def channel(peer):
        said = beats(0.0, 3.0 * STUCK, INTERVAL, progress=False)
        return TimedChannel(peer, *(said if progress is not None else said[:1]))

    first, *others = map(channel, (1, 2, 3))
    with pytest.raises(raised):
        serve(async_updates, first, None, *others)
    assert len(first.events) == (3 if raised is NobodyLeft else 0)


@pytest.mark.parametrize("async_updates", [True, False])
@pytest.mark.parametrize("error, raised", [(CutOffError("few"), NobodyLeft), (KeyError(1), RemoteRankError)])
def test_a_worker_that_gave_up_a_silent_server_is_lost_and_no_error(async_updates, error, raised):
    last = encode(Failed.of(error, 1))
    channel = TimedChannel(1, *beats(0.0, 0.5 * SILENCE, INTERVAL), (0.5 * SILENCE, last))
    with pytest.raises(raised):
        serve(async_updates, channel, None)
    assert channel.events == [("excluded", 1)] * (raised is NobodyLeft)


def test_a_worker_that_gives_up_when_all_steps_are_made_ends_no_run():
    """Not even where any loss is one too many: nothing is lost with it."""
    gave_up = [encode(Failed.of(CutOffError("few"), 1))] * 2
    channels = TimedChannel(1, *((0.0, each) for each in gave_up)), TimedChannel(2, (1.0, encode(Bye())))
    tally, table = Tally(total_steps=100), SharedTable(np.zeros(4), np.zeros(4, np.int64))
    policy = LossPolicy("abort")
    serving = Server(
        group(0, *channels), table, policy, tally, Reporter(tally), leases=LeaseBook(0, 100, [1, 2], 10)
    )
    serving.finish({})
    assert [event["kind"] for event in serving.group.events.entries] == ["excluded"]
    assert channels[1].kinds_sent[-1] is Kind.RELEASE


# A worker of the reproducible mode


def step_slowly(stream, steps, seconds, meanwhile=lambda: None):
    """Make steps as the learner of an environment that is stepped does, which may be cut between two."""
    for step in range(steps):
        if step and stream.is_cut():
            return
        time.sleep(seconds)
        stream.used += 1
        meanwhile()


def order(since, version, number):
    refresh = Refresh(since, version, None, np.zeros(4), np.zeros(4, np.int64))
    return encode(
        RoundOrder(RoundStart(PACE, number, 3 * number), refresh, number + 1, Order.GO_ON, (1, 1, 1))
    )


@pytest.fixture
def play_rounds():
    """Give a function that plays one round of three parts over a channel, each part for `seconds`."""

    def run(channel, seconds):
        played = []

        def learn(walker, stream, steps):
            played.append(walker)
            time.sleep(seconds)

        learner = SimpleNamespace(table=LocalTable(2, 2, np.dtype("f8")), totals=Totals(), learn=learn)
        begun = []
        part = RoundPart(learner, begun.extend, SETTINGS, 0, 6, 7, False)
        worker = RoundWorker(group(1, channel), part, PACE, Base())
        worker.follow_on(channel)
        try:
            return worker.run()
        finally:
            channel.begun, channel.played, channel.base = begun, played, worker.base

    return run


def test_a_worker_that_was_busy_waits_for_others_from_then_on(play_rounds):
    # Its own parts take over two limits of silence; the others take half of one more, and then three.
    end = 3.0 * 0.7 * SILENCE
    coming = [(0.0, order(-1, 0, 0)), (end + 0.5 * SILENCE, encode(Beat(1, (0, 0))))]
    coming += beats(end + SILENCE, end + 3.0 * SILENCE, INTERVAL)
    last = end + 3.5 * SILENCE
    coming += [(last, order(0, 1, 1)), (last + 1.0, done(4)), (last + 2.0, RELEASE)]
    channel = TimedChannel(0, *coming)
    final = play_rounds(channel, 0.7 * SILENCE)
    assert final.refresh.version == 1
    assert channel.begun == [0, 1, 2] and channel.played == [0, 1, 2, 0]  # the end comes in a next round
    assert channel.kinds_sent.count(Kind.ROUND) == 1
    assert channel.kinds_sent[-1] is Kind.BYE
    assert channel.kinds_sent.count(Kind.BEAT) >= 3 * 3  # at least three in each limit of silence


def test_a_slow_part_of_a_round_is_not_cut_and_shows_with_each_step_that_its_rank_does_not_hang():
    progress, made = [], []

    def learn(walker, stream, steps):
        step_slowly(stream, steps, 0.9 * STUCK, lambda: progress.append(worker.progress))
        made.append(stream.used)

    settings = replace(SETTINGS, batch_size=4)
    learner = SimpleNamespace(table=LocalTable(2, 2, np.dtype("f8")), totals=Totals(), learn=learn)
    part = RoundPart(learner, lambda numbers: None, settings, 0, 12, 7, False)
    begin = TimedChannel(0, (0.0, order(-1, 0, 0)), *beats(0.1, 12.0 * STUCK, INTERVAL))
    begin.coming += [(12.0 * STUCK, done(4)), (12.0 * STUCK, RELEASE)]
    worker = RoundWorker(group(1, begin), part, PACE, Base())
    worker.follow_on(begin)
    worker.run()
    assert made == [4, 4, 4] and len(set(progress)) == 12


def test_a_worker_that_is_told_nothing_but_the_end_has_the_newest_table(play_rounds):
    channel = TimedChannel(0, (0.0, done(4)), (0.1, RELEASE))
    play_rounds(channel, 0.1)
    assert channel.base == Base.finished(0) > Base(0, 7)


def test_a_worker_that_hears_nothing_looks_for_another_server(play_rounds):
    channel = TimedChannel(0, (0.0, order(-1, 0, 0)))
    with pytest.raises(ServerLost):
        play_rounds(channel, 0.1)
    assert channel.played == [0, 1, 2]
    assert 1.5 * SILENCE < channel.seconds < 2.0 * SILENCE  # by then it has given up itself


def test_a_worker_looks_for_another_server_if_its_main_loop_hangs(play_rounds):
    channel = TimedChannel(0, (0.0, order(-1, 0, 0)), *beats(0.2, 3.0 * STUCK, INTERVAL, progress=False))
    with pytest.raises(ServerLost):
        play_rounds(channel, 0.1)
    assert STUCK < channel.seconds < STUCK + SILENCE


def test_a_worker_hears_of_a_failure_before_it_plays_its_next_part(play_rounds):
    channel = TimedChannel(0, (0.0, order(-1, 0, 0)), (0.1, encode(Beat(1, (0, 0)))), (0.2, FAILED))
    with pytest.raises(RemoteRankError, match="no map"):
        play_rounds(channel, 1.0)
    assert channel.played == [0]


def test_the_time_in_which_a_worker_makes_ready_is_not_the_servers_silence(play_rounds):
    # Of what lies there by then, MPI may tell only when it is asked for the second time.
    late = 5.0 * SILENCE + 1e-3
    said = [(late, order(-1, 0, 0)), (late + 1.0, done(4)), (late + 2.0, RELEASE)]
    channel = TimedChannel(0, *said)
    time.sleep(5.0 * SILENCE)
    assert play_rounds(channel, 0.1).refresh.version == 1
    assert channel.kinds_sent[-1] is Kind.BYE


def test_a_server_that_says_nothing_once_a_worker_is_ready_is_lost(play_rounds):
    channel = TimedChannel(0)
    time.sleep(5.0 * SILENCE)
    with pytest.raises(ServerLost, match="silent"):
        play_rounds(channel, 0.1)
    assert 6.5 * SILENCE < channel.seconds < 7.0 * SILENCE


# A worker of asynchronous training


def pacer_of(steps):
    """Return what lets so many steps be made by one call, and pushed."""
    return SimpleNamespace(
        interval=steps, interval_seconds=1.0, longest_call=steps, longest_push=steps, urgent=False,
        wants_refresh=False,
        learned=lambda *numbers: None, pushed=lambda *numbers: None,
        gauge=SimpleNamespace(look=lambda base: None),
    )  # fmt: skip


def test_a_batch_of_slow_steps_is_cut_so_that_a_worker_hears_the_others_meanwhile():
    """Steps of 0.3 s: 32 of them are more than silence allows, and as much as `timeout` may be."""
    table, calls, progress = LocalTable(2, 2, np.dtype("f8")), [], []

    def learn(walker, stream, steps):
        used = stream.used
        step_slowly(stream, steps, 0.3, lambda: progress.append(worker.progress))
        calls.append(stream.used - used)

    channel = TimedChannel(
        0, (0.0, encode(Reply(0, Lease(1, 0, 32)))), *beats(0.1, 12.0, 1.0), (12.5, done(4)), (13.0, RELEASE)
    )
    learner = SimpleNamespace(table=table, walkers=[1], totals=Totals(), quantum=1, learn=learn)
    worker = Worker(group(1, channel), learner, pacer_of(32), PushWindow(table, 2, -1), SEND_ALL, 7)
    worker.follow_on(channel)
    assert worker.run().refresh.version == 1
    assert sum(calls) == 32 and max(calls) == 4  # which take 1.2 s
    assert len(set(progress)) == len(progress) >= 24
    pushes = [from_parts(Push, parts) for kind, parts in channel.sent if kind is Kind.PUSH]
    assert [(push.pushed.steps, push.made) for push in pushes] == [(32, {1: 32})]


def test_a_worker_that_is_asked_to_stop_does_not_make_its_batch_first():
    table, calls, watch = LocalTable(2, 2, np.dtype("f8")), [], StopWatch((), None, None)

    def learn(walker, stream, steps):
        step_slowly(stream, steps, 0.01, lambda: len(calls) or watch.ask(Stop(75, "a test")))
        calls.append(stream.used)

    lease = encode(Reply(0, Lease(1, 0, 32)))
    stopped = encode(Stopped(Stop(75, "a test"), None, 1))
    channel = TimedChannel(0, (0.0, lease), (0.1, encode(AskToStop(None))), (0.2, stopped))
    learner = SimpleNamespace(table=table, walkers=[1], totals=Totals(), quantum=1, learn=learn)
    parts = group(1, channel), learner, pacer_of(32), PushWindow(table, 2, -1), SEND_ALL, 7
    worker = Worker(*parts, watch=watch)
    worker.follow_on(channel)
    with pytest.raises(TrainingStopped):
        worker.run()
    assert calls[0] == 1 and channel.kinds_sent[0] is Kind.STOP
    (push,) = [from_parts(Push, parts) for kind, parts in channel.sent if kind is Kind.PUSH]
    assert push.made == {1: calls[-1]} and push.is_last


def test_a_long_call_of_the_environment_is_not_the_servers_silence():
    # What the server said meanwhile may need the worker's help to arrive.
    table = LocalTable(2, 2, np.dtype("f8"))
    lease = encode(Reply(0, Lease(1, 0, 10)))
    again = 3.5 * SILENCE
    channel = TimedChannel(
        0, (0.0, lease), (again, encode(Beat(1, (0, 0)))), (again + 1.0, done(4)), (again + 2.0, RELEASE)
    )
    learner = SimpleNamespace(
        table=table, walkers=[1], totals=Totals(), quantum=1,
        learn=lambda walker, stream, steps: step_slowly(stream, steps, 0.3 * SILENCE),
    )  # fmt: skip
    worker = Worker(group(1, channel), learner, pacer_of(10), PushWindow(table, 2, -1), SEND_ALL, 7)
    worker.follow_on(channel)
    final = worker.run()
    assert final.refresh.version == 1
    assert Kind.PUSH in channel.kinds_sent


# A worker that owns rows


def nothing_to_do(*_):
    """Stand for what a part does that is of no interest."""


def test_who_came_to_own_no_rows_has_those_of_its_host_all_the_same():
    """In the next call it may be let in late, and finds the memory in which they are by nobody's word."""
    channel = TimedChannel(0, (0.5, done(4)), (1.0, RELEASE))
    large = SimpleNamespace(is_divided=False, is_in_use=False)
    part = Part(SimpleNamespace(large=large), group(1, channel), None)
    worker = SuperstepWorker(part.group, part, Cut(0, 0, 100), Base())
    worker.follow_on(channel)
    worker.run()
    assert large.is_in_use


def test_a_table_that_came_is_not_lost_where_the_rows_are_divided_anew_at_once():
    cut, nothing = Cut(0, 0, 100), np.zeros(0, np.int64)
    table = Refresh(-1, 0, None, np.arange(4.0), np.ones(4, np.int64))
    first, second = (
        Begin(1, (0, 1), cut, table),
        Begin(2, (0, 1, 2), cut, Refresh(0, 0, nothing, np.zeros(0), nothing)),
    )
    channel = TimedChannel(0, (0.0, encode(first)), (0.0, encode(second)), (1.0, done(4)), (2.0, RELEASE))
    part = SimpleNamespace(taken=[], begun=[], close=nothing_to_do, note_rows=nothing_to_do)
    part.note_owners = nothing_to_do
    part.take = lambda refresh: part.taken.append(refresh.values.tolist())
    part.begin = lambda attempt, *_: part.begun.append(attempt)
    worker = SuperstepWorker(group(1, channel), part, cut, Base())
    worker.follow_on(channel)
    assert worker.run().refresh.version == 1
    assert part.taken == [[0.0, 1.0, 2.0, 3.0]] and part.begun == [2]


@pytest.mark.parametrize("comes", [Begin(2, (0, 1), Cut(0, 0, 100), Refresh(-1, 0, None, *NO_TABLE)), None])
def test_memory_that_is_gone_is_missed_only_if_no_other_order_comes(comes):
    """As where a second rank is lost while rows are divided anew, and the server makes other memory."""
    begin = Begin(1, (0, 1, 2), Cut(0, 0, 100), Refresh(-1, 0, None, *NO_TABLE))
    coming = [(0.0, encode(begin)), (0.0, encode(Play(1, 100))), *beats(0.5, 3.0 * SILENCE, 1.0)]
    coming[4:] = coming[4:] if comes is None else [(3.0, encode(comes)), (4.0, done(4)), (5.0, RELEASE)]
    channel = TimedChannel(0, *coming)
    part = SimpleNamespace(attempt=0, begun=[], take=nothing_to_do, close=nothing_to_do)
    part.note_owners = part.note_rows = nothing_to_do

    def begins(attempt, *_):
        if attempt == 1:
            raise CutOffError("There is no such memory.")
        part.begun.append(attempt)

    part.begin = begins
    worker = SuperstepWorker(group(1, channel), part, begin.cut, Base())
    worker.follow_on(channel)
    if comes is None:
        with pytest.raises(CutOffError, match="no such memory"):
            worker.run()
        assert SILENCE <= channel.seconds < 1.1 * SILENCE
    else:
        assert worker.run().refresh.version == 1
        assert part.begun == [2]


def test_who_has_nobody_to_wait_for_looks_around_all_the_same():
    """A server that all others were lost to has to let them in again."""
    part, looked = Part.__new__(Part), []
    part._share = SimpleNamespace(play_together=lambda *_: True, exchanged=lambda: (5, 0, 0.5))
    part.group = SimpleNamespace(wire=SimpleNamespace(now=lambda: 100.0, sleep=None))
    part.stream, part.rates, part._channels, part._tended = None, None, [], 0.0
    assert part._play_in_memory(10, lambda: looked.append(True)) == (5, 0, 0.5)
    assert looked


def test_no_two_channels_of_a_call_have_the_same_tag():
    """What was sent before a loss must not come to whoever takes part after it."""
    group = Group(SimpleNamespace(rank=0, size=4, tag_limit=2**31 - 1), [""] * 4)
    group.call = 3
    tags = []
    for term in (0, 1, 4, 16, 32, 256, 4000):
        group.adopt(View(term, 0, 0, (0, 1, 2, 3)))
        tags += [group.tag(term, admission) for admission in range(100)]
        tags += [group.tag_between_workers(group.first_attempt + attempt) for attempt in range(1, 100)]
    assert len(set(tags)) == len(tags)


def test_many_attempts_of_a_term_do_not_run_into_the_next():
    """A rank that is still in an old attempt must not take part in one of the next server."""
    group = Group(SimpleNamespace(rank=0, size=2, tag_limit=2**31 - 1), [""] * 2)
    numbers, tags = [], []
    for term in (7, 8):  # as close as two servers' terms can be
        group.adopt(View(term, 0, 0, (0, 1)))
        attempt = group.first_attempt
        for _ in range(1000):
            attempt = group.next_attempt(attempt)
            numbers.append(attempt)
            tags.append(group.tag_between_workers(attempt))
    assert len(set(numbers)) == len(set(tags)) == 2000


def test_a_term_in_which_there_can_be_no_more_attempts_ends_in_an_error_that_says_so():
    group = Group(SimpleNamespace(rank=0, size=2, tag_limit=2**31 - 1), [""] * 2)
    group.adopt(View(8, 0, 0, (0, 1)))
    next_term = group.first_attempt
    group.adopt(View(7, 0, 0, (0, 1)))
    assert group.next_attempt(next_term - 2) == next_term - 1
    with pytest.raises(ProtocolError, match="Ranks have begun anew .* times under the server of rank 0"):
        group.next_attempt(next_term - 1)


def test_attempts_of_late_terms_fit_into_the_memory_that_ranks_share():
    group = Group(SimpleNamespace(rank=0, size=2, tag_limit=2**31 - 1), [""] * 2)
    memory = np.zeros(bytes_of(2, 4, 3, 2, 1), np.uint8)
    sequences = []
    for term in (0, 8000, 1_000_000):
        group.adopt(View(term, 0, 0, (0, 1)))
        attempt = group.next_attempt(group.first_attempt)
        sequences.append(int(boxes_in(memory, 2, 4, 3, 2, 1, 0, (0, 1), attempt).state[SEQUENCE]))
    assert len(set(sequences)) == 3 and min(sequences) > 0
