"""When lost ranks are replaced, how often, when that is given up, and what a replacement is started as."""

import os
import signal
import subprocess
import sys
from concurrent.futures import Future

import numpy as np
import pytest
from own_signals import own_signals

from dist_classicrl import DistAsyncQLearning
from dist_classicrl.agent import training
from dist_classicrl.agent.replacement import Visit
from dist_classicrl.engines import saving
from dist_classicrl.engines.outcome import Outcome
from dist_classicrl.errors import LauncherError
from dist_classicrl.membership import spawn as replacing
from dist_classicrl.membership.spawn import (
    ARRIVAL_SECONDS,
    FIRST_DELAY,
    LONGEST_DELAY,
    STRIKES,
    Replacements,
    command_of_replacement,
)
from dist_classicrl.process.parent import REPLACEMENT_VARIABLE


class Server:
    """Replacements with a clock that stands, and with attempts that end as the test says."""

    def __init__(self, limit=100):
        self.now = 1000.0
        self.attempts = []
        self.replacements = Replacements(limit, clock=lambda: self.now, begin=self.begin)

    def begin(self):
        self.attempts.append(Future())
        return self.attempts[-1]

    def start(self):
        return self.replacements.start(self.now)

    def seconds_until_start(self, step=0.25, at_most=200.0):
        begun = self.now
        while not self.start():
            self.now += step
            if self.now - begun > at_most:
                return None
        return self.now - begun

    def arrive(self):
        self.attempts[-1].set_result(f"comm {len(self.attempts)}")
        return self.replacements.poll()


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def test_nothing_is_started_unless_a_rank_is_lost():
    server = Server()
    server.now += 1000.0
    assert not server.start()
    server.replacements.wanted(0)
    assert server.seconds_until_start() is None
    assert server.attempts == [] and server.replacements.poll() == []


def test_delays_double_up_to_a_minute():
    server = Server()
    delays = []
    for _ in range(9):
        server.replacements.wanted(1)
        delays.append(server.seconds_until_start())
        assert server.arrive() == [f"comm {len(delays)}"]
    assert delays == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]
    assert (FIRST_DELAY, LONGEST_DELAY) == (1.0, 60.0)


def test_each_lost_rank_is_replaced_once_and_one_at_a_time():
    server = Server()
    server.replacements.wanted(2)
    assert server.seconds_until_start() == 1.0
    server.now += 50.0
    assert not server.start()  # one is on its way
    assert server.arrive() == ["comm 1"] and server.replacements.poll() == []
    assert server.seconds_until_start() == 0.0  # its delay is over as well
    server.arrive()
    assert server.seconds_until_start() is None
    assert server.replacements.started == 2


def test_a_later_loss_does_not_put_off_the_replacement_of_an_earlier_one():
    server = Server()
    server.replacements.wanted(1)
    server.now += 0.75
    server.replacements.wanted(1)
    assert server.seconds_until_start() == 0.25
    server.arrive()
    assert server.seconds_until_start() == 2.0


def test_at_most_limit_are_started_and_that_is_said_once(caplog):
    server = Server(limit=2)
    server.replacements.wanted(5)
    for _ in range(2):
        assert server.seconds_until_start() is not None
        server.arrive()
    assert server.seconds_until_start() is None
    assert server.replacements.started == len(server.attempts) == 2
    assert "max_replacements=2" in server.replacements.stopped_because
    assert warnings(caplog) == [
        "Lost ranks are not replaced from here on: max_replacements=2 have been started."
    ]


def test_a_first_push_resets_the_delay():
    server = Server()
    server.replacements.wanted(1)
    server.seconds_until_start()
    server.arrive()
    server.replacements.note_first_push()
    server.now += 500.0
    server.replacements.wanted(1)
    assert server.seconds_until_start() == FIRST_DELAY


def test_three_in_a_row_that_die_before_their_first_push_stop_it_and_that_is_said_once(caplog):
    server = Server()
    for _ in range(STRIKES):
        server.replacements.wanted(1)
        assert server.seconds_until_start() is not None
        server.arrive()
        assert server.replacements.stopped_because is None
        server.replacements.note_death_before_first_push()
    server.replacements.note_death_before_first_push()
    server.replacements.wanted(1)
    assert server.seconds_until_start() is None
    assert len(server.attempts) == STRIKES == 3
    assert warnings(caplog) == [
        "Lost ranks are not replaced from here on: 3 replacements in a row came to nothing."
    ]


