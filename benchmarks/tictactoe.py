"""Training steps per second in the compiled TicTacToe, against 64 plain Python games in a SyncVectorEnv.

The Python game is what one would write first: a list of nine squares, no symmetries, a machine player that
moves at random. Its learner is Q-learning in numpy, one vectorised update for the 64 games. Both learn, on
one core.
"""

from __future__ import annotations

import random
import statistics
import time
from typing import Any

import common
import gymnasium
import numpy as np

from dist_classicrl import DistAsyncQLearning
from dist_classicrl.environments import TicTacToeEnv

LINES = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]
STEP_SIZE, DISCOUNT, EPSILON = 0.1, 0.95, 0.1
GAMES = 64


class PlainTicTacToe(gymnasium.Env):
    """Crosses, which move first, against a random machine player; an illegal move loses."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Discrete(3**9)
        self.action_space = gymnasium.spaces.Discrete(9)
        self._board = [0] * 9

    def _code(self) -> int:
        code = 0
        for square in self._board:
            code = 3 * code + square
        return code

    def _won(self, mark: int) -> bool:
        board = self._board
        return any(board[i] == board[j] == board[k] == mark for i, j, k in LINES)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        """Clear the board."""
        super().reset(seed=seed)
        if seed is not None:
            self._random = random.Random(seed)
        self._board = [0] * 9
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        """Set a cross, and let the machine answer."""
        board = self._board
        if board[action]:
            return self._code(), -1.0, True, False, {}
        board[action] = 1
        if self._won(1):
            return self._code(), 1.0, True, False, {}
        empty = [square for square in range(9) if not board[square]]
        if not empty:
            return self._code(), 0.0, True, False, {}
        board[self._random.choice(empty)] = 2
        if self._won(2):
            return self._code(), -1.0, True, False, {}
        return self._code(), 0.0, False, False, {}


class VectorLearner:
    """Epsilon-greedy Q-learning in numpy on a vector of plain games."""

    def __init__(self) -> None:
        mode = gymnasium.vector.AutoresetMode.SAME_STEP
        self._envs = gymnasium.vector.SyncVectorEnv([PlainTicTacToe] * GAMES, autoreset_mode=mode)
        self._states, _ = self._envs.reset(seed=0)
        self._q = np.zeros((3**9, 9))
        self._random = np.random.default_rng(0)
        self.returns = 0.0
        self.episodes = 0

    def learn(self, steps: int) -> None:
        """Make `steps` steps, rounded up to whole steps of all games."""
        q, states, draw = self._q, self._states, self._random
        for _ in range(-(-steps // GAMES)):
            greedy = q[states].argmax(axis=1)
            explore = draw.random(GAMES) < EPSILON
            actions = np.where(explore, draw.integers(9, size=GAMES), greedy)
            following, rewards, terminated, _, _ = self._envs.step(actions)
            # Where a game ended, `following` is the next game's board, whose value the mask below leaves out.
            targets = rewards + DISCOUNT * q[following].max(axis=1) * ~terminated
            q[states, actions] += STEP_SIZE * (targets - q[states, actions])
            self.returns += float(rewards.sum())
            self.episodes += int(terminated.sum())
            states = following
        self._states = states

    def close(self) -> None:
        """Close the games."""
        self._envs.close()


def main() -> None:
    """Measure both in turns."""
    parser = common.parser(__doc__, "tictactoe.json")
    parser.add_argument("--steps", type=int, default=20_000_000, help="of each compiled run")
    parser.add_argument("--plain_steps", type=int, default=64_000, help="of each run of the Python games")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    agent = DistAsyncQLearning(learning_rate=STEP_SIZE, discount_factor=DISCOUNT, epsilon=EPSILON, seed=0)
    env = TicTacToeEnv()
    plain = VectorLearner()
    returns: list[float] = []

    def compiled(number: int) -> float:
        result = agent.train(env=env, total_steps=arguments.steps if number >= 0 else 10_000)
        returns.append(result.mean_return)
        return result.steps_per_second

    def vector(number: int) -> float:
        begin = time.perf_counter()
        plain.learn(arguments.plain_steps)
        return arguments.plain_steps / (time.perf_counter() - begin)

    rates = common.interleave({"compiled": compiled, "vector": vector}, arguments.rounds)
    plain.close()
    row = {
        "compiled": statistics.median(rates["compiled"]),
        "vector": statistics.median(rates["vector"]),
        "ratio": common.median_ratio(rates["compiled"], rates["vector"]),
        "mean_return_compiled": returns[-1],
        "mean_return_vector": plain.returns / max(plain.episodes, 1),
        "rates": rates,
    }
    common.show(
        ["TicTacToe, one core", "training steps/s", "mean return while learning"],
        [
            ["compiled", f"{row['compiled']:,.0f}", f"{row['mean_return_compiled']:.2f}"],
            [
                f"{GAMES} Python games, numpy",
                f"{row['vector']:,.0f}",
                f"{row['mean_return_vector']:.2f} (illegal moves lose)",
            ],
            ["ratio", f"{row['ratio']:,.0f}", ""],
        ],
    )
    common.save(arguments.output, row, steps=arguments.steps, plain_steps=arguments.plain_steps)


if __name__ == "__main__":
    main()
