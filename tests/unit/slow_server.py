"""What the server's table should be after a push, by the rule, in plain Python."""

from __future__ import annotations

import math


def limited(value, weight, shift, own, others):
    """Return `value` after a map of `own` visits that met `others`, made by other workers in the meantime."""
    weight, shift = limited_map(weight, shift, own, others)
    return weight * value + shift


def limited_map(weight, shift, own, others):
    """Return what a map of `own` visits comes to that met `others`, made by other workers in the meantime.

    All who worked on an entry at once may leave exp(-4) of what was there; a map takes its share of that.
    """
    if others == 0:
        return weight, shift
    own = max(own, 1)  # what was only replayed counts as one visit
    kept = max(weight, math.exp(-4.0 * own / (own + others)))
    if kept == weight:
        return weight, shift
    return kept, (1.0 - kept) * shift / (1.0 - weight)


def order_free(value, weight, shift, own, others):
    """Return likewise `value` where the map's target gets its share of what all moved, in any order.

    With l = -ln w, and l_o what the others come to at the same step size: c = (1 - exp(-(l_o + l))) l / (l_o
    + l).
    """
    own = max(own, 1)
    if weight == 1.0 or others == 0:
        return weight * value + shift
    target = shift / (1.0 - weight)
    if weight == 0.0:
        return value + own / (own + others) * (target - value)
    mine = -math.log(weight)
    theirs = mine * others / own
    moved = (1.0 - math.exp(-(theirs + mine))) * mine / (theirs + mine)
    return value + moved * (target - value)


def staleness_weighted(value, weight, shift, own, others, staleness):
    """Return likewise `value` after a map whose -ln w is divided by 1 and the staleness of its push."""
    if weight == 1.0:
        return value + shift
    target, weight = shift / (1.0 - weight), weight ** (1.0 / (1.0 + staleness))
    return limited(value, weight, (1.0 - weight) * target, own, others)
