"""Start a script on many ranks, watch over it, and start it again from its checkpoint when the job dies.

`python -m dist_classicrl launch -n 16 script.py` watches `mpirun`, which cannot be relied on to tell how a
job ended: it may return 0 after a host died, and hang after the work was done. The ranks say on disk how they
end (see `process.exit_record`), every wait has a limit, and nothing of a job is left when the launcher
returns.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

from dist_classicrl._streams import is_output_closed, silence_if_unread
from dist_classicrl.errors import LauncherError
from dist_classicrl.launch import silence
from dist_classicrl.launch.endings import (
    DONE,
    Attempt,
    described,
    mpirun_said,
    own_ending,
    shell_status,
    why_over,
)
from dist_classicrl.launch.folders import launch_folder, make_attempt_folder, session_folder
from dist_classicrl.launch.guard import guarded
from dist_classicrl.launch.hosts import Host, hosts_that_answer, ranks_on, write_hostfile
from dist_classicrl.launch.launcher import launch_environment
from dist_classicrl.launch.mpirun import session_variables
from dist_classicrl.launch.plan import LaunchPlan
from dist_classicrl.launch.segments import remove_unused_segments
from dist_classicrl.process.exit_record import LAUNCH_VARIABLE, ExitRecord
from dist_classicrl.process.jobs import (
    all_processes,
    command_of,
    end_job,
    name_job,
    parent_of,
    start_job,
)
from dist_classicrl.process.signals import handled, signal_name
from dist_classicrl.process.stop import INTERRUPTED, OF_LAUNCHER, REPEAT_SECONDS

LONGEST_DELAY = 60.0  # seconds between two starts at most
_NAME = "dist_classicrl launch"
_NOBODY_READS = (
    "the program that its output goes to has ended (the one behind |). It is not started again. The same "
    "command starts it; let its output go to a file, with > FILE"
)
_PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)
_ASK_TO_STOP = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_HYDRA = "mpiexec.hydra"  # what the script starts that Intel's mpirun is
_PROBE_SECONDS = 10.0
_POLL_SECONDS = 0.05
_LATE_SECONDS = 1.0
_LEFT_SECONDS = 5.0  # in which ranks that have ended let end what they have left, see `process.leftovers`
_WORDS_SECONDS = 2.0  # in which others that fail as well may say why
_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux


class Supervisor:
    """Starts the job of a plan until its work is done; `verbose` shows each command.

    Of an end with an exit status in `said_by_ranks` nothing more is said: the ranks have told why.
    """

    def __init__(self, plan: LaunchPlan, verbose: bool = False, said_by_ranks: Sequence[int] = ()) -> None:
        self._plan = plan
        self._said_by_ranks = said_by_ranks
        self._options = plan.options
        self._verbose = verbose
        self._job = name_job()  # of which each start is a part
        self._heard: list[tuple[int, float]] = []
        self._stop: tuple[int, float] | None = None  # the signal that asked for it, and when
        self._ends_at_once = ""

    def run(self) -> int:
        """Start the job, again if it dies, and return the exit status.

        LauncherError if mpirun cannot be started or starts no rank, MPI does not start on any, or there is no
        place to watch the ranks from.
        """
        # A signal that this process ignores, as under nohup, must not stop the job either.
        with (
            handled((*_PASSED_ON, *_ASK_TO_STOP), self._hear, even_ignored=False),
            launch_folder(self._options.state_dir) as folder,
            session_folder() as session,
            guarded(self._job, (session, folder)),
        ):
            return self._run(folder, session)

    @property
    def stop_signal(self) -> int | None:
        """The signal that was to stop the job, if there was one."""
        return None if self._stop is None else self._stop[0]

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self._heard.append((number, time.monotonic()))

    def _run(self, folder: Path, session: str) -> int:
        plan, max_restarts = self._plan, self._options.max_restarts
        attempts: list[Attempt] = []
        hosts = plan.hosts
        has_had_mpi = False
        while True:
            number = len(attempts) + 1
            ranks = plan.ranks if hosts is None else ranks_on(hosts, plan.hosts or hosts, plan.ranks)
            place = folder / f"attempt-{number}"
            make_attempt_folder(place)
            hostfile = None if hosts is None else place / "hostfile"
            if hostfile is not None:
                write_hostfile(hostfile, hosts or (), plan.launcher.family)
            record = ExitRecord(place)
            attempt = self._attempt(plan.command(ranks, hostfile), ranks, record, session)
            attempts.append(attempt)
            if not attempt.goes_on:
                is_told = attempt.text == DONE or attempt.code in self._said_by_ranks
                if not is_told or number > 1 or self._verbose:
                    say(f"After {attempt.seconds:.1f} s: {attempt.text}.")
                return attempt.code
            # Where it has worked before, a host or a network may be away for a while.
            has_had_mpi = has_had_mpi or record.has_had_mpi
            if number > 1 and attempt.lacked and attempt.is_like(attempts[-2]) and not has_had_mpi:
                raise LauncherError(_no_start(attempt, plan))
            if number > max_restarts:
                return _give_up(attempts)
            delay = min(LONGEST_DELAY, self._options.restart_delay * 2.0 ** min(number - 1, 64))
            say(
                f"The job died after {attempt.seconds:.1f} s: {attempt.text}. It starts again in {delay:g} s "
                f"(restart {number} of at most {max_restarts})."
            )
            if self._is_stopped_within(delay):
                return self._code_of_stop()
            if plan.hosts is not None:
                hosts = self._hosts_left(plan.hosts)
                if self._is_stopped_within(0.0):
                    return self._code_of_stop()

    def _hosts_left(self, all_hosts: tuple[Host, ...]) -> tuple[Host, ...]:
        """Return the hosts that answer; all of them where none does, since mpirun may know better."""
        agent = self._options.agent
        hosts = hosts_that_answer(all_hosts, agent, _PROBE_SECONDS, lambda: self._is_stopped_within(0.0))
        missing = [host.name for host in all_hosts if host not in hosts]
        if not hosts:
            say(f"No host answers ({', '.join(missing)}). The job is started on all of them all the same.")
            return all_hosts
        if missing:
            ranks = ranks_on(hosts, all_hosts, self._plan.ranks)
            say(f"These hosts do not answer and are left out: {', '.join(missing)}. {ranks} ranks are left.")
        return tuple(hosts)

    def _is_stopped_within(self, seconds: float) -> bool:
        """Wait, with no job running, and return whether a signal has asked to stop."""
        deadline = time.monotonic() + seconds
        while not (heard := self._take()) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        if heard and self._stop is None:
            self._stop = heard[0]
        return self._stop is not None

    def _code_of_stop(self) -> int:
        """Return the exit status after a stop while no rank runs: the script goes on when started again."""
        assert self._stop is not None
        say(f"Stopped by {signal_name(self._stop[0])}. The same command starts the job again.")
        return INTERRUPTED if self._stop[0] == signal.SIGINT else os.EX_TEMPFAIL

    def _take(self) -> list[tuple[int, float]]:
        """Return the signals heard since the last call."""
        new, self._heard = self._heard, []
        return new

    def _attempt(self, command: list[str], ranks: int, record: ExitRecord, session: str) -> Attempt:
        if self._verbose:
            say(shlex.join(command))
        self._stop, self._ends_at_once = None, ""
        started = time.monotonic()
        own = {
            **session_variables(self._plan.launcher, session, self._plan.mpirun_words, os.environ),
            LAUNCH_VARIABLE: str(record.folder),
        }
        environment = launch_environment({**os.environ, **own})
        try:
            process, job = start_job(
                command, env=environment, before=_end_with_this_process(), within=self._job
            )
        except OSError as error:
            raise LauncherError(f"{command[0]} cannot be started: {error}") from error
        try:
            trouble = self._watch(process, job, ranks, record)
        finally:
            end_job(process, job)
            remove_unused_segments()
        late = self._take()
        self._stop = self._stop or (late[0] if late else None)
        seconds = time.monotonic() - started
        return self._judge(process.returncode, trouble, ranks, seconds, record)

    def _watch(
        self, process: subprocess.Popen[bytes], job: str, ranks: int, record: ExitRecord
    ) -> str | None:
        """Wait until mpirun has ended, or until it has to be ended, and return why in that case."""
        grace, longest_silence = self._options.grace, self._options.silence
        watch = silence.SilenceWatch(job, record, time.monotonic())
        limit: tuple[float, str] | None = None  # by when it has to end, and why it is ended then
        looked = 0.0
        while True:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_SECONDS)
                return None
            self._pass_signals_on(process, record)
            now = time.monotonic()
            if self._ends_at_once:
                return self._ends_at_once
            if self._stop is not None and now - self._stop[1] > longest_silence:
                if self._stop[0] not in _PASSED_ON:
                    return f"it did not stop within {longest_silence:g} s"
                self._stop = None  # that was no request to stop
            if now - looked > silence.LOOK_SECONDS:
                looked = now
                _keep(record)
                if (over := why_over(record, ranks) or watch.why_over(ranks)) is None:
                    limit = None  # also where another part of the job has begun since
                elif limit is None:
                    limit = (now + grace, f"{over}, and mpirun did not end within {grace:g} s")
                if limit is not None and len(record.endings()) >= ranks and watch.ranks_here_have_ended:
                    why = "all ranks have ended, and mpirun waited for what they had started"
                    limit = min(limit, (now + _LEFT_SECONDS, why))
                if limit is not None and over != DONE and record.is_starting_mpi:
                    # Who waits there would wait for ever, and has nothing to save. Where the work is done,
                    # who has not come so far may still have something to end.
                    why = f"{over}, and the others cannot start MPI without it"
                    limit = min(limit, (now + _WORDS_SECONDS, why))
                if (silent := watch.look(now, longest_silence, self._options.start_limit)) is not None:
                    return silent
            if limit is not None and now > limit[0]:
                return limit[1]

    def _pass_signals_on(self, process: subprocess.Popen[bytes], record: ExitRecord) -> None:
        """Hand signals to mpirun, which hands them on, in a form that lets the ranks end in order."""
        # MPICH and its kin hand this one on, and end the job of any other.
        only = self._plan.launcher.family == "hydra"
        for number, when in self._take():
            handed = number if number in _PASSED_ON and not only else OF_LAUNCHER
            if self._stop is None:
                self._stop = number, when
                if not record.has_ranks:
                    # There is nothing to save, and while mpirun starts its daemons a signal may make it hang.
                    self._ends_at_once = "no rank had begun"
                    return
                if handed != number:
                    say(f"{signal_name(number)}: the ranks are asked to stop, as by {OF_LAUNCHER.name}.")
            elif when - self._stop[1] <= REPEAT_SECONDS:
                continue
            elif number not in _PASSED_ON:
                self._ends_at_once = "it was ended by a second signal"
                return
            for pid in _receivers(process):
                with suppress(ProcessLookupError):
                    os.kill(pid, handed)

    def _judge(
        self, status: int | None, trouble: str | None, ranks: int, seconds: float, record: ExitRecord
    ) -> Attempt:
        """Return how an attempt ended, once nothing is left of it."""
        deadline = time.monotonic() + _LATE_SECONDS
        while not (done := record.is_complete) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)  # what was written on another host may take a moment to be seen
        shown = trouble or mpirun_said(status)
        endings = [ending for ending in record.endings() if ending.code]
        if done:
            odd = [described(ending) for ending in endings if ending.kind in ("code", "error")]
            odd += [] if status == 0 else [shown]
            return Attempt(ranks, seconds, 0, False, "; ".join([DONE, *odd]))
        code = shell_status(status)
        ended = own_ending(endings, code if trouble is None else None, self._stop is not None)
        if ended is not None:
            text = described(ended)
            interrupted = self._stop is not None and self._stop[0] == signal.SIGINT
            if ended.code == os.EX_TEMPFAIL and interrupted:
                return Attempt(ranks, seconds, INTERRUPTED, False, f"interrupted: {text}")
            return Attempt(ranks, seconds, ended.code, False, text)
        if self._stop is not None:
            text = f"{signal_name(self._stop[0])} ended the job ({shown})"
            code = 128 + self._stop[0] if record.has_ranks else self._code_of_stop()
            return Attempt(ranks, seconds, code, False, text)
        if is_output_closed():
            return Attempt(ranks, seconds, code or 1, False, f"{shown}, as {_NOBODY_READS}")
        lacked = "" if trouble is not None or status is None or status <= 0 else _lacked(record, status)
        return Attempt(ranks, seconds, code or 1, True, shown, lacked)


def _lacked(record: ExitRecord, status: int) -> str:
    """Return what a job had not come to, where that will be so again: "ranks", "MPI", or nothing.

    A signal that ended mpirun, or a rank, may not come again; options that mpirun refuses, and a library of
    another MPI, will be there again.
    """
    if not record.has_ranks:
        return "ranks"
    was_killed = status in (signal.SIGKILL, 128 + signal.SIGKILL)  # as MPICH and Open MPI tell of a rank
    return "MPI" if record.is_starting_mpi and not was_killed else ""


def _receivers(process: subprocess.Popen[bytes]) -> list[int]:
    """Return whom a signal for mpirun is sent to: Intel's is a script, which would end of it."""
    inner = [
        pid
        for pid in all_processes()
        if parent_of(pid) == process.pid and os.path.basename("".join(command_of(pid)[:1])) == _HYDRA
    ]
    return inner or [process.pid]


