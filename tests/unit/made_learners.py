"""Learners as an engine makes them, and tables that learn a few transitions, for tests."""

import numpy as np

from dist_classicrl.environments.resolve import resolve
from dist_classicrl.learning.kinds import new_learner, problem_of
from dist_classicrl.learning.loops import Batch, Line, Stretch, learn_batch
from dist_classicrl.learning.memory import RuleMemory
from dist_classicrl.learning.rates import Rates
from dist_classicrl.learning.rules.q_learning import RULE, QLearning


def learner_of(env, settings, workers=1, walkers=(0,), n_envs=1):
    """Return a learner of `env` with walkers of these numbers.

    `workers`: the clock of per-visit step sizes runs at one over this many.
    """
    source = resolve(env, n_envs, None)
    learner = new_learner(problem_of(source, settings, Rates(settings, workers), np.dtype(settings.dtype)))
    for number in walkers:
        is_shared = source.simulator is not None or not learner.walkers
        learner.add(number, source if is_shared else source.another(), 1 + number)
    return learner


def context_of(table, discount, step_sizes=None, masks=None, walkers=1):
    """Return what the kernels need to learn by Q-learning in a table."""
    return RuleMemory(RULE, QLearning(), table, walkers).context(table, step_sizes, discount, masks)


def learn_transitions(table, entries, rewards, next_states, terminated, step_size, discount=0.9):
    """Learn transitions of one walker in order, by Q-learning."""
    states, actions = np.divmod(np.asarray(entries, np.int64), table.n_actions)
    n = states.size
    batch = Batch(
        np.zeros(n, np.int64),
        states,
        actions,
        np.asarray(next_states, np.int64),
        np.asarray(rewards, float),
        np.asarray(terminated, bool),
        np.zeros(n, bool),
    )
    stretch = Stretch(np.uint64(0), 0, n, Line(step_size, 0.0, 0), Line(0.0, 0.0, 0))
    learn_batch(QLearning(), batch, 0, context_of(table, discount), None, stretch, np.zeros(4))
