"""The four panels of `DistributedMonitor.plot_training_curves`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from dist_classicrl.plotting import canvas

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANELS = (
    ("reward", "Reward", "mean of all ranks", canvas.BLUE),
    ("loss", "Loss", "mean of all ranks", canvas.VERMILLION),
    ("throughput", "Throughput", "per second, all ranks", canvas.GREEN),
    ("comm_time", "Communication", "seconds, mean of all ranks", canvas.PURPLE),
)
"""Column, title, label of the vertical axis and color of each."""

_FROM_ZERO = ("throughput", "comm_time")
_FEW = 50


@canvas.styled
def plot_loop_curves(metrics: Mapping[str, np.ndarray]) -> Figure:
    """Draw reward, loss, throughput and communication over the steps, of `DistributedMonitor.metrics`."""
    figure = canvas.new_figure(8.0)
    for axes, (name, title, unit, color) in zip(figure.subplots(2, 2).flat, PANELS, strict=True):
        there = np.isfinite(metrics[name])
        marker = "o" if there.sum() < _FEW else ""
        axes.plot(metrics["step"][there], metrics[name][there], color=color, marker=marker, markersize=4)
        axes.set(title=title, ylabel=unit, xlabel="step")
        axes.xaxis.set_major_formatter(canvas.quantity())
        axes.yaxis.set_major_formatter(canvas.quantity())
        if name in _FROM_ZERO:
            axes.set_ylim(bottom=0.0)
    return figure
