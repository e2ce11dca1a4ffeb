"""`dist-classicrl plot`: pictures of one or several runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dist_classicrl._words import counted, is_alone, shown_name
from dist_classicrl.cli.option_types import Place, option
from dist_classicrl.cli.run_folder import folder_around
from dist_classicrl.cli.several.reading import read_each, runs_named

if TYPE_CHECKING:
    from dist_classicrl.plotting import GridMap

_NAMES = {"all": "plot.png", "curves": "curves.png", "maps": "map.png", "timeline": "timeline.png"}

_HELP = """\
Draw what happened in one or several runs.

RUN is the folder of a run, its metrics.jsonl, or a folder with runs in it, which stands for these. What is
drawn goes into one picture: plot.png, curves.png, map.png or timeline.png in the run's folder, or in the
current one for several runs.

\b
curves    returns, temporal-difference error, throughput, communication;
          what the best policy collects, where that is known, is a dashed line
maps      value and policy of a grid like FrozenLake, with arrows, or of
          any other environment whose observations have two numbers
timeline  when each worker learned, how fast, and what happened to it
all       the three, as far as there is something to see

Several runs are drawn as curves, in groups of those with the same settings but for the seed, or of those
that are alike in what --group-by names: three or more as their mean with a 95 % t-interval, or their median
with quartiles, on a common grid of steps or of time. Those without records are left out with a warning;
those without config.toml, of whose settings nothing is known, are drawn with one.

\b
    dist-classicrl train FrozenLake-v1 --ranks 3 --out runs/lake
    dist-classicrl plot runs/lake
    dist-classicrl plot runs/lake --kind maps --out map.svg

\b
    dist-classicrl plot runs/seed-1 runs/seed-2 runs/seed-3 --out seeds.png
    dist-classicrl plot runs/* --group-by learning_rate --average median

It needs matplotlib: pip install matplotlib.
"""


@click.command("plot", help=_HELP)
@click.argument("runs", nargs=-1, required=True, type=Place(), metavar="RUN [RUN ...]")
@click.option("--out", type=Place(path_type=Path), metavar="FILE", help="A .png, .svg or .pdf.")
@option(
    "--kind", type=click.Choice(["curves", "maps", "timeline", "all"]), default="all", help="What is drawn."
)
@option("--x", type=click.Choice(["steps", "time", "both"]), help="What curves go over.", shown="steps")
@click.option(
    "--group-by",
    multiple=True,
    metavar="NAME",
    help="A setting, environment, ranks, or an argument of the environment: runs that are alike in it are "
    "one group; more than once for several. By default what they differ in, but for the seed; none: no "
    "groups.",
)
@option("--average", type=click.Choice(["mean", "median"]), help="What stands for a group.", shown="mean")
def command(
    runs: tuple[str, ...],
    out: Path | None,
    kind: str,
    x: str | None,
    group_by: tuple[str, ...],
    average: str | None,
) -> None:
    """Draw what happened in one or several runs."""
    from dist_classicrl.plotting import canvas

    for name, given in (("--x", x), ("--group-by", group_by), ("--average", average)):
        if given and kind in ("maps", "timeline"):
            raise click.UsageError(
                f"{name} is about curves, and --kind {kind} draws none. Leave it out, or write --kind curves."
            )
    canvas.require_matplotlib()
    runs = runs_named(runs)
    axes = ("steps", "time") if x == "both" else (x or "steps",)
    target = canvas.check_target(out or _default_target(runs, kind))
    if len(runs) > 1:
        figure, shown = _several(runs, kind, axes, group_by, average or "mean")
    else:
        figure, shown = _one(runs[0], kind, axes, group_by)
    click.echo(f"{canvas.save(figure, target)}: {shown}")


def _default_target(runs: tuple[str, ...], kind: str) -> Path:
    name = _NAMES[kind]
    return Path(name) if len(runs) > 1 else folder_around(runs[0]) / name


def _several(
    runs: tuple[str, ...], kind: str, axes: tuple[str, ...], group_by: tuple[str, ...], average: str
) -> tuple[Any, str]:
    from dist_classicrl import plotting
    from dist_classicrl.cli.several import groups

    if kind in ("maps", "timeline"):
        raise click.BadParameter(
            f"{kind} are of one run, and {len(runs)} are given. Write one command for each run, or draw "
            "--kind curves.",
            param_hint="--kind",
        )
    found = read_each(runs, groups.read)
    grouped, by = groups.grouped(found, group_by)
    groups.warn_of_unknown(found)
    groups.warn_of_environments(found, by)
    title = counted(len(found), "run") + (f" by {', '.join(by)}" if by else "")
    figure, _ = plotting.plot_groups(grouped, axes, title, average)
    reports = sum(len(run.records.metrics) for run in found)
    shown = counted(len(found), "run") + (f" in {counted(len(grouped), 'group')}" if by else "")
    return figure, f"{shown}, {counted(reports, 'report')}"


def _one(run: str, kind: str, axes: tuple[str, ...], group_by: tuple[str, ...]) -> tuple[Any, str]:
    from dist_classicrl import plotting
    from dist_classicrl.cli.several import groups

    if group_by:  # one run is a group of its own, whatever they name
        groups.checked([groups.read(run, with_best=False)], group_by)
    if kind == "maps":
        grid_map = _map_of(run)
        return plotting.plot_map(grid_map, shown_name(run)), f"the map of {grid_map.grid.name}"
    records = groups.read(run, with_best=kind != "timeline").records
    metrics, greedy = records.metrics, records.greedy
    reports = counted(len(metrics), "report")
    if kind == "curves":
        return plotting.plot_curves(metrics, axes, records.name, greedy)[0], reports
    if kind == "timeline":
        figure, timeline = plotting.plot_timeline(metrics, records.name)
        who = "process" if is_alone(timeline.ranks) else "rank"
        return figure, f"{counted(len(timeline.ranks), who)}, {counted(len(timeline.events), 'event')}"
    grid = _map_if_any(run)
    figure = plotting.plot_overview(metrics, grid, axes, records.name, greedy)[0]
    return figure, f"{reports}, {counted(len(metrics.ranks), 'worker')}{', map' if grid else ''}"


def _map_of(run: str) -> GridMap:
    from dist_classicrl.cli.trained_agent import load
    from dist_classicrl.errors import PlotError
    from dist_classicrl.plotting import map_of

    trained = load(folder_around(run) if Path(run).suffix == ".jsonl" else run)
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

    if not RunFolder(folder_around(run)).exists():
        return None
    try:
        return _map_of(run)
    except PlotError:
        return None
    except DistClassicRLError as error:
        click.echo(f"Without a map: {error}", err=True)
        return None
