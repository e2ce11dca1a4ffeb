"""The command `python -m dist_classicrl launch`: its arguments, and what they mean."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from dist_classicrl.distributed.hosts import Host, read_hostfile
from dist_classicrl.distributed.launcher import find_launcher
from dist_classicrl.distributed.supervisor import LONGEST_DELAY, Plan, Supervisor, say
from dist_classicrl.errors import LauncherError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes."""
    parser.add_argument(
        "-n",
        "--ranks",
        type=_whole_number,
        metavar="N",
        help="number of ranks, one of them the server (default: all slots of the hostfile, or SLURM's tasks)",
    )
    parser.add_argument("--hostfile", metavar="FILE", help="hosts, one in each line, such as `node1 slots=4`")
    parser.add_argument(
        "--max-restarts",
        type=_count,
        default=Plan.max_restarts,
        metavar="N",
        help="how often to start again when the whole job has died (default: %(default)s)",
    )
    parser.add_argument(
        "--restart-delay",
        type=_seconds,
        default=Plan.delay,
        metavar="SECONDS",
        help=f"before the first restart, doubled each time up to {LONGEST_DELAY:g} (default: %(default)g)",
    )
    parser.add_argument(
        "--state-dir",
        type=Path,
        default=Plan.state_dir,
        metavar="FOLDER",
        help="where ranks tell how they end; all hosts must see it (default: ./%(default)s)",
    )
    parser.add_argument(
        "--grace",
        type=_seconds,
        default=Plan.grace,
        metavar="SECONDS",
        help="for the job to end when its work is done or a rank has failed; then it is killed (default: "
        "%(default)g)",
    )
    parser.add_argument(
        "--silence",
        type=_seconds,
        default=Plan.silence,
        metavar="SECONDS",
        help="without a sign of life of any rank, after which the job counts as dead; also the time to stop "
        "in after a signal (default: %(default)g)",
    )
    parser.add_argument(
        "--no-ulfm",
        dest="survive",
        action="store_false",
        help="let a death end the job, and start it again, even if this MPI can go on without the dead rank",
    )
    parser.add_argument(
        "--agent", metavar="COMMAND", help="what starts programs on other hosts (default: ssh)"
    )
    parser.add_argument(
        "--mca",
        nargs=2,
        action="append",
        default=[],
        metavar=("NAME", "VALUE"),
        help="a parameter of Open MPI",
    )
    parser.add_argument(
        "--mpirun-options",
        default="",
        metavar="WORDS",
        help='further words for mpirun; write --mpirun-options="--map-by node"',
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="show the mpirun command of each start")
    parser.add_argument("--dry-run", action="store_true", help="only show the mpirun command")
    parser.add_argument(
        "-m",
        dest="module",
        nargs=argparse.REMAINDER,
        metavar="MODULE",
        help="run a module, as python -m does, in place of a script; its arguments follow",
    )
    parser.add_argument(
        "script", nargs=argparse.REMAINDER, metavar="SCRIPT", help="a Python script, and its arguments"
    )


def plan_of(options: argparse.Namespace) -> Plan:
    """Return the plan that the command's arguments ask for.

    Raises
    ------
    LauncherError
        If they ask for something that cannot be.
    """
    words = ["-m", *options.module] if options.module else options.script
    if not words:
        raise LauncherError(
            "The script is missing. Write for instance `python -m dist_classicrl launch -n 4 train.py`."
        )
    if not options.module and not os.path.isfile(words[0]):
        raise LauncherError(
            f"There is no script {words[0]!r} in {os.getcwd()}. Options of launch come before the script."
        )
    hosts = None if options.hostfile is None else read_hostfile(options.hostfile)
    try:
        further = shlex.split(options.mpirun_options)
    except ValueError as error:
        raise LauncherError(
            f"--mpirun-options={options.mpirun_options!r} cannot be split ({error})."
        ) from error
    parameters = [word for pair in options.mca for word in ("--mca", *pair)]
    return Plan(
        launcher=find_launcher(),
        ranks=_ranks(options.ranks, hosts),
        words=tuple(words),
        hosts=hosts,
        agent=options.agent,
        options=(*parameters, *further),
        survive=options.survive,
        state_dir=options.state_dir,
        max_restarts=options.max_restarts,
        delay=options.restart_delay,
        grace=options.grace,
        silence=options.silence,
    )


def run(options: argparse.Namespace) -> int:
    """Run the command, with arguments as `add_arguments` describes them, and return the exit status."""
    try:
        plan = plan_of(options)
        if options.dry_run:
            hostfile = None if options.hostfile is None else Path(options.hostfile)
            sys.stdout.write(shlex.join(plan.command(plan.ranks, hostfile)) + "\n")
            return 0
        return Supervisor(plan, options.verbose).run()
    except LauncherError as error:
        say(str(error))
        return os.EX_USAGE


def _ranks(asked: int | None, hosts: Sequence[Host] | None) -> int:
    if asked is not None:
        return asked
    if hosts is not None and all(host.slots is not None for host in hosts):
        return sum(host.slots or 0 for host in hosts)
    tasks = os.environ.get("SLURM_NTASKS", "")
    if tasks.isdecimal() and int(tasks) > 0:
        return int(tasks)
    raise LauncherError("How many ranks? Write for instance -n 4: a server and three workers.")


def _whole_number(text: str) -> int:
    number = _count(text)
    if number == 0:
        raise argparse.ArgumentTypeError("a job has at least 1 rank")
    return number


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0.0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return seconds
