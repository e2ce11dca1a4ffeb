"""The catalog of learning rules, and what a rule's declaration says of the tables that it needs."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest

from dist_classicrl import DistAsyncQLearning, rules
from dist_classicrl.environments.model import TabularMDP
from dist_classicrl.environments.resolve import resolve
from dist_classicrl.errors import SettingsError
from dist_classicrl.learning.kinds import new_learner, problem_of
from dist_classicrl.learning.memory import RuleMemory
from dist_classicrl.learning.rates import Rates
from dist_classicrl.learning.rules import check_source, find, why_none_travels
from dist_classicrl.learning.rules.q_learning import RULE as Q_LEARNING
from dist_classicrl.learning.rules.q_learning import QLearning
from dist_classicrl.rules import LearningRule, Shared, registry
from dist_classicrl.settings import Settings
from dist_classicrl.tables.shape import TableShape


class Watkins(NamedTuple):
    trace_decay: float = 0.9
    steps: int = 2


class Sutton(NamedTuple):
    trace_decay: float = 0.9


def check(parameters):
    if not 0.0 <= parameters.trace_decay <= 1.0:
        raise SettingsError(f"trace_decay must lie between 0 and 1, got {parameters.trace_decay}.")


def made(name="own", parameters=Watkins, **more):
    return LearningRule(name, parameters, **{"learn": Q_LEARNING.learn, **more})


@pytest.fixture
def own():
    """Register a rule for one test."""
    rule = registry.register(made(check=check))
    yield rule
    registry.unregister(rule)


# The catalog


def test_the_names_are_those_of_the_package_and_what_was_registered(own):
    assert (
        registry.names()[: len(registry.BUILT_IN)] == tuple(registry.BUILT_IN) and "own" in registry.names()
    )
    registry.unregister(own)
    assert "own" not in registry.names() and registry.registered("own") is None
    assert registry.of_class(Watkins) is None
    with pytest.raises(SettingsError, match="got 'own'"):
        find("own")
    registry.register(own)


@pytest.mark.slow
def test_rules_of_the_package_are_known_before_anything_is_compiled():
    program = """
import sys
from dist_classicrl.rules import registry
from dist_classicrl.settings import Settings
assert Settings(algorithm="q_learning").algorithm == "q_learning" in registry.names()
assert registry.registered("q_learning") is None
assert "numba" not in sys.modules
from dist_classicrl.learning.rules import find
rule, parameters = find("q_learning")
assert registry.registered("q_learning") is rule and type(parameters) is rule.parameters
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


@pytest.mark.parametrize("name", registry.BUILT_IN)
def test_each_rule_of_the_package_is_found_under_its_name(name):
    rule, parameters = find(name)
    assert rule.name == name == registry.to_data(parameters)
    assert find(parameters) == (rule, parameters) == find({"name": name})
    assert registry.of_class(rule.parameters) is registry.registered(name) is rule
    assert rule.parameters.__module__ == f"dist_classicrl.learning.rules.{name}"
    assert rule.parameters.__doc__ and set(rule.defaults) <= {"learning_rate", "epsilon"}
    assert rule.defaults == registry.BUILT_IN[name]  # known also before the rule is loaded


def test_a_rule_is_found_by_name_by_its_parameters_and_by_data(own):
    assert find("own") == (own, Watkins()) == find(Watkins()) == find({"name": "own"})
    assert find(Watkins(0.5)) == (own, Watkins(0.5))
    assert find({"name": "own", "steps": 7}) == (own, Watkins(0.9, 7))
    assert find("q_learning") == (Q_LEARNING, QLearning())  # an empty tuple like any other, but of its class


