"""Seconds of learning until the greedy policy is worth 99 % of the best one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dist_classicrl import DistAsyncQLearning, TabularMDP
from dist_classicrl.evaluation.exact import exact_value
from dist_classicrl.schedules import PerVisit
from suite import plain, problems
from suite.form import Effort, LeftOutError, Measured, measure
from suite.peers import Peers

EXPONENT, EPSILON, GAP = 0.7, 0.5, 0.01
FIRST, GROWTH = 2_000, 1.3
VECTOR_ENVS = 16

# Learns so many more steps and returns the seconds.
Learn = Callable[[int], float]
# Takes the number of a round; returns what learns, from the beginning, and what tells the table.
Begin = Callable[[int], tuple[Learn, Callable[[], np.ndarray]]]


def until_good(begin: Begin, model: TabularMDP, limit: float) -> Callable[[int], Measured]:
    """Return runs that learn until the policy is good.

    It is looked at after `FIRST` steps, and whenever `GROWTH` times as many have been made, by its exact
    value; to look is not counted. The best value is made once. A run that is not good after `limit` seconds
    of learning raises `LeftOutError`.
    """

    def learn_until_good(number: int) -> Measured:
        learn, table = begin(number)
        made, seconds, target = 0, 0.0, float(FIRST)
        while True:
            seconds += learn(int(target) - made)
            made = int(target)
            gap = exact_value(model, table(), plain.DISCOUNT).relative_gap
            if gap is not None and gap <= GAP:
                return 1.0, seconds
            if seconds > limit:
                raise LeftOutError(
                    f"not within {limit:g} s: after {made:,} steps its policy lacks {gap or 0.0:.0%}"
                )
            target *= GROWTH

    return learn_until_good


def ours(model: Any, defaults: bool) -> Begin:
    """Return a training by this package, with its defaults or with the settings of the others."""

    def begin(number: int) -> tuple[Learn, Callable[[], np.ndarray]]:
        alike = {"learning_rate": PerVisit(EXPONENT), "epsilon": EPSILON}
        settings: dict[str, Any] = {} if defaults else alike
        agent = DistAsyncQLearning(discount_factor=plain.DISCOUNT, seed=number + 100, **settings)

        def learn(steps: int) -> float:
            return agent.train(model, total_steps=steps, progress_bar=False).seconds

        return learn, lambda: agent.q_table

    return begin


def by_mushroom(peers: Peers, case: str, folder: str) -> Begin:
    """Return a training by MushroomRL."""

    def begin(number: int) -> tuple[Learn, Callable[[], np.ndarray]]:
        answer: dict[str, Any] = {}

        def learn(steps: int) -> float:
            answer.update(
                peers.ask(
                    "mushroom",
                    rule="Q-learning",
                    case=case,
                    folder=folder,
                    steps=steps,
                    exponent=EXPONENT,
                    epsilon=EPSILON,
                    attempt=number + 1,
                    table=True,
                )
            )
            return answer["seconds"]

        return learn, lambda: np.array(answer["table"])

    return begin


def by_loop(case: str, shape: tuple[int, int]) -> Begin:
    """Return a training by the loop of tutorials."""

    def begin(number: int) -> tuple[Learn, Callable[[], np.ndarray]]:
        loop = plain.PlainLoop(
            plain.environment(case, ""), lambda visit: visit**-EXPONENT, EPSILON, seed=number + 100
        )

        def table() -> np.ndarray:
            return np.array([loop.q.get(state, np.zeros(shape[1])) for state in range(shape[0])])

        return loop.learn, table

    return begin


def by_vector(case: str) -> Begin:
    """Return a training by the loop in NumPy."""

    def begin(number: int) -> tuple[Learn, Callable[[], np.ndarray]]:
        loop = plain.VectorLoop(
            lambda: plain.environment(case, ""), VECTOR_ENVS, EXPONENT, EPSILON, seed=number + 100
        )
        return loop.learn, lambda: loop.q

    return begin


def run(case: str, effort: Effort, peers: Peers, folder: str) -> dict[str, Any]:
    """Measure all candidates in one problem."""
    model = problems.model(case)
    shape = (model.n_states, model.n_actions)
    begins = {
        "ours": ours(model, False),
        "ours, default settings": ours(model, True),
        "MushroomRL": by_mushroom(peers, case, folder),
        "loop in Python": by_loop(case, shape),
        f"NumPy, {VECTOR_ENVS} environments": by_vector(case),
    }
    candidates = {name: until_good(begin, model, effort.limit) for name, begin in begins.items()}
    # Nothing is warmed up: a run begins with an empty table, and compiling is not among the seconds.
    return measure("policy", case, "s", candidates, effort.policies, warm_up=0)
