"""What solvers, samplers and simulators ask of a finite model, however it is stored.

`TabularMDP` and `FunctionMDP` are such models. They know their solvers and simulators, which know of them
what stands here, and nothing else.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from dist_classicrl._html import facts_of
from dist_classicrl.environments.solution import Solution


class Fingerprinted:
    """A model that is equal to others of its kind that are the same process, whatever they are called."""

    def fingerprint(self) -> str:
        """Return a SHA-256 of the process in hexadecimal."""
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return self.fingerprint() == other.fingerprint() if isinstance(other, type(self)) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.fingerprint())

    def _repr_html_(self) -> str:
        return facts_of(repr(self))


class Pairs(Protocol):
    """States and actions, of which some are legal."""

    @property
    def n_states(self) -> int:
        """S."""

    @property
    def n_actions(self) -> int:
        """A."""

    def legal_pairs(self) -> np.ndarray:
        """Return the legal pairs, bool, shape (S, A)."""


class FiniteModel(Pairs, Protocol):
    """A finite Markov decision process, of which the solution can be asked."""

    @property
    def name(self) -> str:
        """For messages and plots."""

    @property
    def max_episode_steps(self) -> int | None:
        """Steps after which an episode is truncated; None: never."""

    @property
    def start_prob(self) -> np.ndarray:
        """The distribution of the first state of an episode, float64, shape (S,)."""

    def __hash__(self) -> int: ...

    def fingerprint(self) -> str:
        """Return a SHA-256 of the process in hexadecimal."""

    def solve(
        self,
        discount_factor: float,
        tolerance: float = 1e-10,
        method: str = "modified_policy_iteration",
        max_iterations: int = 100_000,
    ) -> Solution:
        """Return the optimal values and a policy that attains them."""

    def policy_value(
        self, policy: np.ndarray, discount_factor: float, from_start: bool = False
    ) -> np.ndarray:
        """Return the value of a policy, float64, shape (S,); at discount factor 1 if need be `from_start`."""

    def start_value(self, v: np.ndarray) -> float:
        """Return the mean of the state values `v`, shape (S,), over the start distribution."""


class ArrayModel(FiniteModel, Protocol):
    """A finite model whose outcomes are arrays; `TabularMDP` says what is in them."""

    @property
    def outcome_ptr(self) -> np.ndarray:
        """Where the outcomes of each pair begin, int, shape (S * A + 1,)."""

    @property
    def outcome_prob(self) -> np.ndarray:
        """Probabilities, float64, shape (O,)."""

    @property
    def outcome_next(self) -> np.ndarray:
        """Next states, int, shape (O,)."""

    @property
    def outcome_reward(self) -> np.ndarray:
        """Rewards, float64, shape (O,)."""

    @property
    def outcome_terminated(self) -> np.ndarray:
        """Whether the episode ends, bool, shape (O,)."""

    @property
    def action_mask(self) -> np.ndarray | None:
        """The legal pairs, bool, shape (S, A); None: all are."""
