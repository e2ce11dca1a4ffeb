"""How actions are chosen: as often as the formula says, what is kept of a behavior, and what is refused."""

import json
import math
from typing import NamedTuple

import numba
import numpy as np
import pytest
from superstep_runs import problem_of

from dist_classicrl import DistAsyncQLearning, TabularMDP
from dist_classicrl.errors import SettingsError
from dist_classicrl.learning.behavior import Ladder, expected_value, rung
from dist_classicrl.learning.loops import choose_actions
from dist_classicrl.learning.memory import RuleMemory
from dist_classicrl.learning.rules.kernel import Now, Transition, rule_function, update, value
from dist_classicrl.learning.rules.q_learning import RULE, QLearning
from dist_classicrl.learning.supersteps.shares import share_of
from dist_classicrl.rules import (
    UCB,
    Boltzmann,
    EpsilonGreedy,
    EpsilonLadder,
    FixedPolicy,
    LearningRule,
    behaviors,
)
from dist_classicrl.rules.registry import register, unregister
from dist_classicrl.schedules import Constant, Exponential, Linear, PerVisit
from dist_classicrl.settings import Settings
from dist_classicrl.tables.local import LocalTable
from dist_classicrl.tables.shape import TableShape

pytestmark = pytest.mark.slow

VALUES = np.array([[1.0, 0.2, 0.5]])
CHANCES = np.array([[0.5, 0.0, 0.5]])
SOFT = np.exp(VALUES[0] / 0.4) / np.exp(VALUES[0] / 0.4).sum()
STEPS = 60_000


def bandit(mask=None):
    """Give a problem of one state, whose three actions do nothing."""
    return TabularMDP.from_dict([{a: [(1.0, 0, 0.0, False)] for a in range(3)}], [1.0], action_mask=mask)


def played(behavior, model, steps=STEPS, **settings):
    """Return how often each action was played while `VALUES` stayed as they are."""
    agent = DistAsyncQLearning(
        behavior=behavior, learning_rate=1e-300, state_size=1, action_size=3, seed=1, **settings
    )
    agent.q_table = VALUES
    agent.train(model, total_steps=steps)
    return agent.visits[0]


def is_drawn_from(counts, chances):
    """Whether counts are within 4.5 standard deviations of what these chances give."""
    n = counts.sum()
    return bool((np.abs(counts - n * chances) <= 4.5 * np.sqrt(n * chances * (1.0 - chances))).all())


@pytest.mark.parametrize("behavior, chances", [(Boltzmann(0.4), SOFT), (CHANCES, CHANCES[0])])
def test_actions_are_played_as_often_as_the_formula_says(behavior, chances):
    assert is_drawn_from(played(behavior, bandit()), chances)
    legal = np.array([[True, False, True]])
    only = chances * legal[0] / (chances * legal[0]).sum()
    assert is_drawn_from(played(behavior, bandit(legal)), only)


def test_a_temperature_that_falls_is_that_of_the_global_step():
    """Two calls, of which the second goes on where the first has ended."""
    hot = Linear(4.0, 0.05, 2 * STEPS)
    chances = np.zeros(3)
    for step in range(0, 2 * STEPS, 100):
        weights = np.exp((VALUES[0] - VALUES[0].max()) / hot.at(step + 50))
        chances += 100.0 * weights / weights.sum()
    agent = DistAsyncQLearning(
        behavior=Boltzmann(hot), learning_rate=1e-300, state_size=1, action_size=3, seed=1
    )
    agent.q_table = VALUES
    agent.train(bandit(), total_steps=STEPS)
    first = agent.visits[0].copy()
    agent.train(bandit(), total_steps=STEPS)
    assert is_drawn_from(agent.visits[0], chances / chances.sum())
    assert (agent.visits[0] - first)[0] > first[0] + 0.1 * STEPS


def test_a_temperature_over_a_share_of_a_call_is_kept_with_that_call(tmp_path):
    agent = DistAsyncQLearning(behavior=Boltzmann(Exponential(2.0, 0.1, fraction=0.5)), seed=1)
    agent.train(bandit(), total_steps=600)
    loaded = DistAsyncQLearning.load_model(agent.save_model(tmp_path / "model.npz"))
    for kept in (agent.settings, loaded.settings):
        temperature = kept.schedules["temperature"]
        assert temperature.call == (0, 600) and temperature.at(0) == 2.0 and temperature.at(300) == 0.1


