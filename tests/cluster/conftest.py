"""Test beds made on this machine; a test whose bed cannot be had here is skipped, and says why."""

from __future__ import annotations

import fault_jobs
import hosts as emulated
import pytest
import slurm_cluster
import slurm_jobs
from hosts import Hosts


@pytest.fixture(scope="session")
def possible():
    """Skip a test where no hosts can be emulated."""
    if reason := emulated.why_not():
        pytest.skip(f"No hosts can be emulated: {reason}.")


@pytest.fixture(scope="session")
def survivable():
    """Skip a test where the MPI at hand ends every rank when one dies."""
    if reason := fault_jobs.why_not():
        pytest.skip(reason)


@pytest.fixture
def three_hosts(possible):
    """Three hosts, h1 to h3, which live as long as the test."""
    with Hosts(3) as hosts:
        yield hosts


@pytest.fixture(scope="session")
def slurm_possible():
    """Skip a test where there can be no SLURM, or it cannot run the jobs of these tests."""
    if reason := slurm_cluster.why_not() or slurm_jobs.why_not():
        pytest.skip(f"There can be no SLURM: {reason}.")
