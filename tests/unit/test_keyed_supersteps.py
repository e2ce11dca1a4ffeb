"""Keys as states in supersteps: the table of numbered states, whoever owns which, and however it grows."""

from functools import cache, partial
from typing import NamedTuple

import numba
import numpy as np
import pytest
from keyed_games import corridor, keys_of, reset_corridor, scrambled, states_of, taxi, wide_corridor
from own_rules import DoubleQ, registered
from superstep_runs import KEY, learned, play, problem_of, shares_of, whole
from test_supersteps import garnet, settings_of

from dist_classicrl import CompiledSimulator, DistAsyncQLearning
from dist_classicrl.environments.keyed import legal_actions
from dist_classicrl.errors import (
    ActionMaskError,
    CheckpointError,
    RewardError,
    SettingsError,
    StateLimitError,
)
from dist_classicrl.learning import keyed_table
from dist_classicrl.learning.learner import Stream
from dist_classicrl.learning.supersteps.crew import WHO, joined
from dist_classicrl.tables.keys import empty_slots

# Each kernel here takes long to compile.
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fast_ramp")]

STEPS = 100_000


NO_ONES = keys_of([100])[0]


@numba.njit
def by_third_bit(key):
    return -1 if key == NO_ONES else np.int64(key >> 3 & 1)


MODELS = {"taxi": taxi, "forbidden actions": partial(garnet, forbidden=True)}
scrambled_once = cache(lambda name: scrambled(MODELS[name]()))


@pytest.mark.parametrize("name", ["taxi", "forbidden actions"])
def test_the_values_are_those_of_numbered_states(name):
    settings = settings_of()
    numbered = learned(problem_of(MODELS[name](), settings), STEPS)
    problem = problem_of(scrambled_once(name), settings)
    one = learned(problem, STEPS)
    n_actions, states = problem.shape.n_actions, states_of(one.keys)
    for found, known in ((one.values, numbered.values), (one.counts, numbered.counts)):
        np.testing.assert_array_equal(found.reshape(-1, n_actions), known.reshape(-1, n_actions)[states])
    assert one.counts.sum() == STEPS and one.totals == numbered.totals
    assert (np.diff(one.keys.astype(object)) > 0).all()
    for ranks, partition in ((2, "hash"), (5, "hash"), (8, "hash")):
        assert learned(problem, STEPS, ranks, partition) == one


def test_a_partition_of_the_users_learns_the_same_table_and_is_told_where_it_is_wrong():
    problem = problem_of(scrambled_once("forbidden actions"), settings_of())
    one = learned(problem, STEPS)
    assert learned(problem, STEPS, 2, by_third_bit) == one
    larger = problem_of(scrambled(garnet(forbidden=True, n_states=101)), settings_of())
    shares = shares_of(larger, 2, by_third_bit)
    with pytest.raises(SettingsError, match=f"partition gives the key {NO_ONES} to -1, which is no rank"):
        play(shares, Stream(KEY, 0), STEPS, larger.rates)
    cuts = ((256, 3, "hash"), (51_456, 1, "hash"), (90_112, 2, by_third_bit))
    assert learned(problem, STEPS, 2, cuts=cuts) == one


def test_two_tables_of_a_rule():
    with registered():
        problem = problem_of(scrambled_once("taxi"), settings_of(algorithm=DoubleQ(), dtype="float32"))
        one = learned(problem, 30_000, 2)
        assert one.values.dtype == np.float32
        assert (one.counts.reshape(2, -1).sum(axis=1) > 10_000).all()
        assert learned(problem, 30_000, 3, cuts=((10_240, 2, "hash"),)) == one


def walk(corridor=corridor, **settings):
    return problem_of(corridor(limit=5000, stride=2), settings_of(epsilon=1.0, **settings))


both_kinds = pytest.mark.parametrize("corridor", [corridor, wide_corridor], ids=["64 bits", "128 bits"])


@both_kinds
def test_the_table_grows_alone_and_on_several_ranks(corridor, monkeypatch):
    problem = walk(corridor)
    with monkeypatch.context() as patch:
        patch.setattr(keyed_table, "empty_slots", lambda n, kind: empty_slots(1 << 20, kind))
        one = learned(problem, 1_000_000, walkers=256)
    assert one.keys.size > 1500
    for ranks in (1, 3):
        assert learned(problem, 1_000_000, ranks, walkers=256, cuts=((500_224, 2, "hash"),)) == one
    assert learned(problem, 1_000_000, 2, walkers=256, in_memory=True) == one
    assert learned(walk(), 1_000_000, walkers=256).keys.size == one.keys.size


