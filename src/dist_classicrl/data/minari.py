"""Data sets of Minari, which is an extra."""

from __future__ import annotations

from typing import Any

import numpy as np

from dist_classicrl.errors import DataError, MissingExtraError


def load(name: str) -> Any:
    """Return the local data set of this id."""
    try:
        import minari
    except ImportError as error:
        raise MissingExtraError(
            "Minari data sets need minari, which is an extra: pip install '.[minari]' in a clone of this "
            "project, or pip install 'minari[hdf5]'."
        ) from error
    try:
        return minari.load_dataset(name)
    except (FileNotFoundError, ValueError) as error:
        raise DataError(
            f"there is no local Minari data set {name!r}: {error}. `minari list local` shows those that "
            "there are, `minari download` brings others."
        ) from error


def arrays_of(episode: Any) -> dict[str, np.ndarray]:
    """Return the arrays of an episode, which has an observation more than actions."""
    seen, actions = np.asarray(episode.observations), np.asarray(episode.actions)
    for name, array in (("observations", seen), ("actions", actions)):
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise DataError(
                f"its {name} have shape {array.shape} and dtype {array.dtype}; a table needs whole numbers, "
                "as of Discrete spaces: make such of them, and give arrays"
            )
    if seen.size != actions.size + 1:
        raise DataError(f"it has {seen.size} observations and {actions.size} actions, not one more of them")
    return {
        "states": seen[:-1],
        "actions": actions,
        "rewards": np.asarray(episode.rewards),
        "next_states": seen[1:],
        "terminated": np.asarray(episode.terminations, bool),
        "truncated": np.asarray(episode.truncations, bool),
    }
