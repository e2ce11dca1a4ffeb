"""A call that goes back to a checkpoint: what it has counted, and what it reports again."""

import math

from dist_classicrl.engines.outcome import Counters, Tally
from dist_classicrl.engines.progress import Observer, Reporter

SAVED = Tally(total_steps=1000, steps=400, episodes=8.0, returns=4.0, pushes=2, bytes_pushed=90)
SAVED.reported = Counters(steps=300, episodes=6.0)


class Heard(Observer):
    def __init__(self):
        self.steps, self.episodes = [], []

    def next_step(self, steps, total_steps):
        return steps + 100

    def reported(self, progress):
        self.steps.append(progress.steps)
        self.episodes.append(progress.episodes)
        return True


def test_what_was_reported_is_not_reported_again(caplog):
    tally, heard = Tally(total_steps=1000), Heard()
    reporter = Reporter(tally, heard, 1.0)
    reporter.begin(0.0, [])

    def learn_until(last, seconds):
        for steps in range(tally.steps + 50, last + 50, 50):
            tally.steps, tally.episodes, tally.pushes = steps, steps / 50, tally.pushes + 1
            if reporter.is_due(seconds):
                reporter.report(seconds, [])

    learn_until(600, 0.5)
    tally.go_back_to(SAVED.to_dict(7.0))
    assert (tally.steps, tally.episodes, tally.returns) == (400, 8.0, 4.0)
    assert caplog.messages == ["Going back to step 400 of this call: 200 steps are made again."]
    assert (tally.pushes, tally.bytes_pushed) == (12, 90)  # they were sent
    assert tally.reported.steps == 600 and tally.earlier_seconds == 0.0
    learn_until(800, 99.0)  # by time it is due at each step
    assert heard.steps == [100, 200, 300, 400, 500, 600, 600, 700, 800]
    assert heard.episodes == [2, 2, 2, 2, 2, 2, 0, 2, 2] and min(heard.episodes) >= 0


def test_who_takes_over_reports_from_the_checkpoint_on(caplog):
    tally = Tally(total_steps=1000)
    tally.go_back_to(SAVED.to_dict(7.0))
    assert tally.counted() == SAVED.counted() and tally.reported == SAVED.reported
    assert caplog.messages == ["Going back to step 400 of this call."]
    tally.go_back_to({name: value for name, value in SAVED.to_dict(7.0).items() if name != "reported"})
    assert tally.reported == Counters(**SAVED.counted()) and not math.isnan(tally.td_errors)
