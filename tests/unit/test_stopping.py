"""What asks a training to stop: signals, here in processes of their own, time limits and other ranks."""

import contextlib
import ctypes
import errno
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from itertools import chain

import pytest
from own_signals import SIGNALS, own_signals
from signal_masks import listens

from dist_classicrl.comm.messages import decode, encode
from dist_classicrl.engines.roles.messages import AskToStop
from dist_classicrl.errors import TrainingInterrupted, TrainingStopped
from dist_classicrl.process import stop as stopping
from dist_classicrl.process.arrivals import Arrivals
from dist_classicrl.process.leave import LeaveWatch
from dist_classicrl.process.stop import Stop, StopWatch

DEADLINE = 60.0
HOST = socket.gethostname()


@pytest.fixture(autouse=True)
def as_in_a_new_process(monkeypatch):
    """Let no test find a request or a guarded signal that another one left."""
    with own_signals(monkeypatch):
        yield


@pytest.fixture(autouse=True)
def usual_handlers():
    """Begin as a program in the foreground does, and end as the tests began."""
    numbers = (*SIGNALS, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in numbers}
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number in numbers:
        signal.signal(number, before[number])


@pytest.fixture
def clock(monkeypatch):
    """Make the module's clock one that tests set."""

    class Clock:
        now = 1000.0
        slept = 0.0

        def monotonic(self):
            return self.now

        def sleep(self, seconds):
            self.slept += seconds
            self.now += seconds

    clock = Clock()
    monkeypatch.setattr(stopping, "time", clock)
    monkeypatch.setattr(stopping.arrivals, "age", lambda number: 0.0)
    return clock


def send(number):
    os.kill(os.getpid(), number)


@contextlib.contextmanager
def not_ended():
    """Fail where a signal would end the process: with SIGINT that can be seen from within."""
    try:
        yield
    except KeyboardInterrupt:
        pytest.fail("it ended at once")


def handlers():
    return [signal.getsignal(number) for number in (*SIGNALS, signal.SIGINT)]


def guarded():
    """Return what `handlers` gives after a training, in a program that has set none."""
    return [*[stopping._guard.hear] * len(SIGNALS), signal.default_int_handler]


# Stop


def test_a_stop_becomes_the_exception_of_its_kind():
    stopped = Stop(75, "SIGUSR1").error("/runs/one", 12)
    assert type(stopped) is TrainingStopped and isinstance(stopped, SystemExit)
    assert (stopped.code, stopped.reason) == (75, "SIGUSR1")
    assert (stopped.checkpoint, stopped.steps) == ("/runs/one", 12)
    interrupted = Stop(130, "SIGINT").error(None, 0)
    assert type(interrupted) is TrainingInterrupted and isinstance(interrupted, KeyboardInterrupt)
    assert (interrupted.code, interrupted.checkpoint, interrupted.steps) == (130, None, 0)


def test_a_stop_goes_to_other_ranks():
    asked = AskToStop(Stop(75, "SIGUSR1 on rank 3 (höst)"))
    assert decode(encode(asked)) == asked


# Signals in this process


@pytest.mark.parametrize("number", SIGNALS)
def test_a_stop_signal_is_a_request_that_says_who_heard_it(number, clock):
    with StopWatch(SIGNALS, None, None, rank=3) as watch:
        assert watch.stop is None
        send(number)
        assert watch.stop == Stop(75, f"{number.name} on rank 3 ({HOST})")
    assert watch.stop is not None


def test_sigint_is_always_heard(clock):
    with StopWatch((), None, None) as watch:
        send(signal.SIGINT)
        assert watch.stop == Stop(130, f"SIGINT on rank 0 ({HOST})")


def test_a_signal_that_nobody_asked_for_does_what_it_did(clock):
    heard = []
    signal.signal(signal.SIGUSR2, lambda number, frame: heard.append(number))
    with StopWatch([signal.SIGUSR1], None, None) as watch:
        send(signal.SIGUSR2)
    assert heard == [signal.SIGUSR2] and watch.stop is None


def test_the_first_request_stays(clock):
    with StopWatch(SIGNALS, None, None) as watch:
        send(signal.SIGUSR1)
        watch.ask(Stop(130, "of another rank"))
        send(signal.SIGTERM)
        assert watch.stop.reason.startswith("SIGUSR1")
    watch = StopWatch((), None, None)
    watch.ask(Stop(75, "one"))
    watch.ask(Stop(130, "two"))
    assert watch.stop == Stop(75, "one")


def test_the_same_signal_again_within_the_window_is_the_same_request(clock):
    with not_ended(), StopWatch(SIGNALS, None, None) as watch:
        send(signal.SIGUSR1)
        clock.now += 0.9 * stopping.REPEAT_SECONDS
        send(signal.SIGINT)
        send(signal.SIGINT)
        assert watch.stop.code == 75


