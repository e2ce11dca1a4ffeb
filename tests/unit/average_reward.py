"""The best mean reward per step of a model, by Howard's policy iteration: the truth where nothing ends."""

import numpy as np


def best_gain(model, policy=None):
    """Return the gain, the relative values and the policy, for a model whose policies have one class each.

    `policy`: evaluate this one instead.
    """
    S, A = model.n_states, model.n_actions
    assert model.action_mask is None and not model.outcome_terminated.any()
    first, weight, follow = model.outcome_ptr[:-1], model.outcome_prob, model.outcome_next
    reward = np.add.reduceat(weight * model.outcome_reward, first)
    state = np.arange(S)
    improve = policy is None
    policy = reward.reshape(S, A).argmax(axis=1) if improve else policy
    while True:
        pairs = state * A + policy
        sizes = model.outcome_ptr[pairs + 1] - model.outcome_ptr[pairs]
        which = np.repeat(first[pairs], sizes) + np.concatenate([np.arange(size) for size in sizes])
        matrix = np.eye(S)
        np.subtract.at(matrix, (np.repeat(state, sizes), follow[which]), weight[which])
        matrix[:, 0] = 1.0  # the value of state 0 is 0, and in its place stands the gain
        values = np.linalg.solve(matrix, reward[pairs])
        gain, values[0] = values[0], 0.0
        if not improve:
            return gain, values, policy
        q = (reward + np.add.reduceat(weight * values[follow], first)).reshape(S, A)
        better = q.max(axis=1) > q[state, policy] + 1e-9
        if not better.any():
            return gain, values, policy
        policy = np.where(better, q.argmax(axis=1), policy)
