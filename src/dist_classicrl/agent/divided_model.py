"""A model whose table is divided between hosts, as a folder: asked for and written a slice at a time."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from dist_classicrl.checkpoint.arrays import InSlices
from dist_classicrl.checkpoint.folder import CheckpointFolder
from dist_classicrl.checkpoint.names import checkpoints_in
from dist_classicrl.engines.outcome import Tally
from dist_classicrl.environments.stepped import space_data
from dist_classicrl.errors import CheckpointError, CheckpointFencedError, SettingsError
from dist_classicrl.model.agent_state import AgentState

_SLICE_STATES = 1 << 16
_LOOK_SECONDS, _STALLED_SECONDS = 0.1, 60.0
_RUN = "0" * 8  # of all models, so that one takes the place of another, and of no checkpoint of a training


class _Asked(InSlices):
    """Values (0) or visits (1) of all states, asked for when they are written."""

    def __init__(self, state: AgentState, which: int, dtype: Any) -> None:
        super().__init__(state.table[which], dtype)
        self._state, self._which = state, which

    def slices(self) -> Iterator[np.ndarray]:
        """See `InSlices`."""
        n_states = self.shape[0]
        for first in range(0, n_states, _SLICE_STATES):
            states = np.arange(first, min(first + _SLICE_STATES, n_states))
            rows = np.array(self._state.rows_of(states)[self._which][0], self.dtype, order="C")
            if not np.isfinite(rows).all():
                raise ValueError("the table holds values that are not finite")
            yield rows


def save_divided(path: str | os.PathLike[str], state: AgentState) -> Path:
    """Write the model into the folder `path`, for `load_model`, as a checkpoint after the last step made.

    A model that was there is removed after that. Where several ranks do this at a time, that of the last to
    come stays, and all return when it is there.
    """
    target = Path(path).absolute()
    if target.is_file():
        raise SettingsError(
            f"{target} is a file, and a table that is divided between hosts is saved into a folder. Give the "
            "path of one, or remove the file."
        )
    folder = CheckpointFolder(target.parent, target.name, keep_last=1)
    _check_is_no_training(target, folder)
    number = folder.fence.claim()
    arrays: dict[str, Any] = {
        "q_table": _Asked(state, 0, state.settings.dtype),
        "visits": _Asked(state, 1, np.int64),
    }
    try:
        folder.write(arrays, {**_body(state), "run": _RUN}, _RUN)
    except Exception as error:  # who comes later removes what is half written
        if not _is_replaced(folder):
            raise
        _await_later(target, folder, number, error)
    return target


def _check_is_no_training(target: Path, folder: CheckpointFolder) -> None:
    """Raise SettingsError where checkpoints of a training are: what is saved there would hide them."""
    listed = folder.storage.listed()
    of_others = [str(name) for name in checkpoints_in(listed) if name.run != _RUN]
    of_others += [name for name in listed if re.fullmatch("agent-[0-9]+", name)]
    if of_others:
        raise SettingsError(
            f"{target} has checkpoints of a training ({of_others[0]}), which could not go on from them if a "
            f"model were saved there. Write save_model({f'{target}-model'!r})."
        )


def _is_replaced(folder: CheckpointFolder) -> bool:
    """Whether another process saves there since this one claimed it, such as another rank."""
    try:
        folder.fence.check()
    except CheckpointFencedError:
        return True
    except CheckpointError:
        pass
    return False


def _await_later(target: Path, folder: CheckpointFolder, number: int, error: Exception) -> None:
    """Wait until who came later has saved its model; raise `error` where nothing of that goes on."""
    size, deadline = -1, 0.0
    while all(name.fence <= number for name in checkpoints_in(folder.names())):
        grown = 0
        with suppress(OSError):  # what is gone meanwhile is a sign of life as well
            grown = sum(path.stat().st_size for path in target.rglob("*"))
        if grown != size:
            size, deadline = grown, time.monotonic() + _STALLED_SECONDS
        elif time.monotonic() > deadline:
            raise error
        time.sleep(_LOOK_SECONDS)


def _body(state: AgentState) -> dict[str, Any]:
    environment = state.environment
    return {
        "steps": state.steps,
        "seed": state.drawn_seed(),
        "settings": state.settings.to_dict(),
        "environment": {"text": "", **({} if environment is None else environment.to_dict())},
        "actions": state.n_actions,
        "spaces": space_data.to_data(state.observations, state.actions),
        "call": {"begin": state.steps, "end": state.steps},
        "mode": "async",
        "stream": None,
        "pace": None,
        "version": 0,
        "applied": {},
        "tally": Tally(total_steps=0).to_dict(0.0),
        "finished": [],
    }
