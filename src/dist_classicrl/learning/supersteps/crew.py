"""One rank's walkers as arrays that kernels write, and what they have counted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from dist_classicrl._memory import zeros
from dist_classicrl.environments.simulate import CAME
from dist_classicrl.environments.state_keys import as_words
from dist_classicrl.learning.learner import check_sums
from dist_classicrl.learning.state import State
from dist_classicrl.learning.supersteps import sums
from dist_classicrl.learning.supersteps.copies import Copies
from dist_classicrl.learning.supersteps.letters import Post, new_post
from dist_classicrl.learning.supersteps.partition import STATE_SHIFT

# Words of a record: who and how far; where, by which action, and what is asked; the reward; the return.
# A state that is a key is the last word of all, or the last two, see `put_state`.
WHO, REWARD, COLLECTED, MEMORY = 0, 2, 3, 4
ELAPSED_BITS, ACTION_BITS = 40, STATE_SHIFT - 2
MOST_ELAPSED = (1 << ELAPSED_BITS) - 1

# What `Crew.sizes` counts.
MOVED, BEGUN, MADE, ASKED = range(4)

BLOCK = 32
"""Walkers between whose passes memory has time to come."""


class Crew(NamedTuple):
    """One rank's walkers, and what is under way of a superstep. All arrays are written.

    Records are rows of int64 whose words `REWARD` and `COLLECTED` are float64, which a second view shows.
    Behind `MEMORY` stands a game's hidden state, then the rule's whole numbers, then its real ones, then the
    states of the steps that wait.
    """

    records: np.ndarray  # shape (walkers, words): of the walkers, by identity
    reals: np.ndarray
    here: np.ndarray  # int64: a bit for each identity: whether the walker is here
    rows: np.ndarray  # of each walker that moves, int64: the row that it acted on,
    pairs: np.ndarray  # state * A + action,
    actions: np.ndarray
    numbers: np.ndarray  # its identity, and which of the steps of the superstep it made
    asked: np.ndarray  # for which others are asked for a target, int64, shape (walkers, 3): its place among
    # those that move, whom, and where the question is among what was sent there
    targets: np.ndarray  # float64, shape (walkers, 1 or 2): the target, and for which of several tables
    out: np.ndarray  # records for others, shape (.., words)
    out_reals: np.ndarray
    out_starts: np.ndarray  # int64, shape (ranks,): where each rank's begin there
    n_out: np.ndarray  # int64, shape (ranks,): how many there are
    sizes: np.ndarray  # int64, shape (4,)
    rank: int
    n_states: int  # of all ranks; 0: states are keys, of which any can be
    time_limit: int  # steps after which an episode is truncated
    memory_size: int  # of a game's hidden state
    came: np.ndarray  # int64: what was wrong, see `note`
    reward_that_came: np.ndarray  # float64, shape (1,)
    ends: np.ndarray  # int64, shape (2,): episodes that ended, and their steps
    returns: np.ndarray  # their returns, and the absolute errors before updates: see `add_exactly`
    errors: np.ndarray
    infinite: np.ndarray  # float64, shape (1,): a return that is no finite number, or 0
    order: np.ndarray  # of a block, as what follows: first those whose target is to be had here
    next_states: np.ndarray  # or uint64, two words each, where states are pairs
    next_rows: np.ndarray
    owners: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    draws: np.ndarray  # uint64, shape (2, BLOCK): random numbers for the action, and for what comes of it
    post: Post
    copies: Copies


def new_crew(
    walkers: int,
    words: int,
    width: int,
    waits: int | None,
    remembered: tuple[int, int],
    memory_size: int,
    n_states: int,
    time_limit: int,
    rank: int,
    ranks: int,
    written: tuple[np.ndarray, np.ndarray] | None,
    copies: Copies,
    keys: np.dtype | None = None,
) -> Crew:
    """Return the arrays of `rank` of so many, where nobody has begun.

    A record has so many `words`, of which a game's hidden state takes `memory_size`, and what is `remembered`
    of a walker so many whole numbers and real ones; a reply or letter has `width` numbers; so many steps may
    wait. `written` is where records for others are written, and where each rank's begin; None: in new arrays.
    Of `copies` there may be none. `keys` is their type where states are such.
    """
    # A reply to who lets steps wait is never read.
    n, of_targets = walkers, width if waits is None else 1
    records = _records(n, words)
    if written is None:
        # Who moves may ask one rank for a target, and come to another.
        out, starts = _records(2 * n * ranks if ranks > 1 else 0, words), 2 * n * np.arange(ranks)
    else:
        out, starts = written
    return Crew(
        records=records,
        reals=records.view(np.float64),
        here=np.zeros(-(-n // 64), np.int64),
        rows=_room(n),
        pairs=_room(n),
        actions=_room(n),
        numbers=_room(n),
        asked=_room(3 * n).reshape(n, 3),
        targets=zeros(n * of_targets, np.float64, is_sparse=True).reshape(n, of_targets),
        out=out,
        out_reals=out.view(np.float64),
        out_starts=starts,
        n_out=np.zeros(ranks, np.int64),
        sizes=np.zeros(4, np.int64),
        rank=rank,
        n_states=n_states,
        time_limit=time_limit,
        memory_size=memory_size,
        came=np.full(CAME, -1),
        reward_that_came=np.zeros(1),
        ends=np.zeros(2, np.int64),
        returns=np.zeros(sums.PARTS, np.int64),
        errors=np.zeros(sums.PARTS, np.int64),
        infinite=np.zeros(1),
        order=np.zeros(BLOCK, np.int64),
        next_states=as_words(np.zeros(BLOCK, np.int64 if keys is None else keys)),
        next_rows=np.zeros(BLOCK, np.int64),
        owners=np.zeros(BLOCK, np.int64),
        rewards=np.zeros(BLOCK),
        terminated=np.zeros(BLOCK, bool),
        draws=np.zeros((2, BLOCK), np.uint64),
        post=new_post(n, waits, width, MEMORY + memory_size, MEMORY + memory_size + sum(remembered)),
        copies=copies,
    )


def _records(n: int, words: int) -> np.ndarray:
    return zeros(n * words, np.int64, is_sparse=True).reshape(n, words)


def _room(n: int) -> np.ndarray:
    return zeros(n, np.int64, is_sparse=True)


def counted_by(crew: Any) -> np.ndarray:
    """Return what walkers have counted, int64, flat: those of all shares are added up.

    `totals_of` makes totals of it.
    """
    for parts in (crew.returns, crew.errors):
        sums.carried(parts)
    return np.concatenate([crew.ends, crew.returns, crew.errors])


def count_on(crew: Any, counted: np.ndarray) -> None:
    """Let a crew have counted what `counted_by` said."""
    parts = np.split(counted, _PARTS)
    for own, those in zip((crew.ends, crew.returns, crew.errors), parts, strict=True):
        own[:] = those


_PARTS = [2, 2 + sums.PARTS]


def totals_of(counted: np.ndarray) -> np.ndarray:
    """Return what was counted as `dist_classicrl.learning.learner.Totals` does; DivergenceError as there."""
    ends, returns, errors = np.split(counted, _PARTS)
    totals = np.array([ends[0], sums.sum_of(returns), ends[1], sums.sum_of(errors)], float)
    check_sums(totals)
    return totals


def joined(states: Iterable[State]) -> State:
    """Return the states of all shares of a run as one."""
    states = list(states)
    one = {"counted": np.sum([state["counted"] for state in states], axis=0)}
    if "walkers" in states[0]:  # those of stepped environments begin anew
        walkers = one["walkers"] = states[0]["walkers"].copy()
        for state in states[1:]:
            is_here = state["walkers"][:, WHO] >= 0
            walkers[is_here] = state["walkers"][is_here]
    return one
