"""A trained agent as one file: NumPy arrays in a zip archive, settings as JSON, no pickle."""

from __future__ import annotations

import json
import operator
import os
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dist_classicrl._files import open_regular, whole_file
from dist_classicrl._version import __version__
from dist_classicrl.checks import is_whole
from dist_classicrl.environments.identity import Identity
from dist_classicrl.environments.state_keys import as_stored, from_stored
from dist_classicrl.environments.stepped import space_data
from dist_classicrl.environments.stepped.spaces import SpaceIndex
from dist_classicrl.errors import ModelFileError
from dist_classicrl.learning.rules import check_settings, table_shape
from dist_classicrl.model.archive import ArrayArchive, digest_of, write_arrays
from dist_classicrl.model.keyed import keys_fault
from dist_classicrl.rules import registry
from dist_classicrl.schedules.by_visit import VISITS_END
from dist_classicrl.settings import Settings
from dist_classicrl.tables.shape import OTHER_ARRAYS

FORMAT = "dist_classicrl model"
FORMAT_VERSION = 1
_ARRAYS = ("q_table", "visits")
_OPTIONAL_ARRAYS = ("legal", "keys", *OTHER_ARRAYS)
_CHUNK_ROWS = 1 << 20
_MAX_ABOUT = 1 << 24  # besides a behavior, which may be a table of float64 in base64
_BEHAVIOR_SHARE = 3  # at most, of the bytes of a table in float32
_MOST_ABOUT = 1 << 30  # tables with a behavior are not large ones


@dataclass(frozen=True)
class SavedModel:
    """What a model file holds."""

    settings: Settings
    q_table: np.ndarray  # float64 or float32, shape (states, actions)
    visits: np.ndarray  # int64, shape (states, actions)
    steps: int  # environment steps that went into the table
    #: Of the environment that was trained in; columns from there on are not used. None: all may be.
    actions: int | None = None
    #: Its legal actions, bool, shape (its states, actions), where they depend on the state alone. None: all
    #: are, or it is not known.
    legal: np.ndarray | None = None
    #: What `TableShape.to_arrays` has besides, for a rule that learns more than one table.
    others: Mapping[str, np.ndarray] = field(default_factory=dict)
    environment: Identity | None = None  # what was trained in; None: not known
    #: Between the environment's own values and the integers; None where they are integers from 0 on.
    observation_index: SpaceIndex | None = None
    action_index: SpaceIndex | None = None
    keys: np.ndarray | None = None  # (states,), of a type of `state_keys`: of the states, where they are such
    seed: int | None = None  # that was drawn, or given; None: none was drawn yet, or it is not known

    def arrays(self) -> dict[str, np.ndarray]:
        """Return all arrays by name."""
        arrays = {"q_table": self.q_table, "visits": self.visits, **self.others}
        others = {"legal": self.legal, "keys": None if self.keys is None else as_stored(self.keys)}
        return arrays | {name: array for name, array in others.items() if array is not None}


