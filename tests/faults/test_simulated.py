"""Random histories of deaths, hangs and cuts over the protocol; `simulated` runs them by the thousand."""

from __future__ import annotations

import random

import pytest
import simulated


@pytest.mark.core
@pytest.mark.parametrize("seeds", ["known", "fresh"])
@pytest.mark.parametrize(("name", "histories"), [("elections", 10), ("calls", 50), ("rounds", 30)])
def test_whatever_happens_to_ranks_and_network_no_rule_is_broken(name, histories, seeds):
    first = random.SystemRandom().randrange(10**9) if seeds == "fresh" else 1
    seed, wrong, _ = simulated.check_seeds(name, range(first, first + histories))
    assert not wrong, f"python tests/faults/simulated.py --kinds {name} --tell {seed}: " + "; ".join(wrong)


@pytest.mark.core
def test_a_seed_gives_the_same_history_every_time():
    def logged():
        history = simulated.HISTORIES["calls"](5, log=True)
        history.check()
        return history.network.log

    assert logged() == logged()
