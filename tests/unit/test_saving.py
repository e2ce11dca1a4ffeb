"""When a run is saved, what is handed to the writer, and what comes of it where that cannot write."""

import errno
import json
import logging
import math
import os
import shutil
import signal
import threading
import time
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from dist_classicrl import DistAsyncQLearning, TabularMDP
from dist_classicrl.agent.agent import state_of
from dist_classicrl.callbacks import BaseCallback
from dist_classicrl.checkpoint.fence import Succession
from dist_classicrl.checkpoint.folder import CheckpointFolder
from dist_classicrl.checkpoint.local import LocalStorage
from dist_classicrl.checkpoint.plan import checkpoint_plan
from dist_classicrl.checkpoint.writer import Writer
from dist_classicrl.engines import loops as alone
from dist_classicrl.engines import saving
from dist_classicrl.engines.outcome import Outcome, Tally
from dist_classicrl.engines.saving import Position, Saver
from dist_classicrl.errors import CheckpointFencedError, RankTimeoutError, TrainingStopped
from dist_classicrl.model import places
from dist_classicrl.model.places import PlaceName, Places
from dist_classicrl.process import stop as stopping
from dist_classicrl.process.stop import Stop, StopWatch
from dist_classicrl.tables.shape import TableShape

LAKE = TabularMDP.from_gymnasium("FrozenLake-v1")
PLAN = {
    "checkpoint_interval": 100,
    "keep_last": 3,
    "keep_every": None,
    "resume": "auto",
    "strict": True,
    "time_limit": None,
    "stop_signals": (),
    "checkpoint_mode": 0o600,
}


class Clock:
    """A clock that tests set."""

    def __init__(self):
        self.now = 1_000.0

    def monotonic(self):
        return self.now


class FakeWriter:
    """Takes what is to be written, and is through with it after so many seconds of waiting."""

    url = "somewhere/agent-0"

    def __init__(self, clock, takes=0.0, fails=False):
        self.clock, self.takes, self.fails = clock, takes, fails
        self.goes_on_until = math.inf  # seconds of the clock after which nothing is written any more
        self.written, self.job, self.left = [], None, 0.0
        self.abandoned, self.limits = None, set()
        self.seconds, self.last, self.failed, self.fenced = 0.0, None, False, None

    @property
    def last_good(self):
        return self.last or "none"

    @property
    def busy(self):
        return self.job is not None

    @property
    def needs_arrays(self):
        return self.busy and self.abandoned is not self.job

    @property
    def stalled_for(self):
        return max(0.0, self.clock.now - self.goes_on_until)

    def submit(self, arrays, body, run):
        assert not self.busy
        self.job, self.left = (arrays, body, run), self.takes

    def wait(self, timeout):
        assert self.clock.now < 1e6, "this would go on for ever"
        passed = min(timeout, self.left)
        self.clock.now += passed
        self.left -= passed
        if self.busy and self.left <= 0.0:
            self.failed = self.fails
            if not self.fails:
                self.written.append(self.job)
                self.last = f"checkpoint {len(self.written)}"
            self.job = None
        return not self.busy

    def abandon(self):
        self.abandoned = self.job

    def report_slow(self, seconds):
        self.limits.add(seconds)

    def check(self):
        if self.fenced is not None:
            raise self.fenced


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(saving, "time", made)
    return made


def make_saver(
    clock, takes=0.0, fails=False, table=(2, 3), corner=(2, 3), patience=10.0, finished=None, **plan
):
    writer = FakeWriter(clock, takes, fails)
    values, counts = np.full(table, 7.0), np.full(table, 7)
    watch = StopWatch((), None, None)
    saver = Saver(
        checkpoint_plan(checkpoint_dir="somewhere", **{**PLAN, **plan}),
        writer,
        {"run": "0123abcd", "call": {"begin": 10, "end": 90}, "seed": 5, "environment": {"text": "lake"}},
        (values, counts),
        TableShape(*table),
        corner,
        {"legal": np.ones((2, 3), bool)},
        [] if finished is None else finished,
        watch,
        50,
        patience,
    )
    return saver, writer, watch


def position(steps=60, **more):
    return Position(steps, Tally(total_steps=80).to_dict(1.5), "async", **more)


VALUES, COUNTS = np.arange(6.0), np.arange(6)


def test_by_steps_it_is_due_at_their_multiples(clock):
    saver, _, _ = make_saver(clock)
    assert saver.next_step == 100
    assert [steps for steps in (50, 99, 100, 101) if saver.is_due(steps)] == [100, 101]
    saver.begin(170)
    assert [steps for steps in (171, 199, 200) if saver.is_due(steps)] == [200]
    saver.begin(200)
    clock.now += 1e9
    assert not saver.is_due(299)


