"""All there is to see of one run, in one picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dist_classicrl.plotting import canvas, curves, maps, timeline

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dist_classicrl.monitoring.reading import Metrics


@canvas.styled
def plot_overview(
    metrics: Metrics,
    grid_map: maps.GridMap | None = None,
    x: str | Sequence[str] = ("steps", "time"),
    title: str = "",
) -> tuple[Figure, dict[str, object]]:
    """Draw the curves of a run, below them its workers, and below those its map where it has one.

    Parameters
    ----------
    metrics : Metrics
        As `read_metrics` returns it.
    grid_map : GridMap, optional
        As `map_of` returns it.
    x, title
        As for `plot_curves`.

    Returns
    -------
    Figure
    dict of str to object
        What is drawn, as `plot_curves`, `plot_timeline` and `plot_maps` return it: "curves", "timeline", and
        "map" where there is one.

    Raises
    ------
    PlotError
        As `plot_curves` and `plot_timeline` do.
    """
    wanted = curves.axes_of(x)
    lines = curves.curves_of(metrics, wanted, title)
    rows = timeline.timeline_of(metrics, title)
    heights = [curves.height_of(wanted), timeline.height_of(rows)]
    if grid_map is not None:
        heights.append(maps.height_of(grid_map))
    figure = canvas.new_figure(sum(heights))
    parts: Any = figure.subfigures(len(heights), 1, height_ratios=heights)
    curves.draw_curves(parts[0], lines, title)
    timeline.draw_timeline(parts[1], rows, "")
    if grid_map is None:
        return figure, {"curves": lines, "timeline": rows}
    maps.draw_map(parts[2], grid_map, "")
    return figure, {"curves": lines, "timeline": rows, "map": grid_map}
