"""How a server puts a push into its table, where others pushed what its sender did not know of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dist_classicrl.tables.maps import PackedMap


@dataclass(frozen=True)
class Merging:
    """One of `dist_classicrl.settings.MERGINGS`.

    "affine" applies maps one after the other, within the share limit of `tables.kernels.apply_maps`, and
    "order_free" as that says. "staleness_weighted" takes weights to the power of 1 / (1 + staleness) before,
    which is what a small step size divided by 1 + staleness comes to; targets stay. A weight of 0, as of a
    step size of 1, stays 0: such a map counts in full. "reject_stale" refuses what is more than `most_stale`
    versions behind.
    """

    name: str = "affine"
    most_stale: int = 0

    @property
    def is_order_free(self) -> bool:
        """Whether targets are weighted by their shares of all that was learned meanwhile."""
        return self.name == "order_free"

    def refuses(self, staleness: int) -> bool:
        """Whether nothing of a push that is so stale is applied."""
        return self.name == "reject_stale" and staleness > self.most_stale

    def weighted(self, packed: PackedMap, staleness: int) -> PackedMap:
        """Return the maps as they count for that staleness; what only adds is not weighted."""
        if self.name != "staleness_weighted" or staleness <= 0:
            return packed
        weight = packed.weight ** (1.0 / (1 + staleness))
        moved = 1.0 - packed.weight
        share = np.divide(1.0 - weight, moved, out=np.ones_like(weight), where=moved > 0.0)
        return packed._replace(weight=weight, shift=packed.shift * share)


AFFINE = Merging()
