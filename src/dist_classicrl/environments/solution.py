"""What solvers return."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from dist_classicrl.checks import is_whole
from dist_classicrl.errors import DivergenceError, SettingsError


def check_finite(values: np.ndarray, axis: int = -1) -> None:
    """Raise DivergenceError where values, whose states are along this axis, are beyond all numbers."""
    if not np.isfinite(values).all():
        state = np.argwhere(~np.isfinite(values))[0, axis]
        raise DivergenceError(
            f"The value of state {state} is beyond the numbers of float64, which go up to 1.8e308. Make the "
            "rewards smaller, or the discount factor."
        )


@dataclass(frozen=True, eq=False, repr=False)
class Solution:
    """Optimal discounted values of a model.

    Attributes
    ----------
    q : ndarray of float64, shape (S, A)
        Value of each pair; 0 where the pair is illegal.
    v : ndarray of float64, shape (S,)
        The largest `q` of the legal actions; 0 in a state that has none.
    policy : ndarray of int64, shape (S,)
        A legal action that attains `v`; -1 in a state that has none.
    iterations : int
        Improving sweeps over all pairs.
    residual : float
        For discount factors below 1 a bound on the error of every entry of `q` and `v`, but for rounding.
        It is larger than the tolerance only where rounding ended the sweeps. For discount factor 1 an
        estimate of it.
    """

    q: np.ndarray
    v: np.ndarray
    policy: np.ndarray
    iterations: int
    residual: float

    def __post_init__(self) -> None:
        check_finite(self.q, axis=0)

    def __repr__(self) -> str:
        n_states, n_actions = self.q.shape
        return (
            f"Solution({n_states:,} states, {n_actions:,} actions, values from {self.v.min():.4g} to "
            f"{self.v.max():.4g}, {self.iterations:,} iterations, residual {self.residual:.2g})"
        )


@dataclass(frozen=True, eq=False, repr=False)
class FiniteHorizonSolution:
    """Optimal values of the first `horizon` steps of a model. They are exact, but for rounding.

    Attributes
    ----------
    v : ndarray of float64, shape (H + 1, S)
        ``v[t]`` is what is still to come after `t` steps; ``v[H]`` is what the end was said to be worth.
    policy : ndarray of int64, shape (H, S)
        A legal action that attains ``v[t]``; -1 in a state that has none.
    """

    v: np.ndarray
    policy: np.ndarray
    _values: Callable[[np.ndarray], np.ndarray] = field(repr=False)

    @property
    def horizon(self) -> int:
        """The number of steps."""
        return len(self.policy)

    def q(self, step: int) -> np.ndarray:
        """Return the value of each pair after `step` steps, float64, shape (S, A); 0 where it is illegal.

        They are computed when they are asked for. SettingsError unless `step` is one of theirs,
        DivergenceError where one is beyond the numbers of float64.
        """
        if not is_whole(step) or not 0 <= step < self.horizon:
            raise SettingsError(f"step is {step!r}; actions are taken at steps 0 to {self.horizon - 1}")
        q = self._values(self.v[step + 1])
        check_finite(q, axis=0)
        return q

    def __repr__(self) -> str:
        steps, n_states = self.policy.shape
        first = self.v[0]
        return (
            f"FiniteHorizonSolution({steps:,} steps, {n_states:,} states, first values from "
            f"{first.min():.4g} to {first.max():.4g})"
        )


@dataclass(frozen=True, eq=False, repr=False)
class PolicyGain:
    """The average reward of a policy. An episode that ends begins anew from the start distribution.

    Attributes
    ----------
    gains : ndarray of float64, shape (S,)
        Mean reward of a step for ever, from each state on; 0 in a state without legal actions.
    gain : float
        Their mean over the start distribution.
    bias : ndarray of float64, shape (S,)
        What a state is worth beyond that: ``bias = reward - gains + transition @ bias``, and the mean over
        the start distribution is 0. Where there are several recurrent classes the biases of two of them
        cannot be compared.
    periods : tuple of int, or None
        The period of each recurrent class of the policy's Markov chain: more than one where the gain may
        depend on the state, and more than 1 where the class is gone round. None where the model has no
        arrays to tell.
    residual : float
        A bound on the error of every gain, but for rounding; 0 where linear equations gave them.
    """

    gains: np.ndarray
    gain: float
    bias: np.ndarray
    periods: tuple[int, ...] | None
    residual: float

    def __post_init__(self) -> None:
        check_finite(self.gains)
        check_finite(self.bias)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.gains.size:,} states, gain {self.gain:.6g}, "
            f"periods {self.periods}, residual {self.residual:.2g})"
        )


@dataclass(frozen=True, eq=False, repr=False)
class AverageSolution(PolicyGain):
    """The largest average reward of a model, and a policy that has it; see `PolicyGain` for the rest.

    Attributes
    ----------
    q : ndarray of float64, shape (S, A)
        ``reward - gains + transition @ bias`` of each pair; 0 where it is illegal.
    policy : ndarray of int64, shape (S,)
        A legal action that attains the gain; -1 in a state that has none.
    iterations : int
        Improving sweeps over all pairs.
    """

    q: np.ndarray
    policy: np.ndarray
    iterations: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_finite(self.q, axis=0)
