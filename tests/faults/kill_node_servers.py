"""Kill ranks that compose the maps of others, and some of these, many times, and show what came of it.

    python tests/faults/kill_node_servers.py --runs 20

Three groups of four ranks: ranks 4 and 8 compose. Where one of these dies the next of its group takes over.
What is checked after each run is what kill_workers.py checks; the death of a rank that composes must cost no
step, as it makes none and what it held is sent again.
"""

import sys
import time

from fault_jobs import FaultJob, many_runs

SIZE, RANKS = 4, 12
VICTIMS = ((4,), (4, 5), (4, 8), (8, 9, 10), (4, 0), (6,))


def one_run(environment, victims, chance, size=SIZE, ranks=RANKS, span=1.0, **options):
    """Train, kill the ranks `victims` one after the other, and return what `FaultJob.finish` has seen."""
    tree = {"topology": "tree", "tree_group_size": size, "sync_frequency": 16}
    with FaultJob(environment, ranks, agent=tree, **options) as job:
        for victim, share in zip(victims, sorted(chance.uniform(0.1, 0.6) for _ in victims), strict=True):
            if not job.wait_for_steps(span * share):
                break
            time.sleep(chance.uniform(0.0, 0.1))
            job.end_process(job.pids[victim])
        job.hurry()
        result = job.finish(deaths=sum(victim % size != 0 for victim in victims))
        lost = {event["rank"] for event in result["events"] if event["kind"] == "excluded"}
        job.check(set(victims) <= lost, f"missed {lost}, not {victims}")
        texts = " ".join(line["text"] for line in job.said("log"))
        job.check(f"Ranks {size}" in texts, "had no tree")
        if victims == (size,) and size > 3:
            job.check(f"Ranks {size + 1} compose" in texts, "had nobody who took over")
    return {**result, "victims": victims}


def run(number, chance):
    return one_run(("lake", "counted")[number // len(VICTIMS) % 2], VICTIMS[number % len(VICTIMS)], chance)


if __name__ == "__main__":
    sys.exit(many_runs(__doc__, run, "kill-node-servers", 20))
