"""What rules remember, in checkpoints that somebody damaged: kernels take some of it as indices."""

import math
from dataclasses import replace

import numpy as np
import own_rules
import pytest
from made_learners import learner_of

from dist_classicrl import TabularMDP
from dist_classicrl.errors import CheckpointError, SettingsError
from dist_classicrl.learning.memory import RuleMemory, declared
from dist_classicrl.learning.rules import find, learned_model
from dist_classicrl.learning.rules.kernel import Transition
from dist_classicrl.rules import LearningRule, MonteCarlo, PrioritizedSweeping, registry
from dist_classicrl.settings import Settings
from dist_classicrl.tables.local import LocalTable

STATES, ACTIONS, WALKERS = 6, 2, 3
TABLE = LocalTable(STATES, ACTIONS, np.dtype("float64"), None)


def memory_of(algorithm):
    """Return a rule and what its walkers remember at first."""
    rule, parameters = algorithm if type(algorithm) is tuple else find(algorithm)
    return rule, parameters, RuleMemory(rule, parameters, TABLE, WALKERS)


ALL = [MonteCarlo(longest=5) if name == "monte_carlo" else name for name in registry.BUILT_IN]
ALL += [(rule, rule.parameters()) for rule in own_rules.RULES]


@pytest.mark.parametrize("algorithm", ALL, ids=[*registry.BUILT_IN, *(rule.name for rule in own_rules.RULES)])
def test_each_number_that_a_rule_remembers_has_a_range_and_others_are_refused(algorithm):
    rule, parameters, memory = memory_of(algorithm)
    known = declared(rule, parameters, STATES, ACTIONS)
    state = memory.state()
    for name in {"rule_whole", "rule_model"} & set(state):
        assert sum(one.count for one in known[name]) == state[name].shape[-1]
        first = 0
        for one in known[name]:
            for place in {first, first + one.count - 1}:
                wrong = [value for value in (one.least - 1, 2 * one.most + 1) if math.isfinite(value)]
                wrong += [0.5] if one.is_whole and name == "rule_model" and one.most > 0 else []
                wrong += [] if name == "rule_whole" else [math.nan, math.inf]
                for value in wrong:
                    damaged = {kept: array.copy() for kept, array in state.items()}
                    damaged[name][..., place].flat[-1] = value
                    says = f"{name}.* (goes from|holds) .* allowed is"
                    with pytest.raises(CheckpointError, match=f"{says}|{name} holds NaN"):
                        memory.restore(damaged)
                if name == "rule_whole":  # each number by itself; those of a model belong together
                    most = {kept: array.copy() for kept, array in state.items()}
                    most[name][..., place] = one.most
                    memory.restore(most)
                    memory.restore(state)
            first += one.count
    for name, array in memory.state().items():
        assert not array.any(), name


@pytest.mark.slow
def test_a_learner_refuses_what_its_rule_could_not_have_remembered():
    model = TabularMDP.garnet(STATES, ACTIONS, 2, seed=1)
    learner = learner_of(model, Settings(algorithm="n_step_sarsa"))
    before = learner.state(0)
    damaged = {kept: array.copy() for kept, array in before.items()}
    damaged["position"][1], damaged["rule_whole"][0, 1] = 3, 1 << 40
    with pytest.raises(CheckpointError, match="rule_whole, the place of the oldest, goes from 1099511627776"):
        learner.restore(0, damaged)
    for kept, array in learner.state(0).items():
        np.testing.assert_array_equal(array, before[kept])


def test_ranges_are_of_all_numbers_that_a_rule_remembers():
    rule = replace(own_rules.N_STEP_SARSA, memory=lambda parameters: (9, 3))
    with pytest.raises(SettingsError, match="'own_n_step_sarsa' declares the ranges of 5 whole numbers, and"):
        memory_of((rule, rule.parameters()))


def test_of_a_rule_that_declares_nothing_numbers_are_taken_as_they_are():
    rule = LearningRule("open", own_rules.NStepSarsa, None, memory=lambda parameters: (1, 1))
    _, _, memory = memory_of((rule, own_rules.NStepSarsa()))
    state = memory.state()
    state["rule_whole"][:] = 1 << 40
    memory.restore(state)
    assert (memory.state()["rule_whole"] == 1 << 40).all()
    state["rule_real"][0, 0] = math.nan
    with pytest.raises(CheckpointError, match="rule_real holds NaN or infinity"):
        memory.restore(state)