def test_a_first_push_in_between_clears_the_strikes():
    server = Server()
    for _ in range(4):
        server.replacements.note_death_before_first_push()
        server.replacements.note_death_before_first_push()
        server.replacements.note_first_push()
    assert server.replacements.stopped_because is None


def test_one_that_cannot_be_started_is_a_strike_and_is_tried_again(caplog):
    server = Server()
    server.replacements.wanted(1)
    delays = []
    for _ in range(STRIKES):
        delays.append(server.seconds_until_start())
        server.attempts[-1].set_exception(RuntimeError("no slots"))
        assert server.replacements.poll() == []
    assert delays == [1.0, 2.0, 4.0]
    assert server.seconds_until_start() is None
    first, *_, last = warnings(caplog)
    assert first == "Replacement 1 of at most 100 could not be started: no slots."
    assert "3 replacements in a row" in last and len(warnings(caplog)) == 4


def test_one_that_does_not_come_is_given_up_after_its_deadline_with_one_warning(caplog):
    server = Server()
    server.replacements.wanted(1)
    server.seconds_until_start()
    server.now += ARRIVAL_SECONDS - 0.5
    assert server.replacements.poll() == [] and not server.start() and warnings(caplog) == []
    server.now += 0.5
    for _ in range(3):
        assert server.replacements.poll() == []
        server.now += 10.0
    assert warnings(caplog) == [
        "Replacement 1 of at most 100 has not started MPI within 120 s, and is no longer awaited."
    ]
    assert server.start()  # another one in its place
    for attempt in server.attempts:
        attempt.set_result("comm")
    assert server.replacements.poll() == ["comm", "comm"]


def test_one_that_comes_after_it_was_given_up_is_taken_in_and_spares_the_next():
    server = Server()
    server.replacements.wanted(1)
    server.seconds_until_start()
    server.now += ARRIVAL_SECONDS
    server.replacements.poll()
    assert server.arrive() == ["comm 1"]
    assert server.seconds_until_start() is None
    assert server.replacements.poll() == []


def test_one_that_fails_after_it_was_given_up_is_not_counted_twice(caplog):
    server = Server()
    server.replacements.wanted(1)
    server.seconds_until_start()
    server.now += ARRIVAL_SECONDS
    server.replacements.poll()
    server.attempts[0].set_exception(RuntimeError("too late"))
    assert server.replacements.poll() == []
    assert len(warnings(caplog)) == 1
    assert server.seconds_until_start() is not None
    server.arrive()
    assert server.seconds_until_start() is None  # only one rank was lost


def started_as(monkeypatch, *words):
    monkeypatch.setattr(sys, "orig_argv", ["python3", *words])


RUNNER = ["-m", "dist_classicrl.launch.program", "--replacement"]


@pytest.mark.parametrize(
    "words",
    [
        ["train.py", "--steps", "5"],
        ["-m", "my.module", "a b"],
        ["-u", "train.py", "--steps", "5"],
        ["-um", "my.module", "a b"],
        ["-m", "dist_classicrl.launch.program", "train.py", "--steps", "5"],
    ],
)
def test_a_replacement_runs_the_same_program(monkeypatch, words):
    started_as(monkeypatch, *words)
    program = ["-m", "my.module", "a b"] if "my.module" in words else ["train.py", "--steps", "5"]
    options = ["-u"] if words[0].startswith("-u") else []
    assert command_of_replacement() == [sys.executable, *options, *RUNNER, *program]


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["-i"],
        ["-"],
        ["-c", "import this"],
        ["-m", "pytest", "tests"],
        ["/usr/bin/pytest", "tests"],
        ["-m", "ipykernel_launcher", "-f", "k.json"],
        ["/usr/bin/ipython"],
    ],
)
def test_what_is_no_program_is_not_started_again(monkeypatch, words):
    started_as(monkeypatch, *words)
    with pytest.raises(LauncherError, match="cannot be started again on another rank. Write the program"):
        command_of_replacement()


