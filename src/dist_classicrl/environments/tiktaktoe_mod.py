"""The import path that existing training scripts use for the built-in game."""

from dist_classicrl.environments.tictactoe.env import TicTacToeEnv

__all__ = ["TicTacToeEnv"]
