"""Jitted loops over affine maps: pack, compose, apply, merge, re-base.

An entry's map (w, b) takes Q to w Q + b. Maps compose: (w2, b2) after (w1, b1) is (w2 w1, w2 b1 + b2).
"""

from __future__ import annotations

import numpy as np

from dist_classicrl._jit import jit
from dist_classicrl._random import GAMMA, mix
from dist_classicrl.learning.q_learning import VISIT_MASK, refresh_row

_SHIFT_REPLAYS = 32
_SENT_ANYWAY = np.uint64(7)
_LOAD_SAMPLE = 512

SHARED_LOAD = 4.0
"""-ln of the weight that the maps of all who worked on an entry at once may leave to what was there."""


@jit
def compose(weight_2, shift_2, weight_1, shift_1):
    """Return the map (weight_2, shift_2) after (weight_1, shift_1)."""
    return weight_2 * weight_1, weight_2 * shift_1 + shift_2


@jit
def reset_maps(touched, n_touched, weight, shift, updates):
    """Forget all maps: every touched entry gets the identity."""
    for i in range(n_touched[0]):
        entry = touched[i]
        weight[entry] = 1.0
        shift[entry] = 0.0
        updates[entry] = 0
    n_touched[0] = 0


@jit
def pack_maps(
    touched,
    n_touched,
    weight,
    shift,
    updates,
    visits,
    base,
    threshold,
    key,
    out_entries,
    out_weight,
    out_shift,
    out_visits,
    out_known,
    out_replays,
):
    """Move maps into the out arrays, keep small ones behind, and return the number moved.

    A map with |w Q + b - Q| < threshold stays, unless one draw in eight of stream `key` sends it all the
    same. The visits moved are added to `visits`.
    """
    taken = 0
    kept = 0
    counter = key
    for i in range(n_touched[0]):
        entry = touched[i]
        if threshold > 0.0:
            counter += GAMMA
            value = np.float64(base[entry])
            small = abs(weight[entry] * value + shift[entry] - value) < threshold
            if small and (mix(counter) & _SENT_ANYWAY) != 0:
                touched[kept] = entry
                kept += 1
                continue
        real = updates[entry] & VISIT_MASK
        out_entries[taken] = entry
        out_weight[taken] = weight[entry]
        out_shift[taken] = shift[entry]
        out_visits[taken] = real
        out_known[taken] = visits[entry] & VISIT_MASK
        if out_replays is not None:
            out_replays[taken] = updates[entry] >> _SHIFT_REPLAYS
        taken += 1
        visits[entry] += real
        weight[entry] = 1.0
        shift[entry] = 0.0
        updates[entry] = 0
    n_touched[0] = kept
    return taken


@jit
def undo_maps(entries, moved, base, q, visits, best, greedy, n_actions):
    """Put `entries` of `q` and `visits` back to what they were before the maps that were packed."""
    for i in range(entries.size):
        entry = entries[i]
        q[entry] = base[entry]
        visits[entry] -= moved[i]
    refresh_rows_of(entries, q, best, greedy, n_actions)


@jit
def refresh_rows(q, best, greedy, n_actions):
    """Set the maximum of every row."""
    for state in range(best.size):
        refresh_row(q, best, greedy, state, n_actions)


@jit
def refresh_rows_of(entries, q, best, greedy, n_actions):
    """Set the maximum of the rows in which `entries` lie."""
    last = -1
    for i in range(entries.size):
        state = entries[i] // n_actions
        if state != last:
            refresh_row(q, best, greedy, state, n_actions)
            last = state


@jit
def set_base(entries, values, counts, base, q, visits, stamp, now, illegal):
    """Write a refresh into the base, and start `q` and `visits` from it there.

    Its entries are stamped with `now`.
    """
    for i in range(values.size):
        entry = np.int64(i) if entries is None else np.int64(entries[i])
        base[entry] = values[i]
        stamp[entry] = now
        visits[entry] = counts[i]
        if illegal is None or not illegal[entry]:
            q[entry] = values[i]


@jit
def reapply(entries, weight, shift, moved, q, visits, stamp, now):
    """Apply a pushed map to the entries stamped `now`: the others still contain it."""
    for i in range(entries.size):
        entry = entries[i]
        if stamp[entry] == now:
            q[entry] = weight[i] * q[entry] + shift[i]
            visits[entry] += moved[i]


