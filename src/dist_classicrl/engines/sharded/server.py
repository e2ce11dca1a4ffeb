"""The server of ranks that learn in the same rows: it counts what they do, and learns a share itself."""

from __future__ import annotations

from dataclasses import dataclass, field

from dist_classicrl._random import stream_key
from dist_classicrl.engines.outcome import Learned
from dist_classicrl.engines.server.leases import Lease
from dist_classicrl.engines.server.server import Server
from dist_classicrl.engines.sharded.own_share import Chunk, OwnShare
from dist_classicrl.learning.learner import Learner, Stream

_FIRST_STEPS = 4096
_LONGEST_SHARE = 0.005
"""Of the call's steps, at a time at most: what is to happen at a step happens when it has been made."""


@dataclass
class HostServer(Server):
    """Serves one call of `train`; with an `own_learner`, whose table the rows are, this rank learns as well.

    `seed` and `generation` are those of `dist_classicrl.engines.server.worker.Worker`.
    """

    own_learner: Learner | None = field(default=None, kw_only=True)
    seed: int = field(default=0, kw_only=True)
    generation: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        self._own: OwnShare | None = None
        self._left: tuple[Lease, Stream] | None = None  # of the lease that is given out in chunks
        super().__post_init__()
        if self.own_learner is not None:
            self.leases.add(self.group.rank)
            self._own = OwnShare(self.own_learner)

    def receive(self) -> int:
        """See `Serving`; what was learned here has come as well."""
        return super().receive() + self._learn_here()

    def _learn_here(self) -> int:
        """Count what was learned here, and give out more; return how many chunks were made."""
        own = self._own
        if own is None:
            return 0
        made = self._count_own(own)
        while own.has_room and not self._awaits_maps and (chunk := self._next_chunk(own)) is not None:
            own.give(chunk)
        return made

    def _count_own(self, own: OwnShare) -> int:
        """Count what was learned here; return how many chunks that were."""
        made = own.take()
        rank = self.group.rank
        for done in made:
            steps = done.chunk.steps
            self.leases.report(rank, [(done.chunk.lease, steps)])
            self.table.overwritten()
            tally, learned = self.tally, Learned.of(done.totals, done.seconds, done.seconds)
            tally.steps = tally.earlier_steps + self.leases.done
            tally.add_learned(learned)
            tally.learning_seconds += learned.learning_seconds
            tally.worker_seconds += learned.worker_seconds
            self.reporter.count(rank, steps, learned)
            self._report_at_step()
        return len(made)

    def _next_chunk(self, own: OwnShare) -> Chunk | None:
        if self._is_stopping or self.leases.is_over:
            self._left = None
        elif self._left is None and (lease := self._grant_own(own)) is not None:
            again = [self.generation] if self.generation else []
            term = self.group.view.term
            parts = (*again, *(("term", term) if term else ()))
            self._left = lease, Stream(stream_key(self.seed, "lease", lease.start, *parts), lease.start)
        if self._left is None:
            if self.leases.is_over and own.is_idle:
                self.leases.give_up(self.group.rank)
            return None
        lease, stream = self._left
        quantum = own.learner.quantum
        most = min(own.steps_at_once or _FIRST_STEPS, int(_LONGEST_SHARE * self.tally.total_steps))
        steps = min(max(1, most // quantum) * quantum, lease.steps)
        chunk = Chunk(lease.id, Stream(stream.key, stream.start, stream.used), steps)
        stream.used += steps
        rest = lease.steps - steps
        self._left = None if rest == 0 else (Lease(lease.id, lease.start, rest), stream)
        return chunk

    def _grant_own(self, own: OwnShare) -> Lease | None:
        return self.leases.grant(self.group.rank, own.learner.quantum)

    @property
    def learns_here(self) -> bool:
        """See `Serving`."""
        return self._own is not None

    @property
    def learning(self) -> int:
        """How many ranks learn."""
        return max(1, len(self.peers.learners) + self.learns_here)

    def _take_in_last_pushes(self) -> None:
        super()._take_in_last_pushes()
        if self._own is not None:
            own = self._own
            self._stop_here()
            self._count_own(own)  # the chunk that was under way has come to its end

    def finish(self, result: dict[str, object]) -> None:
        """See `Serving`: nothing is learned here any more."""
        self._stop_here()
        super().finish(result)

    def close(self, linger: float) -> None:
        """See `Serving`."""
        self._stop_here()
        super().close(linger)

    def _stop_here(self) -> None:
        if self._own is not None:
            own, self._own = self._own, None
            own.close()
