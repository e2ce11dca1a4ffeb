"""Exact solutions of finite models: discounted, over a finite horizon, and of the average reward.

`TabularMDP` and `FunctionMDP` have them as methods; here are the classes of what these return.
"""

from __future__ import annotations

from dist_classicrl.environments.solution import (
    AverageSolution,
    FiniteHorizonSolution,
    PolicyGain,
    Solution,
)

__all__ = ["AverageSolution", "FiniteHorizonSolution", "PolicyGain", "Solution"]
