"""Every error that this package raises by name.

Each message says what was given, what is allowed, and what to write instead. All that a constructor takes is
in `args`: an error is made anew from these where it is pickled, as by the user's own pools of processes, or
copied.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any


class DistClassicRLError(Exception):
    """Base class of all errors of this package."""


# Settings and arguments


class SettingsError(DistClassicRLError, ValueError):
    """A setting is outside what is allowed, or two settings contradict each other."""


class UnknownArgumentError(SettingsError, TypeError):
    """A function was given an argument that it does not have; the message names what it is called here."""


class MissingArgumentError(SettingsError, TypeError):
    """A function was called without an argument that it needs."""


class UnknownAttributeError(DistClassicRLError, AttributeError):
    """There is no such attribute, or it cannot be set; the message says what it is called here.

    Of an agent, its settings, its policy, the result of a training, or a callback.
    """


# Environments and models


class EnvError(DistClassicRLError, ValueError):
    """An environment cannot be used as it is."""


class ActionMaskError(EnvError):
    """An action mask has the wrong shape, or forbids every action of a state that must be acted in."""


class ConvergenceError(DistClassicRLError, ArithmeticError):
    """Values do not converge, or not within the sweeps allowed."""


class DataError(DistClassicRLError, ValueError):
    """Logged transitions cannot be read or learned from, or do not tell what was asked of them."""


class EnvMismatchError(EnvError):
    """A table is to be trained on in another environment than the one that it was learned in."""


class IllegalActionError(EnvError):
    """An action is not one of the environment's, or is forbidden where it was played."""


class ModelError(EnvError):
    """The arrays of a finite model do not describe a Markov decision process."""


class OutsideSpaceError(EnvError):
    """A value is not in the space that the environment declares for it."""


class RewardError(EnvError):
    """A reward is NaN or infinite."""


class SpaceError(EnvError):
    """A space is not finite, or its product is too large to index a table."""


class StateLimitError(DistClassicRLError, RuntimeError):
    """A game whose states are keys has come to more of them than there may be. What was learned is kept.

    Of several ranks the one that serves has it, mostly rank 0, the others from the next call of `train` on.

    Attributes
    ----------
    steps : int or None
        Environment steps that the agent had learned by then, which are kept; None where nothing was.
    """

    steps: int | None = None


# Starting jobs


class LauncherError(DistClassicRLError, RuntimeError):
    """There is no `mpirun`, or the one found does not fit the MPI library that mpi4py loads."""


# Cards


class DeviceError(DistClassicRLError, RuntimeError):
    """A card was asked for, and none works here, or what is to be trained cannot be learned there."""


class DeviceMemoryError(DeviceError, MemoryError):
    """What is to be trained needs more memory than the card has; the message says by how much."""


# Checkpoints and stopping


class CheckpointError(DistClassicRLError, ValueError):
    """A checkpoint is truncated, damaged, foreign or missing, or its folder cannot be used."""


class CheckpointMismatchError(CheckpointError):
    """A checkpoint is of another algorithm, environment, table or seed than the agent that asks for it."""


class CheckpointUnreadableError(CheckpointError):
    """A checkpoint or its folder cannot be read for now, or by this version: it may be as good as ever."""


class CheckpointFencedError(CheckpointError):
    """Another server has taken over the checkpoint folder: this one has been replaced and must stop."""


class TrainingStopped(SystemExit):
    """Training stopped in order: its state is on disk, and the same command goes on from there.

    As a `SystemExit` it ends the process, with the exit status that batch scripts ask for.

    Attributes
    ----------
    code : int
        Exit status: 75 (EX_TEMPFAIL, "again, please") after a signal or at a time limit, or 74 (EX_IOERR)
        where no checkpoint of the run could be written, so that the same command would begin anew; 130 after
        Ctrl-C.
    reason : str
        What stopped it.
    checkpoint : str or None
        Where the checkpoint is; None where it could not be written.
    steps : int
        Environment steps that the agent had learned by then.
    """

    def __init__(self, code: int, reason: str, checkpoint: str | None, steps: int) -> None:
        super().__init__(code, reason, checkpoint, steps)
        self.code = code
        self.reason = reason
        self.checkpoint = checkpoint
        self.steps = steps

    def __str__(self) -> str:
        where = f"checkpoint: {self.checkpoint}" if self.checkpoint else "no checkpoint was written then"
        return f"{self.reason}; {where}"


class TrainingInterrupted(TrainingStopped, KeyboardInterrupt):
    """Training was stopped by Ctrl-C (SIGINT); exit status 130.

    Where nothing was to be saved, the agent has what it learned, and `checkpoint` is None.
    """


