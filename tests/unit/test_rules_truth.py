"""Each rule of the package learns what it converges to, on two problems whose answer is known."""

from dataclasses import replace
from typing import NamedTuple

import gymnasium as gym
import numba
import numpy as np
import pytest
from made_learners import learner_of

from dist_classicrl import CompiledSimulator, DistAsyncQLearning, TabularMDP
from dist_classicrl.environments.resolve import resolve
from dist_classicrl.errors import EnvError, SettingsError
from dist_classicrl.learning.learner import Stream
from dist_classicrl.learning.memory import RuleMemory
from dist_classicrl.learning.rules import find, kernel, learned_model, truths
from dist_classicrl.learning.rules.kernel import Transition
from dist_classicrl.rules import (
    TD,
    Boltzmann,
    DifferentialQLearning,
    DoubleQLearning,
    DynaQ,
    MonteCarlo,
    NStepSarsa,
    PrioritizedSweeping,
    QLambda,
    Sarsa,
    SarsaLambda,
    TreeBackup,
    UCBQLearning,
    registry,
)
from dist_classicrl.schedules import PerVisit
from dist_classicrl.settings import Settings
from dist_classicrl.tables.local import LocalTable
from dist_classicrl.tables.rows import learn_each_of_row, learn_row
from dist_classicrl.tables.shape import TableShape

pytestmark = pytest.mark.slow

DISCOUNT, EPSILON = 0.9, 0.3
GARNET = TabularMDP.garnet(8, 2, 2, seed=1)
"""Without an end, so that all rules can learn it."""


