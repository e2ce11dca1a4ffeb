"""The checks of what a `TabularMDP` is made of; what they return is a copy that belongs to the model."""

from __future__ import annotations

from typing import Any

import numpy as np

from dist_classicrl.checks import WholeNumber, check_shown, is_real, is_whole
from dist_classicrl.environments import reachability
from dist_classicrl.errors import ActionMaskError, ModelError, RewardError

#: How far the probabilities of a pair, or of the start states, may be from adding up to 1.
PROBABILITY_TOLERANCE = 1e-8

#: Sums this near to 1 are rounding errors of a sum and are left alone, so that a model made from another
#: model's arrays has the same arrays, bit for bit, and with them the same fingerprint.
ROUNDING_TOLERANCE = 1e-12

_LIMIT = WholeNumber(1, "None for no time limit", bits=62)


def positive_int(name: str, value: Any, otherwise: str = "") -> int:
    """Return `value` as an int of at least 1; ModelError, which names `otherwise`, for others."""
    if not is_whole(value) or value < 1:
        hint = f", or {otherwise}" if otherwise else ""
        raise ModelError(f"{name} is {value!r}; it must be a whole number of at least 1{hint}")
    return int(value)


def as_array(name: str, value: Any) -> np.ndarray:
    """Return `value` as an array; ModelError where it is none, or hides some of its numbers."""
    check_shown(name, value, ModelError)
    try:
        return np.asarray(value)
    except Exception as error:  # objects may raise anything
        raise ModelError(f"{name} is no array: {error}") from error


def checked_state_values(value: Any, n_states: int) -> np.ndarray:
    """Return `value` as an array of one number per state; ModelError where it is none."""
    v = as_array("v", value)
    if v.shape != (n_states,) or v.dtype.kind not in "fiub":
        raise ModelError(
            f"v has shape {v.shape} and dtype {v.dtype}; it needs one value per state, "
            f"numbers of shape ({n_states},)"
        )
    return v


def checked_time_limit(value: Any) -> int | None:
    """Return the `max_episode_steps` of a model or game; SettingsError where it is none."""
    return None if value is None else _LIMIT("max_episode_steps", value)


def _checked_array(
    name: str, value: Any, kinds: str, dtype: Any, shape: tuple[int, ...] | None
) -> np.ndarray:
    """Copy `value` into a fresh array of `dtype`, refusing what would lose information on the way."""
    given = as_array(name, value)
    # An empty list becomes a float array, which says nothing about what was meant.
    if given.dtype.kind not in kinds and given.size:
        raise ModelError(f"{name} has dtype {given.dtype}; it must convert to {np.dtype(dtype)} without loss")
    if shape is not None and given.shape != shape:
        raise ModelError(f"{name} has shape {given.shape}; it must have shape {shape}")
    if shape is None and given.ndim != 1:
        raise ModelError(f"{name} has shape {given.shape}; it must have one dimension")
    return np.array(given, dtype=dtype, order="C")


def checked_mask(value: Any, n_states: int, n_actions: int) -> np.ndarray:
    """Return an action mask, bool, shape (n_states, n_actions)."""
    given = as_array("action_mask", value)
    if given.shape != (n_states, n_actions):
        raise ActionMaskError(
            f"action_mask has shape {given.shape}; it needs one entry per state and action, "
            f"shape ({n_states}, {n_actions})"
        )
    if given.dtype.kind not in "biu" or not np.isin(given, (0, 1)).all():
        raise ActionMaskError("action_mask holds something other than True and False (or 1 and 0)")
    return given.astype(bool)


def check_acting_states(stuck: np.ndarray, starts: np.ndarray, acting: np.ndarray) -> None:
    """Refuse states without legal actions, bool (S,), that episodes start in or come to without ending."""
    begun = np.flatnonzero(stuck & starts)
    if begun.size:
        raise ActionMaskError(
            f"the action mask forbids every action of state {begun[0]}, where episodes can start; "
            "allow at least one action there, or take the state out of start_prob"
        )
    reached = np.flatnonzero(stuck & acting)
    if reached.size:
        raise ActionMaskError(
            f"the action mask forbids every action of state {reached[0]}, which an episode can reach "
            "without ending; allow one of its actions, or mark the transitions into it as terminated"
        )