class EvaluationStopped(DistClassicRLError, RuntimeError):
    """An evaluation was ended before its episodes, as the training in whose callback it is is to stop."""


class SweepStopped(SystemExit):
    """A sweep stopped in order: what came out so far is on disk, and the same one goes on from there.

    Attributes
    ----------
    code : int
        Exit status: 75 (EX_TEMPFAIL, "again, please").
    reason : str
        What stopped it.
    folder : pathlib.Path
        Of the study.
    """

    def __init__(self, code: int, reason: str, folder: Path) -> None:
        super().__init__(code, reason, folder)
        self.code = code
        self.reason = reason
        self.folder = folder

    def __str__(self) -> str:
        return f"{self.reason}; study: {self.folder}"


class WorkerLeft(SystemExit):
    """The worker has left the training in good order, and the others go on; exit status 0.

    Attributes
    ----------
    rank : int
    """

    def __init__(self, rank: int) -> None:
        super().__init__(rank)
        self.code = 0
        self.rank = rank

    def __str__(self) -> str:
        return f"rank {self.rank} has left the training in good order"


# Training, alone and on many ranks


class DivergenceError(DistClassicRLError, ValueError):
    """Action values, or sums of rewards, have grown beyond the numbers that a table or a record can hold."""


class ExportError(DistClassicRLError, ValueError):
    """What was learned cannot be written as asked."""


class ModelFileError(DistClassicRLError, ValueError):
    """A saved model is truncated, damaged, foreign, of another kind, or of a rule that is not registered."""


class NotTrainedError(DistClassicRLError, RuntimeError):
    """Something was asked that only a trained or fully sized agent can answer."""


class ProtocolError(DistClassicRLError, RuntimeError):
    """A message between ranks breaks the protocol.

    The causes are mixed versions, or a transport that reorders or loses messages.
    """


class RankMismatchError(DistClassicRLError, RuntimeError):
    """Ranks of one job were given different settings or environments."""


class RankTimeoutError(DistClassicRLError, RuntimeError):
    """A rank gave no sign of life for too long."""


class ExitCalledError(DistClassicRLError, RuntimeError):
    """`sys.exit` was called where several ranks trained, by an environment or a callback.

    Where nobody handles it, it ends the job with the same exit status, or with 1 in place of those that say
    that the work is done or has stopped in order: 0, 74, 75, 79 and 130.

    Attributes
    ----------
    code : int
    """

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message, code)
        self.code = code

    def __str__(self) -> str:
        return str(self.args[0])


class RemoteRankError(DistClassicRLError, RuntimeError):
    """An exception was raised on another rank.

    Attributes
    ----------
    rank : int
        The rank on which it was raised.
    host : str
        That rank's host name.
    summary : str
        The exception's class and message.
    remote_traceback : str
        The traceback as text.
    is_cut_off : bool
        Whether that rank, and with it this one, hears too few of the others, which may go on without them.
    """

    def __init__(
        self, rank: int, host: str, summary: str, remote_traceback: str, is_cut_off: bool = False
    ) -> None:
        super().__init__(rank, host, summary, remote_traceback, is_cut_off)
        self.rank = rank
        self.host = host
        self.summary = summary
        self.remote_traceback = remote_traceback
        self.is_cut_off = is_cut_off

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.host} raised {self.summary}\n\n{self.remote_traceback}"

    def to_dict(self) -> dict[str, Any]:
        """Return the arguments of the constructor as plain data for JSON."""
        names = ("rank", "host", "summary", "remote_traceback", "is_cut_off")
        return {name: getattr(self, name) for name in names}


class SingletonError(DistClassicRLError, RuntimeError):
    """The launcher promised several ranks, but this process is alone in its MPI world."""


class RankLostError(DistClassicRLError, RuntimeError):
    """So many ranks were lost that the run does not go on, by `on_failure` or `min_workers`."""


class CutOffError(DistClassicRLError, RuntimeError):
    """Too few of the other ranks are heard to go on: they may be running without this one."""


# Records and plots


class MetricsError(DistClassicRLError, ValueError):
    """The metrics of a run cannot be written or read, or do not have what was asked for."""


class MissingExtraError(SettingsError, ImportError):
    """Something was asked for that needs a package which is not installed; the message names the extra."""


class StudyError(DistClassicRLError, ValueError):
    """A study of many trainings cannot be made or compared as asked for, or its folder cannot be used."""


class PlotError(DistClassicRLError, ValueError):
    """What was asked for cannot be drawn: the records hold none of it, or the file cannot be written."""
