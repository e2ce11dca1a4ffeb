"""A training whose steps take longer on some hosts: `python host_program.py OPTIONS`, which are JSON.

    steps       how many
    pause       seconds that a step takes
    factors     by host: how many times as long it takes there
    agent       arguments of the constructor

Each rank prints a line of JSON: its rank, its host, the steps that its environments really made, the steps of
the run, and the seconds that the run took.
"""

import json
import os
import socket
import sys
import time

import gymnasium

from dist_classicrl import DistAsyncQLearning


class Lake(gymnasium.Wrapper):
    """FrozenLake with a pause in each step."""

    pause = 0.0
    made = 0

    def step(self, action):
        time.sleep(self.pause)
        Lake.made += 1
        return super().step(action)


def main():
    """Train, and say what came of it."""
    options = json.loads(sys.argv[1])
    host = socket.gethostname()
    Lake.pause = options.get("pause", 0.0) * options.get("factors", {}).get(host, 1.0)
    agent = DistAsyncQLearning(seed=1, **options.get("agent", {}))
    result = agent.train(lambda: Lake(gymnasium.make("FrozenLake-v1")), total_steps=options["steps"])
    told = {"rank": agent.rank, "host": host, "made": Lake.made, "seconds": result.seconds}
    visits = int(agent.visits.sum())
    # In one piece, as ranks share the output.
    os.write(1, f"\n{json.dumps({**told, 'steps': result.steps, 'visits': visits})}\n".encode())


if __name__ == "__main__":
    main()
