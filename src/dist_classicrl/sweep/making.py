"""How the runs of a study are made in one process: one after the other, or many at once by a card."""

from __future__ import annotations

import logging
from collections.abc import Container, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from dist_classicrl.engines.engine import engine_for
from dist_classicrl.environments.resolve import Source, with_exploring_starts
from dist_classicrl.errors import DistClassicRLError
from dist_classicrl.evaluation import LONGEST_EPISODE
from dist_classicrl.evaluation.episodes import play_table
from dist_classicrl.learning.card.cards import Card
from dist_classicrl.learning.card.choosing import card_of_this_rank
from dist_classicrl.learning.card.runs import CardRuns, Made, kind_of_run, why_not_at_once
from dist_classicrl.model.agent_state import AgentState
from dist_classicrl.model.fit import look_at
from dist_classicrl.settings import Settings
from dist_classicrl.sweep.plan import Parcel, Plan, Trial
from dist_classicrl.sweep.trial import (
    LONG_STEPS,
    Laboratory,
    judged,
    looked_at,
    next_point,
    number,
    record_of,
)

logger = logging.getLogger(__name__)

_ENGINE = "local"  # that of a process alone, whose steps a thread of a card makes


@dataclass(frozen=True)
class _Kind:
    """What is the same for runs that a card makes at once."""

    environment: str
    settings: str
    total_steps: int


