"""How much time exact solutions of large models take.

The model is a Garnet, 8 actions, 2 next states a pair; to make it is not counted, nor is compiling.
Discounted: discount factor 0.95, until the bound on the error is below 1e-6, on all cores and on one.
Average reward: until the gain is known to 1e-6. Then one step of a finite horizon, and the value of a policy.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import common
import numpy as np

from dist_classicrl import TabularMDP
from dist_classicrl.environments.sampling import ranges

ACTIONS, SUCCESSORS, DISCOUNT, TOLERANCE = 8, 2, 0.95, 1e-6


def solved_on_one_core(model: TabularMDP) -> Any:
    """Return the solution by one thread."""
    with mock.patch.object(ranges, "usable_cores", lambda: 1):
        return model.solve(DISCOUNT, TOLERANCE)


QUESTIONS: dict[str, Callable[[TabularMDP], Any]] = {
    "modified policy iteration": lambda model: model.solve(DISCOUNT, TOLERANCE),
    "the same on one core": solved_on_one_core,
    "average reward": lambda model: model.solve_average_reward(TOLERANCE),
    "a step of a finite horizon": lambda model: model.solve_finite_horizon(1),
    "value of a policy": lambda model: model.policy_value(np.zeros(model.n_states, int), DISCOUNT),
}


def main() -> None:
    """Print a line for each question."""
    parser = common.parser(__doc__, "solvers.json")
    parser.add_argument("--states", type=int, default=10**6, help="(default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=1, help="each is done so often (default: %(default)s)")
    arguments = parser.parse_args()
    small = TabularMDP.garnet(1 << 12, ACTIONS, SUCCESSORS, seed=0)
    made: list[TabularMDP] = []
    seconds = common.timed(
        lambda: made.append(TabularMDP.garnet(arguments.states, ACTIONS, SUCCESSORS, seed=0))
    )
    found = [{"what": "the model is made", "seconds": seconds, "iterations": None, "residual": None}]
    for what, question in QUESTIONS.items():
        question(small)
        times, result = [], None
        for _ in range(arguments.rounds):
            begin = time.perf_counter()
            result = question(made[0])
            times.append(time.perf_counter() - begin)
        iterations, residual = (getattr(result, name, None) for name in ("iterations", "residual"))
        found.append({"what": what, "seconds": min(times), "iterations": iterations, "residual": residual})
    common.show(
        list(found[0]), [[f"{v:.3g}" if isinstance(v, float) else v for v in row.values()] for row in found]
    )
    common.save(arguments.output, found, states=arguments.states, discount=DISCOUNT, tolerance=TOLERANCE)


if __name__ == "__main__":
    main()
