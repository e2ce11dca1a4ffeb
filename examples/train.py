"""Train a Q-table in any Gymnasium environment with finite observations and actions. Copy it and change it.

    python train.py                            one process
    mpirun -n 16 python train.py               a server and fifteen workers
    python train.py --env Taxi-v4 --steps 5000000
    python train.py --checkpoint-dir saved     typed again after a stop, it goes on from there
    python -m dist_classicrl launch -n 16 train.py --checkpoint-dir saved
                                               the same, and it survives the death of ranks

Rank 0 alone speaks, evaluates and saves.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from dist_classicrl import DistAsyncQLearning


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
        help="constant step size (default: falls with the visits to an entry)",
    )
    parser.add_argument("--discount", type=float, default=0.99, help="discount factor (default: %(default)s)")
    parser.add_argument(
        "--epsilon", type=float, help="chance of a random action (default: falls from 1 to 0.1 by half-time)"
    )
    parser.add_argument(
        "--reproducible",
        action="store_true",
        help="the same table bit for bit at any number of ranks; slower",
    )
    parser.add_argument(
        "--episodes", type=int, default=1_000, help="episodes of the final evaluation (default: %(default)s)"
    )
    saving = parser.add_argument_group("checkpoints and stopping")
    saving.add_argument(
        "--checkpoint-dir", help="folder or URL to save the run in (default: it is not saved)"
    )
    saving.add_argument(
        "--checkpoint-interval",
        type=steps_or_time,
        default="30s",
        help="steps, or a time such as 30s, between checkpoints (default: %(default)s)",
    )
    saving.add_argument(
        "--keep-last", type=int, default=3, help="how many of the newest stay (default: %(default)s)"
    )
    saving.add_argument(
        "--resume",
        choices=("auto", "must", "never"),
        default="auto",
        help="go on from a checkpoint: if there is one, or there must be one, or not (default: %(default)s)",
    )
    saving.add_argument("--time-limit", help="stop by itself after a time such as 55min or 1:30:00")
    parser.add_argument(
        "--on-failure",
        choices=("continue", "replace", "abort"),
        default="continue",
        help="what a lost worker means: the others go on, a new one is started, or the run ends "
        "(default: %(default)s)",
    )
    arguments = parser.parse_args()
    if arguments.output is None:
        arguments.output = Path("runs") / f"{arguments.env.replace('/', '-')}.npz"
    return arguments


def steps_or_time(text: str) -> int | str:
    """Return a whole number as such, and anything else, such as 30s, as it is."""
    try:
        return int(text)
    except ValueError:
        return text


def report(progress) -> None:
    """Write one line about how far the training is; train calls this on rank 0 alone."""
    print(
        f"{progress.steps:>14,} of {progress.total_steps:,} steps   "
        f"{progress.steps_per_second:>13,.0f} steps/s   mean return {progress.mean_return:.4g}",
        flush=True,
    )


def main() -> None:
    """Train, report on the way, evaluate the greedy policy, and save the model."""
    arguments = parse_arguments()
    rates = {"learning_rate": arguments.learning_rate, "epsilon": arguments.epsilon}
    agent = DistAsyncQLearning(
        **{name: rate for name, rate in rates.items() if rate is not None},
        discount_factor=arguments.discount,
        async_updates=not arguments.reproducible,
        seed=arguments.seed,
        on_failure=arguments.on_failure,
    )
    result = agent.train(
        env=arguments.env,
        total_steps=arguments.steps,
        progress=report,
        progress_interval=1.0,
        checkpoint_dir=arguments.checkpoint_dir,
        checkpoint_interval=arguments.checkpoint_interval,
        keep_last=arguments.keep_last,
        resume=arguments.resume,
        time_limit=arguments.time_limit,
    )
    if agent.rank == 0:
        if result.resumed_from is not None:
            print(f"resumed from   {result.resumed_from}")
        if result.lost_workers:
            print(f"lost           {', '.join(f'rank {rank}' for rank in result.lost_workers)}")
        greedy_return = agent.evaluate(arguments.env, episodes=arguments.episodes).mean_return
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        agent.save_model(arguments.output)
        print(f"greedy return  {greedy_return:.4g} (mean of {arguments.episodes:,} episodes)")
        workers = "1 worker" if result.workers == 1 else f"{result.workers} workers"
        print(f"speed          {result.steps_per_second:,.0f} steps/s on {workers}")
        print(f"model          {arguments.output.resolve()}", flush=True)


if __name__ == "__main__":
    main()
