"""What a worker's table offers to whoever sends what it learned, whatever it is made of."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from dist_classicrl.compression import SEND_ALL, Carry
from dist_classicrl.tables.maps import PackedMap, Refresh


class MapTable(Protocol):
    """A table of which pushes are made, and which refreshes bring up to date.

    `LocalTable` is one, and so are rows that a host shares, of which there is nothing to send.
    """

    @property
    def base(self) -> np.ndarray:
        """The values that the server had, of shape (S * A,): whether values still move is seen there."""

    @property
    def visits(self) -> np.ndarray:
        """int64, shape (S * A,): visits of the base and of what was packed since."""

    @property
    def n_touched(self) -> np.ndarray:
        """int64, shape (1,): how many entries have maps."""

    @property
    def touched(self) -> np.ndarray:
        """int64: which ones, the first `n_touched` of it."""

    @property
    def updates(self) -> np.ndarray:
        """int64, by entry: updates since its maps were packed."""

    @property
    def waiting(self) -> int:
        """How many entries have maps, or residuals, that were not packed."""

    def load(self, values: np.ndarray, counts: np.ndarray, exact: np.ndarray | None = None) -> None:
        """Start from a whole table, see `LocalTable.load`."""

    def pack(
        self,
        carry: Carry = SEND_ALL,
        flush: bool = True,
        key: int | np.uint64 = 0,
        in_order: bool = False,
    ) -> PackedMap:
        """Return the maps that are to go, see `LocalTable.pack`."""

    def forget(self, stays: np.ndarray) -> None:
        """Forget the maps accumulated since the last `pack`, but those of the entries that stay."""

    def rebase(self, refresh: Refresh, pending: list[PackedMap]) -> None:
        """Move to a newer base, which the `pending` maps are not in, oldest first."""

    def preview(self, refresh: Refresh, pending: list[PackedMap]) -> None:
        """Learn on what a preview tells from now on, until the base moves."""
