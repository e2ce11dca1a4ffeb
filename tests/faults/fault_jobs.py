"""Jobs whose processes are killed or stopped while they train, and what has to be true of them in the end."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from random import Random

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))

from background_job import BackgroundJob, JobError

from dist_classicrl.errors import LauncherError
from dist_classicrl.launch.launcher import find_launcher
from dist_classicrl.process import jobs as processes

PROGRAM = Path(__file__).with_name("fault_program.py")
# By environment: settings and steps of a run of some seconds on two cores.
AGENTS = {"lake": {}, "taxi": {}, "counted": {"n_envs": 1, "sync_frequency": 16}}
STEPS = {"lake": 150_000_000, "taxi": 100_000_000, "counted": 500_000}
# By how much of the best policy's value the learned one may be worse. Runs on FrozenLake are short: without
# any death, one in ten takes one of two actions that are nearly as good as each other and loses 2.5 %.
GAP = 0.05
# From the last process that is killed or stopped to the end of a run, whatever the machine.
RUN_SECONDS = 300.0
# What is still there so long after mpirun has ended has been left behind, however busy the machine is.
LEFT_SECONDS = 60.0


def why_not():
    """Say why no death can be survived here; None if it can."""
    try:
        launcher = find_launcher()
    except LauncherError as error:
        return str(error)
    if launcher.family != "openmpi" or launcher.version < (5,):
        return f"a rank's death is survived with Open MPI 5 and newer only, and this is {launcher}"
    return None


class FaultJob(BackgroundJob):
    """`fault_program.py` on ranks whose deaths are survived, with a folder for what its processes write.

    The folder is removed at the end, unless something was not as it should be. `saving` is for checkpoints.
    """

    def __init__(
        self,
        environment,
        ranks,
        *,
        total_steps=None,
        pause=0.0,
        slow=False,
        saving=False,
        by_messages=False,
        rows_once=False,
        hosts=None,
        divided=False,
        cores=None,
        agent=None,
        train=None,
    ):
        self.folder = Path(tempfile.mkdtemp(prefix="faults-"))
        self.ranks = ranks
        self.steps = STEPS[environment] if total_steps is None else total_steps
        self.settings = {**AGENTS[environment], **(agent or {})}
        self.killed = {}  # time of day by process id
        options = {
            "folder": str(self.folder),
            "environment": environment,
            "pause": pause,
            "slow": slow,
            "by_messages": by_messages,
            "rows_once": rows_once,
            "hosts": hosts,
            "divided": divided,
            "cores": cores,
            "agent": self.settings,
            "train": {
                "total_steps": self.steps,
                "checkpoint_dir": str(self.folder / "saved") if saving else None,
                **(train or {}),
            },
        }
        arguments = [PROGRAM, json.dumps(options, default=os.fspath)]
        super().__init__(arguments, ranks=ranks, options=["--with-ft", "ulfm"], cwd=self.folder)

    def __exit__(self, *exception):
        super().__exit__(*exception)
        if exception[0] is None:
            shutil.rmtree(self.folder)
        else:
            print(f"left as it is: {self.folder}")

    def said(self, event=None):
        """Return what processes wrote, in the order of time: all, or one kind of `event`."""
        lines = []
        for path in self.folder.glob("*.jsonl"):
            *complete, _ = path.read_text().split("\n")
            lines += [json.loads(line) for line in complete if event is None or f'"event": "{event}"' in line]
        return sorted(lines, key=lambda line: line["time"])

    @property
    def pids(self):
        """Process ids of the ranks that mpirun started, by rank."""
        return {
            line["rank"]: line["pid"] for line in reversed(self.said("started")) if not line["replacement"]
        }

    def server(self):
        """Return the process id of whoever reported progress last, or None."""
        progress = self.said("progress")
        return progress[-1]["pid"] if progress else None

    def wait_for_steps(self, share):
        """Wait until this share of the steps has been made; tell whether the job still runs."""

        def made():
            progress = self.said("progress")
            return progress and progress[-1]["steps"] >= share * self.steps

        return self.wait_for(made, f"{share:.0%} of the steps", RUN_SECONDS) is not None and not self.over()

    def wait_for_checkpoint(self):
        """Wait until a checkpoint is on disk, or the job has ended."""
        self.wait_for(lambda: [*self.folder.glob("saved/*/*/manifest.json")], "a checkpoint", RUN_SECONDS)

    def wait_for_server_after(self, pid):
        """Wait until another process than `pid` serves and return its id; None if the job ended before."""
        return self.wait_for(lambda: self.server() not in (pid, None) and self.server(), "a new server")

    def wait_for_workers(self, number):
        """Wait until whoever serves counts so many workers, or the job has ended."""

        def counted():
            progress = self.said("progress")
            return progress and progress[-1]["workers"] == number

        self.wait_for(counted, f"{number} workers")

    def wait_until(self, kind, rank):
        """Wait until whoever serves tells of a rank that it was lost last ("excluded"), or came back last."""

        def is_told():
            kinds = [event["kind"] for event in self.told() if event["rank"] == rank]
            return [each for each in kinds if each in ("excluded", "readmitted")][-1:] == [kind]

        self.wait_for(is_told, f"rank {rank} to be {kind}", RUN_SECONDS)

    def told(self):
        """Return the events of which whoever served has told so far, in order."""
        return [event for line in self.said("progress") for event in line["events"]]

    def hurry(self):
        """Let a job that takes its time come to its end: what was to be done to it is done."""
        (self.folder / "hurry").touch()

    def over(self):
        """Whether training has ended somewhere."""
        return self.process.poll() is not None or bool(self.said("trained"))

    def wait_for_end(self):
        """Wait until mpirun has ended; where it does not, every process shows where it stands."""
        deadline = time.monotonic() + RUN_SECONDS
        while self.process.poll() is None:
            if time.monotonic() > deadline:
                for line in self.said("started"):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(line["pid"], signal.SIGQUIT)
                time.sleep(1.0)
                self.check(False, f"did not end within {RUN_SECONDS:g} s")
            time.sleep(0.01)

    def end_process(self, pid):
        """Kill one process."""
        self.killed[pid] = time.time()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def counted(self):
        """Return the steps that every process has really made, by process id."""
        return {int(path.stem): int(np.fromfile(path, np.int64)[0]) for path in self.folder.glob("*.steps")}

    def seconds_until_excluded(self, events):
        """Return by rank how long after its death a process was excluded."""
        begun = time_of_beginning(self.said("progress"))
        rank_of = {pid: rank for rank, pid in self.pids.items()}
        killed = {rank_of[pid]: at for pid, at in self.killed.items() if pid in rank_of}
        return {
            event["rank"]: begun + event["seconds"] - killed[event["rank"]]
            for event in events
            if event["kind"] == "excluded" and event["rank"] in killed
        }

    def finish(self, deaths=0):
        """Wait for the end of the job, check it, and return what was seen.

        Whoever was not killed has made all steps and has the same, good table, and no process is left. Where
        steps are counted, none was learned that nobody made, and no more are lost than `deaths` may cost: the
        number of workers that were killed or stopped; None: whoever was silent for too long.
        """
        self.wait_for_end()
        self.check(self._nobody_is_left(), f"left {processes.processes_of(self.job)} behind")
        trained = [line for line in self.said("trained") if not line["replacement"]]
        survivors = {rank for rank, pid in self.pids.items() if pid not in self.killed}
        self.check(len(self.pids) == self.ranks, "did not start every rank")
        self.check(survivors <= {line["rank"] for line in trained}, f"lost one of the ranks {survivors}")
        for line in trained:
            made = {line["steps"], line["agent_steps"], line["visits"]}
            self.check(made == {self.steps}, f"made {made} steps on rank {line['rank']}")
            gap = 1 - line["value"] / line["optimum"]
            self.check(gap < GAP, f"learned what is worse than the best by {gap:.1%}")
        self.check(len({line["sha256"] for line in trained}) == 1, "ended with different tables")
        result = trained[-1]["result"]
        killed = {rank for rank, pid in self.pids.items() if pid in self.killed}
        self.check(set(result["lost_workers"]) <= killed, "lost workers that were not killed")
        if deaths is None:
            deaths = sum(event["kind"] == "excluded" for event in result["events"])
        lost, bound = None, None
        if counted := self.counted():
            lost, bound = sum(counted.values()) - self.steps, deaths * self.most_steps_lost
            self.check(0 <= lost <= bound, f"lost {lost} steps where {bound} may be lost")
        return {
            "returncode": self.process.returncode,
            "seconds": result["seconds"],
            "gap": gap,
            "killed": len(self.killed),
            "lost_workers": result["lost_workers"],
            "events": result["events"],
            "excluded_after": self.seconds_until_excluded(result["events"]),
            "steps_lost": lost,
            "steps_bound": bound,
        }

    @property
    def most_steps_lost(self):
        """What the death of one worker may cost: the pushes in flight, and what it was learning.

        Supersteps, where nobody pushes, are held to as much.
        """
        settings = {"batch_size": 32, "prefetch_factor": 2, **self.settings}
        updates = AGENTS["counted"]["sync_frequency"]
        return (settings["prefetch_factor"] + 1) * updates * settings["batch_size"]

    def check(self, truth, what):
        """Raise the error that says `what` the job did, unless `truth`."""
        if not truth:
            logs = [f"{line['rank']}: {line['text']}" for line in self.said("log")]
            alive = [pid for pid in self.pids.values() if processes.is_running(pid)]
            facts = f"ranks {self.pids}, of which {alive} are alive, killed {self.killed}, {self.folder}"
            ends = "\n".join([*logs, facts])
            raise JobError(f"{self.error(what)}\nand logged:\n{ends}")

    def _nobody_is_left(self):
        deadline = time.monotonic() + LEFT_SECONDS
        while processes.processes_of(self.job):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True


def time_of_beginning(progress):
    """Return the time of day when training began, from the first line of progress."""
    return progress[0]["time"] - progress[0]["seconds"]


def many_runs(description, run, name, default_runs):
    """Be a program that calls `run(number, chance)` many times; return the exit status.

    Each result goes into a JSON file as soon as it is there. A run that fails is told and counted, and its
    folder stays.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=default_runs, help="(default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="number of the first run (default: 0)")
    parser.add_argument("--seed", type=int, default=0, help="of all moments (default: 0)")
    parser.add_argument("--output", type=Path, default=Path(f"{name}.json"), help="(default: %(default)s)")
    arguments = parser.parse_args()
    if reason := why_not():
        parser.error(reason)
    results, failed, begun = [], 0, time.monotonic()
    for number in range(arguments.first, arguments.first + arguments.runs):
        try:
            result = run(number, Random(f"{arguments.seed} {number}"))
        except AssertionError:
            failed += 1
            result = {"failed": traceback.format_exc()}
            print(f"run {number} FAILED\n{result['failed']}", flush=True)
        else:
            shown = {key: value for key, value in result.items() if key not in ("events", "excluded_after")}
            print(f"run {number}: {shown}", flush=True)
        results.append({"run": number, **result})
        arguments.output.write_text(json.dumps(results, indent=1))
    summarise(results, failed, time.monotonic() - begun)
    return 1 if failed else 0


