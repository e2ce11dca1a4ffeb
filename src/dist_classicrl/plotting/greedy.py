"""What evaluations of a run found of its greedy policy, and what the best policy would collect."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dist_classicrl._files import open_regular
from dist_classicrl.errors import PlotError

FILE = "evaluations.npz"


@dataclass(frozen=True)
class Greedy:
    """The evaluations of a run, as `EvalCallback` made them.

    Attributes
    ----------
    steps : ndarray(int64)
        After how many steps each was.
    returns : ndarray(float64)
        Their mean returns.
    best : float or None
        What the best policy collects in an episode; None where that is not known.
    """

    steps: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    returns: np.ndarray = field(default_factory=lambda: np.empty(0))
    best: float | None = None


NOTHING = Greedy()


def read_evaluations(folder: str | os.PathLike[str], best: float | None = None) -> Greedy:
    """Return the evaluations that ``evaluations.npz`` in a run's folder has; none where it is not there.

    A `PlotError` is raised if it cannot be read. `best` is what the best policy collects.
    """
    path = Path(folder) / FILE
    if not path.exists():
        return Greedy(best=best)
    try:
        with open_regular(path) as file, np.load(file, allow_pickle=False) as archive:
            steps, results = archive["timesteps"], archive["results"]
        played = ~np.isnan(results)
        if steps.dtype.kind != "i" or results.ndim != 2 or not played.any(axis=1).all():
            raise ValueError(
                "timesteps are no whole numbers, or results no returns of at least one episode each"
            )
        if steps.shape != results.shape[:1]:
            raise ValueError(f"timesteps have the shape {steps.shape}, and results {results.shape}")
        returns = np.array([row[there].mean() for row, there in zip(results, played, strict=True)])
    except Exception as error:  # damaged archives make zipfile and NumPy raise errors of many kinds
        raise PlotError(f"{path} is none of EvalCallback's files ({error}). Move it away.") from error
    return Greedy(steps, returns, best)
