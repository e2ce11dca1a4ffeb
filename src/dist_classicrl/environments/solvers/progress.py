"""Policies that get somewhere: at discount factor 1 not every policy whose actions look good is paid."""

from __future__ import annotations

import numpy as np

from dist_classicrl.environments import reachability
from dist_classicrl.environments.solvers.rows import OngoingRows


def progressing_policy(
    rows: OngoingRows, optimal: np.ndarray, worthless: np.ndarray, policy: np.ndarray
) -> np.ndarray:
    """Choose among the optimal pairs, bool, shape (S, A), so that every value is really collected.

    First find the states where one can go on for ever at no reward and lose nothing, since their value is
    0. Then, from these and from the transitions that terminate, work backwards: a state takes the optimal
    action that leads with the largest probability to where the ones before it lead.
    """
    policy = policy.copy()
    row = reachability.rows_of(rows.pointer)
    free = optimal & (rows.reward == 0.0).reshape(optimal.shape)
    settled = worthless & free.any(axis=1)
    while True:
        leaving = np.bincount(row, weights=~settled[rows.follow], minlength=optimal.size) > 0
        staying = free & ~leaving.reshape(optimal.shape)
        remaining = settled & staying.any(axis=1)
        if (remaining == settled).all():
            break
        settled = remaining
    policy[settled] = staying[settled].argmax(axis=1)
    while True:
        arriving = np.bincount(row, weights=rows.weight * settled[rows.follow], minlength=optimal.size)
        chance = np.where(optimal, (arriving + rows.ends).reshape(optimal.shape), 0.0)
        most = chance.max(axis=1, keepdims=True)
        fresh = ~settled & (most[:, 0] > 0.0)
        if not fresh.any():
            return policy
        # The first of equal ones, whatever rounding made of their sums.
        policy[fresh] = (chance >= most * (1.0 - 1e-12))[fresh].argmax(axis=1)
        settled |= fresh
