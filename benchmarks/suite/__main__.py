"""Measure the suite: scripts/benchmark, in .venv."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import common

import dist_classicrl
from suite import page, peers
from suite.form import FULL, QUICK, Effort
from suite.options import CASES, RESULTS, ROOT, parse

VERSIONS = ("gymnasium", "numba", "numpy", "scipy")


def main() -> None:
    """Measure what the arguments choose, print a table of each case, and write what there is to write."""
    given = parse(sys.argv[1:])
    # Who has it set compiles every module in every process, which is not what start-up is about.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    kept = _kept(given.output) if given.merge else []
    effort = FULL if given.full else QUICK
    failed = peers.set_up()
    rows: list[dict[str, Any]] = []
    broken: list[str] = []
    begin = time.perf_counter()
    with peers.Peers(failed) as others, tempfile.TemporaryDirectory() as folder:
        settings = {
            "version": dist_classicrl.__version__,
            "gcc": _first_line("gcc", "--version"),
            "mpi": _first_line("mpirun", "--version"),
            "peers": _versions(others),
            "not_installed": failed,
        }
        for name in given.only:
            subject, _, case = name.partition("/")
            print(f"==> {name} ({time.perf_counter() - begin:.0f} s)", flush=True)
            run = import_module(f"suite.{subject}").run
            try:
                row = _measured(lambda: run(case, effort, others, folder), effort)  # noqa: B023
            except Exception:  # the others are measured all the same, and the status tells
                traceback.print_exc()
                broken.append(name)
                continue
            rows.append(row)
            print(page.table_of(row), flush=True)
            if given.merge:  # what was measured before somebody ended this is kept
                common.save(given.output, in_order([*kept, *rows]), **settings)
    if given.output is not None:
        common.save(given.output, in_order([*kept, *rows]), **settings)
        if given.output.resolve() == RESULTS:
            page.write()
    if broken:
        sys.exit(f"Not measured, for the errors above: {', '.join(broken)}")


def _versions(others: peers.Peers) -> dict[str, str]:
    try:
        return others.ask("versions", names=[*VERSIONS, *peers.PEERS])
    except peers.LeftOutError:
        return {}


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the last row of each case, in the order of the cases."""
    newest = {(row["subject"], row["case"]): row for row in rows}
    names = [(subject, case) for subject, cases in CASES.items() for case in cases]
    return [newest[name] for name in names if name in newest]


def _kept(path: Path) -> list[dict[str, Any]]:
    """Return the rows that a file has. Ends the program where they are of another machine."""
    if not path.exists():
        return []
    data = json.loads(path.read_text())
    here = json.loads(json.dumps(common.machine()))
    other = {name: value for name, value in data["machine"].items() if value != here[name]}
    if other:
        sys.exit(
            f"--merge: the figures of {path} are of another machine ({other}, and this one has "
            f"{ {name: here[name] for name in other} }). Measure all anew, without --only and --merge, or "
            "give another file with --output."
        )
    return list(data["results"])


def _measured(run: Callable[[], dict[str, Any]], effort: Effort) -> dict[str, Any]:
    """Return a row with when, of what, and under which load it was measured."""
    begin, before = time.perf_counter(), os.getloadavg()[0]
    row = run()
    about = {
        "when": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
        "commit": _first_line("git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"),
        "effort": effort.name,
        "seconds": round(time.perf_counter() - begin, 1),
        "load": [round(before, 2), round(os.getloadavg()[0], 2)],
    }
    return {**row, "measured": about}


def _first_line(*command: str) -> str | None:
    beside = Path(sys.executable).with_name(command[0])
    program = str(beside) if beside.exists() else shutil.which(command[0])
    if program is None:
        return None
    done = subprocess.run(
        [program, *command[1:]], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    return done.stdout.splitlines()[0] if done.returncode == 0 and done.stdout else None


if __name__ == "__main__":
    main()