class Making:
    """Makes the runs of a study in this process.

    `environments` and `folder` are as for `Laboratory`, `costs` as for `Plan.parcels`. Which runs a card
    makes at once depends on the study alone: a run that a card makes by itself, with many episodes under way,
    comes to another table.
    """

    def __init__(
        self, plan: Plan, environments: Mapping[str, Any], costs: Mapping[str, float], folder: Path
    ) -> None:
        self._plan, self._costs = plan, costs
        self._laboratory = Laboratory(plan, environments, folder)
        #: Whether this process may use a card; one that was forked may not.
        self.may_use_cards = True
        self._good: dict[str, Trial] = {}  # a run in each environment that ended well in this process
        self._kinds: dict[tuple[str, int, int], _Kind | None] = {}
        self._sources: dict[tuple[str, bool | None], Source] = {}
        self._runs: dict[_Kind, CardRuns] = {}
        self._said: set[str] = set()

    def stop_long_runs_on(self, signals: Iterable[int]) -> None:
        """Let long runs save what they have, and stop, on these signals."""
        self._laboratory.stop_signals = signals

    def compile(self, made: Container[str]) -> None:
        """See `Laboratory.compile`."""
        self._laboratory.compile(made)

    def tidy(self, trials: Iterable[Trial]) -> None:
        """See `Laboratory.tidy`."""
        self._laboratory.tidy(trials)

    def parcels(self, trials: Sequence[Trial]) -> list[Parcel]:
        """Return the runs in parcels, alike in all processes."""
        return self._plan.parcels(trials, self._costs, self._kind_of)

    def can_make(self, trials: Sequence[Trial]) -> bool:
        """Whether this process can make these runs."""
        return self.may_use_cards or self.can_be_made_apart(trials)

    def can_be_made_apart(self, trials: Sequence[Trial]) -> bool:
        """Whether a process that was forked can make these runs: it can use no card."""
        return not any(self._wants_card(trial) for trial in trials)

    def try_out(self, trials: Sequence[Trial]) -> None:
        """Use the environments of runs as this process has, or the one that it was forked from.

        Threads that an environment has begun are missing in a forked process, where it may hang or crash.
        """
        for trial in {each.environment: each for each in trials}.values():
            self._laboratory.try_out(trial, self._good.get(trial.environment))

    def records(self, trials: Sequence[Trial]) -> Generator[dict[str, Any], None, None]:
        """Make runs, and yield the record of each when it is there."""
        at_once: dict[_Kind, list[Trial]] = {}
        for trial in trials:
            kind = self._kind_of(trial)
            if kind is None:
                record = self._laboratory.run(trial)
                if record["error"] is None:
                    self._good[trial.environment] = trial
                yield record
            else:
                at_once.setdefault(kind, []).append(trial)
        for kind, those in at_once.items():
            yield from self._made_at_once(kind, those)

    def _wants_card(self, trial: Trial) -> bool:
        return self._laboratory.settings_of(trial.variant).device == "cuda"

    def _kind_of(self, trial: Trial) -> _Kind | None:
        """Return what runs have in common that a card makes at once with this one; None: it makes none."""
        key = trial.environment, trial.variant, trial.total_steps
        if key not in self._kinds:
            self._kinds[key] = self._new_kind(trial) if self._wants_card(trial) else None
        return self._kinds[key]

    def _new_kind(self, trial: Trial) -> _Kind | None:
        settings = self._laboratory.settings_of(trial.variant)
        why = self._why_not(trial, settings)
        if why is None:
            return _Kind(trial.environment, kind_of_run(settings), trial.total_steps)
        if why not in self._said:
            self._said.add(why)
            logger.info("Runs in %s are made one after the other: %s.", trial.environment, why)
        return None

    def _why_not(self, trial: Trial, settings: Settings) -> str | None:
        """Return why a card cannot make a run at once with others."""
        if trial.total_steps > LONG_STEPS:
            return f"runs of more than {LONG_STEPS:,.0f} steps keep checkpoints"
        try:
            source = _as_trained_in(self._source(trial.environment, settings), settings)
            if (why := why_not_at_once(source, settings)) is not None:
                return why
            look_at(AgentState(settings), self._environment(trial.environment, settings)).close()
            engine = engine_for(settings, 1, settings.placement).name
        except DistClassicRLError as error:  # which each run raises
            return str(error).rstrip(".")
        return None if engine == _ENGINE else f"the engine {engine!r} is none of a core"

    def _environment(self, name: str, settings: Settings) -> Any:
        return self._laboratory.environment(name, settings.use_action_mask)

    def _source(self, name: str, settings: Settings) -> Source:
        """Return an environment as it is evaluated in."""
        key = name, settings.use_action_mask
        if key not in self._sources:
            self._sources[key] = looked_at(self._environment(name, settings), settings.use_action_mask)
        return self._sources[key]

    @cached_property
    def _card(self) -> Card:
        return card_of_this_rank()

    def _made_at_once(self, kind: _Kind, trials: list[Trial]) -> Iterator[dict[str, Any]]:
        """Make runs at once, as many at a time as there is room for, and yield their records."""
        settings_of = self._laboratory.settings_of
        asked = [(settings_of(trial.variant), trial.seed) for trial in trials]
        ends, left = list(self._ends(kind.total_steps)), list(trials)
        try:
            if kind not in self._runs:
                source = self._source(kind.environment, asked[0][0])
                self._runs[kind] = CardRuns(_as_trained_in(source, asked[0][0]), self._card)
                logger.info("Runs in %s are made at once on %s.", kind.environment, self._card)
            for made in self._runs[kind].learn(asked, ends):
                size = len(made.errors)
                for run, trial in enumerate(left[:size]):
                    yield self._record(trial, made, run, ends)
                left = left[size:]
        except Exception as error:  # of the card, or of the environment whoever learns there
            for trial in left:
                yield record_of(trial, partial(_raise, error))

    def _ends(self, total_steps: int) -> Iterator[int]:
        """Yield the steps at which a run reports."""
        end = next_point(0, total_steps, self._plan.points)
        while end is not None:
            yield end
            end = next_point(end, total_steps, self._plan.points)

    def _record(self, trial: Trial, made: Made, run: int, ends: Sequence[int]) -> dict[str, Any]:
        """Return the record of one of the runs that were made at once, each with its share of the time."""
        share = made.seconds / len(made.errors)
        record = record_of(trial, lambda: self._told(trial, made, run, ends) | {"train_seconds": share})
        record["seconds"] += share
        return record

    def _told(self, trial: Trial, made: Made, run: int, ends: Sequence[int]) -> dict[str, Any]:
        """Return what came out of a run, as `Laboratory` does; or raise what it would have raised."""
        if (error := made.errors[run]) is not None:
            raise error
        settings, plan = self._laboratory.settings_of(trial.variant), self._plan
        simulator = self._source(trial.environment, settings).simulator
        assert simulator is not None  # see `why_not_at_once`
        q_table = made.q_table(run)
        since = np.diff(made.totals[:, run, :2], axis=0, prepend=0.0)
        curve = [[end, _mean(row), int(row[0])] for end, row in zip(ends, since, strict=True)]
        final = play_table(simulator, q_table, plan.eval_episodes, trial.seed, LONGEST_EPISODE)
        whole = made.totals[-1, run, :2]
        return {
            "steps": trial.total_steps,
            "episodes": int(whole[0]),
            "training_return": _mean(whole),
            "final_return": final.mean_return,
            "curve": curve,
            **judged(lambda: q_table, simulator.model, settings.discount_factor),
            "device": "cuda",
        }


def _as_trained_in(source: Source, settings: Settings) -> Source:
    return with_exploring_starts(source) if settings.exploring_starts else source


def _mean(row: np.ndarray) -> float | None:
    """Return the mean return of episodes; `row` has their number and the sum. None if there are none."""
    episodes, returns = row.tolist()
    return number(returns / episodes) if episodes else None


def _raise(error: Exception) -> dict[str, Any]:
    raise error
