"""A simulation of supersteps on up to 4,096 ranks, from what one machine's cores and messages cost.

Nothing here was measured on a cluster. Measured in this run, the shortest time of all rounds: a step on one
core, by the size of the table; supersteps of two owners of rows in one process, with few walkers and with
many; supersteps of two ranks in memory; messages between two ranks that wait for nothing else. Networks are
assumed: 16 ranks a host share its link. In a superstep every rank does what the busiest one has to, sends,
waits for the link, and nothing overlaps:

    busiest * (step + share that crosses * crossing) + fixed + messages + 2 latencies + bytes / bandwidth

*Direct* is what the engine does between hosts: each rank sends two messages to each other one. *By host* is
not built: two messages for each pair of hosts, which the ranks of a host write together in memory.
"""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any, NamedTuple

import common
import hot_rows
import numpy as np

from dist_classicrl import TabularMDP
from dist_classicrl.comm import envelope
from dist_classicrl.comm.envelope import Kind
from dist_classicrl.comm.transport import Wire
from dist_classicrl.environments.resolve import resolve
from dist_classicrl.learning.kinds import problem_of
from dist_classicrl.learning.learner import Stream
from dist_classicrl.learning.rates import Rates
from dist_classicrl.learning.supersteps.by_messages.exchanges import together
from dist_classicrl.learning.supersteps.share import Share, supersteps
from dist_classicrl.schedules import PerVisit
from dist_classicrl.settings import Settings

