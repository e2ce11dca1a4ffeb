"""Supersteps: the same table, bit for bit, for any number of ranks, any partition, and cuts anywhere."""

import math
import os
import shutil
import signal
from dataclasses import replace
from typing import NamedTuple

import numba
import numpy as np
import pytest
from own_rules import DIFFERENTIAL, N_STEP_SARSA, DoubleQ, ExpectedSarsa, registered
from superstep_runs import KEY, learned, play, problem_of, shares_of, whole

from dist_classicrl import CompiledSimulator, DistAsyncQLearning, TabularMDP
from dist_classicrl._random import GAMMA
from dist_classicrl.errors import (
    ActionMaskError,
    CheckpointError,
    CheckpointMismatchError,
    DivergenceError,
    OutsideSpaceError,
    SettingsError,
    TrainingStopped,
)
from dist_classicrl.learning import loops
from dist_classicrl.learning.learner import Stream
from dist_classicrl.learning.rules.kernel import best_value, rule_function, update, value
from dist_classicrl.learning.supersteps.crew import WHO, joined
from dist_classicrl.learning.supersteps.kernels import steps_at_once
from dist_classicrl.learning.supersteps.owners import Written
from dist_classicrl.learning.supersteps.partition import WHERE
from dist_classicrl.learning.supersteps.share import Share
from dist_classicrl.model import places
from dist_classicrl.rules import LearningRule, Range
from dist_classicrl.rules.registry import register, unregister
from dist_classicrl.schedules import Constant, Linear, PerVisit
from dist_classicrl.settings import Settings

# Each kernel here takes long to compile.
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fast_ramp")]

MASK = (1 << 64) - 1
STRIDE = 3 * int(GAMMA)
STEPS = 150_000


@numba.njit
def by_remainder(state):
    return 0 if state < 30 else (state * 7 + 3) % 5 % 3


@numba.njit
def beyond(state):
    return state // 30


def settings_of(**more):
    chosen = {"learning_rate": PerVisit(0.7), "epsilon": 0.3, "discount_factor": 0.9, **more}
    return Settings(**chosen)


def garnet(forbidden=False, n_states=90, **more):
    """Return a model with time limit; where actions are forbidden, one in each state is."""
    chosen = {"terminal_states": 3, "termination_probability": 0.05, "max_episode_steps": 17, **more}
    model = TabularMDP.garnet(n_states, 5, 3, seed=4, **chosen)
    if not forbidden:
        return model
    mask = np.ones((n_states, 5), bool)
    mask[np.arange(n_states), np.arange(n_states) % 5] = False
    return replace(model, action_mask=mask)


class ShopData(NamedTuple):
    """Prices of a shop whose stock nobody sees."""

    prices: np.ndarray
    lost: int  # where a step seldom leaves the states; -1: nowhere


@numba.njit
def shop_reset(data, memory, random):
    memory[0] = 3 + np.int64(random & np.uint64(3))
    memory[1] += 1  # days, over all episodes
    return np.int64(random >> np.uint64(8)) % 40


@numba.njit
def shop_step(data, memory, state, action, random):
    sold = min(memory[0], action)
    memory[0] -= sold
    if state == data.lost and random & np.uint64(0xFFFF) < np.uint64(16):
        return np.int64(40), 0.0, False
    moved = np.int64(random & np.uint64(0xFFFF))
    reward = sold * data.prices[state] + 1e-3 * (memory[1] % 2)
    return (state + 1 + moved) % 40, reward, memory[0] == 0 and moved % 3 == 0


def shop(lost=-1, stuck=None):
    data, legal = ShopData(np.linspace(0.5, 1.5, 40), lost), np.ones((40, 3), bool)
    if stuck is not None:
        legal[stuck] = False
    return CompiledSimulator.game(
        "shop", 40, 3, data, shop_reset, shop_step, legal, memory_size=2, max_episode_steps=30
    )


def problem_of_shop(**wrong):
    """Return a problem with rates that fall, numbers of 32 bits, and a memory that nobody sees."""
    rates = {"learning_rate": Linear(0.5, 0.1, 77_777), "epsilon": Linear(1.0, 0.2, 50_001)}
    return problem_of(shop(**wrong), settings_of(dtype="float32", **rates))


