"""A process whose stop signals are as if nothing had been trained in it, for as long as a test needs them."""

from __future__ import annotations

import signal
from contextlib import contextmanager

from dist_classicrl.process import stop as stopping

SIGNALS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)


@contextmanager
def own_signals(monkeypatch):
    """Let no request to stop and no guarded signal come in from another test, or go out to one."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    monkeypatch.setattr(stopping, "_guard", stopping._Guard())
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
