"""How good an agent is, by episodes and, where the model is known, exactly."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from dist_classicrl.errors import ConvergenceError
from dist_classicrl.evaluation.episodes import EvaluationResult, evaluate
from dist_classicrl.evaluation.exact import ExactValue, exact_value, model_of
from dist_classicrl.model.agent_state import AgentState


@dataclass(frozen=True)
class Assessment:
    """How good the greedy policy of an agent is."""

    episodes: EvaluationResult
    exact: ExactValue | None  # None: the model is not known, a value is infinite, or nobody has asked for it

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data for JSON; None stands for what is not known."""
        played, exact = self.episodes, self.exact
        return {
            "episodes": played.episodes,
            "mean_return": played.mean_return,
            "standard_error": played.standard_error if played.episodes > 1 else None,
            "std_return": played.std_return,
            "min_return": float(played.returns.min()),
            "max_return": float(played.returns.max()),
            "mean_length": played.mean_length,
            "min_length": int(played.lengths.min()),
            "max_length": int(played.lengths.max()),
            "exact": None if exact is None else exact.to_dict(),
            "hint": self.hint,
        }

    @property
    def hint(self) -> str | None:
        """See `EvaluationResult.hint`; None where no policy is better."""
        return None if self.exact is not None and self.exact.is_best else self.episodes.hint

    def to_rows(self) -> list[list[str]]:
        """Return it as rows of a table: what it is, and how much."""
        played, exact = self.episodes, self.exact
        error = played.standard_error
        rows = [
            ["episodes", f"{played.episodes:,}"],
            ["mean return", f"{played.mean_return:.4f}" + ("" if math.isnan(error) else f" ± {error:.4f}")],
            ["returns", f"{played.returns.min():g} to {played.returns.max():g}"],
            ["mean length", f"{played.mean_length:.1f}"],
            ["lengths", f"{played.lengths.min():,} to {played.lengths.max():,}"],
        ]
        if exact is None:
            return rows
        discounted = f"discounted by {exact.discount_factor:g}"
        return [
            *rows,
            [f"exact value, {discounted}", f"{exact.value:.6g}"],
            ["the best policy's", f"{exact.optimum:.6g}"],
            ["gap", exact.gap_text],
        ]


def assess(
    agent: AgentState, env: Any, episodes: int, seed: int | None = None, exactly: bool = True
) -> Assessment:
    """Play greedy episodes of `agent` in `env`, and compute the exact value where its model is known.

    Not `exactly`: only play; a model of 100,000 states takes some seconds to solve. Other arguments and
    errors are those of `DistAsyncQLearning.evaluate`.
    """
    played = evaluate(env, agent, episodes, seed)
    model = model_of(env, agent.settings.use_action_mask) if exactly else None
    try:
        exact = None if model is None else exact_value(model, agent.q_table, agent.settings.discount_factor)
    except ConvergenceError:
        exact = None
    return Assessment(played, exact)