def test_a_multiple_at_which_the_last_one_is_not_on_disk_is_left_out(clock):
    saver, writer, _ = make_saver(clock, takes=5.0)
    saver.begin(100)
    saver.save(VALUES, COUNTS, position())
    saver.look(200)
    assert saver.next_step == math.inf and not saver.is_due(200)
    writer.wait(5.0)
    saver.look(230)
    assert saver.next_step == 300
    assert [steps for steps in (230, 299, 300) if saver.is_due(steps)] == [300]


def test_who_asks_when_it_is_due_changes_nothing(clock):
    saver, writer, _ = make_saver(clock, takes=5.0)
    saver.save(VALUES, COUNTS, position())
    writer.wait(5.0)
    saver.look(110)
    for _ in range(2):  # neither moves the step at which it is due, nor makes it up
        assert [saver.is_due(steps) for steps in (10**6, 110, 199, 200)] == [True, False, False, True]
        assert saver.next_step == 200
    assert not writer.limits


def test_by_time_it_is_due_so_many_seconds_after_the_last_began(clock):
    saver, _, _ = make_saver(clock, checkpoint_interval="30s")
    clock.now += 29.9
    assert not saver.is_due(10**12)
    clock.now += 0.2
    assert saver.is_due(50)
    saver.begin(50)
    clock.now += 29.9
    assert not saver.is_due(50)
    clock.now += 0.2
    assert saver.is_due(50)


@pytest.mark.parametrize("way", ["in place", "on a card"])
def test_where_all_wait_for_it_writing_takes_half_of_the_time_at_most(clock, way, caplog):
    saver, _, _ = make_saver(clock, takes=30.0, patience=99.0, checkpoint_interval="2s")
    learned = []
    for _ in range(4):
        begun = clock.now
        while not saver.is_due(50):
            clock.now += 0.5
        learned.append(clock.now - begun)
        saver.begin(50)
        if way == "in place":
            saver.save_and_wait(VALUES, COUNTS, position())
        else:
            saver.save(VALUES, COUNTS, position(), is_live=True)
            clock.now += 0.25  # learned there, until the rows here have to change
            saver.wait()
    assert learned[0] == 2.0 and min(learned[1:]) >= 30.0 and max(learned) <= 30.5
    (record,) = caplog.records
    assert "which took 30.0 s" in record.message and "one every 2 s" in record.message
    assert 'Write checkpoint_interval="270s" or more' in record.message


def test_where_all_wait_for_it_the_interval_counts_from_its_end(clock, caplog):
    saver, writer, _ = make_saver(clock, takes=5.0, checkpoint_interval="30s")
    for takes, due in ((5.0, 30.0), (0.0, 30.0)):
        writer.takes = takes
        saver.begin(50)
        saver.save_and_wait(VALUES, COUNTS, position())
        clock.now += due - 0.1
        assert not saver.is_due(50)
        clock.now += 0.2
        assert saver.is_due(50)
    # What is written while learning goes on counts from its beginning, however long the one before took.
    writer.takes = 50.0
    saver.save_and_wait(VALUES, COUNTS, position())
    saver.begin(50)
    clock.now += 30.1
    assert saver.is_due(50) and len(caplog.records) == 1


@pytest.mark.parametrize("interval", [1, "1ms"])
def test_it_is_never_due_before_the_last_one_is_on_disk(clock, interval):
    saver, writer, _ = make_saver(clock, takes=5.0, checkpoint_interval=interval)
    saver.save(VALUES, COUNTS, position())
    clock.now += 100.0
    assert not saver.is_due(10**12)
    writer.wait(5.0)
    saver.look(10**12)
    clock.now += 0.1
    assert saver.is_due(10**12) is (interval == "1ms")
    assert saver.is_due(10**12 + 1)


def test_what_a_checkpoint_says(clock):
    finished = [{"begin": 0, "end": 10, "result": Outcome(steps=10).to_dict()}]
    saver, writer, _ = make_saver(clock, finished=finished)
    learners = {"position": np.zeros((1, 2), np.int64)}
    saver.save(VALUES, COUNTS, position(version=4, applied={"1": 3}, learners=learners, exact=np.ones(6)))
    finished.append("what comes later")
    writer.wait(1.0)
    ((arrays, body, run),) = writer.written
    assert set(arrays) == {"q_table", "visits", "legal", "position", "exact"}
    assert np.array_equal(arrays["q_table"], VALUES.reshape(2, 3)) and arrays["visits"].shape == (2, 3)
    assert run == body["run"] == "0123abcd"
    assert body == {
        "run": "0123abcd",
        "call": {"begin": 10, "end": 90},
        "seed": 5,
        "environment": {"text": "lake"},
        "steps": 60,
        "mode": "async",
        "stream": None,
        "version": 4,
        "applied": {"1": 3},
        "tally": Tally(total_steps=80).to_dict(1.5),
        "finished": finished[:1],
        "pace": None,
    }


