"""Learning in compiled games whose states are keys, in a table that grows: many walkers take turns."""

from __future__ import annotations

from typing import Any

import numpy as np

from dist_classicrl.environments.resolve import Source
from dist_classicrl.environments.state_keys import words_of
from dist_classicrl.errors import RewardError, SettingsError
from dist_classicrl.learning.interleaved import WALKERS, InterleavedLearner
from dist_classicrl.learning.keyed_table import KeyedTable
from dist_classicrl.learning.learner import Problem, Stream
from dist_classicrl.learning.loops import Stretch
from dist_classicrl.learning.memory import RuleMemory
from dist_classicrl.learning.rules import find
from dist_classicrl.learning.state import State, refused
from dist_classicrl.learning.walkers import Walkers
from dist_classicrl.settings import Settings


def suits(problem: Problem) -> bool:
    """Whether the states of a problem are keys."""
    return problem.source.keys is not None


def check_keyed(source: Source, settings: Settings, ranks: int, engine: str) -> None:
    """Raise SettingsError where states that are keys cannot be learned with these settings."""
    if source.keys is None:
        return
    rule, parameters = find(settings.algorithm)
    sizes = ((parameters, n, source.n_actions) for n in (1, 2))
    few, more = ((rule.n_merged(*size), rule.n_owned(*size)) for size in sizes)
    is_known = engine == "supersteps" or (ranks == 1 and engine == "local" and source.stepped is None)
    faults = {
        f"replay_ratio={settings.replay_ratio:g}": ("Write replay_ratio=0", settings.replay_ratio > 0.0),
        "async_updates=False": (
            'Write placement="auto", or leave it at True: alone, a seed makes the same table every time',
            not settings.async_updates and engine == "local",
        ),
        f"the engine {engine!r}": ('Write placement="auto"', not is_known),
        f"the rule {rule.name!r}, which shares a number for each state,": (
            "Take a rule that shares as many however many states there are",
            few != more,
        ),
    }
    for given, (remedy, is_fault) in faults.items():
        if is_fault:
            raise SettingsError(
                f"{source.name} has keys as states, each of which has one owner, who has its row in a table "
                f"that grows; {given} cannot be had with that. {remedy}, or {source.way_to_numbers}."
            )


class KeyedLearner(InterleavedLearner):
    """Learns in a game whose states are keys, otherwise as its base does. See `Learner`."""

    mode = "keyed"

    def _make_table(self, problem: Problem) -> KeyedTable:
        simulator = problem.source.simulator
        assert simulator is not None  # it has keys
        return KeyedTable(simulator, problem.settings, problem.dtype)

    def _simulation(self) -> Any:
        return self.table.game()

    @property
    def _n_states(self) -> int:
        return self.table.n_known

    def _is_whole(self) -> bool:
        return True

    def _call(self, crew: Walkers, memory: RuleMemory, stretch: Stretch) -> None:
        """Make the steps of a stretch; between turns of all walkers the table gets more room."""
        self._made = 0
        while True:
            self.table.make_room(3 * WALKERS)
            crew.made[0] = 0
            try:
                super()._call(crew, memory, _rest(stretch, self._made))
            except RewardError:
                self.table.check_room()
                raise
            finally:
                self._made += int(crew.made[0])
            if self._made == stretch.steps:
                self._made = 0
                return

    def learn(self, walker: int, stream: Stream, steps: int) -> None:
        """See `Learner`; StateLimitError where a state comes for which there may be no row."""
        try:
            super().learn(walker, stream, steps)
        except BaseException:
            stream.used += self._made  # of the stretch that did not come to its end
            raise
        self.table.check_acted()

    def restore(self, walker: int, state: State) -> None:
        """See `Learner`."""
        super().restore(walker, state)
        crew, _ = self._crews[walker]
        begun = crew.states >= 0
        here = self.table.keys[crew.states[begun]].view(np.int64).reshape(-1, words_of(self.table.keys.dtype))
        if (crew.memory[begun, -here.shape[1] :] != here).any():
            raise refused("position", "has other keys than its states", "what belongs together")


def _rest(stretch: Stretch, made: int) -> Stretch:
    """Return what is left of a stretch."""
    lines = (line._replace(at=line.at + made) for line in (stretch.step_size, stretch.epsilon))
    return Stretch(stretch.key, stretch.offset + made, stretch.steps - made, *lines)
