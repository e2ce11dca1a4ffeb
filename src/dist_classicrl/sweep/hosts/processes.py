"""Helper processes of one host, which end with the process that made them."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from numba.core.compiler_lock import global_compiler_lock

from dist_classicrl.errors import DistClassicRLError
from dist_classicrl.process.signals import postponed
from dist_classicrl.process.stop import INTERRUPTED

logger = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
_ENDING_SECONDS = 60.0  # for which one may save a long run, on a slow disk too; a second signal ends it
_POLL_SECONDS = 0.02
# A process that has neither told nor done anything for as long waits for what never comes, as for a thread
# of a library, which a forked process has not.
_IDLE_SECONDS = 300.0
_IDLE_RUNS = 20.0  # or as long as so many runs take, where these may wait for something themselves
_LOOK_SECONDS = 0.1
_LONG_SECONDS = 1.0  # after longer, one of both processes may have been stopped: that time does not count


class Helpers:
    """Processes that were forked from this one."""

    def __init__(self) -> None:
        self._running: set[int] = set()
        self._seen: dict[int, tuple[list[str], float]] = {}  # ticks, and for how long they are the same
        self._looked = 0.0

    def start(self, work: Callable[[], None]) -> None:
        """Let a new process do `work`, which knows all that this one does, and end."""
        parent = os.getpid()
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:  # as after `>&-`
                stream.flush()
        # Not while another thread compiles: in the new process nobody would ever give that lock back.
        with global_compiler_lock, postponed(), warnings.catch_warnings():
            # Threads that numerical libraries have begun are no part of what the new process does.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
            if child:
                self._running.add(child)
                return
        status = 1
        try:
            _end_with(parent)
            work()
            status = 0
        except KeyboardInterrupt:
            status = INTERRUPTED
        except SystemExit:  # by a signal, in order
            status = os.EX_TEMPFAIL
        except DistClassicRLError as error:
            print(f"A helper process has ended: {error}", file=sys.stderr)
        except BaseException:
            traceback.print_exc()
        finally:
            with suppress(OSError, ValueError, AttributeError):
                sys.stderr.flush()
            os._exit(status)

    def ended(self) -> list[int]:
        """Return of each that has ended since this was asked last its exit status, or -n after signal n."""
        statuses = []
        for child in list(self._running):
            try:
                ended, status = os.waitpid(child, os.WNOHANG)
            except ChildProcessError:  # somebody else has waited for it
                ended, status = child, 0
            if ended:
                self._running.discard(child)
                statuses.append(os.waitstatus_to_exitcode(status))
        return statuses

    def kill_idle(self, longest: Callable[[], float]) -> list[int]:
        """Kill those that have not been at work for long, by what was seen each time that this was asked.

        Parameters
        ----------
        longest : callable
            Returns how many seconds a run of the study has taken.

        Returns
        -------
        list of int
            The ids of those that were killed, which `ended` will tell.
        """
        now = time.monotonic()
        passed = now - self._looked
        if passed < _LOOK_SECONDS:
            return []
        self._looked = now
        killed = []
        for child in self._running:
            ticks = self.busy_ticks(child)
            before, idle = self._seen.get(child, ([], 0.0))
            if not ticks or ticks != before:
                idle = 0.0
            elif passed < _LONG_SECONDS:
                idle += passed
            if idle > _IDLE_SECONDS and idle > _IDLE_RUNS * longest():
                logger.warning("A forked process has done nothing for %.0f seconds: it is ended.", idle)
                os.kill(child, signal.SIGKILL)
                killed.append(child)
                idle = 0.0
            self._seen[child] = ticks, idle
        return killed

    @staticmethod
    def busy_ticks(child: int) -> list[str]:
        """Return for how long the main thread of one was on a core, where the system tells; [] if stopped."""
        with suppress(OSError), open(f"/proc/{child}/task/{child}/stat") as file:
            state, *fields = file.read().rpartition(")")[2].split()
            return [] if state in "Tt" else fields[10:12]  # utime and stime of proc(5)
        return []

    def lost(self) -> int:
        """Return how many of those that `ended` returns have ended by a signal or an error."""
        return sum(status != 0 for status in self.ended())

    def end(self) -> None:
        """End those that still run, by SIGTERM those that heed it in a while; an exception ends the while."""
        try:
            self._kill(signal.SIGTERM)
            end = time.monotonic() + _ENDING_SECONDS
            self.lost()
            while self._running and time.monotonic() < end:
                time.sleep(_POLL_SECONDS)
                self.lost()
        finally:
            self._kill(signal.SIGKILL)
            for child in self._running:
                with suppress(ChildProcessError):
                    os.waitpid(child, 0)
            self._running.clear()

    def _kill(self, number: int) -> None:
        for child in self._running:
            with suppress(ProcessLookupError):
                os.kill(child, number)


@contextmanager
def helpers() -> Iterator[Helpers]:
    """Give a place for helper processes, none of which is left at the end of the block."""
    those = Helpers()
    try:
        yield those
    finally:
        those.end()


def _end_with(parent: int) -> None:
    """Let SIGTERM end this process, and the kernel when its parent has ended, however that was."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # whatever the program does then
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