@pytest.mark.parametrize(
    "parameters, data",
    [
        (Watkins(), "own"),
        (Watkins(0.5), {"name": "own", "trace_decay": 0.5}),
        (Watkins(steps=9), {"name": "own", "steps": 9}),
        (Watkins(0.1, 1), {"name": "own", "trace_decay": 0.1, "steps": 1}),
    ],
)
def test_data_are_plain_and_lead_back_to_the_parameters(own, parameters, data):
    assert registry.to_data(parameters) == data == Settings(algorithm=parameters).algorithm
    read = json.loads(json.dumps(data))
    assert find(read) == (own, parameters)
    assert registry.to_data(read) == data


def test_a_name_and_a_class_belong_to_one_rule(own):
    assert registry.register(own) is own
    with pytest.raises(SettingsError, match="'own' of Sutton cannot be registered: the name or the class"):
        registry.register(made(parameters=Sutton))
    with pytest.raises(SettingsError, match="'other' of Watkins cannot be registered"):
        registry.register(made("other"))
    with pytest.raises(SettingsError, match="'q_learning' of Sutton cannot be registered"):
        registry.register(made("q_learning", Sutton))
    with pytest.raises(SettingsError, match="'mine' of QLearning cannot be registered"):
        registry.register(made("mine", QLearning))
    assert find("own") == (own, Watkins()) and registry.of_class(Sutton) is None
    assert find("q_learning") == (Q_LEARNING, QLearning())


def test_a_rule_that_is_written_anew_takes_the_place_of_the_old_one(own):
    with pytest.raises(SettingsError, match="To write the rule anew, write its class anew, too"):
        registry.register(made(check=check))

    class Again(NamedTuple):
        trace_decay: float = 0.5

    Again.__qualname__ = Watkins.__qualname__
    new = registry.register(made(parameters=Again))
    assert registry.registered("own") is new and registry.of_class(Watkins) is None
    registry.unregister(new)


@pytest.mark.parametrize(
    "field, given, told",
    [
        ("tables", (), 'tables must be a tuple of different names, one or more, such as ("q",), got ()'),
        ("tables", "q", "got 'q'"),
        ("tables", ("q", "q"), "got ('q', 'q')"),
        ("learn", None, "learn must be a function of 5 arguments, got None"),
        ("learn", lambda context: 0, "learn must be a function of 5 arguments, got <function"),
        ("truth", 5, "truth must be a function of 3 arguments or None, got 5"),
        ("preference", lambda state: 0.0, "preference must be a function of 4 arguments or None, got"),
        ("waits", 5, "waits must be a function of 1 argument or None, got 5"),
        ("check", 5, "check must be a function of 1 argument or None, got 5"),
        ("check_source", 5, "check_source must be a function of 2 arguments or None, got 5"),
        ("idle", 5, "idle must be a function of 1 argument or None, got 5"),
        ("memory", 5, "memory must be a function of 1 argument, got 5"),
        ("model", None, "model must be a function of 3 arguments, got None"),
        ("can_replay", "no", "can_replay must be True or False, got 'no'"),
        ("shared", 5, "shared must be a tuple of Shared(name, merge)"),
        ("shared", (Shared("gain", "mean"),), "each merge one of 'affine', 'sum', 'owner', got (Shared("),
        ("shared", (Shared("gain", "sum"), Shared("gain", "sum")), "with different names"),
        ("shared", [Shared("gain", "sum"), 5], "shared must be a tuple of Shared(name, merge)"),
        (
            "defaults",
            {"foo": 1},
            "defaults must be a dict that has learning_rate or epsilon alone, got {'foo'",
        ),
        ("choices", {"y": ("a", "b")}, "choices must be a dict with a tuple of words for names of hyper-"),
        ("choices", {"steps": ...}, "got {'steps': Ellipsis}"),
        ("can_travel", 2, "can_travel must be True or False, got 2"),
        (
            "idle",
            lambda p: None,
            "must be a dict with a reason, as text, for some of learning_rate, epsilon, ",
        ),
        (
            "idle",
            lambda p: {"nothing": "x"},
            'discount_factor, trace_decay, steps, such as {"epsilon": "chooses no action"}, got {\'nothing\'',
        ),
        ("idle", lambda p: {"steps": 5}, "got {'steps': 5}"),
        (
            "idle",
            lambda p: {}["x"],
            "What plays no part (idle) by the rule 'own' for Watkins(trace_decay=0.9, steps=2) is not known: "
            "its function raised KeyError: 'x'",
        ),
    ],
)
def test_a_rule_with_a_field_that_is_none_cannot_be_registered(field, given, told):
    with pytest.raises(SettingsError, match=re.escape(told)):
        registry.register(made(**{field: given}))
    assert registry.registered("own") is None and registry.of_class(Watkins) is None


