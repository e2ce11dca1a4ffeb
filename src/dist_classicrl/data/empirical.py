"""The model that logged transitions suggest: what followed a pair, as often as it did."""

from __future__ import annotations

import numpy as np

from dist_classicrl.data.transitions import Transitions
from dist_classicrl.environments.model import TabularMDP


def empirical_model(transitions: Transitions, n_states: int, n_actions: int) -> TabularMDP:
    """Return the model; actions that were never taken are illegal, and where none was it ends, worth 0.

    Its start distribution is that of the first states of episodes. DataError where the transitions do not fit
    into that size.
    """
    transitions.check_size(n_states, n_actions)
    pair = transitions.states * n_actions + transitions.actions
    acted = np.zeros(n_states, bool)
    acted[transitions.states] = True
    ends = transitions.terminated | ~acted[transitions.next_states]
    follow = 2 * transitions.next_states + ends
    order = np.lexsort((follow, pair))
    pair, follow, reward = pair[order], follow[order], transitions.rewards[order]
    first = np.flatnonzero(np.append(True, (np.diff(pair) != 0) | (np.diff(follow) != 0)))
    times = np.diff(np.append(first, pair.size))
    taken = np.bincount(pair, minlength=n_states * n_actions)
    outcomes = np.bincount(pair[first], minlength=n_states * n_actions)
    start = np.bincount(transitions.states[transitions.starts], minlength=n_states)
    return TabularMDP(
        n_states=n_states,
        n_actions=n_actions,
        outcome_ptr=np.append(0, np.cumsum(outcomes)),
        outcome_prob=times / taken[pair[first]],
        outcome_next=follow[first] >> 1,
        outcome_reward=np.add.reduceat(reward, first) / times,
        outcome_terminated=(follow[first] & 1).astype(bool),
        start_prob=start / start.sum(),
        action_mask=(taken > 0).reshape(n_states, n_actions),
        name="empirical model",
    )
