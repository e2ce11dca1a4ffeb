"""`dist-classicrl launch`: start a script on many ranks and see it through."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from dist_classicrl.cli.option_types import Real, Whole
from dist_classicrl.launch import plan as launch
from dist_classicrl.launch.plan import LaunchOptions
from dist_classicrl.launch.restart import LONGEST_DELAY, Supervisor

_HELP = """\
Start a script on many ranks and see it through.

It is started with the mpirun of the MPI that mpi4py uses, goes on after a
death where that MPI can, and is started again from its last checkpoint when
it dies as a whole. Options come before the script; what follows is the
script's.

\b
  python -m dist_classicrl launch -n 16 --hostfile hosts train.py --checkpoint-dir saved

In a batch script of SLURM, so that its warning arrives and the job goes on
where it stopped:

\b
  #SBATCH --ntasks=16 --signal=B:USR1@120 --requeue
  exec python -m dist_classicrl launch train.py --checkpoint-dir saved
"""

_EPILOG = """\
\b
Exit status: 0 if the work was done, whatever died; what the script ended
with; 75 after a signal, where the script has saved its run, and 130 after
Ctrl-C; 2 if nothing could be started; otherwise that of mpirun, after the
last restart.
"""


def launch_options(ranks: str) -> list[click.Parameter]:
    """Return the options that say how a job is started, for every command that starts one.

    Parameters
    ----------
    ranks : str
        How many there are by default, in words.
    """
    default = LaunchOptions()

    def option(*words: str, help: str, shows: str = "", **kind: Any) -> click.Option:
        return click.Option(words, help=f"{help}  [default: {shows}]" if shows else help, **kind)

    return [
        option(
            "-n",
            "--ranks",
            type=Whole(1),
            metavar="N",
            help="Number of ranks, one of them the server.",
            shows=ranks,
        ),
        option("--hostfile", metavar="FILE", help="Hosts, one in each line, such as `node1 slots=4`."),
        option(
            "--max-restarts",
            type=Whole(0),
            default=default.max_restarts,
            metavar="N",
            help="How often to start again when the whole job has died.",
            shows=str(default.max_restarts),
        ),
        option(
            "--restart-delay",
            type=Real(0.0),
            default=default.restart_delay,
            metavar="SECONDS",
            help=f"Before the first restart, doubled each time up to {LONGEST_DELAY:g}.",
            shows=f"{default.restart_delay:g}",
        ),
        option(
            "--state-dir",
            type=click.Path(path_type=Path),
            default=default.state_dir,
            metavar="FOLDER",
            help="Where ranks tell how they end; all hosts must see it.",
            shows=f"./{default.state_dir}",
        ),
        option(
            "--grace",
            type=Real(0.0),
            default=default.grace,
            metavar="SECONDS",
            help="For the job to end when its work is done or a rank has failed; then it is killed.",
            shows=f"{default.grace:g}",
        ),
        option(
            "--silence",
            type=Real(0.0),
            default=default.silence,
            metavar="SECONDS",
            help="Without a sign of life of any rank, after which the job counts as dead; also the time to "
            "stop in after a signal.",
            shows=f"{default.silence:g}",
        ),
        option(
            "--no-ulfm",
            is_flag=True,
            help="Let a death end the job, and start it again, even if this MPI can go on without the dead "
            "rank.",
        ),
        option(
            "--agent", metavar="COMMAND", help="What starts programs on other hosts.", shows="ssh"
        ),
        option(
            "--network",
            metavar="NETWORK",
            help="Over which network the hosts talk: 10.1.0.0/16, or a card, such as eth1, of all hosts.",
            shows="what the MPI chooses",
        ),
        option(
            "--mca",
            nargs=2,
            multiple=True,
            metavar="NAME VALUE",
            help="A parameter of Open MPI.",
        ),
        option(
            "--mpirun-options",
            default="",
            metavar="WORDS",
            help='Further words for mpirun; write --mpirun-options="--map-by node".',
        ),
    ]  # fmt: skip


def taken_from(options: dict[str, Any]) -> LaunchOptions:
    """Return what `launch_options` have gathered, and take it out of `options`."""
    options["survive"] = not options.pop("no_ulfm")
    names = [field.name for field in fields(LaunchOptions)]
    return LaunchOptions(**{name: options.pop(name) for name in names})


class _ScriptCommand(click.Command):
    """A command whose options end at a script, or at `-m`, and whose other words are the script's."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Let the script's words begin at `-m`, where that comes first."""
        takes = {
            word: param.nargs
            for param in self.params
            if isinstance(param, click.Option) and not param.is_flag
            for word in param.opts
        }
        place = 0
        while place < len(args) and args[place].startswith("-") and args[place] not in ("--", "-m"):
            place += 1 + takes.get(args[place], 0)
        if args[place : place + 1] == ["-m"]:
            args = [*args[:place], "--", *args[place:]]
        return super().parse_args(ctx, args)


@click.command(
    "launch",
    cls=_ScriptCommand,
    context_settings={"allow_interspersed_args": False},
    options_metavar="[OPTIONS] [-n N]",
    help=_HELP,
    epilog=_EPILOG,
)
@click.option("-v", "--verbose", is_flag=True, help="Show the mpirun command of each start.")
@click.option("--dry-run", is_flag=True, help="Only show the mpirun command.")
@click.argument(
    "script", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGUMENTS] | -m MODULE [ARGUMENTS]"
)
def command(verbose: bool, dry_run: bool, script: tuple[str, ...], **options: Any) -> int:
    """Start a script on many ranks and see it through."""
    asked = taken_from(options)
    plan = launch.launch_plan(asked, launch.checked_script(script))
    if dry_run:
        click.echo(launch.shown(plan, asked))
        return 0
    return Supervisor(plan, verbose).run()


command.params = [*launch_options("the hostfile's slots, or SLURM's tasks"), *command.params]