@pytest.mark.parametrize("given", ["own", None, LearningRule, Watkins])
def test_what_is_no_rule_cannot_be_registered(given):
    with pytest.raises(SettingsError, match="register takes a LearningRule, got .* Write register"):
        registry.register(given)


def test_what_plays_no_part_is_looked_at_for_each_choice_of_hyper_parameters():
    def idle(parameters):
        return {"epsilon": "chooses none"} if parameters.steps else {"nothing": "x"}

    rule = registry.register(made(idle=idle))
    try:
        assert Settings(algorithm=Watkins(steps=1)).algorithm == {"name": "own", "steps": 1}
        with pytest.raises(SettingsError, match=r"steps=0\) must be a dict .* got {'nothing': 'x'}"):
            Settings(algorithm=Watkins(steps=0))
    finally:
        registry.unregister(rule)


def test_what_is_idle_with_defaults_that_are_no_choice_is_not_asked():
    rule = made(
        parameters=Sutton, check=refuse_usual, idle=lambda p: {"trace_decay": 1 / (0.9 - p.trace_decay)}
    )
    try:
        assert registry.register(rule) is rule
    finally:
        registry.unregister(rule)


def refuse_usual(parameters):
    if parameters.trace_decay == 0.9:
        raise SettingsError("Write trace_decay.")


