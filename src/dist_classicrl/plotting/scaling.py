"""Speed-up and efficiency of several runs over their number of workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dist_classicrl._words import counted
from dist_classicrl.errors import PlotError
from dist_classicrl.plotting import canvas

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from dist_classicrl.monitoring.scaling import ScalingReport

_HEIGHT = 4.8


@canvas.styled
def plot_scaling(report: ScalingReport, title: str = "") -> tuple[Figure, dict[str, np.ndarray]]:
    """Draw speed-up beside the ideal, and efficiency with communication, over the number of workers.

    Several runs with as many workers have a point each; the line goes through their means.

    Parameters
    ----------
    report : ScalingReport
        Of at least two runs.
    title : str

    Returns
    -------
    Figure
    dict of str to ndarray
        What is drawn, with one entry per run: "workers", "speed_up", "ideal", "efficiency" and
        "communication_fraction".

    Raises
    ------
    PlotError
        If there are fewer than two runs.
    """
    if len(report.runs) < 2:
        raise PlotError(
            f"A speed-up is drawn over several runs; got {len(report.runs)}. Give a run with another number "
            "of workers as well, or read the table alone."
        )
    workers = np.array([scaled.run.workers for scaled in report.runs])
    base = next(scaled.run.workers for scaled in report.runs if scaled.run.name == report.baseline)
    data = {
        "workers": workers,
        "speed_up": np.array([scaled.speed_up for scaled in report.runs]),
        "ideal": workers / base,
        "efficiency": np.array([scaled.efficiency for scaled in report.runs]),
        "communication_fraction": np.array([scaled.run.communication_fraction for scaled in report.runs]),
    }
    figure = canvas.new_figure(_HEIGHT)
    canvas.write_title(figure, title)
    left, right = figure.subplots(1, 2)
    most = workers.max() * 1.05
    left.plot([0, most], [0, most / base], "--", color=canvas.GRAY, lw=1.5, label="ideal")
    _draw_points(left, workers, data["speed_up"], canvas.BLUE, "measured")
    left.set_ylabel(f"speed-up over {counted(base, 'worker', '.3g')}")
    left.set_title("Speed-up")
    left.legend(loc="upper left")
    right.axhline(100, ls="--", color=canvas.GRAY, lw=1.5)
    _draw_points(right, workers, 100 * data["efficiency"], canvas.BLUE, "efficiency")
    _draw_points(
        right,
        workers,
        100 * data["communication_fraction"],
        canvas.VERMILLION,
        "communication, of workers' time",
    )
    right.set_ylabel("%")
    right.set_title("Efficiency and communication")
    right.legend(loc="best")
    for axes in (left, right):
        _finish(axes, most)
    return figure, data


def _draw_points(axes: Axes, workers: np.ndarray, values: np.ndarray, color: str, label: str) -> None:
    places = np.unique(workers)
    means = [values[workers == place].mean() for place in places]
    axes.plot(places, means, color=color, lw=1.8)
    axes.plot(workers, values, "o", color=color, ms=6, label=label)


def _finish(axes: Axes, most: float) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_xlim(0, most)
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("workers")
