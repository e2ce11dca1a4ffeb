"""A trained agent as one file: NumPy arrays in a zip archive, settings as JSON, no pickle."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dist_classicrl._files import whole_file
from dist_classicrl._version import __version__
from dist_classicrl.environments.identity import Identity
from dist_classicrl.errors import ModelFileError
from dist_classicrl.learning.rules import check_settings, table_shape
from dist_classicrl.settings import Settings
from dist_classicrl.tables.shape import OTHER_ARRAYS

FORMAT = "dist_classicrl model"
FORMAT_VERSION = 1
_ARRAYS = ("q_table", "visits")
_OPTIONAL_ARRAYS = ("legal", *OTHER_ARRAYS)
_MAX_VISITS = 1 << 48  # where the table of `PerVisit` ends


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

    def arrays(self) -> dict[str, np.ndarray]:
        """Return all arrays by name."""
        arrays = {"q_table": self.q_table, "visits": self.visits, **self.others}
        return arrays if self.legal is None else {**arrays, "legal": self.legal}


def write(
    path: str | os.PathLike[str], model: SavedModel, derived: Mapping[str, np.ndarray] | None = None
) -> Path:
    """Write `model` to exactly `path`: whole, or not at all. An existing file is replaced at the end.

    `derived` are arrays of plain numbers for other readers; `read` passes over them.
    """
    target = Path(path)
    arrays: dict[str, Any] = {name: np.ascontiguousarray(array) for name, array in model.arrays().items()}
    about = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "package_version": __version__,
        "steps": model.steps,
        "actions": model.actions,
        "environment": None if model.environment is None else model.environment.to_dict(),
        "settings": model.settings.to_dict(),
        "sha256": {name: _digest(array) for name, array in arrays.items()},
    }
    arrays["about"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
    arrays.update(derived or {})
    with whole_file(target) as file:
        # No allow_pickle: NumPy 1.24 would take it for an array. All of these are of plain numbers.
        np.savez_compressed(file, **arrays)
    return target


def read(path: str | os.PathLike[str]) -> SavedModel:
    """Return the model in the file at `path`; FileNotFoundError where there is none.

    ModelFileError where it is truncated, damaged or no model file. Nothing in it is ever run.
    """
    target = Path(path)
    try:
        with np.load(target, allow_pickle=False) as archive:
            if not hasattr(archive, "files"):
                raise _refused(target, "it is a single NumPy array")
            missing = sorted({"about", *_ARRAYS} - set(archive.files))
            if missing:
                raise _refused(target, f"it lacks {', '.join(missing)}")
            optional = [name for name in _OPTIONAL_ARRAYS if name in archive.files]
            members = {name: archive[name] for name in ("about", *_ARRAYS, *optional)}
            if not all(isinstance(member, np.ndarray) for member in members.values()):
                raise _refused(target, "its members are no arrays")
            about = json.loads(members.pop("about").tobytes().decode())
    except (FileNotFoundError, ModelFileError):
        raise
    except Exception as error:  # damaged archives make zipfile and NumPy raise errors of many kinds
        raise _refused(target, f"it cannot be read ({error})") from error
    return _checked(target, about, members)


def _checked(target: Path, about: Any, arrays: dict[str, np.ndarray]) -> SavedModel:
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise _refused(target, "it was not written by save_model")
    if about.get("format_version") != FORMAT_VERSION:
        raise _refused(
            target,
            f"its format version is {about.get('format_version')!r}, this library reads {FORMAT_VERSION}",
        )
    sums = about.get("sha256")
    if isinstance(sums, dict) and set(sums) != set(arrays):
        raise _refused(target, f"it should hold the arrays {', '.join(sorted(map(str, sums)))}")
    for name, array in arrays.items():
        if not isinstance(sums, dict) or sums.get(name) != _digest(array):
            raise _refused(target, f"the checksum of {name} does not match")
    try:
        return model_of(about, arrays)
    except ValueError as error:
        raise _refused(target, str(error)) from error


def model_of(about: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> SavedModel:
    """Return the model that `about` (settings, steps, actions) and its arrays describe.

    ValueError, which says what is wrong, where they describe none.
    """
    q_table, visits = arrays["q_table"], arrays["visits"]
    fault = arrays_fault(arrays)
    if fault is not None:
        raise ValueError(fault)
    try:
        settings = Settings.from_dict(about["settings"])
        check_settings(settings)
        steps, actions = about["steps"], about["actions"]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"its settings cannot be used ({error})") from error
    if not isinstance(steps, int) or steps < 0:
        raise ValueError(f"its number of steps is {steps!r}")
    if q_table.dtype.name != settings.dtype:
        raise ValueError(f"its table is {q_table.dtype.name}, its settings say {settings.dtype}")
    if actions is not None and not (isinstance(actions, int) and 1 <= actions <= q_table.shape[1]):
        raise ValueError(f"its number of actions is {actions!r}")
    legal = arrays.get("legal")
    if legal is not None and not (
        legal.dtype == bool
        and legal.ndim == 2
        and legal.shape[0] <= q_table.shape[0]
        and legal.shape[1] <= q_table.shape[1]
    ):
        raise ValueError(f"its mask is {legal.dtype} of shape {legal.shape}")
    others = {name: arrays[name] for name in OTHER_ARRAYS if name in arrays}
    if table_shape(settings.algorithm, *q_table.shape).from_arrays(arrays) is None:
        raise ValueError(f"its tables are not those of the algorithm {settings.algorithm!r}")
    environment = Identity.from_dict(about.get("environment"))
    return SavedModel(settings, q_table, visits, steps, actions, legal, others, environment)


def arrays_fault(arrays: Mapping[str, np.ndarray]) -> str | None:
    """Return what is wrong with the tables and visits among arrays that were saved, or None."""
    fault = table_fault(arrays["q_table"], arrays["visits"])
    others = [arrays[name] for name in OTHER_ARRAYS if name in arrays]
    if fault is None and len(others) == len(OTHER_ARRAYS):
        fault = table_fault(*others)
        if others[0].dtype != arrays["q_table"].dtype:
            fault = f"its tables are {others[0].dtype}, their mean is {arrays['q_table'].dtype}"
    return fault


def table_fault(values: np.ndarray, visits: np.ndarray) -> str | None:
    """Return what is wrong with a table and its visits that were saved, or None."""
    if values.ndim != 2 or visits.shape != values.shape or visits.dtype != np.int64:
        return f"its arrays have the shapes {values.shape} and {visits.shape}"
    if visits.size and not 0 <= visits.min() <= visits.max() < _MAX_VISITS:
        return f"its visits go from {visits.min()} to {visits.max()}, not from 0 to 2**48 - 1"
    if values.dtype.kind != "f" or not values.dtype.isnative or not np.isfinite(values).all():
        return f"its table is {values.dtype} and must hold finite floating-point numbers"
    return None


def _digest(array: np.ndarray) -> str:
    head = f"{array.dtype.str} {array.shape} ".encode()
    return hashlib.sha256(head + np.ascontiguousarray(array).tobytes()).hexdigest()


def _refused(target: Path, why: str) -> ModelFileError:
    return ModelFileError(
        f"{target} is no usable model file: {why}. "
        "Give the path of a file that save_model of this library wrote."
    )
