"""Jitted loops over affine maps: pack, compose, apply, merge, re-base.

An entry's map (w, b) takes Q to w Q + b. Maps compose: (w2, b2) after (w1, b1) is (w2 w1, w2 b1 + b2). A
worker's table is a `TableArrays` of R rows of A entries; a server's are `values`, ndarray(float64 or float32)
of shape (R * A,), and `counts`, ndarray(int64) likewise. Whatever the type of the values, maps are applied in
float64; what comes of that becomes float32 by `dist_classicrl.tables.lines.stored_as`. `stamp`,
ndarray(int32) of shape (R * A,), marks entries with the number `now` of a pass over them.
"""

from __future__ import annotations

import numpy as np

from dist_classicrl._jit import jit, jit_inline
from dist_classicrl._random import GAMMA, mix
from dist_classicrl.tables.lines import stored_as
from dist_classicrl.tables.rows import VISIT_MASK, actions_of, refresh_row

SHIFT_REPLAYS = 32
_SENT_ANYWAY = np.uint64(7)
_LOAD_SAMPLE = 512

SHARED_LOAD = 4.0
"""-ln of the weight that the maps of all who worked on an entry at once may leave to what was there."""

ONE_NAME = np.uint64(0)
"""That of all entries, by which `stored_as` draws: entries of the same value and visits stay the same."""


@jit
def compose(weight_2, shift_2, weight_1, shift_1):
    """Return the map (weight_2, shift_2) after (weight_1, shift_1)."""
    return weight_2 * weight_1, weight_2 * shift_1 + shift_2


@jit
def reset_maps(table):
    """Forget all maps: every touched entry gets the identity."""
    for i in range(table.n_touched[0]):
        set_identity(table, table.touched[i])
    table.n_touched[0] = 0


@jit_inline
def set_identity(table, entry):
    """Forget the map of an entry."""
    table.weight[entry] = 1.0
    table.shift[entry] = 0.0
    table.updates[entry] = 0


@jit
def pack_maps(table, base, goes, threshold, key, limit, out):
    """Move maps into the `PackedMap` `out`, keep small ones behind, and return the number moved.

    Also return an entry whose value is beyond `limit` or no number, -1 if there is none.

    Where `goes`, ndarray(bool), is not empty, it says which of the touched entries go. Of these a map with
    |w Q + b - Q| < threshold, Q being the entry of `base`, ndarray of shape (R * A,), stays, unless one draw
    in eight of stream `key` sends it all the same. The visits moved are added to the table's.
    """
    taken = 0
    kept = 0
    lost = -1
    counter = key
    for i in range(table.n_touched[0]):
        entry = np.uint64(table.touched[i])
        weight, shift, updates = table.weight[entry], table.shift[entry], table.updates[entry]
        if not (abs(table.q[entry]) <= limit and abs(shift) < np.inf):
            lost = np.int64(entry)
        if goes.size > 0 and not goes[i]:
            table.touched[kept] = entry
            kept += 1
            continue
        if threshold > 0.0:
            counter += GAMMA
            value = np.float64(base[entry])
            small = abs(weight * value + shift - value) < threshold
            if small and (mix(counter) & _SENT_ANYWAY) != 0:
                table.touched[kept] = entry
                kept += 1
                continue
        visits = updates & VISIT_MASK
        out.entries[taken] = entry
        out.weight[taken] = weight
        out.shift[taken] = shift
        out.visits[taken] = visits
        out.known[taken] = table.visits[entry] & VISIT_MASK
        _pack_replays(out.replays, taken, updates)
        taken += 1
        table.visits[entry] += visits
        set_identity(table, entry)
    table.n_touched[0] = kept
    return taken, lost


@jit
def settle_maps(table, limit, values, counts):
    """Write the touched entries of a table to `values`, and add their visits to `counts`; forget the maps.

    Return an entry whose value is beyond `limit` or no number, and then nothing is written; -1 if there is
    none.
    """
    for i in range(table.n_touched[0]):
        entry = table.touched[i]
        if not abs(table.q[entry]) <= limit:
            return entry
    for i in range(table.n_touched[0]):
        entry = table.touched[i]
        visits = table.updates[entry] & VISIT_MASK
        values[entry] = table.q[entry]
        counts[entry] += visits
        table.visits[entry] += visits
        set_identity(table, entry)
    table.n_touched[0] = 0
    return -1


@jit_inline
def _pack_replays(replays, i, updates):
    if replays is not None:
        replays[i] = updates >> SHIFT_REPLAYS


@jit
def undo_maps(maps, base, table):
    """Put the values and visits of a table back to what they were before `maps`, which were just packed."""
    for i in range(maps.entries.size):
        entry = maps.entries[i]
        table.q[entry] = base[entry]
        table.visits[entry] -= maps.visits[i]
    refresh_rows_of(maps.entries, table)


