"""Records of a run, for people and for plots: metrics, TensorBoard, what ranks tell each other by hand.

The public names are imported when they are first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dist_classicrl._lazy import lazy_names

if TYPE_CHECKING:
    from dist_classicrl.callbacks.metrics import MetricsCallback, read_metrics
    from dist_classicrl.callbacks.tensorboard import TensorBoardCallback
    from dist_classicrl.monitoring.reading import Metrics

__all__ = ["Metrics", "MetricsCallback", "TensorBoardCallback", "read_metrics"]

_HOMES = {
    "Metrics": "dist_classicrl.monitoring.reading",
    "MetricsCallback": "dist_classicrl.callbacks.metrics",
    "TensorBoardCallback": "dist_classicrl.callbacks.tensorboard",
    "read_metrics": "dist_classicrl.monitoring.reading",
}


__getattr__, __dir__ = lazy_names(__name__, _HOMES)