@pytest.mark.parametrize(
    "temperature, says",
    [
        (PerVisit(0.7), "cannot follow the visits"),
        (Linear(1.0, 0.0, 100), "must be above 0 at each step, got Linear"),
        (Constant(-1.0), "must be a finite number above 0, got -1.0"),
        ({"kind": "Cosine"}, "is no schedule; known kinds are"),
    ],
)
def test_a_temperature_that_is_none_is_refused(temperature, says):
    with pytest.raises(SettingsError, match=says):
        DistAsyncQLearning(behavior=Boltzmann(temperature))


def test_a_constant_temperature_is_a_number():
    assert Settings(behavior=Boltzmann(Constant(0.5))).behavior == {"name": "boltzmann", "temperature": 0.5}
    assert Settings(behavior=Boltzmann(Constant(1.0))).behavior == "boltzmann"
    data = Settings(behavior=Boltzmann(Linear(2.0, 0.5, 10))).to_dict()
    assert json.loads(json.dumps(data)) == data
    assert behaviors.behavior_of(Settings.from_dict(data).behavior) == Boltzmann(Linear(2.0, 0.5, 10))


def test_behaviors_of_two_classes_are_unequal_though_their_fields_are_equal():
    policy = FixedPolicy(CHANCES)
    for one, other in ((Boltzmann(0.5), UCB(0.5)), (EpsilonGreedy(), QLearning()), (policy, Boltzmann(0.5))):
        assert one != other and not one == other and len({one, other, one}) == 2
    assert Boltzmann(0.5) == Boltzmann(0.5) != Boltzmann(0.25) and tuple(UCB(0.5)) == (0.5,)
    assert policy == FixedPolicy(CHANCES.copy()) and hash(policy) == hash(FixedPolicy(CHANCES.copy()))
    assert policy != FixedPolicy(CHANCES[:, ::-1] * [[0.5, 1.0, 1.0]])


def test_upper_bounds_choose_as_a_twin_in_plain_python():
    counts = np.zeros(3, int)
    for _ in range(2_000):
        untried = counts == 0
        bounds = VALUES[0] + 0.7 * np.sqrt(math.log(max(counts.sum(), 1)) / np.maximum(counts, 1))
        counts[np.argmax(np.where(untried, np.inf, bounds))] += 1
    assert played(UCB(0.7), bandit(), 2_000).tolist() == counts.tolist()


@pytest.mark.parametrize("behavior", [Boltzmann(0.4), UCB(0.7), FixedPolicy(CHANCES)])
def test_masks_that_come_with_a_state_are_respected(behavior):
    """What has no chance of its own is drawn evenly where the mask leaves nothing else."""
    table = LocalTable(1, 3, np.dtype("float64"), None)
    table.load(VALUES.reshape(-1), np.zeros(3, np.int64))
    masks = np.tile([[True, True, False], [False, True, False]], (10_000, 1))
    context = RuleMemory(RULE, QLearning(), table, 0, behavior).context(table, None, 1.0)
    actions = np.zeros(len(masks), np.int64)
    states = np.zeros(len(masks), np.int64)
    choose_actions(QLearning(), context, states, masks, 0.4, np.uint64(5), 0, actions)  # the temperature
    assert (actions[1::2] == 1).all()
    expected = {
        Boltzmann: SOFT[:2] / SOFT[:2].sum(),
        UCB: np.array([0.5, 0.5]),
        FixedPolicy: np.array([1.0, 0.0]),
    }
    assert is_drawn_from(np.bincount(actions[::2], minlength=2), expected[type(behavior)])


class FirstCounts(NamedTuple):
    """Has a second table, and compares actions by the first."""


@rule_function
def learn_first(rule, context, now, step, learned):
    return update(context, now, step.state, step.action, step.reward, learned)


class SumCounts(NamedTuple):
    """Compares actions by the sum of its two tables."""


@rule_function
def sum_of_both(rule, context, state, action):
    return value(context, state, action) + value(context, state + context.table.n_states, action)


TWO_TABLES = (
    LearningRule("first_counts", FirstCounts, learn_first, tables=("first", "second")),
    LearningRule("sum_counts", SumCounts, learn_first, tables=("first", "second"), preference=sum_of_both),
)


def test_a_rule_that_compares_by_its_first_table_has_the_temperature_of_that():
    rule = register(TWO_TABLES[0])
    try:
        table = LocalTable(1, 3, np.dtype("float64"), None, shape=TableShape(1, 3, 2))
        table.load(np.concatenate([VALUES.reshape(-1), np.zeros(3)]), np.zeros(6, np.int64))
        context = RuleMemory(rule, FirstCounts(), table, 0, Boltzmann(0.4)).context(table, None, 1.0)
        actions, states = np.zeros((2, STEPS), np.int64)
        choose_actions(FirstCounts(), context, states, None, 0.4, np.uint64(5), 0, actions)
        assert is_drawn_from(np.bincount(actions, minlength=3), SOFT)
    finally:
        unregister(rule)


