"""The learning kernels against a twin in plain Python, bit for bit, and what they promise besides."""

from typing import NamedTuple

import numba
import numpy as np
import pytest
from made_learners import context_of, learner_of
from slow_learner import SlowLearner, SlowModel, SlowReplay, SlowTable, share_of, splitmix, visit_slot

from dist_classicrl.environments import trial
from dist_classicrl.environments.model import TabularMDP
from dist_classicrl.environments.simulate import CompiledSimulator
from dist_classicrl.environments.tictactoe import simulator as tictactoe
from dist_classicrl.environments.tictactoe.rules import rules
from dist_classicrl.errors import RewardError
from dist_classicrl.learning.learner import Stream
from dist_classicrl.learning.loops import Batch, Stretch, choose_actions, learn_batch
from dist_classicrl.learning.rates import Rates
from dist_classicrl.learning.replay import ReplayMemory
from dist_classicrl.learning.rules.q_learning import QLearning
from dist_classicrl.schedules import Exponential, Linear, PerVisit
from dist_classicrl.settings import Settings
from dist_classicrl.tables.local import LocalTable
from dist_classicrl.tables.maps import Refresh
from dist_classicrl.tables.rows import pick_among_best, visit_bucket

KEY = np.uint64(0x0123456789ABCDEF)


def random_model(seed, n_states, sizes, masked=False, limit=None):
    """Return a model of 4 actions whose pairs have a number of outcomes out of `sizes`, of uneven chances."""
    rng = np.random.default_rng(seed)
    pairs = n_states * 4
    counts = rng.choice(sizes, pairs)
    ptr = np.concatenate([[0], np.cumsum(counts)])
    prob = np.concatenate([rng.dirichlet(np.full(n, 0.3)) for n in counts])
    mask = None
    if masked:
        mask = rng.random((n_states, 4)) < 0.6
        mask[np.arange(n_states), rng.integers(4, size=n_states)] = True
    return TabularMDP(
        n_states=n_states,
        n_actions=4,
        outcome_ptr=ptr,
        outcome_prob=np.maximum(prob, 1e-9)
        / np.add.reduceat(np.maximum(prob, 1e-9), ptr[:-1]).repeat(counts),
        outcome_next=rng.integers(n_states, size=ptr[-1]),
        outcome_reward=rng.normal(size=ptr[-1]),
        outcome_terminated=rng.random(ptr[-1]) < 0.05,
        start_prob=rng.dirichlet(np.ones(n_states)),
        max_episode_steps=limit,
        action_mask=mask,
    )


class SlowTicTacToe:
    """The compiled game, called from Python: test_tictactoe_simulator looks into its moves."""

    def __init__(self, simulator):
        self.data = simulator.tables
        self.memory = np.zeros(0, np.int64)

    def begin(self, bits):
        return int(tictactoe.reset(self.data, self.memory, np.uint64(bits)))

    def advance(self, state, action, bits):
        next_state, reward, terminated = tictactoe.step(
            self.data, self.memory, state, action, np.uint64(bits)
        )
        return int(next_state), float(reward), bool(terminated)


def simulator_of(name):
    if name == "tictactoe":
        return CompiledSimulator.game(
            "TicTacToe",
            338,
            9,
            tictactoe.game_data(),
            tictactoe.reset,
            tictactoe.step,
            rules().legal,
        )
    models = {
        "frozenlake": lambda: TabularMDP.from_gymnasium("FrozenLake-v1"),
        "padded": lambda: random_model(1, 12, [1, 2, 3], limit=7),
        "ragged": lambda: random_model(2, 12, [1, 1, 1, 1, 1, 1, 1, 1, 30], limit=50),
        "masked": lambda: random_model(3, 12, [1, 2, 3], masked=True, limit=11),
        "masked ragged": lambda: random_model(4, 12, [1, 1, 1, 1, 1, 1, 1, 1, 30], masked=True),
    }
    return CompiledSimulator.from_model(models[name]())


def rates_of(settings, workers):
    """Return the twin's (epsilon, step size) at a global step, from what the schedules say."""
    table = settings.learning_rate.table(workers) if isinstance(settings.learning_rate, PerVisit) else None

    def value(schedule, step):
        segment = schedule.segment(step)
        return segment.value + (step - segment.start) * segment.slope

    def rates(step):
        return value(settings.epsilon, step), table if table is not None else value(
            settings.learning_rate, step
        )

    return rates