@pytest.mark.parametrize(
    "field, given, told",
    [
        (
            "shared",
            (Shared("gain", "sum", -1),),
            "shared as 'gain' must be a whole number of at least 0, got -1",
        ),
        (
            "shared",
            [Shared("gain", "owner", lambda p, s, a: s / 3)],
            "shared as 'gain' must be a whole number",
        ),
        (
            "memory",
            lambda p: (-p.steps, 0),
            "for Watkins(trace_decay=0.9, steps=2) must be a whole number of at least 0, got -2",
        ),
        ("memory", lambda p: 3, "must be two numbers, (whole, real), got 3"),
        ("memory", lambda p: (1, 2, 3), "must be two numbers, (whole, real), got (1, 2, 3)"),
        (
            "memory",
            lambda p: (100 // (p.steps - 2), 0),
            "is not known: its function raised ZeroDivisionError: ",
        ),
        ("model", lambda p, states, actions: 0.5, "The model of the rule 'own' for Watkins("),
        ("model", lambda p, states, actions: states - 30, "at least 0, got -14"),
    ],
)
def test_counts_that_are_none_are_told_where_a_training_begins(field, given, told):
    rule = registry.register(made(**{field: given}))
    try:
        settings = Settings(algorithm="own")
        with pytest.raises(SettingsError, match=re.escape(told)):
            check_source(settings, LAKE)
    finally:
        registry.unregister(rule)


@pytest.mark.parametrize("waits", [lambda p: None, lambda p: -1, lambda p: 0.5])
def test_what_waits_and_is_no_number_is_told_where_it_is_asked_for(waits):
    with pytest.raises(SettingsError, match=r"What waits by the rule 'own' for Watkins\(.*at least 0, got"):
        why_none_travels(made(waits=waits), Watkins())


class Kinds(NamedTuple):
    kind: str = "b"
    steps: int = 0


LAKE = resolve("FrozenLake-v1", 1, None)


@pytest.mark.slow
@pytest.mark.parametrize(
    "field, given",
    [
        ("memory", lambda p: ((1, 2)[p.kind], 0)),
        ("model", lambda p, states, actions: (0, 2)[p.kind]),
        ("shared", (Shared("gain", "sum", lambda p, states, actions: (0, 2)[p.kind]),)),
        ("shared", (Shared("gain", "owner", lambda p, states, actions: (0, 2)[p.kind]),)),
        ("memory", lambda p: [p.steps, 0]),
        ("memory", lambda p: np.array([p.steps, 0])),
        ("memory", lambda p: (2 * p.steps - 1, 0)),  # nothing for the default
        ("memory", lambda p: (100 // p.steps, p.steps > 2)),
        ("shared", [Shared("gain", "sum", lambda p, states, actions: np.ceil(states / 3))]),
        ("tables", ["q"]),
        ("can_replay", 1),
        ("model", lambda p, states, actions: states * (actions - 2)),
        ("model", lambda p, states, actions: states // (actions - 1)),
    ],
)
def test_a_rule_trains_whose_counts_are_right_where_they_are_used(field, given):
    words = {"choices": {"kind": ["a", "b"]}}
    rule = registry.register(made(parameters=Kinds, **words, **{field: given}))
    try:
        agent = DistAsyncQLearning(seed=1, algorithm=Kinds("b", 3))
        assert agent.train("FrozenLake-v1", total_steps=200).steps == agent.steps == 200
        assert why_none_travels(*find(Kinds("a", 3)))  # words there, too
    finally:
        registry.unregister(rule)


@pytest.mark.parametrize("rule", [made(name=7), made(name=""), made(parameters=None), made(parameters=dict)])
def test_what_has_no_name_or_no_named_tuple_is_no_rule(rule):
    with pytest.raises(SettingsError, match="needs a name, as text, and as parameters a class made with"):
        registry.register(rule)


def test_a_class_in_place_of_its_object_is_told_what_to_write(own):
    with pytest.raises(SettingsError, match=r"Write Watkins\(\) for its usual hyper-parameters"):
        find(Watkins)
    with pytest.raises(SettingsError, match="got 'SARSA'. Did you mean 'sarsa'?"):
        find("SARSA")


@pytest.mark.parametrize("name", registry.BUILT_IN)
def test_the_names_of_the_package_are_taken_before_its_rules_are_loaded(monkeypatch, name):
    monkeypatch.setattr(registry, "_known", {})
    with pytest.raises(SettingsError, match=f"'{name}' of Sutton cannot be registered"):
        registry.register(made(name, Sutton))


@pytest.mark.parametrize(
    "algorithm", ["no_such_rule", "", {"name": "no_such_rule"}, {}, None, 3, (), Sutton(), Sutton]
)
def test_what_is_no_rule_is_refused_with_the_names_of_those_that_there_are(own, algorithm):
    for ask in (find, registry.to_data, lambda algorithm: Settings(algorithm=algorithm)):
        with pytest.raises(SettingsError) as caught:
            ask(algorithm)
        said = str(caught.value)
        assert (
            f"algorithm must be one of {', '.join(map(repr, registry.names()))}, got {algorithm!r}." in said
        )
        assert ("Register a rule of your own first, on every rank." in said) is (
            algorithm not in ("no_such_rule", "")
        )


def test_hyper_parameters_that_are_not_allowed_are_refused(own):
    with pytest.raises(SettingsError, match="trace_decay must lie between 0 and 1, got 2"):
        find(Watkins(2.0))
    with pytest.raises(SettingsError, match="trace_decay must lie between 0 and 1, got -1"):
        find({"name": "own", "trace_decay": -1.0})
    with pytest.raises(SettingsError, match="Watkins: steps must be a whole number of 64 bits, got 10{20}"):
        find(Watkins(steps=10**20))
    with pytest.raises(SettingsError, match="between 0 and 1"):
        Settings(algorithm=Watkins(2.0))
    with pytest.raises(SettingsError, match=r"{'name': 'own', 'decay': 1} is no learning rule: .*'decay'"):
        find({"name": "own", "decay": 1})


# What a rule declares


STATES, ACTIONS = 5, 3
SHARED = (
    Shared("a mean", "affine"),
    Shared("of each state", "sum", lambda parameters, states, actions: states * parameters.steps),
    Shared("kept", "owner", 4),
    Shared("of each pair", "owner", lambda parameters, states, actions: states * actions),
)


def test_shared_numbers_are_counted_by_their_merge():
    rule = made(shared=SHARED)
    for steps in (1, 2, 5):
        counted = Watkins(steps=steps), STATES, ACTIONS
        assert [shared.count(*counted) for shared in SHARED] == [1, STATES * steps, 4, STATES * ACTIONS]
        assert rule.n_merged(*counted) == 1 + STATES * steps
        assert rule.n_owned(*counted) == 4 + STATES * ACTIONS
    nothing = Watkins(), STATES, ACTIONS
    assert made().n_merged(*nothing) == made().n_owned(*nothing) == 0
    assert made().tables == ("q",) and made().memory(Watkins()) == (0, 0)


@pytest.mark.parametrize("n_tables", [1, 2])
@pytest.mark.parametrize("n_shared, rows", [(0, 0), (1, 1), (3, 1), (4, 2), (11, 4)])
def test_shared_numbers_have_rows_of_their_own_behind_the_tables(n_tables, n_shared, rows):
    shape = TableShape(STATES, ACTIONS, n_tables, n_shared)
    assert shape.n_rows == n_tables * STATES + rows and shape.size == shape.n_rows * ACTIONS


@pytest.mark.parametrize("legal", [False, True])
def test_a_learners_table_has_room_for_what_its_rule_declares(legal):
    mask = np.arange(STATES * ACTIONS).reshape(STATES, ACTIONS) % 4 != 1 if legal else None
    model = TabularMDP.garnet(STATES, ACTIONS, 2, seed=1)
    source = resolve(replace(model, action_mask=mask), 1, None)
    rule = registry.register(
        made(tables=("first", "second"), shared=SHARED, memory=lambda own: (own.steps, 1))
    )
    try:
        parameters = Watkins(steps=2)
        settings = Settings(algorithm=parameters)
        table = new_learner(problem_of(source, settings, Rates(settings, 1))).table
        one_state = new_learner(problem_of(source, settings, Rates(settings, 1), n_states=1)).table
    finally:
        registry.unregister(rule)
    rows = 2 * STATES + 4  # 11 shared numbers in rows of 3
    assert table.best.size == rows and table.q.size == rows * ACTIONS == table.base.size
    assert (table.n_states, table.n_actions, table.arrays.n_states) == (STATES, ACTIONS, STATES)
    assert one_state.best.size == 2 + 1
    values = table.q.reshape(rows, ACTIONS)
    for first in (0, STATES):
        illegal = values[first : first + STATES] == -np.inf
        assert illegal.tolist() == (~mask if legal else np.zeros((STATES, ACTIONS), bool)).tolist()
    assert (values[2 * STATES :] == 0.0).all()
    context = RuleMemory(rule, parameters, table, 4).context(table, None, 0.9)
    assert context.whole.shape == (4, 2) and context.real.shape == (4, 1)
    assert context.owned.shape == (4, 4 + STATES * ACTIONS)


def test_rules_of_two_classes_are_unequal_though_neither_has_a_field():
    one, other = rules.QLearning(), rules.DoubleQLearning()
    assert not one._fields
    assert not other._fields
    assert one == rules.QLearning()
    assert one != other
    assert not one == other
    assert len({one, other, rules.QLearning()}) == 2
