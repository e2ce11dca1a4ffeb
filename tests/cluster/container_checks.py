"""What tests of containers look at."""

from __future__ import annotations

import json
import stat

import numpy as np
import pytest

from dist_classicrl.distributed.processes import run_job

SECONDS = 120.0


def run(container, *words, status=0):
    """Run a program in a container, check its exit status, and give all that it wrote."""
    job = run_job(container.command(words), timeout=SECONDS)
    assert job.returncode == status, job.output
    return job.output


def check_run(folder, steps):
    """Check that a run made exactly these steps and found the best policy."""
    assert json.loads((folder / "result.json").read_text())["steps"] == steps
    with np.load(folder / "model.npz", allow_pickle=False) as model:
        assert model["visits"].sum() == steps


def check_policy(container, run_name):
    """Check with the image's own program that the policy of a run of FrozenLake is the best one."""
    words = ("dist-classicrl", "evaluate", run_name, "--json", "--episodes", "10")
    exact = json.loads(run(container, *words))["exact"]
    assert abs(exact["relative_gap"]) < 1e-3
    assert exact["optimum"] == pytest.approx(0.54202593, abs=1e-6)


def gives_rights(path):
    """Whether who runs a program gets the rights of its owner or group."""
    found = path.lstat()
    return stat.S_ISREG(found.st_mode) and bool(found.st_mode & (stat.S_ISUID | stat.S_ISGID))