def chain(n=5):
    """Give the random walk of Sutton and Barto (2018), example 6.2, in which both actions do the same."""
    outcomes = [
        [(0.5, max(s - 1, 0), 0.0, s == 0), (0.5, min(s + 1, n - 1), float(s == n - 1), s == n - 1)]
        for s in range(n)
    ]
    return TabularMDP.from_dict([{0: each, 1: each} for each in outcomes], np.eye(n)[n // 2])


CHAIN = chain()
CHAIN_VALUES = np.repeat(np.arange(1, 6) / 6.0, 2).reshape(5, 2)

STAY_OR_GO = TabularMDP.from_dict(
    [
        {0: [(1.0, 0, 1.0, False)], 1: [(1.0, 1, 0.0, False)]},
        {0: [(1.0, 1, 2.0, False)], 1: [(1.0, 0, 0.0, False)]},
    ],
    [1.0, 0.0],
)
"""The best mean reward is 2; with that, the values of going there, of waiting for it, and of leaving."""
STAY_OR_GO_VALUES = np.array([[-3.0, -2.0], [0.0, -4.0]])

CLOSED_FORMS = {"differential_q_learning": (STAY_OR_GO, STAY_OR_GO_VALUES)}
TOLERANCE = 0.08
"""Values are up to 3 apart, and those of different rules 0.2 and more."""


def learned(algorithm, model, steps=2_000_000, **settings):
    """Return an agent that has learned."""
    given = {"epsilon": EPSILON, "discount_factor": DISCOUNT, "learning_rate": PerVisit(0.7), "seed": 1}
    agent = DistAsyncQLearning(algorithm=algorithm, **(given | settings))
    agent.train(model, total_steps=steps)
    return agent


def distance(agent, truth):
    """Return how far a table is from the truth; differential values are known up to a constant."""
    difference = agent.q_table - truth
    if agent.settings.algorithm == "differential_q_learning":
        difference -= difference.mean()
    return np.abs(difference).max()


VARIANTS = (
    NStepSarsa(1),
    TreeBackup(target_epsilon=0.5),
    QLambda(variant="peng"),
    QLambda(trace_decay=0.0, n=1),
    MonteCarlo(longest=7, first_visit=True),
    TD(trace_decay=0.7, n=8),
    DynaQ(bonus=0.001),
    PrioritizedSweeping(planning_steps=0),
    UCBQLearning(bonus=0.02),
)


@pytest.mark.parametrize("algorithm", [*registry.BUILT_IN, *VARIANTS], ids=str)
def test_a_rule_learns_what_it_converges_to(algorithm):
    rule, parameters = find(algorithm)
    agent = learned(algorithm, GARNET)
    assert distance(agent, rule.truth(GARNET, parameters, agent.settings)) < TOLERANCE
    model, values = CLOSED_FORMS.get(rule.name, (CHAIN, CHAIN_VALUES))
    assert distance(learned(algorithm, model, discount_factor=1.0), values) < TOLERANCE


CORRIDOR = TabularMDP.from_dict(
    [dict.fromkeys((0, 1), [(1.0, min(s + 1, 5), s + 1.0, s == 5)]) for s in range(6)], np.eye(6)[0]
)
"""Six steps to the end, which give 1 to 6."""


@pytest.mark.parametrize(
    "algorithm, n, decay",
    [
        (NStepSarsa(3), 3, 1.0),
        (TreeBackup(3), 3, 1.0),
        (SarsaLambda(0.6, 3), 3, 0.6),
        (QLambda(0.6, "watkins", 3), 3, 0.6),
        (QLambda(0.6, "peng", 9), 9, 0.6),
        (MonteCarlo(9), 9, 1.0),
        (MonteCarlo(4), 0, 1.0),
        (TD(3, 0.6), 3, 0.6),
    ],
)
def test_the_first_episode_is_learned_as_the_formula_says(algorithm, n, decay):
    """From nothing all values on the way are 0, and a step of size 1 puts the returns into the table."""
    agent = learned(algorithm, CORRIDOR, 6, learning_rate=PerVisit(1.0), discount_factor=0.5)
    rewards = np.arange(1.0, 7.0)
    of_n = [sum((0.5 * decay) ** k * rewards[t + k] for k in range(min(n, 6 - t))) for t in range(6)]
    if n == 0:  # in two parts, the first of which ends with an action that is worth nothing yet
        of_n = [1 + 2 / 2 + 3 / 4 + 4 / 8, 2 + 3 / 2 + 4 / 4, 3 + 4 / 2, 4.0, 5 + 6 / 2, 6.0]
    np.testing.assert_allclose(agent.q_table.max(axis=1), of_n, rtol=1e-12)


@pytest.mark.parametrize("longest, parts", [(6, 1), (3, 2), (4, 2), (2, 3)])
def test_first_visits_are_those_of_each_part_of_a_long_episode(longest, parts):
    """Ten episodes of six steps each, all of them at one pair."""
    there = TabularMDP.from_dict([{0: [(1.0, 0, 1.0, False)]}], [1.0])
    agent = DistAsyncQLearning(algorithm=MonteCarlo(longest, first_visit=True), seed=1)
    agent.train(replace(there, max_episode_steps=6), total_steps=60)
    assert agent.visits.tolist() == [[10 * parts]]


@pytest.mark.parametrize(
    "algorithm, match",
    [
        (NStepSarsa(0), "NStepSarsa: n must be a whole number of steps from 1 to 65,536, got 0"),
        (TreeBackup(target_epsilon=1.5), "TreeBackup: target_epsilon must be from 0 to 1, got 1.5"),
        (QLambda(-0.1), "QLambda: trace_decay must be from 0 to 1, got -0.1"),
        (QLambda(variant="sutton"), "QLambda: variant must be one of 'watkins', 'peng', got 'sutton'"),
        (MonteCarlo(0), "MonteCarlo: longest must be a whole number of steps from 1"),
        (MonteCarlo(first_visit=1), "MonteCarlo: first_visit must be True or False, got 1"),
        (DynaQ(planning_steps=-1), "DynaQ: planning_steps must be a whole number from 0"),
        (DynaQ(bonus=-1.0), "DynaQ: bonus must be at least 0"),
        (PrioritizedSweeping(successors=0), "PrioritizedSweeping: successors must be a whole number from 1"),
        (PrioritizedSweeping(threshold=-1.0), "PrioritizedSweeping: threshold must be at least 0"),
        (UCBQLearning(horizon=0), "UCBQLearning: horizon must be at least 1"),
        (UCBQLearning(bonus=-1.0), "UCBQLearning: bonus must be at least 0"),
        (TD(trace_decay=2.0), "TD: trace_decay must be from 0 to 1"),
        (DifferentialQLearning(eta=0.0), "eta must be above 0, got 0"),
    ],
)
def test_hyper_parameters_that_are_not_allowed_are_refused(algorithm, match):
    with pytest.raises(SettingsError, match=match):
        DistAsyncQLearning(algorithm=algorithm)


def test_words_among_hyper_parameters_are_kept_as_words():
    settings = DistAsyncQLearning(algorithm=QLambda(variant="peng")).settings
    assert settings.algorithm == {"name": "q_lambda", "variant": "peng"}
    assert find(settings.algorithm)[1] == QLambda(variant="peng")


@pytest.mark.parametrize("behavior", ["epsilon_greedy", Boltzmann(1.0), np.full((8, 2), 0.5)])
def test_the_truth_of_a_behavior_is_what_its_policy_is_worth(behavior):
    """By the library's solver of linear equations, of the policy that the fixed point means."""
    agent = DistAsyncQLearning(behavior=behavior, epsilon=EPSILON, discount_factor=DISCOUNT)
    q = truths.behavior_values(GARNET, Sarsa(), agent.settings)
    policy = np.full((8, 2), 0.5)
    if isinstance(behavior, str):
        policy = EPSILON * policy + (1.0 - EPSILON) * (q == q.max(axis=1, keepdims=True))
    elif isinstance(behavior, Boltzmann):
        policy = np.exp(q) / np.exp(q).sum(axis=1, keepdims=True)
    np.testing.assert_allclose((policy * q).sum(axis=1), GARNET.policy_value(policy, DISCOUNT), rtol=1e-9)
    assert np.abs(GARNET.solve(DISCOUNT).q - q).max() > 0.2  # so that no rule passes for another


def test_differential_values_and_the_mean_reward():
    q, gain = truths.relative_values(STAY_OR_GO)
    assert gain == pytest.approx(2.0)
    np.testing.assert_allclose(q, STAY_OR_GO_VALUES - STAY_OR_GO_VALUES.mean(), atol=1e-9)
    agent = learned(DifferentialQLearning(eta=0.5), STAY_OR_GO)
    assert agent.shared["mean_reward"] == pytest.approx([2.0], abs=0.02)
    assert learned("q_learning", STAY_OR_GO, 10).shared == {}
    with pytest.raises(EnvError, match="has episodes that terminate, and differential_q_learning is for"):
        learned(DifferentialQLearning(), CHAIN)


class OneOfTwo(NamedTuple):
    nothing: int = 0


class OneStep(gym.Env):
    """An episode is one step, which gives 1 and terminates it; there is one state and one action."""

    observation_space = action_space = gym.spaces.Discrete(1)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        return 0, 1.0, True, False, {}


@pytest.mark.parametrize("algorithm", [name for name in registry.BUILT_IN if name != "ucb_q_learning"])
def test_nothing_is_ahead_where_a_time_limit_runs_out_with_the_last_step(algorithm):
    """Gymnasium says of such a step that it is terminated, and truncated as well."""
    agent = learned(algorithm, lambda: gym.wrappers.TimeLimit(OneStep(), 1), 2_000, learning_rate=0.5)
    gain = sum(
        agent.shared.get("mean_reward", [0.0])
    )  # values are relative to it, of the rule that learns it
    np.testing.assert_allclose(agent.q_table + gain, 1.0, rtol=1e-12)


@numba.njit
def begin(data, memory, random):
    return random % 2


@numba.njit
def end(data, memory, state, action, random):
    return 1 - state, 1.0 + state, True


@pytest.mark.parametrize("placement", ["replicated", "sharded"])
def test_differential_values_end_with_an_episode_wherever_rows_lie(placement):
    """From two states a step ends the episode in the other one, and gives 1 and 2."""
    game = CompiledSimulator.game("one step", 2, 1, OneOfTwo(), begin, end)
    agent = DistAsyncQLearning(
        algorithm=DifferentialQLearning(), learning_rate=0.1, async_updates=False, seed=1
    )
    agent.train(game, total_steps=20_000, placement=placement)
    np.testing.assert_allclose(agent.q_table[:, 0] + agent.shared["mean_reward"], [1.0, 2.0], rtol=1e-6)


def bait(n_actions=4):
    """Give the problem of Sutton and Barto (2018), figure 6.5: what is on the left looks good by chance.

    State 0: action 0 leads to state 1, others end. There each action ends with 1 or -1, in the mean -0.1.
    """
    prizes = [(0.45, 1, 1.0, True), (0.55, 1, -1.0, True)]
    start = {a: [(1.0, 1, 0.0, False)] if a == 0 else [(1.0, 0, 0.0, True)] for a in range(n_actions)}
    return TabularMDP.from_dict([start, dict.fromkeys(range(n_actions), prizes)], [1.0, 0.0])


def test_double_q_learning_is_less_optimistic_of_what_chance_has_given():
    """The bait is worth -0.1: Q-learning takes the luckiest of 4 estimates for its value."""
    settings = {"learning_rate": 0.2, "epsilon": 0.5, "discount_factor": 1.0}
    found = {
        name: np.mean([learned(name, bait(), 200, seed=seed, **settings).q_table[0, 0] for seed in range(20)])
        for name in ("q_learning", "double_q_learning")
    }
    assert found["q_learning"] > 0.05 and found["double_q_learning"] < 0.0


def test_sarsa_takes_the_safe_way_and_q_learning_the_edge_of_the_cliff():
    """Example 6.6: Q-learning's way is the shortest, -13, and while both explore SARSA collects more."""
    model = TabularMDP.from_gymnasium("CliffWalking-v1")
    way, collected = {}, {}
    for rule in ("q_learning", "sarsa", "expected_sarsa"):
        settings = {"learning_rate": 0.1, "epsilon": 0.1, "discount_factor": 1.0}
        agent = learned(rule, model, 300_000, **settings)
        collected[rule] = agent.train(model, total_steps=300_000).mean_return
        way[rule] = agent.evaluate(model, episodes=1).mean_return
    assert way["q_learning"] == -13.0
    for rule in ("sarsa", "expected_sarsa"):
        assert -20.0 <= way[rule] <= -15.0 and collected[rule] > collected["q_learning"] + 10.0


def deep_sea(n=10):
    """Give Osband et al.'s deep sea (2019): a treasure of 1 for going right n times, each for 0.01 / n."""
    outcomes = []
    for row in range(n):
        for column in range(n):
            last, fee = row == n - 1, 0.01 / n
            left, right = (
                min(row + 1, n - 1) * n + to for to in (max(column - 1, 0), min(column + 1, n - 1))
            )
            prize = float(last and column == n - 1) - fee
            outcomes.append({0: [(1.0, left, 0.0, last)], 1: [(1.0, right, prize, last)]})
    return TabularMDP.from_dict(outcomes, np.eye(n * n)[0])


def test_bonuses_and_exploring_starts_find_a_treasure_that_epsilon_greedy_does_not():
    model, worth = deep_sea(), []
    for algorithm, settings in (
        (UCBQLearning(10, 0.02), {"epsilon": 0.0}),
        ("q_learning", {"epsilon": 0.1, "exploring_starts": True}),
        ("q_learning", {"epsilon": 0.1}),
    ):
        agent = learned(algorithm, model, 100_000, discount_factor=1.0, **settings)
        worth.append(model.policy_value(agent.q_table.argmax(axis=1), 1.0)[0])
    assert worth[:2] == pytest.approx([0.99, 0.99]) and worth[2] <= 0.0


def test_planning_learns_in_fewer_steps():
    """Of the way back from the prize, which Q-learning goes a state each time, planning goes all at once."""
    last = 11
    outcomes = [
        {0: [(1.0, max(s - 1, 0), 0.0, False)], 1: [(1.0, min(s + 1, last), float(s == last), s == last)]}
        for s in range(last + 1)
    ]
    model = TabularMDP.from_dict(outcomes, np.eye(last + 1)[0])
    for name in ("q_learning", "dyna_q", "prioritized_sweeping"):
        far = learned(name, model, 400, epsilon=1.0).q_table[:, 1] > 0.9 * DISCOUNT ** np.arange(last, -1, -1)
        assert far.all() if name != "q_learning" else not far[:6].any()


@pytest.mark.parametrize("name", ["dyna_q", "prioritized_sweeping"])
def test_a_model_keeps_as_many_outcomes_as_a_pair_has(name):
    kind = type(find(name)[1])
    with pytest.raises(
        SettingsError, match=f"{kind.__name__}: successors=1 are fewer outcomes than .* has, 2"
    ):
        learned(kind(successors=1), GARNET)
    with pytest.raises(SettingsError, match=f"'{name}': it keeps a model of the environment, of which each"):
        agent = DistAsyncQLearning(algorithm=name, async_updates=False)
        agent.train(GARNET, total_steps=10, placement="sharded")


@numba.njit
def many_rewards(data, state, action, number):
    return 1 / 3, (state + action) % 9, np.float64(number), False


@pytest.mark.parametrize("tables", [True, False], ids=["arrays", "function"])
def test_an_outcome_of_several_rewards_is_one_of_a_model(tables):
    model = TabularMDP.from_function(many_rewards, n_states=9, n_actions=2, n_outcomes=3, tables=tables)
    for kind in (DynaQ, PrioritizedSweeping):
        find(kind())[0].check_source(kind(successors=1), resolve(model, 1, None))


@numba.njit
def whole_row(table, row, target, touched):
    return learn_row(table, row, target, 0.25, 1, touched)


@numba.njit
def entry_by_entry(table, row, target, touched):
    return learn_each_of_row(table, row, target, 0.25, 1, touched)


@pytest.mark.parametrize("legal", [None, np.random.default_rng(2).random((6, 3)) < 0.7], ids=["all", "some"])
def test_a_row_is_learned_as_its_entries_are(legal):
    """To the bit, from rows of one value and of several."""
    numbers = np.random.default_rng(1)
    tables = [LocalTable(6, 3, np.dtype("float64"), legal) for _ in range(2)]
    values = numbers.normal(size=(6, 3))
    values[:3] = values[:3, :1]
    acts = range(6) if legal is None else np.flatnonzero(legal.any(axis=1))
    for table in tables:
        table.load(values.reshape(-1), np.zeros(18, np.int64))
    touched = [0, 0]
    for _ in range(40):
        row, target = int(numbers.choice(acts)), float(numbers.normal())
        for i, learn_them in enumerate((whole_row, entry_by_entry)):
            touched[i] = learn_them(tables[i].arrays, row, target, touched[i])
    assert touched[0] == touched[1] > 6
    for name in ("q", "best", "greedy", "weight", "shift", "updates"):
        one, other = (getattr(table.arrays, name) for table in tables)
        np.testing.assert_array_equal(one, other, name)
    one, other = (table.arrays.touched[: touched[0]].tolist() for table in tables)
    assert one == other


@numba.njit
def learn_one(rule, context, now, step):
    return kernel.learn(rule, context, now, step, kernel.Learned(0, 0.0))


@pytest.mark.parametrize(
    "algorithm, way",
    [
        (Sarsa(), "state"),
        (Sarsa(), "mask"),
        (NStepSarsa(2), "mask"),
        (MonteCarlo(5), "state"),
        (DoubleQLearning(), "state"),
        (DoubleQLearning(), "mask"),
    ],
)
def test_what_is_cut_off_where_no_action_is_legal_has_nothing_ahead(algorithm, way):
    """As of `best_value`, which is 0 there, whatever the table has of that state."""
    legal = np.array([[True, True], [False, False]])
    rule, parameters = find(algorithm)
    n_tables = len(rule.tables)
    legal_by_state = legal if way == "state" else None
    table = LocalTable(2, 2, np.dtype("float64"), legal_by_state, shape=TableShape(2, 2, n_tables))
    table.load(np.full(4 * n_tables, 5.0), np.zeros(4 * n_tables, np.int64))
    context = RuleMemory(rule, parameters, table, 1).context(table, None, 0.9)
    if way == "mask":
        context = context._replace(masks=legal[1:])
    now = kernel.Now(1.0, 0.0, np.uint64(7), 0, 1)
    learn_one(parameters, context, now, Transition(0, 1, 3.0, 1, False, True, 0))
    learned = table.arrays.q.reshape(n_tables, 2, 2)[:, 0, :]
    assert sorted(learned.tolist()) == [[5.0, 3.0], *[[5.0, 5.0]] * (n_tables - 1)]


@pytest.mark.parametrize("name", registry.BUILT_IN)
def test_what_a_rule_remembers_comes_back_from_a_checkpoint_after_each_step(name):
    """Whatever it comes to is in the ranges that it declares: episodes are cut off after 7 steps."""
    settings = Settings(algorithm=name, epsilon=EPSILON, learning_rate=PerVisit(0.7))
    learner = learner_of(replace(GARNET, max_episode_steps=7), settings)
    rule, parameters = find(name)
    memory = RuleMemory(rule, parameters, learner.table, 1)
    stream = Stream(np.uint64(5), 0)
    for _ in range(200):
        learner.learn(0, stream, 1)
        state = learner.state(0)
        memory.restore(state)
        for kept, array in memory.state().items():
            np.testing.assert_array_equal(array, state[kept])


@pytest.mark.parametrize("size", [1, 40])
def test_the_queue_gives_pairs_by_priority(size):
    """As a sorted list in plain Python does, which keeps the larger one of two priorities of a pair."""
    numbers = np.random.default_rng(size)
    table = LocalTable(size, 2, np.dtype("float64"), None)
    rule, parameters = find("prioritized_sweeping")
    context = RuleMemory(rule, parameters, table, 1).context(table, None, 1.0)
    waiting, given, expected = {}, [], []
    for _ in range(300):
        pair, priority = int(numbers.integers(2 * size)), float(numbers.random())
        learned_model.queue_up(context, pair, priority)
        waiting[pair] = max(priority, waiting.get(pair, 0.0))
        for _ in range(numbers.integers(3)):
            given.append(learned_model.take_first(context))
            expected.append(max(waiting, key=waiting.get, default=-1))
            waiting.pop(expected[-1], None)
    assert given == expected


def test_a_model_counts_what_came_and_the_rarest_outcome_gives_way():
    """Against counts in plain Python, with as many outcomes as there is room for and then with more."""
    table = LocalTable(6, 2, np.dtype("float64"), None)
    for successors, states in ((6, 6), (3, 6)):
        rule, parameters = find(PrioritizedSweeping(successors=successors))
        context = RuleMemory(rule, parameters, table, 1).context(table, None, 1.0)
        numbers, met = np.random.default_rng(2), []
        for _ in range(400):
            state, action, after = (int(numbers.integers(n)) for n in (6, 2, states))
            met.append((2 * state + action, after))
            step = Transition(state, action, float(after), after, False, False, 0)
            learned_model.take_note(context, step, successors, True)
        before = {after: outcomes_before(context, successors, after) for after in range(states)}
        if successors == states:
            assert {after: set(pairs) for after, pairs in before.items()} == {
                after: {pair for pair, other in met if other == after} for after in range(states)
            }
            for pair in range(12):
                mean = np.mean([after for other, after in met if other == pair])
                assert learned_model.mean_target(context, pair, successors) == pytest.approx(mean)
        assert sum(map(len, before.values())) == 12 * successors  # each outcome stands in one list
        assert all(len(set(pairs)) == len(pairs) for pairs in before.values())


def outcomes_before(context, successors, state):
    """Return the pairs in a state's list of outcomes that lead there."""
    found, outcome = [], learned_model.first_before(context, successors, state)
    while outcome >= 0:
        found.append(outcome // successors)
        outcome = learned_model.next_before(context, successors, outcome)
    return found


MASK = np.array([[1, 1, 0], [1, 0, 1], [0, 1, 1], [1, 1, 1]], bool)
MASKED = replace(TabularMDP.garnet(4, 3, 2, seed=3), action_mask=MASK, max_episode_steps=20)


class Masked(gym.Env):
    """`MASKED`, which tells what is legal as its states are met."""

    observation_space, action_space = gym.spaces.Discrete(4), gym.spaces.Discrete(3)

    def _seen(self, state):
        self.state = int(state)
        return self.state, {"action_mask": MASK[self.state].astype(np.int8)}

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.elapsed = 0
        return self._seen(self.np_random.choice(4, p=MASKED.start_prob))

    def step(self, action):
        assert MASK[self.state, action]
        pair = self.state * 3 + int(action)
        outcomes = np.arange(MASKED.outcome_ptr[pair], MASKED.outcome_ptr[pair + 1])
        drawn = self.np_random.choice(outcomes, p=MASKED.outcome_prob[outcomes])
        self.elapsed += 1
        state, info = self._seen(MASKED.outcome_next[drawn])
        return state, float(MASKED.outcome_reward[drawn]), False, self.elapsed >= 20, info


@pytest.mark.parametrize("algorithm", [TreeBackup(target_epsilon=0.5), DynaQ(bonus=0.001)])
def test_masks_that_come_with_states_are_kept_as_long_as_a_rule_needs_them(algorithm):
    """What waits for several steps, and what a model plans, knows what was legal there."""
    rule, parameters = find(algorithm)
    agent = learned(algorithm, Masked, 30_000, discount_factor=0.8)
    truth = rule.truth(MASKED, parameters, agent.settings)
    assert np.abs(agent.q_table - truth)[MASK].max() < TOLERANCE


class Entered(gym.Env):
    """A state that only a reset leads to, in which the last action is not legal; a step from there ends."""

    observation_space, action_space = gym.spaces.Discrete(2), gym.spaces.Discrete(3)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {"action_mask": np.array([1, 1, 0], np.int8)}

    def step(self, action):
        return 1, 0.0, True, False, {"action_mask": np.ones(3, np.int8)}


def test_what_is_legal_where_episodes_begin_is_planned_though_it_was_never_tried():
    always_the_first = np.eye(3)[[0, 0]]
    agent = DistAsyncQLearning(algorithm=DynaQ(bonus=1.0), behavior=always_the_first, seed=1)
    agent.train(Entered, total_steps=100)
    assert agent.visits[0].tolist() == [100, 0, 0]
    assert agent.q_table[0, 1] > 0.0 and agent.q_table[0, 2] == 0.0
