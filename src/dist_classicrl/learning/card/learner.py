"""The learner on a card: many walkers, in blocks that each have a copy of the table."""

from __future__ import annotations

import logging
import math
from typing import Any, NamedTuple

import numpy as np

from dist_classicrl.environments.resolve import Source
from dist_classicrl.environments.trial import run_game, try_out
from dist_classicrl.errors import DivergenceError, SettingsError
from dist_classicrl.learning.card import kernels, plan
from dist_classicrl.learning.card.cards import Card
from dist_classicrl.learning.card.choosing import letters_of
from dist_classicrl.learning.card.plan import (
    SHARED_BYTES,
    Round,
    Units,
    blocks_of,
    bytes_of_arrays,
    bytes_of_problem,
    check_memory,
    next_round,
)
from dist_classicrl.learning.card.steps import (
    NO_ROOM,
    TOO_LARGE,
    WRONG,
    Arrays,
    CardWalkers,
    Moment,
    Parts,
)
from dist_classicrl.learning.compiled import NEVER, infinite_return, stuck_states, stuck_there
from dist_classicrl.learning.learner import Problem, Stream, Totals
from dist_classicrl.learning.memory import RuleMemory
from dist_classicrl.learning.state import State, check_arrays, check_position
from dist_classicrl.schedules import PerVisit
from dist_classicrl.tables.rows import VISIT_MASK

logger = logging.getLogger(__name__)

_FIRST_BOUND, _NEXT_BOUND, _LAST_BOUND = 2.0**20, 2.0**10, 2.0**50
_FAULTS = 3


class Copies(NamedTuple):
    """The copies of the blocks where shared memory has no room for them."""

    sums: np.ndarray  # int64, shape (B * E,)
    reals: np.ndarray  # float64 or float32, shape (B * 3 * E,)
    whole: np.ndarray  # int32, shape (B * 2 * E,)


