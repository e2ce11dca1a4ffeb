"""Exact solutions of the same models, against other libraries of dynamic programming."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import common
import numpy as np

from suite import problems
from suite.form import Effort, LeftOutError, Measured, measure
from suite.peers import Peers

DISCOUNT, TOLERANCE = 0.95, 1e-6
METHODS = {
    "ours, modified policy iteration": "modified_policy_iteration",
    "ours, policy iteration": "policy_iteration",
}
PEERS = {
    "QuantEcon, modified policy iteration": ("quantecon", "modified_policy_iteration"),
    "QuantEcon, policy iteration": ("quantecon", "policy_iteration"),
    "pymdptoolbox, modified policy iteration": ("pymdptoolbox", "PolicyIterationModified"),
    "pymdptoolbox, policy iteration": ("pymdptoolbox", "PolicyIteration"),
}
DENSE_STATES = 1_000
"""Above it policy iteration is left out, which solves linear systems that are dense or become so."""


def run(case: str, effort: Effort, peers: Peers, folder: str) -> dict[str, Any]:
    """Measure the solutions of one model; to make it, and the objects that solve it, is not counted."""
    made, path = problems.model(case), problems.write(case, folder)
    truth = made.solve(DISCOUNT, 1e-10).v
    errors: dict[str, float] = {}

    def solved_here(method: str, name: str) -> Callable[[int], Measured]:
        def solve(_: int) -> Measured:
            found: list[Any] = []
            seconds = common.timed(lambda: found.append(made.solve(DISCOUNT, TOLERANCE, method)))
            errors[name] = float(np.abs(found[0].v - truth).max())
            return 1.0, seconds

        return solve

    def solved_there(what: str, method: str, name: str) -> Callable[[int], Measured]:
        def solve(_: int) -> Measured:
            if what == "pymdptoolbox" and made.n_states > DENSE_STATES:
                raise LeftOutError("it makes a dense matrix of states by states for each policy")
            answer = peers.ask(what, path=path, discount=DISCOUNT, tolerance=TOLERANCE, method=method)
            errors[name] = float(np.abs(np.array(answer["values"]) - truth).max())
            return 1.0, answer["seconds"]

        return solve

    candidates = {name: solved_here(method, name) for name, method in METHODS.items()}
    candidates |= {name: solved_there(what, method, name) for name, (what, method) in PEERS.items()}
    if made.n_states > DENSE_STATES:
        candidates = {name: solve for name, solve in candidates.items() if "modified" in name}
    row = measure("planning", case, "s", candidates, effort.rounds)
    told = "; ".join(f"{name} {errors[name]:.0e}" for name in row["figures"])
    return {**row, "errors": errors, "text": f"Largest error of a value: {told}."}
