"""A finite Markov decision process as arrays: checked when it is made, and read-only from then on."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from dist_classicrl.environments import reachability
from dist_classicrl.errors import ActionMaskError, ModelError, RewardError

if TYPE_CHECKING:
    from dist_classicrl.environments.solve import Solution

#: How far the probabilities of a pair, or of the start states, may be from adding up to 1.
PROBABILITY_TOLERANCE = 1e-8

#: Sums this near to 1 are rounding errors of a sum and are left alone, so that a model made from another
#: model's arrays has the same arrays, bit for bit, and with them the same fingerprint.
ROUNDING_TOLERANCE = 1e-12


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
        S = _positive_int("n_states", self.n_states)
        A = _positive_int("n_actions", self.n_actions)
        limit = self.max_episode_steps
        if limit is not None:
            limit = _positive_int("max_episode_steps", limit, "None for no time limit")
        mask = None if self.action_mask is None else _checked_mask(self.action_mask, S, A)
        given = tuple(getattr(self, field) for field in _OUTCOME_FIELDS)
        own: dict[str, Any] = dict(zip(_OUTCOME_FIELDS, _checked_outcomes(given, mask, S, A), strict=True))
        own.update(
            n_states=S,
            n_actions=A,
            max_episode_steps=limit,
            action_mask=mask,
            start_prob=_checked_start(self.start_prob, S),
            name=str(self.name),
            grid_shape=_checked_grid(self.grid_shape, S),
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
        pointer = np.zeros(self.n_states + 1, dtype=np.int64)
        np.cumsum(np.bincount(state[usable], minlength=self.n_states), out=pointer[1:])
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
        """Return the exact value of a policy, float64, shape (S,); see `environments.solve.policy_value`.

        `policy` is an action per state, int, shape (S,), or probabilities, float, shape (S, A). The values
        are those of the process without its time limit.
        """
        from dist_classicrl.environments import solve

        return solve.policy_value(self, policy, discount_factor)

    def start_value(self, v: np.ndarray) -> float:
        """Return the mean of the state values `v`, shape (S,), over the start distribution."""
        v = np.asarray(v, dtype=np.float64)
        if v.shape != (self.n_states,):
            raise ModelError(f"v has shape {v.shape}; it needs one value per state, shape ({self.n_states},)")
        return float(self.start_prob @ v)

    @classmethod
    def from_arrays(cls, transition: Any, reward: Any, start_prob: Any, **kwargs: Any) -> TabularMDP:
        """Make a model from dense arrays; see `environments.conversion.from_arrays`."""
        from dist_classicrl.environments import conversion

        return conversion.from_arrays(transition, reward, start_prob, **kwargs)

    @classmethod
    def from_dict(cls, P: Mapping[int, Any] | Sequence[Any], start_prob: Any, **kwargs: Any) -> TabularMDP:
        """Make a model from Gymnasium's ``P[s][a]``; see `environments.conversion.from_dict`."""
        from dist_classicrl.environments import conversion

        return conversion.from_dict(P, start_prob, **kwargs)

    @classmethod
    def from_gymnasium(cls, env: Any, *, use_action_mask: bool = False, **make_kwargs: Any) -> TabularMDP:
        """Make the model of FrozenLake, Taxi or CliffWalking; see `environments.toy_text.from_gymnasium`."""
        from dist_classicrl.environments import toy_text

        return toy_text.from_gymnasium(env, use_action_mask=use_action_mask, **make_kwargs)

    @classmethod
    def garnet(
        cls, n_states: int, n_actions: int, branching: int, *, seed: int, **options: Any
    ) -> TabularMDP:
        """Make a random model; see `environments.garnet.garnet`."""
        from dist_classicrl.environments import garnet

        return garnet.garnet(n_states, n_actions, branching, seed=seed, **options)


def _positive_int(name: str, value: Any, otherwise: str = "") -> int:
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, (bool, np.bool_))
    if not whole or value < 1:
        hint = f", or {otherwise}" if otherwise else ""
        raise ModelError(f"{name} is {value!r}; it must be a whole number of at least 1{hint}")
    return int(value)


def _checked_array(
    name: str, value: Any, kinds: str, dtype: Any, shape: tuple[int, ...] | None
) -> np.ndarray:
    """Copy `value` into a fresh array of `dtype`, refusing what would lose information on the way."""
    try:
        given = np.asarray(value)
    except ValueError as error:
        raise ModelError(f"{name} is no array: {error}") from error
    # An empty list becomes a float array, which says nothing about what was meant.
    if given.dtype.kind not in kinds and given.size:
        raise ModelError(f"{name} has dtype {given.dtype}; it must convert to {np.dtype(dtype)} without loss")
    if shape is not None and given.shape != shape:
        raise ModelError(f"{name} has shape {given.shape}; it must have shape {shape}")
    if shape is None and given.ndim != 1:
        raise ModelError(f"{name} has shape {given.shape}; it must have one dimension")
    return np.array(given, dtype=dtype, order="C")