def test_a_second_sigint_is_a_keyboard_interrupt(clock):
    with pytest.raises(KeyboardInterrupt) as caught, StopWatch(SIGNALS, None, None):
        send(signal.SIGTERM)
        clock.now += stopping.REPEAT_SECONDS + 0.01
        send(signal.SIGINT)
        pytest.fail("it did not end at once")
    assert not isinstance(caught.value, SystemExit)


def test_at_the_second_sigint_the_handler_from_before_is_back_already(clock):
    def mine(number, frame):
        raise AssertionError("not called: it is StopWatch that interrupts")

    signal.signal(signal.SIGINT, mine)
    with StopWatch(SIGNALS, None, None):
        send(signal.SIGINT)
        clock.now += 1.0
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is mine


def test_the_own_first_signal_after_a_request_of_another_rank_ends_nothing(clock):
    with not_ended(), StopWatch(SIGNALS, None, None) as watch:
        watch.ask(Stop(75, "SIGTERM on rank 1"))
        clock.now += 60.0
        send(signal.SIGINT)
        assert watch.stop == Stop(75, "SIGTERM on rank 1")


# Handlers


def test_a_programs_own_handlers_are_put_back():
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.signal(signal.SIGUSR2, lambda number, frame: None)
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    signal.signal(signal.SIGINT, lambda number, frame: None)
    before = handlers()
    with contextlib.suppress(ValueError), StopWatch(SIGNALS, None, None):
        assert not set(map(id, before)) & set(map(id, handlers()))
        raise ValueError
    assert handlers() == before


def test_nested_watches_hear_in_turn_and_put_back(clock):
    with StopWatch(SIGNALS, None, None) as outer:
        between = handlers()
        with StopWatch([signal.SIGUSR1], None, None) as inner:
            send(signal.SIGUSR1)
            send(signal.SIGUSR2)
        assert handlers() == between
        assert inner.stop.reason.startswith("SIGUSR1") and outer.stop.reason.startswith("SIGUSR2")
    assert handlers() == guarded()


def test_a_watch_within_itself_puts_back(clock):
    one, two = StopWatch(SIGNALS, None, None), StopWatch(SIGNALS, None, None)
    with one:
        with two, one:
            send(signal.SIGINT)
            clock.now += 1.0
            with pytest.raises(KeyboardInterrupt):
                send(signal.SIGINT)
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert handlers() == guarded() and one.stop.code == 130 and two.stop is None


def test_a_handler_set_from_c_is_left_alone(monkeypatch, clock):
    real = signal.getsignal
    monkeypatch.setattr(signal, "getsignal", lambda n: None if n == signal.SIGUSR1 else real(n))
    heard = []
    signal.signal(signal.SIGUSR1, lambda number, frame: heard.append(number))
    with StopWatch(SIGNALS, None, None) as watch:
        send(signal.SIGUSR1)
        assert heard and watch.stop is None
        send(signal.SIGUSR2)
        assert watch.stop is not None
    send(signal.SIGUSR1)
    assert len(heard) == 2


def test_a_sigint_that_is_ignored_stays_ignored():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with StopWatch(SIGNALS, None, None) as watch:
        send(signal.SIGINT)
    assert watch.stop is None and signal.getsignal(signal.SIGINT) == signal.SIG_IGN


def test_what_cannot_be_caught_leaves_no_handler_behind():
    before = handlers()
    with pytest.raises(OSError), StopWatch((*SIGNALS, signal.SIGKILL), None, None):
        pass
    assert handlers() == before


def test_in_another_thread_nothing_is_installed(caplog):
    before, seen = handlers(), []

    def watch_there():
        with StopWatch(SIGNALS, None, None) as watch:
            seen.append(handlers())
            watch.ask(Stop(75, "of another rank"))
        seen.append(watch.stop)

    with caplog.at_level(logging.DEBUG, stopping.logger.name):
        thread = threading.Thread(target=watch_there)
        thread.start()
        thread.join(DEADLINE)
    assert seen == [before, Stop(75, "of another rank")] and handlers() == before
    assert [record.levelno for record in caplog.records] == [logging.DEBUG]


@pytest.mark.parametrize("asked", ["by signal", "by rank"])
def test_the_handlers_stay_while_the_signal_may_come_again(clock, asked):
    with StopWatch(SIGNALS, None, None) as watch:
        send(signal.SIGUSR1) if asked == "by signal" else watch.ask(Stop(75, "SIGUSR1 on rank 1"))
        clock.now += 0.05
    assert clock.slept == pytest.approx(stopping.REPEAT_SECONDS - 0.05)


def test_leaving_waits_for_nothing_without_a_request_or_long_after_it(clock):
    with StopWatch(SIGNALS, None, None):
        pass
    with StopWatch(SIGNALS, None, None) as watch:
        watch.ask(Stop(75, "SIGUSR1 on rank 1"))
        clock.now += 5.0
    assert clock.slept == 0.0


# Between two trainings


