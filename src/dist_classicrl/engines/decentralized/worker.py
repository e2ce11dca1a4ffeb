"""The ranks that do not coordinate, where all learn in rounds."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dist_classicrl.comm.messages import decode, encode
from dist_classicrl.comm.transport import Channel
from dist_classicrl.engines.decentralized.messages import RoundsBegin, RoundsCut, RoundsPlay
from dist_classicrl.engines.decentralized.part import PlayerPart
from dist_classicrl.engines.outcome import Counted, Learned
from dist_classicrl.engines.roles.ordered import OrderedWorker
from dist_classicrl.membership.election import Base


@dataclass(eq=False)
class Player(OrderedWorker[PlayerPart, RoundsBegin | RoundsPlay]):
    """Learns in one call of `train`, for one coordinator after another if need be."""

    begun_with: Base  # how new the table was before this rank first learned

    def __post_init__(self) -> None:
        super().__post_init__()
        self._tally: Counted | None = None
        self._term_of_table = self.begun_with.term
        self.part.has_merged = self._has_merged
        self.part.wants_pause = lambda: False  # who coordinated before does so no more

    @property
    def base(self) -> Base:
        """How new this rank's table is: its version counts rounds."""
        if self.final is not None:
            return Base.finished(max(0, self._term_of_table))
        return Base(self._term_of_table, self.part.table.version if self.begun_with.is_some else -1)

    @property
    def cut(self) -> RoundsCut:
        """Where a coordinator would go on that has what this rank has."""
        return replace(self.part.cut, tally=self._tally)

    def begin_anew(self, channel: Channel, sequence: int) -> None:
        """Follow the coordinator on `channel`, which tells the table."""
        self.begun_with, self._term_of_table = Base(), -1
        self.follow_on(channel)

    def _obey(self, order: RoundsBegin | RoundsPlay) -> None:
        part = self.part
        match order:
            case RoundsBegin():
                part.take(order.refresh)
                self.begun_with = Base(self.group.view.term, order.refresh.version)
                self._term_of_table = self.group.view.term
                self._tally = order.cut.tally
                part.begin(order.attempt, order.players, order.cut)
            case RoundsPlay() if order.attempt == part.attempt:
                self._tally = order.tally
                self.channel.send(encode(part.play(order.until, self._tend)))

    def _has_merged(self, steps: int, totals: np.ndarray) -> None:
        """Count a round that the table contains now, should this rank have to coordinate."""
        if self._tally is not None:
            counters = self._tally.counters.copy()
            counters.steps += steps
            counters.add_learned(Learned.of(totals))
            self._tally = replace(self._tally, counters=counters)

    def _take_in(self) -> None:
        while self.final is None and (message := self.channel.poll()) is not None:
            match decode(message):
                case RoundsBegin() as order:
                    self._orders.clear()  # they were of what came before
                    self._orders.append(order)
                    self.note_server_progress()
                case RoundsPlay() as order:
                    self._orders.append(order)
                    self.note_server_progress()
                case told:
                    self.take_in_common(told)