def _checked_mask(value: Any, n_states: int, n_actions: int) -> np.ndarray:
    given = np.asarray(value)
    if given.shape != (n_states, n_actions):
        raise ActionMaskError(
            f"action_mask has shape {given.shape}; it needs one entry per state and action, "
            f"shape ({n_states}, {n_actions})"
        )
    if given.dtype.kind not in "biu" or not np.isin(given, (0, 1)).all():
        raise ActionMaskError("action_mask holds something other than True and False (or 1 and 0)")
    return given.astype(bool)


def _checked_grid(value: Any, n_states: int) -> tuple[int, int] | None:
    if value is None:
        return None
    shape = tuple(value)
    if len(shape) != 2 or shape[0] * shape[1] != n_states:
        raise ModelError(
            f"grid_shape is {value!r}; it must be (rows, columns) with {n_states} cells, or None"
        )
    return _positive_int("grid_shape[0]", shape[0]), _positive_int("grid_shape[1]", shape[1])


def _checked_probabilities(name: str, value: Any, shape: tuple[int, ...] | None) -> np.ndarray:
    prob = _checked_array(name, value, "fiu", np.float64, shape)
    wrong = np.flatnonzero(~(prob >= 0) | np.isinf(prob))
    if wrong.size:
        raise ModelError(f"{name}[{wrong[0]}] is {prob[wrong[0]]}; probabilities are finite and at least 0")
    return prob


def _checked_start(value: Any, n_states: int) -> np.ndarray:
    prob = _checked_probabilities("start_prob", value, (n_states,))
    total = prob.sum()
    if abs(total - 1) > PROBABILITY_TOLERANCE:
        raise ModelError(f"start_prob adds up to {total}; it must add up to 1 within {PROBABILITY_TOLERANCE}")
    if abs(total - 1) > ROUNDING_TOLERANCE:
        prob /= total
    return prob + 0.0


def _checked_outcomes(
    given: tuple[Any, ...], mask: np.ndarray | None, n_states: int, n_actions: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Check and copy pointer, probabilities, next states, rewards and terminations of all outcomes."""
    pointer = _checked_array("outcome_ptr", given[0], "iu", np.int64, (n_states * n_actions + 1,))
    prob = _checked_probabilities("outcome_prob", given[1], None)
    follow = _checked_array("outcome_next", given[2], "iu", np.int64, prob.shape)
    reward = _checked_array("outcome_reward", given[3], "fiu", np.float64, prob.shape)
    terminated = _checked_array("outcome_terminated", given[4], "b", np.bool_, prob.shape)
    if pointer[0] != 0 or pointer[-1] != prob.size or (np.diff(pointer) < 0).any():
        raise ModelError(
            f"outcome_ptr must start at 0, never fall, and end at the number of outcomes, {prob.size}; it "
            f"starts at {pointer[0]}, its smallest step is {np.diff(pointer).min()}, and it ends at "
            f"{pointer[-1]}"
        )
    pair = reachability.rows_of(pointer)
    outside = np.flatnonzero((follow < 0) | (follow >= n_states))
    if outside.size:
        s, a = divmod(int(pair[outside[0]]), n_actions)
        raise ModelError(
            f"action {a} in state {s} leads to state {follow[outside[0]]}; states are 0 to {n_states - 1}"
        )
    infinite = np.flatnonzero(~np.isfinite(reward))
    if infinite.size:
        s, a = divmod(int(pair[infinite[0]]), n_actions)
        raise RewardError(
            f"action {a} in state {s} has the reward {reward[infinite[0]]}; rewards must be finite"
        )
    prob = _normalised(prob, pair, pointer, mask, n_actions)
    kept = prob > 0
    if not kept.all():
        counts = np.bincount(pair[kept], minlength=n_states * n_actions)
        np.cumsum(counts, out=pointer[1:])
        prob, follow, reward, terminated = prob[kept], follow[kept], reward[kept], terminated[kept]
    # Adding 0 turns -0.0 into 0.0, which is equal but has another fingerprint.
    return pointer, prob, follow, reward + 0.0, terminated


def _normalised(
    prob: np.ndarray, pair: np.ndarray, pointer: np.ndarray, mask: np.ndarray | None, n_actions: int
) -> np.ndarray:
    total = np.bincount(pair, weights=prob, minlength=pointer.size - 1)
    # An illegal pair may have no outcome at all; one that has some must still be a distribution.
    required = np.diff(pointer) > 0
    required |= True if mask is None else mask.reshape(-1)
    wrong = np.flatnonzero(required & (np.abs(total - 1) > PROBABILITY_TOLERANCE))
    if wrong.size:
        s, a = divmod(int(wrong[0]), n_actions)
        raise ModelError(
            f"the outcomes of action {a} in state {s} have probabilities that add up to {total[wrong[0]]}; "
            f"they must add up to 1 within {PROBABILITY_TOLERANCE} (a pair without outcomes must be "
            "forbidden by action_mask)"
        )
    divisor = np.where(np.abs(total - 1) > ROUNDING_TOLERANCE, total, 1.0)
    return prob / divisor[pair]
