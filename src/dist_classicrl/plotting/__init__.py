"""Pictures of runs, drawn with matplotlib: the extra `plot`, imported only where something is drawn.

Each function returns the figure and the numbers that it shows, or raises `MissingExtraError` where matplotlib
is not installed. No window is opened and no global state of matplotlib is touched: in a notebook the figure
shows itself, and `save` writes it.
"""

from dist_classicrl.plotting.canvas import save
from dist_classicrl.plotting.curves import Curve, plot_curves
from dist_classicrl.plotting.greedy import Greedy, read_evaluations
from dist_classicrl.plotting.grids import GridMap
from dist_classicrl.plotting.maps import map_of, plot_map, plot_maps
from dist_classicrl.plotting.overview import plot_overview
from dist_classicrl.plotting.scaling import plot_scaling
from dist_classicrl.plotting.several_runs import Comparison, RunRecords, plot_groups, plot_several_runs
from dist_classicrl.plotting.studies import (
    plot_comparison,
    plot_learning_curves,
    plot_profiles,
    plot_sensitivity,
)
from dist_classicrl.plotting.timeline import Timeline, plot_timeline

__all__ = [
    "Comparison",
    "Curve",
    "Greedy",
    "GridMap",
    "RunRecords",
    "Timeline",
    "map_of",
    "plot_comparison",
    "plot_curves",
    "plot_groups",
    "plot_learning_curves",
    "plot_map",
    "plot_maps",
    "plot_overview",
    "plot_scaling",
    "plot_profiles",
    "plot_sensitivity",
    "plot_several_runs",
    "plot_timeline",
    "read_evaluations",
    "save",
]
