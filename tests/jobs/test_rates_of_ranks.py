"""The rates of a job of several ranks, as `bench --ranks` measures them."""

import sys

import pytest

from dist_classicrl.diagnosis import rates
from dist_classicrl.errors import LauncherError


def test_a_job_of_two_ranks_is_measured():
    (rate,) = rates.rates_of_ranks(2, 0.05, 2, [rates.FROZEN_LAKE])
    assert (rate.name, rate.workers, len(rate.runs)) == (rates.FROZEN_LAKE, 1, 2)
    assert rate.steps_per_second == pytest.approx(sum(rate.runs) / 2)
    assert rate.steps_per_second > 0.0 and 0.0 <= rate.communication_fraction <= 1.0


def test_a_job_that_fails_is_told(monkeypatch):
    monkeypatch.setattr(sys, "executable", "false")
    with pytest.raises(LauncherError, match="job of 2 ranks ended with status 1"):
        rates.rates_of_ranks(2, 0.05, 1)