@jit
def reapply_current(touched, n_touched, weight, shift, q, stamp, now):
    """Apply the map that was not pushed yet to the entries stamped `now`."""
    for i in range(n_touched[0]):
        entry = touched[i]
        if stamp[entry] == now:
            q[entry] = weight[entry] * q[entry] + shift[entry]


@jit
def apply_maps(entries, weight, shift, visits, known, table, counts):
    """Apply maps to the server's own current values, in float64, and count the visits.

    An entry that others visited since the sender last heard of it, m times against the map's own k, lets the
    map take at most its share of what all of them may: a weight below exp(-4 k / (k + m)) is raised to that,
    with the same target b / (1 - w). Else a map of small weight would wipe out what the others learned in the
    meantime. Where N k a is small the limit is never reached, and without others it does not exist. What was
    only replayed counts as one visit here.
    """
    for i in range(entries.size):
        entry = entries[i]
        own = np.int64(visits[i])
        others = (counts[entry] - np.int64(known[i])) & VISIT_MASK
        counts[entry] += own
        value = np.float64(table[entry])
        if others > 0:
            share = max(own, 1) / (max(own, 1) + others)
            least = np.exp(-SHARED_LOAD * share)
            if weight[i] < least:
                target = shift[i] / (1.0 - weight[i])
                table[entry] = least * value + (1.0 - least) * target
                continue
        table[entry] = weight[i] * value + shift[i]


@jit
def map_load(weight, visits):
    """Return the mean of -ln w over the maps' visits, k a in the usual case.

    It is taken from at most some 512 of the maps. A weight of 0 counts as 30.
    """
    stride = 1 + weight.size // _LOAD_SAMPLE
    load = 0.0
    total = 0.0
    for i in range(0, weight.size, stride):
        load += visits[i] * (-np.log(weight[i]) if weight[i] > 1e-13 else 30.0)
        total += visits[i]
    return load / total if total > 0.0 else 0.0


@jit
def mean_and_size(table, stride):
    """Return the mean and the mean absolute value of every `stride`-th entry."""
    total = 0.0
    size = 0.0
    for i in range(0, table.size, stride):
        total += table[i]
        size += abs(table[i])
    count = 1 + (table.size - 1) // stride
    return total / count, size / count


@jit
def gather(entries, table, counts, out_values, out_counts):
    """Copy `entries` of a table and its counts into a refresh."""
    for i in range(entries.size):
        out_values[i] = table[entries[i]]
        out_counts[i] = counts[entries[i]]


@jit
def copy_below(entries, limit, table, counts, out_values, out_counts):
    """Copy those of `entries` that are below `limit` to the same places of another table and its counts."""
    for i in range(entries.size):
        entry = entries[i]
        if entry < limit:
            out_values[entry] = table[entry]
            out_counts[entry] = counts[entry]


@jit
def collect_new(entries, stamp, now, out, size):
    """Append to `out`, from `size` on, the entries not stamped `now` yet, and return the new size.

    They are stamped with `now`.
    """
    for i in range(entries.size):
        entry = entries[i]
        if stamp[entry] != now:
            stamp[entry] = now
            out[size] = entry
            size += 1
    return size


@jit
def merge_one(entries, weight, shift, visits, replays, product, targets, total, moved, seen, n_seen):
    """Add one logical worker's maps to a round's order-free sums. Return the number of entries seen so far.

    ``product`` gathers the weights, ``targets`` the sum of k y with y = b / (1 - w), ``total`` the sum of k:
    the updates, replayed ones included. A weight of exactly 1 has no target and moves nothing.
    """
    for i in range(entries.size):
        entry = entries[i]
        if moved[entry] < 0:
            moved[entry] = 0
            product[entry] = 1.0
            targets[entry] = 0.0
            total[entry] = 0.0
            seen[n_seen] = entry
            n_seen += 1
        moved[entry] += visits[i]
        if weight[i] < 1.0:
            share = np.float64(visits[i])
            if replays is not None:
                share += replays[i]
            product[entry] *= weight[i]
            targets[entry] += share * (shift[i] / (1.0 - weight[i]))
            total[entry] += share
    return n_seen


@jit
def merge_finish(product, targets, total, moved, seen, n_seen, table, counts):
    """Apply a round's sums: Q = W Q + (1 - W) (sum of k y) / (sum of k), and make room for the next round."""
    for i in range(n_seen):
        entry = seen[i]
        if total[entry] > 0.0:
            weight = product[entry]
            table[entry] = weight * np.float64(table[entry]) + (1.0 - weight) * (
                targets[entry] / total[entry]
            )
        counts[entry] += moved[entry]
        moved[entry] = -1
