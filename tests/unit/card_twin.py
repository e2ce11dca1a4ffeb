"""Learners of a card without one: on a core, in the same rounds, and in numba's CUDA simulator."""

import numpy as np

from dist_classicrl._jit import jit_for
from dist_classicrl.environments.resolve import resolve
from dist_classicrl.learning.card import kernels
from dist_classicrl.learning.card import learner as learners
from dist_classicrl.learning.card.cards import Card
from dist_classicrl.learning.card.on_core import play_round, room_for_copy
from dist_classicrl.learning.card.one_run import learn_run
from dist_classicrl.learning.card.plan import Shape, blocks_of
from dist_classicrl.learning.kinds import problem_of
from dist_classicrl.learning.learner import Stream
from dist_classicrl.learning.rates import Rates
from dist_classicrl.sweep import making

NO_CARD = Card(0, "none", (0, 0), 1 << 30, 1, is_simulated=True)


class OnCore(learners.CardLearner):
    """Plays a card's rounds on a core."""

    _on_card = staticmethod(lambda value: value)
    _from_card = staticmethod(lambda array: array)
    _new_on_card = staticmethod(np.zeros)

    def _play(self, crew, stream, rounds, units):
        problem, table = self._problem, self.table
        blocks = max(blocks_of(one.moving, self.shape) for one in rounds)
        walkers = type(crew[0])(*(each.copy() if hasattr(each, "copy") else each for each in crew[0]))
        arrays = learners.Arrays(*(each.copy() for each in self._arrays(blocks)))
        simulation, parts, _ = self._parts(crew[1])
        memory = parts.whole.copy(), parts.real.copy(), parts.owned.copy(), parts.model.copy()
        parts = parts._replace(whole=memory[0], real=memory[1], owned=memory[2], model=memory[3])
        copies = room_for_copy(table.q.size, self._itemsize)
        letters = np.zeros(self._letters, np.int64), np.zeros(self._letters), np.zeros(1, np.int64)
        used = stream.used
        for one in rounds:
            moving = blocks_of(one.moving, self.shape)
            there = parts._replace(step_sizes=self._step_sizes_for(moving))
            moment = self._moment(stream, used, one, units)
            play_round(
                problem.parameters,
                simulation,
                walkers,
                there,
                arrays,
                copies,
                moment,
                moving,
                self.shape.threads,
                *letters,
            )
            used += one.moving * one.steps
        return walkers, arrays, memory


SMALL = Shape(2, 4, 8)


def made(kind, env, settings, shape=SMALL, workers=1, dtype=np.float64, card=NO_CARD):
    """Return a learner of this kind with one walker, with as many blocks and threads."""
    source = resolve(env, 1, None)
    learner = kind(problem_of(source, settings, Rates(settings, workers), dtype, card=card))
    learner.shape = shape
    learner.add(0, source, 0)
    return learner


def learned(learner, steps, key=7, start=0):
    """Let a learner make so many steps of a stream, and return its table's arrays."""
    learner.learn(0, Stream(np.uint64(key), start), steps)
    table = learner.table
    return {name: getattr(table, name).copy() for name in ("q", "weight", "shift", "updates")}


class _RunsOnCore:
    """Stands for the kernel of whole runs: one thread after the other."""

    def __getitem__(self, grid):
        return self

    def __call__(self, rule, simulation, runs, parts, lines, settles):
        learn = jit_for(learn_run, type(simulation), type(rule))
        for r in range(runs.keys.size):
            learn(rule, simulation, runs, r, parts, lines, settles)


def make_runs_on_a_core(monkeypatch):
    """Let a core do what a card's kernel of whole runs would do."""
    monkeypatch.setattr(kernels, "is_simulated", lambda: True)  # arrays are in main memory
    monkeypatch.setattr(kernels, "runs_kernel", _RunsOnCore)
    monkeypatch.setattr(making, "card_of_this_rank", lambda: NO_CARD)
