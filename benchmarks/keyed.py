"""What do keys cost? Steps per second of a game with numbers as states, and of the same one with keys.

The game is arithmetic: from each state the actions lead to states all over the table, which no cache holds.
With keys its states are scrambled numbers, of 64 bits or 128, nearly all of which are in the table before the
first round that counts. Besides, what the first steps cost, in which states are new and the table grows.

    python benchmarks/keyed.py --states 65536 1048576 4194304
    python benchmarks/keyed.py --walkers 16384
"""

from __future__ import annotations

import statistics
import time
from typing import NamedTuple

import common
import numba
import numpy as np

from dist_classicrl import CompiledSimulator
from dist_classicrl._random import mix, stream_key
from dist_classicrl.environments.resolve import resolve
from dist_classicrl.learning import interleaved
from dist_classicrl.learning.kinds import new_learner, problem_of
from dist_classicrl.learning.learner import Learner, Stream
from dist_classicrl.learning.rates import Rates
from dist_classicrl.settings import Settings

ACTIONS = 8
ODD = 0x9E3779B97F4A7C15
INVERSE = pow(ODD, -1, 1 << 64)


class Numbers(NamedTuple):
    """Data of the game whose states are numbers."""

    n: int


class Keys(NamedTuple):
    """Data of the game whose states are keys."""

    n: int


class Pairs(NamedTuple):
    """Data of the game whose states are keys of 128 bits."""

    n: int


@numba.njit
def after(n, state, action, random):
    """Return one of two states that an action leads to."""
    return np.int64(mix(np.uint64(2 * (state * ACTIONS + action)) + (random >> np.uint64(63))) % np.uint64(n))


@numba.njit
def reset(data, memory, random):
    """Begin anywhere."""
    return np.int64(random % np.uint64(data.n))


@numba.njit
def step(data, memory, state, action, random):
    """Go on; the reward is of the state."""
    reached = after(data.n, state, action, random)
    return reached, np.float64(reached & 1), False


@numba.njit
def reset_by_key(data, memory, random):
    """Begin anywhere."""
    return random % np.uint64(data.n) * np.uint64(ODD)


@numba.njit
def step_by_key(data, memory, key, action, random):
    """Do what `step` does."""
    reached = after(data.n, np.int64(key * np.uint64(INVERSE)), action, random)
    return np.uint64(reached) * np.uint64(ODD), np.float64(reached & 1), False


@numba.njit
def reset_by_pair(data, memory, random):
    """Begin anywhere."""
    key = random % np.uint64(data.n) * np.uint64(ODD)
    return ~key, key


@numba.njit
def step_by_pair(data, memory, key, action, random):
    """Do what `step` does."""
    reached, reward, is_over = step_by_key(data, memory, key[1], action, random)
    return (~reached, reached), reward, is_over


def learner_of(game: CompiledSimulator, dtype: str, walkers: int | None) -> Learner:
    """Return what learns a game alone: in turns, or with so many `walkers` in supersteps."""
    settings = Settings(dtype=dtype, epsilon=0.1, discount_factor=0.9)
    source = resolve(game, 1, None)
    learner = new_learner(
        problem_of(source, settings, Rates(settings, 1), np.dtype(dtype), is_alone=True, walkers=walkers)
    )
    learner.add(0, source, 0)
    return learner


def measure(n: int, dtype: str, steps: int, rounds: int, walkers: int | None) -> dict[str, float]:
    """Return the figures of a table of `n` states."""
    games = {
        "numbers": CompiledSimulator.game("numbers", n, ACTIONS, Numbers(n), reset, step),
        "keys": CompiledSimulator.game(
            "keys", n_actions=ACTIONS, data=Keys(n), reset=reset_by_key, step=step_by_key, keyed=True
        ),
        "pairs": CompiledSimulator.game(
            "pairs", n_actions=ACTIONS, data=Pairs(n), reset=reset_by_pair, step=step_by_pair, keyed=True
        ),
    }
    learners = {name: learner_of(game, dtype, walkers) for name, game in games.items()}
    streams = {name: Stream(stream_key(0, "keyed"), 0) for name in games}

    def seconds(name: str, count: int = steps) -> float:
        begin = time.perf_counter()
        learners[name].learn(0, streams[name], count)
        return time.perf_counter() - begin

    first = n // interleaved.WALKERS * interleaved.WALKERS
    growing = {name: first / seconds(name, first) / 1e6 for name in games}
    for name in games:  # until nearly all states were met
        seconds(name, 8 * first)
    taken = common.interleave({name: lambda number, name=name: seconds(name) for name in games}, rounds)

    def of_numbers(name: str) -> float:
        return statistics.median(a / b for a, b in zip(taken["numbers"], taken[name], strict=True))

    return {
        "states": n,
        "dtype": dtype,
        "known": learners["keys"].table.keys.size,
        "numbers": steps / statistics.median(taken["numbers"]) / 1e6,
        "keys": steps / statistics.median(taken["keys"]) / 1e6,
        "pairs": steps / statistics.median(taken["pairs"]) / 1e6,
        "ratio": of_numbers("keys"),
        "ratio of pairs": of_numbers("pairs"),
        "growing": growing["keys"],
    }


def main() -> None:
    """Measure, print and write."""
    parser = common.parser(__doc__, "keyed.json")
    parser.add_argument("--states", type=int, nargs="+", default=[1 << 16, 1 << 20, 1 << 22])
    parser.add_argument("--dtype", nargs="+", default=["float32", "float64"])
    parser.add_argument("--walkers", type=int, help="learn in supersteps, with so many")
    parser.add_argument("--steps", type=int, default=32 * 300_000)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    interleaved.FROM_ENTRIES = 1
    found = [
        measure(n, dtype, arguments.steps, arguments.rounds, arguments.walkers)
        for dtype in arguments.dtype
        for n in arguments.states
    ]
    common.show(
        [
            "states",
            "dtype",
            "numbers, M steps/s",
            "64 bits",
            "of numbers",
            "128 bits",
            "of numbers",
            "64 bits while all is new",
        ],
        [
            [
                f"{one['states']:,}",
                one["dtype"],
                f"{one['numbers']:.1f}",
                f"{one['keys']:.1f}",
                f"{one['ratio']:.2f}",
                f"{one['pairs']:.1f}",
                f"{one['ratio of pairs']:.2f}",
                f"{one['growing']:.1f}",
            ]
            for one in found
        ],
    )
    common.save(
        arguments.output, found, steps=arguments.steps, rounds=arguments.rounds, walkers=arguments.walkers
    )


if __name__ == "__main__":
    main()
