"""Rules in supersteps that let steps wait, or learn where the entry is: the same bits, the right values."""

from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import NamedTuple

import gymnasium
import numpy as np
import pytest
from own_rules import sum_of_both
from superstep_runs import KEY, learned, play, problem_of, shares_of
from test_keyed_supersteps import scrambled_once
from test_supersteps import garnet, settings_of, shop

from dist_classicrl import DistAsyncQLearning, TabularMDP
from dist_classicrl.errors import ActionMaskError, CheckpointError, SettingsError
from dist_classicrl.learning.learner import Stream
from dist_classicrl.learning.rules import find
from dist_classicrl.learning.rules.kernel import (
    best_action,
    best_value,
    bits,
    entry_of,
    move,
    rule_function,
    step_size,
    target_found,
    update,
    update_row,
    value,
)
from dist_classicrl.learning.supersteps import trial
from dist_classicrl.learning.supersteps.crew import MEMORY, joined
from dist_classicrl.rules import (
    TD,
    UCB,
    Boltzmann,
    DifferentialQLearning,
    DynaQ,
    LearningRule,
    MonteCarlo,
    NStepSarsa,
    QLambda,
    Sarsa,
    SarsaLambda,
    TreeBackup,
    UCBQLearning,
)
from dist_classicrl.rules.registry import BUILT_IN, register, unregister

# Each kernel here takes long to compile.
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fast_ramp")]

STEPS = 50_000
# One of each way in which what is learned travels: as letters about entries, or about whole states; where the
# entry is, and with numbers that all ranks share. Each rule takes long to compile, for one rank and several.
RULES = [
    TreeBackup(n=3, target_epsilon=0.1),
    TD(n=2, trace_decay=0.5),
    UCBQLearning(),
    DifferentialQLearning(),
]
# These let other steps wait, and are letters about entries as well.
SIMILAR = [Sarsa(), QLambda(n=4), SarsaLambda(n=4)]


def problem_with(rule, model=None, **more):
    return problem_of(garnet() if model is None else model, settings_of(algorithm=rule, **more))


def small():
    """Return a problem without an end, of the shape of `garnet`, whose every pair is visited often."""
    return TabularMDP.garnet(8, 5, 3, seed=2)


def test_what_waits_is_learned_whoever_owns_it():
    problem = problem_with(NStepSarsa(n=3))
    one = learned(problem, STEPS, 2)
    assert one.counts.sum() > STEPS - 4 * 256 and one.totals[0] > 1000 and one.totals[3] > 0.0
    assert np.isfinite(one.values).all() and len(np.unique(one.values)) > 50
    assert learned(problem, STEPS, 5) == one
    assert learned(problem, STEPS, 3, cuts=((25_600, 2, "hash"), (40_960, 5, "hash"))) == one
    check_values(NStepSarsa(n=3), 2)


@pytest.mark.parametrize("rule", RULES)
def test_ranks_and_partitions_learn_the_same_and_the_right_values(rule):
    problem = problem_with(rule)
    one = learned(problem, STEPS)
    for ranks in (2, 5):
        assert learned(problem, STEPS, ranks) == one
    assert learned(problem, STEPS, 3, cuts=((25_600, 2, "hash"), (40_960, 1, "hash"))) == one
    check_values(rule, 1)


@pytest.mark.parametrize("rule", SIMILAR)
def test_what_other_rules_let_wait_has_the_right_values(rule):
    check_values(rule, 1)


@pytest.mark.parametrize("rule", [TD(), TD(n=2)], ids=str)
def test_a_state_where_nothing_is_legal_is_told_by_whole_states_as_well(rule):
    problem = problem_of(shop(stuck=20), settings_of(algorithm=rule, epsilon=1.0))
    with pytest.raises(ActionMaskError, match="came to state 20"):
        play(shares_of(problem, 1), Stream(KEY, 0), 20_000, problem.rates)


