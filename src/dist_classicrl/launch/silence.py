"""Whether the ranks of a job still give signs of life, which they leave on disk."""

from __future__ import annotations

from dist_classicrl._hints import local_size_of_environment, rank_of_environment
from dist_classicrl.launch import program
from dist_classicrl.process.exit_record import ExitRecord
from dist_classicrl.process.jobs import command_of, environment_of, processes_of

LOOK_SECONDS = 0.5  # between two looks
_GONE_SECONDS = 2.0  # an mpirun that starts many ranks does it one after the other
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
        self._complete = now  # when no rank of this host was missing

    def look(self, now: float, silence: float, start_limit: float) -> str | None:
        """Return why the job is dead, if it is.

        It is if it was quiet for `silence` seconds, or a minute where no rank of this host is left. While
        ranks start MPI, it is after `start_limit` seconds, or when one of this host is gone.
        """
        self._quiet += min(now - self._looked, 2.0 * LOOK_SECONDS)
        self._looked = now
        beat = self._record.last_beat()
        if beat != self._beat:
            if self._beat is None:
                self._had_ranks_here = bool(self._ranks_here())
            self._beat, self._quiet = beat, 0.0
        if not self._record.is_starting_mpi:
            self._complete = now
        else:
            # Nothing can be heard of who waits there, and MPI does not tell it of a death.
            if not self._missing():
                self._complete = now
            elif now - self._complete > _GONE_SECONDS:
                return "a rank of this host was gone before MPI had started, and had not said why"
            if self._quiet > start_limit:
                return (
                    f"MPI had not started on all ranks, and none gave a sign of life for {start_limit:g} s "
                    "(--start-limit)"
                )
        if self._quiet > silence:
            which = "no rank had said that it started" if beat is None else "no rank gave a sign of life"
            return f"{which} for {silence:g} s"
        if self._quiet > _WITHOUT_RANKS_HERE_SECONDS and self.ranks_here_have_ended:
            return "all ranks of this host had ended, and no other gave a sign of life"
        return None

    def why_over(self, ranks: int) -> str | None:
        """Return that of all ranks those are left that are gone here without a word, if that is so.

        Who has ended in charge may still be about to say that the work is done, and who left, or replaced
        somebody, says nothing about the others.
        """
        endings = [ending for ending in self._record.endings() if ending.kind != "left"]
        ended = {ending.rank for ending in endings}
        if not ended or any(ending.is_head for ending in endings) or len(ended) + self._missing() < ranks:
            return None
        return "a rank of this host was gone, and had not said why, and all others had ended"

    def _missing(self) -> int:
        """Return how many of the ranks that mpirun has started here are gone without a word."""
        environments = [environment_of(pid) for pid in self._ranks_here()]
        here = {rank_of_environment(each) for each in environments}
        size = max((local_size_of_environment(each) or 0 for each in environments), default=0)
        return max(0, size - len(here | {ending.rank for ending in self._record.endings()}))

    @property
    def ranks_here_have_ended(self) -> bool:
        """Whether this host had ranks of the job, and none is left."""
        return self._had_ranks_here and not self._ranks_here()

    def _ranks_here(self) -> list[int]:
        words = program.command([])[1:3]
        return [pid for pid in processes_of(self._job) if words == command_of(pid)[1:3]]
