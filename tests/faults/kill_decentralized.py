"""Kill ranks of a training without a server, rank 0 among them, many times, and show what came of it.

    python tests/faults/kill_decentralized.py --runs 20

Four ranks learn and exchange what they learned, by one pattern after the other. After each run is checked
what kill_workers.py checks: all steps were made, all survivors have the same table, and nothing is left
behind. The steps of the rounds under way are made again.
"""

import sys
import time

from fault_jobs import FaultJob, many_runs

RANKS = 4
STEPS = {"lake": 100_000_000, "counted": 20_000}
PATTERNS = ("doubling", "ring", "tree", "two_level")
VICTIMS = (("worker",), ("server",), ("worker", "worker"), ("worker", "server"), ("server", "server"))
_PAUSE = 2e-3
_DEATHS_WORTH = 4  # three rounds of four ranks, where a push of one worker would be lost


def one_run(environment, victims, pattern, chance, steps=None, span=0.6, saving=False, slow=False):
    """Train, kill the `victims` one after the other, and return what `FaultJob.finish` has seen."""
    steps = STEPS[environment] if steps is None else steps
    pause = _PAUSE if environment == "counted" else 0.0
    agent = {"topology": "decentralized", "exchange_pattern": pattern}
    options = {"total_steps": steps, "agent": agent, "pause": pause, "saving": saving, "slow": slow}
    with FaultJob(environment, RANKS, **options) as job:
        for share in sorted(span * chance.random() for _ in victims):
            if not job.wait_for_steps(share):
                break
            time.sleep(chance.uniform(0.0, 0.1))
            server = job.server()
            others = [pid for pid in job.pids.values() if pid not in (server, *job.killed)]
            is_server = victims[len(job.killed)] == "server"
            job.end_process(server if is_server else chance.choice(others))
        job.hurry()
        result = job.finish(deaths=_DEATHS_WORTH * len(victims))
    return {**result, "victims": victims, "pattern": pattern, "saving": saving}


def run(number, chance):
    environment = ("lake", "counted")[number % 2]
    victims = VICTIMS[number % len(VICTIMS)]
    return one_run(environment, victims, PATTERNS[number // 2 % 4], chance, saving=number % 3 == 0)


if __name__ == "__main__":
    sys.exit(many_runs(__doc__, run, "kill-decentralized", 20))
