"""Gridworlds from a map that is written as text: walls, holes, wind, keys and doors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dist_classicrl.checks import YesOrNo, as_array, is_whole
from dist_classicrl.environments.model import TabularMDP
from dist_classicrl.environments.problems.outcomes import CHANCE, REWARD, check_size, model_of_outcomes
from dist_classicrl.errors import SettingsError

#: Rows and columns of left, down, right, up, the four diagonal moves, and staying.
MOVES = ((0, -1), (1, 0), (0, 1), (-1, 0), (1, -1), (1, 1), (-1, 1), (-1, -1), (0, 0))
_KEYS, _DOORS = "abcde", "ABCDE"
_Pair = tuple[int, int]

KEY_AND_DOOR = (
    "S..#....",
    "...#.b..",
    "...A....",
    "...####B",
    "a..#....",
    "...#.#..",
    "...#.#.G",
    "...#....",
)
WINDY = ("..........", "..........", "..........", "S......G..", "..........", "..........", "..........")
WIND = (0, 0, 0, 1, 1, 1, 2, 2, 1, 0)
MAZE = (".......#G", "..#....#.", "S.#....#.", "..#......", ".....#...", ".........")


def gridworld(
    desc: str | Sequence[str] = KEY_AND_DOOR,
    moves: int = 4,
    slip: float = 0.0,
    wind: Sequence[int] | None = None,
    stochastic_wind: bool = False,
    step_reward: float = -1.0,
    goal_reward: float = 0.0,
    hole_reward: float = -100.0,
    max_episode_steps: int | None = 1_000,
) -> TabularMDP:
    """Return the gridworld of a map.

    A step goes to the cell beside, and stays where that is a wall, the edge, or a door whose key was
    not taken. Then the wind, if any, pushes cell by cell until something is in its way; a goal or a hole
    counts where the step ends. The state is
    ``row * columns + column`` plus the number of cells times the keys that were taken, of which the
    n-th key of the map counts ``2**n``.

    The default map has its goal behind a door whose key lies behind another one: from the start the
    shortest way takes 19 steps. So the best policy collects -19 without discount.

    Train: ``dist-classicrl train dist_classicrl/Gridworld-v0 --discount-factor 1 --total-steps 1e7``.

    Parameters
    ----------
    desc : str or sequence of str
        The rows of the map: ``.`` free, ``#`` wall, ``S`` start, ``G`` goal, ``H`` hole, ``a`` to ``e``
        keys, ``A`` to ``E`` their doors. Goals and holes end the episode. Without a start episodes begin in
        any free cell, without keys.
    moves : {4, 8, 9}
        Actions 0 to 3 are left, down, right, up; then come left-down, right-down, right-up, left-up, and
        staying.
    slip : float
        The chance that a move is made which is drawn evenly from all.
    wind : sequence of int, optional
        For each column how many cells up a step is pushed that begins there; down where negative.
    stochastic_wind : bool
        Where there is wind, it is one more or one less with a chance of 1/3 each (exercise 6.10).
    step_reward, goal_reward, hole_reward : float
        Of each step, and what reaching a goal or a hole adds.
    max_episode_steps : int, optional

    Raises
    ------
    SettingsError
        An argument is not allowed.
    """
    board = _board_of(desc)
    if not is_whole(moves) or moves not in (4, 8, 9):
        raise SettingsError(f"moves must be 4, 8 or 9, got {moves!r}.")
    moves = int(moves)  # NumPy's small ones overflow
    slips = CHANCE("slip", slip)
    blows = _wind_of(wind, *board.shape)
    gusts = (-1, 0, 1) if YesOrNo()("stochastic_wind", stochastic_wind) else (0,)
    every = REWARD("step_reward", step_reward)
    gains = {"G": REWARD("goal_reward", goal_reward), "H": REWARD("hole_reward", hole_reward)}
    grid = _Grid(board, tuple(key for key in _KEYS if key in board))
    n_states = board.size << len(grid.keys)
    check_size("Gridworld", n_states * moves * (moves + 1) * len(gusts))
    # Where each move leads in each gust; then a pair has its own move's, and all of them where it slips.
    reached = np.array(
        [
            [
                [grid.after(state, move, int(blows[state % board.shape[1]]), gust) for gust in gusts]
                for move in MOVES[:moves]
            ]
            for state in range(n_states)
        ]
    )
    count = moves * len(gusts)
    follow = np.concatenate(
        (reached, np.broadcast_to(reached.reshape(n_states, 1, count), (n_states, moves, count))), axis=2
    )
    chance = np.append(np.full(len(gusts), (1 - slips) / len(gusts)), np.full(count, slips / count))
    letter = board.ravel()[follow % board.size]
    reward = every + np.where(letter == "G", gains["G"], np.where(letter == "H", gains["H"], 0.0))
    # Nobody acts where an episode is over, or in a wall: such states lead nowhere.
    is_over = np.isin(board.ravel()[np.arange(n_states) % board.size], ["G", "H", "#"])
    follow[is_over] = np.flatnonzero(is_over)[:, None, None]
    reward[is_over] = 0.0
    begins = board.ravel() == "S" if "S" in board else board.ravel() == "."
    return model_of_outcomes(
        chance,
        follow,
        reward,
        np.isin(letter, ["G", "H"]) | is_over[:, None, None],
        start=np.append(begins / begins.sum(), np.zeros(n_states - board.size)),
        name=f"Gridworld({board.shape[0]}x{board.shape[1]})",
        max_episode_steps=max_episode_steps,
        grid_shape=None if grid.keys else board.shape,
    )


def windy_gridworld(
    moves: int = 4, stochastic_wind: bool = False, max_episode_steps: int | None = 1_000
) -> TabularMDP:
    """Return the windy gridworld of Sutton and Barto, example 6.5; a step gives -1.

    The shortest way takes 15 steps, so the best policy collects -15 without discount; with the eight
    moves of exercise 6.9 it takes 7. Near the lower edge it differs from the book's formula: a move
    down that the edge stops is still pushed up.

    Train: ``dist-classicrl train dist_classicrl/WindyGridworld-v0 --discount-factor 1 --total-steps 1e6``.

    Parameters
    ----------
    moves : {4, 8, 9}
    stochastic_wind : bool
        The wind of exercise 6.10.
    max_episode_steps : int, optional

    Raises
    ------
    SettingsError
        An argument is not allowed.
    """
    return gridworld(WINDY, moves, 0.0, WIND, stochastic_wind, max_episode_steps=max_episode_steps)


def dyna_maze(max_episode_steps: int | None = 1_000) -> TabularMDP:
    """Return the maze of Sutton and Barto, example 8.1: a reward of 1 at the goal.

    The shortest way takes 14 steps, so with discount factor 0.95 the best policy collects 0.95**13 =
    0.513342.

    Train: ``dist-classicrl train dist_classicrl/DynaMaze-v0 --discount-factor 0.95 --total-steps 1e6``.

    Parameters
    ----------
    max_episode_steps : int, optional
    """
    return gridworld(MAZE, step_reward=0.0, goal_reward=1.0, max_episode_steps=max_episode_steps)


@dataclass(frozen=True)
class _Grid:
    board: np.ndarray  # of letters, shape (rows, columns)
    keys: tuple[str, ...]

    def after(self, state: int, move: _Pair, wind: int, gust: int) -> int:
        """Return the state after a move and the wind."""
        taken, cell = divmod(state, self.board.size)
        place, taken = self._moved(divmod(cell, self.board.shape[1]), move, taken)
        blows = wind + gust if wind else 0
        for _ in range(abs(blows)):
            place, taken = self._moved(place, (-1 if blows > 0 else 1, 0), taken)
        return taken * self.board.size + place[0] * self.board.shape[1] + place[1]

    def _moved(
        self, place: tuple[int, int], move: tuple[int, int], taken: int
    ) -> tuple[tuple[int, int], int]:
        row, column = place[0] + move[0], place[1] + move[1]
        if not (0 <= row < self.board.shape[0] and 0 <= column < self.board.shape[1]):
            return place, taken
        letter = str(self.board[row, column])
        if letter == "#" or (letter in _DOORS and not taken >> self.keys.index(letter.lower()) & 1):
            return place, taken
        if letter in self.keys:
            taken |= 1 << self.keys.index(letter)
        return (row, column), taken


def _board_of(desc: str | Sequence[str]) -> np.ndarray:
    """Return the letters of a map, shape (rows, columns)."""
    rows = desc.split() if isinstance(desc, str) else list(desc) if isinstance(desc, (list, tuple)) else []
    if not rows or not all(isinstance(row, str) and row and len(row) == len(rows[0]) for row in rows):
        raise SettingsError(f"desc must be rows of the same length, such as ['S.', '#G'], got {desc!r}.")
    board = np.array([list(row) for row in rows])
    known = f".#SGH{_KEYS}{_DOORS}"
    for letter in np.unique(board):
        if letter not in known:
            raise SettingsError(f"desc has {str(letter)!r}; a map is made of {', '.join(known)}.")
        if letter in _DOORS and letter.lower() not in board:
            raise SettingsError(f"desc has a door {letter} and no key {letter.lower()} for it: add one.")
    if "S" not in board and "." not in board:
        raise SettingsError("desc has no cell to begin in: write S for one, or . for any.")
    return board


def _wind_of(wind: Sequence[int] | None, rows: int, columns: int) -> np.ndarray:
    """Return the wind in each column; none blows over more cells than the board is high."""
    if wind is None:
        return np.zeros(columns, np.int64)
    if as_array("wind", wind).shape != (columns,) or not all(map(is_whole, wind)):
        raise SettingsError(f"wind must be a whole number for each of the {columns} columns, got {wind!r}.")
    return np.array([max(-rows, min(int(speed), rows)) for speed in wind])
