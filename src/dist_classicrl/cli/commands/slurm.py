"""`dist-classicrl slurm`: a batch script that fits."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dist_classicrl.cli.commands.launch import ScriptCommand
from dist_classicrl.cli.launch_options import is_of_launch, options_given
from dist_classicrl.cli.option_types import Whole, option
from dist_classicrl.errors import SettingsError

if TYPE_CHECKING:
    from dist_classicrl.launch.slurm_script import BatchJob

_PACKAGE = ("-m", "dist_classicrl")
_EXAMPLES = {"train": "FrozenLake-v1", "launch": "train.py", "sweep": "study.toml"}
_NO_MPI = "none"  # what srun's --mpi is where nobody needs one
_PLACES = ("out", "checkpoint_dir", "log_dir")  # where train writes
_STAND_IN = "987654321"  # for numbers that are known when the job runs

_HELP = """\
Print a batch script for sbatch.

WORDS are those of `dist-classicrl train`, without --ranks, which is the number of tasks; or a script of
your own that ends in .py (or a module after -m), and its arguments, which is then started by
`dist-classicrl launch`. Options come before them. With --srun it is SLURM that starts the ranks, and a death
ends the job.
Words that begin with `sweep` are those of `dist-classicrl sweep`: each task, of each job of an array, makes
runs of the study.

The job hears SLURM's warning before its time limit, or before it is pre-empted, saves its run and ends;
with --requeue it goes back into the queue and on from there. Without --array all of it is one training; with
it each number is a training of its own, with a seed and a folder of its own. In WORDS $SLURM_ARRAY_TASK_ID,
in single quotes, stands for that number.

\b
    dist-classicrl slurm --ntasks 16 --time 4:00:00 -- FrozenLake-v1 --total-steps 1e10 > job.sh
    sbatch job.sh

\b
    dist-classicrl slurm --ntasks 64 --nodes 2 --time 1-00 --setup "module load openmpi" \\
        train.py --checkpoint-dir saved | sbatch

\b
    dist-classicrl slurm --ntasks 16 --array 0-3 -- sweep study.toml | sbatch
