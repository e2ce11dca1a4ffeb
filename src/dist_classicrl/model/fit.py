"""Whether an environment fits what an agent has learned, or the one that it learns in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dist_classicrl.environments.resolve import Source
from dist_classicrl.environments.state_keys import name_of_kind, words_of
from dist_classicrl.errors import EnvError, EnvMismatchError, SettingsError
from dist_classicrl.model.keyed import KeyedRows

if TYPE_CHECKING:
    from dist_classicrl.environments.identity import Identity
    from dist_classicrl.environments.stepped.base import SteppedEnv
    from dist_classicrl.environments.stepped.spaces import SpaceIndex
    from dist_classicrl.model.agent_state import AgentState


def get_to_know(state: AgentState, env: Any) -> Source:
    """Return `env` as a `Source`, and let the state know its size, its spaces and its legal actions.

    EnvError where it cannot be learned in, or is larger than the table.
    """
    source = look_at(state, env)
    state.take_note_of(source)
    return source


def look_at(state: AgentState, env: Any) -> Source:
    """Return `env` as a `Source` that the table has room for; where there is no table yet, make it."""
    source = state.resolved(env, state.settings.n_envs)
    try:
        _make_room(state, source)
    except BaseException:
        source.close()
        raise
    return source


def _make_room(state: AgentState, source: Source) -> None:
    """Check that the table has room for an environment, and make it where there is none yet.

    EnvError where it has not, which is an EnvMismatchError once another environment was learned in.
    """
    known, most = state.environment, state.settings.max_states
    if source.keys is None and most is not None and source.n_states > most:
        raise EnvError(
            f"The environment has {source.n_states:,} states, and max_states={most:,} allows no more. "
            "Leave it out."
        )
    is_numbered = state.keyed is None and source.keys is None
    try:
        if source.keys is not None:
            _make_room_for_keys(state, source)
        else:
            _make_room_for_numbers(state, source.n_states, source.n_actions)
    except EnvError as error:
        if state.steps == 0 or known is None or not is_numbered:
            raise
        raise EnvMismatchError(
            f"The table was learned in {known}, and {source.name} needs a table of "
            f"{source.n_states} states and {source.n_actions} actions. Make another agent for that. "
            "To learn in both, give the agent room for both, "
            f"state_size={max(source.n_states, state.shape.n_states)}, "
            f"action_size={max(source.n_actions, state.shape.n_actions)}, and train(..., "
            "new_env=True) the second."
        ) from error


def _make_room_for_keys(state: AgentState, source: Source) -> None:
    """Make the table if there is none, and check that it is one of keys for such an environment."""
    settings = state.settings
    if settings.state_size is not None:
        raise SettingsError(
            f"state_size={settings.state_size} says how many states there are, and {source.name} has "
            "keys as states, which nobody has counted. Leave it out; max_states= limits how many."
        )
    assert source.keys is not None  # else this is not called
    if not state.has_table:
        state.make_table(0, source.n_actions)
        state.keyed = KeyedRows(state, np.zeros(0, source.keys))
    n_actions = settings.action_size or state.shape.n_actions
    if state.keyed is None or n_actions != source.n_actions:
        here = "keys" if state.keyed is not None else "numbers from 0 on"
        raise EnvError(
            f"{source.name} has keys as states and {source.n_actions} actions, and the table is for "
            f"{here} and {n_actions} actions. Leave action_size out, and make another agent for this one."
        )
    _check_kind(state.keyed, source)


def _check_kind(keyed: KeyedRows, source: Source) -> None:
    """Raise EnvError if the states of an environment are keys of another length than those of the table."""
    here, there = keyed.keys.dtype, source.keys
    if there is not None and words_of(here) != words_of(there):
        raise EnvError(
            f"{source.name} has keys of {name_of_kind(there)} as states, and those of the table are of "
            f"{name_of_kind(here)}. Make another agent for it."
        )


def _make_room_for_numbers(state: AgentState, n_states: int, n_actions: int) -> None:
    """Make the table if there is none, and check that an environment of this size fits."""
    if state.keyed is not None:
        if state.keyed.keys.size:
            raise EnvError(
                f"The states of the environment are numbers from 0 to {n_states - 1}, and the table has "
                "keys as states. Make another agent for it."
            )
        state.forget_table()  # nothing was learned
    if not state.has_table:
        state.make_table(state.settings.state_size or n_states, state.settings.action_size or n_actions)
    states, actions = state.shape.of_table
    if states < n_states or actions < n_actions:
        raise EnvError(
            f"The environment needs a table of {n_states} states and {n_actions} actions, but this one "
            f"has {states} and {actions}. Leave state_size and action_size out, or give at least "
            f"state_size={n_states}, action_size={n_actions}."
        )
    if not state.shape.is_one_table and (states, actions) != (n_states, n_actions):
        raise EnvError(
            f"The environment has {n_states} states and {n_actions} actions, and the table {states} and "
            f"{actions}. They must be the same with the algorithm {state.settings.algorithm!r}, which "
            "learns more than one table. Leave state_size and action_size out."
        )


def learned_elsewhere(before: Identity | None, steps: int, now: Identity, call: str) -> str | None:
    """Return that the table was learned in something else than `call` is given now; None where it was not."""
    if before is None or steps == 0 or before.is_same(now):
        return None
    told = str(now)
    if told == str(before):
        told = f"another {now.name}, with other rewards, transitions, arguments, wrappers or time limit"
    return f"The table was learned in {before} for {steps:,} steps, and {call} was given {told}"


def check_made_for(state: AgentState, env: Any) -> None:
    """Raise EnvError if `check_fits` does for `env`, which is given as `train` takes it."""
    source = state.resolved(env, 1)
    source.close()
    check_fits(state, source)


def check_fits(state: AgentState, source: Source) -> None:
    """Raise EnvError if a table took its size from an environment of another size.

    Or if what it learned is of observations and actions that this one numbers otherwise.
    """
    settings, known = state.settings, state.environment
    states, actions = state.shape.of_table
    if (state.keyed is None) != (source.keys is None):
        raise EnvError(
            f"Of the table and {source.name} one has keys as states, and the other numbers. Name the "
            "environment that was trained in."
        )
    if state.keyed is not None:
        _check_kind(state.keyed, source)
    last = (states, actions) if known is None else (known.n_states, known.n_actions)
    is_last = state.keyed is None and (source.n_states, source.n_actions) == last  # of a curriculum
    other_states = settings.state_size is None and state.keyed is None and states != source.n_states
    other_actions = settings.action_size is None and actions != source.n_actions
    if not is_last and (other_states or other_actions):
        raise EnvError(
            f"The table is of an environment with {states} states and {actions} actions, but "
            f"{source.name} has {source.n_states} and {source.n_actions}. Name the environment that was "
            "trained in, with its arguments."
        )
    is_numbered = known is not None and known.is_numbered
    for role, learned, given in zip(
        ("observations", "actions"), (state.observations, state.actions), source.spaces, strict=True
    ):
        if (learned or is_numbered) and _numbering(learned) != _numbering(given):
            raise EnvError(
                f"{source.name} has other {role} than the environment that was trained in: "
                f"{given.space if given else 'whole numbers from 0 on'}, and the table is of "
                f"{learned.space if learned else 'whole numbers from 0 on'}. Name the environment that "
                "was trained in, with its arguments and wrappers."
            )


def check_not_trained_in(state: AgentState, env: SteppedEnv) -> None:
    """Raise SettingsError where `env` steps an environment that the training of the agent steps through."""
    trained = [] if state.trains_in is None else state.trains_in.objects
    both = [one for one in env.objects if any(one is other for other in trained)]
    if both:
        raise SettingsError(
            f"{both[0]} is the environment that the training steps through, and to play in it would break "
            "off its episodes and change what is learned. Give a second environment, or a function that "
            "makes a new one at every call."
        )


def _numbering(index: SpaceIndex | None) -> Any:
    """Return how values become the integers from 0 on, or None where they are these."""
    parts = None if index is None else index.parts()
    return None if parts is not None and parts[0][:3] == ((), (), [0]) else parts
