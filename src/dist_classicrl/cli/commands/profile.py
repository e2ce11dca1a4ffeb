"""`dist-classicrl profile`: how fast ranks talk."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from dist_classicrl._words import counted
from dist_classicrl.cli import output
from dist_classicrl.cli.launch_options import ranks_option, takes_hosts
from dist_classicrl.cli.option_types import Kind, Real, Whole, option
from dist_classicrl.cli.signals import cleaned_up

if TYPE_CHECKING:
    from dist_classicrl.mpi_tools.communication_profile import CommunicationProfile

_HELP = """\
Measure the communication between ranks.

Latency and bandwidth by message size: of messages between rank 0 and a rank on its host, and between each two
hosts, by one rank of each (of more than eight hosts, each with that of rank 0 and with the next one); and of
collective operations of all ranks, until the last one has finished. The ranks are started under the right
mpirun, unless this is a rank of a job already.

\b
    dist-classicrl profile --ranks 4
    dist-classicrl profile --ranks 16 --hostfile hosts --sizes 8,64KiB,4MiB --json > profile.json
    mpirun -n 4 dist-classicrl profile
"""

_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "ki": 1024, "mi": 1024**2, "gi": 1024**3}
_MOST_BYTES = 1 << 30


class Sizes(Kind):
    """Numbers of bytes, separated by commas."""

    name = "sizes"
    allowed = "sizes separated by commas, such as 8,64KiB,1MiB, of at most 1GiB"

    def of_text(self, text: str) -> tuple[int, ...]:
        """Read sizes with or without a unit."""
        sizes = []
        for word in text.split(","):
            found = re.fullmatch(r"(\d+)\s*([kmg]i?)?b?", word.strip().lower())
            size = 0 if found is None else int(found[1]) * _UNITS[found[2] or ""]
            if not 0 < size <= _MOST_BYTES:
                raise ValueError(f"Look at {word.strip()!r}.")
            sizes.append(size)
        return tuple(dict.fromkeys(sizes))


@click.command("profile", help=_HELP)
@ranks_option(2, "How many are started.", "the hosts' slots, SLURM's tasks, or cores + 1")
@option(
    "--sizes",
    type=Sizes(),
    default="8,1KiB,64KiB,1MiB",
    help="Bytes of a message, and in a collective operation of what each rank gives.",
)
@option(
    "--iterations",
    type=Whole(1),
    default=1000,
    metavar="N",
    help="How often each is measured, at most; the median counts.",
)
@option("--seconds", type=Real(0.0), default=0.5, help="After which each is measured no more.")
@takes_hosts
@option(
    "--timeout",
    type=Real(1.0),
    default=60.0,
    metavar="SECONDS",
    help="How long to wait for a rank that says nothing.",
    shown="60.0",
)
@click.option("--json", "as_json", is_flag=True, help="Write JSON in place of a table.")
def command(ranks: int | None, hostfile: str | None, as_json: bool, **asked: Any) -> None:
    """Measure the communication between ranks."""
    from dist_classicrl._hints import rank_of_environment
    from dist_classicrl.diagnosis import communication, cores
    from dist_classicrl.launch.hosts import read_hostfile

    hosts = () if hostfile is None else read_hostfile(hostfile)
    n_ranks = ranks or max(2, cores.default_ranks(hosts))
    plan = communication.ProfilePlan(ranks=n_ranks, hosts=hosts, **asked)
    if rank_of_environment() is None:
        with cleaned_up():
            measured = communication.measure_in_job(plan)
        _show(measured, as_json)
        return
    if any(given is not None for given in (ranks, hostfile, plan.agent, plan.network)):
        raise click.UsageError(
            "--ranks, --hostfile, --agent and --network have no place in a job that runs already."
        )
    found = communication.measure_here(plan)
    if found is not None:
        _show(found, as_json)


def _show(found: CommunicationProfile, as_json: bool) -> None:
    if as_json:
        output.show_json(found.to_dict())
        return
    rows = [_row(each, found.hosts) for each in found.measurements]
    n_hosts = len(set(found.hosts))
    title = f"Communication of {counted(len(found.hosts), 'rank')} on {counted(n_hosts, 'host')}"
    output.show_table(["operation", "ranks", "bytes", "median us", "least us", "MB/s", "times"], rows, title)


def _row(each: Any, hosts: Sequence[str]) -> list[str]:
    pair = len(each.ranks) == 2 and each.operation == "point-to-point"
    where = "one host" if each.same_host else " - ".join(hosts[rank] for rank in each.ranks)
    return [
        f"{each.operation}, {where}" if pair else each.operation,
        "-".join(map(str, each.ranks)) if pair else f"all {len(each.ranks)}",
        f"{each.bytes:,}",
        f"{each.seconds * 1e6:,.1f}",
        f"{each.fastest * 1e6:,.1f}",
        f"{each.bandwidth / 1e6:,.1f}" if each.bytes else "-",
        f"{each.iterations:,}",
    ]
