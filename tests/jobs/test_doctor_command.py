"""`doctor` and `profile` as they are typed, with the real mpirun."""

import json
import os
import signal
import socket
import time

import pytest
from background_job import BackgroundJob

from dist_classicrl.launch.launcher import find_launcher
from dist_classicrl.launch.mpirun import survival_words
from dist_classicrl.process.jobs import is_running, processes_of

DOCTOR = ("-m", "dist_classicrl", "doctor", "--json")
PROFILE = ("-m", "dist_classicrl", "profile", "--sizes", "8,64KiB", "--seconds", "0.02", "--json")


def data_of(job):
    return json.loads(job.output[job.output.index("{") :])


def test_the_doctor_finds_several_troubles_at_once(run_python, tmp_path):
    (tmp_path / "file").touch()
    other = tmp_path / "bin" / "mpirun"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\necho 'HYDRA build details:\n    Version: 4.2.1'\n")
    other.chmod(0o755)
    troubles = {
        "OMP_NUM_THREADS": "64",
        "NUMBA_CACHE_DIR": str(tmp_path / "file" / "cache"),
        "PATH": os.pathsep.join([str(other.parent), os.environ["PATH"]]),
    }
    # Not the launcher on PATH, which run_python takes no part of: it starts without mpirun.
    words = ("--ranks", 3, "--checkpoint-dir", "file/run", "--states", 1000, "--actions", 4)
    job = run_python(*DOCTOR, *words, env=troubles, status=1)
    found = {finding["check"]: finding for finding in data_of(job)["findings"]}
    statuses = {check: finding["status"] for check, finding in found.items()}
    assert statuses["library and mpirun"] == statuses["checkpoint folder"] == "failure"
    assert statuses["threads"] == statuses["numba's cache"] == "warning"
    assert str(other) in found["library and mpirun"]["found"]
    assert all(finding["remedy"] for finding in found.values() if finding["status"] != "ok")
    # What is well is found to be so by trying it.
    assert statuses["MPI library"] == statuses["ranks"] == statuses["memory"] == statuses["training"] == "ok"
    survives = bool(survival_words(find_launcher()))
    assert statuses["survives a death"] == ("ok" if survives else "warning")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bin", "file"]


def test_profile_starts_ranks_and_measures(run_python):
    job = run_python(*PROFILE, "--ranks", 2)
    measured = data_of(job)["measurements"]
    messages = [each for each in measured if each["operation"] == "point-to-point"]
    assert [(each["ranks"], each["bytes"]) for each in messages] == [([0, 1], 8), ([0, 1], 65536)]
    assert {each["operation"] for each in measured} > {"bcast", "allreduce", "gather"}
    assert all(0.0 < each["fastest"] <= each["seconds"] for each in measured)
    assert all(each["bandwidth"] == pytest.approx(each["bytes"] / each["seconds"]) for each in measured)


def test_profile_in_a_job_measures_that_one(run_python):
    job = run_python(*PROFILE, ranks=2)
    assert data_of(job)["hosts"] == [data_of(job)["hosts"][0]] * 2
    assert job.output.count('"measurements"') == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_doctor_that_is_ended_leaves_nothing(tmp_path, number):
    work, temporary = tmp_path / "work", tmp_path / "tmp"
    work.mkdir()
    temporary.mkdir()
    agent = tmp_path / "agent"
    agent.write_text(
        f"#!/bin/sh\necho $$ > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/pid; exec sleep 600\n"
    )
    agent.chmod(0o755)
    (tmp_path / "hosts").write_text(f"{socket.gethostname()} slots=1\nfar slots=1\n")
    words = [*DOCTOR, "--hostfile", tmp_path / "hosts", "--agent", agent, "--checkpoint-dir", "saved/run"]
    with BackgroundJob(words, cwd=work, env={"TMPDIR": str(temporary)}) as job:
        job.must_wait_for((tmp_path / "pid").exists, "the question to the other host")
        job.must_wait_for(lambda: len(list(work.rglob("state"))) == 2, "both folders")
        job.send(number)
        job.wait(128 + number)
        assert not is_running(int((tmp_path / "pid").read_text()))
        assert list(work.iterdir()) == list(temporary.iterdir()) == []
        # What listens here for other hosts ends as well.
        deadline = time.monotonic() + 30.0
        while left := processes_of(job.job):
            assert time.monotonic() < deadline, left
            time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_profile_that_is_ended_leaves_nothing(tmp_path, number):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    words = [*PROFILE, "--ranks", 2, "--seconds", 600, "--iterations", 10**9]
    with BackgroundJob(words, cwd=tmp_path, env={"TMPDIR": str(temporary)}) as job:
        job.must_wait_for(lambda: len(processes_of(job.job)) > 3, "ranks")
        job.send(number)
        job.wait(128 + number)
        assert processes_of(job.job) == []
        assert [path.name for path in temporary.iterdir()] == []
