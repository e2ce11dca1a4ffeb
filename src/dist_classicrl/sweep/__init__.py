"""Many trainings: settings times seeds, shared among processes by a folder, and comparing them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dist_classicrl._lazy import lazy_names

if TYPE_CHECKING:
    from dist_classicrl.sweep.choosing.halving import SuccessiveHalving
    from dist_classicrl.sweep.choosing.search import Range
    from dist_classicrl.sweep.progress import SweepProgress
    from dist_classicrl.sweep.study import Study
    from dist_classicrl.sweep.sweep import Sweep

_HOMES = {
    "Range": "dist_classicrl.sweep.choosing.search",
    "Study": "dist_classicrl.sweep.study",
    "SuccessiveHalving": "dist_classicrl.sweep.choosing.halving",
    "Sweep": "dist_classicrl.sweep.sweep",
    "SweepProgress": "dist_classicrl.sweep.progress",
}

__all__ = ["Range", "Study", "SuccessiveHalving", "Sweep", "SweepProgress"]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
