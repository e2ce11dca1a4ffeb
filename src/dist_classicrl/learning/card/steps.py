"""What one walker does in a step, and what becomes of an entry: jitted, for a card and for a core alike.

Walkers have a copy of the table in each of their blocks (`Arrays`), or one table for all, of which maps are
taken (`OneTable`), or in whose rows each writes (`AllRows`).

A card's kernels call these functions, and so does numba's CUDA simulator, which runs the kernels around them
as Python: the arithmetic that is tested there is the card's.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from dist_classicrl._jit import jit, jit_inline
from dist_classicrl._random import GAMMA, mix
from dist_classicrl.environments.simulate import advance, begin, is_wrong, note
from dist_classicrl.learning.behavior import choose
from dist_classicrl.learning.card.table import CardTable, Seen
from dist_classicrl.learning.loops import STEP_STRIDE, TWICE_GAMMA
from dist_classicrl.learning.rules.kernel import Context, Learned, Now, Transition, learn, on_action
from dist_classicrl.tables.lines import LineArrays
from dist_classicrl.tables.rows import actions_of, compose, visit_bucket

WRONG, TOO_LARGE, NO_ROOM = 0, 1, 2
"""Places in `faults`: a game gave what it must not, a target is beyond the bound, too many letters."""

HALTED, MADE = 3, 4
"""Places in those of `OneTable`: whether no more is done, and how many steps all walkers made before."""

FAULTS = 5

LOST = -2
"""The state of a walker that makes no more steps, since its game gave what it must not."""

SMALLEST_OF_BLOCK = 2.0**-100
"""The smallest weight of a block's map, of which a root may be due. It is none that float32 has not."""


class CardWalkers(NamedTuple):
    """W episodes under way; each array has the first axis W and is written."""

    states: np.ndarray  # int64; -1 before the first episode, LOST after what a game must not give
    elapsed: np.ndarray  # int64: steps of the episode
    collected: np.ndarray  # float64: its undiscounted return so far
    memory: np.ndarray  # int64, shape (W, memory): hidden state of a game
    totals: np.ndarray  # float64, shape (4, W): see `dist_classicrl.learning.learner.Totals`
    came: np.ndarray  # int64, shape (W, 3): what was wrong, see `environments.simulate.note`
    reward: np.ndarray  # float64: the reward that was
    time_limit: int  # steps after which an episode is truncated


class Episode(NamedTuple):
    """What a walker takes with it from one step of a round to the next, out of `CardWalkers`."""

    state: int
    elapsed: int
    collected: float
    error: float  # of all its updates: the last of its `totals`


class RoundConstants(NamedTuple):
    """What stays the same in a round: see `learning.rules.kernel.Context` and `CardTable`."""

    step_sizes: np.ndarray | None
    block_sizes: np.ndarray | None  # those with which a copy moves, see `plan.of_blocks`
    discount: float
    behavior: Any
    whole: np.ndarray
    real: np.ndarray
    owned: np.ndarray
    model: np.ndarray
    legal: tuple[np.ndarray, np.ndarray] | None
    row_shape: tuple[int, ...] | None
    n_states: int
    n_tables: int
    n_actions: int


class Arrays(NamedTuple):
    """The table of all blocks, B of them, of E entries."""

    values: np.ndarray  # float64, shape (E,)
    known: np.ndarray  # int64, shape (E,): visits
    weight: np.ndarray  # float64, shape (E,): the map of all that was learned, as in `TableArrays`
    shift: np.ndarray
    block_share: np.ndarray  # float64, shape (B * E,): the maps of the blocks in a round, see `_with_more`
    block_shift: np.ndarray
    block_updates: np.ndarray  # int32, shape (B * E,)
    faults: np.ndarray  # int64, shape (5,)


