"""What scripts/benchmark takes, and the names of all that it measures. Needs the standard library alone."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "suite.json"
CASES = {
    "learning": (
        "FrozenLake 4x4",
        "FrozenLake 8x8",
        "Taxi",
        "CliffWalking",
        "Blackjack",
        "TicTacToe",
        "Garnet 10,000 x 100",
        "Garnet 1,000,000 x 4",
    ),
    "c": ("FrozenLake 8x8", "Taxi", "CliffWalking", "Garnet 1,000"),
    "planning": ("FrozenLake 8x8", "Taxi", "Garnet 1,000 x 4", "Garnet 10,000 x 10"),
    "policy": ("FrozenLake 8x8", "Taxi"),
}
NO_CARDS = (
    "--card is refused: nothing of this package runs on graphics cards yet, so there is nothing to measure."
)


def parse(arguments: Sequence[str], description: str | None = None) -> argparse.Namespace:
    """Read the arguments; ends the program where they are wrong, and after --help and --list.

    The result has `full` (bool), `only` (list of "subject/case") and `output` (path, or None).
    """
    parser = argparse.ArgumentParser(
        prog="scripts/benchmark",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    length = parser.add_mutually_exclusive_group()
    length.add_argument(
        "--quick", action="store_true", help="less than ten minutes on two cores: the default"
    )
    length.add_argument("--full", action="store_true", help="longer and more runs of the same")
    length.add_argument(
        "--card", action="store_true", help="refused: nothing here runs on graphics cards yet"
    )
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", default=[], help="subjects, or single cases as --list names them"
    )
    parser.add_argument("--list", action="store_true", help="print the names of all cases, and end")
    parser.add_argument(
        "--output",
        type=Path,
        help="JSON file; by default that of the page, which is drawn anew, and none with --only",
    )
    given = parser.parse_args(arguments)
    if given.card:
        parser.error(NO_CARDS)
    names = [f"{subject}/{case}" for subject, cases in CASES.items() for case in cases]
    if given.list:
        parser.exit(message="\n".join(names) + "\n")
    for name in given.only:
        if name not in CASES and name not in names:
            parser.error(
                f"--only: there is no {name!r}; the subjects are {', '.join(CASES)}, and --list has all"
            )
    given.only = [n for n in names if not given.only or n in given.only or n.partition("/")[0] in given.only]
    if given.output is None and len(given.only) == len(names):
        given.output = RESULTS
    return given
