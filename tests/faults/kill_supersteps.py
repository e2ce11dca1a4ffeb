"""Kill owners of rows at random moments, rank 0 among them, many times, and show what came of it.

    python tests/faults/kill_supersteps.py --runs 30

The ranks learn in supersteps, and exchange walkers in memory or, every second time, by messages. After each
run is checked what kill_workers.py checks, and that the table is bit for bit the one of a process alone,
which nobody disturbed: whoever died when. Environments that are stepped begin new episodes after a death,
so that there it is checked how many steps were made in vain.
"""

import sys
import time
from functools import cache

from fault_jobs import FaultJob, many_runs

RANKS = 4
STEPS = {"lake": 60_000_000, "taxi": 60_000_000, "counted": 20_000}
_PAUSE = 2e-3
_DEATHS_WORTH = 3  # the steps of about two seconds are lost where a push of one worker would be
VICTIMS = (("worker",), ("server",), ("worker", "worker"), ("worker", "server"), ("server", "server"))


def options(by_messages, saving, is_stepped=False):
    return {
        "agent": {"async_updates": False},
        "train": {"placement": "sharded", "walkers": 64 if is_stepped else 1024},
        "by_messages": by_messages,
        "saving": saving,
    }


@cache
def undisturbed(environment, steps):
    """Return the digest of the table that one process alone learns."""
    with FaultJob(environment, 1, total_steps=steps, **options(False, False)) as job:
        job.finish()
        return job.said("trained")[-1]["sha256"]


def one_run(environment, victims, by_messages, chance, steps=None, span=0.7, saving=False):
    """Train, kill the `victims` one after the other, and return what `FaultJob.finish` has seen."""
    steps = STEPS[environment] if steps is None else steps
    is_stepped = environment == "counted"
    known = None if is_stepped else undisturbed(environment, steps)
    asked = {**options(by_messages, saving, is_stepped), "pause": _PAUSE if is_stepped else 0.0}
    with FaultJob(environment, RANKS, total_steps=steps, **asked) as job:
        for share in sorted(span * chance.random() for _ in victims):
            if not job.wait_for_steps(share):
                break
            time.sleep(chance.uniform(0.0, 0.1))
            alive = [pid for pid in job.pids.values() if pid not in job.killed]
            server = job.server()
            is_server = victims[len(job.killed)] == "server"
            others = [pid for pid in alive if pid != server]
            job.end_process(server if is_server else chance.choice(others))
        result = job.finish(deaths=_DEATHS_WORTH * len(victims))
        found = job.said("trained")[-1]["sha256"]
        job.check(is_stepped or found == known, "learned another table than a process alone")
    return {**result, "victims": victims, "by_messages": by_messages, "saving": saving}


def run(number, chance):
    environment = ("lake", "taxi", "counted")[number // 2 % 3]
    victims = VICTIMS[number % len(VICTIMS)]
    return one_run(environment, victims, number % 2 == 1, chance, saving=number % 3 == 0)


if __name__ == "__main__":
    sys.exit(many_runs(__doc__, run, "kill-supersteps", 30))
