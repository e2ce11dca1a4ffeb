"""TD learns what the policy that chose the actions is worth, also where the actions of a state differ."""

import numba
import numpy as np
import pytest

from dist_classicrl import DistAsyncQLearning, TabularMDP
from dist_classicrl.compression import SEND_ALL, Carry
from dist_classicrl.learning import interleaved
from dist_classicrl.learning.loops import choose_actions
from dist_classicrl.learning.memory import RuleMemory
from dist_classicrl.learning.rules import find, kernel
from dist_classicrl.learning.rules.kernel import Transition
from dist_classicrl.rules import TD, UCB, Boltzmann, EpsilonGreedy
from dist_classicrl.tables.local import LocalTable
from dist_classicrl.tables.shared import SharedTable

pytestmark = pytest.mark.slow

STATES, ACTIONS = 64, 4
LEGAL = np.ones((STATES, ACTIONS), bool)
LEGAL[::2, 0] = LEGAL[1::4, 3] = False
"""In half of the states action 0 is forbidden, in a quarter action 3."""

RULE, TD_0 = find("td")


def lottery():
    """Give the problem in which each action ends the episode, and gives its number."""
    outcomes = [{a: [(1.0, s, float(a), True)] for a in range(ACTIONS)} for s in range(STATES)]
    return TabularMDP.from_dict(outcomes, np.full(STATES, 1.0 / STATES), action_mask=LEGAL)


EVEN_VALUES = (LEGAL * np.arange(ACTIONS)).sum(axis=1) / LEGAL.sum(axis=1)
"""What the states of that are worth if each legal action is as likely."""


@pytest.mark.parametrize(
    "settings, placement",
    [({}, None), ({"async_updates": False}, "sharded")],
    ids=["walkers that take turns", "supersteps"],
)
def test_actions_are_chosen_evenly_in_float32(settings, placement, monkeypatch):
    monkeypatch.setattr(interleaved, "FROM_ENTRIES", 1)
    agent = DistAsyncQLearning(
        algorithm="td", epsilon=0.1, learning_rate=0.02, dtype="float32", seed=1, **settings
    )
    agent.train(lottery(), total_steps=400_000, **({} if placement is None else {"placement": placement}))
    values = np.where(LEGAL, agent.q_table, np.nan)
    assert (np.nanmax(values, axis=1) == np.nanmin(values, axis=1)).all()  # rounded alike
    error = np.nanmean(values, axis=1) - EVEN_VALUES
    # The standard deviation of one is about 0.1.
    assert abs(error.mean()) < 0.05 and np.sqrt((error**2).mean()) < 0.2


@pytest.mark.parametrize("behavior", [EpsilonGreedy(), Boltzmann(0.1), UCB(0.5)], ids=str)
@pytest.mark.parametrize("masked", [False, True])
def test_where_the_actions_of_a_state_differ_none_is_better(behavior, masked):
    n = 6_000
    table = LocalTable(1, 3, np.dtype("float64"))
    table.load(np.array([0.2, 0.5, 1.0]), np.full(3, 5))
    context = RuleMemory(RULE, TD_0, table, 0, behavior).context(table, None, 1.0)
    masks = np.tile([False, True, True], (n, 1)) if masked else np.ones((n, 3), bool)
    actions = np.zeros(n, np.int64)
    rate = 0.1 if isinstance(behavior, Boltzmann) else 0.0
    choose_actions(TD_0, context, np.zeros(n, np.int64), masks, rate, np.uint64(5), 0, actions)
    chances = masks[0] / masks[0].sum()
    counts = np.bincount(actions, minlength=3)
    assert (np.abs(counts - n * chances) <= 4.5 * np.sqrt(n * chances * (1.0 - chances))).all()


@numba.njit
def go_round(rule, context, state, rewards):
    """Go from each state of a ring to the next one."""
    table, now = context.table, kernel.Now(0.05, 0.0, np.uint64(7), 0, 1)
    learned = kernel.Learned(table.n_touched[0], 0.0)
    for reward in rewards:
        step = Transition(state, 0, reward, (state + 1) % table.n_states, False, False, 0)
        learned = kernel.learn(rule, context, now, step, learned)
        state = step.next_state
    table.n_touched[0] = learned.touched
    return state


@pytest.mark.parametrize("carry", [SEND_ALL, Carry(threshold=0.05), Carry(share=0.1)], ids=str)
def test_what_compression_leaves_behind_does_not_raise_values(carry):
    """Two workers in a ring of 50 states, whose rewards are noise: all values are 0."""
    states, numbers = 50, np.random.default_rng(1)
    size = states * ACTIONS
    server = SharedTable(np.zeros(size), np.zeros(size, np.int64))
    workers = [LocalTable(states, ACTIONS, np.dtype("float64")) for _ in range(2)]
    contexts = [RuleMemory(RULE, TD_0, table, 1).context(table, None, 0.95) for table in workers]
    at, versions, means = [0, 25], [0, 0], []
    for push in range(1, 2_001):
        for who, table in enumerate(workers):
            at[who] = go_round(TD_0, contexts[who], at[who], numbers.normal(size=100))
            server.apply(who, push, table.pack(carry, flush=False, key=2 * push + who))
            refresh = server.refresh(versions[who])
            table.rebase(refresh, [])
            versions[who] = refresh.version
        means.append(server.values.mean())
    assert abs(np.mean(means[500:])) < 0.12


@pytest.mark.parametrize("way", ["state", "mask"])
def test_what_is_cut_off_where_no_action_is_legal_has_nothing_ahead(way):
    legal = np.array([[True, True], [False, False]])
    table = LocalTable(2, 2, np.dtype("float64"), legal if way == "state" else None)
    table.load(np.full(4, 5.0), np.zeros(4, np.int64))
    context = RuleMemory(RULE, TD(), table, 1).context(table, None, 1.0)
    if way == "mask":
        context = context._replace(masks=legal[1:])
    learn_once(TD(), context, Transition(0, 1, 3.0, 1, False, True, 0))
    assert table.arrays.q.reshape(2, 2)[0].tolist() == [3.0, 3.0]


@numba.njit
def learn_once(rule, context, step):
    now = kernel.Now(1.0, 0.0, np.uint64(7), 0, 1)
    kernel.learn(rule, context, now, step, kernel.Learned(0, 0.0))
