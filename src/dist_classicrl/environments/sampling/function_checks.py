"""What is looked at in the functions of a model, and in what they give."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.core.errors import NumbaError

from dist_classicrl._jit import check_compiles, result_type
from dist_classicrl._words import why_not_compiled
from dist_classicrl.environments.key_types import data_type
from dist_classicrl.environments.model_checks import PROBABILITY_TOLERANCE
from dist_classicrl.environments.sampling.function_kernels import CHANCE, REWARD, STATE
from dist_classicrl.errors import ModelError, OutsideSpaceError, RewardError

_NUMBER: Any = (types.Float, types.Integer)
_TRUTH: Any = (types.Boolean, types.Integer)


def check_data(name: str, data: Any) -> None:
    """Refuse what numba cannot give to a function by name."""
    if not (isinstance(data, tuple) and hasattr(data, "_fields")):
        raise ModelError(
            f"{name}: data must be a NamedTuple of arrays and numbers (typing.NamedTuple), got "
            f"{type(data).__name__}."
        )


def check_compiled(name: str, role: str, function: Any) -> None:
    """Refuse a function that is not compiled."""
    check_compiles()
    if not hasattr(function, "py_func"):
        raise ModelError(
            f"{name}: {role} must be compiled with numba.njit, got {function!r}. Put @numba.njit above it."
        )


def check_transition(name: str, data: Any, transition: Any) -> None:
    """Refuse a function that is not compiled, or gives other things than an outcome."""
    given = _returned(name, "transition", transition, data, *[types.int64] * 3)
    parts: Any = given if isinstance(given, types.BaseTuple) else ()
    wanted = (_NUMBER, types.Integer, _NUMBER, _TRUTH)
    fits = [isinstance(part, kind) for part, kind in zip(parts, wanted, strict=False)]
    if len(parts) != 4 or not all(fits):
        raise ModelError(
            f"{name}: transition returns {given}. It must return four values: the probability of the "
            "outcome, the next state (a whole number), the reward, and whether the episode ends (a bool)."
        )


def check_legal(name: str, data: Any, legal: Any) -> None:
    """Refuse a function that is not compiled, or does not say whether an action is legal."""
    given = _returned(name, "legal", legal, data, *[types.int64] * 2)
    if not isinstance(given, _TRUTH):
        raise ModelError(f"{name}: legal returns {given}. It must return whether the action is legal.")


def check_start(name: str, data: Any, start: Any) -> None:
    """Refuse a function that is not compiled, or gives no state."""
    given = _returned(name, "start", start, data, types.uint64)
    if not isinstance(given, types.Integer):
        raise ModelError(f"{name}: start returns {given}. It must return a state, which is a whole number.")


def _returned(name: str, role: str, function: Any, data: Any, *arguments: Any) -> Any:
    check_compiled(name, role, function)
    kind = data_type(name, data)
    try:
        return result_type(function, (kind, *arguments))
    except (NumbaError, NotImplementedError, TypeError) as error:
        raise ModelError(
            f"{name}: {role} cannot be compiled for data and arguments of the types {arguments}. "
            f"{why_not_compiled(error)}"
        ) from error


def check_fault(name: str, fault: np.ndarray, n_states: int) -> None:
    """Raise what is wrong with an outcome, see `dist_classicrl.environments.sampling.function_kernels`."""
    kind, state, action, number = fault[:4].astype(int).tolist()
    if not kind:
        return
    where, came = f"action {action} in state {state}", float(fault[4])
    if kind == CHANCE:
        raise ModelError(
            f"{name}: outcome {number} of {where} has the probability {came}; probabilities are finite and "
            "at least 0"
        )
    if kind == STATE:
        raise ModelError(
            f"{name}: outcome {number} of {where} leads to state {came:.0f}; states are 0 to {n_states - 1}"
        )
    if kind == REWARD:
        raise RewardError(
            f"{name}: outcome {number} of {where} has the reward {came}; rewards must be finite"
        )
    raise ModelError(
        f"{name}: the outcomes of {where} have probabilities that add up to {came}; they must add up to 1 "
        f"within {PROBABILITY_TOLERANCE} (an outcome that there is not has probability 0, and an action that "
        "is not allowed is told by legal)"
    )


def outside_of_an_array(name: str, fault: np.ndarray) -> OutsideSpaceError:
    """Return the error for an index into an array that the function does not have."""
    _, state, action, number = fault[:4].astype(int).tolist()
    return OutsideSpaceError(
        f"{name}: transition or legal read an array at an index that it does not have, for outcome {number} "
        f"of action {action} in state {state}. They must work for each state, action and outcome."
    )
