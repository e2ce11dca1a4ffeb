"""Kill the server at a random moment, many times, and show what came of it.

    python tests/faults/kill_server.py --runs 50

Every second run writes checkpoints. In some a worker dies within the same half second, in some the next
server soon after it took over, in some both. What is checked after each run is what kill_workers.py checks.
"""

import os
import signal
import sys
import time

from fault_jobs import FaultJob, many_runs

WORKERS = 5
COMPANIONS = ((), ("worker",), ("server",), ("worker", "server"))


def one_run(environment, workers, companions, saving, chance, span=1.0, **options):
    """Train, kill the server and its `companions`, and return what `FaultJob.finish` has seen.

    It is killed in the first part of the run, of which `span` is the share.
    """
    victim = chance.randint(1, workers)
    before = "worker" in companions and chance.random() < 0.5
    after = "worker" in companions and not before
    with FaultJob(environment, workers + 1, saving=saving, **options) as job:
        servers = []
        if job.wait_for_steps(span * chance.uniform(0.0, 0.6)):
            time.sleep(chance.uniform(0.0, 0.1))
            if before:
                job.end_process(job.pids[victim])
                time.sleep(chance.uniform(0.0, 0.5))
            servers.append(job.server())
            job.end_process(servers[0])
            if after:
                time.sleep(chance.uniform(0.0, 0.5))
                job.end_process(job.pids[victim])
            if "server" in companions and (second := job.wait_for_server_after(servers[0])):
                time.sleep(chance.uniform(0.0, 0.5))
                servers.append(second)
                job.end_process(second)
            job.wait_for_server_after(servers[-1])
        job.hurry()
        # Who served the second time has been a worker before.
        result = job.finish(deaths=len(job.killed) - 1)
        result["without_server"] = [seconds_without(job, pid) for pid in servers]
        rank_of = {pid: rank for rank, pid in job.pids.items()}
        missed = {event["rank"] for event in result["events"] if event["kind"] == "excluded"}
        job.check({rank_of[pid] for pid in servers} <= missed, f"missed {missed}, not the servers {servers}")
        failovers = [event for event in result["events"] if event["kind"] == "failover"]
        job.check(len(failovers) >= len(servers), f"was taken over {len(failovers)} times")
    return {**result, "companions": companions, "saving": saving}


def stopped_without_room(asked, has_room_again=False, agent=None, **train):
    """Kill the server while nothing can be saved, and ask a worker to stop: all stop in order.

    With `has_room_again` there is room before that, and what the new server has learned is saved.
    """
    options = {"total_steps": 2_000_000_000, "saving": True, "slow": True, "agent": agent}
    with FaultJob("lake", 3, train={"checkpoint_interval": "0.5s", **train}, **options) as job:
        job.wait_for_checkpoint()
        job.wait_for_steps(0.0)
        full = job.folder / "full"
        full.touch()
        first = job.server()
        job.end_process(first)
        second = job.wait_for_server_after(first)
        job.check(second, "ended with its server")
        if has_room_again:
            full.unlink()
        rank_of = {pid: rank for rank, pid in job.pids.items()}
        worker = next(pid for pid in job.pids.values() if pid not in (first, second))
        os.kill(second if asked == "server" else worker, signal.SIGUSR1)
        job.wait_for_end()
        stopped = {line["rank"]: line["code"] for line in job.said("stopped")}
        job.check(stopped == dict.fromkeys((rank_of[second], rank_of[worker]), 75), f"stopped {stopped}")
        logged = [line["text"] for line in job.said("log") if line["pid"] == second]
        ends = [text for text in logged if text.startswith("Stopped by SIGUSR1")]
        how = "The checkpoint is" if has_room_again else "goes on from the last one that could"
        job.check(len(ends) == 1 and how in ends[0], f"says at the stop {ends}")
        refused = [text for text in logged if text.startswith("No checkpoint could be written")]
        job.check(len(refused) == 1, f"says that it cannot save {refused}")
        newest = max(job.folder.glob("saved/*/*/manifest.json")).parent.name
        job.check(newest.startswith("f000002-") == has_room_again, f"has {newest} as its last checkpoint")


def one_loss_too_many(agent=None, **train):
    """Kill the server of a run that is to end then, and check what all others say."""
    options = {"total_steps": 2_000_000_000, "slow": True, "agent": {"on_failure": "abort", **(agent or {})}}
    with FaultJob("lake", 3, train=train, **options) as job:
        job.check(job.wait_for_steps(0.0), "ended early")
        first = job.server()
        job.end_process(first)
        job.wait_for_end()
        lost = job.said("lost")
        job.check({line["pid"] for line in lost} == set(job.pids.values()) - {first}, "was silent on a rank")
        for line in lost:
            job.check(
                "is lost (it had no part in the election), and on_failure=" in line["error"], line["error"]
            )


def seconds_without(job, pid):
    """Return the time from the death of a server to the first progress that another one reported."""
    died = job.killed[pid]
    later = [line["time"] for line in job.said("progress") if line["time"] > died and line["pid"] != pid]
    job.check(later, "reported no progress after a server had died")
    return later[0] - died


def run(number, chance):
    saving = number % 2 == 1
    environment = ("lake", "counted")[number // 8 % 2]
    return one_run(environment, WORKERS, COMPANIONS[number // 2 % 4], saving, chance)


if __name__ == "__main__":
    sys.exit(many_runs(__doc__, run, "kill-server", 50))
