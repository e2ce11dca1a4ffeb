"""Learn the pocket cube, 2 x 2 x 2, to an optimal policy: from each of its 3,674,160 states the shortest way.

    python pocket_cube.py
    python pocket_cube.py --half_turns

Its states are keys, which nobody has numbered. The actions are random, and each turn costs 1: so the value of
a state becomes the number of turns to the solved cube, and is compared with what breadth-first search says.
"""

from __future__ import annotations

import argparse

from dist_classicrl import DistAsyncQLearning
from dist_classicrl.environments.pocket_cube import distances, pocket_cube


def main() -> None:
    """Train until all values are right, or for as many steps as are allowed."""
    parser = argparse.ArgumentParser(description="Learn the pocket cube.")
    parser.add_argument("--half_turns", action="store_true", help="count half turns as one")
    parser.add_argument(
        "--steps", type=int, default=100_000_000, help="between two looks (default: %(default)s)"
    )
    parser.add_argument("--most", type=int, default=30, help="looks at most (default: %(default)s)")
    arguments = parser.parse_args()
    cube = pocket_cube(half_turns=arguments.half_turns)
    keys, turns = distances(cube)
    print(f"{keys.size:,} states, at most {turns.max()} turns from the solved one", flush=True)
    # The cube does what it is told: a step size of 1 takes in all that a turn has to say.
    agent = DistAsyncQLearning(seed=1, learning_rate=1.0, epsilon=1.0, discount_factor=1.0, dtype="float32")
    seconds = 0.0
    for _ in range(arguments.most):
        seconds += agent.train(cube, total_steps=arguments.steps, progress_bar=False).seconds
        wrong = (agent.state_values(keys) != -turns).sum()
        print(
            f"{agent.steps:,} steps, {seconds:.0f} s: {len(agent.q_table):,} states, {wrong:,} wrong",
            flush=True,
        )
        if wrong == 0:
            break


if __name__ == "__main__":
    main()
