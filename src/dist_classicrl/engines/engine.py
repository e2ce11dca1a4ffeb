"""Engines: ways of spreading a training over ranks, and which of them a training takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from dist_classicrl.errors import SettingsError

if TYPE_CHECKING:
    from dist_classicrl.engines.outcome import Outcome
    from dist_classicrl.engines.run import Run
    from dist_classicrl.membership.admission import Entry
    from dist_classicrl.membership.group import Group
    from dist_classicrl.membership.handshake import Setup
    from dist_classicrl.settings import Settings

PLACEMENTS = ("auto", "replicated")
"""What `train` takes for `placement` besides an engine. With both of them each rank has the whole table."""


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


@dataclass(frozen=True)
class _BuiltIn:
    """An engine of this library: the folder of its name, imported when it trains."""

    name: str
    suits: Callable[[Settings, int], bool]

    def train(self, run: Run, group: Group | None, start: Setup | Entry | None) -> Outcome:
        """Train as `training.py` in its folder does."""
        outcome: Outcome = import_module(f"{__package__}.{self.name}.training").train(run, group, start)
        return outcome


_BUILT_IN: tuple[Engine, ...] = (
    _BuiltIn("local", lambda settings, ranks: ranks == 1),
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


def engine_for(settings: Settings, ranks: int, placement: Any) -> Engine:
    """Return the engine that trains over so many ranks; 1: a process alone.

    A `SettingsError` is raised if `placement` is neither one of `PLACEMENTS` nor the engine itself.
    """
    if isinstance(placement, str) and placement in PLACEMENTS:
        engines = (*reversed(_registered.values()), *_BUILT_IN)
        return next(engine for engine in engines if engine.suits(settings, ranks))
    if not _is_engine(placement):
        raise SettingsError(
            f"placement must be one of {', '.join(map(repr, PLACEMENTS))}, or an engine, which has a name "
            f"and methods suits and train; got {placement!r}."
        )
    return placement


def _is_engine(value: Any) -> bool:
    return isinstance(value, Engine) and not isinstance(value, type)
