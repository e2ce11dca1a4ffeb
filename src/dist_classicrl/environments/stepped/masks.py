"""Action masks as environments give them, checked and copied into one boolean array.

A mask says which actions are legal: shape (n_actions,), True or 1 = legal. Gymnasium's own environments give
it as int8 in `info["action_mask"]`. Where an environment gives none, every action is legal. With an action
space of several parts, entry i is the joint action with index i, see `spaces`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from dist_classicrl._jit import jit
from dist_classicrl.errors import ActionMaskError

MASK_KEY = "action_mask"
"""The key of a mask in `info` and in a Dict observation, as Gymnasium's environments write it."""

_TAXI = "gymnasium.envs.toy_text.taxi.TaxiEnv"
_TAXI_ID = re.compile(r"Taxi-v\d+")


def masks_are_advice(description: dict[str, Any]) -> bool:
    """Return whether the environment's masks forbid nothing, given what `describe_env` says of it.

    Gymnasium's Taxi is such an environment: its mask marks the actions that would change something, and the
    others can be taken all the same. Following it would make another process of it.
    """
    single = description.get("single", description)
    return single["layers"][-1]["class"] == _TAXI or bool(_TAXI_ID.fullmatch(str(single["id"])))


@jit
def copy_masks(given: np.ndarray, rows: np.ndarray, masks: np.ndarray) -> int:
    """Set `masks[rows[r]] = given[r] == 1` for every r; return -1, or the first r with other numbers.

    `given` is int64 of shape (R, A), 0 or 1, `rows` int64 of shape (R,), `masks` bool of shape (E, A).
    """
    for r in range(given.shape[0]):
        for a in range(given.shape[1]):
            if given[r, a] != 0 and given[r, a] != 1:
                return r
            masks[rows[r], a] = given[r, a] == 1
    return -1


@jit
def first_blocked(masks: np.ndarray) -> int:
    """Return the first row of `masks` (bool, shape (E, A)) that is False throughout, or -1."""
    for e in range(masks.shape[0]):
        legal = False
        for a in range(masks.shape[1]):
            legal |= masks[e, a]
        if not legal:
            return e
    return -1


def mask_in(observation: Any) -> Any:
    """Return the mask in a Dict observation, single or batched; raise `ActionMaskError` if it lacks one."""
    try:
        return observation[MASK_KEY]
    except (KeyError, TypeError):
        raise ActionMaskError(
            f"The observation space has an '{MASK_KEY}' and the observation {observation!r} has none. "
            f"Give one with every observation, or take it out of the space."
        ) from None


def write_masks(given: Sequence[Any] | np.ndarray, rows: np.ndarray, masks: np.ndarray) -> None:
    """Copy R masks, boolean or integers that are 0 or 1, into `rows` of a boolean array of shape (E, A).

    ActionMaskError if a mask has another shape or type.
    """
    if isinstance(given, np.ndarray) and given.dtype == object:  # how vector environments batch lists
        given = given.tolist()
    try:
        array = np.asarray(given)
    except ValueError:  # ragged: the masks have different shapes
        raise _unusable(f"the masks {given!r} differ in shape", masks) from None
    if array.shape != (len(rows), masks.shape[1]) or array.dtype.kind not in "iub":
        raise _unusable(
            f"got dtype {array.dtype} and shape {array.shape[1:]} per environment, in a batch of {len(rows)}",
            masks,
        )
    bad = copy_masks(np.array(array, np.int64, order="C"), rows, masks)
    if bad >= 0:
        raise _unusable(f"environment {rows[bad]} gave {array[bad].tolist()}", masks)


def _unusable(what: str, masks: np.ndarray) -> ActionMaskError:
    return ActionMaskError(
        f"An action mask must be boolean (or int8 of 0 and 1) of shape ({masks.shape[1]},), one entry per "
        f"action: {what}. Correct it in the environment, or ignore the masks with use_action_mask=False."
    )
