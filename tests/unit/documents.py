"""The code in the README, the guide for contributors and the pages of the site, and a program that runs it.

`python documents.py FOLDER PAGE ...` runs each page as one program, in a folder of its own in FOLDER, and
writes what rank N printed to output-N.txt there. Under mpirun every rank runs all pages.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
REFERENCE = ROOT / "docs" / "reference" / "index.md"
#: By the module that they are imported from, the names that the reference calls public.
PUBLIC = {
    module: set(re.findall(r"`(\w+)`", what))
    for module, what in re.findall(
        r"^\| `([\w.]+)` \| (.*) \|$", REFERENCE.read_text().split("| import from |")[1], re.MULTILINE
    )
}
_FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block: where its text begins, its language, and whether the fence is indented."""

    page: Path
    line: int
    language: str
    text: str
    indented: bool

    def __str__(self):
        return f"{self.page.name}:{self.line}"


def blocks(page, language=None):
    """Return the fenced blocks of a page, all or those of one language."""
    text = page.read_text()
    found = [
        Block(page, text.count("\n", 0, match.start(3)) + 1, match[2], match[3], bool(match[1]))
        for match in _FENCE.finditer(text)
    ]
    return [block for block in found if language in (None, block.language)]


def prose(page):
    """Return a page without its fenced blocks."""
    return _FENCE.sub("", page.read_text())


def output(folder, page, rank=0):
    """Return what a rank printed on a page that was run in `folder`."""
    return (folder / page.stem / f"output-{rank}.txt").read_text()


def run(page, folder, rank):
    """Run the Python of a page in its own folder; tracebacks have the page's line numbers."""
    place = folder / page.stem
    place.mkdir(parents=True, exist_ok=True)
    os.chdir(place)
    known = {"__name__": "__main__"}
    with open(f"output-{rank}.txt", "w") as file, contextlib.redirect_stdout(file):
        for block in blocks(page, "python"):
            source = "\n" * (block.line - 1) + block.text
            exec(compile(source, str(page), "exec", dont_inherit=True), known)


def main():
    """Run the pages that the command line names."""
    rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK", 0)))
    folder, *pages = map(Path, sys.argv[1:])
    for page in pages:
        run(page.resolve(), folder.resolve(), rank)


if __name__ == "__main__":
    main()
