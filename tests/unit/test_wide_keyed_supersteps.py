"""Keys of 128 bits in supersteps: the table of numbered states, and of keys of 64 bits, whoever owns them."""

from dataclasses import replace
from functools import cache, partial

import numba
import numpy as np
import pytest
from keyed_games import (
    Corridor,
    behind,
    reset_wide_corridor,
    scrambled,
    scrambled_wide,
    step_wide_corridor,
    taxi,
    wide_corridor,
    wide_keys_of,
    wide_states_of,
)
from own_rules import DoubleQ, registered
from superstep_runs import KEY, learned, play, problem_of, shares_of, whole
from test_keyed_supersteps import SHARDED, fail_at
from test_keyed_supersteps import walk as walk_along
from test_supersteps import garnet, settings_of

from dist_classicrl import CompiledSimulator, DistAsyncQLearning
from dist_classicrl.environments.state_keys import as_number, as_numbers, as_stored, ascending, from_numbers
from dist_classicrl.errors import (
    ActionMaskError,
    RewardError,
    SettingsError,
    StateLimitError,
)
from dist_classicrl.learning.learner import Stream
from dist_classicrl.rules import NStepSarsa

# Each kernel here takes long to compile.
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fast_ramp")]

STEPS = 100_000
MODELS = {"taxi": taxi, "forbidden actions": partial(garnet, forbidden=True)}


@cache
def wide_once(name):
    """Return a model as a game that tells what is legal, also where all is: both are compiled once then."""
    model = MODELS[name]()
    return scrambled_wide(replace(model, action_mask=model.legal_pairs()))


@pytest.mark.parametrize("name", ["taxi", "forbidden actions"])
def test_the_values_are_those_of_numbered_states(name):
    settings = settings_of()
    numbered = learned(problem_of(MODELS[name](), settings), STEPS)
    problem = problem_of(wide_once(name), settings)
    one = learned(problem, STEPS)
    n_actions, states = problem.shape.n_actions, wide_states_of(as_stored(one.keys))
    for found, known in ((one.values, numbered.values), (one.counts, numbered.counts)):
        np.testing.assert_array_equal(found.reshape(-1, n_actions), known.reshape(-1, n_actions)[states])
    assert one.counts.sum() == STEPS and one.totals == numbered.totals
    assert as_numbers(one.keys) == sorted(set(as_numbers(one.keys)))
    for ranks in (2, 5):
        assert learned(problem, STEPS, ranks) == one
        assert learned(problem, STEPS, ranks, in_memory=True) == one
    cuts = ((256, 3, "hash"), (51_456, 1, "hash"), (90_112, 2, "hash"))
    assert learned(problem, STEPS, 2, cuts=cuts) == one


@pytest.mark.parametrize(
    ("algorithm", "high"),
    [(DoubleQ(), 0), (NStepSarsa(n=3), 0x0123456789ABCDEF)],
    ids=["two tables", "steps that wait"],
)
def test_keys_of_64_bits_behind_one_half_learn_the_same(algorithm, high):
    with registered():
        # What float32 is rounded to is drawn by the names of entries, which are hashes of pairs with a half.
        dtype = "float64" if high else "float32"
        settings = settings_of(algorithm=algorithm, dtype=dtype)
        narrow, problem = (problem_of(env, settings) for env in (scrambled(garnet()), behind(garnet(), high)))
        truth, one = learned(narrow, STEPS), learned(problem, STEPS)
        unsigned = truth.keys.view(np.uint64)
        order, n_actions = np.argsort(unsigned), problem.shape.n_actions
        assert as_numbers(one.keys) == [high << 64 | low for low in unsigned[order].tolist()]
        for found, known in ((one.values, truth.values), (one.counts, truth.counts)):
            tables = problem.shape.n_tables, -1, n_actions
            np.testing.assert_array_equal(found.reshape(tables), known.reshape(tables)[:, order])
        assert one.totals == truth.totals
        assert learned(problem, STEPS, 3, cuts=((25_600, 2, "hash"),)) == one
        assert learned(problem, STEPS, 2, in_memory=True) == one


def test_two_tables_and_steps_that_wait_with_both_halves():
    with registered():
        for algorithm in (DoubleQ(), NStepSarsa(n=3)):
            problem = problem_of(wide_once("taxi"), settings_of(algorithm=algorithm, dtype="float32"))
            one = learned(problem, 30_000, 2)
            assert learned(problem, 30_000, 3, cuts=((10_240, 2, "hash"),)) == one


NO_ONES = wide_keys_of([85])[0]
NO_HIGH, NO_LOW = np.uint64(NO_ONES >> 64), np.uint64(NO_ONES & (1 << 64) - 1)


@numba.njit
def by_a_bit_of_each(key):
    high, low = key
    return np.int64((high ^ low) >> np.uint64(3) & np.uint64(1))


@numba.njit
def all_but_one(key):
    return -1 if key[0] == NO_HIGH and key[1] == NO_LOW else by_a_bit_of_each(key)


@numba.njit
def by_number(key):
    return key >> 3 & 1


