"""Episodes under the greedy policy of a table, in one jitted loop."""

from __future__ import annotations

import numpy as np

from dist_classicrl._jit import jit
from dist_classicrl._random import GAMMA, mix
from dist_classicrl.environments.simulate import advance, begin, is_wrong, note, tell_wrong
from dist_classicrl.learning.keyed_game import name_of, row_of
from dist_classicrl.tables.rows import actions_of, any_greedy_action, greedy_action


@jit
def play_greedily(simulation, memory, time_limit, table, key, returns, lengths, cut_off, came):
    """Play greedy episodes of random stream `key`, into `returns` and `lengths`.

    These are float64 and int64, both of shape (episodes,). `cut_off`, int64 of shape (1,), counts those that
    came to no end of their own. Return whether a game gave what it must not: `came` tells it, see
    `dist_classicrl.environments.simulate.note`, and the first of `returns` is the reward.
    """
    n_actions = actions_of(table)
    counter = key
    for episode in range(returns.size):
        counter += GAMMA
        note(simulation, came, -1, -1)
        state = np.int64(begin(simulation, memory, mix(counter)))
        if is_wrong(simulation, state, 0.0, table.n_states):
            came[0], came[1], came[2] = -1, -1, state
            return True
        collected = 0.0
        elapsed = 0
        while True:
            action = greedy_action(table, state)
            counter += GAMMA
            if action < 0:
                action = any_greedy_action(table, state, mix(counter))
            counter += GAMMA
            note(simulation, came, state, action)
            next_state, reward, terminated = advance(
                simulation, memory, state, action, mix(counter), n_actions
            )
            if is_wrong(simulation, np.int64(next_state), reward, table.n_states):
                tell_wrong(came, name_of(simulation, state), action, next_state)
                returns[0] = reward
                return True
            if not terminated:
                state = np.int64(row_of(simulation, memory, next_state))
            collected += reward
            elapsed += 1
            if terminated:
                break
            if elapsed >= time_limit:
                cut_off[0] += 1
                break
        returns[episode] = collected
        lengths[episode] = elapsed
    return False


@jit
def begin_each(simulation, memories, counters, states, n_states, came):
    """Begin an episode in each row of `memories`; return whether a game gave what it must not."""
    for i in range(states.size):
        counters[i] += GAMMA
        note(simulation, came, -1, -1)
        states[i] = np.int64(begin(simulation, memories[i], mix(counters[i])))
        if is_wrong(simulation, states[i], 0.0, n_states):
            came[0], came[1], came[2] = -1, -1, states[i]
            return True
    return False


@jit
def move_each(simulation, memories, counters, states, running, table, n_states, came, returns):
    """Let each of those that are `running` make its best step, whose row is the one of its place there.

    `returns` are the rewards. Who comes to an end has state -1 afterwards.
    """
    n_actions = actions_of(table)
    for place in range(running.size):
        i = running[place]
        action = greedy_action(table, place)
        counters[i] += GAMMA
        if action < 0:
            action = any_greedy_action(table, place, mix(counters[i]))
        counters[i] += GAMMA
        note(simulation, came, states[i], action)
        next_state, reward, terminated = advance(
            simulation, memories[i], states[i], action, mix(counters[i]), n_actions
        )
        if is_wrong(simulation, np.int64(next_state), reward, n_states):
            tell_wrong(came, states[i], action, next_state)
            returns[0] = reward
            return True
        returns[i] = reward
        states[i] = np.int64(-1) if terminated else np.int64(next_state)
    return False
