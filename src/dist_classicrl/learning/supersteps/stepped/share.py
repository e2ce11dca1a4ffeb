"""One rank's share where environments are stepped in Python: its rows, and the environments that it steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dist_classicrl._jit import jit_for
from dist_classicrl._random import stream_key
from dist_classicrl.learning.learner import Stream
from dist_classicrl.learning.loops import NO_STEPS, Stretch
from dist_classicrl.learning.rates import Rates
from dist_classicrl.learning.rules import compiling
from dist_classicrl.learning.state import State, check_arrays
from dist_classicrl.learning.supersteps import sums
from dist_classicrl.learning.supersteps.by_messages.exchanges import Exchanges, Parts, parts_for, with_oneself
from dist_classicrl.learning.supersteps.crew import MEMORY, REWARD
from dist_classicrl.learning.supersteps.keyed_share import KeyedShare
from dist_classicrl.learning.supersteps.owners import owners_of
from dist_classicrl.learning.supersteps.share import Share, supersteps
from dist_classicrl.learning.supersteps.stepped import kernels
from dist_classicrl.learning.supersteps.stepped.kernels import (
    ACTION_SHIFT,
    CHOOSES,
    DATA,
    ENTRY,
    STATE,
    TERMINATED,
    TRUNCATED,
    WHAT,
    WHO,
)
from dist_classicrl.learning.supersteps.trial import try_rule

if TYPE_CHECKING:
    from dist_classicrl.environments.stepped.batches import LoopedEnvs

WALKERS = 1 << 8
"""Environments of a run by default. A constant of the run, as there are walkers of others."""


def numbers_of(walkers: int, rank: int, ranks: int) -> range:
    """Return which of the environments of a run number `rank` of so many steps."""
    return range(rank, walkers, ranks)


class _Counted(NamedTuple):
    ends: np.ndarray  # see `dist_classicrl.learning.supersteps.crew.Crew`
    returns: np.ndarray
    errors: np.ndarray
    infinite: np.ndarray


class _Moved(NamedTuple):
    """What the environments of this rank did in a superstep, and the targets of that."""

    numbers: np.ndarray  # of the environments; of each in the order in which entries are to be moved
    states: np.ndarray
    entries: np.ndarray
    targets: np.ndarray  # int64: the bits of float64


class SteppedShare(Share):
    """What `rank` of `ranks` owns of a problem, and the environments of the run that it steps.

    Each environment of the run is with one rank, see `numbers_of`, and is seeded by its number, so that what
    it does is the same wherever it is. It stays there, and what is learned of it travels: a superstep
    exchanges four times, see `superstep`, however many rows and environments there are.
    """

    _copies_rows = False

    def _set_up(self) -> None:
        problem, n_actions = self._problem, self._whole.n_actions
        mask_words = -(-n_actions // 64)
        self._remembered_at = MEMORY + mask_words
        #: How many numbers a question has, and a target.
        self.words, self.width = self._remembered_at + sum(self._remembered), min(self.n_tables, 2)
        self._asked_words = self._asked_memory = DATA + mask_words
        waits = self._waits
        if waits is not None:
            self.words, self.width = self.words + 1, 1 + 2 * (waits + 1)
            self._asked_words += sum(self._remembered)
        self._crew = _Counted(
            np.zeros(2, np.int64), np.zeros(sums.PARTS, np.int64), np.zeros(sums.PARTS, np.int64), np.zeros(1)
        )
        self._asking = self._asking._replace(masks=np.ones((1, n_actions), bool))
        parts = problem.rule.parameters, self._kind_of_partition
        self._choose_for = jit_for(kernels.choose_for, *parts)
        self._answer_for = jit_for(kernels.answer_for, *parts)
        self._settle_for = jit_for(kernels.settle_for, *parts)
        self._owners_of = jit_for(owners_of, self._kind_of_partition)
        self._place = self._rank, self._whole.n_states, self.walkers
        self._numbers = np.array(numbers_of(self.walkers, self._rank, self.ranks), np.int64)
        self._memory = np.zeros((self._numbers.size, sum(self._remembered)), np.int64)
        #: Where the steps began that may wait, and how many steps each episode has had.
        self._ring = np.zeros((self._numbers.size, waits or 0), np.int64)
        self._elapsed = np.zeros(self._numbers.size, np.int64)
        self._before: tuple[Stretch, int] = NO_STEPS, 0  # the superstep whose targets are to be told
        self._forget()

    def _forget(self) -> None:
        nothing = np.zeros(0, np.int64)
        self._moved = _Moved(nothing, nothing, nothing, np.zeros((0, min(self.n_tables, 2)), np.int64))

    def compile(self) -> None:
        """Compile what is called, or load it, and try the rule out."""
        try_rule(self._problem, None)
        for compile_one in self.kernels():
            compile_one()

    def kernels(self) -> list[Callable[[], None]]:
        """See `Share`."""
        nothing = np.zeros((0, self._asked_words), np.int64)
        question = np.zeros((0, self.words), np.int64)

        def call() -> None:
            with compiling(self._problem.rule):
                self._settle(nothing)
                self._choose(NO_STEPS, 0, [nothing] * self.ranks)
                self._answer_to(NO_STEPS, 0, [question] * self.ranks)
                self._to_owners(question)
                kernels.add_all(self._crew.returns, np.zeros(0), self._crew.infinite)

        return [call]

    # Environments

    @property
    def n_envs(self) -> int:
        """How many environments it steps."""
        return self._numbers.size

    def begin(self, env: LoopedEnvs, seed: int, at: int) -> None:
        """Step the first `n_envs` environments of `env`, whose episodes begin anew.

        Their seeds are made of `seed`, of their numbers and of `at`, the global step.
        """
        self._env, self._seed, self._at = env, seed, at
        self._n_begun = 0

    def _begin_up_to(self, size: int) -> int:
        """Begin those of the first `size` environments of the run that have not; return how many are here."""
        n = max(0, -((self._rank - size) // self.ranks))
        if n > self._n_begun:
            new = np.arange(self._n_begun, n)
            seeds = [
                int(stream_key(self._seed, "episode", number, self._at) >> np.uint64(33))
                for number in self._numbers[new].tolist()
            ]
            self._env.begin(new, seeds)
            self._n_begun = n
        return n

    # Supersteps

    def superstep(self, stretch: Stretch, done: int, size: int) -> Exchanges:
        """Step its environments among the first `size`.

        The owners of their states are asked for actions, and told the targets of the superstep before; then
        the owners of the states that they come to are asked for targets.
        """
        self._count(size)
        self._make_room()
        n = self._begin_up_to(size)
        asked, order = self._asks(n)
        chosen = yield self._choose(stretch, done, (yield asked))
        choices = np.empty((n, chosen[0].shape[1]), np.int64)
        choices[order] = np.concatenate(chosen)
        actions = np.ascontiguousarray(choices[:, 0])
        if self._waits is not None:
            self._act(n, choices[:, 1:])
        questions, order = self._to_owners(self._step(n, actions))
        answers = np.concatenate(self._heard((yield self._told(stretch, done, (yield questions)))))
        targets = np.empty((n, answers.shape[1]), np.int64)
        targets[order] = answers
        self._learn_from(n, targets)
        self._before = stretch, done

    def settle_all(self) -> Exchanges:
        """Tell the targets of the last superstep, after which all rows are up to date."""
        asked, _ = self._asks(0)
        self._settle(np.concatenate((yield asked)))

    def learn_alone(self, stream: Stream, rates: Rates, until: int) -> None:
        """Make `supersteps`, where it owns everything, until the stream is cut."""
        for stretch, done, size in supersteps(stream, rates, self.walkers, until):
            with_oneself(self.superstep(stretch, done, size))
            if self.has_to_end or stream.is_cut():
                stream.used += size  # as the loop does, which ends here
                break
        with_oneself(self.settle_all())

    def _to_owners(self, records: np.ndarray) -> tuple[Parts, np.ndarray]:
        """Return what goes to each rank, and which of the records these are, in that order."""
        if self.ranks == 1:
            return [records], np.arange(len(records))
        owners = np.empty(len(records), np.int64)
        self._owners_of(self._partition, np.ascontiguousarray(records[:, STATE]), owners)
        return parts_for(records, owners, self.ranks)

    def _asks(self, n: int) -> tuple[Parts, np.ndarray]:
        """Return what its first `n` environments ask each rank for, behind the targets of those that moved.

        And which of the environments ask, in that order.
        """
        moved, env = self._moved, self._env
        settled = np.zeros((moved.states.size, self._asked_words), np.int64)
        settled[:, WHO], settled[:, STATE] = moved.numbers, moved.states
        settled[:, ENTRY], settled[:, DATA] = moved.entries, moved.targets[:, 0]
        if moved.targets.shape[1] > 1:
            settled[:, ENTRY] += moved.targets[:, 1].view(np.float64).astype(np.int64) * self._whole.n_actions
        asked = np.empty((n, self._asked_words), np.int64)
        asked[:, WHO], asked[:, STATE], asked[:, ENTRY] = self._numbers[:n], env.states[:n], CHOOSES
        _pack(env.masks, asked[:, DATA : self._asked_memory])
        if self._waits is not None:
            asked[:, self._asked_memory :] = self._memory[:n]
        self._forget()
        (told, _), (asking, order) = self._to_owners(settled), self._to_owners(asked)
        return [np.concatenate(both) for both in zip(told, asking, strict=True)], order

    def _choose(self, stretch: Stretch, done: int, asked: Parts) -> Parts:
        """Move the entries whose targets are told, then choose the actions that are asked for."""
        records = np.concatenate(asked)
        chooses = records[:, ENTRY] == CHOOSES
        self._settle(records[~chooses])
        records = records[chooses]
        chosen = np.empty((len(records), 1 if self._waits is None else 1 + self.width), np.int64)
        moment = self._place, stretch, done
        arguments = records, records.view(np.float64), self._asked_memory, chosen, chosen.view(np.float64)
        parts = self._problem.parameters, self._partition, self._context, self._asking
        self._check(self._choose_for(*parts, *moment, *arguments))
        if self._waits is not None:
            chosen = np.hstack([chosen, records[:, self._asked_memory :]])
        counts = [int(np.count_nonzero(part[:, ENTRY] == CHOOSES)) for part in asked]
        return np.split(chosen, np.cumsum(counts)[:-1])

    def _settle(self, records: np.ndarray) -> None:
        """Move the entries of these records, in the order of identities."""
        records = records[np.argsort(records[:, WHO], kind="stable")]
        reals = records.view(np.float64)
        has_states = self._waits is not None
        arguments = self._place, *self._before, records, reals, self._crew.errors, has_states
        self._check(self._settle_for(self._partition, self._context, *arguments))

    def _step(self, n: int, actions: np.ndarray) -> np.ndarray:
        """Step its first `n` environments; return the questions for the targets of that."""
        env = self._env
        states = env.states[:n].copy()
        if n:
            env.step_first(n, actions)
        terminated, truncated = env.terminated[:n], env.truncated[:n]
        if self._waits is None:
            self._moved = _Moved(self._numbers[:n], states, actions, self._moved.targets)
        else:
            self._ring[np.arange(n), self._elapsed[:n] % self._waits] = states
        self._ended = terminated | truncated
        questions = np.zeros((n, self.words), np.int64)
        questions[:, WHO] = self._numbers[:n]
        # Where nothing can be collected from the next state on, its owner is not asked.
        questions[:, STATE] = np.where(terminated, states, env.next_states[:n])
        questions[:, REWARD] = env.rewards[:n].view(np.int64)
        questions[:, WHAT] = (actions << ACTION_SHIFT) | np.where(
            terminated, TERMINATED, TRUNCATED * truncated
        )
        _pack(env.next_masks, questions[:, MEMORY : self._remembered_at])
        remembered = self._memory.shape[1]
        questions[:, self._remembered_at : self._remembered_at + remembered] = self._memory[:n]
        if self._waits is not None:
            questions[:, -1] = self._elapsed[:n] % self._waits
        if n and env.episode_returns:
            self._crew.ends[0] += len(env.episode_returns)
            self._crew.ends[1] += sum(env.episode_lengths)
            kernels.add_all(self._crew.returns, np.array(env.episode_returns), self._crew.infinite)
        self._n_moved = n
        return questions

    def _answer_to(self, stretch: Stretch, done: int, questions: Parts) -> Parts:
        """Compute the targets that are asked for; with them goes back what the rule remembers."""
        records = np.concatenate(questions)
        targets = np.empty((len(records), self.width))
        arguments = (
            self._place,
            stretch,
            done,
            records,
            records.view(np.float64),
            self._remembered_at,
            targets,
            targets.view(np.int64),
        )
        problem = self._problem
        self._check(self._answer_for(problem.parameters, self._partition, self._asking, *arguments))
        remembered = records[:, self._remembered_at : self._remembered_at + self._memory.shape[1]]
        answers = np.hstack([targets.view(np.int64), remembered])
        return np.split(answers, np.cumsum([len(part) for part in questions])[:-1])

    def _told(self, stretch: Stretch, done: int, questions: Parts) -> Parts:
        """Return the answers, with what else all ranks have to know."""
        return self._answer_to(stretch, done, questions)

    def _heard(self, answers: Parts) -> Parts:
        """Take note of that; return the answers."""
        return answers

    def _learn_from(self, n: int, answers: np.ndarray) -> None:
        """Keep the targets, which are told with what is asked next."""
        if self._waits is None:
            self._moved = self._moved._replace(targets=answers[:, : self.width])
            self._memory[:n] = answers[:, self.width :]
        else:
            self._act(n, answers)
            self._elapsed[:n] += 1
            self._elapsed[:n][self._ended] = 0
        self._memory[:n][self._ended] = 0

    def _act(self, n: int, told: np.ndarray) -> None:
        """Take from what its first `n` environments were `told` letters, and what the rule remembers."""
        letters, self._memory[:n] = told[:, : self.width], told[:, self.width :]
        found = [self._moved]
        for number in range(int(letters[:, 0].max(initial=0))):
            who = np.flatnonzero(letters[:, 0] > number)
            places, entries = np.divmod(letters[who, 1 + 2 * number], self._whole.n_actions + 1)
            states, targets = self._ring[who, places], letters[who, 2 + 2 * number]
            found.append(_Moved(self._numbers[who], states, entries, targets[:, np.newaxis]))
        self._moved = _Moved(*(np.concatenate(parts) for parts in zip(*found, strict=True)))

    # What was learned

    def state(self) -> State:
        """See `Share`: what an environment holds cannot be told, so episodes are not in it."""
        return {"counted": self.counted()}

    def restore(self, state: State) -> None:
        """See `Share`; episodes begin anew."""
        check_arrays(state, {"counted": self.counted()}, {})
        self._count_on(state["counted"])


class KeyedSteppedShare(SteppedShare, KeyedShare):
    """What `SteppedShare` is, where states are keys."""

    def _told(self, stretch: Stretch, done: int, questions: Parts) -> Parts:
        answers = super()._told(stretch, done, questions)
        if self.most is None:
            return answers
        known = np.full((1, answers[0].shape[1]), self.n_known)
        return [np.concatenate([known, part]) for part in answers]

    def _heard(self, answers: Parts) -> Parts:
        if self.most is None:
            return answers
        self.note_known(sum(int(part[0, 0]) for part in answers))
        return [part[1:] for part in answers]


def _pack(masks: np.ndarray | None, words: np.ndarray) -> None:
    """Write the legal actions of a row each, a bit for each action; None: all are."""
    n = len(words)
    if masks is None:
        words[:] = -1
        return
    bits = np.zeros((n, 64 * words.shape[1]), np.uint8)
    bits[:, : masks.shape[1]] = masks[:n]
    words[:] = np.packbits(bits, axis=1, bitorder="little").view(np.int64)
