"""Environments: finite models as arrays, compiled simulation, Gymnasium stepping.

The public names are imported when they are first asked for, so that this package needs no Gymnasium by
itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dist_classicrl._lazy import lazy_names

if TYPE_CHECKING:
    from dist_classicrl.environments.function_model import FunctionMDP
    from dist_classicrl.environments.model import TabularMDP
    from dist_classicrl.environments.problems.registry import Problem, registry
    from dist_classicrl.environments.tictactoe.env import TicTacToeEnv

__all__ = ["FunctionMDP", "Problem", "TabularMDP", "TicTacToeEnv", "registry"]

_HOMES = {
    "FunctionMDP": "dist_classicrl.environments.function_model",
    "Problem": "dist_classicrl.environments.problems.registry",
    "TabularMDP": "dist_classicrl.environments.model",
    "TicTacToeEnv": "dist_classicrl.environments.tictactoe.env",
    "registry": "dist_classicrl.environments.problems.registry",
}


__getattr__, __dir__ = lazy_names(__name__, _HOMES)
