"""What a study consists of: its runs, in the parcels in which processes take them."""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

from dist_classicrl.checks import is_whole
from dist_classicrl.errors import SettingsError, StudyError
from dist_classicrl.settings import Settings, value_of_data
from dist_classicrl.sweep.choosing.halving import SuccessiveHalving

# What a process takes at a time: so many steps take half a second, writing down that it takes them little.
_PARCEL_STEPS = 2e7
_LEAST_PARCEL_STEPS = _PARCEL_STEPS / 8
#: Runs that one process takes at a time where a card makes them at once, as long as one of them takes.
_RUNS_AT_ONCE = 16_384
_PARCELS_LEFT = 32  # towards the end: others have nothing to do while the last parcel is made
#: Steps of a stepped environment that take as long as one that is compiled.
STEPPED_COST = 300
# Arguments of an agent that a study gives itself.
_NOT_HERE = ("seed", "comm")
_LONGEST_CELL = 200  # characters
MOST_RUNS = 10_000_000


@dataclass(frozen=True)
class Trial:
    """One run: an environment, settings, and a seed.

    `number` is its place in the tables of the study, which moves where seeds are added; `run` is what its
    record calls it, which stays. `batch` tells how often seeds had been added when its seed was there.
    """

    number: int
    environment: str
    variant: int
    seed: int
    total_steps: int
    run: int
    batch: int

    @property
    def key(self) -> str:
        """What it is called in records: also a name for a file."""
        return f"{self.run}-{self.total_steps}"


@dataclass(frozen=True)
class Parcel:
    """Runs that one process takes at a time."""

    name: str
    trials: tuple[Trial, ...]


