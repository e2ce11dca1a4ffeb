"""A finite Markov decision process as arrays: checked when it is made, and read-only from then on."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from dist_classicrl.environments import conversion, garnet, reachability, toy_text
from dist_classicrl.environments.model_checks import (
    as_array,
    checked_grid,
    checked_limit,
    checked_mask,
    checked_outcomes,
    checked_start,
    positive_int,
)
from dist_classicrl.errors import ActionMaskError, ModelError

if TYPE_CHECKING:
    import numpy.typing as npt

    from dist_classicrl.environments.solve import Solution

_OUTCOME_FIELDS = ("outcome_ptr", "outcome_prob", "outcome_next", "outcome_reward", "outcome_terminated")


@dataclass(frozen=True, eq=False, repr=False)
class TabularMDP:
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
            max_episode_steps=checked_limit(self.max_episode_steps),
            action_mask=mask,
            start_prob=checked_start(self.start_prob, S),
            name=str(self.name),
            grid_shape=checked_grid(self.grid_shape, S),
        )
        for field, value in own.items():
            if isinstance(value, np.ndarray):
                value.setflags(write=False)
            object.__setattr__(self, field, value)
        self._check_acting_states()

    def _check_acting_states(self) -> None:
        if self.action_mask is None:
            return
        stuck = ~self.action_mask.any(axis=1)
        if not stuck.any():
            return
        starts = np.flatnonzero(stuck & (self.start_prob > 0))
        if starts.size:
            raise ActionMaskError(
                f"the action mask forbids every action of state {starts[0]}, where episodes can start; "
                "allow at least one action there, or take the state out of start_prob"
            )
        reached = np.flatnonzero(stuck & self._acting_states)
        if reached.size:
            raise ActionMaskError(
                f"the action mask forbids every action of state {reached[0]}, which an episode can reach "
                "without ending; allow one of its actions, or mark the transitions into it as terminated"
            )

    @cached_property
    def _acting_states(self) -> np.ndarray:
        """States in which some policy may have to act, bool, shape (S,)."""
        state = reachability.rows_of(self.outcome_ptr) // self.n_actions
        usable = ~self.outcome_terminated
        if self.action_mask is not None:
            usable = usable & self.action_mask.reshape(-1)[reachability.rows_of(self.outcome_ptr)]
        pointer = reachability.row_pointer(state[usable], self.n_states)
        return reachability.successors_closure(pointer, self.outcome_next[usable], self.start_prob > 0)

    def legal_pairs(self) -> np.ndarray:
        """Return the legal pairs, bool, shape (S, A): a copy of the mask, or all True where there is none."""
        if self.action_mask is None:
            return np.ones((self.n_states, self.n_actions), dtype=bool)
        return self.action_mask.copy()

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

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TabularMDP):
            return NotImplemented
        return self.fingerprint() == other.fingerprint()

    def __hash__(self) -> int:
        return hash(self._digest)

    def __repr__(self) -> str:
        return (
            f"TabularMDP({self.name!r}, {self.n_states} states, {self.n_actions} actions, "
            f"{self.outcome_prob.size} outcomes, max_episode_steps={self.max_episode_steps})"
        )

    def solve(self, discount_factor: float, tolerance: float = 1e-10) -> Solution:
        """Return the optimal values and a policy that attains them; see `environments.solve.solve`.

        The values are those of the process without its time limit.
        """
        # Imported here: it brings numba, which a program that only makes models does not need.
        from dist_classicrl.environments import solve

        return solve.solve(self, discount_factor, tolerance)

    def policy_value(self, policy: np.ndarray, discount_factor: float) -> np.ndarray:
        """Return the exact value of a policy; see `environments.policy_value.policy_value`.

        `policy` is an action per state, int, shape (S,), or probabilities, float, shape (S, A). The values,
        float64, shape (S,), are those of the process without its time limit.
        """
        from dist_classicrl.environments import policy_value

        return policy_value.policy_value(self, policy, discount_factor)

    def start_value(self, v: np.ndarray) -> float:
        """Return the mean of the state values `v`, shape (S,), over the start distribution."""
        v = as_array("v", v)
        if v.shape != (self.n_states,) or v.dtype.kind not in "fiub":
            raise ModelError(
                f"v has shape {v.shape} and dtype {v.dtype}; it needs one value per state, "
                f"numbers of shape ({self.n_states},)"
            )
        return float(self.start_prob @ v)

    @classmethod
    def from_arrays(
        cls,
        transition: npt.ArrayLike,
        reward: npt.ArrayLike,
        start_prob: npt.ArrayLike,
        *,
        terminated: npt.ArrayLike | None = None,
        max_episode_steps: int | None = None,
        action_mask: npt.ArrayLike | None = None,
        name: str = "model",
        grid_shape: tuple[int, int] | None = None,
    ) -> TabularMDP:
        """Make a model from dense arrays of transitions.

        For a model that is too large for dense arrays, give its outcomes in compressed sparse row form to
        `TabularMDP`.

        Parameters
        ----------
        transition : array_like of float, shape (S, A, S)
            ``transition[s, a, t]`` is the probability that action `a` in state `s` leads to state `t`. A pair
            that the mask forbids may have zeros only.
        reward : array_like of float, shape (S, A, S) or (S, A)
            By transition, or by pair.
        start_prob : array_like of float, shape (S,)
        terminated : array_like of bool, shape (S, A, S) or (S,), optional
            Which transitions end the episode, or which states end it when they are reached. None: none does.
        max_episode_steps, action_mask, name, grid_shape
            As for `TabularMDP`.

        Raises
        ------
        ModelError, RewardError, ActionMaskError
            As `TabularMDP` does.
        """
        fields = conversion.fields_of_arrays(transition, reward, terminated)
        fields |= {"start_prob": start_prob, "action_mask": action_mask}
        return cls(**fields, max_episode_steps=max_episode_steps, name=name, grid_shape=grid_shape)

    @classmethod
    def from_dict(
        cls,
        P: Mapping[int, Any] | Sequence[Any],
        start_prob: npt.ArrayLike,
        *,
        n_actions: int | None = None,
        action_mask: npt.ArrayLike | None = None,
        max_episode_steps: int | None = None,
        name: str = "model",
        grid_shape: tuple[int, int] | None = None,
    ) -> TabularMDP:
        """Make a model from transitions in the form of Gymnasium's toy-text environments.

        Parameters
        ----------
        P : mapping or sequence
            ``P[s][a]`` is a list of tuples (probability, next state, reward, terminated), for the states 0 to
            S - 1. A pair that is missing or has an empty list is illegal.
        start_prob : array_like of float, shape (S,)
        n_actions : int, optional
            The number of actions. None: one more than the largest action in `P`.
        action_mask : array_like of bool, shape (S, A), optional
            True where an action is legal. None: legal are the pairs that have outcomes.
        max_episode_steps, name, grid_shape
            As for `TabularMDP`.

        Raises
        ------
        ModelError, RewardError, ActionMaskError
            As `TabularMDP` does, and ModelError where the keys of `P` are not 0 to S - 1 and 0 to A - 1, or
            an outcome is not a tuple of four.
        """
        fields = conversion.fields_of_dict(P, n_actions, action_mask)
        fields |= {"start_prob": start_prob}
        return cls(**fields, max_episode_steps=max_episode_steps, name=name, grid_shape=grid_shape)

    @classmethod
    def from_gymnasium(cls, env: Any, *, use_action_mask: bool = False, **make_kwargs: Any) -> TabularMDP:
        """Make the model of Gymnasium's FrozenLake, Taxi or CliffWalking.

        Known are instances of exactly `FrozenLakeEnv`, `TaxiEnv` and `CliffWalkingEnv` (no subclasses), under
        any number of exactly `TimeLimit`, `OrderEnforcing`, `PassiveEnvChecker` and
        `RecordEpisodeStatistics`. The model has the instance's transitions `P`, its
        `initial_state_distrib`, and the smallest of the time limits around it. A Taxi whose passenger is
        fickle is not known: whether the passenger will still change its mind is not in the observation, so
        the observations are no Markov process.

        Parameters
        ----------
        env : str, gymnasium.envs.registration.EnvSpec or gymnasium.Env
            An id or a specification, which is made with `make_kwargs`, or an instance, which is only read.
        use_action_mask : bool
            Give a Taxi's model the mask of `TaxiEnv.action_mask`, which forbids the actions that have no
            effect: moves into a wall, picking up where no passenger waits, dropping off where nobody can get
            out. Gymnasium itself reports the mask in `info` and plays such actions nevertheless (reward -1 or
            -10), so without this all pairs are legal. FrozenLake and CliffWalking have no mask.
        **make_kwargs
            For `gymnasium.make`: the environment's own options, and `max_episode_steps`.

        Raises
        ------
        EnvError
            No model is known to be the same process; the message says why. Such an environment can still be
            stepped.
        RewardError
            A reward is NaN or infinite.
        """
        return cls(**toy_text.fields_of(env, use_action_mask, make_kwargs))

    @classmethod
    def garnet(
        cls,
        n_states: int,
        n_actions: int,
        branching: int,
        *,
        seed: int,
        reward_std: float = 1.0,
        terminal_states: int = 0,
        termination_probability: float = 0.0,
        max_episode_steps: int | None = 100,
        name: str | None = None,
    ) -> TabularMDP:
        """Make a random model, a Garnet.

        Each pair leads to `branching` distinct states, drawn uniformly. Their probabilities are the lengths
        of the pieces into which ``branching - 1`` independent uniform points cut the unit interval. The
        reward of a pair is normal with mean 0 and the same for all its outcomes. Episodes start in a
        uniformly drawn state that is not terminal.

        A Garnet goes on for ever. Episodes come from the time limit, which leaves the values as they are, or
        from terminations, which don't.

        Parameters
        ----------
        n_states, n_actions : int
        branching : int
            Outcomes per pair, from 1 to `n_states`. Time and memory grow with pairs times `branching`.
        seed : int
            The same arguments and seed give the same model, with the same version of NumPy.
        reward_std : float
            Standard deviation of the pairs' rewards, at least 0.
        terminal_states : int
            So many states, drawn at random, end the episode when they are reached; less than `n_states`.
        termination_probability : float
            Each step ends the episode with this probability, wherever it leads; from 0 to below 1. It is one
            more outcome per pair, with the same reward, into one of the pair's next states.
        max_episode_steps : int or None
            Time limit of an episode. None: no limit.
        name : str, optional
            None: a name that holds the sizes and the seed.

        Raises
        ------
        SettingsError
            An argument is outside what is allowed.
        ModelError
            `max_episode_steps` is not a whole number of at least 1.
        """
        fields = garnet.draw(
            n_states, n_actions, branching, seed, reward_std, terminal_states, termination_probability
        )
        label = name or f"Garnet({n_states}, {n_actions}, {branching}, seed={seed})"
        return cls(**fields, max_episode_steps=max_episode_steps, name=label)