def train_once(signals=SIGNALS, send_within=None):
    """Watch as a call of train does, and return why it would stop."""
    with StopWatch(signals, None, None) as watch:
        stop = watch.stop
        if send_within is not None:
            send(send_within)
    return stop


def test_signals_without_a_handler_stay_guarded_and_sigint_does_not():
    assert train_once() is None
    assert handlers() == guarded()
    assert train_once() is None
    assert handlers() == guarded()


def test_nothing_is_guarded_that_nobody_asked_for():
    train_once([signal.SIGUSR2])
    train_once(())
    default = signal.SIG_DFL
    assert handlers() == [default, stopping._guard.hear, default, signal.default_int_handler]


def test_before_the_first_training_nothing_is_guarded():
    watch = StopWatch(SIGNALS, None, None)
    assert handlers() == [*[signal.SIG_DFL] * len(SIGNALS), signal.default_int_handler]
    watch.ask(Stop(75, "of another rank"))
    assert train_once() is None


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_between_two_trainings_is_left_for_the_next(number, clock):
    train_once()
    send(number)
    assert train_once() == Stop(75, f"{number.name} between two trainings")


def test_the_first_signal_between_two_trainings_counts_and_the_second_ends(clock, monkeypatch):
    ended = []
    monkeypatch.setattr(stopping, "end_by_default", ended.append)
    train_once()
    for _ in range(2):
        send(signal.SIGUSR2)
        clock.now += 0.9 * stopping.REPEAT_SECONDS
        send(signal.SIGUSR1)
        assert train_once().reason.startswith("SIGUSR2 ") and not ended
        clock.now += 60.0
    send(signal.SIGUSR2)
    clock.now += 1.1 * stopping.REPEAT_SECONDS
    send(signal.SIGUSR1)
    assert ended == [signal.SIGUSR1]


def test_one_that_comes_while_the_next_training_begins_is_its_own(monkeypatch, clock):
    train_once()
    real = signal.signal

    def slowly(number, handler):
        if number == signal.SIGTERM:
            send(number)
        return real(number, handler)

    watch = StopWatch(SIGNALS, None, None)
    with monkeypatch.context() as patch:  # undone alone: what keeps the signals apart stays
        patch.setattr(signal, "signal", slowly)
        watch.__enter__()
    with contextlib.ExitStack() as stack:
        stack.push(watch)
        assert watch.stop == Stop(75, "SIGTERM between two trainings")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGUSR1, 75), (signal.SIGINT, 130)])
def test_a_signal_that_came_too_late_for_one_training_is_left_for_the_next(number, code, clock):
    assert train_once(send_within=number) is None
    assert train_once() == Stop(code, f"{number.name} on rank 0 ({HOST})")


def test_one_that_came_too_late_counts_before_one_between_two_trainings(clock):
    train_once(send_within=signal.SIGINT)
    send(signal.SIGUSR1)
    assert train_once() == Stop(130, f"SIGINT on rank 0 ({HOST})")


def test_it_stays_until_a_training_ends_by_it(clock):
    train_once()
    send(signal.SIGUSR1)
    # As calls do whose steps were all made before.
    assert train_once() == train_once() == Stop(75, "SIGUSR1 between two trainings")
    with pytest.raises(TrainingStopped), StopWatch(SIGNALS, None, None) as watch:
        raise watch.stop.error(None, 0)
    assert train_once() is None


@pytest.mark.parametrize("error", [TrainingStopped(75, "SIGUSR1", None, 0), ValueError, KeyboardInterrupt])
def test_a_training_that_ends_by_an_exception_leaves_nothing(error, clock):
    with contextlib.suppress(TrainingStopped, ValueError, KeyboardInterrupt):
        with StopWatch(SIGNALS, None, None) as watch:
            send(signal.SIGUSR1)
            watch.ask(Stop(130, "of another rank"))
            raise error
    assert train_once() is None
    assert handlers() == guarded()


def test_a_training_that_cannot_begin_leaves_the_request_and_the_guard(clock):
    train_once()
    send(signal.SIGUSR1)
    with pytest.raises(OSError), StopWatch((*SIGNALS, signal.SIGKILL), None, None):
        pass
    assert handlers() == guarded()
    assert train_once() == Stop(75, "SIGUSR1 between two trainings")


def test_a_training_in_a_thread_takes_what_was_left(clock):
    train_once()
    send(signal.SIGTERM)
    seen = []

    def train_there():
        with contextlib.suppress(TrainingStopped), StopWatch(SIGNALS, None, None) as watch:
            seen.append(watch.stop)
            raise watch.stop.error(None, 0)

    thread = threading.Thread(target=train_there)
    thread.start()
    thread.join(DEADLINE)
    assert seen == [Stop(75, "SIGTERM between two trainings")]
    assert train_once() is None


