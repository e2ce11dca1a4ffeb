"""Jitted loops over the order-free sums of maps, by which rounds are merged.

For maps and tables see `dist_classicrl.tables.kernels`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from dist_classicrl._jit import jit, jit_inline
from dist_classicrl.tables.kernels import ONE_NAME, SHIFT_REPLAYS, set_identity
from dist_classicrl.tables.lines import stored_as
from dist_classicrl.tables.maps import PackedSums
from dist_classicrl.tables.rows import VISIT_MASK, actions_of

_LN_2 = 0.6931471805599453
_PARTS_OF_HALVING = 2.0**20
_LEAST_WEIGHT = 2.0**-1022  # below, numbers are denormal

# Where the numbers of an entry are in `RoundSums`.
_TARGETS, _UPDATES, _SEEN_VISITS = np.uint64(1), np.uint64(2), np.uint64(3)


class Base(NamedTuple):
    """What a worker's table was before it learned: values, and of each row what `TableArrays` has of it."""

    values: np.ndarray  # shape (R * A,)
    best: np.ndarray  # float64, shape (R,)
    greedy: np.ndarray  # int32, likewise


class RoundSums(NamedTuple):
    """The order-free sums of the maps of some logical workers.

    An entry has four numbers, half a cache line, since all of them are needed at once: the product of the
    maps' weights; the sum of k y with y = b / (1 - w), or of maps that only add the sum of b; the sum of k:
    the updates, replayed ones included; and the visits plus 1, or 0 where no map was added yet.
    """

    numbers: np.ndarray  # float64, shape (4 * R * A,)
    seen: np.ndarray  # int32 or int64, shape (R * A,): the entries to which maps were added, in that order
    n_seen: np.ndarray  # int64, shape (1,): how many


class Packing(NamedTuple):
    """The sums of some logical workers, one after the other, in parts that are packed when they are whole."""

    sums: RoundSums  # of the part that is not
    packed: PackedSums  # room for all parts
    stops: np.ndarray  # int64, shape (P + 1,): how many workers there are up to the end of each part; then -1
    ends: np.ndarray  # int64, shape (P,): where in `packed` each part ends
    progress: np.ndarray  # int64, shape (4,): see below


WORKERS, PARTS, LOST, IS_UNSOUND = range(4)
"""What stands where in `Packing.progress`: how many workers and parts are done; an entry whose value was
beyond the limit, or -1; and whether a worker's totals are beyond what can be added up."""

NO_PROGRESS = 0, 0, -1, 0


@jit
def copy_rows_of(entries, table, best, greedy):
    """Copy what a table has of the rows in which `entries` lie."""
    n_actions = actions_of(table)
    for i in range(entries.size):
        row = entries[i] // n_actions
        best[row], greedy[row] = table.best[row], table.greedy[row]


@jit
def fold_maps(table, base, limit, with_replays, sums):
    """Add the maps of a table to sums, and put the table back to its `base`, as if nothing had been learned.

    `base` is a `Base`: to copy its rows takes less time than to search them again. Return an entry whose
    value is beyond `limit` or no number, -1 if there is none.
    """
    n_actions = actions_of(table)
    lost = -1
    for i in range(table.n_touched[0]):
        entry = table.touched[i]
        weight, shift, updates = table.weight[entry], table.shift[entry], table.updates[entry]
        if not (abs(table.q[entry]) <= limit and abs(shift) < np.inf):
            lost = entry
        replays = np.float64(updates >> SHIFT_REPLAYS) if with_replays else 0.0
        _add_map(sums, entry, weight, shift, updates & VISIT_MASK, replays)
        set_identity(table, entry)
        table.q[entry] = base.values[entry]
        row = entry // n_actions
        table.best[row], table.greedy[row] = base.best[row], base.greedy[row]
    table.n_touched[0] = 0
    return lost


@jit_inline
def _add_map(sums, entry, weight, shift, visits, replays):
    """Add a map to sums. One whose weight is exactly 1 has no target: it moves nothing, or only adds."""
    numbers, at = sums.numbers, _place(sums, entry)
    numbers[at + _SEEN_VISITS] += visits
    if weight < 1.0:
        share = max(np.float64(visits) + replays, 1.0)  # see `unvisited`
        numbers[at] *= weight
        numbers[at + _TARGETS] += share * (shift / (1.0 - weight))
        numbers[at + _UPDATES] += share
    elif shift != 0.0:
        numbers[at + _TARGETS] += shift


@jit_inline
def _place(sums, entry):
    """Return where the numbers of an entry begin, which are those of no map if it was not seen yet."""
    numbers, at = sums.numbers, np.uint64(4 * entry)
    if numbers[at + _SEEN_VISITS] == 0.0:
        numbers[at] = 1.0
        numbers[at + _TARGETS] = 0.0
        numbers[at + _UPDATES] = 0.0
        numbers[at + _SEEN_VISITS] = 1.0
        sums.seen[sums.n_seen[0]] = entry
        sums.n_seen[0] += 1
    return at