@both_kinds
def test_each_share_has_its_part_of_the_states(corridor):
    problem = walk(corridor)
    shares = shares_of(problem, 3, walkers=64)
    play(shares, Stream(KEY, 0), 300_032, problem.rates)
    sizes = [share.n_known for share in shares]
    assert min(sizes) > 0.8 * np.mean(sizes) and sum(sizes) == whole(problem, shares)[2].size


def test_alone_the_superstep_after_the_limit_is_the_last():
    problem = walk(max_states=300)
    ends, tables = [], []
    for least in (1, 1 << 20):
        shares, stream = shares_of(problem, 1, walkers=64), Stream(KEY, 0, last=10_000_000)
        with pytest.raises(StateLimitError, match="more than 300 states, and max_states=300 allows no more"):
            while True:
                shares[0].learn_alone(stream, problem.rates, stream.used + least)
                shares[0].check()
        ends.append(stream.used)
        tables.append(whole(problem, shares))
    assert ends[0] == ends[1] and 300 < tables[0][2].size < 300 + 3 * 64
    for one, other in zip(*tables, strict=True):
        np.testing.assert_array_equal(one, other)
    unlimited = learned(walk(), ends[0], walkers=64)
    np.testing.assert_array_equal(unlimited.keys, tables[0][2])


def test_ranks_that_share_memory_end_after_the_same_superstep():
    problem = walk(max_states=300)
    alone, stream = shares_of(problem, 1, walkers=64), Stream(KEY, 0, last=10_000_000)
    with pytest.raises(StateLimitError):
        alone[0].learn_alone(stream, problem.rates, 10_000_000)
    shares = shares_of(problem, 3, walkers=64, in_memory=True)
    streams = [Stream(KEY, 0, last=10_000_000) for _ in shares]
    going_on = [0, 1, 2]
    while going_on:
        going_on = [
            n for n in going_on if not shares[n].play_together(streams[n], problem.rates, 10_000_000, 1)
        ]
    assert {each.used for each in streams} == {stream.used} and all(share.is_over for share in shares)
    for one, other in zip(whole(problem, shares), whole(problem, alone), strict=True):
        np.testing.assert_array_equal(one, other)


def test_memory_is_a_limit_of_each_share(monkeypatch):
    monkeypatch.setattr(keyed_table, "memory_left", lambda: 1 << 18)
    monkeypatch.setattr(keyed_table, "_FEWEST", 64)
    shares = shares_of(walk(), 2, walkers=64)
    with pytest.raises(StateLimitError, match="a state takes up to .* for 2 owners of states"):
        play(shares, Stream(KEY, 0), 2_000_000, walk().rates)


class Pitfalls(NamedTuple):
    """A walk that gets stuck somewhere, and is worth more than any number somewhere else."""

    stuck_from: int
    infinite_from: int


@numba.njit
def legal_below(data, key, action):
    return key < data.stuck_from


@numba.njit
def step_beyond(data, memory, key, action, random):
    memory[0] += 1
    further = key + (2 if action == 1 else -1)
    return further, np.inf if key > data.infinite_from else 0.0, False


def game(stuck_from=1 << 40, infinite_from=1 << 40):
    data = Pitfalls(stuck_from, infinite_from)
    functions = reset_corridor, step_beyond, legal_below
    return CompiledSimulator.game(
        "other walk", None, 2, data, *functions, memory_size=1, keyed=True, max_episode_steps=500
    )


def test_what_a_game_does_wrong_is_told_with_the_key():
    settings = settings_of(epsilon=1.0)
    stuck = problem_of(game(stuck_from=100), settings)
    with pytest.raises(ActionMaskError, match="came to the state 10[01], where its function legal"):
        play(shares_of(stuck, 2, walkers=64), Stream(KEY, 0), 1_000_000, stuck.rates)
    wrong = problem_of(game(infinite_from=90), settings)
    with pytest.raises(RewardError, match="step in state 9[1-9] .* gave the reward inf"):
        play(shares_of(wrong, 2, walkers=64), Stream(KEY, 0), 1_000_000, wrong.rates)


def test_partitions_that_cannot_be_are_refused():
    with pytest.raises(SettingsError, match="partition='range' cannot divide"):
        shares_of(walk(), 2, "range")
    with pytest.raises(SettingsError, match="partition must be"):
        shares_of(walk(), 2, "blocks")


