"""Where a training runs: in this process, as a rank of a job, or in a job that is started for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import click

from dist_classicrl._hints import promised_size, rank_of_environment
from dist_classicrl.cli import errors
from dist_classicrl.cli.requested_run import RequestedRun, continued, is_done, why_not_from
from dist_classicrl.cli.run_folder import RunFolder, other_folder, short_path, steps_saved
from dist_classicrl.cli.summary import summary
from dist_classicrl.cli.terminal import bar_of_a_job, has_terminal
from dist_classicrl.cli.training import Display, train_here
from dist_classicrl.errors import CheckpointError
from dist_classicrl.launch.plan import LaunchOptions, launch_plan
from dist_classicrl.launch.restart import Supervisor

_STEP_TASKS = "SLURM_STEP_NUM_TASKS"


def is_rank(launch: LaunchOptions) -> bool:
    """Return whether this process was started as a rank.

    A batch script of SLURM has variables of its job, too, but is no rank. Nor is a rank alone, such as an
    interactive shell of SLURM, that is told to start some.
    """
    if promised_size() == 1 and (launch.is_for_mpirun or (launch.ranks or 1) > 1):
        return False
    tasks = os.environ.get(_STEP_TASKS, "")
    return rank_of_environment() is not None or (tasks.isdecimal() and int(tasks) > 1)


def train(run: RequestedRun, launch: LaunchOptions, display: Display, was_started: bool = False) -> int:
    """Train as asked, and return the exit status; TrainingStopped if it was stopped in this process.

    Whether there is a bar is decided here. A process that another one of this command started finds the
    folder of the run prepared.
    """
    if was_started:
        if run.settings["resume"] == "never" and run.folder.exists():  # the first start has begun it
            run = run.with_settings(resume="auto")
        return _begin(run, launch, replace(display, tells_result=False))
    is_head = (rank_of_environment() or 0) == 0
    folder = run.folder
    made = [path for path in (folder.path, *folder.path.parents) if not path.exists()]
    aside: Path | None = None
    status = errors.INTERNAL
    try:
        run, has_ended = _continued(run, launch)
        if has_ended:
            if is_head and not display.is_quiet:
                _say_done(run)
            return errors.DONE
        if is_head:
            aside = _prepare(run)
        status = _begin(run, launch, display)
    except BaseException as error:
        status = errors.exit_status(error)
        raise
    finally:
        if is_head:
            folder.forget(made if aside is None else [folder.path], with_logs=status != errors.INTERNAL)
            if aside is not None and not folder.path.exists():  # nothing has taken its place
                aside.rename(folder.path)
    return status


def _begin(run: RequestedRun, launch: LaunchOptions, display: Display) -> int:
    if is_rank(launch):
        train_here(run, display)
        return errors.DONE
    ranks = run.ranks or launch.ranks_of_place()
    has_bar = has_terminal() and not display.is_quiet
    if launch.is_for_mpirun or (ranks or 1) > 1:
        return _start_ranks(run, replace(launch, ranks=ranks), display, has_bar)
    if promised_size() > 1:  # by the variables of a batch script
        run = run.with_settings(allow_singletons=True)
    if display.is_live:
        status = run.folder.status
        with _drawn(run, replace(launch, ranks=1), display, status):
            train_here(run, replace(display, status=status))
    else:
        train_here(run, replace(display, has_bar=has_bar))
    return errors.DONE


@contextmanager
def _drawn(run: RequestedRun, launch: LaunchOptions, display: Display, path: Path) -> Iterator[None]:
    """Draw a run that writes how far it is to a file, which is removed in the end."""
    from dist_classicrl.callbacks.display import StatusFile

    status = StatusFile(path)
    _remove(path)
    try:
        if display.is_live:
            from dist_classicrl.cli.live.run_view import RunView
            from dist_classicrl.cli.live.screen import full_screen

            title = f"{run.environment}  {short_path(run.folder.path)}"
            view = RunView(run.folder.path, title, "Ctrl-C saves and ends it")
            with full_screen(view, lambda: status.has_ended):
                yield
        else:
            with bar_of_a_job(status, f"starting {launch.ranks} ranks", display.is_verbose):
                yield
    finally:
        _remove(path)


def _continued(run: RequestedRun, launch: LaunchOptions) -> tuple[RequestedRun, bool]:
    """Return the run as it goes on in its folder, checked, and whether there is nothing left to do.

    All ranks of a job that somebody else has started come to the same answer, while one prepares the folder.
    """
    begins_anew = run.settings["resume"] == "never"
    if not begins_anew:
        run = continued(run)
        if is_done(run):
            return run, True
    run.check()
    begins = begins_anew or steps_saved(run.of_train()["checkpoint_dir"]) is None
    if begins and not is_rank(launch) and run.settings["seed"] is None:
        from dist_classicrl._random import fresh_seed

        run = run.with_settings(seed=fresh_seed())
    return run, False


def _prepare(run: RequestedRun) -> Path | None:
    """Make the folder; return where the run is that was there, if another one begins."""
    aside: Path | None = None
    if run.settings["resume"] == "never" and run.folder.exists():
        path = Path(os.path.abspath(run.folder.path))
        aside = path.with_name(f"{path.name}-before")
        aside = other_folder(aside) if aside.exists() else aside
        path.rename(aside)
        click.echo(f"The run that was in {short_path(path)} is now in {short_path(aside)}.", err=True)
    run.prepare()
    return aside


def _say_done(run: RequestedRun) -> None:
    ended = run.folder.ended()
    if ended is None:  # another process has begun to go on with it
        return
    result, greedy = ended
    asked = run.folder.read_config().get("total_steps", result.steps)
    why_not: str | None = None
    with suppress(CheckpointError):  # of a store that does not answer: what is done needs none
        why_not = why_not_from(run, steps_saved(run.of_train()["checkpoint_dir"]))
    if why_not is not None:
        more = f"It cannot go on: it {why_not}"
    else:
        more = f"With more --total-steps than {result.steps:,} it goes on"
        more += "." if result.steps >= asked else f", unless they are {asked:,} again: it ended before those."
    click.echo(f"The run in {short_path(run.folder.path)} is done. {more}")
    click.echo("\n".join(summary(run.folder, result, greedy)))


def _say_result(folder: RunFolder) -> None:
    """Say what a job has done whose ranks cannot tell whether what they write arrives: mpirun takes it."""
    ended = folder.ended()
    if ended is not None:
        click.echo("\n".join(summary(folder, *ended)))


def _remove(file: Path) -> None:
    """Remove a file that nobody needs any more. What the disk has against that hides no error of the job."""
    with suppress(OSError):
        file.unlink()


def _start_ranks(run: RequestedRun, launch: LaunchOptions, display: Display, has_bar: bool) -> int:
    """Start ranks that run this command, and see them through."""
    place = RunFolder(run.folder.path.absolute())
    words = ["-m", "dist_classicrl", "train", "--started"]
    words += ["--config", str(place.for_ranks), "--out", str(place.path)]
    words += ["--verbose"] if display.is_verbose else []
    words += ["--quiet"] if display.is_quiet else []
    words += ["--status", str(place.status)] if has_bar else []
    said_by_ranks = (errors.USAGE, errors.REQUEUE, errors.INTERRUPTED)
    plan = launch_plan(launch, words)
    if not display.is_quiet and (shortage := plan.shortage()) is not None:
        click.echo(f"Hint: {shortage}", err=True)
    supervisor = Supervisor(plan, display.is_verbose, said_by_ranks)
    with ExitStack() as stack:
        stack.callback(_remove, place.for_ranks)
        run.write_for_ranks()
        if has_bar:
            stack.enter_context(_drawn(run, launch, display, place.status))
        code = supervisor.run()
    if code == errors.DONE and not display.is_quiet:
        _say_result(run.folder)
    if code in (errors.DONE, *said_by_ranks):
        return code
    if supervisor.stop_signal is not None and code == 128 + supervisor.stop_signal:
        click.echo("The job was ended before it could save. The same command goes on, or begins.", err=True)
        return errors.REQUEUE
    logs = run.folder.logs
    also = f", and {short_path(logs)}" if logs.is_dir() and any(logs.iterdir()) else ""
    click.echo(f"The job failed with exit status {code}: see above{also}.", err=True)
    return errors.INTERNAL
