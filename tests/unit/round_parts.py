"""Rounds without an engine: parts made of maps by hand, and of all that learners do."""

import numpy as np

from dist_classicrl.engines.schedule import RoundPlayer, next_quotas
from dist_classicrl.tables.maps import PackedSums
from dist_classicrl.tables.round_merge import Parts


def sums_of(packed):
    """Return the sums of the maps of one logical worker, by the definition of `PackedSums`."""
    visits = packed.visits.astype(np.int64)
    learns = packed.weight < 1.0
    replays = 0 if packed.replays is None else packed.replays.astype(float)
    shares = np.where(learns, np.maximum(visits + replays, 1.0), 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        targets = np.where(learns, shares * (packed.shift / (1.0 - packed.weight)), packed.shift)
    weight = np.where(learns, packed.weight, 1.0)
    return PackedSums(packed.entries.copy(), weight, targets + 0.0, shares, visits)


def merge_maps(merge, maps):
    """Merge the `maps` of logical workers 0, 1, 2, ... as one round; return its N k a."""
    return merge.merge([Parts.one(number, sums_of(packed)) for number, packed in enumerate(maps)])


def play_rounds(shared, merge, learner, settings, start, steps, seed):
    """Play and merge rounds of ``sync_frequency`` updates from global step `start` on, by one learner."""
    player = RoundPlayer(learner)
    end = start + steps
    while start < end:
        quotas = next_quotas(settings, settings.sync_frequency, start, end - start, seed)
        version = shared.version
        merge.merge([player.play(quotas)[0]])
        learner.table.rebase(shared.refresh(version), [])
        start += quotas.total
