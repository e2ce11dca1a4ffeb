"""The default step sizes and exploration learn: judged by the exact value of the greedy policy.

benchmarks/defaults.py does the same over many problems, numbers of steps and of ranks.
"""

from pathlib import Path

import numpy as np
import pytest

from dist_classicrl import DistAsyncQLearning, TabularMDP
from dist_classicrl.environments import registry
from dist_classicrl.evaluation.exact import exact_value
from dist_classicrl.schedules import Exponential, Linear, PerVisit
from dist_classicrl.settings import Settings

DISCOUNT = 0.99
LAKE, TAXI, GARNET, CARDS = "FrozenLake 8x8", "Taxi", "Garnet", "Blackjack"
MODELS = {
    LAKE: lambda: TabularMDP.from_gymnasium("FrozenLake8x8-v1"),
    TAXI: lambda: TabularMDP.from_gymnasium("Taxi-v4"),
    GARNET: lambda: TabularMDP.garnet(100, 4, 5, seed=0),
    CARDS: lambda: registry()["dist_classicrl/Blackjack-v0"].make(),
}


def gaps(name, steps, seeds, **settings):
    """Return what agents of so many seeds lack to the optimum, as shares of its size."""
    model, found = MODELS[name](), []
    for seed in range(seeds):
        agent = DistAsyncQLearning(seed=seed, discount_factor=DISCOUNT, **settings)
        agent.train(model, total_steps=steps)
        found.append(exact_value(model, agent.q_table, DISCOUNT).relative_gap)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, steps, seeds, most",
    [(LAKE, 1_000_000, 6, 0.03), (TAXI, 100_000, 2, 0.05), (GARNET, 100_000, 2, 0.1)],
)
def test_defaults_learn_where_constants_did_not(name, steps, seeds, most):
    assert np.mean(gaps(name, steps, seeds)) < most
    assert np.mean(gaps(name, steps, seeds, learning_rate=0.1, epsilon=0.1)) > most


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"dtype": "float32"},
        {"replay_ratio": 0.5},
        {"async_updates": False, "logical_workers": 4},
        {"compression_threshold": 1e-3},
    ],
    ids=str,
)
def test_defaults_learn_with_other_settings(settings):
    assert np.mean(gaps(GARNET, 300_000, 2, **settings)) < 0.06


@pytest.mark.slow
def test_defaults_learn_in_the_reproducible_mode():
    assert np.mean(gaps(LAKE, 5_000_000, 4, async_updates=False)) < 0.02


@pytest.mark.slow
@pytest.mark.parametrize("exponent", [0.7, 1.0])
def test_short_noisy_returns_are_averaged_from_the_first_visit_on(exponent):
    """As docs/tuning.md advises."""
    averaged = np.mean(gaps(CARDS, 200_000, 4, learning_rate=PerVisit(exponent)))
    assert averaged < 0.2 and 2.0 * averaged < np.mean(gaps(CARDS, 200_000, 4))


def test_differences_of_many_seeds_are_judged_by_labels_that_are_drawn(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "benchmarks"))
    from defaults import LABELINGS, bandits, chance_of_difference

    assert chance_of_difference([1.0, 2.0], [0.0, 0.5]) == 1 / 6  # all six labelings
    few, many = np.random.default_rng(1).normal(size=(2, 6)), np.random.default_rng(1).normal(size=(2, 40))
    exact = chance_of_difference(*few.tolist())
    monkeypatch.setattr("defaults.LABELINGS", 500)
    assert chance_of_difference(*few.tolist()) == pytest.approx(exact, abs=0.1)
    assert 1 / (LABELINGS + 1) <= chance_of_difference((many[0] + 9.0).tolist(), many[1].tolist()) < 0.01
    assert bandits().n_states == 20 and bandits().solve(1.0).v.min() > 0.0


def test_more_steps_come_closer():
    means = [np.mean(gaps(LAKE, steps, 4)) for steps in (100_000, 1_000_000, 5_000_000)]
    assert means[0] > means[1] > means[2] and means[2] < 0.005


def test_defaults_are_schedules_of_the_settings():
    agent = DistAsyncQLearning()
    assert agent.settings.schedules == Settings().schedules
    assert agent.learning_rate == PerVisit(0.7, scale=0.5, offset=100)
    assert agent.settings.epsilon == Linear(1.0, 0.1, fraction=0.5) and agent.epsilon == 1.0
    # Values that are given stay as they are, one without the other.
    assert DistAsyncQLearning(epsilon=0.2).learning_rate == agent.learning_rate
    assert DistAsyncQLearning(learning_rate=0.2).settings.epsilon == agent.settings.epsilon


def test_a_schedule_of_another_agent_is_one_of_the_next_call():
    one, other = DistAsyncQLearning(seed=1), DistAsyncQLearning(seed=1)
    one.train("FrozenLake-v1", total_steps=1_000)
    other.train("FrozenLake-v1", total_steps=5_000)
    assert one.settings.epsilon.call == (0, 1_000)
    other.epsilon = one.settings.epsilon
    assert other.settings.epsilon.call is None and other.epsilon == 1.0
    other.learning_rate = Exponential(0.5, 0.1, fraction=1.0, call=(0, 7))
    assert other.settings.learning_rate.call is None
    other.train("FrozenLake-v1", total_steps=2_000)
    assert other.settings.epsilon.call == (5_000, 2_000)


def test_after_a_call_that_was_ended_early_the_next_one_explores_as_at_the_end():
    agent = DistAsyncQLearning(seed=1)
    seen = []
    agent.train("FrozenLake-v1", total_steps=10**6, callbacks=lambda told: told["num_timesteps"] < 20_000)
    assert agent.steps < 100_000 and agent.epsilon > 0.8
    agent.train("FrozenLake-v1", total_steps=1_000, progress=lambda report: seen.append(report.epsilon))
    assert set(seen) == {0.1}
