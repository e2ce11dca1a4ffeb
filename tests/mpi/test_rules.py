"""Rules of the package that remember, and behaviors that know their worker, on many ranks."""

import numpy as np
import pytest

from dist_classicrl import TabularMDP
from dist_classicrl.errors import RemoteRankError, SettingsError
from dist_classicrl.learning.rules import find
from dist_classicrl.rules import Boltzmann, EpsilonLadder, MonteCarlo
from dist_classicrl.schedules import Exponential, PerVisit

DISCOUNT = 0.9
MODEL = TabularMDP.garnet(8, 2, 2, seed=1)
"""That of the unit tests, for which all rules are compiled already."""

CHANCES = np.random.default_rng(3).dirichlet((2.0, 2.0), 8)


@pytest.fixture
def make(make_agent):
    """Give a function that makes an agent with a rule."""

    def made(algorithm, **settings):
        usual = {"epsilon": 0.3, "discount_factor": DISCOUNT, "learning_rate": PerVisit(0.7)}
        return make_agent(algorithm=algorithm, **(usual | settings))

    return made


@pytest.mark.parametrize("name", ["q_lambda", "td", "dyna_q", "prioritized_sweeping"])
def test_all_ranks_together_learn_the_truth(world, make, name):
    """A model of each worker's own, and steps that wait, make no other table."""
    behavior = CHANCES if name == "td" else "epsilon_greedy"
    agent = make(name, behavior=behavior)
    agent.train(MODEL, total_steps=2_000_000)
    rule, parameters = find(name)
    assert np.abs(agent.q_table - rule.truth(MODEL, parameters, agent.settings)).max() < 0.15
    assert len(set(world.allgather(agent.q_table.tobytes()))) == 1


@pytest.mark.parametrize(
    "algorithm, behavior",
    [
        (MonteCarlo(longest=7), CHANCES),
        ("dyna_q", EpsilonLadder(3.0)),
        ("prioritized_sweeping", "epsilon_greedy"),
        ("ucb_q_learning", "epsilon_greedy"),
        ("q_learning", Boltzmann(Exponential(2.0, 0.1, fraction=0.5))),
    ],
    ids=["monte_carlo", "dyna_q", "prioritized_sweeping", "ucb_q_learning", "temperature"],
)
def test_in_the_reproducible_mode_any_number_of_ranks_and_a_stop_change_nothing(
    alone, make, folder, restart, algorithm, behavior
):
    settings = {"behavior": behavior, "async_updates": False, "logical_workers": 3, "sync_frequency": 5}
    straight = make(algorithm, **settings, comm=alone)
    for steps in (9_000, 11_001):
        straight.train(MODEL, total_steps=steps)
    first = make(algorithm, **settings)
    first.train(MODEL, total_steps=9_000, checkpoint_dir=folder)
    restart()
    resumed = make(algorithm, **settings)
    resumed.train(MODEL, total_steps=9_000, checkpoint_dir=folder)
    resumed.train(MODEL, total_steps=11_001, checkpoint_dir=folder)
    assert resumed.steps == straight.steps == 20_001
    np.testing.assert_array_equal(resumed.visits, straight.visits)
    np.testing.assert_array_equal(resumed.q_table, straight.q_table)


def test_a_policy_that_does_not_fit_on_one_rank_is_refused_on_all(world, make):
    agent = make("td", behavior=CHANCES[: 7 if world.rank == 0 else 8])
    with pytest.raises((SettingsError, RemoteRankError), match=r"has the shape \(7, 2\), and .* needs"):
        agent.train(MODEL, total_steps=100)


def test_a_call_ends_after_so_many_episodes_of_all_ranks(world, make):
    """Ranks hold no more steps than the missing episodes take, by the length of those that have ended."""
    agent = make("q_learning", exploring_starts=True)
    result = agent.train(MODEL, total_steps=10**10, total_episodes=1_000)
    assert 1_000 <= result.episodes <= 1_200
    assert agent.steps == result.steps and len(set(world.allgather(result.steps))) == 1
