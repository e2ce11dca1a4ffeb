"""Optimal values, and those of a policy, by several ranks together."""

from functools import partial

import function_models
import numpy as np
import pytest

from dist_classicrl import TabularMDP
from dist_classicrl.errors import DivergenceError, RankMismatchError, RemoteRankError, SettingsError
from dist_classicrl.evaluation.over_ranks import policy_value_over_ranks, solve_over_ranks


@pytest.mark.parametrize(
    "tables", [pytest.param(True, marks=pytest.mark.core), False], ids=["arrays", "function"]
)
def test_values_have_the_same_bits_at_any_number_of_ranks(world, alone, tables):
    if not tables and world.size != 2:
        pytest.skip("each process compiles the function's loops, for seconds: done on 2 ranks")
    stored, model = (
        TabularMDP.from_function(function_models.sell, **function_models.STOCKED, tables=each)
        for each in (True, tables)
    )
    found = solve_over_ranks(model, 0.9, world, timeout=60)
    expected = stored.solve(0.9)
    np.testing.assert_allclose(found.v, expected.v, atol=1e-9)
    np.testing.assert_allclose(stored.policy_value(found.policy, 0.9), expected.v, atol=1e-8)
    assert found.residual < 1e-10 and "6 states" in repr(found)
    np.testing.assert_array_equal(found.v, solve_over_ranks(model, 0.9, alone).v)


@pytest.mark.core
def test_ranks_hear_of_another_model_and_of_an_error(world):
    models = [TabularMDP.garnet(9, 2, 2, seed=seed) for seed in (0, 1)]
    is_last = world.rank == world.size - 1
    if world.size > 1:
        with pytest.raises(RankMismatchError, match=f"Rank {world.size - 1} was given another model"):
            solve_over_ranks(models[int(is_last)], 0.9, world, timeout=60)
        with pytest.raises(SettingsError if is_last else RemoteRankError, match="must be below 1"):
            solve_over_ranks(models[0], 1.0 if is_last else 0.9, world, timeout=60)
    found = solve_over_ranks(models[0], 0.9, world, timeout=60)
    np.testing.assert_allclose(found.v, models[0].solve(0.9).v, atol=1e-9)


def masked():
    """Return a model of seven states with action 2 in even ones alone and none in the last, and a policy."""
    drawn = np.random.default_rng(4)
    transition, reward = drawn.random((7, 3, 7)), drawn.normal(size=(7, 3, 7))
    transition /= transition.sum(axis=2, keepdims=True)
    mask = np.ones((7, 3), bool)
    mask[1::2, 2], mask[-1] = False, False
    ends = [False] * 6 + [True]
    start_prob = np.full(7, 1 / 6) * ~np.array(ends)
    model = TabularMDP.from_arrays(
        transition, reward, start_prob=start_prob, terminated=ends, action_mask=mask
    )
    return model, np.array([2, 0, 2, 1, 0, 1, 9])


@pytest.mark.core
def test_a_policy_has_the_same_bits_at_any_number_of_ranks(world, alone):
    model, actions = masked()
    found = policy_value_over_ranks(model, actions, 0.9, world, timeout=60)
    np.testing.assert_allclose(found, model.policy_value(actions, 0.9), atol=1e-9)
    assert found[-1] == 0.0 and found.any()
    np.testing.assert_array_equal(found, policy_value_over_ranks(model, actions, 0.9, alone))
    asked = []

    def policy(states):
        asked.extend(states.tolist())
        return actions[states]

    np.testing.assert_array_equal(found, policy_value_over_ranks(model, policy, 0.9, world, timeout=60))
    assert sorted(sum(world.allgather(asked), [])) == list(range(7))
    np.testing.assert_array_equal(actions, masked()[1])


def test_a_policy_of_a_model_that_a_function_gives(world):
    if world.size != 2:
        pytest.skip("each process compiles the function's loops, for seconds: done on 2 ranks")
    stored, model = (
        TabularMDP.from_function(function_models.sell, **function_models.STOCKED, tables=each)
        for each in (True, False)
    )
    actions = stored.legal_pairs()[:, ::-1].argmax(axis=1)  # the last that is legal, counted from the end
    actions = model.n_actions - 1 - actions
    found = policy_value_over_ranks(model, actions, 0.9, world, timeout=60)
    np.testing.assert_allclose(found, stored.policy_value(actions, 0.9), atol=1e-9)
    assert found.any()


@pytest.mark.core
def test_ranks_hear_what_is_wrong_with_a_policy(world):
    model, actions = masked()
    last = world.rank == world.size - 1
    kind = SettingsError if last or world.size == 1 else RemoteRankError

    def refused(pattern, policy, error=kind, discount=0.9):
        with pytest.raises(error, match=pattern):
            policy_value_over_ranks(model, policy, discount, world, timeout=60)

    def changed(action):  # in state 5, of the last rank's share
        return np.array([*actions[:5], action, 9])

    refused(r"takes action 2 in state 5, which is illegal there; legal are \[0, 1\]", changed(2))
    refused("takes action 3 in state 5; actions are 0 to 2", changed(3))
    refused("takes action -1 in state 5; actions are 0 to 2", changed(-1))
    refused("must be an action for each, int", changed(0) if not last else lambda states: states / 2)
    refused("for 3 states|for 4 states|for 7 states", lambda states: actions[states][: 2 if last else None])
    refused(r"the policy has shape \(6,\) and dtype int64", actions[:6], SettingsError)
    refused(r"the policy has shape \(7,\) and dtype bool", actions > 0, SettingsError)
    refused(r"must be below 1.*model\.policy_value\(policy, 1\.0\)", actions, SettingsError, 1.0)
    if world.size > 1:
        with pytest.raises(RankMismatchError, match=r"another model or discount_factor in policy_value"):
            policy_value_over_ranks(model, actions, 0.8 if last else 0.9, world, timeout=60)


def test_a_policy_may_write_to_the_states_that_it_is_given(world):
    model, actions = masked()

    def policy(states):
        states -= 1
        return actions[states + 1]

    found = policy_value_over_ranks(model, policy, 0.9, world, timeout=60)
    np.testing.assert_allclose(found, model.policy_value(actions, 0.9), atol=1e-9)


@pytest.mark.core
def test_values_beyond_all_numbers_and_what_is_no_model_are_told_on_all_ranks(world):
    transition, reward = np.zeros((3, 1, 3)), np.zeros((3, 1, 3))
    transition[0, 0, 0] = transition[1, 0, 1] = 1.0
    transition[2, 0, :2] = 0.5
    reward[0], reward[1] = 1e307, -1e307
    model = TabularMDP.from_arrays(transition, reward, start_prob=[0, 0, 1.0])
    for call in (partial(solve_over_ranks, model), partial(policy_value_over_ranks, model, [0, 0, 0])):
        with pytest.raises(DivergenceError, match="value of state 0 is beyond the numbers of float64"):
            call(0.99, world, timeout=60)
    with pytest.raises(SettingsError, match="model must be a TabularMDP or a FunctionMDP, got 'Taxi'"):
        policy_value_over_ranks("Taxi", [0], 0.9, world, timeout=60)
