"""The learner on a card: many walkers at once. How they share the table is its subclasses' to say."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from dist_classicrl.environments.resolve import Source
from dist_classicrl.environments.trial import run_game, try_out
from dist_classicrl.errors import DivergenceError, SettingsError
from dist_classicrl.learning.card import launching, transfer
from dist_classicrl.learning.card.cards import Card
from dist_classicrl.learning.card.choosing import letters_of
from dist_classicrl.learning.card.plan import (
    MOMENT_BYTES,
    MOST_MOMENTS,
    Round,
    Shape,
    Units,
    bytes_of_arrays,
    check_memory,
    next_round,
)
from dist_classicrl.learning.card.steps import (
    LOST,
    NO_ROOM,
    WRONG,
    CardWalkers,
    Moment,
    Moments,
    Parts,
    moments_of,
)
from dist_classicrl.learning.compiled import NEVER, infinite_return, stuck_states, stuck_there
from dist_classicrl.learning.learner import Problem, Stream, Totals
from dist_classicrl.learning.memory import RuleMemory
from dist_classicrl.learning.state import State, check_arrays, check_position
from dist_classicrl.schedules import PerVisit
from dist_classicrl.tables.local import LocalTable

_NEXT_BOUND, _LAST_BOUND = 2.0**10, 2.0**50

Crew = tuple[CardWalkers, RuleMemory]
"""All that move together: to the engine one walker."""


class CardLearner(ABC):
    """Learns in a compiled environment on a card. See `Learner`; to the engine all its walkers are one.

    What it learns depends on the stream and on how it is cut into calls only where one is cut within
    `quantum` steps. `table` is what the engine sees, `shape` the most that is under way.
    """

    mode = "card"
    memory: Any = transfer.CardMemory
    _first_bound: float  # of targets, before larger ones are met

    def __init__(self, problem: Problem, table: Any, shape: Shape) -> None:
        simulator, card = problem.source.simulator, problem.card
        assert simulator is not None and card is not None  # see `kinds`
        self.table = table
        self.totals = Totals()
        self.card: Card = card
        self.shape = shape
        self._problem = problem
        self._simulator = simulator
        self._stuck = stuck_states(simulator)
        self._crews: dict[int, Crew] = {}
        self._bound = self._first_bound
        self._letters = letters_of(problem.rule, problem.parameters)
        self._told: Moments | None = None  # on the card
        self._constants: Any = None  # on the card: the simulation, and what is legal
        self._step_sizes: dict[int, Any] = {}  # on the card, by what divides the clock

    @property
    def quantum(self) -> int:
        """Steps after which a call may end without a change of what is learned."""
        return self.shape.walkers * self.shape.interval

    @property
    def walkers(self) -> list[int]:
        """See `Learner`."""
        return list(self._crews)

    def add(self, number: int, source: Source, seed: int) -> None:
        """See `Learner`; a compiled environment draws from the streams alone, so `seed` is not used.

        DeviceMemoryError if the card has not enough memory; DeviceError if a function cannot be compiled.
        """
        crew = self._crew(number)
        if self.table.shape.n_states != self._simulator.n_states:  # there is only compiled, by whoever learns
            self._crews[number] = crew
            return
        is_first = not self._crews
        if is_first:
            try_out(self._simulator)
            self._check_memory(*crew)
        self._crews[number] = crew
        if is_first:
            with launching.used(self.card), launching.compiling(self._problem):
                self._compile(number)

    @abstractmethod
    def _compile(self, number: int) -> None:
        """Make no step with a crew, so that all is compiled."""

    def _crew(self, number: int) -> Crew:
        problem, simulator, walkers = self._problem, self._simulator, self.shape.walkers
        crew = CardWalkers(
            states=np.full(walkers, -1),
            elapsed=np.zeros(walkers, np.int64),
            collected=np.zeros(walkers),
            memory=np.zeros((walkers, simulator.memory_size), np.int64),
            totals=np.zeros((4, walkers)),
            came=np.full((walkers, 3), -1),
            reward=np.zeros(walkers),
            time_limit=simulator.max_episode_steps or NEVER,
        )
        return crew, RuleMemory(
            problem.rule, problem.parameters, self.table, walkers, problem.behavior, number
        )

    def _check_memory(self, crew: CardWalkers, memory: RuleMemory) -> None:
        """Raise DeviceMemoryError where the card has no room for the problem."""
        context = memory.context(self.table, self._problem.rates.table, 0.0)
        constant = bytes_of_arrays((self._simulator.tables, self.table.arrays.legal, context[1:]))
        constant += MOST_MOMENTS * MOMENT_BYTES
        needed = self._bytes(bytes_of_arrays(crew) // self.shape.walkers, constant)
        entries, walkers = self.table.shape.size, self.shape.walkers
        check_memory(needed, self.card, f"A table of {entries:,} entries with {walkers:,} walkers")

    @abstractmethod
    def _bytes(self, per_walker: int, constant: int) -> int:
        """Return what the problem takes of the card's memory, see `plan.bytes_with_copies`."""

    def learn(self, walker: int, stream: Stream, steps: int) -> None:
        """See `Learner`."""
        rounds, used = [], 0
        while used < steps:
            at = stream.used + used
            *_, end = self._problem.rates.at(stream.start + at)  # a rate is another line from there on
            left = min(steps - used, end - stream.start - at)
            one = next_round(stream.start, at, left, self.shape)
            rounds.append(one)
            used += one.moving * one.steps
        with launching.used(self.card):
            collected = self._play(walker, stream, rounds)
        stream.used += steps
        self._look_for_stuck()
        if not np.isfinite(collected).all():
            raise infinite_return(collected[~np.isfinite(collected)][0])

    @abstractmethod
    def _play(self, number: int, stream: Stream, rounds: list[Round]) -> np.ndarray:
        """Play rounds with a crew; return numbers with what is not finite of its episodes' returns."""

    def _look_for_stuck(self) -> None:
        """Raise ActionMaskError if something was done in a state in which no action is legal."""
        if self._stuck is not None and self._stuck.size and isinstance(self.table, LocalTable):
            table = self.table
            updates = table.shape.tables(table.updates.reshape(-1, table.n_actions))
            stuck_there(self._stuck, updates[:, self._stuck])

    def _raise_for(self, faults: np.ndarray, walkers: CardWalkers) -> None:
        """Raise the error for what is wrong with a step, if that is not a target beyond the bound."""
        if faults[WRONG]:
            came, reward = self.memory.get(walkers.came), self.memory.get(walkers.reward)
            first = int(np.argmax(self.memory.get(walkers.states) == LOST))
            run_game(self._simulator, came[first], reward[first : first + 1], lambda: True)
        if faults[NO_ROOM]:
            raise SettingsError(
                f"The rule {self._problem.rule.name!r} moved more entries in a step than it declares, or "
                'added to one. Correct its waits, or write device="cpu".'
            )

    def _widen(self) -> None:
        """Let larger targets be added up; DivergenceError where there is no room for such."""
        if self._bound * _NEXT_BOUND > _LAST_BOUND:
            raise DivergenceError(
                f"A target is beyond {self._bound:g}: on a card they are added up as whole "
                "numbers, and there is no room for such. Make the rewards smaller, in a wrapper for instance."
            )
        self._bound *= _NEXT_BOUND

    def _parts(self, memory: RuleMemory) -> tuple[Any, Parts, Any]:
        """Return the simulation and the parts of a round on the card, and what the rule remembers there."""
        table = self.table
        context = memory.context(table, None, self._problem.settings.discount_factor)
        if self._constants is None:
            self._constants = self.memory.put((self._simulator.tables, table.arrays.legal))
        simulation, legal = self._constants
        behavior = self.memory.put(context.behavior)
        remembered = self.memory.put((context.whole, context.real, context.owned, context.model))
        whole, real, owned, model = remembered
        shape = table.shape
        parts = Parts(
            None,
            context.discount,
            behavior,
            whole,
            real,
            owned,
            model,
            legal,
            table.arrays.row_shape,
            shape.n_states,
            shape.n_tables,
            shape.n_actions,
        )
        return simulation, parts, remembered

    def _step_sizes_for(self, blocks: int) -> Any:
        """Return step sizes by visits, whose clock is one learner's among all blocks of all workers."""
        schedule = self._problem.settings.learning_rate
        if not isinstance(schedule, PerVisit):
            return None
        learners = self._problem.rates.workers * blocks
        if learners not in self._step_sizes:
            self._step_sizes[learners] = self.memory.put(schedule.table(learners))
        return self._step_sizes[learners]

    def _moment(self, stream: Stream, used: int, one: Round, units: Units) -> Moment:
        step_size, epsilon, _ = self._problem.rates.at(stream.start + used)
        return Moment(
            stream.key,
            used,
            one.steps,
            one.moving,
            float(step_size.value + step_size.at * step_size.slope),
            float(step_size.slope),
            float(epsilon.value + epsilon.at * epsilon.slope),
            float(epsilon.slope),
            units.bound,
            units.scale,
            1.0 / units.scale,
        )

    def _moments(self, moments: list[Moment]) -> Moments:
        """Return rounds on the card, at most `MOST_MOMENTS`, from where kernels take them by their number.

        They stand where those before them stood, which are over by then.
        """
        here = moments_of(moments)
        if self._told is None:
            sizes = [MOST_MOMENTS * array.size // len(moments) for array in here]
            whole, real = (self.memory.new(n, array.dtype) for n, array in zip(sizes, here, strict=True))
            self._told = Moments(whole, real)
        for there, array in zip(self._told, here, strict=True):
            self.memory.write(there[: array.size], array)
        return self._told

    def _take_crew(self, crew: Crew, walkers: CardWalkers, memory: Any) -> None:
        """Bring a crew to what it is on the card."""
        for name in ("states", "elapsed", "collected", "memory"):
            self.memory.read(getattr(walkers, name), getattr(crew[0], name))
        context = crew[1].context(self.table, None, 0.0)
        for mine, there in zip(
            (context.whole, context.real, context.owned, context.model), memory, strict=True
        ):
            self.memory.read(there, mine)

    def state(self, walker: int) -> State:
        """See `Learner`."""
        crew, memory = self._crews[walker]
        position = np.concatenate([np.stack([crew.states, crew.elapsed], 1), crew.memory], 1)
        bound = np.array([self._bound])
        return {"position": position, "running": crew.collected.copy(), "bound": bound, **memory.state()}

    def restore(self, walker: int, state: State) -> None:
        """See `Learner`. What a game keeps in its memory is known to the game alone and not checked."""
        crew, memory = self._crews[walker]
        check_arrays(state, self.state(walker), {})
        position, running = state["position"], state["running"]
        check_position(position, running, self.table.shape.n_states, crew.time_limit, self._stuck)
        memory.restore(state)
        crew.states[:], crew.elapsed[:], crew.memory[:] = position[:, 0], position[:, 1], position[:, 2:]
        crew.collected[:] = running
        bound = 2.0 ** round(math.log2(max(state["bound"][0], 1.0)))
        self._bound = min(max(self._first_bound, bound), _LAST_BOUND)

    def close(self) -> None:
        """Give the card's memory back."""
        self._constants = self._told = None
        self._step_sizes.clear()