def test_a_table_larger_than_the_environment_is_saved_whole(clock):
    saver, writer, _ = make_saver(clock, table=(4, 5), corner=(2, 3))
    saver.save(VALUES, COUNTS, position())
    writer.wait(1.0)
    arrays = writer.written[0][0]
    for name, corner in (("q_table", VALUES), ("visits", COUNTS)):
        assert np.array_equal(arrays[name][:2, :3], corner.reshape(2, 3))
        assert (arrays[name][2:] == 7).all() and (arrays[name][:, 3:] == 7).all()


def test_the_last_one_waits_for_the_one_before(clock):
    saver, writer, _ = make_saver(clock, takes=1.0)
    called = []
    saver.save(VALUES, COUNTS, position(60))
    assert saver.save_last(VALUES, COUNTS, position(70), lambda: called.append(clock.now)) == "checkpoint 2"
    assert [body["steps"] for _, body, _ in writer.written] == [60, 70]
    # Two seconds, about every 50 ms
    assert len(called) >= 30 and max(np.diff(called)) < 0.2


@pytest.mark.parametrize("before", ["nothing", "of copies", "of what is learned in"])
def test_the_last_one_is_not_waited_for_without_end(clock, before, caplog):
    saver, writer, _ = make_saver(clock, takes=1e9, patience=3.0)
    writer.last = "the one before"
    if before != "nothing":
        saver.save(VALUES, COUNTS, position(60), is_live=before == "of what is learned in")
    began = clock.now
    assert saver.save_last(VALUES, COUNTS, position(70)) is None
    assert clock.now - began < 3.5
    # What is read from arrays that may change now must not be published, but copies may.
    assert writer.job is not None and writer.abandoned is (None if before == "of copies" else writer.job)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "did not get ready within 3 s in somewhere/agent-0" in record.message
    assert "The last good one of this process is the one before." in record.message
    assert saver.save_last(VALUES, COUNTS, position(70), patience=1e9) is None
    assert clock.now - began < 7.0


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("error", [KeyboardInterrupt, RankTimeoutError])
def test_who_leaves_the_wait_for_the_last_one_abandons_it(clock, error, before):
    saver, writer, _ = make_saver(clock, takes=1e9)
    if before:
        saver.save(VALUES, COUNTS, position(60))

    def leave():
        raise error

    with pytest.raises(error):
        saver.save_last(VALUES, COUNTS, position(70), leave)
    assert writer.job is not None and writer.abandoned is writer.job


@pytest.mark.parametrize("given", [{}, {"patience": 3.0}])
def test_who_has_to_change_the_arrays_waits_for_a_while_and_once(clock, given, caplog):
    saver, writer, _ = make_saver(clock, takes=1e9)
    saver.save(VALUES, COUNTS, position())
    assert saver.is_busy
    began = clock.now
    saver.wait(**given)
    limit = given.get("patience", 10.0)
    assert limit <= clock.now - began < limit + 0.2 and writer.busy
    assert not saver.is_busy and f"is given up after {limit:.0f} s" in caplog.text
    saver, writer, _ = make_saver(clock, takes=2.0)
    saver.save(VALUES, COUNTS, position())
    saver.wait(**given)
    assert len(writer.written) == 1 and writer.abandoned is None


def test_one_that_all_wait_for_may_take_as_long_as_it_goes_on(clock, caplog):
    saver, writer, _ = make_saver(clock, takes=1e5, patience=10.0)
    called = []
    saver.save_and_wait(VALUES, COUNTS, position(), lambda: called.append(clock.now))
    assert len(writer.written) == 1 and writer.abandoned is None
    assert len(called) > 1e6 and not caplog.records


def test_one_that_all_wait_for_is_given_up_where_nothing_of_it_is_written_any_more(clock, caplog):
    saver, writer, _ = make_saver(clock, takes=1e9, patience=10.0)
    writer.goes_on_until = clock.now + 500.0
    begun, large = clock.now, np.broadcast_to(0.0, 10**10)  # 160 GB with its visits, and 8 bytes of memory
    writer.submit, saver._arrays = lambda *_: FakeWriter.submit(writer, {}, {}, "run"), lambda *_: {}
    saver.save_and_wait(large, large, position())
    # A slow disk needs 3,200 s for what its system may have kept back.
    assert 3_710.0 < clock.now - begun < 3_711.0
    assert writer.abandoned is writer.job is not None and not saver.is_busy
    (record,) = caplog.records
    assert record.levelname == "WARNING" and "nothing of it was written for 3210 s" in record.message


def test_who_leaves_the_wait_for_one_that_all_wait_for_gives_it_up(clock):
    saver, writer, _ = make_saver(clock, takes=1e9)

    def leave():
        raise RankTimeoutError

    with pytest.raises(RankTimeoutError):
        saver.save_and_wait(VALUES, COUNTS, position(), leave)
    assert writer.job is not None and writer.abandoned is writer.job


def test_the_last_one_is_kept_where_it_is_ready_in_time(clock, caplog):
    saver, writer, _ = make_saver(clock, takes=2.9, patience=3.0)
    assert saver.save_last(VALUES, COUNTS, position(70)) == "checkpoint 1"
    assert writer.abandoned is None and not caplog.records


