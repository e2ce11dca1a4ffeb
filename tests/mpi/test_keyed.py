"""Games whose states are keys: one process learns them, and several ranks are told so, each of them."""

from typing import NamedTuple

import numba
import numpy as np
import pytest

from dist_classicrl import CompiledSimulator
from dist_classicrl.errors import SettingsError


class Data(NamedTuple):
    most: int


@numba.njit
def reset(data, memory, random):
    return np.int64(random % np.uint64(100))


@numba.njit
def step(data, memory, key, action, random):
    return key + action, 1.0, key > data.most


def game():
    return CompiledSimulator.game(
        "keys", n_actions=2, data=Data(100), reset=reset, step=step, keyed=True, max_episode_steps=10
    )


@pytest.mark.parametrize("settings", [{}, {"async_updates": False}])
def test_several_ranks_are_refused_on_each(make_agent, world, settings):
    agent = make_agent(**settings)
    if world.size > 1:
        with pytest.raises(SettingsError, match=f"{world.size} ranks cannot be had.*Start one process"):
            agent.train(game(), total_steps=1000)
    elif settings:
        with pytest.raises(SettingsError, match="async_updates=False cannot be had"):
            agent.train(game(), total_steps=1000)
    else:
        agent.train(game(), total_steps=1000)
        assert agent.steps == 1000
    agent = make_agent(**settings)
    agent.train("FrozenLake-v1", total_steps=2000)  # nobody waits for anybody
    assert agent.steps == 2000