@dataclass(frozen=True)
class Plan:
    """All that decides what the runs of a study are and what comes out of them.

    Attributes
    ----------
    environments : mapping of str to str
        What each is: its name, a fingerprint of its process, and arguments that this cannot tell. Runs are
        numbered by the order of the names, whoever was given them in whatever order.
    variants : sequence of dict
        Settings of the agent for each, those that all share included. None for those that a search by what
        came out has not decided.
    varied : tuple of str
        The names of those that differ.
    seeds : tuple of int
        The seeds that each of the settings has in each environment.
    total_steps : int
        Environment steps of a run.
    points : int
        Points of a run's learning curve.
    eval_episodes : int
        Episodes for the return of a run's greedy policy in the end.
    stopping : mapping, optional
        What `SuccessiveHalving.to_dict` says; None: all settings get all steps.
    search : mapping, optional
        What a search by what came out goes through: how many settings, and of which.
    added : tuple of int
        How many seeds there were each time that others were added; empty where none were.
    """

    environments: Mapping[str, str]
    variants: Sequence[Any]
    varied: tuple[str, ...]
    seeds: tuple[int, ...]
    total_steps: int
    points: int
    eval_episodes: int
    stopping: Mapping[str, Any] | None = None
    search: Mapping[str, Any] | None = None
    added: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "environments", dict(sorted(self.environments.items())))

    @property
    def n_variants(self) -> int:
        """Number of settings."""
        return len(self.variants)

    @property
    def n_runs(self) -> int:
        """Number of runs."""
        return len(self.environments) * self.n_variants * len(self.seeds)

    def n_trainings(self, stopping: SuccessiveHalving | None) -> int:
        """Return how many trainings there are in all: with early stopping, more than runs."""
        if stopping is None:
            return self.n_runs
        return stopping.trainings(self.n_variants) * len(self.environments) * len(self.seeds)

    def trial(self, number: int, total_steps: int | None = None) -> Trial:
        """Return run `number`: environments come slowest, then variants, then seeds."""
        place, index = divmod(number, len(self.seeds))
        environment, variant = divmod(place, self.n_variants)
        seed, begun = self.seeds[index], self.begun_with
        # Those of a seed that was added follow all others, by its value: so they are the same in whatever
        # order seeds are added.
        run = place * begun + index if index < begun else self._n_places * (begun + seed) + place
        return Trial(
            number,
            self._names[environment],
            variant,
            seed,
            self.total_steps if total_steps is None else total_steps,
            run,
            bisect_right(self.added, index),
        )

    def number_of(self, run: int) -> int | None:
        """Return the number of the run that a record calls so; None where the study has not its seed."""
        begun = self.begun_with
        if run < self._n_places * begun:
            place, index = divmod(run, begun)
        else:
            seed, place = divmod(run - self._n_places * begun, self._n_places)
            if seed not in self._added_seeds:
                return None
            index = self._added_seeds[seed]
        return place * len(self.seeds) + index

    def n_made(self, records: Mapping[str, Mapping[str, Any]]) -> int:
        """Return how many of these records are of runs of the study, as it is in this plan."""
        return sum(self.number_of(record["run"]) is not None for record in records.values())

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return tuple(self.environments)

    @cached_property
    def _n_places(self) -> int:
        return len(self.environments) * self.n_variants

    @cached_property
    def begun_with(self) -> int:
        """How many seeds the study was begun with."""
        return self.added[0] if self.added else len(self.seeds)

    @cached_property
    def _added_seeds(self) -> dict[int, int]:
        """The place of each seed that was added."""
        return {seed: index for index, seed in enumerate(self.seeds) if index >= self.begun_with}

    def trials(self, environment: str, variant: int, total_steps: int) -> list[Trial]:
        """Return the runs of one setting in one environment."""
        place = list(self.environments).index(environment) * self.n_variants + variant
        first = place * len(self.seeds)
        return [self.trial(number, total_steps) for number in range(first, first + len(self.seeds))]

    def parcels(
        self,
        trials: Sequence[Trial],
        costs: Mapping[str, float],
        together: Callable[[Trial], Hashable] = lambda trial: None,
    ) -> list[Parcel]:
        """Return the runs in parcels of half a second, less at the end; those that take longest come first.

        `costs` has what a step of each environment costs, 1 where it is compiled. Runs for which `together`
        returns the same, and not None, are made at once by a card, and come before all others. The parcels
        depend on nothing else, so that all processes divide the runs alike. Those of seeds that were added
        come last by themselves, so that the others are those of whoever was told of no more seeds.
        """
        batches: dict[int, list[Trial]] = {batch: [] for batch in range(1 + len(self.added))}
        for trial in trials:
            batches[trial.batch].append(trial)
        return list(chain.from_iterable(self._parcels(each, costs, together) for each in batches.values()))

    def _parcels(
        self,
        trials: Sequence[Trial],
        costs: Mapping[str, float],
        together: Callable[[Trial], Hashable],
    ) -> list[Parcel]:
        at_once: dict[Hashable, list[Trial]] = {}
        for trial in trials:
            at_once.setdefault(together(trial), []).append(trial)
        ordered = sorted(
            at_once.pop(None, []),
            key=lambda trial: (-trial.total_steps * costs[trial.environment], trial.number),
        )
        parcels = [
            those[first : first + _RUNS_AT_ONCE]
            for those in at_once.values()
            for first in range(0, len(those), _RUNS_AT_ONCE)
        ]
        first_alone = len(parcels)
        room = 0.0
        left = sum(trial.total_steps * costs[trial.environment] for trial in ordered)
        for trial in ordered:
            cost = trial.total_steps * costs[trial.environment]
            if len(parcels) == first_alone or cost > room:
                parcels.append([])
                room = min(_PARCEL_STEPS, max(_LEAST_PARCEL_STEPS, left / _PARCELS_LEFT))
            parcels[-1].append(trial)
            room -= cost
            left -= cost
        return [Parcel(f"{each[0].key}-{len(each)}", tuple(each)) for each in parcels]

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain data for JSON."""
        data = {
            "environments": dict(self.environments),
            "variants": [] if self.search else [described(settings) for settings in self.variants],
            "varied": list(self.varied),
            "seeds": list(self.seeds),
            "total_steps": self.total_steps,
            "points": self.points,
            "eval_episodes": self.eval_episodes,
            "stopping": self.stopping,
        }
        if len(self.environments) > 1:  # earlier versions numbered them as they were given
            data["numbered"] = "by name"
        return data if self.search is None else data | {"search": dict(self.search)}

    @classmethod
    def of_dict(cls, data: Mapping[str, Any]) -> Plan:
        """Return the plan that `to_dict` has written; TypeError, KeyError or AttributeError for others."""
        # Settings as plain data are arguments of Settings once more.
        plain = {**data, "seeds": tuple(data["seeds"]), "varied": tuple(data["varied"])}
        plain["added"] = tuple(data.get("added", ()))
        plain.pop("numbered", None)
        search = data.get("search")
        if search is not None:
            plain["variants"] = [None] * int(search["n_variants"])
        return cls(**plain)

    def shown(self, variant: int) -> dict[str, Any]:
        """Return the settings that differ, as a table has them."""
        return {name: cell(kept_value(self.variants[variant], name)) for name in self.varied}


def kept_value(settings: Mapping[str, Any], name: str) -> Any:
    """Return a setting of a variant as `described` keeps it, as `Settings` would have it.

    It is not checked: who reads a study need not know its rules, and a later version may refuse what was run.
    """
    known = {**settings}  # TypeError where these are none
    return value_of_data(name, known[name]) if name in known else getattr(Settings, name)


def cell(value: Any) -> Any:
    """Return the value of a setting as a table has it: numbers, flags and None as they are, others as words.

    What has many numbers, such as a policy, is named by a digest of them.
    """
    if hasattr(value, "value") and len(getattr(value, "__dataclass_fields__", ())) == 1:
        value = value.value  # a constant schedule
    if isinstance(value, Mapping):
        text = json.dumps(value, sort_keys=True)
        is_long = len(text) > _LONGEST_CELL or "probabilities" in value
        return f"{value.get('name')} {hashlib.sha256(text.encode()).hexdigest()[:8]}" if is_long else text
    return value if value is None or isinstance(value, (int, float)) else str(value)


def checked_settings(settings: Mapping[str, Any]) -> Settings:
    """Return the settings of an agent that stand for a variant; StudyError where they are none."""
    for name in _NOT_HERE:
        if name in settings:
            raise StudyError(
                f"{name} cannot be a setting of a study: each run learns alone in one process, with one of "
                "the seeds that the study is given as seeds=."
            )
    try:
        return Settings.from_dict(dict(settings))
    except SettingsError as error:
        raise StudyError(f"A variant cannot be trained: {error}") from error


def described(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return all settings of a variant as plain data, so that two are equal where they learn the same."""
    data = checked_settings(settings).to_dict()
    del data["seed"]
    return data


def checked_seeds(seeds: Any) -> tuple[int, ...]:
    """Return seeds: 0, 1, .. where a number of them is given; StudyError for what is neither."""
    if is_whole(seeds) and 1 <= seeds <= MOST_RUNS:
        return tuple(range(int(seeds)))
    given = list(seeds) if isinstance(seeds, (list, tuple, range)) else []
    if not given or not all(is_whole(seed) and 0 <= seed < 2**63 for seed in given):
        raise StudyError(f"seeds must be how many, 1 or more, or a list of whole numbers, got {seeds!r}.")
    if len(set(given)) < len(given):
        raise StudyError("seeds holds a seed twice: its runs would be the same. Leave one of them out.")
    return tuple(int(seed) for seed in given)