@pytest.mark.parametrize("interval, limit", [("1s", 60.0), (100, 60.0), ("2h", 7200.0)])
def test_one_that_takes_long_is_reported(clock, interval, limit):
    saver, writer, _ = make_saver(clock, takes=1e9, checkpoint_interval=interval)
    saver.look(10**12)
    assert writer.limits == set()
    saver.save(VALUES, COUNTS, position(60))
    saver.look(10**12)
    assert writer.limits == {limit}
    writer.limits.clear()
    saver.save_last(VALUES, COUNTS, position(70))
    assert writer.limits == {limit}


@pytest.mark.parametrize("interval, seconds", [("6h", 60.0), (10**9, 60.0), ("5s", 5.0)])
def test_after_a_failure_the_next_one_is_tried_soon(clock, interval, seconds):
    saver, writer, _ = make_saver(clock, checkpoint_interval=interval)
    writer.fails = True
    for _ in range(2):
        saver.begin(60)
        saver.save(VALUES, COUNTS, position(60))
        writer.wait(1.0)
        clock.now += seconds - 0.5
        assert writer.failed and not saver.is_due(70)
        clock.now += 0.6
        assert saver.is_due(70)
    writer.fails = False
    saver.begin(70)
    saver.save(VALUES, COUNTS, position(70))
    writer.wait(1.0)
    clock.now += 61.0
    assert saver.is_due(80) == (interval == "5s")


def test_one_that_could_not_be_written_is_nowhere(clock, caplog):
    saver, writer, _ = make_saver(clock)
    assert saver.save_last(VALUES, COUNTS, position(60)) == "checkpoint 1"
    writer.fails = True
    # Not where the one before it is
    assert not caplog.records
    assert saver.save_last(VALUES, COUNTS, position(70)) is None
    assert saver.finish(VALUES, COUNTS, position(70), Outcome()) is None
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2, "each time, as after either of them this process may end"
    assert all("the last good one of this process (checkpoint 1) is not saved" in each for each in said)


def test_somebody_else_in_the_folder_is_raised_but_does_not_hide_another_error(clock, caplog):
    saver, writer, _ = make_saver(clock)
    assert saver.look(60) is None
    writer.fenced = CheckpointFencedError("somebody else")
    for call in (lambda: saver.look(60), lambda: saver.save_last(VALUES, COUNTS, position())):
        with pytest.raises(CheckpointFencedError):
            call()
    saver.rescue(VALUES, COUNTS, position())
    assert "somebody else" in caplog.text


def test_an_error_does_not_wait_for_long(clock):
    saver, _, _ = make_saver(clock, takes=1e9, patience=1e6)
    began = clock.now
    saver.rescue(VALUES, COUNTS, position())
    assert clock.now - began < 30.0


def test_the_end_of_a_call_is_saved_with_its_result(clock):
    finished = []
    saver, writer, _ = make_saver(clock, finished=finished)
    result = Outcome(steps=80, episodes=3, mean_return=0.5)
    assert saver.finish(VALUES, COUNTS, position(90), result) == "checkpoint 1"
    assert writer.written[0][1]["finished"] == finished
    assert finished == [{"begin": 10, "end": 90, "result": result.to_dict(), "environment": "lake"}]
    assert Outcome.is_described_by(json.loads(json.dumps(finished[0]["result"])))


def test_only_so_many_results_are_kept():
    finished = []
    for call in range(saving._KEPT_RESULTS + 5):
        saving.note_finished(finished, call, call + 1, Outcome(steps=1 if call != 2 else 0), "lake")
    # The third was ended early: where it ended has to be known for good.
    assert len(finished) == saving._KEPT_RESULTS + 1
    assert [call["begin"] for call in (*finished[:2], finished[-1])] == [2, 5, saving._KEPT_RESULTS + 4]
    assert finished[0] == {"begin": 2, "end": 3, "result": {"steps": 0}, "environment": "lake"}
    assert Outcome.is_described_by(finished[0]["result"])
    assert repr(Outcome.from_dict(finished[0]["result"])) == repr(Outcome(steps=0))


def test_a_request_to_stop_is_found(clock):
    saver, _, watch = make_saver(clock)
    assert saver.look(60) is None and saver.asked_to_stop is None
    stop = Stop(75, "another rank")
    saver.ask_to_stop(stop)
    assert saver.look(60) == saver.asked_to_stop == watch.stop == stop


def saver_with_parts(tmp_path, clock, write_parts):
    folder = CheckpointFolder(tmp_path, "agent-0")
    folder.fence.claim()
    saver, _, _ = make_saver(clock)
    saver.writer = Writer(folder)
    saver.write_parts = lambda name: write_parts(folder, name)
    return saver


