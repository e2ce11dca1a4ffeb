"""Experience replay: a ring of old transitions, which are learned again. Lin (1992)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dist_classicrl._jit import jit, jit_inline
from dist_classicrl._random import GAMMA, below, mix
from dist_classicrl.errors import SettingsError
from dist_classicrl.learning.rules.kernel import Context, Now, Transition, learn
from dist_classicrl.learning.state import MASKS, REPLAY_ARRAYS, State
from dist_classicrl.settings import Settings
from dist_classicrl.tables.rows import ONE_REPLAY, actions_of


class Replay(NamedTuple):
    """The ring, and where its transitions are learned."""

    context: Context  # its masks are those of the ring's next states
    entries: np.ndarray  # int64, shape (capacity,)
    rewards: np.ndarray  # float64, shape (capacity,)
    #: int64, shape (capacity,): the next state doubled, plus 1 where the transition terminated
    targets: np.ndarray
    ring: np.ndarray  # float64, shape (3,): the number held, the next place, and the updates owed
    ratio: float  # updates per step


@jit
def remember(replay, entry, reward, next_state, terminated):
    """Write a transition into the ring, and return its place there."""
    entries, ring = replay.entries, replay.ring
    place = np.int64(ring[1])
    entries[place] = entry
    replay.rewards[place] = reward
    replay.targets[place] = next_state * 2 + terminated
    ring[0] = max(ring[0], ring[1] + 1.0)
    ring[1] = 0.0 if place + 1 == entries.size else ring[1] + 1.0
    ring[2] += replay.ratio
    return place


@jit
def keep_mask(kept, place, masks, i):
    """Copy row `i` of `masks` to row `place` of `kept`, unless `masks` is None."""
    if masks is not None:
        for action in range(masks.shape[1]):
            kept[place, action] = masks[i, action]


@jit
def replay_updates(rule, replay, now, random, learned):
    """Do the replayed updates that are owed, each on a transition that the stream `random` draws uniformly.

    They count as updates of the map, not as visits.
    """
    context, ring = replay.context, replay.ring
    n_actions = actions_of(context.table)
    draw = random
    while ring[2] >= 1.0:
        ring[2] -= 1.0
        draw += GAMMA
        drawn = mix(draw)
        place = below(drawn, np.int64(ring[0]))
        entry, target = replay.entries[place], replay.targets[place]
        state = entry // n_actions
        step = Transition(
            state,
            entry - state * n_actions,
            replay.rewards[place],
            target >> 1,
            (target & 1) == 1,
            False,
            place,
        )
        again = Now(now.step_size, now.epsilon, drawn ^ GAMMA, now.walker, ONE_REPLAY)
        learned = learn(rule, context, again, step, learned)
    return learned


@jit_inline
def learn_again(rule, replay, entry, step, masks, now, random, learned):
    """Remember a transition and do the replayed updates that are owed; nothing where `replay` is None."""
    if replay is None:
        return learned
    place = remember(replay, entry, step.reward, step.next_state, step.terminated)
    keep_mask(replay.context.masks, place, masks, step.i)
    return replay_updates(rule, replay, now, random, learned)


class ReplayMemory:
    """The arrays of a ring."""

    def __init__(self, capacity: int, ratio: float) -> None:
        self._arrays = (
            np.zeros(capacity, np.int64),
            np.zeros(capacity),
            np.zeros(capacity, np.int64),
            np.zeros(3),
        )
        self._ratio = ratio
        self._masks: np.ndarray | None = None

    @classmethod
    def for_settings(cls, settings: Settings) -> ReplayMemory | None:
        """Return one if anything is to be replayed."""
        if settings.replay_ratio <= 0.0:
            return None
        try:
            return cls(settings.buffer_size, settings.replay_ratio)
        except MemoryError as error:
            raise SettingsError(
                f"buffer_size={settings.buffer_size} takes {24 * settings.buffer_size / 2**30:.3g} GiB for "
                "each learner, which cannot be had. Make it smaller."
            ) from error

    def in_context(self, context: Context) -> Replay:
        """Return the ring for the kernels, learned from where `context` says."""
        return Replay(context._replace(masks=self._masks), *self._arrays, self._ratio)

    def keep_masks(self, n_actions: int) -> None:
        """Keep the next states' legal actions from now on; what is held already allowed all."""
        if self._masks is None:
            self._masks = np.ones((self._arrays[0].size, n_actions), bool)

    @property
    def arrays(self) -> State:
        """The arrays by their names in a checkpoint, without the masks."""
        return dict(zip(REPLAY_ARRAYS, self._arrays, strict=True))

    def state(self) -> State:
        """Return copies of what is held, the masks only where they are kept."""
        state: dict[str, Any] = {name: array.copy() for name, array in self.arrays.items()}
        if self._masks is not None:
            state[MASKS] = self._masks.copy()
        return state

    def restore(self, state: State) -> None:
        """Put a checked `state` back, with masks only where they are kept; without, all actions are legal."""
        for name, array in self.arrays.items():
            array[:] = state[name]
        if self._masks is not None:
            self._masks[:] = state.get(MASKS, True)
