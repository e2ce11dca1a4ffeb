"""The ranks that do not coordinate, where all learn in rounds."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

import numpy as np

from dist_classicrl.comm.messages import decode, encode
from dist_classicrl.comm.transport import Backoff, Channel
from dist_classicrl.engines.decentralized.messages import Begin, Cut, Play
from dist_classicrl.engines.decentralized.part import RoundPart
from dist_classicrl.engines.outcome import Counted
from dist_classicrl.engines.roles.messages import Final
from dist_classicrl.engines.roles.worker_base import Working
from dist_classicrl.membership.election import Base


class _Superseded(Exception):
    """Something else is to be done than what is being done."""


@dataclass(eq=False)
class Player(Working):
    """Learns in one call of `train`, for one coordinator after another if need be."""

    part: RoundPart
    begun_with: Base  # how new the table was before this rank first learned

    def __post_init__(self) -> None:
        super().__post_init__()
        self._orders: deque[Begin | Play] = deque()
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
    def cut(self) -> Cut:
        """Where a coordinator would go on that has what this rank has."""
        return replace(self.part.cut, tally=self._tally)

    def hand_in(self, admission: int) -> None:
        """Follow the coordinator of a new view, which begins where the newest table is."""
        self.follow(admission)

    def begin_anew(self, channel: Channel, sequence: int) -> None:
        """Follow the coordinator on `channel`, which tells the table."""
        self.begun_with, self._term_of_table = Base(), -1
        self.follow_on(channel)

    def give_up_server(self) -> None:
        """Take nothing from the coordinator any more."""
        self.channel.close()
        self.part.close()
        self._orders.clear()
        self._leaving = False

    def run(self) -> Final | None:
        """Do what the coordinator orders."""
        backoff = Backoff(self.group.wire.sleep)
        while self.final is None and not self.was_released:
            self._tend_idle()
            if self._orders:
                try:
                    self._obey(self._orders.popleft())
                except _Superseded:
                    self.part.close()
                backoff.reset()
            else:
                backoff.wait()
        if self.final is not None:
            self.await_release()
        return self.final

    def _obey(self, order: Begin | Play) -> None:
        part = self.part
        match order:
            case Begin():
                part.take(order.refresh)
                self.begun_with = Base(self.group.view.term, order.refresh.version)
                self._term_of_table = self.group.view.term
                self._tally = order.cut.tally
                part.begin(order.attempt, order.players, order.cut)
            case Play() if order.attempt == part.attempt:
                self._tally = order.tally
                self.channel.send(encode(part.play(order.until, self._tend)))

    def _has_merged(self, steps: int, totals: np.ndarray) -> None:
        """Count a round that the table contains now, should this rank have to coordinate."""
        if self._tally is not None:
            counters = self._tally.counters.copy()
            counters.steps += steps
            counters.episodes += float(totals[0])
            counters.returns += float(totals[1])
            counters.lengths += float(totals[2])
            counters.td_errors += float(totals[3])
            self._tally = replace(self._tally, counters=counters)

    def _tend_idle(self) -> None:
        now = self.wake()
        self._take_in()
        self.pass_on_stop()
        self.channel.reap()
        self._leave_if_asked()
        self.look_around(now)

    def _tend(self) -> None:
        """Look for what cannot wait for the end of the rounds that were ordered."""
        self._tend_idle()
        if self.final is not None or self.was_released or self._orders:
            raise _Superseded

    def _take_in(self) -> None:
        while self.final is None and (message := self.channel.poll()) is not None:
            match decode(message):
                case Begin() as order:
                    self._orders.clear()  # they were of what came before
                    self._orders.append(order)
                    self.note_server_progress()
                case Play() as order:
                    self._orders.append(order)
                    self.note_server_progress()
                case told:
                    self.take_in_common(told)