def test_a_handler_that_the_program_sets_between_two_trainings_is_its_own(clock):
    train_once()
    heard = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: heard.append(number))
    train_once()
    send(signal.SIGUSR1)
    assert heard == [signal.SIGUSR1] and train_once() is None
    signal.signal(signal.SIGUSR1, before)
    send(signal.SIGUSR1)
    assert train_once() == Stop(75, "SIGUSR1 between two trainings")
    assert heard == [signal.SIGUSR1]


# Time


def test_the_time_limit_leaves_time_to_save_twice(clock):
    watch = StopWatch((), 3300.0, None)
    watch.begin()
    clock.now += 3300.0 - 2 * 5.0 - 0.2 - 0.01
    watch.check_time(5.0)
    assert watch.stop is None
    clock.now += 0.02
    watch.check_time(4.0)
    assert watch.stop is None
    watch.check_time(5.0)
    assert watch.stop == Stop(75, "the time limit of 55 min")


def test_the_time_limit_counts_from_the_first_step_and_not_from_what_is_compiled_before(clock):
    watch = StopWatch((), 60.0, None)
    clock.now += 100.0
    watch.begin()
    watch.check_time(0.0)
    assert watch.stop is None
    clock.now += 60.0
    watch.check_time(0.0)
    assert watch.stop == Stop(75, "the time limit of 1 min")
    unsaid = StopWatch((), 60.0, None)  # an engine that does not say when it begins
    clock.now += 100.0
    unsaid.check_time(0.0)
    assert unsaid.stop is None


@pytest.mark.parametrize(("left", "reserve"), [(3600.0, 30.0), (300.0, 30.0), (100.0, 10.0)])
def test_slurms_limit_leaves_a_reserve_as_well(clock, left, reserve):
    watch = StopWatch((), None, left)
    clock.now += left - reserve - 2 * 1.0 - 0.2 - 0.01
    watch.check_time(1.0)
    assert watch.stop is None
    clock.now += 0.02
    watch.check_time(1.0)
    assert watch.stop == Stop(75, "SLURM's time limit")


@pytest.mark.parametrize(
    ("limit", "left", "reason"),
    [(100.0, 3600.0, "the time limit of 100 s"), (3600.0, 100.0, "SLURM's time limit")],
)
def test_of_two_limits_the_first_stops(clock, limit, left, reason):
    watch = StopWatch((), limit, left)
    watch.begin()
    clock.now += 99.9
    watch.check_time(0.0)
    assert watch.stop.reason == reason


def test_a_limit_that_has_passed_already_stops_at_once():
    watch = StopWatch((), None, 0.0)
    watch.check_time(0.0)
    assert watch.stop == Stop(75, "SLURM's time limit")


def test_the_limit_of_a_call_waits_for_its_first_steps_and_slurms_for_nothing(clock):
    watch = StopWatch((), 0.1, 3600.0)
    watch.begin()
    clock.now += 30.0
    watch.check_time(0.0, has_steps=False)
    assert watch.stop is None
    watch.check_time(0.0)
    assert watch.stop == Stop(75, "the time limit of 0.1 s")
    watch = StopWatch((), 3600.0, 3600.0)
    clock.now += 3600.0
    watch.check_time(0.0, has_steps=False)
    assert watch.stop == Stop(75, "SLURM's time limit")


@pytest.mark.parametrize(("limit", "longest"), [(0.1, 30.1), (20.0, 50.0), (100.0, 200.0)])
def test_the_limit_of_a_call_does_not_wait_for_its_first_steps_for_ever(limit, longest, clock):
    watch = StopWatch((), limit, None)
    watch.begin()
    clock.now += longest - 0.01
    watch.check_time(0.0, has_steps=False)
    assert watch.stop is None
    clock.now += 0.02
    watch.check_time(0.0, has_steps=False)
    assert watch.stop.reason.startswith("the time limit of ")


def test_without_limits_time_stops_nothing(clock):
    watch = StopWatch((), None, None)
    clock.now += 1e9
    watch.check_time(1e6)
    assert watch.stop is None


# Signals in processes of their own


WATCHING = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGTERM, signal.SIG_DFL)
from dist_classicrl.process import stop as stopping
deadline = time.monotonic() + 50
with stopping.StopWatch((signal.SIGUSR1, signal.SIGTERM), None, None, rank=2) as watch:
    print("ready", flush=True)
    while watch.stop is None and time.monotonic() < deadline:
        time.sleep(0.005)
    print(watch.stop.reason, flush=True)
    while {insist} and time.monotonic() < deadline:
        time.sleep(0.005)
    error = watch.stop.error("/runs/one", 12)