def test_a_server_that_was_replaced_does_not_go_on_where_parts_are_written(tmp_path, clock):
    saver = saver_with_parts(tmp_path, clock, lambda folder, name: {})
    CheckpointFolder(tmp_path, "agent-0").fence.claim()
    with pytest.raises(CheckpointFencedError):
        saver.save(VALUES, COUNTS, position())


def successor_on(tmp_path, clock, term=5, first=1):
    """Return the saver of a server in place of one that claimed the folder under the number `first`."""
    saver, _, _ = make_saver(clock)
    saver.writer = Writer(CheckpointFolder(tmp_path, "agent-0"), Succession(first, term))
    saver.writer.try_to_claim()
    return saver


@pytest.mark.parametrize("has_parts", [False, True])
def test_a_folder_that_cannot_be_taken_over_yet_is_tried_again_and_that_is_said_once(
    tmp_path, clock, monkeypatch, caplog, has_parts
):
    CheckpointFolder(tmp_path, "agent-0").fence.claim()
    is_full = [True]
    write_new = LocalStorage.write_new

    def write_on_a_full_disk(storage, path, data):
        if is_full[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write_new(storage, path, data)

    monkeypatch.setattr(LocalStorage, "write_new", write_on_a_full_disk)
    saver = successor_on(tmp_path, clock)
    if has_parts:
        saver.write_parts = lambda name: {}
    assert not saver.is_due(60)
    clock.now += 60.0  # in place of the interval of 100 steps
    assert saver.is_due(60)
    assert saver.save_last(VALUES, COUNTS, position()) is None
    assert saver.look(60) is None and not saver.is_saved()
    is_full[0] = False
    assert "f000002-c00000001" in saver.save_last(VALUES, COUNTS, position())
    assert caplog.text.count("No checkpoint could be written") == 1
    assert caplog.text.count("Checkpoints can be written to") == 1


def test_who_was_replaced_before_it_could_claim_takes_the_folder_from_nobody(tmp_path, clock, monkeypatch):
    """Servers follow each other in terms; the one of term 5 stands still until that of term 8 has claimed."""
    CheckpointFolder(tmp_path, "agent-0").fence.claim()
    with monkeypatch.context() as full:
        full.setattr(LocalStorage, "create", lambda _: (_ for _ in ()).throw(OSError("full")))
        late = successor_on(tmp_path, clock, 5)
    newest = successor_on(tmp_path, clock, 8)
    with pytest.raises(CheckpointFencedError, match="this process was to follow number 1"):
        late.save_last(VALUES, COUNTS, position())
    assert newest.save_last(VALUES, COUNTS, position()) and newest.look(60) is None
    following = successor_on(tmp_path, clock, 13)
    assert following.save_last(VALUES, COUNTS, position())
    with pytest.raises(CheckpointFencedError):
        newest.save_last(VALUES, COUNTS, position())


@pytest.mark.parametrize("claims", [1, 2])
def test_a_folder_that_another_job_has_claimed_is_not_taken_over(tmp_path, clock, claims):
    for _ in range(1 + claims):
        CheckpointFolder(tmp_path, "agent-0").fence.claim()
    with pytest.raises(CheckpointFencedError):
        successor_on(tmp_path, clock).look(60)
    assert CheckpointFolder(tmp_path, "agent-0").fence.claim() == 2 + claims


def test_a_claim_that_was_made_and_not_confirmed_is_ones_own(tmp_path, clock, monkeypatch):
    CheckpointFolder(tmp_path, "agent-0").fence.claim()
    listed, n = LocalStorage.listed, []

    def list_once(storage, folder=""):
        n.append(folder)
        if len(n) == 2:
            raise OSError("it is away")
        return listed(storage, folder)

    with monkeypatch.context() as away:
        away.setattr(LocalStorage, "listed", list_once)
        saver = successor_on(tmp_path, clock)
    assert saver.writer.failed
    assert "f000003-" in saver.save_last(VALUES, COUNTS, position())


def test_who_could_not_claim_in_one_call_saves_in_the_next(tmp_path, monkeypatch):
    plan, places = checkpoint_plan(checkpoint_dir=tmp_path), Places()
    CheckpointFolder(tmp_path, "agent-0").fence.claim()
    with monkeypatch.context() as full:
        full.setattr(LocalStorage, "create", lambda _: (_ for _ in ()).throw(OSError("full")))
        place = places.take_over(plan, PlaceName(0, "0123abcd"), Succession(1, 5))
        place.writer.try_to_claim()
    assert place.writer.failed
    assert places.of(plan) is place and place.claim(None)
    place.writer.next_name(10, "0123abcd")  # it claims nothing a second time
    assert place.folder.fence.check() == 2 and not place.writer.failed


def test_who_saved_before_another_one_did_claims_anew_when_it_serves_again(tmp_path):
    plan, places = checkpoint_plan(checkpoint_dir=tmp_path), Places()
    first = places.of(plan)
    assert first.claim(None)
    CheckpointFolder(tmp_path, "agent-0").fence.claim()  # of the rank that took over
    places.note(plan, first.name)
    again = places.of(plan)
    again.claim(None)
    assert again.folder.fence.check() == 3


@pytest.mark.parametrize("emptied", [False, True])
def test_a_folder_that_was_removed_between_two_calls_is_made_anew(emptied, tmp_path, caplog):
    agent = DistAsyncQLearning(seed=1)
    asked = {"total_steps": 1000, "checkpoint_dir": tmp_path / "kept"}
    agent.train("FrozenLake-v1", **asked)
    shutil.rmtree(tmp_path / "kept")
    if emptied:
        (tmp_path / "kept" / "agent-0").mkdir(parents=True)
    agent.train("FrozenLake-v1", **asked)
    assert caplog.text.count("has been removed or emptied since an earlier call of train") == 1
    saved = DistAsyncQLearning.load_model(tmp_path / "kept")
    assert saved.steps == agent.steps == 2000
    assert saved.q_table.tobytes() == agent.q_table.tobytes()
    caplog.clear()
    agent.train("FrozenLake-v1", **asked)
    assert not caplog.text and DistAsyncQLearning.load_model(tmp_path / "kept").steps == 3000


def test_claims_that_were_removed_between_two_calls_cost_no_checkpoint(tmp_path, caplog):
    agent = DistAsyncQLearning(seed=1)
    asked = {"total_steps": 1000, "checkpoint_dir": tmp_path}
    agent.train("FrozenLake-v1", **asked)
    for path in (tmp_path / "agent-0").glob("fence-*"):
        path.unlink()
    agent.train("FrozenLake-v1", **asked)
    assert "removed or emptied" not in caplog.text
    assert caplog.text.count("fence-*.json") == 1 and "this process claims the folder anew" in caplog.text
    assert agent.steps == DistAsyncQLearning.load_model(tmp_path).steps == 2000


def test_what_was_saved_there_meanwhile_is_seen_though_all_claims_were_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(places, "_agents", {})
    other = CheckpointFolder(tmp_path, "agent-0")
    other.fence.claim()
    read = other.write({"a": VALUES}, {"steps": 5}, "0123abcd")
    place = Places().of(checkpoint_plan(checkpoint_dir=tmp_path))
    assert place.claim(read)
    other.fence.claim()
    other.write({"a": VALUES}, {"steps": 6}, "0123abcd")
    for path in (tmp_path / "agent-0").glob("fence-*"):
        path.unlink()
    assert not place.claim(read)
    assert place.folder.fence.check() == 4


def test_numbers_of_claims_never_go_back(tmp_path, monkeypatch):
    """Else what is learned again would meet random numbers a second time."""
    monkeypatch.setattr(places, "_agents", {})
    CheckpointFolder(tmp_path, "agent-0").fence.claim()
    place = Places().of(checkpoint_plan(checkpoint_dir=tmp_path))
    place.claim(None)
    assert (place.folder.fence.number, place.generation) == (2, 1)
    shutil.rmtree(tmp_path / "agent-0")
    assert place.claim(None)
    assert (place.folder.fence.number, place.generation) == (3, 2)


def test_a_claim_looks_into_the_newest_checkpoint_alone(tmp_path, monkeypatch):
    """There may be thousands of them, behind a URL."""
    folder = CheckpointFolder(tmp_path, "agent-0", keep_last=9)
    folder.fence.claim()
    for steps in range(5):
        name = folder.write({"a": VALUES}, {"steps": steps}, "0123abcd")
    os.mkdir(tmp_path / "agent-0" / name.replace("c0000", "c0001"))  # of one that was not finished
    monkeypatch.setattr(places, "_agents", {})
    place = Places().of(checkpoint_plan(checkpoint_dir=tmp_path))
    listed, names = [], place.folder.storage.names
    monkeypatch.setattr(place.folder.storage, "names", lambda of="": listed.append(of) or names(of))
    assert place.claim(name)
    assert set(listed) == {"", name, name.replace("c0000", "c0001")} and listed.count(name) == 2


class StoreError(Exception):
    """What a remote store raises: neither an OSError nor a ValueError."""


def test_a_store_that_cannot_be_asked_for_the_next_name_ends_no_training(
    tmp_path, clock, monkeypatch, caplog
):
    saver = saver_with_parts(
        tmp_path, clock, lambda folder, name: pytest.fail("there is no name to write to")
    )

    def lost(storage, path):
        raise StoreError("the connection is lost")

    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "open", lost)
        saver.save(VALUES, COUNTS, position())
    assert saver.writer.failed and not saver.is_busy
    assert "StoreError: the connection is lost" in caplog.text
    saver.write_parts = lambda name: {}
    saver.save(VALUES, COUNTS, position())
    assert saver.writer.wait(60.0) and not saver.writer.failed


