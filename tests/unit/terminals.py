"""Programs that are given a terminal."""

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time


def run_on_terminal(command, look, timeout=60.0, columns=80, lines=24, **settings):
    """Run a command with a terminal of such a size; return its exit status and what the terminal got.

    `look` is called with the process and all that the terminal got, each time that it gets something.
    """
    ours, theirs = pty.openpty()
    os.set_blocking(ours, False)
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs, **settings}
    process = subprocess.Popen(command, start_new_session=True, **streams)
    os.close(theirs)
    got, deadline = b"", time.monotonic() + timeout
    try:
        while time.monotonic() < deadline:
            if select.select([ours], [], [], 0.1)[0]:
                try:
                    data = os.read(ours, 65536)
                except OSError:  # nobody has it open any more
                    break
                got += data
                look(process, got)
        return process.wait(timeout=max(0.1, deadline - time.monotonic())), got.decode()
    finally:
        process.kill()
        process.wait()
        os.close(ours)
