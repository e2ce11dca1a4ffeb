"""The learner on a card: many walkers at once. How they share the table is its subclasses' to say."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from dist_classicrl._steps import NEVER
from dist_classicrl.environments.resolve import Source
from dist_classicrl.environments.trial import run_game, try_out
from dist_classicrl.errors import DivergenceError, SettingsError
from dist_classicrl.learning.card import kernels, launching, transfer
from dist_classicrl.learning.card.cards import Card
from dist_classicrl.learning.card.choosing import letters_of
from dist_classicrl.learning.card.held import known_visits
from dist_classicrl.learning.card.plan import (
    MOMENT_BYTES,
    MOST_MOMENTS,
    Round,
    Shape,
    Units,
    blocks_of,
    bytes_of_arrays,
    check_memory,
    next_round,
    of_blocks,
)
from dist_classicrl.learning.card.steps import (
    FAULTS,
    LOST,
    NO_ROOM,
    WRONG,
    CardWalkers,
    Moment,
    Moments,
    RoundConstants,
    moments_of,
)
from dist_classicrl.learning.compiled import infinite_return, stuck_states, stuck_there
from dist_classicrl.learning.learner import Problem, Stream, Totals
from dist_classicrl.learning.memory import RuleMemory, crew_state, put_crew
from dist_classicrl.learning.state import State, check_arrays, check_range
from dist_classicrl.tables.local import LocalTable

_NEXT_BOUND, _LAST_BOUND = 2.0**10, 2.0**50
_SUMS, _COLUMNS = 1024, 5
"""So many threads add up what all walkers counted, see `steps.add_up`."""

STEPPING, _ADDING = 0, -1
"""Places among a learner's launchers."""

Crew = tuple[CardWalkers, RuleMemory]
"""All that move together: to the engine one walker."""


class CardSums(NamedTuple):
    """What the walkers counted, see `steps.add_up`."""

    totals: np.ndarray  # float64, shape (N, 5)