@numba.njit
def expected_values(rule, context, now, step):
    """Give the mean value of the next state in each of two tables."""
    first = expected_value(context.behavior, rule, context, now, step)
    return first, expected_value(context.behavior, rule, context, now, step, 1)


@pytest.mark.parametrize("behavior, exploring", [(EpsilonGreedy(), 0.3), (Ladder(2.0), 0.3**2)], ids=str)
@pytest.mark.parametrize("rule", TWO_TABLES, ids=lambda rule: rule.name)
@pytest.mark.parametrize("way", ["all", "state", "mask"])
def test_the_expected_value_in_any_table_is_that_of_the_actions_that_are_chosen(
    way, rule, behavior, exploring
):
    """That is (1 - e) times the mean over those of the largest preference, and e times that over all."""
    tables = np.array([[8.0, 4.0, 4.0, 3.0], [9.0, 2.0, 1.0, 3.0]])
    legal = np.array([way == "all", True, True, True])
    preferences = tables.sum(axis=0) if rule.preference else tables[0]
    best = legal & (preferences == preferences[legal].max())
    truth = [(1.0 - exploring) * values[best].mean() + exploring * values[legal].mean() for values in tables]
    register(rule)
    try:
        parameters, by_state = rule.parameters(), legal[np.newaxis] if way == "state" else None
        table = LocalTable(1, 4, np.dtype("float64"), by_state, shape=TableShape(1, 4, 2))
        table.load(tables.reshape(-1), np.zeros(8, np.int64))
        context = RuleMemory(rule, parameters, table, 1, behavior).context(table, None, 1.0)
        if way == "mask":
            context = context._replace(masks=legal[np.newaxis])
        now, step = Now(0.1, 0.3, np.uint64(7), 0, 1), Transition(0, 1, 0.0, 0, False, False, 0)
        assert expected_values(parameters, context, now, step) == pytest.approx(truth, rel=1e-12)
    finally:
        unregister(rule)


def test_a_ladder_gives_each_worker_an_epsilon_of_its_own():
    assert [rung(n) for n in range(6)] == [0.0, 0.5, 0.25, 0.75, 0.125, 0.625]
    model = bandit()
    explored = {}
    for name in ("epsilon_greedy", EpsilonLadder(2.0)):
        counts = played(name, model, epsilon=0.3, async_updates=False, logical_workers=2)
        explored[type(name)] = counts[1:].sum() / counts.sum()
    assert explored[str] == pytest.approx(0.2, abs=0.01)  # two thirds of 0.3
    assert explored[EpsilonLadder] == pytest.approx((0.2 + 2.0 / 3.0 * 0.3**2) / 2.0, abs=0.01)
    with pytest.raises(SettingsError, match="episodes that travel between the owners of rows belong to no"):
        agent = DistAsyncQLearning(behavior="epsilon_ladder", async_updates=False)
        agent.train(model, total_steps=10, placement="sharded")


def test_a_policy_is_followed_by_the_owners_of_its_rows():
    model = TabularMDP.garnet(40, 3, 3, seed=2)
    policy = np.random.default_rng(1).dirichlet(np.ones(3), 40)
    problem = problem_of(model, Settings(behavior=policy))
    for ranks, partition in ((3, "range"), (2, "hash"), (1, "hash")):
        for rank in range(ranks):
            share = share_of(problem, 256, partition, rank, ranks)
            own = np.arange(40) if share._owned.states is None else share._owned.states
            # Behind its own rows there is room for copies of others.
            followed = share._context.behavior.probabilities[: own.size]
            np.testing.assert_array_equal(followed, policy[own])


def test_a_new_table_has_the_initial_value():
    agent = DistAsyncQLearning(initial_value=100.0, epsilon=0.0, seed=1)
    agent.train(TabularMDP.garnet(6, 4, 2, seed=1), total_steps=200)
    assert (agent.visits > 0).all()  # what was tried is worth less, so that everything is
    untouched = DistAsyncQLearning(
        initial_value=2.5, state_size=3, action_size=2, algorithm="double_q_learning"
    )
    assert (untouched.q_table == 2.5).all()