def test_a_partition_of_the_users_is_given_pairs_and_told_where_it_is_wrong():
    problem = problem_of(wide_once("forbidden actions"), settings_of())
    one = learned(problem, STEPS)
    assert learned(problem, STEPS, 2, by_a_bit_of_each, cuts=((51_456, 2, "hash"),)) == one
    shares = shares_of(problem, 2, all_but_one)
    with pytest.raises(SettingsError, match=f"partition gives the key {NO_ONES} to -1, which is no rank"):
        play(shares, Stream(KEY, 0), STEPS, problem.rates)
    with pytest.raises(
        SettingsError, match=r"partition must take a state of the type UniTuple\(uint64,? x? ?2"
    ):
        shares_of(problem, 2, by_number)
    with pytest.raises(SettingsError, match="partition='range' cannot divide"):
        shares_of(problem, 2, "range")


walk = partial(walk_along, wide_corridor)


def test_keys_that_share_a_half_are_divided_as_well():
    shares = shares_of(walk(), 4, walkers=64)
    for keys in ([n << 64 | 7 for n in range(4000)], [7 << 64 | n for n in range(4000)]):
        owners = np.array([share._is_own(from_numbers(keys, share._game.keys)) for share in shares])
        assert (owners.sum(axis=0) == 1).all() and owners.sum(axis=1).min() > 800


def test_alone_the_superstep_after_the_limit_is_the_last():
    problem = walk(max_states=300)
    shares, stream = shares_of(problem, 1, walkers=64), Stream(KEY, 0, last=10_000_000)
    with pytest.raises(StateLimitError, match="more than 300 states, and max_states=300 allows no more"):
        while True:
            shares[0].learn_alone(stream, problem.rates, stream.used + 1)
            shares[0].check()
    values, _, keys = whole(problem, shares)
    assert 300 < keys.size < 300 + 3 * 64
    unlimited = learned(walk(), stream.used, walkers=64)
    np.testing.assert_array_equal(unlimited.keys, keys)
    np.testing.assert_array_equal(unlimited.values, values)


# What a game does wrong


@numba.njit
def legal_below(data, key, action):
    return key[1] < np.uint64(100) or key[1] > np.uint64(1 << 50)


@numba.njit
def step_to_infinity(data, memory, key, action, random):
    after, reward, terminated = step_wide_corridor(data, memory, key, action, random)
    is_far = np.uint64(90) < key[1] < np.uint64(1 << 50)
    return after, np.inf if is_far else reward, terminated


def changed(step=step_wide_corridor, **legal):
    functions = {"reset": reset_wide_corridor, "step": step, **legal}
    shape = {"n_actions": 2, "memory_size": 1, "keyed": True, "max_episode_steps": 500}
    return CompiledSimulator.game("changed", data=Corridor(1 << 40, 2), **shape, **functions)


def test_what_a_game_does_wrong_is_told_with_the_key():
    settings = settings_of(epsilon=1.0)
    stuck = problem_of(changed(legal=legal_below), settings)
    with pytest.raises(ActionMaskError, match=f"came to the state ({7 << 64 | 100}|{7 << 64 | 101}), where"):
        play(shares_of(stuck, 2, walkers=64), Stream(KEY, 0), 1_000_000, stuck.rates)
    wrong = problem_of(changed(step_to_infinity), settings)
    state = "|".join(str(7 << 64 | n) for n in range(91, 95))
    with pytest.raises(RewardError, match=f"step in state ({state}) .* gave the reward inf"):
        play(shares_of(wrong, 2, walkers=64), Stream(KEY, 0), 1_000_000, wrong.rates)


# Agents


@pytest.mark.parametrize("algorithm", ["q_learning", "double_q_learning"])
def test_a_process_alone_goes_on_where_it_stopped(tmp_path, anew, algorithm):
    settings = {"seed": 3, "async_updates": False, "algorithm": algorithm}
    with registered():
        truth = DistAsyncQLearning(**settings)
        truth.train(wide_once("taxi"), total_steps=100_000, **SHARDED)
        assert list(truth.q_table) == sorted(truth.q_table)
        first = DistAsyncQLearning(**settings)
        kept = {"checkpoint_dir": tmp_path, "checkpoint_interval": 40_000, **SHARDED}
        with pytest.raises(ZeroDivisionError):
            first.train(wide_once("taxi"), total_steps=100_000, progress=fail_at(60_000), **kept)
        anew()
        again = DistAsyncQLearning(**settings)
        result = again.train(wide_once("taxi"), total_steps=100_000, **kept)
        assert result.resumed_from is not None
        for found, known in ((again.q_table, truth.q_table), (again.visits, truth.visits)):
            np.testing.assert_array_equal(found.states, known.states)
            np.testing.assert_array_equal(found.array, known.array)


def test_what_was_learned_in_turns_goes_on_in_supersteps_and_back():
    env = wide_once("forbidden actions")
    agent = DistAsyncQLearning(seed=3, discount_factor=0.9)
    for steps, is_async in ((50_000, True), (100_000, False), (150_000, True)):
        agent._state.change(async_updates=is_async)
        agent.train(env, total_steps=50_000, **({} if is_async else SHARDED))
        assert agent.visits.array.sum() == steps
        assert is_async or list(agent.q_table) == sorted(agent.q_table)
    legal = garnet(forbidden=True).action_mask[wide_states_of(agent.q_table.states)]
    assert (agent.visits.array[~legal] == 0).all() and legal.sum() == 4 * len(agent.q_table)
    keys = from_numbers(list(agent.q_table), agent._state.keyed.keys.dtype)
    assert as_number(ascending(keys)[0]) == min(agent.q_table)
