"""Records of a run: how they are written, and read back for people and for plots.

The public names are imported when they are first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dist_classicrl._lazy import lazy_names

if TYPE_CHECKING:
    from dist_classicrl.monitoring.reading import Metrics, read_metrics

__all__ = ["Metrics", "read_metrics"]

_HOMES = {
    "Metrics": "dist_classicrl.monitoring.reading",
    "read_metrics": "dist_classicrl.monitoring.reading",
}


__getattr__, __dir__ = lazy_names(__name__, _HOMES)
