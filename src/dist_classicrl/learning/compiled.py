"""Learning in compiled environments: one jitted loop acts, simulates and learns."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dist_classicrl._jit import jit_for
from dist_classicrl.environments.resolve import Source
from dist_classicrl.environments.simulate import CompiledSimulator
from dist_classicrl.environments.trial import run_game, try_out
from dist_classicrl.errors import ActionMaskError, DivergenceError
from dist_classicrl.learning import loops
from dist_classicrl.learning.learner import Problem, Stream, Totals
from dist_classicrl.learning.loops import NO_STEPS, Stretch, Walker
from dist_classicrl.learning.memory import RuleMemory
from dist_classicrl.learning.replay import ReplayMemory
from dist_classicrl.learning.rules import compiling
from dist_classicrl.learning.state import State, check_arrays, check_position, check_replay

NEVER = 1 << 62
"""The time limit of an episode that has none."""


@dataclass
class _Episode:
    """A walker and all that belongs to it."""

    walker: Walker
    memory: RuleMemory
    replay: ReplayMemory | None


class CompiledLearner:
    """Learns in a compiled environment; each walker plays one episode after the other. See `Learner`."""

    quantum = 1

    def __init__(self, problem: Problem) -> None:
        simulator = problem.source.simulator
        if simulator is None:
            raise TypeError(f"{problem.source.name} is not compiled")
        self.table = problem.table
        self.totals = Totals()
        self._settings = problem.settings
        self._rates = problem.rates
        self._simulator = simulator
        self._rule, self._parameters = problem.rule, problem.parameters
        self._behavior = problem.behavior
        self._loop = jit_for(loops.learn_steps, type(simulator.tables), problem.rule.parameters)
        self._episodes: dict[int, _Episode] = {}
        self._stuck = stuck_states(simulator)

    @property
    def walkers(self) -> list[int]:
        """See `Learner`."""
        return list(self._episodes)

    def add(self, number: int, source: Source, seed: int) -> None:
        """See `Learner`; a compiled environment draws from the streams alone, so `seed` is not used."""
        simulator = self._simulator
        walker = Walker(
            0,
            np.zeros(simulator.memory_size, np.int64),
            np.array([-1, 0], np.int64),
            np.zeros(1),
            simulator.max_episode_steps or NEVER,
            np.full(3, -1),
        )
        memory = RuleMemory(self._rule, self._parameters, self.table, 1, self._behavior, number)
        episode = _Episode(walker, memory, ReplayMemory.for_settings(self._settings))
        if not self._episodes:
            if self.table.n_states == simulator.n_states:  # else there is only compiled
                try_out(simulator)
            nowhere = walker._replace(memory=walker.memory.copy(), position=walker.position.copy())
            with compiling(self._rule):
                self._call(_Episode(nowhere, memory, episode.replay), NO_STEPS)
        self._episodes[number] = episode

    def _call(self, episode: _Episode, stretch: Stretch) -> None:
        context = episode.memory.context(self.table, self._rates.table, self._settings.discount_factor)
        replay = None if episode.replay is None else episode.replay.in_context(context)
        walker = episode.walker
        run_game(
            self._simulator,
            walker.came,
            walker.collected,
            self._loop,
            self._parameters,
            self._simulator.tables,
            walker,
            context,
            replay,
            stretch,
            self.totals.values,
        )

    def learn(self, walker: int, stream: Stream, steps: int) -> None:
        """See `Learner`."""
        episode = self._episodes[walker]
        for stretch in stream.stretches(steps, self._rates):
            self._call(episode, stretch)
        if self._stuck is not None and self._stuck.size:
            self._check_not_stuck(self._stuck)
        if not math.isfinite(collected := episode.walker.collected[0]):
            raise infinite_return(collected)

    def _check_not_stuck(self, states: np.ndarray) -> None:
        n_tables = len(self._rule.tables)
        updates = self.table.updates[: n_tables * self.table.n_states * self.table.n_actions]
        rows = updates.reshape(n_tables, self.table.n_states, -1)
        stuck_there(states, np.asarray(rows[:, states].any(axis=(0, 2))))

    def state(self, walker: int) -> State:
        """See `Learner`."""
        episode = self._episodes[walker]
        state = {
            "position": np.concatenate([episode.walker.position, episode.walker.memory]),
            "running": episode.walker.collected.copy(),
            **episode.memory.state(),
        }
        return state if episode.replay is None else {**state, **episode.replay.state()}

    def restore(self, walker: int, state: State) -> None:
        """See `Learner`. What a game keeps in its memory is known to the game alone and not checked."""
        episode = self._episodes[walker]
        check_arrays(state, self.state(walker), {})
        position, running = state["position"], state["running"]
        limit = episode.walker.time_limit
        check_position(position[np.newaxis], running, self.table.n_states, limit, self._stuck)
        if episode.replay is not None:
            check_replay(state, self.table)
            episode.replay.restore(state)
        episode.memory.restore(state)
        episode.walker.position[:] = position[:2]
        episode.walker.memory[:] = position[2:]
        episode.walker.collected[:] = running

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


def stuck_states(simulator: CompiledSimulator) -> np.ndarray | None:
    """Return the states in which no action is legal; None where all are everywhere.

    Where a game has ended there need be none: acting there is what must not happen.
    """
    return None if simulator.legal is None else np.flatnonzero(~simulator.legal.any(axis=1))


def stuck_there(states: np.ndarray, acted: np.ndarray) -> None:
    """Raise ActionMaskError if something was done in one of the `stuck_states`; `acted` says in which."""
    if acted.any():
        raise ActionMaskError(
            f"The compiled environment came to state {states[acted][0]}, where its mask forbids every "
            "action. Allow one there, or let the step that leads there terminate the episode."
        )


def infinite_return(collected: float) -> DivergenceError:
    """Return the error for an episode whose return is no finite number."""
    return DivergenceError(
        f"The undiscounted return of an episode in the compiled environment came to {collected}: rewards are "
        "so large that their sum is beyond all numbers. Make them smaller."
    )
