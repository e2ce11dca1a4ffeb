"""Train for a long time while a worker dies or stops every 20 seconds, and show what that does to a job.

    python tests/faults/soak.py --minutes 30

Dead workers are replaced. In the first and the last tenth of the time nothing happens. One worker and the
server are left alone: their memory and file descriptors must not grow, nor what replacements of the same age
have, apart from what MPI itself keeps of each process that it has spawned, which is measured as well; and the
job must be as fast in the end as it was in the beginning.
"""

import argparse
import contextlib
import json
import os
import signal
import statistics
import sys
import time
from pathlib import Path
from random import Random

import numpy as np
from fault_jobs import RUN_SECONDS, FaultJob, why_not

from dist_classicrl.launch.launcher import find_launcher, launch_environment
from dist_classicrl.launch.mpirun import survival_words
from dist_classicrl.process.jobs import is_running, run_job

WORKERS, WITNESS = 4, 1
SETTINGS = {
    "heartbeat_interval": 0.2,
    "heartbeat_timeout": 2.0,
    "on_failure": "replace",
    "max_replacements": 10**6,
}
PATIENT_SECONDS = 120.0
STOPPED_SECONDS = 3 * SETTINGS["heartbeat_timeout"]
# Of the beginning and the end, in which nobody is killed.
CALM = 0.1
# In this time after the last of the first workers has died, all connections to replacements are there, and
# every process has taken all the memory that it needs.
WARM_SECONDS = 20.0
ALLOWED_GROWTH = 0.02
ALLOWED_SLOWING = 0.05
SAMPLE_SECONDS = 1.0


