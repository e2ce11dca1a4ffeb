"""A batch script for SLURM: the training hears the warning before its end, and goes on where it stopped."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from dist_classicrl import durations
from dist_classicrl.errors import SettingsError
from dist_classicrl.launch.launcher import THREADS

_MEMORY = re.compile(r"\d+[KMGT]?")
_ARRAY = re.compile(r"\d+(-\d+(:0*[1-9]\d*)?)?(,\d+(-\d+(:0*[1-9]\d*)?)?)*(%[1-9]\d*)?")
_NAME = re.compile(r"[\w.,+-]+")
VARIABLE = re.compile(r"\$(SLURM_\w+|\{SLURM_\w+\})")  # what `word_of` leaves to the shell
TASK = "$SLURM_ARRAY_TASK_ID"  # what stands for the number of a job of an array

# The first lines: a warning that comes before the command runs must not end the job.
_LISTEN = """\
job=
trap '[ -z "$job" ] || kill -USR1 "$job" || :' USR1
"""

# The shell hears the warning between two commands, so none of them may last. A wait that it interrupts may
# lose the status of the command for good.
_REQUEUE = """\
{command} &
job=$!
while kill -0 "$job" 2>/dev/null; do
    sleep 1 # and not wait: a warning just as the job ends would take the place of its status
done
trap '' USR1
status=0
wait "$job" || status=$? # so also after set -e
if [ "$status" = 138 ] && [ "$SECONDS" -ge {listening} ]; then # else it was warned before it could listen
    echo "Not queued again: USR1 ended it after $SECONDS s. A training that saves its run ends with 75." >&2
elif [ "$status" = 75 ] || [ "$status" = 138 ]; then # the same command goes on
    scontrol requeue "{job}"
