"""How good a table really is where the model of the environment is known: no episodes, no chance."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from dist_classicrl.environments.finite_model import FiniteModel
from dist_classicrl.environments.resolve import resolve
from dist_classicrl.errors import SettingsError


@dataclass(frozen=True, repr=False)
class ExactValue:
    """Discounted values of the start states, for the process without its time limit."""

    discount_factor: float
    value: float  # of the greedy policy, ties broken at random
    optimum: float  # the largest that any policy has

    def __repr__(self) -> str:
        # Rounding may leave the best policy above the optimum.
        share = "" if self.relative_gap is None else f", {max(self.relative_gap, 0.0):.2%} below it"
        discount = f"discount factor {self.discount_factor:g}"
        return f"ExactValue({self.value:.4g}, the best is {self.optimum:.4g}{share}, {discount})"

    @property
    def gap(self) -> float:
        """What the greedy policy lacks to the optimum."""
        return self.optimum - self.value

    @property
    def relative_gap(self) -> float | None:
        """The gap as a share of the optimum's size; None where the optimum is 0."""
        return self.gap / abs(self.optimum) if self.optimum else None

    @property
    def is_best(self) -> bool:
        """Whether no policy is better, but for rounding and for what `solve` leaves."""
        return math.isclose(self.value, self.optimum, rel_tol=1e-9, abs_tol=1e-10)

    @property
    def gap_text(self) -> str:
        """The gap and its share of the optimum's size, as people read it."""
        share = "" if self.relative_gap is None else f" ({self.relative_gap:.2%})"
        return "0" if self.is_best else f"{self.gap:.3g}{share}"

    def to_dict(self) -> dict[str, float | None]:
        """Return it as plain data for JSON."""
        return {**asdict(self), "gap": self.gap, "relative_gap": self.relative_gap}


def model_of(env: Any, use_action_mask: bool | None = None) -> FiniteModel | None:
    """Return the finite model that `env`, as `train` takes it, is known to be; None if it is not."""
    source = resolve(env, 1, use_action_mask)
    try:
        return None if source.simulator is None else source.simulator.model
    finally:
        source.close()


def exact_value(model: FiniteModel, q_table: np.ndarray, discount_factor: float) -> ExactValue:
    """Return the exact value of the greedy policy of `q_table` in `model`, and the optimum.

    The table, of shape (states, actions), is at least as large as the model; what is beyond it is not used.
    ConvergenceError if the discount factor is 1 and a value is infinite, of a state that its episodes come to
    or the best of any state.
    """
    value = greedy_value(model, q_table, discount_factor)
    return ExactValue(discount_factor, value, optimal_value(model, discount_factor))


def greedy_value(model: FiniteModel, q_table: np.ndarray, discount_factor: float) -> float:
    """Return the `value` of `exact_value` without the optimum."""
    size = (model.n_states, model.n_actions)
    if q_table.shape[0] < size[0] or q_table.shape[1] < size[1]:
        raise SettingsError(
            f"The model {model.name} has {size[0]} states and {size[1]} actions, the table only "
            f"{q_table.shape[0]} and {q_table.shape[1]}. Give the model of what was trained in."
        )
    values = np.where(model.legal_pairs(), q_table[: size[0], : size[1]], -np.inf)
    best = values == values.max(axis=1, keepdims=True)  # all actions, where none is legal
    policy = best / best.sum(axis=1, keepdims=True)
    return model.start_value(model.policy_value(policy, discount_factor, from_start=True))


@lru_cache(maxsize=8)
def optimal_value(model: FiniteModel, discount_factor: float) -> float:
    """Return the `optimum` of `exact_value`."""
    return model.start_value(model.solve(discount_factor).v)