def summarise(results, failed, seconds):
    """Print what came of all runs."""
    good = [result for result in results if "failed" not in result]
    print(f"\n{len(results)} runs in {seconds:.0f} s, {failed} failed")
    if not good:
        return
    print(f"processes killed: {sum(result['killed'] for result in good)}")
    print(f"largest gap to the best policy: {max(result['gap'] for result in good):.3%}")
    codes = Counter(result["returncode"] for result in good)
    print("exit codes of mpirun:", ", ".join(f"{number} x {code}" for code, number in codes.items()))
    show("seconds from a death to the exclusion", [t for r in good for t in r["excluded_after"].values()])
    show("seconds without a server", [t for r in good for t in r.get("without_server", ())])
    lost = [result for result in good if result["steps_lost"] is not None]
    show("steps lost in a run", [result["steps_lost"] for result in lost])
    bounded = [result for result in lost if result["steps_bound"]]
    show("the same as a share of the bound", [r["steps_lost"] / r["steps_bound"] for r in bounded])


def show(title, values):
    """Print the distribution of `values`."""
    if values:
        marks = np.quantile(values, [0.0, 0.25, 0.5, 0.75, 0.95, 1.0])
        names = ("least", "25 %", "50 %", "75 %", "95 %", "most")
        told = ", ".join(f"{name} {mark:.3g}" for name, mark in zip(names, marks, strict=True))
        print(f"{title} ({len(values)}): {told}")
