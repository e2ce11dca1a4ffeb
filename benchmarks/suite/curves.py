"""Learning curves: error to the true values and what the policy lacks, over steps and over time.

"Merging" is simulated: N workers take turns in one process with the package's own tables and kernels, and
what they learn is merged by one way or another every so many steps. "Engines" are jobs of real ranks.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

import common
import numpy as np
import speedup

from dist_classicrl import DistAsyncQLearning, TabularMDP
from dist_classicrl.evaluation.exact import exact_value
from dist_classicrl.schedules import PerVisit
from suite.form import Effort, table_row
from suite.peers import Peers

DISCOUNT, EPSILON, RATE = 0.99, 0.5, PerVisit(0.7)
WORKERS = (1, 4, 16, 64)
PUSH_STEPS = 500
FIRST, GROWTH, LAST = 20_000, 2, 1_280_000
ENGINE_RANKS = 3
ENGINE_FIRST, ENGINE_LAST = 100_000, 51_200_000
ENGINES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "server": ({}, {"placement": "replicated"}),
    "rounds": ({"async_updates": False}, {"placement": "replicated"}),
    "sharded": ({}, {"placement": "sharded"}),
    "supersteps": ({"async_updates": False}, {"placement": "sharded"}),
}
DIVERGED = 1e6
ROUNDING = 1e-9
"""What is below is none."""

# Steps of all workers, RMS error to the true values, gap of the policy; and seconds, where jobs are measured.
Point = tuple[float, float, float, float]


class Judge:
    """Knows the truth of a model."""

    def __init__(self, model: TabularMDP) -> None:
        self.model = model
        self._truth = model.solve(DISCOUNT, 1e-10).q
        self._pairs = model.reachable_pairs()

    def __call__(self, table: np.ndarray, steps: float, seconds: float) -> Point:
        """Return a point of a curve."""
        table = table.reshape(self._truth.shape)
        if not np.abs(table).max() < DIVERGED:
            return float(steps), math.inf, math.inf, seconds
        error = float(np.sqrt(np.mean((table - self._truth)[self._pairs] ** 2)))
        gap = exact_value(self.model, table, DISCOUNT).relative_gap
        return float(steps), error, max(0.0, gap or 0.0), seconds


def points(first: int, last: int) -> list[int]:
    """Return the steps after which a curve is looked at."""
    found = [first]
    while found[-1] < last:
        found.append(found[-1] * GROWTH)
    return found


class Team(speedup.Workers):
    """N workers in one process, merged in one of the ways."""

    def __init__(self, name: str, workers: int, way: str, seed: int) -> None:
        super().__init__(name, workers, RATE, EPSILON, seed)  # type: ignore[arg-type]
        self._way = way
        self._next = 0

    def learn(self, steps: int) -> None:
        """Make so many steps more, of all workers together, in whole pushes."""
        if self._way == "maps":
            for _ in range(steps // PUSH_STEPS):
                self.turn(self._next, PUSH_STEPS)
                self._next = (self._next + 1) % len(self.learners)
            return
        for _ in range(max(1, steps // (PUSH_STEPS * len(self.learners)))):
            self._together()

    def _together(self) -> None:
        # All start from the same table; then tables are averaged, or what each changed is added up.
        server, values, visits = self.server, [], np.zeros_like(self.server.counts)
        for learner, stream in zip(self.learners, self.streams, strict=True):
            learner.table.load(server.values, server.counts)
            learner.learn(0, stream, PUSH_STEPS)
            values.append(learner.table.q.copy())
            packed = learner.table.pack()
            visits[packed.entries] += packed.visits
        total = np.sum(values, axis=0)
        if self._way == "averaging":
            server.values[:] = total / len(values)
        else:
            server.values += total - len(values) * server.values
        np.clip(server.values, -1e12, 1e12, out=server.values)
        server.counts += visits


def merging(name: str, workers: int, way: str, seed: int, judge: Judge) -> list[Point]:
    """Return the curve of one simulated team."""
    if way == "rounds":
        return _in_process(seed, judge, async_updates=False, logical_workers=workers)
    team, made, found = Team(name, workers, way, seed), 0, []
    for target in points(FIRST, LAST):
        # Of whole turns of all, which makes a team of 64 begin a little later.
        step = PUSH_STEPS * workers
        goal = max(step, -(-target // step) * step)
        team.learn(goal - made)
        made = goal
        found.append(judge(team.server.values, made, 0.0))
        if not math.isfinite(found[-1][1]):
            break
    return found


def _in_process(seed: int, judge: Judge, **settings: Any) -> list[Point]:
    agent = DistAsyncQLearning(
        learning_rate=RATE, epsilon=EPSILON, discount_factor=DISCOUNT, seed=seed, **settings
    )
    found, made = [], 0
    for target in points(FIRST, LAST):
        agent.train(judge.model, total_steps=target - made, placement="replicated", progress_bar=False)
        made = target
        found.append(judge(agent.q_table, made, 0.0))
    return found


WAYS = ("maps", "rounds", "averaging", "summing")


def run(case: str, effort: Effort, _: Peers, folder: str) -> dict[str, Any]:
    """Measure one case."""
    name, _, kind = case.partition(", ")
    if kind == "engines":
        return engines(case, name, effort)
    judge = Judge(common.problem(name))
    curves: dict[str, list[list[Point]]] = {}
    for way in WAYS:
        for workers in WORKERS:
            if workers > 1 or way == "maps":
                label = "1 worker" if workers == 1 else f"{way}, {workers} workers"
                curves[label] = [merging(name, workers, way, seed, judge) for seed in range(effort.seeds)]
    text = (
        f"Step sizes n^-0.7, epsilon {EPSILON}; merged when a worker has made {PUSH_STEPS} steps, medians "
        f"over {effort.seeds} seeds, bands from the lowest to the highest. Averaging and summing start all "
        "workers from one table; step sizes follow the visits of all, in equal shares."
    )
    return curve_row(case, curves, text, over_time=False)


def engines(case: str, name: str, effort: Effort) -> dict[str, Any]:
    """Run one job for all seeds and engines, and one process."""
    last = ENGINE_LAST if effort.name == "full" else ENGINE_LAST // 4
    words = ["-m", "suite.curves", json.dumps({"name": name, "seeds": effort.seeds, "last": last})]
    output = common.mpi_output(ENGINE_RANKS, words, 60.0 + 60.0 * effort.seeds)
    curves = common.last_told(output)
    text = (
        f"Default settings but step sizes n^-0.7 and epsilon {EPSILON}; jobs of {ENGINE_RANKS} ranks, of "
        "which the server's sleeps where there is one, and a process alone. Each point goes on from the one "
        f"before, and only the time of learning is counted. Medians over {effort.seeds} seeds."
    )
    return curve_row(case, curves, text, over_time=True)


def run_rank(order: dict[str, Any]) -> None:
    """Be one rank of the job; rank 0 prints."""
    from mpi4py import MPI

    from dist_classicrl.comm.transport import wait_until

    comm = MPI.COMM_WORLD
    judge = Judge(common.problem(order["name"]))
    curves: dict[str, list[list[Point]]] = {"one process": [], **{engine: [] for engine in ENGINES}}
    for seed in range(-1, order["seeds"]):
        for engine in curves:
            settings, call = ENGINES.get(engine, ({"comm": MPI.COMM_SELF}, {}))
            line: list[Point] = []
            if engine != "one process" or comm.Get_rank() == 0:
                # What runs before the first seed compiles, and is short.
                line = _trained(max(seed, 0), judge, order["last"] if seed >= 0 else 0, settings, call)
            wait_until(comm.Ibarrier().Test, 300.0, "all ranks to be done")  # it sleeps, and takes no core
            if seed >= 0:
                curves[engine].append(line)
    if comm.Get_rank() == 0:
        print(json.dumps(curves))


def _trained(
    seed: int, judge: Judge, last: int, settings: Mapping[str, Any], call: Mapping[str, Any]
) -> list[Point]:
    agent = DistAsyncQLearning(
        learning_rate=RATE, epsilon=EPSILON, discount_factor=DISCOUNT, seed=seed, **settings
    )
    found, made, seconds = [], 0, 0.0
    for target in points(ENGINE_FIRST, last):
        result = agent.train(judge.model, total_steps=target - made, progress_bar=False, **call)
        made, seconds = target, seconds + result.seconds
        found.append(judge(agent.q_table, made, seconds))
    return found


def curve_row(case: str, curves: Mapping[str, list[list[Any]]], text: str, over_time: bool) -> dict[str, Any]:
    """Return a row with the last points in its table, and plots of all."""
    rows = []
    for name, runs in curves.items():
        ended = [run[-1] for run in runs]
        if not all(math.isfinite(point[1]) for point in ended):
            where = min(point[0] for point in ended if not math.isfinite(point[1]))
            rows.append([name, f"diverges by {where:,.0f} steps", "", *([""] if over_time else [])])
            continue
        errors, gaps = ([point[k] for point in ended] for k in (1, 2))
        cells = [name, band(errors), band([100.0 * gap for gap in gaps])]
        rows.append([*cells, *([f"{np.median([point[3] for point in ended]):.2f}"] if over_time else [])])
    told = curves  # all of them, which are in the table, would hide each other
    curves = {
        n: runs for n, runs in told.items() if over_time or n == "1 worker" or f"{WORKERS[-1]} work" in n
    }
    plots = [_plot(curves, "steps", lambda p: p[0], "RMS error to Q*", 1)]
    plots.append(_plot(curves, "steps", lambda p: p[0], "gap of the policy, percent", 2))
    if over_time:
        plots.append(_plot(curves, "seconds of learning", lambda p: p[3], "RMS error to Q*", 1))
    last = max(point[0] for runs in told.values() for run in runs for point in run)
    headers = [
        f"after {last:,.0f} steps",
        "RMS error to Q*",
        "gap, %",
        *(["s of learning"] if over_time else []),
    ]
    seeds = max(len(runs) for runs in told.values())
    return table_row("curves", case, headers, rows, text=text, plots=plots, seeds=seeds)


def band(values: list[float]) -> str:
    """Return the median and the spread of what the seeds gave."""
    least, middle, most = (
        value if value > ROUNDING else 0.0 for value in np.quantile(values, (0.0, 0.5, 1.0))
    )
    return f"{middle:.3g} ({least:.3g} to {most:.3g})"


def _plot(
    curves: Mapping[str, list[list[Any]]], x: str, place: Callable[[Any], float], y: str, column: int
) -> dict[str, Any]:
    scale = 100.0 if y.endswith("percent") else 1.0
    lines = {}
    for name, runs in curves.items():
        line = []
        for at in range(min(len(run) for run in runs)):
            values = [scale * run[at][column] for run in runs]
            where = float(np.median([place(run[at]) for run in runs]))
            good = all(math.isfinite(value) for value in values)
            line.append(
                [where, float(np.median(values)), min(values), max(values)] if good else [where, None]
            )
        lines[name] = line
    return {"x": x, "y": y, "log_x": True, "log_y": column == 1, "lines": lines}


if __name__ == "__main__":
    run_rank(json.loads(sys.argv[1]))
