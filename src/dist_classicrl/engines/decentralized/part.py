"""What one rank does in rounds without a server: it learns, and meanwhile exchanges the round before."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

import numpy as np

from dist_classicrl._random import stream_keys
from dist_classicrl.checks import is_whole
from dist_classicrl.comm.compression import Codec
from dist_classicrl.comm.transport import Backoff, Channel
from dist_classicrl.engines.decentralized.messages import RoundsCut, RoundsPlayed, SentSums
from dist_classicrl.engines.decentralized.patterns import (
    PATTERNS,
    Adder,
    Exchange,
    ExchangePattern,
    Step,
    Sums,
)
from dist_classicrl.engines.run import Run
from dist_classicrl.errors import ProtocolError, RankTimeoutError
from dist_classicrl.learning.learner import Learner, Stream
from dist_classicrl.learning.rates import Rates
from dist_classicrl.membership.group import Group
from dist_classicrl.tables.maps import PackedMap, PackedSums, Refresh, diverged, require_fit
from dist_classicrl.tables.round_merge import Parts, RoundMerge
from dist_classicrl.tables.shared import ServedTable

_TEND_SECONDS = 0.01
_SLICE_SECONDS = 0.002  # after which somebody may wait for what this rank passes on
_FIRST_SLICE = 4096
_SPINS = 20
"""So often others are looked for before this process sleeps."""


class Count(IntEnum):
    """What stands where in `SentSums.counted`."""

    STEPS = 0
    EPISODES = 1  # from here on as in `Totals`
    TD_ERRORS = 4
    WAITED = 5  # seconds
    PASSED = 6  # likewise, of the same time
    PAUSES = 7  # how many ranks ask for a pause
    MARKS = 8  # see `marks_of`


_COUNTS = len(Count) + 2  # with returns and lengths


def sums_of(packed: PackedMap) -> PackedSums:
    """Return the maps of one rank as sums of maps of one: `round_kernels.fold_maps` does so for a table's."""
    updates = packed.visits.astype(np.float64)
    if packed.replays is not None:
        updates = updates + packed.replays
    has_target = packed.weight < 1.0
    share = np.maximum(updates, 1.0)
    rest = np.where(has_target, 1.0 - packed.weight, 1.0)
    targets = np.where(has_target, share * (packed.shift / rest), packed.shift)
    return PackedSums(
        packed.entries,
        packed.weight,
        targets,
        np.where(has_target, share, 0.0),
        packed.visits.astype(np.int64),
    )


def marks_of(players: int, seed: int, *purpose: int | str) -> np.ndarray:
    """Return a whole number for each of so many players, float64, whose sum is exact in any order.

    A sum in which one is missing and another is there twice is another one, but by a chance of less than one
    in 2**30 with up to a million players.
    """
    bits = 53 - players.bit_length()
    marks = stream_keys(players, seed, "marks", *purpose) >> np.uint64(64 - bits)
    return marks.astype(np.float64)


def _named(value: Any) -> str:
    """Return what is said of a value where something else is due; arrays would fill the screen."""
    if value is None or is_whole(value):
        return repr(value)
    return f"an object of the class {type(value).__name__}"


@dataclass(eq=False)
class _UnderWay:
    """A round that is being exchanged."""

    exchange: Exchange
    steps: int  # of all ranks
    awaits: tuple[int, ...] = ()
    since: float = 0.0
    total: Sums | None = None  # once it is known


