"""Learning in environments that Gymnasium steps."""

from __future__ import annotations

from functools import partial

import numpy as np

from dist_classicrl._jit import compiled_for, jit_for
from dist_classicrl._jit.bound import Bound
from dist_classicrl._random import stream_key
from dist_classicrl.environments.resolve import Source
from dist_classicrl.environments.stepped.base import SteppedEnv
from dist_classicrl.learning import loops
from dist_classicrl.learning.learner import Problem, Stream, Totals
from dist_classicrl.learning.loops import (
    ACT,
    BEGUN,
    DUE,
    EPSILON_AT,
    HELD,
    LEARN,
    LEFT,
    ON_LINE,
    PLAYED,
    STEP_SIZE_AT,
    STEPPED,
    USED,
    WHOLES,
    Batch,
    Stepping,
)
from dist_classicrl.learning.memory import RuleMemory
from dist_classicrl.learning.replay import ReplayMemory
from dist_classicrl.learning.rules import compiling
from dist_classicrl.learning.state import MASKS, OWNED, State, check_arrays, check_replay


class SteppedLearner:
    """Learns in environments that Gymnasium steps; a walker is a batch of them. See `Learner`."""

    def __init__(self, problem: Problem) -> None:
        self.table = problem.table
        self.totals = Totals()
        self._problem = problem
        self._batches: dict[int, _Walkers] = {}

    @property
    def quantum(self) -> int:
        """Transitions that one call of the environment makes."""
        return next(iter(self._batches.values())).n_envs

    @property
    def walkers(self) -> list[int]:
        """See `Learner`."""
        return list(self._batches)

    def add(self, number: int, source: Source, seed: int) -> None:
        """See `Learner`."""
        if source.stepped is None:
            raise TypeError(f"{source.name} is not stepped")
        if number in self._batches:
            self._batches[number].close()
        self._batches[number] = _Walkers(source.stepped, self._problem, self.totals, seed, number)

    def learn(self, walker: int, stream: Stream, steps: int) -> None:
        """See `Learner`."""
        self._batches[walker].learn(stream, steps)

    def state(self, walker: int) -> State:
        """See `Learner`, without the episodes: what an environment holds cannot be saved."""
        return self._batches[walker].state()

    def restore(self, walker: int, state: State) -> None:
        """See `Learner`: before anything was learned; episodes begin anew."""
        self._batches[walker].restore(state)

    def close(self) -> None:
        """See `Learner`."""
        for batch in self._batches.values():
            batch.close()


