"""`dist-classicrl doctor`: what is wrong here, and what to do about it."""

from __future__ import annotations

import os
import textwrap
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from dist_classicrl.cli import output
from dist_classicrl.cli.launch_options import ranks_option, takes_hosts
from dist_classicrl.cli.option_types import Decorator, Folder, Kind, Real, Text, Whole, option
from dist_classicrl.cli.signals import cleaned_up
from dist_classicrl.diagnosis.plan import TrainingPlan
from dist_classicrl.settings import Settings

if TYPE_CHECKING:
    from dist_classicrl.diagnosis.findings import Finding

FAILED = 1

_HELP = """\
Check MPI, files, threads and memory, with a remedy for each trouble.

Starts ranks as a training would, and lets one of three be killed to see whether the others survive. Writes
a few small files into the checkpoint folder and removes them.

With a hostfile, or on several nodes of SLURM, it asks all hosts first: whether they answer and reach each
other, have the same versions, and see the same folders. Then it compares their clocks, and measures the
network between each two of them.

\b
    dist-classicrl doctor
    dist-classicrl doctor --ranks 16 --hostfile hosts --checkpoint-dir /scratch/run
    dist-classicrl doctor --ranks 8 --states 1e7 --actions 6 --dtype float32 --json
"""

_EPILOG = """\
exit status: 0 if all is well or there are warnings only; 1 if something does not work; 2 for a mistake in the
command.
"""

_SETTINGS = ("algorithm", "dtype", "buffer_size", "replay_ratio", "prefetch_factor")
_WIDTH = 100
_COLORS = {"ok": "green", "warning": "yellow", "failure": "red"}


def _setting(name: str, metavar: str, text: str = "", kind: Kind | None = None) -> Decorator:
    """Return an option for one of the agent's settings, with its default."""
    word, default = f"--{name.replace('_', '-')}", getattr(Settings, name)
    return option(word, type=kind, default=default, metavar=metavar, help=text)


@click.command("doctor", help=_HELP, epilog=_EPILOG)
@ranks_option(1, "Of the training.", "the hosts' slots, SLURM's tasks, or cores + 1")
@takes_hosts
@option(
    "--checkpoint-dir",
    type=Folder(),
    default=TrainingPlan.checkpoint_dir,
    metavar="FOLDER",
    help="Where checkpoints are to be: a path or a URL.",
    shown="this folder",
)
@option(
    "--keep-last",
    type=Whole(1),
    default=TrainingPlan.keep_last,
    metavar="N",
    help="How many of the newest checkpoints stay.",
)
@option(
    "--state-dir",
    type=Text(),
    default=TrainingPlan.state_dir,
    metavar="FOLDER",
    help="Where ranks tell how they end, as of launch.",
    shown=f"./{TrainingPlan.state_dir}",
)
@click.option("--states", type=Whole(1), metavar="N", help="Rows of the table.")
@click.option("--actions", type=Whole(1), metavar="N", help="Columns of the table.")
@_setting("algorithm", "NAME")
@_setting("dtype", "TYPE", "Of the table.")
@_setting("buffer_size", "N", "Of the replay memory.", Whole(1))
@_setting("replay_ratio", "RATIO", "Replayed updates per step.", Real(0.0))
@_setting("prefetch_factor", "N", "Pushes in flight.", Whole(1))
@option(
    "--timeout",
    "seconds",
    type=Real(1.0),
    default=TrainingPlan.seconds,
    metavar="SECONDS",
    help="How long anything that is tried may take.",
)
@click.option("--json", "as_json", is_flag=True, help="Write JSON in place of text.")
def command(hostfile: str | None, as_json: bool, **asked: Any) -> int:
    """Check MPI, files, threads and memory, with a remedy for each trouble."""
    from dist_classicrl._hints import rank_of_environment
    from dist_classicrl.diagnosis import cores
    from dist_classicrl.diagnosis.examination import examine
    from dist_classicrl.diagnosis.findings import is_fit
    from dist_classicrl.launch.hosts import read_hostfile, slurm_hosts
    from dist_classicrl.launch.launcher import find_launcher
    from dist_classicrl.launch.network import network_words

    if rank_of_environment() is not None:
        raise click.UsageError("doctor starts ranks by itself. Type it without mpirun.")
    if (asked["states"] is None) != (asked["actions"] is None):
        raise click.UsageError("--states and --actions belong together.")
    settings = Settings(**{name: asked.pop(name) for name in _SETTINGS})
    hosts = () if hostfile is None else read_hostfile(hostfile)
    asked["ranks"] = asked["ranks"] or cores.default_ranks(hosts)
    nodes = slurm_hosts() if hostfile is None else ()
    if asked["network"] is not None:
        network_words(find_launcher(), asked["network"])  # raises where there is no such network
    plan = TrainingPlan(settings=settings, hostfile=hostfile, hosts=hosts, nodes=nodes, **asked)
    findings = []
    with cleaned_up(), closing(examine(plan)) as examination:
        for finding in examination:
            findings.append(finding)
            if not as_json:
                _show(finding)
    fit = is_fit(findings)
    if as_json:
        output.show_json({"ok": fit, "findings": [finding.to_dict() for finding in findings]})
    else:
        counts = [sum(finding.status == status for finding in findings) for status in _COLORS]
        click.echo("{} ok, {} warnings, {} failures".format(*counts))
    return 0 if fit else FAILED


def _show(finding: Finding) -> None:
    status = f"{finding.status:<8}"
    if not os.environ.get("NO_COLOR"):
        status = click.style(status, fg=_COLORS[finding.status], bold=finding.status != "ok")
    first, *rest = _lines(f"{finding.check}: {finding.found}")
    click.echo(f"{status}{first}")
    remedies = "\n".join(f"-> {remedy}" for remedy in finding.remedy.splitlines())
    for line in [*rest, *_lines(remedies)]:
        click.echo(f"{'':8}{line}")


def _lines(text: str) -> list[str]:
    """Return a text in lines that fit; words such as paths are not broken."""
    return [
        line
        for paragraph in text.splitlines()
        for line in textwrap.wrap(paragraph, _WIDTH, break_long_words=False, break_on_hyphens=False)
    ]
