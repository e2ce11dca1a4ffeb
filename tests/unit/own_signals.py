"""A process whose signals are as if nothing had been trained in it, for as long as a test needs them."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager

from dist_classicrl.process import leave as leaving
from dist_classicrl.process import stop as stopping

SIGNALS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)


@contextmanager
def own_signals(monkeypatch):
    """Let no request to stop or leave and no guarded signal come in from another test, or go out to one."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for module in (stopping, leaving):
        for number, handler in before.items():
            if handler == module._guard.hear:
                signal.signal(number, signal.SIG_DFL)
        monkeypatch.setattr(module, "_guard", stopping.Guard(module._guard._answer))
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def stop_after(steps, number=signal.SIGUSR1):
    """Return arguments of `train` with which the rank that serves sends itself a signal after `steps`."""
    sent = []

    def report(progress):
        if progress.steps >= steps and not sent:
            sent.append(None)
            os.kill(os.getpid(), number)

    return {"progress": report, "progress_interval": 0}
