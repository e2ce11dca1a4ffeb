"""`dist-classicrl train`: train by a command, on one core or on many ranks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from dist_classicrl._hints import promised_size, rank_of_environment
from dist_classicrl.cli import errors, options
from dist_classicrl.cli.launch_options import is_of_launch, options_given, taken_from, takes_launch
from dist_classicrl.cli.option_types import OutFolder, Place, Whole, option
from dist_classicrl.cli.synonyms import check_one_word_each, own_word
from dist_classicrl.launch.launcher import start_few_threads

_HELP = """\
Train on one core or on many ranks; typed again, it goes on.

ENV is a Gymnasium id, module:name for an environment of your own (a
function or class that makes it, or a TabularMDP, FunctionMDP,
CompiledSimulator or environment itself), or garnet, pocket_cube or
tictactoe, which are built in.

\b
  dist-classicrl train FrozenLake-v1 --ranks 4 --total-steps 1e8 \\
      --epsilon linear:1.0:0.05:fraction=0.3 \\
      --env-arg map_name=8x8 --seed 1 --out runs/lake

\b
  mpirun -n 16 dist-classicrl train FrozenLake-v1 --total-steps 1e10
  dist-classicrl train --config runs/lake/config.toml --out runs/again

With --ranks it starts itself under the mpirun that fits, and again if the
job dies; started by mpirun or srun, it takes part. The folder of the run
gets config.toml with all settings, metrics.jsonl and metrics.csv, the
checkpoints, and in the end model.npz and result.json.

Stopped by Ctrl-C, SIGTERM, SIGUSR1, at a time limit, or when its terminal
goes, it saves its state, and the same command goes on from there. When it
is done, it says so; with more --total-steps it goes on.
"""


class _Sections(click.Command):
    """A command whose help shows its options in sections, and which takes each by one of its names."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the options."""
        check_one_word_each(args)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, section by section."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                sections.setdefault(_section(param), []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


def _section(param: click.Parameter) -> str:
    option = options.OPTIONS.get(param.name or "")
    if option is not None:
        return option.section
    return "Starting ranks" if is_of_launch(param) else options.RUN


@click.command(
    "train",
    cls=_Sections,
    help=_HELP,
    epilog=errors.EXIT_STATUS,
    context_settings={"token_normalize_func": own_word},
)
@click.argument("env", required=False)
@click.option("--environment", "other_env", metavar="ENV", help="The same as ENV.")
@click.option(
    "--env-arg", "env_args", multiple=True, metavar="NAME=VALUE", help="An argument for what makes ENV."
)
@click.option(
    "-c", "--config", "file", type=Place(path_type=Path), metavar="FILE", help="Settings as a TOML file."
)
@option(
    "-o",
    "--out",
    type=OutFolder(),
    metavar="FOLDER",
    help="The folder of the run.",
    shown="runs/ENV",
)
@click.option("-v", "--verbose", is_flag=True, help="A line per worker below the bar, and more log lines.")
@click.option("--live", is_flag=True, help="Show it on the whole screen of the terminal.")
@click.option("-q", "--quiet", is_flag=True, help="Nothing but warnings and errors.")
@click.option("--status", type=Place(path_type=Path), hidden=True)
@click.option("--started", is_flag=True, hidden=True)
@click.option("--env-if-none", hidden=True)  # of scripts/train
@click.option("--ranks-if-none", type=Whole(1), hidden=True)
@takes_launch("the hostfile's slots, SLURM's tasks, or 1: this process alone")
def command(
    env: str | None,
    other_env: str | None,
    env_args: tuple[str, ...],
    file: Path | None,
    out: Path | None,
    verbose: bool,
    live: bool,
    quiet: bool,
    status: Path | None,
    started: bool,
    env_if_none: str | None,
    ranks_if_none: int | None,
    **others: Any,
) -> int:
    """Train on one core or on many ranks; typed again, it goes on."""
    if promised_size() > 1 and rank_of_environment() is not None:
        start_few_threads()
    from dist_classicrl.cli.requested_run import gather
    from dist_classicrl.cli.start import is_rank, train
    from dist_classicrl.cli.training import Display

    if env is not None and other_env is not None:
        raise click.UsageError("ENV and --environment are the same: give one of them.")
    if quiet and verbose:
        raise click.UsageError(
            "--quiet shows nothing of the run and --verbose more of it: leave one of them out."
        )
    launch = taken_from(others)
    if promised_size() > 1 and is_rank(launch) and not started:
        _check_for_rank(launch.ranks)
    if live:
        from dist_classicrl.cli.live.screen import check_screen

        check_screen(quiet, is_rank(launch))
    run = gather(env or other_env, env_args, {**others, "ranks": launch.ranks}, file, out, env_if_none)
    if run.ranks is None and ranks_if_none is not None:
        run = replace(run, ranks=launch.ranks_of_place() or ranks_if_none)
    return train(run, launch, Display(quiet, verbose, is_live=live, status=status), started)


def _check_for_rank(ranks: int | None) -> None:
    """Refuse what is for a command that starts ranks, where this process is one."""
    given = options_given(
        click.get_current_context(),
        lambda param: is_of_launch(param) and (param.name != "ranks" or ranks != promised_size()),
    )
    if given:
        raise click.UsageError(
            f"{given[0]} is for ranks that this command starts, but mpirun or srun has "
            f"started it, as one of {promised_size()}. Leave it out, or type the command without mpirun or "
            "srun."
        )


command.params += [each.to_click() for each in options.OPTIONS.values()]
