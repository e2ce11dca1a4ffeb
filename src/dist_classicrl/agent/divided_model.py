"""A model whose table is divided between hosts, as a folder: asked for and written a slice at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dist_classicrl.checkpoint.arrays import InSlices
from dist_classicrl.checkpoint.folder import CheckpointFolder
from dist_classicrl.engines.outcome import Tally
from dist_classicrl.environments.stepped import space_data
from dist_classicrl.errors import SettingsError
from dist_classicrl.model.agent_state import AgentState

_SLICE_STATES = 1 << 16
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

    A model that was there is removed after that.
    """
    target = Path(path).absolute()
    if target.is_file():
        raise SettingsError(
            f"{target} is a file, and a table that is divided between hosts is saved into a folder. Give the "
            "path of one, or remove the file."
        )
    folder = CheckpointFolder(target.parent, target.name, keep_last=1)
    folder.fence.claim()
    arrays: dict[str, Any] = {
        "q_table": _Asked(state, 0, state.settings.dtype),
        "visits": _Asked(state, 1, np.int64),
    }
    folder.write(arrays, {**_body(state), "run": _RUN}, _RUN)
    return target


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
