"""`dist-classicrl launch`: start a script on many ranks and see it through."""

from __future__ import annotations

from typing import Any

import click

from dist_classicrl.cli.launch_options import taken_from, takes_launch
from dist_classicrl.launch import plan as launch
from dist_classicrl.launch.restart import Supervisor

_HELP = """\
Start a script on many ranks and see it through.

It is started with the mpirun of this Python environment, or else the first
on PATH, goes on after a death where that MPI can, and is started again from
its last checkpoint when it dies as a whole. Options come before the script;
what follows is the script's.

\b
  python -m dist_classicrl launch -n 16 --hostfile hosts train.py --checkpoint-dir saved

In a batch script of SLURM, so that its warning arrives and the run is saved
(`dist-classicrl slurm` prints one whose job is queued again and goes on):

\b
  #SBATCH --ntasks=16 --signal=B:USR1@120
  exec python -m dist_classicrl launch train.py --checkpoint-dir saved
"""

_EPILOG = """\
\b
Exit status: 0 if the work was done, whatever died; what the script ended
with; 75 after a signal, where the script has saved its run, and 130 after
Ctrl-C; 2 if nothing could be started; otherwise that of mpirun, after the
last restart.
"""


class ScriptCommand(click.Command):
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
            place += 1 + _words_after(args[place], takes)
        if args[place : place + 1] == ["-m"]:
            args = [*args[:place], "--", *args[place:]]
        return super().parse_args(ctx, args)


def _words_after(word: str, takes: dict[str, int]) -> int:
    """Return how many words belong to an option that is written so, such as -n, --ranks, -n2 or -vn."""
    if word in takes or word.startswith("--"):
        return takes.get(word, 0)
    # The first letter that takes something has what follows it in the word, if anything does.
    at = next((at for at, letter in enumerate(word) if f"-{letter}" in takes), -1)
    return takes[f"-{word[at]}"] if at == len(word) - 1 else 0


@click.command(
    "launch",
    cls=ScriptCommand,
    context_settings={"allow_interspersed_args": False},
    options_metavar="[OPTIONS] [-n N]",
    help=_HELP,
    epilog=_EPILOG,
)
@takes_launch("the hostfile's slots, or SLURM's tasks")
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
        click.echo(plan.shown())
        if (text := plan.written_hostfile()) is not None:
            said = f"In place of {asked.hostfile} this mpirun gets a file with these lines:\n{text}"
            click.echo(said, err=True, nl=False)
        return 0
    return Supervisor(plan, verbose).run()
