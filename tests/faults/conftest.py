"""Deaths and stops of ranks, while whole programs train; see also the programs in this folder."""

from __future__ import annotations

import pytest
from fault_jobs import why_not


@pytest.fixture(scope="session", autouse=True)
def apart(files_of_mpirun):
    """Let processes that run at the same time not disturb each other's jobs."""


@pytest.fixture(scope="session")
def survivable():
    """Skip a test where the MPI at hand ends every rank when one dies."""
    if reason := why_not():
        pytest.skip(reason)
