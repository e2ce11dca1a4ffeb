"""One rank's share of a table that is learned in supersteps: its rows, and the walkers that are there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from dist_classicrl._jit import jit_for
from dist_classicrl._memory import zeros
from dist_classicrl.environments.trial import run_game, try_out
from dist_classicrl.errors import SettingsError
from dist_classicrl.learning.behavior import EpsilonGreedy
from dist_classicrl.learning.compiled import NEVER, infinite_return, stuck_states, stuck_there
from dist_classicrl.learning.learner import Problem, Stream
from dist_classicrl.learning.loops import NO_STEPS, Stretch
from dist_classicrl.learning.rates import Rates
from dist_classicrl.learning.rules import check_travels, compiling
from dist_classicrl.learning.rules.kernel import Context
from dist_classicrl.learning.state import State, check_arrays, check_position, refused
from dist_classicrl.learning.supersteps import kernels, sums
from dist_classicrl.learning.supersteps.kernels import (
    ACTION_BITS,
    BEGUN,
    BLOCK,
    COLLECTED,
    ELAPSED_BITS,
    FINE,
    HERE,
    MEMORY,
    MOST_ELAPSED,
    REWARD,
    SENT,
    WHERE,
    WHO,
    WRONG_GAME,
    Crew,
    steps_at_once,
)
from dist_classicrl.learning.supersteps.partition import Owned, owned_by
from dist_classicrl.tables.line_table import LineTable
from dist_classicrl.tables.outbox import Outbox
from dist_classicrl.tables.shape import TableShape

WALKERS = 1 << 14
"""By default. A constant of the run: with another one another table is learned."""

_MOST_WALKERS = 1 << 22
_MOST_STATES = 1 << (62 - ACTION_BITS - 2)
_STATE_SHIFT = ACTION_BITS + 2

RECORD_BYTES, REPLY_BYTES = 32, 8
"""What a step costs that leaves its rank: there, and back; more where something is remembered."""


def check_walkers(walkers: int) -> None:
    """Raise SettingsError unless so many walkers can be had."""
    if not 1 <= walkers <= _MOST_WALKERS or walkers & (walkers - 1):
        below = 1 << max(0, min(walkers, _MOST_WALKERS).bit_length() - 1)
        raise SettingsError(
            f"walkers must be a power of two from 1 to {_MOST_WALKERS:,}, got {walkers}. Write "
            f"walkers={max(1, below)}."
        )


def supersteps(stream: Stream, steps: int, rates: Rates, walkers: int) -> Iterator[tuple[Stretch, int, int]]:
    """Give the supersteps of a stream's next `steps`: a stretch, the steps of it made before, and how many.

    They depend on the stream, the rates and the walkers of the run alone.
    """
    for stretch in stream.stretches(steps, rates):
        done = 0
        while done < stretch.steps:
            size = steps_at_once(stream.start, stretch.offset + done, walkers)
            size = min(size, stretch.steps - done)
            yield stretch, done, size
            done += size


class Share:
    """What `rank` of `ranks` owns of a problem, and does in supersteps.

    In each, all ranks `depart`, which gives the records for the others, then `answer` what others sent, then
    `settle` what came back. What is learned does not depend on `ranks`, nor on the `partition`, which is one
    of those of `dist_classicrl.learning.supersteps.partition.owned_by`.
    """

    def __init__(
        self,
        problem: Problem,
        walkers: int = WALKERS,
        partition: Any = "hash",
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        simulator = problem.source.simulator
        if simulator is None:
            raise SettingsError(
                f'placement="sharded" with async_updates=False needs an environment that is compiled code, '
                f'and {problem.source.name} is stepped in Python. Write placement="replicated".'
            )
        check_travels(problem.rule)
        check_walkers(walkers)
        shape = problem.shape
        if shape.n_states > _MOST_STATES or shape.n_actions > 1 << ACTION_BITS:
            raise SettingsError(
                f"Walkers that travel can be in at most {_MOST_STATES:,} states with {1 << ACTION_BITS:,} "
                f"actions each, got {shape.n_states:,} and {shape.n_actions:,}."
            )
        self.ranks, self.walkers, self.n_tables = ranks, walkers, shape.n_tables
        self._problem, self._simulator, self._rank = problem, simulator, rank
        self._whole = shape
        self._owned: Owned = owned_by(partition, shape.n_states, rank, ranks)
        states = self._owned.states
        own = shape if states is None else TableShape(states.size, shape.n_actions, shape.n_tables)
        legal = problem.legal if states is None or problem.legal is None else problem.legal[states]
        #: Its rows.
        self.table = LineTable(own, problem.dtype, legal)
        #: What its rule remembers of a walker: how many whole numbers, and real ones.
        self._remembered = problem.rule.memory(problem.parameters)
        self._words = MEMORY + simulator.memory_size + sum(self._remembered)
        self._stuck = stuck_states(simulator)
        self._crew = self._new_crew(BLOCK)
        context = Context(
            self.table.arrays,
            problem.rates.table,
            problem.settings.discount_factor,
            EpsilonGreedy(),
            None,
            *(np.zeros((1, n), kind) for n, kind in zip(self._remembered, (np.int64, float), strict=True)),
            np.zeros((1, 0)),
        )
        self._context = context
        self._asking = context._replace(table=Outbox.of(self.table.arrays))
        parts = type(simulator.tables), problem.rule.parameters, type(self._owned.arrays)
        self._depart = jit_for(kernels.depart, *parts)
        self._answer = jit_for(kernels.answer, *parts)
        self._learn = jit_for(kernels.learn_alone, *parts)
        self._added = 0

    # Arrays

    def _new_crew(self, capacity: int) -> Crew:
        sent = 2 * capacity if self.ranks > 1 else 0
        width = 1 if self.n_tables == 1 else 2
        records = [self._records(size) for size in (capacity, capacity, sent, sent)]
        reals = [array.view(np.float64) for array in records]
        return Crew(
            here=records[0],
            here_reals=reals[0],
            merged=records[1],
            merged_reals=reals[1],
            rows=zeros(capacity, np.int64),
            pairs=zeros(capacity, np.int64),
            actions=zeros(capacity, np.int64),
            numbers=zeros(capacity, np.int64),
            sent_at=zeros(capacity, np.int64),
            targets=zeros(capacity * width, np.float64).reshape(capacity, width),
            staged=records[2],
            staged_reals=reals[2],
            staged_to=zeros(sent, np.int64),
            out=records[3],
            offsets=np.zeros(self.ranks + 1, np.int64),
            sizes=np.zeros(4, np.int64),
            words=np.zeros(-(-self.walkers // 64), np.uint64),
            before=np.zeros(-(-self.walkers // 64), np.int64),
            rank=self._rank,
            n_states=self._whole.n_states,
            time_limit=self._simulator.max_episode_steps or NEVER,
            memory_size=self._simulator.memory_size,
            came=np.full(3, -1),
            reward_that_came=np.zeros(1),
            ends=np.zeros(2, np.int64),
            returns=np.zeros(sums.PARTS, np.int64),
            errors=np.zeros(sums.PARTS, np.int64),
            infinite=np.zeros(1),
            next_states=np.zeros(BLOCK, np.int64),
            next_rows=np.zeros(BLOCK, np.int64),
            owners=np.zeros(BLOCK, np.int64),
            rewards=np.zeros(BLOCK),
            terminated=np.zeros(BLOCK, bool),
        )

    def _records(self, n: int) -> np.ndarray:
        return zeros(n * self._words, np.int64).reshape(n, self._words)

    def _make_room(self, n: int) -> None:
        """Let there be room for `n` walkers; what is under way of a superstep stays."""
        old = self._crew
        if n <= old.rows.size:
            return
        new = self._new_crew(max(n, 2 * old.rows.size))
        for name, array in old._asdict().items():
            if isinstance(array, np.ndarray) and not name.endswith("_reals"):
                getattr(new, name)[: len(array)] = array
        self._crew = new

    # Supersteps

    def compile(self) -> None:
        """Compile what is called, or load it, and try the game out."""
        try_out(self._simulator)
        with compiling(self._problem.rule):
            if self.ranks == 1:
                self.learn_alone(0, NO_STEPS)
            else:
                records, _ = self.depart(NO_STEPS, 0, 0)
                self.settle(NO_STEPS, 0, self.answer(NO_STEPS, 0, records))

    def learn_alone(self, start: int, stretch: Stretch) -> None:
        """Make the steps of a stretch, where it owns everything; its stream began at global step `start`."""
        self._make_room(self.walkers)
        self._count(stretch.steps)
        self._call(self._learn, self._crew, self._context, self._asking, stretch, start, self.walkers)

    def depart(self, stretch: Stretch, done: int, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Let its walkers among the first `size` act.

        Return the records for other ranks, int64 of shape (n, words), and where those for each begin: shape
        (ranks + 1,). Both are good until the next superstep.
        """
        sizes = self._crew.sizes
        self._make_room(int(sizes[HERE] + max(1, size - sizes[BEGUN])))
        self._count(size)
        crew = self._crew
        self._call(self._depart, crew, self._context, self._asking, stretch, done, size)
        return crew.out[: crew.sizes[SENT]], crew.offsets

    def inbox(self, n: int) -> np.ndarray:
        """Return room for `n` records."""
        return np.empty((n, self._words), np.int64)

    def answer(self, stretch: Stretch, done: int, records: np.ndarray) -> np.ndarray:
        """Return the replies to the records of all other ranks, float64 of shape (n, 1 or 2), in their order.

        It takes the walkers in that came with them, and changes the records.
        """
        n_here = int(self._crew.sizes[HERE])
        self._make_room(n_here + len(records))
        crew = self._crew
        replies = np.empty((len(records), crew.targets.shape[1]))
        wrong = self._answer(
            self._problem.parameters,
            self._owned.arrays,
            crew,
            self._asking,
            stretch,
            done,
            records,
            records.view(np.float64),
            replies,
        )
        self._check(wrong)
        if crew.sizes[HERE] > n_here:  # somebody came
            self._crew = crew._replace(
                here=crew.merged,
                here_reals=crew.merged_reals,
                merged=crew.here,
                merged_reals=crew.here_reals,
            )
        return replies

    def settle(self, stretch: Stretch, done: int, replies: np.ndarray) -> None:
        """Learn: `replies` are those to the records that `depart` returned, in their order."""
        kernels.settle(self._crew, self._context, stretch, done, replies)

    def _call(self, kernel: Any, crew: Crew, *arguments: Any) -> None:
        wrong = FINE

        def call() -> bool:
            nonlocal wrong
            problem, simulation = self._problem, self._simulator.tables
            wrong = kernel(problem.parameters, simulation, self._owned.arrays, crew, *arguments)
            return bool(wrong == WRONG_GAME)

        run_game(self._simulator, crew.came, crew.reward_that_came, call)
        self._check(wrong)

    def _check(self, wrong: int) -> None:
        if wrong != FINE:
            raise SettingsError(
                f"The rule {self._problem.rule.name!r} declares can_travel=True, but moved none or several "
                "entries in a step. Let each call of its learn update one entry, or leave can_travel out."
            )

    def check(self) -> None:
        """Raise what `dist_classicrl.learning.learner.Learner.learn` raises, if the steps so far came to that."""
        if self._stuck is not None and self._stuck.size:
            owned, stuck = self._owned.states, self._stuck
            rows = stuck
            if owned is not None:
                rows = np.searchsorted(owned, stuck)
                is_own = (rows < owned.size) & (owned[np.minimum(rows, owned.size - 1)] == stuck)
                stuck, rows = stuck[is_own], rows[is_own]
            counts = self.table.shape.tables(self.table.counts)
            stuck_there(stuck, np.asarray(counts[:, rows].any(axis=(0, 2))))
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

    @property
    def ends(self) -> np.ndarray:
        """How many episodes have ended with a walker that was here, and their steps: int64, shape (2,)."""
        return self._crew.ends

    @property
    def returns(self) -> np.ndarray:
        """The sum of their undiscounted returns, see `dist_classicrl.learning.supersteps.sums`."""
        return self._crew.returns

    @property
    def errors(self) -> np.ndarray:
        """The sum of the absolute errors before updates, likewise."""
        return self._crew.errors

    def load(self, values: np.ndarray, counts: np.ndarray) -> None:
        """Start from a whole table: `values` and visit `counts`, flat."""
        states = self._owned.states
        if states is not None:
            values, counts = (self._rows_of(array)[:, states] for array in (values, counts))
        self.table.load(values.ravel(), counts.ravel())

    def save(self, values: np.ndarray, counts: np.ndarray) -> None:
        """Write its rows to their places in a whole table; DivergenceError if that cannot be."""
        states = self._owned.states
        if states is None:
            self.table.settle(values, counts)
            return
        own = np.empty(self.table.shape.size, values.dtype), np.empty(self.table.shape.size, counts.dtype)
        self.table.settle(*own)
        for whole, part in zip((values, counts), own, strict=True):
            self._rows_of(whole)[:, states] = part.reshape(
                self.table.shape.n_tables, -1, self._whole.n_actions
            )

    def _rows_of(self, array: np.ndarray) -> np.ndarray:
        return self._whole.tables(array.reshape(self._whole.n_rows, -1))

    # Walkers

    def state(self) -> State:
        """Return all that the next steps depend on besides the rows and the stream, between two supersteps.

        What several shares return, `joined` makes one of, which any number of shares can `restore`.
        """
        crew = self._crew
        here = crew.here[: crew.sizes[HERE]].copy()
        here[:, REWARD] = 0
        walkers = np.full((self.walkers, self._words), -1)
        walkers[here[:, WHO] >> ELAPSED_BITS] = here
        return {"walkers": walkers, "ends": crew.ends.copy(), "returns": crew.returns.copy()}

    def restore(self, state: State) -> None:
        """Put back the state of all shares of a run, which may have been divided in another way.

        CheckpointError where no walker can have had it.
        """
        check_arrays(state, self.state(), {})
        walkers = state["walkers"]
        begun = int((walkers[:, WHO] >= 0).sum())
        walkers = walkers[:begun]
        who, where = walkers[:, WHO], walkers[:, WHERE]
        if (who >> ELAPSED_BITS != np.arange(begun)).any() or (where & ((1 << _STATE_SHIFT) - 1)).any():
            raise refused("walkers", "are not in the order of their identities", "each of them once")
        states = where >> _STATE_SHIFT
        position = np.stack([states, who & MOST_ELAPSED], 1)
        running = walkers[:, COLLECTED].copy().view(np.float64)
        if begun and states.min() < 0:
            raise refused("walkers", f"are in state {states.min()}", "a state of the environment")
        check_position(position, running, self._whole.n_states, self._crew.time_limit, self._stuck)
        first = MEMORY + self._simulator.memory_size + self._remembered[0]
        if not np.isfinite(walkers[:, first:].copy().view(np.float64)).all():
            raise refused("walkers", "hold NaN or infinity", "finite numbers only")
        owned = self._owned.states
        here = walkers if owned is None else walkers[np.isin(states, owned)]
        self._make_room(max(1, len(here)))
        crew = self._crew
        crew.here[: len(here)] = here
        crew.sizes[:] = 0
        crew.sizes[HERE], crew.sizes[BEGUN] = len(here), begun
        # What was counted is counted once.
        crew.ends[:] = state["ends"] if self._rank == 0 else 0
        crew.returns[:] = state["returns"] if self._rank == 0 else 0


