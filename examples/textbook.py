"""Draw the figures of Sutton and Barto, "Reinforcement learning: an introduction" (2nd edition, 2018).

    python textbook.py                         all that a table can learn, some minutes
    python textbook.py --figures 6.5 6.6       these alone
    python textbook.py --quick                 fewer repetitions: half a minute, once all is compiled

One picture each is written to the folder `--out`, and checks.md, a table of numbers: what the book says or an
exact computation gives, and what was found. Where one is not met the status is 1. The numbers are
those of the book's examples, and of the figures where there is no example; textbook_chapters has a function
for each, whose text says how it is drawn, and where it differs from the book.
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from mpi4py import MPI
from textbook_chapters import FIGURES
from textbook_chapters.common import Check

from dist_classicrl.plotting import save


def main() -> int:
    """Draw, check, and return the exit status."""
    arguments = parse_arguments()
    logging.basicConfig(level=logging.ERROR)
    checks = []
    for name in arguments.figures or FIGURES:
        figure, found = FIGURES[name](arguments.quick)
        print(f"{save(figure, arguments.out / f'{name}.png')}", flush=True)
        checks += [(name, check) for check in found]
    table = table_of(checks)
    (arguments.out / "checks.md").write_text(table, encoding="utf-8")
    print(table, end="")
    wrong = [name for name, check in checks if not check.holds]
    if wrong:
        print(f"not met: {len(wrong)} of {len(checks)} numbers, of {', '.join(dict.fromkeys(wrong))}")
    return 1 if wrong else 0


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Draw the figures of Sutton and Barto, and check them.")
    parser.add_argument(
        "--figures", nargs="+", choices=FIGURES, metavar="NUMBER", help=f"of {', '.join(FIGURES)}"
    )
    parser.add_argument("--out", type=Path, default=Path("textbook"), help="folder (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, and wider tolerances")
    arguments = parser.parse_args()
    if MPI.COMM_WORLD.size > 1:
        if MPI.COMM_WORLD.rank == 0:
            told = (
                f"One process draws them, and these are {MPI.COMM_WORLD.size} ranks. Start it without mpirun."
            )
            print(told, file=sys.stderr, flush=True)
        parser.exit(2)
    return arguments


def table_of(checks: list[tuple[str, Check]]) -> str:
    """Return the numbers as a table in Markdown, which is easy to read as it is."""
    rows = [("figure", "number", "expected", "found", "tolerance", "by", "")]
    rows.append(("---",) * len(rows[0]))
    rows += [(name, *check.cells()) for name, check in checks]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
    return "".join(f"| {line} |\n" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
