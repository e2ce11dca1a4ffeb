"""What `textbook.py` draws, by the number of the example, figure or section in the book."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from textbook_chapters.chapter_4 import car_rental, gambler
from textbook_chapters.chapter_5 import exploring_starts, off_policy, prediction
from textbook_chapters.chapter_6 import cliff, maximization_bias, random_walk, windy_gridworld
from textbook_chapters.chapter_8 import blocking_maze, dyna_maze, prioritized_sweeping, shortcut_maze
from textbook_chapters.chapter_10 import access_control, deep_sea
from textbook_chapters.common import Drawn
from textbook_chapters.long_walk import lambda_returns, n_step_td, truncated_returns

FIGURES: Mapping[str, Callable[[bool], Drawn]] = {
    "4.2": car_rental,
    "4.3": gambler,
    "5.1": prediction,
    "5.3": exploring_starts,
    "5.4": off_policy,
    "6.2": random_walk,
    "6.5": windy_gridworld,
    "6.6": cliff,
    "6.7": maximization_bias,
    "7.1": n_step_td,
    "8.1": dyna_maze,
    "8.2": blocking_maze,
    "8.3": shortcut_maze,
    "8.4": prioritized_sweeping,
    "10.2": access_control,
    "12.1": lambda_returns,
    "12.6": truncated_returns,
    "deep-sea": deep_sea,
}
"""Functions that take whether to be quick, and return a figure and the numbers that were checked."""
