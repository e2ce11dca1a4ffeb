"""`learn`: logged transitions become an agent's table, alone or divided over ranks."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dist_classicrl._random import fresh_seed
from dist_classicrl._words import name_of
from dist_classicrl.agent.beginning import say_idle
from dist_classicrl.checks import checked_whole
from dist_classicrl.comm.rooted import RootedCollectives, rooted_over
from dist_classicrl.comm.world import find_world
from dist_classicrl.data.coverage import Coverage
from dist_classicrl.data.empirical import empirical_model
from dist_classicrl.data.result import BatchResult
from dist_classicrl.data.transitions import Transitions
from dist_classicrl.engines.idle import idle_in_learn
from dist_classicrl.environments.resolve import Source
from dist_classicrl.environments.solvers.process import check_method
from dist_classicrl.errors import (
    DataError,
    DivergenceError,
    EnvMismatchError,
    RankMismatchError,
    SettingsError,
)
from dist_classicrl.learning import rules
from dist_classicrl.learning.logged import LoggedLearner
from dist_classicrl.model.agent_state import AgentState
from dist_classicrl.model.fit import learned_elsewhere, look_at
from dist_classicrl.rules import behaviors
from dist_classicrl.schedules.kinds import in_call
from dist_classicrl.settings import Settings
from dist_classicrl.tables import large_table
from dist_classicrl.tables.maps import PackedSums
from dist_classicrl.tables.round_merge import MapSums, Parts, RoundMerge
from dist_classicrl.tables.shared import SharedTable

METHODS = ("incremental", "sweeps")

_EPOCHS = 10

#: Rules whose values are those of the best actions, which `method="sweeps"` solves for.
SWEPT = ("q_learning", "double_q_learning")

_IN_A_ROW = "learns from several steps in a row, and logged transitions are learned in another order"
_MODELS = (
    'learns a model of its own, and method="sweeps" solves that of the transitions; take '
    "algorithm='q_learning'"
)
_WHY_NOT = {
    **dict.fromkeys(("n_step_sarsa", "tree_backup", "q_lambda", "sarsa_lambda", "monte_carlo"), _IN_A_ROW),
    **dict.fromkeys(("dyna_q", "prioritized_sweeping"), _MODELS),
    "differential_q_learning": "learns the mean reward of what never ends, and a log ends",
    "ucb_q_learning": "adds bonuses for what is to be explored, and in a log nothing can be",
}
_BEHAVIORS = ("epsilon_greedy", "boltzmann", behaviors.POLICY)


def check_rule(settings: Settings, method: str) -> None:
    """Raise SettingsError where a rule cannot learn from logged transitions, or not by this method."""
    rule, parameters = rules.find(settings.algorithm)
    is_td = rule.name == "td"
    why = _WHY_NOT.get(rule.name)
    if is_td and parameters.n > 1:
        why = _IN_A_ROW
    elif why is None and not (rule.can_replay or rule.name == "sarsa" or is_td):
        why = "does not say that it can learn old transitions (can_replay)"
    if why is not None:
        raise SettingsError(
            f"learn() cannot be had with the rule {rule.name!r}: it {why}. Rules that learn one "
            "transition at a time can: algorithm='q_learning', 'double_q_learning', 'expected_sarsa', "
            "'sarsa' and 'td'."
        )
    if method == "sweeps" and rule.name not in SWEPT:
        raise SettingsError(
            f"method='sweeps' solves for what the best actions are worth, which the rule {rule.name!r} does "
            f"not learn. Write method='incremental', or algorithm='{SWEPT[0]}'."
        )
    behavior = name_of(settings.behavior)
    if rule.name == "expected_sarsa" and behavior not in _BEHAVIORS:
        raise SettingsError(
            f"learn() with the rule 'expected_sarsa' learns what a behavior is worth, and behavior="
            f"{behavior!r} depends on workers or on visits, which logged transitions do not tell. Write "
            'behavior="epsilon_greedy", "boltzmann", or chances of actions of shape (states, actions).'
        )


@dataclass(frozen=True)
class _Ready:
    """What a rank has prepared: what is learned, and how, which must be the same on all."""

    told: str
    seed: int
    steps: int  # those of the agent


@dataclass(frozen=True)
class _Table:
    """The table of the root."""

    values: np.ndarray
    counts: np.ndarray


@dataclass(frozen=True)
class _Learned:
    """What a rank learned since the last merge."""

    sums: PackedSums


@dataclass(frozen=True)
class _Task:
    """What is to be learned, checked."""

    transitions: Transitions
    epochs: int
    method: str
    source: Source | None  # the environment that they are of, where it is given


def learn(state: AgentState, given: Any, epochs: Any, method: Any, env: Any, comm: Any) -> BatchResult:
    """Do what `DistAsyncQLearning.learn` says, for an agent that holds `state`."""
    begin = time.perf_counter()
    world = find_world(comm, state.settings.allow_singletons)
    if world is None:
        task = _prepared(state, given, epochs, method, env)
        _say_idle(state, task)
        values, counts = _learned(state, task, _ready(state, task), None)
        return _kept(state, task, values, counts, 1, begin)
    seconds = state.settings.timeout
    with rooted_over(world, seconds, "call of learn") as (rooted, _):
        with rooted.operation():
            task = _prepared(state, given, epochs, method, env)
            everyone = rooted.share(_ready(state, task), "all ranks to read their transitions")
        _check_alike(everyone)
        if rooted.is_root:
            _say_idle(state, task)
        values, counts = _learned(state, task, everyone[rooted.root], rooted)
        ranks = rooted.wire.size
    return _kept(state, task, values, counts, ranks, begin)


def _prepared(state: AgentState, given: Any, epochs: Any, method: Any, env: Any) -> _Task:
    """Check what was given, and see to it that there is a table for it."""
    if state.is_training:
        raise SettingsError(
            "learn() was called for an agent that is training; call it when train() has ended."
        )
    check_method(method, METHODS)
    if method == "sweeps" and epochs is not None:
        raise SettingsError(
            f"epochs={epochs!r} is how often each transition is learned, and method='sweeps' solves for the "
            "values at once. Leave it out, or write method='incremental'."
        )
    passes = checked_whole("epochs", _EPOCHS if epochs is None else epochs, 1)
    if state.settings.device == "cuda":
        raise SettingsError(
            "device='cuda' asks for a card, and learn() learns on a core. Write device='cpu', or 'auto' "
            "where train() is to take a card."
        )
    check_rule(state.settings, method)
    data = Transitions.of(given)
    source = None if env is None else look_at(state, env)
    spaces = state.observations, state.actions
    if source is not None:
        source.close()
        what = learned_elsewhere(state.environment, state.steps, source.identity, "learn()")
        if what is not None:
            raise EnvMismatchError(
                f"{what}: what was learned there would be overwritten. Make another agent for it, or leave "
                "env out where the transitions are of the environment that was trained in."
            )
        spaces = source.spaces
    if state.keyed is not None or state.large is not None:
        kind = "has keys as states" if state.keyed is not None else "is larger than a copy for each rank"
        raise SettingsError(f"learn() needs a table of numbered states, and this agent's {kind}.")
    transitions = data.in_rows(*spaces)
    if not state.has_table:
        transitions.check_size(transitions.n_states, transitions.n_actions)
        _make_table(state, transitions)
    transitions.check_size(*state.shape.of_table)
    _check_policy(state)
    state.check_values()
    return _Task(transitions, passes, method, source)


def _make_table(state: AgentState, transitions: Transitions) -> None:
    """Make a table for the largest state and action, unless it would be one that `learn` does not take."""
    settings = state.settings
    states = settings.state_size or transitions.n_states
    actions = settings.action_size or transitions.n_actions
    most = settings.max_states
    if most is not None and states > most:
        raise SettingsError(
            f"The transitions are of {states:,} states, and max_states={most:,} allows no more. Leave it out."
        )
    entries = rules.table_shape(settings.algorithm, states, actions).size
    if entries >= large_table.FROM_ENTRIES:
        raise DataError(
            f"{states:,} states and {actions:,} actions make a table of {entries:,} entries, and learn() "
            f"needs one of which each rank has a copy, of fewer than {large_table.FROM_ENTRIES:,}. Number "
            "the states that there are from 0 on, for instance with np.unique(states, return_inverse=True)."
        )
    state.make_table(states, actions)


def _check_policy(state: AgentState) -> None:
    behavior = behaviors.behavior_of(state.settings.behavior)
    size = state.shape.of_table
    if isinstance(behavior, behaviors.FixedPolicy) and behavior.probabilities.shape != size:
        raise SettingsError(
            f"behavior as an array has the shape {behavior.probabilities.shape}, and the table {size}: it "
            "needs a row for each state, a chance for each action."
        )


def _say_idle(state: AgentState, task: _Task) -> None:
    """Say what plays no part, unless it has played one in a training, or was read from a file."""
    if state.steps == 0 and not state.is_loaded:
        say_idle(state, idle_in_learn(state.settings, task.method))


def _ready(state: AgentState, task: _Task) -> _Ready:
    seed = fresh_seed() if state.seed is None else state.seed
    return _Ready(_description(state, task), seed, state.steps)


def _description(state: AgentState, task: _Task) -> str:
    settings = state.settings
    return repr(
        (
            task.method,
            task.epochs,
            settings.discount_factor,
            settings.algorithm,
            settings.dtype,
            settings.learning_rate,
            settings.behavior,
            settings.epsilon,
            state.shape,
            task.transitions.fingerprint(),
        )
    )


def _check_alike(everyone: dict[int, _Ready]) -> None:
    first = min(everyone)
    others = [rank for rank, ready in everyone.items() if ready.told != everyone[first].told]
    if others:
        raise RankMismatchError(
            f"Rank {others[0]} was given other transitions, epochs, method or settings than rank {first} in "
            "learn(). Give all ranks the same transitions: each takes a part of its own of them."
        )


def _learned(
    state: AgentState, task: _Task, begun: _Ready, rooted: RootedCollectives | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the table, and how often its entries were visited, after all has been learned.

    `begun` is what the root has prepared: its seed counts, and its steps.
    """
    state.seed = begun.seed
    values, counts = state.values.reshape(-1).copy(), state.counts.reshape(-1).copy()
    if task.method == "sweeps":
        if rooted is None:
            return _swept(state, task, values, counts)
        with rooted.operation():
            swept = _Table(*_swept(state, task, values, counts)) if rooted.is_root else None
            told = rooted.tell(swept, _Table, "rank 0 to solve the model of the transitions")
        return told.values.copy(), told.counts.copy()
    if rooted is None:
        return _increment(state, task, values, counts, begun.steps)
    return _merged(state, task, values, counts, begun.steps, rooted)


