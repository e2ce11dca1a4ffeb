"""A study as a TOML file: what `dist-classicrl sweep` reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dist_classicrl._files import read_regular, whole_file
from dist_classicrl._words import nearest
from dist_classicrl.cli import config
from dist_classicrl.cli.config import ENVIRONMENT, ENVIRONMENT_ARGUMENTS
from dist_classicrl.cli.option_types import Choice, Kind, Schedule, Whole
from dist_classicrl.cli.options import OF_SETTINGS
from dist_classicrl.cli.synonyms import SYNONYMS
from dist_classicrl.environments import named
from dist_classicrl.errors import SettingsError, StudyError
from dist_classicrl.rules import behaviors, registry
from dist_classicrl.sweep.choosing.halving import SuccessiveHalving
from dist_classicrl.sweep.choosing.search import Range
from dist_classicrl.sweep.folder import written

if TYPE_CHECKING:
    from dist_classicrl.sweep.sweep import Sweep

_SETTINGS, _VARY, _STOPPING = "settings", "vary", "early_stopping"
_KEPT = "study.toml"  # in the folder of a study
_PLAIN: dict[str, Kind] = {
    "total_steps": Whole(1),
    "search": Choice("grid", "random", "tpe"),
    "n_variants": Whole(1),
    "search_seed": Whole(0),
    "points": Whole(1),
    "eval_episodes": Whole(1),
}
_KEYS = (ENVIRONMENT, ENVIRONMENT_ARGUMENTS, "seeds", *_PLAIN, _SETTINGS, _VARY, _STOPPING)
#: Settings that may be a table of a name and hyper-parameters, and one of them.
_TABLES = {
    "algorithm": '{ name = "q_lambda", trace_decay = 0.5 }',
    "behavior": '{ name = "boltzmann", temperature = 0.5 }',
}
_KINDS = {option.name: option.kind for option in OF_SETTINGS if option.name != "seed"}


def read_study(path: Path) -> dict[str, Any]:
    """Return the arguments of `Sweep` that a file stands for; SettingsError or StudyError if it has none."""
    data = config.read(path)
    for key in data:
        ours = SYNONYMS.get(key, key)
        where = f" It is a setting: write {ours} below [{_SETTINGS}], or [{_VARY}]."
        _known(path, key, _KEYS, where if ours in _KINDS else "")
    for key in (ENVIRONMENT, "total_steps"):
        if key not in data:
            raise StudyError(f"{path}: {key} is missing. Write for instance {_examples[key]}.")
    arguments = {name: _value(path, name, kind, data[name]) for name, kind in _PLAIN.items() if name in data}
    if "seeds" in data:
        arguments["seeds"] = data["seeds"]  # checked where scripts give it
    arguments["env"] = _environments(path, data)
    for table in (_SETTINGS, _VARY, _STOPPING):
        if not isinstance(data.get(table, {}), dict):
            raise StudyError(f"{path}: {table} must be a table, got {data[table]!r}. Write [{table}].")
    given = data.get(_SETTINGS, {})
    arguments["settings"] = {name: _value(path, name, _kind(path, name), given[name]) for name in given}
    varied = data.get(_VARY, {})
    arguments["vary"] = {name: _values(path, name, _kind(path, name), varied[name]) for name in varied}
    if _STOPPING in data:
        for key in data[_STOPPING]:
            _known(path, key, ("factor", "rungs", "asynchronous"))
        arguments[_STOPPING] = SuccessiveHalving(**data[_STOPPING])
    return arguments


def keep_study_file(file: Path, folder: Path) -> None:
    """Keep a study's file in its folder, from which `sweep_of` makes it again; StudyError without room."""
    data = read_regular(file)
    with written(folder), whole_file(folder / _KEPT) as kept:
        kept.write(data)