@both_kinds
def test_walkers_that_cannot_be_are_refused(corridor):
    problem = walk(corridor)
    shares = shares_of(problem, 2, walkers=64)
    play(shares, Stream(KEY, 0), 4096, problem.rates)
    state = joined(share.state() for share in shares)
    for word, wrong in ((WHO, 5), (1, 3), (0, 1 << 39)):
        walkers = state["walkers"].copy()
        walkers[7, word] = wrong
        with pytest.raises(CheckpointError, match="walkers|position"):
            shares_of(problem, 1, walkers=64)[0].restore({**state, "walkers": walkers})


# Agents


SHARDED = {"placement": "sharded", "walkers": 64}


def test_a_process_alone_goes_on_where_it_stopped(tmp_path, anew):
    truth = DistAsyncQLearning(seed=3, async_updates=False)
    truth.train(scrambled_once("taxi"), total_steps=100_000, **SHARDED)
    assert (np.diff(truth.q_table.states) > 0).all()
    first = DistAsyncQLearning(seed=3, async_updates=False)
    kept = {"checkpoint_dir": tmp_path, "checkpoint_interval": 40_000, **SHARDED}
    with pytest.raises(ZeroDivisionError):
        first.train(scrambled_once("taxi"), total_steps=100_000, progress=fail_at(60_000), **kept)
    anew()
    again = DistAsyncQLearning(seed=3, async_updates=False)
    result = again.train(scrambled_once("taxi"), total_steps=100_000, **kept)
    assert result.resumed_from is not None
    for found, known in ((again.q_table, truth.q_table), (again.visits, truth.visits)):
        np.testing.assert_array_equal(found.states, known.states)
        np.testing.assert_array_equal(found.array, known.array)


@numba.njit
def of_one_rank(key):
    return 0


@pytest.mark.parametrize(
    ("asked", "same"),
    [({"walkers": 64}, SHARDED), (SHARDED, SHARDED), ({"partition": of_one_rank}, {})],
    ids=["walkers", "sharded", "partition"],
)
def test_who_says_something_of_walkers_has_them_on_one_rank_too(asked, same):
    env, tables = scrambled_once("taxi"), []
    for async_updates, words in ((True, asked), (False, same)):
        agent = DistAsyncQLearning(seed=3, async_updates=async_updates)
        agent.train(env, total_steps=50_000, **words)
        tables.append(agent.q_table)
    np.testing.assert_array_equal(tables[0].states, tables[1].states)
    np.testing.assert_array_equal(tables[0].array, tables[1].array)


def test_copies_that_know_no_walkers_are_asked_for_none():
    agent = DistAsyncQLearning(seed=3)
    with pytest.raises(SettingsError, match="walkers=64 is for tables whose rows are divided"):
        agent.train(scrambled_once("taxi"), total_steps=1_000, placement="replicated", walkers=64)


def fail_at(steps):
    def look(progress):
        if progress.steps >= steps:
            raise ZeroDivisionError

    return look


def test_after_the_limit_it_goes_on_with_more(tmp_path):
    agent = DistAsyncQLearning(seed=5, epsilon=1.0, max_states=100, async_updates=False)
    with pytest.raises(StateLimitError, match="more than 100 states"):
        agent.train(corridor(stride=2), total_steps=1_000_000, checkpoint_dir=tmp_path, **SHARDED)
    assert 100 < len(agent.q_table) < 300 and agent.visits.array.sum() == agent.steps > 0
    saved = DistAsyncQLearning.load_model(tmp_path)
    np.testing.assert_array_equal(saved.q_table.array, agent.q_table.array)
    agent.max_states, known = None, len(agent.q_table)
    agent.train(corridor(stride=2), total_steps=500_000, **SHARDED)
    assert len(agent.q_table) > known


def test_what_was_learned_in_turns_goes_on_in_supersteps_and_back():
    env = scrambled_once("forbidden actions")
    agent = DistAsyncQLearning(seed=3, discount_factor=0.9)
    for steps, is_async in ((50_000, True), (100_000, False), (150_000, True)):
        agent._state.change(async_updates=is_async)
        agent.train(env, total_steps=50_000, **({} if is_async else SHARDED))
        assert agent.visits.array.sum() == steps
        assert is_async or (np.diff(agent.q_table.states.astype(object)) > 0).all()
    legal = legal_actions(env, agent.q_table.states)
    assert (agent.visits.array[~legal] == 0).all() and legal.sum() == 4 * len(agent.q_table)
    np.testing.assert_array_equal(agent._state.legal, legal)