raise error
"""


def watching(insist):
    return started(WATCHING.format(insist=insist))


@contextlib.contextmanager
def started(program, *arguments):
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate(timeout=DEADLINE)


@pytest.mark.parametrize(("name", "code"), [("SIGUSR1", 75), ("SIGTERM", 75), ("SIGINT", 130)])
def test_a_process_that_is_asked_to_stop_ends_with_its_status(name, code):
    with watching(insist=False) as process:
        process.send_signal(signal.Signals[name])
        output, errors = process.communicate(timeout=DEADLINE)
    assert output == f"{name} on rank 2 ({HOST})\n"
    assert process.returncode == code and not errors


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "second"),
    [("SIGUSR1", "SIGTERM"), ("SIGTERM", "SIGTERM"), ("SIGINT", "SIGUSR1")],
)
def test_a_second_signal_ends_a_process_at_once(first, second):
    with watching(insist=True) as process:
        process.send_signal(signal.Signals[first])
        assert process.stdout.readline().startswith(first)
        time.sleep(2 * stopping.REPEAT_SECONDS)
        process.send_signal(signal.Signals[second])
        process.communicate(timeout=DEADLINE)
    assert process.returncode == -signal.Signals[second]


def test_a_second_ctrl_c_ends_a_process_at_once():
    with watching(insist=True) as process:
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline().startswith("SIGINT")
        time.sleep(2 * stopping.REPEAT_SECONDS)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=DEADLINE)
    assert "KeyboardInterrupt" in errors and process.returncode == -signal.SIGINT


def test_a_burst_of_signals_still_stops_in_order():
    with watching(insist=False) as process:
        for _ in range(20):
            process.send_signal(signal.SIGUSR1)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 75, errors


def run_alone(program, *arguments):
    """Return how a program ended in a process of its own, and what it wrote."""
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE)


FORKING = """
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGTERM, signal.SIG_DFL)
from dist_classicrl.process.leave import LeaveWatch
from dist_classicrl.process.stop import StopWatch
signals = (signal.SIGUSR1, signal.SIGTERM)
stops, leaves = StopWatch(signals, None, None), LeaveWatch()
with stops if sys.argv[1] == "stop" else leaves.listening_to(signals):
    (read, write), (heard, say) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.read(read, 1)  # what comes before this has been heard
        os.write(1, b"alive" if stops.stop is leaves.why is None else b"asked")
        os.write(say, b"x")
        time.sleep(50)
        os._exit(1)
    for number in [signal.SIGUSR1] + [signal.SIGINT] * (sys.argv[1] == "stop"):
        os.kill(child, number)
        time.sleep(0.3)
    os.write(write, b"x")
    os.close(say)
    os.read(heard, 1)
    os.kill(child, signal.SIGTERM)
    status = os.waitpid(child, 0)[1]
    sys.exit(0 if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGTERM else 1)
"""


@pytest.mark.parametrize("watch", ["stop", "leave"])
def test_a_forked_process_leaves_all_but_sigterm_to_its_parent(watch):
    done = run_alone(FORKING, watch)
    assert (done.returncode, done.stdout) == (0, "alive"), done.stderr


BETWEEN = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGTERM, signal.SIG_DFL)
from dist_classicrl.process import stop as stopping
SIGNALS = (signal.SIGUSR1, signal.SIGTERM)
with stopping.StopWatch(SIGNALS, None, None):
    pass
print("ready", flush=True)
sys.stdin.readline()
with stopping.StopWatch(SIGNALS, None, None) as watch:
    if watch.stop is not None:
        raise watch.stop.error(None, 0)
"""


@pytest.mark.parametrize(("signals", "code"), [([], 0), (["SIGUSR1"], 75), (["SIGTERM", "SIGTERM"], 75)])
def test_a_process_is_not_ended_between_two_trainings(signals, code):
    with started(BETWEEN) as process:
        for name in signals:
            process.send_signal(signal.Signals[name])
        _, errors = process.communicate("go on\n", timeout=DEADLINE)
    assert process.returncode == code and not errors


@pytest.mark.parametrize(("first", "second"), [("SIGUSR1", "SIGUSR1"), ("SIGTERM", "SIGUSR1")])
def test_a_second_signal_between_two_trainings_ends_a_process_at_once(first, second):
    with started(BETWEEN) as process:
        process.send_signal(signal.Signals[first])
        time.sleep(2 * stopping.REPEAT_SECONDS)
        assert process.poll() is None
        # Of two at the same moment, as to a process that is held up, the second is no other request.
        deadline = time.monotonic() + DEADLINE
        while process.poll() is None:
            assert time.monotonic() < deadline
            process.send_signal(signal.Signals[second])
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(2 * stopping.REPEAT_SECONDS)
        assert process.returncode == -signal.Signals[second]


LEAVING_BETWEEN = """
import logging, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_DFL)
logging.basicConfig(format="%(message)s")
from dist_classicrl.process.leave import LeaveWatch
SIGNALS, alone = (signal.SIGUSR1, signal.SIGTERM), {"is_alone": True} if sys.argv[1] == "alone" else {}
with LeaveWatch().listening_to(SIGNALS, **alone):
    pass
print("ready", flush=True)
sys.stdin.readline()
leaves = LeaveWatch()
with leaves.listening_to((), **alone):
    print(leaves.why)  # a call without such signals takes none
with leaves.listening_to(SIGNALS, **alone):
    print(leaves.why)
print("ready", flush=True)
sys.stdin.readline()
"""


