"""Learners of a card without one: on a core, in the same rounds, and in numba's CUDA simulator.

And the problems that they are tested with.
"""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import card_on_core
import numba
import numpy as np

from dist_classicrl import TabularMDP
from dist_classicrl._jit import jit_for
from dist_classicrl.environments.resolve import resolve
from dist_classicrl.learning.card import kernels, launching, transfer
from dist_classicrl.learning.card.cards import Card
from dist_classicrl.learning.card.in_copies import InCopies
from dist_classicrl.learning.card.in_one_table import InOneTable
from dist_classicrl.learning.card.in_rows import InRows
from dist_classicrl.learning.card.kernels import WalkKernels
from dist_classicrl.learning.card.one_run import learn_run
from dist_classicrl.learning.card.plan import Shape, bytes_of_arrays
from dist_classicrl.learning.compiled import CompiledLearner
from dist_classicrl.learning.kinds import problem_of
from dist_classicrl.learning.learner import Stream
from dist_classicrl.learning.rates import Rates
from dist_classicrl.schedules import PerVisit
from dist_classicrl.settings import Settings
from dist_classicrl.sweep import making
from dist_classicrl.tables.line_table import LineTable

MODEL = TabularMDP.garnet(6, 2, 2, seed=1)
STATES = np.arange(60)[:, np.newaxis]
MASKED = dataclasses.replace(
    TabularMDP.garnet(60, 3, 2, seed=2, terminal_states=4),
    action_mask=(np.arange(3) != STATES % 3) | (STATES < 4),
)
SETTINGS = Settings(discount_factor=0.9, epsilon=0.5, learning_rate=PerVisit(0.7))


class Data(NamedTuple):
    bad: int


@numba.njit
def begin_at_0(data, memory, random):
    return 0


@numba.njit
def step_on(data, memory, state, action, random):
    return (7 if state == data.bad else state + 1), 1.0, state == 2


NO_CARD = Card(0, "none", (0, 0), 1 << 30, 1, is_simulated=True)


def run_in_simulator(program, folder):
    """Run a program that stands beside this one in numba's CUDA simulator, which says that all is well."""
    environ = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(Path(__file__).with_name(program)), str(folder)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=900)
    assert done.stdout.endswith("all is well\n"), done.stderr


class CoreMemory:
    """Takes main memory for that of a card, and counts what is in use there."""

    taken = 0

    @classmethod
    def put(cls, value):
        cls.taken += bytes_of_arrays((value,))
        return cls._copy(value)

    @classmethod
    def _copy(cls, value):
        if isinstance(value, np.ndarray):
            return value.copy()
        if isinstance(value, tuple):
            every = [cls._copy(each) for each in value]
            return type(value)(*every) if hasattr(value, "_fields") else tuple(every)
        return value

    @classmethod
    def new(cls, size, kind):
        cls.taken += size * np.dtype(kind).itemsize
        return np.zeros(size, kind)

    zeros = new

    @staticmethod
    def get(array):
        return array

    @staticmethod
    def write(there, here):
        assert there.dtype == here.dtype
        there[:] = here

    @staticmethod
    def read(there, here):
        assert there.dtype == here.dtype
        here[:] = there


class _Kernel:
    """A kernel whose threads a core plays, however many there are."""

    def __init__(self, function):
        self._function = function

    def __getitem__(self, grid):
        self._grid = grid
        return self

    def __call__(self, *arguments):
        self._function(self._grid, *arguments)


def _all_threads(function):
    """Return a kernel of which a function plays all threads."""
    return _Kernel(lambda grid, *arguments: function(*arguments))


_ADD_UP = _all_threads(card_on_core.add_up_all)


def _room_for_copy(entries, itemsize):
    """Return the `copies` of `card_on_core.play_round`, for values of so many bytes."""
    real = np.float64 if itemsize == 8 else np.float32
    return (
        np.zeros(entries, np.int64),
        *(np.zeros(entries, real) for _ in range(3)),
        np.zeros(entries, np.int32),
        np.zeros(entries, np.int32),
    )


class OnCore(InCopies):
    """Plays a card's rounds with copies on a core."""

    memory = CoreMemory

    def __init__(self, problem):
        super().__init__(problem)
        self._round, self._merge = _Kernel(self._play_round), _Kernel(lambda *_: None)

    def _make_add_up(self):
        return _ADD_UP

    def _play_round(self, grid, rule, simulation, walkers, parts, arrays, copies, moments, number):
        room = _room_for_copy(self.table.q.size, self._itemsize)
        letters = np.zeros(self._letters, np.int64), np.zeros(self._letters), np.zeros(1, np.int64)
        card_on_core.play_round(
            rule,
            simulation,
            walkers,
            parts,
            arrays,
            room,
            moments,
            number,
            grid[0],
            self.shape.threads,
            *letters,
        )


class OneOnCore(InOneTable):
    """Plays a card's steps in one table on a core."""

    memory = CoreMemory

    def _make_kernels(self):
        return WalkKernels(*map(_all_threads, (card_on_core.walk, card_on_core.add, card_on_core.move)))

    def _make_add_up(self):
        return _ADD_UP


class RowsOnCore(InRows):
    """Lets the walkers of a card learn in the same rows one after the other, on a core."""

    memory = CoreMemory

    def _make_kernel(self):
        return _all_threads(card_on_core.walk_in_rows)

    def _make_add_up(self):
        return _ADD_UP


SMALL = Shape(2, 4, 8)
SMALL_WALK = Shape(2, 4, 1)


def made(
    kind, env, settings, shape=None, workers=1, dtype=np.float64, card=NO_CARD, is_alone=False, rows=False
):
    """Return a learner of this kind with one walker, with as many blocks and threads."""
    source = resolve(env, 1, None)
    given = Rates(settings, workers), dtype
    problem = problem_of(source, settings, *given, card=card, is_alone=is_alone)
    if rows:
        rows = LineTable(problem.shape, problem.dtype)
        problem = problem_of(source, settings, *given, card=card, is_alone=True, rows=rows)
    learner = kind(problem)
    learner.shape = shape or (SMALL_WALK if issubclass(kind, InOneTable) else SMALL)
    learner.add(0, source, 0)
    return learner


def core_learner(env, settings):
    """Return the learner of a core, with one walker."""
    source = resolve(env, 1, None)
    learner = CompiledLearner(problem_of(source, settings, Rates(settings, 1)))
    learner.add(0, source, 0)
    return learner


def learned(learner, steps, key=7, start=0):
    """Let a learner make so many steps of a stream, and return its table's arrays."""
    learner.learn(0, Stream(np.uint64(key), start), steps)
    return arrays_of(learner)


def arrays_of(learner):
    """Return the arrays of a learner's table."""
    table = learner.table
    if not hasattr(table, "q"):
        values, counts = np.zeros(table.shape.size), np.zeros(table.shape.size, np.int64)
        table.settle(values, counts)
        return {"q": values, "updates": counts}
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
    for module in (kernels, launching, transfer):
        monkeypatch.setattr(module, "is_simulated", lambda: True)  # arrays are in main memory
    monkeypatch.setattr(kernels, "runs_kernel", _RunsOnCore)
    monkeypatch.setattr(making, "card_of_this_rank", lambda: NO_CARD)