@jit
def refresh_rows(table):
    """Set the maximum of every row."""
    n_actions = actions_of(table)
    for row in range(table.best.size):
        refresh_row(table.q, table.best, table.greedy, row, n_actions)


@jit
def refresh_rows_of(entries, table):
    """Set the maximum of the rows in which `entries` lie."""
    n_actions = actions_of(table)
    last = np.int64(-1)
    for i in range(entries.size):
        row = np.int64(np.uint64(entries[i]) // np.uint64(n_actions))
        if row != last:
            refresh_row(table.q, table.best, table.greedy, row, n_actions)
            last = row


@jit
def set_base(entries, values, counts, table, base, illegal, stamp, now):
    """Write a refresh into `base`, start the table from it there, and stamp its entries.

    `entries`, `values` and `counts` are those of a `Refresh`. `base` and `illegal`, None or bool, have the
    shape (R * A,); what is illegal is never learned.
    """
    for i in range(values.size):
        entry = np.uint64(i) if entries is None else np.uint64(entries[i])
        base[entry] = values[i]
        stamp[entry] = now
        table.visits[entry] = counts[i]
        if illegal is None or not illegal[entry]:
            table.q[entry] = values[i]


@jit
def reapply(maps, table, stamp, now):
    """Apply pushed maps to the entries stamped `now`: the others still contain them."""
    for i in range(maps.entries.size):
        entry = np.uint64(maps.entries[i])
        if stamp[entry] == now:
            table.q[entry] = maps.weight[i] * table.q[entry] + maps.shift[i]
            table.visits[entry] += maps.visits[i]


@jit
def visits_under_maps(table, visits):
    """Write how many visits are known of each touched entry, besides those of its map, to `visits`."""
    for i in range(table.n_touched[0]):
        visits[i] = table.visits[table.touched[i]]


@jit
def reapply_current(table, visits, stamp, now):
    """Apply the maps that were not pushed yet to the entries stamped `now`.

    They are held within the share limit of `apply_maps`: what others did in the meantime, which `visits`, the
    `visits_under_maps` before, do not have, is newer than the targets and the step sizes of the map.
    """
    for i in range(table.n_touched[0]):
        entry = np.uint64(table.touched[i])
        if stamp[entry] == now:
            weight, shift, others = table.weight[entry], table.shift[entry], table.visits[entry] - visits[i]
            if others > 0:
                weight, shift = _in_its_share(weight, shift, table.updates[entry] & VISIT_MASK, others)
                table.weight[entry], table.shift[entry] = weight, shift
            table.q[entry] = weight * table.q[entry] + shift


@jit
def count_outside(entries, size):
    """Return how many entries are none of a table of that size."""
    count = 0
    for i in range(entries.size):
        count += np.uint64(entries[i]) >= np.uint64(size)  # negative ones are large then
    return count


@jit
def apply_maps(maps, values, counts, limit, order_free):
    """Apply maps to the server's own current values, and count the visits.

    A value that would be beyond `limit`, or no number, stays as it was. Return such an entry, or else -1.
    What others did since the sender last heard of an entry counts by the share limit, or `order_free`.

    **The share limit.** Say that the sender of a map visited an entry k times, and others m times since it
    last heard of the entry. Where w goes to 0 its map would wipe out what the others learned in the meantime.
    If each of the k + m visits may take an equal share of what all of them may, which is a weight of
    exp(-SHARED_LOAD) for what was there before, then k of them leave exp(-SHARED_LOAD k / (k + m)). So a
    smaller weight is raised to that, with the same target b / (1 - w). Where N k a is below SHARED_LOAD the
    limit is not reached, and without others it does not exist. What was only replayed counts as one visit
    here.

    **Order-free.** Maps of some workers from the same base come to Q = W Q + (1 - W) (sum of l y) / (sum of
    l), in any order, with l = -ln w, W the product of the weights and y = b / (1 - w). Where others have
    applied l_o in the meantime, the target of a map has its share of that with the weight c = (1 -
    exp(-(l_o + l))) l / (l_o + l), so Q becomes (1 - c) Q + c y. Step sizes of others are taken to be those
    of the sender: l_o = l m / k. Without others c is 1 - w.
    """
    lost = -1
    for i in range(maps.entries.size):
        entry = np.uint64(maps.entries[i])  # unsigned: no check for counting from the end
        own = np.int64(maps.visits[i])
        others = (counts[entry] - np.int64(maps.known[i])) & VISIT_MASK
        if others > VISIT_MASK >> 1:  # the sender knew of visits that were refused meanwhile
            others = 0
        counts[entry] += own
        value = np.float64(values[entry])
        weight, shift = _beside_others(maps.weight[i], maps.shift[i], own, others, order_free)
        value = weight * value + shift
        if abs(value) <= limit:
            values[entry] = stored_as(values, value, ONE_NAME, counts[entry])
        else:
            lost = np.int64(entry)
    return lost


@jit_inline
def _beside_others(weight, shift, own, others, order_free):
    """Return the map as it is to be applied where others made so many visits in the meantime."""
    if not order_free:
        return _in_its_share(weight, shift, own, others)
    if others > 0 and weight < 1.0:  # what only adds has no weight
        own = max(own, 1)
        share = own / (own + others)
        moved = (1.0 - weight ** (1.0 / share)) * share
        return 1.0 - moved, moved * (shift / (1.0 - weight))
    return weight, shift


@jit_inline
def _in_its_share(weight, shift, own, others):
    if others > 0:
        load = SHARED_LOAD * (max(own, 1) / (max(own, 1) + others))
        # exp(load) is more than the first terms of its series: most weights need no exponential.
        if weight * (1.0 + load * (1.0 + 0.5 * load)) < 1.0:
            least = np.exp(-load)
            if weight < least:
                shift = (1.0 - least) * (shift / (1.0 - weight))
                weight = least
    return weight, shift


@jit
def compose_maps(maps, into, place, stamp, now, size, order_free):
    """Compose the `PackedMap` `maps` after the first `size` maps of `into`; return how many there are then.

    `place`, ndarray(int64) of shape (R * A,), has where in `into` the entries stamped `now` are. What others
    did in the meantime counts as in `apply_maps`, as far as it is in `into`; the rest does when the composed
    maps are applied.
    """
    for i in range(maps.entries.size):
        entry = maps.entries[i]
        if stamp[entry] != now:
            stamp[entry] = now
            place[entry] = size
            into.entries[size] = entry
            into.weight[size], into.shift[size] = maps.weight[i], maps.shift[i]
            into.visits[size], into.known[size] = maps.visits[i], maps.known[i]
            _pack_replays_of(into.replays, size, maps.replays, i, 0)
            size += 1
            continue
        at = place[entry]
        before, own = np.int64(into.visits[at]), np.int64(maps.visits[i])
        known = np.int64(maps.known[i])
        reached = (np.int64(into.known[at]) + before) & VISIT_MASK
        others = (reached - known) & VISIT_MASK
        if others > VISIT_MASK >> 1:  # the sender knew of more than those before it
            others, reached = 0, known
        weight, shift = _beside_others(maps.weight[i], maps.shift[i], own, others, order_free)
        into.weight[at], into.shift[at] = compose(weight, shift, into.weight[at], into.shift[at])
        into.visits[at] = before + own
        into.known[at] = (reached - before) & VISIT_MASK
        _pack_replays_of(into.replays, at, maps.replays, i, 1)
    return size


@jit_inline
def _pack_replays_of(into, at, replays, i, adds):
    if into is not None:
        into[at] = adds * into[at] + replays[i]


@jit
def map_load(maps):
    """Return the mean of -ln w over the maps' visits, k a in the usual case.

    It is taken from at most some 512 of the maps. A weight of 0 counts as 30.
    """
    weight, visits = maps.weight, maps.visits
    stride = 1 + weight.size // _LOAD_SAMPLE
    load = 0.0
    total = 0.0
    for i in range(0, weight.size, stride):
        load += visits[i] * (-np.log(weight[i]) if weight[i] > 1e-13 else 30.0)
        total += visits[i]
    return load / total if total > 0.0 else 0.0


@jit
def mean_and_size(values, stride):
    """Return the mean and the mean absolute value of every `stride`-th entry."""
    total = 0.0
    size = 0.0
    for i in range(0, values.size, stride):
        total += values[i]
        size += abs(values[i])
    count = 1 + (values.size - 1) // stride
    return total / count, size / count


@jit
def gather(entries, values, counts, out_values, out_counts):
    """Copy `entries` of a table and its counts into a refresh."""
    for i in range(entries.size):
        out_values[i] = values[entries[i]]
        out_counts[i] = counts[entries[i]]


@jit
def copy_below(entries, limit, values, counts, out_values, out_counts):
    """Copy those of `entries` that are below `limit` to the same places of another table and its counts."""
    for i in range(entries.size):
        entry = entries[i]
        if entry < limit:
            out_values[entry] = values[entry]
            out_counts[entry] = counts[entry]


class Stamps:
    """A number for each entry of a table, by which a pass over it tells those that it has been at."""

    def __init__(self, size: int) -> None:
        self._stamp = np.zeros(size, np.int32)
        self._now = 0

    def next_pass(self) -> tuple[np.ndarray, int]:
        """Return them, int32, and the number of a new pass, which no entry has."""
        self._now += 1
        if self._now == np.iinfo(np.int32).max:
            self._stamp[:] = 0
            self._now = 1
        return self._stamp, self._now


@jit
def collect_new(entries, stamp, now, out, size):
    """Append to `out`, from `size` on, the entries not stamped `now` yet, and stamp them.

    Return the new size.
    """
    for i in range(entries.size):
        entry = entries[i]
        if stamp[entry] != now:
            stamp[entry] = now
            out[size] = entry
            size += 1
    return size
