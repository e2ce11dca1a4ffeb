"""The checks of this repository, each under a time limit that ends all that it started.

The first argument may be `--all`, see scripts/test, or `--cluster`, see scripts/test-cluster. The next two
may be `--part K/N`, an option of tests/conftest.py.
"""

from __future__ import annotations

import os
import re
import resource
import signal
import sys
import tempfile
import time
import xml.etree.ElementTree
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

from dist_classicrl.launch.launcher import launch_environment
from dist_classicrl.launch.mpirun import mpirun_command
from dist_classicrl.process.jobs import run_job

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
# The core takes the least number of ranks that has all which ranks do together: a server and two workers.
CORE_MPI_RANKS = (3,)
MPI_RANKS = (1, 2, 3)
# What two ranks do that three do not, the core has: a server with a single worker.
ONLY_CORE_ON = 2
NO_TESTS_CHOSEN = 5
# Of mpirun, where MPI's end took rank 0 too long after the work was done, as it may once ranks were lost.
ENDED_IN_FINALIZE = 128 + signal.SIGALRM
# By folder: in how many processes pytest runs its tests. More than there are cores, as many tests wait.
PROCESSES = {"unit": max(3, CORES), "jobs": max(3, CORES), "faults": 3, "cluster": 3}
# For tests of tests/mpi on 1 rank each process is an MPI job of its own, without mpirun.
ALONE = PROCESSES["unit"]
# How pytest gives tests to processes: those of a file of tests/cluster share what its fixtures have started.
SHARING = {"cluster": "loadfile"}
# They end what is stuck: several times what each takes on two cores that others use as well.
LIMIT_SECONDS = {
    "lint": 120,
    "types": 300,
    "contracts": 120,
    "unit": 3600,
    "mpi": 1800,
    "jobs": 2400,
    "faults": 2400,
    "cluster": 3600,
}


class Checks:
    """Runs the steps one after the other and keeps count."""

    def __init__(self, pytest_arguments: list[str], core: bool = False) -> None:
        self.core = core
        self.divided = pytest_arguments[:1] == ["--part"]
        self.paths, self.options = split_arguments(pytest_arguments)
        self.choosing = len(pytest_arguments) > 2 * self.divided
        self.failed: list[str] = []
        self.counts: Counter[str] = Counter()

    def step(
        self, title: str, command: list[str], limit: float, is_done: Callable[[], bool] = lambda: False
    ) -> int:
        """Run one command in the repository; give its exit status.

        `is_done` says whether the work was done where MPI's end alone took too long.
        """
        print(f"\n==> {title}", flush=True)
        environment = launch_environment()
        # Else each of some thousand processes would compile the package and the tests from their text.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        before = processor_seconds()
        job = run_job(command, timeout=limit, env=environment, cwd=ROOT, keep_output=False)
        ending = f"did not end within {limit:g} s and was killed" if job.timed_out else f"{job.seconds:.0f} s"
        ending += f" ({processor_seconds() - before:.0f} s of processor time)"
        nothing = (self.choosing or self.divided) and job.returncode == NO_TESTS_CHOSEN and not job.timed_out
        late = job.returncode == ENDED_IN_FINALIZE and not job.timed_out and is_done()
        if late:
            ending += ", of which MPI's end took too long after all ranks had passed"
        elif job.returncode != 0 and not nothing:
            self.failed.append(title)
            ending += f", FAILED with exit status {job.returncode}"
        print(f"==> {title}: {ending}", flush=True)
        return job.returncode

    def tool(self, title: str, limit: float, *arguments: str) -> None:
        """Run a tool that is installed as a Python module."""
        self.step(title, [sys.executable, "-m", *arguments], limit)

    def tests(self, name: str, ranks: int | None = None) -> None:
        """Run the tests of one folder, with MPI if `ranks` are given, under mpirun if they are several."""
        folder = TESTS / name
        paths = [path for path in self.paths if folder in (Path(path.split("::")[0]), *Path(path).parents)]
        if self.paths and not paths:
            return
        title = f"tests/{name}" + (f" on {ranks} rank{'s' if ranks > 1 else ''}" if ranks else "")
        with tempfile.TemporaryDirectory() as logs:
            report = Path(logs) / "report.xml"
            pytest = [sys.executable, "-m", "pytest", *self.options, *(paths or [str(folder)])]
            if self.core or (ranks == ONLY_CORE_ON and not self.choosing):
                pytest += ["-m", "core"]
            processes = ALONE if ranks == 1 else PROCESSES.get(name)
            if processes and not self.choosing:
                pytest += ["-n", str(processes), "--dist", SHARING.get(name, "worksteal")]
            # mpirun gives its ranks a terminal of their own, so pytest cannot tell.
            pytest += ["--color", "yes" if sys.stdout.isatty() else "no"]
            pytest += [] if self.choosing else ["--durations=25", "--durations-min=5"]
            if ranks:
                # A stuck rank ends the job and shows where; ranks must not write to one cache at a time.
                stuck = ["-o", "faulthandler_timeout=300", "-o", "faulthandler_exit_on_timeout=true"]
                pytest += ["--with-mpi", "-p", "no:cacheprovider", *stuck]
            if ranks and ranks > 1:
                quiet = [sys.executable, str(ROOT / "scripts" / "_rank.py"), logs]
                pytest = [*mpirun_command(ranks), *quiet, *pytest]
            have_passed = partial(all_ranks_have_passed, report, Path(logs), ranks or 0)
            command = [*pytest, f"--junitxml={report}"]
            status = self.step(title, command, LIMIT_SECONDS[name], have_passed)
            self.count(report)
            if status not in (0, NO_TESTS_CHOSEN):
                show_rank_logs(Path(logs))

    def count(self, report: Path) -> None:
        """Add up what pytest reports."""
        if report.exists():
            for suite in xml.etree.ElementTree.parse(report).getroot():
                for kind in ("tests", "failures", "errors", "skipped"):
                    self.counts[kind] += int(suite.get(kind, 0))

    def finish(self, seconds: float) -> int:
        """Say how it went; give the exit status."""
        counts = self.counts
        bad = counts["failures"] + counts["errors"]
        if not counts["tests"] and not self.failed:
            self.failed.append("no test was chosen")
        passed = counts["tests"] - bad - counts["skipped"]
        print(f"\n==> tests: {passed} passed, {bad} failed, {counts['skipped']} skipped")
        verdict = "FAILED: " + "; ".join(self.failed) if self.failed else "everything passed"
        print(f"==> {verdict} ({seconds:.0f} s)", flush=True)
        return 1 if self.failed else 0


