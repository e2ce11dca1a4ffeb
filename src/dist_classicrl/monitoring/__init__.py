"""Records of a run: how they are written, and read back for people and for plots."""

from dist_classicrl.monitoring.reading import Metrics, read_metrics

__all__ = ["Metrics", "read_metrics"]
