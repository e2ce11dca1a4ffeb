"""What `train` returns."""

from __future__ import annotations

from dataclasses import dataclass, fields

from dist_classicrl.engines.outcome import Outcome


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
        Ranks that learned; 1 where one process trained alone.
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
        Bytes of maps that `compression_threshold` spared: what pushes would have carried, had each taken all
        entries learned since the one before, less what they did carry; and bytes of pushes and refreshes by
        which ``compression="lossless"`` made these shorter.
    communication_fraction : float
        Share of the workers' time that did not go into learning.
    resumed_from : str or None
        The checkpoint from which the run went on; None: it began afresh.

    Notes
    -----
    A call that went on from a checkpoint is described from its first beginning: what the checkpoint had
    counted is included everywhere, except in `compile_seconds`.
    """

    @classmethod
    def of(cls, outcome: Outcome) -> TrainingResult:
        """Return what an engine gave as a result."""
        return cls(**{each.name: getattr(outcome, each.name) for each in fields(Outcome)})
