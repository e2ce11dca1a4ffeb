"""A learner joins an environment to a local table.

It makes a given number of steps, wherever they are asked for. What a stretch of steps does depends on the
random stream and the position in it, not on how the stretch is cut into calls; in a stepped environment, as
long as it is cut between whole batches.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dist_classicrl._random import stream_key
from dist_classicrl.environments.resolve import Source
from dist_classicrl.environments.simulate import CompiledSimulator
from dist_classicrl.environments.stepped.base import SteppedEnv
from dist_classicrl.errors import ActionMaskError, RewardError
from dist_classicrl.learning import q_learning
from dist_classicrl.learning.state import (
    MASKS,
    REPLAY_ARRAYS,
    State,
    check_arrays,
    check_range,
    check_replay,
    refused,
)
from dist_classicrl.learning.state import STATE_ARRAYS as STATE_ARRAYS
from dist_classicrl.learning.state import stack_states as stack_states
from dist_classicrl.learning.state import unstack_states as unstack_states
from dist_classicrl.schedules import PerVisit
from dist_classicrl.settings import Settings
from dist_classicrl.tables.local import LocalTable

logger = logging.getLogger(__name__)

_NEVER = 1 << 62


@dataclass
class Stream:
    """A random stream and how far it has been used: one per lease, or per round and logical worker.

    Attributes
    ----------
    key : uint64
    start : int
        Global step at which the stream begins; schedules are read from there.
    used : int
        Steps made.
    """

    key: np.uint64
    start: int
    used: int = 0


@dataclass
class Totals:
    """Episodes that ended, with the sums of their undiscounted returns and of their lengths in steps.

    And the sum of the absolute temporal-difference errors of all updates but replayed ones, before each.

    A batch of stepped environments may make transitions beyond the last lease, which are then not learned and
    not counted as steps. An episode that ended in one of them was played and is counted here.
    """

    values: np.ndarray = field(default_factory=lambda: np.zeros(4))

    def take(self) -> np.ndarray:
        """Return (episodes, returns, lengths, errors), float64 of shape (4,), and start from zero."""
        taken = self.values.copy()
        self.values[:] = 0.0
        return taken


class Rates:
    """Step sizes and exploration rates in the form that the kernels take.

    Parameters
    ----------
    settings : Settings
    workers : int
        The clock of per-visit step sizes runs at one over this many.

    Attributes
    ----------
    table : ndarray(float64, ndim=1) or None
        `PerVisit.table`, where step sizes are per visit.
    """

    def __init__(self, settings: Settings, workers: int) -> None:
        self._step_size = settings.learning_rate
        self._epsilon = settings.epsilon
        self.workers = 0
        self.table: np.ndarray | None = None
        self.set_workers(workers)

    def set_workers(self, workers: int) -> None:
        """Let the clock of per-visit step sizes run at one over this many from now on."""
        if workers != self.workers:
            self.workers = workers
            if isinstance(self._step_size, PerVisit):
                self.table = self._step_size.table(workers)

    def step_size(self, step: int) -> tuple[tuple[float, float, int], int]:
        """Return (value, slope, steps into the straight stretch) at global `step`, and the stretch's end."""
        if isinstance(self._step_size, PerVisit):
            return (0.0, 0.0, 0), _NEVER
        segment = self._step_size.segment(step)
        return (segment.value, segment.slope, step - segment.start), segment.end

    def epsilon(self, step: int) -> tuple[tuple[float, float, int], int]:
        """Return the same of the exploration rate."""
        segment = self._epsilon.segment(step)
        return (segment.value, segment.slope, step - segment.start), segment.end


