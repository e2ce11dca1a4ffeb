"""How often intervals of estimates from logged episodes cover the truth.

A Garnet of 12 states, 3 actions and 2 next states a pair, in which a step ends the episode with a chance of
0.4; discount factor 0.9. The policy that is asked about is random (Dirichlet of 3), behavior is half of it
and half even. Each repetition plays episodes anew. A share of 1,000 repetitions has a standard error of 0.7
points.
"""

from __future__ import annotations

import common
import numpy as np

from dist_classicrl import TabularMDP
from dist_classicrl.data import estimate_value, play_episodes
from dist_classicrl.data.estimates import METHODS

DISCOUNT, ENDS = 0.9, 0.4


def main() -> None:
    """Print a line for each method."""
    parser = common.parser(__doc__, "batch.json")
    parser.add_argument("--repetitions", type=int, default=1_000, help="(default: %(default)s)")
    parser.add_argument("--episodes", type=int, default=300, help="in each of them (default: %(default)s)")
    arguments = parser.parse_args()
    model = TabularMDP.garnet(12, 3, 2, seed=4, termination_probability=ENDS)
    asked = np.random.default_rng(2).dirichlet(np.full(3, 3.0), size=12)
    behavior = 0.5 * asked + 0.5 / 3
    truth = model.start_value(model.policy_value(asked, DISCOUNT))
    estimates: dict[str, list[tuple[float, float, float]]] = {}
    for seed in range(arguments.repetitions):
        data = play_episodes(model, behavior, arguments.episodes, seed)
        for method in METHODS:
            for told in (True, False) if method != "model" else (False,):
                found = estimate_value(data, asked, DISCOUNT, method, behavior if told else None)
                name = f"{method}, behavior {'told' if told else 'counted'}" if method != "model" else method
                estimates.setdefault(name, []).append((found.value, found.low, found.high))
    rows = []
    for name, given in estimates.items():
        value, low, high = np.array(given).T
        rows.append(
            {
                "method": name,
                "covered": f"{np.mean((low <= truth) & (truth <= high)):.1%}",
                "bias": f"{value.mean() - truth:+.4f}",
                "RMS error": f"{np.sqrt(np.mean((value - truth) ** 2)):.4f}",
                "width": f"{np.mean(high - low):.4f}",
            }
        )
    common.show(list(rows[0]), [list(row.values()) for row in rows])
    common.save(
        arguments.output, rows, truth=truth, episodes=arguments.episodes, repetitions=arguments.repetitions
    )


if __name__ == "__main__":
    main()