"""


@click.command("slurm", cls=ScriptCommand, help=_HELP, context_settings={"allow_interspersed_args": False})
@option("--ntasks", type=Whole(), required=True, metavar="N", help="Ranks, one of them the server.")
@option("--nodes", type=Whole(), metavar="N", help="Over how many hosts they are spread.")
@option("--time", metavar="TIME", help="Limit, such as 4:00:00 for four hours.")
@option("--partition", metavar="NAME", help="Where the job runs.")
@option("--account", metavar="NAME", help="Who pays.")
@option("--mem", metavar="SIZE", help="Memory of each node, such as 16G.")
@option("--array", metavar="NUMBERS", help="Several trainings, such as 0-9, or 0-99%10 for ten at a time.")
@option("--job-name", metavar="NAME", help="What the job is called.")
@option(
    "--requeue/--no-requeue",
    default=True,
    help="Whether a job that was stopped goes back into the queue.",
    shown="yes",
)
@option(
    "--signal",
    type=Whole(0),
    default=120,
    metavar="SECONDS",
    help="How long before the end the warning comes; 0: none, the training goes by SLURM's clock.",
)
@option(
    "--directive",
    multiple=True,
    metavar="TEXT",
    help="Another line for SLURM, such as --directive=--constraint=avx2; more than once for several.",
)
@option(
    "--setup",
    multiple=True,
    metavar="LINE",
    help='A line of shell before the command, such as "module load openmpi"; more than once for several.',
)
@option(
    "--srun",
    metavar="PMI",
    help="Let srun start the ranks, with this --mpi: pmix for Open MPI, pmi2 for MPICH.",
    shown="mpirun does",
)
@option("--python", default=sys.executable, metavar="FILE", help="Which Python runs it.", shown="this one")
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="WORDS...")
def command(
    words: tuple[str, ...], python: str, signal: int, directive: tuple[str, ...], **asked: Any
) -> None:
    """Print a batch script for sbatch."""
    from dist_classicrl.launch.slurm_script import BatchJob

    if words[0] == "sweep":
        asked |= {"is_study": True, "srun": asked["srun"] or _NO_MPI}
    job = BatchJob(**asked, warning=signal or None, further=directive)
    is_this_python = python == sys.executable and not job.setup
    click.echo(job.script([python, *words_of(words, job, is_this_python)]), nl=False)


def words_of(words: Sequence[str], job: BatchJob, is_this_python: bool) -> list[str]:
    """Return the words after Python in the batch script, from the command's own.

    `is_this_python`: the job has the environments and the folder that this process has. SettingsError if
    there is no such study, or if they ask for a number of ranks, for a terminal, or for a launcher beside
    srun, let the jobs of an array write to the same folder or make the same training, or a job that runs
    again begin anew or take no notice of a time limit; and if srun is to start ranks that cannot find each
    other.
    """
    from dist_classicrl.environments import named
    from dist_classicrl.launch.slurm_script import TASK

    kind, rest = _kind_of(words)
    context = _parsed(kind, rest)
    asked = context.params
    _check_for_batch(kind, context, job)
    if kind == "sweep":
        if is_this_python and _STAND_IN not in str(asked["file"]):
            from dist_classicrl.cli.study_file import read_study

            read_study(asked["file"])
        return [*_PACKAGE, kind, *rest]
    if kind == "launch":
        if job.array is not None and not any("SLURM_ARRAY_TASK_ID" in word for word in rest):
            click.echo(
                f"Each job of the array runs the same words. If the script does not look at {TASK[1:]} "
                f"itself, write '{TASK}' where the jobs differ, such as in --seed and --checkpoint-dir.",
                err=True,
            )
        if job.srun is None:
            return [*_PACKAGE, kind, *rest]
        if words[0] == kind:
            raise SettingsError(
                "With --srun there is no launcher: write the script and its arguments, without launch."
            )
        return rest
    if not (asked["env"] or asked["other_env"] or asked["file"]):
        raise SettingsError("Which environment? Write for instance FrozenLake-v1 before the other words.")
    settings = {
        **_of_file(asked["file"]),
        **{name: value for name, value in asked.items() if value is not None},
    }
    if job.requeue and settings.get("resume") == "never":
        raise SettingsError(
            "With --resume never the job would begin anew each time that it goes back into the queue. Leave "
            "it out, with a folder of its own for --out, or give slurm --no-requeue."
        )
    if job.requeue and settings.get("time_limit") is not None:
        raise SettingsError(
            "With --time-limit the job would go back into the queue each time that so much has passed, until "
            "all steps are made. Leave it out, and say with --time how long a job lasts, or give slurm "
            "--no-requeue."
        )
    environment = asked["env"] or asked["other_env"] or settings.get("environment")
    if is_this_python and environment is not None and _STAND_IN not in environment:
        named.check_id(environment)
    ranks = ["--ranks", "$SLURM_NTASKS"] if job.srun is None else []
    words_of_train = [*_PACKAGE, kind, *ranks, *rest]
    if job.array is None:
        return words_of_train
    for name in _PLACES:
        _check_is_of_task(f"--{name.replace('_', '-')}", settings.get(name))
    if asked["out"] is None:
        from dist_classicrl.cli.run_folder import folder_of

        words_of_train += ["--out", f"{folder_of(environment or 'run')}-{TASK}"]
    if asked["seed"] is None:
        words_of_train += ["--seed", TASK]
    elif not any(_STAND_IN in str(value) for name, value in asked.items() if name not in _PLACES):
        raise SettingsError(
            f"All jobs of the array would make the same training, with --seed {asked['seed']}. Leave it out: "
            f"each job has its number as its seed. Or write '{TASK}', in single quotes, where they differ."
        )
    return words_of_train


def _check_for_batch(kind: str, context: click.Context, job: BatchJob) -> None:
    """Refuse what no job can do that SLURM starts, or that srun starts."""
    if context.params.get("ranks") is not None:
        raise SettingsError(
            f"The number of ranks is that of the tasks, --ntasks {job.ntasks}: leave --ranks out of the "
            f"words of {kind}."
        )
    if context.params.get("live"):
        raise SettingsError(
            "--live draws on a terminal, and a job has none: leave it out. `dist-classicrl show --live "
            "FOLDER` in a terminal shows what goes on there."
        )
    if kind == "sweep" or job.srun is None:
        return
    if job.srun == _NO_MPI:
        raise SettingsError(
            "With --srun none no rank of a training finds another one. Write --srun pmix for Open MPI, "
            "--srun pmi2 for MPICH, or leave it out, and mpirun starts them."
        )
    if kind == "train" and (given := options_given(context, is_of_launch)):
        raise SettingsError(
            f"{given[0]} is for ranks that {kind} starts, and with --srun it is SLURM that starts them. "
            "Leave one of the two out."
        )


def _check_is_of_task(option: str, folder: Any) -> None:
    """Refuse a folder that is the same for all jobs of an array."""
    from dist_classicrl.launch.slurm_script import TASK

    if folder is not None and _STAND_IN not in str(folder):
        raise SettingsError(
            f"All jobs of the array would write to {folder}. Write for instance {option} '{folder}-{TASK}', "
            "in single quotes."
        )


def _of_file(file: Path | None) -> dict[str, Any]:
    """Return the settings in the file of --config, unless each job has one of its own."""
    from dist_classicrl.cli import config

    return {} if file is None or _STAND_IN in str(file) else config.read_settings(file)


def _kind_of(words: Sequence[str]) -> tuple[str, list[str]]:
    """Return the command that the words are for, and the words."""
    first, *rest = words
    if first in _EXAMPLES:
        if not rest:
            raise SettingsError(f"What is there to {first}? Write for instance {_EXAMPLES[first]}.")
        return first, rest
    if first == "-m" and not (rest and all(name.isidentifier() for name in rest[0].split("."))):
        said = f", and {rest[0]!r} is none" if rest else ""
        raise SettingsError(
            f"After -m comes the name of a module{said}. Write for instance -m package.module."
        )
    return ("launch" if first.endswith(".py") or first == "-m" else "train"), [first, *rest]


def _parsed(kind: str, words: Sequence[str]) -> click.Context:
    """Return what `train`, `sweep` or `launch` takes the words for; refuse what it does not know."""
    from dist_classicrl.cli.commands import launch, sweep, train
    from dist_classicrl.launch.slurm_script import VARIABLE

    taker = {"train": train.command, "sweep": sweep.command, "launch": launch.command}[kind]
    stood_in = [VARIABLE.sub(_STAND_IN, word) for word in words]
    try:
        return taker.make_context(f"dist-classicrl {kind}", stood_in)
    except click.NoSuchOption as error:
        if not any(error.option_name in (*param.opts, *param.secondary_opts) for param in command.params):
            raise
        raise SettingsError(
            f"{error.option_name} is an option of slurm, and stands among the words of {kind}. Options of "
            f"slurm come before these: dist-classicrl slurm {error.option_name} ... -- {words[0]} ..."
        ) from error
