"""What the evaluations of a run found, as one file of arrays."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

import numpy as np

from dist_classicrl._files import open_regular, whole_file
from dist_classicrl.evaluation.returns import mean_of
from dist_classicrl.monitoring.files import set_aside

logger = logging.getLogger(__name__)

_ARRAYS = ("timesteps", "results", "ep_lengths", "exact_values")


@dataclass(frozen=True)
class Evaluated:
    """Whose evaluations these are, and in what: those of other agents and environments compare to nothing."""

    run: str  # see `DistAsyncQLearning.run_id`
    environment: str  # what was evaluated in
    fingerprint: str


@dataclass
class EvaluationLog:
    """The evaluations of a run, oldest first."""

    of: Evaluated | None = None  # None: not known
    timesteps: list[int] = field(default_factory=list)
    results: list[np.ndarray] = field(default_factory=list)  # undiscounted returns of the episodes of each
    ep_lengths: list[np.ndarray] = field(default_factory=list)  # their lengths
    exact_values: list[float] = field(default_factory=list)  # NaN where the model is not known
    saved_score: float = -math.inf  # of the best model on disk, which may be of a step that was cut off

    @property
    def means(self) -> list[float]:
        """The mean returns."""
        return [mean_of(returns) for returns in self.results]

    def add(self, step: int, returns: np.ndarray, lengths: np.ndarray, exact_value: float) -> None:
        """Enter an evaluation."""
        self.timesteps.append(step)
        self.results.append(returns)
        self.ep_lengths.append(lengths)
        self.exact_values.append(exact_value)

    def cut_off(self, step: int) -> None:
        """Forget the evaluations of later steps."""
        kept = sum(each <= step for each in self.timesteps)
        for column in (self.timesteps, self.results, self.ep_lengths, self.exact_values):
            del column[kept:]

    def write(self, path: Path) -> None:
        """Write the log, whole or not at all.

        Rows are as long as the longest evaluation; what others lack is NaN in results and 0 in ep_lengths.
        """
        episodes = max((returns.size for returns in self.results), default=0)
        results = np.full((len(self.results), episodes), np.nan)
        lengths = np.zeros((len(self.results), episodes), np.int64)
        for row, (returns, steps) in enumerate(zip(self.results, self.ep_lengths, strict=True)):
            results[row, : returns.size] = returns
            lengths[row, : steps.size] = steps
        with whole_file(path) as file:
            np.savez(
                file,
                timesteps=np.array(self.timesteps, np.int64),
                results=results,
                ep_lengths=lengths,
                exact_values=np.array(self.exact_values, np.float64),
                saved_score=self.saved_score,
                **({} if self.of is None else asdict(self.of)),
            )

    @classmethod
    def read(cls, path: Path) -> EvaluationLog:
        """Return the log in a file; an empty one if there is none, or if it is damaged, which renames it."""
        try:
            with open_regular(path) as file, np.load(file, allow_pickle=False) as archive:
                timesteps, results, lengths, exact = (archive[name] for name in _ARRAYS)
                log = cls(_evaluated(archive), saved_score=float(archive["saved_score"]))
            for step, returns, steps, value in zip(timesteps, results, lengths, exact, strict=True):
                played = ~np.isnan(returns)
                log.add(int(step), returns[played], steps[played], float(value))
            return log
        except FileNotFoundError:
            return cls()
        except Exception as error:  # damaged archives make zipfile and NumPy raise errors of many kinds
            (moved,) = set_aside([path])
            logger.warning("%s cannot be read and is %s now: %s", path, moved, error)
            return cls()


def _evaluated(archive: Mapping[str, np.ndarray]) -> Evaluated | None:
    names = [each.name for each in fields(Evaluated)]
    return Evaluated(*(str(archive[name]) for name in names)) if set(names) <= set(archive) else None