class Pair:
    """A compiled learner and its twin, started alike."""

    def __init__(self, simulator, workers=1, seed=0, **settings):
        settings = Settings(**settings)
        rng = np.random.default_rng(seed)
        size = simulator.n_states * simulator.n_actions
        # Few distinct values, so that ties occur; some entries visited often enough to leave the exact slots.
        values = rng.integers(-1, 2, size).astype(float)
        visits = rng.choice([0, 1, 2, 8188, 8191, 70_000, 10**9], size)
        replaying = settings.replay_ratio > 0.0
        self.fast = learner_of(simulator, settings, workers)
        self.table = self.fast.table
        self.table.load(values, visits)
        model = (
            SlowTicTacToe(simulator)
            if simulator.model is None
            else SlowModel(simulator.tables, simulator.n_actions)
        )
        self.slow_table = SlowTable(
            simulator.n_states,
            simulator.n_actions,
            simulator.legal,
            values.reshape(simulator.n_states, -1),
            visits,
        )
        self.slow = SlowLearner(
            model,
            self.slow_table,
            settings.discount_factor,
            rates_of(settings, workers),
            simulator.max_episode_steps,
            SlowReplay(settings.buffer_size, settings.replay_ratio) if replaying else None,
        )

    def learn(self, start, pieces):
        """Learn a stream that begins at global step `start` in `pieces`, comparing after each."""
        stream, used = Stream(KEY, start), 0
        for steps in pieces:
            self.fast.learn(0, stream, steps)
            self.slow.learn(int(KEY), start, used, steps)
            used += steps
            self.compare()

    def compare(self):
        table, slow = self.table, self.slow_table
        q = table.q.reshape(table.n_states, -1)
        for state in range(table.n_states):
            for action in range(table.n_actions):
                legal = action in slow.legal[state]
                assert q[state, action] == (slow.q[state][action] if legal else -np.inf)
            ties = slow.ties(state)
            assert table.best[state] == slow.top(state)
            if ties:
                assert table.greedy[state] == (ties[0] if len(ties) == 1 else -1)
        touched = table.touched[: table.n_touched[0]].tolist()
        assert touched == list(slow.maps)
        for entry, (weight, shift, visits, replays) in slow.maps.items():
            assert table.weight[entry] == weight
            assert table.shift[entry] == shift
            assert table.updates[entry] & 0xFFFFFFFF == visits
            assert table.updates[entry] >> 32 == replays
        rest = np.setdiff1d(np.arange(table.q.size), touched)
        assert (
            (table.weight[rest] == 1).all() and not table.shift[rest].any() and not table.updates[rest].any()
        )
        assert table.visits.tolist() == slow.visits
        slow = self.slow
        assert self.fast.totals.values.tolist() == [
            slow.episodes,
            slow.returns,
            slow.lengths,
            slow.errors,
        ]
        state = self.fast.state(0)
        assert state["position"][:2].tolist() == [slow.state, slow.elapsed]
        assert state["running"].tolist() == [slow.collected]


SCHEDULES = {
    "constant": dict(learning_rate=0.3, epsilon=0.2),
    "linear": dict(learning_rate=Linear(0.5, 0.01, 900), epsilon=Linear(1.0, 0.05, 1000)),
    "exponential": dict(learning_rate=Exponential(0.9, 0.01, 950), epsilon=Exponential(1.0, 0.01, 1100)),
    "visits": dict(learning_rate=PerVisit(0.7, 0.9), epsilon=0.15),
}


@pytest.mark.parametrize("schedules", SCHEDULES)
@pytest.mark.parametrize("name", ["frozenlake", "padded", "ragged", "masked"])
def test_learning_equals_the_twin_bit_for_bit(name, schedules):
    pair = Pair(simulator_of(name), workers=3, discount_factor=0.95, **SCHEDULES[schedules])
    # Crosses the schedules' ends, which lie at 900 to 1,100.
    pair.learn(600, [1, 1, 1, 2, 50, 300, 400])
    assert pair.slow.episodes > 5
    assert pair.slow_table.maps


@pytest.mark.slow
@pytest.mark.parametrize("name", ["masked ragged", "tictactoe"])
def test_masked_environments_equal_the_twin(name):
    simulator = simulator_of(name)
    pair = Pair(simulator, learning_rate=0.2, epsilon=0.5, discount_factor=1.0)
    pair.learn(0, [1, 700])
    assert all(simulator.legal[state, action] for state, action in pair.slow.actions)
    # As the twin and the kernel agree entry by entry, the kernel kept to the mask as well; see for yourself:
    touched = pair.table.touched[: pair.table.n_touched[0]]
    assert simulator.legal.ravel()[touched].all()


