"""Cut or impair the network between three hosts with two ranks each, or kill a host; show what came of it.

    python tests/faults/cut_network.py --runs 1

The hosts are network namespaces of this machine (tests/cluster/hosts.py), so this needs root. The job runs
under `python -m dist_classicrl launch` on h1, where rank 0 is as well. What is checked after each run: the
launcher ended with 0; all steps were made, and no more; whoever came to the end has the same, good table, and
so has the last checkpoint; no two servers ever reported progress in the same time; whether the job was
started again; ranks behind a cut end by themselves; and no process is left when all links are up.
"""

import argparse
import hashlib
import json
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from fault_jobs import GAP, PROGRAM, RUN_SECONDS, FaultJob, why_not

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cluster"))

import hosts as emulated
from background_job import BackgroundJob
from hosts import Hosts

from dist_classicrl import DistAsyncQLearning

SLOTS = 2
RANKS = 3 * SLOTS
# A step with this pause takes the same time on any machine; five workers make 2,500 in a second.
PAUSE = 2e-3
STEPS = 90_000
SILENCE = 5.0
# What ranks take at most to end when the launcher has ended their job, on a busy machine.
RANKS_SECONDS = 60.0
# Ranks on the wrong side of a cut look for the others for so many times `heartbeat_timeout`, and some more.
GIVING_UP = 9.0
# After a link has come back, TCP tries again at moments that lie further and further apart.
LEFT_SECONDS = 60.0


@dataclass(frozen=True)
class Case:
    """What happens to the network at a share of the steps.

    Attributes
    ----------
    cut : str, optional
        The host whose link goes down,
    seconds : float, optional
        for that long; if left out, for good, which is until all ranks have ended,
    returns : bool
        or only until the launcher has.
    kill : str, optional
        The host all of whose processes are killed,
    silently : bool
        in such a way that nobody hears of it.
    delay_ms, loss : float
        What the network does to packets from the beginning.
    silence : float
        `heartbeat_timeout`.
    restarts : int
        How often the job is started again.
    away : set of int
        Ranks that may be lost, and are lost unless the link comes back.
    steps : int
        Of the training.
    grace : float
        What the launcher gives a job to end whose work is done.
    share : float
        Of the steps, after which it happens.
    hurries : bool
        Whether steps take no pause any more once it has happened, and the job has been started again if it is
        to be: then the steps can be so many that nothing comes too late.
    """

    cut: str | None = None
    seconds: float | None = None
    returns: bool = False
    kill: str | None = None
    silently: bool = False
    delay_ms: float = 0.0
    loss: float = 0.0
    silence: float = SILENCE
    restarts: int = 0
    away: frozenset[int] = frozenset()
    steps: int = STEPS
    grace: float = 5.0
    share: float = 0.25
    hurries: bool = False


CASES = {
    "workers cut off for 20 s": Case(cut="h3", seconds=20.0, away=frozenset({4, 5})),
    "workers cut off for good": Case(cut="h3", away=frozenset({4, 5})),
    "server cut off for 20 s": Case(cut="h1", seconds=20.0, away=frozenset({0, 1})),
    "server cut off for good": Case(cut="h1", away=frozenset({0, 1})),
    "workers cut off for 20 s, which is not too long": Case(cut="h3", seconds=20.0, silence=90.0),
    "50 ms and 5 % loss": Case(delay_ms=50.0, loss=0.05, silence=15.0),
    "power failure of a host": Case(kill="h3", silently=True, away=frozenset({4, 5})),
    "all processes of a host killed": Case(kill="h3", restarts=1),
}


