"""Handlers of signals for a while, and signals that have to wait, when something goes wrong meanwhile."""

import signal

import pytest

from dist_classicrl.process.signals import handled, postponed


@pytest.fixture(autouse=True)
def own_handlers():
    """Put back what was set before."""
    numbers = (signal.SIGHUP, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_handlers_go_back_where_one_of_the_signals_cannot_be_handled():
    before = signal.getsignal(signal.SIGHUP)
    with pytest.raises(OSError), handled([signal.SIGHUP, signal.SIGKILL], lambda *_: None):
        pass
    assert signal.getsignal(signal.SIGHUP) is before


def test_handlers_go_back_where_a_signal_comes_while_they_do(monkeypatch):
    def end(number, frame):
        raise SystemExit(number)

    for number in (signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, end)
    set_handler = signal.signal

    def interrupted(number, handler):
        before = set_handler(number, handler)
        if handler is end:
            signal.raise_signal(number)
        return before

    with pytest.raises(SystemExit), handled([signal.SIGHUP, signal.SIGTERM], lambda *_: None):
        monkeypatch.setattr(signal, "signal", interrupted)
    assert {signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM)} == {end}


def test_all_signals_that_had_to_wait_are_heard_even_if_the_first_ends_the_program():
    heard = []

    def end(number, frame):
        heard.append(number)
        raise SystemExit(number)

    for number in (signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, end)
    with pytest.raises(SystemExit), postponed():
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGHUP)
        assert not heard
    assert heard == [signal.SIGTERM, signal.SIGHUP]
