"""Train with types from the first line to the last: what the public names take and return is known to mypy.

python typed.py                            one process
mpirun -n 4 python typed.py                a server and three workers
mypy --strict typed.py
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dist_classicrl import DistAsyncQLearning, Progress, TabularMDP, TrainingResult
from dist_classicrl.callbacks import BaseCallback

LEFT, RIGHT = 0, 1


@dataclass(frozen=True)
class Corridor:
    """Cells in a row: every step costs 1, the last cell ends the episode, and some steps slip back."""

    cells: int
    slip: float

    def model(self) -> TabularMDP:
        """Return it as a finite model."""
        shape = (self.cells, 2, self.cells)
        transition = np.zeros(shape)
        for cell in range(self.cells):
            before, after = max(0, cell - 1), min(self.cells - 1, cell + 1)
            transition[cell, LEFT, before] = 1.0
            transition[cell, RIGHT, after] += 1.0 - self.slip
            transition[cell, RIGHT, before] += self.slip
        start = np.eye(self.cells)[0]
        ends = np.arange(self.cells) == self.cells - 1
        return TabularMDP.from_arrays(transition, np.full(shape[:2], -1.0), start, terminated=ends)


class Returns(BaseCallback):
    """Keeps the mean return of each report."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[float] = []

    def _on_step(self) -> bool:
        progress: Progress | None = self.progress
        if progress is not None and progress.episodes:
            self.seen.append(progress.mean_return)
        return True


def gap(agent: DistAsyncQLearning, model: TabularMDP, discount: float) -> float:
    """Return how far the greedy policy is from the best one, in the value of the start."""
    greedy: npt.NDArray[np.int64] = agent.policy.greedy
    best = model.start_value(model.solve(discount).v)
    return max(0.0, best - model.start_value(model.policy_value(greedy, discount)))


def main() -> None:
    """Train on every rank; rank 0 says how good the policy is."""
    model, returns = Corridor(cells=20, slip=0.2).model(), Returns()
    agent = DistAsyncQLearning(discount_factor=0.99, seed=0)
    result: TrainingResult = agent.train(model, total_steps=400_000, callbacks=[returns])
    if agent.rank == 0:
        print(f"{result.steps:,} steps, {result.episodes:,} episodes")
        print(f"mean return {returns.seen[-1]:.1f} in the last of {len(returns.seen)} reports")
        print(f"the greedy policy is {gap(agent, model, 0.99):.3f} below the best")


if __name__ == "__main__":
    main()
