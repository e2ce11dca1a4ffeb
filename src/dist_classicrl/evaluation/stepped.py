"""Greedy episodes in environments that Gymnasium steps."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dist_classicrl._jit import compiled_for, jit, jit_inline
from dist_classicrl._jit.bound import Bound, taken
from dist_classicrl._random import stream_key
from dist_classicrl.environments.stepped.base import (
    ENDED,
    GOES_ON,
    WRONG,
    WRONG_MASK,
    Counted,
)
from dist_classicrl.learning.loops import ACT, BEGUN, PLAYED, STEPPED, can_act, choose_actions, take_play
from dist_classicrl.learning.memory import RuleMemory
from dist_classicrl.learning.rules.q_learning import RULE, QLearning
from dist_classicrl.tables.line_table import LineTable
from dist_classicrl.tables.local import LocalTable

if TYPE_CHECKING:
    from dist_classicrl.environments.stepped.base import SteppedEnv

Q_LEARNING = QLearning()  # plays the best action of the table, as its only one

# Places in `Played.progress`.
DONE = 0  # episodes
CUT_OFF = 1  # of those
DRAWS = 2  # draws of actions used
HAS_TO_RESET = 3  # whether all environments are to be reset

_NOTHING = 0, 0.0, False, False


class Played(NamedTuple):
    """What E environments are played with, and N episodes that came of it."""

    context: Any
    counted: Counted  # of the environments, as the next three
    given_mask: np.ndarray | None
    masks: np.ndarray | None  # bool, shape (E, A), as the next
    next_masks: np.ndarray | None
    rows: np.ndarray  # int64, shape (E,): of the table, those of where the environments stand
    actions: np.ndarray  # int64, shape (E,)
    key: np.uint64  # what actions are drawn from
    running: np.ndarray  # float64, shape (E,): returns of the running episodes
    elapsed: np.ndarray  # int64, shape (E,): their steps
    #: bool, shape (E,): has come to the end of its episode, and waits for the others to
    waits: np.ndarray
    shares: np.ndarray  # int64, shape (E,): episodes that an environment is still to play
    returns: np.ndarray  # float64, shape (N,)
    lengths: np.ndarray  # int64, shape (N,)
    max_steps: int
    progress: np.ndarray  # int64, shape (4,): see above


@jit
def play_on(played: Any, what: int, next_state: int, reward: float, terminated: bool, truncated: bool) -> int:
    """Go on with greedy episodes; `played` is a `Played`, bound.

    For `what` to do, the other arguments and what is returned see `go_on` of `learning.loops`; no action is
    due where all episodes are played, and where the environments have to be reset.
    """
    played = taken(played)
    counted, progress = played.counted, played.progress
    came = GOES_ON
    if what >= PLAYED:
        given, masks, next_masks = played.given_mask, played.masks, played.next_masks
        came = take_play(what, counted, given, masks, next_masks, next_state, reward, terminated, truncated)
        if came == WRONG or came == WRONG_MASK:
            return came
    if what == STEPPED or what == PLAYED:
        progress[DRAWS] += played.actions.size
        _count(played)
        if what == STEPPED or came == ENDED:
            return came
    is_done = progress[DONE] == played.returns.size or progress[HAS_TO_RESET] != 0
    if what != ACT and (is_done or not can_act(played.masks)):
        return came
    rows, masks = played.rows, played.masks
    choose_actions(Q_LEARNING, played.context, rows, masks, 0.0, played.key, progress[DRAWS], played.actions)
    return played.actions[0]


@jit_inline
def _count(played: Played) -> None:
    """Count a step of the environments and the episodes that it ended."""
    counted, progress, waits = played.counted, played.progress, played.waits
    waiting, cut = 0, False
    for e in range(waits.size):
        if waits[e]:
            waiting += 1
            continue
        if counted.valid[e]:
            played.running[e] += counted.rewards[e]
            played.elapsed[e] += 1
        cut |= played.elapsed[e] >= played.max_steps
    # No environment of a batch can be reset alone. To throw away what the others are in the middle of would
    # prefer short episodes, so where one is cut off these come to their ends first.
    has_to_wait = cut or waiting > 0
    for e in range(waits.size):
        is_over = counted.terminated[e] or counted.truncated[e] or played.elapsed[e] >= played.max_steps
        if waits[e] or not is_over:
            continue
        if played.elapsed[e] and played.shares[e] > 0:
            n = progress[DONE]
            played.returns[n], played.lengths[n] = played.running[e], played.elapsed[e]
            progress[CUT_OFF] += not counted.terminated[e]
            progress[DONE] = n + 1
            played.shares[e] -= 1
        played.running[e], played.elapsed[e] = 0.0, 0
        if has_to_wait:
            waits[e] = True
            waiting += 1
    if waiting == waits.size:
        progress[HAS_TO_RESET] = 1
        waits[:] = False


def play_stepped(
    env: SteppedEnv,
    table: LocalTable | LineTable,
    episodes: int,
    seed: int,
    max_steps: int,
    is_over: Callable[[], bool],
    rows_of: Callable[[np.ndarray], np.ndarray] | None = None,
) -> tuple[np.ndarray, np.ndarray, int]:
    """Play in a batch, where each environment has a share of the episodes: short ones are not preferred.

    `rows_of` returns the rows of states, where they are not the states. Return the returns and the lengths
    of the episodes and how many were cut off; fewer than were asked for where it `is_over`, which is asked
    between two steps.
    """
    n = env.n_envs
    shares = np.full(n, episodes // n)
    shares[: episodes % n] += 1
    env.reset(int(stream_key(seed, "evaluation environment") >> np.uint64(33)))
    played = Played(
        RuleMemory(RULE, Q_LEARNING, table, 0).context(table, None, 1.0),
        env.counted,
        env.given_mask,
        env.masks,
        env.next_masks,
        env.states if rows_of is None else np.zeros(n, np.int64),
        np.zeros(n, np.int64),
        stream_key(seed, "evaluation"),
        np.zeros(n),
        np.zeros(n, np.int64),
        np.zeros(n, bool),
        shares,
        np.zeros(episodes),
        np.zeros(episodes, np.int64),
        max_steps,
        np.zeros(4, np.int64),
    )
    loop, actions, progress = _loop_with(played), played.actions, played.progress
    while progress[DONE] < episodes and not is_over():
        if env.next_masks is not played.next_masks:  # its first, perhaps as an episode begins
            given, masks = env.given_mask, env.masks
            played = played._replace(given_mask=given, masks=masks, next_masks=env.next_masks)
            loop = _loop_with(played)
        if rows_of is not None:
            played.rows[:] = rows_of(env.states)
        loop(ACT, *_NOTHING)
        is_counted = False
        if env.plays and rows_of is None:
            calls = partial(loop, PLAYED), partial(loop, BEGUN)
            is_counted = env.play(int(actions[0]), *calls, actions, is_over)
        else:
            env.step(actions)
        if not is_counted:
            loop(STEPPED, *_NOTHING)
        if progress[HAS_TO_RESET]:
            env.reset()
            progress[HAS_TO_RESET] = 0
    done = progress[DONE]
    return played.returns[:done], played.lengths[:done], int(progress[CUT_OFF])


def _loop_with(played: Played) -> Callable[..., int]:
    bound = Bound(played)
    return partial(compiled_for(play_on, bound, ACT, *_NOTHING), bound)
