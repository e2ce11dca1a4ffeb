"""Learning from logged transitions, one after the other."""

from __future__ import annotations

import math

import numpy as np

from dist_classicrl._jit import jit_for
from dist_classicrl._random import GAMMA, mixed, stream_key, unmixed
from dist_classicrl.data.transitions import Transitions
from dist_classicrl.learning import loops, rules
from dist_classicrl.learning.learner import Totals
from dist_classicrl.learning.loops import Logged
from dist_classicrl.learning.memory import RuleMemory
from dist_classicrl.learning.rates import Rates, values_at
from dist_classicrl.learning.rules import compiling
from dist_classicrl.rules import LearningRule, behaviors
from dist_classicrl.schedules import PerVisit
from dist_classicrl.schedules.kinds import final_value, highest
from dist_classicrl.settings import Settings
from dist_classicrl.tables.kernels import SHARED_LOAD
from dist_classicrl.tables.local import LocalTable
from dist_classicrl.tables.shape import TableShape


class LoggedLearner:
    """Learns the transitions of one of `ranks` ranks, shuffled anew in each epoch.

    Actions that are in no transition are no part of any maximum or mean. Of an epoch, rank r learns every
    `ranks`-th transition of the same order from the r-th on, so that all are learned once, by somebody.
    In every second epoch the draws of a transition are the complement of those in the epoch before: so each
    of two tables of which a rule draws one learns every transition once in two epochs, where draws of their
    own would leave it to chance how often, which is the larger part of the noise.

    Step sizes that follow the global step go on from step `steps`, one for each transition of all ranks.
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
        self._rule, parameters = rules.find(settings.algorithm)
        self._parameters = self._rule.in_numbers(parameters)
        self._following = following(transitions) if needs_next_action(self._rule) else None
        moved = transitions.states
        if not moves_rows(self._rule):
            moved = moved * n_actions + transitions.actions
        self._busiest = int(np.bincount(moved).max())
        self._schedule, self._steps = settings.learning_rate, steps
        exploration = behaviors.temperature_of(settings.behavior) or settings.epsilon
        self._epsilon = final_value(exploration)
        behavior = behaviors.in_kernels(behaviors.behavior_of(settings.behavior))
        memory = RuleMemory(self._rule, self._parameters, self.table, 1, behavior)
        self._context = memory.context(self.table, Rates(settings, ranks).table, settings.discount_factor)
        self._learn = jit_for(loops.learn_logged, self._rule.parameters)
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
        schedule = self._schedule
        if isinstance(schedule, PerVisit):
            size = schedule.at_visit(self._busiest * epoch, self._ranks)
        else:
            size = highest(schedule, self._first_step(epoch), self._first_step(epoch + 1) - 1)
        return max(1, math.ceil(self._busiest * size / SHARED_LOAD))

    def _first_step(self, epoch: int) -> int:
        return self._steps + epoch * len(self._transitions)

    def learn(self, epoch: int, part: int, parts: int) -> None:
        """Learn one of so many parts of this rank's share of an epoch."""
        share = self.share_of(epoch)
        begin, end = share.size * part // parts, share.size * (part + 1) // parts
        order = share[begin:end]
        first = self._first_step(epoch) + begin * self._ranks + self._rank
        step_sizes = values_at(self._schedule, first, self._ranks, order.size)
        data, following = self._transitions, self._following
        if following is not None:  # one whose next action nobody knows has no target
            is_known = data.terminated[order] | (following[order] >= 0)
            order, step_sizes = order[is_known], step_sizes[is_known]
        key = stream_key(self._seed[0], "logged", *self._seed[1:], epoch // 2)
        drawn = mixed(key + GAMMA * order.astype(np.uint64))
        logged = Logged(
            data.states[order],
            data.actions[order],
            data.next_states[order],
            data.rewards[order],
            data.terminated[order],
            None if following is None else following[order],
            step_sizes,
            unmixed(~drawn if epoch % 2 else drawn),
        )
        with compiling(self._rule):
            self._learn(self._parameters, logged, self._context, self._epsilon, self._totals.values)


def following(transitions: Transitions) -> np.ndarray:
    """Return the action that was chosen after each transition, int64; -1 where that is not known.

    It is not where an episode was cut off, and not needed where one terminated.
    """
    actions = np.append(transitions.actions[1:], -1)
    actions[transitions.starts[1:] - 1] = -1
    return actions


def needs_next_action(rule: LearningRule) -> bool:
    """Return whether a rule learns a transition when the next action is known."""
    return rule.on_action is not None


def moves_rows(rule: LearningRule) -> bool:
    """Return whether a rule of the package moves all values of a state at once."""
    return rule.name == "td"
