"""Rows that get most of the visits, where each row has one owner: how unevenly the ranks work, and how fast.

Each run is a job of its own under mpirun, which learns every problem reproducibly, with rows divided by a
hash, the inventory by ranges, too. The second call of `train` counts. Imbalance is the most steps that a rank
made, over the mean: 2 means that half of all time is spent waiting for one rank.

Ranks that exchange messages, as those of several hosts do, are played by one process, which counts the steps
of each, and what it sends: as they are, and without copies of hot rows. For still more ranks the visits of
one process say what each would have to do: the mean load of R ranks. Beside it what is left where the most
visited rows are worked on by all ranks alike.
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
from dist_classicrl.environments.resolve import resolve
from dist_classicrl.learning.kinds import problem_of
from dist_classicrl.learning.learner import Stream
from dist_classicrl.learning.rates import Rates
from dist_classicrl.learning.supersteps import share
from dist_classicrl.learning.supersteps.by_messages.exchanges import Exchanges, together
from dist_classicrl.learning.supersteps.owners import owned_by
from dist_classicrl.learning.supersteps.partition import owner_of
from dist_classicrl.learning.supersteps.share import Share, supersteps
from dist_classicrl.schedules import PerVisit
from dist_classicrl.settings import Settings

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


SETTINGS = Settings(learning_rate=PerVisit(0.7), epsilon=0.2, discount_factor=0.9, dtype="float32")


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


def played(env: Any, partition: str, ranks: int, walkers: int, steps: int, copies: bool) -> dict[str, Any]:
    """Let so many ranks that exchange messages learn, in this process, the second half of which counts.

    Return the imbalance, how many rows are hot at the end, and the bytes that are sent per step.
    """
    rates = Rates(SETTINGS, 1)
    made = problem_of(resolve(env, 1, None), SETTINGS, rates, np.float32, walkers=walkers)
    usual = share.most_copies
    try:
        if not copies:
            share.most_copies = lambda ranks: 0
        shares = [Share(made, walkers, partition, rank, ranks) for rank in range(ranks)]
        for each in shares:
            each.compile()
    finally:
        share.most_copies = usual
    stream = Stream(np.uint64(1), 0, 0, last=steps)
    moved, sent = np.zeros(ranks, np.int64), np.zeros(ranks, np.int64)
    for stretch, done, size in supersteps(stream, rates, walkers, steps):
        superstep = [each.superstep(stretch, done, size) for each in shares]
        together([_counting(exchanges, rank, sent) for rank, exchanges in enumerate(superstep)])
        moved += [each.moved for each in shares]
        if stream.used < steps // 2:
            moved[:] = sent[:] = 0
    hot = shares[0].n_hot_rows
    return {"imbalance": ranks * moved.max() / moved.sum(), "hot": hot, "bytes": sent.sum() / moved.sum()}


def _counting(exchanges: Exchanges, rank: int, sent: np.ndarray) -> Exchanges:
    """Exchange the same, and count the bytes for other ranks."""
    came = None
    while True:
        try:
            parts = next(exchanges) if came is None else exchanges.send(came)
        except StopIteration:
            return
        sent[rank] += sum(part.nbytes for part in parts) - parts[rank].nbytes
        came = yield parts


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
    parser.add_argument("--played", type=int, nargs="+", default=(2, 4, 8, 16), help="ranks in one process")
    parser.add_argument("--steps", type=int, default=30_000_000, help="that these make")
    parser.add_argument("--as_rank", action="store_true", help="used by its jobs")
    arguments = parser.parse_args()
    if arguments.as_rank:
        run_rank(arguments.walkers, arguments.seconds)
        return
    found = measured(arguments) if arguments.rounds else {}
    show_measured(found, arguments.ranks)
    print()
    messages, rows = [], []
    for name, (make, partition) in PROBLEMS.items():
        for ranks in arguments.played:
            for copies in (False, True):
                one = played(make(), partition, ranks, arguments.walkers, arguments.steps, copies)
                messages.append({"problem": name, "ranks": ranks, "copies": copies, **one})
                rows.append([name, ranks, one["hot"], f"{one['imbalance']:.2f}", f"{one['bytes']:.1f}"])
    common.show(["problem", "ranks", "hot rows", "imbalance", "bytes per step"], rows)
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
    results = {"measured": found, "messages": messages, "computed": computed}
    common.save(arguments.output, results, rounds=arguments.rounds, walkers=arguments.walkers)


if __name__ == "__main__":
    main()
