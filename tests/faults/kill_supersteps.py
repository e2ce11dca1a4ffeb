"""Kill owners of rows at random moments, rank 0 among them, many times, and show what came of it.

    python tests/faults/kill_supersteps.py --runs 30

The ranks learn in supersteps, and exchange walkers in memory or, every second time, by messages; every third
time the table is there once for all, and they go back to a checkpoint. After each run is checked what
kill_workers.py checks, and that the table is bit for bit the one of a process alone, which nobody disturbed:
whoever died when.
"""

import sys
import time
from functools import cache

from fault_jobs import FaultJob, many_runs

RANKS = 4
STEPS = {"lake": 60_000_000, "taxi": 60_000_000}
VICTIMS = (("worker",), ("server",), ("worker", "worker"), ("worker", "server"), ("server", "server"))


def options(by_messages, saving, rows_once=False, hosts=None):
    often = {"checkpoint_interval": "0.3s"} if saving and rows_once else {}
    return {
        "agent": {"async_updates": False},
        "train": {"placement": "sharded", "walkers": 1024, **often},
        "by_messages": by_messages,
        "saving": saving,
        "rows_once": rows_once,
        "hosts": hosts,
    }


@cache
def undisturbed(environment, steps):
    """Return the digest of the table that one process alone learns."""
    with FaultJob(environment, 1, total_steps=steps, **options(False, False)) as job:
        job.finish()
        return job.said("trained")[-1]["sha256"]


def one_run(
    environment,
    victims,
    by_messages,
    chance,
    steps=None,
    span=0.7,
    saving=False,
    rows_once=False,
    hosts=None,
):
    """Train, kill the `victims` one after the other, and return what `FaultJob.finish` has seen."""
    steps = STEPS[environment] if steps is None else steps
    known = undisturbed(environment, steps)
    with FaultJob(
        environment, RANKS, total_steps=steps, **options(by_messages, saving, rows_once, hosts)
    ) as job:
        if rows_once:
            job.wait_for_checkpoint()
        for share in sorted(span * chance.random() for _ in victims):
            if not job.wait_for_steps(share):
                break
            time.sleep(chance.uniform(0.0, 0.1))
            alive = [pid for pid in job.pids.values() if pid not in job.killed]
            server = job.server()
            is_server = victims[len(job.killed)] == "server"
            others = [pid for pid in alive if pid != server]
            job.end_process(server if is_server else chance.choice(others))
        result = job.finish()
        found = job.said("trained")[-1]["sha256"]
        job.check(found == known, "learned another table than a process alone")
    return {
        **result,
        "victims": victims,
        "by_messages": by_messages,
        "saving": saving,
        "rows_once": rows_once,
        "hosts": hosts,
    }


def one_loss_without_checkpoint(victim, ranks=RANKS):
    """Train with a table that is there once and no checkpoints, kill one, and check what all others say."""
    with FaultJob("lake", ranks, total_steps=STEPS["lake"], **options(False, False, rows_once=True)) as job:
        job.check(job.wait_for_steps(0.01), "ended early")
        dead = job.server() if victim == "server" else next(iter(set(job.pids.values()) - {job.server()}))
        job.end_process(dead)
        job.wait_for_end()
        lost = job.said("lost")
        job.check({line["pid"] for line in lost} == set(job.pids.values()) - {dead}, "was silent on a rank")
        for line in lost:
            is_named = "RankLostError: A rank was lost in the middle of a superstep" in line["error"]
            job.check(is_named and "checkpoint_dir=" in line["error"], f"said {line['error']}")


def run(number, chance):
    environment = ("lake", "taxi")[number // 2 % 2]
    victims = VICTIMS[number % len(VICTIMS)]
    is_saved = number % 3 == 0  # and there once
    return one_run(environment, victims, number % 2 == 1, chance, saving=is_saved, rows_once=is_saved)


if __name__ == "__main__":
    sys.exit(many_runs(__doc__, run, "kill-supersteps", 30))
