"""Environments that are stepped, in supersteps: who steps them, and who owns which rows, does not show."""

from dataclasses import replace
from functools import partial
from typing import NamedTuple

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.toy_text.cliffwalking import CliffWalkingEnv
from gymnasium.spaces import Discrete, MultiDiscrete
from rank_environments import Spread

from dist_classicrl import DistAsyncQLearning, TabularMDP
from dist_classicrl._random import stream_key
from dist_classicrl.environments.resolve import resolve
from dist_classicrl.errors import (
    CheckpointError,
    OutsideSpaceError,
    SettingsError,
    SpaceError,
    StateLimitError,
)
from dist_classicrl.learning.kinds import problem_of
from dist_classicrl.learning.learner import Stream
from dist_classicrl.learning.rates import Rates
from dist_classicrl.learning.rules.kernel import best_value, rule_function, update
from dist_classicrl.learning.supersteps.by_messages.exchanges import together
from dist_classicrl.learning.supersteps.crew import joined, totals_of
from dist_classicrl.learning.supersteps.keyed_share import in_key_order
from dist_classicrl.learning.supersteps.share import supersteps
from dist_classicrl.learning.supersteps.shares import share_of
from dist_classicrl.model import places
from dist_classicrl.rules import LearningRule, NStepSarsa
from dist_classicrl.rules.registry import register, unregister
from dist_classicrl.settings import Settings

pytestmark = pytest.mark.slow

SHARDED = {"placement": "sharded", "walkers": 64}
STEPS = 6_011  # each is answered for by messages, which takes long where all ranks are in one process


class SteppedCliff(CliffWalkingEnv):
    """CliffWalking under another class, which nothing is known of. Nothing in it is left to chance."""


