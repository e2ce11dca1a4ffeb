"""What `train` returns."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from dist_classicrl._arguments import OF_RESULT, other_names
from dist_classicrl.engines.outcome import Outcome
from dist_classicrl.engines.progress import Progress

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@other_names(OF_RESULT)
@dataclass(frozen=True, repr=False)
class TrainingResult(Outcome):
    """What `train` did; the same on every rank.

    Attributes
    ----------
    steps : int
        Environment steps made and learned.
    episodes : int
        Episodes that ended.
    mean_return : float
        Mean undiscounted return of those episodes, under the exploring policy; NaN if none ended.
    mean_length : float
        Their mean length in steps; NaN if none ended.
    seconds : float
        Wall time of training alone, compilation and set-up apart.
    compile_seconds : float
        Wall time of compiling or loading compiled code, on the slowest rank.
    steps_per_second : float
    workers : int
        Ranks that learned; 1 where one process trained alone. In the reproducible mode those are as many of a
        host as it has cores, at most, and others wait.
    lost_workers : tuple of int
        Ranks that were lost on the way, or left, and did not come back.
    events : tuple of dict
        What happened to ranks, in order: "kind" is one of `dist_classicrl.membership.events.KINDS`, "rank"
        whom it is about, "seconds" the time since training began, "steps_returned" the steps that the rank
        held and had not reported, "detail" why.
    pushes : int
        Messages with maps, or logical workers' rounds in the reproducible mode.
    bytes_pushed, bytes_pulled : int
        Bytes that workers sent to the server, and it to them.
    bytes_saved : int
        Bytes that compression spared: those of maps that waited (what pushes would have carried, had each
        taken all entries learned since the one before, less what they did carry), and those by which messages
        with maps and refreshes were made shorter. What was sent and this are what it would have been without,
        and what rounding put off besides, where that goes on its own at the end.
    compression_seconds : float
        What choosing, rounding, compressing and restoring took, on all ranks together.
    most_waiting : int
        Entries of which a worker held back something after a push: the largest number.
    communication_fraction : float
        Share of the workers' time that did not go into learning.
    resumed_from : str or None
        The checkpoint from which the run went on; None: it began afresh.
    device : str
        On what was learned in this process's part of the call: "cpu", "cuda", or "cuda and cpu" where some
        workers had cards when it began.
    reports : tuple of Progress
        What was reported on the way, at most some thousand, without what was told of single ranks; of longer
        runs neighbors are joined. Only where somebody listened, on the rank that serves: a progress bar,
        `progress` or `callbacks`. It is neither compared nor written to files.

    Notes
    -----
    A call that went on from a checkpoint is described from its first beginning: what the checkpoint had
    counted is included everywhere, except in `compile_seconds`.
    """

    reports: tuple[Progress, ...] = field(default=(), compare=False)

    @classmethod
    def of(cls, outcome: Outcome, reports: tuple[Progress, ...] = ()) -> TrainingResult:
        """Return what an engine gave as a result, with what was reported on the way."""
        return cls(**{each.name: getattr(outcome, each.name) for each in fields(Outcome)}, reports=reports)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data for JSON, which has no NaN: None stands for it. Reports are left out."""
        return Outcome(**{each.name: getattr(self, each.name) for each in fields(Outcome)}).to_dict()

    def plot(self) -> Figure:
        """Draw the learning curves of the training, and return the figure.

        Raises
        ------
        PlotError
            If nobody listened to the training, so that there are no `reports`.
        MissingExtraError
            Without matplotlib, the extra `plot`.
        """
        from dist_classicrl.plotting.training import plot_training

        return plot_training(self.reports)