def joined(states: Iterable[State]) -> State:
    """Return the states of all shares of a run as one."""
    states = list(states)
    walkers = states[0]["walkers"].copy()
    for state in states[1:]:
        is_here = state["walkers"][:, WHO] >= 0
        walkers[is_here] = state["walkers"][is_here]
    returns = sum(state["returns"] for state in states)
    assert isinstance(returns, np.ndarray)
    sums.carried(returns)
    return {
        "walkers": walkers,
        "ends": np.sum([state["ends"] for state in states], axis=0),
        "returns": returns,
    }


def play(shares: list[Share], stream: Stream, steps: int, rates: Rates) -> None:
    """Make the next `steps` of a stream with all shares of a run, which are in this process."""
    if len(shares) == 1:
        for stretch in stream.stretches(steps, rates):
            shares[0].learn_alone(stream.start, stretch)
    else:
        for stretch, done, size in supersteps(stream, steps, rates, shares[0].walkers):
            _superstep(shares, stretch, done, size)
    for share in shares:
        share.check()


def _superstep(shares: list[Share], stretch: Stretch, done: int, size: int) -> None:
    ranks = range(len(shares))
    sent = [share.depart(stretch, done, size) for share in shares]
    replies: list[list[Any]] = [[None for _ in ranks] for _ in ranks]
    for rank, share in enumerate(shares):
        parts = [records[offsets[rank] : offsets[rank + 1]] for records, offsets in sent]
        answers = share.answer(stretch, done, np.concatenate(parts))
        ends = np.cumsum([len(part) for part in parts])
        for sender, part in enumerate(np.split(answers, ends[:-1])):
            replies[sender][rank] = part
    for share, answers in zip(shares, replies, strict=True):
        share.settle(stretch, done, np.concatenate(answers))
