"""A hook of MkDocs: the pages of benchmarks are drawn from the results whenever the site is built."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


def on_pre_build(config: Any) -> None:
    """Draw what has changed before MkDocs reads the pages."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        from suite import page

        page.write()
    finally:
        sys.path.remove(str(BENCHMARKS))