class CardLearner:
    """Learns in a compiled environment on a card. See `Learner`; to the engine all its walkers are one.

    What it learns depends on the stream and on how it is cut into calls only where one is cut within
    `quantum` steps.
    """

    mode = "card"
    # How arrays go to the card, and come back.
    _on_card = staticmethod(kernels.on_card)
    _from_card = staticmethod(kernels.from_card)
    _new_on_card = staticmethod(kernels.new_on_card)

    def __init__(self, problem: Problem) -> None:
        simulator, card = problem.source.simulator, problem.card
        assert simulator is not None and card is not None  # see `suits`
        self.table = problem.table
        self.totals = Totals()
        self.card: Card = card
        self.shape = plan.IN_SIMULATOR if card.is_simulated else plan.ON_CARD
        self._problem = problem
        self._simulator = simulator
        self._stuck = stuck_states(simulator)
        self._crews: dict[int, tuple[CardWalkers, RuleMemory]] = {}
        self._bound = _FIRST_BOUND
        self._itemsize = problem.dtype.itemsize
        entries = self.table.q.size
        self._copy_bytes = kernels.bytes_of_copy(entries, self._itemsize)
        self._in_shared = self._copy_bytes <= SHARED_BYTES
        self._letters = letters_of(problem.rule, problem.parameters)
        self._round = self._make_round()
        self._merge = kernels.merge_kernel()
        self._constants: tuple[Any, Any] | None = None  # on the card: the simulation, and the behavior
        self._rooms: dict[str, Any] = {}
        self._step_sizes: dict[int, Any] = {}  # on the card, by what divides the clock

    def _make_round(self) -> Any:
        """Return the kernel that plays its rounds."""
        return kernels.round_kernel(self._letters, self._itemsize, self._in_shared)

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
        crew, problem = self._crew(number), self._problem
        if self.table.n_states != self._simulator.n_states:  # there is only compiled, by whoever learns
            self._crews[number] = crew
            return
        if not self._crews:
            try_out(self._simulator)
            self._check_memory(*crew)
            with kernels.used(self.card), kernels.compiling(problem):
                self._play(crew, Stream(np.uint64(0), 0), [Round(1, 0)], Units.for_bound(1.0, 1))
        self._crews[number] = crew

    def _crew(self, number: int) -> tuple[CardWalkers, RuleMemory]:
        problem, simulator, walkers = self._problem, self._simulator, self.shape.walkers
        crew = CardWalkers(
            states=np.full(walkers, -1),
            elapsed=np.zeros(walkers, np.int64),
            collected=np.zeros(walkers),
            memory=np.zeros((walkers, simulator.memory_size), np.int64),
            totals=np.zeros((walkers, 4)),
            came=np.full((walkers, 3), -1),
            reward=np.zeros(walkers),
            time_limit=simulator.max_episode_steps or NEVER,
        )
        return crew, RuleMemory(
            problem.rule, problem.parameters, self.table, walkers, problem.behavior, number
        )

    def _check_memory(self, crew: CardWalkers, memory: RuleMemory) -> None:
        """Raise DeviceMemoryError where the card has no room for the problem."""
        rates, entries = self._problem.rates, self.table.q.size
        constant = bytes_of_arrays((self._simulator.tables, memory.context(self.table, rates.table, 0.0)[1:]))
        per_walker = bytes_of_arrays(crew) // self.shape.walkers
        needed = bytes_of_problem(entries, self._itemsize, self._in_shared, self.shape, per_walker, constant)
        check_memory(needed, self.card, f"A table of {entries:,} entries with {self.shape.walkers:,} walkers")

    def learn(self, walker: int, stream: Stream, steps: int) -> None:
        """See `Learner`."""
        crew = self._crews[walker]
        rounds, used = [], 0
        while used < steps:
            at = stream.used + used
            *_, end = self._problem.rates.at(stream.start + at)  # a rate is another line from there on
            left = min(steps - used, end - stream.start - at)
            one = next_round(stream.start, at, left, self.shape)
            rounds.append(one)
            used += one.moving * one.steps
        with kernels.used(self.card):
            while not self._learned(crew, stream, rounds):
                self._bound *= _NEXT_BOUND
        stream.used += steps
        if self._stuck is not None and self._stuck.size:
            acted = self.table.shape.tables(self.table.updates.reshape(-1, self.table.n_actions))
            stuck_there(self._stuck, np.asarray(acted[:, self._stuck].any(axis=(0, 2))))
        collected = crew[0].collected
        if not np.isfinite(collected).all():
            raise infinite_return(collected[~np.isfinite(collected)][0])

    def _learned(self, crew: tuple[CardWalkers, RuleMemory], stream: Stream, rounds: list[Round]) -> bool:
        """Play rounds; return whether all targets were within the bound, else nothing has changed."""
        if self._bound > _LAST_BOUND:
            raise DivergenceError(
                f"A target is beyond {self._bound / _NEXT_BOUND:g}: on a card they are added up as whole "
                "numbers, and there is no room for such. Make the rewards smaller, in a wrapper for instance."
            )
        walkers, arrays, memory = self._play(
            crew, stream, rounds, Units.for_bound(self._bound, self.shape.threads * self._letters)
        )
        faults = self._from_card(arrays.faults)
        if faults[TOO_LARGE] and not faults[WRONG]:
            return False
        told = {name: self._from_card(getattr(walkers, name)) for name in ("came", "reward")}
        if faults[WRONG]:
            which = np.flatnonzero(self._from_card(walkers.states) < 0)
            first = int(which[np.argmax(told["came"][which].any(axis=1))]) if which.size else 0
            run_game(self._simulator, told["came"][first], told["reward"][first : first + 1], lambda: True)
        if faults[NO_ROOM]:
            raise SettingsError(
                f"The rule {self._problem.rule.name!r} moved more entries in a step than it declares, or "
                'added to one. Correct its waits, or write device="cpu".'
            )
        self._take(crew, walkers, memory, arrays)
        return True

    def _play(
        self,
        crew: tuple[CardWalkers, RuleMemory],
        stream: Stream,
        rounds: list[Round],
        units: Units,
    ) -> tuple[Any, Any, Any]:
        """Play rounds on the card; return the walkers, the table, and what the rule remembers, from there."""
        problem, table = self._problem, self.table
        blocks = max(blocks_of(one.moving, self.shape) for one in rounds)
        walkers = self._on_card(crew[0])
        arrays, copies = self._arrays(blocks), self._copies(blocks)
        simulation, parts, memory = self._parts(crew[1])
        bytes_shared = self._copy_bytes if self._in_shared else 0
        threads = min(256, max(32, table.q.size)) if not self.card.is_simulated else self.shape.threads
        used = stream.used
        for one in rounds:
            moving_blocks = blocks_of(one.moving, self.shape)
            there = parts._replace(step_sizes=self._step_sizes_for(moving_blocks))
            moment = self._moment(stream, used, one, units)
            grid = moving_blocks, self.shape.threads, 0, bytes_shared
            self._round[grid](problem.parameters, simulation, walkers, there, arrays, copies, moment)
            self._merge[-(-table.q.size // threads), threads](arrays, moving_blocks)
            used += one.moving * one.steps
        return walkers, arrays, memory

    def _arrays(self, blocks: int) -> Any:
        """Return the table on the card, with room for the maps of so many blocks, which a round fills."""
        table = self.table
        size, none = table.q.size, np.zeros(0)
        arrays = self._on_card(
            Arrays(
                table.q,
                table.visits + (table.updates & VISIT_MASK),
                table.weight,
                table.shift,
                np.zeros(size, np.int64),
                none,
                none,
                none,
                np.zeros(_FAULTS, np.int64),
            )
        )
        return arrays._replace(
            block_weight=self._room("weight", blocks * size, np.float64),
            block_shift=self._room("shift", blocks * size, np.float64),
            block_updates=self._room("updates", blocks * size, np.int32),
        )

    def _copies(self, blocks: int) -> Any:
        """Return room on the card for the copies of so many blocks, which a round fills."""
        size = 0 if self._in_shared else blocks * self.table.q.size
        return Copies(
            self._room("sums", size, np.int64),
            self._room("reals", 3 * size, np.float64 if self._itemsize == 8 else np.float32),
            self._room("whole", 2 * size, np.int32),
        )

    def _room(self, name: str, size: int, kind: Any) -> Any:
        """Return an array on the card of this size or larger, which is kept for the next call."""
        if name not in self._rooms or self._rooms[name].size < size:
            self._rooms[name] = self._new_on_card(size, kind)
        return self._rooms[name]

    def _parts(self, memory: RuleMemory) -> tuple[Any, Parts, Any]:
        """Return the simulation and the parts of a round on the card, and what the rule remembers there."""
        problem = self._problem
        context = memory.context(self.table, None, problem.settings.discount_factor)
        legal, row_shape = self.table.arrays.legal, self.table.arrays.row_shape
        if self._constants is None:
            self._constants = self._on_card((self._simulator.tables, (context.behavior, legal)))
        simulation, (behavior, legal) = self._constants
        remembered = self._on_card((context.whole, context.real, context.owned, context.model))
        whole, real, owned, model = remembered
        parts = Parts(
            None,
            context.discount,
            behavior,
            whole,
            real,
            owned,
            model,
            legal,
            row_shape,
            self.table.n_states,
            self.table.shape.n_tables,
            self.table.n_actions,
        )
        return simulation, parts, remembered

    def _step_sizes_for(self, blocks: int) -> Any:
        """Return step sizes by visits, whose clock is one learner's among all blocks of all workers."""
        schedule = self._problem.settings.learning_rate
        if not isinstance(schedule, PerVisit):
            return None
        learners = self._problem.rates.workers * blocks
        if learners not in self._step_sizes:
            self._step_sizes[learners] = self._on_card(schedule.table(learners))
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

    def _take(self, crew: tuple[CardWalkers, RuleMemory], walkers: Any, memory: Any, arrays: Any) -> None:
        """Bring the table and the walkers to what they are on the card."""
        table, own = self.table, crew[0]
        count = self._from_card(arrays.updates)
        for name, array in (("q", arrays.values), ("weight", arrays.weight), ("shift", arrays.shift)):
            getattr(table, name)[:] = self._from_card(array)
        new = np.flatnonzero((count > 0) & (table.updates == 0))
        first = int(table.n_touched[0])
        table.touched[first : first + new.size] = new
        table.n_touched[0] = first + new.size
        table.updates += count
        table.refresh_all_rows()
        for name in ("states", "elapsed", "collected", "memory"):
            getattr(own, name)[:] = self._from_card(getattr(walkers, name))
        self.totals.values += self._from_card(walkers.totals).sum(axis=0)
        context = crew[1].context(table, None, 0.0)
        for mine, there in zip(
            (context.whole, context.real, context.owned, context.model), memory, strict=True
        ):
            mine[:] = self._from_card(there)

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
        check_position(position, running, self.table.n_states, crew.time_limit, self._stuck)
        memory.restore(state)
        crew.states[:], crew.elapsed[:], crew.memory[:] = position[:, 0], position[:, 1], position[:, 2:]
        crew.collected[:] = running
        self._bound = min(
            max(_FIRST_BOUND, 2.0 ** round(math.log2(max(state["bound"][0], 1.0)))), _LAST_BOUND
        )

    def close(self) -> None:
        """Give the card's memory back."""
        self._constants = None
        self._step_sizes.clear()
        self._rooms.clear()
