"""The options that say how a job is started, for all commands that start one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from dist_classicrl.cli.option_types import Decorator, Place, Real, Whole, option, together
from dist_classicrl.launch.plan import LaunchOptions
from dist_classicrl.launch.restart import LONGEST_DELAY


def ranks_option(least: int, text: str, default: str = "") -> Decorator:
    """Return the option that says how many ranks there are; `default` says how many without it."""
    return option("-n", "--ranks", type=Whole(least), metavar="N", help=text, shown=default)


_DEFAULT = LaunchOptions()

_HOSTFILE = option("--hostfile", metavar="FILE", help="Hosts, one in each line, such as `node1 slots=4`.")
_AGENT = option("--agent", metavar="COMMAND", help="What starts programs on other hosts.", shown="ssh")
_NETWORK = option(
    "--network",
    metavar="NETWORK",
    help="Over which network the hosts talk: 10.1.0.0/16, or a card, such as eth1, of all hosts.",
    shown="what the MPI chooses",
)

takes_hosts = together(_HOSTFILE, _AGENT, _NETWORK)
"""Lets a command take `hostfile`, `agent` and `network`: where it starts ranks, and how these talk."""


def takes_launch(ranks: str) -> Decorator:
    """Let a command that starts the ranks of a training take how; `ranks` says how many are the default."""
    return together(
        ranks_option(1, "Number of ranks, one of them the server.", ranks),
        _HOSTFILE,
        option(
            "--max-restarts",
            type=Whole(0),
            default=_DEFAULT.max_restarts,
            metavar="N",
            help="How often to start again when the whole job has died.",
        ),
        _seconds("restart_delay", f"Before the first restart, doubled each time up to {LONGEST_DELAY:g}."),
        option(
            "--state-dir",
            type=Place(path_type=Path),
            default=_DEFAULT.state_dir,
            metavar="FOLDER",
            help="Where ranks tell how they end; all hosts must see it.",
            shown=f"./{_DEFAULT.state_dir}",
        ),
        _seconds(
            "grace", "For the job to end when its work is done or a rank has failed; then it is killed."
        ),
        _seconds(
            "silence",
            "Without a sign of life of any rank, after which the job counts as dead; also the time to stop "
            "in after a signal.",
        ),
        _seconds("start_limit", "The same while MPI starts, where ranks wait for each other."),
        option(
            "--no-ulfm",
            is_flag=True,
            help="Let a death end the job, and start it again, even if this MPI can go on without the dead "
            "rank.",
        ),
        _AGENT,
        _NETWORK,
        option("--mca", nargs=2, multiple=True, metavar="NAME VALUE", help="A parameter of Open MPI."),
        option(
            "--mpirun-options",
            default="",
            metavar="WORDS",
            help='Further words for mpirun; write --mpirun-options="--map-by node".',
        ),
    )


def _seconds(name: str, text: str) -> Decorator:
    word, default = f"--{name.replace('_', '-')}", getattr(_DEFAULT, name)
    return option(word, type=Real(0.0), default=default, metavar="SECONDS", help=text)


_NAMES = [field.name for field in fields(LaunchOptions)]


def is_of_launch(param: click.Parameter) -> bool:
    """Return whether a parameter of a command is one of `takes_launch`."""
    return param.name == "no_ulfm" or param.name in _NAMES


def options_given(context: click.Context, is_meant: Callable[[click.Parameter], bool]) -> list[str]:
    """Return which options that are meant were typed, each by its longest name."""
    return [
        max(param.opts, key=len)
        for param in context.command.params
        if is_meant(param) and context.get_parameter_source(param.name or "") == ParameterSource.COMMANDLINE
    ]


def taken_from(options: dict[str, Any]) -> LaunchOptions:
    """Return what `takes_launch` has gathered, and take it out of `options`."""
    options["survive"] = not options.pop("no_ulfm")
    return LaunchOptions(**{name: options.pop(name) for name in _NAMES})
