"""What a worker reports of its pushes, by plain sets."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
from timed_channel import RELEASE, TimedChannel, done, group_of, stop_clock

from dist_classicrl.comm.envelope import Kind
from dist_classicrl.comm.messages import encode
from dist_classicrl.comm.parts import from_parts
from dist_classicrl.compression import Carry
from dist_classicrl.engines.server.leases import Lease
from dist_classicrl.engines.server.messages import Push, Reply
from dist_classicrl.engines.server.window import PushWindow
from dist_classicrl.engines.server.worker import Worker
from dist_classicrl.learning.learner import Totals
from dist_classicrl.tables.local import LocalTable

PUSHES = 40


def learned_and_pushed(monkeypatch, carry, with_replays=False):
    """Let a worker learn some entries before each push; return which, and the pushes."""
    stop_clock(monkeypatch)
    table = LocalTable(10, 2, np.dtype("f8"), None, with_replays)
    draw = random.Random(5)
    learned = []

    def learn(walker, stream, steps):
        learned.append(draw.sample(range(20), 6))
        for entry in learned[-1]:
            if table.updates[entry] == 0:
                table.touched[table.n_touched[0]] = entry
                table.n_touched[0] += 1
            table.updates[entry] += 1
            table.shift[entry] += draw.choice([0.2, 0.6])

    lease = encode(Reply(0, Lease(1, 0, PUSHES)))
    channel = TimedChannel(0, (0.0, lease), (0.2, done(20)), (0.3, RELEASE))
    pacer = SimpleNamespace(
        interval=1, interval_seconds=1.0, longest_call=1, longest_push=9, urgent=False,
        wants_refresh=False,
        learned=lambda *numbers: None, pushed=lambda *numbers: None,
        gauge=SimpleNamespace(look=lambda base: None),
    )  # fmt: skip
    learner = SimpleNamespace(table=table, walkers=[1], totals=Totals(), quantum=1, learn=learn)
    group, window = group_of(1, [channel], 1.0, 60.0, 60.0), PushWindow(table, PUSHES, -1)
    worker = Worker(group, learner, pacer, window, carry, 7)
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