def check_values(rule, ranks):
    """Learn the fixed point of a rule."""
    problem = problem_with(rule, small())
    found, (kind, parameters) = learned(problem, 2_000_000, ranks), find(rule)
    truth = kind.truth(small(), parameters, problem.settings)
    values = found.values[: truth.size].reshape(truth.shape)
    if isinstance(rule, DifferentialQLearning):  # they are what they are but for a constant
        values = values - values.mean()
        truth = truth - truth.mean()
    if not isinstance(rule, UCBQLearning):  # whose bonus takes long to fall, and whose epsilon is not theirs
        assert np.abs(values - truth).max() < 0.1 * (1.0 + np.abs(truth).max())


def test_ranks_that_share_memory_learn_the_same():
    problem = problem_with(NStepSarsa(n=3))
    one = learned(problem, STEPS, 2)
    for ranks in (2, 3, 5):
        assert learned(problem, STEPS, ranks, in_memory=True) == one


def test_keys_are_learned_whoever_owns_them():
    settings = settings_of(algorithm=NStepSarsa(n=3))
    problem = problem_of(scrambled_once("taxi"), settings)
    one = learned(problem, STEPS, 2)
    assert one.counts.sum() > STEPS - 4 * 256
    assert learned(problem, STEPS, 5) == one
    assert learned(problem, STEPS, 3, cuts=((25_600, 2, "hash"),)) == one


@pytest.mark.parametrize("behavior", [Boltzmann(temperature=0.5), UCB(exploration=0.5)])
def test_other_behaviors_learn_the_same(behavior):
    problem = problem_of(garnet(), settings_of(behavior=behavior))
    one = learned(problem, STEPS, 2)
    assert one != learned(problem_of(garnet(), settings_of()), STEPS, 2)
    assert learned(problem, STEPS, 5) == one


def test_walkers_with_steps_that_wait_are_put_only_where_they_can_be():
    problem = problem_with(NStepSarsa(n=3))
    shares = shares_of(problem, 2)
    play(shares, Stream(KEY, 0), 1500, problem.rates)
    state = joined(share.state() for share in shares)
    for wrong in (-1, 90):
        walkers = state["walkers"].copy()
        walkers[3, -1] = wrong
        with pytest.raises(CheckpointError, match="have waiting steps in other states"):
            shares[0].restore({**state, "walkers": walkers})


def test_walkers_that_remember_more_steps_than_there_are_states_go_on():
    problem = problem_with(NStepSarsa(n=12), garnet(n_states=6))
    one = learned(problem, 5_000, 2)
    assert learned(problem, 5_000, 2, cuts=((2_560, 2, "hash"),)) == one


def test_entries_that_walkers_remember_are_places_of_steps_that_wait():
    problem = problem_with(NStepSarsa(n=3))
    shares = shares_of(problem, 2)
    play(shares, Stream(KEY, 0), 1500, problem.rates)
    state = joined(share.state() for share in shares)
    entries = MEMORY + problem.source.simulator.memory_size + 2
    assert state["walkers"][3, entries : entries + 3].max() < 3 * 5
    state["walkers"][3, entries] = 3 * 5  # of a state that there is
    with pytest.raises(CheckpointError, match="the entries of the steps, goes from 0 to 15, .* 0 to 14"):
        shares[0].restore(state)


def agent(**more):
    return DistAsyncQLearning(seed=3, async_updates=False, discount_factor=0.9, **more)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (MonteCarlo(), "monte_carlo.*it learns when the next action is chosen .*n_step_sarsa"),
        (DynaQ(), "dyna_q.*keeps a model"),
        (NStepSarsa(n=300), "lets 300 steps wait, .*at most 256"),
    ],
)
def test_what_cannot_travel_is_refused_by_name(rule, message):
    with pytest.raises(SettingsError, match=message):
        agent(algorithm=rule).train(garnet(), total_steps=100, placement="sharded")


def test_numbers_are_shared_in_compiled_environments_of_counted_states():
    with pytest.raises(SettingsError, match="has keys as states, and the rule 'ucb_q_learning' learns where"):
        agent(algorithm="ucb_q_learning").train(scrambled_once("taxi"), total_steps=100, placement="sharded")


