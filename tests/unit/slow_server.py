"""What the server's table should be after a push, by the rule, in plain Python."""

from __future__ import annotations

import math


def limited(value, weight, shift, own, others):
    """Return `value` after a map of `own` visits that met `others`, made by other workers in the meantime.

    All who worked on an entry at once may leave exp(-4) of what was there; a map takes its share of that.
    """
    if others == 0:
        return weight * value + shift
    own = max(own, 1)  # what was only replayed counts as one visit
    kept = max(weight, math.exp(-4.0 * own / (own + others)))
    if kept == weight:
        return weight * value + shift
    target = shift / (1.0 - weight)
    return target + kept * (value - target)
