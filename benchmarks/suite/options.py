"""What scripts/benchmark takes, and the names of all that it measures. Needs the standard library alone."""

from __future__ import annotations

import argparse
import ast
import shutil
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "benchmarks"
RESULTS = SCRIPTS / "results" / "suite.json"
CARD = SCRIPTS / "card.py"
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
    "counts": ("per step",),
    "memory": ("1,000,000 x 8",),
    "server": ("256 entries", "4,000,000 entries", "round trip"),
    "scaling": ("256 entries", "1,000,000 entries", "100,000,000 entries"),
    "startup": ("1 process", "4 ranks"),
    "curves": ("FrozenLake 8x8, merging", "Taxi, merging", "FrozenLake 8x8, engines"),
    "planning": ("FrozenLake 8x8", "Taxi", "Garnet 1,000 x 4", "Garnet 10,000 x 10"),
    "policy": ("FrozenLake 8x8", "Taxi"),
    "failure": ("a worker", "the server"),
}
NOT_SCRIPTS = ("common", "slow_link")
"""Of which others make use."""


def scripts() -> dict[str, str]:
    """Return the other scripts of the folder by name, each with the first line of what it says of itself."""
    found = {}
    for path in sorted(SCRIPTS.glob("*.py")):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        if path.stem not in NOT_SCRIPTS:
            found[path.stem] = text.partition("\n")[0]
    return found


def script_command(name: str, arguments: Sequence[str]) -> list[str]:
    """Return the words that run a script of the folder; its figures go to `results`, unless they say."""
    said = {word.partition("=")[0] for word in arguments}
    output = (
        [] if said & {"--output", "--help", "-h"} else ["--output", str(RESULTS.with_name(f"{name}.json"))]
    )
    return [str(SCRIPTS / f"{name}.py"), *arguments, *output]


def why_no_card() -> str | None:
    """Say why nothing can be measured on a graphics card here; None if it can be tried."""
    if not CARD.exists():
        return "nothing of this package runs on graphics cards yet, so there is nothing to measure"
    if shutil.which("nvidia-smi") is None and not Path("/dev/nvidiactl").exists():
        return "this machine has no graphics card that CUDA could use: there is no nvidia-smi here"
    return None


def parse(arguments: Sequence[str], description: str | None = None) -> argparse.Namespace:
    """Read the arguments; ends the program where they are wrong, and after --help and --list.

    The result has `full` and `card` (bool), `only` (list of "subject/case") and `output` (path, or None).
    """
    parser = argparse.ArgumentParser(
        prog="scripts/benchmark",
        usage="%(prog)s [options], or %(prog)s SCRIPT [options of that script]",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    length = parser.add_mutually_exclusive_group()
    length.add_argument(
        "--quick", action="store_true", help="some ten minutes on two idle cores: the default"
    )
    length.add_argument("--full", action="store_true", help="longer and more runs of the same")
    length.add_argument("--card", action="store_true", help="what a graphics card does: benchmarks/card.py")
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", default=[], help="subjects, or single cases as --list names them"
    )
    parser.add_argument(
        "--merge",
        action="store_true",
        help="with --only: put what was measured into the page's figures, in place of the same of before",
    )
    parser.add_argument("--list", action="store_true", help="print the names of all cases and scripts")
    parser.add_argument(
        "--output",
        type=Path,
        help="JSON file; by default that of the page, which is drawn anew, and none with --only",
    )
    given = parser.parse_args(arguments)
    reason = why_no_card() if given.card else None
    if reason:
        parser.error(f"--card is refused: {reason}. Leave it out, and the processor is measured.")
    names = [f"{subject}/{case}" for subject, cases in CASES.items() for case in cases]
    if given.list:
        told = [f"  {name:<24} {text}" for name, text in scripts().items()]
        lines = [*names, "", "scripts/benchmark SCRIPT [options], where --help says which:", *told]
        print("\n".join(lines))
        parser.exit()
    for name in given.only:
        if name not in CASES and name not in names:
            parser.error(
                f"--only: there is no {name!r}; the subjects are {', '.join(CASES)}, and --list has all"
            )
    if given.merge and not given.only:
        parser.error("--merge goes with --only; without it everything is measured, and nothing kept")
    given.only = [n for n in names if not given.only or n in given.only or n.partition("/")[0] in given.only]
    if given.output is None and (given.merge or len(given.only) == len(names)):
        given.output = RESULTS
    return given
