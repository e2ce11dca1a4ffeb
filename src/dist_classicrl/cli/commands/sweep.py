"""`dist-classicrl sweep`: train with many settings and seeds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import click

from dist_classicrl._hints import task_of_environment
from dist_classicrl._words import counted
from dist_classicrl.cli import errors
from dist_classicrl.cli.option_types import OutFolder, Place, option
from dist_classicrl.cli.run_folder import RunFolder
from dist_classicrl.errors import StudyError
from dist_classicrl.launch.launcher import start_few_threads

_HELP = """\
Train with many settings and seeds; typed again, it goes on.

FILE is a study: environments, settings that differ, seeds.

\b
    environment = "FrozenLake-v1"
    total_steps = 2_000_000
    seeds = 50
    [vary]
    learning_rate = [0.1, "per_visit:0.7"]
    discount_factor = [0.95, 0.99]

Each run learns alone on one core. They are divided among processes of this machine; among ranks, where mpirun
or srun has started this command; and among whoever else works in the same folder, such as the tasks of a
SLURM array. Killed at any moment and typed again it goes on, and ends with the same table. With more seeds in
FILE it makes the runs that are missing, but for studies with early stopping or search = "tpe". With
device = "cuda" among the settings a card makes thousands of runs at once.

\b
    dist-classicrl sweep study.toml --out studies/lake
    mpirun -n 16 dist-classicrl sweep study.toml --out studies/lake

The folder gets results.csv, a line per run, and curves.csv. A run that fails is written down with its error
and costs only itself; the command says so when the others are done.

Stopped by Ctrl-C, SIGTERM, SIGUSR1, SIGUSR2, or when its terminal goes, it keeps what came out so far. The
runs under way are made again, but those of more than three billion steps in a compiled environment go on from
their checkpoints.
"""


@click.command("sweep", help=_HELP, epilog=errors.EXIT_STATUS)
@click.argument("file", type=Place(path_type=Path), metavar="FILE")
@option(
    "-o",
    "--out",
    type=OutFolder(),
    metavar="FOLDER",
    help="The folder of the study.",
    shown="studies/ and the name of FILE",
)
@option(
    "--processes",
    type=click.IntRange(1),
    metavar="N",
    help="Processes of this machine.",
    shown="its cores; 1 for each rank of an MPI job",
)
@click.option("--retry-failed", is_flag=True, help="Make runs that have failed once more.")
@click.option("--live", is_flag=True, help="Show it on the whole screen of the terminal.")
@click.option("-q", "--quiet", is_flag=True, help="Nothing but warnings and errors.")
def command(
    file: Path, out: Path | None, processes: int | None, retry_failed: bool, live: bool, quiet: bool
) -> None:
    """Train with many settings and seeds; typed again, it goes on."""
    start_few_threads()
    from dist_classicrl.checkpoint.plan import SIGNALS
    from dist_classicrl.cli.shown_study import show_study, teller
    from dist_classicrl.cli.signals import with_terminal
    from dist_classicrl.cli.study_file import keep_study_file, read_study
    from dist_classicrl.sweep.study import Study
    from dist_classicrl.sweep.sweep import Sweep

    if live:
        from dist_classicrl.cli.live.screen import check_screen

        check_screen(quiet, task_of_environment() is not None)
    folder = out or Path("studies") / file.stem
    if RunFolder(folder).exists():
        raise StudyError(
            f"{folder} is the folder of a run, and a study needs one of its own. Give --out another."
        )
    sweep = Sweep(**read_study(file), folder=folder)
    sweep.begin()
    keep_study_file(file, folder)
    is_speaker = not task_of_environment() and not quiet
    if is_speaker and not live:
        plan, also = sweep.plan, ""
        if plan.added:
            more = len(plan.seeds) - plan.added[0]
            also = f": {counted(more, 'seed')} besides the {plan.added[0]:,} that it was begun with"
        click.echo(f"{plan.n_runs:,} runs of {plan.total_steps:,} steps each, in {folder}{also}", err=True)
    with _shown(folder, live, is_speaker):
        try:
            tell = teller() if is_speaker and not live else None
            study = sweep.run(processes, tell, retry_failed, with_terminal(SIGNALS))
        except KeyboardInterrupt:
            if is_speaker:
                so_far = Study(folder)
                made, of = so_far.done + so_far.failed, so_far.plan.n_runs
                click.echo(f"{made:,} of {of:,} runs are made. The same command goes on.", err=True)
            raise
    if is_speaker:
        show_study(study)
        click.echo(f"\n{study.folder / 'results.csv'}")
    failed = [row for row in study.rows() if row["error"] is not None]
    if failed and not task_of_environment():
        raise StudyError(
            f"{len(failed):,} of {len(study.rows()):,} runs failed, the others are done. The first is run "
            f"{failed[0]['run']}: {failed[0]['error']} To make such runs once more, add --retry-failed."
        )


def _shown(folder: Path, live: bool, is_speaker: bool) -> AbstractContextManager[None]:
    """Return what shows the study while it is entered, besides lines now and then."""
    from dist_classicrl.cli.shown_study import telling_of_compilation

    if live:
        return _on_screen(folder)
    return telling_of_compilation() if is_speaker else nullcontext()


@contextmanager
def _on_screen(folder: Path) -> Iterator[None]:
    """Show the study while this is entered."""
    from dist_classicrl.cli.live.screen import full_screen
    from dist_classicrl.cli.live.study_view import StudyView
    from dist_classicrl.cli.signals import cleaned_up

    with cleaned_up(), full_screen(StudyView(folder, "Ctrl-C ends it; typed again, it goes on")):
        yield
