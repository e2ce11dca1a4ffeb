"""Three emulated hosts that have a table divided between them, the third behind a slow link: what it costs.

    python tests/cluster/slow_link.py --rates 100mbit 20mbit

What the third host sends goes through a token bucket (`tc`) of each rate, in turns with none. Rows are
divided by a hash, so that two of three steps cross. Needs root, as emulated hosts do.
"""

import argparse
import json
import subprocess
import tempfile

import host_jobs
from hosts import Hosts
from test_divided_tables import PROGRAM

CARD = ["tc", "qdisc"]


def limit(hosts, rate):
    """Let the third host send no faster than that; None: as fast as it can."""
    subprocess.run(hosts.command("h3", [*CARD, "del", "dev", "eth0", "root"]), capture_output=True)
    if rate is not None:
        bucket = ["tbf", "rate", rate, "burst", "64kb", "latency", "300ms"]
        subprocess.run(hosts.command("h3", [*CARD, "add", "dev", "eth0", "root", *bucket]), check=True)


def said_by(hosts, **options):
    """Return what rank 0 said of a job of one rank a host."""
    with tempfile.TemporaryDirectory() as folder:
        slots = dict.fromkeys(hosts.names, 1)
        output = host_jobs.launch(hosts, folder, [PROGRAM, json.dumps(options)], slots=slots)
    return next(json.loads(line) for line in output.splitlines() if line.startswith('{"rank": 0,'))


def main():
    """Run all jobs and print what came of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rates", nargs="+", default=["100mbit", "20mbit"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=600_000, help="that are timed")
    arguments = parser.parse_args()
    with Hosts(3) as hosts:
        for _ in range(arguments.rounds):
            for rate in (None, *arguments.rates):
                limit(hosts, rate)
                before = hosts.carried()
                steps = [200_000, arguments.steps]
                said = said_by(hosts, states=100_000, steps=steps, train={"walkers": 4096})
                carried = (hosts.carried() - before) / sum(steps)
                print(
                    f"{rate or 'no limit'}: {said['rate'] / 1e6:.2f} M steps/s, "
                    f"waiting {said['waiting']:.2f}, {carried:.0f} bytes a step, table {said['digest'][:8]}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
