"""The part of a rank in the rounds of the reproducible mode: the logical workers that it plays."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from dist_classicrl.comm.compression import Codec
from dist_classicrl.engines.rounds.messages import RoundMaps, RoundStart
from dist_classicrl.engines.schedule import RoundPlayer, next_quotas, states_of
from dist_classicrl.learning.learner import Learner
from dist_classicrl.learning.state import State, unstack_states
from dist_classicrl.settings import Settings
from dist_classicrl.tables.maps import Refresh


@dataclass(eq=False)
class RoundPart:
    """What a rank learns with in rounds; `carried` are its logical workers, which follow each other."""

    learner: Learner  # its walkers are logical workers
    begin_walkers: Callable[[list[int]], None]  # gives the learner these, as the run begins with them
    settings: Settings
    start: int  # first global step of the whole run
    steps: int  # of the whole run
    seed: int
    may_repeat: bool  # see `RoundServer`
    codec: Codec = field(default_factory=Codec, kw_only=True)
    carried: list[int] = field(default_factory=list, kw_only=True)

    def __post_init__(self) -> None:
        self._player = RoundPlayer(self.learner, self.codec.wants_order)
        self._told = time.perf_counter()

    def begin(self, start: RoundStart, refresh: Refresh, carried: list[int], n: int, is_ready: bool) -> None:
        """Move to the table at the beginning of a round, as whoever carries these of `n` logical workers.

        `is_ready`: the learners have played all rounds before this one, and nothing of this one.
        """
        self.learner.table.rebase(refresh, [])
        if carried != self.carried or not is_ready:
            self._carry(carried, unstack_states(start.learners, n) if start.learners else [])
            self._told = time.perf_counter()  # what was before is no time of these rounds

    def _carry(self, mine: list[int], states: list[State]) -> None:
        """Carry the logical workers `mine` in these states of all of them, or as new where there are none."""
        self.begin_walkers([logical for logical in mine if logical not in self.carried or not states])
        self.carried = mine
        if states:
            for logical in mine:
                self.learner.restore(logical, states[logical])

    def play(
        self,
        start: RoundStart,
        attempt: int,
        goes_on: Callable[[], bool],
        between_steps: Callable[[], None] = lambda: None,
    ) -> RoundMaps | None:
        """Play this rank's part of a round; see `RoundPlayer.play`."""
        updates, made = start.pace.updates, start.made
        all_quotas = next_quotas(self.settings, updates, self.start + made, self.steps - made, self.seed)
        quotas = all_quotas.of(range(self.carried[0], self.carried[-1] + 1))
        begin, away = time.perf_counter(), 0.0

        def looks_around() -> bool:
            nonlocal away
            left = time.perf_counter()
            is_to_go_on = goes_on()
            away += time.perf_counter() - left
            return is_to_go_on

        played = self._player.play(quotas, looks_around, between_steps)
        if played is None:
            return None
        parts, totals = played
        now = time.perf_counter()
        learning, passed = now - begin - away, now - self._told
        self._told = now
        learners = states_of(self.learner, self.carried) if self.may_repeat else {}
        seconds = self.codec.take_seconds()
        return RoundMaps(attempt, quotas.total, learning, passed, totals.ravel(), parts, learners, seconds)


def carried_of(rank: int, carried_by: Iterable[int]) -> list[int]:
    """Return the logical workers of a rank, by who carries each."""
    return [number for number, carrier in enumerate(carried_by) if carrier == rank]
