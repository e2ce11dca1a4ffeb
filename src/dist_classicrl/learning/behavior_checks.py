"""Where a behavior cannot be had."""

from __future__ import annotations

import numpy as np

from dist_classicrl.environments.resolve import Source
from dist_classicrl.errors import SettingsError
from dist_classicrl.rules.behaviors import EpsilonLadder, FixedPolicy, behavior_of
from dist_classicrl.settings import Settings


def check_behavior(source: Source, settings: Settings, engine: str) -> None:
    """Raise SettingsError where actions cannot be chosen like that in this environment, by this engine."""
    behavior = behavior_of(settings.behavior)
    if isinstance(behavior, EpsilonLadder) and engine == "supersteps":
        raise SettingsError(
            'behavior="epsilon_ladder" gives each worker an epsilon of its own, and episodes that travel '
            'between the owners of rows belong to no worker. Write behavior="epsilon_greedy".'
        )
    if isinstance(behavior, FixedPolicy):
        _check_policy(behavior.probabilities, source)
    if source.keys is not None and settings.initial_value != 0.0:
        raise SettingsError(
            f"initial_value={settings.initial_value:g} is for tables whose states are counted, and "
            f"{source.name} has keys as states: a new row is zero. Leave it at 0.0, or "
            f"{source.way_to_numbers}."
        )


def _check_policy(policy: np.ndarray, source: Source) -> None:
    if source.keys is not None:
        raise SettingsError(
            f"behavior as an array has a row for each state, and {source.name} has keys as states. Take "
            f'another, such as behavior="boltzmann", or {source.way_to_numbers}.'
        )
    size = source.n_states, source.n_actions
    if policy.shape != size:
        raise SettingsError(
            f"behavior as an array has the shape {policy.shape}, and {source.name} needs {size}: a row for "
            "each state, a chance for each action."
        )
    legal = None if source.simulator is None else source.simulator.legal
    if legal is not None:
        illegal = np.argwhere((policy > 0.0) & ~legal & legal.any(axis=1, keepdims=True))
        if illegal.size:
            state, action = illegal[0]
            raise SettingsError(
                f"behavior as an array gives action {action} a chance of {policy[state, action]:g} in state "
                f"{state} of {source.name}, where it is illegal. Make it 0."
            )
