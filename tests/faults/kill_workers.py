"""Kill one to four of eight workers at random moments, many times, and show what came of it.

    python tests/faults/kill_workers.py --runs 100

After each run is checked: the exact number of steps, a policy within 1 % of the best one, one table on all
survivors, no process left, and, where every step is counted, that no more are lost than may be.
"""

import sys
import time

from fault_jobs import FaultJob, many_runs

WORKERS, MOST_DEATHS = 8, 4
# A death later than this is one of the end of the run, which may be over before it is noticed.
EARLY = 0.8


def one_run(environment, workers, deaths, chance, span=1.0, **options):
    """Train, kill `deaths` workers, and return what `FaultJob.finish` has seen.

    They are killed in the first part of the run, of which `span` is the share.
    """
    moments = sorted(span * chance.uniform(0.0, 0.95) for _ in range(deaths))
    victims = chance.sample(range(1, workers + 1), deaths)
    early = set()
    with FaultJob(environment, workers + 1, **options) as job:
        for share, victim in zip(moments, victims, strict=True):
            if not job.wait_for_steps(share):
                break
            time.sleep(chance.uniform(0.0, 0.1))
            job.end_process(job.pids[victim])
            if share < EARLY:
                early.add(victim)
        job.wait_for_workers(workers - deaths)
        job.hurry()
        result = job.finish(deaths)
        job.check(early <= set(result["lost_workers"]), f"did not miss one of {sorted(early)}")
    return result


def run(number, chance):
    return one_run(("lake", "counted")[number % 2], WORKERS, chance.randint(1, MOST_DEATHS), chance)


if __name__ == "__main__":
    sys.exit(many_runs(__doc__, run, "kill-workers", 100))
