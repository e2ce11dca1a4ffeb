"""Another environment than the table was learned in: every rank is told, and none waits."""

import numpy as np
import pytest

from dist_classicrl.errors import EnvMismatchError, RankMismatchError


@pytest.mark.core
@pytest.mark.parametrize("settings", [{}, {"async_updates": False}])
def test_every_rank_refuses_another_environment_and_goes_on_with_its_own(make_agent, settings):
    agent = make_agent(state_size=704, action_size=4, **settings)
    agent.train("FrozenLake-v1", total_steps=2_000)
    before = agent.q_table.copy()
    with pytest.raises(EnvMismatchError, match=r"FrozenLake-v1 .*2,000 steps.*new_env=True"):
        agent.train("CliffWalking-v1", total_steps=2_000)
    with pytest.raises(EnvMismatchError, match="Blackjack-v1"):
        agent.train("Blackjack-v1", total_steps=2_000)
    np.testing.assert_array_equal(agent.q_table, before)
    agent.train("FrozenLake-v1", total_steps=2_000)
    assert agent.steps == 4_000


def test_a_new_environment_is_agreed_on_by_all_ranks(make_agent, world):
    agent = make_agent(state_size=48, action_size=4)
    agent.train("FrozenLake-v1", total_steps=2_000)
    agent.train("CliffWalking-v1", total_steps=2_000, new_env=True)
    assert agent.steps == 4_000
    if world.size > 1:
        with pytest.raises(RankMismatchError, match="new_env"):
            agent.train("CliffWalking-v1", total_steps=2_000, new_env=world.rank == 0)


def test_a_checkpoint_tells_every_rank_what_was_trained_in(make_agent, folder, restart):
    sizes = {"state_size": 48, "action_size": 4}
    make_agent(**sizes).train("FrozenLake-v1", total_steps=2_000, checkpoint_dir=folder)
    restart()
    again = make_agent(**sizes)
    again.train("FrozenLake-v1", total_steps=2_000, checkpoint_dir=folder)
    with pytest.raises(EnvMismatchError, match="FrozenLake-v1"):
        again.train("CliffWalking-v1", total_steps=2_000, checkpoint_dir=folder)
