"""What a worker reports of its pushes, by plain sets."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
from timed_channel import TimedChannel, stop_clock

from dist_classicrl.algorithms.learners import EpisodeTotals
from dist_classicrl.distributed import messages, server
from dist_classicrl.distributed.messages import Kind
from dist_classicrl.distributed.worker import Worker
from dist_classicrl.updates.local import LocalTable
from dist_classicrl.updates.window import PushWindow

PUSHES = 40


@pytest.mark.parametrize(
    "with_replays, entry_bytes", [(False, 4 + 8 + 8 + 4 + 4), (True, 4 + 8 + 8 + 4 + 4 + 4)]
)
@pytest.mark.parametrize("threshold", [0.0, 0.5])
def test_bytes_saved_are_what_pushes_without_a_threshold_had_carried_besides(
    monkeypatch, with_replays, entry_bytes, threshold
):
    stop_clock(monkeypatch)
    table = LocalTable(10, 2, np.dtype("f8"), None, with_replays)
    draw = random.Random(5)
    learned = []

    def learn(stream, steps):
        learned.append(draw.sample(range(20), 6))
        for entry in learned[-1]:
            if table.updates[entry] == 0:
                table.touched[table.n_touched[0]] = entry
                table.n_touched[0] += 1
            table.updates[entry] += 1
            table.shift[entry] += draw.choice([0.2, 0.6])

    head = np.array([1, 1], np.int64)
    done = messages.encode(Kind.DONE, head, np.zeros(20), np.zeros(20, np.int64), messages.text({}))
    channel = TimedChannel((0.0, server.reply_message(0, None, (1, 0, PUSHES))), (0.2, done))
    pacer = SimpleNamespace(
        interval=1, interval_seconds=1.0, longest_call=1, urgent=False, wants_refresh=False,
        learned=lambda *numbers: None, pushed=lambda *numbers: None,
        gauge=SimpleNamespace(look=lambda base: None),
    )  # fmt: skip
    learner = SimpleNamespace(totals=EpisodeTotals(), quantum=1, learn=learn)
    Worker(1, channel, table, learner, pacer, PushWindow(table, PUSHES, -1), threshold, 7, 60.0).run()

    pushes = [parts for kind, parts in channel.sent if kind is Kind.PUSH]
    assert len(pushes) == len(learned) == PUSHES
    carried = sum(parts[2].size for parts in pushes)
    saved = sum(int(parts[0][4]) for parts in pushes)
    assert saved == (sum(map(len, learned)) - carried) * entry_bytes
    assert (saved > 0) == (threshold > 0.0)
