"""The pocket cube, 2 x 2 x 2, as a compiled game whose states are keys.

One corner is held fast, which leaves seven, and turns of the three sides that do not have it: 3,674,160
states, each at most 14 quarter turns, or 11 turns where half turns count as one, from the solved one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dist_classicrl._jit import jit
from dist_classicrl.checks import YesOrNo
from dist_classicrl.environments.simulate import CompiledSimulator

__all__ = ["distances", "pocket_cube", "turn_names"]

CORNERS = 7
STATES = 3_674_160
"""7! places of the corners times 3^6 twists: that of the last follows from the others."""

_BITS = 5  # of each place in a key: which corner is there (3), and how it is twisted (2)
_FACTORIALS = (720, 120, 24, 6, 2, 1, 1)

# Where the corner comes from that a quarter turn brings to each place, and by how much that twists it. Places
# are up-right-front, up-front-left, up-left-back, up-back-right, down-front-right, down-left-front and
# down-right-back.
_QUARTER_TURNS = {
    "R": ((4, 1, 2, 0, 6, 5, 3), (2, 0, 0, 1, 1, 0, 2)),
    "U": ((3, 0, 1, 2, 4, 5, 6), (0, 0, 0, 0, 0, 0, 0)),
    "F": ((1, 5, 2, 3, 0, 4, 6), (1, 2, 0, 0, 2, 1, 0)),
}


class PocketCube(NamedTuple):
    """What `reset` and `step` take as `data`."""

    sources: np.ndarray  # int64, shape (turns, CORNERS)
    twists: np.ndarray  # int64, likewise
    solved: int  # the key


def key_of(corners: np.ndarray, twists: np.ndarray) -> int:
    """Return the key of the corners, with their twists, at the places."""
    pairs = zip(corners.tolist(), twists.tolist(), strict=True)
    return sum((corner | twist << 3) << _BITS * place for place, (corner, twist) in enumerate(pairs))


def turn_names(half_turns: bool = False) -> list[str]:
    """Return what the actions are called: R is the right side clockwise, R' the other way, R2 half a turn."""
    return [f"{side}{how}" for side in _QUARTER_TURNS for how in ("", "'", *(["2"] if half_turns else []))]


def pocket_cube(half_turns: bool = False, max_episode_steps: int | None = 50) -> CompiledSimulator:
    """Return the game: it begins with any cube but the solved one, and each turn costs 1 until it is solved.

    Parameters
    ----------
    half_turns : bool
        Whether a half turn is a turn, too: nine actions in place of six.
    max_episode_steps : int, optional

    Raises
    ------
    SettingsError
        An argument is not allowed.
    """
    half_turns = YesOrNo()("half_turns", half_turns)
    identity = np.arange(CORNERS), np.zeros(CORNERS, np.int64)
    turns = []
    for source, twist in _QUARTER_TURNS.values():
        quarter = np.array(source), np.array(twist)
        half = _after(quarter, quarter)
        turns += [quarter, _after(quarter, half), *([half] if half_turns else [])]
    data = PocketCube(
        np.stack([source for source, _ in turns]), np.stack([twist for _, twist in turns]), key_of(*identity)
    )
    return CompiledSimulator.game(
        f"PocketCube, {'half' if half_turns else 'quarter'} turns",
        n_actions=len(turns),
        data=data,
        reset=reset,
        step=step,
        keyed=True,
        max_episode_steps=max_episode_steps,
    )


def _after(
    first: tuple[np.ndarray, np.ndarray], then: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    return first[0][then[0]], (first[1][then[0]] + then[1]) % 3


@jit
def reset(data, memory, random):
    """Return one of the cubes that are not solved, each with the same chance."""
    number = np.int64(1 + random % np.uint64(STATES - 1))
    twist_number, place_number = number % 729, number // 729
    key, left, twisted = 0, 0x6543210, 0
    for place in range(CORNERS):
        pick = place_number // _FACTORIALS[place] * 4
        place_number %= _FACTORIALS[place]
        corner = (left >> pick) & 7
        left = (left & ((1 << pick) - 1)) | ((left >> (pick + 4)) << pick)
        twist = twist_number % 3 if place < CORNERS - 1 else (3 - twisted % 3) % 3
        twist_number //= 3
        twisted += twist
        key |= (corner | twist << 3) << _BITS * place
    return key


@jit
def turned(data, key, action):
    """Return the key after a turn."""
    turned_key = 0
    for place in range(CORNERS):
        found = key >> _BITS * data.sources[action, place]
        twist = ((found >> 3) & 3) + data.twists[action, place]
        turned_key |= ((found & 7) | (twist - 3 if twist > 2 else twist) << 3) << _BITS * place
    return turned_key


@jit
def step(data, memory, key, action, random):
    """Turn a side."""
    next_key = turned(data, key, action)
    return next_key, -1.0, next_key == data.solved


@jit
def _turn_all(data, keys, turned_keys):
    for action in range(turned_keys.shape[0]):
        for i in range(keys.size):
            turned_keys[action, i] = turned(data, keys[i], action)


def distances(game: CompiledSimulator) -> tuple[np.ndarray, np.ndarray]:
    """Return all keys, ascending, and how many turns each is from the solved cube, by breadth-first search.

    Returns
    -------
    keys : ndarray(int64), shape (STATES,)
    distances : ndarray(int8), shape (STATES,)
    """
    levels = [np.array([game.tables.solved])]
    while levels[-1].size:
        found = np.empty((game.n_actions, levels[-1].size), np.int64)
        _turn_all(game.tables, levels[-1], found)
        # A turn and the one back change the distance by one at most: only the last two levels can come again.
        near = np.concatenate(levels[-2:])
        levels.append(np.setdiff1d(found.ravel(), near))
    keys = np.concatenate(levels)
    far = np.repeat(np.arange(len(levels), dtype=np.int8), [level.size for level in levels])
    order = np.argsort(keys)
    return keys[order], far[order]
