"""Bounds for workers that are behind the server's table: when one waits, and that it never waits for ever."""

import time
from types import SimpleNamespace

import numpy as np
import pytest
from timed_channel import RELEASE, TimedChannel, done, group_of, stop_clock

from dist_classicrl import DistAsyncQLearning
from dist_classicrl.comm.envelope import Kind
from dist_classicrl.comm.messages import encode, from_parts
from dist_classicrl.compression import SEND_ALL
from dist_classicrl.engines.engine import engine_for
from dist_classicrl.engines.server.leases import Lease
from dist_classicrl.engines.server.messages import Push, Reply
from dist_classicrl.engines.server.staleness import StalenessBound
from dist_classicrl.engines.server.window import PushWindow
from dist_classicrl.engines.server.worker import Worker
from dist_classicrl.errors import SettingsError
from dist_classicrl.learning.learner import Totals
from dist_classicrl.settings import Settings
from dist_classicrl.tables.local import LocalTable
from dist_classicrl.tables.maps import Refresh


def window_of(pushes, received, base=0):
    """Return a window whose worker has made so many pushes, and whose base, of version `base`, has none."""
    window = PushWindow(LocalTable(2, 2, np.dtype(float)), 9, base)
    for _ in range(pushes):
        window.push()
    window.receipt(received)
    return window


def whole(version):
    return Refresh(-1, version, None, np.zeros(4), np.zeros(4, np.int64))


def test_nobody_waits_where_nothing_is_bounded():
    bound, window = StalenessBound(None, 16), window_of(5, 0)
    bound.heard(window, 10**6)
    assert not bound.must_wait(window) and not bound.needs_refresh(window)


def test_what_others_made_counts_and_not_what_the_worker_pushed_itself():
    window = window_of(3, 3)
    assert [window.lag(version) for version in (0, 3, 4, 10)] == [0, 0, 1, 7]
    window.refresh(whole(9), 3)
    assert window.lag(10) == 1
    window.enter(1)  # versions of another term say nothing of this base
    assert window.lag(10) == 0


@pytest.mark.parametrize("most", [0, 3, 7])
def test_a_worker_waits_once_it_heard_of_more_than_it_may_be_behind(most):
    bound, window = StalenessBound(most, 1), window_of(1, 1)
    bound.heard(window, 1 + most)
    assert not bound.must_wait(window)
    bound.heard(window, 2 + most)
    assert bound.must_wait(window)
    window.refresh(whole(2 + most), 1)
    assert not bound.must_wait(window)


def test_pushes_without_an_answer_count_by_what_others_made_meanwhile_so_far():
    # At first one of each of the three others.
    assert StalenessBound(2, 4).must_wait(window_of(1, 0))
    assert not StalenessBound(3, 4).must_wait(window_of(1, 0))
    assert StalenessBound(3, 4).must_wait(window_of(2, 0))
    # Alone there is nobody whom to wait for.
    assert not StalenessBound(0, 1).must_wait(window_of(2, 0))
    # Others turn out to be slow: of five versions, one was theirs.
    window, bound = window_of(0, 0), StalenessBound(1, 4)
    version = 0
    for number in range(1, 60):
        window.push()
        window.receipt(number)
        version += 2 if number % 5 == 0 else 1
        bound.heard(window, version)
        window.refresh(whole(version), number)
    window.push()
    assert not bound.must_wait(window)


def test_the_next_push_asks_for_a_refresh_before_its_worker_has_to_wait():
    bound, window = StalenessBound(5, 4), window_of(0, 0)
    assert not bound.needs_refresh(window)
    bound.heard(window, 3)
    assert bound.needs_refresh(window) and not bound.must_wait(window)


@pytest.mark.parametrize("most", [4, 5, None])
def test_a_worker_that_is_too_far_behind_asks_and_waits_for_what_it_lacks(monkeypatch, most):
    stop_clock(monkeypatch)
    table = LocalTable(2, 2, np.dtype("f8"))
    learned_at = []

    def learn(walker, stream, steps):
        learned_at.append(channel.seconds)
        stream.used += steps
        time.sleep(0.01)

    # It is five versions behind, as the first answer says, and hears nothing for a long time.
    lease = encode(Reply(0, Lease(1, 0, 4), version=5))
    fresh = encode(Reply(1, None, whole(6), version=6))
    channel = TimedChannel(0, (0.0, lease), (3.0, fresh), (6.0, done(4)), (6.1, RELEASE))
    pacer = SimpleNamespace(
        interval=2, interval_seconds=1.0, longest_call=2, longest_push=2, urgent=False,
        wants_refresh=False, refreshed=lambda seconds: None,
        learned=lambda *numbers: None, pushed=lambda *numbers: None,
        gauge=SimpleNamespace(look=lambda base: None),
    )  # fmt: skip
    learner = SimpleNamespace(table=table, walkers=[1], totals=Totals(), quantum=1, learn=learn)
    group, window = group_of(1, [channel], 1.0, 60.0, 60.0), PushWindow(table, 9, 0)
    worker = Worker(group, learner, pacer, window, SEND_ALL, 7, max_staleness=most)
    worker.follow_on(channel)
    worker.run()
    first, *_ = [from_parts(Push, parts) for kind, parts in channel.sent if kind is Kind.PUSH]
    assert len(learned_at) == 2
    if most == 4:
        assert first.pushed.packed.size == 0 and first.pushed.steps == 0
        assert first.wishes.refresh and first.wishes.whole_refresh and first.wishes.is_urgent
        assert min(learned_at) >= 3.0
    else:
        assert max(learned_at) < 3.0


def test_settings_that_cannot_be_had_together_are_refused_by_name():
    for given, named in (
        ({"max_staleness": -1}, "at least 0, or None"),
        ({"max_staleness": 2.5}, "max_staleness must be a whole number"),
        ({"merging": "median"}, "must be one of 'affine', 'order_free', 'staleness_weighted'"),
        ({"max_staleness": 4, "async_updates": False}, "Write max_staleness=None, or use async_updates=True"),
        ({"merging": "order_free", "async_updates": False}, 'Write merging="affine", or use'),
        ({"merging": "reject_stale"}, "Write for instance max_staleness=32 as well"),
        ({"merging": "staleness_weighted", "topology": "tree"}, 'Write merging="affine" or "order_free"'),
        ({"merging": "reject_stale", "max_staleness": 3, "topology": "tree"}, "come as one"),
    ):
        with pytest.raises(SettingsError, match=named):
            Settings(**given)
    for given in ({"max_staleness": 4}, {"merging": "order_free"}):
        with pytest.raises(SettingsError, match='placement="sharded" cannot be had with .*Write'):
            engine_for(Settings(**given), 4, "sharded")
        Settings(**given, topology="tree")


def test_a_process_alone_is_never_behind():
    tables = []
    for given in ({}, {"max_staleness": 0, "merging": "order_free"}):
        agent = DistAsyncQLearning(seed=3, **given)
        agent.train("FrozenLake-v1", total_steps=2000)
        tables.append(agent.q_table)
    assert (tables[0] == tables[1]).all()
