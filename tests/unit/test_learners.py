"""Learning in stepped environments: each transition once, in order, however leases cut the work."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from made_learners import learner_of

from dist_classicrl.learning.learner import Stream, Totals
from dist_classicrl.schedules import Linear
from dist_classicrl.settings import Settings

KEY = np.uint64(77)


class Ticker(gymnasium.Env):
    """One state, one action; the reward tells step and copy, and every `ends` steps an episode ends."""

    observation_space = spaces.Discrete(1)
    action_space = spaces.Discrete(1)

    def __init__(self, number, ends):
        self.number, self.ends, self.at = number, ends, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        self.at += 1
        ended = self.ends > 0 and self.at % self.ends == 0
        return 0, 10.0 * self.at + self.number, ended, False, {}


def rewards_in_order(n_envs):
    """Yield the rewards of all copies, step after step."""
    at = 1
    while True:
        for number in range(n_envs):
            yield 10.0 * at + number
        at += 1


@pytest.mark.parametrize("ends", [0, 5])
@pytest.mark.parametrize("kind", ["one by one", "vector"])
@pytest.mark.parametrize(("n_envs", "batch_size"), [(1, 4), (3, 8), (5, 2), (4, 4)])
def test_every_transition_is_learned_once_and_in_order(n_envs, batch_size, kind, ends):
    numbers = iter(range(n_envs))
    if kind == "vector":
        env = gymnasium.vector.SyncVectorEnv(
            [lambda number=number: Ticker(number, ends) for number in range(n_envs)],
            autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP,
        )
    else:

        def env():
            return Ticker(next(numbers), ends)

    settings = Settings(learning_rate=Linear(0.9, 0.1, 150), batch_size=batch_size, discount_factor=0.0)
    learner = learner_of(env, settings, n_envs=n_envs)
    table = learner.table
    rng = np.random.default_rng(n_envs)
    expected, used, total = 0.0, 0, 0
    rewards = rewards_in_order(n_envs)
    for start in (0, 100):  # two leases
        stream = Stream(KEY, start)
        used = 0
        for _ in range(12):
            steps = int(rng.integers(1, 3 * batch_size))
            learner.learn(0, stream, steps)
            for _ in range(steps):
                alpha = settings.learning_rate.at(start + used)
                expected += alpha * (next(rewards) - expected)
                used += 1
            assert stream.used == used
            assert table.q[0] == pytest.approx(expected, rel=1e-12)
        total += used
        assert table.updates[0] == total
    # All episodes of the transitions made are counted, whether these were learned yet or not.
    episodes, _, lengths = learner.totals.take()[:3]
    assert (episodes > 0) == (ends > 0) and lengths == episodes * ends
    learner.close()


class OneLegalAction(gymnasium.Env):
    """One state; a step gives -1; action 1 is illegal, as `info` tells at once or from the first step on."""

    observation_space = spaces.Discrete(1)
    action_space = spaces.Discrete(2)

    def __init__(self, told_at_once):
        self.told_at_once = told_at_once

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {"action_mask": np.array([1, 0], np.int8)} if self.told_at_once else {}

    def step(self, action):
        return 0, -1.0, False, False, {"action_mask": np.array([1, 0], np.int8)}


@pytest.mark.parametrize("told_at_once", [True, False])
@pytest.mark.parametrize("replay_ratio", [0.0, 4.0])
def test_replay_keeps_to_the_mask(replay_ratio, told_at_once):
    settings = Settings(
        learning_rate=0.3, discount_factor=0.5, replay_ratio=replay_ratio, buffer_size=10, batch_size=2
    )
    learner = learner_of(lambda: OneLegalAction(told_at_once), settings, n_envs=2)
    table = learner.table
    learner.learn(0, Stream(KEY, 0), 200)
    # Q = -1 + 0.5 Q. The illegal action's value, which is above that, must not count.
    assert table.q[0] == pytest.approx(-2.0, rel=1e-6)
    assert table.q[1] > table.q[0] + 0.1
    learner.close()


def test_totals_are_taken_once():
    totals = Totals()
    totals.values += (2, 3.5, 40, 0.5)
    assert totals.take().tolist() == [2.0, 3.5, 40.0, 0.5] and totals.take().tolist() == [0.0] * 4
