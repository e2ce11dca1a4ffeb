"""Whether a process would hear a signal, as Linux tells it."""

import re
from pathlib import Path


def listens(pid, number):
    """Whether process `pid` has a handler for signal `number`."""
    caught = re.search(r"^SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return bool(int(caught[1], 16) >> number - 1 & 1)