class OneTable(NamedTuple):
    """One table for all W walkers, of E entries, and what they write in a step."""

    values: np.ndarray  # float64, shape (E,)
    known: np.ndarray  # int64, shape (E,): visits
    weight: np.ndarray  # float64, shape (E,): the map of all that was learned, as in `TableArrays`
    shift: np.ndarray
    step_sizes: np.ndarray | None  # by visits, as in `RoundConstants`
    sums: np.ndarray  # int64, shape (E,): of the targets that were found in a step; 0 between two
    hits: np.ndarray  # int32, shape (E,): how many these are
    entries: np.ndarray  # int64, shape (W * L,): the letters of each walker
    targets: np.ndarray  # float64, shape (W * L,)
    written: np.ndarray  # int64, shape (W,): how many it has
    faults: np.ndarray  # int64, shape (5,)


class AllRows(NamedTuple):
    """Rows in which all walkers write."""

    lines: LineArrays
    faults: np.ndarray  # int64, shape (5,)


class Moment(NamedTuple):
    """A round: `steps` steps of each of `moving` walkers; see `loops.Stretch` for the rates."""

    key: np.uint64  # the random stream
    used: int  # steps that it has served before
    steps: int
    moving: int
    step_size: float
    step_slope: float  # by step of all walkers
    epsilon: float
    epsilon_slope: float
    bound: float  # of absolute targets
    scale: float  # of a target as a whole number, a power of two
    unit: float  # its inverse


_WHOLE, _REAL = 4, 7


class Moments(NamedTuple):
    """N rounds, each a `Moment`: on the card, so that a launch differs from the next one in a number only."""

    whole: np.ndarray  # int64, shape (4 N,): the first four fields of each
    real: np.ndarray  # float64, shape (7 N,): the others


def moments_of(moments: list[Moment]) -> Moments:
    """Return rounds as arrays."""
    whole, real = np.zeros((len(moments), _WHOLE), np.int64), np.zeros((len(moments), _REAL))
    for number, one in enumerate(moments):
        whole[number] = int(np.uint64(one.key).view(np.int64)), *one[1:_WHOLE]
        real[number] = one[_WHOLE:]
    return Moments(whole.reshape(-1), real.reshape(-1))


@jit
def moment_of(moments, number):
    """Return round `number`."""
    whole, real = moments.whole, moments.real
    at, beside = number * _WHOLE, number * _REAL
    return Moment(
        np.uint64(whole[at]),
        whole[at + 1],
        whole[at + 2],
        whole[at + 3],
        real[beside],
        real[beside + 1],
        real[beside + 2],
        real[beside + 3],
        real[beside + 4],
        real[beside + 5],
        real[beside + 6],
    )


@jit_inline
def moment_at(moment, i):
    """Return step size and exploration rate in step `i` of each walker."""
    at = np.float64(i * moment.moving)
    return moment.step_size + moment.step_slope * at, moment.epsilon + moment.epsilon_slope * at


@jit_inline
def context_with(parts, table):
    """Return what a rule is called with in a table of any kind."""
    return Context(
        table,
        parts.step_sizes,
        parts.discount,
        parts.behavior,
        None,
        parts.whole,
        parts.real,
        parts.owned,
        parts.model,
    )


@jit_inline
def context_of(parts, seen, entries, targets, n):
    """Return what a rule is called with, by a walker with these letters."""
    table = CardTable(
        seen,
        parts.legal,
        parts.row_shape,
        parts.n_states,
        parts.n_tables,
        parts.n_actions,
        entries,
        targets,
        n,
    )
    return context_with(parts, table)


@jit
def episode_of(walkers, w):
    """Return the episode of walker `w`."""
    return Episode(walkers.states[w], walkers.elapsed[w], walkers.collected[w], walkers.totals[3, w])


@jit
def keep_episode(walkers, w, episode):
    """Let the episode of walker `w` be this one."""
    walkers.states[w], walkers.elapsed[w] = episode.state, episode.elapsed
    walkers.collected[w], walkers.totals[3, w] = episode.collected, episode.error


