"""Two trainings, flat and as a tree, on the same hosts: `python tree_program.py STEPS`.

In the flat one as many ranks learn: of each host but the first, one rank has no part in it. Rank 0 prints a
line of JSON for each: the bytes of messages between hosts, by kind and, without those of the setup,
in all; how many maps the workers on other hosts than its own pushed; and the error to Q*.
"""

import json
import os
import socket
import sys
from collections import Counter
from operator import add

import numpy as np
from mpi4py import MPI

from dist_classicrl import DistAsyncQLearning, TabularMDP
from dist_classicrl.comm import envelope
from dist_classicrl.comm.transport import Channel
from dist_classicrl.schedules import PerVisit

DISCOUNT = 0.95
SYNC_FREQUENCY = 1000
SETUP = {"GATHER", "TOLD"}


class Sent:
    """What went to other hosts since last taken: bytes, by kind, and maps that were to get to rank 0."""

    def __init__(self, hosts, comm):
        self.bytes = Counter()
        self.maps = 0
        self._send = Channel.send

        def send(channel, message):
            kind = envelope.decode(message)[0].name
            if hosts[channel.peer] != hosts[comm.rank]:
                self.bytes[kind] += message.size
            self.maps += kind == "PUSH" and hosts[comm.rank] != hosts[0]
            self._send(channel, message)

        Channel.send = send

    def take(self):
        """Return both, and count as ever."""
        Channel.send = self._send
        return self.bytes, self.maps


def main():
    """Train twice."""
    world, steps = MPI.COMM_WORLD, int(sys.argv[1])
    hosts = world.allgather(socket.gethostname())
    first = hosts.index(hosts[world.rank]) == world.rank
    problem = TabularMDP.from_gymnasium("FrozenLake-v1", map_name="8x8")
    exact = problem.solve(DISCOUNT).q
    for topology in ("flat", "tree"):
        takes_part = topology == "tree" or not first or world.rank == 0
        comm = world.Split(0 if takes_part else 1)
        world.Barrier()
        sent = Sent(comm.allgather(socket.gethostname()), comm)
        if takes_part:
            agent = DistAsyncQLearning(
                comm=comm,
                topology=topology,
                sync_frequency=SYNC_FREQUENCY,
                discount_factor=DISCOUNT,
                learning_rate=PerVisit(0.7),
                epsilon=1.0,
                seed=3,
            )
            result = agent.train(problem, total_steps=steps)
        world.Barrier()
        kinds, maps = (world.reduce(counted, add) for counted in sent.take())
        if world.rank == 0:
            error = (agent.q_table - exact)[problem.reachable_pairs()]
            told = {
                "topology": topology,
                "bytes": sum(kinds[kind] for kind in kinds.keys() - SETUP),
                "kinds": kinds,
                "maps": maps,
                "error": float(np.sqrt(np.mean(error**2))),
            }
            told |= {"steps": result.steps, "visits": int(agent.visits.sum()), "workers": result.workers}
            told |= {
                "pushes": result.pushes,
                "pushed": result.bytes_pushed,
                "pulled": result.bytes_pulled,
                "seconds": result.seconds,
            }
            os.write(1, f"\n{json.dumps(told)}\n".encode())


if __name__ == "__main__":
    main()