class Stray(NamedTuple):
    """Updates a step that does not wait."""

    place: int = 5


@rule_function
def learn_stray(rule, context, now, step, learned):
    return update(context, now, rule.place, 0, 1.0, learned)


@contextmanager
def registered(name, parameters, learn, **more):
    rule = register(LearningRule(name, parameters, learn, can_travel=True, **more))
    try:
        yield
    finally:
        unregister(rule)


def test_a_rule_of_ones_own_that_updates_what_does_not_wait_is_told():
    with registered("stray", Stray, learn_stray, waits=lambda parameters: 2):
        with pytest.raises(SettingsError, match="'stray' declares waits=2, but updated what does not wait"):
            agent(algorithm="stray").train(garnet(), total_steps=1000, placement="sharded")


class DoubleThere(NamedTuple):
    """Double Q-learning whose owner of the entry tells by the step's bits which table the target is for."""


@rule_function
def learn_by_bits(rule, context, now, step, learned):
    mine = np.int64(bits(now, 0) & np.uint64(1))
    target = step.reward
    if not step.terminated:
        action = best_action(context, step, bits(now, 1), mine)
        other = step.next_state + (1 - mine) * context.table.n_states
        target += context.discount * value(context, other, action)
    return target_found(rule, context, now, step, target, learned)


@rule_function
def there_by_bits(rule, context, now, row, action, target, learned):
    mine = np.int64(bits(now, 0) & np.uint64(1))
    return update(context, now, row + mine * context.table.n_states, action, target, learned)


def test_what_learns_where_the_entry_is_draws_what_learn_drew():
    two = {"tables": ("first", "second"), "preference": sum_of_both}
    with registered("there", DoubleThere, learn_by_bits, on_target=there_by_bits, **two):
        problem = problem_with("there", small())
        one = learned(problem, 400_000)
        visits = one.counts.reshape(2, -1).sum(axis=1)
        assert visits.sum() == 400_000 and abs(visits[0] - visits[1]) < 4_000
        # By other bits, a table would learn from its own choices as often as from the other one's.
        truth = small().solve(problem.settings.discount_factor).q
        assert np.abs(one.values.reshape(2, *truth.shape) - truth).max() < 0.3
        assert learned(problem, 20_000, 3) == learned(problem, 20_000)


class Coin(NamedTuple):
    """What `learn` adds by its bits, `on_target` takes away by its own."""


@rule_function
def learn_coin(rule, context, now, step, learned):
    return target_found(rule, context, now, step, float(bits(now, 0) >> np.uint64(12)), learned)


@rule_function
def there_coin(rule, context, now, row, action, target, learned):
    return update(context, now, row, action, target - float(bits(now, 0) >> np.uint64(12)), learned)


def test_both_draw_the_same_on_any_number_of_ranks():
    with registered("coin", Coin, learn_coin, on_target=there_coin):
        for ranks in (1, 3):
            found = learned(problem_with("coin"), 5_000, ranks)
            assert found.counts.sum() == 5_000 and (found.values == 0.0).all()


@rule_function
def learn_and_count(rule, context, now, step, learned):
    context.whole[now.walker, 0] += 1
    return target_found(rule, context, now, step, step.reward, learned)


@rule_function
def there_by_count(rule, context, now, row, action, target, learned):
    return update(context, now, row, action, target + context.whole[now.walker, 0], learned)


@pytest.mark.parametrize("more", [{"memory": lambda parameters: (1, 0)}, {"waits": lambda parameters: 2}])
def test_a_rule_that_learns_where_the_walkers_memory_is_not_is_refused(more):
    with registered("counting", Coin, learn_and_count, on_target=there_by_count, **more):
        with pytest.raises(SettingsError, match=r"'counting': it learns where the entry is \(on_target\)"):
            agent(algorithm="counting").train(garnet(), total_steps=1000, placement="sharded")


class Advantage(NamedTuple):
    """Looks at the state that it acted in, by `kind`: 0 values, 1 visits, 2 number, 3 to choose a table.

    4 does not look there, and has one number for each step of an episode of four.
    """

    kind: int = 0


