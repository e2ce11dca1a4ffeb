"""Kill ranks that compose the maps of others, and some of these, many times, and show what came of it.

    python tests/faults/kill_node_servers.py --runs 20

Three groups of three ranks: rank 3 and rank 6 compose. What is checked after each run is what kill_workers.py
checks; the death of a rank that composes must cost no step, as it makes none and what it held is sent again.
"""

import sys
import time

from fault_jobs import FaultJob, many_runs

RANKS = 9
TREE = {"topology": "tree", "tree_group_size": 3}
COMPOSING = (3, 6)
VICTIMS = ((3,), (3, 4), (3, 6), (6, 7, 8), (3, 0))


def one_run(environment, victims, chance, ranks=RANKS, span=1.0, **options):
    """Train, kill the ranks `victims` one after the other, and return what `FaultJob.finish` has seen."""
    with FaultJob(environment, ranks, agent=TREE | {"sync_frequency": 16}, **options) as job:
        for victim, share in zip(victims, sorted(chance.uniform(0.1, 0.6) for _ in victims), strict=True):
            if not job.wait_for_steps(span * share):
                break
            time.sleep(chance.uniform(0.0, 0.1))
            job.end_process(job.pids[victim])
        texts = [line["text"] for line in job.said("log")]
        job.check(any(text.startswith("Ranks 3") for text in texts), "had no tree")
        excluded = {*victims}

        def missed():
            said = [line["text"] for line in job.said("log")]
            return sum("compose" in text for text in said) >= 2 or len(excluded) > 1

        job.wait_for(missed, "another tree")
        job.hurry()
        result = job.finish(deaths=len(set(victims) - {0, *COMPOSING}))
        lost = {event["rank"] for event in result["events"] if event["kind"] == "excluded"}
        job.check(set(victims) <= lost, f"missed {lost}, not {victims}")
    return {**result, "victims": victims}


def run(number, chance):
    return one_run(("lake", "counted")[number // 5 % 2], VICTIMS[number % 5], chance)


if __name__ == "__main__":
    sys.exit(many_runs(__doc__, run, "kill-node-servers", 20))
