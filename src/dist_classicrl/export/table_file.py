"""Tables from files that `export` wrote, or that have the same form."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from dist_classicrl._files import read_regular
from dist_classicrl.checks import checked_path
from dist_classicrl.errors import ModelFileError
from dist_classicrl.model import model_file

OF_STATES = "of_states"
"""The column of a part of a table that says how many states there are."""

_VALUES, _VISITS = "q:", "visits:"


def read_table(path: str | os.PathLike[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return action values and visits from a file of the formats "npz", "csv" and "json".

    Parameters
    ----------
    path : str or path
        Its suffix says what it is. A table in csv needs a column `state` and a column `q:NAME` for each
        action; columns `visits:NAME` of the same actions may be there, in any order, others are passed over.
        One with a column `of_states` is a part of a table, and refused.

    Returns
    -------
    q_table : ndarray(float64 or float32), shape (states, actions)
        What can be set as `DistAsyncQLearning.q_table`.
    visits : ndarray(int64), shape (states, actions)
        0 where the file has none.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ModelFileError
        If the file is of another kind, or does not hold a table of numbers.
    """
    target = Path(checked_path("path", path))
    readers = {".npz": _read_npz, ".csv": _read_csv, ".json": _read_json}
    if target.suffix not in readers:
        raise _refused(target, f"its suffix is not one of {', '.join(readers)}")
    try:
        values, visits = readers[target.suffix](target)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _refused(target, f"it cannot be read ({error.strerror or error})") from error
    fault = model_file.table_fault(values, visits)
    if fault is not None:
        raise _refused(target, fault)
    return values, visits


def _read_npz(target: Path) -> tuple[np.ndarray, np.ndarray]:
    model = model_file.read(target)
    return model.q_table, model.visits


def _read_csv(target: Path) -> tuple[np.ndarray, np.ndarray]:
    try:
        text = read_regular(target).decode("utf-8-sig")  # spreadsheets write a mark in front
        head, *rows = list(csv.reader(io.StringIO(text, newline=""))) or [[]]
    except (UnicodeDecodeError, csv.Error, ValueError) as error:
        raise _refused(target, f"it cannot be read ({error})") from error
    columns = _columns(target, head)
    rows = [row for row in rows if row]
    if odd := next((row for row in rows if any(row[len(head) :])), None):
        raise _refused(target, f"it has {len(head)} columns, and a row of {len(odd)} cells")
    if OF_STATES in head:
        raise _refused(target, "it holds only the most visited states, as --states asked for")
    at = head.index("state")
    try:
        states = [int(row[at]) for row in rows]
        values = [[float(row[i]) for i in columns[_VALUES]] for row in rows]
        visits = [[int(row[i]) for i in columns[_VISITS]] for row in rows]
    except (ValueError, IndexError) as error:
        raise _refused(target, f"a cell of it is no number ({error})") from error
    if sorted(states) != list(range(len(rows))):
        raise _refused(target, f"its {len(rows)} states are not those from 0 to {len(rows) - 1}")
    order = np.argsort(states)
    return _arrays(target, values, visits if columns[_VISITS] else None, order)


def _columns(target: Path, head: list[str]) -> dict[str, list[int]]:
    """Return where the values and the visits of each action are, in the order in which values are."""
    actions = {
        part: [name.removeprefix(part) for name in head if name.startswith(part)]
        for part in (_VALUES, _VISITS)
    }
    if "state" not in head or not actions[_VALUES]:
        raise _refused(target, f"it needs columns state and {_VALUES}NAME, and has {', '.join(head)}")
    needed = ["state", *(part + name for part, names in actions.items() for name in names)]
    if twice := [name for name in dict.fromkeys(needed) if head.count(name) > 1]:
        raise _refused(target, f"it has more than one column {twice[0]}")
    if actions[_VISITS] and set(actions[_VISITS]) != set(actions[_VALUES]):
        raise _refused(
            target,
            f"it has values of the actions {', '.join(actions[_VALUES])}, and visits of "
            f"{', '.join(actions[_VISITS])}",
        )
    return {
        part: [head.index(part + name) for name in actions[_VALUES]] if names else []
        for part, names in actions.items()
    }


def _read_json(target: Path) -> tuple[np.ndarray, np.ndarray]:
    try:
        data = json.loads(read_regular(target))
    except (ValueError, RecursionError) as error:
        raise _refused(target, f"it is no JSON ({error})") from error
    if not isinstance(data, dict) or "q_table" not in data:
        raise _refused(target, "it has no q_table")
    return _arrays(target, data["q_table"], data.get("visits"))


def _arrays(
    target: Path, values: Any, visits: Any, order: Any = slice(None)
) -> tuple[np.ndarray, np.ndarray]:
    try:
        table = np.array(values, np.float64)
        counts = np.zeros(table.shape, np.int64) if visits is None else np.array(visits)
        if counts.dtype.kind not in "iu":
            raise ValueError("visits are whole numbers")
        return table[order], counts.astype(np.int64)[order]
    except (ValueError, TypeError, OverflowError) as error:
        raise _refused(target, f"its table is not one of numbers ({error})") from error


def _refused(target: Path, why: str) -> ModelFileError:
    return ModelFileError(
        f"{target} holds no usable table: {why}. Give a file that `dist-classicrl export` wrote as npz, "
        "csv or json."
    )
