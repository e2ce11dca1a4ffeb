"""A simulation of supersteps on up to 4,096 ranks, from what one machine's cores and messages cost.

Nothing here was measured on a cluster. Measured in this run are the seconds of a step on one core, by the
size of the table, and of supersteps with few walkers and with many on 2 to 4 ranks of this machine, in memory
and by messages; the shortest time of all rounds counts. Networks are assumed: 16 ranks a host share its link.
In a superstep every rank does what the busiest one has to, sends, waits for the link, and nothing overlaps:

    busiest * (step + share that crosses * crossing) + fixed + messages + 2 latencies + bytes / bandwidth

*Direct* is what the engine does between hosts: each rank sends two messages to each other one. *By host* is
not built: one message for each pair of hosts, which the ranks of a host write together in memory.
"""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import common
import hot_rows
import numpy as np

from dist_classicrl import TabularMDP
from dist_classicrl.environments.resolve import resolve
from dist_classicrl.learning.kinds import new_learner, problem_of
from dist_classicrl.learning.learner import Stream
from dist_classicrl.learning.rates import Rates
from dist_classicrl.schedules import PerVisit
from dist_classicrl.settings import Settings

RANKS_OF_HOST = 16
BYTES = 40  # of a crossing step: a record and a reply
BYTES_OF_MESSAGE = 120  # headers
RANKS = (1, 4, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
WALKERS = (256, 1024, 4096, 16_384)
SIZES = {"8,192 entries": 10, "1 M entries": 17, "33 M entries": 22}  # binary logarithms of the states
FEW, MANY = 64, 16_384
DRAWS = 20


class Network(NamedTuple):
    """A link of a host: bits and seconds."""

    name: str
    bandwidth: float
    latency: float


NETWORKS = (Network("10 Gbit/s, 20 µs", 10e9, 20e-6), Network("100 Gbit/s, 2 µs", 100e9, 2e-6))


class Costs(NamedTuple):
    """Seconds that were measured."""

    step: float  # of one core
    crossing: float  # besides, of a step that crosses: records written, read, answered
    in_memory: float  # of a superstep on one host, whatever is in it
    fixed: float  # of one by messages, besides the messages
    message: float  # to and from each other rank, both exchanges
    byte: float  # to copy


def rate(log_states: int, walkers: int, seconds: float) -> float:
    """Return the steps per second of all ranks; called by all."""
    agent = hot_rows.new_agent()
    model = TabularMDP.garnet(1 << log_states, 8, 2, seed=1, max_episode_steps=None)
    asked: dict[str, Any] = {"placement": "sharded", "walkers": walkers}
    first = agent.train(model, total_steps=1000 * walkers + 100_000, **asked)
    steps = max(100_000, int(seconds * first.steps_per_second))
    return agent.train(model, total_steps=steps, **asked).steps_per_second


def step_alone(log_states: int, seconds: float) -> float:
    """Return the seconds of a step where one process owns everything."""
    model = TabularMDP.garnet(1 << log_states, 8, 2, seed=1, max_episode_steps=None)
    source = resolve(model, 1, None)
    settings = Settings(learning_rate=PerVisit(0.7), epsilon=0.2, discount_factor=0.9, dtype="float32")
    problem = problem_of(source, settings, Rates(settings, 1), np.float32, is_alone=True, walkers=MANY)
    learner = new_learner(problem)
    learner.add(0, source, 0)
    stream = Stream(np.uint64(1), 0, 0, last=1 << 40)
    learner.learn(0, stream, 1000 * MANY)
    steps = 1 << 20
    while (passed := common.timed(partial(learner.learn, 0, stream, steps))) < seconds:
        steps *= 2
    return passed / steps


def run_rank(seconds: float) -> None:
    """Be one rank of a job; rank 0 prints the seconds of a superstep as JSON."""
    from mpi4py import MPI

    from dist_classicrl.engines.supersteps import training

    found = {}
    for exchange in ("memory", "messages"):
        if exchange == "messages":  # as between hosts
            training._memory = lambda run, group, start: None
        for walkers in (FEW, MANY):
            found[f"{exchange} {walkers}"] = walkers / rate(17, walkers, seconds)
    if MPI.COMM_WORLD.rank == 0:
        print(json.dumps(found))


def measured(rounds: int, seconds: float) -> dict[str, Any]:
    """Return the shortest times: of a step alone by size, and of supersteps by ranks."""
    alone: dict[str, float] = {}
    together: dict[int, dict[str, float]] = {}
    for _ in range(rounds):
        for name, log_states in SIZES.items():
            alone[name] = min(alone.get(name, math.inf), step_alone(log_states, seconds))
        for ranks in (2, 3, 4):
            words = [str(Path(__file__).resolve()), "--as_rank", "--seconds", str(seconds)]
            lines = common.mpi_output(ranks, words, 600.0).splitlines()
            told = json.loads(next(line for line in lines if line.startswith("{")))
            before = together.setdefault(ranks, told)
            together[ranks] = {name: min(before[name], told[name]) for name in told}
    block = np.zeros(1 << 22)
    copies = [common.timed(block.copy) for _ in range(10)]
    return {"step": alone, "superstep": together, "byte": min(copies) / block.nbytes}


def costs_of(found: dict[str, Any], size: str) -> Costs:
    """Return the costs where the table has this size; those of exchanges are those of 2 to 4 ranks."""
    together = found["superstep"]
    few = [together[ranks][f"messages {FEW}"] for ranks in (2, 3, 4)]
    message = max(0.0, (few[2] - few[0]) / 2)
    # Of two ranks each makes half of the steps, and half of those cross.
    of_step = (together[2][f"messages {MANY}"] - few[0]) / ((MANY - FEW) / 2)
    crossing = max(0.0, (of_step - found["step"]["1 M entries"]) / 0.5)
    in_memory = together[2][f"memory {FEW}"]
    fixed = max(0.0, few[0] - message)
    return Costs(found["step"][size], crossing, in_memory, fixed, message, found["byte"])


def seconds_of(
    costs: Costs, network: Network, ranks: int, walkers: int, share: float, imbalance: float, by_host: bool
) -> float:
    """Return how long a superstep takes: `walkers` a rank, of whose steps this share crosses."""
    hosts = -(-ranks // RANKS_OF_HOST)
    here = min(ranks, RANKS_OF_HOST)
    busiest = walkers * imbalance
    share *= 1.0 - 1.0 / ranks
    work = busiest * (costs.step + share * costs.crossing)
    if hosts == 1:
        return work + (costs.in_memory if ranks > 1 else 0.0)
    # Partners are spread over the other ranks; those of the own host need no link.
    leaving = share * (ranks - here) / (ranks - 1)
    n_bytes = here * busiest * leaving * BYTES
    if by_host:
        pairs = hosts - 1
        talking = costs.fixed + costs.in_memory + costs.message * -(-pairs // here)
        talking += 2 * costs.byte * busiest * leaving * BYTES
        n_bytes += 2 * pairs * BYTES_OF_MESSAGE
    else:
        talking = costs.fixed + costs.message * (ranks - 1)
        n_bytes += 2 * here * (ranks - here) * BYTES_OF_MESSAGE
    return work + talking + 2 * network.latency + n_bytes * 8 / network.bandwidth


def imbalances(visits: np.ndarray, partition: str, walkers: int) -> dict[int, float]:
    """Return the mean load of the busiest rank in a superstep, over that of all, by ranks."""
    random = np.random.default_rng(1)
    found = {}
    for ranks in RANKS:
        of_rank = hot_rows.loads(visits, ranks, partition)
        drawn = random.multinomial(walkers * ranks, of_rank / of_rank.sum(), DRAWS)
        found[ranks] = float(drawn.max(1).mean()) / walkers
    return found


def main() -> None:
    """Measure, then compute, or be a rank of a job."""
    parser = common.parser(__doc__, "superstep_simulation.json")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="length of each measurement, about")
    parser.add_argument("--visits", type=int, default=30_000_000, help="steps whose visits are counted")
    parser.add_argument("--as_rank", action="store_true", help="used by its jobs")
    arguments = parser.parse_args()
    if arguments.as_rank:
        run_rank(arguments.seconds)
        return
    found = measured(arguments.rounds, arguments.seconds)
    costs = costs_of(found, "1 M entries")
    print("Measured on this machine:")
    rows = [[f"a step, {name}", f"{1e9 * seconds:.0f} ns"] for name, seconds in found["step"].items()]
    rows += [
        ["a crossing, besides", f"{1e9 * costs.crossing:.0f} ns"],
        ["a superstep in memory", f"{1e6 * costs.in_memory:.1f} µs"],
        ["a superstep by messages", f"{1e6 * costs.fixed:.0f} µs"],
        ["and with each other rank", f"{1e6 * costs.message:.0f} µs"],
        ["copying a byte", f"{1e9 * costs.byte:.2f} ns"],
    ]
    common.show(["what", "takes"], rows)
    together = found["superstep"][4][f"messages {MANY}"]
    said = MANY / 4 * (costs.step + 0.75 * costs.crossing) + costs.fixed + 3 * costs.message
    rates = MANY / together / 1e6, MANY / said / 1e6
    print(f"\n4 ranks by messages: measured {rates[0]:.1f} M steps/s, by these costs {rates[1]:.1f}")

    uneven: dict[str, dict[int, dict[int, float]]] = {}
    for name, (make, partition) in hot_rows.PROBLEMS.items():
        visits = hot_rows.visits_of(make(), arguments.visits)
        uneven[name] = {walkers: imbalances(visits, partition, walkers) for walkers in WALKERS}
    print("\nLoad of the busiest rank over the mean, drawn (1,024 walkers a rank):")
    common.show(
        ["problem", *map(str, RANKS)],
        [[name, *(f"{each[1024][ranks]:.2f}" for ranks in RANKS)] for name, each in uneven.items()],
    )
    even = uneven["Garnet that goes on"]
    results = []
    for size in SIZES:
        costs = costs_of(found, size)
        for network in NETWORKS:
            for by_host in (False, True):
                for share in (1.0, 0.1, 0.01):
                    for walkers in WALKERS:
                        seconds = [
                            seconds_of(costs, network, n, walkers, share, even[walkers][n], by_host)
                            for n in RANKS
                        ]
                        results.append(
                            {
                                "size": size,
                                "network": network.name,
                                "by_host": by_host,
                                "crossing": share,
                                "walkers": walkers,
                                "rates": [n * walkers / s for n, s in zip(RANKS, seconds, strict=True)],
                            }
                        )
    show(results)
    data = {"measured": found, "costs": {size: costs_of(found, size)._asdict() for size in SIZES}}
    data |= {"ranks": RANKS, "imbalance": uneven, "simulated": results}
    asked = {"ranks_of_host": RANKS_OF_HOST, "bytes_of_crossing": BYTES, "rounds": arguments.rounds}
    common.save(arguments.output, data, **asked)


def show(results: list[dict[str, Any]]) -> None:
    """Print the rates with 4,096 walkers a rank."""
    for size in SIZES:
        for network in NETWORKS:
            print(f"\n{size}, {network.name}, 4,096 walkers a rank: M steps/s in all")
            chosen = [
                each
                for each in results
                if (each["size"], each["network"], each["walkers"]) == (size, network.name, 4096)
            ]
            common.show(
                ["exchange", "crossing", *map(str, RANKS)],
                [
                    [
                        "by host" if each["by_host"] else "direct",
                        each["crossing"],
                        *(f"{one / 1e6:.0f}" for one in each["rates"]),
                    ]
                    for each in chosen
                ],
            )


if __name__ == "__main__":
    main()