@jit
def make_step(rule, simulation, walkers, w, at, parts, seen, moment, i, entries, targets, n, faults):
    """Let walker `w`, whose episode is `at`, make step `i` of a round, and write its letters.

    Return how many there are, and the episode after it.
    """
    n[0] = 0
    context = context_of(parts, seen, entries, targets, n)
    after = go_on(rule, simulation, walkers, w, at, context, moment, i, faults)
    written = n[0]
    if written > entries.size:
        faults[NO_ROOM] = 1
        written = np.int64(0)
    return np.int64(0) if after.state == LOST else written, after


@jit
def go_on(rule, simulation, walkers, w, at, context, moment, i, faults):
    """Let walker `w`, whose episode is `at`, act, simulate and learn: step `i` of a round.

    Return the episode after it. The random numbers are those of step ``used + i * moving + w`` of the stream.
    """
    n_actions = actions_of(context.table)
    n_rows = context.table.n_states
    counter = moment.key + np.uint64(moment.used + i * moment.moving + w) * STEP_STRIDE
    random = mix(counter)
    step_size, epsilon = moment_at(moment, i)
    now = Now(step_size, epsilon, random ^ GAMMA, w, 1)
    memory, came = walkers.memory[w], walkers.came[w]
    state, elapsed, collected, error = at.state, at.elapsed, at.collected, at.error
    lost = Episode(np.int64(LOST), elapsed, collected, error)
    if state == LOST:  # in an earlier step of the same round: what came then is to be told
        return lost
    if state < 0:
        state = np.int64(begin(simulation, memory, mix(~counter)))
        if is_wrong(simulation, state, 0.0, n_rows):
            came[0], came[1], came[2] = -1, -1, state
            walkers.reward[w] = 0.0
            faults[WRONG] = 1
            return lost
    action = choose(context.behavior, rule, context, state, epsilon, random)
    learned = on_action(rule, context, now, state, action, Learned(0, 0.0))
    note(simulation, came, state, action)
    next_state, reward, terminated = advance(
        simulation, memory, state, action, mix(counter + GAMMA), n_actions
    )
    if is_wrong(simulation, np.int64(next_state), reward, n_rows):
        came[0], came[1], came[2] = state, action, np.int64(next_state)
        walkers.reward[w] = reward
        faults[WRONG] = 1
        return lost
    elapsed = elapsed + 1
    collected = collected + reward
    has_ended = terminated or elapsed >= walkers.time_limit
    step = Transition(
        state, action, reward, np.int64(next_state), terminated, has_ended and not terminated, 0
    )
    learned = learn(rule, context, now, step, learned)
    error = error + learned.error
    state = np.int64(next_state)
    if has_ended:
        walkers.totals[0, w] += 1.0
        walkers.totals[1, w] += collected
        walkers.totals[2, w] += elapsed
        if abs(collected) < np.inf:  # else it stays, for the caller to see
            collected = 0.0
        elapsed = 0
        state = np.int64(begin(simulation, memory, mix(counter + TWICE_GAMMA)))
        if is_wrong(simulation, state, 0.0, n_rows):
            came[0], came[1], came[2] = -1, -1, state
            walkers.reward[w] = 0.0
            faults[WRONG] = 1
            return Episode(np.int64(LOST), np.int64(elapsed), collected, error)
    return Episode(state, np.int64(elapsed), collected, error)


@jit
def as_whole(target, moment, faults):
    """Return a target as a whole number of units: their sums do not depend on the order of addition."""
    if not (abs(target) <= moment.bound):
        faults[TOO_LARGE] = 1
        return np.int64(0)
    return np.int64(math.floor(target * moment.scale + 0.5))


@jit_inline
def to_the_power(base, exponent):
    """Return a power, by multiplications in a fixed order: no library's function is the same everywhere."""
    power = 1.0
    while exponent > 0:
        if exponent & 1:
            power = power * base
        base = base * base
        exponent >>= 1
    return power


