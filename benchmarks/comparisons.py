"""How often comparisons of trainings raise a false alarm, and how often they find a true difference.

Scores are drawn from known distributions: two variants with the same one (A/A studies), and with one whose
scores are higher by a stated number of standard deviations. "normal" is what it says; "failing" are runs of
which 3 in 10 fail, which have two modes. Of an exact test the share of 2,000 A/A studies is above
6 % in one of 50 lines, by chance: so there are more of these, and their share has its standard error.
"""

from __future__ import annotations

import common
import numpy as np

from dist_classicrl.sweep.comparison import RESAMPLES, bootstrap, interquartile_mean, permutation_p_value
from dist_classicrl.sweep.sequential import DIFFERENT, AdaStop, SequentialComparison

LEVEL = 0.05
ALARM_PERMUTATIONS = 199  # with which a p-value of 0.05 or less is as likely as with any other of 20 k - 1
STAGES, PER_STAGE = 5, 6
# Of studies of several variants, by how many standard deviations the scores of each are higher.
SEVERAL = (
    (0.0, 0.0, 0.0),
    (0.0, 0.0, 2.0),
    (0.0, 0.0, 0.0, 0.0, 0.0),
    (0.0, 0.0, 0.0, 0.0, 1.5),
    (0.0, 0.0, 0.0, 1.0, 1.0, 4.0),
)
# Seeds, tasks, and the difference in standard deviations that is to be found.
INTERVALS_OF = (2, 3, 4, 5, 6, 8, 10, 15, 20, 30)  # seeds
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


def coverage(seeds: int, studies: int) -> float:
    """Return in which share of studies the interval of an interquartile mean of normal scores holds 0."""
    rng = np.random.default_rng(seeds)
    inside = 0
    for _ in range(studies):
        found = bootstrap([rng.standard_normal(seeds)], interquartile_mean, RESAMPLES, rng)
        inside += found.low <= 0.0 <= found.high
    return inside / studies


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


def several(kind: str, effects: tuple[float, ...], studies: int, permutations: int) -> tuple[float, float]:
    """Return how often any equal pair of several variants was called different, and the share of pairs found.

    `effects` has by how much the scores of each variant are higher; those of equal ones are the same.
    """
    rng = np.random.default_rng(len(effects))
    names = [str(number) for number in range(len(effects))]
    alarms = found = 0
    for number in range(studies):
        test = AdaStop(names, STAGES, PER_STAGE, LEVEL, permutations, seed=number)
        while test.undecided:
            test.add({name: scores(kind, (PER_STAGE,), rng) + effects[int(name)] for name in test.undecided})
        different = [pair for pair, verdict in test.verdicts.items() if verdict.outcome == DIFFERENT]
        equal = [(a, b) for a, b in different if effects[int(a)] == effects[int(b)]]
        alarms += bool(equal)
        found += len(different) - len(equal)
    unequal = sum(effects[int(a)] != effects[int(b)] for a, b in test.verdicts)
    return alarms / studies, found / studies / max(unequal, 1)


def main() -> None:
    """Simulate all studies, and print four tables."""
    parser = common.parser(__doc__, "comparisons.json")
    parser.add_argument("--studies", type=int, default=2_000)
    parser.add_argument("--alarms", type=int, default=10_000, help="A/A studies (default: %(default)s)")
    parser.add_argument("--permutations", type=int, default=499)
    arguments = parser.parse_args()
    how_many = (arguments.studies, arguments.permutations)
    results, rows = [], []
    for kind in ("normal", "failing"):
        for seeds, tasks, effect in SIZES:
            alarms = fixed(kind, seeds, tasks, 0.0, arguments.alarms, ALARM_PERMUTATIONS)
            error = (alarms * (1.0 - alarms) / arguments.alarms) ** 0.5
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
            rows.append([kind, seeds, tasks, f"{alarms:.2%} +- {error:.2%}", f"{effect} sd", f"{power:.1%}"])
    common.show(["scores", "seeds", "tasks", "false alarms", "difference", "found"], rows)
    covered = {seeds: coverage(seeds, arguments.studies) for seeds in INTERVALS_OF}
    print()
    common.show(
        ["seeds", "intervals that hold the truth"], [[n, f"{each:.1%}"] for n, each in covered.items()]
    )
    in_stages, rows = [], []
    for kind in ("normal", "failing"):
        for effect in (0.0, 0.5, 1.0, 2.0):
            found, seeds_spent = sequential(kind, effect, *how_many)
            in_stages.append({"scores": kind, "effect": effect, "found": found, "seeds": seeds_spent})
            rows.append([kind, f"{effect} sd", f"{found:.1%}", f"{seeds_spent:.1f}"])
    print()
    common.show(["scores", "difference", "found", "seeds"], rows)
    of_several, rows = [], []
    for kind in ("normal", "failing"):
        for effects in SEVERAL:
            alarms, found = several(kind, effects, arguments.studies, ALARM_PERMUTATIONS)
            of_several.append({"scores": kind, "effects": effects, "alarms": alarms, "found": found})
            is_one = len(set(effects)) == 1
            rows.append([kind, ", ".join(f"{each:g}" for each in effects), f"{alarms:.1%}"])
            rows[-1].append("-" if is_one else f"{found:.1%}")
    print()
    common.show(["scores", "means in sd", "studies with a false alarm", "unequal pairs found"], rows)
    results_of_all = {"fixed": results, "coverage": covered, "sequential": in_stages, "several": of_several}
    common.save(arguments.output, results_of_all, level=LEVEL, **vars(arguments))


if __name__ == "__main__":
    main()