fi
exit "$status"
"""

# What SLURM has room for.
_MOST = 2**31 - 1
_MOST_WARNING = 2**16 - 1
_MOST_OF_ARRAY = 4_000_000

# By then a training listens, if it ever does.
_LISTENING_SECONDS = 300

# What SLURM's PMIx asks of each rank may be a part of it that the PMIx of the ranks does not have.
_FOR_PMIX = "export PMIX_MCA_psec=native PMIX_MCA_gds=hash"

# What `launch` sets for ranks.
_FEW_THREADS = f'export {THREADS}="${{{THREADS}:-1}}"'


@dataclass(frozen=True)
class BatchJob:
    """What SLURM is asked for; SettingsError if something is not allowed, or does not go together."""

    ntasks: int  # ranks, one of them the server: at least 2, but for a study
    nodes: int | None = None
    time: str | None = None  # limit in one of SLURM's notations; None: the partition's
    partition: str | None = None
    account: str | None = None
    job_name: str | None = None
    mem: str | None = None  # of each node, such as "16G"
    array: str | None = None  # numbers of the jobs of an array, such as "0-9%4"
    requeue: bool = True  # goes back into the queue when it was stopped before its work was done
    warning: int | None = 120  # seconds before its end; None: it goes by the time that SLURM leaves it
    further: Sequence[str] = ()  # directives, such as "--constraint=avx2"
    setup: Sequence[str] = ()  # lines of shell before the command, such as "module load openmpi"
    srun: str | None = None  # its `--mpi`, such as "pmix", where it starts the ranks and not the command
    is_study: bool = False  # whether tasks make the runs of a study, each by itself: one is enough

    def __post_init__(self) -> None:
        self._check_size()
        self._check_time()
        self._check_words()

    def _check_size(self) -> None:
        if self.ntasks > _MOST:
            raise SettingsError(f"--ntasks is {self.ntasks}; SLURM counts tasks up to {_MOST}.")
        if self.ntasks < 2 and not self.is_study:
            raise SettingsError(
                f"A job needs at least 2 tasks, a server and a worker; --ntasks is {self.ntasks}. A process "
                "that trains alone needs no script of this kind: let yours run `dist-classicrl train`."
            )
        if self.nodes is not None and not 1 <= self.nodes <= self.ntasks:
            raise SettingsError(
                f"--nodes is {self.nodes}; it must be from 1 to the number of tasks, {self.ntasks}."
            )
        if self.mem is not None and not _MEMORY.fullmatch(self.mem):
            raise SettingsError(f"--mem is {self.mem!r}; write a size such as 16G or 500M.")
        if self.array is not None and not _is_array(self.array):
            raise SettingsError(
                f"--array is {self.array!r}; write numbers such as 0-9, 1,3,5 or 0-99%10, which go up and "
                f"are at most {_MOST_OF_ARRAY}."
            )

    def _check_time(self) -> None:
        limit = self.seconds
        if self.warning is None:
            return
        if not 1 <= self.warning <= _MOST_WARNING:
            raise SettingsError(
                f"--signal is {self.warning}; SLURM's warning can come from 1 s to {_MOST_WARNING} s before "
                "the end."
            )
        if limit is not None and self.warning >= limit:
            raise SettingsError(
                f"A warning {self.warning} s before the end does not fit into a job of "
                f"{durations.shown(limit)} (--time {self.time}). Write a longer time, such as 4:00:00 for "
                "four hours."
            )

    def _check_words(self) -> None:
        for name in ("partition", "account", "job_name", "srun"):
            value = getattr(self, name)
            if value is not None and not _NAME.fullmatch(value):
                raise SettingsError(f"--{name.replace('_', '-')} is {value!r}; such names have no blanks.")
        for directive in self.further:
            if not re.fullmatch(r"-[^\n]+", directive):
                raise SettingsError(
                    f"A directive begins with a dash, such as --constraint=avx2; got {directive!r}."
                )

    @property
    def seconds(self) -> float | None:
        """The time limit in seconds; None where there is none."""
        if self.time is None:
            return None
        seconds = 60.0 * float(self.time) if self.time.isdecimal() else durations.of_clock(self.time)
        if seconds is not None and seconds > _MOST:
            raise SettingsError(
                f"--time is {self.time!r}; SLURM counts seconds up to {_MOST}, which are 24855 days. Write a "
                "shorter time, or leave it out, for the partition's own limit."
            )
        if not seconds:
            raise SettingsError(
                f"--time is {self.time!r}; SLURM takes minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM and "
                "D-HH:MM:SS, such as 4:00:00 for four hours."
            )
        return seconds

    @property
    def _listening(self) -> int:
        """By how many seconds after the start a command that the warning ends is not to go on.

        In a short job that is long before the warning: else a command that never listens would for ever be
        queued again.
        """
        if self.seconds is None or self.warning is None:
            return _LISTENING_SECONDS
        return min(_LISTENING_SECONDS, int(self.seconds - self.warning) // 2)

    def directives(self) -> list[str]:
        """Return what follows #SBATCH in each line."""
        asked = {
            "job-name": self.job_name,
            "ntasks": self.ntasks,
            "nodes": self.nodes,
            "time": self.time,
            "partition": self.partition,
            "account": self.account,
            "mem": self.mem,
            "array": self.array,
            # B: to the script alone, which hands it on. Given to all, it would end the ranks' launcher.
            "signal": None if self.warning is None else f"B:USR1@{self.warning}",
        }
        lines = [f"--{name}={value}" for name, value in asked.items() if value is not None]
        lines.append("--requeue" if self.requeue else "--no-requeue")
        if self.requeue:
            lines.append("--open-mode=append")  # the output of the runs before stays
        return [*lines, *self.further]

    def script(self, words: Sequence[str]) -> str:
        """Return the batch script that runs a command; see `word_of` for how its words are written."""
        lines = ["#!/bin/bash", *(f"#SBATCH {line}" for line in self.directives()), ""]
        if self.requeue:
            lines += _LISTEN.splitlines()
        lines += self.setup
        if self.srun is not None:
            words = ["srun", f"--mpi={self.srun}", *words]
            lines.append(_FEW_THREADS)
            lines += [_FOR_PMIX] if self.srun.startswith("pmix") else []
        command = " ".join(map(word_of, words))
        if self.requeue:
            # The last job of an array has the number of the whole array.
            job = "$SLURM_JOB_ID" if self.array is None else "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"
            body = _REQUEUE.format(command=command, job=job, listening=self._listening)
        else:
            body = f"exec {command}\n"  # so that the warning arrives where it is understood
        return "\n".join(lines) + "\n" + body


def _is_array(text: str) -> bool:
    """Return whether these are numbers of the jobs of an array, and ranges of them that go up."""
    if not _ARRAY.fullmatch(text):
        return False
    ranges = [part.partition(":")[0].split("-") for part in text.partition("%")[0].split(",")]
    return all(int(each[0]) <= int(each[-1]) <= _MOST_OF_ARRAY for each in ranges)


def word_of(text: str) -> str:
    """Return a word as the shell has to read it: as it is, but for SLURM's variables, which it replaces."""
    if not VARIABLE.search(text):
        return shlex.quote(text)
    quoted = re.sub(r'([\\"`]|\$(?!SLURM_|\{SLURM_))', r"\\\1", text)
    return f'"{quoted}"'
