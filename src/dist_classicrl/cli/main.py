"""The group of commands `dist-classicrl`, of which only the one that is typed is imported."""

from __future__ import annotations

import importlib
import io
import sys
from collections.abc import Sequence

import click

from dist_classicrl._streams import open_closed_output
from dist_classicrl._version import __version__
from dist_classicrl._words import nearest
from dist_classicrl.cli import errors

# Each is a module of this package by the same name; this is its line in the list of commands.
COMMANDS = {
    "train": "Train on one core or on many ranks; typed again, it goes on.",
    "sweep": "Train with many settings and seeds; typed again, it goes on.",
    "compare": "Compare settings of a study by their scores.",
    "evaluate": "Play the greedy policy of a trained model.",
    "show": "Show policy and values as text.",
    "export": "Write a trained model as npz, csv or plain Python.",
    "plot": "Draw learning curves, maps and timelines.",
    "report": "Speed-up, efficiency and communication of one or several runs.",
    "bench": "Measure what this machine makes, in a minute.",
    "doctor": "Check MPI, files, threads and memory, with a remedy for each trouble.",
    "profile": "Measure the communication between ranks.",
    "slurm": "Print a fitting sbatch script.",
    "launch": "Start a script of your own on many ranks and see it through.",
}


_HELP = """\
Tabular reinforcement learning on one core or on many MPI ranks.

\b
  dist-classicrl train FrozenLake-v1 --ranks 4 --total-steps 1e8
  dist-classicrl show runs/FrozenLake-v1
  dist-classicrl plot runs/FrozenLake-v1

Each command has a --help of its own, with a full example. It is also typed
as `python -m dist_classicrl`.
"""


class LazyGroup(click.Group):
    """A group whose commands are modules of `cli.commands`, each with a `command`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"dist_classicrl.cli.commands.{cmd_name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is named first in `args`; name the nearest where there is none."""
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            ctx.fail(
                f"There is no command {args[0]!r}.{nearest(args[0], COMMANDS)} "
                f"The commands are {', '.join(COMMANDS)}."
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    help=_HELP,
    epilog=errors.EXIT_STATUS,
)
@click.version_option(__version__, prog_name="dist-classicrl")
def cli() -> None:
    """Tabular reinforcement learning on one core or on many MPI ranks."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, and return the exit status; see `--help`.

    SystemExit is raised where the command raised it, as `TrainingStopped` is one. So is whatever a rank of an
    MPI job raised, unless the user has to change something: then all its ranks end in order.
    """
    args = None if arguments is None else list(arguments)
    open_closed_output()
    _let_any_name_be_written()
    try:
        status = cli.main(args, prog_name="dist-classicrl", standalone_mode=False)
    except BaseException as caught:
        error = _meant(caught)
        if errors.is_of_unread_output(error):
            return errors.DONE
        is_left_to_job = errors.is_of_job() and errors.exit_status(error) != errors.USAGE
        if isinstance(error, SystemExit) or is_left_to_job:
            if error is caught:
                raise
            raise error from error.__cause__
        return errors.show(error)
    return status if isinstance(status, int) else errors.DONE


def _let_any_name_be_written() -> None:
    """Let names of files that are not of the terminal's letters come out as the bytes that they are.

    Python does that by itself in the locale C.UTF-8, and raises an error in others, such as en_US.UTF-8.
    """
    for stream, errors_ in ((sys.stdout, "surrogateescape"), (sys.stderr, "backslashreplace")):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors=errors_)


def _meant(error: BaseException) -> BaseException:
    """Return what was raised before click made an error of its own of a KeyboardInterrupt."""
    is_abort = isinstance(error, click.exceptions.Abort)
    return error.__cause__ if is_abort and error.__cause__ is not None else error
