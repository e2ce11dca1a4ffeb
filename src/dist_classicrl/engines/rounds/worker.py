"""The workers of the reproducible mode: each plays the parts of some of the logical workers."""

from __future__ import annotations

from dataclasses import dataclass

from dist_classicrl._words import START_AGAIN
from dist_classicrl.comm.messages import encode
from dist_classicrl.comm.transport import Backoff, Channel
from dist_classicrl.engines.roles.messages import Final
from dist_classicrl.engines.roles.worker_base import Working
from dist_classicrl.engines.rounds.messages import Order, RoundOrder, RoundStart, WalkerState
from dist_classicrl.engines.rounds.part import RoundPart, carried_of
from dist_classicrl.engines.schedule import Pace
from dist_classicrl.errors import ProtocolError, RankLostError
from dist_classicrl.membership.election import Base
from dist_classicrl.membership.group import POLL_SECONDS


@dataclass(eq=False)
class RoundWorker(Working):
    """Carries some of the logical workers for one call of `train`, for one server after another if need be.

    `round` is where the round begins that it is in.
    """

    part: RoundPart
    pace: Pace  # of the first round
    begun_with: Base  # how new the table is, as the last round began with it

    def __post_init__(self) -> None:
        super().__post_init__()
        self.round = RoundStart(self.pace)
        self._has_played = self._has_finished = False
        self._order: RoundOrder | None = None
        self._looked = 0.0

    @property
    def base(self) -> Base:
        """How new this rank's table is: a server may have told it nothing but the end."""
        return Base.finished(self.final_term) if self.final is not None else self.begun_with

    def hand_in(self, admission: int) -> None:
        """Follow the server of a new view, which begins the round anew."""
        self.check_may_repeat()
        super().hand_in(admission)

    def begin_anew(self, channel: Channel, sequence: int) -> None:
        """Follow the server on `channel`, with walkers as they are told."""
        self.begun_with = Base()
        self.part.carried = []
        self.follow_on(channel)

    def check_may_repeat(self) -> None:
        """Raise a RankLostError if a round whose server is lost cannot be played again."""
        if not self.part.may_repeat:
            raise RankLostError(
                "The server is lost, and the state of environments or replay memories in the middle of a "
                "round cannot be put back, which the reproducible mode cannot do without. " + START_AGAIN
            )

    def give_up_server(self) -> None:
        """See `Working`."""
        super().give_up_server()
        self._order = None

    def run(self) -> Final | None:
        """Play the rounds that the server orders."""
        backoff = Backoff(self.group.wire.sleep)
        waits_since = self.group.wire.now()
        while self.final is None and not self.was_released:
            now = self.wake()
            self._take_in()
            if self._order is not None:
                backoff.expect(now - waits_since)  # the next one will take as long
                self._play_round(self._order)
                backoff.reset()
                waits_since = self.group.wire.now()
            else:
                self.pass_on_stop()
                self.channel.reap()
                self._leave_if_asked()
                self.look_around(now)
                backoff.wait()
        if self.final is not None:
            self.await_release()
        return self.final

    def _take_in(self) -> None:
        while self.final is None and (message := self.channel.poll()) is not None:
            match self.part.codec.decode(message)[0]:
                case RoundOrder() as order:
                    self._take_order(order)
                    self.note_server_progress()
                case told:
                    self.take_in_common(told)

    def _take_order(self, order: RoundOrder) -> None:
        """Move to the table at the beginning of a round, and get ready the learners that are this rank's."""
        term = self.group.view.term
        refresh, base = order.refresh, self.begun_with
        if refresh.since > base.version or refresh.since >= 0 and base.term != term:
            raise ProtocolError(
                f"A table from version {refresh.since} on came to a base of version {base.version}."
            )
        passed = order.start.number - self.round.number
        is_ready = passed == 1 and self._has_finished or passed == 0 and not self._has_played
        self.begun_with = Base(term, refresh.version)
        self.round = order.start
        self.part.begin(
            order.start,
            refresh,
            carried_of(self.group.rank, order.carried_by),
            len(order.carried_by),
            is_ready,
        )
        self._has_played = self._has_finished = False
        if order.order is not Order.GO_ON:
            for logical in self.part.carried:
                state = self.part.learner.state(logical)
                self.channel.send(encode(WalkerState(order.attempt, logical, state)))
        self._order = None if order.order is Order.TELL_STATE_AND_WAIT else order

    def _play_round(self, order: RoundOrder) -> None:
        """Play this rank's part of the round, unless the server begins it anew meanwhile."""
        self._order = None
        if self.part.carried:
            self._has_played = True
            maps = self.part.play(order.start, order.attempt, self._goes_on, self.show_progress)
            if maps is None:
                return
            self.channel.send(self.part.codec.encode(maps)[0])
        self._has_finished = True

    def _goes_on(self) -> bool:
        """Look around, and return whether the round still counts."""
        self._look()
        return self._order is None and self.final is None

    def _look(self) -> None:
        """Look now and then for what cannot wait for the end of this rank's part of the round."""
        now = self.wake()
        if now - self._looked < POLL_SECONDS:
            return
        self._looked = now
        self.pass_on_stop()
        self._take_in()
        self.look_around(now)