class LaunchedJob(FaultJob):
    """`fault_program.py` under `launch` on the host h1."""

    def __init__(self, hosts, case):
        self.folder = Path(tempfile.mkdtemp(prefix="cuts-"))
        self.hosts, self.case = hosts, case
        self.ranks, self.steps, self.killed = RANKS, case.steps, {}
        options = {
            "folder": str(self.folder),
            "environment": "counted",
            "pause": PAUSE,
            "agent": {
                "n_envs": 1,
                "sync_frequency": 16,
                "heartbeat_interval": 0.5,
                "heartbeat_timeout": case.silence,
            },
            "train": {
                "total_steps": self.steps,
                "checkpoint_dir": str(self.folder / "saved"),
                "checkpoint_interval": "3s",
            },
        }
        launch = [sys.executable, "-m", "dist_classicrl", "launch", "--verbose", "--grace", str(case.grace)]
        launch += ["--state-dir", str(self.folder / "launch"), "--agent", hosts.agent]
        launch += ["--hostfile", hosts.hostfile(SLOTS), str(PROGRAM), json.dumps(options)]
        BackgroundJob.__init__(self, hosts.command("h1", launch)[1:], cwd=self.folder)

    def one_run(self):
        """Do what the case says, wait for the end, check it, and return what was seen."""
        case, hosts = self.case, self.hosts
        hosts.impair(delay_ms=case.delay_ms, loss=case.loss)
        self.check(self.wait_for_steps(case.share), "ended before anything was done to it")
        if case.kill is not None:
            hosts.kill_host(case.kill, silently=case.silently)
        if case.cut is not None:
            hosts.cut(case.cut)
        if case.seconds is not None:
            time.sleep(case.seconds)
            hosts.heal(case.cut)
        if case.hurries:
            self.wait_for(lambda: self.starts() == case.restarts, "it to be started again", RUN_SECONDS)
            self.hurry()
        self.wait(status=0, timeout=RUN_SECONDS)
        result = self.check_learning()
        self.check_servers()
        return {**result, "seconds_of_what_was_left": self.check_what_is_left()}

    def starts(self):
        """Return how often it was started again."""
        return self.output.count("It starts again in")

    def check_learning(self):
        """Check the steps, the tables and the checkpoint of the attempt that did the work."""
        case = self.case
        restarts = self.starts()
        self.check(restarts == case.restarts, f"was started again {restarts} times")
        trained = self.said("trained")
        ranks = set(range(RANKS - SLOTS * restarts))
        ended = {line["rank"] for line in trained}
        self.check(
            ended == ranks - case.away or (case.seconds and ended > ranks - case.away), f"ended on {ended}"
        )
        for line in trained:
            made = {line["agent_steps"], line["visits"]}
            self.check(made == {self.steps}, f"made {made} steps on rank {line['rank']}")
            gap = 1 - line["value"] / line["optimum"]
            self.check(gap < GAP, f"learned what is worse than the best by {gap:.1%}")
        tables = {line["sha256"] for line in trained}
        saved = DistAsyncQLearning.load_model(self.folder / "saved")
        tables.add(hashlib.sha256(np.ascontiguousarray(saved.q_table).tobytes()).hexdigest())
        self.check(len(tables) == 1, "ended with different tables, or with a checkpoint of another one")
        self.check(int(saved.visits.sum()) == self.steps, f"saved {int(saved.visits.sum())} steps")
        last = trained[-1]["result"]
        self.check(set(last["lost_workers"]) == ranks - ended, f"told of lost workers {last['lost_workers']}")
        return {
            "seconds": last["seconds"],
            "gap": gap,
            "restarts": restarts,
            "lost_workers": last["lost_workers"],
            "events": last["events"],
        }

    def check_servers(self):
        """Check that nobody served any more when somebody else began to."""
        times = {}
        for line in self.said("progress"):
            times.setdefault(line["pid"], []).append(line["time"])
        for before, after in pairwise(sorted(times.values())):
            self.check(before[-1] < after[0], f"had two servers for {before[-1] - after[0]:.2f} s")

    def check_what_is_left(self):
        """Check that ranks end, and every process once all links are up; return after how many seconds."""
        case, hosts, begun = self.case, self.hosts, time.monotonic()
        apart = [] if case.cut is None else [case.cut]
        self.wait_until_none_is_left(set(hosts.names) - set(apart), RANKS_SECONDS, PROGRAM.name)
        if not case.returns:
            self.wait_until_none_is_left(apart, GIVING_UP * case.silence, PROGRAM.name)
        ranks_ended = time.monotonic()
        hosts.impair()
        hosts.heal(*apart)
        self.wait_until_none_is_left(hosts.names, LEFT_SECONDS)
        return {"last_rank": ranks_ended - begun, "last_process": time.monotonic() - ranks_ended}

    def wait_until_none_is_left(self, names, seconds, text=""):
        """Wait until no process with this text in its command is left on these hosts."""
        deadline = time.monotonic() + seconds
        while left := [
            line for name in names for line in self.hosts.processes(name).values() if text in line
        ]:
            self.check(time.monotonic() < deadline, f"left after {seconds:g} s: {left}")
            time.sleep(0.1)


def one_run(case):
    with Hosts(RANKS // SLOTS) as hosts, LaunchedJob(hosts, case) as job:
        return job.one_run()


def main():
    """Run every case so many times; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=1, help="of each case (default: %(default)s)")
    parser.add_argument("--only", default="", metavar="TEXT", help="the cases with this text in their names")
    parser.add_argument(
        "--output", type=Path, default=Path("cut-network.json"), help="(default: %(default)s)"
    )
    arguments = parser.parse_args()
    if reason := why_not() or emulated.why_not():
        parser.error(reason)
    results = []
    for _ in range(arguments.runs):
        for name, case in CASES.items():
            if arguments.only not in name:
                continue
            begun = time.monotonic()
            try:
                result = one_run(case)
                print(f"{name}: {result}", flush=True)
            except AssertionError:
                result = {"failed": traceback.format_exc()}
                print(f"{name}: FAILED\n{result['failed']}", flush=True)
            results.append({"case": name, "wall_seconds": time.monotonic() - begun, **result})
            arguments.output.write_text(json.dumps(results, indent=1))
    failed = sum("failed" in result for result in results)
    print(f"\n{len(results)} runs, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
