"""What the best policy of an environment collects, where its model is known: a mark for learning curves."""

from __future__ import annotations

from typing import Any

import numpy as np

from dist_classicrl.environments.resolve import resolve
from dist_classicrl.errors import ConvergenceError
from dist_classicrl.evaluation import LONGEST_EPISODE
from dist_classicrl.evaluation.episodes import play_table

EPISODES = 10_000
MOST_STATES = 100_000  # a model of more takes long to solve


def best_return(env: Any, discount_factor: float, use_action_mask: bool | None = None) -> float | None:
    """Return the mean undiscounted return of the policy that is best with this discount factor, as played.

    `env` is what `train` takes. None where its model is not known or too large, or a value is infinite.
    """
    source = resolve(env, 1, use_action_mask)
    source.close()
    simulator = source.simulator
    if simulator is None or simulator.model is None or simulator.model.n_states > MOST_STATES:
        return None
    try:
        policy = simulator.model.solve(discount_factor).policy
    except ConvergenceError:
        return None
    # One action a state: of actions with equal values at discount factor 1, some never come to an end.
    best = (policy[:, None] == np.arange(simulator.model.n_actions)).astype(np.float64)
    return play_table(simulator, best, EPISODES, 0, LONGEST_EPISODE).mean_return
