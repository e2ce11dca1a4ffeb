"""New ranks in place of lost ones: the server starts them with MPI_Comm_spawn, one at a time.

No survivor takes part. A replacement is a process of a world of its own, of size 1, which runs the same
program and talks to the server that started it over their intercommunicator.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import PurePath
from typing import Any

from dist_classicrl.errors import LauncherError
from dist_classicrl.launch import program
from dist_classicrl.launch.launcher import OF_THREADS
from dist_classicrl.process.parent import REPLACEMENT_VARIABLE

logger = logging.getLogger(__name__)

FIRST_DELAY = 1.0  # seconds from a loss to its replacement; doubled with every start until one has pushed
LONGEST_DELAY = 60.0
ARRIVAL_SECONDS = 120.0  # in which a replacement has to have started MPI; then the next one is tried
STRIKES = 3  # so many replacements in a row that came to nothing stop the replacing

_PASSED_ON = ("DIST_CLASSICRL_", "NUMBA_", "PYTHON", *OF_THREADS)
_NOT_TO_RUN_AGAIN = ("IPython", "ipykernel", "ipykernel_launcher", "ipython", "jupyter", "py", "pytest")


class Replacements:
    """Decides when a lost rank is replaced, starts the replacement, and takes it in when it is there.

    At most `limit` are started in all, by `begin`; that is by default `spawner(mark)`. The future that it
    returns has the intercommunicator to the replacement as its result, or what hindered it as its exception.

    Nothing here makes the server wait. With Open MPI 5 a spawn takes 1.2 s, 2.7 s on two busy cores, and as
    long as the new process needs until it starts MPI. That is waited for in a thread of its own: the longest
    pause that the server's loop made meanwhile was 0.1 s.
    """

    def __init__(
        self,
        limit: int,
        mark: str = "",
        clock: Callable[[], float] = time.monotonic,
        begin: Callable[[], Future[Any]] | None = None,
    ) -> None:
        self._limit = limit
        self._clock = clock
        self.started = 0
        self.stopped_because: str | None = None  # why none is started any more
        self._lost = 0
        self._delay = FIRST_DELAY
        self._due = 0.0
        self._strikes = 0
        self._awaited: Future[Any] | None = None
        self._deadline = 0.0
        self._attempts: list[Future[Any]] = []  # with those that are not awaited any more
        try:
            self._begin = spawner(mark) if begin is None else begin
        except LauncherError as error:
            self._stop(str(error))

    def wanted(self, n_lost: int) -> None:
        """Take note that so many more ranks are lost. Replacements that die are such ranks, too."""
        if not self._lost and n_lost:
            self._due = self._clock() + self._delay
        self._lost += n_lost

    def start(self, now: float) -> bool:
        """Start a replacement if one is wanted, allowed and due, and none is awaited. Tell whether."""
        if self.stopped_because is not None or not self._lost or self._awaited is not None:
            return False
        if self.started >= self._limit:
            self._stop(f"max_replacements={self._limit} have been started")
            return False
        if now < self._due:
            return False
        self._awaited = self._begin()
        self._attempts.append(self._awaited)
        self._deadline = now + ARRIVAL_SECONDS
        self.started += 1
        self._lost -= 1
        self._delay = min(2.0 * self._delay, LONGEST_DELAY)
        self._due = now + self._delay
        return True

    def poll(self) -> list[Any]:
        """Return the intercommunicators to the replacements that have come since the last call."""
        arrived = []
        for attempt in [each for each in self._attempts if each.done()]:
            self._attempts.remove(attempt)
            error = attempt.exception()  # whatever MPI says of it
            if error is not None:
                if attempt is self._awaited:
                    self._missed(f"could not be started: {error}")
                continue
            arrived.append(attempt.result())
            if attempt is self._awaited:
                self._awaited = None
            else:  # it was given up, and another one was wanted in its place
                self._lost = max(0, self._lost - 1)
        if self._awaited is not None and self._clock() >= self._deadline:
            self._missed(f"has not started MPI within {ARRIVAL_SECONDS:g} s, and is no longer awaited")
        return arrived

    def note_first_push(self) -> None:
        """Take note that a replacement has done its first work: the trouble is over."""
        self._strikes = 0
        self._delay = FIRST_DELAY

    def note_death_before_first_push(self) -> None:
        """Take note that a replacement has died and had done nothing."""
        self._strikes += 1
        if self._strikes == STRIKES and self.stopped_because is None:
            self._stop(f"{STRIKES} replacements in a row came to nothing")

    def _missed(self, what: str) -> None:
        self._awaited = None
        logger.warning("Replacement %d of at most %d %s.", self.started, self._limit, what)
        self.wanted(1)
        self.note_death_before_first_push()

    def _stop(self, reason: str) -> None:
        self.stopped_because = reason
        logger.warning("Lost ranks are not replaced from here on: %s", reason.removesuffix(".") + ".")


def spawner(mark: str) -> Callable[[], Future[Any]]:
    """Return what starts this program again, as often as it is called, on this process's host.

    Only there: Open MPI 5.0.11 may crash, or fail to connect, when it spawns on another host of which a
    rank has died. Slots and bindings do not count: what a dead rank held is not given back. In the new
    processes `process.parent.replacement_mark` returns `mark`. A `LauncherError` is raised if this program
    cannot be started again, or MPI cannot be used by several threads.
    """
    from mpi4py import MPI

    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise LauncherError(
            "MPI was started for fewer threads than replacements need. Leave mpi4py.rc.thread_level at "
            "'multiple', which is its default."
        )
    words = [*_settings(mark, os.environ), *command_of_replacement()]
    return lambda: spawn_in_thread(words)


def spawn_in_thread(words: list[str]) -> Future[Any]:
    """Spawn, and wait in a thread of its own until the new process has started MPI.

    It waits for ever where that process ends before. Others can be started all the same.
    """
    arrival: Future[Any] = Future()

    def spawn() -> None:
        try:
            arrival.set_result(_spawn(words))
        except Exception as error:
            arrival.set_exception(error)

    threading.Thread(target=spawn, name="spawn", daemon=True).start()
    return arrival


def _spawn(words: list[str]) -> Any:
    from mpi4py import MPI

    info = MPI.Info.Create()
    info.Set("map_by", ":OVERSUBSCRIBE")
    info.Set("bind_to", "none")
    # What Open MPI 5 calls this host, and where this process was started.
    for key, name in (("host", "PMIX_HOSTNAME"), ("wdir", "OMPI_MCA_initial_wdir")):
        if name in os.environ:
            info.Set(key, os.environ[name])
    try:
        return MPI.COMM_SELF.Spawn("/usr/bin/env", words, maxprocs=1, info=info)
    finally:
        info.Free()


def command_of_replacement() -> list[str]:
    """Return the command that starts this process's program as a replacement.

    A `LauncherError` is raised if nobody wrote one: in an interactive session, a notebook or a test runner.
    """
    options, words = program.own_words()
    name = words[1].partition(".")[0] if words[0] == "-m" else PurePath(words[0]).stem
    if name in _NOT_TO_RUN_AGAIN:
        raise program.not_again(f"runs {name}")
    return program.command(words, options=options, replacement=True)


def _settings(mark: str, environ: Mapping[str, str]) -> list[str]:
    """Return what `env` has to set: what `mpirun -x` gave to ranks does not reach what they spawn."""
    variables = {name: value for name, value in environ.items() if name.startswith(_PASSED_ON)}
    return [f"{name}={value}" for name, value in {**variables, REPLACEMENT_VARIABLE: mark}.items()]
