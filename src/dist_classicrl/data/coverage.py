"""What of a table logged transitions say something about."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dist_classicrl.data.transitions import Transitions


@dataclass(frozen=True, repr=False)
class Coverage:
    """Which states and pairs of a table occur in logged transitions, and how often.

    Attributes
    ----------
    transitions, episodes : int
    states, pairs : int
        Of the table.
    states_seen, pairs_seen : int
        In which an action was taken; that were taken.
    states_without_actions : int
        That were reached, without termination, and in which no action was taken: they are worth 0 to what is
        learned.
    fewest, median, most : int
        Times that a pair was taken, of those that were.
    """

    transitions: int
    episodes: int
    states: int
    pairs: int
    states_seen: int
    pairs_seen: int
    states_without_actions: int
    fewest: int
    median: int
    most: int

    @classmethod
    def of(cls, transitions: Transitions, n_states: int, n_actions: int) -> Coverage:
        """Return the coverage of a table of this size; DataError where it is too small."""
        transitions.check_size(n_states, n_actions)
        taken = np.bincount(transitions.states * n_actions + transitions.actions)
        taken = taken[taken > 0]
        acted = np.unique(transitions.states)
        reached = np.unique(transitions.next_states[~transitions.terminated])
        return cls(
            transitions=len(transitions),
            episodes=int(transitions.starts.size),
            states=n_states,
            pairs=n_states * n_actions,
            states_seen=int(acted.size),
            pairs_seen=int(taken.size),
            states_without_actions=int(np.setdiff1d(reached, acted).size),
            fewest=int(taken.min()),
            median=int(np.median(taken)),
            most=int(taken.max()),
        )

    def __repr__(self) -> str:
        return (
            f"Coverage({self.transitions:,} transitions, {self.episodes:,} episodes, {self.pairs_seen:,} of "
            f"{self.pairs:,} pairs, {self.states_seen:,} of {self.states:,} states, {self.fewest:,} to "
            f"{self.most:,} times, median {self.median:,}; {self.states_without_actions:,} states reached "
            "without data)"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data for JSON."""
        return asdict(self)
