"""Who counts as lost: a rank that says nothing, not one that works, waits, or could not be listened to."""

import time
from types import SimpleNamespace

import numpy as np
import pytest
from timed_channel import TimedChannel, stop_clock

from dist_classicrl.algorithms.learners import EpisodeTotals
from dist_classicrl.distributed import messages, rounds, server
from dist_classicrl.distributed.leases import LeaseBook
from dist_classicrl.distributed.messages import Kind
from dist_classicrl.distributed.report import ProgressClock, Tally
from dist_classicrl.distributed.worker import Worker
from dist_classicrl.errors import RankTimeoutError, RemoteRankError
from dist_classicrl.settings import Settings
from dist_classicrl.updates.local import LocalTable, Refresh
from dist_classicrl.updates.shared import SharedTable
from dist_classicrl.updates.window import PushWindow

TIMEOUT = 8.0
BEAT = messages.encode(Kind.BEAT)
FAILED = messages.encode(
    Kind.FAILED,
    messages.text({"rank": 2, "host": "here", "summary": "OSError: no map", "remote_traceback": ""}),
)
SETTINGS = Settings(async_updates=False, logical_workers=3, sync_frequency=1, batch_size=1, timeout=TIMEOUT)


class Enough(Exception):
    """Ends a server that would serve for ever."""


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    stop_clock(monkeypatch)

    def receive(channels):
        return [(channel, message) for channel in channels if (message := channel.poll()) is not None]

    monkeypatch.setattr(server, "receive", receive)
    monkeypatch.setattr(rounds, "receive", receive)


def merged(since, version):
    return rounds.merged_message(Refresh(since, version, None, np.zeros(4), np.zeros(4, np.int64)))


def done():
    head = np.array([1, 1], np.int64)
    return messages.encode(Kind.DONE, head, np.zeros(4), np.zeros(4, np.int64), messages.text({}))


def beats(begin, end):
    return [(at, BEAT) for at in np.arange(begin, end, TIMEOUT / 4.0)]


# The server


def serve(async_updates, channel, report):
    tally, table = Tally(100), SharedTable(np.zeros(4), np.zeros(4, np.int64))
    progress = ProgressClock(tally, report, TIMEOUT)
    if async_updates:
        server.Server([channel], table, LeaseBook(0, 100, [1], 10), tally, progress, TIMEOUT).run()
    else:
        rounds.RoundServer([channel], table, SETTINGS, 0, 100, tally, progress).run()


@pytest.mark.parametrize("async_updates", [True, False])
@pytest.mark.parametrize("speaks_after, raised", [(0.0, Enough), (0.7, Enough), (1.5, RankTimeoutError)])
def test_the_time_of_a_callback_is_nobodys_silence(async_updates, speaks_after, raised):
    # Reported at one timeout, for three; what was said meanwhile may need the server's help to arrive.
    again = (4.0 + speaks_after) * TIMEOUT
    channel = TimedChannel(*beats(0.0, 0.9 * TIMEOUT), *beats(again, 8.0 * TIMEOUT))
    calls = []

    def report(progress):
        calls.append(progress.seconds)
        if len(calls) == 1:
            time.sleep(3.0 * TIMEOUT)
        elif channel.seconds > 6.0 * TIMEOUT:
            raise Enough

    with pytest.raises(raised):
        serve(async_updates, channel, report)
    assert calls


@pytest.mark.parametrize("async_updates", [True, False])
def test_the_server_says_that_it_waits(async_updates):
    channel = TimedChannel(*beats(0.0, 5.0 * TIMEOUT))
    with pytest.raises(RankTimeoutError, match="rank 1 gave no sign"):
        serve(async_updates, channel, None)
    assert channel.seconds > 5.0 * TIMEOUT
    assert channel.kinds_sent.count(Kind.BEAT) >= 3 * 5


# A worker of the reproducible mode


@pytest.fixture
def play_rounds(monkeypatch):
    """Give a function that plays one round of three parts over a channel, each part for `seconds`."""

    def run(channel, seconds):
        played = []

        def play(quota, learner, table, seed):
            played.append(quota.worker)
            time.sleep(seconds)
            return table.pack()

        monkeypatch.setattr(rounds, "play", play)
        learner = SimpleNamespace(totals=EpisodeTotals())
        table = LocalTable(2, 2, np.dtype("f8"))
        learners = {worker: learner for worker in range(3)}
        try:
            return rounds.RoundWorker(channel, table, learners, SETTINGS, 0, 3, 7).run()
        finally:
            channel.played = played

    return run


def test_a_worker_that_was_busy_waits_for_others_from_then_on(play_rounds):
    # Its own parts take over two timeouts; the others take half a timeout more, and then three.
    end = 3.0 * 0.7 * TIMEOUT
    channel = TimedChannel((0.0, merged(-1, 0)), (end + 0.5 * TIMEOUT, BEAT))
    channel.coming += [*beats(end + TIMEOUT, end + 3.0 * TIMEOUT), (end + 3.5 * TIMEOUT, merged(0, 1))]
    channel.coming.append((end + 3.6 * TIMEOUT, done()))
    final, _ = play_rounds(channel, 0.7 * TIMEOUT)
    assert final.version == 1
    assert channel.played == [0, 1, 2]
    assert channel.kinds_sent.count(Kind.ROUND) == 3
    assert channel.kinds_sent.count(Kind.BEAT) >= 3 * 3  # at least three in each timeout of waiting


def test_a_worker_that_hears_nothing_gives_up(play_rounds):
    channel = TimedChannel((0.0, merged(-1, 0)))
    with pytest.raises(RankTimeoutError, match="server, rank 1, gave no sign"):
        play_rounds(channel, 0.1)
    assert TIMEOUT < channel.seconds < 1.5 * TIMEOUT


def test_a_worker_hears_of_a_failure_before_it_plays_its_next_part(play_rounds):
    channel = TimedChannel((0.0, merged(-1, 0)), (0.1, BEAT), (0.2, FAILED))
    with pytest.raises(RemoteRankError, match="no map"):
        play_rounds(channel, 1.0)
    assert channel.played == [0]


# A worker of asynchronous training


def test_a_long_call_of_the_environment_is_not_the_servers_silence():
    # What the server said meanwhile may need the worker's help to arrive.
    table = LocalTable(2, 2, np.dtype("f8"))
    lease = server.reply_message(0, None, (1, 0, 10))
    channel = TimedChannel((0.0, lease), (3.5 * TIMEOUT, BEAT), (3.6 * TIMEOUT, done()))
    learner = SimpleNamespace(
        totals=EpisodeTotals(), quantum=1, learn=lambda stream, steps: time.sleep(3.0 * TIMEOUT)
    )
    pacer = SimpleNamespace(
        interval=10, interval_seconds=1.0, longest_call=10, urgent=False, wants_refresh=False,
        learned=lambda *numbers: None, pushed=lambda *numbers: None,
        gauge=SimpleNamespace(look=lambda base: None),
    )  # fmt: skip
    window = PushWindow(table, 2, -1)
    final, _ = Worker(1, channel, table, learner, pacer, window, 0.0, 7, TIMEOUT).run()
    assert final.version == 1
    assert Kind.PUSH in channel.kinds_sent