class ReplayMemory:
    """The ring buffer of `dist_classicrl.learning.q_learning.remember`."""

    def __init__(self, capacity: int, ratio: float) -> None:
        self.arrays: tuple[Any, ...] = (
            np.zeros(capacity, np.int64),
            np.zeros(capacity),
            np.zeros(capacity, np.int64),
            np.zeros(3),
            ratio,
            None,
        )

    def keep_masks(self, n_actions: int) -> None:
        """Keep the next states' legal actions from now on; what is held already allowed all."""
        if self.arrays[-1] is None:
            self.arrays = (*self.arrays[:-1], np.ones((self.arrays[0].size, n_actions), bool))

    @classmethod
    def for_settings(cls, settings: Settings) -> ReplayMemory | None:
        """Return one if anything is to be replayed."""
        return cls(settings.buffer_size, settings.replay_ratio) if settings.replay_ratio > 0.0 else None

    def state(self) -> State:
        """Return copies of what is held, the masks only where they are kept."""
        state = {name: array.copy() for name, array in zip(REPLAY_ARRAYS, self.arrays, strict=False)}
        if self.arrays[-1] is not None:
            state[MASKS] = self.arrays[-1].copy()
        return state

    def restore(self, state: State) -> None:
        """Put a checked `state` back, with masks only where they are kept; without, all actions are legal."""
        for name, array in zip(REPLAY_ARRAYS, self.arrays, strict=False):
            array[:] = state[name]
        if self.arrays[-1] is not None:
            self.arrays[-1][:] = state.get(MASKS, True)


def training_kernel(simulator: CompiledSimulator) -> Any:
    """Return the training loop for `simulator`: the cached one for what belongs to this package."""
    if simulator.built_in:
        return q_learning.learn_steps
    import numba

    return numba.njit(nogil=True, error_model="numpy")(q_learning.learn_steps.py_func)


class CompiledLearner:
    """Learns in a compiled environment, one episode after the other.

    Parameters
    ----------
    simulator : CompiledSimulator
    table : LocalTable
    settings : Settings
    rates : Rates
    kernel : callable
        See `training_kernel`.
    """

    quantum = 1

    def __init__(
        self, simulator: CompiledSimulator, table: LocalTable, settings: Settings, rates: Rates, kernel: Any
    ) -> None:
        self._tables = simulator.tables
        self._limit = simulator.max_episode_steps or _NEVER
        self._table = table
        self._rates = rates
        self._discount = settings.discount_factor
        self._kernel = kernel
        self._memory = np.zeros(simulator.memory_size, np.int64)
        self._position = np.array([-1, 0], np.int64)
        self._running = np.zeros(1)
        self._replay = ReplayMemory.for_settings(settings)
        self._replay_arrays = None if self._replay is None else self._replay.arrays
        self.totals = Totals()
        # Where a game has ended there need be no legal action: acting there is what must not happen.
        self._stuck = None if simulator.legal is None else np.flatnonzero(~simulator.legal.any(axis=1))

    def prepare(self) -> None:
        """Compile what `learn` calls, or load it from disk."""
        at = (0.0, 0.0, 0)
        position = np.array([-1, 0], np.int64)
        self._kernel(
            self._tables, self._memory.copy(), position, np.zeros(1), self._limit,
            self._table.legal, self._table.row_shape, *self._table.arrays,
            self._rates.table, *at, *at, self._discount, self._replay_arrays, np.uint64(0), 0, 0, np.zeros(4),
        )  # fmt: skip

    def learn(self, stream: Stream, steps: int) -> None:
        """Make `steps` steps of `stream`.

        Raises
        ------
        RewardError
            If a reward was NaN or infinite.
        ActionMaskError
            If a state was reached in which no action is legal.
        """
        last = stream.used + steps
        while stream.used < last:
            at = stream.start + stream.used
            step_size, end = self._rates.step_size(at)
            epsilon, other_end = self._rates.epsilon(at)
            size = min(last - stream.used, end - at, other_end - at)
            self._kernel(
                self._tables, self._memory, self._position, self._running, self._limit,
                self._table.legal, self._table.row_shape, *self._table.arrays,
                self._rates.table, *step_size, *epsilon, self._discount,
                self._replay_arrays, stream.key, stream.used, size, self.totals.values,
            )  # fmt: skip
            stream.used += size
        if self._stuck is not None and self._stuck.size:
            self._check_not_stuck(self._stuck)
        if not math.isfinite(self._running[0]):
            raise RewardError(
                "A reward of the compiled environment was NaN or infinite (an episode's return came to "
                f"{self._running[0]}). Rewards must be finite numbers: correct the game's step function."
            )

    def _check_not_stuck(self, states: np.ndarray) -> None:
        acted = self._table.updates.reshape(-1, self._table.n_actions)[states].any(axis=1)
        if acted.any():
            raise ActionMaskError(
                f"The compiled environment came to state {states[acted][0]}, where its mask forbids every "
                "action. Allow one there, or let the step that leads there terminate the episode."
            )

    def state(self) -> State:
        """Return copies of all that the next step depends on besides the table and the stream."""
        state = {"position": np.concatenate([self._position, self._memory]), "running": self._running.copy()}
        return state if self._replay is None else {**state, **self._replay.state()}

    def restore(self, state: State) -> None:
        """Put a `state` back: the next steps are those that the learner would have made that gave it.

        What a game keeps in its memory is known to the game alone and not checked.

        Raises
        ------
        CheckpointError
            If no learner with these settings in this environment can have had that state.
        """
        check_arrays(state, self.state(), {})
        position, running = state["position"], state["running"]
        at = position[:1]
        check_range("position, the state,", at, -1, self._table.n_states - 1)
        check_range("position, the steps of the episode,", position[1:2], 0, self._limit - 1)
        if self._stuck is not None and np.isin(at, self._stuck).any():
            raise refused("position", f"is in state {at[0]}", "a state in which some action is legal")
        if not np.isfinite(running[0]):
            raise refused("running", f"is the return {running[0]}", "a finite number")
        if self._replay is not None:
            check_replay(state, self._table)
            self._replay.restore(state)
        self._position[:] = position[:2]
        self._memory[:] = position[2:]
        self._running[:] = running

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


