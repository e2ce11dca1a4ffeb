"""Measure learning on a CUDA card beside programs in CUDA C and the cores of the same machine.

    python benchmarks/card.py                  # all problems, some minutes
    python benchmarks/card.py --only frozenlake --seconds 2
    python benchmarks/card.py --prototype program.cu --ranks 16

For each problem: steps per second of a process alone on the card and of one core, in calls of about 50 ms;
the seconds of a call that makes one step, which is what a worker's table on its way to the card and back
costs; and the root mean square error to the optimal values of the entries that were visited. Small ones have
float64 values and steps of n^-0.7; the random ones float32 and steps of 0.1.

For FrozenLake also the steps per second of `card_twin.cu`, the same work by hand in CUDA C, if there is nvcc;
10,000 runs of a million steps at once; and, with ``--ranks``, the seconds of training until the greedy policy
is worth 99 % of the best one, on the card and on so many ranks on cores. ``--prototype`` is another program
in CUDA C, which prints "b) ...: R G steps/s" for FrozenLake and "c) E M entries, ...: R G steps/s" for random
models; of each the best counts. Without a card it ends with 2 and says why.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import common
import large_models
import numpy as np

from dist_classicrl import CompiledSimulator, DistAsyncQLearning, TabularMDP
from dist_classicrl._random import stream_key
from dist_classicrl.environments import TicTacToeEnv
from dist_classicrl.environments.problems.blackjack import blackjack
from dist_classicrl.environments.resolve import resolve
from dist_classicrl.errors import DistClassicRLError
from dist_classicrl.learning.card.cards import cards
from dist_classicrl.learning.card.choosing import why_not
from dist_classicrl.learning.card.runs import learn_runs
from dist_classicrl.learning.kinds import new_learner, problem_of
from dist_classicrl.learning.learner import Stream
from dist_classicrl.learning.rates import Rates
from dist_classicrl.schedules import PerVisit
from dist_classicrl.settings import Settings

TWIN = Path(__file__).with_name("card_twin.cu")
NO_CARD = 2
CORE_SECONDS = 1.0
MEASURED_STEPS = (10**8, 10**9, 10**10)
DISCOUNT, WITHIN = 0.99, 0.01
SEEDS, STEPS_OF_RUN = 10_000, 1_000_000
FEWEST_STEPS, MOST_DOUBLINGS = 1 << 18, 16
LARGE = {"garnet of 1 M entries": 17, "garnet of 8.4 M entries": 20, "garnet of 134 M entries": 24}


def problems():
    """Return what is learned, by name: how it is made."""
    small = {
        "frozenlake": lambda: TabularMDP.from_gymnasium("FrozenLake-v1", map_name="8x8"),
        "taxi": lambda: TabularMDP.from_gymnasium("Taxi-v4"),
        "cliffwalking": lambda: TabularMDP.from_gymnasium("CliffWalking-v1"),
        "blackjack": blackjack,
        "tictactoe": TicTacToeEnv,
    }

    def random(log_states):
        return lambda: large_models.garnet_model(1 << log_states, seed=1).simulator(tables=True)

    return small | {name: random(log_states) for name, log_states in LARGE.items()}


def settings_for(name, device):
    """Return the settings of all measurements of a problem."""
    step_size, epsilon = (0.1, 0.2) if name in LARGE else (PerVisit(0.7), 0.5)
    return Settings(learning_rate=step_size, epsilon=epsilon, discount_factor=DISCOUNT, device=device)


def learner_for(name, source, card, is_alone=True):
    """Return a learner with its walkers, on a card or, with None, on a core."""
    settings = settings_for(name, "cpu" if card is None else "cuda")
    dtype = np.float32 if name in LARGE else np.float64
    rates = Rates(settings, 1)
    learner = new_learner(problem_of(source, settings, rates, dtype, is_alone=is_alone, card=card))
    learner.add(0, source, 0)
    return learner


def speed(learner, seconds, start=10**10):
    """Return steps per second in calls that take about 50 ms, from global step `start` on."""
    stream = Stream(stream_key(1, "benchmark", start), start)
    size, passed = learner.quantum // 2, 0.0
    while passed < 0.05:
        size *= 2
        passed = common.timed(partial(learner.learn, 0, stream, size))
    used, begin = stream.used, time.perf_counter()
    while (passed := time.perf_counter() - begin) < seconds:
        learner.learn(0, stream, size)
    return (stream.used - used) / passed


def errors(name, source, card):
    """Return the root mean square error by steps made; nothing where the optimal values are unknown."""
    model = source.simulator.model
    if model is None or name in LARGE:
        return {}
    truth = model.solve(DISCOUNT).q.ravel()
    learner, found, made = learner_for(name, source, card), {}, 0
    q, counts = np.zeros(truth.size), np.zeros(truth.size, np.int64)
    stream = Stream(stream_key(1, "errors"), 0)
    for steps in (*MEASURED_STEPS, 10**11) if name == "frozenlake" else MEASURED_STEPS:
        while made < steps:
            some = min(steps - made, 64 * learner.quantum)
            learner.learn(0, stream, some)
            made += some
        learner.table.settle(q, counts)
        seen = np.isfinite(truth) & (counts > 0)
        found[f"{steps:.0e}"] = float(np.sqrt(np.mean((q - truth)[seen] ** 2)))
    return found


def hand_over(name, source, card):
    """Return the seconds of a worker's call that makes one step, in which its table goes there and back."""
    learner = learner_for(name, source, card, is_alone=False)
    stream = Stream(stream_key(1, "hand-over"), 10**10)
    learner.learn(0, stream, 1)
    return common.timed(lambda: [learner.learn(0, stream, 1) for _ in range(20)]) / 20


