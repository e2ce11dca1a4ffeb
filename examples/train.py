"""Train a Q-table in any Gymnasium environment with finite observations and actions. Copy it and change it.

    python train.py                            one process
    mpirun -n 16 python train.py               a server and fifteen workers
    python train.py --env Taxi-v4 --help

Rank 0 alone speaks. The result does not depend on how many ranks there are, only the time does.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from mpi4py import MPI

from dist_classicrl import DistAsyncQLearning
from dist_classicrl.schedules import PerVisit

REPORTS = 10


def parse_arguments() -> argparse.Namespace:
    """Read the command line; every rank reads the same."""
    parser = argparse.ArgumentParser(
        description="Train a Q-table in a Gymnasium environment, alone or under mpirun."
    )
    parser.add_argument("--env", default="FrozenLake8x8-v1", help="Gymnasium id (default: %(default)s)")
    parser.add_argument(
        "--steps", type=int, default=20_000_000, help="steps of all ranks together (default: %(default)s)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of all random numbers (default: %(default)s)"
    )
    parser.add_argument("--output", type=Path, help="where to save the model (default: runs/ENV.npz)")
    parser.add_argument(
        "--learning-rate",
        type=float,
        help="constant step size (default: falls with each entry's visits, n^-0.7)",
    )
    parser.add_argument("--discount", type=float, default=0.99, help="discount factor (default: %(default)s)")
    parser.add_argument(
        "--epsilon", type=float, default=0.1, help="chance of a random action (default: %(default)s)"
    )
    parser.add_argument(
        "--reproducible",
        action="store_true",
        help="the same table bit for bit at any number of ranks; slower",
    )
    parser.add_argument(
        "--episodes", type=int, default=1_000, help="episodes of the final evaluation (default: %(default)s)"
    )
    arguments = parser.parse_args()
    if arguments.output is None:
        arguments.output = Path("runs") / f"{arguments.env.replace('/', '-')}.npz"
    return arguments


def main() -> None:
    """Train, report on the way, evaluate the greedy policy, and save the model."""
    arguments = parse_arguments()
    speaks = MPI.COMM_WORLD.rank == 0
    agent = DistAsyncQLearning(
        learning_rate=PerVisit(0.7) if arguments.learning_rate is None else arguments.learning_rate,
        discount_factor=arguments.discount,
        epsilon=arguments.epsilon,
        async_updates=not arguments.reproducible,
        seed=arguments.seed,
    )
    steps, seconds = 0, 0.0
    for report in range(1, REPORTS + 1):
        # train goes on where the last call stopped, and every rank gives the same number.
        result = agent.train(env=arguments.env, total_steps=arguments.steps * report // REPORTS - steps)
        steps += result.steps
        seconds += result.seconds
        if speaks:
            print(
                f"{steps:>14,} steps   {result.steps_per_second:>13,.0f} steps/s   "
                f"mean return {result.mean_return:.4g} in {result.episodes:,} episodes",
                flush=True,
            )
    if speaks:
        evaluation = agent.evaluate(arguments.env, episodes=arguments.episodes)
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        agent.save_model(arguments.output)
        workers = "1 worker" if result.workers == 1 else f"{result.workers} workers"
        print(f"greedy return  {evaluation.mean_return:.4g} (mean of {arguments.episodes:,} episodes)")
        print(
            f"speed          {steps / seconds:,.0f} steps/s on {workers}" if seconds else "speed          -"
        )
        print(f"model          {arguments.output.resolve()}", flush=True)


if __name__ == "__main__":
    main()
