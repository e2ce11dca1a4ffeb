"""`doctor` and `profile` as they are typed, with the real mpirun."""

import json
import os

import pytest

from dist_classicrl.distributed.launcher import find_launcher, survival_words

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
    assert statuses["MPI library"] == statuses["ranks"] == statuses["memory"] == "ok"
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