@rule_function
def learn_advantage(rule, context, now, step, learned):
    target = step.reward
    if not step.terminated:
        target += context.discount * best_value(context, step)
    if rule.kind == 0:
        target -= value(context, step.state, 0)
    if rule.kind == 1:
        target += step_size(context, now, step.state, step.action)
    if rule.kind == 2:
        target += 1.0 / (1.0 + step.state)
    row = step.state
    if rule.kind == 3 and value(context, step.state, step.action) > 0.0:
        row += context.table.n_states
    if rule.kind == 4:  # the best of the next state, met one step before, is no matter of this one's row
        at = context.whole[now.walker, 0]
        if at > 3:
            raise IndexError
        target += context.real[now.walker, at]
        context.real[now.walker, (at + 1) % 4] = 0.0 if step.terminated else best_value(context, step)
        context.whole[now.walker, 0] = 0 if step.terminated else at + 1
    return update(context, now, row, step.action, target, learned)


@pytest.mark.parametrize("placement", ["sharded", "stepped"])
def test_a_rule_that_looks_at_the_state_it_acted_in_is_refused(placement):
    model = replace(garnet(), max_episode_steps=4)
    environment = (
        model if placement == "sharded" else lambda: gymnasium.make("FrozenLake-v1", max_episode_steps=4)
    )
    more = {"memory": lambda parameters: (1, 4), "tables": ("first", "second")}
    with registered("advantage", Advantage, learn_advantage, **more):
        for kind in range(5):
            refused = pytest.raises(SettingsError, match="declares can_travel=True, but its learn looks")
            with nullcontext() if kind == 4 else refused:
                agent(algorithm=Advantage(kind)).train(
                    environment, total_steps=1000, placement="sharded", walkers=16
                )


@rule_function
def learn_with_noise(rule, context, now, step, learned):
    return update(context, now, step.state, step.action, step.reward + np.random.normal(), learned)  # noqa: NPY002


def test_a_rule_that_draws_by_other_bits_than_those_of_its_step_is_told_so():
    with (
        registered("noisy", Advantage, learn_with_noise),
        pytest.raises(SettingsError, match="'noisy' .* draws at random by something other"),
    ):
        agent(algorithm="noisy").train(garnet(), total_steps=1000, placement="sharded", walkers=16)


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_no_rule_of_the_package_that_travels_looks_there(name, monkeypatch):
    monkeypatch.setattr(trial, "BUILT_IN", {})
    rule, parameters = find(name)
    if rule.can_travel:
        for behavior in ("epsilon_greedy", "boltzmann", "ucb"):
            trial.try_rule(problem_of(garnet(), settings_of(algorithm=parameters, behavior=behavior)), None)


@rule_function
def learn_by_own_size(rule, context, now, step, learned):
    target = step.reward + context.discount * best_value(context, step)
    return move(context, now, entry_of(context, step.state, step.action), target, 0.01, learned)


@rule_function
def learn_all_actions(rule, context, now, step, learned):
    return update_row(context, now, step.state, step.action, step.reward, learned)


@rule_function
def learn_first_action(rule, context, now, step, learned):
    return update(context, now, step.state, 0, step.reward, learned)


@rule_function
def learn_first_state(rule, context, now, step, learned):
    return update(context, now, 0, step.action, step.reward, learned)


@pytest.mark.parametrize(
    ("learn", "more"),
    [
        (learn_by_own_size, {}),
        (learn_all_actions, {}),
        (learn_first_action, {}),
        (learn_first_state, {"tables": ("first", "second")}),
        (learn_by_own_size, {"waits": lambda parameters: 2}),
    ],
)
def test_a_rule_that_does_more_than_update_its_entry_is_refused(learn, more):
    with registered("more", Coin, learn, **more):
        with pytest.raises(SettingsError, match="'more' declares .* by a step size of its own"):
            agent(algorithm="more").train(garnet(), total_steps=1000, placement="sharded")
