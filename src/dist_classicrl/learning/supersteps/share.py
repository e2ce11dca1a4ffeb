"""One rank's share of a table that is learned in supersteps: its rows, and the walkers that are there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from dist_classicrl._jit import jit_for
from dist_classicrl._steps import NEVER
from dist_classicrl.checks import is_whole
from dist_classicrl.environments.simulate import CompiledSimulator
from dist_classicrl.environments.state_keys import words_of
from dist_classicrl.environments.trial import run_game, try_out
from dist_classicrl.errors import ProtocolError, SettingsError
from dist_classicrl.learning import loops
from dist_classicrl.learning.compiled import infinite_return, stuck_states, stuck_there
from dist_classicrl.learning.learner import Problem, Stream
from dist_classicrl.learning.loops import NO_STEPS, Stretch
from dist_classicrl.learning.memory import check_ranges, declared
from dist_classicrl.learning.rates import Rates
from dist_classicrl.learning.rules import compiling
from dist_classicrl.learning.rules.kernel import Context
from dist_classicrl.learning.state import RULE_ARRAYS, State, check_arrays, check_position, refused
from dist_classicrl.learning.supersteps import in_place, kernels, sums, together
from dist_classicrl.learning.supersteps.by_messages.hot_rows import HotRows, most_copies
from dist_classicrl.learning.supersteps.by_messages.kernels import move_out
from dist_classicrl.learning.supersteps.by_messages.steps import MessageSteps
from dist_classicrl.learning.supersteps.copies import new_copies
from dist_classicrl.learning.supersteps.crew import (
    ACTION_BITS,
    BEGUN,
    COLLECTED,
    ELAPSED_BITS,
    MADE,
    MEMORY,
    MOST_ELAPSED,
    REWARD,
    WHO,
    Crew,
    count_on,
    counted_by,
    new_crew,
)
from dist_classicrl.learning.supersteps.kernels import steps_at_once
from dist_classicrl.learning.supersteps.letters import LETTER_WORDS
from dist_classicrl.learning.supersteps.one_walker import FINE, WRONG_GAME, WRONG_RECORD
from dist_classicrl.learning.supersteps.owners import Owned, owned_by, owners_of
from dist_classicrl.learning.supersteps.partition import STATE_SHIFT, WHERE
from dist_classicrl.learning.supersteps.shared import Summed
from dist_classicrl.learning.supersteps.together import (
    BEGUN_AT,
    CROSSED,
    DONE,
    ENDED_AT,
    IS_OVER,
    LEARNED,
    PHASE,
    SEQUENCE,
    STEPS,
    WAITING,
    Boxes,
)
from dist_classicrl.learning.supersteps.trial import try_rule
from dist_classicrl.rules import LearningRule
from dist_classicrl.rules.behaviors import FixedPolicy
from dist_classicrl.tables.line_table import LineTable
from dist_classicrl.tables.outbox import Letters, Outbox
from dist_classicrl.tables.shape import TableShape

WALKERS = 1 << 14
"""By default. A constant of the run: with another one another table is learned."""

_MOST_WALKERS = 1 << 22
_MOST_AT_ONCE = 1 << 28
_MOST_STATES = 1 << (62 - ACTION_BITS - 2)
_ANY_KEY = 1 << 62

RECORD_BYTES, REPLY_BYTES = 32, 8
"""What a step costs that leaves its rank: there, and back; more where something is remembered."""


def check_walkers(walkers: Any) -> None:
    """Raise SettingsError unless so many walkers can be had."""
    if not is_whole(walkers):
        raise SettingsError(f"walkers must be a whole number or None, got {walkers!r}.")
    if not 1 <= walkers <= _MOST_WALKERS or walkers & (walkers - 1):
        below = 1 << max(0, min(int(walkers), _MOST_WALKERS).bit_length() - 1)
        raise SettingsError(
            f"walkers must be a power of two from 1 to {_MOST_WALKERS:,}, got {walkers}. Write "
            f"walkers={max(1, below)}."
        )


def supersteps(stream: Stream, rates: Rates, walkers: int, until: int) -> Iterator[tuple[Stretch, int, int]]:
    """Give the supersteps of a stream up to its step `until`, or the first after that at which one ends.

    Each is a stretch, the steps of it made before, and how many it makes; they are counted in the stream.
    They depend on the stream, the rates and the walkers of the run alone, and not on `until`.
    """
    while stream.used < until:
        stretch = stream.stretch(rates)
        done = 0
        while done < stretch.steps and stream.used < until:
            at_once = steps_at_once(stream.start, stream.used, walkers, loops.STEPS_PER_WALKER)
            size = min(at_once, stretch.steps - done)
            yield stretch, done, size
            done += size
            stream.used += size


def record_sizes(simulator: CompiledSimulator, rule: LearningRule, parameters: Any) -> tuple[int, int, int]:
    """Return how many numbers the record of a walker has, and a reply to it or a letter.

    And how many of these a walker causes at most, to one rank, in a superstep.
    """
    key = words_of(simulator.keys)
    words = MEMORY + simulator.memory_size + sum(rule.remembered(parameters)) + key
    if rule.waits is None:
        return words, 1 if len(rule.tables) == 1 else 2, 2
    waits = rule.waiting(parameters)
    return words + waits * max(1, key), LETTER_WORDS + key, waits + 1


class Share(MessageSteps):
    """What `rank` of `ranks` owns of a problem, and does in supersteps.

    What is learned does not depend on `ranks`, nor on the `partition`, which is one of those of
    `dist_classicrl.learning.supersteps.owners.owned_by`.
    """

    _copies_rows = True

    def __init__(
        self,
        problem: Problem,
        walkers: int = WALKERS,
        partition: Any = "hash",
        rank: int = 0,
        ranks: int = 1,
        is_alone: bool | None = None,
        boxes: Boxes | None = None,
    ) -> None:
        self.ranks, self.walkers, self.n_tables = ranks, walkers, problem.shape.n_tables
        self._problem, self._rank, self._whole = problem, rank, problem.shape
        self._is_alone = ranks == 1 if is_alone is None else is_alone
        self._boxes = boxes
        #: Its rows.
        self.table: Any = self._own(partition)
        #: What its rule remembers of a walker: how many whole numbers, and real ones.
        self._remembered = problem.rule.remembered(problem.parameters)
        context = Context(
            self.table.arrays,
            problem.rates.table,
            problem.settings.discount_factor,
            self._behavior(),
            None,
            np.zeros((1, self._remembered[0]), np.int64),
            np.zeros((1, self._remembered[1])),
            np.zeros((1, 0)),
            np.zeros(0),
        )
        self._context: Any = context
        #: Whether its rule shares numbers, whose sums all ranks have to know after each superstep.
        self.shares = problem.shape.n_shared > 0
        #: How many of its steps may wait; None: each is learned at once.
        self._waits = None if problem.rule.waits is None else problem.rule.waiting(problem.parameters)
        arrays = self.table.arrays
        outbox: Outbox | Letters
        outbox = Outbox.of(arrays) if self._waits is None else Letters.of(arrays, self._waits)
        self._asking = context._replace(table=outbox)
        self._learns_there = problem.rule.on_target is not None
        if self._learns_there:
            numbers = problem.shape.n_shared
            summed: Any = Summed.of(arrays, numbers)
            self._context = context._replace(table=summed)
        self._stuck: np.ndarray | None = None
        self._hot: HotRows | None = None
        self._added = self._n_moved = self._n_settled = 0
        self._set_up()

    def _set_up(self) -> None:
        """Get ready what moves walkers."""
        problem, shape, simulator = self._problem, self._whole, self._problem.source.simulator
        assert simulator is not None  # see `share_of`
        if shape.n_states > _MOST_STATES or shape.n_actions > 1 << ACTION_BITS:
            raise SettingsError(
                f"Walkers that travel can be in at most {_MOST_STATES:,} states with {1 << ACTION_BITS:,} "
                f"actions each, got {shape.n_states:,} and {shape.n_actions:,}."
            )
        self._simulator = simulator
        #: How many numbers a record has, and a reply.
        self.words, self.width, _ = record_sizes(simulator, problem.rule, problem.parameters)
        self._stuck = stuck_states(simulator)
        self._hot = self._new_hot_rows()
        self._crew: Any = new_crew(
            self.walkers,
            self.words,
            self.width,
            self._waits,
            self._remembered,
            simulator.memory_size,
            shape.n_states,
            simulator.max_episode_steps or NEVER,
            self._rank,
            self.ranks,
            None if self._boxes is None else (self._boxes.records, self._boxes.out_starts),
            new_copies(0) if self._hot is None else self._hot.copies,
            simulator.keys,
        )
        parts = type(simulator.tables), problem.rule.parameters, self._kind_of_partition
        self._depart = jit_for(kernels.depart, *parts)
        self._answer = jit_for(kernels.answer, *parts)
        self._learn = jit_for(kernels.learn_alone, *parts)
        self._together = jit_for(
            in_place.play_in_place if self._is_in_place else together.play_together, *parts
        )
        self._settle_there = jit_for(kernels.settle_there, problem.rule.parameters)
        self._read = jit_for(kernels.read_letters, self._kind_of_partition)
        self._move_out = jit_for(move_out, self._kind_of_partition)
        self._owners_of = jit_for(owners_of, self._kind_of_partition)

    @property
    def _is_in_place(self) -> bool:
        """Whether walkers stay where they are, since all ranks share the rows."""
        return False

    # Rows

    def _own(self, partition: Any) -> LineTable:
        """Return a table of what it owns by this partition."""
        problem, shape = self._problem, self._whole
        self._owned: Owned = owned_by(partition, shape.n_states, self._rank, self.ranks, self._is_alone)
        states = self._owned.states
        if states is None:
            return LineTable(shape, problem.dtype, problem.legal)
        own = replace(shape, n_states=states.size + self._room)
        return LineTable(own, problem.dtype, self._own_rows_of(problem.legal))

    def _behavior(self) -> Any:
        """Return how actions are chosen: of a policy its own rows."""
        behavior = self._problem.behavior
        if not isinstance(behavior, FixedPolicy) or self._owned.states is None:
            return behavior
        return FixedPolicy(self._own_rows_of(behavior.probabilities))

    def _own_rows_of(self, array: np.ndarray | None) -> Any:
        """Return its own of all states' rows, and room for those of hot rows."""
        if array is None:
            return None
        return np.pad(array[self._owned.states], ((0, self._room), (0, 0)))

    @property
    def _room(self) -> int:
        """How many rows of other owners it may have copies of: those that exchange messages have."""
        can_be = self._copies_rows and self.n_tables <= in_place.MOST_TABLES
        return most_copies(self.ranks) if can_be and self.ranks > 1 and self._boxes is None else 0

    def _new_hot_rows(self) -> HotRows | None:
        if self._room == 0:
            return None
        problem, behavior = self._problem, self._problem.behavior
        place = self._rank, self.ranks, self.walkers, self.table, self._owned.states
        if not isinstance(behavior, FixedPolicy):
            return HotRows(*place, problem.legal)
        return HotRows(*place, problem.legal, behavior.probabilities, self._context.behavior.probabilities)

    @property
    def _partition(self) -> Any:
        """What kernels are called with."""
        return self._owned.arrays

    @property
    def _kind_of_partition(self) -> type:
        return type(self._partition)

    def _make_room(self) -> None:
        """See to it that a superstep of all walkers has room."""

    # Supersteps

    def compile(self) -> None:
        """Compile what is called, or load it, and try the rule and the game out."""
        try_rule(self._problem, self._simulator.max_episode_steps)
        try_out(self._simulator)
        for compile_one in self.kernels():
            compile_one()

    def kernels(self) -> list[Callable[[], None]]:
        """Return what compiles what is called, or loads it; it changes nothing."""

        def call(kernel: Callable[[], Any]) -> Callable[[], None]:
            def compiled() -> None:
                with compiling(self._problem.rule):
                    kernel()

            return compiled

        if self._is_alone:
            return [call(lambda: self._learn_stretch(NO_STEPS, 0, 0))]
        if self._boxes is not None:
            ramp = 0, self.walkers, loops.STEPS_PER_WALKER
            boxes, rest = self._boxes, (self._context, self._asking, NO_STEPS, *ramp, 0, 0)
            return [call(lambda: self._call(self._together, self._crew, boxes, *rest))]
        records = [np.empty((0, self.words), np.int64)] * self.ranks
        replies = [np.empty((0, self.width), np.int64)] * self.ranks
        return [
            call(lambda: self.depart(NO_STEPS, 0, 0)),
            call(lambda: self.answer(NO_STEPS, 0, records)),
            call(lambda: self.settle(NO_STEPS, 0, 0, replies)),
            *([call(lambda: self.take_sums(self.sums()))] if self.shares else []),
            *([] if self._hot is None else [call(self._compile_hot_rows)]),
        ]

    def _compile_hot_rows(self) -> None:
        assert self._hot is not None
        self._hot.compile(self._crew)
        self._move_out(self._partition, self._crew)
        self._whose(np.zeros(0, np.int64))

    def learn_alone(self, stream: Stream, rates: Rates, until: int) -> None:
        """Make `supersteps`, where it owns everything."""
        while stream.used < until:
            self._make_room()
            least = min(until - stream.used, _MOST_AT_ONCE)
            stream.used += self._learn_stretch(stream.stretch(rates), stream.start, least)

    def _learn_stretch(self, stretch: Stretch, start: int, least: int) -> int:
        self._count(least + self.walkers)
        ramp = start, self.walkers, loops.STEPS_PER_WALKER
        self._call(self._learn, self._crew, self._context, self._asking, stretch, *ramp, least)
        return int(self._crew.sizes[MADE])

    def play_together(self, stream: Stream, rates: Rates, until: int, looks: int) -> bool:
        """Make `supersteps` with those with whom it has `Boxes`.

        Return whether they are made; False: somebody has not done its part after so many looks. Called again
        it goes on.
        """
        boxes = self._boxes
        assert boxes is not None
        while stream.used < until:
            stretch, least = stream.stretch(rates), min(until - stream.used, _MOST_AT_ONCE)
            if boxes.state[PHASE] == 0 and boxes.state[DONE] == 0:
                self._count(least + self.walkers)
            self._make_room()
            ramp = stream.start, self.walkers, loops.STEPS_PER_WALKER
            rest = self._context, self._asking, stretch, *ramp, least, looks
            if not self._call(self._together, self._crew, boxes, *rest):
                return False
            stream.used += int(boxes.state[DONE])
            boxes.state[DONE] = 0
            if boxes.state[IS_OVER]:
                break
        return True

    @property
    def superstep_together(self) -> int:
        """A number for the superstep under way, larger than any before; also if no walker is this rank's."""
        assert self._boxes is not None
        return int(self._boxes.state[SEQUENCE])

    def exchanged(self) -> tuple[int, int, float]:
        """Return the steps of `play_together` since this was asked, and how many numbers it told others.

        And the share of the time, from its first call to the end of the last, in which it did not wait.
        """
        assert self._boxes is not None
        state = self._boxes.state
        steps, crossed, learned, begun, ended = state[[STEPS, CROSSED, LEARNED, BEGUN_AT, ENDED_AT]].tolist()
        state[[STEPS, CROSSED, LEARNED, BEGUN_AT]] = 0
        return steps, crossed, learned / max(1, ended - begun)

    def _call(self, kernel: Any, crew: Crew, *arguments: Any) -> bool:
        """Call a kernel; return whether it has come to its end."""
        wrong = FINE

        def call() -> bool:
            nonlocal wrong
            problem, simulation = self._problem, self._simulator.tables
            wrong = kernel(problem.parameters, simulation, self._partition, crew, *arguments)
            return bool(wrong == WRONG_GAME)

        run_game(self._simulator, crew.came, crew.reward_that_came, call)
        if wrong == WAITING:
            return False
        self._check(wrong)
        return True

    def _check(self, wrong: int) -> None:
        if wrong == WRONG_RECORD:
            raise ProtocolError(
                "A walker came from another owner of rows that cannot be here. Do all ranks run the same "
                "version, with the same environment and partition?"
            )
        if wrong != FINE:
            name = self._problem.rule.name
            if self._waits is not None:
                raise SettingsError(
                    f"The rule {name!r} declares waits={self._waits}, but updated what does not wait, more "
                    "than wait, or a number that is shared, or moved an entry by a step size of its own. Let "
                    "it only call update, or update_row, and for steps that wait."
                )
            raise SettingsError(
                f"The rule {name!r} declares can_travel=True, but did not update the entry of the step's "
                "state and action alone: it moved none or several, another one, or one by a step size of its "
                "own. Let each call of its learn update that entry once, let on_target do the rest where the "
                "entry is, or leave can_travel out."
            )

    def check(self) -> None:
        """Raise what `dist_classicrl.learning.learner.Learner.learn` raises, if steps came to that."""
        if self._stuck is not None and self._stuck.size:
            owned, stuck = self._owned.states, self._stuck
            rows = stuck
            if owned is not None:
                stuck = stuck[np.isin(stuck, owned)]
                rows = np.searchsorted(owned, stuck)
            stuck_there(stuck, self.table.of_states(rows), -np.inf)
        if (collected := float(self._crew.infinite[0])) != 0.0:
            raise infinite_return(collected)

    def _count(self, steps: int) -> None:
        """See to it that exact sums have room for so many steps more."""
        self._added += steps
        if self._added >= sums.MOST_ADDED:
            sums.carried(self._crew.returns)
            sums.carried(self._crew.errors)
            self._added = steps

    # What was learned

    def counted(self) -> np.ndarray:
        """Return what its walkers have counted, see `counted_by`."""
        self._added = 0
        return counted_by(self._crew)

    def load(self, values: np.ndarray, counts: np.ndarray) -> None:
        """Start from a whole table: `values` and visit `counts`, flat."""
        if self._owned.states is not None:
            values, counts = self._own_of(values), self._own_of(counts)
        self.table.load(values.ravel(), counts.ravel())

    def _own_of(self, array: np.ndarray) -> np.ndarray:
        """Return what is its own of a whole array, flat; what the rule shares is everybody's."""
        shared = self._n_table_entries(self._whole)
        own = np.pad(self._rows_of(array)[:, self._owned.states], ((0, 0), (0, self._room), (0, 0)))
        return np.concatenate([own.ravel(), array.ravel()[shared:]])

    @staticmethod
    def _n_table_entries(shape: TableShape) -> int:
        return shape.n_tables * shape.n_states * shape.n_actions

    def rows(self) -> tuple[np.ndarray, np.ndarray]:
        """Return its values and visit counts, flat; DivergenceError if they cannot be."""
        size = self.table.shape.size
        own = np.empty(size, self.table.values.dtype), np.empty(size, np.int64)
        self.table.settle(*own)
        return self._without_copies(own[0]), self._without_copies(own[1])

    def _without_copies(self, rows: np.ndarray) -> np.ndarray:
        shape, states = self.table.shape, self._owned.states
        if states is None or self._room == 0:
            return rows
        own = shape.tables(rows.reshape(shape.n_rows, -1))[:, : states.size]
        return np.concatenate([own.ravel(), rows[self._n_table_entries(shape) :]])

    def place(self, rows: np.ndarray, whole: np.ndarray) -> None:
        """Write values or counts of its rows to their places in those of the whole table, both flat."""
        states = self._owned.states
        if states is None:
            whole[:] = rows
        else:
            n_tables, n_actions = self._whole.n_tables, self._whole.n_actions
            n_own = n_tables * states.size * n_actions
            self._rows_of(whole)[:, states] = rows[:n_own].reshape(n_tables, -1, n_actions)
            whole[self._n_table_entries(self._whole) :] = rows[n_own:]

    def _rows_of(self, array: np.ndarray) -> np.ndarray:
        return self._whole.tables(array.reshape(self._whole.n_rows, -1))

    # Walkers

    def _states_in(self, walkers: np.ndarray) -> np.ndarray:
        states: np.ndarray = walkers[:, WHERE] >> STATE_SHIFT
        return states

    def _is_own(self, states: np.ndarray) -> np.ndarray:
        owned = self._owned.states
        return np.ones(states.size, bool) if owned is None else np.isin(states, owned)

    def _are_here(self, states: np.ndarray) -> np.ndarray:
        """Return which of all walkers, that are in these states, are with this rank."""
        return self._is_own(states)

    def state(self) -> State:
        """Return all that the next steps depend on besides the rows and the stream, between two supersteps.

        What several shares return, `joined` makes one of, which any number of shares can `restore`.
        """
        crew = self._crew
        walkers = np.full((self.walkers, self.words), -1)
        bits = np.unpackbits(crew.here.view(np.uint8), bitorder="little")
        here = np.flatnonzero(bits)
        walkers[here] = crew.records[here]
        walkers[here, REWARD] = 0
        return {"walkers": walkers, "counted": self.counted()}

    def restore(self, state: State) -> None:
        """Put back the state of all shares of a run, which may have been divided in another way.

        CheckpointError where no walker can have had it.
        """
        check_arrays(state, self.state(), {})
        walkers = state["walkers"]
        begun = int((walkers[:, WHO] >= 0).sum())
        walkers = walkers[:begun]
        who, where = walkers[:, WHO], walkers[:, WHERE]
        if (who >> ELAPSED_BITS != np.arange(begun)).any() or (where & ((1 << STATE_SHIFT) - 1)).any():
            raise refused("walkers", "are not in the order of their identities", "each of them once")
        states = self._states_in(walkers)
        n_states = self._whole.n_states
        places = states if n_states else np.zeros(begun, np.int64)
        position = np.stack([places, who & MOST_ELAPSED], 1)
        running = walkers[:, COLLECTED].copy().view(np.float64)
        if begun and position.min() < 0:
            raise refused("walkers", f"are in state {states.min()}", "a state of the environment")
        check_position(position, running, n_states or 1, self._crew.time_limit, self._stuck)
        first = MEMORY + self._simulator.memory_size
        self._check_remembered(walkers[:, first : first + self._remembered[0]])
        first += self._remembered[0]
        reals = walkers[:, first : first + self._remembered[1]]
        if not np.isfinite(reals.copy().view(np.float64)).all():
            raise refused("walkers", "hold NaN or infinity", "finite numbers only")
        here = np.flatnonzero(self._are_here(states))
        crew = self._crew
        waiting = walkers[:, crew.post.places :][:, : self._waits or 0]
        if n_states and ((waiting < 0) | (waiting >= n_states)).any():
            raise refused("walkers", "have waiting steps in other states", "states of the environment")
        crew.records[here] = walkers[here]
        bits = np.zeros(64 * crew.here.size, np.uint8)
        bits[here] = 1
        crew.here[:] = np.packbits(bits, bitorder="little").view(np.int64)
        crew.sizes[BEGUN] = begun
        self._count_on(state["counted"])

    def _check_remembered(self, whole: np.ndarray) -> None:
        rule, parameters = self._problem.rule, self._problem.parameters
        n_states = self._whole.n_states or _ANY_KEY
        if self._waits is not None:
            n_states = max(1, self._waits)  # a step has its place as its state, see `letters`
        ranges = declared(rule, parameters, n_states, self._whole.n_actions)
        check_ranges("walkers", whole, ranges[RULE_ARRAYS[0]])

    def _count_on(self, counted: np.ndarray) -> None:
        """Put back what all shares have counted, so that it is counted once."""
        count_on(self._crew, counted if self._rank == 0 else 0 * counted)
