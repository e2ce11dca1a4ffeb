"""What a result depends on besides its settings: the machine, and the versions of packages."""

from __future__ import annotations

import os
import platform
import socket
from importlib import metadata
from pathlib import Path

from dist_classicrl._hints import usable_cores
from dist_classicrl._version import __version__

_PACKAGES = ("numpy", "numba", "gymnasium", "mpi4py", "scipy", "matplotlib")
_PROCESSORS = Path("/proc/cpuinfo")


def this_machine() -> dict[str, str]:
    """Return host, system, processor, and the versions of Python, this package and what it stands on."""
    about = {
        "host": socket.gethostname(),
        "system": f"{platform.system()} {platform.release()}",
        "processor": f"{_processor()}, {usable_cores()} of {os.cpu_count()} cores usable",
        "Python": platform.python_version(),
        "dist_classicrl": __version__,
    }
    for name in _PACKAGES:
        try:
            about[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return about


def _processor() -> str:
    """Return the name of the processor, or of its kind where the system tells no more."""
    try:
        lines = _PROCESSORS.read_text().splitlines()
    except OSError:
        return platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
