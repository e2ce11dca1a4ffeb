"""What a learner carries from step to step besides the table, as arrays for a checkpoint.

Kernels read these arrays without bounds checks, so what comes from disk is checked here before it is taken.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dist_classicrl.errors import CheckpointError
from dist_classicrl.tables.local import LocalTable

REPLAY_ARRAYS = ("replay_entries", "replay_rewards", "replay_targets", "replay_ring")
"""The arrays of `dist_classicrl.learning.replay.Replay`, in its order."""

MASKS = "replay_masks"

OWNED = ("rule_owned", "rule_model")
RULE_ARRAYS = ("rule_whole", "rule_real", *OWNED)
"""What a rule's walkers carry along, and what their worker knows: `whole` to `model` of `Context`."""

State = dict[str, np.ndarray]


def refused(name: str, given: str, allowed: str) -> CheckpointError:
    """Return the error that says what `name` holds in a checkpoint and what it may hold."""
    return CheckpointError(
        f"The learner's state in this checkpoint cannot be used: {name} {given}, allowed is {allowed}. The "
        "checkpoint is damaged or from other settings: go on with the settings and the environment that it "
        "was written with, or from another checkpoint."
    )


def check_arrays(state: State, expected: State, optional: State) -> None:
    """Raise CheckpointError unless the arrays of `state` have the names, types and shapes of `expected`.

    It may have those of `optional` besides.
    """
    known = {**expected, **optional}
    for name in sorted(set(state) - set(known)):
        raise refused(f"the array {name}", "is there", f"only {', '.join(known) or 'nothing'}")
    for name in expected:
        if name not in state:
            raise refused(f"the array {name}", "is missing", f"only a state with {', '.join(expected)}")
    for name, array in state.items():
        model = known[name]
        if not isinstance(array, np.ndarray) or array.dtype != model.dtype or array.shape != model.shape:
            raise refused(name, f"is {_kind(array)}", _kind(model))


def _kind(array: Any) -> str:
    return f"{array.dtype} of shape {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__


def check_range(name: str, values: np.ndarray, least: float, most: float) -> None:
    """Raise CheckpointError unless all of `values` lie from `least` to `most`."""
    if values.size and not least <= values.min() <= values.max() <= most:
        raise refused(name, f"goes from {values.min()} to {values.max()}", f"from {least} to {most}")


def check_position(
    position: np.ndarray, running: np.ndarray, n_states: int, time_limit: int, stuck: np.ndarray | None
) -> None:
    """Raise CheckpointError unless episodes can be there.

    The rows of `position` are a state and the steps of an episode; `running` are returns, `stuck` the states
    in which none can be, or None.
    """
    at = position[:, 0]
    check_range("position, the state,", at, -1, n_states - 1)
    check_range("position, the steps of the episode,", position[:, 1], 0, time_limit - 1)
    if stuck is not None and (inside := np.isin(at, stuck)).any():
        raise refused("position", f"is in state {at[inside][0]}", "a state in which some action is legal")
    if not np.isfinite(running).all():
        raise refused("running", f"is the return {running[~np.isfinite(running)][0]}", "a finite number")


def check_replay(state: State, table: LocalTable) -> None:
    """Raise CheckpointError if a kernel could not work with the numbers in a replay memory.

    Its arrays are those that `check_arrays` lets pass.
    """
    entries, rewards, targets, ring = (state[name] for name in REPLAY_ARRAYS)
    capacity = entries.size
    held, place, owed = ring.tolist()
    if not (held.is_integer() and 0 <= held <= capacity):
        raise refused("replay_ring", f"holds {held} transitions", f"a whole number from 0 to {capacity}")
    # A ring is written from its beginning on, and from there again once it is full.
    allowed, is_good = f"{held:g}", place == held
    if held == capacity:
        allowed = f"a whole number from 0 to {capacity - 1}"
        is_good = place.is_integer() and 0 <= place < capacity
    if not is_good:
        raise refused("replay_ring", f"has {place} as the next place while it holds {held:g}", allowed)
    if not 0.0 <= owed < 1.0:
        raise refused("replay_ring", f"owes {owed} updates", "a number of at least 0 and below 1")
    count = int(held)
    check_range("replay_entries", entries[:count], 0, table.n_states * table.n_actions - 1)
    check_range("replay_targets", targets[:count], 0, 2 * table.n_states - 1)
    if table.illegal is not None and table.illegal[entries[:count]].any():
        raise refused("replay_entries", "holds an illegal action", "legal ones only")
    if not np.isfinite(rewards[:count]).all():
        raise refused("replay_rewards", "holds NaN or infinity", "finite numbers only")


def stack_states(states: list[State]) -> State:
    """Return the states of several learners as one, whose arrays have the learner as their first axis.

    All have the same names and shapes; only the masks may be missing in some: all actions are legal there.
    """
    stacked = {}
    for name in dict.fromkeys(name for state in states for name in state):
        models = [state[name] for state in states if name in state]
        everything = np.ones_like(models[0])
        stacked[name] = np.stack(
            [state.get(name, everything) if name == MASKS else state[name] for state in states]
        )
    return stacked


def join_states(stacked: list[State]) -> State:
    """Return stacked states, of the same names, as one of all their learners, in this order."""
    return {name: np.concatenate([state[name] for state in stacked]) for name in stacked[0]}


def unstack_states(arrays: State, n: int) -> list[State]:
    """Return the states of `n` learners that `stack_states` made one of, as views; else CheckpointError."""
    for name, array in arrays.items():
        if array.shape[:1] != (n,):
            raise refused(
                name, f"has the shape {array.shape}", f"one whose first number is {n}, the learners"
            )
    return [{name: array[i] for name, array in arrays.items()} for i in range(n)]