class SteppedLearner:
    """Learns in a batch of environments that Gymnasium steps.

    Transitions that are made wait until a lease pays for them.

    Parameters
    ----------
    env : SteppedEnv
    table : LocalTable
    settings : Settings
    rates : Rates
    seed : int
        For the environments' own random streams.
    """

    def __init__(
        self, env: SteppedEnv, table: LocalTable, settings: Settings, rates: Rates, seed: int
    ) -> None:
        self._env = env
        self._table = table
        self._rates = rates
        self._discount = settings.discount_factor
        self._batch_size = settings.batch_size
        self._actions = np.zeros(env.n_envs, np.int64)
        self._seed = seed
        self._replay = ReplayMemory.for_settings(settings)
        self._key = stream_key(seed, "stepped")
        self._draws = 0
        room = settings.batch_size + env.n_envs
        self._states = np.zeros(room, np.int64)
        self._chosen = np.zeros(room, np.int64)
        self._next_states = np.zeros(room, np.int64)
        self._rewards = np.zeros(room)
        self._terminated = np.zeros(room, bool)
        self._masks = np.ones((room, env.n_actions), bool)
        self._has_masks = False
        self._held = 0
        self._learned = 0
        self._epsilon = (0.0, 0.0, 0, 0, 0)
        self.totals = Totals()

    @property
    def quantum(self) -> int:
        """Transitions that one call of the environment makes."""
        return self._env.n_envs

    def prepare(self) -> None:
        """Reset the environments, and compile what `learn` calls, or load it from disk."""
        env, table = self._env, self._table
        env.reset(self._seed)
        if env.masks is not None:
            self._follow_masks()
        nothing = np.zeros(0, np.int64)
        masks = np.ones((0, env.n_actions), bool) if self._has_masks else None
        q_learning.choose_actions(
            table.q, table.best, table.greedy, table.n_actions, nothing, masks, 0.0, self._key, 0, nothing
        )
        q_learning.learn_batch(
            self._states, self._chosen, self._rewards, self._next_states, self._terminated, masks, 0, 0,
            *table.arrays, self._rates.table, 0.0, 0.0, 0, self._discount, self._replay_arrays, self._key, 0,
            self.totals.values,
        )  # fmt: skip

    @property
    def _replay_arrays(self) -> tuple[Any, ...] | None:
        return None if self._replay is None else self._replay.arrays

    def _follow_masks(self) -> None:
        self._has_masks = True
        if self._replay is not None:
            self._replay.keep_masks(self._env.n_actions)

    def learn(self, stream: Stream, steps: int) -> None:
        """Learn `steps` transitions of `stream`, in batches of `batch_size`; `prepare` was called before."""
        while steps > 0:
            batch = min(steps, self._batch_size)
            while self._held - self._learned < batch:
                self._step(stream)
            self._learn(stream, batch)
            steps -= batch

    def _step(self, stream: Stream) -> None:
        if self._learned:
            self._shift()
        env = self._env
        table = self._table
        q_learning.choose_actions(
            table.q, table.best, table.greedy, table.n_actions, env.states, env.masks,
            self._epsilon_at(stream.start + stream.used), self._key, self._draws, self._actions,
        )  # fmt: skip
        self._draws += env.n_envs
        n = env.n_envs
        held = self._held
        self._states[held : held + n] = env.states
        self._chosen[held : held + n] = self._actions
        env.step(self._actions)
        if env.n_valid == n:
            rows: Any = slice(None)
        else:
            rows = env.valid
            self._states[held : held + env.n_valid] = self._states[held : held + n][rows]
            self._chosen[held : held + env.n_valid] = self._actions[rows]
            n = env.n_valid
        self._next_states[held : held + n] = env.next_states[rows]
        self._rewards[held : held + n] = env.rewards[rows]
        self._terminated[held : held + n] = env.terminated[rows]
        if env.next_masks is not None:
            if not self._has_masks:
                self._follow_masks()
            self._masks[held : held + n] = env.next_masks[rows]
        self._held += n
        if env.episode_returns:
            self.totals.values[:3] += (
                len(env.episode_returns),
                sum(env.episode_returns),
                sum(env.episode_lengths),
            )

    def _epsilon_at(self, step: int) -> float:
        """Return the exploration rate at global `step`.

        Its straight stretch is looked up when `step` leaves it.
        """
        value, slope, into, first, end = self._epsilon
        if not first <= step < end:
            (value, slope, into), end = self._rates.epsilon(step)
            first = step
            self._epsilon = (value, slope, into, first, end)
        return value + slope * (into + step - first)

    def _shift(self) -> None:
        """Move the transitions that were not learned yet to the front."""
        count = self._held - self._learned
        if count:
            rest = slice(self._learned, self._held)
            for array in (self._states, self._chosen, self._next_states, self._rewards, self._terminated):
                array[:count] = array[rest].copy()
            if self._has_masks:
                self._masks[:count] = self._masks[rest].copy()
        self._held = count
        self._learned = 0

    def _learn(self, stream: Stream, batch: int) -> None:
        table = self._table
        done = 0
        while done < batch:
            at = stream.start + stream.used
            step_size, end = self._rates.step_size(at)
            size = min(batch - done, end - at)
            q_learning.learn_batch(
                self._states, self._chosen, self._rewards, self._next_states, self._terminated,
                self._masks if self._has_masks else None,
                self._learned, self._learned + size, *table.arrays,
                self._rates.table, *step_size, self._discount,
                self._replay_arrays, stream.key, stream.used, self.totals.values,
            )  # fmt: skip
            self._learned += size
            stream.used += size
            done += size

    def state(self) -> State:
        """Return copies of the replay memory's arrays: what an environment holds cannot be saved."""
        return {} if self._replay is None else self._replay.state()

    def restore(self, state: State) -> None:
        """Put a `state` back, before or after `prepare` and before anything was learned.

        Episodes begin anew.

        Raises
        ------
        CheckpointError
            If no learner with these settings in this environment can have had that state.
        """
        if self._replay is None:
            check_arrays(state, {}, {})
            return
        expected = dict(zip(REPLAY_ARRAYS, self._replay.arrays, strict=False))
        masks = np.empty((expected["replay_entries"].size, self._env.n_actions), bool)
        check_arrays(state, expected, {MASKS: masks})
        check_replay(state, self._table)
        if MASKS in state:
            self._follow_masks()
        self._replay.restore(state)

    def close(self) -> None:
        """Close the environments that were made for this learner."""
        self._env.close()


Learner = CompiledLearner | SteppedLearner


def make_learner(
    source: Source, table: LocalTable, settings: Settings, rates: Rates, seed: int, kernel: Any = None
) -> Learner:
    """Return the learner for `source`, whose stepped environments it takes over; `seed` is for them alone."""
    if source.simulator is not None:
        if kernel is None:
            kernel = training_kernel(source.simulator)
        return CompiledLearner(source.simulator, table, settings, rates, kernel)
    env = source.stepped
    if env is None:
        raise TypeError("a Source has a simulator or stepped environments")
    return SteppedLearner(env, table, settings, rates, seed)
