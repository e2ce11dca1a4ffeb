"""What a tree of servers spares between hosts: bytes, and the error at equal steps, against flat.

Three hosts are emulated on this machine, with four workers each: ranks believe to be on them, and what they
send to ranks of another one is counted, from the first to the last step. A tree has one rank more on each
host but the first. The error is the root-mean-square difference to Q* over the pairs that can be reached.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import common
import numpy as np

from dist_classicrl import DistAsyncQLearning, TabularMDP
from dist_classicrl.comm import envelope
from dist_classicrl.comm.transport import Channel
from dist_classicrl.membership.group import Group
from dist_classicrl.schedules import PerVisit

GARNET = "Garnet 100,000"
DISCOUNTS = {common.FROZEN_LAKE: 0.95, GARNET: 0.5}
WORKERS, HOSTS = 4, 3
SETUP = {"GATHER", "TOLD"}


def model(name: str) -> TabularMDP:
    """Return a problem: the Garnet has 10,000 states and 10 actions."""
    return TabularMDP.garnet(10_000, 10, 5, seed=0) if name == GARNET else common.problem(name)


def sizes(topology: str) -> list[int]:
    """Return how many ranks each host has."""
    return [WORKERS + 1, *[WORKERS + (topology == "tree")] * (HOSTS - 1)]


def run_rank(name: str, topology: str, steps: int, sync_frequency: int, seed: int) -> None:
    """Train as one rank of a job; rank 0 prints what it cost."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    hosts = [str(host) for host, size in enumerate(sizes(topology)) for _ in range(size)]
    sent: Counter[str] = Counter()
    send = Channel.send

    def counted(channel: Channel, message: np.ndarray) -> None:
        if hosts[channel.peer] != hosts[world.rank]:
            sent[envelope.decode(message)[0].name] += message.size
        send(channel, message)

    setattr(Channel, "send", counted)  # noqa: B010
    setattr(Group, "host_of", lambda group, rank: hosts[rank])  # noqa: B010
    problem, discount = model(name), DISCOUNTS[name]
    agent = DistAsyncQLearning(
        discount_factor=discount,
        epsilon=1.0,
        learning_rate=PerVisit(0.7),
        sync_frequency=sync_frequency,
        topology=topology,  # type: ignore[arg-type]
        seed=seed,
    )
    result = agent.train(problem, total_steps=steps, placement="replicated")
    everyone = world.gather(dict(sent))
    if everyone is not None:
        kinds = sum(map(Counter, everyone), Counter())
        error = (agent.q_table - problem.solve(discount, tolerance=1e-6).q)[problem.reachable_pairs()]
        found: dict[str, Any] = {**result.to_dict(), "rms": float(np.sqrt(np.mean(error**2)))}
        found["visits"], found["kinds"] = int(agent.visits.sum()), dict(kinds)
        found["between_hosts"] = sum(kinds[kind] for kind in kinds.keys() - SETUP)
        print(json.dumps(found))


def main() -> None:
    """Start the jobs, or be a rank of one."""
    parser = common.parser(__doc__, "topologies.json")
    parser.add_argument("--steps", type=int, default=30_000_000)
    parser.add_argument("--problems", nargs="+", choices=sorted(DISCOUNTS), default=sorted(DISCOUNTS))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--sync_frequency", type=int, default=1000, help="updates of 32 steps per push")
    parser.add_argument("--job", nargs=3, metavar=("PROBLEM", "TOPOLOGY", "SEED"), help="used by its jobs")
    arguments = parser.parse_args()
    if arguments.job is not None:
        name, topology, seed = arguments.job
        run_rank(name, topology, arguments.steps, arguments.sync_frequency, int(seed))
        return
    rows = []
    for name in arguments.problems:
        for seed in range(arguments.runs):
            for topology in ("flat", "tree"):
                program = [str(Path(__file__).resolve()), "--job", name, topology, str(seed)]
                program += ["--steps", str(arguments.steps)]
                program += ["--sync_frequency", str(arguments.sync_frequency)]
                output = common.mpi_output(sum(sizes(topology)), program, 300.0)
                rows.append({"problem": name, "topology": topology, **json.loads(output.splitlines()[-1])})
                common.save(
                    arguments.output,
                    rows,
                    steps=arguments.steps,
                    sync_frequency=arguments.sync_frequency,
                )
    millions = arguments.steps / 1e6
    common.show(
        ["problem", "topology", "pushes", "kB between hosts", "RMS error", "M steps/s"],
        [
            [
                row["problem"],
                row["topology"],
                row["pushes"],
                f"{row['between_hosts'] / 1e3 / millions:.1f}",
                f"{row['rms']:.4f}",
                f"{row['steps_per_second'] / 1e6:.1f}",
            ]
            for row in rows
        ],
    )


if __name__ == "__main__":
    main()