@pytest.mark.slow
@pytest.mark.parametrize(("capacity", "ratio"), [(1, 1.0), (7, 2.5), (50, 0.4)])
@pytest.mark.parametrize("learning_rate", [0.3, PerVisit(0.7)])
def test_replay_equals_the_twin(learning_rate, capacity, ratio):
    pair = Pair(
        simulator_of("padded"),
        learning_rate=learning_rate,
        epsilon=0.3,
        replay_ratio=ratio,
        buffer_size=capacity,
    )
    pair.learn(0, [1, 2, 3, 300])
    replayed = sum(made[3] for made in pair.slow_table.maps.values())
    assert replayed == int(ratio * 306 + 1e-6)
    assert sum(made[2] for made in pair.slow_table.maps.values()) == 306


def test_long_learning_without_a_push_keeps_weights_normal():
    pair = Pair(simulator_of("frozenlake"), learning_rate=0.9, epsilon=0.3)
    pair.learn(0, [4000])
    weights = [made[0] for made in pair.slow_table.maps.values()]
    assert 0.0 in weights
    assert all(weight == 0.0 or weight > 1e-290 for weight in weights)


@pytest.mark.slow
@pytest.mark.parametrize("schedules", SCHEDULES)
def test_cutting_a_stretch_changes_no_bit(schedules):
    def learned(pieces):
        learner = learner_of(simulator_of("padded"), Settings(**SCHEDULES[schedules]), workers=2)
        stream, table = Stream(KEY, 500), learner.table
        for steps in pieces:
            learner.learn(0, stream, steps)
        learned = (table.q, table.best, table.greedy, table.weight, table.shift, table.updates, table.visits)
        return [array.tobytes() for array in (*learned, learner.totals.values, table.touched[:-1])]

    whole = learned([5000])
    assert learned([1] * 100 + [4900]) == whole
    rng = np.random.default_rng(5)
    for _ in range(5):
        cuts = np.sort(rng.integers(0, 5001, 40))
        assert learned(np.diff(cuts, prepend=0, append=5000).tolist()) == whole


@pytest.mark.slow
def test_a_truncated_step_bootstraps_from_the_state_it_reached():
    # One action walks 0, 1, 2, ...; episodes are cut after one step and begin anew in state 0.
    transition = np.zeros((3, 1, 3))
    transition[0, 0, 1] = transition[1, 0, 2] = transition[2, 0, 2] = 1.0
    model = TabularMDP.from_arrays(transition, np.ones((3, 1)), [1.0, 0.0, 0.0], max_episode_steps=1)
    learner = learner_of(model, Settings(learning_rate=1.0, discount_factor=0.5, epsilon=0.0))
    table = learner.table
    table.load(np.array([0.0, 10.0, 0.0]), np.zeros(3, np.int64))
    learner.learn(0, Stream(KEY, 0), 3)
    assert table.q.tolist() == [1.0 + 0.5 * 10.0, 10.0, 0.0]
    # The errors are 6 at first, and 0 once the value is what it always comes to.
    assert learner.totals.take().tolist() == [3.0, 3.0, 3.0, 6.0]
    assert learner.totals.take().tolist() == [0.0, 0.0, 0.0, 0.0]


class Corridor(NamedTuple):
    last: int


@numba.njit
def corridor_reset(data, memory, random):
    return 0


@numba.njit
def corridor_step(data, memory, state, action, random):
    return state + 1, 1.0, False


@pytest.mark.slow
@pytest.mark.parametrize("replay_ratio", [0.0, 2.0])
def test_a_state_without_legal_actions_is_worth_nothing_where_an_episode_is_truncated(replay_ratio):
    legal = np.array([[True, False], [True, True], [False, False]])
    simulator = CompiledSimulator.game(
        "corridor", 3, 2, Corridor(2), corridor_reset, corridor_step, legal, max_episode_steps=2
    )
    settings = Settings(learning_rate=0.5, discount_factor=0.5, epsilon=0.5, replay_ratio=replay_ratio)
    learner = learner_of(simulator, settings)
    table = learner.table
    table.load(np.full(6, 9.0), np.zeros(6, np.int64))
    learner.learn(0, Stream(KEY, 0), 400)
    assert table.q.tolist() == pytest.approx([1.5, -np.inf, 1.0, 1.0, -np.inf, -np.inf])
    assert table.best[2] == 0.0
    # A refresh from the server leaves it so, a whole one and one of some entries.
    for entries in (None, np.arange(6, dtype=np.int32)):
        table.rebase(Refresh(-1, 1, entries, np.full(6, 9.0), np.zeros(6, np.int64)), [])
        assert table.best[2] == 0.0


