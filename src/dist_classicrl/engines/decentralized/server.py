"""The rank that coordinates where all learn in rounds.

It learns as the others do, and has no more to say of the table than they. It says who takes part, when to
pause, and what is reported and saved.

A rank that is lost takes with it what it learned in the round under way: the others go on from the table that
the coordinator has merged, and make the steps after it again.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from dist_classicrl.comm.messages import decode, encode
from dist_classicrl.engines.decentralized.messages import RoundsBegin, RoundsCut, RoundsPlay, RoundsPlayed
from dist_classicrl.engines.decentralized.part import PlayerPart
from dist_classicrl.engines.outcome import Learned
from dist_classicrl.engines.roles.ordered import Broken, LearningServer
from dist_classicrl.engines.roles.peers import Peer, RoundClient
from dist_classicrl.engines.saving import Position
from dist_classicrl.errors import ProtocolError
from dist_classicrl.process.stop import Stop


@dataclass
class Coordinator(LearningServer[RoundClient, PlayerPart]):
    """Coordinates one call of `train`, and learns as one of the players."""

    can_rescue = True
    counts_as_worker = True
    why_more = "Its share of a round is that of the others."

    cut: RoundsCut = field(kw_only=True)
    steps: int = field(kw_only=True)

    def __post_init__(self) -> None:
        self.made = self.cut.made
        self._played: dict[int, RoundsPlayed] = {}
        self._stop: Stop | None = None
        super().__post_init__()
        self.part.use(self.table)
        self.part.made, self.part.stride = self.cut.made, self.cut.stride
        self.part.has_merged = self._has_merged
        self.part.wants_pause = self._wants_pause

    # What an engine does

    def run(self) -> Stop | None:
        """Let all learn until all steps are made."""
        while self.made < self.steps and not self.reporter.wants_end:
            self.members.check_earlier_losses()
            self._look()
            if self._stop is not None:
                return self._stop
            try:
                if self._must_begin or self._is_broken:
                    self._begin()
                self._play(self._until())
            except Broken:
                continue
            self.report_progress()
        return None

    @property
    def position(self) -> Position:
        """How far the run is, with the table as it is."""
        return Position(
            self.start + self.made, self.tally.to_dict(self.seconds), "async", version=self.table.version
        )

    @property
    def learning(self) -> int:
        """How many ranks learn."""
        return max(1, len(self.part.players))

    def new_client(self, is_first: bool) -> RoundClient:
        """Return what there is to know of another rank."""
        return RoundClient(not (is_first and self.knows_all))

    def take_in(self, peer: Peer[RoundClient], message: np.ndarray) -> None:
        """Take in what another rank has done, or what any may send."""
        match decode(message):
            case RoundsPlayed() as played:
                if self._is_due(peer, played.attempt):
                    self._played[peer.rank] = played
            case told:
                self.take_in_common(peer, told)

    # Rounds

    def _look(self) -> None:
        """Save, if it is time, and find out whether to stop."""
        saver, here = self.saver, self.start + self.made
        if saver is None:
            return
        self._stop = saver.look(here)
        if self._stop is None and self.made and saver.is_due(here):
            saver.begin(here)
            self.report_progress(now=True)
            self._snapshot.copy_now()
            saver.save(self._snapshot.values, self._snapshot.counts, self.position)

    def _until(self) -> int:
        """Return up to which step all learn without being asked to pause."""
        until = min(self.steps, self.made + self.reporter.next_step - self.tally.steps)
        if self.saver is not None:
            until = min(until, self.saver.next_step - self.start)
        return int(max(self.made + 1, until))

    def _wants_pause(self) -> bool:
        """Whether there is something to be done for which nobody may be learning."""
        saver, here = self.saver, self.start + self.made
        is_to_save = saver is not None and (saver.asked_to_stop is not None or saver.is_due(here))
        is_to_stop = saver is not None and saver.look(here) is not None
        return self._must_begin or is_to_save or is_to_stop or self.reporter.is_due(self.seconds)

    def _has_merged(self, steps: int, totals: np.ndarray) -> None:
        """Count a round that the table contains now."""
        self.made += steps
        self.tally.steps += steps
        self.tally.add_learned(Learned.of(totals))

    def _begin(self) -> None:
        """Let all who are there learn from the table as it is now."""
        part = self.part
        self._attempt = self.group.next_attempt(self._attempt)
        self._is_broken = self._must_begin = False
        # Who takes over before the first rounds are ordered counts on from this, too.
        cut = replace(part.cut, tally=self.tally.so_far(self.seconds))
        players = tuple(sorted([self.group.rank, *(peer.rank for peer in self.peers.learners)]))
        has_begun = bool(part.players)
        ready: dict[bool, np.ndarray] = {}
        for peer in self.peers.learners:
            # Who has begun may have merged one round more or less than this rank.
            is_whole = peer.client.is_new or has_begun
            if is_whole not in ready:
                refresh = self.table.refresh(-1 if is_whole else self.table.version)
                ready[is_whole] = encode(RoundsBegin(self._attempt, players, cut, refresh))
            peer.client.is_new = False
            peer.channel.send(ready[is_whole])
            self.tally.bytes_pulled += ready[is_whole].size
        part.begin(self._attempt, players, cut)
        self._laggards.begin()

    def _play(self, until: int) -> None:
        self._played = {}
        self._order(encode(RoundsPlay(self._attempt, until, self.tally.so_far(self.seconds))))
        self._played[self.group.rank] = self.part.play(until, self._tend)
        self._await(self._played, len(self.part.players))
        self._check_alike()
        self._count()

    def _check_alike(self) -> None:
        """Raise ProtocolError unless all have the same table."""
        own = self._played[self.group.rank]
        for rank, played in sorted(self._played.items()):
            if (played.made, played.digest) != (own.made, own.digest):
                raise ProtocolError(
                    f"After the same rounds rank {rank} has another table than rank {self.group.rank}, of "
                    f"{played.made} steps and {own.made}. An exchange pattern has to give all ranks sums "
                    "that were added up in the same order; and all hosts need one version of this library."
                )

    def _count(self) -> None:
        tally = self.tally
        for rank, played in self._played.items():
            spent = Learned(learning_seconds=played.learning_seconds, worker_seconds=played.worker_seconds)
            tally.pushes += played.rounds
            tally.bytes_pushed += played.bytes_sent
            tally.count_compression(played.bytes_saved, played.compressing)
            tally.learning_seconds += played.learning_seconds
            tally.worker_seconds += played.worker_seconds
            self.reporter.count(rank, played.steps, spent, n_bytes=played.bytes_sent)
            self._laggards.count(rank, played.steps, played.learning_seconds)
        self._laggards.judge()
