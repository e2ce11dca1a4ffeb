"""Kill launchers at random moments, from their first, and show for how long what they started outlives them.

python tests/faults/kill_launchers.py --kills 60

The first launcher that leaves something behind, a process or a folder, ends the program.
"""

import argparse
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))

from background_job import BackgroundJob

from dist_classicrl.process.jobs import command_of, processes_of

RANKS = 3
LONGEST_LIFE = 3.0  # of a launcher; its ranks are there after about half a second, and have met after one
MOST_SECONDS = 60.0  # in which all has to be gone
SCRIPT = """
import time
from mpi4py import MPI
MPI.COMM_WORLD.Barrier()
time.sleep(600)
"""


def kill_one(folder, seconds):
    """Kill a launcher after so many seconds; return for how long a process of its job outlived it.

    AssertionError if something is left behind.
    """
    files, script = folder / "tmp", folder / "script.py"
    files.mkdir(exist_ok=True)
    script.write_text(SCRIPT)
    words = ["-m", "dist_classicrl", "launch", "-n", RANKS, script]
    with BackgroundJob(words, cwd=folder, env={"TMPDIR": str(files)}) as job:
        time.sleep(seconds)
        job.send(signal.SIGKILL)
        job.process.wait()
        killed = time.monotonic()
        while left := processes_of(job.job):
            lines = "\n".join(" ".join(command_of(pid)) for pid in left)
            assert time.monotonic() - killed < MOST_SECONDS, f"killed after {seconds:.3f} s, left:\n{lines}"
            time.sleep(0.01)
        outlived = time.monotonic() - killed
    assert not list(folder.glob(".dist_classicrl/*")), f"killed after {seconds:.3f} s"
    assert not list(files.glob("dist-classicrl-*")), f"killed after {seconds:.3f} s"
    return outlived


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--longest", type=float, default=LONGEST_LIFE, help="life of a launcher, in seconds")
    arguments = parser.parse_args()
    chance, outlived = random.Random(arguments.seed), []
    with tempfile.TemporaryDirectory(prefix="kill-launchers-") as folder:
        for _ in range(arguments.kills):
            outlived.append(kill_one(Path(folder), chance.uniform(0.0, arguments.longest)))
    outlived.sort()
    print(
        f"{len(outlived)} launchers killed; the last process of each outlived it by {outlived[-1]:.2f} s at "
        f"most, {outlived[len(outlived) // 2]:.2f} s in the median; nothing was left behind"
    )


if __name__ == "__main__":
    main()