def checked_grid(value: Any, n_states: int) -> tuple[int, int] | None:
    """Return the rows and columns of a grid with a cell for each state, or None."""
    if value is None:
        return None
    given = as_array("grid_shape", value)
    shape = given.tolist()
    if given.shape != (2,) or not all(map(is_real, shape)) or shape[0] * shape[1] != n_states:
        raise ModelError(
            f"grid_shape is {value!r}; it must be (rows, columns) with {n_states} cells, or None"
        )
    return positive_int("grid_shape[0]", shape[0]), positive_int("grid_shape[1]", shape[1])


def _checked_probabilities(name: str, value: Any, shape: tuple[int, ...] | None) -> np.ndarray:
    prob = _checked_array(name, value, "fiu", np.float64, shape)
    wrong = np.flatnonzero(~(prob >= 0) | np.isinf(prob))
    if wrong.size:
        raise ModelError(f"{name}[{wrong[0]}] is {prob[wrong[0]]}; probabilities are finite and at least 0")
    return prob


def checked_start(value: Any, n_states: int) -> np.ndarray:
    """Return the distribution of the first state, float64, shape (n_states,)."""
    prob = _checked_probabilities("start_prob", value, (n_states,))
    total = prob.sum()
    if abs(total - 1) > PROBABILITY_TOLERANCE:
        raise ModelError(f"start_prob adds up to {total}; it must add up to 1 within {PROBABILITY_TOLERANCE}")
    if abs(total - 1) > ROUNDING_TOLERANCE:
        prob /= total
    return prob + 0.0


def checked_outcomes(
    given: tuple[Any, ...], mask: np.ndarray | None, n_states: int, n_actions: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Check and copy pointer, probabilities, next states, rewards and terminations of all outcomes."""
    pointer = _checked_array("outcome_ptr", given[0], "iu", np.int64, (n_states * n_actions + 1,))
    prob = _checked_probabilities("outcome_prob", given[1], None)
    follow = _checked_array("outcome_next", given[2], "iu", np.int64, prob.shape)
    reward = _checked_array("outcome_reward", given[3], "fiu", np.float64, prob.shape)
    terminated = _checked_array("outcome_terminated", given[4], "b", np.bool_, prob.shape)
    if pointer[0] != 0 or pointer[-1] != prob.size or (np.diff(pointer) < 0).any():
        raise ModelError(
            f"outcome_ptr must start at 0, never fall, and end at the number of outcomes, {prob.size}; it "
            f"starts at {pointer[0]}, its smallest step is {np.diff(pointer).min()}, and it ends at "
            f"{pointer[-1]}"
        )
    pair = reachability.rows_of(pointer)
    outside = np.flatnonzero((follow < 0) | (follow >= n_states))
    if outside.size:
        s, a = divmod(int(pair[outside[0]]), n_actions)
        raise ModelError(
            f"action {a} in state {s} leads to state {follow[outside[0]]}; states are 0 to {n_states - 1}"
        )
    infinite = np.flatnonzero(~np.isfinite(reward))
    if infinite.size:
        s, a = divmod(int(pair[infinite[0]]), n_actions)
        raise RewardError(
            f"action {a} in state {s} has the reward {reward[infinite[0]]}; rewards must be finite"
        )
    prob = _normalized(prob, pair, pointer, mask, n_actions)
    kept = prob > 0
    if not kept.all():
        pointer = reachability.row_pointer(pair[kept], n_states * n_actions)
        prob, follow, reward, terminated = prob[kept], follow[kept], reward[kept], terminated[kept]
    # Adding 0 turns -0.0 into 0.0, which is equal but has another fingerprint.
    return pointer, prob, follow, reward + 0.0, terminated


def _normalized(
    prob: np.ndarray, pair: np.ndarray, pointer: np.ndarray, mask: np.ndarray | None, n_actions: int
) -> np.ndarray:
    total = np.bincount(pair, weights=prob, minlength=pointer.size - 1)
    # An illegal pair may have no outcome at all; one that has some must still be a distribution.
    required = np.diff(pointer) > 0
    required |= True if mask is None else mask.reshape(-1)
    wrong = np.flatnonzero(required & (np.abs(total - 1) > PROBABILITY_TOLERANCE))
    if wrong.size:
        s, a = divmod(int(wrong[0]), n_actions)
        raise ModelError(
            f"the outcomes of action {a} in state {s} have probabilities that add up to {total[wrong[0]]}; "
            f"they must add up to 1 within {PROBABILITY_TOLERANCE} (a pair without outcomes must be "
            "forbidden by action_mask; those of float32 have to be divided by their sums in float64)"
        )
    divisor = np.where(np.abs(total - 1) > ROUNDING_TOLERANCE, total, 1.0)
    return prob / divisor[pair]