@jit
def add_sums(packed, first, end, sums):
    """Add the sums from `first` to before `end` of the `PackedSums` of other logical workers."""
    for i in range(first, end):
        _add(
            sums,
            packed.entries[i],
            packed.weight[i],
            packed.targets[i],
            packed.updates[i],
            np.float64(packed.visits[i]),
        )


@jit_inline
def _add(sums, entry, weight, targets, updates, visits):
    numbers, at = sums.numbers, _place(sums, entry)
    numbers[at] *= weight
    numbers[at + _TARGETS] += targets
    numbers[at + _UPDATES] += updates
    numbers[at + _SEEN_VISITS] += visits


@jit
def _move_sums(group, sums):
    """Add the sums of a group, and make room there for the next one's."""
    for i in range(group.n_seen[0]):
        entry = group.seen[i]
        numbers, at = group.numbers, np.uint64(4 * entry)
        visits = np.int64(numbers[at + _SEEN_VISITS]) - 1
        _add(sums, entry, numbers[at], numbers[at + _TARGETS], numbers[at + _UPDATES], visits)
        numbers[at + _SEEN_VISITS] = 0.0
    group.n_seen[0] = 0


@jit
def add_parts(packed, counts, ends, worker, group_size, n_workers, group, sums):
    """Add the parts of logical workers from number `worker` on, of so many: groups, and single ones.

    The latter are added up in `group`, and go to `sums` when that is whole. `counts` and `ends`, int64 of one
    shape, have the workers of each part, and where in `packed` it ends.
    """
    begin = 0
    for part in range(counts.size):
        worker += counts[part]
        if counts[part] == 1:
            add_sums(packed, begin, ends[part], group)
            if worker % group_size == 0 or worker == n_workers:
                _move_sums(group, sums)
        else:
            add_sums(packed, begin, ends[part], sums)
        begin = ends[part]


@jit
def take_sums(sums, packed, first):
    """Move sums into `packed`, from place `first` on, and make room for the next ones."""
    numbers = sums.numbers
    for i in range(sums.n_seen[0]):
        entry = sums.seen[i]
        at, to = np.uint64(4 * entry), first + i
        packed.entries[to] = entry
        packed.weight[to] = numbers[at]
        packed.targets[to] = numbers[at + _TARGETS]
        packed.updates[to] = numbers[at + _UPDATES]
        packed.visits[to] = np.int64(numbers[at + _SEEN_VISITS]) - 1
        numbers[at + _SEEN_VISITS] = 0.0
    sums.n_seen[0] = 0


@jit
def pack_part(packing):
    """Pack the sums of a part if they are whole; return False, and do nothing, where there is no room."""
    progress = packing.progress
    part = progress[PARTS]
    if progress[WORKERS] != packing.stops[part]:
        return True
    first = packing.ends[part - 1] if part > 0 else 0
    end = first + packing.sums.n_seen[0]
    if end > packing.packed.entries.size:
        return False
    take_sums(packing.sums, packing.packed, first)
    packing.ends[part] = end
    progress[PARTS] = part + 1
    return True


@jit
def merge_finish(sums, values, counts, limit):
    """Apply a round's sums, Q = W Q + (1 - W) (sum of k y) / (sum of k), and make room for the next round.

    To an entry that was only added to, what was added is added. A value that would be beyond `limit`, or no
    number, stays as it was. Return such an entry, or else -1; and the mean of -ln W over the visits, which is
    N k a of N logical workers in the usual case, as `halvings` has it. It is a mean of whole numbers, so that
    the order in which entries were seen, which compression changes, does not show in the length of rounds.
    """
    lost = -1
    load = np.int64(0)
    total = np.int64(0)
    numbers = sums.numbers
    for i in range(sums.n_seen[0]):
        entry = sums.seen[i]
        at = np.uint64(4 * entry)
        weight, targets, updates = numbers[at], numbers[at + _TARGETS], numbers[at + _UPDATES]
        visits = np.int64(numbers[at + _SEEN_VISITS]) - 1
        numbers[at + _SEEN_VISITS] = 0.0
        value = np.float64(values[entry])
        if updates > 0.0:
            value = weight * value + (1.0 - weight) * (targets / updates)
            load += visits * np.int64(_PARTS_OF_HALVING * halvings(weight))
            total += visits
        elif targets != 0.0:
            value += targets
        counts[entry] += visits
        if abs(value) <= limit:
            values[entry] = stored_as(values, value, ONE_NAME, counts[entry])
        else:
            lost = entry
    sums.n_seen[0] = 0
    return lost, (_LN_2 / _PARTS_OF_HALVING * load / total if total > 0 else 0.0)


@jit_inline
def halvings(weight):
    """Return -log2 of a weight from 0 to 1, off by at most 0.09 and at most 1023; the same on every machine.

    A logarithm of the system's library is not.
    """
    if weight < _LEAST_WEIGHT:
        return 1023.0
    fraction, exponent = math.frexp(weight)
    return 2.0 * (1.0 - fraction) - exponent
