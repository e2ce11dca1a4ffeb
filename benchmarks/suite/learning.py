"""Steps per second with learning, in one process, against peers, and against bounds that learn nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dist_classicrl import DistAsyncQLearning
from suite import plain, problems
from suite.form import Effort, Measured, Sized, measure
from suite.peers import Peers

VECTOR_ENVS = 16
OURS_TIMES = 2
"""A call of `train` begins with costs that loops do not have, and nobody trains for a third of a second."""


def ours(env: Any, seconds: float, first: int) -> Callable[[int], Measured]:
    """Return a training by this package: the time that `train` says it took, set-up and compiling apart.

    A call has costs that grow with the table, so that the first one, of so many steps, is not too short.
    """
    agent = DistAsyncQLearning(
        learning_rate=plain.STEP_SIZE, discount_factor=plain.DISCOUNT, epsilon=plain.EPSILON, seed=0
    )
    return Sized(
        lambda steps: agent.train(env, total_steps=steps, progress_bar=False).seconds, seconds, first
    )


def by_peer(peers: Peers, seconds: float, what: str, **arguments: Any) -> Callable[[int], Measured]:
    """Return what a peer does for each question."""
    return Sized(lambda steps: peers.ask(what, steps=steps, **arguments)["seconds"], seconds)


def run(case: str, effort: Effort, peers: Peers, folder: str) -> dict[str, Any]:
    """Measure all candidates in one problem."""
    if case in problems.GARNETS:
        problems.write(case, folder)

    def make() -> Any:
        return plain.environment(case, folder)

    seconds = effort.seconds
    loop, vector, bare = plain.PlainLoop(make()), plain.VectorLoop(make, VECTOR_ENVS), make()
    where = {"case": case, "folder": folder}
    candidates = {
        "ours, compiled": ours(problems.compiled(case), OURS_TIMES * seconds, 2_000_000),
        "ours, stepped": ours(lambda: problems.Stepped(make()), OURS_TIMES * seconds, 10_000),
        "MushroomRL, Q-learning": by_peer(peers, seconds, "mushroom", rule="Q-learning", **where),
        "MushroomRL, SARSA": by_peer(peers, seconds, "mushroom", rule="SARSA", **where),
        "loop in Python": Sized(loop.learn, seconds),
        f"NumPy, {VECTOR_ENVS} environments": Sized(vector.learn, seconds),
        "bare: Gymnasium": Sized(lambda steps: plain.bare_stepping(bare, steps), seconds),
        "bare: EnvPool, 1 thread": by_peer(peers, seconds, "envpool", case=case, threads=1),
        "bare: EnvPool, 2 threads": by_peer(peers, seconds, "envpool", case=case, threads=2),
    }
    try:
        return measure("learning", case, "steps/s", candidates, effort.rounds)
    finally:
        vector.close()
        bare.close()