# A problem of other types has all kernels compiled for it. These differ in all that there is, with few types.
PROBLEMS = {
    "forbidden actions": lambda: problem_of(garnet(forbidden=True), settings_of()),
    "hidden memory, float32, linear rates": problem_of_shop,
}
FIRST = "forbidden actions"


def other_partition(name):
    return "range" if name == FIRST else "hash"


@pytest.mark.parametrize("name", PROBLEMS)
def test_ranks_and_partitions_learn_the_same_table(name):
    problem, other = PROBLEMS[name](), other_partition(name)
    one = learned(problem, STEPS)
    assert one.counts.sum() == STEPS and one.totals[0] > 1000 and one.totals[3] > 0.0
    assert np.isfinite(one.values).all() and len(np.unique(one.values)) > 50
    for ranks, partition in ((2, other), (3, "hash"), (5, other), (8, "hash")):
        assert learned(problem, STEPS, ranks, partition) == one


def test_ranks_that_share_memory_learn_the_same_table():
    problem = PROBLEMS[FIRST]()
    one = learned(problem, STEPS)
    for ranks in (1, 2, 3, 5):
        assert learned(problem, STEPS, ranks, in_memory=True) == one


@pytest.mark.parametrize("name", PROBLEMS)
def test_ranks_that_share_rows_learn_the_same_table_however_these_are_divided(name):
    problem = PROBLEMS[name]()
    one = learned(problem, STEPS)
    cuts = ((256, 3, "hash"), (51_200, 2, "range"), (51_456, 1, "hash"), (100_096, 4, "hash"))
    assert learned(problem, STEPS, 2, cuts=cuts, in_place=True) == one
    assert learned(problem, STEPS, 3, "range", in_place=True) == one


def test_a_partition_of_the_users_learns_the_same_table():
    problem = PROBLEMS[FIRST]()
    one = learned(problem, STEPS)
    for in_memory in (False, True):
        assert learned(problem, STEPS, 3, by_remainder, in_memory=in_memory) == one
        # Of the three that it names one is lost.
        assert learned(problem, STEPS, 2, Written(by_remainder, 3), in_memory=in_memory) == one
    # One rank that the function gives everything to.
    small = problem_of(garnet(forbidden=True, n_states=30), settings_of())
    one = learned(small, 20_000)
    assert learned(small, 20_000, 2, by_remainder) == one == learned(small, 20_000, 1, by_remainder)


@pytest.mark.parametrize("name", PROBLEMS)
def test_other_ranks_go_on_where_these_stopped(name):
    problem = PROBLEMS[name]()
    cuts = (
        (256, 3, "hash"),
        (51_200, 2, other_partition(name)),
        (51_456, 1, "hash"),
        (100_096, 4, "hash"),
    )
    assert learned(problem, STEPS, 2, cuts=cuts) == learned(problem, STEPS)


def test_the_walkers_are_a_constant_of_the_run():
    problem = PROBLEMS[FIRST]()
    assert learned(problem, 100_000, 2, walkers=64) != learned(problem, 100_000, 2, walkers=256)
    assert learned(problem, 2_000, 3, walkers=1) == learned(problem, 2_000, 1, walkers=1)


@pytest.mark.parametrize("rule", [ExpectedSarsa(), DoubleQ()])
def test_rules_that_travel(rule):
    with registered():
        problem = problem_of(garnet(), settings_of(algorithm=rule, dtype="float32"))
        # One that moves its entries alone is compiled once more for that.
        one = learned(problem, 50_000, 1 if isinstance(rule, DoubleQ) else 3)
        assert one.counts.sum() == 50_000
        tables = problem.shape.tables(one.counts.reshape(problem.shape.n_rows, -1))
        assert (tables.sum(axis=(1, 2)) > 20_000).all()
        for ranks in (2, 5):
            assert learned(problem, 50_000, ranks) == one


class Aging(NamedTuple):
    """Counts the steps of an episode and the rewards so far, which its targets depend on."""

    weight: float = 0.01


