"""A table that is divided between hosts: `python divided_program.py OPTIONS`, which are JSON.

    states      how many there are, with 5 actions each
    steps       of each call of `train`
    train       arguments of `train`
    whole_share as `large_table.WHOLE_SHARE`; 0, by default, divides any table between the hosts

Each rank prints a line of JSON: its rank and host, the share of the rows that its host has, the bytes of the
whole table and those that its host has taken for it, steps per second, the share of time that ranks waited,
and a digest of what it was told of some states.
"""

import hashlib
import json
import os
import socket
import sys

import numpy as np

from dist_classicrl import DistAsyncQLearning, TabularMDP
from dist_classicrl.agent.agent import state_of
from dist_classicrl.learning import loops
from dist_classicrl.tables import large_table


def main():
    """Train, and say what came of it."""
    options = json.loads(sys.argv[1])
    large_table.FROM_ENTRIES, large_table.WHOLE_SHARE = 1, options.get("whole_share", 0.0)
    loops.STEPS_PER_WALKER = 50  # a quick ramp, since links here are slow
    n_states = options["states"]
    # As in tests/mpi, whose machine code is there.
    agent = DistAsyncQLearning(discount_factor=0.9, seed=1, async_updates=False)
    problem = TabularMDP.garnet(n_states, 5, 3, seed=2, terminal_states=4)
    for steps in options["steps"]:
        result = agent.train(problem, total_steps=steps, placement="sharded", **options.get("train", {}))
    asked = np.random.default_rng(1).integers(n_states, size=2000)
    values = agent.action_values(asked)
    told = {"rank": agent.rank, "host": socket.gethostname(), "rate": result.steps_per_second}
    large = state_of(agent).large
    if large.is_divided:
        told |= {"share": large.division.share_of(told["host"]), "taken": large.shared.taken}
    told |= {"size": large.size, "waiting": result.communication_fraction, "steps": agent.steps}
    told["digest"] = hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()
    # In one piece, as ranks share the output.
    os.write(1, f"\n{json.dumps(told)}\n".encode())


if __name__ == "__main__":
    main()
