"""Learning in environments that Gymnasium steps."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from dist_classicrl._jit import compiled_for, jit_for
from dist_classicrl._jit.bound import Bound
from dist_classicrl._random import stream_key
from dist_classicrl.environments.resolve import Source
from dist_classicrl.environments.stepped.base import SteppedEnv
from dist_classicrl.learning import loops
from dist_classicrl.learning.learner import Problem, Stream, Totals
from dist_classicrl.learning.loops import NO_LINE, NO_STEPS, Batch, Given, Play
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
        self._loops = [
            jit_for(loop, problem.rule.parameters)
            for loop in (loops.choose_actions, loops.follow, loops.learn_batch)
        ]
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
        self._draws = 0
        room = problem.settings.batch_size + env.n_envs
        dtypes = (np.int64, np.int64, np.int64, np.int64, np.float64, bool, bool)
        self._batch = Batch._make(np.zeros(room, dtype) for dtype in dtypes)
        self._masks = np.ones((room, env.n_actions), bool)
        self._has_masks = False
        self._held = 0
        self._learned = 0
        self._epsilon = (NO_LINE, 0, 0)
        self._going = np.zeros(3, np.int64), np.zeros(1)  # progress and epsilon of a `Play`
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

    def _follow_masks(self) -> None:
        self._has_masks = True
        if self._replay is not None:
            self._replay.keep_masks(self._env.n_actions)
        self._compile()

    def _compile(self) -> None:
        """Compile the loops for the arrays that there are now, or load them from disk."""
        self._put_together()
        choose, follow, learn = self._loops
        with compiling(self._rule):
            if (play := self._playing) is not None:
                self._follow = partial(compiled_for(follow, play, 0, 0.0, False, False), play)
            self._choose = compiled_for(choose, *self._seen, 0.0, self._key, 0, self._actions)
            self._note = compiled_for(loops.note_steps, self._batch, self._masks, 0, *self._given)
            self._learn_batch = compiled_for(
                learn, self._parameters, self._batch, 0, *self._where, NO_STEPS, self._totals.values
            )

    def _put_together(self) -> None:
        """Group the arrays that there are now as the loops take them."""
        env = self._env
        masks = self._masks if self._has_masks else None
        context = self._memory.context(self._table, self._rates.table, self._discount, masks)
        self._seen = (self._parameters, context, env.states, env.masks)
        self._where = (context, None if self._replay is None else self._replay.in_context(context))
        given = Given(
            env.valid,
            env.before,
            self._actions,
            env.next_states,
            env.rewards,
            env.terminated,
            env.truncated,
        )
        self._given = (given, env.next_masks)
        plays = env.plays and (env.masks is None or not self._memory.notes_masks)
        play = Play(
            self._parameters,
            context,
            env.counted,
            env.masked,
            self._batch,
            None if env.masks is None else self._masks,
            self._actions,
            *self._going,
            self._key,
        )
        self._playing = Bound(play) if plays else None

    def learn(self, stream: Stream, steps: int) -> None:
        """Learn `steps` transitions of `stream`, in batches of `batch_size`; the last may be cut."""
        if self._where[0].step_sizes is not self._rates.table:  # there are more workers now, or fewer
            self._compile()
        while steps > 0:
            batch = min(steps, self._batch_size)
            while (held := self._held - self._learned) < batch:
                if held and stream.is_cut():
                    steps = batch = held
                    break
                self._step(stream, batch)
            self._learn(stream, batch)
            steps -= batch

    def _step(self, stream: Stream, until: int) -> None:
        """Step the environments, the only one until so many transitions are held if it can play."""
        if self._learned:
            self._shift()
        env = self._env
        epsilon = self._epsilon_at(stream.start + stream.used)
        self._choose(*self._seen, epsilon, self._key, self._draws, self._actions)
        if self._playing is not None:
            is_noted = self._play(epsilon, until, stream.is_cut)
        else:
            is_noted = False
            masks = None if env.masks is None or not self._memory.notes_masks else env.masks.copy()
            env.step(self._actions)
            if masks is not None:
                self._memory.note_masks(env.before[env.valid], masks[env.valid])
        if env.next_masks is not self._given[1]:  # the first that it gives, perhaps as an episode begins
            self._follow_masks()
        if not is_noted:
            self._draws += env.n_envs
            self._held = self._note(self._batch, self._masks, self._held, *self._given)
        if env.episode_returns:
            self._totals.values[:3] += (
                len(env.episode_returns),
                sum(env.episode_returns),
                sum(env.episode_lengths),
            )

    def _play(self, epsilon: float, until: int, is_cut: Callable[[], bool]) -> bool:
        """Step the only environment until so many are held, or an episode ends; see `SteppedEnv.play`."""
        progress, chance = self._going
        progress[:], chance[0] = (self._held, until, self._draws), epsilon
        try:
            return self._env.play(int(self._actions[0]), self._follow, self._actions, is_cut)
        finally:
            self._held, _, self._draws = progress.tolist()

    def _epsilon_at(self, step: int) -> float:
        """Return the exploration rate at global `step`; its line is looked up when `step` leaves it."""
        line, first, end = self._epsilon
        if not first <= step < end:
            _, line, end = self._rates.at(step)
            first = step
            self._epsilon = (line, first, end)
        return line.value + line.slope * (line.at + step - first)

    def _shift(self) -> None:
        """Move the transitions that were not learned yet to the front."""
        count = self._held - self._learned
        if count:
            rest = slice(self._learned, self._held)
            arrays = (*self._batch, self._masks) if self._has_masks else self._batch
            for array in arrays:
                array[:count] = array[rest].copy()
        self._held = count
        self._learned = 0

    def _learn(self, stream: Stream, batch: int) -> None:
        for stretch in stream.stretches(batch, self._rates):
            self._learn_batch(
                self._parameters, self._batch, self._learned, *self._where, stretch, self._totals.values
            )
            self._learned += stretch.steps

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
