"""Learn the game 2048, whose states nobody can list: a board is 64 bits, 4 for each of its 16 squares.

    python game_2048.py --total_steps 20000000 --max_states 10000000

The table has the boards that were met, and grows as long as there are new ones: it ends in order where
there may be no more. What was learned then plays, and on boards that are not known, moves at random.
"""

from __future__ import annotations

import argparse
from typing import NamedTuple

import numba
import numpy as np

from dist_classicrl import CompiledSimulator, DistAsyncQLearning, Progress
from dist_classicrl.callbacks import BaseCallback
from dist_classicrl.errors import StateLimitError


class Lines(NamedTuple):
    """Of each line of four squares: what becomes of it when it is pushed to its beginning, and the score."""

    pushed: np.ndarray  # int64, (65536,)
    score: np.ndarray  # float64, (65536,)


def pushed_lines() -> Lines:
    """Return what happens to all lines; a square has the exponent of its number, 0 where it is empty."""
    pushed, score = np.zeros(1 << 16, np.int64), np.zeros(1 << 16)
    for line in range(1 << 16):
        squares = [line >> 4 * i & 15 for i in range(4)]
        left = [square for square in squares if square]
        joined: list[int] = []
        while left:
            first = left.pop(0)
            if left and left[0] == first and first < 15:
                left.pop(0)
                first += 1
                score[line] += 1 << first
            joined.append(first)
        pushed[line] = sum(square << 4 * i for i, square in enumerate(joined))
    return Lines(pushed, score)


@numba.njit
def square_of(action: int, line: int, i: int) -> np.uint64:
    """Return where in the board the i-th square of a line has its bits, seen from where it is pushed to."""
    place = 3 - i if action & 1 else i
    return np.uint64(4 * (4 * place + line if action & 2 else 4 * line + place))


@numba.njit
def push(data, board, action):
    """Return the board after a push to the left, right, top or bottom, and the score of that."""
    after, score = np.uint64(0), 0.0
    for line in range(4):
        found = 0
        for i in range(4):
            found |= np.int64((board >> square_of(action, line, i)) & np.uint64(15)) << 4 * i
        score += data.score[found]
        for i in range(4):
            after |= np.uint64((data.pushed[found] >> 4 * i) & 15) << square_of(action, line, i)
    return after, score


@numba.njit
def with_new_square(board, random):
    """Return the board with a 2, or once in ten times a 4, on one of the empty squares."""
    empty = 0
    for place in range(16):
        empty += (board >> np.uint64(4 * place)) & np.uint64(15) == np.uint64(0)
    pick = np.int64((random >> np.uint64(32)) % np.uint64(empty))
    exponent = np.uint64(2) if random % np.uint64(10) == np.uint64(0) else np.uint64(1)
    for place in range(16):
        if (board >> np.uint64(4 * place)) & np.uint64(15) == np.uint64(0):
            if pick == 0:
                return board | exponent << np.uint64(4 * place)
            pick -= 1
    return board


@numba.njit
def legal(data, board, action):
    """Return whether a push changes the board."""
    return push(data, board, action)[0] != board


@numba.njit
def reset(data, memory, random):
    """Begin with two squares."""
    return with_new_square(with_new_square(np.uint64(0), random), random * np.uint64(0x9E3779B97F4A7C15))


@numba.njit
def step(data, memory, board, action, random):
    """Push, and let a new square appear; the game is over where no push changes the board."""
    after, score = push(data, board, action)
    after = with_new_square(after, random)
    is_over = True
    for other in range(4):
        is_over &= not legal(data, after, other)
    return after, score, is_over


def game() -> CompiledSimulator:
    """Return the game for `train`."""
    return CompiledSimulator.game(
        "2048", n_actions=4, data=pushed_lines(), reset=reset, step=step, legal=legal, keyed=True
    )


class Growth(BaseCallback):
    """Prints how many boards are known, ten times a call."""

    def __init__(self) -> None:
        super().__init__()
        self.next_tenth = 0

    def on_step(self, progress: Progress) -> bool:
        """Print a line if it is time."""
        if 10 * progress.steps >= self.next_tenth * progress.total_steps:
            self.next_tenth = 10 * progress.steps // progress.total_steps + 1
            print(f"{progress.steps:>12,} steps {len(self.model.q_table):>12,} boards", flush=True)
        return True


def main() -> None:
    """Train and play."""
    parser = argparse.ArgumentParser(description="Learn 2048.")
    parser.add_argument("--total_steps", type=int, default=20_000_000, help="(default: %(default)s)")
    parser.add_argument("--max_states", type=int, help="boards that are learned (default: what memory has)")
    arguments = parser.parse_args()
    agent = DistAsyncQLearning(seed=1, dtype="float32", max_states=arguments.max_states)
    board = game()
    try:
        agent.train(board, total_steps=arguments.total_steps, callbacks=Growth(), progress_bar=False)
    except StateLimitError as error:
        if agent.rank == 0:
            print(error)
    if agent.rank == 0:
        print(f"{agent.steps:,} steps, {len(agent.q_table):,} boards")
        print(f"a game scores {agent.evaluate(board, 1000).mean_return:.0f}")


if __name__ == "__main__":
    main()