def compiled(source, folder):
    """Return where a program in CUDA C is, compiled; None without nvcc."""
    compiler = shutil.which("nvcc")
    if compiler is None:
        return None
    program = Path(folder) / source.stem
    subprocess.run([compiler, "-O3", "-arch=native", "-o", program, source], check=True)
    return program


def printed(program, *arguments):
    """Return what a program prints."""
    return subprocess.run([program, *arguments], check=True, capture_output=True, text=True).stdout


def twin_speed(seconds):
    """Return the steps per second of the twin in CUDA C on FrozenLake 8x8, None without nvcc."""
    with tempfile.TemporaryDirectory() as folder:
        program = compiled(TWIN, folder)
        return (
            None if program is None else float(json.loads(printed(program, str(seconds)))["steps_per_second"])
        )


def prototype_speeds(source):
    """Return the best steps per second that another program in CUDA C prints, by problem."""
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        program = compiled(source, folder)
        if program is None:
            raise SystemExit("--prototype needs nvcc on PATH, and there is none. Leave it out.")
        told = printed(program)
    names = {f"c) {8 * (1 << log_states) / 1e6:.1f} M": name for name, log_states in LARGE.items()}
    for beginning, name in {"b)": "frozenlake", **names}.items():
        rates = re.findall(rf"^{re.escape(beginning)}.* ([\d.]+) G steps/s", told, re.MULTILINE)
        if rates:
            found[name] = 1e9 * max(map(float, rates))
    return found


def runs_at_once(source, card):
    """Return how long many runs at once take, compilation apart, and what they come to."""
    lake = source.simulator.model
    learn_runs(lake, range(64), 1000, card=card)
    begin = time.perf_counter()
    runs = learn_runs(lake, range(SEEDS), STEPS_OF_RUN, card=card)
    seconds = time.perf_counter() - begin
    starts = runs.q_tables[:, 0].max(axis=1)
    return {
        "runs": SEEDS,
        "steps": STEPS_OF_RUN,
        "seconds": seconds,
        "steps_per_second": SEEDS * STEPS_OF_RUN / seconds,
        "mean_return": [float(runs.mean_returns.mean()), float(runs.mean_returns.std(ddof=1))],
        "value_of_start": [float(starts.mean()), float(starts.std(ddof=1))],
    }