def processor_seconds() -> float:
    """Return for how long all that this process started, and that has ended, was at work on processors."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def split_arguments(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Tell paths of tests, made absolute, from other arguments of pytest."""
    paths, options = [], []
    for argument in arguments:
        file, separator, test = argument.partition("::")
        found = [folder / file for folder in (Path.cwd(), ROOT) if (folder / file).exists()]
        if found and TESTS in found[0].resolve().parents:
            paths.append(str(found[0].resolve()) + separator + test)
        else:
            options.append(argument)
    return paths, options


def all_ranks_have_passed(report: Path, folder: Path, ranks: int) -> bool:
    """Whether rank 0's report has no failure, and each other rank's log ends with what passed and no more."""
    if not report.exists():
        return False
    suites = list(xml.etree.ElementTree.parse(report).getroot())
    if not suites or any(int(suite.get(kind, 0)) for suite in suites for kind in ("failures", "errors")):
        return False
    for rank in range(1, ranks):
        log = folder / f"rank-{rank}.log"
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        ends = [line for line in lines if re.search(r"\b\d+ (passed|failed|errors?)\b.* in [\d.]+s", line)]
        if not ends or re.search(r"\b(failed|errors?)\b", ends[-1]):
            return False
    return ranks > 0


def show_rank_logs(folder: Path) -> None:
    """Show what the ranks above 0 wrote."""
    for log in sorted(folder.glob("rank-*.log")):
        print(f"\n==> what {log.stem.replace('-', ' ')} wrote\n{log.read_text(errors='replace')}", flush=True)


def main(arguments: list[str]) -> int:
    """Run the checks; give the exit status."""
    # A SIGTERM must not leave a job behind: leave by an exception, as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    # A shell that starts this in the background lets it ignore Ctrl-C, and so would all that is tested.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    started = time.monotonic()
    if arguments[:1] == ["--cluster"]:
        checks = Checks(arguments[1:])
        checks.tests("cluster")
        return checks.finish(time.monotonic() - started)
    chosen = arguments[1:] if arguments[:1] == ["--all"] else arguments
    checks = Checks(chosen, core=not arguments)
    if not checks.choosing:
        checks.tool("lint", LIMIT_SECONDS["lint"], "ruff", "check")
        checks.tool("format", LIMIT_SECONDS["lint"], "ruff", "format", "--check")
        if not checks.core:
            checks.tool("types", LIMIT_SECONDS["types"], "mypy")
        lint_imports = str(Path(sys.executable).with_name("lint-imports"))
        checks.step("contracts", [lint_imports, "--no-cache"], LIMIT_SECONDS["contracts"])
    checks.tests("unit")
    for ranks in CORE_MPI_RANKS if checks.core else MPI_RANKS:
        checks.tests("mpi", ranks)
    checks.tests("jobs")
    checks.tests("faults")
    return checks.finish(time.monotonic() - started)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
