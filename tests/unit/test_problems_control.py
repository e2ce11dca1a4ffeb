"""CartPole, MountainCar and Acrobot: step by step as Gymnasium's own, from the same place."""

import gymnasium
import numpy as np
import pytest

from dist_classicrl import DistAsyncQLearning
from dist_classicrl.environments.problems import control
from dist_classicrl.errors import SettingsError

pytestmark = pytest.mark.slow

GAMES = {
    "CartPole-v1": (control.cart_pole, control.reset_cart_pole, control.step_cart_pole),
    "MountainCar-v0": (control.mountain_car, control.reset_mountain_car, control.step_mountain_car),
    "Acrobot-v1": (control.acrobot, control.reset_acrobot, control.step_acrobot),
}


def bin_of(data, place):
    """Return the number of the bin that a place lies in, by NumPy."""
    edges = [
        low + width * np.arange(1, n) for n, low, width in zip(data.bins, data.low, data.width, strict=True)
    ]
    digits = [np.searchsorted(edge, value, side="right") for edge, value in zip(edges, place, strict=True)]
    return np.ravel_multi_index(digits, data.bins)


@pytest.mark.parametrize("name", GAMES)
def test_a_step_leads_where_gymnasiums_does(name):
    make, reset, step = GAMES[name]
    game = make()
    data, memory = game.tables, np.zeros(game.memory_size, np.int64)
    rng, env = np.random.default_rng(1), gymnasium.make(name).unwrapped
    env.reset(seed=1)
    limits = {"CartPole-v1": 0.05, "MountainCar-v0": 0.6, "Acrobot-v1": 0.1}
    state, ended, goes_on = -1, 0, False
    for moment in range(3_000):
        if not goes_on:
            state = reset(data, memory, rng.integers(1 << 63, dtype=np.uint64))
            assert np.abs(memory.view(float)).max() <= limits[name]
        assert state == bin_of(data, memory.view(float))
        # Swing more and more: the same action for a while, by chance, or the one that drives on.
        env.state = memory.view(float).copy()
        env.steps_beyond_terminated = None
        if name == "MountainCar-v0" and moment > 1_000:
            action = 2 if env.state[1] >= 0 else 0
        else:
            action = int(rng.integers(game.n_actions)) if moment % 7 == 0 or name == "CartPole-v1" else action
        state, reward, ends = step(data, memory, np.int64(state), np.int64(action), np.uint64(0))
        _, *expected = env.step(action)
        assert [reward, ends] == expected[:2]
        assert memory.view(float) == pytest.approx(np.array(env.state), abs=1e-12)
        ended += ends
        goes_on = not ends
    assert ended > 3


def test_starts_are_spread_evenly():
    game = control.cart_pole()
    memory = np.zeros(4, np.int64)
    places = []
    for random in np.random.default_rng(1).integers(1 << 64, size=4_000, dtype=np.uint64):
        control.reset_cart_pole(game.tables, memory, random)
        places.append(memory.view(float).copy())
    places = np.array(places)
    assert places.mean(axis=0) == pytest.approx(np.zeros(4), abs=5 * 0.1 / np.sqrt(12 * 4_000))
    assert places.var(axis=0) == pytest.approx(np.full(4, 0.1**2 / 12), rel=0.1)
    assert np.corrcoef(places.T) == pytest.approx(np.eye(4), abs=5 / np.sqrt(4_000))


def test_the_car_learns_to_get_out_of_the_valley():
    """Its docstring has the return that ten seeds reach; who never gets out has -200."""
    agent = DistAsyncQLearning(seed=1)
    agent.train("dist_classicrl/MountainCar-v0", total_steps=5_000_000)
    assert agent.evaluate("dist_classicrl/MountainCar-v0", episodes=100, seed=1).mean_return > -150


@pytest.mark.parametrize("bins", [(3, 3), (3, 3, 3, 0), (3, 3, 3, 2.5), 5, (3, 3, 3, 1_000), np.array(3)])
def test_wrong_bins_are_refused(bins):
    with pytest.raises(SettingsError, match="bins must be 4 whole numbers from 1 to 999"):
        control.acrobot(bins)


@pytest.mark.parametrize("make", [control.cart_pole, control.acrobot])
def test_too_many_bins_are_refused_by_their_name(make):
    with pytest.raises(SettingsError, match=r"bins=.* make 8,100,000,000 states, and at most 1,073,741,823"):
        make([300] * 4)