class Moving(NamedTuple):
    """A crew on the card, where it stays until another one moves or somebody asks for it."""

    number: int
    simulation: Any
    parts: RoundConstants
    memory: Any  # what its rule remembers
    walkers: CardWalkers


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
        self._bounds: dict[int, float] = {}  # of the targets of each crew, whoever else is here
        self._letters = letters_of(problem.rule, problem.parameters)
        self._told: Moments | None = None  # on the card
        self._constants: Any = None  # on the card: the simulation, and what is legal
        self._clock: np.ndarray | None = None  # the step sizes by visits, of which there are these
        self._step_sizes: dict[int, Any] = {}  # on the card, by the number of blocks
        self._moving: Moving | None = None
        self._sums: CardSums | None = None  # on the card
        #: Of kernels with the crew that is there: what they are given stays where it is from call to call.
        self._launchers: dict[int, Any] = {}
        self._add_up = self._make_add_up()

    def _make_add_up(self) -> Any:
        """Return the kernel that adds up what walkers counted."""
        return kernels.sums_kernel()

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
        self._forget(number)
        self._bounds[number] = self._first_bound
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
        own = bytes_of_arrays((crew, context.whole, context.real, context.owned, context.model))
        constant = bytes_of_arrays(
            (self._simulator.tables, self.table.arrays.legal, context.step_sizes, context.behavior)
        )
        constant += MOST_MOMENTS * MOMENT_BYTES + 8 * (self._n_sums * _COLUMNS + FAULTS)
        needed = self._bytes(own, constant)
        entries, walkers = self.table.shape.size, self.shape.walkers
        check_memory(needed, self.card, f"A table of {entries:,} entries with {walkers:,} walkers")

    @abstractmethod
    def _bytes(self, crew: int, constant: int) -> int:
        """Return what the problem takes of the card's memory, see `plan.bytes_with_copies`."""

    def learn(self, walker: int, stream: Stream, steps: int) -> None:
        """See `Learner`."""
        before = self._visits_of_stuck()
        with launching.used(self.card):
            collected = self._play(walker, stream, list(self._rounds(stream, steps)))
        stream.used += steps
        if self._stuck is not None and before is not None:
            now = self._visits_of_stuck()
            assert now is not None
            stuck_there(self._stuck, now, before)
        if not np.isfinite(collected).all():
            raise infinite_return(collected[~np.isfinite(collected)][0])

    def _rounds(self, stream: Stream, steps: int) -> Iterator[Round]:
        """Return the rounds of the next steps of a stream."""
        used = 0
        while used < steps:
            at = stream.used + used
            *_, end = self._problem.rates.at(stream.start + at)  # a rate is another line from there on
            left = min(steps - used, end - stream.start - at)
            one = next_round(stream.start, at, left, self.shape)
            yield one
            used += one.moving * one.steps

    def first_end(self, stream: Stream, steps: int, least: int) -> int:
        """Return after how many of the next `steps`, `least` at least, the first round ends that does.

        A call may end there without a change of what is learned: no round of these steps is cut by that.
        """
        made = 0
        for one in self._rounds(stream, steps):
            if made >= least:
                break
            made += one.moving * one.steps
        return made

    @abstractmethod
    def _play(self, number: int, stream: Stream, rounds: list[Round]) -> np.ndarray:
        """Play rounds with a crew; return numbers with what is not finite of its episodes' returns."""

    def _visits_of_stuck(self) -> np.ndarray | None:
        """Return the visits of the states in which no action is legal; None: there are none, or elsewhere."""
        if self._stuck is None or not self._stuck.size or not isinstance(self.table, LocalTable):
            return None
        visits = known_visits(self.table).reshape(-1, self.table.n_actions)
        return self.table.shape.tables(visits)[:, self._stuck].copy()

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

    def _widen(self, number: int) -> None:
        """Let larger targets of a crew be added up; DivergenceError where there is no room for such."""
        bound = self._bounds[number]
        if bound * _NEXT_BOUND > _LAST_BOUND:
            raise DivergenceError(
                f"A target is beyond {bound:g}: on a card they are added up as whole "
                "numbers, and there is no room for such. Make the rewards smaller, in a wrapper for "
                'instance, or write device="cpu".'
            )
        self._bounds[number] = bound * _NEXT_BOUND

    def _parts(self, memory: RuleMemory) -> tuple[Any, RoundConstants, Any]:
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
        parts = RoundConstants(
            None,
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
        """Return step sizes by visits where so many blocks learn in copies, see `plan.of_blocks`."""
        if self._clock is None:
            return None
        if blocks not in self._step_sizes:
            self._step_sizes[blocks] = self.memory.put(of_blocks(self._clock, blocks))
        return self._step_sizes[blocks]

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

    def _crew_there(self, number: int) -> Moving:
        """Return a crew on the card, where there is one at a time, and take the step sizes that are due."""
        now = self._problem.rates.table
        if now is not None and (self._clock is None or not np.array_equal(now, self._clock)):
            self._clock = now.copy()  # the number of workers changes it, or the server
            self._step_sizes.clear()
            self._launchers.clear()
        if self._moving is None or self._moving.number != number:
            self._bring_crew()
            self._forget_crew()
            crew, memory = self._crews[number]
            walkers = self.memory.put(crew)
            self._moving = Moving(number, *self._parts(memory), walkers)
        return self._moving

    def _forget_crew(self) -> None:
        """Give back what the card has of a crew."""
        self._moving = None
        self._launchers.clear()

    def _bring_crew(self) -> None:
        """Bring the crew on the card to where it is kept."""
        if self._moving is None:
            return
        crew, walkers, memory = self._crews[self._moving.number], self._moving.walkers, self._moving.memory
        for name in ("states", "elapsed", "collected", "memory"):
            self.memory.read(getattr(walkers, name), getattr(crew[0], name))
        context = crew[1].context(self.table, None, 0.0)
        for mine, there in zip(
            (context.whole, context.real, context.owned, context.model), memory, strict=True
        ):
            self.memory.read(there, mine)

    @property
    def _n_sums(self) -> int:
        return min(_SUMS, self.shape.walkers)

    def _take_sums(self, moving: Moving) -> np.ndarray:
        """Count what the walkers have counted; return numbers as `_play` does."""
        if self._sums is None:
            self._sums = CardSums(self.memory.put(np.zeros((self._n_sums, _COLUMNS))))
        if _ADDING not in self._launchers:
            self._launchers[_ADDING] = launching.launcher(self._add_up, moving.walkers, self._sums)
        grid = blocks_of(self._n_sums, self.shape), self.shape.threads
        self._launchers[_ADDING](grid, self.shape.walkers)
        sums = self.memory.get(self._sums.totals)
        self.totals.values += sums[:, :4].sum(axis=0)
        return np.asarray(sums[:, 4])

    def state(self, walker: int) -> State:
        """See `Learner`."""
        if self._moving is not None and self._moving.number == walker:
            with launching.used(self.card):
                self._bring_crew()
        return {**crew_state(*self._crews[walker]), "bound": np.array([self._bounds[walker]])}

    def restore(self, walker: int, state: State) -> None:
        """See `Learner`."""
        check_arrays(state, self.state(walker), {})
        check_range("bound", state["bound"], 1.0, _LAST_BOUND)
        put_crew(*self._crews[walker], state, self.table.shape.n_states, self._stuck)
        self._bounds[walker] = max(self._first_bound, 2.0 ** round(math.log2(state["bound"][0])))
        self._forget(walker)

    def _forget(self, walker: int) -> None:
        """Let a crew begin anew from what is here."""
        if self._moving is not None and self._moving.number == walker:
            self._forget_crew()

    def close(self) -> None:
        """Give the card's memory back."""
        self._forget_crew()
        self._constants = self._told = self._sums = self._clock = None
        self._step_sizes.clear()
