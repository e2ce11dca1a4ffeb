"""When each worker of a run learned, how fast, and what happened to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dist_classicrl._words import is_alone
from dist_classicrl.errors import PlotError
from dist_classicrl.plotting import canvas

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

    from dist_classicrl.monitoring.reading import Metrics


@dataclass(frozen=True)
class Mark:
    """How an event is drawn."""

    label: str
    shape: str
    color: str
    size: float = 9.0
    hollow: bool = False


MARKS = {
    "suspected": Mark("suspected", "^", canvas.ORANGE, 12.0, hollow=True),
    "cleared": Mark("heard again", "o", canvas.GREEN, 7.0, hollow=True),
    "excluded": Mark("lost", "X", canvas.VERMILLION),
    "readmitted": Mark("back", "o", canvas.GREEN, 8.0),
    "replaced": Mark("replacement started", "P", canvas.GREEN, 10.0),
    "left": Mark("left in order", "s", canvas.BLACK, 7.0),
    "failover": Mark("serves from now on", "*", canvas.PURPLE, 15.0),
    "checkpoint": Mark("checkpoint", "|", canvas.BLACK, 9.0),
}

_ROW = 0.3  # inches
_LEAST, _MOST = 2.6, 14.0
_MOST_LABELS = 40
_BAR = 0.72  # of a row
_SHADED = 0.95  # of the time that ranks learned; what is faster for less than that has the deepest shade


@dataclass(frozen=True)
class Timeline:
    """What is drawn: one row for each rank.

    Attributes
    ----------
    ranks : tuple of int
        From top to bottom.
    learned : dict of int to ndarray(float64), shape (spans, 3)
        When each rank learned: begin and end in seconds, and its steps per second in between.
    events : tuple of dict
        Those that have a mark, in order.
    """

    ranks: tuple[int, ...]
    learned: dict[int, np.ndarray]
    events: tuple[dict[str, Any], ...]


@canvas.styled
def plot_timeline(metrics: Metrics, title: str = "") -> tuple[Figure, Timeline]:
    """Draw a row for each rank: when it learned, its rate as shade, and marks for what happened to it.

    A rank has learned between two reports if the second one has steps of it. Checkpoints have a row of their
    own.

    Parameters
    ----------
    metrics : Metrics
        As `read_metrics` returns it.
    title : str

    Raises
    ------
    PlotError
        If the records say nothing about any rank that learned, or to which something happened.
    """
    timeline = timeline_of(metrics, title)
    figure = canvas.new_figure(height_of(timeline))
    draw_timeline(figure, timeline, title)
    return figure, timeline


def timeline_of(metrics: Metrics, name: str) -> Timeline:
    """Return what `plot_timeline` draws."""
    canvas.check_metrics(metrics, name or "the run")
    ends = metrics["time"]
    begins = np.concatenate(([0.0], ends[:-1]))
    learned = {}
    for rank, series in metrics.ranks.items():
        busy = series["steps"] > 0
        place = np.searchsorted(ends, series["time"][busy])
        learned[rank] = np.column_stack((begins[place], ends[place], series["steps_per_second"][busy]))
    events = tuple(event for event in metrics.events if event["kind"] in MARKS)
    ranks = {*learned, *(event["rank"] for event in events if event["kind"] != "checkpoint")}
    if not ranks or not (events or any(spans.size for spans in learned.values())):
        raise PlotError(
            f"The records of {name or 'the run'} say nothing about any worker that learned, so there is no "
            "timeline. Train longer than one progress interval, or give another run."
        )
    return Timeline(tuple(sorted(ranks)), learned, events)


def height_of(timeline: Timeline) -> float:
    """Return how high, in inches, the rows are together."""
    return min(max(_ROW * (len(timeline.ranks) + 1) + 1.6, _LEAST), _MOST)


def draw_timeline(figure: Figure | SubFigure, timeline: Timeline, title: str) -> None:
    """Draw a timeline into an empty figure or a part of one."""
    axes = figure.subplots()
    canvas.write_title(figure, title)
    spans = [span for span in timeline.learned.values() if span.size]
    last = max([*(float(span[-1, 1]) for span in spans), *(e["time"] for e in timeline.events)])
    scale, unit = canvas.time_unit(last)
    row = {rank: i for i, rank in enumerate(timeline.ranks)}
    if spans:
        _draw_spans(figure, axes, timeline, row, scale)
    kinds = [kind for kind in MARKS if any(event["kind"] == kind for event in timeline.events)]
    checkpoints = len(row)
    for kind in kinds:
        places = [
            (event["time"] / scale, checkpoints if kind == "checkpoint" else row[event["rank"]])
            for event in timeline.events
            if event["kind"] == kind
        ]
        axes.plot(*zip(*places, strict=True), **_look(MARKS[kind]))
    _label_rows(axes, timeline.ranks, "checkpoint" in kinds)
    axes.set_xlim(0, last / scale * 1.01 or 1.0)
    axes.set_xlabel(f"training time ({unit})")
    axes.set_title("Workers")
    canvas.legend_below(figure, [_key(MARKS[kind]) for kind in kinds], columns=8)


def _draw_spans(
    figure: Figure | SubFigure, axes: Axes, timeline: Timeline, row: dict[int, int], scale: float
) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LinearSegmentedColormap, Normalize

    top, fastest = _range_of_rates(np.concatenate(list(timeline.learned.values())))
    # Not down to white, which stands for a rank that did not learn.
    shades = LinearSegmentedColormap.from_list("rates", ["#DDEBF5", canvas.BLUE])
    shade = ScalarMappable(Normalize(0.0, top), shades)
    for rank, spans in timeline.learned.items():
        bars = [(begin / scale, (end - begin) / scale) for begin, end, _ in spans.tolist()]
        axes.broken_barh(bars, (row[rank] - _BAR / 2, _BAR), facecolors=shade.to_rgba(spans[:, 2]), lw=0)
    slim = 4 * height_of(timeline)
    figure.colorbar(
        shade,
        ax=axes,
        label="steps/s" if is_alone(timeline.ranks) else "steps/s of a rank",
        format=canvas.quantity(),
        pad=0.01,
        aspect=slim,
        extend="max" if fastest > top else "neither",
    )


def _range_of_rates(spans: np.ndarray) -> tuple[float, float]:
    """Return the rate with the deepest shade, and the highest one, which may be that of a moment."""
    spans = spans[np.argsort(spans[:, 2])]
    passed = np.cumsum(spans[:, 1] - spans[:, 0])
    at = min(np.searchsorted(passed, _SHADED * passed[-1]), len(spans) - 1)
    return float(spans[at, 2]), float(spans[-1, 2])


def _label_rows(axes: Axes, ranks: tuple[int, ...], with_checkpoints: bool) -> None:
    every = -(-len(ranks) // _MOST_LABELS)
    places = list(range(0, len(ranks), every))
    labels = ["the process"] if is_alone(ranks) else [f"rank {ranks[i]}" for i in places]
    if with_checkpoints:
        places.append(len(ranks))
        labels.append("checkpoints")
    axes.set_yticks(places, labels)
    axes.set_ylim(len(ranks) + (0.5 if with_checkpoints else -0.5), -0.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", visible=False)


def _look(mark: Mark) -> dict[str, Any]:
    return {
        "ls": "",
        "marker": mark.shape,
        "ms": mark.size,
        "mfc": "white" if mark.hollow else mark.color,
        "mec": mark.color if mark.hollow or mark.shape == "|" else "white",
        "mew": 1.8 if mark.hollow or mark.shape == "|" else 0.8,
        "clip_on": False,
        "zorder": 3,
    }


def _key(mark: Mark) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], label=mark.label, **_look(mark))