def write(
    path: str | os.PathLike[str], model: SavedModel, derived: Mapping[str, np.ndarray] | None = None
) -> Path:
    """Write `model` to exactly `path`: whole, or not at all. An existing file is replaced at the end.

    Folders on the way that do not exist are made: what was learned must not be lost for the lack of one.
    `derived` are arrays of plain numbers for other readers; `read` passes over them.
    """
    target = Path(path)
    arrays: dict[str, Any] = {name: np.ascontiguousarray(array) for name, array in model.arrays().items()}
    about = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "package_version": __version__,
        "steps": model.steps,
        "seed": model.seed,
        "actions": model.actions,
        "environment": None if model.environment is None else model.environment.to_dict(),
        "spaces": space_data.to_data(model.observation_index, model.action_index),
        "settings": model.settings.to_dict(),
        "sha256": {name: digest_of(array) for name, array in arrays.items()},
    }
    arrays["about"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
    arrays.update(derived or {})
    target.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(target) as file:
        write_arrays(file, arrays)
    return target


def read(path: str | os.PathLike[str]) -> SavedModel:
    """Return the model in the file at `path`; FileNotFoundError where there is none.

    ModelFileError where it is truncated, damaged, no model file, or of a rule that is not registered. Nothing
    in it is ever run.
    """
    target = Path(path)
    try:
        with open_regular(target) as file:
            archive = ArrayArchive(file)
            missing = sorted({"about", *_ARRAYS} - set(archive.names))
            if missing:
                raise _refused(target, f"it lacks {', '.join(missing)}")
            names = [*_ARRAYS, *(name for name in _OPTIONAL_ARRAYS if name in archive.names)]
            about = _about(archive)
            _check_about(target, about, names)
            return _model(target, archive, about, names)
    except (FileNotFoundError, ModelFileError):
        raise
    except Exception as error:  # damaged archives make zipfile and NumPy raise errors of many kinds
        raise _refused(target, f"it cannot be read ({error})") from error


def _about(archive: ArrayArchive) -> Any:
    member = archive.member("about")
    allowed = min(_MAX_ABOUT + _BEHAVIOR_SHARE * archive.member("q_table").bytes, _MOST_ABOUT)
    if member.dtype != np.uint8 or member.bytes > allowed:
        raise ValueError(f"about is {member.dtype} of {member.bytes} bytes, allowed are {allowed} of uint8")
    return json.loads(archive.read(member)[0].tobytes().decode())


def _model(target: Path, archive: ArrayArchive, about: dict[str, Any], names: list[str]) -> SavedModel:
    """Return the model, of which nothing is unpacked before what is said of all its arrays fits together."""
    members = {name: archive.member(name) for name in names}
    try:
        _check_shapes(_settings_of(about), {name: member.shape for name, member in members.items()})
    except ValueError as error:
        raise _refused(target, str(error)) from error
    arrays, needed = {}, sum(member.bytes for member in members.values())
    try:
        for name, member in members.items():
            arrays[name], digest = archive.read(member)
            if about["sha256"].get(name) != digest:
                raise _refused(target, f"the checksum of {name} does not match")
        return model_of(about, arrays)
    except MemoryError as error:
        raise _refused(
            target, f"its arrays need {needed / 2**30:.3g} GiB of memory, which cannot be had here"
        ) from error
    except ValueError as error:
        if isinstance(error, ModelFileError):
            raise
        raise _refused(target, str(error)) from error


def _check_about(target: Path, about: Any, names: list[str]) -> None:
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise _refused(target, "it was not written by save_model")
    if about.get("format_version") != FORMAT_VERSION:
        raise _refused(
            target,
            f"its format version is {about.get('format_version')!r}, this library reads {FORMAT_VERSION}",
        )
    sums = about.get("sha256")
    if not isinstance(sums, dict):
        raise _refused(target, "it has no checksums")
    if set(sums) != set(names):
        raise _refused(target, f"it should hold the arrays {', '.join(sorted(map(str, sums)))}")
    settings = about.get("settings")
    if isinstance(settings, dict) and (advice := registry.to_register(settings)):
        raise ModelFileError(f"{target} cannot be loaded: {advice}")


def _settings_of(about: Mapping[str, Any]) -> Settings:
    try:
        settings = Settings.from_dict(about["settings"])
        check_settings(settings)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"its settings cannot be used ({error})") from error
    return settings


