"""An agent and reports for tests of callbacks, without a training."""

from __future__ import annotations

from dist_classicrl import DistAsyncQLearning
from dist_classicrl.agent.agent import state_of
from dist_classicrl.callbacks import callback_list
from dist_classicrl.engines.progress import Progress, RankProgress


def progress(steps, *, before=0, **others):
    """Return a report after `steps`, `before` of which were made in earlier calls of train."""
    values = {
        "steps": steps - before,
        "total_steps": 1_000_000,
        "steps_per_second": 5e5,
        "episodes": 10,
        "mean_return": 0.5,
        "seconds": (steps - before) / 1000,
        "mean_length": 8.0,
        "td_error": 0.25,
        "epsilon": 0.1,
        "learning_rate": 0.2,
        "communication_fraction": 0.125,
        "pushes": 4,
        "bytes_pushed": 400,
        "bytes_pulled": 800,
        "bytes_saved": 40,
        "compression_seconds": 0.5,
        "most_waiting": 7,
        "staleness": 1.5,
        "workers": 2,
        "ranks": tuple(RankProgress(rank, f"host{rank}", 50, 100.0, 0.5, 0.25, 0.125) for rank in (1, 2)),
        "events": (),
    }
    return Progress(**{**values, **others})


class Reports:
    """Calls callbacks as a training does that serves an agent of 4 states and 2 actions.

    All are of one run, as from one checkpoint, unless `run` says something else.
    """

    def __init__(self, callbacks, run="0a1b2c3d", **settings):
        self.agent = DistAsyncQLearning(4, 2, seed=3, **settings)
        state_of(self.agent).places.run = run
        self.callbacks = callback_list(callbacks)
        self.before = 0

    def start(self, steps=0, before=0, **others):
        """Begin, or go on, after `steps`."""
        self.before = before
        state_of(self.agent).steps = steps
        self.callbacks.init_callback(self.agent)
        self.callbacks.on_training_start(progress(steps, before=before, **others))
        self.callbacks.on_rollout_start()
        return self

    def report(self, steps, **others):
        """Report, and return whether the training is to go on."""
        state_of(self.agent).steps = steps
        told = progress(steps, before=self.before, **others)
        self.callbacks.on_rollout_end(told)
        goes_on = self.callbacks.on_step(told)
        self.callbacks.on_rollout_start()
        return goes_on

    def end(self, result=None):
        """End the call."""
        self.callbacks.on_training_end(result)
        self.callbacks.on_close()
        return self


def event(kind="excluded", rank=2, seconds=0.5):
    """Return an event as a training tells of it."""
    return {"kind": kind, "rank": rank, "seconds": seconds, "steps_returned": 7, "detail": "silent"}
