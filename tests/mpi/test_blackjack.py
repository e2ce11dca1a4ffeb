"""Gymnasium's Blackjack, whose hidden hand each walker keeps, learned by several ranks."""

import numpy as np
import pytest

from dist_classicrl.schedules import PerVisit


@pytest.mark.parametrize(
    ("settings", "placement"),
    [
        ({}, "replicated"),
        ({}, "sharded"),
        ({"async_updates": False}, "replicated"),
        ({"async_updates": False}, "sharded"),
    ],
)
def test_ranks_learn_it_together(make_agent, settings, placement):
    agent = make_agent(seed=3, discount_factor=1.0, learning_rate=PerVisit(1.0), epsilon=1.0, **settings)
    agent.train("Blackjack-v1", total_steps=400_000, placement=placement)
    assert agent.steps >= 400_000 and agent.q_table.shape == (704, 2)
    assert agent.predict((20, 10, 0)) == 0 and agent.predict((11, 10, 0)) == 1
    # To stick with 20 does not depend on what is hidden, and its value is a mean of rewards within -1 and 1.
    state = (20 * 11 + 10) * 2
    bound = 5 / np.sqrt(agent.visits[state, 0])
    assert agent.q_table[state, 0] == pytest.approx(0.434958, abs=bound)
