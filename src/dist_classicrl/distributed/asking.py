"""Commands that are run on several hosts at once, by ssh or what stands in for it, with what they write."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import IO

_POLL_SECONDS = 0.05
_ENDING_SECONDS = 1.0


class Asked:
    """Commands under way.

    Parameters
    ----------
    commands : mapping of str to sequence of str
        By host: the whole command on this machine, such as ``["ssh", "node1", "true"]``.
    """

    def __init__(self, commands: Mapping[str, list[str]]) -> None:
        self._files: dict[str, IO[bytes]] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._troubles: dict[str, str] = {}
        for name, command in commands.items():
            self._files[name] = tempfile.TemporaryFile()
            try:
                self._processes[name] = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=self._files[name],
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                self._troubles[name] = str(error)

    def __enter__(self) -> Asked:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def wait(
        self,
        seconds: float,
        is_answered: Callable[[str], bool] = lambda output: False,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        """Wait until each command has ended, or `is_answered` finds in its output what is asked for.

        For `seconds` at most, or until `is_over`, which is asked again and again.
        """
        deadline = time.monotonic() + seconds
        missing = list(self._processes)
        while time.monotonic() < deadline and not is_over():
            missing = [
                name for name in missing if self.status(name) is None and not is_answered(self.output(name))
            ]
            if not missing:
                return
            time.sleep(_POLL_SECONDS)

    def output(self, name: str) -> str:
        """Return what the command for a host has written so far, or why there is none."""
        if name in self._troubles:
            return self._troubles[name]
        file = self._files[name].fileno()
        return os.pread(file, os.fstat(file).st_size, 0).decode(errors="replace")

    def status(self, name: str) -> int | None:
        """Return the exit status of the command for a host; None if it has not ended, or not begun."""
        process = self._processes.get(name)
        return None if process is None else process.poll()

    def end(self) -> None:
        """Kill what has not ended."""
        for process in self._processes.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        for process in self._processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):  # one that hangs in the kernel stays behind
                process.wait(timeout=_ENDING_SECONDS)
        for file in self._files.values():
            file.close()