@jit
def words_of(whole):
    """Return the lower and the upper half of a whole number: a card adds such up quicker."""
    bits = np.uint64(whole)
    return np.uint32(bits & np.uint64(0xFFFFFFFF)), np.uint32(bits >> np.uint64(32))


@jit
def with_carry(high, low, before):
    """Return the upper half that is to be added where the lower one was added to `before`."""
    carried = (np.uint64(low) + np.uint64(before)) >> np.uint64(32)
    return np.uint32((np.uint64(high) + carried) & np.uint64(0xFFFFFFFF))


@jit
def of_words(low, high):
    """Return the whole number of two halves."""
    return np.int64((np.uint64(high) << np.uint64(32)) | np.uint64(low))


@jit
def take_copy(arrays, entry, values, share, shift, fresh):
    """Begin a round with an entry, in the copy of a block."""
    values[entry] = arrays.values[entry]
    share[entry], shift[entry] = 0.0, 0.0
    fresh[entry] = 0


@jit
def merge_step(parts, moment, i, entry, known, values, share, shift, fresh, k, total):
    """Move an entry of a block towards the mean of the `k` targets that its walkers found in step `i`.

    `total` is their sum. That is the order-free form, W Q + (1 - W) (sum of y) / k with W = (1 - a)^k, of all
    of them at once.
    """
    count = np.int64(fresh[entry]) + k
    keep, moved = _towards_mean(parts.block_sizes, moment, i, known[entry] + count, k, total)
    values[entry] = keep * values[entry] + moved
    share[entry] = _with_more(np.float64(share[entry]), keep)
    shift[entry] = keep * shift[entry] + moved
    fresh[entry] = count


@jit_inline
def _with_more(share, keep):
    """Return the share that a block's targets have in an entry, after some that leave `keep` of what was.

    With a weight W that is 1 - W, and -W from a half on. So float32 knows both, the one that is small, to its
    last bit: what an entry moves towards is the shift divided by 1 - W, and of W a root may be due.
    """
    weight = _weight_of(share) * keep
    after = share + (1.0 - keep) * (1.0 - share) if share >= 0.0 else 1.0 - weight
    return after if after < 0.5 else -max(weight, SMALLEST_OF_BLOCK)


@jit_inline
def _weight_of(share):
    return 1.0 - share if share >= 0.0 else -share


@jit_inline
def _moved_of(share):
    return share if share >= 0.0 else 1.0 + share


@jit_inline
def _towards_mean(step_sizes, moment, i, visits, k, total):
    """Return W and (1 - W) (sum of y) / k for `k` targets of this `total`, the last of so many visits."""
    mean = np.float64(total) * moment.unit / np.float64(k)
    step_size, _ = moment_at(moment, i)
    keep = to_the_power(1.0 - _due(step_sizes, step_size, visits), k)
    return keep, (1.0 - keep) * mean


@jit_inline
def _due(step_sizes, step_size, visits):
    # What may be None is an argument of a function of its own: only there numba leaves out the other branch.
    return step_size if step_sizes is None else step_sizes[visit_bucket(max(visits, 1))]


@jit
def give_map(arrays, block, entry, share, shift, fresh):
    """Tell what a block learned of an entry in a round."""
    at = block * arrays.values.size + entry
    arrays.block_share[at] = share[entry]
    arrays.block_shift[at] = shift[entry]
    arrays.block_updates[at] = fresh[entry]


@jit
def learned_by(arrays, block, entry):
    """Return what a block learned of an entry in a round: updates, a weight, and the sum of its targets.

    A weight of 1 says that the entry did not move.
    """
    at = block * arrays.values.size + entry
    k, share, shift = np.int64(arrays.block_updates[at]), arrays.block_share[at], arrays.block_shift[at]
    weight = _weight_of(share)
    if k > 0 and weight < 1.0:
        return k, weight, np.float64(k) * (shift / _moved_of(share))
    return k, 1.0, 0.0


