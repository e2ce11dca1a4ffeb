"""The outcomes of a model from arrays and sparse matrices, and from Gymnasium's ``P[s][a]``."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from dist_classicrl.checks import is_flag, is_real, is_whole
from dist_classicrl.environments.making.sparse import Entries, entries_of
from dist_classicrl.environments.model_checks import as_array, positive_int
from dist_classicrl.environments.reachability import row_pointer
from dist_classicrl.errors import ActionMaskError, ModelError

_MOST_PAIRS = 1 << 26
"""In a dict: Python goes through some ten million a second."""


def fields_of_arrays(transition: Any, reward: Any, terminated: Any) -> dict[str, Any]:
    """Return the outcomes in arrays or sparse matrices as fields of a model; see `TabularMDP.from_arrays`."""
    S, A, pair, follow, probability = entries_of("transition", transition) or _entries_of_dense(transition)
    # NaN and negative numbers are kept for the model's own check, which names the error.
    pair, follow, probability = (each[probability != 0.0] for each in (pair, follow, probability))
    ends = np.zeros(S, dtype=bool) if terminated is None else terminated
    return {
        "n_states": S,
        "n_actions": A,
        "outcome_ptr": row_pointer(pair, S * A),
        "outcome_prob": probability,
        "outcome_next": follow,
        "outcome_reward": _rewards(reward, (S, A), pair, follow),
        "outcome_terminated": _ends(ends, (S, A), pair, follow),
    }


def _entries_of_dense(transition: Any) -> Entries:
    probability = as_array("transition", transition)
    if probability.ndim != 3 or probability.shape[0] != probability.shape[2]:
        raise ModelError(
            f"transition has shape {probability.shape}; it must have the shape (states, actions, states)"
            f"{_with_actions_first('transition', probability)}"
        )
    S, A, _ = probability.shape
    rows = probability.reshape(S * A, S)
    pair, follow = np.nonzero(rows)
    return Entries(S, A, pair, follow, rows[pair, follow])


def _rewards(reward: Any, shape: tuple[int, int], pair: np.ndarray, follow: np.ndarray) -> np.ndarray:
    if (entries := entries_of("reward", reward, shape)) is not None:
        return entries.at(pair, follow)
    (S, A), rewards = shape, as_array("reward", reward)
    if rewards.shape == (S, A):
        return rewards.reshape(-1)[pair]
    if rewards.shape != (S, A, S):
        raise ModelError(
            f"reward has shape {rewards.shape}; it must have shape ({S}, {A}, {S}) or ({S}, {A})"
            f"{_with_actions_first('reward', rewards)}"
        )
    return rewards.reshape(S * A, S)[pair, follow]


def _ends(terminated: Any, shape: tuple[int, int], pair: np.ndarray, follow: np.ndarray) -> np.ndarray:
    if (entries := entries_of("terminated", terminated, shape)) is not None:
        if entries.values.dtype.kind != "b":
            raise ModelError(
                f"terminated is sparse, of dtype {entries.values.dtype}; it must be of bool. Write "
                ".astype(bool) of each matrix"
            )
        return entries.at(pair, follow)
    (S, A), ends = shape, as_array("terminated", terminated)
    if ends.shape not in {(S,), (S, A, S)} or ends.dtype.kind != "b":
        raise ModelError(
            f"terminated has shape {ends.shape} and dtype {ends.dtype}; it must be an array of bool with "
            f"shape ({S}, {A}, {S}) or ({S},)"
        )
    return ends[follow] if ends.ndim == 1 else ends.reshape(S * A, S)[pair, follow]


def _with_actions_first(name: str, given: np.ndarray) -> str:
    if given.ndim != 3 or given.shape[1] != given.shape[2]:
        return ""
    return f". Where it has the actions first, write np.moveaxis({name}, 0, 1)"


def fields_of_outcomes(probability: Any, next_state: Any, reward: Any, terminated: Any) -> dict[str, Any]:
    """Return the outcomes in arrays that broadcast to the shape (states, actions, outcomes) as fields.

    A model leaves out those of probability 0.
    """
    shape = np.broadcast_shapes(*map(np.shape, (probability, next_state, reward, terminated)))
    S, A, most = shape

    def flat(values: Any, dtype: Any) -> np.ndarray:
        return np.broadcast_to(np.asarray(values, dtype=dtype), shape).reshape(-1)

    return {
        "n_states": S,
        "n_actions": A,
        "outcome_ptr": np.arange(0, S * A * most + 1, most),
        "outcome_prob": flat(probability, float),
        "outcome_next": flat(next_state, np.int64),
        "outcome_reward": flat(reward, float),
        "outcome_terminated": flat(terminated, bool),
    }


def fields_of_dict(
    P: Mapping[int, Any] | Sequence[Any], n_actions: int | None = None, action_mask: Any = None
) -> dict[str, Any]:
    """Return the outcomes in ``P[s][a]``, and the mask, as fields of a model; see `TabularMDP.from_dict`."""
    by_state = [_keyed(f"P[{s}]", row) for s, row in enumerate(_in_order(P))]
    A = 1 + max((a for row in by_state for a in row if is_whole(a)), default=0)
    if n_actions is not None:
        A = positive_int("n_actions", n_actions, "None to take it from P")
    if len(by_state) * A > _MOST_PAIRS:
        raise ModelError(
            f"P has {len(by_state):,} states and {A:,} actions, which are {len(by_state) * A:,} pairs; at "
            f"most {_MOST_PAIRS:,} can be listed. Give arrays (TabularMDP), or a function (from_function)"
        )
    counts: list[int] = []
    outcomes: list[tuple[Any, Any, Any, Any]] = []
    for s, row in enumerate(by_state):
        unknown = [action for action in row if action not in range(A)]
        if unknown:
            raise ModelError(f"P[{s}] has an action {unknown[0]!r}; actions are 0 to {A - 1}")
        for a in range(A):
            listed = row.get(a, ())
            if not isinstance(listed, Collection):
                raise ModelError(f"P[{s}][{a}] is {listed!r}; it must be a list of outcomes")
            for outcome in listed:
                if not isinstance(outcome, Collection) or len(outcome) != 4:
                    raise ModelError(
                        f"P[{s}][{a}] has the outcome {outcome!r}; an outcome is "
                        "(probability, next state, reward, terminated)"
                    )
            outcomes.extend(listed)
            counts.append(len(listed))
    columns: Any = zip(*outcomes, strict=True) if outcomes else ((), (), (), ())
    columns = tuple(columns)
    _check_kinds(columns, counts, A)
    prob, follow, reward, ends = columns
    listed_pairs = np.array(counts).reshape(len(by_state), A) > 0
    if action_mask is None:
        action_mask = None if listed_pairs.all() else listed_pairs
    elif as_array("action_mask", action_mask).shape != listed_pairs.shape:
        raise ActionMaskError(
            f"action_mask has shape {np.shape(action_mask)}; P has {len(by_state)} states and {A} actions"
        )
    return {
        "n_states": len(by_state),
        "n_actions": A,
        "outcome_ptr": np.concatenate(([0], np.cumsum(counts))),
        "outcome_prob": prob,
        "outcome_next": follow,
        "outcome_reward": reward,
        "outcome_terminated": ends,
        "action_mask": action_mask,
    }


def _check_kinds(columns: Sequence[Sequence[Any]], counts: Sequence[int], A: int) -> None:
    """Raise ModelError that names the first outcome of which a part is of another kind than it must be."""
    kinds = (
        ("fiub", "probability", is_real, "a number"),
        ("iu", "next state", is_whole, "a whole number"),
        ("fiub", "reward", is_real, "a number"),
        ("b", "terminated", is_flag, "True or False"),
    )
    for values, (allowed, name, is_right, wanted) in zip(columns, kinds, strict=True):
        if not values or as_array(name, values).dtype.kind in allowed:
            continue
        wrong = next((i for i, value in enumerate(values) if not is_right(value)), None)
        if wrong is not None:
            s, a = divmod(int(np.searchsorted(np.cumsum(counts), wrong, side="right")), A)
            raise ModelError(
                f"P[{s}][{a}] has an outcome whose {name} is {values[wrong]!r}; it must be {wanted}"
            )


def _keyed(name: str, row: Any) -> Mapping[int, Any]:
    if isinstance(row, Mapping):
        return row
    try:
        return dict(enumerate(row))
    except TypeError as error:
        raise ModelError(f"{name} is {row!r}; it must be a mapping, or a list") from error


def _in_order(P: Mapping[int, Any] | Sequence[Any]) -> list[Any]:
    """Return the rows of `P` by state, refusing keys that are not 0 to S - 1."""
    keyed = _keyed("P", P)
    missing = [s for s in range(len(keyed)) if s not in keyed]
    if missing or not keyed:
        given = sorted(keyed, key=repr)[:5]
        raise ModelError(
            f"P has {len(keyed)} states, whose keys must be 0 to {len(keyed) - 1}; they begin with {given}"
        )
    return [keyed[s] for s in range(len(keyed))]
