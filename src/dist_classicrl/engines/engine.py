"""Engines: ways of spreading a training over ranks, and which of them a training takes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from dist_classicrl._words import name_of
from dist_classicrl.compression import Carry
from dist_classicrl.engines.decentralized.checks import check_decentralized
from dist_classicrl.errors import SettingsError
from dist_classicrl.settings import LOGICAL_WORKERS, PLACEMENTS, Settings

if TYPE_CHECKING:
    from dist_classicrl.engines.outcome import Outcome
    from dist_classicrl.engines.run import Run
    from dist_classicrl.membership.admission import Entry
    from dist_classicrl.membership.group import Group
    from dist_classicrl.membership.handshake import Setup

logger = logging.getLogger(__name__)

PARTITIONS = ("hash", "range")
"""What it takes for `partition` besides a function."""

SHARDED_FROM = 1 << 17
"""Entries from which "auto" lets the ranks of a host learn in the same rows.

In the reproducible mode it takes supersteps from here on by any rule that can travel, and on several hosts by
rules whose steps move one entry: three ranks made 2 to 10 times the steps of those that have copies.
"""

SUPERSTEPS_FROM = 3_500
"""Entries from which "auto" takes supersteps in the reproducible mode, by rules whose steps move one entry.

Rounds of logical workers copy what each has touched. With 4,000 to 16,000 entries supersteps made 0.3 to 1.6
times the steps of asynchronous training on three ranks, rounds 0.2 to 0.5, and alone 0.6 to 2.4 and 0.4 to
0.8; with Taxi's 3,000 rounds were twice as fast. After equal steps the error of supersteps was at most 1.06
times that of rounds of 32 updates, and up to 16,000 entries at most 0.93 (`benchmarks/results/rounds.md`).
"""

OF_COPIES = {
    "prefetch_factor": "nothing is pushed that could be in flight",
    "sync_frequency": "nobody pushes, and there are no rounds that could have a length",
    "logical_workers": "there are no rounds that they could play",
}
"""Settings that say nothing but how copies are merged, and why they have no meaning where there are none."""


@runtime_checkable
class Engine(Protocol):
    """A way of spreading a training over ranks: any object that has these."""

    @property
    def name(self) -> str:
        """What it is called, the same on all ranks."""

    def suits(self, settings: Settings, ranks: int) -> bool:
        """Whether it is to train with these settings on so many ranks; 1: a process alone."""

    def train(self, run: Run, group: Group | None, start: Setup | Entry | None) -> Outcome:
        """Train. All ranks call it at the same time, once they agree on what is trained.

        Whoever is `start.is_head`, or alone, tells `run.reporter` how far the run is, and saves it by
        `run.saver` where there is one. `run.kept` is to say at any time how many steps `run.values` and
        `run.counts` contain, for a run that does not come to its end. However it ends, `run.close` is called.
        Afterwards the run is taken apart, and nothing of it is to be used any more.

        Parameters
        ----------
        run : Run
            What is trained. At the end `values` and `counts` hold what was learned, the same on all ranks.
        group : Group or None
            The ranks; None: this process is alone.
        start : Setup, Entry or None
            `Setup` where all ranks begin together, which gathers and tells more than was told so far. `Entry`
            where this one joins a training that goes on. None: this process is alone.

        Returns
        -------
        Outcome
            The same on all ranks. It counts the whole call, with what an earlier process has made of it.
        """


@runtime_checkable
class ChecksSettings(Protocol):
    """An engine that says before a training, and so to all ranks, what it cannot be had with."""

    def check_settings(self, settings: Settings) -> None:
        """Raise SettingsError where it cannot train with these settings."""


@dataclass(frozen=True)
class _BuiltIn:
    """An engine of this library: the folder of its name, imported when it trains."""

    name: str
    suits: Callable[[Settings, int], bool]
    all_learn: bool = False
    server_learns: bool = False  # as well, and it is not one of those that `min_workers` counts

    def train(self, run: Run, group: Group | None, start: Setup | Entry | None) -> Outcome:
        """Train as `training.py` in its folder does."""
        outcome: Outcome = import_module(f"{__package__}.{self.name}.training").train(run, group, start)
        return outcome


def _has_no_server(settings: Settings) -> bool:
    return settings.topology == "decentralized"


_LOCAL = _BuiltIn("local", lambda settings, ranks: ranks == 1)
_SHARDED = _BuiltIn("sharded", lambda settings, ranks: False, server_learns=True)
_SUPERSTEPS = _BuiltIn("supersteps", lambda settings, ranks: False, server_learns=True)
_BUILT_IN: tuple[Engine, ...] = (
    _SHARDED,
    _SUPERSTEPS,
    _LOCAL,
    _BuiltIn(
        "decentralized",
        lambda settings, ranks: settings.async_updates and _has_no_server(settings),
        all_learn=True,
    ),
    _BuiltIn("server", lambda settings, ranks: settings.async_updates),
    _BuiltIn("rounds", lambda settings, ranks: True),
)
_registered: dict[str, Engine] = {}


def register(engine: Engine) -> None:
    """Let trainings take an engine where it suits, before any that was there already.

    A `SettingsError` is raised if it is no engine, or there is one of that name.
    """
    if not _is_engine(engine):
        raise SettingsError(f"An engine has a name and methods suits and train, got {engine!r}.")
    if engine.name in (*_registered, *(each.name for each in _BUILT_IN)):
        raise SettingsError(f"There is an engine {engine.name!r} already. Give this one another name.")
    _registered[engine.name] = engine


def unregister(name: str) -> None:
    """Take back what `register` did; SettingsError if it did nothing of the kind."""
    if _registered.pop(name, None) is None:
        known = ", ".join(map(repr, _registered)) or "none"
        raise SettingsError(f"No engine {name!r} was registered, but {known}.")


@dataclass(frozen=True)
class Layout:
    """On what ranks train: the entries of the table, and on how many hosts the ranks are."""

    entries: int = 0
    hosts: int = 1
    is_compiled: bool = False  # whether all of the environment is compiled code
    is_keyed: bool = False  # whether its states are keys
    can_travel: bool = False  # whether supersteps can learn it with these settings, compiled as it is
    is_one_step: bool = False  # see `LearningRule`
    names_walkers: bool = False  # whether the call says how many walkers travel, or to which owners

    def takes_owners(self, settings: Settings, ranks: int) -> bool:
        """Whether states are keys that need owners: of several ranks, or where one alone would not do.

        Who says something of walkers has them on any number of ranks, and so the same table.
        """
        alone_will_do = self.is_compiled and settings.async_updates and not self.names_walkers
        return self.is_keyed and (ranks > 1 or not alone_will_do)


def engine_for(settings: Settings, ranks: int, placement: Any, layout: Layout = Layout()) -> Engine:
    """Return the engine that trains over so many ranks; 1: a process alone.

    A `SettingsError` is raised if `placement` is neither one of `PLACEMENTS` nor the engine itself, or the
    settings ask for what cannot be had with it.
    """
    if not (isinstance(placement, str) and placement in PLACEMENTS):
        if not _is_engine(placement):
            raise SettingsError(
                f"placement must be one of {', '.join(map(repr, PLACEMENTS))}, or an engine, which has a "
                f"name and methods suits and train; got {placement!r}."
            )
        return _checked(placement, settings)
    if placement == "sharded":
        if (why := _is_replicated_only(settings)) is not None:
            raise SettingsError(f'placement="sharded" cannot be had with {why}.')
        if not settings.async_updates or layout.hosts > 1 or layout.takes_owners(settings, ranks):
            return _SUPERSTEPS
        return _LOCAL if ranks == 1 else _SHARDED
    if settings.topology == "decentralized":
        check_decentralized(settings)
    if settings.topology in ("tree", "decentralized") and ranks == 1:
        raise SettingsError(
            f'topology="{settings.topology}" needs several ranks, and this process trains alone. Start them, '
            'for instance with `mpirun -n 8`, or write topology="flat".'
        )
    for each in reversed(_registered.values()):
        if each.suits(settings, ranks):
            return _checked(each, settings)
    if placement == "auto" and layout.is_keyed:
        takes_owners = layout.takes_owners(settings, ranks)
        if takes_owners and (why := _is_replicated_only(_without_copies(settings))) is not None:
            raise SettingsError(f"States that are keys cannot be learned by their owners with {why}.")
        if takes_owners:
            logger.info(
                "States are keys, which nobody has counted: each rank owns those that a hash gives it, and "
                "episodes travel between the owners in supersteps, so that a seed makes the same table on "
                "any number of ranks."
            )
            return _SUPERSTEPS
    if placement == "auto" and _gains_from_rows(settings, ranks, layout):
        if settings.async_updates and layout.hosts == 1:
            logger.info(
                "All ranks learn in the same rows: the table has %s entries, more than fit into a core's "
                'cache. placement="replicated" gives each rank a copy.',
                f"{layout.entries:,}",
            )
            return _SHARDED
        logger.info(
            "The table has %s entries, and is learned in supersteps: the same on any number of ranks. "
            'placement="replicated" %s.',
            f"{layout.entries:,}",
            "gives each rank a copy, and lets them wait for nobody"
            if settings.async_updates
            else "plays rounds of logical workers instead, slower ones on several ranks",
        )
        if (name := name_of(settings.compression)) not in ("none", "auto"):
            logger.info("No maps are sent that compression=%r could make smaller.", name)
        return _SUPERSTEPS
    return next(engine for engine in _BUILT_IN if engine.suits(settings, ranks))


def all_learn(engine: Engine) -> bool:
    """Whether each rank is a worker with this engine, also the one that serves, as an engine may say."""
    return bool(getattr(engine, "all_learn", False))


def is_built_in(engine: Engine) -> bool:
    """Whether an engine is one of this library."""
    return isinstance(engine, _BuiltIn)


def check_workers(settings: Settings, ranks: int, engine: Engine) -> None:
    """Raise SettingsError where so many ranks are fewer workers than the settings ask for."""
    least, serving = settings.min_workers, int(not all_learn(engine))
    if ranks - serving >= least:
        return
    asked, given = f"a server and {least} workers", f"{ranks} ranks are a server and {ranks - 1}"
    if ranks == 1:
        given = "1 process trains alone"
    elif not serving:
        asked, given = f"{least} workers", f"{ranks} ranks learn"
    needed = least + serving
    raise SettingsError(
        f"min_workers={least} asks for {asked}, but {given}. Start {needed} ranks, for instance with "
        f"`mpirun -n {needed}`, or lower min_workers."
    )


def n_workers(engine: Engine, settings: Settings, ranks: int, is_compiled: bool) -> int:
    """Return how many of so many ranks learn, without those that serve the others of their node.

    `is_compiled`: all of the environment is compiled code, and each rank has a core.
    """
    serving = not (all_learn(engine) or getattr(engine, "server_learns", False))
    workers = max(1, ranks - serving)
    if engine.name != "rounds":
        return workers
    is_shorter = settings.longest_part(ranks) < settings.longest_part(workers)
    plays_too = is_compiled and settings.replay_ratio == 0.0 and is_shorter
    return min(ranks if plays_too else workers, settings.logical_workers)


def learns_in_rows(engine: Engine, settings: Settings, layout: Layout, placement: Any) -> bool:
    """Whether an engine learns in a table of rows that it is given, and needs no other."""
    if engine is _SHARDED:
        return True
    if engine is _SUPERSTEPS:
        return layout.is_compiled
    is_interleaved = layout.is_compiled and settings.replay_ratio == 0.0
    return engine is _LOCAL and settings.async_updates and (is_interleaved or placement == "sharded")


def engine_named(name: str, settings: Settings, ranks: int, placement: Any) -> Engine:
    """Return the engine of this name with which others have begun to train."""
    for engine in _BUILT_IN:
        if engine.name == name:
            return engine
    return engine_for(settings, ranks, placement)


def _gains_from_rows(settings: Settings, ranks: int, layout: Layout) -> bool:
    """Whether copies of a table are so large that all ranks should learn in one.

    In the reproducible mode that depends on nothing but settings and problem, as the table has to. Settings
    that would change nothing with copies do not ask for these. On several hosts who sets how maps are sent
    has copies.
    """
    if settings.async_updates:
        settings = replace(settings, logical_workers=LOGICAL_WORKERS)
    else:
        settings = replace(settings, prefetch_factor=Settings.prefetch_factor)
        if not Carry.of(settings.compression).is_some:
            settings = replace(settings, compression="none")  # what loses nothing must not change the table
    least = SUPERSTEPS_FROM if layout.is_one_step and not settings.async_updates else SHARDED_FROM
    if not layout.is_compiled or layout.entries < least or _is_replicated_only(settings) is not None:
        return False
    travels = layout.can_travel and not settings.may_take_card
    if not settings.async_updates:
        return travels
    if ranks == 1 or layout.hosts == 1:
        return ranks > 1 and settings.device != "cuda"  # on cards learns who has a copy
    is_usual = settings.topology == "flat" and name_of(settings.compression) == "none"
    return travels and layout.is_one_step and is_usual


def _is_replicated_only(settings: Settings) -> str | None:
    """Return which of the settings asks for copies of the table on all ranks, and what to write instead."""
    if settings.compression_threshold > 0.0:
        return (
            f"compression_threshold={settings.compression_threshold:g}: nothing is sent that could be left "
            "out. Write compression_threshold=0"
        )
    if (name := name_of(settings.compression)) not in ("none", "auto"):
        return f'compression="{name}": no maps are sent that could be compressed. Write compression="none"'
    if settings.topology in ("tree", "decentralized"):
        return (
            f'topology="{settings.topology}": there are no maps that could take another way. Write '
            'topology="flat"'
        )
    if settings.tree_group_size is not None:
        return (
            f"tree_group_size={settings.tree_group_size}: there are no maps that could go through a tree. "
            "Write tree_group_size=None"
        )
    if settings.max_staleness is not None:
        return (
            f"max_staleness={settings.max_staleness}: there are no copies that could be behind. Write "
            "max_staleness=None"
        )
    if settings.merging != "affine":
        return f'merging="{settings.merging}": there are no maps to merge. Write merging="affine"'
    if settings.replay_ratio > 0.0:
        return (
            f"replay_ratio={settings.replay_ratio:g}: old transitions are not learned again there. Write "
            "replay_ratio=0"
        )
    for name, why in _given_of_copies(settings).items():
        return f"{name}={getattr(settings, name)}: {why}. Write {name}={written(getattr(Settings, name))}"
    return None


def _given_of_copies(settings: Settings) -> dict[str, str]:
    """Return those of `OF_COPIES` that are given another value than the usual one."""
    return {
        name: why for name, why in OF_COPIES.items() if getattr(settings, name) != getattr(Settings, name)
    }


def _without_copies(settings: Settings) -> Settings:
    """Return settings that say nothing of how copies are merged."""
    return replace(settings, **{name: getattr(Settings, name) for name in _given_of_copies(settings)})


def written(value: Any) -> str:
    """Return the value of a setting as messages have it."""
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _checked(engine: Engine, settings: Settings) -> Engine:
    if isinstance(engine, ChecksSettings):
        engine.check_settings(settings)
    return engine


def _is_engine(value: Any) -> bool:
    return isinstance(value, Engine) and not isinstance(value, type)
