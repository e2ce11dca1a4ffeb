"""How often comparisons of trainings raise a false alarm, and how often they find a true difference.

Scores are drawn from known distributions: two variants with the same one (A/A studies), and with one whose
scores are higher by a stated number of standard deviations. "normal" is what it says; "failing" are runs of
which 3 in 10 fail, which have two modes.
"""

from __future__ import annotations

import common
import numpy as np

from dist_classicrl.sweep.comparison import permutation_p_value
from dist_classicrl.sweep.sequential import DIFFERENT, SequentialComparison

LEVEL = 0.05
STAGES, PER_STAGE = 5, 6
# Seeds, tasks, and the difference in standard deviations that is to be found.
SIZES = ((10, 1, 2.0), (10, 5, 0.9), (30, 1, 1.1), (30, 5, 0.5))


def scores(kind: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Return scores with a standard deviation of 1."""
    normal = rng.standard_normal(shape)
    if kind == "normal":
        return normal
    # Two modes, 4 apart, each with a standard deviation of 1, of which the lower one has 0.3 of all.
    return (normal - 4.0 * (rng.random(shape) < 0.3)) / np.sqrt(1.0 + 16.0 * 0.3 * 0.7)


def fixed(kind: str, seeds: int, tasks: int, effect: float, studies: int, permutations: int) -> float:
    """Return in which share of studies, all seeds of which are run beforehand, a difference was found."""
    rng = np.random.default_rng(seeds + tasks)
    found = 0
    for _ in range(studies):
        first = list(scores(kind, (tasks, seeds), rng) + effect)
        second = list(scores(kind, (tasks, seeds), rng))
        found += permutation_p_value(first, second, permutations, rng) <= LEVEL
    return found / studies


def sequential(kind: str, effect: float, studies: int, permutations: int) -> tuple[float, float]:
    """Return in which share of studies in stages a difference was found, and the mean number of seeds."""
    rng = np.random.default_rng(1)
    found = spent = 0
    for number in range(studies):
        test = SequentialComparison(STAGES, PER_STAGE, LEVEL, permutations, seed=number)
        for _ in range(STAGES):
            first = scores(kind, (PER_STAGE,), rng) + effect
            verdict = test.add(first, scores(kind, (PER_STAGE,), rng))
            if not verdict.more_seeds:
                break
        found += verdict.outcome == DIFFERENT
        spent += verdict.seeds
    return found / studies, spent / studies


def main() -> None:
    """Simulate all studies, and print two tables."""
    parser = common.parser(__doc__, "comparisons.json")
    parser.add_argument("--studies", type=int, default=2_000)
    parser.add_argument("--permutations", type=int, default=499)
    arguments = parser.parse_args()
    how_many = (arguments.studies, arguments.permutations)
    results, rows = [], []
    for kind in ("normal", "failing"):
        for seeds, tasks, effect in SIZES:
            alarms = fixed(kind, seeds, tasks, 0.0, *how_many)
            power = fixed(kind, seeds, tasks, effect, *how_many)
            results.append(
                {
                    "scores": kind,
                    "seeds": seeds,
                    "tasks": tasks,
                    "effect": effect,
                    "alarms": alarms,
                    "power": power,
                }
            )
            rows.append([kind, seeds, tasks, f"{alarms:.1%}", f"{effect} sd", f"{power:.1%}"])
    common.show(["scores", "seeds", "tasks", "false alarms", "difference", "found"], rows)
    in_stages, rows = [], []
    for kind in ("normal", "failing"):
        for effect in (0.0, 0.5, 1.0, 2.0):
            found, seeds_spent = sequential(kind, effect, *how_many)
            in_stages.append({"scores": kind, "effect": effect, "found": found, "seeds": seeds_spent})
            rows.append([kind, f"{effect} sd", f"{found:.1%}", f"{seeds_spent:.1f}"])
    print()
    common.show(["scores", "difference", "found", "seeds"], rows)
    common.save(arguments.output, {"fixed": results, "sequential": in_stages}, level=LEVEL, **vars(arguments))


if __name__ == "__main__":
    main()