def test_visit_bucket_against_brute_force():
    near = [2**k + d for k in range(13, 48) for d in (-2, -1, 0, 1, 2**k // 3)]
    for visits in [*range(1, 20_000, 7), *range(8100, 8300), *near]:
        assert visit_bucket(visits) == visit_slot(visits)
    for workers in (1, 3):
        table = PerVisit(0.7).table(workers)
        for visits in [1, 2, 3, 8191, *near]:
            exact = max(visits / workers, 1.0) ** -0.7
            assert table[visit_bucket(visits)] == pytest.approx(exact, rel=0.71 / 4096)


def chi_square(counts, expected):
    counts = np.asarray(counts, float)
    return float(((counts - expected) ** 2 / expected).sum())


def test_ties_are_broken_evenly():
    q = np.array([1.0, 3.0, 3.0, -np.inf, 3.0])
    picks = np.zeros(5)
    for draw in range(30_000):
        picks[pick_among_best(q, 3.0, 0, 5, np.uint64(splitmix(draw)))] += 1
    assert picks[0] == picks[3] == 0
    assert chi_square(picks[[1, 2, 4]], 10_000) < 13.8  # 99.9 % of 2 degrees of freedom


def test_every_learning_step_breaks_ties_and_explores_evenly():
    # Rewards are 0, so values stay 0 and every greedy action is a tie of all.
    model = TabularMDP.from_arrays(np.ones((1, 4, 1)), np.zeros((1, 4)), [1.0], max_episode_steps=5)
    for epsilon in (0.0, 1.0, 0.3):
        learner = learner_of(model, Settings(learning_rate=0.5, epsilon=epsilon))
        learner.learn(0, Stream(KEY, 0), 40_000)
        assert chi_square(learner.table.updates, 10_000) < 16.3  # 99.9 % of 3 degrees of freedom


def test_exploration_has_the_chance_that_was_asked_for():
    # Action 0 pays, so it is the greedy one; the others are chosen with epsilon / 4 each.
    model = TabularMDP.from_arrays(np.ones((1, 4, 1)), [[1.0, 0.0, 0.0, 0.0]], [1.0], max_episode_steps=5)
    learner = learner_of(model, Settings(learning_rate=1e-9, epsilon=0.2))
    learner.table.load(np.array([100.0, 0.0, 0.0, 0.0]), np.zeros(4, np.int64))
    learner.learn(0, Stream(KEY, 0), 100_000)
    assert chi_square(learner.table.updates, np.array([85_000, 5_000, 5_000, 5_000])) < 16.3


# Batches of transitions


def some_transitions(seed, n, n_states, n_actions, masked):
    """Return a batch of transitions, and the legal actions of their next states."""
    rng = np.random.default_rng(seed)
    masks = rng.random((n, n_actions)) < 0.5 if masked else None
    batch = Batch(
        np.arange(n) % 3,
        rng.integers(n_states, size=n),
        rng.integers(n_actions, size=n),
        rng.integers(n_states, size=n),
        rng.normal(size=n),
        rng.random(n) < 0.2,
        rng.random(n) < 0.2,
    )
    return batch, masks


@pytest.mark.slow
@pytest.mark.parametrize("learning_rate", [Linear(0.5, 0.1, 100), PerVisit(0.6)])
@pytest.mark.parametrize("replaying", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_learn_batch_equals_the_twin(masked, replaying, learning_rate):
    batch, masks = some_transitions(1, 80, 6, 4, masked)
    rng = np.random.default_rng(2)
    values, visits = rng.normal(size=24), rng.integers(0, 9000, 24)
    table = LocalTable(6, 4, np.dtype("f8"), with_replays=replaying)
    table.load(values, visits)
    slow = SlowTable(6, 4, None, values.reshape(6, 4), visits)
    rates = Rates(Settings(learning_rate=learning_rate), 2)
    context = context_of(table, 0.9, rates.table, masks, walkers=3)
    fast_replay = replay = None
    if replaying:
        memory, replay = ReplayMemory(9, 1.5), SlowReplay(9, 1.5)
        if masked:
            memory.keep_masks(4)
        fast_replay = memory.in_context(context)
    line, epsilon, _ = rates.at(0)
    totals, errors = np.zeros(4), 0.0
    # In two calls, as a lease may end within a batch.
    for first, last in ((0, 30), (30, 80)):
        stretch = Stretch(KEY, first, last - first, line._replace(at=line.at + first), epsilon)
        learn_batch(QLearning(), batch, first, context, fast_replay, stretch, totals)
    for i in range(80):
        entry = int(batch.states[i] * 4 + batch.actions[i])
        alpha = line.value + i * line.slope if rates.table is None else slow.step_size(rates.table, entry, 1)
        target = float(batch.rewards[i])
        allowed = [a for a in range(4) if masks is None or masks[i, a]]
        if not batch.terminated[i]:
            target += 0.9 * slow.top_of(batch.next_states[i], allowed)
        errors += abs(target - slow.q[entry // 4][entry % 4])
        slow.update(entry, target, alpha)
        if replay is not None:
            replay.remember(
                entry, float(batch.rewards[i]), int(batch.next_states[i]), bool(batch.terminated[i]), allowed
            )
            bits = splitmix(int(KEY) + i * 0x9E3779B97F4A7C15)
            replay.replay(slow, 0.9, rates.table, alpha, ~bits)
    assert totals[:3].tolist() == [0.0] * 3 and totals[3] == pytest.approx(errors, rel=1e-12)
    assert table.q.reshape(6, 4).tolist() == slow.q
    assert table.best.tolist() == [slow.top(state) for state in range(6)]
    assert table.touched[: table.n_touched[0]].tolist() == list(slow.maps)
    for entry, (weight, shift, real, replayed) in slow.maps.items():
        assert (table.weight[entry], table.shift[entry]) == (weight, shift)
        assert table.updates[entry] == real + (replayed << 32)


@pytest.mark.slow
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.0])
def test_choose_actions_equals_the_twin(epsilon, masked):
    rng = np.random.default_rng(3)
    table = LocalTable(6, 4, np.dtype("f8"))
    table.load(rng.integers(0, 3, 24).astype(float), np.zeros(24, np.int64))
    states = rng.integers(6, size=500)
    masks = None
    if masked:
        masks = rng.random((500, 4)) < 0.5
        masks[np.arange(500), rng.integers(4, size=500)] = True
    actions = np.full(500, -1)
    choose_actions(QLearning(), context_of(table, 0.9), states, masks, epsilon, KEY, 11, actions)
    for i in range(500):
        bits = splitmix(int(KEY) + (11 + i) * 0x9E3779B97F4A7C15)
        row = table.q[states[i] * 4 : states[i] * 4 + 4].tolist()
        legal = [a for a in range(4) if masks is None or masks[i, a]]
        top = max(row[a] for a in legal)
        choices = legal if (bits >> 32) / 2**32 < epsilon else [a for a in legal if row[a] == top]
        assert actions[i] == choices[share_of(bits, len(choices))]


# Rewards that are no numbers


class BadGame(NamedTuple):
    reward: float
    at: int


@numba.njit
def bad_reset(data, memory, random):
    memory[0] = 0
    return 0


@numba.njit
def bad_step(data, memory, state, action, random):
    memory[0] += 1
    reward = data.reward if memory[0] == data.at else 1.0
    return 0, reward, memory[0] == 10


@pytest.mark.slow
@pytest.mark.parametrize("at", [3, 10])
@pytest.mark.parametrize("reward", [np.nan, np.inf, -np.inf])
def test_a_reward_that_is_no_finite_number_is_an_error(reward, at, monkeypatch):
    simulator = CompiledSimulator.game("bad", 1, 4, BadGame(reward, at), bad_reset, bad_step, memory_size=1)
    settings = Settings(learning_rate=0.1)
    monkeypatch.setattr(trial, "TRIAL_STEPS", 0)  # else it is found before the first step
    learner = learner_of(simulator, settings)
    learner.learn(0, Stream(KEY, 0), 2)
    with pytest.raises(RewardError, match=f"gave the reward {reward}. Rewards must be finite"):
        learner.learn(0, Stream(KEY, 2), 40)