def _swept(
    state: AgentState, task: _Task, values: np.ndarray, counts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Let pairs that were taken have their values in the model that the transitions suggest."""
    shape, settings = state.shape, state.settings
    model = empirical_model(task.transitions, *shape.of_table)
    seen = model.legal_pairs()
    q = model.solve(settings.discount_factor).q
    if not (np.abs(q) <= np.finfo(settings.dtype).max).all():
        raise DivergenceError(
            f"The values of the transitions go up to {np.abs(q).max():.3g}, and a table of {settings.dtype} "
            f"holds numbers up to {np.finfo(settings.dtype).max:.3g}. Make the rewards smaller."
        )
    shape.tables(values.reshape(-1, shape.n_actions))[:, seen] = q[seen]
    taken = np.bincount(
        task.transitions.states * shape.n_actions + task.transitions.actions, minlength=seen.size
    )
    shape.tables(counts.reshape(-1, shape.n_actions))[0] += taken.reshape(seen.shape)
    return values, counts


def _increment(
    state: AgentState, task: _Task, values: np.ndarray, counts: np.ndarray, steps: int
) -> tuple[np.ndarray, np.ndarray]:
    learner = _learner(state, task, counts, steps, 0, 1)
    learner.table.load(values, counts)
    for epoch in range(task.epochs):
        learner.learn(epoch, 0, 1)
    learner.table.settle(values, counts)
    return values, counts


def _learner(
    state: AgentState, task: _Task, counts: np.ndarray, steps: int, rank: int, ranks: int
) -> LoggedLearner:
    assert state.seed is not None
    order = (state.seed, int(counts.sum()))  # another call shuffles otherwise
    updates = task.epochs * len(task.transitions)
    step_sizes = in_call(state.settings.learning_rate, steps, updates, steps)
    settings = replace(state.settings, learning_rate=step_sizes)
    return LoggedLearner(task.transitions, settings, state.shape, steps, order, rank, ranks)


def _merged(
    state: AgentState,
    task: _Task,
    values: np.ndarray,
    counts: np.ndarray,
    steps: int,
    rooted: RootedCollectives,
) -> tuple[np.ndarray, np.ndarray]:
    """Let each rank learn its part, and merge what all have learned several times an epoch."""
    with rooted.operation():
        begun = rooted.tell(_Table(values, counts), _Table, "rank 0's table")
        shared = SharedTable(begun.values.copy(), begun.counts.copy())
        merge, sums = RoundMerge(shared), MapSums(shared.values.size)
        learner = _learner(state, task, shared.counts, steps, rooted.rank, rooted.wire.size)
        learner.table.load(shared.values, shared.counts)
    for epoch in range(task.epochs):
        merges = learner.merges(epoch)
        for part in range(merges):
            with rooted.operation():
                learner.learn(epoch, part, merges)
                sums.fold(learner.table)
                own = _Learned(sums.take())
                gathered = rooted.gather(own, "all ranks to learn their part of the transitions")
                if rooted.is_root:
                    merge.merge(Parts.one(rank, each.sums) for rank, each in gathered.items())
                told = rooted.tell(_Table(shared.values, shared.counts), _Table, "rank 0 to merge a part")
                learner.table.load(told.values, told.counts)
                begun = told
    return begun.values.copy(), begun.counts.copy()


def _kept(
    state: AgentState, task: _Task, values: np.ndarray, counts: np.ndarray, ranks: int, begin: float
) -> BatchResult:
    """Bring the agent to what was learned."""
    state.values[:] = values.reshape(state.values.shape)
    state.counts[:] = counts.reshape(state.counts.shape)
    if task.source is not None:
        state.take_note_of(task.source)
    is_swept = task.method == "sweeps"
    return BatchResult(
        method=task.method,
        epochs=0 if is_swept else task.epochs,
        updates=0 if is_swept else task.epochs * len(task.transitions),
        ranks=1 if is_swept else ranks,
        seconds=time.perf_counter() - begin,
        coverage=Coverage.of(task.transitions, *state.shape.of_table),
    )
