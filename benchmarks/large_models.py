"""How much time and memory models of 100 million pairs take to be made and to be sampled.

The model is random, a Garnet: 8 actions, 2 next states a pair. "arrays" is `TabularMDP.garnet`, whose arrays
NumPy makes, and the alias slots of them. "function" is the same kind of model drawn by a function as it is
asked (`TabularMDP.from_function`), counter-based, so that nothing has to be stored: made and tried, looked at
as a whole, packed into alias slots, half of its states packed as one of two ranks does it, and played. It has
other numbers than `TabularMDP.garnet`, whose seeds keep their models.

Each line is a process of its own. Memory is the most that it has had (VmHWM) beyond what it had before, with
the package loaded and its kernels compiled.
"""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any, NamedTuple

import common
import numba
import numpy as np

from dist_classicrl import TabularMDP
from dist_classicrl._jit import jit_for
from dist_classicrl._random import GAMMA, below, mix, stream_key
from dist_classicrl.environments.simulate import CompiledSimulator, advance, compile_model, prefetch_outcome

ACTIONS = 8
STEPS, WALKERS = 1 << 24, 32
SIZES = (10**6, 10**7, 10**8, 1 << 27, 1 << 31)
MOST_OF_ARRAYS, MOST_OF_SLOTS = 10**7, 1 << 27


class Garnet(NamedTuple):
    """The `data` of `garnet`."""

    key: np.uint64
    n_states: int


@numba.njit
def garnet(data, state, action, outcome):  # type: ignore[no-untyped-def]
    """Return an outcome of a random model: two next states a pair, and a reward that float32 holds."""
    drawn = mix(data.key + np.uint64(state * ACTIONS + action) * GAMMA)
    cut = np.float64(drawn >> np.uint64(40)) * 2.0**-24
    next_state = below(mix(drawn + np.uint64(outcome)), data.n_states)
    return cut if outcome == 0 else 1.0 - cut, next_state, float(drawn & np.uint64(1023)) / 1024.0, False


def garnet_model(n_states: int, seed: int = 0) -> Any:
    """Return the model, of which nothing is stored."""
    data = Garnet(stream_key(seed, "garnet"), n_states)
    return TabularMDP.from_function(
        garnet, n_states=n_states, n_actions=ACTIONS, n_outcomes=2, data=data, tables=False
    )


@numba.njit(nogil=True)
def play(simulation, memory, states, actions, n_actions, key, steps):  # type: ignore[no-untyped-def]
    """Play random actions, a walker after the other; return the sum of rewards."""
    total = 0.0
    for at in range(0, steps, states.size):
        for k in range(states.size):
            random = mix(key + np.uint64(at + k) * GAMMA)
            actions[k] = np.int64(random >> np.uint64(61))
            prefetch_outcome(simulation, states[k], actions[k], mix(~random), n_actions)
        for k in range(states.size):
            random = mix(key + np.uint64(at + k) * GAMMA)
            states[k], reward, _ = advance(simulation, memory, states[k], actions[k], mix(~random), n_actions)
            total += reward
    return total


def played(simulator: CompiledSimulator) -> float:
    """Return millions of steps a second."""
    kernel = jit_for(play, type(simulator.tables))
    states, actions = np.zeros(WALKERS, np.int64), np.zeros(WALKERS, np.int64)

    def run(steps: int) -> None:
        arguments = (states, actions, ACTIONS, np.uint64(1), steps)
        kernel(simulator.tables, np.zeros(0, np.int64), *arguments)

    run(WALKERS)
    return STEPS / common.timed(lambda: run(STEPS)) / 1e6


def peak() -> float:
    """Return the most memory that this process has had, in MB."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith("VmHWM"))


def measure(what: str, pairs: int) -> None:
    """Do one of the things, and print seconds, MB of what it made, MB beyond what was there before."""
    n_states, small = pairs // ACTIONS, garnet_model(1 << 17)
    compile_model(TabularMDP.garnet(1 << 14, ACTIONS, 2, seed=0))
    small.part()
    held = 0.0
    if what in ("slots", "half of the slots", "played", "played without slots"):
        model = garnet_model(n_states)
    before, begun = peak(), time.perf_counter()
    if what == "arrays":
        made = TabularMDP.garnet(n_states, ACTIONS, 2, seed=0)
        held = compile_model(made).outcomes.nbytes / 2**20
    elif what == "made and tried":
        garnet_model(n_states)
    elif what == "looked at":
        garnet_model(n_states).check()
    elif what.endswith("slots") and not what.startswith("played"):
        part = model.part(range(n_states // 2) if what.startswith("half") else None)
        held = part.outcomes.nbytes / 2**20
    else:
        rate = played(model.simulator(tables=what == "played"))
        print(f"{rate:.1f} M steps/s")
        return
    print(f"{time.perf_counter() - begun:.2f} {held:.0f} {peak() - before:.0f}")


def main() -> None:
    """Print a line for each question and size."""
    if len(sys.argv) > 2 and sys.argv[1] == "--one":
        measure(sys.argv[2], int(sys.argv[3]))
        return
    parser = common.parser(__doc__, "large_models.json")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="pairs (default: %(default)s)")
    arguments = parser.parse_args()
    found = []
    for pairs in arguments.sizes:
        questions = ["made and tried", "looked at", "played without slots"]
        if pairs <= MOST_OF_ARRAYS:
            questions = ["arrays", *questions]
        if pairs <= MOST_OF_SLOTS:
            questions += ["slots", "half of the slots", "played"]
        for what in questions:
            command = [sys.executable, __file__, "--one", what, str(pairs)]
            done = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
            found.append({"pairs": pairs, "what": what, "found": done})
            print(f"{pairs:>13,}  {what:<22} {done}", flush=True)
    common.save(arguments.output, found, sizes=list(arguments.sizes))


if __name__ == "__main__":
    main()
