"""Learning from logged transitions, one after the other."""

from __future__ import annotations

import math

import numpy as np

from dist_classicrl._jit import jit_for
from dist_classicrl._random import stream_key
from dist_classicrl.data.transitions import Transitions
from dist_classicrl.learning import loops, rules
from dist_classicrl.learning.learner import Totals
from dist_classicrl.learning.loops import NO_LINE, Batch, Line, Stretch
from dist_classicrl.learning.memory import RuleMemory
from dist_classicrl.learning.rates import Rates
from dist_classicrl.learning.rules import compiling
from dist_classicrl.schedules import PerVisit
from dist_classicrl.settings import Settings
from dist_classicrl.tables.kernels import SHARED_LOAD
from dist_classicrl.tables.local import LocalTable
from dist_classicrl.tables.shape import TableShape


class LoggedLearner:
    """Learns the transitions of one of `ranks` ranks, shuffled anew in each epoch.

    Actions that are in no transition are no part of any maximum or mean. Of an epoch, rank r learns every
    `ranks`-th transition of the same order from the r-th on, so that all are learned once, by somebody.
    """

    def __init__(
        self,
        transitions: Transitions,
        settings: Settings,
        shape: TableShape,
        steps: int,
        seed: tuple[int, ...],
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        n_states, n_actions = shape.n_states, shape.n_actions
        seen = np.zeros((n_states, n_actions), bool)
        seen[transitions.states, transitions.actions] = True
        self.table = LocalTable(n_states, n_actions, np.dtype(settings.dtype), seen, shape=shape)
        self._transitions, self._seed, self._rank, self._ranks = transitions, seed, rank, ranks
        self._rule, self._parameters = rules.find(settings.algorithm)
        self._busiest = int(np.bincount(transitions.states * n_actions + transitions.actions).max())
        self._schedule = schedule = settings.learning_rate
        size = 0.0 if isinstance(schedule, PerVisit) else schedule.at(steps)
        self._step_size = Line(size, 0.0, 0)
        memory = RuleMemory(self._rule, self._parameters, self.table, 1)
        self._context = memory.context(self.table, Rates(settings, ranks).table, settings.discount_factor)
        self._learn = jit_for(loops.learn_batch, self._rule.parameters)
        self._totals = Totals()

    def share_of(self, epoch: int) -> np.ndarray:
        """Return which transitions this rank learns in an epoch, in their order, int64."""
        rng = np.random.default_rng([*self._seed, epoch])
        return rng.permutation(len(self._transitions))[self._rank :: self._ranks]

    def merges(self, epoch: int) -> int:
        """Return how often ranks should merge what they learn in an epoch.

        The maps of all ranks together may leave exp(-4) of what an entry was before: what comes after that
        would overwrite what others have learned, see the design notes.
        """
        size = self._step_size.value
        if isinstance(self._schedule, PerVisit):
            size = self._schedule.at_visit(self._busiest * epoch, self._ranks)
        return max(1, math.ceil(self._busiest * size / SHARED_LOAD))

    def learn(self, epoch: int, part: int, parts: int) -> None:
        """Learn one of so many parts of this rank's share of an epoch."""
        share = self.share_of(epoch)
        order = share[share.size * part // parts : share.size * (part + 1) // parts]
        data = self._transitions
        batch = Batch(
            np.zeros(order.size, np.int64),
            data.states[order],
            data.actions[order],
            data.next_states[order],
            data.rewards[order],
            data.terminated[order],
            np.zeros(order.size, bool),
        )
        key = stream_key(self._seed[0], "logged", *self._seed[1:], epoch, part, self._rank)
        stretch = Stretch(key, 0, order.size, self._step_size, NO_LINE)
        with compiling(self._rule):
            self._learn(self._parameters, batch, 0, self._context, None, stretch, self._totals.values)
