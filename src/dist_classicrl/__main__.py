"""The command line of the package: `python -m dist_classicrl COMMAND`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from dist_classicrl.distributed import launch

_LAUNCH = """\
Start a script on many ranks with the mpirun of the MPI that mpi4py uses, go on after a death where that MPI
can, and start the job again from its last checkpoint when it dies as a whole.

    python -m dist_classicrl launch -n 16 --hostfile hosts train.py --checkpoint-dir saved

In a batch script of SLURM, so that its warning arrives and the job goes on where it stopped:

    #SBATCH --ntasks=16 --signal=B:USR1@120 --requeue
    exec python -m dist_classicrl launch train.py --checkpoint-dir saved
"""

_LAUNCH_END = """\
exit status: 0 if the work was done, whatever died; what the script ended with; 75 after a signal, where the
script has saved its run, and 130 after Ctrl-C; otherwise that of mpirun, after the last restart.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; see `--help`.

    Parameters
    ----------
    arguments : sequence of str, optional
        `sys.argv[1:]` if left out.

    Returns
    -------
    int
        The exit status.
    """
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m dist_classicrl",
        description="Tabular reinforcement learning on one core or on many MPI ranks.\n\n"
        "    python -m dist_classicrl launch -n 16 train.py --steps 5000000 --checkpoint-dir saved",
        formatter_class=raw,
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    command = commands.add_parser(
        "launch",
        help="start a script on many ranks and see it through; `launch --help` has examples",
        description=_LAUNCH,
        epilog=_LAUNCH_END,
        formatter_class=raw,
        usage="%(prog)s [option ...] [-n N] script.py [argument ...]",
    )
    launch.add_arguments(command)
    command.set_defaults(run=launch.run)
    options = parser.parse_args(arguments)
    return int(options.run(options))


if __name__ == "__main__":
    sys.exit(main())