@rule_function
def learn_aging(rule, context, now, step, learned):
    whole, real, w = context.whole, context.real, now.walker
    whole[w, 1] += 1
    real[w, 0] += step.reward
    target = step.reward + rule.weight * (whole[w, 1] - real[w, 0])
    if not step.terminated:
        target += context.discount * best_value(context, step)
    if step.terminated or step.truncated:
        whole[w, 1] = 0
        real[w, 0] = 0.0
    return update(context, now, step.state, step.action, target, learned)


class Twice(NamedTuple):
    """Says that it can travel, and moves the entry twice."""


@rule_function
def learn_twice(rule, context, now, step, learned):
    learned = update(context, now, step.state, step.action, step.reward, learned)
    return update(context, now, step.state, step.action, value(context, step.state, 0), learned)


def test_what_a_rule_remembers_travels():
    rule = register(
        LearningRule(
            "aging",
            Aging,
            learn_aging,
            memory=lambda parameters: (2, 1),
            whole_ranges=lambda parameters, states, actions: (
                Range("zero", 0, 0),
                Range("the age", 0, 10**6),
            ),
            can_travel=True,
        )
    )
    try:
        problem, other = (
            problem_of(shop(), settings_of(algorithm=Aging(weight), dtype="float32"))
            for weight in (0.01, 0.0)
        )
        one = learned(problem, 50_000)
        assert one != learned(other, 50_000)
        assert learned(problem, 50_000, 3, cuts=((25_600, 2, "hash"),)) == one
        (share,) = shares_of(problem, 1)
        state = share.state()
        state["walkers"][0] = 0
        first = share.words - 3
        for place, given, told in ((0, 1, "zero, goes from 1 to 1"), (1, -1, "the age, goes from -1 to -1")):
            broken = {key: array.copy() for key, array in state.items()}
            broken["walkers"][0, first + place] = given
            with pytest.raises(CheckpointError, match=f"walkers, {told}"):
                share.restore(broken)
        share.restore(state)
    finally:
        unregister(rule)


def test_rules_that_cannot_travel_are_refused_by_name():
    with registered():
        for rule, why in ((N_STEP_SARSA, "on_action"), (DIFFERENTIAL, "shares mean_reward")):
            with pytest.raises(SettingsError, match=f"{rule.name!r}: it .*{why}"):
                agent(algorithm=rule.name).train(garnet(), total_steps=100, placement="sharded")
    for declared, message in ((False, "declare can_travel=True"), (True, "moved none or several")):
        rule = register(LearningRule("twice", Twice, learn_twice, can_travel=declared))
        try:
            with pytest.raises(SettingsError, match=message):
                agent(algorithm="twice").train(garnet(), total_steps=1000, placement="sharded")
        finally:
            unregister(rule)


# In plain Python


def mix(z):
    z &= MASK
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
    return z ^ (z >> 31)


def below(bits, n):
    return (bits & 0xFFFFFFFF) * n >> 32


