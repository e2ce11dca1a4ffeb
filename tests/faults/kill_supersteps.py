"""Kill owners of rows at random moments, rank 0 among them, many times, and show what came of it.

    python tests/faults/kill_supersteps.py --runs 30

The ranks learn in supersteps, and exchange walkers in memory or, every second time, by messages; every third
time the table is there once for all, or divided between two hosts, and they go back to a checkpoint. In half
of the runs their host has two cores, so that two of them learn and the others take their places. After each
run is checked what kill_workers.py checks, and that the table is bit for bit the one of a process alone,
which nobody disturbed: whoever died when. Environments that are stepped begin new episodes after a death, so
that there it is checked how many steps were made in vain.
"""

import sys
import time
from functools import cache

from fault_jobs import FaultJob, many_runs

RANKS = 4
STEPS = {"lake": 60_000_000, "taxi": 60_000_000, "counted": 20_000}
_SLOWER_BY_MESSAGES = 8  # a superstep of 1,024 walkers, of ranks that outnumber cores
_PAUSE = 2e-3
_DEATHS_WORTH = 3  # the steps of about two seconds are lost where a push of one worker would be
VICTIMS = (("worker",), ("server",), ("worker", "worker"), ("worker", "server"), ("server", "server"))


def options(
    by_messages,
    saving,
    rows_once=False,
    hosts=None,
    is_stepped=False,
    divided=False,
    cores=None,
    placement="sharded",
):
    often = {"checkpoint_interval": "0.3s"} if saving and rows_once else {}
    walkers = {} if placement == "replicated" else {"walkers": 64 if is_stepped else 1024}
    return {
        "agent": {"async_updates": False, "sync_frequency": "auto"},  # which "counted" sets for copies
        "train": {"placement": placement, **walkers, **often},
        "by_messages": by_messages,
        "saving": saving,
        "rows_once": rows_once,
        "hosts": hosts,
        "divided": divided,
        "cores": cores,
    }


@cache
def undisturbed(environment, steps, placement="sharded"):
    """Return the digest of the table that one process alone learns."""
    with FaultJob(environment, 1, total_steps=steps, **options(False, False, placement=placement)) as job:
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
    slow=False,
    **more,
):
    """Train, kill the `victims` one after the other, and return what `FaultJob.finish` has seen.

    `more` is for `options`.
    """
    steps = STEPS[environment] if steps is None else steps
    is_stepped = environment == "counted"
    asked = options(by_messages, saving, is_stepped=is_stepped, **more)
    placement = asked["train"]["placement"]
    known = None if is_stepped else undisturbed(environment, steps, placement)
    pause = _PAUSE if is_stepped else 0.0
    with FaultJob(environment, RANKS, total_steps=steps, **asked, pause=pause, slow=slow) as job:
        if asked["rows_once"]:
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
        job.hurry()
        result = job.finish(deaths=_DEATHS_WORTH * len(victims))
        found = job.said("trained")[-1]["sha256"]
        job.check(is_stepped or found == known, "learned another table than a process alone")
    told = {name: value for name, value in asked.items() if name not in ("agent", "train")}
    return {**result, "victims": victims, **told}


def one_host_lost(steps, share=0.2):
    """Train with a table that is divided between two hosts, kill all of the one that does not serve."""
    known = undisturbed("taxi", steps)
    asked = options(True, True, rows_once=True, hosts=2, divided=True)
    asked["agent"] = {**asked["agent"], "heartbeat_interval": 0.5, "heartbeat_timeout": 4.0}
    with FaultJob("taxi", RANKS, total_steps=steps, **asked) as job:
        job.wait_for_checkpoint()
        job.check(job.wait_for_steps(share), "ended early")
        server = next(rank for rank, pid in job.pids.items() if pid == job.server())
        for rank, pid in job.pids.items():
            if rank % 2 != server % 2:
                job.end_process(pid)
        result = job.finish(deaths=_DEATHS_WORTH * 2)
        found = job.said("trained")[-1]["sha256"]
        job.check(found == known, "learned another table than a process alone")
    return result


def one_loss_without_checkpoint(victim, ranks=RANKS):
    """Train with a table that is there once and no checkpoints, kill one, and check what all others say."""
    asked = options(False, False, rows_once=True)
    with FaultJob("lake", ranks, total_steps=STEPS["lake"], **asked, slow=True) as job:
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
    environment = ("lake", "taxi", "counted")[number // 2 % 3]
    victims = VICTIMS[number % len(VICTIMS)]
    saving = number % 3 == 0
    rows_once = saving and environment != "counted"
    divided = rows_once and number % 2 == 1  # between two hosts, which exchange messages
    hosts = 2 if divided else None
    by_messages = number % 2 == 1
    steps = STEPS[environment]
    if by_messages and environment != "counted":
        steps //= _SLOWER_BY_MESSAGES
    kept = {"saving": saving, "rows_once": rows_once, "hosts": hosts, "divided": divided}
    cores = chance.choice([2, None])
    return one_run(environment, victims, by_messages, chance, steps, **kept, cores=cores)


if __name__ == "__main__":
    sys.exit(many_runs(__doc__, run, "kill-supersteps", 30))
