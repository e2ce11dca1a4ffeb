"""Measure learning on a CUDA card beside a twin in CUDA C and one core of the same machine.

    python benchmarks/card.py                  # all problems, some minutes
    python benchmarks/card.py --only frozenlake --seconds 2

For each problem: steps per second of the learner on the card, a small table going there and back with each
call; those of one core; the seconds that this way takes; and the root mean square error to the optimal values
after 1e9 and 1e10 steps. For FrozenLake also those of `card_twin.cu`, the same work by hand in CUDA C, if
there is nvcc. Without a card it ends with 2 and says why.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import common
import numpy as np

from dist_classicrl import CompiledSimulator, TabularMDP
from dist_classicrl._random import stream_key
from dist_classicrl.environments import TicTacToeEnv
from dist_classicrl.environments.problems.blackjack import blackjack
from dist_classicrl.environments.resolve import resolve
from dist_classicrl.errors import DistClassicRLError
from dist_classicrl.learning.card.cards import cards
from dist_classicrl.learning.card.choosing import why_not
from dist_classicrl.learning.kinds import new_learner, problem_of
from dist_classicrl.learning.learner import Stream
from dist_classicrl.learning.rates import Rates
from dist_classicrl.schedules import PerVisit
from dist_classicrl.settings import Settings

TWIN = Path(__file__).with_name("card_twin.cu")
NO_CARD = 2
CORE_SECONDS = 1.0
MEASURED_STEPS = (10**9, 10**10)


def problems():
    """Return what is learned, by name: how it is made."""
    return {
        "frozenlake": lambda: TabularMDP.from_gymnasium("FrozenLake-v1", map_name="8x8"),
        "taxi": lambda: TabularMDP.from_gymnasium("Taxi-v4"),
        "cliffwalking": lambda: TabularMDP.from_gymnasium("CliffWalking-v1"),
        "blackjack": blackjack,
        "tictactoe": TicTacToeEnv,
        "garnet of 1 M entries": lambda: TabularMDP.garnet(1 << 17, 8, 2, seed=1),
        "garnet of 8.4 M entries": lambda: TabularMDP.garnet(1 << 20, 8, 2, seed=1),
    }


def settings_for(device):
    """Return the settings of all measurements."""
    return Settings(learning_rate=PerVisit(0.7), epsilon=0.5, discount_factor=0.99, device=device)


def learner_for(source, card):
    """Return a learner of a process alone, on a card or, with None, on a core, with its walker."""
    settings = settings_for("cpu" if card is None else "cuda")
    learner = new_learner(problem_of(source, settings, Rates(settings, 1), is_alone=True, card=card))
    learner.add(0, source, 0)
    return learner


def speed(learner, seconds, start):
    """Return steps per second in calls that take about 50 ms, from global step `start` on."""
    stream = Stream(stream_key(1, "benchmark", start), start)
    size = learner.quantum
    begin = time.perf_counter()
    while (passed := time.perf_counter() - begin) < seconds:
        before = time.perf_counter()
        learner.learn(0, stream, size)
        if time.perf_counter() - before < 0.05:
            size *= 2
    return stream.used / passed


def errors(source, card):
    """Return the root mean square error by steps made; nothing where the optimal values are unknown."""
    model = source.simulator.model
    if model is None or model.n_states > 1 << 12:
        return {}
    truth = model.solve(0.99)
    learner, found, made = learner_for(source, card), {}, 0
    q, counts = np.zeros(truth.q.size), np.zeros(truth.q.size, np.int64)
    stream = Stream(stream_key(1, "errors"), 0)
    for steps in MEASURED_STEPS:
        while made < steps:
            some = min(steps - made, 64 * learner.quantum)
            learner.learn(0, stream, some)
            made += some
        learner.table.settle(q, counts)
        seen = np.isfinite(truth.q)
        found[f"{steps:.0e}"] = float(np.sqrt(np.mean((q.reshape(truth.q.shape) - truth.q)[seen] ** 2)))
    return found


def hand_over(learner):
    """Return the seconds of a call that makes one step: what a table's way to the card and back costs.

    A large one stays there.
    """
    stream = Stream(stream_key(1, "hand-over"), 10**10)
    learner.learn(0, stream, 1)
    begin = time.perf_counter()
    for _ in range(20):
        learner.learn(0, stream, 1)
    return (time.perf_counter() - begin) / 20


def twin_speed(seconds):
    """Return the steps per second of the twin in CUDA C on FrozenLake 8x8, None without nvcc."""
    compiler = shutil.which("nvcc")
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "card_twin"
        subprocess.run([compiler, "-O3", "-arch=native", "-o", program, TWIN], check=True)
        done = subprocess.run([program, str(seconds)], check=True, capture_output=True, text=True)
        return float(json.loads(done.stdout)["steps_per_second"])


def measured(name, env, card, seconds):
    """Return what was measured of a problem."""
    source = resolve(env, 1, None)
    if not isinstance(source.simulator, CompiledSimulator):
        return {"problem": name, "refused": "it is not compiled"}
    if (why := why_not(source, settings_for("cuda"), "local")) is not None:
        return {"problem": name, "refused": why}
    learner = learner_for(source, card)
    on_card = speed(learner, seconds, 10**10)
    on_core = speed(learner_for(source, None), CORE_SECONDS, 10**10)
    row = {
        "problem": name,
        "card_steps_per_second": on_card,
        "core_steps_per_second": on_core,
        "ratio": on_card / on_core,
        "hand_over_seconds": hand_over(learner),
        "rms_error": errors(source, card),
    }
    if name == "frozenlake":
        row["twin_steps_per_second"] = twin_speed(seconds)
    return row


def main():
    """Read the arguments, and measure."""
    parser = common.parser(__doc__, "card.json")
    parser.add_argument("--only", choices=problems(), help="one problem")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement (5)")
    given = parser.parse_args()
    try:
        card = cards()[0]
    except DistClassicRLError as error:
        print(f"Nothing can be measured. {error}", file=sys.stderr)
        return NO_CARD
    if card.is_simulated:
        print("Nothing can be measured in numba's CUDA simulator.", file=sys.stderr)
        return NO_CARD
    rows = []
    for name, make in problems().items():
        if given.only in (None, name):
            rows.append(measured(name, make(), card, given.seconds))
            print(json.dumps(rows[-1]), flush=True)
    common.save(given.output, rows, card=str(card), seconds=given.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
