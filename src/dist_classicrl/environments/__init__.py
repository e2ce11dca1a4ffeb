"""Environments: finite models as arrays, compiled simulation, Gymnasium stepping.

The public names are imported when they are first asked for, so that this package needs no Gymnasium by
itself.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dist_classicrl.environments.model import TabularMDP
    from dist_classicrl.environments.tictactoe import TicTacToeEnv

__all__ = ["TabularMDP", "TicTacToeEnv"]

_HOME = {
    "TabularMDP": "dist_classicrl.environments.model",
    "TicTacToeEnv": "dist_classicrl.environments.tictactoe",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
