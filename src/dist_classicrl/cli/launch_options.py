"""The options that say how a job is started, for all commands that start one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import click

from dist_classicrl.cli.option_types import Real, Whole
from dist_classicrl.launch.plan import LaunchOptions
from dist_classicrl.launch.restart import LONGEST_DELAY

_Function = TypeVar("_Function", bound=Callable[..., Any])

_OF_HOSTS: dict[str, dict[str, Any]] = {
    "--hostfile": {"metavar": "FILE", "help": "Hosts, one in each line, such as `node1 slots=4`."},
    "--agent": {"metavar": "COMMAND", "help": "What starts programs on other hosts.  [default: ssh]"},
    "--network": {
        "metavar": "NETWORK",
        "help": "Over which network the hosts talk: 10.1.0.0/16, or a card, such as eth1, of all hosts.  "
        "[default: what the MPI chooses]",
    },
}


def takes_hosts(function: _Function) -> _Function:
    """Let a command take `hostfile`, `agent` and `network`: where it starts ranks, and how these talk."""
    for word, about in reversed(_OF_HOSTS.items()):
        function = click.option(word, **about)(function)
    return function


def launch_options(ranks: str) -> list[click.Parameter]:
    """Return the options that say how a job is started, for a command that starts the ranks of a training.

    Parameters
    ----------
    ranks : str
        How many there are by default, in words.
    """
    default = LaunchOptions()
    hostfile, agent, network = (click.Option([word], **about) for word, about in _OF_HOSTS.items())

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
        hostfile,
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
        agent,
        network,
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
