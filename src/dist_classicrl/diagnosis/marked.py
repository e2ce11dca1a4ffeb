"""What a program says to the one that started it: JSON after a mark, among whatever else it writes."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

MARK = "dist_classicrl says: "


def write(**data: Any) -> None:
    """Write data in a line of its own to standard output."""
    sys.stdout.flush()
    os.write(1, f"{MARK}{json.dumps(data)}\n".encode())  # at once: lines of several ranks must not be mixed


def read(output: str) -> list[dict[str, Any]]:
    """Return what stands behind the mark in each line of an output; a line that is cut off is left out."""
    found = []
    for line in output.splitlines():
        _, is_marked, text = line.partition(MARK)
        if is_marked:
            try:
                found.append(json.loads(text))
            except ValueError:  # not written to its end yet, or cut off by the end of the job
                continue
    return found
