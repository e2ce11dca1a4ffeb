"""`dist-classicrl plot`: pictures of one or several runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dist_classicrl.cli.option_types import option

if TYPE_CHECKING:
    from dist_classicrl.plotting import GridMap

_NAME = "plot.png"

_HELP = """\
Draw what happened in one or several runs.

RUN is the folder of a run, or its metrics.jsonl. Everything goes into one picture, by default plot.png in
the run's folder, or in the current one for several runs.

\b
curves    return, temporal-difference error, throughput, communication
maps      value and policy of a grid like FrozenLake, with arrows
timeline  when each worker learned, how fast, and what happened to it
all       the three; the map only where the environment is a grid

Several runs, such as one training with several seeds, are drawn as curves: from three on their mean with
a 95 % t-interval, on a common grid of steps or of time.

\b
    dist-classicrl train FrozenLake-v1 --ranks 3 --out runs/lake
    dist-classicrl plot runs/lake
    dist-classicrl plot runs/lake --kind maps --out map.svg

\b
    dist-classicrl plot runs/seed-1 runs/seed-2 runs/seed-3 --out seeds.png

It needs matplotlib: pip install matplotlib.
"""


@click.command("plot", help=_HELP)
@click.argument("runs", nargs=-1, required=True, metavar="RUN [RUN ...]")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="A .png, .svg or .pdf.")
@option(
    "--kind", type=click.Choice(["curves", "maps", "timeline", "all"]), default="all", help="What is drawn."
)
@option(
    "--x", type=click.Choice(["steps", "time"]), help="What curves go over; by default both side by side."
)
def command(runs: tuple[str, ...], out: Path | None, kind: str, x: str | None) -> None:
    """Draw what happened in one or several runs."""
    from dist_classicrl.plotting import canvas

    canvas.require_matplotlib()
    target = canvas.check_target(out or _default_target(runs))
    if len(runs) > 1:
        figure, shown = _several(runs, kind, x)
    else:
        figure, shown = _one(runs[0], kind, x)
    click.echo(f"{canvas.save(figure, target)}: {shown}")


def _default_target(runs: tuple[str, ...]) -> Path:
    return Path(_NAME) if len(runs) > 1 else _folder(runs[0]) / _NAME


def _folder(run: str) -> Path:
    """Return the folder of a run that was named by it or by a file in it."""
    path = Path(run)
    return path.parent if path.is_file() else path


def _several(runs: tuple[str, ...], kind: str, x: str | None) -> tuple[Any, str]:
    from dist_classicrl.monitoring.reading import read_metrics
    from dist_classicrl.plotting import plot_several_runs

    if kind in ("maps", "timeline"):
        raise click.BadParameter(
            f"{kind} are of one run, and {len(runs)} are given. Write one command for each run, or draw "
            "--kind curves.",
            param_hint="--kind",
        )
    metrics = [read_metrics(run) for run in runs]
    figure, _ = plot_several_runs(metrics, runs, x or ("steps", "time"), f"{len(runs)} runs")
    return figure, f"{len(runs)} runs, {sum(map(len, metrics)):,} reports"


def _one(run: str, kind: str, x: str | None) -> tuple[Any, str]:
    from dist_classicrl import plotting
    from dist_classicrl.monitoring.reading import read_metrics

    if kind == "maps":
        grid_map = _map_of(run)
        return plotting.plot_map(grid_map, run), f"the map of {grid_map.grid.name}"
    metrics = read_metrics(run)
    axes = x or ("steps", "time")
    if kind == "curves":
        return plotting.plot_curves(metrics, axes, run)[0], f"{len(metrics):,} reports"
    if kind == "timeline":
        figure, timeline = plotting.plot_timeline(metrics, run)
        return figure, f"{len(timeline.ranks):,} ranks, {len(timeline.events):,} events"
    grid = _map_if_any(run)
    figure = plotting.plot_overview(metrics, grid, axes, run)[0]
    return figure, f"{len(metrics):,} reports, {len(metrics.ranks):,} workers{', map' if grid else ''}"


def _map_of(run: str) -> GridMap:
    from dist_classicrl.cli.trained_agent import load
    from dist_classicrl.errors import PlotError
    from dist_classicrl.plotting import map_of

    trained = load(_folder(run) if Path(run).suffix == ".jsonl" else run)
    if trained.env_name is None:
        raise PlotError(
            f"{run} does not tell which environment was trained in, so its map is not known. Give the folder "
            "of a run, or draw it in Python: plot_maps(agent.q_table, env, agent.visits)."
        )
    return map_of(trained.agent.q_table, trained.make_env(), trained.agent.visits)


def _map_if_any(run: str) -> GridMap | None:
    """Return the map of a run, or None where its environment is no grid or nothing was saved yet."""
    from dist_classicrl.cli.run_folder import RunFolder
    from dist_classicrl.errors import DistClassicRLError, PlotError

    if not RunFolder(_folder(run)).exists():
        return None
    try:
        return _map_of(run)
    except PlotError:
        return None
    except DistClassicRLError as error:
        click.echo(f"Without a map: {error}", err=True)
        return None