@jit
def apply_blocks(arrays, entry, blocks, is_rooted, updates, count, weight, targets):
    """Apply what all blocks learned of an entry: `count` of the `updates` moved it, towards these targets.

    `weight` is the product of theirs; `is_rooted`: of which the root is due, see `plan.of_blocks`. Their
    number is a power of two.
    """
    arrays.known[entry] += updates
    if count > 0:
        while is_rooted and blocks > 1:
            weight = math.sqrt(weight)
            blocks >>= 1
        moved = (1.0 - weight) * (targets / np.float64(count))
        arrays.values[entry] = weight * arrays.values[entry] + moved
        compose(arrays.weight, arrays.shift, entry, weight, moved)


@jit
def merge_blocks(arrays, blocks, is_rooted, entry):
    """Apply what all blocks learned of an entry, by the order-free form, in the order of the blocks."""
    updates, count, weight, targets = np.int64(0), np.int64(0), 1.0, 0.0
    for block in range(blocks):
        k, one, target = learned_by(arrays, block, entry)
        updates += k
        count += k if one < 1.0 else 0
        weight *= one
        targets += target
    apply_blocks(arrays, entry, blocks, is_rooted, updates, count, weight, targets)


# One table for all walkers, of which maps are taken


@jit
def find_targets(rule, simulation, walkers, w, parts, table, moment):
    """Let walker `w` make a step in the table as it is; return how many letters it wrote."""
    most = table.entries.size // table.written.size
    first = w * most
    seen = Seen(table.values, table.known, None)
    written, after = make_step(
        rule,
        simulation,
        walkers,
        w,
        episode_of(walkers, w),
        parts,
        seen,
        moment,
        0,
        table.entries[first : first + most],
        table.targets[first : first + most],
        table.written[w : w + 1],
        table.faults,
    )
    keep_episode(walkers, w, after)
    table.written[w] = written
    return written


@jit
def is_sound(faults):
    """Whether nothing is wrong with the step that all walkers have made."""
    return faults[WRONG] + faults[TOO_LARGE] + faults[NO_ROOM] == 0


@jit
def move_entry(table, moment, entry, k):
    """Move an entry towards the mean of the `k` targets of a step as `merge_step` does; 0: forget them."""
    total = table.sums[entry]
    table.sums[entry] = 0
    if k == 0:
        return
    visits = table.known[entry] + k
    keep, moved = _towards_mean(table.step_sizes, moment, 0, visits, k, total)
    table.values[entry] = keep * table.values[entry] + moved
    table.known[entry] = visits
    compose(table.weight, table.shift, entry, keep, moved)


@jit
def end_step(faults):
    """Count a step of all walkers, or let nothing more be done where something is wrong with it."""
    if is_sound(faults):
        faults[MADE] += 1
    else:
        faults[HALTED] = 1


# Rows in which all walkers write


@jit
def walk_rows(rule, simulation, walkers, w, parts, rows, moment):
    """Let walker `w` make the steps of a round, each of which learns in the rows at once."""
    context = context_with(parts, rows.lines)
    episode = episode_of(walkers, w)
    for i in range(moment.steps):
        episode = go_on(rule, simulation, walkers, w, episode, context, moment, i, rows.faults)
    keep_episode(walkers, w, episode)


# What walkers counted


@jit
def add_up(walkers, n, sums, moving):
    """Add up in row `n` of N of `sums` what walkers n, n + N and so on have counted, who begin anew.

    They are so many. In the last column is a return that is no finite number, where there is one.
    """
    for column in range(sums.shape[1]):
        sums[n, column] = 0.0
    for w in range(n, moving, sums.shape[0]):
        for column in range(4):
            sums[n, column] += walkers.totals[column, w]
            walkers.totals[column, w] = 0.0
        if not abs(walkers.collected[w]) < np.inf:
            sums[n, 4] = walkers.collected[w]
