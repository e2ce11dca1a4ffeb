"""The problems of the suite, as this package and as others take them."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from dist_classicrl import TabularMDP
from dist_classicrl.environments import TicTacToeEnv
from suite import plain

GARNETS = {
    "Garnet 10,000 x 100": (10_000, 100, 3),
    "Garnet 1,000,000 x 4": (1_000_000, 4, 3),
    "Garnet 1,000 x 4": (1_000, 4, 5),
    "Garnet 10,000 x 10": (10_000, 10, 5),
}
ARRAYS = (
    "n_states",
    "n_actions",
    "outcome_ptr",
    "outcome_prob",
    "outcome_next",
    "outcome_reward",
    "outcome_terminated",
)


@lru_cache(1)
def model(case: str) -> TabularMDP:
    """Return the finite model of a case that has one."""
    if case in GARNETS:
        states, actions, branching = GARNETS[case]
        return TabularMDP.garnet(states, actions, branching, seed=0)
    return TabularMDP.from_gymnasium(plain.environment(case, ""))


def compiled(case: str) -> Any:
    """Return what this package trains in compiled code."""
    if case == "TicTacToe":
        return TicTacToeEnv()
    if case == "Blackjack":
        return plain.environment(case, "")
    return model(case)


class Stepped(gymnasium.Wrapper):
    """An environment that nobody knows the model of, since it is a user's own."""


def write(case: str, folder: str) -> str:
    """Write the arrays of a model where the peers read them; return the path. What is there is kept."""
    path = Path(folder, f"{case}.npz")
    if not path.exists():
        made = model(case)
        np.savez(path, **{name: np.asarray(getattr(made, name)) for name in ARRAYS})
    return str(path)
