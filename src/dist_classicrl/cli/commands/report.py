"""`dist-classicrl report`: how runs scale with their number of workers, or a page about a run or a study."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dist_classicrl._words import is_alone, shown_name
from dist_classicrl.cli import output
from dist_classicrl.cli.option_types import Place
from dist_classicrl.cli.several.reading import place_of, read_each, runs_named

if TYPE_CHECKING:
    from dist_classicrl.monitoring.scaling import Measured, ScalingReport, Spread
    from dist_classicrl.report.page import Page

_HELP = """\
Report how runs scale: speed-up, efficiency, communication.

RUN is the folder of a run. The baseline is the run with the fewest workers, unless --baseline names another.

\b
speed-up       steps per second / those of the baseline
efficiency     speed-up / (workers / those of the baseline)
communication  share of the workers' time that did not go into learning;
               beside it mean, least, most and standard deviation over the
               workers

A folder with runs in it stands for these. Of several runs, those without records, such as one that failed,
are left out with a warning. One run alone gets a table of its workers instead, with their shares from report
to report.

With --html one run gets a page that needs nothing but itself: result, exact gap to the best policy, learning
curves, policy map, workers, events, settings. RUN may then be a saved agent, too, or the folder of a study:
settings with intervals, learning curves, performance profiles, what each setting matters, exact gaps, failed
runs. It needs matplotlib, and for a study scipy.

\b
    dist-classicrl train FrozenLake-v1 --ranks 2 --out runs/n1
    dist-classicrl train FrozenLake-v1 --ranks 5 --out runs/n4
    dist-classicrl report runs/n1 runs/n4 --out scaling.png
    dist-classicrl report --html page.html runs/n4
    dist-classicrl report studies/lake --html study.html
"""

_SPREAD = ("mean", "min", "max", "deviation")


@click.command("report", help=_HELP)
@click.argument("runs", nargs=-1, required=True, type=Place(), metavar="RUN [RUN ...]")
@click.option("--baseline", type=Place(), metavar="RUN", help="What the others are compared with.")
@click.option("--json", "as_json", is_flag=True, help="Write JSON in place of tables.")
@click.option(
    "--out",
    type=Place(path_type=Path),
    metavar="FILE",
    help="Draw speed-up and efficiency of several runs: a .png, .svg or .pdf.",
)
@click.option(
    "--html",
    type=Place(path_type=Path),
    metavar="FILE",
    help="Write a page about one run or study: an .html.",
)
def command(
    runs: tuple[str, ...], baseline: str | None, as_json: bool, out: Path | None, html: Path | None
) -> None:
    """Report how runs scale: speed-up, efficiency, communication."""
    if html is not None:
        if baseline is not None or as_json or out is not None:
            raise click.UsageError("--html goes without --baseline, --json and --out. Write two commands.")
        _write_page(runs, html)
        return
    from dist_classicrl.monitoring.scaling import compare

    given = runs_named((*runs, baseline) if baseline else runs)
    if baseline:
        baseline = next((run for run in given if place_of(run) == place_of(baseline)), str(Path(baseline)))
    report = compare(read_each(given, _measured), shown_name(baseline) if baseline else None)
    if len(report.runs) > 1:
        from dist_classicrl.cli.several.groups import warn_of_rates

        compared = {scaled.run.name for scaled in report.runs}
        warn_of_rates([run for run in given if shown_name(run) in compared])
    if out is not None:
        from dist_classicrl.plotting import canvas, plot_scaling

        canvas.check_target(out)
        canvas.save(plot_scaling(report)[0], out)
    if as_json:
        output.show_json(report.to_dict())
        return
    _show_runs(report)
    if len(report.runs) == 1:
        _show_workers(report.runs[0].run)
    if out is not None:
        click.echo(f"\n{out}")


def _write_page(given: tuple[str, ...], target: Path) -> None:
    from dist_classicrl.plotting import canvas
    from dist_classicrl.report.page import check_target
    from dist_classicrl.sweep.study import is_study

    is_of_study = len(given) == 1 and is_study(given[0])
    runs = given if is_of_study else runs_named(given)
    if len(runs) > 1:
        raise click.BadParameter(
            f"A page is about one run or study, and {len(runs)} are given. Write one command for each.",
            param_hint="--html",
        )
    canvas.require_matplotlib()
    check_target(target)
    page = _page_of_study(runs[0]) if is_of_study else _page_of_run(runs[0])
    click.echo(f"{page.save(target)}: {', '.join(section.title.lower() for section in page.sections)}")


def _page_of_run(run: str) -> Page:
    from dist_classicrl.cli.run_page import facts_of
    from dist_classicrl.report.page import Page
    from dist_classicrl.report.sections import run_sections

    facts = facts_of(run)
    about = f"{facts.environment or 'environment not known'}, {facts.steps:,} steps"
    return Page(facts.name, about).add(*run_sections(facts))


def _page_of_study(folder: str) -> Page:
    from dist_classicrl.report.page import Page
    from dist_classicrl.report.study_sections import study_sections
    from dist_classicrl.sweep.study import Study

    study = Study(folder)
    plan = study.plan
    about = f"{', '.join(plan.environments)}: {plan.n_runs:,} runs of {plan.total_steps:,} steps"
    return Page(shown_name(folder), about).add(*study_sections(study))


def _measured(run: str) -> Measured:
    from dist_classicrl.cli.run_folder import RunFolder
    from dist_classicrl.monitoring.reading import read_metrics
    from dist_classicrl.monitoring.scaling import measure

    folder = RunFolder(Path(run))
    result = folder.read_result()
    metrics = None if result is not None and not folder.metrics.exists() else read_metrics(folder.path)
    return measure(shown_name(run), metrics, result)


def _show_runs(report: ScalingReport) -> None:
    several = len(report.runs) > 1
    compared = ["speed-up", "efficiency"] if several else []
    headers = ["run", "workers", "steps/s", *compared, "communication", "of workers: mean", *_SPREAD[1:]]
    rows = []
    for scaled in report.runs:
        run = scaled.run
        rows.append(
            [
                run.name + (" (baseline)" if several and run.name == report.baseline else ""),
                f"{run.workers:.4g}",
                f"{run.steps_per_second:,.0f}",
                *([f"{scaled.speed_up:.2f}", f"{scaled.efficiency:.1%}"] if several else []),
                f"{run.communication_fraction:.2%}",
                *_cells(run.communication),
            ]
        )
    output.show_table(headers, rows)


def _cells(spread: Spread | None) -> list[str]:
    return ["-" if spread is None else f"{getattr(spread, name):.2%}" for name in _SPREAD]


def _show_workers(run: Measured) -> None:
    if is_alone(load.rank for load in run.per_worker) or not run.per_worker:
        return  # it has nothing to tell besides what was said of the run
    click.echo()
    rows = [
        [
            str(load.rank),
            load.host,
            f"{load.steps:,}",
            f"{load.steps_per_second:,.0f}",
            *_cells(load.communication),
        ]
        for load in run.per_worker
    ]
    headers = ["rank", "host", "steps", "steps/s", "communication", *_SPREAD[1:]]
    output.show_table(headers, rows, "workers, from report to report")
