"""All there is to see of one run, in one picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dist_classicrl.plotting import canvas, curves, maps, timeline
from dist_classicrl.plotting.greedy import NOTHING, Greedy
from dist_classicrl.plotting.grids import GridMap

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dist_classicrl.monitoring.reading import Metrics


@canvas.styled
def plot_overview(
    metrics: Metrics,
    grid_map: GridMap | None = None,
    x: str | Sequence[str] = "steps",
    title: str = "",
    greedy: Greedy = NOTHING,
) -> tuple[Figure, dict[str, object]]:
    """Draw the curves of a run, below them its workers, and below those its map where it has one.

    One worker to which nothing happened has no row: there would be nothing to see.

    Parameters
    ----------
    metrics : Metrics
        As `read_metrics` returns it.
    grid_map : GridMap, optional
        As `map_of` returns it.
    x, title, greedy
        As for `plot_curves`.

    Returns
    -------
    Figure
    dict of str to object
        What is drawn, as `plot_curves`, `plot_timeline` and `plot_maps` return it: "curves", and "timeline"
        and "map" where there is one.

    Raises
    ------
    PlotError
        As `plot_curves` and `plot_timeline` do.
    """
    lines = curves.curves_of(metrics, curves.axes_of(x), title, greedy)
    shown: dict[str, object] = {"curves": lines}
    heights = [curves.height_of(lines)]
    draw: list[Callable[[Any], None]] = [lambda part: curves.draw_curves(part, lines, title, greedy)]
    rows = timeline.timeline_of(metrics, title)
    if len(rows.ranks) > 1 or any(event["kind"] != "checkpoint" for event in rows.events):
        shown["timeline"] = rows
        heights.append(timeline.height_of(rows))
        draw.append(lambda part: timeline.draw_timeline(part, rows, ""))
    if grid_map is not None:
        shown["map"] = grid_map
        heights.append(maps.height_of(grid_map))
        draw.append(lambda part: maps.draw_map(part, grid_map, ""))
    figure = canvas.new_figure(sum(heights))
    parts: Any = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)
    for part, each in zip(parts.flat, draw, strict=True):
        each(part)
    return figure, shown
