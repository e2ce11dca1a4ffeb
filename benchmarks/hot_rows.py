"""Rows that get most of the visits, where each row has one owner: how unevenly the ranks work, and how fast.

Each run is a job of its own under mpirun, which learns every problem reproducibly, with rows divided by a
hash, the inventory by ranges, too. The second call of `train` counts. Imbalance is the most steps that a rank
made, over the mean: 2 means that half of all time is spent waiting for one rank.

For more ranks than a machine has cores, the visits of one process say what each rank would have to do: the
mean load of R ranks. Beside it what is left where the most visited rows are worked on by all ranks alike.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import common
import numba
import numpy as np

from dist_classicrl import CompiledSimulator, DistAsyncQLearning, TabularMDP
from dist_classicrl._jit import jit
from dist_classicrl.learning.supersteps.partition import owned_by, owner_of
from dist_classicrl.schedules import PerVisit

STATES = 1 << 17
ACTIONS = 8


class Hub(NamedTuple):
    """A random problem of so many states in which one step of `every` leads to state 0."""

    states: int
    every: int


class Products(NamedTuple):
    """An inventory: `most` of each of `n` products fit, and mostly 0 to 3 of each are sold a day."""

    n: int
    most: int


@numba.njit
def _anywhere(data, memory, random):
    return np.int64(random >> np.uint64(8)) % data.states


@numba.njit
def _by_way_of_hub(data, memory, state, action, random):
    if random % np.uint64(data.every) == np.uint64(0):
        return 0, 0.0, False
    which = (random >> np.uint64(8)) & np.uint64(1)
    mixed = np.uint64(state * 16 + action * 2) + which
    mixed = (mixed ^ (mixed >> np.uint64(7))) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    return np.int64(mixed >> np.uint64(1)) % data.states, 1.0 * (mixed & np.uint64(1)), False


@numba.njit
def _full(data, memory, random):
    return (data.most + 1) ** data.n - 1


@numba.njit
def _day(data, memory, state, action, random):
    """Order so that a product is full again, or none: action; then sell."""
    earned = 0.0
    next_state = 0
    place = 1
    for product in range(data.n):
        stock = state // place % (data.most + 1)
        if action == product + 1:
            earned -= 4.0 + 1.0 * (data.most - stock)
            stock = data.most
        demand = 0
        for bit in range(3):
            demand += np.int64((random >> np.uint64(3 * product + bit)) & np.uint64(1))
        sold = min(stock, demand)
        earned += 3.0 * sold - 0.02 * stock
        next_state += place * (stock - sold)
        place *= data.most + 1
    return next_state, earned, False


def garnet() -> Any:
    """Return a random problem that goes on for ever."""
    return TabularMDP.garnet(STATES, ACTIONS, 2, seed=1, max_episode_steps=None)


def short_episodes() -> Any:
    """Return the same with episodes of ten steps, which all begin in one state."""
    start = np.zeros(STATES)
    start[STATES // 3] = 1.0
    return replace(garnet(), start_prob=start, max_episode_steps=10)


def hub() -> Any:
    """Return a problem in which every fourth step leads to one state."""
    return CompiledSimulator.game(
        "hub", n_states=STATES, n_actions=ACTIONS, data=Hub(STATES, 4), reset=_anywhere, step=_by_way_of_hub
    )


def inventory() -> Any:
    """Return an inventory of four products: 923,521 states, episodes of a thousand days."""
    return CompiledSimulator.game(
        "inventory",
        n_states=31**4,
        n_actions=5,
        data=Products(4, 30),
        reset=_full,
        step=_day,
        max_episode_steps=1000,
    )


PROBLEMS = {
    "Garnet that goes on": (garnet, "hash"),
    "ten steps from one state": (short_episodes, "hash"),
    "hub": (hub, "hash"),
    "inventory": (inventory, "hash"),
    "inventory by ranges": (inventory, "range"),
}


def new_agent() -> DistAsyncQLearning:
    """Return the agent that learns any of them."""
    return DistAsyncQLearning(
        learning_rate=PerVisit(0.7),
        epsilon=0.2,
        discount_factor=0.9,
        seed=1,
        dtype="float32",
        async_updates=False,
    )


def run_rank(walkers: int, seconds: float) -> None:
    """Be one rank of a job that learns all problems; rank 0 prints what it found as JSON."""
    found = {}
    for name, (make, partition) in PROBLEMS.items():
        agent, env = new_agent(), make()
        asked: dict[str, Any] = {"placement": "sharded", "walkers": walkers, "partition": partition}
        first = agent.train(env, total_steps=20_000_000, **asked)
        steps = max(5_000_000, int(seconds * first.steps_per_second))
        by_rank: Counter[int] = Counter()

        def count(progress: Any, by_rank: Counter[int] = by_rank) -> None:
            by_rank.update({each.rank: each.steps for each in progress.ranks})

        result = agent.train(env, total_steps=steps, progress=count, **asked)
        if agent.rank == 0:
            found[name] = {
                "rate": result.steps_per_second,
                "imbalance": max(by_rank.values()) * len(by_rank) / sum(by_rank.values()),
                "crossing": result.bytes_pushed / 40 / result.steps,
                "waiting": result.communication_fraction,
            }
    if found:
        print(json.dumps(found))


def visits_of(env: Any, steps: int) -> np.ndarray:
    """Return the share of each state in the steps of an agent that has learned for a while."""
    agent = new_agent()
    agent.train(env, total_steps=steps, placement="sharded")
    before = agent.visits.sum(1)
    agent.train(env, total_steps=steps, placement="sharded")
    visits: np.ndarray = agent.visits.sum(1) - before
    return visits / visits.sum()


def owners(n_states: int, ranks: int, partition: str = "hash") -> np.ndarray:
    """Return the rank that owns each state."""
    if partition == "range":
        return np.arange(n_states) // -(-n_states // ranks)
    found = np.empty(n_states, np.int64)
    _owners(owned_by(partition, n_states, 0, ranks).arrays, found)
    return found


def loads(visits: np.ndarray, ranks: int, partition: str, replicated: int = 0) -> np.ndarray:
    """Return the share of each of so many ranks in all steps.

    Those from the most visited states are divided evenly, as many as are `replicated`.
    """
    rest = visits.copy()
    if replicated:
        rest[np.argpartition(rest, -replicated)[-replicated:]] = 0.0
    of_rank = np.bincount(owners(visits.size, ranks, partition), rest, minlength=ranks)
    return of_rank + (1.0 - rest.sum()) / ranks


@jit
def _owners(partition: Any, found: np.ndarray) -> None:
    for state in range(found.size):
        found[state] = owner_of(partition, state)


def measured(arguments: Any) -> dict[str, Any]:
    """Run the jobs; return what each found, by problem and number of ranks."""
    found: dict[str, Any] = {name: {ranks: [] for ranks in arguments.ranks} for name in PROBLEMS}
    for _ in range(arguments.rounds):
        for ranks in arguments.ranks:
            words = [str(Path(__file__).resolve()), "--as_rank", "--walkers", str(arguments.walkers)]
            words += ["--seconds", str(arguments.seconds)]
            lines = common.mpi_output(ranks, words, 900.0).splitlines()
            told = next(line for line in lines if line.startswith("{"))  # colors may be reset behind it
            for name, one in json.loads(told).items():
                found[name][ranks].append(one)
    return found


def show_measured(found: dict[str, Any], ranks: Any) -> None:
    """Print the medians."""

    def median(name: str, n: int, what: str) -> float:
        return statistics.median(run[what] for run in found[name][n])

    rows = []
    for name in found:
        one = ranks[0]
        for n in ranks:
            ratios = [
                run["rate"] / alone["rate"]
                for run, alone in zip(found[name][n], found[name][one], strict=True)
            ]
            cells = [f"{median(name, n, 'rate') / 1e6:.1f}", f"{statistics.median(ratios):.2f}"]
            cells += [f"{median(name, n, what):.2f}" for what in ("imbalance", "crossing", "waiting")]
            rows.append([name, n, *cells])
    headers = ["problem", "ranks", "M steps/s", f"over {ranks[0]} rank", "imbalance", "crossing", "waiting"]
    common.show(headers, rows)


def main() -> None:
    """Run the jobs and compute the rest, or be a rank of one."""
    parser = common.parser(__doc__, "hot_rows.json")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of each run, about")
    parser.add_argument("--ranks", type=int, nargs="+", default=(1, 2, 4))
    parser.add_argument("--walkers", type=int, default=16_384)
    parser.add_argument("--visits", type=int, default=50_000_000, help="steps whose visits are counted")
    parser.add_argument("--as_rank", action="store_true", help="used by its jobs")
    arguments = parser.parse_args()
    if arguments.as_rank:
        run_rank(arguments.walkers, arguments.seconds)
        return
    found = measured(arguments)
    show_measured(found, arguments.ranks)
    print()
    many = (16, 64, 256, 1024, 4096)
    computed, rows = [], []
    for name, (make, partition) in PROBLEMS.items():
        visits = visits_of(make(), arguments.visits)
        for replicated in (0, 64, 1024):
            imbalance = [ranks * float(loads(visits, ranks, partition, replicated).max()) for ranks in many]
            computed.append(
                {"problem": name, "replicated": replicated, "ranks": many, "imbalance": imbalance}
            )
            rows.append([name, replicated, *(f"{each:.2f}" for each in imbalance)])
    common.show(["problem", "rows worked on by all", *(f"{ranks} ranks" for ranks in many)], rows)
    results = {"measured": found, "computed": computed}
    common.save(arguments.output, results, rounds=arguments.rounds, walkers=arguments.walkers)


if __name__ == "__main__":
    main()