class SpreadCliff(Spread, CliffWalkingEnv):
    """The same, whose observations are few of very many."""

    def __init__(self, rows=1 << 30):
        super().__init__()
        self.observation_space = MultiDiscrete([rows, 12], start=[5, 0])

    @staticmethod
    def seen(state):
        return np.array([state // 12 + 5, state % 12])


def limited(make):
    return lambda: gymnasium.wrappers.TimeLimit(make(), 50)


class Modeled(gymnasium.Env):
    """A model, stepped in Python, which tells what is legal; each step is noted in `acted`."""

    def __init__(self, model, acted):
        self.observation_space, self.action_space = Discrete(model.n_states), Discrete(model.n_actions)
        self._model, self._acted = model, acted

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._state = int(self.np_random.choice(self._model.n_states, p=self._model.start_prob))
        return self._state, self._info()

    def step(self, action):
        model, pair = self._model, self._state * self._model.n_actions + action
        self._acted[pair] += 1
        first, last = model.outcome_ptr[pair : pair + 2]
        outcome = first + self.np_random.choice(last - first, p=model.outcome_prob[first:last])
        self._state = int(model.outcome_next[outcome])
        reward, terminated = model.outcome_reward[outcome], bool(model.outcome_terminated[outcome])
        return self._state, float(reward), terminated, False, self._info()

    def _info(self):
        return {"action_mask": self._model.action_mask[self._state].astype(np.int8)}


def agent(**settings):
    chosen = {"seed": 3, "async_updates": False, "epsilon": 0.3, "discount_factor": 0.9}
    return DistAsyncQLearning(**{**chosen, **settings})


def shares_of(make, settings, ranks, partition, seed=3, at=0):
    """Return the shares of so many ranks, as an agent of this seed has them."""
    source = resolve(make, 1, None, max_states=settings.max_states)
    problem = problem_of(source, settings, Rates(settings, 1), settings.dtype)
    shares = [share_of(problem, 64, partition, rank, ranks) for rank in range(ranks)]
    for share in shares:
        share.compile()
        envs = source.another(max(1, share.n_envs)).stepped
        share.begin(envs, int(stream_key(seed, "environment", 0, at) >> np.uint64(33)), at)
    return problem, shares


def play(problem, shares, stream, until):
    """Make steps with all of these shares, as ranks do; return what is learned, and what was counted."""
    stream.last = until
    for stretch, done, size in supersteps(stream, problem.rates, 64, until):
        together([share.superstep(stretch, done, size) for share in shares])
        if shares[0].has_to_end:
            stream.used += size
            break
    together([share.settle_all() for share in shares])
    counted = totals_of(np.sum([share.counted() for share in shares], axis=0))
    if problem.source.keys is not None:
        parts = [(share.keys, *share.rows()) for share in shares]
        return *in_key_order(parts, problem.shape.n_tables, problem.shape.n_actions), counted
    tables = np.full(problem.shape.size, np.nan, problem.dtype), np.full(problem.shape.size, -1)
    for share in shares:
        for own, whole in zip(share.rows(), tables, strict=True):
            share.place(own, whole)
    return *tables, counted


def learned(make, settings, ranks, partition, steps, seed=3):
    problem, shares = shares_of(make, settings, ranks, partition, seed)
    return play(problem, shares, Stream(stream_key(seed, "alone", 0), 0), steps)


def assert_same(*all_arrays):
    for arrays in zip(*all_arrays, strict=True):
        for array in arrays[1:]:
            np.testing.assert_array_equal(array.reshape(-1), arrays[0].reshape(-1))


@pytest.fixture(scope="module")
def truth():
    """Give what compiled code learns of the cliff, and its result."""
    one = agent()
    return one, one.train(limited(CliffWalkingEnv), total_steps=STEPS, **SHARDED)


def test_the_table_is_that_of_compiled_code_whoever_steps_and_owns(truth):
    compiled, expected = truth
    one = agent()
    result = one.train(limited(SteppedCliff), total_steps=STEPS, **SHARDED)
    assert_same((one.q_table, one.visits), (compiled.q_table, compiled.visits))
    assert (result.episodes, result.mean_return) == (expected.episodes, expected.mean_return)
    assert result.episodes > 50 and one.visits.sum() == STEPS
    counted = np.array([result.episodes, result.mean_return * result.episodes])
    for ranks, partition in ((3, "hash"), (5, "hash")):
        *table, totals = learned(limited(SteppedCliff), one.settings, ranks, partition, STEPS)
        assert_same(table, (compiled.q_table, compiled.visits))
        np.testing.assert_allclose(totals[:2], counted, rtol=1e-12)


def test_steps_that_wait_are_learned_as_in_compiled_code():
    compiled = agent(algorithm=NStepSarsa(n=3))
    compiled.train(limited(CliffWalkingEnv), total_steps=STEPS, **SHARDED)
    assert STEPS - 3 * 64 <= compiled.visits.sum() < STEPS
    for make, ranks in ((SteppedCliff, 2), (SteppedCliff, 5), (SpreadCliff, 3)):
        *table, _ = learned(limited(make), compiled.settings, ranks, "hash", STEPS)
        states = table.pop(0) if make is SpreadCliff else slice(None)
        assert_same(table, (compiled.q_table[states], compiled.visits[states]))


def test_where_there_are_too_many_observations_they_are_keys(truth):
    compiled, _ = truth
    keyed = agent(async_updates=True)
    keyed.train(limited(SpreadCliff), total_steps=STEPS, walkers=64)
    states = keyed.q_table.states
    assert (np.diff(states) > 0).all() and len(states) == compiled.visits.any(axis=1).sum()
    assert_same(
        (keyed.q_table.array, keyed.visits.array), (compiled.q_table[states], compiled.visits[states])
    )
    table = learned(limited(SpreadCliff), keyed.settings, 3, "hash", STEPS)
    assert_same(table[:3], (states, keyed.q_table.array, keyed.visits.array))

    known = [SpreadCliff.seen(state) for state in states.tolist()]
    np.testing.assert_array_equal(keyed.predict(np.array(known)), keyed.q_table.array.argmax(axis=1))
    np.testing.assert_array_equal(keyed.action_values(known[4]), compiled.q_table[states[4]])
    assert keyed.policy(known[4]) == keyed.predict(known[4])
    assert keyed.action_values(np.array([1 << 20, 3])).tolist() == [0.0] * 4
    assert keyed.policy.observation_of(4) == known[4].tolist()
    with pytest.raises(OutsideSpaceError, match="MultiDiscrete"):
        keyed.predict(np.array([0, 0]))
    played = keyed.evaluate(limited(SpreadCliff), episodes=3, seed=1)
    again = compiled.evaluate(limited(CliffWalkingEnv), episodes=3, seed=1)
    np.testing.assert_array_equal(played.returns, again.returns)


def test_keys_are_kept_in_model_files_and_checkpoints(tmp_path, truth):
    make = limited(partial(SpreadCliff, 20))
    first = agent(max_states=100)
    kept = {"checkpoint_dir": tmp_path / "run", **SHARDED}
    first.train(make, total_steps=5_000, **kept)
    first.save_model(tmp_path / "model")
    for path in (tmp_path / "model", tmp_path / "run"):
        loaded = DistAsyncQLearning.load_model(path)
        np.testing.assert_array_equal(loaded.q_table.states, first.q_table.states)
        seen = SpreadCliff.seen(int(first.q_table.states[2]))
        np.testing.assert_array_equal(loaded.action_values(seen), first.q_table.array[2])
    places._agents.clear()
    first.max_states = None  # its table has keys all the same
    first.train(make, total_steps=5_000, **kept)
    again = agent(max_states=100)
    again.train(make, total_steps=5_000, **kept)
    again.train(make, total_steps=5_000, **kept)
    assert_same((again.q_table.array,), (first.q_table.array,))
    assert again.visits.array.sum() == 10_000


def test_the_superstep_after_the_limit_of_states_is_the_last():
    one = agent(max_states=20)
    with pytest.raises(StateLimitError, match="more than 20 states, and max_states=20"):
        one.train(limited(SteppedCliff), total_steps=10_000, **SHARDED)
    assert 20 < len(one.q_table) < 37 and one.visits.array.sum() == one.steps > 64
    problem, shares = shares_of(limited(SteppedCliff), one.settings, 3, "hash")
    stream = Stream(stream_key(3, "alone", 0), 0)
    table = play(problem, shares, stream, 10_000)
    assert_same(table[:3], (one.q_table.states, one.q_table.array, one.visits.array))
    assert stream.used == one.steps


def test_it_learns_the_optimum_and_obeys_masks():
    model = TabularMDP.garnet(20, 3, 2, seed=4, terminal_states=2)
    mask = np.arange(3) != np.arange(20)[:, None] % 3
    model = replace(model, action_mask=mask)
    acted = np.zeros(model.n_states * model.n_actions, np.int64)
    make = limited(lambda: Modeled(model, acted))
    one = agent(epsilon=0.6)
    one.train(make, total_steps=60_000, **SHARDED)
    assert_same((one.visits,), (acted,))
    assert not acted.reshape(mask.shape)[~mask].any()
    solution = model.solve(0.9)
    tried = one.visits > 500
    assert tried.sum() > 20
    errors = (one.q_table - solution.q)[tried]
    assert np.sqrt((errors**2).mean()) < 0.06 * np.abs(solution.q).max()  # compiled code: 0.04
    greedy = np.where(mask, one.q_table, -np.inf).argmax(axis=1)
    best = model.start_value(solution.v)
    assert model.start_value(model.policy_value(greedy, 0.9)) > 0.95 * best

    settings = one.settings
    assert_same(*(learned(make, settings, ranks, "hash", 3_001) for ranks in (1, 2, 3)))


class Line(gymnasium.Env):
    """Ten cells, one after the other, each worth 1; it never ends by itself."""

    observation_space, action_space = Discrete(11), Discrete(70)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._cell = 0
        return 0, {}

    def step(self, action):
        self._cell += 1
        return self._cell, 1.0, False, False, {}


class Counting(NamedTuple):
    """Learns how many steps were made and what was collected, in one of two tables."""


@rule_function
def learn_counting(rule, context, now, step, learned):
    whole, real, w = context.whole, context.real, now.walker
    whole[w, 0] += 1
    real[w, 0] += step.reward
    target = np.float64(whole[w, 0]) + 100.0 * real[w, 0]
    row = step.state + np.int64(now.random & np.uint64(1)) * context.table.n_states
    return update(context, now, row, step.action, target + 0.0 * best_value(context, step), learned)


def test_what_a_rule_remembers_and_which_table_it_learns_travel():
    made = LearningRule(
        "counting",
        Counting,
        learn_counting,
        tables=("even", "odd"),
        memory=lambda parameters: (1, 1),
        can_travel=True,
    )
    rule = register(made)
    try:
        settings = Settings(algorithm=Counting(), learning_rate=1.0, epsilon=1.0, dtype="float32")
        make = lambda: gymnasium.wrappers.TimeLimit(Line(), 10)  # noqa: E731
        values, counts, totals = learned(make, settings, 3, "hash", 30_000)
        assert values.dtype == np.float32
    finally:
        unregister(rule)
    visited = counts.reshape(2, 11, 70) > 0
    steps = np.arange(1, 12)[:, None]
    np.testing.assert_array_equal(values.reshape(2, 11, 70), np.where(visited, 101.0 * steps, 0.0))
    assert visited[:, :10].mean() > 0.8 and not visited[:, 10].any() and counts.sum() == 30_000
    assert totals[1] == 10 * totals[0] and totals[2] == 10 * totals[0] > 29_000


def test_other_ranks_begin_new_episodes_where_these_stopped():
    make, settings = limited(SteppedCliff), agent().settings
    found = []
    for ranks in (1, 3):
        problem, shares = shares_of(make, settings, 2, "hash")
        stream = Stream(7, 0)
        *table, _ = play(problem, shares, stream, 1_001)
        state = joined(share.state() for share in shares)
        _, others = shares_of(make, settings, ranks, "hash", at=1_001)
        for share in others:
            share.load(*table)
            share.restore(state)
        found.append(play(problem, others, stream, 3_000))
        assert found[-1][1].sum() == 3_000
    assert_same(*found)
    with pytest.raises(CheckpointError, match="counted is missing"):
        others[0].restore({})


def test_a_process_alone_goes_on_from_a_checkpoint(tmp_path):
    def fail(progress):
        if progress.steps >= 3_000:
            raise ZeroDivisionError

    kept = {"checkpoint_dir": tmp_path, "checkpoint_interval": 1_000, **SHARDED}
    with pytest.raises(ZeroDivisionError):
        agent().train(limited(SteppedCliff), total_steps=9_000, progress=fail, **kept)
    places._agents.clear()
    again = agent()
    result = again.train(limited(SteppedCliff), total_steps=9_000, **kept)
    assert result.resumed_from is not None and again.visits.sum() == result.steps == 9_000


def test_what_cannot_be_is_refused_by_name():
    cases = [
        ({}, lambda: gymnasium.make_vec("CliffWalking-v1", 2), SettingsError, "is a vector environment"),
        ({}, SteppedCliff(), SettingsError, "is one instance, and supersteps need walkers=64"),
        ({}, limited(partial(SpreadCliff, 1 << 60)), SpaceError, "62 bits"),
        ({"partition": "range"}, limited(SpreadCliff), SettingsError, "partition='range' cannot divide"),
    ]
    for asked, env, error, message in cases:
        with pytest.raises(error, match=message):
            agent().train(env, total_steps=100, **SHARDED, **asked)
    with pytest.raises(SettingsError, match="'local' cannot be had with that.*max_states"):
        agent(async_updates=True).train(limited(SpreadCliff), total_steps=100, placement="replicated")


def test_one_instance_can_be_the_only_environment():
    one = agent()
    one.train(limited(SteppedCliff)(), total_steps=500, placement="sharded", walkers=1)
    assert one.visits.sum() == 500
