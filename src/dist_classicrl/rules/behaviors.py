"""How actions are chosen while learning: what `behavior` may be, and what is kept of it.

Each is a NamedTuple of numbers, for which `dist_classicrl.learning.behavior` has the jitted functions.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from dist_classicrl._words import name_of, nearest
from dist_classicrl.checks import as_array, as_float, is_real, sum_tolerance
from dist_classicrl.errors import SettingsError
from dist_classicrl.rules.learning_rule import compared_by_class
from dist_classicrl.schedules import Constant, PerVisit
from dist_classicrl.schedules.kinds import Schedule, as_schedule, from_dict, to_dict
from dist_classicrl.schedules.kinds import without_call as schedule_without_call

if TYPE_CHECKING:
    import numpy as np


@compared_by_class
class EpsilonGreedy(NamedTuple):
    """With chance epsilon a uniformly random legal action, else the best one, ties broken evenly."""


@compared_by_class
class EpsilonLadder(NamedTuple):
    """Epsilon-greedy, each worker with an epsilon of its own: some explore, others look at what is known.

    A worker has ``epsilon ** (1 + steepness * x)``, where x is 0 for the first, and 1/2, 1/4, 3/4, 1/8 and so
    on for the others (van der Corput's sequence), of which it does not matter how many there are. As Horgan
    et al., "Distributed prioritized experience replay" (2018), whose workers have x = i / (N - 1).

    Attributes
    ----------
    steepness : float
        At least 0; theirs is 7.
    """

    steepness: float = 7.0


@compared_by_class
class Boltzmann(NamedTuple):
    """Legal action a with a chance that is proportional to exp(Q(s, a) / temperature); epsilon plays no part.

    Sutton and Barto (2018), equation 13.2, of action values.

    Attributes
    ----------
    temperature : float or schedule
        Above 0, in units of values: actions whose values differ by less are chosen about as often. A
        schedule of `dist_classicrl.schedules` follows the global step: with one that falls, what is best is
        chosen more and more often.
    """

    temperature: float | Schedule = 1.0


@compared_by_class
class UCB(NamedTuple):
    """The action of the largest Q(s, a) + exploration * sqrt(ln N(s) / N(s, a)); epsilon plays no part.

    N counts visits. An action that was never tried comes first (Auer et al., 2002; Sutton and Barto, 2018,
    equation 2.10).

    Attributes
    ----------
    exploration : float
        At least 0, in units of values.
    """

    exploration: float = 1.0


@compared_by_class
class FixedPolicy(NamedTuple):
    """Each action with a given chance, whatever is learned; epsilon plays no part.

    Attributes
    ----------
    probabilities : ndarray(float64), shape (S, A)
        Each row adds up to 1. Where a mask forbids actions, the others share what is left in proportion, and
        evenly where nothing is.
    """

    probabilities: np.ndarray


NAMED: Mapping[str, type] = {
    "epsilon_greedy": EpsilonGreedy,
    "epsilon_ladder": EpsilonLadder,
    "boltzmann": Boltzmann,
    "ucb": UCB,
}
"""What `behavior` may be by name."""

POLICY = "policy"

WITHOUT_EPSILON: Mapping[str, str] = {
    "boltzmann": "draws an action by all values and its temperature",
    "ucb": "takes the action of the largest bound",
    POLICY: "has the chances of all actions",
}
"""By name, how a behavior chooses in which epsilon plays no part."""

_BOUNDS: Mapping[str, tuple[str, Callable[[float], bool]]] = {
    "steepness": ("at least 0", lambda value: value >= 0.0),
    "temperature": ("above 0", lambda value: value > 0.0),
    "exploration": ("at least 0", lambda value: value >= 0.0),
}


def to_data(behavior: Any) -> str | dict[str, Any]:
    """Return a behavior as plain data for JSON: its name, and hyper-parameters that are not the defaults.

    Parameters
    ----------
    behavior : str, NamedTuple, array_like of shape (S, A) or dict
        A name; one of the classes here; the chances of actions; or what this function returned.

    Raises
    ------
    SettingsError
        If it is none, or a hyper-parameter is not allowed.
    """
    if isinstance(behavior, str) and behavior in NAMED:
        return behavior
    said = behavior.get("name") if isinstance(behavior, dict) else None
    if isinstance(said, str) and said == POLICY:
        _probabilities_of(behavior)
        return dict(behavior)
    if isinstance(said, str) and said in NAMED:
        given = {key: value for key, value in behavior.items() if key != "name"}
        kind = NAMED[said]
        if set(given) <= set(kind._fields):  # type: ignore[attr-defined]
            return to_data(kind(**given))
    if type(behavior) is FixedPolicy:
        return _policy_data(behavior.probabilities)
    name = next((name for name, kind in NAMED.items() if type(behavior) is kind), None)
    if name is not None:
        values = _checked(behavior)
        usual = NAMED[name]._field_defaults  # type: ignore[attr-defined]
        changed = {key: value for key, value in values.items() if value != usual[key]}
        return {"name": name, **changed} if changed else name
    is_named = isinstance(behavior, (str, dict, type))
    if not is_named and hasattr(behavior, "__getitem__") and not hasattr(behavior, "_fields"):
        return _policy_data(behavior)
    hint = "" if is_named or behavior is None else " Behaviors of your own cannot be had, except as chances."
    if isinstance(behavior, type) and behavior in NAMED.values():
        hint = f" Write {behavior.__name__}() for its usual hyper-parameters."
    if isinstance(behavior, str):
        hint = nearest(behavior.strip().lower(), NAMED)
    raise SettingsError(
        f"behavior must be one of {', '.join(map(repr, NAMED))}, an object of dist_classicrl.rules such as "
        "Boltzmann(temperature=0.5), or chances of actions of shape (states, actions), got "
        f"{behavior!r}.{hint}"
    )


def _checked(behavior: Any) -> dict[str, Any]:
    """Return its hyper-parameters as floats, a schedule as plain data; SettingsError for a wrong one."""
    values: dict[str, Any] = {}
    for name, value in behavior._asdict().items():
        words, is_allowed = _BOUNDS[name]
        if isinstance(behavior, Boltzmann) and isinstance(value, (Schedule, dict)):
            given = from_dict(value) if isinstance(value, dict) else value
            schedule = as_schedule(f"Boltzmann: {name}", given)
            if not isinstance(schedule, Constant):
                values[name] = to_dict(_checked_temperature(schedule))
                continue
            value = schedule.value
        if not (is_real(value) and math.isfinite(as_float(value)) and is_allowed(value)):
            raise SettingsError(
                f"{type(behavior).__name__}: {name} must be a finite number {words}, got {value!r}."
            )
        values[name] = float(value)
    return values


def _checked_temperature(schedule: Schedule) -> Schedule:
    if isinstance(schedule, PerVisit):
        raise SettingsError(
            f"Boltzmann: temperature cannot follow the visits to an entry, got {schedule!r}: an action is "
            "chosen before there is one. Use a number, or Linear, Exponential or Piecewise of "
            "dist_classicrl.schedules."
        )
    if not schedule.bounds[0] > 0.0:
        raise SettingsError(
            f"Boltzmann: temperature must be above 0 at each step, got {schedule!r}. Write for instance "
            "temperature=Exponential(1.0, 0.05, fraction=0.5)."
        )
    return schedule


def temperature_of(data: Any) -> Schedule | None:
    """Return the temperature of a behavior as plain data; None where it has none."""
    if name_of(data) != "boltzmann":
        return None
    behavior = behavior_of(data)
    return as_schedule("temperature", behavior.temperature)


def with_temperature(schedule: Schedule) -> str | dict[str, Any]:
    """Return the behavior with this temperature, as plain data."""
    return to_data(Boltzmann(schedule))


def without_call(data: Any) -> Any:
    """Return a behavior as plain data as it was before any call of ``train``."""
    temperature = temperature_of(data)
    return data if temperature is None else with_temperature(schedule_without_call(temperature))


def _policy_data(probabilities: Any) -> dict[str, Any]:
    """Return chances of actions as plain data: their bytes as text, which keeps every bit."""
    import numpy as np

    given = as_array("behavior", probabilities)
    is_real = given.dtype.kind in "biuf"
    array = given.astype(np.float64, order="C") if is_real else np.zeros(0)
    got = f"the shape {given.shape}" if is_real else f"an array of {given.dtype}"
    if array.ndim != 2 or array.size == 0:
        an_action_each = " An array of an action for each state is np.eye(actions)[it]."
        raise SettingsError(
            f"behavior as an array must have real numbers of shape (states, actions), got {got}. Write for "
            "instance np.full((states, actions), 1 / actions)."
            f"{an_action_each if array.ndim == 1 and array.size else ''}"
        )
    sums = array.sum(axis=1)
    wrong = np.flatnonzero(~((array >= 0.0).all(axis=1) & (np.abs(sums - 1.0) <= sum_tolerance(given))))
    if wrong.size:
        state = wrong[0]
        raise SettingsError(
            f"behavior as an array must have chances of at least 0 that add up to 1 in each row, got "
            f"{array[state]} for state {state}, which add up to {sums[state]}. Divide each row by its sum."
        )
    if sum_tolerance(given) > sum_tolerance(array):  # of float32 and float16
        array /= sums[:, np.newaxis]
    text = base64.b64encode(array.astype("<f8").tobytes()).decode("ascii")
    return {"name": POLICY, "shape": list(array.shape), "probabilities": text}


def _probabilities_of(data: Mapping[str, Any]) -> np.ndarray:
    """Return the chances that `_policy_data` made plain data of; SettingsError where it did not."""
    import numpy as np

    try:
        states, actions = data["shape"]
        array = np.frombuffer(base64.b64decode(data["probabilities"], validate=True), "<f8")
        array = array.reshape(states, actions).astype(np.float64)
        is_good = set(data) == {"name", "shape", "probabilities"} and bool((array >= 0.0).all())
        is_good = is_good and bool((np.abs(array.sum(axis=1) - 1.0) <= sum_tolerance(array)).all())
    except (KeyError, TypeError, ValueError) as error:
        raise SettingsError(f"behavior is a policy that cannot be read ({error}). Give an array.") from error
    if not is_good:
        raise SettingsError("behavior is a policy whose chances do not add up to 1. Give an array.")
    return array


def behavior_of(data: str | Mapping[str, Any]) -> Any:
    """Return the NamedTuple that `to_data` made plain data of."""
    if isinstance(data, str):
        return NAMED[data]()
    if data["name"] == POLICY:
        return FixedPolicy(_probabilities_of(data))
    given = {key: value for key, value in data.items() if key != "name"}
    if isinstance(given.get("temperature"), dict):
        given["temperature"] = from_dict(given["temperature"])
    return NAMED[data["name"]](**given)


def in_kernels(behavior: Any) -> Any:
    """Return a behavior as jitted functions take it: numbers, and a temperature as the exploration rate."""
    return Boltzmann() if isinstance(behavior, Boltzmann) else behavior