def twin(model, tables, steps, settings, most, step_sizes):
    """Learn in supersteps, one Python step at a time; return values, counts, episodes and their returns."""
    legal = np.ones((model.n_states, model.n_actions), bool)
    if model.action_mask is not None:
        legal = model.action_mask
    lists = [np.flatnonzero(row).tolist() for row in legal]
    q = np.where(legal, 0.0, -np.inf)
    n = np.zeros(q.shape, np.int64)
    walkers, totals, done = [], [0, []], 0

    def begin(random):
        slot = below(random, tables.start_threshold.size)
        other = (random >> 32) > int(tables.start_threshold[slot])
        return int(tables.start_states[2 * slot + other])

    while done < steps:
        size = min(steps_at_once(0, done, most, loops.STEPS_PER_WALKER), steps - done)
        targets = []
        for k in range(size):
            at = int(KEY) + (done + k) * STRIDE
            if k == len(walkers):
                walkers.append(dict(state=begin(mix(~at)), elapsed=0, collected=0.0))
            walker, random = walkers[k], mix(at)
            state = walker["state"]
            if (random >> 32) * 2.0**-32 < settings.epsilon.at(done + k):
                action = lists[state][below(random, len(lists[state]))]
            else:
                best = np.flatnonzero(q[state] == q[state].max())
                action = int(best[below(random, best.size)]) if best.size > 1 else int(best[0])
            random = mix(at + int(GAMMA))
            pair = state * model.n_actions + action
            threshold, outcomes, rewards = tables.slot(pair * tables.width + below(random, tables.width))
            other = (random >> 32) > threshold
            after, ended, reward = outcomes[other] >> 1, bool(outcomes[other] & 1), rewards[other]
            walker["elapsed"] += 1
            walker["collected"] += reward
            top = q[after].max()
            future = 0.0 if ended or top == -np.inf else top
            targets.append((state, action, reward + settings.discount_factor * future))
            if ended or walker["elapsed"] >= (model.max_episode_steps or steps):
                totals[0] += 1
                totals[1].append(walker["collected"])
                after = begin(mix(at + 2 * int(GAMMA)))
                walker["elapsed"], walker["collected"] = 0, 0.0
            walker["state"] = after
        for k, (state, action, target) in enumerate(targets):
            visits = n[state, action] + 1
            step_size = settings.learning_rate.at(done + k) if step_sizes is None else step_sizes[visits]
            n[state, action] = visits
            q[state, action] += step_size * (target - q[state, action])
        done += size
    return np.where(legal, q, 0.0), n, (totals[0], math.fsum(totals[1]))


# Rates bend between two supersteps: in one, those that are left would move in the next.
@pytest.mark.parametrize(("rate", "forbidden"), [(PerVisit(0.7), True), (Linear(0.5, 0.1, 960), False)])
@pytest.mark.parametrize("steps", [1, 63, 3001])
def test_it_learns_as_plain_python_does(rate, steps, forbidden):
    settings = settings_of(learning_rate=rate, epsilon=Linear(1.0, 0.2, 640))
    model = garnet(forbidden)
    problem = problem_of(model, settings)
    tables = problem.source.simulator.tables
    values, counts, (episodes, returns) = twin(model, tables, steps, settings, 64, problem.rates.table)
    for ranks in (1, 3):
        one = learned(problem, steps, ranks, walkers=64)
        np.testing.assert_array_equal(one.counts.reshape(counts.shape), counts)
        np.testing.assert_allclose(one.values.reshape(counts.shape), values, rtol=1e-12, atol=1e-12)
        assert one.totals[:2] == [episodes, returns]
    assert counts.sum() == steps and (steps < 3000 or episodes > 50)


