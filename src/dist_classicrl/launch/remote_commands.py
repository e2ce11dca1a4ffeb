"""Commands that run on several hosts at once, by ssh or another agent, and what they write."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from dist_classicrl.errors import LauncherError
from dist_classicrl.process.signals import postponed

_POLL_SECONDS = 0.05
_ENDING_SECONDS = 1.0


class RemoteCommands:
    """Commands under way: by host, the whole command on this machine, such as ``["ssh", "node1", "true"]``.

    What they write goes into files that are not kept open, so there may be many.
    """

    def __init__(self, commands: Mapping[str, list[str]]) -> None:
        try:
            self._folder = tempfile.TemporaryDirectory(prefix="remote-", ignore_cleanup_errors=True)
        except OSError as error:
            raise LauncherError(
                f"No folder can be made for what hosts answer ({error}). Let TMPDIR name a folder that you "
                "may write to."
            ) from error
        self._paths = {name: Path(self._folder.name, str(number)) for number, name in enumerate(commands)}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.not_started: dict[str, str] = {}
        """By host, why a command could not be started."""
        try:
            for name, command in commands.items():
                self._start(name, command)
        except BaseException:
            self.end()
            raise

    def _start(self, name: str, command: list[str]) -> None:
        try:
            with self._paths[name].open("wb") as file, postponed():
                self._processes[name] = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            self.not_started[name] = str(error)

    def __enter__(self) -> RemoteCommands:
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

        For `seconds` at most, or until `is_over`, which is called again and again.
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
        if name in self.not_started:
            return self.not_started[name]
        try:
            return self._paths[name].read_bytes().decode(errors="replace")
        except OSError as error:
            return str(error)

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
        self._folder.cleanup()
