"""Maps of several pushes as one, for the server of a node to pass on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dist_classicrl.tables import kernels
from dist_classicrl.tables.maps import PackedMap, require_fit
from dist_classicrl.tables.merging import AFFINE, Merging


class Composition:
    """Composes maps of entries of a table of `size`, where all are merged as `merging` says."""

    def __init__(self, size: int, merging: Merging = AFFINE) -> None:
        self._order_free = merging.is_order_free
        self._place = np.zeros(size, np.int64)
        self._stamps = kernels.Stamps(size)

    def of(self, maps: Sequence[PackedMap]) -> PackedMap:
        """Return the maps that have the effect of all of these (one at least), the first being the oldest.

        ProtocolError where some are of another table.
        """
        if len(maps) == 1:
            return maps[0]
        stamp, now = self._stamps.next_pass()
        most = min(sum(each.size for each in maps), self._place.size)
        composed = PackedMap.empty(most, maps[0].entries.dtype, maps[0].replays is not None)
        size = 0
        for each in maps:
            require_fit(each.entries, each, self._place.size)
            size = kernels.compose_maps(each, composed, self._place, stamp, now, size, self._order_free)
        return composed.first(size)
