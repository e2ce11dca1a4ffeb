"""What it costs in accuracy that many walkers learn at once: RMS error to Q* after equal steps.

It is that of the entries which some walker has come to with the first seed: others keep what they began with.

The tables that supersteps make do not depend on the number of ranks, so a process alone tells what any number
of ranks would learn. One walker at a time is what one learner does. Means over seeds are compared.
"""

from __future__ import annotations

import statistics
from dataclasses import replace

import common
import numpy as np

from dist_classicrl import DistAsyncQLearning, TabularMDP
from dist_classicrl.schedules import PerVisit

WALKERS = (1, 64, 1024, 16_384, 65_536)


def chain(n_states: int = 100) -> TabularMDP:
    """Return a chain at whose other end is the only reward."""
    outcomes = {
        state: {
            0: [(1.0, max(0, state - 1), 0.0, False)],
            1: [(1.0, min(n_states - 1, state + 1), float(state == n_states - 2), state == n_states - 2)],
        }
        for state in range(n_states)
    }
    start = np.zeros(n_states)
    start[0] = 1.0
    return TabularMDP.from_dict(outcomes, start, max_episode_steps=10 * n_states)


PROBLEMS = {
    "FrozenLake 8x8": (lambda: common.problem(common.FROZEN_LAKE), 0.99, 2e7),
    "Taxi": (lambda: common.problem(common.TAXI), 0.99, 1e7),
    "chain of 100 states": (chain, 0.99, 1e7),
    "Garnet, 512 entries": (lambda: TabularMDP.garnet(64, 8, 2, seed=0), 0.9, 2e7),
    "Garnet, 8,192 entries": (lambda: TabularMDP.garnet(1024, 8, 2, seed=0), 0.9, 2e7),
    "Garnet, 65,536 entries": (lambda: TabularMDP.garnet(8192, 8, 2, seed=0), 0.9, 3e7),
}


def learned(model: TabularMDP, discount: float, walkers: int, steps: float, seed: int) -> DistAsyncQLearning:
    """Return an agent that has trained so."""
    agent = DistAsyncQLearning(
        learning_rate=PerVisit(0.7), epsilon=0.3, discount_factor=discount, seed=seed, async_updates=False
    )
    agent.train(model, total_steps=int(steps), placement="sharded", walkers=walkers)
    return agent


def errors(
    model: TabularMDP, discount: float, steps: float, walkers: int, seeds: int, known: np.ndarray | None
) -> tuple[list[float], np.ndarray]:
    """Return the RMS error to Q* with each seed, of the `known` entries; None: find out which are."""
    # Without a time limit, which is no part of what Q* is about.
    q = replace(model, max_episode_steps=None).solve(discount).q
    found = []
    for seed in range(seeds):
        agent = learned(model, discount, walkers, steps, seed)
        if known is None:
            known = agent.visits > 0
        found.append(float(np.sqrt(((agent.q_table - q)[known] ** 2).mean())))
    assert known is not None
    return found, known


def main() -> None:
    """Measure all problems, and print a table."""
    parser = common.parser(__doc__, "superstep_error.json")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--share", type=float, default=1.0, help="of the steps of each problem")
    parser.add_argument("--only", nargs="+", default=[""], help="words of the names of problems")
    arguments = parser.parse_args()
    results, rows = [], []
    for name, (make, discount, steps) in PROBLEMS.items():
        if not any(word in name for word in arguments.only):
            continue
        model, steps, known = make(), arguments.share * steps, None
        found = {}
        for walkers in WALKERS:
            found[walkers], known = errors(model, discount, steps, walkers, arguments.seeds, known)
        results.append({"problem": name, "steps": steps, "errors": found})
        one = statistics.mean(found[1])
        cells = []
        for walkers in WALKERS[1:]:
            both = [statistics.variance(found[n]) / arguments.seeds for n in (1, walkers)]
            cells.append(f"{statistics.mean(found[walkers]) / one:.3f} +- {sum(both) ** 0.5 / one:.3f}")
        rows.append([name, f"{steps:.0e}", f"{one:.4f}", *cells])
    common.show(["problem", "steps", "1 walker", *(f"{walkers:,}" for walkers in WALKERS[1:])], rows)
    common.save(arguments.output, results, seeds=arguments.seeds)


if __name__ == "__main__":
    main()