def _check_shapes(settings: Settings, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise ValueError unless arrays of these shapes are together those of an agent with these settings."""
    shape = shapes["q_table"]
    asked = settings.state_size, settings.action_size
    is_empty = 0 in (shape if "keys" not in shapes else shape[1:])  # where states are keys, none may be known
    if len(shape) != 2 or is_empty or any(a not in (None, n) for a, n in zip(asked, shape, strict=True)):
        raise ValueError(f"its table has the shape {shape}, its settings say {asked}")
    whole = table_shape(settings.algorithm, *shape)
    rows = None if whole.is_one_table else (whole.n_rows, whole.n_actions)
    if any(shapes.get(name) != rows for name in OTHER_ARRAYS):
        raise ValueError(f"its tables are not those of the algorithm {settings.algorithm!r}")
    mask = shapes.get("legal", shape)
    if shapes["visits"] != shape:
        raise ValueError(f"its visits has the shape {shapes['visits']}, and its table {shape}")
    if len(mask) != 2 or not all(map(operator.le, mask, shape)):
        raise ValueError(f"its mask has the shape {mask}, and its table {shape}")


def model_of(about: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> SavedModel:
    """Return the model that `about` (settings, steps, seed, actions) and its arrays describe.

    ValueError, which says what is wrong, where they describe none.
    """
    q_table, visits = arrays["q_table"], arrays["visits"]
    fault = arrays_fault(arrays)
    if fault is not None:
        raise ValueError(fault)
    settings = _settings_of(about)
    known = (*_ARRAYS, *_OPTIONAL_ARRAYS)
    _check_shapes(settings, {name: array.shape for name, array in arrays.items() if name in known})
    steps: Any = about.get("steps")
    seed: Any = about.get("seed")  # files have not always had it
    actions: Any = about.get("actions")
    if not is_whole(steps) or not 0 <= steps < 2**63:
        raise ValueError(f"its number of steps is {reprlib.repr(steps)}")
    if seed is not None and not (is_whole(seed) and 0 <= seed < 2**63):
        raise ValueError(f"its seed is {reprlib.repr(seed)}")
    if q_table.dtype.name != settings.dtype:
        raise ValueError(f"its table is {q_table.dtype.name}, its settings say {settings.dtype}")
    if actions is not None and not (is_whole(actions) and 1 <= actions <= q_table.shape[1]):
        raise ValueError(f"its number of actions is {reprlib.repr(actions)}")
    legal = arrays.get("legal")
    if legal is not None and not (legal.dtype == bool and (legal.any() or not legal.size)):
        raise ValueError(f"its mask is {legal.dtype} and allows {np.count_nonzero(legal)} actions")
    others = {name: arrays[name] for name in OTHER_ARRAYS if name in arrays}
    environment = Identity.from_dict(about.get("environment"))
    indices = space_data.from_data(about.get("spaces"))  # files have not always had them
    for index, allowed, what in zip(indices, q_table.shape, ("observation", "action"), strict=True):
        is_packed = what == "observation" and "keys" in arrays
        if index is not None and index.n > allowed and not is_packed:
            raise ValueError(f"its {what} space has {index.n:,} values, and its table {allowed:,}")
    keys = from_stored(arrays["keys"]) if "keys" in arrays else None
    return SavedModel(
        settings, q_table, visits, steps, actions, legal, others, environment, *indices, keys, seed
    )


def arrays_fault(arrays: Mapping[str, np.ndarray]) -> str | None:
    """Return what is wrong with the tables and visits among arrays that were saved, or None."""
    fault = table_fault(arrays["q_table"], arrays["visits"])
    if fault is None and "keys" in arrays:
        fault = keys_fault(arrays["keys"], arrays["q_table"].shape[0])
    others = [arrays[name] for name in OTHER_ARRAYS if name in arrays]
    if fault is None and len(others) == len(OTHER_ARRAYS):
        fault = table_fault(*others)
        if others[0].dtype != arrays["q_table"].dtype:
            fault = f"its tables are {others[0].dtype}, their mean is {arrays['q_table'].dtype}"
    return fault


def table_fault(values: np.ndarray, visits: np.ndarray) -> str | None:
    """Return what is wrong with a table and its visits that were saved, or None."""
    if values.ndim != 2 or visits.shape != values.shape or visits.dtype != np.int64:
        return (
            f"its arrays have the shapes {values.shape} and {visits.shape}, and its visits are "
            f"{visits.dtype}; both must be (states, actions), and visits int64"
        )
    if not are_known(visits):
        return f"its visits go from {visits.min()} to {visits.max()}, not from 0 to 2**48 - 1"
    if values.dtype.kind != "f" or not values.dtype.isnative or not all_finite(values):
        return f"its table is {values.dtype} and must hold finite floating-point numbers"
    return None


def are_known(visits: np.ndarray) -> bool:
    """Whether step sizes are known of all these visits, which are from 0 to 2**48 - 1 then."""
    return not visits.size or 0 <= int(np.bitwise_or.reduce(visits, axis=None)) < VISITS_END


def all_finite(values: np.ndarray) -> bool:
    """Whether a table, which may be a file that is read as it is looked at, has finite numbers only."""
    parts = range(0, len(values), _CHUNK_ROWS)
    return all(bool(np.isfinite(values[first : first + _CHUNK_ROWS]).all()) for first in parts)


def _refused(target: Path, why: str) -> ModelFileError:
    return ModelFileError(
        f"{target} is no usable model file: {why}. "
        "Give the path of a file that save_model of this library wrote."
    )
