"""What tests of containers look at."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import numpy as np
import pytest
from container_roots import network_settings

from dist_classicrl.process.jobs import run_job

SECONDS = 600.0
ROOT = Path(__file__).resolve().parents[2]


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


def run_unit_tests(build, container, tools, files):
    """Run some files of tests/unit with an image's Python, and give what pytest says.

    pytest comes into the new folder `tools`, by the pip of the stage that builds, and not into the image.
    """
    tools.mkdir()
    env, mounts = network_settings()
    fetching = build.container(env=env, mounts={**mounts, "/dev/tools": str(tools)})
    install = (
        "/opt/tools/bin/pip",
        "install",
        "-q",
        "--target",
        "/dev/tools",
        "pytest>=9",
        "pytest-mpi>=0.6",
        "hypothesis>=6.100",
    )
    run(fetching, "env", "-u", "PIP_CONSTRAINT", *install)
    inside = container(
        cwd="/dev/checkout",
        env={"PYTHONPATH": "/dev/tools", "PYTHONDONTWRITEBYTECODE": "1"},
        mounts={
            "/dev/tools": f"ro:{tools}",
            "/dev/checkout/tests": f"ro:{ROOT / 'tests'}",
            "/dev/checkout/pyproject.toml": f"ro:{ROOT / 'pyproject.toml'}",
        },
    )
    chosen = [f"tests/unit/{name}" for name in files]
    return run(inside, "tini", "--", "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen)