def test_a_signal_to_leave_between_two_trainings_is_left_for_the_next():
    with started(LEAVING_BETWEEN, "together") as process:
        process.send_signal(signal.SIGTERM)
        process.stdin.write("go on\n")
        process.stdin.flush()
        assert [process.stdout.readline() for _ in range(3)] == ["None\n", "SIGTERM\n", "ready\n"]
        process.send_signal(signal.SIGUSR1)  # after the last
        _, errors = process.communicate("go on\n", timeout=DEADLINE)
    assert (process.returncode, errors) == (0, "")


def test_a_second_signal_to_leave_between_two_trainings_ends_a_process_at_once():
    with started(LEAVING_BETWEEN, "together") as process:
        process.send_signal(signal.SIGTERM)
        time.sleep(2 * stopping.REPEAT_SECONDS)
        assert process.poll() is None
        process.send_signal(signal.SIGUSR1)
        assert process.wait(DEADLINE) == -signal.SIGUSR1


def test_a_process_alone_says_between_two_trainings_as_well_that_it_leaves_nobody():
    with started(LEAVING_BETWEEN, "alone") as process:
        process.send_signal(signal.SIGTERM)
        process.stdin.write("go on\n")
        process.stdin.flush()
        said = process.stderr.readline()
        process.communicate("go on\n", timeout=DEADLINE)
    assert process.returncode == 0
    assert said.startswith("SIGTERM asks this process to leave, but it trains alone, and goes on")


LEAVING_ALONE = """
import signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_DFL)
from dist_classicrl.process.leave import LeaveWatch
SIGNALS = (signal.SIGUSR1, signal.SIGTERM)
leaves = LeaveWatch()
with leaves.listening_to(SIGNALS, is_alone=True):
    if sys.argv[1] == "within":
        print("ready", flush=True)
        sys.stdin.readline()
    else:
        signal.raise_signal(signal.SIGTERM)
        time.sleep(0.3)
if sys.argv[1] == "between":
    print("ready", flush=True)
    sys.stdin.readline()
leaves = LeaveWatch()
with leaves.listening_to(SIGNALS, is_alone=True):
    print("ready", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("where", ["within", "between", "next"])
def test_a_second_signal_to_leave_ends_a_process_alone_at_once(where):
    with started(LEAVING_ALONE, where) as process:
        if where == "within":
            process.send_signal(signal.SIGTERM)
            time.sleep(2 * stopping.REPEAT_SECONDS)
            assert process.poll() is None
        process.send_signal(signal.SIGUSR1)
        assert process.wait(DEADLINE) == -signal.SIGUSR1


def test_a_second_signal_to_leave_lets_a_rank_leave(monkeypatch, clock):
    monkeypatch.setattr(stopping, "end_by_default", lambda number: pytest.fail("it ended at once"))
    with LeaveWatch().listening_to([signal.SIGUSR1], is_alone=True):
        send(signal.SIGUSR1)
    clock.now += 60.0
    leaves = LeaveWatch()
    with leaves.listening_to([signal.SIGUSR1]):
        assert leaves.why is None
        send(signal.SIGUSR1)
        assert leaves.why == "SIGUSR1"
        clock.now += 60.0
        send(signal.SIGUSR1)


def test_a_process_alone_remembers_the_first_signal_to_leave_after_an_exception_too(monkeypatch, clock):
    ended = []
    monkeypatch.setattr(stopping, "end_by_default", ended.append)
    with pytest.raises(ValueError), LeaveWatch().listening_to([signal.SIGUSR1], is_alone=True):
        send(signal.SIGUSR1)
        raise ValueError
    clock.now += 60.0
    send(signal.SIGUSR1)
    assert ended == [signal.SIGUSR1]


def leave_once(signals):
    """Listen as a call of train on several ranks does, and return why it would leave."""
    leaves = LeaveWatch()
    with leaves.listening_to(signals):
        return leaves.why


def test_a_signal_between_two_trainings_is_what_it_was_in_the_last_that_named_it(clock):
    numbers = [signal.SIGTERM]
    for _ in range(2):
        assert leave_once(numbers) is None
        send(signal.SIGTERM)
        assert train_once(numbers) is None  # which takes no request to leave
        assert leave_once(numbers) == "SIGTERM"
        assert train_once(numbers) is None
        send(signal.SIGTERM)
        assert leave_once(numbers) is None
        assert train_once(numbers) == Stop(75, "SIGTERM between two trainings")
        with contextlib.suppress(TrainingStopped), StopWatch(numbers, None, None) as watch:
            raise watch.stop.error(None, 0)


FORKING_LEAVES = """
import os, signal, sys, time
from dist_classicrl.process.leave import LeaveWatch
signal.signal(signal.SIGUSR1, signal.SIG_DFL)
SIGNALS = (signal.SIGUSR1,)
def train():
    leaves = LeaveWatch()
    with leaves.listening_to(SIGNALS):
        return leaves.why
