"""What a learning rule says of itself, and the rules that are known by name.

A rule of one's own joins those of the package with `register`, on every rank, before an agent is made. Its
functions are compiled code; `dist_classicrl.learning.rules` has those of the package, and what such functions
are made of.
"""

from __future__ import annotations

from dist_classicrl._lazy import lazy_names
from dist_classicrl.rules.learning_rule import LearningRule, Range, Shared
from dist_classicrl.rules.registry import register

_HOMES = {
    name: f"dist_classicrl.learning.rules.{module}"
    for module, name in {
        "q_learning": "QLearning",
        "sarsa": "Sarsa",
        "expected_sarsa": "ExpectedSarsa",
        "double_q_learning": "DoubleQLearning",
        "n_step_sarsa": "NStepSarsa",
        "tree_backup": "TreeBackup",
        "q_lambda": "QLambda",
        "sarsa_lambda": "SarsaLambda",
        "monte_carlo": "MonteCarlo",
        "td": "TD",
        "dyna_q": "DynaQ",
        "prioritized_sweeping": "PrioritizedSweeping",
        "differential_q_learning": "DifferentialQLearning",
        "ucb_q_learning": "UCBQLearning",
    }.items()
}
_HOMES |= {
    name: "dist_classicrl.rules.behaviors"
    for name in ("UCB", "Boltzmann", "EpsilonGreedy", "EpsilonLadder", "FixedPolicy")
}
"""Where the classes of hyper-parameters live that are imported from here."""

__all__ = ["LearningRule", "Range", "Shared", "register", *_HOMES]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