@dataclass(eq=False)
class PlayerPart:
    """What this rank does of a run: with whom is said by `begin`. Its table is what all have merged."""

    run: Run
    group: Group
    rates: Rates
    pattern_for: Callable[[Sequence[int]], ExchangePattern]
    codec: Codec
    ready_learner: Callable[[], Learner]
    table: ServedTable = field(init=False)  # see `use`

    def __post_init__(self) -> None:
        self.attempt = -1
        self.players: tuple[int, ...] = ()
        #: Called with what all ranks have counted in a round, as soon as the table contains it.
        self.has_merged: Callable[[int, np.ndarray], None] = lambda steps, totals: None
        #: Whether this rank wants the others to pause, asked at the end of each round.
        self.wants_pause: Callable[[], bool] = lambda: False
        self._channels: dict[int, Channel] = {}  # by place
        self._came: dict[int, deque[tuple[int, Sums]]] = {}
        self._under_way: _UnderWay | None = None
        self._adder: Adder | None = None
        self._unshared: list[PackedMap] = []  # of a round that is learned, and not exchanged yet
        self._tended = 0.0

    def use(self, table: ServedTable) -> None:
        """Merge into this table, which is the run's."""
        self.table = table
        self.table.in_order = self.codec.wants_order

    def begin(self, attempt: int, players: tuple[int, ...], cut: RoundsCut) -> None:
        """Learn with these players from now on, with the table as it is now, from `cut` on."""
        self.close()
        group = self.group
        self.attempt, self.players = attempt, players
        self.made, self.stride = cut.made, cut.stride
        self._place = players.index(group.rank)
        names = [group.host_of(rank) for rank in players]
        self._hosts = tuple(names.index(name) for name in names)
        self._pattern = self.pattern_for(self._hosts)
        self._marks = marks_of(len(players), self.run.seed, self.run.generation, attempt)
        self.rates.set_workers(len(players))
        self._learner = self.ready_learner()
        self._learner.totals.take()  # of a round that somebody's death has ended
        if self._adder is None:
            self._adder = Adder(self.table.values.size, self.codec.wants_order)
        self._merge = RoundMerge(self.table)
        self._tag = group.tag_between_workers(attempt)
        self._came = {place: deque() for place in range(len(players))}
        self._unshared = []
        self._begun = self.made  # steps of the rounds that have begun
        self._number = -1  # of the last round that is exchanged
        self._is_pausing = False
        self._slice = _FIRST_SLICE
        self._waited = 0.0
        self._told = self.group.wire.now()
        self._steps = self._rounds = self._n_sent = self._n_saved = 0
        self._learning = 0.0

    @property
    def patience(self) -> float:
        """Seconds that somebody's part of a round is waited for."""
        return self.group.timing.stuck

    def close(self) -> None:
        """Exchange nothing more."""
        self._under_way = None
        for channel in self._channels.values():
            channel.close()
        self._channels = {}

    def take(self, refresh: Refresh) -> None:
        """Let the table be what the coordinator has told."""
        self.table.follow(refresh)

    # Rounds

    def play(self, until: int, tend: Callable[[], None]) -> RoundsPlayed:
        """Learn in rounds up to step `until`, or to the second round after somebody has asked for a pause.

        Then the table contains all that was learned. `tend` is called every 10 ms. What that raises ends it,
        somewhere in the middle: then there has to be another `begin`.
        """
        self._is_pausing = is_pausing = False
        stride = self.stride
        while True:
            own = None
            if self._begun < until and not is_pausing:
                together = len(self.players) * stride.updates * self.run.settings.batch_size
                steps = min(together, until - self._begun)
                own = self._learn(steps, tend)
            self._finish(tend)
            if own is None:
                break
            # One rank merges the round that it begins to exchange here before it learns on, another one
            # later. What both do next depends on the rounds before alone.
            stride, is_pausing = self.stride, self._is_pausing
            self._exchange(own, steps)
        return self._played()

    def _learn(self, steps: int, tend: Callable[[], None]) -> Sums:
        """Make this rank's share of a round of so many steps, and return what it learned."""
        run, learner = self.run, self._learner
        ranks, place = len(self.players), self._place
        share, more = divmod(steps, ranks)
        own = share + (place < more)
        start = run.start + self._begun
        keys = stream_keys(ranks, run.seed, "decentralized", run.generation, self.attempt, start)
        self._begun += steps
        before = begun = self.group.wire.now()
        waited, learning = self._waited, 0.0

        def is_late() -> bool:
            return self.group.wire.now() - before >= _SLICE_SECONDS

        stream = Stream(keys[place], start + place * share + min(place, more), is_cut=is_late, last=own)
        while stream.used < own:
            before, used = self.group.wire.now(), stream.used
            learner.learn(self.group.rank, stream, min(own - used, max(self._slice, learner.quantum)))
            passed, made = self.group.wire.now() - before, stream.used - used
            learning += passed
            self._slice = max(1, min(2 * self._slice, int(made * _SLICE_SECONDS / max(passed, 1e-9))))
            self._advance()
            self._tend(tend)
        totals = learner.totals.take()
        packed = learner.table.pack(in_order=self.codec.wants_order)
        self._unshared = [packed]
        self._steps += own
        self._learning += learning
        self._waited = 0.0
        passed = waited + self.group.wire.now() - begun
        counted = np.zeros(_COUNTS)
        counted[Count.STEPS] = own
        counted[Count.EPISODES : Count.TD_ERRORS + 1] = totals
        counted[Count.WAITED], counted[Count.PASSED] = waited, passed
        counted[Count.PAUSES] = self.wants_pause()
        counted[Count.MARKS] = self._marks[place]
        assert self._adder is not None  # from `begin`
        return Sums(sums_of(packed), counted, self._adder)

    def _exchange(self, own: Sums, steps: int) -> None:
        """Begin to exchange what was learned in a round of so many steps."""
        self._number += 1
        self._unshared = []  # what is merged next has it
        exchange = self._pattern.exchange(self._place, self._hosts, own)
        if not isinstance(exchange, Generator):
            raise self._misfit(
                f"its exchange gives {_named(exchange)}, where a generator is due. Let it yield a Step, or, "
                "where a rank has nothing to send, write `yield Step()`"
            )
        self._under_way = under_way = _UnderWay(exchange, steps, since=self.group.wire.now())
        self._rounds += 1
        self._step(under_way, None)
        self._advance()

    def _finish(self, tend: Callable[[], None]) -> None:
        """Wait for the round that is being exchanged, if there is one."""
        wire = self.group.wire
        begun = self.group.wire.now()
        backoff = Backoff(wire.sleep, _SPINS)
        while (under_way := self._under_way) is not None:
            has_moved = self._advance()
            self._tend(tend)
            if has_moved:
                backoff.reset()
                continue
            backoff.wait()
            if wire.now() - max(begun, under_way.since) > self.patience:  # before, this rank learned
                self._give_up(under_way)
        self._waited += self.group.wire.now() - begun

    def _give_up(self, under_way: _UnderWay) -> None:
        waits_for = ", ".join(str(self.players[place]) for place in under_way.awaits)
        raise RankTimeoutError(
            f"Rank {self.group.rank} has waited for {self.patience:g} s for the sums of rank "
            f"{waits_for}, which is there. If a round of {self.stride.updates} updates can take so long, "
            "raise timeout= or lower sync_frequency=; else the exchange pattern, "
            f"{type(self._pattern).__name__}, makes ranks wait for what nobody sends."
        )

    def _advance(self) -> bool:
        """Take in what has come, and go on as far as that goes; return whether that was at all."""
        under_way = self._under_way
        if under_way is None:
            return False
        if self._channels:
            for channel, message in self.group.wire.receive(list(self._channels.values())):
                self._take_in(channel.peer, message)
        has_moved = False
        while under_way.total is None and all(self._came[place] for place in under_way.awaits):
            self._step(under_way, {place: self._next_of(place) for place in under_way.awaits})
            has_moved = True
        if under_way.total is not None:
            self._under_way = None
            self._merge_in(under_way.total, under_way.steps)
            has_moved = True
        return has_moved

    def _step(self, under_way: _UnderWay, came: dict[int, Sums] | None) -> None:
        """Let the exchange take what it waited for, and send what it gives next."""
        exchange = under_way.exchange
        try:
            step = next(exchange) if came is None else exchange.send(came)
        except StopIteration as ended:
            if not isinstance(ended.value, Sums):
                raise self._misfit(
                    f"its exchange returns {_named(ended.value)}, where the sum of all ranks is due, of the "
                    "class Sums. End it with for instance `return total`"
                ) from None
            under_way.total = ended.value
            return
        self._check_step(step)
        encoded: dict[int, tuple[np.ndarray, int]] = {}
        for place, sums in step.send.items():
            if id(sums) not in encoded:
                told = SentSums(self._number, sums.maps, sums.counted)
                encoded[id(sums)] = self.codec.encode(told)
            message, saved = encoded[id(sums)]
            self._channel(place).send(message)
            self._n_sent += message.size
            self._n_saved += saved
        for place in step.awaits:
            self._channel(place)
        under_way.awaits, under_way.since = tuple(step.awaits), self.group.wire.now()

    def _check_step(self, step: Any) -> None:
        """Raise ProtocolError unless that is a step: sums by place, and places that are awaited."""
        if not isinstance(step, Step):
            raise self._misfit(
                f"its exchange yields {_named(step)}, where a Step is due. Write for instance "
                "`came = yield Step({other: total}, (other,))`"
            )
        if not isinstance(step.send, Mapping) or not all(map(is_whole, step.send)):
            raise self._misfit(
                f"a Step sends {_named(step.send)}, where a dictionary of Sums by the place of who gets them "
                "is due. Write for instance `Step({other: total})`"
            )
        for sums in step.send.values():
            if not isinstance(sums, Sums):
                raise self._misfit(
                    f"a Step sends {_named(sums)}, where Sums are due. Send what exchange is given, what has "
                    "come, or what plus, split or joined make of them"
                )
        awaits = step.awaits
        if not isinstance(awaits, Collection) or not all(map(is_whole, awaits)):
            raise self._misfit(
                f"a Step awaits {_named(awaits)}, where places are due. Write for instance "
                "`Step(awaits=(other,))`"
            )
        if len(set(awaits)) < len(awaits):
            raise self._misfit(f"a Step awaits a place twice, of {awaits!r}. Name each once")

    def _misfit(self, what: str) -> ProtocolError:
        return ProtocolError(
            f"The exchange pattern {type(self._pattern).__name__} cannot be followed: {what}."
        )

    def _channel(self, place: int) -> Channel:
        """Return the channel to the player at a place, which is opened when it is first needed."""
        if place not in self._channels:
            if place == self._place or place not in self._came:
                raise ProtocolError(
                    f"The exchange pattern {type(self._pattern).__name__} has the rank at place "
                    f"{self._place} talk to place {place}, which is none of the other "
                    f"{len(self.players) - 1}."
                )
            self._channels[place] = self.group.wire.channel(self.players[place], self._tag)
        return self._channels[place]

    def _take_in(self, rank: int, message: np.ndarray) -> None:
        told, _ = self.codec.decode(message)
        if not (isinstance(told, SentSums) and told.counted.dtype == np.float64):
            raise ProtocolError(f"Rank {rank} sent {type(told).__name__} where the sums of a round are due.")
        require_fit(told.maps.entries, told.maps, self.table.values.size)
        assert self._adder is not None  # from `begin`
        sums = Sums(told.maps, told.counted, self._adder)
        self._came[self.players.index(rank)].append((told.number, sums))

    def _next_of(self, place: int) -> Sums:
        number, sums = self._came[place].popleft()
        if number != self._number:
            raise ProtocolError(
                f"Rank {self.players[place]} sent sums of round {number} where those of round {self._number} "
                f"are due: by the pattern {type(self._pattern).__name__} ranks do not wait for all that is "
                "sent to them."
            )
        return sums

    def _merge_in(self, total: Sums, steps: int) -> None:
        """Bring the table, and what this rank learns on, to what all have learned in a round."""
        counted = total.counted
        if counted.size != _COUNTS or counted[Count.STEPS] != steps:
            made = f"{counted[0]:.0f}" if counted.size else "no"
            raise ProtocolError(
                f"The sum of a round has {made} steps, where all ranks together made {steps}: the exchange "
                f"pattern {type(self._pattern).__name__} has to add up what each rank gives it exactly once."
            )
        if counted[Count.MARKS] != self._marks.sum():
            raise ProtocolError(
                "The sum of a round has as many steps as all ranks made, but not those of each: the exchange "
                f"pattern {type(self._pattern).__name__} has to add up what each rank gives it exactly once."
            )
        self._check_finite(total.maps)
        before = self.table.version
        load = self._merge.merge([Parts.one(0, total.maps, len(self.players))])
        self._learner.table.rebase(self.table.refresh(before), self._unshared)
        self.made += steps
        ranks = len(self.players)
        waited = float(counted[Count.WAITED] / max(counted[Count.PASSED], 1e-9))
        self.stride = self.stride.after(
            self.made, load, waited, self.table.values, self.run.settings, ranks, before=self.run.start
        )
        self._is_pausing = self._is_pausing or counted[Count.PAUSES] > 0.0
        self.has_merged(steps, counted[Count.EPISODES : Count.TD_ERRORS + 1])

    def _check_finite(self, maps: PackedSums) -> None:
        """Raise an error where the sum of a round is of no use; what each rank gave was finite."""
        targets = maps.targets
        if np.isfinite(targets).all():
            return
        what, name = "What was learned in a round is no finite number", type(self._pattern).__name__
        if type(self._pattern) not in PATTERNS.values():
            if np.isnan(targets).any():
                raise ProtocolError(
                    "The sum of a round has targets that are no numbers (NaN), and no rank gave such: the "
                    f"exchange pattern {name} has to add up what each rank gives it exactly once."
                )
            what = f"What was learned in a round, as the exchange pattern {name} added it up, is not finite"
        raise diverged(what, self.table.values.dtype)

    def _played(self) -> RoundsPlayed:
        now = self.group.wire.now()
        digest = zlib.crc32(self.table.counts.data, zlib.crc32(self.table.values.data))
        told = RoundsPlayed(
            self.attempt,
            self.made,
            digest,
            self._steps,
            self._rounds,
            self._n_sent,
            self._n_saved,
            self.codec.take_seconds(),
            self._learning,
            now - self._told,
        )
        self._told = now
        self._steps = self._rounds = self._n_sent = self._n_saved = 0
        self._learning = 0.0
        return told

    @property
    def cut(self) -> RoundsCut:
        """Where the table is, without the tally."""
        return RoundsCut(self.made, replace(self.stride))

    def _tend(self, tend: Callable[[], None]) -> None:
        now = self.group.wire.now()
        if now - self._tended > _TEND_SECONDS:
            self._tended = now
            tend()
            for channel in self._channels.values():
                channel.reap()