train()
signal.raise_signal(signal.SIGUSR1)  # the parent's to answer
child = os.fork()
if child == 0:
    try:
        first = train()
        signal.raise_signal(signal.SIGUSR1)
        print(first, train(), train(), flush=True)
        signal.raise_signal(signal.SIGUSR1)
        time.sleep(0.5)
        signal.raise_signal(signal.SIGUSR1)
    finally:
        os._exit(1)
status = os.waitpid(child, 0)[1]
print(train(), os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGUSR1)
"""


def test_a_process_forked_between_two_trainings_leaves_by_what_itself_hears():
    done = run_alone(FORKING_LEAVES)
    assert (done.returncode, done.stdout) == (0, "None SIGUSR1 None\nSIGUSR1 True\n"), done.stderr


TERMINATED = """
import multiprocessing, signal
signal.signal(signal.SIGTERM, signal.SIG_DFL)
from dist_classicrl.process.leave import LeaveWatch
def train(connection):
    with LeaveWatch().listening_to([signal.SIGTERM], is_alone=True):
        connection.send("begun")
        connection.recv()
print("ready", flush=True)
here, there = multiprocessing.Pipe()
child = multiprocessing.get_context("fork").Process(target=train, args=(there,))
child.start()
here.recv()
child.terminate()
child.join(20)
print(child.exitcode == -signal.SIGTERM)
child.kill()
"""


def test_a_child_that_trains_alone_can_be_terminated_where_sigterm_asks_to_leave():
    with started(TERMINATED) as process:
        output, errors = process.communicate(timeout=DEADLINE)
    assert (process.returncode, output) == (0, "True\n"), errors


def test_a_handler_of_the_programs_own_is_put_back_after_it_could_ask_to_leave():
    signal.signal(signal.SIGUSR1, own := lambda number, frame: None)
    leaves = LeaveWatch()
    with leaves.listening_to([signal.SIGUSR1]):
        send(signal.SIGUSR1)
    assert leaves.why == "SIGUSR1" and signal.getsignal(signal.SIGUSR1) == own


def test_ctrl_c_between_two_trainings_is_a_keyboard_interrupt():
    with started(BETWEEN) as process:
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE) == -signal.SIGINT
        assert process.stderr.read().endswith("KeyboardInterrupt\n")


FORKING_BETWEEN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_DFL)
from dist_classicrl.process.stop import StopWatch
SIGNALS = (signal.SIGUSR1, signal.SIGTERM)
with StopWatch(SIGNALS, None, None):
    pass
(read, write), (heard, say) = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    os.read(read, 1)  # what comes before this has been heard
    with StopWatch(SIGNALS, None, None) as watch:
        os.write(1, b"alive" if watch.stop is None else b"asked")
    os.write(say, b"x")
    time.sleep(50)
    os._exit(1)
for _ in range(2):
    os.kill(child, signal.SIGUSR1)
    time.sleep(0.3)
os.write(write, b"x")
os.close(say)
os.read(heard, 1)
while not (ended := os.waitpid(child, os.WNOHANG))[0]:
    os.kill(child, signal.SIGTERM)
    time.sleep(0.3)
status = ended[1]
sys.exit(0 if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGTERM else 1)
"""


def test_a_process_forked_between_two_trainings_leaves_all_but_sigterm_to_its_parent():
    done = run_alone(FORKING_BETWEEN)
    assert (done.returncode, done.stdout) == (0, "alive"), done.stderr


POOL = """
import multiprocessing, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_DFL)
from dist_classicrl.process.stop import StopWatch
def train(numbers):
    with StopWatch(numbers, None, None):
        pass
    return [signal.getsignal(number) == signal.SIG_DFL for number in numbers]
numbers = (signal.SIGUSR1, signal.SIGTERM)
print("ready", flush=True)
if sys.argv[1] == "after":
    train(numbers)
with multiprocessing.get_context("fork").Pool(1) as pool:
    print(pool.map(train, [numbers]))
# What leaves the block ends the pool by SIGTERM, and waits for that.
"""


@pytest.mark.parametrize("begun", ["first", "after"])
def test_a_pool_of_processes_that_train_can_be_ended(begun):
    with started(POOL, begun) as process:
        output, errors = process.communicate(timeout=DEADLINE)
    assert (process.returncode, output) == (0, "[[False, True]]\n"), errors


# MPI ends after Python does, so a library that waits for a line at that time stands for it here.
LEAVING = """
import ctypes, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_DFL)
from dist_classicrl.process.stop import Stop, StopWatch
ctypes.pythonapi.Py_AtExit(ctypes.cast(ctypes.CDLL(None).getchar, ctypes.c_void_p))
with StopWatch((signal.SIGUSR1, signal.SIGTERM), None, None):
    pass
if sys.argv[1] == "own":
    signal.signal(signal.SIGUSR1, lambda number, frame: None)
print("ready", flush=True)
raise Stop(75, "SIGUSR1").error(None, 0)
"""


