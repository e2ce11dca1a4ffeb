"""What an error advises where a rule cannot learn in supersteps does what it says."""

from typing import NamedTuple

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Discrete, MultiDiscrete
from keyed_games import scrambled

from dist_classicrl import DistAsyncQLearning, TabularMDP
from dist_classicrl.errors import SettingsError
from dist_classicrl.learning.rules.kernel import rule_function, update
from dist_classicrl.rules import LearningRule
from dist_classicrl.rules.registry import register, unregister

pytestmark = pytest.mark.slow  # each kernel here takes long to compile

MODEL = TabularMDP.garnet(6, 2, 2, seed=1)
WRONG_FOR_KEYS = ("Write async_updates=True", 'placement="replicated"')


class Line(gymnasium.Env):
    """Six places of which each is seen as one of 36 pairs."""

    observation_space, action_space = MultiDiscrete([6, 6]), Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = 0
        return np.array([0, 0]), {}

    def step(self, action):
        self.place = max(self.place + 2 * action - 1, 0)
        return np.array([self.place, self.place]), 0.0, self.place == 5, False, {}


def train(env, algorithm="ucb_q_learning", walkers=None, placement="auto", **settings):
    agent = DistAsyncQLearning(seed=1, algorithm=algorithm, **settings)
    return agent.train(env, total_steps=40, walkers=walkers, placement=placement).steps


def refusal(env, **asked):
    with pytest.raises(SettingsError) as caught:
        train(env, **asked)
    return str(caught.value)


class Waiting(NamedTuple):
    """A rule that learns when the next action is chosen, and does not say what waits for it."""

    share: float = 1.0


@rule_function
def on_action(rule, context, now, state, action, learned):
    return learned


@rule_function
def learn(rule, context, now, step, learned):
    return update(context, now, step.state, step.action, rule.share * step.reward, learned)


@pytest.fixture(autouse=True, scope="module")
def registered():
    rule = register(LearningRule("waits_for_action", Waiting, learn, on_action=on_action))
    yield
    unregister(rule)


@pytest.mark.parametrize("rule", ["ucb_q_learning", "waits_for_action"])
def test_observations_that_are_keys(rule):
    said = refusal(Line, algorithm=rule, max_states=10)
    assert not any(wrong in said for wrong in WRONG_FOR_KEYS), said
    assert "ewer observations than max_states allows" in said and 'a rule such as "q_learning"' in said
    assert train(Line, rule, max_states=100) == 40
    assert train(Line, "q_learning", max_states=10) == 40


@pytest.mark.parametrize("asked", [{"async_updates": False}, {"walkers": 4}], ids=str)
def test_games_whose_states_are_keys(asked):
    said = refusal(scrambled(MODEL), **asked)
    assert not any(wrong in said for wrong in WRONG_FOR_KEYS), said
    assert "Number the states (n_states= of CompiledSimulator.game), " in said
    assert "let one rank learn alone (async_updates=True, no walkers= or partition=)" in said
    assert train(scrambled(MODEL)) == 40
    sharded = {"placement": "sharded"} if "walkers" in asked else {}
    assert train(MODEL, **asked | sharded | {"async_updates": False}) == 40
    assert train(scrambled(MODEL), "q_learning", **asked) == 40


def test_environments_that_are_stepped():
    said = refusal(Line, async_updates=False, placement="sharded")
    assert 'Write async_updates=True or placement="replicated"' in said
    assert train(Line, placement="sharded") == 40
    assert train(Line, async_updates=False, placement="replicated") == 40


@pytest.mark.parametrize(
    "settings",
    [{"algorithm": "dyna_q"}, {"initial_value": 1.0}, {"behavior": np.full((36, 2), 0.5)}],
    ids=["rule", "initial_value", "behavior"],
)
def test_what_needs_numbers_as_states_says_how_to_have_them(settings):
    said = refusal(Line, **{"algorithm": "q_learning"} | settings, max_states=10)
    assert "or let there be fewer observations than max_states allows" in said
    assert "n_states= of CompiledSimulator.game" in refusal(
        scrambled(MODEL), **{"algorithm": "q_learning"} | settings
    )
