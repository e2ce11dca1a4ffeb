"""A finite Markov decision process as arrays: checked when it is made, and read-only from then on."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from dist_classicrl.environments import reachability
from dist_classicrl.environments.finite_model import Fingerprinted
from dist_classicrl.environments.model_checks import (
    check_acting_states,
    checked_grid,
    checked_mask,
    checked_outcomes,
    checked_start,
    checked_state_values,
    checked_time_limit,
    positive_int,
)
from dist_classicrl.environments.model_making import Making
from dist_classicrl.environments.sampling.ranges import Rows

if TYPE_CHECKING:
    import numpy.typing as npt

    from dist_classicrl.environments.sampling.alias import ModelTables
    from dist_classicrl.environments.solution import (
        AverageSolution,
        FiniteHorizonSolution,
        PolicyGain,
        Solution,
    )

_OUTCOME_FIELDS = ("outcome_ptr", "outcome_prob", "outcome_next", "outcome_reward", "outcome_terminated")


@dataclass(frozen=True, eq=False, repr=False)
class TabularMDP(Fingerprinted, Making):
    """A finite Markov decision process with a start distribution and an optional time limit.

    The outcomes of the state-action pairs are stored in compressed sparse row form: pair
    ``s * n_actions + a`` has the outcomes ``outcome_ptr[pair]`` to ``outcome_ptr[pair + 1] - 1``. The order
    of a pair's outcomes is kept as given, but outcomes of probability 0 are dropped.

    All arrays are checked, copied and made read-only. Probabilities of a pair (and of the start states)
    must add up to 1 within 1e-8; a sum that is further than 1e-12 from 1 is divided out. Two models are
    equal when all that makes up the process is equal; `name` and `grid_shape` are labels and play no part
    in it.

    A transition that terminates has no future: its value is its reward, whatever `outcome_next` is. A state
    that is only ever reached by termination is never acted in; its pairs may hold anything that is valid,
    such as Gymnasium's loops from a terminal state to itself, or nothing if the mask forbids them.

    Parameters
    ----------
    n_states, n_actions : int
        Both at least 1. Called S and A below; O is the number of outcomes.
    outcome_ptr : array_like of int, shape (S * A + 1,)
        Starts at 0, never falls, ends at O. Every legal pair has at least one outcome of positive
        probability.
    outcome_prob : array_like of float, shape (O,)
    outcome_next : array_like of int, shape (O,)
        The state reached, from 0 to S - 1.
    outcome_reward : array_like of float, shape (O,)
        Finite.
    outcome_terminated : array_like of bool, shape (O,)
        Whether the episode ends with this transition.
    start_prob : array_like of float, shape (S,)
        The distribution of the first state of an episode.
    max_episode_steps : int, optional
        An episode is truncated after this many steps. None: never.
    action_mask : array_like of bool, shape (S, A), optional
        True where an action is legal. None: all are. Outcomes of illegal pairs are kept, checked, and never
        used.
    name : str
        For messages and plots.
    grid_shape : tuple of two int, optional
        Rows and columns of a grid problem whose state is ``row * columns + column``, for plots.

    Raises
    ------
    ModelError
        The arrays do not describe a Markov decision process.
    RewardError
        A reward is NaN or infinite.
    ActionMaskError
        The mask has another shape, or forbids every action of a state that must be acted in.
    SettingsError
        `max_episode_steps` is not a whole number of at least 1.
    """

    n_states: int
    n_actions: int
    outcome_ptr: np.ndarray
    outcome_prob: np.ndarray
    outcome_next: np.ndarray
    outcome_reward: np.ndarray
    outcome_terminated: np.ndarray
    start_prob: np.ndarray
    max_episode_steps: int | None = None
    action_mask: np.ndarray | None = None
    name: str = "model"
    grid_shape: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        S = positive_int("n_states", self.n_states)
        A = positive_int("n_actions", self.n_actions)
        mask = None if self.action_mask is None else checked_mask(self.action_mask, S, A)
        given = tuple(getattr(self, field) for field in _OUTCOME_FIELDS)
        own: dict[str, Any] = dict(zip(_OUTCOME_FIELDS, checked_outcomes(given, mask, S, A), strict=True))
        own.update(
            n_states=S,
            n_actions=A,
            max_episode_steps=checked_time_limit(self.max_episode_steps),
            action_mask=mask,
            start_prob=checked_start(self.start_prob, S),
            name=str(self.name),
            grid_shape=checked_grid(self.grid_shape, S),
        )
        self._keep(own)

    def _keep(self, checked: dict[str, Any]) -> None:
        for field, value in checked.items():
            if isinstance(value, np.ndarray):
                value.setflags(write=False)
            object.__setattr__(self, field, value)
        self._check_acting_states()

    def _check_acting_states(self) -> None:
        if self.action_mask is None:
            return
        stuck = ~np.any(self.action_mask, axis=1)
        if stuck.any():
            check_acting_states(stuck, self.start_prob > 0, self._acting_states)

    @cached_property
    def _acting_states(self) -> np.ndarray:
        """States in which some policy may have to act, bool, shape (S,)."""
        state = reachability.rows_of(self.outcome_ptr) // self.n_actions
        usable = ~self.outcome_terminated
        if self.action_mask is not None:
            usable = usable & self.action_mask.reshape(-1)[reachability.rows_of(self.outcome_ptr)]
        pointer = reachability.row_pointer(state[usable], self.n_states)
        return reachability.successors_closure(pointer, self.outcome_next[usable], self.start_prob > 0)

    def legal_pairs(self, states: range | np.ndarray | None = None) -> np.ndarray:
        """Return the legal pairs, bool, shape (S, A), or those of some states.

        It is a copy of the mask, or all True where there is none.
        """
        rows = Rows(states, self.n_states)
        if self.action_mask is None:
            return np.ones((rows.n, self.n_actions), dtype=bool)
        return self.action_mask[rows.index].copy()

    def reachable_pairs(self) -> np.ndarray:
        """Return the legal pairs that some policy can visit from the start distribution, bool, shape (S, A).

        A state counts where an episode can start in it or come to it without ending. A state that is only
        reached by termination is never acted in, so none of its pairs count, even if they have outcomes.
        The time limit is ignored: a pair that takes more steps to reach than an episode may have counts as
        well.
        """
        return self.legal_pairs() & self._acting_states[:, None]

    @cached_property
    def _digest(self) -> str:
        digest = hashlib.sha256()
        limit = -1 if self.max_episode_steps is None else self.max_episode_steps
        masked = self.action_mask is not None
        digest.update(np.array([self.n_states, self.n_actions, limit, masked], dtype="<i8").tobytes())
        for array in (self.outcome_ptr, self.outcome_next):
            digest.update(array.astype("<i8", copy=False).tobytes())
        for array in (self.outcome_prob, self.outcome_reward, self.start_prob):
            digest.update(array.astype("<f8", copy=False).tobytes())
        digest.update(self.outcome_terminated.tobytes())
        if self.action_mask is not None:
            digest.update(self.action_mask.tobytes())
        return digest.hexdigest()

    def fingerprint(self) -> str:
        """Return the SHA-256 of the process (its arrays and numbers, not its labels) in hexadecimal."""
        return self._digest

    def __repr__(self) -> str:
        return (
            f"TabularMDP({self.name!r}, {self.n_states} states, {self.n_actions} actions, "
            f"{self.outcome_prob.size} outcomes, max_episode_steps={self.max_episode_steps})"
        )

    def part(self, states: range | np.ndarray | None = None) -> ModelTables:
        """Return the alias tables of some states, or of all: what a rank needs that holds these."""
        from dist_classicrl.environments.sampling import packing

        return packing.compile_model(self, states)

    # Solvers are imported where they are used: they bring numba, which a program that only makes models does
    # not need.

    def solve(
        self,
        discount_factor: float,
        tolerance: float = 1e-10,
        method: str = "modified_policy_iteration",
        max_iterations: int = 100_000,
    ) -> Solution:
        """Return the optimal values and a policy that attains them.

        The values are those of the process without its time limit. Sweeps run in threads on all cores, and
        what comes out does not depend on how many there are.

        Parameters
        ----------
        discount_factor : float
            From 0 to 1. At 1 the values must be finite, as they are where every policy ends or waiting has
            a cost.
        tolerance : float
            Largest error of a value; above 0. For discount factors g below 1 sweeps stop when the bound on
            the error, ``g / (1 - g)`` times the largest change of a value, is below it, at 1 when the error
            is that a geometric series predicts from the last eight changes.
        method : str
            "modified_policy_iteration", "value_iteration" or "policy_iteration" (Puterman 1994, sections
            6.3 to 6.5). The first is the fastest for large models; the last is exact to rounding up to
            2,000 states, and where episodes end late needs the fewest iterations. At discount factor 1 it
            begins with a policy that ends wherever one can, and the first is value iteration.
        max_iterations : int
            Improving sweeps before it gives up; at least 1.

        Raises
        ------
        SettingsError
            An argument is outside what is allowed.
        ConvergenceError
            The sweeps were used up: the values are infinite, or need more sweeps.
        """
        from dist_classicrl.environments.solvers import discounted

        return discounted.solve(self, discount_factor, tolerance, method, max_iterations)

    def solve_finite_horizon(
        self,
        horizon: int | None = None,
        discount_factor: float = 1.0,
        final_values: npt.ArrayLike | None = None,
    ) -> FiniteHorizonSolution:
        """Return the optimal values and actions of each of the first `horizon` steps, exact but for rounding.

        Backward induction (Puterman 1994, section 4.5). With the model's own time limit these are the
        values of its episodes, time limit included. Memory is needed for two numbers a state and step.

        Parameters
        ----------
        horizon : int, optional
            Steps; at least 1. None: `max_episode_steps`.
        discount_factor : float
            From 0 to 1.
        final_values : array_like of float, shape (S,), optional
            What a state is worth after the last step. None: nothing.

        Raises
        ------
        SettingsError
            An argument is outside what is allowed.
        """
        from dist_classicrl.environments.solvers import finite_horizon
        from dist_classicrl.environments.solvers.rows import RowsProcess

        return finite_horizon.solve(
            lambda: RowsProcess.of_model(self),
            horizon,
            self.max_episode_steps,
            discount_factor,
            final_values,
        )

    def solve_average_reward(
        self,
        tolerance: float = 1e-10,
        method: str = "relative_value_iteration",
        max_iterations: int = 100_000,
    ) -> AverageSolution:
        """Return the largest average reward of a step, and a policy that has it.

        An episode that ends begins anew from `start_prob`, so that every process goes on for ever; the time
        limit is ignored. Chains that are gone round are no trouble: see `PolicyGain.periods`.

        Parameters
        ----------
        tolerance : float
            Largest error of the gain; above 0.
        method : str
            "relative_value_iteration" finds one gain for all states, with bounds on it that hold whatever
            the model (Puterman 1994, section 8.5). "policy_iteration" finds the gain of each state, also
            where they differ (multichain models: section 9.2), exactly, for up to 2,000 states.
        max_iterations : int
            Improving sweeps before it gives up; at least 1.

        Raises
        ------
        SettingsError
            An argument is outside what is allowed.
        ConvergenceError
            The gain depends on the state, and the method is relative value iteration; or the sweeps were
            used up.
        """
        from dist_classicrl.environments.solvers import average

        return average.solve(self, tolerance, method, max_iterations)

    def policy_value(
        self, policy: np.ndarray, discount_factor: float, from_start: bool = False
    ) -> np.ndarray:
        """Return the exact value of a policy; see `environments.solvers.policy_value.policy_value`.

        `policy` is an action per state, int, shape (S,), or probabilities, float, shape (S, A). The values,
        float64, shape (S,), are those of the process without its time limit.
        """
        from dist_classicrl.environments.solvers import policy_value

        return policy_value.policy_value(self, policy, discount_factor, from_start)

    def policy_gain(
        self, policy: np.ndarray, tolerance: float = 1e-10, max_iterations: int = 100_000
    ) -> PolicyGain:
        """Return the average reward of a policy, as `policy_value` takes it; see `solve_average_reward`.

        Up to 2,000 states linear equations give it, of each state by itself. Above, sweeps give the one gain
        of all states; ConvergenceError where they have several, or where the sweeps are used up.
        """
        from dist_classicrl.environments.solvers import average

        return average.policy_gain(self, policy, tolerance, max_iterations)

    def start_value(self, v: np.ndarray) -> float:
        """Return the mean of the state values `v`, shape (S,), over the start distribution."""
        v = checked_state_values(v, self.n_states)
        return float((self.start_prob * v).sum())
