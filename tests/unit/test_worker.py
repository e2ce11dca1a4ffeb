"""What a worker reports of its pushes, by plain sets."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
from timed_channel import RELEASE, TimedChannel, beats, done, group_of, stop_clock

from dist_classicrl.comm.envelope import Kind
from dist_classicrl.comm.messages import encode
from dist_classicrl.comm.parts import from_parts
from dist_classicrl.compression import Carry
from dist_classicrl.engines.server.leases import Lease
from dist_classicrl.engines.server.messages import PassedOn, Push, Reply, Route
from dist_classicrl.engines.server.window import PushWindow
from dist_classicrl.engines.server.worker import Worker
from dist_classicrl.learning.learner import Totals
from dist_classicrl.tables.local import LocalTable

PUSHES = 40


def touch(table, entry, amount):
    """Learn something of an entry."""
    if table.updates[entry] == 0:
        table.touched[table.n_touched[0]] = entry
        table.n_touched[0] += 1
    table.updates[entry] += 1
    table.shift[entry] += amount


def count_steps(walker, stream, steps):
    """Learn nothing."""
    stream.used += steps


def make_worker(table, channels, learn, carry, silence, room=PUSHES):
    """Return one that pushes after each call of `learn`."""
    pacer = SimpleNamespace(
        interval=1, interval_seconds=1.0, longest_call=1, longest_push=9, urgent=False,
        wants_refresh=False,
        learned=lambda *numbers: None, pushed=lambda *numbers: None,
        gauge=SimpleNamespace(look=lambda base: None),
    )  # fmt: skip
    learner = SimpleNamespace(table=table, walkers=[1], totals=Totals(), quantum=1, learn=learn)
    group, window = group_of(1, channels, 1.0, silence, 60.0), PushWindow(table, room, -1)
    return Worker(group, learner, pacer, window, carry, 7)


def learned_and_pushed(monkeypatch, carry, with_replays=False):
    """Let a worker learn some entries before each push; return which, and the pushes."""
    stop_clock(monkeypatch)
    table = LocalTable(10, 2, np.dtype("f8"), None, with_replays)
    draw = random.Random(5)
    learned = []

    def learn(walker, stream, steps):
        learned.append(draw.sample(range(20), 6))
        for entry in learned[-1]:
            touch(table, entry, draw.choice([0.2, 0.6]))
        stream.used += steps

    lease = encode(Reply(0, Lease(1, 0, PUSHES)))
    channel = TimedChannel(0, (0.0, lease), (0.2, done(20)), (0.3, RELEASE))
    worker = make_worker(table, [channel], learn, carry, 60.0)
    worker.follow_on(channel)
    worker.run()

    pushes = [from_parts(Push, parts) for kind, parts in channel.sent if kind is Kind.PUSH]
    assert len(pushes) == len(learned) == PUSHES
    return learned, pushes


@pytest.mark.slow
@pytest.mark.parametrize(
    "with_replays, entry_bytes", [(False, 4 + 8 + 8 + 4 + 4), (True, 4 + 8 + 8 + 4 + 4 + 4)]
)
@pytest.mark.parametrize("threshold", [0.0, 0.5])
def test_bytes_saved_are_what_pushes_without_a_threshold_had_carried_besides(
    monkeypatch, with_replays, entry_bytes, threshold
):
    learned, pushes = learned_and_pushed(monkeypatch, Carry(threshold), with_replays)
    carried = sum(push.pushed.packed.size for push in pushes)
    saved = sum(push.bytes_saved for push in pushes)
    assert saved == (sum(map(len, learned)) - carried) * entry_bytes
    assert (saved > 0) == (threshold > 0.0)


def test_what_rounding_put_off_and_goes_at_the_end_is_no_byte_that_was_lost(monkeypatch):
    learned, pushes = learned_and_pushed(monkeypatch, Carry(bits=8))
    carried = [push.pushed.packed.size for push in pushes]
    assert carried[-1] > len(learned[-1]) and carried[:-1] == [len(each) for each in learned[:-1]]
    assert [push.bytes_saved for push in pushes] == [0] * PUSHES


class NotedChannel(TimedChannel):
    """A channel that also notes when each message was sent."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.times = []

    def send(self, message):
        super().send(message)
        self.times.append(self.seconds)

    def first(self, kind):
        return self.times[self.kinds_sent.index(kind)]


