"""Go on under a Python that is new enough. Any Python 3 must be able to read this file."""

import os
import shutil
import subprocess
import sys

OLDEST = (3, 10)


def require_python():
    """Return if this Python is new enough; otherwise start the script again with one that is."""
    if sys.version_info >= OLDEST:
        return
    for minor in range(20, OLDEST[1] - 1, -1):
        path = shutil.which("python3.%d" % minor)
        # A name on PATH is not yet a Python: version managers leave names that only explain themselves.
        if path and subprocess.call([path, "-c", ""], stderr=subprocess.DEVNULL) == 0:
            os.execv(path, [path] + sys.argv)
    sys.exit(
        "Python %d.%d or newer is needed; this is %s, and PATH has no newer one. "
        "Where one is elsewhere, write: /path/to/python3 %s"
        % (OLDEST[0], OLDEST[1], sys.version.split()[0], sys.argv[0])
    )
