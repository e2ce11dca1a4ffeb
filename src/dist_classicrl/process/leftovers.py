"""What a rank's script has started and not ended, such as a simulator of an environment that nobody closed.

It holds the pipes that the rank writes to, and until it ends mpirun waits for more from them.

python -m dist_classicrl.process.leftovers PID START [PID START ...]

ends processes, each told by its start as well, some seconds after the first of them, the rank, has ended.
"""

from __future__ import annotations

import os
import shlex
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from dist_classicrl._hints import rank_of_environment
from dist_classicrl.process.jobs import all_processes, command_of, is_running, parent_of, start_of

_OWN_END_SECONDS = 2.0  # many end by themselves when the one that started them has
_TERM_SECONDS = 1.0
_LONGEST_SECONDS = 600.0  # in which the rank itself ends
_POLL_SECONDS = 0.05
_TERMINALS = range(136, 144)  # major numbers of Linux's pseudo-terminals, of which Open MPI gives ranks one


def end_leftovers() -> None:
    """Let what this rank has started be ended when the rank has ended itself, if it holds the rank's output.

    What is to outlive a rank gets an output of its own. Only what this process has started counts, and what
    that has; nothing where this process is no rank, or without `/proc`.
    """
    own = os.getpid()
    if rank_of_environment() is None or not (held := _pipes(own)):
        return
    found = [pid for pid in _descendants(own) if held & _pipes(pid)]
    if found:
        words = [word for pid in (own, *found) for word in (str(pid), start_of(pid) or "")]
        nowhere = subprocess.DEVNULL
        with suppress(OSError):
            subprocess.Popen(
                [sys.executable, "-m", __name__, *words],
                stdin=nowhere,
                stdout=nowhere,
                start_new_session=True,
            )


def _pipes(pid: int) -> set[tuple[int, int]]:
    """Return which pipes, sockets and terminals a process writes its output and errors to."""
    held = set()
    for number in (1, 2):
        with suppress(OSError):
            state = os.stat(f"/proc/{pid}/fd/{number}")
            is_terminal = os.major(state.st_rdev) in _TERMINALS
            # Others, files for instance, nobody reads to their end.
            if is_terminal or stat.S_ISFIFO(state.st_mode) or stat.S_ISSOCK(state.st_mode):
                held.add((state.st_dev, state.st_ino))
    return held


def _descendants(pid: int) -> list[int]:
    """Return the processes that a process has started, and those that these have."""
    children: dict[int | None, list[int]] = {}
    for each in all_processes():
        children.setdefault(parent_of(each), []).append(each)
    found, left = [], [pid]
    while left:
        more = children.get(left.pop(), [])
        found += more
        left += more
    return found


def main(words: Sequence[str]) -> None:
    """Wait until the rank has ended, and end what it has left."""
    rank, *left = zip(words[::2], words[1::2], strict=True)
    _left_after(_LONGEST_SECONDS, [rank])
    for number, seconds in ((0, _OWN_END_SECONDS), (signal.SIGTERM, _TERM_SECONDS), (signal.SIGKILL, 0.0)):
        if number == signal.SIGTERM:
            _tell(left)
        for pid, _ in left:
            with suppress(ProcessLookupError, PermissionError):  # of another user, as with sudo
                os.kill(int(pid), number)
        if not (left := _left_after(seconds, left)):
            return


def _tell(left: Sequence[tuple[str, str]]) -> None:
    what = ", ".join(f"{shlex.join(command_of(int(pid)))!r} (process {pid})" for pid, _ in left)
    with suppress(OSError):
        sys.stderr.write(
            f"dist_classicrl: a rank has ended, and has left {what}, for which mpirun waits: it is ended. "
            "Let the environment's close() end what it has started, or start what is to go on with "
            "stdout=subprocess.DEVNULL and stderr=subprocess.DEVNULL.\n"
        )
        sys.stderr.flush()


def _left_after(seconds: float, processes: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return which of these processes still run after so many seconds; at once if none does."""
    deadline = time.monotonic() + seconds
    while True:
        left = [
            (pid, start) for pid, start in processes if is_running(int(pid)) and start_of(int(pid)) == start
        ]
        if not left or time.monotonic() >= deadline:
            return left
        time.sleep(_POLL_SECONDS)


if __name__ == "__main__":
    main(sys.argv[1:])