def test_episodes_begin_in_all_states_that_one_can_act_in():
    """From state 0 nothing else is ever reached, as action 1 is never played."""
    outcomes = [{0: [(1.0, s, 0.0, True)], 1: [(1.0, min(s + 1, 2), 0.0, False)]} for s in range(4)]
    model = TabularMDP.from_dict(outcomes, [1.0, 0.0, 0.0, 0.0])
    settings = {"behavior": np.tile([1.0, 0.0], (4, 1)), "seed": 1}
    agent = DistAsyncQLearning(exploring_starts=True, **settings)
    agent.train(model, total_steps=30_000)
    assert is_drawn_from(agent.visits[:3, 0], np.full(3, 1 / 3)) and (agent.visits[3] == 0).all()
    plain = DistAsyncQLearning(**settings)
    plain.train(model, total_steps=1_000)
    assert plain.visits[0, 0] == 1_000
    with pytest.raises(SettingsError, match="takes a known model, and .* has none"):
        DistAsyncQLearning(exploring_starts=True).train("Blackjack-v1", total_steps=10)


def test_what_is_kept_of_a_behavior_leads_back_to_it(tmp_path):
    agent = DistAsyncQLearning(behavior=CHANCES, algorithm="expected_sarsa", seed=1)
    agent.train(bandit(), total_steps=100)
    loaded = DistAsyncQLearning.load_model(agent.save_model(tmp_path / "model.npz"))
    assert loaded.settings == agent.settings
    found = behaviors.behavior_of(json.loads(json.dumps(loaded.settings.behavior)))
    np.testing.assert_array_equal(found.probabilities, CHANCES)
    assert Settings(behavior=Boltzmann(2)).behavior == {"name": "boltzmann", "temperature": 2.0}
    assert Settings(behavior=Boltzmann()).behavior == "boltzmann" == Settings(behavior="boltzmann").behavior


class OwnBehavior(NamedTuple):
    chance: float = 0.5


class OwnGreedy(EpsilonGreedy):
    pass


@pytest.mark.parametrize(
    "behavior, match",
    [
        *(
            (own, "^behavior must be one of .*got .*Behaviors of your own cannot be had, except as chances")
            for own in (OwnBehavior(), OwnGreedy(), {1, 2}, lambda state: 0, object())
        ),
        ("greedy", "behavior must be one of 'epsilon_greedy', .*got 'greedy'"),
        (Boltzmann, r"Write Boltzmann\(\) for its usual"),
        (Boltzmann(0.0), "Boltzmann: temperature must be a finite number above 0, got 0.0"),
        (UCB(math.nan), "UCB: exploration must be a finite number at least 0, got nan"),
        (None, "got None"),
        ("Boltzmann", "Did you mean 'boltzmann'"),
        ([0.5, 0.5], r"must have real numbers of shape \(states, actions\)"),
        (np.array([0, 1]), r"got the shape \(2,\).*np.eye\(actions\)\[it\]"),
        ([["a"]], "must have real numbers of shape"),
        ([["0.5", "0.5"]], "got an array of <U3"),
        (np.eye(2, dtype=complex), "got an array of complex128"),
        ([[1, 0], [1]], "got an array of object"),
        ([[0.5, 0.6]], r"add up to 1 in each row, got \[0.5 0.6\] for state 0, which add up to 1.1"),
        ([[1.5, -0.5]], "chances of at least 0"),
        ({"name": "policy"}, "behavior is a policy that cannot be read"),
        ({"name": "boltzmann", "heat": 1.0}, "behavior must be one of"),
    ],
)
def test_what_is_no_behavior_is_refused(behavior, match):
    with pytest.raises(SettingsError, match=match):
        Settings(behavior=behavior)


def test_an_initial_value_that_the_table_cannot_hold_is_refused():
    assert Settings(initial_value=1e39).initial_value == 1e39
    with pytest.raises(SettingsError, match=r"initial_value=1e\+39 does not fit into a table of float32"):
        Settings(initial_value=1e39, dtype="float32")


def test_a_policy_that_does_not_fit_the_environment_is_refused():
    with pytest.raises(SettingsError, match=r"has the shape \(1, 3\), and .* needs \(6, 2\)"):
        DistAsyncQLearning(behavior=CHANCES).train(TabularMDP.garnet(6, 2, 2, seed=1), total_steps=10)
    with pytest.raises(SettingsError, match="gives action 2 a chance of 0.5 in state 0 of .* illegal"):
        DistAsyncQLearning(behavior=CHANCES).train(bandit([[True, True, False]]), total_steps=10)
