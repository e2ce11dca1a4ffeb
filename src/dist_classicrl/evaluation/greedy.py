"""Episodes under the greedy policy of a table, in one jitted loop."""

from __future__ import annotations

import numpy as np

from dist_classicrl._jit import jit
from dist_classicrl._random import GAMMA, mix
from dist_classicrl.environments.simulate import advance, begin
from dist_classicrl.tables.rows import actions_of, pick_among_best


@jit
def play_greedily(simulation, memory, time_limit, table, key, returns, lengths):
    """Play greedy episodes of random stream `key`, into `returns` and `lengths`.

    These are float64 and int64, both of shape (episodes,). Return how many came to no end of their own.
    """
    q, best, greedy = table.q, table.best, table.greedy
    n_actions = actions_of(table)
    counter = key
    cut_off = 0
    for episode in range(returns.size):
        counter += GAMMA
        state = np.int64(begin(simulation, memory, mix(counter)))
        collected = 0.0
        elapsed = 0
        while True:
            action = np.int64(greedy[state])
            counter += GAMMA
            if action < 0:
                action = pick_among_best(q, best[state], state * n_actions, n_actions, mix(counter))
            counter += GAMMA
            next_state, reward, terminated = advance(
                simulation, memory, state, action, mix(counter), n_actions
            )
            state = np.int64(next_state)
            collected += reward
            elapsed += 1
            if terminated:
                break
            if elapsed >= time_limit:
                cut_off += 1
                break
        returns[episode] = collected
        lengths[episode] = elapsed
    return cut_off