def until_good(name, device):
    """Return the fewest steps, of twice as many in each trial, and their seconds, of a policy within 1 %.

    All ranks call it; each trial is a training of its own.
    """
    model = problems()[name]()
    settings = settings_for(name, device)
    best = model.start_value(model.solve(DISCOUNT).v)
    for doubling in range(MOST_DOUBLINGS):
        agent = DistAsyncQLearning(
            learning_rate=settings.learning_rate,
            epsilon=settings.epsilon,
            discount_factor=DISCOUNT,
            device=device,
            seed=1,
        )
        steps = FEWEST_STEPS << doubling
        seconds = agent.train(model, total_steps=steps, progress_bar=False).seconds
        policy = agent.q_table.argmax(axis=1)
        if model.start_value(model.policy_value(policy, DISCOUNT)) >= (1.0 - WITHIN) * best:
            return {"steps": steps, "seconds": seconds}
    return {"steps": None, "seconds": None}


def measured(name, env, card, seconds):
    """Return what was measured of a problem."""
    source = resolve(env, 1, None)
    if not isinstance(source.simulator, CompiledSimulator):
        return {"problem": name, "refused": "it is not compiled"}
    if (why := why_not(source, settings_for(name, "cuda"), "local")) is not None:
        return {"problem": name, "refused": why}
    on_card = speed(learner_for(name, source, card), seconds)
    on_core = speed(learner_for(name, source, None), CORE_SECONDS)
    row: dict[str, Any] = {
        "problem": name,
        "card_steps_per_second": on_card,
        "core_steps_per_second": on_core,
        "ratio": on_card / on_core,
        "rms_error": errors(name, source, card),
    }
    if name not in LARGE:
        row["hand_over_seconds"] = hand_over(name, source, card)
    if name == "frozenlake":
        row["twin_steps_per_second"] = twin_speed(seconds)
        row["runs_at_once"] = runs_at_once(source, card)
    return row


def main():
    """Read the arguments, and measure."""
    parser = common.parser(__doc__, "card.json")
    parser.add_argument("--only", choices=problems(), help="one problem")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement (5)")
    parser.add_argument("--prototype", type=Path, help="a program in CUDA C")
    parser.add_argument("--ranks", type=int, help="how many ranks on cores learn a policy")
    parser.add_argument("--as-rank", help="used by its jobs")
    given = parser.parse_args()
    if given.as_rank is not None:
        print(json.dumps(until_good(given.as_rank, "cpu")))
        return 0
    try:
        card = cards()[0]
    except DistClassicRLError as error:
        print(f"Nothing can be measured. {error}", file=sys.stderr)
        return NO_CARD
    if card.is_simulated:
        print("Nothing can be measured in numba's CUDA simulator.", file=sys.stderr)
        return NO_CARD
    prototype = {} if given.prototype is None else prototype_speeds(given.prototype)
    rows = []
    for name, make in problems().items():
        if given.only not in (None, name):
            continue
        row = measured(name, make(), card, given.seconds)
        if name in prototype:
            row["prototype_steps_per_second"] = prototype[name]
            row["of_prototype"] = row["card_steps_per_second"] / prototype[name]
        if name == "frozenlake" and given.ranks is not None:
            told = common.mpi_output(given.ranks, [__file__, "--as-rank", name], 600.0)
            row["until_within_1_percent"] = {
                "card": until_good(name, "cuda"),
                "cores": common.last_told(told),
            }
        rows.append(row)
        print(json.dumps(rows[-1]), flush=True)
    common.save(given.output, rows, card=str(card), seconds=given.seconds, ranks=given.ranks)
    return 0


if __name__ == "__main__":
    sys.exit(main())
