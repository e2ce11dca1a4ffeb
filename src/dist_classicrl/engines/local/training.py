"""One call of `train` in one process, without messages."""

from __future__ import annotations

import time
from collections.abc import Callable

from dist_classicrl.engines.loops import Loop, RoundLoop, StepLoop
from dist_classicrl.engines.outcome import Outcome
from dist_classicrl.engines.run import Run
from dist_classicrl.learning.learner import Learner
from dist_classicrl.learning.rates import Rates
from dist_classicrl.learning.rules import table_shape
from dist_classicrl.tables.line_table import LineTable
from dist_classicrl.tables.warm_up import warm_up_rounds


def train(
    run: Run,
    group: None = None,
    start: None = None,
    make_loop: Callable[[Run, Learner], Loop] | None = None,
) -> Outcome:
    """Train in this process, as `Engine.train` says."""
    if make_loop is None:
        make_loop = StepLoop if run.logical is None else RoundLoop
    begin = time.perf_counter()
    rates = Rates(run.settings, run.logical or 1)
    learner: Learner | None = None
    try:
        if run.large is not None:
            run.rows = run.large.rows
        elif run.is_sharded and run.keyed is None and run.walkers is None:  # keys have a table of their own
            source = run.source
            shape = table_shape(run.settings.algorithm, source.n_states, source.n_actions)
            legal = None if source.simulator is None else source.simulator.legal
            run.rows = LineTable(shape, run.values.dtype, legal)
        walkers = [0] if run.logical is None else list(range(run.logical))

        def make() -> Learner:
            nonlocal learner
            learner = run.learner(rates, is_alone=run.logical is None)
            run.load(learner.table)
            if run.logical is None:
                run.settle(learner.table)  # what is compiled here does not count as training
            else:
                warm_up_rounds(run.learner(rates, 1).table)
            run.add_walkers(learner, walkers)
            return learner

        learner = run.on_card_or_cores(make)
        run.restore(learner, walkers, getattr(learner, "mode", "alone") if run.logical is None else "rounds")
        loop = make_loop(run, learner)
        compiled = time.perf_counter() - begin
        loop.begin = time.perf_counter()
        run.begin()
        run.reporter.begin(0.0, [loop.own])
        loop.run()
        seconds = loop.seconds
    finally:
        run.close(learner)
    result = run.tally.result(seconds, compiled, workers=1)
    where = None
    if run.saver is not None:
        where = run.saver.finish(run.values, run.counts, loop.position(whole=False), result)
    run.reporter.hear(None, run.saver)
    run.reporter.report_end(seconds, [loop.own])  # after saving: the callbacks may raise
    stop = None if run.watch is None else run.watch.stop
    if stop is not None:  # too late for this call, but not for what the script does next
        raise run.stopped(stop, where)
    return result
