"""Learn TicTacToe against a random machine player: the game and the agent are made on every rank.

    python tictactoe.py --total_steps 5000000
    mpirun -n 4 python tictactoe.py --total_steps 5000000 --checkpoint_interval 1000000

Every rank gives its share of the steps, and rank 0 saves. The model file may have any name: one that ends in
.pkl holds the same arrays as any other, and no pickle.
"""

from __future__ import annotations

import argparse

from mpi4py import MPI

from dist_classicrl import DistAsyncQLearning
from dist_classicrl.environments import TicTacToeEnv


def parse_arguments() -> argparse.Namespace:
    """Read the command line; every rank reads the same."""
    parser = argparse.ArgumentParser(description="Learn TicTacToe, alone or under mpirun.")
    parser.add_argument(
        "--state_size", type=int, default=512, help="rows of the table (default: %(default)s)"
    )
    parser.add_argument(
        "--action_size", type=int, default=9, help="columns of the table (default: %(default)s)"
    )
    parser.add_argument(
        "--total_steps",
        type=int,
        default=5_000_000,
        help="steps of all ranks together (default: %(default)s)",
    )
    parser.add_argument(
        "--checkpoint_interval",
        type=int,
        default=0,
        help="save the model each time all ranks together made this many steps (default: at the end)",
    )
    parser.add_argument(
        "--checkpoint_dir",
        help="folder or URL to save the training itself in: typed again, the command goes on from there",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of all random numbers (default: %(default)s)"
    )
    parser.add_argument("--output", default="tictactoe_model.pkl", help="model file (default: %(default)s)")
    return parser.parse_args()


def main() -> None:
    """Train in stretches between two checkpoints, and play."""
    arguments = parse_arguments()
    rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
    env = TicTacToeEnv()
    agent = DistAsyncQLearning(
        state_size=arguments.state_size,
        action_size=arguments.action_size,
        learning_rate=0.1,
        discount_factor=0.95,
        epsilon=0.1,
        seed=arguments.seed,
    )
    share = arguments.total_steps // size
    stretch = max(arguments.checkpoint_interval // size, 1) if arguments.checkpoint_interval > 0 else share
    steps, seconds = 0, 0.0
    while share > 0:
        result = agent.train(env=env, steps=min(stretch, share), checkpoint_dir=arguments.checkpoint_dir)
        share -= min(stretch, share)
        steps += result.steps
        seconds += result.seconds
        if rank == 0 and steps == agent.steps:  # else an earlier run made these steps and more
            agent.save_model(arguments.output)
            print(
                f"{steps:,} steps, {result.steps_per_second:,.0f} steps/s, "
                f"mean return {result.mean_return:.3f}, saved {arguments.output}",
                flush=True,
            )
    if rank == 0:
        if steps == 0:  # fewer steps than ranks: the file holds the table as it began
            agent.save_model(arguments.output)
            print(f"0 steps, saved {arguments.output}", flush=True)
        evaluation = agent.evaluate(env, episodes=1_000)
        print(f"greedy return: {evaluation.mean_return:.3f} (1 is a win, -1 a loss)")
        print(
            f"trained {steps:,} steps at {steps / seconds:,.0f} steps/s" if seconds else "trained nothing",
            flush=True,
        )


if __name__ == "__main__":
    main()
