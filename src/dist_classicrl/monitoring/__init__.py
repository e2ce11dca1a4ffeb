"""Records of a run, for people and for plots: metrics, TensorBoard, what ranks tell each other by hand.

The public names are imported when they are first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dist_classicrl.monitoring.metrics import MetricsCallback, read_metrics
    from dist_classicrl.monitoring.reading import Metrics
    from dist_classicrl.monitoring.tensorboard import TensorBoardCallback

__all__ = ["Metrics", "MetricsCallback", "TensorBoardCallback", "read_metrics"]

_HOMES = {
    "Metrics": "dist_classicrl.monitoring.reading",
    "MetricsCallback": "dist_classicrl.monitoring.metrics",
    "TensorBoardCallback": "dist_classicrl.monitoring.tensorboard",
    "read_metrics": "dist_classicrl.monitoring.reading",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