def rss_of(pid):
    """Return the memory of a process in MB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def descriptors_of(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


class Soak:
    """A job that trains without end, what is done to it, and what is measured."""

    def __init__(self, job, chance):
        self.job = job
        self.chance = chance
        self.begun = time.time()
        self.samples = []  # (seconds, process id, age, MB, descriptors)
        self.deaths, self.stops = [], []  # seconds

    @property
    def seconds(self):
        return time.time() - self.begun

    def targets(self):
        """Return the workers that may be killed or stopped: all that train, but the witness."""
        spared = {self.job.server(), self.job.pids[WITNESS]}
        return [
            line["pid"]
            for line in self.job.said("started")
            if line["pid"] not in spared and is_running(line["pid"])
        ]

    def sample(self):
        """Note the memory and the descriptors of every process of the job."""
        for line in self.job.said("started"):
            with contextlib.suppress(OSError, IndexError):
                pid, age = line["pid"], time.time() - line["time"]
                self.samples.append((self.seconds, pid, age, rss_of(pid), descriptors_of(pid)))

    def wait_until(self, seconds):
        """Sample until then."""
        while (left := seconds - self.seconds) > 0:
            time.sleep(min(left, SAMPLE_SECONDS))
            self.job.check(self.job.process.poll() is None, "ended by itself")
            self.sample()

    def disturb(self):
        """Kill a worker or stop one for a while; every third time the latter."""
        targets = self.targets()
        self.job.check(targets, "has no worker left")
        pid = self.chance.choice(targets)
        if (len(self.deaths) + len(self.stops)) % 3 == 2:
            self.stops.append(self.seconds)
            os.kill(pid, signal.SIGSTOP)
            try:
                self.wait_until(self.seconds + STOPPED_SECONDS)
            finally:
                os.kill(pid, signal.SIGCONT)
        else:
            self.deaths.append(self.seconds)
            self.job.end_process(pid)

    def speed(self, since, until):
        """Return the median number of steps per second between these seconds."""
        rates = [
            line["steps_per_second"]
            for line in self.job.said("progress")
            if since <= line["time"] - self.begun < until
        ]
        return statistics.median(rates)

    def replacements(self):
        """Return (seconds, MB, descriptors) of each replacement at the age of five seconds."""
        pids = {line["pid"] for line in self.job.said("started") if line["replacement"]}
        first = {}
        for seconds, pid, age, size, descriptors in self.samples:
            if pid in pids and age >= 5.0:
                first.setdefault(pid, (seconds, size, descriptors))
        return sorted(first.values())


def soak(seconds, every, chance, environment="lake", calm=CALM, **options):
    """Disturb a job for so long, and return what was seen; the job ends in order."""
    train = {"progress_interval": min(1.0, calm * seconds / 8), "checkpoint_interval": "10s"}
    with FaultJob(
        environment, WORKERS + 1, total_steps=10**15, agent=SETTINGS, train=train, saving=True, **options
    ) as job:
        job.check(job.wait_for_steps(0.0), "did not train")
        run = Soak(job, chance)
        run.wait_until(calm * seconds)
        while run.seconds + every < (1 - calm) * seconds:
            next_one = run.seconds + every
            run.disturb()
            run.wait_until(next_one)
        run.wait_until(seconds)
        job.wait_for_workers(WORKERS)  # that are on their way when the job ends may hold it up within MPI
        server = stop_in_order(job)
        before, after = run.speed(0, calm * seconds), run.speed((1 - calm) * seconds, seconds)
        return {
            "deaths": len(run.deaths),
            "stops": len(run.stops),
            "started": sum(line["replacement"] for line in job.said("started")),
            "replacements": run.replacements(),
            "speed_before": before,
            "speed_after": after,
            "pids": {"server": server, "worker": job.pids[WITNESS]},
            "first": list(job.pids.values()),
            "samples": run.samples,
        }


def replaced(deaths, chance):
    """Kill so many workers, each once the one before it is replaced; return how many replacements came.

    Nobody is lost here for being silent, as on a busy machine.
    """
    agent = {**SETTINGS, "heartbeat_timeout": PATIENT_SECONDS}
    with FaultJob("lake", WORKERS + 1, total_steps=10**15, agent=agent, saving=True, slow=True) as job:
        job.check(job.wait_for_steps(0.0), "did not train")
        run = Soak(job, chance)
        for number in range(1, deaths + 1):
            job.wait_for_workers(WORKERS)
            targets = run.targets()
            job.check(targets, "has no worker left")
            job.end_process(chance.choice(targets))
            job.wait_for(lambda number=number: replacements_of(job) >= number, "a replacement", RUN_SECONDS)
        job.wait_for_workers(WORKERS)
        stop_in_order(job)
        return replacements_of(job)


def replacements_of(job):
    """Return how many replacements whoever serves has told of."""
    return sum(event["kind"] == "replaced" for event in job.told())


def stop_in_order(job):
    """Stop a job by a signal to whoever serves, wait for its end and check it; return the server."""
    server = job.server()
    os.kill(server, signal.SIGUSR1)
    job.wait_for_end()
    stopped = job.said("stopped")
    job.check({line["pid"] for line in stopped} >= {server, job.pids[WITNESS]}, "did not stop in order")
    # After a stop only the server has the whole table.
    made = [(line["visits"], line["steps"]) for line in stopped if line["pid"] == server]
    job.check(made[0][0] == made[0][1] > 0, f"made {made} steps")
    return server


def growth(samples, pid, column, since):
    """Return by what share a figure of one process has grown, by a straight line through all."""
    seen = [(row[0], row[column]) for row in samples if row[1] == pid and row[0] > since]
    times, values = np.array(seen).T
    return float(np.polyfit(times, values, 1)[0] * (times[-1] - times[0]) / values.mean())


def warm_since(seen):
    """Return the seconds after which all workers but the witness are replacements, and all is warm."""
    kept = set(seen["pids"].values())
    return max(row[0] for row in seen["samples"] if row[1] in set(seen["first"]) - kept) + WARM_SECONDS


def growth_of_replacements(replacements):
    """Return by what share the last third of them is larger than the first, in memory and descriptors."""
    rows = np.array(replacements)[:, 1:]
    third = max(1, len(rows) // 3)
    return (np.median(rows[-third:], axis=0) / np.median(rows[:third], axis=0) - 1).tolist()


def kept_by_mpi():
    """Return how many MB MPI keeps, for good, of each process that a server spawned and that died."""
    launcher = find_launcher()
    words = [
        launcher.path,
        "-n",
        "1",
        *survival_words(launcher),
        "--prtemca",
        "prte_state_base_recoverable",
        "1",
    ]
    program = str(Path(__file__).with_name("spawned_memory.py"))
    job = run_job([*words, sys.executable, program], timeout=120.0, env=launch_environment())
    if job.returncode or job.timed_out:
        raise RuntimeError(f"{program} failed: {job.output}")
    return float(job.output.split()[-1])


def judge(seen, kept):
    """Print what was seen, `kept` MB by MPI of each replacement, and return whether all is flat."""
    since = warm_since(seen)
    grown = {
        name: [growth(seen["samples"], pid, 3, since), growth(seen["samples"], pid, 4, since)]
        for name, pid in seen["pids"].items()
    }
    grown["replacements"] = growth_of_replacements(seen["replacements"])
    size = statistics.mean(row[3] for row in seen["samples"] if row[1] == seen["pids"]["server"])
    late = sum(first > since for first in first_seen(seen) if first > 0)
    share = late * kept / size
    ratio = seen["speed_after"] / seen["speed_before"]
    print(f"{seen['deaths']} deaths, {seen['stops']} stops, {seen['started']} replacements")
    print(f"growth is that after {since:.0f} s")
    print(f"steps per second after / before: {ratio:.3f}")
    for name, (memory, descriptors) in grown.items():
        print(f"{name}: memory {memory:+.2%}, descriptors {descriptors:+.2%}")
    print(
        f"of the server's memory {share:+.2%} is MPI's own: {kept:.3f} MB for each of {late} replacements, "
        "as in a program without this library"
    )
    grown["server"][0] -= share
    good = abs(ratio - 1) <= ALLOWED_SLOWING
    good &= all(part <= ALLOWED_GROWTH for shares in grown.values() for part in shares)
    print("flat" if good else "NOT FLAT")
    return good


def first_seen(seen):
    """Return when each process was first seen."""
    first = {}
    for row in seen["samples"]:
        first.setdefault(row[1], row[0])
    return list(first.values())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0, help="(default: %(default)s)")
    parser.add_argument("--every", type=float, default=20.0, help="seconds (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    parser.add_argument("--output", type=Path, default=Path("soak.json"), help="(default: %(default)s)")
    parser.add_argument("--read", action="store_true", help="judge what an earlier run wrote to --output")
    arguments = parser.parse_args()
    if reason := why_not():
        parser.error(reason)
    if arguments.read:
        seen = json.loads(arguments.output.read_text())
    else:
        seen = soak(60 * arguments.minutes, arguments.every, Random(arguments.seed))
        arguments.output.write_text(json.dumps(seen))
    return 0 if judge(seen, kept_by_mpi()) else 1


if __name__ == "__main__":
    sys.exit(main())