SUCCESSORS = 3
PAIRS, OUTCOMES = STATES * ACTIONS, STATES * ACTIONS * SUCCESSORS


def lived(seed=1):
    """Give the model of a worker that has met 11 of 12 pairs, some of which wait."""
    rule, parameters, memory = memory_of(PrioritizedSweeping(successors=SUCCESSORS))
    context = memory.context(TABLE, None, 1.0)
    numbers = np.random.default_rng(seed)
    for i in range(150):
        state, action, after = (int(numbers.integers(n)) for n in (STATES, ACTIONS, STATES))
        if (state, action) == (5, 1):
            continue
        ended = bool(numbers.random() < 0.2)
        pair = learned_model.take_note(
            context, Transition(state, action, 1.0, after, ended, False, 0), SUCCESSORS, True
        )
        learned_model.queue_up(context, pair, float(numbers.random()))
        if i % 2:
            learned_model.take_first(context)
    return memory


def where(name):
    """Return where the numbers of a name begin in a model, and how many there are."""
    first = 0
    for one in learned_model.ranges(SUCCESSORS, STATES, ACTIONS, True):
        if one.name == name:
            return first, one
        first += one.count
    raise KeyError(name)


@pytest.mark.slow
def test_a_model_whose_numbers_contradict_each_other_is_refused():
    """Every single number that the kernels go by, moved to each other value that it might have."""
    memory = lived()
    state = memory.state()
    model = state["rule_model"]
    memory.restore(state)
    used = {
        "how many pairs were tried": [0],
        "how many pairs wait": [0],
        "the pairs that were tried": range(int(model[0])),
        "how many outcomes a pair has": range(PAIRS),
        "the queue": range(int(model[2])),
        "the places in the queue": range(PAIRS),
        "the first outcome of a state": range(STATES),
    }
    first_known, _ = where("how many outcomes a pair has")
    first_target, _ = where("where outcomes lead")
    listed = [
        pair * SUCCESSORS + k
        for pair in range(PAIRS)
        for k in range(int(model[first_known + pair]))
        if model[first_target + pair * SUCCESSORS + k] % 2 == 0
    ]
    used["the outcomes of the same state"] = listed
    assert 2 < model[2] < PAIRS and model[0] == PAIRS - 1 and len(listed) > 12
    tried = 0
    for name, places in used.items():
        first, one = where(name)
        for place in places:
            for value in range(one.least, one.most + 1):
                if name == "how many outcomes a pair has" and 0 < value < model[first + place]:
                    continue  # it may have been so, where the others ended an episode
                if value != model[first + place]:
                    damaged = {**state, "rule_model": model.copy()}
                    damaged["rule_model"][first + place] = value
                    with pytest.raises(CheckpointError, match="rule_model has .*allowed is what belongs"):
                        memory.restore(damaged)
                    tried += 1
    assert tried > 1000


@pytest.mark.slow
def test_a_list_of_outcomes_that_goes_round_is_refused():
    """Two outcomes of a state that come after each other, and after nothing else: each is in one list."""
    memory = lived()
    state = memory.state()
    model = state["rule_model"]
    nexts, heads = where("the outcomes of the same state")[0], where("the first outcome of a state")[0]
    first = int(model[heads])
    second = int(model[nexts + first - 1])
    assert first and second
    model[heads], model[nexts + second - 1] = model[nexts + second - 1], first
    with pytest.raises(CheckpointError, match="rule_model has a list of outcomes without an end"):
        memory.restore(state)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, value, says",
    [
        ("how often outcomes came", 0.0, "an outcome that never came"),
        ("when a pair was last tried", 1e6, "a pair that was tried after the last step"),
        ("the priorities", 1e6, "a queue in another order"),
    ],
)
def test_what_a_model_cannot_have_counted_is_refused(name, value, says):
    memory = lived()
    state = memory.state()
    model = state["rule_model"]
    queue, _ = where("the queue")
    first, one = where(name)
    model[first + (int(model[queue + 1]) if name == "the priorities" else 0)] = value
    with pytest.raises(CheckpointError, match=f"rule_model has {says}"):
        memory.restore(state)