def test_a_rank_that_fails_while_parts_are_written_is_no_checkpoint_that_failed(tmp_path, clock):
    def fails(folder, name):
        raise RankTimeoutError("rank 2 hangs")

    saver = saver_with_parts(tmp_path, clock, fails)
    with pytest.raises(RankTimeoutError):
        saver.save(VALUES, COUNTS, position())
    assert not saver.writer.failed


def test_parts_of_a_checkpoint_that_failed_are_removed(tmp_path, clock):
    names = []

    def fails(folder, name):
        names.append(name)
        folder.storage.write(f"{name}/part.npy", [b"some rows"])
        raise OSError(errno.ENOSPC, "rank 2 has no room")

    saver = saver_with_parts(tmp_path, clock, fails)
    for _ in range(2):
        saver.save(VALUES, COUNTS, position())
    assert saver.writer.failed and len(set(names)) == 2  # who is late writes to nobody else's
    assert not any((tmp_path / "agent-0" / name).exists() for name in names)


def test_what_is_given_up_is_not_told_as_slow(clock, caplog):
    saver, writer, _ = make_saver(clock, takes=1e5, patience=10.0, checkpoint_interval="2s")
    writer.goes_on_until = clock.now
    saver.begin(50)
    saver.save_and_wait(VALUES, COUNTS, position())
    (record,) = caplog.records
    assert "is given up" in record.message


