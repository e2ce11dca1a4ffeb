"""How close the default step sizes and exploration come to the optimum, against constants.

Every cell is a problem, a number of steps and a number of ranks, trained with some seeds and four kinds of
settings: the defaults; what they were before, 0.1 and 0.1; and, on one rank, a grid of constants, and step
sizes that average from the first visit on, with the default exploration. Of each
training the exact value of the greedy policy from the start states is compared with the optimum: its gap is
in percent of the optimum's size. The regret of a cell is the mean gap of the defaults less that of the best
constants.

The defaults count as worse than before where random labels give so large a difference of mean gaps in at most
one of fifty cases, by a permutation test over seeds, exact where there are few.

There is one job for each number of ranks. Every finished training is appended to a JSON-lines file, so that
an interrupted benchmark goes on where it stopped, and two may fill one file at the same time with other
--problems.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from itertools import combinations, product
from pathlib import Path
from typing import Any

import common
import numpy as np

from dist_classicrl import DistAsyncQLearning, TabularMDP
from dist_classicrl._hints import rank_of_environment
from dist_classicrl.environments import registry
from dist_classicrl.evaluation.exact import exact_value
from dist_classicrl.schedules import PerVisit
from dist_classicrl.settings import Settings

DISCOUNT = 0.99
DEFAULTS, BEFORE = "defaults", "0.1 / 0.1"
GRID = [f"{a} / {e}" for a, e in product((0.02, 0.05, 0.1, 0.2, 0.5), (0.05, 0.1, 0.3, 1.0))]
AVERAGES = {f"PerVisit({exponent})": PerVisit(exponent) for exponent in (0.7, 1.0)}
LABELINGS = 20_000
"""So many are drawn where there are more of them."""
WORSE = 0.02
"""The chance at which a difference counts: five seeds against five give 0.004 at least."""

Cell = tuple[int, str, int, str, int]  # ranks, problem, steps, setting, seed
Group = tuple[int, str, int, str]  # without the seed


def maze(size: int = 20) -> TabularMDP:
    """Return a grid with walls, from one corner to the other: the only reward, 1, is at the goal."""
    rng = np.random.default_rng(3)
    while True:
        walls = rng.random((size, size)) < 0.3
        walls[0, 0] = walls[-1, -1] = False
        model = maze_with(walls)
        if model.solve(DISCOUNT).v[0] > 0.0:  # there is a way
            return model


def maze_with(walls: np.ndarray, slip: float = 0.1) -> TabularMDP:
    """Return a square grid with `walls`, bool of shape (rows, columns)."""
    size = len(walls)
    moves = ((1, 0), (-1, 0), (0, 1), (0, -1))
    transitions: dict[int, dict[int, list[tuple[float, int, float, bool]]]] = {}
    for row, column in product(range(size), repeat=2):
        reached = []
        for down, right in moves:
            to = (row + down, column + right)
            is_free = 0 <= min(to) and max(to) < size and not walls[to]
            reached.append(to if is_free else (row, column))
        state = row * size + column
        transitions[state] = {}
        for action in range(4):
            outcomes = transitions[state][action] = []
            for other, to in enumerate(reached):
                is_goal = to == (size - 1, size - 1)
                chance = (1 - slip) * (other == action) + slip / 4
                outcomes.append((chance, to[0] * size + to[1], float(is_goal), is_goal))
    start = np.zeros(size * size)
    start[0] = 1.0
    return TabularMDP.from_dict(transitions, start, max_episode_steps=1000, name="maze")


def inventory(capacity: int = 20, demand: float = 6.0) -> TabularMDP:
    """Return a store that goes on for ever: orders, which a mask limits, against a Poisson demand.

    An order costs 4, each piece 2, each that lies over night 1, and each that is asked for in vain 8.
    """
    chances = np.array([math.exp(-demand) * demand**k / math.factorial(k) for k in range(40)])
    chances /= chances.sum()
    transitions: dict[int, dict[int, list[tuple[float, int, float, bool]]]] = {}
    for stock in range(capacity + 1):
        transitions[stock] = {}
        for order in range(capacity + 1 - stock):
            outcomes = []
            for asked, chance in enumerate(chances):
                left, lost = max(stock + order - asked, 0), max(asked - stock - order, 0)
                cost = 4.0 * (order > 0) + 2.0 * order + left + 8.0 * lost
                outcomes.append((float(chance), left, -cost, False))
            transitions[stock][order] = outcomes
    start = np.full(capacity + 1, 1 / (capacity + 1))
    return TabularMDP.from_dict(
        transitions, start, n_actions=capacity + 1, max_episode_steps=100, name="inventory"
    )


def bandits(states: int = 20, arms: int = 10, outcomes: int = 21) -> TabularMDP:
    """Return bandits in a row, one drawn for each episode of one step: normal arms with normal returns."""
    means = np.random.default_rng(5).standard_normal((states, arms))
    noise = [statistics.NormalDist().inv_cdf((k + 0.5) / outcomes) for k in range(outcomes)]
    transitions = {
        state: {
            arm: [(1 / outcomes, state, float(means[state, arm]) + each, True) for each in noise]
            for arm in range(arms)
        }
        for state in range(states)
    }
    return TabularMDP.from_dict(transitions, np.full(states, 1 / states), name="bandits")


PROBLEMS: dict[str, Callable[[], TabularMDP]] = {
    "FrozenLake 4x4": lambda: TabularMDP.from_gymnasium("FrozenLake-v1"),
    "FrozenLake 8x8": lambda: TabularMDP.from_gymnasium("FrozenLake8x8-v1"),
    "Taxi": lambda: common.problem(common.TAXI),
    "CliffWalking": lambda: common.problem(common.CLIFF),
    "Garnet 100": lambda: TabularMDP.garnet(100, 4, 5, seed=0),
    "Garnet 10,000": lambda: TabularMDP.garnet(10_000, 4, 5, seed=0),
    "maze 20x20": maze,
    "inventory": inventory,
    "Blackjack": lambda: registry()["dist_classicrl/Blackjack-v0"].make(),
    "bandits": bandits,
}


def rates(setting: str) -> dict[str, Any]:
    """Return the arguments of an agent that a setting means; none for the defaults."""
    if setting == DEFAULTS:
        return {}
    if setting in AVERAGES:
        return {"learning_rate": AVERAGES[setting]}
    learning_rate, epsilon = map(float, setting.split("/"))
    return {"learning_rate": learning_rate, "epsilon": epsilon}


def finished(path: Path) -> dict[Cell, dict[str, Any]]:
    """Return the trainings that `path` already holds."""
    if not path.exists():
        return {}
    records = [json.loads(line) for line in path.read_text().splitlines()]
    return {(r["ranks"], r["problem"], r["steps"], r["setting"], r["seed"]): r for r in records}


def run_cells(todo: list[Cell], path: Path) -> None:
    """Train every cell of `todo`, which all ranks of this job are given alike; rank 0 appends to `path`."""
    models = {name: PROBLEMS[name]() for name in {cell[1] for cell in todo}}
    for ranks, problem, steps, setting, seed in todo:
        agent = DistAsyncQLearning(seed=seed, discount_factor=DISCOUNT, **rates(setting))
        begin = time.perf_counter()
        agent.train(models[problem], total_steps=steps)
        if not rank_of_environment():
            seconds = time.perf_counter() - begin
            gap = exact_value(models[problem], agent.q_table, DISCOUNT).relative_gap
            record = {"ranks": ranks, "problem": problem, "steps": steps, "setting": setting, "seed": seed}
            with path.open("a") as file:
                file.write(json.dumps({**record, "gap": gap, "seconds": seconds}) + "\n")


def chance_of_difference(ones: list[float], others: list[float]) -> float:
    """Return how often random labels give a difference of means as large as that of `ones` to `others`."""
    together = np.array([*ones, *others])
    if math.comb(together.size, len(ones)) > LABELINGS:
        labelings = np.random.default_rng(0).permuted(np.tile(together, (LABELINGS, 1)), axis=1)
        sums = np.append(labelings[:, : len(ones)].sum(axis=1), sum(ones))
    else:
        drawn = combinations(range(together.size), len(ones))
        sums = np.array([together[list(each)].sum() for each in drawn])
    return float(np.mean(sums >= sum(ones) - 1e-9))


def error_of(found: list[float]) -> float | None:
    """Return the standard error of a mean; None of a single seed."""
    return statistics.stdev(found) / math.sqrt(len(found)) if len(found) > 1 else None


def summarise(records: dict[Cell, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what the defaults come to in each cell, against before and against the best constants."""
    gaps: dict[Group, list[float]] = defaultdict(list)
    for (ranks, problem, steps, setting, _), record in sorted(records.items()):
        gaps[ranks, problem, steps, setting].append(100.0 * record["gap"])
    means = {group: statistics.mean(found) for group, found in gaps.items()}
    rows = []
    for problem, steps in sorted({(problem, steps) for _, problem, steps, _ in gaps}):
        grid = {setting: means.get((1, problem, steps, setting), math.inf) for setting in GRID}
        best = min(grid, key=lambda setting: grid[setting])
        for ranks in sorted({group[0] for group in gaps}):
            ours, theirs = ((ranks, problem, steps, setting) for setting in (DEFAULTS, BEFORE))
            if ours in gaps and theirs in gaps:
                chance = chance_of_difference(gaps[ours], gaps[theirs])
                is_more = means[ours] > means[theirs] + 0.01
                rows.append(
                    {
                        "problem": problem,
                        "steps": steps,
                        "ranks": ranks,
                        "seeds": len(gaps[ours]),
                        "before": means[theirs],
                        "defaults": means[ours],
                        "best": grid[best],
                        "best_setting": best,
                        "regret": means[ours] - grid[best],
                        "chance": chance,
                        "is_worse": is_more and chance <= WORSE,
                        "misses": grid[best] < 1.0 <= means[ours],
                        "error": error_of(gaps[ours]),
                        "averages": {
                            each: [means[found], error_of(gaps[found])]
                            for each in AVERAGES
                            if (found := (ranks, problem, steps, each)) in gaps
                        },
                    }
                )
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    """Print the table of mean gaps in percent, and what it comes to."""
    by_cell = {(row["problem"], row["steps"], row["ranks"]): row for row in rows}
    ranks = sorted({row["ranks"] for row in rows})
    table = []
    for problem, steps in sorted({(row["problem"], row["steps"]) for row in rows}):
        cells = [by_cell.get((problem, steps, each)) for each in ranks]
        known = next(cell for cell in cells if cell is not None)
        line = [problem, f"{steps:.0e}".replace("e+0", "e"), f"{known['best']:.2f} ({known['best_setting']})"]
        for cell in cells:
            if cell is None:
                line += ["", ""]
            else:
                mark = " worse" if cell["is_worse"] else " misses 1 %" if cell["misses"] else ""
                line += [f"{cell['before']:.2f}", f"{with_error(cell['defaults'], cell['error'])}{mark}"]
        table.append(line)
    pairs = [f"{word}, {each} rank{'s' * (each > 1)}" for each in ranks for word in ("before", "defaults")]
    common.show(["problem", "steps", "best constants, 1 rank", *pairs], table)
    show_averages([row for row in rows if row["averages"]])
    for each in ranks:
        own = [row for row in rows if row["ranks"] == each]
        regret = statistics.median(row["regret"] for row in own)
        better = sum(row["defaults"] < row["before"] - 0.01 for row in own)
        worse, misses = (sum(row[name] for row in own) for name in ("is_worse", "misses"))
        print(
            f"{each} ranks, {len(own)} cells: median regret {regret:.2f} points; better than before in "
            f"{better}, worse in {worse}; 1 % or more where the best constants are below in {misses}."
        )