def test_the_ramp():
    sizes, used = [], 0
    while used < 300_000:
        sizes.append(steps_at_once(0, used, 256, 1000))
        used += sizes[-1]
    assert sizes[0] == 1 and sizes[-1] == 256 and sorted(sizes) == sizes
    begins = np.cumsum([0, *sizes[:-1]])
    assert all(size <= max(1, begin // 1000) for size, begin in zip(sizes, begins, strict=True))
    assert steps_at_once(0, 0, 1, 1000) == 1 and steps_at_once(10**9, 0, 4096, 1000) == 4096
    # After a bend it climbs back to where all of them move.
    climbs = [steps_at_once(10**9, used, 64, 1000) for used in (1001, 1002, 1004, 1008, 1024)]
    assert climbs == [1, 2, 4, 16, 64]


# What goes wrong


def test_a_partition_that_leaves_its_range_is_refused():
    problem = problem_of(garnet(), settings_of())
    with pytest.raises(
        SettingsError, match="partition gives state 60 to 2, which is no rank: with 2 of them"
    ):
        Share(problem, partition=beyond, rank=0, ranks=2)
    for wrong in ("blocks", 3, None, lambda state: 0):
        with pytest.raises(SettingsError, match="partition must be"):
            Share(problem, partition=wrong, ranks=2)


def test_a_rank_without_states_finds_none_where_nothing_can_be_done():
    model = garnet(n_states=5)
    mask = np.ones((5, 5), bool)
    mask[model.start_prob == 0.0] = False  # where episodes end
    problem = problem_of(replace(model, action_mask=mask), settings_of(algorithm="sarsa"))
    for rank in range(4):
        Share(problem, partition="range", rank=rank, ranks=4).check()


@pytest.mark.parametrize("walkers", [0, -1, 100, 1 << 23])
def test_a_number_of_walkers_that_cannot_be(walkers):
    with pytest.raises(
        SettingsError, match=f"walkers must be a power of two .* got {walkers}. Write walkers="
    ):
        agent().train(garnet(), total_steps=100, placement="sharded", walkers=walkers)


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_game_that_leaves_its_states_is_told(ranks):
    problem = problem_of_shop(lost=7)
    shares = shares_of(problem, ranks)
    with pytest.raises(OutsideSpaceError, match="step in state 7 with action . gave the state 40"):
        play(shares, Stream(KEY, 0), 1_000_000, problem.rates)


@pytest.mark.parametrize("ranks", [1, 3])
def test_rewards_beyond_all_numbers_are_told(ranks):
    model = garnet()  # for which all is compiled, as it is for other tests
    model = replace(model, outcome_reward=np.full_like(model.outcome_reward, 1e308))
    problem = problem_of(model, settings_of())
    with pytest.raises(DivergenceError, match="undiscounted return"):
        play(shares_of(problem, ranks), Stream(KEY, 0), 1000, problem.rates)


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_state_where_nothing_is_legal_is_told(ranks):
    problem = problem_of_shop(stuck=20)
    with pytest.raises(ActionMaskError, match="came to state 20"):
        play(shares_of(problem, ranks), Stream(KEY, 0), 20_000, problem.rates)


def test_walkers_are_put_only_where_they_can_be():
    problem = problem_of(garnet(), settings_of())
    shares = shares_of(problem, 2)
    play(shares, Stream(KEY, 0), 1500, problem.rates)
    state = joined(share.state() for share in shares)
    assert (state["walkers"][:64, WHO] >= 0).all() and (state["walkers"][64:] == -1).all()
    wrong = [
        ("walkers", (3, WHERE), 90 << 24, "to 89"),
        ("walkers", (3, WHERE), 1, "identities"),
        ("walkers", (3, WHO), (3 << 40) | 17, "17"),
        ("walkers", (3, WHO), 4 << 40, "identities"),
        ("walkers", (3, 3), np.array(np.nan).view(np.int64), "finite"),
    ]
    for name, place, given, message in wrong:
        broken = {key: array.copy() for key, array in state.items()}
        broken[name][place] = given
        with pytest.raises(CheckpointError, match=message):
            shares[0].restore(broken)
    del state["counted"]
    with pytest.raises(CheckpointError, match="counted is missing"):
        shares[0].restore(state)


# Agents


def agent(**more):
    return DistAsyncQLearning(seed=3, async_updates=False, discount_factor=0.9, **more)


def test_an_agent_alone_learns_the_optimum_with_it(monkeypatch):
    monkeypatch.undo()  # with the ramp as it is
    model = garnet(max_episode_steps=None)
    one = agent(epsilon=0.2)
    result = one.train(model, total_steps=2_000_000, placement="sharded")
    solution = model.solve(0.9)
    reached = model.start_value(model.policy_value(one.q_table.argmax(axis=1), 0.9))
    best = model.start_value(solution.v)
    assert reached >= best - 0.01 * abs(best)
    assert one.visits.sum() == result.steps == 2_000_000 and result.episodes > 1000


def test_an_agent_that_was_stopped_goes_on_as_if_nothing_had_been(tmp_path):
    def stop(progress):
        if progress.steps >= 100_000:
            os.kill(os.getpid(), signal.SIGUSR1)

    whole_one, parts, resumed = (agent(epsilon=0.2) for _ in range(3))
    kept = {"checkpoint_dir": tmp_path, "placement": "sharded", "stop_signals": ["SIGUSR1"]}
    expected = whole_one.train(garnet(), total_steps=300_000, placement="sharded")
    with pytest.raises(TrainingStopped):
        parts.train(garnet(), total_steps=300_000, progress=stop, **kept)
    places._agents.clear()
    result = resumed.train(garnet(), total_steps=300_000, **kept)
    assert result.resumed_from is not None
    np.testing.assert_array_equal(resumed.q_table, whole_one.q_table)
    np.testing.assert_array_equal(resumed.visits, whole_one.visits)
    assert (result.episodes, result.mean_return) == (expected.episodes, expected.mean_return)


def test_a_call_goes_on_with_as_many_walkers_as_it_began_with(tmp_path):
    def stop(progress):
        if progress.steps >= 100_000:
            os.kill(os.getpid(), signal.SIGUSR1)

    def script(walkers, calls=2, **more):
        places._agents.clear()
        one = agent()
        kept = {"checkpoint_dir": tmp_path, "placement": "sharded", "stop_signals": ["SIGUSR1"]}
        for steps, each in ((10_000, 256), (300_000, walkers))[-calls:]:
            one.train(garnet(), total_steps=steps, walkers=each, **kept, **more)
        return one

    with pytest.raises(TrainingStopped):
        script(64, progress=stop)
    with pytest.raises(CheckpointMismatchError, match="walkers: 64 there, 128 here"):
        script(128)
    assert script(128, strict=False).visits.sum() == 310_000
    shutil.rmtree(tmp_path)
    with pytest.raises(TrainingStopped):
        script(64, calls=1, progress=stop)
    with pytest.raises(CheckpointMismatchError, match="walkers: 64 there, 128 here"):
        script(128, calls=1)
    assert script(128, calls=1, strict=False).visits.sum() == 300_000


@pytest.mark.parametrize("calls", [1, 2])
@pytest.mark.parametrize("then", ["sharded", "replicated"])
def test_a_call_goes_on_in_the_way_in_which_it_began(tmp_path, then, calls):
    """As where a version that played rounds is replaced by one that takes supersteps."""

    def stop(progress):
        if progress.steps >= 20_000:
            os.kill(os.getpid(), signal.SIGUSR1)

    def script(placement, **more):
        places._agents.clear()
        one = agent()
        kept = {"checkpoint_dir": tmp_path, "placement": placement, "stop_signals": ["SIGUSR1"]}
        for steps in (10_000, 300_000)[-calls:]:
            one.train(garnet(), total_steps=steps, **kept, **more)
        return one

    with pytest.raises(TrainingStopped):
        script({"sharded": "replicated", "replicated": "sharded"}[then], progress=stop)
    with pytest.raises(CheckpointMismatchError, match="what placement= chooses: '(rounds|supersteps)' there"):
        script(then)
    assert script(then, strict=False).visits.sum() == sum((10_000, 300_000)[-calls:])


@pytest.mark.parametrize("placement", ["replicated", "sharded"])
def test_a_call_that_began_asynchronously_is_not_said_to_have_played_rounds(tmp_path, placement):
    def stop(progress):
        if progress.steps >= 20_000:
            os.kill(os.getpid(), signal.SIGUSR1)

    def script(one, placement, **more):
        places._agents.clear()
        kept = {"checkpoint_dir": tmp_path, "placement": placement, "stop_signals": ["SIGUSR1"]}
        one.train(garnet(), total_steps=300_000, **kept, **more)
        return one

    with pytest.raises(TrainingStopped):
        script(DistAsyncQLearning(seed=3, discount_factor=0.9), placement, progress=stop)
    said = r"is of something else: async_updates: True there, False here\. Give"
    with pytest.raises(CheckpointMismatchError, match=said):
        script(agent(), "sharded")
    assert script(agent(), "sharded", strict=False).visits.sum() == 300_000


def test_what_an_agent_learns_alone_any_number_of_shares_learns():
    one = agent(epsilon=Constant(0.2))
    one.train(garnet(), total_steps=40_000, placement="sharded")
    problem = problem_of(garnet(), one.settings)
    from dist_classicrl._random import stream_key

    shares = shares_of(problem, 3, walkers=1 << 14)
    play(shares, Stream(stream_key(3, "alone", 0), 0), 40_000, problem.rates)
    values, counts = whole(problem, shares)
    np.testing.assert_array_equal(values.reshape(one.q_table.shape), one.q_table)
    np.testing.assert_array_equal(counts.reshape(one.q_table.shape), one.visits)