@pytest.mark.parametrize("interval", [100, "30m"])
def test_what_failed_is_tried_again_soon_however_long_all_waited(clock, interval):
    saver, _, _ = make_saver(clock, takes=3000.0, fails=True, patience=1e5, checkpoint_interval=interval)
    saver.begin(50)
    saver.save_and_wait(VALUES, COUNTS, position())
    saver.look(50)
    assert not saver.is_due(51)
    clock.now += 60.1
    assert saver.is_due(51)


def test_what_killed_jobs_left_is_removed_before_parts_are_written(tmp_path, clock):
    left, there = f"f000000-c00000001-step{9:015d}-0123abcd", []
    saver = saver_with_parts(tmp_path, clock, lambda folder, name: there.append(folder.storage.names()) or {})
    saver.write_parts("")
    (tmp_path / "agent-0" / left).mkdir()
    saver.save(VALUES, COUNTS, position())
    saver.writer.wait(60.0)
    assert left not in there[1] and len(there[1]) == 1
    # Whatever hangs there is no trouble of the checkpoint.
    saver.writer.clear = lambda name: 1 / 0
    saver.save(VALUES, COUNTS, position())
    assert saver.writer.wait(60.0) and not saver.writer.failed


# A disk that fails


@pytest.fixture
def broken_disk(monkeypatch):
    """Let every write fail while the list that this gives is not empty."""
    reasons, write = [], CheckpointFolder.write
    monkeypatch.setattr(places, "_agents", {})
    monkeypatch.setattr(stopping, "REPEAT_SECONDS", 0.0)

    def writing(*arguments):
        if reasons:
            raise OSError(*reasons[0])
        return write(*arguments)

    monkeypatch.setattr(CheckpointFolder, "write", writing)
    return reasons


def test_training_goes_on_while_the_disk_is_full_and_says_so_once(broken_disk, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(alone, "_SLICE_SECONDS", 0.0)
    monkeypatch.setattr(alone, "_FIRST_SLICE_COMPILED", 1)
    straight, agent = DistAsyncQLearning(seed=1), DistAsyncQLearning(seed=1)
    options = {"total_steps": 3_000, "checkpoint_dir": tmp_path, "checkpoint_interval": 100}

    def report(progress):
        for place in state_of(agent).places:
            place.writer.wait(30.0)
        broken_disk[:] = [(errno.ENOSPC, "No space left on device")] if 500 < progress.steps < 2_000 else []

    result = agent.train(LAKE, **options, progress=report, progress_interval=0)
    straight.train(LAKE, total_steps=3_000)
    assert result.steps == 3_000 and agent.q_table.tobytes() == straight.q_table.tobytes()
    texts = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len([text for text in texts if "No space left" in text]) == 1
    assert len([text for text in texts if "can be written" in text]) == 1
    assert CheckpointFolder(tmp_path, "agent-0").read_newest().body["steps"] == 3_000


@pytest.mark.parametrize("is_removed", [False, True])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGUSR1, 75), (signal.SIGINT, 130)])
def test_a_stop_goes_on_from_the_last_checkpoint_that_could_be_written_as_long_as_it_is_there(
    broken_disk, tmp_path, caplog, number, code, is_removed
):
    def break_disk(steps, name):
        if not broken_disk:
            broken_disk[:] = [(errno.EIO, "Input/output error")]
            if is_removed:
                shutil.rmtree(tmp_path)
            os.kill(os.getpid(), number)

    class Breaks(BaseCallback):
        _on_checkpoint = staticmethod(break_disk)

    with pytest.raises(TrainingStopped) as stopped:
        DistAsyncQLearning(seed=1).train(
            LAKE, total_steps=10**12, checkpoint_dir=tmp_path, checkpoint_interval=100, callbacks=Breaks()
        )
    assert stopped.value.checkpoint is None
    assert stopped.value.code == (74 if is_removed and code == 75 else code)
    assert ("goes on from the last one that could" in caplog.text) != is_removed
    assert ("would begin anew" in caplog.text) == is_removed


