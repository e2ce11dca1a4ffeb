"""Kill a sweep at random moments, all of it or a process; its tables are those of a quiet one.

usage: python tests/faults/kill_sweeps.py [--kills 30] [--seed 0] [--ranks 0]

With `--ranks` the sweep runs under mpirun, else with helper processes of its own.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from dist_classicrl.launch.launcher import launch_environment
from dist_classicrl.launch.mpirun import mpirun_command
from dist_classicrl.process.jobs import run_job

STUDY = """
environment = "FrozenLake-v1"
total_steps = 1_000_000
seeds = {seeds}
points = 5
[vary]
learning_rate = [0.1, "per_visit:0.7"]
discount_factor = [0.9, 0.95]
"""
_SECONDS = 300.0


def command(study, folder):
    return [sys.executable, "-m", "dist_classicrl", "sweep", str(study), "--out", str(folder), "--quiet"]


def tables(folder):
    return [(folder / name).read_bytes() for name in ("results.csv", "curves.csv")]


def processes_of(pid):
    """Return a process and all below it."""
    found = [pid]
    for task in found:
        try:
            found += map(int, Path(f"/proc/{task}/task/{task}/children").read_text().split())
        except OSError:
            continue
    return found


def kill_once(line, rng, longest):
    """Start a sweep and kill it, or one of its processes; return whether it has ended all the same."""
    sweep = subprocess.Popen(
        line, env=launch_environment(), stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        sweep.wait(rng.uniform(0.3, longest))
        return True
    except subprocess.TimeoutExpired:
        everyone = processes_of(sweep.pid)
        kills_one = rng.random() < 0.4 and len(everyone) > 1
        for pid in [rng.choice(everyone)] if kills_one else everyone:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if not kills_one:
            sweep.wait()
            return False
        return sweep.wait(_SECONDS) == 0


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=40, help="of the study")
    asked = parser.parse_args(arguments)
    rng = random.Random(asked.seed)
    with tempfile.TemporaryDirectory() as place:
        study, quiet = Path(place) / "study.toml", Path(place) / "quiet"
        study.write_text(STUDY.format(seeds=asked.seeds))
        began = time.monotonic()
        assert run_job(command(study, quiet), timeout=_SECONDS, env=launch_environment()).returncode == 0
        longest = (time.monotonic() - began) * 0.5
        kills = rounds = 0
        while kills < asked.kills:
            rounds += 1
            folder = Path(place) / f"killed-{rounds}"
            line = command(study, folder)
            if asked.ranks:
                line = [*mpirun_command(asked.ranks), *line]
            for _ in range(6):
                if kills == asked.kills or kill_once(line, rng, longest):
                    break
                kills += 1
            ended = run_job(line, timeout=_SECONDS, env=launch_environment())
            assert ended.returncode == 0, ended.output
            assert tables(folder) == tables(quiet), "other tables than without kills"
            print(f"{kills} kills, {rounds} studies: the same tables each time", flush=True)


if __name__ == "__main__":
    main()
