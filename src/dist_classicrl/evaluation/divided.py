"""Greedy episodes of a table that is divided between hosts: all at once, for few questions."""

from __future__ import annotations

from typing import Any

import numpy as np

from dist_classicrl._jit import jit_for
from dist_classicrl._random import stream_key
from dist_classicrl.environments.simulate import CompiledSimulator
from dist_classicrl.environments.trial import compiling, run_game
from dist_classicrl.evaluation.greedy import begin_each, move_each
from dist_classicrl.tables.large_table import LargeTable
from dist_classicrl.tables.line_table import LineTable
from dist_classicrl.tables.lines import LineArrays

_AT_ONCE = 4096
_STRIDE = np.uint64(0xD1342543DE82EF95)


class AskedRows:
    """The rows of some states, a table of its own that is filled anew with each question."""

    def __init__(self, large: LargeTable, n: int) -> None:
        self._desk = large.answering_desk
        rows = large.rows
        shape = type(rows.shape)(n, rows.shape.n_actions)
        self._memory = np.zeros(n * rows.arrays.width * rows.values.dtype.itemsize, np.uint8)
        self.table = LineTable(shape, rows.values.dtype, None, self._memory)

    def ask(self, states: np.ndarray) -> np.ndarray:
        """Let the first rows be those of these states; return their numbers."""
        lines = self._desk.lines(states)
        self._memory[: lines.size] = lines.reshape(-1)
        return np.arange(states.size)


def play_divided(
    simulator: CompiledSimulator, large: LargeTable, episodes: int, seed: int, max_steps: int
) -> tuple[np.ndarray, np.ndarray, int]:
    """Return returns and lengths of greedy episodes, and how many were cut off."""
    returns, lengths = np.zeros(episodes), np.zeros(episodes, np.int64)
    limit = min(simulator.max_episode_steps or max_steps, max_steps)
    cut_off = 0
    for first in range(0, episodes, _AT_ONCE):
        part = slice(first, min(first + _AT_ONCE, episodes))
        cut_off += _play_some(simulator, large, first, seed, limit, returns[part], lengths[part])
    return returns, lengths, cut_off


def _play_some(
    simulator: CompiledSimulator,
    large: LargeTable,
    first: int,
    seed: int,
    limit: int,
    returns: np.ndarray,
    lengths: np.ndarray,
) -> int:
    n, n_states = returns.size, large.rows.shape.n_states
    memories = np.zeros((n, simulator.memory_size), np.int64)
    counters = stream_key(seed, "evaluation") + np.arange(first, first + n, dtype=np.uint64) * _STRIDE
    states, came, rewards = np.zeros(n, np.int64), np.full(3, -1), np.zeros(n)
    asked, simulation = AskedRows(large, n), simulator.tables
    arrays: LineArrays = asked.table.arrays
    kind = type(simulation)
    begin, move = jit_for(begin_each, kind), jit_for(move_each, kind)

    def call(kernel: Any, *arguments: Any) -> None:
        with compiling(simulator):
            run_game(simulator, came, rewards, kernel, *arguments)

    call(begin, simulation, memories, counters, states, n_states, came)
    running = np.arange(n)
    while running.size:
        asked.ask(states[running])
        call(move, simulation, memories, counters, states, running, arrays, n_states, came, rewards)
        with np.errstate(over="ignore", invalid="ignore"):  # an EvaluationResult refuses it
            returns[running] += rewards[running]
        lengths[running] += 1
        running = running[(states[running] >= 0) & (lengths[running] < limit)]
    return int((states >= 0).sum())