def test_where_a_disk_does_not_say_what_is_saved_something_counts_as_saved(clock):
    saver, writer, _ = make_saver(clock)
    asked = []

    def has_any(run):
        asked.append(run)
        raise OSError(errno.ESTALE, "Stale file handle")

    writer.has_any = has_any
    assert saver.is_saved() and asked == ["0123abcd"]
    writer.has_any = lambda run: False
    assert not saver.is_saved()


def test_a_stop_without_a_checkpoint_says_that_there_is_none(broken_disk, tmp_path, caplog):
    agent = DistAsyncQLearning(seed=1)

    def report(progress):
        if not broken_disk:
            broken_disk[:] = [(errno.EIO, "Input/output error")]
            os.kill(os.getpid(), signal.SIGUSR1)

    with pytest.raises(TrainingStopped) as stopped:
        agent.train(LAKE, total_steps=10**12, checkpoint_dir=tmp_path, progress=report, progress_interval=0)
    assert (stopped.value.code, stopped.value.checkpoint) == (74, None)
    assert stopped.value.steps == agent.steps == agent.visits.sum() > 0
    assert "there is no other of this run: the same command would begin anew" in caplog.text
    # The process still holds it all.
    broken_disk.clear()
    assert agent.train(LAKE, total_steps=1_000, checkpoint_dir=tmp_path).steps == 1_000
    assert CheckpointFolder(tmp_path, "agent-0").read_newest().body["steps"] == agent.steps


def test_a_process_that_was_replaced_stops(broken_disk, tmp_path):
    first = DistAsyncQLearning(seed=1)
    first.train(LAKE, total_steps=1_000, checkpoint_dir=tmp_path)
    places._agents.clear()
    second = DistAsyncQLearning(seed=1)
    second.train(LAKE, total_steps=2_000, checkpoint_dir=tmp_path)
    newest = CheckpointFolder(tmp_path, "agent-0").names()
    began = time.monotonic()
    for _ in range(2):
        with pytest.raises(CheckpointFencedError, match="belongs to another server"):
            first.train(LAKE, total_steps=10**12, checkpoint_dir=tmp_path, checkpoint_interval="10ms")
    assert time.monotonic() - began < 60.0
    assert CheckpointFolder(tmp_path, "agent-0").names() == newest
    assert second.train(LAKE, total_steps=500, checkpoint_dir=tmp_path).steps == 500
    # What it had learned is not lost for its own process.
    steps = first.steps
    assert first.visits.sum() == steps
    first.train(LAKE, total_steps=500, checkpoint_dir=tmp_path / "own")
    assert first.steps == steps + 500


# A disk that hangs


@pytest.mark.slow
@pytest.mark.parametrize("way", ["patience", "second Ctrl-C", "error"])
def test_a_table_that_changes_while_it_is_read_is_never_published(way, tmp_path, monkeypatch, caplog):
    """Each file is hashed as it is read, so a torn table would pass every check."""
    monkeypatch.setattr(places, "_agents", {})
    monkeypatch.setattr(saving, "RESCUE_SECONDS", 1.0)
    agent = DistAsyncQLearning(seed=1, timeout=1.0 if way == "patience" else 100.0)
    entered, goes_on, write = threading.Event(), threading.Event(), LocalStorage.write

    def hanging(self, path, chunks):
        if path.endswith("q_table.npy"):
            entered.set()
            assert goes_on.wait(60.0)
        write(self, path, chunks)

    monkeypatch.setattr(LocalStorage, "write", hanging)
    if way == "second Ctrl-C":

        def interrupt(*arguments):
            assert entered.wait(60.0)
            raise KeyboardInterrupt

        monkeypatch.setattr(Saver, "_report_slow", interrupt)
    failing = {"progress": lambda progress: 1 / 0, "progress_interval": 0} if way == "error" else {}
    errors = {"patience": (), "second Ctrl-C": KeyboardInterrupt, "error": ZeroDivisionError}
    with suppress(errors[way]):
        agent.train(LAKE, total_steps=1_000, checkpoint_dir=tmp_path, **failing)
        assert way == "patience"
    (place,) = state_of(agent).places
    assert place.writer.busy
    assert ("did not get ready within 1 s" in caplog.text) == (way != "second Ctrl-C")
    agent.q_table[:] = agent.visits[:] = 99
    goes_on.set()
    assert place.writer.wait(60.0)
    assert place.folder.names() == [] and len(os.listdir(place.folder.url)) == 1
    monkeypatch.undo()
    state_of(agent).settings = replace(state_of(agent).settings, timeout=100.0)
    agent.train(LAKE, total_steps=1_000, checkpoint_dir=tmp_path)
    assert (place.folder.read_newest().arrays["q_table"] == agent.q_table).all()
