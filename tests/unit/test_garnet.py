"""Garnets: shape, seeds, and the distributions that they are drawn from."""

import numpy as np
import pytest

from dist_classicrl.environments.model import TabularMDP
from dist_classicrl.errors import RewardError, SettingsError


def test_each_pair_leads_to_distinct_states_with_one_reward():
    model = TabularMDP.garnet(7, 3, 4, seed=5)
    assert (model.n_states, model.n_actions, model.max_episode_steps) == (7, 3, 100)
    np.testing.assert_array_equal(model.outcome_ptr, np.arange(0, 85, 4))
    follow = model.outcome_next.reshape(21, 4)
    assert all(len(set(row)) == 4 for row in follow.tolist())
    reward = model.outcome_reward.reshape(21, 4)
    assert (reward == reward[:, :1]).all() and len(np.unique(reward)) == 21
    assert not model.outcome_terminated.any() and model.action_mask is None
    np.testing.assert_allclose(model.start_prob, 1 / 7)


def test_branching_over_all_states():
    model = TabularMDP.garnet(5, 2, 5, seed=0)
    np.testing.assert_array_equal(np.sort(model.outcome_next.reshape(10, 5)), np.tile(np.arange(5), (10, 1)))
    np.testing.assert_array_equal(TabularMDP.garnet(5, 2, 1, seed=0).outcome_prob, np.ones(10))


def test_seed_decides():
    assert TabularMDP.garnet(20, 2, 3, seed=1) == TabularMDP.garnet(20, 2, 3, seed=1)
    assert TabularMDP.garnet(20, 2, 3, seed=1) != TabularMDP.garnet(20, 2, 3, seed=2)


def test_small_whole_numbers_of_numpy_are_numbers_like_others():
    small = TabularMDP.garnet(
        np.uint8(200), np.uint8(3), np.uint8(2), seed=np.int8(5), terminal_states=np.int8(9)
    )
    assert small == TabularMDP.garnet(200, 3, 2, seed=5, terminal_states=9)


def test_every_set_of_next_states_is_equally_likely():
    # 10 sets of 2 out of 5 states: each count is binomial(20000, 0.1), standard deviation 42.
    follow = np.sort(TabularMDP.garnet(5, 4000, 2, seed=3).outcome_next.reshape(-1, 2), axis=1)
    counts = np.bincount(follow[:, 0] * 5 + follow[:, 1], minlength=25)
    assert np.abs(counts[counts > 0] - 2000).max() < 4 * 42 and (counts > 0).sum() == 10


def test_probabilities_are_the_pieces_between_uniform_cuts():
    # Three pieces of the unit interval are Dirichlet(1, 1, 1): mean 1/3, variance 1/18.
    prob = TabularMDP.garnet(50, 200, 3, seed=4).outcome_prob.reshape(-1, 3)
    np.testing.assert_allclose(prob.mean(axis=0), 1 / 3, atol=4 * np.sqrt(1 / 18 / 10_000))
    np.testing.assert_allclose(prob.var(axis=0), 1 / 18, rtol=0.05)


def test_rewards_are_normal():
    reward = TabularMDP.garnet(100, 100, 1, seed=6, reward_std=3.0).outcome_reward
    assert abs(reward.mean()) < 4 * 3.0 / 100
    assert reward.std() == pytest.approx(3.0, rel=0.04)
    assert (np.abs(reward) < 3.0).mean() == pytest.approx(0.6827, abs=0.02)


def test_terminal_states_end_the_episode_and_start_none():
    model = TabularMDP.garnet(30, 2, 4, seed=7, terminal_states=5, max_episode_steps=None)
    terminal = model.start_prob == 0
    assert terminal.sum() == 5 and model.max_episode_steps is None
    np.testing.assert_array_equal(model.outcome_terminated, terminal[model.outcome_next])
    assert model.outcome_terminated.any()
    assert not model.reachable_pairs()[terminal].any()


def test_termination_probability_ends_any_step():
    plain = TabularMDP.garnet(30, 2, 4, seed=8)
    model = TabularMDP.garnet(30, 2, 4, seed=8, termination_probability=0.2)
    prob, ends = model.outcome_prob.reshape(60, 5), model.outcome_terminated.reshape(60, 5)
    np.testing.assert_allclose((prob * ends).sum(axis=1), 0.2, rtol=1e-12)
    np.testing.assert_allclose(prob[:, :4], 0.8 * plain.outcome_prob.reshape(60, 4), rtol=1e-12)
    np.testing.assert_array_equal(model.outcome_reward.reshape(60, 5)[:, 4], plain.outcome_reward[::4])
    # Ending with probability p is discounting by 1 - p.
    np.testing.assert_allclose(model.solve(1.0).v, plain.solve(0.8).v, atol=1e-8)


def test_a_million_entries():
    model = TabularMDP.garnet(100_000, 10, 2, seed=9)
    assert model.outcome_prob.size == 2_000_000
    follow = model.outcome_next.reshape(-1, 2)
    assert (follow[:, 0] != follow[:, 1]).all()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "changes, error, message",
    [
        (dict(n_states=0), SettingsError, "n_states is 0"),
        (dict(n_actions=1.0), SettingsError, "n_actions is 1.0"),
        (dict(seed=None), SettingsError, "seed is None"),
        (dict(seed=-1), SettingsError, "seed is -1"),
        (dict(seed="1"), SettingsError, "seed is '1'"),
        (dict(branching=0), SettingsError, "branching is 0"),
        (dict(branching=6), SettingsError, "branching is 6.* at most 5"),
        (dict(terminal_states=5), SettingsError, "terminal_states is 5.* at most 4"),
        (dict(terminal_states=-1), SettingsError, "terminal_states is -1"),
        (dict(termination_probability=1.0), SettingsError, "termination_probability is 1.0"),
        (dict(termination_probability=np.nan), SettingsError, "termination_probability is nan"),
        (dict(reward_std=-1.0), SettingsError, "reward_std is -1.0"),
        (dict(n_states=2**31), SettingsError, "make 8,589,934,592 outcomes, and at most 4,294,967,296"),
        (dict(n_states=10**30), SettingsError, "outcomes, and at most 4,294,967,296"),
        (dict(reward_std=10**400), SettingsError, "reward_std is 10"),
        (dict(reward_std=np.inf), SettingsError, "reward_std is inf"),
        (dict(max_episode_steps=0), SettingsError, "max_episode_steps must be .* got 0"),
        (dict(reward_std=1.7e308), RewardError, "the reward -?inf"),
    ],
)
def test_refuses(changes, error, message):
    with pytest.raises(error, match=message):
        TabularMDP.garnet(**{**dict(n_states=5, n_actions=2, branching=2, seed=0), **changes})


def test_a_name_is_kept_as_text_as_that_of_other_models():
    assert TabularMDP.garnet(5, 2, 2, seed=0, name=np.array([1, 2])).name == "[1 2]"
