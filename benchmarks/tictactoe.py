"""Training steps per second in the compiled TicTacToe, against 64 plain Python games in a SyncVectorEnv.

The Python game is what one would write first: a list of nine squares, no symmetries, a machine player that
moves at random. Its learner is Q-learning in numpy, one vectorised update for the 64 games. Both learn, on
one core.
"""

from __future__ import annotations

import statistics

import common
from suite import plain

from dist_classicrl import DistAsyncQLearning
from dist_classicrl.environments import TicTacToeEnv

GAMES = 64


def main() -> None:
    """Measure both in turns."""
    parser = common.parser(__doc__, "tictactoe.json")
    parser.add_argument("--steps", type=int, default=20_000_000, help="of each compiled run")
    parser.add_argument("--plain_steps", type=int, default=64_000, help="of each run of the Python games")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    agent = DistAsyncQLearning(
        learning_rate=plain.STEP_SIZE, discount_factor=plain.DISCOUNT, epsilon=plain.EPSILON, seed=0
    )
    env = TicTacToeEnv()
    vector_loop = plain.VectorLoop(plain.PlainTicTacToe, GAMES)
    returns: list[float] = []

    def compiled(number: int) -> float:
        result = agent.train(env=env, total_steps=arguments.steps if number >= 0 else 10_000)
        returns.append(result.mean_return)
        return result.steps_per_second

    def vector(number: int) -> float:
        return arguments.plain_steps / vector_loop.learn(arguments.plain_steps)

    rates = common.interleave({"compiled": compiled, "vector": vector}, arguments.rounds)
    vector_loop.close()
    row = {
        "compiled": statistics.median(rates["compiled"]),
        "vector": statistics.median(rates["vector"]),
        "ratio": common.median_ratio(rates["compiled"], rates["vector"]),
        "mean_return_compiled": returns[-1],
        "mean_return_vector": vector_loop.returns / max(vector_loop.episodes, 1),
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