def end_under_signals(process, *numbers):
    """Send signals without end from the moment on that Python hears none, and return the exit status."""
    deadline = time.monotonic() + DEADLINE
    while listens(process.pid, numbers[0]) and time.monotonic() < deadline:
        time.sleep(1e-3)
    for _ in range(50):
        for number in numbers:
            process.send_signal(number)
        time.sleep(1e-2)
    process.communicate("\n", timeout=DEADLINE)
    return process.returncode


def test_late_signals_do_not_change_the_exit_status():
    with started(LEAVING, "none") as process:
        assert end_under_signals(process, signal.SIGUSR1, signal.SIGTERM) == 75


def test_a_programs_own_handlers_are_left_alone_at_exit():
    with started(LEAVING, "own") as process:
        assert end_under_signals(process, signal.SIGUSR1) == -signal.SIGUSR1


def test_a_repeated_signal_counts_by_when_it_came_and_not_by_when_python_got_to_it(clock, monkeypatch):
    """A call in C, such as a step of a simulator, lets it wait."""
    late = {"seconds": 0.0}
    monkeypatch.setattr(stopping.arrivals, "age", lambda number: late["seconds"])
    with not_ended(), StopWatch(SIGNALS, None, None) as watch:
        send(signal.SIGUSR1)
        clock.now += 5.0
        late["seconds"] = 4.9
        send(signal.SIGUSR1)
        assert watch.stop.code == 75
    with pytest.raises(KeyboardInterrupt), StopWatch(SIGNALS, None, None):
        late["seconds"] = 0.0
        send(signal.SIGINT)
        clock.now += 5.0
        late["seconds"] = 4.7
        send(signal.SIGINT)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems note no times of signals")
@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM, None])
def test_a_signal_that_comes_twice_around_a_long_call_in_c_is_one_request(monkeypatch, first):
    monkeypatch.setattr(stopping, "REPEAT_SECONDS", 1.0)
    c, own = ctypes.CDLL(None), os.getpid()
    with not_ended(), StopWatch(SIGNALS, None, None) as watch:
        if first is not None:
            send(first)
            assert watch.stop is not None
        # No code of Python runs in between, and so no handler, until both have returned.
        both = signal.SIGINT, signal.SIGTERM
        returned = deque(chain(map(c.kill, [own, own], both), map(c.usleep, [600_000, 600_000])))
    assert list(returned) == [0, 0, 0, 0]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems note no times of signals")
def test_the_age_of_a_signal_is_that_of_the_last_one_and_asked_for_once():
    noted = stopping.arrivals
    signal.signal(signal.SIGUSR1, lambda number, frame: None)
    noted.begin()
    noted.begin()
    try:
        send(signal.SIGUSR1)
        time.sleep(0.02)
        assert noted.age(signal.SIGUSR2) == 0.0
        assert 0.02 <= noted.age(signal.SIGUSR1)
        send(signal.SIGUSR1)
        time.sleep(0.02)
        assert 0.02 <= noted.age(signal.SIGUSR1) and noted.age(signal.SIGUSR1) == 0.0
        if (child := os.fork()) == 0:  # which would tell its parent of its own
            os._exit(signal.set_wakeup_fd(-1) != -1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        noted.end()
        send(signal.SIGUSR1)
        time.sleep(0.02)
        assert 0.02 <= noted.age(signal.SIGUSR1)
    finally:
        noted.end()
    assert signal.set_wakeup_fd(-1) == -1 and noted.age(signal.SIGUSR1) == 0.0


def test_where_times_cannot_be_had_signals_are_heard_all_the_same(monkeypatch):
    class WithoutTimes(socket.socket):
        def setsockopt(self, *given):
            raise OSError(errno.ENOPROTOOPT, "no such option")

    pair = socket.socketpair
    monkeypatch.setattr(
        "dist_classicrl.process.arrivals.socket.socketpair",
        lambda *given: [WithoutTimes(fileno=each.detach()) for each in pair(*given)],
    )
    with StopWatch(SIGNALS, None, None) as watch:
        send(signal.SIGINT)
        assert watch.stop.code == 130 and signal.set_wakeup_fd(-1) == -1


def test_who_is_woken_by_signals_already_stays_so():
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    noted = Arrivals()
    before = signal.set_wakeup_fd(writer.fileno())
    try:
        noted.begin()
        signal.signal(signal.SIGUSR1, lambda number, frame: None)
        send(signal.SIGUSR1)
        assert noted.age(signal.SIGUSR1) == 0.0
        noted.end()
        assert reader.recv(1) == bytes([signal.SIGUSR1])
    finally:
        assert signal.set_wakeup_fd(before) == writer.fileno()
        reader.close()
        writer.close()
