"""Stop workers and servers until they are excluded, let them go on, and show what came of it.

    python tests/faults/stop_and_continue.py --runs 24

Whoever is stopped is excluded, and admitted again when it goes on; a server is replaced and becomes a worker.
Besides what kill_workers.py checks, every rank is there in the end, and no step was learned twice.
"""

import os
import signal
import sys

from fault_jobs import FaultJob, many_runs

WORKERS = 3
INTERVAL, SILENCE = 0.2, 1.0
# Long enough for what is to happen: steps of "counted" that pause take the same time on any machine.
STEPS = {"lake": 800_000_000, "counted": 100_000}
PAUSE = 2e-4


def one_run(environment, stop_worker, stop_server, chance, steps=None, pause=PAUSE, silence=SILENCE):
    """Train, stop a worker for a while, then the server, and return what `FaultJob.finish` has seen."""
    settings = {"heartbeat_interval": INTERVAL, "heartbeat_timeout": silence}
    ranks = [chance.randint(1, WORKERS)] * stop_worker + [0] * stop_server
    steps = STEPS[environment] if steps is None else steps
    with FaultJob(environment, WORKERS + 1, total_steps=steps, pause=pause, agent=settings) as job:
        job.check(job.wait_for_steps(chance.uniform(0.0, 0.1)), "ended before a rank was stopped")
        for rank in ranks:
            os.kill(job.pids[rank], signal.SIGSTOP)
            try:
                job.wait_until("excluded", rank)
                job.check(not job.over(), "ended before the rank went on; ask for more steps")
            finally:
                os.kill(job.pids[rank], signal.SIGCONT)
            job.wait_until("readmitted", rank)
            job.wait_for_workers(WORKERS)
        job.hurry()
        # On a busy machine others may be silent for so long as well.
        result = job.finish(deaths=None)
        for rank in ranks:
            kinds = {event["kind"] for event in result["events"] if event["rank"] == rank}
            job.check({"excluded", "readmitted"} <= kinds, f"tells of rank {rank} only that it was {kinds}")
        taken_over = any(event["kind"] == "failover" for event in result["events"])
        job.check(taken_over == stop_server, "was taken over, or was not")
        job.check(result["lost_workers"] == [], f"lost {result['lost_workers']}")
    return result


def run(number, chance):
    stop_worker, stop_server = ((True, False), (False, True), (True, True))[number % 3]
    return one_run(("counted", "lake")[number // 3 % 2], stop_worker, stop_server, chance)


if __name__ == "__main__":
    sys.exit(many_runs(__doc__, run, "stop-and-continue", 24))