def _keep(record: ExitRecord) -> None:
    """Let ranks have a folder to say in how they end, also where somebody has removed it."""
    if not record.folder.is_dir():
        with suppress(LauncherError):  # tried again at the next look
            make_attempt_folder(record.folder)
            say(
                f"{record.folder.parent}, in which the ranks say how they end, was removed, and is made "
                "again. Leave it alone while the job runs."
            )


def _end_with_this_process() -> Callable[[], None] | None:
    """Return what a new process calls to be asked to end when this one is killed; None where it cannot."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None).prctl
    parent = os.getpid()

    def ask() -> None:
        prctl(_PARENT_DEATH_SIGNAL, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)

    return ask


def _no_start(attempt: Attempt, plan: LaunchPlan) -> str:
    if attempt.lacked == "MPI":
        return (
            f"MPI has not started on any rank: {attempt.text} twice, and what the ranks said stands above. "
            f"Often mpi4py loads the library of another MPI than that of {plan.launcher}: "
            "`dist-classicrl doctor` compares the two, and says what to do."
        )
    words = shlex.join(plan.mpirun_words)
    further = f" --mpirun-options={words!r} was given." if words else ""
    if plan.network:
        named = plan.network[-1]
        what = "an address in that network" if "/" in named else "a card of that name, with an address"
        further += f" --network {named} was given: each host needs {what} (`ip -4 address` there)."
    return (
        f"No rank has started: {attempt.text} twice, and what it said stands above.{further} Look at the "
        "options that are meant for mpirun, or let `dist-classicrl doctor` look for what is wrong."
    )


def _give_up(attempts: Sequence[Attempt]) -> int:
    lines = [
        f"  {number}: {attempt.ranks} ranks, {attempt.seconds:.1f} s, {attempt.text}"
        for number, attempt in enumerate(attempts, 1)
    ]
    say(f"The work is not done. The job died {len(attempts)} times:\n" + "\n".join(lines))
    return attempts[-1].code


def say(text: str) -> None:
    """Write a line to standard error as the launcher, apart from the lines of the ranks."""
    if sys.stderr is None:  # closed, as after 2>&-
        return
    silence_if_unread(sys.stderr)  # the reader may be gone, as after 2>&1 | head, while the job runs
    with suppress(OSError):
        sys.stderr.write(f"{_NAME}: {text}\n")
        sys.stderr.flush()
