"""Go on under a Python that is new enough and whole. Any Python 3 must be able to read this file."""

import os
import sys

OLDEST = (3, 10)
# Parts of the standard library that some systems leave out, as Debian's python3-minimal does.
NEEDED = ("ctypes", "html", "json", "shutil", "ssl", "subprocess", "urllib", "xml")


def require_python():
    """Return if this Python will do; otherwise start the script again with one that is new enough."""
    missing = [name for name in NEEDED if not can_import(name)]
    if missing:
        sys.exit(
            "%s lacks parts of its standard library: %s. Install all of it (Debian: apt-get install python3)"
            % (sys.executable, ", ".join(missing))
        )
    if sys.version_info < OLDEST:
        start_newer_python()
        sys.exit(
            "Python %d.%d or newer is needed; this is %s, and PATH has no newer one. "
            "Where one is elsewhere, write: /path/to/python3 %s"
            % (OLDEST[0], OLDEST[1], sys.version.split()[0], sys.argv[0])
        )


def tell(text):
    """Print a text whose reader may end before it has read all of it, as `head` does."""
    if sys.stdout is None:  # closed, as by >&-
        sys.exit("Standard output is closed. Let it go to a file, with > FILE.")
    try:
        print(text)
    except BrokenPipeError:
        pass
    flush()


def flush():
    """Write out what was printed. What a reader that has ended did not read goes nowhere."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # There Python flushes what is left, at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def start_newer_python():
    """Start the script again with the newest Python on PATH; return if none is new enough."""
    import shutil
    import subprocess

    for minor in range(20, OLDEST[1] - 1, -1):
        path = shutil.which("python3.%d" % minor)
        # A name on PATH is not yet a Python: version managers leave names that only explain themselves.
        if path and subprocess.call([path, "-c", ""], stderr=subprocess.DEVNULL) == 0:
            os.execv(path, [path] + sys.argv)


def can_import(name):
    """Tell whether a module is there."""
    try:
        __import__(name)
    except ImportError:
        return False
    return True