def test_where_there_is_no_program_nothing_is_started_and_that_is_said_once(monkeypatch, caplog):
    def refuse(mark):
        raise LauncherError("This process runs pytest.")

    monkeypatch.setattr(replacing, "spawner", refuse)
    replacements = Replacements(3, clock=lambda: 0.0)
    replacements.wanted(1)
    assert not any(replacements.start(1e3 * second) for second in range(10))
    assert replacements.poll() == [] and replacements.started == 0
    assert warnings(caplog) == ["Lost ranks are not replaced from here on: This process runs pytest."]


def test_what_a_replacement_is_told_comes_first_hand_and_is_not_handed_on():
    mine = {**os.environ, REPLACEMENT_VARIABLE: "call 2"}
    look = (
        "import os, sys; "
        "from dist_classicrl.process.parent import find_parent, replacement_mark; "
        "print(replacement_mark(), replacement_mark(), os.environ.get('DIST_CLASSICRL_REPLACES')); "
    )

    def run(environment, program):
        return subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60
        )

    assert run(mine, look).stdout.split("\n")[0] == "call 2 call 2 None"
    ordinary = run(dict(os.environ), look + "print(find_parent(), 'mpi4py.MPI' in sys.modules)")
    assert ordinary.stdout.split("\n")[:2] == ["None None None", "None False"]


def test_settings_of_ranks_are_handed_on_but_nothing_of_their_mpi():
    environment = {
        "DIST_CLASSICRL_LAUNCH": "x y",
        "PYTHONPATH": "/src",
        "NUMBA_CACHE_DIR": "/cache",
        "OMP_NUM_THREADS": "1",
        "OMPI_COMM_WORLD_RANK": "3",
        "PMIX_RANK": "3",
        "AWS_SECRET_ACCESS_KEY": "s",
        REPLACEMENT_VARIABLE: "of the server itself",
    }
    assert sorted(replacing._settings("call 2", environment)) == [
        "DIST_CLASSICRL_LAUNCH=x y",
        "DIST_CLASSICRL_REPLACES=call 2",
        "NUMBA_CACHE_DIR=/cache",
        "OMP_NUM_THREADS=1",
        "PYTHONPATH=/src",
    ]


@pytest.mark.parametrize(
    "calls",
    [[{"total_steps": 10}] * 2 + [{"total_steps": 0}] + [{"total_steps": 10}] * 7, [{"steps": 5}] * 9],
    ids=["steps of all", "shares"],
)
def test_a_replacement_returns_what_is_known_of_each_call_before_its_own(monkeypatch, calls):
    """Its place in the list does not say which: old results are left out there, and empty calls."""
    monkeypatch.setattr(saving, "_KEPT_RESULTS", 5)
    finished, steps = [], 0
    for call in range(9):
        made = 4 if call == 2 else 10  # a callback ended the third one
        result = Outcome(steps=made, mean_return=float(call))
        saving.note_finished(finished, steps, steps + 10, result, "lake")
        steps += made
    visit = Visit(None, None, 3, None, {"finished": finished, "ranks": 2})
    monkeypatch.setattr(training, "find_parent", lambda: "the server")
    monkeypatch.setattr(training, "visit_of", lambda parent: visit)
    monkeypatch.setattr(training, "replacement_mark", lambda: str(len(calls) + 1))
    agent = DistAsyncQLearning()
    results = [agent.train("FrozenLake-v1", **asked) for asked in calls]
    made = [result for result in results if result.steps]
    assert [result.steps for result in made] == [10, 10, 4, *[10] * 6]
    known = [result.mean_return for result in made]
    assert np.isnan(known[:4]).all() and known[4:] == [4.0, 5.0, 6.0, 7.0, 8.0]
    assert agent.steps == 84


def test_a_replacement_can_be_asked_to_leave_by_a_signal(monkeypatch):
    monkeypatch.setattr(training, "find_parent", lambda: "the server")
    monkeypatch.setattr(training, "visit_of", lambda parent: Visit(None, None, 3, None, {}))
    monkeypatch.setattr(training, "timing_of", lambda *_: None)
    monkeypatch.setattr(training.process_exit, "note_losses", lambda: None)
    monkeypatch.setattr(training.Group, "of_replacement", lambda *_: None)

    def join(session, entry):
        signal.raise_signal(signal.SIGUSR1)
        return session.state.leaving.why

    monkeypatch.setattr(training.Session, "join", join)
    with own_signals(monkeypatch):
        why = DistAsyncQLearning().train("FrozenLake-v1", total_steps=10, leave_signals=["SIGUSR1"])
    assert why == "SIGUSR1"