class _Walkers:
    """A batch of environments, and the transitions that wait until a lease pays for them."""

    def __init__(self, env: SteppedEnv, problem: Problem, totals: Totals, seed: int, number: int) -> None:
        self._rule, self._parameters = problem.rule, problem.parameters
        self._loop = jit_for(loops.go_on, problem.rule.parameters)
        self._env = env
        self._table = problem.table
        self._rates = problem.rates
        self._discount = problem.settings.discount_factor
        self._batch_size = problem.settings.batch_size
        self._totals = totals
        self._memory = RuleMemory(
            problem.rule, self._parameters, self._table, env.n_envs, problem.behavior, number
        )
        self._replay = ReplayMemory.for_settings(problem.settings)
        self._actions = np.zeros(env.n_envs, np.int64)
        self._key = stream_key(seed, "stepped")
        room = problem.settings.batch_size + env.n_envs
        dtypes = (np.int64, np.int64, np.int64, np.int64, np.float64, bool, bool)
        self._batch = Batch._make(np.zeros(room, dtype) for dtype in dtypes)
        self._masks = np.ones((room, env.n_actions), bool)
        self._has_masks = False
        self._returns: list[float] = []  # of episodes that are not counted yet
        self._lengths: list[int] = []
        self._stream, self._whole = np.zeros(1, np.uint64), np.zeros(WHOLES, np.int64)
        self._lines = np.zeros((2, 2))
        self._prepare(seed)

    @property
    def n_envs(self) -> int:
        return self._env.n_envs

    def _prepare(self, seed: int) -> None:
        """Reset the environments, and get ready what `learn` calls."""
        self._env.reset(seed)
        if self._env.masks is not None:
            self._follow_masks()
        else:
            self._compile()

    def _follow_changes(self) -> None:
        """Compile for what has changed: the first masks, or the number of workers."""
        if self._env.next_masks is not self._stepping.next_masks:
            self._follow_masks()
        elif self._stepping.context.step_sizes is not self._rates.table:
            self._compile()

    def _follow_masks(self) -> None:
        self._has_masks = True
        if self._replay is not None:
            self._replay.keep_masks(self._env.n_actions)
        self._compile()

    def _compile(self) -> None:
        """Compile the loops for the arrays that there are now, or load them from disk."""
        env = self._env
        masks = self._masks if self._has_masks else None
        context = self._memory.context(self._table, self._rates.table, self._discount, masks)
        self._stepping = Stepping(
            self._parameters,
            context,
            None if self._replay is None else self._replay.in_context(context),
            env.counted,
            env.given_mask,
            env.masks,
            env.next_masks,
            self._batch,
            self._actions,
            self._totals.values,
            self._batch_size,
            self._key,
            self._stream,
            self._whole,
            self._lines,
        )
        self._plays = env.plays and (env.masks is None or not self._memory.notes_masks)
        bound, nothing = Bound(self._stepping), (0, 0.0, False, False)
        with compiling(self._rule):
            loop = compiled_for(self._loop, bound, ACT, *nothing)
        self._follow, self._begin = partial(loop, bound, PLAYED), partial(loop, bound, BEGUN)
        self._act, self._learn, self._learn_step = (
            partial(loop, bound, what, *nothing) for what in (ACT, LEARN, STEPPED)
        )

    def learn(self, stream: Stream, steps: int) -> None:
        """Learn `steps` transitions of `stream`, in batches of `batch_size`; the last may be cut."""
        self._follow_changes()
        whole, begin = self._whole, stream.used
        whole[LEFT], whole[USED], whole[ON_LINE], whole[DUE] = steps, begin, 0, 0
        self._stream[0] = stream.key
        try:
            self._learn_due(stream)
            while whole[LEFT] > 0:
                held = whole[HELD]
                if (held or whole[USED] > begin) and stream.is_cut():
                    whole[DUE] = whole[LEFT] = held
                    self._learn()
                else:
                    self._step(stream)
                self._learn_due(stream)
        finally:
            stream.used = int(whole[USED])
            self._count_episodes()

    def _learn_due(self, stream: Stream) -> None:
        """Learn what is due where lines have ended, and follow the next ones."""
        whole = self._whole
        while whole[LEFT] > 0 and not whole[ON_LINE]:
            stream.used = int(whole[USED])
            line = stream.stretch(self._rates)
            for place, at, rate in ((0, STEP_SIZE_AT, line.step_size), (1, EPSILON_AT, line.epsilon)):
                self._lines[place] = rate.value, rate.slope
                whole[at] = rate.at - stream.used
            whole[ON_LINE] = line.steps
            self._learn()

    def _step(self, stream: Stream) -> None:
        """Step the environments, the only one as far as it can play, and learn what is due."""
        env = self._env
        self._act()
        if self._plays:
            calls = self._follow, self._begin
            is_noted = env.play(int(self._actions[0]), *calls, self._actions, stream.is_cut)
        else:
            is_noted = False
            masks = None if env.masks is None or not self._memory.notes_masks else env.masks.copy()
            env.step(self._actions)
            if masks is not None:
                self._memory.note_masks(env.before[env.valid], masks[env.valid])
        self._follow_changes()
        if is_noted:
            self._learn()
            return
        self._learn_step()
        if env.episode_returns:
            self._returns += env.episode_returns
            self._lengths += env.episode_lengths

    def _count_episodes(self) -> None:
        """Count those whose last transition is learned: of what waits nobody knows whether it will be."""
        if not self._returns:
            return
        held, batch = int(self._whole[HELD]), self._batch
        waiting = int(np.count_nonzero(batch.terminated[:held] | batch.truncated[:held]))
        ended = slice(max(0, len(self._returns) - waiting))
        returns, lengths = self._returns[ended], self._lengths[ended]
        self._totals.values[:3] += len(returns), sum(returns), sum(lengths)
        del self._returns[ended], self._lengths[ended]

    def state(self) -> State:
        """Return copies of the replay memory and of what the rule shares with merge "owner"."""
        owned = self._memory.state(OWNED)
        return owned if self._replay is None else {**owned, **self._replay.state()}

    def restore(self, state: State) -> None:
        """Put a `state` back, before anything was learned."""
        expected, optional = self._memory.state(OWNED), {}
        if self._replay is not None:
            expected |= self._replay.arrays
            capacity = expected["replay_entries"].size
            optional[MASKS] = np.empty((capacity, self._env.n_actions), bool)
        check_arrays(state, expected, optional)
        if self._replay is not None:
            check_replay(state, self._table)
        self._memory.restore(state, OWNED)
        if self._replay is not None:
            if MASKS in state:
                self._follow_masks()
            self._replay.restore(state)

    def close(self) -> None:
        """Close the environments that were made for this learner."""
        self._env.close()
