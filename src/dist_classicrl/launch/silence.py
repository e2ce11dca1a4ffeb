"""Whether the ranks of a job still give signs of life, which they leave on disk."""

from __future__ import annotations

from dist_classicrl.launch import program
from dist_classicrl.process.exit_record import ExitRecord
from dist_classicrl.process.jobs import command_of, processes_of

LOOK_SECONDS = 0.5  # between two looks
_WITHOUT_RANKS_HERE_SECONDS = 60.0


class SilenceWatch:
    """Counts for how long no rank of the job of that name, see `start_job`, has given a sign of life.

    Only time in which this process itself ran counts: it may have been suspended together with the ranks.
    `now` is always the monotonic time.
    """

    def __init__(self, job: str, record: ExitRecord, now: float) -> None:
        self._job = job
        self._record = record
        self._beat: int | None = None
        self._quiet = 0.0
        self._looked = now
        self._had_ranks_here = False

    def look(self, now: float, silence: float) -> str | None:
        """Say if it was quiet for `silence` seconds, or, where no rank of this host is left, a minute."""
        self._quiet += min(now - self._looked, 2.0 * LOOK_SECONDS)
        self._looked = now
        beat = self._record.last_beat()
        if beat != self._beat:
            if self._beat is None:
                self._had_ranks_here = bool(self._ranks_here())
            self._beat, self._quiet = beat, 0.0
        if self._quiet > silence:
            which = "no rank had said that it started" if beat is None else "no rank gave a sign of life"
            return f"{which} for {silence:g} s"
        if self._quiet > _WITHOUT_RANKS_HERE_SECONDS and self._had_ranks_here and not self._ranks_here():
            return "all ranks of this host had ended, and no other gave a sign of life"
        return None

    def _ranks_here(self) -> list[int]:
        words = program.command([])[1:3]
        return [pid for pid in processes_of(self._job) if words == command_of(pid)[1:3]]
