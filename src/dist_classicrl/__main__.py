"""The command line of the package: `python -m dist_classicrl COMMAND`."""

from __future__ import annotations

import sys

from dist_classicrl.cli.main import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
