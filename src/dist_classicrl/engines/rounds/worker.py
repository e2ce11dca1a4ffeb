"""The workers of the reproducible mode: each plays the parts of some of the logical workers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from dist_classicrl.comm.compression import Codec
from dist_classicrl.comm.messages import encode
from dist_classicrl.comm.transport import Backoff, Channel
from dist_classicrl.engines.roles.messages import Final
from dist_classicrl.engines.roles.worker_base import Working
from dist_classicrl.engines.rounds.messages import Order, RoundMaps, RoundOrder, RoundStart, WalkerState
from dist_classicrl.engines.schedule import Pace, RoundPlayer, next_round, states_of
from dist_classicrl.errors import ProtocolError, RankLostError
from dist_classicrl.learning.learner import Learner
from dist_classicrl.learning.quotas import Quotas
from dist_classicrl.learning.state import State, unstack_states
from dist_classicrl.membership.election import Base
from dist_classicrl.membership.group import POLL_SECONDS
from dist_classicrl.settings import Settings


@dataclass(eq=False)
class RoundWorker(Working):
    """Carries some of the logical workers for one call of `train`, for one server after another if need be.

    `carried` are its logical workers, and `round` is where the round begins that it is in.
    """

    learner: Learner  # its walkers are logical workers
    begin_walkers: Callable[[list[int]], None]  # gives the learner these, as the run begins with them
    settings: Settings
    start: int  # first global step of the whole run
    steps: int  # of the whole run
    seed: int
    pace: Pace  # of the first round
    may_repeat: bool  # see `RoundServer`
    begun_with: Base  # how new the table is, as the last round began with it
    codec: Codec = field(default_factory=Codec, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.round = RoundStart(self.pace)
        self._player = RoundPlayer(self.learner, self.codec.wants_order)
        self.carried: list[int] = []
        self._has_played = self._has_finished = False
        self._leaving = False
        self._order: RoundOrder | None = None
        self._told = time.perf_counter()
        self._looked = 0.0

    @property
    def base(self) -> Base:
        """How new this rank's table is."""
        return Base.finished(self.begun_with.term) if self.final is not None else self.begun_with

    def hand_in(self, admission: int) -> None:
        """Follow the server of a new view, which begins the round anew."""
        self.check_may_repeat()
        self.follow(admission)

    def begin_anew(self, channel: Channel, sequence: int) -> None:
        """Follow the server on `channel`, with walkers as they are told."""
        self.begun_with = Base()
        self.carried = []
        self.follow_on(channel)

    def check_may_repeat(self) -> None:
        """Raise a RankLostError if a round whose server is lost cannot be played again."""
        if not self.may_repeat:
            raise RankLostError(
                "The server is lost, and the state of environments or replay memories in the middle of a "
                "round cannot be put back, which the reproducible mode cannot do without. Start the job "
                "again, best with `python -m dist_classicrl launch`: it goes on from the last checkpoint."
            )

    def give_up_server(self) -> None:
        """Take nothing from the server any more."""
        self.channel.close()
        self._order = None
        self._leaving = False

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

    def _leave_if_asked(self) -> None:
        why = None if self._leaving else self.wants_to_leave()
        if why is not None:
            self._leaving = True
            self.say_leave("left", why, waits=False)

    def _take_in(self) -> None:
        while self.final is None and (message := self.channel.poll()) is not None:
            match self.codec.decode(message)[0]:
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
        self.learner.table.rebase(refresh, [])
        passed = order.start.number - self.round.number
        is_ready = passed == 1 and self._has_finished or passed == 0 and not self._has_played
        self.begun_with = Base(term, refresh.version)
        self.round = order.start
        mine = [number for number, rank in enumerate(order.carried_by) if rank == self.group.rank]
        if mine != self.carried or not is_ready:
            learners = order.start.learners
            self._carry(mine, unstack_states(learners, len(order.carried_by)) if learners else [])
        self._has_played = self._has_finished = False
        if order.order is not Order.GO_ON:
            for logical in self.carried:
                state = self.learner.state(logical)
                self.channel.send(encode(WalkerState(order.attempt, logical, state)))
        self._order = None if order.order is Order.TELL_STATE_AND_WAIT else order

    def _carry(self, mine: list[int], states: list[State]) -> None:
        """Carry the logical workers `mine` in these states of all of them, or as new where there are none."""
        self.begin_walkers([logical for logical in mine if logical not in self.carried or not states])
        self.carried = mine
        if states:
            for logical in mine:
                self.learner.restore(logical, states[logical])

    def _play_round(self, order: RoundOrder) -> None:
        """Play this rank's part of the round, unless the server begins it anew meanwhile."""
        self._order = None
        if self.carried:
            made, pace = order.start.made, order.start.pace
            quotas = next_round(self.settings, pace.updates, self.start + made, self.steps - made, self.seed)
            if not self._play(order.attempt, quotas.of(range(self.carried[0], self.carried[-1] + 1))):
                return
        self._has_finished = True

    def _play(self, attempt: int, quotas: Quotas) -> bool:
        """Do these quotas and tell what was learned, unless the server begins the round anew meanwhile."""
        self._has_played = True
        begin = time.perf_counter()
        played = self._player.play(quotas, self._goes_on)
        if played is None:
            return False
        parts, totals = played
        now = time.perf_counter()
        learning, passed = now - begin, now - self._told
        self._told = now
        learners = states_of(self.learner, self.carried) if self.may_repeat else {}
        seconds = self.codec.take_seconds()
        maps = RoundMaps(attempt, quotas.total, learning, passed, totals.ravel(), parts, learners, seconds)
        self.channel.send(self.codec.encode(maps)[0])
        return True

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