RANKS_OF_HOST = 16
BYTES = 40  # of a crossing step: a record and a reply
BYTES_OF_MESSAGE = 120  # headers
RANKS = (1, 4, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
WALKERS = (256, 1024, 4096, 16_384)
SIZES = {"8,192 entries": 10, "1 M entries": 17, "33 M entries": 22}  # binary logarithms of the states
FEW, MANY = 64, 16_384
SHORT, LONG = 64, 1 << 18  # bytes
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
    crossing: float  # besides, of a step that crosses: a record written, answered, and the reply
    crossing_in_memory: float  # where it is written into memory that the ranks share
    in_memory: float  # of a superstep on one host, whatever is in it
    fixed: float  # of one by messages, besides the messages
    message: float  # sent and received
    byte: float  # of a message


def rate(log_states: int, walkers: int, seconds: float) -> float:
    """Return the steps per second of all ranks; called by all."""
    agent = hot_rows.new_agent()
    model = TabularMDP.garnet(1 << log_states, 8, 2, seed=1, max_episode_steps=None)
    asked: dict[str, Any] = {"placement": "sharded", "walkers": walkers}
    first = agent.train(model, total_steps=1000 * walkers + 100_000, **asked)
    steps = max(100_000, int(seconds * first.steps_per_second))
    return agent.train(model, total_steps=steps, **asked).steps_per_second


def problem(log_states: int) -> tuple[Any, Rates]:
    """Return a random problem, and the rates of its learners."""
    model = TabularMDP.garnet(1 << log_states, 8, 2, seed=1, max_episode_steps=None)
    settings = Settings(learning_rate=PerVisit(0.7), epsilon=0.2, discount_factor=0.9, dtype="float32")
    rates = Rates(settings, 1)
    return problem_of(resolve(model, 1, None), settings, rates, np.float32, walkers=MANY), rates


def step_alone(log_states: int, seconds: float) -> float:
    """Return the seconds of a step where one process owns everything."""
    made, rates = problem(log_states)
    share = Share(made, MANY)
    share.compile()
    stream = Stream(np.uint64(1), 0, 0, last=1 << 40)
    share.learn_alone(stream, rates, 1000 * MANY)
    before, begin = stream.used, time.perf_counter()
    while (passed := time.perf_counter() - begin) < seconds:
        share.learn_alone(stream, rates, stream.used + (1 << 20))
    return passed / (stream.used - before)


def superstep_of_two(walkers: int, seconds: float) -> float:
    """Return the seconds of a superstep of two owners in this process, one after the other."""
    made, rates = problem(17)
    shares = [Share(made, walkers, "hash", rank, 2) for rank in range(2)]
    for share in shares:
        share.compile()
    stream = Stream(np.uint64(1), 0, 0, last=1 << 40)
    begin = made_before = 0.0
    n = 0
    for stretch, done, size in supersteps(stream, rates, walkers, 1 << 40):
        if size == walkers and begin == 0.0:
            begin, made_before = time.perf_counter(), n
        together([share.superstep(stretch, done, size) for share in shares])
        n += 1
        if begin and (passed := time.perf_counter() - begin) > seconds:
            return passed / (n - made_before)
    raise AssertionError("the stream has no end")


def seconds_of_message(wire: Any, n_bytes: int) -> float:
    """Return half of the shortest way there and back of a message; called by two ranks."""
    channel = wire.channel(1 - wire.rank, 5)
    part, times = np.zeros(n_bytes // 8, np.int64), []
    for _ in range(500):
        begin = time.perf_counter()
        for is_sending in (wire.rank == 0, wire.rank == 1):
            if is_sending:
                channel.send(envelope.encode(Kind.WALKERS, part))
            else:
                while not (came := wire.receive([channel])):
                    pass
                envelope.decode(came[0][1])
        times.append((time.perf_counter() - begin) / 2)
    channel.close()
    return min(times)


def run_rank(seconds: float) -> None:
    """Be one of two ranks; rank 0 prints what it measured as JSON."""
    from mpi4py import MPI

    from dist_classicrl.engines.supersteps import training

    wire = Wire(MPI.COMM_WORLD.Dup())
    found = {f"message {n_bytes}": seconds_of_message(wire, n_bytes) for n_bytes in (SHORT, LONG)}
    for exchange in ("memory", "messages"):
        if exchange == "messages":  # as between hosts
            training._memory = lambda run, group, start: None
        for walkers in (FEW, MANY):
            found[f"{exchange} {walkers}"] = walkers / rate(17, walkers, seconds)
    if wire.rank == 0:
        print(json.dumps(found))


def measured(rounds: int, seconds: float) -> dict[str, float]:
    """Return the shortest time of each."""
    found: dict[str, float] = {}

    def note(name: str, passed: float) -> None:
        found[name] = min(found.get(name, math.inf), passed)

    for _ in range(rounds):
        for name, log_states in SIZES.items():
            note(name, step_alone(log_states, seconds))
        for walkers in (FEW, MANY):
            note(f"two owners {walkers}", superstep_of_two(walkers, seconds))
        words = [str(Path(__file__).resolve()), "--as_rank", "--seconds", str(seconds)]
        lines = common.mpi_output(2, words, 600.0).splitlines()
        for name, passed in json.loads(next(line for line in lines if line.startswith("{"))).items():
            note(name, passed)
    return found


def costs_of(found: dict[str, float], size: str) -> Costs:
    """Return the costs where the table has this size; those of exchanges are those with 1 M entries."""
    step = found["1 M entries"]
    more = MANY - FEW
    # Of two ranks each makes half of the steps, and half of those cross.
    by_messages = (found[f"two owners {MANY}"] - found[f"two owners {FEW}"]) / more
    in_memory = (found[f"memory {MANY}"] - found[f"memory {FEW}"]) / (more / 2)
    byte = (found[f"message {LONG}"] - found[f"message {SHORT}"]) / (LONG - SHORT)
    return Costs(
        step=found[size],
        crossing=max(0.0, by_messages - step) / 0.5,
        crossing_in_memory=max(0.0, in_memory - step) / 0.5,
        in_memory=found[f"memory {FEW}"],
        fixed=found[f"two owners {FEW}"] / 2,
        message=found[f"message {SHORT}"],
        byte=byte,
    )


def seconds_of(
    costs: Costs, network: Network, ranks: int, walkers: int, share: float, imbalance: float, by_host: bool
) -> float:
    """Return how long a superstep takes: `walkers` a rank, of whose steps this share crosses."""
    hosts = -(-ranks // RANKS_OF_HOST)
    here = min(ranks, RANKS_OF_HOST)
    busiest = walkers * imbalance
    share *= 1.0 - 1.0 / ranks
    if hosts == 1:
        work = busiest * (costs.step + share * costs.crossing_in_memory)
        return work + (costs.in_memory if ranks > 1 else 0.0)
    # Who is asked is any other rank; those of the own host need no link.
    leaving = share * (ranks - here) / (ranks - 1)
    if by_host:
        sent, crossing = -(-(hosts - 1) // here), costs.crossing_in_memory
        on_link = 2 * (hosts - 1)
    else:
        sent, crossing = ranks - 1, costs.crossing
        on_link = 2 * here * (ranks - here)
    seconds = busiest * (costs.step + share * crossing) + costs.fixed + (costs.in_memory if by_host else 0.0)
    seconds += 2 * sent * costs.message + busiest * (leaving if by_host else share) * BYTES * costs.byte
    n_bytes = here * busiest * leaving * BYTES + on_link * BYTES_OF_MESSAGE
    return seconds + 2 * network.latency + n_bytes * 8 / network.bandwidth


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
    rows = [[f"a step, {size}", f"{1e9 * found[size]:.0f} ns"] for size in SIZES]
    rows += [
        ["besides, where it crosses by messages", f"{1e9 * costs.crossing:.0f} ns"],
        ["besides, where it crosses in memory", f"{1e9 * costs.crossing_in_memory:.0f} ns"],
        ["a superstep in memory", f"{1e6 * costs.in_memory:.1f} µs"],
        ["a superstep by messages, without them", f"{1e6 * costs.fixed:.0f} µs"],
        ["a message, sent and received", f"{1e6 * costs.message:.1f} µs"],
        ["a byte of it", f"{1e9 * costs.byte:.2f} ns"],
    ]
    common.show(["what", "takes"], rows)
    together = found[f"messages {MANY}"]
    said = MANY / 2 * (costs.step + 0.5 * (costs.crossing + BYTES * costs.byte))
    said += costs.fixed + 2 * costs.message
    rates = MANY / together / 1e6, MANY / said / 1e6
    print(f"\n2 ranks by messages here: measured {rates[0]:.1f} M steps/s, by these costs {rates[1]:.1f}")

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