@pytest.mark.parametrize(("receipt", "leaves"), [(2.0, 2.0), (None, 8.0)])
@pytest.mark.parametrize("is_direct", [False, True])
def test_who_leaves_says_so_once_what_goes_by_another_rank_has_arrived(
    monkeypatch, receipt, leaves, is_direct
):
    stop_clock(monkeypatch)
    table, silence = LocalTable(10, 2, np.dtype("f8")), 7.0
    begins = [
        (0.0, encode(Route(1, 0 if is_direct else 2, (), 1, 0))),
        (0.1, encode(Reply(0, Lease(1, 0, 9)))),
    ]
    beats_till_end = beats(0.2, leaves + 0.5, 0.5)
    server = NotedChannel(0, *begins, *beats_till_end, (leaves + 0.6, RELEASE))
    came = [] if receipt is None else [(receipt, encode(PassedOn(2)))]
    node = NotedChannel(2, *came)

    # The first push waits for its receipt, and eight steps are left.
    worker = make_worker(table, [server, node], count_steps, Carry(), silence, room=1)
    worker.wants_to_leave = lambda: "SIGUSR2" if server.seconds >= 1.0 else None
    worker.follow_on(server)
    worker.run()

    parent = server if is_direct else node
    assert parent.kinds_sent.count(Kind.PUSH) == 2 and server.kinds_sent.count(Kind.LEAVE) == 1
    assert parent.first(Kind.PUSH) < 0.5
    assert server.first(Kind.LEAVE) == pytest.approx(1.0 if is_direct else leaves, abs=0.1)


@pytest.mark.parametrize("carry", [Carry(bits=4), Carry(threshold=0.5), Carry(share=0.3)])
def test_an_error_costs_nothing_of_what_earlier_pushes_put_off(monkeypatch, carry, caplog):
    stop_clock(monkeypatch)
    table, draw = LocalTable(10, 2, np.dtype("f8")), random.Random(5)
    learned, at_the_end = np.zeros(20), set()

    def learn(walker, stream, steps):
        is_last = channel.kinds_sent.count(Kind.PUSH) == 5
        for entry in draw.sample(range(20), 6):
            amount = draw.choice([0.2, 0.61])
            touch(table, entry, amount)
            if is_last:
                at_the_end.add(entry)
            else:
                learned[entry] += amount
        learner_totals.values += steps
        if is_last:
            raise ValueError("thin ice")
        stream.used += steps

    channel = TimedChannel(0, (0.0, encode(Reply(0, Lease(1, 0, PUSHES)))), (0.5, done(20)), (0.6, RELEASE))
    worker = make_worker(table, [channel], learn, carry, 60.0)
    learner_totals, worker.survives_errors = worker.learner.totals, True
    worker.follow_on(channel)
    worker.run()

    assert channel.kinds_sent.count(Kind.LEAVE) == 1 and channel.kinds_sent[6] is Kind.LEAVE
    pushes = [from_parts(Push, parts) for kind, parts in channel.sent if kind is Kind.PUSH]
    assert [push.pushed.sequence for push in pushes] == [1, 2, 3, 4, 5, 6]
    assert [push.pushed.steps for push in pushes] == [1, 1, 1, 1, 1, 0] and pushes[-1].pushed.packed.size
    assert sum(push.pushed.learned.episodes for push in pushes) == 5
    pushed, put_off = np.zeros(20), np.zeros(20)
    for push in pushes:
        put_off = pushed.copy()
        np.add.at(pushed, push.pushed.packed.entries, push.pushed.packed.shift)
    # With a threshold or a share what the error may have changed since is not known.
    known = np.array([entry for entry in range(20) if carry.bits or entry not in at_the_end])
    assert np.allclose(pushed[known], learned[known]) and not np.allclose(put_off[known], learned[known])
    assert (pushed <= learned + 1e-9).all() and table.waiting == 0


def test_who_begins_anew_learns_as_one_of_as_many_as_there_are_then():
    """A server that was deposed makes its worker in the new view, and with step sizes of the old one."""
    noted, channel = [], TimedChannel(0)
    worker = make_worker(LocalTable(10, 2, np.dtype("f8")), [channel, TimedChannel(2)], None, Carry(), 60.0)
    worker.note_workers = noted.append
    worker.begin_anew(channel, 0)
    assert noted == [2] == [worker.pacer.workers] == [len(worker.group.view.workers)]
