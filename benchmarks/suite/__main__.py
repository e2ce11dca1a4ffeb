"""Measure the suite: scripts/benchmark, in .venv."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Any

import common

import dist_classicrl
from suite import c, learning, page, peers, planning, policy
from suite.form import FULL, QUICK
from suite.options import RESULTS, ROOT, parse

SUBJECTS = {"learning": learning.run, "c": c.run, "planning": planning.run, "policy": policy.run}
VERSIONS = ("gymnasium", "numba", "numpy", "scipy")


def main() -> None:
    """Measure what the arguments choose, print a table of each case, and write what there is to write."""
    given = parse(sys.argv[1:])
    effort = FULL if given.full else QUICK
    failed = peers.set_up()
    rows: list[dict[str, Any]] = []
    begin, load = time.perf_counter(), os.getloadavg()
    with peers.Peers(failed) as others, tempfile.TemporaryDirectory() as folder:
        for name in given.only:
            subject, _, case = name.partition("/")
            print(f"==> {name} ({time.perf_counter() - begin:.0f} s)", flush=True)
            rows.append(SUBJECTS[subject](case, effort, others, folder))
            print(page.table_of(rows[-1]), flush=True)
        try:
            versions = others.ask("versions", names=[*VERSIONS, *peers.PEERS])
        except peers.LeftOutError:
            versions = {}
    settings = {
        "effort": "full" if given.full else "quick",
        "rounds": effort.rounds,
        "seconds": effort.seconds,
        "limit": effort.limit,
    }
    if given.output is None:
        return
    common.save(
        given.output,
        rows,
        **settings,
        version=dist_classicrl.__version__,
        commit=_first_line("git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"),
        date=time.strftime("%Y-%m-%d", time.gmtime()),
        minutes=round((time.perf_counter() - begin) / 60, 1),
        load={"before": load, "after": os.getloadavg()},
        gcc=_first_line("gcc", "--version"),
        peers=versions,
        not_installed=failed,
    )
    if given.output.resolve() == RESULTS:
        page.write()


def _first_line(*command: str) -> str | None:
    if shutil.which(command[0]) is None:
        return None
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return done.stdout.splitlines()[0] if done.returncode == 0 and done.stdout else None


if __name__ == "__main__":
    main()