def sweep_of(folder: Path) -> Sweep:
    """Return the sweep whose folder this is; StudyError where no study file made it."""
    from dist_classicrl.sweep.study import Study
    from dist_classicrl.sweep.sweep import Sweep

    file = folder / _KEPT
    if not file.is_file():
        raise StudyError(
            f"{folder} has no {_KEPT}, which `dist-classicrl sweep` leaves there. Type that again with the "
            "file of the study; in a script, use compare_on_new_seeds of dist_classicrl.sweep.new_seeds."
        )
    # Seeds may have been added by a file that is elsewhere, or by a script.
    return Sweep(**{**read_study(file), "seeds": list(Study(folder).plan.seeds)}, folder=folder)


_examples = {ENVIRONMENT: f'{ENVIRONMENT} = "FrozenLake-v1"', "total_steps": "total_steps = 1_000_000"}


def _environments(path: Path, data: Mapping[str, Any]) -> dict[str, Any]:
    given, arguments = data[ENVIRONMENT], data.get(ENVIRONMENT_ARGUMENTS, {})
    names = given if isinstance(given, list) else [given]
    if not names or not all(isinstance(name, str) for name in names):
        raise StudyError(f"{path}: {ENVIRONMENT} must be a name or a list of names, got {given!r}.")
    if len(set(names)) < len(names):
        raise StudyError(f"{path}: {ENVIRONMENT} names one twice: its runs would be the same. Leave it out.")
    if not isinstance(arguments, dict):
        raise StudyError(f"{path}: {ENVIRONMENT_ARGUMENTS} must be a table, got {arguments!r}.")
    if arguments and len(names) > 1:
        raise StudyError(
            f"{path}: {ENVIRONMENT_ARGUMENTS} are for one environment, and there are {len(names)}. Name "
            "functions of your own, module:function, that need none."
        )
    return {name: named.make(name, arguments) for name in names}


def _values(path: Path, name: str, kind: Kind, data: Any) -> Any:
    if isinstance(data, list):
        return [_value(path, name, kind, each) for each in data]
    if isinstance(data, dict) and {"low", "high"} <= set(data) <= {"low", "high", "log"}:
        return Range(**data)
    raise StudyError(
        f"{path}: {name} of [{_VARY}] must be a list of values, or in a random search a range such as "
        f"{{ low = 0.01, high = 1.0, log = true }}, got {data!r}."
    )


def _value(path: Path, name: str, kind: Kind, data: Any) -> Any:
    if name in _TABLES and isinstance(data, dict):
        return _with_parameters(path, name, data)
    try:
        return kind.of_data(data)
    except ValueError as error:
        raise StudyError(f"{path}: {name} must be {kind.allowed}, got {data!r}. {error}".strip()) from error


def _with_parameters(path: Path, name: str, data: dict[str, Any]) -> Any:
    """Return the rule or behavior of a table that has its name and hyper-parameters, as studies show them."""
    from dist_classicrl.learning.rules import find

    try:
        if name == "algorithm":
            return registry.to_data(find(data)[1])
        if "temperature" in data:
            kind = Schedule(of_visits=False)
            data = {**data, "temperature": _value(path, "temperature", kind, data["temperature"])}
        return behaviors.to_data(data)
    except SettingsError as error:
        raise StudyError(f"{path}: {error} A table is written as {name} = {_TABLES[name]}.") from error


def _kind(path: Path, name: str) -> Kind:
    of_rules = "; ".join(f"{one} = {table}" for one, table in _TABLES.items())
    _known(path, name, tuple(_KINDS), f" Hyper-parameters stand with what has them: {of_rules}.")
    return _KINDS[name]


def _known(path: Path, key: str, known: tuple[str, ...], more: str = "") -> None:
    if key not in known and SYNONYMS.get(key) in known:
        raise StudyError(f"{path}: {key} is called {SYNONYMS[key]} here. Write {SYNONYMS[key]} = ...")
    if key not in known:
        raise StudyError(
            f"{path}: there is no key {key!r} here.{nearest(key, known)} There are {', '.join(known)}.{more}"
        )
