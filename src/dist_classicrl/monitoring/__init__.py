"""Records of a run: how they are written, read back for people and for plots, and compared."""

from dist_classicrl.monitoring.reading import Metrics, read_metrics

__all__ = ["Metrics", "read_metrics"]
