"""The training loop against the same loop in C, with the same tricks; `fused_loop` has the source."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import common
import fused_loop
import numpy as np

from dist_classicrl._random import stream_key
from dist_classicrl.environments.resolve import resolve
from suite.form import Effort, LeftOutError, Measured, Sized, measure
from suite.peers import Peers

CHUNK = 50_000
STEP_SIZE = "n^-0.7"
CHECKED = 1_000_000


def timed(learner: Any, seconds: float) -> Callable[[int], Measured]:
    """Return runs of a learner, each with draws of its own, in stretches as a worker makes them."""
    key = iter(range(10**9))

    def learn(steps: int) -> float:
        # Whole stretches, of which the steps counted are a share.
        whole = -(-steps // CHUNK) * CHUNK
        stream = int(stream_key(1, "round", next(key)))
        return common.timed(lambda: learner.learn(stream, whole, CHUNK)) * steps / whole

    return Sized(learn, seconds, CHUNK)


def no_compiler(_: int) -> Measured:
    """Take no part."""
    raise LeftOutError("there is no gcc on this machine")


def run(case: str, effort: Effort, _: Peers, folder: str) -> dict[str, Any]:
    """Compare what is learned, bit by bit but for fused multiply-adds, then measure."""
    source = resolve(common.problem(case), 1, None)
    simulator, rate = source.simulator, fused_loop.STEP_SIZES[STEP_SIZE]
    assert simulator is not None and simulator.tables.first is None
    names = ("C", "C, number of actions fixed")
    candidates: dict[str, Callable[[int], Measured]] = {
        "ours": timed(fused_loop.PackageLearner(source, rate, is_alone=True), effort.seconds),
        "ours, as a worker": timed(fused_loop.PackageLearner(source, rate), effort.seconds),
    }
    if shutil.which("gcc") is None:
        return measure(
            "c", case, "steps/s", {**candidates, **dict.fromkeys(names, no_compiler)}, effort.rounds
        )
    learners = {
        "twin": fused_loop.CLearner(
            fused_loop.build(folder, f"{case}-twin".replace(" ", "-"), "-ffp-contract=off"), simulator, rate
        ),
        "package": fused_loop.PackageLearner(source, rate, is_alone=True),
    }
    for learner in learners.values():
        learner.learn(int(stream_key(0, "check")), CHECKED, CHUNK)
    difference = float(np.abs(learners["twin"].q - learners["package"].table.q).max())
    fixed = f"-DN_ACTIONS={simulator.n_actions}"
    for name, options in zip(names, ((), (fixed,)), strict=True):
        # A library that is loaded keeps its name, so each case has files of its own.
        function = fused_loop.build(folder, f"{case} {name}".replace(" ", "-"), *options)
        candidates[name] = timed(fused_loop.CLearner(function, simulator, rate), effort.seconds)
    text = f"After {CHECKED:,} steps with the same draws the values differ by at most {difference:.1e}."
    return measure("c", case, "steps/s", candidates, effort.rounds, text=text, difference=difference)
