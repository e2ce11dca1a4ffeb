"""Models from the forms that people have them in: dense arrays, and Gymnasium's dictionary of transitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dist_classicrl.environments.model import TabularMDP
from dist_classicrl.errors import ActionMaskError, ModelError


def from_arrays(
    transition: Any, reward: Any, start_prob: Any, *, terminated: Any = None, **kwargs: Any
) -> TabularMDP:
    """Make a model from dense arrays of transitions.

    For a model that is too large for dense arrays, give its outcomes in compressed sparse row form to
    `TabularMDP`.

    Parameters
    ----------
    transition : array_like of float, shape (S, A, S)
        ``transition[s, a, t]`` is the probability that action `a` in state `s` leads to state `t`. A pair
        that the mask forbids may have zeros only.
    reward : array_like of float, shape (S, A, S) or (S, A)
        By transition, or by pair.
    start_prob : array_like of float, shape (S,)
    terminated : array_like of bool, shape (S, A, S) or (S,), optional
        Which transitions end the episode, or which states end it when they are reached. None: none does.
    **kwargs
        `max_episode_steps`, `action_mask`, `name` and `grid_shape`, as for `TabularMDP`.

    Returns
    -------
    TabularMDP

    Raises
    ------
    ModelError, RewardError, ActionMaskError
        As `TabularMDP` does.
    """
    probability = np.asarray(transition)
    if probability.ndim != 3 or probability.shape[0] != probability.shape[2]:
        raise ModelError(
            f"transition has shape {probability.shape}; it must have the shape (states, actions, states)"
        )
    S, A, _ = probability.shape
    rewards = np.asarray(reward)
    if rewards.shape == (S, A):
        rewards = rewards[:, :, None]
    elif rewards.shape != (S, A, S):
        raise ModelError(
            f"reward has shape {rewards.shape}; it must have shape ({S}, {A}, {S}) or ({S}, {A})"
        )
    ends = np.zeros(S, dtype=bool) if terminated is None else np.asarray(terminated)
    if ends.shape not in {(S,), (S, A, S)} or ends.dtype.kind != "b":
        raise ModelError(
            f"terminated has shape {ends.shape} and dtype {ends.dtype}; it must be an array of bool with "
            f"shape ({S}, {A}, {S}) or ({S},)"
        )
    # NaN and negative numbers are kept for the model's own check, which names the error.
    pair, follow = np.nonzero(probability.reshape(S * A, S))
    pointer = np.zeros(S * A + 1, dtype=np.int64)
    np.cumsum(np.bincount(pair, minlength=S * A), out=pointer[1:])
    return TabularMDP(
        n_states=S,
        n_actions=A,
        outcome_ptr=pointer,
        outcome_prob=probability.reshape(S * A, S)[pair, follow],
        outcome_next=follow,
        outcome_reward=np.broadcast_to(rewards, (S, A, S)).reshape(S * A, S)[pair, follow],
        outcome_terminated=np.broadcast_to(ends, (S, A, S)).reshape(S * A, S)[pair, follow],
        start_prob=start_prob,
        **kwargs,
    )


def from_dict(
    P: Mapping[int, Any] | Sequence[Any],
    start_prob: Any,
    *,
    n_actions: int | None = None,
    action_mask: Any = None,
    **kwargs: Any,
) -> TabularMDP:
    """Make a model from transitions in the form of Gymnasium's toy-text environments.

    Parameters
    ----------
    P : mapping or sequence
        ``P[s][a]`` is a list of tuples (probability, next state, reward, terminated), for the states 0 to S
        - 1. A pair that is missing or has an empty list is illegal.
    start_prob : array_like of float, shape (S,)
    n_actions : int, optional
        The number of actions. None: one more than the largest action in `P`.
    action_mask : array_like of bool, shape (S, A), optional
        True where an action is legal. None: legal are the pairs that have outcomes.
    **kwargs
        `max_episode_steps`, `name` and `grid_shape`, as for `TabularMDP`.

    Returns
    -------
    TabularMDP

    Raises
    ------
    ModelError, RewardError, ActionMaskError
        As `TabularMDP` does, and ModelError where the keys of `P` are not 0 to S - 1 and 0 to A - 1, or an
        outcome is not a tuple of four.
    """
    by_state = [_keyed(row) for row in _in_order(P)]
    used = [action for row in by_state for action in row]
    A = n_actions if n_actions is not None else 1 + max(used, default=0)
    counts: list[int] = []
    outcomes: list[tuple[Any, Any, Any, Any]] = []
    for s, row in enumerate(by_state):
        unknown = [action for action in row if action not in range(A)]
        if unknown:
            raise ModelError(f"P[{s}] has an action {unknown[0]!r}; actions are 0 to {A - 1}")
        for a in range(A):
            listed = row.get(a, ())
            for outcome in listed:
                if len(outcome) != 4:
                    raise ModelError(
                        f"P[{s}][{a}] has the outcome {outcome!r}; an outcome is "
                        "(probability, next state, reward, terminated)"
                    )
            outcomes.extend(listed)
            counts.append(len(listed))
    columns: Any = zip(*outcomes, strict=True) if outcomes else ((), (), (), ())
    prob, follow, reward, ends = columns
    listed_pairs = np.array(counts).reshape(len(by_state), A) > 0
    if action_mask is None:
        action_mask = None if listed_pairs.all() else listed_pairs
    elif np.shape(action_mask) != listed_pairs.shape:
        raise ActionMaskError(
            f"action_mask has shape {np.shape(action_mask)}; P has {len(by_state)} states and {A} actions"
        )
    return TabularMDP(
        n_states=len(by_state),
        n_actions=A,
        outcome_ptr=np.concatenate(([0], np.cumsum(counts))),
        outcome_prob=prob,
        outcome_next=follow,
        outcome_reward=reward,
        outcome_terminated=ends,
        start_prob=start_prob,
        action_mask=action_mask,
        **kwargs,
    )


def _keyed(row: Mapping[int, Any] | Sequence[Any]) -> Mapping[int, Any]:
    return row if isinstance(row, Mapping) else dict(enumerate(row))


def _in_order(P: Mapping[int, Any] | Sequence[Any]) -> list[Any]:
    """Return the rows of `P` by state, refusing keys that are not 0 to S - 1."""
    keyed = _keyed(P)
    missing = [s for s in range(len(keyed)) if s not in keyed]
    if missing or not keyed:
        given = sorted(keyed, key=repr)[:5]
        raise ModelError(
            f"P has {len(keyed)} states, whose keys must be 0 to {len(keyed) - 1}; they begin with {given}"
        )
    return [keyed[s] for s in range(len(keyed))]