def with_error(mean: float, error: float | None) -> str:
    """Return a mean gap, and in brackets its standard error where that is known and shows."""
    return f"{mean:.2f} ({error:.2f})" if error is not None and error >= 0.005 else f"{mean:.2f}"


def show_averages(rows: list[dict[str, Any]]) -> None:
    """Print the mean gaps of `AVERAGES` beside the defaults, with standard errors."""
    table = [
        [
            row["problem"],
            f"{row['steps']:.0e}".replace("e+0", "e"),
            row["ranks"],
            with_error(row["defaults"], row["error"]),
            *(with_error(*row["averages"].get(each, (math.nan, None))) for each in AVERAGES),
        ]
        for row in rows
    ]
    if table:
        common.show(["problem", "steps", "ranks", "defaults", *AVERAGES], table)


def main() -> None:
    """Start the jobs, or be a rank of one."""
    parser = common.parser(__doc__, "defaults.json")
    parser.add_argument("--cells", type=Path, default=Path("defaults.jsonl"), help="finished trainings")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=float, nargs="+", default=[1e4, 1e5, 1e6, 1e7, 1e8])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--problems", nargs="+", default=list(PROBLEMS), choices=list(PROBLEMS))
    all_settings = [DEFAULTS, BEFORE, *GRID, *AVERAGES]
    parser.add_argument("--settings", nargs="+", default=all_settings, help="of these")
    parser.add_argument("--timeout", type=float, default=36_000.0, help="seconds for each job")
    parser.add_argument("--todo", type=Path, help="used by the jobs that this starts")
    arguments = parser.parse_args()
    if arguments.todo is not None:
        todo = [tuple(cell) for cell in json.loads(arguments.todo.read_text())]
        run_cells(todo, arguments.cells)
        return
    for ranks in arguments.ranks:
        known = finished(arguments.cells)
        named = [DEFAULTS, BEFORE] if ranks > 1 else arguments.settings
        settings = [each for each in dict.fromkeys(named) if each in arguments.settings]
        wanted: list[Cell] = [
            (ranks, problem, int(steps), setting, seed)
            for steps in arguments.steps
            for problem in arguments.problems
            for setting in settings
            for seed in range(arguments.seeds)
        ]
        todo = [cell for cell in wanted if cell not in known]
        if ranks == 1:
            run_cells(todo, arguments.cells)
        elif todo:
            path = arguments.cells.with_suffix(f".{ranks}.todo")
            path.write_text(json.dumps(todo))
            job = [__file__, "--todo", str(path), "--cells", str(arguments.cells)]
            sys.stdout.write(common.mpi_output(ranks, job, timeout=arguments.timeout))
            path.unlink()
    rows = summarise(finished(arguments.cells))
    show(rows)
    usual = {name: repr(each) for name, each in Settings().schedules.items()}
    common.save(arguments.output, rows, defaults=usual, discount=DISCOUNT, worse_at=WORSE)


if __name__ == "__main__":
    main()
