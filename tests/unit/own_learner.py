"""A learner as somebody would write it outside the package, in plain Python: slow, and easy to follow."""

from contextlib import contextmanager

import numpy as np

from dist_classicrl import TabularMDP
from dist_classicrl.learning.kinds import LearnerKind, register, unregister
from dist_classicrl.learning.learner import Totals
from dist_classicrl.learning.state import check_arrays, check_range

MODEL = TabularMDP.garnet(6, 2, 2, seed=1)


class PlainLearner:
    """Q-learning in `MODEL`, with a constant step size; see `dist_classicrl.learning.learner.Learner`."""

    quantum = 1

    def __init__(self, problem):
        self.table = problem.table
        self.totals = Totals()
        self._rates = problem.rates
        self._discount = problem.settings.discount_factor
        self._positions = {}  # state and steps of the episode, by walker

    @property
    def walkers(self):
        return list(self._positions)

    def add(self, number, source, seed):
        self._positions[number] = np.array([0, 0])

    def learn(self, walker, stream, steps):
        for _ in range(steps):
            self._step(self._positions[walker], stream)
            stream.used += 1

    def _step(self, position, stream):
        # What happens depends on the stream and the place in it alone, however the steps are cut into calls.
        random = np.random.default_rng([int(stream.key), stream.used])
        alpha, epsilon, _ = self._rates.at(stream.start + stream.used)
        n_actions, state = self.table.n_actions, position[0]
        row = self.table.q[state * n_actions : (state + 1) * n_actions]
        action = random.integers(n_actions) if random.random() < epsilon.value else int(row.argmax())
        pair = state * n_actions + action
        outcomes = slice(MODEL.outcome_ptr[pair], MODEL.outcome_ptr[pair + 1])
        chosen = outcomes.start + random.choice(
            outcomes.stop - outcomes.start, p=MODEL.outcome_prob[outcomes]
        )
        reward, after = MODEL.outcome_reward[chosen], MODEL.outcome_next[chosen]
        target = reward + self._discount * self.table.best[after]
        self.totals.values[3] += abs(target - row[action])
        self._update(pair, alpha.value, target)
        position[:] = after, position[1] + 1
        if position[1] == MODEL.max_episode_steps:
            self.totals.values[:3] += 1, 0.0, position[1]
            position[:] = 0, 0

    def _update(self, entry, alpha, target):
        """Move an entry towards a target, and note the affine map that does the same elsewhere."""
        table = self.table
        if table.updates[entry] == 0:
            table.touched[table.n_touched[0]] = entry
            table.n_touched[0] += 1
        table.updates[entry] += 1
        table.q[entry] += alpha * (target - table.q[entry])
        table.weight[entry] *= 1.0 - alpha
        table.shift[entry] += alpha * (target - table.shift[entry])
        state = entry // table.n_actions
        row = table.q[state * table.n_actions : (state + 1) * table.n_actions]
        table.best[state] = row.max()
        table.greedy[state] = row.argmax() if (row == row.max()).sum() == 1 else -1

    def state(self, walker):
        return {"place": self._positions[walker].copy()}

    def restore(self, walker, state):
        check_arrays(state, self.state(walker), {})
        check_range("place", state["place"][:1], 0, MODEL.n_states - 1)
        self._positions[walker] = state["place"].copy()

    def close(self):
        pass


@contextmanager
def registered():
    """Let what is trained in `MODEL` be learned by `PlainLearner`."""
    kind = LearnerKind("plain", lambda problem: problem.source.n_states == MODEL.n_states, PlainLearner)
    register(kind)
    try:
        yield
    finally:
        unregister(kind)
